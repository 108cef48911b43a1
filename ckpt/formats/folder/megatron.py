"""The folders of Megatron: `iter_0000010/` below a folder whose `latest_checkpointed_iteration.txt` names it.

Megatron names them (megatron/training/checkpointing.py `get_checkpoint_name`). With the backend torch_dist such a folder
is a distributed checkpoint, without paths in its `.metadata`, beside `common.pt`. Before, it had a folder for each
tensor and pipeline parallel rank: `mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt.errors import LimitError, UnreadableError, UnsupportedError
from ckpt.io.location import Location
from ckpt.io.source import read_limited
from ckpt.names import Path, natural
from ckpt.text import and_more, show

if TYPE_CHECKING:
    from ckpt.formats.dcp.metadata import Metadata

LATEST = "latest_checkpointed_iteration.txt"
ITERATION = re.compile(r"iter_\d{7,12}/|release/")
RANK = re.compile(r"mp_rank_(\d{2,6})(?:_(\d{3,6}))?(?:_(\d{3,6}))?")
"""The folder of a rank: its tensor parallel rank, then the pipeline parallel one, then the expert parallel one."""
FILES = ("model_optim_rng.pt", "distrib_optim.pt")
"""The files of a rank: the weights with all else, and the shard of a distributed optimizer."""
SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")

_TEXT_BYTES = 100
_RANKS = 100_000
"""The most ranks that are looked for."""
_OPTIMIZER = re.compile(r"(?:chained_\d{1,6}\.)?optimizer\.")


def paths_of(metadata: Metadata) -> dict[str, Path]:
    """The paths of the names of torch_dist, which has keys instead of the state dict: model, optimizer, objects.

    The keys of the optimizer begin with `optimizer.`, or with `chained_0.optimizer.` where there are several. Objects of
    a rank, such as `_extra_state/shard_0_2`, are no part of the model's names.
    """
    paths: dict[str, Path] = {}
    for name in metadata.tensors:
        if _OPTIMIZER.match(name) is None:
            paths[name] = ("model", name)
        else:
            paths[name] = ("optimizer", name.removeprefix("optimizer."))
    return paths | {name: ("objects", name) for name in metadata.objects}


def latest(folder: Location, names: Sequence[str]) -> tuple[Location, str] | None:
    """The folder of the newest iteration, and its name with a slash; None without the file that names it.

    Raises UnreadableError where it names something else than a folder in this one.
    """
    if LATEST not in names:
        return None
    said = _said(folder)
    tag = said if said == "release" else f"iter_{int(said):07d}"
    if f"{tag}/" not in names:
        there = and_more([show(name[:-1], 80) for name in names if ITERATION.fullmatch(name)], 4)
        hint = f"the folder holds {there}" if there else None
        raise UnreadableError(f"{LATEST} names {tag}, which is not a folder here", hint=hint)
    try:
        return folder.child(tag, "no"), f"{tag}/"
    except UnreadableError:
        raise UnreadableError(f"{LATEST} names {tag}, which is a link") from None


def _said(folder: Location) -> str:
    """What the file says: a number, or `release`. Raises UnreadableError."""
    source = folder.child(LATEST, "no").open()
    try:
        said = read_limited(source, _TEXT_BYTES, "", LATEST).decode("ascii").strip()
    except (LimitError, UnicodeDecodeError):
        said = ""
    finally:
        source.close()
    if said != "release" and re.fullmatch(r"\d{1,12}", said) is None:
        raise UnreadableError(f"{LATEST} is not the number of an iteration")
    return said


def ranks_in(folder: Location, names: Sequence[str]) -> list[tuple[str, Location]]:
    """The files of the ranks by their paths below the folder, in the order of the ranks. No link is followed."""
    found: list[tuple[str, Location]] = []
    for name in sorted(names, key=natural):
        if not name.endswith("/") or RANK.fullmatch(name[:-1]) is None:
            continue
        at = folder.child(name[:-1], "no")
        held = at.names()
        found += [(name + file, at.child(file, "no")) for file in FILES if file in held]
    return found


def refuse_zarr(names: Sequence[str]) -> None:
    """Raise UnsupportedError for the backend of before, which keeps a folder of zarr for each tensor."""
    if "metadata.json" in names and not any(name.startswith("mp_rank_") for name in names):
        raise UnsupportedError("a Megatron checkpoint with the zarr backend, which ckpt does not read")


def rank_of(name: str, experts: bool) -> str:
    """Which rank a folder is of: `tensor 0, pipeline 1`. A second number is that of a pipeline, unless only experts are."""
    match = RANK.fullmatch(name)
    assert match is not None
    kinds = ("tensor", "expert" if experts and match[3] is None else "pipeline", "expert")
    return ", ".join(
        f"{kind} {int(number)}" for kind, number in zip(kinds, match.groups(), strict=True) if number
    )


def missing(names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """The folders of ranks that are not among `names`, by the sizes of the tensor and pipeline parallel groups."""
    tensor, pipeline = sizes
    if tensor * pipeline > _RANKS:
        return []
    name = "mp_rank_{:02d}_{:03d}" if pipeline > 1 else "mp_rank_{:02d}"
    rows = (name.format(*divmod(number, pipeline)) for number in range(tensor * pipeline))
    there = {"_".join(row.split("_")[: 4 if pipeline > 1 else 3]) for row in names}
    return [row for row in rows if row not in there]
