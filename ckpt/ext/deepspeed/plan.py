"""The files of a folder that are the checkpoint: the tag that `latest` names, and the
files of its ranks.

DeepSpeed names them (runtime/engine.py): `[zero_pp_rank_D_]mp_rank_TT_model_states.pt`
and `[bf16_]zero_pp_rank_D_mp_rank_TT_optim_states.pt`. A pipeline has
`layer_LL[-model_TT]-model_states.pt` for each layer with weights
(runtime/pipe/module.py `ckpt_layer_path`), and TT counts its stages in the other files.
No link is followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ckpt.bytes.location import Location, is_plain_name, readable_names
from ckpt.bytes.source import read_limited
from ckpt.ext.dcp.file_names import is_tag, weights_in
from ckpt.formats.format import Probe
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show

POINTERS = ("latest", "latest_universal")
"""Text files that hold the tag. DeepSpeed loads the first, and the second with
`load_universal`.
"""
SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
UNIVERSAL = "zero/"
"""The folder of a universal checkpoint: one folder for each parameter."""

# A file of a layer has a hyphen: `layer_03-model_states.pt`.
_STATES = ("_model_states.pt", "_optim_states.pt", "-model_states.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,9})_)?mp_rank_(\d{2,9})_model_states\.pt")
_OPTIMIZER = re.compile(
    r"(?:bf16_)?zero_pp_rank_(\d{1,9})_mp_rank_(\d{2,9})_optim_states\.pt"
)
_LAYER = re.compile(r"layer_(\d{2,9})(?:-model_(\d{2,9}))?-model_states\.pt")
_TAG_BYTES = 1_000


class Stage(NamedTuple):
    """The files of the data-parallel ranks of one model-parallel rank, by the number of
    the rank.
    """

    models: dict[int, str]
    optimizers: dict[int, str]


class Plan(NamedTuple):
    """The files of a checkpoint, by their names in the folder `at`.

    `models` and `optimizers` are files of the data-parallel ranks, by the number of the
    rank. `others` are files of tensor and pipeline parallel ranks and of experts; with
    any of them, the files are shown side by side.
    """

    path: str
    """The folder that stands for the checkpoint: the one with `latest`, or the folder
    of the tag.
    """
    at: Location
    prefix: str
    """`TAG/` when the path is the folder above."""
    pointer: str
    """`latest`, when the path is the folder above."""
    models: dict[int, str]
    optimizers: dict[int, str]
    others: tuple[str, ...]
    universal: tuple[str, ...] | None = None
    """The files below `zero/` of a universal checkpoint, by their paths from `at`."""
    layers: Mapping[int, str] = MappingProxyType({})
    """The files of the layers of a pipeline, by their numbers. Its `models` and
    `optimizers` are in `stages`.
    """
    stages: Mapping[int, Stage] = MappingProxyType({})

    def file(self, name: str) -> Location:
        """The location of a file. Raises UnreadableError for a link."""
        folder = self.at
        # A universal checkpoint has names such as `zero/NAME/fp32.pt`. Every folder on
        # the way is checked for links.
        for part in name.split("/"):
            folder = folder.child(part, "no")
        return folder

    @property
    def names(self) -> tuple[str, ...]:
        """All files of states, in natural order."""
        every = {
            *self.models.values(),
            *self.optimizers.values(),
            *self.others,
            *self.layers.values(),
        }
        for stage in self.stages.values():
            every |= {*stage.models.values(), *stage.optimizers.values()}
        return (*sorted(every, key=natural_sort_key), *(self.universal or ()))


def is_deepspeed(probe: Probe) -> bool:
    """Tell whether a location leads to a DeepSpeed checkpoint.

    A folder of the Trainer with weights of its own is not one: the checkpoint of
    DeepSpeed is a part of it.
    """
    if not probe.is_folder:
        is_pointer = (
            os.path.basename(probe.path) in POINTERS and probe.size <= _TAG_BYTES
        )
        return is_pointer and _has_tag(probe.location.parent())
    # Files of states directly in the folder: it is the folder of a tag.
    if any(name.endswith(_STATES) for name in readable_names(probe.location)):
        return True
    # The Trainer of transformers puts `latest` beside its own weights.
    return _has_tag(probe.location) and not _has_weights(readable_names(probe.location))


def _has_tag(folder: Location) -> bool:
    """Tell whether a folder has the folder of a tag. One that cannot be read counts
    too, for the error.
    """
    names = readable_names(folder)
    pointer = next((name for name in POINTERS if name in names), "")
    # A script beside a folder of a tag shows a save that was interrupted before
    # `latest`.
    if any(name in names for name in (*POINTERS, *SCRIPTS)) and any(map(is_tag, names)):
        return True
    if not pointer:
        return False
    try:
        tag = _read_tag(folder, pointer)
        below = readable_names(folder.child(tag, "no")) if f"{tag}/" in names else []
    except UnreadableError:
        below = []
    return any(name.endswith(_STATES) for name in below) or any(
        name in names for name in SCRIPTS
    )


def _has_weights(names: Sequence[str]) -> bool:
    try:
        return (
            weights_in([name for name in names if not name.endswith("/")]) is not None
        )
    except UnreadableError:
        # An index that cannot be read stands for weights of its own.
        return True


def plan_of(probe: Probe, limits: Limits) -> Plan:
    """The files of a checkpoint. Raises UnreadableError, LimitError."""
    folder = probe.location if probe.is_folder else probe.location.parent()
    names = folder.names()
    # The user named the folder of the tag itself.
    if any(name.endswith(_STATES) for name in names):
        return _make_plan(folder.name, folder, "", "", names, limits)
    pointer = os.path.basename(probe.path) if not probe.is_folder else ""
    # DeepSpeed loads `latest` by default, where both are there.
    pointer = pointer or next((name for name in POINTERS if name in names), "")
    if not pointer:
        tags = [name.rstrip("/") for name in names if is_tag(name)]
        newest = folder.child(max(tags, key=natural_sort_key)).name if tags else None
        hint = None if newest is None else f"name a tag: {show(newest, 200)}"
        raise UnreadableError(
            "no file latest, which DeepSpeed writes last: the save was interrupted",
            hint=hint,
        )
    tag = _read_tag(folder, pointer)
    if f"{tag}/" not in names:
        there = and_more(
            [show(name.rstrip("/"), 80) for name in names if is_tag(name)], 4
        )
        hint = f"the folder holds {there}" if there else None
        raise UnreadableError(
            f"{pointer} names {show(tag, 80)}, which is not a folder here", hint=hint
        )
    try:
        inner = folder.child(tag, "no")
    except UnreadableError:
        raise UnreadableError(
            f"{pointer} names {show(tag, 80)}, which is a link"
        ) from None
    return _make_plan(folder.name, inner, f"{tag}/", pointer, inner.names(), limits)


def _read_tag(folder: Location, pointer: str) -> str:
    source = folder.child(pointer, "no").open()
    try:
        # A tag has a few letters: a larger file is something else, and is not read
        # whole.
        data = read_limited(source, _TAG_BYTES, "", pointer)
    except LimitError:
        raise UnreadableError(f"{pointer} is not the name of a folder") from None
    finally:
        source.close()
    try:
        tag = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UnreadableError(f"{pointer} is not the name of a folder") from None
    if not tag:
        raise UnreadableError(f"{pointer} is empty: it names no folder")
    # A tag becomes a part of a path: it must not lead out of the folder.
    if not is_plain_name(tag):
        raise UnreadableError(
            f"{pointer} names {show(tag, 80)}, which is not a plain name"
        )
    return tag


def _make_plan(
    path: str,
    folder: Location,
    prefix: str,
    pointer: str,
    names: Sequence[str],
    limits: Limits,
) -> Plan:
    stages: dict[int, Stage] = {}
    layers: dict[int, str] = {}
    others: list[str] = []
    for name in names:
        if not name.endswith(_STATES):
            continue
        model, optimizer, layer = (
            pattern.fullmatch(name) for pattern in (_MODEL, _OPTIMIZER, _LAYER)
        )
        match = model or optimizer
        if match is not None:
            stage = stages.setdefault(int(match[2]), Stage({}, {}))
            _add_file(
                stage.models if model else stage.optimizers,
                int(match[1] or 0),
                "rank",
                name,
            )
        # A layer with a number of a tensor-parallel rank above 0 is a part of that
        # layer.
        elif layer is not None and not int(layer[2] or 0):
            _add_file(layers, int(layer[1]), "layer", name)
        else:
            others.append(name)
    ranks = _files_of_stages(stages)
    if len(ranks) + len(layers) + len(others) > limits.shards:
        raise LimitError("the folder holds too many files", "shards", limits.shards)
    if not (ranks or layers or others):
        raise UnreadableError(
            "the folder of the tag holds no file of a rank: the save was interrupted"
        )
    if layers and not others:
        return Plan(path, folder, prefix, pointer, {}, {}, (), None, layers, stages)
    # With one model-parallel rank, stage 0 is the whole model. Files of any further
    # rank are parts that ckpt does not join.
    first = stages.pop(0, Stage({}, {}))
    others += _files_of_stages(stages)
    others += layers.values()
    universal = None
    if UNIVERSAL in names and not first.optimizers:
        universal = _universal_files(folder, limits)
    return Plan(path, folder, prefix, pointer, *first, tuple(others), universal)


def _files_of_stages(stages: Mapping[int, Stage]) -> list[str]:
    """The files of all ranks of these stages."""
    files: list[str] = []
    for stage in stages.values():
        files += stage.models.values()
        files += stage.optimizers.values()
    return files


def _add_file(files: dict[int, str], number: int, what: str, name: str) -> None:
    """Add the file of a rank or a layer. Raises UnreadableError if there is one."""
    if number in files:
        raise UnreadableError(
            (
                f"two files for {what} {number}: {show(files[number], 80)} and "
                f"{show(name, 80)}"
            ),
            hint="two saves in one folder?",
        )
    files[number] = name


def _universal_files(folder: Location, limits: Limits) -> tuple[str, ...]:
    """The files of each parameter of a universal checkpoint. Raises LimitError."""
    zero = folder.child(UNIVERSAL.rstrip("/"), "no")
    files: list[str] = []
    for name in sorted(zero.names(), key=natural_sort_key):
        inside = (
            zero.child(name.rstrip("/"), "no").names() if name.endswith("/") else [""]
        )
        files += [
            UNIVERSAL + name + file for file in inside if (name + file).endswith(".pt")
        ]
        # The bound is checked after each folder, before the next one is listed.
        if len(files) > limits.shards:
            raise LimitError("the folder holds too many files", "shards", limits.shards)
    return tuple(files)


def files_in(probe: Probe, limits: Limits) -> tuple[str, ...]:
    """The files of the checkpoint by their paths below the folder. Raises CkptError."""
    plan = plan_of(probe, limits)
    pointers = [plan.pointer] if plan.pointer else []
    return (*pointers, *(f"{plan.prefix}{name}" for name in plan.names))
