"""What `ckpt diff` and `ckpt stats` cost beside `cmp` and beside scripts that load the files with torch.

    python -m benchmarks.diff [--size-gb 2] [--runs 7] [--folder DIR]

Run from the root of the repository. Prints a GitHub table with the targets of the design, and always exits 0 unless
something could not be run. Needs torch, and disk space for five large files.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from shlex import join

from benchmarks import timing
from benchmarks.inspect import LARGE_TENSORS, ckpt_command, header, tensor_name
from benchmarks.timing import Job, memory_row, ratio_row

TORCH_PEER = """\
import sys
import torch

before, after = (torch.load(path, map_location="cpu", weights_only=True) for path in sys.argv[1:])
for name, tensor in before.items():
    if not torch.equal(tensor, after[name]):
        delta = (after[name].float() - tensor.float()).abs()
        print(name, int((delta > 0).sum()), float(delta.max()))
"""


STATS_PEER = """\
import sys
import torch

for path in sys.argv[1:]:
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        wide = tensor.float()
        numbers = wide.min(), wide.max(), wide.mean(), wide.std(), (wide == 0).sum(), wide.isnan().sum()
        print(name, *(number.item() for number in numbers))
"""


def write_states(folder: Path, size_gb: float) -> None:
    """Saves a state dict of float32 and one of bfloat16, each with one in which everything moved. Imports torch."""
    import torch

    torch.manual_seed(0)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        rows = max(1, round(size_gb * 1e9 / LARGE_TENSORS / 1024 / dtype.itemsize))
        before, after = {}, {}
        for number in range(LARGE_TENSORS):
            values = torch.rand(rows, 1024)
            before[tensor_name(number)] = values.to(dtype)
            after[tensor_name(number)] = (values * 1.01).to(dtype)
        torch.save(before, folder / f"{name}_before.pth")
        torch.save(after, folder / f"{name}_after.pth")


def make(folder: Path, size_gb: float) -> dict[str, Path]:
    """Makes the files in a process of its own; those of an earlier run are kept. Raises SystemExit when it cannot."""
    names = ("f32_before", "f32_after", "bf16_before", "bf16_after")
    paths = {name: folder / f"{name}.pth" for name in names}
    paths["copy"] = folder / "f32_copy.pth"
    if not all(path.exists() for path in paths.values()):
        import multiprocessing

        print("making the files", file=sys.stderr)
        process = multiprocessing.get_context("spawn").Process(target=write_states, args=(folder, size_gb))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit("the files could not be made")
        shutil.copyfile(paths["f32_before"], paths["copy"])
    return paths


def measure(folder: Path, scripts: Path, size_gb: float, runs: int) -> list[list[str]]:
    """Makes the files and the peer, runs every job; the rows of the table."""
    paths = make(folder, size_gb)
    peer = scripts / "torch_peer.py"
    peer.write_text(TORCH_PEER, encoding="utf-8")
    stats_peer = scripts / "stats_peer.py"
    stats_peer.write_text(STATS_PEER, encoding="utf-8")
    ckpt = ckpt_command()

    def ours(name: str, *arguments: str | Path) -> Job:
        # Exit code 1 says that the files differ: here that is no failure.
        line = f"{join([*ckpt, 'diff', *map(str, arguments)])} || test $? -eq 1"
        return Job(name, ("sh", "-c", line))

    equal = (paths["f32_before"], paths["copy"])
    f32 = (paths["f32_before"], paths["f32_after"])
    bf16 = (paths["bf16_before"], paths["bf16_after"])
    jobs = [
        Job("`cmp`", ("cmp", *map(str, equal))),
        ours("`ckpt diff`, equal files", *equal),
        ours("`ckpt diff`, all of float32 changed", *f32),
        ours("`ckpt diff`, all of bfloat16 changed", *bf16),
        ours("`ckpt diff --quick`, all changed", "--quick", *f32),
        Job("torch.load ×2 + equal", (sys.executable, str(peer), *map(str, equal))),
        Job("torch.load ×2 + max |Δ|", (sys.executable, str(peer), *map(str, f32))),
        Job("`ckpt stats`, both files", (*ckpt, "stats", *map(str, f32))),
        Job("torch.load ×2 + min, max, mean, std", (sys.executable, str(stats_peer), *map(str, f32))),
        Job("the same of bfloat16", (sys.executable, str(peer), *map(str, bf16))),
    ]
    cmp, same, all_f32, all_bf16, quick, torch_same, torch_f32, stats, torch_stats, torch_bf16 = (
        timing.interleaved(jobs, runs, rotate=True)
    )
    return [
        ratio_row(same, cmp, 0.5),
        ratio_row(same, torch_same, 0.2),
        memory_row(same, 150),
        ratio_row(all_f32, cmp, 1.0),
        ratio_row(all_f32, torch_f32, 0.2),
        memory_row(all_f32, 150),
        ratio_row(all_bf16, cmp, 2.0),
        ratio_row(all_bf16, torch_bf16, 0.2),
        memory_row(all_bf16, 150),
        ratio_row(quick, cmp, 0.5),
        ratio_row(stats, all_f32, 1.5),
        ratio_row(stats, torch_stats, 1.0),
        memory_row(stats, 150),
    ]


def main() -> None:
    """Reads the options, measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diff", description=__doc__.split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=2, metavar="N", help="each file, in 10⁹ bytes")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="rounds that count, after a warm-up")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the files go and stay; default: a temporary one"
    )
    options = parser.parse_args()
    if options.size_gb <= 0 or options.runs < 1:
        parser.error("--size-gb and --runs must be above zero")
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, Path(temporary), options.size_gb, options.runs)
    print(header(options.runs))
    print()
    print(timing.table(rows))


if __name__ == "__main__":
    main()
