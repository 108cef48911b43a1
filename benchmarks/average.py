"""`ckpt average` of three files, beside reading them all and writing one, and beside
the script that everyone writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import join

from benchmarks.files import ITEM_BYTES, write_state
from benchmarks.setting import (
    LARGE_TENSORS,
    PARTS,
    Case,
    Setting,
    ckpt,
    names,
    random_floats,
    rows_of,
)
from benchmarks.timing import Job

TYPES = {"f32": "float32", "bf16": "bfloat16"}
FILES = 3

TORCH_PEER = """\
import sys
import torch

*paths, out = sys.argv[1:]
states = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
mean = {}
for name, last in states[-1].items():
    total = sum(state[name].double() for state in states)
    mean[name] = (total / len(states)).to(last.dtype)
torch.save(mean, out)
"""


def write_random(path: Path, name: str, rows: int, seed: int) -> None:
    """Save a state dict of random numbers of a dtype. Imports numpy."""
    payloads = random_floats(len(PARTS), rows, seed)
    if name == "bfloat16":
        payloads = [upper_halves(payload) for payload in payloads]
    write_state(path, names(LARGE_TENSORS), (rows, 1024), name, payloads)


def upper_halves(data: bytes) -> bytes:
    """Numbers of float32, cut to bfloat16. Imports numpy."""
    import numpy

    return numpy.frombuffer(data, numpy.uint16)[1::2].tobytes()


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for each dtype."""
    folder, size_gb = setting.folder, setting.sizes.size_gb / 2
    out = folder / "mean.pth"
    remove = ("rm", "-f", str(out))
    for label, name in TYPES.items():
        rows = rows_of(size_gb, ITEM_BYTES[name])
        paths = [
            setting.made(
                folder / f"{label}_{number}.pth", write_random, name, rows, number
            )
            for number in range(FILES)
        ]
        given = join(map(str, paths))
        title = f"{FILES} × {size_gb:g} GB of {name}"
        ours = ckpt(
            f"`ckpt average`, {title}", "average", *paths, "-o", out, prepare=remove
        )
        copy = (
            f"cat {given} > /dev/null && cp {join([str(paths[0]), str(out)])} && sync "
            f"{join([str(out)])}"
        )
        script = join(
            [*setting.script("torch_mean", TORCH_PEER), *map(str, paths), str(out)]
        )
        yield [
            Case(
                f"average/{label}",
                ours,
                Job(
                    "`cat` of all + `cp` of one + `sync`",
                    ("sh", "-c", copy),
                    prepare=remove,
                ),
            ),
            Case(
                f"average/{label}-torch",
                ours,
                Job(
                    "torch.load of all + torch.save",
                    ("sh", "-c", f"{script} && sync {join([str(out)])}"),
                    prepare=remove,
                ),
            ),
        ]
        setting.forget(*paths, out)
