"""The abilities that a server or an object store must have, and its answers.

Adapters are http.py and objects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ckpt.model.errors import NotOpenedError
from ckpt.model.rows import NamedTuple

WHOLE = 64 << 20
"""The most bytes that are taken from a server that ignores Range."""


class Answer(NamedTuple):
    """The bytes from `begin` on of an object of `size` bytes, and what identifies this
    state of it.
    """

    data: memoryview
    begin: int
    size: int
    etag: str


class Known(NamedTuple):
    """The entry of an object in a listing. The ETag is empty where requests give
    another one.
    """

    size: int
    etag: str


class BusyError(Exception):
    """The server failed in a way that may pass: 5xx, a cut body, a lost connection. The
    text is for people.

    `after` are the seconds that it asks to wait, or 0. `is_overload` says that it gets
    too many requests.
    """

    def __init__(
        self, text: str, after: float = 0, *, is_overload: bool = False
    ) -> None:
        super().__init__(text)
        self.after = after
        self.is_overload = is_overload


class ChangedError(NotOpenedError):
    """The object is no longer the one of the first answer."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__(
            "the object changed while it was read",
            path=path,
            hint="still being written?",
        )


class Store(Protocol):
    """One object. Several threads may ask at once."""

    tails: bool
    """True if it answers for the last bytes without knowing the size."""

    @property
    def server(self) -> str:
        """The name of the server that has it."""
        ...

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        """Return at most `count` bytes at `begin`, or the last ones for None.

        `etag` is the ETag of the first answer, or empty. Raises BusyError,
        ChangedError, NotOpenedError.
        """
        ...


Sleep = Callable[[float], None]
"""Waits for seconds."""
