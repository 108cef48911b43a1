"""Writing safetensors in several files with an index, as Hugging Face lays them out."""

from __future__ import annotations

import json
from dataclasses import replace

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.formats.draft import Draft
from ckpt.formats.safetensors.write import held
from ckpt.nodes import Dict
from ckpt.tree.metadata import metadata_of, with_metadata

NAME = "sharded"
FORMAT = "safetensors"
"""The format of each shard."""


def split(checkpoint: Checkpoint, shard_bytes: int) -> list[Checkpoint]:
    """Split a checkpoint for safetensors into parts of at most `shard_bytes` bytes of tensors, in its order.

    A larger tensor gets a part of its own. The names of a tied tensor stay together.
    """
    tensors, others = held(checkpoint)
    number: dict[str, int] = {}
    count = used = 0
    for name, ref in tensors:
        if used and used + ref.nbytes > shard_bytes:
            count, used = count + 1, 0
        number[name] = count
        used += ref.nbytes
    groups: list[list[Entry]] = [[] for _ in range(count + 1)]
    for entry in checkpoint.tensors:
        groups[number[others.get(entry.name, entry.name)]].append(entry)
    parts = []
    for entries in groups:
        root = Dict()
        root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
        root = with_metadata(root, metadata_of(checkpoint.root))
        parts.append(replace(checkpoint, root=root, tensors=tuple(entries)))
    return parts


def shard_name(stem: str, number: int, of: int) -> str:
    """The name of a shard in the style of Hugging Face: `model-00001-of-00003.safetensors`."""
    return f"{stem}-{number:05}-of-{of:05}.safetensors"


def index_draft(parts: list[Checkpoint], names: list[str]) -> Draft:
    """The index of shards: the bytes of all tensors, and the shard of each."""
    weight_map: dict[str, str] = {}
    total = 0
    for part, name in zip(parts, names, strict=True):
        for tensor, ref in held(part)[0]:
            weight_map[tensor] = name
            total += ref.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = (json.dumps(index, indent=2, ensure_ascii=True) + "\n").encode()
    return Draft(len(text), lambda sink: sink.write(text))
