"""Pipelines of DeepSpeed: the layers and the stages as one checkpoint, and what is said
of files that are missing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import oracle
import pytest
import torch
from deepspeeds import TAG
from inside import inside
from pipelines import FROZEN, TIED, Pipeline

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UnreadableError

pytestmark = oracle.QUIET
BF16 = torch.bfloat16


def held(
    folder: Path, section: str, *, partial: bool = False
) -> dict[str, torch.Tensor]:
    with formats.open(str(folder), partial=partial) as checkpoint:
        opened = ckpt.open(folder)
        names = [entry.name for entry in checkpoint.tensors if entry.path[0] == section]
        return {
            name.removeprefix(f"{section}."): opened[name].torch() for name in names
        }


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), (
            name
        )


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (1, 1), (1, 2), (1, 3)])
def test_model_and_module_are_what_was_saved(
    stage: int, ranks: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    made = Pipeline(stage, ranks, dtype)
    folder = made.write(tmp_path / "run")
    same(held(folder, "model"), made.model)
    layers = {
        f"{number}.{key}": value
        for number, row in made.layers.items()
        for key, value in row.items()
    }
    same(held(folder, "module"), layers if stage else {})
    with formats.open(str(folder)) as found:
        assert found.layout == f"DeepSpeed ZeRO-{stage} checkpoint of a pipeline"
        assert not found.account.notices
        assert {name.rpartition("/")[2] for name in found.parts} == {
            path.name for path in (folder / TAG).iterdir()
        }
        facts = dict(found.facts)
        assert (facts["layers"], facts["stages"], facts["step"]) == (5, 2, 3)


def test_the_state_of_the_optimizer_has_the_names_of_all_stages(tmp_path: Path) -> None:
    made = Pipeline(1, 2)
    folder = made.write(tmp_path / "run")
    with ckpt.open(folder) as checkpoint:
        for name, value in made.trained.items():
            assert torch.equal(
                checkpoint[f"optimizer.state.{name}.exp_avg"].torch(), value * 0.5
            ), name
        (use,) = Survey(checkpoint.checkpoint).uses
        assert use.match.optimizer.name == "optimizer"
    done = inside("get", "run", "optimizer.param_groups", "--json", cwd=tmp_path)
    assert done.out.count(TIED.encode()) == 1, "tied in two stages, once in the groups"


def test_of_zero_0_each_stage_has_its_own_optimizer(tmp_path: Path) -> None:
    folder = Pipeline(0, 1).write(tmp_path / "run")
    with formats.open(str(folder)) as checkpoint:
        names = [
            part.name
            for part in Survey(checkpoint).sections
            if part.kind == "optimizer"
        ]
    assert names == ["optimizer.mp_rank_00", "optimizer.mp_rank_01"]


def test_bf16_without_zero_has_no_shapes_and_is_put_together_by_its_slices(
    tmp_path: Path,
) -> None:
    made = Pipeline(1, 2, BF16)
    for name, state in made.states.items():
        if "model_states" in name:
            state["param_shapes"] = state["shared_params"] = None
    same(held(made.write(tmp_path / "run"), "model"), made.model)
    (tmp_path / "run" / TAG / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt").unlink()
    with formats.open(str(tmp_path / "run")) as checkpoint:
        assert "side by side" in checkpoint.layout


def test_what_a_stage_has_besides_is_kept_below_its_rank(tmp_path: Path) -> None:
    made = Pipeline(1, 1)
    made.states["mp_rank_01_model_states.pt"]["seen"] = 7
    made.layers[1]["_extra_state"] = "text"  # type: ignore[assignment]
    with ckpt.open(made.write(tmp_path / "run")) as checkpoint:
        values = {row.name: row.node for row in checkpoint.checkpoint.values}
    assert values["mp_rank_01.seen"] == 7
    assert "model.1._extra_state" in values
    assert [name for name in values if name.startswith("mp_rank_01")] == [
        "mp_rank_01.seen"
    ]


def test_a_name_with_the_only_tensor_parallel_rank_is_the_same(tmp_path: Path) -> None:
    """Megatron-DeepSpeed always writes it: `layer_00-model_00-model_states.pt`."""
    made = Pipeline(1, 2)
    made.names = {
        number: f"layer_{number:02d}-model_00-model_states.pt" for number in made.layers
    }
    same(held(made.write(tmp_path / "run"), "model"), made.model)


@pytest.mark.parametrize("how", ["two files", "recorded", "one layer in two states"])
def test_tensor_parallel_ranks_stay_side_by_side(how: str, tmp_path: Path) -> None:
    made = Pipeline(1, 1)
    model = made.states["mp_rank_01_model_states.pt"]
    made.names = {
        number: f"layer_{number:02d}-model_00-model_states.pt" for number in made.layers
    }
    if how == "recorded":
        for rank in range(2):
            state = made.states[f"mp_rank_0{rank}_model_states.pt"]
            state["checkpoint_parallel_dimensions"] = {"pp_degree": 1, "tp_degree": 2}
    if how == "one layer in two states":
        model["buffer_names"] = ["1.mean"]
        for rank in range(2):
            del made.states[f"mp_rank_0{rank}_model_states.pt"][
                "checkpoint_parallel_dimensions"
            ]
    folder = made.write(tmp_path / "run")
    if how == "two files":
        at = folder / TAG
        shutil.copy(at / made.names[4], at / "layer_04-model_01-model_states.pt")
    with formats.open(str(folder)) as checkpoint:
        assert "side by side" in checkpoint.layout
        assert "model" not in {entry.path[0] for entry in checkpoint.tensors}
        assert any("layer_04" in name for name in checkpoint.parts)
    done = inside("convert", "run", "-o", "o.safetensors", cwd=tmp_path)
    assert done.code == 2 and done.err.count(b"\n") == 1, done


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verify", "run"), "all checksums match"),
        (("ls", "."), "deepspeed"),
        (("stats", "run"), TIED),
        (("convert", "run", "-o", "o.safetensors"), "wrote"),
        (("convert", "run", "-o", "o.pth"), "wrote"),
        (("convert", "run", "--weights", "module", "-o", "o.safetensors"), "wrote"),
        (("slim", "run", "-o", "o.pth"), "wrote"),
        (("diff", "run", "run"), "same"),
    ],
)
def test_commands(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    made = Pipeline(1, 2, BF16)
    made.write(tmp_path / "run")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and says in done.out.decode(), done
    if words[:1] == ("ls",):
        assert done.out.count(b"\n") == 2, "one row"
    if words[-1] == "o.safetensors":
        wanted = made.model
        if "module" in words:
            wanted = {
                f"{number}.{key}": value
                for number, row in made.layers.items()
                for key, value in row.items()
            }
        with ckpt.open(tmp_path / "o.safetensors") as written:
            same({name: written[name].torch() for name in written}, wanted)


# --- files that are missing -----------------------------------------------------------


@pytest.mark.parametrize("way", ["gone", "cut"])
def test_a_layer_is_missing(way: str, tmp_path: Path) -> None:
    made = Pipeline(1, 2, BF16)
    folder = made.write(tmp_path / "run")
    path = folder / TAG / made.names[4]
    os.remove(path) if way == "gone" else path.write_bytes(path.read_bytes()[:100])
    done = inside("convert", "run", "-o", "o.safetensors", cwd=tmp_path)
    assert done.code == 2 and b"--partial writes the whole tensors only" in done.err, (
        done
    )
    with formats.open(str(folder)) as checkpoint:
        (notice,) = [
            row for row in checkpoint.account.notices if row.code == "incomplete"
        ]
    assert "the weights of layer 4 are missing" in notice.message
    done = inside("convert", "run", "--partial", "-o", "p.safetensors", cwd=tmp_path)
    assert done.code == 1, done
    with ckpt.open(tmp_path / "p.safetensors") as written:
        wanted = {name: value for name, value in made.model.items() if name != FROZEN}
        same({name: written[name].torch() for name in written}, wanted)
    assert (
        inside(
            "convert", "run", "--section", "module", "-o", "q.safetensors", cwd=tmp_path
        ).code
        == 2
    )


def test_a_layer_with_a_buffer_is_missing(tmp_path: Path) -> None:
    made = Pipeline(1, 2)
    folder = made.write(tmp_path / "run")
    os.remove(folder / TAG / made.names[3])
    with formats.open(str(folder)) as checkpoint:
        (notice,) = checkpoint.account.notices
        assert notice.tensors == ("3.mean",)


def test_a_layer_of_zero_0_is_missing_by_the_count_of_the_optimizer(
    tmp_path: Path,
) -> None:
    made = Pipeline(0, 1)
    folder = made.write(tmp_path / "run")
    os.remove(folder / TAG / made.names[4])
    with formats.open(str(folder)) as checkpoint:
        (notice,) = checkpoint.account.notices
    assert (notice.code, notice.message) == (
        "incomplete",
        (
            "1 parameter of the optimizers is in no file of a layer: the file of a "
            "layer is missing"
        ),
    )
    assert inside("convert", "run", "-o", "o.pth", cwd=tmp_path).code == 2


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_states_of_a_stage_are_missing(
    rank: int, stage: int, tmp_path: Path
) -> None:
    made = Pipeline(stage, 2 if stage else 1, BF16)
    folder = made.write(tmp_path / "run")
    os.remove(folder / TAG / f"mp_rank_0{rank}_model_states.pt")
    with formats.open(str(folder)) as checkpoint:
        (notice,) = checkpoint.account.notices
    assert (
        f"the model states of 1 of 2 stages are missing: mp_rank_0{rank}"
        in notice.message
    )
    found = held(folder, "model")
    if not stage:
        same(found, made.model)
        return
    gone = (
        {"0.weight", "1.w.weight", "1.w.bias", "1.mean"}
        if rank == 0
        else {"3.w.weight", "3.w.bias", "3.mean"}
    )
    gone |= {"0.weight", "5.weight"} | ({"4.weight", FROZEN} if rank else set())
    assert set(notice.tensors) == gone
    same(found, {name: value for name, value in made.model.items() if name not in gone})


def test_all_model_states_are_missing(tmp_path: Path) -> None:
    made = Pipeline(0, 1)
    folder = made.write(tmp_path / "run")
    for rank in range(2):
        os.remove(folder / TAG / f"mp_rank_0{rank}_model_states.pt")
    same(held(folder, "model"), made.model)
    with formats.open(str(folder)) as checkpoint:
        (notice,) = checkpoint.account.notices
        assert (notice.code, "are missing: mp_rank_00" in notice.message) == (
            "incomplete",
            True,
        )


def test_two_steps_in_one_folder(tmp_path: Path) -> None:
    made, other = Pipeline(1, 2), Pipeline(1, 2, seed=1, step=4)
    folder, new = made.write(tmp_path / "run"), other.write(tmp_path / "new")
    name = "mp_rank_01_model_states.pt"
    shutil.copy(new / TAG / name, folder / TAG / name)
    with pytest.raises(
        UnreadableError, match="global_steps is 3 in mp_rank_00, 4 in mp_rank_01"
    ):
        formats.open(str(folder))


def test_names_that_are_hostile(tmp_path: Path) -> None:
    made = Pipeline(1, 2)
    folder = made.write(tmp_path / "run")
    at = folder / TAG
    shutil.copy(at / made.names[4], at / "layer_04-model_00-model_states.pt")
    with pytest.raises(UnreadableError, match="two files for layer 4"):
        formats.open(str(folder))
    os.remove(at / "layer_04-model_00-model_states.pt")
    torch.save([1, 2], at / made.names[4])
    with formats.open(str(folder)) as checkpoint:
        assert any("layer 4" in row.message for row in checkpoint.account.notices)


def test_many_layers(tmp_path: Path) -> None:
    """A hundred layers of twenty tensors, with names of 120 characters and three keys
    deep.
    """
    made = Pipeline(1, 2)
    long = "x" * 112
    for number in range(6, 106):
        made.layers[number] = {
            f"a.{key}.{long}": torch.full((2,), float(key)) for key in range(20)
        }
        made.names[number] = f"layer_{number:02d}-model_states.pt"
    folder = made.write(tmp_path / "run")
    found = held(folder, "model")
    same(found, made.model)
    assert len(found) > 2_000
