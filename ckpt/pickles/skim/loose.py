"""Pairs of key and tensor of which each differs a little: the state of an optimizer, tied weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import cast

from ckpt.pickles.skim.idiom import GET, NUMBER, PUT, TUPLE, Cut, Names, OutOfOrderError, decoded, of_length
from ckpt.pickles.skim.memo import puts, slots


class Loose:
    """Texts may come from the memo and stay out of it, and dicts may end and begin: the state of an optimizer, ties."""

    def __init__(self, names: Names) -> None:
        function, word, ordered, _ = names
        maybe = rb"((?:r....)?)"
        key = rb"(?:X(.)\0\0\0([^\0]{0,260})|(" + GET + rb"))" + maybe
        number = rb"(" + GET + rb")(?:X(.)\0\0\0([0-9]{1,20})|(" + GET + rb"))" + maybe
        tag = rb"(" + GET + rb"|X.\0\0\0[!-~]{1,40}?)" + maybe
        place = re.escape(function + b"((" + word) + number + tag + rb"(" + NUMBER + rb")t(" + PUT + rb")Q"
        view = rb"(" + NUMBER + TUPLE + rb")" + maybe + rb"(" + TUPLE + rb")" + maybe
        end = rb"([\x88\x89])" + re.escape(ordered + b")R")
        end += rb"(" + PUT + rb")t(" + PUT + rb")R(" + PUT + rb")"
        # A thousand pairs end. Or a dict ends, and one for the next number begins: the state of an optimizer.
        between = rb"((?:u(?:\(|" + NUMBER + rb"\}r....\())?)"
        self.pattern = re.compile(rb"(" + between + key + place + view + end + rb")", re.DOTALL)

    def cut(self, data: bytes, slot: int) -> Cut | None:
        width = self.pattern.groups + 1
        parts = self.pattern.split(data)
        count = _joined(parts[:-1:width])
        for group in (3, 8):
            lengths, texts = (parts[at : count * width : width] for at in (group, group + 1))
            count = of_length([None if length is None else length[0] for length in lengths], texts)
        if not count:
            return None
        columns = [parts[group : count * width : width] for group in range(1, width)]
        whole, between, _, keys, got, put1, classes, _, digits, same, put2, *rest = columns
        devices, put3, counts, put4, shapes, put5, strides, put6, grads, put7, put8, tensors = rest
        filled = [put1, put2, put3, put4, put5, put6, put7, put8, tensors]
        before = {at: text for at, text in enumerate(between) if text}
        if any(len(text) > 2 for text in before.values()):
            dicts = [text[-6:-1] if len(text) > 2 else b"" for text in between]
            filled.insert(0, dicts)
            tensors = [opcode for pair in zip(dicts, tensors, strict=True) for opcode in pair if opcode]
        written = b"".join(chain.from_iterable(zip(*filled, strict=True)))
        end = slot + len(written) // 5
        if written != puts(slot, end):
            raise OutOfOrderError
        rows = list(zip(classes, devices, counts, shapes, strides, b"".join(grads), strict=True))
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        row_of = list(map(numbers.__getitem__, rows))
        found = slots(b"".join(tensors))
        names, numerals = decoded(keys), decoded(digits)
        return Cut(
            sum(map(len, whole)), before, names, got, numerals, same, list(numbers), row_of, found, end
        )

    def opens(self, found: re.Match[bytes]) -> bool:
        return len(found[2]) > len(b"u(")

    def text(self, found: re.Match[bytes], slot: int) -> bytes | None:
        opcode = b"r" + slot.to_bytes(4, "little")
        if found[6] == opcode:
            return b""
        if found[11] == opcode and found[9] is not None:
            return b"X" + found[8] + b"\0\0\0" + found[9]
        is_tag = found[13] == opcode and found[12][:1] == b"X"
        return cast("bytes", found[12]) if is_tag else None


def _joined(gaps: Sequence[bytes]) -> int:
    """How many pairs come first that nothing lies between."""
    return next((at for at, gap in enumerate(gaps) if gap), len(gaps))
