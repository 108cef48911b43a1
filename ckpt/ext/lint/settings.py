"""The rules of `ckpt lint` in a file: the table [tool.ckpt.lint] of a pyproject.toml,
or [lint] of a ckpt.toml.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from ckpt.bytes.location import locate
from ckpt.bytes.source import read_limited
from ckpt.model.errors import LimitError, UnreadableError, UsageError
from ckpt.model.findings import LEVELS, Level
from ckpt.model.names import nearest_names
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_BYTES = 1_000_000
"""The largest file of settings that is read."""
_PARTS = 100
"""Parts of one dotted key: the time that tomllib takes for a key grows with their
square.
"""
# `(?=(x))\1` gives nothing back, as `x++` does from Python 3.11 on.
# A word, bare or in quotes, blanks, a dot, blanks: a hundred times in a row.
_DEEP = re.compile(
    r"""(?<![\w"'-])"""
    r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?=([ \t]*))\1\.(?=([ \t]*))\2)"""
    rf"{{{_PARTS}}}"
)
_KEYS = ("select", "ignore", "level", "read-values", "per-file-ignores")
_GLOBS, _GLOB = 500, 500
"""The most globs that each file is compared with, and letters of one: the file of rules
may be a stranger's.
"""
_PROJECT, _OWN = "pyproject.toml", "ckpt.toml"


class LintSettings(NamedTuple):
    """The settings of `ckpt lint`, and the file that they stand in."""

    path: str = ""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    level: Level | None = None
    values: bool = False
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Globs of paths below the folder of the file, and the codes that are ignored
    there.
    """

    @property
    def table(self) -> str:
        """The name of the table, as an error shows it."""
        return table_name(self.path)


def table_name(path: str) -> str:
    """Return the name of the table in a file: only a pyproject.toml belongs to several
    tools.
    """
    return "[tool.ckpt.lint]" if os.path.basename(path) in (_PROJECT, "") else "[lint]"


def nearest_settings(folder: str) -> LintSettings:
    """Return the rules of the nearest file, from a folder upwards, or empty ones.
    Raises UsageError.

    In one folder a ckpt.toml counts before a pyproject.toml. Without [tool.ckpt] the
    latter is passed over, as ruff does.
    """
    while True:
        for name in (_OWN, _PROJECT):
            path = os.path.join(folder, name)
            # A ckpt.toml is about ckpt by its name.
            if os.path.isfile(path) and (name == _OWN or _is_about_ckpt(path)):
                return settings_at(path)
        parent = os.path.dirname(folder)
        # The root is its own parent.
        if parent == folder:
            return LintSettings()
        folder = parent


def unread_settings(paths: Sequence[str], used: LintSettings) -> list[str]:
    """Return the paths of the ckpt.toml in folders that are checked, which are not the
    rules: these are found upwards.
    """
    found = [
        os.path.join(path, _OWN)
        for path in paths
        if os.path.isfile(os.path.join(path, _OWN))
    ]
    return [
        path for path in found if os.path.abspath(path) != os.path.abspath(used.path)
    ]


def _is_about_ckpt(path: str) -> bool:
    tool = _document(path).get("tool")
    return isinstance(tool, dict) and "ckpt" in tool


def settings_at(path: str) -> LintSettings:
    """The rules in a pyproject.toml or a ckpt.toml. Raises UsageError for wrong
    ones.
    """
    table = _read_table(path)
    name = table_name(path)
    _refuse_unknown(path, name, table, _KEYS)
    # The word of the table, as the type that the rules take.
    level = next((level for level in LEVELS if level == table.get("level")), None)
    if level is None and "level" in table:
        raise UsageError(f"{name} level is one of {' '.join(LEVELS)}", path=path)
    values = table.get("read-values", False)
    if not isinstance(values, bool):
        raise UsageError(f"{name} read-values is true or false", path=path)
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise UsageError(
            f"{name} per-file-ignores is a table of globs and lists of codes", path=path
        )
    if len(per_file) > _GLOBS or any(len(glob) > _GLOB for glob in per_file):
        raise UsageError(
            (
                f"{name} per-file-ignores has over {_GLOBS} globs, or one over {_GLOB} "
                "letters"
            ),
            path=path,
        )
    return LintSettings(
        path,
        _read_codes(path, table, "select"),
        _read_codes(path, table, "ignore"),
        level,
        values,
        tuple((glob, _read_codes(path, per_file, glob)) for glob in per_file),
    )


def _refuse_unknown(
    path: str, name: str, table: dict[str, object], keys: tuple[str, ...]
) -> None:
    """Raise UsageError for the first key that no table of ckpt has."""
    unknown = next((key for key in table if key not in keys), None)
    if unknown is None:
        return
    alike = nearest_names(unknown, keys, 1) or [
        key for key in keys if key == f"read-{unknown}"
    ]
    every = f"{', '.join(keys[:-1])} and {keys[-1]}" if len(keys) > 1 else keys[0]
    hint = f"did you mean {alike[0]}?" if alike else f"it takes {every}"
    raise UsageError(
        f"{name} has an unknown key: {show(unknown, 40)}", path=path, hint=hint
    )


def _read_table(path: str) -> dict[str, object]:
    """The table of the rules of lint. Raises UsageError."""
    table: object = _document(path)
    if table_name(path) == "[lint]":
        # Only a ckpt.toml is all of ckpt; a pyproject.toml has tables of other tools.
        _refuse_unknown(path, "the file", _document(path), ("lint",))
        keys: tuple[str, ...] = ("lint",)
    else:
        keys = ("tool", "ckpt", "lint")
    for key in keys:
        # A missing table is an empty one, and a value in its place is an error.
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"{table_name(path)} is not a table", path=path)
    return table


def _document(path: str) -> dict[str, object]:
    """All that a file of TOML holds. Raises UsageError."""
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
        # Before tomllib, which would take minutes for such a key.
        if _DEEP.search(text):
            raise UsageError(
                f"cannot be read: a key of more than {_PARTS} parts", path=path
            )
        return tomllib.loads(text)
    except LimitError:
        raise UsageError(
            f"cannot be read: more than {_BYTES:,} bytes", path=path
        ) from None
    except UnreadableError as error:
        raise UsageError(f"cannot be read: {error.problem}", path=path) from None
    except RecursionError:
        raise UsageError("cannot be read: nested too deeply", path=path) from None
    except (
        ValueError
    ) as error:  # not TOML, not UTF-8, or a number of more digits than Python converts
        raise UsageError(
            f"cannot be read: {show(str(error), 120)}", path=path
        ) from None


def _read_codes(path: str, table: dict[str, object], key: str) -> tuple[str, ...]:
    codes = table.get(key, [])
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise UsageError(
            f"{table_name(path)} {show(key, 60)} is a list of codes", path=path
        )
    return tuple(codes)
