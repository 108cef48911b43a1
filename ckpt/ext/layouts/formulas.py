"""Numbers that all elements of a tensor share: a scale that was folded in, or the 1 of
a norm that is kept around zero.
"""

from __future__ import annotations

import re
from math import frexp, isfinite
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.ext.layouts.fibres import raw_kind
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import UnreadableError
from ckpt.model.text import show

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SINGLE = BY_NAME["float32"]
COMPUTED = frozenset(("float64", "float32", "bfloat16", "float16"))
"""The dtypes whose elements are computed with."""
_FORMULA = re.compile(r"([*/+])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
# A longer text is no number that a search writes.
_MOST_DIGITS = 40


def parse_formula(text: str) -> tuple[str, float]:
    """The sign and the number of a formula such as `*0.125`. Raises UnreadableError."""
    match = _FORMULA.fullmatch(text) if len(text) < _MOST_DIGITS else None
    number = float(match[2]) if match else 0.0
    if match is None or not isfinite(number) or number == 0:
        raise UnreadableError(
            f"{show(text, 40)} is no formula of a recipe",
            hint="as in *0.125, /8.0 or +1.0",
        )
    return match[1], number


def computed_elements(raw: Array, dtype: DType, formula: str) -> Array:
    """Raw elements after a formula, as torch computes it: in float32 for narrower
    types, rounded to nearest even.
    """
    import numpy as np

    sign, number = parse_formula(formula)
    numbers = cast.as_numbers(raw.tobytes(), dtype).reshape(raw.shape)
    # torch rounds the number to the type of the elements too.
    kind = numbers.dtype.type
    with np.errstate(all="ignore"):
        if sign == "*":
            result = numbers * kind(number)
        elif sign == "/":
            result = numbers / kind(number)
        else:
            result = numbers + kind(number)
    if dtype.name in ("float64", "float32"):
        whole: Array = result.view(raw_kind(dtype.bits // 8))
        return whole
    data, _, _ = cast.cast_and_count(
        np.ascontiguousarray(result).tobytes(),
        SINGLE,
        dtype,
    )
    return np.frombuffer(data, raw_kind(dtype.bits // 8)).reshape(raw.shape)


def is_exact(formula: str) -> bool:
    """Tell whether a formula can be taken back: it multiplies by a power of two."""
    sign, number = parse_formula(formula)
    # frexp gives 0.5 for each power of two.
    return sign in "*/" and abs(frexp(number)[0]) == 0.5


def inverse_of(formula: str) -> str:
    """The formula that takes one back that multiplies by a power of two."""
    sign, number = parse_formula(formula)
    return f"{'/' if sign == '*' else '*'}{number!r}"
