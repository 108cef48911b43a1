"""The state dict of a pickled module, beside what torch gives for the live one, and a
state dict without some names.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ckpt import formats
from ckpt.model.nodes import Node, Opaque, dict_of, tensor_of
from ckpt.model.tensors import TensorRef
from ckpt.pickle import state_dict as dicts
from ckpt.tree.view import look


def saved(thing: Any, folder: Path) -> Node:
    """Return the tree of an object that torch has saved."""
    torch.save(thing, folder / "a.pt")
    with formats.open(str(folder / "a.pt")) as checkpoint:
        return checkpoint.root


def keys_of(node: Node) -> list[str]:
    return list(map(str, look(node).keys))


def test_the_names_of_a_module_are_those_of_torch(tmp_path: Path) -> None:
    """Buffers that are not persistent and tensors that are not registered are in no
    state dict.
    """
    model = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(1, 2, 3, bias=False), norm=nn.BatchNorm2d(2))
    )
    model.register_buffer("hidden", torch.ones(3), persistent=False)
    model.register_buffer("shown", torch.ones(3))
    model.loose = torch.ones(4)
    made = dicts.state_dict(look(saved(model, tmp_path)))
    assert keys_of(made) == list(model.state_dict())
    shapes = [
        tensor.shape for tensor in map(tensor_of, made.values) if tensor is not None
    ]
    assert shapes == [tuple(tensor.shape) for tensor in model.state_dict().values()]


def noted(**attributes: Any) -> nn.Parameter:
    """Return a Parameter with attributes of Python code."""
    made = nn.Parameter(torch.ones(2))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def attributes_of(thing: Any, folder: Path) -> list[str]:
    """Return the names of the attributes of a saved tensor that follow it into a state
    dict.
    """
    return list(dicts.tensor_attributes(look(saved({"w": thing}, folder)).children[0]))


def test_attributes_of_a_parameter_follow_it_where_one_holds_a_tensor(
    tmp_path: Path,
) -> None:
    scale = torch.tensor([0.5])
    assert attributes_of(noted(SCB=scale, bits=8), tmp_path) == ["SCB", "bits"]
    assert attributes_of(noted(state=SimpleNamespace(inner=[scale])), tmp_path) == [
        "state"
    ]
    assert attributes_of(noted(bits=8), tmp_path) == []
    assert attributes_of(noted(), tmp_path) == []
    assert attributes_of(torch.ones(2), tmp_path) == []


def test_the_data_and_the_module_of_a_parameter_do_not_follow_it(
    tmp_path: Path,
) -> None:
    made = noted(SCB=torch.tensor([0.5]), owner=nn.Linear(1, 1))
    made.CB = made.data  # type: ignore[attr-defined]
    assert attributes_of(made, tmp_path) == ["SCB"]


def test_attributes_stand_behind_their_parameter(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    model.weight.SCB = torch.tensor([0.5])  # type: ignore[attr-defined]
    made = dicts.state_dict(look(saved(model, tmp_path)))
    assert keys_of(made) == ["weight", "weight.SCB", "bias"]


def test_a_state_dict_without_names_keeps_all_else(tmp_path: Path) -> None:
    """Dicts that become empty go; those that were empty, and values beside tensors,
    stay.
    """
    one = torch.ones(1)
    state = OrderedDict(
        a={"w": one, "b": one}, c={"w": {"x": one}}, empty={}, epoch=3, d=one
    )
    root = saved(state, tmp_path)
    made = dicts.without_tensors(root, {"a.w", "c.w.x", "d"})
    assert keys_of(made) == ["a", "empty", "epoch"]
    assert keys_of(look(made).children[0]) == ["b"]
    assert (
        isinstance(made, Opaque) and isinstance(root, Opaque) and made.func is root.func
    )
    assert keys_of(root) == list(state)


def test_a_dict_that_holds_itself_loses_what_is_named() -> None:
    """One without a name of these is as it was."""
    root, inner = dict_of([("a", 1), ("b", 2)]), dict_of([("x", 1), ("y", 2)])
    root.set(["root", "inner"], [root, inner])
    made = dicts.without_tensors(root, {"a", "root.root.b", "inner.x"})
    assert keys_of(made) == ["b", "root", "inner"]
    once = look(made).children[1]
    assert keys_of(once) == ["a", "b", "root", "inner"]
    assert keys_of(look(once).children[2]) == ["a", "root", "inner"]
    assert look(once).children[3] is inner
    assert keys_of(look(made).children[2]) == ["y"]


def test_a_name_of_many_steps_enters_no_dict_forever() -> None:
    root = dict_of([("a", 1)])
    root.set(["a" * 2], [root])
    made = dicts.without_tensors(root, {"aa." * 5_000 + "b"})
    assert keys_of(made) == ["a", "aa"]


def test_a_tensor_of_a_state_dict_requires_no_gradient(tmp_path: Path) -> None:
    saved_one = look(
        saved({"w": torch.ones(2, requires_grad=True)}, tmp_path)
    ).children[0]
    before, after = tensor_of(saved_one), tensor_of(dicts.without_gradient(saved_one))
    assert isinstance(before, TensorRef) and isinstance(after, TensorRef)
    assert before.requires_grad and after[:] == before._replace(requires_grad=False)[:]
    assert dicts.without_gradient(3) == 3


def test_layers_without_tensors_are_gone_through_once(tmp_path: Path) -> None:
    """Twice as many at each level would never end. One with a tensor has all its
    names.
    """
    layer: nn.Module = nn.Identity()
    for _ in range(40):
        layer = nn.Sequential(layer, layer)
    bias = nn.Linear(1, 1)
    model = nn.Sequential(bias, layer, nn.Sequential(layer, bias), bias)
    made = dicts.state_dict(look(saved(model, tmp_path)))
    expected = [
        f"{at}.{name}" for at in ("0", "2.1", "3") for name in ("weight", "bias")
    ]
    assert keys_of(made) == expected


def test_a_layer_inside_of_itself_comes_to_an_end(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model.add_module("own", model)
    made = dicts.state_dict(look(saved(model, tmp_path)))
    assert keys_of(made)[0] == "0.weight"
