"""Distributed checkpoints as torch writes them: every tensor is the one that torch
gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
import train_dcp
from inside import inside
from torch.distributed.checkpoint.state_dict import get_state_dict

import ckpt
from ckpt import formats
from ckpt.surface.api.checkpoint import Ref

pytestmark = oracle.QUIET


def leaves(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """What torch takes apart: dicts, and lists that hold a tensor or a dict. Empty
    dicts are lost.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, str(key)))
    elif isinstance(value, list) and any(
        isinstance(each, (dict, torch.Tensor)) for each in value
    ):
        for number, each in enumerate(value):
            yield from leaves(each, (*path, number))
    else:
        yield path, value


def same(ref: Ref, tensor: torch.Tensor) -> bool:
    got = ref.torch()
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    one, two = got.contiguous(), tensor.detach().resolve_conj().contiguous()
    if not one.numel():
        return True
    return torch.equal(
        one.reshape(-1).view(torch.uint8), two.reshape(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("name", train_dcp.NAMES)
@pytest.mark.parametrize("blocks", ["usual", "small"])
def test_every_tensor_is_that_of_torch(
    name: str, blocks: str, trained: Path, request: pytest.FixtureRequest
) -> None:
    if blocks == "small":
        request.getfixturevalue("small_blocks")
    full = torch.load(trained / f"{name}.full.pt", weights_only=False)
    count = 0
    with ckpt.open(trained / name) as checkpoint:
        paths = {entry.path: entry.name for entry in checkpoint.checkpoint.tensors}
        for path, value in leaves(full):
            if isinstance(value, torch.Tensor):
                assert same(checkpoint[paths[path]], value), path
                count += 1
        in_objects = {"fsdp2": 1}  # a tuple is one object, and holds a tensor
        assert len(checkpoint) == count + in_objects.get(name, 0)


def test_the_tree_is_that_of_the_state_dict(trained: Path) -> None:
    with ckpt.open(trained / "fsdp2") as checkpoint:
        assert checkpoint.value("step") == 1
        assert checkpoint.value("config") == {"width": 16, "names": ["a", "b"]}
        assert checkpoint.value("optim.param_groups.0.lr") == 1e-3
        names = checkpoint.value("optim.param_groups.0.params")
        assert isinstance(names, list) and names[:2] == ["scale", "up.weight"]
        assert [row.name for row in checkpoint.sections if row.kind == "optimizer"] == [
            "optim"
        ]
        assert np.array_equal(checkpoint["both.0"].numpy(), np.arange(4))
    with ckpt.open(trained / "grids") as checkpoint:
        assert checkpoint.value("list.2") == 5
        assert checkpoint["list.1.x"].shape == (1,)


def test_the_order_is_that_of_the_model(trained: Path) -> None:
    """`.metadata` has the order in which the ranks were given their parts."""
    full = torch.load(trained / "fsdp2.full.pt", weights_only=False)
    with ckpt.open(trained / "fsdp2") as checkpoint:
        names = [name for name in checkpoint if name.startswith("model.")]
        assert checkpoint.checkpoint.traits.keeps_order
    assert names == [f"model.{name}" for name in full["model"]]


@pytest.mark.parametrize("inner", ["", ".metadata", "__1_0.distcp"])
def test_any_path_into_it_leads_to_it(inner: str, trained: Path) -> None:
    with formats.open(str(trained / "hsdp" / inner)) as checkpoint:
        assert checkpoint.format == "dcp"
        assert checkpoint.path.rstrip("/") == str(trained / "hsdp")
        assert len(checkpoint.tensors) == 35


def test_only_metadata_and_objects_are_read_of_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What inspect needs does not grow with the tensors."""
    with formats.open(str(trained / "grids")) as checkpoint:
        read = {
            source.name: getattr(source, "bytes_read", 0)
            for source in checkpoint.sources
        }
        sizes = {source.name: source.size for source in checkpoint.sources}
    data = [name for name in read if name.endswith(".distcp")]
    assert len(data) == 4
    assert sum(read[name] for name in data) <= 3000, read  # the one object in it
    assert sum(sizes[name] for name in data) > 60_000


def test_unused_parameters_are_named(trained: Path) -> None:
    report = ckpt.inspect(trained / "fsdp2")
    found = {row.code: row for row in report.findings}
    assert found["unused"].tensors == ("model.unused.weight", "model.unused.bias")
    assert "optim.state.unused.weight.step" in found["resume-stops"].message
    assert "resume-stops" not in {
        row.code for row in ckpt.inspect(trained / "later").findings
    }


def test_a_resume_stops_as_the_finding_says(tmp_path: Path) -> None:
    """The oracle of `resume-stops`: torch's own strict load."""
    torch.manual_seed(0)
    net = train_dcp.Net()
    model, optimizer = get_state_dict(net, train_dcp.trained(net))
    dcp.save({"model": model, "optim": optimizer}, checkpoint_id=str(tmp_path / "c"))
    (finding,) = [
        row
        for row in ckpt.inspect(tmp_path / "c").findings
        if row.code == "resume-stops"
    ]
    fresh = train_dcp.Net()
    state, other = get_state_dict(
        fresh, torch.optim.AdamW([p for p in fresh.parameters() if p.requires_grad])
    )
    with pytest.raises(
        BaseException, match="Missing key in checkpoint state_dict"
    ) as error:
        dcp.load({"model": state, "optim": other}, checkpoint_id=str(tmp_path / "c"))
    said = finding.message.rpartition('"Missing key')[2].rstrip('".')
    assert said.partition(": ")[2] in str(error.value)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(
        {"model": state, "optim": other},
        checkpoint_id=str(tmp_path / "c"),
        planner=planner,
    )


def test_files_of_another_save_are_named(trained: Path) -> None:
    (finding,) = ckpt.inspect(trained / "later").findings
    assert (finding.code, finding.level) == ("dead-files", "warning")
    assert "__9_0.distcp" in finding.message


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("name", ["fsdp2", "hsdp", "tensor_parallel", "grids", "fsdp1"])
def test_convert_writes_what_torch_gathers(
    name: str, ending: str, trained: Path, tmp_path: Path
) -> None:
    full = torch.load(trained / f"{name}.full.pt", weights_only=False)
    out = tmp_path / f"out.{ending}"
    select = (
        ["--section", "model"] if ending == "safetensors" and name != "grids" else []
    )
    exclude = (
        []
        if ending == "pth"
        else ["--drop-other", "--exclude", "complex", "--exclude", "conj"]
    )
    done = inside(
        "convert", str(trained / name), "-o", str(out), *select, *exclude, cwd=tmp_path
    )
    assert done.code == 0, done
    wanted = full["model"] if select else full
    with ckpt.open(out) as checkpoint:
        paths = {entry.path: entry.name for entry in checkpoint.checkpoint.tensors}
        names = set(checkpoint)
        for path, value in leaves(wanted):
            if isinstance(value, torch.Tensor) and (
                ending == "pth" or value.dtype != torch.complex64
            ):
                key = paths.get(path) or ".".join(map(str, path))
                assert key in names, path
                assert same(checkpoint[key], value), path


def test_a_diff_across_shardings_is_empty(trained: Path) -> None:
    """Four ranks, two by two, and two ranks with one seed."""
    for other in ("hsdp", "later", "many_files"):
        report = ckpt.diff(trained / "fsdp2", trained / other)
        rows = [
            row
            for row in report.rows
            if row.before is not None and row.before.name.startswith("model.")
        ]
        assert {row.status for row in rows} == {"same"}, other
        assert len(rows) == 14
    report = ckpt.diff(trained / "fsdp2", trained / "fsdp2.full.pt")
    assert {row.status for row in report.rows} == {"same"}


def test_ls_shows_one_row_for_each(trained: Path) -> None:
    done = inside("ls", str(trained), "--tsv", cwd=trained)
    lines = [line.split("\t") for line in done.out.decode().splitlines()[1:]]
    rows = {Path(line[0]).name: line for line in lines}
    for name in train_dcp.NAMES:
        assert rows[name][1] == "dcp", rows
    assert not [name for name in rows if "distcp" in name]


def test_how_a_tensor_is_cut_is_told(trained: Path) -> None:
    document = ckpt.inspect(trained / "grids").to_json()
    rows: Any = document["tensors"]
    cuts = {row["name"]: row.get("sharding") for row in rows}
    assert cuts["grid"] == {"parts": 4, "dims": [0, 1]}
    assert cuts["same dim"] == {"parts": 4, "dims": [0]}
    assert cuts["columns"] == {"parts": 4, "dims": [1]}
    assert cuts["empty parts"] == {"parts": 2, "dims": [0]}
    assert (
        cuts["replicated"] is None and cuts["number"] is None and cuts["none"] is None
    )
    shown = inside("inspect", str(trained / "fsdp2"), cwd=trained).out.decode()
    assert (
        "\n  sharded  25 of 36 tensors along dimension 0, in up to 4 parts\n" in shown
    ), shown
    shown = inside("get", str(trained / "grids"), "grid", cwd=trained).out.decode()
    assert "sharded  4 parts along dimensions 0, 1" in shown, shown


def test_a_counter_of_zero_is_state_too(tmp_path: Path) -> None:
    """Then nothing is missing for a load, though the parameter never had a gradient."""
    torch.manual_seed(0)
    net = train_dcp.Net()
    model, optimizer = get_state_dict(net, train_dcp.trained(net))
    for name in ("unused.weight", "unused.bias"):
        state = optimizer["state"]["up.bias"]
        optimizer["state"][name] = {
            key: torch.zeros_like(value) for key, value in state.items()
        }
    dcp.save({"model": model, "optim": optimizer}, checkpoint_id=str(tmp_path / "c"))
    codes = {row.code for row in ckpt.inspect(tmp_path / "c").findings}
    assert "unused" in codes and "resume-stops" not in codes


@pytest.mark.parametrize("keys", [(), ("model",), ("app", "net")])
def test_the_line_that_loads_names_the_dict_that_torch_fills(
    keys: tuple[str, ...], tmp_path: Path
) -> None:
    """torch finds `model.weight` in the files by the key `model` of the dict alone."""

    def nested(model: torch.nn.Module) -> dict[str, Any]:
        state: dict[str, Any] = model.state_dict()
        for key in reversed(keys):
            state = {key: state}
        return state

    saved, filled = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    dcp.save(nested(saved), checkpoint_id=str(tmp_path / "run"), no_dist=True)
    state = nested(filled)
    dcp.load(state, checkpoint_id=str(tmp_path / "run"), no_dist=True)
    assert torch.equal(saved.weight, filled.weight)

    done = inside("inspect", "run", cwd=tmp_path)

    words = "your model's state dict"
    for key in reversed(keys):
        words = f'{{"{key}": {words}}}'
    assert f"state is {words};" in done.out.decode()


def test_the_line_that_loads_names_each_of_several_models(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    models = {name: net.state_dict() for name in ("gen", "disc")}
    dcp.save(models, checkpoint_id=str(tmp_path / "run"), no_dist=True)

    done = inside("inspect", "run", cwd=tmp_path)

    assert 'state is {"gen": …, "disc": …}' in done.out.decode()
