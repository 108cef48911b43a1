"""GGUF files written by hand, field by field, so that each field can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

KINDS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, ""),
    "array": (9, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12


class Tensor(NamedTuple):
    """A tensor: its name, its sizes as GGUF has them (the fastest first), the number of
    its type, its bytes.
    """

    name: str
    sizes: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


def text(value: str | bytes, order: str = "<") -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(f"{order}Q", len(data)) + data


def value(kind: str, content: object, order: str = "<") -> bytes:
    """A value of the metadata with its type. An array is (kind of its items, the
    items).
    """
    number, letter = KINDS[kind]
    head = struct.pack(f"{order}I", number)
    if kind == "str":
        return head + text(str(content), order)
    if kind == "array":
        inner, items = content  # type: ignore[misc]
        body = b"".join(value(inner, item, order)[4:] for item in items)
        return head + struct.pack(f"{order}IQ", KINDS[inner][0], len(items)) + body
    return head + struct.pack(f"{order}{letter}", content)


def pair(key: str, kind: str, content: object, order: str = "<") -> bytes:
    return text(key, order) + value(kind, content, order)


def gguf(
    pairs: Sequence[tuple[str, str, object] | bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
    tail: bytes = b"",
) -> bytes:
    """A GGUF file. `counts` are the numbers of tensors and pairs where the header lies
    about them.
    """
    rows = [row if isinstance(row, bytes) else pair(*row, order) for row in pairs]
    infos, body = b"", b""
    for tensor in tensors:
        body += bytes(-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        sizes = struct.pack(
            f"{order}I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes
        )
        infos += (
            text(tensor.name, order)
            + sizes
            + struct.pack(f"{order}IQ", tensor.kind, offset)
        )
        body += tensor.data
    number, keys = counts or (len(tensors), len(rows))
    head = (
        b"GGUF"
        + struct.pack(f"{order}IQQ", version, number, keys)
        + b"".join(rows)
        + infos
    )
    head += bytes(-len(head) % alignment) if tensors else b""
    return head + body + (bytes(-len(body) % alignment) if tensors else b"") + tail


def q4_0(*scales: float) -> bytes:
    """Blocks of Q4_0 with these scales, in which element n of a block has the code n
    modulo 16.
    """
    codes = bytes((n % 16) | ((n + 16) % 16) << 4 for n in range(16))
    return b"".join(struct.pack("<e", scale) + codes for scale in scales)


def small() -> bytes:
    """A small file that is whole: metadata of several kinds, a plain tensor and one in
    blocks.
    """
    return gguf(
        [
            ("general.architecture", "str", "llama"),
            ("general.name", "str", "Tiny"),
            ("general.license", "str", "mit"),
            ("llama.block_count", "u32", 1),
            ("llama.rope.freq_base", "f32", 10000.0),
            ("tokenizer.ggml.add_bos_token", "bool", True),
            ("tokenizer.ggml.tokens", "array", ("str", ["a", "b", "\u00e9"])),
            ("tokenizer.chat_template", "str", "{{ messages }}"),
        ],
        [
            Tensor("token_embd.weight", (32, 3), Q4_0, q4_0(1.0, 0.5, -2.0)),
            Tensor("output_norm.weight", (4,), F32, struct.pack("<4f", 1, 2, 3, 4)),
        ],
    )
