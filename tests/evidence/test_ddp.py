"""A real run that DDP stops, and what ckpt says of its files: names for the numbers,
who had no gradient, on which rank.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import train_ddp
from process import ROOT, ckpt, environment, python

pytestmark = pytest.mark.slow

RUNS = [*((kind, 1) for kind in train_ddp.KINDS), ("spare", 2), ("tied", 3)]
FORUM = [(kind, 1) for kind in train_ddp.FORUM]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, which the first of the suite's processes makes
    for all.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ddp"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = tmp_path_factory.mktemp("ddp")
            script = ROOT / "tests" / "lib" / "train_ddp.py"
            env = environment(TORCH_DISTRIBUTED_DEBUG="INFO", GLOO_SOCKET_IFNAME="lo")
            done = python(
                script,
                made,
                *(f"{kind}-{seed}" for kind, seed in RUNS + FORUM),
                env=env,
            )
            assert done.code == 0, done.err.decode()
            made.rename(folder)
    return folder


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def run(request: Any, runs: Path) -> tuple[Path, str]:
    """The folder of a run that died of DDP's own error, and its kind."""
    kind, seed = request.param
    return runs / f"{kind}-{seed}", kind


def error(folder: Path, rank: int) -> tuple[str, set[str]]:
    """(the indices as DDP prints them, the names that it prints with
    TORCH_DISTRIBUTED_DEBUG).
    """
    text = (folder / f"error.rank{rank}.txt").read_text(encoding="utf-8")
    assert text.startswith(
        "Expected to have finished reduction in the prior iteration before starting a "
        "new one."
    )
    indices = re.search(
        rf"Parameter indices which did not receive grad for rank {rank}: ([\d ]+)", text
    )
    names = re.search(
        rf"Parameters which did not receive grad for rank {rank}: ([\w., ]+)", text
    )
    assert indices is not None and names is not None
    return indices[1].strip(), set(names[1].split(", "))


def document(*arguments: str | Path) -> Any:
    return json.loads(ckpt(*map(str, arguments), "--json").out)


def test_numbers_become_the_names_that_ddp_prints(run: tuple[Path, str]) -> None:
    folder, kind = run
    for rank in (1,) if kind == "branch" else (0, 1):
        indices, names = error(folder, rank)
        for file in (f"before.rank{rank}.pth", f"after.rank{rank}.pth"):
            found = document("inspect", folder / file, "--index", indices)["index"]
            assert {
                row["name"].removeprefix("state_dict.") for row in found["names"]
            } == names
            assert found["evidence"]["trust"] == "certain" and found["assumes"] is None


def test_one_file_names_who_had_no_gradient(run: tuple[Path, str]) -> None:
    folder, _ = run
    _, names = error(folder, 1)

    findings = document("inspect", folder / "after.rank1.pth")["findings"]

    (unused,) = (row for row in findings if row["code"] == "unused")
    assert {name.removeprefix("state_dict.") for name in unused["tensors"]} == names
    assert unused["level"] == "warning"
    assert not [row for row in findings if row["code"] == "sometimes-unused"]


def test_before_and_after(run: tuple[Path, str]) -> None:
    folder, kind = run
    _, names = error(folder, 1)

    report = document("diff", folder / "before.rank1.pth", folder / "after.rank1.pth")

    still = {
        row["after"].removeprefix("state_dict."): row["cause"]
        for row in report["tensors"]
        if row["status"] == "same" and row["role"] == "parameter"
    }
    tied = {"aux.weight"} if kind == "tied" else set()
    assert {
        name for name, cause in still.items() if cause == "no-gradient"
    } == names - tied
    frozen = {name for name, cause in still.items() if cause == "frozen"}
    assert bool(frozen) == (kind == "frozen") and len(frozen) + len(
        names - tied
    ) == len(still)
    used = [
        row
        for row in report["tensors"]
        if row["role"] == "buffer" and row["status"] == "changed"
    ]
    assert all(
        row["after"].rpartition(".")[2].startswith(("running", "num")) for row in used
    )


def test_two_ranks(run: tuple[Path, str]) -> None:
    folder, kind = run
    files = folder / "after.rank0.pth", folder / "after.rank1.pth"

    report = document("diff", *files)

    # What was not reduced in the first step went its own way on each rank: that is
    # true, and said.
    states = [torch.load(file, weights_only=True) for file in files]
    roles = dict(
        zip(
            states[0]["ckpt"]["tensors"]["name"],
            states[0]["ckpt"]["tensors"]["role"],
            strict=True,
        )
    )
    other = {
        name
        for name, value in states[0]["state_dict"].items()
        if roles[name] == "parameter"
        and not torch.equal(value, states[1]["state_dict"][name])
    }
    found = [row for row in report["findings"] if row["code"] == "ranks-differ"]
    told = {
        name.removeprefix("state_dict.")
        for row in found
        if "differ between rank" in row["message"]
        for name in row["tensors"]
    }
    assert told == other
    only = [row for row in found if "have a gradient on rank 0 only" in row["message"]]
    if kind == "branch":
        _, names = error(folder, 1)
        assert {
            name.removeprefix("state_dict.") for name in only[0]["tensors"]
        } == names
    else:
        assert only == []
    code = ckpt("diff", *map(str, files), "--fail-on", "ranks-differ").code
    assert code == bool(found)
    assert not [
        row for row in report["findings"] if row["code"] in ("frozen", "step-skipped")
    ]


@pytest.mark.parametrize("kind", train_ddp.FORUM)
@pytest.mark.parametrize("debug", [True, False])
def test_the_pasted_message_names_the_layers(
    kind: str, debug: bool, runs: Path
) -> None:
    """One pasted command, in a pipe and at 80 columns, with the message as DDP prints
    it with and without its names.
    """
    folder = runs / f"{kind}-1"
    texts = [
        (folder / f"error.rank{rank}.txt").read_text(encoding="utf-8")
        for rank in range(2)
    ]
    wanted = {name for rank in range(2) for name in error(folder, rank)[1]}
    if not debug:
        texts = [
            re.sub(r"Parameters which did not receive grad for rank.*?\n", "", text)
            for text in texts
        ]
    log = "".join(
        f"[rank{rank}]: {line}\n"
        for rank, text in enumerate(texts)
        for line in text.splitlines()
    )

    done = ckpt("explain", "-", folder / "last.pth", "--json", input=log.encode())
    answer = json.loads(done.out)["answer"]

    rows = answer["index"]["names"]
    candidates = {name for row in rows for name in row["candidates"]}
    # What the file does not decide without an assumption stands behind one.
    assert {str(row["name"]).rpartition("module.")[2] for row in rows} == wanted, (
        answer["index"],
        candidates,
    )
    piped = ckpt("explain", "-", folder / "last.pth", input=log.encode()).out.decode()
    for name in {row["name"] for row in rows}:
        assert any(line.split()[1:2] == [name] for line in piped.splitlines()), (
            "one name per line, nothing cut"
        )
    line = next(
        line
        for line in texts[1].splitlines()
        if "indices which did not receive" in line
    )
    pasted = ckpt("inspect", folder / "last.pth", "--index", line.strip(), COLUMNS="80")
    assert pasted.code == 0, pasted.err
