"""Which calls are harmless: known names that call a value never are, and what is called
harmless does nothing in a jail.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jail
import opcodes as op
import oracle
import pytest
import torch
from families import FAMILIES
from gadgets import RUNG, TRAMPOLINES, Maker, made, popped, write
from honest import HONEST
from needs import skip_without
from opcodes import binary, build, call, glob, newobj, pickled, torch_zip, value
from paths import many

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import RUNS_CODE, ls
from ckpt.evidence.survey import Survey
from ckpt.formats import open
from ckpt.model.errors import CkptError, LimitError
from ckpt.pickle.judge import grammar

pytestmark = oracle.QUIET
FOLDER = str(Path(grammar.__file__).parent)
ROOM = Path(grammar.__file__).parents[3]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    with contextlib.suppress(AttributeError):
        del argparse.Namespace.__setstate__  # type: ignore[attr-defined]


def groups(program: bytes) -> set[str]:
    """How the names of a checkpoint with a value that a program makes are judged."""
    Path("x.pth").write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": program}))
    )
    with open("x.pth") as checkpoint:
        return {row.group for row in checkpoint.imports}


@pytest.mark.parametrize(
    "shape", [lambda program: program, popped], ids=["kept", "popped"]
)
@pytest.mark.parametrize("name", TRAMPOLINES)
def test_what_calls_a_value_is_said_before(name: str, shape: Any) -> None:
    assert "called" in groups(shape(TRAMPOLINES[name]))
    with open("x.pth") as checkpoint:
        report = inspect(Survey(checkpoint))
    assert (
        report.findings[0].code == "called-on-load" and report.load.expression is None
    )
    assert "DANGER" in report.findings[0].message
    assert not Path(RUNG).exists()
    with contextlib.suppress(Exception):
        torch.load("x.pth", weights_only=False)
    assert Path(RUNG).exists(), "the attack does not work"


@pytest.mark.parametrize("name", TRAMPOLINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_calls_a_value_is_said_in_every_family(
    family: str, name: str, tmp_path: Path
) -> None:
    """The loader of each family runs it, so it is an error there, and an exit code for
    a gate.
    """
    if family in ("shards", "peft"):
        skip_without("folders")
    how = FAMILIES[family]
    path = how.write(tmp_path, TRAMPOLINES[name])
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
        loads = ls(Survey(checkpoint)).loads
    first = report.findings[0]
    assert first.level == "error" and "DANGER" in first.message and loads == RUNS_CODE
    assert report.load.expression is None or family == "sb3's json", (
        "its weights load without it"
    )
    assert not Path(RUNG).exists()
    # Python 3.13 warns of the function that is set on a class.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how.load(path)
    assert Path(RUNG).exists(), "the attack does not work"


RELU = glob("torch.nn.functional", "relu")
SPACE = made("argparse", "Namespace", {"detach": RELU, "keys": RELU})
WEIGHT = call(glob("torch.nn.parameter", "Parameter"), op.tensor())
U1 = (
    call(glob("numpy", "dtype"), "u1", False, True)
    + value((3, "|", None, None, None, -1, -1, 0))
    + build()
)
OBJECTS = call(glob("numpy", "dtype"), "O8", False, True)


REFUSED: dict[str, bytes] = {
    # Each takes long to look at, as often as a file asks for it.
    "a union of 1,001 types": call(
        glob("functools", "reduce"),
        glob("operator", "or_"),
        tuple([glob("builtins", "int")] * 1_001),
    ),
    "a class in a class by a name of 1,001 letters": call(
        glob("builtins", "getattr"), glob("shop", "A"), "B" * 1_001
    ),
    # Each calls a value, although the value itself would be harmless.
    "an object where a dict belongs": call(glob("builtins", "dict"), SPACE),
    "an object as the data of a parameter": call(
        glob("torch.nn.parameter", "Parameter"), SPACE
    ),
    "an object as the data of a buffer": call(
        glob("torch.nn.parameter", "Buffer"), SPACE
    ),
    "an object as a group": made(
        "torch.optim.sgd", "SGD", {"param_groups": [SPACE], "defaults": {}, "state": {}}
    ),
    "an object as defaults": made(
        "torch.optim.sgd", "SGD", {"param_groups": [], "defaults": SPACE, "state": {}}
    ),
    "an object as the state of an optimizer": made(
        "torch.optim.adam", "Adam", {"param_groups": [], "defaults": {}, "state": SPACE}
    ),
    "an object as modules": made(
        "torch.nn.modules.conv", "Conv2d", {"_modules": SPACE}
    ),
    "an object as parameters": made(
        "torch.nn.modules.conv", "Conv2d", {"_parameters": SPACE}
    ),
    "an object as buffers": made(
        "torch.nn.modules.transformer", "TransformerEncoderLayer", {"_buffers": SPACE}
    ),
    "items of a dict with attributes": call(glob("collections", "OrderedDict"))
    + value({"a": 1})
    + build()
    + value("k")
    + value(1)
    + op.setitem(),
    "items of what is no list": call(glob("torch", "Size"), (1,))
    + value(1)
    + op.append(),
    "keys of what is no dict": call(glob("datetime", "timedelta"), 1)
    + value("a")
    + value(1)
    + op.setitem(),
    "a second state": made("argparse", "Namespace", {}) + value({"a": 1}) + build(),
    "items of a module": made("torch.nn.modules.container", "ModuleList", {})
    + value(1)
    + op.append(),
    "a name of Python's own inside a state": made(
        "argparse", "Namespace", {"__class__": RELU}
    ),
    "a state that is an object": glob("argparse", "Namespace")
    + value(())
    + newobj()
    + SPACE
    + build(),
    "slots that are an object": made("argparse", "Namespace", (None, SPACE)),
    "an endless list": call(glob("builtins", "list"), call(glob("itertools", "count"))),
    "an endless set": call(glob("builtins", "set"), call(glob("itertools", "count"))),
    "an endless size": call(glob("torch", "Size"), call(glob("itertools", "count"))),
    "a long list of a range": call(
        glob("builtins", "list"), call(glob("builtins", "range"), 2**40)
    ),
    "a counter of an object": call(glob("collections", "Counter"), SPACE),
    "a deque of a generator": call(
        glob("collections", "deque"), call(glob("itertools", "count")), 3
    ),
    "many bytes": call(glob("builtins", "bytearray"), 2**40),
    "a text of an object": call(glob("builtins", "str"), SPACE),
    "a long number": call(glob("builtins", "int"), "1" * 2_000),
    "a long fraction": call(glob("fractions", "Fraction"), "1e999999999"),
    "a decimal with a long exponent": call(glob("decimal", "Decimal"), "1e9999999999"),
    "a pattern that is printed": call(glob("re", "_compile"), "a", 128),
    "a large tensor": call(glob("torch", "FloatTensor"), 2**40),
    "a large storage": call(glob("torch", "FloatStorage"), 2**40),
    "an array of a large shape": call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (2**40,),
        binary(b"b"),
    ),
    "an array of another class": call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("collections", "UserList"),
        (0,),
        binary(b"b"),
    ),
    "addresses as objects": OBJECTS
    + value((3, "|", None, None, None, -1, -1, 0))
    + build(),
    "objects inside a record": call(glob("numpy", "dtype"), "V8", False, True)
    + value((3, "|", None, ("a",), {"a": (OBJECTS, 0)}, 8, 1, 0))
    + build(),
    "a flag of objects on plain bytes": call(glob("numpy", "dtype"), "V8", False, True)
    + value((3, "|", None, None, None, 8, 1, 1))
    + build(),
    "fields that are a list": call(glob("numpy", "dtype"), "V8", False, True)
    + value((3, "|", None, ("a",), ["a", (U1, 0)], 8, 1, 0))
    + build(),
    "a dtype of several": call(glob("numpy", "dtype"), "O,f4", False, True),
    "an array of objects without its list": call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    + value((1, (2**40,), OBJECTS, False, []))
    + build(),
    "a generator without its state": made("torch._C", "Generator", {}),
    "a recurrent layer of endless layers": made(
        "torch.nn.modules.rnn",
        "LSTM",
        {"num_layers": 2**40, "all_weights": [[1]], "bidirectional": False},
    ),
    "a method of an object": call(
        glob("builtins", "getattr"), made("argparse", "Namespace", {"a": 1}), "a"
    ),
    "a method that no scheduler keeps": call(
        glob("builtins", "getattr"),
        made("torch.optim.lr_scheduler", "CyclicLR", {"last_epoch": 3}),
        "step",
    ),
    "a method of a known class": call(
        glob("builtins", "getattr"), glob("pathlib", "Path"), "write_text"
    ),
    "an operator that opens files": call(
        glob("builtins", "getattr"),
        glob("torch._C", "_VariableFunctionsClass"),
        "from_file",
    ),
    "a private attribute": call(
        glob("builtins", "getattr"), glob("shop", "Mode"), "__init__"
    ),
    "a partial function of Python": call(
        glob("functools", "partial"), glob("os.path", "join")
    ),
    "a partial function of a listed class": call(
        glob("functools", "partial"), glob("pathlib", "Path")
    ),
    "a partial function of a partial function of Python": call(
        glob("functools", "partial"), RELU
    )
    + value((RELU, (glob("os", "remove"),), {}, None))
    + build(),
    "a factory of Python": call(
        glob("collections", "defaultdict"), glob("itertools", "count")
    ),
    "a factory of torch": call(
        glob("collections", "defaultdict"), glob("torch.hub", "load")
    ),
    "a factory that is made": call(
        glob("collections", "defaultdict"), call(glob("functools", "partial"), RELU)
    ),
    "keyword arguments": glob("argparse", "Namespace")
    + value(())
    + value({"a": 1})
    + op.newobj_ex(),
    "a module that is called": call(
        glob("torch.nn.modules.transformer", "Transformer")
    ),
    "an optimizer that is called": call(glob("torch.optim.lbfgs", "LBFGS")),
    "a module with arguments": call(glob("torch.nn.modules.linear", "Linear"), 2, 2),
    "a module that is another's inner state": made(
        "torch.nn.parallel.distributed", "DistributedDataParallel", {"module": SPACE}
    ),
    "a value that is called": call(
        glob("builtins", "getattr"), glob("torch._C", "TensorBase"), "relu"
    )
    + value(())
    + op.reduce(),
    "an own class of torch with a loader": made(
        "torch.utils.data.datapipes.datapipe",
        "_DataPipeSerializationWrapper",
        (binary(b"."), False),
    ),
    "a class of Python": made("subprocess", "Popen", {"args": "true"}),
    "a class of pip": made("pip._internal.req", "Req", {}),
    "a remote module": made(
        "torch.distributed.nn.api.remote_module", "_RemoteModule", {}
    ),
    "a base that runs": call(
        glob("copyreg", "_reconstructor"),
        glob("argparse", "Namespace"),
        glob("shop", "Base"),
        None,
    ),
    "a base of an object": call(
        glob("copyreg", "_reconstructor"),
        glob("collections", "OrderedDict"),
        glob("builtins", "dict"),
        SPACE,
    ),
    "a class for an array of joblib": made(
        "joblib.numpy_pickle", "NumpyArrayWrapper", {"subclass": glob("os", "system")}
    ),
    "an enum of two words": call(glob("peft.utils.peft_types", "PeftType"), ["LORA"]),
    "a long type": call(
        glob("types", "GenericAlias"), glob("builtins", "list"), tuple([1] * 2_000)
    ),
    "a union of what is no type": call(
        glob("functools", "reduce"),
        glob("operator", "or_"),
        (SPACE, glob("builtins", "int")),
    ),
}
HARMLESS: dict[str, bytes] = {
    "a pair of a dict": call(
        glob("collections", "OrderedDict"), [["a", 1], ("b", RELU)]
    ),
    "a list of objects": call(
        glob("builtins", "set"), [call(glob("pathlib", "PosixPath"), "a")]
    ),
    "a dict with attributes": call(glob("collections", "OrderedDict"))
    + value("k")
    + value(1)
    + op.setitem()
    + value({"_metadata": {}})
    + build(),
    "an object that only lies there": SPACE,
    "an object around an object": made("argparse", "Namespace", {"a": SPACE}),
    "a module with a function": made(
        "torch.nn.modules.module", "Module", {"activation": RELU, "_modules": {}}
    ),
    "the state of an optimizer": made(
        "torch.optim.adam",
        "Adam",
        {
            "param_groups": [{"params": [WEIGHT], "lr": 1.0}],
            "defaults": {},
            "state": call(glob("collections", "defaultdict"), glob("builtins", "dict"))
            + WEIGHT
            + value({"step": 1})
            + op.setitem(),
        },
    ),
    "a dict that holds itself": op.empty_dict()
    + op.put(9)
    + value("a")
    + op.get(9)
    + op.setitem(),
    "slots": made(
        "torch.distributed._shard.metadata",
        "ShardMetadata",
        (None, {"shard_sizes": [1]}),
    ),
    "an array": call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    + value((1, (3,), U1, False, binary(b"abc")))
    + build(),
    "an array of objects": call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    + value((1, (2,), OBJECTS, False, [1, SPACE]))
    + build(),
    "an object of Python 2": call(
        glob("copy_reg", "_reconstructor"),
        glob("argparse", "Namespace"),
        glob("__builtin__", "object"),
        None,
    )
    + value({"a": 1})
    + build(),
    "a dict of Python 2": glob("UserDict", "IterableUserDict")
    + value(())
    + newobj()
    + value({"data": {}})
    + build(),
    "a partial function of a partial function": call(glob("functools", "partial"), RELU)
    + value(
        (
            RELU,
            (),
            {
                "norm": call(
                    glob("functools", "partial"),
                    glob("torch.nn.modules.normalization", "LayerNorm"),
                )
            },
            None,
        )
    )
    + build(),
    "a recurrent layer": made(
        "torch.nn.modules.rnn",
        "LSTM",
        {
            "num_layers": 2,
            "_all_weights": [["weight_ih_l0"]],
            "bidirectional": False,
            "bias": True,
        },
    ),
    "a seed": call(glob("random", "Random"))
    + value((3, tuple(range(625)), None))
    + build(),
    "a parameter of a lazy module": call(
        glob("torch.nn.parameter", "UninitializedParameter"), True
    ),
    "a buffer of a lazy module": call(
        glob("torch.nn.parameter", "UninitializedBuffer"), False, None, None
    ),
    "a class in a class": call(
        glob("builtins", "getattr"),
        glob("torch.nn.modules.linear", "Linear"),
        "forward",
    ),
    "the method of a scheduler that it keeps": call(
        glob("builtins", "getattr"),
        made("torch.optim.lr_scheduler", "CyclicLR", {"last_epoch": 3}),
        "_triangular_scale_fn",
    ),
    "a popped name": glob("torch.nn.functional", "relu") + op.pop() + value(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_grammar_does_not_allow_is_called(name: str) -> None:
    assert "called" in groups(REFUSED[name])
    assert "called" in groups(popped(REFUSED[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_what_the_grammar_allows_is_no_alarm(name: str) -> None:
    assert groups(HARMLESS[name]) <= {"known"}
    stream = Path("x.pth").read_bytes()
    assert jail.deeds([stream]) == [None]


def test_a_class_of_an_author_stays_an_import() -> None:
    for program in (
        made("shop", "Mode", {"call": RELU}),
        made(
            "shop",
            "Mode",
            {"inner": call(glob("builtins", "getattr"), glob("shop", "Mode"), "Inner")},
        ),
        call(glob("collections", "defaultdict"), glob("shop", "make")),
        made("torch.nn.modules.new", "Layer", {"a": 1}),
    ):
        assert groups(program) - {"known"} == {"unknown"}
    for program in (
        made("shop", "Mode", {}) + value({}) + build(),
        made("shop", "Mode", {}) + value(1) + op.append(),
        glob("shop", "Mode")
        + value(())
        + newobj()
        + value("append")
        + write()
        + op.setitem()
        + value(1)
        + op.append(),
        glob("shop", "Mode")
        + value(())
        + newobj()
        + value("append")
        + RELU
        + op.setitem()
        + value(1)
        + op.append(),
        call(glob("shop", "Mode"), write()),
    ):
        assert "called" in groups(program)


def test_a_tuple_that_takes_ages_to_hash_is_refused() -> None:
    """64 tuples in each other that all hold two of the next: Python hashes 2^40 of
    them.
    """
    key = value((1, 2)) + op.put(1)
    for slot in range(1, 41):
        key += op.pop() + op.get(slot) + op.get(slot) + op.tuple2() + op.put(slot + 1)
    with pytest.raises(CkptError, match="too many"):
        groups(key)


def shared(node: bytes, user: bytes, calls: int) -> bytes:
    """A list of a node and of many calls that are given it."""
    return value([node + op.put(1), *[user] * calls])


SHARED: dict[str, tuple[bytes, bytes]] = {
    "a state": (
        value({f"name{number}": number for number in range(1_000)}),
        glob("argparse", "Namespace")
        + op.empty_tuple()
        + newobj()
        + op.get(1)
        + build(),
    ),
    "pairs": (
        value([(number, number) for number in range(1_000)]),
        call(glob("collections", "OrderedDict"), op.get(1)),
    ),
    "a plain list": (value(list(range(1_000))), call(glob("torch", "Size"), op.get(1))),
    "a union": (
        value(tuple([glob("builtins", "int")] * 900)),
        call(glob("functools", "reduce"), glob("operator", "or_"), op.get(1)),
    ),
    "types": (
        value(tuple([glob("builtins", "int")] * 900)),
        call(glob("types", "GenericAlias"), glob("builtins", "tuple"), op.get(1)),
    ),
    "arguments of a partial": (
        value((1, (RELU, "a"), *range(1_000))),
        call(glob("functools", "partial"), RELU)
        + value((RELU, op.get(1), {}, None))
        + build(),
    ),
    "arguments": (
        value(tuple(f"name{number}" for number in range(1_000))),
        glob("pathlib", "PosixPath") + op.get(1) + op.reduce(),
    ),
    "hooks": (
        call(
            glob("collections", "OrderedDict"),
            [(number, number) for number in range(1_000)],
        ),
        call(glob("torch._utils", "_rebuild_parameter"), op.tensor(), True, op.get(1)),
    ),
    "the state of a dtype": (
        value(
            (3, "|", None, tuple(f"f{number}" for number in range(1_000)), {}, 8, 1, 0)
        ),
        call(glob("numpy", "dtype"), "V8", False, True) + op.get(1) + build(),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_many_calls_share_is_looked_at_once(name: str) -> None:
    """A file of 1 MB whose 60,000 calls shared one container of 60,000 entries took an
    hour.
    """
    Path("x.pth").write_bytes(
        torch_zip(pickled({"x": popped(shared(*SHARED[name], 300))}))
    )
    steps = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal steps
        steps += event == "call" and frame.f_code.co_filename.startswith(FOLDER)

    sys.setprofile(count)
    try:
        open("x.pth").close()
    finally:
        sys.setprofile(None)
    assert 300 < steps < 300 * 60 + 1_000 * 20


FORTY = value(list(range(40)))
MANY = value([FORTY + op.put(9), *[op.get(9)] * 500])
"""A list of one list many times."""
PLACES: dict[str, tuple[bytes, bytes]] = {
    "a tuple as a key": (value(tuple(range(1_000))), value({op.get(1): 1})),
    "a list of lists": (MANY, op.get(1)),
    "a list of lists as a state": (MANY, made("shop", "Cart", op.get(1))),
    "a list of a call": (
        value(list(range(1_000))),
        call(glob("builtins", "tuple"), op.get(1)),
    ),
    "a list of a set": (
        value(list(range(1_000))),
        call(glob("builtins", "set"), op.get(1)),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_stands_at_many_places_is_looked_at_once(name: str) -> None:
    """A file of 30 KB whose lists stood at many places took 10 s, and one of 80 KB
    with one tuple as the key of many dicts as long.
    """
    Path("x.pth").write_bytes(
        torch_zip(pickled({"x": value([shared(*PLACES[name], 200)])}))
    )
    steps: Counter[str] = Counter()

    def count(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOM)):
            steps[code.co_name] += 1

    sys.setprofile(count)
    try:
        open("x.pth").close()
    finally:
        sys.setprofile(None)
    parts = {"_is_nesting", "inside", "<genexpr>", "is_scalar", "_holds_rows"}
    assert sum(steps[part] for part in parts) < 200 * 60 + 20_000


def test_objects_that_share_a_large_state_are_charged_for_it() -> None:
    """A file of 100 KB whose 1,500 objects had one dict of 5,000 pairs took 20 s."""
    pairs = value({(number, "a"): number for number in range(1_000)})
    user = glob("shop", "Cart") + op.empty_tuple() + newobj() + op.get(1) + build()
    for count in (100, 3_000):
        data = torch_zip(pickled({"x": value([shared(pairs, user, count)])}))
        Path("x.pth").write_bytes(data)
        if count == 100:
            open("x.pth").close()
    with pytest.raises(LimitError, match="the tree of the file needs too much memory"):
        open("x.pth")


def test_a_long_chain_of_classes_in_classes_is_judged() -> None:
    chain = glob("shop", "A") + op.put(1)
    for _ in range(20_000):
        chain += (
            op.pop()
            + glob("builtins", "getattr")
            + op.get(1)
            + value("B")
            + op.tuple2()
            + op.reduce()
        )
        chain += op.put(1)
    assert groups(popped(chain)) - {"known"} == {"unknown"}


@pytest.mark.slow
def test_what_is_called_harmless_does_nothing() -> None:
    """Random pickles over all listed names, and honest ones with some opcodes changed,
    loaded in a jail.
    """
    honest = [pickle.dumps(thing, 2) for thing in HONEST.values()]
    harmless: list[bytes] = []
    for seed in range(many(1_500, 300_000)):
        maker = Maker(seed)
        program = maker.program() if seed % 2 else maker.changed(maker.choice(honest))
        with contextlib.suppress(CkptError):
            if groups(program) <= {"known"}:
                harmless.append(Path("x.pth").read_bytes())
    assert len(harmless) > many(1_500, 300_000) // 20
    assert {
        deed: stream
        for stream, deed in zip(harmless, jail.deeds(harmless), strict=True)
        if deed
    } == {}


def test_a_part_of_a_loop_is_what_the_loop_is() -> None:
    """A list that holds an object and a list, which holds the first one: neither is
    plain data, whichever is asked first.
    """
    keys = glob("torch.nn.modules.module", "_IncompatibleKeys")
    outer = op.empty_list() + op.put(1) + SPACE + op.append()
    outer += op.empty_list() + op.put(2) + op.get(1) + op.append() + op.append()
    for first, second in ((1, 2), (2, 1)):
        calls = [call(keys, op.get(number), []) for number in (first, second)]
        groups(popped(value([outer, *calls])))
        with open("x.pth") as checkpoint:
            (row,) = (
                row for row in checkpoint.imports if row.name == "_IncompatibleKeys"
            )
        assert (row.group, row.times) == ("called", 2)


@pytest.mark.parametrize(
    "more", [value(0) + value(1) + op.setitem(), value(1) + op.append()]
)
@pytest.mark.parametrize("tensor", [op.tensor(), WEIGHT])
def test_items_set_on_a_tensor_are_an_error(tensor: bytes, more: bytes) -> None:
    with pytest.raises(CkptError, match="items are set on its tensor"):
        groups(tensor + more)


@pytest.mark.parametrize(
    "name",
    [
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_qtensor",
        "_rebuild_sparse_tensor",
        "_rebuild_meta_tensor_no_storage",
        "_rebuild_wrapper_subclass",
        "_rebuild_device_tensor_from_cpu_tensor",
    ],
)
def test_a_rebuild_with_other_arguments_than_torch_takes_is_not_promised(
    name: str,
) -> None:
    """Each has all that ckpt reads, and more or less than its function takes."""
    storage, hooks = op.storage_id(), op.ordered_dict()
    scheme = (glob("torch", "per_tensor_affine"), 1.0, 0)
    on_meta = glob("torch._utils", "_rebuild_meta_tensor_no_storage")
    places = call(on_meta, glob("torch", "int64"), (1, 2), (2, 1), False)
    given: dict[str, tuple[Any, ...]] = {
        "_rebuild_tensor": (storage, 0, (2,), (1,), 1),
        "_rebuild_tensor_v2": (storage, 0, (2,), (1,), False),
        "_rebuild_parameter": (op.tensor(), True),
        "_rebuild_parameter_with_state": (op.tensor(), True, hooks),
        "_rebuild_qtensor": (storage, 0, (2,), (1,), scheme, False),
        "_rebuild_sparse_tensor": (
            glob("torch", "sparse_coo"),
            (places, op.tensor((2,), (1,)), (2,)),
            1,
        ),
        "_rebuild_meta_tensor_no_storage": (
            glob("torch", "float32"),
            (2,),
            (1,),
            False,
            1,
        ),
        "_rebuild_wrapper_subclass": (
            glob("torch", "Tensor"),
            glob("torch", "float32"),
            (2,),
            (1,),
            0,
            glob("torch", "strided"),
            "cpu",
            False,
            1,
        ),
        "_rebuild_device_tensor_from_cpu_tensor": (
            op.tensor(),
            glob("torch", "float32"),
            "cpu",
            False,
            1,
        ),
    }
    Path("x.pth").write_bytes(
        torch_zip(pickled({"x": call(glob("torch._utils", name), *given[name])}))
    )
    with open("x.pth") as checkpoint:
        assert (
            checkpoint.not_loadable is not None
            and "cannot succeed" in checkpoint.not_loadable
        )
    for promise in (True, False):
        with pytest.raises(Exception, match=r".+"):
            torch.load("x.pth", weights_only=promise)


@pytest.mark.parametrize(
    "layout",
    [
        "\x1b[31mtorch.sparse_coo",
        "sparse_coo",
        "torch.sparse_dance",
        "torch.\0sparse_bsc",
    ],
)
def test_a_layout_that_torch_does_not_have_is_damage(layout: str) -> None:
    """Its text was shown as it is: escapes reached the terminal."""
    named = call(glob("torch.serialization", "_get_layout"), layout)
    size = (op.tensor(), op.tensor(), (2,))
    with pytest.raises(CkptError, match="unknown layout"):
        groups(call(glob("torch._utils", "_rebuild_sparse_tensor"), named, size))


def test_all_calls_of_a_name_are_counted() -> None:
    groups(value([call(glob("shop", "run"), number) for number in range(1_500)]))
    with open("x.pth") as checkpoint:
        message = inspect(Survey(checkpoint)).findings[0].message
    assert message.endswith("and makes 1,499 more such calls.")
