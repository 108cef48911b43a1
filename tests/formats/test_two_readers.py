"""One file, one checkpoint: whatever a usual loader runs or reads, ckpt shows, judges
or refuses.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import pickle
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import jail
import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from exported import package, pt2, pt2_of_2_5
from gadgets import write
from needs import skip_without
from opcodes import call, glob, pickled
from paths import many
from process import TIMEOUT, ckpt
from safetensors.numpy import load_file, save_file
from torch._export.serde.schema import SCHEMA_VERSION

import ckpt as api
from ckpt.bytes.source import Memory
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.formats import open
from ckpt.formats.common.early import OPCODES, is_pickle_too
from ckpt.formats.common.stream import MAGIC
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET

EVIL = pickled(
    glob("builtins", "exec") + op.value(("open('rung', 'w')",)) + op.reduce()
)
"""Makes the file `rung` where it is unpickled."""
CODES = frozenset(
    ("called-on-load", "code-inside", "unknown-import", "unknown-attribute")
)
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}


def is_harmless(path: Path) -> bool:
    """Tell whether ckpt opens a file without a word about what it runs."""
    try:
        with open(str(path)) as checkpoint:
            return CODES.isdisjoint(
                finding.code for finding in inspect(Survey(checkpoint)).findings
            )
    except CkptError:
        return False


# --- the magic number of the legacy format --------------------------------------------

TAIL = pickle.dumps(1001, 2) + pickle.dumps(SYSTEM, 2) + EVIL + pickle.dumps([], 2)
MAGICS: dict[str, bytes] = {
    "LONG4": b"\x80\x02\x8b\x0a\0\0\0" + MAGIC.to_bytes(10, "little") + b".",
    "more bytes": b"\x80\x02\x8a\x0c" + MAGIC.to_bytes(12, "little") + b".",
    "after a POP": b"\x80\x02K\x010" + pickle.dumps(MAGIC, 2)[2:],
    "from the memo": b"\x80\x02N0\x8a\x0a"
    + MAGIC.to_bytes(10, "little")
    + b"q\x000h\x00.",
    "twice the protocol": b"\x80\x02" + pickle.dumps(MAGIC, 2),
    "a line": b"I%d\n." % MAGIC,
    "a call of int": b"\x80\x02c__builtin__\nint\nX\x18\0\0\0"
    + str(MAGIC).encode()
    + b"\x85R.",
    "a Decimal": pickle.dumps(Decimal(MAGIC), 2),
    "a Fraction": pickle.dumps(Fraction(MAGIC), 2),
    "a complex number": b"\x80\x02c__builtin__\ncomplex\n"
    + op.value((float(MAGIC),))
    + b"R.",
    "an array of one": pickle.dumps(np.array([float(MAGIC)]), 2),
    "an array of none": pickle.dumps(np.array([]), 2),
    "a scalar of numpy": pickle.dumps(np.float64(MAGIC), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAGICS)
def test_a_magic_number_in_another_spelling_is_refused(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(MAGICS[name] + TAIL)
    for command in ("inspect", "lint", "sum", "convert --plain -o y.pth"):
        words = command.split()
        done = ckpt(words[0], path, *words[1:], cwd=tmp_path)
        assert done.code == 2 and b"magic number" in done.err
    assert ckpt("verify", path).code == 1


# --- tar before all but zip -----------------------------------------------------------


def member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def tar(first: str | None) -> bytes:
    """The tar archive of torch 0.1 whose pickle is evil, after a member with
    any name.
    """
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1"
    ) as archive:
        if first is not None:
            member(archive, first, b"")
        member(archive, "storages", pickle.dumps(0, 2) + pickle.dumps([], 2))
        member(archive, "tensors", pickle.dumps(0, 2))
        member(archive, "pickle", EVIL)
    return buffer.getvalue()


def summed(header: bytearray, form: bytes) -> bytes:
    """A header with its checksum, spelled by a form."""
    header[148:156] = b" " * 8
    header[148:156] = form % sum(header[:512])
    return bytes(header)


def tar_as_legacy() -> bytes:
    data = bytearray(tar("x"))
    head = (
        pickle.dumps(MAGIC, 2)
        + pickle.dumps(1001, 2)
        + b"\x80\x02}X\x0d\0\0\0little_endian\x88s."
    )
    head += b"\x80\x02}X\x01\0\0\0kX" + (345 - len(head) - 14).to_bytes(4, "little")
    data[: len(head)] = head
    data[345:351] = b"s." + b"\x80\x02]."
    return summed(data, b"%06o\0 ")


def tar_as_safetensors() -> bytes:
    rest = tar(None)
    header = bytearray(b" " * 512)
    header[0:8] = (504).to_bytes(8, "little")
    header[8:400] = (start := b'{"__metadata__":{"x":"') + b"a" * (392 - len(start))
    fields = b"0000644 0000000 0000000 00000000000 00000000000 "
    for at, text in ((100, fields), (156, b"0"), (329, b"0000000 0000000 ")):
        header[at : at + len(text)] = text
    end = b'"},"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (
        len(rest),
        len(rest),
    )
    header[400 : 400 + len(end)] = end
    return summed(header, b"0%06o ") + rest


TARS = {
    "a pickle": tar("\x80\x02}."),
    "a pickle of protocol 0": tar("(lp0\n."),
    "a legacy checkpoint": tar_as_legacy(),
    "a safetensors file": tar_as_safetensors(),
}


@pytest.mark.needs("old")
@pytest.mark.parametrize("name", ["x.pt", "x.safetensors", "weights"])
@pytest.mark.parametrize("kind", TARS)
def test_a_tar_that_is_another_file_too_is_refused(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(TARS[kind])
    for command in ("inspect", "lint", "ls"):
        done = ckpt(command, path)
        assert done.code == 2 and b"two files in one" in done.err + done.out
    assert ckpt("lint", tmp_path, "--level", "error").code == 2, "no name hides it"


@pytest.mark.needs("old")
def test_a_tar_of_before_ustar_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    data = bytearray(tar(None))
    for start in range(0, len(data), 512):  # clear what ustar added to the headers
        if data[start + 257 : start + 262] == b"ustar":
            data[start + 257 : start + 265] = bytes(8)
            data[start : start + 512] = summed(data[start : start + 512], b"%06o\0 ")
    (tmp_path / "x.pt").write_bytes(data)
    done = ckpt("inspect", tmp_path / "x.pt")
    assert done.code == 0 and b"DANGER" in done.out


# --- records in letters of any case ---------------------------------------------------


def saved(path: Path, **records: bytes) -> Path:
    """A file of torch.save with records put in, or under another name."""
    torch.save({"w": torch.arange(3)}, path)
    with zipfile.ZipFile(path) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    root = next(iter(parts)).partition("/")[0]
    with zipfile.ZipFile(path, "w") as out:
        for name, data in parts.items():
            if name.partition("/")[2].upper() not in records:
                out.writestr(name, data)
        for name, data in records.items():
            out.writestr(f"{root}/{name}", data)
    return path


def test_records_are_found_in_letters_of_any_case(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt", BYTEORDER=b"big")
    truth = torch.load(path)["w"].tolist()
    assert truth[1] == 1 << 56
    assert api.open(path)["w"].numpy().tolist() == truth


@pytest.mark.parametrize(
    "name",
    [
        "DATA.PKL",
        "Data.pkl",
        "VERSION",
        "BYTEORDER",
        "DATA/0",
        ".DATA/serialization_id",
    ],
)
def test_records_that_torch_may_take_for_each_other_are_refused(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(3)}, path)
    with zipfile.ZipFile(path, "a") as out:
        root = out.namelist()[0].partition("/")[0]
        out.writestr(f"{root}/{name}", EVIL)
    done = ckpt("inspect", path)
    assert done.code == 2 and b"differ only in case" in done.err


# --- pickles behind the first ---------------------------------------------------------

FIRST = pickle.dumps(["a", "b"], 4)
EVIL_LEGACY = pickle.dumps(MAGIC, 2) + TAIL


def legacy(value: object) -> bytes:
    """A file of torch.save before 1.6."""
    out = io.BytesIO()
    torch.save({"w": value}, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


def evil_archive() -> bytes:
    """An archive as torch.save writes it, whose pickle calls something."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a/data.pkl", EVIL)
        file.writestr("a/version", b"3\n")
    return out.getvalue()


BEHIND = {
    "one": FIRST + EVIL,
    "the third": FIRST + pickle.dumps({}, 2) + EVIL,
    "of protocol 0": pickle.dumps([1], 0) + pickle.dumps({"a": 1}, 0) + EVIL,
    "that breaks": FIRST + EVIL[:-1] + b"\xff\xff",
    "that ends too early": FIRST + EVIL[:-1],
    "that asks for what only torch finds": FIRST + EVIL[:-1] + b"0X\x01\0\0\0aQ.",
    "with long bytes": FIRST
    + EVIL[:-1]
    + b"0B"
    + (5_000).to_bytes(4, "little")
    + bytes(5_000)
    + b".",
    "in another stream": gzip.compress(FIRST) + gzip.compress(EVIL),
    "of an archive": FIRST + evil_archive(),
    "of an archive behind other bytes": FIRST + bytes(20) + evil_archive(),
    "behind a legacy file": legacy(torch.ones(2)) + EVIL,
    "behind a legacy file without storages": legacy(1) + EVIL,
    "of a second legacy file": legacy(torch.ones(2)) + EVIL_LEGACY,
    "of a legacy file behind two": legacy(torch.ones(2))
    + legacy(1)
    + FIRST
    + EVIL_LEGACY,
    "of a second legacy file that is cut": legacy(1) + EVIL_LEGACY[:-1],
    "behind a legacy file, that breaks": legacy(torch.ones(2)) + EVIL[:-1] + b"\xff",
    "behind a legacy file, with an id": legacy(torch.ones(2))
    + EVIL[:-1]
    + b"0X\x01\0\0\0aQ.",
    "of an archive behind a legacy file": legacy(torch.ones(2)) + evil_archive(),
    "of an archive behind a legacy file and bytes": legacy(torch.ones(2))
    + bytes(20)
    + evil_archive(),
}


@pytest.mark.parametrize("name", BEHIND)
def test_pickles_behind_the_first_are_judged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(BEHIND[name])
    assert not is_harmless(path)
    assert ckpt("lint", path, "--level", "error").code in (1, 2)
    assert ckpt("inspect", path, "--fail-on", "called-on-load").code in (1, 2)
    assert not Path("rung").exists()


@pytest.mark.needs("pickles")
def test_harmless_pickles_and_bytes_behind_the_first_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(FIRST + pickle.dumps({"b": 1}, 2) + bytes(20))
    done = ckpt("inspect", path)
    assert (
        done.code == 0
        and b"1 more pickle" in done.out
        and b"20 bytes follow" in done.out
    )
    assert is_harmless(path)


def array_of(data: bytes) -> bytes:
    """An array of objects as numpy writes it, with another pickle inside."""
    out = io.BytesIO()
    np.save(out, np.array([1, None], dtype=object), allow_pickle=True)
    whole = out.getvalue()
    return whole[: whole.index(b"\n", 10) + 1] + data


def array_of_numbers(shape: tuple[int, ...], descr: object, data: bytes) -> bytes:
    """An array of numpy, with this header."""
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    text = f"{fields!r}\n".encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + data


BESIDE = {
    "x.npy": array_of(EVIL),
    "archive/x.npy": array_of(EVIL),
    "data.pkl": EVIL,
    "byteorder": EVIL,
    "version": EVIL,
    "data/0": EVIL,
    "archive/x.pkl": EVIL,
    "archive/extra/x": FIRST + EVIL,
    "archive/long": pickle.dumps(bytes(3 << 20), 4) + EVIL,
    "archive/legacy": legacy(1) + EVIL,
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", BESIDE)
def test_records_beside_those_of_torch_are_judged(
    name: str, method: int, tmp_path: Path
) -> None:
    """`numpy.load` unpickles them, though torch does not."""
    path = tmp_path / "archive.pt"
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(name, BESIDE[name], method)
    assert not is_harmless(path)
    done = ckpt("inspect", path, "--fail-on", "called-on-load")
    assert done.code == 1 and b"builtins.exec" in done.out and name.encode() in done.out
    assert ckpt("convert", path, "-o", tmp_path / "y.safetensors").code in (0, 1)
    assert b"exec" not in (tmp_path / "y.safetensors").read_bytes()
    done = ckpt("rehome", path, "--to", "cuda:0", "-o", tmp_path / "z.pt")
    assert b"left out: (unread)" in done.out and name.encode() in done.out
    assert (
        is_harmless(tmp_path / "z.pt")
        and name not in zipfile.ZipFile(tmp_path / "z.pt").namelist()
    )


@pytest.mark.parametrize(
    "name", ["data.pkl", "constants.pkl", "code/x.pkl", "data/0", "constants/0"]
)
def test_records_outside_of_the_root_of_a_program_are_judged(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.pt"
    layer = torch.nn.Module()
    layer.register_buffer("b", torch.ones(3))
    torch.jit.script(layer).save(str(path))
    assert is_harmless(path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(name, EVIL)
    done = ckpt("inspect", path, "--fail-on", "called-on-load")
    assert done.code == 1 and b"builtins.exec" in done.out, done


def test_the_places_of_code_are_no_pickles_of_python(tmp_path: Path) -> None:
    """Their numbers are the bytes of any opcode."""

    class Long(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = x + 1 if bool(x.sum() > 0) else x - 1
            return torch.nn.functional.relu(x) * x.abs()

    layers = torch.nn.Sequential(*(Long() for _ in range(9)), torch.nn.LSTM(2, 2))
    torch.jit.script(layers[:9]).save(str(tmp_path / "a.pt"))
    torch.jit.script(layers[9]).save(str(tmp_path / "b.pt"))
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "c.pt"))
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(
        str(tmp_path / "d.pt")
    )
    for name in "abcd":
        with open(str(tmp_path / f"{name}.pt")) as checkpoint:
            assert [row.code for row in checkpoint.account.notices] == []


@pytest.mark.parametrize(
    "name",
    [
        "code/x.pkl",
        "code/__torch__.py",
        "code/other.py",
        "code/__torch__.py.debug_pkl",
        "traced_inputs.pkl",
    ],
)
def test_pickles_of_python_among_the_code_are_judged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "program.pt"
    (path).write_bytes(put(program(), name, EVIL))
    done = ckpt("inspect", path, "--fail-on", "called-on-load")
    assert done.code == 1 and b"builtins.exec" in done.out, done


NUMBERS = array_of_numbers((2, 3), "<f4", bytes(24))
ARRAYS = {
    "an array of objects": NUMBERS + array_of(EVIL),
    "a pickle": NUMBERS + EVIL,
    "a pickle of protocol 0": NUMBERS + b"cbuiltins\nexec\n(S'1'\ntR.",
    "a pickle behind two arrays": NUMBERS * 2 + EVIL,
    "an array behind one of objects": array_of(FIRST) + NUMBERS + EVIL,
    "fields with a title": array_of_numbers((1,), [(("t", "a"), "<f8")], bytes(8))
    + EVIL,
    "fields": array_of_numbers(
        (2,), [("a", "<f8", (2,)), ("b", [("c", "U2")])], bytes(48)
    )
    + EVIL,
    "a dtype with a shape": array_of_numbers((1,), ("<f4", (2,)), bytes(8)) + EVIL,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_follows_an_array_is_judged(name: str, tmp_path: Path) -> None:
    """`numpy.load` in a loop, over a file or a record, comes to it."""
    path = tmp_path / "archive.pt"
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr("archive/x.npy", ARRAYS[name])
    done = ckpt("inspect", path, "--fail-on", "called-on-load")
    assert done.code == 1 and b"builtins.exec" in done.out, done
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "x.npy").write_bytes(ARRAYS[name])
    assert ckpt("lint", "--level", "error", tmp_path / "alone").code == 2


def test_an_array_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive.pt"
    torch.save({"w": torch.ones(2)}, path)
    deep: object = "<f4"
    for _ in range(30):
        deep = [("a", deep)]
    with zipfile.ZipFile(path, "a") as out:
        out.writestr("archive/x.npy", array_of_numbers((1,), deep, bytes(4)))
    assert ckpt("inspect", path).code == 2


@pytest.mark.parametrize("behind", [b"", NUMBERS, NUMBERS * 3, bytes(9), b"some words"])
def test_arrays_in_a_row_are_no_pickles(behind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "archive.pt"
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr("archive/x.npy", NUMBERS + behind)
    assert is_harmless(path)
    with open(str(path)) as checkpoint:
        (notice,) = checkpoint.account.notices
        assert notice.code == "unread-file"
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "x.npy").write_bytes(NUMBERS + behind)
    assert ckpt("lint", "--skip-others", tmp_path / "alone").code == 0


@pytest.mark.parametrize(
    "data",
    [b"cat\ndog\n" * 9, bytes(3 << 20), b"{}", b"\x93NUMPY\1\0\2\0\n\n" + bytes(9)],
)
def test_records_beside_those_of_torch_are_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "archive.pt"
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr("archive/notes", data)
    assert is_harmless(path)
    with open(str(path)) as checkpoint:
        text = "torch does not read archive/notes in the archive"
        assert [(row.code, row.message) for row in checkpoint.account.notices] == [
            ("unread-file", text)
        ]


def put(
    data: bytes, name: str, content: bytes, method: int = zipfile.ZIP_STORED
) -> bytes:
    """An archive with a record put in, or another one in its place, below the folder of
    all.
    """
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(out, "w") as target,
    ):
        root = (
            source.namelist()[0].partition("/")[0] + "/"
            if "/" in source.namelist()[0]
            else ""
        )
        for row in source.namelist():
            if row != root + name:
                target.writestr(row, source.read(row))
        target.writestr(root + name, content, method)
    return out.getvalue()


def program() -> bytes:
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), out)
    return out.getvalue()


def of_torch() -> bytes:
    out = io.BytesIO()
    torch.save({"w": torch.ones(2)}, out)
    return out.getvalue()


def of_stable_baselines() -> bytes:
    skip_without("archives")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in (
            ("data", b"{}"),
            ("policy.pth", of_torch()),
            ("_stable_baselines3_version", b"2.0"),
        ):
            archive.writestr(name, data)
    return out.getvalue()


def renamed(old: str, new: str, version: int = 1) -> zipfile.ZipInfo:
    """Return a record with a second name in its extra field: that of the
    Unicode path.
    """
    row = zipfile.ZipInfo(old)
    field = (
        bytes([version]) + zlib.crc32(old.encode()).to_bytes(4, "little") + new.encode()
    )
    row.extra = b"\x75\x70" + len(field).to_bytes(2, "little") + field
    return row


RENAMED = {
    "Stable-Baselines3": (of_stable_baselines, "notes", "policy.pth"),
    "torch": (of_torch, "archive/x", "archive/data.pkl"),
    "a program": (program, "archive/extra/x", "archive/data.pkl"),
    "an exported program": (pt2, "archive/extra/x", "serialized_exported_program.json"),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_record_with_two_names_is_refused(name: str, tmp_path: Path) -> None:
    """zipfile of Python 3.12 takes the name of the extra field, as soon as its checksum
    fits.
    """
    whole, old, new = RENAMED[name]
    data = io.BytesIO(whole())
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr(renamed(old, new), evil_archive())
    (path := tmp_path / "a.zip").write_bytes(data.getvalue())
    with pytest.raises(CkptError, match="a record has two names"):
        open(str(path))


def test_a_record_whose_second_name_is_the_first_is_read(tmp_path: Path) -> None:
    """Info-ZIP writes it for names that are not ASCII."""
    path = tmp_path / "a.zip"
    with (
        zipfile.ZipFile(io.BytesIO(of_torch())) as source,
        zipfile.ZipFile(path, "w") as target,
    ):
        for row in source.namelist():
            target.writestr(renamed(row, row), source.read(row))
    assert is_harmless(path)


def test_a_program_with_an_older_one_beside_it_is_refused(tmp_path: Path) -> None:
    """torch up to 1.10 loads the program of `model.json`, whatever else an archive
    holds.
    """
    (path := tmp_path / "a.pt").write_bytes(put(program(), "model.json", b"{}"))
    with pytest.raises(CkptError, match=r"two files in one: .*model\.json"):
        open(str(path))


def records_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def below_one_root(data: bytes) -> dict[str, bytes]:
    return {
        f"archive/{name.partition('/')[2]}": content
        for name, content in records_of(data).items()
    }


LOADERS: dict[str, Callable[[], dict[str, bytes]]] = {
    "torch": lambda: below_one_root(of_torch()),
    "a program": lambda: below_one_root(program()),
    "an exported program": lambda: below_one_root(pt2()),
    "a package": lambda: below_one_root(package()),
    # zipfile finds their records, wherever they lie.
    "an exported program of 2.5": lambda: records_of(pt2_of_2_5()),
    "Stable-Baselines3": lambda: records_of(of_stable_baselines()),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pair
        for pair in itertools.combinations(LOADERS, 2)
        # torch.load reads a program as torch.jit.load does, and both kinds of exported
        # programs have one loader.
        if {*pair} != {"torch", "a program"}
        and not all("exported" in name for name in pair)
    ],
)
def test_an_archive_in_which_two_loaders_find_a_file_is_refused(
    first: str, second: str, tmp_path: Path
) -> None:
    for ending in (".pt", ".pt2"):
        path = tmp_path / f"both{ending}"
        path.write_bytes(op.zip_file({**LOADERS[first](), **LOADERS[second]()}))
        with pytest.raises(CkptError, match="two files in one"):
            open(str(path))
        assert ckpt("lint", "--level", "error", path).code == 2


def test_a_program_beside_a_state_dict_does_not_hide_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.export.load evaluates the expressions of the program."""
    monkeypatch.chdir(tmp_path)
    program = records_of(pt2_of_2_5())
    graph = json.loads(program["serialized_exported_program.json"])
    tensors = graph["graph_module"]["graph"]["tensor_values"]
    call = "__import__('pathlib').Path('rung').touch() or 1"
    for tensor in tensors.values():
        tensor["sizes"] = [{"as_expr": {"expr_str": call, "hint": {"as_int": 1}}}]
    program["serialized_exported_program.json"] = json.dumps(graph).encode()
    program["version"] = ".".join(map(str, SCHEMA_VERSION)).encode()
    path = tmp_path / "a.pt2"
    path.write_bytes(op.zip_file({**below_one_root(of_torch()), **program}))
    with contextlib.suppress(Exception):
        torch.export.load(str(path))
    assert Path("rung").exists()
    assert ckpt("lint", "--level", "error", path).code == 2


PLACES: dict[str, tuple[Callable[[], bytes], str]] = {
    "the id": (of_torch, ".data/serialization_id"),
    "the format": (of_torch, ".format_version"),
    "an older version": (of_torch, ".data/version"),
    "a storage that nobody names": (of_torch, "data/x.npy"),
    "a program": (program, "extra/x.npy"),
    "a storage of a program that nobody names": (program, "data/x.npy"),
    "a pickle of C++": (program, "traced_inputs.pkl"),
    "a place in the code": (program, "code/__torch__.py.debug_pkl"),
    "the id of a program": (program, ".data/serialization_id"),
    "an exported program": (pt2, "extra/x.npy"),
    "a weight that nobody names": (pt2, "data/weights/x.npy"),
    "the id of an exported program": (pt2, ".data/serialization_id"),
    "an archive of checkpoints": (of_stable_baselines, "x.npy"),
}


@pytest.mark.parametrize("name", PLACES)
def test_records_in_any_place_are_judged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, place = PLACES[name]
    path = tmp_path / "x.pt"
    path.write_bytes(whole())
    assert ckpt("inspect", path, "--fail-on", "called-on-load").code == 0
    path.write_bytes(
        put(whole(), place, array_of(call(glob("os", "mkdir"), "rung") + b"."))
    )
    with np.load(path, allow_pickle=True) as arrays, contextlib.suppress(Exception):
        arrays[
            next(
                row for row in arrays.files if row.endswith(place.removesuffix(".npy"))
            )
        ]
    assert Path("rung").exists()

    assert ckpt("inspect", path, "--fail-on", "called-on-load").code == 1


@pytest.mark.parametrize(
    "name",
    [
        "version",
        ".data/version",
        ".data/serialization_id",
        ".format_version",
        "byteorder",
    ],
)
@pytest.mark.parametrize("whole", [of_torch, program, pt2])
def test_a_small_record_of_torch_is_small(
    whole: Callable[[], bytes], name: str, tmp_path: Path
) -> None:
    """torch reads it as a whole, so a deflated one may take gigabytes."""
    path = tmp_path / "x.pt"
    path.write_bytes(put(whole(), name, b"1" * (1 << 20), zipfile.ZIP_DEFLATED))

    done = ckpt("inspect", path)

    assert done.code == 2 and name.encode() in done.err


def test_a_record_beside_code_that_inflates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(
        put(
            program(),
            "code/__torch__.py.debug_pkl",
            bytes(80 << 20),
            zipfile.ZIP_DEFLATED,
        )
    )

    done = ckpt("inspect", path)

    assert done.code == 2 and b"inflate to" in done.err


@pytest.mark.parametrize(("size", "is_said"), [(65 << 20, True), (1 << 20, False)])
def test_deflated_storages_that_take_far_more_memory_are_said(
    size: int, is_said: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(size, dtype=torch.uint8)}, path)
    pack_again(path, tmp_path / "y.pt")
    done = ckpt("lint", tmp_path / "y.pt", "--level", "warning")
    assert (b"take far more memory" in done.out) == is_said, done
    assert b"deflated" not in ckpt("lint", path).out


def pack_again(old_path: Path, new_path: Path) -> None:
    """Write an archive with each record deflated, as a packing program does."""
    with (
        zipfile.ZipFile(old_path) as old,
        zipfile.ZipFile(new_path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))


def test_deflated_storages_that_a_mapping_reads_otherwise_are_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.pt"
    weights = {"w": torch.arange(8.0), "b": torch.ones(2), "none": torch.zeros(0)}
    torch.save(weights, path)
    packed = tmp_path / "y.pt"
    pack_again(path, packed)
    assert torch.equal(torch.load(packed)["w"], weights["w"])
    assert not torch.equal(torch.load(packed, mmap=True)["w"], weights["w"])

    done = ckpt("lint", packed, "--level", "warning")

    assert done.code == 1, done
    assert b"2 storages are deflated, which torch.save never does: with" in done.out
    assert ckpt("lint", path, "--level", "warning").code == 0


def test_legacy_files_behind_the_first_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    one = legacy(torch.ones(2))
    for behind, says in (
        (one, f"a second checkpoint begins at byte {len(one):,}"),
        (one * 2, f"2 more checkpoints from byte {len(one):,} on"),
        (one + FIRST, "1 more checkpoint and 1 more pickle from byte"),
        (FIRST * 300, "300 more pickles from byte"),
        (FIRST + bytes(9), "9 bytes (zeros) follow the last storage"),
        (b"some words", "10 bytes (text: 'some words') follow the last storage"),
    ):
        path.write_bytes(one + behind)
        with open(str(path)) as checkpoint:
            assert [row.name for row in checkpoint.tensors] == ["w"]
            assert says in " ".join(row.message for row in checkpoint.account.notices)
            assert checkpoint.weights_only == () and not checkpoint.not_loadable
        assert is_harmless(path)


def test_too_many_pickles_behind_a_legacy_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(legacy(1) + b"N." * 10_001)
    assert b"over 10,000 pickles" in ckpt("inspect", path).err


def test_what_lies_before_a_damaged_checkpoint_is_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(legacy(torch.ones(2)) + legacy(torch.ones(2))[:-3])
    done = ckpt("inspect", path)
    assert done.code == 2 and b"a damaged checkpoint begins at byte" in done.err
    assert ckpt("salvage", path, "-o", tmp_path / "y.pt").code in (0, 1)
    assert torch.load(tmp_path / "y.pt")["w"].tolist() == [1, 1]


# --- a file that is two ---------------------------------------------------------------


def behind(data: bytes, archive: bytes) -> bytes:
    """An archive behind other bytes, with the numbers that fit there."""
    out = io.BytesIO(data)
    out.seek(0, 2)
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as source,
        zipfile.ZipFile(out, "a") as target,
    ):
        for name in source.namelist():
            target.writestr(zipfile.ZipInfo(name), source.read(name))
    return out.getvalue()


def weights_that_end_as(archive: bytes) -> dict[str, bytes]:
    """Files of each kind whose last weights are an archive."""
    size = len(behind(bytes(99), archive)) - 99
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    old = legacy({"w": torch.zeros(size, dtype=torch.uint8)})
    text = b"\x80\x03B" + size.to_bytes(4, "little")
    plain = bytearray(behind(text, archive) + b".")
    plain[-3:-1] = (
        b"\x01\0"  # the comment of the archive is the opcode that ends the pickle
    )
    return {
        "safetensors": behind(len(header).to_bytes(8, "little") + header, archive),
        "legacy": behind(old[:-size], archive),
        "pickle": bytes(plain),
    }


@pytest.mark.parametrize("kind", ["safetensors", "legacy", "pickle"])
def test_an_archive_in_the_last_weights_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(weights_that_end_as(program())[kind])
    assert torch.jit.load(str(path)) is not None

    done = ckpt("inspect", path)

    assert done.code == 2 and b"two files in one" in done.err


@pytest.mark.needs("old")
def test_an_archive_in_the_last_member_of_a_tar_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in (
            ("storages", pickle.dumps(0, 2) + pickle.dumps([], 2)),
            ("tensors", pickle.dumps(0, 2)),
        ):
            member(archive, name, content)
        member(archive, "pickle", pickle.dumps({}, 2))
        start = archive.offset + 512
        member(archive, "x", behind(bytes(start), program())[start:])
    path.write_bytes(buffer.getvalue())
    assert torch.jit.load(str(path)) is not None

    assert b"two files in one" in ckpt("inspect", path).err


@pytest.mark.needs("pickles")
def test_an_archive_for_zipfile_in_the_last_weights_is_refused(tmp_path: Path) -> None:
    """Stable-Baselines3 opens its archives by zipfile, which finds one that was only
    appended.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("policy.pth", EVIL)
        archive.writestr("data", "{}")
    path = tmp_path / "x.pkl"
    path.write_bytes(
        b"\x80\x03B" + len(out.getvalue()).to_bytes(4, "little") + out.getvalue() + b"."
    )
    with zipfile.ZipFile(path) as found:
        assert found.namelist() == ["policy.pth", "data"]

    assert b"two files in one" in ckpt("inspect", path).err


@pytest.mark.needs("pickles")
def test_an_archive_that_is_a_value_of_a_pickle_is_no_other_file(
    tmp_path: Path,
) -> None:
    """torch goes by the offsets in the archive, which count from its own first byte."""
    out = io.BytesIO()
    torch.save({"w": torch.ones(2)}, out)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"state": out.getvalue()}))

    assert ckpt("inspect", tmp_path / "x.pkl").code == 0


def test_an_archive_that_is_a_flatbuffer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    data = bytearray(program())
    data[4:8] = b"PTMF"
    path.write_bytes(data)
    with pytest.raises(RuntimeError, match="Flatbuffer"):
        torch.jit.load(str(path))

    assert b"two files in one" in ckpt("inspect", path).err


@pytest.mark.needs("pickles")
def test_a_pickle_that_is_a_flatbuffer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x02U\x04PTMF0}U\x01aK\x01s.")
    with pytest.raises(RuntimeError, match="Flatbuffer"):
        torch.jit.load(str(path))

    assert b"two files in one" in ckpt("inspect", path).err


STORED = b" \xc3\xa0\x3c\x5f"
"""The head of a block of deflate that is stored, in letters of UTF-8."""
BLOCK = 0xA0C3
RUNS = call(glob("os", "mkdir"), "rung") + b"."


def stored(
    first: bytes, end: int, rest: bytes
) -> tuple[bytearray, list[tuple[int, int]], int]:
    """Letters up to `end` and `rest` behind, cut into stored blocks behind `first`:
    (bytes, blocks, the end of the last).
    """
    data = bytearray(first + b"a" * (end - len(first)) + rest)
    at, blocks = len(first), []
    while at < end:
        data[at : at + 5] = STORED
        blocks.append((at + 5, at + 5 + BLOCK))
        at += 5 + BLOCK
    data += bytes(max(0, at - len(data)))
    return data, blocks, at


def safetensors_as_gzip() -> bytes:
    """The length of the header is a header of gzip, and the pickle inside is a text up
    to the end of that header.
    """
    size, room = 0x00088B1F, 60_000
    end = b'":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (room, room)
    data, blocks, at = stored(
        size.to_bytes(8, "little") + b'{"', 8 + size, b"\n0" + RUNS
    )
    data[8 + size - len(end) : 8 + size] = end
    data[blocks[0][0]] = ord("V")
    content = b"".join(bytes(data[begin:stop]) for begin, stop in blocks)
    tail = (
        b"\x01\0\0\xff\xff"
        + zlib.crc32(content).to_bytes(4, "little")
        + len(content).to_bytes(4, "little")
    )
    data = data[:at] + tail
    return bytes(data + bytes(8 + size + room - len(data)))


def zlib_as_pickle() -> bytes:
    """The header of zlib and two empty blocks are the opcode of a text and its length;
    another pickle lies inside.
    """
    length = 0x00080209
    data, blocks, at = stored(
        b"X" + length.to_bytes(4, "little"), 5 + length, b"0" + RUNS
    )
    data[5:9] = STORED[1:]  # the first block begins in the length
    blocks[0] = 9, 9 + BLOCK
    data[9:14] = b"]q\0.a"
    at = 9 + BLOCK
    for index in range(1, len(blocks)):
        data[at : at + 5] = STORED
        blocks[index] = at + 5, at + 5 + BLOCK
        at += 5 + BLOCK
    content = b"".join(bytes(data[begin:stop]) for begin, stop in blocks)
    return (
        bytes(data[:at])
        + b"\x01\0\0\xff\xff"
        + zlib.adler32(content).to_bytes(4, "big")
    )


def test_a_header_of_safetensors_that_is_one_of_gzip_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.safetensors").write_bytes(safetensors_as_gzip())
    assert load_file("x.safetensors")
    with gzip.open("x.safetensors") as file:
        pickle.load(file)
    assert Path("rung").exists()

    assert b"two files in one" in ckpt("inspect", tmp_path / "x.safetensors").err


@pytest.mark.needs("pickles")
def test_a_compressed_pickle_that_is_another_pickle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = zlib_as_pickle()
    Path("x.joblib").write_bytes(data)
    assert pickle.loads(zlib.decompress(data)) == []
    pickle.loads(data)
    assert Path("rung").exists()

    assert b"two files in one" in ckpt("inspect", tmp_path / "x.joblib").err


# --- the law --------------------------------------------------------------------------


def seeds_of_files(folder: Path) -> dict[str, bytes]:
    """A good file and an evil one of each kind."""
    state = {"w": torch.arange(4.0), "v": torch.ones(2, dtype=torch.int32)}
    torch.save(state, folder / "zip")
    torch.save(state, folder / "legacy", _use_new_zipfile_serialization=False)
    save_file({"w": np.arange(4.0)}, folder / "safetensors")
    (folder / "pickle").write_bytes(pickle.dumps({"w": np.arange(4.0)}, 2))
    files = {
        name: (folder / name).read_bytes()
        for name in ("zip", "legacy", "safetensors", "pickle")
    }
    files["tar"] = tar(None)
    files["evil"] = EVIL
    files["evil legacy"] = pickle.dumps(MAGIC, 2) + TAIL
    with zipfile.ZipFile(folder / "evil zip", "w") as out:
        for name, data in (
            ("a/data.pkl", EVIL),
            ("a/version", b"3\n"),
            ("a/byteorder", b"little"),
        ):
            out.writestr(name, data)
    files["evil zip"] = (folder / "evil zip").read_bytes()
    return files


def mutated(files: dict[str, bytes], count: int) -> Iterator[tuple[str, bytes]]:
    """Two files in one: one after the other, one over the other, letters in another
    case, bytes changed.
    """
    for first, second in itertools.permutations(files, 2):
        yield f"{first}, then {second}", files[first] + files[second]
        yield (
            f"{first} in the head of {second}",
            files[first][:512].ljust(512, b"\0") + files[second][512:],
        )
    for name, magic in MAGICS.items():
        yield f"magic: {name}", magic + TAIL
    for name, data in (*TARS.items(), *BEHIND.items()):
        yield name, data
    choose = Random(1)
    names = sorted(files)
    for number in range(count):
        name = choose.choice(names)
        data = bytearray(files[name])
        pick = choose.randrange(4)
        at = choose.randrange(len(data))
        if pick == 0:
            for word in (b"data.pkl", b"version", b"byteorder", b"data/0", b"/"):
                start = data.find(word, at)
                if start >= 0:
                    data[start : start + len(word)] = data[
                        start : start + len(word)
                    ].swapcase()
        elif pick == 1:
            other = files[choose.choice(names)]
            data[at:at] = other[: choose.randrange(len(other))]
        elif pick == 2:
            other = files[choose.choice(names)]
            data = bytearray(data[:at] + other[choose.randrange(len(other)) :])
        else:
            for _ in range(choose.randrange(1, 4)):
                data[choose.randrange(min(len(data), 700))] = choose.randrange(256)
        yield f"{number} of {name}", bytes(data)


def load_by_all(path: str) -> None:
    """Read a file as people do, each loader by itself."""
    with contextlib.suppress(Exception):
        torch.load(path, map_location="cpu", weights_only=False)
    with contextlib.suppress(Exception), Path(path).open("rb") as file:
        while True:
            pickle.load(file)
    with contextlib.suppress(Exception):
        np.load(path, allow_pickle=True)
    with contextlib.suppress(Exception):
        load_file(path)
    with contextlib.suppress(Exception), gzip.open(path) as file:
        pickle.load(file)


def compare_values(path: Path) -> int:
    """Hold each tensor that ckpt shows against torch.load, where that reads the file.
    Returns how many there were.
    """
    loaded: Any = None
    with contextlib.suppress(Exception):
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        return 0
    with api.open(path) as checkpoint:
        for name in checkpoint:
            assert np.array_equal(
                checkpoint[name].numpy(), loaded[name].numpy(), equal_nan=True
            ), path
        assert set(checkpoint) == {
            name for name, value in loaded.items() if torch.is_tensor(value)
        }
        return len(checkpoint)


@pytest.mark.needs("old", "pickles")
def test_no_file_runs_or_holds_what_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutated containers that ckpt opens without a word do nothing in any loader, and
    hold what ckpt shows.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seeds").mkdir()
    harmless: dict[str, str] = {}
    files = seeds_of_files(tmp_path / "seeds")
    tried = 0
    for number, (name, data) in enumerate(mutated(files, many(600, 20_000))):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(data)
        tried += 1
        if is_harmless(path):
            harmless[str(path)] = name
        else:
            path.unlink()
    deeds = jail.deeds(list(harmless), load_by_all)
    assert {
        harmless[path]: deed for path, deed in zip(harmless, deeds, strict=True) if deed
    } == {}
    compared = sum(compare_values(Path(path)) for path in harmless)
    assert compared > 50 and tried > 600
    for python in filter(None, os.environ.get("CKPT_TORCHES", "").split(":")):
        script = Path(__file__).resolve().parents[1] / "lib" / "load_all.py"
        subprocess.run(
            [python, "-W", "ignore", str(script)],
            input="\n".join(harmless).encode(),
            timeout=TIMEOUT,
        )
        assert not (tmp_path / "rung").exists(), python


def test_the_evil_of_these_tests_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pt").write_bytes(TARS["a legacy checkpoint"])
    assert jail.deeds([str(tmp_path / "x.pt")], load_by_all) != [None]
    assert jail.deeds([pickled(write() + call(op.get(0)))]) is not None


def test_a_header_whose_length_is_an_opcode_of_a_line_is_no_pickle(
    tmp_path: Path,
) -> None:
    """A header of 83 bytes begins with `S`, of which Python wants a quote; megabytes of
    zeros have no end of a line.
    """
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2**22], "data_offsets": [0, 2**24]}}
    ).encode()
    header += b" " * (ord("S") - len(header))
    data = len(header).to_bytes(8, "little") + header + bytes(2**24)
    assert data.startswith(b"S")
    (tmp_path / "a.safetensors").write_bytes(data)
    with api.open(tmp_path / "a.safetensors") as opened:
        assert list(opened) == ["w"]


def test_a_header_whose_length_is_an_opcode_of_a_text_is_no_pickle(
    tmp_path: Path,
) -> None:
    """A header of 5,976 bytes is a text of 23 bytes to a pickle, and what follows a
    number of a memo slot.

    Nothing runs: the byte behind is no opcode. A pickle that goes on from there is one.
    """
    rows = {
        f"layer.{n}.weight": {
            "dtype": "F32",
            "shape": [1],
            "data_offsets": [4 * n, 4 * n + 4],
        }
        for n in range(80)
    }
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, **rows}, separators=(",", ":")
    ).encode()
    data = (5976).to_bytes(8, "little") + header.ljust(5976) + bytes(320)
    assert data[28:33] == b'rmat"'
    (tmp_path / "a.safetensors").write_bytes(data)
    with api.open(tmp_path / "a.safetensors") as opened:
        assert len(opened) == 80
    call = b"cposix\nsystem\n(X\4\0\0\0truetR."
    (tmp_path / "b.safetensors").write_bytes(data[:33] + call + data[33 + len(call) :])
    with pytest.raises(CkptError, match="two files in one"):
        api.open(tmp_path / "b.safetensors")


@pytest.mark.parametrize("length", [8784, 38952, 38992, 39040, 39048])
@pytest.mark.parametrize("count", [4, 2**19])
def test_a_header_whose_length_begins_a_broken_pickle(
    length: int, count: int, tmp_path: Path
) -> None:
    """To a pickle 8,784 is a persistent id whose line does not end, and 39,048 a bool
    that is taken for a buffer: Python stops at once.
    """
    path = tmp_path / "a.safetensors"
    path.write_bytes(padded_header(length, bytes(4 * count)))
    with pytest.raises((pickle.UnpicklingError, TypeError, ValueError)):
        pickle.loads(path.read_bytes())

    with api.open(path) as opened:
        assert list(opened) == ["layer.weight"]


def test_no_length_of_a_header_is_a_pickle() -> None:
    """A length of the library is a multiple of 8, and most headers have less than 64
    KiB.
    """
    values = Random(7).randbytes(48)
    lengths = [row for row in range(96, 1 << 16, 8) if row & 0xFF in (*OPCODES, 0x80)]
    found = []
    for length in lengths:
        data = padded_header(length, values)
        if is_pickle_too(data[:4096], Memory(data), Limits()):
            found.append(length)
    assert len(lengths) > 1_000 and not found


def padded_header(length: int, values: bytes) -> bytes:
    """Return a safetensors file with a header of so many bytes."""
    row = {
        "dtype": "F32",
        "shape": [len(values) // 4],
        "data_offsets": [0, len(values)],
    }
    header = json.dumps({"layer.weight": row}, separators=(",", ":")).encode()
    return length.to_bytes(8, "little") + header.ljust(length) + values
