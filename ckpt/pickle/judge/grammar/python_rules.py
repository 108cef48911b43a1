"""The rules of Python's own functions and classes."""

from __future__ import annotations

import io

from ckpt.model.nodes import Global, Node, Opaque, is_tuple
from ckpt.pickle.judge.grammar.forms import (
    TYPES,
    Grammar,
    Manner,
    Rule,
    State,
    class_of,
    free_attributes,
    holds_text,
    is_any_text,
    is_attributes,
    is_count,
    is_factory,
    is_function,
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
    much_work,
    named,
    one_of_forms,
    result_of,
    stands_decorated,
    takes,
    takes_getattr,
    takes_many,
    takes_nothing,
    text_matching,
    tuple_of,
)
from ckpt.pickle.judge.known import VALUES
from ckpt.pickle.judge.names import is_own
from ckpt.tree.arrays import CODECS, as_bytes


def _takes_encoded(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    # Known as bytes: the codec is one of a short list.
    return as_bytes(call) is not None


def _is_codec(grammar: Grammar, node: Node) -> bool:
    """bytes, bytearray or str import a codec by its name."""
    return holds_text(node) and str(node) in CODECS


def _takes_bytes(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    # `bytes(text, "latin1")`.
    if len(args) == 2:
        return holds_text(args[0]) and _is_codec(grammar, args[1])
    return not args or (
        # `bytes(10**9)` would make a billion bytes of zero.
        len(args) == 1 and (is_raw(grammar, args[0]) or is_numbers(grammar, args[0]))
    )


def _takes_str(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    # `str(data, "utf-8")`.
    if len(args) == 2:
        return is_raw(grammar, args[0]) and _is_codec(grammar, args[1])
    return not args or (
        len(args) == 1
        and (holds_text(args[0]) or type(args[0]) in (float, bool, type(None)))
    )


# --- Python ---------------------------------------------------------------------------

_BLOCK = 64
"""The slots that a deque has from the first on."""
_STATE_OF_DICT = State({}, stands_decorated)
_CONTAINERS = {
    "builtins.list": Rule(takes(is_series, least=0), "container", None, has_items=True),
    "builtins.tuple": Rule(takes(is_series, least=0), "container"),
    "builtins.set": Rule(takes(is_series, least=0), "container"),
    "builtins.frozenset": Rule(takes(is_series, least=0), "container"),
    "builtins.dict": Rule(takes(is_pairs, least=0), "container", None, has_keys=True),
    "collections.OrderedDict": Rule(
        takes(is_pairs, least=0), "container", _STATE_OF_DICT, has_keys=True
    ),
    "collections.Counter": Rule(
        takes(is_series, least=0), "container", _STATE_OF_DICT, has_keys=True
    ),
    "collections.deque": Rule(
        takes(is_series, one_of_forms(is_none, is_count), least=0),
        "container",
        is_none,
        has_items=True,
        work=lambda grammar, call: _BLOCK,
    ),
}


def _takes_factory(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`defaultdict(f, …)`; an f of another package is told of as an import, and then
    the dict is no plain data.
    """
    if not args:
        return True
    # The factory may be None, as in `defaultdict(None)`.
    name = class_of(args[0])
    if args[0] is not None and name is None:
        return False
    return (name is None or is_factory(args[0]) or not is_own(name.module)) and (
        len(args) == 1 or (len(args) == 2 and is_pairs(grammar, args[1]))
    )


_ZONE = result_of(
    "datetime.timezone", "zoneinfo.ZoneInfo", "zoneinfo.ZoneInfo._unpickle"
)
# Reading digits takes Python a square of their number.
_DIGITS = r"[-+]?[0-9]{1,1000}"
# `Europe/Berlin`, and no path with `..`.
_KEY = text_matching(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")
# The bytes and a zone; older pickles have numbers.
_TIME = takes(
    one_of_forms(is_raw, is_short_text, is_count),
    *[one_of_forms(is_number, is_none, _ZONE)] * 8,
    least=1,
)


def _type_expression(grammar: Grammar, node: Node) -> bool:
    return grammar.is_type_expression(node)


_OR = named("operator.or_")


def _takes_getitem(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`typing.Optional[X]`."""
    of = args[0] if len(args) == 2 else None
    return (
        type(of) is Global
        and of.module == "typing"
        and f"typing.{of.name}" in VALUES
        and _type_expression(grammar, args[1])
    )


def _takes_reduce(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """`int | None`, which is `reduce(or_, (int, NoneType))`."""
    return len(args) == 2 and _OR(grammar, args[0]) and grammar.once(_is_union, args[1])


def _is_union(grammar: Grammar, node: Node) -> bool:
    return (
        is_tuple(node)
        and all(
            class_of(part) is not None
            or (type(part) is Opaque and TYPES(grammar, part))
            for part in node
        )
        and grammar.is_type_expression(node)
    )


def _compared_types(grammar: Grammar, call: Opaque) -> int:
    """The types that making a union compares: each with all others."""
    return grammar.types_in(call.args[1]) ** 2


def _looked_up_types(grammar: Grammar, call: Opaque) -> int:
    """The types in brackets, which `typing` hashes and compares to find what it has
    made before, and with each other: numbers can be chosen for one hash.
    """
    return grammar.types_in(call.args[1]) ** 2


def _takes_partial(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    return len(args) == 1 and is_function(grammar, args[0]) and len(call.states) <= 1


def is_held(grammar: Grammar, node: Node) -> bool:
    return grammar.is_held(node)


# (function, arguments, keywords, attributes).
_PARTIAL_STATE = tuple_of(
    is_function, is_held, is_held, one_of_forms(is_none, is_plain)
)


def _is_pattern(grammar: Grammar, node: Node) -> bool:
    return (
        is_short_text(grammar, node) or is_raw(grammar, node)
    ) and grammar.may_compile(node)


def _is_random_state(grammar: Grammar, node: Node) -> bool:
    """(version, 625 numbers, the next number of a normal distribution): what
    `random.Random` writes.
    """
    if (
        not is_tuple(node)
        or len(node) != 3
        or node[0] not in (2, 3)
        or not is_tuple(node[1])
    ):
        return False
    return (
        len(node[1]) == 625
        and all(type(number) is int and 0 <= number < 2**32 for number in node[1])
        and (node[2] is None or type(node[2]) is float)
    )


# An attribute of these names would take the place of a method.
_OF_STREAMS = frozenset([*dir(io.BytesIO), *dir(io.StringIO)])


def _on_stream(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of a stream. Python calls its `close` when nobody holds the stream
    any more.
    """
    return "called" if name in _OF_STREAMS or not grammar.is_plain(value) else "fine"


_ON_STREAM = State({}, _on_stream)
_OF_UUID = State(
    {
        "int": lambda grammar, node: type(node) is int and 0 <= node < 2**128,
        "is_safe": lambda grammar, node: (
            node is None or (type(node) is int and node in (0, -1))
        ),
    },
    lambda grammar, name, value: "called",
    ("int",),
)
"""The state that `UUID.__getstate__` gives: `__setstate__` looks `is_safe` up among the
members of an enum.
"""
_OF_NAMESPACE = free_attributes(_get_args=is_nowhere, _get_kwargs=is_nowhere)
"""The text of a Namespace calls these two."""


_LONG_PATH, _LONG_PART = 256, 512
"""Characters of a path, and bits of a part of a fraction, from which on making one
takes long.
"""


def _long_paths(grammar: Grammar, call: Opaque) -> int:
    """The characters of a long path, which are joined and split again. Short ones are
    paid for by their call.
    """
    length = sum(len(part) for part in call.args if isinstance(part, str))
    return length if length >= _LONG_PATH else 0


def _long_parts(grammar: Grammar, call: Opaque) -> int:
    """The words of the long numbers of a fraction: finding their greatest common
    divisor takes a square of them.
    """
    bits = sum(part.bit_length() for part in call.args if type(part) is int)
    return bits >> 5 if bits >= _LONG_PART else 0


def _is_step(grammar: Grammar, node: Node) -> bool:
    """A step of a count, which stands still at nought."""
    return is_number(grammar, node) and node != 0


def _is_list(grammar: Grammar, node: Node) -> bool:
    return type(node) is list


PYTHON = {
    **_CONTAINERS,
    "collections.defaultdict": Rule(_takes_factory, "container", None, has_keys=True),
    "builtins.object": Rule(takes_nothing),
    "builtins.bool": Rule(takes(is_short, least=0)),
    "builtins.int": Rule(
        takes(one_of_forms(is_number, text_matching(_DIGITS)), least=0)
    ),
    "builtins.float": Rule(
        takes(one_of_forms(is_number, text_matching(r"[-+0-9.eEinfa]{1,40}")), least=0)
    ),
    "builtins.complex": Rule(takes(is_number, is_number, least=0)),
    "builtins.slice": Rule(takes(is_short, is_short, is_short, least=1)),
    "builtins.range": Rule(takes(is_number, is_number, is_number, least=1), "instance"),
    "builtins.bytes": Rule(_takes_bytes),
    "builtins.bytearray": Rule(_takes_bytes),
    "builtins.str": Rule(_takes_str),
    "builtins.type": Rule(
        takes(
            one_of_forms(is_none, named("builtins.Ellipsis", "builtins.NotImplemented"))
        ),
        "instance",
    ),
    "builtins.getattr": Rule(takes_getattr, "instance"),
    "_codecs.encode": Rule(_takes_encoded),
    "types.GenericAlias": Rule(takes(_type_expression, _type_expression), "instance"),
    "operator.getitem": Rule(_takes_getitem, "instance", work=_looked_up_types),
    "functools.reduce": Rule(_takes_reduce, "instance", work=_compared_types),
    "functools.partial": Rule(_takes_partial, "instance", _PARTIAL_STATE),
    "itertools.count": Rule(takes(is_number, _is_step, least=0), "instance"),
    "datetime.date": Rule(_TIME),
    "datetime.time": Rule(_TIME),
    "datetime.datetime": Rule(_TIME),
    "datetime.timedelta": Rule(takes(is_number, is_number, is_number, least=0)),
    "datetime.timezone": Rule(
        takes(result_of("datetime.timedelta"), is_short_text, least=1)
    ),
    "zoneinfo.ZoneInfo": Rule(takes(_KEY), work=much_work),
    "zoneinfo.ZoneInfo._unpickle": Rule(takes(_KEY, is_short), work=much_work),
    "decimal.Decimal": Rule(
        takes(
            text_matching(
                r"[-+]?[0-9.]{1,1000}([eE][-+]?[0-9]{1,9})?|[-+]?(NaN|sNaN"
                r"|Infinity)[0-9]{0,9}"
            )
        )
    ),
    "fractions.Fraction": Rule(
        takes(
            one_of_forms(is_number, text_matching(rf"{_DIGITS}(/[0-9]{{1,1000}})?")),
            is_number,
            least=1,
        ),
        work=_long_parts,
    ),
    "uuid.UUID": Rule(takes_nothing, "value", _OF_UUID),
    # The mask leaves out DEBUG (0x80), which prints, and TEMPLATE (1).
    "re._compile": Rule(
        takes(
            _is_pattern, lambda grammar, node: type(node) is int and not node & ~0x17E
        )
    ),
    "random.Random": Rule(takes_nothing, "instance", _is_random_state, work=much_work),
    "argparse.Namespace": Rule(takes_nothing, "instance", _OF_NAMESPACE),
    "types.SimpleNamespace": Rule(takes_nothing, "instance", is_attributes),
    # A lookup asks each of the maps.
    "collections.ChainMap": Rule(
        takes_nothing, "instance", free_attributes(maps=_is_list)
    ),
    "collections.UserDict": Rule(takes_nothing, "instance", is_attributes),
    "collections.UserList": Rule(takes_nothing, "instance", is_attributes),
    "collections.UserString": Rule(takes(is_short_text), "instance", is_attributes),
    **{
        f"{module}.BytesIO": Rule(
            takes_nothing, "instance", tuple_of(is_raw, is_count, _ON_STREAM)
        )
        for module in ("io", "_io")
    },
    **{
        f"{module}.StringIO": Rule(
            takes_nothing,
            "instance",
            # (text, newline, position, attributes).
            tuple_of(
                is_any_text,
                one_of_forms(is_none, is_short_text),
                is_count,
                _ON_STREAM,
            ),
        )
        for module in ("io", "_io")
    },
    **{
        f"{module}.{name}": Rule(takes_many(is_short_text), work=_long_paths)
        for module in ("pathlib", "pathlib._local")
        for name in (
            "Path",
            "PosixPath",
            "PurePath",
            "PurePosixPath",
            "PureWindowsPath",
            "WindowsPath",
        )
    },
}
