"""Many tensors, many shards, many files, beside torch, safetensors and zipfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.files import write_state
from benchmarks.inspect import TORCH_PEER, write_zeros
from benchmarks.setting import Case, Setting, ckpt, names, random_floats, tensor_name
from benchmarks.timing import Job

INDEX = "model.safetensors.index.json"

SAFE_OPEN = """\
import json
import os
import sys
from safetensors import safe_open

with open(sys.argv[1], encoding="utf-8") as file:
    shards = sorted(set(json.load(file)["weight_map"].values()))
for shard in shards:
    with safe_open(os.path.join(os.path.dirname(sys.argv[1]), shard), "numpy") as opened:
        for name in opened.keys():
            one = opened.get_slice(name)
            print(name, one.get_dtype(), one.get_shape())
"""

TESTZIP = """\
import os
import sys
import zipfile

for name in sorted(os.listdir(sys.argv[1])):
    with zipfile.ZipFile(os.path.join(sys.argv[1], name)) as file:
        if file.testzip():
            sys.exit(name)
"""


def write_shards(
    folder: Path, count: int, shape: tuple[int, int] = (16, 16), fill: float = 0
) -> None:
    """Save `count` safetensors files of four tensors of one number, with an index.
    Imports numpy.
    """
    import json

    import numpy
    from safetensors.numpy import save_file

    folder.mkdir()
    index = {}
    for shard in range(count):
        name = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        state = {
            tensor_name(4 * shard + part): numpy.full(shape, fill, numpy.float32)
            for part in range(4)
        }
        save_file(state, folder / name, {"format": "pt"})
        index.update(dict.fromkeys(state, name))
    document = {
        "metadata": {"total_size": count * 16 * shape[0] * shape[1]},
        "weight_map": index,
    }
    (folder / INDEX).write_text(json.dumps(document), encoding="utf-8")


def write_files(folder: Path, count: int) -> None:
    """Save `count` state dicts of 20 tensors of 1,024 numbers. Imports numpy."""
    folder.mkdir()
    for number in range(count):
        write_state(
            folder / f"{number:04}.pth",
            names(20),
            (32, 32),
            payloads=random_floats(20, 1, number),
        )


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for the file of many tensors, one for shards and small files, one for the
    largest.
    """
    sizes, folder = setting.sizes, setting.folder
    many = setting.made(
        folder / f"{sizes.tensors}_tensors.pth", write_zeros, sizes.tensors, (4, 4)
    )
    peer = Job(
        "`torch.load(mmap=True)` + print",
        (*setting.script("torch_peer", TORCH_PEER), str(many)),
    )
    name = tensor_name(sizes.tensors // 2)
    count = f"{sizes.tensors:,} tensors"
    yield [
        Case("inspect/many", ckpt(f"`ckpt inspect`, {count}", "inspect", many), peer),
        Case(
            "inspect/tsv",
            ckpt(f"`ckpt inspect --tsv`, {count}", "inspect", "--tsv", many),
            peer,
        ),
        Case("get/many", ckpt(f"`ckpt get`, one of {count}", "get", many, name), peer),
    ]
    setting.forget(many)
    shards = setting.made(folder / f"{sizes.shards}_shards", write_shards, sizes.shards)
    files = setting.made(folder / f"{sizes.files}_files", write_files, sizes.files)
    index = shards / INDEX
    safe_open = setting.script("safe_open", SAFE_OPEN)
    testzip = setting.script("testzip", TESTZIP)
    yield [
        Case(
            "inspect/shards",
            ckpt(f"`ckpt inspect`, {sizes.shards:,} shards", "inspect", index),
            Job("`safe_open` of all + print", (*safe_open, str(index))),
        ),
        Case(
            "lint/files",
            ckpt(
                f"`ckpt lint`, {sizes.files} small files", "lint", files, differs=True
            ),
            Job("`zipfile.testzip` of all", (*testzip, str(files))),
        ),
    ]
    setting.forget(shards, files)
    if sizes.million:
        large = setting.made(
            folder / f"{sizes.million}_tensors.pth", write_zeros, sizes.million, (1,)
        )
        yield [
            Case(
                "inspect/million",
                ckpt(f"`ckpt inspect`, {sizes.million:,} tensors", "inspect", large),
                None,
            )
        ]
        setting.forget(large)
