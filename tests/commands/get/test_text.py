"""`ckpt get` of long lists of numbers: columns, each line behind the place of its first
number.
"""

from __future__ import annotations

from ckpt.commands.get.text import get_lines
from ckpt.model.nodes import Node


def shown(node: Node, width: int | None = None) -> list[str]:
    return ["".join(text for text, _ in line) for line in get_lines("x", node, width)]


def test_numbers_stand_in_columns() -> None:
    numbers: list[Node] = [i / 2 for i in range(32)]

    assert shown(numbers) == [
        "x  list, 32 items",
        "   0   0.0   0.5   1.0   1.5   2.0   2.5   3.0   3.5   4.0   4.5",
        "  10   5.0   5.5   6.0   6.5   7.0   7.5   8.0   8.5   9.0   9.5",
        "  20  10.0  10.5  11.0  11.5  12.0  12.5  13.0  13.5  14.0  14.5",
        "  30  15.0  15.5",
    ]


def test_they_fit_the_screen() -> None:
    numbers: list[Node] = [10**i for i in range(20)]

    for width in (30, 40, 80, 200):
        lines = shown(numbers, width)
        assert all(len(line) <= width for line in lines)
        assert " ".join(line[4:] for line in lines[1:]).split() == [
            str(10**i) for i in range(20)
        ]
    assert len(shown(numbers, 10)) == 22  # the head takes two lines


def test_a_long_list_is_bounded() -> None:
    lines = shown(list(range(5000)))
    assert lines[1].split() == ["0", *map(str, range(10))]
    assert lines[40].split() == ["390", *map(str, range(390, 400))] and len(lines) == 42
    assert lines[41] == "  … 4,600 more (--json prints all)"


def test_other_lists_have_a_line_for_each_item() -> None:
    texts: list[Node] = [f"text {i}" for i in range(20)]
    assert shown(texts)[1:3] == ["  0   'text 0'", "  1   'text 1'"]
    mixed: list[Node] = [*range(50), None]
    assert shown(mixed)[1] == "  0   0"
    flags: list[Node] = [True] * 50
    assert shown(flags)[1] == "  0   True"


def test_lists_in_a_tree_share_its_room() -> None:
    rows: list[Node] = [list(range(1000)) for _ in range(30)]

    lines = shown(rows)
    assert lines[1] == "  0   list, 1,000 items" and lines[2].startswith(
        "       0    0    1    2"
    )
    assert len(lines) < 210
