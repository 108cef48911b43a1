"""What writing asks of an object store, through obstore: put an object whole or in parts, look for it, remove it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, TypedDict, cast

from ckpt.errors import CkptError, UsageError, WriteError
from ckpt.io.remote.objects import bucket
from ckpt.io.remote.url import Url
from ckpt.text import show

Bytes = object
"""Bytes in memory: `bytes`, or whatever else has the buffer protocol."""
TRIES = 4
"""How often each request is made that fails in a way that may pass: 5xx, a lost connection."""
LEFT = "an upload may be left unfinished in the bucket: a lifecycle rule removes it"


class _Meta(TypedDict):
    e_tag: str | None
    last_modified: object


class _Put(TypedDict):
    e_tag: str | None


class _Obstore(Protocol):
    """What is used of the module obstore to write."""

    def put(self, store: object, path: str, file: object, **options: object) -> _Put: ...

    def head(self, store: object, path: str) -> _Meta: ...

    def delete(self, store: object, path: str) -> None: ...


class Writable(Protocol):
    """An object that is written. The texts of ETags identify one state of it."""

    def put(self, data: Bytes, *, create: bool) -> str:
        """Put all of its bytes; its ETag. With `create`, UsageError where there is one. Raises WriteError."""
        ...

    def put_parts(self, groups: Iterator[Bytes], part_bytes: int) -> str:
        """Put its bytes in parts of `part_bytes`; its ETag. Those of one group are sent at once, and are all there when
        the next group is asked for after an empty one. What the iterator raises ends the upload and leaves nothing.
        Raises WriteError.
        """
        ...

    def look(self) -> str | None:
        """The ETag of what is there; None for nothing. Raises WriteError."""
        ...

    def remove(self) -> None:
        """Remove what is there. Raises WriteError."""
        ...


class StoredTarget:
    """An object in a bucket or a container."""

    def __init__(self, store: object, path: str) -> None:
        self._store = store
        self._path = path

    def put(self, data: Bytes, *, create: bool) -> str:
        mode = "create" if create else "overwrite"
        try:
            done = _obstore().put(self._store, self._path, data, mode=mode, use_multipart=False)
        except Exception as error:
            raise failure(error) from None
        return done["e_tag"] or ""

    def put_parts(self, groups: Iterator[Bytes], part_bytes: int) -> str:
        asked = False

        def passed() -> Iterator[Bytes]:
            nonlocal asked
            yield from groups
            asked = True

        try:
            # One task may be unfinished when the next group is taken: none is, so an error of a part comes up there,
            # and the upload is aborted. An error of the last part comes up later, where obstore aborts nothing.
            done = _obstore().put(
                self._store,
                self._path,
                passed(),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=1,
            )
        except (CkptError, StoppedError):
            raise
        except Exception as error:
            made = failure(error)
            if asked and " PUT " in str(error):
                made.hint = LEFT
            raise made from None
        return done["e_tag"] or ""

    def look(self) -> str | None:
        try:
            found = _obstore().head(self._store, self._path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise failure(error) from None
        return found["e_tag"] or str(found["last_modified"])

    def remove(self) -> None:
        try:
            _obstore().delete(self._store, self._path)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise failure(error) from None


class StoppedError(Exception):
    """The upload is not to be finished."""


def failure(error: Exception) -> CkptError:
    """What an error of obstore means for a writer. Its text is not repeated: it may hold a signed URL."""
    name, text = type(error).__name__, str(error)
    status = re.search(r"status code: (\d{3})", text)
    if name == "AlreadyExistsError":
        return UsageError("already exists", hint="--force to replace")
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return WriteError("no permission to write it", hint="credentials come from the environment")
    if "redential" in text and status is None:
        return WriteError("no credentials", hint="they come from the environment")
    if isinstance(error, FileNotFoundError):
        return WriteError("there is no such bucket")
    if isinstance(error, ValueError):
        return UsageError("not the name of an object")
    if status is not None and status[1] < "500":
        return WriteError(f"the object store refuses it: {status[1]}")
    if name == "GenericError" or isinstance(error, OSError):
        return WriteError(f"the object store does not answer, {TRIES} times in a row")
    return WriteError(f"the object store fails: {show(name, 40)}")


def object_to_write(url: Url) -> Writable:
    """The object of an s3, gs or az URL. Raises CkptError without obstore."""
    return StoredTarget(bucket(url.scheme, url.host, tries=TRIES), url.path)


def _obstore() -> _Obstore:
    return cast("_Obstore", import_module("obstore"))
