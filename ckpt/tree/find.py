"""Finding nodes of the inert tree by name and by path, the order of children, unique
names, and the metadata of safetensors.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from ckpt.model.checkpoint import Checkpoint, Entries, Entry, Role, Value
from ckpt.model.columns import row_parts
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.names import Path
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    dict_of,
    key_of,
    tensor_of,
)
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import show
from ckpt.tree.arrays import as_bytes
from ckpt.tree.view import SCALARS, View, look

_Named = TypeVar("_Named", Entry, Value)
_PARTS = 64
"""Parts of a name whose beginnings are looked for together."""


def with_unique_names(
    rows: Sequence[_Named],
) -> tuple[Sequence[_Named], list[tuple[str, str]]]:
    """The rows with a mark like `#2` on each name that an earlier row has, and (name,
    marked name) for each mark.
    """
    taken: set[str] = set()
    for part in row_parts(rows):
        # Columns give their names without making their rows.
        names = part.names if isinstance(part, Entries) else [row.name for row in part]
        taken.update(names)
    if len(taken) == len(rows):
        return rows, []
    counts: dict[str, int] = {}
    out: list[_Named] = []
    marks: list[tuple[str, str]] = []
    for row in rows:
        name = row.name
        count = counts.get(name, 0) + 1
        if count > 1:
            # A key of the file may look like a mark.
            while f"{name}#{count}" in taken:
                count += 1
            marked_name = f"{name}#{count}"
            marks.append((name, marked_name))
            row = row._replace(name=marked_name)
        counts[name] = count
        out.append(row)
    return out, marks


class KeyTables:
    """The positions of keys in dicts, for whoever looks up many names in one tree that
    does not change: each dict is read once, and not once for each name.
    """

    def __init__(self) -> None:
        # The id of a list of keys -> the list, to keep the id taken, and its table.
        self._tables: dict[int, tuple[Sequence[Node], dict[str, int] | None]] = {}

    def positions_of(self, keys: Sequence[Node]) -> dict[str, int] | None:
        """The position of each key, or None where some keys are not texts, or equal."""
        known = self._tables.get(id(keys))
        if known is not None:
            return known[1]
        table: dict[str, int] | None = None
        if are_texts(keys):
            texts = cast("Sequence[str]", keys)
            table = dict(zip(texts, range(len(texts)), strict=True))
            if len(table) < len(texts):
                table = None
        self._tables[id(keys)] = keys, table
        return table


def find_nodes(
    root: Node, name: str, limits: Limits, tables: KeyTables | None = None
) -> list[tuple[Path, Node]]:
    """The nodes with a dotted name, and their paths. Keys may contain dots themselves.

    Modules have state-dict names and the names of their attributes. Whoever looks up
    many names in one tree gives its `tables`. Raises LimitError for a hostile tree.
    """
    nodes: list[tuple[Path, Node]] = []
    # The part of the name that is still to be found below each node; None at the end.
    todo: list[tuple[Node, Path, str | None]] = [(root, (), name)]
    visits = 0
    searched: set[tuple[int, str]] = set()
    while todo:
        node, path, rest = todo.pop()
        visits += 1
        if visits > limits.entries or len(path) > limits.depth:
            raise LimitError(
                "the name matches too many places", "entries", limits.entries
            )
        if rest is None:
            nodes.append((path, node))
            continue
        if tensor_of(node) is not None:
            continue
        view = look(node)
        if view.kind in ("scalar", "tensor", "storage"):
            continue
        # Keys such as `a`, `a.a`, `a.a.a` in a dict that holds itself match in more
        # ways than anybody can wait for. Each further way counts all children.
        if (id(node), rest) in searched:
            visits += len(view.children)
        searched.add((id(node), rest))
        matches: list[tuple[Node, Path, str | None]] = []
        # A list of keys that a view has made is another one each time.
        own_tables = None
        if (type(node) is Dict or type(node) is Opaque) and view.keys is node.keys:
            own_tables = tables
        names = _beginnings_of(rest)
        for inner, text, child in _children_named(view, names, own_tables):
            if rest == text:
                matches.append((child, (*path, *inner), None))
            elif rest.startswith(f"{text}."):
                matches.append((child, (*path, *inner), rest[len(text) + 1 :]))
        todo += reversed(matches)
    return nodes


def _beginnings_of(name: str) -> set[str] | None:
    """Return the names that a child on the way to a dotted name can have: `a`, `a.b`,
    `a.b.c`. None for a name with so many parts that comparing each child is cheaper.
    """
    parts = name.split(".")
    if len(parts) >= _PARTS:
        return None
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _children_named(
    view: View, names: set[str] | None, tables: KeyTables | None
) -> Iterator[tuple[Path, str, Node]]:
    """The children that have one of the names; all without `names`."""
    if names is None or view.kind != "mapping":
        yield from named_children(view)
        return
    positions = None if tables is None else tables.positions_of(view.keys)
    if positions is not None:
        for index in sorted(positions[name] for name in names if name in positions):
            key = str(view.keys[index])
            yield (key,), key, view.children[index]
        return
    if not are_texts(view.keys):
        yield from named_children(view)
        return
    # A state dict has 100,000 keys, of which a few are asked for: no child is made for
    # the others.
    found = names.intersection(cast("Sequence[str]", view.keys))
    for index in sorted(map(view.keys.index, found)):
        key = str(view.keys[index])
        yield (key,), key, view.children[index]


def named_children(view: View) -> Iterator[tuple[Path, str, Node]]:
    """The path, the name and the node of each child, as `find_nodes` knows them."""
    below = module_steps if view.kind == "module" else container_steps
    for path, text, child, *_ in below(view, (), "", None):
        yield path, text, child


def children_of(node: Node) -> list[tuple[str | int, Node]]:
    """The (key, child) pairs of a node, with keys as in paths. Modules give their
    attributes, leaves nothing.
    """
    if node is None or tensor_of(node) is not None:
        return []
    view = look(node)
    if view.kind in ("scalar", "storage"):
        return []
    if view.kind == "module":
        return list(view.attributes.items())
    return [
        (path[0], child) for path, _, child, *_ in container_steps(view, (), "", None)
    ]


def node_at(root: Node, path: Path) -> Node:
    """The node at a path of keys as `children` gives them; None when there is no such
    node.
    """
    node = root
    for key in path:
        node = next((child for step, child in children_of(node) if step == key), None)
    return node


def places_of(root: Node, wanted: set[int]) -> dict[int, str]:
    """The first name of each wanted node, by the id of the node."""
    names: dict[int, str] = {}
    seen: dict[int, Node] = {}
    todo: list[tuple[Node, str]] = [(root, "")]
    while todo and len(names) < len(wanted):
        node, name = todo.pop()
        if id(node) in wanted:
            names.setdefault(id(node), name)
        if id(node) in seen or type(node) in SCALARS:
            continue
        seen[id(node)] = node
        below = [
            (child, f"{name}.{key}" if name else str(key))
            for key, child in children_of(node)
        ]
        todo += reversed(below)
    return names


# --- counters of steps ----------------------------------------------------------------

COUNTERS = frozenset(
    (
        "step",
        "steps",
        "global_step",
        "global_steps",
        "iteration",
        "iter",
        "epoch",
        "current_epoch",
    )
)
"""Keys whose values are equal on all ranks of a run, at every save."""
_OUTER = 2
"""The depth of the counters of a run: `epoch`, `train_state.epoch`.

An optimizer's `step` of a parameter lies deeper.
"""
_FORMS = {
    "float32": "<f",
    "float64": "<d",
    "int64": "<q",
    "int32": "<i",
    "float16": "<e",
}


def is_counter(path: Path) -> bool:
    """Tell whether the value at a path is one that all ranks count alike."""
    return path[-1] == "step" or is_run_counter(path)


def is_run_counter(path: Path) -> bool:
    """Tell whether a path is of a counter of the run: `epoch`, `train_state.epoch`."""
    return 0 < len(path) <= _OUTER and path[-1] in COUNTERS


def counter(node: Node) -> float | None:
    """The value of a step counter: a number, or a tensor with one element. None for
    anything else.
    """
    found = tensor_of(node)
    tensor = None if found is None else unwrap_dtensor(found)
    if isinstance(tensor, TensorRef):
        return _counter_in_tensor(tensor)
    if node is None or tensor is not None:
        return None
    value = look(node).value
    # From 2**53 on a float does not hold each int: two counters would look equal.
    if isinstance(value, (int, float)) and abs(value) < 2**53:
        return float(value)
    return None


def _counter_in_tensor(tensor: TensorRef) -> float | None:
    """Return the number in a tensor with one element, or None."""
    form = _FORMS.get(tensor.dtype.name)
    if form is None or tensor.numel != 1 or tensor.storage.place is None:
        return None
    # Here: few files hold their counters in tensors.
    from ckpt.elements.blocks import elements

    try:
        return float(struct.unpack(form, b"".join(elements(tensor)))[0])
    except UnreadableError:
        # A part of the checkpoint is missing, which is a finding of its own.
        return None


METADATA = "__metadata__"


def is_metadata(path: Path) -> bool:
    """Tell whether a path leads into the metadata."""
    return path[:1] == (METADATA,)


def metadata_of(root: Node) -> dict[str, str]:
    """The metadata in the tree of a safetensors file."""
    if type(root) is not Dict:
        return {}
    for key, value in zip(root.keys, root.values, strict=True):
        if type(key) is str and key == METADATA and type(value) is Dict:
            return {
                name: text
                for name, text in zip(value.keys, value.values, strict=True)
                if type(name) is type(text) is str
            }
    return {}


def metadata_node(texts: Mapping[str, str]) -> Dict:
    """The node for the metadata key."""
    return dict_of(texts.items())


def with_metadata(root: Node, texts: Mapping[str, str]) -> Dict:
    """The items of a tree with these texts as its metadata. Without texts the key is
    left out.
    """
    node = without_keys(root, [METADATA])
    if texts:
        node.set([METADATA], [metadata_node(texts)])
    return node


def without_keys(root: Node, gone: Collection[Node]) -> Dict:
    """The items of a mapping as a dict, without some keys, which are texts and numbers:
    a file may hold others that Python cannot hash.
    """
    view = look(root)
    return dict_of(
        (key, child)
        for key, child in zip(view.keys, view.children, strict=True)
        if not isinstance(key, (str, int)) or key not in gone
    )


def is_alias(other: str, name: str) -> bool:
    """Tell whether a text of the metadata can be the name of a tied tensor: such names
    have a dot.
    """
    return "." in other and other != name


def tied_names(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the names of tensors that are another name of an earlier one: other name
    -> first name.

    Such tensors show the same elements of one storage. Empty ones have no memory to
    share.
    """
    first: dict[object, str] = {}
    found: dict[str, str] = {}
    for entry in entries:
        tensor = entry.tensor
        if isinstance(tensor, TensorRef) and tensor.numel:
            name = first.setdefault(tensor.view, entry.name)
            if name != entry.name:
                found[entry.name] = name
    return found


def aliases_to_note(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the tied tensors that a file of safetensors holds under their first name
    alone, and notes in its metadata: other name -> first name.

    A name that could be any text of the metadata is none of them: it gets a copy.
    """
    return {
        other: first
        for other, first in tied_names(entries).items()
        if is_alias(other, first)
    }


def tied_aliases(checkpoint: Checkpoint) -> dict[str, str]:
    """The other names of tied tensors, as `safetensors.torch.save_model` writes them:
    other name -> name.
    """
    told = {
        other: name
        for other, name in metadata_of(checkpoint.root).items()
        if is_alias(other, name)
    }
    if not told:
        return told
    names = {entry.name for entry in checkpoint.tensors}
    return {
        other: name
        for other, name in told.items()
        if name in names and other not in names
    }


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
"""True where the state_dict() of a module looks, False below its other attributes, None
outside modules.
"""


# A plain tuple and no NamedTuple, which takes seven times as long to make: there is one
# for each node of a tree.
Step = tuple[Path, str, Node, Role | None, Registered, bool]
"""A child: path, name, node, kind, registered, persistent."""


_KEY_ITEMS = 20
"""The most items of a tuple that is compared as a key."""
_LONG_KEY = 256
"""The letters of a text that is a key from which on it is compared by its hash, which
Python salts and keeps.
"""
_SMALL = frozenset({int, float, bool, type(None)})


def container_steps(
    view: View, path: Path, name: str, registered: Registered
) -> Iterator[Step]:
    """The children of a container that is not a module: path, name, node, kind,
    registered, persistent.
    """
    prefix = f"{name}." if path else ""
    keys: Sequence[Node] = (
        view.keys if view.kind != "sequence" else range(len(view.children))
    )
    for index, (key, child) in enumerate(zip(keys, view.children, strict=True)):
        step = key if type(key) is str else key_of(key, index)
        yield (*path, step), f"{prefix}{step}", child, None, registered, True


def module_steps(
    view: View, path: Path, name: str, registered: Registered
) -> Iterator[Step]:
    """In the order of state_dict(): own parameters, own buffers, children. Then the
    other attributes.

    What quantized modules save beside them (packed parameters, scales) comes before the
    children, as registered.
    """
    state = view.attributes
    prefix = f"{name}." if path else ""
    # torch keeps the names of the buffers that state_dict() leaves out in a set.
    transient = look(state.get("_non_persistent_buffers_set"))
    hidden = {str(item) for item in transient.children if isinstance(item, str)}
    # A module in a plain list of another module is seen by no state_dict(), and neither
    # is anything that it registers.
    is_inside = registered is not False
    kinds: tuple[tuple[str, Role | None], ...] = (
        ("_parameters", "parameter"),
        ("_buffers", "buffer"),
        ("_modules", None),
    )
    from ckpt.tree.quantized import saved_attributes  # here: a state dict has no module

    saved = saved_attributes(view.type, state)
    for attribute, kind in kinds:
        if attribute == "_modules":
            for own in saved:
                child = state[own]
                if child is not None:
                    yield (*path, own), f"{prefix}{own}", child, None, is_inside, True
        registry = look(state.get(attribute))
        if registry.kind != "mapping":
            continue
        for index, (key, child) in enumerate(
            zip(registry.keys, registry.children, strict=True)
        ):
            if child is None:
                # The module declares this parameter, buffer or child but does not have
                # it.
                continue
            step = key_of(key, index)
            child_path = (*path, attribute, step)
            persistent = not (kind == "buffer" and str(step) in hidden)
            yield child_path, f"{prefix}{step}", child, kind, is_inside, persistent
    for key, child in state.items():
        if key in REGISTERED or key in saved or key == "_non_persistent_buffers_set":
            continue
        if key in _QUIET and (type(child) in _SMALL or not look(child).children):
            continue
        yield (*path, key), f"{prefix}{key}", child, None, False, True


# --- keys -----------------------------------------------------------------------------


def are_texts(keys: Sequence[Node]) -> bool:
    """Tell whether there are keys and all of them are plain strings."""
    return set(map(type, keys)) == {str}


def is_scalar(node: Node) -> bool:
    """Tell whether a node is a scalar, also if it is written as a call, like bytes in
    protocol 2.
    """
    return type(node) in SCALARS or as_bytes(node) is not None


def repeated_keys(keys: Sequence[Node]) -> dict[int, int]:
    """Map the index of each key that equals an earlier one in a dict to the index of
    the first one.
    """
    if are_texts(keys) and len(set(keys)) == len(keys):
        return {}
    # Ints and floats are compared by text, because a hostile file can choose them so
    # that their hashes collide.
    first: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for index, key in enumerate(keys):
        if is_compared(key):
            earlier = first.setdefault(key_text(key), index)
            if earlier != index:
                repeats[index] = earlier
    return repeats


def is_compared(key: Node) -> bool:
    """Tell whether `repeated_keys` compares a key with the others."""
    # Only tuples of scalars: tuples in tuples can unfold without end.
    if type(key) is tuple:
        return len(key) <= _KEY_ITEMS and all(type(item) in SCALARS for item in key)
    # Python cannot use a bytearray as a key: a file that does is refused by loading.
    return type(key) is Global or (is_scalar(key) and type(key) is not bytearray)


def refuse_repeats(view: View, name: str) -> None:
    """Raise UnreadableError when a dict sets one key twice. Python keeps the second
    value, other readers may not.
    """
    repeats = repeated_keys(view.keys)
    if repeats:
        key = key_text(view.keys[next(iter(repeats))])
        raise UnreadableError(
            f"damaged pickle: the key {show(key, 80)}{_of_name(name)} is set twice in "
            "one dict"
        )


def merge_repeats(node: Node, name: str) -> str | None:
    """Let the last value of each key of a dict count, at the place of the first, as
    Python does; a sentence about it.

    None for a dict that sets no key twice.
    """
    if type(node) is not Dict and type(node) is not Opaque:
        return None
    repeats = repeated_keys(node.keys)
    if not repeats:
        return None
    first_repeated = node.keys[next(iter(repeats))]
    values = list(node.values)
    for index, earlier in repeats.items():
        values[earlier] = values[index]
    kept = [index for index in range(len(values)) if index not in repeats]
    node.keys = [node.keys[index] for index in kept]
    node.values = [values[index] for index in kept]
    key = show(key_text(first_repeated), 80)
    more = f", and {len(repeats) - 1:,} more" if len(repeats) > 1 else ""
    return (
        f"the key {key}{_of_name(name)} is set twice in one dict{more}: the last value "
        "counts, as in Python"
    )


def _of_name(name: str) -> str:
    return f" of {show(name, 80)}" if name else ""


def key_text(key: Node) -> str:
    """A text that is the same for keys that are equal in Python, such as 1, 1.0 and
    True.
    """
    # torch reads the texts of Python 2 as UTF-8.
    if type(key) is ByteStr and not key.isascii():
        with contextlib.suppress(UnicodeDecodeError):
            return repr(key.encode("latin-1").decode("utf-8"))
    # Its letters are not written out for each key.
    if isinstance(key, str) and len(key) > _LONG_KEY:
        return f"{str(key[:_LONG_KEY])!r}… {len(key)} {hash(key)}"
    if isinstance(key, str):
        return repr(str(key))
    if isinstance(key, float) and key.is_integer():
        return key_text(int(key))
    if type(key) is tuple:
        return f"({', '.join(map(key_text, cast('tuple[Node, ...]', key)))})"
    if type(key) is Global:
        return f"<{key.qualified}>"
    # Bytes, as protocol 2 writes them.
    data = as_bytes(key) if type(key) is Opaque else None
    if data is not None:
        return repr(data)
    # NaN is not equal to another NaN, so a dict may hold several.
    if key != key:
        return f"nan {id(key)}"
    if isinstance(key, int):
        # Python refuses to write out an int of more than 4,300 digits, and takes long
        # for one of fewer.
        return hex(key) if key.bit_length() > 512 else str(int(key))
    return repr(key)
