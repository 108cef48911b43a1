"""The records of a zip archive whose directory is missing, damaged or contradicted by
the records.

A directory that can be read says what lies where, and its checksums prove it. Without
one, each record is followed from its own header: the pickle says how long the storages
are, and a descriptor or the deflated bytes say it of the others. Nothing is searched
inside of a record whose length is known, so an archive that a tensor holds is not taken
for the outer one. Layout: PKWARE APPNOTE 6.3, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from ckpt.bytes.source import Source
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import REFUSED_FLAGS, Record, Records
from ckpt.formats.common.holes import written_end
from ckpt.formats.common.pickled import run
from ckpt.formats.common.placed import FOLDERS, by_directory
from ckpt.formats.common.zip_layout import (
    CENTRAL_MAGIC,
    DESCRIPTOR,
    DESCRIPTOR64,
    DESCRIPTOR_MAGIC,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_MAGIC,
    MARK32,
    local_header,
    read_zip64,
)
from ckpt.model.account import Notice
from ckpt.model.errors import (
    CkptError,
    CutOffError,
    DamagedDataError,
    LimitError,
    UnreadableError,
)
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show
from ckpt.pickle.machine import Pickle, TruncatedPickleError
from ckpt.pickle.rebuild import storage_bytes, storage_type

_STEP = 1 << 20
"""Bytes that are read at once where the end of a record is looked for."""
_FIRST = 1 << 18
"""Bytes of a pickle that are read at first."""
_TEXTS = ("byteorder",)
"""Records that are read as they are, and that a file need not have."""
_CODE = "code/"
"""The folder of the code of a TorchScript program."""


def recovered(source: Source, limits: Limits, *, keep_damaged: bool = False) -> Archive:
    """The archive of the records that are whole, or whose first bytes are there. Raises
    UnreadableError, LimitError.

    A pickle that does not match its checksum is refused, or with `keep_damaged` a
    notice. All other checksums are compared when the bytes are used.
    """
    if source.size < 4 or source.read(0, 4) != LOCAL_MAGIC:
        raise UnreadableError("the zip archive does not begin with its first record")
    placed = by_directory(source, limits)
    cause = None if placed is None else placed.cause
    if placed is not None:
        rows = placed.records
    else:
        walk = _Walk(source, limits)
        rows = list(walk.list_records())
        misnamed = walk.misnamed([record.name for record in rows])
        rows = [record for record in rows if record.name not in misnamed]
    records = Records()
    seen: set[str] = set()
    for record in rows:
        if record.name in seen:
            problem = (
                f"duplicate record {show(record.name, 80)}: nothing says which one is "
                "meant"
            )
            raise UnreadableError(problem)
        seen.add(record.name)
        # No bytes, so nothing to compare.
        records.add(record if record.size else record._replace(crc=None))
    names = records.names
    roots = {
        name.partition("/")[0]
        for name in names
        if name.endswith("/data.pkl") and name.count("/") == 1
    }
    if not roots and cause is not None:
        raise DamagedDataError(f"{cause}, so its list of tensors (data.pkl) is lost")
    if not roots:
        problem = (
            f"cut off: the file ends at {source.size:,} bytes, before the end of its "
            "list of tensors (data.pkl)"
        )
        if names:
            verb = "has" if len(names) == 1 else "have"
            held = counted_noun(len(names), "whole record")
            problem += f", so {held} of it {verb} no names"
        raise CutOffError(problem)
    if len(roots) > 1:
        raise UnreadableError(
            "the archive has two roots: "
            + ", ".join(show(root, 60) for root in sorted(roots))
        )
    (root,) = roots
    archive = Archive(source, root, records, (), is_partial=True, cause=cause)
    damage = list(_damaged_pickles(archive, limits))
    if damage and not keep_damaged:
        raise DamagedDataError(damage[0], hint="--keep-damaged reads it all the same")
    sound = Records()
    for record in records.values():
        inner = record.name.partition("/")[2]
        is_code = inner.startswith(_CODE)
        # Storages are compared with their checksums when they are read.
        is_read_later = inner not in _TEXTS and not is_code
        if is_read_later or _is_sound(archive, record, limits):
            sound.add(record)
        elif is_code:
            damage.append(
                f"{show(inner, 80)} does not match its recorded checksum: the code is "
                "left out"
            )
    return archive._replace(
        records=sound, notices=tuple(Notice("damaged-file", text) for text in damage)
    )


def _is_sound(archive: Archive, record: Record, limits: Limits) -> bool:
    """Tell whether a record can be read, and its bytes match its checksum, if it has
    one.
    """
    try:
        data = archive.read(record, limits.pickle_bytes, "pickle-bytes")
    except LimitError:
        raise
    except CkptError:
        return False
    return record.crc is None or zlib.crc32(data) == record.crc


def _damaged_pickles(archive: Archive, limits: Limits) -> Iterator[str]:
    """Yield a sentence on each pickle that does not match its checksum."""
    for name in FOLDERS:
        record = archive.find(name)
        if record is None or record.crc is None or record.size > limits.pickle_bytes:
            continue
        data = archive.read(record, limits.pickle_bytes, "pickle-bytes")
        if zlib.crc32(data) != record.crc:
            yield (
                f"{name} does not match its recorded checksum: names, shapes and "
                "values in it may be wrong"
            )


# --- one record after the other -------------------------------------------------------


class _Head(NamedTuple):
    """A local header: its offset, the name of its record, the offset of the data, and
    what it says of the sizes.
    """

    header: int
    name: str
    offset: int
    flags: int
    method: int
    stored: int | None
    size: int | None
    crc: int | None


class _Walk:
    """Follows the records of an archive from its beginning, as far as each says where
    the next one begins.
    """

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source = source
        self._size = written_end(source)
        """The end of the bytes that were written: an unfinished download may end in
        zeros.
        """
        self._limits = limits
        self._sizes: dict[str, int] = {}
        """The bytes of the storages that the pickles so far name, by the names of their
        records below the root.
        """

    def list_records(self) -> Iterator[Record]:
        """Yield the records. What a rewrite in place appended behind the directory is
        none of them.
        """
        position: int | None = 0
        for _ in range(self._limits.entries):
            head = None if position is None else self._head(position)
            if head is None:
                return
            record, position = self._record_of_head(head)
            if record is not None:
                yield record

    def misnamed(self, names: Sequence[str]) -> set[str]:
        """Return the names of storages at the place of another one, where the storages
        follow an order but for few of them.

        torch writes storages by number, or by the text of the number, or as the pickle
        names them. A damaged name is the name of another storage, perhaps of one behind
        the cut.
        """
        keys = [name for name in names if name.partition("/")[2] in self._sizes]
        roots = dict.fromkeys(name.partition("/")[0] for name in keys)
        known = [f"{root}/{inner}" for root in roots for inner in self._sizes]
        candidates: list[set[str]] = []
        # As the pickle names them, by the text of the number (torch up to 2.6), and by
        # the number.
        for order in (known, sorted(known), sorted(known, key=natural_sort_key)):
            expected = order[: len(keys)]
            if set(expected) == set(keys):
                return set()
            pairs = zip(keys, expected, strict=False)
            wrong = {key for key, other in pairs if key != other}
            # An order of which most are wrong is not the one of this archive.
            if len(wrong) * 2 < len(keys):
                candidates.append(wrong)
        return min(candidates, key=len, default=set())

    def _head(self, position: int) -> _Head | None:
        """Return the local header at an offset, or None if there is none, or not all of
        it. Raises UnreadableError.
        """
        source = self._source
        begin = position + LOCAL.size
        if begin > self._size:
            return None
        header = local_header(source.read(position, LOCAL.size))
        if header.magic != LOCAL_MAGIC or position + header.nbytes > self._size:
            return None
        raw = source.read(begin, header.names)
        if header.flags & REFUSED_FLAGS or header.method not in (0, 8) or b"\0" in raw:
            return None
        extra = source.read(begin + header.names, header.extras)
        name = raw.decode("utf-8", "replace")
        head = _Head(
            header=position,
            name=name,
            offset=position + header.nbytes,
            flags=header.flags,
            method=header.method,
            stored=None,
            size=None,
            crc=None,
        )
        # Else its sizes and its checksum follow the data.
        if header.flags & HAS_DESCRIPTOR:
            return head
        size = header.full
        stored = header.stored
        if MARK32 in (stored, size):
            size, stored, _ = read_zip64(extra, size, stored, 0, name)
        return head._replace(stored=stored, size=size, crc=header.crc)

    def _record_of_head(self, head: _Head) -> tuple[Record | None, int | None]:
        """(the record of a header, the offset of the next header). Without the latter
        nothing more is found.
        """
        inner = head.name.partition("/")[2]
        if head.stored is not None and head.size is not None:
            record = self._record_with_sizes(head, head.stored, head.size)
            if record is not None and inner in FOLDERS and record.stored == head.stored:
                self._learn_from_record(inner, record)
            done = record is not None and record.stored == head.stored
            return record, head.offset + head.stored if done else None
        if head.method == 8:
            return self._deflated_record(head, inner)
        if inner in FOLDERS:
            return self._pickle(head, inner)
        if inner in self._sizes:
            return self._record_of_known_size(head, self._sizes[inner])
        return self._search_record(head)

    def _record_with_sizes(self, head: _Head, stored: int, size: int) -> Record | None:
        """The record whose header has its sizes. Of one that is cut off and not
        deflated, what is there.
        """
        # A checksum of 0 is none, but for an empty record.
        crc = head.crc if head.crc or not size else None
        if head.offset + stored > self._size:
            # Of deflated data the first bytes are worth nothing.
            return None if head.method else self._cut(head)
        if head.method == 0 and stored != size:
            return None
        return Record(
            head.name,
            head.offset,
            stored,
            size,
            head.method == 8,
            crc,
            head.header,
            head.flags,
        )

    def _cut(self, head: _Head) -> Record | None:
        """The record whose end the file lacks. In front of zeros it is none: they may
        begin anywhere in it.
        """
        if self._size < self._source.size:
            return None
        there = self._size - head.offset
        return Record(
            head.name, head.offset, there, there, False, None, head.header, head.flags
        )

    def _record_of_known_size(
        self, head: _Head, size: int
    ) -> tuple[Record | None, int | None]:
        """A storage of `size` bytes. What follows it must be its descriptor, or the end
        of the file within that.
        """
        end = head.offset + size
        if end > self._size:
            return self._cut(head), None
        if self._is_last(head, end):
            return self._stored_record(head, size, None), None
        descriptor = self._read_descriptor(head, end)
        if descriptor is None:
            # A record may be longer than its storage.
            return self._search_record(head)
        crc, after = descriptor
        return self._stored_record(head, size, crc), after

    def _stored_record(self, head: _Head, size: int, crc: int | None) -> Record:
        return Record(
            head.name,
            head.offset,
            size,
            size,
            False,
            crc or None,
            head.header,
            head.flags,
        )

    def _read_descriptor(self, head: _Head, end: int) -> tuple[int, int] | None:
        """Return (checksum, offset of the next record) of a record that ends at `end`,
        or None if it does not end there.
        """
        size = end - head.offset
        tail = self._source.read(end, min(DESCRIPTOR64.size, self._size - end))
        # An empty record has no descriptor.
        if not size and tail[:4] in (LOCAL_MAGIC, CENTRAL_MAGIC):
            return 0, end
        for form in (DESCRIPTOR64, DESCRIPTOR):
            if len(tail) >= form.size and tail.startswith(DESCRIPTOR_MAGIC):
                _, crc, stored, full = form.unpack_from(tail)
                if (stored, full) == (size, size):
                    return crc, end + form.size
        return None

    def _is_last(self, head: _Head, end: int) -> bool:
        """Tell whether the file ends within the descriptor of a record that ends at
        `end`. Zeros are no end of a file.
        """
        if self._size < self._source.size:
            return False
        rest = self._size - end
        is_wide = end - head.offset >= MARK32 or head.header >= MARK32
        descriptor = DESCRIPTOR64 if is_wide else DESCRIPTOR
        if rest >= descriptor.size:
            return False
        return DESCRIPTOR_MAGIC.startswith(self._source.read(end, min(rest, 4)))

    def _search_record(self, head: _Head) -> tuple[Record | None, int | None]:
        """A record of unknown size: it ends where a descriptor gives the size and the
        checksum that it has there.
        """
        source = self._source
        begin = head.offset
        descriptor = self._read_descriptor(head, begin)
        if descriptor is not None:
            _, after = descriptor
            return self._stored_record(head, 0, None), after
        crc = 0
        summed = begin
        for position in range(begin, self._size, _STEP):
            # Three bytes more: the magic may lie across two steps.
            data = source.read(position, min(_STEP + 3, self._size - position))
            mark = data.find(DESCRIPTOR_MAGIC)
            while mark >= 0:
                end = position + mark
                descriptor = self._read_descriptor(head, end)
                if descriptor is not None:
                    # No byte is summed twice: a file may be full of descriptors.
                    while summed < end:
                        step = min(_STEP, end - summed)
                        crc = zlib.crc32(source.read(summed, step), crc)
                        summed += step
                    recorded_crc, after = descriptor
                    if self._is_end(recorded_crc, crc, after):
                        record = self._stored_record(head, end - begin, recorded_crc)
                        return record, after
                mark = data.find(DESCRIPTOR_MAGIC, mark + 1)
        return None, None

    def _is_end(self, recorded_crc: int, crc: int, after: int) -> bool:
        """Tell whether a descriptor with a checksum, which ends at `after`, is one of
        bytes with the checksum `crc`.
        """
        if recorded_crc == crc:
            return True
        # torch writes 0 where it computes no checksum: then a record, or the directory,
        # must follow.
        following = self._source.read(after, min(4, self._size - after))
        return recorded_crc == 0 and following in (LOCAL_MAGIC, CENTRAL_MAGIC)

    def _deflated_record(
        self, head: _Head, inner: str
    ) -> tuple[Record | None, int | None]:
        """A deflated record of unknown size, which ends where its stream does. A
        storage holds no more than its size.
        """
        most = self._sizes.get(inner, self._limits.pickle_bytes)
        # A negative number: without the header and the checksum of zlib.
        machine = zlib.decompressobj(-15)
        position = head.offset
        size = 0
        crc = 0
        try:
            while not machine.eof and position < self._size:
                data = self._source.read(position, min(_STEP, self._size - position))
                position += len(data)
                while data and not machine.eof:
                    inflated = machine.decompress(data, _STEP)
                    size += len(inflated)
                    crc = zlib.crc32(inflated, crc)
                    if size > most:
                        return None, None
                    data = machine.unconsumed_tail
        except zlib.error:
            return None, None
        if not machine.eof:
            return None, None
        stored = position - len(machine.unused_data) - head.offset
        record = Record(
            head.name, head.offset, stored, size, True, crc, head.header, head.flags
        )
        if inner in FOLDERS:
            self._learn_from_record(inner, record)
        return record, self._behind_descriptor(head.offset + stored, stored, size)

    def _behind_descriptor(self, end: int, stored: int, size: int) -> int | None:
        """The offset behind the descriptor of a deflated record."""
        tail = self._source.read(end, min(DESCRIPTOR64.size, self._size - end))
        # The standard lets out the magic: then zeros stand for it.
        for missing in (0, len(DESCRIPTOR_MAGIC)):
            data = bytes(missing) + tail
            for form in (DESCRIPTOR64, DESCRIPTOR):
                if len(data) < form.size:
                    continue
                _, _, its_stored, its_size = form.unpack_from(data)
                if (its_stored, its_size) == (stored, size):
                    return end + form.size - missing
        return None

    def _pickle(self, head: _Head, inner: str) -> tuple[Record | None, int | None]:
        """A pickle, which ends before its descriptor, or in a file that ends sooner, at
        its STOP.
        """
        record, after = self._search_record(head)
        if record is not None:
            self._learn_from_record(inner, record)
            return record, after
        found = pickle_at(self._source, head.offset, self._limits)
        if found is None:
            return None, None
        _, length = found
        if not self._is_last(head, head.offset + length):
            return None, None
        return self._stored_record(head, length, None), None

    def _learn_from_record(self, inner: str, record: Record) -> None:
        """Learn the sizes of storages from the pickle of a record that is whole."""
        archive = Archive(self._source, "", Records(), (), is_partial=True)
        data = archive.read_pickle(
            record, self._limits, Budget(self._limits, record.stored)
        )
        try:
            self._learn_from_pickle(inner, run(data, self._limits))
        except LimitError:
            raise
        except CkptError:
            # Whoever reads it says why.
            return

    def _learn_from_pickle(self, inner: str, pickle: Pickle) -> None:
        for persistent in pickle.persistent:
            pid = persistent.pid
            if type(pid) is tuple and len(pid) >= 5 and isinstance(pid[2], (str, int)):
                nbytes = storage_bytes(storage_type(pid[1]), pid[4])
                for folder in FOLDERS[inner]:
                    self._sizes.setdefault(f"{folder}/{pid[2]}", nbytes)


def pickle_at(
    source: Source, begin: int, limits: Limits, size: int = _FIRST
) -> tuple[Pickle, int] | None:
    """Return (the pickle at an offset, its length), or None if it is cut off. `size`
    bytes are read at first.
    """
    while True:
        data = source.read(begin, min(size, source.size - begin, limits.pickle_bytes))
        try:
            pickle = run(data, limits)
        except TruncatedPickleError:
            # All that the file has, or the limit allows, was read.
            if len(data) < size:
                return None
            size *= 4
            continue
        return pickle, pickle.end
