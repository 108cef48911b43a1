"""ShardedTensor in the files of single ranks: what a file holds of a tensor, never the
tensor as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opcodes as op
import pytest
import torch
from process import ckpt

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UnreadableError
from ckpt.model.tensors import Composite

KIND = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"


@pytest.fixture
def alone(ranks: Path) -> Path:
    """The files of two ranks of FSDP on gloo."""
    return ranks / "fsdp1_alone"


def test_each_rank_shows_its_shards(alone: Path) -> None:
    whole = torch.load(f"{alone}.full.pt")
    covered = {
        name: torch.zeros(tensor.shape, dtype=torch.int)
        for name, tensor in whole.items()
    }
    for rank in (0, 1):
        with formats.open(str(alone / f"rank{rank}.pt")) as checkpoint:
            for entry in checkpoint.tensors:
                name = entry.name.removeprefix("model.")
                if not isinstance(entry.tensor, Composite):
                    continue
                assert entry.tensor.shape == whole[name].shape
                assert str(entry.tensor.detail).startswith(KIND)
                assert entry.tensor.numel == sum(
                    part.numel for _, part in entry.tensor.parts
                )
                for label, part in entry.tensor.parts:
                    assert str(entry.tensor.detail).endswith(f"of rank {rank}")
                    at = tuple(
                        slice(first, first + size)
                        for first, size in zip(
                            map(int, label.split("_")[1:]), part.shape, strict=True
                        )
                    )
                    data = b"".join(part.storage.place.read_blocks(*part.extent))
                    assert data == whole[name][at].numpy().tobytes()
                    covered[name][at] += 1
    sharded = {name for name in covered if name.endswith(("weight", "bias"))}
    assert all(bool((covered[name] == 1).all()) for name in sharded)


def test_what_they_import_is_known(alone: Path) -> None:
    with formats.open(str(alone / "rank1.pt")) as checkpoint:
        survey = Survey(checkpoint)
        found = {finding.code for finding in inspect(survey).findings}
        assert {row.group for row in checkpoint.imports} == {"known"}
        assert not found & {"called-on-load", "unknown-import"}
        assert "a process group" in str(survey.load.reason)


def test_the_screen_and_the_commands(alone: Path, tmp_path: Path) -> None:
    screen = ckpt("inspect", alone / "rank1.pt").out.decode()
    assert "[7, 5] ShardedTensor [4:7, 0:5] of rank 1  float32     15   60 B" in screen
    assert "[1] ShardedTensor without a shard" in screen
    assert ckpt("verify", alone / "rank0.pt").code == 0
    assert ckpt("diff", alone / "rank0.pt", alone / "rank0.pt").code == 0
    for name in ("x.safetensors", "x.pth"):
        done = ckpt("convert", alone / "rank0.pt", "-o", tmp_path / name, "--plain")
        assert done.code == 2 and not (tmp_path / name).exists()
        assert b"holds parts of 4 tensors, those of rank 0 (the folder " in done.err


def sharded(
    offsets: Any = (0, 0),
    sizes: Any = (2, 3),
    size: tuple[int, int] = (4, 3),
    shards: Any = None,
    tensor: Any = None,
) -> bytes:
    """A ShardedTensor of one shard."""
    api = "torch.distributed._shard"
    metadata = (
        op.glob(f"{api}.metadata", "ShardMetadata") + op.empty_tuple() + op.newobj()
    )
    metadata += (
        op.value(
            (None, {"shard_offsets": offsets, "shard_sizes": sizes, "placement": None})
        )
        + op.build()
    )
    shard = (
        op.glob(f"{api}.sharded_tensor.shard", "Shard") + op.empty_tuple() + op.newobj()
    )
    shard += (
        op.value(
            (
                None,
                {
                    "tensor": op.tensor() if tensor is None else tensor,
                    "metadata": metadata,
                },
            )
        )
        + op.build()
    )
    cls = op.glob(f"{api}.sharded_tensor.api", "ShardedTensor")
    layout = op.call(op.glob("torch.serialization", "_get_layout"), "torch.strided")
    device = op.call(op.glob("torch", "device"), "cpu")
    inner = (
        cls,
        op.glob("torch", "float32"),
        size,
        (size[1], 1),
        0,
        layout,
        device,
        False,
    )
    state = ([shard] if shards is None else shards, None, None, None, False)
    rebuilt = op.glob("torch._tensor", "_rebuild_from_type_v2")
    wrapper = op.glob("torch._utils", "_rebuild_wrapper_subclass")
    return op.torch_zip(op.pickled({"w": op.call(rebuilt, wrapper, cls, inner, state)}))


def opened(folder: Path, data: bytes) -> Composite:
    (folder / "x.pt").write_bytes(data)
    with formats.open(str(folder / "x.pt")) as checkpoint:
        tensor = checkpoint.tensors[0].tensor
    assert isinstance(tensor, Composite)
    return tensor


def test_a_shard_by_hand(tmp_path: Path) -> None:
    tensor = opened(tmp_path, sharded([2, 0]))

    assert (tensor.shape, tensor.numel, tensor.nbytes) == ((4, 3), 6, 24)
    assert tensor.detail == f"{KIND} [2:4, 0:3]" and tensor.parts[0][0] == "shard_2_0"


def test_a_tensor_without_its_shards_holds_nothing(tmp_path: Path) -> None:
    tensor = opened(tmp_path, sharded(shards=[]))

    assert (tensor.numel, tensor.nbytes, tensor.parts) == (0, 0, ())
    assert tensor.detail == f"{KIND} without a shard"


BAD: dict[str, tuple[bytes, str]] = {
    "outside": (sharded([3, 0]), "lies outside of its tensor"),
    "negative": (sharded([-1, 0]), "invalid size"),
    "huge": (sharded([2**62, 0]), "lies outside of its tensor"),
    "other sizes": (sharded(sizes=[3, 2]), "not that of its tensor"),
    "fewer dimensions": (sharded([0], [6]), "not that of its tensor"),
    "offsets of fewer dimensions": (sharded([0]), "not that of its tensor"),
    "offsets that are none": (sharded("ab"), "must be tuples"),
    "no tensor": (sharded(tensor=7), "no tensor or no place"),
    "no shard": (sharded(shards=[7]), "no tensor or no place"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_shard_is_refused(name: str, tmp_path: Path) -> None:
    data, problem = BAD[name]

    with pytest.raises(UnreadableError, match=problem):
        opened(tmp_path, data)
