"""What payloads of tests call: it notes that it was called, and does nothing else."""

from __future__ import annotations

RUNG: list[object] = []


def ring(*args: object) -> bytes:
    """Note a call."""
    RUNG.append(args)
    return b""


class Bell:
    """A class that notes that an instance was made by calling it."""

    def __init__(self, *args: object) -> None:
        ring(*args)

    @classmethod
    def ring(cls) -> None:
        """Note a call."""
        ring()


TABLE = {"ring": ring}
