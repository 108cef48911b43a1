"""Reports pickle, and what comes out needs no file: it shows the same, holds no
descriptor and reads nothing.
"""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import accounts
import deepspeeds
import oracle
import pytest
import rewriting
import torch
from accounts import SOURCES, Size
from needs import ABSENT, is_there, readers_of
from process import ROOT, environment, python
from unpickled import Report, descriptors, shown

import ckpt
from ckpt import formats
from ckpt.bytes.executor import Threads
from ckpt.commands.diff.diff import DiffReport, Options
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.commands.ls.ls import LsRow
from ckpt.commands.rename import rename
from ckpt.commands.rewriting.report import Coverage, RewriteReport
from ckpt.commands.slim import slim
from ckpt.commands.stats.stats import stats
from ckpt.commands.verify.verify import VerifyReport, damaged
from ckpt.elements.blocks import elements
from ckpt.elements.boxes import Boxes
from ckpt.elements.computed import Computed, Overlaid
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, Failure, about
from ckpt.model.findings import Finding
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, tensor_of
from ckpt.model.places import Patched, Range
from ckpt.surface.reports import Closed

pytestmark = oracle.QUIET

REFUSED = 6
"""Samples that are no checkpoint, or none that can be read whole; three more
are texts.
"""


def again(report: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(report, protocol))


def of_samples(folder: Path) -> Iterator[Report]:
    shutil.copytree(ROOT / "sample_checkpoints", folder)
    refused = 0
    for path in sorted(folder.iterdir()):
        try:
            report = ckpt.inspect(path)
        except CkptError:
            refused += 1
            continue
        yield report
        yield report.report
        with ckpt.open(path) as opened:
            yield stats(opened.survey, everything=True, threshold=0.1)
    assert refused == REFUSED or ABSENT
    yield ckpt.diff(folder / "ddp_before.pth", folder / "ddp_after.pth")


def of_formats(folder: Path) -> Iterator[Report]:
    """Reports over each format, of few tensors and of so many that a pickle is read in
    columns, and the difference.
    """
    for source in SOURCES:
        if readers_of(source.name) & ABSENT:
            continue
        for count in (3, 2_100):
            if count > 3 and source.name != "torch-zip":
                continue
            inside = folder / f"{source.name} {count}"
            inside.mkdir(parents=True)
            path = source.make(inside, Size(count, False, 0 if source.is_flat else 1))
            report = ckpt.inspect(path)
            yield report
            with ckpt.open(path) as opened:
                yield inspect(opened.survey)  # no row was asked for
            yield ckpt.diff(path, path, atol=0.0)
    yield ckpt.inspect(deepspeeds.write(folder / "deepspeed", 3))
    rewriting.saved(rewriting.in_memory({"w": torch.ones(3)}), folder / "nested.pt")
    yield ckpt.inspect(folder / "nested.pt")


def of_rewrites(folder: Path) -> Iterator[Report]:
    folder.mkdir()
    state = {"a.weight": torch.ones(4, 6), "a.bias": torch.zeros(4), "step": 3}
    grown = {"a.weight": torch.ones(5, 6), "a.bias": torch.zeros(4)}
    one, two = (
        rewriting.saved(state, folder / "one.pt"),
        rewriting.saved(grown, folder / "two.pt"),
    )
    with ckpt.open(one) as old, ckpt.open(two) as new, formats.open(str(one)) as plain:
        yield rename.rename(old.survey, [rename.substitution("s/^a/b/")], Limits())
        yield slim.slim(old.survey, Limits())
        yield rewriting.convert(plain, "safetensors", dtype="bfloat16", drop_other=True)
        if is_there("average"):
            from ckpt.ext.average import average

            yield average.average(
                [old.survey], Survey(plain), Limits(), average.Options(drop_other=True)
            )
        if is_there("warmstart"):
            from ckpt.ext.warmstart import warmstart

            warm = warmstart.warmstart(
                old.survey, new.survey, Limits(), warmstart.Options("slice")
            )
            yield warm
            assert warm.coverage is not None
            yield warm.coverage
    if is_there("live"):
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(6, 4)})
        yield rewriting.filled(model, one)


MAKERS: dict[str, Callable[[Path], Iterator[Report]]] = {
    "samples": of_samples,
    "formats": of_formats,
    "rewrites": of_rewrites,
}
COUNTS = {"samples": 82, "formats": 53, "rewrites": 7}


class Made(NamedTuple):
    """Reports, and their pickles from the time when nothing was asked of them. `here`
    shows both while the files were there.
    """

    reports: list[Report]
    pickles: list[bytes]
    here: tuple[list[str], list[str]]
    folder: Path
    """The folder of the files. It is gone."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    done: dict[str, Made] = {}

    def of(name: str) -> Made:
        if name not in done:
            folder = tmp_path_factory.mktemp("reports") / name
            reports, pickles = [], []
            for report in MAKERS[name](folder):
                reports.append(report)
                pickles.append(
                    pickle.dumps(report, (2, pickle.HIGHEST_PROTOCOL)[len(pickles) % 2])
                )
            copied = [shown(pickle.loads(data)) for data in pickles]
            here = [shown(report) for report in reports]
            shutil.rmtree(folder)
            done[name] = Made(reports, pickles, (here, copied), folder)
        return done[name]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_shows_the_same(name: str, made: Any, tmp_path: Path) -> None:
    """Here beside the files, and in another process without them. HTML has commands
    only for files that are there.
    """
    reports, pickles, (here, copied), folder = made(name)
    assert copied == here
    assert len(reports) == COUNTS[name]
    (tmp_path / "pickles").write_bytes(pickle.dumps(pickles))

    ran = python(
        ROOT / "tests/lib/unpickled.py",
        tmp_path / "pickles",
        folder,
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests/lib'}"),
    )

    assert ran.code == 0, ran.err.decode()
    answer = json.loads(ran.out)
    assert answer["opened"] == [] and answer["left"] == 0
    assert answer["shown"] == [shown(report) for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_of_the_file_is_imported(name: str, made: Any) -> None:
    class Names(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add(f"{module}.{name}")
            return super().find_class(module, name)

    found: set[str] = set()
    for report in made(name).reports:
        rebuild, (make, data) = report.__reduce__()
        assert rebuild.__module__ == "ckpt.surface.reports" and make is type(report)
        Names(io.BytesIO(data)).load()
    assert found and all(
        name.startswith("ckpt.") for name in found - {"builtins.list"}
    ), found
    assert not any("File" in name or "reopened" in name for name in found)


def checkpoints(report: Report) -> list[Checkpoint]:
    if isinstance(report, Coverage):
        return []
    if isinstance(report, DiffReport):
        return [report.before, report.after]
    return (
        [report.source, report.result]
        if isinstance(report, RewriteReport)
        else [report.checkpoint]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_reads_are_refused(name: str, made: Any) -> None:
    places: set[type] = set()
    for report in made(name).reports:
        before = descriptors()
        copied = again(report)
        assert descriptors() == before
        for checkpoint in checkpoints(copied):
            with pytest.raises(CkptError) as unchanged:
                checkpoint.check_unchanged()
            assert str(unchanged.value).endswith(": the checkpoint is closed")
            for entry in checkpoint.tensors[:8]:
                for _, part in getattr(entry.tensor, "parts", ()) or [
                    ("", entry.tensor)
                ]:
                    place = part.storage.place
                    if not part.numel or place is None:
                        continue
                    places.add(type(place))
                    assert all(
                        type(source) is Closed for source in place.list_sources()
                    )
                    with pytest.raises(CkptError, match="the checkpoint is closed"):
                        b"".join(elements(part))
    wanted = {
        "formats": {Range, Boxes, Patched},
        "rewrites": {Range, Computed},
        "samples": {Range, Boxes},
    }
    if is_there("average"):
        from ckpt.ext.average.mean import Mean

        wanted["rewrites"].add(Mean)
    if is_there("warmstart"):
        wanted["rewrites"].add(Overlaid)
    assert places >= wanted[name]


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = rewriting.saved({"w": torch.ones(3)}, tmp_path / "a.pt")
    report = ckpt.inspect(path)
    place = again(report).checkpoint.storages[0].place
    path.write_bytes(b"changed")

    source = again(report).checkpoint.sources[0]
    assert (source.name, source.size, source.status) == (
        str(path),
        report.checkpoint.nbytes,
        None,
    )
    for read in (
        partial(source.read, 0, 1),
        partial(source.read_into, 0, memoryview(bytearray(1))),
        partial(place.source.read_many, [(0, 1)]),
        source.check_unchanged,
    ):
        with pytest.raises(CkptError) as error:
            read()
        assert str(error.value) == f"{path}: the checkpoint is closed"


def test_memory_has_no_path(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    coverage = again(
        rewriting.filled(model, rewriting.saved(model.state_dict(), tmp_path / "a.pt"))
    )
    (source,) = coverage.pairings[0].target.tensor.storage.place.list_sources()
    with pytest.raises(CkptError) as error, about("the model"):
        source.read(0, 1)
    assert str(error.value) == "the model: the checkpoint is closed"


@pytest.mark.parametrize("count", [3, 2_100])
def test_identity(count: int, tmp_path: Path) -> None:
    """One object stays one object: tensors of the tree, of the flat views and of
    sections, and their storages.
    """
    state: dict[str, Any] = dict(accounts.weights(Size(count, False, 0)))
    state["tied.weight"] = state["layers.0.weight"]
    state["view"] = state["layers.0.weight"][1:]
    with ckpt.open(rewriting.saved({"model": state}, tmp_path / "a.pt")) as opened:
        for report in (inspect(opened.survey), again(inspect(opened.survey))):
            checkpoint = report.checkpoint
            entries = list(checkpoint.tensors)
            rows = {
                entry.name.removeprefix("model."): entry.tensor for entry in entries
            }
            assert len(rows) == count + 2 == len(checkpoint.storages) + 2
            assert (
                rows["tied.weight"].storage
                is rows["layers.0.weight"].storage
                is rows["view"].storage
            )
            assert {id(ref.storage) for ref in rows.values()} == set(
                map(id, checkpoint.storages)
            )
            (inner,) = checkpoint.root.values
            assert type(inner) is Dict
            assert set(map(id, map(tensor_of, inner.values))) == set(
                map(id, rows.values())
            )
            assert [id(row.entry) for row in report.rows] == list(map(id, entries))
            assert [id(entry) for entry in report.sections[0].entries] == list(
                map(id, entries)
            )
            assert report.rows[0].section is report.sections[0]
            assert report.survey.checkpoint is checkpoint
            assert next(use.kind for use in report.storages) == "overlapping"


@pytest.mark.slow
def test_a_hundred_thousand_tensors(tmp_path: Path) -> None:
    path = rewriting.saved(
        {f"l.{n}.weight": torch.ones(1) for n in range(100_000)}, tmp_path / "a.pt"
    )
    report = ckpt.inspect(path)
    path.unlink()

    data = pickle.dumps(report)
    copied = pickle.loads(data)

    assert len(data) < 300 * len(report) and len(copied) == 100_000
    assert dict(copied) == dict(report) and repr(copied) == repr(report)
    assert (copied.sections, copied.findings, copied.load) == (
        report.sections,
        report.findings,
        report.load,
    )


def test_copies(tmp_path: Path) -> None:
    path = rewriting.saved({"w": torch.ones(3)}, tmp_path / "a.pt")
    with ckpt.open(path) as opened:
        report = ckpt.inspect(opened)
        reports: list[Any] = [
            report,
            report.report,
            ckpt.diff(opened, opened),
            stats(opened.survey),
        ]
        reports += [rewriting.convert(opened.checkpoint, "safetensors")]
        path.unlink()
        for one in reports:
            assert copy.copy(one) is one
            deep = copy.deepcopy(one)
            assert (
                type(deep) is type(one)
                and deep is not one
                and shown(deep) == shown(one)
            )
            assert all(
                type(row) is Closed
                for side in checkpoints(deep)
                for row in side.sources
            )
        assert opened["w"].torch().tolist() == [1, 1, 1]  # the original still reads


def test_options_without_what_cannot_travel(tmp_path: Path) -> None:
    path = rewriting.saved({"w": torch.ones(3)}, tmp_path / "a.pt")
    options = Options(
        tolerance=lambda dtype: (0.0, 0.0),
        rules=[lambda name: name],
        progress=lambda count: None,
        executor=Threads(1),
        norms=True,
        section="",
    )
    report = again(ckpt.diff(path, path)._replace(options=options))
    assert (
        report.options == Options(norms=True, section="") and report.options.rules == ()
    )


def test_plain_reports() -> None:
    finding = Finding("cuda", "A fact.", ("w",), "ckpt rehome a.pt")
    rows: list[Any] = [
        LsRow("a.pt", findings=(finding,)),
        damaged("a.pt", "cut off", ["a"], ["b"]),
    ]
    if is_there("lint"):
        failure = Failure("cut-off", "cut off")
        rows.insert(0, ckpt.FileReport("a.pt", (finding,), failure))
    for row in rows:
        for copied in (again(row, 2), again(row), copy.copy(row), copy.deepcopy(row)):
            assert (
                type(copied) is type(row)
                and copied == row
                and copied.to_json() == row.to_json()
            )
    assert isinstance(rows[-1], VerifyReport)


def test_keys_that_are_no_text(tmp_path: Path) -> None:
    state = {(0, 1): 1, 2.5: {"w": torch.ones(2)}, b"raw": 3, None: 4}
    report = ckpt.inspect(rewriting.saved(state, tmp_path / "a.pt"))
    copied = again(report)
    assert [
        (row.path, [getattr(key, "kind", None) for key in row.path])
        for row in copied.checkpoint.values
    ] == [
        (row.path, [getattr(key, "kind", None) for key in row.path])
        for row in report.checkpoint.values
    ]
    assert shown(copied) == shown(report)


def deep(report: Inspection, depth: int) -> Inspection:
    """The report with lists inside of lists in its tree."""
    node: Any = []
    for _ in range(depth):
        node = [node]
    assert isinstance(report.checkpoint.root, Dict)
    report.checkpoint.root.set(["deep"], [node])
    return report


def test_nested_too_deep(tmp_path: Path) -> None:
    path = rewriting.saved({"w": torch.ones(2)}, tmp_path / "a.pt")
    report = ckpt.inspect(path)
    deep(report.report, 100_000)
    for one in (report, report.report):
        with pytest.raises(CkptError) as error:
            pickle.dumps(one)
        assert (
            str(error.value)
            == f"{path}: the checkpoint is nested too deep to pickle a report on it"
        )


def test_as_deep_as_the_limit(tmp_path: Path) -> None:
    state: Any = {"w": torch.ones(2)}
    for _ in range(Limits().depth - 10):
        state = {"a": state}
    state["again"] = state  # a circle
    report = ckpt.inspect(rewriting.saved(state, tmp_path / "a.pt"))
    copied = again(report)
    assert (
        copied.to_json() == report.to_json()
        and copied._repr_html_() == report._repr_html_()
    )
    root = copied.checkpoint.root
    assert root.values[root.keys.index("again")] is root


def test_pool(tmp_path: Path) -> None:
    paths = [
        str(ROOT / "sample_checkpoints" / name)
        for name in ("hostile.pth", "train_cuda.pth")
    ]
    before = descriptors()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        reports = pool.map(ckpt.inspect, paths)
        pool.close()
        pool.join()
    assert [shown(report) for report in reports] == [
        shown(ckpt.inspect(path)) for path in paths
    ]
    del pool
    assert descriptors() <= before + 1  # the tracker of resources
