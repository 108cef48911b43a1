"""Objects that change a value of the file when they are loaded: another place that
holds it would show what it was before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from opcodes import build, call, glob, newobj, pickled, torch_zip, value

from ckpt import inspect
from ckpt.formats import open
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

NUMBER = 9
TABLES: dict[str, Any] = {"_parameters": {}, "_buffers": {}, "_modules": {}}


def kept(node: Any) -> bytes:
    """A value, and a place in the memo for it."""
    return value(node) + op.put(NUMBER)


SHARED = op.get(NUMBER)


def optimizer(cls: str, **state: Any) -> bytes:
    usual = {"defaults": {}, "state": {}, "param_groups": []}
    return made(f"torch.optim.{cls.lower()}", cls, {**usual, **state})


def state_of_one(entry: Any) -> bytes:
    return op.empty_dict() + op.tensor() + value(entry) + op.setitem()


def layer_of(module: str, name: str, state: Any) -> bytes:
    return (
        glob(f"torch.nn.modules.{module}", name)
        + value(())
        + newobj()
        + value(state)
        + build()
    )


def bits(state: Any = None) -> bytes:
    made_bits = call(glob("numpy.random._pickle", "__bit_generator_ctor"), "PCG64")
    return made_bits if state is None else made_bits + value(state) + build()


def generator(source: bytes, state: Any) -> bytes:
    made_by = call(glob("numpy.random._pickle", "__generator_ctor"), source)
    return made_by + value(state) + build()


def pcg(state: int) -> dict[str, Any]:
    numbers = {"state": state, "inc": 1}
    return {
        "bit_generator": "PCG64",
        "state": numbers,
        "has_uint32": 0,
        "uinteger": 0,
    }


# The value, and the object that changes it where it is given the value.
CHANGED: dict[str, tuple[Any, Any]] = {
    "a number of steps": (
        {"step": 5, "exp_avg": 1.0},
        lambda of: optimizer("Adam", state=state_of_one(of)),
    ),
    "a number of ASGD": (
        {"step": op.tensor(), "eta": 0.1, "mu": op.tensor()},
        lambda of: optimizer("ASGD", state=state_of_one(of)),
    ),
    "a group": (
        {"params": [], "lr": 0.1},
        lambda of: optimizer("SGD", param_groups=[of]),
    ),
    "defaults": ({"lr": 0.1}, lambda of: optimizer("SGD", defaults=of)),
    "attributes of attention": (
        TABLES,
        lambda of: layer_of("activation", "MultiheadAttention", of),
    ),
    "attributes of a decoder": (
        TABLES,
        lambda of: layer_of("transformer", "TransformerDecoderLayer", of),
    ),
    "attributes of Upsample": (
        TABLES,
        lambda of: layer_of("upsampling", "Upsample", of),
    ),
    "attributes of settings": (
        {"_metadata": None, "_parent": None, "_content": {}},
        lambda of: (
            glob("omegaconf.dictconfig", "DictConfig")
            + value(())
            + newobj()
            + value(of)
            + build()
        ),
    ),
    "the types of settings": (
        made("omegaconf.base", "ContainerMetadata", {"key_type": None}),
        lambda of: made(
            "omegaconf.listconfig", "ListConfig", {"_metadata": of, "_content": []}
        ),
    ),
    "a bit generator": (bits(pcg(1)), lambda of: generator(of, pcg(2))),
    "a bit generator without a state": (bits(), lambda of: generator(of, pcg(2))),
}


STORAGES = {"0": bytes(24), "1": bytes(24)}


def groups(path: Path, *things: Any) -> set[str]:
    content = {"w": op.tensor(), **{str(i): thing for i, thing in enumerate(things)}}
    path.write_bytes(torch_zip(pickled(content), STORAGES))
    with open(str(path)) as checkpoint:
        return {row.group for row in checkpoint.imports}


@pytest.mark.parametrize("name", CHANGED)
def test_a_value_that_loading_changes_stands_in_one_place(
    name: str, tmp_path: Path
) -> None:
    node, maker = CHANGED[name]
    assert groups(tmp_path / "a.pth", maker(kept(node))) == {"known"}
    assert "called" in groups(tmp_path / "b.pth", kept(node), maker(SHARED))
    assert "called" in groups(tmp_path / "c.pth", maker(kept(node)), SHARED)
    # Another object that holds it counts too, and so does one that is thrown away.
    table = call(glob("collections", "OrderedDict"), [("x", SHARED)])
    assert "called" in groups(tmp_path / "d.pth", maker(kept(node)), table)
    filled = op.ordered_dict() + op.mark() + value("x") + SHARED + op.setitems()
    assert "called" in groups(tmp_path / "f.pth", maker(kept(node)), filled)
    thrown = kept(node) + op.pop() + maker(SHARED) + op.pop() + SHARED
    assert "called" in groups(tmp_path / "e.pth", thrown)


AROUND: dict[str, tuple[Any, Any]] = {
    "the list of groups": (
        [{"params": [], "lr": 0.1}],
        lambda of: optimizer("SGD", param_groups=of),
    ),
    "the attributes of an optimizer": (
        {"defaults": {}, "state": {}, "param_groups": [{"params": [], "lr": 0.1}]},
        lambda of: glob("torch.optim.sgd", "SGD") + value(()) + newobj() + of + build(),
    ),
    "the states of all parameters": (
        state_of_one({"step": 5}),
        lambda of: optimizer("Adam", state=of),
    ),
    "a default dict of the states": (
        call(glob("collections", "defaultdict"), glob("builtins", "dict"))
        + op.tensor()
        + value({"step": 5})
        + op.setitem(),
        lambda of: optimizer("Adam", state=of),
    ),
    "the arguments of a copy": (
        (op.tensor(key="1"), glob("torch", "float32"), "cpu", True),
        lambda of: call(
            glob("torch._tensor", "_rebuild_from_type_v2"),
            glob("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
            glob("torch", "Tensor"),
            of,
            {"label": 5},
        ),
    ),
}
"""Values around one that loading changes."""


@pytest.mark.parametrize("name", AROUND)
def test_what_lies_around_a_changed_value_stands_in_one_place(
    name: str, tmp_path: Path
) -> None:
    node, maker = AROUND[name]
    assert groups(tmp_path / "a.pth", maker(kept(node))) == {"known"}
    assert "called" in groups(tmp_path / "b.pth", kept(node), maker(SHARED))
    assert "called" in groups(tmp_path / "c.pth", maker(kept(node)), [SHARED])


def jagged(marks: Any, *, is_alone: bool = False) -> bytes:
    """A jagged tensor whose longest length has marks, by the call of its class or by
    that of its parts alone.
    """
    typed = glob("torch._tensor", "_rebuild_from_type_v2")
    tensor, rebuild = (
        glob("torch", "Tensor"),
        glob("torch._utils", "_rebuild_tensor_v2"),
    )
    of_numbers = op.storage_id("0", "FloatStorage", 6)
    arguments = (of_numbers, 0, (6, 0), (1, 1), False, op.ordered_dict())
    longest = call(typed, rebuild, tensor, arguments, {"_specialize_on": marks})
    fields = {
        "values": op.tensor(),
        "offsets": op.tensor((1,), (1,), key="1", cls="LongStorage", numel=3),
        "_metadata_cache": {"max_seqlen": longest},
    }
    module = "torch.nested._internal.nested_tensor"
    made_by, cls = glob(module, "_rebuild_njt"), glob(module, "NestedTensor")
    if is_alone:
        return call(made_by, fields)
    return call(typed, made_by, cls, (fields,), {})


def test_the_marks_of_a_jagged_tensor_stand_in_one_place(tmp_path: Path) -> None:
    marks = kept({0: ["x"]})
    path = tmp_path / "a.pth"
    assert groups(path, jagged(marks)) == {"known"}
    assert "called" in groups(path, marks, jagged(SHARED, is_alone=True))
    assert "called" in groups(path, marks, jagged(SHARED))
    loaded = torch.load(path, weights_only=False)
    assert loaded["0"] == {0: []}


def test_an_object_that_changes_its_values_may_stand_anywhere(tmp_path: Path) -> None:
    """A scheduler holds the optimizer that stands beside it."""
    states = state_of_one({"step": 5})
    whole = optimizer("Adam", state=states, param_groups=[{"params": []}])
    assert groups(tmp_path / "a.pth", kept(whole), SHARED, [SHARED]) == {"known"}


def test_one_number_of_steps_changes_the_states_of_all_parameters(
    tmp_path: Path,
) -> None:
    """Adagrad makes tensors anew where the first number of steps is none."""
    step = op.tensor((1,), (1,), key="1", cls="LongStorage", numel=3)

    def states(first: Any) -> bytes:
        begun = state_of_one({"step": first, "sum": 0.0})
        return begun + op.tensor() + SHARED + op.setitem()

    other = kept({"step": step, "sum": 0.0})
    path = tmp_path / "a.pth"
    assert "called" in groups(path, other, optimizer("Adagrad", state=states(3)))
    tensors = optimizer("Adagrad", state=states(op.tensor()))
    assert groups(path, other, tensors) == {"known"}


UNCHANGED: dict[str, tuple[Any, Any]] = {
    "steps that are tensors": (
        {"step": op.tensor(), "exp_avg": 1.0},
        lambda of: optimizer("Adam", state=state_of_one(of)),
    ),
    "attributes that are there": (
        {**TABLES, "_qkv_same_embed_dim": True},
        lambda of: layer_of("activation", "MultiheadAttention", of),
    ),
    "a bit generator with the same state": (
        bits(pcg(1)),
        lambda of: generator(of, pcg(1)),
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_value_that_stays_may_stand_anywhere(name: str, tmp_path: Path) -> None:
    node, maker = UNCHANGED[name]
    assert groups(tmp_path / "a.pth", kept(node), maker(SHARED)) == {"known"}


def test_states_of_many_numbers_are_not_compared(tmp_path: Path) -> None:
    def nested(levels: int) -> Any:
        return tuple(nested(levels - 1) for _ in range(30)) if levels else 1

    def state() -> dict[str, Any]:
        return {"bit_generator": "PCG64", "state": {"state": nested(3), "inc": 1}}

    content = kept(bits(state())), generator(SHARED, state())
    assert "called" in groups(tmp_path / "a.pth", *content)


def test_the_finding_says_that_a_value_is_changed(tmp_path: Path) -> None:
    node, maker = CHANGED["a number of steps"]
    groups(tmp_path / "a.pth", kept(node), maker(SHARED))
    report = inspect(tmp_path / "a.pth")
    (finding,) = [each for each in report.findings if each.level == "error"]
    assert "torch.optim.adam.Adam" in finding.message
    assert "changes a value that another place holds" in finding.message


def test_whole_objects_as_torch_writes_them_are_harmless(tmp_path: Path) -> None:
    for count in (1, 2):
        layers = [
            torch.nn.LSTM(2, 3, count, bidirectional=count == 2),
            torch.nn.GRU(2, 3, bias=False),
            torch.nn.LSTM(2, 3, proj_size=1),
            torch.nn.MultiheadAttention(4, 2),
            torch.nn.Upsample(scale_factor=2),
            torch.nn.TransformerDecoderLayer(4, 2),
            torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2)),
            torch.nn.utils.weight_norm(torch.nn.Linear(2, 2)),
        ]
        model = torch.nn.ModuleList(layers)
        steps = [
            torch.optim.Adam(model.parameters()),
            torch.optim.ASGD(model.parameters()),
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        ]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for step in steps:
            step.step()
        random = np.random.RandomState(3)
        random.standard_normal()
        content = {
            "model": model,
            "steps": steps,
            "plans": [torch.optim.lr_scheduler.StepLR(step, 1) for step in steps],
            "states": [step.state_dict() for step in steps],
            "random": random,
            "bits": random._bit_generator,  # type: ignore[attr-defined]
        }
        path = tmp_path / f"{count}.pth"
        torch.save(content, path, pickle_protocol=2 + 2 * (count - 1))
        with open(str(path)) as checkpoint:
            wrong = [row for row in checkpoint.imports if row.group == "called"]
        assert not wrong


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["plain", "of a class"])
def test_a_tensor_that_is_no_copy_shares_no_data(
    is_wrapped: bool, tmp_path: Path
) -> None:
    """torch sets the flag, or the attributes, on the data itself then."""
    copy = glob("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")

    def copied_to(data: Any, dtype: str, device: str) -> bytes:
        args = (data, glob("torch", dtype), device, True)
        if not is_wrapped:
            return call(copy, *args)
        typed = glob("torch._tensor", "_rebuild_from_type_v2")
        return call(typed, copy, glob("torch", "Tensor"), args, {"label": 5})

    for device, dtype, is_changed in (
        ("cpu", "float32", True),
        ("cpu", "float64", False),
        ("xla", "float32", False),
        ("cuda", "float32", True),
    ):
        path = tmp_path / "x.pth"
        place = "cuda:0" if device == "cuda" else "cpu"
        data = op.tensor(key="1", location=place)
        found = groups(path, kept(data), copied_to(SHARED, dtype, device))
        assert ("called" in found) is is_changed
        assert "called" not in groups(path, copied_to(data, dtype, device))


def test_a_set_of_a_dict_is_refused(tmp_path: Path) -> None:
    for name in ("set", "frozenset", "list", "tuple"):
        path = tmp_path / "x.pth"
        of_keys = call(glob("builtins", name), {"a": 1})
        path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": of_keys})))
        with pytest.raises(CkptError, match="takes the keys of a dict"):
            open(str(path))


def test_a_path_of_another_system_has_no_line(tmp_path: Path) -> None:
    """Files with such a path come from another machine, and Python refuses it here."""
    here, there = ("Windows", "Posix") if os.name == "nt" else ("Posix", "Windows")
    path = tmp_path / "x.pth"
    for module in ("pathlib", "pathlib._local"):
        for name in (here, there):
            folder = call(glob(module, f"{name}Path"), "runs", "a")
            path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": folder})))
            report = inspect(path)
            if name == here:
                assert report.load is not None
                continue
            assert report.load is None
            note = str(report.to_json()["load_note"])
            assert note.startswith(f"Python makes {module}.{name}Path on ")
    # As a value nobody calls it, and under another module it is another class.
    for thing in (glob("pathlib", f"{there}Path"), glob("mine", f"{there}Path")):
        path.write_bytes(torch_zip(pickled({"w": op.tensor(), "x": thing})))
        assert "Python makes" not in str(inspect(path).to_json()["load_note"])


def test_a_unit_of_time_that_counts_nothing_is_not_harmless(tmp_path: Path) -> None:
    for numbers, group in (((7, 1), "known"), ((0, 1), "called"), ((1, 0), "called")):
        unit = (op.binary(b"D"), *numbers, 1)
        of_time = call(glob("numpy", "dtype"), "M8", False, True)
        of_time += value((4, "<", None, None, None, -1, -1, 0, ({}, unit))) + build()
        assert group in groups(tmp_path / "x.pth", of_time)


# --- copies ---------------------------------------------------------------------------

MANY = 100_000


def copied(path: Path, first: bytes, again: bytes, times: int) -> set[str]:
    """Make an object, and more of them that share its state."""
    rest = (again + op.pop()) * times
    return groups(path, first + op.pop() + rest + op.none())


def ordered(count: int) -> bytes:
    pairs = b"".join(value(number) + op.none() for number in range(count))
    return op.ordered_dict() + op.mark() + pairs + op.setitems()


def of_size(count: int) -> bytes:
    return call(glob("torch", "Size"), [0] * count)


def partial_of(args: Any, keywords: Any) -> tuple[bytes, bytes]:
    function = glob("torch.nn.functional", "relu")
    state = value((function, args, keywords, None))
    new = call(glob("functools", "partial"), function)
    return new + state + op.put(NUMBER) + build(), new + SHARED + build()


def lstm_of(**attributes: Any) -> tuple[bytes, bytes]:
    state = {
        **TABLES,
        "training": True,
        "mode": "LSTM",
        "num_layers": 0,
        "bias": True,
        "bidirectional": False,
        "proj_size": 0,
        "_all_weights": [["weight_ih_l0"]],
        "_flat_weights_names": [],
        "_flat_weights": [],
        **attributes,
    }
    new = glob("torch.nn.modules.rnn", "LSTM") + value(()) + newobj()
    return new + kept(state) + build(), new + SHARED + build()


def handle() -> tuple[bytes, bytes]:
    new = glob("torch.utils.hooks", "RemovableHandle") + value(()) + newobj()
    state = value((None, 0, ordered(MANY)))
    return new + state + op.put(NUMBER) + build(), new + SHARED + build()


def masked() -> tuple[bytes, bytes]:
    def dtype(code: str, order: str) -> bytes:
        new = call(glob("numpy", "dtype"), code, False, True)
        return new + value((3, order, None, None, None, -1, -1, 0)) + build()

    array = glob("numpy", "ndarray")
    reconstruct = glob("numpy.core.multiarray", "_reconstruct")
    fill = call(reconstruct, array, (0,), op.binary(b"b"))
    fill += value((1, (MANY,), dtype("i1", "|"), False, op.binary(bytes(MANY))))
    state = (1, (1,), dtype("f8", "<"), False, op.binary(bytes(8)), op.binary(b"0"))
    new = call(
        glob("numpy.ma.core", "_mareconstruct"),
        glob("numpy.ma.core", "MaskedArray"),
        array,
        (0,),
        op.binary(b"b"),
    )
    first = new + value((*state, fill + build())) + op.put(NUMBER) + build()
    return first, new + SHARED + build()


COPIED = {
    "a table of a handle": handle(),
    "keywords of a partial": partial_of((), ordered(MANY)),
    "arguments of a partial": partial_of(of_size(MANY), {}),
    "names of weights": lstm_of(_flat_weights_names=["weight_ih_l0"] * MANY),
    "weights": lstm_of(_flat_weights=[None] * MANY),
    "a fill value": masked(),
}


def test_a_long_list_of_weights_counts_for_the_second_layer(tmp_path: Path) -> None:
    first, again = lstm_of(_flat_weights=[None] * 1_100_000)
    assert "called" not in copied(tmp_path / "a.pth", first, again, 0)
    assert "called" in copied(tmp_path / "b.pth", first, again, 1)


@pytest.mark.parametrize("name", COPIED)
def test_what_many_objects_copy_of_one_state_is_counted(
    name: str, tmp_path: Path
) -> None:
    first, again = COPIED[name]
    assert "called" not in copied(tmp_path / "a.pth", first, again, 2)
    assert "called" in copied(tmp_path / "b.pth", first, again, 500)
