"""Colours: the same word has one colour, and text on them can be read."""

from __future__ import annotations

import pytest

from ckpt.render.palette import ALARM, KINDS, NONE, PALE, RAMP, ink, kinds


def light(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*KINDS, *RAMP, ALARM, NONE, PALE])
def test_text_can_be_read(colour: str) -> None:
    lights = sorted((light(colour), light(ink(colour))))

    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, "WCAG 2, level AA"


def test_the_word_with_the_most_bytes_has_the_first_colour() -> None:
    words = {f"w{number}": number for number in range(12)}
    found = kinds(words)

    assert found["w11"] == KINDS[0] and found["w10"] == KINDS[1]
    assert {found[f"w{number}"] for number in range(5)} == {KINDS[-1]}
