"""The paths that lead to another machine, and the claims about bytes there that are not
read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from ckpt.hooks import load_hook
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    from ckpt.bytes.source import Source
    from ckpt.bytes.target import FolderSink, Progress, Sink, Target

T = TypeVar("T")
Reading = tuple["Source", int, int]
"""Bytes of a source that are going to be read: the first one, and the one behind the
last.
"""


class Claim(Protocol):
    """A claim about the bytes `begin` to `end` of a far source, checked when they are
    read.
    """

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    def lead(self, offset: int) -> int:
        """Return the offset at which a read should begin, so that one request brings
        what `check` needs.
        """
        ...

    def check(self, offset: int, end: int, read: Callable[[int, int], bytes]) -> None:
        """Raise UnreadableError when the bytes are not those that were foreseen."""
        ...


class Published(NamedTuple):
    """A file as a server publishes it: its size in bytes, and a hash of all of them."""

    size: int
    digest: str
    """Hexadecimal, lower case."""
    is_blob: bool = False
    """True for the SHA-1 by which git names a file, False for a SHA-256."""


class Far(Protocol):
    """A source of which each read costs a request. Its claims go with it to another
    process.
    """

    @property
    def claims(self) -> Sequence[Claim]: ...

    def claim(self, claim: Claim) -> None:
        """Check this at each later read."""
        ...


class Used:
    """The flag that this process has opened a far source: before, nothing needs to be
    foreseen.
    """

    sources = False


class Told:
    """The function that tells the user a line while something far is waited for, or
    None.
    """

    tell: Callable[[str], None] | None = None


def tell(line: str) -> None:
    """Tell the user something, where somebody listens."""
    if Told.tell is not None:
        Told.tell(line)


class _Reader(Protocol):
    def reads(self) -> Iterator[Reading]: ...


def readings_of(things: Iterable[object]) -> Iterator[Reading]:
    """The bytes that are read of things that say so by `reads`, in lists and tuples
    too.
    """
    # Plain arguments of a task, such as numbers and texts, read nothing.
    for thing in things:
        if hasattr(thing, "reads"):
            yield from cast("_Reader", thing).reads()
        elif isinstance(thing, (list, tuple)):
            yield from readings_of(thing)


class Turns(Protocol):
    """The work on groups of bytes that are foreseen."""

    def turn(self, number: int) -> AbstractContextManager[None]:
        """Read a group in the block. Several may be read at once, and they begin in
        order.
        """
        ...


class _Unforeseen:
    """Groups of which none lies on another machine."""

    def turn(self, number: int) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def reading_ahead(groups: Iterable[Iterable[Reading]]) -> Iterator[Turns]:
    """Ask for what lies on other machines while the block reads it, group by group, in
    few requests and many at once.
    """
    # Local files are read at once; the module is not even imported for them.
    if not Used.sources:
        yield _Unforeseen()
        return
    ahead = _ahead_module().Ahead(groups)
    try:
        yield ahead
    finally:
        ahead.close()


def iterate_ahead(things: Sequence[T]) -> Iterator[T]:
    """Yield things that are read one after the other, and ask ahead for what lies on
    other machines.
    """
    if not Used.sources:
        yield from things
        return
    with reading_ahead(readings_of([thing]) for thing in things) as turns:
        for number, thing in enumerate(things):
            with turns.turn(number):
                yield thing


@contextmanager
def reading_ahead_at_once(readings: Iterable[Reading]) -> Iterator[None]:
    """Ask for what the block reads, in few requests and many at once. Without a far
    source nothing happens.
    """
    # The readings are an iterator: they are listed once, for both uses.
    if not Used.sources or not _ahead_module().is_worth(readings := list(readings)):
        yield
        return
    with reading_ahead([readings]) as turns, turns.turn(0):
        yield


class _Ahead(Turns, Protocol):
    def close(self) -> None: ...


class _Module(Protocol):
    """The part of the hook "reading ahead" that is used here."""

    # Named as the class of the hook's module, so that the module itself fits.
    def Ahead(self, groups: Iterable[Iterable[Reading]]) -> _Ahead: ...  # noqa: N802

    def is_worth(self, readings: Sequence[Reading]) -> bool: ...


def _ahead_module() -> _Module:
    return cast("_Module", load_hook("reading ahead"))  # only a URL pays for it


class Scheme(NamedTuple):
    """The abilities of the servers behind the URLs of one scheme."""

    store: str = ""
    """The class of `obstore.store` that reads and writes an object store; empty for
    other servers.
    """
    lists: bool = True
    """The server lists the names of a folder."""
    tails: bool = True
    """It answers for the last bytes without knowing the size."""
    lists_etags: bool = False
    """Its listings are known to give the ETag that a request gives: else they give
    sizes alone.
    """
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
    # The longest scheme is `https`, so most paths are told apart without a copy.
    return ":" in path[:6] and path.lower().startswith(_BEGINNINGS)


class Writer(Protocol):
    """The functions that write to another machine, as `writing` and `writing_folder`
    write here.
    """

    def file_target(self, url: str, *, force: bool) -> Target: ...

    def folder_target(self, url: str) -> Target: ...

    def file(
        self, to: Target, size: int, progress: Progress | None
    ) -> AbstractContextManager[Sink]: ...

    def folder(
        self, to: Target, size: int, progress: Progress | None
    ) -> AbstractContextManager[FolderSink]: ...

    def names(self, url: str) -> list[str]: ...

    def removed(self, url: str) -> list[str]: ...

    def cleared(self, folder: str, gone: Sequence[str]) -> list[str]: ...


def url_writer() -> Writer:
    """Return the writer to a URL. Only a URL pays for its module."""
    return cast("Writer", load_hook("url target"))
