"""Names: making text printable, dotted names, globs, natural order, the prefixes that wrappers leave.

Every string that came from a file passes `show` on its way to a terminal; nothing here trusts its input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

Key = str | int
"""One step of a path; keys of other types travel as `NamedKey`."""


class NamedKey(str):
    """A key that is neither a string nor an int (bytes, float, tuple, object …), by a text that names it.

    `kind` is the type that the file gave it.
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> NamedKey:
        key = super().__new__(cls, text)
        key.kind = kind
        return key


Path = tuple[Key, ...]

TEXT_LIMIT = 200
"""Characters of one string from a file that text and messages show."""

# Control characters, line separators, bidi marks, zero-width and tag characters, surrogates: what moves the
# cursor, reorders or hides text. The backslash is doubled so that an escape can be told from its source.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff\\\\]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def show(text: str, limit: int | None = TEXT_LIMIT) -> str:
    """`text` as one line that is safe on a terminal: escapes for what is not printable, cut at `limit`."""
    if limit is not None and len(text) > limit:
        return f"{_escaped(text[: limit - 1])}…"
    return _escaped(text)


def show_literal(text: str) -> str:
    """A text that holds Python literals already, made safe: as `show`, with its backslashes as they are."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda match: "\\" if match[0] == "\\" else _escape(match), text)


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def dotted(path: Sequence[Key]) -> str:
    """The name that a path reads as: its keys joined with dots. Two paths may share one name."""
    return ".".join([key if type(key) is str else str(key) for key in path])


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts `layers.2` before `layers.10`."""
    return tuple(
        (0, int(part)) if part.isascii() and part.isdigit() and len(part) < 19 else (1, part)
        for part in re.split(r"(\d+)", text)
        if part
    )


class Globs:
    """`--include` and `--exclude`: shell patterns on dotted names; `*` crosses dots."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = _union(include)
        self._exclude = _union(exclude)

    def __bool__(self) -> bool:
        return self._include is not None or self._exclude is not None

    def match(self, *names: str) -> bool:
        """Whether any of the names that one tensor goes by is included, and none excluded."""
        if self._include is not None and not any(self._include.match(name) for name in names):
            return False
        return self._exclude is None or not any(self._exclude.match(name) for name in names)


def _union(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None


def nearest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first: those that end in it, then those that end in something alike."""
    pool = list(dict.fromkeys(names))
    found = [other for other in pool if other.endswith(f".{name}")]
    if len(found) < count and len(name) <= TEXT_LIMIT:
        from difflib import get_close_matches  # here: only a typo pays for it

        depth = name.count(".") + 1
        ends: dict[str, str] = {}
        for other in pool[:20_000]:
            if len(other) <= TEXT_LIMIT:
                ends.setdefault(".".join(other.split(".")[-depth:]), other)
        last = name.rpartition(".")[2]
        for end in get_close_matches(name, ends, 4 * count):
            if get_close_matches(last, [end.rpartition(".")[2]]):  # not alike by what stands before it only
                found.append(ends[end])
    return list(dict.fromkeys(found))[:count]


WRAPPERS = {
    "module": "DataParallel or DDP",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning or DeepSpeed",
}
"""Attribute names under which wrappers keep the model they wrap, and who writes them."""


_WRAPPED = tuple(f"{part}." for part in WRAPPERS)


def wrapper_prefix(name: str) -> str:
    """The wrappers' attributes that `name` begins with, with the last dot: `_orig_mod.module.`, or ``."""
    if not name.startswith(_WRAPPED):
        return ""
    end = 0
    for part in name.split("."):
        if part not in WRAPPERS or end + len(part) + 1 > len(name) - 1:
            break
        end += len(part) + 1
    return name[:end]


def inner_wrappers(name: str) -> list[tuple[str, str]]:
    """The wrappers' attributes inside `name`, after its leading ones, each with the name up to its dot.

    Only those that no model is likely to use itself: `model._orig_mod.fc.weight` -> `_orig_mod`,
    `model._orig_mod.`. Of an attribute that comes twice, the first.
    """
    found: dict[str, str] = {}
    at = len(wrapper_prefix(name))
    for part in name[at:].split(".")[:-1]:
        at += len(part) + 1
        if part in WRAPPERS and part.startswith("_"):
            found.setdefault(part, name[:at])
    return list(found.items())


def braced(names: Sequence[str]) -> list[str]:
    """Names with siblings that follow each other in braces: `fc.weight`, `fc.bias` -> `fc.{weight,bias}`."""
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


def own_name(name: str) -> str:
    """`name` without the attributes of wrappers that no model would use itself: `a._orig_mod.b` -> `a.b`."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in WRAPPERS or not part.startswith("_"))


def unwrapped_name(name: str) -> str:
    """`name` without the attributes of wrappers: all leading ones, and inside those that no model would use."""
    rest = name[len(wrapper_prefix(name)) :]
    if "._" not in rest:
        return rest
    parent, _, last = rest.rpartition(".")
    return f"{own_name(parent)}.{last}" if own_name(parent) else last


def usual_prefix(names: Iterable[str]) -> str:
    """What `unwrapped_name` takes off the front of most names; of equally many, the one seen first."""
    gone: dict[str, int] = {}
    for name in names:
        plain = unwrapped_name(name)
        if name.endswith(plain):
            prefix = name[: len(name) - len(plain)]
            gone[prefix] = gone.get(prefix, 0) + 1
    return max(gone, key=lambda prefix: gone[prefix]) if gone else ""


def writers(prefix: str) -> str:
    """Who writes a prefix of wrappers: `torch.compile around DataParallel or DDP`."""
    return " around ".join(WRAPPERS[part] for part in prefix.rstrip(".").split("."))
