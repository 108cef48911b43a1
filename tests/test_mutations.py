"""Every byte of small good files, changed: a checkpoint or an error comes out, and what comes out is what torch sees.

SAFETY.md §6.1. Nothing is random: the same files, offsets and verdicts in every run.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
import safetensors.torch
import torch

from ckpt import formats
from ckpt.checkpoint import Checkpoint
from ckpt.errors import CkptError
from ckpt.jobs.inspect import inspect
from ckpt.render.inspect import inspect_lines
from ckpt.render.text import plain_text

FILES = ("shared.pt", "legacy.pt", "plain.safetensors", "deflated.pt", "module.pt", "training.pt")
CHANGES: dict[str, Callable[[int], int]] = {
    "low-bit": lambda byte: byte ^ 0x01,
    "high-bit": lambda byte: byte ^ 0x80,
    "ones": lambda byte: 0xFF,
    "zero": lambda byte: 0x00,
}
ORACLE_EVERY = {"training.pt": 2}
"""Of the files that open and look different, every k-th is shown to torch."""

Row = tuple[str, tuple[int, ...], str, tuple[int, ...], int]


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    files = hostile.good_files()
    assert set(files) == set(FILES)
    return files


def _rows(checkpoint: Checkpoint) -> list[Row]:
    """Name, shape, dtype, stride and offset of every tensor, in order."""
    found = []
    for entry in checkpoint.tensors:
        tensor = entry.tensor
        stride, offset = getattr(tensor, "stride", ()), getattr(tensor, "offset", 0)
        found.append((".".join(map(str, entry.path)), tensor.shape, tensor.dtype.name, stride, offset))
    return found


def _flat(thing: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that torch loaded, by the names that ckpt gives them."""
    if isinstance(thing, torch.Tensor):
        yield ".".join(path), thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _flat(value, (*path, str(key)))
    elif isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            yield from _flat(value, (*path, str(index)))


def _by_torch(name: str, data: bytes) -> list[Row] | None:
    """The same rows by the reference library, None when it refuses the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name.endswith(".safetensors"):
                loaded: Any = dict(sorted(safetensors.torch.load(data).items()))
            else:
                loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception:
        return None
    return [
        (
            name,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            tensor.stride(),
            tensor.storage_offset(),
        )
        for name, tensor in _flat(loaded)
    ]


class Reader:
    """Opens one changed file after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def view(self, data: bytes) -> tuple[Any, ...] | None:
        """What the file holds, comparable; None after an error. Any other exception fails the test."""
        self.path.write_bytes(data)
        try:
            with formats.open(str(self.path)) as checkpoint:
                self.rows = _rows(checkpoint)
                self.promised = checkpoint.weights_only == () and checkpoint.not_loadable is None
                self.noticed = bool(checkpoint.notices)
                devices = [entry.tensor.device for entry in checkpoint.tensors]
                values = [(value.name, value.type, repr(value.node)[:100]) for value in checkpoint.values]
                if any("object at 0x" in text for _, _, text in values):
                    values = [(name, kind, "") for name, kind, _ in values]
                imports = [(row.module, row.name, row.group) for row in checkpoint.imports]
                return (self.rows, devices, values, imports, checkpoint.weights_only, checkpoint.byteorder)
        except CkptError as error:
            text = str(error)
            assert text and "\n" not in text
            return None

    def report(self) -> None:
        """The whole report on the last file."""
        try:
            with formats.open(str(self.path)) as checkpoint:
                report = inspect(checkpoint)
        except CkptError:
            return
        json.dumps(report.to_json(), allow_nan=False)
        plain_text(inspect_lines(report))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILES)
def test_every_byte(name: str, change: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """A file that opens and looks different looks the same to torch, when torch opens it."""
    data = good[name]
    reader = Reader(tmp_path / name)
    before = reader.view(data)
    assert before is not None
    different = refused = compared = 0
    wrong = []
    for offset in range(len(data)):
        byte = CHANGES[change](data[offset])
        if byte == data[offset]:
            continue
        changed = data[:offset] + bytes((byte,)) + data[offset + 1 :]
        after = reader.view(changed)
        if after is None:
            refused += 1
        elif after != before:
            different += 1
            reader.report()
            if different % ORACLE_EVERY.get(name, 1) == 0:
                theirs = _by_torch(name, changed)
                compared += theirs is not None
                if theirs is not None and sorted(theirs) != sorted(reader.rows):
                    wrong.append((offset, reader.rows, theirs))
    assert not wrong, f"{len(wrong)} files differ from what torch sees, the first: {wrong[0]}"
    assert refused, "no change of any byte is an error: nothing was tested"
    if name != "module.pt":  # weights_only refuses a whole module
        assert compared, "torch was never asked"


@pytest.mark.parametrize("name", FILES)
def test_every_truncation(name: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """A file that was cut off anywhere is an error."""
    reader = Reader(tmp_path / name)
    opened = [length for length in range(len(good[name])) if reader.view(good[name][:length]) is not None]
    assert opened == []


@pytest.mark.parametrize("name", FILES)
def test_every_byte_missing(name: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """A byte lost on the way: an error, or the tensors that torch sees."""
    reader = Reader(tmp_path / name)
    data = good[name]
    for offset in range(0, len(data), 1 if len(data) < 2000 else 3):
        changed = data[:offset] + data[offset + 1 :]
        if reader.view(changed) is not None:
            theirs = _by_torch(name, changed)
            assert theirs is None or sorted(theirs) == sorted(reader.rows), offset


@pytest.mark.parametrize("name", FILES)
def test_promise_of_weights_only(name: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """Where ckpt says that weights_only=True loads the file, and noticed nothing odd, torch loads it."""
    if name.endswith(".safetensors"):
        pytest.skip("no pickle is loaded")
    reader = Reader(tmp_path / name)
    data = good[name]
    before = reader.view(data)
    broken = []
    for offset in range(len(data)):
        changed = data[:offset] + bytes((data[offset] ^ 0x04,)) + data[offset + 1 :]
        after = reader.view(changed)
        if after is not None and after != before and reader.promised and not reader.noticed:
            if _by_torch(name, changed) is None:
                broken.append(offset)
    assert broken == []
