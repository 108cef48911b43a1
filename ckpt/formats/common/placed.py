"""The records of a damaged zip archive whose directory can be read: where they really
lie.

The directory says where each record was written. Bytes that are missing, or there
twice, move all that is behind them, the directory too. A record is where its own header
or its descriptor says so; checksums decide where two places are possible. Layout:
PKWARE APPNOTE 6.3, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from ckpt.bytes.source import Source
from ckpt.elements.audit import crc_of
from ckpt.formats.common.archive import TRAILING, find_end
from ckpt.formats.common.directory import Record, entry_at
from ckpt.formats.common.zip_layout import (
    CENTRAL_MAGIC,
    DESCRIPTOR_MAGIC,
    END,
    END64,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    end_record64,
    last_end_record,
    local_header,
)
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import RECORD_BYTES, Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show

_STEP = 1 << 20
"""Bytes that are read at once where headers are looked for."""
_PADDING = 3 * 4096
"""More bytes than lie between the name of a record and its data."""
_COMPARED = 4
"""The number of times that all bytes of a file may be compared with checksums to find
its records.
"""
_INFLATED = 64
"""Inflated bytes that cost as much as one that is read."""
_ENDS64 = END64.size + LOCATOR.size
"""The bytes of the two records of zip64 that torch and ckpt write before the end
record.
"""
FOLDERS = {
    "data.pkl": ("data", "tensors"),
    "constants.pkl": ("constants",),
    "bytecode.pkl": ("bytecode", "constants"),
}
"""Pickles, and the folders of the storages that they name."""


class Placed(NamedTuple):
    """The records that were found, and a sentence on the bytes that are missing or too
    many, where there are such.
    """

    records: list[Record]
    cause: str | None


class _Directory(NamedTuple):
    """The records as the directory describes them, in the order of their headers, and
    where it is and should be.
    """

    entries: list[Record]
    begin: int
    expected: int
    size: int


class _Spot(NamedTuple):
    """A place of a record: with the offset of its data, and by how many bytes it lies
    behind its place in the directory.
    """

    record: Record
    shift: int | None
    """None where only its data was found."""
    is_sure: bool
    """True if the header has the name of the record, or the descriptor its checksum."""
    name: str | None
    """The name in its header, where there is a header."""


def by_directory(source: Source, limits: Limits) -> Placed | None:
    """Find the records of the directory of an archive, whatever became of them.

    Return None if the directory cannot be read or does not belong to the archive.
    Raises UnreadableError, LimitError.
    """
    try:
        directory = _find_directory(source, limits)
    # Raising a limit may help; any other error means that this way finds nothing.
    except LimitError:
        raise
    except CkptError:
        return None
    if directory is None:
        return None
    search = _Search(source, directory)
    if search.moved and not search.belongs():
        return None
    # The order of evidence: a header with a checksum, then a descriptor alone.
    search.look_between()
    search.look_for_marks()
    cause = search.without_the_hit()
    return Placed(list(_records_of(directory.entries, search.spots)), cause)


def _records_of(
    entries: Iterable[Record], spots: Iterable[_Spot | None]
) -> Iterator[Record]:
    """Yield the records that were found, and each that another name in its header may
    mean. Raises UnreadableError.
    """
    placed = [spot for spot in spots if spot is not None]
    in_order = sorted(
        (spot.record for spot in placed),
        key=lambda record: (record.header, record.offset + record.stored, record.name),
    )
    for record, after in pairwise(in_order):
        if after.header < record.offset + record.stored:
            raise UnreadableError(
                f"records {show(record.name, 60)} and {show(after.name, 60)} overlap"
            )
    names = {entry.name for entry in entries}
    for spot in placed:
        yield spot.record
    for spot in placed:
        # One of both names is damaged. The other one is taken where something may ask
        # for it.
        if spot.name is None or spot.name in names:
            continue
        if _is_asked_for(spot.name):
            yield spot.record._replace(name=spot.name)


def _is_asked_for(name: str) -> bool:
    """Tell whether a name may be one of a pickle or of a storage."""
    if not name.isprintable():
        return False
    inner = name.partition("/")[2]
    if inner in FOLDERS or inner in ("version", "byteorder"):
        return True
    folder, _, key = inner.partition("/")
    return bool(key) and any(folder in folders for folders in FOLDERS.values())


# --- the directory --------------------------------------------------------------------


def _find_directory(source: Source, limits: Limits) -> _Directory | None:
    """Return the directory before the last end record, or None if there is none. Raises
    CkptError.
    """
    try:
        last = find_end(source)
        end = _LooseEnd(last.entries, last.size, last.offset)
        # The records of zip64 may be damaged beyond recognition, and lie between the
        # directory and the plain end record.
        places = [last.first, last.first - _ENDS64]
    except LimitError:
        raise
    except CkptError:
        end, places = _loose_end(source)
    if end.entries > limits.entries:
        return None
    if end.size > max(limits.directory_bytes, end.entries * RECORD_BYTES):
        return None
    for place in places:
        begin = place - end.size
        if begin < 0:
            continue
        rows = _entries_of(source.read(begin, end.size), end.entries)
        if rows is not None:
            rows.sort(key=lambda entry: entry.header)
            return _Directory(rows, begin, end.offset, end.size)
    return None


class _LooseEnd(NamedTuple):
    """A directory by its end record: its entries, its bytes, and where it should
    begin.
    """

    entries: int
    size: int
    offset: int


def _entries_of(data: bytes, count: int) -> list[Record] | None:
    """Return the entries of a directory, or None if these bytes are not so many."""
    rows: list[Record] = []
    position = 0
    try:
        while len(rows) < count and position < len(data):
            entry, position = entry_at(data, position)
            rows.append(entry)
    except CkptError:
        return None
    return rows if len(rows) == count and position == len(data) else None


def _loose_end(source: Source) -> tuple[_LooseEnd, list[int]]:
    """Find (the directory, where it may end) in an end record that other records
    contradict.

    An archive that needs zip64 has its numbers in a record that is not read here.
    Raises UnreadableError.
    """
    span = min(source.size, TRAILING + END.size)
    last = last_end_record(source, span)
    if last is None:
        raise UnreadableError("the archive has no end record")
    position, record = last
    if record.is_split:
        raise UnreadableError("the end record of the archive is damaged")
    places = [position - _ENDS64, position]
    if not record.needs_zip64:
        return _LooseEnd(record.entries, record.size, record.offset), places
    wide = end_record64(source, position - _ENDS64)
    if wide is None:
        raise UnreadableError("the zip64 end record of the archive is damaged")
    return _LooseEnd(wide.entries, wide.size, wide.offset), places


# --- the place of each record ---------------------------------------------------------


class _Search:
    """Finds the places of the records of one directory: `spots`, in the order of its
    entries, None for one not found.
    """

    def __init__(self, source: Source, directory: _Directory) -> None:
        self._source = source
        self._entries = directory.entries
        self._end = directory.begin
        self._expected = directory.expected
        self._size = directory.size
        self.moved = directory.begin - directory.expected
        """The bytes by which the directory itself lies behind its place."""
        self._left = _COMPARED * source.size
        shifts = (0, self.moved) if self.moved else (0,)
        self.spots = [self._find_spot(entry, shifts) for entry in self._entries]

    def belongs(self) -> bool:
        """Tell whether a directory that is not in its place is of this archive, and not
        of another one in the file.

        An archive in the last record of another one, whose own end is cut off, begins
        later than its directory says, and so does the second of two that are joined.
        The record at the first byte tells them apart, and a directory in the place.
        """
        first = self._entries[0] if self._entries else None
        if first is None or first.header:
            return False
        spot = self._spot_at(first, 0, self._end, by_mark=False)
        if spot is None or not spot.is_sure:
            return False
        if self.moved < 0:
            return True
        source = self._source
        there = source.read(self._expected, self._size)
        own = source.read(self._end, self._size)
        if there.startswith(CENTRAL_MAGIC) and there != own:
            return False
        return self._has_right_checksum(spot.record)

    def _find_spot(self, entry: Record, shifts: Sequence[int]) -> _Spot | None:
        """Return the place of a record that is moved by one of some numbers of bytes,
        or None if none is known.
        """
        if len(shifts) == 1:
            return self._spot_at(entry, shifts[0], self._end)
        spots = [
            self._spot_at(entry, shift, self._end, by_mark=False) for shift in shifts
        ]
        sure = [spot for spot in spots if spot is not None and spot.is_sure]
        # Bytes that are there twice have the header twice. Summing one is dear, so a
        # single one is believed.
        if len(sure) > 1:
            for spot in sure:
                if self._has_right_checksum(spot.record):
                    return spot
        return sure[0] if sure else None

    def _spot_at(
        self, entry: Record, shift: int, end: int, *, by_mark: bool = True
    ) -> _Spot | None:
        """Return the place of a record that is moved by a number of bytes, or None if
        that is not known.

        The header of the record says where its data is, or else, with `by_mark`, the
        descriptor behind the data.
        """
        source = self._source
        raw = entry.name.encode()
        header = entry.header + shift
        least = header + LOCAL.size + len(raw)
        if header < 0 or least > end:
            return None
        local = source.read(header, LOCAL.size + len(raw))
        here = local_header(local)
        is_header = here.magic == LOCAL_MAGIC
        name = _name_of(source, header, here.names, local) if is_header else None
        record = entry._replace(header=header)
        # Another length of the name means that the header itself was hit.
        offset = header + here.nbytes if is_header and here.names == len(raw) else -1
        is_told = least <= offset and offset + entry.stored <= end
        is_named = is_told and local.endswith(raw)
        told = None
        if is_told:
            told = _Spot(record._replace(offset=offset), shift, is_named, name)
        # Without a checksum there is no mark to look for.
        if entry.crc is None or not by_mark:
            return told
        # A record without a descriptor has its sizes in its header.
        if is_told and not entry.flags & HAS_DESCRIPTOR:
            return told
        mark = DESCRIPTOR_MAGIC + entry.crc.to_bytes(4, "little")
        if told is not None:
            behind = offset + entry.stored
            if source.read(behind, min(8, source.size - behind)) == mark:
                return told._replace(is_sure=True)
        # Behind the data there is a descriptor with the checksum, within the padding
        # that torch and ckpt may have written.
        behind = least + entry.stored
        distance = -1
        if behind < end:
            distance = source.read(behind, min(_PADDING, end - behind)).find(mark)
        if distance >= 0:
            return _Spot(record._replace(offset=least + distance), shift, True, name)
        return told

    def _has_right_checksum(self, record: Record) -> bool:
        """Tell whether a record has a checksum, and its bytes match it. A hostile file
        has nothing compared for ever.
        """
        if record.crc is None or record.offset < 0:
            return False
        if record.offset + record.stored > self._source.size:
            return False
        self._left -= record.stored + record.size // _INFLATED
        if self._left < 0:
            return False
        return crc_of(record.place(self._source)) == (record.crc, None)

    def look_between(self) -> None:
        """Look for the headers of records that are in none of the expected places,
        between those that are.

        As an archive inside of a record may have the same names, only the checksum of
        the directory proves one.
        """
        lost: list[int] = []
        begin = 0
        # One step more at the end, for what is lost behind the last known place.
        for index, spot in [*enumerate(self.spots), (len(self.spots), None)]:
            if spot is None and index < len(self.spots):
                lost.append(index)
                continue
            last = self._end if spot is None else spot.record.header
            if lost:
                self._look_for(lost, begin, last)
                lost = []
            if spot is not None:
                begin = spot.record.offset

    def _look_for(self, lost: Sequence[int], begin: int, last: int) -> None:
        """Look for the headers of some records between two offsets."""
        wanted = {self._entries[number].name.encode(): number for number in lost}
        for name, header in _find_headers(self._source, begin, last, wanted.keys()):
            number = wanted[name]
            # The first header that is proved stays: a record may be in the file twice.
            if self.spots[number] is not None:
                continue
            entry = self._entries[number]
            spot = self._spot_at(entry, header - entry.header, last)
            if spot is not None and self._has_right_checksum(spot.record):
                self.spots[number] = spot

    def look_for_marks(self) -> None:
        """Look for the descriptors of records without a header, near the expected
        places in a directory that moved.
        """
        if not self.moved:
            return
        for index, entry in enumerate(self._entries):
            if self.spots[index] is not None:
                continue
            for shift in (0, self.moved):
                spot = self._spot_at(entry, shift, self._end)
                if spot is None or not spot.is_sure:
                    continue
                if self._has_right_checksum(spot.record):
                    # Its header is gone, so the record begins with its data.
                    record = spot.record._replace(header=spot.record.offset)
                    self.spots[index] = _Spot(record, None, True, None)
                    break

    def without_the_hit(self) -> str | None:
        """Take away the records in which bytes are missing or too many, and return a
        sentence on them, or None without such.

        Between two records that are moved by other numbers of bytes, something is
        missing or too many.
        """
        entries = self._entries
        spots = list(self.spots)
        sentences: list[str] = []
        shift_before = 0
        index_before = -1
        shifts = [
            (index, spot.shift) for index, spot in enumerate(spots) if spot is not None
        ]
        # At the end the directory stands for a record behind the last one.
        for index, shift in [*shifts, (len(spots), self.moved)]:
            if shift is None:
                continue
            change = shift - shift_before
            if change:
                between = range(index_before + 1, index)
                hit = [
                    entries[number].name for number in between if spots[number] is None
                ]
                name_before = ""
                if index_before >= 0:
                    name_before = entries[index_before].name
                    if not self._keep_if_whole(index_before, change):
                        hit.insert(0, name_before)
                sentences.append(_change_sentence(change, hit, name_before))
            shift_before = shift
            index_before = index
        return and_more(sentences, 3, "; ") if sentences else None

    def _keep_if_whole(self, index: int, change: int) -> bool:
        """Tell whether the record before missing or doubled bytes is whole, and take it
        away if it is not.

        Its data may be whole behind them, where they hit its header.
        """
        spot = self.spots[index]
        assert spot is not None
        for offset in (spot.record.offset, spot.record.offset + change):
            record = spot.record._replace(offset=offset)
            if offset > spot.record.header and self._has_right_checksum(record):
                self.spots[index] = spot._replace(record=record)
                return True
        self.spots[index] = None
        return False


def _name_of(source: Source, header: int, length: int, local: bytes) -> str | None:
    """The name in a header of which the first bytes were read, or None where the file
    ends within it.
    """
    begin = header + LOCAL.size
    if begin + length > source.size:
        return None
    raw = local[LOCAL.size :]
    if length != len(raw):
        raw = source.read(begin, length)
    return raw.decode("utf-8", "replace")


def _find_headers(
    source: Source, begin: int, end: int, names: Collection[bytes]
) -> Iterator[tuple[bytes, int]]:
    """Yield (name, offset) of each local header between two offsets that has one of the
    names.
    """
    longest = LOCAL.size + max(map(len, names))
    for position in range(begin, end, _STEP):
        # Blocks overlap by a header with its name, so that none is cut in two.
        data = source.read(position, min(_STEP + longest, end - position))
        # A mark that begins in the overlap is found in the next block.
        last = _STEP + len(LOCAL_MAGIC) - 1
        found = data.find(LOCAL_MAGIC, 0, last)
        while found >= 0:
            name_at = found + LOCAL.size
            if name_at <= len(data):
                length = local_header(data, found).names
                name = data[name_at : name_at + length]
                if name in names:
                    yield name, position + found
            found = data.find(LOCAL_MAGIC, found + 1, last)


def _change_sentence(change: int, hit: Sequence[str], before: str) -> str:
    """A sentence on bytes that are missing or too many, on the records that they hit,
    and the whole one before them.
    """
    number = abs(change)
    noun = "byte is" if number == 1 else "bytes are"
    fault = "missing" if change < 0 else "too many"
    what = f"{number:,} {noun} {fault}"
    names = [_short_name(name) for name in hit]
    if len(names) > 1:
        return f"{what} between the beginning of {names[0]} and the end of {names[-1]}"
    if names:
        return f"{what} inside of {names[0]}"
    return f"{what} behind {_short_name(before)}" if before else what


def _short_name(name: str) -> str:
    """The name of a record below the folder of its archive."""
    return show(name.partition("/")[2] or name, 80)
