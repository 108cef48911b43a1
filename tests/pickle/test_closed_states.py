"""States that code of Python, torch or a package acts on when they are set: only what
it writes itself is harmless.
"""

from __future__ import annotations

import argparse
import collections
import io
import uuid
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

from ckpt.formats import open

pytestmark = oracle.QUIET

CALLER = partial(BELL)
NAMED = made("argparse", "Namespace", {"_get_args": CALLER})
COUNT = call(glob("itertools", "count"), 0, 0)
ENDLESS = call(glob("itertools", "count"), 0)
CHAIN = made("collections", "ChainMap", {"maps": ENDLESS})
MESH, SPEC = "torch.distributed.device_mesh", "torch.distributed.tensor._dtensor_spec"
WRAPPED = "torch.nn.modules.module"
LAYER: dict[str, Any] = {"_parameters": {}, "_buffers": {}, "_modules": {}}
MODULE = made("torch.nn.modules.linear", "Identity", LAYER)
LSTM = {
    **LAYER,
    "_all_weights": [["weight_ih_l0"]],
    "bias": True,
    "bidirectional": True,
    "num_layers": 1,
    "mode": "LSTM",
}


def layer(**tables: Any) -> bytes:
    return made("torch.nn.modules.linear", "Identity", {**LAYER, **tables})


def lstm(**attributes: Any) -> bytes:
    state = {**LSTM, **attributes}
    return made(
        "torch.nn.modules.rnn",
        "LSTM",
        {key: each for key, each in state.items() if each is not ...},
    )


def doubled(levels: int) -> bytes:
    """Layers of which each holds the next one twice."""
    program = MODULE
    for level in range(levels):
        slot = 100 + level
        inner = {"0": program + op.put(slot), "1": op.get(slot)}
        program = layer(_modules=inner)
    return program


def omegaconf(**types: Any) -> bytes:
    """A DictConfig whose metadata has other types."""
    usual = {
        "ref_type": None,
        "object_type": None,
        "key": None,
        "key_type": None,
        "element_type": None,
    }
    metadata = made("omegaconf.base", "ContainerMetadata", {**usual, **types})
    state = {"_content": {}, "_metadata": metadata, "_parent": None}
    return made("omegaconf.dictconfig", "DictConfig", state)


def spec(**attributes: Any) -> bytes:
    """A DTensorSpec as torch 2.13 writes it, with other attributes."""
    usual = {
        "mesh": made(MESH, "DeviceMesh", {"_thread_id": None}),
        "placements": (),
        "tensor_meta": None,
    }
    return made(SPEC, "DTensorSpec", {**usual, "_hash": None, **attributes})


def wrapper() -> bytes:
    cls = glob("torch.distributed.tensor", "DTensor")
    device = call(glob("torch", "device"), "cpu")
    args = (
        cls,
        glob("torch", "float32"),
        (4,),
        (1,),
        0,
        glob("torch", "strided"),
        device,
        False,
    )
    return call(glob("torch._utils", "_rebuild_wrapper_subclass"), *args)


def dtensor(state: Any) -> bytes:
    cls = glob("torch.distributed.tensor", "DTensor")
    device = call(glob("torch", "device"), "cpu")
    args = (
        cls,
        glob("torch", "float32"),
        (4,),
        (1,),
        0,
        glob("torch", "strided"),
        device,
        False,
    )
    function = glob("torch._utils", "_rebuild_wrapper_subclass")
    return call(
        glob("torch._tensor", "_rebuild_from_type_v2"), function, cls, args, state
    )


CALLED: dict[str, bytes] = {
    # --- Python ---
    "a function that closes bytes": made(
        "io", "BytesIO", (binary(b"x"), 0, {"close": CALLER})
    ),
    "a function that closes a text": made(
        "_io", "StringIO", ("x", "", 0, {"close": CALLER})
    ),
    "a function on bytes": made("io", "BytesIO", (binary(b"x"), 0, {"hint": CALLER})),
    "data that closes bytes": made("io", "BytesIO", (binary(b"x"), 0, {"close": 1})),
    "an object as the safety of an id": made(
        "uuid", "UUID", {"int": 1, "is_safe": NAMED}
    ),
    "a list as the safety of an id": made("uuid", "UUID", {"int": 1, "is_safe": [1]}),
    "an id that is no number": made("uuid", "UUID", {"int": 1.0}),
    "an id with slots": made("uuid", "UUID", (None, {"int": 1, "is_safe": NAMED})),
    "what the text of a Namespace calls": NAMED,
    "endless maps": CHAIN,
    "a count that stands still": COUNT,
    "a dict that is filled behind its back": call(
        glob("copyreg", "_reconstructor"),
        glob("collections", "OrderedDict"),
        glob("builtins", "dict"),
        {"a": 1},
    ),
    "an OrderedDict without its call": call(
        glob("copyreg", "_reconstructor"),
        glob("collections", "OrderedDict"),
        glob("builtins", "object"),
        None,
    ),
    "a size that is filled as a tuple": call(
        glob("copyreg", "_reconstructor"),
        glob("torch", "Size"),
        glob("builtins", "tuple"),
        (1, 2),
    ),
    "a list of the keys of a dict": call(
        glob("copyreg", "_reconstructor"),
        glob("easydict", "List"),
        glob("builtins", "list"),
        {"a": 1},
    ),
    # --- torch.distributed ---
    "a module as the mesh of a DTensor": spec(mesh=MODULE),
    "a module as a placement": spec(placements=(MODULE,)),
    "endless placements": spec(placements=ENDLESS),
    "a Namespace as the shape of a DTensor": spec(tensor_meta=NAMED),
    "a hash that is asked": spec(_hash=CHAIN),
    "slots of a specification": made(
        SPEC, "DTensorSpec", (None, {"tensor_meta": None})
    ),
    "slots of an older specification": made(
        "torch.distributed._tensor._dtensor_spec",
        "DTensorSpec",
        (None, {"tensor_meta": None}),
    ),
    "slots of a scheduler": made(
        "torch.optim.lr_scheduler", "StepLR", (None, {"gamma": 1})
    ),
    "a module as the root of a mesh": made(MESH, "DeviceMesh", {"_root_mesh": MODULE}),
    "endless names of a mesh": made(MESH, "DeviceMesh", {"_dim_group_names": ENDLESS}),
    "a module as an axis": made(
        "torch.distributed._mesh_layout", "_MeshLayout", {"axes": (MODULE,)}
    ),
    "a DTensor with another specification": call(
        glob("torch._utils", "_rebuild_parameter"),
        *(
            dtensor({"_local_tensor": op.tensor(), "_spec": MODULE}),
            False,
            op.ordered_dict(),
        ),
    ),
    "a DTensor whose specification comes later": wrapper()
    + value({"_spec": MODULE})
    + build(),
    # --- layers ---
    "a function among the layers": layer(_modules={"act": CALLER}),
    "a layer by a name of Python": layer(_modules={"__deepcopy__": MODULE}),
    "a name that is no text": layer(_modules={1: MODULE}),
    "a function among the layers of a dict": layer(
        _modules=call(glob("collections", "OrderedDict"), [("act", CALLER)])
    ),
    "maps among the parameters": layer(_parameters={"a": CHAIN}),
    "a module among the parameters": layer(_parameters={"a": MODULE}),
    "a Namespace among the buffers": layer(
        _buffers={"a": made("argparse", "Namespace", {})}
    ),
    "a function among the layers of a module": made(
        "torch.nn.parallel.distributed",
        "DistributedDataParallel",
        {**LAYER, "_modules": {"a": CALLER}},
    ),
    "a layer with a bias among its weights": lstm(
        bias=..., _parameters={"bias": op.tensor()}
    ),
    "a bias that is asked": lstm(bias=MODULE),
    "a size of projections that is compared": lstm(proj_size=1.5),
    "names of weights that are not there": lstm(_all_weights=...),
    "rows in the place of weights": lstm(_flat_weights=op.tensor((10**7,), (0,))),
    "a weight by the name of an attribute": lstm(
        _flat_weights_names=["proj_size"], _flat_weights=[op.tensor()]
    ),
    "a name of weights that is set": lstm(_all_weights=[["_all_weights"]]),
    "weights in a dict": lstm(_flat_weights={0: op.tensor()}),
    "a weight that becomes None": layer(
        _parameters={"_is_full_backward_hook": op.tensor()}
    ),
    "a layer that becomes None": layer(_modules={"_is_full_backward_hook": MODULE}),
    "a function behind state_dict": layer(
        _state_dict_hooks={
            0: call(
                glob("builtins", "getattr"),
                glob("torch.nn.modules.module", "Module"),
                "load_state_dict",
            )
        }
    ),
    "data behind state_dict": layer(_state_dict_pre_hooks={0: 1}),
    "a layer behind state_dict": layer(_state_dict_hooks={0: MODULE}),
    "a function of torch behind state_dict": layer(
        _state_dict_hooks={0: glob("torch.nn.functional", "relu")}
    ),
    "a function of torch behind load_state_dict": layer(
        _load_state_dict_pre_hooks={0: BELL}
    ),
    "a partial behind load_state_dict": layer(
        _load_state_dict_post_hooks=call(
            glob("collections", "OrderedDict"), [(0, CALLER)]
        )
    ),
    "a wrapped function behind load_state_dict": layer(
        _load_state_dict_pre_hooks={
            0: made(WRAPPED, "_WrappedHook", {"hook": CALLER, "with_module": False})
        }
    ),
    "a wrapper in a wrapper behind load_state_dict": layer(
        _load_state_dict_pre_hooks={
            0: made(
                WRAPPED,
                "_WrappedHook",
                {"hook": made(WRAPPED, "_WrappedHook", {"hook": CALLER})},
            )
        }
    ),
    "a norm that is another object": made(
        "torch.nn.utils.spectral_norm",
        "SpectralNormLoadStateDictPreHook",
        {"fn": made("types", "SimpleNamespace", {"_solve_v_and_rescale": CALLER})},
    ),
    "the schedulers of a scheduler": made(
        "torch.optim.lr_scheduler",
        "SequentialLR",
        {"_schedulers": [made("types", "SimpleNamespace", {"state_dict": CALLER})]},
    ),
    "a chain of what are no schedulers": made(
        "torch.optim.lr_scheduler",
        "ChainedScheduler",
        {"_schedulers": [made("argparse", "Namespace", {"state_dict": CALLER})]},
    ),
    "a text that hides names of buffers": layer(_non_persistent_buffers_set="a weight"),
    "a dict that hides names of buffers": layer(
        _non_persistent_buffers_set={"weight": 1}
    ),
    "a scalar that hides a name of a buffer": layer(
        _non_persistent_buffers_set=call(
            glob("builtins", "set"), [call(glob("numpy", "str_"), "weight")]
        )
    ),
    "a decay that becomes decoupled": made(
        "torch.optim.adamw",
        "AdamW",
        {
            "defaults": {},
            "state": {},
            "param_groups": [{"params": [], "decoupled_weight_decay": False}],
        },
    ),
    "a state that is thrown away": made(
        "torch.backends.cudnn.rnn", "Unserializable", {"inner": 1}
    ),
    "layers inside each other twice": doubled(22),
    "a layer inside of itself": glob("torch.nn.modules.linear", "Identity")
    + value(())
    + newobj()
    + op.put(9)
    + value({**LAYER, "_modules": {"0": op.get(9)}})
    + build(),
    "a hook that is asked for its module": made(
        "torch.nn.modules.module",
        "_WrappedHook",
        {"hook": None, "with_module": CHAIN, "module": None},
    ),
    # --- settings ---
    "settings that copy a module": call(glob("yacs.config", "CfgNode"), {"x": MODULE}),
    "settings that make an object": call(glob("easydict", "EasyDict"), [("x", NAMED)]),
    "the type of keys in brackets": omegaconf(key_type=(NAMED,)),
    "the type of items in brackets": omegaconf(element_type=NAMED),
}


def groups(path: Path, program: bytes) -> dict[str, str]:
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": program}))
    )
    return groups_of(path)


def groups_of(path: Path) -> dict[str, str]:
    """The names of a file that are not just known, with their groups."""
    with open(str(path)) as checkpoint:
        return {
            f"{row.module}.{row.name}": row.group
            for row in checkpoint.imports
            if row.group != "known"
        }


@pytest.mark.parametrize("name", CALLED)
def test_a_state_that_is_acted_on_is_an_error(name: str, tmp_path: Path) -> None:
    assert "called" in groups(tmp_path / "x.pth", CALLED[name]).values()
    assert (
        "called"
        in groups(tmp_path / "y.pth", CALLED[name] + op.pop() + op.none()).values()
    )


def test_the_gate_stops_a_function_that_closes(tmp_path: Path) -> None:
    groups(tmp_path / "x.pth", CALLED["a function that closes bytes"])
    done = ckpt("inspect", tmp_path / "x.pth", "--fail-on", "called-on-load")
    assert done.code == 1 and b"torch.load" not in done.out


WRAPPER: dict[str, Any] = {
    "subclass": glob("numpy", "ndarray"),
    "shape": (1,),
    "order": "C",
    "dtype": call(glob("numpy", "dtype"), "u1", False, True),
    "allow_mmap": True,
    "numpy_array_alignment_bytes": None,
}
READERS: dict[str, tuple[dict[str, Any], str | None]] = {
    "as joblib writes it": ({}, None),
    "a function that reads": ({"read": CALLER}, "called"),
    "a function of another name": ({"other": CALLER}, "called"),
    "a function as the shape": ({"shape": CALLER}, "called"),
    "data": ({"other": 1}, "odd"),
}


@pytest.mark.parametrize("name", READERS)
def test_what_joblib_calls_on_its_arrays_is_an_error(name: str, tmp_path: Path) -> None:
    further, group = READERS[name]
    array = made("joblib.numpy_pickle", "NumpyArrayWrapper", {**WRAPPER, **further})
    found = groups(tmp_path / "x.pth", array)
    assert set(found.values()) == (set() if group is None else {group})


def named(stream: Any) -> Any:
    stream.title = "x"
    return stream


def hidden_buffer() -> torch.nn.Module:
    module = torch.nn.Identity()
    module.register_buffer("a", torch.ones(2), persistent=False)
    return module


OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
WRITTEN: dict[str, Any] = {
    "an average by a cosine": torch.optim.swa_utils.SWALR(OPTIMIZER, 0.1),
    "an average by a line": torch.optim.swa_utils.SWALR(
        OPTIMIZER, 0.1, anneal_strategy="linear"
    ),
    "a cycle": torch.optim.lr_scheduler.CyclicLR(
        OPTIMIZER, 0.1, 0.2, mode="exp_range", cycle_momentum=False
    ),
    "bytes": io.BytesIO(b"x"),
    "a text": io.StringIO("x"),
    "bytes with a title": named(io.BytesIO(b"x")),
    "an id": uuid.uuid4(),
    "an id of a computer": uuid.UUID(int=5, is_safe=uuid.SafeUUID.unsafe),
    "settings": argparse.Namespace(a=1, f=torch.nn.functional.relu),
    "maps": collections.ChainMap({"a": 1}, {}),
    "schedulers in a row": torch.optim.lr_scheduler.SequentialLR(
        OPTIMIZER,
        [
            torch.optim.lr_scheduler.ConstantLR(OPTIMIZER),
            torch.optim.lr_scheduler.StepLR(OPTIMIZER, 1),
        ],
        [3],
    ),
    "a chain of schedulers": torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.ConstantLR(OPTIMIZER)]
    ),
    "a lazy layer": torch.nn.LazyLinear(3),
    "a norm of weights": torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2)),
    "a recurrent layer with a norm": torch.nn.utils.weight_norm(
        torch.nn.LSTM(2, 3), "weight_hh_l0"
    ),
    "a layer in another dtype": torch.nn.GRU(2, 3, 2, bidirectional=True).double(),
    "decoupled decay": torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]),
    "a buffer that is not saved": hidden_buffer(),
    "data sets beside each other": torch.utils.data.StackDataset(
        torch.utils.data.TensorDataset(torch.ones(2))
    ),
    "records with a mask": np.ma.array([("a", 1)], dtype=[("x", "U3"), ("y", "i4")]),
}


@pytest.mark.parametrize("table", ["_parameters", "_buffers"])
def test_an_attribute_that_hides_a_weight_is_a_warning(
    table: str, tmp_path: Path
) -> None:
    weights = {"bias": op.tensor()}
    for tables in (
        weights,
        op.ordered_dict() + op.mark() + value("bias") + op.tensor() + op.setitems(),
    ):
        for program in (
            layer(**{table: tables, "bias": None}),
            lstm(**{table: tables}),
        ):
            found = groups(tmp_path / "x.pth", program)
            assert set(found.values()) == {"odd"}
        assert groups(tmp_path / "y.pth", layer(**{table: tables, "other": 1})) == {}


def test_layers_at_some_places_are_harmless(tmp_path: Path) -> None:
    assert groups(tmp_path / "x.pth", doubled(12)) == {}


def test_a_recurrent_layer_that_computes_with_other_weights_is_a_warning(
    tmp_path: Path,
) -> None:
    """`state_dict()` and ckpt show the parameters, and `forward` takes the list."""
    names = ["weight_ih_l0"]
    own = op.tensor() + op.put(9)
    state: dict[str, Any] = {"_all_weights": [names], "_flat_weights_names": names}
    state["_parameters"] = {names[0]: own}
    for weights, group in (
        ([op.get(9)], {}),
        ([op.tensor()], {}),
        ([op.tensor((6,), (1,))], {"torch.nn.modules.rnn.LSTM": "odd"}),
        ([None], {"torch.nn.modules.rnn.LSTM": "odd"}),
        ([], {"torch.nn.modules.rnn.LSTM": "odd"}),
    ):
        program = lstm(**state, _flat_weights=weights)
        assert groups(tmp_path / "x.pth", program) == group


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_harmless(name: str, tmp_path: Path) -> None:
    for protocol in (2, 4, 5):
        path = tmp_path / f"{protocol}.pth"
        torch.save({"x": WRITTEN[name]}, path, pickle_protocol=protocol)
        assert groups_of(path) == {}


def nested(module: str, name: str, state: Any, **items: Any) -> bytes:
    """A dict of settings, made as copyreg makes it."""
    made_dict = glob(module, name) + value(()) + newobj()
    filled = b"".join(
        value(key) + value(each) + op.setitem() for key, each in items.items()
    )
    return made_dict + filled + value(state) + build()


INNER = nested("easydict", "EasyDict", {"c": 1}, c=1)
FROZEN = {
    "__immutable__": True,
    "__deprecated_keys__": call(glob("builtins", "set"), []),
    "__renamed_keys__": {},
    "__new_allowed__": False,
}
SETTINGS: dict[str, bytes] = {
    "nested settings": nested(
        "easydict", "EasyDict", {"b": INNER, "data": INNER}, b=INNER, data=INNER
    ),
    "lists of settings": nested(
        "easydict", "EasyDict", {"b": [INNER, [1, INNER]]}, b=[INNER, [1, INNER]]
    ),
    "frozen settings": nested(
        "yacs.config",
        "CfgNode",
        FROZEN,
        a=1,
        b=nested("yacs.config", "CfgNode", FROZEN, c=1),
    ),
    "an omegaconf with types": omegaconf(
        ref_type=glob("typing", "Any"),
        key_type=glob("builtins", "str"),
        element_type=glob("typing", "Any"),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_harmless(name: str, tmp_path: Path) -> None:
    assert groups(tmp_path / "x.pth", SETTINGS[name]) == {}


def test_an_attribute_without_an_end_is_a_warning(tmp_path: Path) -> None:
    count = call(glob("itertools", "count"), 3)
    assert groups(tmp_path / "x.pth", value([count])) == {}
    for cls in ("SimpleNamespace", "Namespace"):
        module = {"SimpleNamespace": "types", "Namespace": "argparse"}[cls]
        program = made(module, cls, {"ids": count})
        assert groups(tmp_path / "x.pth", program) == {f"{module}.{cls}": "odd"}


def test_a_range_without_an_end_is_a_warning(tmp_path: Path) -> None:
    """torch goes through the parts of a transform when it shows or copies it."""
    module = "torch.distributions.transforms"
    for length, said in ((3, {}), (1 << 60, {f"{module}.ComposeTransform": "odd"})):
        numbers = call(glob("builtins", "range"), 0, length)
        state = {"parts": numbers, "_cache_size": 0}
        assert (
            groups(tmp_path / "x.pth", made(module, "ComposeTransform", state)) == said
        )


def test_a_function_in_settings_is_a_warning(tmp_path: Path) -> None:
    program = nested(
        "easydict", "EasyDict", {"b": NAMED.replace(b"_get_args", b"some_name")}
    )
    assert groups(tmp_path / "x.pth", program) == {"easydict.EasyDict": "odd"}
