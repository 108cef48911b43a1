"""`ckpt slim --ema`: averages as programs keep them, under the names of the model.
torch loads them strictly into it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

State = dict[str, torch.Tensor]


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 4, 3),
            bn=nn.BatchNorm2d(4),
            fc=nn.Linear(4, 2),
            more=nn.Linear(4, 2),
        )
    )


MODEL, AVERAGE = net(1), net(2)
WEIGHTS: State = dict(MODEL.state_dict())
AVERAGES: State = dict(AVERAGE.state_dict())
OTHER: State = dict(net(3).state_dict())
PARAMETERS: State = {
    name: parameter.data for name, parameter in AVERAGE.named_parameters()
}
IN_ORDER = list(PARAMETERS.values())
WITH_BUFFERS: State = {**WEIGHTS, **PARAMETERS}
"""The averages of the parameters, with the buffers of the model."""


def prefixed(state: State, prefix: str) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def lit_ema(state: State, prefix: str = "") -> State:
    """The averages as LitEma of latent diffusion names them."""
    flat = {
        f"model_ema.{(prefix + name).replace('.', '')}": tensor
        for name, tensor in state.items()
    }
    return {
        "model_ema.decay": torch.tensor(0.9),
        "model_ema.num_updates": torch.tensor(3),
        **flat,
    }


def averaged_model() -> State:
    wrapped = AveragedModel(MODEL)
    wrapped.module.load_state_dict(AVERAGES)
    return dict(wrapped.state_dict())


FILES: dict[str, tuple[Callable[[], Any], State]] = {
    "timm": (
        lambda: {"state_dict": WEIGHTS, "state_dict_ema": AVERAGES, "epoch": 1},
        AVERAGES,
    ),
    "BasicSR": (lambda: {"params": WEIGHTS, "params_ema": AVERAGES}, AVERAGES),
    "beside the model": (
        lambda: {
            "state_dict": {
                **prefixed(WEIGHTS, "model."),
                **prefixed(AVERAGES, "ema.model."),
                "ema.decay": torch.tensor(0.9),
            }
        },
        prefixed(AVERAGES, "model."),
    ),
    "beside the model, wrapped": (
        lambda: {
            "state_dict": {
                **prefixed(WEIGHTS, "net."),
                **prefixed(AVERAGES, "model_ema.module."),
            }
        },
        prefixed(AVERAGES, "net."),
    ),
    "beside the names": (
        lambda: {"state_dict": {**WEIGHTS, **prefixed(AVERAGES, "net_ema.")}},
        AVERAGES,
    ),
    "AveragedModel": (
        lambda: {"model": WEIGHTS, "swa_model": averaged_model()},
        AVERAGES,
    ),
    "AveragedModel alone": (averaged_model, AVERAGES),
    "LitEma": (
        lambda: {
            "state_dict": {**prefixed(WEIGHTS, "model."), **lit_ema(PARAMETERS)},
            "epoch": 1,
        },
        prefixed(WITH_BUFFERS, "model."),
    ),
    "Stable Diffusion": (
        lambda: {
            "state_dict": {
                **prefixed(WEIGHTS, "model.diffusion_model."),
                **prefixed(OTHER, "first_stage_model."),
                **lit_ema(PARAMETERS, "diffusion_model."),
            }
        },
        {
            **prefixed(WITH_BUFFERS, "model.diffusion_model."),
            **prefixed(OTHER, "first_stage_model."),
        },
    ),
    "diffusers": (
        lambda: {
            "model": WEIGHTS,
            "ema": {"decay": 0.9, "optimization_step": 3, "shadow_params": IN_ORDER},
        },
        WITH_BUFFERS,
    ),
    "torch_ema": (
        lambda: {
            "model": WEIGHTS,
            "ema_state": {"shadow_params": IN_ORDER, "collected_params": None},
        },
        WITH_BUFFERS,
    ),
    "NeMo": (
        lambda: {
            "state_dict": WEIGHTS,
            "optimizer_states": [
                {"state": {}, "param_groups": [{"params": [0]}], "ema": tuple(IN_ORDER)}
            ],
        },
        WITH_BUFFERS,
    ),
    "shadow": (lambda: {"model": WEIGHTS, "shadow": PARAMETERS}, WITH_BUFFERS),
    "ema_pytorch": (
        lambda: {
            "model": WEIGHTS,
            "ema": {
                **prefixed(WEIGHTS, "online_model."),
                **prefixed(AVERAGES, "ema_model."),
                "initted": torch.tensor(True),
                "step": torch.tensor(3),
            },
        },
        AVERAGES,
    ),
    "DDP": (
        lambda: {"model": prefixed(WEIGHTS, "module."), "ema": AVERAGES},
        prefixed(AVERAGES, "module."),
    ),
    "Lightning": (
        lambda: {
            "state_dict": prefixed(WEIGHTS, "net."),
            "pytorch-lightning_version": "2.5",
            "callbacks": {"EMA": {"ema_state_dict": prefixed(AVERAGES, "net.")}},
        },
        prefixed(AVERAGES, "net."),
    ),
    "YOLO": (lambda: {"model": MODEL, "ema": AVERAGE, "updates": 7}, AVERAGES),
    "YOLO at its end": (
        lambda: {"model": None, "ema": AVERAGE, "updates": 7},
        AVERAGES,
    ),
    "half": (
        lambda: {"model": {k: v.half() for k, v in WEIGHTS.items()}, "ema": AVERAGES},
        AVERAGES,
    ),
}
"""What a program saves, and what its averages are under the names of the model."""


def saved(thing: Any, path: Path) -> Path:
    torch.save(thing, path)
    return path


def slimmed(path: Path, *options: str) -> tuple[State, dict[str, Any]]:
    """The averages, and the report."""
    out = path.parent / "out.pth"
    done = ckpt("slim", path, "--ema", "-o", out, "--force", "--json", *options)
    assert done.code == 0, done.err
    return torch.load(out, weights_only=True), json.loads(done.out)


def refused(path: Path, *options: str) -> str:
    done = ckpt("slim", path, "--ema", "-o", path.parent / "out.pth", *options)
    assert done.code == 2 and not (path.parent / "out.pth").exists()
    (line,) = done.complaints
    return line


def assert_equal(state: State, expected: State) -> None:
    assert list(state) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype, (
            name
        )


@pytest.mark.parametrize("name", FILES)
def test_the_averages_have_the_names_of_the_model(name: str, tmp_path: Path) -> None:
    make, expected = FILES[name]
    state, report = slimmed(saved(make(), tmp_path / "run.pth"))

    assert_equal(state, expected)
    (change,) = [row for row in report["changes"] if row["kind"] == "averaged"]
    assert change["count"] in (len(PARAMETERS), len(AVERAGES))


def test_torch_loads_them_strictly(tmp_path: Path) -> None:
    for make, _ in (FILES["diffusers"], FILES["timm"], FILES["AveragedModel alone"]):
        state, _ = slimmed(saved(make(), tmp_path / "run.pth"))
        net(3).load_state_dict(state, strict=True)


@pytest.mark.parametrize("name", ["NeMo", "LitEma", "timm", "ema_pytorch", "diffusers"])
def test_all_that_is_left_out_is_listed(name: str, tmp_path: Path) -> None:
    _, report = slimmed(saved(FILES[name][0](), tmp_path / "run.pth"))

    listed = {row["name"]: row["what"] for row in report["left_out"]}
    expected = {
        "NeMo": {"state_dict", "optimizer_states.0"},
        "LitEma": {"state_dict", "state_dict.model_ema", "epoch"},
        "timm": {"state_dict", "epoch"},
        "ema_pytorch": {"model", "ema"},
        "diffusers": {"model", "ema.shadow_params"},
    }
    assert set(listed) == expected[name]
    if name in ("LitEma", "NeMo", "diffusers"):
        (row,) = report["left_alone"]
        assert row["what"].startswith(
            "3 tensors without an average, as the model has them"
        )


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "sd.safetensors"
    state = FILES["Stable Diffusion"][0]()["state_dict"]
    save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    out = tmp_path / "ema.safetensors"

    assert ckpt("slim", path, "--ema", "-o", out).code == 0
    expected = FILES["Stable Diffusion"][1]
    found = load_file(out)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_tied_weights_are_averaged_once(tmp_path: Path) -> None:
    """A language model whose head is its embedding: the list holds it once, the state
    dict twice.
    """
    weight, average = torch.ones(5, 3), torch.full((5, 3), 2.0)
    model = {
        "embed.weight": weight,
        "fc.bias": torch.zeros(3),
        "head.weight": weight.view(5, 3),
    }
    saves = {"model": model, "ema": {"shadow_params": [average, torch.ones(3)]}}
    state, _ = slimmed(saved(saves, tmp_path / "run.pth"))

    assert torch.equal(state["embed.weight"], average) and torch.equal(
        state["head.weight"], average
    )
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


def test_strip_comes_after(tmp_path: Path) -> None:
    state, _ = slimmed(saved(FILES["DDP"][0](), tmp_path / "run.pth"), "--strip")

    assert_equal(state, AVERAGES)


def test_several_models(tmp_path: Path) -> None:
    saves = {
        "G": WEIGHTS,
        "D": WEIGHTS,
        "G_ema": AVERAGES,
        "D_ema": prefixed(AVERAGES, ""),
    }
    path = saved(saves, tmp_path / "gan.pth")

    assert refused(path).endswith(
        "holds 2 sets of averages (--section G_ema, or --section D_ema)"
    )
    for section in ("G_ema", "G"):
        assert_equal(slimmed(path, "--section", section)[0], AVERAGES)


# --- refusals -------------------------------------------------------------------------


def test_a_file_without_averages(tmp_path: Path) -> None:
    assert "finds no averages" in refused(
        saved({"model": WEIGHTS}, tmp_path / "run.pth")
    )
    assert "exclude each other" in refused(tmp_path / "run.pth", "--keep", "epoch")


def test_a_list_that_fits_no_order(tmp_path: Path) -> None:
    saves = {"model": WEIGHTS, "ema": {"shadow_params": IN_ORDER[:-1]}}
    line = refused(saved(saves, tmp_path / "run.pth"))
    assert "5 tensors" not in line and "no order tells their names" in line

    saves = {"model": WEIGHTS, "ema": {"shadow_params": IN_ORDER[::-1]}}
    assert "no order tells their names" in refused(saved(saves, tmp_path / "run.pth"))
    assert "have no names" in refused(
        saved({"ema": {"shadow_params": IN_ORDER}}, tmp_path / "run.pth")
    )


def test_a_list_that_fits_two_models(tmp_path: Path) -> None:
    saves = {"a": WEIGHTS, "b": WEIGHTS, "ema": {"shadow_params": IN_ORDER}}
    assert "2 models have parameters of these shapes" in refused(
        saved(saves, tmp_path / "run.pth")
    )


def test_names_without_dots_that_two_tensors_have(tmp_path: Path) -> None:
    model = {
        "model.a.b": torch.ones(3),
        "model.ab": torch.zeros(3),
        "model.c.weight": torch.ones(2),
    }
    saves = {
        "state_dict": {
            **model,
            **lit_ema({"ab": torch.ones(3), "c.weight": torch.ones(2)}),
        }
    }
    line = refused(saved(saves, tmp_path / "run.pth"))
    assert "is not the name of one tensor of the model without its dots" in line


def test_averages_of_another_shape(tmp_path: Path) -> None:
    other = {**AVERAGES, "fc.weight": torch.ones(7, 4)}
    line = refused(saved({"model": WEIGHTS, "ema": other}, tmp_path / "run.pth"))
    assert line.endswith("ema: fc.weight has the shape [7, 4], and [2, 4] in the model")


def test_averages_without_data(tmp_path: Path) -> None:
    averages = {name: tensor.to("meta") for name, tensor in AVERAGES.items()}
    path = saved({"model": WEIGHTS, "ema": averages}, tmp_path / "a.pth")

    assert "ema: conv.weight is on meta, without data" in refused(path)


def test_averages_of_other_names(tmp_path: Path) -> None:
    line = refused(
        saved({"model": WEIGHTS, "ema": prefixed(AVERAGES, "x.")}, tmp_path / "run.pth")
    )
    assert "x.conv.weight is no name of model" in line


@pytest.mark.parametrize(
    ("saves", "why"),
    [
        (
            {
                "state_dict": AVERAGES,
                "ema_state_dict": {
                    "steps": torch.tensor(5),
                    **prefixed(WEIGHTS, "module."),
                },
            },
            "mmengine puts the averages in the place of the weights",
        ),
        (
            {
                "state_dict": {
                    **AVERAGES,
                    **{f"ema_{k.replace('.', '_')}": v for k, v in WEIGHTS.items()},
                }
            },
            "the EMA hook of mmcv swaps them",
        ),
        (
            {
                "state_dict": AVERAGES,
                "current_model_state": WEIGHTS,
                "averaging_state": {"n_averaged": 3},
            },
            "Lightning has put the averages in the place of the weights",
        ),
    ],
)
def test_programs_that_swap_both_when_they_save(
    saves: Any, why: str, tmp_path: Path
) -> None:
    """Their usual key loads the averages: to swap again would give the weights of the
    training.
    """
    assert why in refused(saved(saves, tmp_path / "run.pth"))


def test_averages_beside_the_model_of_other_shapes(tmp_path: Path) -> None:
    other = {name: tensor[:1] for name, tensor in AVERAGES.items() if tensor.ndim}
    state = {**prefixed(WEIGHTS, "model."), **prefixed(other, "ema.model.")}
    path = saved({"state_dict": state}, tmp_path / "run.pth")
    assert "finds no averages" in refused(path)


# --- the finding ----------------------------------------------------------------------


def test_inspect_says_that_they_are_there(tmp_path: Path) -> None:
    path = saved(FILES["LitEma"][0](), tmp_path / "run.ckpt")
    findings = json.loads(ckpt("inspect", path, "--json").out)["findings"]

    (finding,) = [row for row in findings if row["code"] == "averages"]
    assert (
        finding["message"]
        == "10 tensors of state_dict are running averages (EMA) of others: model_ema.…"
    )
    assert finding["hint"] == f"ckpt slim {path} --ema -o {tmp_path}/run.slim.ckpt"
    other = json.loads(
        ckpt("inspect", saved(FILES["timm"][0](), tmp_path / "b.pth"), "--json").out
    )
    assert all(row["code"] != "averages" for row in other["findings"])


def test_many_tensors(tmp_path: Path) -> None:
    state = {
        f"model.layers.{i}.{'x' * 80}.weight": torch.full((2,), float(i))
        for i in range(2100)
    }
    flat = {name.removeprefix("model."): tensor + 0.5 for name, tensor in state.items()}
    path = saved({"state_dict": {**state, **lit_ema(flat)}}, tmp_path / "run.pth")

    found, _ = slimmed(path)
    assert_equal(found, {name: tensor + 0.5 for name, tensor in state.items()})
