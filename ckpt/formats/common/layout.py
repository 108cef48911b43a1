"""Writing a zip archive exactly as torch's own writer does: uncompressed records,
aligned by padding, sizes and checksums after the data, zip64 where it is needed.

Layout: caffe2/serialize/inline_container.cc and miniz, the same from torch 1.6 to 2.13.
All sizes and positions are known before the first byte is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import pack
from zlib import crc32

from ckpt.bytes.disk import PAGE
from ckpt.bytes.far import Reading, iterate_ahead, readings_of
from ckpt.bytes.source import Extended
from ckpt.bytes.target import MemorySink, Sink
from ckpt.elements.blocks import pour
from ckpt.elements.computed import little_endian_storage
from ckpt.formats.common.archive import MARK, Archive, read_archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.writing import Keys, to_bytes
from ckpt.formats.common.zip_layout import (
    CENTRAL,
    CENTRAL_MAGIC,
    DESCRIPTOR,
    DESCRIPTOR64,
    DESCRIPTOR_MAGIC,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    LOCATOR_MAGIC,
    MARK16,
    MARK32,
    CentralHeader,
    EndRecord,
    EndRecord64,
    LocalHeader,
    Locator,
    zip64_field,
)
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage
from ckpt.pickle.emit import emit_pickle

# kFieldAlignment of torch (caffe2/serialize/inline_container.h).
ALIGNMENT = 64


class PlannedRecord(NamedTuple):
    """A record to be written: `pour` writes its `size` bytes and returns their CRC-32.

    `like` is the position modulo PAGE that its data should have; None when the
    alignment alone decides. `inflated` is the size of a deflated record's content; its
    CRC-32 belongs to the inflated bytes.
    """

    name: str
    size: int
    pour: Callable[[Sink], int]
    like: int | None = None
    inflated: int | None = None
    of: Storage | None = None
    """The storage that is poured. A record is read where that is."""

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for it."""
        if self.of is not None:
            yield from self.of.reads()


class WrittenRecord(NamedTuple):
    """A record as the directory describes it. `header` is the offset of its local
    header.
    """

    name: bytes
    size: int
    crc: int
    header: int
    method: int = 0
    stored: int | None = None
    flags: int | None = None


class Layout(NamedTuple):
    """The position of every record. `headers` and `pads` go with `records`; `size` is
    the archive's.
    """

    records: Sequence[PlannedRecord]
    headers: list[int]
    pads: list[int]
    size: int
    regular: bool
    """A flag: all padding after the first storage follows torch's own rule. Computed
    offsets rely on it.
    """

    def write(self, sink: Sink) -> None:
        """Write the archive at the position of a sink, which need not be the beginning
        of its file.
        """
        start = sink.position
        written: list[WrittenRecord] = []
        for record, header, pad in zip(
            iterate_ahead(self.records), self.headers, self.pads, strict=True
        ):
            written.append(write_record(sink, record, header, pad))
        write_directory(sink, written, start)

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for its records."""
        yield from readings_of(self.records)


def bytes_record(name: str, data: bytes) -> PlannedRecord:
    """A record of bytes that are in memory."""

    def pour(sink: Sink) -> int:
        sink.write(data)
        return crc32(data)

    return PlannedRecord(name, len(data), pour)


def lay_out(records: Sequence[PlannedRecord], alignment: int = ALIGNMENT) -> Layout:
    """The layout of an archive of these records."""
    position = 0
    headers: list[int] = []
    pads: list[int] = []
    is_regular = True
    has_storage = False
    for record in records:
        headers.append(position)
        begin = position + _head_size(record, position)
        pad = -begin % alignment
        if record.like is not None:
            # A position that torch would not give cannot be kept.
            if record.like % alignment == 0:
                wanted = (record.like - begin) % PAGE
                # torch reads where the first storage lies, and computes where all
                # others are from it.
                if wanted != pad and has_storage:
                    is_regular = False
                pad = wanted
            has_storage = True
        pads.append(pad)
        position = begin + pad + record.size + _descriptor_size(record.size, position)
    directory = [
        WrittenRecord(
            name=record.name.encode(),
            size=record.inflated or record.size,
            crc=0,
            header=header,
            stored=record.size,
        )
        for record, header in zip(records, headers, strict=True)
    ]
    size = position + directory_size(directory)
    return Layout(records, headers, pads, size, is_regular)


def _head_size(record: PlannedRecord, header: int) -> int:
    """The bytes of a local header with the name, before the padding in its last extra
    field.
    """
    name = len(record.name.encode())
    return LOCAL.size + name + _zip64_local(record.size, header) + _FIELD_HEAD


_FIELD_HEAD = 4
"""The bytes of the tag and the length of an extra field."""


def write_record(
    sink: Sink, record: PlannedRecord, header: int, pad: int, mark: bytes = b""
) -> WrittenRecord:
    """Write one record at the sink's position, which is `header`, with `pad` bytes of
    padding.

    `mark` is one more extra field of its local header. Loaders skip it.
    """
    name = record.name.encode()
    size = record.size
    method = 0 if record.inflated is None else 8
    wide_numbers: list[int] = []
    if size >= MARK32:
        # The size, and 0 for the stored size: so does miniz, byte for byte.
        wide_numbers += [size, 0]
    if header >= MARK32:
        wide_numbers.append(header)
    # torch pads with a field `FB` full of Z (inline_container.cc).
    padding = pack("<2sH", b"FB", pad) + b"Z" * pad
    extra = mark + zip64_field(wide_numbers) + padding
    # Sizes and checksum are 0 here: the flags say that they follow the data.
    head = LocalHeader(
        magic=LOCAL_MAGIC,
        needs=_needed_version(method),
        flags=_record_flags(size),
        method=method,
        time=0,
        crc=0,
        stored=0,
        full=0,
        names=len(name),
        extras=len(extra),
    )
    sink.write(head.as_bytes() + name + extra)
    crc = record.pour(sink)
    full = size if record.inflated is None else record.inflated
    if size:
        # miniz writes the wide descriptor also where the offset alone is wide.
        form = DESCRIPTOR64 if size >= MARK32 or header >= MARK32 else DESCRIPTOR
        sink.write(form.pack(DESCRIPTOR_MAGIC, crc, size, full))
    return WrittenRecord(name, full, crc, header, method, size, _record_flags(size))


def padding_size(record: PlannedRecord, header: int, mark: bytes = b"") -> int:
    """The padding that aligns the data of a record whose local header is at
    `header`.
    """
    return -(header + len(mark) + _head_size(record, header)) % ALIGNMENT


def write_directory(
    sink: Sink, written: Sequence[WrittenRecord], start: int = 0
) -> None:
    """Write the central directory and the end records at the sink's position. The
    archive begins at `start`.
    """
    begin = sink.position - start
    for row in written:
        stored = row.size if row.stored is None else row.stored
        values = (row.size, stored, row.header)
        # Only those that do not fit, in this order; each has a mark in its own field.
        extra = zip64_field([value for value in values if value >= MARK32])
        entry = CentralHeader(
            magic=CENTRAL_MAGIC,
            made_by=0,
            needs=_needed_version(row.method),
            flags=_record_flags(row.size) if row.flags is None else row.flags,
            method=row.method,
            time=0,
            crc=row.crc,
            stored=min(stored, MARK32),
            full=min(row.size, MARK32),
            names=len(row.name),
            extras=len(extra),
            comments=0,
            disk=0,
            internal=0,
            attributes=0,
            header=min(row.header, MARK32),
        )
        sink.write(entry.as_bytes() + row.name + extra)
    end = sink.position - start
    count = len(written)
    size = end - begin
    # torch writes the records of zip64 always, also of small archives.
    record64 = EndRecord64(
        magic=END64_MAGIC,
        length=END64.size - 12,  # counted from behind itself
        made_by=0x031E,  # Unix and version 3.0, as miniz writes it
        needs=0x2D,  # version 4.5, the first with zip64
        disk=0,
        start=0,
        here=count,
        entries=count,
        size=size,
        offset=begin,
    )
    locator = Locator(LOCATOR_MAGIC, 0, end, 1)
    record = EndRecord(
        magic=END_MAGIC,
        disk=0,
        start=0,
        here=min(count, MARK16),
        entries=min(count, MARK16),
        size=min(size, MARK32),
        offset=min(begin, MARK32),
        comments=0,
    )
    sink.write(record64.as_bytes() + locator.as_bytes())
    sink.write(record.as_bytes())


def directory_size(written: Sequence[WrittenRecord]) -> int:
    """Count the bytes that `write_directory` writes."""
    total = END64.size + LOCATOR.size + END.size
    for row in written:
        stored = row.size if row.stored is None else row.stored
        wide = sum(value >= MARK32 for value in (row.size, stored, row.header))
        extra = _FIELD_HEAD + 8 * wide if wide else 0
        total += CENTRAL.size + len(row.name) + extra
    return total


def _needed_version(method: int) -> int:
    """The version that a reader needs, as miniz writes it: 2.0 for a deflated
    record.
    """
    return 20 if method else 0


def _record_flags(size: int) -> int:
    # The name is UTF-8; and sizes follow the data, of which an empty record has none.
    return 0x0808 if size else 0x0800


def _zip64_local(size: int, header: int) -> int:
    """The bytes of the field of zip64 in a local header."""
    wide = 16 * (size >= MARK32) + 8 * (header >= MARK32)
    return _FIELD_HEAD + wide if wide else 0


def _descriptor_size(size: int, header: int) -> int:
    if not size:
        return 0
    return (DESCRIPTOR64 if size >= MARK32 or header >= MARK32 else DESCRIPTOR).size


# --- records of checkpoints -----------------------------------------------------------

_LARGE = 1 << 20


def archive_of(root: Node, limits: Limits) -> tuple[Layout, bytes, tuple[Storage, ...]]:
    """The archive that torch.save writes for an object, its pickle, and its storages.
    Raises LimitError.
    """
    keys = Keys(())
    pickle = emit_pickle(root, keys, to_bytes, limits)
    storages = tuple(keys.storages.values())
    keys.storages = {
        key: little_endian_storage(storage) for key, storage in keys.storages.items()
    }
    return lay_out(fresh_records(b"little", pickle, keys)), pickle, storages


def appended_records(
    archive: Archive, pickles: dict[str, bytes], limits: Limits
) -> tuple[bytes, bytes, Archive]:
    """The records that replace some of an archive, its new directory, and the archive
    with both at its end.

    `data.pkl` comes first: its mark says where the old archive ends.
    """
    start = archive.source.size
    mark = pack("<2sHQ", MARK, 8, start)
    sink = MemorySink(start)
    new: list[WrittenRecord] = []
    for name, data in pickles.items():
        planned = bytes_record(f"{archive.root}/{name}", data)
        header = sink.position
        pad = padding_size(planned, header, mark)
        new.append(write_record(sink, planned, header, pad, mark))
        mark = b""
    records = sink.taken()
    replaced = {row.name.decode() for row in new}
    # The old records stay in the file as dead bytes. Only the new directory, which is
    # written last, does not name them.
    kept = [
        _kept_record(row)
        for name, row in archive.records.items()
        if name not in replaced
    ]
    write_directory(sink, [*kept, *new])
    directory = sink.taken()
    whole = Extended(archive.source, records + directory)
    return records, directory, read_archive(whole, limits)


_SMALL = 4096
"""The most bytes of a record that says how an archive was written."""
VERSION = b"3\n"
"""The record `version` of torch.save."""


def fresh_records(order: bytes, pickle: bytes, keys: Keys) -> list[PlannedRecord]:
    """The records of a new archive, as torch.save names them."""
    records = [
        bytes_record("archive/data.pkl", pickle),
        bytes_record("archive/byteorder", order),
    ]
    records += [
        storage_record(f"archive/data/{key}", storage)
        for key, storage in keys.storages.items()
    ]
    return [*records, bytes_record("archive/version", VERSION)]


def storage_record(
    name: str, storage: Storage, like: int | None = None
) -> PlannedRecord:
    """The record of a storage; `like` is the position modulo PAGE that its data should
    have.
    """
    run = None if storage.place is None else storage.place.run
    if like is None and run is not None and storage.nbytes >= _LARGE:
        # A gap is worth it, because the copy is faster.
        like = run.offset
    return PlannedRecord(
        name,
        storage.nbytes,
        lambda sink: pour(storage, sink, crc=True),
        like,
        of=storage,
    )


def is_sound(archive: Archive, record: Record) -> bool:
    """Tell whether a record is small, and its bytes match its checksum, if it
    has one.
    """
    if record.size > _SMALL:
        return False
    if record.crc is None:
        return True
    return crc32(archive.read(record, _SMALL, "entries")) == record.crc


def copied_record(archive: Archive, record: Record) -> PlannedRecord:
    """A record that ckpt does not write itself, with its own bytes. A deflated one is
    inflated.
    """
    place = record.place(archive.source)
    whole = Storage(record.name, None, None, record.size, place, record.crc)
    return PlannedRecord(
        record.name, record.size, lambda sink: pour(whole, sink, crc=True), of=whole
    )


def _kept_record(record: Record) -> WrittenRecord:
    """A record that stays where it is. A CRC of 0 still means "not recorded"."""
    return WrittenRecord(
        record.name.encode(),
        record.size,
        record.crc or 0,
        record.header,
        8 if record.deflated else 0,
        record.stored,
        record.flags,
    )


def alignment_of(archive: Archive) -> int:
    """The alignment of the storages of an archive, in bytes."""
    record = archive.find(".storage_alignment")
    if record is None or record.size >= 8:
        return ALIGNMENT
    # Reading compares no checksums of a partial archive.
    if archive.is_partial and not is_sound(archive, record):
        return ALIGNMENT
    text = archive.read(record, 8, "entries")
    if text.isdigit() and 0 < int(text) <= 4096:
        return int(text)
    return ALIGNMENT
