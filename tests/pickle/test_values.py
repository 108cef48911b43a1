"""The values shown are the values loaded: what torch makes of a tensor's state, ckpt
reads bit for bit or refuses.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from opcodes import binary, build, call, glob, pickled, torch_zip, value
from paths import many
from process import ckpt

import ckpt as api
from ckpt.formats import open
from ckpt.model.errors import CkptError
from ckpt.pickle.judge.names_of_torch import TENSOR_PROPERTIES

pytestmark = oracle.QUIET

FIRST, SECOND = struct.pack("<4f", *[1.0] * 4), struct.pack("<4f", *[666.0] * 4)
STORAGES = {"0": FIRST, "1": SECOND}


def arguments(key: str = "0") -> tuple[Any, ...]:
    storage = op.storage_id(key, "FloatStorage", 4, "cpu")
    return (storage, 0, (4,), (1,), False, op.ordered_dict())


def plain(key: str = "0") -> bytes:
    return call(glob("torch._utils", "_rebuild_tensor_v2"), *arguments(key))


def parameter(state: Any) -> bytes:
    function = glob("torch._utils", "_rebuild_parameter_with_state")
    return call(function, plain(), False, op.ordered_dict(), state)


def typed(state: Any, cls: bytes = glob("torch", "Tensor")) -> bytes:
    rebuild = glob("torch._utils", "_rebuild_tensor_v2")
    return call(
        glob("torch._tensor", "_rebuild_from_type_v2"), rebuild, cls, arguments(), state
    )


def saved(thing: Any) -> bytes:
    """A legacy file, as storages keep it when they are pickled alone."""
    stream = io.BytesIO()
    torch.save(thing, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


NAN = b"G" + struct.pack(">d", float("nan"))


def write(path: Path, program: bytes) -> Path:
    path.write_bytes(
        torch_zip(pickled({"weight": program, "other": plain("1")}), STORAGES)
    )
    return path


MADE = {"a parameter": parameter, "a tensor": typed}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["data", "real", "grad", "requires_grad", "T", "H", "names", "_backward_hooks"],
)
@pytest.mark.parametrize("made", MADE)
def test_a_state_that_changes_its_tensor_is_refused(
    made: str, name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.pth", MADE[made](value({name: plain("1")})))
    for command in ("inspect", "stats", "sum", "verify", "lint"):
        done = ckpt(command, path)
        assert done.code in (1, 2) and f"its state sets {name}" in str(done.err) + str(
            done.out
        )
    done = ckpt("convert", path, "-o", tmp_path / "x.safetensors")
    assert done.code == 2 and not (tmp_path / "x.safetensors").exists()


def test_each_property_of_a_tensor_is_refused(tmp_path: Path) -> None:
    names = {
        name
        for name in dir(torch.Tensor)
        if hasattr(inspect.getattr_static(torch.Tensor, name), "__set__")
    }
    for name in sorted(
        TENSOR_PROPERTIES | {"__class__"} | {name for name in names if name[:2] != "__"}
    ):
        with pytest.raises(CkptError, match="its state sets"):
            open(str(write(tmp_path / "x.pth", typed(value({name: plain("1")})))))


def test_an_attribute_that_hides_a_method_changes_no_value(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pth", typed(value({"inner": plain("1"), "storage": 3})))
    assert (
        torch.load(path)["weight"].tolist()
        == api.open(path)["weight"].numpy().tolist()
        == [1.0] * 4
    )


def test_the_tensor_itself_as_data_changes_nothing(tmp_path: Path) -> None:
    """bitsandbytes gives `data` and `requires_grad` in the state of its parameters."""
    path = write(
        tmp_path / "x.pth",
        parameter(value({"data": plain("0"), "requires_grad": False, "bits": 4})),
    )
    assert torch.load(path)["weight"].tolist() == [1.0] * 4
    assert api.open(path)["weight"].numpy().tolist() == [1.0] * 4


def late(slot: int, key: Any, number: int) -> bytes:
    """Fill what lies in a slot: a list with a number, or a dict with a key."""
    item = (
        value(number) + op.append()
        if key is None
        else value(key) + value(number) + op.setitem()
    )
    return op.get(slot) + item + op.pop()


EMPTY_LISTS = (
    op.empty_list() + op.put(8) + op.pop() + op.empty_list() + op.put(9) + op.pop()
)
EMPTY_DICT = op.empty_dict() + op.put(9) + op.pop()
SCALAR = (*arguments()[:2], op.get(8), op.get(9), *arguments()[4:])
FILLED_LATE = {
    "a size": EMPTY_LISTS
    + call(glob("torch._utils", "_rebuild_tensor_v2"), *SCALAR)
    + late(8, None, 4)
    + late(9, None, 1),
    "a size of torch": op.empty_list()
    + op.put(7)
    + op.pop()
    + call(glob("torch", "Size"), op.get(7))
    + op.put(8)
    + op.pop()
    + call(glob("torch", "Size"), op.get(7))
    + op.put(9)
    + op.pop()
    + late(7, None, 1)
    + call(glob("torch._utils", "_rebuild_tensor_v2"), *SCALAR),
}
"""Calls that are handed something which is filled afterwards, so that torch has seen
less than the tree shows.
"""


@pytest.mark.parametrize("name", FILLED_LATE)
def test_what_is_filled_after_the_call_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError, match="filled afterwards"):
        open(str(write(tmp_path / "x.pth", FILLED_LATE[name])))


SCALAR_DATA = call(
    glob("numpy.core.multiarray", "scalar"),
    call(glob("numpy", "dtype"), "U4", False, True)
    + value((3, "<", None, None, None, 16, 4, 8))
    + build(),
    op.binary("data".encode("utf-32-le")),
)
"""A text of numpy."""
OTHER_VALUES: dict[str, bytes] = {
    "a number as a flag": call(glob("torch._utils", "_rebuild_tensor_v2"), *arguments(), {"neg": 1}),
    "flags in an OrderedDict": call(
        glob("torch._utils", "_rebuild_tensor_v2"),
        *arguments(),
        call(glob("collections", "OrderedDict"), [("neg", True)]),
    ),
    "another flag": call(glob("torch._utils", "_rebuild_tensor_v2"), *arguments(), {"other": True}),
    "an octal size": call(glob("torch._utils", "_rebuild_tensor_v2"), arguments()[0], 0, (b"I04\n",), *arguments()[3:]),
    "an octal offset": call(glob("torch._utils", "_rebuild_tensor_v2"), arguments()[0], b"I00000\n", *arguments()[2:]),
    "a name that a call makes in a state": call(
        glob("torch._utils", "_rebuild_parameter_with_state"),
        *(plain(), False, op.ordered_dict(), op.empty_dict() + SCALAR_DATA + plain("1") + op.setitem()),
    ),
    **{
        f"another item of {name}": made_list + value(0) + plain("1") + op.setitem()
        for name, made_list in {
            "a list": call(glob("builtins", "list"), [plain()]),
            "a list of copyreg": call(glob("copyreg", "__newobj__"), glob("builtins", "list")) + plain() + op.append(),
            "a list of its base": call(
                glob("copyreg", "_reconstructor"), glob("builtins", "list"), glob("builtins", "list"), [plain()]
            ),
            "a deque": call(glob("collections", "deque"), [plain()]),
        }.items()
    },
    "a text that a call makes, as a key": op.empty_dict()
    + value("a") + plain() + op.setitem() + call(glob("builtins", "str"), "a") + plain("1") + op.setitem(),
    "a number that a call makes, as a key": op.empty_dict()
    + value(1) + plain() + op.setitem() + call(glob("builtins", "int"), 1) + plain("1") + op.setitem(),
    "a dict without its call": glob("collections", "OrderedDict") + value(({"a": plain()},)) + op.newobj(),
    "a list without its call": glob("builtins", "list") + value(([plain()],)) + op.newobj(),
    "a dict by another way without its call": call(
        glob("copyreg", "__newobj__"), glob("collections", "OrderedDict"), {"a": plain()}
    ),
    "a list of a dict": call(glob("builtins", "list"), {"a": plain()}),
    "a deque that is too long": call(glob("collections", "deque"), [plain(), plain("1")], 1),
    "items of a deque that is too long": call(glob("collections", "deque"), [], 1)
    + plain() + op.append() + plain("1") + op.append(),
    "a tensor of a tensor": call(glob("torch", "FloatTensor"), plain()),
    "a state that is an OrderedDict": parameter(call(glob("collections", "OrderedDict"), [("data", plain("1"))])),
    "slots that are an OrderedDict": parameter((None, call(glob("collections", "OrderedDict"), [("data", plain("1"))]))),
    "a state that is a Counter": parameter(call(glob("collections", "Counter"), {"data": plain("1")})),
    "a state of a class that is an OrderedDict": typed(
        call(glob("collections", "OrderedDict"), {"data": plain("1")}), glob("torch.nn.parameter", "Parameter")
    ),
    "a state of a nested tensor": call(
        glob("torch.storage", "_load_from_bytes"), binary(saved(torch.ones(4)))
    ) + value((plain("1"), None, op.ordered_dict(), False, False)) + build(),
    "a state of a buffer": call(glob("torch.nn.parameter", "Buffer"), plain())
    + value((op.storage_id("1", "FloatStorage", 4, "cpu"), 0, (4,), (1,))) + build(),
    "a state of an empty buffer": call(glob("torch.nn.parameter", "Buffer"), None)
    + value((op.storage_id("1", "FloatStorage", 4, "cpu"), 0, (4,), (1,))) + build(),
    "a long number": op.empty_dict() + value("a") + b"F1" + b"0" * 80 + b"\n" + op.setitem(),
}  # fmt: skip


def two(first: Any, second: Any) -> bytes:
    """A dict of two keys that are equal."""
    return (
        op.empty_dict()
        + value(first)
        + plain()
        + op.setitem()
        + value(second)
        + plain("1")
        + op.setitem()
    )


TEXT = call(glob("builtins", "str"), "a")
CPU = call(glob("torch", "device"), "cpu")
ONE = call(glob("numpy", "dtype"), "i4", False, True)
ONE = call(
    glob("numpy.core.multiarray", "scalar"),
    ONE + value((3, "<", None, None, None, -1, -1, 0)) + build(),
    op.binary(b"\1\0\0\0"),
)
EQUAL_KEYS: dict[str, bytes] = {
    "pairs of a dict": call(glob("builtins", "dict"), [("a", plain()), (TEXT, plain("1"))]),
    "pairs of an OrderedDict": call(glob("collections", "OrderedDict"), [("a", plain()), (TEXT, plain("1"))]),
    "pairs of a defaultdict": call(glob("collections", "defaultdict"), None, [("a", plain())]),
    "a decimal": two(1, call(glob("decimal", "Decimal"), "1")),
    "a fraction": two(1, call(glob("fractions", "Fraction"), 1)),
    "a number of an enum": two(2, call(glob("re", "RegexFlag"), 2)),
    "a signal": two(2, call(glob("signal", "Signals"), 2)),
    "a status": two(200, call(glob("http", "HTTPStatus"), 200)),
    "a scalar of numpy": two(1, ONE),
    "two names of a dtype": two(glob("torch", "float32"), glob("torch", "float")),
    "two devices": two(CPU, CPU),
    "two sizes": two(call(glob("torch", "Size"), [1]), call(glob("torch", "Size"), (1,))),
    "two times": two(call(glob("datetime", "timedelta"), 1), call(glob("datetime", "timedelta"), 0, 86_400)),
    "two sets": two(call(glob("builtins", "frozenset"), ["a"]), call(glob("builtins", "frozenset"), ["a"])),
    "two methods": two(*[call(glob("builtins", "getattr"), glob("torch", "Tensor"), "relu")] * 2),
    "a method of two classes": two(*[
        call(glob("builtins", "getattr"), glob(*owner), "relu") for owner in (("torch", "Tensor"), ("torch._C", "TensorBase"))
    ]),
    "two placements": two(*[made("torch.distributed.tensor.placement_types", "Shard", {"dim": 0})] * 2),
    "two ranges": two(*[glob("torch._dynamo.decorators", "_DimRange") + value(()) + op.newobj() + value([1, 2, 3]) + build()] * 2),
    "two paths": two(*[glob("pathlib", "PurePath") + value(()) + op.newobj()] * 2),
    "a time with a keyword": two(
        glob("datetime", "timedelta") + value((0, 0, 0)) + value({"hours": 24}) + op.newobj_ex(),
        call(glob("datetime", "timedelta"), 1, 0, 0),
    ),
    "two times without a call": two(*[glob("datetime", "timedelta") + value(()) + op.newobj()] * 2),
    "two empty sets": two(*[glob("builtins", "frozenset") + value(()) + op.newobj()] * 2),
    "an empty size": two((), glob("torch", "Size") + value(()) + op.newobj()),
    "two nodes of a config": two(*[made("omegaconf.nodes", "AnyNode", {"_val": 1})] * 2),
    "one place in a checkpoint": two(*[
        made("torch.distributed.checkpoint.metadata", "MetadataIndex", {"fqn": "a", "offset": None, "index": index})
        for index in range(2)
    ]),
    "two names of a class": two(glob("io", "BytesIO"), glob("_io", "BytesIO")),
    "two names of a type": two(glob("typing", "Text"), glob("builtins", "str")),
    "two names of a function": two(glob("torch._C._nn", "gelu"), glob("torch.nn.functional", "gelu")),
    "two names of a tensor": two(glob("torch", "Tensor"), glob("torch._tensor", "Tensor")),
    "a key of a call and an item": call(glob("easydict", "EasyDict"), {"a": plain()})
    + value("a") + plain("1") + op.setitem(),
    "tuples in tuples": two((("a",),), (("a",),)),
    "a text in a tuple in a tuple": two((("a",),), ((TEXT,),)),
}  # fmt: skip
"""Dicts that hold two keys as one: torch has the second value under the name of the
first.
"""


@pytest.mark.parametrize("name", EQUAL_KEYS)
def test_keys_that_may_be_equal_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError, match=r"may be equal|when it is made"):
        open(str(write(tmp_path / "x.pth", EQUAL_KEYS[name])))


OTHER_KEYS: dict[str, bytes] = {
    "devices": two(CPU, call(glob("torch", "device"), "cuda", 0)),
    "sizes": two(call(glob("torch", "Size"), [1]), call(glob("torch", "Size"), [2])),
    "times": two(call(glob("datetime", "timedelta"), 1, 0, 0), call(glob("datetime", "timedelta"), 2, 0, 0)),
    "a scalar of numpy": two(2, ONE),
    "paths": two(call(glob("pathlib", "PosixPath"), "a"), call(glob("pathlib", "PosixPath"), "b")),
    "members of an enum": two(call(glob("shop", "Mode"), "a"), call(glob("shop", "Mode"), "b")),
    "bytes": two("a", call(glob("_codecs", "encode"), "a", "latin1")),
    "tuples in tuples": two((("a",),), (("b",),)),
    "names": two(glob("torch", "float32"), glob("torch", "float16")),
    "dtypes of torch and numpy": two(glob("torch", "float32"), glob("numpy", "float32")),
    "methods": two(*[call(glob("builtins", "getattr"), glob("torch", "Tensor"), name) for name in ("relu", "tanh")]),
    "layers of one name": two(glob("torch.nn.modules.linear", "Linear"), glob("torch.nn.quantized.modules.linear", "Linear")),
    "optimizers": two(glob("torch.optim.adam", "Adam"), glob("torch.optim.adamw", "AdamW")),
    "places in a checkpoint": two(*[
        made("torch.distributed.checkpoint.metadata", "MetadataIndex", {"fqn": name, "offset": None, "index": 0})
        for name in "ab"
    ]),
    "partial functions": two(*[call(glob("functools", "partial"), glob("torch.nn.functional", "relu"))] * 2),
    "tensors": two(plain(), plain("1")),
    "objects of optimizers": two(*[glob("torch.optim.adam", "Adam") + value(()) + op.newobj() + value({}) + build()] * 2),
    "layers": two(*[glob("torch.nn.modules.linear", "Linear") + value(()) + op.newobj() + value({}) + build()] * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_KEYS)
def test_keys_that_differ_are_read(name: str, tmp_path: Path) -> None:
    open(str(write(tmp_path / "x.pth", OTHER_KEYS[name]))).close()


def added(*items: Any) -> bytes:
    """A set of the pickle itself."""
    return op.empty_set() + op.mark() + b"".join(map(value, items)) + op.additems()


def frozen(*items: Any) -> bytes:
    return op.mark() + b"".join(map(value, items)) + op.frozenset_()


def set_of(*items: Any) -> bytes:
    """A set as protocol 2 writes it."""
    return call(glob("builtins", "set"), list(items))


EQUAL_ITEMS: dict[str, bytes] = {
    "bytes of protocol 2": added(
        *(call(glob("_codecs", "encode"), "a", "latin1") for _ in range(2))
    ),
    "long bytes of protocol 2": added(
        *(call(glob("_codecs", "encode"), "a" * 3_000, "latin1") for _ in range(2))
    ),
    "bytes of protocol 2 in tuples": added(
        *(value((call(glob("_codecs", "encode"), "a", "latin1"), 1)) for _ in range(2))
    ),
    "numbers": added(1, True, 1.0),
    "numbers, one by one": added(0) + op.mark() + value(False) + op.additems(),
    "a frozenset": frozen(1, True),
    "a call": set_of(1, True),
    "a call of a frozenset": call(glob("builtins", "frozenset"), (2, 2.0)),
    "texts": added("a", "a"),
    "tuples": added((1, "a"), (True, "a")),
    "tuples in tuples": added(((1,),), ((1.0,),)),
    "frozensets": added(frozen(1, 2), frozen(2, 1)),
    "a scalar of numpy": added(ONE, 1),
    "zeros": frozen(0.0, -0.0),
    "one number that is none": added(NAN + op.put(9), op.get(9)),
    "names": added(glob("torch", "float32"), glob("torch", "float")),
    "devices": added(*[call(glob("torch", "device"), "cpu")] * 2),
}


@pytest.mark.parametrize("name", EQUAL_ITEMS)
def test_sets_with_equal_items_are_refused(name: str, tmp_path: Path) -> None:
    """Python keeps one of them."""
    path = write(tmp_path / "x.pth", EQUAL_ITEMS[name])
    loaded = torch.load(path, weights_only=False)["weight"]

    assert len(loaded) == 1
    with pytest.raises(CkptError, match=r"two (of the )?items .*are equal"):
        open(str(path))


OTHER_ITEMS: dict[str, bytes] = {
    "numbers": added(1, 2.0, False),
    "numbers that are none": added(NAN, NAN),
    "texts and bytes": added("a", b"U\x01b", call(glob("_codecs", "encode"), "a", "latin1")),
    "names": added(glob("torch", "float32"), glob("torch", "float64")),
    "tuples": set_of((1, 2), (2, 1)),
    "nothing": set_of(),
    "devices": added(*(call(glob("torch", "device"), kind) for kind in ("cpu", "cuda"))),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ITEMS)
def test_sets_with_other_items_are_read(name: str, tmp_path: Path) -> None:
    open(str(write(tmp_path / "x.pth", OTHER_ITEMS[name]))).close()


@pytest.mark.parametrize(("index", "group"), [(1, "known"), (300, "called")])
def test_a_device_that_torch_counts_otherwise_is_no_harmless_call(
    index: int, group: str, tmp_path: Path
) -> None:
    """torch keeps eight bits of its number."""
    for args in (("cuda", index), (f"cuda:{index}",)):
        path = write(tmp_path / "x.pth", call(glob("torch", "device"), *args))
        loaded = torch.load(path, weights_only=False)["weight"]

        assert (loaded.index == index) is (group == "known")
        with open(str(path)) as checkpoint:
            found = {r.group for r in checkpoint.imports if r.name == "device"}
        assert found == {group}


SPELLED_TWICE = {
    "a text of Python 2": (b"U\x02\xc3\xa9", "\xe9"),
    "a number and a long number": (2**53, 2.0**53),
    "a number and a very long number": (2.0**900, 2**900),
}


@pytest.mark.parametrize("name", SPELLED_TWICE)
def test_keys_that_are_spelled_in_two_ways_are_one(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.pth", two(*SPELLED_TWICE[name]))
    (value,) = torch.load(path)["weight"].values()
    with api.open(path) as checkpoint:
        shown = [
            checkpoint[name].numpy().tolist()
            for name in checkpoint
            if name.startswith("weight")
        ]
    assert shown == [value.tolist()]


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_what_loads_to_other_values_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError):
        open(str(write(tmp_path / "x.pth", OTHER_VALUES[name])))


OLD_PARAMETERS: dict[str, bytes] = {
    "of 0.1": glob("torch.nn.parameter", "Parameter") + value(()) + op.newobj()
    + value((plain("1"), None, op.ordered_dict(), True, False)) + build(),
    "of 0.3": call(glob("torch.nn.parameter", "Parameter"), plain("1"), True)
    + value((True, False, op.ordered_dict())) + build(),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD_PARAMETERS)
def test_old_parameters_are_read(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.pth", OLD_PARAMETERS[name])
    loaded = torch.load(path, weights_only=False)["weight"]
    with api.open(path) as checkpoint:
        tensor = checkpoint["weight"]
        assert tensor.requires_grad is loaded.requires_grad is True
        assert tensor.numpy().tolist() == loaded.tolist() == [666.0] * 4


STATES: dict[str, bytes] = {
    "another view of 0.1": value(
        (op.storage_id("1", "FloatStorage", 4, "cpu"), 0, (4,), (1,))
    ),
    "a Variable of 0.1": value((plain("1"), None, op.ordered_dict(), False, False)),
    "a parameter of 0.3": value((True, False, op.ordered_dict())),
    "a dict": value({"note": 1}),
    "a dict with data": value({"data": plain("1")}),
    "a pair": value((None, {"data": plain("1")})),
    "nothing": value(None),
}


class Maker:
    """Makes random programs of a tensor that is rebuilt, with states in any order and
    containers that others share.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def program(self) -> bytes:
        choose = self._random
        made = choose.choice((self._rebuilt, self._old, self._typed))()
        while choose.random() < 0.4:
            made += choose.choice(list(STATES.values())) + build()
        return made

    def _attributes(self) -> bytes:
        choose = self._random
        names = (
            "data",
            "real",
            "imag",
            "note",
            "grad",
            "requires_grad",
            "_is_param",
            "T",
            "storage",
            "__class__",
        )
        values = (
            plain("0"),
            plain("1"),
            value(1),
            op.boolean(True),
            value(None),
            value((1, 2)),
            value("a"),
        )
        state = {
            choose.choice(names): choose.choice(values)
            for _ in range(choose.randrange(1, 3))
        }
        return choose.choice(
            (
                value(state),
                value((state, None)),
                value((None, state)),
                value(list(state.items())),
            )
        )

    def _rebuilt(self) -> bytes:
        choose = self._random
        sizes = choose.choice(((4,), (2,), [4], (1, 4), (0,)))
        strides = choose.choice(((1,), (2,), [1], (4, 1), (0,)))
        numbers = (
            choose.choice((0, 1, 3)),
            sizes,
            strides,
            choose.choice((False, True)),
        )
        return call(
            glob("torch._utils", "_rebuild_tensor_v2"),
            arguments()[0],
            *numbers,
            op.ordered_dict(),
        )

    def _old(self) -> bytes:
        choose = self._random
        cls = choose.choice(
            (
                glob("torch.nn.parameter", "Parameter"),
                glob("torch", "FloatTensor"),
                glob("torch", "Tensor"),
            )
        )
        args = choose.choice(((), (plain(),), (plain(), True)))
        return call(cls, *args)

    def _typed(self) -> bytes:
        choose = self._random
        cls = choose.choice(
            (glob("torch", "Tensor"), glob("torch.nn.parameter", "Parameter"))
        )
        return choose.choice((lambda state: typed(state, cls), parameter))(
            self._attributes()
        )


def loaded(data: bytes, weights_only: bool) -> Any:
    """What torch loads, or None where it refuses."""
    with contextlib.suppress(Exception):
        return torch.load(
            io.BytesIO(data), map_location="cpu", weights_only=weights_only
        )
    return None


def at(things: Any, name: str) -> Any:
    """What torch has under a name: an item, or the attribute of a tensor."""
    key, _, attribute = name.partition(".")
    return getattr(things.get(key), attribute, None) if attribute else things.get(key)


@pytest.mark.slow
def test_what_torch_loads_is_what_is_read(tmp_path: Path) -> None:
    """Random states and orders of states: each tensor that ckpt shows has the values
    that torch loads, both ways.
    """
    compared = 0
    for seed in range(many(1_500, 60_000)):
        path = write(tmp_path / "x.pth", Maker(seed).program())
        with contextlib.suppress(CkptError), api.open(path) as checkpoint:
            for weights_only in (True, False):
                things = loaded(path.read_bytes(), weights_only)
                for name in checkpoint if things is not None else ():
                    tensor = at(things, name)
                    assert isinstance(tensor, torch.Tensor), (seed, name)
                    assert np.array_equal(
                        checkpoint[name].numpy(), tensor.detach().numpy()
                    ), (
                        seed,
                        name,
                        weights_only,
                    )
                    compared += 1
    assert compared > many(1_500, 60_000) // 4


def test_a_list_that_holds_itself_is_looked_at_once(tmp_path: Path) -> None:
    hooks = op.empty_list() + op.put(9) + op.get(9) + op.append()
    program = call(glob("torch._utils", "_rebuild_tensor_v2"), *arguments()[:5], hooks)
    assert (
        api.open(write(tmp_path / "x.pth", program))["weight"].numpy().tolist()
        == [1.0] * 4
    )


def as_big(name: str, cls: str, dtype: str, size: int) -> bytes:
    """A big-endian file of a tensor whose dtype may be another one than that of its
    storage.
    """
    numel = {"UntypedStorage": 16, "ComplexFloatStorage": 2}.get(cls, 4)
    arguments = (
        op.storage_id("0", cls, numel, "cpu"),
        0,
        (size,),
        (1,),
        False,
        op.ordered_dict(),
    )
    more = () if name == "_rebuild_tensor_v2" else (glob("torch", dtype),)
    program = pickled({"weight": call(glob("torch._utils", name), *arguments, *more)})
    return torch_zip(
        program, {"0": struct.pack(">4f", 1, 2, 3, 4)}, swap={"byteorder": b"big"}
    )


BIG = {
    "numbers": ("_rebuild_tensor_v2", "FloatStorage", "float32", 4),
    "complex numbers": ("_rebuild_tensor_v2", "ComplexFloatStorage", "complex64", 2),
    "bytes": ("_rebuild_tensor_v2", "UntypedStorage", "uint8", 16),
    "halves of numbers": ("_rebuild_tensor_v3", "FloatStorage", "int16", 8),
    "bytes of numbers": ("_rebuild_tensor_v3", "FloatStorage", "uint8", 16),
    "numbers of bytes": ("_rebuild_tensor_v3", "UntypedStorage", "uint16", 8),
    "numbers of the same size": ("_rebuild_tensor_v3", "FloatStorage", "int32", 4),
}


@pytest.mark.parametrize("name", BIG)
def test_big_endian_values_are_those_of_torch_or_refused(
    name: str, tmp_path: Path
) -> None:
    """torch turns a storage by the dtype of the storage, and one without a dtype not at
    all.
    """
    path = tmp_path / "x.pth"
    path.write_bytes(as_big(*BIG[name]))
    wanted = torch.load(path, weights_only=False)["weight"].numpy()
    if name in ("halves of numbers", "bytes of numbers"):
        with pytest.raises(CkptError, match="big-endian"):
            open(str(path))
        return
    assert api.open(path)["weight"].numpy().tobytes() == wanted.tobytes()


def test_a_default_dict_that_is_made_without_its_call_is_refused(
    tmp_path: Path,
) -> None:
    """Python makes it without the factory that the pickle names."""
    factory = glob("builtins", "list")
    program = glob("collections", "defaultdict") + value((factory,)) + op.newobj()
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"x": program}), STORAGES))
    assert torch.load(path, weights_only=False)["x"].default_factory is None
    with pytest.raises(CkptError, match="it is made without the call that fills it"):
        open(str(path))


def test_a_flag_that_is_false_is_refused(tmp_path: Path) -> None:
    """torch sets each flag that is there, whatever its value is."""
    program = call(
        glob("torch._utils", "_rebuild_tensor_v2"), *arguments(), {"neg": False}
    )
    path = write(tmp_path / "x.pth", program)
    assert torch.load(path)["weight"].tolist() == [-1.0] * 4
    with pytest.raises(CkptError, match="its metadata"):
        open(str(path))


def test_a_copy_of_a_copy_on_another_device_is_refused(tmp_path: Path) -> None:
    copy = glob("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")
    once = call(copy, plain(), glob("torch", "int64"), "cpu", False)
    path = write(
        tmp_path / "x.pth", call(copy, once, glob("torch", "float64"), "cpu", False)
    )
    assert torch.load(path)["weight"].dtype == torch.float64
    with pytest.raises(CkptError, match="its data is not a plain tensor"):
        open(str(path))
