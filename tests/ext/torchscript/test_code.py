"""What torch.jit.load runs, and what the code of a program does to files."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from torch import nn

from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.formats import open

pytestmark = oracle.QUIET


class Loaded(nn.Module):
    """A module that sets its own state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.weight = state[0]
        self.training = state[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def found(path: Path) -> dict[str, str]:
    with open(str(path)) as checkpoint:
        return {row.code: row.message for row in inspect(Survey(checkpoint)).findings}


def changed(path: Path, old: str, new: str) -> Path:
    """A copy of an archive with other code."""
    other = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            after.writestr(
                name,
                data.replace(old.encode(), new.encode())
                if name.endswith(".py")
                else data,
            )
    return other


def test_a_state_that_the_program_sets_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Loaded()).save(path)

    message = found(path)["runs-setstate"]
    assert re.fullmatch(
        r"torch.jit.load runs its __setstate__ \(code/.*\.py:\d+\)\.", message
    )
    done = inside("ls", "a.pt", cwd=tmp_path)
    assert done.code == 0 and b"torch.jit" in done.out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('torch.save(self.weight, "rung")', "torch.save"),
        ('_0 = torch.from_file("rung", True, 8)', "torch.from_file"),
        ('_0 = ops.aten.from_file("rung", True, 8)', "torch.from_file"),
        ("while True:\n      pass", "a loop without a bound"),
    ],
)
def test_what_touches_files_or_never_ends_is_said(
    line: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Loaded()).save(path)
    found_ = found(
        changed(
            path,
            "    weight = self.weight\n",
            f"    {line}\n    weight = self.weight\n",
        )
    )

    assert found_["code-inside"].startswith(
        "DANGER: loading this file runs its __setstate__ (code/"
    )
    assert says in found_["code-inside"] and "runs-setstate" not in found_
    path = tmp_path / "b.pt"
    torch.jit.script(nn.ReLU()).save(path)
    message = found(changed(path, "    return", f"    {line}\n    return"))["file-code"]
    assert says in message


def test_code_that_loading_runs_is_said_once_and_first(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Loaded()).save(path)
    line = 'torch.save(self.weight, "rung")'
    other = changed(
        path, "    weight = self.weight\n", f"    {line}\n    weight = self.weight\n"
    )
    lines = inside("inspect", other.name, cwd=tmp_path).out.decode().splitlines()

    assert lines[0].startswith("DANGER  loading this file runs its __setstate__ (code/")
    assert sum("DANGER" in line or "runs" in line for line in lines) == 1
    assert "  loads   do not load it" in lines


def test_usual_programs_have_no_such_finding(tmp_path: Path) -> None:
    for number, module in enumerate(
        (nn.LSTM(2, 2), nn.TransformerEncoderLayer(4, 2, 8), nn.BatchNorm1d(3))
    ):
        path = tmp_path / f"{number}.pt"
        torch.jit.script(module).save(path)
        assert not found(path).keys() & {"runs-setstate", "file-code", "code-inside"}


@pytest.mark.parametrize(
    "command",
    [
        ("rehome", "--to", "cpu"),
        ("rehome", "--to", "cuda:0"),
        ("salvage",),
    ],
)
def test_code_that_loading_runs_is_not_passed_on_in_silence(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Loaded()).save(path)
    line = 'torch.save(self.weight, "rung")'
    evil = changed(
        path, "    weight = self.weight\n", f"    {line}\n    weight = self.weight\n"
    )
    words = (command[0], evil.name, *command[1:], "-o", "out.pt")

    done = inside(*words, cwd=tmp_path)
    said = done.err.decode()
    assert done.code == 2 and "loading the result would run its __setstate__" in said
    assert "(--keep-code writes it all the same)" in said
    assert not (tmp_path / "out.pt").exists()

    done = inside(*words, "--keep-code", cwd=tmp_path)
    assert done.code == 0 and b"DANGER: loading the result runs its" in done.err
    assert found(tmp_path / "out.pt").keys() & {"code-inside"}


def test_an_operator_that_ckpt_does_not_know_is_named_by_writers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Loaded()).save(path)
    line = "    _9 = ops.mine.deed(self.weight)"
    odd = changed(path, "    self.training = ", f"{line}\n    self.training = ")
    assert "unknown-operator" in found(odd)
    done = inside("rehome", odd.name, "--to", "cuda:0", "-o", "out.pt", cwd=tmp_path)
    assert done.code == 0 and b"loading the result calls ops.mine.deed" in done.err
    assert b", which ckpt does not know" in done.err


class Joined(nn.Module):
    """A module that joins tensors while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.ones(2)

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.kept, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.kept = torch.cat([state[0], state[0]])
        self.training = state[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.kept


@pytest.mark.needs("lint")
def test_the_command_below_a_list_shows_what_runs(tmp_path: Path) -> None:
    """An operator that ckpt does not know is a warning, and the command says it."""
    torch.jit.script(Joined()).save(tmp_path / "a.pt")
    done = inside("ls", "a.pt", cwd=tmp_path)

    assert b"RUNS CODE" in done.out
    (words,) = re.findall(r"\(code: ckpt (.+)\)", done.err.decode())
    assert "unknown-operator" in inside(*words.split(), cwd=tmp_path).out.decode()
