"""Loads that a program reports by the numbers of missing and unexpected keys alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.beginnings import load_into_statement, nothing_loaded
from ckpt.ext.explain.families.parts import beginnings_of
from ckpt.model.text import and_more, counted_noun, show

RESTORED = re.compile(
    r"\b(?P<missing>\d{1,7}) missing(?: keys)?,? (?:and|/|&) (?P<unexpected>\d{1,7}) "
    r"unexpected\b"
    r"|%d missing / %d unexpected keys['\"], (?P<lost>\d{1,7}), (?P<left>\d{1,7})"
)
"""The words of latent-diffusion and its kin, and of lerobot, about a load."""
_SHOWN = 6


def of_restored(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say what the numbers of missing and unexpected keys mean for a file."""
    missing = int(found["missing"] or found["lost"] or 0)
    unexpected = int(found["unexpected"] or found["left"] or 0)
    if len(case.survey.candidates) != 1 or not missing + unexpected:
        return
    section = case.survey.candidates[0]
    total = len(section.entries)
    if unexpected > total:
        yield Statement(
            f"This file has {counted_noun(total, 'tensor')}, and the message counts "
            f"{unexpected:,} keys without a place: another file was loaded."
        )
        return
    if missing and unexpected == total:
        yield from nothing_loaded(case)
        return
    taken = total - unexpected
    if not missing:
        yield Statement(_text_of_unexpected(section_counts(case), taken, unexpected))
    elif not unexpected:
        yield Statement(
            f"All {total:,} tensors of this file found their place, and the model has "
            f"{missing:,} more, which keep what they were built with: parts that this "
            "file was saved without (statistics of a normalizer, a head, an adapter), "
            "or those of another version of the program. The message does not name "
            "them: model.load_state_dict(…, strict=False).missing_keys does."
        )
    else:
        yield Statement(
            f"{taken:,} of the {total:,} tensors of this file found their place, "
            f"{unexpected:,} did not, and the model lacks {missing:,}: by other names, "
            "or as other layers. The message does not name them."
        )
    if missing:
        yield load_into_statement(
            case.survey, "This load pairs the names, and says what it leaves out:"
        )
    yield from load_statements(case)


def section_counts(case: Case) -> dict[str, int]:
    """The beginnings of the names of the only model, with the counts of their
    tensors.
    """
    return beginnings_of(case.survey.candidates[0])


def _text_of_unexpected(counts: dict[str, int], taken: int, unexpected: int) -> str:
    """The sentence on a load that lacks nothing, of a file that has more."""
    shown = [f"{show(word, 40)} ({count:,})" for word, count in counts.items()]
    part = [word for word, count in counts.items() if count == taken]
    if len(part) == 1 and len(counts) > 1:
        of_part = (
            f" {show(part[0], 40)} has as many as were taken: so the model seems to be "
            "that part of the file."
        )
    else:
        of_part = ""
    return (
        "0 missing keys means that the model got every tensor that it asks for. The "
        f"{unexpected:,} others of this file have no place in it, and change nothing: "
        "that is normal where the model is a part of what the file holds, or has no "
        "averages or loss of the training. The file has "
        f"{and_more(shown, _SHOWN)}.{of_part}"
    )
