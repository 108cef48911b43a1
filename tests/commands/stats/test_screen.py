"""`ckpt stats` on narrow screens: the least number never stands without the largest,
and what has no room is named.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from process import ckpt, terminal

MODULE = "base_model.vision_tower_with_projection.encoder"


def shown(folder: Path, *options: str, columns: int) -> list[str]:
    names = [
        f"{MODULE}.layers.{i}.self_attention_block_of_the_encoder_{'x' * 20}.k_proj.weight"
        for i in range(6)
    ]
    tensors = {
        name: torch.full((64, 32), 1000.0 * i - 2000.0) for i, name in enumerate(names)
    }
    tensors[names[0]][0, 0] = float("nan")
    torch.save({"state": {"trainer": {"model": tensors}}}, folder / "a.pth")
    text = terminal(
        "stats",
        "a.pth",
        *options,
        columns=columns,
        cwd=folder,
        TERM="dumb",
        NO_COLOR="1",
    )
    return text.splitlines()


@pytest.mark.parametrize("columns", [50, 60, 70, 80, 100, 120])
@pytest.mark.parametrize("options", [(), ("--histogram",), ("--channels",)])
def test_min_and_max_go_together_and_what_has_no_room_is_named(
    options: tuple[str, ...], columns: int, tmp_path: Path
) -> None:
    lines = shown(tmp_path, *options, columns=columns)
    (head,) = (line for line in lines if line.startswith("NAME"))
    said = (
        " ".join(" ".join(lines).split())
        .partition("… no room for ")[2]
        .partition(" (--tsv")[0]
    )

    there = [
        name
        for name in ("SHAPE", "MIN", "MAX", "MEAN", "STD", "RMS")
        if name in head.split()
    ]
    gone = [name for name in re.split(", +", said) if name]
    assert ("MIN" in there) == ("MAX" in there) and {*there, *gone} == {
        "SHAPE", "MIN", "MAX", "MEAN", "STD", "RMS",
    }  # fmt: skip
    assert not set(there) & set(gone) and (
        "MIN" in there or bool(options) or columns < 80
    )
    assert "NAN" in head.split() and all(
        len(line) <= columns for line in lines if not line.startswith("  ")
    )


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_shortened_names_stay_apart(columns: int, tmp_path: Path) -> None:
    lines = shown(tmp_path, columns=columns)
    begin = next(at for at, line in enumerate(lines) if line.startswith("NAME"))

    names = [line.split("  ")[0] for line in lines[begin + 1 : begin + 7]]
    assert len(set(names)) == 6


def test_a_histogram_shrinks_before_a_column_goes(tmp_path: Path) -> None:
    torch.save({"layers.0.weight": torch.arange(1024.0)}, tmp_path / "a.pth")

    def head(columns: int) -> list[str]:
        text = terminal(
            "stats",
            "a.pth",
            "--histogram",
            columns=columns,
            cwd=tmp_path,
            TERM="dumb",
            NO_COLOR="1",
        )
        return next(
            line for line in text.splitlines() if line.startswith("NAME")
        ).split()

    wide, narrow = head(200), head(74)
    assert wide[-1] == "HISTOGRAM" and narrow[-1] == "HIST"
    assert narrow[:-1] == wide[:-1]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_tensor_that_is_damaged_leaves_the_numbers_of_the_others(
    columns: int, tmp_path: Path
) -> None:
    state = {f"layers.{number}.weight": torch.randn(64, 32) for number in range(3)}
    torch.save(state, tmp_path / "a.pth")
    content = bytearray((tmp_path / "a.pth").read_bytes())
    place = content.find(state["layers.1.weight"].numpy().tobytes())
    content[place] ^= 1
    (tmp_path / "a.pth").write_bytes(content)

    lines = terminal(
        "stats", "a.pth", columns=columns, cwd=tmp_path, code=2, NO_COLOR="1"
    ).splitlines()

    (head,) = (line for line in lines if line.startswith("NAME"))
    assert head.split()[1:] == ["SHAPE", "MIN", "MAX", "MEAN", "STD", "RMS", "ZEROS"]
    (row,) = (line for line in lines if line.startswith("1.weight"))
    assert row.split()[-1] == "unreadable" and len(row) <= len(head)


def test_names_of_one_long_word_keep_their_number(tmp_path: Path) -> None:
    word = "cross_attention_block_of_the_perceiver_number"
    end = "latent_processing_sub_layer.weight_of_the_projection"
    torch.save(
        {f"{word}_{i:04}.{end}": torch.randn(4) for i in range(20)}, tmp_path / "a.pth"
    )
    for columns in (80, 100):
        text = terminal("stats", "a.pth", columns=columns, cwd=tmp_path, NO_COLOR="1")
        names = [line.split()[0] for line in text.splitlines() if "projection" in line]
        assert [f"{i:04}" in name for i, name in enumerate(names)] == [True] * 20


def test_one_wide_integer_leaves_the_columns_of_the_others(tmp_path: Path) -> None:
    """A random seed of 19 digits, in its minimum and its maximum."""
    content = {"seed": torch.tensor([2**62]), "fc.weight": torch.tensor([0.5, 1.5])}
    torch.save(content, tmp_path / "a.pth")

    text = terminal("stats", "a.pth", columns=80, cwd=tmp_path, NO_COLOR="1")

    assert "MIN" in text and "MEAN" in text
    assert "4.61e+18" in text


def test_a_sparse_tensor_is_measured_by_what_it_stores_and_the_screen_says_so(
    tmp_path: Path,
) -> None:
    content = {"mask": torch.eye(4).to_sparse(), "fc.weight": torch.ones(2)}
    torch.save(content, tmp_path / "a.pth")

    text = terminal("stats", "a.pth", columns=80, cwd=tmp_path, NO_COLOR="1")

    assert "the numbers are of the values that are stored: mask" in text


def test_modules_of_long_names_are_told_apart_in_a_pipe(tmp_path: Path) -> None:
    """The names of modules are cut as those of tensors, without what all begin with."""
    blocks = [
        f"{MODULE}.{'long_' * 12}blocks.{i}.attention_{'x' * 30}" for i in range(6)
    ]
    torch.save({f"{name}.weight": torch.ones(2) for name in blocks}, tmp_path / "a.pth")

    done = ckpt("stats", "a.pth", "--modules", cwd=tmp_path)

    rows = done.lines[done.lines.index("MODULE") :] if "MODULE" in done.lines else []
    rows = rows or [line for line in done.lines if line.endswith("0 %")][-6:]
    assert len({line.split()[0] for line in rows}) == 6


def test_a_finding_names_the_tensor_however_long_its_name_is(tmp_path: Path) -> None:
    name = f"{MODULE}.{'long_' * 18}blocks.7.attention.query.weight"
    other = name.replace(".7.", ".6.")
    tensors = {name: torch.full((2,), float("nan")), other: torch.ones(2)}
    torch.save(tensors, tmp_path / "a.pth")

    done = ckpt("stats", "a.pth", cwd=tmp_path)

    assert f"! nan  2 elements are NaN in {name}." in done.lines


def test_numbers_of_complex_tensors_are_said_to_be_magnitudes(tmp_path: Path) -> None:
    tensors = {"c.w": torch.tensor([3 + 4j, -3 - 4j]), "w": torch.ones(2)}
    torch.save(tensors, tmp_path / "a.pth")

    done = ckpt("stats", "a.pth", cwd=tmp_path)

    assert "the numbers are of magnitudes, as of all complex tensors: c.w" in done.lines
