"""The cost of loading a small file: time, memory and the stack stay in proportion, or
it is refused or called dangerous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from opcodes import binary, build, call, glob, pickled, torch_zip, value

from ckpt.formats import open
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

PRIME = 2**61 - 1
"""Numbers have the same hash where they differ by it."""
LONG = 1 << 5_000


def groups(path: Path, program: bytes) -> dict[str, str]:
    """The names of a file that are not just known, with their groups."""
    path.write_bytes(
        torch_zip(
            pickled(
                {
                    "model": {"w.weight": op.tensor()},
                    "x": program + op.pop() + op.none(),
                }
            )
        )
    )
    with open(str(path)) as checkpoint:
        return {
            f"{row.module}.{row.name}": row.group
            for row in checkpoint.imports
            if row.group != "known"
        }


# --- keys -----------------------------------------------------------------------------


def keyed(*keys: Any) -> bytes:
    return op.empty_dict() + b"".join(
        value(key) + op.none() + op.setitem() for key in keys
    )


def frozen(*items: Any) -> bytes:
    return op.mark() + b"".join(map(value, items)) + b"\x91"


def unfolding(levels: int) -> bytes:
    """Frozensets that each hold the next twice: a hash is kept, a comparison visits
    2^levels of them.
    """
    program = value(5) + op.put(7) + op.pop()
    for _ in range(levels):
        program += frozen((op.get(7), 0), (op.get(7), 1)) + op.put(7) + op.pop()
    return program


def equal_but_for_one() -> bytes:
    """-1 and -2 have one hash, so that Python compares all before them."""
    program = unfolding(40) + op.get(7) + op.put(8) + op.pop() + unfolding(40)
    return program + keyed((op.get(7), -1), (op.get(8), -2))


def tuples_of_one_hash(count: int, levels: int) -> bytes:
    """Each is compared with all before it, entry by entry."""
    program = op.empty_dict() + op.put(3) + op.pop()
    for number in range(count):
        program += value((1, 2)) + op.put(7) + op.pop()
        for _ in range(levels):
            program += value((op.get(7), op.get(7))) + op.put(7) + op.pop()
        key = value((op.get(7), number * PRIME + 5))
        program += op.get(3) + key + op.none() + op.setitem() + op.pop()
    return program + op.get(3)


def in_each_others_way(bits: int, first: int, others: int) -> list[int]:
    """Hashes of which Python looks at many slots of a dict for each of the last
    ones.
    """
    random, size = np.random.default_rng(1), 1 << bits
    chain = [1]
    while len(chain) < size:
        chain.append((5 * chain[-1] + 1) % size)
    is_taken = np.zeros(size, bool)
    is_taken[chain[:first]] = True
    place = np.empty(size, np.int64)
    place[chain] = np.arange(size)
    found: dict[int, None] = {}
    while len(found) < others:
        hashes = random.integers(size, size << 8, 1_000_000)
        slots, rest = hashes % size, hashes.copy()
        is_fine = is_taken[slots]
        while rest.any():
            rest >>= 5
            slots = (slots * 5 + rest + 1) % size
            is_fine &= is_taken[slots] | (rest == 0)
        found.update(
            dict.fromkeys(hashes[is_fine & (place[slots] < first // 4)].tolist())
        )
    return [*chain[:first], *list(found)[:others]]


def pair_with_hash(wanted: int, left: int) -> tuple[int, int]:
    """Two numbers whose tuple has a hash: Python mixes them with constants."""
    first, second, fifth, mask = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
        2**64 - 1,
    )

    def turned(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & mask

    while True:
        left += 1
        mixed = turned((fifth + left * second) & mask, 31) * first & mask
        whole = turned(
            (wanted - (2 ^ (fifth ^ 3527539))) * pow(first, -1, 2**64) & mask, 33
        )
        right = (whole - mixed) * pow(second, -1, 2**64) & mask
        right -= 2**64 * (right >> 63)
        if abs(right) < PRIME and right != -1:
            return left, right


CROWD = in_each_others_way(16, 30_000, 10_000)
LETTERS = "k" * 100_000


def two_texts() -> bytes:
    """Two equal texts that are two objects, in the slots 11 and 12."""
    return (
        value(LETTERS) + op.put(11) + op.pop() + value(LETTERS) + op.put(12) + op.pop()
    )


def with_texts(keys: Callable[[bytes, int], bytes]) -> bytes:
    """A dict whose keys each hold the one text or the other."""
    made = b"".join(
        keys(op.get(11 + number % 2), number) + op.none() + op.setitem()
        for number in range(900)
    )
    return two_texts() + op.empty_dict() + made


KEYS: dict[str, Callable[[], bytes]] = {
    "sets of long paths": lambda: in_sets(
        "pathlib", "PurePosixPath", *["a" * 9_000] * 100
    ),
    "sets of long bytes": lambda: in_sets(
        "_codecs", "encode", "a" * 1_000_000, "latin1"
    ),
    "a long text in a set that a call makes": lambda: (
        two_texts()
        + call(glob("builtins", "set"), [op.get(11), *[op.get(12)] * 20_000])
    ),
    "tuples of long texts and of one hash": lambda: with_texts(
        lambda text, number: value((text, 2 + number * PRIME))
    ),
    "a long text in a set": lambda: (
        two_texts() + in_set([op.get(11), *[op.get(12)] * 20_000])
    ),
    "a long text in a frozenset": lambda: (
        two_texts() + op.mark() + op.get(11) + op.get(12) * 20_000 + b"\x91"
    ),
    "tuples of a long text in a set": lambda: (
        two_texts()
        + in_set([value((op.get(11), "a")), *[value((op.get(12), "a"))] * 20_000])
    ),
    "a long text as a key": lambda: (
        two_texts() + op.empty_dict() + (op.get(12) + op.none() + op.setitem()) * 20_000
    ),
    "a long number": lambda: keyed(LONG),
    "a long number in a tuple": lambda: keyed(((1, -LONG),)),
    "a long number in a frozenset": lambda: keyed((frozen(LONG),)),
    "a long number in a set": lambda: (
        op.empty_set() + op.mark() + value(LONG) + b"\x90"
    ),
    "frozensets that unfold": equal_but_for_one,
    "frozensets that unfold in a set": lambda: unfolding(40) + frozen((op.get(7), 1)),
    "tuples of one hash": lambda: tuples_of_one_hash(600, 12),
    "floats in each other's way": lambda: keyed(*map(float, CROWD)),
    "tuples in each other's way": lambda: keyed(
        *(pair_with_hash(number, place) for place, number in enumerate(CROWD))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_keys_that_take_ages_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError):
        groups(tmp_path / "x.pth", KEYS[name]())


def test_keys_of_real_files_are_read(tmp_path: Path) -> None:
    pairs = [(left, right) for left in range(100) for right in range(100)]
    long_texts = [f"{number}" + "a" * 2_000 for number in range(100)]
    program = keyed(
        *long_texts,
        ("a" * 2_000, 1),
        ("a" * 2_000, 2),
        2**4_000,
        1 << 64,
        frozen(1, 2),
        frozen("a"),
        (frozen(1), 2),
        *pairs,
        *map(float, range(6_000)),
    )
    assert groups(tmp_path / "x.pth", program) == {}


def range_with_hash(wanted: int, length: int) -> bytes:
    """A range with a hash, which is that of (its length, its start, its step)."""
    first, second, fifth, mask = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
        2**64 - 1,
    )

    def turned(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & mask

    def before(mixed: int) -> int:
        return turned(mixed * pow(first, -1, 2**64) & mask, 33)

    mixed = turned((fifth + length * second) & mask, 31) * first & mask
    last = before((wanted - (3 ^ (fifth ^ 3527539))) & mask)
    start = (before((last - second) & mask) - mixed) * pow(second, -1, 2**64) & mask
    start -= 2**64 * (start >> 63)
    if not -PRIME < start < PRIME or start == -1:
        return b""
    assert hash(range(start, start + length)) == wanted
    return call(glob("builtins", "range"), start, start + length)


def in_set(items: list[bytes]) -> bytes:
    return op.empty_set() + op.mark() + b"".join(items) + op.additems()


def frozensets(kind: bytes, *, texts: bool) -> bytes:
    """3,000 small frozensets, as protocol 2 writes them. Numbers can be chosen so that
    all have one hash.
    """
    pairs = [
        [f"a{number}", "b"] if texts else [number, number + 1]
        for number in range(3_000)
    ]
    calls = [call(glob("builtins", "frozenset"), pair) for pair in pairs]
    return (
        in_set(calls)
        if kind == b"set"
        else call(glob("builtins", kind.decode()), calls)
    )


def places(offsets: Iterable[Sequence[int]], count: int) -> bytes:
    """The places of one tensor in a distributed checkpoint, as the keys of `count`
    dicts.
    """
    index = glob("torch.distributed.checkpoint.metadata", "MetadataIndex")
    program, number = index + op.put(9) + op.pop(), 1_000
    for number, offset in enumerate(offsets, 1_000):
        state = {"fqn": "w", "offset": call(glob("torch", "Size"), offset), "index": 0}
        program += op.get(9) + value(()) + op.newobj() + value(state) + build()
        program += op.put(number) + op.pop()
    keys = keyed(*map(op.get, range(1_000, number + 1)))
    return program + value([keys] * count)


def units(count: int) -> bytes:
    """Dtypes of times with a unit of one second, two, and so on, which have one
    hash.
    """
    times = call(glob("numpy", "dtype"), "M8", False, True)
    return in_set(
        [
            times
            + value(
                (
                    4,
                    "<",
                    None,
                    None,
                    None,
                    -1,
                    -1,
                    0,
                    ({}, (binary(b"s"), number, 1, 1)),
                )
            )
            + build()
            for number in range(1, count + 1)
        ]
    )


def numbered_ids(count: int, dicts: int) -> bytes:
    """Ids whose numbers have one hash, as the keys of several dicts."""
    program = b""
    for number in range(count):
        program += glob("uuid", "UUID") + value(()) + op.newobj()
        program += value({"int": 5 + (number + 9) * PRIME}) + build()
        program += op.put(number + 1_000) + op.pop()
    keys = keyed(*map(op.get, range(1_000, count + 1_000)))
    return program + value([keys] * dicts)


RANGES = [
    each for length in range(2, 20_000) if (each := range_with_hash(777, length))
][:3_000]
CROWDED: dict[str, Callable[[], bytes]] = {
    "ranges of one hash in a set": lambda: in_set(RANGES),
    "ranges of one hash in a frozenset": lambda: op.mark() + b"".join(RANGES) + b"\x91",
    "ranges of one hash in a set that a call makes": lambda: call(
        glob("builtins", "set"), RANGES
    ),
    "ranges of one hash in tuples": lambda: in_set(
        [value((each, 1)) for each in RANGES]
    ),
    "frozensets of numbers in a set": lambda: frozensets(b"set", texts=False),
    "frozensets of numbers in a set that a call makes": lambda: frozensets(
        b"frozenset", texts=False
    ),
    "places of one tensor": lambda: places(
        [pair_with_hash(777, left * 100) for left in range(3_500)], 1
    ),
    "places of one tensor in many dicts": lambda: places(
        [pair_with_hash(777, left * 100) for left in range(500)], 50
    ),
    "dtypes of times": lambda: units(2_500),
    "ids in many dicts": lambda: numbered_ids(1_000, 20),
    "ids in tuples in many dicts": lambda: (
        numbered_ids(1_000, 1)
        + op.pop()
        + value([keyed(*((op.get(id), 1) for id in range(1_000, 2_000)))] * 20)
    ),
}


@pytest.mark.parametrize("name", CROWDED)
def test_many_objects_whose_hash_a_file_chooses_are_an_error(
    name: str, tmp_path: Path
) -> None:
    assert "called" in groups(tmp_path / "x.pth", CROWDED[name]()).values()


def test_some_objects_whose_hash_a_file_chooses_are_no_alarm(tmp_path: Path) -> None:
    assert groups(tmp_path / "x.pth", in_set(RANGES[:100])) == {}
    assert groups(tmp_path / "x.pth", frozensets(b"set", texts=True)) == {}
    many = places([(number, 0) for number in range(5_000)], 2)
    assert groups(tmp_path / "x.pth", many) == {}
    assert groups(tmp_path / "x.pth", units(50)) == {}
    assert groups(tmp_path / "x.pth", numbered_ids(100, 20)) == {}


# --- calls ----------------------------------------------------------------------------

WIDE = op.tensor((2**24,), (0,))
"""A tensor of one number, of which iterating makes 2^24."""
ADAM: dict[str, Any] = {"defaults": {}, "state": {}, "param_groups": []}
FULL = b"\x8b" + (1 << 16).to_bytes(4, "little") + b"\x7f" * (1 << 16)
"""A number of 500,000 bits."""


def again(
    count: int, function: bytes, *arguments: Any, how: bytes = op.reduce()
) -> bytes:
    program = (
        function + op.put(9) + op.pop() + value(tuple(arguments)) + op.put(8) + op.pop()
    )
    return program + value([op.get(9) + op.get(8) + how] * count)


def texts(size: int) -> bytes:
    return call(glob("numpy", "dtype"), f"U{size}", False, True) + value(
        (3, "<", None, None, None, 4 * size, 4, 8)
    ) + build()  # fmt: skip


def masked(size: int, fill: Any) -> bytes:
    start = (
        glob("numpy.ma.core", "MaskedArray"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    state = (1, (0,), texts(size), False, binary(b""), binary(b""), fill)
    return (
        call(glob("numpy.ma.core", "_mareconstruct"), *start) + value(state) + build()
    )


def inside_each_other(
    first: bytes, around: Callable[[bytes], bytes], levels: int
) -> bytes:
    program = first + op.put(7) + op.pop()
    for _ in range(levels):
        program += around(op.get(7)) + op.put(7) + op.pop()
    return program + op.get(7)


def in_deque(inner: bytes) -> bytes:
    return call(glob("collections", "deque")) + inner + op.append()


def in_defaultdict(inner: bytes) -> bytes:
    return call(glob("collections", "defaultdict")) + value(1) + inner + op.setitem()


def in_array(inner: bytes) -> bytes:
    objects = call(glob("numpy", "dtype"), "O8", False, True)
    objects += value((3, "|", None, None, None, -1, -1, 63)) + build()
    start = call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        binary(b"b"),
    )
    return start + value((1, (1,), objects, False, [in_deque(inner)])) + build()


def shared_dicts(levels: int) -> bytes:
    return inside_each_other(
        value({"x": 1}), lambda inner: value({"a": inner, "b": inner}), levels
    )


def config(levels: int) -> bytes:
    return call(
        glob("yacs.config", "CfgNode"),
        inside_each_other(value({"x": [1]}), lambda inner: value({"a": inner}), levels),
    )


def easydict(levels: int) -> bytes:
    return (
        glob("easydict", "EasyDict")
        + value(())
        + op.newobj()
        + value("a")
        + shared_dicts(levels)
        + op.setitem()
    )


ALIASES = [
    call(glob("types", "GenericAlias"), glob("builtins", "list"), number)
    for number in range(300)
]
"""Types that differ, but are compared."""
ENCODED = call(glob("_codecs", "encode"), "a" * 10_000, "latin1") + op.put(7) + op.pop()
"""Bytes as protocol 2 writes them, in slot 7."""
COPIES = {
    "a bytearray": call(glob("builtins", "bytearray"), op.get(7)),
    "a text": call(glob("builtins", "str"), op.get(7), "latin-1"),
    "a stream": glob("_io", "BytesIO") + value(()) + op.newobj() + value((op.get(7), 0, None)) + build(),
    "an array": call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), (0,), binary(b"b"))
    + value((1, (2_500,), call(glob("numpy", "dtype"), "f4", False, True)
             + value((3, ">", None, None, None, -1, -1, 0)) + build(), False, op.get(7))) + build(),
}  # fmt: skip
RECORD = glob("torch.nn.modules.module", "_IncompatibleKeys")


def doubled(levels: int, record: bytes = RECORD) -> bytes:
    """Records that each hold the next twice."""
    return inside_each_other(value(1), lambda inner: call(record, inner, inner), levels)


def adam_of(*parameters: Any) -> bytes:
    """An optimizer hashes each of its parameters when it is loaded."""
    return made(
        "torch.optim.adam",
        "Adam",
        {**ADAM, "param_groups": [{"params": list(parameters)}]},
    )


def brackets(count: int, times: int) -> bytes:
    """Literals of numbers that have one hash. `typing` keeps the last hundred that it
    made.
    """
    literal = glob("typing", "Literal")
    numbers = tuple(7 + number * PRIME for number in range(10, count + 10))
    return b"".join(
        call(glob("operator", "getitem"), literal, (*numbers, number)) + op.pop()
        for number in range(times)
    ) + value(())


def adam_with(state: Any) -> bytes:
    return made("torch.optim.adam", "Adam", {**ADAM, "state": state})


def default_dict(state: dict[Any, Any]) -> bytes:
    return call(glob("collections", "defaultdict"), glob("builtins", "dict")) + op.mark() + b"".join(
        value(key) + value(entry) for key, entry in state.items()
    ) + op.setitems()  # fmt: skip


STEPS: dict[str, tuple[Any, bool]] = {
    "a number": ({0: {"step": 1, "eta": 0.5}}, True),
    "a tensor": ({0: {"step": op.tensor((), ())}, 1: {}}, True),
    "a scalar of numpy": (
        {0: {"step": call(glob("numpy.core.multiarray", "scalar"), call(glob("numpy", "dtype"), "f4", False, True),
                          binary(bytes(4)))}},
        True,
    ),
    "by default": (default_dict({0: {"step": 1}}), True),
    "in order": ({0: call(glob("collections", "OrderedDict"), [["step", 1]])}, True),
    "other entries": ({0: {"step": 1, "old_dirs": ["a" * 20_000], "name": "a" * 20_000}}, True),
    "a text": ({0: {"step": "1" * 20_000}}, False),
    "a text by default": (default_dict({0: {"step": "1" * 20_000}}), False),
    "a text in order": ({0: call(glob("collections", "OrderedDict"), [["step", "1" * 20_000]])}, False),
    "bytes": ({0: {"step": 1, "eta": binary(bytes(20_000))}}, False),
    "a list": ({0: {"step": 1, "mu_product": [1.0] * 20_000}}, False),
    "a text by another key": (
        {0: {call(glob("numpy.core.multiarray", "scalar"), call(glob("numpy", "dtype"), "U4", False, True),
                  binary("step".encode("utf-32-le"))): "1" * 20_000}},
        False,
    ),
    "a dict of a nested pickle": (
        {0: call(glob("torch.storage", "_load_from_bytes"), binary(op.legacy(pickled({"step": "1" * 20_000}), ())))}, False
    ),
}  # fmt: skip
"""States of an optimizer, and whether they are fine. torch makes tensors of some
entries when it loads.
"""


@pytest.mark.parametrize("name", STEPS)
def test_what_an_optimizer_turns_into_a_tensor_is_a_number(
    name: str, tmp_path: Path
) -> None:
    state, is_fine = STEPS[name]
    assert (
        "called" not in groups(tmp_path / "x.pth", adam_with(state)).values()
    ) is is_fine


SIZES = call(glob("torch", "Size"), [1] * 10_000) + op.put(6)
NO_NUMBERS = {
    "bytes": binary(bytes(1_000)),
    "a bytearray": call(glob("builtins", "bytearray"), binary(bytes(1_000))),
    "arrays": call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), (0,), binary(b"b"))
    + value((1, (1_000,), call(glob("numpy", "dtype"), "u1", False, True), False, binary(bytes(1_000)))) + build(),
    "sizes": call(glob("torch", "Size"), [1] * 1_000),
    "records": call(RECORD, 1, 2),
    "tensors": op.tensor(),
    "sets": frozen(1, 2),
}  # fmt: skip
"""Values of which torch reads each part as a number."""
SHARD = glob("torch.distributed.tensor.placement_types", "Shard")
COSTLY: dict[str, Callable[[], bytes]] = {
    "texts as parameters": lambda: two_texts() + adam_of(op.get(11), *[op.get(12)] * 100),
    "tuples as parameters": lambda: adam_of(("a", 1)),
    "ranks in tuples in tuples": lambda: mesh(_flatten_rank_map=((((1,),),),)),
    "too many ranks": lambda: mesh(_flatten_rank_map=doubling(21)),
    "a long name among the ranks": lambda: mesh(_flatten_rank_map=("a" * 20_000,)),
    "sizes of a layout in each other": lambda: made(
        "torch.distributed._mesh_layout", "_MeshLayout", {"shape": doubling(21), "stride": (1,)}
    ),
    "many parameters of one mesh": lambda: parameters_of(mesh(_flatten_rank_map=ranks(500_000)), 400),
    "records in each other as a parameter": lambda: adam_of(doubled(40)),
    "entries of an order as a parameter": lambda: adam_of(
        doubled(40, glob("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"))
    ),
    "sizes as parameters": lambda: adam_of(SIZES, *[op.get(6)] * 2_000),
    "a number as a parameter": lambda: adam_of(7),
    "numbers of one hash in brackets": lambda: brackets(490, 15),
    **{
        f"a tensor of {name}": lambda one=one: call(glob("torch", "FloatTensor"), [one + op.put(7), *[op.get(7)] * 20])
        for name, one in NO_NUMBERS.items()
    },
    "a storage of bytes": lambda: call(glob("torch", "FloatStorage"), [binary(bytes(100))]),
    "bytes of bytes": lambda: call(glob("builtins", "bytes"), [binary(b"a")]),
    "a placement of records": lambda: call(SHARD, doubled(40)),
    "a placement of tensors": lambda: call(SHARD, [op.tensor() + op.put(6), *[op.get(6)] * 100]),
    "a placement whose state is records": lambda: SHARD + value(()) + op.newobj() + value({"dim": doubled(40)}) + build(),
    "a tensor as a size": lambda: call(glob("torch", "Size"), WIDE),
    "a tensor as groups": lambda: made("torch.optim.adam", "Adam", {**ADAM, "param_groups": WIDE}),
    "a tensor as parameters": lambda: made("torch.optim.adam", "Adam", {**ADAM, "param_groups": [{"params": WIDE}]}),
    "long numbers as parameters": lambda: made(
        "torch.optim.adam", "Adam", {**ADAM, "param_groups": [{"params": [FULL + op.put(7), *[op.get(7)] * 20_000]}]}
    ),
    "a tensor as names of a mesh": lambda: made("torch.distributed.device_mesh", "DeviceMesh", {"_dim_group_names": WIDE}),
    "a fraction of long numbers": lambda: call(glob("fractions", "Fraction"), FULL, FULL),
    "a range of long numbers": lambda: call(glob("builtins", "range"), 0, FULL, FULL),
    "a number of many digits": lambda: call(glob("numpy", "int64"), "9" * 20_000),
    "a long number for a scalar": lambda: call(glob("numpy", "str_"), FULL),
    "a long number of an enum": lambda: call(glob("http", "HTTPStatus"), FULL),
    "many bits of flags": lambda: call(glob("re", "RegexFlag"), 1 << 60),
    "a long text among types": lambda: call(glob("operator", "getitem"), glob("typing", "Optional"), "+1" * 10_000),
    "a fill value of a large element": lambda: masked(500_000_000, "x"),
    "no fill value of a large element": lambda: masked(500_000_000, None),
    "many fill values": lambda: masked(
        100_000,
        call(glob("numpy.core.multiarray", "_reconstruct"), glob("numpy", "ndarray"), (0,), binary(b"b"))
        + value((1, (1_000,), call(glob("numpy", "dtype"), "u1", False, True), False, binary(bytes(1_000))))
        + build(),
    ),
    "deques in each other": lambda: inside_each_other(op.none(), in_deque, 300),
    "dicts with a factory in each other": lambda: inside_each_other(op.none(), in_defaultdict, 300),
    "arrays in deques": lambda: inside_each_other(op.none(), in_array, 150),
    "settings that are copied at each level": lambda: config(3),
    "settings that OBJ copies": lambda: op.mark() + glob("yacs.config", "CfgNode") + value({"x": {"x": [1]}}) + op.obj(),
    "settings that INST copies": lambda: op.mark() + value({"x": {"x": [1]}}) + op.inst("yacs.config", "CfgNode"),
    "settings that are given to NEWOBJ": lambda: glob("easydict", "EasyDict") + value(({"x": 1},)) + op.newobj(),
    "settings that unfold": lambda: easydict(19),
    "many generators": lambda: again(20_000, glob("torch._C", "Generator")),
    "many generators of numpy": lambda: again(20_000, glob("numpy.random._pickle", "__randomstate_ctor")),
    "many bit generators": lambda: again(20_000, glob("numpy.random._pickle", "__bit_generator_ctor")),
    "many generators of Python": lambda: again(20_000, glob("random", "Random"), how=op.newobj()),
    "many zones": lambda: again(
        20_000, call(glob("builtins", "getattr"), glob("zoneinfo", "ZoneInfo"), "_unpickle"), "Europe/Paris", False
    ),
    "many deques": lambda: again(200_000, glob("collections", "deque")),
    **{
        f"many copies by {name} of bytes that a call makes": lambda one=one: ENCODED + value([one] * 2_000)
        for name, one in COPIES.items()
    },
    "numbers in lists that lie in each other": lambda: value([1] * 100) + op.put(7) + op.pop()
    + value([[op.get(7)] * 100] * 100) + op.put(7) + op.pop() + value([call(glob("torch", "FloatTensor"), op.get(7))] * 20),
    "many unions of many types": lambda: again(200, glob("functools", "reduce"), glob("operator", "or_"), tuple(ALIASES)),
    "many unions of unions": lambda: again(
        200, glob("functools", "reduce"), glob("operator", "or_"),
        tuple(call(glob("functools", "reduce"), glob("operator", "or_"), tuple(ALIASES[at::2])) for at in range(2)),
    ),
    "many types in brackets": lambda: again(
        20_000, glob("operator", "getitem"), glob("typing", "Optional"),
        call(glob("types", "GenericAlias"), glob("builtins", "tuple"), tuple(ALIASES)),
    ),
    "many fractions of long numbers": lambda: again(
        60_000, glob("fractions", "Fraction"), op.long4(b"\1" * 500), op.long4(b"\3" * 500)
    ),
    "many long paths": lambda: again(1_000, glob("pathlib", "PurePosixPath"), *["a/" * 120] * 100),
    "metadata of a sharded tensor that is anything": lambda: sharded(made("argparse", "Namespace", {})),
}  # fmt: skip


def in_sets(module: str, name: str, *arguments: Any) -> bytes:
    """Sets of two values that are equal, so that Python compares them for each."""
    longest = value(arguments) + op.put(7) + op.pop()
    for slot in (8, 9):
        longest += (
            glob(module, name) + op.get(7) + op.reduce() + op.put(slot) + op.pop()
        )
    both = op.empty_set() + op.mark() + op.get(8) + op.get(9) + op.additems()
    return longest + (both + op.pop()) * 1_500 + op.none()


def mesh(**attributes: Any) -> bytes:
    return made("torch.distributed.device_mesh", "DeviceMesh", attributes)


def ranks(count: int) -> bytes:
    """A tuple of so many numbers."""
    return op.mark() + value(1) * count + b"t"


def doubling(levels: int) -> bytes:
    return inside_each_other(value((0, 1)), lambda inner: value((inner, inner)), levels)


def parameters_of(of: bytes, count: int) -> bytes:
    """Parameters that each are made of one DTensor over a mesh."""
    spec = {"mesh": of, "placements": (), "tensor_meta": None, "_hash": None}
    device = call(glob("torch", "device"), "cpu")
    cls = glob("torch.distributed.tensor", "DTensor")
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
    state = {
        "_local_tensor": op.tensor(),
        "_spec": made("torch.distributed.tensor._dtensor_spec", "DTensorSpec", spec),
    }
    function = glob("torch._utils", "_rebuild_wrapper_subclass")
    tensor = call(
        glob("torch._tensor", "_rebuild_from_type_v2"), function, cls, args, state
    )
    return (
        tensor
        + op.put(7)
        + op.pop()
        + again(count, glob("torch.nn.parameter", "Parameter"), op.get(7), True)
    )


def sharded(metadata: bytes) -> bytes:
    api = "torch.distributed._shard.sharded_tensor.api"
    group = (
        call(
            glob("builtins", "getattr"), glob(api, "ShardedTensor"), "ProcessGroupState"
        )
        + value(())
        + op.newobj()
    )
    group += value({"local_rank": 0}) + build()
    layout = made(
        "torch.distributed._shard.sharding_spec.chunk_sharding_spec",
        "ChunkShardingSpec",
        {"dim": 0},
    )
    tensor = glob(api, "ShardedTensor") + value(()) + op.newobj()
    return tensor + value(([], metadata, group, layout, False)) + build()


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_too_much_is_an_error(name: str, tmp_path: Path) -> None:
    assert "called" in groups(tmp_path / "x.pth", COSTLY[name]()).values()


CHEAP: dict[str, Callable[[], bytes]] = {
    "ranks of a mesh": lambda: mesh(_flatten_rank_map=tuple(range(2_000)), _dim_group_infos=[("", [0, 1], "x")]),
    "parameters of one mesh": lambda: parameters_of(mesh(_flatten_rank_map=ranks(1_024)), 1_000),
    "records": lambda: doubled(3) + op.pop() + call(RECORD, [], ["a"]),
    "placements": lambda: call(SHARD, 1) + op.pop() + call(
        glob("torch.distributed._tensor.placement_types", "_Partial"), call(glob("torch._C._distributed_c10d", "RedOpType"), 0)
    ),
    "tensors as parameters": lambda: adam_of(
        op.tensor(),
        call(glob("torch._utils", "_rebuild_parameter"), op.tensor(), True, op.ordered_dict()),
    ),
    "words in brackets": lambda: brackets(50, 15),
    "sizes": lambda: call(glob("torch", "Size"), (1, 2)) + op.pop() + call(glob("torch", "Size"), []),
    "groups": lambda: made("torch.optim.adam", "Adam", {**ADAM, "param_groups": [{"params": [op.tensor()]}]}),
    "names of a mesh": lambda: made("torch.distributed.device_mesh", "DeviceMesh", {"_dim_group_names": ["0", "1"]}),
    "a fill value": lambda: masked(10, "x"),
    **{f"a copy by {name}": lambda one=one: ENCODED + value([one] * 4) for name, one in COPIES.items()},
    "some unions": lambda: again(
        2_000, glob("functools", "reduce"), glob("operator", "or_"), (glob("builtins", "int"), glob("builtins", "str"))
    ),
    "some fractions": lambda: again(20_000, glob("fractions", "Fraction"), 1, 3),
    "some paths": lambda: again(20_000, glob("pathlib", "PurePosixPath"), "/", "home", "someone", "data", "image-1.png"),
    "a tensor of numbers": lambda: call(glob("torch", "FloatTensor"), [[1.0, 2.0], [3.0, 4.0]]),
    "deques": lambda: inside_each_other(op.none(), in_deque, 20),
    "lists": lambda: inside_each_other(op.none(), lambda inner: value([inner]), 2_000),
    "some generators": lambda: again(2_000, glob("torch._C", "Generator")),
    "settings": lambda: easydict(5),
    "flags": lambda: call(glob("re", "RegexFlag"), 2 | 256),
    "a type that comes later": lambda: call(glob("operator", "getitem"), glob("typing", "Optional"), "Layer"),
    "a sharded tensor": lambda: sharded(
        made("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata", {})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEAP)
def test_what_real_files_hold_is_no_alarm(name: str, tmp_path: Path) -> None:
    assert groups(tmp_path / "x.pth", CHEAP[name]()) == {}


def many_tensors(path: Path, function: bytes, *arguments: Any, count: int) -> set[str]:
    """The groups of the names of a file in which a call makes many tensors of the same
    arguments. All storages are `QUINT`, `LONGS`, `FLOATS`.
    """
    path.write_bytes(
        torch_zip(pickled({"x": again(count, function, *arguments)}), STORAGES)
    )
    with open(str(path)) as checkpoint:
        return {row.group for row in checkpoint.imports}


MANY = 10_000
STORAGES = {"0": bytes(MANY), "1": bytes(8 * MANY), "2": bytes(4 * MANY)}
QUINT = op.storage_id("0", "QUInt8Storage", MANY, "cpu")
LONGS = op.tensor((MANY,), (1,), key="1", cls="LongStorage", numel=MANY)
FLOATS = op.tensor((MANY,), (1,), key="2", numel=MANY)
ROWS = op.tensor((MANY, 1), (1, 1), key="1", cls="LongStorage", numel=MANY)
PLACES = op.tensor((1, MANY), (MANY, 1), key="1", cls="LongStorage", numel=MANY)
PER_CHANNEL = glob("torch", "per_channel_affine")


def quantized(*scheme: Any) -> tuple[Any, ...]:
    return QUINT, 0, (MANY,), (1,), scheme, False, op.ordered_dict()


def sparse(layout: str, *parts: Any) -> tuple[Any, ...]:
    return call(glob("torch.serialization", "_get_layout"), f"torch.{layout}"), parts


REBUILT: dict[str, tuple[bytes, tuple[Any, ...]]] = {
    "scales": (glob("torch._utils", "_rebuild_qtensor"), quantized(PER_CHANNEL, FLOATS, LONGS, 0)),
    "scales in lists": (
        glob("torch._utils", "_rebuild_qtensor"),
        quantized(PER_CHANNEL, [1.0] * MANY, [0] * MANY, 0),
    ),
    "indices": (glob("torch._utils", "_rebuild_sparse_tensor"), sparse("sparse_coo", PLACES, FLOATS, (MANY,), True)),
    "indices of rows": (
        glob("torch._utils", "_rebuild_sparse_tensor"),
        sparse("sparse_csr", LONGS, LONGS, FLOATS, (MANY - 1, 1)),
    ),
    "rows": (glob("torch._utils", "_rebuild_nested_tensor"), (FLOATS, ROWS, ROWS, LONGS)),
    "a copy": (
        glob("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
        (FLOATS, glob("torch", "float64"), "cpu", False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_inner", [False, True], ids=["plain", "of a class"])
@pytest.mark.parametrize("name", REBUILT)
def test_what_many_tensors_copy_is_counted(
    name: str, is_inner: bool, tmp_path: Path
) -> None:
    function, arguments = REBUILT[name]
    if is_inner:
        arguments = (
            function,
            glob("torch.nn.parameter", "Parameter"),
            tuple(arguments),
            {},
        )
        function = glob("torch._tensor", "_rebuild_from_type_v2")
    assert "called" in many_tensors(tmp_path / "x.pth", function, *arguments, count=500)
    assert "called" not in many_tensors(
        tmp_path / "y.pth", function, *arguments, count=10
    )


def test_a_scheme_of_a_quantized_tensor_is_short(tmp_path: Path) -> None:
    rebuild = glob("torch._utils", "_rebuild_qtensor")
    for scheme in (
        (doubled(40), 1.0, 0),
        ("a", 1.0, 0),
        (PER_CHANNEL, binary(b"a"), [0], 0),
    ):
        program = call(rebuild, *quantized(*scheme))
        (tmp_path / "x.pth").write_bytes(torch_zip(pickled({"x": program}), STORAGES))
        with pytest.raises(CkptError, match="its scheme is not"):
            open(str(tmp_path / "x.pth"))
    of_bytes = quantized(
        PER_CHANNEL, [binary(b"a"), *[1.0] * (MANY - 1)], [0] * MANY, 0
    )
    assert "called" in many_tensors(tmp_path / "y.pth", rebuild, *of_bytes, count=1)


def test_a_quantized_tensor_has_no_more_elements_than_its_storage(
    tmp_path: Path,
) -> None:
    storage = op.storage_id("0", "QUInt8Storage", 24, "cpu")
    scheme = (glob("torch", "per_tensor_affine"), 1.0, 0)
    rebuilt = glob("torch._utils", "_rebuild_qtensor")
    for size, stride in (((24,), (1,)), ((2**40,), (0,))):
        program = call(
            rebuilt, storage, 0, size, stride, scheme, False, op.ordered_dict()
        )
        (tmp_path / "x.pth").write_bytes(torch_zip(pickled({"x": program})))
        if stride == (1,):
            open(str(tmp_path / "x.pth")).close()
            continue
        with pytest.raises(CkptError, match="more elements than its storage"):
            open(str(tmp_path / "x.pth"))


def test_attributes_that_many_tensors_share_are_refused(tmp_path: Path) -> None:
    """A dict of 2,000 names as the state of 1,000 tensors: torch and ckpt would set two
    million attributes for 30 kB.
    """
    state = op.value({f"{number:04}": 1 for number in range(2_000)}) + op.put(1_000)
    inner = (op.storage_id(), 0, (2, 3), (3, 1), False, op.ordered_dict())
    parts = (op.glob("torch._utils", "_rebuild_tensor_v2"), op.glob("torch", "Tensor"))
    first = op.value(inner) + op.put(1_001) + op.pop()
    typed = op.glob("torch._tensor", "_rebuild_from_type_v2")
    once = op.call(typed, *parts, op.get(1_001), op.get(1_000))
    many = op.empty_list() + op.mark() + once * 1_000 + op.appends()
    path = tmp_path / "x.pth"
    path.write_bytes(op.torch_zip(op.pickled(state + op.pop() + first + many)))
    with pytest.raises(CkptError, match="are those of other tensors too"):
        open(str(path))


# --- values that hold each other ------------------------------------------------------


def twice(levels: int, kind: str) -> bytes:
    """A value whose parts each hold the next one twice."""
    program = value([1, 2])
    for level in range(levels):
        slot = 100 + level
        first, second = program + op.put(slot), op.get(slot)
        if kind == "lists":
            program = value([first, second])
        elif kind == "dicts":
            program = value({"a": first, "b": second})
        elif kind == "ordered dicts":
            pairs = value("a") + first + value("b") + second
            program = op.ordered_dict() + op.mark() + pairs + op.setitems()
        else:
            program = made("types", "SimpleNamespace", {"a": first, "b": second})
    return program


@pytest.mark.parametrize("kind", ["lists", "dicts", "ordered dicts", "objects"])
def test_a_value_that_unfolds_far_beyond_its_file_is_an_error(
    kind: str, tmp_path: Path
) -> None:
    """`load_state_dict()` of an optimizer copies it part by part."""
    path = tmp_path / "x.pth"
    for levels, is_far in ((12, False), (24, True)):
        content = {"w": op.tensor(), "x": twice(levels, kind)}
        path.write_bytes(torch_zip(pickled(content)))
        with open(str(path)) as checkpoint:
            assert checkpoint.account.has_noticed("unfolds") is is_far
            assert (checkpoint.not_loadable is not None) is is_far


def test_a_long_list_at_many_places_is_no_alarm(tmp_path: Path) -> None:
    words = [str(number) for number in range(20_000)]
    torch.save({"x": [words] * 600}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert not checkpoint.account.has_noticed("unfolds")


def test_a_value_that_holds_itself_is_no_alarm(tmp_path: Path) -> None:
    held: list[Any] = [1]
    held.append(held)
    torch.save({"x": held, "y": {"z": held}}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert not checkpoint.account.has_noticed("unfolds")
