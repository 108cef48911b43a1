"""What a user typed: a file or a folder, and the files beside or inside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Literal, Protocol, cast

from ckpt.errors import NotOpenedError, UnreadableError
from ckpt.io.far import is_url
from ckpt.io.source import File, Source, read_limited, reason
from ckpt.limits import Limits
from ckpt.text import show

Links = Literal["file", "no"]
"""Whether a child may be a link to a regular file, as in the Hugging Face cache, or must not be a link."""


class Location(Protocol):
    """A file or a folder, local or remote. A reader of several files opens them only through a location.

    Children have plain names only, so a name in a file can never lead out of its folder.
    """

    @property
    def name(self) -> str:
        """The path or URL as it was typed."""
        ...

    def is_folder(self) -> bool: ...

    def is_file(self) -> bool:
        """Whether it is a regular file, or a link to one."""
        ...

    def names(self) -> list[str]:
        """The names in a folder, sorted. Names of folders end with a slash. Raises NotOpenedError."""
        ...

    def parent(self) -> Location:
        """The folder that contains it."""
        ...

    def child(self, name: str, links: Links = "file") -> Location:
        """The location of a plain name in this folder. Raises UnreadableError for a name that leads elsewhere."""
        ...

    def open(self) -> Source:
        """The file. Raises NotOpenedError."""
        ...


def is_plain_name(name: str) -> bool:
    """Whether a name is a plain file name and not a path."""
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
                return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
        except OSError as error:
            raise NotOpenedError(reason(error), path=self.name) from None
        except ValueError:
            raise NotOpenedError("not a file name: it holds a NUL", path=self.name) from None

    def parent(self) -> Location:
        return LocalPath(os.path.dirname(self.name) or os.curdir)

    def child(self, name: str, links: Links = "file") -> Location:
        path = name if self.name == os.curdir else os.path.join(self.name, name)
        refused = not is_plain_name(name)
        if not refused and os.path.islink(path):  # one that leads nowhere is a file that is missing
            refused = links == "no" or (os.path.exists(path) and not os.path.isfile(path))
        if refused:
            raise UnreadableError(f"{show(name, 80)} is not a file in this folder", path=self.name)
        return LocalPath(path)

    def open(self) -> Source:
        return File(self.name)


def locate(path: str) -> Location:
    """The location of a path or URL. Raises UsageError for a URL that lacks a part."""
    if not is_url(path):
        return LocalPath(path)
    made = import_module("ckpt.io.remote.location").locate_url  # named as text: only a URL pays for it
    return cast("Callable[[str], Location]", made)(path)


def shown(text: str) -> str:
    """A path as it is; a URL without its password and query, which `locate` finds again in this process."""
    if not is_url(text):
        return text
    return cast("Callable[[str], str]", import_module("ckpt.io.remote.url").shown)(text)


def read_file(location: Location, limits: Limits, what: str) -> bytes:
    """All bytes of a small file beside a checkpoint: an index, stored sums. Raises LimitError, NotOpenedError."""
    source = location.open()
    try:
        return read_limited(source, limits.index_bytes, "index-bytes", what)
    finally:
        source.close()
