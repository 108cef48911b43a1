"""Where a run takes place: its sizes, its folder, how the commands are started, what
the machine is.

Nothing here imports torch: files are made in processes of their own, see
`timing.own_peak_mb`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import NamedTuple

from benchmarks.timing import Job

TYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8": "float8_e4m3fn",
    "i8": "int8",
    "bool": "bool",
    "f64": "float64",
    "c64": "complex64",
    "i64": "int64",
}
TWICE = ("f32", "bf16", "f16")
"""Types whose targets are tight, so that their files have the full size and the start
of a process weighs little.
"""
LARGE_TENSORS = 100
PARTS = ("attn.qkv", "attn.out", "mlp.up", "mlp.down")


class Sizes(NamedTuple):
    """The sizes of the files, and the rounds of each job. Bytes are in units of 10⁹; 0
    leaves a row out.

    `size_gb` holds for the types of TWICE; files of another type, and those that are
    averaged, have half of it.
    """

    size_gb: float = 2
    tensors: int = 100_000
    million: int = 1_000_000
    shards: int = 1_000
    files: int = 500
    types: tuple[str, ...] = tuple(TYPES)
    dcp_gb: float = 1
    chunks: int = 100_000
    items: int = 10_000
    runs: int = 5
    far_shards: int = 100
    far_files: int = 194


QUICK = Sizes(
    0.2, 10_000, 0, 100, 100, ("f32", "bf16", "f8"), 0.2, 10_000, 1_000, 2, 20, 40
)
"""Five minutes in all on two cores. The start of Python weighs more than at full size,
so ratios are worse.
"""
CHECK = Sizes(0.1, 10_000, 0, 100, 100, ("f32", "bf16", "f8"), 0, 0, 0, 7)
"""What `make bench-check` measures."""


class Case(NamedTuple):
    """A row to be: the key of its target, and what is measured."""

    key: str
    ours: Job
    peer: Job | None


class Setting(NamedTuple):
    """The sizes, where the files go, and where the scripts of the peers go."""

    sizes: Sizes
    folder: Path
    scripts: Path
    keep: bool = False

    def script(self, name: str, text: str) -> tuple[str, str]:
        """Writes a peer; the command that runs it."""
        path = self.scripts / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return sys.executable, str(path)

    def made(self, path: Path, write: Callable[..., None], *arguments: object) -> Path:
        """The file or folder, which `write(part, *arguments)` makes in another process;
        that of an earlier run is kept.

        Raises SystemExit when it cannot be made.
        """
        if not path.exists():
            import multiprocessing

            print(f"making {path.name}", file=sys.stderr)
            part = path.with_name(
                f"part-{path.name}"
            )  # keeps the suffix, by which ckpt chooses
            process = multiprocessing.get_context("spawn").Process(
                target=write, args=(part, *arguments)
            )
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(f"{path.name} could not be made")
            part.rename(path)
        return path

    def forget(self, *paths: Path) -> None:
        """Removes files that no later job needs, unless they are to be kept."""
        if not self.keep:
            for path in paths:
                subprocess.run(["rm", "-rf", str(path)], check=False)


def tensor_name(number: int) -> str:
    """The name of a tensor in the files: `blocks.0.attn.qkv.weight` and on, four to a
    block.
    """
    return f"blocks.{number // len(PARTS)}.{PARTS[number % len(PARTS)]}.weight"


def names(count: int, prefix: str = "") -> list[str]:
    """The names of so many tensors."""
    return [prefix + tensor_name(number) for number in range(count)]


def rows_of(size_gb: float, item_bytes: int) -> int:
    """The rows of 1,024 numbers that each of LARGE_TENSORS has in a file of so many 10⁹
    bytes.
    """
    return max(1, round(size_gb * 1e9 / LARGE_TENSORS / 1024 / item_bytes))


def random_floats(count: int, rows: int, seed: int = 0) -> list[bytes]:
    """The bytes of `count` tensors of float32 with 1,024 columns, from 0 to 1. Imports
    numpy.
    """
    import numpy

    random = numpy.random.default_rng(seed)
    return [random.random((rows, 1024), numpy.float32).tobytes() for _ in range(count)]


def ckpt_command() -> tuple[str, ...]:
    """How ckpt is started: the console script beside this Python if there is one, as
    users do, or else the module.
    """
    script = Path(sys.executable).with_name("ckpt")
    return (str(script),) if script.exists() else (sys.executable, "-m", "ckpt")


def ckpt(
    name: str,
    *arguments: str | Path,
    differs: bool = False,
    prepare: Sequence[str] = (),
) -> Job:
    """A job of ckpt. With `differs` exit code 1, which says that something was found,
    is no failure.
    """
    command = (*ckpt_command(), *map(str, arguments))
    if differs:
        command = ("sh", "-c", f"{join(command)} || test $? -eq 1")
    return Job(name, command, prepare=tuple(prepare))


def file_system(folder: Path) -> str:
    """What `stat` calls the file system of a folder: `ext2/ext3`, `xfs`, `btrfs`; empty
    where it cannot say.
    """
    command = ["stat", "-f", "-c", "%T", str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False
    ).stdout.strip()


def machine(folder: Path) -> dict[str, str | int]:
    """What the numbers depend on: processor, memory, file system, versions, how ckpt is
    started.
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    try:
        lines = (
            Path("/proc/cpuinfo")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
    except OSError:
        lines = []
    models = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else platform.machine(),
        "cpus": os.cpu_count() or 1,
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": file_system(folder),
        "python": platform.python_version(),
        **{
            name: installed(name) for name in ("torch", "typer", "numpy", "safetensors")
        },
        "ckpt": "the console script" if len(ckpt_command()) == 1 else "python -m ckpt",
    }
