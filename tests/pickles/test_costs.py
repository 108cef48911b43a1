"""What a small file costs when it is loaded: time, memory and the stack stay in proportion, or it is refused or called dangerous."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
from opcodes import pickled, torch_zip, value

from ckpt.errors import CkptError
from ckpt.formats import open

pytestmark = oracle.QUIET

PRIME = 2**61 - 1
"""Numbers have the same hash where they differ by it."""
LONG = 1 << 5_000


def groups(path: Path, program: bytes) -> dict[str, str]:
    """The names of a file that are not just known, with their groups."""
    path.write_bytes(
        torch_zip(pickled({"model": {"w.weight": op.tensor()}, "x": program + op.pop() + op.none()}))
    )
    with open(str(path)) as checkpoint:
        return {f"{row.module}.{row.name}": row.group for row in checkpoint.imports if row.group != "known"}


# --- keys -------------------------------------------------------------------------------------------------------------


def keyed(*keys: Any) -> bytes:
    return op.empty_dict() + b"".join(value(key) + op.none() + op.setitem() for key in keys)


def frozen(*items: Any) -> bytes:
    return op.mark() + b"".join(map(value, items)) + b"\x91"


def unfolding(levels: int) -> bytes:
    """Frozensets that each hold the next twice: a hash is kept, a comparison visits 2^levels of them."""
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
    """Hashes of which Python looks at many slots of a dict for each of the last ones."""
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
        found.update(dict.fromkeys(hashes[is_fine & (place[slots] < first // 4)].tolist()))
    return [*chain[:first], *list(found)[:others]]


def pair_with_hash(wanted: int, left: int) -> tuple[int, int]:
    """Two numbers whose tuple has a hash: Python mixes them with constants."""
    first, second, fifth, mask = 11400714785074694791, 14029467366897019727, 2870177450012600261, 2**64 - 1

    def turned(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & mask

    while True:
        left += 1
        mixed = turned((fifth + left * second) & mask, 31) * first & mask
        whole = turned((wanted - (2 ^ (fifth ^ 3527539))) * pow(first, -1, 2**64) & mask, 33)
        right = (whole - mixed) * pow(second, -1, 2**64) & mask
        right -= 2**64 * (right >> 63)
        if abs(right) < PRIME and right != -1:
            return left, right


CROWD = in_each_others_way(16, 30_000, 10_000)
KEYS: dict[str, Callable[[], bytes]] = {
    "a long number": lambda: keyed(LONG),
    "a long number in a tuple": lambda: keyed(((1, -LONG),)),
    "a long number in a frozenset": lambda: keyed((frozen(LONG),)),
    "a long number in a set": lambda: op.empty_set() + op.mark() + value(LONG) + b"\x90",
    "frozensets that unfold": equal_but_for_one,
    "frozensets that unfold in a set": lambda: unfolding(40) + frozen((op.get(7), 1)),
    "tuples of one hash": lambda: tuples_of_one_hash(600, 12),
    "floats in each other's way": lambda: keyed(*map(float, CROWD)),
    "tuples in each other's way": lambda: keyed(
        *(pair_with_hash(number, place) for place, number in enumerate(CROWD))
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_take_ages_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CkptError):
        groups(tmp_path / "x.pth", KEYS[name]())


def test_keys_of_real_files_are_read(tmp_path: Path) -> None:
    pairs = [(left, right) for left in range(100) for right in range(100)]
    program = keyed(
        2**4_000, 1 << 64, frozen(1, 2), frozen("a"), (frozen(1), 2), *pairs, *map(float, range(6_000))
    )
    assert groups(tmp_path / "x.pth", program) == {}
