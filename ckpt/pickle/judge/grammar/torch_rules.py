"""The rules of torch: its rebuild calls, layers, optimizers, tensors, and the objects
of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ckpt.model.dtypes import BY_STORAGE
from ckpt.model.nodes import (
    WITH_STATE,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    Set,
    Tagged,
    is_tuple,
    tensor_of,
)
from ckpt.model.tensors import Composite, is_same_view
from ckpt.pickle.attributes import ATTRIBUTES
from ckpt.pickle.judge.grammar.forms import (
    MOST_ARGUMENTS,
    Form,
    Grammar,
    Manner,
    Rule,
    State,
    class_of,
    free_attributes,
    holds_flag,
    holds_text,
    is_anything,
    is_called,
    is_count,
    is_getattr,
    is_made_without_call,
    is_none,
    is_nowhere,
    is_number,
    is_numbers,
    is_pairs,
    is_plain,
    is_raw,
    is_series,
    is_short,
    is_short_text,
    is_tensor,
    made_by,
    much_work,
    one_of_forms,
    result_of,
    stands_closed,
    stands_decorated,
    takes,
    takes_nothing,
    text_matching,
    tuple_of,
)
from ckpt.pickle.judge.known import MODULES
from ckpt.pickle.judge.names import is_own, python3_name
from ckpt.pickle.judge.names_of_torch import LOOKED_UP
from ckpt.pickle.keys import number_of
from ckpt.pickle.rebuild import REBUILD_CALLS, UNTYPED


def _takes_rebuild(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A call that torch turns into a tensor: its parts, its hooks and what else it is
    given are data.
    """
    # A list of scales is read number by number, so nothing else may be in it.
    lists = _lists_of_scheme(call)
    return grammar.is_plain(call.args) and all(
        is_numbers(grammar, node) for node in lists
    )


def _from_type(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_from_type_v2(func, type, args, state)`: the tensor of another call,
    with a class and attributes.
    """
    cls = class_of(args[1]) if len(args) == 4 else None
    if tensor_of(call) is None or cls is None or not is_tuple(args[2]):
        return False
    if not all(is_numbers(grammar, node) for node in _lists_of_scheme(call)):
        return False
    inner = args[2]
    if type(args[0]) is Global and args[0].name == "_rebuild_wrapper_subclass":
        inner = inner[1:MOST_ARGUMENTS]  # the class again; it takes eight
    if len(args[2]) > MOST_ARGUMENTS or not all(
        map(grammar.is_plain, inner[:MOST_ARGUMENTS])
    ):
        return False
    name = python3_name(cls.module, cls.name)
    form = _STATES_OF_TENSORS.get(name)
    if form is None and not is_own(cls.module):
        # The import of the class is told of by itself.
        return _state_of_foreign(grammar, args[3])
    return (form or _STATE_OF_TENSOR)(grammar, args[3])


def _with_state(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_parameter_with_state(data, requires_grad, hooks, state)`."""
    return (
        # Without a tensor ckpt did not understand the call.
        tensor_of(call) is not None
        and len(args) == 4
        and all(map(grammar.is_plain, args[:3]))
        and _STATE_OF_TENSOR(grammar, args[3])
    )


def _work_of_tensor(grammar: Grammar, call: Opaque) -> int:
    """The elements that a rebuild call copies or looks through, of a storage or an
    array that another call was given.

    A tensor of another type is a copy of all. torch copies the scales of a quantized
    tensor, looks through the indices of a sparse one, and makes rows of a nested one.
    Other tensors are views.
    """
    made = call.meaning
    if not isinstance(made, Composite):
        return 0
    if made.layout == "strided":
        of = made.parts[0][1].storage if made.parts else _inner_arguments(call)[0]
        return made.dtype.nbytes(prod(made.shape)) if grammar.is_again(of) else 0
    # Lists and parts count from the second call that shares them: their own bytes pay
    # for the first.
    given = sum(len(node) for node in _lists_of_scheme(call) if grammar.is_again(node))
    read = [part for label, part in made.parts if label not in _VIEWED]
    return _NUMBER * (
        given + sum(part.numel for part in read if grammar.is_again(part.storage))
    )


def changed_by_copy(grammar: Grammar, call: Opaque) -> list[Node]:
    """The data of a tensor on another device, where torch makes no copy: it has that
    device and that dtype already, so a flag or an attribute is set on the data. Of a
    jagged tensor the marks of its lengths.
    """
    is_wrapped = call.class_name.rpartition(".")[2].startswith("_rebuild_from_type")
    func = call.args[0] if is_wrapped and call.args else call.func
    made = call.meaning
    if isinstance(made, Composite) and made.layout == "jagged":
        return _marks_of_lengths(call)
    if (
        type(func) is not Global
        or func.name != _COPY
        or not isinstance(made, Composite)
    ):
        return []
    data = dict(made.parts).get("data")
    if data is None or data.dtype != made.dtype:
        return []
    is_there = (made.own_device or "").startswith("cpu") or data.device != "cpu"
    return list(_inner_arguments(call)[:1]) if is_there else []


def _marks_of_lengths(call: Opaque) -> list[Node]:
    """The attributes of the lengths that a jagged tensor keeps: torch marks each length
    as dynamic once more, in the dicts and sets that it has.
    """
    fields = (_inner_arguments(call) or (None,))[0]
    caches = [
        value
        for key, value in _pairs_in(fields)
        if key == "_metadata_cache" and type(value) is Dict
    ]
    lengths = [value for cache in caches for value in cache.values]
    return [
        value
        for length in lengths
        if type(length) is Opaque
        for state in length.args[WITH_STATE - 1 :]
        for part in (state if is_tuple(state) else (state,))
        for _, value in _pairs_in(part)
        if type(value) in (Dict, Set, Opaque)
    ]


def _pairs_in(node: Node) -> list[tuple[Node, Node]]:
    """The keys and values of a dict of the pickle itself, none of anything else."""
    if type(node) is not Dict:
        return []
    return list(zip(node.keys, node.values, strict=True))


_COPY = "_rebuild_device_tensor_from_cpu_tensor"
# torch makes no copies of these parts of quantized and sparse tensors.
_VIEWED = ("int_repr", "values")
_NUMBER = 8


def _inner_arguments(call: Opaque) -> tuple[Node, ...]:
    """The arguments of a rebuild call, also of one that `_rebuild_from_type_v2`
    makes.
    """
    is_inner = type(call.func) is Global and call.func.name.startswith(
        "_rebuild_from_type"
    )
    inner = call.args[2] if is_inner else call.args
    return inner if is_tuple(inner) else ()


def _lists_of_scheme(call: Opaque) -> list[list[Node]]:
    """The scales and zero points of a quantized tensor that are lists."""
    if not isinstance(call.meaning, Composite) or call.meaning.layout != "quantized":
        return []
    return [
        part
        for arg in _inner_arguments(call)
        if is_tuple(arg)
        for part in arg
        if type(part) is list
    ]


def _takes_wrapper(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_rebuild_wrapper_subclass(class, …)`."""
    return (
        tensor_of(call) is not None
        and len(args) <= MOST_ARGUMENTS
        and class_of(args[0]) is not None
        and all(map(grammar.is_plain, args[1:]))
    )


def _takes_tagged(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return type(call.meaning) is Tagged


def _takes_nested(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`_load_from_bytes(b)` unpickles; that pickle was read, and is judged, like this
    one.
    """
    return type(call.meaning) is Nested or tensor_of(call) is not None


# --- torch ----------------------------------------------------------------------------


def _is_place(node: Node) -> bool:
    """Tell whether a number is one of a device: torch keeps eight bits of it, and would
    show another device.
    """
    return type(node) is int and 0 <= node < 128


def _is_device_text(grammar: Grammar, node: Node) -> bool:
    place = str(node).partition(":")[2] if is_short_text(grammar, node) else None
    return place is not None and (not place.isdecimal() or _is_place(int(place[:9])))


# `torch.device("cuda", 0)` or `torch.device("cuda:0")`.
_DEVICE = takes(
    one_of_forms(_is_device_text, result_of("torch.device")),
    lambda grammar, node: _is_place(node),
    least=1,
)
_IS_TABLE = result_of("collections.OrderedDict", "builtins.dict")
_TABLE = one_of_forms(lambda grammar, node: type(node) is Dict, _IS_TABLE)
"""A dict without code of its own, whatever its values are."""


_KINDS_OF_HOOKS = (
    "state_dict",
    "state_dict_pre",
    "load_state_dict_pre",
    "load_state_dict_post",
    "forward",
    "forward_pre",
    "backward",
    "backward_pre",
)
_HOOKS = [f"_{kind}_hooks" for kind in _KINDS_OF_HOOKS]
_OF_EVERY_LAYER = frozenset(
    (
        *_HOOKS,
        "_is_full_backward_hook",
        "_non_persistent_buffers_set",
        *(f"_{kind}_hooks_with_kwargs" for kind in ("forward", "forward_pre")),
        "_forward_hooks_always_called",
        *("_all_weights", "_flat_weights", "_flat_weights_names", "_flat_weight_refs"),
    )
)
"""Attributes that `__setstate__` of a layer, or of a recurrent one, sets where a state
lacks them. A weight or a layer by such a name would become None.
"""


def _table_of(form: Form) -> Form:
    """A dict of a layer, in which it looks up its attributes: each value has the form,
    and no name is one of Python's.
    """

    def judge(grammar: Grammar, node: Node) -> bool:
        pairs = _pairs_of(grammar, node)
        return pairs is not None and all(
            # Module.__getattr__ finds a name such as `__setstate__` in these dicts.
            holds_text(key)
            and not str(key).startswith("__")
            and str(key) not in _OF_EVERY_LAYER
            and form(grammar, value)
            for key, value in pairs
        )

    return lambda grammar, node: _TABLE(grammar, node) and grammar.once(judge, node)


def _is_layer(grammar: Grammar, node: Node) -> bool:
    """None, a module, or an object of a class that nobody knows here: its import is
    told of by itself.
    """
    return node is None or _IS_LAYER(grammar, node) or _is_unlisted(grammar, node)


_IS_LAYER = result_of(*MODULES, "torch.nn.parallel.distributed.DistributedDataParallel")
_IS_PARAMETER = result_of(
    *(
        f"torch.nn.parameter.{name}"
        for name in (
            "Parameter",
            "Buffer",
            "UninitializedParameter",
            "UninitializedBuffer",
        )
    ),
    "torch.autograd.variable.Variable",
)


def _is_weight(grammar: Grammar, node: Node) -> bool:
    """None, a tensor, or what a class that nobody knows here makes."""
    if node is None or tensor_of(node) is not None or _IS_PARAMETER(grammar, node):
        return True
    return _is_unlisted(grammar, node)


_WEIGHTS = _table_of(_is_weight)


_LAYERS = _table_of(_is_layer)


def _are_layers(grammar: Grammar, node: Node) -> bool:
    return _LAYERS(grammar, node) and grammar.has_few_layers(node)


_SPECTRAL_NORM = "torch.nn.utils.spectral_norm"
_WRAPPER = result_of("torch.nn.modules.module._WrappedHook")


def _is_unlisted(grammar: Grammar, node: Node) -> bool:
    """Tell whether a node is an object of a class, or the result of a function, that
    nobody knows here: its import is told of by itself.
    """
    if type(node) is not Opaque or tensor_of(node) is not None:
        return False
    origin = made_by(node)
    return origin is None or grammar.rule(origin[0]) is None


def _is_hook(own: Form) -> Form:
    """A hook that torch calls beside a forward pass: one of its own, a function of
    torch.distributed, or one that nobody knows here.
    """

    def form(grammar: Grammar, node: Node) -> bool:
        name = class_of(node)
        if name is not None:
            is_distributed = name.module.startswith("torch.distributed.")
            return is_distributed or not is_own(name.module)
        return own(grammar, node) or _is_unlisted(grammar, node)

    return form


def _is_lazy_hook(grammar: Grammar, node: Node) -> bool:
    """The method of a lazy layer that loads its weights."""
    return type(node) is Opaque and is_getattr(node) and node.args[1] == _LAZY_HOOK


_LAZY_HOOK = "_lazy_load_hook"
_IS_SAVING_HOOK = _is_hook(result_of(f"{_SPECTRAL_NORM}.SpectralNormStateDictHook"))
_IS_LOADING_HOOK = _is_hook(
    one_of_forms(
        result_of(f"{_SPECTRAL_NORM}.SpectralNormLoadStateDictPreHook"), _is_lazy_hook
    )
)


def _is_wrapped_hook(grammar: Grammar, node: Node) -> bool:
    """A hook that `load_state_dict()` calls, also inside of torch's wrapper."""
    if type(node) is not Opaque or not _WRAPPER(grammar, node):
        return _IS_LOADING_HOOK(grammar, node)
    return all(
        _IS_LOADING_HOOK(grammar, value)
        for state in node.states
        for key, value in _pairs_in(state)
        if key == "hook"
    )


def _hooks_of(form: Form) -> Form:
    """A dict of hooks, each of which has a form."""

    def judge(grammar: Grammar, node: Node) -> bool:
        pairs = _pairs_of(grammar, node)
        return pairs is not None and all(form(grammar, value) for _, value in pairs)

    return lambda grammar, node: _TABLE(grammar, node) and grammar.once(judge, node)


def _is_empty_dict(grammar: Grammar, node: Node) -> bool:
    return type(node) is Dict and not node.keys


_IS_SET = result_of("builtins.set")


def _is_set_of_texts(grammar: Grammar, node: Node) -> bool:
    """A set of names. A text would hide each name that is a part of it, a scalar of
    numpy the name that it is equal to.
    """
    if type(node) is Set:
        return all(map(holds_text, node.items))
    if type(node) is not Opaque or not _IS_SET(grammar, node):
        return False
    return all(
        (type(arg) is list or is_tuple(arg)) and all(map(holds_text, arg))
        for arg in node.args
    )


TABLES: dict[str, Form] = {
    "_parameters": _WEIGHTS,
    "_buffers": _WEIGHTS,
    "_modules": _are_layers,
    **dict.fromkeys(_HOOKS, _TABLE),
    **dict.fromkeys(
        ("_state_dict_hooks", "_state_dict_pre_hooks"), _hooks_of(_IS_SAVING_HOOK)
    ),
    **dict.fromkeys(
        ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        _hooks_of(_is_wrapped_hook),
    ),
    "_non_persistent_buffers_set": _is_set_of_texts,
    # `torch.jit.script` leaves it on the layers that it went through.
    "__overloads__": _is_empty_dict,
}
"""The dicts of a layer. Loading looks names up in the first three, and calls no hook;
`state_dict()` and `load_state_dict()` call the last four kinds.
"""


def _list_of(form: Form) -> Form:
    def judge(grammar: Grammar, node: Node) -> bool:
        assert type(node) is list
        return all(form(grammar, part) for part in node)

    return lambda grammar, node: type(node) is list and grammar.once(judge, node)


_WEIGHT_NAME = text_matching(
    r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l[0-9]{1,5}(_reverse)?"
)
RECURRENT_LAYERS = frozenset(
    f"torch.nn.modules.rnn.{name}" for name in ("RNNBase", "RNN", "LSTM", "GRU")
)
RECURRENT: dict[str, Form] = {
    **TABLES,
    # The range is bounded, for `__setstate__` makes names for each layer.
    "num_layers": lambda grammar, node: type(node) is int and 0 <= node <= 10_000,
    "bidirectional": lambda grammar, node: type(node) is bool,
    "bias": lambda grammar, node: type(node) is bool,
    "proj_size": is_count,
    "_flat_weights": _list_of(_is_weight),
    "_flat_weights_names": _list_of(_WEIGHT_NAME),
    **dict.fromkeys(
        ("all_weights", "_all_weights"),
        _list_of(_list_of(one_of_forms(_WEIGHT_NAME, _is_weight))),
    ),
}
"""`__setstate__` of RNN, LSTM and GRU makes names for all layers, and looks each up.
Setting an attribute whose name is in the list of names writes into the list of weights.
"""


def hidden_weights(state: Dict) -> list[str]:
    """Return the names of weights that attributes of their layer have too."""
    names = {str(key) for key in state.keys if holds_text(key)}
    return [
        name
        for key, table in _pairs_in(state)
        if key in ("_parameters", "_buffers") and type(table) in (Dict, Opaque)
        for name in map(_text_of, table.keys)  # type: ignore[union-attr]
        if name in names
    ]


def holds_own_weights(state: Dict) -> bool:
    """Tell whether a recurrent layer computes with the weights of its tables and
    attributes, which `state_dict()` gives.
    """
    values = {str(key): each for key, each in _pairs_in(state) if holds_text(key)}
    weights, names = values.get("_flat_weights"), values.get("_flat_weights_names")
    if type(weights) is not list or type(names) is not list:
        return True
    own = dict(values)
    for table in map(values.get, ("_buffers", "_parameters")):
        if type(table) is Dict or type(table) is Opaque:
            own.update(zip(map(_text_of, table.keys), table.values, strict=True))
    return len(weights) == len(names) and all(
        _is_same_weight(own.get(_text_of(name)), weight)
        for name, weight in zip(names, weights, strict=True)
    )


def _text_of(key: Node) -> str:
    return str(key) if holds_text(key) else ""


def _is_same_weight(one: Node, other: Node) -> bool:
    return one is other or is_same_view(tensor_of(one), tensor_of(other))


def _are_groups(grammar: Grammar, node: Node) -> bool:
    """A list of the groups of an optimizer, each with a list of parameters: a tensor
    there would be one for each row.
    """
    return (
        type(node) is list
        and grammar.is_plain(node)
        and grammar.once(_all_groups, node)
    )


def _all_groups(grammar: Grammar, node: Node) -> bool:
    assert type(node) is list
    return all(_is_group(grammar, group) for group in node)


def _is_group(grammar: Grammar, group: Node) -> bool:
    # A dict by a call, as OrderedDict, must not have its pairs as arguments.
    if type(group) is not Dict and (type(group) is not Opaque or group.args):
        return False
    return all(
        type(value) is list and grammar.once(_are_parameters, value)
        for key, value in zip(group.keys, group.values, strict=True)
        if key == "params"
        or type(key) is Opaque  # a scalar of numpy may be equal to a text
    )


def _are_parameters(grammar: Grammar, node: Node) -> bool:
    """Tell whether a list holds tensors alone. `__setstate__` looks each up in the
    state, where a thousand keys could have the hash of any other value.
    """
    assert type(node) is list
    return all(_is_weight(grammar, part) for part in node)


def _is_state(grammar: Grammar, node: Node) -> bool:
    """A dict of dicts with numbers and tensors where torch makes tensors: a million
    states can share one long text.
    """
    return grammar.is_plain(node) and grammar.once(_all_states, node)


def _all_states(grammar: Grammar, node: Node) -> bool:
    pairs = _pairs_of(grammar, node)
    return pairs is not None and all(
        _is_state_of_one(grammar, value) for _, value in pairs
    )


def _is_state_of_one(grammar: Grammar, node: Node) -> bool:
    if type(node) is not Dict and (
        type(node) is not Opaque or tensor_of(node) is not None
    ):
        return True  # torch finds no name in it
    pairs = _pairs_of(grammar, node)
    if pairs is None:
        return number_of(node) is not None
    return all(
        value is None
        or is_number(grammar, value)
        or is_tensor(grammar, value)
        or number_of(value) is not None
        for key, value in pairs
        if key in _TURNED
        or type(key) is Opaque  # a scalar of numpy may be equal to a text
    )


def _pairs_of(grammar: Grammar, node: Node) -> list[tuple[Node, Node]] | None:
    """The keys and values of a dict of Python, or None for anything else."""
    if type(node) is not Dict and (
        type(node) is not Opaque or not _DICT_OF_PYTHON(grammar, node)
    ):
        return None
    pairs: list[tuple[Node, Node]] = list(zip(node.keys, node.values, strict=True))
    # Pairs may also be the argument: `OrderedDict([("step", 1)])`.
    for arg in node.args if type(node) is Opaque else ():
        if type(arg) is Dict:
            pairs += zip(arg.keys, arg.values, strict=True)
        elif is_pairs(grammar, arg):
            pairs += [(pair[0], pair[1]) for pair in arg]  # type: ignore[index,union-attr,misc]
        elif arg is not None and class_of(arg) is None:  # of a defaultdict
            return None
    return pairs


_DICT_OF_PYTHON = result_of(
    "builtins.dict", "collections.OrderedDict", "collections.defaultdict"
)
_TURNED = ("step", "eta", "mu", "mu_product")
"""Entries in the state of a parameter that `__setstate__` of one optimizer or another
makes a tensor of.
"""


def changed_by_optimizer(grammar: Grammar, call: Opaque) -> list[Node]:
    """The dicts into which `__setstate__` of an optimizer writes: its defaults, its
    groups, and states with numbers that it makes tensors of.
    """
    changed: list[Node] = []
    for state in call.states:
        pairs = (
            zip(state.keys, state.values, strict=True) if type(state) is Dict else ()
        )
        for key, value in pairs:
            if key == "defaults":
                changed.append(value)
            elif key == "param_groups" and type(value) is list:
                changed += value
            elif key == "state":
                of_each = [each for _, each in _pairs_of(grammar, value) or []]
                # Adagrad looks at the first state, and turns the steps of all.
                if any(_has_numbers(grammar, each) for each in of_each):
                    changed += [each for each in of_each if _has_steps(grammar, each)]
    return changed


def _has_numbers(grammar: Grammar, node: Node) -> bool:
    """Tell whether a state of a parameter has a number that becomes a tensor."""
    return any(
        value is not None and not is_tensor(grammar, value)
        for value in _steps_in(grammar, node)
    )


def _has_steps(grammar: Grammar, node: Node) -> bool:
    return bool(_steps_in(grammar, node))


def _steps_in(grammar: Grammar, node: Node) -> list[Node]:
    """The entries in the state of a parameter that may become tensors."""
    # Only a dict is asked for its pairs; a state may be a tensor too.
    if type(node) is not Dict and type(node) is not Opaque:
        return []
    pairs = _pairs_of(grammar, node) or []
    return [value for key, value in pairs if key in _TURNED or type(key) is Opaque]


_ADDED = {
    "torch.nn.modules.activation.MultiheadAttention": "_qkv_same_embed_dim",
    "torch.nn.modules.transformer.TransformerDecoderLayer": "activation",
    "torch.nn.modules.upsampling.Upsample": "recompute_scale_factor",
    "torch.nn.modules.upsampling.UpsamplingBilinear2d": "recompute_scale_factor",
    "torch.nn.modules.upsampling.UpsamplingNearest2d": "recompute_scale_factor",
}
"""Layers whose `__setstate__` writes an attribute into the dict that it is given, where
that lacks it.
"""


def changed_by_layer(name: str) -> Callable[[Grammar, Opaque], list[Node]] | None:
    """Return what lists the states that loading a layer changes, or None."""
    added = _ADDED.get(name)
    if added is None:
        return None

    def list_changed(grammar: Grammar, call: Opaque) -> list[Node]:
        return [
            state
            for state in call.states
            if type(state) is Dict and added not in state.keys
        ]

    return list_changed


GROUPS: dict[str, Form] = {
    "defaults": is_plain,
    "state": _is_state,
    "param_groups": _are_groups,
}
"""The state that `Optimizer.__getstate__` gives. `__setstate__` reads the groups and
the state of each parameter.
"""


def _are_decoupled(grammar: Grammar, node: Node) -> bool:
    """Groups of AdamW, whose `__setstate__` sets that their decay is decoupled."""
    return _are_groups(grammar, node) and grammar.once(_all_decoupled, node)


def _all_decoupled(grammar: Grammar, node: Node) -> bool:
    assert type(node) is list
    return all(
        value is True
        for group in node
        for key, value in _pairs_of(grammar, group) or ()
        if key == "decoupled_weight_decay"
    )


GROUPS_OF_ADAMW: dict[str, Form] = {**GROUPS, "param_groups": _are_decoupled}


def _legacy_state(grammar: Grammar, node: Node) -> bool:
    """The state of a tensor of torch 0.1 to 0.3, a tuple. `rebuild` says which tensor
    that is.
    """
    return is_tuple(node) and grammar.is_plain(node)


_STATE_OF_TENSOR = State({}, stands_decorated, has_slots=True)


def _stands_on_foreign(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of a tensor whose class nobody knows here. `Parameter` calls
    `detach` of such a tensor.
    """
    is_called = name in LOOKED_UP and not grammar.is_handed(value)
    return "called" if is_called else "fine"


_STATE_OF_FOREIGN = State({}, _stands_on_foreign, has_slots=True)


def _state_of_foreign(grammar: Grammar, node: Node) -> bool:
    """The state of a tensor whose class nobody knows here. Its own code takes what it
    likes, if it has such code; else torch sets the attributes of each dict.
    """
    if type(node) is Dict:
        return _STATE_OF_FOREIGN(grammar, node)
    if not is_tuple(node):
        return grammar.is_handed(node)
    # A pair may be a dict of attributes and one of slots. torch fails at a part that is
    # no dict, so only code of the class takes that.
    return all(
        _STATE_OF_FOREIGN(grammar, part)
        if type(part) is Dict
        else grammar.is_handed(part)
        for part in node
    )


_DTENSORS = (
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor._api.DTensor",
)
_SPEC = result_of(
    "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed._tensor.placement_types.DTensorSpec",
    "torch.distributed._tensor._dtensor_spec.DTensorSpec",
)
_SHARDED = "torch.distributed._shard"
# In the order of `ShardedTensor.__setstate__`: shards, metadata, group, sharding,
# `_init_rrefs`.
_SHARDED_STATE = tuple_of(
    is_series,
    result_of(f"{_SHARDED}.sharded_tensor.metadata.ShardedTensorMetadata"),
    result_of(f"{_SHARDED}.sharded_tensor.api.ShardedTensor.ProcessGroupState"),
    result_of(
        f"{_SHARDED}.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
        f"{_SHARDED}.sharding_spec.api.EnumerableShardingSpec",
    ),
    lambda grammar, node: node is False,
)
_STATE_OF_DTENSOR = State(
    {"_local_tensor": is_tensor, "_spec": _SPEC}, stands_decorated, has_slots=True
)
_STATES_OF_TENSORS: dict[str, Form] = {
    **dict.fromkeys(
        (*_DTENSORS, "torch.distributed._tensor.api.DTensor"), _STATE_OF_DTENSOR
    ),
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": _SHARDED_STATE,
}
"""Subclasses of torch.Tensor whose state is no plain data."""


def _takes_oldest(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A tensor or storage of given numbers, or one that its state fills."""
    return len(args) <= MOST_ARGUMENTS and all(
        is_raw(grammar, arg) or is_numbers(grammar, arg) or tensor_of(arg) is not None
        for arg in args
    )


def _numbers_given(grammar: Grammar, call: Opaque) -> int:
    """The number of entries that a tensor of given numbers reads, each as often as it
    is reached.
    """
    return sum(
        grammar.numbers_in(arg)
        for arg in call.args
        if type(arg) is list or is_tuple(arg)
    )


def _takes_parameter(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`Parameter(data, requires_grad)` calls methods of its data, which must be a
    tensor.
    """
    return (
        not args
        or (tensor_of(args[0]) is not None and all(map(grammar.is_plain, args)))
        or (args[0] is None and all(map(holds_flag, args[1:])))
    )


def _listed_plain(grammar: Grammar, node: Node) -> bool:
    return type(node) is list and grammar.is_plain(node)


def _forms_of(name: str) -> dict[str, Form]:
    """The attributes that objects of a class have, where nothing that loads them looks
    at their values.
    """
    return dict.fromkeys(ATTRIBUTES[name], is_anything)


def _data_of(name: str) -> dict[str, Form]:
    return {
        name: is_anything if has_objects else is_plain
        for name, has_objects in ATTRIBUTES[name].items()
    }


_SCHEDULER = "torch.optim.lr_scheduler"
_IS_SCHEDULER = one_of_forms(
    result_of(
        *(name for name in ATTRIBUTES if name.startswith(f"{_SCHEDULER}.")),
        "torch.optim.swa_utils.SWALR",
    ),
    _is_unlisted,
)
"""A scheduler inside of another one, whose `state_dict()` calls its own."""
_IS_SPECTRAL_NORM = one_of_forms(
    result_of(f"{_SPECTRAL_NORM}.SpectralNorm"), _is_unlisted
)
_PROPERTIES = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory")
_PLACED = ("dim", "reduce_op", "split_factor", "norm_type")
"""The attributes of placements: Shard, Partial, _StridedShard, _NormPartial."""
_OF_PLACEMENT = one_of_forms(
    is_short, result_of("torch._C._distributed_c10d.RedOpType")
)
"""A part of a placement. The error of anything else shows all of it, each part as often
as it is reached.
"""


def _takes_placement(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A placement that is called, or made without a call and then filled by its state.

    Since torch 2.10 they are objects of C++, whose memory is what lay there before
    until one of both happens. `Replicate` has nothing in it.
    """
    if is_called(call):
        return len(args) <= MOST_ARGUMENTS and all(
            _OF_PLACEMENT(grammar, arg) for arg in args
        )
    origin = made_by(call)
    is_empty = origin is not None and origin[0].name == "Replicate"
    return not args and (is_empty or bool(call.states))


_PLACEMENTS = result_of(
    *(
        f"torch.distributed.{module}.placement_types.{name}"
        for module in ("tensor", "_tensor")
        for name in ("Partial", "Replicate", "Shard", "_Partial", "_StridedShard")
    )
)
_TENSOR_META = result_of(
    *(
        f"torch.distributed.{module}.TensorMeta"
        for module in (
            "tensor._dtensor_spec",
            "_tensor._dtensor_spec",
            "_tensor.placement_types",
        )
    )
)
_MESH = result_of("torch.distributed.device_mesh.DeviceMesh")
_LAYOUTS = result_of(
    *(
        f"torch.distributed._mesh_layout.{name}"
        for name in ("_FlatLayout", "_MeshLayout")
    )
)


def _is_hash(grammar: Grammar, node: Node) -> bool:
    return node is None or type(node) is int


def _is_type_name(grammar: Grammar, node: Node) -> bool:
    return grammar.is_type_expression(node)


def _few_of(form: Form) -> Form:
    """A list or tuple of a few of a form."""
    return lambda grammar, node: (
        (type(node) is list or is_tuple(node))
        and len(node) <= MOST_ARGUMENTS
        and all(form(grammar, part) for part in node)
    )


def _is_flat_data(grammar: Grammar, node: Node) -> bool:
    """Plain data of few entries, whose containers lie in each other three deep at most:
    it is compared with the data of other tensors.
    """
    return (
        grammar.is_plain(node)
        and grammar.weight(node) <= _MOST_RANKS
        and _is_flat(grammar, node, 3)
    )


def _is_flat(grammar: Grammar, node: Node, levels: int) -> bool:
    if type(node) is Dict:
        return all(
            _is_flat(grammar, part, levels - 1) for part in (*node.keys, *node.values)
        )
    if type(node) is list or is_tuple(node):
        return levels > 0 and all(_is_flat(grammar, part, levels - 1) for part in node)
    return not holds_text(node) or is_short_text(grammar, node)


_COMPARED = 4
"""The bits of the number of entries that are compared in the time of one step."""
_MOST_RANKS = 1_000_000
"""The most entries of a list of ranks."""


def _work_of_parameter(grammar: Grammar, call: Opaque) -> int:
    """The entries that torch compares for a parameter of a DTensor: it looks up the
    operator by the mesh and the specification.
    """
    tensor = call.args[0] if call.args else None
    if type(tensor) is not Opaque or not isinstance(tensor.meaning, Composite):
        # A plain tensor has no mesh.
        return 0
    return grammar.work_once(tensor, _entries_of_mesh) >> _COMPARED


def _entries_of_mesh(grammar: Grammar, tensor: Opaque) -> int:
    """The entries in the attributes of a DTensor, of its specification and of its
    meshes.
    """
    states = [
        part for arg in (*tensor.args, *tensor.states) for part in _states_in(arg)
    ]
    # Meshes hold their root, so the walk meets the same states again.
    work, seen = 0, set[int]()
    while states:
        node = states.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        states += [state for part in node.values for state in _states_in(part)]
        work += sum(
            grammar.weight(part) for part in node.values if type(part) is not Opaque
        )
    return work


def _states_in(node: Node) -> list[Dict]:
    """The attributes that a node is or has, and the attributes of objects in a list."""
    if type(node) is Dict:
        return [node]
    if type(node) is Opaque and not isinstance(node.meaning, Composite):
        return [state for state in node.states if type(state) is Dict]
    parts = node if type(node) is list or is_tuple(node) else ()
    return [
        state
        # Longer lists of placements are refused by their own form.
        for part in parts[:MOST_ARGUMENTS]
        if type(part) is Opaque
        for state in part.states
        if type(state) is Dict
    ]


_OF_SPEC: dict[str, Form] = {
    **dict.fromkeys(
        ("ndim", "shape", "shard_order", "use_strided_shard_as_shard_order"),
        _is_flat_data,
    ),
    "_hash": _is_hash,
    "mesh": one_of_forms(is_none, _MESH),
    "placements": _few_of(_PLACEMENTS),
    "tensor_meta": one_of_forms(is_none, _TENSOR_META),
}
"""The attributes of a DTensorSpec. torch asks the mesh and the placements when it
computes with the tensor.
"""
_OF_MESH: dict[str, Form] = {
    **dict.fromkeys(
        ATTRIBUTES["torch.distributed.device_mesh.DeviceMesh"], _is_flat_data
    ),
    "_hash": _is_hash,
    "_dim_group_names": one_of_forms(is_none, _few_of(is_short_text)),
    "_layout": _LAYOUTS,
    "_root_mesh": one_of_forms(is_none, _MESH),
    "_flatten_mapping": one_of_forms(
        _is_flat_data,
        lambda grammar, node: (
            type(node) is Dict
            and len(node.keys) <= MOST_ARGUMENTS
            and all(_MESH(grammar, value) for value in node.values)
        ),
    ),
}
"""The attributes of a DeviceMesh. `__setstate__` iterates the names of the groups."""
_OF_LAYOUT: dict[str, Form] = {
    "shape": _is_flat_data,
    "stride": _is_flat_data,
    "axes": _few_of(_LAYOUTS),
}
_TYPE_NAMES = dict.fromkeys(
    ("element_type", "key_type", "object_type", "ref_type"), _is_type_name
)
"""The types of a container of OmegaConf. `__setstate__` writes some into brackets,
where an object shows its text.
"""
_OMEGACONF = result_of("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata")


def _changed_by_config(grammar: Grammar, call: Opaque) -> list[Node]:
    """The attributes of a container of OmegaConf, to which `__setstate__` adds a cache
    of flags, and the metadata, of which it sets types.
    """
    states = [state for state in call.states if type(state) is Dict]
    metadata = [
        value
        for state in states
        for key, value in _pairs_in(state)
        if key == "_metadata" and value is not None
    ]
    return [*states, *metadata]


def _are_sizes(grammar: Grammar, node: Node) -> bool:
    return (type(node) is list or is_tuple(node)) and grammar.once(_all_sizes, node)


def _all_sizes(grammar: Grammar, node: Node) -> bool:
    assert type(node) is list or is_tuple(node)
    return all(type(size) is int and is_number(grammar, size) for size in node)


_ADJUSTED = {
    **{
        f"torch._tensor._rebuild_from_type{version}": Rule(
            _from_type, "value", work=_work_of_tensor, changes=changed_by_copy
        )
        for version in ("", "_v2")
    },
    "torch._utils._rebuild_parameter": Rule(
        _takes_rebuild, "value", work=_work_of_parameter
    ),
    "torch._utils._rebuild_parameter_with_state": Rule(
        _with_state, "value", work=_work_of_parameter
    ),
    "torch._utils._rebuild_wrapper_subclass": Rule(
        _takes_wrapper, "value", _STATE_OF_DTENSOR
    ),
    "torch.storage._load_from_bytes": Rule(_takes_nested, "container"),
    "torch.nn.parameter.Parameter": Rule(
        _takes_parameter, "value", _legacy_state, work=_work_of_parameter
    ),
    "torch.nn.parameter.Buffer": Rule(
        _takes_parameter, "value", work=_work_of_parameter
    ),
    "torch.nn.parameter.UninitializedParameter": Rule(
        takes(is_plain, is_plain, is_plain, least=0), "value"
    ),
    "torch.nn.parameter.UninitializedBuffer": Rule(
        takes(is_plain, is_plain, is_plain, least=0), "value"
    ),
    "torch.autograd.variable.Variable": Rule(
        _takes_parameter, "value", _legacy_state, work=_work_of_parameter
    ),
    "torch.Tensor": Rule(_takes_oldest, "value", _legacy_state, work=_numbers_given),
    "torch.Size": Rule(takes(_are_sizes, least=0), "container"),
    "torch.device": Rule(_DEVICE),
    "torch._C.Generator": Rule(
        takes(one_of_forms(is_short_text, result_of("torch.device")), least=0),
        "instance",
        # (seed, offset or None, state).
        tuple_of(
            is_number, one_of_forms(is_none, is_number), is_tensor
        ),  # torch 2.13 reads past anything else
        work=much_work,
    ),
    "torch.torch_version.TorchVersion": Rule(takes(is_short_text)),
    "torch.serialization._get_layout": Rule(takes(is_short_text)),
    "torch.jit._pickle.build_tensor_from_id": Rule(takes(is_plain)),
    # torch 1.0 writes it as the `_backend` of layers.
    "torch.nn.backends.thnn._get_thnn_function_backend": Rule(
        takes_nothing, "instance"
    ),
    "torch.amp.grad_scaler._refresh_per_optimizer_state": Rule(takes_nothing),
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state": Rule(takes_nothing),
    "torch.utils.hooks.RemovableHandle": Rule(
        takes_nothing,
        "instance",
        one_of_forms(
            tuple_of(one_of_forms(is_none, _TABLE), is_count),
            tuple_of(
                one_of_forms(is_none, _TABLE),
                is_count,
                one_of_forms(is_none, is_series, _TABLE),
            ),
        ),
    ),
    # It throws its state away.
    "torch.backends.cudnn.rnn.Unserializable": Rule(
        takes_nothing, "instance", text_matching("<unserializable>")
    ),
    "torch.nn.modules.module._WrappedHook": Rule(
        takes_nothing,
        "instance",
        State(
            {
                "hook": is_anything,
                "with_module": lambda grammar, node: type(node) is bool,
                "module": is_anything,
            },
            stands_closed,
        ),
    ),
    "torch.nn.modules.module._IncompatibleKeys": Rule(
        takes(is_plain, is_plain), "container"
    ),
    "torch._dynamo.decorators._DimRange": Rule(
        takes_nothing, "container", _listed_plain
    ),
    "torch.distributed.device_mesh.DeviceMesh": Rule(
        takes_nothing, "instance", State(_OF_MESH, stands_closed)
    ),
    **{
        name: Rule(
            is_made_without_call,
            "instance",
            State(
                {**_data_of(name), "_schedulers": _list_of(_IS_SCHEDULER)},
                stands_closed,
            ),
        )
        for name in (f"{_SCHEDULER}.ChainedScheduler", f"{_SCHEDULER}.SequentialLR")
    },
    **{
        f"{_SPECTRAL_NORM}.SpectralNorm{name}Hook": Rule(
            is_made_without_call,
            "instance",
            # The hook calls the norm when weights are loaded.
            State({"fn": _IS_SPECTRAL_NORM}, stands_closed),
        )
        for name in ("StateDict", "LoadStateDictPre")
    },
    **{
        f"torch.distributed._mesh_layout.{name}": Rule(
            takes_nothing, "instance", State(_OF_LAYOUT, stands_closed)
        )
        for name in ("_FlatLayout", "_MeshLayout")
    },
    **{
        name: Rule(takes_nothing, "instance", State(_OF_SPEC, stands_closed))
        for name in (
            "torch.distributed.tensor._dtensor_spec.DTensorSpec",
            "torch.distributed._tensor.placement_types.DTensorSpec",
            "torch.distributed._tensor._dtensor_spec.DTensorSpec",
        )
    },
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": Rule(
        takes_nothing,
        "instance",
        _SHARDED_STATE,
    ),
    **{
        f"torch.distributed.{module}.TensorProperties": Rule(
            takes(*[is_plain] * 5, least=0),
            "instance",
            one_of_forms(
                State(
                    dict.fromkeys(_PROPERTIES, is_plain), stands_closed, has_slots=True
                ),
                # In the order of `_PROPERTIES`, with the memory format as a member of
                # an enum.
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
        f"torch.distributed.{module}.{name}": Rule(
            takes(*[is_plain] * count), "container"
        )
        for module, name, count in (
            ("tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor._dtensor_spec", "TensorMeta", 3),
            ("_tensor.placement_types", "TensorMeta", 3),
            ("tensor._dtensor_spec", "ShardOrderEntry", 2),
        )
    },
    **{
        f"torch.distributed.{module}.placement_types.{name}": Rule(
            _takes_placement,
            "value",
            one_of_forms(
                _few_of(_OF_PLACEMENT),
                State(dict.fromkeys(_PLACED, _OF_PLACEMENT), stands_closed),
            ),
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
                # `__setstate__` asks for `self.module`, which must lie in `_modules`.
                "module": is_nowhere,
            },
            stands_decorated,
        ),
    ),
    **{
        name: Rule(
            takes_nothing,
            "instance",
            State({**_data_of(name), **_TYPE_NAMES}, stands_closed),
        )
        for name in ("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata")
    },
    **{
        f"omegaconf.{name}": Rule(
            takes_nothing,
            "instance",
            free_attributes(_metadata=one_of_forms(is_none, _OMEGACONF)),
            changes=_changed_by_config,
        )
        for name in ("dictconfig.DictConfig", "listconfig.ListConfig")
    },
}
# `FloatStorage` and `FloatTensor` share the first half of their names.
_KINDS = [name.removesuffix("Storage") for name in BY_STORAGE]
TORCH = {
    **{
        name: Rule(
            _takes_rebuild, "value", work=_work_of_tensor, changes=changed_by_copy
        )
        for name in REBUILD_CALLS
    },
    **{
        f"torch.jit._pickle.{name}": Rule(_takes_tagged, "container")
        for name in (
            "restore_type_tag",
            *(f"build_{kind}list" for kind in ("int", "tensor", "double", "bool")),
        )
    },
    **{
        f"{module}.{name}": Rule(
            _takes_oldest, "value", _legacy_state, work=_numbers_given
        )
        for module in ("torch", "torch.cuda", "torch.storage")
        for name in (
            *BY_STORAGE,
            *(f"{kind}Tensor" for kind in _KINDS),
            *UNTYPED,
            "TypedStorage",
            "_TypedStorage",
        )
    },
    # Last, for some of these names are in REBUILD_CALLS too.
    **_ADJUSTED,
}
