"""Folders around distributed checkpoints: what Lightning, Megatron and accelerate write
beside the data, or around it.

Lightning and Megatron put a file into the folder of the data. accelerate and the
Trainer put one such folder for each model and each optimizer beside their small files.

Megatron writes `iter_0000010/` below a folder whose `latest_checkpointed_iteration.txt`
names it (megatron/training/checkpointing.py `get_checkpoint_name`). With the backend
torch_dist such a folder is a distributed checkpoint, without paths in its `.metadata`,
beside `common.pt`. Before, it had a folder for each tensor and pipeline parallel rank:
`mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt`.

NeMo 2 has such a folder as `weights/`, beside `context/` with what makes the model:
`io.json`, `model.yaml`, the tokenizer (nemo/lightning/io/connector.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt.bytes.location import Location
from ckpt.bytes.source import read_limited
from ckpt.ext.dcp.file_names import (
    BACKEND,
    COMMON,
    LIGHTNING,
    find_companion,
    is_of_accelerate,
    is_part,
    of_zarr,
)
from ckpt.ext.folders.layouts import Fact, Part, Plan
from ckpt.formats.common.parallel import LLAMA, PARAMS, llama_in
from ckpt.formats.format import Probe
from ckpt.formats.zarr import AS_DIST, has_arrays
from ckpt.model.errors import LimitError, UnreadableError, UnsupportedError
from ckpt.model.names import Path, natural_sort_key
from ckpt.model.text import and_more, show

if TYPE_CHECKING:
    from ckpt.ext.dcp.metadata import Metadata


LATEST = "latest_checkpointed_iteration.txt"
ITERATION = re.compile(r"iter_\d{7,12}/|release/")
RANK = re.compile(r"mp_rank_(\d{2,6})(?:_(\d{3,6}))?(?:_(\d{3,6}))?")
"""The folder of a rank: its tensor parallel rank, then the pipeline parallel one, then
the expert parallel one.
"""
FILES = ("model_optim_rng.pt", "distrib_optim.pt")
"""The files of a rank: the weights with all else, and the shard of a distributed
optimizer.
"""
SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)

NEMO = ("weights", "context")
"""The folders of NeMo 2."""

_TEXT_BYTES = 100
_RANKS = 100_000
"""The most ranks that are looked for."""
_OPTIMIZER = re.compile(r"(?:chained_\d{1,6}\.)?optimizer\.")


def paths_of(metadata: Metadata) -> dict[str, Path]:
    """The paths of the names of torch_dist, which has keys instead of the state dict:
    model, optimizer, objects.

    The keys of the optimizer begin with `optimizer.`, or with `chained_0.optimizer.`
    where there are several. Objects of a rank, such as `_extra_state/shard_0_2`, are no
    part of the model's names.
    """
    paths: dict[str, Path] = {}
    for name in metadata.tensors:
        if _OPTIMIZER.match(name) is None:
            # A key stands for one tensor over all ranks. `chained_0.` stays, to tell
            # the optimizers of one run apart.
            paths[name] = ("model", name)
        else:
            paths[name] = ("optimizer", name.removeprefix("optimizer."))
    return paths | {name: ("objects", name) for name in metadata.objects}


def latest_iteration(
    folder: Location, names: Sequence[str]
) -> tuple[Location, str] | None:
    """The folder of the newest iteration, and its name with a slash; None without the
    file that names it.

    Raises UnreadableError where it names something else than a folder in this one.
    """
    if LATEST not in names:
        return None
    # The file names a part of a path: only a number or `release` gets this far.
    iteration = _read_latest(folder)
    tag = iteration if iteration == "release" else f"iter_{int(iteration):07d}"
    if f"{tag}/" not in names:
        there = and_more(
            [show(name[:-1], 80) for name in names if ITERATION.fullmatch(name)], 4
        )
        hint = f"the folder holds {there}" if there else None
        raise UnreadableError(
            f"{LATEST} names {tag}, which is not a folder here", hint=hint
        )
    try:
        return folder.child(tag, "no"), f"{tag}/"
    except UnreadableError:
        # A link may lead out of the folder.
        raise UnreadableError(f"{LATEST} names {tag}, which is a link") from None


def _read_latest(folder: Location) -> str:
    """Read the text of the file: a number, or `release`. Raises UnreadableError."""
    source = folder.child(LATEST, "no").open()
    try:
        # A longer file is not read whole.
        text = read_limited(source, _TEXT_BYTES, "", LATEST).decode("ascii").strip()
    except (LimitError, UnicodeDecodeError):
        text = ""
    finally:
        source.close()
    if text != "release" and re.fullmatch(r"\d{1,12}", text) is None:
        raise UnreadableError(f"{LATEST} is not the number of an iteration")
    return text


def ranks_in(folder: Location, names: Sequence[str]) -> list[tuple[str, Location]]:
    """The files of the ranks by their paths below the folder, in the order of the
    ranks. No link is followed.
    """
    files: list[tuple[str, Location]] = []
    # The order of the ranks: `mp_rank_10` comes behind `mp_rank_09`.
    for name in sorted(names, key=natural_sort_key):
        if not name.endswith("/") or RANK.fullmatch(name[:-1]) is None:
            continue
        rank = folder.child(name[:-1], "no")
        held = rank.names()
        files += [
            (name + file, rank.child(file, "no")) for file in FILES if file in held
        ]
    return files


def refuse_zarr(folder: Location, names: Sequence[str]) -> None:
    """Raise UnsupportedError for the backend of before, which keeps a folder of zarr
    for each tensor.

    One that lost its `metadata.json` has `common.pt` beside these folders.
    """
    documents = [name for name in names if name == BACKEND]
    if find_companion(folder, documents):
        is_zarr = of_zarr(folder)
    else:
        # The folders of zarr alone may be of any program: `common.pt` is Megatron's.
        is_zarr = COMMON in names and has_arrays(folder)
    if is_zarr:
        raise UnsupportedError(
            "a Megatron checkpoint with the zarr backend, which ckpt does not read",
            hint=AS_DIST,
        )


def unread_in(folder: Location) -> tuple[str, ...]:
    """Return what belongs to a checkpoint that `refuse_zarr` refuses, as paths below
    the folder that it was found in.
    """
    names = folder.names()
    newest = latest_iteration(folder, names)
    if newest is not None:
        return LATEST, newest[1] + BACKEND, newest[1] + COMMON
    files: list[str] = []
    for name in names:
        if name.endswith("/"):
            # The files below are not listed: these two are enough to name the folder.
            files += [name + BACKEND, name + COMMON]
        else:
            files.append(name)
    return tuple(files)


def rank_of(name: str, experts: bool) -> str:
    """Return the rank of a folder: `tensor 0, pipeline 1`.

    A second number is the pipeline, or the expert if `experts` is true and there is no
    third number.
    """
    match = RANK.fullmatch(name)
    assert match is not None
    second = "expert" if experts and match[3] is None else "pipeline"
    kinds = ("tensor", second, "expert")
    return ", ".join(
        f"{kind} {int(number)}"
        for kind, number in zip(kinds, match.groups(), strict=True)
        if number
    )


def missing_ranks(names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """The folders of ranks that are not among `names`, by the sizes of the tensor and
    pipeline parallel groups.
    """
    tensor, pipeline = sizes
    # The sizes are claims of a file.
    if tensor * pipeline > _RANKS:
        return []
    # Megatron writes the number of the pipeline stage only where there are several.
    name = "mp_rank_{:02d}_{:03d}" if pipeline > 1 else "mp_rank_{:02d}"
    rows = (
        name.format(*divmod(number, pipeline)) for number in range(tensor * pipeline)
    )
    # The names are cut behind the last number that counts: an expert's may follow.
    fields = 4 if pipeline > 1 else 3
    there = {"_".join(row.split("_")[:fields]) for row in names}
    return [row for row in rows if row not in there]


_ARGS = (
    ("layers", "num_layers"),
    ("hidden size", "hidden_size"),
    ("tensor parallel", "tensor_model_parallel_size"),
    ("pipeline parallel", "pipeline_model_parallel_size"),
    ("ranks", "world_size"),
)
"""Arguments of Megatron that say what model it is and how it was cut."""


def place_of(probe: Probe) -> Location | None:
    """Return the folder that a path into one leads to.

    Return None for a file that no folder of these families has by this name.
    """
    if probe.is_folder:
        return probe.location
    name = probe.path.replace("\\", "/").rpartition("/")[2]
    if is_part(name) or name in (LATEST, BACKEND):
        return probe.location.parent()
    return None


def plan_in(folder: Location, names: Sequence[str]) -> Plan | None:
    """Return the plan of a folder that a framework has around its data, or None. Raises
    CkptError.
    """
    newest = latest_iteration(folder, names)
    if newest is not None:
        data, prefix = newest
        held = data.names()
        plan = _of_data(data, held, prefix) or _of_ranks(data, held, prefix)
        if plan is None:
            refuse_zarr(data, held)
            raise UnreadableError(
                f"{prefix[:-1]} holds no file of a rank: the save was interrupted"
            )
        return plan._replace(path=folder.name)
    # A distributed checkpoint comes first: old folders of ranks may lie beside it.
    plan = (
        _of_data(folder, names, "")
        or _of_ranks(folder, names, "")
        or _of_nemo(folder, names)
    )
    plan = plan or _of_llama(folder, names)
    if plan is None:
        refuse_zarr(folder, names)
    return plan


def _of_llama(folder: Location, names: Sequence[str]) -> Plan | None:
    """The files of the ranks of tensor parallelism, as Meta publishes Llama, and its
    sizes. One file is the checkpoint itself.
    """
    ranks = llama_in(names)
    if len(ranks) < 2:
        return None
    parts = [
        Part(name, folder.child(name), f"rank_{number:02d}")
        for number, name in ranks.items()
    ]
    if PARAMS in names:
        parts.append(Part(PARAMS, folder.child(PARAMS), "params", "json"))
    facts = [
        Fact("hidden size", ("params", "dim")),
        Fact("layers", ("params", "n_layers")),
    ]
    layout = "Llama checkpoint, ranks side by side"
    return Plan(layout, tuple(parts), tuple(facts), path=folder.name, is_ranks=True)


def parallel_of(files: Sequence[str]) -> list[str]:
    """Return the files of ranks of one pipeline stage, whose names are equal: the stage
    of the first.
    """
    stages: dict[str, list[str]] = {}
    for file in files:
        match = RANK.fullmatch(file.rpartition("/")[0].rpartition("/")[2])
        # Ranks of tensor parallelism have equal numbers of the pipeline and of the
        # expert.
        if match is not None and file.endswith(FILES[0]):
            stages.setdefault(f"{match[2]} {match[3]}", []).append(file)
        elif match is None and re.fullmatch(LLAMA, file):
            stages.setdefault("", []).append(file)
    return next(iter(stages.values()), [])


def _of_nemo(folder: Location, names: Sequence[str]) -> Plan | None:
    """The weights of NeMo 2, in a folder of their own. Raises UnsupportedError for the
    backend of before.
    """
    if any(f"{name}/" not in names for name in NEMO):
        return None
    try:
        data = folder.child(NEMO[0], "no")
        held = data.names()
    except UnreadableError:
        return None
    plan = _of_data(data, held, f"{NEMO[0]}/")
    if plan is None:
        refuse_zarr(data, held)
        return None
    layout = plan.layout.replace("Megatron", "NeMo 2", 1)
    return plan._replace(layout=layout, path=folder.name)


def _of_data(folder: Location, names: Sequence[str], prefix: str) -> Plan | None:
    """A distributed checkpoint with a file of Lightning or Megatron beside it; one of
    Megatron may lack the file.
    """
    if not any(map(is_part, names)):
        return None
    mark = find_companion(folder, names)
    # Without a file beside it, a folder with `.metadata` is a plain DCP, which has a
    # format of its own.
    if not mark and not prefix:
        return None
    data = Part(f"{prefix}.metadata", folder, "model", "dcp", is_model=True)
    if mark == LIGHTNING:
        # The small file may be a link into the cache of a Hugging Face download.
        parts = (data, Part(LIGHTNING, folder.child(LIGHTNING, "cache"), "meta"))
        steps = Fact("epoch", ("meta", "epoch")), Fact("step", ("meta", "global_step"))
        return Plan("DCP beside meta.pt", parts, steps, path=folder.name)
    common: tuple[Part, ...] = ()
    # The newest versions of Megatron put its content into the data.
    if COMMON in names:
        common = (Part(prefix + COMMON, folder.child(COMMON, "cache"), "common"),)
    facts = Fact("iteration", ("common", "iteration")), *_argument_facts(("common",))
    layout = "Megatron checkpoint, torch_dist"
    return Plan(layout, (data, *common), facts, path=folder.name, tree=paths_of)


def _argument_facts(path: tuple[str, ...]) -> list[Fact]:
    return [Fact(label, (*path, "args", name)) for label, name in _ARGS]


def _of_ranks(folder: Location, names: Sequence[str], prefix: str) -> Plan | None:
    """The files of the ranks of Megatron, side by side. That of the only rank is the
    checkpoint.
    """
    files = ranks_in(folder, names)
    if not files:
        return None
    alone = len(files) == 1
    parts = []
    for path, location in files:
        rank, _, file = path.partition("/")
        # The key is the rank for its weights, and names the file for anything else.
        key = rank
        if file != FILES[0]:
            key = f"{rank}_{file.partition('.')[0]}"
        if alone:
            key = ""
        parts.append(Part(prefix + path, location, key, is_model=alone))
    first = () if alone else (parts[0].key,)
    facts = Fact("iteration", (*first, "iteration")), *_argument_facts(first)
    layout = (
        "Megatron checkpoint" if alone else "Megatron checkpoint, ranks side by side"
    )
    return Plan(layout, tuple(parts), facts, path=folder.name, is_ranks=not alone)


def shards_in(folder: Location, names: Sequence[str]) -> list[Part]:
    """The distributed checkpoints that accelerate saved as folders of their own, models
    first.
    """
    parts = []
    # `pytorch_model_fsdp_0` first, and `_10` behind `_9`.
    ordered = sorted(
        names, key=lambda name: (not name.startswith("pytorch"), len(name), name)
    )
    for name in ordered:
        if not name.endswith("/") or not is_of_accelerate(name[:-1]):
            continue
        try:
            inner = folder.child(name[:-1], "no")
            if not any(map(is_part, inner.names())):
                continue
        # A link, or a folder that cannot be read, is no part of the checkpoint.
        except UnreadableError:
            continue
        is_model = name.startswith("pytorch")
        # The first model and the first optimizer have plain keys, as there mostly is
        # one of each.
        number = re.sub(r"\D+", "", name)
        key = "model" if is_model else "optimizer"
        if number != "0":
            key += f"_{number}"
        parts.append(Part(f"{name}.metadata", inner, key, "dcp", is_model))
    return parts
