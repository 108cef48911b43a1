"""The files of a set: opened one by one, left out where they are damaged, closed
together.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.bytes.location import Location, locate
from ckpt.formats.common.file_set import (
    CheckpointFiles,
    FileSet,
    check_files,
    is_damage,
)
from ckpt.formats.common.mixed_steps import find_strays
from ckpt.formats.format import ChecksumReport, Damage
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.errors import CkptError, LimitError, NotOpenedError, UnreadableError


class Opened:
    """A file that tells when it was closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self._name = name
        self._closed = closed

    def close(self) -> None:
        self._closed.append(self._name)


PROBLEMS: dict[str, CkptError] = {
    "damaged": UnreadableError("damaged"),
    "large": LimitError("too large", "entries", 1),
    "absent": NotOpenedError("no such file"),
}


def opened_set(folder: Path, closed: list[str]) -> FileSet[Opened]:
    """Return a set whose files are called as their problem."""

    def open_file(name: str) -> Opened:
        if name in PROBLEMS:
            raise PROBLEMS[name]
        return Opened(name, closed)

    return FileSet(locate(str(folder)), open_file, is_damage)


def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    files = opened_set(tmp_path, [])
    assert [name for name, _ in files.open_each(["a", "damaged", "b"])] == ["a", "b"]
    assert list(files.files) == ["a", "b"] and files.unread == {
        "damaged": PROBLEMS["damaged"]
    }


@pytest.mark.parametrize("name", ["large", "absent"])
def test_what_is_no_damage_is_an_error_that_closes_all(
    name: str, tmp_path: Path
) -> None:
    closed: list[str] = []
    files = opened_set(tmp_path, closed)
    with pytest.raises(type(PROBLEMS[name])), files.closing_on_errors():
        files.open_all(["a", "b", name, "c"])
    assert closed == ["a", "b"] and not files.unread


def test_files_stay_open_where_nothing_fails(tmp_path: Path) -> None:
    closed: list[str] = []
    files = opened_set(tmp_path, closed)
    with files.closing_on_errors():
        files.open_all(["a", "b", "damaged"])
        files.drop("b")
    assert closed == ["b"] and list(files.files) == ["a"]
    files.close()
    assert closed == ["b", "a"]


def empty(name: str, *notices: Notice) -> Checkpoint:
    """Return a checkpoint of ten bytes with nothing in it."""
    return Checkpoint(
        name, "test", Traits("test"), 10, None, (), (), account=Account(notices)
    )


def open_checkpoint(name: str) -> Checkpoint:
    if name in PROBLEMS:
        raise PROBLEMS[name]
    return empty(
        name,
        Notice("incomplete", "cut off", ("x", "y")),
        Notice("container", "odd", ("z",)),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Location:
    return locate(str(tmp_path))


def test_what_is_left_out_of_checkpoints_is_said(folder: Location) -> None:
    files = CheckpointFiles(folder, open_checkpoint, partial=True)
    files.open_all(["a", "damaged", "b", "c"])
    files.leave_out("c", "most")
    assert files.nbytes == 20 and files.cut_in("a") == ("x", "y")
    assert [(row.code, row.message) for row in files.notices] == [
        ("damaged-file", "damaged was not read: damaged"),
        ("damaged-file", "c is of another step than most and was not read"),
    ]
    files.refuse_nothing()


def test_a_set_that_must_be_whole_takes_no_damage(folder: Location) -> None:
    with pytest.raises(UnreadableError):
        CheckpointFiles(folder, open_checkpoint, partial=False).open("damaged")


def test_a_set_of_which_nothing_is_left_is_refused_with_its_first_error(
    folder: Location,
) -> None:
    files = CheckpointFiles(folder, open_checkpoint, partial=True)
    files.open_all(["damaged"])
    with pytest.raises(UnreadableError) as caught:
        files.refuse_nothing()
    assert caught.value is PROBLEMS["damaged"]


def report_on(name: str) -> ChecksumReport:
    if name in PROBLEMS:
        raise PROBLEMS[name]
    return ChecksumReport(5, (Damage("record", "id"),), 2)


def test_reports_name_their_files() -> None:
    report = check_files(["a", "damaged", "b"], report_on, partial=True, prefix="tag/")
    assert (report.nbytes, report.unchecked) == (10, 4)
    assert [row.what for row in report.damage] == ["tag/a: record", "tag/b: record"]
    with pytest.raises(UnreadableError):
        check_files(["damaged"], report_on)
    with pytest.raises(NotOpenedError):
        check_files(["absent"], report_on, partial=True)


STEPS: list[tuple[dict[str, dict[str, float]], set[str]]] = [
    ({"a": {"step": 1}, "b": {"step": 1}}, set()),
    ({"a": {"step": 1}, "b": {"step": 2}}, set()),
    ({"a": {"step": 1}, "b": {"step": 2}, "c": {"step": 2}}, {"a"}),
    (
        {"a": {"step": 2}, "b": {"step": 2, "epoch": 1}, "c": {"step": 2, "epoch": 0}},
        set(),
    ),
    ({"a": {}, "b": {"step": 1}, "c": {"step": 1}, "d": {"step": 3}}, {"d"}),
]


@pytest.mark.parametrize(("counts", "odd"), STEPS, ids=str)
def test_the_majority_says_the_step(
    counts: dict[str, dict[str, float]], odd: set[str]
) -> None:
    assert find_strays(counts) == odd
