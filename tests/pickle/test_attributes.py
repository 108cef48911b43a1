"""The closed lists of attributes: what torch, numpy and others write is harmless, and
all else is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import BELL, made, partial
from opcodes import binary, build, call, glob, newobj, pickled, torch_zip, value
from process import ckpt
from torch import distributions, nn, optim
from torch.utils import data

from ckpt.formats import open
from ckpt.model.errors import CkptError
from ckpt.pickle.attributes import ATTRIBUTES
from ckpt.pickle.judge.known import KNOWN, MODULES
from ckpt.pickle.judge.names import USUAL

pytestmark = oracle.QUIET

SPACE = made("argparse", "Namespace", {"a": 1})
ADAM = {"param_groups": [], "defaults": {}, "state": {}}
LAYER: dict[str, Any] = {"_parameters": {}, "_buffers": {}, "_modules": {}}
LSTM = {
    **LAYER,
    "num_layers": 1,
    "bidirectional": False,
    "_all_weights": [["a"]],
    "mode": "LSTM",
    "bias": True,
}
U1 = (3, "|", None, None, None, -1, -1, 0)


def dtype(code: str, *state: Any) -> bytes:
    return call(glob("numpy", "dtype"), code, False, True) + (
        value(state) + build() if state else b""
    )


def array(kind: bytes, raw: Any) -> bytes:
    function = glob("numpy.core.multiarray", "_reconstruct")
    state = value((1, (1,), kind, False, raw))
    return (
        call(function, glob("numpy", "ndarray"), (0,), binary(b"b")) + state + build()
    )


def masked(*state: Any) -> bytes:
    function = glob("numpy.ma.core", "_mareconstruct")
    cls = glob("numpy.ma.core", "MaskedArray")
    return (
        call(function, cls, glob("numpy", "ndarray"), (0,), binary(b"b"))
        + value(state)
        + build()
    )


def fields(table: Any, size: int = 8, flags: int = 16) -> bytes:
    return dtype("V8", 3, "|", None, ("a",), table, size, 1, flags)


F8 = dtype("f8", 3, "<", *U1[2:])


def doubled_tuple(levels: int) -> bytes:
    """A tuple whose hash visits 2 to the power of the levels, which lies in slot 5."""
    program = value((1,)) + op.put(5) + op.pop()
    for _ in range(levels):
        program += (
            call(glob("builtins", "tuple"), [op.get(5), op.get(5)])
            + op.put(5)
            + op.pop()
        )
    return program


def doubled(levels: int) -> bytes:
    """A key whose hash visits 2 to the power of the levels."""
    return doubled_tuple(levels) + op.empty_dict() + op.get(5) + value(1) + op.setitem()


def deep_arrays(levels: int) -> bytes:
    program = value(1)
    for _ in range(levels):
        program = array(O8, value([program]))
    return program


O8 = dtype("O8", 3, "|", None, None, None, -1, -1, 63)
U4 = dtype("U4", 3, "<", None, None, None, 16, 4, 8)
TEXT_OF_NUMPY = {
    name: call(glob("numpy.core.multiarray", "scalar"), dtype(f"U{len(name)}", 3, "<", None, None, None, 4 * len(name), 4, 8),
               binary(name.encode("utf-32-le")))
    for name in ("__setstate__", "params")
}  # fmt: skip
"""Objects that are equal to a text, and have its hash, but are none."""
I4 = dtype("i4", 3, "<", None, None, None, -1, -1, 0)
CALLED: dict[str, bytes] = {
    "what an optimizer calls": made("torch.optim.adam", "Adam", {**ADAM, "_patch_step_function": BELL}),
    "what an optimizer calls, as data": made("torch.optim.adam", "Adam", {**ADAM, "zero_grad": 1}),
    "what a mesh calls": made("torch.distributed.device_mesh", "DeviceMesh", {"_hash": None, "_hash_key": BELL}),
    "what a specification calls": made(
        "torch.distributed.tensor._dtensor_spec", "DTensorSpec", {"_verify_shard_order": BELL}
    ),
    "another class by a name of torch": made(
        "torch.distributions.utils", "SymInt", {"node": made("argparse", "Namespace", {"is_nested_int": BELL})}
    ),
    "a method of a layer": made("torch.nn.modules.linear", "Linear", {**LAYER, "forward": BELL}),
    "a method of a layer as a partial": made("torch.nn.modules.linear", "Linear", {**LAYER, "state_dict": partial(BELL)}),
    "an object as a method of a layer": made("torch.nn.modules.linear", "Linear", {**LAYER, "children": SPACE}),
    "slots of a layer": made("torch.nn.modules.linear", "Linear", (None, LAYER)),
    "slots of an optimizer": made("torch.optim.adam", "Adam", (None, ADAM)),
    "endless layers among the parameters": made(
        "torch.nn.modules.rnn", "LSTM", {**LSTM, "num_layers": 2**40}
    ),
    "layers whose number is not there": made(
        "torch.nn.modules.rnn", "LSTM", {k: v for k, v in LSTM.items() if k != "num_layers"}
    ),
    "a method of a dict": call(glob("collections", "OrderedDict")) + value({"items": BELL}) + build(),
    "an address for numpy": call(
        glob("torch._utils", "_rebuild_parameter_with_state"),
        *(op.tensor(), True, op.ordered_dict(), {"__array_interface__": {"data": (1, False)}}),
    ),
    "objects in an OrderedDict of fields": fields(call(glob("collections", "OrderedDict"), [("a", (O8, 0))])),
    "objects in fields": fields({"a": (O8, 0)}, flags=27),
    "a field outside of its record": fields({"a": (I4, 6)}),
    "a field without a record": dtype("f8", 3, "<", None, ("a",), {"a": (I4, 0)}, -1, -1, 0),
    "another size than its code says": dtype("U1", 3, "<", None, None, None, 400, 4, 8),
    "numbers that are objects": dtype("f8", 3, "<", None, None, None, -1, -1, 63),
    "a time without a unit": dtype("M8", 3, "<", None, None, None, -1, -1, 0),
    "parts of another size": dtype("V8", 3, "|", (I4, (3,)), None, None, 8, 1, 16),
    "raw bytes of objects": array(O8, binary(b"A" * 8)),
    "a dtype that changes afterwards": array(dtype("u1", *U1) + op.put(9), binary(b"A"))
    + op.get(9) + value(U1) + build() + op.pop(),
    "items of an array that come later": op.empty_list() + op.put(8) + op.pop() + array(O8, op.get(8))
    + op.get(8) + value(1) + op.append() + op.pop(),
    "a masked array of objects": masked(1, (1,), O8, False, [1], binary(b"\0"), None),
    "a masked array filled by a tensor": masked(1, (1,), dtype("u1", *U1), False, binary(b"\0"), binary(b"\0"), op.tensor()),
    "a masked array filled by an object": masked(
        1, (1,), U4, False, binary(bytes(16)), binary(b"\0"), array(O8, value([made("omegaconf.dictconfig", "DictConfig", {
            "_metadata": None, "_content": {}, "_is_interpolation": partial(BELL)})]))),
    "a masked array filled by dicts in each other": masked(
        1, (1,), U4, False, binary(bytes(16)), binary(b"\0"), array(O8, value([{}]))),
    "a short state of a masked array": masked(1, (1,), dtype("u1", *U1), False, binary(b"\0"), binary(b"\0")),
    "a dict that is filled after its call": op.empty_dict() + op.put(8) + op.pop()
    + call(glob("collections", "OrderedDict"), op.get(8)) + op.get(8) + value("a") + value(1) + op.setitem() + op.pop(),
    # --- values that hide objects ---
    "an object behind the tag of a list": made("torch.optim.adam", "Adam", {**ADAM, "defaults": call(
        glob("torch.jit._pickle", "restore_type_tag"), made("argparse", "Namespace", {"setdefault": BELL}), "a"
    )}),
    "an object in an array of objects": made("torch.optim.adam", "Adam", {**ADAM, "param_groups": array(
        O8, value([made("argparse", "Namespace", {"setdefault": BELL})])
    )}),
    "an object in a nested pickle": made("torch.optim.adam", "Adam", {**ADAM, "defaults": call(
        glob("torch.storage", "_load_from_bytes"),
        binary(op.legacy(pickled(made("argparse", "Namespace", {"setdefault": BELL})), {})),
    )}),
    "an item that a dict of attributes calls": glob("easydict", "EasyDict") + value(()) + newobj()
    + value("items") + BELL + op.setitem(),
    **{
        f"an item of {name} whose name is a scalar of numpy": glob(*name.rsplit(".", 1)) + value(()) + newobj()
        + TEXT_OF_NUMPY["__setstate__"] + partial(BELL) + op.setitem() + value({"a": 1}) + build()
        for name in ("easydict.EasyDict", "yacs.config.CfgNode", "lightning.fabric.utilities.data.AttributeDict")
    },
    "an item whose name a call makes": glob("yacs.config", "CfgNode") + value(()) + newobj()
    + call(glob("copyreg", "__newobj__"), glob("numpy", "str_"), "__setstate__") + partial(BELL) + op.setitem(),
    "parameters whose name is a scalar of numpy": made(
        "torch.optim.adam", "Adam", {**ADAM, "param_groups": [
            op.empty_dict() + TEXT_OF_NUMPY["params"] + op.tensor(size=(2**24,), stride=(0,)) + op.setitem()]}),
    "a pair that a dict of attributes calls": call(glob("easydict", "EasyDict"), {"items": BELL}),
    "the class of a dict of attributes": glob("yacs.config", "CfgNode") + value(()) + newobj()
    + value("__class__") + glob("torch.nn.modules.linear", "Linear") + op.setitem(),
    # --- what costs more than its bytes ---
    "a record as a key": op.empty_dict() + call(
        glob("torch.nn.modules.module", "_IncompatibleKeys"), [], []
    ) + value(1) + op.setitem(),
    "a dtype with fields as a key": op.empty_dict() + fields({"a": (I4, 0)}) + value(1) + op.setitem(),
    "fields over each other": dtype(
        "V4", 3, "|", None, ("a", "b"), {"a": (I4, 0), "b": (I4, 0)}, 4, 1, 16
    ),
    "arrays of objects in each other": deep_arrays(40),
    "a long expression": call(glob("re", "_compile"), "a" * 3_000, 32),
    "many expressions": value([call(glob("re", "_compile"), "a" * 900, 32) for _ in range(3)]),
    "numbers that are texts": made("random", "Random", (2, ("%2000000000d",) * 3, None)),
    "an element without its bytes": call(glob("numpy.core.multiarray", "scalar"), dtype("V9999999")),
    "an array by another letter": call(
        glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), (), "(16000,16000)O"
    ),
    "a set of tuples that take ages to hash": doubled_tuple(40) + call(glob("builtins", "set"), [op.get(5)]),
    "a mesh as a key": op.empty_dict()
    + made("torch.distributed.device_mesh", "DeviceMesh", {"_thread_id": None})
    + value(1) + op.setitem(),
    "many numbers that a call makes as keys": op.empty_dict()
    + b"".join(glob("uuid", "UUID") + value(()) + newobj() + value({"int": number}) + build() + value(1) + op.setitem()
               for number in range(2_001)),
    "a state of many objects": value({str(number): 1 for number in range(20_000)}) + op.put(7) + op.pop()
    + (glob("argparse", "Namespace") + value(()) + newobj() + op.get(7) + build() + op.pop()) * 600 + value(1),
    "groups of many optimizers": value([{"params": [None] * 9_000}] * 10) + op.put(7) + op.pop()
    + value([made("torch.optim.adam", "Adam", {**ADAM, "param_groups": op.get(7)}) for _ in range(120)]),
    "layers of many recurrent layers": value(
        [made("torch.nn.modules.rnn", "LSTM", {**LSTM, "num_layers": 10_000, "proj_size": 0}) for _ in range(20)]
    ),
    "copies of a shared array": array(dtype("u1", *U1), binary(bytes(100_000))).replace(
        value((1,)), value((100_000,)), 1) + op.put(7) + op.pop()
    + value([call(glob("torch._utils", "_rebuild_device_tensor_from_numpy"), op.get(7), glob("torch", "complex128"),
                  "cpu", False) for _ in range(9)]),
    "fields over each other with a title": dtype(
        "V8", 3, "|", None, ("a", "b"), {"a": (F8, 0, "t"), "b": (F8, 0), "t": (F8, 0, "t")}, 8, 1, 16),
    "many equal hashes": call(glob("builtins", "set"), [number * (2**61 - 1) for number in range(2, 3_000)]),
}  # fmt: skip


def write_beside_weights(path: Path, program: bytes) -> None:
    """Write a file of torch with a model and what a program makes."""
    state = {"model": {"w.weight": op.tensor()}, "x": program}
    path.write_bytes(torch_zip(pickled(state)))


def imports(path: Path, program: bytes) -> dict[str, Any]:
    """The names of a file that are not just known, with their groups and attributes."""
    write_beside_weights(path, program)
    with open(str(path)) as checkpoint:
        return {
            f"{row.module}.{row.name}": (row.group, row.attributes)
            for row in checkpoint.imports
            if row.group != "known"
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [lambda program: program, lambda program: program + op.pop() + op.none()]
)
@pytest.mark.parametrize("name", CALLED)
def test_what_torch_or_numpy_act_on_is_an_error(
    name: str, shape: Any, tmp_path: Path
) -> None:
    rows = imports(tmp_path / "x.pth", shape(CALLED[name]))
    assert "called" in {group for group, _ in rows.values()}
    done = ckpt("lint", tmp_path / "x.pth", "--level", "error")
    assert done.code == 1 and b"DANGER" in done.out
    assert b"torch.load" not in ckpt("inspect", tmp_path / "x.pth").out


COPIES = {
    "many copies": value(list(range(2_000)))
    + op.put(7)
    + op.pop()
    + value([call(glob("builtins", "tuple"), op.get(7)) for _ in range(6_000)]),
    "many copies of a few items": value(list(range(999)))
    + op.put(7)
    + op.pop()
    + value([call(glob("builtins", "set"), op.get(7)) for _ in range(11_000)]),
}
"""Programs in which many calls copy one container."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [lambda program: program, lambda program: program + op.pop() + op.none()]
)
@pytest.mark.parametrize("name", COPIES)
def test_many_copies_are_an_error_or_refused(
    name: str, shape: Any, tmp_path: Path
) -> None:
    """Copies that the tree of the file shows are charged to its memory."""
    write_beside_weights(tmp_path / "x.pth", shape(COPIES[name]))
    done = ckpt("lint", tmp_path / "x.pth", "--level", "error")
    if b"needs too much memory" in done.err:
        assert done.code == 2
    else:
        assert done.code == 1 and b"DANGER" in done.out
    assert b"torch.load" not in ckpt("inspect", tmp_path / "x.pth").out


def test_an_attribute_that_torch_calls_is_named(tmp_path: Path) -> None:
    rows = imports(tmp_path / "x.pth", CALLED["what an optimizer calls"])
    assert rows == {"torch.optim.adam.Adam": ("called", ("_patch_step_function",))}
    done = ckpt("inspect", tmp_path / "x.pth")
    assert b"sets _patch_step_function on torch.optim.adam.Adam" in b" ".join(
        done.out.split()
    )
    row = next(
        row
        for row in json.loads(ckpt("inspect", tmp_path / "x.pth", "--json").out)[
            "imports"
        ]
        if row["name"] == "Adam"
    )
    assert row["attributes"] == ["_patch_step_function"] and row["group"] == "called"


ODD: dict[str, tuple[bytes, str, str]] = {
    "a scheduler": (
        made("torch.optim.lr_scheduler", "StepLR", {"gamma": 0.1, "hint": 1}),
        "StepLR",
        "hint",
    ),
    "an optimizer": (
        made("torch.optim.adam", "Adam", {**ADAM, "hint": 1}),
        "Adam",
        "hint",
    ),
    "a scaler": (
        made("torch.amp.grad_scaler", "GradScaler", {"_scale": None, "hint": 1}),
        "GradScaler",
        "hint",
    ),
    "a distribution": (
        made("torch.distributions.normal", "Normal", {"loc": 1.0, "hint": 1}),
        "Normal",
        "hint",
    ),
    "a layer with an object": (
        made("torch.nn.modules.linear", "Linear", {**LAYER, "config": SPACE}),
        "Linear",
        "config",
    ),
    "an object where data is": (
        made("torch.optim.lr_scheduler", "StepLR", {"gamma": SPACE}),
        "StepLR",
        "gamma",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_attribute_that_nobody_writes_is_a_warning(
    name: str, tmp_path: Path
) -> None:
    program, cls, attribute = ODD[name]
    path = tmp_path / "x.pth"
    assert imports(path, program)
    (rows,) = (row for row in imports(path, program).items() if row[0].endswith(cls))
    assert rows[1] == ("odd", (attribute,))
    document = json.loads(ckpt("inspect", path, "--json").out)
    (finding,) = (
        row for row in document["findings"] if row["code"] == "unknown-attribute"
    )
    assert (
        finding["level"] == "warning"
        and attribute in finding["message"]
        and "--plain" in finding["hint"]
    )
    assert (
        document["load"] is None and "do not load it as it is" in document["load_note"]
    )
    assert b"not as it is" in ckpt("ls", path).out
    assert (
        ckpt("lint", path).code == 1
        and ckpt("lint", path, "--level", "error").code == 0
    )
    assert b"do not load it as it is" in b" ".join(ckpt("inspect", path).out.split())


def test_a_writer_says_what_it_passes_on(tmp_path: Path) -> None:
    imports(tmp_path / "x.pth", ODD["a scheduler"][0])
    done = ckpt("rehome", tmp_path / "x.pth", "-o", tmp_path / "y.pth")
    assert done.code == 0 and b"sets torch.optim.lr_scheduler.StepLR.hint" in b" ".join(
        done.err.split()
    )
    done = ckpt("convert", tmp_path / "x.pth", "--plain", "-o", tmp_path / "z.pth")
    assert done.code == 0 and torch.load(tmp_path / "z.pth")["x"]["hint"] == 1


def decorated(thing: Any, **attributes: Any) -> Any:
    vars(thing).update(attributes)
    return thing


REFUSED: dict[str, bytes] = {
    "a tuple of tuples as a key": doubled(40),
    "keys with one hash": value({number * (2**61 - 1): 1 for number in range(2, 3_000)}),
    "large tuples as keys": op.empty_dict() + op.put(3) + op.pop()
    + value(tuple(value((number,)) for number in range(1_000))) + op.put(4) + op.pop()
    + b"".join(op.get(3) + value((op.get(4),) * 40) + op.put(6) + value(1) + op.setitem() + op.pop() for _ in range(600)),
    "a view that a device makes whole": call(
        glob("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
        *(op.tensor(size=(2**29,), stride=(0,)), glob("torch", "float64"), "cpu", False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_costs_too_much_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError):
        imports(tmp_path / "x.pth", REFUSED[name])


WEIGHT = nn.Parameter(torch.ones(2))
OPTIMIZER = optim.SGD([WEIGHT], lr=0.1)
WRITTEN: dict[str, Any] = {
    "a layer with data": decorated(nn.Linear(2, 2), tag="a", sizes=[1, (2,)], scale=torch.ones(2), type="b"),
    "a layer with a function": decorated(nn.Sequential(nn.Linear(2, 2)), activation=torch.tanh, act=nn.functional.relu),
    "a transformer": nn.TransformerEncoderLayer(4, 2, 8, activation="gelu"),
    "an LSTM": nn.LSTM(2, 2, num_layers=3, bidirectional=True, proj_size=1),
    "attention": nn.MultiheadAttention(4, 2),
    "a tensor with attributes": decorated(nn.Parameter(torch.ones(2)), tag="a", partition_dim=0, allreduce=True),
    "a cosine": optim.lr_scheduler.CosineAnnealingLR(OPTIMIZER, 10),
    "one cycle": optim.lr_scheduler.OneCycleLR(OPTIMIZER, max_lr=1.0, total_steps=10),
    "a chain": optim.lr_scheduler.SequentialLR(
        OPTIMIZER, [optim.lr_scheduler.ConstantLR(OPTIMIZER), optim.lr_scheduler.ExponentialLR(OPTIMIZER, 0.9)], [2]
    ),
    "a scaler": torch.amp.GradScaler("cpu"),
    "a normal distribution": distributions.Normal(torch.zeros(2), torch.ones(2)),
    "a transformed one": distributions.LogNormal(0.0, 1.0),
    "a dataset": data.Subset(data.TensorDataset(torch.ones(3)), range(2)),
    "a sampler": data.RandomSampler(range(3)),
    "a record": np.zeros(2, dtype=[("a", "f4"), ("b", "i2", (3,))]),
    "a matrix": np.zeros((2, 2)).view(np.matrix),
    "times": np.array(["2020-01-01"], dtype="M8[D]"),
    "texts": np.array(["a", "bc"]),
    "objects": np.array([None, {"a": 1}], dtype=object),
    "a masked array": np.ma.masked_array([1.0, 2.0], mask=[True, False], fill_value=3.0),
    "a layer that is not ready": nn.Sequential(nn.LazyLinear(3), nn.LazyConv2d(3, 2), nn.LazyBatchNorm1d()),
    "keys of many kinds": {("a", 1): 1, np.int64(3): 2, torch.float32: 3, b"a": 4, frozenset([1, 2]): 5, 2**70: 6},
    "tags": [[1, 2], {"a": torch.Size([1, 2])}],
    "an averaged model": optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_harmless(name: str, legacy: bool, tmp_path: Path) -> None:
    torch.save(
        {"x": WRITTEN[name]},
        tmp_path / "x.pth",
        _use_new_zipfile_serialization=not legacy,
    )
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert {
            f"{row.module}.{row.name}": row.attributes
            for row in checkpoint.imports
            if row.group != "known"
        } == {}


def test_the_usual_names_are_on_the_list() -> None:
    assert USUAL <= KNOWN and "torch.FloatStorage" in USUAL


def test_the_lists_name_known_classes() -> None:
    assert set(ATTRIBUTES) <= KNOWN | MODULES and len(ATTRIBUTES) > 250
    assert ATTRIBUTES["torch.optim.lr_scheduler.StepLR"]["optimizer"]
    assert not ATTRIBUTES["torch.optim.lr_scheduler.StepLR"]["gamma"]


def test_a_model_that_was_scripted_is_no_danger(tmp_path: Path) -> None:
    """`torch.jit.script` leaves an empty `__overloads__` on each layer."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    torch.jit.script(model)
    assert vars(model)["__overloads__"] == {}
    torch.save(model, tmp_path / "x.pth")

    done = ckpt("lint", tmp_path / "x.pth", "--level", "error")

    assert done.code == 0, done


def test_overloads_that_are_not_empty_are_named(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    vars(model)["__overloads__"] = {"forward": ["extra_repr"]}
    torch.save(model, tmp_path / "x.pth")

    done = ckpt("lint", tmp_path / "x.pth", "--level", "error")

    assert done.code == 1 and b"sets __overloads__ on" in done.out
