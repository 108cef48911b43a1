"""What loading would call: torch runs each program here, and what it runs must have
been said before.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
import zoneinfo
from argparse import Namespace
from pathlib import Path
from typing import Any

import bell
import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from honest import HONEST
from opcodes import binary, build, call, glob, newobj, pickled, put, torch_zip, value
from saved import Colour, Point

from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.formats import open
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

PAYLOAD = pickled(call(glob("bell", "ring")))
LOAD = glob("torch.storage", "_load_from_bytes")
FROM_TYPE = glob("torch._tensor", "_rebuild_from_type_v2")
UINT8 = call(glob("numpy", "dtype"), "u1", False, True)


def array(data: bytes) -> bytes:
    return call(
        glob("numpy.core.numeric", "_frombuffer"),
        binary(data),
        UINT8,
        (len(data),),
        "C",
    )


def instance(state: Any) -> bytes:
    """A Namespace with these attributes."""
    return glob("argparse", "Namespace") + value(()) + newobj() + value(state) + build()


def latin1(data: bytes) -> str:
    return data.decode("latin-1")


HOOKS = ("backward_hooks", "backward_pre_hooks", "forward_hooks", "forward_pre_hooks")
ATTACKS: dict[str, bytes] = {
    "an array as the stream": call(LOAD, array(PAYLOAD)),
    "a list as the stream": call(LOAD, call(glob("builtins", "bytes"), list(PAYLOAD))),
    "a set of items as the stream": call(
        LOAD,
        call(glob("builtins", "bytearray"))
        + op.mark()
        + b"".join(map(value, PAYLOAD))
        + op.appends(),
    ),
    "a stream with a changed byte": call(
        LOAD,
        call(glob("builtins", "bytearray"), binary(b"X" + PAYLOAD[1:]))
        + value(0)
        + value(PAYLOAD[0])
        + op.setitem(),
    ),
    "as the constructor of a generator": call(
        glob("numpy.random._pickle", "__generator_ctor"), binary(PAYLOAD), LOAD
    ),
    "as the constructor of a random state": call(
        glob("numpy.random._pickle", "__randomstate_ctor"), binary(PAYLOAD), LOAD
    ),
    "as the function of a rebuild": call(
        FROM_TYPE, LOAD, glob("torch", "Tensor"), (array(PAYLOAD),), {}
    ),
    "as the function of a rebuild of a rebuild": call(
        FROM_TYPE,
        FROM_TYPE,
        glob("torch", "Tensor"),
        (LOAD, glob("torch", "Tensor"), (array(PAYLOAD),), {}),
        {},
    ),
    "as the method that sets a state": instance({"__setstate__": LOAD})
    + binary(PAYLOAD)
    + build(),
    "as the method that appends": instance({"append": LOAD})
    + binary(PAYLOAD)
    + op.append(),
    "as a partial function": instance(
        {"__setstate__": call(glob("functools", "partial"), LOAD)}
    )
    + binary(PAYLOAD)
    + build(),
    "a partial function as the method that extends": instance(
        {"extend": call(glob("functools", "partial"), glob("bell", "ring"))}
    )
    + op.mark()
    + value(1)
    + op.appends(),
    "the method that sets a state": instance({"__setstate__": glob("bell", "ring")})
    + value({})
    + build(),
    "inside a tuple that is used later": value((LOAD,))
    + put(7)
    + op.pop()
    + call(LOAD, array(PAYLOAD)),
    "the constructor of a bit generator": call(
        glob("numpy.random._pickle", "__bit_generator_ctor"), glob("bell", "Bell")
    ),
    "the base of a class": call(
        glob("copyreg", "_reconstructor"),
        glob("bell", "Bell"),
        glob("bell", "Bell"),
        None,
    ),
    "a map": glob("builtins", "bytes")
    + value((glob("builtins", "map") + value((glob("bell", "ring"), [1])) + newobj(),))
    + newobj(),
    "a map by copyreg": call(
        glob("builtins", "list"),
        call(
            glob("copyreg", "__newobj__"),
            glob("builtins", "map"),
            glob("bell", "ring"),
            [1],
        ),
    ),
    "a method": call(call(glob("builtins", "getattr"), glob("bell", "Bell"), "ring")),
    "a method of an object": call(
        call(
            glob("builtins", "getattr"),
            glob("bell", "Bell") + value(()) + newobj(),
            "ring",
        )
    ),
    "an item": call(call(glob("_operator", "getitem"), glob("bell", "TABLE"), "ring")),
    "a reduction": call(glob("functools", "reduce"), glob("bell", "ring"), [1, 2]),
    "a reduction of Python 2": call(
        glob("__builtin__", "reduce"), glob("bell", "ring"), [1, 2]
    ),
    "a partial function that is called": call(
        call(glob("functools", "partial"), glob("bell", "ring"))
    ),
    "an instance that is called": call(
        glob("torch.nn.modules.container", "Sequential")
        + value(())
        + newobj()
        + value(
            {
                "forward": glob("bell", "ring"),
                "_modules": {},
                **{f"_{hooks}": {} for hooks in HOOKS},
                "training": False,
            }
        )
        + build(),
        1,
    ),
    "the rule of a scheduler": call(
        glob("torch.optim.lr_scheduler", "LambdaLR"),
        call(
            glob("torch.optim.sgd", "SGD"),
            [
                call(
                    glob("torch.nn.parameter", "Parameter"),
                    call(glob("torch", "FloatTensor"), [1.0]),
                )
            ],
        ),
        glob("bell", "ring"),
    ),
    "an old-style instance": op.mark() + value(1) + op.inst("bell", "Bell"),
    "an old-style object": op.mark() + glob("bell", "Bell") + value(1) + op.obj(),
}
QUIETER = {
    "a codec": call(glob("_codecs", "encode"), "abc", "rot13"),
    "a codec of str": call(glob("builtins", "str"), binary(b"abc"), "rot13"),
    "a codec of bytes": call(glob("builtins", "bytearray"), "abc", "rot13"),
    "a function of torch that makes a file": call(
        call(
            glob("builtins", "getattr"),
            glob("torch._C", "_VariableFunctionsClass"),
            "from_file",
        ),
        "x",
        True,
        10,
    ),
    "a function of torch": call(glob("torch.nn.functional", "relu"), None),
    "what a function can reach": call(
        glob("builtins", "getattr"), glob("torch.nn.functional", "relu"), "__globals__"
    ),
    "a name as a value": value([call(glob("collections", "OrderedDict")), LOAD]),
    "a name as a key": value({LOAD: 1}),
    "a name in a set": op.empty_set() + op.mark() + LOAD + op.additems(),
    "a name in a tuple": value((LOAD,)),
}
"""What runs, but does not ring: other code that the file chooses, or names that
could.
"""


def opened(tmp_path: Path, program: bytes) -> Checkpoint | None:
    """The checkpoint with a value that a program makes; None where ckpt refuses the
    file.
    """
    path = tmp_path / "x.pth"
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": program}))
    )
    try:
        return open(str(path))
    except CkptError:
        return None


REFUSED = ("a stream with a changed byte",)
"""Attacks that change an item of what a call made: ckpt does not follow that."""


@pytest.mark.parametrize("name", ATTACKS)
def test_what_torch_runs_is_said_before(name: str, tmp_path: Path) -> None:
    bell.RUNG.clear()
    checkpoint = opened(tmp_path, ATTACKS[name])
    assert not bell.RUNG
    try:
        torch.load(tmp_path / "x.pth", map_location="cpu", weights_only=False)
    except Exception:  # the payload may have run all the same
        pass
    assert bell.RUNG, "the attack does not work"
    if name in REFUSED:
        assert checkpoint is None
        return
    assert checkpoint is not None
    with checkpoint:
        assert "called" in {row.group for row in checkpoint.imports}
        report = inspect(Survey(checkpoint))
        assert report.findings[0].code == "called-on-load"
        assert report.load.expression is None


@pytest.mark.parametrize("name", QUIETER)
def test_what_could_run_is_said_before(name: str, tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, QUIETER[name])
    assert checkpoint is not None
    with checkpoint:
        report = inspect(Survey(checkpoint))
        assert (report.findings[0].code, report.findings[0].level) == (
            "called-on-load",
            "error",
        )
        assert report.load.expression is None


@pytest.mark.parametrize(
    "stream",
    [
        call(glob("builtins", "bytearray"), latin1(PAYLOAD), "latin-1"),
        call(glob("builtins", "bytes"), latin1(PAYLOAD), "latin-1"),
        call(glob("_codecs", "encode"), latin1(PAYLOAD), "latin1"),
        call(glob("builtins", "bytes"), binary(PAYLOAD)),
        op.bytearray8(PAYLOAD),
    ],
)
def test_a_stream_that_is_understood_is_read(stream: bytes, tmp_path: Path) -> None:
    assert (
        opened(tmp_path, call(LOAD, stream)) is None
    )  # it is no checkpoint: refused, with what it imports


def test_the_bytes_of_a_string_of_python_2_depend_on_its_reader(tmp_path: Path) -> None:
    raw = "é".encode()  # torch reads one character, and encodes it as one byte
    checkpoint = opened(
        tmp_path, call(LOAD, call(glob("_codecs", "encode"), op.py2(raw), "latin1"))
    )
    assert checkpoint is not None
    assert {
        row.group
        for row in checkpoint.imports
        if row.name in ("_load_from_bytes", "encode")
    } == {"called"}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", HONEST)
def test_what_training_saves_is_no_alarm(
    name: str, protocol: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    torch.save({"x": HONEST[name]}, path, pickle_protocol=protocol)
    with open(str(path)) as checkpoint:
        strange = [row for row in checkpoint.imports if row.group != "known"]
    assert not strange


@pytest.mark.parametrize("name", ["SIGTERM", "SIG_DFL", "SIG_BLOCK"])
def test_a_signal_of_python_3_10_is_no_alarm(name: str, tmp_path: Path) -> None:
    """It pickles them by their names alone."""
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"x": glob("signal", name)})))
    with open(str(path)) as checkpoint:
        assert {row.group for row in checkpoint.imports} == {"known"}
    path.write_bytes(
        torch_zip(pickled({"x": call(glob("signal", name), 1)})),
    )
    with open(str(path)) as checkpoint:
        assert "known" not in {row.group for row in checkpoint.imports}


def test_reconstructed_objects_are_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for thing in (
        Namespace(a=1),
        {1, 2},
        collections.OrderedDict(a=1),
        Path("a/b"),
        np.float32(2),
    ):
        torch.save(
            {"x": thing}, path, pickle_protocol=0, _use_new_zipfile_serialization=False
        )
        with open(str(path)) as checkpoint:
            assert {row.group for row in checkpoint.imports} <= {"known"}, thing


def groups(thing: Any, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "x.pth"
    torch.save({"x": thing}, path)
    with open(str(path)) as checkpoint:
        return {row.name: row.group for row in checkpoint.imports}


def test_attributes_of_unknown_classes_are_imports_of_the_class(tmp_path: Path) -> None:
    assert groups(bell.Bell.ring, tmp_path) == {"getattr": "known", "Bell": "unknown"}
    assert groups(functools.partial(bell.ring, 1), tmp_path) == {
        "partial": "known",
        "ring": "unknown",
    }
    assert groups(Point(1, 2), tmp_path) == {"Point": "unknown"}


@pytest.mark.parametrize(
    "held", [int, float, list, dict, collections.OrderedDict, torch.nn.GELU, torch.relu]
)
def test_a_partial_of_a_type_calls_nothing(held: Any, tmp_path: Path) -> None:
    assert set(groups(functools.partial(held), tmp_path).values()) == {"known"}


@pytest.mark.parametrize("held", [print, eval, range])
def test_a_partial_of_another_builtin_is_told_of(held: Any, tmp_path: Path) -> None:
    assert "called" in groups(functools.partial(held), tmp_path).values()


def test_a_member_of_an_enum_of_the_author_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"x": Colour.RED}, path)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    finding = report.findings[0]
    assert (finding.code, finding.level) == ("called-on-load", "warning")
    assert finding.message.endswith("which ckpt does not know.")
    assert finding.consequence == "It looks like a member of an enum."
    assert report.load.reason == "needs saved.Colour from the author's code"


@pytest.mark.parametrize(
    ("program", "level"),
    [
        (call(glob("shop", "Mode"), "train"), "warning"),
        (call(glob("shop", "Mode"), 3), "warning"),
        (call(glob("shop", "Mode"), "import os"), "error"),
        (call(glob("shop", "run"), "train"), "error"),
        (call(glob("shop", "Mode"), "a", "b"), "error"),
        (call(glob("shop", "Mode"), ["a"]), "error"),
        (call(glob("os", "Mode"), "a"), "error"),
        (call(glob("shop", "Mode"), "a") + value({}) + build(), "error"),
    ],
)
def test_only_what_looks_like_an_enum_is_a_warning(
    program: bytes, level: str, tmp_path: Path
) -> None:
    checkpoint = opened(tmp_path, program)
    assert checkpoint is not None
    assert inspect(Survey(checkpoint)).findings[0].level == level


def test_the_zones_and_methods_that_are_known_may_be_called(tmp_path: Path) -> None:
    data = io.BytesIO()
    pickle.Pickler(data, 2).dump(zoneinfo.ZoneInfo("UTC"))
    assert b"_unpickle" in data.getvalue()
    assert groups(zoneinfo.ZoneInfo("UTC"), tmp_path) == {
        "getattr": "known",
        "ZoneInfo": "known",
    }
