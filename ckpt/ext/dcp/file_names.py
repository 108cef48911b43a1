"""The files of a distributed checkpoint by their names, the folder that a path into it
leads to, and what lies beside.

The files of weights of any folder, and the folders that DeepSpeed makes, are told by
their names here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpt.bytes.location import Location
from ckpt.formats.format import DISTRIBUTED, Probe
from ckpt.model.errors import NotOpenedError, UnreadableError
from ckpt.model.names import is_index, without_index
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show

METADATA, DATA = ".metadata", DISTRIBUTED
_OF_A_RANK = r"__\d+\.metadata"
"""The name of the file that each rank writes if `save` uses no collectives."""

LIGHTNING, COMMON, BACKEND = "meta.pt", "common.pt", "metadata.json"
"""Files of torch.save and JSON that frameworks put into the folder: Lightning the
first, Megatron the others.
"""
# A `metadata.json` without this key is of another program.
BACKEND_KEY = b'"sharded_backend"'
_HEAD = 4096

_ACCELERATE = r"(?:pytorch_model_fsdp|optimizer)_\d{1,4}"
_BESIDE = (
    r"(?:scheduler|sampler|dl_state_dict)(?:_\d{1,4})?\.bin|scaler\.pt|scheduler\.pt"
    r"|(?:random_states|custom_checkpoint)_\d{1,6}\.pkl"
    r"|rng_state(?:_\d{1,6})?\.pth|trainer_state\.json|training_args\.bin"
)


def is_metadata(name: str) -> bool:
    """Tell whether a file of this name lists the content of a distributed
    checkpoint.
    """
    # The ending first: most names are told by it alone.
    return name == METADATA or (
        name.endswith(METADATA) and re.fullmatch(_OF_A_RANK, name) is not None
    )


UNFINISHED = ".tmp"
"""The ending that torch takes off `.metadata.tmp` as the last step of a save."""


def is_unfinished(name: str) -> bool:
    """Tell whether a file of this name lists the content of a save that was killed
    before its last step.
    """
    return name.endswith(UNFINISHED) and is_metadata(name.removesuffix(UNFINISHED))


def is_of_accelerate(name: str) -> bool:
    """Tell whether accelerate or the Trainer of transformers names its distributed
    checkpoints like this.
    """
    return re.fullmatch(_ACCELERATE, name) is not None


def is_part(name: str) -> bool:
    """Tell whether a file of this name belongs to a distributed checkpoint."""
    return is_metadata(name) or is_unfinished(name) or name.endswith(DATA)


_OF_RANK = r"__(\d{1,9})_\d+\.distcp"
"""The name of a data file: the rank that wrote it, and the number of the file among all
of this rank.
"""


def ranks_of(files: Iterable[str]) -> list[int]:
    """The ranks that wrote these data files, in order. A file of another name is of
    none.
    """
    matches = (re.fullmatch(_OF_RANK, file.rpartition("/")[2]) for file in files)
    return sorted({int(match[1]) for match in matches if match is not None})


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 2 and 3`, `ranks 8 to 15`, or the first of them."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    # A whole run of ranks is named by its ends.
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return "ranks " + and_more([str(rank) for rank in ranks], 5)


def folder_of(probe: Probe) -> Location | None:
    """The folder of the checkpoint that a path leads to: the folder, its `.metadata`,
    or a file of its data.
    """
    pair = _find_folder(probe)
    return None if pair is None else pair[0]


def plain_folder_of(probe: Probe) -> Location | None:
    """Return the folder as `folder_of` does, or None if a framework keeps a part of it
    in its own files.
    """
    pair = _find_folder(probe)
    return None if pair is None or find_companion(*pair) else pair[0]


def _find_folder(probe: Probe) -> tuple[Location, list[str]] | None:
    if probe.is_folder:
        folder = probe.location
    else:
        name = probe.path.replace("\\", "/").rpartition("/")[2]
        if not is_part(name):
            return None
        folder = probe.location.parent()
    try:
        names = folder.names()
    except NotOpenedError:
        return None
    return (folder, names) if any(map(is_part, names)) else None


def find_companion(folder: Location, names: Sequence[str]) -> str:
    """The file that says whose folder it is: `metadata.json` of Megatron, `common.pt`
    or `meta.pt`; empty without one.

    A link, or anything else that is not a file, is not one.
    """
    for name in (BACKEND, COMMON, LIGHTNING):
        if name in names and _is_one(folder, name):
            return name
    return ""


def _is_one(folder: Location, name: str) -> bool:
    try:
        # Links are followed inside of a Hugging Face cache alone.
        location = folder.child(name, "cache")
        if not location.is_file():
            return False
        # Other programs have a `metadata.json` too.
        return name != BACKEND or BACKEND_KEY in _read_head(location)
    except UnreadableError:
        return False


def of_zarr(folder: Location) -> bool:
    """Tell whether `metadata.json` of Megatron names the backend zarr."""
    head = _read_head(folder.child(BACKEND, "cache"))
    return re.search(rb'"sharded_backend"\s*:\s*"zarr"', head) is not None


def _read_head(location: Location) -> bytes:
    source = location.open()
    try:
        return source.read(0, min(source.size, _HEAD))
    finally:
        source.close()


def names_beside(folder: Location) -> tuple[str, ...]:
    """Return the names that accelerate saved beside one of its folders, with ranks as
    `*`.
    """
    own = folder.name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    if not is_of_accelerate(own):
        return ()
    try:
        names = folder.parent().names()
    except NotOpenedError:
        return ()
    others = [
        name for name in names if name.endswith("/") and is_of_accelerate(name[:-1])
    ]
    # A file for each rank is one line: `random_states_*.pkl`.
    files = dict.fromkeys(
        re.sub(r"_\d+(?=\.)", "_*", name)
        for name in names
        if re.fullmatch(_BESIDE, name)
    )
    return (*(name for name in others if name[:-1] != own), *files)


_TAG = r"global_step\d+(?:_universal)?/"
"""A folder of DeepSpeed, as the Trainer has it beside its own files: a checkpoint of
its own.
"""


def is_tag(name: str) -> bool:
    """Tell whether DeepSpeed gives a folder this name, which ends with a slash."""
    return re.fullmatch(_TAG, name) is not None


_STEMS = ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model")
_VARIANT = r"(" + "|".join(_STEMS) + r")\.(\w{1,40})\.(safetensors|bin)"
_NUMBERED = r"(?:pytorch_)?model_(\d+)\.(?:safetensors|bin)"
_FULL = r"pytorch_model_fsdp((?:_\d{1,4})?)\.bin"
"""The whole state dict of a model under FSDP (FULL_STATE_DICT), as accelerate and the
Trainer name it.
"""


class Chosen(NamedTuple):
    """The files of weights that are read, each with its key (`model_1`; empty for the
    only one), and the others.
    """

    files: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]


def weights_in(names: Sequence[str]) -> Chosen | None:
    """The files of weights among the names of a folder; None without any.

    transformers and diffusers choose in this order: safetensors before pickles, one
    file before shards, the plain name before a variant (`model.fp16.safetensors`).
    accelerate numbers further models: `model_1.safetensors`. What it saves under FSDP
    comes last, for the Trainer puts the model that it loads beside it. Raises
    UnreadableError where two files are as good.
    """
    indexes = [name for name in names if is_index(name)]
    singles = [
        f"{stem}.{ending}"
        for ending in ("safetensors", "bin")
        for stem in _STEMS
        # `model.bin` is a name of many programs.
        if f"{stem}.{ending}" in names and (stem, ending) != ("model", "bin")
    ]
    variants = [name for name in names if re.fullmatch(_VARIANT, name)]
    of_variants = [
        name for name in indexes if re.fullmatch(_VARIANT, without_index(name))
    ]
    indexes = [name for name in indexes if name not in of_variants]
    full = sorted(
        (name for name in names if re.fullmatch(_FULL, name)),
        key=lambda name: (len(name), name),
    )
    every = [*indexes, *singles, *variants, *of_variants, *full]
    # From the best kind to the last one; within a kind, several files are refused.
    kinds = (
        [name for name in singles if name.endswith(".safetensors")],
        [name for name in indexes if "safetensors" in name],
        singles,
        indexes,
        [name for name in variants if name.endswith(".safetensors")],
        [name for name in of_variants if "safetensors" in name],
        variants,
        of_variants,
    )
    for pick in kinds:
        if len(pick) > 1:
            listed = ", ".join(show(name, 80) for name in pick)
            raise UnreadableError(
                f"the directory holds {len(pick)} checkpoints: {listed}",
                hint="name one",
            )
        if pick:
            (first,) = pick
            unread = tuple(name for name in every if name != first)
            # Further models of accelerate are read with the first one.
            further = [
                name
                for name in names
                if re.fullmatch(_NUMBERED, name)
                and _stem_and_ending(name) == _stem_and_ending(first)
            ]
            if not further:
                return Chosen(((first, ""),), unread)
            keyed = [(name, name.rpartition(".")[0]) for name in further]
            # `model_2` before `model_10`.
            keyed.sort(key=lambda row: (len(row[1]), row[1]))
            return Chosen(((first, first.rpartition(".")[0]), *keyed), unread)
    # The whole state dict under FSDP comes last.
    if not full:
        return None
    keys = [
        "model" + re.sub(_FULL, r"\1", name) if len(full) > 1 else "" for name in full
    ]
    return Chosen(tuple(zip(full, keys, strict=True)), ())


def _stem_and_ending(name: str) -> tuple[str, str]:
    """`model_1.safetensors` and `model.safetensors` -> the same two texts."""
    stem, _, ending = name.rpartition(".")
    return re.sub(r"_\d+$", "", stem), ending
