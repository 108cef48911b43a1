"""What `ckpt diff`, `stats` and `verify` cost beside `cmp`, `zipfile` and scripts that load the files with torch.

    python -m benchmarks.diff [--size-gb 2] [--runs 7] [--types f32,bf16,...] [--folder DIR]

Run from the root of the repository. Prints a GitHub table with the targets of the design, and always exits 0 unless
something could not be run. Needs torch, and disk space for two large files of each
type and a copy.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from benchmarks import timing
from benchmarks.inspect import LARGE_TENSORS, ckpt_command, header, tensor_name
from benchmarks.timing import Job, memory_row, ratio_row

TYPES = {
    "f32": ("float32", 0.8),
    "bf16": ("bfloat16", 1.5),
    "f16": ("float16", 2.0),
    "f8": ("float8_e4m3fn", 2.5),
    "i8": ("int8", 2.5),
    "bool": ("bool", 2.5),
    "f64": ("float64", 2.5),
    "c64": ("complex64", 2.5),
    "i64": ("int64", 2.5),
}
"""The dtype of each kind of file, and the target of its diff as a multiple of `cmp`."""
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


def write_states(folder: Path, size_gb: float, types: Sequence[str]) -> None:
    """Saves a state dict of each type, and one in which everything moved. Imports torch."""
    import torch

    torch.manual_seed(0)
    for name in types:
        dtype = getattr(torch, TYPES[name][0])
        rows = max(1, round(size_gb * 1e9 / LARGE_TENSORS / 1024 / dtype.itemsize))
        before, after = {}, {}
        for number in range(LARGE_TENSORS):
            values = torch.rand(rows, 1024) * (100 if name.startswith("i") else 1) + (name == "i8")
            before[tensor_name(number)] = one = (values > 0.5 if name == "bool" else values).to(dtype)
            moved = (
                ~one if name == "bool" else values * 1.3 if name == "f8" else values * 1.01 + (name[0] == "i")
            )
            after[tensor_name(number)] = moved.to(dtype)
        torch.save(before, folder / f"{name}_before.pth")
        torch.save(after, folder / f"{name}_after.pth")
    small = {f"layers.{number}.weight": torch.rand(12_000) for number in range(SMALL)}
    torch.save(small, folder / "small_before.pth")
    torch.save({name: tensor * 1.01 for name, tensor in small.items()}, folder / "small_after.pth")


def make(folder: Path, size_gb: float, types: Sequence[str]) -> None:
    """Makes the files in a process of its own; those of an earlier run are kept. Raises SystemExit when it cannot."""
    names = [f"{name}_{side}.pth" for name in (*types, "small") for side in ("before", "after")]
    if not all((folder / name).exists() for name in names):
        import multiprocessing

        print("making the files", file=sys.stderr)
        arguments = (folder, size_gb, types)
        process = multiprocessing.get_context("spawn").Process(target=write_states, args=arguments)
        process.start()
        process.join()
        if process.exitcode:
            sys.exit("the files could not be made")
    shutil.copyfile(folder / "f32_before.pth", folder / "f32_copy.pth")


def measure(folder: Path, scripts: Path, size_gb: float, runs: int, types: Sequence[str]) -> list[list[str]]:
    """Makes the files and the peer, runs every job; the rows of the table."""
    make(folder, size_gb, types)
    peer = scripts / "torch_peer.py"
    peer.write_text(TORCH_PEER, encoding="utf-8")
    stats_peer = scripts / "stats_peer.py"
    stats_peer.write_text(STATS_PEER, encoding="utf-8")
    ckpt = ckpt_command()

    def ours(name: str, *arguments: str | Path) -> Job:
        # Exit code 1 says that the files differ: here that is no failure.
        line = f"{join([*ckpt, 'diff', *map(str, arguments)])} || test $? -eq 1"
        return Job(name, ("sh", "-c", line))

    def sides(name: str) -> tuple[str, str]:
        return str(folder / f"{name}_before.pth"), str(folder / f"{name}_after.pth")

    def torch_job(name: str, script: Path, *paths: str) -> Job:
        return Job(name, (sys.executable, str(script), *paths))

    equal = (str(folder / "f32_before.pth"), str(folder / "f32_copy.pth"))
    jobs = [
        Job("`cmp`", ("cmp", *equal)),
        ours("`ckpt diff`, equal files", *equal),
        ours("`ckpt diff --quick`, all changed", "--quick", *sides("f32")),
        torch_job("torch.load ×2 + equal", peer, *equal),
        Job("`ckpt verify`", (*ckpt, "verify", equal[0])),
        Job("`python -m zipfile -t`", (sys.executable, "-m", "zipfile", "-t", equal[0])),
        ours(f"`ckpt diff`, {SMALL:,} small tensors", *sides("small")),
        torch_job("torch.load ×2 + max |Δ|", peer, *sides("small")),
    ]
    for name in types:
        jobs += [
            ours(f"`ckpt diff`, all of {TYPES[name][0]} changed", *sides(name)),
            torch_job("torch.load ×2 + max |Δ|", peer, *sides(name)),
            Job(f"`ckpt stats` of {TYPES[name][0]}, both files", (*ckpt, "stats", *sides(name))),
            torch_job("torch.load ×2 + min, max, mean, std", stats_peer, *sides(name)),
        ]
    found = timing.interleaved(jobs, runs, rotate=True)
    cmp, same, quick, torch_same, verify, zipfile, small, torch_small = found[:8]
    rows = [
        ratio_row(same, cmp, 0.4),
        ratio_row(same, torch_same, 0.2),
        memory_row(same, 150),
        ratio_row(quick, cmp, 0.5),
        ratio_row(verify, zipfile, 0.6),
        ratio_row(small, torch_small, 0.5),
    ]
    for at, name in enumerate(types):
        all_changed, torch_changed, stats, torch_stats = found[8 + 4 * at : 12 + 4 * at]
        rows += [
            ratio_row(all_changed, cmp, TYPES[name][1]),
            ratio_row(all_changed, torch_changed, 0.2),
            memory_row(all_changed, 150),
            ratio_row(stats, all_changed, 1.3),
            ratio_row(stats, torch_stats, 0.2),
        ]
    return rows


def main() -> None:
    """Reads the options, measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diff", description=__doc__.split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=2, metavar="N", help="each file, in 10⁹ bytes")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="rounds that count, after a warm-up")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the files go and stay; default: a temporary one"
    )
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST", help="f32 and some of the others")
    options = parser.parse_args()
    types = options.types.split(",")
    if "f32" not in types or not TYPES.keys() >= set(types):
        parser.error(f"--types: f32 and some of {', '.join(TYPES)}")
    if options.size_gb <= 0 or options.runs < 1:
        parser.error("--size-gb and --runs must be above zero")
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, Path(temporary), options.size_gb, options.runs, types)
    print(header(options.runs))
    print()
    print(timing.table(rows))


if __name__ == "__main__":
    main()
