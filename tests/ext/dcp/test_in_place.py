"""`rename --in-place` and `strip --in-place` of a distributed checkpoint: `.metadata`
alone is replaced, and torch loads the result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import kills
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside
from process import as_nobody

import ckpt
from ckpt.ext.dcp import writer
from ckpt.model.errors import WriteError

pytestmark = oracle.QUIET


def run(*words: str | Path, cwd: Path, code: int = 0) -> str:
    done = inside(*map(str, words), cwd=cwd)
    assert done.code == code, done
    return done.out.decode() + done.err.decode()


def model(count: int, middle: str = "") -> dict[str, torch.Tensor]:
    return {
        f"module.layers.{number}.{middle}weight": torch.full((3,), float(number))
        for number in range(count)
    }


def saved(state: dict[str, Any], path: Path) -> Path:
    dcp.save(
        state, storage_writer=dcp.FileSystemWriter(path, thread_count=2), no_dist=True
    )
    return path


def inodes(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """The inode, the time and the bytes of each data file."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.glob("*.distcp")
    }


def loaded(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """What torch finds under these names."""
    found = {
        key: {name: torch.full_like(each, 77) for name, each in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in wanted.items()
    }
    dcp.load(found, checkpoint_id=str(folder), no_dist=True)
    return found


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A model below `module.` with its optimizer, whose `params` names the
    parameters.
    """
    weights = model(6)
    names = list(weights)
    optim = {
        "state": {
            name: {"exp_avg": torch.full((3,), -2.0), "step": torch.tensor(4.0)}
            for name in names
        },
        "param_groups": [{"lr": 0.1, "params": names}],
    }
    return saved({"model": weights, "optim": optim, "epoch": 3}, tmp_path / "d")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 64, 2_100])
@pytest.mark.parametrize("is_long", [False, True])
def test_names_change_and_no_data_file_does(
    count: int, is_long: bool, tmp_path: Path
) -> None:
    weights = model(count, "x" * 105 + "." if is_long else "")
    saved({"model": weights, "epoch": 3}, tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "other")
    before = inodes(tmp_path / "d")
    said = run(
        "rename",
        "d",
        "--sub",
        "s/^module.layers/net.blocks/",
        "--in-place",
        cwd=tmp_path,
    )
    assert "rewrote .metadata of d in place; its data files are as they were" in said
    assert inodes(tmp_path / "d") == before
    wanted = {
        name.replace("module.layers", "net.blocks"): tensor
        for name, tensor in weights.items()
    }
    found = loaded(tmp_path / "d", {"model": wanted})["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    run(
        "rename",
        "other",
        "--sub",
        "s/^module.layers/net.blocks/",
        "-o",
        "new.dcp",
        cwd=tmp_path,
    )
    assert run("diff", "d", "new.dcp", cwd=tmp_path).count("same")
    assert run("verify", "d", cwd=tmp_path).startswith("d: intact")


def test_what_holds_the_names_goes_to_a_new_file(trained: Path, tmp_path: Path) -> None:
    before = inodes(trained)
    said = run("strip", "d", "--in-place", cwd=tmp_path)
    assert (
        "changed items are in __1_0.distcp" in said
        or "changed items are in __2_0.distcp" in said
    )
    after = inodes(trained)
    assert {name: after[name] for name in before} == before and len(after) == len(
        before
    ) + 1
    names = [f"layers.{number}.weight" for number in range(6)]
    with ckpt.open(str(trained)) as checkpoint:
        assert {
            name.removeprefix("model.")
            for name in checkpoint
            if name.startswith("model.")
        } == set(names)
    state = {
        "optim": {
            "state": {
                name: {"exp_avg": torch.zeros(3), "step": torch.tensor(0.0)}
                for name in names
            },
            "param_groups": [{"lr": 0.0, "params": []}],
        },
        "epoch": 0,
    }
    dcp.load(state, checkpoint_id=str(trained), no_dist=True)
    optim: Any = state["optim"]
    assert (
        optim["param_groups"] == [{"lr": 0.1, "params": names}] and state["epoch"] == 3
    )
    assert all(
        float(row["step"]) == 4 and row["exp_avg"][0] == -2
        for row in optim["state"].values()
    )
    assert run("verify", "d", cwd=tmp_path).startswith("d: intact")


def test_what_nothing_names_any_more_is_said(trained: Path, tmp_path: Path) -> None:
    run("strip", "d", "--in-place", cwd=tmp_path)
    (new,) = [
        name
        for name in os.listdir(trained)
        if name not in ("__0_0.distcp", "__0_1.distcp", ".metadata")
    ]
    said = run("rename", "d", "--sub", "s/layers/blocks/", "--in-place", cwd=tmp_path)
    assert f"nothing names {new} any more: it may be removed" in said
    (trained / new).unlink()
    assert run("verify", "d", cwd=tmp_path).startswith("d: intact")


def test_a_file_that_lies_there_is_not_replaced(trained: Path, tmp_path: Path) -> None:
    for number in range(3):
        (trained / f"__{number}_0.distcp").exists() or (
            trained / f"__{number}_0.distcp"
        ).write_bytes(b"old")
    before = inodes(trained)
    run("strip", "d", "--in-place", cwd=tmp_path)
    after = inodes(trained)
    assert {name: after[name] for name in before} == before and set(after) - set(
        before
    ) == {"__3_0.distcp"}


def test_a_file_of_which_little_is_used_stays(trained: Path, tmp_path: Path) -> None:
    """Another command writes a file anew that is mostly dead bytes. In place
    none is.
    """
    with (trained / "__0_0.distcp").open("ab") as file:
        file.write(bytes(100_000))
    before = inodes(trained)
    run("strip", "d", "--section", "model", "--in-place", cwd=tmp_path)
    assert {name: inodes(trained)[name] for name in before} == before


def test_the_json_names_the_files(trained: Path, tmp_path: Path) -> None:
    import json

    done = json.loads(inside("strip", "d", "--in-place", "--json", cwd=tmp_path).out)
    assert (
        done["output"]["relisted"][0] == ".metadata"
        and len(done["output"]["relisted"]) == 2
    )
    assert done["output"]["bytes"] == sum(
        path.stat().st_size for path in trained.iterdir()
    )


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, why",
    [
        (
            ("strip", "d", "--in-place", "--copy"),
            "--copy does not go with --in-place here",
        ),
        (
            ("strip", "d", "--in-place", "--verify", "crc"),
            "--verify does not go with --in-place here",
        ),
        (
            ("rehome", "--undo", "d"),
            "--undo is for zip files: of a DCP the old .metadata was replaced",
        ),
        (("rehome", "--undo", "d/.metadata"), "--undo is for zip files"),
        (
            ("rename", "d", "--sub", "s/layers.*/x/", "--in-place"),
            "would both be called",
        ),
    ],
)
def test_refused(
    words: tuple[str, ...], why: str, trained: Path, tmp_path: Path
) -> None:
    before = kills.contents(trained)
    said = run(*words, cwd=tmp_path, code=2)
    assert why in said and said.count("\n") == 1
    assert kills.contents(trained) == before


def test_metadata_of_each_rank(tmp_path: Path) -> None:
    saved({"model": model(3)}, tmp_path / "d")
    (tmp_path / "d" / ".metadata").rename(tmp_path / "d" / "__0.metadata")
    said = run("strip", "d", "--in-place", cwd=tmp_path, code=2)
    assert said == (
        "ckpt: d: each rank lists its items in a file of its own, so it cannot be "
        "changed in place (-o OUT)\n"
    )
    assert "--in-place" not in run("strip", "d", cwd=tmp_path, code=2)
    run("strip", "d", "-o", "o.dcp", cwd=tmp_path)


def test_read_only(trained: Path, tmp_path: Path) -> None:
    for path in (trained, tmp_path, tmp_path.parent):
        path.chmod(0o755)
    (trained / ".metadata").chmod(0o444)
    before = kills.contents(trained)
    done = as_nobody("strip", "d", "--in-place", cwd=tmp_path)
    assert done.code == 2 and b"no permission" in done.err, done
    assert kills.contents(trained) == before


def test_hard_links_keep_the_old_names(trained: Path, tmp_path: Path) -> None:
    os.link(trained / ".metadata", tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    assert "its other hard links keep the old content" in run(
        "strip", "d", "--in-place", cwd=tmp_path
    )
    assert (
        (tmp_path / "kept").read_bytes()
        == before
        != (trained / ".metadata").read_bytes()
    )


def test_the_mode_stays(trained: Path, tmp_path: Path) -> None:
    (trained / ".metadata").chmod(0o640)
    run("strip", "d", "--in-place", cwd=tmp_path)
    assert (trained / ".metadata").stat().st_mode & 0o777 == 0o640


def test_another_process_that_rewrites_it(trained: Path, tmp_path: Path) -> None:
    with (trained / ".metadata").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process is rewriting it" in run(
            "strip", "d", "--in-place", cwd=tmp_path, code=2
        )


def test_a_check_that_fails_leaves_all_as_it_was(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kills.contents(trained)

    def refuse(*_: object) -> None:
        raise WriteError("differs")

    monkeypatch.setattr(writer, "compare", refuse)
    assert "differs" in run("strip", "d", "--in-place", cwd=tmp_path, code=2)
    assert kills.contents(trained) == before and not list(trained.glob("*.ckpt-tmp"))


def test_a_list_that_reads_otherwise_is_found(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new `.metadata` itself is read before it takes its place, not the old one."""
    before = kills.contents(trained)
    record = writer.record

    def other(rows: list[writer.Row], *more: Any, **options: Any) -> bytes:
        return record(rows[1:], *more, **options)

    monkeypatch.setattr(writer, "record", other)
    assert "items instead of" in run("strip", "d", "--in-place", cwd=tmp_path, code=2)
    assert kills.contents(trained) == before


# --- kills ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_leaves_the_old_or_the_new_names(
    trained: Path, tmp_path: Path, killer: kills.Killer
) -> None:
    old = kills.contents(trained)
    names: dict[bool, int] = {False: 0, True: 0}
    for ran in killer.at_events("strip", "d", "--in-place", cwd=tmp_path):
        with ckpt.open(str(trained)) as checkpoint:
            is_new = "model.layers.0.weight" in list(checkpoint)
            assert is_new or "model.module.layers.0.weight" in list(checkpoint)
            assert all(
                tensor.numpy().shape in ((3,), ()) for tensor in checkpoint.values()
            )
        names[is_new] += 1
        now = kills.contents(trained)
        assert all(
            now[name] == data for name, data in old.items() if name != ".metadata"
        )
        assert is_new or now[".metadata"] == old[".metadata"]
        assert is_new or not ran.was_killed or ran.code
        shutil.rmtree(trained)
        trained.mkdir()
        for name, data in old.items():
            (trained / name).write_bytes(data)
    assert names[False] and names[True]
