"""Objects read through without being built: what is shown is what Python would have
had.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import pathlib
import types
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import pytest
import rewriting
import saved
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt import formats
from ckpt.commands.get.get import get
from ckpt.commands.get.text import get_text
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits

_PATHS = pathlib.PurePosixPath.__module__
"""The module that pickles name: `pathlib._local` in Python 3.13."""


def opened(thing: Any, folder: Path, **options: Any) -> Checkpoint:
    torch.save({"it": thing}, folder / "saved.pth", **options)
    return formats.open(str(folder / "saved.pth"))


def shown(thing: Any, folder: Path, **options: Any) -> tuple[str, Any, str]:
    """(type, value in JSON, text) of a saved object."""
    with opened(thing, folder, **options) as checkpoint:
        (found,) = get(Survey(checkpoint), ["it"], Limits())
        document = found.to_json()
        return document["type"], document["value"], get_text(found.node)


MOMENT = datetime.datetime(2024, 2, 19, 10, 21, 7, 412345)
SHOWN: dict[str, tuple[Any, str, Any, str]] = {
    "text": ("a b", "str", "a b", "a b"),
    "int": (2**80, "int", 2**80, str(2**80)),
    "float": (1e-05, "float", 1e-05, "1e-05"),
    "none": (None, "None", None, "None"),
    "bool": (True, "bool", True, "True"),
    "complex": (1.5 - 2j, "complex", "(1.5-2j)", "(1.5-2j)"),
    "complex with NaN": (complex(0, float("nan")), "complex", "nanj", "nanj"),
    "seconds of a timezone": (datetime.timezone(-datetime.timedelta(seconds=3661, microseconds=5)),
                              "datetime.timezone", "-01:01:01.000005", "-01:01:01.000005"),
    "UTC": (datetime.timezone.utc, "datetime.timezone", "+00:00", "+00:00"),
    "path on a drive": (pathlib.PureWindowsPath("C:a"), "pathlib.PureWindowsPath", "C:a", "C:a"),
    "range": (range(2, 9, 3), "range", "range(2, 9, 3)", "range(2, 9, 3)"),
    "Namespace": (argparse.Namespace(lr=0.1, tags=["a"]), "argparse.Namespace", {"lr": 0.1, "tags": ["a"]},
                  "argparse.Namespace(lr=0.1, tags=['a'])"),
    "SimpleNamespace": (types.SimpleNamespace(lr=0.1), "types.SimpleNamespace", {"lr": 0.1}, "types.SimpleNamespace(lr=0.1)"),
    "dataclass": (saved.Config(0.5), "saved.Config", {"lr": 0.5}, "saved.Config(lr=0.5)"),
    "slotted dataclass": (saved.Slotted(0.5), "saved.Slotted", {"0": 0.5}, "saved.Slotted(0.5)"),
    "namedtuple": (saved.Point(1, 2), "saved.Point", {"0": 1, "1": 2}, "saved.Point(1, 2)"),
    "enum": (saved.Colour.RED, "saved.Colour", 1, "1"),
    "Path": (pathlib.PurePosixPath("/a/b/c.pth"), f"{_PATHS}.PurePosixPath", "/a/b/c.pth", "/a/b/c.pth"),
    "relative Path": (pathlib.PurePosixPath("a") / "b", f"{_PATHS}.PurePosixPath", "a/b", "a/b"),
    "no Path": (pathlib.PurePosixPath(), f"{_PATHS}.PurePosixPath", ".", "."),
    "Windows Path": (pathlib.PureWindowsPath("C:\\a\\b"), f"{_PATHS}.PureWindowsPath", "C:\\a\\b", "C:\\a\\b"),
    "datetime": (MOMENT, "datetime.datetime", MOMENT.isoformat(), MOMENT.isoformat()),
    "date": (MOMENT.date(), "datetime.date", "2024-02-19", "2024-02-19"),
    "time": (MOMENT.time(), "datetime.time", "10:21:07.412345", "10:21:07.412345"),
    "timedelta": (datetime.timedelta(1, 2), "datetime.timedelta", "1 day, 0:00:02", "1 day, 0:00:02"),
    "Decimal": (decimal.Decimal("1.50"), "decimal.Decimal", "1.50", "1.50"),
    "device": (torch.device("cuda", 1), "torch.device", "cuda:1", "cuda:1"),
    "plain device": (torch.device("cpu"), "torch.device", "cpu", "cpu"),
    "dtype": (torch.bfloat16, "torch.dtype", "torch.bfloat16", "torch.bfloat16"),
    "Size": (torch.Size([2, 3]), "torch.Size", [2, 3], "torch.Size([2, 3])"),
    "OrderedDict": (collections.OrderedDict(a=1), "OrderedDict", {"a": 1}, "OrderedDict({'a': 1})"),
    "deque": (collections.deque([1, 2], 5), "deque", [1, 2], "deque([1, 2])"),
    "set": ({7}, "set", [7], "{7}"),
    "tuple": ((1, (2,)), "tuple", [1, [2]], "(1, (2,))"),
    "dict of ints": ({1: "a", 2.5: "b"}, "dict", {"1": "a", "2.5": "b"}, "{1: 'a', 2.5: 'b'}"),
    "function": (saved.state_dict, "name", "saved.state_dict", "saved.state_dict"),
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown(name: str, protocol: int, tmp_path: Path) -> None:
    thing, kind, value, text = SHOWN[name]

    assert shown(thing, tmp_path, pickle_protocol=protocol) == (kind, value, text)


ARRAYS = [
    np.arange(6).reshape(2, 3).astype(code)
    for code in (
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "f2",
        "f4",
        "f8",
        ">i4",
        ">f8",
        "?",
    )
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_small_arrays_are_shown_by_value(
    array: np.ndarray[Any, Any], order: Any, tmp_path: Path
) -> None:
    kind, value, _ = shown(array.copy(order), tmp_path)

    assert kind == f"numpy.ndarray {array.dtype.name} [2, 3]"
    assert value == array.tolist()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
def test_numpy_scalars_are_numbers(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    kind, value, _ = shown(array[1, 2], tmp_path)

    assert (kind, value) == (f"numpy.{array.dtype.name}", array[1, 2].item())


def test_other_arrays(tmp_path: Path) -> None:
    assert shown(np.array(["é", "long\U0001f600"]), tmp_path)[1] == [
        "é",
        "long\U0001f600",
    ]
    assert shown(np.array(None, dtype=object).reshape(1), tmp_path)[1] == [None]
    assert shown(np.array([1 + 2j]), tmp_path)[1] == ["(1+2j)"]
    assert shown(np.array(5), tmp_path)[1] == 5
    kind, value, _ = shown(np.zeros(2000), tmp_path)
    assert (kind, value) == ("numpy.ndarray float64 [2000]", {})


NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.none()
)
PLAIN = st.recursive(
    NUMBERS | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(thing=PLAIN)
def test_plain_values_are_exact_in_json(
    thing: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert shown(thing, tmp_path_factory.getbasetemp())[1] == thing


def test_python2_text_is_read_as_what_it_says(tmp_path: Path) -> None:
    texts = {
        "utf-8": "Jäger".encode(),
        "latin-1": "Jäger".encode("latin-1"),
        "ascii": b"Jager",
    }
    program = {name: op.py2(raw) for name, raw in texts.items()}
    (tmp_path / "saved.pth").write_bytes(op.torch_zip(op.pickled(program)))
    with formats.open(str(tmp_path / "saved.pth")) as checkpoint:
        found = get(Survey(checkpoint), list(texts), Limits())

        assert [get_text(item.node) for item in found] == ["Jäger", "Jäger", "Jager"]
        assert [item.to_json()["value"] for item in found] == [None, None, "Jager"]
        assert found[1].to_json()["value_is"] == "bytes 4ae4676572"


ARRAY = op.bytearray8(b"x\xff")
IN_CALLS = {
    "bytearray": ARRAY,
    "bytearrays in a list": op.value([1, ARRAY, [2, ARRAY]]),
    "bytes in a list": op.value([1, op.binary(b"x"), [2, op.binary(b"\xff")]]),
    "a large dict of bytes": op.value({str(key): op.binary(b"x") for key in range(300)}),
    "an enum of bytes": op.call(op.glob("team", "Kind"), op.binary(b"x")),
    "an enum of a bytearray": op.call(op.glob("team", "Kind"), ARRAY),
    "a deque of a set": op.call(op.glob("collections", "deque"), op.empty_set() + op.mark() + op.integer(1) + op.additems()),
    "an attribute": op.call(op.glob("team", "Kind")) + op.mapping([(op.binary(b"\xff"), 1), (2, 3)]) + op.build(),
    "a key": op.mapping([(op.binary(b"x"), 1), ("y", 2)]),
    "a key that is no key": op.mapping([(ARRAY, 1), ("y", 2)]),
    "a device without a name": op.tensor(location=""),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CALLS)
def test_what_protocol_2_writes_as_a_call_reads_the_same(
    name: str, tmp_path: Path
) -> None:
    """Bytes, bytearrays and sets have no opcode in protocol 2. A copy is compared with
    its source before it is kept.
    """
    source = tmp_path / "source.pt"
    source.write_bytes(op.torch_zip(op.pickled({"it": IN_CALLS[name]}, protocol=5)))
    with (
        formats.open(str(rewriting.again(source, tmp_path / "copy.pt"))) as copy,
        formats.open(str(source)) as first,
    ):
        assert [row[:3] for row in copy.values] == [row[:3] for row in first.values]
        assert [row.name for row in copy.tensors] == [row.name for row in first.tensors]


def test_a_bytearray_survives(tmp_path: Path) -> None:
    thing = {"it": bytearray(b"x\xff"), "list": [bytearray(b"y"), b"z"]}
    source = rewriting.saved(thing, tmp_path / "source.pt", pickle_protocol=5)

    assert rewriting.load(rewriting.again(source, tmp_path / "copy.pt")) == thing
