"""The items of `.distcp` files: each is a whole archive of torch.save, with one tensor
or one object.

An item is opened when its bytes are needed. What it holds must be what `.metadata` says
of it.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from typing import Protocol

from ckpt.bytes.far import Reading
from ckpt.bytes.source import BaseSource, Memory, Source, Window, underlying_file
from ckpt.ext.dcp.alike import Alike
from ckpt.formats.common.archive import Archive, read_archive
from ckpt.formats.common.pickled import Contents, interpret_pickle, run
from ckpt.formats.common.storages import StorageFolder, byteorder_of, refuse_program
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.zip_layout import LOCAL_MAGIC
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Origin
from ckpt.model.dtypes import DType
from ckpt.model.errors import (
    CkptError,
    CutOffError,
    DamagedDataError,
    UnreadableError,
    UnsupportedError,
)
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import replace
from ckpt.model.tensors import TensorRef
from ckpt.model.text import show

_AT_ONCE = 64 << 10
"""An item of at most this many bytes is read at once."""
_EDGE = 8 << 10
"""More bytes than the archive of a tensor has before its elements, and behind them."""
_AROUND = 64 << 10
"""More bytes than the archive of a tensor has beside its elements: 1.5 kB, and its
directory.
"""


class Bytes:
    """The place of an item: `length` bytes at `offset` of a file, encoded by `codecs`.

    `what` names it for people.
    """

    __slots__ = ("codecs", "length", "offset", "source", "what")

    def __init__(
        self,
        source: Source,
        offset: int,
        length: int,
        what: str,
        codecs: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.offset = offset
        self.length = length
        self.what = what
        self.codecs = codecs

    def archive(self, limits: Limits, most: int, *, whole: bool = False) -> Archive:
        """The archive of the item, which decodes to `most` bytes at most. With `whole`
        a small one is read at once.

        Raises UnreadableError, NotOpenedError.
        """
        # A view of the item's bytes: offsets in its archive count from its beginning.
        window: Source = Window(self.source, self.offset, self.length, self.source.name)
        if self.source.far is not None:
            self._fetch()
        if whole and self.length <= _AT_ONCE:
            window = Memory(window.read(0, self.length))
        # Decoded bytes are bounded by what the tensor may have.
        if self.codecs:
            window = decode_item(window, self.what, self.codecs, most)
        if window.size < 4 or window.read(0, 4) != LOCAL_MAGIC:
            raise DamagedDataError(
                f"{self.what} is damaged: no archive begins at byte {self.offset:,} of "
                "its file"
            )
        archive = read_archive(window, limits)
        # No save leaves any: the length of the item is another one's.
        if archive.trailing:
            raise UnreadableError(
                f"{self.what}: {archive.trailing:,} bytes follow its archive"
            )
        return archive

    def is_short(self) -> bool:
        """Tell whether all its bytes are there, as they are, and so few that they may
        be read at once.
        """
        # A codec needs the whole item, in order.
        return (
            not self.codecs
            and self.length <= _AT_ONCE
            and self.offset + self.length <= self.source.size
        )

    def reads(self) -> Iterator[Reading]:
        """Its bytes."""
        yield self.source, self.offset, self.offset + self.length

    def _fetch(self) -> None:
        """Ask for what opening the item reads, in one or two requests: its ends, and
        the beginning of the next item.
        """
        # One request for a small item; two for a large one, whose elements nobody asked
        # for.
        end = min(self.offset + self.length, self.source.size)
        if self.length <= _AT_ONCE:
            self.source.read(self.offset, end - self.offset)
        else:
            behind = min(end + _EDGE, self.source.size)
            self.source.read_many(
                [(self.offset, _EDGE), (end - _EDGE, behind - end + _EDGE)]
            )


class Placement(Origin):
    """The way in which the data of a checkpoint lies, or is to lie.

    `names` are the data files of one that was read, and `objects` what its items hold
    beside tensors: a new `.metadata` may name them again. `ranks` asks for new files,
    as many as so many ranks would write. With `link` the files that stay whole are
    linked. `is_flattened` says that dicts are taken apart.
    """

    __slots__ = ("is_flattened", "link", "names", "objects", "ranks")

    def __init__(
        self,
        names: Iterable[tuple[Source, str]] = (),
        objects: Iterable[tuple[Node, Bytes]] = (),
        *,
        ranks: int | None = None,
        link: bool = False,
        is_flattened: bool = True,
    ) -> None:
        self.names = tuple(names)
        self.objects = tuple(objects)
        self.ranks = ranks
        self.link = link
        self.is_flattened = is_flattened


def placed(checkpoint: Checkpoint, ranks: int | None, *, link: bool) -> Checkpoint:
    """Return a checkpoint whose data is to lie in new files of `ranks` ranks.

    Without `ranks` the data stays where it lies, as far as it can.
    """
    # New files know nothing of the old ones.
    old = checkpoint.origin if ranks is None else None
    placement = Placement(ranks=ranks)
    if isinstance(old, Placement):
        placement = Placement(
            old.names, old.objects, link=link, is_flattened=old.is_flattened
        )
    return replace(checkpoint, origin=placement)


def read_object(item: Bytes, contents: Contents, limits: Limits, key: str) -> Node:
    """The object of an item. The ids of its storages begin with `key`. Raises
    CkptError.
    """
    budget = contents.budget or Budget(limits)
    # The object is a pickle, and costs more memory than its bytes.
    budget.hold(item.length)
    archive = item.archive(limits, budget.parsed, whole=True)
    if item.codecs:
        budget.parse(archive.nbytes)
    return _read_root(archive, contents, limits, key, budget)


def most_of(dtype: DType, shape: tuple[int, ...]) -> int:
    """The most bytes that the item of a tensor may decode to."""
    return (prod(shape) * dtype.bits + 7) // 8 + _AROUND


def part_itself(part: Bytes) -> Bytes:
    """Return the place of an item that is known already: a function of a module, which
    another process finds too.
    """
    return part


def _raise_loss(error: CkptError) -> Bytes:
    raise error


def _read_root(
    archive: Archive, contents: Contents, limits: Limits, key: str, budget: Budget
) -> Node:
    record = archive.find("data.pkl")
    if record is None:
        raise DamagedDataError("the item has no data.pkl")
    # An archive of TorchScript runs its code when torch.load opens it.
    try:
        refuse_program(archive, "the item")
    except UnreadableError:
        text = (
            "DANGER: loading an item of this checkpoint runs the code of a TorchScript "
            "archive."
        )
        contents.notices.append(Notice("code-inside", text))
        raise
    pickle = run(archive.read_pickle(record, limits, budget), limits, budget)
    folder = StorageFolder(
        archive, "data", contents, key, big=byteorder_of(archive) == "big"
    )
    interpret_pickle(pickle, contents, limits, folder.resolve, 0)
    return pickle.root


class TensorItem:
    """The item of one chunk: a tensor of a known dtype and shape. `find` says where the
    item lies.

    `alike` has the archives that were read of other items.
    """

    __slots__ = ("_alike", "_dtype", "_find", "_limits", "_ref", "_shape")

    def __init__(
        self,
        find: Callable[[], Bytes],
        dtype: DType,
        shape: tuple[int, ...],
        limits: Limits,
        alike: Alike | None = None,
    ) -> None:
        self._find = find
        self._dtype = dtype
        self._shape = shape
        self._limits = limits
        self._alike = alike
        self._ref: TensorRef | None = None

    # Pickled with its place, without its file's reader: a task may run in another
    # process.
    def __reduce__(self) -> tuple[object, ...]:
        try:
            find = partial(part_itself, self._find())
        # The error goes along: the task raises it where it needs the bytes.
        except CkptError as error:
            find = partial(_raise_loss, error)
        return TensorItem, (find, self._dtype, self._shape, self._limits)

    def find(self) -> Bytes:
        """Return the place of the item. Raises UnreadableError if its file is missing
        or ends before it.
        """
        return self._find()

    @property
    def source(self) -> Source:
        return self._find().source

    def find_file(self) -> str:
        return self._find().source.name

    def reads(self) -> Iterator[Reading]:
        """The bytes of the item; once it is open, of its elements alone."""
        # Opening needs the ends, reading the elements alone.
        yield from self._find().reads() if self._ref is None else self._ref.reads()

    def tensor(self) -> TensorRef:
        """The tensor. Raises DamagedDataError where the item holds something else."""
        if self._ref is None:
            self._ref = self._read()
        return self._ref

    def _read(self) -> TensorRef:
        item = self._find()
        what = item.what
        file, base = underlying_file(item.source, item.offset)
        data = b""
        # Most small items differ in nothing but their elements: their archives are not
        # parsed again.
        if self._alike is not None and item.is_short():
            data = item.source.read(item.offset, item.length)
            known = self._alike.tensor(self._dtype, self._shape, data, file, base)
            if known is not None:
                return known
        try:
            archive = item.archive(self._limits, most_of(self._dtype, self._shape))
            budget = Budget(self._limits, item.length)
            contents = Contents((), read_nested, "", budget)
            tensor = tensor_of(_read_root(archive, contents, self._limits, "", budget))
        except CutOffError as error:
            raise CutOffError(f"{what}: {error.problem}", path=error.path) from None
        except DamagedDataError as error:
            text = error.problem
            if not text.startswith(what):
                text = f"{what}: {text}"
            raise DamagedDataError(text, path=error.path) from None
        except CkptError as error:
            if error.path is None and not error.problem.startswith(what):
                error.problem = f"{what}: {error.problem}"
            raise
        if not isinstance(tensor, TensorRef):
            raise DamagedDataError(f"{what} is not a tensor, .metadata says that it is")
        # torch believes `.metadata`, and would read the bytes as another type.
        if tensor.dtype != self._dtype or tensor.shape != self._shape:
            holds = f"{tensor.dtype.name} {list(tensor.shape)}"
            recorded = f"{self._dtype.name} {list(self._shape)}"
            raise DamagedDataError(f"{what} holds {holds}, .metadata says {recorded}")
        if self._alike is not None and data:
            self._alike.keep(data, archive, tensor, base)
        return tensor


ZSTD = "stream.zstd/1"
_BLOCK = 256 << 10
_KEPT = 4
"""So many of the last blocks are kept: an archive is read from its end, and then from
its start on.
"""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


Open = Callable[[io.RawIOBase], _Stream]
"""A stream of decoded bytes over one of encoded bytes."""


def decode_item(
    source: Source, what: str, codecs: tuple[str, ...], most: int
) -> Source:
    """The decoded bytes of an item: in memory where they are few, else decoded again as
    they are read.

    Raises UnsupportedError where nothing decodes zstd, UnreadableError for other
    codecs, DamagedDataError where the bytes are no frame, or more than `most`.
    """
    # One codec is known; torch applies several in their order.
    if codecs != (ZSTD,):
        listed = ", ".join(show(codec, 40) for codec in codecs[:4])
        raise UnreadableError(f"{what} is encoded by {listed}")
    opened = _find_decoder()
    if opened is None:
        raise UnsupportedError(
            f"{what} is compressed with zstd: pip install zstandard to read it"
        )
    stream = _Decoded(source, what, opened, most)
    # Small ones are decoded once.
    return Memory(stream.read(0, stream.size)) if stream.size <= _BLOCK else stream


def _find_decoder() -> Open | None:
    """Return the function that opens a zstd stream, or None.

    It comes from Python's own module, its backport, or the package that torch uses.
    """
    try:
        # Python 3.14 has the module, older versions its backport.
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            try:
                import zstandard
            except ImportError:
                return None

            def opened(raw: io.RawIOBase) -> _Stream:
                stream: _Stream = zstandard.ZstdDecompressor().stream_reader(raw)
                return stream

            return opened

    def framed(raw: io.RawIOBase) -> _Stream:
        stream: _Stream = zstd.ZstdFile(raw)
        return stream

    return framed


class _Raw(io.RawIOBase):
    """The bytes of a source from its start on, as a stream."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        count = min(len(view), self._source.size - self._at)
        self._source.read_into(self._at, view[:count])
        self._at += count
        return count


class _Decoded(BaseSource):
    """The decoded bytes of a stream.

    Its size is found by decoding it once; a read before the last one decodes it again.
    """

    def __init__(self, source: Source, what: str, opened: Open, most: int) -> None:
        self.name = source.name
        self._outer = source
        self._what = what
        self._open = opened
        # Two threads must not decode one stream at once.
        self._lock = threading.Lock()
        self._most = most
        self._begin_stream()
        # Decoded once for its size: a frame of zstd need not record it.
        while self._decode_block():
            pass
        self.size = self._end

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        parts: list[bytes] = []
        # A read before the blocks that are kept starts again.
        with self._lock:
            if offset < self._first:
                self._begin_stream()
            while count:
                position = self._first
                for block in self._blocks:
                    if position <= offset < position + len(block) and count:
                        part = block[offset - position : offset - position + count]
                        parts.append(part)
                        offset += len(part)
                        count -= len(part)
                    position += len(block)
                if count and not self._decode_block():
                    raise DamagedDataError(
                        f"{self._what} is damaged: it decodes to fewer bytes than "
                        "before"
                    )
        return b"".join(parts)

    def check_unchanged(self) -> None:
        self._outer.check_unchanged()

    def _begin_stream(self) -> None:
        self._stream = self._open(_Raw(self._outer))
        self._blocks: deque[bytes] = deque(maxlen=_KEPT)
        self._end = 0

    @property
    def _first(self) -> int:
        """The offset of the first byte that is kept."""
        return self._end - sum(map(len, self._blocks))

    def _decode_block(self) -> bool:
        """Decode one more block; False at the end."""
        try:
            block = self._stream.read(_BLOCK)
        # each decoder has an error of its own; those of the source are no damage
        except Exception as error:
            if isinstance(error, (UnreadableError, OSError)):
                raise
            raise DamagedDataError(
                f"{self._what} is damaged: it is no whole zstd frame"
            ) from None
        if not block:
            return False
        self._blocks.append(block)
        self._end += len(block)
        # A few kilobytes may decode to gigabytes.
        if self._end > self._most:
            raise DamagedDataError(
                f"{self._what} decodes to more than {self._most:,} bytes"
            )
        return True
