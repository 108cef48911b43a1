"""The pairs of a state dict: every key and every storage is new, and what repeats comes from the memo.

Nearly all of the opcodes of two such pairs are the same bytes. So one expression cuts out the keys, and what follows them,
the tails, are compared as a whole with what they would be if they were like the first one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from ckpt.columns import packed
from ckpt.pickles.skim.idiom import (
    GET,
    NUMBER,
    PUT,
    TUPLE,
    Cut,
    Names,
    OutOfOrderError,
    Row,
    decoded,
    of_length,
)
from ckpt.rows import NamedTuple

_PUTS = 8
"""Slots that a pair fills. Those of the tail are filled behind the storage's key, its id, the shape, the strides, the hooks, the
arguments and the tensor; the first is that of the key."""
_NEXT = b"u("
"""What lies between two pairs of one dict after a thousand of them."""
_ARGUMENTS = {0x68: 1, 0x6A: 4, 0x4B: 1, 0x4D: 2, 0x4A: 4}
"""Bytes of the argument of an opcode that gets a slot or pushes a number."""
_CLASS, _LENGTH, _DIGITS, _PLACE, _SHAPE, _STRIDES, _GRAD = 1, 2, 3, 5, 7, 9, 11
_FILLED = (4, 6, 8, 10, 12, 13, 14)
"""Groups of the expression of a tail; the last are those that fill a slot, in its order."""


class _Tails(NamedTuple):
    """Tails with the same opcodes, of these pairs. Behind them lies `_NEXT` or nothing."""

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
            + rb"(%b%b)t(%b)Q(%b%b)(%b)(%b)(%b)" % (GET, NUMBER, PUT, NUMBER, TUPLE, PUT, TUPLE, PUT)
            + rb"([\x88\x89])%b(%b)t(%b)R(%b)" % (re.escape(ordered + b")R"), PUT, PUT, PUT)
        )
        self.pattern = re.compile(
            rb"(?:u\()?X(.)\0\0\0([^\0]{0,255})(%b)%b%b" % (PUT, calls, tail), re.DOTALL
        )
        self._keys = re.compile(rb"X(.)\0\0\0([^\0]{0,255})r(....)" + calls, re.DOTALL)
        self._tail = re.compile(tail, re.DOTALL)

    def cut(self, data: bytes, slot: int) -> Cut | None:
        # The first part is empty or `_NEXT`, because `data` begins with a pair.
        parts = self._keys.split(data)
        lengths, keys, puts, tails = (parts[at::4] for at in (1, 2, 3, 4))
        count = len(keys)
        if slot + _PUTS * count > 1 << 32:
            raise OutOfOrderError
        said = b"".join(lengths)
        if said != bytes(map(len, keys)):
            count = of_length(said, keys)
        sizes, nexts = _trimmed(tails)
        found: list[_Tails] | int = count
        while isinstance(found, int):
            # The pair behind the last one is something else, or its end lies beyond the data.
            count = found
            last = self._tail.match(tails[count - 1]) if count else None
            if last is not None:
                del tails[count:], sizes[count:]
                tails[-1], sizes[-1] = last[0], len(last[0])
                found = self._read(tails, sizes, slot)
            elif not count:
                return None
            else:
                found = count - 1
        end = slot + _PUTS * count
        if b"".join(puts[:count]) != packed(array("I", range(slot, end, _PUTS))):
            raise OutOfOrderError
        between = {0: parts[0]} if parts[0] else {}
        between |= {pair + 1: _NEXT for pair in nexts if pair + 1 < count}
        between |= {pair + 1: each.end for each in found if each.end for pair in each.pairs}
        fixed = len(b"X.\0\0\0r....") + len(self._calls)
        size = fixed * count + sum(said[:count]) + sum(each.width * len(each.pairs) for each in found)
        size += sum(map(len, between.values())) - sum(len(each.end) * len(each.pairs) for each in found)
        digits, row_of = _in_order(found, count)
        tensors = array("I", range(slot + _PUTS - 1, end, _PUTS))
        rows = [row for each in found for row in each.rows]
        return Cut(size, between, decoded(keys[:count]), (), digits, (), rows, row_of, tensors, end)

    def opens(self, found: re.Match[bytes]) -> bool:
        return False

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if found[3] == opcode:
            return b""
        return b"X" + found[5] + b"\0\0\0" + found[6] if found[7] == opcode else None

    def _read(self, tails: list[bytes], sizes: list[int], slot: int) -> list[_Tails] | int:
        """The tails, which have these sizes, by their opcodes, or how many pairs are left where one is unusual.

        Raises OutOfOrderError.
        """
        count = first = len(tails)
        by_size: dict[int, list[int]] = {}
        if len(set(sizes)) > 1:
            by_size = {size: [] for size in set(sizes)}
            for pair, size in enumerate(sizes):
                by_size[size].append(pair)
        todo: list[Sequence[int]] = [*by_size.values()] or [range(count)]
        found: list[_Tails] = []
        in_order = True
        while todo:
            pairs = todo.pop()
            rows = tails if len(pairs) == count else [tails[pair] for pair in pairs]
            try:
                read = self._alike(pairs, rows, slot)
            except OutOfOrderError:  # so they are behind what is unusual
                in_order = False
                continue
            if isinstance(read, _Tails):
                found.append(read)
            elif isinstance(read, int):
                first = min(first, read)
            else:
                todo += read
        if first < count:
            return first + 1 if first + 1 < count else first
        if not in_order:
            raise OutOfOrderError
        return found

    def _alike(self, pairs: Sequence[int], rows: list[bytes], slot: int) -> _Tails | list[list[int]] | int:
        """Tails of one length: what they hold, or the pairs by their opcodes, or the first pair that is unusual.

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
        expected = bytearray(like * count)
        if isinstance(pairs, range):
            filled = array("I", range(slot, slot + _PUTS * count, _PUTS))
        else:
            filled = array("I", [slot + _PUTS * pair for pair in pairs])
        base = int.from_bytes(packed(filled), "little")
        one = int.from_bytes(b"\1\0\0\0" * count, "little")
        slots: set[int] = set()
        for number, group in enumerate(_FILLED, 1):
            column = (base + number * one).to_bytes(4 * count, "little")
            begin = match.start(group) + 1
            slots.update(range(begin, begin + 4))
            for byte in range(4):
                expected[begin + byte :: width] = column[byte::4]
        begin, end = match.span(_DIGITS)
        digits = bytearray(b"\0" * (count * (end - begin + 1)))
        for at in range(begin, end):
            digits[at - begin :: end - begin + 1] = expected[at::width] = data[at::width]
        differing: list[int] = []
        if data != expected:
            differing = [at for at in range(width) if data[at::width] != expected[at::width]]
            usual = _arguments(match) | slots
            other = next((at for at in differing if at not in usual), None)
            if other is not None:
                split: dict[int, list[int]] = {}
                for pair, byte in zip(pairs, data[other::width], strict=True):
                    split.setdefault(byte, []).append(pair)
                return list(split.values())
            if not slots.isdisjoint(differing):
                raise OutOfOrderError
        if digits.count(0) != count or not digits.replace(b"\0", b"").isdigit():
            return next(pair for pair, row in zip(pairs, rows, strict=True) if not row[begin:end].isdigit())
        alike, row_of = [like], [0] * count
        if differing:
            kinds = list(zip(*[data[at::width] for at in differing], strict=True))
            examples = dict(zip(kinds, rows, strict=True))
            numbers = {kind: number for number, kind in enumerate(examples)}
            alike, row_of = list(examples.values()), list(map(numbers.__getitem__, kinds))
        texts = digits[:-1].decode("ascii").split("\0")
        return _Tails(pairs, width, texts, [_row(row, match) for row in alike], row_of, like[match.end() :])


def _trimmed(tails: list[bytes]) -> tuple[list[int], list[int]]:
    """Cut `_NEXT` off the ends of tails that are like others but for that: the sizes of all, the pairs of those."""
    sizes = list(map(len, tails))
    kinds = set(sizes)
    found: list[int] = []
    for size in kinds:
        if size - len(_NEXT) in kinds:
            pair = -1
            for _ in range(sizes.count(size)):
                pair = sizes.index(size, pair + 1)
                if tails[pair].endswith(_NEXT):
                    tails[pair] = tails[pair][: -len(_NEXT)]
                    found.append(pair)
    for pair in found:
        sizes[pair] -= len(_NEXT)
    return sizes, found


def _arguments(match: re.Match[bytes]) -> set[int]:
    """Where a tail has the arguments of opcodes that differ from tensor to tensor."""
    found: set[int] = set()
    for group in (_CLASS, _PLACE, _SHAPE, _STRIDES):
        at, end = match.span(group)
        while at < end:
            many = _ARGUMENTS.get(match.string[at], 0)
            found.update(range(at + 1, at + 1 + many))
            at += 1 + many
    return found


def _row(tail: bytes, like: re.Match[bytes]) -> Row:
    """The opcodes that other tensors have too, of a tail whose groups lie where those of another one do."""
    cls, place, shape, strides = (
        tail[slice(*like.span(group))] for group in (_CLASS, _PLACE, _SHAPE, _STRIDES)
    )
    return cls, place, b"", shape, strides, tail[like.start(_GRAD)]


def _in_order(found: list[_Tails], count: int) -> tuple[list[str], list[int]]:
    """The digits of each pair, and the number of its row among those of all."""
    if len(found) == 1:
        return found[0].digits, found[0].row_of
    digits, row_of, before = [""] * count, [0] * count, 0
    for each in found:
        for pair, text, number in zip(each.pairs, each.digits, each.row_of, strict=True):
            digits[pair] = text
            row_of[pair] = before + number
        before += len(each.rows)
    return digits, row_of
