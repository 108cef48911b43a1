"""What commands print on screens of several sizes: width and height are kept, and nothing is broken inside a word.

The terminal is a dumb one: on a slow machine a bar of progress would come first, in colour or not.
"""

from __future__ import annotations

import pytest
from process import SAMPLES, ckpt, terminal

from ckpt.render.text import cells, hung, plain_text, shortened

SIZES = [(80, 24), (100, 30), (200, 50)]
COMMANDS = {
    "inspect train_cuda.pth": 0,
    "inspect hostile.pth": 0,
    "inspect llama_bf16.pth": 0,
    "inspect whole_model.pth": 0,
    "inspect tied_and_bloated.pth": 0,
    "inspect weights.safetensors": 0,
    "diff ddp_before.pth ddp_after.pth": 1,
    "diff ddp_before.pth ddp_after.pth --stat": 1,
    "diff ddp_before.pth train_cuda.pth": 1,
    "stats llama_bf16.pth": 0,
    "stats train_cuda.pth": 0,
}


def words_of(text: str) -> set[str]:
    """The words above the table of an output, without lines that say how many more there are."""
    lines = text.partition("\nNAME ")[0].splitlines()
    return {word for line in lines if not line.startswith("…") for word in line.split() if "…" not in word}


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_screen_keeps_its_size_and_breaks_no_word(command: str, columns: int, rows: int) -> None:
    arguments = command.split()
    seen = terminal(*arguments, columns=columns, rows=rows, code=COMMANDS[command], TERM="dumb")
    whole = terminal(*arguments, columns=400, rows=1000, code=COMMANDS[command], TERM="dumb")

    for line in seen.splitlines():
        is_pasted = line.strip().startswith(("ckpt ", "torch.", "{"))
        assert cells(line) <= columns or is_pasted, line
    assert words_of(seen) <= words_of(whole)
    pasted = [line.strip() for line in whole.splitlines() if line.strip().startswith(("ckpt ", "torch."))]
    assert [line for line in pasted if line not in map(str.strip, seen.splitlines())] == []
    if arguments[0] != "stats":
        assert seen.count("\n") < rows


def test_diff_lists_the_first_changes_of_parameters_and_says_how_many_more() -> None:
    lines = ckpt("diff", "ddp_before.pth", "ddp_after.pth", cwd=SAMPLES).lines
    rows = [line for line in lines if line.startswith("M ")]

    assert rows[0].startswith("M module.conv1.weight ") and "all elements, max |Δ| " in rows[0]
    assert "… 26 more (--show changed, --stat)" in lines
    assert not any("optimizer" in row for row in rows[:10])


def test_the_bars_are_of_parameters_unless_all_are_asked_for() -> None:
    arguments = ("diff", "ddp_before.pth", "ddp_after.pth", "--stat")
    bars = ckpt(*arguments, cwd=SAMPLES).out.decode()

    assert "module.bn1          2        2" in bars
    assert "optimizer" not in bars.partition("MODULE")[2]
    assert "optimizer" in ckpt(*arguments, "--show", "all", cwd=SAMPLES).out.decode().partition("MODULE")[2]


def test_stats_says_a_common_prefix_once_and_gives_up_columns() -> None:
    narrow = terminal("stats", "train_cuda.pth", columns=80, TERM="dumb")
    wide = terminal("stats", "train_cuda.pth", columns=200, TERM="dumb")

    assert narrow.count("module.") == wide.count("module.") == 1
    assert "RMS" not in terminal("stats", "llama_bf16.pth", columns=80, TERM="dumb")
    assert "RMS" in wide
    assert "  0.post" not in narrow


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("model.layers.0.fc.weight", 30, "model.layers.0.fc.weight"),
        ("model.layers.0.fc.weight", 16, "…0.fc.weight"),
        ("  bn.{weight,bias,running_mean,running_var}", 30, "  bn.{weight,bias,…}"),
        ("    " + "a" * 100, 20, "    …" + "a" * 15),
        ("模型.权重", 6, "…权重"),
    ],
)
def test_a_name_is_shortened_where_names_are_alike(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown
    assert cells(shown) <= width


def test_lines_after_the_first_hang_below_the_text() -> None:
    assert plain_text(hung([("ab ", "name")], "one  two", 6)) == "ab one\n   two\n"
    assert plain_text(hung([("ab ", "name")], "one  two", None)) == "ab one  two\n"
