"""The tensor classes of torchao, as a pickle holds them: what they are made of, read by
their class.
"""

from __future__ import annotations

from ckpt.ext.quantised.facts import Facts
from ckpt.ext.quantised.integers import plan_torchao
from ckpt.ext.quantised.schemes import Given, MisfitError, Planned, refuse_strange_parts
from ckpt.model.dtypes import BY_NAME
from ckpt.model.tensors import Composite

_CLASSES = {
    "Int8Tensor": ("qdata", "scale", "zero_point"),
    "Float8Tensor": ("qdata", "scale"),
    "IntxUnpackedToInt8Tensor": ("qdata", "scale", "zero_point"),
}
"""The classes whose parts are certain, and those parts."""


def plan_wrapper(tensor: Composite, facts: Facts, *, can_read: bool) -> Planned | None:
    """Return the weight of a tensor of torchao, or None for any other tensor. Raises
    MisfitError.
    """
    detail = tensor.detail or ""
    module, _, short = detail.rpartition(".")
    if (
        tensor.layout != "wrapper"
        or module.partition(".")[0] != "torchao"
        or tensor.piece is not None
    ):
        return None
    if short not in _CLASSES:
        raise MisfitError(f"the parts of {short} are not known")
    parts = dict(tensor.parts)
    known = _CLASSES[short]
    if "qdata" not in parts or "scale" not in parts:
        raise MisfitError(f"{short} has no qdata or no scale")
    codes = parts["qdata"]
    if codes.shape != tensor.shape:
        raise MisfitError(f"{short} has codes of another shape")
    if tensor.dtype.name not in ("float32", "float16", "bfloat16"):
        raise MisfitError(f"{short} stands for {tensor.dtype.name}")
    named = {
        "codes": codes,
        **{name: part for name, part in parts.items() if name in known[1:]},
    }
    given = Given(named, facts, can_read)
    refuse_strange_parts(given)
    return plan_torchao(given, BY_NAME[tensor.dtype.name])
