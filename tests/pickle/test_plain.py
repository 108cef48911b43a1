"""The pairs of a state dict, cut at once: how many are whole, and what lies between
them.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from states import shaped

from ckpt import formats
from ckpt.formats.common import pickled
from ckpt.pickle.skim import Cut, OutOfOrderError
from ckpt.pickle.skim.tensors import Plain


@pytest.fixture
def pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plain, int, list[bytes]]:
    """A cutter, the first slot, and pairs of many shapes, the third of which is longer
    than all others.
    """
    calls: list[tuple[Any, ...]] = []
    cut = Plain.cut

    def kept(self: Plain, data: bytes, slot: int) -> Cut | None:
        calls.append((self, data, slot))
        return cut(self, data, slot)

    monkeypatch.setattr(Plain, "cut", kept)
    monkeypatch.setattr(pickled, "LEAST_BYTES", 0)
    state = {f"layer.{n}.w": shaped(n) for n in range(60)}
    for late in (False, True):  # what the machine reads before comes from the memo then
        state |= {
            f"late.{late}.{n}": torch.zeros((3,) * (7 if n == 2 else 1 + n % 3))
            for n in range(24)
        }
    torch.save(state, tmp_path / "a.pth")
    formats.open(str(tmp_path / "a.pth"))
    plain, data, slot = next(
        call for call in reversed(calls) if b"late.True.0" in call[1]
    )
    found = list(plain.pattern.finditer(data))
    first = next(at for at, match in enumerate(found) if match[2] == b"late.True.0")
    return plain, slot + 8 * first, [match[0] for match in found[first : first + 24]]


@pytest.mark.slow
@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("before", [(), (0,), (3,), (1, 7), (0, 3, 23), (24,)])
def test_fewer_bytes_give_fewer_pairs(
    before: tuple[int, ...], pairs: tuple[Plain, int, list[bytes]]
) -> None:
    """Wherever the data ends, in the middle of a pair or behind what lies before the
    next.
    """
    plain, slot, parts = pairs
    data, ends = b"", []
    for number, part in enumerate(parts):
        data += (b"u(" if number in before else b"") + part
        ends.append(len(data))
    data += b"u(" if 24 in before else b""
    whole = plain.cut(data, slot)
    assert whole is not None and whole.size == ends[-1] and len(whole.rows) >= 4
    rows = [whole.rows[number] for number in whole.row_of]
    for size in range(len(data) + 1):
        cut, count = plain.cut(data[:size], slot), sum(end <= size for end in ends)
        if not count:
            assert cut is None
            continue
        assert cut is not None
        assert (cut.size, cut.end) == (ends[count - 1], slot + 8 * count)
        assert (cut.keys, cut.digits) == (whole.keys[:count], whole.digits[:count])
        assert [cut.rows[number] for number in cut.row_of] == rows[:count]
        assert cut.tensors == array("I", range(slot + 7, slot + 8 * count, 8))
        assert cut.between == {number: b"u(" for number in before if number < count}


def test_something_else_ends_the_pairs(pairs: tuple[Plain, int, list[bytes]]) -> None:
    plain, slot, parts = pairs
    for other in (b"X\1\0\0\0aK\1", b"N", b"u", b"0" * 40, b"u(X\1\0\0\0aK\1"):
        for at in range(1, len(parts)):
            cut = plain.cut(b"".join(parts[:at]) + other + b"".join(parts[at:]), slot)
            assert cut is not None and len(cut.keys) == at, other
            assert cut.size == sum(map(len, parts[:at])) and not cut.between


def test_slots_are_in_order(pairs: tuple[Plain, int, list[bytes]]) -> None:
    plain, slot, parts = pairs
    data = b"".join(parts)
    puts = [
        at
        for at in range(len(data) - 4)
        if data[at : at + 1] == b"r" and data[at + 3 : at + 5] == b"\0\0"
    ]
    assert len(puts) == 8 * len(parts)
    for at in puts:
        for byte in range(1, 5):
            changed = bytearray(data)
            changed[at + byte] ^= 1
            with pytest.raises(OutOfOrderError):
                plain.cut(bytes(changed), slot)
    for wrong in (slot - 1, slot + 8, 2**32 - 8):
        with pytest.raises(OutOfOrderError):
            plain.cut(data, wrong)
