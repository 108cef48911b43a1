"""A checkpoint: its tree, the flat views of the tree, and the traits of its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import add
from types import TracebackType
from typing import Literal

from ckpt.bytes.source import Source
from ckpt.model.account import Account
from ckpt.model.columns import Column, row_parts
from ckpt.model.errors import about
from ckpt.model.names import Path
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple, dataclass
from ckpt.model.tensors import Storage, Tensor, TensorRef, parts_of
from ckpt.model.text import counted_noun, show

Role = Literal["parameter", "buffer"]


class Entry(NamedTuple):
    """A tensor in the tree. `path` is exact; `name` is the state-dict name for people.

    `kind` is what the format itself says (a module's `_parameters`, TorchScript's
    lists), or None; `source` names that evidence. `registered` is False below a plain
    list, dict or attribute of a module, where state_dict() does not look. `persistent`
    is False for buffers that state_dict() leaves out.
    """

    path: Path
    name: str
    tensor: Tensor
    kind: Role | None = None
    source: str | None = None
    registered: bool = True
    persistent: bool = True

    def __repr__(self) -> str:
        return (
            f"<Entry {show(self.name)}: {self.tensor.dtype.name} "
            f"{list(self.tensor.shape)}>"
        )


class Storages(Column[Storage]):
    """The storages of many records of one file. `ids` are their names."""

    __slots__ = ("ids",)

    def __init__(
        self,
        ids: Sequence[str],
        make: Callable[[int, int], list[Storage]],
        looks: Sequence[Storage],
    ) -> None:
        self.ids = ids
        super().__init__(len(ids), make, looks)

    def cut(self, first: int, last: int) -> Storages:
        return self._cut(
            Storages(self.ids[first:last], self._make, self.looks[first:last]), first
        )


class Tensors(Column[TensorRef]):
    """The tensors of a large state dict, one per storage. `looks` are tensors that look
    like them.
    """

    __slots__ = ("storages",)

    def __init__(self, storages: Sequence[Storage], looks: Sequence[TensorRef]) -> None:
        self.storages = storages

        def make(first: int, last: int) -> list[TensorRef]:
            chosen = looks[first:last]
            # All fields but the storage, which is the first. Few looks differ.
            views = {look: look[1:] for look in set(chosen)}
            # Made without the checks of a call: there may be hundreds of thousands.
            fields = map(
                add,
                zip(storages[first:last], strict=True),
                [views[look] for look in chosen],
            )
            return list(map(tuple.__new__, repeat(TensorRef), fields))

        super().__init__(len(looks), make, looks)

    def cut(self, first: int, last: int) -> Tensors:
        # A cut of a column makes no rows.
        of = self.storages
        storages = of.cut(first, last) if isinstance(of, Column) else of[first:last]
        return self._cut(Tensors(storages, self.looks[first:last]), first)


class Entries(Column[Entry]):
    """The tensors of a state dict at `path`: `keys` are the last steps of their paths,
    `names` their names.
    """

    __slots__ = ("keys", "names", "path", "tensors")

    def __init__(
        self, path: Path, keys: Sequence[str], names: Sequence[str], tensors: Tensors
    ) -> None:
        self.path = path
        self.keys = keys
        self.names = names
        self.tensors = tensors

        def make(first: int, last: int) -> list[Entry]:
            paths = map(path.__add__, zip(keys[first:last], strict=True))
            rows = zip(paths, names[first:last], tensors[first:last], strict=True)
            return [Entry(*row) for row in rows]

        super().__init__(len(names), make)

    def cut(self, first: int, last: int) -> Entries:
        span = slice(first, last)
        tensors = self.tensors.cut(first, last)
        return self._cut(
            Entries(self.path, self.keys[span], self.names[span], tensors), first
        )


def names_of(entries: Sequence[Entry]) -> list[str]:
    """The name of each tensor."""
    names: list[str] = []
    for part in row_parts(entries):
        names += (
            part.names if isinstance(part, Entries) else [entry.name for entry in part]
        )
    return names


def paths_of(entries: Sequence[Entry]) -> Iterator[Path]:
    """Yield the path of each tensor."""
    for part in row_parts(entries):
        if isinstance(part, Entries):
            yield from map(part.path.__add__, zip(part.keys, strict=True))
        else:
            yield from [entry.path for entry in part]


def keys_at(entries: Sequence[Entry], depth: int) -> list[str]:
    """The last step of each path of `depth` steps, where it is a string."""
    keys: list[str] = []
    for part in row_parts(entries):
        if not isinstance(part, Entries):
            last = [entry.path[-1] for entry in part if len(entry.path) == depth]
            keys += [step for step in last if isinstance(step, str)]
        elif len(part.path) + 1 == depth:
            keys += part.keys
    return keys


def storages_of(entries: Sequence[Entry]) -> list[str]:
    """The name of the storage of each tensor, or the names of several with commas
    between.
    """
    ids: list[str] = []
    for part in row_parts(entries):
        storages = part.tensors.storages if isinstance(part, Entries) else ()
        if isinstance(storages, Storages):
            ids += storages.ids
        else:
            # Parts of a sparse or quantized tensor have a storage each.
            ids += [
                ",".join(
                    dict.fromkeys(ref.storage.id for ref in parts_of(entry.tensor))
                )
                for entry in part
            ]
    return ids


def looks_of(entries: Sequence[Entry]) -> list[Tensor]:
    """For each tensor one that looks the same: all but its bytes and its storage's name
    is equal.
    """
    looks: list[Tensor] = []
    for part in row_parts(entries):
        looks += (
            part.tensors.looks
            if isinstance(part, Entries)
            else [entry.tensor for entry in part]
        )
    return looks


class Value(NamedTuple):
    """A value in the tree that is not a tensor: a scalar, a list of scalars, or an
    object by its class.

    `node` is the inert node of scalars and lists of scalars. It is None for objects,
    whose `fields` follow as rows of their own, and for repeats, which name the first
    occurrence in `same_as`.
    """

    path: Path
    name: str
    type: str
    node: Node = None
    fields: int | None = None
    same_as: str | None = None


class Import(NamedTuple):
    """A name that a pickle of the checkpoint imports, and the names in the tree that
    use it.
    """

    module: str
    name: str
    group: Literal["known", "odd", "unknown", "called"]
    """`odd` is a known class whose objects have attributes that it does not write."""
    where: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The calls of this name while loading, as text: `posix.system('touch x')`. None
    for a value that can be called.
    """
    is_enum: bool = False
    """True if the calls look like members of an enum: a class called with one number or
    word.
    """
    file: str = ""
    """The file of a folder whose pickle imports it; empty for a checkpoint in
    one file.
    """
    times: int = 0
    """The number of calls; `calls` has the first of them."""
    attributes: tuple[str, ...] = ()
    """The attributes of its objects that make it odd, or that torch calls when it loads
    them.
    """
    is_script: bool = False
    """True for a class of TorchScript, which torch.jit takes from the code in the
    file.
    """


class Refusal(NamedTuple):
    """One reason why `torch.load(weights_only=True)` refuses a pickle, and where in the
    tree.
    """

    reason: str
    where: tuple[str, ...]
    file: str = ""
    """The file of a folder that is refused; empty for a checkpoint in one file."""


class CodeDevice(NamedTuple):
    """A device that the code in a file names as a constant. `line` counts from 1; the
    bytecode has no lines.

    `is_traced` says that the call is written as a trace writes it, with all of its
    options.
    """

    file: str
    line: int | None
    device: str
    is_traced: bool = False


class Container(NamedTuple):
    """A node of the tree with children. `find_sections` uses it.

    `type` is its type (`dict`, `OrderedDict`, a class name), `keys` are its keys that
    are strings or ints. `first` and `last` bound its tensors in `Checkpoint.tensors`.
    `is_module` is set for a pickled nn.Module, `has_metadata` for a state dict with
    `_metadata`.
    """

    path: Path
    name: str
    type: str
    keys: tuple[str | int, ...]
    first: int
    last: int
    is_module: bool = False
    has_metadata: bool = False
    node: Node = None


class Traits(NamedTuple):
    """The traits of a format, as plain values. Code outside `formats` asks them instead
    of the format's name.
    """

    label: str
    """Its name for people: `PyTorch zip`."""
    load: str = ""
    """The Python expression that opens a file, with the fields `path` and `options`;
    empty without one.
    """
    is_pickle: bool = False
    """True if loaders unpickle it, so that it can hold any Python object."""
    keeps_order: bool = True
    """True if its tensors are in the order of the model."""
    keeps_devices: bool = False
    """True if it records the device of each tensor."""
    keeps_ties: bool = True
    """True if tensors that share memory share it in the file too. If not, its metadata
    may name them.
    """
    has_checksums: bool = False
    names_are_code: bool = False
    """True if code in the file names its tensors and devices. They cannot be changed
    without the code.
    """
    tags_are_apart: bool = False
    """True if the devices of the tensors are beside that code, so that they change
    without it.
    """
    in_place: bool = False
    """True if a rewrite may append to the file."""
    has_views: bool = False
    """True if its persistent ids may be views of storages (torch before 0.4)."""
    is_live: bool = False
    """True if the tensors are in this process."""
    is_foreign: bool = False
    """True if `load` is not a function of torch: it takes the options of
    `pickle.load`.
    """
    fills_a_state: bool = False
    """True if `load` fills a state dict that the caller has built, and runs the pickles
    of the checkpoint.
    """
    is_folder: bool = False
    """True if it is written as a folder of several files."""
    is_archive: bool = False
    """True if its parts are members of one file. Then `load` has the field `part`, the
    name of a member.
    """
    is_set: bool = False
    """True if its parts are files of ranks. Its loader, if it has one, opens them by
    their folder.
    """
    has_own_metadata: bool = False
    """True if its metadata is of another program, so that no other format holds it and
    no command changes it.
    """
    no_load: str = ""
    """The reason why a set has no `load`, where the format knows it."""


class Origin:
    """Base class for what a format keeps of a file for its writer, such as the
    directory of an archive.
    """

    __slots__ = ()


class DeclaredSection(NamedTuple):
    """A section that a document declares, with the tensors `first` to `last`."""

    path: Path
    name: str
    kind: str
    first: int
    last: int


class RecordedItem(NamedTuple):
    """A part of a file with the size in bytes and the CRC-32 that the file records of
    it, if any.

    `problem` says why the record could not be read.
    """

    name: str
    size: int
    crc: int | None
    problem: str | None = None


class RecordedFile(NamedTuple):
    """A file of a checkpoint: its path below the folder, empty for the only file, its
    bytes, and its items.

    `steps` are the counters that it holds. `problem` says why it could not be read.
    """

    name: str
    size: int
    items: Sequence[RecordedItem] = ()
    steps: tuple[tuple[str, float], ...] = ()
    problem: str | None = None


class Declared(NamedTuple):
    """The sections and roles in a stored listing. `roles` holds (role, trust, source,
    note) of each tensor.
    """

    sections: tuple[DeclaredSection, ...]
    roles: tuple[tuple[str, str, str, str], ...]


class Member(NamedTuple):
    """A file of a folder that is one checkpoint. Its content lies at `key` of the tree,
    or at the root without one.

    `is_model` is set where the layout of the folder says that its tensors are the
    weights of a model.
    """

    file: str
    key: str
    checkpoint: Checkpoint
    is_model: bool = False


class ParallelRank(NamedTuple):
    """The rank of a file that holds a part of each tensor of a model, and the number of
    ranks.
    """

    number: int
    of: int


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint in a file. It is a context manager; leaving it closes the file.

    `root` is the tree in file order. `tensors`, `values` and `containers` are its flat
    views. Edits return a new Checkpoint over the same sources.
    """

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {show(self.path)}: {self.format}, "
            f"{counted_noun(len(self.tensors), 'tensor')}>"
        )

    path: str
    format: str
    traits: Traits
    nbytes: int
    root: Node
    tensors: Sequence[Entry]
    storages: Sequence[Storage]
    values: tuple[Value, ...] = ()
    containers: tuple[Container, ...] = ()
    imports: tuple[Import, ...] = ()
    byteorder: str = "little"
    weights_only: tuple[Refusal, ...] | None = None
    """The reasons why weights_only refuses it. Empty when it loads, None when no pickle
    is loaded.
    """
    encoding: str | None = None
    """The `encoding=` that torch.load needs when the default fails."""
    not_loadable: str | None = None
    """The reason why torch cannot load the file at all, although ckpt reads it."""
    account: Account = Account()
    """The notices of the reader, and the values that are not in the tree although they
    belong there.
    """
    code_devices: tuple[CodeDevice, ...] = ()
    """The devices that code in the file names. Loaders never change them."""
    beside: Node = None
    """Named values that are no part of the tree: the constants of a program."""
    parts: tuple[str, ...] = ()
    """The file names of the shards of a sharded checkpoint, or of all files of a folder
    that were read.
    """
    layout: str = ""
    """The writer of the folder, for people: `Hugging Face Trainer`. Empty for a
    file.
    """
    members: tuple[Member, ...] = ()
    """The checkpoints that the files of a folder are, each as it is read alone."""
    copies: tuple[str, ...] = ()
    """Keys of the root with weights that another section holds too, in another
    precision.
    """
    facts: tuple[tuple[str, Node], ...] = ()
    """The facts that the documents of a folder state about all of it: a label for
    people, and a scalar.
    """
    index_bytes: int | None = None
    """Bytes of all tensors, from the index of the shards."""
    sources: tuple[Source, ...] = ()
    """The files of the checkpoint. `close` closes them."""
    origin: Origin | None = None
    declared: Declared | None = None
    rank: ParallelRank | None = None
    """The rank of tensor parallelism that a file is of, where what lies beside it says
    so.
    """
    shares_states: bool = False
    """True if the states in its optimizers were cut out of states of groups: each
    parameter of a group has one then, with a gradient or without.
    """
    is_edited: bool = False
    """True if the tree differs from the tree of the file."""
    damage: str | None = None
    """The damage of a file that no reader takes, in a sentence. What is left of it was
    read.
    """

    @property
    def source(self) -> Source | None:
        """The file, when the checkpoint is a single file."""
        return self.sources[0] if len(self.sources) == 1 and not self.parts else None

    def is_of_weights(self, file: str) -> bool:
        """Tell whether a statement about a file of a folder is about its weights.

        Without a folder there is one file.
        """
        weights = [member.file for member in self.members if member.is_model]
        return not weights or file in weights

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when a file with its bytes has changed since it was
        opened.
        """
        with about(self.path):
            for source in self.all_sources():
                source.check_unchanged()

    def all_sources(self) -> list[Source]:
        """The files of the checkpoint, and those that its tensors come from."""
        # By id: one object for each file, and equal paths may be two objects.
        sources = {id(source): source for source in self.sources}
        for part in row_parts(self.storages):
            # The storages of a column come from one file: the first one names it.
            for storage in part[:1] if isinstance(part, Storages) else part:
                sources.update(
                    (id(source), source) for source in storage.list_sources()
                )
        return list(sources.values())

    def close(self) -> None:
        """Close the files."""
        for source in self.sources:
            source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
