"""The children of a container, and of a module in the order of `state_dict()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from ckpt.checkpoint import Role
from ckpt.errors import UnreadableError
from ckpt.names import Path
from ckpt.nodes import Dict, Global, Node, Opaque, key_of
from ckpt.text import show
from ckpt.tree.arrays import as_bytes
from ckpt.tree.quantized import saved_attributes
from ckpt.tree.view import SCALARS, View, look

REGISTERED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what it registers."""
HOOKS = frozenset(
    [
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    ]
)
"""Attributes of a module that hold functions which torch calls."""
# Attributes that every nn.Module has. They are not shown while they are empty.
_QUIET = HOOKS | {
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_is_full_backward_hook",
    "_non_persistent_buffers_set",
    "_backend",
    "_compiled_call_impl",
}


Registered = bool | None
"""True where the state_dict() of a module looks, False below its other attributes, None outside modules."""


Step = tuple[Path, str, Node, Role | None, Registered, bool]


_KEY_ITEMS = 20
_SMALL = frozenset({int, float, bool, type(None)})


def steps(view: View, path: Path, name: str, registered: Registered) -> Iterator[Step]:
    """The children of a container that is not a module: path, name, node, kind, registered, persistent."""
    prefix = f"{name}." if path else ""
    keys: Sequence[Node] = view.keys if view.kind != "sequence" else range(len(view.children))
    for index, (key, child) in enumerate(zip(keys, view.children, strict=True)):
        step = key if type(key) is str else key_of(key, index)
        yield (*path, step), f"{prefix}{step}", child, None, registered, True


def module_steps(view: View, path: Path, name: str, registered: Registered) -> Iterator[Step]:
    """In the order of state_dict(): own parameters, own buffers, children. Then the other attributes.

    What quantized modules save beside them (packed parameters, scales) comes before the children, as registered.
    """
    state = view.attributes
    prefix = f"{name}." if path else ""
    transient = look(state.get("_non_persistent_buffers_set"))
    hidden = {str(item) for item in transient.children if isinstance(item, str)}
    inside = registered is not False
    kinds: tuple[tuple[str, Role | None], ...] = (
        ("_parameters", "parameter"),
        ("_buffers", "buffer"),
        ("_modules", None),
    )
    saved = saved_attributes(view.type, state)
    for attribute, kind in kinds:
        if attribute == "_modules":
            for own in saved:
                if state[own] is not None:
                    yield (*path, own), f"{prefix}{own}", state[own], None, inside, True
        inner = look(state.get(attribute))
        if inner.kind != "mapping":
            continue
        for index, (key, child) in enumerate(zip(inner.keys, inner.children, strict=True)):
            if child is None:
                continue  # the module declares this parameter, buffer or child but does not have it
            step = key_of(key, index)
            persistent = not (kind == "buffer" and str(step) in hidden)
            yield (*path, attribute, step), f"{prefix}{step}", child, kind, inside, persistent
    for key, child in state.items():
        if key in REGISTERED or key in saved:
            continue
        if key in _QUIET and (type(child) in _SMALL or not len(look(child).children)):
            continue
        if key == "_non_persistent_buffers_set":
            continue
        yield (*path, key), f"{prefix}{key}", child, None, False, True


# --- keys -------------------------------------------------------------------------------------------------------------


def are_texts(keys: Sequence[Node]) -> bool:
    """Whether all keys are plain strings."""
    return set(map(type, keys)) == {str}


def is_scalar(node: Node) -> bool:
    """Whether a node is a scalar, also where it is written as a call: bytes are in protocol 2."""
    return type(node) in SCALARS or as_bytes(node) is not None


def repeated(keys: Sequence[Node]) -> dict[int, int]:
    """Keys that are equal to one before them in a dict: the index of each, and that of the first."""
    if are_texts(keys) and len(set(keys)) == len(keys):
        return {}
    # Ints and floats are compared by text, because a hostile file can choose them so that their hashes collide.
    first: dict[str, int] = {}
    found: dict[int, int] = {}
    for index, key in enumerate(keys):
        if _is_hashed(key):
            at = first.setdefault(key_text(key), index)
            if at != index:
                found[index] = at
    return found


def _is_hashed(key: Node) -> bool:
    if type(key) is tuple:  # of scalars: tuples in tuples can unfold without end
        return len(key) <= _KEY_ITEMS and all(type(item) in SCALARS for item in key)
    return type(key) is Global or (is_scalar(key) and type(key) is not bytearray)


def refuse_repeats(view: View, name: str) -> None:
    """Raise UnreadableError when a dict sets one key twice. Python keeps the second value, other readers may not."""
    found = repeated(view.keys)
    if found:
        key = key_text(view.keys[next(iter(found))])
        raise UnreadableError(f"damaged pickle: the key {show(key, 80)}{_of(name)} is set twice in one dict")


def merge_repeats(node: Node, name: str) -> str | None:
    """Let the last value of each key of a dict count, at the place of the first, as Python does; a sentence about it.

    None for a dict that sets no key twice.
    """
    if type(node) is not Dict and type(node) is not Opaque:
        return None
    found = repeated(node.keys)
    if not found:
        return None
    values = list(node.values)
    for index, at in found.items():
        values[at] = values[index]
    kept = [index for index in range(len(values)) if index not in found]
    key = show(key_text(node.keys[next(iter(found))]), 80)
    node.keys, node.values = [node.keys[index] for index in kept], [values[index] for index in kept]
    more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"the key {key}{_of(name)} is set twice in one dict{more}: the last value counts, as in Python"


def _of(name: str) -> str:
    return f" of {show(name, 80)}" if name else ""


def key_text(key: Node) -> str:
    """A text that is the same for keys that are equal in Python, such as 1, 1.0 and True."""
    if isinstance(key, str):
        return repr(str(key))
    if isinstance(key, float) and key.is_integer() and abs(key) < 2**53:
        return str(int(key))
    if type(key) is tuple:
        return f"({', '.join(map(key_text, cast('tuple[Node, ...]', key)))})"
    if type(key) is Global:
        return f"<{key.qualified}>"
    data = as_bytes(key) if type(key) is Opaque else None
    if data is not None:  # bytes, as protocol 2 writes them
        return repr(data)
    if key != key:  # NaN is not equal to another NaN
        return f"nan {id(key)}"
    if isinstance(key, int):
        return hex(key) if key.bit_length() > 512 else str(int(key))
    return repr(key)
