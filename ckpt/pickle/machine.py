"""The pickle machine: the bytes of one pickle -> an inert tree. Nothing that it names
is imported or called.

Every length is compared with the remaining bytes before it is used, the memo is a dict,
dicts are lists of pairs, and there is no recursion. So a file cannot exhaust the stack
or the memory. Opcodes and their meaning: Lib/pickletools.py of CPython.
"""

from __future__ import annotations

from codecs import escape_decode
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from struct import Struct, error
from sys import getsizeof
from typing import Protocol, TypeAlias, cast

from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    Set,
    is_tuple,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show
from ckpt.pickle.opcodes import (
    ADDITEMS,
    APPEND,
    APPENDS,
    ARGUMENT_BYTES,
    BINBYTES,
    BINBYTES8,
    BINFLOAT,
    BINGET,
    BININT,
    BININT1,
    BININT2,
    BINPERSID,
    BINPUT,
    BINSTRING,
    BINUNICODE,
    BINUNICODE8,
    BUILD,
    BYTEARRAY8,
    DICT,
    DUP,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_SET,
    EMPTY_TUPLE,
    FLOAT,
    FRAME,
    FROZENSET,
    GET,
    GLOBAL,
    INST,
    INT,
    LIST,
    LONG,
    LONG1,
    LONG4,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    MEMOIZE,
    NAMES,
    NEWFALSE,
    NEWOBJ,
    NEWOBJ_EX,
    NEWTRUE,
    NONE,
    OBJ,
    PERSID,
    POP,
    POP_MARK,
    PROTO,
    PUT,
    READONLY_BUFFER,
    REDUCE,
    SETITEM,
    SETITEMS,
    SHORT_BINBYTES,
    SHORT_BINSTRING,
    SHORT_BINUNICODE,
    STACK_GLOBAL,
    STOP,
    STRING,
    TUPLE,
    TUPLE1,
    TUPLE2,
    TUPLE3,
    UNICODE,
    ends_opcode,
)

TUPLE_DEPTH = 64
"""Tuples inside tuples. Deeper ones exist only to overflow the stack of a program that
hashes or prints them.
"""
TUPLE_ENTRIES = 10_000_000
"""Entries of tuples inside tuples, each as often as it is reached, because a hash
reaches it as often.
"""
FREE_SLOTS = 1 << 20
"""Slots of the memo that any pickle may number. More only where it has as many bytes:
picklers count 0, 1, 2 and so on, also over several pickles, and Python's unpickler
makes a table up to the largest number.
"""
LINE_BYTES = 65_536
STEP = 16_384
"""Opcodes after which the stack and the memo are charged."""
SLOT, MEMO_SLOT = 12, 150
"""Bytes of memory of an entry of the stack or a list, and of one of the memo, which is
freed at the end.
"""
NUMBER_COST, TUPLE_COST, LIST_COST, CALL_COST, DICT_COST = 32, 72, 110, 140, 270
"""Bytes of memory of what opcodes make, without the entries. Texts and bytes are
measured.
"""
NAME_CHARACTERS = 1_000
DIGITS = 4_300

_INT32, _UINT16, _UINT32, _UINT64, _DOUBLE = (
    Struct(code) for code in ("<i", "<H", "<I", "<Q", ">d")
)

_CALLABLE = (Global, Opaque, PersistentId)
_FILLABLE = frozenset((list, Dict, Set, Opaque))
"""Nodes that later opcodes can change."""
_CLOSING = frozenset((LIST, DICT, FROZENSET, ADDITEMS, OBJ, INST, POP_MARK, POP))
"""Opcodes beside TUPLE, SETITEMS and APPENDS that pop everything down to the
last MARK.
"""


_EQUAL_HASHES = 1_000
"""The most keys of numbers with one hash. Python salts the hashes of texts."""
_MANY_NUMBERS = 5_000
"""Keys of a dict from which on its numbers are looked at together."""
_HASHED = frozenset((str, int, ByteStr, float, bool, bytes, type(None)))
_UNHASHABLE = frozenset(
    (
        "collections.OrderedDict",
        "collections.Counter",
        "collections.defaultdict",
        "collections.deque",
        "builtins.set",
        "builtins.list",
        "builtins.dict",
        "builtins.bytearray",
        "__builtin__.set",
        "__builtin__.list",
        "__builtin__.dict",
        "__builtin__.bytearray",
        "argparse.Namespace",
        "types.SimpleNamespace",
        "collections.ChainMap",
        "collections.UserDict",
        "collections.UserList",
        "UserDict.IterableUserDict",
        "UserDict.UserDict",
        "UserList.UserList",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.numeric._frombuffer",
        "numpy._core.numeric._frombuffer",
    )
)


# What the machine makes: every node except tensors. `rebuild` makes those later, from
# calls; a TensorRef is a tuple.
Made: TypeAlias = (
    "bool | int | float | str | bytes | bytearray | list[Node] | tuple[Node, ...] | "
    "Dict | Set | Global | PersistentId | Opaque | None"
)


class Inner(NamedTuple):
    """The content of a tuple or set that is hashed: its entries and the letters of its
    long texts, each as often as it is reached, and whether there are objects, and sets
    of more than texts, in it. The node keeps its id taken.
    """

    entries: int
    letters: int
    has_object: bool
    has_set: bool
    node: Node


class Fillings:
    """The nodes of a pickle that got items or a state after others could see them: a
    call before that has seen less.

    `last` has the offset of the last time and the node, `built` the offset of the last
    BUILD, both by the ids of nodes.
    """

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, Made]] = {}
        self.built: dict[int, int] = {}

    def is_filled_after(self, node: object, offset: int) -> bool:
        """Tell whether a node changes after an offset, though others could see it
        before.
        """
        row = self.last.get(id(node))
        return row is not None and row[0] > offset

    def build_of(self, call: Opaque) -> int:
        """The offset of the last BUILD of an object, or else of its call."""
        return self.built.get(id(call), call.offset)

    def move(self, moved: Callable[[int], int]) -> None:
        """Count all offsets in another way."""
        self.last = {
            key: (moved(offset), node) for key, (offset, node) in self.last.items()
        }
        self.built = {key: moved(offset) for key, offset in self.built.items()}


_LONG_NUMBER = 4_096
"""The most bits of a number that is hashed, which takes as long each time. A text keeps
its hash.
"""
LONG_NUMBER = f"a key of a dict is a number of over {_LONG_NUMBER:,} bits"
_LONG_TEXT = 256
"""The length of a text from which on its letters count: equal texts that are two
objects are compared letter by letter.
"""
LONG_TEXTS = "long texts are keys too many times"
_TEXTS = frozenset((str, ByteStr, bytes))
_CROWDING = frozenset((int, float, tuple))
"""Keys whose hashes a file can choose."""


class Hashes:
    """Counts the work of dicts and sets: entries of tuples, which are hashed each time,
    and numbers with one hash.
    """

    def __init__(self) -> None:
        self.entries = 0
        # The hash in text, which Python salts -> the last key that has it, and how many
        # do
        self._equal: dict[str, tuple[object, int]] = {}
        self._sets = 0

    def count_entries(self, entries: int) -> bool:
        """Add the entries of a tuple. Tells whether all of them stay few enough."""
        self.entries += entries
        return self.entries <= 2 * TUPLE_ENTRIES

    def count_texts(self, keys: Sequence[object]) -> bool:
        """Add the letters of long texts. Tells whether all of them stay few enough.

        A text with an equal one before it is compared with that, as often as it is a
        key.
        """
        lengths = [len(key) for key in keys if type(key) in _TEXTS]  # type: ignore[arg-type]
        if not lengths or max(lengths) < _LONG_TEXT:
            return True
        return self.count_entries(
            sum(length >> 6 for length in lengths if length >= _LONG_TEXT)
        )

    def count_numbers(self, keys: Sequence[object]) -> str | None:
        """Add large numbers, and return why they are too many, or None.

        Python takes a square of the time for those with one hash.
        """
        for key in keys:
            if type(key) is int:
                # Python's hash of an int is the int itself, modulo 2**61 - 1.
                if key.bit_length() <= 61:
                    continue
                if key.bit_length() > _LONG_NUMBER:
                    return LONG_NUMBER
            elif type(key) is not float or abs(key) < 2.0**61:
                continue
            if self._count_equal(key) >= _EQUAL_HASHES:
                return "too many keys of a dict have one hash"
        return None

    def count_tuple(self, key: tuple[Node, ...], entries: int, letters: int) -> bool:
        """Add a tuple whose entries and letters are counted. Tells whether few tuples
        have its hash: numbers can be chosen for one.

        Python compares each with all before, entry by entry.
        """
        # Python salts the hashes of texts, so that no file can choose them.
        if {str, ByteStr}.issuperset(map(type, key)):
            return True
        try:
            count = self._count_equal(key)
        except TypeError:  # it holds a list
            return True
        return count < _EQUAL_HASHES and self.count_entries((entries + letters) * count)

    def count_set(self, entries: int) -> bool:
        """Add a tuple or frozenset with frozensets in it. Each is counted as if all of
        them had one hash.
        """
        self._sets += 1
        return self.count_entries(entries * self._sets)

    def _count_equal(self, key: object) -> int:
        """Add a key, and return how many others there are with its hash."""
        number = str(hash(key))
        last, count = self._equal.get(number, (None, 0))
        if count and last == key:  # of another dict
            return 0
        self._equal[number] = key, count + 1
        return count


class Pickle:
    """The content of one pickle.

    `end` is the offset after its STOP. `calls` lists every object that it asks for, in
    order. `foreign_opcodes` are unknown to torch's weights_only machine, each with its
    first offset. `bytestrings` says whether a Python 2 `str` holds bytes that are not
    ASCII. `unhashable` is the offset of the first opcode that sets an unhashable key.
    `late` are the objects that got items or another state after a state. `again` are
    the nodes that were fetched from the memo, by their ids, and `fillings` those that
    changed afterwards. `hashed` are the objects that are keys, and tuples with objects
    that are, each as often as it is. `keyed` are the dicts with keys that are not
    plain, and `numbered` those with many numbers as keys, both by their ids. `deep` has
    the depth and the entries of tuples that hold tuples, by their ids, and `hashes`
    counts what dicts and sets hash. `members` are the offsets of the members of enums
    as torch.jit.save alone writes them. `skimmed` counts the slots of the memo that a
    Skim left empty, `left` the values that the pickle made and no other one holds.
    """

    def __init__(self) -> None:
        self.root: Node = None
        self.end = 0
        self.protocol = 0
        self.globals: dict[tuple[str, str], Global] = {}
        self.calls: list[Opaque] = []
        self.persistent: list[PersistentId] = []
        self.foreign_opcodes: dict[int, int] = {}
        self.bytestrings = False
        self.unhashable: int | None = None
        self.hashed_tuples: dict[int, Node] = {}
        self.late: list[Opaque] = []
        self.again: dict[int, Made] = {}
        self.shares = False
        """Tells whether a list, dict or set was fetched from the memo."""
        self.fillings = Fillings()
        self.hashed: list[Node] = []
        self.keyed: dict[int, Dict | Opaque] = {}
        self.numbered: dict[int, Dict | Opaque | Set] = {}
        self.sets: dict[int, Set] = {}
        """The sets of several items, by their ids."""
        self.crowded: list[Opaque] = []
        """Calls that hash what takes ages to hash, or to find among the other keys."""
        self.inner: dict[int, Inner] = {}
        """Ids of tuples and sets that were hashed -> what is in them."""
        self.deep: dict[int, tuple[int, int, Node]] = {}
        self.hashes = Hashes()
        self.members: list[int] = []
        self.skimmed = 0
        self.left = 0


class MachineError(UnreadableError):
    """The pickle is damaged or malformed. `seen` are the globals before the damage,
    `calls` counts the calls.
    """

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(f"damaged pickle: {problem} at byte {offset:,}")
        self.what = problem
        self.offset = offset
        self.seen: list[Global] = []
        self.calls = 0

    def moved(self, offset: int) -> MachineError:
        """The same error at another byte."""
        error = MachineError(self.what, offset)
        error.seen, error.calls = self.seen, self.calls
        return error


class OddPickleError(MachineError):
    """The pickle is one that no pickler writes and ckpt refuses, and Python reads it,
    or may go on behind that byte.
    """


class LongLineError(MachineError):
    """A line of text has more bytes than are read. Python reads it."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"a line has over {LINE_BYTES:,} bytes", offset)


class TruncatedPickleError(MachineError):
    """The bytes end before the pickle does. More bytes may follow."""

    def __init__(self, offset: int) -> None:
        super().__init__("unexpected end", offset)


class Skim(Protocol):
    """Reads on in place of the machine, by itself. `memo` is the memo of both."""

    @property
    def memo(self) -> dict[int, Made]: ...

    def __call__(
        self, out: Pickle, stack: list[Made], outer: list[list[Made]], position: int
    ) -> int:
        """The offset from which the machine goes on; `position` itself where nothing
        was read.

        It is called after a call and after a state. `stack` is what lies above the last
        MARK, `outer` what lies below each of them. It may leave pairs of keys and
        values on the stack, and slots of the memo empty: it adds their number to
        `out.skimmed`.
        """
        ...


def run_machine(
    data: bytes | bytearray,
    limits: Limits,
    start: int = 0,
    budget: Budget | None = None,
    feed: Callable[[Opaque, int], None] | None = None,
    skim: Skim | None = None,
    *,
    far_slots: bool = False,
) -> Pickle:
    """The pickle that begins at byte `start` of `data`, as an inert tree.

    `budget` is what is left for the file of the pickle; without one the pickle counts
    alone. `feed` is called with each object that got a state and the offset after it,
    and may append to `data`. `skim` may read on from there. Raises TruncatedPickleError
    when `data` ends first, MachineError when the pickle is malformed, LimitError when
    it costs more than `limits` allow.

    With `far_slots` a slot of the memo may have any number: so one learns what Python,
    which makes room for them all, would do next.
    """
    out = Pickle()
    if budget is None:
        budget = Budget(limits, len(data) - start)
    # Charged before the first opcode: a file of many pickles pays for each.
    budget.parse(len(data) - start)
    try:
        _run_opcodes(data, limits, start, out, budget, feed, skim, far_slots=far_slots)
    except MachineError as failure:
        failure.seen, failure.calls = list(out.globals.values()), len(out.calls)
        raise
    return out


def _run_opcodes(
    data: bytes | bytearray,
    limits: Limits,
    start: int,
    out: Pickle,
    budget: Budget,
    feed: Callable[[Opaque, int], None] | None,
    skim: Skim | None,
    *,
    far_slots: bool,
) -> None:
    stack: list[Made] = []
    outer: list[list[Made]] = []  # the stacks below the open MARKs
    push, pop = stack.append, stack.pop
    memo: dict[int, Made] = {} if skim is None else skim.memo
    size = len(data)
    last_slot = 1 << 32 if far_slots else max(FREE_SLOTS, size)
    memory = budget.memory
    # id of a tuple that holds tuples -> its depth, its entries, and the tuple, to keep
    # the id taken
    deep = out.deep
    persistent, calls, again = out.persistent, out.calls, out.again
    uint32 = _UINT32.unpack_from
    offset = pos = start
    frame_end = 0

    def settle(slots: int) -> None:
        """Charge what opcodes left on the stack and in the memo, and ask for the memory
        of the tensors so far.
        """
        nonlocal memory
        memory -= slots * SLOT
        if memory < len(memo) * MEMO_SLOT:
            memory += budget.granted(len(persistent))
            if memory < len(memo) * MEMO_SLOT:
                raise budget.exceeded("a pickle")

    # The budget is looked at once in many opcodes, and not at each.
    def steps() -> Iterator[range]:
        while budget.operations > 0:
            step = min(STEP, budget.operations)
            budget.operations -= step
            yield range(step, 0, -1)
            settle(step)

    try:
        for remaining in chain.from_iterable(steps()):
            offset = pos
            op = data[pos]
            pos += 1
            # The opcodes of a state dict, most frequent first; then all others.
            if op == LONG_BINPUT:
                slot = uint32(data, pos)[0]
                if slot > last_slot:
                    raise OddPickleError(FAR_SLOT, offset)
                memo[slot] = stack[-1]
                pos += 4
            elif op == BINGET:
                push(got := memo[data[pos]])
                pos += 1
                if type(got) in _FILLABLE:
                    again[id(got)] = got
                    memory -= MEMO_SLOT
            elif op == BININT1:
                push(data[pos])
                pos += 1
            elif op == BINUNICODE:
                end = pos + 4 + uint32(data, pos)[0]
                if end > size:
                    raise TruncatedPickleError(offset)
                push(string := str(data[pos + 4 : end], "utf-8", "surrogatepass"))
                memory -= getsizeof(string)
                pos = end
            elif op == MARK:
                # The items above a MARK are a list of their own: no opcode looks for
                # the MARK.
                outer.append(stack)
                stack = []
                push, pop = stack.append, stack.pop
                memory -= LIST_COST
            elif op == TUPLE:
                items = stack
                stack = outer.pop()
                push, pop = stack.append, stack.pop
                made_tuple = tuple(items)
                push(
                    _check_nesting(deep, offset, made_tuple)
                    if tuple in map(type, items)
                    else made_tuple
                )
            elif op == TUPLE2:
                second = pop()
                first = pop()
                if type(first) is tuple or type(second) is tuple:
                    push(_check_nesting(deep, offset, (first, second)))
                else:
                    push((first, second))
                memory -= TUPLE_COST
            elif op == REDUCE:
                args = pop()
                func = stack[-1]
                if type(func) is Global and type(args) is tuple:
                    stack[-1] = made_call = Opaque("reduce", func, args, None, offset)
                    calls.append(made_call)
                else:
                    stack[-1] = _make_call(out, offset, "reduce", func, args)
                memory -= CALL_COST
                if skim is not None:
                    budget.memory = memory
                    pos = skim(out, stack, outer, pos)
                    memory = budget.memory
            elif op == BINPERSID:
                stack[-1] = made_id = PersistentId(stack[-1], offset)
                persistent.append(made_id)
                memory -= CALL_COST
            elif op == BININT2:
                push(_UINT16.unpack_from(data, pos)[0])
                pos += 2
                memory -= NUMBER_COST
            elif op == NEWFALSE:
                push(False)
            elif op == EMPTY_TUPLE:
                push(())
            elif op == BINPUT:
                memo[data[pos]] = stack[-1]
                pos += 1
            elif op == LONG_BINGET:
                push(got := memo[uint32(data, pos)[0]])
                pos += 4
                if type(got) in _FILLABLE:
                    again[id(got)] = got
                    memory -= MEMO_SLOT
            elif op == TUPLE1:
                first = pop()
                push(
                    _check_nesting(deep, offset, (first,))
                    if type(first) is tuple
                    else (first,)
                )
                memory -= TUPLE_COST
            elif op == BININT:
                push(_INT32.unpack_from(data, pos)[0])
                pos += 4
                memory -= NUMBER_COST
            elif op == NEWTRUE:
                push(True)
            elif op == NONE:
                push(None)
            elif op == BINFLOAT:
                push(_DOUBLE.unpack_from(data, pos)[0])
                pos += 8
                memory -= NUMBER_COST
            elif op == TUPLE3:
                third, second = pop(), pop()
                push(_check_nesting(deep, offset, (pop(), second, third)))
                memory -= TUPLE_COST
            elif op == EMPTY_DICT:
                push(Dict())
                memory -= DICT_COST
            elif op == EMPTY_LIST:
                push([])
                memory -= LIST_COST
            elif op == SETITEMS:
                items = stack
                stack = outer.pop()
                push, pop = stack.append, stack.pop
                set_items(out, offset, stack[-1], items)
                memory -= DICT_COST
            elif op == SETITEM:
                value = pop()
                key = pop()
                set_items(out, offset, stack[-1], [key, value])
                memory -= DICT_COST
            elif op == APPENDS:
                items = stack
                stack = outer.pop()
                push, pop = stack.append, stack.pop
                _add_items(out, offset, stack[-1], items)
                memory -= LIST_COST
            elif op == APPEND:
                value = pop()
                _add_items(out, offset, stack[-1], [value])
                memory -= LIST_COST
            elif op == GLOBAL:
                module, pos = _read_line(data, pos, offset)
                name, pos = _read_line(data, pos, offset)
                push(
                    _resolve_global(
                        out,
                        limits,
                        offset,
                        module.decode("utf-8"),
                        name.decode("utf-8"),
                    )
                )
            elif op == BUILD:
                state = pop()
                if type(stack[-1]) is not Opaque:
                    raise OddPickleError(
                        f"cannot set a state on {_kind_text(stack[-1])}", offset
                    )
                _note_change(out, stack[-1], offset)
                stack[-1].build(state)
                out.fillings.built[id(stack[-1])] = offset
                memory -= LIST_COST + MEMO_SLOT
                if feed is not None:
                    budget.memory = memory
                    feed(stack[-1], pos)
                    memory, size = budget.memory, len(data)
                    last_slot = max(last_slot, size)
                if skim is not None:
                    budget.memory = memory
                    pos = skim(out, stack, outer, pos)
                    memory = budget.memory
            elif op == NEWOBJ:
                args = pop()
                push(_make_call(out, offset, "newobj", pop(), args))
                memory -= CALL_COST
            elif op == SHORT_BINSTRING:
                end = pos + 1 + data[pos]
                if end > size:
                    raise TruncatedPickleError(offset)
                # A `str` of Python 2 is bytes: its encoding is not in the file.
                push(_make_bytestring(data[pos + 1 : end], out))
                pos = end
                memory -= getsizeof(stack[-1])
            elif op == LONG1:
                end = pos + 1 + data[pos]
                if end > size:
                    raise TruncatedPickleError(offset)
                push(int.from_bytes(data[pos + 1 : end], "little", signed=True))
                pos = end
                memory -= getsizeof(stack[-1])
            elif op == EMPTY_SET:
                push(Set([], frozen=False))
                memory -= DICT_COST
            elif op == PROTO:
                out.protocol = data[pos]
                if out.protocol > 5:
                    raise MachineError(f"unknown protocol {out.protocol}", offset)
                pos += 1
            elif op == STOP:
                # A pickler closes each MARK. The result would depend on what lies
                # below.
                if outer:
                    raise MachineError("STOP inside an open MARK", offset)
                # The opcodes that this pickle did not need are given back.
                out.root = pop()
                out.left = len(stack)
                out.end = pos
                out.shares = any(map(_holds_items, again.values()))
                again.clear()
                budget.operations += remaining - 1
                settle(STEP - remaining)
                budget.memory = memory
                budget.claim(len(persistent))
                return
            else:
                # From here on: opcodes that torch's weights_only machine does not know.
                out.foreign_opcodes.setdefault(op, offset)
                if op == MEMOIZE:
                    memo[len(memo) + out.skimmed] = stack[-1]
                elif op == SHORT_BINUNICODE:
                    end = pos + 1 + data[pos]
                    if end > size:
                        raise TruncatedPickleError(offset)
                    push(string := str(data[pos + 1 : end], "utf-8", "surrogatepass"))
                    memory -= getsizeof(string)
                    pos = end
                elif op == STACK_GLOBAL:
                    inner, place = pop(), pop()
                    if not isinstance(inner, str) or not isinstance(place, str):
                        raise MachineError(
                            "the name of a global is not a string", offset
                        )
                    push(_resolve_global(out, limits, offset, str(place), str(inner)))
                elif op == FRAME:
                    pos += 8
                    # Frames are only for the speed of Python's reader: their bytes are
                    # read on here.
                    frame_end = _frame_end(data, offset, pos, frame_end)
                elif op == POP and stack:
                    pop()
                elif op == DUP:
                    push(stack[-1])
                    again[id(stack[-1])] = stack[-1]
                    memory -= MEMO_SLOT
                elif op in _CLOSING:
                    if op == INST:
                        module, pos = _read_line(data, pos, offset)
                        name, pos = _read_line(data, pos, offset)
                    items = stack
                    stack = outer.pop()
                    push, pop = stack.append, stack.pop
                    memory -= DICT_COST
                    if op == LIST:
                        push(cast("list[Node]", items))  # no other node holds this list
                    elif op == DICT:
                        mapping = Dict()
                        set_items(out, offset, mapping, items)
                        push(mapping)
                    elif op == FROZENSET:
                        frozen = Set([], frozen=True)
                        _add_to_set(out, offset, frozen, items)
                        push(frozen)
                    elif op == ADDITEMS:
                        _add_items(out, offset, stack[-1], items, sets=True)
                    elif op == OBJ:
                        func, *rest = items or [None]
                        push(
                            _make_call(
                                out,
                                offset,
                                "obj",
                                func,
                                _check_nesting(deep, offset, tuple(rest)),
                            )
                        )
                    elif op == INST:
                        func = _resolve_global(
                            out,
                            limits,
                            offset,
                            module.decode("utf-8"),
                            name.decode("utf-8"),
                        )
                        push(
                            _make_call(
                                out,
                                offset,
                                "inst",
                                func,
                                _check_nesting(deep, offset, tuple(items)),
                            )
                        )
                elif op == NEWOBJ_EX:
                    kwargs, args = pop(), pop()
                    if type(kwargs) is not Dict:
                        raise MachineError(
                            f"a call has {_kind_text(kwargs)} as keyword arguments",
                            offset,
                        )
                    push(_make_call(out, offset, "newobj_ex", pop(), args, kwargs))
                    memory -= CALL_COST
                elif op == PERSID:
                    text, pos = _read_line(data, pos, offset)
                    persistent.append(PersistentId(text.decode("ascii"), offset))
                    push(persistent[-1])
                    memory -= CALL_COST
                elif op in (GET, PUT):
                    text, pos = _read_line(data, pos, offset)
                    slot = _parse_decimal(text, offset)
                    # Greater ints can share one hash, too.
                    if not 0 <= slot <= last_slot:
                        raise OddPickleError(FAR_SLOT, offset)
                    if op == PUT:
                        memo[slot] = stack[-1]
                    else:
                        push(memo[slot])
                        again[id(stack[-1])] = stack[-1]
                        memory -= MEMO_SLOT
                elif op in (STRING, BINSTRING):
                    raw, pos = _python2_string(op, data, pos, offset)
                    push(_make_bytestring(raw, out))
                    memory -= getsizeof(stack[-1])
                elif op == READONLY_BUFFER:
                    # Python stops where the last value has no buffer.
                    has_buffer = isinstance(stack[-1], (bytes, bytearray, Opaque))
                    kind = OddPickleError if has_buffer else MachineError
                    raise kind("ckpt does not read opcode READONLY_BUFFER", offset)
                else:
                    value, pos = _read_literal(op, data, pos, offset)
                    push(value)
                    memory -= getsizeof(value)
            # Only a pickle that is dear asks more often than the steps do.
            if memory < 0:
                settle(0)
    except IndexError:
        if (
            offset + 1 + ARGUMENT_BYTES.get(data[offset], 0) > size
            if offset < size
            else True
        ):
            raise TruncatedPickleError(offset) from None
        raise MachineError("empty stack", offset) from None
    except error:
        raise TruncatedPickleError(offset) from None
    except KeyError:
        raise MachineError("unknown memo slot", offset) from None
    except UnicodeDecodeError:
        raise MachineError("invalid UTF-8", offset) from None
    raise LimitError(
        "a pickle has too many operations", "operations", limits.operations
    )


def _resolve_global(
    out: Pickle, limits: Limits, offset: int, module: str, name: str
) -> Global:
    node = out.globals.get((module, name))
    if node is None:
        if len(module) > NAME_CHARACTERS or len(name) > NAME_CHARACTERS:
            raise OddPickleError(
                f"a name has over {NAME_CHARACTERS:,} characters", offset
            )
        # Real files import fewer than a hundred names.
        if len(out.globals) >= limits.globals:
            raise LimitError(
                "a pickle imports too many names", "globals", limits.globals
            )
        node = out.globals[module, name] = Global(module, name, offset, out.protocol)
    return node


def _frame_end(data: bytes | bytearray, offset: int, begin: int, before: int) -> int:
    """The end of the frame at an offset, whose bytes begin at `begin`. The frame before
    it ends at `before`.

    Python has two unpicklers: the one in C needs all bytes of a frame to be there, and
    then forgets where it ends; the one in Python refuses a frame that ends inside an
    opcode, or inside another frame. No pickler writes any of these.
    """
    end: int = begin + _UINT64.unpack_from(data, begin - 8)[0]
    if end > len(data):
        raise TruncatedPickleError(offset)
    if offset < before:
        raise OddPickleError("a frame begins inside another frame", offset)
    if not ends_opcode(data, begin, end):
        raise OddPickleError("a frame ends inside an opcode", offset)
    return end


def _check_nesting(
    deep: dict[int, tuple[int, int, Node]], offset: int, items: tuple[Node, ...]
) -> tuple[Node, ...]:
    """`items`, after a check of how deep its tuples are nested, and of how many entries
    a hash of it would visit.
    """
    inner, entries = 0, len(items)
    for item in items:
        if type(item) is tuple:
            # A tuple that holds no tuples is not in `deep`: it is one deep.
            below, within, _ = deep.get(id(item)) or (1, len(item), item)
            inner, entries = max(inner, below), entries + within
    if inner:
        if inner >= TUPLE_DEPTH:
            raise OddPickleError(f"tuples are nested deeper than {TUPLE_DEPTH}", offset)
        if entries > TUPLE_ENTRIES:
            raise OddPickleError(
                f"a tuple holds others too many times: over {TUPLE_ENTRIES:,} entries",
                offset,
            )
        deep[id(items)] = inner + 1, entries, items
    return items


def _holds_items(node: Made) -> bool:
    """Tell whether a node is a container, or an object with items of its own."""
    return type(node) is not Opaque or bool(node.items or node.keys or node.states)


FAR_SLOT = "the number of a memo slot is too large"
_SCALARS = (int, float, str)


def _is_script(func: Node) -> bool:
    return type(func) is Global and func.module.partition(".")[0] == "__torch__"


def _make_call(
    out: Pickle,
    offset: int,
    how: str,
    func: Node,
    args: Made,
    kwargs: Dict | None = None,
) -> Opaque:
    if type(func) not in _CALLABLE:
        raise MachineError(f"cannot call {_kind_text(func)}", offset)
    if type(args) is not tuple:
        if how != "reduce" or type(args) not in _SCALARS or not _is_script(func):
            raise MachineError(f"a call has {_kind_text(args)} as arguments", offset)
        # A member of an enum of TorchScript: its value stands alone. Python refuses it.
        args = (args,)
        out.members.append(offset)
    call = Opaque(how, func, args, kwargs, offset)
    out.calls.append(call)
    return call


def _add_items(
    out: Pickle, offset: int, target: Made, items: Sequence[Node], sets: bool = False
) -> None:
    if id(target) in out.again:
        out.fillings.last[id(target)] = offset, target
    # APPENDS calls `extend` or `append`, which sets do not have: they take ADDITEMS.
    if type(target) is list:
        target.extend(items)
    elif type(target) is Opaque:
        _note_change(out, target, offset)
        # weights_only asks for a list, also where nothing is appended.
        if not items:
            out.foreign_opcodes.setdefault(APPENDS, offset)
        target.append(items)
    elif sets and type(target) is Set and not target.frozen:
        _add_to_set(out, offset, target, items)
    else:
        error = OddPickleError if type(target) is bytearray else MachineError
        raise error(f"cannot append items to {_kind_text(target)}", offset)


def set_items(out: Pickle, offset: int, target: Made, items: Sequence[Node]) -> None:
    """Set keys and values, which stand in turn. Raises MachineError."""
    if len(items) % 2:
        raise MachineError("a key has no value", offset)
    if type(target) is not Dict and type(target) is not Opaque:
        error = OddPickleError if type(target) in (list, bytearray) else MachineError
        raise error(f"cannot set items on {_kind_text(target)}", offset)
    if id(target) in out.again:
        out.fillings.last[id(target)] = offset, target
    if type(target) is Opaque:
        _note_change(out, target, offset)
    # Keys and values stand on the stack in turn.
    keys = items[::2]
    kinds = set(map(type, keys))
    # Nearly all dicts have texts as keys, and pass here without a look at each.
    if kinds != {str} and (problem := out.hashes.count_numbers(keys)) is not None:
        raise OddPickleError(problem, offset)
    if not out.hashes.count_texts(keys):
        raise OddPickleError(LONG_TEXTS, offset)
    if not kinds.isdisjoint(_CROWDING) and len(target.keys) + len(keys) > _MANY_NUMBERS:
        out.numbered[id(target)] = target
    if not _HASHED.issuperset(kinds):
        out.keyed[id(target)] = target
        note_hashed(out, keys, offset)
        note_unhashable(out, keys, offset)
    target.set(keys, items[1::2])


def _note_change(out: Pickle, target: Opaque, offset: int) -> None:
    """Note an object that changes once it has a state, or once others have seen it."""
    if target.states:
        out.late.append(target)
    if id(target) in out.again:
        out.fillings.last[id(target)] = offset, target


def _add_to_set(out: Pickle, offset: int, target: Set, items: Sequence[Node]) -> None:
    """Add items to a set, which are hashed as the keys of a dict are."""
    size = len(target.items) + len(items)
    if size > _MANY_NUMBERS:
        out.numbered[id(target)] = target
    if size > 1:
        out.sets[id(target)] = target
    problem = out.hashes.count_numbers(items)
    if problem is not None:
        raise OddPickleError(problem, offset)
    if not out.hashes.count_texts(items):
        raise OddPickleError(LONG_TEXTS, offset)
    note_hashed(out, items, offset)
    if not _HASHED.issuperset(map(type, items)):
        note_unhashable(out, items, offset)
    target.append(items)


def note_hashed(out: Pickle, keys: Sequence[Node], offset: int) -> None:
    """Note objects among keys, and count the entries of tuples and frozensets, since a
    hash or a comparison visits each of them.
    """
    for key in keys:
        if type(key) is Opaque:
            out.hashed.append(key)
        elif _is_nesting(key):
            inner = _inner_content(key, out.inner, offset)
            if not out.hashes.count_entries(inner.entries + (inner.letters >> 6)):
                raise OddPickleError("tuples are keys too many times", offset)
            is_few = True
            if inner.has_set:
                is_few = out.hashes.count_set(inner.entries + (inner.letters >> 6))
            elif is_tuple(key):
                is_few = out.hashes.count_tuple(key, inner.entries, inner.letters)
            if not is_few:
                raise OddPickleError("too many keys of a dict have one hash", offset)
            if inner.has_object:
                out.hashed.append(key)


def note_unhashable(out: Pickle, keys: Sequence[Node], offset: int) -> None:
    """Note the first opcode or call that puts an unhashable key into a dict or set."""
    if out.unhashable is None and _has_unhashable(keys, out.hashed_tuples):
        out.unhashable = offset


def _is_nesting(key: Node) -> bool:
    """Tell whether hashing a node hashes its parts. A set that can change, and so hold
    itself, has no hash.
    """
    return type(key) is tuple or (type(key) is Set and key.frozen)


def _inner_content(key: Node, seen: dict[int, Inner], offset: int) -> Inner:
    """The content of a tuple or set. Each node is searched once."""
    if id(key) in seen:
        return seen[id(key)]
    todo = [key]
    while todo:
        node = todo[-1]
        parts = node.items if type(node) is Set else cast("tuple[Node, ...]", node)
        missing = [part for part in parts if _is_nesting(part) and id(part) not in seen]
        if missing:
            todo += missing
            continue
        todo.pop()
        kinds = set(map(type, parts))
        if int in kinds and any(
            type(part) is int and part.bit_length() > _LONG_NUMBER for part in parts
        ):
            raise OddPickleError(LONG_NUMBER, offset)
        within = [seen[id(part)] for part in parts if _is_nesting(part)]
        seen[id(node)] = Inner(
            len(parts) + sum(inner.entries for inner in within),
            _letters_in(parts) + sum(inner.letters for inner in within),
            Opaque in kinds or any(inner.has_object for inner in within),
            (type(node) is Set and not {str, ByteStr}.issuperset(kinds))
            or any(inner.has_set for inner in within),
            node,
        )
    return seen[id(key)]


def _letters_in(parts: Sequence[Node]) -> int:
    lengths = [len(part) for part in parts if type(part) in _TEXTS]  # type: ignore[arg-type]
    return sum(length for length in lengths if length >= _LONG_TEXT)


def _has_unhashable(keys: Sequence[Node], seen: dict[int, Node]) -> bool:
    """Tell whether one of the keys is surely unhashable. Each tuple is searched
    once.
    """
    todo = list(keys)
    while todo:
        key = todo.pop()
        if is_tuple(key):
            if id(key) not in seen:
                seen[id(key)] = key
                todo += key
        elif type(key) is Opaque:
            if type(key.func) is Global and key.func.qualified in _UNHASHABLE:
                return True
        elif type(key) in (list, Dict, bytearray) or (
            type(key) is Set and not key.frozen
        ):
            return True
    return False


def _make_bytestring(raw: bytes | bytearray, out: Pickle) -> ByteStr:
    out.bytestrings = out.bytestrings or not raw.isascii()
    return ByteStr(raw, "latin-1")


def _read_line(
    data: bytes | bytearray, pos: int, offset: int
) -> tuple[bytes | bytearray, int]:
    end = data.find(b"\n", pos, pos + LINE_BYTES)
    if end < 0:
        # The line may go on behind the end of the data.
        if len(data) - pos < LINE_BYTES:
            raise TruncatedPickleError(offset)
        raise LongLineError(offset)
    return data[pos:end], end + 1


def _parse_decimal(text: bytes | bytearray, offset: int) -> int:
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(digits) > DIGITS:
        raise _no_number(text, offset)
    return int(text)


def _no_number(text: bytes | bytearray, offset: int) -> MachineError:
    """The error for a number that no pickler writes so. Python takes blanks around it,
    a sign, `0x10`, `1_000`, and anything behind a NUL.
    """
    plain = text.partition(b"\0")[0].strip()
    digits = plain.lstrip(b"+-").replace(b"_", b"")
    is_taken = digits.isdigit()
    for base in (0, 10):
        try:
            int(plain, base)
            is_taken = True
        except ValueError:
            pass  # of very many digits too, which older Pythons take
    error = OddPickleError if is_taken else MachineError
    return error("invalid number", offset)


def _usual_decimal(text: bytes | bytearray, offset: int) -> int:
    """A number as Python writes it: one with zeros in front is octal to the unpickler
    in C, and `-0` is False.
    """
    digits = text.removeprefix(b"-")
    if text[:1] == b"+" or (digits[:1] == b"0" and text != b"0"):
        raise _no_number(text, offset)
    return _parse_decimal(text, offset)


def _python2_string(
    op: int, data: bytes | bytearray, pos: int, offset: int
) -> tuple[bytes | bytearray, int]:
    if op == BINSTRING:
        length = _INT32.unpack_from(data, pos)[0]
        if length < 0:
            raise MachineError("negative length", offset)
        if pos + 4 + length > len(data):
            raise TruncatedPickleError(offset)
        return data[pos + 4 : pos + 4 + length], pos + 4 + length
    text, pos = _read_line(data, pos, offset)
    if len(text) < 2 or text[0] != text[-1] or text[:1] not in (b"'", b'"'):
        raise MachineError("a string has no quotes", offset)
    try:
        return escape_decode(text[1:-1])[0], pos
    except ValueError:
        raise MachineError("invalid escape in a string", offset) from None


def _read_literal(
    op: int, data: bytes | bytearray, pos: int, offset: int
) -> tuple[Made, int]:
    """The value of an opcode that only pushes a value, and the offset after it."""
    if op in (SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8, BINUNICODE8, LONG4):
        # Bytes of the length that stands before the content.
        width = {SHORT_BINBYTES: 1, BINBYTES: 4, LONG4: 4}.get(op, 8)
        if pos + width > len(data):
            raise TruncatedPickleError(offset)
        begin = pos + width
        end = begin + int.from_bytes(data[pos:begin], "little")
        if end > len(data):
            raise TruncatedPickleError(offset)
        raw = data[begin:end]
        if op == BINUNICODE8:
            return str(raw, "utf-8", "surrogatepass"), end
        if op == LONG4:
            return int.from_bytes(raw, "little", signed=True), end
        return (bytearray(raw) if op == BYTEARRAY8 else bytes(raw)), end
    if op not in (INT, LONG, FLOAT, UNICODE):
        name = NAMES.get(op)
        raise MachineError(
            f"ckpt does not read opcode {name}"
            if name
            else f"unknown opcode 0x{op:02x}",
            offset,
        )
    text, pos = _read_line(data, pos, offset)
    if op == INT:
        # Protocols 0 and 1 write bools as these ints.
        if text in (b"00", b"01"):
            return text == b"01", pos
        return _usual_decimal(text, offset), pos
    if op == LONG:
        return _usual_decimal(text.removesuffix(b"L"), offset), pos
    if op == UNICODE:
        return str(text, "raw-unicode-escape"), pos
    number = text.partition(b"\0")[0]
    try:
        # The unpickler in C takes neither blanks nor underscores.
        if number.strip() != number or b"_" in number:
            raise ValueError
        value = float(number)
    except ValueError:
        raise MachineError("invalid number", offset) from None
    if len(text) > 64 or b"\0" in text:
        raise OddPickleError("invalid number", offset)
    return value, pos


def _kind_text(node: Node) -> str:
    if type(node) is Global:
        return f"the name {show(node.qualified, 80)}"
    if type(node) is PersistentId:
        return "a persistent id"
    return f"a {type(node).__name__.lower()}"
