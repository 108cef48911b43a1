"""The directory of a zip archive. Its records are columns, and a Record is made when it
is asked for.

Layout: PKWARE APPNOTE 6.3; what torch accepts: caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain, pairwise
from operator import add, le

from ckpt.bytes.source import Source, underlying_file
from ckpt.formats.common.zip_layout import (
    CENTRAL,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_MAGIC,
    MARK16,
    MARK32,
    central_header,
    iterate_entries,
    local_header,
    read_zip64,
    unicode_path,
)
from ckpt.model.errors import CutOffError, UnreadableError
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

FOLDER = 0x10
"""The bit of the external attributes that marks a folder to torch (miniz,
`mz_zip_reader_is_file_a_directory`).
"""
REFUSED_FLAGS = 0x2061  # encrypted, patched, strongly encrypted, masked headers
_AROUND = 16
"""Records that an archive has besides its storages, or somewhat more."""

_SMALL = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def fold_case(name: str) -> str:
    """A name in small letters, of ASCII alone, as torch (miniz) compares the names of
    records.
    """
    return name.lower() if name.isascii() else name.translate(_SMALL)


class Record(NamedTuple):
    """One file of the archive. Its data begins at `offset` and takes `stored` bytes
    there.
    """

    name: str
    offset: int
    stored: int
    size: int
    deflated: bool
    crc: int | None
    header: int
    flags: int = 0

    def place(self, source: Source, *, big: bool = False) -> Range:
        """The bytes of the record."""
        # In the file itself, and not in the member of another archive: it can be copied
        # from there.
        file, offset = underlying_file(source, self.offset)
        inflated = self.size if self.deflated else None
        return Range(file, offset, self.stored, inflated, big)


class Records(Mapping[str, Record]):
    """The records of an archive by name, in the order of its directory. Sizes and
    offsets are in bytes.

    A checksum of 0 of a record with data is none: torch writes it when it computes no
    CRC (set_crc32_options(False)).
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.offsets, self.stored, self.sizes, self.headers = (
            array("Q") for _ in range(4)
        )
        self.methods, self.checksums, self.flags = array("H"), array("I"), array("H")
        self._index: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __getitem__(self, name: str) -> Record:
        return self.at(self.index[name])

    @property
    def index(self) -> dict[str, int]:
        """The position of each name. Of two equal names, which no reader accepts, the
        last.
        """
        if self._index is None or len(self._index) != len(self.names):
            self._index = dict(zip(self.names, range(len(self.names)), strict=True))
        return self._index

    @cached_property
    def joined(self) -> str:
        """All names, with a NUL before each. Asked for when no more records are
        added.
        """
        return "\0".join(["", *self.names])

    @cached_property
    def folded(self) -> str:
        """The names as `joined` has them, in small letters, with a NUL at the
        end too.
        """
        return fold_case(self.joined) + "\0"

    def find_alike(self, name: str) -> int:
        """The position of a name as torch (miniz) finds it, in letters of any case; -1
        where there is none.
        """
        start = self.folded.find(f"\0{fold_case(name)}\0")
        return -1 if start < 0 else self.folded.count("\0", 0, start)

    def any_below(self, folder: str) -> bool:
        """Tell whether a name begins with the name of a folder, which ends with a
        slash.
        """
        return f"\0{folder}" in self.joined

    def find(self, name: str, near: int) -> int:
        """The position of a name, looked for a little behind `near` and at the end at
        first; -1 where there is none.
        """
        # Storages are asked for in the order in which torch wrote them, and its other
        # records stand at the end.
        names = self.names
        count = len(names)
        behind = range(near, min(near + _AROUND, count))
        at_end = range(max(count - _AROUND, 0), count)
        for index in chain(behind, at_end):
            if names[index] == name:
                return index
        # An index of all costs more than a few looks.
        if self._index is None and name not in names:
            return -1
        return self.index.get(name, -1)

    def run(self, names: str, near: int) -> int:
        """Return the position from which records with these names follow each other, or
        -1.

        The first is looked for as in `find`. `names` has a NUL between two names.
        """
        first = self.find(names.partition("\0")[0], near)
        count = names.count("\0") + 1
        if first >= 0 and "\0".join(self.names[first : first + count]) == names:
            return first
        return -1

    def at(self, position: int) -> Record:
        """The record at a position of the directory."""
        size = self.sizes[position]
        crc = self.checksums[position]
        # By position: names take five times as long, and each storage asks.
        return Record(
            self.names[position],
            self.offsets[position],
            self.stored[position],
            size,
            self.methods[position] == 8,
            crc if crc or not size else None,
            self.headers[position],
            self.flags[position],
        )

    def add(self, record: Record) -> None:
        """Add a record at the end."""
        self.names.append(record.name)
        self.offsets.append(record.offset)
        self.stored.append(record.stored)
        self.sizes.append(record.size)
        self.headers.append(record.header)
        self.methods.append(8 if record.deflated else 0)
        self.checksums.append(record.crc or 0)
        self.flags.append(record.flags)

    def overlapping(self) -> tuple[str, str] | None:
        """The names of two records of which one begins before the other ends."""
        ends = map(add, self.offsets, self.stored)
        # In nearly all archives the records lie in the order of the directory.
        if all(map(le, ends, self.headers[1:])):
            return None
        order = sorted(range(len(self)), key=self.headers.__getitem__)
        for before, after in pairwise(order):
            if self.headers[after] < self.offsets[before] + self.stored[before]:
                return self.names[before], self.names[after]
        return None


ReadAlike = Callable[[Records, Source, bytes, int, int, int], tuple[int, int]]
"""Adds the records of headers in `data` from an offset on, at most so many, of the
directory at the last offset: the offset behind them, and how many headers from there on
have to be read one by one.
"""


def read_records(
    source: Source,
    data: bytes,
    count: int,
    directory: int,
    alike: ReadAlike | None = None,
) -> Records:
    """The records of a directory of `data` at the offset `directory`. Raises
    UnreadableError where it is damaged.

    `alike` reads many headers at once.
    """
    records = Records()
    position, size = 0, len(data)
    while len(records) < count:
        if position + CENTRAL.size > size:
            raise UnreadableError(
                f"the zip directory holds fewer records than its count of {count:,}"
            )
        alone = 1
        if alike is not None:
            position, alone = alike(
                records, source, data, position, count - len(records), directory
            )
        for _ in range(alone):
            record, position = record_at(source, data, position, directory)
            records.add(record)
    if position != size:
        raise UnreadableError(
            f"the zip directory holds more records than its count of {count:,}"
        )
    return records


def record_at(
    source: Source, data: bytes, position: int, directory: int
) -> tuple[Record, int]:
    """The record whose header lies at an offset, and the offset after it. Raises
    UnreadableError.
    """
    record, after = entry_at(data, position)
    raw = record.name.encode()
    method = 8 if record.deflated else 0
    offset = data_offset(
        source,
        raw,
        record.flags,
        method,
        record.stored,
        record.size,
        record.header,
        directory,
    )
    return record._replace(offset=offset), after


def entry_at(data: bytes, position: int) -> tuple[Record, int]:
    """Return the record as the directory alone describes it, with the offset 0, and the
    offset after its entry.

    Raises UnreadableError.
    """
    entry = central_header(data, position)
    if entry is None:
        raise UnreadableError("the zip directory is damaged")
    name = _decode_name(entry.name_in(data, position))
    full, stored, header, method = entry.full, entry.stored, entry.header, entry.method
    if entry.disk == MARK16 or MARK32 in (stored, full, header):
        extra = entry.extra_in(data, position)
        full, stored, header = read_zip64(extra, full, stored, header, name)
    elif entry.disk:
        raise UnreadableError("the zip archive is split into several parts")
    if entry.flags & REFUSED_FLAGS:
        raise _record_error(name, " is encrypted or patched")
    if full and entry.attributes & FOLDER:
        raise _record_error(
            name, " is marked as a folder but holds data: torch reads it differently"
        )
    if method not in (0, 8):
        raise _record_error(
            name, f" uses compression method {method}, torch reads only 0 and 8"
        )
    if method == 0 and stored != full:
        raise _record_error(name, " is not compressed but has two sizes")
    # torch writes 0 where it computed no CRC. Of no data it is really 0.
    crc = entry.crc if entry.crc or not full else None
    record = Record(name, 0, stored, full, method == 8, crc, header, entry.flags)
    return record, position + entry.nbytes


def data_offset(
    source: Source,
    raw: bytes,
    flags: int,
    method: int,
    stored: int,
    full: int,
    header: int,
    directory: int,
) -> int:
    """Return the offset of a record's data, once its local header agreed with the
    directory.

    Raises UnreadableError.
    """
    name = raw.decode("utf-8", "replace")
    length = LOCAL.size + len(raw)
    if header + length > directory:
        raise _record_error(
            name, f" begins at byte {header:,}, beyond the data of the archive"
        )
    local = source.read(header, length)
    # torch takes the size and the place of a record from the directory, other readers
    # from the header in front of it: both must say the same.
    here = local_header(local)
    is_named = here.names == len(raw) and local.endswith(raw)
    if here.magic != LOCAL_MAGIC or here.method != method or not is_named:
        raise _record_error(name, ": its local header and the directory disagree")
    if here.stored != stored or here.full != full:
        # With a descriptor the sizes come after the data, and 0 or a zip64 mark is
        # here.
        unknown = (0, MARK32) if (here.flags | flags) & HAS_DESCRIPTOR else (MARK32,)
        if here.stored not in (stored, *unknown) or here.full not in (full, *unknown):
            raise _record_error(
                name, ": its local header and the directory give different sizes"
            )
    offset = header + here.nbytes
    if offset + stored > directory:
        needed = f"needs bytes {offset:,} to {offset + stored:,}"
        problem = f": cut off, {needed}, the data of the archive ends at {directory:,}"
        raise CutOffError(f"record {show(name, 80)}{problem}")
    return offset


def _record_error(name: str, problem: str) -> UnreadableError:
    return UnreadableError(f"record {show(name, 80)}{problem}")


def _decode_name(raw: bytes) -> str:
    if b"\0" in raw:
        raise UnreadableError("a record name contains a NUL byte")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(
            f"a record name is not UTF-8: {show(raw.decode('latin-1'), 80)}"
        ) from None


def check_other_names(directory: bytes) -> None:
    """Raise UnreadableError for a record with a second name: zipfile of newer Pythons
    takes it, torch takes the first.
    """
    # The field begins with its tag, `up`, its length and its version. Few directories
    # have these letters anywhere.
    if b"up" not in directory or re.search(rb"up..\x01", directory, re.DOTALL) is None:
        return
    for position, entry in iterate_entries(directory):
        raw = entry.name_in(directory, position)
        other = unicode_path(entry.extra_in(directory, position))
        if other is not None and other != raw:
            both = (
                f"{show(raw.decode('utf-8', 'replace'), 60)} and "
                f"{show(other.decode('utf-8', 'replace'), 60)}"
            )
            raise UnreadableError(
                f"a record has two names: {both}; zipfile of Python may take the second"
            )
