"""Questions for the ranks that wrote a checkpoint, and for those that may read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
)
from ckpt.model.text import and_more, counted_noun, show

ASKS_OF_RANKS = (
    r"\b(?:how many|which|what) ranks\b|\b(?:a|any|which) rank (?:is |was )?(?:missing"
    r"|lost|absent|wrote)\b|\bworld[ _-]?size\b|\bre-?shard\w{0,3}\b"
    r"|\bzero (?:stage|pp)\b|\bzero_pp_rank|\bwhich stage\b"
    r"|\b(?:saved|written|made|trained) (?:with|by|under|using) "
    r"(?:fsdp|deepspeed|ddp)\b"
    r"|\b(?:single|one|1|two|2|4|8|fewer|more|different|other|another|many) "
    r"(?:number of )?(?:gpus?|nodes?|processes)\b"
)
"""Words of a question for the ranks of a run."""
ASKS_FOR_ONE_FILE = (
    r"\b(?:one|single|whole|full|consolidat\w{1,3}|merg\w{1,3}|combin\w{1,3}|gather)\b"
    r"[^\n]{0,40}(?:\b(?:files?|checkpoint|state[ _]?dict|weights|shards?|ranks?)\b"
    r"|\.(?:pth?|bin|ckpt|safetensors)\b)|\bback to (?:py)?torch\b"
    r"|\bto (?:normal |plain |regular )?(?:py)?torch (?:format|weights|checkpoint)\b"
)
"""Words of a question for one file of a checkpoint in parts, or in another format."""
_RANK = re.compile(
    r"^__(\d{1,6})_\d{1,6}\.distcp$|zero_pp_rank_(\d{1,6})_|mp_rank_(\d{1,6})"
    r"|_rank_(\d{1,6})\.pt$|^rng_state_(\d{1,6})\.pth$|^consolidated\.(\d{1,3})\.pth$"
)
"""The number of a rank in the name of a file."""
_OF_A_PART = re.compile(r"(?i)rank|shard|\d-of-\d|^consolidated\.\d|\.distcp$")
"""Words in the name of a file that is a part of a checkpoint."""
_SIZES = (
    "dp_world_size",
    "mp_world_size",
    "world_size",
    "ranks",
    "stage",
    "partition_count",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
)


def _ranks_of_folder(path: str) -> list[int]:
    """The numbers of the ranks in the names of the files of a folder."""
    found: set[int] = set()
    for _, _, files in os.walk(path):
        for name in files:
            match = _RANK.search(name)
            if match is not None:
                found.add(int(next(row for row in match.groups() if row is not None)))
    return sorted(found)


def of_ranks(text: str, case: Case) -> Iterator[Statement]:
    """Say which ranks wrote a checkpoint, and whether others may read it."""
    del text
    checkpoint = case.survey.checkpoint
    path = case.survey.path
    told = [
        f"{show(name, 60)} is {node}"
        for name, node in case.finds_value(_SIZES)
        if type(node) is int
    ]
    if told:
        yield Statement(f"This file records: {and_more(told, 6)}.")
    is_folder = not is_url(path) and os.path.isdir(path)
    ranks = _ranks_of_folder(path) if is_folder else []
    if ranks:
        yield Statement(_ranks_text(ranks))
    label = checkpoint.layout or checkpoint.traits.label
    if "DCP" in label:
        yield Statement(
            "torch.distributed.checkpoint.load gives each rank its part of it, with "
            "any number of ranks, one included. Nothing in it says which wrapper the "
            "model had (FSDP, DDP, none)."
        )
    elif "DeepSpeed" in label or "ZeRO" in label:
        yield Statement(
            "Its optimizer is cut for the ranks that wrote it. DeepSpeed goes on with "
            "as many; with others it takes the weights alone "
            "(load_optimizer_states=False), or a universal checkpoint, which "
            "ds_to_universal.py of DeepSpeed makes. No file of a rank can be left out."
        )
    elif _OF_A_PART.search(os.path.basename(path.rstrip("/"))):
        yield Statement(
            "By its name it is one part of several, as one rank or one shard writes "
            "it: what the others hold is not in it. Give the folder that has them all."
        )
    elif not ranks:
        # A prefix or a device stops such a load more often than the ranks do.
        yield from finding_statements(case.found("prefix", "cuda"))
        yield Statement(
            "It is whole: no rank has a part of it alone. So it loads on one GPU, on "
            "many, or on none. With another number of ranks, the samples of a step "
            "(batch of a rank times ranks) and the steps of an epoch are others."
        )
    yield from _one_file(case)


def _ranks_text(ranks: list[int]) -> str:
    """The sentence on the ranks whose files are in a folder."""
    lacking = sorted(set(range(ranks[-1] + 1)) - set(ranks))
    begin = (
        f"The names of its files have {counted_noun(len(ranks), 'rank')}: {ranks[0]}"
        f"{f' to {ranks[-1]}' if len(ranks) > 1 else ''}."
    )
    if lacking:
        shown = and_more([str(rank) for rank in lacking], 6)
        return f"{begin} No file is of rank {shown}, which others have a number above."
    return begin


def of_one_file(text: str, case: Case) -> Iterator[Statement]:
    """Print the commands that write a checkpoint as one file of PyTorch."""
    del text
    yield from _one_file(case)


def _one_file(case: Case) -> Iterator[Statement]:
    """Print the commands that write one file, where the checkpoint is none of
    PyTorch.
    """
    traits = case.survey.checkpoint.traits
    if not (traits.is_folder or case.survey.checkpoint.parts or not traits.is_pickle):
        return
    for ending in (".pth", ".safetensors"):
        if case.survey.path.endswith(ending):
            continue
        has_more = any(section.kind != "model" for section in case.survey.sections)
        verb = "slim" if has_more and ending == ".safetensors" else "convert"
        way = case.written((verb,), "", ending)
        # Blocks of GGUF need the type that they become.
        if way.command is None:
            way = case.written(("convert", "--dtype", "bfloat16"), "", ending)
        yield from command_statements(f"As one file, {ending}:", way)
