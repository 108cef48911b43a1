"""A distributed checkpoint that several machines wrote to disks of their own: each has
the files of its ranks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from inside import inside

import ckpt
from ckpt.ext.dcp.file_names import ranks_text
from ckpt.model.errors import UnreadableError


def machine(trained: Path, folder: Path, *ranks: int, metadata: bool = False) -> Path:
    """The folder of a machine with these ranks of four."""
    folder.mkdir(parents=True)
    for rank in ranks:
        shutil.copy(trained / "fsdp2" / f"__{rank}_0.distcp", folder)
    if metadata:
        shutil.copy(trained / "fsdp2" / ".metadata", folder)
    return folder


def test_the_files_of_another_machine_are_no_interrupted_save(
    trained: Path, tmp_path: Path
) -> None:
    folder = machine(trained, tmp_path / "node1", 2, 3)
    with pytest.raises(UnreadableError) as caught:
        ckpt.open(folder)
    said = caught.value.problem
    assert said.startswith(
        "a part of a checkpoint that several machines wrote: the files of ranks 2 and "
        "3 only"
    )
    assert (
        ".metadata is where rank 0 saved" in said and "whole items lie in them" in said
    )
    assert "interrupted" not in said and "lost" not in said and "killed" not in said
    assert caught.value.hint == "copy the folders of all machines into one"
    for command in ("inspect", "ls", "lint", "verify"):
        done = inside(command, "node1", cwd=tmp_path)
        assert done.code and b"files of ranks 2 and 3 only" in done.out + done.err, (
            command
        )


def test_accelerate_keeps_such_a_folder_in_its_own(
    trained: Path, tmp_path: Path
) -> None:
    machine(trained, tmp_path / "node1" / "pytorch_model_fsdp_0", 3)
    with pytest.raises(UnreadableError, match="the files of rank 3 only"):
        ckpt.open(tmp_path / "node1")


def test_both_folders_in_one_are_the_checkpoint(trained: Path, tmp_path: Path) -> None:
    first = machine(trained, tmp_path / "node0", 0, 1, metadata=True)
    second = machine(trained, tmp_path / "node1", 2, 3)
    (row,) = [row for row in ckpt.inspect(first).findings if row.code == "incomplete"]
    assert (
        "__3_0.distcp (all files of ranks 2 and 3, perhaps on another machine)"
        in row.message
    )
    shutil.copytree(second, first, dirs_exist_ok=True)
    assert ckpt.verify(first).verdict == "intact"


def test_a_killed_save_may_be_called_so(trained: Path, tmp_path: Path) -> None:
    whole = machine(trained, tmp_path / "killed", 0, 1, 2, 3)
    with pytest.raises(UnreadableError, match="an interrupted save: 4 data files"):
        ckpt.open(whole)
    some = machine(trained, tmp_path / "some", 1, 2)
    with pytest.raises(
        UnreadableError,
        match="several machines wrote, or a save that was killed before rank 0",
    ):
        ckpt.open(some)


def test_where_rank_0_is_missing_too_no_other_machine_is_blamed(
    trained: Path, tmp_path: Path
) -> None:
    folder = machine(trained, tmp_path / "c", 1, 2, metadata=True)
    (row,) = [row for row in ckpt.inspect(folder).findings if row.code == "incomplete"]
    assert (
        "2 of 4 data files missing" in row.message
        and "another machine" not in row.message
    )


def test_ranks_in_words() -> None:
    texts = [
        ranks_text(ranks)
        for ranks in ([3], [2, 3], [4, 5, 6, 7], [1, 4, 9], list(range(0, 20, 2)))
    ]
    assert texts == [
        "rank 3",
        "ranks 2 and 3",
        "ranks 4 to 7",
        "ranks 1, 4, 9",
        "ranks 0, 2, 4, 6, 8 and 5 more",
    ]
