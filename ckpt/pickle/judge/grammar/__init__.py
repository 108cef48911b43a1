"""The calls that loading may make without a finding: for each listed function what it
may be given.

The default is no. A call is harmless when its function has a rule here, and each
argument, each state and each item has the form that the rule allows. The danger is less
in the functions than in the values that they call: `OrderedDict(x)` asks `x` for its
`keys`, `Adam` asks its groups for their `params`, `Parameter(x)` calls `x.detach()`. So
no rule lets a function, a class, or an object with attributes of the file's choice
reach code that calls or iterates it. Where such values only lie, in a module or a plain
dict, nothing calls them.

The rules follow the sources of Python 3.10 to 3.14, numpy 1 and 2, and torch up to
2.13. What is popped from the stack of the machine has run as well, so all calls of a
pickle are judged, not only the calls in its tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpt.model.nodes import ByteStr, Dict, Node, Opaque, is_tuple
from ckpt.pickle.attributes import ATTRIBUTES
from ckpt.pickle.judge.grammar.forms import (
    COPYREG,
    Form,
    Grammar,
    Manner,
    Rule,
    State,
    class_of,
    holds_text,
    is_anything,
    is_called,
    is_made_without_call,
    is_pairs,
    is_plain,
    is_short,
    made_by,
    one_of_forms,
    result_of,
    stands_closed,
    stands_decorated,
    takes,
)
from ckpt.pickle.judge.grammar.numpy_rules import NUMPY
from ckpt.pickle.judge.grammar.python_rules import PYTHON
from ckpt.pickle.judge.grammar.torch_rules import (
    GROUPS,
    GROUPS_OF_ADAMW,
    RECURRENT,
    RECURRENT_LAYERS,
    TABLES,
    TORCH,
    changed_by_layer,
    changed_by_optimizer,
    hidden_weights,
    holds_own_weights,
)
from ckpt.pickle.judge.known import CLASSES, ENUMS, MODULES, OPTIMIZERS
from ckpt.pickle.machine import Fillings
from ckpt.tree.view import DICTS

__all__ = [
    "Grammar",
    "class_of",
    "grammar_of",
    "is_at_rest",
    "is_no_odd_optimizer",
    "made_by",
    "rule_of",
]

_LISTED: dict[str, Rule] = {**PYTHON, **NUMPY, **TORCH}


def _steps_of_optimizer(grammar: Grammar, call: Opaque) -> int:
    """`__setstate__` of an optimizer reads each group, each of its parameters, and the
    state of each.
    """
    return sum(
        grammar.weight(value)
        for state in call.states
        if type(state) is Dict
        # Other entries of the state are kept and not read.
        for key, value in zip(state.keys, state.values, strict=True)
        if key in ("param_groups", "state")
    )


def _steps_of_layers(grammar: Grammar, call: Opaque) -> int:
    """`__setstate__` of a recurrent layer makes names for each of its layers, looks
    each up, searches its names for each attribute that it sets, and refers to each of
    its weights.
    """
    work = 0
    for state in call.states:
        pairs = (
            zip(state.keys, state.values, strict=True) if type(state) is Dict else ()
        )
        for key, value in pairs:
            if key == "num_layers" and type(value) is int:
                work += _LAYER * value
            # The bytes of a list pay for the first layer that has it.
            elif type(value) is list and key in _LISTS_OF_WEIGHTS:
                work += _SEARCHES * len(value) if grammar.is_again(value) else 0
    return work


_LISTS_OF_WEIGHTS = (
    "all_weights",
    "_all_weights",
    "_flat_weights_names",
    "_flat_weights",
)
_SEARCHES = 10
# torch makes up to ten names for a layer: five weights in each direction.
_LAYER = 100


def _rule_of_optimizer(groups: Mapping[str, Form]) -> Rule:
    return Rule(
        is_made_without_call,
        "instance",
        State(groups, stands_closed),
        work=_steps_of_optimizer,
        changes=changed_by_optimizer,
    )


_OPTIMIZER_RULE = _rule_of_optimizer(GROUPS)
_ADAMW = "torch.optim.adamw.AdamW"
_RULE_OF_ADAMW = _rule_of_optimizer(GROUPS_OF_ADAMW)


def _takes_attributes(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """Nothing, or the pairs of a dict that `copyreg._reconstructor` fills without a
    call of its class.

    A class of these copies what it is given, all below it at each level, and no pickler
    writes such a call. NEWOBJ with pairs makes an empty dict.
    """
    # An argument that is no dict would be asked for its `keys`.
    if len(args) > 1 or not all(is_pairs(grammar, arg) for arg in args):
        return False
    for arg in args:
        if type(arg) is Dict:
            pairs: list[tuple[Node, Node]] = list(
                zip(arg.keys, arg.values, strict=True)
            )
        else:
            pairs = [
                (pair[0], pair[1])
                for pair in arg  # type: ignore[union-attr]
                if type(pair) is list or is_tuple(pair)  # type: ignore[arg-type]
            ]
        if not _are_attributes(grammar, pairs):
            return False
    name = class_of(call.func)
    is_filled = (
        name is not None and name.module in COPYREG and name.name == "_reconstructor"
    )
    return not args or (is_filled and all(map(grammar.is_plain, args)))


def _steps_of_settings(grammar: Grammar, call: Opaque) -> int:
    """EasyDict makes a dict of its own kind of each dict that is set, and of all below,
    each as often as it is reached.
    """
    work = 0
    for value in call.values:
        parts = value if type(value) is list or is_tuple(value) else (value,)
        work += sum(
            _SETTING * grammar.weight(part) for part in parts if type(part) is Dict
        )
    return work


_SETTING = 20


def _are_attributes(grammar: Grammar, pairs: Iterable[tuple[Node, Node]]) -> bool:
    """Tell whether no item hides what such a dict calls: it sets each by setattr, and
    makes dicts of its own kind.
    """
    for key, value in pairs:
        if not holds_text(key):
            if type(key) is Opaque and not _is_settings(grammar, value):
                # A scalar of numpy is equal to its text.
                grammar.called.append("(a name that a call makes)")
                return False
            continue
        # A function by a name of Python would be called in place of its own.
        is_hidden = str(key).startswith("__") and not grammar.is_plain(value)
        if is_hidden or _stands_in_settings(grammar, str(key), value) == "called":
            grammar.called.append(str(key))
            return False
    return True


def _keys_are_attributes(grammar: Grammar, call: Opaque) -> bool:
    return _are_attributes(grammar, zip(call.keys, call.values, strict=True))


_IS_SETTINGS = result_of(*DICTS)


def _is_settings(grammar: Grammar, value: Node) -> bool:
    """Tell whether a value is such a dict, or a list or tuple of data and such dicts,
    and of lists of them.
    """
    if _IS_SETTINGS(grammar, value):
        return True
    is_list = (type(value) is list or is_tuple(value)) and grammar.once_nested(
        _all_settings, value
    )
    return is_list or grammar.is_plain(value)


def _all_settings(grammar: Grammar, value: Node) -> bool:
    assert type(value) is list or is_tuple(value)
    return all(_is_settings(grammar, part) for part in value)


def _stands_in_settings(grammar: Grammar, name: str, value: Node) -> Manner:
    return (
        "fine"
        if _is_settings(grammar, value)
        else stands_decorated(grammar, name, value)
    )


_OF_SETTINGS = State(
    dict.fromkeys(("__deprecated_keys__", "__renamed_keys__"), is_plain),
    _stands_in_settings,
)
"""The attributes of such a dict, nested ones among them. CfgNode has two tables of old
keys.
"""
_DICT_RULE = Rule(
    _takes_attributes,
    "instance",
    _OF_SETTINGS,
    has_keys=True,
    keys=_keys_are_attributes,
    work=_steps_of_settings,
)


def _takes_member(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """The value of a member of an enum, which a call finds."""
    return (
        is_called(call)
        and len(args) == 1
        and type(args[0]) in (int, str, float, bool, ByteStr)
        and is_short(grammar, args[0])
    )


_ENUM_RULE = Rule(_takes_member)
_FLAGS = "re.RegexFlag"
_FLAG_RULE = Rule(takes(lambda grammar, node: type(node) is int and 0 <= node < 512))
"""The flags of expressions. Python 3.10 makes a member of each further bit, and all of
these have one hash.
"""


def is_at_rest(grammar: Grammar, call: Opaque, *, is_written: bool) -> bool:
    """Tell whether an object of an unlisted class of torch has no attribute that acts
    when it is loaded or goes.

    A class that torch has written as its own (`is_written`) may hold objects. Another
    name may lead to any class.
    """
    grammar.called = []
    if is_written:
        return all(
            type(node) is not Dict or _AS_WRITTEN(grammar, node) for node in call.states
        )
    return all(_DATA_ALONE(grammar, node) for node in call.states)


def _as_written(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of a class that torch has written. Its objects hold objects, but
    none that `Optimizer` calls or reads when it is loaded.
    """
    return "called" if name in _CALLED_BY_OPTIMIZER else "fine"


_CALLED_BY_OPTIMIZER = ("_patch_step_function",)
_AS_WRITTEN = State(GROUPS, _as_written)


def is_no_odd_optimizer(grammar: Grammar, call: Opaque) -> bool:
    """Tell whether an object of a class that nobody knows here is none of an optimizer
    with other groups, or other functions, than one writes.

    Optimizers of other packages inherit `__setstate__` of torch, and a class of torch
    has other names in modules that import it.
    """
    grammar.called = []
    return all(
        type(node) is not Dict
        or not _is_of_optimizer(node)
        or _AS_WRITTEN(grammar, node)
        for node in call.states
    )


def _is_of_optimizer(state: Dict) -> bool:
    names = set(map(str, filter(holds_text, state.keys)))
    # Every optimizer has both keys in its state.
    return not names.isdisjoint(_CALLED_BY_OPTIMIZER) or names.issuperset(
        ("defaults", "param_groups")
    )


def _data_alone(grammar: Grammar, name: str, value: Node) -> Manner:
    return "fine" if grammar.is_plain(value) else "called"


_DATA_ALONE = State(TABLES, _data_alone)
# A range is no plain data, for its rule makes an instance.
_data = one_of_forms(is_plain, result_of("builtins.range"))


def _module_rule(name: str) -> Rule:
    """The rule of a layer: its dicts, its listed functions, and any data that somebody
    put on it.
    """
    listed = dict.fromkeys(ATTRIBUTES.get(name, ()), is_anything)
    # `__setstate__` of these asks for attributes, which may lie among weights.
    if name in RECURRENT_LAYERS:
        recurrent = State(
            {**listed, **RECURRENT},
            stands_decorated,
            # `__setstate__` reads these three to make the names of the weights.
            ("num_layers", "bidirectional", "bias"),
        )
        return Rule(
            is_made_without_call,
            "instance",
            _with_weights_shown(_with_all_weights(recurrent)),
            work=_steps_of_layers,
        )
    return Rule(
        is_made_without_call,
        "instance",
        _with_weights_shown(State({**listed, **TABLES}, stands_decorated)),
        changes=changed_by_layer(name),
    )


def _with_all_weights(state: State) -> Form:
    """The state of a recurrent layer has the names of its weights: torch looks for them
    among the weights otherwise.
    """

    def judge(grammar: Grammar, node: Node) -> bool:
        names = map(str, filter(holds_text, node.keys)) if type(node) is Dict else ()
        if type(node) is Dict and not holds_own_weights(node):
            grammar.odd.append("_flat_weights")
        # Old torch wrote `all_weights`, which `__setstate__` takes for `_all_weights`.
        return not {"_all_weights", "all_weights"}.isdisjoint(names) and state(
            grammar, node
        )

    return judge


def _with_weights_shown(state: Form) -> Form:
    """The state of a layer without attributes that hide its weights: Python finds an
    attribute first, and `state_dict()` gives the weight.
    """

    def judge(grammar: Grammar, node: Node) -> bool:
        if type(node) is Dict:
            grammar.odd += hidden_weights(node)
        return state(grammar, node)

    return judge


_SLOTTED = (
    "torch.distributed._shard.metadata.ShardMetadata",
    "torch.distributed._shard.sharded_tensor.shard.Shard",
)
"""Listed classes with slots. Attributes in the second half of a state go through
`__setattr__`.
"""


def _object_rule(name: str) -> Rule:
    """The rule of a class whose objects have the attributes that somebody has written.

    Of a class of another package that nobody has written here, any data and functions
    are taken.
    """
    listed = ATTRIBUTES.get(name)
    has_slots = name in _SLOTTED
    if listed is None:
        return Rule(
            is_made_without_call,
            "instance",
            State({}, stands_decorated, has_slots=has_slots),
        )
    forms = {
        attribute: is_anything if has_objects else _data
        for attribute, has_objects in listed.items()
    }
    return Rule(
        is_made_without_call,
        "instance",
        State(forms, stands_closed, has_slots=has_slots, wrong="odd"),
    )


def rule_of(name: str) -> Rule | None:
    """Return the rule of a dotted name, as Python 3 and numpy 1 have it, or None when
    it is not listed.
    """
    # A rule of its own comes first: some of these names are in the lists too.
    rule = _LISTED.get(name)
    if rule is not None:
        return rule
    if name in ENUMS:
        return _FLAG_RULE if name == _FLAGS else _ENUM_RULE
    if name in MODULES:
        return _module_rule(name)
    if name in DICTS:
        return _DICT_RULE
    if name in OPTIMIZERS:
        return _RULE_OF_ADAMW if name == _ADAMW else _OPTIMIZER_RULE
    return _object_rule(name) if name in CLASSES else None


def grammar_of(fillings: Fillings | None = None) -> Grammar:
    """Return the judge of one pickle. `fillings` are its nodes that change after others
    could see them.
    """
    return Grammar(rule_of, fillings)
