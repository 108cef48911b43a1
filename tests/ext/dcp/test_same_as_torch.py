"""What ckpt shows under a name of a distributed checkpoint is what torch puts there, or
ckpt refuses it.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import frameworks_dcp
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

import ckpt
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

NAMES = ("a", "b", "c")


def state(fill: float | None = None) -> dict[str, Any]:
    """Tensors of one shape, so that torch takes one for the other without a word."""
    tensors = {
        name: torch.full((4, 2), float(place) if fill is None else fill)
        for place, name in enumerate(NAMES)
    }
    return {
        "model": tensors,
        "list": [torch.full((4, 2), 7.0 if fill is None else fill)],
        "epoch": 3,
    }


def change(found: Metadata, seed: int) -> None:
    """One random change of what says where an item is."""
    choice = random.Random(seed)
    keys = [key for key in found.storage_data if key.fqn != "epoch"]
    one, two = choice.sample(keys, 2)
    rows, paths = found.storage_data, found.planner_data
    kind = seed % 10
    if kind == 0:
        paths[one.fqn], paths[two.fqn] = paths[two.fqn], paths[one.fqn]
    elif kind == 1:
        paths[one.fqn] = ("model", choice.choice((*NAMES, "d")))
    elif kind == 2:
        rows[one], rows[two] = rows[two], rows[one]
    elif kind == 3:
        rows[replace(one, index=choice.choice((None, 5, 0)))] = rows.pop(one)
    elif kind == 4:
        rows[replace(one, offset=torch.Size((1, 0)))] = rows[two]
    elif kind == 5:
        rows[replace(one, offset=None)] = rows.pop(one)
    elif kind == 6:
        found.state_dict_metadata = dict(
            choice.sample(list(found.state_dict_metadata.items()), 5)
        )
    elif kind == 7:
        chunk = found.state_dict_metadata[one.fqn].chunks[0]
        found.state_dict_metadata[one.fqn].chunks.append(
            ChunkStorageMetadata(chunk.offsets, torch.Size((choice.randrange(5), 2)))
        )
    elif kind == 8:
        row = found.state_dict_metadata[one.fqn]
        row.chunks[0] = ChunkStorageMetadata(
            torch.Size((choice.randrange(2), 0)), torch.Size((choice.randrange(4), 2))
        )
    else:
        rows[one] = replace(
            rows[one],
            relative_path=choice.choice(
                ("./__0_0.distcp", "x/../__0_0.distcp", "__0_0.distcp")
            ),
        )


def by_torch(folder: Path) -> dict[str, torch.Tensor] | None:
    """What torch puts under each name, or None where it loads nothing."""
    loaded = state(-1.0)
    try:
        dcp.load(loaded, checkpoint_id=folder, no_dist=True)
    except (Exception, CheckpointException):
        return None
    tensors = {f"model.{name}": tensor for name, tensor in loaded["model"].items()}
    return {**tensors, "list.0": loaded["list"][0]}


def by_ckpt(folder: Path) -> dict[str, torch.Tensor] | None:
    try:
        with ckpt.open(folder) as opened:
            return {name: opened[name].torch() for name in opened if name != "epoch"}
    except CkptError:
        return None


@pytest.mark.parametrize("seed", range(80))
def test_a_changed_metadata(seed: int, tmp_path: Path) -> None:
    folder = frameworks_dcp.save(tmp_path / "d", state())
    path = folder / ".metadata"
    found = pickle.loads(path.read_bytes())
    if seed:
        change(found, seed)
    path.write_bytes(pickle.dumps(found))
    theirs, ours = by_torch(folder), by_ckpt(folder)

    assert seed or (theirs is not None and ours is not None)
    if theirs is None or ours is None:
        return
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), (seed % 10, name)
