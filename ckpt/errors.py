"""What goes wrong for a user: the file, the problem, the way out. One line each, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CkptError(Exception):
    """A failure that has a name: `path: problem (hint)`.

    Rooms that do not know the file's name raise without it; `about` puts it in front.
    """

    def __init__(self, problem: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args, self.__dict__)

    @property
    def advice(self) -> str:
        """The problem with its hint, for whoever says the path elsewhere."""
        return f"{self.problem} ({self.hint})" if self.hint else self.problem

    def __str__(self) -> str:
        text = self.problem if self.path is None else f"{self.path}: {self.problem}"
        if self.hint is None:
            return text
        from shlex import quote  # here: most runs have no error

        hint = self.hint.replace("FILE", quote(self.path)) if self.path is not None else self.hint
        return f"{text} ({hint})"


def _again(kind: type[CkptError], args: tuple[object, ...], fields: dict[str, object]) -> CkptError:
    """An error that comes from another process, whatever its class takes."""
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(fields)
    return made


class UnreadableError(CkptError):
    """The file is missing, damaged, hostile or ambiguous: nothing true can be said about its content."""


class CutOffError(UnreadableError):
    """The file ends before its content does."""


class DamagedDataError(UnreadableError):
    """Bytes that the container read do not give what it recorded of them: a checksum, an inflated size."""


class NotOpenedError(UnreadableError):
    """The file could not be looked at: it is not there, or may not be read. Nothing is known about it."""


class UnsupportedError(CkptError):
    """The file was recognised, and is not a checkpoint or not one that this version reads."""


class LimitError(CkptError):
    """The file needs more than a limit allows; the hint names the flag that raises it."""

    def __init__(self, what: str, limit: str, allowed: int) -> None:
        super().__init__(f"{what} (more than {allowed:,})", hint=f"--limit {limit}=N raises this")
        self.limit = limit


class UsageError(CkptError):
    """What was asked for is not there, or contradicts itself."""


class WriteError(CkptError):
    """The result cannot be written; whatever was there before still is."""


class LossError(CkptError):
    """The format that was asked for cannot hold everything; nothing was written."""


@contextmanager
def about(path: str) -> Iterator[None]:
    """Put the file's name in front of errors from rooms that do not know it."""
    try:
        yield
    except CkptError as error:
        if error.path is None:
            error.path = path
        raise
