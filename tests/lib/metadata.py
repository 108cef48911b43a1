"""`.metadata` of distributed checkpoints that nobody has saved: entries of
every kind.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)


def made(seed: int, count: int = 40) -> Metadata:
    """Entries of every kind: dimensions, chunks, types, names, shared and fresh
    objects, large numbers.
    """
    rng = random.Random(seed)
    tensors: dict[str, Any] = {}
    items: dict[MetadataIndex, Any] = {}
    files = [f"__{rank}_0.distcp" for rank in range(4)]
    for number in range(count):
        name = rng.choice(["w", "é", "x" * 300, "layers.", "K\x85\x94"]) + str(number)
        if rng.random() < 0.1:
            tensors[name] = BytesStorageMetadata()
            items[MetadataIndex(name)] = _StorageInfo(
                rng.choice(files), rng.randrange(2**20), 1261
            )
            continue
        dims = rng.choice((0, 1, 1, 2, 2, 2, 3, 4, 5))
        rows = rng.choice((1, 1, 1, 2, 4, 9))
        inner = tuple(
            rng.choice((1, 3, 200, 70_000 if dims < 4 else 2)) for _ in range(dims - 1)
        )
        shape = torch.Size((rows * 10, *inner)) if dims else torch.Size(())
        chunks = [
            ChunkStorageMetadata(
                torch.Size((10 * row, *(0 for _ in inner))) if dims else torch.Size(()),
                torch.Size((10, *inner)) if dims else torch.Size(()),
            )
            for row in range(rows if dims else 1)
        ]
        if rng.random() < 0.05:
            chunks = []
        kind = TensorProperties(
            dtype=rng.choice(
                [torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.bool]
            ),
            requires_grad=rng.random() < 0.3,
        )
        tensors[name] = TensorStorageMetadata(kind, shape, chunks)
        for place, chunk in enumerate(chunks):
            offsets = (
                chunk.offsets
                if rng.random() < 0.5
                else torch.Size(tuple(chunk.offsets))
            )
            if offsets == chunk.sizes:
                offsets = chunk.sizes  # one object in two places
            index = MetadataIndex(
                rng.choice([name, "".join(name)]), offsets, rng.choice([place, None])
            )
            at = rng.choice((0, 200, 40_000, 2**31 + 5, 2**45))
            file = (
                rng.choice(files)
                if rng.random() < 0.7
                else "".join(["__", str(place % 4), "_0.distcp"])
            )
            info = _StorageInfo(file, at, rng.randrange(2**33))
            if rng.random() < 0.05:
                info.transform_descriptors = ["stream.zstd/1"]
            items[index] = info
    return Metadata(tensors, {name: tuple(name.split(".")) for name in tensors}, items)
