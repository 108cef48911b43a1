"""`ckpt slim`: the model's weights and nothing else, without the bytes that views keep
alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from ckpt.commands.convert.plain import Plain
from ckpt.commands.rewriting.edited import edited_checkpoint, with_ties
from ckpt.commands.rewriting.names import not_selected
from ckpt.commands.rewriting.report import (
    Change,
    Leftover,
    RewriteReport,
    keys_beside,
    losses_of,
    made_plain,
    make_with_drop_hint,
    refuse_empty,
    rest_of,
    weightless_leftovers,
    weights_of,
)
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.elements.computed import Computed
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.dtypes import UINT8, contiguous
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs, NamedKey, Path, nearest_names
from ckpt.model.nodes import (
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    inside,
    is_tuple,
    tensor_of,
)
from ckpt.model.places import Checksum, Range
from ckpt.model.rows import replace
from ckpt.model.tensors import (
    Composite,
    Storage,
    TensorRef,
    moved,
    overlapping_groups,
    tensor_ref,
    unexpanded_view,
)
from ckpt.model.text import shell_word, show
from ckpt.pickle.branches import Branches
from ckpt.pickle.judge.imports import nodes_below
from ckpt.pickle.judge.names import is_known, is_standard, python3_name
from ckpt.pickle.state_dict import without_tensors
from ckpt.tree.find import find_nodes, tied_names
from ckpt.tree.view import Known, look

_MODELS = 4
"""Models up to which an error names the options that keep all of them."""
_VIEWS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_FROM_TYPE = ("_rebuild_from_type", "_rebuild_from_type_v2")


def slim(
    survey: Survey,
    limits: Limits,
    *,
    section: str | None = None,
    select: Globs | None = None,
    keep: Sequence[str] = (),
    drop_other: bool = False,
) -> RewriteReport:
    """The weights of the only model, or of a section, as a state dict that loads with
    weights_only=True.

    `select` takes some of them. What `keep` names stays at its place, and the model at
    its own then. Raises UsageError for several models, or a name that is not there;
    LossError for what cannot be made plain, unless it may be dropped.
    """
    return make_with_drop_hint(
        lambda drop: _slim_weights(survey, limits, section, select, keep, drop),
        drop_other,
    )


def _slim_weights(
    survey: Survey,
    limits: Limits,
    section: str | None,
    select: Globs | None,
    keep: Sequence[str],
    drop_other: bool,
) -> RewriteReport:
    source = survey.checkpoint
    survey = with_ties(survey, limits)
    checkpoint = survey.checkpoint
    with _naming_keep(survey):
        chosen = survey.only_model(section)
    refuse_incomplete(checkpoint, chosen.name, "--section")
    kept = [_find_kept(checkpoint, name, limits) for name in keep]
    picked = set(map(id, chosen.selected(select, checkpoint.path)))
    others = [entry for entry in chosen.entries if id(entry) not in picked]
    weights = weights_of(survey, chosen)
    if others:
        gone_names = {chosen.relative(entry.name) for entry in others}
        weights = without_tensors(weights, gone_names)
    started = _started_programs(checkpoint, chosen, weights)
    if started:
        weights = without_tensors(weights, started.keys())
    node = _with_kept(survey, chosen, weights, kept)
    edit = _Slim()
    root = edit.copy(node)
    # Weights are wanted, so an object without tensors is left out; one with tensors is
    # lost only when that was asked.
    objects: dict[int, tuple[Node, str]] = {}
    tensors: dict[int, tuple[Node, str]] = {}
    for marker, row in edit.lost.items():
        lost_node, _ = row
        (tensors if _holds_weights(lost_node) else objects)[marker] = row
    dropped = [
        *losses_of(checkpoint, edit, objects, True),
        *losses_of(checkpoint, edit, tensors, drop_other),
    ]
    edit.leave_out(weights, objects)
    # The code of a program stays behind.
    traits = checkpoint.traits._replace(names_are_code=False)
    result = replace(
        edited_checkpoint(checkpoint, root, limits, traits=traits, origin=None),
        copies=(),
    )
    label = ", ".join(dict.fromkeys([chosen.name or "model", *keep]))
    changes = _slim_changes(result, edit, label)
    leftovers = [row for row in rest_of(survey, chosen) if row.name not in keep]
    leftovers += not_selected(others)
    leftovers += started.values()
    listed = {row.name for row in (*leftovers, *dropped)}
    leftovers += _call_leftovers(checkpoint, listed)
    return refuse_empty(
        RewriteReport(
            "slim",
            source,
            result,
            tuple(changes),
            (*leftovers, *weightless_leftovers(checkpoint, chosen), *dropped),
            unchanged_bytes=True,
        )
    )


@contextmanager
def _naming_keep(survey: Survey) -> Iterator[None]:
    """Name the options that keep all models in the error that there are several."""
    try:
        yield
    except UsageError as error:
        names = [shell_word(section.name) for section in survey.candidates]
        if error.hint is not None and 1 < len(names) <= _MODELS and None not in names:
            first, *others = names
            keep = " ".join(f"--keep {name}" for name in others)
            error.hint += f"; all: --section {first} {keep}"
        raise


def _with_kept(
    survey: Survey, chosen: Section, weights: Node, kept: Sequence[tuple[Path, Node]]
) -> Node:
    """The tree of the result: the weights alone, or at their place with what is kept
    at its own.
    """
    beside = keys_beside(survey, chosen)
    # A bare state dict without keys beside it holds all that is kept already.
    if not kept or not (chosen.path or beside):
        return weights
    whole = Dict()
    tree = Branches(whole)
    if chosen.path:
        _put_node(tree, chosen.path, weights, survey.checkpoint)
    elif type(weights) is Dict:
        whole.set(weights.keys, weights.values)
    for path, other in _outermost_parts(kept):
        if path[0] in beside or path[: len(chosen.path)] != chosen.path:
            _put_node(tree, path, other, survey.checkpoint)
    return whole


def _slim_changes(result: Checkpoint, edit: _Slim, name: str) -> list[Change]:
    """The lines of the report on what is kept, packed and made plain."""
    # safetensors hold a tied tensor once.
    tied = {} if result.traits.is_pickle else tied_names(result.tensors)
    stored = [entry for entry in result.tensors if entry.name not in tied]
    held = sum(entry.tensor.nbytes for entry in stored)
    changes = [Change("kept", f"kept {name}", None, len(stored), "tensor", held)]
    if edit.packed:
        packed = "dropped, bytes that no tensor uses"
        changes.append(Change("packed", packed, None, edit.packed, "storage", edit.won))
    return [*changes, *made_plain(edit)]


def _find_kept(checkpoint: Checkpoint, name: str, limits: Limits) -> tuple[Path, Node]:
    matches = find_nodes(checkpoint.root, name, limits)
    if not matches:
        names = [row.name for row in checkpoint.containers]
        names += [row.name for row in checkpoint.values]
        listed = ", ".join(show(other, 60) for other in nearest_names(name, names))
        raise UsageError(
            f"--keep {name}: no such name",
            path=checkpoint.path,
            hint=f"near: {listed}" if listed else None,
        )
    return matches[0]


def _started_programs(
    checkpoint: Checkpoint, chosen: Section, weights: Node
) -> dict[str, Leftover]:
    """The keys of a state dict whose values are calls of Python's own library that run
    on load, and hold no weights: the arguments of `subprocess.Popen` are none.
    """
    called: dict[str, str] = {}
    for row in checkpoint.imports:
        if row.group == "called" and row.calls and is_standard(row.module):
            what = python3_name(row.module, row.name)
            called.update(dict.fromkeys(row.where, what))
    if not called:
        return {}
    started: dict[str, Leftover] = {}
    view = look(weights)
    for key, child in zip(view.keys, view.children, strict=True):
        name = f"{chosen.name}.{key!s}" if chosen.name else str(key)
        if name in called and not _holds_weights(child):
            started[str(key)] = Leftover(name, called[name])
    return started


def _call_leftovers(checkpoint: Checkpoint, listed: set[str]) -> list[Leftover]:
    """List the calls on load that the weights leave behind, unless a name in `listed`
    stands for them.
    """
    leftovers: list[Leftover] = []
    for row in checkpoint.imports:
        if row.group == "called" and row.calls and listed.isdisjoint(row.where):
            leftovers.append(Leftover("(run on load)", row.calls[0]))
    return leftovers


def _holds_weights(node: Node) -> bool:
    """Tell whether a node is a tensor or an object with tensors, and not of torch or
    numpy (a Generator).
    """
    if type(node) is Opaque and node.meaning is None and is_known(node.func):
        return False
    return any(tensor_of(inner) is not None for inner in nodes_below(node))


def _outermost_parts(kept: Sequence[tuple[Path, Node]]) -> Iterator[tuple[Path, Node]]:
    """The parts to keep, without those that lie in another one."""
    nodes = dict(kept)
    for path, node in nodes.items():
        if not any(path[:depth] in nodes for depth in range(len(path))):
            yield path, node


def _put_node(tree: Branches, path: Path, node: Node, checkpoint: Checkpoint) -> None:
    """Put a node at its path, below dicts. Raises UsageError for a path that dicts
    cannot have.
    """
    if any(isinstance(key, NamedKey) for key in path) or not tree.put(path, node):
        raise UsageError(f"{path[-1]} cannot stay at its path", path=checkpoint.path)


class _Slim(Plain):
    """Makes the tree plain, and tensors that look at a part of their storage look at
    one of their own.

    Views that overlap keep sharing: they move together. `packed` storages were held by
    them, `won` bytes of them are left behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.packed = 0
        self.won = 0
        self._groups: dict[Storage, list[_Group]] = {}
        self._nothing: dict[Storage, Storage] = {}
        self._whole: set[object] = set()
        self._views: dict[Storage, list[TensorRef]] = {}

    def copy(self, root: Node) -> Node:
        self._views, self._whole = _views_in(root)  # of what is kept only
        return super().copy(root)

    def leave_out(self, weights: Node, lost: Collection[int]) -> None:
        """Remove from the copy of a state dict the keys whose values were lost, which
        `load_state_dict` does not expect.
        """
        seen: dict[int, Node] = {}
        todo = [weights]
        while todo:
            node = inside(todo.pop())
            if type(node) not in (Dict, Opaque) or id(node) in seen:
                continue
            seen[id(node)] = node
            copy = self._copies.get(id(node))
            node = self.spread(node)
            assert isinstance(node, (Dict, Opaque))
            todo += node.values
            # A copy with fewer values has lost them in another way.
            if not isinstance(copy, (Dict, Opaque)):
                continue
            if len(node.values) != len(copy.values):
                continue
            kept = [
                index
                for index, value in enumerate(node.values)
                if id(value) not in lost
            ]
            if len(kept) < len(node.values):
                copy.keys = [copy.keys[index] for index in kept]
                copy.values = [copy.values[index] for index in kept]

    def is_taken_apart(self, call: Opaque, name: str) -> bool:
        # Whatever made it.
        return super().is_taken_apart(call, name) or _holds_weights(call)

    def known(self, call: Opaque) -> Known | None:
        # Generators and functions are no weights.
        return None

    def instead(self, node: Node) -> Node | None:
        replacement = super().instead(node)
        # A tensor of a column, or the tensor of a subclass.
        ref = node if replacement is None else replacement
        # numpy's have no storage of the file.
        if type(ref) is TensorRef and ref.storage.id:
            return self._shrink_tensor(ref) or replacement
        return replacement

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        args = super().arguments(call)
        inner = _view_arguments(call)
        if inner is None or not isinstance(call.meaning, TensorRef):
            return args
        moved = self._shrink_tensor(call.meaning)
        if moved is None:
            return args
        persistent = PersistentId(None, 0)
        persistent.meaning = moved.storage
        new_args = (persistent, moved.offset, inner[2], moved.stride, *inner[4:])
        return new_args if inner is call.args else (*args[:2], new_args, *args[3:])

    def _shrink_tensor(self, ref: TensorRef) -> TensorRef | None:
        """Return the same tensor over a smaller storage, or None if nothing can be
        saved.
        """
        storage = ref.storage
        # Elements of less than a byte share bytes with their neighbours.
        if storage in self._whole or ref.dtype.bits < 8:
            return None
        # Only what lies in a file is packed: any other place is made by an edit, and
        # holds what it needs.
        if not isinstance(storage.place, Range):
            return None
        if storage not in self._groups:
            views = self._views.get(storage, [ref])
            groups = [_Group(refs) for refs in overlapping_groups(views)]
            self._groups[storage] = groups
            needed = sum(group.nbytes for group in groups)
            if needed < storage.nbytes:
                self.packed += 1
                self.won += storage.nbytes - needed
                for group in groups:
                    group.make(storage, len(groups) == 1)
        if not ref.numel and storage.nbytes:
            return self._place_empty(ref)
        for group in self._groups[storage]:
            if group.storage is not None and group.holds(ref):
                return group.place(ref)
        return None

    def _place_empty(self, ref: TensorRef) -> TensorRef | None:
        """A tensor without elements, over the first of the groups, or over a storage
        without bytes.
        """
        storage = ref.storage
        groups = self._groups[storage]
        if groups:
            first = groups[0].storage
            return None if first is None else ref._replace(storage=first, offset=0)
        if storage not in self._nothing:
            self._nothing[storage] = storage._replace(nbytes=0, crc=None)
        return ref._replace(storage=self._nothing[storage], offset=0)


class _Group:
    """Views of one storage whose extents overlap, bytes `first` to `last` of it."""

    def __init__(self, refs: list[TensorRef]) -> None:
        # Views of several widths may share bytes: each must begin at one of its own
        # elements.
        first = min(ref.extent[0] for ref in refs)
        self.first = first - first % max(ref.dtype.bits // 8 for ref in refs)
        self.last = max(ref.extent[1] for ref in refs)
        self.refs = refs
        self.storage: Storage | None = None

    @property
    def nbytes(self) -> int:
        if self._gathered:
            return unexpanded_view(self.refs[0]).nbytes
        return self.last - self.first

    @property
    def _gathered(self) -> bool:
        """Tell whether all views are the same, and leave gaps: their elements can lie
        side by side.
        """
        first = self.refs[0]
        # Conjugation and negation stay pending.
        same = all(ref.geometry[:4] == first.geometry[:4] for ref in self.refs)
        return same and unexpanded_view(first).nbytes < self.last - self.first

    def holds(self, ref: TensorRef) -> bool:
        return self.first <= ref.extent[0] and ref.extent[1] <= self.last

    def make(self, old: Storage, alone: bool) -> None:
        run = None if old.place is None else old.place.run
        ref = self.refs[0]
        key = old.id if alone else ""
        if self._gathered:
            raw = unexpanded_view(ref)._replace(conj=False, neg=False)
            place: Range | Computed = Computed(raw, ref.dtype)
        elif run is not None:
            first = run.offset + self.first
            # The recorded checksum is of the whole storage, so all of it is compared.
            recorded = None if old.crc is None else Checksum(run, old.crc)
            place = run._replace(offset=first, size=self.nbytes, recorded=recorded)
        else:
            place = Computed(
                tensor_ref(old, UINT8, (self.nbytes,), (1,), self.first), UINT8
            )
        self.storage = old._replace(id=key, nbytes=self.nbytes, place=place, crc=None)

    def place(self, ref: TensorRef) -> TensorRef:
        assert self.storage is not None
        if self._gathered:
            steps = iter(contiguous(unexpanded_view(ref).shape))
            stride = tuple(
                next(steps) if step or not size else 0
                for size, step in zip(ref.shape, ref.stride, strict=True)
            )
            return moved(ref, self.storage, 0, stride)
        return moved(
            ref,
            self.storage,
            ref.offset - self.first // (ref.dtype.bits // 8),
            ref.stride,
        )


def _view_arguments(call: Opaque) -> tuple[Node, ...] | None:
    """The arguments (storage, offset, size, stride, …) of a call that makes a view,
    else None.
    """
    func, args = call.func, call.args
    if type(func) is Global and func.name in _FROM_TYPE and len(args) > 2:
        # (function, class, arguments of the function, state).
        func, inner = args[0], args[2]
        args = inner if is_tuple(inner) else ()
    if type(func) is not Global or func.name not in _VIEWS:
        return None
    if len(args) > 3 and type(args[0]) is PersistentId:
        return args
    return None


def _views_in(root: Node) -> tuple[dict[Storage, list[TensorRef]], set[object]]:
    """The views below a node by their storage, and the storages that something else
    looks into as well.
    """
    views: dict[Storage, list[TensorRef]] = {}
    whole: set[object] = set()
    seen: dict[int, Node] = {}
    todo = [root]
    while todo:
        node = todo.pop()
        if type(node) is PersistentId:
            whole.add(node.meaning)
        elif type(node) is TensorRef:
            views.setdefault(node.storage, []).append(node)
        elif type(node) is Composite:
            whole.update(part.storage for _, part in node.parts)
        if type(node) not in (Opaque, Dict, list, tuple, Set) or id(node) in seen:
            continue
        seen[id(node)] = node
        if type(node) is Opaque:
            inner = _view_arguments(node)
            todo += (*node.states, *node.items, *node.keys, *node.values)
            if isinstance(node.meaning, Nested):
                todo.append(node.meaning.root)
            elif inner is not None and isinstance(node.meaning, TensorRef):
                views.setdefault(node.meaning.storage, []).append(node.meaning)
                todo += inner[1:]
                todo += () if inner is node.args else (*node.args[:2], *node.args[3:])
            else:
                todo += node.args
        elif type(node) is Dict:
            todo += (*node.keys, *node.values)
        elif type(node) is Set:
            todo += node.items
        elif type(node) is list or is_tuple(node):
            todo += node
    return views, whole
