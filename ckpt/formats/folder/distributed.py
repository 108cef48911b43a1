"""Folders around distributed checkpoints: what Lightning, Megatron and accelerate write beside the data, or around it.

Lightning and Megatron put a file into the folder of the data. accelerate and the Trainer put one such folder for each
model and each optimizer beside their small files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.errors import UnreadableError
from ckpt.formats.dcp.names import BACKEND, COMMON, LIGHTNING, companion, is_of_accelerate, is_part
from ckpt.formats.folder import megatron
from ckpt.formats.folder.layouts import Fact
from ckpt.formats.folder.parts import Part, Plan
from ckpt.formats.probe import Probe
from ckpt.io.location import Location

_ARGS = (
    ("layers", "num_layers"),
    ("hidden size", "hidden_size"),
    ("tensor parallel", "tensor_model_parallel_size"),
    ("pipeline parallel", "pipeline_model_parallel_size"),
    ("ranks", "world_size"),
)
"""Arguments of Megatron that say what model it is and how it was cut."""


def place_of(probe: Probe) -> Location | None:
    """The folder that a path into one leads to; None for a file that no folder of these families has by this name."""
    if probe.is_folder:
        return probe.location
    name = probe.path.replace("\\", "/").rpartition("/")[2]
    return probe.location.parent() if is_part(name) or name in (megatron.LATEST, BACKEND) else None


def plan_in(folder: Location, names: Sequence[str]) -> Plan | None:
    """The plan of a folder that a framework has around its data; None for any other. Raises CkptError."""
    newest = megatron.latest(folder, names)
    if newest is not None:
        at, prefix = newest
        plan = _of_data(at, at.names(), prefix) or _of_ranks(at, at.names(), prefix)
        if plan is None:
            megatron.refuse_zarr(at.names())
            raise UnreadableError(f"{prefix[:-1]} holds no file of a rank: the save was interrupted")
        return plan._replace(path=folder.name)
    return _of_data(folder, names, "") or _of_ranks(folder, names, "")


def _of_data(folder: Location, names: Sequence[str], prefix: str) -> Plan | None:
    """A distributed checkpoint with a file of Lightning or Megatron beside it; one of Megatron may lack the file."""
    if not any(map(is_part, names)):
        return None
    mark = companion(folder, names)
    if not mark and not prefix:
        return None
    data = Part(f"{prefix}.metadata", folder, "model", "dcp", is_model=True)
    if mark == LIGHTNING:
        parts = (data, Part(LIGHTNING, folder.child(LIGHTNING, "cache"), "meta"))
        steps = Fact("epoch", ("meta", "epoch")), Fact("step", ("meta", "global_step"))
        return Plan("DCP beside meta.pt", parts, steps, path=folder.name)
    common = (Part(prefix + COMMON, folder.child(COMMON, "cache"), "common"),) if COMMON in names else ()
    facts = Fact("iteration", ("common", "iteration")), *_facts(("common",))
    layout = "Megatron checkpoint, torch_dist"
    return Plan(layout, (data, *common), facts, path=folder.name, tree=megatron.paths_of)


def _facts(at: tuple[str, ...]) -> list[Fact]:
    return [Fact(label, (*at, "args", name)) for label, name in _ARGS]


def _of_ranks(folder: Location, names: Sequence[str], prefix: str) -> Plan | None:
    """The files of the ranks of Megatron, side by side. That of the only rank is the checkpoint."""
    found = megatron.ranks_in(folder, names)
    if not found:
        return None
    alone = len(found) == 1
    parts = []
    for path, at in found:
        rank, _, file = path.partition("/")
        key = "" if alone else rank if file == megatron.FILES[0] else f"{rank}_{file.partition('.')[0]}"
        parts.append(Part(prefix + path, at, key, is_model=alone))
    first = () if alone else (parts[0].key,)
    facts = Fact("iteration", (*first, "iteration")), *_facts(first)
    layout = "Megatron checkpoint" if alone else "Megatron checkpoint, ranks side by side"
    return Plan(layout, tuple(parts), facts, path=folder.name, is_ranks=not alone)


def shards_in(folder: Location, names: Sequence[str]) -> list[Part]:
    """The distributed checkpoints that accelerate saved as folders of their own, models first."""
    parts = []
    for name in sorted(names, key=lambda name: (not name.startswith("pytorch"), len(name), name)):
        if not name.endswith("/") or not is_of_accelerate(name[:-1]):
            continue
        try:
            at = folder.child(name[:-1], "no")
            if not any(map(is_part, at.names())):
                continue
        except UnreadableError:
            continue
        is_model = name.startswith("pytorch")
        number = re.sub(r"\D+", "", name)
        key = ("model" if is_model else "optimizer") + ("" if number == "0" else f"_{number}")
        parts.append(Part(f"{name}.metadata", at, key, "dcp", is_model))
    return parts
