"""Every byte of small good files, changed: a checkpoint or an error comes out, and what
comes out is what torch sees.

SAFETY.md §6.1. Nothing is random: the same files, offsets and verdicts in every run.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import hostile
import opcodes as op
import pytest
import safetensors.torch
import torch
from paths import many

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.names import NamedKey
from ckpt.surface.text.lines import plain_text

FILES = (
    "shared.pt",
    "legacy.pt",
    "plain.safetensors",
    "deflated.pt",
    "module.pt",
    "training.pt",
)
CHANGES: dict[str, Callable[[int], int]] = {
    "low-bit": lambda byte: byte ^ 0x01,
    "high-bit": lambda byte: byte ^ 0x80,
    "ones": lambda byte: 0xFF,
    "zero": lambda byte: 0x00,
}
ORACLE_EVERY = 2
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
        name = ".".join("?" if _is_odd(key) else str(key) for key in entry.path)
        found.append((name, tensor.shape, tensor.dtype.name, stride, offset))
    return found


def _is_odd(key: str | int) -> bool:
    return isinstance(key, NamedKey) and key.kind not in ("NoneType", "bool", "float")


def _flat(thing: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that torch loaded, by the names that ckpt gives them; keys that are
    no names are `?`.
    """
    if isinstance(thing, torch.Tensor):
        yield ".".join(path), thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            plain = isinstance(key, (str, bool, float, NoneType)) or (
                type(key) is int and abs(key) < 2**63
            )
            yield from _flat(value, (*path, str(key) if plain else "?"))
    elif isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            yield from _flat(value, (*path, str(index)))


def _by_torch(name: str, data: bytes) -> list[Row] | str:
    """The same rows by the reference library, or the name of the exception with which
    it refuses the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name.endswith(".safetensors"):
                loaded: Any = safetensors.torch.load(data)
            else:
                loaded = torch.load(
                    io.BytesIO(data), weights_only=True, map_location="cpu"
                )
    except Exception as error:
        return type(error).__name__
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


def _agree(ours: list[Row], theirs: list[Row]) -> bool:
    """Whether both see the same. Of a name that is there twice torch keeps the last,
    ckpt shows all.
    """
    return {row[0]: row for row in ours} == {row[0]: row for row in theirs}


class Reader:
    """Opens one changed file after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def view(self, data: bytes) -> tuple[Any, ...] | None:
        """What the file holds, comparable; None after an error. Any other exception
        fails the test.
        """
        self.path.write_bytes(data)
        try:
            with formats.open(str(self.path)) as checkpoint:
                self.rows = _rows(checkpoint)
                self.promised = (
                    checkpoint.weights_only == () and checkpoint.not_loadable is None
                )
                self.noticed = bool(checkpoint.account.notices)
                devices = [entry.tensor.device for entry in checkpoint.tensors]
                values = [
                    (value.name, value.type, repr(value.node)[:100])
                    for value in checkpoint.values
                ]
                if any("object at 0x" in text for _, _, text in values):
                    values = [(name, kind, "") for name, kind, _ in values]
                imports = [
                    (row.module, row.name, row.group) for row in checkpoint.imports
                ]
                return (
                    self.rows,
                    devices,
                    values,
                    imports,
                    checkpoint.weights_only,
                    checkpoint.byteorder,
                )
        except CkptError as error:
            text = str(error)
            assert text and "\n" not in text
            return None

    def report(self) -> list[str]:
        """The codes of the findings on the last file, after all that is written about
        it was made.
        """
        try:
            with formats.open(str(self.path)) as checkpoint:
                report = inspect(Survey(checkpoint))
        except CkptError:
            return []
        json.dumps(report.to_json(), allow_nan=False)
        plain_text(inspect_lines(report))
        return [finding.code for finding in report.findings]


class Verdicts(NamedTuple):
    """What became of the changed files: errors, those that look different, and of these
    those torch opened.
    """

    refused: int
    different: int
    compared: int


def _change_each(
    name: str, data: bytes, where: range, change: str, path: Path
) -> Verdicts:
    """Change one byte after the other; whatever opens and looks different must look the
    same to torch.
    """
    reader = Reader(path)
    before = reader.view(data)
    assert before is not None
    refused = different = compared = 0
    wrong = []
    for offset in where:
        byte = CHANGES[change](data[offset])
        if byte == data[offset]:
            continue
        changed = data[:offset] + bytes((byte,)) + data[offset + 1 :]
        after = reader.view(changed)
        if after is None:
            refused += 1
        elif after != before:
            different += 1
            codes = reader.report()
            if different % ORACLE_EVERY == 0:
                theirs = _by_torch(name, changed)
                if isinstance(theirs, str):
                    # A TypeError comes from a call of what is known with arguments that
                    # are not: no refusal.
                    if reader.promised and not reader.noticed and theirs != "TypeError":
                        wrong.append((offset, "ckpt says that it loads", theirs))
                    continue
                compared += 1
                if not _agree(reader.rows, theirs):
                    wrong.append((offset, reader.rows, theirs))
                names = [row[0] for row in reader.rows]
                if len(set(names)) != len(names) and "?" not in ".".join(names):
                    assert "ambiguous-name" in codes, offset
    assert not wrong, (
        f"{len(wrong)} files differ from what torch sees, the first: {wrong[0]}"
    )
    return Verdicts(refused, different, compared)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILES)
def test_every_byte(
    name: str, change: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    data = good[name]
    step = (3 if name == "training.pt" else 1) * many(5, 1)
    found = _change_each(name, data, range(0, len(data), step), change, tmp_path / name)
    assert found.refused, "no change of any byte is an error: nothing was tested"
    if (name, change) in {("legacy.pt", "low-bit"), ("plain.safetensors", "low-bit")}:
        assert found.compared, "torch was never asked"


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "name", [name for name in FILES if name.endswith(".pt") and name != "legacy.pt"]
)
def test_every_byte_of_the_pickle(
    name: str, change: str, good: dict[str, bytes], tmp_path: Path
) -> None:
    """Without its checksum, which refuses every change above: what the machine and the
    rebuilders make of it.
    """
    data, pickle = _without_checksum(good[name])
    found = _change_each(name, data, pickle[:: many(3, 1)], change, tmp_path / name)
    assert found.refused, "no change of any byte is an error: nothing was tested"
    if change == "low-bit" and name in ("shared.pt", "training.pt"):
        assert found.compared > many(0, 5), "torch was hardly ever asked"


def _without_checksum(data: bytes) -> tuple[bytes, range]:
    """The archive with the CRC of data.pkl not recorded, and where data.pkl lies. torch
    checks none.
    """
    entry = data.index(b"PK\1\2")
    while not data[entry + 46 :].startswith(b"archive/data.pkl"):
        entry = data.index(b"PK\1\2", entry + 4)
    stored, header = struct.unpack_from("<L18xL", data, entry + 20)
    begin = header + 30 + sum(struct.unpack_from("<2H", data, header + 26))
    data = data[: entry + 16] + bytes(4) + data[entry + 20 :]
    if not data[header + 6] & 8:  # the CRC stands in the local header too
        data = data[: header + 14] + bytes(4) + data[header + 18 :]
    return data, range(begin, begin + stored)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation(name: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """A file that was cut off anywhere is an error."""
    reader = Reader(tmp_path / name)
    data = good[name]
    step = (3 if name == "training.pt" else 1) * many(5, 1)
    lengths = [*range(0, len(data), step), len(data) - 1]
    opened = [length for length in lengths if reader.view(data[:length]) is not None]
    assert opened == []


@pytest.mark.parametrize("name", FILES)
def test_every_byte_missing(name: str, good: dict[str, bytes], tmp_path: Path) -> None:
    """A byte lost on the way: an error, or the tensors that torch sees."""
    reader = Reader(tmp_path / name)
    data = good[name]
    for offset in range(0, len(data), (1 if len(data) < 2000 else 7) * many(5, 1)):
        changed = data[:offset] + data[offset + 1 :]
        if reader.view(changed) is not None:
            theirs = _by_torch(name, changed)
            assert isinstance(theirs, str) or _agree(reader.rows, theirs), offset


@pytest.mark.parametrize(
    "key",
    [b"]", b"}", b"]\x85", op.ordered_dict()],
    ids=["list", "dict", "tuple-of-list", "ordered-dict"],
)
def test_key_that_cannot_be_hashed_is_not_called_loadable(
    key: bytes, tmp_path: Path
) -> None:
    """One byte of good files makes such keys: every load raises TypeError, so none may
    be promised.
    """
    data = op.torch_zip(op.pickled(b"}", key, b"K\x01s"), {})
    assert _by_torch("x.pt", data) == "TypeError"
    reader = Reader(tmp_path / "x.pt")
    assert reader.view(data) is None or not reader.promised
