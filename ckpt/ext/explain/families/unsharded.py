"""The file of a distributed checkpoint that the ranks do not divide, where a program
takes it for the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.asked_names import MODEL_KEYS
from ckpt.model.text import and_more, counted_noun, pasted_path, show

_SHARDED = (".distcp", ".zarr")
_OF_MEGATRON = "metadata.json"
"""The file of Megatron that names the way in which the tensors of a folder lie."""


def of_unsharded_part(name: str, case: Case) -> Iterator[Statement]:
    """Say that a file has what a distributed save does not divide, and that the weights
    are in the files beside it.
    """
    if case.is_folder or case.survey.tensors or name not in MODEL_KEYS:
        return
    folder = os.path.dirname(case.survey.path) or "."
    try:
        beside = sorted(os.listdir(folder))
    except OSError:
        return
    shards = [row for row in beside if row.endswith(_SHARDED)]
    path = pasted_path(folder)
    if not shards:
        return
    of_megatron = (
        " Megatron and NeMo load such a folder by dist_checkpointing, and a converter "
        "that reads one file of torch.save is made for their older checkpoints."
        if _OF_MEGATRON in beside
        else ""
    )
    yield Statement(
        f"This file has no tensor: it is the part of a distributed checkpoint that the "
        f"ranks do not divide. The weights are in {counted_noun(len(shards), 'file')} "
        f"beside it ({and_more([show(row, 60) for row in shards], 3)}), and the folder "
        f"is the checkpoint.{of_megatron}"
        + ("" if path is None else " What is in it:"),
        (),
        None if path is None else f"ckpt inspect {path}",
    )
