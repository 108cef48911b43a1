"""`diff`, `stats` and `verify`, beside `cmp`, `zipfile` and scripts that load the files
with torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.files import ITEM_BYTES, write_state
from benchmarks.setting import (
    LARGE_TENSORS,
    PARTS,
    TWICE,
    TYPES,
    Case,
    Setting,
    ckpt,
    names,
    rows_of,
)
from benchmarks.timing import Job

SMALL = 1359
"""Tensors of the file of many small ones, which has 65 MB."""

TORCH_PEER = """\
import sys
import torch

before, after = (torch.load(path, map_location="cpu", weights_only=True) for path in sys.argv[1:])
for name, tensor in before.items():
    if not torch.equal(tensor, after[name]):
        wide = [each if each.is_complex() else each.float() for each in (tensor, after[name])]
        delta = (wide[1] - wide[0]).abs()
        print(name, int((delta > 0).sum()), float(delta.max()))
"""

STATS_PEER = """\
import sys
import torch

for path in sys.argv[1:]:
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        wide = tensor.abs() if tensor.is_complex() else tensor.float()
        numbers = wide.min(), wide.max(), wide.mean(), wide.std(), (wide == 0).sum(), wide.isnan().sum()
        print(name, *(number.item() for number in numbers))
"""


def write_type(folder: Path, name: str, size_gb: float) -> None:
    """Save `before.pth`, a copy of it, and `after.pth`, whose elements have all moved.
    Imports torch, which has all types.

    The tensors of a block have numbers of their own; all blocks have the same ones.
    """
    import shutil

    import torch

    folder.mkdir()
    torch.manual_seed(0)
    dtype = TYPES[name]
    rows = rows_of(size_gb, ITEM_BYTES[dtype])
    before, after = [], []
    for _ in PARTS:
        values = torch.rand(rows, 1024) * (100 if name.startswith("i") else 1) + (
            name == "i8"
        )
        if name == "bool":
            values = values > 0.5
            moved = ~values
        else:
            moved = values * 1.3 if name == "f8" else values * 1.01 + (name[0] == "i")
        for payloads, tensor in ((before, values), (after, moved)):
            cast = tensor.to(getattr(torch, dtype))
            payloads.append(cast.view(torch.uint8).numpy().tobytes())
    for side, payloads in (("before", before), ("after", after)):
        write_state(
            folder / f"{side}.pth", names(LARGE_TENSORS), (rows, 1024), dtype, payloads
        )
    shutil.copyfile(folder / "before.pth", folder / "copy.pth")


def write_small(path: Path, factor: float) -> None:
    """Save many small tensors of float32, the same for any factor but for it. Imports
    numpy.
    """
    import numpy

    random = numpy.random.default_rng(0)
    payloads = [
        (random.random(12_000, numpy.float32) * numpy.float32(factor)).tobytes()
        for _ in range(SMALL)
    ]
    write_state(
        path,
        [f"layers.{number}.weight" for number in range(SMALL)],
        (12_000,),
        payloads=payloads,
    )


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for equal files, one for small tensors, one for each type: the files of
    two types lie in the cache at most.
    """
    sizes, folder = setting.sizes, setting.folder

    def files(name: str) -> tuple[Path, str]:
        size = sizes.size_gb if name in TWICE else sizes.size_gb / 2
        return setting.made(
            folder / f"{size:g}GB_{name}", write_type, name, size
        ), f"{size:g} GB"

    def loaded(name: str, script: tuple[str, str], *paths: Path) -> Job:
        return Job(name, (*script, *map(str, paths)))

    def cmp(made: Path) -> Job:
        return Job(
            "`cmp` of equal files",
            ("cmp", str(made / "before.pth"), str(made / "copy.pth")),
        )

    torch_peer, stats_peer = (
        setting.script("torch_diff", TORCH_PEER),
        setting.script("torch_stats", STATS_PEER),
    )
    made, size = files("f32")
    before, copy, after = (made / f"{side}.pth" for side in ("before", "copy", "after"))
    same = ckpt(f"`ckpt diff`, equal files of {size}", "diff", before, copy)
    zipfile = Job(
        "`python -m zipfile -t`", (sys.executable, "-m", "zipfile", "-t", str(before))
    )
    yield [
        Case("diff/equal", same, cmp(made)),
        Case(
            "diff/equal-torch",
            same,
            loaded("torch.load ×2 + equal", torch_peer, before, copy),
        ),
        Case(
            "diff/quick",
            ckpt(
                f"`ckpt diff --quick`, {size}, all changed",
                "diff",
                "--quick",
                before,
                after,
                differs=True,
            ),
            cmp(made),
        ),
        Case("verify/zip", ckpt(f"`ckpt verify`, {size}", "verify", before), zipfile),
    ]
    small = [
        setting.made(folder / f"small_{factor:g}.pth", write_small, factor)
        for factor in (1, 1.01)
    ]
    yield [
        Case(
            "diff/small-tensors",
            ckpt(f"`ckpt diff`, {SMALL:,} small tensors", "diff", *small, differs=True),
            loaded("torch.load ×2 + max |Δ|", torch_peer, *small),
        )
    ]
    setting.forget(*small)
    if "f32" not in sizes.types:
        setting.forget(made)
    for name in sizes.types:
        made, size = files(name)
        paths = made / "before.pth", made / "after.pth"
        changed = ckpt(
            f"`ckpt diff`, {size} of {TYPES[name]}, all changed",
            "diff",
            *paths,
            differs=True,
        )
        stats = ckpt(f"`ckpt stats`, both files of {TYPES[name]}", "stats", *paths)
        group = [
            Case(f"diff/{name}", changed, cmp(made)),
            Case(f"stats/{name}", stats, changed),
            Case(
                f"stats/{name}-torch",
                stats,
                loaded("torch.load ×2 + min, max, mean, std", stats_peer, *paths),
            ),
        ]
        if name == "f32":
            group.append(
                Case(
                    "diff/f32-torch",
                    changed,
                    loaded("torch.load ×2 + max |Δ|", torch_peer, *paths),
                )
            )
        yield group
        setting.forget(made)
