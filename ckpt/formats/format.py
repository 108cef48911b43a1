"""What a format is: the protocols that its modules implement.

A format is one folder here and one word in the table of `formats/__init__`. Its reader is a module, or an object of
another distribution, with the names of `Format`; what writes it and what checks its bytes are modules that the reader
names as text, so that reading never loads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ckpt.checkpoint import Checkpoint, Entry, Traits
from ckpt.limits import Limits

if TYPE_CHECKING:  # what writes is not loaded by who reads
    from ckpt.formats.draft import Draft
    from ckpt.formats.probe import Probe
    from ckpt.io.executor import Executor
    from ckpt.io.location import Location
    from ckpt.io.source import Source

Progress = Callable[[int], None]
"""Is told of bytes that are done."""


class Format(Protocol):
    """A format that is read. Recognition goes by content; of several formats the first that knows a file reads it."""

    NAME: str
    """The name in JSON, and of `--to`."""

    SUFFIXES: tuple[str, ...]
    """Endings that its files usually have."""

    TRAITS: Traits

    WRITER: str
    """The module that writes it (`CanWrite`), empty where none does."""

    VERIFIER: str
    """The module that checks its bytes (`CanVerify`), empty where none does."""

    def sniff(self, probe: Probe) -> bool:
        """Whether the file is of this format. Raises UnreadableError when it is, and is damaged."""
        ...

    def read(self, probe: Probe, limits: Limits) -> Checkpoint:
        """The checkpoint. Raises CkptError; reads no tensor data and runs nothing."""
        ...


class CanWrite(Protocol):
    """The module that writes a format."""

    def losses(self, checkpoint: Checkpoint) -> list[str]:
        """What the format cannot hold, one line each; asked before anything is written."""
        ...

    def unfit(self, entry: Entry) -> str | None:
        """Why the format cannot hold a tensor, None where it can."""
        ...

    def draft(self, checkpoint: Checkpoint, limits: Limits) -> Draft:
        """The file, ready to be written. Raises CkptError."""
        ...

    def compare(self, planned: Checkpoint, written: Checkpoint) -> None:
        """Raise WriteError unless a written file, read again, holds what was planned. Reads no tensor data."""
        ...

    def compare_bytes(self, planned: Checkpoint, written: Checkpoint) -> None:
        """Raise WriteError unless every byte of a tensor in a written file is that of its source."""
        ...


class CanAppend(Protocol):
    """The module that writes a format with the trait `in_place`: a rewrite may go behind the end of the file."""

    def append(self, checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
        """What goes behind the end, and, once that is on the disk, what makes it valid. Raises CkptError."""
        ...

    def end_before(self, source: Source, limits: Limits) -> int | None:
        """Where the file ended before its last rewrite, whole or interrupted; None where there was none."""
        ...


class Damage(NamedTuple):
    """Something that is not as the file itself records it: what, and which storage of the checkpoint it is."""

    what: str
    storage: str | None = None


class ChecksumReport(NamedTuple):
    """What was held against a checksum: `nbytes`, the damage, and the bytes of tensors that have no checksum."""

    nbytes: int
    damage: tuple[Damage, ...]
    unchecked: int


class Salvage(NamedTuple):
    """The tensors of a cut file: those whose bytes are all there, and those that are lost."""

    whole: tuple[str, ...]
    lost: tuple[str, ...]


Check = Callable[["Location", str], ChecksumReport]
"""Checks another file in the same way; the ids of its storages begin with the text."""


class CanVerify(Protocol):
    """The module that holds a file against what it records of itself."""

    def checksums(
        self,
        probe: Probe,
        limits: Limits,
        executor: Executor,
        progress: Progress | None,
        check: Check,
    ) -> ChecksumReport:
        """Every checksum that the file records, held against its bytes; `check` does so for a file of several.

        Reads the whole file. Raises CkptError.
        """
        ...

    def salvage(self, source: Source, limits: Limits) -> Salvage | None:
        """What is left of a file that is cut off, None where nothing can be told."""
        ...
