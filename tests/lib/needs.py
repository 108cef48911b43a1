"""The extensions that are there, for a checkout from which some were taken out.

Whoever deletes `ckpt/ext/NAME` runs the tests without further words: those of the
folder are not collected, nor those of pages and tables that are about all of them. A
test of the core is skipped where it asks for what is gone: where it imports a module of
the extension or a public name of it, runs its command, has a parameter `command` or
`words` with that, or is marked `pytest.mark.needs("NAME")`.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest

import ckpt
from ckpt.hooks import is_installed

_PACKAGE = Path(ckpt.__file__).parent
_TESTS = Path(__file__).resolve().parents[1]
_TABLES = ("__init__.py", "hooks.py", "formats/__init__.py", "surface/cli/app.py")
"""The modules of the core that name extensions."""
EXTENSIONS = frozenset(
    name
    for table in _TABLES
    for name in re.findall(r"ckpt\.ext\.(\w+)", (_PACKAGE / table).read_text("utf-8"))
)


def is_there(name: str) -> bool:
    """Tell whether an extension is there, with those that it needs."""
    return is_installed(f"ckpt.ext.{name}")


ABSENT = frozenset(name for name in EXTENSIONS if not is_there(name))
"""The extensions that were taken out, or need one that was."""
_OF_ALL = ("docs", "house", "benchmarks", "fuzz")
"""Folders of tests that are about everything: pages, laws over all modules."""


def ignored() -> list[str]:
    """Return the folders of tests that are not collected."""
    if not ABSENT:
        return []
    return [*_OF_ALL, *sorted(f"ext/{name}" for name in ABSENT)]


def skip_marked(item: pytest.Item) -> None:
    """Skip a test that is marked with an extension that is gone, or whose parameter
    `command` or `words` is its command.
    """
    for marker in item.iter_markers("needs"):
        unknown = {*marker.args} - EXTENSIONS
        assert not unknown, f"no such extensions: {unknown}"
        for name in marker.args:
            if name in ABSENT:
                pytest.skip(f"this needs ckpt.ext.{name}")
    case = getattr(item, "callspec", None)
    if ABSENT and case is not None:
        skip_command((case.params.get("command"),))
        skip_command(tuple(case.params.get("words") or ()))


def skip_command(words: tuple[object, ...]) -> None:
    """Skip a test that runs the command of an extension that is gone."""
    if not ABSENT or not words or not isinstance(words[0], str):
        return
    from ckpt.surface.cli import app  # dear, and only for such a checkout

    module = app.module_of(str(words[0]))
    if module.startswith("ckpt.ext.") and not is_installed(module):
        pytest.skip(f"this needs {module}")


def all_commands() -> list[str]:
    """Return the commands of the whole program, also those that are gone, in their
    order.
    """
    from ckpt.surface.cli import app

    return [name for group in app._ALL.values() for name in group]


def asks_for_absent(error: BaseException) -> bool:
    """Tell whether a test, or a public name that it used, imported what is gone. Where
    a module of the core does, it is an error of the core.
    """
    gone = {f"ckpt.ext.{name}" for name in ABSENT}
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    if ".".join(error.name.split(".")[:3]) not in gone:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        Path(frame.filename)
        for frame in frames
        if "importlib" not in frame.filename and frame.filename[:1] == "/"
    ]
    last = ours[-1]
    return last == _PACKAGE / "__init__.py" or last.is_relative_to(_TESTS)
