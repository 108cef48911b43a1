"""`ckpt explain`: a page as lines, the list, JSON, and an error on stdin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from inside import inside
from process import Run, terminal

from ckpt.ext.explain import pages
from ckpt.model.findings import CATALOGUE


def test_a_finding(ckpt: Run) -> None:
    done = ckpt("explain", "tied")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "tied  info, made by ckpt inspect\n"
        "\n"
        "Weights share the same range of one storage: they are tied. Disjoint slices "
        "of\n"
        "one storage, such as the LSTM weights of cuDNN, are not tied. An average "
        "that\n"
        "shares buffers with its model is no tie, nor is what an optimizer, a "
        "callback, a\n"
        "jagged tensor or a packed layer shares within itself; --storages shows them "
        "all.\n"
    )


def test_an_error_of_several_words(ckpt: Run) -> None:
    done = ckpt("explain", "Expected", "to", "have", "finished", "reduction")

    assert done.returncode == 0
    assert done.stdout.startswith(
        "DDP: parameters that received no gradient\n\n  Expected to have finished "
        "reduction\n"
    )
    assert "\n  ckpt inspect FILE --index N,N\n" in done.stdout


def test_an_error_on_stdin(ckpt: Run) -> None:
    done = ckpt(
        "explain",
        "-",
        input="Traceback\nModuleNotFoundError: No module named 'models'\n",
    )

    assert done.returncode == 0
    assert done.stdout.startswith("The file needs code that is not here\n")


def test_the_list_holds_every_page(ckpt: Run) -> None:
    lines = ckpt("explain").stdout.splitlines()

    assert [line.split()[0] for line in lines[1 : 1 + len(CATALOGUE)]] == list(
        CATALOGUE
    )
    assert lines[2 + len(CATALOGUE) :] == [
        "ERRORS OF PYTORCH",
        *(p.word for p in pages() if p.code is None),
    ]


@pytest.mark.parametrize("text", ["xyzzy", "no such thing here"])
def test_no_page(ckpt: Run, text: str) -> None:
    done = ckpt("explain", text)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"ckpt: {text}: no page for this (all codes and messages are listed by "
        "ckpt explain; with a file behind it, ckpt says what is in the file)\n"
    )
    assert done.stderr.count("\n") == 1


def test_json(ckpt: Run) -> None:
    document = json.loads(ckpt("explain", "--json").stdout)
    one = json.loads(ckpt("explain", "prefix", "--json").stdout)

    assert document["schema"] == {"name": "ckpt.explain", "version": 1}
    assert [page["code"] for page in document["pages"] if page["code"]] == list(
        CATALOGUE
    )
    assert one["pages"] == [
        page for page in document["pages"] if page["code"] == "prefix"
    ]
    assert one["pages"][0]["level"] == "warning" and one["pages"][0]["made_by"] == [
        "inspect"
    ]


# --- columns --------------------------------------------------------------------------

LONG = "transformer.encoder.a_module_with_a_long_name.{}.another_module_with_a_long_name.projection"


@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
def test_long_names_of_candidates_stay_whole_and_move_no_column(
    on_terminal: bool, tmp_path: Path
) -> None:
    names = [LONG.format(number) for number in range(3)] + ["short"]
    torch.save({name: torch.zeros(3, 4) for name in names}, tmp_path / "a.pth")
    text = "Parameter indices which did not receive grad for rank 0: 1 2 3"
    if on_terminal:
        seen = terminal(
            "explain", text, "a.pth", cwd=tmp_path, NO_COLOR="1", TERM="dumb"
        ).split("\n")
    else:
        seen = inside("explain", text, "a.pth", cwd=tmp_path).lines
    rows = [line for line in seen if "[3, 4]" in line]
    head = next(line for line in seen if "SHAPE" in line)
    assert [row.split()[-1] for row in rows] == names[1:]
    assert {row.index("[3, 4]") for row in rows} == {head.index("SHAPE")}
    assert {row.index("float32") for row in rows} == {head.index("DTYPE")}


def test_long_names_of_shapes_that_differ_move_no_column(tmp_path: Path) -> None:
    names = [LONG.format(number) for number in range(2)]
    torch.save({name: torch.zeros(3, 4) for name in names}, tmp_path / "a.pth")
    text = "".join(
        f"size mismatch for {name}: copying a param with shape torch.Size([3, 4]) from "
        f"checkpoint, the shape in current model is torch.Size([{rows}, 4]).\\n"
        for name, rows in zip(names, (5, 15), strict=True)
    )
    seen = inside("explain", text, "a.pth", cwd=tmp_path).lines
    rows = [line for line in seen if line.endswith(tuple(names)) and "[3, 4]" in line]
    assert (
        len(rows) == 2 and len({row.index(names[i]) for i, row in enumerate(rows)}) == 1
    )


@pytest.mark.parametrize("older", ["a.pth", "./a.pth", "link.pth"])
def test_one_file_is_no_older_save(older: str, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "a.pth")
    (tmp_path / "link.pth").symlink_to("a.pth")
    text = "Parameter indices which did not receive grad for rank 0: 0"
    done = inside("explain", text, older, "a.pth", cwd=tmp_path)
    assert (done.code, done.lines) == (2, [])
    assert done.complaints == [
        "ckpt: a.pth: both saves are one file (ckpt explain MESSAGE OLDER FILE)"
    ]


def test_a_finding_about_two_files_is_one_of_diff(tmp_path: Path) -> None:
    """The way out names the command that compares, with both files."""
    for name, value in (("a.pth", 0.0), ("b.pth", 1.0)):
        torch.save({"x.weight": torch.full((2, 2), value)}, tmp_path / name)
    done = inside("explain", "frozen", "a.pth", "b.pth", cwd=tmp_path)
    assert done.code == 2
    assert done.complaints == [
        "ckpt: a.pth: one PATH is asked about a finding, and 2 are named (ckpt diff "
        "a.pth b.pth has the findings about both)"
    ]
