"""Pretrained weights into a live model: the plan of `ckpt warmstart`, copied into its tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from ckpt import formats
from ckpt.elements.blocks import elements
from ckpt.errors import LossError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.jobs.rewrite.rename import substitution
from ckpt.jobs.rewrite.report import Coverage, Pairing
from ckpt.jobs.rewrite.warmstart import Options, coverage_of
from ckpt.limits import Limits
from ckpt.live import memory, require_torch
from ckpt.live.state import state_checkpoint, state_of
from ckpt.tensors import TensorRef
from ckpt.text import show

_NAME = "the model"


def warmstart(
    model: Any,
    pretrained: str | os.PathLike[str],
    *,
    section: str | None = None,
    sub: Sequence[str] = (),
    align: bool = True,
    on_mismatch: Literal["keep", "slice", "error"] = "keep",
    by_shape: bool = False,
    fuse: bool = False,
    split: bool = False,
    count_sliced: bool = False,
    ignore_layout: bool = False,
    min_coverage: float | None = None,
    limits: Limits | None = None,
) -> Coverage:
    """Load pretrained weights into a live torch.nn.Module as far as they fit. Return the plan that was carried out.

    The keywords are the options of `ckpt warmstart`. Nothing that the file names is run. All tensors are read before the first
    one is copied, so an error leaves the model as it was. Raises LossError where the command would write nothing (the message
    says why, the hint which keyword helps), and CkptError for a file that cannot be read.
    """
    torch = require_torch()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{type(model).__name__} is no torch.nn.Module", path=_NAME)
    if on_mismatch not in ("keep", "slice", "error"):
        raise UsageError(f"on_mismatch={on_mismatch!r}: not one of keep slice error")
    rules = [substitution(text).apply for text in ([sub] if isinstance(sub, str) else sub)]
    options = Options(
        on_mismatch,
        rules,
        section,
        align=align,
        by_shape=by_shape,
        fuse=fuse,
        split=split,
        count_sliced=count_sliced,
        ignore_layout=ignore_layout,
        min_coverage=min_coverage,
    )
    own = state_of(model).values
    meta = next((name for name, value in own.items() if getattr(value, "is_meta", False)), None)
    if meta is not None:
        raise UsageError(
            f"{show(meta, 80)} is on meta, without memory", path=_NAME, hint="model.to_empty(device=…)"
        )
    with formats.open(os.fsdecode(pretrained), limits or Limits()) as given:
        coverage = coverage_of(
            Survey(given), Survey(state_checkpoint(model, _NAME)), limits or Limits(), options
        )
        if coverage.refusal:
            raise LossError(coverage.refusal, path=given.path, hint=_keyword(coverage.way))
        with about(given.path):
            rows = [(row, _value(row)) for row in coverage.of("loaded", "cast", "sliced")]
        given.check_unchanged()
    with torch.no_grad():
        for row, value in rows:
            assert row.target is not None
            _copy(row, own[row.target.name], value)
    return coverage


def _value(row: Pairing) -> Any:
    """The elements of the pretrained tensor, as a tensor on the CPU."""
    assert row.source is not None and isinstance(row.source.tensor, TensorRef)
    return memory.tensor(row.source.tensor, b"".join(elements(row.source.tensor)))


def _copy(row: Pairing, mine: Any, value: Any) -> None:
    """Copy a value into a tensor of the model, or into the rows or the block that are meant."""
    if row.rows is not None and row.rows[0] == "target":
        mine = mine[row.rows[1] : row.rows[2]]
    if row.status == "sliced":
        block = tuple(slice(0, min(pair)) for pair in zip(mine.shape, value.shape, strict=True))
        mine, value = mine[block], value[block]
    mine.copy_(value)


def _keyword(way: Sequence[str] | None) -> str | None:
    """The keyword of an option: `by_shape=True` for `--by-shape`."""
    if not way:
        return None if way is None else "align=True"
    name = way[0].removeprefix("--").replace("-", "_")
    return f"{name}={list(way[1::2])!r}" if name == "sub" else f"{name}={way[1] if len(way) > 1 else True}"
