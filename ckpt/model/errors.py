"""Errors for users: the file, the problem, and a hint, in one line without a
traceback.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from ckpt.model.rows import NamedTuple

STOPPED = 51
"""EL2HLT, the errno of what the fence refuses. Linux itself never gives it, so EPERM of
a disk is not mistaken for it.
"""


class Failure(NamedTuple):
    """An error about one file, as reports hold it; docs/json.md lists the codes."""

    code: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


class Words:
    """A switch of this process: errors have the words of Python, or of the command
    line that is answered.
    """

    are_options = False


@contextmanager
def saying_options() -> Iterator[None]:
    """Say `--force` in the errors of a block, and not `force=True`."""
    before = Words.are_options
    Words.are_options = True
    try:
        yield
    finally:
        Words.are_options = before


_FLAGS = frozenset(
    (
        "copy",
        "drop-other",
        "force",
        "in-place",
        "init",
        "keep-code",
        "keep-damaged",
        "parents",
        "partial",
        "read-values",
        "with-config",
    )
)
"""Options without a value, which hints ask for."""
_CHOICES = frozenset(("encoding", "format", "on-mismatch", "packing", "verify"))
"""Options with a word as their value."""


def as_keywords(text: str, *, is_hint: bool = False) -> str:
    """Return the text of an error with the keywords of Python in the place of options:
    `out="x.pth"` for `-o x.pth`, `min_coverage=0.9` for `--min-coverage 0.9`.

    A command of ckpt or pip in it stays. In a hint an option without a value becomes
    `force=True`.
    """
    import re  # here: only an error pays for it

    def keyword_of(found: re.Match[str]) -> str:
        option, value = found[1], found[2] or ""
        name = option.replace("-", "_")
        if is_hint and option.endswith("section") and value:
            return f'{name}="{value[1:]}"'
        # A number, or a word that stands for a value (`N`, `FILE`), stays as it is.
        plain = re.fullmatch(r" (\d[\d.]*|[A-Z][A-Z_]*|FILE\.py:FACTORY)", value)
        if plain is not None:
            return f"{name}={plain[1]}"
        # Quotes of the shell are quotes of Python too.
        if value.startswith(" '"):
            return f"{name}={value[1:]}"
        # A colon ends the option, and a sentence follows.
        if value.endswith(":"):
            return f'{name}="{value[1:-1]}":'
        if is_hint and option in _CHOICES:
            return f'{name}="{value[1:]}"'
        if is_hint and option in _FLAGS:
            return f"{name}=True{value}"
        return f"{name}={value}"

    def limit_of(found: re.Match[str]) -> str:
        return f"limits=ckpt.Limits({found[1].replace('-', '_')}={found[2]})"

    # A command line follows, which stays as it is to be pasted.
    start = re.search(r"(?:^|(?<=\W))(?:ckpt|pip) [a-z]", text)
    end = len(text) if start is None else start.start()
    said, command = text[:end], text[end:]

    # The same option several times is one keyword with a list.
    def list_of(found: re.Match[str]) -> str:
        values = re.findall(rf"--{found[1]} ('[^']*'|[^\s,]+)", found[0])
        if len(values) == 1:
            # A word that stands for a value (`GLOB`) stays as it is.
            alone = values[0] if values[0].isupper() else _quoted(values[0])
            return f"{found[1]}={alone}"
        return f"{found[1]}=[{', '.join(map(_quoted, values))}]"

    if is_hint:
        said = re.sub(
            r"(?<![\w-])--(exclude|include) ('[^']*'|[^\s,]+)"
            r"( --\1 ('[^']*'|[^\s,]+))*",
            list_of,
            said,
        )
    # Whole phrases first, then single options.
    said = said.replace("-o another name", "another name for out=")
    said = said.replace("-o in another folder", "out= in another folder")
    said = re.sub(r"(?<!\S)-o '([^']*)'", r'out="\1"', said)
    said = re.sub(r"(?<!\S)-o ([^\s,]+)", r'out="\1"', said)
    # Two options in a row become two arguments.
    said = said.replace('" --', '", --')
    said = re.sub(r"(?<![\w-])--limit ([a-z-]+)=(\w+)", limit_of, said)
    said = re.sub(r"(?<![\w-])--([a-z][a-z-]*[a-z])( [^\s,]+)?", keyword_of, said)
    return said + command


def _quoted(value: str) -> str:
    """The value of an option as text of Python."""
    return value if value.startswith("'") else f'"{value}"'


class CkptError(Exception):
    """An error with the text `path: problem (hint)`.

    Code that does not know the file's name raises it without a path; `about` adds the
    path.
    """

    code = "error"
    """The word of its class in JSON, which stays the same."""

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        hint: str | None = None,
        way: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.hint = hint
        self.way = way
        """The command that leads around it, to be planned before the hint names it:
        `("plain",)`, or its words.
        """

    def __reduce__(self) -> tuple[object, ...]:
        # Python would call the class with `args`, and LimitError takes others.
        return _rebuild_error, (type(self), self.args, self.__dict__)

    @property
    def advice(self) -> str:
        """The problem with its hint, without the path, in the words of the command line
        or of Python.
        """
        problem, hint = self.problem, self.hint
        if not Words.are_options:
            problem = as_keywords(problem)
            hint = None if hint is None else as_keywords(hint, is_hint=True)
        return problem if hint is None else f"{problem} ({hint})"

    def said_of(self, path: str, *, hint: bool = True) -> str:
        """The problem with its hint, after the name of the file when that is another
        one: a shard, a file of a folder.
        """
        text = self.advice if hint else self.problem
        if self.path is None or self.path == path:
            return text
        inside = self.path.removeprefix(f"{path.rstrip('/')}/")
        # A shard beside the file is named without their folder; OUT and another
        # checkpoint as they were typed.
        folder, slash, name = self.path.rpartition("/")
        if inside == self.path and (folder, slash) == path.rpartition("/")[:2]:
            inside = name
        return f"{inside}: {text}"

    def failure(self, path: str) -> Failure:
        """The error as the report on a file holds it."""
        return Failure(self.code, self.said_of(path, hint=False), self.hint)

    def __str__(self) -> str:
        if self.path is None:
            return self.advice
        # An empty path would leave nothing before the colon.
        return f"{self.path or repr('')}: {self.advice}"

    def _render_traceback_(self) -> list[str]:
        return lines_in_notebook(self)


def lines_in_notebook(error: BaseException) -> list[str]:
    """Return the lines that IPython shows of an error: the caller's frames without
    ours, and the error in one line.

    Python itself still prints all frames: `traceback.print_last()`.
    """
    from traceback import StackSummary, walk_tb

    # (frame, the first part of the name of its module).
    rooms = [
        (place, str(place[0].f_globals.get("__name__")).partition(".")[0])
        for place in walk_tb(error.__traceback__)
    ]
    ours = __name__.partition(".")[0]
    callers = [
        place
        for place, room in takewhile(lambda row: row[1] != ours, rooms)
        if room != "IPython"
    ]
    text = "".join(
        char if char.isprintable() else ascii(char)[1:-1] for char in str(error)
    )
    frames = "".join(StackSummary.extract(callers).format())
    return [*frames.splitlines(), f"{type(error).__name__}: {text}"]


def _rebuild_error(
    kind: type[CkptError], args: tuple[object, ...], fields: dict[str, object]
) -> CkptError:
    """An error that comes from another process, whatever its class takes."""
    # Without `__init__`, whose arguments differ from class to class.
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


UNFINISHED = "an unfinished download?"
"""The hint of a set of files that lacks one."""


class UnreadableError(CkptError):
    """The file is missing, damaged, hostile or ambiguous, so its content is unknown."""

    code = "unreadable"


class CutOffError(UnreadableError):
    """The file ends before its content does."""

    code = "cut-off"


class DamagedDataError(UnreadableError):
    """The bytes do not match what the container recorded of them: a checksum, or an
    inflated size.
    """

    code = "damaged-data"


class MixedStepsError(UnreadableError):
    """The files of one checkpoint were saved at several steps of the training."""

    code = "mixed-steps"


class NotOpenedError(UnreadableError):
    """The file could not be opened or read: it is missing, or there is no
    permission.
    """

    code = "not-opened"


class LinkError(UnreadableError):
    """A file of a folder is a link, and may not be one, or leads elsewhere. That is no
    damage.
    """

    code = "link"


class UnsupportedError(CkptError):
    """The file was recognised but is not a checkpoint, or not one that this version
    reads.
    """

    code = "unsupported"


class StandInError(UnsupportedError):
    """Something stands where the file should be: a Git LFS pointer, an HTML page, the
    error message of a server.
    """

    code = "stand-in"


class FolderError(UnsupportedError):
    """The path is a folder of checkpoints, and not one itself."""

    code = "folder"


class LimitError(CkptError):
    """The file needs more than a limit allows. The hint names the flag that raises the
    limit.
    """

    code = "limit"

    def __init__(self, what: str, limit: str, allowed: int) -> None:
        super().__init__(
            f"{what} (more than {allowed:,})", hint=f"--limit {limit}=N raises this"
        )
        self.limit = limit


class UsageError(CkptError):
    """The request names something that does not exist, or contradicts itself."""

    code = "usage"


class NoRewriteError(UsageError):
    """A file was never rewritten in place, so there is nothing to take back."""


class WriteError(CkptError):
    """The result cannot be written. An earlier file is unchanged."""

    code = "write"


class LossError(CkptError):
    """The requested format cannot hold everything. Nothing was written."""

    code = "loss"


class CodeError(CkptError):
    """The result would run code of the file when it is loaded. Nothing was written."""

    code = "code"


def is_stopped(error: BaseException) -> bool:
    """Tell whether the fence made an error: then ckpt did what it never should, and the
    file is not to blame.
    """
    # Other systems have no fence, and may use the number otherwise.
    return (
        isinstance(error, OSError)
        and error.errno == STOPPED
        and sys.platform == "linux"
    )


TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""The errors of the system that say nothing of a file: it is neither missing nor
damaged. They are never a NotOpenedError.
"""
TOO_MANY_TEXT = "too many open files (ulimit -n 256 allows more)"


@contextmanager
def about(path: str) -> Iterator[None]:
    """Add the path to errors from code that does not know it."""
    try:
        yield
    except CkptError as error:
        # The innermost file: an error in a shard keeps the name of the shard.
        if error.path is None:
            error.path = path
        raise
