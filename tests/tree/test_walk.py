"""A state dict is found wherever it lies, however many tensors it has."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import oracle
import paths
import pytest
import rewriting
import torch

from ckpt import formats
from ckpt.commands.diff.diff import diff
from ckpt.commands.inspect.inspect import inspect, tied_weights
from ckpt.evidence.survey import Survey
from ckpt.model.errors import LimitError
from ckpt.model.limits import Limits

COUNTS = (3, 63, 64, 65, 2_100)
PLACES = ("a", "a.b", "a.b.c", "0.state_dict", "beside", "callback", "the root")


def state(
    count: int, value: float = 0.0, name: str = "layers"
) -> dict[str, torch.Tensor]:
    return {f"{name}.{n}.weight": torch.full((2, 3), value + n) for n in range(count)}


def placed(place: str, weights: dict[str, torch.Tensor]) -> Any:
    """A checkpoint with weights at a place, as frameworks put them."""
    return {
        "a": {"state": weights},
        "a.b": {"models": {"unet": weights}},
        "a.b.c": {"x": {"y": {"z": weights}}, "epoch": 3},
        "0.state_dict": [{"state_dict": weights}],
        "beside": {"model": {"state_dict": weights, "args": {"lr": 0.1}, "seed": 3}},
        "callback": {
            "callbacks": {"EMA": {"ema_weights": weights, "decay": 0.999}},
            "epoch": 1,
        },
        "the root": weights,
    }[place]


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("place", PLACES)
def test_weights_are_a_section_at_any_depth(
    place: str, count: int, tmp_path: Path
) -> None:
    thing = placed(place, state(count, name="n" * 120))
    path = rewriting.saved(thing, tmp_path / "a.pth")
    with formats.open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
        at = next(iter(oracle.leaves(thing)))[0][:-1]
        assert [
            (part.path, part.tensors) for part in report.sections if part.tensors
        ] == [(at, count)]
        assert {part.kind for part in report.sections if part.tensors} <= {
            "model",
            "ema",
        }
        assert oracle.Comparison(checkpoint).tensors(rewriting.load(path)) == count
        (row,) = [row for row in checkpoint.containers if row.path == at]
        assert (row.first, row.last) == (0, count)


@pytest.mark.parametrize("count", COUNTS)
def test_one_dict_at_two_places_is_there_twice(count: int, tmp_path: Path) -> None:
    weights = state(count)
    both = rewriting.saved(
        {"x": {"model": weights}, "y": {"ema": weights}}, tmp_path / "a.pth"
    )
    with formats.open(str(both)) as checkpoint:
        survey = Survey(checkpoint)
        assert [(part.name, part.tensors) for part in survey.sections] == [
            ("x.model", count),
            ("y.ema", count),
        ]
        assert (
            len(checkpoint.tensors) == 2 * count and len(checkpoint.storages) == count
        )
        assert len({entry.name for entry in checkpoint.tensors}) == 2 * count
        assert not tied_weights(survey)  # an average may be the model itself


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("side", ["fast", "slow", None])
def test_a_dict_that_is_a_list_item_twice_is_tied(
    count: int, side: paths.Side | None, tmp_path: Path
) -> None:
    weights = state(count)
    path = rewriting.saved({"model": {"a": weights, "b": weights}}, tmp_path / "a.pth")
    with (
        paths.walking(side) if side else nullcontext(),
        formats.open(str(path)) as checkpoint,
    ):
        sections = Survey(checkpoint).sections
        codes = [finding.code for finding in inspect(Survey(checkpoint)).findings]
    assert sum(part.tensors for part in sections) == 2 * count
    assert "tied" in codes


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_difference_in_the_second_place_of_a_dict_is_seen(
    where: str, count: int, tmp_path: Path
) -> None:
    weights, other = state(count), state(count)
    other[f"layers.{0 if where == 'first' else count - 1}.weight"][0, 0] = 7.5
    one = rewriting.saved(
        {"x": {"model": weights}, "y": {"model": weights}}, tmp_path / "a.pth"
    )
    two = rewriting.saved(
        {"x": {"model": weights}, "y": {"model": other}}, tmp_path / "b.pth"
    )
    with formats.open(str(one)) as before, formats.open(str(two)) as after:
        report = diff(Survey(before), Survey(after))
    assert report.differs and len(report.changed) == 1
    assert report.count("same") == 2 * count - 1


def test_tensors_that_are_attributes_come_before_the_items(tmp_path: Path) -> None:
    for count in (3, 70):
        weights = state(count)
        ordered = OrderedDict(weights)
        ordered.scale = torch.ones(2)  # type: ignore[attr-defined]
        path = rewriting.saved({"model": ordered}, tmp_path / "a.pth")
        with formats.open(str(path)) as checkpoint:
            names = [entry.name for entry in checkpoint.tensors]
            assert names == ["model.scale", *(f"model.{name}" for name in weights)]
            assert [(row.first, row.last) for row in checkpoint.containers] == [
                (0, count + 1)
            ] * 2


@pytest.mark.parametrize("items", [0, 1, 100])
def test_tensors_that_are_attributes_of_a_dict_without_tensors_are_listed(
    items: int, tmp_path: Path
) -> None:
    """An empty one, and a large one of numbers, are shown as one value: what they hold
    beside it was passed over.
    """
    ordered: Any = OrderedDict((f"k{number}", number) for number in range(items))
    ordered.extra, ordered.again = [torch.ones(2)], ordered
    for whole in (ordered, {"x": ordered, "w": torch.zeros(1)}):
        path = rewriting.saved(whole, tmp_path / "a.pth")
        with formats.open(str(path)) as checkpoint:
            names = {entry.name for entry in checkpoint.tensors}
        assert names == ({"extra.0"} if whole is ordered else {"x.extra.0", "w"})


@pytest.mark.parametrize("count", (3, 64, 2_100))
def test_tensors_deep_in_attributes_are_listed(count: int, tmp_path: Path) -> None:
    """torch restores them, so `inspect` counts them. What is met again is
    entered once.
    """
    weights: Any = OrderedDict(state(count))
    weights.extra = {"x": torch.ones(3)}
    first, parameter = torch.ones(3), torch.nn.Parameter(torch.ones(4))
    shared = {"a": [torch.zeros(1), {"b": torch.zeros(2)}], "back": weights}
    parameter.holder = shared  # type: ignore[attr-defined]
    first.holder = shared  # type: ignore[attr-defined]
    first.inner = torch.ones(5)  # type: ignore[attr-defined]
    first.inner.below = (torch.ones(6),)  # type: ignore[attr-defined]
    weights["first"], weights["parameter"] = first, parameter
    path = rewriting.saved(weights, tmp_path / "a.pth")

    with formats.open(str(path)) as checkpoint:
        attached = [entry for entry in checkpoint.tensors if not entry.registered]
        assert [entry.name for entry in attached] == [
            "extra.x",
            "first.holder.a.0",
            "first.holder.a.1.b",
            "first.inner",
            "first.inner.below.0",
        ]
        assert attached[2].path == ("first", "holder", "a", 1, "b")
        assert len(checkpoint.tensors) == count + 2 + len(attached)
        used = [use for use in inspect(Survey(checkpoint)).storages if not use.used]
        assert not used


def test_attributes_nest_as_deep_as_the_limit(tmp_path: Path) -> None:
    tensor, inner = torch.ones(3), torch.ones(2)
    held: Any = inner
    for _ in range(300):
        held = [held]
    tensor.holder = held  # type: ignore[attr-defined]
    path = rewriting.saved({"a": tensor}, tmp_path / "a.pth")
    with pytest.raises(LimitError, match="nested too deep"):
        formats.open(str(path))
    with formats.open(str(path), Limits(depth=400)) as checkpoint:
        assert len(checkpoint.tensors) == 2
