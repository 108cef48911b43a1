"""DeepSpeed's folders: fp32 weights and the optimizer's state, rebuilt from the parts
of the ranks.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import deepspeeds
import folders
import pytest
import torch
from deepspeeds import TAG, Live, Params, saved
from inside import inside

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.places import Patched, Range

KINDS = [
    (stage, ranks, dtype)
    for stage in (1, 2, 3)
    for ranks in (1, 2, 5)
    for dtype in ("float32", "bfloat16")
]


def opened(path: Path) -> Checkpoint:
    with formats.open(str(path)) as checkpoint:
        return checkpoint


def tensors(path: Path, section: str) -> Params:
    """The tensors of a section by their names in it, read."""
    with ckpt.open(path) as checkpoint:
        start = f"{section}."
        return {
            name.removeprefix(start): checkpoint[name].torch()
            for name in checkpoint
            if name.startswith(start)
        }


def check(found: Params, expected: Params) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def weights(live: Live, frozen: torch.dtype) -> Params:
    """The fp32 weights; frozen parameters have no fp32 copy."""
    return {
        name: value.to(frozen) if name in live.frozen else value
        for name, value in live.weights().items()
    }


@pytest.mark.parametrize(("stage", "ranks", "dtype"), KINDS)
def test_weights_are_rebuilt(
    stage: int, ranks: int, dtype: str, tmp_path: Path
) -> None:
    made = saved(stage, ranks, getattr(torch, dtype))
    folder = made.write(tmp_path / "run")

    check(tensors(folder, "model"), weights(made.live, made.dtype))

    found = opened(folder)
    assert (found.path, found.format, found.layout) == (
        str(folder),
        "deepspeed",
        f"DeepSpeed ZeRO-{stage} checkpoint",
    )
    assert dict(found.facts) == {"step": 3, "ranks": ranks, "DeepSpeed": "0.19.8"}
    assert found.account.notices == ()
    assert not (folder / "RAN").exists()


@pytest.mark.parametrize(("stage", "ranks", "dtype"), KINDS)
def test_the_state_of_the_optimizer_by_parameter(
    stage: int, ranks: int, dtype: str, tmp_path: Path
) -> None:
    made = saved(stage, ranks, getattr(torch, dtype))
    live, found = made.live, tensors(made.write(tmp_path / "run"), "optimizer.state")
    for name in live.trained:
        assert torch.equal(found[f"{name}.exp_avg"], live.exp_avg[name])
        assert torch.equal(found[f"{name}.exp_avg_sq"], live.exp_avg_sq[name])
        assert torch.equal(found[f"{name}.step"], torch.tensor(3.0))
    assert len(found) == 3 * len(live.trained)


def test_the_optimizer_is_one_of_torch(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    with ckpt.open(folder) as checkpoint:
        assert checkpoint.value("optimizer.param_groups") == [
            {
                "lr": 0.01,
                "weight_decay": 0.1,
                "params": ["emb.weight", "up.weight", "unused.weight"],
            },
            {"lr": 0.01, "weight_decay": 0.0, "params": ["up.bias", "scale"]},
        ]
    with formats.open(str(folder)) as opened_once:
        survey = Survey(opened_once)
        uses = survey.uses
    (match,) = survey.matches
    assert match.by_name and match.model is not None and match.model.name == "model"
    assert [uses[0].never, uses[0].lagging] == [(), ()], "a moment of zeros is no proof"
    steps = [entry.tensor for entry in survey.tensors if entry.name.endswith(".step")]
    storages = {id(step.storage) for step in steps}  # type: ignore[union-attr]
    assert len(storages) == len(steps), "optimizers count in place"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sections_and_roles(stage: int, tmp_path: Path) -> None:
    survey = Survey(opened(deepspeeds.write(tmp_path / "run", stage)))
    kinds = {part.name: part.kind for part in survey.sections}
    module = {"module": "other"} if stage in (1, 2) else {}
    assert kinds == {
        "model": "model",
        "optimizer": "optimizer",
        "lr_scheduler": "scheduler",
        **module,
    }
    roles = {
        survey.tensors[index].name: survey.roles[index]
        for part in survey.models
        for index in part.indices
    }
    assert (
        roles["model.bn.running_mean"][:2]
        == roles["model.bn.num_batches_tracked"][:2]
        == ("buffer", "certain")
    )
    assert (
        roles["model.frozen.weight"][:2]
        == roles["model.scale"][:2]
        == ("parameter", "certain")
    )


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_module_as_it_was_saved(stage: int, tmp_path: Path) -> None:
    made = saved(stage, 2, torch.bfloat16)
    section = "module" if stage else "model"
    found = tensors(made.write(tmp_path / "run"), section)
    check(found, dict(made.models["mp_rank_00_model_states.pt"]["module"]))


def test_values(tmp_path: Path) -> None:
    made = saved(1)
    made.models["mp_rank_00_model_states.pt"]["model"] = "the client's"
    with ckpt.open(made.write(tmp_path / "run")) as checkpoint:
        assert checkpoint.value("epoch") == 2
        assert checkpoint.value("lr_scheduler.last_epoch") == 3
        assert checkpoint.value("ds_config.zero_optimization.stage") == 1
        assert checkpoint.value("zero.stage") == 1
        assert checkpoint.value("zero.loss_scaler") == {
            "cur_scale": 1.0,
            "dynamic": False,
        }
        assert checkpoint.value("client_state.model") == "the client's"


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_folder_of_lightning(stage: int, tmp_path: Path) -> None:
    """Its tag is `checkpoint`, and what Lightning keeps besides is in the
    client state.
    """
    made = saved(stage)
    for state in made.models.values():
        state |= {
            "epoch": 7,
            "pytorch-lightning_version": "2.6.6",
            "hyper_parameters": {"lr": 0.5},
        }
    folder = made.write(tmp_path / "last.ckpt", "checkpoint")
    for path in (folder, folder / "latest"):
        with ckpt.open(path) as checkpoint:
            assert checkpoint.value("hyper_parameters.lr") == 0.5
    with formats.open(str(folder)) as whole:
        assert (
            whole.layout == f"Lightning checkpoint, DeepSpeed ZeRO-{stage} checkpoint"
        )
        assert dict(whole.facts) == {
            "epoch": 7,
            "step": 3,
            "ranks": 2,
            "DeepSpeed": "0.19.8",
        }


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shared_parameters_are_ties(stage: int, tmp_path: Path) -> None:
    found = {
        entry.name: entry.tensor
        for entry in opened(deepspeeds.write(tmp_path / "run", stage)).tensors
    }
    assert found["model.head.weight"].view == found["model.emb.weight"].view  # type: ignore[union-attr]


def test_the_line_that_loads_it(tmp_path: Path) -> None:
    """`tests/frameworks` runs these lines with DeepSpeed."""

    def line(path: Path) -> str | None:
        return Survey(opened(path)).load.expression

    call = 'get_fp32_state_dict_from_zero_checkpoint("{}", tag="global_step3")'
    for stage in (2, 3):
        folder = deepspeeds.write(tmp_path / f"z{stage}", stage)
        assert line(folder) == call.format(folder)
        assert line(folder / TAG) == call.format(folder / TAG).replace(
            TAG + '")', '.")'
        )
        note = Survey(opened(folder)).load.note
        assert note is not None and note.startswith(
            "from deepspeed.utils.zero_to_fp32 import "
        )
    one = deepspeeds.write(
        tmp_path / "z1", 1
    )  # whose frozen parameters DeepSpeed's function leaves out
    module = (
        f'torch.load("{one}" + "/{TAG}/mp_rank_00_model_states.pt", '
        'map_location="cpu")["module"]'
    )
    assert line(one) == f"{{**{module}, **{call.format(one)}}}"
    none = deepspeeds.write(tmp_path / "z0", 0)
    expression = line(none)
    assert expression is not None
    loaded = eval(expression, {"torch": torch})
    check(dict(loaded), Live().weights())


@pytest.mark.parametrize("inner", ["", TAG, "latest"])
@pytest.mark.parametrize("stage", [0, 3])
def test_any_path_into_it(inner: str, stage: int, tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", stage)
    found = opened(folder / inner)
    assert found.format == "deepspeed"
    assert found.path == str(folder / TAG if inner == TAG else folder)
    assert {entry.name for entry in found.tensors} == {
        entry.name for entry in opened(folder).tensors
    }


def test_a_file_of_it_is_a_file(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 0)
    assert opened(folder / TAG / "mp_rank_00_model_states.pt").format == "torch-zip"


def test_the_way_to_load_it_stands_apart_from_its_import(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 1)
    out = " ".join(inside("inspect", "run", cwd=tmp_path).out.decode().split())
    line = (
        "from deepspeed.utils.zero_to_fp32 import "
        "get_fp32_state_dict_from_zero_checkpoint"
    )
    assert f"only if you trust its author ({line}; it unpickles every file):" in out


def test_another_tag_and_a_prefix_as_lightning_has_them(tmp_path: Path) -> None:
    made = saved(2)
    for state in made.models.values():
        for key in (
            "module",
            "param_shapes",
            "frozen_param_shapes",
            "frozen_param_fragments",
            "shared_params",
        ):
            state[key] = renamed(state[key])
        state["buffer_names"] = [
            f"_forward_module.{name}" for name in state["buffer_names"]
        ]
        state |= {"pytorch-lightning_version": "2.6.5", "loops": {}}
    for state in made.states:
        state["param_slice_mappings"] = renamed(state["param_slice_mappings"])
    folder = made.write(tmp_path / "x.ckpt", "checkpoint")
    survey = Survey(opened(folder))
    assert [part.name for part in survey.models] == ["model"]
    done = inside("inspect", "x.ckpt", cwd=tmp_path)
    assert "all 10 names of model begin with _forward_module." in done.out.decode()
    assert inside("strip", "x.ckpt", "-o", "y.pth", cwd=tmp_path).code == 0
    with ckpt.open(tmp_path / "y.pth") as checkpoint:
        assert "model.emb.weight" in checkpoint and "module" not in checkpoint.sections


def renamed(node: Any) -> Any:
    if isinstance(node, list):
        return [renamed(child) for child in node]
    owners = {
        key: f"_forward_module.{child}"
        for key, child in node.items()
        if isinstance(child, str)
    }
    return type(node)(
        (f"_forward_module.{key}", owners.get(key, child))
        for key, child in node.items()
    )


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_universal_checkpoint(stage: int, dtype: torch.dtype, tmp_path: Path) -> None:
    made = saved(stage, 2, dtype)
    folder = deepspeeds.universal(made, tmp_path / "run")
    assert (
        opened(folder).layout
        == opened(folder / f"{TAG}_universal").layout
        == "DeepSpeed universal checkpoint"
    )
    assert dict(opened(folder).facts)["ranks"] == 2
    found = tensors(folder, "model")
    for name, value in weights(made.live, dtype).items():
        assert torch.equal(found[name].float(), value.float()), name
    assert found["bn.num_batches_tracked"].dtype == torch.int64
    state = tensors(folder, "optimizer.state")
    for name in made.live.trained:
        assert torch.equal(state[f"{name}.exp_avg"], made.live.exp_avg[name])
        assert state[f"{name}.exp_avg"].shape == made.live.trained[name].shape
    assert opened(folder).account.notices == ()
    with ckpt.open(folder) as checkpoint:
        assert checkpoint.value("optimizer.param_groups.1.params") == [
            "up.bias",
            "scale",
        ]
    (tmp_path / f"run/{TAG}_universal/zero/up.bias/fp32.pt").unlink()
    (notice,) = opened(folder).account.notices
    assert (notice.code, notice.tensors) == ("incomplete", ("up.bias",))


def test_latest_comes_before_latest_universal(tmp_path: Path) -> None:
    made = saved(2)
    folder = deepspeeds.universal(made, made.write(tmp_path / "run"))
    assert opened(folder).layout == "DeepSpeed ZeRO-2 checkpoint"
    assert (
        opened(folder / "latest_universal").layout == "DeepSpeed universal checkpoint"
    )


def test_parts_of_tensor_parallel_ranks_are_not_merged(tmp_path: Path) -> None:
    made = saved(1)
    other = {
        name.replace("mp_rank_00", "mp_rank_01"): state
        for name, state in made.models.items()
    }
    made.models |= other
    found = opened(made.write(tmp_path / "run"))
    assert found.layout == (
        "DeepSpeed checkpoint (tensor, pipeline or expert parallel ranks, side by side)"
    )
    names = {entry.path[0] for entry in found.tensors}
    assert (
        names
        == {path.removesuffix(".pt").removeprefix(f"{TAG}/") for path in found.parts}
        and len(names) == 4
    )
    assert Survey(found).load.expression is None


def test_experts_are_not_merged(tmp_path: Path) -> None:
    made = saved(2)
    for state in made.states:
        state["partition_count"] = [2, 1]
    found = opened(made.write(tmp_path / "run"))
    assert found.layout == "DeepSpeed checkpoint (expert parallel ranks, side by side)"


def test_paddings_between_parameters(tmp_path: Path) -> None:
    """Newer versions may align each parameter: `param_alignment_paddings` says by how
    much.
    """
    made = saved(1, 1)
    (state,) = made.states
    group = made.live.groups[1]
    flat = torch.cat(
        [torch.nn.functional.pad(value.flatten(), (0, 3)) for value in group.values()]
    )
    state["single_partition_of_fp32_groups"][1] = flat
    state["param_alignment_paddings"][1] = [3, 3]
    state["group_paddings"][1] = 0
    moments = state["base_optimizer_state"]["state"][1]
    moments |= {"exp_avg": flat.clone(), "exp_avg_sq": flat.clone()}
    state["param_slice_mappings"][1] = {
        "up.bias": deepspeeds.fragment_address(9, 0),
        "scale": deepspeeds.fragment_address(1, 12),
    }
    found = tensors(made.write(tmp_path / "run"), "model")
    assert torch.equal(found["scale"], group["scale"]) and torch.equal(
        found["up.bias"], group["up.bias"]
    )


def test_an_elastic_checkpoint(tmp_path: Path) -> None:
    made = saved(1)
    for state in made.states:
        state["base_optimizer_state"] = list(
            state["base_optimizer_state"]["state"].values()
        )
        del (
            state["group_paddings"],
            state["param_slice_mappings"],
            state["param_alignment_paddings"],
        )
    folder = made.write(tmp_path / "run")
    check(tensors(folder, "model"), made.live.weights())
    found = tensors(folder, "optimizer.state")
    assert torch.equal(found["scale.exp_avg"], made.live.exp_avg["scale"])


def test_state_that_no_parameter_owns(tmp_path: Path) -> None:
    made = saved(1)
    for state in made.states:
        state["base_optimizer_state"]["state"][0] |= {
            "row": torch.ones(3, 2),
            "count": 7,
        }
    found = opened(made.write(tmp_path / "run"))
    (notice,) = found.account.notices
    assert (notice.code, notice.message) == (
        "unread-file",
        "state row is not kept by parameter and was not read",
    )
    with ckpt.open(tmp_path / "run") as checkpoint:
        assert checkpoint.value("optimizer.state.emb.weight.count") == 7


def test_a_folder_of_the_trainer_stays_one(tmp_path: Path) -> None:
    """`checkpoint-500` with weights of its own: DeepSpeed's folder is a part of it."""
    folder = folders.trainer(tmp_path / "checkpoint-2")
    made = saved(2)
    made.write(folder / "below")
    os.rename(folder / "below" / TAG, folder / "global_step2")
    (folder / "latest").write_text("global_step2")
    found = opened(folder)
    assert found.format == "folder"
    (notice,) = found.account.notices
    assert notice.code == "unread-file" and "global_step2" in notice.message
    assert opened(folder / "global_step2").format == "deepspeed"


def test_each_parameter_is_ranges_of_the_files(tmp_path: Path) -> None:
    found = {
        e.name: e.tensor for e in opened(deepspeeds.write(tmp_path / "a", 1)).tensors
    }
    places = {name: tensor.storage.place for name, tensor in found.items()}  # type: ignore[union-attr]
    assert type(places["model.emb.weight"]) is Range, "all of it lies in the first rank"
    cut = places["model.up.weight"]
    assert type(cut) is Patched
    assert [(at, type(place), place.size) for at, place in cut.pieces] == [
        (0, Range, 4 * 17),
        (4 * 17, Range, 4 * 28),
    ]
    found = {
        e.name: e.tensor for e in opened(deepspeeds.write(tmp_path / "b", 3, 5)).tensors
    }
    cut = found["model.emb.weight"].storage.place  # type: ignore[union-attr]
    assert type(cut) is Patched and len(list(cut.pieces)) == 5


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 3, 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        check(tensors(folder, "model"), Live().weights())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ls_names_the_loader(stage: int, tmp_path: Path) -> None:
    """No argument of torch.load loads a folder."""
    deepspeeds.write(tmp_path / "run", stage)

    (row,) = ckpt.ls(tmp_path).rows

    assert row.loads == "DeepSpeed"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_file_of_a_rank_names_its_folder(stage: int, tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", stage)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"

    report = ckpt.inspect(tmp_path / "run" / TAG / name)

    assert report.to_json()["file"]["part_of"] == str(tmp_path / "run" / TAG)


def test_the_state_of_a_group_says_nothing_of_the_gradients_of_one_parameter(
    tmp_path: Path,
) -> None:
    """ZeRO steps a whole group, so that each parameter has state, and its moments may
    be zero for want of a gradient.
    """
    folder = saved(2).write(tmp_path / "run")
    message = "Parameter indices which did not receive grad for rank 0: 0"
    answer = inside("explain", message, folder, cwd=tmp_path)
    assert b"DDP counts" in answer.out
    assert b"had one earlier" not in answer.out
    assert b"A gradient in an earlier step" not in answer.out
    shown = inside("inspect", folder, cwd=tmp_path)
    assert b"parameters have state" in shown.out
