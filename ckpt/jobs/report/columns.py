"""Rows as columns: each key once, and each value that repeats once. 100,000 tensors take a few MB so."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.text import Json

_SHARE = 2
"""Values are numbered where there are this many times more rows than different values."""


def packed(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Rows of equal keys as `{count, columns}`.

    A column is `{"all": value}`, `{"of": values, "at": numbers}` with the number of the value of each row, or
    `{"is": values}`.
    """
    if not rows:
        return {"count": 0, "columns": {}}
    return {
        "count": len(rows),
        "columns": {name: _column([row[name] for row in rows]) for name in rows[0]},
    }


def _column(values: list[Json]) -> dict[str, Json]:
    numbers: dict[tuple[type, object], int] = {}
    at: list[int] = []
    of: list[Json] = []
    for value in values:
        key = (type(value), _key(value))
        number = numbers.setdefault(key, len(numbers))
        if number == len(of):
            of.append(value)
        at.append(number)
    if len(of) == 1:
        return {"all": of[0]}
    if len(of) * _SHARE <= len(values):
        return {"of": of, "at": at}
    return {"is": values}


def _key(value: Json) -> object:
    """What is equal where two values are written alike: 0.0 and -0.0 are not."""
    return repr(value) if isinstance(value, (float, list, tuple, dict)) else value
