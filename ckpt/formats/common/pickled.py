"""The step of every pickle-based format once it knows where the storages are: pickle -> Checkpoint.

Not a format of the table; torch-zip, legacy and TorchScript use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ckpt.account import Account, Notice
from ckpt.checkpoint import Checkpoint, Import, Origin, Refusal, Traits, Value
from ckpt.columns import Chain, Column
from ckpt.dtypes import UINT8, DType
from ckpt.errors import LimitError, MixedStepsError, UnreadableError
from ckpt.formats.common.holes import lost_notices
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.nodes import (
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    inside,
    is_tuple,
    tensor_of,
)
from ckpt.pickles import imports, machine, weights_only
from ckpt.pickles.bounds import Bounds
from ckpt.pickles.imports import Judgement, looks_like_enum
from ckpt.pickles.keys import refuse_equal_keys
from ckpt.pickles.known import is_known
from ckpt.pickles.machine import MachineError, Pickle
from ckpt.pickles.rebuild import Rebuilder
from ckpt.tensors import Composite, Range, Storage, TensorRef, parts_of
from ckpt.text import and_more, show
from ckpt.tree.find import counter, is_counter, with_unique_names
from ckpt.tree.literals import call_text
from ckpt.tree.walk import Flat, flatten

_CALLS_SHOWN = 20
LEAST_BYTES = 256 * 1024
"""The size of a pickle from which on skimming saves more than it costs to compile its expressions."""
ReadNested = Callable[[bytes | Range, "Contents", Limits, int], Node]


class Contents:
    """The pickles of one file, nested ones too, and every storage that they name, by its id.

    `read_nested` reads a checkpoint in the bytes of a pickle, as the loader of the format would. `mark` is the
    prefix of all storage ids, `streams` counts the nested checkpoints, `budget` is what is left for all of them.
    """

    def __init__(
        self,
        notices: Iterable[Notice] = (),
        read_nested: ReadNested | None = None,
        mark: str = "",
        budget: Budget | None = None,
    ) -> None:
        self.budget = budget
        self.pickles: list[Pickle] = []
        self.behind: list[Pickle] = []
        """Pickles behind the checkpoint, which are judged and not shown."""
        self.read_nested = read_nested
        self.mark = mark
        self.streams = 0
        self.storages: dict[str, Storage | Column[Storage]] = {}
        """The storages by their ids; a column by the id of its first storage."""
        self.short: dict[Storage, int] = {}
        """Storages of which only so many first bytes are there, in a file that is cut off or damaged."""
        self.notices = list(notices)
        self.bytestrings = False
        self.is_script = False
        """True for the pickles of a TorchScript archive, which torch.jit.load reads."""
        self.not_loadable: str | None = None


def run(
    data: bytes, limits: Limits, budget: Budget | None = None, skim: machine.Skim | None = None
) -> Pickle:
    """Call `machine.run`. The error of a damaged pickle names the unknown imports before the damage."""
    try:
        return machine.run(data, limits, 0, budget, None, skim)
    except MachineError as error:
        error.hint = unknown_names(error.seen)
        raise


class Storages(Protocol):
    """Gives the storages of one pickle, each made once."""

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """Return the storage or class that a persistent id names. Raises UnreadableError."""
        ...

    def storages(self, keys: Sequence[str], looks: Sequence[Storage]) -> Sequence[Storage]:
        """The storage of each key, with the device, the dtype and the bytes of another. Raises UnreadableError."""
        ...

    def forget(self) -> None:
        """Drop every storage, as before the first one."""
        ...


def seen_as(
    storage: Storage,
    dtype: DType | None,
    nbytes: int,
    key: str,
    storages: dict[str, Storage | Column[Storage]],
) -> Storage:
    """The storage for a persistent id that names its key again. It joins `storages` where it is another one.

    torch keeps no storage without bytes, so each dtype sees one of its own. Raises UnreadableError where a storage with bytes has
    two dtypes or sizes.
    """
    if (storage.dtype or UINT8, storage.nbytes) == (dtype or UINT8, nbytes):  # untyped ones are bytes
        return storage
    problem = f"storage {show(key, 80)} is used with two types or sizes"
    if storage.nbytes or nbytes:
        raise UnreadableError(problem)
    id = f"{storage.id} as {'untyped' if dtype is None else dtype.name}"
    other = storages.setdefault(id, storage._replace(id=id, dtype=dtype))
    if type(other) is not Storage or other.nbytes or other.dtype != dtype:
        raise UnreadableError(problem)
    return other


def run_skimmed(data: bytes, limits: Limits, budget: Budget, storages: Storages) -> Pickle:
    """Call `run`. Read the tensors of a large pickle by columns if that surely gives the same tree."""
    if len(data) < LEAST_BYTES:
        return run(data, limits, budget)
    from ckpt.pickles.skim.tensors import TensorSkimmer  # here: small files do not pay for it

    trial = budget.copy()
    skimmer = TensorSkimmer(data, trial, storages.resolve, storages.storages)
    try:
        pickle = machine.run(data, limits, 0, trial, None, skimmer)
    except UnreadableError:  # of this pickle, or of a part of it that only the machine understands
        pickle = None
    if pickle is None or not skimmer.is_exact:
        storages.forget()
        return run(data, limits, budget)
    budget.become(trial)
    return pickle


def unknown_names(names: Iterable[Global]) -> str | None:
    """Return the unknown imports of a refused file for the hint of its error, or None."""
    unknown = [show(name.qualified, 60) for name in names if not is_known(name)]
    return f"it imports {and_more(unknown, 5)}" if unknown else None


def interpret(
    pickle: Pickle,
    contents: Contents,
    limits: Limits,
    storage_of: Callable[[PersistentId], Storage | Global],
    depth: int,
) -> None:
    """Give every persistent id and every call of a pickle its meaning. Raises UnreadableError."""
    contents.pickles.append(pickle)
    if pickle.members and not contents.is_script:
        raise MachineError("a call has a scalar as arguments", pickle.members[0])
    contents.bytestrings = contents.bytestrings or pickle.bytestrings
    for persistent in pickle.persistent:
        if persistent.meaning is None:
            persistent.meaning = storage_of(persistent)

    def nested(data: bytes | Range) -> Node:
        if depth >= limits.nesting or contents.read_nested is None:
            raise LimitError("checkpoints are nested too deep in pickles", "nesting", limits.nesting)
        if contents.budget is not None:
            contents.budget.charge(
                len(data) if isinstance(data, bytes) else 0
            )  # it is read, and perhaps decoded, each time that it is met
        return contents.read_nested(data, contents, limits, depth + 1)

    rebuilder = Rebuilder(nested, contents.budget, Bounds())
    rebuilder.annotate(pickle)
    if rebuilder.excesses:
        contents.not_loadable = contents.not_loadable or "a tensor of it leads torch out of its memory"
        found = and_more(rebuilder.excesses, 2)
        text = f"DANGER: torch reads and writes outside of a tensor of this file: {found}."
        contents.notices.append(Notice("out-of-bounds", text))
    refuse_equal_keys(pickle)


def checkpoint(
    path: str,
    format: str,
    traits: Traits,
    root: Node,
    contents: Contents,
    limits: Limits,
    *,
    source: Source | None = None,
    origin: Origin | None = None,
    byteorder: str = "little",
    refusals: tuple[Refusal, ...] | None = None,
    not_loadable: str | None = None,
    flat: Flat | None = None,
) -> Checkpoint:
    """The Checkpoint over a tree whose calls have their meaning."""
    try:
        flat = flatten(root, limits, contents.budget) if flat is None else flat
    except UnreadableError as error:
        error.hint = unknown_names(name for pickle in contents.pickles for name in pickle.globals.values())
        raise
    tensors, tensor_marks = (flat.tensors, []) if flat.names_differ else with_unique_names(flat.tensors)
    values, value_marks = with_unique_names(flat.values)
    for marks, of in ((tensor_marks, [mark for _, mark in tensor_marks]), (value_marks, [])):
        if marks:
            listed = and_more([f"{name} (the second is shown as {mark})" for name, mark in marks], 1)
            contents.notices.append(Notice("ambiguous-name", f"two paths have the name {listed}", tuple(of)))
    contents.notices += lost_notices(tensors, contents.short)
    if flat.repeats:
        contents.notices.append(Notice("ambiguous-name", and_more(flat.repeats, 1)))
    if refusals is None:
        refusals = _refusals(contents, flat)
    not_loadable = not_loadable or contents.not_loadable
    impossible = (weights_only.impossible_call(p.globals.values(), p.calls) for p in contents.pickles)
    call = next((call for call in impossible if call is not None), None)
    if call is not None and not_loadable is None:
        not_loadable = (
            f"the call of {show(call.class_name, 60)} at byte {call.offset:,} of the pickle cannot succeed"
        )
    unhashable = [pickle.unhashable for pickle in contents.pickles if pickle.unhashable is not None]
    if unhashable and not_loadable is None:
        not_loadable = f"the dict at byte {unhashable[0]:,} of the pickle has an unhashable key"
    encoding = "latin1" if not_loadable is None and contents.bytestrings else None
    return Checkpoint(
        path=path,
        format=format,
        traits=traits,
        nbytes=0 if source is None else source.size,
        root=root,
        tensors=tensors,
        storages=_storages(contents, flat),
        values=tuple(values),
        containers=tuple(flat.containers),
        imports=_imports(contents, flat),
        byteorder=byteorder,
        weights_only=refusals,
        encoding=encoding,
        not_loadable=not_loadable,
        account=Account(tuple(contents.notices)),
        sources=() if source is None else (source,),
        origin=origin,
    )


def _storages(contents: Contents, flat: Flat) -> Sequence[Storage]:
    """Every storage: first those that persistent ids name, then those that only tensors name (on meta)."""
    storages: Chain[Storage] = Chain()
    for item in contents.storages.values():
        if isinstance(item, Column):
            storages.extend(item)
        else:
            storages.append(item)
    ids = {
        id(storage)
        for part in storages.parts
        for storage in (part.made if isinstance(part, Column) else part)
    }
    for part in flat.tensors.parts:
        for entry in () if isinstance(part, Column) else part:
            for tensor in parts_of(entry.tensor):
                if id(tensor.storage) not in ids:
                    ids.add(id(tensor.storage))
                    storages.append(tensor.storage)
    return storages


def _refusals(contents: Contents, flat: Flat) -> tuple[Refusal, ...]:
    places_of: dict[str, dict[str, None]] = {}
    for pickle in contents.pickles:
        for reason, node in weights_only.refusals(pickle):
            places_of.setdefault(reason, {}).update(dict.fromkeys(flat.where.get(id(node), ())))
    return tuple(Refusal(reason, tuple(places)) for reason, places in places_of.items())


def _imports(contents: Contents, flat: Flat) -> tuple[Import, ...]:
    nodes: dict[tuple[str, str], list[Global]] = {}
    judged: dict[tuple[str, str], list[Judgement]] = {}
    for pickle in (*contents.pickles, *contents.behind):
        roots = [pickle.root, *pickle.persistent]
        for name, judgement in imports.judge(
            pickle.globals.values(),
            pickle.calls,
            roots,
            [*pickle.late, *pickle.crowded],
            pickle.fillings,
            pickle.hashed,
        ).items():
            nodes.setdefault((name.module, name.name), []).append(name)
            judged.setdefault((name.module, name.name), []).append(judgement)
    rows: list[Import] = []
    for pair, judgements in judged.items():
        group = min((judgement.group for judgement in judgements), key=_WORST.index)
        calls = [call for judgement in judgements for call in judgement.calls]
        where = [place for node in nodes[pair] for place in flat.where.get(id(node), ())]
        texts = tuple(call_text(call) for call in calls[:_CALLS_SHOWN])
        is_enum = bool(calls) and all(map(looks_like_enum, calls))
        times = sum(judgement.times for judgement in judgements)
        attributes = dict.fromkeys(name for judgement in judgements for name in judgement.attributes)
        rows.append(
            Import(
                *pair,
                group,
                tuple(dict.fromkeys(where)),
                texts,
                is_enum,
                times=times,
                attributes=tuple(attributes),
            )
        )
    return tuple(rows)


_WORST: tuple[imports.Group, ...] = ("called", "unknown", "odd", "known")


# --- the files of ranks ------------------------------------------------------------------------------------------------

HINT = "copy all files of one save again"


def refuse_mixed(headers: Iterable[tuple[str, Mapping[str, Node]]]) -> None:
    """Raise MixedStepsError where two files count differently.

    `headers` gives each file, as a message names it, and its counters by their names.
    """
    problem = mixed(headers)
    if problem is not None:
        raise MixedStepsError(problem, hint=HINT)


def mixed(headers: Iterable[tuple[str, Mapping[str, Node]]]) -> str | None:
    """Return the first difference between the counters of two files, as text, or None if all agree."""
    firsts: dict[str, tuple[str, Node]] = {}
    for file, header in headers:
        for name, node in header.items():
            first, other = firsts.setdefault(name, (file, node))
            values = _differing(other, node)
            if values is not None:
                difference = f"{show(name, 80)} is {values[0]:,.0f} in {first}, {values[1]:,.0f} in {file}"
                return f"the files were saved at several steps: {difference}"
    return None


def strays(counts: Mapping[int, Mapping[str, float]]) -> set[int]:
    """Return the numbers of the files whose counters differ from the counters of most files.

    Return none where no value of a counter has a majority: then nobody knows which files are of one step.
    """
    odd: set[int] = set()
    for name in dict.fromkeys(name for row in counts.values() for name in row):
        rows = {number: row[name] for number, row in counts.items() if name in row}
        value, most = Counter(rows.values()).most_common(1)[0]
        if most == len(rows):
            continue
        if 2 * most <= len(rows):
            return set()
        odd |= {number for number, other in rows.items() if other != value}
    return odd


def incomplete_in(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the tensors that a file lacks bytes of, as its notices say."""
    notices = checkpoint.account.noticed("incomplete")
    return tuple(name for notice in notices for name in notice.tensors)


def counters_of(values: Iterable[Value]) -> dict[str, Node]:
    """The counters of a run among values, by their names."""
    return {
        row.name: row.node for row in values if row.path and row.node is not None and is_counter(row.path)
    }


def _differing(node: Node, other: Node) -> tuple[float, float] | None:
    """The values of two counters that differ. Where the files record equal checksums, no value is read."""
    first, second = tensor_of(node), tensor_of(other)
    if first is not None and (first is second or _crc(first) == _crc(second) is not None):
        return None
    values = counter(node), counter(other)
    return None if None in values or values[0] == values[1] else values  # type: ignore[return-value]


def _crc(tensor: object) -> tuple[str, int] | None:
    """The dtype and the recorded checksum of a tensor that is all of its storage."""
    if not isinstance(tensor, TensorRef) or tensor.storage.crc is None:
        return None
    return (tensor.dtype.name, tensor.storage.crc) if tensor.extent == (0, tensor.storage.nbytes) else None


def is_pickle(head: bytes) -> bool:
    """Tell whether these first bytes begin a pickle of a dict, a list or an object."""
    return (
        (head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5)
        or head[:3] in (b"(dp", b"(lp")
        or head[:2] in (b"}q", b"]q")
        or head.startswith(b"ccollections\nOrderedDict\n")
    )


_REPLACED = frozenset((Opaque, PersistentId, TensorRef, Composite))


class Swap:
    """Puts other nodes in the place of calls and persistent ids: `instead` gives them, and None for a node that stays.

    Containers keep their identity, so shared ones stay shared. With `plain`, which gives the bytes behind a persistent
    id of the cutter, a nested stream of torch becomes what it holds.
    """

    def __init__(
        self, instead: Callable[[Node], Node | None], plain: Callable[[PersistentId], Node] | None = None
    ) -> None:
        self._instead = instead
        self._plain = plain
        self._todo: list[Node] = []
        self._seen: set[int] = set()
        self._tuples: dict[int, tuple[Node, tuple[Node, ...]]] = {}
        self._bytes: dict[int, Node] = {}

    def run(self, root: Node) -> Node:
        root = self._new(root)
        while self._todo:
            node = self._todo.pop()
            if type(node) is list:
                node[:] = map(self._new, node)
            elif type(node) is Dict:
                node.keys = list(map(self._new, node.keys))
                node.values = list(map(self._new, node.values))
            elif type(node) is Set:
                node.items = list(map(self._new, node.items))
            elif type(node) is Opaque:
                self._call(node)
        return root

    def _call(self, node: Opaque) -> None:
        args = self._new(node.args)
        assert is_tuple(args)
        node.args = args
        if type(node.meaning) is Tagged and self._plain is not None:
            node.meaning = Tagged(inside(args[0]))
        node.states = list(map(self._new, node.states))
        node.items = list(map(self._new, node.items))
        node.keys = list(map(self._new, node.keys))
        node.values = list(map(self._new, node.values))
        if node.kwargs is not None:
            self._new(node.kwargs)
        if type(node.func) is Opaque:
            self._new(node.func)

    def _new(self, node: Node) -> Node:
        """Return the node that takes the place of a node. Its own content is looked at later."""
        instead = self._instead(node) if type(node) in _REPLACED else None
        if instead is not None:
            return instead
        if type(node) is Opaque:
            if type(node.meaning) is Nested and self._plain is not None:
                return self._new(node.meaning.root)
        elif (
            self._plain is not None
            and type(node) is PersistentId
            and type(node.pid) is int
            and type(node.meaning) is Storage
        ):
            if id(node) not in self._bytes:
                self._bytes[id(node)] = self._plain(node)
            return self._bytes[id(node)]
        elif is_tuple(node):
            return self._tuple(node)
        if isinstance(node, (list, Dict, Set, Opaque)) and id(node) not in self._seen:
            self._seen.add(id(node))
            self._todo.append(node)
        return node

    def _tuple(self, node: tuple[Node, ...]) -> tuple[Node, ...]:
        """A tuple with its items swapped. The machine bounds how deep tuples lie in each other."""
        entry = self._tuples.get(id(node))
        if entry is None:
            items = tuple(map(self._new, node))
            changed = any(new is not old for new, old in zip(items, node, strict=True))
            entry = self._tuples[id(node)] = node, items if changed else node
        return entry[1]
