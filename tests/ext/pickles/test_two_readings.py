"""A file of joblib for a loader that takes the bytes of its arrays for opcodes, and a
pickle in which joblib finds an array.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
import types
from pathlib import Path

import opcodes as op
import pytest
import torch
from process import ckpt

CLASS = op.glob("joblib.numpy_pickle", "NumpyArrayWrapper")
OBJECT = CLASS + op.value(()) + op.newobj()
EVIL = op.call(op.glob("os", "mkdir"), "rung") + op.stop()
NONE = op.none()


def wrapper(made: bytes, count: int, *, is_aligned: bool = False) -> bytes:
    """A description of an array of bytes."""
    code = op.call(op.glob("numpy", "dtype"), "u1", False, True)
    kind = code + op.value((3, "|", NONE, NONE, NONE, -1, -1, 0)) + op.build()
    fields = [
        ("subclass", op.glob("numpy", "ndarray")),
        ("shape", (count,)),
        ("order", "C"),
        ("dtype", kind),
        ("allow_mmap", True),
    ]
    if is_aligned:
        fields.append(("numpy_array_alignment_bytes", 16))
    return made + op.mapping(fields) + op.build()


@pytest.fixture
def joblib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A class by the name of joblib's, for Python's unpickler to find."""
    module = types.ModuleType("joblib.numpy_pickle")
    module.NumpyArrayWrapper = type("NumpyArrayWrapper", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "joblib", types.ModuleType("joblib"))
    monkeypatch.setitem(sys.modules, "joblib.numpy_pickle", module)
    monkeypatch.chdir(tmp_path)


def file_with(data: bytes, *, padding: bytes | None = None) -> bytes:
    head = op.proto(2) + op.empty_dict() + op.mark() + op.value("a")
    array = wrapper(OBJECT, len(data), is_aligned=padding is not None)
    return head + array + (padding or b"") + data + op.setitems() + op.stop()


FAR = op.binary(bytes(2 << 20)) + op.pop()
ARRAYS = {
    "at once": file_with(EVIL),
    "behind bytes that are passed over": file_with(FAR + EVIL),
    "behind padding": file_with(EVIL, padding=b"N" * 79),
    "a state of an object before": file_with(
        op.get(1) + op.value({"a": 1}) + op.build() + b"\xff"
    ).replace(OBJECT, OBJECT + op.put(1), 1),
    "another end": file_with(b"0K\1u."),
}


@pytest.mark.usefixtures("joblib")
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_is_opcodes_too_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(ARRAYS[name])
    for ending in (".pkl", ".pth", ".joblib"):
        done = ckpt("lint", "--level", "error", path.rename(path.with_suffix(ending)))
        path = path.with_suffix(ending)
        assert done.code == 2 and b"two files in one: pickle.load runs" in done.err
    for load in (load_pickle, load_torch):
        with contextlib.suppress(Exception):
            load(path)
        if name not in ("a state of an object before", "another end"):
            (tmp_path / "rung").rmdir()


def load_pickle(path: Path) -> object:
    with path.open("rb") as file:
        return pickle.load(file)


def load_torch(path: Path) -> object:
    return torch.load(path, weights_only=False)


def test_arrays_of_any_bytes_are_read(tmp_path: Path) -> None:
    rand = random.Random(0)
    path = tmp_path / "a.pkl"
    for _ in range(20):
        path.write_bytes(file_with(rand.randbytes(5_000)))
        assert ckpt("lint", path).code == 0
    for byte in range(256):
        padding = bytes([byte % 16 + 1]) + b"\xff" * (byte % 16 + 1)
        path.write_bytes(file_with(bytes([byte]) * 300, padding=padding))
        assert ckpt("lint", path).code == 0


MADE = {
    "_reconstructor": op.call(
        op.glob("copyreg", "_reconstructor"), CLASS, op.glob("builtins", "object"), NONE
    ),
    "__newobj__": op.call(op.glob("copyreg", "__newobj__"), CLASS),
    "a dotted name": op.stack_global("joblib", "numpy_pickle.NumpyArrayWrapper")
    + op.value(())
    + op.newobj(),
}


@pytest.mark.parametrize("name", MADE)
def test_an_array_of_joblib_that_is_made_in_another_way_is_refused(
    name: str, tmp_path: Path
) -> None:
    """joblib skips the bytes of the array, and runs what stands in the text."""
    path = tmp_path / "a.pkl"
    behind = op.binary(op.pop() + EVIL) + op.pop() + op.stop()
    path.write_bytes(op.proto(4) + wrapper(MADE[name], 5) + behind)
    done = ckpt("lint", "--level", "error", path)
    assert done.code == 2 and b"its arrays cannot be found" in done.err
