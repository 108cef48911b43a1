"""The tar format of torch 0.1, built by hand from its layout; torch itself still reads
it and is the reference.
"""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opcodes as op
import pytest
import torch
from process import ckpt

import ckpt as package
from ckpt import formats
from ckpt.model.errors import CkptError
from ckpt.model.tensors import TensorRef

FLOATS = op.glob("torch", "FloatStorage")


def storages(*rows: tuple[Any, str, int], views: list[Any] | None = None) -> bytes:
    """The member `storages`: one of `numel` floats 0, 1, ... for each (key, device,
    numel).
    """
    data = op.pickled(len(rows))
    for key, device, numel in rows:
        data += op.pickled((key, device, FLOATS)) + struct.pack("<Q", numel)
        data += struct.pack(f"<{numel}f", *range(numel))
    return data + op.pickled(views or [])


def tensors(*rows: tuple[Any, Any, tuple[int, ...], tuple[int, ...], int]) -> bytes:
    """The member `tensors`: key, storage, sizes, strides, offset."""
    data = op.pickled(len(rows))
    for key, storage, size, stride, offset in rows:
        data += op.pickled((key, storage, op.glob("torch", "FloatTensor")))
        data += struct.pack(
            f"<2i{2 * len(size) + 1}q", len(size), 0, *size, *stride, offset
        )
    return data


def named(number: Any) -> bytes:
    return op.value(number) + op.binpersid()


STORAGES = storages((10, "cpu", 6), (11, "cuda:0", 4), views=[(12, 10, 2, 4)])
TENSORS = tensors(
    (1, 10, (2, 3), (3, 1), 0),
    (2, 11, (4,), (1,), 0),
    (3, 12, (3,), (1,), 1),
    (4, 10, (6,), (1,), 0),
)
PARAMETER = op.call(op.glob("torch.nn.parameter", "Parameter"), named(4), True)
PICKLE = op.pickled(
    {
        "w": named(1),
        "b": named(2),
        "view": named(3),
        "p": PARAMETER,
        "s": named(10),
        "epoch": 7,
    }
)


def tar(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


GOOD = {"storages": STORAGES, "tensors": TENSORS, "pickle": PICKLE}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "torch01.pth"
    path.write_bytes(tar(**GOOD))
    return path


def test_it_is_read_as_torch_reads_it(file: Path, tmp_path: Path) -> None:
    theirs = torch.load(file, map_location="cpu", weights_only=False)
    with formats.open(str(file)) as checkpoint:
        assert checkpoint.format == "torch-tar"
        found = {entry.name: entry.tensor for entry in checkpoint.tensors}
        assert {name: tensor.device for name, tensor in found.items()}["b"] == "cuda:0"
        assert found["p"].is_parameter and found["p"].requires_grad
        assert isinstance(found["w"], TensorRef) and isinstance(
            found["view"], TensorRef
        )
        assert found["w"].storage is found["view"].storage
        assert [value.name for value in checkpoint.values] == ["epoch"]
        assert checkpoint.weights_only
    done = ckpt("convert", file, "-o", tmp_path / "new.pth")
    assert done.code == 0, done.err

    ours = torch.load(tmp_path / "new.pth", map_location="cpu", weights_only=False)

    assert ours["epoch"] == theirs["epoch"] == 7
    for name in ("w", "b", "view"):
        assert torch.equal(ours[name], theirs[name]), name
    assert ours["view"].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "words", [("verify",), ("inspect",), ("stats",), ("sum",), ("ls",)]
)
def test_every_command_reads_it(words: tuple[str, ...], file: Path) -> None:
    assert ckpt(*words, file).code == 0


def test_values_and_differences(file: Path) -> None:
    assert ckpt("get", file, "epoch").out == b"7\n"
    assert ckpt("diff", file, file).code == 0


def numbers(**members: bytes) -> Callable[[], bytes]:
    return lambda: tar(**{**GOOD, **members})


BAD = {
    "a member is missing": (
        lambda: tar(storages=STORAGES, tensors=TENSORS),
        "lacks pickle",
    ),
    "a count beyond the bytes": (numbers(tensors=op.pickled(10**9)), "invalid number"),
    "a negative count": (numbers(storages=op.pickled(-1)), "invalid number"),
    "a storage beyond the member": (
        numbers(
            storages=op.pickled(1)
            + op.pickled((10, "cpu", FLOATS))
            + struct.pack("<Q", 2**62)
        ),
        "cut off",
    ),
    "a storage twice": (
        numbers(storages=storages((10, "cpu", 6), (10, "cpu", 6))),
        "repeated key",
    ),
    "a view beyond its storage": (
        numbers(
            storages=storages((10, "cpu", 6), (11, "cpu", 4), views=[(12, 10, 3, 4)])
        ),
        "reaches past the 6 elements",
    ),
    "a view with a negative offset": (
        numbers(
            storages=storages((10, "cpu", 6), (11, "cpu", 4), views=[(12, 10, -1, 4)])
        ),
        "reaches past the 6 elements",
    ),
    "a tensor beyond its storage": (
        numbers(tensors=tensors((1, 10, (2, 4), (4, 1), 0))),
        "reaches past the 6",
    ),
    "a tensor beyond its view": (
        numbers(
            storages=storages((10, "cpu", 6), (11, "cpu", 4), views=[(12, 10, 1, 4)]),
            tensors=tensors((1, 12, (3,), (1,), 2)),
        ),
        "reaches past the 4",
    ),
    "a negative size": (
        numbers(tensors=tensors((1, 10, (-2, 3), (3, 1), 0))),
        "negative",
    ),
    "more than 64 bits before a size of 0": (
        numbers(tensors=tensors((1, 10, (2**62, 8, 0), (1, 1, 1), 0))),
        "more elements than torch counts",
    ),
    "many dimensions": (
        numbers(
            tensors=op.pickled(1)
            + op.pickled((1, 10, FLOATS))
            + struct.pack("<2i", 2**31 - 1, 0)
        ),
        "at most 64",
    ),
    "a tensor of an unknown storage": (
        numbers(tensors=tensors((1, 99, (1,), (1,), 0))),
        "not there",
    ),
    "an unknown number": (
        numbers(pickle=op.pickled({"w": named(99)})),
        "names nothing",
    ),
    "a storage class that is none": (
        numbers(
            storages=op.pickled(1) + op.pickled((10, "cpu", op.glob("posix", "system")))
        ),
        "unknown storage class",
    ),
    "a device that is no text": (
        numbers(
            storages=op.pickled(1)
            + op.pickled((10, 3, FLOATS))
            + struct.pack("<Q", 0)
            + op.pickled([])
        ),
        "not a string",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_one_is_refused(name: str, tmp_path: Path) -> None:
    make, problem = BAD[name]
    (tmp_path / "bad.pth").write_bytes(make())

    with pytest.raises(CkptError, match=problem):
        formats.open(str(tmp_path / "bad.pth"))


def test_calls_in_every_member_are_named(tmp_path: Path) -> None:
    evil = op.call(op.glob("posix", "system"), "touch x")
    row = op.pickled((1, 10, evil)) + struct.pack("<2i3q", 1, 0, 6, 1, 0)
    data = tar(
        storages=STORAGES,
        tensors=op.pickled(1) + row,
        pickle=op.pickled({"w": named(1)}),
    )
    (tmp_path / "evil.pth").write_bytes(data)

    with formats.open(str(tmp_path / "evil.pth")) as checkpoint:
        groups = {row.name: row.group for row in checkpoint.imports}

    assert groups["system"] == "called"


@pytest.mark.parametrize("size", [8, 9])
def test_a_tensor_of_doubles_ends_with_its_view(size: int, tmp_path: Path) -> None:
    """The storage has 10 elements, and the view of it 8."""
    doubles = op.glob("torch", "DoubleStorage")
    data = op.pickled(1) + op.pickled((10, "cpu", doubles)) + struct.pack("<Q", 10)
    data += struct.pack("<10d", *range(10)) + op.pickled([(12, 10, 0, 8)])
    row = op.pickled((3, 12, op.glob("torch", "DoubleTensor")))
    rows = op.pickled(1) + row + struct.pack("<2i3q", 1, 0, size, 1, 0)
    path = tmp_path / "doubles.pth"
    members = {"storages": data, "tensors": rows, "pickle": op.pickled({"v": named(3)})}
    path.write_bytes(tar(**members))

    if size == 8:
        theirs = torch.load(path, weights_only=False)["v"]
        with package.open(path) as checkpoint:
            ours = checkpoint["v"].torch()
        assert ours.dtype == torch.float64
        assert ours.tolist() == theirs.tolist() == [*range(8)]
    else:
        with pytest.raises(CkptError, match="reaches past the 8 elements"):
            package.open(path)
