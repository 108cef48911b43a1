"""The progress of a function: the bytes that are done, and all bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckpt.surface.api.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""A function that gets the bytes that are done, and all bytes."""


class Meter:
    """Counts the bytes that are done, for a function that gets them and the total. Any
    thread may call it.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            # Bytes may be read twice, and a bar does not pass its end.
            self._done = min(self._done + count, self._total)
            self._progress(self._done, self._total)

    def end(self) -> None:
        """Tell that all is done: a file has bytes that no tensor asks for."""
        self(self._total)


@contextmanager
def metered_reading(
    progress: Progress | None, *sides: Checkpoint
) -> Iterator[Meter | None]:
    """Count the bytes that a block reads of checkpoints, for a function that gets them
    and all bytes.
    """
    if progress is None:
        yield None
        return
    total = 0  # the name of the function that adds is taken
    for side in sides:
        total += side.checkpoint.nbytes
    meter = Meter(progress, total)
    yield meter
    # If the block raises, this is not reached: not all is done.
    meter.end()
