"""The fuzz targets over their seeds and a fixed set of changes, without atheris: what
they check holds, and they do not rot.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import harness
import opcodes as op
import pytest
import targets
from harness import clean, looked, opened, watched
from targets import TARGETS

from ckpt.commands.inspect import tables
from ckpt.formats.torch_zip import reader as read

CHANGES = {"snapshot": 60, "torch": 150}
"""The changes of seeds for a target at most. They are the same in every run."""


@cache
def seeds(name: str, count: int) -> list[bytes]:
    """About `count` of the smaller seeds of a target, evenly chosen."""
    found = [data for data in TARGETS[name].seeds() if len(data) < 8000]
    return found[:: max(1, len(found) // count)]


def changes(name: str, count: int) -> list[bytes]:
    """The seeds of a target, each with a change that is drawn."""
    random = Random(zlib.crc32(name.encode()))
    most = min(count, CHANGES.get(name, count))
    return [
        TARGETS[name].mutate(random.choice(seeds(name, count)), random)
        for _ in range(most)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [70, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_changes(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = seeds(name, count), changes(name, count)
    assert len(good) > 5 and bad == changes(name, count)
    reached = 0

    def counted(open: Callable[[], Any]) -> Any:
        nonlocal reached
        survey = looked(open)
        reached += survey is not None
        return survey

    monkeypatch.setattr(targets, "looked", counted)
    for data in good:
        TARGETS[name].check(data)
    read_seeds, reached = reached, 0
    compared = sum(TARGETS[name].check(data) is True for data in bad)

    if name in ("safetensors", "torch", "columns", "tensors"):
        assert compared > len(bad) / 10, (
            "there is hardly ever something to compare with"
        )
    if name not in (
        "answers",
        "language",
        "listing",
        "columns",
        "tensors",
    ):  # these open nothing themselves
        assert read_seeds > len(good) / 10
        # In metadata a name stands twice, and a change of one of them is refused; a PT2
        # says most things twice.
        share = {"metadata": 50, "pt2": 25}.get(name, 14)
        assert reached > len(bad) / share, "the changes hardly ever get past opening"


# --------------------------------------------------------------------------------------
# the harness itself

GOOD = op.torch_zip(op.tensor_pickle())


def test_any_other_exception_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    targets.archive(GOOD)
    for error in (KeyError("x"), RecursionError(), MemoryError()):
        monkeypatch.setattr(
            read,
            "byteorder_of",
            lambda archive, error=error: (_ for _ in ()).throw(error),
        )
        with pytest.raises(type(error)):
            targets.archive(GOOD)


def test_text_that_is_not_escaped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    data = op.torch_zip(op.pickled({"a\x1b[31m": op.tensor()}))
    targets.archive(data)
    monkeypatch.setattr(tables, "show", lambda text, limit=None: text)
    with pytest.raises(AssertionError, match=r"the output holds '\\x1b'"):
        targets.archive(data)
    for char in "\n\t\0\x9b\u2028\u202e\ud800":
        with pytest.raises(AssertionError):
            clean(f"é{char}", allowed="")
    clean("é\n ü|¬ €日")


def test_what_a_file_makes_python_do_fails() -> None:
    for action in (
        lambda: __import__("no_such_module"),
        lambda: open(os.devnull).close(),
        lambda: eval("1"),
    ):
        with (
            pytest.raises(AssertionError, match="audit events"),
            watched(),
            suppress(ImportError),
        ):
            action()
    with watched():
        opened("x.pt", GOOD)


def test_a_difference_to_the_libraries_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    header = op.safetensors_file({"w": op.entry()}, op.SIX)
    for check, data in (
        (targets.safetensors, header),
        (targets.torch, op.tensor_pickle()),
    ):
        check(data)
        monkeypatch.setattr(targets, "looked", lambda open: _renamed(looked(open)))
        with pytest.raises(AssertionError):
            check(data)
        monkeypatch.undo()


def _renamed(survey: Any) -> Any:
    """The survey over tensors of another shape."""
    row = survey.checkpoint.tensors[0]
    changed = row._replace(tensor=row.tensor._replace(shape=(1,)))
    object.__setattr__(survey.checkpoint, "tensors", (changed,))
    return survey


def test_the_folder_in_memory_holds_plain_names_only() -> None:
    folder = harness.InMemory("m/", {"a": b""})
    assert (
        folder.is_folder() and folder.names() == ["a"] and folder.child("a").is_file()
    )
    for name in ("../a", "", "a/b", "a\0"):
        with pytest.raises(Exception, match="not a file in this folder"):
            folder.child(name)
