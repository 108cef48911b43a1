"""The pickle machine against Python's own unpickler: same values, same sharing, and
nothing but its own errors.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import tracemalloc
from typing import Any

import opcodes as op
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import many

from ckpt.model.errors import LimitError
from ckpt.model.limits import INFLATION, Budget, Limits
from ckpt.model.nodes import ByteStr, Dict, Global, Opaque, PersistentId, Set
from ckpt.pickle import machine
from ckpt.pickle.machine import MachineError, TruncatedPickleError, run_machine
from ckpt.pickle.opcodes import NAMES, WEIGHTS_ONLY

LIMITS = Limits()
PROTOCOLS = range(6)
MODEST = settings(max_examples=many(30, 120), deadline=None)


# --------------------------------------------------------------------------------------
# comparison


class Graph:
    """Compares an inert tree with the object that Python made of the same pickle, node
    by node.

    Containers must correspond one to one: what is shared here is shared there, and the
    other way round.
    """

    def __init__(self) -> None:
        self._node_of: dict[int, int] = {}
        self._value_of: dict[int, int] = {}
        self._keep: list[Any] = []

    def same(self, node: Any, value: Any) -> bool:
        if isinstance(value, (list, dict, tuple)) and value != ():
            if id(value) in self._node_of or id(node) in self._value_of:
                return self._node_of.get(id(value)) == id(node) and self._value_of.get(
                    id(node)
                ) == id(value)
            self._node_of[id(value)] = id(node)
            self._value_of[id(node)] = id(value)
            self._keep += [node, value]
        if isinstance(value, (list, tuple)):
            return (
                type(node) is type(value)
                and len(node) == len(value)
                and all(
                    self.same(part, other)
                    for part, other in zip(node, value, strict=True)
                )
            )
        if isinstance(value, dict):
            if type(node) is not Dict or len(node.keys) != len(node.values):
                return False
            # a key that is set again keeps its first place and its last value
            last = {}
            for key, part in zip(node.keys, node.values, strict=True):
                last[hashable(key)] = part
            return (
                list(map(typed, last)) == list(map(typed, value))
                and list(last) == list(value)
                and all(self.same(last[key], value[key]) for key in value)
            )
        if isinstance(value, (set, frozenset)):
            found = hashable(node)
            return (
                type(found) is frozenset
                and found == value
                and sorted(map(repr, map(typed, found)))
                == sorted(map(repr, map(typed, value)))
                and frozen(node) is isinstance(value, frozenset)
            )
        return scalar(hashable(node)) == scalar(value)


def frozen(node: Any) -> bool:
    return node.frozen if type(node) is Set else node.func.name == "frozenset"


def typed(value: Any) -> Any:
    """The types of a key, all the way down: 1, 1.0 and True are one key of a dict, and
    not the same.
    """
    if isinstance(value, tuple):
        return ("tuple", *map(typed, value))
    if isinstance(value, frozenset):
        return ("frozenset", *sorted(map(repr, map(typed, value))))
    return type(value).__name__


def scalar(value: Any) -> Any:
    """What makes two scalars the same: type and value, NaN and -0.0 by their bits."""
    if isinstance(value, float):
        return ("float", struct.pack("d", value))
    if isinstance(value, complex):
        return ("complex", struct.pack("dd", value.real, value.imag))
    if isinstance(value, (bytes, bytearray)):
        return (type(value).__name__, bytes(value))
    return (type(value).__name__, value)


def hashable(node: Any) -> Any:
    """The value of a node that a dict may have as its key, calls of the few builtins
    followed by hand.
    """
    if type(node) is tuple:
        return tuple(map(hashable, node))
    if type(node) is ByteStr:
        return str(node)
    if type(node) is Set:
        return frozenset(map(hashable, node.items))
    if type(node) is not Opaque:
        return node
    assert node.how == "reduce"
    assert not (node.states or node.keys or node.kwargs)
    args = [part if isinstance(part, list) else hashable(part) for part in node.args]
    match node.func.module, node.func.name:
        case "_codecs", "encode":
            return args[0].encode(args[1])
        case (("__builtin__" | "builtins"), ("set" | "frozenset")):
            return frozenset(map(hashable, [*(args[0] if args else ()), *node.items]))
        case (("__builtin__" | "builtins"), "complex"):
            return complex(*args)
        case (("__builtin__" | "builtins"), "bytes"):
            return bytes(*args)
        case (("__builtin__" | "builtins"), "bytearray"):
            return bytearray(*args)
    raise AssertionError(node.func.qualified)


def agrees(data: bytes) -> bool:
    return Graph().same(
        run_machine(data, LIMITS).root, pickle.loads(data, encoding="latin1")
    )


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (pickle.dumps([1]), [True]),
        (pickle.dumps([1]), [1.0]),
        (pickle.dumps([0.0]), [-0.0]),
        (pickle.dumps((1,)), [1]),
        (pickle.dumps({1: 2}), {True: 2}),
        (pickle.dumps({1: 2, 3: 4}), {3: 4, 1: 2}),
        (pickle.dumps({1}), frozenset({1})),
        (pickle.dumps({1}), {1, 2}),
        (pickle.dumps([[], []]), [[]] * 2),
        (pickle.dumps([[]] * 2), [[], []]),
        (pickle.dumps(b"a"), "a"),
    ],
)
def test_comparison_sees_a_difference(data: bytes, value: Any) -> None:
    assert not Graph().same(run_machine(data, LIMITS).root, value)


# --------------------------------------------------------------------------------------
# values


@pytest.mark.parametrize("protocol", PROTOCOLS)
@MODEST
@given(value=strategies.plain_values())
def test_value_is_what_python_reads(protocol: int, value: Any) -> None:
    data = pickle.dumps(value, protocol)
    assert agrees(data)
    pickled = run_machine(data, LIMITS)
    assert pickled.end == len(data)
    assert pickled.protocol == (protocol if protocol > 1 else 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@MODEST
@given(graph=strategies.graphs())
def test_shared_and_cyclic_references_are_kept(protocol: int, graph: list[Any]) -> None:
    assert agrees(pickle.dumps(graph, protocol))
    assert agrees(pickle._dumps(graph, protocol))  # type: ignore[attr-defined]  # Python's other pickler


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_value_that_holds_itself(protocol: int) -> None:
    loop: list[Any] = []
    loop.append((loop, loop, {"again": loop}))
    root = run_machine(pickle.dumps(loop, protocol), LIMITS).root
    assert root[0][0] is root
    assert root[0][1] is root
    assert root[0][2].values[0] is root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "count"),
    [
        *(
            (protocol, count)
            for protocol in PROTOCOLS
            for count in (255, 256, 257, 999, 1000, 1001, 2001)
        ),
        *(
            pytest.param(protocol, 70_000, marks=pytest.mark.slow)
            for protocol in PROTOCOLS
            if protocol != 2
        ),
        (2, 70_000),
    ],
)
def test_long_containers(protocol: int, count: int) -> None:
    """Batches of 1,000 items, and a memo beyond the slots of one byte (and of two)."""
    assert agrees(pickle.dumps([[index] for index in range(count)], protocol))
    assert agrees(
        pickle.dumps({f"key {index}": (index,) for index in range(count)}, protocol)
    )


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 70_000])
@pytest.mark.parametrize(
    "protocol", range(1, 6)
)  # protocol 0 spells text in lines, which end at 64 KiB
def test_long_text_and_bytes(protocol: int, size: int) -> None:
    assert agrees(
        pickle.dumps(
            ["x" * size, "é" * (size // 2), b"\xff" * size, bytearray(size)], protocol
        )
    )


@MODEST
@given(
    before=st.binary(max_size=40),
    value=strategies.plain_values(),
    after=st.binary(max_size=40),
)
def test_pickle_in_the_middle_of_bytes(before: bytes, value: Any, after: bytes) -> None:
    data = pickle.dumps(value, 2)
    found = run_machine(before + data + after, LIMITS, len(before))
    assert found.end == len(before) + len(data)
    assert Graph().same(found.root, pickle.loads(data))


# --------------------------------------------------------------------------------------
# opcodes

EVERY_OPCODE = {ord(row.code): row.name for row in pickletools.opcodes}


def test_every_opcode_of_python_has_its_name() -> None:
    assert EVERY_OPCODE == NAMES


@pytest.mark.parametrize(
    "program",
    [
        b"S'abc'\n.",
        b'S"it\'s"\n.',
        b"S'\\x00\\n\\'\\\\\\101'\n.",
        b"S''\n.",
        b"T\x04\0\0\0\xff\0ab.",
        b"U\x02\xe4b.",
        b"U\0.",
        b"I5\n.",
        b"I-12\n.",
        b"I00\n.",
        b"I01\n.",
        b"I99999999999999999999\n.",
        b"L5L\n.",
        b"L5\n.",
        b"L-5L\n.",
        b"F1\n.",
        b"F-1.5e-3\n.",
        b"Finf\n.",
        b"Fnan\n.",
        b"Vab\\u00e4\\U0001f600 \xe9\\\\\n.",
        b"V\n.",
        b"(lp0\nI1\nag0\na.",
        b"(I1\nI2\nl.",
        b"(dp0\nI1\nI2\ns.",
        b"(I1\nI2\nI3\nI4\nd.",
        b"(I1\nI2\nI1\nI5\nd.",
        b"(I1\nI2\nt.",
        b"(t.",
        b"(I1\n(I2\nI3\nt0t.",
        b"I1\n(I2\nI3\n1.",
        b"I1\n(0.",
        b"I1\n2\x86.",
        b"]2a.",
        b"]q\x05h\x05\x86.",
        b"]p5\ng5\n\x86.",
        b"]r\0\1\0\0j\0\1\0\0\x86.",
        b"I1\np0\n0I2\np0\ng0\n.",  # a slot that is filled twice
        b"K\xffM\xff\xffJ\xff\xff\xff\xff\x87.",
        b"\x8a\0.",
        b"\x8a\x01\xff.",
        b"\x8b\x02\0\0\0\0\x80.",
        b"\x8b\0\0\0\0.",
        b"G\x7f\xf0\0\0\0\0\0\0.",
        b"C\x01\xffB\x01\0\0\0\xfe\x8e\x01\0\0\0\0\0\0\0\xfd\x96\x01\0\0\0\0\0\0\0\xfc(t0\x87.",
        b"\x8c\x02\xc3\xa4X\x03\0\0\0\xed\xa0\x80\x8d\x01\0\0\0\0\0\0\0a\x87.",
        b"\x8f(K\1K\2\x90.",
        b"(K\1K\2\x91.",
        b"(K\1K\1\x91.",
        b"]\x94K\1\x94h\0\x86h\1\x86.",
        b"\x80\x02\x80\x02N.",  # PROTO in the middle: a filler
        b"\x80\x04\x95\x02\0\0\0\0\0\0\0N.",
        b"}(u.",
        b"](e.",
        b"\x88\x89N\x87.",
    ],
)
def test_opcode_program_means_what_python_says(program: bytes) -> None:
    assert agrees(program)


def test_strings_of_python_2_keep_their_bytes() -> None:
    ascii_only = run_machine(b"U\x02ab.", LIMITS)
    assert type(ascii_only.root) is ByteStr
    assert not ascii_only.bytestrings
    other = run_machine(b"S'\\xe4'\n.", LIMITS)
    assert other.root.raw == b"\xe4"
    assert other.bytestrings


def names(pickled: machine.Pickle) -> list[str]:
    return [name.qualified for name in pickled.globals.values()]


@pytest.mark.parametrize(
    ("program", "how", "module", "name", "args"),
    [
        (b"cos\nsystem\n(I1\ntR.", "reduce", "os", "system", (1,)),
        (b"(I1\nios\nsystem\n.", "inst", "os", "system", (1,)),
        (b"(cos\nsystem\nI1\no.", "obj", "os", "system", (1,)),
        (b"cos\nsystem\nI1\n\x85\x81.", "newobj", "os", "system", (1,)),
        (b"cos\nsystem\nI1\n\x85}\x92.", "newobj_ex", "os", "system", (1,)),
        (b"\x8c\x02os\x8c\x06system\x93I1\n\x85R.", "reduce", "os", "system", (1,)),
        (b"\x8c\x02os\x8c\x08path.sep\x93I1\n\x85R.", "reduce", "os", "path.sep", (1,)),
    ],
)
def test_call_is_recorded_not_made(
    program: bytes, how: str, module: str, name: str, args: tuple[Any]
) -> None:
    pickled = run_machine(program, LIMITS)
    call = pickled.root
    assert type(call) is Opaque
    assert (call.how, call.func.module, call.func.name, call.args) == (
        how,
        module,
        name,
        args,
    )
    assert pickled.calls == [call]
    assert names(pickled) == [f"{module}.{name}"]


def test_what_is_done_to_a_call_stays_beside_it() -> None:
    program = b"cm\nC\n)\x81q\0K\1aK\2K\3s(K\4e(K\5K\6u(K\7\x90}K\x08b."
    with pytest.raises(MachineError):  # BUILD of an int
        run_machine(program.replace(b"}K\x08b", b"K\x08Nb"), LIMITS)
    call = run_machine(program.replace(b"}K\x08b", b"K\x08b"), LIMITS).root
    assert call.items == [1, 4, 7]
    assert (call.keys, call.values) == ([2, 5], [3, 6])
    assert call.states == [8]


def test_one_name_is_one_node_at_its_first_byte() -> None:
    pickled = run_machine(b"]cm\nf\nacm\nf\nacm\ng\na.", LIMITS)
    first, second, third = pickled.root
    assert first is second
    assert first.offset == 1
    assert (third.name, third.offset) == ("g", 13)


@pytest.mark.parametrize(
    ("program", "pid"),
    [(b"P12 x\n.", "12 x"), (b"K\7Q.", 7), (b"(U\1aK\1tQ.", ("a", 1))],
)
def test_persistent_id_is_kept(program: bytes, pid: Any) -> None:
    pickled = run_machine(program, LIMITS)
    assert type(pickled.root) is PersistentId
    assert pickled.root.pid == pid
    assert pickled.persistent == [pickled.root]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_opcodes_that_weights_only_lacks_are_noted(protocol: int) -> None:
    value = {"a": [1, (2.5, None), True, "x", {4}, frozenset([5]), b"b", 2**3000]}
    data = pickle.dumps(value, protocol)
    expected: dict[int, int] = {}
    for row, _, offset in pickletools.genops(data):
        if ord(row.code) not in WEIGHTS_ONLY:
            expected.setdefault(ord(row.code), offset)
    assert run_machine(data, LIMITS).foreign_opcodes == expected


# --------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (op.ext1(1), "opcode EXT1"),
        (op.ext2(1), "opcode EXT2"),
        (op.ext4(1), "opcode EXT4"),
        (op.next_buffer(), "opcode NEXT_BUFFER"),
        (op.none() + op.readonly_buffer(), "opcode READONLY_BUFFER"),
        (op.proto(6), "protocol 6"),
        (op.proto(255), "protocol 255"),
        (b"a", "empty stack"),
        (b"]a", "empty stack"),
        (b"R", "empty stack"),
        (b"Nh\x05", "memo slot"),
        (b"Ng5\n", "memo slot"),
        (b"q\0", "empty stack"),
        (b"t", "no MARK|empty stack"),
        (b"N(N", "STOP inside an open MARK"),
        (b"", "empty stack"),
        (b"NNa", "cannot append items to"),
        (b"N(Ne", "cannot append items to"),
        (b"\x8fNa", "cannot append items to"),
        (b"]NNs", "cannot set items on"),
        (b"}(Nu", "a key has no value"),
        (b"(Nd", "a key has no value"),
        (b"]Nb", "cannot set a state on"),
        (b"N)R", "cannot call"),
        (b"X\1\0\0\0a)R", "cannot call"),
        (b"cm\nf\n]R", "a call has"),
        (b"cm\nf\nNR", "a call has"),
        (b"cm\nf\n)N\x92", "as keyword arguments"),
        (b"NN\x93", "not a string"),
        (b"S'abc\n", "no quotes"),
        (b"S'\n", "no quotes"),
        (b"Sabc\n", "no quotes"),
        (b"S'\\x'\n", "invalid escape"),
        (b"Iabc\n", "invalid number"),
        (b"I\n", "invalid number"),
        (b"I" + b"1" * 4301 + b"\n", "invalid number"),
        (b"L1LL\n", "invalid number"),
        (b"Fabc\n", "invalid number"),
        (b"T\xff\xff\xff\xff", "negative length"),
        (b"X\1\0\0\0\xff", "invalid UTF-8"),
        (b"\x8c\1\xff", "invalid UTF-8"),
        (b"c\xff\nf\n", "invalid UTF-8"),
        (b"V" + b"a" * 70_000 + b"\n", "a line has over"),
        (b"c" + b"a" * 1_001 + b"\nf\n", "a name has over"),
        (b"cf\n" + b"a" * 1_001 + b"\n", "a name has over"),
    ],
)
def test_malformed_program_is_refused(program: bytes, says: str) -> None:
    with pytest.raises(MachineError, match=says) as caught:
        run_machine(program + b".", LIMITS)
    assert not isinstance(caught.value, TruncatedPickleError)


def test_a_byte_that_is_no_opcode_is_refused() -> None:
    for code in set(range(256)) - EVERY_OPCODE.keys():
        with pytest.raises(
            MachineError, match=f"unknown opcode 0x{code:02x} at byte 3"
        ):
            run_machine(b"\x80\x02N" + bytes([code]) + b".", LIMITS)


def test_error_names_what_was_imported_before_it() -> None:
    with pytest.raises(MachineError) as caught:
        run_machine(b"cos\nsystem\ncm\nf\n\x82\x01.", LIMITS)
    assert [name.qualified for name in caught.value.seen] == ["os.system", "m.f"]


# --------------------------------------------------------------------------------------
# limits


def test_operations_are_counted_to_the_last() -> None:
    data = b"N0" * 10 + b"N."
    assert run_machine(data, Limits(operations=22)).root is None
    with pytest.raises(LimitError, match="too many operations"):
        run_machine(data, Limits(operations=21))


VALUES = [
    op.text("a"),
    op.short_text("a"),
    op.py2(b"a"),
    op.text8(b"a"),
    op.binary(b"a"),
    op.short_binary(b"a"),
    op.empty_list(),
    op.empty_dict(),
    op.empty_set(),
    op.long4(b"\1"),
    op.binary8(b"a"),
    op.bytearray8(b"a"),
    op.line("V", "a"),
    op.line("S", "'a'"),
    op.line("F", "1"),
    op.line("I", "1"),
    op.line("L", "1L"),
    b"(t",
    b"(l",
    b"(d",
    b"(\x91",
    b"N\x85",
    b"NN\x86",
    b"NNN\x87",
    b"NQ",
    b"P1\n",
    b"N20",
    b"K\1",
    b"M\0\2",
    b"J\0\0\1\0",
    b"G\0\0\0\0\0\0\0\0",
    b"\x8a\5\1\1\1\1\1",
    b"N",
    b")",
    b"\x88",
    b"]N2",
    b"]]a",
    b"}NNs",
    b"}(NNu",
    b"](Ne",
    b"cm\nf\n)R}b",
    b"cm\nf\n)RNa",
    b"cm\nf\n)RNNs",
    b"\x8f(N\x90",
    b"}(NNNNNNu",
    b"cm\nf\n)R",
    b"cm\nf\n)\x81",
    b"(cm\nf\no",
    b"(im\nf\n",
    b"cm\nf\n)}\x92",
]


@pytest.mark.slow
@pytest.mark.parametrize("program", VALUES)
def test_every_opcode_that_makes_a_value_is_charged(program: bytes) -> None:
    """With the memory that it takes, or more."""
    times = 3_000
    data = program * times + b"."
    budget = Budget(LIMITS, len(data))
    tracemalloc.start()
    try:
        run_machine(data, LIMITS, budget=budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    charged = LIMITS.memory - budget.memory

    assert times * 12 <= charged
    assert peak < 1.2 * charged + 200_000
    with pytest.raises(LimitError, match="a pickle needs too much memory"):
        run_machine(data, LIMITS, budget=Budget(Limits(memory=charged - 1)))


def test_the_slots_of_the_memo_are_charged() -> None:
    data = (
        b"N" + b"".join(b"r" + struct.pack("<I", slot) for slot in range(20_000)) + b"."
    )
    run_machine(data, LIMITS)
    with pytest.raises(LimitError, match="too much memory"):
        run_machine(data, Limits(memory=2_000_000))


@pytest.mark.parametrize("slot", [2**32, 2**61 - 1, -1, 10**4000])
def test_a_slot_of_the_memo_has_few_bits(slot: int) -> None:
    """Greater ints can share one hash, so that a dict of them takes quadratic time."""
    for opcode in (b"p", b"g"):
        with pytest.raises(
            MachineError, match="the number of a memo slot is too large"
        ):
            run_machine(b"N" + opcode + b"%d\n." % slot, LIMITS)
    assert run_machine(b"Np%d\ng%d\n." % (2**20, 2**20), LIMITS).root is None


def test_one_emoji_is_charged_with_four_bytes_for_each_character() -> None:
    data = op.text("a" * 1_000_000 + "\U0001f600") + b"."
    budget = Budget(LIMITS, len(data))
    run_machine(data, LIMITS, budget=budget)

    assert LIMITS.memory - budget.memory > 4_000_000


def test_all_pickles_of_a_file_have_one_budget() -> None:
    data = b"(" + b"]" * 1000 + b"l."
    budget = Budget(LIMITS, len(data))
    run_machine(data, LIMITS, budget=budget)
    once = LIMITS.memory - budget.memory
    run_machine(data, LIMITS, budget=budget)

    assert LIMITS.memory - budget.memory == 2 * once
    assert LIMITS.operations - budget.operations == 2 * 1003
    assert LIMITS.inflated_bytes + len(data) * INFLATION - budget.parsed == 2 * len(
        data
    )


def test_a_damaged_pickle_costs_no_memory() -> None:
    budget = Budget(LIMITS, 1)
    with pytest.raises(MachineError):
        run_machine(b"(" + b"]" * 1000 + b"\xff", LIMITS, budget=budget)
    assert budget.memory == LIMITS.memory


def test_tensors_add_memory_as_far_as_the_bytes_of_the_file_allow() -> None:
    tensors = b"(" + op.tensor() * 3_000 + b"l."
    few = Limits(memory=100_000)
    assert len(run_machine(tensors, few).persistent) == 3_000
    with pytest.raises(LimitError, match="too much memory"):
        run_machine(
            tensors, few, budget=Budget(few, len(tensors) // 50)
        )  # as if it were deflated
    with pytest.raises(LimitError, match="too much memory"):
        run_machine(b"(" + b"}Q" * 10_000 + b"l.", few)  # two bytes each hold no tensor


def test_names_are_counted_once_each() -> None:
    data = b"".join(b"cm\nf%d\n0" % (index % 10) for index in range(30)) + b"N."
    assert len(run_machine(data, Limits(globals=10)).globals) == 10
    with pytest.raises(LimitError, match="too many names"):
        run_machine(data, Limits(globals=9))


@pytest.mark.parametrize("wrap", [b"\x85", b"N\x86", b"NN\x87"])
def test_tuples_are_nested_only_so_deep(wrap: bytes) -> None:
    assert (
        run_machine(b")" + wrap * (machine.TUPLE_DEPTH - 1) + b".", LIMITS).root
        is not None
    )
    with pytest.raises(MachineError, match="nested deeper"):
        run_machine(b")" + wrap * machine.TUPLE_DEPTH + b".", LIMITS)


def test_lists_may_be_nested_deep() -> None:
    depth = 100_000
    node = run_machine(b"]" * depth + b"a" * (depth - 1) + b".", LIMITS).root
    for _ in range(depth - 1):
        (node,) = node
    assert node == []


@pytest.mark.parametrize(
    "code", [b"X", b"T", b"B", b"\x8b", b"\x8e", b"\x8d", b"\x96", b"\x95"]
)
def test_length_is_compared_with_what_is_left(code: bytes) -> None:
    """A length of 2 GB costs nothing: the bytes are not there."""
    with pytest.raises(TruncatedPickleError):
        run_machine(code + b"\xff\xff\xff\x7f\0\0\0\0" + b"N.", LIMITS)


def test_memo_slot_of_any_number_costs_one_entry() -> None:
    assert run_machine(b"]r\xff\xff\x0f\x000j\xff\xff\x0f\x00.", LIMITS).root == []
    assert run_machine(b"]p1048575\n0g1048575\n.", LIMITS).root == []


# --------------------------------------------------------------------------------------
# cut off


def cut_everywhere(data: bytes) -> None:
    assert run_machine(data, LIMITS).end == len(data)
    for length in range(len(data)):
        with pytest.raises(TruncatedPickleError):
            run_machine(data[:length], LIMITS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pickle_cut_at_any_byte_is_truncated(protocol: int) -> None:
    shared = [1]
    many = {
        "i": [0, 255, 65_535, -1, 2**40, 2**2100],
        "f": (1.5, float("inf")),
        "t": ("é", b"\xff", bytearray(b"x")),
    }
    cut_everywhere(
        pickle.dumps(
            [many, {1, 2}, frozenset([3]), shared, shared, None, True, 2j], protocol
        )
    )


@pytest.mark.parametrize("program", [bytes(part) for part in VALUES])
def test_opcode_cut_at_any_byte_is_truncated(program: bytes) -> None:
    cut_everywhere(program + b".")


@settings(max_examples=many(15, 60), deadline=None)
@given(
    value=strategies.plain_values(), protocol=st.sampled_from(PROTOCOLS), data=st.data()
)
def test_any_pickle_cut_anywhere_is_truncated(
    value: Any, protocol: int, data: st.DataObject
) -> None:
    whole = pickle.dumps(value, protocol)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(TruncatedPickleError):
        run_machine(whole[:length], LIMITS)


# --------------------------------------------------------------------------------------
# any program

PHRASES = [
    *VALUES,
    b"K\1",
    b"J\1\0\0\0",
    b"N",
    b"\x88",
    b"\x89",
    b"G?\xf8\0\0\0\0\0\0",
    b")",
    b"(",
    b"0",
    b"1",
    b"2",
    b".",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"l",
    b"d",
    b"\x91",
    b"a",
    b"e",
    b"s",
    b"u",
    b"\x90",
    b"R",
    b"b",
    b"\x81",
    b"q\0",
    b"q\1",
    b"h\0",
    b"h\1",
    b"p1\n",
    b"g1\n",
    b"\x94",
    b"cm\nf\n",
    b"\x93",
    b"\x92",
    b"o",
    b"Q",
]


class Standins(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's unpickler in Python, which can reach nothing: names and persistent ids
    are refused.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError


@settings(max_examples=many(375, 1500), deadline=None)
@given(program=st.lists(st.sampled_from(PHRASES), max_size=14).map(b"".join))
def test_any_program_gives_a_tree_or_an_error_of_ours(program: bytes) -> None:
    data = program + b"."
    try:
        ours = run_machine(data, LIMITS)
    except MachineError:
        return
    try:
        theirs = Standins(io.BytesIO(data), encoding="latin1").load()
    except Exception:
        return  # what ours left unbuilt
    assert Graph().same(ours.root, theirs)


@settings(max_examples=many(375, 1500), deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from(sorted(EVERY_OPCODE)), max_size=30).map(bytes),
    )
)
def test_any_bytes_give_a_tree_or_an_error_of_ours(data: bytes) -> None:
    try:
        found = run_machine(data, LIMITS)
    except (MachineError, LimitError):
        return
    assert data[found.end - 1 : found.end] == b"."
    assert all(type(name) is Global for name in found.globals.values())


@pytest.mark.slow
@pytest.mark.parametrize("put", [b"r\x01\0\x10\0", b"r\xff\xff\xff\xff", b"p1048577\n"])
def test_slots_beyond_what_a_pickler_counts_are_refused(put: bytes) -> None:
    with pytest.raises(MachineError, match="memo slot is too large at byte 1"):
        run_machine(b"N" + put + b".", LIMITS)
    if b"\xff" not in put:  # a pickle with as many bytes may count so far
        assert run_machine(b"N" + put + b"N0" * (1 << 20) + b".", LIMITS).root is None


def test_picklers_number_fewer_slots_than_they_write_bytes() -> None:
    """Also over several pickles that share a memo, where the numbers go on."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 2)
    for number in range(many(2_000, 20_000)):
        pickler.dump([str(number), [number]])
    data, end = out.getvalue(), 0
    while end < len(data):
        end = run_machine(data, LIMITS, end).end


def test_numbers_in_tuples_have_few_equal_hashes() -> None:
    """Tuples of two numbers can be chosen for one hash, as Python mixes them with
    constants.
    """
    first, second, fifth = (
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
    )
    mask = 2**64 - 1

    def turned(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & mask

    pairs = []
    for left in range(1, 30_000):
        mixed = turned((fifth + left * second) & mask, 31) * first & mask
        wanted = turned(
            (12345 - (2 ^ (fifth ^ 3527539))) * pow(first, -1, 2**64) & mask, 33
        )
        right = (wanted - mixed) * pow(second, -1, 2**64) & mask
        right -= 2**64 * (right >> 63)
        if abs(right) < 2**61 - 1 and right != -1:
            pairs.append((left, right))
    assert len(set(map(hash, pairs))) == 1 and len(pairs) > 1_001
    data = b"}(" + b"".join(op.value(pair) + b"N" for pair in pairs) + b"u."
    with pytest.raises(MachineError, match="too many keys of a dict have one hash"):
        run_machine(data, LIMITS)
    again = op.value(pairs[0]) + b"q\x010" + b"(" + b"}(h\x01Nu" * 2_000 + b"l."
    assert len(run_machine(again, LIMITS).root) == 2_000  # type: ignore[arg-type]
