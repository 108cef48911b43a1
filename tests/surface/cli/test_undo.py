"""`ckpt rehome --undo -r`: files of a folder that were never rewritten are no error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from process import check_error, ckpt


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, of which one lies deeper, and files that are no checkpoint."""
    (tmp_path / "runs/deep").mkdir(parents=True)
    for name in ("a.pth", "deep/b.pth", "deep/odd.name"):
        torch.save({"w": torch.ones(3)}, tmp_path / "runs" / name)
    (tmp_path / "runs/notes.txt").write_text("PK")
    (tmp_path / "runs/empty.pth").write_bytes(b"")
    (tmp_path / "runs/link.pth").symlink_to("a.pth")
    return tmp_path


def rewrite(folder: Path, *names: str) -> dict[str, bytes]:
    before = {name: (folder / "runs" / name).read_bytes() for name in names}
    for name in names:
        assert (
            ckpt(
                "rehome", "--in-place", "--to", "cuda:0", f"runs/{name}", cwd=folder
            ).code
            == 0
        )
    return before


def test_those_that_were_rewritten_are_taken_back(folder: Path) -> None:
    before = rewrite(folder, "a.pth", "deep/odd.name")

    done = ckpt("rehome", "--undo", "-r", "runs", cwd=folder)
    assert (done.code, done.err) == (0, b"1 other file was never rewritten in place\n")
    assert [line.partition(b":")[0] for line in done.out.splitlines()] == [
        b"runs/a.pth",
        b"runs/deep/odd.name",
    ]
    assert {name: (folder / "runs" / name).read_bytes() for name in before} == before


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    rewrite(folder, "deep/b.pth")
    now = (folder / "runs/deep/b.pth").read_bytes()

    done = ckpt("rehome", "--undo", "-r", "runs", "--dry-run", cwd=folder)
    assert done.code == 0 and b"would be cut off" in done.out
    assert done.err == b"2 other files were never rewritten in place\n"
    assert (folder / "runs/deep/b.pth").read_bytes() == now


def test_a_folder_without_any(folder: Path) -> None:
    says = "runs: no file in this folder has an in-place rewrite to undo"
    check_error(ckpt("rehome", "--undo", "-r", "runs", cwd=folder), says)


def test_a_file_that_was_named_is_an_error(folder: Path) -> None:
    before = rewrite(folder, "deep/b.pth")

    done = ckpt("rehome", "--undo", "-r", "runs/a.pth", "runs/deep", cwd=folder)
    assert (
        done.code == 2
        and b"runs/a.pth: there is no in-place rewrite to undo" in done.err
    )
    assert (folder / "runs/deep/b.pth").read_bytes() == before["deep/b.pth"]
    check_error(
        ckpt("rehome", "--undo", "runs/a.pth", cwd=folder),
        "no in-place rewrite to undo",
    )


def test_stats_of_several_files_end_with_a_line(folder: Path) -> None:
    done = ckpt("stats", "runs/a.pth", "runs/deep/b.pth", cwd=folder)
    assert (done.code, done.err) == (0, b"2 files: 2 measured\n")

    done = ckpt("stats", "runs/a.pth", "runs/empty.pth", cwd=folder)
    assert done.code == 2 and done.err.endswith(b"2 files: 1 measured, 1 unreadable\n")
    for quiet in (["-q"], ["--json"]):
        assert (
            ckpt("stats", "runs/a.pth", "runs/deep/b.pth", *quiet, cwd=folder).err
            == b""
        )
    assert ckpt("stats", "runs/a.pth", cwd=folder).err == b""
