"""Changing the devices in a pickle of TorchScript: use by use, and every other byte
stays.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

import pytest
import scripted
from process import check_error, ckpt

from ckpt.ext.torchscript.writer import Use, retag_pickle
from ckpt.model.errors import UnsupportedError


def text(value: str, slot: int | None = None) -> bytes:
    put = b"" if slot is None else b"q" + bytes([slot])
    return b"X" + len(value).to_bytes(4, "little") + value.encode() + put


def storage(location: bytes, end: bytes = b"") -> bytes:
    return (
        b"("
        + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text("0")
        + location
        + b"K\x04"
        + end
        + b"tQ"
    )


def whole(*parts: bytes) -> bytes:
    return b"\x80\x02(" + b"".join(parts) + b"t."


def get(slot: int) -> bytes:
    return b"h" + bytes([slot])


def to_cpu(use: Use, value: str) -> str:
    return "cpu" if use == "storage" and value == "cuda:0" else value


def devices(use: Use, value: str) -> str:
    return "cpu" if use == "device" else value


CUDA, CPU = text("cuda:0", 1), text("cpu", 1)
ROWS = {
    "one": (whole(storage(CUDA)), whole(storage(CPU))),
    "no memo": (whole(storage(text("cuda:0"))), whole(storage(text("cpu")))),
    "six fields": (whole(storage(CUDA, b"N")), whole(storage(CPU, b"N"))),
    "shared": (
        whole(storage(CUDA), storage(get(1))),
        whole(storage(CPU), storage(get(1))),
    ),
    "another device": (whole(storage(text("cuda:1"))), whole(storage(text("cuda:1")))),
    "only a text": (whole(CUDA, get(1)), whole(CUDA, get(1))),
    "a text after it": (
        whole(storage(CUDA), get(1), get(1), storage(get(1))),
        whole(storage(CPU), text("cuda:0", 2), get(2), storage(get(1))),
    ),
    "a text before it": (
        whole(CUDA, storage(get(1)), storage(get(1)), get(1)),
        whole(CUDA, storage(text("cpu", 2)), storage(get(2)), get(1)),
    ),
    "a slot that is used again": (
        whole(storage(CUDA), text("x", 1), get(1), storage(text("cuda:0", 1)), get(1)),
        whole(storage(CPU), text("x", 1), get(1), storage(CPU), text("cuda:0", 2)),
    ),
    "a slot that holds a number then": (
        whole(storage(CUDA), b"K\x05q\x01", get(1)),
        whole(storage(CPU), b"K\x05q\x01", get(1)),
    ),
    "a long slot": (
        whole(
            storage(text("cuda:0") + b"r\x2c\x01\0\0"),
            storage(b"j\x2c\x01\0\0"),
            b"j\x2c\x01\0\0",
        ),
        whole(
            storage(text("cpu") + b"r\x2c\x01\0\0"),
            storage(b"j\x2c\x01\0\0"),
            text("cuda:0") + b"r\x2d\x01\0\0",
        ),
    ),
    "bytes behind the pickle": (
        whole(storage(CUDA)) + b"cuda:0",
        whole(storage(CPU)) + b"cuda:0",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_storages(name: str) -> None:
    before, after = ROWS[name]

    assert retag_pickle(before, to_cpu) == after
    assert list(pickletools.genops(after))
    assert retag_pickle(before, lambda use, value: value) == before


def test_devices_of_objects() -> None:
    made = b"ctorch\ndevice\nq\x02" + CUDA + b"\x85R"
    again = b"h\x02" + get(1) + b"\x85R"
    other = b"ctorch\nSize\nq\x03" + get(1) + b"\x85R"

    found = retag_pickle(whole(made, again, storage(get(1)), other), devices)
    left = b"ctorch\ndevice\nq\x02" + CPU + b"\x85R" + again
    size = b"ctorch\nSize\nq\x03" + get(4) + b"\x85R"
    assert found == whole(left, storage(text("cuda:0", 4)), size)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (whole(b"N0"), "writes no POP"),
        (whole(b"\x8c\x01a"), "writes no SHORT_BINUNICODE"),
        (whole(b"K\x01Q"), "storage at byte 5 of a pickle is not written as"),
        (whole(storage(b"N")), "is not written as"),
        (whole(storage(CUDA, b"NN")), "is not written as"),
    ],
)
def test_pickles_of_others_are_refused(body: bytes, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        retag_pickle(body, to_cpu)


def test_the_error_names_the_file(tmp_path: Path) -> None:
    """Python's own pickler writes what torch's C++ reader does not know."""
    source = scripted.tagged(scripted.KINDS["trace"](tmp_path / "a.pt"))
    with zipfile.ZipFile(source) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in found.items():
            archive.writestr(name, data[:-1] + b"N0." if name == "a/data.pkl" else data)

    for options in (["-o", tmp_path / "b.pt"], ["--in-place"]):
        line = check_error(
            ckpt("rehome", source, *options), "torch.jit.save writes no pop"
        )
        assert str(source) in line
    assert not (tmp_path / "b.pt").exists()
