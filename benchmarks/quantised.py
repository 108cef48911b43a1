"""`ckpt convert --dequantize` beside `cp` and `sync` of its result, and `ckpt diff BASE
QUANTISED` beside reading both.

The base has layers of bfloat16. Each is quantised by rounding to nearest, and stands in
the file many times, so that files of gigabytes are made in seconds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import join
from typing import Any

from benchmarks.setting import Case, Setting, ckpt
from benchmarks.timing import Job

ROWS, COLUMNS = 2048, 4096
GROUP = 128
Parts = dict[str, Any]
"""The ends of names -> arrays of a layer."""
DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "int32": "I32",
    "uint8": "U8",
}


def weight_of(seed: int = 0) -> Any:
    """A layer of float32 that is bfloat16. Imports numpy."""
    import numpy as np

    wide = np.random.default_rng(seed).standard_normal(
        (ROWS, COLUMNS), np.float32
    ) * np.float32(0.02)
    return (wide.view("u4") & 0xFFFF0000).view("f4")


def halves_of(weight: Any) -> Any:
    """The upper halves of numbers of float32: bfloat16 as words."""
    return (weight.view("u4") >> 16).astype("u2")


def scaled(weight: Any, group: int, most: float) -> tuple[Any, Any]:
    """Groups of columns divided by their scales, and the scales. Imports numpy."""
    import numpy as np

    blocks = weight.reshape(ROWS, -1, group)
    scales = (np.abs(blocks).max(-1) / most).astype("f2")
    return blocks / scales.astype("f4")[..., None], scales


def gptq(weight: Any) -> Parts:
    import numpy as np

    blocks, scales = scaled(weight, GROUP, 7)
    codes = (np.rint(blocks).clip(-8, 7) + 8).astype("u4").reshape(ROWS, -1, 8)
    shifts = np.arange(0, 32, 4, dtype="u4")
    words = (codes << shifts).sum(-1, dtype="u4").view("i4")
    return {
        "qweight": np.ascontiguousarray(words.T),
        "qzeros": np.full((COLUMNS // GROUP, ROWS // 8), 0x77777777, "i4"),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": (np.arange(COLUMNS) // GROUP).astype("i4"),
    }


def fp8(weight: Any) -> Parts:
    """Blocks of 128 × 128, with codes that are whole numbers up to 16. Imports
    numpy.
    """
    import numpy as np

    blocks = weight.reshape(ROWS // 128, 128, COLUMNS // 128, 128)
    scales = np.abs(blocks).max((1, 3)) / 16
    numbers = np.rint(blocks / scales[:, None, :, None]).reshape(ROWS, COLUMNS)
    sizes = np.array(
        [0, 0x38, 0x40, 0x44, 0x48, 0x4A, 0x4C, 0x4E, *range(0x50, 0x58), 0x58], "u1"
    )
    codes = sizes[np.abs(numbers).astype("i8")] | np.where(numbers < 0, 0x80, 0).astype(
        "u1"
    )
    return {"weight": codes, "weight_scale_inv": scales.astype("f4")}


def nf4(weight: Any) -> Parts:
    import numpy as np

    table = np.linspace(-1, 1, 16, dtype="f4")
    flat = weight.reshape(-1, 64)
    largest = np.abs(flat).max(1)
    codes = np.rint((flat / largest[:, None] + 1) * 7.5).astype("u1").reshape(-1, 2)
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "bfloat16",
        "shape": [ROWS, COLUMNS],
    }
    text = np.frombuffer(json.dumps(state).encode(), "u1")
    return {
        "weight": (codes[:, :1] << 4) | codes[:, 1:],
        "weight.absmax": largest,
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": text,
    }


KINDS: dict[str, tuple[str, Callable[[Any], Parts]]] = {
    "gptq": ("GPTQ, groups of 128", gptq),
    "fp8": ("FP8, blocks of 128 × 128", fp8),
    "nf4": ("NF4, groups of 64", nf4),
}


def write_layers(path: Path, layers: int, kind: str) -> None:
    """Write a safetensors file of so many layers: quantised, or of bfloat16. Imports
    numpy.
    """
    weight = weight_of()
    parts = KINDS[kind][1](weight) if kind else {"weight": halves_of(weight)}
    header: dict[str, object] = {}
    end = 0
    for layer in range(layers):
        for name, array in parts.items():
            dtype = (
                "F8_E4M3"
                if kind == "fp8" and name == "weight"
                else DTYPES[array.dtype.name]
            )
            header[f"model.layers.{layer}.mlp.up_proj.{name}"] = {
                "dtype": dtype,
                "shape": list(array.shape),
                "data_offsets": [end, end + array.nbytes],
            }
            end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(layers):
            for array in parts.values():
                file.write(array.tobytes())


def write_gguf(path: Path, layers: int, kind: str) -> None:
    """Write a GGUF file of so many layers of Q4_0 or Q8_0. Imports numpy."""
    import numpy as np

    number, most = (2, 7) if kind == "Q4_0" else (8, 127)
    blocks, scales = scaled(weight_of(), 32, most)
    codes = np.rint(blocks).clip(-most, most)
    if kind == "Q4_0":
        halves = (codes + 8).astype("u1").reshape(-1, 32)
        packed = halves[:, :16] | halves[:, 16:] << 4
    else:
        packed = codes.astype("i1").view("u1").reshape(-1, 32)
    data = np.concatenate([scales.reshape(-1, 1).view("u1"), packed], 1).tobytes()
    architecture = (
        text_of("general.architecture") + struct.pack("<I", 8) + text_of("qwen2")
    )
    infos = b"".join(
        text_of(f"blk.{layer}.ffn_up.weight")
        + struct.pack("<I2QIQ", 2, COLUMNS, ROWS, number, layer * len(data))
        for layer in range(layers)
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, layers, 1) + architecture + infos
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _ in range(layers):
            file.write(data)


def text_of(text: str) -> bytes:
    """A text of GGUF."""
    return struct.pack("<Q", len(text)) + text.encode()


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for each way to quantise."""
    folder, size_gb = setting.folder, setting.sizes.size_gb / 2
    layers = max(1, round(size_gb * 1e9 / (2 * ROWS * COLUMNS)))
    base = setting.made(folder / "base.safetensors", write_layers, layers, "")
    out, copy = folder / "floats.safetensors", folder / "copy.safetensors"
    remove = ("rm", "-f", str(out), str(copy))
    both = f"cp {join([str(base), str(copy)])} && sync {join([str(copy)])}"
    copied = Job("`cp` + `sync` of the result", ("sh", "-c", both), prepare=remove)
    for key, (label, _) in KINDS.items():
        path = setting.made(folder / f"{key}.safetensors", write_layers, layers, key)
        yield rows(key, label, path, base, ("--dequantize", "-o", out), copied)
        setting.forget(path, out, copy)
    for key in ("Q4_0", "Q8_0"):
        path = setting.made(folder / f"{key}.gguf", write_gguf, layers, key)
        yield rows(key.lower(), f"GGUF, {key}", path, base, ("-o", out), copied)
        setting.forget(path, out, copy)
    setting.forget(base)


def rows(
    key: str,
    label: str,
    path: Path,
    base: Path,
    options: tuple[str | Path, ...],
    copied: Job,
) -> list[Case]:
    """The two rows of a file: taken back, and compared."""
    size = f"{base.stat().st_size / 1e9:.2g} GB of bfloat16"
    convert = ckpt(
        f"`ckpt convert`, {label} to {size}",
        "convert",
        path,
        "--dtype",
        "bfloat16",
        *options,
        prepare=copied.prepare,
    )
    diff = ckpt(f"`ckpt diff` of {size} and {label}", "diff", base, path, differs=True)
    read = Job(
        "`cat` of both", ("sh", "-c", f"cat {join([str(base), str(path)])} > /dev/null")
    )
    return [
        Case(f"quantised/{key}", convert, copied),
        Case(f"quantised/{key}-diff", diff, read),
    ]
