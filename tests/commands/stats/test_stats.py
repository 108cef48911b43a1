"""`ckpt stats` against torch in float64, and dead channels exactly where they were
made.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import rewriting
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from process import SAMPLES, check_error, ckpt
from torch import nn

import ckpt as library
from ckpt import formats
from ckpt.bytes.executor import Serial
from ckpt.bytes.source import File
from ckpt.commands.stats.stats import StatsReport, stats
from ckpt.evidence.survey import Survey
from ckpt.model.names import Globs

pytestmark = oracle.QUIET


def of(thing: Any, folder: Path, **options: Any) -> StatsReport:
    with formats.open(str(rewriting.saved(thing, folder / "a.pt"))) as checkpoint:
        return stats(Survey(checkpoint), **options)


_DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128",
]  # fmt: skip


@given(st.data())
@settings(max_examples=many(37, 150))
def test_numbers_are_torchs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stats")
    dtype = getattr(torch, data.draw(st.sampled_from(_DTYPES)))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    size = data.draw(st.sampled_from([1, 2, 7, 300, 5000]))
    wide = torch.randn(size, dtype=torch.float64) * 50 + data.draw(
        st.sampled_from([0, 1000])
    )
    wide[torch.rand(size) < 0.2] = 0
    base = (wide.to(torch.complex128) * (1 + 2j) if dtype.is_complex else wide).to(
        dtype
    )
    if dtype.is_floating_point and dtype.itemsize > 1 and data.draw(st.booleans()):
        base[torch.rand(size) < 0.1] = float("nan")
        base[torch.rand(size) < 0.1] = float("-inf")
    tensor = data.draw(strategies.views(base)) if dtype.itemsize > 1 else base
    block = data.draw(st.sampled_from([1, 3, 64, 1 << 17]))

    with mock.patch("ckpt.elements.spans.ELEMENTS", block):
        report = of({"a.weight": tensor, "z.weight": torch.ones(1)}, folder)

    row = next(row for row in report.rows if row.label == "a.weight")
    found = row.found
    assert found is not None
    values = (
        tensor.to(torch.complex128).abs()
        if dtype.is_complex
        else tensor.to(torch.float64)
    )
    finite = values[values.isfinite()]
    assert (found.numel, found.finite) == (values.numel(), finite.numel())
    assert (found.nan, found.inf) == (
        int(values.isnan().sum()),
        int(values.isinf().sum()),
    )
    assert found.zeros == int((values == 0).sum())
    if not finite.numel():
        assert (found.low, found.high, row.mean, row.rms, row.std) == (None,) * 5
        return
    near = {"rel": 1e-6 if dtype == torch.complex64 else 1e-9, "abs": 1e-12}
    assert found.low == pytest.approx(
        finite.min().item(), **near
    ) and found.high == pytest.approx(finite.max().item(), **near)
    near = {"rel": 1e-6, "abs": 1e-9}
    assert row.mean == pytest.approx(finite.mean().item(), **near)
    assert row.rms == pytest.approx(finite.square().mean().sqrt().item(), **near)
    if finite.numel() > 1:
        assert row.std == pytest.approx(finite.std().item(), rel=1e-6, abs=1e-5)
    else:
        assert row.std is None


def test_integers_are_exact(tmp_path: Path) -> None:
    (row,) = of({"a.weight": torch.tensor([2**62 + 1, -(2**63)])}, tmp_path).rows
    assert row.found is not None and (row.found.low, row.found.high) == (
        -(2**63),
        2**62 + 1,
    )


def test_a_view_that_repeats(tmp_path: Path) -> None:
    (row,) = of(
        {"a.weight": torch.tensor([0.0, 3.0]).reshape(2, 1).expand(2, 10**9)}, tmp_path
    ).rows
    assert row.found is not None and (row.found.numel, row.found.zeros, row.mean) == (
        2 * 10**9,
        10**9,
        1.5,
    )


def test_what_has_no_numbers(tmp_path: Path) -> None:
    report = of(
        {
            "a.weight": torch.ones(2, device="meta"),
            "b.weight": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
            "c.weight": torch.sparse_coo_tensor(
                [[1]], [2.0], (4,), check_invariants=False
            ),
            "d.weight": torch.zeros(0),
        },
        tmp_path,
    )
    assert {row.label: row.why for row in report.rows} == {
        "a.weight": "on meta, without data",
        "b.weight": "quantized",
        "c.weight": "the values that are stored",
        "d.weight": "",
    }
    assert report.rows[2].found is not None and report.rows[2].found.numel == 1


# --- channels -------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.plain = nn.Conv2d(8, 6, 3, bias=False)
        self.deep = nn.Conv3d(2, 4, 2)
        self.line = nn.Conv1d(3, 5, 2, groups=1)
        self.up = nn.ConvTranspose2d(8, 5, 2)
        self.square = nn.ConvTranspose2d(4, 4, 2)
        self.up_square = nn.ConvTranspose2d(4, 4, 2)
        self.fc = nn.Linear(5, 7)
        self.embed = nn.Embedding(9, 4)
        self.layer_norm = nn.LayerNorm(4)


def killed() -> tuple[Net, dict[str, list[int]]]:
    net = Net()
    with torch.no_grad():
        net.conv.weight[[1, 5]] = 0
        net.norm.weight[2] = 1e-5
        net.plain.weight[0] *= 1e-5
        net.deep.weight[3] = 0
        net.up.weight[:, 4] = 0
        net.square.weight[:, 1] = 0
        net.fc.weight[6] = 0
        net.fc.weight[0] *= 0.01  # small, and alive
        net.embed.weight[0] = 0  # a word that nobody uses
        net.layer_norm.weight[1] = 0
    dead = {
        "conv": [1, 5],
        "norm": [2],
        "plain": [0],
        "deep": [3],
        "up": [4],
        "fc": [6],
    }
    return net, dead


def found(report: StatsReport) -> dict[str, list[int]]:
    return {
        row.label.removesuffix(".weight"): list(row.channels.dead)
        for row in report.rows
        if row.channels is not None and row.channels.dead
    }


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("command", ["stats", "lint"])
def test_a_channel_with_inf_or_nan_makes_no_other_dead(
    command: str, value: float, tmp_path: Path
) -> None:
    """The others are compared with the largest channel whose numbers are finite."""
    options = {"stats": ["--channels"], "lint": ["--read-values", "--no-config"]}[
        command
    ]
    weight = torch.ones(6, 4)
    weight[3, 1] = value
    torch.save({"fc.weight": weight}, tmp_path / "alive.pth")
    weight[4] = 1e-6
    torch.save({"fc.weight": weight}, tmp_path / "dead.pth")

    done = ckpt(command, tmp_path / "alive.pth", *options)
    assert b"dead-channels" not in done.out, done
    done = ckpt(command, tmp_path / "dead.pth", *options)
    assert b"1 output channel is almost zero: fc.weight 4 (1 of 6)" in done.out, done


@pytest.mark.parametrize("elements", [7, 1 << 17])
def test_dead_channels_are_exactly_those_that_were_made(
    elements: int, tmp_path: Path
) -> None:
    net, dead = killed()

    with mock.patch("ckpt.elements.spans.ELEMENTS", elements):
        report = of(net.state_dict(), tmp_path, threshold=1e-3)

    # A square weight could be either: nothing is said of one whose name does not tell.
    assert found(report) == dead
    unsure = [
        row.label
        for row in report.rows
        if row.channels is not None and row.channels.axis is None
    ]
    assert unsure == ["square.weight", "up_square.weight"]
    (finding,) = report.findings
    assert finding.code == "dead-channels" and "7 output channels" in finding.message
    assert {name.removesuffix(".weight") for name in finding.tensors} == dead.keys()


@pytest.mark.parametrize("how", ["module", "snapshot"])
def test_classes_decide_where_a_file_says_them(how: str, tmp_path: Path) -> None:
    net, dead = killed()
    path = tmp_path / "a.pt"
    if how == "module":
        rewriting.saved(net, path)
    else:
        library.snapshot(net, path)
    with formats.open(str(path)) as checkpoint:
        report = stats(Survey(checkpoint), threshold=1e-3)

    assert found(report) == {**dead, "square": [1]}
    assert all(
        row.channels.axis is not None for row in report.rows if row.channels is not None
    )


def test_thresholds(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        net[0].weight[:] = torch.tensor([1.0, 0.05, 0.5]).reshape(3, 1)
    assert found(of(net.state_dict(), tmp_path, threshold=0.1)) == {"0": [1]}
    assert found(of(net.state_dict(), tmp_path, threshold=0.01)) == {}
    with torch.no_grad():
        net[0].weight[:] = 0
    assert found(of(net.state_dict(), tmp_path, threshold=0.01)) == {"0": [0, 1, 2]}
    assert of(net.state_dict(), tmp_path).findings == ()
    with torch.no_grad():
        net[0].weight[:] = float("nan")
    assert found(of(net.state_dict(), tmp_path, threshold=0.01)) == {}


# --- the command ----------------------------------------------------------------------


def test_sorting_and_selecting(tmp_path: Path) -> None:
    state = {
        "a.2.weight": torch.ones(2) * 5,
        "a.10.weight": torch.zeros(2),
        "b.weight": torch.ones(2) * -7,
    }
    assert [row.label for row in of(state, tmp_path).rows] == [
        "a.2.weight",
        "a.10.weight",
        "b.weight",
    ]
    assert [row.label for row in of(state, tmp_path, sort="rms").rows] == [
        "b.weight",
        "a.2.weight",
        "a.10.weight",
    ]
    assert [row.label for row in of(state, tmp_path, select=Globs(["a.*"])).rows] == [
        "a.2.weight",
        "a.10.weight",
    ]
    assert of(state, tmp_path).sparsity == (2, 6)
    assert {name: zeros for name, zeros, _ in of(state, tmp_path).modules()} == {
        "a.2": 0,
        "a.10": 2,
        "b": 0,
    }


def test_forms_and_codes(tmp_path: Path) -> None:
    good = rewriting.saved(
        {"a.weight": torch.ones(2), "b.weight": torch.zeros(3)}, tmp_path / "a.pt"
    )
    bad = rewriting.saved(
        {"a.weight": torch.tensor([1.0, math.nan, math.inf])}, tmp_path / "b.pt"
    )

    assert ckpt("stats", good, "--fail-on", "nan,inf").code == 0
    assert (
        ckpt("stats", bad, "--fail-on", "nan").code == 1
        and ckpt("stats", bad).code == 0
    )
    assert ckpt("stats", good, bad, tmp_path / "none.pt", "--fail-on", "nan").code == 2
    assert ckpt("stats", good, "--fail-on", "dead-channels").code == 0
    document = json.loads(ckpt("stats", bad, "--json").out)
    assert document["schema"] == {"name": "ckpt.stats", "version": 1}
    (row,) = document["tensors"]
    assert (row["min"], row["max"], row["nan"], row["inf"], row["std"]) == (
        1.0,
        1.0,
        1,
        1,
        None,
    )
    assert [finding["code"] for finding in document["findings"]] == ["nan", "inf"]
    rows = [line.split("\t") for line in ckpt("stats", good, bad, "--tsv").lines]
    assert rows[0][:4] == ["file", "name", "dtype", "shape"] and len(rows) == 4
    assert rows[1][4:9] == ["1.0", "1.0", "1.0", "0.0", "1.0"]
    assert "| a.weight" in ckpt("stats", good, "--table", "github").out.decode()
    assert "zeros: 60.0 % of 5 elements" in ckpt("stats", good, "--modules").lines[-1]
    check_error(ckpt("stats", good, "--sort", "size"), "--sort size: not one of")
    check_error(ckpt("stats", good, "--json", "--tsv"), "exclude each other")
    check_error(ckpt("stats", good, "--fail-on", "cuda"), "not a finding of stats")


def test_histograms(tmp_path: Path) -> None:
    state = {
        "a.weight": torch.tensor([-1.0, 0.5, 0.5, 3.0, math.nan]),
        "b.weight": torch.full((3,), 2.0),
        "c.weight": torch.tensor([math.inf]),
        "d.weight": torch.zeros(0),
    }
    path = rewriting.saved(state, tmp_path / "a.pt")
    counts = [0] * 33
    counts[0], counts[12], counts[32] = 1, 2, 1

    assert [
        row.get("histogram", "none") for row in of(state, tmp_path).to_json()["tensors"]
    ] == ["none"] * 4  # type: ignore[index, union-attr]
    document = json.loads(ckpt("stats", path, "--json", "--histogram").out)
    assert [row["histogram"] for row in document["tensors"]] == [
        {"low": -1.0, "high": 3.125, "counts": counts},
        {"low": 2.0, "high": 2.0, "counts": [3]},
        None,
        None,
    ]
    rows = ckpt("stats", path, "--histogram").lines
    assert rows[2].endswith("  HISTOGRAM") and rows[3].endswith("  ▄     █        ▄")
    assert rows[4].endswith("  █")
    check_error(
        ckpt("stats", path, "--histogram", "--tsv"),
        "--histogram and --tsv exclude each other",
    )


def test_a_histogram_counts_what_repeats_each_time(tmp_path: Path) -> None:
    (row,) = of(
        {"a.weight": torch.tensor([[1.0, 2.0]]).expand(5, 2)}, tmp_path, histogram=True
    ).rows

    assert row.found is not None and row.found.histogram is not None
    assert [count for count in row.found.histogram.counts if count] == [5, 5]


def test_findings_name_the_model_where_there_are_several(tmp_path: Path) -> None:
    state = {"0.weight": torch.full((2,), torch.nan)}
    for thing, name in (
        ({"G": state, "D": state}, "D.0.weight"),
        ({"D": state}, "0.weight"),
    ):
        (finding,) = of(thing, tmp_path, section="D").findings
        assert finding.message.endswith(f" NaN in {name}.") and finding.tensors == (
            "D.0.weight",
        )


def test_several_models_are_asked_for(tmp_path: Path) -> None:
    state = nn.Linear(2, 2).state_dict()
    path = rewriting.saved({"netG": state, "netD": state}, tmp_path / "a.pt")

    check_error(
        ckpt("stats", path), "holds 2 models (--section netg, or --section netd)"
    )
    assert ckpt("stats", path, "--section", "netD").code == 0
    assert len(json.loads(ckpt("stats", path, "--all", "--json").out)["tensors"]) == 4


@pytest.mark.parametrize(
    "name",
    ["dtypes.pth", "legacy.pth", "weights.safetensors", "sharded", "scripted.pt"],
)
def test_samples(name: str) -> None:
    done = ckpt("stats", SAMPLES / name, "--all", "--channels", "--json")
    assert done.code == 0 and json.loads(done.out)["tensors"]


def test_nan_does_not_disturb_the_order(tmp_path: Path) -> None:
    state = {
        "a.weight": torch.tensor([0.0, 9.0]),
        "b.weight": torch.tensor([1e308, -1e308, 1.5e308], dtype=torch.float64),
        "c.weight": torch.tensor([0.0, 99.0]),
        "d.weight": torch.tensor([float("nan")]),
        "e.weight": torch.tensor([0.0, 50.0]),
    }
    labels = [
        row.label[0]
        for row in of(state, tmp_path, sort="std").rows
        if row.label[0] in "ace"
    ]
    assert labels == ["c", "e", "a"]


@pytest.mark.parametrize("groups", [2, 8])
def test_transposed_convolutions_in_groups_are_ambiguous(
    groups: int, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.ConvTranspose2d(8, 8, 3, groups=groups, bias=groups == 2))
    with torch.no_grad():
        net[0].weight[3] = 0
    rewriting.saved(net, tmp_path / "a.pt")
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert stats(Survey(checkpoint), threshold=1e-3).findings == ()


def test_a_file_without_a_model_is_measured_whole(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")

    rows = json.loads(inside("stats", "optimizer.pt", "--json", cwd=tmp_path).out)[
        "tensors"
    ]
    whole = json.loads(
        inside("stats", "optimizer.pt", "--json", "--all", cwd=tmp_path).out
    )["tensors"]
    assert rows == whole and len(rows) == 6
    for command in ("stats", "sum"):
        check_error(inside(command, "none.pt", cwd=tmp_path), "finds no model")


@pytest.mark.parametrize("at", [0, 70_001, 149_999, None])
def test_one_reading_gives_figures_and_checksum(
    at: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor of three spans, and one over half of a storage, whose other half is in
    no tensor.
    """
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 1 << 16)
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", 4096)
    tensor = torch.rand(37_500)
    path = rewriting.saved(
        {"whole": tensor, "half": torch.rand(9_000)[:4_500]}, tmp_path / "a.pt"
    )
    data = bytearray(path.read_bytes())
    begin = data.index(oracle.raw(tensor))
    if at is not None:
        data[begin + at] ^= 1
        path.write_bytes(data)
    read: list[int] = []
    with formats.open(str(path)) as checkpoint:
        survey = Survey(checkpoint)
        for way in ("read", "read_into"):
            real = getattr(File, way)

            def noted(source: File, offset: int, what: Any, real: Any = real) -> Any:
                read.append(what if isinstance(what, int) else len(what))
                return real(source, offset, what)

            monkeypatch.setattr(File, way, noted)
        report = stats(survey, executor=Serial())
        asked = sum(read)
        assert not stats(survey, executor=Serial(), checksums=False).unread

    assert [row.label for row in report.unread] == ([] if at is None else ["whole"])
    assert asked == 150_000 + 18_000 + 36_000  # of the half its record, too
