"""The rules of torch: its rebuild calls, layers, optimizers, tensors, and the objects of torch.distributed."""

from __future__ import annotations

from math import prod

from ckpt.dtypes import BY_STORAGE
from ckpt.nodes import (
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    Tagged,
    is_tuple,
    tensor_of,
)
from ckpt.pickles.attributes import ATTRIBUTES
from ckpt.pickles.grammar.forms import (
    MOST_ARGUMENTS,
    Form,
    Grammar,
    Rule,
    State,
    class_of,
    either,
    free_attributes,
    holds_flag,
    is_anything,
    is_attributes,
    is_count,
    is_none,
    is_nowhere,
    is_number,
    is_numbers,
    is_plain,
    is_raw,
    is_series,
    is_short_text,
    is_tensor,
    result_of,
    stands_closed,
    stands_decorated,
    takes,
    takes_many,
    takes_nothing,
    tuple_of,
)
from ckpt.pickles.known import is_own, python3_name
from ckpt.pickles.rebuild import REBUILD_CALLS, UNTYPED
from ckpt.tensors import Composite


def _rebuilt(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A call that torch turns into a tensor: its parts, its hooks and what else it is given are data."""
    return grammar.is_plain(call.args)


def _from_type(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_from_type_v2(func, type, args, state)`: the tensor of another call, with a class and attributes."""
    cls = class_of(args[1]) if len(args) == 4 else None
    if tensor_of(call) is None or cls is None or not is_tuple(args[2]):
        return False
    inner = args[2]
    if type(args[0]) is Global and args[0].name == "_rebuild_wrapper_subclass":
        inner = inner[1:MOST_ARGUMENTS]  # the class again; it takes eight
    if len(args[2]) > MOST_ARGUMENTS or not all(map(grammar.is_plain, inner[:MOST_ARGUMENTS])):
        return False
    name = python3_name(cls.module, cls.name)
    form = _STATES_OF_TENSORS.get(name)
    if form is None and not is_own(cls.module):
        # Its own code takes the state, if it has such code. The import of the class is told of by itself.
        return type(args[3]) is not Dict or is_attributes(grammar, args[3])
    return (form or _STATE_OF_TENSOR)(grammar, args[3])


def _with_state(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_parameter_with_state(data, requires_grad, hooks, state)`."""
    return (
        tensor_of(call) is not None
        and len(args) == 4
        and all(map(grammar.is_plain, args[:3]))
        and _STATE_OF_TENSOR(grammar, args[3])
    )


def _bytes_made(grammar: Grammar, call: Opaque) -> int:
    """A tensor of another type is a copy of all elements, also of a storage or an array that another call was given."""
    made = call.meaning
    if not isinstance(made, Composite):
        return 0
    of = made.parts[0][1].storage if made.parts else call.args[0]
    return made.dtype.nbytes(prod(made.shape)) if grammar.is_again(of) else 0


def _wrapper(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_wrapper_subclass(class, …)`."""
    return (
        tensor_of(call) is not None
        and len(args) <= MOST_ARGUMENTS
        and class_of(args[0]) is not None
        and all(map(grammar.is_plain, args[1:]))
    )


def _tagged(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return type(call.meaning) is Tagged


def _nested(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_load_from_bytes(b)` unpickles; that pickle was read, and is judged, like this one."""
    return type(call.meaning) is Nested or tensor_of(call) is not None


# --- torch --------------------------------------------------------------------------------------------------------------

_DEVICE = takes(either(is_short_text, result_of("torch.device")), is_number, least=1)
_TABLE = either(
    lambda grammar, node: type(node) is Dict,
    result_of("collections.OrderedDict", "builtins.dict"),
)
"""A dict without code of its own, whatever its values are."""
_HOOKS = [
    f"_{name}_hooks"
    for name in (
        *("state_dict", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post"),
        *("forward", "forward_pre", "backward", "backward_pre"),
    )
]
TABLES = dict.fromkeys(("_parameters", "_buffers", "_modules", *_HOOKS), _TABLE)
"""The dicts of a layer. Loading looks names up in the first three, and calls no hook."""
RECURRENT_LAYERS = frozenset(f"torch.nn.modules.rnn.{name}" for name in ("RNNBase", "RNN", "LSTM", "GRU"))
RECURRENT: dict[str, Form] = {
    **TABLES,
    "num_layers": lambda grammar, node: type(node) is int and 0 <= node <= 10_000,
    "bidirectional": lambda grammar, node: type(node) is bool,
    **dict.fromkeys(("all_weights", "_all_weights", "_flat_weights_names", "_flat_weights"), is_plain),
}
"""`__setstate__` of RNN, LSTM and GRU makes names for all layers, and looks each up."""
GROUPS: dict[str, Form] = dict.fromkeys(("defaults", "state", "param_groups"), is_plain)
"""The state that `Optimizer.__getstate__` gives. `__setstate__` reads the groups and the state of each parameter."""


def _legacy_state(grammar: Grammar, node: Node) -> bool:
    """The state of a tensor of torch 0.1 to 0.3, a tuple. `rebuild` says which tensor that is."""
    return is_tuple(node) and grammar.is_plain(node)


_STATE_OF_TENSOR = State({}, stands_decorated, has_slots=True)
_DTENSORS = ("torch.distributed.tensor.DTensor", "torch.distributed.tensor._api.DTensor")
_SPEC = result_of(
    "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed._tensor.placement_types.DTensorSpec",
    "torch.distributed._tensor._dtensor_spec.DTensorSpec",
)
_SHARDED_STATE = tuple_of(
    is_series, is_anything, is_anything, is_anything, lambda grammar, node: node is False
)
_STATES_OF_TENSORS: dict[str, Form] = {
    **{
        name: State({"_local_tensor": is_tensor, "_spec": _SPEC}, stands_decorated, has_slots=True)
        for name in (*_DTENSORS, "torch.distributed._tensor.api.DTensor")
    },
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": _SHARDED_STATE,
}
"""Subclasses of torch.Tensor whose state is no plain data."""


def _oldest(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A tensor or storage of given numbers, or one that its state fills."""
    return len(args) <= MOST_ARGUMENTS and all(
        is_raw(grammar, arg) or is_numbers(grammar, arg) or tensor_of(arg) is not None for arg in args
    )


def _parameter(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`Parameter(data, requires_grad)` calls methods of its data, which must be a tensor."""
    return (
        not args
        or (tensor_of(args[0]) is not None and all(map(grammar.is_plain, args)))
        or (args[0] is None and all(map(holds_flag, args[1:])))
    )


def _listed_plain(grammar: Grammar, node: Node) -> bool:
    return type(node) is list and grammar.is_plain(node)


def _forms_of(name: str) -> dict[str, Form]:
    """The attributes that objects of a class have, where nothing that loads them looks at their values."""
    return dict.fromkeys(ATTRIBUTES[name], is_anything)


_PROPERTIES = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory")
_PLACED = ("dim", "reduce_op", "split_factor", "norm_type")
"""The attributes of placements: Shard, Partial, _StridedShard, _NormPartial."""
_OMEGACONF = result_of("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata")
_ADJUSTED = {
    "torch._tensor._rebuild_from_type": Rule(_from_type, "value"),
    "torch._tensor._rebuild_from_type_v2": Rule(_from_type, "value"),
    "torch._utils._rebuild_parameter_with_state": Rule(_with_state, "value"),
    "torch._utils._rebuild_wrapper_subclass": Rule(_wrapper, "value", _STATE_OF_TENSOR),
    "torch.storage._load_from_bytes": Rule(_nested, "container"),
    "torch.nn.parameter.Parameter": Rule(_parameter, "value", _legacy_state),
    "torch.nn.parameter.Buffer": Rule(_parameter, "value", _legacy_state),
    "torch.nn.parameter.UninitializedParameter": Rule(takes(is_plain, is_plain, is_plain, least=0), "value"),
    "torch.nn.parameter.UninitializedBuffer": Rule(takes(is_plain, is_plain, is_plain, least=0), "value"),
    "torch.autograd.variable.Variable": Rule(_parameter, "value", _legacy_state),
    "torch.Tensor": Rule(_oldest, "value", _legacy_state),
    "torch.Size": Rule(takes(is_plain, least=0)),
    "torch.device": Rule(_DEVICE),
    "torch._C.Generator": Rule(
        takes(either(is_short_text, result_of("torch.device")), least=0),
        "instance",
        tuple_of(is_number, either(is_none, is_number), is_tensor),  # torch 2.13 reads past anything else
    ),
    "torch.torch_version.TorchVersion": Rule(takes(is_short_text)),
    "torch.serialization._get_layout": Rule(takes(is_short_text)),
    "torch.jit._pickle.build_tensor_from_id": Rule(takes(is_plain)),
    "torch.nn.backends.thnn._get_thnn_function_backend": Rule(takes_nothing, "instance"),
    "torch.amp.grad_scaler._refresh_per_optimizer_state": Rule(takes_nothing),
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state": Rule(takes_nothing),
    "torch.utils.hooks.RemovableHandle": Rule(
        takes_nothing,
        "instance",
        either(
            tuple_of(either(is_none, _TABLE), is_count),
            tuple_of(either(is_none, _TABLE), is_count, either(is_none, is_series, _TABLE)),
        ),
    ),
    "torch.backends.cudnn.rnn.Unserializable": Rule(takes_nothing, "instance", is_plain),
    "torch.nn.modules.module._WrappedHook": Rule(
        takes_nothing,
        "instance",
        State(dict.fromkeys(("hook", "with_module", "module"), is_anything), stands_closed),
    ),
    "torch.nn.modules.module._IncompatibleKeys": Rule(takes(is_plain, is_plain), "value"),
    "torch._dynamo.decorators._DimRange": Rule(takes_nothing, "value", _listed_plain),
    "torch.distributed.device_mesh.DeviceMesh": Rule(
        takes_nothing, "instance", State(_forms_of("torch.distributed.device_mesh.DeviceMesh"), stands_closed)
    ),
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": Rule(
        takes_nothing,
        "instance",
        _SHARDED_STATE,
    ),
    **{
        f"torch.distributed.{module}.TensorProperties": Rule(
            takes(*[is_plain] * 5, least=0),
            "instance",
            either(
                State(dict.fromkeys(_PROPERTIES, is_plain), stands_closed, has_slots=True),
                tuple_of(
                    is_plain,
                    is_plain,
                    is_plain,
                    result_of(
                        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
                        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
                    ),
                    is_plain,
                ),
            ),
        )
        for module in ("_shard.sharded_tensor.metadata", "checkpoint.metadata")
    },
    **{
        f"torch.distributed.{module}.{name}": Rule(takes(*[is_plain] * count), "value")
        for module, name, count in (
            ("tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor.placement_types", "TensorMeta", 3),
            ("tensor._dtensor_spec", "ShardOrderEntry", 2),
        )
    },
    **{
        f"torch.distributed.{module}.placement_types.{name}": Rule(
            takes_many(is_plain),
            "value",
            either(_legacy_state, State(dict.fromkeys(_PLACED, is_plain), stands_closed)),
        )
        for module in ("tensor", "_tensor")
        for name in ("Partial", "Replicate", "Shard", "_Partial", "_StridedShard")
    },
    "torch.nn.parallel.distributed.DistributedDataParallel": Rule(
        takes_nothing,
        "instance",
        State(
            {
                **_forms_of("torch.nn.parallel.distributed.DistributedDataParallel"),
                **TABLES,
                "module": is_nowhere,
            },
            stands_decorated,
        ),
    ),
    **{
        f"omegaconf.{name}": Rule(
            takes_nothing, "instance", free_attributes(_metadata=either(is_none, _OMEGACONF))
        )
        for name in ("dictconfig.DictConfig", "listconfig.ListConfig")
    },
}
_COPIES = [
    f"torch._utils._rebuild_{name}"
    for name in (
        "device_tensor_from_cpu_tensor",
        "device_tensor_from_numpy",
        "xla_tensor",
        "mlc_tensor",
    )
]
_KINDS = [name.removesuffix("Storage") for name in BY_STORAGE]
TORCH = {
    **{name: Rule(_rebuilt, "value") for name in REBUILD_CALLS},
    **{name: Rule(_rebuilt, "value", work=_bytes_made) for name in _COPIES},
    **{
        f"torch.jit._pickle.{name}": Rule(_tagged, "container")
        for name in (
            "restore_type_tag",
            *(f"build_{kind}list" for kind in ("int", "tensor", "double", "bool")),
        )
    },
    **{
        f"{module}.{name}": Rule(_oldest, "value", _legacy_state)
        for module in ("torch", "torch.cuda", "torch.storage")
        for name in (
            *BY_STORAGE,
            *(f"{kind}Tensor" for kind in _KINDS),
            *UNTYPED,
            "TypedStorage",
            "_TypedStorage",
        )
    },
    **_ADJUSTED,
}
