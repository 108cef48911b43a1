"""`ckpt slim`: the weights and nothing else, equal, tied as before, without what views
kept alive.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import zipfile
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import oracle
import paths
import pytest
import real_files
import rewriting
import safetensors.torch
import saved
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from process import check_error, ckpt
from same import difference
from torch import nn

from ckpt import formats
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.commands.slim.slim import slim
from ckpt.evidence.survey import Survey
from ckpt.model.errors import LossError, UsageError
from ckpt.model.limits import Limits
from ckpt.tree.find import children_of

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"


def slimmed(source: Path, out: Path, **options: Any) -> RewriteReport:
    with formats.open(str(source)) as checkpoint:
        report = slim(Survey(checkpoint), Limits(), **options)
        rewriting.write(report.result, out)
    return report


def training() -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, path=Path("runs")),
    }


def test_a_section_of_loose_tensors_is_left_and_nothing_else(tmp_path: Path) -> None:
    thing = {
        "x": {
            "a": torch.ones(3),
            "net": nn.Linear(2, 2).state_dict(),
            "b": torch.ones(4),
        },
        "epoch": 1,
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt", section="x")

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(found) == ["a"] and torch.equal(found["a"], torch.ones(3))
    assert [(row.name, row.nbytes) for row in report.left_out] == [
        ("x.net", 24),
        ("x", 16),
        ("epoch", None),
    ]


def test_one_tensor_that_is_a_section_keeps_its_name(tmp_path: Path) -> None:
    thing = {"scale": torch.ones(3), "model": nn.Linear(2, 2).state_dict()}
    source = rewriting.saved(thing, tmp_path / "a.pt")

    slimmed(source, tmp_path / "b.pt", section="scale")

    assert list(torch.load(tmp_path / "b.pt", weights_only=True)) == ["scale"]


def test_the_model_is_left(tmp_path: Path) -> None:
    thing = training()
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt")

    assert (
        difference(thing["model"], torch.load(tmp_path / "b.pt", weights_only=True))
        is None
    )
    assert [row.name for row in report.left_out] == ["optimizer", "epoch", "args"]
    assert report.left_out[0].nbytes == sum(
        value.nbytes
        for state in thing["optimizer"]["state"].values()
        for value in state.values()
    )


def test_keep(tmp_path: Path) -> None:
    thing = training()
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = slimmed(
        source, tmp_path / "b.pt", keep=["epoch", "args", "optimizer.param_groups"]
    )

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(found) == ["model", "epoch", "args", "optimizer"]
    assert difference(thing["model"], found["model"]) is None
    assert found["args"] == {"lr": 0.1, "path": "runs"} and found["epoch"] == 3
    assert found["optimizer"] == {"param_groups": thing["optimizer"]["param_groups"]}
    assert "epoch" not in [row.name for row in report.left_out]
    with pytest.raises(UsageError, match="no such name") as caught:
        slimmed(source, tmp_path / "c.pt", keep=["epochs"])
    assert "epoch" in str(caught.value.hint)


def test_keep_of_something_inside_of_what_is_kept(tmp_path: Path) -> None:
    """Each key is written once, and the source stays as it is."""
    thing = training()
    source = rewriting.saved(thing, tmp_path / "a.pt")

    slimmed(
        source,
        tmp_path / "b.pt",
        keep=["optimizer.param_groups", "optimizer", "epoch", "epoch"],
    )

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(found) == ["model", "optimizer", "epoch"]
    assert difference(thing["optimizer"], found["optimizer"]) is None
    with formats.open(str(tmp_path / "b.pt")) as opened:
        assert [key for key, _ in children_of(opened.root)] == [
            "model",
            "optimizer",
            "epoch",
        ]
        assert [
            key for key, _ in children_of(dict(children_of(opened.root))["optimizer"])
        ] == [
            "state",
            "param_groups",
        ]


def test_several_models(tmp_path: Path) -> None:
    net = nn.Linear(2, 2).state_dict()
    source = rewriting.saved(
        {"generator": net, "discriminator": net}, tmp_path / "a.pt"
    )

    with pytest.raises(UsageError, match="holds 2 models") as caught:
        slimmed(source, tmp_path / "b.pt")
    assert caught.value.hint == (
        "--section generator, or --section discriminator; all: --section generator "
        "--keep discriminator"
    )
    done = ckpt(
        "slim",
        source,
        *("--section", "generator", "--keep", "discriminator"),
        *("-o", tmp_path / "all.pt"),
    )
    assert done.lines[0].startswith("kept generator, discriminator   4 tensors")
    both = torch.load(tmp_path / "all.pt")
    assert difference({"generator": net, "discriminator": net}, both) is None
    slimmed(source, tmp_path / "b.pt", section="generator")
    assert difference(net, torch.load(tmp_path / "b.pt")) is None


@pytest.mark.parametrize("legacy", [False, True])
def test_views_are_packed(legacy: bool, tmp_path: Path) -> None:
    base = torch.arange(1000.0)
    tied = torch.randn(4, 4)
    state = OrderedDict(
        a=base[10:14],
        b=base[500:520].view(4, 5),
        c=base[512:530],  # overlaps with b: they keep sharing
        d=base[900:1000:25],  # with gaps
        e=tied,
        f=tied,
        g=nn.Parameter(base[10:14]),
        h=base[0:0],
    )
    source = rewriting.saved(
        {"state_dict": state, "x": base},
        tmp_path / "a.pt",
        _use_new_zipfile_serialization=not legacy,
    )

    report = slimmed(source, tmp_path / "b.pt")

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    for name, value in state.items():
        assert torch.equal(found[name], value) and type(found[name]) is type(value), (
            name
        )
    memory = {name: value.untyped_storage() for name, value in found.items()}
    assert (
        memory["a"].data_ptr() == memory["g"].data_ptr() and memory["a"].nbytes() == 16
    )
    assert (
        memory["b"].data_ptr() == memory["c"].data_ptr() and memory["b"].nbytes() == 120
    )
    assert (
        memory["d"].nbytes() == 16 and memory["e"].data_ptr() == memory["f"].data_ptr()
    )
    (packed,) = [change for change in report.changes if change.kind == "packed"]
    assert packed.nbytes == 4000 - 16 - 120 - 16


@given(st.data())
@settings(max_examples=many(20, 80))
def test_views_of_every_kind(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    import strategies

    folder = tmp_path_factory.mktemp("views")
    dtype = getattr(
        torch,
        data.draw(
            st.sampled_from(["float32", "bfloat16", "int64", "complex64", "uint8"])
        ),
    )
    base = strategies._bytes_as(dtype, data.draw(st.integers(1, 60)), 1)
    state = {
        f"layer.{i}.weight": data.draw(strategies.tensors([base]))
        for i in range(data.draw(st.integers(1, 4)))
    }
    source = rewriting.saved(state, folder / "a.pt")
    before = rewriting.load(source)

    slimmed(source, folder / "b.pt")

    found = torch.load(folder / "b.pt", weights_only=True)
    for name, value in before.items():
        assert (
            type(found[name]) is type(value)
            and found[name].requires_grad == value.requires_grad
        )
        assert (found[name].is_conj(), found[name].is_neg()) == (
            value.is_conj(),
            value.is_neg(),
        )
        assert (
            torch.equal(
                found[name].view(-1) if value.dim() == 0 else found[name],
                value.view(-1) if value.dim() == 0 else value,
            )
            or value.isnan().any()
        )
    used = sum(
        memory.nbytes()
        for memory in {
            v.untyped_storage().data_ptr(): v.untyped_storage() for v in found.values()
        }.values()
    )
    assert used <= base.nbytes + 0 or len(state) == 0


def test_a_whole_module_becomes_its_state_dict(tmp_path: Path) -> None:
    net = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(1, 2, 3), bn=nn.BatchNorm2d(2), act=nn.ReLU())
    )
    net.register_buffer("scratch", torch.ones(3), persistent=False)
    net.extra = [nn.Linear(2, 2)]
    source = rewriting.saved(net, tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt")

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(found) == list(net.state_dict())
    assert all(
        torch.equal(found[name], value) for name, value in net.state_dict().items()
    )
    assert type(found) is OrderedDict
    assert {row.name for row in report.left_out} >= {
        "scratch",
        "extra.0.weight",
        "extra.0.bias",
    }


@pytest.mark.parametrize("name", real_files.FILES)
def test_real_files(name: str, tmp_path: Path) -> None:
    source = real_files.path(name)

    report = slimmed(source, tmp_path / "b.pt")

    found = torch.load(tmp_path / "b.pt", map_location="cpu", weights_only=True)
    with formats.open(str(source)) as checkpoint:
        weights = [
            e for e in checkpoint.tensors if e.path[:1] == ("state_dict",)
        ] or checkpoint.tensors
        assert len(found) == len(weights)
        for entry, value in zip(weights, found.values(), strict=True):
            ref = entry.tensor
            assert tuple(value.shape) == ref.shape
            assert value.contiguous().numpy().tobytes() == oracle.elements(
                ref, oracle.stored(ref.storage)
            )  # type: ignore[union-attr, arg-type]
    assert report.result.format == (
        "torch-zip" if name.startswith("pesto") else "torch-legacy"
    )


def test_what_is_no_weight_and_not_plain_is_left_out(tmp_path: Path) -> None:
    thing = {
        "state_dict": {
            "a.weight": torch.ones(1),
            "b.weight": torch.ones(1),
            "gen": torch.Generator(),
        }
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt")

    assert [(row.name, row.what) for row in report.left_out] == [
        ("state_dict.gen", "torch._C.Generator")
    ]
    assert set(torch.load(tmp_path / "b.pt")) == {"a.weight", "b.weight"}


def test_a_tensor_that_cannot_be_made_plain_is_refused(tmp_path: Path) -> None:
    thing = {
        "a.weight": torch.ones(1),
        "b.weight": torch.ones(1),
        "c.weight": saved.piece(0),
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")

    with pytest.raises(LossError, match=r"holds parts of 1 tensor, those of rank 0 \("):
        slimmed(source, tmp_path / "b.pt")
    slimmed(source, tmp_path / "b.pt", drop_other=True)
    assert set(torch.load(tmp_path / "b.pt")) >= {"a.weight", "b.weight"}


def test_a_tensor_of_which_its_rank_holds_all_is_kept(tmp_path: Path) -> None:
    thing = {
        "a.weight": torch.ones(1),
        "b.weight": torch.ones(1),
        "c.weight": saved.dtensor(),
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt")

    assert report.left_out == ()
    kept = torch.load(tmp_path / "b.pt", weights_only=True)["c.weight"]
    assert type(kept) is torch.Tensor and torch.equal(
        kept, thing["c.weight"].to_local()
    )


def test_slim_of_slim_is_the_same(tmp_path: Path) -> None:
    source = rewriting.saved(training(), tmp_path / "a.pt")
    slimmed(source, tmp_path / "b.pt")
    slimmed(tmp_path / "b.pt", tmp_path / "c.pt")

    assert (
        difference(torch.load(tmp_path / "b.pt"), torch.load(tmp_path / "c.pt")) is None
    )


def test_the_commands_lines() -> None:
    check_error(
        ckpt("slim", "train_cuda.pth", cwd=SAMPLES),
        "where to write? (-o train_cuda.slim.pth)",
    )
    assert ckpt("slim", "train_cuda.pth", "--dry-run", cwd=SAMPLES).lines == [
        "kept model   46 tensors, 16.0 KiB",
        "left out: optimizer: 69 tensors, 30.4 KiB",
        "left out: scaler: 0 tensors",
        "left out: scheduler: 0 tensors",
        "left out: epoch = 12",
        "left out: best_acc = 0.7615",
        "left out: args = argparse.Namespace(arch='resnet_tiny', data='data/imagenett…",
        (
            "left alone: module.*: the prefix of a wrapper, on 46 tensors  (--strip "
            "takes it off)"
        ),
        "nothing was written (--dry-run)",
    ]


@pytest.mark.parametrize(
    "command",
    [["slim"], ["convert", "--format", "safetensors"]],
    ids=lambda words: words[0],
)
def test_a_prefix_that_cannot_be_taken_off_is_told(
    command: list[str], tmp_path: Path
) -> None:
    state = {
        "module.a.weight": torch.ones(3),
        "a.weight": torch.zeros(3),
        "module.b.weight": torch.ones(2),
    }
    rewriting.saved(state, tmp_path / "a.pt")
    done = ckpt(*command, "a.pt", "--dry-run", cwd=tmp_path)
    clash = "module.a.weight and a.weight would both be called a.weight"
    assert done.code == 0
    assert f"left alone: names: the prefixes of wrappers stay: {clash}" in done.lines


def test_views_of_several_widths_over_the_same_bytes(tmp_path: Path) -> None:
    base = torch.arange(64, dtype=torch.uint8)
    for last in (9, 28):
        state = {
            "a.weight": base.view(torch.uint64)[1:3],
            "b.weight": base.view(torch.uint16)[3:last],
        }
        source = rewriting.saved(state, tmp_path / "a.pt")

        slimmed(source, tmp_path / "b.pt")

        found = torch.load(tmp_path / "b.pt")
        assert all(
            found[name].tolist() == value.tolist() for name, value in state.items()
        )


def test_many_small_tensors_leave_no_gaps(tmp_path: Path) -> None:
    state = {f"layers.{i}.weight": torch.randn(64) for i in range(500)}
    source = rewriting.saved({"model": state, "epoch": 1}, tmp_path / "a.pt")

    slimmed(source, tmp_path / "b.pt")

    # The root of the archive may have a longer name than the file.
    assert (tmp_path / "b.pt").stat().st_size <= 1.2 * source.stat().st_size


def test_the_state_dict_of_a_module_holds_no_parameters(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    slimmed(rewriting.saved(net, tmp_path / "a.pt"), tmp_path / "b.pt")

    found = torch.load(tmp_path / "b.pt")
    assert [type(value) for value in found.values()] == [torch.Tensor] * 2
    assert not any(value.requires_grad for value in found.values())


def test_what_became_plain_is_listed(tmp_path: Path) -> None:
    source = rewriting.saved(training(), tmp_path / "a.pt")

    report = slimmed(source, tmp_path / "b.pt", keep=["args"])

    assert ("plain", "argparse.Namespace") in [
        (change.kind, change.before) for change in report.changes
    ]


def test_what_is_kept_inside_of_the_model_is_there_once(tmp_path: Path) -> None:
    source = rewriting.saved(training(), tmp_path / "a.pt")
    report = slimmed(source, tmp_path / "b.pt", keep=["epoch", "model.0.weight"])
    assert [entry.name for entry in report.result.tensors] == [
        f"model.{name}" for name in training()["model"]
    ]
    assert set(torch.load(tmp_path / "b.pt", weights_only=True)) == {"model", "epoch"}


def test_views_of_a_deflated_storage_are_packed_with_their_values(
    tmp_path: Path,
) -> None:
    base = torch.arange(4096.0)
    state = {
        "a.weight": base[100:200],
        "b.weight": base[150:250],
        "c.weight": base[3000:3010],
    }
    source = rewriting.saved(state, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))

    slimmed(tmp_path / "z.pt", tmp_path / "b.pt")

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in state.items())
    assert found["a.weight"].untyped_storage().nbytes() == 600


def test_views_side_by_side_part_and_those_that_overlap_stay_together(
    tmp_path: Path,
) -> None:
    base = torch.arange(64.0)
    state = {"a.weight": base[0:4], "b.weight": base[4:8], "c.weight": base[7:12]}
    slimmed(rewriting.saved(state, tmp_path / "a.pt"), tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    sizes = {name: value.untyped_storage().nbytes() for name, value in found.items()}
    assert sizes == {"a.weight": 16, "b.weight": 32, "c.weight": 32}
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_a_view_inside_of_another_does_not_end_it(tmp_path: Path) -> None:
    base = torch.arange(64.0)
    state = {"a.weight": base[0:20], "b.weight": base[2:4], "c.weight": base[10:25]}
    slimmed(rewriting.saved(state, tmp_path / "a.pt"), tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in state.items())
    assert {value.untyped_storage().nbytes() for value in found.values()} == {100}


LAZY = ["0.weight", "0.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var"]


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(2), nn.Linear(1, 1), nn.LazyBatchNorm1d())


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("of", ["state dict", "module", "training"])
def test_lazy_parameters_that_have_not_run_are_left_out_and_named(
    of: str, tmp_path: Path
) -> None:
    model = lazy()
    things = {"state dict": model.state_dict(), "module": model}
    things["training"] = {"epoch": 3, "model": model.state_dict(), "name": "x"}
    rewriting.saved(things[of], tmp_path / "a.pth")
    names = [f"model.{name}" if of == "training" else name for name in LAZY]

    keep = {"keep": ["epoch"]} if of == "training" else {}
    report = slimmed(tmp_path / "a.pth", tmp_path / "b.pth", **keep)

    what = "uninitialized: its lazy module has not run yet"
    assert [row.name for row in report.left_out if row.what == what] == names
    written = torch.load(tmp_path / "b.pth")
    if of == "training":
        assert list(written) == ["model", "epoch"] and written["epoch"] == 3
        written = written["model"]
    assert list(written) == ["1.weight", "1.bias", "2.num_batches_tracked"]
    screen = inside("inspect", "a.pth", cwd=tmp_path).out.decode()
    assert (
        "uninitialized, for their lazy modules have not run: " in screen
        and "(True)" not in screen
    )


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("to", [["--plain", "-o", "b.pth"], ["-o", "b.safetensors"]])
def test_lazy_parameters_are_not_converted_in_silence(
    to: list[str], tmp_path: Path
) -> None:
    rewriting.saved(lazy().state_dict(), tmp_path / "a.pth")
    rewriting.saved(lazy(), tmp_path / "m.pth")

    says = "0.weight (uninitialized: its lazy module has not run yet)"
    check_error(inside("convert", "a.pth", *to, cwd=tmp_path), says)
    done = inside("convert", "m.pth", *to, cwd=tmp_path)
    left = [line for line in done.lines if "uninitialized" in line]
    assert [line.split(": ")[1] for line in left] == LAZY
    if "--plain" in to:
        assert (
            inside(
                "convert", "a.pth", *to, "--drop-other", "--force", cwd=tmp_path
            ).code
            == 0
        )
        assert torch.load(tmp_path / "b.pth")["0.weight"] is None


def trainer(
    folder: Path, name: str, optimizer: torch.optim.Optimizer, model: nn.Module
) -> Path:
    """A folder as the Trainer of Hugging Face and `save_state` of accelerate
    write it.
    """
    folder.mkdir()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if name.endswith(".safetensors"):
        del state["3.weight"]
        metadata = {
            "format": "pt",
            "3.weight": "1.weight",
        }  # as safetensors notes tied weights
        safetensors.torch.save_file(state, folder / name, metadata)
    else:
        torch.save(state, folder / name)
    torch.save(
        optimizer.state_dict(),
        folder / ("optimizer.pt" if ".safe" in name else "optimizer.bin"),
    )
    return folder


@pytest.mark.needs("folders")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kind", ["Adam", "SGD", "momentum"])
def test_a_folder_gives_its_weights_alone(kind: str, name: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[3].weight = model[1].weight
    made: dict[str, Any] = {
        "Adam": torch.optim.Adam(model.parameters()),
        "SGD": torch.optim.SGD(model.parameters(), 0.1),
        "momentum": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    }
    optimizer = made[kind]
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    trainer(tmp_path / "checkpoint-500", name, optimizer, model)
    (tmp_path / "out").mkdir()

    ways = [
        ("slim", "w" + name[-4:]),
        ("convert", "w.safetensors"),
        ("convert", "p.safetensors", "--plain"),
    ]
    if name.endswith("safetensors"):
        ways[0] = ("slim", "w.safetensors")
    for command, out, *more in ways:
        done = inside(
            command,
            "checkpoint-500",
            *more,
            "-o",
            f"out/{out}",
            "--force",
            cwd=tmp_path,
        )
        assert done.code == 0, done
        assert (
            sum(line.startswith("left out: optimizer: ") for line in done.lines) == 1
        ), done.lines
        with formats.open(str(tmp_path / "out" / out)) as written:
            named = {entry.name for entry in written.tensors}
            assert named >= set(model.state_dict()) - {"3.weight"} and not any(
                "state" in row for row in named
            )
            assert not [value for value in written.values if "optimizer" in value.name]
    kept = inside(
        "slim", "checkpoint-500", "--keep", "optimizer", "-o", "k.bin", cwd=tmp_path
    )
    if name.endswith("bin"):
        assert kept.code == 0
        assert (
            difference(
                torch.load(tmp_path / "k.bin")["optimizer"], optimizer.state_dict()
            )
            is None
        )
        assert set(torch.load(tmp_path / "k.bin")) == {*model.state_dict(), "optimizer"}


def of_views(count: int) -> dict[str, torch.Tensor]:
    """A state dict whose tensors see parts of one storage, each at two names; some of
    them overlap, some skip elements.
    """
    base = torch.arange(40.0 * count)
    state = {
        f"layers.{n}.weight": base[40 * n : 40 * n + 6].view(2, 3) for n in range(count)
    }
    state |= {
        f"layers.{n}.tied": weight.detach()
        for n, weight in enumerate(list(state.values()))
    }
    state |= {
        f"over.{n}.weight": base[40 * n + 4 : 40 * n + 9] for n in range(0, count, 7)
    }
    state |= {
        f"gaps.{n}.weight": base[40 * n + 20 : 40 * n + 40 : 5]
        for n in range(0, count, 5)
    }
    return state | {
        f"whole.{n}.weight": torch.full((2,), float(n)) for n in range(count)
    }


@pytest.mark.parametrize("count", [3, 40, pytest.param(1_200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", ["fast", "slow", None])
def test_views_are_packed_however_the_pickle_was_read(
    side: paths.Side | None, count: int, tmp_path: Path
) -> None:
    state = of_views(count)
    source = rewriting.saved({"epoch": 1, "model": state}, tmp_path / "a.pth")
    with paths.walking(side) if side else nullcontext():
        report = slimmed(source, tmp_path / "b.pth")
    (packed,) = [change for change in report.changes if change.kind == "packed"]
    overlaps, gaps = len(range(0, count, 7)), len(range(0, count, 5))
    seen = 4 * (6 * count + 3 * overlaps + 4 * gaps)
    assert (packed.number, packed.nbytes) == (1, 160 * count - seen)
    loaded = rewriting.load(tmp_path / "b.pth", weights_only=True)
    assert list(loaded) == list(state)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    storages = {name: tensor.untyped_storage() for name, tensor in loaded.items()}
    assert (
        len({storage.data_ptr() for storage in storages.values()}) == 2 * count + gaps
    )
    assert (
        sum({s.data_ptr(): s.nbytes() for s in storages.values()}.values())
        == seen + 8 * count
    )
    for n in range(count):
        assert (
            loaded[f"layers.{n}.weight"].data_ptr()
            == loaded[f"layers.{n}.tied"].data_ptr()
        )


@pytest.mark.parametrize("side", ["fast", "slow"])
def test_an_object_that_holds_tensors_is_taken_apart_however_it_was_read(
    side: paths.Side, tmp_path: Path
) -> None:
    """Its tensors are weights, so it is not left out as an object without any."""
    state: dict[str, Any] = {f"layers.{n}.weight": torch.ones(2) for n in range(60)}
    state["memory"] = argparse.Namespace(
        **{f"slot{n}": torch.full((3,), float(n)) for n in range(90)}
    )
    source = rewriting.saved(state, tmp_path / "a.pth")
    with paths.walking(side):
        slimmed(source, tmp_path / "b.pth")
    loaded = rewriting.load(tmp_path / "b.pth", weights_only=True)
    assert sum(isinstance(tensor, torch.Tensor) for tensor in loaded.values()) == 60
    assert [float(tensor[0]) for tensor in loaded["memory"].values()] == list(
        map(float, range(90))
    )


@pytest.mark.parametrize("words", (("slim",), ("convert", "--plain")))
@pytest.mark.parametrize("place", ("beside", "attribute", "root"))
def test_a_tuple_that_holds_itself_becomes_a_list(
    place: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """weights_only refuses the opcode that such a tuple takes."""
    held: list[Any] = []
    around = (held, torch.ones(2))
    held.append(around)
    parameter = nn.Parameter(torch.ones(3))
    if place == "attribute":
        parameter.holder = around  # type: ignore[attr-defined]
    things: dict[str, Any] = {"beside": {"w": parameter, "t": around}, "root": around}
    rewriting.saved(things.get(place, {"w": parameter}), tmp_path / "a.pth")

    done = inside(*words, "a.pth", "-o", "b.pth", cwd=tmp_path)

    assert done.code == 0, done
    assert b"a tuple that holds itself" in done.out + done.err
    found = torch.load(tmp_path / "b.pth", weights_only=True)
    got = (
        found
        if place == "root"
        else found["t"]
        if place == "beside"
        else found["w"].holder
    )
    assert got[0][0] is got
    assert torch.equal(got[1], torch.ones(2))


def test_an_attribute_that_holds_its_own_tensor_is_lost_only_when_asked(
    tmp_path: Path,
) -> None:
    tensor = torch.ones(3)
    tensor.holder = [tensor]  # type: ignore[attr-defined]
    rewriting.saved({"w": tensor, "v": torch.zeros(2)}, tmp_path / "a.pth")

    done = inside("slim", "a.pth", "-o", "b.pth", cwd=tmp_path)
    assert (done.code, len(done.complaints)) == (2, 1)
    assert "w (attributes that hold their own tensor)" in done.complaints[0]

    done = inside("slim", "--drop-other", "a.pth", "-o", "b.pth", cwd=tmp_path)
    assert done.code == 0, done
    found = torch.load(tmp_path / "b.pth", weights_only=True)
    assert torch.equal(found["w"], tensor)
    assert not hasattr(found["w"], "holder")


def test_drop_other_leaves_out_what_safetensors_cannot_hold(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2, 2), "graph": {"edges": 3}}
    torch.save({"model": state, "epoch": 1}, tmp_path / "a.pth")

    done = inside("slim", "a.pth", "-o", "b.safetensors", cwd=tmp_path)
    assert (done.code, len(done.complaints)) == (2, 1)
    assert "--drop-other" in done.complaints[0]

    done = inside("slim", "--drop-other", "a.pth", "-o", "b.safetensors", cwd=tmp_path)
    assert done.code == 0, done
    assert "graph" in done.out.decode()
    found = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert list(found) == ["a.weight"]


def test_a_folder_with_a_config_is_told_the_way_to_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors.torch.save_file(
        {"a.weight": torch.ones(2, 2)}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text('{"model_type": "x"}')

    done = ckpt("slim", "model", "-o", "small", cwd=tmp_path)

    check_error(done, "-o small/ --with-config, or -o small.pth")
    done = ckpt("slim", "model", "-o", "small/", "--with-config", cwd=tmp_path)
    assert done.code == 0, done.err
    assert sorted(os.listdir(tmp_path / "small")) == [
        "config.json",
        "model.safetensors",
    ]
    (tmp_path / "there.pth").touch()
    done = ckpt("slim", "model", "-o", "there.pth", cwd=tmp_path)
    assert "--with-config" not in check_error(done, "already exists")


class _Started:
    """Pickles as the start of a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.Popen, (["touch", "pwned"],)


@pytest.mark.parametrize("key", [None, "model"])
def test_the_arguments_of_a_program_are_not_kept(
    key: str | None, tmp_path: Path
) -> None:
    """They look like the list that makes an object of a class."""
    weights = {"fc.weight": torch.ones(2, 2), "v": _Started()}
    torch.save({key: weights} if key else weights, tmp_path / "a.pth")

    done = inside("slim", "a.pth", "-o", "x.pth", cwd=tmp_path)

    assert done.code == 0, done
    assert list(torch.load(tmp_path / "x.pth", weights_only=True)) == ["fc.weight"]
    name = f"{key}.v" if key else "v"
    assert f"left out: {name}: commands.Popen" in done.out.decode()
    assert not (tmp_path / "pwned").exists()


def test_what_another_format_cannot_hold_is_dropped_where_that_is_asked(
    tmp_path: Path,
) -> None:
    state = {"a": torch.ones(3), "c": torch.ones(2, dtype=torch.complex128)}
    torch.save(state, tmp_path / "a.pth")
    command = ("slim", "a.pth", "-o", "b.safetensors")

    refused = inside(*command, cwd=tmp_path)
    assert refused.code == 2 and refused.err.endswith(b"would be lost (--drop-other)\n")
    done = inside(*command, "--drop-other", cwd=tmp_path)
    assert done.code == 0 and b"left out: c: complex128, 32 B" in done.out
    assert safetensors.torch.load_file(tmp_path / "b.safetensors").keys() == {"a"}


def test_strip_that_meets_only_what_is_left_out_says_so(tmp_path: Path) -> None:
    model = {"fc.weight": torch.ones(2, 2)}
    averages = {f"module.{name}": value for name, value in model.items()}
    torch.save({"model": model, "swa": averages}, tmp_path / "a.pth")
    for options in (("--strip",), ("--prefix", "module.")):
        done = inside("slim", "a.pth", *options, "-o", "b.pth", "--force", cwd=tmp_path)
        assert done.code == 0
        assert (
            "left alone: names: nothing to strip: only what is left out has such a "
            "prefix"
        ) in done.lines


def test_values_that_are_kept_are_named(tmp_path: Path) -> None:
    whole = {"model": {"fc.weight": torch.ones(2, 2)}, "epoch": 3, "args": {"lr": 0.1}}
    torch.save(whole, tmp_path / "a.pth")
    done = inside(
        "slim", "a.pth", "--keep", "epoch", "--keep", "args.lr", "-o", "b.pth",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.lines[0] == "kept model, epoch, args.lr   1 tensor, 16 B"
    assert torch.load(tmp_path / "b.pth")["epoch"] == 3
