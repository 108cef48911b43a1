"""Text for people: escaping, shortening, sizes, counts and lists.

Every string from a file passes `show` on its way to a terminal. Nothing here trusts its
input.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence, Sized
from typing import TypeAlias

from ckpt.model.rows import NamedTuple

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

    # NFC gives texts that a terminal draws alike, such as an e with an accent in one
    # character and in two, the same form.
    looks: dict[str, set[str]] = {}
    for text in texts:
        looks.setdefault(normalize("NFC", text), set()).add(text)
    for index, text in enumerate(texts):
        twins = looks[normalize("NFC", text)]
        if len(twins) == 1:
            continue
        # Escaped marks tell twins apart only where their marks differ. Twins that have
        # the same marks, or none, differ in other characters, so those are escaped too.
        marks = {"".join(filter(combining, twin)) for twin in twins}
        marks_differ = len(marks) == len(twins)
        characters: list[str] = []
        for character in text:
            if combining(character):
                characters.append(_escape_code(character))
            elif marks_differ or character.isascii():
                characters.append(_escape_text(character))
            else:
                characters.append(_escape_code(character))
        shown[index] = "".join(characters)
    return shown


def show_literal(text: str) -> str:
    """Like `show`, for text that already holds Python literals: backslashes stay as
    they are.
    """
    if _is_safe(text):
        return text
    return re.sub(_UNPRINTABLE, _escape_all_but_backslash, text)


def show_line(line: str) -> str:
    """A line, already safe, that no runner takes for a command: GitHub Actions obeys
    `::name::` at its begin.
    """
    if "##" in line:
        line = re.sub(_RUNNERS, r"\\x23", line)
    blanks = len(line) - len(line.lstrip())
    if line.startswith("::", blanks):
        return f"{line[:blanks]}\\x3a{line[blanks + 1 :]}"
    return line


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
        if _WORD.fullmatch(text):
            return text
        # Nothing is special between single quotes, so one of them ends the quotes,
        # stands between double ones, and begins single ones again.
        return "'" + text.replace("'", "'\"'\"'") + "'"
    codes: list[str] = []
    for byte in raw:
        is_ascii_alphanumeric = byte < 0x80 and chr(byte).isalnum()
        if is_ascii_alphanumeric or byte in b"/._-":
            codes.append(chr(byte))
        else:
            codes.append(f"\\{byte:03o}")
    return f"$'{''.join(codes)}'"


def pasted_path(path: str) -> str | None:
    """As `shell_word`, for a path: one that begins with a dash is no option."""
    if path.startswith("-"):
        path = f"./{path}"
    return shell_word(path)


def show_cell(text: str, *, name: bool = False) -> str:
    """A cell of TSV, already safe, that no spreadsheet takes for a formula. A number
    stays, but not as a name.
    """
    if not re.match(FORMULA, text):
        return text
    if not name and re.fullmatch(_NUMBER, text):
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
    short_escape = _SHORT.get(match[0])
    return short_escape or _escape_code(match[0])


def _escape_all_but_backslash(match: re.Match[str]) -> str:
    if match[0] == "\\":
        return "\\"
    return _escape_match(match)


def _escape_code(character: str) -> str:
    """A character as the shortest numeric escape of Python that holds its code."""
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


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
    braced: list[str] = []
    for parent, leaves in groups:
        last = leaves[0]
        if len(leaves) > 1:
            last = "{" + ",".join(leaves) + "}"
        braced.append(f"{parent}.{last}" if parent else last)
    return braced


def common_begin(names: Sequence[str]) -> str:
    """The components that all of several dotted names begin with, and the dot behind
    them.
    """
    if len(names) < 2:
        return ""
    shared = shared_prefix_length(names)
    return names[0][: names[0].rfind(".", 0, shared) + 1]


def shared_prefix_length(texts: Sequence[str] | Sequence[list[str]]) -> int:
    """Count the characters with which all texts begin, or the tokens of split texts."""
    # In sorted order all texts lie between the first and the last, so what these two
    # share at their begin is shared by all.
    first, last = min(texts), max(texts)
    length = 0
    for of_first, of_last in zip(first, last, strict=False):
        if of_first != of_last:
            break
        length += 1
    return length


# --- names that say nearly the same ---------------------------------------------------

_DEPTH = 64
"""The parts of a name that are compared. What lies deeper stays one part."""
_SIBLINGS = 8
"""The most words between two braces."""
_MOST_FOLDED = 5000
LONG_NAME = 200
"""Letters of a name in a sentence about few tensors: what tells layers apart may stand
in the middle of a long one.
"""
"""Names that are compared for what they have in common."""


class _Group(NamedTuple):
    """Rows that became one: the parts of its name, the look that all of them have, and
    their indices.
    """

    parts: tuple[str, ...]
    look: Hashable
    indices: tuple[int, ...]


def merge_alike_rows(
    rows: Sequence[tuple[str, Hashable]],
) -> list[tuple[str, tuple[int, ...]]]:
    """Merge the rows of one look whose dotted names differ in one part into one row.

    Numbers become ranges, other parts braces:
    `layers.0-5.self_attn.{q,k,v,o}_proj.weight`. A row is its name and the indices of
    what it stands for, at the place of its first one.
    """
    groups: list[_Group] = []
    for index, (name, look) in enumerate(rows):
        parts = tuple(name.split(".", _DEPTH))
        groups.append(_Group(parts, look, (index,)))
    depth = max((len(group.parts) for group in groups), default=0)
    # Numbers merge first: layers that are one range have the same name, so the words
    # below all of them merge as those of one layer.
    for numbers in (True, False):
        for position in reversed(range(depth)):
            groups = _merge_groups(groups, position, numbers)
    return [(".".join(group.parts), group.indices) for group in groups]


def _merge_groups(groups: list[_Group], position: int, numbers: bool) -> list[_Group]:
    """Groups that differ in the part `position` alone, as one: in their number, or in a
    word that stands for itself yet.
    """
    families: dict[Hashable, list[_Group]] = {}
    for group in groups:
        # A group that cannot merge here is a family of its own. Its indices are a key
        # that no other group has.
        key: Hashable = group.indices
        if _has_word_at(group, position, numbers):
            before, after = group.parts[:position], group.parts[position + 1 :]
            key = (before, after, group.look)
        families.setdefault(key, []).append(group)
    merged: list[_Group] = []
    for family in families.values():
        if len(family) == 1:
            merged.append(family[0])
        else:
            merged.append(_merge_family(family, position, numbers))
    return sorted(merged, key=_first_index)


def _has_word_at(group: _Group, position: int, numbers: bool) -> bool:
    """Tell whether a group has a part there that can merge: a number, or another word.
    What has merged before, to braces or a range, stays.
    """
    if position >= len(group.parts):
        return False
    word = group.parts[position]
    if not word or "{" in word:
        return False
    if numbers:
        # `007` would be lost in a range, which has numbers as Python writes them.
        return is_number(word) and word == str(int(word))
    return number_range(word) is None


def _merge_family(family: list[_Group], position: int, numbers: bool) -> _Group:
    """Several groups that differ in one part, as one group."""
    words = [group.parts[position] for group in family]
    if numbers:
        label = in_ranges(sorted(words, key=int))
    else:
        label = in_braces(words)
    parts, look, _ = family[0]
    indices: list[int] = []
    for group in family:
        indices += group.indices
    merged_parts = (*parts[:position], label, *parts[position + 1 :])
    return _Group(merged_parts, look, tuple(sorted(indices)))


def _first_index(group: _Group) -> int:
    return group.indices[0]


def is_number(name: str) -> bool:
    """Tell whether a name is a number of at most nine ASCII digits."""
    return name.isascii() and name.isdigit() and len(name) < 10


def in_braces(names: list[str]) -> str:
    """`{q,k,v,o}_proj` for names that share a beginning or an end, up to a dot or an
    underscore.
    """
    head = _shared_words(names)
    # The shared end is the shared begin of the names turned round. The head is cut off
    # before, so that both never take the same characters.
    turned = [name[len(head) :][::-1] for name in names]
    tail = _shared_words(turned)[::-1]
    middles = [name[len(head) : len(name) - len(tail)] for name in names]
    return f"{head}{{{','.join(_first_siblings(middles))}}}{tail}"


def _shared_words(texts: list[str]) -> str:
    """The begin that all texts share, up to its last dot or underscore."""
    first = texts[0]
    shared = shared_prefix_length(texts)
    last_mark = max(first.rfind(".", 0, shared), first.rfind("_", 0, shared))
    return first[: last_mark + 1]


def _first_siblings(texts: list[str]) -> list[str]:
    """As many texts as stand between two braces, and the number of further ones."""
    if len(texts) <= _SIBLINGS:
        return texts
    shown = texts[: _SIBLINGS - 1]
    further = len(texts) - len(shown)
    return [*shown, f"… {further} more"]


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
    ranges: list[str] = []
    for first, last in spans:
        ranges.append(str(first) if first == last else f"{first}-{last}")
    ranges = _first_siblings(ranges)
    _, dot, rest = labels[0].partition(".")
    if len(ranges) == 1:
        return f"{ranges[0]}{dot}{rest}"
    return f"{{{','.join(ranges)}}}{dot}{rest}"


def size_text(nbytes: int) -> str:
    """Bytes as `12.6 GiB`, or exactly below 1 KiB, as `8 B`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    return _scaled_text(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def count_text(count: int) -> str:
    """A count as `25.6 M`, or exactly below 1,000."""
    if count < 1000:
        return str(count)
    return _scaled_text(count, 1000, ("", "K", "M", "B", "T", "Q"))


def _scaled_text(number: int, base: int, units: Sequence[str]) -> str:
    """A number in three digits, in the first unit in which it stays below 1,000."""
    value = float(number)
    unit = 0
    # 999.5 would be rounded to 1000, which has four digits.
    while value >= 999.5 and unit < len(units) - 1:
        value /= base
        unit += 1
    return f"{_three_digits(value)} {units[unit]}"


def _three_digits(value: float) -> str:
    # From 9.995 on two decimals would be rounded to `10.00`, which has four digits.
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


def counted_noun(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    if count != 1:
        noun = f"{noun}s"
    return f"{count:,} {noun}"


def be_verb(items: Sized | int) -> str:
    """`is` for one item, `are` for several or none. Items may be given as their
    number.
    """
    count = items if isinstance(items, int) else len(items)
    return "is" if count == 1 else "are"


def and_more(
    texts: Sequence[str], count: int, joint: str = ", ", *, total: int = 0
) -> str:
    """The first `count` texts in one line, and the number of further ones, of `total`:
    `a, b and 3 more`.
    """
    text = joint.join(texts[:count])
    further = (total or len(texts)) - count
    if further > 0:
        text += f" and {further:,} more"
    return text


def show_name(name: str, limit: int | None = 80) -> str:
    """As `show`, for the name of a tensor or value, whose middle is left out where it
    is longer than `limit`. What lies at the root of a file has none.
    """
    text = show(name, None) if limit is None else _without_middle(name, limit)
    return text or "(the root)"


def show_names(names: Sequence[str], count: int = 4, limit: int = 80) -> str:
    """Names from a file in one line, made safe: the first of them, and how many more
    there are.
    """
    first = _cut_apart(names[:count], limit)
    return and_more([text or "(the root)" for text in first], count, total=len(names))


def places_text(places: Sequence[str], count: int = 4) -> str:
    """As `show_names`, for places in a checkpoint, where no name is its root."""
    return show_names([place or "the root" for place in places], count)


def show_folded_names(names: Sequence[str], count: int = 4, limit: int = 80) -> str:
    """As `show_names`, with siblings in braces and layers as ranges: `layers.0-11.bias
    ×12, fc.{weight,bias} and 3 more`.
    """
    rows = merge_alike_rows([(name, None) for name in names[:_MOST_FOLDED]])
    texts: list[str] = []
    shown = 0
    cut_names = _cut_apart([name for name, _ in rows[:count]], limit)
    for (name, indices), text in zip(rows, cut_names, strict=False):
        is_cut = len(name) > limit
        # `fc.{weight,bias}` shows by itself that it is two names. `0-11` does not show
        # how many, and neither do braces that were cut.
        is_plain_list = len(indices) == name.count(",") + 1
        if not is_plain_list or (is_cut and len(indices) > 1):
            text += f" ×{len(indices):,}"
        texts.append(text)
        shown += len(indices)
    further = len(names) - shown
    listed = ", ".join(texts)
    return f"{listed} and {further:,} more" if further else listed


def _cut_apart(names: Sequence[str], limit: int) -> list[str]:
    """Cut the middles out of names. One stays whole where two would be one text, or
    where its middle is what tells it from another one.
    """
    cut = [_without_middle(name, limit) for name in names]
    return [
        show(name, None)
        if cut.count(text) > 1 or _hides_difference(name, text, names)
        else text
        for name, text in zip(names, cut, strict=True)
    ]


def _hides_difference(name: str, text: str, others: Sequence[str]) -> bool:
    """Tell whether a name begins to differ from another one in the part that its cut
    `text` lacks.
    """
    head, mark, tail = text.partition("…")
    # In braces words are left out, and each of them is one of several names.
    if not mark or head.count("{") > head.count("}"):
        return False
    first, last = len(head), len(name) - len(tail)
    return any(
        first <= shared_prefix_length((name, other)) < last
        for other in others
        if other != name
    )


def _without_middle(name: str, limit: int) -> str:
    """A name as one safe line. Where it is longer than `limit` its middle is left out,
    for names differ at their ends.
    """
    if len(name) <= limit:
        return show(name, None)
    begin, brace, rest = name.partition("{")
    listed, _, end = rest.partition("}")
    words = listed.split(",")
    if brace and "{" not in end and len(words) > 3:
        text = _without_middle_words(begin, words, end, limit)
        if len(text) <= limit:
            return show(text, None)
    tail = 2 * limit // 3
    kept = name[-tail:]
    inside, closing, behind = kept.partition("}")
    # Half a list in braces says nothing.
    if closing and "{" not in inside:
        kept = behind
    return f"{show(name[: limit - 1 - tail], None)}…{show(kept, None)}"


def _without_middle_words(
    begin: str, words: Sequence[str], end: str, limit: int
) -> str:
    """Words in braces without those in their middle, of which none is cut:
    `lstm.{weight_ih_l0,…,bias_hh_l1}`.
    """
    first, last = [words[0]], [words[-1]]
    between = list(words[1:-1])
    text = f"{begin}{{{first[0]},…,{last[0]}}}{end}"
    while between:
        # One more at the begin, and one more at the end, by turns.
        if len(first) <= len(last):
            first.append(between.pop(0))
        else:
            last.insert(0, between.pop())
        longer = f"{begin}{{{','.join(first)},…,{','.join(last)}}}{end}"
        if len(longer) > limit:
            break
        text = longer
    return text


def percent_text(part: int, whole: int) -> str:
    """A share that says 100 % only for all, and 0 % only for nothing."""
    if part == whole:
        return "100 %" if whole else "0 %"
    if not part:
        return "0 %"
    share = 100 * part / whole
    if share < 0.1:
        return "<0.1 %"
    return f"{min(share, 99.9):.1f} %"
