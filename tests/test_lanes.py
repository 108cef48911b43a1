"""Columns of numbers in one integer: what they add and compare is what Python's numbers do."""

from __future__ import annotations

from array import array

from hypothesis import example, given
from hypothesis import strategies as st

from ckpt.lanes import Lanes

MOST = 2**63 - 1
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, MOST), st.integers(MOST - 3, MOST))
PAIRS = st.lists(
    st.one_of(
        st.tuples(NUMBERS, NUMBERS),
        NUMBERS.map(lambda a: (a, a)),
        NUMBERS.map(lambda a: (min(a + 1, MOST), a)),
    ),
    max_size=6,
)


def lanes(numbers: list[int]) -> Lanes:
    return Lanes.of_array(array("Q", numbers))


@given(PAIRS, NUMBERS)
@example([], 5)
@example([(MOST, 0)], 0)
@example([(0, MOST)], MOST)
def test_they_are_compared_as_numbers(pairs: list[tuple[int, int]], one: int) -> None:
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    assert lanes(left).are_at_most(lanes(right)) == all(a <= b for a, b in pairs)
    assert lanes(left).are_at_most(one) == all(a <= one for a in left)


@given(
    st.lists(st.tuples(st.integers(0, MOST // 2), st.integers(0, MOST // 2)), max_size=6),
    st.integers(0, MOST // 2),
)
def test_they_are_added_as_numbers(pairs: list[tuple[int, int]], one: int) -> None:
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    assert list((lanes(left) + lanes(right)).array()) == [a + b for a, b in pairs]
    assert list((lanes(left) + one).array()) == [a + one for a in left]
    assert len(lanes(left)) == len(left)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_neighbours(numbers: list[int]) -> None:
    assert list(lanes(numbers).from_second().array()) == numbers[1:]
    assert list(lanes(numbers).to_last_but_one().array()) == numbers[:-1]


@given(st.lists(st.integers(0, 2**16 - 1), max_size=6))
def test_numbers_of_fewer_bytes(numbers: list[int]) -> None:
    for width in (2, 4, 8):
        raw = b"".join(number.to_bytes(width, "little") for number in numbers)
        assert list(Lanes.of(raw, width).array()) == numbers
