"""Text for people: escaping, shortening, sizes, counts and lists.

Every string from a file passes `show` on its way to a terminal. Nothing here trusts its
input.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = (
    "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
)
"""A JSON document, or a part of one."""

STAND_INS = {
    "·": "|",
    "…": "...",
    "→": "->",
    "×": "x",
    "Δ": "delta",
    "−": "-",
    "²": "^2",
    "━": "-",
    **dict.fromkeys("▏▎▍▌▋▊▉█", "#"),
    **dict(zip("▓▒░", "=-.", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇", ".:-=+*%", strict=True)),
}
"""Characters of our own texts -> what stands for them where the encoding of a stream
lacks them.
"""
TEXT_LIMIT = 200
"""The most characters of one string from a file that text and messages show."""


# What moves the cursor, reorders text or cannot be seen: Unicode's categories Cc, Cf,
# Co, Cs, Zl and Zp, all of Default_Ignorable_Code_Point, and every blank but the space.
# The table is of Unicode 16 and written out, so that each Python escapes the same. The
# backslash is doubled so that an escape is unambiguous.
_UNPRINTABLE = (
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u17b4\u17b5"
    "\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff\\\\]"
)
# What the runners of GitHub Actions, Azure Pipelines and TeamCity take for a command,
# anywhere in a line.
_RUNNERS = r"#(?=#(?:\[|vso\[|teamcity\[))"
FORMULA = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
"""Characters with which a formula of a spreadsheet begins."""
_NUMBER = r"-(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf)"


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


_MARKS = str.maketrans(dict.fromkeys(STAND_INS, ""))


def show(text: str, limit: int | None = TEXT_LIMIT) -> str:
    """`text` as one line that is safe on a terminal: unprintable characters escaped,
    cut at `limit`.
    """
    if limit is not None and len(text) > limit:
        return f"{_escape_text(text[: limit - 1])}…"
    return _escape_text(text)


def shown_apart(texts: Sequence[str]) -> list[str]:
    """Each text as `show` gives it, whole. Texts that look the same have their
    combining marks escaped, or all but ASCII.
    """
    shown = [show(text, None) for text in texts]
    if "".join(shown).isascii():
        return shown
    from unicodedata import combining, normalize  # here: few names need it

    looks: dict[str, set[str]] = {}
    for text in texts:
        looks.setdefault(normalize("NFC", text), set()).add(text)
    for index, text in enumerate(texts):
        twins = looks[normalize("NFC", text)]
        if len(twins) > 1:
            marks = {twin: "".join(filter(combining, twin)) for twin in twins}
            is_enough = len(set(marks.values())) == len(twins)
            shown[index] = "".join(
                _escape_code(char)
                if combining(char) or not (is_enough or char.isascii())
                else _escape_text(char)
                for char in text
            )
    return shown


def show_literal(text: str) -> str:
    """Like `show`, for text that already holds Python literals: backslashes stay as
    they are.
    """
    if _is_safe(text):
        return text
    return re.sub(
        _UNPRINTABLE,
        lambda match: "\\" if match[0] == "\\" else _escape_match(match),
        text,
    )


def show_line(line: str) -> str:
    """A line, already safe, that no runner takes for a command: GitHub Actions obeys
    `::name::` at its begin.
    """
    if "##" in line:
        line = re.sub(_RUNNERS, r"\\x23", line)
    blanks = len(line) - len(line.lstrip())
    return (
        f"{line[:blanks]}\\x3a{line[blanks + 1 :]}"
        if line.startswith("::", blanks)
        else line
    )


_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def shell_word(text: str) -> str | None:
    """Return a text as one word of a shell's command line, to be pasted, or None.

    None means that no command line can hold it. What `show_line` would change is
    written as `$'\\...'`, which bash, zsh and POSIX of 2024 know.
    """
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    if "\0" in text:
        return None
    if show_line(show_literal(text)) == text and not text.startswith("::"):
        return (
            text if _WORD.fullmatch(text) else "'" + text.replace("'", "'\"'\"'") + "'"
        )
    codes = (
        chr(byte)
        if (chr(byte).isalnum() and byte < 0x80) or byte in b"/._-"
        else f"\\{byte:03o}"
        for byte in raw
    )
    return f"$'{''.join(codes)}'"


def pasted_path(path: str) -> str | None:
    """As `shell_word`, for a path: one that begins with a dash is no option."""
    return shell_word(f"./{path}" if path.startswith("-") else path)


def show_cell(text: str, *, name: bool = False) -> str:
    """A cell of TSV, already safe, that no spreadsheet takes for a formula. A number
    stays, but not as a name.
    """
    if not re.match(FORMULA, text) or (not name and re.fullmatch(_NUMBER, text)):
        return text
    return f"{_escape_code(text[0])}{text[1:]}"


def is_plain(text: str) -> bool:
    """Tell whether `show` leaves a text as it is."""
    return text.isascii() and text.isprintable() and "\\" not in text


def _is_safe(text: str) -> bool:
    """Tell whether a text is printable ASCII and characters of our own texts.

    Most texts are, and need no long expression.
    """
    return text.isprintable() and (text.isascii() or text.translate(_MARKS).isascii())


def _escape_text(text: str) -> str:
    if is_plain(text):
        return text
    return re.sub(_UNPRINTABLE, _escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or _escape_code(match[0])


def _escape_code(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def brace_siblings(names: Sequence[str]) -> list[str]:
    """Names with consecutive siblings in braces: `fc.weight`, `fc.bias` ->
    `fc.{weight,bias}`.
    """
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        parent, _, leaf = name.rpartition(".")
        if groups and groups[-1][0] == parent:
            groups[-1][1].append(leaf)
        else:
            groups.append((parent, [leaf]))
    out = []
    for parent, leaves in groups:
        last = leaves[0] if len(leaves) == 1 else f"{{{','.join(leaves)}}}"
        out.append(f"{parent}.{last}" if parent else last)
    return out


def common_begin(names: Sequence[str]) -> str:
    """The components that all of several dotted names begin with, and the dot behind
    them.
    """
    if len(names) < 2:
        return ""
    low, high = min(names), max(names)
    size = next(
        (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b),
        min(len(low), len(high)),
    )
    return low[: low.rfind(".", 0, size) + 1]


# --- names that say nearly the same ---------------------------------------------------

_DEPTH = 64
_SIBLINGS = 8
_MOST_FOLDED = 5000
"""Names that are compared for what they have in common."""


def merge_alike_rows(
    rows: Sequence[tuple[str, Hashable]],
) -> list[tuple[str, tuple[int, ...]]]:
    """Merge the rows of one look whose dotted names differ in one part into one row.

    Numbers become ranges, other parts braces:
    `layers.0-5.self_attn.{q,k,v,o}_proj.weight`. A row is its name and the indices of
    what it stands for, at the place of its first one.
    """
    groups: list[_Group] = [
        (tuple(name.split(".", _DEPTH)), look, (index,))
        for index, (name, look) in enumerate(rows)
    ]
    depth = max((len(parts) for parts, _, _ in groups), default=0)
    for numbers in (True, False):
        for position in reversed(range(depth)):
            groups = _merge_groups(groups, position, numbers)
    return [(".".join(parts), indices) for parts, _, indices in groups]


_Group = tuple[tuple[str, ...], Hashable, tuple[int, ...]]


def _merge_groups(groups: list[_Group], position: int, numbers: bool) -> list[_Group]:
    """Groups that differ in the part `position` alone, as one: in their number, or in a
    word that stands for itself yet.
    """
    met: dict[Hashable, list[_Group]] = {}
    for group in groups:
        parts, look, indices = group
        word = parts[position] if position < len(parts) else ""
        is_plain_number = is_number(word) and word == str(int(word))
        fits = (
            word
            and "{" not in word
            and (is_plain_number if numbers else number_range(word) is None)
        )
        key: Hashable = (
            (parts[:position], parts[position + 1 :], look) if fits else indices
        )
        met.setdefault(key, []).append(group)
    out: list[_Group] = []
    for same in met.values():
        parts, look, indices = same[0]
        if len(same) > 1:
            words = [group[0][position] for group in same]
            label = in_ranges(sorted(words, key=int)) if numbers else in_braces(words)
            parts = (*parts[:position], label, *parts[position + 1 :])
            indices = tuple(sorted(index for group in same for index in group[2]))
        out.append((parts, look, indices))
    return sorted(out, key=lambda group: group[2][0])


def is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10


def in_braces(names: list[str]) -> str:
    """`{q,k,v,o}_proj` for names that share a beginning or an end, up to a dot or an
    underscore.
    """
    first, last = min(names), max(names)
    size = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    head = first[: max(first.rfind(mark, 0, size) for mark in "._") + 1]
    turned = [name[len(head) :][::-1] for name in names]
    low, high = min(turned), max(turned)
    size = next(
        (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b),
        min(len(low), len(high)),
    )
    tail = low[: max(low.rfind(mark, 0, size) for mark in "._") + 1][::-1]
    middles = [name[len(head) : len(name) - len(tail)] for name in names]
    if len(middles) > _SIBLINGS:
        middles = [*middles[: _SIBLINGS - 1], f"… {len(names) - _SIBLINGS + 1} more"]
    return f"{head}{{{','.join(middles)}}}{tail}"


def number_range(text: str) -> tuple[int, int] | None:
    """The numbers that `3` or `4-7` stand for."""
    first, dash, last = text.partition("-")
    if not is_number(first) or (dash and not is_number(last)):
        return None
    return int(first), int(last or first)


def in_ranges(labels: list[str]) -> str:
    """`{1-2,4-5}.step` for labels that begin with numbers and end alike; one range
    without braces.
    """
    spans: list[tuple[int, int]] = []
    for label in labels:
        span = number_range(label.partition(".")[0])
        assert span is not None
        if spans and span[0] == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], span[1])
        else:
            spans.append(span)
    texts = [
        str(first) if first == last else f"{first}-{last}" for first, last in spans
    ]
    if len(texts) > _SIBLINGS:
        texts = [*texts[: _SIBLINGS - 1], f"… {len(texts) - _SIBLINGS + 1} more"]
    _, dot, rest = labels[0].partition(".")
    return (texts[0] if len(texts) == 1 else f"{{{','.join(texts)}}}") + dot + rest


def size_text(nbytes: int) -> str:
    """Bytes as `12.6 GiB`, or exactly below 1 KiB, as `8 B`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit < 6:
        value /= 1024
        unit += 1
    return (
        f"{_three_digits(value)} "
        f"{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[unit]}"
    )


def count_text(count: int) -> str:
    """A count as `25.6 M`, or exactly below 1,000."""
    if count < 1000:
        return str(count)
    value, unit = float(count), 0
    while value >= 999.5 and unit < 5:
        value /= 1000
        unit += 1
    return f"{_three_digits(value)} {('', 'K', 'M', 'B', 'T', 'Q')[unit]}"


def _three_digits(value: float) -> str:
    return (
        f"{value:.2f}"
        if value < 9.995
        else f"{value:.1f}"
        if value < 99.95
        else f"{value:.0f}"
    )


def counted_noun(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def and_more(
    texts: Sequence[str], count: int, joint: str = ", ", *, total: int = 0
) -> str:
    """The first `count` texts in one line, and the number of further ones, of `total`:
    `a, b and 3 more`.
    """
    further = (total or len(texts)) - count
    return joint.join(texts[:count]) + (f" and {further:,} more" if further > 0 else "")


def show_name(name: str, limit: int = 80) -> str:
    """As `show`, for the name of a tensor or value. What lies at the root of a file has
    none.
    """
    return show(name, limit) or "(the root)"


def show_names(names: Sequence[str], count: int = 4, limit: int = 80) -> str:
    """Names from a file in one line, made safe: the first of them, and how many more
    there are.
    """
    return and_more([show_name(name, limit) for name in names], count)


def places_text(places: Sequence[str], count: int = 4) -> str:
    """As `show_names`, for places in a checkpoint, where no name is its root."""
    return show_names([place or "the root" for place in places], count)


def show_folded_names(names: Sequence[str], count: int = 4, limit: int = 80) -> str:
    """As `show_names`, with siblings in braces and layers as ranges: `layers.0-11.bias
    ×12, fc.{weight,bias} and 3 more`.
    """
    rows = merge_alike_rows([(name, None) for name in names[:_MOST_FOLDED]])
    texts: list[str] = []
    for name, indices in rows[:count]:
        is_plain_list = len(indices) == name.count(",") + 1
        texts.append(
            _without_middle(name, limit)
            + ("" if is_plain_list else f" ×{len(indices):,}")
        )
    further = len(names) - sum(len(indices) for _, indices in rows[:count])
    return ", ".join(texts) + (f" and {further:,} more" if further else "")


def _without_middle(name: str, limit: int) -> str:
    """A name as one safe line. Where it is longer than `limit` its middle is left out,
    for names differ at their ends.
    """
    if len(name) <= limit:
        return show(name, None)
    tail = 2 * limit // 3
    return f"{show(name[: limit - 1 - tail], None)}…{show(name[-tail:], None)}"


def percent_text(part: int, whole: int) -> str:
    """A share that says 100 % only for all, and 0 % only for nothing."""
    if part == whole:
        return "100 %" if whole else "0 %"
    if not part:
        return "0 %"
    share = 100 * part / whole
    return "<0.1 %" if share < 0.1 else f"{min(share, 99.9):.1f} %"
