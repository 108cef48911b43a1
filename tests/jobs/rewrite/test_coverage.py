"""How much of a target a warm start loads."""

from __future__ import annotations

from ckpt.checkpoint import Entry
from ckpt.dtypes import BY_NAME, contiguous
from ckpt.jobs.rewrite.report import Coverage, Pairing, Status
from ckpt.tensors import Storage, tensor_ref

FLOAT = BY_NAME["float32"]


def entry(name: str, numel: int) -> Entry:
    storage = Storage(name, "cpu", FLOAT, 4 * numel, None)
    return Entry((name,), name, tensor_ref(storage, FLOAT, (numel,), contiguous((numel,)), 0))


def row(status: Status, name: str, numel: int, copied: int) -> Pairing:
    target = None if status == "unexpected" else entry(name, numel)
    source = None if status in ("missing", "tied") else entry(name, numel)
    return Pairing(status, name, target, source, copied)


COVERAGE = Coverage(
    (
        row("loaded", "body.a", 10, 10),
        row("cast", "body.b", 10, 10),
        row("sliced", "body.c", 10, 4),
        row("loaded", "body.empty", 0, 0),
        row("tied", "head.a", 10, 10),
        row("kept", "head.b", 20, 0),
        row("missing", "scale", 40, 0),
        row("unexpected", "old.a", 99, 0),
    ),
    "pretrained.pth",
    ("", ""),
)


def test_tied_tensors_are_loaded_and_what_nobody_takes_is_no_part_of_the_target() -> None:
    assert COVERAGE.tensors == (5, 7)
    assert COVERAGE.elements == (34, 100)
    assert COVERAGE.share == 0.34
    assert COVERAGE.to_json()["share"] == 0.34


def test_an_empty_target_is_covered() -> None:
    assert Coverage((row("unexpected", "a", 3, 0),), "p", ("", "")).share == 1.0
    assert Coverage((row("loaded", "a", 0, 0),), "p", ("", "")).share == 1.0


def test_modules_are_those_of_the_target_and_tensors_outside_of_any_stand_together() -> None:
    assert COVERAGE.modules() == [("body", 4, 4, 24, 30), ("head", 1, 2, 10, 30), ("", 0, 1, 0, 40)]
