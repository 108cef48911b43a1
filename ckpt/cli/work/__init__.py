"""Who does the work of a command: this process, or others, whose results it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt.io.executor import Executor

_handed: Executor | None = None
"""What hands in the results, while a command makes a report of them."""


def executor() -> Executor | None:
    """Who works for the command that runs; None for this process."""
    return _handed


def is_shared() -> bool:
    """Whether the tasks were cut before any of them ran, so that none may depend on the result of another."""
    return _handed is not None


@contextmanager
def handing(known: Executor) -> Iterator[None]:
    """Commands take their results from here."""
    global _handed
    _handed = known
    try:
        yield
    finally:
        _handed = None
