"""Text for people: lists that are cut, shares, sizes."""

from __future__ import annotations

import pytest

from ckpt.model.text import (
    STAND_INS,
    and_more,
    count_text,
    counted_noun,
    percent_text,
    show_folded_names,
    show_literal,
    show_names,
    shown_apart,
    size_text,
)


def test_the_first_of_many() -> None:
    names = ["a", "b", "c"]
    assert and_more(names, 3) == "a, b, c"
    assert and_more(names, 2) == "a, b and 1 more"
    assert and_more([*"x" * 2000], 1, "; ") == "x and 1,999 more"
    assert and_more([], 4) == ""


def test_names_are_made_safe() -> None:
    # The middle goes: what tells long names apart is at their ends.
    names = ["a\x1b[31m", "begin" + "b" * 100 + "end"]
    assert show_names(names, limit=10) == "a\\x1b[31m, beg…bbbend"
    assert (
        show_folded_names(["fc.weight", "fc.bias", "head.scale"])
        == "fc.{weight,bias}, head.scale"
    )
    assert show_folded_names(["a.x", "b.y", "c.z"], 2) == "a.x, b.y and 1 more"
    layers = [
        f"layers.{number}.{name}.bias" for number in range(12) for name in ("q", "k")
    ]
    assert (
        show_folded_names([*layers, "fc.bias"]) == "layers.0-11.{q,k}.bias ×24, fc.bias"
    )
    assert (
        show_folded_names(["a.x", "b.y", *layers, "c.z"], 2) == "a.x, b.y and 25 more"
    )


def test_no_word_of_a_list_of_siblings_is_cut() -> None:
    words = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    names = [f"lstm.{word}" for word in words]
    names += [name.replace("l0", "l1") for name in names]
    text = show_folded_names(names, 8, 100)
    assert text == (
        "lstm.{weight_ih_l0,weight_hh_l0,bias_ih_l0,bias_hh_l0,…,weight_hh_l1,"
        "bias_ih_l1,bias_hh_l1} ×8"
    )
    assert len(text.removesuffix(" ×8")) <= 100
    for limit in range(60, 120):
        shown = show_folded_names(names, 8, limit).removesuffix(" ×8")
        listed = shown.removeprefix("lstm.{").removesuffix("}").split(",")
        assert {f"lstm.{word}" for word in listed} - {"lstm.…"} <= {*names}, limit
    # One name of many letters is without its middle, as before.
    long = f"a{'b' * 200}.weight"
    assert "…" in show_folded_names([long], 8, 100)


def test_texts_that_look_the_same_are_shown_apart() -> None:
    one, two = "caf\u00e9", "cafe\u0301"
    assert shown_apart([one, two, "a\n", "cafe\u0302"]) == [
        one,
        "cafe\\u0301",
        "a\\n",
        "cafe\u0302",
    ]
    assert shown_apart([two, two]) == [two, two]
    assert shown_apart(["\u212b", "\u00c5"]) == ["\\u212b", "\\xc5"], (
        "neither has a mark"
    )


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (9, 9, "100 %"),
        (1, 10**6, "<0.1 %"),
        (999_999, 10**6, "99.9 %"),
        (1, 3, "33.3 %"),
    ],
)
def test_a_share_is_all_or_nothing_only_where_it_is(
    part: int, whole: int, text: str
) -> None:
    assert percent_text(part, whole) == text


def test_numbers() -> None:
    assert (counted_noun(1, "tensor"), counted_noun(1234, "tensor")) == (
        "1 tensor",
        "1,234 tensors",
    )
    assert (size_text(1023), size_text(1024), size_text(1536 * 1024)) == (
        "1023 B",
        "1.00 KiB",
        "1.50 MiB",
    )
    assert (count_text(999), count_text(1000), count_text(999_999)) == (
        "999",
        "1.00 K",
        "1.00 M",
    )


def test_literals_keep_our_marks_and_backslashes_and_escape_the_rest() -> None:
    assert show_literal("a · b\\n" + "".join(STAND_INS)) == "a · b\\n" + "".join(
        STAND_INS
    )
    assert show_literal("a\x1b[31m\n") == "a\\x1b[31m\\n"
    assert show_literal("· \x1b\u202e\xa0é") == "· \\x1b\\u202e\\xa0é"


def test_names_that_are_cut_to_one_text_are_shown_whole() -> None:
    """Two groups of siblings that differ in their middles alone."""
    end = "multi_head_attention_output_projection_layer_norm.weight"
    names = [
        f"backbone.stage_with_a_rather_long_name_number_{stage}.block_{number}.{end}"
        for stage in (1, 2)
        for number in range(stage, 400, 7)
    ]
    shown = show_folded_names(names)
    first, second = shown.split(", back")
    assert first != f"back{second}"
    assert "number_1." in first
    assert "number_2." in second
    assert "number_2." in show_names([names[0], names[-1]])


def test_no_half_of_a_list_in_braces_is_shown() -> None:
    """A cut within braces leaves out all of the words."""
    end = "attention_output_projection_layer_norm.weight"
    begin = "a_backbone_with_a_rather_long_name.stage.block_"
    names = [f"{begin}{number}.{end}" for number in range(0, 900, 7)]
    shown = show_folded_names(names)
    assert "}" not in shown
    assert shown.endswith(f"….{end} ×129")


def test_a_name_whose_cut_would_hide_what_tells_it_apart_stays_whole() -> None:
    begin = "generator_with_a_long_name.synthesis_network_of_the_second_stage"
    end = "upsampling.modulated_convolutions.0.mixer.in_proj"
    names = [f"{begin}.block_{block}_{end}.weight" for block in (0, 3)]
    other = f"{begin}.block_5_{end}.bias"
    shown = show_folded_names([*names, other])
    # Folded, the first two have a list of blocks, which no cut may take away.
    assert "block_{0,3}_" in shown and "block_5_" in shown
    alone = show_names([names[0]])
    assert "…" in alone and len(alone) <= 80
