"""The files that a command looks at: which errors concern the user, and what is said of
the others.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from inside import inside
from process import TIMEOUT

from ckpt.bytes.executor import Task
from ckpt.model.errors import CutOffError, StandInError, UnsupportedError
from ckpt.model.names import count_endings
from ckpt.surface.api.walk import Found, choose_executor, is_concern, others_text

OTHER = UnsupportedError("not a checkpoint")


@pytest.mark.parametrize(
    ("item", "is_one"),
    [
        (Found("a.bin"), True),
        (Found("a.bin", named=False), False),
        (Found("A.BIN", named=False), False),
        (Found("a.pth", named=False), True),
    ],
)
def test_a_file_in_a_folder_that_never_was_a_checkpoint_is_no_error(
    item: Found, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many files of that ending are something else. A damaged one, or one that stands
    in for another, is not.
    """
    monkeypatch.chdir(tmp_path)
    Path(item.path).write_bytes(b"\x01firmware")
    assert is_concern(item, OTHER.code) is is_one
    assert is_concern(item, CutOffError.code) and is_concern(item, StandInError.code)


def test_other_files_are_counted_by_their_endings() -> None:
    names = [
        "x/a.json",
        "b.JSON",
        "c.json",
        "d.md",
        "e.md",
        "f.txt",
        "f2.txt",
        "g.py",
        "g2.py",
        "LICENSE",
    ]
    assert count_endings(names) == {".json": 3, ".md": 2, ".py": 2, ".txt": 2, "": 1}
    said = "10 files not looked at: 3 *.json, 2 *.md, 2 *.py"
    assert others_text(names) == f"{said} and 3 others"
    assert others_text(["LICENSE"]) == "1 file not looked at: 1 without an ending"
    assert others_text(names[:5]) == "5 files not looked at: 3 *.json, 2 *.md"


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_so_many_files_behind_urls_are_read_at_once_as_jobs_says(jobs: int) -> None:
    together = threading.Barrier(jobs)
    readers: set[int] = set()

    def read(item: Found) -> str:
        readers.add(threading.get_ident())
        together.wait(TIMEOUT)
        return item.path

    tasks = [Task(read, (Found(f"https://h/{number}.pth"),)) for number in range(6)]
    assert list(choose_executor(tasks, jobs).each(tasks)) == [
        f"https://h/{number}.pth" for number in range(6)
    ]
    assert len(readers) == jobs


@pytest.mark.parametrize("command", ["ls", "verify", "lint", "prune"])
def test_a_save_that_was_cut_off_is_looked_at_whatever_its_ending(
    command: str, tmp_path: Path
) -> None:
    """The newest save of a run was killed. torch's own examples call theirs `.tar`."""
    (tmp_path / "run").mkdir()
    for epoch in (1, 2, 3):
        path = tmp_path / "run" / f"epoch_{epoch}.tar"
        torch.save({"epoch": epoch, "net": {"a.weight": torch.ones(99, 9)}}, path)
    path.write_bytes(path.read_bytes()[:2000])
    (tmp_path / "run" / "notes.tar").write_bytes(b"PK\x03\x04" + bytes(90))
    done = inside(command, "run", *(["--why"] * (command == "prune")), cwd=tmp_path)
    text = (done.out + done.err).decode()
    assert "epoch_3.tar" in text and "notes.tar" not in text, done
    assert done.code == (0 if command == "prune" else 2 if command != "verify" else 1)
