"""A member of an archive as a location of its own: its bytes are a range of the
archive, or were inflated.
"""

from __future__ import annotations

from zlib import crc32

from ckpt.bytes.location import Links, Location
from ckpt.bytes.source import Memory, Source, Window, inflate_exactly
from ckpt.formats.common.directory import Record
from ckpt.model.errors import DamagedDataError, LimitError, NotOpenedError
from ckpt.model.limits import Budget, Limits
from ckpt.model.text import show


class Member:
    """A file inside an archive. It has no files beside it.

    `crc` is the checksum that the archive recorded of it, `full` its size when it is
    deflated.
    """

    def __init__(
        self,
        archive: Source,
        name: str,
        offset: int,
        size: int,
        *,
        full: int | None = None,
        crc: int | None = None,
    ) -> None:
        self._archive = archive
        self.member = name
        self.name = f"{archive.name}: {show(name, 80)}"
        self.offset = offset
        self.stored = size
        self.full = full
        self.crc = crc

    @property
    def size(self) -> int:
        """The number of its bytes, inflated."""
        return self.stored if self.full is None else self.full

    def is_folder(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True

    def names(self) -> list[str]:
        raise NotOpenedError("not a folder", path=self.name)

    def parent(self) -> Location:
        raise NotOpenedError(
            "a member of an archive has no files beside it", path=self.name
        )

    def child(self, name: str, links: Links = "file") -> Location:
        raise NotOpenedError("a member of an archive is no folder", path=self.name)

    def open(self) -> Source:
        """Return its bytes. A deflated one is inflated to its recorded size. Raises
        DamagedDataError.
        """
        if self.full is None:
            return Window(self._archive, self.offset, self.stored, self.name)
        return Memory(
            inflate_exactly(
                self._archive.read(self.offset, self.stored), self.full, self.name
            )
        )

    def admit(self, limits: Limits, budget: Budget) -> None:
        """Charge what `open` inflates, before it does. Raises LimitError."""
        if self.full is not None:
            if self.full > limits.pickle_bytes:
                what = f"member {show(self.member, 80)} inflates to {self.full:,} bytes"
                raise LimitError(what, "pickle-bytes", limits.pickle_bytes)
            # The stored bytes are real, what they inflate to is charged.
            budget.hold(self.stored)
            budget.check(self.full)
            budget.charge(self.full + self.stored, f"member {show(self.member, 80)}")

    def read(self, limits: Limits, budget: Budget) -> bytes:
        """All of its bytes, compared with its checksum: for small members. Raises
        LimitError, DamagedDataError.
        """
        # Its name comes from the file, so it is escaped and cut.
        what = f"member {show(self.member, 80)}"
        # Read whole, unlike the members with tensors.
        if self.size > limits.index_bytes:
            raise LimitError(
                f"{what} has {self.size:,} bytes", "index-bytes", limits.index_bytes
            )
        self.admit(limits, budget)
        if self.full is None:
            budget.charge(self.stored, what)
        source = self.open()
        data = source.read(0, source.size)
        # Small members are code and texts, which no other check looks at.
        if self.crc is not None and crc32(data) != self.crc:
            raise DamagedDataError(
                f"{what} is damaged: its bytes do not match the recorded checksum"
            )
        return data


def of_record(archive: Source, record: Record) -> Member:
    """The member in a record of a zip archive."""
    full = record.size if record.deflated else None
    return Member(
        archive, record.name, record.offset, record.stored, full=full, crc=record.crc
    )
