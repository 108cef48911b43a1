"""The only folder that imports torch: what needs the library itself and cannot be read from files."""

from __future__ import annotations

from typing import Any

from ckpt.errors import UsageError


def require_torch() -> Any:
    """The module torch. Raises UsageError where it is not installed."""
    try:
        import torch
    except ImportError:
        raise UsageError("this needs torch", hint="pip install 'torch-ckpt[torch]'") from None
    return torch
