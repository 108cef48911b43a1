"""Reads the directory of a zip archive as torch does, but more strictly: it refuses an
archive that two parsers could read differently. Layout: PKWARE APPNOTE 6.3; what torch
accepts: caffe2/serialize/inline_container.cc.

Not a format of the table: torch-zip, TorchScript and others use it. It reads no record.
"""

from __future__ import annotations

from zlib import crc32

from ckpt.bytes.source import Source, inflate_exactly, underlying_file
from ckpt.formats.common.directory import (
    ReadAlike,
    Record,
    Records,
    check_other_names,
    fold_case,
    read_records,
)
from ckpt.formats.common.holes import zeros_text
from ckpt.formats.common.zip_layout import (
    CENTRAL_MAGIC,
    END,
    END64,
    END_MAGIC,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    MARK16,
    MARK32,
    EndRecord,
    Locator,
    end_record,
    end_record64,
    last_end_record,
    local_header,
    locator_before,
)
from ckpt.model.account import Notice
from ckpt.model.errors import CutOffError, DamagedDataError, LimitError, UnreadableError
from ckpt.model.limits import RECORD_BYTES, Budget, Limits
from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show, size_text

_WINDOW = 4096
"""Bytes that torch reads at once when it looks for the end record; two windows overlap
by three.
"""
_MANY = 64
"""Records that are worth columns."""
TRAILING = 65_535
"""Bytes behind its end record that an archive may have: torch looks no less far
back.
"""
MARK = b"CK"
"""Tag of the extra field of a record that was appended in place. Its eight bytes hold
the old end of the archive.
"""
FLATBUFFERS = (b"PTMF", b"FF01")
"""The bytes from the fifth on of a file of the mobile interpreter. torch looks for them
before it looks for an archive.
"""
FIELD = MARK + b"\x08\0"


class Archive(NamedTuple):
    """A zip archive whose directory is consistent. `root` is the folder that all of
    torch's records share.
    """

    source: Source
    root: str
    records: Records
    notices: tuple[Notice, ...]
    outside: int = 0
    """Records that do not lie below the root."""
    nbytes: int = 0
    """Bytes of the directory."""
    trailing: int = 0
    """Bytes that follow the archive."""
    is_partial: bool = False
    """True if records may be missing or end early, and no checksum is compared when one
    is read.
    """
    cause: str | None = None
    """A sentence on bytes that are missing or too many in a partial one."""

    def find(self, name: str) -> Record | None:
        """The record `root/name`, which torch finds in letters of any case."""
        whole = f"{self.root}/{name}"
        index = self.records.find(whole, 0)
        if index < 0:
            index = self.records.find_alike(whole)
        return None if index < 0 else self.records.at(index)

    def read_pickle(self, record: Record, limits: Limits, budget: Budget) -> bytes:
        """The bytes of a record that holds a pickle. Raises LimitError,
        UnreadableError.
        """
        if record.size <= limits.pickle_bytes:
            budget.hold(record.stored)
            budget.check(record.size)
            budget.charge(
                record.size + (record.stored if record.deflated else 0), "a pickle"
            )
        return self.read(record, limits.pickle_bytes, "pickle-bytes")

    def read(self, record: Record, limit: int, limit_name: str) -> bytes:
        """The bytes of a record, inflated; never more than `limit`. Raises LimitError,
        UnreadableError.
        """
        what = f"record {show(record.name, 80)}"
        if record.size > limit:
            raise LimitError(f"{what} has {record.size:,} bytes", limit_name, limit)
        data = self.source.read(record.offset, record.stored)
        if record.deflated:
            data = inflate_exactly(data, record.size, what)
        if not self.is_partial and record.crc is not None and crc32(data) != record.crc:
            raise DamagedDataError(
                f"{what} is damaged: its bytes do not match the recorded checksum"
            )
        return data


def read_archive(source: Source, limits: Limits) -> Archive:
    """The directory of a zip archive. Raises UnreadableError when it is cut off or
    ambiguous.
    """
    head = source.read(0, min(source.size, 8))
    if not head.startswith(LOCAL_MAGIC):
        raise UnreadableError("the zip archive does not begin with its first record")
    if head[4:] in FLATBUFFERS:
        raise UnreadableError(
            "two files in one: the zip archive is a flatbuffer too, which "
            "torch.jit.load reads instead"
        )
    count, size, offset, trailer, last = find_end(source)
    if count > limits.entries:
        raise LimitError(
            f"the zip archive has {count:,} records", "entries", limits.entries
        )
    if size > max(limits.directory_bytes, count * RECORD_BYTES):
        raise LimitError(
            f"the zip directory has {size:,} bytes",
            "directory-bytes",
            limits.directory_bytes,
        )
    if offset + size != trailer:
        raise UnreadableError(
            (
                f"the zip directory ends at byte {offset + size:,}, but its end record "
                f"is at {trailer:,}"
            ),
            hint="two archives joined, or bytes put in front?",
        )
    trailing = source.size - last
    if trailing:
        from ckpt.formats.common.trailing import (
            follow_text,
        )  # here: few files have more
    if trailing and is_appended(source, last):
        problem = (
            f"an in-place rewrite was interrupted, the first {last:,} bytes are intact"
        )
        raise UnreadableError(f"{problem}, and {follow_text(source, last)}")
    directory = source.read(offset, size)
    check_other_names(directory)
    headers = source
    if underlying_file(source, 0)[0].far is not None:
        from ckpt.formats.common.columns import (
            foreseen,  # here: only what lies on another machine pays for it
        )

        headers = foreseen(source, directory, count, offset)
    alike: ReadAlike | None = None
    if count >= _MANY:
        from ckpt.formats.common.columns import (
            read_alike,
        )  # here: small files do not pay for it

        alike = read_alike
    records = read_records(headers, directory, count, offset, alike)
    notices = _check_names(records)
    if trailing:
        text = (
            f"{follow_text(source, last)} the zip archive, which ends at byte "
            f"{last:,}: torch ignores them"
        )
        notices.append(Notice("trailing-data", text))
    overlap = records.overlapping()
    if overlap is not None:
        raise UnreadableError(
            f"records {show(overlap[0], 60)} and {show(overlap[1], 60)} overlap"
        )
    names = records.names
    root = names[0].partition("/")[0] if names else ""
    outside = 0
    below = records.joined.count(f"\0{root}/")
    if below < len(names) and any("/" in name for name in names):
        root = ""
        holding = [
            name
            for name in names
            if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(holding) == 1:
            root = holding[0].partition("/")[0]
            outside = sum(not name.startswith(f"{root}/") for name in names)
            if outside:
                text = (
                    f"{counted_noun(outside, 'record')} outside {show(root, 40)}/: "
                    "torch refuses the archive"
                )
                notices.append(Notice("container", text))
        elif len(holding) > 1:
            raise UnreadableError(
                "the archive has two roots: "
                + ", ".join(show(name, 60) for name in holding[:2])
            )
    return Archive(source, root, records, tuple(notices), outside, size, trailing)


def find_end(source: Source) -> tuple[int, int, int, int, int]:
    """Find (entries, directory bytes, directory offset, offset of the first end record,
    end of the archive).

    As in torch (miniz), the last end record that fits into the file is the one,
    whatever follows it.
    """
    span = min(source.size, END.size)
    tail = source.read(source.size - span, span)
    # A comment, other bytes, or no end record: only then more of the file is read.
    if not tail.startswith(END_MAGIC):
        span = min(source.size, TRAILING + END.size)
        tail = source.read(source.size - span, span)
    last_record = last_end_record(source, span)
    if last_record is None:
        ends = zeros_text(source) or f"the file ends at {source.size:,} bytes"
        raise CutOffError(
            f"cut off: the zip archive has no directory, {ends}",
            hint="an unfinished download or save?",
        )
    end, record = last_record
    last = end + END.size + record.comments
    if record.is_split:
        raise UnreadableError("the zip archive is split into several parts")
    if last < source.size and not _is_found(end, source.size):
        from ckpt.formats.common.trailing import (
            follow_text,
        )  # here: few files have more

        more = f"{follow_text(source, last)} the zip archive"
        raise UnreadableError(
            f"{more}, which ends at byte {last:,}: torch does not find its end"
        )
    if last > source.size:
        raise CutOffError(
            "cut off: the comment of the zip archive is longer than the rest of the "
            "file"
        )
    locator = locator_before(source, end)
    if locator is not None:
        return *_find_end64(source, end, record, locator), last
    if record.needs_zip64:
        raise UnreadableError("the zip archive lacks the zip64 record that it needs")
    return record.entries, record.size, record.offset, end, last


def _is_found(end: int, size: int) -> bool:
    """Tell whether torch finds an end record.

    torch looks from the back in steps, but not in a step that begins before the file.
    """
    window = max(size - _WINDOW, 0)
    while (
        end < window and window >= _WINDOW - 3 and size - window < TRAILING + END.size
    ):
        window -= _WINDOW - 3
    return end >= window


def end_at(source: Source, position: int) -> int | None:
    """The end of the archive with its end record at `position`; None when the record
    and the directory disagree.
    """
    if source.size - position < END.size:
        return None
    record = end_record(source.read(position, END.size))
    count, size, offset = record.entries, record.size, record.offset
    end = position + END.size + record.comments
    try:
        locator = locator_before(source, position)
        if locator is not None:
            count, size, offset, position = _find_end64(
                source, position, record, locator
            )
        whole = (
            not record.disk and not record.start and offset + size == position and count
        )
        return end if whole and source.read(offset, 4) == CENTRAL_MAGIC else None
    except UnreadableError:
        return None


def _find_end64(
    source: Source, end: int, plain: EndRecord, locator: Locator
) -> tuple[int, int, int, int]:
    """Return (entries, bytes, offset of the directory, where it ends) as the end record
    of zip64 has them.

    Raises UnreadableError where it is damaged, or contradicts the plain end record at
    `end`.
    """
    position = locator.end64
    before = end - LOCATOR.size
    if locator.disk or locator.disks != 1 or position + END64.size > before:
        raise UnreadableError("the zip64 locator of the archive is damaged")
    record = end_record64(source, position)
    if record is None or position + record.nbytes != before or record.is_split:
        raise UnreadableError("the zip64 end record of the archive is damaged")
    is_same = (
        plain.entries in (record.entries, MARK16)
        and plain.size in (record.size, MARK32)
        and plain.offset in (record.offset, MARK32)
    )
    if not is_same:
        raise UnreadableError("the two end records of the zip archive disagree")
    return record.entries, record.size, record.offset, position


def is_appended(source: Source, end: int) -> bool:
    """Tell whether an in-place rewrite appended the bytes after the end of an archive,
    or began to.

    Zeros are bytes that never reached the disk.
    """
    remainder = source.size - end
    head = source.read(end, min(remainder, LOCAL.size))
    if not any(head):
        return remainder >= LOCAL.size  # a few zeros may be anything
    if not head.startswith(LOCAL_MAGIC[: len(head)]):
        return False
    if len(head) < LOCAL.size:
        return True
    _, extra, extras = header_names(source, end, head)
    mark = FIELD + end.to_bytes(8, "little")
    return (
        mark in extra if len(extra) == extras else mark.startswith(extra[: len(mark)])
    )


def header_names(source: Source, end: int, head: bytes) -> tuple[bytes, bytes, int]:
    """Return (name, extra fields as far as they are there, their recorded length) of
    the header at an end.
    """
    header = local_header(head)
    begin = end + LOCAL.size
    name = source.read(begin, min(header.names, source.size - begin))
    begin += len(name)
    return (
        name,
        source.read(begin, min(header.extras, source.size - begin)),
        header.extras,
    )


COMPUTED_OFFSETS = (".format_version", ".storage_alignment")
"""Records that let torch compute the offsets of storages instead of reading them."""
OWN = ("version", ".data/serialization_id", *COMPUTED_OFFSETS)
"""Records of torch.save that hold nothing of the checkpoint."""
_SMALL = 65_536
"""The most bytes of one of these. torch writes a few, and reads each as a whole."""
_INFLATED = 100
"""The most bytes that a byte of the file may become: a text of torch gets thirty times
shorter.
"""
_ROOM = 64 << 20
"""Bytes that records may become whatever the size of the file."""


def check_small(archive: Archive) -> None:
    """Raise UnreadableError for a record of a few letters that has far more: it may
    inflate to gigabytes, and torch reads it.
    """
    for record in filter(None, map(archive.find, (*OWN, ".data/version", "byteorder"))):
        if record.size > _SMALL:
            raise UnreadableError(
                f"record {show(record.name, 80)} has {record.size:,} bytes, and torch "
                "writes a few"
            )


def check_inflation(archive: Archive, what: str) -> None:
    """Raise UnreadableError where the records inflate to far more than the file: torch
    reads each, whatever its name.
    """
    records = archive.records
    inflated = sum(
        size
        for size, method in zip(records.sizes, records.methods, strict=True)
        if method == 8
    )
    if inflated > max(_ROOM, _INFLATED * archive.source.size):
        raise UnreadableError(f"the records of {what} inflate to {size_text(inflated)}")


_LEADS_OUT = LazyPattern(r"(?:^|/)\.\.(?:/|$)|^/|\\|^[A-Za-z]:|//[A-Za-z]:")


def check_paths(archive: Archive) -> None:
    """Raise UnreadableError for a name that leads out of the folder that an archive is
    unpacked to.
    """
    for name in archive.records.names:
        inner = name.removeprefix(f"{archive.root}/") if archive.root else name
        if _LEADS_OUT.search(name) or _LEADS_OUT.search(inner):
            raise UnreadableError(
                f"the name of record {show(name, 80)} leads out of the archive"
            )


def _check_names(records: Records) -> list[Notice]:
    """Return notices about names that differ only in case.

    Raises UnreadableError for two equal names, and for two that are equal to torch.
    """
    names, folded = records.names, records.folded
    if len(set(folded[1:-1].split("\0"))) == len(names):
        return []
    seen: dict[str, str] = {}
    notices: list[Notice] = []
    for name in names:
        before = seen.setdefault(fold_case(name), name)
        if before is name:
            continue
        if before == name:
            raise UnreadableError(
                f"duplicate record {show(name, 80)}: readers may pick either one"
            )
        both = f"{show(before, 60)} and {show(name, 60)}"
        problem = f"two records differ only in case: {both}; torch may read either one"
        if _is_read_by_torch(records):
            raise UnreadableError(problem)
        notices.append(Notice("container", problem))
    return notices


_OF_TORCH = ("/data.pkl", "/constants.pkl", "/version", "/.data/version")


def _is_read_by_torch(records: Records) -> bool:
    """Tell whether an archive has records that only torch writes. Others may be read by
    their exact names.
    """
    return any(f"{name}\0" in records.folded for name in _OF_TORCH)
