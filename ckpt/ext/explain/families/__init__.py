"""The families of errors that ckpt explains, and the search for the last error in a
text.
"""

from __future__ import annotations

import re
from functools import cache

from ckpt.ext.explain.families import (
    adapters,
    attributes,
    content,
    devices,
    distributed,
    files,
    ggufs,
    gradients,
    imports,
    key_errors,
    keys,
    launchers,
    loras,
    memory,
    notices,
    optimizers,
    pipelines,
    programs,
    quantized,
    readers,
    saving,
    schedules,
    types,
    unequal_ranks,
    unknown_types,
)
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.message import LONGEST_LINE, Message
from ckpt.ext.explain.pasted import plain_text, spaced_pattern

FAMILIES: dict[str, Family] = {
    family.kind: family
    # The order counts where two patterns begin at one place: the first family keeps it.
    for room in (
        gradients,
        keys,
        devices,
        memory,
        imports,
        readers,
        attributes,
        key_errors,
        content,
        optimizers,
        schedules,
        ggufs,
        distributed,
        files,
        saving,
        types,
        unknown_types,
        quantized,
        adapters,
        loras,
        pipelines,
        programs,
        notices,
        launchers,
        unequal_ranks,
    )
    for family in room.FAMILIES
}
"""The word of a family -> the family."""


@cache
def _family_patterns() -> tuple[tuple[Family, re.Pattern[str]], ...]:
    """Every pattern with its family. A space stands for any white space."""
    return tuple(
        (family, re.compile(spaced_pattern(pattern)))
        for family in FAMILIES.values()
        for pattern in family.patterns
    )


def find_message(text: str) -> Message | None:
    """The last error in the output of a program that a family knows, or None."""
    return last_message(plain_text(text))


def last_message(text: str) -> Message | None:
    """The last error in a plain text that a family knows, or None. Weak ones count
    where there is no other.
    """
    found: dict[bool, tuple[int, int, Family]] = {}
    for family, pattern in _family_patterns():
        last = None
        # The last error of a log is the one that stopped the program.
        for match in pattern.finditer(text):
            last = match
        if last is None:
            continue
        # Keep the last strong and the last weak error apart: a weak one may stand below
        # the cause.
        before = found.get(family.is_weak)
        if before is None or last.start() > before[0]:
            found[family.is_weak] = last.start(), last.end(), family
    best = found.get(False) or found.get(True)
    if best is None:
        return None
    start, end, family = best
    return family.take(Message(family.kind, _error_line(text, start, end)), text, start)


def _error_line(text: str, start: int, end: int) -> str:
    """The line of an error; where a terminal has wrapped it, the lines that the pattern
    covers, as one.
    """
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    # The cut below would lose an error that stands far inside of a long line.
    if start - first > LONGEST_LINE // 2:
        first = start
    line = text[first : last if last >= 0 else None][:LONGEST_LINE]
    return " ".join(line.split())
