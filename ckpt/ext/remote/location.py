"""A file or a folder behind a URL."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckpt.bytes.location import is_plain_name
from ckpt.ext.remote.source import RangeSource, retried
from ckpt.ext.remote.store import Known, Store
from ckpt.ext.remote.url import (
    Url,
    escape_name,
    parse_url,
    share_login,
    shown,
    typed_url,
)
from ckpt.model.errors import NotOpenedError, UnreadableError
from ckpt.model.text import show

if TYPE_CHECKING:
    from ckpt.bytes.far import Claim
    from ckpt.bytes.location import Links, Location
    from ckpt.bytes.source import Identity, Source

Names = dict[str, Known | None]


_BEFORE = 32
"""The most files that are opened before somebody reads them."""
_FRESH = 60
"""Seconds for which a file that was opened counts as it is."""


class RemotePath:
    """A URL. A folder is asked once for its names, a file is opened once to see that it
    is one.
    """

    def __init__(
        self,
        url: Url,
        name: str,
        state: Known | None = None,
        names: Names | None = None,
    ) -> None:
        self.name = name
        self._url = url
        self._known = state
        self._names = names
        self._opened: Future[RangeSource] | None = None
        self._children: dict[str, Location] = {}
        self._refused: NotOpenedError | None = None
        """The answer to who asked for its names."""

    def is_folder(self) -> bool:
        if (
            self._names is not None
            or self._url.path.endswith("/")
            or not self._url.path
        ):
            return True
        # A server without lists has files only.
        if not self._url.server.lists or self._known is not None or self.is_file():
            return False
        try:
            return bool(self._list_names())
        except NotOpenedError:
            return False

    def is_file(self) -> bool:
        """Tell whether it opens. Raises NotOpenedError when the server refuses or
        fails.
        """
        if self._known is not None:
            return True
        if (
            self._names is not None
            or self._url.path.endswith("/")
            or not self._url.path
        ):
            return False
        try:
            # Opening is the question: a request for the head alone would be one more.
            opened = self.begin()
            opened.result()
            # Whoever opens it next gets it, without a second request.
            _handed.put(self.name, opened)
        except NotOpenedError as error:
            if not error.problem.startswith("no such"):
                raise
            return False
        return True

    def names(self) -> list[str]:
        return sorted(self._list_names())

    def parent(self) -> Location:
        folder = self._url.path.rstrip("/").rpartition("/")[0]
        url = self._url.with_path(f"{folder}/" if folder else "")
        # The password that was typed goes to the neighbours too.
        return RemotePath(url, share_login(self.name, str(url)))

    def child(self, name: str, links: Links = "file") -> Location:
        # A name from an index must not lead out of the folder.
        if not is_plain_name(name):
            raise UnreadableError(
                f"{show(name, 80)} is not a file in this folder", path=self.name
            )
        if name not in self._children:
            self._children[name] = self._child_location(name)
        return self._children[name]

    def _child_location(self, name: str) -> Location:
        folder = self._url.path.rstrip("/")
        # On a web server the name becomes a part of a URL: it is escaped.
        part = name if self._url.server.lists else escape_name(name)
        url = self._url.with_path(f"{folder}/{part}" if folder else part)
        # Names that are known save the request whether it is there.
        if self._names is None:
            return RemotePath(url, share_login(self.name, str(url)))
        if f"{name}/" in self._names:
            return RemotePath(url.with_path(f"{url.path}/"), str(url))
        return RemotePath(url, str(url), self._names.get(name))

    def open(self) -> Source:
        opened = self.begin()
        self._opened = None
        _handed.take(self.name)
        return opened.result()

    def begin(
        self,
        run: Callable[[Callable[[], RangeSource]], Future[RangeSource]] | None = None,
    ) -> Future[RangeSource]:
        """Begin to open it, for the next `is_file` or `open`: by `run`, or now."""
        if self._opened is None or self._opened.cancelled():
            self._opened = _handed.take(self.name) or (run or _open_now)(self._open)
        return self._opened

    def _open(self) -> RangeSource:
        if self._url.path.endswith("/") or not self._url.path:
            raise NotOpenedError("not a file", path=self.name)
        source = RangeSource(
            store_of(self._url, self.name), self.name, state=self._known
        )
        source.open_head()
        return source

    def _list_names(self) -> Names:
        if self._refused is not None:
            raise self._refused
        if self._names is None:
            if not self._url.server.lists:
                problem = "a web server does not list its folders"
                raise NotOpenedError(
                    problem, path=self.name, hint="give the URL of a file"
                )
            if self._url.server.store:
                from ckpt.ext.remote.objects import names_in as listing
            else:
                from ckpt.ext.remote.hub import names_in as listing
            try:
                names = retried(lambda: listing(self._url), self.name, time.sleep)
                # The empty object with which some tools mark a folder.
                names.pop("", None)
                if not names:
                    raise NotOpenedError("no such folder", path=self.name)
            except NotOpenedError as error:
                self._refused = error
                raise
            self._names = names
        return self._names


class _Handed:
    """The files that were opened to see that they are some, for who opens the same URL
    next, within a minute.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[str, tuple[Future[RangeSource], float]] = {}

    def put(self, name: str, opened: Future[RangeSource]) -> None:
        with self._lock:
            self._opened[name] = opened, self._clock()
            # The oldest first: Python's dicts keep their order.
            while len(self._opened) > _BEFORE:
                del self._opened[next(iter(self._opened))]

    def take(self, name: str) -> Future[RangeSource] | None:
        """An opened file, which nobody else gets then."""
        with self._lock:
            opened, since = self._opened.pop(name, (None, 0.0))
            return opened if self._clock() - since < _FRESH else None


_handed = _Handed()


def _open_now(open: Callable[[], RangeSource]) -> Future[RangeSource]:
    future: Future[RangeSource] = Future()
    try:
        future.set_result(open())
    except Exception as error:
        future.set_exception(error)
    return future


def begun(folder: RemotePath, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of files that are opened one after the other. The next ones are
    begun to be opened.
    """
    pool = ThreadPoolExecutor(_BEFORE)
    try:
        later: deque[str] = deque()
        for name in names:
            parts = name.split("/")
            place: Location = folder
            # A path with `..` in it is left to whoever opens it, and refuses it.
            for part in parts if all(map(is_plain_name, parts)) else ():
                place = place.child(part)
            if isinstance(place, RemotePath) and place is not folder:
                place.begin(pool.submit)
            later.append(name)
            if len(later) > _BEFORE:
                yield later.popleft()
        yield from later
    finally:
        # Files that nobody opened are not waited for.
        pool.shutdown(wait=False, cancel_futures=True)


def store_of(url: Url, name: str) -> Store:
    """The object of a URL. `name` is the shown one, which finds the secrets of the
    typed one.
    """
    if url.server.store:
        from ckpt.ext.remote.objects import object_at

        return object_at(url)
    if url.scheme == "hf":
        from ckpt.ext.remote.hub import hub_object

        return hub_object(url)
    from ckpt.ext.remote.http import HttpObject

    return HttpObject(typed_url(name))


def locate_url(text: str) -> Location:
    """The location of a URL. Raises UsageError."""
    name = shown(text)
    return RemotePath(parse_url(name), name)


def open_url(address: str) -> Source:
    """The source with this address. Raises NotOpenedError, UsageError."""
    return locate_url(address).open()


def open_pinned(
    address: str, identity: Identity, claims: Sequence[Claim] = ()
) -> Source:
    """The source with this address in a known state, without a request: the first read
    asks for its ETag.

    Raises UsageError.
    """
    size, etag = identity
    state = Known(int(size), str(etag))
    source = RangeSource(
        store_of(parse_url(address), address), address, state=state, ahead=False
    )
    for claim in claims:
        source.claim(claim)
    return source
