"""Objects of S3, Google Cloud Storage and Azure through obstore, which finds the
credentials in the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

from ckpt.bytes.far import SCHEMES, Scheme
from ckpt.ext.remote.causes import cause_of
from ckpt.ext.remote.connections import allocate_memory
from ckpt.ext.remote.credentials import looked_at, options_of
from ckpt.ext.remote.store import Answer, BusyError, ChangedError, Known
from ckpt.ext.remote.traffic import waiting
from ckpt.ext.remote.url import Url
from ckpt.model.errors import CkptError, NotOpenedError
from ckpt.model.text import show

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class _Meta(TypedDict):
    path: str
    size: int
    e_tag: str | None
    last_modified: object


class _Listing(TypedDict):
    objects: list[_Meta]
    common_prefixes: list[str]


class _Found(Protocol):
    range: tuple[int, int]
    meta: _Meta

    def stream(self, min_chunk_size: int) -> Iterable[Buffer]: ...


class Obstore(Protocol):
    """The part of the module obstore that reading uses.

    ckpt does not need the package, so its own types may be missing.
    """

    def get(
        self, store: object, path: str, *, options: dict[str, object]
    ) -> _Found: ...

    def head(self, store: object, path: str) -> _Meta: ...

    def list_with_delimiter(self, store: object, prefix: str | None) -> _Listing: ...


_PART = 256 << 10
"""The least bytes of a part of an answer."""
EXTRA = "pip install 'torch-ckpt[cloud]'"


class StoredObject:
    """An object in a bucket or a container."""

    def __init__(self, store: object, url: Url) -> None:
        self._store = store
        self._path = url.path
        self._scheme = url.scheme
        self.server = f"{url.scheme}://{url.host}"
        self.tails = url.server.tails

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        span: object = {"suffix": count} if begin is None else (begin, begin + count)
        try:
            with waiting(self.server):
                options = {"range": span}
                # The request fails if the object is another one by now.
                if etag:
                    options["if_match"] = etag
                result = _import_obstore().get(self._store, self._path, options=options)
            first, last = result.range
            data = _receive_bytes(result, last - first)
            size = result.meta["size"]
            # Without an ETag the time of the last change tells two states apart.
            tag = result.meta["e_tag"] or str(result.meta["last_modified"])
        except Exception as error:
            # A range of an empty object is an error of its own in each store.
            missing = isinstance(error, FileNotFoundError)
            if not (etag or missing) and _is_empty(self._store, self._path):
                return Answer(memoryview(b""), 0, 0, "")
            raise translate_read_error(error, self._scheme) from None
        if len(data) != last - first:
            raise BusyError("the server cuts its answers off")
        if begin is not None and first != begin:
            raise NotOpenedError(
                "the server sends other bytes than those that were asked for"
            )
        return Answer(data, first, size, tag)


def _receive_bytes(result: _Found, size: int) -> memoryview:
    """The bytes of an answer, fewer where it is cut off. Its parts are free again as
    soon as they are copied.
    """
    data, position = allocate_memory(size), 0
    for part in result.stream(min_chunk_size=_PART):
        view = memoryview(part).cast("B")[: size - position]
        data[position : position + len(view)] = view
        position += len(view)
    return data[:position]


def _is_empty(store: object, path: str) -> bool:
    """Tell whether an object has no bytes, so that no range of it can be asked for."""
    try:
        return int(_import_obstore().head(store, path)["size"]) == 0
    except Exception:
        return False  # the error of the range says it


def translate_read_error(error: Exception, scheme: str) -> Exception:
    """Translate an error of obstore. Its text is not repeated: it may hold a signed
    URL.
    """
    name = type(error).__name__
    if name in ("PreconditionError", "NotModifiedError"):
        return ChangedError()
    cause = cause_of(error, scheme, "read")
    is_missing = isinstance(error, FileNotFoundError) or name == "NotFoundError"
    # A missing bucket has the same class: the cause tells them apart.
    if is_missing and cause.status in (None, 404):
        return NotOpenedError(
            cause.problem if cause.problem.startswith("no such") else "no such object"
        )
    # An answer that may pass is tried again by `RangeSource`.
    if cause.may_pass and (name == "GenericError" or isinstance(error, OSError)):
        return BusyError(cause.problem, is_overload=cause.is_overload)
    if cause.status is None and cause.may_pass:
        return NotOpenedError(f"the object store fails: {show(name, 40)}")
    return NotOpenedError(cause.problem, hint=cause.hint)


def _known_object(row: _Meta, scheme: Scheme) -> Known:
    """The size of an object, and the ETag that a request for it gives."""
    return Known(
        # Some stores list other ETags than their answers have.
        row["size"],
        row["e_tag"] or str(row["last_modified"]) if scheme.lists_etags else "",
    )


def object_at(url: Url) -> StoredObject:
    """The object of an s3, gs or az URL. Raises CkptError without obstore."""
    return StoredObject(open_bucket(url.scheme, url.host), url)


def names_in(url: Url) -> dict[str, Known | None]:
    """Return the names below a prefix. The names of folders end with `/` and have None.

    Raises BusyError, NotOpenedError.
    """
    store = open_bucket(url.scheme, url.host)
    # obstore gives the names below a prefix, without those in folders below.
    prefix = url.path.strip("/")
    try:
        with waiting(f"{url.scheme}://{url.host}"):
            listing = _import_obstore().list_with_delimiter(store, prefix or None)
        rows: dict[str, Known | None] = {
            row["path"].rpartition("/")[2]: _known_object(row, url.server)
            for row in listing["objects"]
        }
        rows |= {
            row.rstrip("/").rpartition("/")[2] + "/": None
            for row in listing["common_prefixes"]
        }
    except Exception as error:
        raise translate_read_error(error, url.scheme) from None
    return rows


def _import_obstore() -> Obstore:
    return cast("Obstore", import_module("obstore"))


TIMEOUT = 60
"""The most seconds for a request that reads."""
_SECONDS = "300s"
"""The most time for a request that sends a part: four of 16 MiB at once need 2 Mbit/s.

Reading is in smaller pieces.
"""
_PAUSE = 0.25
"""Seconds before the second try; each further pause is twice as long."""


@cache
def open_bucket(scheme: str, name: str, *, tries: int = 1) -> object:
    """The store of a bucket, made once. Raises CkptError without obstore.

    RangeSource tries again what fails, and counts it. What is written is tried again by
    obstore, which sends the parts.
    """
    try:
        stores = import_module("obstore.store")
    except ImportError:
        raise CkptError(f"{scheme}:// needs obstore", hint=EXTRA) from None
    kind = getattr(stores, SCHEMES[scheme].store)
    backoff = {"init_backoff": timedelta(seconds=_PAUSE), "base": 2}
    seconds = _SECONDS if tries > 1 else f"{TIMEOUT}s"
    options = {"timeout": seconds, **options_of(scheme)}
    try:
        store: object = kind(
            name, retry_config={"max_retries": tries - 1, "backoff": backoff}, **options
        )
    except Exception as error:  # no account, a file of credentials that is damaged
        cause = cause_of(error, scheme, "use")
        if cause.may_pass:
            raise CkptError(
                f"the settings of {scheme}:// are not valid", hint=looked_at(scheme)
            ) from None
        raise CkptError(cause.problem, hint=cause.hint) from None
    return store
