"""Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt.formats import open

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "open"]


def __getattr__(name: str) -> Any:
    # Lazy: `import ckpt` costs nothing until a name is used.
    if name == "open":
        from ckpt.formats import open

        return open
    raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
