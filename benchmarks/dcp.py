"""Distributed checkpoints, beside `cp` and beside torch.distributed.checkpoint.

The checkpoint is that of four ranks; a quarter of its tensors is cut by columns, the
others by rows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shlex import join

from benchmarks.setting import Case, Setting, ckpt, ckpt_command
from benchmarks.timing import Job

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

SAVE_ITEMS = """\
import sys
import warnings
import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
state = {f"layers.{number}.weight": torch.full((4, 4), float(number)) for number in range(int(sys.argv[2]))}
dcp.save({"model": state}, checkpoint_id=sys.argv[1], no_dist=True)
"""

PICKLE_LOAD = """\
import pickle
import sys
import torch.distributed.checkpoint.metadata

with open(sys.argv[1], "rb") as file:
    pickle.load(file)
"""


def write(path: Path, *words: str) -> None:
    """Runs what makes a file; the word PATH stands for it. Raises CalledProcessError
    when it fails.
    """
    command = [str(path) if word == "PATH" else word for word in words]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def cases(setting: Setting) -> Iterator[list[Case]]:
    """One group for the large checkpoint, one for many small items; none without a
    size.

    What an earlier job left is removed before the clock starts.
    """
    sizes, folder = setting.sizes, setting.folder
    if not sizes.dcp_gb:
        return
    rows = max(RANKS, round(sizes.dcp_gb * 1e9 / TENSORS / COLUMNS / 4))
    save, metadata = setting.script("save", SAVE), setting.script("metadata", METADATA)
    store = setting.scripts / "store"
    whole = setting.made(
        folder / f"{sizes.dcp_gb:g}GB.dcp",
        write,
        *save,
        "PATH",
        str(store),
        *map(str, (RANKS, TENSORS, rows, COLUMNS)),
    )
    tensors = setting.made(
        folder / f"{sizes.dcp_gb:g}GB_dcp.safetensors",
        write,
        *ckpt_command(),
        "convert",
        str(whole),
        "-o",
        "PATH",
    )
    large = folder / f"{sizes.chunks}_chunks"
    large.mkdir(exist_ok=True)
    setting.made(
        large / ".metadata", write, *metadata, "PATH", str(sizes.chunks), str(RANKS)
    )
    out = folder / "out"
    # The folder is made before the clock starts too: a peer may want it to be there.
    remove = ("sh", "-c", f"rm -rf {join([str(out)])} && mkdir {join([str(out)])}")

    def ours(name: str, target: str, source: Path, *options: str) -> Job:
        return ckpt(
            name, "convert", *options, source, "-o", out / target, prepare=remove
        )

    def peer(name: str, target: str, *words: str) -> Job:
        line = f"{join([*words, str(out / target)])} && sync -f {join([str(out)])}"
        return Job(name, ("sh", "-c", line), prepare=remove)

    size = f"{sizes.dcp_gb:g} GB"
    copy = peer("`cp -r` + `sync`", "copy", "cp", "-r", str(whole))
    to_torch = ours(
        f"`ckpt convert` of a DCP to a file of torch, {size}", "x.pth", whole
    )
    to_dcp = ours(
        f"`ckpt convert --ranks {RANKS}` to a DCP, {size}",
        "x.dcp",
        tensors,
        "--ranks",
        str(RANKS),
    )
    converter = peer(
        "`dcp_to_torch_save`",
        "x.pth",
        *setting.script("torch_convert", TORCH_CONVERT),
        str(whole),
    )
    dcp_save = peer(
        "load_file + `dcp.save`",
        "x",
        *setting.script("torch_save_dcp", TORCH_SAVE),
        str(tensors),
    )
    load = (*setting.script("pickle_load", PICKLE_LOAD), str(large / ".metadata"))
    yield [
        Case(
            "dcp/safetensors",
            ours(
                f"`ckpt convert` of a DCP to safetensors, {size}",
                "x.safetensors",
                whole,
            ),
            copy,
        ),
        Case("dcp/torch-file", to_torch, copy),
        Case("dcp/torch-converter", to_torch, converter),
        Case("dcp/write", to_dcp, copy),
        Case("dcp/write-torch", to_dcp, dcp_save),
        Case(
            "dcp/metadata",
            ckpt(f"`ckpt inspect`, {sizes.chunks:,} chunks", "inspect", large),
            Job("`pickle.load` of .metadata", load),
        ),
    ]
    setting.forget(whole, tensors, large, out)
    items = setting.made(
        folder / f"{sizes.items}_items.dcp",
        write,
        *setting.script("save_items", SAVE_ITEMS),
        "PATH",
        str(sizes.items),
    )
    yield [
        Case(
            "dcp/items",
            ours(
                f"`ckpt convert` of a DCP of {sizes.items:,} small items",
                "x.safetensors",
                items,
            ),
            peer("`cp -r` + `sync`", "copy", "cp", "-r", str(items)),
        )
    ]
    setting.forget(items, out)
