"""The keywords of the functions reach the work: limits, plugins, progress, selections,
refusals.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rewriting
import torch
from inside import folder_of, inside
from process import SAMPLES

import ckpt
from ckpt import formats
from ckpt.bytes.executor import Serial, current_executor, using_executor
from ckpt.commands.ls.api import Listing
from ckpt.surface.api.keywords import gate_of
from ckpt.surface.api.progress import Meter

AFTER, BEFORE, CUDA = "ddp_after.pth", "ddp_before.pth", "train_cuda.pth"


def plain(document: Any) -> Any:
    if isinstance(document, dict):
        return {
            key: plain(value)
            for key, value in document.items()
            if key not in ("seconds", "verified")
        }
    return [plain(row) for row in document] if isinstance(document, list) else document


def of_extension(name: str) -> Callable[..., Any]:
    """A public function that is looked up when it is called: it may be gone."""
    return lambda *arguments, **keywords: getattr(ckpt, name)(*arguments, **keywords)


CASES: list[tuple[tuple[str, ...], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (("inspect", AFTER, "--exclude", "*weight*"), ckpt.inspect, (AFTER,), {"exclude": "*weight*"}),
    (("inspect", AFTER, "--section", "model", "--index", "0 3"), ckpt.inspect, (AFTER,), {"section": "model", "index": "0 3"}),
    (("inspect", AFTER, "--select", "prefix"), ckpt.inspect, (AFTER,), {"select": "prefix"}),
    (("inspect", AFTER, "--ignore", "prefix"), ckpt.inspect, (AFTER,), {"ignore": "prefix"}),
    (("diff", AFTER, BEFORE, "--ignore", "frozen"), ckpt.diff, (AFTER, BEFORE), {"ignore": "frozen"}),
    (("stats", AFTER, "--all", "--section", "model"), ckpt.stats, (AFTER,), {"all": True, "section": "model"}),
    (("stats", AFTER, "--select", "dead-channels"), ckpt.stats, (AFTER,), {"select": "dead-channels"}),
    (("sum", "truncated.pth", "--recorded"), ckpt.sum, ("truncated.pth",), {"recorded": True}),
    (("verify", AFTER, "--like", BEFORE, "--section", "model"), ckpt.verify, (AFTER,), {"like": BEFORE, "section": "model"}),
    (("verify", AFTER, "--like", CUDA), ckpt.verify, (AFTER,), {"like": CUDA}),
    (("ls", AFTER, "--select", "prefix"), ckpt.ls, (AFTER,), {"select": "prefix"}),
    (("ls", AFTER, "--sort", "no"), ckpt.ls, (AFTER,), {"sort": "no"}),
    (("lint", "README.md", AFTER, "--skip-others"), of_extension("lint"), (["README.md", AFTER],), {"skip_others": True}),
    (("rehome", CUDA, "--map", "cuda:0=cuda:1"), ckpt.rehome, (CUDA,), {"map": "cuda:0=cuda:1"}),
    (("strip", AFTER, "--section", "no", "--dry-run"), ckpt.strip, (AFTER,), {"section": "no", "dry_run": True}),
    (("slim", AFTER, "--like", CUDA, "--dry-run"), ckpt.slim, (AFTER,), {"like": CUDA, "dry_run": True}),
    (("convert", AFTER, "--weights", "ema", "--section", "model", "--dry-run"), ckpt.convert, (AFTER,), {"weights": "ema", "section": "model", "dry_run": True}),
    (("convert", AFTER, "--shard-size", "0", "--dry-run"), ckpt.convert, (AFTER,), {"shard_size": 0, "dry_run": True}),
    (("convert", AFTER, "--shard-size", "9", "--format", "dcp", "--dry-run"), ckpt.convert, (AFTER,), {"shard_size": 9, "format": "dcp", "dry_run": True}),
    (("convert", AFTER, "--ranks", "2", "--dry-run"), ckpt.convert, (AFTER,), {"ranks": 2, "dry_run": True}),
    (("convert", "weights.safetensors", "--format", "dcp", "--dry-run"), ckpt.convert, ("weights.safetensors",), {"format": "dcp", "dry_run": True}),
    (("strip", AFTER, "--link", "--dry-run"), ckpt.strip, (AFTER,), {"link": True, "dry_run": True}),
    (("salvage", "dcp_interrupted", "--dry-run"), of_extension("salvage"), ("dcp_interrupted",), {"dry_run": True}),
    (("average", AFTER, BEFORE, "--ratios", "1,2,3", "--dry-run"), of_extension("average"), ([AFTER, BEFORE],), {"ratios": [1, 2, 3], "dry_run": True}),
    (("average", AFTER, BEFORE, "--verify", "none", "--dry-run"), of_extension("average"), ([AFTER, BEFORE],), {"verify": "none", "dry_run": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(case[0]).replace("/", "")
)
def test_the_answer_is_that_of_the_command(case: Any) -> None:
    """The document, and where the command refuses, the problem and the hint of its
    error.
    """
    words, function, arguments, keywords = case
    done = inside(*words, "--json", cwd=SAMPLES)
    with folder_of(SAMPLES):
        try:
            report = function(*arguments, **keywords)
        except ckpt.CkptError as error:
            assert done.code == 2
            if done.out:
                assert (
                    json.loads(done.out)["error"]["message"]
                    == error.failure(str(error.path))[1]
                )
            else:
                assert error.problem in done.err.decode()
            return
    found = plain(json.loads(json.dumps(report.to_json())))
    expected = [plain(json.loads(line)) for line in done.out.decode().splitlines()]
    assert (
        found if isinstance(found, list) else [found]
    ) == expected and report.exit_code == done.code


READERS: list[Callable[..., Any]] = [
    ckpt.inspect,
    ckpt.stats,
    ckpt.sum,
    ckpt.verify,
    ckpt.ls,
    lambda path, **keywords: ckpt.diff(path, BEFORE, **keywords),
    lambda path, **keywords: ckpt.diff(BEFORE, path, structure=True, **keywords),
    lambda path, **keywords: ckpt.verify(path, like=BEFORE, **keywords),
    lambda path, **keywords: ckpt.sum(path, recorded=True, **keywords),
]
WRITERS: list[Callable[..., Any]] = [
    ckpt.rehome,
    ckpt.strip,
    ckpt.slim,
    ckpt.convert,
    of_extension("salvage"),
    lambda path, **keywords: ckpt.slim(path, like=BEFORE, **keywords),
    lambda path, **keywords: ckpt.warmstart(BEFORE, into=path, **keywords),
    lambda path, **keywords: ckpt.warmstart(path, into=BEFORE, **keywords),
    lambda path, **keywords: ckpt.average([path, BEFORE], **keywords),
    lambda path, **keywords: ckpt.salvage(path, fill_from=BEFORE, **keywords),
]


@pytest.mark.parametrize("call", [*READERS, *WRITERS])
def test_limits_and_plugins_count_for_each_file(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the call, else those of the open checkpoint."""
    real = formats.open
    seen: list[tuple[Any, Any]] = []

    def opened(location: Any, limits: Any = None, **keywords: Any) -> Any:
        seen.append((limits, keywords.get("plugins")))
        return real(location, limits, **keywords)

    monkeypatch.setattr(formats, "open", opened)
    monkeypatch.chdir(SAMPLES)
    limits = ckpt.Limits(depth=199)
    more = {"dry_run": True} if call in WRITERS else {}
    call(AFTER, limits=limits, plugins=True, **more)
    assert set(seen) <= {(limits, True)}
    with (
        pytest.raises(ckpt.LimitError)
        if call not in (ckpt.verify, ckpt.ls)
        else folder_of(SAMPLES)
    ):
        report = call(AFTER, limits=ckpt.Limits(operations=10, entries=1), **more)
        assert report.exit_code == 2
    if call in WRITERS:
        with ckpt.open(AFTER, limits=limits, plugins=True) as given:
            for function in (ckpt.salvage, ckpt.warmstart):
                seen.clear()
                other = (
                    {"fill_from": BEFORE}
                    if function is ckpt.salvage
                    else {"into": BEFORE}
                )
                function(given, dry_run=True, **other)  # type: ignore[arg-type]
                assert seen and set(seen) == {(limits, True)}


def test_progress_gets_all_bytes_and_ends() -> None:
    for call in (
        lambda progress: ckpt.verify(AFTER, progress=progress),
        lambda progress: ckpt.diff(AFTER, BEFORE, structure=True, progress=progress),
        lambda progress: ckpt.sum(AFTER, include="*fc1*", progress=progress),
        lambda progress: ckpt.ls([AFTER, BEFORE], progress=progress),
        lambda progress: ckpt.lint([AFTER, BEFORE], progress=progress),
    ):
        seen: list[tuple[int, int]] = []
        with folder_of(SAMPLES):
            call(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1] > 0 and seen == sorted(seen)
    meter = Meter(lambda done, total: seen.append((done, total)), 5)
    meter(9)
    assert seen[-1] == (5, 5)
    with folder_of(SAMPLES):
        totals: set[int] = set()
        ckpt.diff(AFTER, BEFORE, progress=lambda _, total: totals.add(total))
        assert totals == {
            ckpt.open(AFTER).checkpoint.nbytes + ckpt.open(BEFORE).checkpoint.nbytes
        }


def test_hints_cost_nothing_when_they_are_not_asked_for() -> None:
    with folder_of(SAMPLES):
        for hints in (False, True):
            for findings in (
                ckpt.inspect(AFTER, hints=hints).findings,
                ckpt.ls(AFTER, hints=hints)[0].findings,
                ckpt.lint(AFTER, hints=hints).findings,
            ):
                assert findings and any(row.hint for row in findings) is hints


def test_an_order_that_is_none(tmp_path: Path) -> None:
    gate = gate_of("ls", (), (), None, ())
    with pytest.raises(
        ckpt.UsageError, match='sort="no": not one of name size params findings'
    ):
        Listing(
            [tmp_path],
            gate,
            "no",
            skip_unreadable=False,
            hints=True,
            limits=None,
            plugins=False,
        )
    assert ckpt.ls([]).exit_code == 0 and ckpt.lint().exit_code == 0


def test_a_path_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(SAMPLES / AFTER, tmp_path / "a.pth")
    assert ckpt.inspect("~/a.pth").path == str(tmp_path / "a.pth")
    assert (
        ckpt.ls("~/a.pth")[0].error is None
        and ckpt.lint("~/a.pth").files[0].error is None
    )


def test_exit_codes_of_what_is_written(tmp_path: Path) -> None:
    with folder_of(SAMPLES):
        report = ckpt.warmstart(
            "weights.safetensors",
            into=AFTER,
            out=tmp_path / "a.pth",
            min_coverage=0.9,
            check=False,
        )
        assert (
            report.exit_code == 1
            and report.path is None
            and not list(tmp_path.iterdir())
        )
        report = ckpt.warmstart(BEFORE, into=AFTER, print_code=True)
        assert report.code and report.path is None and report.exit_code == 0
        assert (
            ckpt.rehome("truncated.pth", partial=True, out=tmp_path / "b.pth").exit_code
            == 1
        )
        with pytest.raises(ckpt.UsageError, match="download it first"):
            ckpt.warmstart("https://example.org/a.pth", into=AFTER, dry_run=True)


def test_damaged_bytes_are_told_and_counted(tmp_path: Path) -> None:
    path = rewriting.saved({"a.weight": torch.ones(30)}, tmp_path / "a.pt")
    path.write_bytes(
        path.read_bytes().replace(torch.ones(30).numpy().tobytes(), bytes(120))
    )
    assert ckpt.verify(path).exit_code == 1
    report = ckpt.convert(path, out=tmp_path / "b.safetensors", keep_damaged=True)
    assert (
        report.exit_code == 1
        and "is damaged: the bytes do not match" in report.warnings[-1]
    )


def test_the_executor_of_a_block() -> None:
    """It counts in the block alone, and without one nothing changes."""
    serial = Serial()
    with using_executor(serial):
        with using_executor(None):
            assert current_executor() is serial
        with using_executor(Serial()):
            assert current_executor() is not serial
        assert current_executor() is serial
    assert current_executor() is not serial


def test_the_work_goes_to_the_executor_of_the_block() -> None:
    class Counted(Serial):
        runs = 0

        def run(self, tasks: Any, progress: Any = None) -> Any:
            Counted.runs += 1
            return super().run(tasks, progress)

    with folder_of(SAMPLES):
        for call in (
            ckpt.stats,
            ckpt.sum,
            ckpt.verify,
            lambda path: ckpt.diff(path, BEFORE),
        ):
            Counted.runs = 0
            with using_executor(Counted()):
                call(AFTER)
            assert Counted.runs


def test_keywords_that_exclude_each_other() -> None:
    with folder_of(SAMPLES):
        with pytest.raises(
            ckpt.UsageError, match="close= and atol= or rtol= exclude each other"
        ):
            ckpt.diff(AFTER, BEFORE, close=True, rtol=1.0)
        for keywords in ({"all": True}, {"include": "*"}, {"section": "model"}):
            with pytest.raises(
                ckpt.UsageError, match="recorded= lists all of a checkpoint"
            ):
                ckpt.sum(AFTER, recorded=True, **keywords)  # type: ignore[arg-type]
        with pytest.raises(
            ckpt.UsageError, match="quick= cannot decide: checksums are missing"
        ):
            ckpt.diff("legacy.pth", "legacy.pth", quick=True)
        assert not ckpt.diff("legacy.pth", "legacy.pth", quick=True, check=False).same
        with pytest.raises(ckpt.UsageError, match="arg= goes with model="):
            ckpt.inspect(AFTER, arg="3")


def test_files_and_settings_of_lint(tmp_path: Path) -> None:
    for name in ("a10.pt", "a9.pt"):
        torch.save(
            {"module.w": torch.tensor([float("nan")]), "module.b": torch.ones(1)},
            tmp_path / name,
        )
    (tmp_path / "empty").mkdir()
    report = ckpt.lint(
        [tmp_path / "a10.pt", tmp_path / "a9.pt", tmp_path / "empty"], require=True
    )
    assert [Path(row.path).name for row in report.files] == ["a9.pt", "a10.pt", "empty"]
    assert report.exit_code == 2 and report.config == ""
    table = tmp_path / "pyproject.toml"
    found = {finding.code for finding in ckpt.lint(tmp_path / "a9.pt").findings}
    assert "prefix" in found and "nan" not in found
    table.write_text(
        '[tool.ckpt.lint]\nignore = ["prefix"]\nread-values = true\nlevel = "info"'
    )
    ruled = ckpt.lint(tmp_path / "a9.pt", config=table)
    assert "nan" in {
        finding.code for finding in ruled.findings
    } and ruled.config == str(table)
    assert not any(finding.code == "prefix" for finding in ruled.findings)
    assert ckpt.lint(tmp_path / "a9.pt", fail_on="error").exit_code == 0
    assert ckpt.lint(tmp_path / "a9.pt").exit_code == 1
    table.write_text('[tool.ckpt.lint]\nignore = ["no-code"]')
    with pytest.raises(ckpt.UsageError, match=r"\[tool.ckpt.lint\] ignore no-code"):
        ckpt.lint(tmp_path / "a9.pt", config=table)
    (row,) = ckpt.lint(model=torch.nn.Linear(1, 1), model_name="mine").files
    assert row.path == "mine"


def test_lines_of_sums() -> None:
    with folder_of(SAMPLES):
        for recorded in (False, True):
            report = ckpt.sum(AFTER, recorded=recorded)
            one, several = report.lines(), report.lines(several=True)
            assert (
                one != several
                and AFTER not in "".join(one)
                and AFTER in "".join(several)
            )
