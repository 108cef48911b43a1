"""`ckpt merge` of a LoRA on every layer beside `cp` and `sync` of the base, and `ckpt
diff --adapter` of the result beside reading both.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shlex import join

from benchmarks.quantised import COLUMNS, ROWS, write_layers
from benchmarks.setting import Case, Setting, ckpt, ckpt_command
from benchmarks.timing import Job

RANK = 16
_SHAPES = {"lora_A": (RANK, COLUMNS), "lora_B": (ROWS, RANK)}


def write_adapter(path: Path, layers: int) -> None:
    """Write the folder of an adapter of PEFT on so many layers. Imports numpy."""
    import numpy as np

    path.mkdir()
    chance = np.random.default_rng(1)
    header: dict[str, object] = {}
    end = 0
    for layer in range(layers):
        for part, shape in _SHAPES.items():
            name = f"base_model.model.model.layers.{layer}.mlp.up_proj.{part}.weight"
            size = 4 * shape[0] * shape[1]
            header[name] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [end, end + size],
            }
            end += size
    text = json.dumps(header).encode()
    with (path / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(layers):
            for shape in _SHAPES.values():
                numbers = chance.standard_normal(shape, np.float32)
                file.write((numbers * np.float32(0.02)).tobytes())
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
    (path / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_merged(path: Path, base: str, adapter: str) -> None:
    """Write the merge of an adapter."""
    words = [*ckpt_command(), "merge", base, adapter, "-o", str(path), "-q"]
    subprocess.run(words, check=True)


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for the merge, and one for the check of it."""
    folder, size_gb = setting.folder, setting.sizes.size_gb
    layers = max(1, round(size_gb * 1e9 / (2 * ROWS * COLUMNS)))
    base = setting.made(folder / "plain.safetensors", write_layers, layers, "")
    adapter = setting.made(folder / "adapter", write_adapter, layers)
    out, copy = folder / "out.safetensors", folder / "copy.safetensors"
    both = f"cp {join([str(base), str(copy)])} && sync {join([str(copy)])}"
    remove = ("rm", "-f", str(out), str(copy))
    size = f"{base.stat().st_size / 1e9:.2g} GB of bfloat16"
    merge = ckpt(
        f"`ckpt merge`, rank {RANK} on all layers, {size}",
        "merge",
        base,
        adapter,
        "-o",
        out,
        prepare=remove,
    )
    yield [
        Case(
            "merge/copy",
            merge,
            Job("`cp` + `sync`", ("sh", "-c", both), prepare=remove),
        )
    ]
    merged = setting.made(
        folder / "merged.safetensors", write_merged, str(base), str(adapter)
    )
    read = f"cat {join([str(base), str(merged)])} > /dev/null"
    check = ckpt(
        f"`ckpt diff --adapter`, {size}", "diff", base, merged, "--adapter", adapter
    )
    yield [Case("merge/check", check, Job("`cat` of both", ("sh", "-c", read)))]
    setting.forget(base, adapter, merged, out, copy)
