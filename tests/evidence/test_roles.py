"""Parameter or buffer: what each tensor is said to be, how surely, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from torch import nn

import ckpt
from ckpt import formats
from ckpt.evidence.record import ModelRecord, TensorRecord
from ckpt.evidence.roles import Role
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError

pytestmark = oracle.QUIET
FLOAT, INT = torch.ones(3), torch.ones(3, dtype=torch.int64)


def roles(
    thing: Any, folder: Path, model: ModelRecord | None = None
) -> dict[str, Role]:
    with formats.open(str(rewriting.saved(thing, folder / "a.pt"))) as checkpoint:
        survey = Survey(checkpoint, model)
        return {
            entry.name: role
            for entry, role in zip(survey.tensors, survey.roles, strict=True)
        }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            {
                "n.weight": FLOAT,
                "n.running_mean": FLOAT,
                "n.running_var": FLOAT,
                "n.num_batches_tracked": INT,
            },
            ["parameter strong", "buffer strong", "buffer strong", "buffer strong"],
        ),
        (
            {"n.weight": FLOAT, "n.running_mean": FLOAT, "n.running_var": FLOAT},
            ["unknown none", "buffer strong", "buffer strong"],
        ),
        (
            {"n.bias_orig": FLOAT, "n.bias_u": FLOAT, "n.bias_v": FLOAT},
            ["parameter likely", "buffer strong", "buffer strong"],
        ),
        (
            {"n.weight_g": FLOAT, "n.weight_v": FLOAT},
            ["parameter strong", "parameter strong"],
        ),
        ({"n.weight_v": FLOAT, "n.bias": FLOAT}, ["unknown none", "parameter likely"]),
        (
            {
                "n.parametrizations.weight.original": FLOAT,
                "n.parametrizations.weight.0._u": FLOAT,
                "n.parametrizations.weight.0._v": FLOAT,
            },
            ["parameter strong", "buffer strong", "buffer strong"],
        ),
        ({"n.steps": INT, "n.seen": FLOAT.bool()}, ["buffer strong", "buffer strong"]),
        # e3nn's Linear without a bias: an empty buffer has its name.
        (
            {"n.weight": FLOAT, "n.bias": torch.empty(0), "n.output_mask": FLOAT},
            ["parameter likely", "unknown none", "buffer likely"],
        ),
        (
            {"n.table": FLOAT.to(torch.uint8), "n.qweight": INT},
            ["buffer likely", "unknown none"],
        ),
        (
            {"rope.inv_freq": FLOAT, "n.weight": FLOAT},
            ["buffer likely", "parameter likely"],
        ),
        (
            {"n.weight_orig": FLOAT, "n.weight": FLOAT},
            ["parameter likely", "buffer likely"],
        ),
        (
            {"n.weight": FLOAT, "n.weight_scale": FLOAT},
            ["unknown none", "unknown none"],
        ),
        (
            {"criterion.weight": FLOAT, "a.loss.bias": FLOAT},
            ["unknown none", "unknown none"],
        ),
        (
            {"n.pos_weight": FLOAT, "n.weight_mask": FLOAT},
            ["unknown none", "unknown none"],
        ),
        (
            {"h.attn.bias": torch.ones(1, 1, 4, 4), "h.fc.bias": FLOAT},
            ["buffer likely", "parameter likely"],
        ),
        # A square matrix called bias is a parameter, a causal mask has two more
        # dimensions.
        (
            {"h.bias": torch.ones(4, 4), "a.bias": torch.ones(1, 4, 4)},
            ["parameter likely"] * 2,
        ),
        (
            {
                "likelihood.raw_noise_constraint.lower_bound": FLOAT,
                "k.lengthscale_prior.rate": FLOAT,
            },
            ["buffer likely"] * 2,
        ),
        (
            {
                "betas": FLOAT,
                "alphas_cumprod_prev": FLOAT,
                "sqrt_one_minus_alphas_cumprod": FLOAT,
            },
            ["buffer likely"] * 3,
        ),
        (
            {
                "a.weight": FLOAT,
                "d.sqrt_recip_alphas_cumprod": FLOAT,
                "d.posterior_mean_coef1": FLOAT,
            },
            ["parameter likely", "buffer likely", "buffer likely"],
        ),
        (
            {
                "a.weight": FLOAT,
                "model_ema.decay": FLOAT,
                "model_ema.diffusionweight": FLOAT,
            },
            ["parameter likely", "buffer likely", "buffer likely"],
        ),
        (
            {"vq._codebook.embed": FLOAT, "vq._codebook.cluster_size": FLOAT},
            ["buffer likely"] * 2,
        ),
        (
            {"betas_of": FLOAT, "a.alphas": FLOAT, "m.prior.x": FLOAT},
            ["unknown none"] * 3,
        ),
        (
            {"rnn.weight_ih_l0": FLOAT, "rnn.bias_hh_l1_reverse": FLOAT},
            ["parameter likely"] * 2,
        ),
        (
            {"m.in_proj_weight": FLOAT, "m.q_proj_weight": FLOAT, "m.bias_k": FLOAT},
            ["parameter likely"] * 3,
        ),
        (
            {
                "m.lora_A.weight": FLOAT,
                "m.lora_magnitude_vector": FLOAT,
                "e.lora_embedding_B": FLOAT,
                "k.ia3_l": FLOAT,
                "v.vera_lambda_d": FLOAT,
            },
            ["parameter likely"] * 5,
        ),
    ],
)
def test_names_beside_each_other_and_dtypes(
    names: dict[str, torch.Tensor], expected: list[str], tmp_path: Path
) -> None:
    assert [
        f"{role.role} {role.trust}" for role in roles(names, tmp_path).values()
    ] == expected


def adam(shapes: list[tuple[int, ...]], **fields: Any) -> dict[str, Any]:
    state = {
        i: {"step": torch.tensor(1.0), "exp_avg": torch.ones(shape)}
        for i, shape in enumerate(shapes)
    }
    return {
        "state": state,
        "param_groups": [{"lr": 0.1, "params": list(range(len(shapes))), **fields}],
    }


def test_names_that_an_optimizer_keeps_are_certain_of_wrapped_models_too(
    tmp_path: Path,
) -> None:
    optimizer = adam([(3,), (3,)], param_names=["a.weight", "a.bias"])
    found = roles(
        {
            "model": {"module.a.weight": FLOAT, "module.a.bias": FLOAT},
            "optimizer": optimizer,
        },
        tmp_path,
    )
    assert [found[f"model.module.a.{leaf}"].trust for leaf in ("weight", "bias")] == [
        "certain"
    ] * 2


def test_a_name_that_an_optimizer_keeps_is_certain_where_most_of_its_names_are_gone(
    tmp_path: Path,
) -> None:
    optimizer = adam(
        [(3,), (9,), (9,)], param_names=["a.weight", "x.weight", "y.weight"]
    )
    found = roles(
        {"model": {"module.a.weight": FLOAT}, "optimizer": optimizer}, tmp_path
    )
    assert found["model.module.a.weight"][:2] == ("parameter", "certain")


def test_an_optimizer_by_shape_is_strong_and_raises_what_a_name_made_likely(
    tmp_path: Path,
) -> None:
    model = {
        "a.weight": torch.ones(2, 3),
        "pos.pe": torch.ones(5),
        "b.weight": torch.ones(7),
    }
    found = roles({"model": model, "optimizer": adam([(2, 3), (5,)])}, tmp_path)
    assert found["model.a.weight"][:2] == ("parameter", "strong")
    assert found["model.pos.pe"][:2] == ("parameter", "strong")
    assert found["model.b.weight"][:3] == ("parameter", "likely", "name")
    assert "not in the optimizer, so a buffer or frozen" in found["model.b.weight"].note


def test_an_optimizer_without_state_but_of_as_many_parameters_is_strong(
    tmp_path: Path,
) -> None:
    sgd = {"state": {}, "param_groups": [{"lr": 0.1, "momentum": 0, "params": [0, 1]}]}
    model = {"a.weight": torch.ones(3), "a.bias": torch.ones(3)}
    found = roles({"model": model, "optimizer": sgd}, tmp_path)
    assert found["model.a.bias"][:3] == ("parameter", "strong", "optimizer")


def test_state_is_the_optimizers_also_when_it_is_saved_as_a_parameter(
    tmp_path: Path,
) -> None:
    optimizer = adam([(3,)])
    optimizer["state"][0]["exp_avg"] = nn.Parameter(torch.ones(3))
    found = roles({"model": {"a.weight": FLOAT}, "optimizer": optimizer}, tmp_path)
    assert found["optimizer.state.0.exp_avg"].role == "optimizer"


def test_a_word_of_the_state_is_no_name_of_a_parameter(tmp_path: Path) -> None:
    optimizer = {
        "state": {"scale": 2.0},
        "param_groups": [{"lr": 0.1, "params": [0, 1, 2]}],
    }
    found = roles(
        {"model": {"scale": FLOAT, "a.weight": FLOAT}, "optimizer": optimizer}, tmp_path
    )
    assert found["model.scale"].role == "unknown"


def test_names_that_key_the_state_are_those_of_parameters(tmp_path: Path) -> None:
    state = {"a.weight": {"step": torch.tensor(1.0), "exp_avg": torch.ones(3)}}
    optimizer = {"state": state, "param_groups": [{"lr": 0.1}]}
    found = roles(
        {"model": {"a.weight": FLOAT, "b.weight": FLOAT}, "optimizer": optimizer},
        tmp_path,
    )
    assert found["model.a.weight"][:2] == ("parameter", "certain")
    assert found["model.b.weight"][:3] == ("parameter", "likely", "name")


def held(thing: Any, folder: Path) -> dict[str, bool | None]:
    with formats.open(str(rewriting.saved(thing, folder / "a.pt"))) as checkpoint:
        survey = Survey(checkpoint)
        return {
            row.name.removeprefix("model."): value
            for row, value in zip(survey.tensors, survey.in_optimizer, strict=True)
            if row.path[0] != "optimizer"
        }


def test_in_the_optimizer_or_not_or_open(tmp_path: Path) -> None:
    a, b, c = torch.ones(2, 3), torch.ones(4), torch.ones(5)
    model = {"a.weight": a, "tied.weight": a, "b.weight": b, "n.steps": INT}
    whole = {
        "model": model,
        "optimizer": adam([(2, 3)]),
        "mean": c,
        "ema": {"a.weight": a.clone()},
    }
    assert held(whole, tmp_path) == {
        "a.weight": True,
        "tied.weight": True,
        "b.weight": False,
        "n.steps": False,
        "mean": None,
        "ema.a.weight": None,
    }
    # One of b and c is the optimizer's: of neither it is known.
    either = {
        "model": {"a.weight": a, "b.weight": b, "c.weight": b + 1},
        "optimizer": adam([(2, 3), (4,)]),
    }
    assert held(either, tmp_path) == {
        "a.weight": True,
        "b.weight": None,
        "c.weight": None,
    }
    assert held(model, tmp_path) == dict.fromkeys(model)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2), nn.LSTM(2, 3)
        ),
        lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=4, add_bias_kv=True),
    ],
    ids=["transformer", "convolutions", "attention"],
)
def test_names_agree_with_the_modules_of_torch(model: Any, tmp_path: Path) -> None:
    net = model()
    parameters = {name for name, _ in net.named_parameters()}
    found = roles(net.state_dict(), tmp_path)
    assert {
        name for name, role in found.items() if role.role == "parameter"
    } == parameters
    assert {role.role for role in found.values()} <= {"parameter", "buffer"}


# --- a live model ---------------------------------------------------------------------


def record(*names: str, **shapes: tuple[int, ...]) -> ModelRecord:
    rows = {name: TensorRecord("buffer", "cpu", False) for name in names}
    given = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return ModelRecord("model", rows, names, {}, shapes=given)


def test_a_model_of_which_half_is_here_is_taken_and_one_of_less_is_refused(
    tmp_path: Path,
) -> None:
    state = {"a.weight": FLOAT, "a.bias": FLOAT}
    found = roles(
        state, tmp_path, record("a.weight", "a.bias", "head.weight", "head.bias")
    )
    assert [role[:2] for role in found.values()] == [("buffer", "certain")] * 2
    with pytest.raises(UsageError):
        roles(state, tmp_path, record("a.weight", "x.weight", "y.weight"))
    with pytest.raises(UsageError):
        roles(state, tmp_path, record("x.weight"))


def test_a_model_of_other_shapes_is_refused(tmp_path: Path) -> None:
    state = {"a.weight": FLOAT}
    assert (
        roles(state, tmp_path, record("a.weight", a__weight=(3,)))["a.weight"].trust
        == "certain"
    )
    with pytest.raises(UsageError):
        roles(state, tmp_path, record("a.weight", a__weight=(4,)))


def test_a_snapshot_is_believed_before_a_live_model(samples: Path) -> None:
    with formats.open(str(samples / "snapshot_after.pth")) as checkpoint:
        own = Survey(checkpoint).record
        assert own is not None
        both = Survey(checkpoint, own.record._replace(source="model")).record
    assert (
        both is not None
        and both.record == own.record
        and both.record.source == "snapshot"
    )


def test_an_optimizer_of_another_model_leaves_a_matched_one_decided(
    tmp_path: Path,
) -> None:
    """One whose every parameter is matched says of all other tensors of its model that
    it does not hold them.
    """
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    second = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 7), nn.Linear(7, 7))
    optimizers = [
        torch.optim.Adam(list(first.parameters())[2:]),
        torch.optim.Adam(
            list(second.parameters())[2:4]
        ),  # or the last two, which look the same
    ]
    first(torch.ones(4)).sum().backward()
    second(torch.ones(3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    models = {"G": first.state_dict(), "D": second.state_dict()}
    torch.save(
        {
            **models,
            "opt_G": optimizers[0].state_dict(),
            "opt_D": optimizers[1].state_dict(),
        },
        tmp_path / "x.pth",
    )
    with ckpt.open(tmp_path / "x.pth") as opened:
        survey = opened.survey
        held = {
            entry.name: survey.in_optimizer[index]
            for index, entry in enumerate(survey.tensors)
        }
    expected = {
        "G.0.weight": False,
        "G.0.bias": False,
        "G.1.weight": True,
        "G.1.bias": True,
    }
    assert {name: held[name] for name in expected} == expected
    assert all(answer is None for name, answer in held.items() if name.startswith("D."))
