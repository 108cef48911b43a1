"""Spans by their first byte, against a list of all of them."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from ckpt.ext.remote.spans import Spans


class Span(NamedTuple):
    begin: int
    end: int
    number: int = 0


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_what_a_list_finds(seed: int) -> None:
    dice = random.Random(seed)
    spans: Spans[Span] = Spans()
    every: list[Span] = []
    for number in range(60):
        begin = dice.randrange(200)
        every.append(Span(begin, begin + dice.choice([1, 3, 50]), number))
        spans.add(every[-1])
        if dice.random() < 0.3:
            gone = every.pop(dice.randrange(len(every)))
            spans.remove(gone)
            spans.remove(gone)
    assert bool(spans) is bool(every) and sorted(spans) == sorted(every)
    for at in range(260):
        end = at + dice.randrange(1, 40)
        found = spans.between(at, end)
        assert sorted(found) == sorted(
            row for row in every if row.begin < end and row.end > at
        )
        assert [row.begin for row in found] == sorted(
            (row.begin for row in found), reverse=True
        )
        one = spans.at(at)
        assert (
            (one in every and one.begin <= at < one.end)
            if one
            else not spans.between(at, at + 1)
        )
        assert spans.after(at, end) == min(
            (row.begin for row in every if at < row.begin < end), default=end
        )


def test_two_that_are_equal_are_two() -> None:
    spans: Spans[Span] = Spans()
    first, second = Span(1, 2), Span(1, 2)
    spans.add(first)
    spans.add(second)
    spans.remove(first)
    assert [row is second for row in spans] == [True]
