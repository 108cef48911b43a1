"""What commands print on screens of several sizes: width and height are kept, and
nothing is broken inside a word.

The terminal is a dumb one: on a slow machine a bar of progress would come first, in
colour or not.
"""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from inside import inside
from printed import commands_in
from process import SAMPLES, Done, ckpt, terminal

from ckpt.surface.cli import output
from ckpt.surface.cli.app import COMMANDS
from ckpt.surface.text.lines import cells, hanging_lines, plain_text, shorten_name

SIZES = [(80, 24), (100, 30), (200, 50)]
LONG = "k" * 205
FITTING = {
    "inspect train_cuda.pth": 0,
    "inspect hostile.pth": 0,
    "inspect llama_bf16.pth": 0,
    "inspect whole_model.pth": 0,
    "inspect tied_and_bloated.pth": 0,
    "inspect weights.safetensors": 0,
    "inspect long.pth": 0,
    "inspect ugly.pth": 0,
    "inspect train_cuda.pth --bars": 0,
    "inspect llama_bf16.pth --bars": 0,
    "inspect hostile.pth --bars": 0,
    "inspect long.pth --bars": 0,
    "inspect ugly.pth --bars": 0,
    "diff ddp_before.pth ddp_after.pth": 1,
    "diff ddp_before.pth train_cuda.pth": 1,
    "diff long.pth ugly.pth": 1,
}
"""Commands whose screen is cut to the rows that there are -> their exit codes."""
CUT = {
    "warmstart train_cuda.pth --into ddp_after.pth --dry-run": 1,
    "warmstart train_cuda.pth --into ddp_after.pth -o out/a.pth --force --min-coverage 0": 0,
    "warmstart ddp_before.pth --into whole_model.pth -o out/a.pth --force": 1,
    "warmstart long.pth --into ugly.pth --dry-run": 1,
    "ls . --skip-unreadable": 0,
    "inspect train_cuda.pth --storages --values --imports": 0,
    "stats train_cuda.pth --histogram": 0,
    "stats long.pth --histogram": 0,
    "diff ddp_before.pth ddp_after.pth --histogram": 1,
    "inspect hostile.pth --imports": 0,
    "inspect yolo_style.pt --imports --values": 0,
    "inspect ddp_after.pth --index 8,9": 0,
    "diff ddp_before.pth ddp_after.pth --stat": 1,
    "stats llama_bf16.pth": 0,
    "stats train_cuda.pth --channels --modules": 0,
    "stats long.pth": 0,
    "stats ugly.pth": 0,
    "get train_cuda.pth": 0,
    "get train_cuda.pth optimizer.param_groups": 0,
    "get train_cuda.pth model.module.conv1.weight": 0,
    "get long.pth": 0,
    "get ugly.pth": 0,
}
"""Commands that shorten names, or list less on a small screen."""
TOLD = {
    "verify train_cuda.pth hostile.pth truncated.pth lfs_pointer.pth weights.safetensors sharded long.pth": 2,
    "sum weights.safetensors": 0,
    "lint . --statistics": 2,
    "lint .": 2,
    "explain": 0,
    "explain frozen": 0,
    "explain nothing-like-it": 2,
    "ls lfs_pointer.pth truncated.pth": 2,
    "inspect truncated.pth html_page.pth nope.pth": 2,
    "inspect train_cuda.pth --no-such-option": 2,
    "inspect train_cuda.pth --section nope": 2,
    "get train_cuda.pth optimizer.stat": 2,
    "rehome train_cuda.pth": 2,
    "rehome train_cuda.pth --dry-run": 0,
    "rehome train_cuda.pth -o out/a.pth --force": 0,
    "rehome train_cuda.pth -o long.pth": 2,
    "rehome hostile.pth -o out/a.pth --force": 2,
    "rehome hostile.pth -o out/a.pth --force --keep-code": 0,
    "rehome whole_model.pth -o out/a.pth --force": 0,
    "strip train_cuda.pth --dry-run": 0,
    "strip train_cuda.pth -o out/a.pth --force": 0,
    "rename llama_bf16.pth --sub s/model.layers/transformer.very_long_names.of.blocks/ --dry-run": 0,
    "rename long.pth --sub s/k+/renamed/ -o out/a.pth --force": 0,
    "slim yolo_style.pt --dry-run": 0,
    "slim yolo_style.pt -o out/a.pth --force": 0,
    "slim hostile.pth -o out/a.pth --force": 0,
    "convert whole_model.pth -o out/a.safetensors --force": 0,
    "convert yolo_style.pt --plain -o out/a.pt --force": 0,
    "convert long.pth -o out/a.safetensors --force": 0,
    "convert train_cuda.pth": 2,
    "convert hostile.pth --format pickle -o out/a.pth": 2,
    **{f"{command} --help": 0 for command in COMMANDS},
}
"""Commands that say the same whatever the screen."""
CODES = FITTING | CUT | TOLD


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples, and checkpoints with ugly names."""
    made = tmp_path_factory.mktemp("screens")
    for path in SAMPLES.iterdir():
        (made / path.name).symlink_to(path)
    (made / "out").mkdir()
    layers = {
        f"fc{number}.weight": torch.arange(16.0).reshape(4, 4) for number in range(5)
    }
    torch.save({LONG: torch.zeros(3), **layers}, made / "long.pth")
    ugly = {"模型.层.权重": torch.ones(4, 4), "bad\x1b[31mname": torch.zeros(2)}
    ugly["x" * 30 + ".模型" * 20] = torch.ones(3)
    torch.save(ugly, made / "ugly.pth")
    return made


def screen(
    command: str, folder: Path, columns: int | None, rows: int | None = None
) -> Done:
    """What a command prints in this process on a terminal of so many columns and rows;
    without them, in a pipe.
    """
    with (
        mock.patch.object(output, "screen_width", lambda *_: columns),
        mock.patch.object(output, "screen_height", lambda: rows),
        mock.patch.object(output, "_texts", 0),
    ):
        return inside(*command.split(), cwd=folder, COLUMNS=str(columns or 400))


def text_of(done: Done) -> str:
    """What a person sees: both streams."""
    return done.out.decode() + done.err.decode()


def words_of(text: str) -> set[str]:
    """The words above the table of an output, without lines that say how many more
    there are.
    """
    lines = re.split("\n *(?:SIZE  )?(?:NAME|MODULE) ", text)[0].splitlines()
    words = {
        word
        for line in lines
        if not line.startswith("…")
        for word in line.split()
        if "…" not in word
    }
    return {word.strip("(),") for word in words} - {
        ""
    }  # a comma stands where more is said


def is_unbreakable(line: str, columns: int) -> bool:
    """Whether a line that is too long holds one thing: a command, an expression, a sum
    with its name, or one word.
    """
    text = line.strip()
    if text.startswith(("ckpt ", "torch.", "{")) or re.match("[0-9a-f]{64}  ", text):
        return True
    return len(text.split()) == 1 and cells(text) + 8 > columns


@pytest.mark.slow
@pytest.mark.parametrize("command", CODES)
def test_a_screen_keeps_its_size_and_breaks_no_word(command: str, folder: Path) -> None:
    piped = screen(command, folder, None)
    assert piped.code == CODES[command], piped
    for columns_, rows in SIZES:
        done = screen(command, folder, columns_, rows)
        seen = text_of(done)

        assert done.code == piped.code
        too_long = [line for line in seen.splitlines() if cells(line) > columns_]
        assert [line for line in too_long if not is_unbreakable(line, columns_)] == []
        for pasted in commands_in(text_of(piped)):
            assert any(pasted in line for line in seen.splitlines()), pasted
        if command in TOLD:
            assert words_of(seen) == words_of(text_of(piped))
        elif command in FITTING:
            assert words_of(seen) <= words_of(
                text_of(screen(command, folder, 400, 1000))
            )
            # The steps and the rate of an optimizer may take a line of their own.
            assert seen.count("\n") <= rows


PTYS = {
    "inspect train_cuda.pth": 0,
    "inspect nope_with_a_name_that_is_so_long_that_its_line_does_not_fit.pth train_cuda.pth --section x": 2,
    "rehome hostile.pth -o a.pth": 2,
    "verify hostile.pth": 0,
    "stats llama_bf16.pth": 0,
}


@pytest.mark.parametrize("command", PTYS)
def test_a_terminal_shows_what_the_screens_of_these_tests_show(command: str) -> None:
    """Both streams take the width of the terminal."""
    columns_, rows = SIZES[0]
    seen = terminal(
        *command.split(), columns=columns_, rows=rows, code=PTYS[command], TERM="dumb"
    )

    assert seen == text_of(screen(command, SAMPLES, columns_, rows))


def test_a_long_key_costs_no_column(folder: Path) -> None:
    assert "MIN  MAX  MEAN   STD  ZEROS" in text_of(
        screen("stats long.pth", folder, 80)
    )


@pytest.mark.parametrize(
    "command",
    [
        "stats long.pth",
        "inspect long.pth",
        "get long.pth",
        "inspect long.pth --storages",
    ],
)
def test_a_long_key_pushes_no_number_of_other_rows_away_in_a_pipe(
    command: str, folder: Path
) -> None:
    rows = [line for line in screen(command, folder, None).lines if "fc" in line]

    assert rows and max(map(cells, rows)) < 140


def test_diff_lists_the_first_changes_of_parameters_and_says_how_many_more() -> None:
    lines = ckpt("diff", "ddp_before.pth", "ddp_after.pth", cwd=SAMPLES).lines
    rows = [line for line in lines if line.startswith("M ")]

    assert (
        rows[0].startswith("M module.conv1.weight ")
        and "all elements, max |Δ| " in rows[0]
    )
    assert "… 30 tensors of the optimizer (--show changed)" in lines
    assert not any("optimizer" in row for row in rows)


def test_the_bars_are_of_parameters_unless_all_are_asked_for() -> None:
    arguments = ("diff", "ddp_before.pth", "ddp_after.pth", "--stat")
    bars = ckpt(*arguments, cwd=SAMPLES).out.decode()

    assert "module.bn1          2        2" in bars
    assert not any("optimizer" in line for line in bars.splitlines() if "█" in line)
    assert (
        "optimizer"
        in ckpt(*arguments, "--show", "all", cwd=SAMPLES)
        .out.decode()
        .partition("MODULE")[2]
    )


def test_bars_are_cut_at_a_depth(tmp_path: Path) -> None:
    """At the deepest one that fits the screen and leaves some bars, or at the one that
    is asked for.
    """
    names = [
        f"model.layers.{i}.{name}.weight" for i in range(12) for name in ("q", "k", "v")
    ]
    before = {name: torch.ones(2) for name in names}
    for state, name in (
        (before, "a.pt"),
        ({name: torch.full((2,), 1.5) for name in names}, "b.pt"),
    ):
        torch.save(state, tmp_path / name)

    def bars(options: str, *size: int | None) -> list[str]:
        text = text_of(
            screen(f"diff a.pt b.pt --stat {options}", tmp_path, *(size or (None,)))
        )
        return text.partition("MODULE")[2].splitlines()[1:-1]

    assert len(bars("")) == 36 and bars("")[0].split()[:4] == [
        "model.layers.0.q",
        "1",
        "1",
        "0.5",
    ]
    assert len(bars("", 80, 24)) == 12 and bars("", 80, 24)[0].split()[:4] == [
        "model.layers.0",
        "3",
        "3",
        "0.5",
    ]
    ranges = [line.split()[0] for line in bars("", 80, 10)[:-1]]
    assert ranges == [
        "model.layers.0-2",
        "model.layers.3-5",
        "model.layers.6-8",
        "model.layers.9-11",
    ]
    assert [line.split()[:3] for line in bars("--depth 1")] == [["model", "36", "36"]]
    assert len(bars("--depth 3", 80, 10)) == 12 and len(bars("--depth 9", 80, 10)) == 36
    done = screen("diff a.pt b.pt --depth 1", tmp_path, None)
    assert (
        done.code == 2
        and "ckpt: --depth is for --stat (--stat --depth N)" in text_of(done)
    )


def test_stats_says_a_common_prefix_once_and_gives_up_columns() -> None:
    narrow = terminal("stats", "train_cuda.pth", columns=80, TERM="dumb")
    wide = terminal("stats", "train_cuda.pth", columns=200, TERM="dumb")

    assert narrow.count("module.") == wide.count("module.") == 1
    head, *rows = (
        terminal("stats", "llama_bf16.pth", columns=80, TERM="dumb")
        .partition("NAME ")[2]
        .splitlines()
    )
    assert "RMS" not in head and "MIN" in head and "MAX" in head
    assert "… no room for SHAPE, MEAN, RMS (--tsv, or a wider screen)" in rows
    assert "RMS" in wide and "no room" not in wide
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
def test_a_name_is_shortened_where_names_are_alike(
    name: str, width: int, shown: str
) -> None:
    assert shorten_name(name, width) == shown
    assert cells(shown) <= width


def test_lines_after_the_first_hang_below_the_text() -> None:
    assert (
        plain_text(hanging_lines([("ab ", "name")], "one  two", 6))
        == "ab one\n   two\n"
    )
    assert (
        plain_text(hanging_lines([("ab ", "name")], "one  two", None))
        == "ab one  two\n"
    )


MANY = {
    "inspect {files} --level info": 0,
    "lint {files} --level info": 1,
    "verify {files}": 0,
    "sum {files}": 0,
    "stats {files}": 0,
    "ls {files}": 0,
}
"""Commands of many files -> their exit codes."""
SETS = [
    *((count, size) for count in (3, 30) for size in (20, 60, 200)),
    pytest.param(300, 60, marks=pytest.mark.slow),
]
"""Numbers of files, and the lengths of their names."""


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), SETS)
@pytest.mark.parametrize("command", MANY)
def test_many_files_with_names_of_any_length_stay_apart(
    command: str, count: int, size: int, tmp_path: Path
) -> None:
    names = [
        f"{'a_long_name_' * 20}"[: size - 8] + f"-{number:03d}.pt"
        for number in range(count)
    ]
    for number, name in enumerate(names):
        (tmp_path / name).symlink_to(
            SAMPLES / ("compiled.pth" if number % 2 else "legacy.pth")
        )
    words = command.format(files=" ".join(names))
    piped = text_of(screen(words, tmp_path, None))
    for columns_, rows in SIZES if count < 300 else SIZES[:1]:
        done = screen(words, tmp_path, columns_, rows)
        too_long = [
            line for line in text_of(done).splitlines() if cells(line) > columns_
        ]

        assert done.code == MANY[command], done
        too_long = [line for line in too_long if not is_unbreakable(line, columns_)]
        assert [
            line for line in too_long if not any(name in line for name in names)
        ] == []
        assert all(f"{number:03d}" in text_of(done) for number in range(count))
    assert all(name in piped for name in names)
