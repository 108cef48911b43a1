"""The colours of pictures in HTML: one table for the reports and for what notebooks show."""

from __future__ import annotations

from collections.abc import Mapping

KINDS = ("#35719f", "#d08a2e", "#5b8c5a", "#8a6bab", "#c2577a", "#4ba3a3", "#9c7a4d", "#7d8590")
"""For words such as dtypes, the one with the most bytes first; the last one is for all that are left."""
RAMP = ("#dbe7f0", "#a9c7dd", "#6a9cc0", "#35719f", "#14486f")
"""From little to much."""
ALARM = "#c2331b"
"""What the eye is to find first."""
NONE = "#cfcac2"
"""What has no value, and what is not shown one by one."""
PALE = "#efece6"
"""What is as it was."""


def kinds(weights: Mapping[str, int]) -> dict[str, str]:
    """Word -> colour, by the weights of the words."""
    words = sorted(weights, key=lambda word: -weights[word])
    return {word: KINDS[min(number, len(KINDS) - 1)] for number, word in enumerate(words)}


def ink(colour: str) -> str:
    """Black or white, whichever can be read on a colour (relative luminance of WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if light > 0.18 else "#ffffff"
