"""Lines and columns: what is broken at blanks, what stays whole, and which column gives
way.
"""

from __future__ import annotations

from unicodedata import category, east_asian_width

import pytest

from ckpt.surface.text.lines import (
    Column,
    break_line,
    cells,
    column_lines,
    fit_file_names,
    hanging_lines,
    narrow_columns,
    plain_text,
    ragged_lines,
    table_lines,
    whole,
    wrap_text,
)


def lines(text: list[list[tuple[str, str]]]) -> list[str]:
    return plain_text(text).splitlines()


def test_cells_are_those_of_the_characters() -> None:
    """Every character that has a name, also those whose table is loaded for
    them alone.
    """
    for code in (*range(0x20, 0xD800), *range(0xE000, 0x20000, 7)):
        if category(chr(code)) == "Cn":  # some tables call them wide, some do not
            continue
        assert cells(chr(code)) == (2 if east_asian_width(chr(code)) in "WF" else 1), (
            hex(code)
        )
    assert (cells("aé·"), cells("ᄀ键x")) == (3, 5)


def test_a_line_is_broken_at_blanks_with_its_styles() -> None:
    line = [("left out: ", ""), ("one two", "name"), ("   three", "dim")]

    assert break_line(line, None) == [line]
    first, second = break_line(line, 24)
    assert lines([first, second]) == ["left out: one two", "  three"]
    assert [part for part in (*first, *second) if part[1]] == [
        ("one", "name"),
        ("two", "name"),
        ("three", "dim"),
    ]
    assert lines(break_line(line, 25)) == ["left out: one two   three"]


def test_blanks_before_a_line_and_between_columns_stay() -> None:
    assert lines(break_line([("  a   b cc", "")], 7, 4)) == ["  a   b", "    cc"]


def test_what_is_whole_is_not_broken_at_its_blanks() -> None:
    path = whole("my runs/a b.pth")

    assert lines(break_line([(f"wrote {path}, 3 B", "")], 12)) == [
        "wrote",
        "  my runs/a b.pth,",
        "  3 B",
    ]
    assert lines(break_line([(f"wrote {path}", "")], None)) == ["wrote my runs/a b.pth"]
    assert lines(hanging_lines([], f"wrote {path}", 12, 2)) == [
        "wrote",
        "  my runs/a b.pth",
    ]
    assert wrap_text(path, 5) == wrap_text(path, None) == ["my runs/a b.pth"]


def test_a_word_that_is_longer_than_a_line_is_never_broken() -> None:
    assert lines(break_line([("a " + "b" * 30 + " c", "")], 10)) == [
        "a",
        "  " + "b" * 30,
        "  c",
    ]
    assert lines(break_line([("b" * 30, "")], 10)) == ["b" * 30]


def test_columns_that_give_way_share_the_room() -> None:
    rows = [["a" * 50, "b" * 50, "1"], ["a", "b", "2"]]
    one, two = Column("A", gives_way=True), Column("B", gives_way=True)
    both = lines(column_lines([one, two, Column("N")], rows, width=45))

    assert max(map(cells, both)) == 45
    assert both[1] == "…" + "a" * 19 + "  …" + "b" * 19 + "  1"
    assert lines(column_lines([one, Column("B"), Column("N")], rows, width=85))[
        1
    ].startswith("…" + "a" * 29 + "  " + "b" * 50)
    assert (
        lines(column_lines([one, two], [["a" * 70, "b"]]))[1] == "…" + "a" * 59 + "  b"
    )


def test_a_narrow_column_keeps_its_width_beside_a_wide_one() -> None:
    heads = [Column("A", gives_way=True), Column("B", gives_way=True)]

    assert (
        lines(column_lines(heads, [["aaaa", "b" * 50]], width=36))[1]
        == "aaaa  …" + "b" * 29
    )


RAGGED = [
    ["NAME", "TYPE", "BYTES", "WHERE"],
    ["a", "int", "1", ""],
    ["b", "a.very.long.type.of.object", "", "x y"],
    ["c", "str", "1000", "one, two, three, four, five"],
    ["d", "str", "7", "one, " + "w" * 30],
]


def test_ragged_columns_shorten_nothing() -> None:
    assert lines(ragged_lines(RAGGED, right=frozenset((2,)), width=40)) == [
        "NAME  TYPE  BYTES  WHERE",
        "a     int       1",
        "b     a.very.long.type.of.object  x y",
        "c     str    1000  one, two, three,",
        "                   four, five",
        "d     str       7",
        "    one, " + "w" * 30,
    ]


@pytest.mark.parametrize("width", [20, 24, 40, 60, 80, None])
def test_ragged_columns_fit_every_width(width: int | None) -> None:
    out = lines(ragged_lines(RAGGED, right=frozenset((2,)), width=width))
    words = {word for row in RAGGED[1:] for cell in row for word in cell.split()}

    assert words <= {word for line in out for word in line.split()}
    assert all(cells(line) <= (width or 99) or len(line.split()) == 1 for line in out)
    assert out[0].startswith("NAME  TYPE") and out[1].startswith("a ")
    assert len({line.index("1") for line in out if line.startswith("a ")}) == 1


def test_a_column_without_texts_is_left_out() -> None:
    assert lines(ragged_lines([["A", "B", "C"], ["1", "", "3"]], width=80)) == [
        "A  C",
        "1  3",
    ]
    assert lines(ragged_lines([["A", "B"]], width=80)) == ["A"]


def test_a_long_text_moves_its_own_row_alone_in_a_pipe() -> None:
    out = lines(ragged_lines([["A", "B"], ["a" * 205, "1"], ["a", "2"]]))

    assert out[1] == "a" * 205 + "  1"
    assert out[2] == "a" + " " * 61 + "2"


def test_a_narrow_screen_gives_up_columns_in_their_order() -> None:
    heads = [
        Column("NAME", least=4),
        Column("B", given_up=2),
        Column("C", given_up=1),
        Column("D", right=True),
    ]
    rows = [["a" * 9, "bbb", "ccc", "1"], ["a", "b", "c", "22"]]

    def names(width: int | None) -> str:
        kept, cut = narrow_columns(heads, rows, width)
        assert [len(row) for row in cut] == [len(kept)] * 2 and [
            row[-1] for row in cut
        ] == ["1", "22"]
        return " ".join(head.name for head in kept)

    assert names(None) == names(18) == "NAME B C D"
    assert names(17) == names(13) == "NAME B D"
    assert names(12) == names(1) == "NAME D"
    assert lines(column_lines([heads[0], heads[3]], [["a", "1"], ["b", "22"]])) == [
        "NAME   D",
        "a      1",
        "b     22",
    ]


# --- tables for other programs --------------------------------------------------------


@pytest.mark.parametrize(
    "table", ["jira", "orgtbl", "pretty", "psql", "presto", "github", "pipe"]
)
def test_a_name_does_not_end_its_cell(table: str) -> None:
    """A bar in a name would begin another cell."""
    rows = [
        next(
            line
            for line in table_lines(
                [["name", "mean"], [name, "0.5"]], tsv=False, table=table
            )
            if "0.5" in line
        )
        for name in ("a|b", "ab")
    ]
    assert "a\\|b" in rows[0] and rows[0].count("|") == rows[1].count("|") + 1


def test_a_name_is_no_markup() -> None:
    rows = [["name"], ["<b>x</b>"]]
    for table, kept in (("unsafehtml", False), ("html", False), ("plain", True)):
        text = "\n".join(table_lines(rows, tsv=False, table=table))
        assert ("<b>" in text) is kept, table
    assert "\\_" in "\n".join(
        table_lines([["name"], ["a_b"]], tsv=False, table="latex_raw")
    )


@pytest.mark.parametrize(
    "name", ["*a*", "http://x", "@who", "www.example.org", "a`b", "_a_ b", "#1"]
)
def test_a_name_in_markdown_is_code_where_it_holds_markup(name: str) -> None:
    for table in ("github", "pipe"):
        row = [*table_lines([["name"], [name]], tsv=False, table=table)][-1]
        fence = "``" if "`" in name else "`"
        assert fence in row and name in row
    assert (
        "`"
        not in [*table_lines([["name"], ["layer.0.w_b"]], tsv=False, table="github")][
            -1
        ]
    )


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (
            ["run-epoch-1.pth", "run-epoch-2.pth"],
            15,
            ["run-epoch-1.pth", "run-epoch-2.pth"],
        ),
        (["run-epoch-1.pth", "run-epoch-2.pth"], 14, ["epoch-1", "epoch-2"]),
        (["a/folder/of/x.pth", "y.pth"], 8, ["…/x.pth", "y.pth"]),
        (["abcdefghij", "klmnopqrst"], 5, ["ab…ij", "kl…st"]),
        (["a1zzzzzb-x.pth", "a2zzzzzb.pth"], 5, ["a1…th", "a2…th"]),
        (["ab3cdxyz", "ab4cdxyz"], 4, ["ab3…", "ab4…"]),
        (["ab.c1ef", "ab.c2ef.x"], 3, ["…ef", "…ef.x"]),
    ],
)
def test_names_of_files_keep_what_tells_them_apart(
    names: list[str], width: int, expected: list[str]
) -> None:
    shown = fit_file_names(names, width)

    assert len(set(shown)) == len(names)
    if expected[0] != "…ef":
        assert shown == expected


def test_names_that_no_cut_tells_apart_stay_whole() -> None:
    names = [
        f"{begin}{'x' * 20}{middle}{'y' * 20}{end}"
        for begin in "ab"
        for middle in "cd"
        for end in "ef"
    ]

    assert fit_file_names(names, 12) == names


def test_shortened_names_keep_the_part_that_tells_them_apart() -> None:
    start = "conditioner.embedders.0.transformer"
    end = "encoder.layers.0.self_attn.k_proj"
    names = [
        f"{start}.{tower}_model.{end}.{leaf}"
        for tower in ("text", "vision")
        for leaf in ("weight", "bias")
    ]
    heads = [Column("NAME", gives_way=True), Column("N", right=True)]
    rows = [[name, "1"] for name in names]
    shown = [line.split()[0] for line in lines(column_lines(heads, rows, width=53))[1:]]
    assert shown == [
        "…text_model…layers.0.self_attn.k_proj.weight",
        "…text_model.encoder.layers.0.self_attn.k_proj.bias",
        "…vision_model…layers.0.self_attn.k_proj.weight",
        "…vision_model…layers.0.self_attn.k_proj.bias",
    ]
    for width in range(24, 90):
        table = lines(column_lines(heads, rows, width=width))[1:]
        assert len({line.split()[0] for line in table}) == 4
        assert all(cells(line) <= width for line in table)


def test_names_without_dots_keep_all_words_in_which_they_differ() -> None:
    """As kohya writes them: two numbers in the middle, and equal ends."""
    begin, end = "lora_unet_down_blocks", "transformer_blocks_0_ff_net_0_proj"
    names = [f"{begin}_{i}_attentions_{j}_{end}" for i in range(2) for j in range(2)]
    heads = [Column("NAME", gives_way=True), Column("N")]

    for width in range(24, 76):
        rows = [[name, "1"] for name in names]
        shown = lines(column_lines(heads, rows, width=width))[1:]
        assert len({row.split()[0] for row in shown}) == len(names), width
