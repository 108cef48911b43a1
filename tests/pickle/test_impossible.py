"""Calls that cannot succeed: each file is harmless, and torch.load fails in all of its
ways.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import opcodes as op
import oracle
import pytest
import torch
from inside import inside
from opcodes import binary, build, call, glob, pickled, torch_zip, value, zip_file

from ckpt.formats import open
from ckpt.tree import unmade

pytestmark = oracle.QUIET


def json_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        inside("inspect", path, "--json", cwd=path.parent).out
    )
    return document


def dtype(code: str, *state: Any) -> bytes:
    made_dtype = call(glob("numpy", "dtype"), code, False, True)
    return made_dtype + value(state) + build() if state else made_dtype


FLOAT = dtype("f4", 3, "<", None, None, None, -1, -1, 0)
OBJECT = dtype("O8", 3, "|", None, None, None, -1, -1, 63)
LETTER = dtype("U1", 3, "<", None, None, None, 4, 4, 8)
TOO_FAR = (0x110000).to_bytes(4, "little")


def scalar(of: bytes, data: Any) -> bytes:
    return call(glob("numpy.core.multiarray", "scalar"), of, data)


def array(data: bytes, *args: Any) -> bytes:
    return call(glob("numpy.core.numeric", "_frombuffer"), data, *args)


def of_python(module: str, name: str, *args: Any) -> bytes:
    return call(glob(module, name), *args)


CANNOT = {
    "a tensor in the place of an array": call(
        glob("torch._utils", "_rebuild_device_tensor_from_numpy"),
        op.tensor(),
        glob("torch", "float32"),
        "cpu",
        False,
    ),
    "a scalar of objects": scalar(OBJECT, binary(bytes(8))),
    "a scalar of a number": scalar(FLOAT, 5),
    "a scalar of a bytearray": scalar(
        FLOAT, of_python("builtins", "bytearray", binary(bytes(4)))
    ),
    "a scalar of too few bytes": scalar(FLOAT, binary(b"ab")),
    "a scalar of no letter": scalar(LETTER, binary(TOO_FAR)),
    "a date of ten bytes": of_python(
        "datetime", "date", binary(bytes([7, 200, 1, 1, 0, 0, 0, 0, 0, 0]))
    ),
    "a time of four bytes": of_python("datetime", "time", binary(bytes(4))),
    "a datetime of a month 13": of_python(
        "datetime", "datetime", binary(bytes([7, 200, 13, 1, 0, 0, 0, 0, 0, 0]))
    ),
    "a date of two numbers": of_python("datetime", "date", 2020, 1),
    "a timezone of two days": of_python(
        "datetime", "timezone", of_python("datetime", "timedelta", 2, 0, 0)
    ),
    "too long a duration": of_python("datetime", "timedelta", 10**10, 0, 0),
    "bytes of lists": of_python("builtins", "bytearray", [[1, 2]]),
    "bytes of large numbers": of_python("builtins", "bytes", [300]),
    "a float of a letter": of_python("builtins", "float", "e"),
    "too large a complex": of_python("builtins", "complex", 2**1_100),
    "a range that stands still": of_python("builtins", "range", 0, 1, 0),
    "a range of a float": of_python("builtins", "range", 0.5),
    "a fraction of nothing": of_python("fractions", "Fraction", 1, 0),
    "a decimal of a point": of_python("decimal", "Decimal", "."),
    "a text of no text": of_python("builtins", "str", binary(b"\xff"), "utf-8"),
    "a device in capitals": of_python("torch", "device", "CPU"),
    "a device without a name": of_python("torch", "device", ""),
    "a device of a place with a nought": of_python("torch", "device", "cuda:01"),
    "a generator of a device in capitals": of_python("torch._C", "Generator", "CPU"),
    "a device of two places": of_python("torch", "device", "cuda:0:1"),
    "an expression of two alphabets": of_python("re", "_compile", "a", 256 | 32),
    "an expression of a locale": of_python("re", "_compile", "a", 4),
    "an expression of bytes in Unicode": of_python("re", "_compile", binary(b"a"), 32),
    "an array of another length": array(binary(bytes(8)), FLOAT, (3,), "C"),
    "an array of half a number": array(binary(bytes(7)), FLOAT, (2,), "C"),
    "an array of a fraction": array(binary(bytes(8)), FLOAT, (2.0,), "C"),
    "an array of a text": array(binary(bytes(8)), FLOAT, "2", "C"),
    "an array in no order": array(binary(bytes(8)), FLOAT, (2,), "K"),
    "an array of axes that are not there": array(
        binary(bytes(8)), FLOAT, (2, 1), "K", (0, 2)
    ),
    "an array of objects in bytes": array(binary(bytes(8)), OBJECT, (1,), "C"),
    "a storage class": of_python("torch", "FloatStorage"),
    "a storage class of a GPU": of_python("torch.cuda", "LongStorage"),
    "a storage class with a size": of_python("torch", "ByteStorage", 5),
    "a dtype": of_python("torch", "float32"),
    "a kind of scales": of_python("torch", "per_tensor_affine", 1.0),
}


@pytest.mark.parametrize("name", CANNOT)
def test_a_call_that_cannot_succeed_has_no_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": CANNOT[name]}))
    )
    document = json_of(path)
    assert document["load"] is None
    assert document["weights_only"]["loads"] is False
    shown = b" ".join(inside("inspect", path, cwd=tmp_path).out.split())
    assert b"cannot succeed" in shown or b"DANGER" in shown
    for promise in (True, False):
        with pytest.raises(Exception, match=r"."):
            torch.load(path, weights_only=promise)


CAN = {
    "a scalar": scalar(FLOAT, binary(bytes(4))),
    "a scalar of many bytes": scalar(FLOAT, binary(bytes(9))),
    "a letter": scalar(LETTER, binary(b"a\0\0\0")),
    "a date": of_python("datetime", "date", binary(bytes([7, 200, 1, 1]))),
    "a date of numbers": of_python("datetime", "date", 2020, 1, 1),
    "a datetime with a zone": of_python(
        "datetime",
        "datetime",
        binary(bytes([7, 200, 1, 1, 0, 0, 0, 0, 0, 0])),
        of_python(
            "datetime", "timezone", of_python("datetime", "timedelta", 0, 3_600, 0)
        ),
    ),
    "bytes": of_python("builtins", "bytearray", [1, 2, True]),
    "a complex": of_python("builtins", "complex", 2**63 - 1),
    "a fraction": of_python("fractions", "Fraction", "2/4"),
    "a decimal": of_python("decimal", "Decimal", "sNaN12"),
    "a range": of_python("builtins", "range", 5),
    "a tensor class": of_python("torch", "FloatTensor"),
    "a device": of_python("torch", "device", "cuda:1"),
    "a generator": of_python("torch._C", "Generator", "cpu"),
    "a generator of a device": of_python(
        "torch._C", "Generator", of_python("torch", "device", "cpu")
    ),
    "a device with its place": of_python("torch", "device", "cuda", 1),
    "an expression": of_python("re", "_compile", "a", 32 | 2),
    "an expression of bytes": of_python("re", "_compile", binary(b"a"), 4),
    "an array": array(binary(bytes(24)), FLOAT, (2, 3), "F"),
    "an array of turned axes": array(binary(bytes(24)), FLOAT, (2, 3), "K", (1, 0)),
    "an array of nothing": array(binary(b""), FLOAT, (0, 3), "C"),
    "a float": of_python("builtins", "float", "-inf"),
}


@pytest.mark.parametrize("name", CAN)
def test_a_call_that_succeeds_keeps_its_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": CAN[name]}))
    )
    assert json_of(path)["load"] is not None
    torch.load(path, weights_only=False)


def test_a_fraction_that_takes_all_memory_is_not_made(tmp_path: Path) -> None:
    """Python writes the power of ten out: this one has a billion digits."""
    path = tmp_path / "x.pth"
    program = of_python("fractions", "Fraction", "1e1000000000")
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": program})))
    assert inside("inspect", path, cwd=tmp_path).code == 0


def test_a_call_with_a_list_beside_a_generator(tmp_path: Path) -> None:
    """A list has no hash, and ended the command."""
    state = of_python("collections", "OrderedDict", [(1, 2)]) + value({"x": 1})
    program = {"x": glob("torch._C", "Generator"), "y": state + build()}
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled(program)))
    assert inside("inspect", path, cwd=tmp_path).code == 0


def test_python_calls_a_storage_class(tmp_path: Path) -> None:
    """torch.load alone puts another object in its place."""
    path = tmp_path / "x.pkl"
    path.write_bytes(
        pickled({"x": of_python("torch", "FloatStorage"), "w": [1.0, 2.0]})
    )
    assert json_of(path)["load"] is not None


@pytest.mark.parametrize("command", ["rehome", "convert"])
def test_a_record_that_is_too_long(command: str, tmp_path: Path) -> None:
    """torch 2.13 compares the sizes, and writers end the record where its storage
    ends.
    """
    path = tmp_path / "x.pth"
    path.write_bytes(
        zip_file(
            [
                ("archive/data.pkl", pickled({"w": op.tensor()})),
                ("archive/byteorder", b"little"),
                ("archive/data/0", bytes(28)),
                ("archive/version", b"3\n"),
            ]
        )
    )
    with pytest.raises(RuntimeError, match="does not match"):
        torch.load(path)
    document = json_of(path)
    assert document["load"] is None and document["weights_only"]["loads"] is False
    words = b" ".join(inside("inspect", path, cwd=tmp_path).out.split())
    assert b"refuses records longer than their storages: 0 (28 bytes for 24)" in words
    written = tmp_path / "y.pth"
    assert inside(command, path, "-o", written, cwd=tmp_path).code == 0
    assert torch.load(written)["w"].tolist() == [[0.0] * 3] * 2
    assert json_of(written)["load"] is not None


@pytest.mark.parametrize("alignment", [b"0", b"-64", b"00", b"18446744073709551616"])
def test_an_alignment_that_ends_torch(alignment: bytes, tmp_path: Path) -> None:
    """Loading to meta ended with a signal: torch divides by the number in C."""
    path = written_with(alignment, tmp_path)
    run = inside("inspect", path, cwd=tmp_path)
    assert run.code == 2 and b"invalid alignment" in run.err


def test_an_alignment_that_is_no_number(tmp_path: Path) -> None:
    path = written_with(b"abc", tmp_path)
    assert json_of(path)["load"] is None
    with pytest.raises(ValueError, match="abc"):
        torch.load(path)


def written_with(alignment: bytes, folder: Path) -> Path:
    path = folder / "x.pth"
    path.write_bytes(
        zip_file(
            [
                ("archive/data.pkl", pickled({"w": op.tensor()})),
                ("archive/.format_version", b"1"),
                ("archive/.storage_alignment", alignment),
                ("archive/byteorder", b"little"),
                ("archive/data/0", bytes(24)),
                ("archive/version", b"3\n"),
            ]
        )
    )
    return path


SET = glob("builtins", "set")
UNHASHABLE = {
    "a list": op.empty_set() + op.mark() + value([1]) + op.additems(),
    "a dict": op.mark() + value({}) + op.frozenset_(),
    "a call": call(SET, [value([1])]),
    "a tuple": call(glob("builtins", "frozenset"), [([1], 2)]),
    "a namespace": call(SET, [call(glob("types", "SimpleNamespace"))]),
    "keys of a call": call(glob("collections", "OrderedDict"), [([1], 2)]),
}


@pytest.mark.parametrize("name", UNHASHABLE)
def test_items_without_a_hash(name: str, tmp_path: Path) -> None:
    """Keys of dicts were looked at alone."""
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": UNHASHABLE[name]})))
    assert json_of(path)["load"] is None
    with pytest.raises(TypeError, match="unhashable"):
        torch.load(path, weights_only=False)


TWICE = {
    "a class": [glob("builtins", "slice")] * 2,
    "two names of a dtype": [glob("torch", "float"), glob("torch", "float32")],
    "two names of a class": [glob("__builtin__", "set"), glob("builtins", "set")],
    "a device": [call(glob("torch", "device"), "cpu")] * 2,
    "a path": [call(glob("pathlib", "PosixPath"), "a", "b")] * 2,
    "tuples of classes": [(glob("builtins", "slice"), 1)] * 2,
    "an enum": [call(glob("torch.profiler.profiler", "ProfilerAction"), 1)] * 2,
    "an object": [
        call(glob("random", "Random")) + op.put(5),
        op.get(5),
    ],
}


@pytest.mark.parametrize("name", TWICE)
def test_sets_with_an_object_twice_are_refused(name: str, tmp_path: Path) -> None:
    """Python keeps one of them, and ckpt showed both."""
    for program in (
        op.mark() + b"".join(map(value, TWICE[name])) + op.frozenset_(),
        call(SET, TWICE[name]),
    ):
        path = tmp_path / "x.pth"
        path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": program})))
        run = inside("inspect", path, cwd=tmp_path)
        assert run.code == 2 and b"are equal" in run.err


def test_sets_of_other_objects_are_read(tmp_path: Path) -> None:
    things: set[Any] = {torch.float32, torch.float16, slice, set, torch.device("cpu")}
    things |= {torch.device("cuda", 1), ("cuda", 1), Path("a"), Path("b"), 1, "1"}
    torch.save({"w": torch.ones(2), "x": things}, tmp_path / "x.pth")
    assert json_of(tmp_path / "x.pth")["load"] is not None


def test_names_of_python_2_in_a_protocol_of_python_3(tmp_path: Path) -> None:
    """Python 3 maps them up to protocol 2 alone."""
    path = tmp_path / "x.pth"
    program = {"w": op.tensor(), "x": call(glob("__builtin__", "set"), [1])}
    path.write_bytes(torch_zip(pickled(program, protocol=4)))
    assert json_of(path)["load"] is None
    with pytest.raises(ModuleNotFoundError):
        torch.load(path, weights_only=False)
    path.write_bytes(torch_zip(pickled(program)))
    assert json_of(path)["load"] is not None
    torch.load(path, weights_only=False)


@pytest.mark.parametrize("text", ["1_0", " 1", "1\t"])
def test_floats_that_the_unpickler_in_c_refuses(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": op.line("F", text)})))
    run = inside("inspect", path, cwd=tmp_path)
    assert run.code == 2 and b"invalid number" in run.err
    with pytest.raises(ValueError, match="float"):
        torch.load(path, weights_only=False)


def test_nothing_appended_to_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    program = call(glob("_codecs", "encode"), "a") + op.mark() + op.appends()
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": program})))
    torch.load(path, weights_only=False)
    with pytest.raises(Exception, match="Can only extend lists"):
        torch.load(path)
    assert json_of(path)["weights_only"]["loads"] is False


def test_a_path_that_is_made_without_its_call(tmp_path: Path) -> None:
    """Python fills it in `__init__` since 3.12: it is no path there."""
    path = tmp_path / "x.pth"
    program = glob("pathlib", "PosixPath") + value(("a",)) + op.newobj()
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": program})))
    run = inside("inspect", path, cwd=tmp_path)
    assert run.code == 2 and b"made without the call that fills it" in run.err


def test_an_argument_of_many_calls_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short pickle may give one long list to a million calls."""
    looked = 0

    def count_byte(_: object) -> bool:
        nonlocal looked
        looked += 1
        return True

    monkeypatch.setattr(unmade, "_is_byte", count_byte)
    items = [1] * 500
    again = op.get(51) + op.get(50) + op.tuple1() + op.reduce() + op.pop()
    program = value(items) + op.put(50) + op.pop()
    program += glob("builtins", "bytes") + op.put(51) + op.pop() + again * 300
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"x": program + op.none()})))
    with open(str(path)):
        assert len(items) <= looked < 5 * len(items)
