"""Each keyword has its effect. The commands call the same functions, so their answers
show none of what both ignore.
"""

from __future__ import annotations

import gc
import io
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rewriting
import torch
from inside import folder_of, inside
from process import SAMPLES

import ckpt
from ckpt.bytes.executor import Serial, current_executor, using_executor
from ckpt.formats import verify

AFTER, BEFORE = "ddp_after.pth", "ddp_before.pth"


@pytest.fixture(autouse=True)
def in_samples() -> Any:
    with folder_of(SAMPLES):
        yield


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A model and its EMA, whose parameter 1 has another name."""
    state = {
        "model": {"a.weight": torch.ones(4, 4), "a.bias": torch.ones(4)},
        "ema": {"a.weight": torch.zeros(4, 4), "b.bias": torch.ones(4)},
        "epoch": 3,
    }
    return rewriting.saved(state, tmp_path / "two.pt")


def codes(findings: Any) -> set[str]:
    return {finding.code for finding in findings}


def test_inspect() -> None:
    found = codes(ckpt.inspect(AFTER).findings)
    assert {"prefix", "unused"} < found
    assert codes(ckpt.inspect(AFTER, select=["prefix", "unused"]).findings) == {
        "prefix",
        "unused",
    }
    assert codes(ckpt.inspect(AFTER, ignore="prefix").findings) == found - {"prefix"}
    assert len(ckpt.inspect(AFTER, include="*fc3*", exclude="*bias")) == 1
    assert len(ckpt.inspect(AFTER, section="model")) == 18


def test_diff() -> None:
    found = codes(ckpt.diff(BEFORE, AFTER).findings)
    assert "frozen" in found
    assert codes(ckpt.diff(BEFORE, AFTER, ignore="frozen").findings) == found - {
        "frozen"
    }
    assert ckpt.diff(BEFORE, AFTER, fail_on="differ").exit_code == 1


def test_a_model_is_asked_on_both_sides(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    from ckpt.ext.live.model import describe

    plain, other = model.state_dict(), dict(model.state_dict())
    other["1.running_mean"] = torch.ones(2)
    one, two = (
        rewriting.saved(dict(plain), tmp_path / "a.pt"),
        rewriting.saved(other, tmp_path / "b.pt"),
    )
    for before, after in ((one, two), (two, one)):
        report = ckpt.diff(before, after, model=describe(model))
        trust = {row.name: row.role.trust for row in report.rows}
        assert trust["0.weight"] == "certain"


def test_stats_and_sums(two: Path) -> None:
    report = ckpt.stats(two, section="model", all=True)
    assert {row.label for row in report.rows} == {
        "a.weight",
        "a.bias",
    } and report.threshold is None
    assert ckpt.stats(two, section="model", select="dead-channels").threshold == 1e-3
    assert (
        ckpt.stats(two, section="model", channels=True, threshold=0.5).threshold == 0.5
    )
    assert ckpt.sum(two).section == "model"
    report = ckpt.sum(two, all=True)
    assert len(report.sums) == 4 and report.section == ""
    assert ckpt.sum(two, section="ema").section == "ema"


def test_verify(two: Path, tmp_path: Path) -> None:
    other = rewriting.saved(
        {
            "model": {"a.weight": torch.ones(4, 4), "a.bias": torch.ones(4)},
            "ema": {"c": torch.ones(1)},
        },
        tmp_path / "other.pt",
    )
    assert ckpt.verify(other, like=two, section="model").verdict == "intact"
    assert ckpt.verify(other, like=two, section="ema").verdict == "damaged"
    bare = rewriting.saved(
        {"a.weight": torch.ones(4, 4), "a.bias": torch.ones(4)}, tmp_path / "bare.pt"
    )
    assert ckpt.verify(two, like=bare, section="model").verdict == "intact"
    with pytest.raises(ckpt.CutOffError, match="ends at 9 bytes"):
        ckpt.verify(AFTER, like=(SAMPLES / "truncated.pth").read_bytes()[:9])
    assert ckpt.verify("truncated.pth").hint is not None
    sums = tmp_path / "sums"
    sums.write_text("\n".join(ckpt.sum(two, all=True).lines()) + "\n")
    assert ckpt.verify(two, sums=sums).verdict == "intact"
    with pytest.raises(
        ckpt.UsageError, match="quick= goes with the list of ckpt sum --recorded"
    ):
        ckpt.verify(two, sums=sums, quick=True)
    sums.write_text("\n".join(ckpt.sum(two, recorded=True).lines()) + "\n")
    assert ckpt.verify(two, sums=sums, quick=True).verdict == "intact"
    with pytest.raises(
        ckpt.UsageError, match="do not go with the list of ckpt sum --recorded"
    ):
        ckpt.verify(two, sums=sums, include="*")
    with pytest.raises(ckpt.UsageError, match="which only ckpt verify --sums compares"):
        ckpt.verify(two, like=sums)
    lost = tmp_path / "lost.pt"
    lost.symlink_to("nowhere")
    assert ckpt.verify(lost).verdict == "unreadable"


def test_the_limits_of_an_open_checkpoint_count_for_what_is_compared(two: Path) -> None:
    """`like` is read within them, also without limits in the call."""
    limits = ckpt.Limits(entries=1)
    data = two.read_bytes()
    with ckpt.open(data) as given:
        given.limits = limits
        with pytest.raises(ckpt.LimitError):
            ckpt.verify(given, like=data)


def test_ls_and_lint(tmp_path: Path) -> None:
    assert codes(ckpt.ls(AFTER, select="prefix")[0].findings) == {"prefix"}
    with pytest.raises(ckpt.LimitError):
        ckpt.inspect(AFTER, limits=ckpt.Limits(operations=10))
    (row,) = ckpt.lint(AFTER, limits=ckpt.Limits(operations=10)).files
    assert row.error is not None and row.error.code == "limit"
    (tmp_path / "a.bin").write_bytes(b"no checkpoint")
    (tmp_path / "a.pt").write_bytes(Path(AFTER).read_bytes())
    report = ckpt.ls(tmp_path)
    assert [Path(row.path).name for row in report] == ["a.pt"] and len(
        report.others
    ) == 1
    report = ckpt.lint(["README.md", AFTER], skip_others=True)
    assert [row.path for row in report.files] == [AFTER] and report.others == (
        "README.md",
    )


@pytest.mark.needs("dcp")
def test_refusals_of_what_writes(two: Path, tmp_path: Path) -> None:
    for match, call in (
        ("weights= and section= exclude", lambda: ckpt.convert(two, weights="ema", section="model", dry_run=True)),
        ("not a number of bytes", lambda: ckpt.convert(two, shard_size=0, dry_run=True)),
        ("shard_size= goes with safetensors", lambda: ckpt.convert(two, shard_size=9, format="dcp", dry_run=True)),
        ("ranks= goes with format= dcp", lambda: ckpt.convert(two, ranks=2, dry_run=True, format="torch-zip")),
        ("link= goes with distributed", lambda: ckpt.strip(AFTER, link=True, dry_run=True)),
        ('verify="no": not a check', lambda: ckpt.average([two, two], verify="no", dry_run=True)),  # type: ignore[arg-type]
        ("has 3 numbers for 2 checkpoints", lambda: ckpt.average(["none", "nowhere"], ratios=[1, 2, 3], dry_run=True)),
        ("OUT is the source", lambda: ckpt.slim(two, section="model", out=two, force=True)),
        ("OUT is the source", lambda: ckpt.slim(two, section="model", out=two)),
    ):  # fmt: skip
        with pytest.raises(ckpt.UsageError, match=match):
            call()
    with pytest.raises(ckpt.LossError, match="lacks"):
        ckpt.slim(AFTER, like="train_cuda.pth", dry_run=True)
    with pytest.raises(ckpt.UsageError, match="no section"):
        ckpt.strip(AFTER, section="no", dry_run=True)
    with pytest.raises(ckpt.UsageError, match=r"out=\S*moved"):
        ckpt.rehome("train_cuda.pth", map="cuda:0=cuda:1")


def test_the_progress_of_a_writer_is_of_the_bytes_of_storages(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    ckpt.strip(AFTER, out=tmp_path / "a.pth", progress=lambda *row: seen.append(row))
    assert (
        seen
        and seen[-1][0]
        == seen[-1][1]
        == ckpt.inspect(AFTER).to_json()["totals"]["storage_bytes"]
    )  # type: ignore[index, call-overload]


def test_the_mean_has_the_format_of_its_name(two: Path, tmp_path: Path) -> None:
    report = ckpt.average(
        [AFTER, BEFORE], out=tmp_path / "m.safetensors", drop_other=True
    )
    assert report.saved is not None and report.saved.format == "safetensors"
    for number in (1, 2, 3):
        torch.save(
            {"w": torch.full((2,), float(number))}, tmp_path / f"step{number}.pth"
        )
    out = tmp_path / "step3.pth"
    report = ckpt.average(tmp_path, last=2, out=out, force=True)
    assert torch.load(out)["w"].tolist() == [1.5, 1.5]


def test_an_open_checkpoint_without_a_path_stays_open_after_a_verdict(
    two: Path,
) -> None:
    with ckpt.open(two.read_bytes()) as given:
        assert (
            ckpt.verify(given).verdict == "intact"
            and ckpt.sum(given, recorded=True).recorded
        )
        assert (
            ckpt.verify(given).verdict == "intact"
            and given["ema.b.bias"].numpy().sum() == 4
        )


@pytest.mark.needs("folders")
def test_the_newest_step(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        torch.save({"w": torch.full((2,), float(number))}, folder / "pytorch_model.bin")
        (folder / "trainer_state.json").write_text("{}")
    report = ckpt.slim(tmp_path, out=tmp_path / "a.pth")
    assert (
        torch.load(tmp_path / "a.pth")["w"].tolist() == [2.0, 2.0]
        and "newest whole step" in report.warnings[0]
    )
    (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
    report = ckpt.slim(tmp_path, out=tmp_path / "b.pth")
    assert (
        torch.load(tmp_path / "b.pth")["w"].tolist() == [1.0, 1.0]
        and "is passed over" in report.warnings[1]
    )


def test_exit_codes_where_something_could_not_be_read() -> None:
    with ckpt.open("truncated.pth", partial=True) as given:
        stats, sums = ckpt.stats(given), ckpt.sum(given)
        assert (
            stats.unread
            and stats.exit_code == 2
            and sums.unread
            and sums.exit_code == 2
        )
        with pytest.raises(ckpt.UnreadableError, match="not compared: "):
            ckpt.diff(given, AFTER)
        assert ckpt.diff(given, AFTER, check=False).unread
    assert ckpt.stats(AFTER).exit_code == 0
    assert (
        ckpt.ls("none.pth").exit_code == 2
        and ckpt.ls("none.pth", skip_unreadable=True).exit_code == 0
    )


def test_a_gate_on_numbers(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"a.weight": torch.tensor([float("nan"), 1.0])}, tmp_path / "a.pt"
    )
    assert (
        ckpt.stats(path).exit_code == 0
        and ckpt.stats(path, fail_on="nan").exit_code == 1
    )


def test_a_file_object_stays_open(tmp_path: Path) -> None:
    data = Path(AFTER).read_bytes()
    for file in (io.BytesIO(data), io.FileIO(AFTER)):
        with file, ckpt.open(file) as given:
            for _ in range(2):
                assert (
                    ckpt.verify(given).verdict == "intact"
                    and ckpt.sum(given, recorded=True).recorded
                )
                assert given["model.module.fc1.bias"].numpy().size
            assert not file.closed


def test_no_descriptor_stays(tmp_path: Path) -> None:
    """A function closes what it opened, and where it fails too."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("no list of descriptors")
    ckpt.strip(AFTER, out=tmp_path / "0.pth")
    # Files of other tests may be closed meanwhile, when Python frees them.
    gc.collect()
    before = len(list(folder.iterdir()))
    reports = [
        ckpt.strip(AFTER, out=tmp_path / f"{number}.pth") for number in (1, 2, 3)
    ]
    for _ in range(3):
        with pytest.raises(ckpt.UsageError):
            ckpt.strip(AFTER, section="no", dry_run=True)
        with pytest.raises(ckpt.UsageError):
            ckpt.strip(AFTER)
    assert len(list(folder.iterdir())) == before and len(reports) == 3


def test_each_thread_has_its_executor() -> None:
    with using_executor(Serial()), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_executor).result() is not current_executor()


def test_a_record_of_a_file_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")
    real = verify.recorded

    def changed(*arguments: Any, **keywords: Any) -> Any:
        result = real(*arguments, **keywords)
        os.utime(path, (1, 1))
        return result

    monkeypatch.setattr(verify, "recorded", changed)
    with (
        ckpt.open(path) as given,
        pytest.raises(ckpt.NotOpenedError, match="changed while it was read"),
    ):
        ckpt.sum(given, recorded=True)


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize(
    "words",
    [
        ("recipe", "a.pth", "b.pth", "-o", "a.pth"),
        ("recipe", "a.pth", "b.pth", "-o", "b.pth"),
        (
            "recipe",
            "sharded",
            "b.pth",
            "-o",
            "sharded/model-00001-of-00002.safetensors",
        ),
        ("average", "a.pth", "b.pth", "-o", "a.pth"),
        ("warmstart", "a.pth", "--into", "b.pth", "-o", "a.pth"),
        ("report", "a.pth", "-o", "a.pth"),
        ("diff", "a.pth", "b.pth", "--html", "b.pth"),
        ("slim", "a.pth", "-o", "."),
        ("rehome", "a.pth", "-o", "a.pth"),
        ("convert", "a.pth", "--like", "b.pth", "-o", "b.pth"),
        (
            "convert",
            "a.pth",
            "--recipe",
            "r.json",
            "--format",
            "safetensors",
            "-o",
            "r.json",
        ),
        ("warmstart", "a.pth", "--into", "b.pth", "--recipe", "r.json", "-o", "r.json"),
        ("salvage", "a.pth", "--fill-from", "b.pth", "-o", "b.pth"),
    ],
)
def test_no_out_replaces_what_is_read(
    words: tuple[str, ...], force: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither is --force the way out, nor does it take the file."""
    for name in ("a.pth", "b.pth"):
        shutil.copy(SAMPLES / "compiled.pth", tmp_path / name)
    shutil.copytree(SAMPLES / "sharded", tmp_path / "sharded")
    if "r.json" in words:
        inside("recipe", "a.pth", "b.pth", "-o", "r.json", cwd=tmp_path)
    before = {
        path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()
    }

    done = inside(*words, *force, cwd=tmp_path)

    assert done.code == 2
    # The files of a folder are known when it was read.
    if force or words[1] != "sharded":
        assert b"--force does not replace" in done.err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("force", [False, True])
def test_no_out_replaces_what_a_keyword_names(force: bool, tmp_path: Path) -> None:
    other = tmp_path / "b.pth"
    shutil.copy(SAMPLES / "compiled.pth", other)
    before = other.read_bytes()

    with pytest.raises(ckpt.UsageError, match="a file that is read, which"):
        ckpt.convert("compiled.pth", like=other, out=other, force=force)

    assert other.read_bytes() == before
