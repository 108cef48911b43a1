"""What a format may look at to recognise its files: the path, the first bytes, the archive's directory."""

from __future__ import annotations

import os
from functools import cached_property

from ckpt.formats.archive import Archive, read_archive
from ckpt.io.source import File
from ckpt.limits import Limits

HEAD_BYTES = 4096


class Probe:
    """One path, looked at once for all formats. `source` is None for a directory."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.is_directory = os.path.isdir(path)
        self.source: File | None = None if self.is_directory else File(path)
        self.size = self.source.size if self.source else 0
        self.head = self.source.read(0, min(HEAD_BYTES, self.size)) if self.source else b""

    @property
    def file(self) -> File:
        """The file. Only for formats that are files."""
        assert self.source is not None
        return self.source

    @cached_property
    def archive(self) -> Archive | None:
        """The directory of a zip archive, None for anything else; a damaged one raises UnreadableError."""
        if self.source is None or not self.head.startswith(b"PK\x03\x04"):
            return None
        if self.path.endswith(".distcp"):  # several archives in a row; its directory says where each begins
            return None
        return read_archive(self.source, self.limits)

    def close(self) -> None:
        if self.source is not None:
            self.source.close()
