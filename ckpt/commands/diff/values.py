"""Comparing values that are not tensors: exactly, by their paths, and those on one side
only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ckpt.commands.diff.rows import Pair, ValueRow
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Value
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Node, key_of
from ckpt.tree.arrays import array_of
from ckpt.tree.find import children_of, is_metadata, node_at
from ckpt.tree.view import View, look
from ckpt.tree.walk import flatten_tree

_Values = dict[Path, Value]


def differing_values(
    first: Survey, second: Survey, pairs: Sequence[Pair], *, outside: bool
) -> tuple[list[ValueRow], list[str]]:
    """(values that differ, what only one file has and is not compared: keys at its
    root, attributes of modules).

    Compared are the values of sections that go together and, when `outside`, those in
    no section of either file, below keys that both files have. A module has attributes,
    and a state dict of it has none.
    """
    before, after = first.checkpoint, second.checkpoint
    rows: list[ValueRow] = []
    lonely: list[str] = []
    # The sides of which a module at the root has been dealt with here.
    whole = [False, False]
    for pair in pairs:
        ours = _section_values(before, pair.before)
        theirs = _section_values(after, pair.after)
        parts = pair.before, pair.after
        # A pickled module beside a state dict: its attributes have no counterpart.
        modules = [part.is_module for part in parts]
        for side, checkpoint in enumerate((before, after)):
            if modules[side] and not modules[1 - side]:
                (ours, theirs)[side].clear()
                lonely.append(
                    f"the attributes of {parts[side].name or '(the root)'} of "
                    f"{checkpoint.path}"
                )
            whole[side] |= (
                modules[side]
                and not parts[side].path
                and (not modules[1 - side] or bool(parts[1 - side].path))
            )
        if (pair.before.path and pair.after.path) or (all(modules) and any(whole)):
            rows += _differing_values(before, after, ours, theirs)
    if not outside:
        return rows, lonely
    # A place that is a section in one file belongs to no value of the other.
    sections = (*first.sections, *second.sections)
    taken = {part.path for part in sections if part.path}
    with_metadata = before.traits.has_own_metadata and after.traits.has_own_metadata
    free = [
        _outside_values(side, taken, with_metadata=with_metadata)
        for side in (before, after)
    ]
    free = [{} if done else values for done, values in zip(whole, free, strict=True)]
    is_root = any(not pair.before.path and not pair.after.path for pair in pairs)
    # Whole keys of one side only were not part of anything that is compared: next to
    # roots, the files of folders.
    keys = [{str(key) for key, _ in children_of(side.root)} for side in (before, after)]
    for side, checkpoint, others in ((0, before, keys[1]), (1, after, keys[0])):
        files = {member.key for member in checkpoint.members}
        alone = {
            path[:1]
            for path in free[side]
            if path and str(path[0]) not in others and (not is_root or path[0] in files)
        }
        lonely += [
            f"{dotted_name(path)} of {checkpoint.path}"
            for path in sorted(alone, key=str)
        ]
        free[side] = {
            path: value for path, value in free[side].items() if path[:1] not in alone
        }
    rows += _differing_values(before, after, free[0], free[1])
    return rows, lonely


def holds_values(checkpoint: Checkpoint, path: Path) -> bool:
    """Tell whether there is more at a place than nothing: a value that is neither None
    nor an empty container.
    """
    depth = len(path)
    return any(
        value.path[:depth] == path and value.type != "None" and not _is_empty(value)
        for value in checkpoint.values
    )


def _section_values(checkpoint: Checkpoint, section: Section) -> _Values:
    """The values of a section, by their path inside of it."""
    depth = len(section.path)
    return {
        value.path[depth:]: value
        for value in checkpoint.values
        if value.path[:depth] == section.path
    }


_OF_FILES = "split."
"""The beginning of names in the metadata that say how a set is cut into files, and
nothing of the model.
"""


def _is_setting(value: Value) -> bool:
    """Tell whether a value is no metadata, or one that is about the model."""
    return not (is_metadata(value.path) and str(value.path[-1]).startswith(_OF_FILES))


def _outside_values(
    checkpoint: Checkpoint, taken: set[Path], *, with_metadata: bool
) -> _Values:
    """The values that lie in no section: with the metadata where both files have the
    model's settings there, as GGUF has.
    """
    # Paths have few lengths: one look for each is cheaper than comparing all.
    depths = {len(path) for path in taken}
    return {
        value.path: value
        for value in checkpoint.values
        if (_is_setting(value) if with_metadata else not is_metadata(value.path))
        and not any(value.path[:depth] in taken for depth in depths)
    }


def _differing_values(
    before: Checkpoint, after: Checkpoint, ours: _Values, theirs: _Values
) -> list[ValueRow]:
    rows = []
    parents = [
        _parent_paths(before, theirs_of=ours),
        _parent_paths(after, theirs_of=theirs),
    ]
    ours, theirs = (
        _unfold_repeats(before, ours, theirs, parents[1]),
        _unfold_repeats(after, theirs, ours, parents[0]),
    )
    for path, value in ours.items():
        other = theirs.get(path)
        if other is None:
            if not (_is_empty(value) and path in parents[1]):
                rows.append(ValueRow("removed", value.name, value, None))
        elif not _is_equal(before, after, value, other):
            rows.append(ValueRow("changed", other.name, value, other))
    rows += [
        ValueRow("added", value.name, None, value)
        for path, value in theirs.items()
        if path not in ours and not (_is_empty(value) and path in parents[0])
    ]
    return rows


def _unfold_repeats(
    checkpoint: Checkpoint, values: _Values, others: _Values, parents: set[Path]
) -> _Values:
    """The values. A repeat gets rows of its own where the other file has them, as it
    has of a copy.
    """
    rows: _Values = {}
    for path, value in values.items():
        other = others.get(path)
        is_cycle = value.type == "cycle"
        if (
            value.same_as is None
            or is_cycle
            or path not in parents
            or (other and other.same_as is not None)
        ):
            rows[path] = value
            continue
        limits = Limits()
        budget = Budget(limits, checkpoint.nbytes)
        shared = node_at(checkpoint.root, value.path)
        for row in flatten_tree(shared, limits, budget).values:
            whole = value.path + row.path
            rows[path + row.path] = row._replace(path=whole, name=dotted_name(whole))
    return rows


def _parent_paths(checkpoint: Checkpoint, *, theirs_of: _Values) -> set[Path]:
    """The places above values and tensors: a dict that is empty on the other side has
    things in it here.
    """
    # Paths inside of a section are shorter by the path of the section.
    skip = 0
    for path, value in theirs_of.items():
        skip = len(value.path) - len(path)
        break
    found: set[Path] = set()
    for path in theirs_of:
        found.update(path[:depth] for depth in range(len(path)))
    for entry in checkpoint.tensors:
        found.update(entry.path[skip:depth] for depth in range(skip, len(entry.path)))
    return found


def _is_empty(value: Value) -> bool:
    """Tell whether a value is an empty container."""
    view = look(value.node) if value.fields is None and value.same_as is None else None
    return (
        view is not None and view.kind in ("mapping", "sequence") and not view.children
    )


def _is_equal(before: Checkpoint, after: Checkpoint, one: Value, two: Value) -> bool:
    if (
        one.fields is not None
        and two.fields is not None
        and not (one.same_as or two.same_as)
    ):
        return one.type == two.type  # its fields are rows of their own
    if (
        one.same_as
        and two.same_as
        and one.same_as == two.same_as
        and one.type == two.type
    ):
        return True  # the same as something that is compared itself
    return same_node(_value_node(before, one), _value_node(after, two))


def _value_node(checkpoint: Checkpoint, value: Value) -> Node:
    """Return the node of a value. The node of a repeat, or of an object, is looked up
    at its place.
    """
    if value.node is not None or (value.type == "None" and not value.same_as):
        return value.node
    return node_at(checkpoint.root, value.path)


def same_node(one: Node, two: Node) -> bool:
    """Tell whether two inert nodes stand for equal values of equal types.

    Their tensors are compared elsewhere. Floats are compared by their bits, and NaN
    equals NaN. The order of keys and of sets does not count. Cycles are cut.
    """
    todo = [(one, two)]
    seen: set[tuple[int, int]] = set()
    while todo:
        left, right = todo.pop()
        if left is right or (id(left), id(right)) in seen:
            continue
        views = look(left), look(right)
        if views[0].kind != views[1].kind or (
            views[0].kind != "tensor" and views[0].type != views[1].type
        ):
            return False
        arrays = array_of(left), array_of(right)
        if (
            arrays[0] is not None
            and arrays[1] is not None
            and arrays[0].items is None is arrays[1].items
        ):
            if arrays[0] != arrays[1]:
                return False
            continue
        if views[0].kind == "scalar":
            if not _same_scalar(views[0].value, views[1].value):
                return False
            continue
        if views[0].kind in ("tensor", "storage"):
            continue
        # A pair that was begun is not begun again: cycles end here.
        seen.add((id(left), id(right)))
        pairs = _child_pairs(*views)
        if pairs is None:
            return False
        todo += pairs
    return True


def _same_scalar(one: object, two: object) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        # By their bits 0.0 and -0.0 differ.
        return struct.pack("<d", one) == struct.pack("<d", two) or (
            one != one and two != two
        )
    return type(one) is type(two) and bool(one == two)


def _child_pairs(one: View, two: View) -> list[tuple[Node, Node]] | None:
    """The children of two containers that stand at one place; None when one has what
    the other lacks.
    """
    if len(one.children) != len(two.children):
        return None
    if one.kind == "sequence":
        if one.type.endswith("set"):
            # Sets have no order, and their elements may not be comparable with each
            # other.
            ordered = [sorted(view.children, key=_sort_text) for view in (one, two)]
            return list(zip(*ordered, strict=True))
        return list(zip(one.children, two.children, strict=True))
    children = _children_by_key(one)
    others = _children_by_key(two)
    if children.keys() != others.keys():
        return None
    return [(child, others[key]) for key, child in children.items()]


def _children_by_key(view: View) -> dict[tuple[str, str], Node]:
    """The children of a mapping by their keys with the types of these."""
    pairs = zip(view.keys, view.children, strict=True)
    return {_typed_key(key, index): child for index, (key, child) in enumerate(pairs)}


def _sort_text(node: Node) -> str:
    view = look(node)
    if view.kind == "scalar":
        return f"{view.type} {view.value!r}"
    return f"{view.type} {len(view.children)}"


def _typed_key(key: Node, index: int) -> tuple[str, str]:
    """A key of a dict so that keys of several types are apart."""
    view = look(key)
    if view.kind == "scalar":
        return (view.type, repr(view.value))
    return ("", str(key_of(key, index)))
