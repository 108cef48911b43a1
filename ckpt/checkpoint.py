"""A checkpoint: its tree, the flat views of it, and what its format keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple

from ckpt.errors import about
from ckpt.io.source import Source
from ckpt.names import Path
from ckpt.nodes import Node
from ckpt.tensors import Storage, Tensor, sources_of

Role = Literal["parameter", "buffer"]


class Entry(NamedTuple):
    """A tensor at a place of the tree. `path` is exact; `name` is for people, under state-dict names.

    `kind` is what the format itself says (a module's `_parameters`, TorchScript's lists), None where it
    says nothing; `source` names that evidence. `registered` is False below a plain list, dict or attribute
    of a module, where state_dict() does not look; `persistent` is False for buffers that it leaves out.
    """

    path: Path
    name: str
    tensor: Tensor
    kind: Role | None = None
    source: str | None = None
    registered: bool = True
    persistent: bool = True


class Value(NamedTuple):
    """Something at a place of the tree that is no tensor: a scalar, a list of scalars, an object by its class.

    `node` is the inert node for scalars and lists of them, None for objects (their `fields` follow as rows
    of their own) and for repeats, whose first place is `same_as`.
    """

    path: Path
    name: str
    type: str
    node: Node = None
    fields: int | None = None
    same_as: str | None = None


class Import(NamedTuple):
    """A name that a pickle of the checkpoint imports, and the names of the places that use it."""

    module: str
    name: str
    group: Literal["known", "unknown", "called"]
    where: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The calls made of it while loading, as inert text: `posix.system('touch x')`."""


class Refusal(NamedTuple):
    """One reason why `torch.load(weights_only=True)` refuses a pickle, and where it meets it."""

    reason: str
    where: tuple[str, ...]


class Notice(NamedTuple):
    """What the reader noticed and read on: a code of the catalogue of findings, and the sentence."""

    code: str
    message: str
    tensors: tuple[str, ...] = ()


class Container(NamedTuple):
    """A node of the tree that has children: what `sections` decides by.

    `type` is its type (`dict`, `OrderedDict`, a class name), `keys` those of its children that are text or
    ints; `first` and `last` bound its tensors in `Checkpoint.tensors`; `is_module` when it is a pickled
    nn.Module, `has_metadata` when it is a state dict with `_metadata`.
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
    """What a format is and keeps, as plain values: what code outside of `formats` asks instead of a name."""

    label: str
    """What people call it: `PyTorch zip`."""
    load: str = ""
    """How Python opens a file: an expression with the fields `path` and `options`, empty where nothing does."""
    is_pickle: bool = False
    """Whether a loader unpickles it, so that it holds any object of Python."""
    keeps_order: bool = True
    """Whether its tensors stand in the order of the model."""
    keeps_devices: bool = False
    """Whether it says where each tensor was saved."""
    keeps_ties: bool = True
    """Whether tensors that share memory do so in the file; else its metadata may name them."""
    has_checksums: bool = False
    names_are_code: bool = False
    """Whether code in the file names its tensors and devices, so that they cannot be changed apart from it."""
    in_place: bool = False
    """Whether a rewrite may append to the file."""
    has_views: bool = False
    """Whether its persistent ids may be views of storages (torch before 0.4)."""
    is_live: bool = False
    """Whether the tensors are those of this process."""


class Origin:
    """What a format keeps of the file for its own writer: the directory of an archive, say. Formats derive from it."""

    __slots__ = ()


class DeclaredSection(NamedTuple):
    """A section as a document names it. Its tensors are those at `first` to `last`."""

    path: Path
    name: str
    kind: str
    first: int
    last: int


class Declared(NamedTuple):
    """What a stored listing says of its sections and roles. `roles` are (role, trust, source, note) of each tensor."""

    sections: tuple[DeclaredSection, ...]
    roles: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it lies in its file. A context manager: leaving it closes the file.

    `root` is the tree in file order; `tensors`, `values` and `containers` are its flat views. Edits
    return a new Checkpoint over the same sources.
    """

    path: str
    format: str
    traits: Traits
    nbytes: int
    root: Node
    tensors: Sequence[Entry]
    storages: tuple[Storage, ...]
    values: tuple[Value, ...] = ()
    containers: tuple[Container, ...] = ()
    imports: tuple[Import, ...] = ()
    byteorder: str = "little"
    weights_only: tuple[Refusal, ...] | None = None
    """Reasons why weights_only refuses it; empty: it loads; None: no pickle is loaded."""
    encoding: str | None = None
    """The `encoding=` that torch.load needs, when the default fails."""
    not_loadable: str | None = None
    """Why no torch opens the file at all, although ckpt does."""
    notices: tuple[Notice, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """What a live model holds and no file can: names, and why."""
    parts: tuple[str, ...] = ()
    """File names of the shards, for a sharded checkpoint."""
    index_bytes: int | None = None
    """Bytes of all tensors, as the index of the shards says it."""
    sources: tuple[Source, ...] = ()
    """The files that it was read from: `close` closes them."""
    origin: Origin | None = None
    declared: Declared | None = None
    is_edited: bool = False
    """Whether the tree is another than that of the file."""

    @property
    def source(self) -> Source | None:
        """The file, where the checkpoint is one."""
        return self.sources[0] if len(self.sources) == 1 and not self.parts else None

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when a file that its bytes come from was written to since it was opened."""
        found = {id(source): source for source in self.sources}
        for storage in self.storages:
            found.update((id(source), source) for source in sources_of(storage.place))
        with about(self.path):
            for source in found.values():
                source.check_unchanged()

    def close(self) -> None:
        """Close the files."""
        for source in self.sources:
            source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
