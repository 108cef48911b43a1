"""Pieces as laws: any nested loops are found again of the sequence they make, a grid
covers what its pieces say.
"""

from __future__ import annotations

from math import prod

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ckpt.ext.layouts import pieces as module
from ckpt.ext.layouts.pieces import (
    Cover,
    Loop,
    Piece,
    cover_of,
    flat_steps,
    grids_of,
    matched_dims,
    nest_places,
    whole_piece,
)
from ckpt.ext.layouts.templates import (
    Affine,
    forms_of,
    parse_affine,
    parse_template,
    parse_values,
    template_of,
    values_text,
)

_SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def indices(piece: Piece, side: str) -> np.ndarray:
    """The elements of a piece on one side, in the order of its loops."""
    out = np.array(piece.to if side == "to" else piece.at)
    for loop in piece.loops:
        out = out[..., None] + np.arange(loop.size) * (
            loop.to if side == "to" else loop.at
        )
    return out.reshape(-1)


def image(pieces: list[Piece], numel: int) -> list[tuple[str | None, int]]:
    """The source and the element of each element of a target."""
    out: list[tuple[str | None, int]] = [("", -1)] * numel
    for piece in pieces:
        for to, at in zip(
            indices(piece, "to").tolist(), indices(piece, "at").tolist(), strict=True
        ):
            out[to] = (piece.source, at)
    return out


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The sources and the places of a sequence that permuted and joined tensors
    give.
    """
    keys: list[int] = []
    places: list[int] = []
    for key in range(draw(st.integers(1, 3))):
        shape = draw(_SHAPES)
        order = draw(st.permutations(range(len(shape))))
        rows = np.arange(prod(shape)).reshape(shape).transpose(order).reshape(-1)
        keys += [key] * len(rows)
        places += rows.tolist()
    times = draw(st.integers(1, 3))
    step = draw(st.integers(1, 300))
    return keys * times, [
        place + number * step for number in range(times) for place in places
    ]


@given(layouts())
@settings(max_examples=200, deadline=None)
def test_nested_loops_are_the_sequence(layout: tuple[list[int], list[int]]) -> None:
    keys, places = layout
    made = [
        Piece(str(nest.key), nest.first, nest.at, nest.loops).normalized()
        for nest in nest_places(keys, places)
    ]
    assert image(made, len(keys)) == [
        (str(key), place) for key, place in zip(keys, places, strict=True)
    ]
    assert cover_of(made, len(keys)) == Cover(0, 0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_sequence_is_some_loops(places: list[int]) -> None:
    made = [
        Piece("x", nest.first, nest.at, nest.loops)
        for nest in nest_places([0] * len(places), places)
    ]
    assert image(made, len(places)) == [("x", place) for place in places]


@given(layouts())
@settings(max_examples=100, deadline=None)
def test_boxes_of_a_grid_are_its_pieces(layout: tuple[list[int], list[int]]) -> None:
    keys, places = layout
    made = [
        Piece(str(nest.key), nest.first, nest.at, nest.loops).normalized()
        for nest in nest_places(keys, places)
    ]
    found: list[tuple[str | None, int]] = [("", -1)] * len(keys)
    for grid in grids_of(made, len(keys)):
        steps = flat_steps(grid.shape)
        assert prod(grid.shape) == grid.numel
        for cell in grid.cells:
            for index in np.ndindex(*cell.sizes):
                to = grid.first + sum(
                    (i + o) * s
                    for i, o, s in zip(index, cell.offsets, steps, strict=True)
                )
                at = cell.piece.at + sum(
                    i * s for i, s in zip(index, cell.steps, strict=True)
                )
                found[to] = (cell.piece.source, at)
    assert found == [(str(key), place) for key, place in zip(keys, places, strict=True)]


@given(_SHAPES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_turning_a_piece_twice_gives_it_again(
    shape: tuple[int, ...], random: object
) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    signs = [random.choice((1, -1)) for _ in order]  # type: ignore[attr-defined]
    steps = flat_steps(shape)
    to_steps = flat_steps([shape[axis] for axis in order])
    loops = tuple(
        Loop(shape[axis], to, sign * steps[axis])
        for axis, to, sign in zip(order, to_steps, signs, strict=True)
    )
    at = sum((loop.size - 1) * -loop.at for loop in loops if loop.at < 0)
    piece = Piece("a", 0, at, loops).normalized()
    back = piece.turned("b")
    assert image([back], prod(shape)) == [
        ("b", image([piece], prod(shape)).index(("a", number)))
        for number in range(prod(shape))
    ]
    assert image([back.turned("a")], prod(shape)) == image([piece], prod(shape))


def test_a_cover_counts_what_lacks_and_what_is_twice() -> None:
    rows = [Piece("x", 0, 0, (Loop(4, 1, 1),)), Piece("x", 2, 0, (Loop(4, 1, 1),))]
    assert cover_of(rows, 8) == Cover(2, 2)
    assert cover_of([], 3) == Cover(3, 0)
    columns = [Piece("x", column, 0, (Loop(4, 3, 1),)) for column in range(2)]
    assert cover_of(columns, 12) == Cover(4, 0)
    assert cover_of([*columns, whole_piece("y", 12)], 12) == Cover(0, 8)


@pytest.mark.parametrize("cells", [1, 1 << 22])
def test_a_cover_is_the_same_in_parts(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CELLS", cells)
    rows = [Piece("x", row * 6, 0, (Loop(2, 3, 1), Loop(2, 1, 1))) for row in range(3)]
    assert cover_of([*rows, rows[0]], 18) == Cover(6, 4)


def test_dimensions_match_where_they_divide() -> None:
    assert matched_dims([(6, 4), (4, 1)], [(24, 1)]) == [(6, 4, 4), (4, 1, 1)]
    assert matched_dims([(6, 1)], [(4, 1)]) is None
    assert matched_dims([(2, 3), (3, 1)], [(3, 2), (2, 1)]) is None


@pytest.mark.parametrize(
    "values", [[0, 1, 2, 3], [0, 2, 4], [1], [0, 1], [0, 5, 6, 7, 8, 20]]
)
def test_values_are_read_as_they_are_written(values: list[int]) -> None:
    assert parse_values(values_text(values)) == values


@pytest.mark.parametrize("text", ["n", "8*p+n-3", "-n+3", "0", "64*n+8"])
def test_numbers_are_read_as_they_are_written(text: str) -> None:
    number = parse_affine(text)
    assert parse_affine(number.text) == number


def test_a_padded_number_stays_padded() -> None:
    forms = forms_of(["rank_00.x", "rank_10.x", "layer.1", "layer.10", "y.01", "y.1"])
    assert forms["rank_10.x"].widths == (2,)
    assert forms["layer.10"].widths == (0,)
    template = template_of(forms["rank_10.x"], [Affine(0, (("n", 1),))])
    assert template.text == "rank_<n:2>.x"
    assert [template.name({"n": number}) for number in (0, 10)] == [
        "rank_00.x",
        "rank_10.x",
    ]
    for name in ("y.01", "y.1"):
        assert (
            template_of(
                forms[name], [Affine(number) for number in forms[name].numbers]
            ).name({})
            == name
        )
    assert parse_template(template.text) == template
