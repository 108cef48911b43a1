"""Findings stand by level, the most serious first, in every command and form that lists
them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from process import SAMPLES, ckpt

from ckpt.model.findings import CATALOGUE, LEVELS, Finding, Rules, order

FILES = (
    "train_cuda.pth", "hostile.pth", "objects.pth", "whole_model.pth", "tied_and_bloated.pth", "dtypes.pth",
    "yolo_style.pt", "dcp", "ddp_after.pth", "branch.rank1.pth",
)  # fmt: skip
COMMANDS = {
    "inspect": ("inspect", *FILES),
    "lint": ("lint", *FILES, "--level", "info", "--read-values"),
    "ls": ("ls", *FILES, "--level", "info"),
    "stats": ("stats", "broken.pth", "zeros.pth"),
    "diff": ("diff", "zeros.pth", "broken.pth"),
    "verify": ("verify", *FILES),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples, and two saves of which the second has NaN, zeros and a parameter
    that stands still.
    """
    made = tmp_path_factory.mktemp("order")
    for path in SAMPLES.iterdir():
        (made / path.name).symlink_to(path)
    model = {
        "a.weight": torch.ones(3),
        "b.weight": torch.ones(3),
        "c.weight": torch.zeros(4),
    }
    torch.save(model, made / "zeros.pth")
    torch.save(
        model | {"a.weight": torch.tensor([1.0, float("nan"), float("inf")])},
        made / "broken.pth",
    )
    return made


def levels_of(document: dict[str, object]) -> list[list[int]]:
    """The levels of each list of findings in a document."""
    found = []
    for key, value in document.items():
        if key == "findings" and isinstance(value, list):
            found.append([LEVELS.index(row["level"]) for row in value])
        elif isinstance(value, list):
            found += [
                levels
                for row in value
                if isinstance(row, dict)
                for levels in levels_of(row)
            ]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_findings_of_documents_are_in_the_order_of_their_levels(
    command: str, folder: Path
) -> None:
    done = ckpt(*COMMANDS[command], "--json", cwd=folder)
    lists = [levels for line in done.lines for levels in levels_of(json.loads(line))]

    if command not in ("verify", "stats"):  # whose findings are of one level here
        assert any(len(set(levels)) > 1 for levels in lists), lists
    assert [levels for levels in lists if levels != sorted(levels)] == []


@pytest.mark.parametrize("command", ["inspect", "lint", "diff", "stats"])
def test_findings_of_texts_are_in_the_order_of_their_levels(
    command: str, folder: Path
) -> None:
    files = [
        [name]
        for name in COMMANDS[command][1:]
        if not name.startswith("--") and name != "info"
    ]
    options = ("--level", "info") if command != "stats" else ()
    for names in files if command != "diff" else [["zeros.pth", "broken.pth"]]:
        lines = ckpt(command, *names, *options, "--color", "always", cwd=folder).lines
        codes = [
            code
            for line in lines
            for code in re.findall(r"\x1b\[[0-9;]*m([a-z-]+)\x1b\[0m", line)
            if code in CATALOGUE
        ]
        styles = [
            next(level for level, mark in (("error", "1;31"), ("warning", "33"), ("info", "36")) if f"\x1b[{mark}m{code}" in line)
            for line in lines
            for code in re.findall(r"\x1b\[[0-9;]*m([a-z-]+)\x1b\[0m", line)
            if code in CATALOGUE
        ]  # fmt: skip
        assert len(codes) == len(styles)
        assert [LEVELS.index(level) for level in styles] == sorted(
            LEVELS.index(level) for level in styles
        ), lines


def test_a_raised_finding_stands_with_its_level() -> None:
    rows = [
        Finding("unused", "x", raised="info"),
        Finding("prefix", "x"),
        Finding("nan", "x", raised="error"),
        Finding("cuda", "x"),
    ]

    assert [row.code for row in order(rows)] == ["nan", "prefix", "unused", "cuda"]
    assert [row.code for row in Rules(level="info").kept(rows)] == [
        "nan",
        "prefix",
        "unused",
        "cuda",
    ]
