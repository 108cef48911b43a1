"""What a format may look at to recognise its files: the location, the first bytes, the archive's directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ckpt.checkpoint import Checkpoint
from ckpt.formats.common.archive import Archive, read_archive
from ckpt.io.location import Location
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits

HEAD_BYTES = 4096


class Probe:
    """One location, opened once for all formats. `source` is None for a folder.

    `open` reads another location in the same way, for a format of several files. `mark` is the prefix of the
    storage ids, so that the ids of several files stay apart. `budget` is what is left of the limits for all of them.
    With `partial`, a file of a set that is missing is a notice, where a format would refuse the set.
    """

    def __init__(
        self,
        location: Location,
        limits: Limits,
        open: Callable[[Location, str], Checkpoint],
        mark: str = "",
        budget: Budget | None = None,
        partial: bool = False,
    ) -> None:
        self.partial = partial
        self.budget = budget or Budget(limits)
        self.location = location
        self.path = location.name
        self.limits = limits
        self.open = open
        self.mark = mark
        self.is_folder = location.is_folder()
        self.source: Source | None = None if self.is_folder else location.open()
        self.size = self.source.size if self.source else 0
        self.head = self.source.read(0, min(HEAD_BYTES, self.size)) if self.source else b""

    @property
    def file(self) -> Source:
        """The file. Only for formats of one file."""
        assert self.source is not None
        return self.source

    @cached_property
    def archive(self) -> Archive | None:
        """The directory of a zip archive, None for other files. Raises UnreadableError when it is damaged."""
        if self.source is None or not self.head.startswith(b"PK\x03\x04"):
            return None
        if self.path.endswith(
            ".distcp"
        ):  # several archives in a row; the DCP metadata says where each begins
            return None
        return read_archive(self.source, self.limits)

    def close(self) -> None:
        """Close the file."""
        if self.source is not None:
            self.source.close()
