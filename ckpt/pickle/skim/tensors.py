"""Tensors in a large pickle: torch writes each of them with the same thirty opcodes.

The machine reads the first tensor. Where the pairs of key and tensor that follow have
the same opcodes, they are cut into columns, and a TensorRef is made when it is asked
for. The machine goes on at the first opcode that differs. What is read is the tree of
the machine alone; where that is not sure, MachineError says so and the pickle has to be
read again.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeVar, cast

from ckpt.model.checkpoint import Tensors
from ckpt.model.columns import Chain, pack_numbers
from ckpt.model.limits import Budget
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef
from ckpt.pickle.calls import storage_class
from ckpt.pickle.machine import FREE_SLOTS, MachineError, Made, Pickle, set_items
from ckpt.pickle.rebuild import (
    BadCallError,
    storage_bytes,
    storage_type,
    strided_tensor,
)
from ckpt.pickle.skim import (
    GET,
    NUMBER,
    PUT,
    TUPLE,
    Cut,
    Idiom,
    Names,
    OutOfOrderError,
    Row,
    SkimmedMemo,
    decode_texts,
    first_opcode,
    names_of,
    number_of,
    numbers_of,
    of_length,
    puts,
    slot_of,
    slots,
)


class Loose:
    """Texts may come from the memo and stay out of it, and dicts may end and begin: the
    state of an optimizer, ties.
    """

    def __init__(self, names: Names) -> None:
        function, word, ordered, _ = names
        # A part that came from the memo is not put there again.
        maybe = rb"((?:r....)?)"
        # Each part is written out, or fetched from the memo.
        key = rb"(?:X(.)\0\0\0([^\0]{0,260})|(" + GET + rb"))" + maybe
        number = rb"(" + GET + rb")(?:X(.)\0\0\0([0-9]{1,20})|(" + GET + rb"))" + maybe
        tag = rb"(" + GET + rb"|X.\0\0\0[!-~]{1,40}?)" + maybe
        place = (
            re.escape(function + b"((" + word)
            + number
            + tag
            + rb"("
            + NUMBER
            + rb")t("
            + PUT
            + rb")Q"
        )
        view = rb"(" + NUMBER + TUPLE + rb")" + maybe + rb"(" + TUPLE + rb")" + maybe
        end = rb"([\x88\x89])" + re.escape(ordered + b")R")
        end += rb"(" + PUT + rb")t(" + PUT + rb")R(" + PUT + rb")"
        # A thousand pairs end. Or a dict ends, and one for the next number begins: the
        # state of an optimizer.
        between = rb"((?:u(?:\(|" + NUMBER + rb"\}r....\())?)"
        self.pattern = re.compile(
            rb"(" + between + key + place + view + end + rb")", re.DOTALL
        )

    def cut(self, data: bytes, slot: int) -> Cut | None:
        # `split` gives for each pair what lies before it, and then all groups.
        width = self.pattern.groups + 1
        parts = self.pattern.split(data)
        count = _count_joined(parts[:-1:width])
        for group in (3, 8):
            lengths, texts = (
                parts[index : count * width : width] for index in (group, group + 1)
            )
            count = of_length(
                [None if length is None else length[0] for length in lengths], texts
            )
        if not count:
            return None
        # One list for each group of the expression, over all pairs.
        columns = [parts[group : count * width : width] for group in range(1, width)]
        whole, between, _, keys, got, put1, classes, _, digits, same, put2, *rest = (
            columns
        )
        (
            devices,
            put3,
            counts,
            put4,
            shapes,
            put5,
            strides,
            put6,
            grads,
            put7,
            put8,
            tensors,
        ) = rest
        # In the order of the file, the slots that were filled have to follow each
        # other.
        filled = [put1, put2, put3, put4, put5, put6, put7, put8, tensors]
        before = {index: text for index, text in enumerate(between) if text}
        if any(len(text) > 2 for text in before.values()):
            dicts = [text[-6:-1] if len(text) > 2 else b"" for text in between]
            filled.insert(0, dicts)
            tensors = [
                opcode
                for pair in zip(dicts, tensors, strict=True)
                for opcode in pair
                if opcode
            ]
        written = b"".join(chain.from_iterable(zip(*filled, strict=True)))
        end = slot + len(written) // 5
        if written != puts(slot, end):
            raise OutOfOrderError
        # The fields that most tensors of a dict share are kept once.
        rows = list(
            zip(classes, devices, counts, shapes, strides, b"".join(grads), strict=True)
        )
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        row_of = list(map(numbers.__getitem__, rows))
        tensor_slots = slots(b"".join(tensors))
        names, numerals = decode_texts(keys), decode_texts(digits)
        return Cut(
            sum(map(len, whole)),
            before,
            names,
            got,
            numerals,
            same,
            list(numbers),
            row_of,
            tensor_slots,
            end,
        )

    def opens(self, match: re.Match[bytes]) -> bool:
        return len(match[2]) > len(b"u(")

    def text(self, match: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if match[6] == opcode:
            return b""
        if match[11] == opcode and match[9] is not None:
            return b"X" + match[8] + b"\0\0\0" + match[9]
        is_tag = match[13] == opcode and match[12][:1] == b"X"
        return cast("bytes", match[12]) if is_tag else None


def _count_joined(gaps: Sequence[bytes]) -> int:
    """Count the first pairs with nothing between them."""
    return next((index for index, gap in enumerate(gaps) if gap), len(gaps))


_Item = TypeVar("_Item")
StorageOf = Callable[[PersistentId], Storage | Global]
MakeStorages = Callable[[Sequence[str], Sequence[Storage]], Sequence[Storage]]
"""The storages with these keys, each with the dtype, the bytes and the device tag of
another. Raises UnreadableError.
"""

_REBUILD, _PROTOCOL, _TRIES = "_rebuild_tensor_v2", 2, 8
_COST = 1_000
"""Bytes of memory of a tensor with its storage and its name, or of a dict."""
_LEAST, _MOST = 1_024, 1 << 18
"""Bytes that are cut at once. They double while nothing else lies between the pairs."""
_BETWEEN = len(b"u(")
"""The most bytes between two pairs of one dict, after a thousand of them."""
_BEGIN = re.compile(rb"[Xhj]|u[(KMJ]")
"""The beginning of a pair that is not usual."""
_TAG = 256
"""Characters of the longest tag of a device."""


class _Chunk(NamedTuple):
    """Pairs that were cut at once: the number of the first node, and where they lie."""

    first: int
    at: int
    end: int
    idiom: Idiom


class TensorSkimmer:
    """Reads on for the machine (`machine.Skim`) behind a tensor of a dict.

    `storage_of` gives a persistent id its storage, `make` gives storages by their keys.
    The ids that the machine read are asked for first, so that storages keep the order
    of the file.
    """

    def __init__(
        self, data: bytes, budget: Budget, storage_of: StorageOf, make: MakeStorages
    ) -> None:
        self.memo = SkimmedMemo(self._in_slot)
        self._data = data
        self._budget = budget
        self._storage_of = storage_of
        self._make = make
        self._names: Names | None = None
        self._plain: Plain | None = None
        self._loose: Loose | None = None
        self._tries = _TRIES
        self._resolved = 0
        self._looks: dict[Row, TensorRef] = {}
        # Of each tensor and dict that was skimmed: its last slot, its key, the node.
        self._lasts = array("I")
        self._keys: list[str | None] = []
        self._nodes: Chain[Node] = Chain()
        self._chunks: list[_Chunk] = []
        self._offsets: dict[int, list[int]] = {}
        self._texts: dict[int, str] = {}
        self._pending: list[tuple[Sequence[str], Tensors]] = []
        """Pairs that no opcode has put into a dict yet."""

    @property
    def is_exact(self) -> bool:
        """Tell whether the tree surely equals the tree of the machine alone."""
        return self.memo.is_exact

    def __call__(
        self, out: Pickle, stack: list[Made], outer: list[list[Made]], position: int
    ) -> int:
        call = stack[-1]
        if (
            type(call) is not Opaque
            or type(call.func) is not Global
            or call.func.name != _REBUILD
        ):
            return position
        if (
            not outer
            or len(stack) % 2
            or not outer[-1]
            or type(outer[-1][-1]) not in (Dict, Opaque)
        ):
            return position
        if self._names is None:
            if not self._tries or out.protocol != _PROTOCOL:
                return position
            self._tries -= 1
            self._names = names_of(call, self.memo)
            if self._names is None:
                return position
            self._plain, self._loose = Plain(self._names), None
        return self._skim_pairs(self._names, out, stack, outer, position)

    def _skim_pairs(
        self,
        names: Names,
        out: Pickle,
        stack: list[Made],
        outer: list[list[Made]],
        position: int,
    ) -> int:
        """Leave a key and a tensor on the stack, or in the dict below it, for each pair
        that has the usual opcodes.
        """
        # The opcode behind the tensor says which slot comes next.
        if self._data[position : position + 1] == b"q":
            put = self._data[position : position + 2]
        else:
            put = self._data[position : position + 5]
        slot = first = int.from_bytes(put[1:], "little") + 1
        is_far = first > max(FREE_SLOTS, len(self._data))  # the machine refuses it
        if put[:1] not in (b"q", b"r") or first <= self.memo.end or is_far:
            return position
        begin, span = position + len(put), _LEAST
        idiom = self._idiom_at(names, begin)
        cut = self._cut(idiom, begin, span, slot)
        if idiom is None or cut is None:
            return position
        if any(
            self.memo.get(number) is not node for number, node in names.nodes.items()
        ):
            raise MachineError("a slot of the memo is filled again", position)
        # the machine may have filled the slots of classes and devices again
        self._looks.clear()
        self.memo[first - 1] = stack[-1]
        # Storages that the machine read stand before those that are skimmed.
        for persistent in out.persistent[self._resolved :]:
            persistent.meaning = self._storage_of(persistent)
        self._resolved = len(out.persistent)
        position = begin
        while idiom is not None and cut is not None:
            self._take(
                cut,
                _Chunk(len(self._lasts), position, position + cut.size, idiom),
                out,
                stack,
                outer,
                slot,
            )
            position, slot, before = position + cut.size, cut.end, idiom
            # Where both go, one that changes at every few pairs would cost more than
            # the slower one.
            if span == _MOST or before.pattern.match(self._data, position) is None:
                idiom = self._idiom_at(names, position)
            # Small at first, for what is cut beyond the last pair is cut in vain.
            span = min(2 * span, _MOST) if idiom is before else _LEAST
            cut = self._cut(idiom, position, span, slot)
        self._push_pending(stack)
        out.skimmed += slot - first
        return position

    def _idiom_at(self, names: Names, position: int) -> Idiom | None:
        """Return the way in which the pair at an offset is written, or None for any
        other.
        """
        if self._plain is None:
            self._plain = Plain(names)
        if self._plain.pattern.match(self._data, position) is not None:
            return self._plain
        if not _BEGIN.match(self._data, position):
            return None
        if self._loose is None:
            self._loose = Loose(names)
        if self._loose.pattern.match(self._data, position) is not None:
            return self._loose
        return None

    def _cut(
        self, idiom: Idiom | None, position: int, span: int, slot: int
    ) -> Cut | None:
        try:
            if idiom is None:
                return None
            return idiom.cut(self._data[position : position + span], slot)
        except OutOfOrderError:
            raise MachineError(
                "the slots of the memo are out of order", position
            ) from None

    def _take(
        self,
        cut: Cut,
        chunk: _Chunk,
        out: Pickle,
        stack: list[Made],
        outer: list[list[Made]],
        slot: int,
    ) -> None:
        """Make tensors of pairs. Those that an opcode puts into the dict go there, the
        others wait. Raises UnreadableError.
        """
        opened = [pair for pair, text in cut.between.items() if len(text) > _BETWEEN]
        self._chunks.append(chunk)
        self._lasts += cut.tensors
        self._keys += _spread_values(cut.keys, opened)
        self.memo.add_run(slot, cut.end)
        keys = self._fetch_texts(cut.keys, cut.got_keys)
        digits = self._fetch_texts(cut.digits, cut.got_digits)
        looks = self._looks_of(cut)
        self._budget.claim(len(keys))
        self._budget.charge(_COST * len(cut.tensors), "a pickle")
        tensors = Tensors(self._make(digits, [look.storage for look in looks]), looks)
        if opened:
            self._open_dicts(cut, opened, keys, tensors.rows(), out, stack, outer)
            return
        self._nodes.extend(tensors)
        done = max(cut.between, default=0)
        if cut.between:
            target = self._set_pending(out, stack, outer[-1])
            target.set(keys[:done], tensors.cut(0, done))
        self._pending.append((keys[done:], tensors.cut(done, len(keys))))

    def _set_pending(
        self, out: Pickle, stack: list[Made], below: list[Made]
    ) -> Dict | Opaque:
        """Set the pairs on the stack and those that wait, as SETITEMS does; the
        dict.
        """
        target = _set_stack(out, stack, below)
        for names, tensors in self._pending:
            target.set(names, tensors)
        self._pending.clear()
        return target

    def _push_pending(self, stack: list[Made]) -> None:
        """Leave the pairs that wait on the stack."""
        for keys, tensors in self._pending:
            stack += _interleave_pairs(keys, tensors)
        self._pending.clear()

    def _open_dicts(
        self,
        cut: Cut,
        opened: list[int],
        keys: Sequence[str],
        tensors: list[TensorRef],
        out: Pickle,
        stack: list[Made],
        outer: list[list[Made]],
    ) -> None:
        """Set the pairs before each dict that opens; the last ones stay on the
        stack.
        """
        self._push_pending(stack)
        nodes: list[Node] = []
        begin = 0
        for index in opened:
            stack += _interleave_pairs(keys[begin:index], tensors[begin:index])
            nodes += (
                *tensors[begin:index],
                _next_dict(out, stack, outer[-1], number_of(cut.between[index][1:-7])),
            )
            begin = index
        stack += _interleave_pairs(keys[begin:], tensors[begin:])
        self._nodes.extend([*nodes, *tensors[begin:]])

    def _fetch_texts(
        self, texts: Sequence[str | None], got: Sequence[bytes | None]
    ) -> list[str]:
        """The strings of a column, with those that come from the memo. Raises
        MachineError for what is no string.
        """
        if not got:
            return cast("list[str]", texts)
        keys: list[str] = []
        for text, get in zip(texts, got, strict=True):
            if text is None and get:
                node = self.memo[int.from_bytes(get[1:], "little")]
            else:
                node = text
            if type(node) is not str:
                raise MachineError("a key is no string", 0)
            keys.append(node)
        return keys

    def _looks_of(self, cut: Cut) -> list[TensorRef]:
        """For each pair a tensor with its opcodes. Most are like one before."""
        for row in cut.rows:
            if row not in self._looks:
                self._looks[row] = self._make_look(*row)
        looks = [self._looks[row] for row in cut.rows]
        return list(map(looks.__getitem__, cut.row_of))

    def _make_look(
        self,
        cls: bytes,
        device: bytes,
        count: bytes,
        shape: bytes,
        stride: bytes,
        grad: int,
    ) -> TensorRef:
        """A tensor with these opcodes, and a storage like its own. Raises MachineError
        for an unusual one.
        """
        if not count:
            device, count = first_opcode(device)
        # The group of the shape begins with the offset into the storage.
        offset, sizes = first_opcode(shape)
        node = self.memo[slot_of(first_opcode(cls)[0])]
        tag: Made
        if device[:1] == b"X":
            tag = self._pushed_text(device)
        else:
            tag = self.memo[slot_of(device)]
        if type(node) is not Global or type(tag) is not str or len(tag) > _TAG:
            raise MachineError("a storage is unusual", 0)
        dtype = storage_type(node)
        usual = storage_class(Storage("", None, dtype, 0, None))
        if dtype is None or (node.module, node.name) != (usual.module, usual.name):
            raise MachineError("a storage is unusual", 0)
        if dtype.kind == "quantized":
            raise MachineError("a tensor of codes has no scale", 0)
        try:
            storage = Storage(
                "", tag, dtype, storage_bytes(dtype, number_of(count)), None
            )
            return strided_tensor(
                storage,
                dtype,
                _tuple_numbers(sizes),
                _tuple_numbers(stride),
                number_of(offset),
                grad == 0x88,
            )
        except BadCallError:
            raise MachineError("a tensor is unusual", 0) from None

    def _pushed_text(self, opcode: bytes) -> str:
        """The text that an opcode pushes. Tags of devices with a number are written for
        each tensor.
        """
        if opcode[1] != len(opcode) - 5:
            raise MachineError("a string has another length", 0)
        return opcode[5:].decode()

    def _in_slot(self, slot: int) -> Made:
        """Return the content of a skimmed slot of the memo.

        Raises MachineError when the slot holds no node of the tree.
        """
        # The node whose last slot is this one, or the one after it.
        index = bisect_left(self._lasts, slot)
        if self._lasts[index] == slot and index < len(self._nodes):
            return cast("Made", self._nodes[index])
        chunk = self._chunks[
            bisect_right(self._chunks, index, key=attrgetter("first")) - 1
        ]
        offsets = self._offsets.get(chunk.first)
        if offsets is None:
            offsets = self._offsets[chunk.first] = _pair_offsets(chunk, self._data)
        match = chunk.idiom.pattern.match(self._data, offsets[index - chunk.first])
        opcode = None if match is None else chunk.idiom.text(match, slot)
        if opcode is None:
            raise MachineError("a part of a tensor is used again", chunk.at)
        if opcode:
            return self._texts.setdefault(slot, self._pushed_text(opcode))
        return self._keys[index]


def _pair_offsets(chunk: _Chunk, data: bytes) -> list[int]:
    """Return the offset of the pair of each node of a chunk.

    The pair of a dict is the one before which it opens.
    """
    offsets: list[int] = []
    for match in chunk.idiom.pattern.finditer(data, chunk.at, chunk.end):
        offsets += [match.start()] * (2 if chunk.idiom.opens(match) else 1)
    return offsets


def _interleave_pairs(
    keys: Sequence[str], tensors: Sequence[TensorRef]
) -> Iterator[Made]:
    """Keys and tensors in turn. A tensor that was skimmed needs no call, so it takes
    the place of one.
    """
    return cast("Iterator[Made]", chain.from_iterable(zip(keys, tensors, strict=True)))


def _set_stack(out: Pickle, stack: list[Made], below: list[Made]) -> Dict | Opaque:
    """Set the pairs on the stack; the dict. Raises MachineError for an unusual one.

    The machine counts what a call has seen before, what hashing its keys costs, and
    which of them may be equal.
    """
    target = below[-1]
    is_usual = type(target) is Dict or (type(target) is Opaque and not target.states)
    if not is_usual or id(target) in out.again:
        raise MachineError("a dict is unusual", 0)
    assert isinstance(target, (Dict, Opaque))
    set_items(out, 0, target, stack)
    stack.clear()
    return target


def _next_dict(out: Pickle, stack: list[Made], below: list[Made], key: int) -> Dict:
    """Close the dict whose pairs are on the stack, and open one for the next key."""
    if len(below) % 2:
        raise MachineError("a dict is unusual", 0)
    _set_stack(out, stack, below)
    entry = Dict()
    below += (key, entry)
    return entry


def _spread_values(values: Sequence[_Item], opened: list[int]) -> Sequence[_Item]:
    """The values of pairs, with one more before each pair that opens a dict: the same
    value again.
    """
    if not opened:
        return values
    out: list[_Item] = []
    begin = 0
    for index in opened:
        out += values[begin:index]
        out.append(values[index])
        begin = index
    return [*out, *values[begin:]]


def _tuple_numbers(data: bytes) -> tuple[int, ...]:
    """The tuple that opcodes make. Raises MachineError where they take more from the
    stack, or leave something on it.
    """
    numbers = numbers_of(data[:-1].removeprefix(b"("))
    if data[0] != 0x28 and len(numbers) != (
        0 if data[-1:] == b")" else data[-1] - 0x84
    ):
        raise MachineError("a tuple is unusual", 0)
    return numbers


_PUTS = 8
"""The slots that a pair fills, of which the first is the slot of the key.

The slots of the tail are filled behind the storage's key, its id, the shape, the
strides, the hooks, the arguments and the tensor.
"""
_NEXT = b"u("
"""The opcodes between two pairs of one dict after a thousand of them."""
_ARGUMENTS = {0x68: 1, 0x6A: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4}
"""Bytes of the argument of an opcode that gets a slot or pushes a number."""
_CLASS, _LENGTH, _DIGITS, _PLACE, _SHAPE, _STRIDES, _GRAD = 1, 2, 3, 5, 7, 9, 11
_FILLED = (4, 6, 8, 10, 12, 13, 14)
"""Groups of the expression of a tail; the last are those that fill a slot, in its
order.
"""


class _Tails(NamedTuple):
    """Tails with the same opcodes, of these pairs. Behind them lies `_NEXT` or
    nothing.
    """

    pairs: Sequence[int]
    width: int
    digits: list[str]
    rows: list[Row]
    row_of: list[int]
    end: bytes


class Plain:
    """Eight slots a pair."""

    def __init__(self, names: Names) -> None:
        function, word, ordered, _ = names
        self._calls = function + b"((" + word
        calls = re.escape(self._calls)
        tail = (
            rb"(%b)X(.)\0\0\0([0-9]{1,20})(%b)" % (GET, PUT)
            + rb"(%b%b)t(%b)Q(%b%b)(%b)(%b)(%b)"
            % (GET, NUMBER, PUT, NUMBER, TUPLE, PUT, TUPLE, PUT)
            + rb"([\x88\x89])%b(%b)t(%b)R(%b)"
            % (re.escape(ordered + b")R"), PUT, PUT, PUT)
        )
        self.pattern = re.compile(
            rb"(?:u\()?X(.)\0\0\0([^\0]{0,255})(%b)%b%b" % (PUT, calls, tail), re.DOTALL
        )
        self._keys = re.compile(rb"X(.)\0\0\0([^\0]{0,255})r(....)" + calls, re.DOTALL)
        self._tail = re.compile(tail, re.DOTALL)

    def cut(self, data: bytes, slot: int) -> Cut | None:
        # The first part is empty or `_NEXT`, because `data` begins with a pair.
        # The keys alone are split; the rest of each pair has mostly one length.
        parts = self._keys.split(data)
        lengths, keys, puts, tails = (parts[index::4] for index in (1, 2, 3, 4))
        count = len(keys)
        if slot + _PUTS * count > 1 << 32:
            raise OutOfOrderError
        declared = b"".join(lengths)
        if declared != bytes(map(len, keys)):
            count = of_length(declared, keys)
        sizes, nexts = _trim_tails(tails)
        groups: list[_Tails] | int = count
        while isinstance(groups, int):
            # The pair behind the last one is something else, or its end lies beyond the
            # data.
            count = groups
            last = self._tail.match(tails[count - 1]) if count else None
            if last is not None:
                del tails[count:], sizes[count:]
                tails[-1], sizes[-1] = last[0], len(last[0])
                groups = self._read(tails, sizes, slot)
            elif not count:
                return None
            else:
                groups = count - 1
        end = slot + _PUTS * count
        if b"".join(puts[:count]) != pack_numbers(array("I", range(slot, end, _PUTS))):
            raise OutOfOrderError
        between = {0: parts[0]} if parts[0] else {}
        between |= {pair + 1: _NEXT for pair in nexts if pair + 1 < count}
        between |= {
            pair + 1: tail.end for tail in groups if tail.end for pair in tail.pairs
        }
        fixed = len(b"X.\0\0\0r....") + len(self._calls)
        size = (
            fixed * count
            + sum(declared[:count])
            + sum(tail.width * len(tail.pairs) for tail in groups)
        )
        size += sum(map(len, between.values())) - sum(
            len(tail.end) * len(tail.pairs) for tail in groups
        )
        digits, row_of = _in_order(groups, count)
        tensors = array("I", range(slot + _PUTS - 1, end, _PUTS))
        rows = [row for tail in groups for row in tail.rows]
        return Cut(
            size,
            between,
            decode_texts(keys[:count]),
            (),
            digits,
            (),
            rows,
            row_of,
            tensors,
            end,
        )

    def opens(self, match: re.Match[bytes]) -> bool:
        return False

    def text(self, match: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if match[3] == opcode:
            return b""
        return b"X" + match[5] + b"\0\0\0" + match[6] if match[7] == opcode else None

    def _read(
        self, tails: list[bytes], sizes: list[int], slot: int
    ) -> list[_Tails] | int:
        """The tails, which have these sizes, by their opcodes, or how many pairs are
        left where one is unusual.

        Raises OutOfOrderError.
        """
        count = first = len(tails)
        by_size: dict[int, list[int]] = {}
        if len(set(sizes)) > 1:
            by_size = {size: [] for size in set(sizes)}
            for pair, size in enumerate(sizes):
                by_size[size].append(pair)
        todo: list[Sequence[int]] = [*by_size.values()] or [range(count)]
        groups: list[_Tails] = []
        in_order = True
        while todo:
            pairs = todo.pop()
            rows = tails if len(pairs) == count else [tails[pair] for pair in pairs]
            try:
                read = self._read_alike_tails(pairs, rows, slot)
            except OutOfOrderError:  # so they are behind what is unusual
                in_order = False
                continue
            if isinstance(read, _Tails):
                groups.append(read)
            elif isinstance(read, int):
                first = min(first, read)
            else:
                todo += read
        if first < count:
            return first + 1 if first + 1 < count else first
        if not in_order:
            raise OutOfOrderError
        return groups

    def _read_alike_tails(
        self, pairs: Sequence[int], rows: list[bytes], slot: int
    ) -> _Tails | list[list[int]] | int:
        """Tails of one length: what they hold, or the pairs by their opcodes, or the
        first pair that is unusual.

        Raises OutOfOrderError.
        """
        like = rows[0]
        match = self._tail.match(like)
        if (
            match is None
            or like[match.end() :] not in (b"", _NEXT)
            or match[_LENGTH][0] != len(match[_DIGITS])
        ):
            return pairs[0]
        count, width = len(rows), len(like)
        data = b"".join(rows)
        # The first tail many times, with the slots and digits that each should have.
        expected = bytearray(like * count)
        if isinstance(pairs, range):
            filled = array("I", range(slot, slot + _PUTS * count, _PUTS))
        else:
            filled = array("I", [slot + _PUTS * pair for pair in pairs])
        # One large number, so that one addition moves the slots of all pairs.
        base = int.from_bytes(pack_numbers(filled), "little")
        ones = int.from_bytes(b"\1\0\0\0" * count, "little")
        slots: set[int] = set()
        for number, group in enumerate(_FILLED, 1):
            column = (base + number * ones).to_bytes(4 * count, "little")
            begin = match.start(group) + 1
            slots.update(range(begin, begin + 4))
            for byte in range(4):
                expected[begin + byte :: width] = column[byte::4]
        begin, end = match.span(_DIGITS)
        digits = bytearray(b"\0" * (count * (end - begin + 1)))
        for index in range(begin, end):
            digits[index - begin :: end - begin + 1] = expected[index::width] = data[
                index::width
            ]
        differing: list[int] = []
        if data != expected:
            differing = [
                index
                for index in range(width)
                if data[index::width] != expected[index::width]
            ]
            # Only arguments may differ; another opcode makes another group.
            usual = _argument_places(match) | slots
            other = next((index for index in differing if index not in usual), None)
            if other is not None:
                split: dict[int, list[int]] = {}
                for pair, byte in zip(pairs, data[other::width], strict=True):
                    split.setdefault(byte, []).append(pair)
                return list(split.values())
            if not slots.isdisjoint(differing):
                raise OutOfOrderError
        if digits.count(0) != count or not digits.replace(b"\0", b"").isdigit():
            return next(
                pair
                for pair, row in zip(pairs, rows, strict=True)
                if not row[begin:end].isdigit()
            )
        alike, row_of = [like], [0] * count
        if differing:
            # The bytes in which the tails differ tell their rows apart.
            kinds = list(zip(*[data[index::width] for index in differing], strict=True))
            examples = dict(zip(kinds, rows, strict=True))
            numbers = {kind: number for number, kind in enumerate(examples)}
            alike = list(examples.values())
            row_of = list(map(numbers.__getitem__, kinds))
        texts = digits[:-1].decode("ascii").split("\0")
        return _Tails(
            pairs,
            width,
            texts,
            [_tail_row(row, match) for row in alike],
            row_of,
            like[match.end() :],
        )


def _trim_tails(tails: list[bytes]) -> tuple[list[int], list[int]]:
    """Cut `_NEXT` off the ends of tails that are like others but for that: the sizes of
    all, the pairs of those.
    """
    sizes = list(map(len, tails))
    kinds = set(sizes)
    trimmed: list[int] = []
    for size in kinds:
        if size - len(_NEXT) in kinds:
            pair = -1
            for _ in range(sizes.count(size)):
                pair = sizes.index(size, pair + 1)
                if tails[pair].endswith(_NEXT):
                    tails[pair] = tails[pair][: -len(_NEXT)]
                    trimmed.append(pair)
    for pair in trimmed:
        sizes[pair] -= len(_NEXT)
    return sizes, trimmed


def _argument_places(match: re.Match[bytes]) -> set[int]:
    """Return the places in a tail of opcode arguments that differ from tensor to
    tensor.
    """
    places: set[int] = set()
    for group in (_CLASS, _PLACE, _SHAPE, _STRIDES):
        index, end = match.span(group)
        while index < end:
            many = _ARGUMENTS.get(match.string[index], 0)
            places.update(range(index + 1, index + 1 + many))
            index += 1 + many
    return places


def _tail_row(tail: bytes, like: re.Match[bytes]) -> Row:
    """Return the opcodes of a tail that other tensors have too.

    The groups of the tail lie where the groups of `like` do.
    """
    cls, place, shape, strides = (
        tail[slice(*like.span(group))] for group in (_CLASS, _PLACE, _SHAPE, _STRIDES)
    )
    return cls, place, b"", shape, strides, tail[like.start(_GRAD)]


def _in_order(groups: list[_Tails], count: int) -> tuple[list[str], list[int]]:
    """Return the digits of each pair, and the number of its row among the rows
    of all.
    """
    if len(groups) == 1:
        return groups[0].digits, groups[0].row_of
    digits, row_of, before = [""] * count, [0] * count, 0
    for group in groups:
        for pair, text, number in zip(
            group.pairs, group.digits, group.row_of, strict=True
        ):
            digits[pair] = text
            row_of[pair] = before + number
        before += len(group.rows)
    return digits, row_of
