"""The table [tool.ckpt.lint] of a pyproject.toml."""

from __future__ import annotations

import re
import sys

from ckpt.bytes.location import locate
from ckpt.bytes.source import read_limited
from ckpt.model.errors import LimitError, UnreadableError, UsageError
from ckpt.model.findings import LEVELS, Level
from ckpt.model.names import nearest
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_NAME = "[tool.ckpt.lint]"
_BYTES = 1_000_000
"""The largest pyproject.toml that is read."""
_PARTS = 100
"""Parts of one dotted key: the time that tomllib takes for a key grows with their square."""
_DEEP = re.compile(
    rf"""(?<![\w"'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?=([ \t]*))\1\.(?=([ \t]*))\2){{{_PARTS}}}"""
)  # `(?=(x))\1` gives nothing back, as `x++` does from Python 3.11 on
_KEYS = ("select", "ignore", "level", "read-values")


class LintSettings(NamedTuple):
    """The settings of `ckpt lint`, and the file that they stand in."""

    path: str = ""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    level: Level | None = None
    values: bool = False


def settings_at(path: str) -> LintSettings:
    """The table of a pyproject.toml. Raises UsageError for a wrong one."""
    table = _table(path)
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        alike = nearest(unknown[0], _KEYS, 1) or (["read-values"] if unknown[0] == "values" else [])
        hint = f"did you mean {alike[0]}?" if alike else f"it takes {', '.join(_KEYS[:-1])} and {_KEYS[-1]}"
        raise UsageError(f"{_NAME} has an unknown key: {show(unknown[0], 40)}", path=path, hint=hint)
    level = next((level for level in LEVELS if level == table.get("level")), None)
    if level is None and "level" in table:
        raise UsageError(f"{_NAME} level is one of {' '.join(LEVELS)}", path=path)
    values = table.get("read-values", False)
    if not isinstance(values, bool):
        raise UsageError(f"{_NAME} read-values is true or false", path=path)
    return LintSettings(path, _codes(path, table, "select"), _codes(path, table, "ignore"), level, values)


def _table(path: str) -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        file = locate(path).open()
        try:
            text = read_limited(file, _BYTES, "", "the file").decode("utf-8")
        finally:
            file.close()
        if _DEEP.search(text):
            raise UsageError(f"cannot be read: a key of more than {_PARTS} parts", path=path)
        table: object = tomllib.loads(text)
    except LimitError:
        raise UsageError(f"cannot be read: more than {_BYTES:,} bytes", path=path) from None
    except UnreadableError as error:
        raise UsageError(f"cannot be read: {error.problem}", path=path) from None
    except RecursionError:
        raise UsageError("cannot be read: nested too deeply", path=path) from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of more digits than Python converts
        raise UsageError(f"cannot be read: {show(str(error), 120)}", path=path) from None
    for key in ("tool", "ckpt", "lint"):
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"{_NAME} is not a table", path=path)
    return table


def _codes(path: str, table: dict[str, object], key: str) -> tuple[str, ...]:
    codes = table.get(key, [])
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise UsageError(f"{_NAME} {key} is a list of codes", path=path)
    return tuple(codes)
