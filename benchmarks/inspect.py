"""Start, `inspect` and `get` of a large file, beside torch and beside an empty
program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.files import write_state
from benchmarks.setting import (
    LARGE_TENSORS,
    Case,
    Setting,
    ckpt,
    ckpt_command,
    names,
    rows_of,
)
from benchmarks.timing import Job

TORCH_PEER = """\
import sys
import torch

state = torch.load(sys.argv[1], mmap=True, weights_only=True)
for name, tensor in state.items():
    print(name, tensor.dtype, tuple(tensor.shape), tensor.device)
"""

EMPTY_APP = """\
import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def inspect() -> None:
    pass


@app.command()
def get() -> None:
    pass


app()
"""


def write_zeros(path: Path, tensors: int, shape: tuple[int, ...]) -> None:
    """Save a state dict of float32 zeros."""
    write_state(path, names(tensors), shape)


def cases(setting: Setting) -> Iterator[list[Case]]:
    """One group. The short jobs come first and together: what runs right after a long
    one finds the caches cold.
    """
    size_gb = setting.sizes.size_gb
    shape = (rows_of(size_gb, 4), 1024)
    large = setting.made(
        setting.folder / f"{size_gb:g}GB.pth", write_zeros, LARGE_TENSORS, shape
    )
    small = setting.made(
        setting.folder / "small.pth", write_zeros, LARGE_TENSORS, (4, 4)
    )
    app = setting.script("empty_app", EMPTY_APP)
    empty = Job("an empty typer app", (*app, "inspect"))
    torch = Job(
        "`torch.load(mmap=True)` + print",
        (*setting.script("torch_peer", TORCH_PEER), str(large)),
    )
    inspect = ckpt(f"`ckpt inspect`, {size_gb:g} GB", "inspect", large)
    terminal = Job(
        f"`ckpt inspect`, {size_gb:g} GB, terminal",
        (*ckpt_command(), "inspect", str(large)),
        terminal=True,
    )
    yield [
        Case(
            "start/version",
            ckpt("`ckpt --version`", "--version"),
            Job("`python -c pass`", (sys.executable, "-c", "pass")),
        ),
        Case(
            "start/help",
            ckpt("`ckpt --help`", "--help"),
            Job("the help of an empty typer app", (*app, "--help")),
        ),
        Case(
            "start/inspect",
            ckpt(f"`ckpt inspect`, {LARGE_TENSORS} small tensors", "inspect", small),
            empty,
        ),
        Case("start/inspect-large", inspect, empty),
        Case("inspect/large", inspect, torch),
        Case("inspect/terminal", terminal, torch),
    ]
    setting.forget(large, small)
