"""Columns: rows are made when they are asked for, once, and a chain of columns and
lists is as the list of its rows.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.model.columns import Chain, Column, NumberedTexts, row_looks, row_parts


class Row:
    """Equal to itself alone."""

    def __init__(self, number: int) -> None:
        self.number = number


def column(
    numbers: list[int], calls: list[tuple[int, int]] | None = None
) -> Column[Row]:
    known = {number % 3: Row(number % 3) for number in numbers}

    def make(first: int, last: int) -> list[Row]:
        if calls is not None:
            calls.append((first, last))
        return [Row(number) for number in numbers[first:last]]

    return Column(len(numbers), make, [known[number % 3] for number in numbers])


def numbers(rows: object) -> list[int]:
    return [row.number for row in rows]  # type: ignore[attr-defined]


def test_a_row_is_made_when_it_is_asked_for_and_stays_the_same_object() -> None:
    calls: list[tuple[int, int]] = []
    rows = column([5, 6, 7, 8], calls)
    assert len(rows) == 4 and calls == [] and rows.made == []

    third = rows[2]
    assert (third.number, calls, rows[2], rows[-2]) == (7, [(2, 3)], third, third)
    assert rows.made == [third]

    assert numbers(rows) == [5, 6, 7, 8] and calls == [(2, 3), (0, 4)]
    assert list(rows)[2] is third and rows[0] is next(iter(rows)) and len(calls) == 2
    assert rows.made == list(rows)


def test_few_rows_of_a_slice_are_made_alone_and_many_with_all() -> None:
    calls: list[tuple[int, int]] = []
    rows = column(list(range(10)), calls)
    assert numbers(rows[3:5]) == [3, 4] and calls == [(3, 4), (4, 5)]
    assert numbers(rows[1:9]) == list(range(1, 9)) and calls[2:] == [(0, 10)]
    assert rows[3:5] == [rows[3], rows[4]]


def test_a_cut_has_the_rows_of_its_column() -> None:
    calls: list[tuple[int, int]] = []
    rows = column(list(range(10)), calls)
    inner = rows.cut(2, 9).cut(1, 5)
    assert numbers([inner[0], inner[-1]]) == [3, 6] and inner[0] is rows[3]
    assert inner.made == [rows[3], rows[6]] and rows.made == inner.made
    assert list(inner) == list(rows)[3:7] and inner.looks == rows.looks[3:7]
    assert inner.made == list(rows)[3:7]


@pytest.mark.parametrize("index", [4, -5])
def test_there_is_no_row_outside(index: int) -> None:
    with pytest.raises(IndexError):
        column([1, 2, 3, 4])[index]
    with pytest.raises(IndexError):
        Chain([Row(1)], column([1, 2, 3]))[index]


PIECES = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 99), max_size=6)), max_size=5
)


@pytest.mark.slow
@given(PIECES, st.data())
def test_a_chain_is_as_the_list_of_its_rows(
    pieces: list[tuple[bool, list[int]]], data: st.DataObject
) -> None:
    chain: Chain[Row] = Chain()
    expected: list[int] = []
    for as_column, each in pieces:
        if as_column:
            chain.extend(column(each))
        elif len(each) == 1:
            chain.append(Row(each[0]))
        else:
            chain.extend([Row(number) for number in each])
        expected += each
    assert len(chain) == len(expected)
    bound = st.none() | st.integers(-35, 35)
    span = slice(
        data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1]))
    )
    cut = chain[span]
    assert numbers(cut) == expected[span] and len(cut) == len(expected[span])
    assert numbers(chain) == expected and list(cut) == list(chain)[span]
    assert [chain[at].number for at in range(len(expected))] == expected
    assert numbers(row for part in row_parts(chain) for row in part) == expected
    assert all(len(part) for part in chain.parts)


def test_rows_of_columns_have_looks_and_others_stand_for_themselves() -> None:
    alone, rows = Row(1), column([3, 4, 6])
    chain = Chain([alone], rows)
    assert row_looks(chain) == [alone, *rows.looks] and rows.looks[0] is rows.looks[2]
    assert row_looks([alone]) == [alone] and rows.made == []
    assert row_looks(chain[1:3]) == list(rows.looks[:2])


def test_a_list_that_is_added_is_not_changed_later() -> None:
    given = [Row(1)]
    chain = Chain(given)
    chain.append(Row(2))
    assert numbers(given) == [1] and numbers(chain) == [1, 2]


def test_numbered_texts() -> None:
    texts = NumberedTexts("a.b:", range(4))

    assert list(texts) == ["a.b:0", "a.b:1", "a.b:2", "a.b:3"]
    assert (len(texts), texts[3], texts[-1]) == (4, "a.b:3", "a.b:3")
    assert list(texts[1:3]) == ["a.b:1", "a.b:2"]
    assert list(texts[2:][1:]) == ["a.b:3"]
    assert "a.b:2" in texts and "a.b:4" not in texts
    with pytest.raises(IndexError):
        texts[4]
