"""Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, whose import would be the longest part of importing this package
if TYPE_CHECKING:
    from ckpt.api.checkpoint import Checkpoint
    from ckpt.api.opening import open
    from ckpt.api.reading import diff, inspect
    from ckpt.api.reference import Ref
    from ckpt.api.sections import Section
    from ckpt.errors import CkptError
    from ckpt.limits import Limits
    from ckpt.live.snapshot import snapshot
    from ckpt.live.warmstart import warmstart

__version__ = "0.1.0.dev0"

__all__ = [
    "Checkpoint", "CkptError", "Limits", "Ref", "Section", "__version__", "diff", "inspect", "open", "snapshot",
    "warmstart",
]  # fmt: skip

_HOMES = {
    "Checkpoint": "ckpt.api.checkpoint",
    "CkptError": "ckpt.errors",
    "Limits": "ckpt.limits",
    "Ref": "ckpt.api.reference",
    "Section": "ckpt.api.sections",
    "diff": "ckpt.api.reading",
    "inspect": "ckpt.api.reading",
    "open": "ckpt.api.opening",
    "snapshot": "ckpt.live.snapshot",
    "warmstart": "ckpt.live.warmstart",
}
"""Public name -> the module that has it."""


def __getattr__(name: str) -> object:
    # Lazy: `import ckpt` costs nothing until a name is used.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
