"""Frames of a pickle (PEP 3154): they say how much to read at once, and nothing of what it means."""

from __future__ import annotations


def without_frames(data: bytes) -> bytes:
    """The same pickle without FRAME opcodes, which only tell a reader how much to read. Other bytes stay as they are."""
    if data[:1] != b"\x80" or data[2:3] != b"\x95":
        return data
    parts, at = [data[:2]], 2
    while data[at : at + 1] == b"\x95" and at + 9 <= len(data):
        end = at + 9 + int.from_bytes(data[at + 1 : at + 9], "little")
        if end > len(data):
            return data
        parts.append(data[at + 9 : end])
        at = end
    if at < len(data):
        parts.append(data[at:])
    return b"".join(parts)
