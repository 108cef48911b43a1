"""Tensors in a large pickle: torch writes each of them with the same thirty opcodes.

The machine reads the first tensor. Where the pairs of key and tensor that follow have the same opcodes, one regular expression
cuts them into columns, and each becomes a TensorRef at once. The machine goes on at the first opcode that differs. What is
read is the tree of the machine alone; where that is not sure, MachineError says so and the pickle has to be read again.
Opcodes: `Tensor.__reduce_ex__` of torch/_tensor.py, as the pickler of protocol 2 writes it.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import add
from typing import TypeVar, cast

from ckpt.limits import Budget
from ckpt.nodes import Dict, Global, Opaque, PersistentId
from ckpt.pickles.calls import storage_class
from ckpt.pickles.machine import MachineError, Made, Pickle
from ckpt.pickles.rebuild import BadCallError, storage_bytes, storage_type, strided
from ckpt.pickles.skim.memo import SkimmedMemo, getting
from ckpt.tensors import Storage, TensorRef

_Item = TypeVar("_Item")
StorageOf = Callable[[PersistentId], Storage | Global]
Kind = tuple[Global, str, int]
"""What a persistent id says of a storage besides its key: class, device, elements."""
MakeStorages = Callable[[Sequence[str], Sequence[Kind]], list[Storage]]
"""The storages with these keys. Raises UnreadableError."""

_REBUILD, _PROTOCOL, _TRIES = "_rebuild_tensor_v2", 2, 8
_COST = 1_000
"""Bytes of memory of a tensor with its storage and its name, or of a dict."""
_LEAST, _MOST = 1_024, 256 * 1024
"""Bytes that are cut at once. They double while nothing else lies between the pairs."""
_ROWS = 10_000
_NUMBER = rb"(?:K.|M..|J....)"
_GET = rb"(?:h.|j....)"
_PUT, _MAYBE_PUT = rb"(r....)", rb"((?:r....)?)"
_TUPLE = rb"(?:\)|" + _NUMBER + rb"{1,3}[\x85-\x87]|\(" + _NUMBER + rb"{1,64}t)"
_BETWEEN = rb"((?:u(?:\(|" + _NUMBER + rb"\}r....\())?)"
"""A thousand pairs end. Or a dict ends, and one for the next number begins: the state of an optimizer."""
_WIDTH = 24
"""Columns of a pair: what lies before it, and the groups of the expression."""


class TensorSkimmer:
    """Reads on for the machine (`machine.Skim`) behind a tensor of a dict.

    `storage_of` gives a persistent id its storage, `make` gives storages by their keys. The ids that the machine read are asked
    for first, so that storages keep the order of the file.
    """

    def __init__(self, data: bytes, budget: Budget, storage_of: StorageOf, make: MakeStorages) -> None:
        self.memo = SkimmedMemo(self._in_slot)
        self._data = data
        self._budget = budget
        self._storage_of = storage_of
        self._make = make
        self._pattern: re.Pattern[bytes] | None = None
        self._named: dict[int, Made] = {}
        self._tries = _TRIES
        self._resolved = 0
        self._rows: dict[tuple[bytes, ...], tuple[Kind, tuple[object, ...]]] = {}
        # Of each tensor and dict that was skimmed: the offset of its pair, its last slot, its key, the node.
        self._offsets = array("Q")
        self._lasts = array("I")
        self._keys: list[str | None] = []
        self._nodes: list[Made] = []
        self._texts: dict[int, str] = {}

    @property
    def is_exact(self) -> bool:
        """Whether the tree is surely that of the machine alone."""
        return self.memo.is_exact

    def __call__(self, out: Pickle, stack: list[Made], outer: list[list[Made]], at: int) -> int:
        made = stack[-1]
        if type(made) is not Opaque or type(made.func) is not Global or made.func.name != _REBUILD:
            return at
        if not outer or len(stack) % 2 or not outer[-1] or type(outer[-1][-1]) not in (Dict, Opaque):
            return at
        if self._pattern is None:
            if not self._tries or out.protocol != _PROTOCOL:
                return at
            self._tries -= 1
            found = _pattern_of(made, self.memo)
            if found is None:
                return at
            self._pattern, self._named = found
        return self._skim(self._pattern, out, stack, outer, at)

    def _skim(
        self, pattern: re.Pattern[bytes], out: Pickle, stack: list[Made], outer: list[list[Made]], at: int
    ) -> int:
        """Leave a key and a TensorRef on the stack for each pair that has the usual opcodes."""
        data = self._data
        put = data[at : at + 2] if data[at : at + 1] == b"q" else data[at : at + 5]
        first = int.from_bytes(put[1:], "little") + 1
        found = pattern.match(data, at + len(put))
        if (
            put[:1] not in (b"q", b"r")
            or first <= self.memo.end
            or found is None
            or not _usual([b"", *found.groups(), b""])
        ):
            return at
        if any(self.memo.get(slot) is not node for slot, node in self._named.items()):
            raise MachineError("a slot of the memo is filled again", at)
        self._rows.clear()  # the machine may have filled the slots of classes and devices again
        at += len(put)
        self.memo[first - 1] = stack[-1]
        for persistent in out.persistent[self._resolved :]:
            persistent.meaning = self._storage_of(persistent)
        self._resolved = len(out.persistent)
        slot, span = first, _LEAST
        while pattern.match(data, at) is not None:
            parts = pattern.split(data[at : at + span])
            count = _usual(parts)
            if not count:
                break
            columns = [parts[group : count * _WIDTH : _WIDTH] for group in range(1, _WIDTH)]
            slot = self._take(columns, stack, outer, slot, at)
            at += sum(map(len, columns[0]))
            if count < len(parts) // _WIDTH:
                break
            span = min(2 * span, _MOST)
        out.skimmed += slot - first
        return at

    def _take(
        self, columns: list[list[bytes]], stack: list[Made], outer: list[list[Made]], slot: int, at: int
    ) -> int:
        """Leave the pairs of these columns on the stack; the next slot of the memo. Raises UnreadableError."""
        whole, between, _, texts, got, put1, classes, _, digits, same, put2, *rest = columns
        devices, put3, counts, put4, shapes, put5, strides, put6, grads, put7, put8, ends = rest
        puts = [put1, put2, put3, put4, put5, put6, put7, put8, ends]
        opened = [index for index, text in enumerate(between) if len(text) > 2]
        if opened:
            before = [text[-6:-1] if len(text) > 2 else b"" for text in between]
            puts.insert(0, before)
            ends = [end for pair in zip(before, ends, strict=True) for end in pair if end]
        written = b"".join(chain.from_iterable(zip(*puts, strict=True)))
        following = slot + len(written) // 5
        if written != _puts(slot, following):
            raise MachineError("the slots of the memo are out of order", at)
        names = _decoded(texts)
        self._lasts += _slots(b"".join(ends))
        self._offsets += array("Q", _spread([*accumulate(map(len, whole), initial=at)][:-1], opened))
        self._keys += _spread(names, opened)
        self.memo.add_run(slot, following)
        keys, known = self._fetched(_decoded(digits), same), self._fetched(names, got)
        rows = self._rows_of(zip(classes, devices, counts, shapes, strides, grads, strict=True))
        self._budget.claim(len(known))
        self._budget.charge(_COST * len(ends), "a pickle")
        storages = self._make(keys, [kind for kind, _ in rows])
        fields = map(add, zip(storages, strict=True), [view for _, view in rows])
        tensors = cast("list[Made]", list(map(tuple.__new__, repeat(TensorRef), fields)))
        self._nodes += _spread(tensors, opened)
        begin = 0
        for number, index in enumerate(opened):
            stack += chain.from_iterable(zip(known[begin:index], tensors[begin:index], strict=True))
            self._nodes[len(self._nodes) - len(ends) + index + number] = _next_dict(
                stack, outer[-1], _number(between[index][1:-7])
            )
            begin = index
        stack += chain.from_iterable(zip(known[begin:], tensors[begin:], strict=True))
        return following

    def _fetched(self, texts: Sequence[str | None], got: list[bytes]) -> Sequence[str]:
        """The strings of a column, with those that come from the memo. Raises MachineError for what is no string."""
        found: list[str] = []
        for text, get in zip(texts, got, strict=True):
            node = self.memo[int.from_bytes(get[1:], "little")] if text is None else text
            if type(node) is not str:
                raise MachineError("a key is no string", 0)
            found.append(node)
        return found

    def _rows_of(self, rows: Iterable[tuple[bytes, ...]]) -> list[tuple[Kind, tuple[object, ...]]]:
        """The storage and the other fields of each tensor. Most are like one before."""
        listed = list(rows)
        known = self._rows
        if len(known) > _ROWS:
            known.clear()
        for row in set(listed) - known.keys():
            known[row] = self._row(*row)
        return [known[row] for row in listed]

    def _row(
        self, cls: bytes, device: bytes, count: bytes, shape: bytes, stride: bytes, grad: bytes
    ) -> tuple[Kind, tuple[object, ...]]:
        """(the storage, the fields of a TensorRef after it). Raises MachineError for an unusual one."""
        offset, sizes = _cut(shape)
        node = self.memo[int.from_bytes(cls[1:], "little")]
        name = self._device(device)
        if type(node) is not Global or type(name) is not str:
            raise MachineError("a storage is unusual", 0)
        dtype = storage_type(node)
        usual = storage_class(Storage("", None, dtype, 0, None))
        numel = _number(count)
        if dtype is None or (node.module, node.name) != (usual.module, usual.name):
            raise MachineError("a storage is unusual", 0)
        try:
            storage = Storage("", None, dtype, storage_bytes(dtype, numel), None)
            ref = strided(storage, dtype, _numbers(sizes), _numbers(stride), _number(offset), grad == b"\x88")
        except BadCallError:
            raise MachineError("a tensor is unusual", 0) from None
        return (node, name, numel), ref[1:]

    def _device(self, data: bytes) -> Made:
        """The tag that an opcode pushes or gets. Tags of devices with a number are written for each tensor."""
        if data[:1] != b"X":
            return self.memo[int.from_bytes(data[1:], "little")]
        if data[1] != len(data) - 5:
            raise MachineError("a string has another length", 0)
        return data[5:].decode()

    def _in_slot(self, slot: int) -> Made:
        """What a skimmed slot of the memo holds. Raises MachineError for what is no node of the tree."""
        index = bisect_left(self._lasts, slot)
        if self._lasts[index] == slot and index < len(self._nodes):
            return self._nodes[index]
        found = self._pattern.match(self._data, self._offsets[index]) if self._pattern else None
        put = b"r" + slot.to_bytes(4, "little")
        if found is not None and found[6] == put:
            return self._keys[index]
        if found is not None and found[11] == put and found[9] is not None:
            return self._texts.setdefault(slot, found[9].decode())
        if found is not None and found[13] == put and found[12][:1] == b"X":
            return self._texts.setdefault(slot, str(self._device(found[12])))
        raise MachineError("a part of a tensor is used again", self._offsets[index])


def _next_dict(stack: list[Made], below: list[Made], key: int) -> Dict:
    """Close the dict whose pairs are on the stack, and open one for the next key."""
    target = below[-1]
    if len(below) % 2 or type(target) not in (Dict, Opaque):
        raise MachineError("a dict is unusual", 0)
    target.set(stack[::2], stack[1::2])  # type: ignore[union-attr]
    stack.clear()
    made = Dict()
    below += (key, made)
    return made


def _spread(values: list[_Item], opened: list[int]) -> list[_Item]:
    """The values of pairs, with one more before each pair that opens a dict: the same value again."""
    if not opened:
        return values
    out: list[_Item] = []
    begin = 0
    for index in opened:
        out += values[begin:index]
        out.append(values[index])
        begin = index
    return out + values[begin:]


def _usual(parts: list[bytes]) -> int:
    """How many pairs come first that nothing lies between, and whose strings have the lengths that they say."""
    gaps = parts[:-1:_WIDTH]
    count = next((index for index, gap in enumerate(gaps) if gap), len(gaps))
    for group in (3, 8):
        lengths, texts = (parts[at : count * _WIDTH : _WIDTH] for at in (group, group + 1))
        if [*b"".join(filter(None, lengths))] != [len(text) for text in texts if text is not None]:
            pairs = enumerate(zip(lengths, texts, strict=True))
            count = next(
                index for index, (length, text) in pairs if length is not None and length[0] != len(text)
            )
    return count


def _decoded(texts: list[bytes]) -> list[str | None]:
    """The strings that opcodes push; None where another opcode does. Raises UnicodeDecodeError."""
    pushed = [text for text in texts if text is not None]
    found = str(b"\0".join(pushed), "utf-8", "surrogatepass").split("\0")
    if len(found) != len(pushed):
        found = [str(text, "utf-8", "surrogatepass") for text in pushed]
    if len(pushed) == len(texts):
        return list(found)
    each = iter(found)
    return [None if text is None else next(each) for text in texts]


def _puts(start: int, end: int) -> bytes:
    """The opcodes that fill slots of the memo from `start` up to `end`."""
    numbers = array("I", range(start, end))
    if sys.byteorder == "big":
        numbers.byteswap()
    raw = numbers.tobytes()
    out = bytearray(b"r....") * len(numbers)
    for byte in range(4):
        out[byte + 1 :: 5] = raw[byte::4]
    return bytes(out)


def _slots(puts: bytes) -> array[int]:
    """The slots that opcodes fill."""
    raw = bytearray(len(puts) // 5 * 4)
    for byte in range(4):
        raw[byte::4] = puts[byte + 1 :: 5]
    found = array("I", bytes(raw))
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _pattern_of(made: Opaque, memo: dict[int, Made]) -> tuple[re.Pattern[bytes], dict[int, Made]] | None:
    """(the expression for a key and a tensor like this one, the slots that it names); None where the tensor is unusual."""
    storage, hooks = (made.args[0], made.args[-1]) if len(made.args) == 6 else (None, None)
    if type(storage) is not PersistentId or type(hooks) is not Opaque or type(hooks.func) is not Global:
        return None
    pid = storage.pid
    names = (made.class_name, hooks.class_name, hooks.how)
    if names != (f"torch._utils.{_REBUILD}", "collections.OrderedDict", "reduce"):
        return None
    if type(pid) is not tuple or len(pid) != 5 or type(pid[0]) is not str or pid[0] != "storage":
        return None
    slots = {id(node): slot for slot, node in memo.items()}
    try:
        named: dict[int, Made] = {
            slots[id(node)]: cast("Made", node) for node in (made.func, pid[0], hooks.func)
        }
    except KeyError:
        return None
    func, word, ordered = map(getting, named)
    key = rb"(?:X(.)\0\0\0([^\0]{0,260})|(" + _GET + rb"))" + _MAYBE_PUT
    number = rb"(" + _GET + rb")(?:X(.)\0\0\0([0-9]{1,20})|(" + _GET + rb"))" + _MAYBE_PUT
    tag = rb"(" + _GET + rb"|X.\0\0\0[!-~]{1,40}?)" + _MAYBE_PUT
    place = func + rb"\(\(" + word + number + tag + rb"(" + _NUMBER + rb")t" + _PUT + rb"Q"
    view = rb"(" + _NUMBER + _TUPLE + rb")" + _MAYBE_PUT + rb"(" + _TUPLE + rb")" + _MAYBE_PUT
    end = rb"([\x88\x89])" + ordered + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT
    return re.compile(rb"(" + _BETWEEN + key + place + view + end + rb")", re.DOTALL), named


_OPCODE_BYTES = {0x68: 2, 0x6A: 5, 0x4B: 2, 0x4D: 3, 0x4A: 5}


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """The first opcode, and what follows it."""
    width = _OPCODE_BYTES[data[0]]
    return data[:width], data[width:]


def _number(data: bytes) -> int:
    """The number that an opcode pushes."""
    return int.from_bytes(data[1:], "little", signed=data[0] == 0x4A)


def _numbers(data: bytes) -> tuple[int, ...]:
    """The tuple that opcodes make. Raises MachineError where they take more from the stack, or leave something on it."""
    numbers: list[int] = []
    rest = data.removeprefix(b"(")
    while len(rest) > 1:
        number, rest = _cut(rest)
        numbers.append(_number(number))
    if data[0] != 0x28 and len(numbers) != (0 if rest == b")" else rest[0] - 0x84):
        raise MachineError("a tuple is unusual", 0)
    return tuple(numbers)
