"""The calls of a pickle that cannot succeed, so that no torch.load gets past them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from ckpt.model.dtypes import BY_NAME, BY_STORAGE
from ckpt.model.nodes import (
    NEW,
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    Set,
    tensor_of,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.pickle.judge.names import python3_name

_ITERABLE = (0, 1, (list, tuple, Dict, Set, str, bytes, bytearray))
_ARGUMENTS: dict[str, tuple[int, int, tuple[type, ...]]] = {
    "collections.OrderedDict": (0, 1, (list, tuple, Dict)),
    "collections.Counter": (0, 1, (*_ITERABLE[2], type(None))),
    "builtins.set": _ITERABLE,
    "torch.Size": _ITERABLE,
    "torch.device": (1, 2, (str, int)),
    "builtins.bytearray": (0, 3, (*_ITERABLE[2], int)),
    "builtins.complex": (0, 2, (int, float, str, bool)),
    "_codecs.encode": (1, 3, (str, bytes)),
    "torch.serialization._get_layout": (1, 1, (str,)),
    "torch._utils._rebuild_tensor": (4, 4, (PersistentId,)),
    "torch._utils._rebuild_tensor_v2": (6, 7, (PersistentId,)),
    "torch._utils._rebuild_tensor_v3": (7, 8, (PersistentId,)),
    "torch._utils._rebuild_parameter": (3, 3, (PersistentId, TensorRef)),
    "torch._utils._rebuild_parameter_with_state": (4, 4, (PersistentId, TensorRef)),
    "torch._utils._rebuild_qtensor": (7, 7, (PersistentId,)),
    "torch._utils._rebuild_sparse_tensor": (2, 2, (Global,)),
    "torch._utils._rebuild_meta_tensor_no_storage": (4, 4, (Global,)),
    "torch._utils._rebuild_nested_tensor": (4, 4, (TensorRef,)),
    "torch._utils._rebuild_wrapper_subclass": (8, 8, (Global,)),
    "torch._utils._rebuild_device_tensor_from_numpy": (4, 4, ()),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": (4, 4, (TensorRef,)),
    "torch._tensor._rebuild_from_type_v2": (4, 4, (Global,)),
}
"""Allowed functions: how many arguments they take at least and at most, and the types
of the first.
"""

_STORAGES = frozenset(BY_STORAGE) - {"ComplexHalfStorage"}
"""The names for which torch.load puts an object of its own, which nobody can call, in
place of the class.
"""
_QSCHEMES = ("affine", "symmetric", "affine_float_qparams")
_VALUES = frozenset(
    [
        *(f"torch.{name}" for name in BY_NAME),
        *(f"torch.per_tensor_{name}" for name in _QSCHEMES[:2]),
        *(f"torch.per_channel_{name}" for name in _QSCHEMES),
    ]
)
"""Names of values that Python cannot call."""
_OF_PYTHON_AND_NUMPY = (
    "builtins.",
    "datetime.",
    "decimal.",
    "fractions.",
    "numpy.",
    "re.",
)
"""The beginnings of all names in `UNMADE`."""


class _Rule(NamedTuple):
    """The rule that tells whether a call of one name cannot succeed."""

    has_odd_form: Callable[[Opaque], bool]
    """Asked of each call: it counts arguments, and reads none."""
    is_refused: Callable[[Opaque], bool] | None = None
    """Reads the arguments, which may be long."""


def impossible_call(
    names: Iterable[Node], calls: Iterable[Opaque], *, by_torch: bool = True
) -> Opaque | None:
    """The first call of one of the names with arguments that it never takes: no
    torch.load gets past it. Without `by_torch` the file is loaded by pickle.load.
    """
    rules: dict[Node, _Rule] = {}
    # By node: a call holds the node of its function, so no name is made again.
    for name in names:
        rule = _rule_of(name, by_torch) if type(name) is Global else None
        if rule is not None:
            rules[name] = rule
    # A pickle may give one long argument to a million calls: each is read once.
    asked: set[tuple[object, ...]] = set()
    for call in calls:
        rule = rules.get(call.func)
        if rule is None:
            continue
        if rule.has_odd_form(call):
            return call
        if rule.is_refused is None:
            continue
        key = _asked_key(call)
        if key not in asked:
            if rule.is_refused(call):
                return call
            asked.add(key)
    return None


_WORD = 32
"""The most characters of a text that is compared itself, such as the name of a
codec.
"""


def _asked_key(call: Opaque) -> tuple[object, ...]:
    """Return what two calls share that have the same function and arguments. The nodes
    of a pickle live as long as its calls.
    """
    if call.kwargs is not None or call.states or call.items or call.keys:
        return (id(call),)
    return (
        call.how,
        id(call.func),
        *(
            arg if type(arg) is str and len(arg) <= _WORD else id(arg)
            for arg in call.args
        ),
    )


def _rule_of(name: Global, by_torch: bool) -> _Rule | None:
    """The rule that tells of a call of a name whether it cannot succeed, or None."""
    if by_torch and name.name in _STORAGES:
        return _Rule(_is_called)
    known = python3_name(name.module, name.name)
    if known in _VALUES:
        return _Rule(_is_called)
    counted = _ARGUMENTS.get(known)
    is_refused: Callable[[Opaque], bool] | None = None
    if known in ("torch.device", "torch._C.Generator"):
        is_refused = _is_no_device
    elif known in _FROM_NUMPY:
        is_refused = _gives_no_array
    elif known.startswith(_OF_PYTHON_AND_NUMPY):
        from ckpt.tree.unmade import UNMADE  # here: most state dicts name none of them

        is_refused = UNMADE.get(known)
    if counted is None:
        return None if is_refused is None else _Rule(_is_never, is_refused)
    return _Rule(partial(_has_odd_arguments, counted), is_refused)


_FROM_NUMPY = (
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_xla_tensor",
)


_DEVICE = re.compile(r"[A-Za-z_]+(:(0|[1-9][0-9]*))?")
_DEVICES = (
    *("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve"),
    *("fpga", "maia", "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia"),
)
"""The devices of torch itself. A program may give another name to `privateuseone`."""


def _is_no_device(call: Opaque) -> bool:
    """Tell whether a text is none of a device, as `CPU` or `cuda:01`."""
    text = call.args[0] if call.args else None
    if not isinstance(text, str) or len(text) > _WORD:
        return False
    kind = text.partition(":")[0]
    return _DEVICE.fullmatch(text) is None or (
        kind.lower() in _DEVICES and kind not in _DEVICES
    )


def _gives_no_array(call: Opaque) -> bool:
    """Tell whether a tensor stands where torch asks for an array of numpy."""
    return bool(call.args) and tensor_of(call.args[0]) is not None


def _is_never(call: Opaque) -> bool:
    return False


def _is_called(call: Opaque) -> bool:
    return call.how == "reduce" or call.how in NEW


def _has_odd_arguments(rule: tuple[int, int, tuple[type, ...]], call: Opaque) -> bool:
    """Tell whether a call has too few or too many arguments, or a first one of a type
    that the function never takes.
    """
    least, most, types = rule
    # Without arguments the call is allowed where none are needed.
    if call.how != "reduce" or not (call.args or least):
        return False
    if not least <= len(call.args) <= most:
        return True
    return type(call.args[0]) not in (*types, ByteStr, Opaque)
