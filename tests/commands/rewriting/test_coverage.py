"""How much of a target a warm start loads."""

from __future__ import annotations

import pytest

from ckpt.commands.rewriting.report import Coverage, Pairing, Status, head_of
from ckpt.model.checkpoint import Entry
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.tensors import Storage, tensor_ref

FLOAT = BY_NAME["float32"]


def entry(name: str, numel: int) -> Entry:
    storage = Storage(name, "cpu", FLOAT, 4 * numel, None)
    shape = (numel, 1) if name.endswith(".w") else (numel,)
    return Entry((name,), name, tensor_ref(storage, FLOAT, shape, contiguous(shape), 0))


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


def test_tied_tensors_are_loaded_and_what_nobody_takes_is_no_part_of_the_target() -> (
    None
):
    assert COVERAGE.tensors == (5, 7)
    assert COVERAGE.elements == (34, 100)
    assert COVERAGE.share == 0.34
    assert COVERAGE.to_json()["share"] == 0.34


def test_an_empty_target_is_covered() -> None:
    assert Coverage((row("unexpected", "a", 3, 0),), "p", ("", "")).share == 1.0
    assert Coverage((row("loaded", "a", 0, 0),), "p", ("", "")).share == 1.0


def test_modules_are_those_of_the_target_and_tensors_outside_of_any_stand_together() -> (
    None
):
    rows = [
        (module.name, module.tensors, module.elements) for module in COVERAGE.modules()
    ]
    assert rows == [
        ("body", (4, 4), (24, 30)),
        ("head", (1, 2), (10, 30)),
        ("", (0, 1), (0, 40)),
    ]


def test_a_module_that_is_the_model_is_shown_by_its_parts() -> None:
    names = [
        f"net.vit.{part}.{number}"
        for part in ("stem", "blocks", "norm")
        for number in range(4)
    ]
    rows = [row("loaded", name, 1, 1) for name in [*names, "net.head.weight"]]
    modules = Coverage(tuple(rows), "p", ("", "")).modules()
    assert [module.name for module in modules] == [
        "net.vit.stem",
        "net.vit.blocks",
        "net.vit.norm",
        "net.head",
    ]


def test_body_and_head_add_up_to_the_whole() -> None:
    coverage = COVERAGE._replace(head=frozenset(("head.a", "head.b")))
    assert coverage.halves() == ((24, 70), (10, 30))
    assert coverage.to_json()["body"] == [24, 70] and coverage.to_json()["head"] == [
        10,
        30,
    ]


@pytest.mark.parametrize(
    ("names", "statuses", "head"),
    [
        (["stem.w", "fc.w", "fc.b", "aux.w"], "llll", {"fc.w", "fc.b"}),
        (["module.stem.w", "module.classifier.1.w"], "ll", {"module.classifier.1.w"}),
        (["stem.w", "top.w", "top.b"], "lkk", {"top.w", "top.b"}),
        (["stem.w", "top.w", "top.b"], "lmm", {"top.w", "top.b"}),
        (["stem.w", "top.w", "top.b"], "lkl", set()),
        (["stem.w", "top.w"], "ll", set()),
        (["stem.w", "norm.a", "norm.b"], "mmm", set()),
        (["top.w"], "k", set()),
        (["w", "b"], "kk", set()),
        ([], "", set()),
    ],
)
def test_the_head_is_called_like_one_or_is_a_last_layer_that_does_not_fit(
    names: list[str], statuses: str, head: set[str]
) -> None:
    words: dict[str, Status] = {"l": "loaded", "k": "kept", "m": "missing"}
    rows = [
        row(words[status], name, 2, 0)
        for name, status in zip(names, statuses, strict=True)
    ]
    assert head_of(rows) == head
