"""`diff --section` and `--include`: the findings, the values and the verdict are those
of the selection.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rewriting
import torch
from inside import inside
from process import check_error


def weights(moved: float, nan: bool = False) -> dict[str, torch.Tensor]:
    """A layer that is `moved`, and a head that never is."""
    layer = torch.ones(3, 4) + moved
    if nan:
        layer[0, 0] = float("nan")
    return {"layer.weight": layer, "head.weight": torch.ones(2, 3)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that were trained; the second ends with NaN and beside an
    optimizer.
    """
    folder = tmp_path_factory.mktemp("selected")
    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9
    ).state_dict()
    rewriting.saved(
        {"gen": weights(0), "disc": weights(0), "epoch": 1}, folder / "a.pt"
    )
    after = {
        "gen": weights(1),
        "disc": weights(2, nan=True),
        "optimizer": optimizer,
        "epoch": 2,
    }
    rewriting.saved(after, folder / "b.pt")
    return folder


def told(folder: Path, *arguments: str) -> tuple[dict[str, set[str]], bool]:
    """The findings of a comparison, each code with the names of its tensors, and
    whether the files are the same.
    """
    document = json.loads(
        inside("diff", "a.pt", "b.pt", *arguments, "--json", cwd=folder).out
    )
    codes: dict[str, set[str]] = {}
    for finding in document["findings"]:
        codes.setdefault(finding["code"], set()).update(finding["tensors"])
    return codes, document["same"]


def test_without_a_selection_both_models_have_findings(files: Path) -> None:
    assert told(files) == (
        {
            "frozen": {"gen.head.weight", "disc.head.weight"},
            "nan": {"disc.layer.weight"},
        },
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [("--section", "gen"), ("--include", "gen.*"), ("--exclude", "disc.*")],
)
def test_a_finding_outside_of_the_selection_is_not_made(
    files: Path, arguments: tuple[str, str]
) -> None:
    assert told(files, *arguments) == ({"frozen": {"gen.head.weight"}}, False)


@pytest.mark.parametrize("arguments", [("--section", "disc"), ("--include", "disc.*")])
def test_a_finding_inside_of_the_selection_is_made(
    files: Path, arguments: tuple[str, str]
) -> None:
    codes, _ = told(files, *arguments)

    assert codes == {"frozen": {"disc.head.weight"}, "nan": {"disc.layer.weight"}}
    text = inside("diff", "a.pt", "b.pt", *arguments, cwd=files).out.decode()
    assert "gen" not in text and "epoch" not in text and "1 changed, 1 same" in text


def test_what_did_not_change_is_the_same_whatever_changed_beside_it(
    files: Path,
) -> None:
    assert told(files, "--include", "*head*") == ({}, True)
    assert inside("diff", "a.pt", "b.pt", "--include", "*head*", cwd=files).code == 0


@pytest.mark.parametrize("order", [("a.pt", "b.pt"), ("b.pt", "a.pt")])
def test_a_section_of_one_side_cannot_be_compared(
    files: Path, order: tuple[str, str]
) -> None:
    check_error(
        inside("diff", *order, "--section", "optimizer", cwd=files),
        "a.pt: no section optimizer (sections: gen, disc)",
    )


def test_letters_and_values_have_colours(tmp_path: Path) -> None:
    rewriting.saved(
        {
            "m": {"a.w": torch.ones(2), "b.w": torch.ones(3), "c.w": torch.ones(3)},
            "args": {"lr": 1, "old": 5},
        },
        tmp_path / "a.pt",
    )
    rewriting.saved(
        {
            "m": {"a.w": torch.zeros(2), "d.w": torch.ones(4), "e.w": torch.ones(3)},
            "args": {"lr": 2, "new": 6},
        },
        tmp_path / "b.pt",
    )
    arguments = ("diff", "a.pt", "b.pt")
    text = inside(*arguments, cwd=tmp_path, FORCE_COLOR="1").out.decode()

    assert "\x1b[33mM \x1b[0ma.w" in text
    assert "\x1b[32mA \x1b[0md.w" in text
    assert "\x1b[31mD \x1b[0m" in text
    assert "\x1b[33mM \x1b[0margs.lr  \x1b[31m1\x1b[0m → \x1b[32m2\x1b[0m" in text
    assert "\x1b[32mA \x1b[0margs.new  \x1b[32m6\x1b[0m" in text
    assert "\x1b[31mD \x1b[0margs.old  \x1b[31m5\x1b[0m" in text
    plain = inside(*arguments, cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1").out.decode()
    assert "\x1b" not in plain and "M args.lr  1 → 2\n" in plain


def test_a_rename_has_a_colour(tmp_path: Path) -> None:
    rewriting.saved(
        {"m": {"a.w": torch.arange(6.0), "b.w": torch.ones(3)}}, tmp_path / "a.pt"
    )
    rewriting.saved(
        {"m": {"z.w": torch.arange(6.0), "b.w": torch.ones(3)}}, tmp_path / "b.pt"
    )
    text = inside("diff", "a.pt", "b.pt", cwd=tmp_path, FORCE_COLOR="1").out.decode()

    assert "\x1b[36mR \x1b[0ma.w → z.w" in text


def test_an_object_is_named_by_its_class(samples: Path) -> None:
    done = inside("diff", "hostile.pth", "objects.pth", cwd=samples)

    assert (
        "A train  my_project.config.TrainConfig, 4 fields"
        in done.out.decode().splitlines()
    )
    assert not any(
        line.startswith("A ") and line.endswith("  None")
        for line in done.out.decode().splitlines()
    )
