"""`--plain`: objects of any class become what they hold, tensors of classes and
quantized modules their parts.
"""

from __future__ import annotations

import array
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import logging
import operator
import pathlib
import pickletools
import re
import sys
import types
import uuid
import zipfile
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rewriting
import torch
from inside import inside
from process import ROOT, check_error
from quantized import MODELS, contents, dynamic, static
from torch import nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

from ckpt import formats
from ckpt.commands.rewriting.report import Change, RewriteReport
from ckpt.formats import save
from ckpt.model.dtypes import BY_NAME, BY_STORAGE
from ckpt.model.errors import LossError
from ckpt.pickle.judge.names import python3_name

_PATHS = pathlib.PurePosixPath.__module__
"""The module that pickles name: `pathlib._local` in Python 3.13."""

pytestmark = pytest.mark.filterwarnings("ignore")


class Pair(enum.Enum):
    BOTH = (1, "x")


class ByName(enum.Enum):
    RED = 1

    def __reduce_ex__(self, protocol: int) -> Any:
        return getattr, (ByName, self.name)


class Bits(enum.IntFlag):
    R = 1
    W = 2


@dataclass(frozen=True)
class Frozen:
    a: int
    b: Any


@dataclass(slots=True)
class Slotted:
    a: int
    b: Any


class Odd:
    """Its state is a tuple."""

    def __getstate__(self) -> Any:
        return (1, "two", torch.ones(2))

    def __setstate__(self, state: Any) -> None:
        pass


class WithSlots:
    __slots__ = ("x", "y")

    def __init__(self) -> None:
        self.x, self.y = 1, torch.ones(2)


class Keyword:
    def __new__(cls, *, a: int) -> Keyword:
        return object.__new__(cls)

    def __getnewargs_ex__(self) -> Any:
        return (), {"a": 1}


class Names(set):  # type: ignore[type-arg]
    pass


class OldNames(set):  # type: ignore[type-arg]
    def __reduce__(self) -> Any:
        return type(self), (list(self),), {}


class Note(torch.Tensor):
    pass


def noted() -> torch.Tensor:
    tensor = torch.ones(2).as_subclass(Note)
    tensor.note, tensor.extra = "hi", torch.zeros(3)  # type: ignore[attr-defined]
    return tensor


def plain(
    thing: Any, tmp_path: Path, protocol: int = 2, **options: Any
) -> tuple[Any, RewriteReport]:
    """The thing as `convert --plain` writes it and weights_only loads it, and what the
    report says.
    """
    source = rewriting.saved(
        {"it": thing, "w": torch.ones(1)}, tmp_path / "a.pt", pickle_protocol=protocol
    )
    with formats.open(str(source)) as checkpoint:
        report = rewriting.convert(
            checkpoint, save.own_format(checkpoint), plain=True, **options
        )
        rewriting.write(report.result, tmp_path / "b.pt")
    return torch.load(tmp_path / "b.pt", weights_only=True), report


STAMP = datetime.timezone(datetime.timedelta(hours=2))
SAYS: dict[str, tuple[Any, Any, str | None]] = {
    "Fraction": (fractions.Fraction(3, 4), "3/4", "fractions.Fraction"),
    "whole Fraction": (fractions.Fraction(3), ("3", "3/1"), "fractions.Fraction"),
    "dtype": (torch.float16, torch.float16, None),
    "narrow dtype": (torch.float8_e4m3fn, torch.float8_e4m3fn, None),
    "key": ({torch.float16: 1}, {torch.float16: 1}, None),
    "frozenset": (frozenset([1, 2]), {1, 2}, "frozenset"),
    "complex": (np.complex64(1 + 2j), 1 + 2j, "numpy.complex64"),
    "pattern": (
        re.compile("a+", re.IGNORECASE),
        {"pattern": "a+", "flags": 34},
        "re.Pattern",
    ),
    "UUID": (uuid.UUID(int=5), str(uuid.UUID(int=5)), "uuid.UUID"),
    "timezone": (STAMP, "+02:00", "datetime.timezone"),
    "zone": (zoneinfo.ZoneInfo("UTC"), "UTC", "zoneinfo.ZoneInfo"),
    "version": (
        torch.__version__,
        str(torch.__version__),
        "torch.torch_version.TorchVersion",
    ),
    "day": (np.datetime64("2020-01-01"), 18262, "numpy.datetime64[D]"),
    "hours": (np.timedelta64(5, "25h"), 5, "numpy.timedelta64[25h]"),
    "enum of a tuple": (Pair.BOTH, (1, "x"), f"{__name__}.Pair"),
    "enum by name": (ByName.RED, f"{__name__}.ByName.RED", "a name"),
    "flag": (Bits.R | Bits.W, 3, f"{__name__}.Bits"),
    "logger": (logging.getLogger("train"), "train", "logging.Logger"),
    "function of torch": (
        torch.relu,
        "torch._C._VariableFunctionsClass.relu",
        "a name",
    ),
    "set of a class": (Names([1]), [1], f"{__name__}.Names"),
    "set of a class in Python 3.10": (OldNames([1]), [1], f"{__name__}.OldNames"),
    "arguments by name": (Keyword(a=1), {"a": 1}, f"{__name__}.Keyword"),
    "exception": (ValueError("a", 2), ["a", 2], None),
    "getter": (operator.itemgetter(1), 1, "operator.itemgetter"),
    "partial": (
        functools.partial(functional.gelu, 1, approximate="tanh"),
        {
            "func": "torch._C._nn.gelu",
            "args": (1,),
            "keywords": {"approximate": "tanh"},
        },
        "functools.partial",
    ),
    "decimal": (decimal.Decimal("1.50"), "1.50", "decimal.Decimal"),
    "path": (pathlib.PurePosixPath("/a/b"), "/a/b", f"{_PATHS}.PurePosixPath"),
    "range": (range(1, 5, 2), "range(1, 5, 2)", "range"),
    "slice": (slice(1, 5, 2), "slice(1, 5, 2)", "slice"),
    "deque": (collections.deque([1], 3), [1], "deque"),
    "SimpleNamespace": (types.SimpleNamespace(a=1), {"a": 1}, "types.SimpleNamespace"),
}


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("name", SAYS)
def test_objects_become_what_they_say(
    name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(
        copyreg.dispatch_table, ValueError, raising=False
    )  # Dask's, where it was imported
    thing, expected, kind = SAYS[name]
    found, report = plain(thing, tmp_path, protocol)

    assert found["it"] == expected or (
        type(expected) is tuple and found["it"] in expected
    )
    assert type(found["it"]) in (str, int, complex, dict, list, tuple, set, torch.dtype)
    made = [change.before for change in report.changes if change.kind == "plain"]
    assert kind is None or kind in made
    assert not report.left_out


@pytest.mark.parametrize("protocol", [2, 5])
def test_objects_with_tensors_keep_them(protocol: int, tmp_path: Path) -> None:
    two = torch.ones(2)
    thing = {
        "frozen": Frozen(1, two),
        "slotted": Slotted(1, two),
        "odd": Odd(),
        "slots": WithSlots(),
        "partial": functools.partial(functional.linear, weight=two),
    }
    found, _ = plain(thing, tmp_path, protocol)

    it = found["it"]
    assert it["frozen"]["a"] == 1 and torch.equal(it["frozen"]["b"], two)
    slotted = it["slotted"]
    assert torch.equal(slotted["b"] if isinstance(slotted, dict) else slotted[1], two)
    assert it["odd"][:2] == [1, "two"] and torch.equal(it["odd"][2], two)
    assert it["slots"]["x"] == 1 and torch.equal(it["slots"]["y"], two)
    assert torch.equal(it["partial"]["keywords"]["weight"], two)


def test_generators_keep_their_state(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    numpys = np.random.RandomState(1), np.random.default_rng(1)
    found, report = plain(
        {"torch": generator, "old": numpys[0], "new": numpys[1]}, tmp_path
    )

    made = found["it"]["torch"]
    again = torch.Generator()
    again.set_state(made["state"])
    assert torch.equal(
        torch.rand(3, generator=again), torch.rand(3, generator=generator)
    )
    assert made["seed"] == 3 and made["device"] == "cpu"
    assert (
        found["it"]["old"]["state"]["key"].tolist() == numpys[0].get_state()[1].tolist()
    )
    assert found["it"]["new"]["state"] == numpys[1].bit_generator.state["state"]
    assert {
        "torch.Generator",
        "numpy.random.RandomState",
        "numpy.random.Generator",
    } <= {change.before for change in report.changes}


def test_times_of_numpy_are_counts_of_their_unit(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "NaT"], dtype="M8[D]")
    found, report = plain(days, tmp_path)

    assert (
        found["it"].tolist() == days.astype("i8").tolist()
        and found["it"].dtype == torch.int64
    )
    assert "numpy.ndarray of datetime64[D]" in [
        change.before for change in report.changes
    ]


def made_by_a_function() -> Any:
    return None


def test_the_result_of_a_function_is_refused(tmp_path: Path) -> None:
    """What it holds is not in the file: a name in small letters is no class."""

    class Given:
        def __reduce__(self) -> Any:
            return made_by_a_function, (1, torch.ones(2))

    with pytest.raises(LossError, match=r"it \(.*test_plain\.made_by_a_function\)"):
        plain(Given(), tmp_path)


def test_the_result_of_a_partial_function_is_refused(tmp_path: Path) -> None:
    """Protocol 2 makes some objects by a partial function, which it calls without
    arguments. This one is called with one.
    """

    class Given:
        def __reduce__(self) -> Any:
            return functools.partial(made_by_a_function, 1), (torch.ones(2),)

    with pytest.raises(LossError, match=r"it \("):
        plain(Given(), tmp_path)


def test_a_small_array_of_python(tmp_path: Path) -> None:
    assert plain(array.array("f", [1, 2]), tmp_path)[0]["it"] == ["f", [1.0, 2.0]]


# --- tensors of classes ---------------------------------------------------------------


class Granularity(enum.Enum):
    ROW = "row"


class Int8Tensor(torch.Tensor):
    """Pickles as torchao's class of this name: int8 data and scales, what describes
    them, an outer dtype.
    """

    @staticmethod
    def __new__(
        cls, qdata: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
    ) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=dtype)  # type: ignore[attr-defined]

    def __init__(
        self, qdata: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self.qdata, self.scale, self.block_size = qdata, scale, [1, 4]
        self.granularity, self.zero_point = Granularity.ROW, None

    def __tensor_flatten__(self) -> Any:
        return ["qdata", "scale"], None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0]


@pytest.fixture
def torchao() -> Iterator[Callable[[torch.Tensor, torch.Tensor], Any]]:
    """The class under torchao's name while files are written."""
    module = types.ModuleType("torchao.quantization")
    module.Int8Tensor = Int8Tensor  # type: ignore[attr-defined]
    was = Int8Tensor.__module__
    Int8Tensor.__module__ = module.__name__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
        patch.setitem(sys.modules, "torchao.quantization", module)
        yield lambda qdata, scale: Int8Tensor(qdata, scale, torch.bfloat16)
    Int8Tensor.__module__ = was


QDATA, SCALE = (
    torch.arange(-4, 4, dtype=torch.int8).reshape(2, 4),
    torch.tensor([[0.5], [0.25]]),
)
PARTS = ("dtype", "shape", "qdata", "scale", "block_size", "granularity")


@pytest.mark.parametrize("command", ["slim", "convert --plain"])
def test_wrappers_become_their_parts(
    command: str, torchao: Any, tmp_path: Path
) -> None:
    bias = torch.ones(2)
    state = collections.OrderedDict(
        {"fc.weight": torchao(QDATA, SCALE), "fc.bias": bias}
    )
    rewriting.saved(state, tmp_path / "a.pt")

    done = inside(*command.split(), "a.pt", "-o", "b.pt", cwd=tmp_path)

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert done.code == 0 and list(found) == [
        *(f"fc.weight.{part}" for part in PARTS),
        "fc.bias",
    ]
    assert torch.equal(found["fc.weight.qdata"], QDATA) and torch.equal(
        found["fc.weight.scale"], SCALE
    )
    assert found["fc.weight.dtype"] == "torch.bfloat16" and found[
        "fc.weight.shape"
    ] == (2, 4)
    assert (
        found["fc.weight.block_size"] == [1, 4]
        and found["fc.weight.granularity"] == "row"
    )
    listed = ", ".join(f".{part}" for part in PARTS)
    assert (
        f"a tensor of torchao.quantization.Int8Tensor → {listed}   1 tensor"
        in re.sub(" {4,}", "   ", done.out.decode())
    )


def test_parts_whose_names_are_taken_lie_in_a_dict(
    torchao: Any, tmp_path: Path
) -> None:
    it = {
        "w": torchao(QDATA, SCALE),
        "w.scale": torch.zeros(1),
        "list": [torchao(QDATA, SCALE)],
    }
    found, report = plain(it, tmp_path)

    assert list(found["it"]) == ["w", "w.scale", "list"] and found["it"][
        "w.scale"
    ].tolist() == [0]
    assert torch.equal(found["it"]["w"]["qdata"], QDATA) and torch.equal(
        found["it"]["list"][0]["scale"], SCALE
    )
    assert [change.number for change in report.changes if change.kind == "apart"] == [2]


def test_wrappers_in_wrappers_have_longer_names(torchao: Any, tmp_path: Path) -> None:
    found, _ = plain(torchao(QDATA, TwoTensor(SCALE, 2 * SCALE)), tmp_path)

    assert torch.equal(found["it.qdata"], QDATA)
    assert torch.equal(found["it.scale.a"], SCALE) and torch.equal(
        found["it.scale.b"], 2 * SCALE
    )


def test_a_wrapper_that_occurs_often_is_written_once(
    torchao: Any, tmp_path: Path
) -> None:
    one = torchao(QDATA, SCALE)
    found, _ = plain({"a": one, "b": one}, tmp_path)

    assert found["it"]["a.qdata"].data_ptr() == found["it"]["b.qdata"].data_ptr()


def test_many_parts_do_not_multiply(
    torchao: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.commands.convert.plain._SPREAD", 10)
    one = torchao(QDATA, SCALE)
    found, _ = plain({str(index): one for index in range(5)}, tmp_path)

    it = found["it"]
    assert list(it) == [
        *(f"{index}.{part}" for index in range(2) for part in PARTS),
        "2",
        "3",
        "4",
    ]
    assert it["2"] is it["3"] and torch.equal(it["4"]["qdata"], QDATA)


def test_attributes_of_a_subclass_stand_beside_it(tmp_path: Path) -> None:
    found, report = plain({"w": noted()}, tmp_path)

    assert (
        list(found["it"]) == ["w", "w.note", "w.extra"]
        and type(found["it"]["w"]) is torch.Tensor
    )
    assert found["it"]["w.note"] == "hi" and found["it"]["w.extra"].tolist() == [
        0,
        0,
        0,
    ]
    assert (
        Change("apart", f"a tensor of {__name__}.Note", ".note, .extra", 1, "tensor")
        in report.changes
    )


def test_jagged_tensors_become_their_parts(tmp_path: Path) -> None:
    rows = torch.nested.nested_tensor(
        [torch.ones(2), torch.zeros(3)], layout=torch.jagged
    )
    found, _ = plain(rows, tmp_path)

    assert torch.equal(found["it.values"], rows.values()) and torch.equal(
        found["it.offsets"], rows.offsets()
    )


class Quantizer(nn.Module):
    """Keeps scales on its Parameter, as bitsandbytes does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(QDATA, requires_grad=False)
        self.weight.CB = self.weight.data  # type: ignore[attr-defined]
        self.weight.SCB = SCALE  # type: ignore[attr-defined]
        self.weight.quant_state = types.SimpleNamespace(absmax=SCALE[0], blocksize=64)  # type: ignore[attr-defined]
        self.weight.module = self  # type: ignore[attr-defined]
        self.plain = nn.Parameter(torch.ones(1))
        self.plain.partition = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["slim", "convert --plain"])
def test_scales_on_the_parameters_of_a_module_are_kept(
    command: str, tmp_path: Path
) -> None:
    rewriting.saved(nn.Sequential(Quantizer()), tmp_path / "a.pt")

    assert inside(*command.split(), "a.pt", "-o", "b.pt", cwd=tmp_path).code == 0

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(found) == [
        "0.weight",
        "0.weight.SCB",
        "0.weight.quant_state",
        "0.plain",
    ]
    assert torch.equal(found["0.weight"], QDATA) and torch.equal(
        found["0.weight.SCB"], SCALE
    )
    assert found["0.weight.quant_state"]["blocksize"] == 64
    assert torch.equal(found["0.weight.quant_state"]["absmax"], SCALE[0])


# --- quantized modules ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", ["slim", "convert --plain"])
@pytest.mark.parametrize("name", MODELS)
def test_quantized_modules_give_their_state_dict(
    name: str, command: str, tmp_path: Path
) -> None:
    model = MODELS[name]()
    rewriting.saved(model, tmp_path / "a.pt")

    done = inside(*command.split(), "a.pt", "-o", "b.pt", cwd=tmp_path)

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    expected = model.state_dict()
    assert list(found) == list(expected)
    assert {key: contents(value) for key, value in found.items()} == {
        key: contents(value) for key, value in expected.items()
    }
    assert "not in the state dict" not in done.out.decode()
    assert (
        found._metadata == {key: expected._metadata[key] for key in found._metadata}
        and found._metadata
    )
    if name != "dynamic":  # an LSTM loads only the packed objects of torch itself
        MODELS[name]().load_state_dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_module", [True, False])
def test_safetensors_hold_quantized_tensors_in_parts(
    name: str, is_module: bool, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    model = MODELS[name]()
    state = model.state_dict()
    rewriting.saved(model if is_module else state, tmp_path / "a.pt")

    command = ["convert", "a.pt", "-o", "b.safetensors"]
    done = inside(*command, cwd=tmp_path)
    values = [
        key for key, value in state.items() if not isinstance(value, torch.Tensor)
    ]
    if not is_module and values:
        check_error(done, "(not a tensor)")
        done = inside(*command, "--drop-other", cwd=tmp_path)

    assert done.code == 0, done
    found = load_file(tmp_path / "b.safetensors")
    for key, value in state.items():
        for number, part in enumerate(value if isinstance(value, tuple) else [value]):
            at = f"{key}.{number}" if isinstance(value, tuple) else key
            if isinstance(part, torch.Tensor):
                assert torch.equal(
                    dequantized(found, at), part.dequantize().detach()
                ), at


def dequantized(found: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The numbers of a tensor that safetensors hold, by the parts of a
    quantized one.
    """
    if name in found:
        return found[name]
    whole = found[f"{name}.int_repr"].double()
    if f"{name}.scale" in found:
        return ((whole - found[f"{name}.zero_point"]) * found[f"{name}.scale"]).float()
    assert found[f"{name}.axis"].item() == 0
    shape = (-1, *[1] * (whole.dim() - 1))
    scales, zeros = (
        found[f"{name}.scales"].reshape(shape),
        found[f"{name}.zero_points"].reshape(shape),
    )
    if scales.dtype == torch.float32:  # of an embedding: the zero points are floats
        return (whole.float() - zeros) * scales
    return ((whole - zeros) * scales).float()


def test_safetensors_keep_the_zero_point(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.quint8)
    rewriting.saved({"a.weight": whole, "b.weight": torch.ones(2)}, tmp_path / "a.pt")

    assert inside("convert", "a.pt", "-o", "b.safetensors", cwd=tmp_path).code == 0

    found = load_file(tmp_path / "b.safetensors")
    assert torch.equal(dequantized(found, "a.weight"), whole.dequantize())
    assert found["a.weight.int_repr"].dtype == torch.uint8


def test_inspect_names_the_parts_of_quantized_modules(tmp_path: Path) -> None:
    model = static("fbgemm")
    rewriting.saved(model, tmp_path / "a.pt")
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        rows = {entry.name: entry for entry in checkpoint.tensors}

    weight = rows["fc._packed_params._packed_params.0"]
    assert set(rows) == {
        "q.scale",
        "q.zero_point",
        "conv.weight",
        "conv.bias",
        "fc._packed_params._packed_params.0",
    }
    assert (
        weight.registered
        and weight.tensor.dtype.name == "qint8"
        and weight.tensor.shape == (2, 4)
    )
    assert (
        rows["conv.weight"].tensor.dtype.name == "qint8"
        and rows["conv.bias"].registered
    )


def test_packed_parameters_of_a_state_dict_are_what_they_hold(tmp_path: Path) -> None:
    state = dynamic().state_dict()
    found, report = plain(state, tmp_path)

    key = "lstm._all_weight_values.0.param"
    assert contents(found["it"][key]) == contents(state[key])
    assert "torch.classes.rnn.CellParamsBase" in [
        change.before for change in report.changes
    ]


# --- older torches --------------------------------------------------------------------

NOT_IN_2_5 = {"builtins.set", "builtins.complex"}
"""What weights_only of torch 2.13 takes and that of 2.5 does not, of what plain files
hold.
"""
NOT_IN_2_0 = NOT_IN_2_5 | {
    "_codecs.encode",
    "builtins.bytearray",
    "collections.Counter",
    "torch.device",
    "torch.per_tensor_affine",
    *(
        f"torch._utils._rebuild_{kind}"
        for kind in ("qtensor", "nested_tensor", "parameter_with_state", "tensor_v3")
    ),
}
KINDS = {
    "builtins.set": "sets",
    "builtins.complex": "complex numbers",
    "_codecs.encode": "bytes",
    "collections.Counter": "Counter",
    "torch.device": "`torch.device`",
    "torch._utils._rebuild_qtensor": "quantized",
    "torch.per_tensor_affine": "quantized",
    "torch._utils._rebuild_nested_tensor": "nested tensors",
    "torch._utils._rebuild_parameter_with_state": "attributes of Parameters",
    "torch._utils._rebuild_tensor_v3": "uint16, uint32, uint64, float8",
}
_DTYPES = {
    "complex32",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
}
"""The dtypes that torch 2.0 takes as values."""


def names_in(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        data = archive.read(
            next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        )
    names = set()
    for op, arg, _ in pickletools.genops(data):
        if op.name == "GLOBAL":
            module, name = str(arg).split(" ", 1)
            names.add(python3_name(module, name))
    return names


@pytest.mark.parametrize(
    "name", [*SAYS, "wrapper", "attributes", "quantized", "bytes", "device", "counter"]
)
def test_what_older_torches_refuse_is_documented(
    name: str, torchao: Any, tmp_path: Path
) -> None:
    others = {
        "wrapper": lambda: torchao(QDATA, SCALE),
        "attributes": noted,
        "quantized": lambda: torch.quantize_per_tensor(
            torch.ones(2), 0.5, 0, torch.qint8
        ),
        "bytes": lambda: b"\xff",
        "device": lambda: torch.device("cuda", 1),
        "counter": lambda: collections.Counter("a"),
    }
    plain(SAYS[name][0] if name in SAYS else others[name](), tmp_path)

    values = {name for name in names_in(tmp_path / "b.pt") if name not in OLD_NAMES}
    dtypes = {name for name in values if name.removeprefix("torch.") in BY_NAME}
    assert values - dtypes <= NOT_IN_2_0
    assert not dtypes or name in ("dtype", "narrow dtype", "key", "quantized")
    page = (ROOT / "docs" / "commands" / "convert.md").read_text(encoding="utf-8")
    rows = {
        row.split("|")[1].strip(): row
        for row in page.splitlines()
        if row.startswith(("| 2", "| 1"))
    }
    for value in values - dtypes:
        assert KINDS[value] in rows["2.5" if value in NOT_IN_2_5 else "2.0"]


OLD_NAMES = {
    "collections.OrderedDict",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.Size",
    "torch.Tensor",
    *(f"torch.{dtype}" for dtype in _DTYPES),
    *(f"torch.{name}" for name in BY_STORAGE),
    *(
        f"torch._utils._rebuild_{kind}"
        for kind in ("parameter", "tensor", "tensor_v2", "sparse_tensor")
    ),
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._tensor._rebuild_from_type_v2",
}
"""What weights_only of torch 2.0 takes (torch/_weights_only_unpickler.py of 2.0.1)."""


# --- what the other commands say of tensors of classes --------------------------------


@pytest.mark.needs("quantised")
def test_inspect_says_what_a_wrapper_is(torchao: Any, tmp_path: Path) -> None:
    rewriting.saved(
        {"fc.weight": torchao(QDATA, SCALE), "fc.bias": torch.ones(2).bfloat16()},
        tmp_path / "a.pt",
    )

    done = inside("inspect", "a.pt", cwd=tmp_path)

    assert re.search(
        r"fc\.weight +\[2, 4\] +8 bits \(torchao, a scale for each row\) +8 +16 B",
        done.out.decode(),
    )
    assert "all bfloat16" not in done.out.decode(), "its parts are int8 and float32"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, s: (q + torch.eye(2, 4, dtype=torch.int8), s), "2 of 8 elements"),
        (lambda q, s: (q, s * torch.tensor([[2.0], [1.0]])), "its parts differ"),
        (lambda q, s: (q + 1, s * 2), "its parts differ"),
    ],
)
def test_diff_of_wrappers(change: Any, says: str, torchao: Any, tmp_path: Path) -> None:
    for name, (qdata, scale) in {
        "a.pt": (QDATA, SCALE),
        "b.pt": change(QDATA, SCALE),
    }.items():
        rewriting.saved(
            {"fc.weight": torchao(qdata, scale), "fc.bias": torch.ones(2)},
            tmp_path / name,
        )

    done = inside("diff", "a.pt", "b.pt", cwd=tmp_path)

    assert f"M fc.weight  {says}" in done.lines


def test_safetensors_hold_wrappers_in_parts(torchao: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    rewriting.saved(
        {"fc.weight": torchao(QDATA, SCALE), "fc.bias": torch.ones(2)},
        tmp_path / "a.pt",
    )
    command = ["convert", "a.pt", "-o", "b.safetensors"]

    said = check_error(
        inside(*command, cwd=tmp_path), "fc.weight.block_size (not a tensor)"
    )
    done = inside(*command, "--drop-other", cwd=tmp_path)

    found = load_file(tmp_path / "b.safetensors")
    assert "--drop-other" in said and done.code == 0
    assert set(found) == {"fc.weight.qdata", "fc.weight.scale", "fc.bias"}
    assert torch.equal(found["fc.weight.qdata"], QDATA) and torch.equal(
        found["fc.weight.scale"], SCALE
    )
    assert "left out: fc.weight.block_size: not a tensor" in done.lines


def test_slim_leaves_out_parts_that_are_not_plain(torchao: Any, tmp_path: Path) -> None:
    odd = torchao(QDATA, SCALE)
    odd.masked = np.ma.array([1])
    rewriting.saved({"fc.weight": odd, "fc.bias": torch.ones(2)}, tmp_path / "a.pt")

    done = inside("slim", "a.pt", "-o", "b.pt", cwd=tmp_path)

    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert done.code == 0 and b"fc.weight.masked: numpy.ma" in done.out
    assert list(found) == [*(f"fc.weight.{part}" for part in PARTS), "fc.bias"]


@pytest.mark.parametrize("count", [2, 5])
def test_tensors_whose_attributes_share_a_list_of_them_become_bare(
    count: int, tmp_path: Path
) -> None:
    """Only the first of them was seen to hold itself; the file of the rest was "a bug
    in ckpt".
    """
    tensors = [torch.full((2,), float(number)) for number in range(count)]
    for tensor in tensors:
        tensor.holder = tensors  # type: ignore[attr-defined]
    torch.save(
        {f"l{number}.weight": tensor for number, tensor in enumerate(tensors)},
        tmp_path / "a.pth",
    )
    for words in (("slim", "--drop-other"), ("convert", "--plain", "--drop-other")):
        done = inside(*words, "a.pth", "-o", "o.pth", "--force", cwd=tmp_path)
        assert done.code == 0, done
        assert b"attributes that hold their own tensor" in done.out + done.err
        assert len(torch.load(tmp_path / "o.pth", weights_only=True)) <= count
