"""`--model FILE.py:FACTORY`: the user's own code, built on meta, for certain roles;
whatever it does wrong is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import hostile
import oracle
import pytest
import rewriting
import torch
from paths import IS_THOROUGH
from process import SAMPLES, check_error, ckpt
from torch import nn
from typer.main import get_command

from ckpt.ext.live.model import build, record
from ckpt.model.errors import UsageError
from ckpt.surface.cli.app import COMMANDS, program

pytestmark = [*oracle.QUIET, pytest.mark.slow]

CODE = """
import sys
import torch
from torch import nn
import beside

print("talk")

class Net(nn.Module):
    def __init__(self, width=4, act="relu"):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("table", torch.ones(2))
        self.gain = nn.Parameter(torch.ones(1), requires_grad=False)
        self.act = act
        self.cells = [nn.Linear(1, 1)]

class Peeks(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 1, 3)]
        self.a = nn.Linear(1, 1)

make = Net

ready = nn.Linear(1, 1)
number = 3

def other(): return {"not": "a module"}
def breaks(): raise RuntimeError("first line\\nsecond")
def leaves(): sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(CODE)
    (tmp_path / "beside.py").write_text("x = 1\n")
    net = nn.Module()
    net.a, net.b, net.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
    net.register_buffer("table", torch.ones(2))
    net.gain = nn.Parameter(torch.ones(1))
    state = net.state_dict()
    rewriting.saved(state, tmp_path / "a.pth")
    rewriting.saved(
        {f"module.{name}": value for name, value in state.items()},
        tmp_path / "wrapped.pth",
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("spec", ["nets.py:Net", "./nets.py:Net", "nets.py:make"])
@pytest.mark.parametrize("file", ["a.pth", "wrapped.pth"])
def test_roles_are_certain(spec: str, file: str, folder: Path) -> None:
    done = ckpt("inspect", file, "--model", spec, "--json", cwd=folder)

    assert done.code == 0 and done.complaints == ["talk"], done
    roles = {
        row["name"].removeprefix("module."): row
        for row in json.loads(done.out)["tensors"]
    }
    assert {name: row["role"] for name, row in roles.items()} == {
        **dict.fromkeys(("a.weight", "a.bias", "b.weight", "b.bias"), "parameter"),
        **dict.fromkeys(("norm.weight", "norm.bias", "gain"), "parameter"),
        **dict.fromkeys(
            (
                "norm.running_mean",
                "norm.running_var",
                "norm.num_batches_tracked",
                "table",
            ),
            "buffer",
        ),
    }
    assert {row["evidence"]["trust"] for row in roles.values()} == {"certain"}


def test_the_order_of_the_model_decides(folder: Path) -> None:
    found = json.loads(
        ckpt(
            "inspect",
            "a.pth",
            "--model",
            "nets.py:Net",
            "--index",
            "0-5",
            "--json",
            cwd=folder,
        ).out
    )["index"]

    names = [row["name"] for row in found["names"]]
    assert names == [
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
        "norm.weight",
        "norm.bias",
    ]  # gain is frozen
    assert found["evidence"]["trust"] == "certain" and found["parameters"] == 6


def test_a_plain_list_is_found(folder: Path) -> None:
    text = ckpt("inspect", "a.pth", "--model", "nets.py:Net", cwd=folder).out.decode()

    assert re.search(r"list-modules +cells\[0\] \(Linear\)", text)


def test_diff_knows_what_is_frozen(folder: Path) -> None:
    state = torch.load(folder / "a.pth")
    state["a.weight"] = state["a.weight"] + 1
    rewriting.saved(state, folder / "b.pth")

    report = json.loads(
        ckpt(
            "diff", "a.pth", "b.pth", "--model", "nets.py:Net", "--json", cwd=folder
        ).out
    )

    causes = {
        row["after"]: row["cause"]
        for row in report["tensors"]
        if row["status"] == "same"
    }
    assert (
        causes["gain"] == "frozen"
        and causes["b.weight"] == "unknown"
        and causes["table"] is None
    )
    assert [
        (row["code"], row["level"], row["tensors"]) for row in report["findings"]
    ] == [
        ("frozen", "info", ["gain"]),
        (
            "frozen",
            "info",
            ["a.bias", "b.weight", "b.bias", "norm.weight", "norm.bias"],
        ),
    ]


def test_arguments(folder: Path) -> None:
    net = build("nets.py:Net", ["width=3", "act=gelu"], device="meta")

    assert (
        net.a.weight.shape == (3, 3)
        and net.act == "gelu"
        and net.a.weight.device.type == "meta"
    )


def test_a_constructor_that_looks_at_values(folder: Path) -> None:
    assert list(record("nets.py:Peeks").tensors) == ["a.weight", "a.bias"]
    assert list(record("nets.py:ready").tensors) == ["weight", "bias"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "nets.py"), "expected file.py:factory"),
        (("--model", "nets.py:none"), "has no none"),
        (("--model", "nets.py:Peks"), "has no peks (did you mean peeks?)"),
        (("--model", "gone.py:Net"), "gone.py is no file"),
        (("--model", "folder.py:Net"), "folder.py is no file"),
        (("--model", "nets:Net"), "expected file.py:factory"),
        (("--model", "nets.py:torch.nn.Identity"), "expected file.py:factory"),
        (("--model", "nets.py:number"), "'int' object is not callable"),
        (("--model", "nets.py:other"), "returned a dict, not a torch.nn.module"),
        (
            ("--model", "nets.py:breaks"),
            "runtimeerror: first line (ckpt_debug=1 shows where)",
        ),
        (("--model", "nets.py:leaves"), "systemexit: 3"),
        (
            ("--model", "nets.py:Net", "--arg", "width"),
            "--arg width: expected name=value",
        ),
        (
            ("--model", "nets.py:Net", "--arg", "depth=1"),
            "unexpected keyword argument 'depth'",
        ),
        (("--model", "bad.py:Net"), "syntaxerror"),
        (("--arg", "a=1"), "--arg goes with --model"),
    ],
)
def test_trouble(arguments: tuple[str, ...], says: str, folder: Path) -> None:
    (folder / "bad.py").write_text("def :")
    (folder / "folder.py").mkdir()

    done = ckpt("inspect", "a.pth", *arguments, cwd=folder)

    check_error(done._replace(err=done.err.removeprefix(b"talk\n")), says)


def test_another_model_is_refused(folder: Path) -> None:
    (folder / "more.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.Linear(1, 1))\n"
    )

    done = ckpt("inspect", "a.pth", "--model", "more.py:make", cwd=folder)

    check_error(
        done,
        (
            "not the model that --model builds: the file has 0 of its 2 tensors and "
            "lacks 0.weight"
        ),
    )


def test_nothing_is_built_without_being_asked(folder: Path) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        build("nets.py:Net", ["=1"], device="meta")


def test_another_width_is_refused(folder: Path) -> None:
    done = ckpt(
        "inspect", "a.pth", "--model", "nets.py:Net", "--arg", "width=5", cwd=folder
    )

    check_error(
        done._replace(err=done.err.removeprefix(b"talk\n")),
        "a.weight has shape [4, 4] in the file and [5, 5] in the model (--arg k=v)",
    )


def test_whatever_the_code_raises(folder: Path) -> None:
    (folder / "odd.py").write_text(
        "class Odd(BaseException): pass\ndef make(): raise Odd('x')\n"
    )

    check_error(
        ckpt("inspect", "a.pth", "--model", "odd.py:make", cwd=folder), "odd: x"
    )


# --------------------------------------------------------------------------------------
# names of files


EVIL = (
    f"import pathlib; pathlib.Path({str(hostile.CANARY)!r}).touch()\nx = lambda: None\n"
)


@pytest.mark.parametrize("name", ["evil.py:x", "evil.py:x.pth", "./evil.py:x.pth"])
@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    "command",
    [["lint"], ["inspect"], ["diff", "a.pth"], ["warmstart", "a.pth", "--into"]],
)
def test_no_positional_builds_a_model(
    command: list[str], link: bool, name: str, folder: Path
) -> None:
    (folder / "evil.py").write_text(EVIL)
    if link:
        (folder / name).symlink_to("gone")
    more = ["-o", "out.pth"] if command[0] == "warmstart" else []

    done = ckpt(*command, name, *more, cwd=folder)

    assert done.code == 2 and not hostile.CANARY.exists()
    if name == "evil.py:x" and not link:
        option = "--into-model" if more else "--model"
        check_error(
            done,
            f"evil.py:x: not a checkpoint ({option} evil.py:x builds a live model)",
        )
    assert not (folder / "out.pth").exists()


def options() -> Iterator[tuple[str, str]]:
    """Every option of every command that takes a value."""
    for name in COMMANDS:
        command = get_command(program([name]))
        command = getattr(command, "commands", {name: command})[name]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_flag:
                yield from ((name, option) for option in parameter.opts)


FIRST = {"diff": ["a.pth"], "warmstart": ["a.pth", "--into", "a.pth"], "get": []}


def test_no_file_name_runs_code_or_weakens_a_gate(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a shell makes of `*.pth` when a file is called as an option with a value."""
    (folder / "evil.py").write_text(EVIL)
    (folder / "hostile.pth").write_bytes((SAMPLES / "hostile.pth").read_bytes())
    (folder / "cut.pth").write_bytes((SAMPLES / "truncated.pth").read_bytes())
    gates = {
        "inspect": ["--fail-on", "called-on-load", "hostile.pth"],
        "lint": ["hostile.pth"],
        "verify": ["cut.pth"],
        "diff": ["a.pth", "hostile.pth"],
    }
    checked = 0
    values = ("evil.py:x.pth", "called-on-load.pth", "x.pth", "0.pth", "s/a/b/.pth")
    for number, (command, option) in enumerate(options()):
        # All of them in turn: the next option gets the next two.
        first = 0 if IS_THOROUGH else 2 * number % len(values)
        for value in (*values[first:], *values[:first])[: 5 if IS_THOROUGH else 2]:
            given = (
                f"{option}={value}" if option.startswith("--") else f"{option}{value}"
            )
            with pytest.raises(SystemExit) as left:
                program([command])(
                    [command, given, *gates.get(command, ["a.pth"])], prog_name="ckpt"
                )
            assert not hostile.CANARY.exists(), given
            if command in gates:
                assert left.value.code != 0, (command, given)
            checked += 1
    assert checked > 200
    capfd.readouterr()
