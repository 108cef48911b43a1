"""`ckpt diff`: against torch, and against itself: nothing differs from itself, every
flipped bit is found.
"""

from __future__ import annotations

import copy
import json
import random
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import real_files
import rewriting
import safetensors.torch
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from needs import skip_without
from paths import IS_THOROUGH, many
from process import SAMPLES, check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.commands.diff import reasons
from ckpt.commands.diff.diff import DiffReport, Options, diff
from ckpt.commands.diff.rows import modules
from ckpt.evidence.survey import Survey
from ckpt.model.names import Globs

pytestmark = oracle.QUIET
FILES = [
    path.name
    for path in sorted(SAMPLES.iterdir())
    if path.suffix in (".pth", ".pt", ".ckpt", ".safetensors", "")
    and path.name
    not in ("truncated.pth", "html_page.pth", "lfs_pointer.pth", "dcp_interrupted")
    and not path.name.startswith("_")
]


def compared(before: Path, after: Path, **options: Any) -> DiffReport:
    with formats.open(str(before)) as one, formats.open(str(after)) as two:
        return diff(Survey(one), Survey(two), Options(**options))


def of(before: Any, after: Any, folder: Path, **options: Any) -> DiffReport:
    return compared(
        rewriting.saved(before, folder / "a.pt"),
        rewriting.saved(after, folder / "b.pt"),
        **options,
    )


def statuses(report: DiffReport) -> dict[str, str]:
    return {row.name: row.status for row in report.rows}


# --- laws -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_same_as_itself(name: str) -> None:
    if (SAMPLES / name).is_dir():
        skip_without("folders")
    report = compared(SAMPLES / name, SAMPLES / name)

    assert report.same and not report.values and not report.not_compared
    assert {row.code for row in report.findings} <= {
        "no-weights"
    }  # a tensor of dtypes.pth is on meta
    assert {row.status for row in report.rows} <= {"same"}
    with formats.open(str(SAMPLES / name)) as checkpoint:
        assert len(report.rows) == len(checkpoint.tensors)


@pytest.mark.parametrize("name", real_files.FILES)
def test_a_real_file_is_the_same_as_itself(name: str) -> None:
    assert compared(real_files.path(name), real_files.path(name)).same


@given(st.data())
@settings(max_examples=many(15, 60))
def test_the_other_way_round_is_the_mirror(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("mirror")
    bases = [strategies._bytes_as(torch.float32, 20, seed) for seed in (1, 2)]
    made = []
    for _ in range(2):
        names = data.draw(
            st.lists(
                st.sampled_from(["a.weight", "b.weight", "c.weight", "d.bias"]),
                min_size=1,
                unique=True,
            )
        )
        made.append(
            OrderedDict(
                (name, data.draw(strategies.views(bases[data.draw(st.integers(0, 1))])))
                for name in names
            )
        )
    paths = [rewriting.saved(state, folder / f"{i}.pt") for i, state in enumerate(made)]

    there, back = compared(*paths), compared(*reversed(paths))

    mirror = {"added": "removed", "removed": "added"}
    assert there.same == back.same
    assert sorted(
        (r.status, r.name) for r in there.rows if r.status != "renamed"
    ) == sorted(
        (mirror.get(r.status, r.status), r.name)
        for r in back.rows
        if r.status != "renamed"
    )


@pytest.mark.parametrize("seed", range(10))
def test_every_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    dtype = chance.choice(
        [
            torch.float32,
            torch.bfloat16,
            torch.int64,
            torch.uint8,
            torch.complex64,
            torch.bool,
        ]
    )
    values = (
        torch.zeros(5000).to(dtype)
        if dtype is torch.bool
        else torch.randint(0, 100, (5000,)).to(dtype)
    )
    state = {"a.weight": values, "b.weight": torch.ones(7)}
    source = rewriting.saved(state, tmp_path / "a.pt")
    with formats.open(str(source)) as checkpoint:
        place = checkpoint.storages[0].place
        offset = place.offset + chance.randrange(checkpoint.storages[0].nbytes)  # type: ignore[union-attr]
    data = bytearray(source.read_bytes())
    data[offset] ^= 1 if dtype is torch.bool else 1 << chance.randrange(8)
    (tmp_path / "b.pt").write_bytes(data)

    report = compared(source, tmp_path / "b.pt")

    assert statuses(report) == {"a.weight": "changed", "b.weight": "same"}
    assert (
        report.rows[0].change is not None
        and report.rows[0].change.differing + report.rows[0].change.other_bytes == 1
    )


# --- numbers --------------------------------------------------------------------------

_NUMERIC = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=many(30, 120))
def test_numbers_are_torchs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    dtype = getattr(torch, data.draw(st.sampled_from(_NUMERIC)))
    size = data.draw(st.sampled_from([1, 7, 300, 70_000]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    wide = torch.randn(size, dtype=torch.float64) * 50
    before = wide.to(torch.complex128).to(dtype) if dtype.is_complex else wide.to(dtype)
    after = before.clone()
    changed = torch.rand(size) < data.draw(st.sampled_from([0.0, 0.01, 1.0]))
    other = (
        (torch.randn(size, dtype=torch.float64) * 50)
        .to(torch.complex128 if dtype.is_complex else torch.float64)
        .to(dtype)
    )
    if dtype.itemsize == 1 and dtype.is_floating_point:
        after.view(torch.uint8)[changed] = other.view(torch.uint8)[changed]
    else:
        after[changed] = other[changed]
    if dtype.is_floating_point and dtype.itemsize > 1 and data.draw(st.booleans()):
        before[0], after[-1] = float("nan"), float("inf")

    report = of(
        {"a.weight": before, "z.weight": torch.ones(1)},
        {"a.weight": after, "z.weight": torch.ones(1)},
        folder,
    )

    row = next(row for row in report.rows if row.name == "a.weight")
    to = torch.complex128 if dtype.is_complex else torch.float64
    one, two = before.to(to), after.to(to)
    unequal = (one != two) & ~(one.isnan() & two.isnan())
    assert (row.status == "same") == (oracle.raw(before) == oracle.raw(after))
    if row.change is None:
        return
    delta = (two - one).abs()
    delta[~delta.isfinite()] = 0
    finite = one.abs()
    finite[~finite.isfinite()] = 0
    assert row.change.differing == int(unequal.sum()) and row.change.numel == size
    if (
        unequal.any() and not delta.any()
    ):  # no two finite elements differ: there is no number for it
        assert (
            row.change.max_abs
            is row.change.rms
            is row.change.rel_l2
            is row.change.at
            is None
        )
        return
    assert row.change.max_abs == pytest.approx(
        float(delta[unequal].max()) if unequal.any() else 0.0, rel=1e-12
    )
    sums = (
        1e-6 if dtype.itemsize < 4 or dtype is torch.float32 else 1e-9
    )  # float32 adds what it holds
    assert row.change.rms == pytest.approx(
        float(delta.square().mean().sqrt()), rel=sums, abs=1e-300
    )
    if finite.square().sum() > 0:
        assert row.change.rel_l2 == pytest.approx(
            float((delta.square().sum() / finite.square().sum()).sqrt()), rel=sums
        )
    assert row.change.nan == (int(one.isnan().sum()), int(two.isnan().sum()))
    assert row.change.inf == (int(one.isinf().sum()), int(two.isinf().sum()))
    if unequal.any() and row.change.max_abs:
        assert row.change.at is not None and float(
            delta[row.change.at[0]]
        ) == pytest.approx(row.change.max_abs, rel=1e-12)


def test_zeros_of_either_sign_are_said_apart(tmp_path: Path) -> None:
    report = of(
        {"a.weight": torch.tensor([0.0, 1.0])},
        {"a.weight": torch.tensor([-0.0, 1.0])},
        tmp_path,
    )

    assert not report.same and report.rows[0].change is not None
    assert (report.rows[0].change.differing, report.rows[0].change.other_bytes) == (
        0,
        1,
    )


def test_the_smallest_change_is_one(tmp_path: Path) -> None:
    bias = torch.tensor([0.25, 1.0])
    report = of(
        {"a.bias": bias}, {"a.bias": torch.tensor([0.25 + 1.4e-8, 1.0])}, tmp_path
    )
    assert report.same, "float32 does not hold it"
    bias = torch.tensor([0.125])
    report = of({"a.bias": bias}, {"a.bias": bias + 1.5e-8}, tmp_path)
    assert (
        not report.same
        and report.rows[0].change is not None
        and report.rows[0].change.max_abs == pytest.approx(1.49e-8, rel=0.01)
    )


def test_tolerances(tmp_path: Path) -> None:
    one = {"a.weight": torch.ones(3), "b.weight": torch.ones(3)}
    two = {"a.weight": torch.ones(3) + 1e-4, "b.weight": torch.ones(3) + 1e-2}

    report = of(one, two, tmp_path, tolerance=lambda dtype: (1e-3, 0.0))

    assert statuses(report) == {"a.weight": "same", "b.weight": "changed"}


def test_a_dtype_that_differs_is_compared_by_value(tmp_path: Path) -> None:
    values = torch.tensor([1.0, 2.5, -3.0])
    report = of({"a.weight": values}, {"a.weight": values.to(torch.bfloat16)}, tmp_path)

    assert statuses(report) == {"a.weight": "retyped"} and not report.same
    assert report.rows[0].change is not None and report.rows[0].change.differing == 0


# --- names ----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)
        self.unused = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn(self.conv(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training checkpoint before and after a step."""
    folder = tmp_path_factory.mktemp("step")
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.0)
    paths = []
    for number in range(2):
        optimizer.zero_grad()
        net(torch.randn(2, 3, 6, 6)).square().sum().backward()
        optimizer.step()
        thing = {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": number,
        }
        paths.append(rewriting.saved(thing, folder / f"{number}.pth"))
    return paths[0], paths[1]


def what_moved(report: DiffReport) -> dict[str, tuple[str, str]]:
    return {
        row.name.removeprefix("model.").removeprefix("module."): (
            row.status,
            row.role.role,
        )
        for row in report.rows
        if ".state." not in row.name
    }


def test_a_step(step: tuple[Path, Path]) -> None:
    report = compared(*step)

    moved = what_moved(report)
    assert {name for name, (status, _) in moved.items() if status == "same"} == {
        "unused.weight",
        "unused.bias",
    }
    assert {name for name, (_, role) in moved.items() if role == "buffer"} == {
        "bn.running_mean",
        "bn.running_var",
        "bn.num_batches_tracked",
    }
    still = [
        row
        for row in report.rows
        if row.status == "same" and row.role.role == "parameter"
    ]
    assert {row.reason for row in still} == {"in the optimizer, never had a gradient"}
    assert [finding.code for finding in report.findings] == ["frozen"]
    assert set(report.findings[0].tensors) == {
        "model.unused.weight",
        "model.unused.bias",
    }
    assert [(row.name, row.status) for row in report.values] == [("epoch", "changed")]


@pytest.mark.parametrize("way", ["wrapped", "safetensors", "cuda", "legacy", "bare"])
def test_a_step_across_files(way: str, step: tuple[Path, Path], tmp_path: Path) -> None:
    thing = torch.load(step[0])
    out = tmp_path / ("b.safetensors" if way == "safetensors" else "b.pth")
    if way == "wrapped":
        thing["model"] = OrderedDict(
            (f"module.{name}", value) for name, value in thing["model"].items()
        )
        rewriting.saved(thing, out)
    elif way == "cuda":
        with mock.patch.object(
            torch.serialization, "location_tag", lambda storage: "cuda:0"
        ):
            rewriting.saved(thing, out)
    elif way == "legacy":
        rewriting.saved(thing, out, _use_new_zipfile_serialization=False)
    elif way == "bare":
        rewriting.saved(thing["model"], out)
    else:
        assert ckpt("convert", step[0], "-o", out).code == 0

    report = compared(out, step[1])

    assert what_moved(report) == what_moved(compared(*step))
    assert bool(report.not_compared) == (way in ("safetensors", "bare"))
    same = compared(out, step[0])
    assert same.same and (way != "cuda" or not compared(out, step[0], strict=True).same)


def test_a_tensor_that_moved_to_another_name(tmp_path: Path) -> None:
    one = {
        "enc.weight": torch.randn(4, 4),
        "x.weight": torch.ones(2),
        "old.bias": torch.ones(3),
    }
    two = {
        "encoder.weight": one["enc.weight"],
        "x.weight": torch.ones(2),
        "new.bias": torch.zeros(3),
    }

    report = of(one, two, tmp_path)

    assert statuses(report) == {
        "encoder.weight": "renamed",
        "x.weight": "same",
        "new.bias": "added",
        "old.bias": "removed",
    }
    only = of(
        {"a.weight": one["enc.weight"]}, {"b.weight": one["enc.weight"]}, tmp_path
    )
    assert (
        only.same
        and not of(
            {"a.weight": one["enc.weight"]},
            {"b.weight": one["enc.weight"]},
            tmp_path,
            strict=True,
        ).same
    )


def test_equal_tensors_are_told_apart_by_the_ends_of_their_names(
    tmp_path: Path,
) -> None:
    names = [f"layers.{i}.{part}.weight" for i in range(3) for part in ("norm", "fc")]
    before = {
        f"model.{name}": torch.ones(4) for name in names
    }  # as norms begin: all alike
    after = {f"net.body.{name}": torch.ones(4) for name in names}

    report = of(before, after, tmp_path, align=False)

    assert report.same and not report.count("added") and not report.count("removed")
    assert {row.labels for row in report.rows} == {
        (f"model.{name}", f"net.body.{name}") for name in names
    }
    assert {row.status for row in report.rows} == {"renamed"}


def test_a_choice_is_no_rename(tmp_path: Path) -> None:
    one, two = torch.ones(4), torch.arange(4.0)
    report = of(
        {"a.x": one, "b.x": one.clone(), "c.x": two},
        {"d.y": one.clone(), "e.y": two},
        tmp_path,
    )
    wide = torch.ones(1).expand(10**12)

    assert [
        (row.status, row.labels) for row in report.rows if row.status == "renamed"
    ] == [("renamed", ("c.x", "e.y"))]
    assert (report.count("removed"), report.count("added")) == (2, 1)
    assert (
        of({"a.x": wide}, {"b.x": wide}, tmp_path).count("renamed") == 0
    )  # too much to look through


def test_shapes_are_never_the_same(tmp_path: Path) -> None:
    report = of(
        {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(1)},
        {"a.weight": torch.ones(3, 2), "b.weight": torch.ones(1)},
        tmp_path,
    )

    assert statuses(report)["a.weight"] == "reshaped" and not report.same


def test_structure_reads_no_values(step: tuple[Path, Path]) -> None:
    with formats.open(str(step[0])) as one, formats.open(str(step[1])) as two:
        read = [
            checkpoint.source.bytes_read
            for checkpoint in (one, two)
            if checkpoint.source
        ]
        report = diff(Survey(one), Survey(two), Options(structure=True))
        after = [
            checkpoint.source.bytes_read
            for checkpoint in (one, two)
            if checkpoint.source
        ]

    assert report.same and sum(after) - sum(read) < 1_000, (
        "step counters and one moment at most"
    )


def test_selecting(step: tuple[Path, Path]) -> None:
    report = compared(*step, select=Globs(["*.bias"], ["unused*", "model.unused*"]))

    assert set(statuses(report)) == {
        "model.conv.bias",
        "model.bn.bias",
        "model.fc.bias",
    }
    assert {
        row.name.split(".")[0] for row in compared(*step, section="model").rows
    } == {"model"}


def test_without_an_optimizer_the_fact_is_told_and_no_reason(
    step: tuple[Path, Path], tmp_path: Path
) -> None:
    models = [
        rewriting.saved(torch.load(path)["model"], tmp_path / path.name)
        for path in step
    ]

    report = compared(*models)

    assert [(row.code, row.level) for row in report.findings] == [("frozen", "info")]
    assert {row.reason for row in report.rows if row.status == "same"} == {
        "did not change; these files cannot say why (ckpt.snapshot records it)"
    }


def test_statistics_that_move_in_a_frozen_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    net.bn.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters())
    paths = []
    for number in range(2):
        optimizer.zero_grad()
        net(torch.randn(2, 3, 6, 6)).square().sum().backward()
        optimizer.step()
        thing = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        paths.append(rewriting.saved(thing, tmp_path / f"{number}.pt"))

    found = {finding.code: finding for finding in compared(*paths).findings}

    assert found["buffers-in-frozen"].tensors == ("model.bn.running_mean",)
    assert "model.bn.weight" in found["frozen"].tensors
    assert found["buffers-in-frozen"].level == "warning"
    # Plain saves show it too. They do not say that the layer is frozen, so it is
    # information.
    plain = [
        rewriting.saved(torch.load(path)["model"], tmp_path / f"plain{path.name}")
        for path in paths
    ]
    found = {finding.code: finding for finding in compared(*plain).findings}
    assert found["buffers-in-frozen"].tensors == ("bn.running_mean",)
    assert found["buffers-in-frozen"].level == "info"
    assert str(found["buffers-in-frozen"].consequence).startswith(
        "If they are frozen, call eval()"
    )


def test_a_step_that_was_skipped(step: tuple[Path, Path], tmp_path: Path) -> None:
    thing = torch.load(step[0])
    thing["epoch"] = 7

    report = compared(step[0], rewriting.saved(thing, tmp_path / "b.pt"))

    assert [finding.code for finding in report.findings] == ["step-skipped"]


# --- the command ----------------------------------------------------------------------


def test_exit_codes_and_forms(step: tuple[Path, Path]) -> None:
    same, differ = ckpt("diff", step[0], step[0]), ckpt("diff", step[0], step[1])
    assert (same.code, differ.code) == (0, 1) and differ.err == b""
    assert same.lines[-1] == "same: 29 tensors" and differ.lines[-1].startswith(
        "differ: "
    )
    quiet = ckpt("diff", step[0], step[1], "-q")
    assert (quiet.code, quiet.out) == (1, b"")
    document = json.loads(ckpt("diff", step[0], step[1], "--json").out)
    assert (
        document["schema"] == {"name": "ckpt.diff", "version": 1}
        and document["same"] is False
    )
    rows = [line.split("\t") for line in ckpt("diff", step[0], step[1], "--tsv").lines]
    assert (
        rows[0] == ["letter", "before", "after", "role", "differing", "max_abs"]
        and len(rows) == 31
    )
    assert rows[-1] == ["M", "epoch", "epoch", "value", "", ""]
    names = ckpt("diff", step[0], step[1], "--name-only").lines
    assert "model.conv.weight" in names and "model.unused.weight" not in names
    assert ckpt("diff", step[0], step[1], "--fail-on", "nan").code == 0
    assert ckpt("diff", step[0], step[1], "--fail-on", "frozen").code == 1
    assert ckpt("diff", step[0], step[1], "--fail-on", "nan,differ").code == 1
    assert (
        ckpt(
            "diff", step[0], step[0], "--fail-on", "frozen", "--fail-on", "differ"
        ).code
        == 0
    )


def test_trouble(tmp_path: Path, step: tuple[Path, Path]) -> None:
    check_error(ckpt("diff", step[0], tmp_path / "none.pth"), "no such file")
    check_error(ckpt("diff", step[0], SAMPLES / "truncated.pth"), "cut off")
    check_error(
        ckpt("diff", step[0], step[1], "--show", "most"), "not one of auto changed"
    )
    check_error(
        ckpt("diff", step[0], step[1], "--close", "--atol", "1"), "exclude each other"
    )
    check_error(
        ckpt("diff", step[0], step[1], "--section", "modell"), "no section modell"
    )
    clash = rewriting.saved(
        {
            "module.a.weight": torch.ones(1),
            "a.weight": torch.ones(2),
            "module.b.weight": torch.ones(1),
        },
        tmp_path / "c.pt",
    )
    plain = rewriting.saved(
        {
            "a.weight": torch.ones(1),
            "b.weight": torch.ones(1),
            "c.weight": torch.ones(1),
        },
        tmp_path / "d.pt",
    )
    check_error(ckpt("diff", clash, plain), "would both be called a.weight")


@pytest.mark.parametrize("which", ["changed", "unchanged", "frozen", "buffers", "all"])
def test_what_is_shown(which: str, step: tuple[Path, Path]) -> None:
    lines = ckpt("diff", step[0], step[1], "--show", which).lines

    listed = [line for line in lines if line[:2] in ("M ", "= ")]
    assert any("bn.running_mean" in line for line in listed) == (
        which in ("changed", "buffers", "all")
    )
    assert any("unused.weight" in line for line in listed) == (
        which in ("unchanged", "all")
    )


# --- findings of two files ------------------------------------------------------------


def training(net: nn.Module, optimizers: Any) -> dict[str, Any]:
    many = optimizers if isinstance(optimizers, dict) else {"optimizer": optimizers}
    return {
        "model": net.state_dict(),
        **{name: o.state_dict() for name, o in many.items()},
    }


def codes(report: DiffReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.code, set()).update(
            name.removeprefix("model.") for name in finding.tensors
        )
    return found


def test_a_parameter_that_somebody_else_moves(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    net.extra = nn.Parameter(torch.ones(7))
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> dict[str, Any]:
        optimizer.zero_grad()
        nn.Sequential(net[0], net[1])(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        return copy.deepcopy(training(net, optimizer))

    first = step()
    with torch.no_grad():
        net.extra += 1
    second = step()

    assert codes(of(first, second, tmp_path)) == {"changed-without-state": {"extra"}}
    assert codes(of(second, second, tmp_path)) == {}
    assert "changed-without-state" not in codes(
        of(first["model"], second["model"], tmp_path)
    )


def test_two_optimizers_of_one_model(tmp_path: Path) -> None:
    """A parameter that one of them does not have is the other's: it is not frozen."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 6))
    optimizers = {
        "optim_a": torch.optim.AdamW(net[0].parameters()),
        "optim_b": torch.optim.AdamW(net[1].parameters()),
    }

    def step() -> dict[str, Any]:
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        net(torch.randn(2, 3)).square().sum().backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return copy.deepcopy(training(net, optimizers))

    report = of(step(), step(), tmp_path)

    causes = {
        row.name: row.cause
        for row in report.rows
        if row.status == "same" and row.role.role != "optimizer"
    }
    assert causes == dict.fromkeys(
        ("model.2.weight", "model.2.bias"), "not-in-optimizer"
    )
    (finding,) = report.findings
    assert (finding.code, finding.level) == ("frozen", "info")
    assert set(finding.tensors) == {"model.2.weight", "model.2.bias"}


@pytest.mark.parametrize("how", ["lr", "skipped"])
def test_steps_that_move_nothing(how: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0)

    def step() -> dict[str, Any]:
        optimizer.zero_grad()
        net(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        return copy.deepcopy(training(net, optimizer))

    first = step()
    if how == "lr":
        optimizer.param_groups[0]["lr"] = 0.0
        second = step()
    else:
        net(torch.randn(8, 3))  # statistics move in forward
        second = training(net, optimizer)

    report = of(first, second, tmp_path)

    (finding,) = [row for row in report.findings if row.code == "step-skipped"]
    assert ("lr is 0" in str(finding.consequence)) == (how == "lr")
    assert {row.code for row in report.findings} == {"step-skipped"}


def test_the_state_of_lbfgs_is_of_no_single_parameter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    x = torch.randn(8, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(4).sum()
        loss.backward()
        return loss

    states = []
    for _ in range(2):
        optimizer.step(closure)
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        states.append(copy.deepcopy(state))
    states[1]["model"]["weight"] = states[0]["model"]["weight"]
    report = of(states[0], states[1], tmp_path)

    assert {row.name for row in report.rows if row.status == "changed"} >= {
        "model.bias",
        "optimizer.state.0.d",
    }
    (row,) = [row for row in report.rows if row.name == "model.weight"]
    assert row.status == "same" and row.cause != "stepped"


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
        lambda p: torch.optim.AdamW(
            [{"params": p[::2]}, {"params": p[1::2], "weight_decay": 0.0}]
        ),
    ],
    ids=[
        "adam",
        "amsgrad",
        "sgd",
        "momentum",
        "adagrad",
        "adafactor",
        "lbfgs",
        "groups",
    ],
)
@pytest.mark.parametrize("filtered", [True, False])
def test_reasons_are_right_or_cannot_tell(
    make: Any, filtered: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = nn.Module()
    net.used, net.norm, net.spare, net.frozen = (
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 6),
        nn.Linear(5, 2),
    )
    net.frozen.requires_grad_(False)
    optimizer = make([p for p in net.parameters() if p.requires_grad or not filtered])
    x = torch.randn(8, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net.norm(net.used(x)).pow(4).sum()
        loss.backward()
        return loss

    first = None
    for _ in range(2):
        optimizer.step(closure)
        first = first or copy.deepcopy(training(net, optimizer))

    report = of(first, training(net, optimizer), tmp_path)

    truth = {
        **{name: {"never", "unknown"} for name in ("spare.weight", "spare.bias")},
        **{
            name: {"not-in-optimizer" if filtered else "never", "unknown"}
            for name in ("frozen.weight", "frozen.bias")
        },
    }
    still = {
        row.name.removeprefix("model."): row.cause
        for row in report.rows
        if row.status == "same" and row.role.role in ("parameter", "unknown")
    }
    for name, cause in still.items():
        if name in truth:
            assert cause in truth[name], name
        else:
            assert cause in ("unknown", "stepped"), (
                name
            )  # a parameter that moved too little
    assert still.keys() >= truth.keys()
    stood = {
        name for name, cause in still.items() if cause == "stepped"
    }  # a bias before a BatchNorm has no effect
    for row in report.findings:
        if row.code == "frozen" and "cannot say" not in row.message:
            assert {
                name.removeprefix("model.") for name in row.tensors
            } <= truth.keys() | stood


# --- stored listings, bars ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_stored_listing_is_alike_its_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_bytes(ckpt("inspect", "--json", SAMPLES / name).out)

    done = ckpt("diff", "--structure", tmp_path / "kept.json", SAMPLES / name)

    assert done.code == 0, done
    assert ckpt("diff", "--structure", SAMPLES / name, tmp_path / "kept.json").code == 0


def test_a_listing_tells_what_changed(tmp_path: Path) -> None:
    one = rewriting.saved(
        {"a.weight": torch.ones(3), "b.weight": torch.ones(3)}, tmp_path / "a.pt"
    )
    two = rewriting.saved(
        {"a.weight": torch.ones(4), "c.weight": torch.ones(3).half()}, tmp_path / "b.pt"
    )
    (tmp_path / "a.json").write_bytes(ckpt("inspect", "--json", one).out)

    report = json.loads(
        ckpt("diff", "--structure", "--json", tmp_path / "a.json", two).out
    )

    assert {
        (row["status"], row["before"], row["after"]) for row in report["tensors"]
    } == {
        ("reshaped", "a.weight", "a.weight"),
        ("removed", "b.weight", None),
        ("added", None, "c.weight"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": {"name": "ckpt.diff", "version": 1}}', "not a listing of tensors"),
        (
            '{"schema": {"name": "ckpt.inspect", "version": 2}}',
            "unknown version of a listing",
        ),
        (
            '{"schema": {"name": "ckpt.inspect", "version": 1}}',
            "does not follow docs/json.md",
        ),
        (
            '{"schema": {"name": "ckpt.inspect", "version": 1}}\n{"schema": 1}',
            "one document of ckpt inspect --json",
        ),
        (
            (
                '{"schema": {"name": "ckpt.inspect", "version": 1}, "tensors": '
                '[{"name": 1}], "sections": []}'
            ),
            "does not follow",
        ),
        ('{"a": 1}', "not a checkpoint: json"),
    ],
)
def test_what_is_no_listing(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)

    check_error(
        ckpt("diff", "--structure", tmp_path / "a.json", SAMPLES / "legacy.pth"), says
    )


@pytest.mark.parametrize(
    "layout", ["strid\x7fd", "\x1b[2J", "", "two words", "größe", None]
)
def test_a_layout_of_a_listing_is_a_word(layout: object, tmp_path: Path) -> None:
    document = json.loads(ckpt("inspect", "--json", SAMPLES / "legacy.pth").out)
    document["tensors"][0]["layout"] = layout
    (tmp_path / "a.json").write_text(json.dumps(document))

    check_error(
        ckpt("diff", "--structure", tmp_path / "a.json", SAMPLES / "legacy.pth"),
        "does not follow docs/json.md",
    )


def texts_of(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each text in a document."""
    if isinstance(node, str):
        yield path
    rows = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in rows:
        yield from texts_of(value, (*path, key))


@pytest.mark.slow
def test_no_text_of_a_listing_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    torch.save(
        {"model": {"a.weight": torch.ones(2), "b": torch.eye(3).to_sparse()}},
        tmp_path / "a.pth",
    )
    torch.save(
        {"model": {"a.weight": torch.ones(3), "b": torch.ones(3)}}, tmp_path / "b.pth"
    )
    kept = inside("inspect", "a.pth", "--json", cwd=tmp_path).out
    places = [
        path
        for path in texts_of(json.loads(kept))
        if path[0] in ("tensors", "sections", "file")
    ]
    read = 0
    for path in places:
        document = json.loads(kept)
        node = document
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] += "\x1b[2J\x7f\u202e"
        (tmp_path / "kept.json").write_text(json.dumps(document))
        for sides in (("kept.json", "b.pth"), ("b.pth", "kept.json")):
            for options in (
                (),
                ("--strict",),
                ("--tsv",),
                ("--stat",),
                ("--table", "pipe"),
                ("--show", "all"),
            ):
                done = inside("diff", "--structure", *sides, *options, cwd=tmp_path)
                read += done.code != 2
                assert not {"\x1b", "\x7f", "\u202e"} & {
                    *(done.out + done.err).decode()
                }, (path, options)
    assert len(places) > 20 and read > 150


def test_a_listing_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(
        ckpt("inspect", "--json", SAMPLES / "legacy.pth").out
    )

    for command in (
        ("diff", tmp_path / "a.json", tmp_path / "a.json"),
        ("inspect", tmp_path / "a.json"),
    ):
        check_error(ckpt(*command), "a listing from ckpt inspect --json")


@pytest.mark.parametrize(
    ("key", "one", "two", "differing"),
    [
        (
            "ema",
            {"decay": torch.tensor(0.9), "updates": 5},
            {"decay": 0.5, "updates": 9},
            ["updates", "decay"],
        ),
        ("ema", {"decay": torch.tensor(0.9), "updates": 5}, {"updates": 5}, []),
        ("ema_decay", torch.tensor(1.0), 2.0, [""]),
        (
            "x",
            {"y": {"scale": torch.ones(2), "n": 1}},
            {"y": {"scale": 2.0, "n": 1}},
            ["y.scale"],
        ),
        (
            "loss",
            {"weight": torch.ones(3), "kind": "mean"},
            {"weight": None, "kind": "sum"},
            ["kind", "weight"],
        ),
    ],
)
def test_a_place_with_tensors_in_one_file_and_values_in_the_other(
    key: str, one: Any, two: Any, differing: list[str], tmp_path: Path
) -> None:
    """Both files hold something there. It was called not in the other file, and its
    values were not compared.
    """
    model = {f"layers.{number}.weight": torch.ones(2, 2) for number in range(70)}
    torch.save({"model": model, key: one}, tmp_path / "a.pth")
    torch.save({"model": model, key: two}, tmp_path / "b.pth")

    for sides, status in (
        (("a.pth", "b.pth"), "removed"),
        (("b.pth", "a.pth"), "added"),
    ):
        done = inside("diff", *sides, "--json", cwd=tmp_path)
        report = json.loads(done.out)
        assert (
            done.code == 1 and report["same"] is False and report["not_compared"] == []
        )
        (row,) = (row for row in report["tensors"] if row["status"] != "same")
        assert row["status"] == status
        names = {f"{key}.{name}".removesuffix(".") for name in differing}
        assert {row["name"] for row in report["values"]} == names
        assert inside("diff", *sides, "-q", cwd=tmp_path).code == 1


@pytest.mark.parametrize("nothing", [None, {}, []])
def test_a_place_where_the_other_file_holds_nothing_is_not_compared(
    nothing: object, tmp_path: Path
) -> None:
    model = {"a.weight": torch.ones(2)}
    torch.save(
        {"model": model, "averages": {"b.weight": torch.ones(2)}}, tmp_path / "a.pth"
    )
    torch.save({"model": model, "averages": nothing}, tmp_path / "b.pth")

    done = inside("diff", "a.pth", "b.pth", cwd=tmp_path)

    assert done.code == 0 and "not compared: averages of a.pth" in done.out.decode()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 200])
@pytest.mark.parametrize("value", [1e160, 1e200, torch.finfo(torch.float64).max])
@pytest.mark.parametrize(
    "options", [(), ("--stat",), ("--histogram",), ("--html", "out.html"), ("--json",)]
)
def test_a_change_whose_square_is_infinite_has_the_longest_bar(
    options: tuple[str, ...], value: float, count: int, tmp_path: Path
) -> None:
    """It ended as a bug in ckpt: infinity is no part of infinity."""
    before = {
        f"layers.{number}.weight": torch.ones(4, dtype=torch.float64)
        for number in range(count)
    }
    after = {name: tensor + 1 for name, tensor in before.items()}
    after["layers.1.weight"][2] = value
    torch.save(before, tmp_path / "a.pth")
    torch.save(after, tmp_path / "b.pth")

    for sides in (("a.pth", "b.pth"), ("b.pth", "a.pth")):
        done = inside("diff", *sides, *options, cwd=tmp_path)
        assert done.code == 1 and b"bug" not in done.err, done
        (tmp_path / "out.html").unlink(missing_ok=True)
    if options == ("--stat",) and count == 2:
        bars = [
            line
            for line in inside("diff", "a.pth", "b.pth", "--stat", cwd=tmp_path).lines
            if "layers." in line
        ]
        assert [line.count("█") for line in bars] == [0, 30] and bars[0].endswith("▏")


def test_bars(tmp_path: Path) -> None:
    before = {
        f"layers.{i}.{leaf}": torch.ones(4)
        for i in range(60)
        for leaf in ("weight", "bias")
    }
    after = {
        name: value * (1 + int(name.split(".")[1]) / 100)
        for name, value in before.items()
    }
    after["layers.0.bias"] = before["layers.0.bias"]
    report = of(before, after, tmp_path, norms=True)
    done = ckpt("diff", "--stat", tmp_path / "a.pt", tmp_path / "b.pt")

    (whole,) = modules(report.rows, 1)
    every = modules(report.rows)
    truth = (
        torch.stack([after[n] - before[n] for n in before]).norm()
        / torch.stack(list(before.values())).norm()
    )
    assert whole.rel_l2 == pytest.approx(truth.item()) and (
        whole.tensors,
        whole.changed,
    ) == (120, 118)
    assert [row.rel_l2 for row in every] == pytest.approx(
        [i / 100 for i in range(60)], rel=1e-5
    )
    rows = [line.split()[:3] for line in done.lines if line.startswith("layers")]
    assert rows == [
        [f"layers.{i}-{i + 1}", "4", "4" if i else "2"] for i in range(0, 60, 2)
    ]
    assert "… 60 modules in 30 rows (--depth 2)" in done.lines
    kept = [f"layers.{i}.weight" for i in range(3)]
    three = ckpt(
        "diff",
        "--stat",
        tmp_path / "a.pt",
        tmp_path / "b.pt",
        *(f"--include={name}" for name in kept),
    )
    bars = [line for line in three.lines if line.startswith("layers.")]
    assert [bar.count("█") for bar in bars] == [0, 15, 30]
    document = json.loads(
        ckpt("diff", "--stat", "--json", tmp_path / "a.pt", tmp_path / "b.pt").out
    )
    assert [row["rel_l2"] for row in document["modules"]] == [
        row.rel_l2 for row in every
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("--quick", "--structure"),
        ("--quick", "--close"),
        ("--structure", "--atol=1"),
        ("--stat", "--quick"),
    ],
)
def test_options_that_contradict_each_other(options: tuple[str, ...]) -> None:
    name = SAMPLES / "legacy.pth"

    check_error(ckpt("diff", *options, name, name))


def test_not_a_number_in_other_bits_is_a_change(tmp_path: Path) -> None:
    one, two = (
        torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        for bits in (0x7FC00000, 0x7FC00001)
    )
    report = of({"a.weight": one}, {"a.weight": two}, tmp_path)
    assert statuses(report) == {"a.weight": "changed"} and report.differs


def flipped(path: Path, tensor: torch.Tensor) -> None:
    """Flip the lowest bit of a number in the middle of the record of a tensor."""
    data = bytearray(path.read_bytes())
    row = tensor.numpy().tobytes()
    assert data.count(row) == 1
    data[data.find(row) + len(row) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tolerance",
    [(), ("--close",), *([("--atol", "0.5"), ("--rtol", "0.5")] * IS_THOROUGH)],
)
@pytest.mark.parametrize("size", [40, 40_000])
@pytest.mark.parametrize(
    "other", ["good.pth", "good.safetensors", "good.dcp", "legacy.pth"]
)
@pytest.mark.parametrize("bad", ["bad.pth", "bad.dcp"])
def test_a_flipped_bit_is_damage_also_where_one_side_alone_has_checksums(
    bad: str, other: str, size: int, tolerance: tuple[str, ...], tmp_path: Path
) -> None:
    """With a tolerance such a file was called the same."""
    torch.manual_seed(0)
    state = {f"layers.{number}.weight": torch.randn(size) for number in range(70)}
    torch.save(state, tmp_path / "good.pth")
    torch.save(state, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(state, tmp_path / "good.safetensors")
    assert inside("convert", "good.pth", "-o", "good.dcp", cwd=tmp_path).code == 0
    if bad == "bad.pth":
        torch.save(state, tmp_path / bad)
        flipped(tmp_path / bad, state["layers.6.weight"])
    else:
        assert inside("convert", "good.pth", "-o", bad, cwd=tmp_path).code == 0
        (file,) = (tmp_path / bad).glob("*.distcp")
        flipped(file, state["layers.6.weight"])
    assert inside("verify", bad, cwd=tmp_path).code == 1

    for sides in ((bad, other), (other, bad)):
        done = inside("diff", *sides, *tolerance, cwd=tmp_path)
        assert (
            done.code == 2
            and "do not match the checksums: layers.6.weight" in done.complaints[-1]
        ), done
        report = json.loads(
            inside("diff", *sides, *tolerance, "--json", cwd=tmp_path).out
        )
        assert report["same"] is False and report["damaged"] == ["layers.6.weight"]
    assert inside("diff", "good.pth", other, *tolerance, cwd=tmp_path).code == 0


def test_a_tolerance_hides_no_damage_where_all_elements_differ(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {f"layers.{number}.weight": torch.randn(40) for number in range(3)}
    torch.save(
        {name: tensor + 1e-3 for name, tensor in state.items()}, tmp_path / "next.pth"
    )
    torch.save(state, tmp_path / "bad.pth")
    assert (
        inside("diff", "bad.pth", "next.pth", "--atol", "0.01", cwd=tmp_path).code == 0
    )
    flipped(tmp_path / "bad.pth", state["layers.1.weight"])

    for sides in (("bad.pth", "next.pth"), ("next.pth", "bad.pth")):
        done = inside("diff", *sides, "--atol", "0.01", cwd=tmp_path)
        assert (
            done.code == 2
            and "do not match the checksums: layers.1.weight" in done.complaints[-1]
        ), done


def test_a_change_of_most_elements_is_not_read_again(tmp_path: Path) -> None:
    before = {"a.weight": torch.ones(64), "b.weight": torch.ones(64)}
    after = {
        "a.weight": torch.ones(64) * 2,
        "b.weight": torch.cat([torch.zeros(4), torch.ones(60)]),
    }
    asked: list[int] = []
    real = reasons.are_damaged
    with mock.patch.object(
        reasons,
        "are_damaged",
        lambda rows, run: asked.append(len(rows)) or real(rows, run),
    ):
        report = of(before, after, tmp_path)
    assert asked == [2] and not report.damaged  # both sides of b.weight


def test_equal_bytes_that_contradict_a_recorded_crc_are_not_called_the_same(
    tmp_path: Path,
) -> None:
    states = {
        name: {"a.weight": torch.full((8,), value)}
        for name, value in (("a.pt", 1.5), ("b.pt", 2.5))
    }
    paths = [rewriting.saved(state, tmp_path / name) for name, state in states.items()]
    mine, other = (state["a.weight"].numpy().tobytes() for state in states.values())
    paths[1].write_bytes(paths[1].read_bytes().replace(other, mine))
    report = compared(*paths)
    assert not report.differs and report.damaged == ("a.weight",) and not report.same


@pytest.mark.parametrize(
    "options", [(), ("--fail-on", "frozen"), ("--fail-on", "frozen,differ")]
)
def test_quick_decides_nothing_without_checksums(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    state = {"a.weight": torch.ones(2), "b.weight": torch.ones(3)}
    rewriting.saved(state, tmp_path / "a.pth")
    rewriting.saved(state | {"a.weight": torch.zeros(2)}, tmp_path / "b.pth")
    rewriting.saved(state | {"b.weight": torch.zeros(4)}, tmp_path / "d.pth")
    safetensors.torch.save_file(state, tmp_path / "c.safetensors")

    def code(*paths: str) -> int:
        done = ckpt("diff", *paths, "--quick", *options, cwd=tmp_path)
        assert (
            done.code != 2
            or "--quick cannot decide: checksums are missing (without --quick)"
            in done.complaints[0]
        )
        return done.code

    assert code("a.pth", "c.safetensors") == 2
    assert code("a.pth", "a.pth") == 0
    assert code("a.pth", "b.pth") == 1  # a checksum differs: b.weight is frozen
    shapes = code("c.safetensors", "d.pth")  # the shapes differ: only a finding is open
    assert shapes == (2 if options == ("--fail-on", "frozen") else 1)


def test_the_document_says_what_the_optimizer_holds(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    rewriting.saved(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pth",
    )
    moved = dict(model.state_dict())
    moved["1.extra"] = moved.pop("1.running_var")
    rewriting.saved(moved, tmp_path / "b.pth")

    with (
        formats.open(str(tmp_path / "a.pth")) as one,
        formats.open(str(tmp_path / "b.pth")) as two,
    ):
        surveys = Survey(one), Survey(two)
        report = diff(*surveys)
        held = [
            dict(
                zip(
                    [entry.name for entry in each.tensors],
                    each.in_optimizer,
                    strict=True,
                )
            )
            for each in surveys
        ]
    rows: Any = report.to_json()["tensors"]
    assert report.count("renamed") == 1
    assert rows and {True, False} <= {row["in_optimizer"][0] for row in rows}
    for row in rows:
        assert row["in_optimizer"][0] == (
            held[0][row["before"]] if row["before"] else None
        ), row
        assert row["in_optimizer"][1] == (
            held[1][row["after"]] if row["after"] else None
        ), row


def test_types_without_numbers_are_compared_by_their_bytes(
    small_blocks: None, tmp_path: Path
) -> None:
    """Also beside another type, and where the numbers of equal tensors are
    asked for.
    """
    codes = torch.arange(300, dtype=torch.int32).to(torch.uint8)
    other = codes.clone()
    other[299] += 1
    for dtype in (torch.float4_e2m1fn_x2, torch.bits8):
        before = {
            "same": codes.view(dtype),
            "changed": codes.view(dtype),
            "retyped": codes.view(dtype),
        }
        after = {
            "same": codes.view(dtype),
            "changed": other.view(dtype),
            "retyped": codes.float(),
        }
        for options in (dict[str, Any](), {"norms": True}):
            report = of(before, after, tmp_path, **options)
            assert {row.name: row.status for row in report.rows} == {
                "same": "same",
                "changed": "changed",
                "retyped": "retyped",
            }, dtype


# --- several models -------------------------------------------------------------------


@pytest.mark.parametrize(
    "sides",
    [("two", "other"), ("other", "two"), ("two", "one"), ("one", "two")],
    ids="-".join,
)
@pytest.mark.parametrize("count", [2, 70])
def test_models_that_nothing_pairs_are_not_the_same(
    sides: tuple[str, str], count: int, tmp_path: Path
) -> None:
    """diff said same, exit code 0, of files whose models were not compared at all, and
    -q not a word.
    """

    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return {f"layer{number}.weight": torch.randn(3, 2) for number in range(count)}

    optimizer = {
        "state": {0: {"exp_avg": torch.ones(3, 2)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    for name, parts in {
        "two": ("gen", "disc"),
        "other": ("gen_x", "disc_x"),
        "one": ("network",),
    }.items():
        models = {part: weights(len(name) + index) for index, part in enumerate(parts)}
        torch.save({**models, "optimizer": optimizer}, tmp_path / f"{name}.pth")
    before, after = (f"{side}.pth" for side in sides)

    done = inside("diff", before, after, cwd=tmp_path)
    assert done.code == 2 and done.complaints[-1].endswith(
        ": nothing says which is which"
    ), done
    assert any(
        line.startswith("not compared: ") and "nothing says" in line
        for line in done.lines
    )
    assert not any("(not in the other file)" in line for line in done.lines)
    assert inside("diff", before, after, "-q", cwd=tmp_path).code == 2
    assert inside("diff", before, after, "--structure", cwd=tmp_path).code == 2
    document = json.loads(inside("diff", before, after, "--json", cwd=tmp_path).out)
    assert document["same"] is False and "nothing says" in document["not_compared"][0]
    assert (
        inside("diff", before, after, "--section", "optimizer", "-q", cwd=tmp_path).code
        == 0
    )
    assert inside("diff", before, before, "-q", cwd=tmp_path).code == 0


def test_a_model_that_one_side_has_more_is_listed(tmp_path: Path) -> None:
    model = {"a.weight": torch.randn(3, 2), "a.bias": torch.randn(3)}
    torch.save({"gen": model, "disc": model}, tmp_path / "two.pth")
    torch.save({"gen": model}, tmp_path / "one.pth")
    for sides in (("one.pth", "two.pth"), ("two.pth", "one.pth")):
        done = inside("diff", *sides, cwd=tmp_path)
        assert (
            done.code == 0
            and "not compared: disc of two.pth (not in the other file)" in done.lines
        ), done


@pytest.mark.parametrize("bad", ["a.pt", "b.pt"])
@pytest.mark.parametrize("size", [1, 4000])
def test_the_file_whose_checksum_fails_is_named(
    bad: str, size: int, tmp_path: Path
) -> None:
    """Also where the other file is the same but for the flipped byte, and where one
    tensor has one element.
    """
    for name in ("a.pt", "b.pt"):
        torch.save({"w": torch.full((size,), 2.5), "v": torch.ones(3)}, tmp_path / name)
    data = bytearray((tmp_path / bad).read_bytes())
    data[data.index(torch.full((1,), 2.5).numpy().tobytes())] ^= 1
    (tmp_path / bad).write_bytes(data)

    done = inside("diff", "a.pt", "b.pt", cwd=tmp_path)

    assert done.code == 2
    assert done.complaints == [
        f"ckpt: {bad}: damaged: the bytes do not match the checksums: w"
    ]


def test_training_under_another_dtype_names_the_option_that_shows_it(
    tmp_path: Path,
) -> None:
    weight = torch.randn(8, 8)
    torch.save({"fc.weight": weight.bfloat16()}, tmp_path / "base.pt")
    torch.save({"fc.weight": weight.bfloat16().float()}, tmp_path / "cast.pt")
    torch.save({"fc.weight": weight + 0.1}, tmp_path / "tuned.pt")
    torch.save({"fc.weight": weight.half()}, tmp_path / "half.pt")
    way = "(--ignore-dtype compares the values)"
    said = {
        name: ckpt("diff", "base.pt", f"{name}.pt", cwd=tmp_path).lines[-1]
        for name in ("cast", "half", "tuned")
    }
    assert said["tuned"] == f"differ: 0 changed, 1 retyped, 0 same {way}"
    assert way not in said["cast"] and way not in said["half"]
    done = ckpt("diff", "base.pt", "tuned.pt", "--ignore-dtype", cwd=tmp_path)
    assert done.lines[-1] == "differ: 1 changed, 0 same"


def test_a_cast_is_no_training(tmp_path: Path) -> None:
    state = {
        "norm.weight": torch.ones(8),
        "norm.bias": torch.zeros(8),
        "fc.weight": torch.randn(8, 8),
        "fc.bias": torch.randn(8),
    }
    torch.save(state, tmp_path / "full.pt")
    for name, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
        cast = {key: value.to(dtype) for key, value in state.items()}
        torch.save(cast, tmp_path / f"{name}.pt")
    # A step moves more than a cast rounds, so what stayed is said.
    tuned = {**state, "fc.weight": state["fc.weight"] + 0.1}
    torch.save({key: value.half() for key, value in tuned.items()}, tmp_path / "t.pt")

    for name in ("half", "bfloat"):
        for paths in (("full.pt", f"{name}.pt"), (f"{name}.pt", "full.pt")):
            done = ckpt("diff", *paths, "--ignore-dtype", cwd=tmp_path)
            assert done.code == 1 and "differ: 2 changed, 2 same" in done.lines
            assert "frozen" not in done.out.decode()
            assert "unchanged parameters" not in done.lines
    done = ckpt("diff", "full.pt", "t.pt", "--ignore-dtype", cwd=tmp_path)
    assert any(line.startswith("! frozen  norm.{weight,bias}") for line in done.lines)


def test_no_rename_is_suggested_for_tensors_that_their_values_have_paired(
    tmp_path: Path,
) -> None:
    """Each tensor of the second file is one of the first file by its values."""
    weight, bias = torch.randn(3, 3), torch.randn(3)
    one = {"w.weight": weight, "b.bias": bias, "half.weight": torch.randn(4)}
    torch.save(one, tmp_path / "a.pth")
    torch.save({"x.weight": weight, "y.bias": bias}, tmp_path / "b.pth")
    done = inside("diff", "a.pth", "b.pth", cwd=tmp_path)
    assert "R w.weight → x.weight" in done.lines
    assert b"not aligned" not in done.out
