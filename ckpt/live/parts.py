"""Values of a live state dict that a pickle of plain tensors holds in parts: packed parameters, wrappers, quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt.live import require_torch
from ckpt.nodes import Global, Node, Opaque, PersistentId
from ckpt.pickles.calls import ordered_dict
from ckpt.pickles.rebuild import Rebuilder
from ckpt.tensors import TensorRef
from ckpt.tree.view import MARKERS

_DEPTH = 8
_QUANTIZED = ("qint8", "quint8", "qint32")
"""Quantized dtypes whose elements are whole bytes."""


def opened(values: Mapping[str, Any], *, wrappers: bool) -> dict[str, Any]:
    """The values with packed parameters as what they hold and, with `wrappers`, each wrapper subclass as its parts.

    The parts of `weight` are `weight.qdata` and so on, with the dtype and the shape that it shows. One whose parts
    would have names that others have stays as it is.
    """
    made: dict[str, Any] = {}
    for name, value in values.items():
        parts = _parts(name, value, 0) if wrappers else {}
        if parts and not any(part in values or part in made for part in parts):
            made.update(parts)
        else:
            made[name] = _unpacked(value, 0)
    return made


def _parts(name: str, value: Any, depth: int) -> dict[str, Any]:
    """The parts of a wrapper subclass by their names; empty for anything else."""
    torch = require_torch()
    if depth == _DEPTH or not isinstance(value, torch.Tensor) or value.is_nested:
        return {}
    if getattr(type(value), "__tensor_flatten__", None) is None or hasattr(value, "to_local"):
        return {}
    held = {key: part for key, part in value.__dict__.items() if part is not None and key not in MARKERS}
    inner, _ = value.__tensor_flatten__()
    if not all(isinstance(held.get(key), torch.Tensor) for key in inner) or not inner:
        return {}
    outer = {"dtype": str(value.dtype), "shape": tuple(value.shape)}
    made: dict[str, Any] = {}
    for key, part in {**outer, **held}.items():
        made.update(_parts(f"{name}.{key}", part, depth + 1) or {f"{name}.{key}": part})
    return made


def _unpacked(value: Any, depth: int) -> Any:
    """A value with the content of the packed parameters in it: what they pickle."""
    torch = require_torch()
    if depth == _DEPTH:
        return value
    if isinstance(value, torch.ScriptObject):
        try:
            state = value.__getstate__()
        except RuntimeError:  # a class of C++ that does not pickle
            return value
        return _unpacked(state[0], depth + 1) if type(state) is tuple and len(state) == 2 else value
    if type(value) in (list, tuple):
        items = [_unpacked(item, depth + 1) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if type(value) is list else tuple(items)
    return value


def is_quantized(tensor: Any) -> bool:
    """Whether a tensor is quantized in a way that the file can hold: whole bytes, affine per tensor or channel."""
    torch = require_torch()
    affine = (torch.per_tensor_affine, torch.per_channel_affine, torch.per_channel_affine_float_qparams)
    return bool(
        tensor.is_quantized
        and tensor.layout is torch.strided
        and str(tensor.dtype).removeprefix("torch.") in _QUANTIZED
        and tensor.qscheme() in affine
    )


def scales(tensor: Any) -> tuple[Any, ...]:
    """The scales and zero points of a tensor that is quantized per channel; empty for any other."""
    torch = require_torch()
    if not tensor.is_quantized or tensor.qscheme() is torch.per_tensor_affine:
        return ()
    return tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()


def quantized_node(tensor: Any, ref: TensorRef, channels: tuple[TensorRef, ...]) -> Node:
    """`_rebuild_qtensor` of a quantized tensor over its elements, as torch/_tensor.py writes it."""
    scheme = Global("torch", str(tensor.qscheme()).removeprefix("torch."))
    quantizer: tuple[Node, ...] = (
        (scheme, *channels, int(tensor.q_per_channel_axis()))
        if channels
        else (scheme, float(tensor.q_scale()), int(tensor.q_zero_point()))
    )
    storage = PersistentId(None, 0)
    storage.meaning = ref.storage
    args = (storage, ref.offset, ref.shape, ref.stride, quantizer, False, ordered_dict())
    call = Opaque("reduce", Global("torch._utils", "_rebuild_qtensor"), args, None, 0)
    Rebuilder(lambda data: None).set_meaning(call)
    return call
