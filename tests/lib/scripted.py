"""TorchScript programs for the tests, in every form that torch saves, and as a machine with GPUs would tag them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PICKLES = ("data.pkl", "constants.pkl", "bytecode.pkl")
INPUT = torch.arange(4.0)[None]


class Net(nn.Module):
    """A parameter, a buffer, a list of tensors, a device and a text, which share one `'cpu'` in the pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.register_buffer("scale", torch.ones(4))
        self.device = torch.device("cpu")
        self.name = "cpu"
        self.large = 2**40
        self.more = [torch.ones(2), torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.weight.t() + self.more[1]


class Plain(nn.Module):
    """Without attributes that freezing keeps: all its tensors become constants of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * torch.ones(3)


class Away(nn.Module):
    """Its code names devices as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(3, device=torch.device("cuda:0"))
        z = torch.ones(3, device=torch.device("cuda:0"))
        return y + z + x.cuda() + self.weight.to("cuda:1")


def _saved(module: Any, path: Path, *, lite: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (module._save_for_lite_interpreter if lite else module.save)(str(path))
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "script": lambda path: _saved(torch.jit.script(Net()), path),
    "trace": lambda path: _saved(torch.jit.trace(Plain(), INPUT), path),
    "frozen": lambda path: _saved(torch.jit.freeze(torch.jit.script(Plain()).eval()), path),
    "lite": lambda path: _saved(torch.jit.script(Net()), path, lite=True),
    "frozen lite": lambda path: _saved(torch.jit.freeze(torch.jit.script(Plain()).eval()), path, lite=True),
}
ONE_DEVICE = [kind for kind in KINDS if "frozen" in kind or kind == "trace"]
"""Programs whose pickles name a device for nothing but storages."""


def away(path: Path, *, lite: bool = False) -> Path:
    """A program whose code names `cuda`, `cuda:0` twice and `cuda:1`."""
    return _saved(torch.jit.script(Away()), path, lite=lite)


def tagged(path: Path, tag: str = "cuda:0", only: tuple[str, ...] = PICKLES) -> Path:
    """A program with another tag in place of each `'cpu'` of its pickles."""
    before = b"X\x03\x00\x00\x00cpu"
    after = b"X" + len(tag).to_bytes(4, "little") + tag.encode()
    with zipfile.ZipFile(path) as archive:
        records = [(row, archive.read(row)) for row in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for row, data in records:
            is_pickle = row.filename.partition("/")[2] in only
            archive.writestr(
                row.filename, data.replace(before, after) if is_pickle else data, row.compress_type
            )
    return path


def records(path: Path) -> dict[str, bytes]:
    """The bytes of each record as they lie in the archive, deflated ones too."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for row in archive.infolist():
            file.seek(row.header_offset + 26)
            names, extras = (int.from_bytes(file.read(2), "little") for _ in range(2))
            file.seek(names + extras, 1)
            found[row.filename.partition("/")[2]] = file.read(row.compress_size)
    return found
