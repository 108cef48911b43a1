"""Reads the directory of a zip archive as torch does, but more strictly: it refuses an
archive that two parsers could read differently. Layout: PKWARE APPNOTE 6.3; what torch
accepts: caffe2/serialize/inline_container.cc.

Not a format of the table: torch-zip, TorchScript and others use it. It reads no record.
"""

from __future__ import annotations

from zlib import crc32

from ckpt.bytes.source import Memory, Source, inflate_exactly, underlying_file
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
_NEAR = 1 << 12
"""The bytes that take as long to read as one more read does: headers that lie nearer
to each other on average are read at once, with what is between them.
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
        # A larger one is refused below: its own limit says more than that of memory.
        if record.size <= limits.pickle_bytes:
            budget.hold(record.stored)
            budget.check(record.size)
            # While it is inflated, both are in memory.
            packed_bytes = record.stored if record.deflated else 0
            budget.charge(record.size + packed_bytes, "a pickle")
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
    end = find_end(source)
    _check_directory(end, limits)
    trailing = source.size - end.last
    trailing_text = ""
    if trailing:
        # Here: few files have more.
        from ckpt.formats.common.trailing import follow_text

        trailing_text = follow_text(source, end.last)
        if is_appended(source, end.last):
            raise UnreadableError(
                f"an in-place rewrite was interrupted, the first {end.last:,} bytes "
                f"are intact, and {trailing_text}"
            )
    directory = source.read(end.offset, end.size)
    check_other_names(directory)
    headers = source
    if underlying_file(source, 0)[0].far is not None:
        # Here: only what lies on another machine pays for it.
        from ckpt.formats.common.columns import foreseen

        headers = foreseen(source, directory, end.entries, end.offset)
    alike: ReadAlike | None = None
    if end.entries >= _MANY:
        # Here: small files do not pay for it.
        from ckpt.formats.common.columns import read_alike

        alike = read_alike
    elif headers is source and end.offset <= _NEAR * end.entries:
        headers = Memory(source.read(0, end.offset))
    records = read_records(headers, directory, end.entries, end.offset, alike)
    notices = _check_names(records)
    if trailing:
        text = (
            f"{trailing_text} the zip archive, which ends at byte {end.last:,}: torch "
            "ignores them"
        )
        notices.append(Notice("trailing-data", text))
    overlap = records.overlapping()
    if overlap is not None:
        raise UnreadableError(
            f"records {show(overlap[0], 60)} and {show(overlap[1], 60)} overlap"
        )
    root, outside = _find_root(records)
    if outside:
        text = (
            f"{counted_noun(outside, 'record')} outside {show(root, 40)}/: torch "
            "refuses the archive"
        )
        notices.append(Notice("container", text))
    archive = Archive(
        source, root, records, tuple(notices), outside, end.size, trailing
    )
    _refuse_two_loaders(archive)
    return archive


_OLD_PROGRAM = "serialized_exported_program.json"
"""The program of torch.export of torch 2.1 to 2.7, which it finds by zipfile."""


def _refuse_two_loaders(archive: Archive) -> None:
    """Raise UnreadableError where two loaders find a file of their own in one archive:
    ckpt would show and judge one of them.

    Each loader asks for one record, and no writer writes the records of two.
    """
    records = archive.records
    # One search for each is cheap, and nearly all archives have the record of one.
    words = ("data.pkl", "archive_format", _OLD_PROGRAM, "extern_modules", "\0data\0")
    if sum(word in records.folded for word in words) < 2:
        return
    # torch takes the folder of the first record for that of all.
    first = archive._replace(root=records.names[0].partition("/")[0])

    def has_record(name: str) -> bool:
        return archive.find(name) is not None or first.find(name) is not None

    found = {
        "torch.load": has_record("data.pkl"),
        "torch.export.load": has_record("archive_format") or _OLD_PROGRAM in records,
        "torch.package": has_record(".data/extern_modules"),
        "Stable-Baselines": "data" in records,
    }
    loaders = [loader for loader, is_found in found.items() if is_found]
    if len(loaders) > 1:
        raise UnreadableError(
            f"two files in one: {loaders[0]} and {loaders[1]} each find a file of "
            "their own in the archive"
        )


def _check_directory(end: End, limits: Limits) -> None:
    """Raise LimitError for a directory that is too large, and UnreadableError for one
    that does not end where its end record begins.
    """
    if end.entries > limits.entries:
        raise LimitError(
            f"the zip archive has {end.entries:,} records", "entries", limits.entries
        )
    if end.size > max(limits.directory_bytes, end.entries * RECORD_BYTES):
        raise LimitError(
            f"the zip directory has {end.size:,} bytes",
            "directory-bytes",
            limits.directory_bytes,
        )
    # zipfile of Python takes such an archive: it counts all offsets from another
    # beginning, and reads the records of another archive than torch.
    if end.offset + end.size != end.first:
        raise UnreadableError(
            (
                f"the zip directory ends at byte {end.offset + end.size:,}, but its "
                f"end record is at {end.first:,}"
            ),
            hint="two archives joined, or bytes put in front?",
        )


def _find_root(records: Records) -> tuple[str, int]:
    """Return the folder of torch's records, and how many records lie outside of it.

    It is empty where the records have no folder in common. Raises UnreadableError where
    it could be either of two.
    """
    names = records.names
    # torch takes the folder of the first record for that of all.
    root = names[0].partition("/")[0] if names else ""
    below = records.joined.count(f"\0{root}/")
    if below == len(names) or not any("/" in name for name in names):
        return root, 0
    holding = [
        name for name in names if name.endswith("/data.pkl") and name.count("/") == 1
    ]
    if not holding:
        return "", 0
    if len(holding) > 1:
        raise UnreadableError(
            "the archive has two roots: "
            + ", ".join(show(name, 60) for name in holding[:2])
        )
    root = holding[0].partition("/")[0]
    return root, sum(not name.startswith(f"{root}/") for name in names)


class End(NamedTuple):
    """The end of an archive: where its directory lies, and where the archive ends.

    All numbers are in bytes, but for `entries`.
    """

    entries: int
    size: int
    """Bytes of the directory."""
    offset: int
    """The offset of the directory."""
    first: int
    """The offset of the first end record, which may be the one of zip64."""
    last: int
    """The offset behind the last end record and its comment."""


def find_end(source: Source) -> End:
    """Find the end of an archive. Raises UnreadableError.

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
        # Here: few files have more.
        from ckpt.formats.common.trailing import follow_text

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
        return _find_end64(source, end, record, locator, last)
    if record.needs_zip64:
        raise UnreadableError("the zip archive lacks the zip64 record that it needs")
    return End(record.entries, record.size, record.offset, end, last)


def _is_found(end: int, size: int) -> bool:
    """Tell whether torch finds an end record.

    torch looks from the back in steps, but not in a step that begins before the file.
    """
    # Source: `mz_zip_reader_locate_header_sig` of miniz.
    step = _WINDOW - 3
    window = max(size - _WINDOW, 0)
    while end < window and window >= step and size - window < TRAILING + END.size:
        window -= step
    return end >= window


def end_at(source: Source, position: int) -> int | None:
    """The end of the archive with its end record at `position`; None when the record
    and the directory disagree.
    """
    if source.size - position < END.size:
        return None
    record = end_record(source.read(position, END.size))
    last = position + END.size + record.comments
    end = End(record.entries, record.size, record.offset, position, last)
    try:
        locator = locator_before(source, position)
        if locator is not None:
            end = _find_end64(source, position, record, locator, last)
        if record.disk or record.start or not end.entries:
            return None
        if end.offset + end.size != end.first:
            return None
        return last if source.read(end.offset, 4) == CENTRAL_MAGIC else None
    except UnreadableError:
        return None


def _find_end64(
    source: Source, end: int, plain: EndRecord, locator: Locator, last: int
) -> End:
    """Return the end as the end record of zip64 describes it.

    Raises UnreadableError where it is damaged, or contradicts the plain end record at
    `end`.
    """
    position = locator.end64
    before = end - LOCATOR.size
    if locator.disk or locator.disks != 1 or position + END64.size > before:
        raise UnreadableError("the zip64 locator of the archive is damaged")
    record = end_record64(source, position)
    # Directly in front of its locator: a gap could hide another record.
    if record is None or position + record.nbytes != before or record.is_split:
        raise UnreadableError("the zip64 end record of the archive is damaged")
    # torch takes the numbers of zip64, other readers those that fit into the plain one.
    is_same = (
        plain.entries in (record.entries, MARK16)
        and plain.size in (record.size, MARK32)
        and plain.offset in (record.offset, MARK32)
    )
    if not is_same:
        raise UnreadableError("the two end records of the zip archive disagree")
    return End(record.entries, record.size, record.offset, position, last)


def is_appended(source: Source, end: int) -> bool:
    """Tell whether an in-place rewrite appended the bytes after the end of an archive,
    or began to.

    Zeros are bytes that never reached the disk.
    """
    remainder = source.size - end
    head = source.read(end, min(remainder, LOCAL.size))
    if not any(head):
        # A few zeros may be anything.
        return remainder >= LOCAL.size
    if not head.startswith(LOCAL_MAGIC[: len(head)]):
        return False
    if len(head) < LOCAL.size:
        return True
    _, extra, extras = header_names(source, end, head)
    mark = FIELD + end.to_bytes(8, "little")
    if len(extra) == extras:
        return mark in extra
    # The extra fields are cut off too: as far as they go, they are ours.
    return mark.startswith(extra[: len(mark)])


def header_names(source: Source, end: int, head: bytes) -> tuple[bytes, bytes, int]:
    """Return (name, extra fields as far as they are there, their recorded length) of
    the header at an end.
    """
    header = local_header(head)
    begin = end + LOCAL.size
    name = source.read(begin, min(header.names, source.size - begin))
    begin += len(name)
    extra = source.read(begin, min(header.extras, source.size - begin))
    return name, extra, header.extras


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


# Steps up, paths from the root, backslashes, and drives of Windows.
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
    # No two names are equal to torch, so there is nothing to look for.
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
