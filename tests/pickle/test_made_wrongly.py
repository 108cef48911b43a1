"""Objects of C and C++ that a pickle makes as nobody writes them: numpy or torch would
divide by nothing, read what it has not written, or go on without an end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from needs import skip_command
from opcodes import binary, build, call, glob, newobj, pickled, torch_zip, value
from process import TIMEOUT, ckpt

from ckpt.formats import open

pytestmark = oracle.QUIET

PLACES = "torch.distributed.tensor.placement_types"
START = call(
    glob("numpy.core.multiarray", "_reconstruct"),
    glob("numpy", "ndarray"),
    (0,),
    binary(b"b"),
)
MASKED = call(
    glob("numpy.ma.core", "_mareconstruct"),
    glob("numpy.ma.core", "MaskedArray"),
    glob("numpy", "ndarray"),
    (0,),
    binary(b"b"),
)


def groups(path: Path, program: bytes) -> set[str]:
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": program}))
    )
    with open(str(path)) as checkpoint:
        return {row.group for row in checkpoint.imports}


def dtype(code: Any, *state: Any) -> bytes:
    made_dtype = call(glob("numpy", "dtype"), code, False, True)
    return made_dtype + value(state) + build() if state else made_dtype


def array(of: bytes, shape: tuple[int, ...], data: bytes) -> bytes:
    return START + value((1, shape, of, False, binary(data))) + build()


def texts(alignment: int) -> bytes:
    return dtype("U2", 3, "<", None, None, None, 8, alignment, 8)


def scalar(of: bytes, data: bytes) -> bytes:
    return call(glob("numpy.core.multiarray", "scalar"), of, binary(data))


FLOATS = dtype("f4", 3, "<", None, None, None, -1, -1, 0)
PAIRS = dtype("V8", 3, "|", (FLOATS, (2,)), None, None, 8, 4, 0)
RECORD = glob("numpy", "record")
LARGE = 2**31 - 1


def filled(alignment: int) -> bytes:
    """A masked array whose fill value numpy copies when it is loaded."""
    of = texts(alignment)
    fill = array(of, (1,), bytes(8))
    state = (1, (2,), of, False, binary(bytes(16)), binary(bytes(2)), fill)
    return MASKED + value(state) + build()


def empty(cls: bytes, name: str = "Partial") -> bytes:
    """A placement that is made and never filled, as the item of a set that a call
    makes: Python asks it for its hash.
    """
    unfilled = glob(PLACES, name) + op.empty_tuple() + newobj()
    return call(cls, [unfilled]) if cls else unfilled


def bits(state: Any, *seeds: None, name: str = "MT19937") -> bytes:
    start = call(glob("numpy.random._pickle", "__bit_generator_ctor"), name)
    return start + value((state, *seeds) if seeds else state) + build()


def twister(place: Any) -> dict[str, Any]:
    key = array(dtype("u4", 3, "<", None, None, None, -1, -1, 0), (624,), bytes(2_496))
    return {"bit_generator": "MT19937", "state": {"key": key, "pos": place}}


PHILOX = {
    "bit_generator": "Philox",
    "state": {"counter": [1, 2, 3, 4], "key": [1, 2]},
    "buffer": [1, 2, 3, 4],
    "has_uint32": 0,
    "uinteger": 0,
}
DIES: dict[str, bytes] = {
    "an alignment of nought": filled(0),
    "a negative alignment": filled(-1),
    "an alignment that is no power of two": filled(3),
    "the alignment of a number": array(
        dtype("f4", 3, "<", None, None, None, -1, 0, 0), (2,), bytes(8)
    ),
    "the alignment of a record": array(
        dtype("V8", 3, "|", None, ("a",), {"a": (FLOATS, 0)}, 8, 0, 16), (1,), bytes(8)
    ),
    "a scalar that is an array": scalar(PAIRS, bytes(8)),
    "an array of arrays": array(PAIRS, (2,), bytes(16)),
    "bytes read as arrays": call(
        glob("numpy.core.numeric", "_frombuffer"), binary(bytes(16)), PAIRS, (2,), "C"
    ),
    "many elements of no bytes": array(dtype("S0"), (LARGE,), b""),
    "many records of no bytes": array(
        call(glob("numpy", "dtype"), RECORD, False, True)
        + value((3, "|", None, None, None, 0, 1, 0))
        + build(),
        (LARGE,),
        b"",
    ),
    "a placement without its state": empty(glob("builtins", "set")),
    "a placement by copyreg": call(
        glob("copyreg", "__newobj__"), glob(PLACES, "Shard")
    ),
    "a placement that is given what it does not read": glob(PLACES, "Shard")
    + value((1,))
    + newobj(),
    "a member of an enum that is not found": glob("torch.nn.attention", "SDPBackend")
    + value((1,))
    + newobj(),
    "a place far behind": bits(twister(10**6)),
    "a place before": bits(twister(-5), None),
    "a place in a tuple": bits(("MT19937", twister(0)["state"]["key"], 10**6, 0, 0.0)),
    "a place in an OrderedDict": bits(
        {
            "bit_generator": "MT19937",
            "state": call(
                glob("collections", "OrderedDict"),
                [("pos", 10**6), ("key", twister(0)["state"]["key"])],
            ),
        }
    ),
    "a place in a buffer": bits({**PHILOX, "buffer_pos": -(10**6)}, name="Philox"),
}


@pytest.mark.parametrize("name", DIES)
def test_what_nobody_writes_is_an_error(name: str, tmp_path: Path) -> None:
    assert "called" in groups(tmp_path / "x.pth", DIES[name])


def test_the_gate_stops_what_ends_the_process(tmp_path: Path) -> None:
    """torch.load ends with a signal, and `lint` called this file fine."""
    skip_command(("lint",))
    path = tmp_path / "x.pth"
    groups(path, filled(0))
    done = ckpt("lint", "--level", "error", path)
    assert done.code == 1 and b"called-on-load" in done.out
    code = f"import torch; torch.load({str(path)!r}, weights_only=False)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT
    )
    assert ended.returncode != 0


GOOD_DTYPES = (
    "f4",
    ">f8",
    "S3",
    "U3",
    "V5",
    "M8[ns]",
    "c16",
    np.dtype([("a", "i1"), ("b", "f8")]),
    np.dtype([("a", "i1"), ("b", "c16")], align=True),
    np.dtype([("a", "f4", (2,)), ("b", "M8[s]"), ("c", "U2")]),
    np.dtype(("f4", (2,))),
)


@pytest.mark.parametrize("of", GOOD_DTYPES, ids=str)
def test_dtypes_as_numpy_writes_them_are_harmless(of: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    values = np.zeros(3, of)
    things = [np.dtype(of), values, np.ma.masked_array(values), values[0]]
    torch.save({"w": torch.ones(2), "x": things}, path)
    with open(str(path)) as checkpoint:
        assert {row.group for row in checkpoint.imports} == {"known"}


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_generators_as_numpy_writes_them_are_harmless(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    source = getattr(np.random, name)(1)
    things = [source, np.random.Generator(source), np.random.RandomState(source)]
    for count in (1, 3, 700):
        source.random_raw(count)
        torch.save({"w": torch.ones(2), "x": things}, path)
        with open(str(path)) as checkpoint:
            assert {row.group for row in checkpoint.imports} == {"known"}


def test_placements_as_torch_writes_them_are_harmless(tmp_path: Path) -> None:
    places = pytest.importorskip(PLACES)
    path = tmp_path / "x.pth"
    things = [places.Shard(1), places.Replicate(), places.Partial("sum")]
    torch.save({"w": torch.ones(2), "x": things}, path)
    with open(str(path)) as checkpoint:
        assert {row.group for row in checkpoint.imports} == {"known"}
    # torch before 2.10 gives Replicate no state.
    for program in (
        empty(b"", "Replicate"),
        call(glob(PLACES, "Partial")),
        made(PLACES, "Shard", {"dim": 1}),
    ):
        assert groups(path, program) == {"known"}


@pytest.mark.parametrize(
    "text", ["[\0-\uffff]", "[\\0-\\uffff]", "[a-\\U0010ffff]"], ids=ascii
)
def test_ranges_of_many_characters_count_for_more(text: str, tmp_path: Path) -> None:
    """Python goes through all characters of each: 400 ranges in 2 KB took 3 s."""
    for count, group in ((100, "called"), (10, "known")):
        program = call(glob("re", "_compile"), text * count, 2)
        assert (group == "called") == ("called" in groups(tmp_path / "x.pth", program))
