"""Comparing what is no tensor: types and bits count, order of keys and sets
does not.
"""

from __future__ import annotations

import argparse
import copy
import types
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from rewriting import changes, compared
from torch import nn

from ckpt.model.errors import UsageError
from ckpt.model.names import Globs

pytestmark = oracle.QUIET
W = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(4)}
NAN = float("nan")


def beside(before: Any, after: Any, folder: Path) -> dict[str, str]:
    """What differs when two values lie beside one model."""
    return changes(
        compared({"model": W, "x": before}, {"model": W, "x": after}, folder)
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (1.0, NAN),
        ("1", 1),
        (None, 0),
        ({1: "a"}, {"1": "a"}),
        ([1, 2], [2, 1]),
        ({1, 2}, {1, 3}),
        ([1], (1,)),
        ([], {}),
        (np.arange(3), np.array([0, 1, 3])),
        (np.arange(3), np.arange(3.0)),
    ],
    ids=str,
)
def test_values_that_differ(before: Any, after: Any, tmp_path: Path) -> None:
    assert beside(before, after, tmp_path)
    assert beside(after, before, tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NAN, NAN),
        (NAN, -NAN),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({0, 8, 16}, {16, 8, 0}),
        (frozenset("abc"), frozenset("cba")),
        (np.arange(3), np.arange(3)),
        ([], []),
    ],
    ids=["nan", "nan-sign", "dict", "set", "frozenset", "array", "list"],
)
def test_values_that_are_the_same(before: Any, after: Any, tmp_path: Path) -> None:
    assert beside(before, after, tmp_path) == {}


def test_an_empty_dict_that_was_filled_is_told_by_what_fills_it(tmp_path: Path) -> None:
    assert beside({}, {"lr": 1}, tmp_path) == {"x.lr": "added"}
    assert beside({"lr": 1}, {}, tmp_path) == {"x.lr": "removed"}


def test_the_state_of_an_optimizer_that_was_empty_is_no_value_of_its_own(
    tmp_path: Path,
) -> None:
    """Its tensors are rows: the empty dict that they replaced is not reported beside
    them.
    """
    net = torch.nn.Linear(2, 2)
    adam = torch.optim.AdamW(net.parameters())
    before = {"model": dict(net.state_dict()), "optimizer": adam.state_dict()}
    net(torch.ones(1, 2)).sum().backward()
    adam.step()
    after = {"model": dict(net.state_dict()), "optimizer": adam.state_dict()}
    for one, two in ((before, after), (after, before)):
        assert changes(compared(one, two, tmp_path)) == {}


def test_an_empty_dict_that_went_away_is_told(tmp_path: Path) -> None:
    before = {"model": W, "x": {"inner": {}, "n": 1}}
    assert changes(compared(before, {"model": W, "x": {"n": 1}}, tmp_path)) == {
        "x.inner": "removed"
    }
    assert changes(compared({"model": W, "x": {"n": 1}}, before, tmp_path)) == {
        "x.inner": "added"
    }


def test_values_that_are_shared_with_another_place_are_compared_there_and_here(
    tmp_path: Path,
) -> None:
    first, second = {"n": 1}, {"n": 2}
    before = {"model": W, "x": first, "y": second, "z": first}
    after = {"model": W, "x": first, "y": second, "z": second}
    assert set(changes(compared(before, after, tmp_path))) == {"z"}


def test_objects_of_another_class_differ_though_their_fields_agree(
    tmp_path: Path,
) -> None:
    before, after = argparse.Namespace(lr=1), types.SimpleNamespace(lr=1)
    assert "x" in beside(before, after, tmp_path)


def test_keys_that_one_file_alone_has_are_named_and_not_compared(
    tmp_path: Path,
) -> None:
    report = compared(
        {"model": W, "epoch": 1, "seed": 3}, {"model": W, "epoch": 2}, tmp_path
    )
    assert changes(report) == {"epoch": "changed"}
    assert len(report.not_compared) == 1 and report.not_compared[0].startswith("seed ")


def test_values_of_sections_that_moved_are_compared_where_they_are(
    tmp_path: Path,
) -> None:
    """One model at the root, the other below a key: values at the root are not those of
    the model.
    """
    report = compared({**W, "epoch": 1}, {"model": W, "epoch": 2}, tmp_path)
    assert [(row.name, row.status) for row in report.values] == [("epoch", "changed")]


def test_a_value_that_came_beside_the_tensors_of_a_bare_model_is_a_difference(
    tmp_path: Path,
) -> None:
    report = compared(W, {**W, "epoch": 1}, tmp_path)
    assert changes(report) == {"epoch": "added"} and not report.not_compared


def test_an_object_that_was_shared_is_compared_with_its_own_keys(
    tmp_path: Path,
) -> None:
    shared = argparse.Namespace(d={1: "a"})
    before = {"model": W, "x": shared, "y": shared}
    after = {"model": W, "x": shared, "y": argparse.Namespace(d={"1": "a"})}
    rows = compared(before, after, tmp_path).values
    assert [(row.name, row.status) for row in rows] == [
        ("y.d.1", "removed"),
        ("y.d.1", "added"),
    ]


def test_a_selection_of_tensors_leaves_values_aside_and_takes_either_name(
    tmp_path: Path,
) -> None:
    before, after = (
        {"model": {**W, "n": number}, "epoch": number} for number in (1, 2)
    )
    for glob in ("model.a.weight", "a.weight"):
        report = compared(before, after, tmp_path, select=Globs((glob,)))
        assert [row.name for row in report.rows] == ["model.a.weight"]
        assert changes(report) == {} and not report.differs


def test_a_copy_of_a_dict_is_the_same_as_the_dict_itself(tmp_path: Path) -> None:
    shared = {"lr": 1.0, "betas": {"first": 0.9}}
    one = {"model": {"w": torch.ones(2)}, "x": shared, "y": shared}
    two = {
        "model": {"w": torch.ones(2)},
        "x": copy.deepcopy(shared),
        "y": copy.deepcopy(shared),
    }

    assert changes(compared(one, two, tmp_path)) == {}
    assert changes(compared(two, one, tmp_path)) == {}


def test_what_a_copy_of_a_dict_has_of_its_own_is_found(tmp_path: Path) -> None:
    shared = {"lr": 1.0, "decay": 0.1}
    one = {"model": {"w": torch.ones(2)}, "x": shared, "y": shared}
    two = {
        "model": {"w": torch.ones(2)},
        "x": dict(shared),
        "y": {"lr": 2.0, "momentum": 0.9},
    }

    assert changes(compared(one, two, tmp_path)) == {
        "y.lr": "changed",
        "y.decay": "removed",
        "y.momentum": "added",
    }
    assert changes(compared(two, one, tmp_path)) == {
        "y.lr": "changed",
        "y.decay": "added",
        "y.momentum": "removed",
    }


# --- modules and averages -------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "model", "ema"])
def test_a_module_is_the_same_as_its_state_dict_and_its_attributes_are_named(
    place: str, tmp_path: Path
) -> None:
    """As slim makes it of a file; in the other direction too."""
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    whole = {place: module, "epoch": 3} if place else module
    one = f"the attributes of {place or '(the root)'} of {tmp_path}"
    for bare in (module.state_dict(), {"model": module.state_dict()}):
        for before, after, name in ((whole, bare, "a.pt"), (bare, whole, "b.pt")):
            report = compared(before, after, tmp_path)
            assert (
                not report.differs and report.values == () and report.count("same") == 7
            )
            assert [text for text in report.not_compared if "attributes" in text] == [
                f"{one}/{name}"
            ]
    strict = compared(whole, module.state_dict(), tmp_path, strict=True)
    assert strict.differs and f"only on one side: {one}/a.pt" in strict.notes


def test_a_module_at_the_root_has_the_attributes_of_one_below_a_key(
    tmp_path: Path,
) -> None:
    report = compared(nn.Linear(2, 3), {"model": nn.Linear(2, 3)}, tmp_path)
    assert report.values == () and report.not_compared == ()
    other = nn.Linear(2, 3)
    other.in_features = 5
    report = compared({"model": nn.Linear(2, 3)}, other, tmp_path)
    assert changes(report) == {"in_features": "changed"}


def test_an_average_that_is_the_only_weights_is_compared_with_a_model(
    tmp_path: Path,
) -> None:
    state = nn.Linear(2, 3).state_dict()
    optimizer = {"state": {}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    training = {"ema": state, "optimizer": optimizer, "epoch": 1}
    for before, after in (
        (training, state),
        (state, training),
        (training, {"model": state}),
    ):
        report = compared(before, after, tmp_path)
        assert not report.differs and report.count("same") == 2
    with pytest.raises(UsageError, match="nothing to compare"):
        compared(
            {"ema": state, "swa": state, "optimizer": optimizer},
            {"model": state},
            tmp_path,
        )
