"""Bytes behind the end of a checkpoint, in a few words: people ask what they are before
they cut them off.
"""

from __future__ import annotations

from ckpt.bytes.source import Source
from ckpt.model.errors import CkptError
from ckpt.model.text import counted_noun, show

_LOOKED, _SHOWN = 1 << 16, 40
"""Bytes that are looked at, and letters of a text that are shown."""
_SAME = 64
_KINDS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"version https://git-lfs", "a Git LFS pointer"),
    (b"\x1f\x8b", "gzip"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
)


def follow_text(source: Source, begin: int) -> str:
    """Return the subject and the verb of a sentence about these bytes: `9 bytes (zeros)
    follow`.
    """
    return (
        f"{trailing_text(source, begin)} "
        f"{'follows' if source.size - begin == 1 else 'follow'}"
    )


def trailing_text(source: Source, begin: int) -> str:
    """Return what the bytes from `begin` to the end of a file are: `7 bytes (text:
    'garbage')`, `9 bytes (zeros)`.
    """
    count = source.size - begin
    try:
        data = bytes(source.read(begin, min(count, _LOOKED)))
        first = bytes(source.read(0, min(begin, _SAME)))
    except CkptError:
        return counted_noun(count, "byte")
    kind = _kind(data, first, is_all=count <= _LOOKED)
    if kind:
        return f"{counted_noun(count, 'byte')} ({kind})"
    return counted_noun(count, "byte")


def _kind(data: bytes, first: bytes, *, is_all: bool) -> str:
    """Return what bytes are, or nothing. `first` are those at the beginning of the
    file.
    """
    if not data.strip(b"\0"):
        return "zeros" if is_all else "zeros at first"
    if len(first) == _SAME and data.startswith(first):
        return "the beginning of the file again"
    kind = next((text for mark, text in _KINDS if data.startswith(mark)), "")
    # A letter of UTF-8 has at most four bytes.
    letters = data[: 4 * _SHOWN].decode("utf-8", "replace")
    if len(data) > 4 * _SHOWN:
        letters = letters[:-1]  # it may be cut
    is_text = all(letter.isprintable() or letter in "\r\n\t" for letter in letters)
    if kind or not is_text or "\ufffd" in letters:
        return kind
    return f"text: '{show(letters.strip()[:_SHOWN], 60)}'"
