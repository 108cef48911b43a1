"""The only folder that imports torch: what needs the library itself and cannot be read
from files.
"""

from __future__ import annotations

from typing import Any

from ckpt.model.errors import UsageError

_OLDEST = 2
"""The first number of the oldest version of torch that has what is used here, such as
`untyped_storage`.
"""


def require_torch() -> Any:
    """The module torch. Raises UsageError where it is not installed, or too old."""
    hint = "pip install --upgrade 'torch-ckpt[torch]'"
    try:
        import torch
    except ImportError:
        raise UsageError(
            "this needs torch", hint=hint.replace("--upgrade ", "")
        ) from None
    first = str(torch.__version__).partition(".")[0]
    if first.isdecimal() and int(first) < _OLDEST:
        problem = (
            f"this needs torch {_OLDEST}.0 or later, and torch {torch.__version__} is "
            "installed"
        )
        raise UsageError(problem, hint=hint)
    return torch
