"""Models whose parameters have not the shapes of their layers while a file is loaded:
packed in four bits, or spread over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.message import Mismatch
from ckpt.model.text import counted_noun, show

_EMPTY = (0,)
_A_BYTE = 2
"""Values of four bits in a byte."""


def taken_apart(rows: Sequence[Mismatch]) -> Iterator[Statement]:
    """Say that a model has no parameters in the shapes of its layers, where that is the
    reason for all differences.
    """
    if not rows:
        return
    if all(row.model == _EMPTY and row.checkpoint != _EMPTY for row in rows):
        yield _spread(rows)
    elif all(_is_packed(row) for row in rows):
        yield _packed(rows)


def _spread(rows: Sequence[Mismatch]) -> Statement:
    return Statement(
        f"The file has its values, and {counted_noun(len(rows), 'parameter')} of the "
        "model have none: [0] is what DeepSpeed ZeRO-3 leaves of a parameter whose "
        "values it has spread over the ranks. load_state_dict does not gather them: "
        "load the file before DeepSpeed takes the model (without zero.Init), or with "
        "ZeRO-2, or gather them for the load:",
        (),
        "with deepspeed.zero.GatheredParameters(list(module.parameters()), "
        "modifier_rank=0): module.load_state_dict(state)",
    )


def _packed(rows: Sequence[Mismatch]) -> Statement:
    row = rows[0]
    height, width = row.checkpoint
    return Statement(
        f"The model has {show(row.name, 100)} in four bits: {row.model[0]:,} bytes "
        f"with two values each, as bitsandbytes packs a matrix of {height:,} × "
        f"{width:,}. The file has the plain matrix, which a packed layer "
        "does not take by load_state_dict. Build the model without load_in_4bit "
        "(--load-4bit), load, and quantize then; or leave this layer as it is while "
        "the others are packed (llm_int8_skip_modules)."
    )


def _is_packed(row: Mismatch) -> bool:
    """Tell whether a model has a matrix of the file as bytes in one column."""
    if len(row.checkpoint) != 2 or len(row.model) != 2 or row.model[1] != 1:
        return False
    # A column of another matrix would have as many rows by chance alone.
    return row.model[0] * _A_BYTE == row.checkpoint[0] * row.checkpoint[1]
