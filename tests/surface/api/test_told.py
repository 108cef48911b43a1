"""A function tells on all that it is told of its inputs: doubts, leftovers, records
that could not be read.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from inside import folder_of
from process import SAMPLES

import ckpt
from ckpt.model.checkpoint import Checkpoint, RecordedFile, RecordedItem

pytestmark = oracle.QUIET


@pytest.fixture
def doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint is in doubt."""

    def doubts(checkpoint: Checkpoint) -> list[str]:
        return [f"{Path(checkpoint.path).name} is in doubt"]

    for module in (
        "surface.api.rewriting",
        "ext.average.api",
        "ext.salvage.api",
        "ext.warmstart.api",
    ):
        monkeypatch.setattr(f"ckpt.{module}.doubt_lines", doubts)


def saved(folder: Path, *names: str) -> list[Path]:
    return [
        rewriting.saved({"a.weight": torch.full((4,), float(number))}, folder / name)
        for number, name in enumerate(names)
    ]


@pytest.mark.needs("average", "salvage", "warmstart")
@pytest.mark.usefixtures("doubtful")
def test_the_doubts_about_each_input(tmp_path: Path) -> None:
    one, two = saved(tmp_path, "one.pt", "two.pt")
    calls: dict[str, Any] = {
        "strip": (
            lambda tell: ckpt.strip(one, prefix="a.", dry_run=True, tell=tell),
            ["one.pt"],
        ),
        "average": (
            lambda tell: ckpt.average([one, two], out=tmp_path / "mean.pt", tell=tell),
            ["one.pt", "two.pt"],
        ),
        "warmstart": (
            lambda tell: ckpt.warmstart(
                one, into=two, out=tmp_path / "warm.pt", tell=tell
            ),
            ["one.pt", "two.pt"],
        ),
        "salvage": (
            lambda tell: ckpt.salvage(
                one, fill_from=two, out=tmp_path / "whole.pt", tell=tell
            ),
            ["two.pt", "one.pt"],
        ),
    }
    for name, (call, files) in calls.items():
        told: list[str] = []
        report = call(told.append)
        assert told == [f"{file} is in doubt" for file in files], name
        assert report.warnings == tuple(told), name


def test_files_of_several_steps_and_leftovers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = saved(tmp_path, "one.pt")
    left = tmp_path / ".out.pt.0000000000000000.ckpt-tmp"
    left.write_bytes(bytes(3))
    monkeypatch.setattr(
        "ckpt.bytes.target.left_over", lambda real, *rest: [(str(left), 3)]
    )

    class Mixed:
        text = "files of steps 1 and 2"

    monkeypatch.setattr("ckpt.evidence.survey.Survey.mixed", Mixed())
    report = ckpt.rehome(one, to="cuda:0", out=tmp_path / "out.pt")
    assert report.warnings == (
        f"{left}: 3 B left over from a run that was killed",
        f"{one}: files of steps 1 and 2",
    )


def test_records_that_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (one,) = saved(tmp_path, "one.pt")
    from ckpt.formats import verify

    files = [
        RecordedFile("a", 3, [RecordedItem("w", 1, None, "is damaged")]),
        RecordedFile("b", 0, problem="is gone"),
    ]
    monkeypatch.setattr(
        verify,
        "recorded",
        lambda *given, **options: verify.Recorded("dcp", "DCP", files),
    )
    report = ckpt.sum(one, recorded=True)
    assert (
        report.unread == (("w", "is damaged"), ("b", "is gone"))
        and report.exit_code == 2
    )
    assert report.to_json()["unread"] == [
        {"name": "w", "why": "is damaged"},
        {"name": "b", "why": "is gone"},
    ]


def test_a_stored_listing_is_a_side(tmp_path: Path) -> None:
    listing = tmp_path / "listing.json"
    listing.write_text(json.dumps(ckpt.inspect(SAMPLES / "legacy.pth").to_json()))
    assert ckpt.diff(listing, SAMPLES / "legacy.pth", structure=True).same
    assert ckpt.diff(SAMPLES / "llama_bf16.pth", listing, structure=True).exit_code == 1
    with pytest.raises(ckpt.CkptError):
        ckpt.diff(listing, SAMPLES / "legacy.pth")


def test_numbers_are_looked_up_in_a_section() -> None:
    with folder_of(SAMPLES):
        whole = ckpt.inspect("train_cuda.pth", index="0")
        assert (
            whole.index is not None
            and whole.to_json()["index"] == whole.index.to_json()
        )
        with pytest.raises(ckpt.UsageError, match="no section"):
            ckpt.inspect("train_cuda.pth", index="0", section="none")


def test_the_roles_of_a_live_model_reach_both_sides(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.thing = torch.nn.Parameter(torch.zeros(3))
            self.register_buffer("other", torch.zeros(3))

    torch.save(Odd().state_dict(), tmp_path / "a.pth")
    torch.save({"thing": torch.ones(3), "other": torch.zeros(3)}, tmp_path / "b.pth")
    for before, after in (("a.pth", "b.pth"), ("b.pth", "a.pth")):
        report = ckpt.diff(tmp_path / before, tmp_path / after, model=Odd())
        assert {row.name: (row.role.role, row.role.trust) for row in report.rows} == {
            "thing": ("parameter", "certain"),
            "other": ("buffer", "certain"),
        }


def test_damaged_tensors_are_kept_where_that_is_asked(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, "one.pt")
    data = path.read_bytes()
    numbers = torch.ones(4)
    rewriting.saved({"a.weight": numbers, "b.weight": torch.zeros(4)}, path)
    data = path.read_bytes()
    path.write_bytes(data.replace(numbers.numpy().tobytes(), bytes(16)))
    with pytest.raises(ckpt.CkptError):
        ckpt.convert(path, format="torch-legacy", out=tmp_path / "a.pt")
    lost = ckpt.salvage(path, out=tmp_path / "b.pt")
    assert [row.name for row in lost.lost] == ["a.weight"] and lost.exit_code == 1
    kept = ckpt.salvage(path, out=tmp_path / "c.pt", keep_damaged=True)
    assert kept.lost == () and kept.exit_code == 1
    assert set(torch.load(tmp_path / "c.pt")) == {"a.weight", "b.weight"}


def test_shards_are_counted_too(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    ckpt.convert(
        SAMPLES / "llama_bf16.pth",
        shard_size="20KB",
        out=tmp_path / "model.safetensors",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen and seen[-1][0] > 0


def test_a_difference_answers_although_sums_are_missing(tmp_path: Path) -> None:
    """One tensor is known to differ, so it does not matter that another cannot be
    decided.
    """
    state = {"a": torch.ones(3), "b": torch.ones(3)}
    one = rewriting.saved(
        state, tmp_path / "a.pt", _use_new_zipfile_serialization=False
    )
    two = rewriting.saved(
        state | {"b": torch.ones(4)},
        tmp_path / "b.pt",
        _use_new_zipfile_serialization=False,
    )
    assert ckpt.diff(one, two, quick=True).exit_code == 1
    with pytest.raises(ckpt.UsageError, match="quick= cannot decide"):
        ckpt.diff(one, one, quick=True)


def test_the_bytes_of_a_file_are_read_within_limits() -> None:
    data = (SAMPLES / "train_cuda.pth").read_bytes()
    for call in (
        lambda given: ckpt.strip(
            given, dry_run=True, limits=ckpt.Limits(pickle_bytes=10)
        ),
        lambda given: ckpt.inspect(given, limits=ckpt.Limits(pickle_bytes=10)),
    ):
        with pytest.raises(ckpt.LimitError):
            call(io.BytesIO(data))


def test_a_selected_code_counts_at_any_level() -> None:
    with folder_of(SAMPLES):
        assert ckpt.lint("train_cuda.pth", select="cuda").findings[0].level == "info"
        assert "cuda" not in {row.code for row in ckpt.lint("train_cuda.pth").findings}


def test_a_folder_of_files_that_cannot_be_read(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "truncated.pth", tmp_path / "a.pth")
    (row,) = ckpt.lint(tmp_path).files
    assert (
        row.error is not None
        and row.error.message.startswith("cut off")
        and row.path.endswith("a.pth")
    )
    (listed,) = ckpt.ls(tmp_path)
    assert listed.error is not None and listed.error.message.startswith("cut off")


def test_the_rows_of_a_report_are_short() -> None:
    """A list of them is looked at in a notebook."""
    report = ckpt.inspect(SAMPLES / "train_cuda.pth")
    shown = [
        *report.findings,
        *report.tensors,
        *report.sections,
    ]
    kept = ckpt.slim(SAMPLES / "train_cuda.pth", dry_run=True)
    shown += [*kept.left_out, *kept.changes]
    before, after = SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth"
    rows = ckpt.diff(before, after).rows
    shown += [row.change for row in rows if row.change is not None]
    for row in shown:
        assert repr(row).startswith("<") and len(repr(row)) < 200
        assert "=" not in repr(row).partition(":")[0]
    assert repr(report.sections[0]).startswith("<ckpt.SectionSummary model: model, ")
    assert repr(report.tensors[0]).endswith("on cuda:0, parameter>")


def test_what_is_read_is_in_the_repr_of_what_is_written(tmp_path: Path) -> None:
    before, after = SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth"
    mean = ckpt.average([before, after], dry_run=True)
    assert "ddp_before.pth, " in repr(mean) and "ddp_after.pth → " in repr(mean)
    warm = ckpt.warmstart(before, into=after, dry_run=True)
    assert "ddp_before.pth into " in repr(warm)


def test_every_report_is_shown_in_a_notebook(tmp_path: Path) -> None:
    """docs/python.md says it of all of them."""
    for number in (1, 2):
        content = (SAMPLES / "legacy.pth").read_bytes()
        (tmp_path / f"epoch_{number}.pth").write_bytes(content)
    run = ckpt.prune(tmp_path, keep_last=1)
    assert "may go" in run._repr_html_()
    paths = (tmp_path / "epoch_1.pth", SAMPLES / "compiled.pth")
    assert "are made of A" in ckpt.recipe(*paths)._repr_html_()
