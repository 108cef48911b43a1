"""`rehome`, `strip` and `convert`, beside `cp` and beside torch and safetensors; and a
change in place.

A copy is forced to the disk, as ckpt does. What an earlier job left is removed before
the clock starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import join

from benchmarks.files import write_state
from benchmarks.setting import (
    LARGE_TENSORS,
    PARTS,
    Case,
    Setting,
    ckpt,
    file_system,
    names,
    random_floats,
    rows_of,
)
from benchmarks.timing import Job

SHARES = ("xfs", "btrfs")
"""File systems on which two files can share blocks."""

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


def write_cuda(path: Path, rows: int) -> None:
    """Save a state dict of float32 numbers whose names begin with `module.` and whose
    tags say cuda:0. Imports numpy.
    """
    payloads = random_floats(len(PARTS), rows)
    write_state(
        path,
        names(LARGE_TENSORS, "module."),
        (rows, 1024),
        payloads=payloads,
        tag="cuda:0",
    )


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for what writes a new file, one for a change in place: of a file saved
    just now, and of one on the disk.
    """
    folder, size_gb = setting.folder, setting.sizes.size_gb
    large = setting.made(
        folder / f"{size_gb:g}GB_cuda.pth", write_cuda, rows_of(size_gb, 4)
    )
    small = setting.made(folder / "small_cuda.pth", write_cuda, 1)
    out, tensors = folder / "out.pth", folder / "out.safetensors"
    remove = ("rm", "-f", str(out), str(tensors))
    shared = "shared" if file_system(folder) in SHARES else "copy"

    def ours(name: str, target: Path, *command: str) -> Job:
        return ckpt(name, *command, large, "-o", target, prepare=remove)

    def peer(name: str, target: Path, *command: str) -> Job:
        line = (
            f"{join([*command, str(large), str(target)])} && sync {join([str(target)])}"
        )
        return Job(name, ("sh", "-c", line), prepare=remove)

    size = f"{size_gb:g} GB"
    copy = (
        peer("`cp` + `sync`", out, "cp", "--reflink=never")
        if sys.platform == "linux"
        else peer("`cp` + `sync`", out, "cp")
    )
    rehome = ours(f"`ckpt rehome`, {size}", out, "rehome")
    convert = ours(f"`ckpt convert` to safetensors, {size}", tensors, "convert")
    torch = peer(
        "torch.load + torch.save", out, *setting.script("torch_save", TORCH_PEER)
    )
    save_file = peer(
        "torch.load + save_file",
        tensors,
        *setting.script("save_file", SAFETENSORS_PEER),
    )
    yield [
        Case(f"rehome/{shared}", rehome, copy),
        Case(f"strip/{shared}", ours(f"`ckpt strip`, {size}", out, "strip"), copy),
        Case("convert/copy", convert, copy),
        Case("rehome/torch", rehome, torch),
        Case("convert/torch", convert, save_file),
    ]

    def in_place(name: str, source: Path, then: str = "") -> Job:
        line = f"{join(['cp', str(source), str(out)])}{then}"
        return ckpt(name, "rehome", "--in-place", out, prepare=("sh", "-c", line))

    sync = f" && sync {join([str(out)])}"
    start = in_place(f"the same on {LARGE_TENSORS} small tensors", small, sync)
    yield [
        Case(
            "in-place/clean",
            in_place(f"`ckpt rehome --in-place`, {size}", large, sync),
            start,
        ),
        Case(
            "in-place/dirty",
            in_place(f"`ckpt rehome --in-place`, {size} saved just now", large),
            start,
        ),
    ]
    setting.forget(large, small, out, tensors)
