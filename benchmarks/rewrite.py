"""What the commands that write cost beside `cp` and beside torch and safetensors.

    python -m benchmarks.rewrite [--size-gb 2] [--runs 7] [--folder DIR]

Run from the root of the repository. Disks are noisy: every round runs each job once, and medians are compared. Prints
a GitHub table with the targets of the design, and always exits 0 unless something could not be run. Needs torch,
and disk space for twice the large file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from shlex import join

from benchmarks import timing
from benchmarks.inspect import LARGE_TENSORS, ckpt_command, header, tensor_name
from benchmarks.timing import Job, difference_row, memory_row, ratio_row

TORCH_PEER = """\
import sys
import torch

torch.save(torch.load(sys.argv[1], map_location="cpu", weights_only=True), sys.argv[2])
"""

SAFETENSORS_PEER = """\
import sys
import torch
from safetensors.torch import save_file

state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
save_file(state, sys.argv[2], {"format": "pt"})
"""


def write_state(path: Path, rows: int) -> None:
    """Saves a state dict of float32 numbers whose names begin with `module.` and whose tags say cuda:0. Imports torch."""
    from unittest import mock

    import torch

    state = {f"module.{tensor_name(number)}": torch.rand(rows, 1024) for number in range(LARGE_TENSORS)}
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: "cuda:0"):
        torch.save(state, path)


def make(path: Path, rows: int) -> Path:
    """Makes the file in a process of its own; an earlier run's file is kept. Raises SystemExit when it cannot."""
    if path.exists():
        return path
    import multiprocessing

    print(f"making {path.name}", file=sys.stderr)
    process = multiprocessing.get_context("spawn").Process(target=write_state, args=(path, rows))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{path.name} could not be made")
    return path


def measure(folder: Path, scripts: Path, size_gb: float, runs: int) -> list[list[str]]:
    """Makes the files and the peers, runs every job; the rows of the table."""
    large = make(folder / f"{size_gb:g}GB_cuda.pth", max(1, round(size_gb * 1e9 / LARGE_TENSORS / 1024 / 4)))
    small = make(folder / "small_cuda.pth", 1)
    torch_peer, safetensors_peer = scripts / "torch_peer.py", scripts / "safetensors_peer.py"
    torch_peer.write_text(TORCH_PEER, encoding="utf-8")
    safetensors_peer.write_text(SAFETENSORS_PEER, encoding="utf-8")
    out, tensors = folder / "out.pth", folder / "out.safetensors"
    ckpt = ckpt_command()

    def fresh(name: str, target: Path, *command: str, then: str = "") -> Job:
        # What an earlier job left is removed first, and the new file forced to the disk, by all alike.
        line = f"rm -f {join([str(out), str(tensors)])} && {join(command)}{then}"
        return Job(name, ("sh", "-c", line))

    def in_place(name: str, path: Path) -> Job:
        move, back = (
            join([*ckpt, "rehome", *options, str(path)]) for options in (["--in-place"], ["--undo"])
        )
        return Job(name, ("sh", "-c", f"{move} && {back}"))

    python, sync = sys.executable, f" && sync {join([str(out)])}"
    jobs = [
        fresh("`cp` + `sync`", out, "cp", str(large), str(out), then=sync),
        fresh("`ckpt rehome`", out, *ckpt, "rehome", str(large), "-o", str(out)),
        fresh("`ckpt strip`", out, *ckpt, "strip", str(large), "-o", str(out)),
        fresh("`ckpt convert` to safetensors", tensors, *ckpt, "convert", str(large), "-o", str(tensors)),
        fresh("torch.load + torch.save", out, python, str(torch_peer), str(large), str(out), then=sync),
        fresh(
            "torch.load + save_file",
            tensors,
            python,
            str(safetensors_peer),
            str(large),
            str(tensors),
            then=f" && sync {join([str(tensors)])}",
        ),
        in_place("`ckpt rehome --in-place`, then `--undo`", large),
        in_place("the same on a file of 100 small tensors", small),
    ]
    copy, rehome, strip, convert, torch_save, save_file, large_in_place, small_in_place = timing.interleaved(
        jobs, runs, rotate=True
    )
    out.unlink(missing_ok=True)
    tensors.unlink(missing_ok=True)
    return [
        ratio_row(rehome, copy, 1.25),
        ratio_row(rehome, torch_save, 1.0),
        memory_row(rehome, 100),
        ratio_row(strip, copy, 1.25),
        memory_row(strip, 100),
        ratio_row(convert, copy, 1.3),
        ratio_row(convert, save_file, 1.0),
        memory_row(convert, 100),
        difference_row(large_in_place, small_in_place, 50),
    ]


def main() -> None:
    """Reads the options, measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewrite", description=__doc__.split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=2, metavar="N", help="the large file, in 10⁹ bytes")
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
