"""The targets: what each job may cost beside its peer, for the sizes of a full run.
They are here and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """What a row wants at most; None wants nothing of that kind.

    `wall` and `cpu` are multiples of the peer's seconds, `more_ms` are milliseconds of
    wall time beyond the peer's, `more_cpu_ms` those of CPU time, `memory_mb` is the
    peak of ckpt alone, in 10⁶ bytes.
    """

    wall: float | None = None
    cpu: float | None = None
    more_ms: float | None = None
    memory_mb: float | None = None
    more_cpu_ms: float | None = None


DIFF_WALL = {
    "f32": 0.9,
    "bf16": 1.7,
    "f16": 3.5,
    "f8": 7.0,
    "i8": 7.0,
    "bool": 7.0,
    "f64": 2.5,
    "c64": 5.0,
    "i64": 4.0,
}
"""The multiples of the wall time of `cmp` that `diff` may take over two files of a type
whose every element changed.
"""

QUANTISED = ("gptq", "fp8", "nf4", "q4_0", "q8_0")
"""The ways to quantise of `quantised`: to floats beside `cp` + `sync` of these,
compared with the base beside reading both.
"""

TARGETS: dict[str, Target] = {
    "start/version": Target(cpu=2),
    "start/help": Target(cpu=1.2),
    "start/inspect": Target(cpu=1.4, memory_mb=25),
    "start/inspect-large": Target(cpu=1.4, memory_mb=25),
    "inspect/large": Target(wall=1 / 14, memory_mb=25),
    "inspect/terminal": Target(wall=1 / 8, memory_mb=40),
    "inspect/many": Target(cpu=1 / 12, memory_mb=200),
    "inspect/tsv": Target(cpu=1 / 10, memory_mb=150),
    "inspect/million": Target(memory_mb=1600),
    "get/many": Target(cpu=1 / 25),
    "inspect/shards": Target(cpu=1.2),
    "lint/files": Target(cpu=2),
    "diff/equal": Target(wall=0.4, memory_mb=150),
    "diff/equal-torch": Target(wall=1 / 5),
    "diff/quick": Target(wall=0.5),
    "diff/f32-torch": Target(wall=1 / 5),
    "diff/small-tensors": Target(wall=0.5),
    **{
        f"diff/{name}": Target(wall=wall, memory_mb=150)
        for name, wall in DIFF_WALL.items()
    },
    **{f"stats/{name}": Target(wall=1.3) for name in DIFF_WALL},
    **{f"stats/{name}-torch": Target(wall=1 / 5) for name in DIFF_WALL},
    "verify/zip": Target(wall=0.6),
    "rehome/copy": Target(wall=1.15, memory_mb=100),
    "strip/copy": Target(wall=1.15, memory_mb=100),
    "rehome/shared": Target(wall=1 / 5, memory_mb=100),
    "strip/shared": Target(wall=1 / 5, memory_mb=100),
    "rehome/torch": Target(wall=1),
    "convert/copy": Target(wall=1.15, memory_mb=100),
    "convert/torch": Target(wall=1),
    **{f"average/{name}": Target(wall=1.3, memory_mb=150) for name in ("f32", "bf16")},
    **{f"average/{name}-torch": Target(wall=1 / 3) for name in ("f32", "bf16")},
    **{
        f"quantised/{name}": Target(wall=4, memory_mb=200)
        for name in ("gptq", "nf4", "q4_0", "q8_0")
    },
    "quantised/fp8": Target(wall=2, memory_mb=200),
    **{f"quantised/{name}-diff": Target(wall=3, memory_mb=200) for name in QUANTISED},
    "merge/copy": Target(wall=2.5, memory_mb=200),
    "merge/check": Target(memory_mb=200),
    "recipe/rows": Target(cpu=6, memory_mb=250),
    "recipe/columns": Target(cpu=6, memory_mb=250),
    "recipe/experts": Target(memory_mb=250),
    "recipe/foreign": Target(memory_mb=400),
    "layout/rows": Target(wall=1.5, memory_mb=200),
    "layout/columns": Target(wall=2.5, memory_mb=200),
    "in-place/clean": Target(more_ms=60),
    "in-place/dirty": Target(more_ms=60),
    "dcp/safetensors": Target(wall=1.2, memory_mb=60),
    "dcp/torch-file": Target(wall=1.2, memory_mb=60),
    "dcp/torch-converter": Target(wall=1 / 4),
    "dcp/write": Target(wall=1.2, memory_mb=60),
    "dcp/write-torch": Target(wall=1),
    "dcp/items": Target(wall=8, memory_mb=150),
    "dcp/metadata": Target(cpu=1, memory_mb=150),
    "cluster/tasks": Target(
        more_cpu_ms=5000, memory_mb=150
    ),  # 5 ms for each of 1,000 tasks
}
"""The target of each row, by its key. `rehome/shared` and `strip/shared` hold where the
disk can share blocks.
"""
