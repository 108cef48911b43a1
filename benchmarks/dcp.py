"""What distributed checkpoints cost beside `cp` and beside torch.distributed.checkpoint.

    python -m benchmarks.dcp [--size-gb 1] [--chunks 100000] [--runs 7] [--folder DIR]

Run from the root of the repository. The checkpoint is that of four ranks; a quarter of its tensors is cut by columns,
the others by rows. Prints a GitHub table with the targets of the design, and always exits 0 unless something could not
be run. Needs torch and safetensors, and disk space for three times the checkpoint.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from shlex import join

from benchmarks import timing
from benchmarks.inspect import ckpt_command, header
from benchmarks.timing import Job, cpu_row, memory_row, ratio_row

RANKS = 4
TENSORS = 32
COLUMNS = 4096

SAVE = """\
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

out, store, ranks, tensors, rows, columns = *sys.argv[1:3], *map(int, sys.argv[3:])


def work(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {}
    for number in range(tensors):
        torch.manual_seed(number)
        tensor = torch.randn(rows, columns)
        state[f"layers.{number}.weight"] = distribute_tensor(tensor, mesh, [Shard(int(number % 4 == 0))])
    dcp.save({"model": state}, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


children = []
for rank in range(ranks):
    child = os.fork()
    if not child:
        code = 1
        try:
            work(rank)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

METADATA = """\
import pickle
import sys
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata,
)

out, count, ranks = sys.argv[1], *map(int, sys.argv[2:])
state, paths, data = {}, {}, {}
for number in range(count // ranks):
    name = f"model.layers.{number}.weight"
    chunks = [
        ChunkStorageMetadata(torch.Size([16 * rank, 0]), torch.Size([16, 4096])) for rank in range(ranks)
    ]
    properties = TensorProperties(dtype=torch.bfloat16)
    state[name] = TensorStorageMetadata(properties, torch.Size([16 * ranks, 4096]), chunks)
    paths[name] = ("model", f"layers.{number}.weight")
    for rank in range(ranks):
        index = MetadataIndex(name, torch.Size([16 * rank, 0]), rank)
        data[index] = _StorageInfo(f"__{rank}_0.distcp", number * 132_000, 132_000)
with open(out, "wb") as file:
    pickle.dump(Metadata(state, paths, data), file, 4)
"""

TORCH_CONVERT = """\
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

dcp_to_torch_save(*sys.argv[1:])
"""

TORCH_SAVE = """\
import sys
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

dcp.save({"model": load_file(sys.argv[1])}, checkpoint_id=sys.argv[2])
"""

PICKLE_LOAD = """\
import pickle
import sys
import torch.distributed.checkpoint.metadata

with open(sys.argv[1], "rb") as file:
    pickle.load(file)
"""


def make(folder: Path, scripts: Path, size_gb: float, chunks: int) -> tuple[Path, Path, Path]:
    """The checkpoint, the same tensors as safetensors, and a folder with a large `.metadata`; those of an earlier run
    are kept. Raises SystemExit when they cannot be made.
    """
    whole, large = folder / f"{size_gb:g}GB.dcp", folder / f"{chunks}_chunks"
    rows = max(RANKS, round(size_gb * 1e9 / TENSORS / COLUMNS / 4))
    large.mkdir(exist_ok=True)
    tensors = whole.with_suffix(".safetensors")
    sizes = map(str, (RANKS, TENSORS, rows, COLUMNS))
    todo = {
        whole / ".metadata": [
            sys.executable,
            str(scripts / "save.py"),
            str(whole),
            str(scripts / "store"),
            *sizes,
        ],
        large / ".metadata": [
            sys.executable,
            str(scripts / "metadata.py"),
            str(large / ".metadata"),
            str(chunks),
            str(RANKS),
        ],
        tensors: [*ckpt_command(), "convert", str(whole), "-o", str(tensors)],
    }
    for path, command in todo.items():
        if not path.exists():
            print(f"making {path.name}", file=sys.stderr)
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                sys.exit(f"{path} could not be made")
    return whole, tensors, large


def measure(folder: Path, scripts: Path, size_gb: float, chunks: int, runs: int) -> list[list[str]]:
    """Makes the checkpoints and the peers, runs every job; the rows of the table."""
    texts = {
        "save": SAVE,
        "metadata": METADATA,
        "torch_convert": TORCH_CONVERT,
        "torch_save": TORCH_SAVE,
        "pickle_load": PICKLE_LOAD,
    }
    for name, text in texts.items():
        (scripts / f"{name}.py").write_text(text, encoding="utf-8")
    whole, tensors, large = make(folder, scripts, size_gb, chunks)
    out = folder / "out"
    ckpt, python = ckpt_command(), sys.executable

    def fresh(name: str, target: str, *command: str, sync: bool = False) -> Job:
        # What an earlier job left is removed first, and the new files forced to the disk, by all alike.
        line = (
            f"rm -rf {join([str(out)])} && mkdir {join([str(out)])} && {join([*command, str(out / target)])}"
        )
        return Job(name, ("sh", "-c", line + (f" && sync -f {join([str(out)])}" if sync else "")))

    def script(name: str) -> tuple[str, str]:
        return python, str(scripts / f"{name}.py")

    convert, peer = (*ckpt, "convert"), script("torch_convert")
    jobs = [
        fresh("`cp -r` + `sync`", "copy", "cp", "-r", str(whole), sync=True),
        fresh("`ckpt convert` to safetensors", "x.safetensors", *convert, str(whole), "-o"),
        fresh("`ckpt convert` to a file of torch", "x.pth", *convert, str(whole), "-o"),
        fresh("`dcp_to_torch_save`", "x.pth", *peer, str(whole), sync=True),
        fresh(
            f"`ckpt convert --ranks {RANKS}`", "x.dcp", *convert, "--ranks", str(RANKS), str(tensors), "-o"
        ),
        fresh("load_file + `dcp.save`", "x", *script("torch_save"), str(tensors), sync=True),
        Job(f"`ckpt inspect`, {chunks:,} chunks", (*ckpt, "inspect", str(large))),
        Job("`pickle.load` of .metadata", (*script("pickle_load"), str(large / ".metadata"))),
    ]
    copy, to_safetensors, to_torch, torch_convert, to_dcp, torch_save, inspect, load = timing.interleaved(
        jobs, runs, rotate=True
    )
    subprocess.run(["rm", "-rf", str(out)], check=False)
    return [
        ratio_row(to_safetensors, copy, 1.2),
        cpu_row(to_safetensors, copy),
        memory_row(to_safetensors, 60),
        ratio_row(to_torch, copy, 1.2),
        ratio_row(to_torch, torch_convert, 0.25),
        cpu_row(to_torch, torch_convert),
        memory_row(to_torch, 60),
        ratio_row(to_dcp, copy, 1.2),
        ratio_row(to_dcp, torch_save, 1.0),
        cpu_row(to_dcp, torch_save),
        memory_row(to_dcp, 60),
        ratio_row(inspect, load, 1.0),
        cpu_row(inspect, load, 1.0),
        memory_row(inspect, 150),
        memory_row(torch_convert),
        memory_row(torch_save),
        memory_row(load),
    ]


def main() -> None:
    """Reads the options, measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dcp", description=__doc__.split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=1, metavar="N", help="the checkpoint, in 10⁹ bytes")
    parser.add_argument(
        "--chunks", type=int, default=100_000, metavar="N", help="chunks of the large .metadata"
    )
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="rounds that count, after a warm-up")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the files go and stay; default: a temporary one"
    )
    options = parser.parse_args()
    if options.size_gb <= 0 or options.chunks < RANKS or options.runs < 1:
        parser.error("--size-gb and --runs must be above zero, --chunks at least 4")
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measure(folder, Path(temporary), options.size_gb, options.chunks, options.runs)
    print(header(options.runs))
    print()
    print(timing.table(rows))


if __name__ == "__main__":
    main()
