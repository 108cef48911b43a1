"""Tensors and arrays that Python writes in one way: another way to write them, by which
other values load, is refused.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from opcodes import binary, build, call, glob, pickled, torch_zip, value

import ckpt as api
from ckpt.formats import open
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

ONES, TWOS = struct.pack("<4f", *range(4)), struct.pack("<4f", *range(4, 8))


# --- views of storages, as torch wrote them before 0.4 --------------------------------


def viewed(key: str, view: Any) -> bytes:
    storage = op.storage_id(key, "FloatStorage", 4, "cpu", view)
    return call(
        glob("torch._utils", "_rebuild_tensor_v2"),
        storage,
        0,
        (2,),
        (1,),
        False,
        op.ordered_dict(),
    )


def legacy(path: Path, **tensors: bytes) -> Path:
    path.write_bytes(
        op.legacy(pickled(dict(tensors)), (("0", 4, ONES), ("1", 4, TWOS)))
    )
    return path


OTHER_VIEWS: dict[str, dict[str, bytes]] = {
    "the key of a storage": {"a": viewed("1", None), "b": viewed("0", ("1", 2, 2))},
    "the key of a storage that comes later": {
        "a": viewed("0", ("1", 2, 2)),
        "b": viewed("1", None),
    },
    "its own key": {"a": viewed("0", ("0", 2, 2)), "b": viewed("1", None)},
    "a number as the key": {"a": viewed("0", (1, 2, 2)), "b": viewed("1", None)},
    "one key at two places": {
        "a": viewed("0", ("v", 0, 2)),
        "b": viewed("0", ("v", 2, 2)),
        "c": viewed("1", None),
    },
    "one key of two storages": {
        "a": viewed("0", ("v", 0, 2)),
        "b": viewed("1", ("v", 0, 2)),
    },
    "no text as the key": {
        "a": viewed("0", (None, 0, 2)),
        "b": viewed("1", (None, 0, 2)),
    },
}


@pytest.mark.parametrize("name", OTHER_VIEWS)
def test_a_view_by_the_key_of_another_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError, match=r"a view of storage . has"):
        open(str(legacy(tmp_path / "x.pt", **OTHER_VIEWS[name])))


def test_views_by_their_own_keys_are_read(tmp_path: Path) -> None:
    twice = viewed("0", ("v", 2, 2))
    path = legacy(
        tmp_path / "x.pt",
        a=twice,
        b=twice,
        c=viewed("0", ("w", 1, 2)),
        d=viewed("1", None),
    )
    loaded = torch.load(path, weights_only=False)
    with api.open(str(path)) as checkpoint:
        assert {key: checkpoint[key].numpy().tolist() for key in checkpoint} == {
            key: each.tolist() for key, each in loaded.items()
        }


# --- tensors made of others -----------------------------------------------------------


def inner(cls: bytes) -> bytes:
    storage = op.storage_id("0", "FloatStorage", 4, "cpu")
    other = op.tensor((4,), (1,), key="1", numel=4)
    arguments = (storage, 0, (4,), (1,), False, op.ordered_dict())
    rebuild = glob("torch._utils", "_rebuild_tensor_v2")
    state = {"_local_tensor": other}
    return call(
        glob("torch._tensor", "_rebuild_from_type_v2"), rebuild, cls, arguments, state
    )


def test_a_class_of_inner_tensors_comes_by_its_own_call(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for module in ("torch.distributed.tensor", "torch.distributed._tensor.api"):
        path.write_bytes(
            torch_zip(
                pickled({"w": inner(glob(module, "DTensor"))}), {"0": ONES, "1": TWOS}
            )
        )
        with pytest.raises(CkptError, match="inner tensors"):
            open(str(path))
    for module, name in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
        path.write_bytes(
            torch_zip(pickled({"w": inner(glob(module, name))}), {"0": ONES, "1": TWOS})
        )
        with api.open(str(path)) as checkpoint:
            assert checkpoint["w"].numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_is_read(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    )
    torch.save({"w": nested}, tmp_path / "x.pth")
    with api.open(str(tmp_path / "x.pth")) as checkpoint:
        assert "w" in list(checkpoint)


# --- classes with their source ---


def with_source(*source: Any) -> bytes:
    """A class of layers with the file and the text of its source."""
    cls = glob("torch.nn.modules.linear", "Linear")
    return value(("module", cls, *source)) + op.binpersid()


def doubled(levels: int) -> bytes:
    """A data set of two, each of which is one of two, and so on: its length takes
    2^levels steps.
    """
    chain = made("torch.utils.data.dataset", "ChainDataset", {"datasets": []})
    for _ in range(levels):
        chain += op.put(9) + op.pop()
        inner = {"datasets": [op.get(9), op.get(9)]}
        chain += made("torch.utils.data.dataset", "ChainDataset", inner)
    return chain


@pytest.mark.parametrize("place", [0, 1])
def test_the_source_of_a_class_is_text(place: int, tmp_path: Path) -> None:
    """torch asks whether it is true, and so a data set for its length."""
    source: list[Any] = ["linear.py", "class Linear: pass"]
    tensors = {"a": viewed("0", None), "b": viewed("1", None)}
    for text in ("class Linear: pass", None):
        source[place] = text
        with open(str(legacy(tmp_path / "a.pt", **tensors, c=with_source(*source)))):
            pass
    source[place] = doubled(40)
    path = legacy(tmp_path / "b.pt", **tensors, c=with_source(*source))
    with pytest.raises(CkptError, match="names a class whose source is no text"):
        open(str(path))


# --- numpy ----------------------------------------------------------------------------

I4 = (
    call(glob("numpy", "dtype"), "i4", False, True)
    + value((3, "<", None, None, None, -1, -1, 0))
    + build()
)
RAW = binary(struct.pack("<6i", *range(6)))


def from_state(order: Any) -> bytes:
    made = call(
        glob("numpy._core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    return made + value((1, (2, 3), I4, order, RAW)) + build()


def from_buffer(*order: Any) -> bytes:
    return call(glob("numpy._core.numeric", "_frombuffer"), RAW, I4, (2, 3), *order)


ORDERS: dict[str, tuple[bytes, bool]] = {
    "C": (from_buffer("C"), True),
    "F": (from_buffer("F"), True),
    "f": (from_buffer("f"), False),
    "A": (from_buffer("A"), False),
    "FORTRAN": (from_buffer("FORTRAN"), False),
    "no flag": (from_state(False), True),
    "a flag": (from_state(True), True),
    "one": (from_state(1), True),
    "zero": (from_state(0), True),
    "two": (from_state(2), False),
    "less than nothing": (from_state(-1), False),
}


def values(path: Path) -> list[Any]:
    """The values of all arrays that ckpt shows."""
    with api.open(str(path)) as checkpoint:
        return [checkpoint[key].numpy().tolist() for key in checkpoint]


@pytest.mark.needs("pickles")
@pytest.mark.parametrize("name", ORDERS)
def test_an_order_is_read_as_numpy_reads_it_or_not_at_all(
    name: str, tmp_path: Path
) -> None:
    program, is_usual = ORDERS[name]
    path = tmp_path / "x.pkl"
    path.write_bytes(pickled({"w": program}))
    with open(str(path)) as checkpoint:
        assert ("called" in {row.group for row in checkpoint.imports}) is not is_usual
    shown = values(path)
    if is_usual:
        assert shown == [pickle.loads(path.read_bytes())["w"].tolist()]
    else:
        assert shown == []


@pytest.mark.needs("pickles")
def test_axes_in_another_order_show_no_other_values(tmp_path: Path) -> None:
    stream = io.BytesIO()
    moved = np.arange(24, dtype="<i4").reshape(2, 3, 4).transpose(0, 2, 1)
    stream.write(pickle.dumps({"w": moved}, 5))
    (tmp_path / "x.pkl").write_bytes(stream.getvalue())
    # numpy before 2.3 copies it into the usual order.
    assert values(tmp_path / "x.pkl") in ([], [moved.tolist()])
    with open(str(tmp_path / "x.pkl")) as checkpoint:
        assert "called" not in {row.group for row in checkpoint.imports}


def described(*copied: Any) -> bytes:
    """An array of one number in the other byte order, whose dtype is made so."""
    dtype = call(glob("numpy", "dtype"), "i4", *copied)
    dtype += value((3, ">", None, None, None, -1, -1, 0)) + build()
    made = call(
        glob("numpy._core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    return made + value((1, (1,), dtype, False, binary(b"\0\0\0\1"))) + build()


@pytest.mark.needs("pickles")
@pytest.mark.parametrize(
    ("copied", "loads"),
    [((False, True), 1), ((0, 1), 1), ((), 1 << 24), ((False, False), 1 << 24)],
)
def test_a_dtype_that_is_no_copy_takes_no_state(
    copied: tuple[Any, ...], loads: int, tmp_path: Path
) -> None:
    """Without a copy it is numpy's own dtype, which keeps its byte order."""
    path = tmp_path / "x.pkl"
    path.write_bytes(pickled({"w": described(*copied)}))
    assert pickle.loads(path.read_bytes())["w"].tolist() == [loads]
    with open(str(path)) as checkpoint:
        is_called = "called" in {row.group for row in checkpoint.imports}
    assert is_called is (loads != 1)


# --- items that are counted ---


COUNTED = {
    "a list": value([1, 1, 2]),
    "a tuple": value(("a", "a")),
    "a set": op.empty_set() + op.mark() + value(1) + op.additems(),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_of_items_is_refused(name: str, tmp_path: Path) -> None:
    """Python counts them, and the file does not say how often each is there."""
    path = tmp_path / "x.pth"
    counter = call(glob("collections", "Counter"), COUNTED[name])
    path.write_bytes(torch_zip(pickled({"w": op.tensor(), "c": counter})))
    with pytest.raises(CkptError, match="counts the items that it is given"):
        open(str(path))


def test_a_counter_as_python_writes_it_is_read(tmp_path: Path) -> None:
    torch.save({"c": collections.Counter("aab")}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert {row.name: row.node for row in checkpoint.values} == {
            "c.a": 2,
            "c.b": 1,
        }


# --- items of a set -------------------------------------------------------------------


def items(kind: str, given: bytes, *, is_new: bool = False) -> bytes:
    made = glob("builtins" if kind != "deque" else "collections", kind) + value(
        (given,)
    )
    return made + (op.newobj() if is_new else op.reduce())


TENSORS = [op.tensor((4,), (1,), numel=4), op.tensor((4,), (1,), key="1", numel=4)]
SET = op.empty_set() + op.mark() + b"".join(TENSORS) + op.additems()
UNORDERED = {
    "a list of a set": items("list", SET),
    "a tuple of a set": items("tuple", SET),
    "a deque of a set": items("deque", SET),
    "a new tuple of a set": items("tuple", SET, is_new=True),
    "a list of a frozenset": items(
        "list", op.mark() + b"".join(TENSORS) + op.frozenset_()
    ),
    "a list of a set that a call makes": items("list", items("set", value(TENSORS))),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_items_in_the_order_of_a_set_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"w": UNORDERED[name]}), {"0": ONES, "1": TWOS}))
    with pytest.raises(CkptError, match="whose order is another one each time"):
        open(str(path))


def test_items_in_the_order_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    one = op.empty_set() + op.mark() + TENSORS[0] + op.additems()
    for given, count in ((value(TENSORS), 2), (value(tuple(TENSORS)), 2), (one, 1)):
        path.write_bytes(
            torch_zip(pickled({"w": items("list", given)}), {"0": ONES, "1": TWOS})
        )
        with api.open(str(path)) as checkpoint:
            assert list(checkpoint) == [f"w.{number}" for number in range(count)]
