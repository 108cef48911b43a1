"""`write.py`: writes the files beside it with gguf-py, the Python package of llama.cpp
(`pip install gguf==0.19.0`).

`blocks.gguf` has random blocks of each type, with scales that are zero, infinite, NaN
and subnormal; its metadata has the SHA-256 of what gguf-py makes of each, as float32
with one kind of NaN. The others are a small model: quantized, in three files, of a
big-endian machine.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

HERE = Path(__file__).resolve().parent
BLOCKS = 24
HALVES = (0x0000, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8000, 0x3C00)
"""Zero, infinities, NaN, the least subnormal, negative zero, one."""
UNCHANGED = (
    "F32",
    "F16",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "BF16",
    "Q8_1",
    "Q8_K",
    "Q1_0",
)
"""Types that are no blocks, and blocks that gguf-py does not decode."""


def random_blocks(kind: Kind, random: np.random.Generator) -> np.ndarray:
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, (BLOCKS, size), dtype="u1")
    blocks[0], blocks[1] = 0, 255
    for number, half in enumerate(HALVES):
        for place in (0, 2, size - 2):
            row = 2 + (3 * number + (0, 2, size - 2).index(place)) % (BLOCKS - 2)
            blocks[row, place : place + 2] = half & 255, half >> 8
    return blocks


def digest(values: np.ndarray) -> str:
    numbers = values.astype("<f4")
    numbers[np.isnan(numbers)] = np.nan
    words = numbers.view("<u4")
    words[np.isnan(numbers)] = 0x7FC00000
    return hashlib.sha256(words.tobytes()).hexdigest()


def write_blocks(path: Path) -> None:
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "test")
    for kind in Kind:
        if kind.name in UNCHANGED:
            continue
        blocks = random_blocks(kind, random)
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(blocks, kind)
        writer.add_string(f"expected.{kind.name}", digest(values))
        writer.add_tensor(kind.name, blocks.reshape(BLOCKS, -1), raw_dtype=kind)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path: Path, kinds: dict[str, Kind], **options: object) -> None:
    random = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_name("Tiny")
    writer.add_license("mit")
    writer.add_block_count(2)
    writer.add_token_list([f"token {number}" for number in range(300)])
    writer.add_token_scores([number / 8 for number in range(300)])
    writer.add_chat_template("{{ messages }}")
    names = [
        "token_embd",
        *(f"blk.{n}.{part}" for n in range(2) for part in ("attn_q", "ffn_up")),
        "output",
    ]
    for name in names:
        values = random.standard_normal((4, 64), dtype="f4")
        kind = kinds.get(name.rpartition(".")[2], Kind.F32)
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(
            f"{name}.weight", data, raw_dtype=None if kind == Kind.F32 else kind
        )
    finish(writer)


def main() -> int:
    write_blocks(HERE / "blocks.gguf")
    mixed = {"attn_q": Kind.Q4_0, "ffn_up": Kind.Q8_0, "token_embd": Kind.F16}
    write_model(HERE / "tiny.gguf", mixed)
    write_model(HERE / "split.gguf", mixed, split_max_tensors=2)
    few = {"attn_q": Kind.Q4_0, "ffn_up": Kind.Q8_0}
    write_model(HERE / "big-floats.gguf", {}, endianess=gguf.GGUFEndian.BIG)
    write_model(HERE / "little.gguf", few)
    shutil.copy(HERE / "little.gguf", HERE / "big.gguf")
    # The blocks of another order of bytes are made by llama.cpp's own program.
    subprocess.run(
        ["gguf-convert-endian", HERE / "big.gguf", "big"], input=b"YES\n", check=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
