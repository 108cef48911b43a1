"""`ckpt convert`: other formats hold the same values, plain classes the same content;
losses are told first.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import json
import pathlib
import re
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import real_files
import rewriting
import safetensors
import safetensors.torch
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from needs import is_there
from paths import many
from process import check_error, ckpt
from same import difference
from saved import OBJECTS, Colour, Config, Point
from torch import nn

from ckpt import formats
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.elements import cast
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import LossError, UsageError

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"


def converted(
    source: Path, out: Path, format: str = "torch-zip", **options: Any
) -> RewriteReport:
    with formats.open(str(source)) as checkpoint:
        report = rewriting.convert(checkpoint, format, **options)
        rewriting.write(report.result, out, format)
    return report


def to_safetensors(
    thing: Any, tmp_path: Path, **options: Any
) -> tuple[dict[str, torch.Tensor], RewriteReport]:
    source = rewriting.saved(thing, tmp_path / "a.pt")
    report = converted(source, tmp_path / "b.safetensors", "safetensors", **options)
    return safetensors.torch.load_file(tmp_path / "b.safetensors"), report


def equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """The same bits, in the same shape and dtype."""
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    raw = []
    for tensor in (one, two):
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        begin = plain.storage_offset() * plain.itemsize
        raw.append(oracle.raw(plain)[begin : begin + plain.nbytes])
    return raw[0] == raw[1]


# --- safetensors ----------------------------------------------------------------------

_HELD = [
    name
    for name in (*strategies.TYPED, *strategies.UNTYPED)
    if BY_NAME[name].safetensors and name != "float4_e2m1fn_x2"
]


@given(st.data())
@settings(max_examples=many(30, 120))
def test_every_view_of_every_dtype(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("views")
    bases = [
        strategies._bytes_as(
            getattr(torch, data.draw(st.sampled_from(_HELD))),
            data.draw(st.integers(0, 40)),
            i,
        )
        for i in range(data.draw(st.integers(1, 3)))
    ]
    state = {
        f"layer.{i}.weight": data.draw(strategies.tensors(bases))
        for i in range(data.draw(st.integers(1, 4)))
    }
    state = rewriting.load(rewriting.saved(state, folder / "s.pt"))

    found, _ = to_safetensors(state, folder)

    aliases = {}
    with safetensors.safe_open(folder / "b.safetensors", "pt") as opened:
        aliases = opened.metadata()
        assert aliases.pop("format") == "pt"
    assert {*found, *aliases} == set(state) and not found.keys() & aliases.keys()
    for name, value in state.items():
        assert equal(value, found[aliases.get(name, name)]), name


def test_the_model_goes_under_its_own_names(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    thing = {
        "state_dict": net.state_dict(),
        "epoch": 3,
        "optimizer": torch.optim.SGD(net.parameters(), 0.1).state_dict(),
    }

    found, report = to_safetensors(thing, tmp_path)

    assert found.keys() == {"weight", "bias"} and torch.equal(
        found["weight"], net.weight
    )
    assert [row.name for row in report.left_out] == ["optimizer", "epoch"]


def test_ties_are_held_once_and_come_back(tmp_path: Path) -> None:
    weight = torch.randn(8, 4)
    state = OrderedDict(
        [
            ("emb.weight", weight),
            ("part.weight", weight[:4]),
            ("head.weight", weight),
            ("t.weight", weight.t()),
        ]
    )

    found, _ = to_safetensors(state, tmp_path)

    assert found.keys() == {"emb.weight", "part.weight", "t.weight"}
    with safetensors.safe_open(tmp_path / "b.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "head.weight": "emb.weight"}
    report = converted(tmp_path / "b.safetensors", tmp_path / "c.pt")
    back = torch.load(tmp_path / "c.pt", weights_only=True)
    assert back["head.weight"].data_ptr() == back["emb.weight"].data_ptr()
    assert report.left_out == () and all(
        torch.equal(back[name], value) for name, value in state.items()
    )


def test_the_library_loads_a_model_with_ties(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.emb.weight

    net = Tied()
    to_safetensors(net.state_dict(), tmp_path)

    other = Tied()
    assert safetensors.torch.load_model(other, tmp_path / "b.safetensors") == (
        set(),
        [],
    )
    assert torch.equal(other.head.weight, net.emb.weight)


def test_what_it_cannot_hold_is_listed(tmp_path: Path) -> None:
    state = {
        "fc.weight": torch.ones(2, 2),
        "fc.bias": torch.ones(2),
        "c": torch.ones(1, dtype=torch.complex128),
        "s": torch.eye(2).to_sparse(),
        "m": torch.empty(2, device="meta"),
        "__metadata__": torch.ones(1),
        "_extra_state": {"x": 1},
        "huge": torch.ones(1).expand(1 << 40),
        "\ud800": torch.ones(1),
    }
    source = rewriting.saved(state, tmp_path / "a.pt")

    with pytest.raises(LossError) as caught:
        to_safetensors(state, tmp_path)
    assert str(caught.value).endswith("would be lost (drop_other=True)")
    report = converted(
        source, tmp_path / "b.safetensors", "safetensors", drop_other=True
    )
    assert safetensors.torch.load_file(tmp_path / "b.safetensors").keys() == {
        "fc.weight",
        "fc.bias",
    }
    assert {row.name: row.what for row in report.left_out} == {
        "c": "complex128",
        "s": "sparse_coo",
        "m": "on meta, without data",
        "__metadata__": "its name is not allowed in safetensors",
        "huge": "expands to 4,398,046,511,104 bytes",
        "\ud800": "its name is not allowed in safetensors",
        "_extra_state.x": "not a tensor",
    }


def test_two_paths_of_one_name_are_refused(tmp_path: Path) -> None:
    state = {
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "c.weight": torch.ones(2),
    }

    with pytest.raises(LossError, match="two tensors of one name"):
        to_safetensors(state, tmp_path)


def test_keys_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LossError, match="its key is not a string"):
        to_safetensors(
            {b"a.weight": torch.ones(1), "b.weight": torch.ones(1)}, tmp_path
        )


def test_big_endian_becomes_little(tmp_path: Path) -> None:
    state = {
        "f.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
        "c.weight": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
        "d.weight": torch.arange(4, dtype=torch.float64),
        "i.weight": torch.arange(5, dtype=torch.int16),
        "u.weight": torch.arange(5, dtype=torch.uint8),
    }
    state["v.weight"] = state["f.weight"].t()
    little = rewriting.saved(state, tmp_path / "le.pt")
    source = tmp_path / "be.pt"
    widths = [4, 4, 8, 2, 1]
    with zipfile.ZipFile(little) as old, zipfile.ZipFile(source, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if "/data/" in name:
                data = (
                    np.frombuffer(data, f"u{widths[int(name.rpartition('/')[2])]}")
                    .byteswap()
                    .tobytes()
                )
            new.writestr(name, b"big" if name.endswith("byteorder") else data)

    converted(source, tmp_path / "b.safetensors", "safetensors")
    converted(source, tmp_path / "l.pt", "torch-legacy")

    found = safetensors.torch.load_file(tmp_path / "b.safetensors")
    legacy = torch.load(tmp_path / "l.pt")
    assert all(
        equal(found[name], value) and equal(legacy[name], value)
        for name, value in state.items()
    )


def test_float4_counts_its_elements(tmp_path: Path) -> None:
    value = torch.arange(6, dtype=torch.uint8).view(2, 3).view(torch.float4_e2m1fn_x2)

    to_safetensors({"a.weight": value}, tmp_path)

    with safetensors.safe_open(tmp_path / "b.safetensors", "pt") as opened:
        assert opened.get_slice("a.weight").get_shape() == [2, 6]
    converted(tmp_path / "b.safetensors", tmp_path / "c.pt")
    assert equal(torch.load(tmp_path / "c.pt")["a.weight"], value)


@pytest.mark.parametrize("name", real_files.FILES)
def test_real_files_through_safetensors_and_back(name: str, tmp_path: Path) -> None:
    source = real_files.path(name)
    with formats.open(str(source)) as checkpoint:
        weights = [
            e for e in checkpoint.tensors if e.path[:1] == ("state_dict",)
        ] or checkpoint.tensors
        wanted = {
            e.name.removeprefix("state_dict."): oracle.elements(
                e.tensor, oracle.stored(e.tensor.storage)
            )  # type: ignore[union-attr, arg-type]
            for e in weights
        }

    converted(source, tmp_path / "b.safetensors", "safetensors")
    converted(tmp_path / "b.safetensors", tmp_path / "c.pt")

    for found in (
        safetensors.torch.load_file(tmp_path / "b.safetensors"),
        torch.load(tmp_path / "c.pt"),
    ):
        assert {key: value.numpy().tobytes() for key, value in found.items()} == wanted


def test_the_header_is_aligned_and_ordered_as_the_library_does_it(
    tmp_path: Path,
) -> None:
    state = {
        f"n{i}.weight": torch.ones(3).to(dtype)
        for i, dtype in enumerate(
            (torch.uint8, torch.float64, torch.float16, torch.float32)
        )
    }
    to_safetensors(state, tmp_path)
    safetensors.torch.save_file(state, tmp_path / "lib.safetensors", {"format": "pt"})

    ours, theirs = (
        header(tmp_path / name) for name in ("b.safetensors", "lib.safetensors")
    )

    assert (
        ours == theirs
        and (tmp_path / "b.safetensors").stat().st_size
        == (tmp_path / "lib.safetensors").stat().st_size
    )


def header(path: Path) -> Any:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert size % 8 == 0
    return json.loads(data[8 : 8 + size])


# --- shards ---------------------------------------------------------------------------


def test_shards(tmp_path: Path) -> None:
    state = OrderedDict(
        (f"layers.{i}.weight", torch.full((100,), float(i))) for i in range(10)
    )
    state["tied.weight"] = state["layers.2.weight"]
    state["big.weight"] = torch.ones(1000)
    source = rewriting.saved(state, tmp_path / "a.pt")
    out = tmp_path / "out"
    out.mkdir()

    done = ckpt("convert", source, "-o", out, "--shard-size", "1KB")

    assert done.code == 0, done
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 8000}
    assert len(index["weight_map"]) == 11 and "tied.weight" not in index["weight_map"]
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(set(index["weight_map"].values())):
        part = safetensors.torch.load_file(out / shard)
        assert all(index["weight_map"][name] == shard for name in part)
        assert sum(value.nbytes for value in part.values()) <= 1000 or len(part) == 1
        found |= part
    assert all(
        torch.equal(found[name], value)
        for name, value in state.items()
        if name != "tied.weight"
    )
    assert ckpt("convert", out, "-o", tmp_path / "back.pt").code == 0
    back = torch.load(tmp_path / "back.pt")
    assert back["tied.weight"].data_ptr() == back["layers.2.weight"].data_ptr()
    check_error(
        ckpt("convert", source, "-o", out, "--shard-size", "1KB"),
        "exists (--force to replace)",
    )


def test_one_shard_is_a_file(tmp_path: Path) -> None:
    source = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")

    assert (
        ckpt(
            "convert", source, "-o", tmp_path / "m.safetensors", "--shard-size", "5GB"
        ).code
        == 0
    )

    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "m.safetensors"]


def test_a_shard_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = rewriting.saved(
        {f"l{i}.weight": torch.ones(300) for i in range(4)}, tmp_path / "a.pt"
    )
    (tmp_path / "m-00003-of-00004.safetensors").mkdir()

    check_error(
        ckpt("convert", source, "-o", tmp_path / "m.safetensors", "--shard-size", "1K"),
        "directory",
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a.pt",
        "m-00003-of-00004.safetensors",
    ]


# --- dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("to", cast.CASTS)
@pytest.mark.parametrize("source", sorted(cast.CASTABLE))
def test_casts_are_torchs(source: str, to: str) -> None:
    dtype, wanted = getattr(torch, source), getattr(torch, to)
    if dtype.itemsize == 1:
        values = torch.arange(256, dtype=torch.uint8).view(dtype)
    elif dtype.itemsize == 2:
        values = torch.arange(65_536, dtype=torch.int32).to(torch.uint16).view(dtype)
    else:
        torch.manual_seed(0)
        bits = torch.randint(-(2**63), 2**63 - 1, (50_000,), dtype=torch.int64)
        values = (
            bits.view(dtype)
            if dtype is torch.float64
            else bits.view(torch.int32).view(dtype)
        )
        edges = torch.tensor(
            [
                0.0,
                -0.0,
                1.0,
                65504.0,
                65519.9,
                65520.0,
                3.3895e38,
                3.4e38,
                1e-45,
                6e-8,
                1 + 2**-8,
                1 + 3 * 2**-8,
            ]
        )
        scaled = torch.randn(50_000, dtype=torch.float64) * 10 ** (
            torch.rand(50_000, dtype=torch.float64) * 90 - 45
        )
        values = torch.cat(
            [
                values,
                edges.to(dtype),
                scaled.to(dtype),
                torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=dtype),
            ]
        )
    expected = values.to(wanted)

    data, overflowed = cast.cast(
        values.view(torch.uint8).numpy().tobytes(), BY_NAME[source], BY_NAME[to]
    )

    found = torch.frombuffer(bytearray(data), dtype=wanted)
    assert torch.equal(found.isnan(), expected.isnan())
    keep = ~expected.isnan()
    assert equal(found[keep], expected[keep])
    assert overflowed == int(
        (expected.isinf() & ~values.float().isinf() & ~values.double().isinf()).sum()
    ) or (
        source == "float64"
        and overflowed == int((expected.isinf() & ~values.isinf()).sum())
    )


@pytest.mark.parametrize("format", ["safetensors", "torch-zip", "torch-legacy"])
def test_dtype_casts_the_tensors_of_safetensors(format: str, tmp_path: Path) -> None:
    state = {
        "a.weight": torch.randn(2, 3),
        "a.steps": torch.tensor([3]),
        "b.weight": torch.randn(4).half(),
    }
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    out = tmp_path / ("b.safetensors" if format == "safetensors" else "b.pt")

    report = converted(tmp_path / "a.safetensors", out, format, dtype="bfloat16")

    found = (
        safetensors.torch.load_file(out) if format == "safetensors" else torch.load(out)
    )
    for name, value in state.items():
        assert equal(
            found[name],
            value.to(torch.bfloat16) if value.is_floating_point() else value,
        ), name
    counts = {row.before: row.number for row in report.changes if row.kind == "dtype"}
    assert counts == {"float32": 1, "float16": 1}


@pytest.mark.parametrize("format", ["torch-zip", "torch-legacy"])
def test_dtype_casts_what_numpy_left_behind(format: str, tmp_path: Path) -> None:
    arrays = {
        "a.weight": np.arange(6.0).reshape(2, 3),
        "a.bias": np.asfortranarray(np.ones((2, 3), "f4")),
    }
    source = rewriting.saved({**arrays, "b.weight": torch.ones(2)}, tmp_path / "a.pt")

    converted(source, tmp_path / "b.pt", format, plain=True, dtype="float16")

    found = torch.load(tmp_path / "b.pt")
    for name, array in arrays.items():
        assert equal(found[name], torch.from_numpy(array).half()), name
    assert found["b.weight"].dtype is torch.float16


@pytest.mark.parametrize("format", ["safetensors", "torch-zip", "torch-legacy"])
def test_dtype_casts_floating_tensors_of_the_model(format: str, tmp_path: Path) -> None:
    base = torch.randn(10, 10)
    state = OrderedDict(
        [
            ("a.weight", base),
            ("b.weight", base[2:4].t()),
            ("c.weight", nn.Parameter(torch.randn(3).double())),
            ("n.num_batches_tracked", torch.tensor(3)),
            ("a2.weight", base),
            ("e.weight", torch.randn(4).to(torch.bfloat16)),
        ]
    )
    thing = {
        "model": state,
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(3)}},
            "param_groups": [{"params": [0]}],
        },
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")
    out = tmp_path / ("b.safetensors" if format == "safetensors" else "b.pt")

    report = converted(source, out, format, dtype="bfloat16")

    found = (
        safetensors.torch.load_file(out)
        if format == "safetensors"
        else torch.load(out)["model"]
    )
    for name, value in state.items():
        if name in found:
            expected = value.to(torch.bfloat16) if value.is_floating_point() else value
            assert equal(found[name], expected), name
    assert not report.unchanged_bytes
    if format != "safetensors":
        assert (
            found["a.weight"].untyped_storage().data_ptr()
            == found["b.weight"].untyped_storage().data_ptr()
        )
        assert (
            torch.load(out)["optimizer"]["state"][0]["exp_avg"].dtype is torch.float32
        )
        assert type(found["c.weight"]) is nn.Parameter


def test_fp8_is_cast_tensor_by_tensor(tmp_path: Path) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    source = rewriting.saved(
        {"a.weight": values, "b.weight": values[10:20]}, tmp_path / "a.pt"
    )

    converted(source, tmp_path / "b.pt", dtype="float32")

    found = torch.load(tmp_path / "b.pt")
    for name, value in (("a.weight", values), ("b.weight", values[10:20])):
        assert torch.equal(found[name].nan_to_num(7), value.float().nan_to_num(7))


def test_overflow_is_counted(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"a.weight": torch.tensor([1e10, -1e10, float("inf"), 1.0])}, tmp_path / "a.pt"
    )

    done = ckpt("convert", source, "--dtype", "float16", "-o", tmp_path / "b.pt")

    assert (
        "2 elements became infinite, because float16 cannot represent them"
        in done.lines
    )
    document = ckpt(
        "convert",
        source,
        "--dtype",
        "float16",
        "-o",
        tmp_path / "c.safetensors",
        "--json",
    )
    assert json.loads(document.out)["overflowed"] == 2


def test_overflow_is_counted_over_all_shards(tmp_path: Path) -> None:
    state = {
        "a.weight": torch.tensor([1e10, -1e10]),
        "b.weight": torch.tensor([1e10, 1.0]),
    }
    source = rewriting.saved(state, tmp_path / "a.pt")
    out = tmp_path / "m.safetensors"

    done = ckpt(
        "convert",
        source,
        "--dtype",
        "float16",
        "-o",
        out,
        "--shard-size",
        "4",
        "--json",
    )

    assert json.loads(done.out)["overflowed"] == 3


def test_one_tensor_that_is_a_section_keeps_its_name(tmp_path: Path) -> None:
    thing = {"scale": torch.ones(3), "model": nn.Linear(2, 2).state_dict()}

    found, _ = to_safetensors(thing, tmp_path, section="scale", drop_other=True)

    assert found.keys() == {"scale"}


# --- plain ----------------------------------------------------------------------------


def plain(thing: Any, tmp_path: Path, **options: Any) -> Any:
    source = rewriting.saved(thing, tmp_path / "a.pt")
    converted(source, tmp_path / "b.pt", plain=True, **options)
    return torch.load(tmp_path / "b.pt", weights_only=True)


def test_objects_become_their_content(tmp_path: Path) -> None:
    thing = {
        "args": argparse.Namespace(lr=0.1, inner=argparse.Namespace(x=1)),
        "path": pathlib.PurePosixPath("a/b"),
        "enum": Colour.RED,
        "config": Config(0.3),
        "point": Point(1, 2),
        "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("aab"),
        "ordered": OrderedDict(a=1),
        "deque": collections.deque([1, 2]),
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "decimal": decimal.Decimal("1.5"),
        "frozen": frozenset([1, 2]),
        "set": {1, 2},
        "complex": 1 + 2j,
        "bytes": b"\0\xff",
        "tuple": (1, (2, 3)),
        Colour.RED: "a key",
        "size": torch.Size([2]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 1),
        "class": int,
    }

    assert plain(thing, tmp_path) == {
        "args": {"lr": 0.1, "inner": {"x": 1}},
        "path": "a/b",
        "enum": 1,
        "config": {"lr": 0.3},
        "point": [1, 2],
        "default": {"a": [1]},
        "counter": {"a": 2, "b": 1},
        "ordered": {"a": 1},
        "deque": [1, 2],
        "when": "2024-01-02T03:04:05",
        "decimal": "1.5",
        "frozen": {1, 2},
        "set": {1, 2},
        "complex": 1 + 2j,
        "bytes": b"\0\xff",
        "tuple": (1, (2, 3)),
        1: "a key",
        "size": torch.Size([2]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 1),
        "class": "builtins.int",
    }


@pytest.mark.parametrize(
    "dtype",
    [
        "?",
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
        "c8",
        "c16",
        ">f4",
        ">i8",
        ">c8",
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_numpy_becomes_tensors_and_numbers(
    dtype: str, protocol: int, tmp_path: Path
) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    thing = {
        "c": array,
        "fortran": np.asfortranarray(array),
        "view": array[:, 1],
        "zero": array[0, 0, 1],
        "scalar": np.array(array[0, 0, 1]),
        "empty": array[:0],
    }
    source = rewriting.saved(thing, tmp_path / "a.pt", pickle_protocol=protocol)
    converted(source, tmp_path / "b.pt", plain=True)

    found = torch.load(tmp_path / "b.pt", weights_only=True)

    native = array.astype(array.dtype.newbyteorder("="))
    for name, value in thing.items():
        if isinstance(value, np.ndarray):
            expected = (
                native
                if name in ("c", "fortran")
                else value.astype(value.dtype.newbyteorder("="))
            )
            assert torch.equal(
                found[name],
                torch.from_numpy(np.ascontiguousarray(expected).reshape(value.shape)),
            ), name
    if "c" not in dtype:
        assert found["zero"] == array[0, 0, 1].item() and type(found["zero"]) is type(
            array[0, 0, 1].item()
        )


def test_other_arrays(tmp_path: Path) -> None:
    found = plain(
        {
            "words": np.array(["cat", "dog"]),
            "mixed": np.array([None, 1, "x"], dtype=object),
        },
        tmp_path,
    )

    assert found == {"words": ["cat", "dog"], "mixed": [None, 1, "x"]}


def test_modules_become_state_dicts(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    found = plain({"model": net, "epoch": 3}, tmp_path)

    assert found["epoch"] == 3 and list(found["model"]) == list(net.state_dict())
    assert all(
        torch.equal(found["model"][name], value)
        for name, value in net.state_dict().items()
    )


def test_sharing_stays(tmp_path: Path) -> None:
    inner = argparse.Namespace(x=[1])
    weight = torch.ones(3)
    found = plain({"a": inner, "b": inner, "w": weight, "v": weight}, tmp_path)

    assert found["a"] is found["b"] and found["w"].data_ptr() == found["v"].data_ptr()


def test_cycles_stay(tmp_path: Path) -> None:
    loop = argparse.Namespace()
    loop.me = loop
    found = plain({"loop": loop}, tmp_path)

    assert found["loop"]["me"] is found["loop"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTS)
def test_every_saved_object_is_plain_or_refused(name: str, tmp_path: Path) -> None:
    try:
        source = rewriting.saved(
            {"it": OBJECTS[name](), "w": torch.ones(2)}, tmp_path / "a.pt"
        )
    except Exception:
        pytest.skip("torch does not save it")
    try:
        converted(source, tmp_path / "b.pt", plain=True)
    except LossError as error:
        assert "it" in error.problem
        converted(source, tmp_path / "b.pt", plain=True, drop_other=True)

    found = torch.load(tmp_path / "b.pt", weights_only=True)

    assert torch.equal(found["w"], torch.ones(2)) and any(
        key.partition(".")[0] == "it" for key in found
    )


def test_what_weights_only_took_stays_as_it_is(tmp_path: Path) -> None:
    thing = {
        "model": nn.Linear(2, 2).state_dict(),
        "lr": 0.1,
        "betas": (0.9, 0.99),
        "ids": [1, 2],
        "s": torch.eye(2).to_sparse(),
    }
    source = rewriting.saved(thing, tmp_path / "a.pt")
    converted(source, tmp_path / "b.pt", plain=True)

    assert difference(torch.load(source), torch.load(tmp_path / "b.pt")) is None


def test_the_checkpoint_inside_a_pickle_joins_it(tmp_path: Path) -> None:
    tagged = rewriting.in_memory(
        torch.arange(4.0), _use_new_zipfile_serialization=False
    )

    class Inside:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (tagged,)

    assert plain({"a": Inside(), "b": torch.ones(2)}, tmp_path)["a"].tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_what_is_dropped_is_none(tmp_path: Path) -> None:
    thing = {"it": np.ma.array([1]), "list": [np.ma.array([1]), 1], "w": torch.ones(1)}

    with pytest.raises(
        LossError, match=r"it \(numpy\.ma\.core\._mareconstruct\); list\.0"
    ):
        plain(thing, tmp_path)
    found = plain(thing, tmp_path, drop_other=True)
    assert found["it"] is None and found["list"] == [None, 1]


# --- Python 2 -------------------------------------------------------------------------


def test_text_of_python_2_is_repaired(tmp_path: Path) -> None:
    source = SAMPLES / "legacy_python2.pth"
    with pytest.raises(UnicodeDecodeError):
        torch.load(source, map_location="cpu", weights_only=False)

    report = converted(source, tmp_path / "b.pt", encoding="latin1")

    expected = torch.load(
        source, map_location="cpu", weights_only=False, encoding="latin1"
    )
    found = torch.load(tmp_path / "b.pt", map_location="cpu", weights_only=False)
    assert difference(expected, found) is None
    assert ("text", 1) in [(change.kind, change.number) for change in report.changes]
    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        assert checkpoint.encoding is None


def test_arrays_of_python_2_keep_their_bytes(tmp_path: Path) -> None:
    array = np.array([1.5, -2.25, 1e300])
    payload = array.tobytes()
    text = b"caf\xe9"

    def short(data: bytes) -> bytes:
        return b"U" + bytes([len(data)]) + data

    pickled = (
        b"\x80\x02}q\x01("
        + short(b"a")
        + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
        + short(b"b")
        + b"\x87R"
        + b"(K\x01K\x03\x85cnumpy\ndtype\n"
        + short(b"f8")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + short(payload)
        + b"tb"
        + short(b"name")
        + short(text)
        + b"u."
    )
    source = tmp_path / "a.pt"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", b"3\n")

    converted(source, tmp_path / "b.pt", encoding="latin1")
    found = torch.load(tmp_path / "b.pt", weights_only=False)
    assert found["name"] == "café" and np.array_equal(found["a"], array)

    converted(source, tmp_path / "c.pt", encoding="latin1", plain=True)
    found = torch.load(tmp_path / "c.pt", weights_only=True)
    assert found["name"] == "café" and found["a"].tolist() == array.tolist()


def short(data: bytes) -> bytes:
    """A byte string of Python 2, as SHORT_BINSTRING."""
    return b"U" + bytes([len(data)]) + data


def of_python_2(pickled: bytes, path: Path) -> Path:
    """A checkpoint with this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", b"3\n")
    return path


def test_an_encoding_reads_the_texts_of_objects_that_become_plain(
    tmp_path: Path,
) -> None:
    """Keys, values and attributes: with an encoding none is lost, without one all that
    are not UTF-8 are.
    """
    text = b"caf\xe9 \x80"
    pickled = b"".join(
        [
            b"\x80\x02}(",
            short(b"list") + b"]" + short(text) + b"a",
            short(text) + short(b"ascii"),
            short(b"args")
            + b"cargparse\nNamespace\n)\x81}"
            + short(b"name")
            + short(text)
            + b"sb",
            b"u.",
        ]
    )
    source = of_python_2(pickled, tmp_path / "a.pt")

    for encoding, decoded in (("latin1", "café \x80"), ("cp1252", "café €")):
        converted(source, tmp_path / "b.pt", encoding=encoding, plain=True)
        found = torch.load(tmp_path / "b.pt", weights_only=True)
        assert found == {"list": [decoded], decoded: "ascii", "args": {"name": decoded}}
    with pytest.raises(LossError) as error:
        converted(source, tmp_path / "c.pt", plain=True)
    assert "--encoding latin1" in str(error.value)
    converted(source, tmp_path / "d.pt", plain=True, drop_other=True)
    assert torch.load(tmp_path / "d.pt", weights_only=True)["list"] == [None]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_an_encoding_that_does_not_fit_loses_texts_and_says_so(
    encoding: str, tmp_path: Path
) -> None:
    source = of_python_2(
        b"\x80\x02}(" + short(b"a") + short(b"\xe9") + b"u.", tmp_path / "a.pt"
    )
    with pytest.raises(LossError):
        converted(source, tmp_path / "b.pt", encoding=encoding, plain=True)


def test_an_encoding_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a text is not ascii"):
        converted(SAMPLES / "legacy_python2.pth", tmp_path / "b.pt", encoding="ascii")
    with pytest.raises(UsageError, match="not one of"):
        converted(SAMPLES / "legacy_python2.pth", tmp_path / "b.pt", encoding="koi8")


# --- other formats --------------------------------------------------------------------


def test_storages_that_no_torch_reads_from_a_legacy_file_are_rescued(
    tmp_path: Path,
) -> None:
    values = torch.tensor([1, 2, 65_535], dtype=torch.uint16)
    source = rewriting.saved(
        {"a": values}, tmp_path / "a.pt", _use_new_zipfile_serialization=False
    )
    with pytest.raises(AttributeError):
        torch.load(source)

    converted(source, tmp_path / "b.pt")

    assert equal(torch.load(tmp_path / "b.pt")["a"], values)
    check_error(
        ckpt(
            "convert",
            tmp_path / "b.pt",
            "--format",
            "torch-legacy",
            "-o",
            tmp_path / "c.pt",
        ),
        "torch-legacy cannot hold",
    )


@pytest.mark.parametrize(
    "name",
    [p.name for p in sorted(SAMPLES.iterdir()) if p.suffix in (".pth", ".ckpt", ".pt")],
)
def test_samples_between_the_formats_of_torch(name: str, tmp_path: Path) -> None:
    try:
        with formats.open(str(SAMPLES / name)) as checkpoint:
            if checkpoint.format == "torchscript" or checkpoint.not_loadable:
                return
            known = all(row.group == "known" for row in checkpoint.imports)
            encoding = checkpoint.encoding or "utf-8"
    except formats.CkptError:
        return
    if not known or name == "dtypes.pth":
        return

    converted(SAMPLES / name, tmp_path / "l.pt", "torch-legacy")
    converted(tmp_path / "l.pt", tmp_path / "z.pt", "torch-zip")

    expected = rewriting.load(SAMPLES / name, map_location="cpu", encoding=encoding)
    for made in ("l.pt", "z.pt"):
        found = rewriting.load(tmp_path / made, map_location="cpu", encoding=encoding)
        assert difference(expected, found) is None


class Scripted(nn.Module):
    """Tensors of every kind that a script has: a parameter, buffers, an attribute, a
    list, a constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.scale, self.extra = torch.ones(2), [torch.zeros(2), torch.ones(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.scale + self.extra[0] + self.hidden[0]


def script(path: Path, *, old: bool = False) -> Path:
    """A script as torch writes it, or as torch 1.4 did: its code lists no buffers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Scripted()).save(str(path))
    if old:
        with zipfile.ZipFile(path) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in records.items():
                archive.writestr(name, re.sub(rb"(?m)^  __buffers__ = .*\n", b"", data))
    return path


NEITHER = ["extra.0", "extra.1", "scale"]
SCRIPTED = [*Scripted().state_dict(), "hidden"]


@pytest.mark.parametrize("command", ["slim", "convert", "convert --plain"])
@pytest.mark.parametrize("out", ["b.pth", "b.safetensors"])
def test_tensors_of_a_script_that_are_no_weights_are_listed(
    command: str, out: str, tmp_path: Path
) -> None:
    script(tmp_path / "a.pt")

    if command == "slim" and out == "b.safetensors":
        return
    done = inside(*command.split(), "a.pt", "-o", out, cwd=tmp_path)

    assert done.code == 0, done
    left = [
        line.split(": ")[1:] for line in done.lines if line.startswith("left out: ")
    ]
    # The program itself is named too: its loader does not read the result.
    assert left.pop() == ["(the program)", "the code that torch.jit.load runs"]
    assert sorted(name for name, _ in left) == NEITHER
    assert all(
        what.startswith("neither parameter nor buffer of the program, ")
        for _, what in left
    )
    with formats.open(str(tmp_path / out)) as written:
        assert {entry.name for entry in written.tensors} == set(SCRIPTED)
    if out == "b.pth":
        found = torch.load(tmp_path / out)
        assert not any(value.requires_grad for value in found.values())
        assert all(value.numpy() is not None for value in found.values())


def test_a_script_of_torch_1_4_keeps_its_buffers(tmp_path: Path) -> None:
    script(tmp_path / "a.pt", old=True)

    done = inside("convert", "a.pt", "-o", "b.safetensors", cwd=tmp_path)

    held = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert done.code == 0 and held.keys() == {*SCRIPTED, "scale"}
    assert held["norm.running_var"].tolist() == [1, 1]


@pytest.mark.needs("torchscript")
@pytest.mark.filterwarnings("ignore")
def test_constants_of_a_trace_are_listed(tmp_path: Path) -> None:
    constant = torch.arange(4.0)
    model = nn.Linear(4, 4)
    torch.jit.trace(lambda x: x + constant, torch.ones(1, 4)).save(
        str(tmp_path / "c.pt")
    )
    wrapper = nn.Sequential(model)
    wrapper.forward = lambda x: model(x) + constant  # type: ignore[method-assign]
    torch.jit.trace(wrapper, torch.ones(1, 4)).save(str(tmp_path / "a.pt"))

    for arguments in (
        ("convert", "a.pt", "-o", "b.safetensors"),
        ("slim", "a.pt", "-o", "b.pth"),
    ):
        done = inside(*arguments, cwd=tmp_path)
        assert (
            done.code == 0
            and "left out: constants: other, 1 tensor, 16 B" in done.lines
        )
        program = "left out: (the program): the code that torch.jit.load runs"
        assert program in done.lines
        assert sum(line.startswith("left out") for line in done.lines) == 2
    assert torch.load(tmp_path / "b.pth").keys() == wrapper.state_dict().keys()


@pytest.mark.needs("torchscript")
def test_scripts_give_their_weights(tmp_path: Path) -> None:
    script = torch.jit.load(SAMPLES / "scripted.pt", map_location="cpu")
    for out, load in (
        ("b.safetensors", safetensors.torch.load_file),
        ("b.pt", torch.load),
    ):
        assert ckpt("convert", SAMPLES / "scripted.pt", "-o", tmp_path / out).code == 0
        found = load(
            tmp_path / out, **({"map_location": "cpu"} if out == "b.pt" else {})
        )
        assert found.keys() == script.state_dict().keys()
        assert all(
            equal(found[name], value) for name, value in script.state_dict().items()
        )


def test_the_commands_lines(tmp_path: Path) -> None:
    source = rewriting.saved({"a.weight": torch.ones(1)}, tmp_path / "a.pth")

    check_error(
        ckpt("convert", "a.pth", cwd=tmp_path), "where to write? (-o a.safetensors)"
    )
    check_error(
        ckpt("convert", source, "-o", tmp_path / "b.xyz"),
        "(--format torch-zip, torch-legacy, safetensors or dcp)"
        if is_there("dcp")
        else "(--format torch-zip, torch-legacy or safetensors)",
    )
    check_error(
        ckpt("convert", source, "-o", "x", "--format", "onnx"),
        "ckpt does not write this format",
    )
    check_error(
        ckpt("convert", source, "-o", "x.pt", "--dtype", "int8"),
        "not one of bfloat16 float16 float32",
    )
    check_error(
        ckpt("convert", source, "-o", "x.safetensors", "--shard-size", "many"),
        "not a number of bytes",
    )
    document = json.loads(
        ckpt("convert", source, "-o", tmp_path / "b.safetensors", "--json").out
    )
    assert document["schema"] == {"name": "ckpt.rewrite", "version": 1}
    assert (
        document["output"]["format"] == "safetensors"
        and document["command"] == "convert"
    )
    assert set(document["verified"]) == {"structure"}


# --- what an attack found -------------------------------------------------------------


def big_endian(thing: Any, path: Path, widths: list[int]) -> Path:
    """`thing` as a big-endian machine saves it; `widths` are those of its storages'
    elements, in bytes.
    """
    little = rewriting.saved(thing, path.with_suffix(".le"))
    with zipfile.ZipFile(little) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if "/data/" in name:
                width = widths[int(name.rpartition("/")[2])]
                data = (
                    np.frombuffer(data, f"u{width}").byteswap().tobytes()
                    if width > 1
                    else data
                )
            new.writestr(name, b"big" if name.endswith("byteorder") else data)
    return path


@pytest.mark.parametrize("out", ["b.safetensors", "b.pt"])
def test_a_cast_of_a_big_endian_file(out: str, tmp_path: Path) -> None:
    source = big_endian({"m.w": torch.tensor([1.0, -2.5])}, tmp_path / "a.pt", [4])
    converted(
        source,
        tmp_path / out,
        "safetensors" if "safe" in out else "torch-zip",
        dtype="bfloat16",
    )

    found = (
        safetensors.torch.load_file(tmp_path / out)
        if "safe" in out
        else torch.load(tmp_path / out)
    )
    assert found["m.w"].tolist() == [1.0, -2.5]


def test_numpy_and_nested_checkpoints_in_a_big_endian_file(tmp_path: Path) -> None:
    inner = rewriting.in_memory(
        torch.tensor([3.0, 4.0]), _use_new_zipfile_serialization=False
    )

    class Inside:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (inner,)

    thing = {
        "w.weight": torch.tensor([1.0, -2.5]),
        "np": np.arange(3.0),
        "in.weight": Inside(),
    }
    source = big_endian(thing, tmp_path / "a.pt", [4])
    converted(source, tmp_path / "b.pt", plain=True)

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert found["w.weight"].tolist() == [1.0, -2.5] and found["np"].tolist() == [
        0,
        1,
        2,
    ]
    assert found["in.weight"].tolist() == [3.0, 4.0]


def test_fp8_views_stay_views(tmp_path: Path) -> None:
    values = torch.arange(200, dtype=torch.uint8).view(torch.float8_e5m2)
    state = {
        "a.weight": values,
        "b.weight": values[10:],
        "c.weight": nn.Parameter(values[:1].expand(10_000), requires_grad=False),
    }
    source = rewriting.saved(state, tmp_path / "a.pt")
    converted(source, tmp_path / "b.pt", dtype="float32")

    found = torch.load(tmp_path / "b.pt")
    assert len({value.untyped_storage().data_ptr() for value in found.values()}) == 1
    assert all(
        torch.equal(found[name].nan_to_num(7), value.float().nan_to_num(7))
        for name, value in state.items()
    )
    assert (
        type(found["c.weight"]) is nn.Parameter
        and (tmp_path / "b.pt").stat().st_size < 10_000
    )


def test_what_is_not_cast_is_said(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"a.weight": torch.ones(2), "s.weight": torch.eye(2).to_sparse()},
        tmp_path / "a.pt",
    )

    report = converted(source, tmp_path / "b.pt", dtype="float16")

    assert [(row.name, row.what) for row in report.left_alone] == [
        ("s.weight", "sparse_coo, which is not cast")
    ]


def test_sets_and_keys_that_would_not_be_hashable(tmp_path: Path) -> None:
    thing = {
        "frozen": {frozenset([1]), frozenset([2])},
        "points": {Point(1, 2), Point(3, 4)},
        "same": {Colour.RED, 1},
        "paths": {pathlib.PurePosixPath("a"), "a"},
    }

    found = plain(thing, tmp_path)

    assert sorted(map(sorted, found["frozen"])) == [[1], [2]] and sorted(
        found["points"]
    ) == [[1, 2], [3, 4]]
    assert found["same"] == [1, 1] and found["paths"] == ["a", "a"]
    for keys in (
        {Colour.RED: 1, 1: 2},
        {(pathlib.PurePosixPath("a"),): 2, ("a",): 3},
        {Point(1, 2): 3},
    ):
        with pytest.raises(LossError, match="a key that is"):
            plain(keys, tmp_path)


def test_objects_with_odd_states(tmp_path: Path) -> None:
    class Odd:
        state: Any = None

        def __reduce__(self) -> Any:
            return Config, (), self.state

    first, second = Odd(), Odd()
    first.state = ({"a": 1}, [1, 2, 3])
    second.state = {1: "a", "b": 2}
    source = tmp_path / "a.pt"
    torch.save({"first": first, "second": second}, source)
    converted(source, tmp_path / "b.pt", plain=True)

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert found["first"] == [{"a": 1}, [1, 2, 3]] and found["second"] == {
        1: "a",
        "b": 2,
    }


def test_arrays_that_are_odd(tmp_path: Path) -> None:
    found = plain(
        {
            "objects": np.array([[1, "a"], [None, 2.5]], dtype=object),
            "complex": np.complex64(1 + 2j),
            "text": np.array("abc"),
            "many": np.array([f"w{i}" for i in range(2000)]),
            "bytes": np.array([b"a", b"b"]),
            "nothing": np.zeros((2**40, 0)),
        },
        tmp_path,
    )

    assert found["objects"] == [[1, "a"], [None, 2.5]] and found["complex"] == 1 + 2j
    assert (
        found["text"] == "abc"
        and found["many"][1999] == "w1999"
        and found["bytes"] == [b"a", b"b"]
    )
    assert found["nothing"].shape == (2**40, 0)
    for value in (
        np.dtype([("a", "f4")]),
        np.ma.array([1, 2]),
        np.zeros(2, [("a", "f4")]).view(np.recarray),
    ):
        with pytest.raises(LossError):
            plain({"it": value, "w": torch.ones(1)}, tmp_path)


def test_attributes_of_tensors_are_told(tmp_path: Path) -> None:
    weight = torch.ones(2)
    weight.note = "x"  # type: ignore[attr-defined]
    _, report = to_safetensors(
        {"a.weight": weight, "b.weight": torch.ones(1)}, tmp_path
    )

    assert [(row.name, row.what) for row in report.left_out] == [
        ("note", "an attribute of 1 tensor")
    ]


def test_other_names_of_safetensors_are_tensors_for_every_command(
    tmp_path: Path,
) -> None:
    weight = torch.ones(4)
    torch.save(
        {"emb.weight": weight, "head.weight": weight, "o.weight": torch.zeros(2)},
        tmp_path / "a.pth",
    )
    source = tmp_path / "t.safetensors"
    assert ckpt("convert", tmp_path / "a.pth", "-o", source).code == 0

    def held(*arguments: str) -> list[str]:
        out = tmp_path / "o.safetensors"
        assert ckpt(*arguments, "-o", out, "--force").code == 0
        with safetensors.safe_open(out, "pt") as opened:
            return sorted(
                [
                    *opened.keys(),
                    *(name for name in opened.metadata() if name != "format"),
                ]
            )

    assert held("slim", str(source)) == ["emb.weight", "head.weight", "o.weight"]
    assert held("rename", str(source), "--sub", "s/^head/lm/") == [
        "emb.weight",
        "lm.weight",
        "o.weight",
    ]
    assert held("rename", str(source), "--sub", "s/^/m./") == [
        "m.emb.weight",
        "m.head.weight",
        "m.o.weight",
    ]
    check_error(
        ckpt(
            "rename", source, "--sub", "s/^emb/head/", "-o", tmp_path / "x.safetensors"
        ),
        "would both be called head.weight",
    )


def test_texts_of_the_metadata_are_not_taken_for_tensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(
        {"pt": torch.ones(1), "x": torch.ones(2)},
        tmp_path / "a.safetensors",
        {"format": "pt", "main": "x"},
    )

    report = converted(tmp_path / "a.safetensors", tmp_path / "b.pt")

    assert sorted(torch.load(tmp_path / "b.pt")) == ["pt", "x"]
    assert [row.name for row in report.left_out] == ["__metadata__.main"]


@pytest.mark.needs("torchscript")
@pytest.mark.parametrize("command", ["slim", "convert"])
def test_scripts_under_every_way_out(command: str, tmp_path: Path) -> None:
    options = ["--plain"] if command == "convert" else []
    out = tmp_path / "b.pt"
    assert ckpt(command, SAMPLES / "scripted.pt", *options, "-o", out).code == 0

    script = torch.jit.load(SAMPLES / "scripted.pt", map_location="cpu").state_dict()
    found = torch.load(out, map_location="cpu", weights_only=True)
    assert found.keys() == script.keys() and all(
        equal(found[name], value) for name, value in script.items()
    )
    check_error(
        ckpt("strip", SAMPLES / "scripted.pt", "-o", tmp_path / "c.pt"),
        "torchscript is not rewritten",
    )


def test_a_view_that_unfolds_is_never_unfolded(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"a.weight": torch.ones(1).expand(2**20, 2**20), "b.weight": torch.ones(1)},
        tmp_path / "a.pt",
    )

    for command in ("rehome", "slim"):
        assert (
            ckpt(
                command, source, "-o", tmp_path / f"{command}.pt", "--verify", "crc"
            ).code
            == 0
        )
    check_error(
        ckpt("convert", source, "-o", tmp_path / "b.safetensors"),
        "expands to 4,398,046,511,104 bytes",
    )


def test_a_key_of_tuples_of_tuples(tmp_path: Path) -> None:
    key = b"K\x01\x85q\x00"
    for slot in range(40):  # each holds the one before twice
        key += b"h" + bytes([slot]) + b"\x86q" + bytes([slot + 1])
    source = tmp_path / "a.pt"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}" + key + b"K\x01s.")
        archive.writestr("a/version", b"3\n")

    assert ckpt("convert", source, "--plain", "-o", tmp_path / "b.pt").code in (0, 2)


def test_a_tensor_called_as_modules_call_their_parts_is_a_tensor(
    tmp_path: Path,
) -> None:
    state = {"a.weight": torch.ones(2), "_buffers": torch.zeros(3)}
    found, _ = to_safetensors({"model": state}, tmp_path)
    assert set(found) == set(state) and torch.equal(
        found["_buffers"], state["_buffers"]
    )


class Bare(nn.Module):
    """Its only tensor is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.ones(2)


@pytest.mark.parametrize("command", ["slim", "convert --plain", "convert"])
@pytest.mark.parametrize("out", ["b.pth", "b.safetensors"])
def test_a_result_without_tensors_is_not_written(
    command: str, out: str, tmp_path: Path
) -> None:
    rewriting.saved(Bare(), tmp_path / "q.pth")
    rewriting.saved({"w": torch.ones(2).to_sparse()}, tmp_path / "s.pth")

    if (command == "slim" and out == "b.safetensors") or (command, out) == (
        "convert",
        "b.pth",
    ):
        return
    done = inside(*command.split(), "q.pth", "-o", out, cwd=tmp_path)
    none = "nothing would be left of 1 tensor: w is not in the state dict"
    check_error(
        done,
        "finds no model" if (command, out[-1]) == ("convert --plain", "s") else none,
    )
    if command == "convert":
        done = inside("convert", "s.pth", "-o", out, "--drop-other", cwd=tmp_path)
        check_error(done, "nothing would be left of 1 tensor: w is sparse_coo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.pth", "s.pth"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["slim", "convert --plain"])
def test_sparse_csr_of_torch_1_13_keeps_its_layout(
    command: str, tmp_path: Path
) -> None:
    eye = torch.eye(3).to_sparse_csr()
    rewriting.saved({"a.weight": eye, "b.weight": torch.ones(2)}, tmp_path / "n.pth")
    with (
        zipfile.ZipFile(tmp_path / "n.pth") as new,
        zipfile.ZipFile(tmp_path / "a.pth", "w") as old,
    ):
        for name in new.namelist():
            data = new.read(name)
            old.writestr(
                name,
                data.replace(b"_rebuild_sparse_tensor", b"_rebuild_sparse_csr_tensor"),
            )

    assert inside(*command.split(), "a.pth", "-o", "b.pth", cwd=tmp_path).code == 0

    found = torch.load(tmp_path / "b.pth")["a.weight"]
    assert found.layout == torch.sparse_csr and torch.equal(
        found.to_dense(), eye.to_dense()
    )


@pytest.mark.parametrize(
    ("dtype", "to", "lost"),
    [
        (torch.bfloat16, "float16", 2),
        (torch.float32, "float16", 2),
        (torch.float64, "float32", 0),
        (torch.float32, "bfloat16", 0),
    ],
)
def test_what_a_cast_makes_zero_is_counted(
    dtype: torch.dtype, to: str, lost: int, tmp_path: Path
) -> None:
    """As many elements as torch makes 0: a zero, also with a sign, is none of them."""
    values = torch.tensor(
        [1e-9, -1e-12, 0.0, -0.0, 1.0, float("nan"), 1e30], dtype=dtype
    )
    torch.save({"w": values}, tmp_path / "m.pth")
    made = int((values.to(getattr(torch, to)) == 0).sum()) - 2
    done = inside(
        "convert",
        "m.pth",
        "--dtype",
        to,
        "-o",
        "out.safetensors",
        "--json",
        cwd=tmp_path,
    )
    assert json.loads(done.out)["vanished"] == made == lost
    shown = inside(
        "convert",
        "m.pth",
        "--dtype",
        to,
        "-o",
        "out.safetensors",
        "--force",
        cwd=tmp_path,
    )
    assert (
        b"2 elements became 0, because float16 has no number so small" in shown.out
    ) is bool(lost)


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "a.pth", "--to", "cpu", "-o", "b.pth"),
        ("slim", "a.pth", "--to", "cpu", "--keep", "args", "-o", "b.pth"),
    ],
)
def test_a_device_that_stays_names_the_command_that_has_the_option(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.pth").write_bytes((SAMPLES / "train_cuda.pth").read_bytes())

    text = inside(*command, cwd=tmp_path).out.decode()
    assert "device('cuda:0')  (ckpt rehome --objects changes it)" in text


def test_shards_of_another_ending_name_the_format_alone(tmp_path: Path) -> None:
    """Nobody typed the option --format, so the error does not name it."""
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    done = inside(
        "convert", "a.pth", "--shard-size", "1KB", "-o", "b.pth", cwd=tmp_path
    )
    assert done.code == 2
    assert done.complaints == ["ckpt: b.pth: this ending is not of safetensors"]


@pytest.mark.parametrize("protocol", [2, 4])
def test_bytes_that_repeat_and_sets_as_keys_are_written(
    protocol: int, tmp_path: Path
) -> None:
    data = b"s" * 100_000
    state = {
        "w": torch.ones(2),
        "data": [data] * 20,
        "sets": {frozenset([1]): 5, frozenset([2]): torch.zeros(2)},
    }
    torch.save(state, tmp_path / "a.pth", pickle_protocol=protocol)

    done = inside(
        "convert", "a.pth", "--format", "torch-legacy", "-o", "b.pth", cwd=tmp_path
    )

    assert done.code == 0, done.err
    after = torch.load(tmp_path / "b.pth", weights_only=False)
    assert difference(state, after) is None
    assert all(each is after["data"][0] for each in after["data"])
