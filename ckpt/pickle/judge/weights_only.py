"""The reasons why `torch.load(weights_only=True)` refuses a pickle, found in the inert
tree alone.

It follows torch/_weights_only_unpickler.py of torch 2.13 (accepted opcodes are the same
since 1.13; the list of globals grew until 2.6). The tests compare every answer with
torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ckpt.model.dtypes import BY_NAME, BY_STORAGE
from ckpt.model.nodes import (
    Dict,
    Global,
    Node,
    Opaque,
    is_tuple,
)
from ckpt.pickle.judge.names import python3_name
from ckpt.pickle.machine import Pickle
from ckpt.pickle.opcodes import NAMES

TORCH = "2.13"
"""The version of torch that gives this answer."""

_REBUILD = [
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_qtensor",
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_sparse_tensor",
    "_rebuild_meta_tensor_no_storage",
    "_rebuild_nested_tensor",
    "_rebuild_wrapper_subclass",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_device_tensor_from_cpu_tensor",
]
_QSCHEMES = [
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
]
_ALIASES = frozenset(
    ["float", "double", "half", "long", "int", "short", "chalf", "cfloat", "cdouble"]
)
_KINDS = [
    name.removesuffix("Storage")
    for name in BY_STORAGE
    # The list of torch has quantized storages of the CPU only.
    if not name.startswith(("Q", "ComplexHalf"))
]
_TENSOR_KINDS = [kind for kind in _KINDS if not kind.startswith("Complex")]

ALLOWED: frozenset[str] = frozenset(
    (
        "collections.OrderedDict",
        "collections.Counter",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.set",
        "builtins.complex",
        "torch._tensor._rebuild_from_type_v2",
        "torch.storage.UntypedStorage",
        "torch.storage.TypedStorage",
        *(f"torch._utils.{name}" for name in _REBUILD),
        *(f"torch.{name}" for name in _QSCHEMES),
        *(
            f"torch.{name}"
            for name in BY_NAME
            if name not in _ALIASES and not name.startswith("float6_")
        ),
        *(f"torch.{name}" for name in BY_STORAGE if name != "ComplexHalfStorage"),
        *(f"torch.cuda.{kind}Storage" for kind in _KINDS),
        *(f"torch.{kind}Tensor" for kind in _TENSOR_KINDS),
        *(f"torch.cuda.{kind}Tensor" for kind in _TENSOR_KINDS),
        *(
            f"{module}.{kind}Tensor"
            for module in ("torch.sparse", "torch.cuda.sparse")
            for kind in _TENSOR_KINDS
            # torch has no sparse tensor type of this name.
            if kind != "Bool"
        ),
    )
)
"""The dotted names that weights_only allows. It joins module and name before the
lookup.
"""

_MAPPINGS = ("collections.OrderedDict", "collections.Counter")
_WITHOUT_DICT = (
    "torch.Size",
    "torch.device",
    "builtins.bytearray",
    "builtins.set",
    "builtins.complex",
)
"""Classes whose objects have no `__dict__` that a state could fill."""
_WITH_DICT = (
    "collections.Counter",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
)
_STATELESS = ("_codecs.encode", "torch.serialization._get_layout")
"""Functions whose results are of no class that takes a state. Those of all others are
tensors, which take many.
"""


def pickle_refusals(pickle: Pickle) -> list[tuple[str, Node | None]]:
    """Return the reasons why torch refuses the pickle, each with the node that causes
    it or None.

    There are none when it loads.
    """
    reasons: list[tuple[str, Node | None]] = [
        (
            (
                f"opcode {NAMES.get(op, hex(op))} at byte {offset:,} (protocol "
                f"{pickle.protocol})"
            ),
            None,
        )
        for op, offset in pickle.foreign_opcodes.items()
    ]
    # These may be called when the result is not changed afterwards.
    plain: set[Global] = set()
    for name in pickle.globals.values():
        if not _is_allowed(name):
            reasons.append((name.qualified, name))
        # This one calls a function that it is given, so it is always looked at.
        elif name.name != "_rebuild_from_type_v2":
            plain.add(name)
    for call in pickle.calls:
        # Most calls are plain ones, and are passed over here.
        if call.func not in plain or call.states or call.keys or call.items:
            reasons += [(reason, call) for reason in call_refusals(call)]
    for persistent in pickle.persistent:
        pid = persistent.pid
        if type(pid) is not tuple or not pid or pid[0] != "storage":
            if type(pid) is not int:
                reasons.append(("a persistent id that is not a storage", persistent))
    return reasons


def _is_allowed(node: Node) -> bool:
    return (
        type(node) is Global
        and python3_name(node.module, node.name) in ALLOWED
        # python3_name takes it for `torch._tensor`, weights_only does not.
        and node.module != "torch.tensor"
    )


def call_refusals(call: Opaque) -> list[str]:
    """Return the reasons why weights_only refuses a call of an allowed name, or the
    uses of its result.
    """
    func = call.func
    # weights_only calls names only.
    if type(func) is not Global:
        return [
            "a call of the result of a call"
            if type(func) is Opaque
            else "an object of a class in the file"
        ]
    if not _is_allowed(func):
        return []  # the name is refused already
    name = python3_name(func.module, func.name)
    reasons = []
    if call.items:
        reasons.append(f"items appended to {func.qualified}")
    if call.keys and name not in _MAPPINGS:
        reasons.append(f"items set on {func.qualified}")
    if not all(_takes_state(name, state) for state in call.states):
        reasons.append(f"a state set on {func.qualified}")
    if (
        name == "torch._tensor._rebuild_from_type_v2"
        and call.args
        and not _is_allowed(call.args[0])
    ):
        reasons.append("a rebuild of a type by a function that is not allowed")
    return reasons


def _takes_state(name: str, state: Node) -> bool:
    """Tell whether BUILD gives a state to the result of an allowed call: what is empty
    is not looked at any further.
    """
    if name == "collections.OrderedDict":
        return _can_update_dict(state)
    if name not in _WITH_DICT and name not in _WITHOUT_DICT:
        return name not in _STATELESS
    # A tuple of two is (attributes, slots), as the loader takes it apart.
    slots: Node = None
    if is_tuple(state) and len(state) == 2:
        state, slots = state
    if name in _WITHOUT_DICT:
        return _is_empty(state) and _is_empty(slots)
    has_names = _called_name(slots) in _MAPPINGS or (
        type(slots) is Dict and all(isinstance(key, str) for key in slots.keys)
    )
    return (_is_empty(state) or _can_update_dict(state)) and (
        _is_empty(slots) or has_names
    )


def _called_name(node: Node) -> str:
    """The name of which a node is the result, else an empty text."""
    if type(node) is Opaque and type(node.func) is Global:
        return python3_name(node.func.module, node.func.name)
    return ""


_MADE_EMPTY = (*_MAPPINGS, "builtins.set", "builtins.bytearray")
"""Classes that fill an object when they are called. NEWOBJ makes an empty one, whatever
its arguments.
"""


def _is_empty(node: Node) -> bool:
    """Tell whether a node surely is false in Python."""
    if type(node) is Opaque:
        name = _called_name(node)
        if (
            node.keys
            or node.items
            or name
            not in (*_MADE_EMPTY, "torch.Size", "builtins.complex", "_codecs.encode")
        ):
            return False
        if node.how == "newobj" and name in _MADE_EMPTY:
            return True
        # `complex(0, 0)` is false; of the others only the first argument counts.
        told = node.args if name == "builtins.complex" else node.args[:1]
        return all(map(_is_empty, told))
    if type(node) is Dict:
        return not node.keys
    return (
        isinstance(node, (int, float, str, bytes, tuple, list, type(None))) and not node
    )


def _can_update_dict(state: Node) -> bool:
    """Tell whether `dict.update` takes a state: a mapping, or pairs."""
    if type(state) is Dict or _called_name(state) in _MAPPINGS:
        return True
    if type(state) is list or is_tuple(state):
        return all(
            # A text of two letters is a pair for Python.
            (type(pair) in (list, str) or is_tuple(pair))
            and len(pair) == 2
            and type(pair[0]) not in (list, Dict)
            for pair in cast("Sequence[list[Node]]", state)
        )
    return _is_empty(state) and (
        isinstance(state, (str, bytes))
        or _called_name(state) not in ("", "builtins.complex")
    )
