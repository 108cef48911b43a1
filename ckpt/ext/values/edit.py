"""Setting and deleting values in the tree of a checkpoint, with an account: what was
asked for changed, and nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import (
    Change,
    Leftover,
    RewriteReport,
    refuse_script,
)
from ckpt.evidence.survey import Survey
from ckpt.ext.values.assignments import Assignment
from ckpt.model.checkpoint import Checkpoint, Value
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Path, names_above, nearest_names
from ckpt.model.nodes import Dict, Node, Opaque, inside, is_tuple, key_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, pasted_path, shell_word, show
from ckpt.pickle.edit import Edit
from ckpt.tree.find import METADATA, KeyTables, children_of, find_nodes, is_metadata
from ckpt.tree.literals import brief_text
from ckpt.tree.view import look

_SHOWN = 60
"""Characters of a value in the report."""
_GONE = object()
"""The state of a value that is not there."""


class Place(NamedTuple):
    """A node in a container of the tree: the dict, list, tuple or object that holds it,
    and its position there.
    """

    container: Node
    part: str
    """The part of the container that is counted: `values` of a dict, `items` of a list
    or tuple.
    """
    position: int


class Target(NamedTuple):
    """A name that was found: its path, the node there, and its place. The node is None
    for a name that is added.
    """

    name: str
    path: Path
    node: Node
    place: Place
    is_new: bool = False


def set_values(
    survey: Survey,
    assignments: Sequence[Assignment],
    deleted: Sequence[str],
    limits: Limits,
) -> RewriteReport:
    """Return the checkpoint with other values under some names, and without the deleted
    names.

    Raises UsageError for a name that is not there or is a tensor, UnsupportedError for
    a value that only a call holds.
    """
    checkpoint = survey.checkpoint
    refuse_script(checkpoint)
    _refuse_twice([*(row.name for row in assignments), *deleted], checkpoint)
    edit = _SetValues()
    tensors = _TensorsBelow(checkpoint)
    tree = _Tree(checkpoint.root, limits)
    changes: list[Change] = []
    expected: dict[Path, object] = {}
    for assignment in assignments:
        if _is_new_metadata(checkpoint, assignment, tree):
            target = edit.add_metadata(checkpoint.root, assignment.name)
        else:
            target = _target_of(checkpoint, assignment, tree)
        held = tensors.count(target.path)
        # A dict of weights is not overwritten by a number: -d says that it may go.
        if tensor_of(target.node) is None and held and not target.is_new:
            shown = show(assignment.name, 80)
            raise UsageError(
                f"{shown} holds {counted_noun(held, 'tensor')}",
                path=checkpoint.path,
                hint=f"-d {shown} deletes them",
            )
        if tensor_of(target.node) is not None:
            raise UsageError(
                f"{show(assignment.name, 80)} is a tensor",
                path=checkpoint.path,
                hint="ckpt set changes values",
            )
        # In the metadata of safetensors `:=` gives the text, which is all that it
        # holds.
        if is_metadata(target.path) and target.is_new:
            node: Node = assignment.text
        else:
            node = assignment.node_for(target.node)
        # JSON has no tuples: a list takes the place of a tuple as one.
        if is_tuple(target.node) and type(node) is list:
            node = tuple(node)
        if is_metadata(target.path) and type(node) is not str:
            raise UsageError(
                f"{show(assignment.name, 80)}: the metadata of safetensors holds text",
                path=checkpoint.path,
            )
        expected[target.path] = node
        if target.is_new or not _is_equal(node, target.node):
            edit.put(target, node)
            changes.append(_change_of(target, node))
    for name in deleted:
        target = _only_target(checkpoint, name, tree, tree.find_nodes(name))
        expected[target.path] = _GONE
        edit.drop(target)
        changes.append(_removal_of(target, tensors.count(target.path)))
    if not changes:
        nothing = "these values are there already"
        return RewriteReport("set", checkpoint, checkpoint, nothing=nothing)
    result = edited_checkpoint(checkpoint, edit.copy(checkpoint.root), limits)
    # The account: what was asked for is there, and what else changed is listed.
    _check_changes(checkpoint, _Tree(result.root, limits), expected)
    shared = "the same object as what was set, so it changed too"
    others = _other_changes(checkpoint, result, expected)
    aside = tuple([Leftover(name, shared) for name in others])
    return RewriteReport("set", checkpoint, result, tuple(changes), left_alone=aside)


def _refuse_twice(names: Sequence[str], checkpoint: Checkpoint) -> None:
    """Raise UsageError for a name that stands twice, or lies below another one: their
    order would decide.
    """
    places = {name: index for index, name in enumerate(names)}
    for index, name in enumerate(names):
        if places[name] != index:
            problem = f"{show(name, 80)} stands twice"
            raise UsageError(problem, path=checkpoint.path)
        for above in names_above(name):
            if above != name and above in places:
                one, two = sorted((above, name), key=places.__getitem__)
                problem = f"{show(one, 80)} and {show(two, 80)}: one lies in the other"
                raise UsageError(problem, path=checkpoint.path)


# --- finding --------------------------------------------------------------------------


class _Tree:
    """A tree in which names are looked up: each of its containers is taken apart once,
    and not once for each name.
    """

    def __init__(self, root: Node, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._tables = KeyTables()
        self._children: dict[Path, dict[str | int, Node]] = {}

    def find_nodes(self, name: str) -> list[tuple[Path, Node]]:
        """The nodes with a dotted name, and their paths."""
        return find_nodes(self._root, name, self._limits, self._tables)

    def node_at(self, path: Path) -> Node:
        """The node at a path, or None without one."""
        if not path:
            return self._root
        return self.children_at(path[:-1]).get(path[-1])

    def children_at(self, path: Path) -> dict[str | int, Node]:
        """The children of the node at a path, by their keys."""
        children = self._children.get(path)
        if children is None:
            children = dict(children_of(self.node_at(path)))
            self._children[path] = children
        return children

    def positions_of(self, keys: Sequence[Node], step: str | int) -> Sequence[int]:
        """The positions at which a key may stand: one, or all where keys are no
        texts.
        """
        # Keys that are no texts are compared one by one.
        table = self._tables.positions_of(keys)
        if table is None:
            return range(len(keys))
        position = table.get(step) if type(step) is str else None
        return () if position is None else (position,)


def _is_new_metadata(
    checkpoint: Checkpoint,
    assignment: Assignment,
    tree: _Tree,
) -> bool:
    """Tell whether a name is to be added to the metadata of safetensors, where each
    value is text.
    """
    if checkpoint.traits.is_pickle or not assignment.name.startswith(f"{METADATA}."):
        return False
    return not tree.find_nodes(assignment.name)


def _target_of(checkpoint: Checkpoint, assignment: Assignment, tree: _Tree) -> Target:
    """Return the target of an assignment. A name below a dict that lacks it is added
    where its type is given.
    """
    name = assignment.name
    found = tree.find_nodes(name)
    # A word changes what is there: only a value with a type may be added.
    if found:
        return _only_target(checkpoint, name, tree, found)
    above, _, key = name.rpartition(".")
    matches = tree.find_nodes(above) if above else [((), checkpoint.root)]
    holders = {id(holder): (path, holder) for path, holder in _holders_in(matches)}
    may_be_added = len(holders) == 1
    if assignment.text is not None or not may_be_added:
        raise _unknown_name_error(checkpoint, name, may_be_added=may_be_added)
    path, holder = next(iter(holders.values()))
    return Target(
        name,
        (*path, key),
        None,
        Place(holder, "values", len(holder.keys)),
        is_new=True,
    )


def _holders_in(
    matches: Sequence[tuple[Path, Node]],
) -> Iterator[tuple[Path, Dict | Opaque]]:
    """Yield the dicts among nodes, and the dicts that hold the attributes of
    objects.
    """
    for path, node in matches:
        holder = inside(node)
        if type(holder) is Dict:
            yield path, holder
        if type(holder) is not Opaque:
            continue
        kind = look(holder).kind
        if kind == "mapping":
            yield path, holder
        elif kind == "object" and len(holder.states) == 1:
            state = holder.states[0]
            # An object whose state is a dict has its attributes there.
            if type(state) is Dict:
                yield path, state


def _only_target(
    checkpoint: Checkpoint,
    name: str,
    tree: _Tree,
    matches: Sequence[tuple[Path, Node]],
) -> Target:
    """Return the only place among those that were found for a name. Raises UsageError,
    UnsupportedError.
    """
    if not matches:
        raise _unknown_name_error(checkpoint, name)
    nodes = {id(node) for _, node in matches}
    paths = {path for path, _ in matches}
    # Names with dots may be read in several ways: all must lead to one place.
    if len(nodes) > 1 or len(paths) > 1:
        raise UsageError(
            f"{len(matches)} places are called {show(name, 80)}", path=checkpoint.path
        )
    path, node = matches[0]
    if not path:
        raise UsageError(
            "the root is all of the checkpoint",
            path=checkpoint.path,
            hint="name a value in it",
        )
    # An argument of a call has no place: the call would make another object.
    above = tree.node_at(path[:-1])
    place = next(_places_in(inside(above), path[-1], node, tree), None)
    if place is None:
        problem = (
            f"{show(name, 80)} is an argument of a call that makes its object, and is "
            "not changed"
        )
        raise UnsupportedError(problem, path=checkpoint.path)
    return Target(name, path, node, place)


def _places_in(
    holder: Node,
    step: str | int,
    node: Node,
    tree: _Tree,
) -> Iterator[Place]:
    """Yield the places of a node in what holds it: a dict, list or tuple, or the items
    and the state of an object.
    """
    if type(holder) is Dict or type(holder) is Opaque:
        for index in tree.positions_of(holder.keys, step):
            # By identity too: a key may stand twice, of which one value is meant.
            is_node = holder.values[index] is node
            if is_node and key_of(holder.keys[index], index) == step:
                yield Place(holder, "values", index)
    if type(holder) is list or is_tuple(holder):
        for index, item in enumerate(holder):
            if item is node and index == step:
                yield Place(holder, "items", index)
    if type(holder) is Opaque:
        for index, item in enumerate(holder.items):
            if item is node and index == step:
                yield Place(holder, "items", index)
        for state in holder.states:
            for part in state if is_tuple(state) else (state,):
                if type(part) is Dict:
                    yield from _places_in(part, step, node, tree)


def _unknown_name_error(
    checkpoint: Checkpoint, name: str, *, may_be_added: bool = False
) -> UsageError:
    names = [value.name for value in checkpoint.values]
    names += [entry.name for entry in checkpoint.tensors]
    alike = nearest_names(name, names)
    hint = f"did you mean {', '.join(alike)}?" if alike else None
    if not alike and not checkpoint.traits.is_pickle and name.startswith("config."):
        hint = "ckpt set changes the file of the weights; config.json is for an editor"
    if hint is None:
        hint = _hint_of_file_beside(checkpoint.path, name)
    if hint is None and may_be_added:
        hint = f"{show(name, 80)}:=JSON adds it"
    return UsageError(
        f"no value called {show(name, 80)}",
        path=checkpoint.path,
        hint=hint,
    )


_ENDINGS = (".pt", ".bin", ".pth", ".pkl")


def _hint_of_file_beside(path: str, name: str) -> str | None:
    """The way to a value that `inspect FOLDER` shows of another file of the folder:
    `optimizer.param_groups.0.lr` lies in optimizer.pt.
    """
    first, _, rest = name.partition(".")
    folder = os.path.dirname(path)
    if not rest or not folder or os.sep in first:
        return None
    for ending in _ENDINGS:
        beside = os.path.join(folder, first + ending)
        words = pasted_path(beside), shell_word(rest)
        if beside != path and os.path.isfile(beside) and None not in words:
            return f"one file at a time: ckpt set {words[0]} {words[1]}=VALUE"
    if os.path.isfile(os.path.join(folder, f"{first}.json")):
        document = show(f"{first}.json", 80)
        return f"ckpt set changes the file of the weights; {document} is for an editor"
    return None


# --- the change -----------------------------------------------------------------------


class _SetValues(Edit):
    """Puts nodes in places of a tree, and takes nodes out of it. A container that has
    such a place becomes another one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[int, dict[tuple[str, int], Node]] = {}
        self._dropped: dict[int, set[tuple[str, int]]] = {}
        self._added: dict[int, list[tuple[str, Node]]] = {}
        self._metadata = Dict()

    def add_metadata(self, root: Node, name: str) -> Target:
        """Return the target of a new name in the metadata, which the root gets where it
        has none.
        """
        assert type(root) is Dict
        index = root.keys.index(METADATA) if METADATA in root.keys else None
        holder = self._metadata if index is None else root.values[index]
        assert type(holder) is Dict
        # One dict for all new names: the root gets it once.
        if index is None and not self._added.get(id(root)):
            self._added[id(root)] = [(METADATA, holder)]
        key = name.partition(".")[2]
        return Target(
            name,
            (METADATA, key),
            None,
            Place(holder, "values", len(holder.keys)),
            is_new=True,
        )

    def put(self, target: Target, node: Node) -> None:
        """Put a node in the place of another one, or under a new key."""
        container = id(target.place.container)
        if target.is_new:
            name = str(target.path[-1])
            self._added.setdefault(container, []).append((name, node))
        else:
            place = target.place.part, target.place.position
            self._changed.setdefault(container, {})[place] = node

    def drop(self, target: Target) -> None:
        """Take a node out, with its key."""
        place = target.place.part, target.place.position
        self._dropped.setdefault(id(target.place.container), set()).add(place)

    def instead(self, node: Node) -> Node | None:
        number = id(node)
        tables = (self._changed, self._dropped, self._added)
        if not any(number in table for table in tables):
            return None
        return self.shell_of(self._changed_container(node))

    def _changed_container(self, node: Node) -> Node:
        if type(node) is Dict:
            other = Dict()
            other.set(*self._pairs_of(node))
            return other
        if type(node) is Opaque:
            call = Opaque(node.how, node.func, node.args, node.kwargs, node.offset)
            call.meaning, call.states = node.meaning, node.states
            call.items = self._items_of(node, node.items)
            call.keys, call.values = self._pairs_of(node)
            return call
        given: Sequence[Node] = ()
        if type(node) is list or is_tuple(node):
            given = node
        items = self._items_of(node, given)
        return tuple(items) if is_tuple(node) else items

    def _pairs_of(self, node: Dict | Opaque) -> tuple[list[Node], list[Node]]:
        keys: list[Node] = []
        values: list[Node] = []
        changed = self._changed.get(id(node), {})
        dropped = self._dropped.get(id(node), set())
        for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            if ("values", index) not in dropped:
                keys.append(key)
                values.append(changed.get(("values", index), value))
        # New keys come last, as in a dict.
        for name, value in self._added.get(id(node), ()):
            keys.append(name)
            values.append(value)
        return keys, values

    def _items_of(self, node: Node, items: Sequence[Node]) -> list[Node]:
        changed = self._changed.get(id(node), {})
        dropped = self._dropped.get(id(node), set())
        return [
            changed.get(("items", index), item)
            for index, item in enumerate(items)
            if ("items", index) not in dropped
        ]


# --- the account ----------------------------------------------------------------------


def _change_of(target: Target, node: Node) -> Change:
    before = None if target.is_new else brief_text(target.node, _SHOWN)
    return Change("value", before, brief_text(node, _SHOWN), 1, "", name=target.name)


def _removal_of(target: Target, count: int) -> Change:
    """The change that takes out a value, or so many tensors."""
    what = counted_noun(count, "tensor") if count else brief_text(target.node, _SHOWN)
    return Change("deleted", what, None, 1, "", name=target.name)


class _TensorsBelow:
    """The numbers of tensors that paths hold, counted once for each length of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._counts: dict[int, Counter[Path]] = {}

    def count(self, path: Path) -> int:
        """The number of tensors at a path and below it."""
        depth = len(path)
        counts = self._counts.get(depth)
        if counts is None:
            counts = Counter(entry.path[:depth] for entry in self._checkpoint.tensors)
            self._counts[depth] = counts
        return counts[path]


def _is_equal(node: Node, other: Node) -> bool:
    """Tell whether two scalars are the same value. Others are written anew."""
    # 1, 1.0 and True are equal in Python, and other values in a file.
    if type(node) is not type(other):
        return False
    return type(node) in (bool, int, float, str, type(None)) and node == other


def _check_changes(
    before: Checkpoint,
    after: _Tree,
    expected: dict[Path, object],
) -> None:
    """Raise UnsupportedError unless each path leads to what was asked for."""
    moved = _moved_below(expected)
    for path, node in expected.items():
        # If a list lost an item, the numbers behind it lead to other values.
        if _is_below(path, moved):
            continue
        there = after.children_at(path[:-1])
        if node is _GONE:
            is_right = path[-1] not in there
        else:
            wanted = _node_text(node)  # type: ignore[arg-type]
            is_right = path[-1] in there and _node_text(there[path[-1]]) == wanted
        if not is_right:
            name = ".".join(map(str, path))
            raise UnsupportedError(
                f"{show(name, 80)} cannot be changed in this object", path=before.path
            )


def _moved_below(expected: dict[Path, object]) -> set[Path]:
    """The paths of the lists that lose an item, so that the numbers behind it move."""
    return {
        path[:-1]
        for path, node in expected.items()
        if node is _GONE and isinstance(path[-1], int)
    }


def _is_below(path: Path, roots: Collection[Path]) -> bool:
    """Tell whether a path leads into one of these places, a set or a dict."""
    return any(path[:depth] in roots for depth in range(len(path) + 1))


def _node_text(node: Node) -> tuple[str, str]:
    return look(node).type, brief_text(node, 10_000)


def _other_changes(
    before: Checkpoint,
    after: Checkpoint,
    expected: dict[Path, object],
) -> list[str]:
    """Return the names of the values that changed although nobody asked for it: other
    names of one object.
    """
    moved = _moved_below(expected)
    old = {value.path: _value_state(value) for value in before.values}
    new = {value.path: _value_state(value) for value in after.values}
    asked = expected.keys()
    above_asked: set[Path] = set()
    for path in asked:
        above_asked.update(path[:depth] for depth in range(len(path)))
    names: list[str] = []
    for path in [*old, *(path for path in new if path not in old)]:
        # The values that were asked for, those around them, and moved ones are
        # expected.
        if path in above_asked or _is_below(path, expected) or _is_below(path, moved):
            continue
        if old.get(path) != new.get(path):
            names.append(".".join(map(str, path)))
    # A container that was met before has no rows of its own.
    changed: set[str] = set()
    for name in [*names, *(".".join(map(str, path)) for path in asked)]:
        changed.update(names_above(name))
    for value in before.values:
        if value.same_as in changed and value.path not in asked:
            names.append(value.name)
    return names


def _value_state(value: Value) -> tuple[str, str]:
    return value.type, brief_text(value.node, 200)
