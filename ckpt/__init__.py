"""Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, whose import would be the longest part of importing this package
if TYPE_CHECKING:
    from ckpt.api import diff, open
    from ckpt.live.snapshot import snapshot

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "diff", "open", "snapshot"]


def __getattr__(name: str) -> object:
    # Lazy: `import ckpt` costs nothing until a name is used.
    if name == "open":
        from ckpt.api import open

        return open
    if name == "diff":
        from ckpt.api import diff

        return diff
    if name == "snapshot":
        from ckpt.live.snapshot import snapshot

        return snapshot
    raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
