"""Blocks that stand in chunks on one side: `blocks.2.11.norm1.weight` is
`blocks.11.norm1.weight` of a plain list, for chunks keep the numbers of the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.renaming import rename_line
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show

_IN_CHUNK = re.compile(
    r"(?P<list>(?:[^.\d][^.]*\.){0,12})(?P<chunk>\d{1,4})\.(?P<block>\d{1,4})\."
    r"(?P<rest>.+)"
)
_LEAST = 3
_MOST_CHUNKS = 16


class Chunked(NamedTuple):
    """The names of the side with chunks, each with its partner on the other side, the
    chunk of each block, and the name of the list in the model.
    """

    partners: dict[str, str]
    chunks: dict[int, int]
    place: str
    beginning: str
    """The prefix that the names have in the file alone."""
    in_file: bool


def find_chunked(missing: Sequence[str], held: Sequence[str]) -> Chunked | None:
    """Find that all missing names with a chunk, or all that lack one, are held without
    it, or with it. No other name of the lists is looked at.
    """
    return _pair(missing, held, in_file=False) or _pair(held, missing, in_file=True)


def _pair(
    chunked: Sequence[str], plain: Sequence[str], *, in_file: bool
) -> Chunked | None:
    others = set(plain)
    parsed = {name: found for name in chunked if (found := _IN_CHUNK.fullmatch(name))}
    lists = {found["list"] for found in parsed.values()}
    # A list of single layers, `0.weight`, has no blocks: it is a module deeper.
    if len(parsed) < _LEAST or len(lists) != 1:
        return None
    # As in `layers.0.1.weight`, where the second number is a layer of a Sequential.
    if not any("." in found["rest"] for found in parsed.values()):
        return None
    (place,) = lists
    short = {
        name: f"{place}{found['block']}.{found['rest']}"
        for name, found in parsed.items()
    }
    beginning = _beginning(next(iter(short.values())), others, in_file=in_file)
    if beginning is None:
        return None
    chunks: dict[int, int] = {}
    partners: dict[str, str] = {}
    for name, found in parsed.items():
        other = (
            short[name].removeprefix(beginning) if in_file else beginning + short[name]
        )
        chunk, block = int(found["chunk"]), int(found["block"])
        # A number that begins anew in each chunk is another layout.
        if other not in others or chunks.setdefault(block, chunk) != chunk:
            return None
        partners[name] = other
    # dinov2 fills one chunk after the other, so the chunks never go back.
    ordered = [chunks[block] for block in sorted(chunks)]
    if ordered != sorted(ordered) or ordered[0] != 0 or not _follows(chunks, others):
        return None
    named = place.removeprefix(beginning) if in_file else place
    return Chunked(partners, chunks, named, beginning, in_file)


def _follows(chunks: dict[int, int], others: set[str]) -> bool:
    """Tell whether the numbers count one list of several blocks."""
    if len(chunks) > 1:
        return sorted(chunks) == list(range(len(chunks)))
    # A text that was cut short names one block alone, and the other side has more.
    return list(chunks) == [0] and any(
        re.search(r"(?:^|\.)1\.", name) for name in others
    )


def _beginning(name: str, others: set[str], *, in_file: bool) -> str | None:
    """Return the prefix that the names have in the file alone, or None."""
    if name in others:
        return ""
    if in_file:
        words = name.split(".")
        for count in range(1, len(words)):
            if ".".join(words[count:]) in others:
                return ".".join(words[:count]) + "."
        return None
    ends = [other for other in others if other.endswith(f".{name}")]
    return ends[0].removesuffix(name) if len(ends) == 1 else None


def chunked_statement(
    found: Chunked, missing: Sequence[str], case: Case, section: str | None
) -> Statement:
    """Say which side has its blocks in chunks, and print the command that renames."""
    name = show(found.place.rstrip("."), 80) or "the list"
    begin = re.escape(found.beginning)
    rules = [rf"s/^{begin}//"] if found.beginning else []
    place = re.escape(found.place)
    left = len(missing) - len(found.partners)
    if found.in_file:
        rules.append(rf"s/^{place}\d+\.(\d+)\./{found.place}\1./")
        text = (
            f"The file has {name} in chunks ({name}.CHUNK.BLOCK), and the model has "
            f"them in one list ({name}.BLOCK). The blocks keep their numbers, so they "
            "are the same: dinov2 makes chunks where block_chunks is not 0, "
            "as its trainings do and its published files do not. These names give them"
        )
        return Statement(f"{text}:", (), rename_line(rules, case, section))
    text = (
        f"The model has {name} in chunks ({name}.CHUNK.BLOCK), and the "
        f"file has them in one list ({name}.BLOCK). The blocks keep their numbers, so "
        "they are the same. Build the model without chunks (dinov2: block_chunks=0), "
        "and the file loads"
        + (f", without {show(found.beginning, 60)} before its names." if begin else ".")
    )
    sizes: dict[int, list[int]] = {}
    for block, chunk in sorted(found.chunks.items()):
        sizes.setdefault(chunk, []).append(block)
    # With one block in the message the others may be in any chunk.
    if len(found.chunks) < 2 or len(sizes) > _MOST_CHUNKS:
        return Statement(text)
    for chunk, blocks in sizes.items():
        numbers = "|".join(map(str, blocks))
        rules.append(rf"s/^{place}({numbers})\.(?!\d)/{found.place}{chunk}.\1./")
    rest = "" if left <= 0 else f" ({counted_noun(left, 'other name')} stay missing)"
    return Statement(
        f"{text} Or with the names of the chunks{rest}:",
        (),
        rename_line(rules, case, section),
    )
