"""`diff`, `stats` and `verify`, beside `cmp`, `zipfile` and scripts that load the files with torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.setting import LARGE_TENSORS, TYPES, Case, Setting, ckpt, tensor_name
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


def write_type(path: Path, name: str, size_gb: float, moved: bool) -> None:
    """Saves a state dict of one type, as it was or with each element moved. Imports torch."""
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, TYPES[name])
    rows = max(1, round(size_gb * 1e9 / LARGE_TENSORS / 1024 / dtype.itemsize))
    state = {}
    for number in range(LARGE_TENSORS):
        values = torch.rand(rows, 1024) * (100 if name.startswith("i") else 1) + (name == "i8")
        if name == "bool":
            values = (values > 0.5) ^ moved
        elif moved:
            values = values * 1.3 if name == "f8" else values * 1.01 + (name[0] == "i")
        state[tensor_name(number)] = values.to(dtype)
    torch.save(state, path)


def write_small(path: Path, factor: float) -> None:
    """Saves many small tensors of float32, the same for any factor but for it. Imports torch."""
    import torch

    torch.manual_seed(0)
    torch.save({f"layers.{number}.weight": torch.rand(12_000) * factor for number in range(SMALL)}, path)


def write_copy(path: Path, source: Path) -> None:
    """Copies a file."""
    import shutil

    shutil.copyfile(source, path)


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for equal files, one for small tensors, one for each type: no more than three pairs lie in the cache."""
    sizes, folder = setting.sizes, setting.folder

    def pair(name: str) -> tuple[Path, Path]:
        before, after = (folder / f"{sizes.size_gb:g}GB_{name}_{side}.pth" for side in ("before", "after"))
        setting.made(before, write_type, name, sizes.size_gb, False)
        setting.made(after, write_type, name, sizes.size_gb, True)
        return before, after

    def loaded(name: str, script: tuple[str, str], *paths: Path) -> Job:
        return Job(name, (*script, *map(str, paths)))

    torch_peer, stats_peer = (
        setting.script("torch_diff", TORCH_PEER),
        setting.script("torch_stats", STATS_PEER),
    )
    before, after = pair("f32")
    copy = setting.made(folder / f"{sizes.size_gb:g}GB_f32_copy.pth", write_copy, before)
    cmp = Job("`cmp` of equal files", ("cmp", str(before), str(copy)))
    size = f"{sizes.size_gb:g} GB"
    same = ckpt(f"`ckpt diff`, equal files of {size}", "diff", before, copy)
    zipfile = Job("`python -m zipfile -t`", (sys.executable, "-m", "zipfile", "-t", str(before)))
    yield [
        Case("diff/equal", same, cmp),
        Case("diff/equal-torch", same, loaded("torch.load ×2 + equal", torch_peer, before, copy)),
        Case(
            "diff/quick",
            ckpt(f"`ckpt diff --quick`, {size}, all changed", "diff", "--quick", before, after, differs=True),
            cmp,
        ),
        Case("verify/zip", ckpt(f"`ckpt verify`, {size}", "verify", before), zipfile),
    ]
    small = [setting.made(folder / f"small_{factor:g}.pth", write_small, factor) for factor in (1, 1.01)]
    yield [
        Case(
            "diff/small-tensors",
            ckpt(f"`ckpt diff`, {SMALL:,} small tensors", "diff", *small, differs=True),
            loaded("torch.load ×2 + max |Δ|", torch_peer, *small),
        )
    ]
    setting.forget(*small)
    for name in sizes.types:
        paths = pair(name)
        changed = ckpt(f"`ckpt diff`, {size} of {TYPES[name]}, all changed", "diff", *paths, differs=True)
        stats = ckpt(f"`ckpt stats`, both files of {TYPES[name]}", "stats", *paths)
        group = [
            Case(f"diff/{name}", changed, cmp),
            Case(f"stats/{name}", stats, changed),
            Case(
                f"stats/{name}-torch",
                stats,
                loaded("torch.load ×2 + min, max, mean, std", stats_peer, *paths),
            ),
        ]
        if name == "f32":
            group.append(
                Case("diff/f32-torch", changed, loaded("torch.load ×2 + max |Δ|", torch_peer, *paths))
            )
        yield group
        if name != "f32":
            setting.forget(*paths)
    setting.forget(before, after, copy)
