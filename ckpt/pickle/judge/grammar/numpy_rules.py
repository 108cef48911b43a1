"""The rules of numpy: arrays, whose dtype, shape and data must fit each other, scalars,
and generators.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, is_tuple
from ckpt.model.tensors import Storage
from ckpt.pickle.judge.grammar.forms import (
    Grammar,
    Manner,
    Rule,
    State,
    holds_flag,
    holds_text,
    is_count,
    is_none,
    is_plain,
    is_raw,
    is_short,
    is_short_text,
    much_work,
    named,
    one_of_forms,
    result_of,
    takes,
    takes_nothing,
    text_matching,
    tuple_of,
)
from ckpt.tree.arrays import as_bytes

# --- numpy ----------------------------------------------------------------------------

_ARRAYS = named(
    "numpy.ndarray",
    "numpy.matrix",
    "numpy.recarray",
    "numpy.rec.recarray",
    "numpy.core.records.recarray",
    "numpy.ma.MaskedArray",
    "numpy.ma.core.MaskedArray",
)
_DTYPE = result_of("numpy.dtype")


def _is_dtype_of_elements(grammar: Grammar, node: Node) -> bool:
    """The dtype of an array or a scalar. One that is itself an array of others stands
    in fields alone: numpy dies when it shows a scalar of it.
    """
    if type(node) is not Opaque or not _DTYPE(grammar, node):
        return False
    return not any(
        is_tuple(state) and len(state) > 2 and state[2] is not None
        for state in node.states
    )


_RECORD = named("numpy.record")
_SIZES = {
    **dict.fromkeys(("b1", "i1", "u1", "?", "b", "B"), 1),
    **dict.fromkeys(("f2", "i2", "u2"), 2),
    **dict.fromkeys(("f4", "i4", "u4"), 4),
    **dict.fromkeys(("f8", "i8", "u8", "c8"), 8),
    **dict.fromkeys(("f12",), 12),
    **dict.fromkeys(("f16", "c16"), 16),
    **dict.fromkeys(("c24",), 24),
    **dict.fromkeys(("c32",), 32),
}
"""Bytes of an element of the dtypes of numbers, by the codes that numpy writes."""
_TIME_CODES = ("M8", "m8")
_OBJECT_CODES = ("O8", "O4", "O")
_LONGEST_ELEMENT = 2**31
_LONGEST_RECORD = 1 << 20
_MOST_EMPTY = 1_000_000
"""The most elements of no bytes in an array: numpy goes through all of them."""
_ALIGNMENTS = (1, 2, 4, 8, 16, 32)
"""The alignments of texts, bytes and records. numpy divides by them."""
_OBJECTS_FLAGS = 63
"""The flags of a dtype of objects. With others, raw bytes would be taken as addresses
of objects.
"""
_OF_OBJECTS = 0x07
"""The flags of elements that are objects or addresses. The others say how numpy reads
an element.
"""


def _is_zero(grammar: Grammar, node: Node) -> bool:
    # numpy writes `_reconstruct(ndarray, (0,), b"b")`, and the state gives the real
    # shape.
    return is_tuple(node) and node in ((0,), ())


def _is_letter(grammar: Grammar, node: Node) -> bool:
    """The type code `b` of the empty array that a state fills. Another one could make
    objects of any size.
    """
    return node in ("b", b"b") or (type(node) is Opaque and as_bytes(node) == b"b")


def _dtype_code(grammar: Grammar, node: Node) -> bool:
    # A record has a class in place of a code.
    if _RECORD(grammar, node):
        return True
    if not holds_text(node):
        return False
    code = str(node)
    return (
        code in _SIZES
        or code in _TIME_CODES
        or code in _OBJECT_CODES
        or _flexible_size(code) is not None
    )


def _flexible_size(code: str) -> int | None:
    """The bytes of a dtype of texts, bytes or records by its code, such as `U6`. None
    for any other code.
    """
    digits = code[1:]
    if code[:1] not in ("S", "U", "V") or not (
        digits.isascii() and digits.isdigit() and len(digits) < 10
    ):
        return None
    size = int(digits) * (4 if code[0] == "U" else 1)
    return size if size < _LONGEST_ELEMENT else None


def _dtype_state(grammar: Grammar, node: Node) -> bool:
    """A state of a dtype. `_takes_dtype` has judged it, with the code that it belongs
    to.
    """
    return True


def _takes_dtype(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """A dtype as numpy writes it: a code, and a state that says no more of it than the
    code allows.
    """
    if not (
        1 <= len(args) <= 3
        and _dtype_code(grammar, args[0])
        and all(map(holds_flag, args[1:]))
    ):
        return False
    if not call.states:
        return True
    # Without a copy the dtype is numpy's own one, which takes no other byte order.
    is_copy = len(args) == 3 and bool(args[2])
    return is_copy and len(call.states) == 1 and _dtype_call(grammar, call)


def _dtype_call(grammar: Grammar, call: Node) -> bool:
    """Tell whether the state of a dtype fits its code: (version, order, parts of an
    array, names, fields, bytes, alignment, flags, and times or metadata).
    """
    assert type(call) is Opaque
    state = call.states[0]
    if not is_tuple(state) or not 8 <= len(state) <= 9:
        return False
    version, order, parts, names, fields, size, alignment, flags = state[:8]
    numbers = (version, size, alignment, flags)
    if (
        not all(type(number) is int for number in numbers)
        or not holds_text(order)
        or str(order) not in "<>|="
    ):
        return False
    assert type(flags) is int and type(size) is int
    code = "V0" if _RECORD(grammar, call.args[0]) else str(call.args[0])
    # numpy writes -1 for the alignment of all others.
    alignments = _ALIGNMENTS if code[0] in ("S", "U", "V") else (-1,)
    if alignment not in alignments:
        return False
    if len(state) == 9 and not _dtype_metadata(grammar, code, state[8]):
        return False
    # numpy reads the unit of a time where there is none, and dies.
    if len(state) == 8 and code in _TIME_CODES:
        return False
    if code in _OBJECT_CODES:
        return (
            (parts, names, fields) == (None, None, None)
            and flags == _OBJECTS_FLAGS
            and size == -1
        )
    # numpy before 1.24 wrote a signed byte.
    if flags & _OF_OBJECTS or not -128 <= flags < 256:
        return False
    if code[0] != "V":
        is_plain = (parts, names, fields) == (None, None, None) and flags in (
            (0, 8) if code[0] == "U" else (0,)
        )
        # numpy writes -1 for the size of numbers, and the size for texts and bytes.
        return is_plain and size == (
            -1 if _flexible_size(code) is None else _flexible_size(code)
        )
    is_sized = 0 <= size < _LONGEST_ELEMENT and (
        _RECORD(grammar, call.args[0]) or size == _flexible_size(code)
    )
    if parts is not None:
        return (
            is_sized
            and names is None
            and fields is None
            and _dtype_of_parts(grammar, parts, size)
        )
    return is_sized and grammar.once(_dtype_fields, state)


def _is_positive(grammar: Grammar, node: Node) -> bool:
    return is_count(grammar, node) and bool(node)


def _dtype_metadata(grammar: Grammar, code: str, node: Node) -> bool:
    if code not in _TIME_CODES:
        return node is None or (type(node) is Dict and grammar.is_plain(node))
    return _TIME_METADATA(grammar, node)


_TIME_METADATA = tuple_of(
    one_of_forms(is_none, lambda grammar, node: type(node) is Dict and not node.keys),
    # (unit, number of units, divisor, event).
    tuple_of(one_of_forms(is_raw, is_short_text), _is_positive, _is_positive, is_count),
)


def _dtype_of_parts(grammar: Grammar, node: Node, size: int) -> bool:
    """`(dtype, shape)` of a field that is an array."""
    if not is_tuple(node) or len(node) != 2:
        return False
    # numpy takes a single number for a shape of one dimension.
    shape = (node[1],) if type(node[1]) is int else node[1]
    if (
        not is_tuple(shape)
        or len(shape) > 32
        or not all(is_count(grammar, number) for number in shape)
    ):
        return False
    inner = _element_size(grammar, node[0])
    return inner is not None and inner * prod(shape) == size  # type: ignore[arg-type]


def _dtype_fields(grammar: Grammar, state: Node) -> bool:
    """The fields of a record, each of which lies inside of it: `{name: (dtype,
    offset)}`.
    """
    assert is_tuple(state)
    names, fields, size = state[3:6]
    assert type(size) is int
    if names is None:
        return fields is None
    if (
        not is_tuple(names)
        or type(fields) is not Dict
        or not all(map(holds_text, (*names, *fields.keys)))
    ):
        return False
    # A field may have a title too, so there may be more keys than names.
    keys = list(map(str, fields.keys))
    if len(set(keys)) < len(keys) or not set(map(str, names)).issubset(keys):
        return False
    total = 0
    named = set(map(str, names))
    for key, field in zip(keys, fields.values, strict=True):
        if (
            not is_tuple(field)
            or not 2 <= len(field) <= 3
            or not is_count(grammar, field[1])
        ):
            return False
        if len(field) == 3 and not holds_text(field[2]):
            return False
        inner, offset = _element_size(grammar, field[0]), field[1]
        assert type(offset) is int
        total += (inner or 0) if key in named else 0  # a title names a field again
        if not inner or inner + offset > size or size > _LONGEST_RECORD:
            return False
    return total <= size  # fields over each other could be many in few bytes


def _any_dtype(grammar: Grammar, node: Node) -> bool:
    assert type(node) is Opaque
    return _takes_dtype(grammar, node.args, node)


def _element_size(grammar: Grammar, node: Node) -> int | None:
    """The bytes of an element of a dtype inside another one. None for one of objects,
    or one that is not allowed.

    A loader changes a dtype in place when it sets a state, so one that others have seen
    before is none.
    """
    if (
        type(node) is not Opaque
        or not _DTYPE(grammar, node)
        or grammar.is_refilled(node)
    ):
        return None
    if node.items or node.keys or not grammar.once_nested(_any_dtype, node):
        return None
    code = str(node.args[0]) if holds_text(node.args[0]) else "V0"
    if code in _OBJECT_CODES:
        return None
    if code[0] == "V" and node.states:
        state = node.states[0]
        return state[5] if is_tuple(state) and type(state[5]) is int else None
    return _SIZES.get(code, 8 if code in _TIME_CODES else _flexible_size(code))


def _array_state(grammar: Grammar, node: Node) -> bool:
    """(version, shape, dtype, order, data), where an array of objects has a list as its
    data.
    """
    if not is_tuple(node) or not 4 <= len(node) <= 5:
        return False
    # numpy reads a state without a version too.
    version, (shape, dtype, order, data) = node[:-4], node[-4:]
    if (
        not is_tuple(shape)
        or len(shape) > _DIMENSIONS
        or not all(is_count(grammar, size) for size in shape)
    ):
        return False
    if (
        not all(map(holds_flag, version))
        or type(order) not in (bool, int)
        or order not in (0, 1)
        or not _is_dtype_of_elements(grammar, dtype)
        or grammar.is_refilled(dtype)
    ):
        return False
    # Their data of no bytes does not pay for the elements.
    count = prod(shape)  # type: ignore[arg-type]
    if count > _MOST_EMPTY and _element_size(grammar, dtype) == 0:
        return False
    if type(data) is list:
        is_full = count == len(data) and not grammar.is_refilled(data)
        return is_full and _is_of_objects(dtype) and _is_shallow(data)
    return not _is_of_objects(dtype) and is_raw(grammar, data)


def _takes_buffer(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """(data, dtype, shape, order), as protocol 5 writes an array, and the order of its
    axes where that is neither C nor F.
    """
    if not 4 <= len(args) <= 5:
        return False
    data, dtype, shape, order = args[:4]
    if not is_raw(grammar, data) or not _is_dtype_of_elements(grammar, dtype):
        return False
    if not is_tuple(shape) or len(shape) > _DIMENSIONS:
        return False
    if not all(is_count(grammar, size) for size in shape):
        return False
    size = _element_size(grammar, dtype)
    held = _length_of(data)
    # An object has no size: numpy makes none of bytes.
    if size is None or held not in (None, size * prod(shape)):  # type: ignore[arg-type]
        return False
    axes = args[4] if len(args) == 5 else None
    if order == "K":
        places = list(axes) if is_tuple(axes) else []
        is_whole = all(type(place) is int for place in places)
        return is_whole and sorted(places) == list(range(len(shape)))  # type: ignore[type-var]
    return order in ("C", "F") and axes is None


def _length_of(data: Node) -> int | None:
    """The length of bytes that stand in the pickle or in the file, None for others."""
    if type(data) is PersistentId:
        return data.meaning.nbytes if type(data.meaning) is Storage else None
    return len(data) if type(data) in (bytes, bytearray) else None  # type: ignore[arg-type]


def _steps_of_mask(grammar: Grammar, call: Opaque) -> int:
    """The mask of a record is made anew of all of its fields, each of which takes some
    bytes.

    Its fill value is made of the size of an element, one for each that is given.
    """
    work = 0
    for state in call.states:
        if is_tuple(state) and len(state) == 7:
            count = _elements_of(state[6])
            # A single number is no work beyond its call.
            of_number = _LONGEST_NUMBER if count > 1 else 0
            work += max(_size_of(state[2]), of_number) * count
    # The dtype is an argument, or stands in the state of the array.
    dtypes = [part for state in call.states if is_tuple(state) for part in state]
    for dtype in (*call.args, *dtypes):
        if type(dtype) is Opaque and dtype.states and _DTYPE(grammar, dtype):
            state = dtype.states[0]
            if (
                is_tuple(state)
                and len(state) > 5
                and type(state[5]) is int
                and state[3] is not None
            ):
                work += _FIELD * state[5]
    return work


def _size_of(dtype: Node) -> int:
    """The bytes of an element of text or of a record, 0 for one of another dtype."""
    if type(dtype) is not Opaque or not dtype.args:
        return 0
    if dtype.states and is_tuple(dtype.states[0]) and len(dtype.states[0]) > 5:
        size = dtype.states[0][5]
        return max(size, 0) if type(size) is int else 0
    return _flexible_size(str(dtype.args[0])) or 0


def _elements_of(fill: Node) -> int:
    """The elements of a fill value."""
    if type(fill) is not Opaque:
        return 1
    # The shape stands in the state, or is an argument of the call at protocol 5.
    parts = list(fill.args[2:3])
    for state in fill.states:
        parts += state[:2] if is_tuple(state) else ()
    count = 1
    for part in parts:
        if is_tuple(part) and all(type(number) is int for number in part):
            count *= prod(part)  # type: ignore[arg-type]
    return count


_FIELD, _LONGEST_NUMBER = 16, 32
"""The work for a byte of the fields of a mask, and the bytes of the longest number."""


def _is_shallow(items: list[Node]) -> bool:
    """Tell whether arrays of objects lie in each other a few times at most: numpy frees
    them one inside the other.
    """
    level: list[Node] = [items]
    # Level by level, so arrays that share lists cost no more than their number.
    for _ in range(_NESTED_ARRAYS):
        seen: dict[int, Node] = {}
        for node in level:
            parts = node if type(node) is list or is_tuple(node) else ()
            for part in parts:
                inner = _lists_of(part) if type(part) is Opaque else [part]
                seen.update(
                    (id(data), data) for data in inner if type(data) in (list, tuple)
                )
        level = list(seen.values())
        if not level:
            return True
    return False


def _lists_of(call: Opaque) -> list[Node]:
    return [
        part
        for state in call.states
        if is_tuple(state)
        for part in state
        if type(part) is list
    ]


_NESTED_ARRAYS = 32
"""The most arrays and lists of objects inside each other, from an array of
objects on.
"""
_DIMENSIONS = 64
"""The most dimensions of an array of numpy 2."""


def _is_of_objects(dtype: Node) -> bool:
    return type(dtype) is Opaque and bool(dtype.args) and dtype.args[0] in _OBJECT_CODES


def _masked_state(grammar: Grammar, node: Node) -> bool:
    """(version, shape, dtype, order, data, mask, fill value) of a masked array of
    numbers, texts or records.
    """
    if not is_tuple(node) or len(node) != 7 or type(node[4]) is list:
        return False
    fill = node[6]
    is_filled = (
        fill is None or type(fill) in (int, float, bool, str) or _is_fill(grammar, fill)
    )
    return _array_state(grammar, node[:5]) and is_raw(grammar, node[5]) and is_filled


_FILL = result_of(
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
)


def _is_fill(grammar: Grammar, node: Node) -> bool:
    """A scalar, or an array of numbers, texts or records. Objects would be asked for
    their numbers and texts.
    """
    return type(node) is Opaque and _FILL(grammar, node) and not _lists_of(node)


_BIT_GENERATOR = "numpy.random._pickle.__bit_generator_ctor"
_BIT_GENERATORS = tuple(
    f"numpy.random._{module}.{name}"
    for module, name in (
        ("mt19937", "MT19937"),
        ("pcg64", "PCG64"),
        ("pcg64", "PCG64DXSM"),
        ("philox", "Philox"),
        ("sfc64", "SFC64"),
    )
)
# Older numpy writes the name of a generator, newer numpy its class.
_BITS = one_of_forms(text_matching("[A-Z0-9a-z]{1,20}"), named(*_BIT_GENERATORS))
_SEEDS = result_of(
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
)


def _is_state_of_bits(grammar: Grammar, node: Node) -> bool:
    """The state of a generator, as a dict or as the tuple of an old RandomState. numpy
    takes its next number from the place that the state names, wherever that is.
    """
    if not grammar.is_plain(node):
        return False
    if is_tuple(node):
        # (name, key, position, further numbers).
        return len(node) >= 3 and _is_place("pos", node[2])
    # numpy reads a list as such a tuple, and writes none.
    return type(node) is Dict and _are_places(grammar, node, 2)


def _are_places(grammar: Grammar, node: Dict, levels: int) -> bool:
    """Tell whether a dict of a state, and the dicts inside of it, name places that are
    there.
    """
    if not levels:
        return False
    for key, value in zip(node.keys, node.values, strict=True):
        if not holds_text(key) or not _is_place(str(key), value):
            return False
        # A dict that a call makes could hide a place.
        if type(value) is Opaque and not _ARRAY(grammar, value):
            return False
        if type(value) is Dict and not _are_places(grammar, value, levels - 1):
            return False
    return True


def _is_place(name: str, value: Node) -> bool:
    most = _PLACES.get(name)
    return most is None or (type(value) is int and 0 <= value <= most)


_ARRAY = result_of(
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
)
_PLACES = {"pos": 624, "buffer_pos": 4}
"""The places in the states of MT19937 and Philox from which the next number is taken,
and the last of them.
"""
_BITS_STATE = one_of_forms(
    is_none,
    _is_state_of_bits,
    tuple_of(_is_state_of_bits, one_of_forms(is_none, is_plain, _SEEDS)),
)


def _changed_bits(grammar: Grammar, call: Opaque) -> list[Node]:
    """The bit generator that gets another state: the one of the generator around it."""
    bits = [arg for arg in call.args if type(arg) is Opaque]
    return [
        each
        for each in bits
        if not all(_has_state(grammar, each, state) for state in call.states)
    ]


def _has_state(grammar: Grammar, bits: Opaque, state: Node) -> bool:
    """Tell whether a bit generator has a state already. That of a RandomState has
    further numbers beside it.
    """
    if state is None:
        return True
    # Nodes inside each other many times would be compared as often.
    if grammar.weight(state) > _MOST_NUMBERS:
        return False
    given = state[0] if is_tuple(state) else state
    for own in bits.states:
        stored = own[0] if is_tuple(own) else own
        if type(stored) is Dict and type(given) is Dict:
            if not set(map(str, stored.keys)).issubset(map(str, given.keys)):
                return False
            numbers = dict(zip(map(str, given.keys), given.values, strict=True))
            pairs = zip(stored.keys, stored.values, strict=True)
            return all(_is_equal(value, numbers[str(key)], 8) for key, value in pairs)
    return False


_MOST_NUMBERS = 10_000
"""The most entries of a state that are compared: 624 numbers, some as objects."""


def _is_equal(one: Node, other: Node, levels: int) -> bool:
    """Tell whether two nodes are written alike. `levels` are the parts inside of each
    other that are compared.
    """
    if one is other:
        return True
    if type(one) is not type(other) or not levels:
        return False
    if type(one) is Opaque and type(other) is Opaque:
        return (
            type(one.func) is Global
            and one.func == other.func
            and _are_equal(one.args, other.args, levels)
            and _are_equal(one.states, other.states, levels)
        )
    if type(one) is Dict and type(other) is Dict:
        return one.keys == other.keys and _are_equal(one.values, other.values, levels)
    if is_tuple(one) and is_tuple(other):
        return _are_equal(one, other, levels)
    return type(one) in (int, str, bytes, bytearray, bool) and one == other


def _are_equal(ones: Sequence[Node], others: Sequence[Node], levels: int) -> bool:
    return len(ones) == len(others) and all(
        _is_equal(one, other, levels - 1)
        for one, other in zip(ones, others, strict=True)
    )


_FROM_BITS = Rule(
    takes(
        one_of_forms(_BITS, result_of(_BIT_GENERATOR)), named(_BIT_GENERATOR), least=0
    ),
    "instance",
    _BITS_STATE,
    work=much_work,
    changes=_changed_bits,
)


def _is_short_bytes(grammar: Grammar, node: Node) -> bool:
    """Bytes as protocol 2 writes them."""
    data = as_bytes(node) if type(node) is Opaque else None
    return data is not None and is_short(grammar, data)


_OF_WRAPPER = ("shape", "order", "allow_mmap", "numpy_array_alignment_bytes")


def _on_wrapper(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute that joblib does not write. joblib.load calls `read` and further
    methods of the description of an array.
    """
    return "odd" if grammar.is_plain(value) else "called"


NUMPY = {
    "numpy.dtype": Rule(_takes_dtype, "value", _dtype_state),
    "numpy.core.multiarray._reconstruct": Rule(
        takes(_ARRAYS, _is_zero, _is_letter), "container", _array_state
    ),
    "numpy.core.multiarray.scalar": Rule(
        takes(_is_dtype_of_elements, one_of_forms(is_raw, is_short))
    ),
    "numpy.core.numeric._frombuffer": Rule(_takes_buffer),
    "numpy.ma.core._mareconstruct": Rule(
        takes(_ARRAYS, _ARRAYS, _is_zero, _is_letter),
        "value",
        _masked_state,
        work=_steps_of_mask,
    ),
    _BIT_GENERATOR: Rule(
        takes(_BITS, least=0), "instance", _BITS_STATE, work=much_work
    ),
    "numpy.random._pickle.__generator_ctor": _FROM_BITS,
    "numpy.random._pickle.__randomstate_ctor": _FROM_BITS,
    "numpy.random.bit_generator.SeedSequence": Rule(
        takes_nothing, "instance", is_plain
    ),
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence": Rule(
        takes(
            named("numpy.random.bit_generator.SeedSequence"),
            is_count,
            one_of_forms(is_none, is_plain),
        ),
        "instance",
        is_plain,
    ),
    **{
        f"numpy.{name}": Rule(takes(one_of_forms(is_short, _is_short_bytes), least=0))
        for name in (
            "bool_",
            "float16",
            "float32",
            "float64",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "str_",
        )
    },
    "joblib.numpy_pickle.NumpyArrayWrapper": Rule(
        takes_nothing,
        "instance",
        State(
            {
                "subclass": _ARRAYS,
                "dtype": _is_dtype_of_elements,
                **dict.fromkeys(_OF_WRAPPER, is_plain),
            },
            _on_wrapper,
        ),
    ),
}
