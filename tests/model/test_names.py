"""Names: what is printed is safe, globs cross dots, prefixes tell their writers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.evidence.wrappers import wrapper_prefix, writers_of_prefix
from ckpt.model.names import (
    Globs,
    dotted_name,
    name_blocks,
    natural_order,
    natural_sort_key,
    nearest_names,
)
from ckpt.model.text import show, show_literal
from tests.lib.paths import walking


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layer.0.weight", "layer.0.weight"),
        ("größe", "größe"),
        ("a\nFAKE ROW", "a\\nFAKE ROW"),
        ("tab\there", "tab\\there"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("\x1b]8;;http://x\x07", "\\x1b]8;;http://x\\x07"),
        ("nul\0", "nul\\x00"),
        ("right\u202eleft", "right\\u202eleft"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("line\u2028end", "line\\u2028end"),
        ("lone\ud800", "lone\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("back\\slash", "back\\\\slash"),
        ("[/red]", "[/red]"),
    ],
)
def test_show_escapes_what_is_not_printable(text: str, shown: str) -> None:
    assert show(text) == shown


def test_show_cuts_by_characters_and_says_so() -> None:
    assert show("x" * 300) == "x" * 199 + "…"
    assert show("x" * 300, None) == "x" * 300


def test_literals_keep_their_backslashes() -> None:
    assert show_literal("'C:\\\\dir'\u202e") == "'C:\\\\dir'\\u202e"


def test_natural_order() -> None:
    names = ["layers.10.w", "layers.2.w", "layers.2.a", "b", "10", "9", "9" * 30]

    assert sorted(names, key=natural_sort_key) == [
        "9",
        "10",
        "9" * 30,
        "b",
        "layers.2.a",
        "layers.2.w",
        "layers.10.w",
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ["lr0.005", "lr0.05", "lr0.1", "lr0.10", "lr0.5", "lr1.0"],
        ["run-0.005/a", "run-0.05/a"],
        ["0.2.weight", "0.10.weight"],
        ["layers.0.2.weight", "layers.0.10.weight"],
        ["v0.2.1", "v0.10.1"],
        ["py1.9", "py1.10"],
        ["a", "a01", "a1", "a2", "ab"],
    ],
)
def test_natural_order_is_total_and_reads_decimals(texts: list[str]) -> None:
    mixed = texts[::-1]
    assert sorted(mixed, key=natural_sort_key) == texts
    assert len(set(map(natural_sort_key, texts))) == len(texts)


_PIECES = (
    "layers",
    ".",
    "0",
    "00",
    "7",
    "10",
    "010",
    "9" * 19,
    "0.05",
    "lr",
    "\n",
    "\x01",
    "é",
    "",
)


@given(
    st.lists(st.lists(st.sampled_from(_PIECES), max_size=6).map("".join), max_size=40)
)
def test_many_names_are_ordered_as_few_are(names: list[str]) -> None:
    with walking("fast"):
        many = natural_order(names)
    with walking("slow"):
        few = natural_order(names)
    assert many == few
    assert [names[row] for row in many] == sorted(names, key=natural_sort_key)


def test_usual_names_are_ordered_without_a_key_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = sorted(
        f"model.layers.{row // 9}.block.{row % 9}.weight" for row in range(3_000)
    )
    expected = sorted(names, key=natural_sort_key)
    monkeypatch.setattr("ckpt.model.names.natural_sort_key", None)
    assert [names[row] for row in natural_order(names)] == expected


def test_globs_cross_dots_and_exclude_wins() -> None:
    globs = Globs(["*.bias", "conv?.weight"], ["head.*"])

    assert [
        name
        for name in ("a.b.bias", "conv1.weight", "conv12.weight", "head.bias")
        if globs.match(name)
    ] == [
        "a.b.bias",
        "conv1.weight",
    ]
    assert not Globs()
    assert Globs(["fc.*"]).match("model.fc.weight", "fc.weight")


@pytest.mark.parametrize(
    ("name", "prefix", "who"),
    [
        ("module.conv.weight", "module.", "DataParallel or DDP"),
        (
            "_orig_mod.module.conv.weight",
            "_orig_mod.module.",
            "torch.compile around DataParallel or DDP",
        ),
        ("_forward_module.w", "_forward_module.", "Lightning or DeepSpeed"),
        ("conv.module.weight", "", None),
        ("module", "", None),
        ("module.", "", None),
        ("submodule.weight", "", None),
    ],
)
def test_wrapper_prefixes(name: str, prefix: str, who: str | None) -> None:
    assert wrapper_prefix(name) == prefix
    assert who is None or writers_of_prefix(prefix) == who


def test_nearest_names() -> None:
    names = ["model.fc.weight", "model.fc.bias", "optimizer.lr", "args.lr"]

    assert nearest_names("lr", names) == ["optimizer.lr", "args.lr"]
    assert nearest_names("fc.weigth", names) == ["model.fc.weight"]
    assert nearest_names("nothing.like.it", names) == []


def test_a_name_with_the_word_is_nearer_than_a_deep_one() -> None:
    names = ["optimizer.state.0.step", "global_step", "stepper", "step"]
    assert nearest_names("step", names)[:2] == ["global_step", "optimizer.state.0.step"]


def test_a_path_is_joined_with_dots() -> None:
    assert dotted_name(("state", 0, "exp_avg")) == "state.0.exp_avg"


def test_blocks_are_neighbours_that_begin_alike_up_to_their_first_number() -> None:
    names = [
        "embed.weight",
        "h.0.a.1.w",
        "h.0.b",
        "h.1.a",
        "h.10.a",
        "h.1.c",
        "norm",
        "x.7",
        "0.w",
        "0.b",
        "1",
    ]
    assert name_blocks(names) == [
        ("", 0, 1),
        ("h.0.", 1, 3),
        ("h.1.", 3, 4),
        ("h.10.", 4, 5),
        ("h.1.", 5, 6),
        ("", 6, 8),
        ("0.", 8, 10),
        ("", 10, 11),
    ]
    assert name_blocks([]) == []


@given(st.lists(st.text("a1.", max_size=7), max_size=12))
def test_blocks_cover_all_names_and_no_number_comes_before(names: list[str]) -> None:
    found = name_blocks(names)
    assert [at for block in found for at in range(block.first, block.last)] == list(
        range(len(names))
    )
    assert all(one.begin != two.begin for one, two in pairwise(found))
    for begin, first, last in found:
        for name in names[first:last]:
            numbers = [part.isdigit() for part in name.split(".")[:-1]]
            assert name.startswith(begin) and (True in numbers) == bool(begin)
            assert begin.count(".") == (numbers.index(True) + 1 if begin else 0)
