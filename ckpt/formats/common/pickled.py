"""The step of every pickle-based format once it knows where the storages are: pickle ->
Checkpoint.

Not a format of the table; torch-zip, legacy and TorchScript use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ckpt.bytes.source import Source
from ckpt.formats.common.holes import lost_notices
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Entry, Import, Origin, Refusal, Traits
from ckpt.model.columns import Chain, Column
from ckpt.model.dtypes import UINT8, DType
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Global, Node, PersistentId
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, parts_of
from ckpt.model.text import and_more, show
from ckpt.pickle import machine
from ckpt.pickle.bounds import Bounds
from ckpt.pickle.judge import imports, weights_only
from ckpt.pickle.judge.imports import Judgement, looks_like_enum
from ckpt.pickle.judge.impossible import impossible_call
from ckpt.pickle.judge.names import OLD_MODULES, is_known
from ckpt.pickle.keys import refuse_equal_keys
from ckpt.pickle.machine import MachineError, Pickle
from ckpt.pickle.rebuild import Rebuilder
from ckpt.tree.find import with_unique_names
from ckpt.tree.literals import call_text
from ckpt.tree.walk import Flat, flatten_tree

_CALLS_SHOWN = 20
LEAST_BYTES = 256 * 1024
"""The size of a pickle from which on skimming saves more than it costs to compile its
expressions.
"""
ReadNested = Callable[[bytes | Range, "Contents", Limits, int], Node]


class Contents:
    """The pickles of one file, nested ones too, and every storage that they name, by
    its id.

    `read_nested` reads a checkpoint in the bytes of a pickle, as the loader of the
    format would. `mark` is the prefix of all storage ids, `streams` counts the nested
    checkpoints, `budget` is what is left for all of them.
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
        """Storages of which only so many first bytes are there, in a file that is cut
        off or damaged.
        """
        self.notices = list(notices)
        self.bytestrings = False
        self.is_script = False
        """True for the pickles of a TorchScript archive, which torch.jit.load reads."""
        self.not_loadable: str | None = None


def run(
    data: bytes,
    limits: Limits,
    budget: Budget | None = None,
    skim: machine.Skim | None = None,
) -> Pickle:
    """Call `machine.run_machine`. The error of a damaged pickle names the unknown
    imports before the damage.
    """
    try:
        return machine.run_machine(data, limits, 0, budget, None, skim)
    except MachineError as error:
        error.hint = unknown_names(error.seen)
        raise


class Storages(Protocol):
    """Gives the storages of one pickle, each made once."""

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """Return the storage or class that a persistent id names. Raises
        UnreadableError.
        """
        ...

    def storages(
        self, keys: Sequence[str], looks: Sequence[Storage]
    ) -> Sequence[Storage]:
        """The storage of each key, with the device, the dtype and the bytes of another.
        Raises UnreadableError.
        """
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
    """The storage for a persistent id that names its key again. It joins `storages`
    where it is another one.

    torch keeps no storage without bytes, so each dtype sees one of its own. Raises
    UnreadableError where a storage with bytes has two dtypes or sizes.
    """
    # Untyped ones are bytes.
    if (storage.dtype or UINT8, storage.nbytes) == (dtype or UINT8, nbytes):
        return storage
    problem = f"storage {show(key, 80)} is used with two types or sizes"
    if storage.nbytes or nbytes:
        raise UnreadableError(problem)
    id = f"{storage.id} as {'untyped' if dtype is None else dtype.name}"
    other = storages.setdefault(id, storage._replace(id=id, dtype=dtype))
    if type(other) is not Storage or other.nbytes or other.dtype != dtype:
        raise UnreadableError(problem)
    return other


def run_skimmed(
    data: bytes, limits: Limits, budget: Budget, storages: Storages
) -> Pickle:
    """Call `run`. Read the tensors of a large pickle by columns if that surely gives
    the same tree.
    """
    if len(data) < LEAST_BYTES:
        return run(data, limits, budget)
    # Here: small files do not pay for it.
    from ckpt.pickle.skim.tensors import TensorSkimmer

    # The charges of the attempt count only if its result is used.
    trial = budget.copy()
    skimmer = TensorSkimmer(data, trial, storages.resolve, storages.storages)
    try:
        pickle = machine.run_machine(data, limits, 0, trial, None, skimmer)
    except UnreadableError:
        # Of this pickle, or of a part of it that only the machine understands.
        pickle = None
    if pickle is None or not skimmer.is_exact:
        storages.forget()
        return run(data, limits, budget)
    budget.become(trial)
    return pickle


def unknown_names(names: Iterable[Global]) -> str | None:
    """Return the unknown imports of a refused file for the hint of its error,
    or None.
    """
    unknown = [show(name.qualified, 60) for name in names if not is_known(name)]
    return f"it imports {and_more(unknown, 5)}" if unknown else None


def interpret_pickle(
    pickle: Pickle,
    contents: Contents,
    limits: Limits,
    storage_of: Callable[[PersistentId], Storage | Global],
    depth: int,
) -> None:
    """Give every persistent id and every call of a pickle its meaning. Raises
    UnreadableError.
    """
    contents.pickles.append(pickle)
    if pickle.members and not contents.is_script:
        raise MachineError("a call has a scalar as arguments", pickle.members[0])
    contents.bytestrings = contents.bytestrings or pickle.bytestrings
    for persistent in pickle.persistent:
        if persistent.meaning is None:
            persistent.meaning = storage_of(persistent)

    def nested(data: bytes | Range) -> Node:
        if depth >= limits.nesting or contents.read_nested is None:
            raise LimitError(
                "checkpoints are nested too deep in pickles", "nesting", limits.nesting
            )
        if contents.budget is not None:
            # It is read, and perhaps decoded, each time that it is met.
            contents.budget.charge(len(data) if isinstance(data, bytes) else 0)
        return contents.read_nested(data, contents, limits, depth + 1)

    rebuilder = Rebuilder(nested, contents.budget, Bounds())
    rebuilder.annotate(pickle)
    if rebuilder.excesses:
        contents.not_loadable = (
            contents.not_loadable or "a tensor of it leads torch out of its memory"
        )
        found = and_more(rebuilder.excesses, 2)
        text = (
            f"DANGER: torch reads and writes outside of a tensor of this file: {found}."
        )
        contents.notices.append(Notice("out-of-bounds", text))
    if pickle.shares:
        # Here: few files hold a list or a dict at several places.
        from ckpt.pickle.judge.grammar.forms import unfolds_far

        if unfolds_far(pickle.root, pickle.end):
            contents.not_loadable = contents.not_loadable or _UNFOLDS
            contents.notices.append(Notice("unfolds", f"DANGER: {_UNFOLDS}."))
    refuse_equal_keys(pickle)


_UNFOLDS = (
    "its lists and dicts hold each other so many times that printing them, or loading "
    "them into an optimizer, hardly ends"
)


def make_checkpoint(
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
        flat = flatten_tree(root, limits, contents.budget) if flat is None else flat
    except UnreadableError as error:
        error.hint = unknown_names(
            name for pickle in contents.pickles for name in pickle.globals.values()
        )
        raise
    tensors: Sequence[Entry] = flat.tensors
    if not flat.names_differ:
        tensors, marks = with_unique_names(flat.tensors)
        shown_names = tuple(mark for _, mark in marks)
        contents.notices += _name_notices(marks, shown_names)
    values, marks = with_unique_names(flat.values)
    contents.notices += _name_notices(marks, ())
    contents.notices += lost_notices(tensors, contents.short)
    if flat.repeats:
        contents.notices.append(Notice("ambiguous-name", and_more(flat.repeats, 1)))
    if refusals is None:
        refusals = _list_refusals(contents, flat)
    not_loadable = (
        not_loadable
        or contents.not_loadable
        or _why_not_loadable(contents.pickles, by_torch=not traits.is_foreign)
    )
    # The texts of Python 2 load with any bytes by this encoding.
    encoding = "latin1" if not_loadable is None and contents.bytestrings else None
    return Checkpoint(
        path=path,
        format=format,
        traits=traits,
        nbytes=0 if source is None else source.size,
        root=root,
        tensors=tensors,
        storages=_list_storages(contents, flat),
        values=tuple(values),
        containers=tuple(flat.containers),
        imports=_list_imports(contents, flat),
        byteorder=byteorder,
        weights_only=refusals,
        encoding=encoding,
        not_loadable=not_loadable,
        account=Account(tuple(contents.notices)),
        sources=() if source is None else (source,),
        origin=origin,
    )


def _name_notices(
    marks: Sequence[tuple[str, str]], tensors: tuple[str, ...]
) -> list[Notice]:
    """The notice that names got a mark, if any did. `tensors` are the marked names of
    tensors.
    """
    if not marks:
        return []
    pairs = [f"{name} (the second is shown as {mark})" for name, mark in marks]
    text = f"two paths have the name {and_more(pairs, 1)}"
    return [Notice("ambiguous-name", text, tensors)]


def _why_not_loadable(pickles: Sequence[Pickle], *, by_torch: bool) -> str | None:
    """Return the reason why loading fails in a pickle, or None."""
    for pickle in pickles:
        call = impossible_call(pickle.globals.values(), pickle.calls, by_torch=by_torch)
        if call is not None:
            return (
                f"the call of {show(call.class_name, 60)} at byte {call.offset:,} of "
                "the pickle cannot succeed"
            )
        old = next(filter(_is_of_python2, pickle.globals.values()), None)
        if old is not None:
            return (
                f"its pickle of protocol {old.protocol} names {old.module}, which "
                "Python 3 does not have"
            )
        elsewhere = _path_of_another_system(pickle)
        if elsewhere is not None:
            system = _SYSTEMS[elsewhere.name]
            return f"Python makes {elsewhere.qualified} on {system} alone"
    for pickle in pickles:
        if pickle.unhashable is not None:
            return (
                f"the dict or set at byte {pickle.unhashable:,} of the pickle has an "
                "unhashable key"
            )
    return None


def _path_of_another_system(pickle: Pickle) -> Global | None:
    """Return the class of a path that the pickle calls and that Python does not make on
    this system, or None.
    """
    names = {
        name
        for name in pickle.globals.values()
        if name.module in _PATHS and _SYSTEMS.get(name.name, _HERE) != _HERE
    }
    if not names:
        return None
    func = next((call.func for call in pickle.calls if call.func in names), None)
    return func if type(func) is Global else None


_PATHS = ("pathlib", "pathlib._local")
_SYSTEMS = {"WindowsPath": "Windows", "PosixPath": "Linux and macOS"}
_HERE = _SYSTEMS["WindowsPath" if os.name == "nt" else "PosixPath"]


def _is_of_python2(name: Global) -> bool:
    # Python reads the names of Python 2 in the protocols that Python 2 has.
    return name.protocol > 2 and name.module in OLD_MODULES


def _list_storages(contents: Contents, flat: Flat) -> Sequence[Storage]:
    """Every storage: first those that persistent ids name, then those that only tensors
    name (on meta).
    """
    storages: Chain[Storage] = Chain()
    for item in contents.storages.values():
        if isinstance(item, Column):
            storages.extend(item)
        else:
            storages.append(item)
    # By identity: one object is one memory. Of a column those that were made are
    # enough, because no other storage of it is in a row of its own.
    ids: set[int] = set()
    for part in storages.parts:
        made = part.made if isinstance(part, Column) else part
        ids.update(map(id, made))
    for entries in flat.tensors.parts:
        # Persistent ids name the storages of all tensors in columns.
        if isinstance(entries, Column):
            continue
        for entry in entries:
            for tensor in parts_of(entry.tensor):
                if id(tensor.storage) not in ids:
                    ids.add(id(tensor.storage))
                    storages.append(tensor.storage)
    return storages


def _list_refusals(contents: Contents, flat: Flat) -> tuple[Refusal, ...]:
    """The refusals of `weights_only`, each once with the names of what it is about."""
    # Dicts without values: sets that keep their order.
    names_of: dict[str, dict[str, None]] = {}
    for pickle in contents.pickles:
        for reason, node in weights_only.pickle_refusals(pickle):
            names = flat.where.get(id(node), ())
            names_of.setdefault(reason, {}).update(dict.fromkeys(names))
    return tuple(Refusal(reason, tuple(names)) for reason, names in names_of.items())


def _list_imports(contents: Contents, flat: Flat) -> tuple[Import, ...]:
    """The imports of all pickles of the file, each name once."""
    nodes: dict[tuple[str, str], list[Global]] = {}
    judged: dict[tuple[str, str], list[Judgement]] = {}
    for pickle in (*contents.pickles, *contents.behind):
        judgements = imports.judge_imports(
            pickle.globals.values(),
            pickle.calls,
            [pickle.root, *pickle.persistent],
            [*pickle.late, *pickle.crowded],
            pickle.fillings,
            pickle.hashed,
        )
        for name, judgement in judgements.items():
            pair = (name.module, name.name)
            nodes.setdefault(pair, []).append(name)
            judged.setdefault(pair, []).append(judgement)
    # Python reads the pickles behind a program, and imports what they name.
    others: set[tuple[str, str]] = set()
    for pickle in contents.behind if contents.is_script else contents.pickles:
        others.update(pickle.globals)
    return tuple(
        _import_row(pair, nodes[pair], judgements, flat)._replace(
            is_script=is_of_script(pair[0]) and pair not in others
        )
        for pair, judgements in judged.items()
    )


def is_of_script(module: str) -> bool:
    """Tell whether a module is one of the code of a TorchScript program."""
    return module.partition(".")[0] == "__torch__"


def _import_row(
    pair: tuple[str, str],
    nodes: Sequence[Global],
    judgements: Sequence[Judgement],
    flat: Flat,
) -> Import:
    """Return the row of one name, from what is judged of it in each pickle."""
    module, name = pair
    calls = [call for judgement in judgements for call in judgement.calls]
    # Dicts without values: sets that keep their order.
    where: dict[str, None] = {}
    for node in nodes:
        where |= dict.fromkeys(flat.where.get(id(node), ()))
    attributes: dict[str, None] = {}
    for judgement in judgements:
        attributes |= dict.fromkeys(judgement.attributes)
    return Import(
        module,
        name,
        # The worst of all: one harmless use makes no other one harmless.
        min((judgement.group for judgement in judgements), key=_WORST.index),
        tuple(where),
        tuple(call_text(call) for call in calls[:_CALLS_SHOWN]),
        bool(calls) and all(map(looks_like_enum, calls)),
        times=sum(judgement.times for judgement in judgements),
        attributes=tuple(attributes),
    )


_WORST: tuple[imports.Group, ...] = ("called", "unknown", "odd", "known")
