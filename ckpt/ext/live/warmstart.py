"""Pretrained weights into a live model: the plan of `ckpt warmstart`, copied into its
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ckpt.commands.rename.rename import substitution
from ckpt.commands.rewriting.report import Coverage, Pairing
from ckpt.elements.blocks import elements
from ckpt.evidence.survey import Survey
from ckpt.ext.live import memory, require_torch
from ckpt.ext.live.model import NAME, refuse_other
from ckpt.ext.live.state import state_checkpoint, state_of
from ckpt.ext.warmstart.warmstart import Options, coverage_of
from ckpt.model.errors import LossError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, counted_noun, show

Mismatch = Literal["keep", "slice", "error"]

_ASSIGN = "model.load_state_dict(checkpoint.state_dict(), assign=True)"
"""The way to load into a model without memory."""
_SPREAD = (
    "set_model_state_dict(model, checkpoint.state_dict(), "
    "options=StateDictOptions(full_state_dict=True)) of "
    "torch.distributed.checkpoint.state_dict"
)
"""The way to load into a model whose parameters lie on several ranks."""


def load(
    survey: Survey,
    model: Any,
    *,
    strict: bool = False,
    section: str | None = None,
    sub: Sequence[str] = (),
    align: bool = True,
    on_mismatch: Mismatch = "keep",
    by_shape: bool = False,
    fuse: bool = False,
    split: bool = False,
    count_sliced: bool = False,
    ignore_layout: bool = False,
    min_coverage: float | None = None,
    limits: Limits | None = None,
) -> Coverage:
    """Load the weights of an open checkpoint into a model, as `warmstart` does.

    With `strict` every tensor of the model is loaded, and no tensor of the checkpoint
    is left; else it raises LossError.
    """
    torch = require_torch()
    refuse_other(model)
    if on_mismatch not in ("keep", "slice", "error"):
        raise UsageError(f"on_mismatch={on_mismatch!r}: not one of keep slice error")
    texts = [sub] if isinstance(sub, str) else sub
    rules = [substitution(text).apply for text in texts]
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
    # Both would fail in the middle of the copying: they are refused before.
    on_meta = (name for name, value in own.items() if getattr(value, "is_meta", False))
    meta = next(on_meta, None)
    if meta is not None:
        raise UsageError(
            f"{show(meta, 80)} is on meta, without memory",
            path=NAME,
            hint=_memory_hint(survey, own, section),
        )
    in_parts = (name for name, value in own.items() if hasattr(value, "to_local"))
    spread = next(in_parts, None)
    if spread is not None:
        raise UsageError(
            f"{show(spread, 80)} is a DTensor, of which each rank holds a part",
            path=NAME,
            hint=_SPREAD,
        )
    given = survey.checkpoint
    limits = limits or Limits()
    target = Survey(state_checkpoint(model, NAME))
    coverage = coverage_of(survey, target, limits, options)
    if coverage.refusal:
        if coverage.way == ("--recipe", "transformers"):
            hint = (
                "ckpt convert GGUF --recipe transformers --dtype DTYPE -o OUT, and "
                "load that"
            )
            raise LossError(coverage.refusal, path=given.path, hint=hint)
        problem = coverage.refusal
        rest = [row.name for row in coverage.of("missing", "kept")]
        # The command prints which are loaded, and here nothing else says it.
        if rest and coverage.of("loaded", "cast", "sliced"):
            problem += f"; not loaded: {_names_text(rest)}"
        raise LossError(problem, path=given.path, hint=_keyword_text(coverage.way))
    if strict:
        _refuse_rest(coverage, given.path)
    rows = coverage.of("loaded", "cast", "sliced")
    with about(given.path):
        # All bytes are read before the first is written: a damaged file leaves the
        # model as it was. Reading twice holds one tensor at a time beside the model. A
        # request that fails the second time is another matter.
        is_far = any(source.far is not None for source in given.all_sources())
        held = [_read_value(row) for row in rows] if is_far else []
        for row in [] if is_far else rows:
            memory.dtype_of(_source_ref(row))
            for _ in elements(_source_ref(row)):
                pass
        given.check_unchanged()
        with torch.no_grad():
            for number, row in enumerate(rows):
                assert row.target is not None
                mine = own[row.target.name]
                if not is_far and _is_whole(row, mine):
                    memory.pour_elements(_source_ref(row), mine)
                else:
                    value = held[number] if is_far else _read_value(row)
                    _copy_value(row, mine, value)
        given.check_unchanged()
    return coverage


def _refuse_rest(coverage: Coverage, path: str) -> None:
    """Raise LossError unless all of the model is loaded with all of the pretrained
    tensors.
    """
    rest = [row.name for row in coverage.of("missing", "kept", "sliced")]
    more = [row.name for row in coverage.of("unexpected")]
    parts = []
    if rest:
        parts.append(
            f"{counted_noun(len(rest), 'tensor')} of the model not loaded: "
            f"{_names_text(rest)}"
        )
    if more:
        parts.append(
            f"{counted_noun(len(more), 'tensor')} of the file not in the model: "
            f"{_names_text(more)}"
        )
    if parts:
        raise LossError(
            "; ".join(parts), path=path, hint="strict=False loads what fits"
        )


def _memory_hint(survey: Survey, own: Mapping[str, Any], section: str | None) -> str:
    """The ways to fill a model on meta: load_state_dict takes the names of the file as
    they are, so it helps only where they are the model's.
    """
    model = survey.only_model(section)
    fits = set(own) <= set(model.names())
    return f"model.to_empty(device=…){f', or {_ASSIGN}' if fits else ''}"


def _names_text(names: Sequence[str]) -> str:
    return and_more([show(name, 60) for name in names], 4)


def _source_ref(row: Pairing) -> TensorRef:
    assert row.source is not None and isinstance(row.source.tensor, TensorRef)
    return row.source.tensor


def _read_value(row: Pairing) -> Any:
    """The elements of the pretrained tensor, as a tensor on the CPU."""
    return memory.tensor(_source_ref(row))


def _is_whole(row: Pairing, mine: Any) -> bool:
    """Tell whether a tensor of the model takes the bytes of the file as they are, right
    into its memory.
    """
    torch = require_torch()
    ref = _source_ref(row)
    # A subclass may do anything when it is written to.
    if type(mine) not in (torch.Tensor, torch.nn.Parameter):
        return False
    is_same = mine.dtype == memory.dtype_of(ref) and tuple(mine.shape) == ref.shape
    # The memory of such a view holds other values than it shows.
    is_view = mine.is_conj() or mine.is_neg() or ref.conj or ref.neg
    return (
        row.status == "loaded"
        and row.rows is None
        and mine.device.type == "cpu"
        and is_same
        and mine.is_contiguous()
        and not is_view
        and mine.numel() > 0
    )


def _copy_value(row: Pairing, mine: Any, value: Any) -> None:
    """Copy a value into a tensor of the model, or into the rows or the block that are
    meant.
    """
    if row.rows is not None and row.rows[0] == "target":
        mine = mine[row.rows[1] : row.rows[2]]
    if row.status == "sliced":
        block = tuple(
            slice(0, min(pair)) for pair in zip(mine.shape, value.shape, strict=True)
        )
        mine, value = mine[block], value[block]
    mine.copy_(value)


def _keyword_text(way: Sequence[str] | None) -> str | None:
    """The keyword of an option: `by_shape=True` for `--by-shape`."""
    if not way:
        return None if way is None else "align=True"
    name = way[0].removeprefix("--").replace("-", "_")
    if name == "sub":
        # `--sub A --sub B`: each second word is a text.
        return f"{name}={list(way[1::2])!r}"
    return f"{name}={way[1] if len(way) > 1 else True}"
