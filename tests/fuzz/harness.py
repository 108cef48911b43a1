"""What every fuzz target shares: checkpoints in memory, and what must hold whatever the
bytes are.

`looked` reads a checkpoint, reports on it and writes the report in every form. Only
CkptError may escape ckpt. What is written holds no control character. An audit hook
watches: nothing is imported, opened, compiled or run meanwhile.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import ckpt
from ckpt import formats
from ckpt.bytes.location import Links, is_plain_name
from ckpt.bytes.source import Memory, Source
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.tables import (
    import_table,
    storage_table,
    tensor_table,
    value_table,
)
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, NotOpenedError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.text import show_literal
from ckpt.surface.text.lines import plain_text

LIMITS = Limits()
_TABLES = (tensor_table, storage_table, value_table, import_table)


# --------------------------------------------------------------------------------------
# files in memory


class InMemory:
    """A location of which every file is in memory. `files` are those of its folder, or
    of the folder that it is.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self.name = name
        self._files = files

    @property
    def _base(self) -> str:
        return self.name.rpartition("/")[2]

    def is_folder(self) -> bool:
        return self._base == ""

    def is_file(self) -> bool:
        return self._base in self._files

    def names(self) -> list[str]:
        return sorted(self._files)

    def parent(self) -> InMemory:
        return InMemory(self.name.removesuffix(self._base), self._files)

    def child(self, name: str, links: Links = "file") -> InMemory:
        if not is_plain_name(name):
            raise UnreadableError("not a file in this folder", path=self.name)
        return InMemory(f"{self.name}{name}", self._files)

    def open(self) -> Source:
        if not self.is_file():
            raise NotOpenedError("no such file", path=self.name)
        source = Memory(self._files[self._base])
        source.name = self.name
        return source


def opened(
    name: str, data: bytes, beside: Mapping[str, bytes] | None = None
) -> Checkpoint:
    """What `formats.open` makes of a file of this name in memory."""
    return formats._open_location(
        InMemory(name, {**(beside or {}), name: data}), LIMITS, False, ""
    )


# --------------------------------------------------------------------------------------
# what must hold


def check(holds: object, what: str) -> None:
    """Fail unless something holds. Not an `assert`, so that `python -O` checks too."""
    if not holds:
        raise AssertionError(what)


def looked(open: Callable[[], Checkpoint]) -> Survey | None:
    """Read, report, and write the report in every form; None for what is refused, in
    one clean line.
    """
    try:
        checkpoint = open()
        survey = Survey(checkpoint)
        report = inspect(survey)
        document = report.to_json()
        written(document)
        for width, everything in ((None, False), (40, True)):
            clean(plain_text(inspect_lines(report, width=width, everything=everything)))
        for table in _TABLES:
            rows(table(report))
    except CkptError as error:
        refused(error)
        return None
    return survey


def refused(error: CkptError) -> None:
    """The line of an error as the command prints it."""
    line = show_literal(str(error)[:2000])
    check(line, "an error without a text")
    clean(line, allowed="")


def written(document: Any) -> None:
    """A document is JSON, and says the same when it is read again."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False)
    clean(text, allowed="")


def rows(table: Sequence[Sequence[str]]) -> None:
    """A table is TSV: as many cells in every row, no tab or line end inside of
    a cell.
    """
    check(len({len(row) for row in table}) == 1, "rows of different lengths")
    for row in table:
        for cell in row:
            clean(cell, allowed="")


_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_BIDI = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)


def clean(text: str, allowed: str = "\n") -> None:
    """A text moves no cursor, ends no line, and reorders nothing."""
    if text.isascii() and text.replace("\n", " " if allowed else "\n").isprintable():
        return
    for char in set(text) - set(allowed):
        if unicodedata.category(char) in _UNSAFE or char in _BIDI:
            raise AssertionError(f"the output holds {char!a}")


# --------------------------------------------------------------------------------------
# what must not happen

_HARMLESS = frozenset(
    (
        "sys._getframe",
        "sys._getframemodulename",
        "gc.get_objects",
        "builtins.id",
        "object.__getattr__",
        "array.__new__",  # columns of numbers
    )
)
_watching = False
_events: list[str] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event not in _HARMLESS:
        _events.append(f"{event}{arguments!r:.200}")


@contextmanager
def watched() -> Iterator[None]:
    """Fail when anything is imported, opened, compiled or run inside."""
    global _watching
    _prepare()
    _events.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
    check(not _events, f"reading raised the audit events {_events[:3]}")


@cache
def _prepare() -> None:
    """Import whatever ckpt itself imports when it needs it, so that any import after
    that is one that a file asked for.
    """
    for module in pkgutil.walk_packages(ckpt.__path__, "ckpt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in sorted(_imported()):
        with suppress(ModuleNotFoundError):  # tomli is there for Python 3.10 alone
            importlib.import_module(name)
    for codec in (
        "utf-8",
        "latin-1",
        "ascii",
        "unicode-escape",
        "raw-unicode-escape",
        "utf-16",
        "utf-32",
    ):
        "".encode(codec)
    sys.addaudithook(_hook)


def _imported() -> Iterable[str]:
    """The modules of others that the source of ckpt names, but for torch."""
    for path in Path(ckpt.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            yield from (
                name
                for name in names
                if name.partition(".")[0] not in ("torch", "ckpt", "__future__")
            )
