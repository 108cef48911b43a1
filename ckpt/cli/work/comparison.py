"""What `ckpt diff` compares, and how closely, by its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from ckpt.elements.compare import Tolerance
from ckpt.jobs.diff.diff import Options
from ckpt.jobs.rewrite.rename import substitution
from ckpt.names import Globs

_CLOSE: dict[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-5, 1.3e-6),
    "float16": (1e-5, 1e-3),
    "bfloat16": (1e-5, 1.6e-2),
    "complex32": (1e-5, 1e-3),
    "complex64": (1e-5, 1.3e-6),
    "complex128": (1e-7, 1e-7),
}
"""(absolute, relative) for each dtype, as torch.testing.assert_close has them; integers are exact."""


def comparison(how: Mapping[str, object]) -> Options:
    """What is compared, and how closely, by the options of the command. Raises UsageError."""
    include, exclude, sub = (cast("list[str] | None", how[name]) for name in ("include", "exclude", "sub"))
    atol, rtol = (cast("float | None", how[name]) for name in ("atol", "rtol"))
    return Options(
        Globs(include or (), exclude or ()),
        cast("str | None", how["section"]),
        _tolerance(atol, rtol, close=bool(how["close"])),
        strict=bool(how["strict"]),
        norms=bool(how["stat"]),
        align=not how["no_align"],
        rules=[substitution(text).apply for text in sub or ()],
    )


def _tolerance(atol: float | None, rtol: float | None, *, close: bool) -> Callable[[str], Tolerance] | None:
    """The tolerance for each dtype, None where every byte counts."""
    if close:
        return lambda dtype: _CLOSE.get(dtype, (0.0, 0.0))
    if atol is None and rtol is None:
        return None
    return lambda dtype: (atol or 0.0, rtol or 0.0)
