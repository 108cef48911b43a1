"""The results of tasks as JSON and back, bit for bit: a float is its hexadecimal text, as `float.hex` writes it.

What comes back is checked against its task, because it was in a file: no report is made of numbers that cannot be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, isnan
from struct import pack, unpack
from typing import TYPE_CHECKING

from ckpt.elements.cast import has_numbers
from ckpt.elements.channels import Channels
from ckpt.elements.measure import Difference, Measurement, Summary
from ckpt.errors import UnreadableError
from ckpt.io.executor import Failed, Task
from ckpt.text import Json

if TYPE_CHECKING:
    from ckpt.elements.channels import ChannelLayout

_MOST = 1 << 64
"""More than any count, and than any integer in a tensor."""
_TEXT = 1 << 16
"""The longest text of an error."""
_SUM, _BYTES = re.compile(r"[0-9a-f]{64}"), re.compile(r"(?:[0-9a-f]{16})*")
_SIDES = 2


class WrongResultError(Exception):
    """A result cannot be that of its task."""


def is_known(task: Task[object]) -> bool:
    """Whether the result of a task can be written. Its function says so by the type that it returns."""
    return getattr(task.function, "__annotations__", {}).get("return") in _KINDS


def encoded(result: object) -> Json:
    """A result as JSON."""
    if isinstance(result, Failed):
        return {"failed": result.problem}
    if isinstance(result, Measurement):
        return {**_summary(result.summary), "channels": _channels(result.channels)}
    if isinstance(result, Difference):
        return _difference(result)
    if isinstance(result, tuple) and len(result) == _SIDES:
        return {"crc": result[0], "problem": result[1]}
    if isinstance(result, tuple):
        nbytes, damage, unchecked = result
        return {"nbytes": nbytes, "damage": [[*row] for row in damage], "unchecked": unchecked}
    assert result is None or isinstance(result, (str, bool)), result
    return result


def decoded(found: Json, task: Task[object]) -> object:
    """The result of a task from its JSON. Raises UnreadableError where it cannot be one."""
    try:
        if isinstance(found, dict) and found.keys() == {"failed"}:
            return Failed(_text(found["failed"]))
        return _KINDS[str(task.function.__annotations__["return"])](found, task)
    except (WrongResultError, KeyError):
        raise UnreadableError("holds a result that is not one of its task") from None


# --- numbers ----------------------------------------------------------------------------------------------------------


def _count(value: Json, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise WrongResultError
    return value


def _counts(value: Json, most: int) -> list[int]:
    if not isinstance(value, list) or len(value) != _SIDES:
        raise WrongResultError
    return [_count(each, most) for each in value]


def _float(value: Json, *, least: float = -inf) -> float:
    if not isinstance(value, str) or len(value) > 40:
        raise WrongResultError
    try:
        found = float.fromhex(value)
    except (ValueError, OverflowError):
        raise WrongResultError from None
    if found < least:
        raise WrongResultError
    return found


def _text(value: Json) -> str:
    if not isinstance(value, str) or len(value) > _TEXT:
        raise WrongResultError
    return value


def _fields(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise WrongResultError
    return value


def _number(value: float | int | None) -> Json:
    return value.hex() if isinstance(value, float) else value


def _number_back(value: Json) -> float | int | None:
    if value is None or isinstance(value, str):
        found = None if value is None else _float(value)
        if found is not None and (isnan(found) or found in (inf, -inf)):
            raise WrongResultError
        return found
    if type(value) is not int or abs(value) > _MOST:
        raise WrongResultError
    return value


# --- statistics -------------------------------------------------------------------------------------------------------


def _summary(found: Summary) -> dict[str, Json]:
    return {
        "numel": found.numel,
        "finite": found.finite,
        "low": _number(found.low),
        "high": _number(found.high),
        "mean": found.mean.hex(),
        "spread": found.spread.hex(),
        "squares": found.squares.hex(),
        "zeros": found.zeros,
        "nan": found.nan,
        "inf": found.inf,
    }


def _measurement(value: Json, task: Task[object]) -> Measurement:
    fields = _fields(value)
    ref, layout, first = task.arguments[:3]
    made = Summary()
    made.numel = _count(fields["numel"])
    if made.numel != ref.numel:
        raise WrongResultError
    made.finite, made.zeros = (_count(fields[name], made.numel) for name in ("finite", "zeros"))
    made.nan, made.inf = (_count(fields[name], made.numel) for name in ("nan", "inf"))
    made.low, made.high = _number_back(fields["low"]), _number_back(fields["high"])
    if (made.low is None, made.high is None) != (not made.finite, not made.finite):
        raise WrongResultError
    made.mean = _float(fields["mean"])
    made.spread, made.squares = (_float(fields[name], least=0.0) for name in ("spread", "squares"))
    return Measurement(made, _channels_back(fields["channels"], layout, first))


def _channels(found: Channels | None) -> Json:
    if found is None:
        return None
    first, sums = found.window()
    return {"first": first, "sums": pack(f"<{len(sums)}d", *sums).hex()}


def _channels_back(value: Json, layout: ChannelLayout | None, first: int) -> Channels | None:
    if layout is None:
        if value is not None:
            raise WrongResultError
        return None
    fields = _fields(value)
    text = fields["sums"]
    at = _count(fields["first"], layout.channels)
    if not isinstance(text, str) or len(text) > 16 * (layout.channels - at) or not _BYTES.fullmatch(text):
        raise WrongResultError
    sums = unpack(f"<{len(text) // 16}d", bytes.fromhex(text))
    made = Channels(layout.channels, layout.inner, first)
    made.sums[at : at + len(sums)] = sums
    return made


# --- differences ------------------------------------------------------------------------------------------------------


def _difference(found: Difference) -> dict[str, Json]:
    return {
        "numel": found.numel,
        "differing": found.differing,
        "other_bytes": found.other_bytes,
        "largest": found.largest.hex(),
        "at": found.at,
        "squares": found.squares.hex(),
        "reference": found.reference.hex(),
        "nan": [*found.nan],
        "inf": [*found.inf],
        "close": found.close,
    }


def _difference_back(value: Json, task: Task[object]) -> Difference | None:
    if value is None:
        return None
    fields = _fields(value)
    one, two = task.arguments[:2]
    made = Difference()
    made.numel = _count(fields["numel"])
    if made.numel != (one.numel if has_numbers(one.dtype) and has_numbers(two.dtype) else 0):
        raise WrongResultError
    made.differing, made.other_bytes = (
        _count(fields[name], made.numel) for name in ("differing", "other_bytes")
    )
    made.largest = _float(fields["largest"], least=0.0)
    made.at = None if fields["at"] is None else _count(fields["at"], made.numel - 1)
    made.squares, made.reference = (_float(fields[name], least=0.0) for name in ("squares", "reference"))
    made.nan, made.inf = (_counts(fields[name], made.numel) for name in ("nan", "inf"))
    if not isinstance(fields["close"], bool):
        raise WrongResultError
    made.close = fields["close"]
    return made


# --- sums -------------------------------------------------------------------------------------------------------------


def _sum(value: Json, task: Task[object]) -> str:
    if not isinstance(value, str) or not _SUM.fullmatch(value):
        raise WrongResultError
    return value


def _crc(value: Json, task: Task[object]) -> tuple[int, str | None]:
    fields = _fields(value)
    problem = fields["problem"]
    return _count(fields["crc"], 0xFFFFFFFF), None if problem is None else _text(problem)


def _report(value: Json, task: Task[object]) -> tuple[int, list[tuple[str, str]], int]:
    fields = _fields(value)
    rows = fields["damage"]
    if not isinstance(rows, list):
        raise WrongResultError
    return _count(fields["nbytes"]), [_damage(row) for row in rows], _count(fields["unchecked"])


def _damage(row: Json) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != _SIDES:
        raise WrongResultError
    return _text(row[0]), _text(row[1])


def _equality(value: Json, task: Task[object]) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise WrongResultError
    return value


_KINDS: dict[str, Callable[[Json, Task[object]], object]] = {
    "Measurement": _measurement,
    "Difference | None": _difference_back,
    "str": _sum,
    "tuple[int, str | None]": _crc,
    "tuple[int, list[tuple[str, str]], int]": _report,
    "bool | None": _equality,
}
"""What a task returns, as it is written where its function is defined -> how its JSON is read."""
