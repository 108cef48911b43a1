"""The treemap: areas are bytes, every box lies in its parent's, and no name becomes markup."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.jobs.notebook.markup import outline
from ckpt.jobs.notebook.treemap import HEIGHT, WIDTH, Tile, squares, tree, treemap
from ckpt.render.palette import KINDS, NONE

COLOURS = {"float32": KINDS[0], "int64": KINDS[1]}
SPACE = "{http://www.w3.org/2000/svg}"


def tile(name: str, nbytes: int, word: str = "float32") -> Tile:
    return Tile(name, nbytes, word, lambda: f"{word} [{nbytes // 4}]")


def drawn(*tiles: Tile) -> list[tuple[str, str, tuple[float, float, float, float]]]:
    """(title, colour, box) of each tile."""
    root = ElementTree.fromstring(treemap(tree(tiles), COLOURS))
    out = []
    for group in root.findall(f"{SPACE}g"):
        box = group.find(f"{SPACE}rect")
        assert box is not None
        place = tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        out.append((group.findtext(f"{SPACE}title") or "", box.attrib["fill"], place))
    return out  # type: ignore[return-value]


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=60), st.floats(1, 1000), st.floats(1, 1000))
def test_squares_fill_the_box(sizes: list[int], width: float, height: float) -> None:
    sizes.sort(reverse=True)
    boxes = squares(sizes, (5.0, 7.0, width, height))
    whole = sum(sizes)

    assert len(boxes) == len(sizes)
    for size, (x, y, wide, high) in zip(sizes, boxes, strict=True):
        assert wide * high == pytest.approx(width * height * size / whole, rel=1e-6, abs=1e-9)
        assert x >= 5 - 1e-6 and y >= 7 - 1e-6
        assert x + wide <= 5 + width + 1e-6 and y + high <= 7 + height + 1e-6
    for number, (x, y, wide, high) in enumerate(boxes):
        for left, top, other, tall in boxes[number + 1 :]:
            across = min(x + wide, left + other) - max(x, left)
            assert across <= 1e-6 or min(y + high, top + tall) - max(y, top) <= 1e-6


def test_nearly_square() -> None:
    assert all(0.5 < wide / high < 2 for _, _, wide, high in squares([1] * 12, (0, 0, 400, 300)))


def test_areas_are_bytes_and_colours_words() -> None:
    one, two, three = drawn(tile("a", 600), tile("b", 300, "int64"), tile("c", 100))

    assert [each[0] for each in (one, two, three)] == [
        "a: float32 [150]",
        "b: int64 [75]",
        "c: float32 [25]",
    ]
    assert [each[1] for each in (one, two, three)] == [KINDS[0], KINDS[1], KINDS[0]]
    areas = [wide * high / (WIDTH * HEIGHT) for _, _, (_, _, wide, high) in (one, two, three)]
    assert areas == pytest.approx([0.6, 0.3, 0.1], abs=1e-3)


def test_modules_are_frames_and_lonely_parts_are_joined() -> None:
    found = drawn(tile("m.x.a", 500), tile("m.x.b", 400), tile("m.x", 300), tile("o.s.deep.only", 100))

    assert [title for title, _, _ in found] == [
        "m.x: 3 tensors, 1.17 KiB",
        "m.x.a: float32 [125]",
        "m.x.b: float32 [100]",
        "m.x: float32 [75]",
        "o.s.deep.only: float32 [25]",
    ]
    frame, *inside = [box for _, _, box in found[:4]]
    for x, y, wide, high in inside:
        assert x >= frame[0] and y >= frame[1] + 14
        assert x + wide <= frame[0] + frame[2] and y + high <= frame[1] + frame[3]


def test_what_is_too_small_is_one_tile() -> None:
    small = [tile(f"s.{number}", 4) for number in range(1000)]
    found = drawn(tile("large", 4_000_000), *small)
    assert [title for title, _, _ in found] == ["large: float32 [1000000]", "s: 1,000 tensors, 3.91 KiB"]
    assert found[1][1] == KINDS[0]

    mixed = drawn(tile("large", 4_000_000), *small, tile("s.other", 4, "int64"))
    assert mixed[1][1] == NONE, "several words"
    empty = drawn(tile("large", 4_000_000), *small, tile("s.other", 0, "int64"))
    assert empty[1][1] == KINDS[0]


def test_without_bytes_there_is_no_picture() -> None:
    assert treemap(tree([]), {}) == treemap(tree([tile("a", 0)]), COLOURS) == ""


EVIL = "</title><script>alert(1)</script>\"'&$x$\u202e\ud800\x1b\u0000😀"


def test_a_hundred_thousand_hostile_names_stay_small() -> None:
    tiles = [tile(f"{EVIL * 9}{number % 300}.{EVIL}{number}", 1 + number % 97) for number in range(100_000)]
    root = tree(tiles)
    picture, listed = treemap(root, COLOURS), outline(root)

    assert len(picture) < 125_000 and len(listed) < 120_000
    assert ElementTree.fromstring(picture) is not None
    for text in (picture, listed):
        assert "<script" not in text and "\u202e" not in text and "\x1b" not in text
        text.encode("utf-8")


@given(st.lists(st.tuples(st.text(max_size=8), st.integers(0, 1 << 50)), max_size=30))
def test_any_names(rows: list[tuple[str, int]]) -> None:
    root = tree([tile(name, nbytes) for name, nbytes in rows])

    picture = treemap(root, COLOURS)
    assert (picture != "") == any(nbytes for _, nbytes in rows)
    if picture:
        ElementTree.fromstring(picture)
    ElementTree.fromstring(f"<a>{outline(root)}</a>")


def test_a_name_of_nothing_but_dots_is_not_too_deep() -> None:
    root = tree([tile("." * 100_000, 4), tile("a." * 50_000, 4)])

    assert treemap(root, COLOURS) and outline(root)


def test_the_outline_says_what_is_left_out() -> None:
    root = tree([tile(f"m.{number}.w", 4) for number in range(100)])
    listed = outline(root)

    assert "<code>m</code> 100 tensors, 400 B" in listed and "<li>… 76 more</li>" in listed
    assert listed.count("<li>") == 26 and "<code>23.w</code> float32 [1]</li>" in listed
