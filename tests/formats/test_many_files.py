"""Checkpoints of more files than are open at once: every reader and writer gives what
it gives with all of them open.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import deepspeeds
import oracle
import pytest
import torch
import train_ranks
from inside import inside
from process import TIMEOUT, Done, environment

from ckpt.bytes import source as descriptors

pytestmark = [*oracle.QUIET, pytest.mark.slow]

SHARDS = 12


def bin_shards(folder: Path) -> Path:
    return shards(folder, SHARDS, "bin")


def safe_shards(folder: Path) -> Path:
    return shards(folder, SHARDS, "safetensors")


def shards(folder: Path, count: int, ending: str) -> Path:
    folder.mkdir()
    weight_map = {}
    for number in range(count):
        name, file = (
            f"layers.{number}.weight",
            f"model-{number + 1:05}-of-{count:05}.{ending}",
        )
        weight_map[name] = file
        if ending == "bin":
            torch.save({name: torch.arange(16.0) + number}, folder / file)
        else:
            header = json.dumps(
                {name: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}
            ).encode()
            data = struct.pack("<16f", *range(number, number + 16))
            (folder / file).write_bytes(struct.pack("<Q", len(header)) + header + data)
    index = {"metadata": {"total_size": 64 * count}, "weight_map": weight_map}
    (folder / f"model.{ending}.index.json").write_text(json.dumps(index))
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "sharded safetensors": safe_shards,
    "sharded bin": bin_shards,
    "deepspeed zero 1": lambda folder: deepspeeds.write(folder, 1, 4),
    "deepspeed zero 3": lambda folder: deepspeeds.write(folder, 3, 5),
}
NAMES = [*MADE, *train_ranks.RANKS, "hf", "dcp"]


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, ranks: Path, tmp_path: Path) -> Path:
    if request.param in MADE:
        return MADE[request.param](tmp_path / "made")
    if request.param != "dcp":
        return ranks / request.param
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    state = {
        f"layers.{number}.weight": torch.arange(16.0) + number
        for number in range(SHARDS)
    }
    writer = FileSystemWriter(
        tmp_path / "dcp", single_file_per_rank=False, sync_files=False
    )
    dcp.save({"model": state}, storage_writer=writer, no_dist=True)
    return tmp_path / "dcp"


COMMANDS = ("inspect", "stats", "verify", "lint", "ls")


def answers(folder: Path, out: Path) -> list[bytes]:
    """What is said of a checkpoint, what is written of it, and how that compares with
    it.
    """
    calls = [
        ["sum", str(folder)],
        *([command, str(folder), "--json"] for command in COMMANDS),
    ]
    calls += [
        ["convert", str(folder), "-o", "o.pth"],
        ["diff", str(folder), "o.pth", "--json"],
    ]
    out.mkdir()
    done = [inside(*call, cwd=out) for call in calls]
    assert all(each.code < 2 for each in done), [each.err for each in done]
    return [*(each.out for each in done), (out / "o.pth").read_bytes()]


def test_few_descriptors_change_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_open = answers(folder, tmp_path / "one")
    monkeypatch.setattr(descriptors._Process, "most", 1)
    monkeypatch.setattr(descriptors._Process, "is_known", True)
    one_open = answers(folder, tmp_path / "two")

    assert all_open == one_open


def limited(count: int, *arguments: str, cwd: Path) -> Done:
    """What `ckpt ARGUMENTS` does in a process that may open so many files."""
    ran = subprocess.run(
        [sys.executable, "-m", "ckpt", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=cwd,
        env=environment(),
        timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)),
    )
    return Done(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("many") / "many", 10_000, "safetensors")


@pytest.mark.parametrize(
    "call", ["inspect many", "diff many many", "convert many -o o.safetensors"]
)
def test_ten_thousand_shards(call: str, ten_thousand: Path, tmp_path: Path) -> None:
    (tmp_path / "many").symlink_to(ten_thousand)
    done = limited(128, *call.split(), cwd=tmp_path)

    assert (done.code, done.err) == (0, b"") and b"10,000 tensors" in done.out


@pytest.mark.parametrize("limit", [9, 12, 16, 20, 40, 70])
def test_a_limit_that_cannot_be_raised(limit: int, tmp_path: Path) -> None:
    shards(tmp_path / "a", 80, "bin")
    for call in ("inspect a", "diff a a", "convert a -o o.pth"):
        done = limited(limit, *call.split(), cwd=tmp_path)
        assert done.code == 0, done.err.decode()
        (tmp_path / "o.pth").unlink(missing_ok=True)


def test_a_limit_that_is_too_low(tmp_path: Path) -> None:
    """One line, no traceback, and no word about the files."""
    shards(tmp_path / "a", 20, "bin")
    for limit in (4, 5):
        for call in ("diff a a", "convert a -o o.pth"):
            done = limited(limit, *call.split(), cwd=tmp_path)
            if done.code == 0 or b"No module named" in done.err or b"init_" in done.err:
                continue  # Python itself did not start
            assert (
                done.code == 2
                and b"ulimit -n" in done.err
                and done.err.count(b"\n") == 1
            ), done.err


def test_python_that_is_refused_a_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(tmp_path / "a", 2, "bin")
    from ckpt.formats.sharded import reader

    for error in (
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        ImportError("libx.so: Too many open files"),
    ):
        monkeypatch.setattr(reader, "listed", mock.Mock(side_effect=error))
        done = inside("inspect", "a", cwd=tmp_path)
        assert done.complaints == [
            "ckpt: too many open files (ulimit -n 256 allows more)"
        ]
