"""The files of a checkpoint in several files: each is opened, kept, left out and closed
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Generic, Protocol, TypeVar

from ckpt.bytes.location import Location, names_opened_ahead
from ckpt.bytes.source import Source
from ckpt.formats.format import ChecksumReport
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, LimitError, NotOpenedError
from ckpt.model.text import show


class _Opened(Protocol):
    def close(self) -> None: ...


_File = TypeVar("_File", bound=_Opened)


def is_damage(error: CkptError) -> bool:
    """Tell whether an error says that a file is damaged: not that it is too large to be
    read, or cannot be opened.
    """
    return not isinstance(error, (LimitError, NotOpenedError))


class FileSet(Generic[_File]):
    """The files in a folder, by their names, each as `open_file` opens it.

    An error that `skips` takes leaves a file out: it is kept in `unread`, and the other
    files are read.
    """

    def __init__(
        self,
        folder: Location,
        open_file: Callable[[str], _File],
        skips: Callable[[CkptError], bool],
    ) -> None:
        self._folder = folder
        self._open_file = open_file
        self._skips = skips
        self.files: dict[str, _File] = {}
        self.unread: dict[str, CkptError] = {}

    def open_each(self, names: Iterable[str]) -> Iterator[tuple[str, _File]]:
        """Open files one after the other, and yield those that can be read. Behind a
        URL the next ones are opened meanwhile.
        """
        for name in names_opened_ahead(self._folder, names):
            file = self.open(name)
            if file is not None:
                yield name, file

    def open_all(self, names: Iterable[str]) -> None:
        """Open files one after the other."""
        for _ in self.open_each(names):
            pass

    def open(self, name: str) -> _File | None:
        """Open a file, and return None where it is left out. Raises CkptError."""
        try:
            # Kept by its name at once, so that an error of a later file closes it.
            file = self.files[name] = self._open_file(name)
        except CkptError as error:
            if not self._skips(error):
                raise
            self.unread[name] = error
            return None
        return file

    def drop(self, name: str) -> None:
        """Close a file that does not belong to the checkpoint."""
        self.files.pop(name).close()

    @contextmanager
    def closing_on_errors(self) -> Iterator[None]:
        """Close all files where the work on them fails."""
        try:
            yield
        # Every exception: Ctrl-C leaves no file open either.
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class CheckpointFiles(FileSet[Checkpoint]):
    """The files of a set that are checkpoints themselves. With `partial` a damaged one
    is left out, with a notice.
    """

    def __init__(
        self, folder: Location, open_file: Callable[[str], Checkpoint], *, partial: bool
    ) -> None:
        super().__init__(folder, open_file, is_damage if partial else _is_nothing)
        self.notices: list[Notice] = []

    def open(self, name: str) -> Checkpoint | None:
        file = super().open(name)
        if file is None:
            # Nothing is left out in silence.
            self.notices.append(not_read(name, self.unread[name]))
        return file

    def refuse_nothing(self) -> None:
        """Raise the error of the first file where none could be read."""
        if not self.files:
            raise next(iter(self.unread.values()))

    def cut_in(self, name: str) -> tuple[str, ...]:
        """The names of the tensors that a file lacks bytes of."""
        return incomplete_in(self.files[name])

    def leave_out(self, name: str, others: str) -> None:
        """Close a file of another step than the `others`, with a notice."""
        self.drop(name)
        text = f"{show(name, 80)} is of another step than {others} and was not read"
        self.notices.append(Notice("damaged-file", text))

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files.values())

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(chain.from_iterable(file.sources for file in self.files.values()))


def _is_nothing(error: CkptError) -> bool:
    return False


def not_read(name: str, error: CkptError) -> Notice:
    """The notice of a file that cannot be read."""
    text = f"{show(name, 80)} was not read: {error.advice}"
    return Notice("damaged-file", text, file=name)


def check_files(
    names: Iterable[str],
    check: Callable[[str], ChecksumReport],
    *,
    partial: bool = False,
    prefix: str = "",
) -> ChecksumReport:
    """The reports on the files of a set, each with its name. With `partial` a damaged
    one is passed: its reader has said so.
    """
    reports: list[ChecksumReport] = []
    for name in names:
        try:
            # Damage is said with the name of its file.
            reports.append(check(name).about(f"{prefix}{name}"))
        except CkptError as error:
            if not partial or not is_damage(error):
                raise
    return ChecksumReport.together(reports)


def incomplete_in(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the tensors that a file lacks bytes of, as its
    notices say.
    """
    notices = checkpoint.account.noticed("incomplete")
    return tuple(chain.from_iterable(notice.tensors for notice in notices))
