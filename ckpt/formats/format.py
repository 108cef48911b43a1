"""A format, the probe by which it recognises its files, the endings of files, and the
protocols of its modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from ckpt.bytes.location import Location
from ckpt.bytes.source import Source
from ckpt.formats.common.archive import Archive, read_archive
from ckpt.model.checkpoint import Checkpoint, Entry, RecordedFile, Traits
from ckpt.model.dtypes import DType
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import is_index
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:  # what writes is not loaded by who reads
    from ckpt.bytes.executor import Executor
    from ckpt.formats.common.writing import Draft, Relisting

Progress = Callable[[int], None]
"""Called with the number of bytes that are done."""


class Format(NamedTuple):
    """A format that ckpt reads. Files are recognised by content; the first format that
    recognises a file reads it.

    A format is one package (or module) with a `FORMAT`, and one word in the table of
    `formats/__init__`. Modules stand here as text, and are imported on use: who reads
    never loads a writer.
    """

    name: str
    """The name in JSON, and of `--format`."""
    traits: Traits
    sniff: Callable[[Probe], bool]
    """Tells whether the file has this format. Raises UnreadableError when it does but
    is damaged.
    """
    files: Callable[[Probe], Sequence[str] | None] | None = None
    """Of a format of several files: gives the files, by their paths below a folder, of
    the one checkpoint that the folder is, and None for any other folder. Raises
    CkptError when that cannot be told.
    """
    owns: Callable[[str], bool] | None = None
    """Of a format with the trait `is_folder`: tells whether a file of this name belongs
    to the checkpoint, and goes when another takes its place.
    """
    reader: str = ""
    """The module that reads it (`CanRead`)."""
    suffixes: tuple[str, ...] = ()
    """Endings that its files usually have."""
    writer: str = ""
    """The module that writes it (`CanWrite`); empty when there is none."""
    verifier: str = ""
    """The module that checks its bytes (`CanVerify`); empty when there is none."""
    salvager: str = ""
    """The module that reads what is left of a file that is cut off (`CanSalvage`);
    empty when there is none.
    """
    dtypes: Sequence[DType] = ()
    """The element types that only this format has."""
    remains: Callable[[Probe], Sequence[str]] | None = None
    """Of a format of several files: gives a line for each file of an interrupted save,
    whose items have lost their names.
    """

    def read(self, probe: Probe, limits: Limits) -> Checkpoint:
        """Return the checkpoint. Raises CkptError; reads no tensor data and runs
        nothing.
        """
        return cast("CanRead", import_module(self.reader)).read(probe, limits)


class CanRead(Protocol):
    """The module that reads a format."""

    def read(self, probe: Probe, limits: Limits) -> Checkpoint:
        """Return the checkpoint. Raises CkptError; reads no tensor data and runs
        nothing.
        """
        ...


class CanWrite(Protocol):
    """The module that writes a format."""

    def losses(self, checkpoint: Checkpoint) -> list[str]:
        """Return what the format cannot hold, one line each. Called before anything is
        written.
        """
        ...

    def unfit(self, entry: Entry) -> str | None:
        """Return the reason why the format cannot hold a tensor, or None."""
        ...

    def draft(self, checkpoint: Checkpoint, limits: Limits) -> Draft:
        """The file, ready to be written. Raises CkptError."""
        ...

    def compare(self, planned: Checkpoint, written: Checkpoint) -> None:
        """Raise WriteError unless the written file holds what was planned. Reads no
        tensor data.
        """
        ...

    def compare_bytes(self, planned: Checkpoint, written: Checkpoint) -> None:
        """Raise WriteError unless every byte of a tensor in the written file equals its
        source.
        """
        ...


class CanAppend(Protocol):
    """The module that writes a format with the trait `in_place`: a rewrite may append
    to the file.
    """

    def append(self, checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
        """Return (the bytes to append, the bytes that make them valid once they are on
        the disk).

        Raises CkptError.
        """
        ...

    def end_before(self, source: Source, limits: Limits) -> int | None:
        """Return the end of the file before its last rewrite, complete or not, or None
        without a rewrite.
        """
        ...


class CanRelist(Protocol):
    """The module that writes a format with the trait `is_folder`: its items may get
    other names where they are.
    """

    def listing(self, checkpoint: Checkpoint) -> Source | None:
        """Return the file that lists all items, or None where several files
        list them.
        """
        ...

    def relisting(
        self, checkpoint: Checkpoint, names: Sequence[str], limits: Limits
    ) -> Relisting:
        """The new list of the items, which stay where they are. `names` are those that
        the folder has.

        Raises CkptError.
        """
        ...


class Damage(NamedTuple):
    """Data that differs from what the file records of it, and the id of its storage."""

    what: str
    storage: str | None = None


class ChecksumReport(NamedTuple):
    """The result of a comparison with checksums: bytes compared, damage, and bytes of
    tensors without a checksum.

    `unread` says what could not be read, and why.
    """

    nbytes: int
    damage: tuple[Damage, ...]
    unchecked: int
    unread: tuple[str, ...] = ()

    @classmethod
    def together(cls, reports: Sequence[ChecksumReport]) -> ChecksumReport:
        """The report on several files."""
        nbytes = 0
        unchecked = 0
        damage: list[Damage] = []
        unread: list[str] = []
        for report in reports:
            nbytes += report.nbytes
            unchecked += report.unchecked
            damage += report.damage
            unread += report.unread
        return cls(nbytes, tuple(damage), unchecked, tuple(unread))

    def about(self, file: str) -> ChecksumReport:
        """The report with the name of its file on each damage."""
        damage = tuple(row._replace(what=f"{file}: {row.what}") for row in self.damage)
        unread = tuple(f"{file}: {text}" for text in self.unread)
        return self._replace(damage=damage, unread=unread)


List = Callable[["Location", str], "list[RecordedFile]"]
"""Lists the items of another file, or of a folder, below a name."""

Check = Callable[["Location", str], ChecksumReport]
"""Checks another file in the same way. The ids of its storages begin with the text."""


class CanVerify(Protocol):
    """The module that compares a file with what it records of itself."""

    def checksums(
        self,
        probe: Probe,
        limits: Limits,
        executor: Executor,
        progress: Progress | None,
        check: Check,
    ) -> ChecksumReport:
        """Compare every checksum in the file with its bytes. `check` does so for
        another file of the same checkpoint.

        Reads the whole file. Raises CkptError.
        """
        ...


class CanList(Protocol):
    """The verifier of a format whose files record checksums, or of one of several
    files, each listed by itself.
    """

    def recorded(
        self, probe: Probe, limits: Limits, executor: Executor, inner: List
    ) -> list[RecordedFile]:
        """List what the file records of its items. `inner` does so for another file of
        the same checkpoint.

        Reads no tensor data. The only file of a checkpoint has no name. Raises
        CkptError.
        """
        ...


class CanSalvage(Protocol):
    """The module that reads what is left of a file that is cut off or damaged."""

    def salvage(self, probe: Probe, limits: Limits) -> Checkpoint | None:
        """Return the checkpoint with a notice that lists the tensors that are not
        whole. Raises CkptError.

        Return None when nothing is left, and for files of other formats.
        """
        ...


def no_checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Progress | None,
    check: Check,
) -> ChecksumReport:
    """`CanVerify.checksums` of a format without checksums."""
    return ChecksumReport(0, (), probe.size)


TORCH = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")
SAFETENSORS = (".safetensors", ".sft")
PICKLE = (".pkl", ".pickle", ".joblib")
DISTRIBUTED = ".distcp"
"""The ending of the data files of a distributed checkpoint: none of them is a
checkpoint of its own.
"""

WEIGHTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".gguf")
"""Endings of files that a folder is searched for."""
CHECKPOINTS = (*WEIGHTS, ".index.json", ".pth.tar", ".th")
"""A file with one of these that is no checkpoint is an error."""
PERHAPS = (".pkl", ".zip", ".nemo", ".joblib", ".tar", ".pt2", ".ptl")
"""Files with these are often something else."""
HEAD_BYTES = 4096


def has_checkpoint_name(path: str) -> bool:
    """Tell whether a path has the ending of a checkpoint or of an index."""
    return path.lower().endswith(CHECKPOINTS) or is_index(path)


class Probe:
    """One location, opened once for all formats. `source` is None for a folder.

    `open` reads another location in the same way, for a format of several files. `mark`
    is the prefix of the storage ids, so that the ids of several files stay apart.
    `budget` is what is left of the limits for all of them. With `partial`, what is left
    of damaged files and of incomplete sets is read, with a notice of what is lost.
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
        self.keep_damaged = False
        """A flag: with `partial`, pickles that do not match their checksums are read
        too.
        """
        self.names_from: Location | None = None
        """Another save, after which the items of an interrupted one are named."""
        self.budget = budget or Budget(limits)
        self.location = location
        self.path = location.name
        self.limits = limits
        self.open = open
        self.mark = mark
        self.is_folder = location.is_folder()
        # Opened once: each format looks at the same bytes.
        self.source: Source | None = None if self.is_folder else location.open()
        self.size = self.source.size if self.source else 0
        self.head = (
            self.source.read(0, min(HEAD_BYTES, self.size)) if self.source else b""
        )

    @property
    def file(self) -> Source:
        """The file. Only for formats of one file."""
        assert self.source is not None
        return self.source

    @cached_property
    def is_tar(self) -> bool:
        """Tell whether the file is a tar archive, whatever else its first bytes say:
        torch asks so before all but zip.
        """
        # Here: formats of tar archives import this module.
        from ckpt.formats.common.tar import is_tar

        return is_tar(self.head)

    @cached_property
    def archive(self) -> Archive | None:
        """The directory of a zip archive, None for other files. Raises UnreadableError
        when it is damaged.
        """
        if self.source is None or not self.head.startswith(b"PK\x03\x04"):
            return None
        # Several archives in a row; the DCP metadata says where each begins.
        if self.path.endswith(".distcp"):
            return None
        return read_archive(self.source, self.limits)

    def close(self) -> None:
        """Close the file."""
        if self.source is not None:
            self.source.close()
