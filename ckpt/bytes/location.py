"""The path that a user typed: a file or a folder, and the files beside or inside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, Protocol, cast

from ckpt.bytes.far import Published, is_url
from ckpt.bytes.source import File, Source, read_failure_reason, read_limited
from ckpt.hooks import load_hook
from ckpt.model.errors import LinkError, NotOpenedError, UnreadableError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import LazyPattern, without_index
from ckpt.model.text import show

Links = Literal["file", "cache", "no"]
"""The links that a child may be.

A link may lead to any regular file, or to one in the `blobs/` of the same Hugging Face
cache, or no link is followed.
"""
_CACHED = LazyPattern(r"(models|datasets|spaces)--.+")


class Location(Protocol):
    """A file or a folder, local or remote. A reader of several files opens them only
    through a location.

    Children have plain names only, so a name in a file can never lead out of its
    folder.
    """

    @property
    def name(self) -> str:
        """The path or URL as it was typed."""
        ...

    def is_folder(self) -> bool: ...

    def is_file(self) -> bool:
        """Tell whether it is a regular file, or a link to one."""
        ...

    def names(self) -> list[str]:
        """The names in a folder, sorted. Names of folders end with a slash. Raises
        NotOpenedError.
        """
        ...

    def parent(self) -> Location:
        """The folder that contains it."""
        ...

    def child(self, name: str, links: Links = "file") -> Location:
        """The location of a plain name in this folder. Raises UnreadableError for a
        name that leads elsewhere.
        """
        ...

    def open(self) -> Source:
        """The file. Raises NotOpenedError."""
        ...


def readable_names(folder: Location) -> list[str]:
    """Return the names in a folder; none where it cannot be read."""
    try:
        return folder.names()
    except NotOpenedError:
        return []


def is_plain_name(name: str) -> bool:
    """Tell whether a name is a plain file name and not a path."""
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")


class LocalPath:
    """A path of this machine."""

    def __init__(self, path: str) -> None:
        self.name = path

    def is_folder(self) -> bool:
        return os.path.isdir(self.name)

    def is_file(self) -> bool:
        return os.path.isfile(self.name)

    def names(self) -> list[str]:
        try:
            with os.scandir(self.name) as entries:
                return sorted(
                    # The type comes with the listing; asking for each would be a call
                    # per file.
                    f"{entry.name}/" if entry.is_dir() else entry.name
                    for entry in entries
                )
        except OSError as error:
            raise NotOpenedError(read_failure_reason(error), path=self.name) from None
        # Python raises it for a NUL, before the system is asked.
        except ValueError:
            raise NotOpenedError(
                "not a file name: it holds a NUL", path=self.name
            ) from None

    def parent(self) -> Location:
        return LocalPath(os.path.dirname(self.name) or os.curdir)

    def child(self, name: str, links: Links = "file") -> Location:
        # Names beside the working folder stay bare, as a person types them.
        path = name if self.name == os.curdir else os.path.join(self.name, name)
        if not is_plain_name(name):
            raise UnreadableError(
                f"{show(name, 80)} is not a file in this folder", path=self.name
            )
        # A link may lead out of the folder, which a plain name cannot.
        if os.path.islink(path):
            why = _link_refusal(path, links)
            if why is not None:
                raise LinkError(f"{show(name, 80)} is a link{why}", path=self.name)
        return LocalPath(path)

    def open(self) -> Source:
        return File(self.name)


class Alone:
    """A file that is already open, with no others beside it: bytes, or a file object of
    a program.
    """

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self._source = source

    def is_folder(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True

    def names(self) -> list[str]:
        raise NotOpenedError("not a folder", path=self.name)

    def parent(self) -> Location:
        return _Nothing(self.name)

    def child(self, name: str, links: Links = "file") -> Location:
        raise NotOpenedError("not a folder", path=self.name)

    def open(self) -> Source:
        return self._source


class _Nothing:
    """The folder of a file that was given without a path: nothing is in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_folder(self) -> bool:
        return True

    def is_file(self) -> bool:
        return False

    def names(self) -> list[str]:
        return []

    def parent(self) -> Location:
        return self

    def child(self, name: str, links: Links = "file") -> Location:
        problem = f"it needs {show(name, 80)} beside it"
        raise UsageError(problem, path=self.name, hint="open it by its path")

    def open(self) -> Source:
        raise NotOpenedError("not a file", path=self.name)


class Instead:
    """A folder in which the file `path` stands for the one of the name `other`: as it
    will be.
    """

    def __init__(self, folder: Location, other: str, path: str) -> None:
        self._folder = folder
        self._other = other
        self._path = path

    @property
    def name(self) -> str:
        return self._folder.name

    def is_folder(self) -> bool:
        return True

    def is_file(self) -> bool:
        return False

    def names(self) -> list[str]:
        return self._folder.names()

    def parent(self) -> Location:
        return self._folder.parent()

    def child(self, name: str, links: Links = "file") -> Location:
        if name == self._other:
            return LocalPath(self._path)
        return self._folder.child(name, links)

    def open(self) -> Source:
        return self._folder.open()


def _link_refusal(path: str, links: Links) -> str | None:
    """Return the reason why a link is not followed, or None. A link that leads nowhere
    is a missing file.
    """
    if links == "no":
        return ": no link in this folder is followed"
    # A link to nowhere goes on, and is an error of a missing file.
    if os.path.exists(path) and not os.path.isfile(path):
        return ", but not to a file"
    if links == "cache" and not _is_cached(path):
        return ": only one to the blobs/ of the same Hugging Face cache is followed"
    return None


def _is_cached(path: str) -> bool:
    """Tell whether a link in `models--x--y/snapshots/REVISION/` leads directly into
    `models--x--y/blobs/`.
    """
    # Both sides are resolved: the cache itself may lie behind a link.
    folder = os.path.realpath(os.path.dirname(path) or os.curdir)
    target_folder = os.path.dirname(os.path.realpath(path))
    parts = folder.split(os.sep)
    # The revision itself does not count: its name is a hash, or whatever a user calls
    # it.
    for index, (above, part) in enumerate(pairwise(parts[:-1]), start=1):
        if part == SNAPSHOTS and _CACHED.fullmatch(above):
            blobs = os.sep.join([*parts[:index], "blobs"])
            if target_folder == blobs:
                return True
    return False


SNAPSHOTS = "snapshots"
"""The folder of the snapshots of a model in a Hugging Face cache."""


def is_cached_model(path: str) -> bool:
    """Tell whether a local path is the folder of a model in a Hugging Face cache:
    `models--ORG--NAME`.
    """
    # The test of the text is cheap, and nearly all paths end here.
    name = os.path.basename(os.path.normpath(path)) if "models--" in path else ""
    return name.startswith("models--") and os.path.isdir(os.path.join(path, SNAPSHOTS))


def locate(path: str) -> Location:
    """The location of a path or URL. Raises UsageError for a URL that lacks a part."""
    if not is_url(path):
        return LocalPath(path)
    # Only a URL pays for the module that finds it.
    hook = load_hook("url location").locate_url
    return cast("Callable[[str], Location]", hook)(path)


def published_files(path: str) -> dict[str, Published]:
    """Return the files that a Hugging Face URL leads to, with their hashes, by their
    paths below it.

    Raises NotOpenedError, UnreadableError, UsageError.
    """
    listed = load_hook("published files").published_files
    return cast("Callable[[str], dict[str, Published]]", listed)(path)


def names_opened_ahead(folder: Location, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of files that are opened one after the other. Behind a URL the
    next ones are opened meanwhile.
    """
    if not is_url(folder.name):
        yield from names
        return
    hook = load_hook("url location").begun
    begin = cast("Callable[[Location, Iterable[str]], Iterator[str]]", hook)
    yield from begin(folder, names)


def shown_path(text: str) -> str:
    """A path as it is; a URL without its password and query, which `locate` finds again
    in this process.
    """
    if not is_url(text):
        return text
    return cast("Callable[[str], str]", load_hook("url").shown)(text)


def with_home(path: str) -> str:
    """A path with `~` as the folder of the user, as a shell has it. A file that is
    really called so comes first.
    """
    if path.startswith("~") and not os.path.lexists(path):
        return os.path.expanduser(path)
    return path


def read_file(location: Location, limits: Limits, what: str) -> bytes:
    """All bytes of a small file beside a checkpoint: an index, stored sums. Raises
    LimitError, NotOpenedError.
    """
    source = location.open()
    try:
        return read_limited(source, limits.index_bytes, "index-bytes", what)
    finally:
        source.close()


_MOST = 200
"""Bytes of a name that is made; file systems take 255."""
_TRIES = 100


def is_lasting(path: str) -> bool:
    """Tell whether the next command finds the same file or folder at a path: not at a
    pipe or /dev/stdin.
    """
    try:
        there = os.path.isfile(path) or os.path.isdir(path)
    except ValueError:
        return False
    return there and not path.startswith(("/dev/", "/proc/"))


def path_beside(
    path: str, suffix: str, endings: Sequence[str], *, other: bool = True
) -> str | None:
    """A path for a result beside its input: `run/a.pth` with `.cpu` becomes
    `run/a.cpu.pth`.

    It keeps the ending of the input when that is one of `endings`, or none of them is
    asked for, else it takes the first. With `other=False` it is always the first. In a
    folder that takes no files, the name is one for the working folder. None where no
    folder takes it.
    """
    # A result is written here, and not to where its input was loaded from.
    local_path = path.rpartition("/")[2] if is_url(path) else path
    stem, own_ending = _split_ending(local_path, endings)
    is_kept = other and (not endings or own_ending.endswith(tuple(endings)))
    ending = own_ending if is_kept else endings[0]
    folder, name = os.path.split(stem)
    # The working folder is second, where the folder of the input takes no files.
    for place in (folder, ""):
        if os.access(place or os.curdir, os.W_OK | os.X_OK):
            return _free_path(place, name, suffix, ending)
    return None


def _split_ending(path: str, endings: Sequence[str]) -> tuple[str, str]:
    """A path without its ending, and the ending; a folder has one of `endings`
    or none.
    """
    path = os.path.normpath(path)
    # `.` and `..` have no name to put a suffix behind.
    if os.path.basename(path) in (os.curdir, os.pardir, ""):
        path = os.path.abspath(path)
    if os.path.isdir(path):
        own = next((ending for ending in endings if path.endswith(ending)), "")
        return path.removesuffix(own), own
    stem, own = os.path.splitext(without_index(path))
    # `epoch_3.pth.tar`: no archive, but the way of many old training scripts to call a
    # checkpoint.
    if own == ".tar":
        stem, inner = os.path.splitext(stem)
        own = f"{inner}{own}"
    return stem, own


def _free_path(folder: str, name: str, suffix: str, ending: str) -> str | None:
    """Return a path that nothing has yet, or None after many tries."""
    rest = _MOST - len(os.fsencode(f"{suffix}{ending}"))
    # Letter by letter: a letter may have several bytes, and none may be cut in two.
    while len(os.fsencode(name)) > rest:
        name = name[:-1]
    for number in range(1, _TRIES):
        more = "" if number == 1 else f".{number}"
        path = os.path.join(folder, f"{name}{suffix}{more}{ending}")
        # A link that leads nowhere has the name too.
        if not os.path.lexists(path):
            return path
    return None
