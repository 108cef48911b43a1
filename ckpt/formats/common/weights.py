"""Which files of a folder are its weights, by their names, and which folders DeepSpeed makes in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.errors import UnreadableError
from ckpt.formats.endings import INDEXES
from ckpt.rows import NamedTuple
from ckpt.text import show

DEEPSPEED_TAG = re.compile(r"global_step\d+(?:_universal)?/")
"""A folder of DeepSpeed, as the Trainer has it beside its own files: a checkpoint of its own."""

_STEMS = ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model")
_VARIANT = re.compile(r"(" + "|".join(_STEMS) + r")\.(\w{1,20})\.(safetensors|bin)")
_NUMBERED = re.compile(r"(?:pytorch_)?model_(\d+)\.(?:safetensors|bin)")


class Chosen(NamedTuple):
    """The files of weights that are read, each with its key (`model_1`; empty for the only one), and the others."""

    files: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]


def weights_in(names: Sequence[str]) -> Chosen | None:
    """The files of weights among the names of a folder; None without any.

    transformers and diffusers choose in this order: safetensors before pickles, one file before shards, the plain name
    before a variant (`model.fp16.safetensors`). accelerate numbers further models: `model_1.safetensors`. Raises
    UnreadableError where two files are as good.
    """
    indexes = [name for name in names if name.endswith(INDEXES)]
    singles = [
        f"{stem}.{ending}"
        for ending in ("safetensors", "bin")
        for stem in _STEMS
        if f"{stem}.{ending}" in names and (stem, ending) != ("model", "bin")
    ]
    variants = [name for name in names if _VARIANT.fullmatch(name)]
    every = [*indexes, *singles, *variants]
    for pick in (
        [name for name in singles if name.endswith(".safetensors")],
        [name for name in indexes if "safetensors" in name],
        singles,
        indexes,
        [name for name in variants if name.endswith(".safetensors")],
        variants,
    ):
        if len(pick) > 1:
            listed = ", ".join(show(name, 80) for name in pick)
            raise UnreadableError(f"the directory holds {len(pick)} checkpoints: {listed}", hint="name one")
        if pick:
            (first,) = pick
            unread = tuple(name for name in every if name != first)
            further = [name for name in names if _NUMBERED.fullmatch(name) and _stem(name) == _stem(first)]
            if not further:
                return Chosen(((first, ""),), unread)
            keyed = [(name, name.rpartition(".")[0]) for name in further]
            keyed.sort(key=lambda row: (len(row[1]), row[1]))
            return Chosen(((first, first.rpartition(".")[0]), *keyed), unread)
    return None


def _stem(name: str) -> tuple[str, str]:
    """`model_1.safetensors` and `model.safetensors` -> the same two texts."""
    stem, _, ending = name.rpartition(".")
    return re.sub(r"_\d+$", "", stem), ending
