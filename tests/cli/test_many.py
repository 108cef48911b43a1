"""Writers take many PATHs: each result in the folder OUT, and nothing is written where two would meet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside
from process import check_error

WRITERS = {
    "slim": (),
    "strip": (),
    "rename": ("--sub", "s/weight/w/"),
    "convert": ("--format", "torch-legacy"),
    "rehome": (),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.pth", "b.pth", "sub/a.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save({"module.l.weight": torch.ones(2), "module.l.bias": torch.ones(2)}, tmp_path / name)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", WRITERS)
def test_each_result_is_in_the_folder(command: str, folder: Path) -> None:
    done = inside(command, "a.pth", "b.pth", *WRITERS[command], "-o", "out", cwd=folder)

    assert done.code == 0, done
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.pth", "b.pth"]
    assert len(torch.load(folder / "out" / "b.pth", weights_only=True)) == 2


@pytest.mark.parametrize("command", WRITERS)
def test_two_results_of_one_name(command: str, folder: Path) -> None:
    done = inside(command, "a.pth", "b.pth", "sub/a.pth", *WRITERS[command], "-o", "out", cwd=folder)

    check_error(done, "out/a.pth: a.pth would be written there too")
    assert list((folder / "out").iterdir()) == []


def test_a_result_that_is_there_already(folder: Path) -> None:
    (folder / "out" / "b.pth").write_bytes(b"mine")

    done = inside("slim", "a.pth", "b.pth", "-o", "out", cwd=folder)

    assert done.code == 2 and [path.name for path in (folder / "out").iterdir()] == ["b.pth"]
    assert inside("slim", "a.pth", "b.pth", "-o", "out", "--force", cwd=folder).code == 0


def test_the_ending_follows_the_format(folder: Path) -> None:
    words = ("convert", "a.pth", "b.pth", "--format", "safetensors", "-o", "out")

    assert inside(*words, cwd=folder).code == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.safetensors", "b.safetensors"]


def test_shards_have_one_name(folder: Path) -> None:
    done = inside("convert", "a.pth", "b.pth", "--shard-size", "1KB", "-o", "out", cwd=folder)

    check_error(done, "--shard-size takes one path")
    assert list((folder / "out").iterdir()) == []


def test_an_error_stops_no_other_file(folder: Path) -> None:
    (folder / "b.pth").write_bytes(b"nothing")

    done = inside("slim", "b.pth", "a.pth", "-o", "out", cwd=folder)

    assert done.code == 2 and [path.name for path in (folder / "out").iterdir()] == ["a.pth"]


def test_several_files_need_a_folder(folder: Path) -> None:
    check_error(inside("slim", "a.pth", "b.pth", "-o", "c.pth", cwd=folder), "not a folder, and there are")


@pytest.mark.parametrize("command", ["inspect", "stats", "verify", "lint", "ls"])
def test_names_of_a_list(command: str, folder: Path) -> None:
    (folder / "list").write_text("b.pth\nsub/a.pth\n")

    done = inside(command, "a.pth", "--files-from", "list", "--json", cwd=folder)

    assert done.code == (command == "lint"), done  # which finds the prefix
    assert all(name in done.out.decode() for name in ('"a.pth"', '"b.pth"', '"sub/a.pth"'))
    assert inside(command, "--files-from", "list", cwd=folder).code == done.code
    check_error(inside(command, cwd=folder), "nothing to look at (path..., or --files-from file)")


def test_quiet_verify_prints_what_is_not_intact(folder: Path) -> None:
    data = (folder / "b.pth").read_bytes()
    (folder / "b.pth").write_bytes(data[: len(data) // 2])

    done = inside("verify", "-q", "a.pth", "b.pth", cwd=folder)

    assert done.code == 1 and [line.partition(":")[0] for line in done.lines] == ["b.pth"]
    assert inside("verify", "-q", "a.pth", cwd=folder).out == b""
