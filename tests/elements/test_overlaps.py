"""Views that show far more than is stored: a small file must not make hours of reading,
or fill a disk.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside

from ckpt.elements import spans

JOBS = (
    ("sum",),
    ("stats",),
    ("diff", "other.pth"),
    ("convert", "-o", "out.safetensors"),
    ("convert", "-o", "shards/out.safetensors", "--shard-size", "1kB"),
    ("convert", "-o", "out.dcp"),
    ("slim", "-o", "out.safetensors"),
)


def write_windows(path: Path, number: int, seed: int) -> None:
    """Write many tensors over one storage: each begins an element later."""
    values = torch.randn(1_000, generator=torch.Generator().manual_seed(seed))
    torch.save(
        {f"net.{start}": values[start : start + 500] for start in range(number)}, path
    )


@pytest.mark.parametrize("job", JOBS, ids=" ".join)
def test_windows_by_the_hundred_are_refused(
    job: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "_SHOWN", 100_000)
    write_windows(tmp_path / "a.pth", 400, 0)
    write_windows(tmp_path / "other.pth", 400, 1)
    (tmp_path / "shards").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = inside(job[0], "a.pth", *job[1:], cwd=tmp_path)
    assert done.code == 2 and not done.lines
    name = "other.pth" if job[0] == "diff" else "a.pth"
    assert done.complaints[0].startswith(f"ckpt: {name}: its views show ")
    assert "too many to read (choose some with --include)" in done.complaints[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("job", JOBS, ids=" ".join)
def test_ties_are_read(
    job: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four names of each tensor, as of shared layers, are no such views."""
    monkeypatch.setattr(spans, "_SHOWN", 0)
    (tmp_path / "shards").mkdir()
    for name in ("a.pth", "other.pth"):
        shared = torch.randn(3_000)
        torch.save({f"net.{number}": shared for number in range(4)}, tmp_path / name)
    assert inside(job[0], "a.pth", *job[1:], cwd=tmp_path).code == (job[0] == "diff")


def test_chosen_views_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_SHOWN", 100_000)
    write_windows(tmp_path / "a.pth", 400, 0)
    for command in ("sum", "stats"):
        done = inside(command, "a.pth", "--include", "net.1", cwd=tmp_path)
        assert done.code == 0


def test_repetitions_cost_nothing_where_they_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "_SHOWN", 1_000)
    one = torch.randn(1)
    torch.save({f"net.{n}": one.expand(1_000) for n in range(40)}, tmp_path / "a.pth")
    torch.save({f"net.{n}": one.expand(1_000) for n in range(40)}, tmp_path / "b.pth")
    assert inside("stats", "a.pth", cwd=tmp_path).code == 0
    assert inside("diff", "a.pth", "b.pth", cwd=tmp_path).code == 0
    assert inside("sum", "a.pth", cwd=tmp_path).code == 2
