"""What the parts of a checkpoint are: by structure first, then by well-known keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from inside import inside
from saved import Net

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError

pytestmark = oracle.QUIET
ONE = torch.ones(3)
MODEL = {"a.weight": torch.ones(20, 20), "a.bias": torch.ones(20)}
OTHER = {name: tensor.clone() for name, tensor in MODEL.items()}
OPTIMIZER = {
    "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(20, 20)}},
    "param_groups": [{"params": [0]}],
}


def sections(thing: Any, folder: Path) -> list[tuple[str, str, int]]:
    """(name, kind, tensors) of each section."""
    with formats.open(str(rewriting.saved(thing, folder / "a.pt"))) as checkpoint:
        return [
            (part.name, part.kind, part.tensors) for part in Survey(checkpoint).sections
        ]


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        ({"weight": ONE, "bias": ONE.clone()}, [("", "model", 2)]),
        ({"images": ONE, "labels": ONE.clone()}, [("", "other", 2)]),
        ({"weight": ONE, "bias": ONE.clone(), "epoch": 1}, [("", "other", 2)]),
        ({"model": {"scale": ONE}}, [("model", "model", 1)]),
        ({"data": {"weight": ONE}}, [("", "other", 1)]),
        ({"data": {"fc.weight": ONE, "scale": ONE.clone()}}, [("data", "model", 2)]),
        ({"data": {"fc.weight": ONE, "scale": ONE.clone(), "shift": ONE.clone()}}, [("", "other", 3)]),
        ({"model": {"encoder": {"w": ONE}, "decoder": {"w": ONE.clone()}}}, [("model", "model", 2)]),
        ({"model": {"encoder": {"w": ONE}}}, [("model.encoder", "model", 1)]),
        (
            {"model": {"encoder": {"w": ONE}, "decoder": {"w": ONE.clone()}, "epoch": 1}},
            [("model.encoder", "model", 1), ("model.decoder", "model", 1)],
        ),
        (
            {"model": {"state_dict": {"w": ONE}, "head": {"v": ONE.clone()}}},
            [("model.state_dict", "model", 1), ("model", "other", 1)],
        ),
        ({"data": {"fc.weight": ONE, "sub": {"x": ONE.clone(), "y": ONE.clone()}}}, [("", "other", 3)]),
        ({"misc": {"scheduler": {"fc.weight": ONE}}}, [("misc.scheduler", "model", 1)]),
        (
            {"model": {"scale": ONE, "sub": {"fc.weight": ONE.clone()}, "n": 1}},
            [("model", "other", 1), ("model.sub", "model", 1)],
        ),
        (
            {"model": {"net": {"w": ONE}, "ema": {"w": ONE.clone()}}},
            [("model.net", "model", 1), ("model", "other", 1)],
        ),
        ({"model": MODEL, "mean": {"weight": ONE}}, [("model", "model", 2), ("mean", "other", 1)]),
        ({"model": MODEL, "stats": {"a.mean": ONE}}, [("model", "model", 2), ("stats", "other", 1)]),
        ({"model": MODEL, "optimizer": OPTIMIZER}, [("model", "model", 2), ("optimizer", "optimizer", 2)]),
        ({"model": MODEL, "optimizers": [OPTIMIZER]}, [("model", "model", 2), ("optimizers.0", "optimizer", 2)]),
        ({"model": MODEL, "rng_state": ONE}, [("model", "model", 2), ("rng_state", "rng", 1)]),
        ({"model": MODEL, "optimizer_scheduler": ONE}, [("model", "model", 2), ("optimizer_scheduler", "other", 1)]),
        ({"rng_state": ONE}, [("rng_state", "rng", 1)]),
        ({"model": MODEL, "ema": dict(MODEL)}, [("model", "model", 2), ("ema", "ema", 2)]),
    ],
    ids=str,
)  # fmt: skip
def test_parts(
    thing: Any, expected: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    found = sections(thing, tmp_path)
    assert found == expected


def test_a_pickled_module_is_a_model_however_small(tmp_path: Path) -> None:
    thing = {"model": {"a.weight": torch.ones(100, 100)}, "probe": Net()}
    assert [row[:2] for row in sections(thing, tmp_path)] == [
        ("model", "model"),
        ("probe", "model"),
    ]


def test_tensors_of_no_section_that_lie_apart_are_sections_of_their_own(
    tmp_path: Path,
) -> None:
    thing = {"x": {"first": ONE, "model": MODEL, "last": ONE.clone()}}
    assert sections(thing, tmp_path) == [
        ("x", "other", 1),
        ("x.model", "model", 2),
        ("x", "other", 1),
    ]


def test_the_only_model_is_never_a_part_of_something_else(tmp_path: Path) -> None:
    """A file of nothing but tensors is taken whole; statistics beside an optimizer are
    no model.
    """
    with formats.open(
        str(rewriting.saved({"images": ONE, "labels": ONE.clone()}, tmp_path / "a.pt"))
    ) as opened:
        assert Survey(opened).only_model(None).tensors == 2
    thing = {"optimizer": OPTIMIZER, "stats": {"mean": ONE}}
    with formats.open(str(rewriting.saved(thing, tmp_path / "b.pt"))) as opened:
        survey = Survey(opened)
        assert [part.kind for part in survey.sections] == ["optimizer", "other"]
        with pytest.raises(UsageError):
            survey.only_model(None)


def test_averaged_weights_alone_are_the_only_model_and_beside_a_model_they_are_not(
    tmp_path: Path,
) -> None:
    thing: dict[str, Any] = {"ema": dict(MODEL), "epoch": 1}
    with formats.open(str(rewriting.saved(thing, tmp_path / "a.pt"))) as opened:
        assert Survey(opened).only_model(None).name == "ema"
    with formats.open(
        str(rewriting.saved({**thing, "model": MODEL}, tmp_path / "b.pt"))
    ) as opened:
        survey = Survey(opened)
        assert survey.only_model(None).name == "model"
        assert {part.name for part in survey.weights(None)} == {"model", "ema"}


LIGHTNING = {
    "pytorch-lightning_version": "2.6.0",
    "state_dict": MODEL,
    "optimizer_states": [OPTIMIZER],
}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, []),
        # What StochasticWeightAveraging keeps in its state.
        (
            {
                "callbacks": {
                    "StochasticWeightAveraging": {"average_model_state": OTHER}
                }
            },
            [("callbacks.StochasticWeightAveraging.average_model_state", "ema", 2)],
        ),
        ({"callbacks": {"EMA": {"model": OTHER}}}, [("callbacks.EMA.model", "ema", 2)]),
        # EMAWeightAveraging puts the average into state_dict, and the weights of the
        # last step beside it.
        (
            {
                "current_model_state": OTHER,
                "averaging_state": {"n_averaged": torch.tensor(3)},
            },
            [("current_model_state", "other", 2), ("averaging_state", "other", 1)],
        ),
        (
            {"hyper_parameters": {"backbone": torch.nn.Linear(20, 20)}},
            [("hyper_parameters.backbone", "other", 2)],
        ),
    ],
)
def test_lightning_has_one_model(
    more: dict[str, Any], expected: list[Any], tmp_path: Path
) -> None:
    """Its `state_dict`, which it loads."""
    rows = [("state_dict", "model", 2), ("optimizer_states.0", "optimizer", 2)]
    assert sections({**LIGHTNING, **more}, tmp_path) == rows + expected
    path = str(tmp_path / "a.pt")
    assert inside("slim", path, "-o", str(tmp_path / "b.pt"), cwd=tmp_path).code == 0
    assert rewriting.load(tmp_path / "b.pt").keys() == MODEL.keys()


def test_weights_of_others_beside_a_model_are_a_second_one(tmp_path: Path) -> None:
    assert sections({"state_dict": MODEL, "current_model_state": OTHER}, tmp_path) == [
        ("state_dict", "model", 2),
        ("current_model_state", "model", 2),
    ]
