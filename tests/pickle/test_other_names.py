"""Names that lead to another class than they seem to, and classes that are made without
a call of them, but call what they are given.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bell
import opcodes as op
import oracle
import pytest
import torch
from opcodes import build, call, glob, newobj, newobj_ex, pickled, stack_global, value

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import RUNS_CODE, ls
from ckpt.evidence.survey import Survey
from ckpt.formats import open
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET
PACKAGE = "timm_like"
SOURCE = """
import os
import torch
import torch.nn.functional as F
from builtins import frozenset, map
from torch.optim import Optimizer

class Box(tuple):
    __slots__ = ()

class Image(torch.Tensor):
    pass

class Outer:
    class Inner:
        pass
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose modules import others, as nearly all do."""
    (tmp_path / f"{PACKAGE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch, "bell", bell, raising=False)
    bell.RUNG.clear()
    yield
    sys.modules.pop(PACKAGE, None)


def member(owner: bytes, *names: str) -> bytes:
    """What `getattr` finds in what it finds in an owner."""
    for name in names:
        owner = call(glob("builtins", "getattr"), owner, name)
    return owner


def made(cls: bytes, *args: Any) -> bytes:
    return cls + value(args) + newobj()


def made_with(cls: bytes, **named: Any) -> bytes:
    return cls + value(()) + value(named) + newobj_ex()


RING = glob("bell", "ring")
OPTIMIZER: dict[str, Any] = {
    "param_groups": [],
    "state": {},
    "defaults": {},
    "_patch_step_function": RING,
}
LAYERS = glob("torch.nn.modules", "module")


def mapped(owner: Any) -> bytes:
    """A set of what a function gives for each item of a list: making it calls the
    function.
    """
    items = made(owner("map"), RING, [1])
    return made(owner("frozenset"), items)


def tensor(state: Any) -> bytes:
    """A tensor of a class of the package."""
    inner = (op.storage_id(), 0, (2, 3), (3, 1), False, op.ordered_dict())
    function = glob("torch._utils", "_rebuild_tensor_v2")
    typed = glob("torch._tensor", "_rebuild_from_type_v2")
    return call(typed, function, glob(PACKAGE, "Image"), inner, state)


def parameter(data: bytes) -> bytes:
    function = glob("torch._utils", "_rebuild_parameter")
    return call(function, data, True, op.ordered_dict())


ACTING: dict[str, bytes] = {
    "a module in a module of torch": mapped(
        lambda name: member(LAYERS, "torch", "builtins", name)
    ),
    "a module in a module of a package": mapped(
        lambda name: member(glob(PACKAGE, "torch"), "builtins", name)
    ),
    "a module by its name in a module": mapped(
        lambda name: stack_global(PACKAGE, f"torch.builtins.{name}")
    ),
    "a module with a capital letter": mapped(
        lambda name: stack_global(PACKAGE, f"F.torch.builtins.{name}")
    ),
    "a module of torch by its name": mapped(
        lambda name: stack_global("torch.nn.modules", f"module.torch.builtins.{name}")
    ),
    "a type of Python in a package": mapped(lambda name: glob(PACKAGE, name)),
    "a class of a package that iterates": made(
        glob(PACKAGE, "Box"), made(glob(PACKAGE, "map"), RING, [1])
    ),
    "the base of optimizers": made(glob("torch.optim.optimizer", "Optimizer"))
    + value(OPTIMIZER)
    + build(),
    "the base of optimizers with a keyword": made_with(
        glob("torch.optim.adam", "Optimizer"), a=1
    )
    + value(OPTIMIZER)
    + build(),
    "a method of a tensor of a package": parameter(tensor({"detach": RING})),
    "a method in the slots of a tensor": parameter(tensor((None, {"detach": RING}))),
    "a method in an OrderedDict": parameter(
        tensor(call(glob("collections", "OrderedDict"), [["detach", RING]]))
    ),
    "the base of optimizers in a package": made(glob(PACKAGE, "Optimizer"))
    + value(OPTIMIZER)
    + build(),
}
"""Programs that ring the bell when they are loaded."""


def judged(program: bytes) -> tuple[dict[str, str], str | None, str]:
    """The findings about what loading does, the line that loads, the word of `ls`."""
    data = op.torch_zip(
        pickled({"model": {"w.weight": op.tensor()}, "x": program}, protocol=4)
    )
    Path("x.pth").write_bytes(data)
    with open("x.pth") as checkpoint:
        report = inspect(Survey(checkpoint))
        word = ls(Survey(checkpoint)).loads
    levels = {finding.code: finding.level for finding in report.findings}
    return levels, report.load.expression, word


@pytest.mark.parametrize("name", ACTING)
def test_what_acts_under_another_name_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    levels, line, _ = judged(ACTING[name])
    assert levels.get("called-on-load") == "error"
    assert line is None
    assert not bell.RUNG
    with contextlib.suppress(Exception):
        torch.load("x.pth", weights_only=False)
    assert bell.RUNG, "the attack does not work"


HARMLESS: dict[str, bytes] = {
    "a class in a class": made(stack_global(PACKAGE, "Outer.Inner")),
    "a class in a class by getattr": made(member(glob(PACKAGE, "Outer"), "Inner")),
    "a private class in a class": made(stack_global(PACKAGE, "_Outer.inner.Most")),
    "a tuple of data and objects": made(
        glob(PACKAGE, "Box"),
        [1, "a", op.tensor(), made(glob(PACKAGE, "Outer"))],
        made(glob("argparse", "Namespace")),
    ),
    "a tensor with objects": parameter(
        tensor({"size": made(glob(PACKAGE, "Outer")), "note": RING})
    ),
    # A class whose `__getstate__` gives what its `__setstate__` takes.
    "a tensor with a state of its own": parameter(tensor(("v1", {"note": RING}))),
    "a tensor with a state of three parts": parameter(tensor((1, "a", [2.0]))),
    "an object with a keyword": made_with(glob(PACKAGE, "Outer"), a=1),
    "an optimizer of a package": made(glob(PACKAGE, "Lion"))
    + value({"param_groups": [{"params": [], "lr": 0.1}], "state": {}, "defaults": {}})
    + build(),
}
"""What picklers write of classes of packages."""


@pytest.mark.parametrize("name", HARMLESS)
def test_what_packages_write_is_an_import(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    levels, _, word = judged(HARMLESS[name])
    assert levels["unknown-import"] == "warning" and "called-on-load" not in levels
    assert word == f"needs {PACKAGE}"


@pytest.mark.parametrize("shape", ["arguments", "items"])
def test_a_state_of_a_call_sets_no_values(shape: str, tmp_path: Path) -> None:
    """torch asks any state for its items: an OrderedDict that sets `data` puts other
    values in place, also on a tensor of a package.
    """
    other = op.tensor(size=(2, 2), stride=(2, 1), offset=1)
    if shape == "items":
        state = op.ordered_dict() + value("data") + other + op.setitem()
    else:
        state = call(glob("collections", "OrderedDict"), [["data", other]])
    path = tmp_path / "x.pth"
    path.write_bytes(op.torch_zip(pickled({"w": tensor(state)})))
    with pytest.raises(CkptError, match="its state sets data"), open(str(path)):
        pass
    loaded = torch.load(path, weights_only=False)
    assert loaded["w"].shape == (2, 2), "the attack does not work"


def test_a_function_through_a_module_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of Python that a file holds by the name of a package that many people
    install: no line is given to load it, and `ls` says that it runs code.
    """
    monkeypatch.chdir(tmp_path)
    levels, line, word = judged(stack_global("einops.layers.torch", "torch.os.system"))
    assert levels["called-on-load"] == "error"
    assert line is None and word == RUNS_CODE


SCRIPT = {
    "an object": glob("__torch__.shop", "Cart")
    + value(())
    + newobj()
    + value({})
    + build(),
    "a class": glob("__torch__.shop", "Cart"),
    "a class of C++": glob("__torch__.torch.classes.shop", "Cart"),
}


@pytest.mark.parametrize("name", SCRIPT)
def test_names_of_torchscript_in_other_files_are_imports(
    name: str, tmp_path: Path
) -> None:
    """Only torch.jit takes them from the code of an archive: Python imports them."""
    program = pickled({"w": op.tensor(), "x": SCRIPT[name]})
    (tmp_path / "x.pth").write_bytes(op.torch_zip(program))
    with open(str(tmp_path / "x.pth")) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-import" in {row.code for row in report.findings}
    assert report.load.expression is None
