"""Calls of known names with arguments that no writer gives them: every command answers,
and what is written is plain.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import opcodes as op
import pytest
from needs import is_there
from opcodes import binary, call, glob, pickled, py2, tensor, torch_zip, value

from ckpt.bytes import target
from ckpt.commands.convert.convert import convert
from ckpt.commands.diff.diff import diff
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.commands.slim.slim import slim
from ckpt.evidence.survey import Survey
from ckpt.formats import open, save, writer_of
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits

MOMENT = b"\x07\xe8\x02\x13\x0a\x15\x07\x06\x48\x71"
ATOMS: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    2**40,
    -(2**70),
    10**30,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "abc",
    "cpu",
    "\ud800",
    [],
    [1],
    (1,),
    (),
    {"a": 1},
    binary(b""),
    binary(MOMENT),
    binary(b"\xff" * 10),
    py2(MOMENT),
    py2(b"\xff\xfe"),
    glob("x", "y"),
    tensor(),
]
NAMES = [
    "datetime.datetime",
    "datetime.date",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "builtins.complex",
    "builtins.range",
    "builtins.slice",
    "decimal.Decimal",
    "fractions.Fraction",
    "torch.device",
    "torch.Size",
    "numpy.dtype",
    "pathlib.PosixPath",
    "uuid.UUID",
    "pathlib.WindowsPath",
    "builtins.bytes",
    "builtins.bytearray",
    "_codecs.encode",
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
    "collections.deque",
    "builtins.set",
    "builtins.frozenset",
    "builtins.getattr",
    "copyreg._reconstructor",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "argparse.Namespace",
    "omegaconf.nodes.AnyNode",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "functools.partial",
    "torch.serialization._get_layout",
]


def odd(chance: random.Random, depth: int = 0) -> Any:
    if depth > 2 or chance.random() < 0.4:
        return chance.choice(ATOMS)
    arguments = [
        odd(chance, depth + 1)
        for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 7]))
    ]
    name = glob(*chance.choice(NAMES).rsplit(".", 1))
    program = (
        call(name, *arguments)
        if chance.random() < 0.8
        else name + value(tuple(arguments)) + op.newobj()
    )
    if chance.random() < 0.3:
        inner = odd(chance, 2)
        states = [
            {"a": inner},
            {"_content": inner},
            {"_val": inner},
            (inner, 1, "a"),
            (inner, {"a": 1}),
        ]
        states.append(
            (
                1,
                (2,),
                call(glob("numpy", "dtype"), "f4", False, True),
                False,
                binary(b"1234" * 2),
            )
        )
        program += value(chance.choice(states)) + op.build()
    if chance.random() < 0.1:
        program += op.mark() + value(odd(chance, 3)) + op.appends()
    if chance.random() < 0.1:
        program += (
            op.mark() + value(odd(chance, 3)) + value(odd(chance, 3)) + op.setitems()
        )
    return program


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_command_answers(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    answered = 0
    while answered < 25:
        program = odd(chance)
        (tmp_path / "x.pth").write_bytes(
            torch_zip(pickled({"model": {"w": tensor()}, "x": program}))
        )
        try:
            survey, again = (Survey(open(str(tmp_path / "x.pth"))) for _ in range(2))
        except CkptError:
            continue
        answered += 1
        report = inspect(survey)
        assert (
            inspect_lines(report, width=80, depth=None, everything=False)
            and report.to_json()
        )
        if is_there("lint"):
            from ckpt.ext.lint.lint import lint_structure

            lint_structure(survey)
        diff(survey, again).to_json()
        for name in ("plain", "rehome", "slim"):
            write(name, survey, tmp_path / f"{name}.pth")


@pytest.mark.parametrize("node", [None, py2(b"\xff\xfe")])
def test_an_object_that_stands_for_none(node: Any, tmp_path: Path) -> None:
    config = (
        glob("omegaconf.nodes", "AnyNode")
        + value(())
        + op.newobj()
        + value({"_val": node})
        + op.build()
    )
    (tmp_path / "x.pth").write_bytes(
        torch_zip(pickled({"model": {"w": tensor()}, "x": config}))
    )
    write("plain", Survey(open(str(tmp_path / "x.pth"))), tmp_path / "plain.pth")
    with open(str(tmp_path / "plain.pth")) as written:
        assert {row.name: row.node for row in written.values} == {"x": None}


def write(command: str, survey: Survey, out: Path) -> None:
    """Write what a command makes. What ckpt planned must be what it then finds in the
    file.
    """
    limits = Limits()
    traits, unfit = save.traits_of("torch-zip"), writer_of("torch-zip").unfit
    checks = {"plain": save.check_weights_only}
    try:
        if command == "plain":
            report = convert(
                survey, "torch-zip", traits, limits, unfit, plain=True, drop_other=True
            )
        elif command == "slim":
            report = slim(survey, limits, keep=["x"])
        else:
            report, checks = rehome(survey, moves("cuda", []), limits, objects=True), {}
        save.save_checkpoint(
            report.result,
            target.target(str(out), force=True),
            "torch-zip",
            limits,
            checks=checks,
        )
    except CkptError as error:
        assert "a bug in ckpt" not in str(error), command
