"""The functions of the script of a page, in node: numbers, names, groups, the cells of
a series. No browser is needed.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import node
import pytest
import torch
from node import call, calls
from process import SAMPLES
from reports import EVIL, compared, documents

import ckpt
from ckpt.ext.page.views import pack_rows, page_payload
from ckpt.model.text import and_more, count_text, show, size_text

pytestmark = pytest.mark.skipif(node.program() is None, reason="there is no node")

ARROW = "→"


@pytest.fixture(autouse=True, scope="module")
def node_ends() -> Iterator[None]:
    """End node after the last test of this module."""
    yield
    node.close()


# --- texts and numbers ----------------------------------------------------------------


def test_names_are_escaped_as_in_the_terminal() -> None:
    pick = random.Random(7)
    chars = (
        string.printable
        + "\\\x00\x7f\x9b\u200b\u202e\u2028\ufeff\ue000é日🙂\U000e0041\U000f0000"
    )
    texts = ["".join(pick.choices(chars, k=pick.randrange(12))) for _ in range(400)]
    texts += [*EVIL, *map(chr, range(0x250)), *map(chr, range(0x2000, 0x2070))]

    assert calls("show", [[text] for text in texts]) == [show(text) for text in texts]


def test_long_names_are_cut() -> None:
    rows = [["a" * 200], ["a" * 201], ["abcdef", 4], ["abcd", 4]]
    assert calls("show", rows) == ["a" * 200, "a" * 199 + "…", "abc…", "abcd"]
    assert calls("shortened", [["model.layers.weight", 8], ["weight", 6]]) == [
        "….weight",
        "weight",
    ]
    assert call("sentence", "a\u202eb\\x41") == "a\\u202eb\\x41"


TIES = [
    1152,
    1408,
    4_325_376,
    6125,
    6375,
    12_250,
    12_350,
    100_500,
    101_500,
    12_928,
    13_056,
    103_936,
]
"""Sizes and counts between two numbers of three digits: Python takes the even one,
JavaScript the larger one.
"""
EDGES = [
    0,
    1,
    9,
    999,
    1000,
    1023,
    1024,
    9_990,
    9_995,
    10_000,
    99_950,
    999_499,
    999_500,
    1_023_488,
    1 << 20,
]


@pytest.mark.parametrize(
    ("name", "text"), [("size_text", size_text), ("count_text", count_text)]
)
def test_sizes_and_counts_are_those_of_the_terminal(name: str, text: Any) -> None:
    pick = random.Random(3)
    sizes = EDGES + TIES + [int(10 ** pick.uniform(0, 15)) for _ in range(300)]

    assert calls(name, [[size] for size in sizes]) == [text(size) for size in sizes]
    assert call(name, None) == ""
    assert call(name, 287.6371750227396) == text(288), (
        "a legend has numbers between two sizes"
    )


def test_numbers_have_three_digits() -> None:
    pick = random.Random(4)
    values = [pick.choice((-1, 1)) * 10 ** pick.uniform(-30, 30) for _ in range(500)]
    values += [
        number / 2**power for number in (-5, 9, 101, 2047, 1025) for power in range(12)
    ]  # some are ties
    values += [1235.0, 1225.0, 122_500.0, 123_500.0, -1.125]

    for value, text in zip(
        values, calls("number_text", [[value] for value in values]), strict=True
    ):
        assert float(text) == float(f"{value:.3g}")
        assert ("e" in text) == (not 1e-4 <= abs(value) < 1e5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (-0.0, "0"),
        ("nan", "nan"),
        ("in\x1bf", "in\\x1bf"),
        (0.1, "0.1"),
        (1.5e-5, "1.5e-5"),
        (1e-5, "1e-5"),
        (0.0001, "0.0001"),
        (99_999, "100000"),
        (100_000, "1e+5"),
        (123_456, "1.23e+5"),
        (-1e300, "-1e+300"),
    ],
)
def test_a_number_as_text(value: Any, text: str) -> None:
    assert call("number_text", value) == text


def test_small_words() -> None:
    assert calls("plural", [[1, "file"], [0, "file"], [1200, "file"]]) == [
        "1 file",
        "0 files",
        "1,200 files",
    ]
    shares = [0, 1e-9, 0.0014, 0.5, 0.99949, 0.9999, 1]
    assert calls("percent", [[share] for share in shares]) == [
        "0 %", "0.1 %", "0.1 %", "50.0 %", "99.9 %", "99.9 %", "100 %",
    ]  # fmt: skip
    names = list("abcde")
    rows = [[names, count] for count in (2, 4, 5, 6)]
    assert calls("and_more", rows) == [and_more(names, count) for count in (2, 4, 5, 6)]
    assert calls("shape_text", [[[]], [[3, 4]], [None]]) == ["[]", "[3, 4]", ""]
    assert calls("elements_of", [[[]], [[3, 4]], [None], [[0, 5]]]) == [1, 12, 0, 0]
    assert calls("base", [["a/b.pth"], ["a/b/"], ["/"]]) == ["b.pth", "b", "/"]


@pytest.mark.parametrize(
    ("name", "parameter", "text"),
    [
        (
            "optimizer.state.54.exp_avg",
            "model.a$1.w",
            "optimizer.state.model.a$1.w.exp_avg",
        ),
        ("state.0.step", "w", "state.w.step"),
        ("state.0.step", None, "state.0.step"),
        ("opt.state.a.weight.step", "a.weight", "opt.state.a.weight.step"),
        ("mystate.0.step", "w", "mystate.0.step"),
    ],
)
def test_state_bears_the_name_of_its_parameter(
    name: str, parameter: str | None, text: str
) -> None:
    assert call("shown_name", name, parameter) == text


# --- rows, trees and groups -----------------------------------------------------------


def test_columns_become_the_rows_that_they_were_made_of() -> None:
    pick = random.Random(5)
    rows = [
        {
            "name": f"layer.{number}",
            "dtype": pick.choice(["float32", "bfloat16"]),
            "same": 3,
            "shape": pick.choice([[2, 3], [4], None]),
        }
        for number in range(50)
    ]

    table = json.loads(json.dumps(pack_rows(rows)))
    assert {key for column in table["columns"].values() for key in column} == {
        "all",
        "of",
        "at",
        "is",
    }
    assert call("rows_of", table) == rows
    assert (
        call("rows_of", None) == []
        and call("rows_of", json.loads(json.dumps(pack_rows([])))) == []
    )


TREE = """(names) => {
  const plain = (node) => node.row
    ? node.label : { [node.label]: parts_of(node).map(plain), tensors: node.tensors, bytes: node.bytes, numel: node.numel };
  return plain(tree_of(names.map(([name, bytes]) => ({ name, bytes, numel: bytes / 4 }))));
}"""


def branch(label: str, nbytes: int, *parts: Any) -> dict[str, Any]:
    """A node of the tree with the sums of `count` tensors below it."""
    count = sum(1 if isinstance(part, str) else part["tensors"] for part in parts)
    return {label: list(parts), "tensors": count, "bytes": nbytes, "numel": nbytes // 4}


def test_names_are_a_tree_with_sums() -> None:
    names = [["a.b.w", 4], ["a.b.bias", 8], ["a.c.w", 16], ["head", 32]]

    inner = branch("a", 28, branch("b", 12, "w", "bias"), branch("c", 16, "w"))
    assert call(TREE, names) == branch("", 60, inner, "head")


def test_a_module_with_one_module_inside_is_joined_with_it() -> None:
    names = [
        ["model.module.net.fc.w", 4],
        ["model.module.net.fc.bias", 4],
        ["model.module.net.x.w", 4],
    ]

    joined = branch(
        "model.module.net", 12, branch("fc", 8, "w", "bias"), branch("x", 4, "w")
    )
    assert call(TREE, names) == branch("", 12, joined)


def test_odd_names_stay_apart_in_a_tree() -> None:
    names = [
        ["a", 4],
        ["a", 4],
        ["a.b", 4],
        ["a..b", 4],
        ["__proto__", 4],
        ["constructor.w", 4],
    ]
    parts = [
        "a",
        "a",
        branch("a", 8, "b", branch("", 4, "b")),
        "__proto__",
        branch("constructor", 4, "w"),
    ]

    assert call(TREE, names) == branch("", 24, *parts)


def test_what_the_rows_below_a_node_agree_on() -> None:
    see = """(rows) => {
      const root = tree_of(rows);
      return [common(root, (row) => row.a), common(root, (row) => row.b), largest(root, (row) => row.b), largest(root, (row) => row.c)];
    }"""
    rows = [
        {"name": "x.w", "a": 1, "b": -2, "c": "inf"},
        {"name": "y.w", "a": 1, "b": -1, "c": None},
    ]

    assert call(see, rows) == [1, None, -1, None]
    assert call("(values) => [largest_of(values), smallest_of(values)]", [3, 1, 2]) == [
        3,
        1,
    ]
    assert call("(values) => [largest_of(values), smallest_of(values)]", []) == [
        0,
        None,
    ]


GROUPS = (
    "(names, depth) => grouped(names.map((name) => ({ name })), depth).map((group) => "
    "[group.name, group.rows.length])"
)
NAMES = ["a.0.w", "a.0.bias", "a.1.w", "b.w", "b.bias", "c"]


@pytest.mark.parametrize(
    ("depth", "groups"),
    [
        (0, [[name, 1] for name in NAMES]),
        (1, [["a", 3], ["b", 2], ["c", 1]]),
        (2, [["a.0", 2], ["a.1", 1], ["b", 2], ["c", 1]]),
        (9, [["a.0", 2], ["a.1", 1], ["b", 2], ["c", 1]]),
    ],
)
def test_names_in_groups(depth: int, groups: list[Any]) -> None:
    assert call(GROUPS, NAMES, depth) == groups


def test_equal_names_are_rows_of_their_own() -> None:
    assert call(GROUPS, ["w", "w"], 0) == [["w", 1], ["w", 1]]
    assert call(GROUPS, ["w", "w"], 1) == [["w", 2]]


DEPTHS = "(names, most) => depths(names.map((name) => ({ name })), most)"


@pytest.mark.parametrize(
    ("names", "most", "options", "chosen"),
    [
        (NAMES, 48, [[1, "3"], [2, "4"], [0, "6 tensors"]], 0),
        (NAMES, 5, [[1, "3"], [2, "4"], [0, "6 tensors"]], 2),
        (NAMES, 4, [[1, "3"], [2, "4"], [0, "6 tensors"]], 2),
        (NAMES, 3, [[1, "3"], [2, "4"], [0, "6 tensors"]], 1),
        (NAMES, 2, [[1, "3"], [2, "4"], [0, "6 tensors"]], 1),
        (["a", "b"], 48, [[1, "2"]], 1),
        (["a.w", "a.b"], 48, [[1, "1"], [0, "2 tensors"]], 0),
        ([], 48, [[0, "0 tensors"]], 0),
        (
            [".".join("abcdefghijklmnop") + f".{number}.w" for number in range(2)],
            48,
            [[1, "1"], [0, "2 tensors"]],
            0,
        ),
    ],
)
def test_the_deepest_groups_that_have_room(
    names: list[str], most: int, options: list[Any], chosen: int
) -> None:
    assert call(DEPTHS, names, most) == {"options": options, "chosen": chosen}


LAYERS = [
    "stem.w",
    *(f"net.blocks.{at}.{part}.w" for at in range(3) for part in ("a.0", "b")),
    "head",
]


def test_layers_are_folded_where_there_is_room() -> None:
    see = "(names, most) => folded(names.map((name) => ({ name })), most)"

    assert call("(names) => layer_depth(names.map((name) => ({ name })))", LAYERS) == 3
    assert (
        call(see, LAYERS, 48)["chosen"] == 3 and call(DEPTHS, LAYERS, 48)["chosen"] != 3
    )
    assert call(see, LAYERS, 4)["chosen"] == call(DEPTHS, LAYERS, 4)["chosen"]
    plain = ["a.0", "a.1", "b.w", "c.0"]  # a number at the end is a tensor and no layer
    assert (
        call(see, plain, 48) == call(DEPTHS, plain, 48) and call("layer_depth", []) == 0
    )
    assert call("(names) => layer_depth(names.map((name) => ({ name })))", plain) == 0


def test_a_sort_is_natural_and_puts_what_is_missing_last() -> None:
    sort = "(values, up) => [...values].sort((one, two) => compared(one, two, up))"
    values = ["layer.10", "layer.2", None, "layer.1"]

    assert call(sort, values, True) == ["layer.1", "layer.2", "layer.10", None]
    assert call(sort, values, False) == ["layer.10", "layer.2", "layer.1", None]
    assert call(sort, [10, 9, None, 100.5], True) == [9, 10, 100.5, None]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["A.weight", "a.bias", "b.(w)"]),
        ("  ", ["A.weight", "a.bias", "b.(w)"]),
        ("a.", ["A.weight", "a.bias"]),
        ("W a", ["A.weight"]),
        ("a*i", ["A.weight", "a.bias"]),
        ("a*s", ["a.bias"]),
        ("b.(*)", ["b.(w)"]),
        ("none", []),
    ],
)
def test_a_filter_takes_words_in_any_order(text: str, names: list[str]) -> None:
    see = (
        "(names, text) => matching(names.map((name) => ({ name })), text, (row) => "
        "row.name).map((row) => row.name)"
    )
    assert call(see, ["A.weight", "a.bias", "b.(w)"], text) == names


def test_rows_stand_below_their_groups_in_natural_order() -> None:
    see = (
        "(rows) => grouped_by(rows, (row) => row.in).map((group) => [group.name, "
        "group.rows.map((row) => row.at)])"
    )
    rows = [
        {"in": name, "at": at}
        for at, name in enumerate(["b10", "__proto__", "b2", "b10"])
    ]
    assert call(see, rows) == [["__proto__", [1]], ["b2", [2]], ["b10", [0, 3]]]


def test_a_name_breaks_after_dots_and_within_what_is_no_word() -> None:
    words = [
        ["model.layers.0.w"],
        ["runs/a.pth"],
        ["a..b"],
        [""],
        ["x" * 50],
        ["🙂" * 25],
        ["Loss-2.71.pth"],
        ["query_key_value_projection.w"],
        ["decoupled_weight_decay"],
    ]
    assert calls("pieces_of", words) == [
        ["model.", "layers.", "0.", "w"], ["runs/", "a.", "pth"], ["a..", "b"], [],
        ["x" * 24, "x" * 24, "x" * 2], ["🙂" * 24, "🙂"], ["Loss-2.71.", "pth"],
        ["query_key_value_", "projection.", "w"], ["decoupled_weight_decay"],
    ]  # fmt: skip
    assert calls(
        "(text) => pieces_of(text).join('')", [[text] for text in EVIL]
    ) == list(EVIL)
    see = "(text) => name_of(text).children.map((each) => each.tag + each.textContent)"
    assert call(see, "a.b") == ["#texta.", "wbr", "#textb"]


def test_an_empty_name_can_be_seen() -> None:
    assert (
        call("(text) => name_of(text).textContent", "") == '""'
        and call("shortened", "", 8) == '""'
    )
    assert (
        call(
            "() => tile_name(tree_of([{ name: '' }, { name: 'a' }]).children.get('='))"
        )
        == '""'
    )


def test_a_column_that_says_the_same_in_all_rows_is_told_once() -> None:
    columns = (
        "(rows) => telling([{ key: (row) => row.a, folds: true }, { key: (row) => "
        "row.b }, false], rows).length"
    )
    assert calls(columns, [[[{"a": 1, "b": 1}] * 2], [[{"a": 1, "b": 1}]]]) == [1, 2]
    assert call(columns, [{"a": 1, "b": 1}, {"a": 2, "b": 1}]) == 2


# --- the strip of layers --------------------------------------------------------------

STRETCHES = """(names, most) => stretches_of(modules_of(names.map((name) => ({ name })), most)).map(
  (stretch) => [stretch.title, stretch.blocks.map((block) => [block.label, block.cells.map((cell) => cell.name)])])"""


def test_the_modules_of_a_layer_stand_together() -> None:
    blocks = [
        [str(at), [f"net.blocks.{at}.a.0", f"net.blocks.{at}.b"]] for at in range(3)
    ]
    assert call(STRETCHES, LAYERS, 480) == [
        ["stem", [["", ["stem"]]]], ["net.blocks", blocks], ["head", [["", ["head"]]]],
    ]  # fmt: skip
    blocks = [[str(at), [f"net.blocks.{at}"]] for at in range(3)]
    assert call(STRETCHES, LAYERS, 7)[1] == ["net.blocks", blocks]
    assert call(STRETCHES, ["a.w", "b.w", "m.x.w", "m.y.w"], 480) == [
        ["a, b", [["", ["a", "b"]]]], ["m", [["", ["m.x", "m.y"]]]],
    ]  # fmt: skip
    assert call(STRETCHES, ["0.w", "2.w"], 480) == [["", [["0", ["0"]], ["2", ["2"]]]]]
    assert (
        len(
            call(
                "(names) => modules_of(names.map((name) => ({ name })), 2)",
                ["a.w", "b.w", "c.w"],
            )
        )
        == 3
    )


def row(name: str, **more: Any) -> dict[str, Any]:
    """A tensor of a checkpoint, with the numbers of its values where they are known."""
    return {
        "name": name,
        "role": "parameter",
        "dtype": "float32",
        "bytes": 16,
        "numel": 4,
        **more,
    }


def test_a_module_is_what_its_tensors_are_together() -> None:
    rows = [
        row("m.w", rms=3.0, zeros=1, nan=2, inf=0),
        row(
            "m.b", rms=1.0, zeros=0, nan=0, inf=1, numel=12, bytes=48, dtype="bfloat16"
        ),
        row("m.n", rms=None, zeros=None, role="odd"),
    ]
    assert call("measured_module", {"name": "m", "rows": rows}) == {
        "name": "m", "tensors": 3, "bytes": 80, "dtype": "bfloat16", "role": "parameter",
        "rms": pytest.approx(math.sqrt((9 * 4 + 12) / 16)), "zeros": 1 / 16, "bad": 3,
    }  # fmt: skip
    plain = call("measured_module", {"name": "m", "rows": [row("m.n", role="odd")]})
    assert (plain["rms"], plain["zeros"], plain["bad"], plain["role"]) == (
        None,
        None,
        0,
        "other",
    )
    assert call("module_text", plain) == "m: 1 tensor, 16 B, float32"


def cell(**more: Any) -> dict[str, Any]:
    """A module of the strip."""
    plain = {
        "name": "m",
        "tensors": 1,
        "bytes": 4,
        "dtype": "float32",
        "role": "parameter",
    }
    return {**plain, "rms": None, "zeros": None, "bad": 0, **more}


def test_a_strip_is_coloured_by_what_is_known_and_differs() -> None:
    keys = "(cells) => strip_modes(cells).map(([key]) => key)"
    assert call(keys, [cell(), cell()]) == ["bytes"]
    assert call(keys, [cell(), cell(dtype="bfloat16", role="buffer")]) == [
        "dtype",
        "bytes",
        "role",
    ]
    assert call(keys, [cell(rms=1.0), cell(bytes=0)]) == [
        "rms",
        "zeros",
        "bad",
        "bytes",
    ]
    assert call(keys, [cell(bytes=0)]) == []


GREYS = {
    "ramp": ["#000000", "#646464", "#c8c8c8"], "none": "none", "bad": "bad", "kinds": ["k1", "k2"],
    "roles": {"parameter": "p", "buffer": "b"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "cells", "colours", "legend"),
    [
        (
            "rms",
            [
                cell(rms=0.1),
                cell(rms=1),
                cell(rms=10),
                cell(rms=0),
                cell(),
                cell(rms=5, bad=1),
            ],
            [
                "rgb(0,0,0)",
                "rgb(100,100,100)",
                "rgb(200,200,200)",
                "none",
                "none",
                "bad",
            ],
            [
                "0.1, the smallest",
                "1",
                "10, the largest",
                "zero, or no number",
                "NaN or Inf",
            ],
        ),
        ("bytes", [cell(), cell()], ["rgb(100,100,100)"] * 2, ["4 B"]),
        (
            "zeros",
            [cell(zeros=0), cell(zeros=1), cell()],
            ["rgb(0,0,0)", "rgb(200,200,200)", "none"],
            ["0 %, no zeros", "50.0 %", "100 %, all zero"],
        ),
        ("bad", [cell(bad=2), cell()], ["bad", "#000000"], ["none", "NaN or Inf"]),
        ("bad", [cell()], ["#000000"], ["none"]),
        ("role", [cell(role="buffer"), cell()], ["b", "p"], ["buffer", "parameter"]),
        (
            "dtype",
            [cell(dtype=each) for each in "abca"],
            ["k1", "k2", "k2", "k1"],
            ["a", "b"],
        ),
    ],
)
def test_the_colours_of_a_strip(
    mode: str, cells: list[Any], colours: list[str], legend: list[str]
) -> None:
    found = call("strip_colours", cells, mode, GREYS)
    assert (
        found["colours"] == colours and [text for _, text in found["legend"]] == legend
    )


def test_a_strip_is_of_the_model() -> None:
    see = (
        "(rows) => { const made = strip_part(rows, null); return made && "
        "made.children[1].textContent; }"
    )
    optimizer = [row(f"o.{at}.x", role="optimizer") for at in range(3)]

    assert call(see, [row("a.w"), *optimizer]) is None
    assert (
        call(see, optimizer) == "One cell for each module, in the order of the model."
    )
    many = [row(f"m{at}") for at in range(700)]
    assert "The first 480 of 700." in call(see, many)


# --- the map of modules ---------------------------------------------------------------


def test_few_tensors_have_no_map_or_a_low_one() -> None:
    assert calls("map_height", [[count] for count in (0, 3, 4, 12, 13, 40, 41, 10_000)]) == [
        0, 0, 160, 160, 280, 280, 460, 460,
    ]  # fmt: skip


def test_a_number_is_named_with_what_it_is_a_part_of() -> None:
    see = (
        "(names, path) => { let at = tree_of(names.map((name) => ({ name }))); for "
        "(const key of path) at = at.children.get(key); return tile_name(at); }"
    )
    names = ["net.layers.0.w", "net.layers.1.w", "1.w", "1.b"]
    assert call(see, names, ["net", "0"]) == "layers.0"
    assert (
        call(see, names, ["1"]) == "1" and call(see, names, ["net", "1", "=w"]) == "w"
    )


@pytest.mark.parametrize(
    ("name", "width", "height", "text"),
    [
        ("weight", 54, 20, "weight"),
        ("weight", 54, 15, ""),
        ("weight", 34, 40, ""),
        ("blocks.17", 18, 20, "17"),
        ("blocks.17", 12, 20, ""),
        ("exp_avg_sq", 58, 20, "…_avg_sq"),
        ("a.", 11, 20, ""),
        ("0.cross_attention_resampler", 60, 20, "0…ampler"),
        ("blocks.12.cross_attention_resampler", 60, 20, "12…mpler"),
    ],
)
def test_a_tile_says_what_of_its_name_there_is_room_for(
    name: str, width: float, height: float, text: str
) -> None:
    assert call("tile_text", name, width, height) == text


def test_a_module_has_the_colour_of_most_of_its_bytes() -> None:
    see = """(rows, key, palette, is_role) => {
      const painter = by_word(rows, (row) => row[key], is_role)(palette);
      return [painter.of(tree_of(rows)), painter.legend];
    }"""
    rows = [
        row("m.w", bytes=9),
        row("m.n", role="buffer", dtype="int64", bytes=80),
        row("m.b", bytes=8),
    ]
    assert call(see, rows, "role", GREYS, True) == [
        "b",
        [["b", "buffer"], ["p", "parameter"]],
    ]
    assert call(see, rows, "dtype", GREYS, False)[0] == "k1"
    shades = calls("shaded", [["#000000", place, "#646464"] for place in range(4)])
    assert shades[0] == shades[3] == "#000000" and len(set(shades)) == 3


@pytest.mark.parametrize(
    "role", ["parameter", "unknown", "buffer", "optimizer", "other", "odd"]
)
def test_each_role_has_a_colour_of_its_own_on_all_pages(role: str) -> None:
    key = call("role_key", {"role": role})
    style = (node.ASSETS / "report.css").read_text(encoding="utf-8")
    colours = re.findall(r"--role-(\w+): (#[0-9a-f]{6});", style)

    assert key == ("other" if role == "odd" else role)
    assert (
        len(colours) == 15
        and len({name for name, _ in colours}) == 5
        and key in dict(colours)
    )
    assert (
        len(set(dict(colours[:5]).values()))
        == len(set(dict(colours[5:10]).values()))
        == 5
    )
    assert colours[5:10] == colours[10:], "as chosen, and as the user prefers"


# --- findings and folders -------------------------------------------------------------


def finding(code: str, level: str) -> dict[str, Any]:
    """A finding of a document."""
    plain = {
        "message": f"about {code}.",
        "consequence": None,
        "hint": None,
        "tensors": [],
        "where": [],
    }
    return {"code": code, "level": level, **plain}


def test_findings_stand_by_level() -> None:
    levels = ["info", "warning", "odd", "error", "warning"]
    see = "(findings) => by_level(findings).map((each) => each.code)"
    assert call(
        see, [finding(str(at), level) for at, level in enumerate(levels)]
    ) == list("31402")
    see = (
        "(findings, apart) => findings_part(findings, "
        "apart)?.children.at(-1).textContent ?? null"
    )
    found = [finding("b", "info"), finding("nan", "warning"), finding("a", "error")]
    assert call(see, found, ["nan"]) == "errora about a.infob about b."
    assert call(see, found[1:2], ["nan", "inf"]) is None


@pytest.mark.parametrize(
    ("loads", "safe"),
    [
        ("weights_only", True),
        ("safetensors", True),
        ("gguf", True),
        ("DCP in safetensors", True),
        ("plain pickle", False),
        ("plain pickle (lzma)", False),
        ("joblib pickle", False),
        ("DCP", False),
        ("DeepSpeed ZeRO-2", False),
        ("not as it is", False),
        ("weights_only=False", False),
        ("RUNS CODE", False),
        ("needs mmcv", False),
        ("torch.jit", False),
        ("torch.export", False),
        ("not by torch", False),
        ("unreadable", False),
        ("", False),
        (None, False),
    ],
)
def test_what_is_safe_to_load(loads: str | None, safe: bool) -> None:
    assert call("is_safe", {"loads": loads}) is safe


def file(path: str, loads: str = "weights_only", **more: Any) -> dict[str, Any]:
    """A row of a folder."""
    plain = {
        "format": "torch-zip",
        "bytes": 1024,
        "parameters": 9,
        "dtypes": [],
        "devices": [],
    }
    return {"path": path, "loads": loads, "findings": [], **plain, **more}


def test_a_folder_says_what_is_safe_runs_code_is_unreadable_and_was_found() -> None:
    files = [
        file("a"),
        file("b", "RUNS CODE", findings=[finding("x", "info"), finding("y", "error")]),
    ]
    assert call("folder_counts", files, [1, 2]) == [
        [1, "safe to load", "good"], [1, "runs code", "error"], [2, "unreadable", "error"],
        [2, "findings", "error"],
    ]  # fmt: skip
    asked = [
        file("c", "needs mmcv"),
        file("d", "weights_only=False"),
        file("e", "not by torch"),
        file("f", "plain pickle"),
    ]
    assert call("folder_counts", asked, [])[:3] == [
        [0, "safe to load", "good"], [3, "safe only if trusted", "warning"], [0, "run code", ""],
    ]  # fmt: skip
    assert call("folder_counts", files[:1], []) == [
        [1, "safe to load", "good"], [0, "run code", ""], [0, "unreadable", ""], [0, "findings", ""],
    ]  # fmt: skip


def test_danger_is_counted_in_one_line() -> None:
    see = "(files, count) => runs_code(files, count)?.textContent ?? null"
    files = [file(name) for name in "abcdef"]
    assert (
        call(see, files[:1], 12)
        == "DANGER1 of 12 files runs code when loaded: do not load ita"
    )
    assert (
        call(see, files, 12)
        == "DANGER6 of 12 files run code when loaded: do not load themabcdand 2 more"
    )
    assert call(see, [], 12) is None


def test_files_stand_below_their_folders() -> None:
    paths = ["a.pth", "x/a.pth", "/a.pth", "x/y/", "hf://a/b/c.bin"]
    assert calls("folder_of", [[path] for path in paths]) == [
        ".",
        "x",
        "/",
        "x/y",
        "hf://a/b",
    ]
    see = "(files) => file_table(files).textContent"
    text = call(
        see,
        [
            file("x/b.pth", counters={"epoch": 7, "step": 3000}),
            file("x/a.pth"),
            file("w/c.pth"),
        ],
    )
    heads = [
        "w 1 file, 1.00 KiB",
        "c.pth",
        "x 2 files, 2.00 KiB",
        "b.pth",
        "epoch 7, step 3,000",
        "a.pth",
    ]
    places = [text.find(head) for head in heads]
    assert -1 not in places and places == sorted(places) and "Records" in text
    text = call(see, [file("x/b.pth"), file("x/a.pth")])
    assert "2 files" not in text and "Records" not in text


# --- colours --------------------------------------------------------------------------


def test_what_all_files_say_stands_above_their_table() -> None:
    file = {"path": "a.pth", "format": "torch-zip", "bytes": 1, "parameters": 1, "dtypes": ["float32"],
            "devices": [], "loads": "weights_only", "counters": None, "findings": []}  # fmt: skip
    see = "(files) => file_table(files).textContent"
    rows = [file, {**file, "path": "b.pth"}, {**file, "path": "c.pth"}]
    assert call(see, rows[:2]).startswith(
        "Both: torch-zip · float32 · weights_onlyFileSizeParametersa.pth"
    )
    assert call(see, [*rows[:2], {**rows[2], "loads": "RUNS CODE"}]).startswith(
        "All: torch-zip · float32File"
    )
    assert call(see, rows[:1]).startswith(
        "FileFormatSizeParametersdtypeDeviceLoadsa.pth"
    )
    for number, unknown, shown in ((6, 1, "7?"), (0, 4, "4?"), (2000, 1, "2.00 K")):
        row = {**file, "parameters": number, "unknown": unknown}
        assert f"torch-zip1 B{shown}float32" in call(see, [row])


@pytest.mark.parametrize(
    ("span", "most", "step"),
    [
        (0.63, 8, 0.1),
        (6.5, 8, 1),
        (149, 4, 50),
        (4, 4, 1),
        (7000, 8, 1000),
        (0.3, 3, 0.1),
    ],
)
def test_the_step_of_an_axis_is_round(span: float, most: int, step: float) -> None:
    assert call("nice_step", span, most) == pytest.approx(step)


def test_a_ramp_goes_through_its_colours() -> None:
    colours = ["#000000", "#646464", "#c8c8c8"]
    shares = [-1, 0, 0.25, 0.5, 0.75, 1, 2]

    found = calls("ramp", [[colours, share] for share in shares])
    assert found == [
        f"rgb({grey},{grey},{grey})" for grey in (0, 0, 50, 100, 150, 200, 200)
    ]
    colours = [
        f"rgb({grey},{grey},{grey})" for grey in (117, 118)
    ]  # of luminance 0.178 and 0.181
    assert calls("ink", [[colour] for colour in colours]) == ["#ffffff", "#000000"]
    assert calls("ink", [["#ffffff"], ["#000000"], ["rgb(255,255,0)"], ["#0000ff"]]) == [
        "#000000", "#ffffff", "#000000", "#ffffff",
    ]  # fmt: skip


def test_a_histogram_is_scaled_to_its_largest_count() -> None:
    see = "(found) => histogram_of(found).children[0].children[0].d"
    path = call(see, {"low": -1, "high": 1, "counts": [0, 3, 9, 900]})
    assert path.split("M")[1:] == [
        "0.00 32v-0.00h32.00v0.00z", "32.00 32v-1.00h32.00v1.00z",
        "64.00 32v-1.00h32.00v1.00z", "96.00 32v-30.00h32.00v30.00z",
    ]  # fmt: skip
    assert (
        call(
            "(found) => histogram_of(found).textContent",
            {"low": -1, "high": 0.123456, "counts": [1]},
        )
        == "-1 … 0.123"
    )
    assert calls("histogram_of", [[None], [{"counts": []}]]) == ["", ""]


# --- statistics -----------------------------------------------------------------------


def test_many_tensors_become_the_statistics_of_their_modules() -> None:
    pick = random.Random(6)
    values = {
        f"m.{number}.w": [pick.gauss(number, 1 + number) for _ in range(5 + number)]
        for number in range(3)
    }
    rows = []
    for name, numbers in values.items():
        mean = sum(numbers) / len(numbers)
        std = math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))
        rows.append(
            {
                "name": name,
                "numel": len(numbers),
                "min": min(numbers),
                "max": max(numbers),
                "mean": mean,
                "std": std,
                "nan": 1,
                "inf": 0,
            }
        )
    rows.append(
        {
            "name": "m.none",
            "numel": 4,
            "min": None,
            "max": None,
            "mean": None,
            "std": None,
            "nan": 4,
            "inf": 2,
        }
    )

    # The limit of columns is that of the page: 400 further modules of many tensors
    # exceed it.
    more = [
        {**rows[0], "name": f"x.{number}.{part}"}
        for number in range(400)
        for part in "abc"
    ]
    found = call("merged", [*rows, *more])
    assert len(found) == 4 + 400 and [row["name"] for row in found[:4]] == [
        "m.0",
        "m.1",
        "m.2",
        "m",
    ]
    for row, numbers in zip(found[:3], values.values(), strict=True):
        mean = sum(numbers) / len(numbers)
        assert row["min"] == min(numbers) and row["max"] == max(numbers)
        assert (
            row["mean"] == pytest.approx(mean) and row["nan"] == 1 and row["inf"] == 0
        )
        assert row["std"] == pytest.approx(
            math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))
        )
        assert row["rms"] == pytest.approx(
            math.sqrt(sum(number**2 for number in numbers) / len(numbers))
        )
    assert found[3] == {
        "name": "m",
        "min": None,
        "max": None,
        "mean": None,
        "std": None,
        "rms": None,
        "nan": 4,
        "inf": 2,
    }


def test_a_module_has_the_statistics_of_all_its_elements() -> None:
    numbers = [[1.0, 2.0, 3.0], [10.0, 30.0]]
    rows = [
        {
            "name": f"m.{part}",
            "numel": len(row),
            "min": min(row),
            "max": max(row),
            "mean": sum(row) / len(row),
            "std": std,
            "nan": 0,
            "inf": part,
        }
        for part, (row, std) in enumerate(
            zip(numbers, [math.sqrt(2 / 3), 10.0], strict=True)
        )
    ]
    more = [
        {**rows[0], "name": f"x.{number}.{part}"}
        for number in range(400)
        for part in "abc"
    ]
    found = call("merged", [*rows, *more])[0]

    every = [1.0, 2.0, 3.0, 10.0, 30.0]
    mean = sum(every) / 5
    assert (found["name"], found["min"], found["max"], found["nan"], found["inf"]) == (
        "m",
        1,
        30,
        0,
        1,
    )
    assert found["mean"] == pytest.approx(mean)
    assert found["std"] == pytest.approx(
        math.sqrt(sum((number - mean) ** 2 for number in every) / 5)
    )
    assert found["rms"] == pytest.approx(
        math.sqrt(sum(number**2 for number in every) / 5)
    )


def test_the_line_about_a_tensor_says_what_is_no_number() -> None:
    row = {
        "name": "a\u202e",
        "min": -1,
        "mean": 0,
        "max": 2.5,
        "std": 1,
        "rms": 1.25,
        "nan": 0,
        "inf": 1200,
    }
    assert (
        call("stats_text", row)
        == "a\\u202e\nmin -1, mean 0, max 2.5\nstd 1, rms 1.25\n1,200 Inf"
    )


def test_the_axis_of_values_ends_at_round_numbers_and_has_room_for_names() -> None:
    see = """(name) => {
      const rows = [{ name, min: -0.315, max: 0.316, mean: 0, std: 0.1, nan: 0, inf: 0 }];
      const { yAxis, grid } = band_option(rows, { ramp: [] }, 800, (value) => value, (value) => value, () => false);
      return [yAxis.min, yAxis.max, yAxis.interval, grid.bottom];
    }"""
    assert call(see, "a.w")[:3] == pytest.approx([-0.4, 0.4, 0.1])
    assert call(see, "a.w")[3] < 40 and call(see, "a" * 30)[3] > 130


def test_imports_say_where_they_are_and_what_they_call() -> None:
    row = {
        "module": "collections",
        "name": "OrderedDict",
        "group": "known",
        "where": ["", "a"],
        "calls": [],
    }
    assert call("(rows) => import_list(rows).textContent.split('Show')[0]", [row]) == (
        "ImportGroupWherecollections.OrderedDictknownthe root, a"
    )
    assert "Calls" in call(
        "(rows) => import_list(rows).textContent", [{**row, "calls": ["f('x')"]}]
    )


def test_storages_say_once_where_they_are() -> None:
    row = {
        "id": "0",
        "device": "cpu",
        "kind": "own",
        "tensors": 1,
        "bytes": 4,
        "used_bytes": 4,
    }
    see = (
        "(rows) => [storage_note({ storage_bytes: 8 }, rows), "
        "storage_list(rows).textContent.split('0')[0]]"
    )
    assert call(see, [row, row]) == [
        "2 storages on cpu, 8 B.",
        "StorageTensorsSizeUsed",
    ]
    other = {**row, "device": "cuda:0", "kind": "tied"}
    assert call(see, [row, other]) == [
        "2 storages, 8 B.",
        "StorageDeviceKindTensorsSizeUsed",
    ]
    assert call(see, [other, other])[1] == "StorageKindTensorsSizeUsed"


def test_dead_channels_are_counted() -> None:
    layers = [
        {"name": name, "channels": {"dead": dead, "count": 8}}
        for name, dead in (("a", []), ("b", []))
    ]
    text = call("(rows) => dead_part(rows, 0.001).textContent", layers)
    assert (
        "No dead channel in 2 layers. A channel is dead below 0.001 times the "
        "largest one of its layer."
    ) in text
    assert call("dead_part", [{"name": "a", "channels": None}], 0.001) is None


# --- two checkpoints ------------------------------------------------------------------


def change(
    status: str,
    *,
    role: str = "parameter",
    reason: str | None = "did not change",
    **more: Any,
) -> dict[str, Any]:
    """A row of a comparison."""
    return {
        "name": "a.w",
        "status": status,
        "role": role,
        "reason": reason,
        "rel_l2": None,
        "max_abs": None,
        **more,
    }


@pytest.mark.parametrize(
    ("row", "moved", "still"),
    [
        (change("same"), True, True),
        (change("same"), False, False),
        (change("same", reason=None), True, False),
        (change("same", role="unknown"), True, True),
        (change("same", role="buffer"), True, False),
        (change("changed"), True, False),
    ],
)
def test_a_parameter_that_did_not_change_while_others_did(
    row: Any, moved: bool, still: bool
) -> None:
    assert call("is_still", row, moved) is still


def test_the_verdict_counts_each_status() -> None:
    rows = [change(status) for status in ("same", "changed", "added", "changed")]
    verdict = "(view, rows, values) => diff_verdict(view, rows, values).textContent"

    assert (
        call(verdict, {"same": False}, rows, [1])
        == "differ: 2 changed, 1 added, 1 same, 1 value"
    )
    assert call(verdict, {"same": True}, rows[:1], []) == "same: 1 tensor"


def test_what_did_not_change_is_counted_among_the_parameters() -> None:
    rows = [
        {**change("same"), "still": True},
        change("changed"),
        change("changed", role="buffer"),
        change("changed"),
    ]
    see = "(rows, alarms) => still_part(rows, alarms)?.children[0].textContent ?? null"

    assert (
        call(see, rows, False) == "1 of 3 parameters did not change"
        and call(see, rows, True) is None
    )
    rows[0]["role"] = "unknown"
    assert (
        call(see, rows, False)
        == "1 of 3 parameters did not change (not sure that they are parameters)"
    )
    assert call(see, rows[1:], False) is None
    # Of two boxes the second one counts others.
    both = [{**rows[0], "role": "parameter", "alarms": True}, *rows[1:]]
    both.append({**change("same"), "still": True})
    assert call(see, both, True) == "1 of 4 parameters did not change"
    assert call(see, both, False) == "1 more of 4 parameters did not change"
    rows[0]["alarms"] = True
    assert call(see, rows, True).startswith("1 of 3") and call(see, rows, False) is None


@pytest.mark.parametrize(
    ("cause", "is_warned"),
    [
        *(
            (cause, True)
            for cause in ("never", "no-gradient", "zero-gradient", "not-stepped")
        ),
        *(
            (cause, False)
            for cause in ("frozen", "not-in-optimizer", "unknown", "stepped", None)
        ),
    ],
)
def test_red_is_for_the_causes_of_a_warning(cause: str | None, is_warned: bool) -> None:
    rows = [
        {**change("same", cause=cause), "still": True, "alarms": is_warned},
        change("changed"),
    ]

    assert call("is_warned", rows[0]) is is_warned
    assert (
        call("still_class", rows) == ("alarm" if is_warned else "held")
        and call("still_class", rows[1:]) == ""
    )
    see = (
        "(rows) => ['alarm', 'held'].map((name) => still_keys({ alarm: 'alarm', held: "
        "'held' }, rows).some(([colour]) => colour === name))"
    )
    assert call(see, rows) == [is_warned, not is_warned]


def test_the_causes_of_a_warning_are_those_of_the_findings() -> None:
    warned = set(call("() => WARNED"))
    for before, after in (
        ("ddp_before", "ddp_after"),
        ("snapshot_before", "snapshot_after"),
    ):
        document = compared(SAMPLES / f"{before}.pth", SAMPLES / f"{after}.pth")
        causes = {row["after"]: row["cause"] for row in document["tensors"]}
        for finding in document["findings"]:
            if finding["code"] == "frozen":
                levels = {causes[name] in warned for name in finding["tensors"]}
                assert levels == {finding["level"] == "warning"}


def test_a_bar_is_the_largest_change_of_its_rows() -> None:
    rows = [
        change("changed", rel_l2=0.5),
        change("changed", rel_l2=2),
        change("changed", rel_l2="inf"),
        {**change("same"), "still": True},
    ]
    see = (
        "(rows) => { const group = measured_group({ name: 'a', rows }); return "
        "[group.value, group.same, group.still, group.is_same, group_text(group)]; }"
    )

    assert call(see, rows) == [2, 1, 1, False, "2, 1 of 4 did not change"]
    assert call(see, rows[2:3]) == [
        None,
        0,
        0,
        False,
        "changed, without a relative number",
    ]
    assert call(see, rows[3:]) == [None, 1, 1, True, "did not change"]
    assert call(see, [change("changed", rel_l2=0)])[0] is None


MARKED = {
    "alarm": "#ff0000",
    "soft": "#888888",
    "bad": "#880088",
    "held": "#ccaa00",
    "text": "#000000",
}


def test_bars_are_decades_above_the_smallest_change_and_what_has_none_is_a_mark_at_zero() -> (
    None
):
    see = """(groups, palette) => {
      const option = bars_option(groups.map((rows) => measured_group({ name: "a", rows })), palette, 900, "#0000ff");
      const [bars, marks] = option.series;
      return [option.xAxis.max, bars.data.map((row) => row.value), option.xAxis.axisLabel.formatter(0),
        bars.data.map((row) => [row.label.formatter, row.label.color]), marks.data.map((row) => [...row.value, row.itemStyle.color])];
    }"""
    bars = [[change("changed", rel_l2=value)] for value in (0.01, 0.1, 5)]
    still = [{**change("same"), "still": True, "alarms": True}]
    bad = [change("changed", rel_l2="nan", nan=[0, 3], inf=[1, 1])]
    grey, red, purple = MARKED["soft"], MARKED["alarm"], MARKED["bad"]

    groups = [*bars, still, [change("same", role="buffer")], [change("changed")], bad]
    high, values, low, texts, marks = call(see, groups, MARKED)
    assert high == 4 and low == "0.001"
    assert values == [
        pytest.approx(1),
        pytest.approx(2),
        pytest.approx(3 + math.log10(5)),
        0,
        0,
        0,
        0,
    ]
    assert texts[3:] == [
        ["did not change", red], ["did not change", grey], ["from zero", grey], ["4 NaN or Inf", purple],
    ]  # fmt: skip
    assert [text for text, _ in texts[:3]] == ["0.01", "0.1", "5"]
    assert marks == [[0, 3, red], [0, 4, grey], [0, 5, grey], [0, 6, purple]]
    assert call(see, [still], MARKED)[:3] == [1, [0], "0.001"]


def test_a_wide_bar_says_what_of_it_did_not_change() -> None:
    group = {"bad": 0, "is_same": False, "value": 0.5, "same": 1, "rows": [0, 0, 0]}
    assert calls("bar_text", [[group, False], [group, True]]) == [
        "0.5, 1 of 3 did not change",
        "0.5",
    ]


def test_nan_and_inf_stand_at_the_top() -> None:
    rows = [
        change("changed", nan=[2, 3], inf=[0, 0]),
        change("changed", nan=[4, 0], inf=[0, 0]),
        change("changed", nan=None, inf=[0, 1200]),
        change("same"),
    ]
    assert call("bad_rows", rows) == [
        {"name": "a.w", "nan": 3, "inf": 0, "before": 2},
        {"name": "a.w", "nan": 0, "inf": 1200, "before": 0},
    ]
    see = """(rows, count) => {
      const made = bad_part(rows, count);
      return made && made.children.map((each) => each.textContent);
    }"""
    title, note, body = call(see, call("bad_rows", rows), 4)
    assert (title, note) == ("NaN or Inf", "2 tensors of 4.")
    assert (
        "3 NaNa.w 2 in the file before" in body
        and "1,200 Infa.w" in body
        and "0 in the" not in body
    )
    assert call(see, [{"name": "x", "nan": 0, "inf": 0}], 1) is None


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (change("same"), "did not change"),
        (change("same", reason="frozen"), "frozen"),
        (change("added"), "added"),
        (change("changed", differing=4, numel=4), "all elements"),
        (change("changed", differing=1, numel=1200), "1 of 1,200 elements"),
        (
            change(
                "changed",
                differing=1,
                numel=2,
                max_abs=0.5,
                at=[0, 1],
                rel_l2="inf",
                nan=[0, 1],
                inf=[2, 2],
            ),
            f"1 of 2 elements, max |Δ| 0.5 at [0, 1], relative L2 inf, NaN 0 {ARROW} 1",
        ),
        (
            change("changed", differing=0, numel=2, max_abs=0, at=[], inf=[2, 0]),
            f"0 of 2 elements, max |Δ| 0, Inf 2 {ARROW} 0",
        ),
    ],
)
def test_a_change_in_words(row: Any, text: str) -> None:
    assert call("change_text", row) == text


# --- a series -------------------------------------------------------------------------


def stats_of(path: str, **rows: tuple[float | None, int]) -> dict[str, Any]:
    """The statistics of a file: the RMS of each tensor of 4 elements, and how many of
    them are NaN.
    """
    table = [
        {"name": name, "numel": 4, "rms": rms, "nan": nan, "inf": 0}
        for name, (rms, nan) in rows.items()
    ]
    return {"file": {"path": path}, "tensors": pack_rows(table)}


def diff_of(
    before: str, after: str, **rows: tuple[str, float | None]
) -> dict[str, Any]:
    """A comparison: the status and the relative change of each tensor."""
    table = [
        {
            "before": name,
            "after": name,
            "role": "buffer" if name == "count" else "parameter",
            "status": status,
            "numel": 4,
            "rel_l2": value,
            "reason": "did not change" if status == "same" else None,
        }
        for name, (status, value) in rows.items()
    ]
    return {
        "before": {"path": before},
        "after": {"path": after},
        "tensors": pack_rows(table),
    }


SERIES: dict[str, Any] = {
    "stats": [
        stats_of("e0", w=(1.0, 0), b=(0.0, 0), count=(1.0, 0), v=(2.0, 0)),
        stats_of("e1", w=(10.0, 0), b=(0.5, 0), count=(99.0, 0), v=(2.0, 0)),
        stats_of("e2", w=(99.0, 3), b=(0.0, 0), count=(99.0, 0), v=(19.9, 0)),
    ],
    "diffs": [
        diff_of(
            "e0",
            "e1",
            v=("changed", 0.25),
            w=("same", 0.0),
            b=("changed", None),
            count=("changed", 0.5),
        ),
        diff_of(
            "e1",
            "e2",
            v=("same", 0.0),
            w=("same", 0.0),
            b=("changed", 1.5),
            count=("same", 0.0),
        ),
        diff_of("e0", "e2", v=("changed", 9.0)),
    ],
}


def test_a_series_has_the_change_from_each_file_to_the_next() -> None:
    found = call("series_of", SERIES)
    rows = {row["name"]: row for row in found["rows"]}

    assert (
        found["files"] == ["e0", "e1", "e2"]
        and found["has_stats"]
        and found["has_diffs"]
    )
    assert list(rows) == ["v", "w", "b", "count"], "the order of the comparison"
    assert rows["v"]["rms"] == [2.0, 2.0, 19.9] and rows["w"]["bad"] == [0, 0, 3]
    assert [step and (step["value"], step["status"], step["still"]) for step in rows["v"]["change"]] == [
        None, (0.25, "changed", False), (0, "same", True),
    ]  # fmt: skip
    assert [step["still"] for step in rows["w"]["change"][1:]] == [True, True]
    assert (
        rows["b"]["change"][1]["value"] is None
        and rows["count"]["change"][2]["still"] is False
    )
    assert {row["numel"] for row in rows.values()} == {4} and rows["count"][
        "role"
    ] == "buffer"


def test_a_series_of_comparisons_or_of_statistics_alone() -> None:
    found = call("series_of", {**SERIES, "stats": []})
    assert found["files"] == ["e0", "e1", "e2"] and not found["has_stats"]
    assert [row["name"] for row in found["rows"]] == ["v", "w", "b", "count"] and found[
        "rows"
    ][0]["numel"] == 4
    found = call("series_of", {**SERIES, "diffs": []})
    assert [row["name"] for row in found["rows"]] == [
        "w",
        "b",
        "count",
        "v",
    ] and not found["has_diffs"]
    assert found["rows"][0]["change"] == [] and found["rows"][0]["role"] is None


STANDS_OUT = """(view) => {
  const facts = series_facts(series_of(view));
  return facts ? facts.children.at(-1).children[0].children.map((each) => each.textContent) : [];
}"""


def test_what_stands_out_in_a_series() -> None:
    assert call(STANDS_OUT, SERIES) == [
        "error1 tensor with NaN or Inf, first in e2.w",
        "info1 tensor did not change after e1, while other parameters did.v",
        "info1 tensor did not change in any file, while other parameters did.w",
        "info1 tensor with ten times the RMS or more in e1 than in the file before.w",
        "info1 tensor all zero in e2, and not in the file before.b",
    ]
    assert call(STANDS_OUT, {**SERIES, "stats": SERIES["stats"][:1], "diffs": []}) == []


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_a_pair_of_equal_files_does_not_decide_since_when_a_tensor_stands_still(
    copied: int,
) -> None:
    """Where nothing moved between two files, both tensors stay in the line that the
    other files give them.
    """
    files = ["e0", "e1", "e2", "e3"]
    diffs = []
    for at, (before, after) in enumerate(pairwise(files)):
        moves = ("same", 0.0) if at == copied else ("changed", 1.0)
        late = moves if at == 0 else ("same", 0.0)
        diffs.append(diff_of(before, after, w=("same", 0.0), b=moves, v=late))
    view = {
        "stats": [stats_of(name, w=(1.0, 0), b=(1.0, 0), v=(1.0, 0)) for name in files],
        "diffs": diffs,
    }
    never = "in any file, while other parameters did."
    assert call(STANDS_OUT, view) == (
        [f"info2 tensors did not change {never}wv"]
        if copied == 0
        else [
            f"info1 tensor did not change {never}w",
            "info1 tensor did not change after e1, while other parameters did.v",
        ]
    )


def test_a_file_with_other_names_is_in_the_rows_of_the_files_before() -> None:
    """A bare best.pt behind files with a state_dict: each tensor is one row, as `ckpt
    diff` pairs them.
    """
    first = diff_of("e0", "e1", **{"sd.w": ("same", 0.0), "sd.b": ("changed", 1.0)})
    bare = diff_of("e1", "best", w=("same", 0.0), b=("changed", 1.0))
    again = diff_of("best", "last", w=("same", 0.0), b=("changed", 1.0))
    bare["tensors"] = pack_rows([
        {**row, "before": f"sd.{row['after']}"} for row in call("rows_of", bare["tensors"])
    ])  # fmt: skip
    again["tensors"] = pack_rows([
        {**row, "after": f"m.{row['after']}"} for row in call("rows_of", again["tensors"])
    ])  # fmt: skip
    view = {
        "stats": [
            stats_of("e0", **{"sd.w": (1.0, 0), "sd.b": (1.0, 0)}),
            stats_of("e1", **{"sd.w": (1.0, 0), "sd.b": (2.0, 0)}),
            stats_of("best", w=(1.0, 0), b=(3.0, 0)),
            stats_of("last", **{"m.w": (1.0, 0), "m.b": (4.0, 0)}),
        ],
        "diffs": [first, bare, again],
    }
    rows = {row["name"]: row for row in call("series_of", view)["rows"]}
    assert list(rows) == ["sd.w", "sd.b"] and rows["sd.b"]["rms"] == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert [step and step["value"] for step in rows["sd.b"]["change"]] == [
        None,
        1.0,
        1.0,
        1.0,
    ]
    found = call(STANDS_OUT, view)
    assert found == [
        "info1 tensor did not change in any file, while other parameters did.sd.w"
    ]


CELL = "(rows, at, mode) => cell_of({ name: 'a', rows }, at, mode)"


def tensor(rms: Any = 1.0, bad: int = 0, numel: int = 4, **step: Any) -> dict[str, Any]:
    """A row of a series with one file."""
    return {"rms": [rms], "bad": [bad], "numel": numel, "change": [step or None]}


def step(
    value: float | None, status: str = "changed", still: bool = False
) -> dict[str, Any]:
    """The change of a tensor from a file to the next."""
    return {"value": value, "status": status, "still": still}


@pytest.mark.parametrize(
    ("rows", "mode", "cell"),
    [
        (
            [tensor(3.0, numel=1), tensor(1.0, numel=3)],
            "rms",
            {"value": pytest.approx(math.sqrt(3)), "text": "RMS 1.73"},
        ),
        ([tensor(0.0), tensor("nan")], "rms", {"kind": "none", "text": "all zero"}),
        ([tensor(1.0, numel=0)], "rms", {"kind": "none", "text": "all zero"}),
        ([tensor(None), tensor("inf")], "rms", None),
        (
            [tensor(bad=3), tensor(bad=1200), tensor()],
            "rms",
            {"kind": "bad", "text": "1,203 elements are NaN or Inf"},
        ),
        (
            [tensor(bad=3, **step(1.0))],
            "change",
            {"kind": "bad", "text": "3 elements are NaN or Inf"},
        ),
        ([tensor()], "change", None),
        (
            [tensor(**step(0.5)), tensor(**step(2)), tensor(**step(None))],
            "change",
            {"value": 2, "text": "relative change 2"},
        ),
        (
            [tensor(**step(0, "same", True)), tensor()],
            "change",
            {"kind": "still", "text": "did not change"},
        ),
        (
            [tensor(**step(0, "same", True)), tensor(**step(0, "same"))],
            "change",
            {"kind": "none", "text": "did not change"},
        ),
        (
            [tensor(**step(0, "same", True)), tensor(**step(0.5))],
            "change",
            {"value": 0.5, "text": "relative change 0.5"},
        ),
        (
            [
                tensor(**step(None, status))
                for status in ("added", "added", "same", "reshaped", "removed")
            ],
            "change",
            {"kind": "none", "text": "added, same, reshaped and 1 more"},
        ),
    ],
)
def test_a_cell_of_a_series(rows: list[Any], mode: str, cell: Any) -> None:
    assert call(CELL, rows, 0, mode) == cell


def test_the_map_of_a_series_leaves_out_the_change_to_the_first_file() -> None:
    see = """(view, mode) => {
      const series = series_of(view);
      const option = heat_option(series, grouped(series.rows, 0), mode, { ramp: ["#000000", "#ffffff"] }, 900);
      return [option.xAxis.data.length, option.series[0].data.length];
    }"""
    assert call(see, SERIES, "rms") == [3, 12]
    assert call(see, SERIES, "change") == [2, 8]


def test_a_series_names_its_files_by_their_labels() -> None:
    labelled = {**SERIES, "labels": [["e1", "one"], ["__proto__", "x"]]}
    assert call("series_of", labelled)["labels"] == ["e0", "one", "e2"]
    assert (
        "info1 tensor did not change after one, while other parameters did.v"
        in call(STANDS_OUT, labelled)
    )
    see = """(view) => {
      const option = heat_option(series_of(view), [], "rms", { ramp: ["#000000", "#ffffff"] }, 900);
      return [0, 1, 2].map((at) => option.xAxis.axisLabel.formatter(String(at)));
    }"""
    assert call(see, labelled) == ["e0", "one", "e2"]
    assert calls("label_depth", [[["ab"]], [["a" * 24]], [["a" * 99]]]) == [
        30,
        145,
        145,
    ]


def test_a_series_names_files_of_other_models() -> None:
    see = "(view, files) => strangers_part(view, files, files)?.textContent ?? null"
    diffs = [
        {**diff_of("e0", "e1"), "strangers": None},
        {**diff_of("e1", "e2"), "strangers": "no tensor in common"},
    ]
    text = call(see, {"diffs": diffs}, ["e0", "e1", "e2"])
    assert text == "Files of other modelswarninge1 and e2 have no tensor in common."
    assert call(see, {"diffs": diffs[:1]}, ["e0", "e1"]) is None


HEAT = """(view, mode) => {
  const series = series_of(view);
  const palette = { ramp: ["#000000", "#646464", "#c8c8c8"], alarm: "alarm", held: "held", bad: "bad", none: "none" };
  return heat_keys(series, grouped(series.rows, 0), mode, palette);
}"""


def test_numbers_stand_beside_the_colours_of_a_map() -> None:
    assert call(HEAT, SERIES, "change") == [
        ["#000000", "relative change 0.25, the smallest"], ["#646464", "0.612"], ["#c8c8c8", "1.5, the largest"],
        ["held", "parameters that did not change"], ["bad", "NaN or Inf"], ["none", "zero, or no number"],
    ]  # fmt: skip
    assert [text for _, text in call(HEAT, SERIES, "rms")] == [
        "RMS 0.5, the smallest", "7.04", "99, the largest", "NaN or Inf", "zero, or no number",
    ]  # fmt: skip
    assert call(HEAT, {**SERIES, "diffs": [], "stats": [stats_of("e0", w=(2.0, 0)), stats_of("e1", w=(2.0, 0))]}, "rms") == [
        ["rgb(100,100,100)", "RMS 2"],
    ]  # fmt: skip


CURVES = """(view) => {
  const made = curves_part(view, ["a/e1.pth", "a/e2.pth"], ["e1", "e2"]);
  return made && made.textContent;
}"""


def test_a_series_has_a_curve_for_each_number_that_differs() -> None:
    see = """(values) => {
      const { yAxis, series } = curve_option(values, ["a"], ["a"], { line: "l", soft: "s", accent: "c" }, 300);
      return [yAxis.type, series[0].data];
    }"""
    assert call(see, [2, 1, 0.5]) == ["value", [2, 1, 0.5]]
    assert call(see, [1, 0.1, 0.0001]) == ["value", [0, -1, -4]], "powers of ten"
    assert call(see, [1, 0, 5000]) == ["value", [1, 0, 5000]]
    same = {"names": ["beta"], "values": [0.9, 0.9]}
    short = {"names": ["short"], "values": [1]}
    assert call(CURVES, {"curves": [same, short]}) is None and call(CURVES, {}) is None


def findings_of(*codes: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"code": code, "level": level, "message": message, "consequence": None, "tensors": [], "where": [], "hint": None}
        for code, level, message in codes
    ]  # fmt: skip


def test_findings_of_many_files_are_grouped_by_code() -> None:
    files = [
        {
            "path": "r/a.pth",
            "findings": findings_of(
                ("cuda", "info", "on cuda:0"), ("prefix", "warning", "all 9")
            ),
        },
        {"path": "r/b.pth", "findings": findings_of(("cuda", "info", "on cuda:0"))},
        {
            "path": "r/c.pth",
            "findings": findings_of(
                ("prefix", "warning", "all 7"), ("nan", "error", "3 NaN")
            ),
        },
        {
            "path": "r/d.pth",
            "findings": findings_of(
                ("cuda", "info", "on cuda:0"), ("nan", "warning", "old")
            ),
        },
    ]
    groups = call("grouped_findings", files)
    assert [(each["code"], each["level"], len(each["found"])) for each in groups] == [
        ("nan", "error", 1), ("prefix", "warning", 2), ("nan", "warning", 1), ("cuda", "info", 3),
    ]  # fmt: skip
    see = (
        "(files) => findings_by_code(files, 9).children.map((each) => [each.className, "
        "each.textContent])"
    )
    shown = call(see, files)
    assert [kind for kind, _ in shown] == [
        "finding error",
        "finding warning",
        "finding warning",
        "finding info",
    ]
    assert (
        "cuda 3 of 9 files: on cuda:0" in shown[3][1]
        and shown[3][1].count("on cuda:0") == 1
    )
    assert "r/a.pth: all 9" in shown[1][1] and "r/c.pth: all 7" in shown[1][1]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        ({"kind": "bad", "text": "3 elements are NaN or Inf"}, "NaN or Inf"),
        ({"kind": "still", "text": "did not change"}, "0"),
        ({"kind": "none", "text": "did not change"}, "0"),
        ({"kind": "none", "text": "all zero"}, "0"),
        ({"kind": "none", "text": "added"}, "added"),
        ({"value": 0.12345, "text": "RMS 0.123"}, "0.123"),
    ],
)
def test_a_cell_as_a_number(cell: Any, text: str) -> None:
    assert (
        call(
            (
                "(cell) => { const made = number_cell(cell); return made.textContent "
                "?? made; }"
            ),
            cell,
        )
        == text
    )


# --- whole documents ------------------------------------------------------------------


def views(name: str) -> list[Any]:
    """The views of a page of real documents, as its script reads them."""
    return list(json.loads(json.dumps(page_payload(documents(name), "0")))["views"])


@pytest.mark.parametrize("name", ["checkpoint", "diff", "stats", "evil"])
def test_the_rows_of_real_documents_have_the_same_fields(name: str) -> None:
    tables = [view["tensors"] for view in views(name) if "tensors" in view]
    for rows, table in zip(
        calls("rows_of", [[table] for table in tables]), tables, strict=True
    ):
        assert len(rows) == table["count"] > 0 and {tuple(row) for row in rows} == {
            tuple(table["columns"])
        }


def test_a_real_series_says_who_freezes_explodes_and_dies() -> None:
    said = call(STANDS_OUT, views("series")[0])

    assert [text.partition("block")[0].partition("aux")[0] for text in said] == [
        "error1 tensor with NaN or Inf, first in epoch_10.",
        "info1 tensor did not change after epoch_4, while other parameters did.",
        (
            "info1 tensor with ten times the RMS or more in epoch_6 than in the file "
            "before."
        ),
        "info1 tensor all zero in epoch_8, and not in the file before.",
        "info1 tensor did not change in any file, while other parameters did.",
    ]


def test_what_may_be_no_parameter_is_not_called_one() -> None:
    see = """(view) => {
      const rows = rows_of(view.tensors);
      for (const row of rows) row.still = is_still(row, true);
      return [still_part(rows, false).textContent, counts_part(rows).textContent];
    }"""
    still, counts = call(
        see, next(view for view in views("evil") if view["kind"] == "diff")
    )

    assert " of them may be " in still and "Parameters (not sure)" in counts


# --- the axis of a curve --------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "every"),
    [
        (["e1", "e2", "e3", "e4"], 1),
        (["checkpoint-100", "checkpoint-200", "checkpoint-300", "checkpoint-1000"], 2),
        (["a"] * 100, 6),
        (["a long name of a file"], 1),
    ],
)
def test_names_of_files_never_lie_over_each_other(
    labels: list[str], every: int
) -> None:
    assert call("(labels) => curve_every(labels, 370)", labels) == every


TICKS = """(values) => {
  const { to, min, max, step, label } = curve_axis(values);
  const count = Math.round((max - min) / step);
  const ticks = Array.from({ length: count + 1 }, (_, at) => min + at * step);
  return { ticks: ticks.map(label), low: to(Math.min(...values)) >= min - step * 1e-6, high: to(Math.max(...values)) <= max + step * 1e-6 };
}"""


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([2.3001, 2.3004, 2.3002], ["2.3001", "2.3002", "2.3003", "2.3004"]),
        ([2.31, 0.4, 0.07], ["0", "1", "2", "3"]),
        ([0.0, 100.0], ["0", "50", "100"]),
        ([1e-3, 3e-4, 1e-4], ["0", "0.0005", "0.0010"]),
        ([1e5, 3e5], ["1e+5", "2e+5", "3e+5"]),
        ([1e-8, 1.0, 1e4], ["1e-10", "1e-5", "1", "1e+5"]),
        ([-1.0, 1.0], ["-1", "0", "1"]),
    ],
)
def test_ticks_of_a_curve_are_round_and_few_and_differ(
    values: list[float], ticks: list[str]
) -> None:
    found = call(TICKS, values)
    assert found == {"ticks": ticks, "low": True, "high": True}


def test_ticks_of_random_curves_never_say_the_same() -> None:
    pick = random.Random(3)
    for _ in range(300):
        base = pick.choice([-1, 1]) * 10 ** pick.uniform(-12, 12)
        values = [
            base * (1 + pick.uniform(0, 10 ** pick.uniform(-6, 3))) for _ in range(5)
        ]
        found = call(TICKS, values)
        assert found["low"] and found["high"] and 1 <= len(found["ticks"]) <= 6, (
            values,
            found,
        )
        assert len(set(found["ticks"])) == len(found["ticks"]), (values, found)
        assert all(len(text) <= 14 for text in found["ticks"]), (values, found)


# --- numbers of the first line --------------------------------------------------------


def test_the_first_line_counts_the_parameters_that_inspect_counts(
    tmp_path: Path,
) -> None:
    """A tied tensor counts once, and what may be a buffer stands apart."""
    table = torch.zeros(50, 8)
    state = {"emb.weight": table, "head.weight": table, "hist": torch.zeros(10)}
    torch.save({"model": state, "step": 1}, tmp_path / "a.pth")
    document = ckpt.inspect(tmp_path / "a.pth").to_json()
    see = (
        "(view) => headline_pieces(view, view.tensors, view.sections)"
        ".filter((text) => String(text).match(/parameters|perhaps/))"
    )

    assert call(see, document) == ["400 parameters", "perhaps 10 more"]
    assert document["totals"]["parameters"] == 400
    assert document["totals"]["unknown"] == 10


def test_a_loader_of_another_package_is_not_called_safe() -> None:
    """weights_only is of torch.load, and says nothing of a loader that unpickles."""
    view = {
        "weights_only": {"loads": True},
        "load": 'get_fp32_state_dict_from_zero_checkpoint("run")',
        "load_note": "it unpickles every file",
    }

    text = call(
        "(view) => loads_of(view).map((node) => node.textContent ?? node)", view
    )

    assert text[0] == "it unpickles every file"
    assert call("(view) => loads_of(view)[0].textContent", view | {"load_note": None})


def test_what_may_be_a_buffer_is_no_parameter_of_the_count() -> None:
    see = "(rows, alarms) => still_part(rows, alarms)?.children[0].textContent ?? null"
    moved = {"name": "a", "role": "parameter", "status": "changed"}
    still = {
        "name": "b",
        "role": "parameter",
        "status": "same",
        "still": True,
        "alarms": True,
    }
    unsure = still | {"name": "c", "role": "unknown", "alarms": False}

    assert call(see, [moved, still, unsure], True) == "1 of 2 parameters did not change"
    assert call(see, [moved, still, unsure], False) == (
        "1 more of 3 parameters did not change (not sure that they are parameters)"
    )


def test_a_box_of_both_says_how_many_may_be_buffers() -> None:
    see = "(rows, alarms) => still_part(rows, alarms)?.children[0].textContent ?? null"
    still = {"name": "b", "role": "parameter", "status": "same", "still": True}
    rows = [still, still | {"name": "c", "role": "unknown"}]

    assert call(see, rows, False) == (
        "2 of 2 parameters did not change (1 of them may be a buffer)"
    )
