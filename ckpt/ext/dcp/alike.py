"""Items whose archives differ in nothing but elements, checksums and ids, as torch
writes most: read once, then compared.
"""

from __future__ import annotations

from ckpt.bytes.source import Source
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record
from ckpt.model.dtypes import DType
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

_KEPT = 64
"""Archives that are kept to compare with."""
_ID = ".data/serialization_id"
"""The record with a number of the archive's own, in which nothing else is said."""
_ZERO = bytes(4)


class _Read(NamedTuple):
    """An archive that was read: its tensor, and the bytes of which all of that
    follows.
    """

    fixed: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of all that another archive must have too."""
    checksums: tuple[tuple[int, ...], ...]
    """The places of the checksum of each record that may differ, the elements first.
    All places of one hold one number.
    """
    begin: int
    """The offset of the elements' record."""
    ref: TensorRef

    def moved(self, data: bytes, file: Source, base: int) -> TensorRef | None:
        """The tensor of another archive, which lies at an offset of a file; None if it
        is not alike.
        """
        # Everything but the elements, the checksums and the id must be the same, byte
        # for byte.
        for at, part in self.fixed:
            if data[at : at + len(part)] != part:
                return None
        crcs: list[bytes] = []
        for places in self.checksums:
            # A checksum stands behind the record and in the directory: both must agree.
            found = {data[at : at + 4] for at in places}
            if len(found) != 1 or _ZERO in found:  # zero says that there is none
                return None
            crcs += found
        storage = self.ref.storage
        assert isinstance(storage.place, Range)  # see `keep`
        place = storage.place._replace(source=file, offset=base + self.begin)
        return self.ref._replace(
            storage=storage._replace(place=place, crc=int.from_bytes(crcs[0], "little"))
        )


class Alike:
    """The archives of a few items that were read, by their length and what the metadata
    says of them.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[int, DType, tuple[int, ...]], _Read] = {}

    def tensor(
        self, dtype: DType, shape: tuple[int, ...], data: bytes, file: Source, base: int
    ) -> TensorRef | None:
        """The tensor of the archive `data` at an offset of a file, if one was read that
        says the same.
        """
        # Archives of one length, dtype and shape are compared; others cannot be alike.
        known = self._read.get((len(data), dtype, shape))
        return None if known is None else known.moved(data, file, base)

    def keep(self, data: bytes, archive: Archive, ref: TensorRef, base: int) -> None:
        """Keep an archive that was read at an offset of a file, if it is one of those
        that torch writes.
        """
        place = ref.storage.place
        if not isinstance(place, Range):  # only a range moves into another file
            return
        records = [archive.records.at(index) for index in range(len(archive.records))]
        elements = [
            record
            for record in records
            if (base + record.offset, record.stored) == place[1:3]
        ]
        varying = elements + [
            record for record in records if record.name == f"{archive.root}/{_ID}"
        ]
        spans = [(record.offset, record.offset + record.stored) for record in varying]
        checksums = [_checksum_places(data, record, spans) for record in varying]
        if len(elements) != 1 or not all(len(places) > 1 for places in checksums):
            return  # each stands behind the bytes, and in the directory
        for places in checksums:
            spans += [(at, at + 4) for at in places]
        fixed: list[tuple[int, bytes]] = []
        position = 0
        # The bytes between the spans that may differ.
        for first, last in [*sorted(spans), (len(data), len(data))]:
            # Spans that overlap: the checksum was found inside of something else.
            if first < position:
                return
            fixed.append((position, data[position:first]))
            position = last
        # Emptied as a whole, so that memory stays bounded.
        if len(self._read) == _KEPT:
            self._read.clear()
        begin = elements[0].offset
        self._read[len(data), ref.dtype, ref.shape] = _Read(
            tuple(fixed), tuple(checksums), begin, ref
        )


def _checksum_places(
    data: bytes, record: Record, spans: list[tuple[int, int]]
) -> tuple[int, ...]:
    """The places of the checksum of a record, outside of the spans."""
    places: list[int] = []
    if record.crc is None or record.deflated:
        return ()
    code = record.crc.to_bytes(4, "little")
    # The checksum is searched for by its bytes: the archive keeps no offset of it.
    at = data.find(code)
    while at >= 0:
        if all(at + 4 <= first or last <= at for first, last in spans):
            places.append(at)
        at = data.find(code, at + 1)
    return tuple(places)
