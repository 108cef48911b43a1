"""The nouns: the inert tree of a pickle, storages, tensor references, and the Checkpoint that holds them.

Nothing here is an object of the file's classes, and nothing here reads a byte of tensor data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from types import TracebackType
from typing import Any, Literal, NamedTuple

from ckpt.dtypes import DType
from ckpt.errors import about
from ckpt.io.source import File, Source
from ckpt.names import NamedKey, Path

# --- the inert tree ---------------------------------------------------------------------------------------
# A node is a Python scalar (None, bool, int, float, str, bytes, bytearray), a list, a tuple, or one of the
# classes below. Nodes are compared by identity: one object in the file is one node here, however often met.

Node = Any


class ByteStr(str):
    """A Python 2 `str`: bytes, held as their latin-1 text; `.raw` gives them back."""

    __slots__ = ()

    @property
    def raw(self) -> bytes:
        return self.encode("latin-1")

    @property
    def text(self) -> str:
        """What it most likely says: its UTF-8, or its latin-1 when it is no UTF-8."""
        try:
            return self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return str(self)


class Dict:
    """A dict as its pairs in file order, never hashed: a file may hold keys that cannot be."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[Node] = []
        self.values: list[Node] = []

    def set(self, keys: list[Node], values: list[Node]) -> None:
        """Add keys with their values, as SETITEMS does."""
        self.keys += keys
        self.values += values


class Set:
    """A set as its items in file order, never hashed."""

    __slots__ = ("frozen", "items")

    def __init__(self, items: list[Node], frozen: bool) -> None:
        self.items = items
        self.frozen = frozen

    def append(self, items: list[Node]) -> None:
        """Add items, as ADDITEMS does."""
        self.items += items


class Global:
    """A name that the pickle imports. One node a distinct pair; `offset` is the byte of its first opcode.

    `protocol` is that of the pickle: it decides how a loader looks the name up (below 3, `copy_reg` is
    `copyreg`; from 4 on, a dotted name is one of attributes).
    """

    __slots__ = ("module", "name", "offset", "protocol")

    def __init__(self, module: str, name: str, offset: int = 0, protocol: int = 2) -> None:
        self.module = module
        self.name = name
        self.offset = offset
        self.protocol = protocol

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"


class PersistentId:
    """What torch keeps outside the pickle: a storage, or the class of a module in a legacy file.

    `shift` is where its view of the storage begins, in elements: 0 but for views that torch wrote before 0.4.
    """

    __slots__ = ("meaning", "offset", "pid", "shift")

    def __init__(self, pid: Node, offset: int) -> None:
        self.pid = pid
        self.offset = offset
        self.shift = 0
        self.meaning: Storage | Global | None = None


class Opaque:
    """An object that the pickle asked for and did not get: a call of `func` with `args`, and what came after.

    `how` is the opcode that made it. `states` are the arguments of BUILD (nearly always none or one),
    `items` what was appended, `keys` and `values` what was set by item. `meaning` is what
    `pickles.rebuild` found it to stand for: a TensorRef, a Composite, a Nested checkpoint, or None.
    """

    __slots__ = ("args", "func", "how", "items", "keys", "kwargs", "meaning", "offset", "states", "values")

    def __init__(
        self, how: str, func: Node, args: tuple[Node, ...], kwargs: Dict | None, offset: int
    ) -> None:
        self.how = how
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.offset = offset
        # Tuples until there is something: most calls are tensors, and an empty list costs as much as a call.
        self.states: Sequence[Node] = ()
        self.items: Sequence[Node] = ()
        self.keys: Sequence[Node] = ()
        self.values: Sequence[Node] = ()
        self.meaning: TensorRef | Composite | Nested | None = None

    def append(self, items: list[Node]) -> None:
        """Add items, as APPENDS does."""
        if type(self.items) is list:
            self.items += items
        else:
            self.items = list(items)

    def set(self, keys: list[Node], values: list[Node]) -> None:
        """Add keys with their values, as SETITEMS does."""
        if type(self.keys) is list and type(self.values) is list:
            self.keys += keys
            self.values += values
        else:
            self.keys, self.values = list(keys), list(values)

    def build(self, state: Node) -> None:
        """Add a state, as BUILD does."""
        if type(self.states) is list:
            self.states.append(state)
        else:
            self.states = [state]

    @property
    def class_name(self) -> str:
        """The dotted name of what made it: `argparse.Namespace`; `(the result of a call)` when that is itself an object."""
        func = self.func.meaning if type(self.func) is PersistentId else self.func
        if type(func) is Global:
            return func.qualified
        if type(func) is Opaque and type(func.func) is Global and func.func.name == "getattr":
            of, *inner = func.args or (None,)  # a class inside a class, at protocol 2
            if type(of) is Global and inner and isinstance(inner[0], str):
                return f"{of.qualified}.{inner[0]}"
        return "(the result of a call)"


@dataclass(frozen=True, slots=True)
class Nested:
    """A whole checkpoint inside a pickle (`torch.storage._load_from_bytes`): its root stands in for the call."""

    root: Node


# --- bytes ------------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """Bytes of a source: `size` of them at `offset`, deflated when `inflated` is not None (their true size).

    `big` says that their elements are big-endian.
    """

    source: Source
    offset: int
    size: int
    inflated: int | None = None
    big: bool = False


class Computed:
    """Bytes that are made when they are written: the elements of a tensor in the order of its shape, as `dtype`.

    Little-endian, conjugation and negation done. `overflowed` counts, once they were made, the finite elements that became infinite.
    """

    __slots__ = ("dtype", "of", "overflowed")

    def __init__(self, of: TensorRef, dtype: DType) -> None:
        self.of = of
        self.dtype = dtype
        self.overflowed = 0

    @property
    def size(self) -> int:
        return self.dtype.nbytes(self.of.numel)


class Overlaid:
    """The elements of a tensor in the order of its shape, as its dtype, with the block that `over` has in common with it
    taken from there: the elements whose index lies within both shapes, which have as many dimensions.
    """

    __slots__ = ("of", "over")

    def __init__(self, of: TensorRef, over: TensorRef) -> None:
        self.of = of
        self.over = over

    @property
    def size(self) -> int:
        return self.of.nbytes


class Patched:
    """The bytes of a place with pieces of it taken from elsewhere; where pieces overlap, the later one counts.

    `pieces` are (first byte, place); `base` is None where nothing is left of it.
    """

    __slots__ = ("base", "pieces", "size")

    def __init__(self, base: Place | None, size: int, pieces: Sequence[tuple[int, Place]]) -> None:
        self.base = base
        self.size = size
        self.pieces = tuple(pieces)


Place = Range | Computed | Overlaid | Patched


class Storage(NamedTuple):
    """A block of elements that tensors look into. **Identity is sharing**: one object, one memory.

    `id` is unique in its checkpoint. `device` is the tag as the file has it (`cuda:0`), or None where the
    format keeps none. `nbytes` is what its tensors see, `place` where it lies (None: nowhere, as on `meta`),
    `crc` the checksum that the container recorded.
    """

    id: str
    device: str | None
    dtype: DType | None
    nbytes: int
    place: Place | None
    crc: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class TensorRef(NamedTuple):
    """A strided view of a storage; `tensor_ref` makes one. Compared by identity.

    `offset` and `stride` count elements. `nbytes` are the bytes of its elements, counted once each: what a
    contiguous copy would take. `extent` are the bytes of the storage that it looks at, first and one past the
    last; they lie within the storage. `requires_grad` is what the file records, None where it records nothing.
    """

    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    numel: int
    nbytes: int
    extent: tuple[int, int]
    requires_grad: bool | None = None
    is_parameter: bool = False
    is_buffer: bool = False
    conj: bool = False
    neg: bool = False

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def device(self) -> str | None:
        return self.storage.device

    @property
    def layout(self) -> str:
        return "strided"

    @property
    def parts(self) -> tuple[tuple[str, TensorRef], ...]:
        return ()


def tensor_ref(
    storage: Storage,
    dtype: DType,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool | None = None,
) -> TensorRef:
    """A view with its sizes worked out; whether its extent lies within the storage is the caller's to check."""
    numel = prod(shape)
    bits = dtype.bits
    if numel:
        last = offset
        for size, step in zip(shape, stride, strict=True):
            last += (size - 1) * step
        extent = (offset * bits // 8, ((last + 1) * bits + 7) // 8)
    else:
        extent = (0, 0)
    return TensorRef(
        storage, dtype, shape, stride, offset, numel, (numel * bits + 7) // 8, extent, requires_grad
    )


@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """A tensor that is made of others: sparse, quantized, nested, a wrapper subclass, a bare storage.

    `layout` says which (`sparse_coo`, `quantized`, `nested`, `wrapper`, `storage` …), `detail` what the
    parts do not (the quantization scheme, the subclass). `device` is the tag recorded beside the parts.
    """

    layout: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[tuple[str, TensorRef], ...]
    own_device: str | None = None
    requires_grad: bool | None = None
    is_parameter: bool = False
    is_buffer: bool = False
    detail: str | None = None
    elements: int | None = None
    """Elements, where the shape does not tell (ragged rows)."""

    @property
    def numel(self) -> int:
        return prod(self.shape) if self.elements is None else self.elements

    @property
    def nbytes(self) -> int:
        """Bytes of its parts; without parts in storages, those of its elements."""
        if self.parts:
            return sum(part.nbytes for _, part in self.parts)
        return self.dtype.nbytes(self.numel)

    @property
    def device(self) -> str | None:
        return self.own_device or (self.parts[0][1].device if self.parts else None)


Tensor = TensorRef | Composite


def parts_of(tensor: Tensor) -> tuple[TensorRef, ...]:
    """The tensors in storages that a tensor is made of: itself, where it is one."""
    return (tensor,) if isinstance(tensor, TensorRef) else tuple(part for _, part in tensor.parts)


# --- the checkpoint ---------------------------------------------------------------------------------------

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
    keys: tuple[Any, ...]
    first: int
    last: int
    is_module: bool = False
    has_metadata: bool = False
    node: Node = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it lies in its file. A context manager: leaving it closes the file.

    `root` is the tree in file order; `tensors`, `values` and `containers` are its flat views. Edits
    return a new Checkpoint over the same source.
    """

    path: str
    format: str
    nbytes: int
    root: Node
    tensors: tuple[Entry, ...]
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
    parts: tuple[str, ...] = ()
    """File names of the shards, for a sharded checkpoint."""
    source: File | None = None
    """The file, where the checkpoint is one."""
    origin: Any = None
    """What the format keeps of the file for its own writer: the directory of an archive, say. None: nothing."""
    is_edited: bool = False
    """Whether the tree is another than that of the file."""
    close: Callable[[], None] = field(default=lambda: None, repr=False)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_unchanged(checkpoint: Checkpoint) -> None:
    """Raise UnreadableError when a file that the checkpoint's bytes come from was written to since it was opened."""
    found: dict[int, File] = {}
    todo = [storage.place for storage in checkpoint.storages]
    while todo:
        place = todo.pop()
        if isinstance(place, Range):
            if isinstance(place.source, File):
                found[id(place.source)] = place.source
        elif isinstance(place, Patched):
            todo += [place.base, *(piece for _, piece in place.pieces)]
        elif isinstance(place, Overlaid):
            todo += [place.of.storage.place, place.over.storage.place]
        elif place is not None:
            todo.append(place.of.storage.place)
    if checkpoint.source is not None:
        found[id(checkpoint.source)] = checkpoint.source
    for file in found.values():
        with about(checkpoint.path):
            file.check_unchanged()


def key_of(node: Node, index: int) -> str | int:
    """The step that a dict's key stands for in a path. `index` is its position among the keys."""
    if type(node) is str:
        return node
    if type(node) is int and -(2**63) <= node < 2**63:
        return node
    if isinstance(node, ByteStr):
        return (
            str(node) if node.isascii() else NamedKey(node.raw.decode("utf-8", "backslashreplace"), "bytes")
        )
    if isinstance(node, (bytes, bytearray)):
        return NamedKey(node[:100].decode("utf-8", "backslashreplace"), "bytes")
    if node is None or isinstance(node, (bool, float)):
        return NamedKey(repr(node), type(node).__name__)
    if type(node) is tuple and all(type(item) in (str, int, bool, float, type(None)) for item in node[:20]):
        if len(node) <= 20 and all(type(item) is not int or item.bit_length() < 512 for item in node):
            return NamedKey(f"({', '.join(map(repr, node))})", "tuple")
    if type(node) is Global:
        return NamedKey(node.qualified, "global")
    if type(node) is Opaque:
        if node.class_name == "_codecs.encode" and node.args and type(node.args[0]) is str:
            data = node.args[0][:100].encode("latin-1", "replace")  # how protocol 2 says bytes
            return NamedKey(data.decode("utf-8", "backslashreplace"), "bytes")
        what = "tensor" if node.meaning is not None else node.class_name.rpartition(".")[2]
        return NamedKey(f"<{what} {index}>", node.class_name)
    return NamedKey(f"<{type(node).__name__.lower()} {index}>", type(node).__name__.lower())
