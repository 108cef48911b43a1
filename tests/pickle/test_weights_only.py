"""Whether weights_only accepts a file: what we say without loading it, against what
torch does.
"""

from __future__ import annotations

import argparse
import collections
import io
import pathlib
import pickle
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import real_files
import saved
import torch
import torch._weights_only_unpickler as unpickler
from opcodes import call, glob, pickled, put, value
from saved import OBJECTS
from torch import nn

from ckpt.formats import open
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.pickle import machine
from ckpt.pickle.judge import weights_only

_PATHS = pathlib.PurePosixPath.__module__
"""The module that pickles name: `pathlib._local` in Python 3.13."""

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]
SAMPLES = pathlib.Path(__file__).resolve().parents[2] / "sample_checkpoints"


def is_stricter(error: CkptError) -> bool:
    """Tell whether ckpt refuses a file because torch would load other values from it
    than the file shows.
    """
    reasons = (
        "made without the call that fills it",
        "keys of a dict",
        "is the key of a dict",
        "changed by a state",
        "it counts the items that it is given",
    )
    return any(reason in str(error) for reason in reasons)


def refused_by_torch(
    path: pathlib.Path, encoding: str | None = None
) -> Exception | None:
    """The error of torch.load(weights_only=True), None when it loads."""
    options = {"encoding": encoding} if encoding else {}
    try:
        torch.load(path, map_location="cpu", weights_only=True, **options)
    except Exception as error:
        return error
    return None


def agrees(path: pathlib.Path) -> None:
    with open(str(path)) as checkpoint:
        if checkpoint.weights_only is None:
            assert checkpoint.format in ("safetensors", "sharded")
            return
        error = refused_by_torch(path, checkpoint.encoding)
        assert (checkpoint.weights_only == ()) == (error is None), (
            checkpoint.weights_only,
            error,
        )


# --------------------------------------------------------------------------------------
# names


def test_allowed_names_are_those_of_torch() -> None:
    assert unpickler._get_allowed_globals().keys() == weights_only.ALLOWED


def verdict(program: bytes) -> tuple[bool, str]:
    """Whether torch's own machine refuses a program: no pickle can make it go on."""
    try:
        unpickler.load(io.BytesIO(program))
    except pickle.UnpicklingError as error:
        return True, str(error)
    return False, ""


MODULES = sorted(
    {name.rpartition(".")[0] for name in weights_only.ALLOWED}
    | set(torch._utils.IMPORT_MAPPING)
    | set(torch._utils.IMPORT_MAPPING.values())
    | {module for module, _ in torch._utils.NAME_MAPPING}
    | {
        "torch.tensor",
        "torch._C",
        "torch.nn",
        "numpy",
        "numpy._core.multiarray",
        "os",
        "posix",
        "nt",
        "sys",
        "",
    }
)
WORDS = sorted(
    {name.rpartition(".")[2] for name in weights_only.ALLOWED}
    | {name for _, name in torch._utils.NAME_MAPPING}
    | {
        "eval",
        "exec",
        "getattr",
        "frozenset",
        "system",
        "dict",
        "list",
        "_rebuild_from_type",
        "_load_from_bytes",
        "",
    }
)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_allowed_or_refused_as_in_torch(module: str) -> None:
    """Names that pickles of Python 2 had, too: both sides translate them."""
    differ = []
    for name in WORDS:
        program = pickled(glob(module, name))
        ours = weights_only.pickle_refusals(machine.run_machine(program, Limits()))
        if bool(ours) != verdict(program)[0]:
            differ.append(f"{module}.{name}: {ours}")
    assert differ == []


def test_dots_may_fall_anywhere_in_a_name() -> None:
    """torch joins module and name before it looks them up."""
    program = pickled(glob("torch", "nn.parameter.Parameter"))
    assert not verdict(program)[0]
    assert weights_only.pickle_refusals(machine.run_machine(program, Limits())) == []


# --------------------------------------------------------------------------------------
# files


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(SAMPLES.rglob("*"))
        if path.suffix in (".pth", ".pt", ".ckpt", ".safetensors")
        and path.name not in ("html_page.pth", "lfs_pointer.pth", "truncated.pth")
    ],
    ids=lambda path: path.name,
)
def test_sample(path: pathlib.Path) -> None:
    agrees(path)


@pytest.mark.parametrize("file", real_files.FILES)
def test_real_file(file: str) -> None:
    agrees(real_files.path(file))


# --------------------------------------------------------------------------------------
# objects

WAYS = {
    **{f"protocol {number}": {"pickle_protocol": number} for number in (2, 3, 4, 5)},
    "legacy": {"_use_new_zipfile_serialization": False},
    "legacy, protocol 4": {
        "_use_new_zipfile_serialization": False,
        "pickle_protocol": 4,
    },
}


@pytest.mark.parametrize("name", OBJECTS)
def test_object(tmp_path: pathlib.Path, name: str) -> None:
    made = OBJECTS[name]()
    for way, options in WAYS.items():
        if way.startswith("legacy") and name == "nested":
            continue  # torch builds it from sizes that it has not read yet
        torch.save({"it": made}, tmp_path / f"{way}.pth", **options)  # type: ignore[arg-type]
        agrees(tmp_path / f"{way}.pth")


def test_objects_are_of_both_kinds(tmp_path: pathlib.Path) -> None:
    """Neither `all load` nor `none loads` would pass for an answer."""
    answers = collections.Counter[bool]()
    for name in OBJECTS:
        torch.save({"it": OBJECTS[name]()}, tmp_path / "file.pth")
        with open(str(tmp_path / "file.pth")) as checkpoint:
            answers[checkpoint.weights_only == ()] += 1
    assert min(answers[True], answers[False]) > 40


@pytest.mark.parametrize(
    ("made", "reason", "where"),
    [
        ({"args": argparse.Namespace(lr=0.1)}, "argparse.Namespace", ("args",)),
        ({"a": [np.float64(1)]}, "numpy._core.multiarray.scalar", ("a.0",)),
        (saved.Colour.RED, "saved.Colour", ("",)),
        ({"x": {"y": pathlib.PurePosixPath("a")}}, f"{_PATHS}.PurePosixPath", ("x.y",)),
        ({"x": nn.Linear(1, 1)}, "torch.nn.modules.linear.Linear", ("x",)),
    ],
)
def test_reason_and_place(
    tmp_path: pathlib.Path, made: Any, reason: str, where: tuple[str, ...]
) -> None:
    torch.save(made, tmp_path / "file.pth")
    with open(str(tmp_path / "file.pth")) as checkpoint:
        assert (reason, where) in [
            (row.reason, row.where) for row in checkpoint.weights_only or ()
        ]


# --------------------------------------------------------------------------------------
# programs

ORDERED, COUNTER, PARAMETER = (
    glob("collections", "OrderedDict"),
    glob("collections", "Counter"),
    glob("torch.nn.parameter", "Parameter"),
)
SET, FROZENSET, BYTEARRAY = (
    glob("__builtin__", name) for name in ("set", "frozenset", "bytearray")
)
SIZE, DEVICE, COMPLEX = (
    glob("torch", "Size"),
    glob("torch", "device"),
    glob("builtins", "complex"),
)
LAYOUT, ENCODE = glob("torch.serialization", "_get_layout"), glob("_codecs", "encode")
FROM_TYPE, TENSOR = (
    glob("torch._tensor", "_rebuild_from_type_v2"),
    glob("torch", "FloatTensor"),
)
REBUILD, STORAGE = glob("torch._utils", "_rebuild_tensor_v2"), op.storage_id()
FLOAT = op.tensor()
NAMESPACE = glob("argparse", "Namespace")
STATE = value({"a": 1})

PROGRAMS: dict[str, bytes] = {
    "nothing": op.none(),
    "filler": op.proto(2) + op.none(),
    "name alone": SIZE,
    "name alone, refused": NAMESPACE,
    "name in a list": value([NAMESPACE]),
    "name popped": NAMESPACE + op.none() + op.tuple2(),
    "blocked module": glob("os", "path"),
    "a name's namesake": glob("torch", "OrderedDict"),
    "storage class of cuda": glob("torch.cuda", "FloatStorage"),
    "untyped storage at the wrong place": glob("torch", "UntypedStorage"),
    "untyped storage": glob("torch.storage", "UntypedStorage"),
    "_load_from_bytes": call(glob("torch.storage", "_load_from_bytes"), op.none()),
    # calls
    "OrderedDict": call(ORDERED),
    "OrderedDict of pairs": call(ORDERED, [["a", 1]]),
    "OrderedDict by NEWOBJ": ORDERED + op.empty_tuple() + op.newobj(),
    "OrderedDict by OBJ": op.mark() + ORDERED + op.obj(),
    "OrderedDict by INST": op.mark() + op.inst("collections", "OrderedDict"),
    "OrderedDict by NEWOBJ_EX": ORDERED + op.empty_tuple() + op.empty_dict() + op.newobj_ex(),
    "OrderedDict by STACK_GLOBAL": op.stack_global("collections", "OrderedDict"),
    "Size by NEWOBJ": SIZE + value(([2],)) + op.newobj(),
    "Counter": call(COUNTER, {"a": 1}),
    "set": call(SET, [1]),
    "frozenset": call(FROZENSET, [1]),
    "EMPTY_SET": op.empty_set(),
    "ADDITEMS": op.empty_set() + op.mark() + value(1) + op.additems(),
    "bytearray": call(BYTEARRAY, "ab", "latin-1"),
    "bytes": call(glob("__builtin__", "bytes")),
    "complex": call(COMPLEX, 1.0, 2.0),
    "encode": call(ENCODE, "é", "latin1"),
    "layout": call(LAYOUT, "torch.strided"),
    "device": call(DEVICE, "cuda", 1),
    "device by NEWOBJ": DEVICE + value(("cpu",)) + op.newobj(),
    "call of a call": call(call(SIZE, [1]), 1),
    "call of a tensor": call(FLOAT, 1),
    "NEWOBJ of a call": call(SIZE, [1]) + op.empty_tuple() + op.newobj(),
    # items and states
    "items on OrderedDict": call(ORDERED) + op.mark() + value("a") + value(1) + op.setitems(),
    "item on OrderedDict": call(ORDERED) + value("a") + value(1) + op.setitem(),
    "item on Counter": call(COUNTER) + value("a") + value(1) + op.setitem(),
    "item on a list": value([1]) + value(0) + value(2) + op.setitem(),
    "item on Size": call(SIZE, [1]) + value(0) + value(2) + op.setitem(),
    "item on a tensor": FLOAT + value(0) + value(2) + op.setitem(),
    "item on bytearray": call(BYTEARRAY, "ab", "latin-1") + value(0) + value(2) + op.setitem(),
    "append to set": call(SET, [1]) + value(2) + op.append(),
    "append to bytearray": call(BYTEARRAY, "ab", "latin-1") + value(2) + op.append(),
    "append to OrderedDict": call(ORDERED) + value(2) + op.append(),
    "extend Size": call(SIZE, [1]) + op.mark() + value(2) + op.appends(),
    "extend by nothing": value([]) + op.mark() + op.appends(),
    "state of OrderedDict": call(ORDERED) + value({"_metadata": 1}) + op.build(),
    "state of OrderedDict, OrderedDict": call(ORDERED) + call(ORDERED, [["a", 1]]) + op.build(),
    "state of Counter": call(COUNTER) + STATE + op.build(),
    "state of Size": call(SIZE, [1]) + STATE + op.build(),
    "state of bytes": call(ENCODE, "a", "latin1") + STATE + op.build(),
    "state of a layout": call(LAYOUT, "torch.strided") + STATE + op.build(),
    "state of Parameter": call(PARAMETER, FLOAT) + value((False, False, call(ORDERED))) + op.build(),
    "state of NEWOBJ Parameter": PARAMETER + value((FLOAT,)) + op.newobj() + value((True, False, call(ORDERED)))
    + op.build(),
    "state of old tensor": TENSOR + op.empty_tuple() + op.newobj() + value((STORAGE, 0, (2, 3), (3, 1))) + op.build(),
    "state of name": SIZE + STATE + op.build(),
    "two states": call(ORDERED) + STATE + op.build() + STATE + op.build(),
    # storages and tensors
    "tensor": FLOAT,
    "tensor v1": op.tensor(rebuild="_rebuild_tensor"),
    "tensor of cuda class": op.rebuilt(op.storage_id("0", glob("torch.cuda", "FloatStorage"))),
    "bare storage": STORAGE,
    "persistent id that is text": value("storage") + op.binpersid(),
    "persistent id that is a list": value(["storage"]) + op.binpersid(),
    "persistent id of a module": value(("module", SIZE, None, None)) + op.binpersid(),
    "persistent id in Python 2's words": value((op.py2(b"storage"), glob("torch", "FloatStorage"), op.py2(b"0"),
                                                op.py2(b"cpu"), 6)) + op.binpersid(),
    "PERSID": op.line("P", "0"),
    "from type": call(FROM_TYPE, REBUILD, glob("torch", "Tensor"),
                      (STORAGE, 0, (2, 3), (3, 1), False, call(ORDERED)), {}),
    "from type, refused function": call(FROM_TYPE, glob("os", "system"), glob("torch", "Tensor"), ("true",), {}),
    "from type, refused type": call(FROM_TYPE, REBUILD, glob("m", "T"),
                                    (STORAGE, 0, (2, 3), (3, 1), False, call(ORDERED)), {}),
    # opcodes
    **{f"opcode {name}": data for name, data in {
        "INT": op.line("I", "1"), "LONG": op.line("L", "1L"), "FLOAT": op.line("F", "1"),
        "STRING": op.line("S", "'a'"), "UNICODE": op.line("V", "a"), "LONG4": op.long4(b"\1"),
        "BINSTRING": op.py2_long(b"a"), "SHORT_BINSTRING": op.py2(b"a"), "BINBYTES": op.binary(b"a"),
        "SHORT_BINBYTES": op.short_binary(b"a"), "BINBYTES8": op.binary8(b"a"), "BYTEARRAY8": op.bytearray8(b"a"),
        "SHORT_BINUNICODE": op.short_text("a"), "BINUNICODE8": op.text8(b"a"), "LIST": op.mark() + op.list_(),
        "DICT": op.mark() + op.dict_(), "FROZENSET": op.mark() + op.frozenset_(), "DUP": op.none() + op.dup()
        + op.tuple2(), "POP": op.none() * 2 + op.pop(), "POP_MARK": op.none() + op.mark() + op.pop_mark(),
        "MEMOIZE": op.none() + op.memoize(), "FRAME": op.frame(2) + op.none(), "PUT": op.none() + op.line("p", "1"),
        "GET": op.none() + put(1) + op.line("g", "1") + op.tuple2(), "LONG1": op.long1(b"\1"),
        "LONG_BINPUT": op.none() + put(300) + op.get(300) + op.tuple2(),
    }.items()},
}  # fmt: skip


def check_prediction(path: pathlib.Path, error: Exception | None) -> None:
    """Assert that ckpt expects of a file what torch said of it, or cannot read what
    torch refuses too.
    """
    try:
        with open(str(path)) as checkpoint:
            ours = checkpoint.weights_only
    except CkptError as unread:
        assert error is not None or is_stricter(unread)
        return
    assert (ours == ()) == (error is None), (path.name, ours, error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(tmp_path: pathlib.Path, name: str) -> None:
    """A program of which there is either a value or a refusal: what fails for another
    reason proves nothing.
    """
    path = tmp_path / "file.pth"
    path.write_bytes(op.torch_zip(pickled({"it": PROGRAMS[name]})))
    error = refused_by_torch(path)
    check_prediction(path, error)


ONES = {"OrderedDict": (), "Counter": (), "set": ([1],), "bytearray": ("a", "latin-1"), "Size": ([1],),
        "device": ("cpu",), "complex": (1.0, 2.0), "_get_layout": ("torch.strided",), "encode": ("a", "latin1")}  # fmt: skip
PLACES = {
    name.rpartition(".")[2]: name.rpartition(".")[0]
    for name in sorted(weights_only.ALLOWED)
}
TARGETS = {
    **{f"{name} called": call(glob(PLACES[name], name), *args) for name, args in ONES.items()},
    **{f"{name} made": glob(PLACES[name], name) + value(ONES[name]) + op.newobj()
       for name in ("OrderedDict", "Counter", "set", "bytearray", "Size", "complex")},
    "Parameter called": call(PARAMETER, FLOAT),
    "Parameter made": PARAMETER + value((FLOAT,)) + op.newobj(),
    "tensor": FLOAT,
    "old tensor": TENSOR + op.empty_tuple() + op.newobj(),
    "dtype": glob("torch", "float32"),
    "storage class": glob("torch", "FloatStorage"),
    "storage": call(glob("torch.storage", "UntypedStorage")),
    "typed storage": call(glob("torch.storage", "TypedStorage")),
}  # fmt: skip
DEEDS = {
    "nothing": b"",
    "append": value(1) + op.append(),
    "appends": op.mark() + value(1) + value(2) + op.appends(),
    "setitem": value("a") + value(1) + op.setitem(),
    "setitems": op.mark() + value("a") + value(1) + op.setitems(),
    "build dict": STATE + op.build(),
    "build tuple": value((op.none(), {"b": 2})) + op.build(),
    "call": op.empty_tuple() + op.reduce(),
    "call with 1": value((1,)) + op.reduce(),
    "new": op.empty_tuple() + op.newobj(),
}


@pytest.mark.parametrize("target", TARGETS)
def test_deeds(tmp_path: pathlib.Path, target: str) -> None:
    """Everything that an opcode can do to everything that weights_only can make."""
    checked = 0
    for deed, program in DEEDS.items():
        path = tmp_path / f"{deed}.pth"
        path.write_bytes(op.torch_zip(pickled({"it": TARGETS[target] + program})))
        error = refused_by_torch(path)
        if isinstance(error, pickle.UnpicklingError) and not any(
            word in str(error)
            for word in ("Can only", "unrecognized function", "Unsupported")
        ):
            # nothing that weights_only forbids: it went wrong, as it would without
            continue
        if error is None or isinstance(error, pickle.UnpicklingError):
            check_prediction(path, error)
            checked += 1
    assert checked


def called(name: str, *args: Any) -> bytes:
    return call(glob(PLACES[name], name), *args)


STATES = {
    "None": op.none(), "0": value(0), "1": value(1), "False": value(False), "0.0": value(0.0), "no text": value(""),
    "text": value("a"), "text of pairs": value(["ab", "cd"]), "no bytes": op.binary(b""), "()": value(()), "[]": value([]),
    "{}": value({}), "dict": STATE, "pairs": value([("a", 1), ["b", 2]]), "no pairs": value([("a", 1, 2)]),
    "no pair": value([1]), "pair of a list": value([([], 1)]), "tuple of pairs": value((("a", 1),)), "one of three": value((1, 2, 3)),
    "two empty ones": value(({}, op.none())), "two": value(({"a": 1}, {"b": 2})), "slots": value((op.none(), {"b": 2})),
    "slots that are pairs": value((op.none(), [("b", 2)])), "slots by number": value((op.none(), {1: 2})), "half": value(({"a": 1}, 0)),
    "0 and 1": value((0, 1)), "1 and 0": value((1, 0)), "pair of pairs": value((("a", 1), ("b", 2))),
    "OrderedDict()": call(ORDERED), "OrderedDict": call(ORDERED, [["a", 1]]), "OrderedDict by key": call(ORDERED) + value("a")
    + value(1) + op.setitem(), "OrderedDict made": ORDERED + value(([["a", 1]],)) + op.newobj(), "Counter()": call(COUNTER),
    "two of OrderedDict": value((call(ORDERED), call(ORDERED, [["a", 1]]))),
    "Counter": call(COUNTER, {"a": 1}), "set()": called("set"), "set": called("set", [1]), "set made": glob("builtins", "set")
    + value(([1],)) + op.newobj(), "Size()": called("Size"), "Size": called("Size", [1]),
    "complex 0": call(COMPLEX, 0.0, 0.0), "complex": call(COMPLEX, 0.0, 1.0),
    "encode": call(ENCODE, "", "latin1"), "device": call(DEVICE, 0), "bytearray": call(BYTEARRAY), "bytearray of text":
    call(BYTEARRAY, "ab", "latin-1"), "a name": SIZE, "a dtype": glob("torch", "float32"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [name for name in TARGETS if "tensor" not in name and "Parameter" not in name],
)
def test_states(tmp_path: pathlib.Path, target: str) -> None:
    """Each state on each object that is no tensor, which takes or refuses it for what
    it is.
    """
    path = tmp_path / "x.pth"
    wrong = []
    for state, program in STATES.items():
        path.write_bytes(
            op.torch_zip(pickled({"it": TARGETS[target] + program + op.build()}))
        )
        error = refused_by_torch(path)
        try:
            with open(str(path)) as checkpoint:
                ours = checkpoint.weights_only
        except CkptError as unread:
            refused = error is not None and "cannot set a state on the name" in str(
                unread
            )
            assert refused or is_stricter(unread)
            continue
        if (ours == ()) != (error is None):
            wrong.append((state, ours, error))
    assert wrong == []


# --------------------------------------------------------------------------------------
# what no torch.load gets past


def loads(path: pathlib.Path) -> list[bool]:
    """Whether torch loads a file with weights_only, and without."""
    found = []
    for strict in (True, False):
        try:
            torch.load(path, map_location="cpu", weights_only=strict)
        except Exception:
            found.append(False)
        else:
            found.append(True)
    return found


def says(path: pathlib.Path) -> list[bool]:
    with open(str(path)) as checkpoint:
        loadable = checkpoint.not_loadable is None
        return [loadable and not checkpoint.weights_only, loadable]


VERSIONS = [
    b"abc",
    b"",
    b"-1",
    b"0",
    b"1",
    b"3\n",
    b"10",
    b"11",
    b"9" * 30,
    b" \t3",
    b"+3",
    b"- 3",
    b"3x",
    b"3.5",
    b"x3",
]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_record_of_the_version_is_read_as_torch_reads_it(
    version: bytes, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(
        op.torch_zip(pickled({"a": op.tensor()}), swap={"version": version})
    )
    assert says(path) == loads(path)


ARGUMENTS: list[tuple[Any, ...]] = [
    (),
    ([],),
    ({},),
    ("a",),
    (1,),
    (None,),
    ([], 1),
    (1, 2),
    (1, 2, 3),
    (1, 2, 3, 4, 5, 6),
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize(
    "name",
    [
        "collections.OrderedDict",
        "collections.Counter",
        "torch.Size",
        "builtins.set",
        "builtins.complex",
        "_codecs.encode",
    ],
)
def test_calls_that_cannot_succeed(
    name: str, arguments: tuple[Any, ...], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(
        op.torch_zip(
            pickled(
                {"a": op.tensor(), "x": call(glob(*name.rsplit(".", 1)), *arguments)}
            )
        )
    )
    found = loads(path)
    if (name, arguments) in ODD_VALUES:
        assert found == [False, False]  # it is the value that it cannot take: not said
        return
    try:
        said = says(path)
    except CkptError as unread:
        assert is_stricter(unread)
        return
    assert said == found


ODD_VALUES = [
    ("torch.Size", ("a",)),
    ("builtins.complex", ("a",)),
    ("_codecs.encode", (1, 2)),
    ("_codecs.encode", (1, 2, 3)),
]


@pytest.mark.parametrize("fields", [4, 5, 6, 7])
@pytest.mark.parametrize("format", ["zip", "legacy"])
def test_persistent_ids_have_the_fields_of_their_format(
    format: str, fields: int, tmp_path: pathlib.Path
) -> None:
    pid = ("storage", glob("torch", "FloatStorage"), "0", "cpu", 6, None, 1)[:fields]
    storage = value(pid) + op.binpersid()
    rebuilt = call(
        glob("torch._utils", "_rebuild_tensor_v2"),
        storage,
        0,
        (2, 3),
        (3, 1),
        False,
        op.ordered_dict(),
    )
    path = tmp_path / "x.pth"
    path.write_bytes(
        (op.torch_zip if format == "zip" else op.legacy)(pickled({"a": rebuilt}))
    )
    try:
        found = says(path)
    except CkptError as unread:
        assert is_stricter(unread) or loads(path) == [False, False]
        return
    assert found == loads(path)
