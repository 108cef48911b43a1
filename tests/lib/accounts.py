"""Checkpoints of every format with the same tensors, written by torch or by hand: what
goes in must come out, or be listed.

`python accounts.py DIR` writes those of several ranks, which are forks.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ggufs
import torch
from safetensors.torch import save_file


class Size(NamedTuple):
    """How many tensors, how long their names are, and how many keys deep they lie."""

    count: int
    is_long: bool
    depth: int

    @property
    def text(self) -> str:
        return f"{self.count}-{'long' if self.is_long else 'short'}-{self.depth}"


SIZES = [
    Size(count, is_long, depth)
    for count in (3, 64, 2_100)
    for is_long in (False, True)
    for depth in range(4)
]
KEYS = ("train", "state", "model")


def weights(size: Size) -> dict[str, torch.Tensor]:
    """Parameters and buffers of layers that are repeated. Each tensor has bytes of its
    own.
    """
    made: dict[str, torch.Tensor] = {}
    middle = "x" * 105 + "." if size.is_long else ""
    leaves = ("weight", "bias", "running_mean", "num_batches_tracked")
    for number in range(size.count):
        layer, leaf = divmod(number, len(leaves))
        at = float(number + 1)
        tensor = (
            torch.full((4, 6), at) + torch.arange(24).view(4, 6) / 32,
            torch.full((6,), at) / 3,
            torch.full((6,), -at, dtype=torch.float16 if number % 8 else torch.float32),
            torch.tensor(number),
        )[leaf]
        made[f"layers.{layer}.{middle}{leaves[leaf]}"] = tensor
    return made


def nested(size: Size) -> Any:
    """The weights below keys, beside an epoch where there is room."""
    state: Any = weights(size)
    for key in KEYS[len(KEYS) - size.depth :][::-1]:
        state = {key: state}
    return {**state, "epoch": 3} if size.depth else state


# --- one process ----------------------------------------------------------------------


def _torch(folder: Path, size: Size, **options: Any) -> Path:
    torch.save(nested(size), folder / "a.pth", **options)
    return folder / "a.pth"


def _deflated(folder: Path, size: Size) -> Path:
    data = _torch(folder, size).read_bytes()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(folder / "a.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            if not name.endswith((".format_version", ".storage_alignment")):
                new.writestr(name, old.read(name))
    return folder / "a.pth"


def _pickle(folder: Path, size: Size) -> Path:
    (folder / "a.pkl").write_bytes(pickle.dumps(nested(size), 4))
    return folder / "a.pkl"


def _safetensors(folder: Path, size: Size) -> Path:
    save_file(weights(size), folder / "a.safetensors", {"format": "pt"})
    return folder / "a.safetensors"


def _sharded(folder: Path, size: Size, ending: str) -> Path:
    state = weights(size)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    shards = [dict(list(state.items())[at::3]) for at in range(3)]
    names = [f"{stem}-{at + 1:05}-of-00003.{ending}" for at in range(3)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name) if ending == "safetensors" else torch.save(
            shard, folder / name
        )
    index = {
        name: file for file, shard in zip(names, shards, strict=True) for name in shard
    }
    total = sum(tensor.nbytes for tensor in state.values())
    path = folder / f"{stem}.{ending}.index.json"
    path.write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
    return path


def _unindexed(folder: Path, size: Size, ending: str) -> Path:
    """Shards without their index, in a folder of their own."""
    below = folder / "shards"
    below.mkdir()
    _sharded(below, size, ending).unlink()
    return below


def _unpacked(folder: Path, size: Size) -> Path:
    path = _torch(folder, size)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "out")
        root = archive.namelist()[0].partition("/")[0]
    path.unlink()
    return folder / "out" / root


def _dcp(folder: Path, size: Size) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save(nested(size), checkpoint_id=str(folder / "d"), no_dist=True)
    return folder / "d"


def _nemo(folder: Path, size: Size) -> Path:
    held = io.BytesIO()
    torch.save(weights(size), held)
    with tarfile.open(folder / "a.nemo", "w") as archive:
        for name, data in (
            ("model_config.yaml", b"a: 1\n"),
            ("model_weights.ckpt", held.getvalue()),
        ):
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return folder / "a.nemo"


def _trainer(folder: Path, size: Size) -> Path:
    save_file(weights(size), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "none"}')
    (folder / "trainer_state.json").write_text(
        '{"global_step": 2, "epoch": 1.0, "log_history": []}'
    )
    return folder


def _optimizer(folder: Path, size: Size) -> Path:
    """A training checkpoint: the weights, and the state of an optimizer for each
    parameter.
    """
    state = weights(size)
    parameters = [
        tensor for name, tensor in state.items() if name.endswith(("weight", "bias"))
    ]
    moments = {
        n: {"step": torch.tensor(3.0), "exp_avg": each / 7, "exp_avg_sq": each / 9}
        for n, each in enumerate(parameters)
    }
    groups = [
        {"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(len(parameters)))}
    ]
    whole: Any = {
        "model": state,
        "optimizer": {"state": moments, "param_groups": groups},
        "epoch": 3,
    }
    for key in KEYS[: size.depth]:
        whole = {key: whole}
    torch.save(whole, folder / "a.pth")
    return folder / "a.pth"


_GGUF_TYPES = {torch.float32: 0, torch.float16: 1, torch.int64: 27}
"""The types of the weights -> their numbers in GGUF."""


def _gguf(folder: Path, size: Size) -> Path:
    rows = [
        ggufs.Tensor(
            name,
            tuple(reversed(tensor.shape)),
            _GGUF_TYPES[tensor.dtype],
            tensor.numpy().tobytes(),
        )
        for name, tensor in weights(size).items()
    ]
    pairs = [("general.architecture", "str", "llama")]
    (folder / "a.gguf").write_bytes(ggufs.gguf(pairs, rows))
    return folder / "a.gguf"


class _Script(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _script(folder: Path, size: Size) -> Path:
    root = _Script()
    for name, tensor in weights(size).items():
        module = root
        *above, leaf = name.split(".")
        for part in above:
            if not hasattr(module, part):
                module.add_module(part, _Script())
            module = getattr(module, part)
        module.register_buffer(leaf, tensor)
    torch.jit.script(root).save(str(folder / "a.pt"))
    return folder / "a.pt"


# --- several ranks --------------------------------------------------------------------


def spread(size: Size) -> Any:
    """The same state with each tensor that has rows cut along them over the ranks; the
    others are replicated.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def placed(thing: Any) -> Any:
        if isinstance(thing, dict):
            return {key: placed(each) for key, each in thing.items()}
        is_cut = isinstance(thing, torch.Tensor) and thing.ndim
        return distribute_tensor(thing, mesh, [Shard(0)]) if is_cut else thing

    return placed(nested(size))


def _ranks_dcp(folder: Path, size: Size) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(spread(size), checkpoint_id=str(folder))


def _ranks_fsdp(folder: Path, size: Size) -> None:
    import torch.distributed as dist

    folder.mkdir(exist_ok=True)
    name = f"model_world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"
    torch.save(spread(size), folder / name)


def _ranks_hf(folder: Path, size: Size) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = spread(size._replace(depth=0))
    dcp.save(
        state,
        storage_writer=HuggingFaceStorageWriter(
            path=str(folder), save_distributed=True
        ),
    )


RANKS: dict[str, Callable[[Path, Size], None]] = {
    "dcp of two ranks": _ranks_dcp,
    "fsdp ranks": _ranks_fsdp,
    "dcp-hf": _ranks_hf,
}


class Source(NamedTuple):
    """One way to hold the tensors. `has_sums` says that it records checksums."""

    name: str
    make: Callable[[Path, Size], Path]
    has_sums: bool
    is_flat: bool = False
    most: int = 2_100


SOURCES = [
    Source("torch-zip", _torch, True),
    Source("deflated", _deflated, True),
    Source(
        "torch-legacy", partial(_torch, _use_new_zipfile_serialization=False), False
    ),
    Source("optimizer", _optimizer, True),
    Source("pickle", _pickle, False),
    Source("safetensors", _safetensors, False, is_flat=True),
    Source("sharded", partial(_sharded, ending="safetensors"), False, is_flat=True),
    Source("sharded bin", partial(_sharded, ending="bin"), True, is_flat=True),
    Source("no index", partial(_unindexed, ending="safetensors"), False, is_flat=True),
    Source("no index bin", partial(_unindexed, ending="bin"), True, is_flat=True),
    Source("unpacked", _unpacked, False),
    Source("dcp", _dcp, True),
    Source("nemo", _nemo, True, is_flat=True),
    Source("trainer", _trainer, False, is_flat=True),
    Source("gguf", _gguf, False, is_flat=True),
    Source("torchscript", _script, True, is_flat=True, most=64),
]


def of_ranks(folder: Path, name: str, size: Size) -> Path:
    """Where `python accounts.py DIR` wrote the checkpoint of several ranks."""
    return folder / f"{name.replace(' ', '_')}-{size.text}"


def _all(sizes: list[Size]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    for name, make in RANKS.items():
        for size in sizes:
            if name != "dcp-hf" or not size.depth:
                yield of_ranks(Path(), name, size).name, partial(_of, make, size)


def _of(make: Callable[[Path, Size], None], size: Size, folder: Path) -> None:
    make(folder, size)


if __name__ == "__main__":
    from train_dcp import main

    chosen = [size for size in SIZES if size.text in sys.argv[2:]]
    main(Path(sys.argv[1]), {2: dict(_all(chosen))})
