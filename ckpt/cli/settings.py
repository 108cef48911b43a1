"""What a project says in its pyproject.toml about `ckpt lint`: the table [tool.ckpt.lint]."""

from __future__ import annotations

import os
from typing import NamedTuple

from ckpt.errors import CkptError, UsageError
from ckpt.findings import LEVELS, Level
from ckpt.io.location import locate, read_file
from ckpt.limits import Limits
from ckpt.text import show

_NAME = "[tool.ckpt.lint]"
_KEYS = ("select", "ignore", "level", "values")


class LintSettings(NamedTuple):
    """The settings of `ckpt lint`, and the file that they stand in."""

    path: str = ""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    level: Level = "warning"
    values: bool = False


def lint_settings(folder: str) -> LintSettings:
    """The table of the nearest pyproject.toml, from a folder upwards. Raises UsageError for a wrong one."""
    path = _nearest(folder)
    if path is None:
        return LintSettings()
    table = _table(path)
    if not table.keys() <= set(_KEYS):
        raise UsageError(f"{_NAME} takes {', '.join(_KEYS[:-1])} and {_KEYS[-1]}", path=path)
    level = next((level for level in LEVELS if level == table.get("level", "warning")), None)
    if level is None:
        raise UsageError(f"{_NAME} level is one of {' '.join(LEVELS)}", path=path)
    values = table.get("values", False)
    if not isinstance(values, bool):
        raise UsageError(f"{_NAME} values is true or false", path=path)
    return LintSettings(path, _codes(path, table, "select"), _codes(path, table, "ignore"), level, values)


def _nearest(folder: str) -> str | None:
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _table(path: str) -> dict[str, object]:
    import tomllib

    try:
        table: object = tomllib.loads(read_file(locate(path), Limits(), "the settings").decode("utf-8"))
    except (CkptError, ValueError, RecursionError) as error:
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
