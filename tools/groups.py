"""Print the requirements of a group of pyproject.toml (PEP 735), one a line, for a pip
that has no `--group` yet.

`pip install --group dev` needs pip 25.1; the pip that `python -m venv` brings is often
older. From a clone: `python tools/groups.py dev > dev.txt && pip install --editable .
-r dev.txt`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(
    groups: dict[str, list[Any]], name: str, above: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield the requirements of a group, those of the groups that it includes too.
    Raises SystemExit.
    """
    if name in above or name not in groups:
        problem = (
            "includes itself" if name in above else f"is none of {', '.join(groups)}"
        )
        raise SystemExit(f"{PROJECT.name}: the group {name} {problem}")
    for row in groups[name]:
        if isinstance(row, str):
            yield row
        else:
            yield from requirements(groups, row["include-group"], (*above, name))


def main(*names: str) -> None:
    """Print the requirements of the groups of these names."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    for name in names:
        for requirement in requirements(groups, name):
            print(requirement)


if __name__ == "__main__":
    main(*sys.argv[1:])
