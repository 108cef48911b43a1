"""The paths that lead to another machine, and the claims about bytes there that are not read yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from ckpt.rows import NamedTuple

if TYPE_CHECKING:
    from ckpt.io.target import FolderSink, Progress, Sink, Target


class Claim(Protocol):
    """A claim about the bytes of a far source, checked when they are read. Offsets are in bytes."""

    def lead(self, offset: int) -> int:
        """Return the offset at which a read should begin, so that one request brings what `check` needs."""
        ...

    def check(self, offset: int, end: int, read: Callable[[int, int], bytes]) -> None:
        """Raise UnreadableError when the bytes are not those that were foreseen."""
        ...


class Far(Protocol):
    """A source of which each read costs a request. Its claims go with it to another process."""

    @property
    def claims(self) -> Sequence[Claim]: ...

    def claim(self, claim: Claim) -> None:
        """Check this at each later read."""
        ...


class Scheme(NamedTuple):
    """The abilities of the servers behind the URLs of one scheme."""

    store: str = ""
    """The class of `obstore.store` that reads and writes an object store; empty for other servers."""
    lists: bool = True
    """The server lists the names of a folder."""
    tails: bool = True
    """It answers for the last bytes without knowing the size."""
    lists_etags: bool = False
    """Its listings are known to give the ETag that a request gives. Azure's lack its quotes."""
    gives_md5: bool = False
    """The ETag of an object may be the MD5 of its bytes."""


SCHEMES = {
    "s3": Scheme("S3Store", lists_etags=True, gives_md5=True),
    "gs": Scheme("GCSStore"),
    "az": Scheme("AzureStore", tails=False),
    "hf": Scheme(),
    "http": Scheme(lists=False),
    "https": Scheme(lists=False),
}
_BEGINNINGS = tuple(f"{name}://" for name in SCHEMES)


def is_url(path: str) -> bool:
    """Tell whether a path leads to another machine."""
    return ":" in path[:6] and path.lower().startswith(_BEGINNINGS)


class Writer(Protocol):
    """The functions that write to another machine, as `writing` and `writing_folder` write here."""

    def file_target(self, url: str, *, force: bool) -> Target: ...

    def folder_target(self, url: str) -> Target: ...

    def file(self, to: Target, size: int, progress: Progress | None) -> AbstractContextManager[Sink]: ...

    def folder(
        self, to: Target, size: int, progress: Progress | None
    ) -> AbstractContextManager[FolderSink]: ...

    def names(self, url: str) -> list[str]: ...

    def removed(self, url: str) -> list[str]: ...

    def cleared(self, folder: str, gone: Sequence[str]) -> list[str]: ...


def writer() -> Writer:
    """Return the writer to a URL. Its module is named as text: only a URL pays for it."""
    return cast("Writer", import_module("ckpt.io.remote.target"))
