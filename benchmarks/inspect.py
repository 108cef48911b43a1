"""What `ckpt inspect` and `ckpt get` cost beside torch and beside an empty program.

    python -m benchmarks.inspect [--size-gb 2] [--tensors 100000] [--runs 7] [--folder DIR]

Run from the root of the repository. Prints a GitHub table of medians with the targets of the design; it always exits 0
unless something could not be run, for a time is no test. Needs torch, and disk space for the large file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import timing
from benchmarks.timing import Job, difference_row, memory_row, ratio_row

LARGE_TENSORS = 100
PARTS = ("attn.qkv", "attn.out", "mlp.up", "mlp.down")

TORCH_PEER = """\
import sys
import torch

state = torch.load(sys.argv[1], mmap=True, weights_only=True)
for name, tensor in state.items():
    print(name, tensor.dtype, tuple(tensor.shape), tensor.device)
"""

EMPTY_APP = """\
import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def inspect() -> None:
    pass


@app.command()
def get() -> None:
    pass


app()
"""


def tensor_name(number: int) -> str:
    """The name of a tensor in the files: `blocks.0.attn.qkv.weight` and on, four to a block."""
    return f"blocks.{number // len(PARTS)}.{PARTS[number % len(PARTS)]}.weight"


def write_state(path: Path, tensors: int, shape: tuple[int, ...]) -> None:
    """Saves a state dict of float32 zeros, each tensor with a storage of its own. Imports torch."""
    import torch

    torch.save({tensor_name(number): torch.zeros(shape) for number in range(tensors)}, path)


def make(path: Path, tensors: int, shape: tuple[int, ...]) -> Path:
    """Makes a file in a process of its own, so that this one stays small; an earlier run's file is kept.

    Raises SystemExit when it cannot.
    """
    if path.exists():
        return path
    import multiprocessing

    print(f"making {path.name}", file=sys.stderr)
    part = path.with_suffix(".part")
    process = multiprocessing.get_context("spawn").Process(target=write_state, args=(part, tensors, shape))
    process.start()
    process.join()
    if process.exitcode:
        part.unlink(missing_ok=True)
        sys.exit(f"{path.name} could not be made")
    return part.rename(path)


def ckpt_command() -> tuple[str, ...]:
    """How ckpt is started: the console script beside this Python if there is one, as users do, or else the module."""
    script = Path(sys.executable).with_name("ckpt")
    return (str(script),) if script.exists() else (sys.executable, "-m", "ckpt")


def measure(folder: Path, scripts: Path, size_gb: float, tensors: int, runs: int) -> list[list[str]]:
    """Makes the files in the one folder and the peers in the other, runs every job; the rows of the table."""
    columns = 1024
    rows = max(1, round(size_gb * 1e9 / LARGE_TENSORS / columns / 4))
    large = make(folder / f"{size_gb:g}GB.pth", LARGE_TENSORS, (rows, columns))
    many = make(folder / f"{tensors}_tensors.pth", tensors, (4, 4))
    torch_peer, empty_app = scripts / "torch_peer.py", scripts / "empty_app.py"
    torch_peer.write_text(TORCH_PEER, encoding="utf-8")
    empty_app.write_text(EMPTY_APP, encoding="utf-8")

    python, ckpt = sys.executable, ckpt_command()
    inspect_large = (*ckpt, "inspect", str(large))
    empty = (python, str(empty_app), "inspect")
    size, count = f"{size_gb:g} GB", f"{tensors:,} tensors"
    # The short jobs come first and together: what runs right after a long one finds the caches cold. In each round
    # `python -c pass`, which has no target, pays for that.
    jobs = [
        Job("`python -c pass`", (python, "-c", "pass")),
        Job("empty typer app", empty),
        Job("empty typer app, terminal", empty, terminal=True),
        Job(f"`ckpt inspect`, {size}, pipe", inspect_large),
        Job(f"`ckpt inspect`, {size}, terminal", inspect_large, terminal=True),
        Job(f"`ckpt get`, {size}, pipe", (*ckpt, "get", str(large), tensor_name(LARGE_TENSORS // 2))),
        Job("`torch.load(mmap=True)` + print", (python, str(torch_peer), str(large))),
        Job(f"`ckpt inspect`, {count}, pipe", (*ckpt, "inspect", str(many))),
        Job("`torch.load(mmap=True)` + print", (python, str(torch_peer), str(many))),
    ]
    nothing, app, app_terminal, pipe, terminal, get, torch_large, thousands, torch_many = timing.interleaved(
        jobs, runs
    )
    return [
        ratio_row(pipe, torch_large, 1 / 8),
        difference_row(pipe, app, 60),
        difference_row(pipe, nothing),
        memory_row(pipe, 40),
        ratio_row(terminal, torch_large, 1 / 8),
        difference_row(terminal, app_terminal, 100),
        memory_row(terminal, 40),
        ratio_row(get, torch_large, 1 / 8),
        difference_row(get, app, 60),
        memory_row(get, 40),
        ratio_row(thousands, torch_many, 1 / 3),
    ]


def header(runs: int) -> str:
    """What the numbers depend on: the machine's processors, the versions, how ckpt was started."""
    import platform
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "typer"))
    started = "the console script" if len(ckpt_command()) == 1 else "python -m ckpt"
    return "\n".join(
        (
            f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}",
            f"whole processes, warm cache, medians of {runs} interleaved rounds; ckpt is {started}",
        )
    )


def main() -> None:
    """Reads the options, measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspect", description=__doc__.split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=2, metavar="N", help="the large file, in 10⁹ bytes")
    parser.add_argument("--tensors", type=int, default=100_000, metavar="N", help="tensors of the other file")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="rounds that count, after a warm-up")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the files go and stay; default: a temporary one"
    )
    options = parser.parse_args()
    if options.size_gb <= 0 or options.tensors < 1 or options.runs < 1:
        parser.error("--size-gb, --tensors and --runs must be above zero")
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, Path(temporary), options.size_gb, options.tensors, options.runs)
    least = timing.own_peak_mb()
    print(header(options.runs))
    print(f"no peak can read below the benchmark's own, {least:.1f} MB")
    print()
    print(timing.table(rows))


if __name__ == "__main__":
    main()
