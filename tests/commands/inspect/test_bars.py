"""`ckpt inspect --bars`: the largest parts, each below its parent, with bars that say
what they are of all bytes.
"""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import rewriting
import torch
from hypothesis import given
from hypothesis import strategies as st
from process import SAMPLES, check_error, ckpt

from ckpt import formats
from ckpt.commands.inspect.bars import _share_bar, bar_lines
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.model.names import Globs
from ckpt.surface.text.lines import cells, plain_text

pytestmark = oracle.QUIET
STATE = {
    "stem.weight": torch.zeros(50),
    **{
        f"layers.{i}.{name}": torch.zeros(n)
        for i in range(2)
        for name, n in (("fc", 40), ("norm", 5), ("out", 30))
    },
    "head.weight": torch.zeros(200),
    "steps": torch.zeros((), dtype=torch.int64),
}


def lines(
    path: Path | str, select: Globs | None = None, **options: int | bool | None
) -> list[str]:
    with formats.open(str(path)) as checkpoint:
        return plain_text(
            bar_lines(inspect(Survey(checkpoint), select), **options)
        ).splitlines()  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return rewriting.saved(STATE, tmp_path / "a.pt")


def test_bars_stand_by_their_bytes(path: Path) -> None:
    assert lines(path, width=60) == [
        " SIZE  NAME             SHARE",
        "800 B  head.weight     49.8 %  ██████████████",
        "600 B  layers.0-1  ×2  37.3 %  ███████████",
        "320 B    fc            19.9 %  ██████▓▓▓▓▓",
        "240 B    out           14.9 %  ████▓▓▓▓▓▓▓",
        " 40 B    norm           2.5 %  █▓▓▓▓▓▓▓▓▓▓",
        "200 B  stem.weight     12.4 %  ████",
        "  8 B  steps            0.5 %  ▏",
    ]


SCREEN = """\
    SIZE  NAME                                             SHARE
30.4 KiB  optimizer                                       65.5 %  ████████████████████
16.0 KiB  model.module                                    34.5 %  ██████████
14.3 KiB    layers.0-2  ×3                                30.9 %  █████████▓
13.5 KiB      {conv1,conv2}.weight                        29.1 %  █████████▒
   384 B      bn1.{weight,bias,running_mean,running_var}   0.8 %  ▏▓▓▓▓▓▓▓▓▒
   384 B      bn2.{weight,bias,running_mean,running_var}   0.8 %  ▏▓▓▓▓▓▓▓▓▒
    48 B      {bn1,bn2}.num_batches_tracked                0.1 %  ▏▓▓▓▓▓▓▓▓▒
   864 B    conv1.weight                                   1.8 %  █▓▓▓▓▓▓▓▓▓
   640 B    {fc,aux_head}.weight                           1.3 %  ▏▓▓▓▓▓▓▓▓▓
   128 B    bn1.{weight,bias,running_mean,running_var}     0.3 %  ▏▓▓▓▓▓▓▓▓▓
    80 B    {fc,aux_head}.bias                             0.2 %  ▏▓▓▓▓▓▓▓▓▓
     8 B    bn1.num_batches_tracked                       <0.1 %  ▏▓▓▓▓▓▓▓▓▓
"""


def test_screen() -> None:
    out = ckpt("inspect", "train_cuda.pth", "--bars", cwd=SAMPLES).out.decode()

    assert out.partition("\n\n")[2] == SCREEN
    assert out.startswith("train_cuda.pth   PyTorch zip · 80.3 KiB")


def test_ascii() -> None:
    out = ckpt(
        "inspect", "train_cuda.pth", "--bars", cwd=SAMPLES, PYTHONIOENCODING="ascii"
    ).out.decode("ascii")

    assert (
        "14.3 KiB    layers.0-2  x3                                30.9 %  #########=\n"
        in out
    )
    assert (
        " 384 B      bn1.{weight,bias,running_mean,running_var}   0.8 %  #========-\n"
        in out
    )


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize(
    "name", ["train_cuda.pth", "llama_bf16.pth", "lightning.ckpt", "hostile.pth", "dcp"]
)
def test_a_screen_is_never_exceeded(name: str, columns: int) -> None:
    for rows in (3, 4, 7, 20):
        found = lines(SAMPLES / name, width=columns, rows=rows)

        assert len(found) <= rows
        assert max(map(cells, found)) <= max(columns, 60)
        assert columns == 40 or max(map(cells, found)) <= columns


def test_the_largest_are_shown_and_the_others_counted(path: Path) -> None:
    def shown(rows: int) -> list[str]:
        return [" ".join(line.split()[2:4]) for line in lines(path, rows=rows)[1:-1]]

    assert (shown(3), lines(path, rows=3)[-1]) == (
        ["head.weight 49.8"],
        "… 6 more (--all, --depth N)",
    )
    assert (shown(4)[1], lines(path, rows=4)[-1]) == (
        "layers.0-1 ×2",
        "… 5 more (--all, --depth N)",
    )
    assert (shown(6)[-1], lines(path, rows=6)[-1]) == (
        "out 14.9",
        "… 3 more (--all, --depth N)",
    )
    assert (shown(7)[-1], lines(path, rows=7)[-1]) == (
        "stem.weight 12.4",
        "… 2 more (--all, --depth N)",
    )
    assert len(lines(path, rows=8)) == 8 and "more" not in lines(path, rows=8)[-1]


def test_depth_and_all(path: Path) -> None:
    top = lines(path, depth=0, rows=2)
    assert [line.split()[2] for line in top[1:]] == [
        "head.weight",
        "layers.0-1",
        "stem.weight",
        "steps",
    ]
    assert len(lines(path, depth=1, rows=2)) == 8
    every = lines(path, everything=True, rows=2)
    assert len(every) == 10 and every[1].split()[2] == "head.weight"
    assert sum("layers.1." in line for line in every) == 3


def test_the_optimizer_is_one_part_unless_it_is_asked_for() -> None:
    path = SAMPLES / "train_cuda.pth"
    assert sum("optimizer" in line for line in lines(path)) == 1
    assert not any("exp_avg" in line for line in lines(path))
    with formats.open(str(path)) as checkpoint:
        found = plain_text(
            bar_lines(inspect(Survey(checkpoint), None, "optimizer"), everything=True)
        )
    assert "conv1.weight.exp_avg" in found


def test_names_are_escaped(tmp_path: Path) -> None:
    state = {"a\x1b[31m": torch.zeros(4), "": torch.zeros(2)}
    text = "\n".join(lines(rewriting.saved(state, tmp_path / "a.pt")))

    assert "\x1b" not in text and "a\\x1b[31m" in text


def test_a_file_without_bytes_has_no_bars(tmp_path: Path) -> None:
    assert lines(rewriting.saved({"a": torch.zeros(0)}, tmp_path / "a.pt"))[1:] == [
        " 0 B  a       0 %"
    ]
    assert lines(rewriting.saved({"a": 1}, tmp_path / "b.pt")) == ["SIZE  NAME  SHARE"]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_parents(sizes: list[int], room: int) -> None:
    sizes = sorted(sizes)
    whole = max(sizes[-1], 1)
    found = _share_bar(sizes, whole, room)

    assert len(found) == max(round(room * sizes[-1] / whole), bool(sizes[0]))
    assert found.count("█") == round(room * sizes[0] / whole)
    assert ("▏" in found) == (sizes[0] > 0 and round(room * sizes[0] / whole) == 0)
    assert list(found) == sorted(found, key="█▏▓▒░".index)


@pytest.mark.parametrize(
    "other", ["--json", "--tsv", "--values", "--storages", "--imports", "--quiet"]
)
def test_other_forms_refuse_it(other: str) -> None:
    check_error(
        ckpt("inspect", SAMPLES / "weights.safetensors", "--bars", other),
        f"--bars and {other} exclude",
    )


def test_a_folder_that_is_no_checkpoint_has_none(tmp_path: Path) -> None:
    rewriting.saved({"a": torch.zeros(2)}, tmp_path / "a.pt")

    assert ckpt("inspect", tmp_path, "--bars").code == 2
