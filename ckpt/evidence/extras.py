"""Tensors of a state dict that carry no weights: the counters of profilers, and what
newer versions compute and do not save.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor
from ckpt.model.text import counted_noun, show, show_names

ExtraKind = Literal["thop", "torchstat", "computed", "counter"]
"""`thop` and `torchstat`: counters that these profilers register in every module.
`computed`: made when the model is built. `counter`: the one of a batch normalization
whose statistics are there.
"""

_THOP = frozenset(("total_ops", "total_params"))
_TORCHSTAT = frozenset(
    (
        "input_shape",
        "output_shape",
        "parameter_quantity",
        "inference_memory",
        "MAdd",
        "duration",
        "Flops",
        "Memory",
    )
)
_LEAST = 4
"""Counters of torchstat that stand together before one of them is believed."""
_COMPUTED = frozenset(
    ("position_ids", "inv_freq", "masked_bias", "relative_position_index")
)
_WORDS = (*sorted(_THOP), *sorted(_TORCHSTAT), *sorted(_COMPUTED), ".bias")

COUNTER = "num_batches_tracked"
"""The counter of batch normalization, which files before torch 0.4.1 lack; nothing but
`momentum=None` reads it.
"""


def extra_kind(leaf: str, tensor: Tensor, beside: Set[str]) -> ExtraKind | None:
    """The kind of a tensor that carries no weights, by its last name, its shape and the
    names beside it, or None.
    """
    if leaf in _THOP:
        # thop registers both, of one number each: one alone may be a model's own.
        return "thop" if beside >= _THOP and tensor.numel == 1 else None
    if leaf in _TORCHSTAT:
        has_others = len(_TORCHSTAT & beside) >= _LEAST
        # The longest of them are shapes without the batch, of three or four numbers.
        return "torchstat" if has_others and tensor.numel <= 4 else None
    return "computed" if _is_computed(leaf, tensor, beside) else None


def _is_computed(leaf: str, tensor: Tensor, beside: Set[str]) -> bool:
    """Tell whether a tensor is one that a model computes when it is made: numbers of
    positions, frequencies, masks.
    """
    kind = tensor.dtype.kind
    axes = len(tensor.shape)
    if leaf in ("position_ids", "relative_position_index"):
        # transformers saved position_ids of [1, 512]; the index of Swin is a matrix.
        return kind == "int" and axes in (1, 2) and tensor.numel > 1
    if leaf == "inv_freq":
        return kind == "float" and axes == 1
    if leaf == "masked_bias":
        # GPT-2 of transformers keeps -1e4 in it, beside the causal mask `bias`.
        return tensor.numel == 1 and "bias" in beside
    return leaf == "bias" and is_mask(tensor.shape)


def is_mask(shape: tuple[int, ...]) -> bool:
    """Tell whether GPT-2's causal mask has such a shape: `[1, 1, 1024, 1024]`. A square
    matrix is a parameter.
    """
    if len(shape) != 4 or shape[:2] != (1, 1):
        return False
    rows, columns = shape[2:]
    return rows == columns > 1


def find_extras(
    names: Sequence[str], tensors: Sequence[Tensor]
) -> dict[ExtraKind, list[str]]:
    """The tensors of a model that carry no weights, by their kind."""
    text = "\n".join(names)
    # One search through all names is cheaper than looking at the end of each.
    if not any(word in text for word in _WORDS):
        return {}
    leaves: dict[str, set[str]] = {}
    for name in names:
        parent, _, leaf = name.rpartition(".")
        leaves.setdefault(parent, set()).add(leaf)
    found: dict[ExtraKind, list[str]] = {}
    for name, tensor in zip(names, tensors, strict=True):
        parent, _, leaf = name.rpartition(".")
        kind = extra_kind(leaf, tensor, leaves[parent])
        if kind is not None:
            found.setdefault(kind, []).append(name)
    return found


def lone_counters(names: Sequence[str], others: Set[str]) -> list[str]:
    """The counters of batch normalization among some names whose statistics are among
    `others`: both sides have these.
    """
    return [
        name
        for name in names
        if name.rpartition(".")[2] == COUNTER
        and f"{name.removesuffix(COUNTER)}running_mean" in others
    ]


class _Said(NamedTuple):
    """The words for a kind: the nature of its tensors, and the consequence."""

    what: str
    follows: str


_SAID: Mapping[ExtraKind, _Said] = {
    "thop": _Said(
        "counters of thop.profile, no weights",
        "A model that was not profiled has no place for them.",
    ),
    "torchstat": _Said(
        "counters of torchstat, no weights",
        "A model that was not profiled has no place for them.",
    ),
    "computed": _Said(
        "computed when the model is built",
        "Newer versions of some packages do not save them and have no place for them.",
    ),
    "counter": _Said(
        "counters of batch normalization, which old files lack",
        "Nothing but momentum=None reads them.",
    ),
}


def what_they_are(kind: ExtraKind) -> str:
    return _SAID[kind].what


def extras_sentence(kind: ExtraKind, names: Sequence[str]) -> str:
    """`4 tensors total_ops and total_params are counters of thop.profile, no
    weights.`
    """
    if len(names) == 1:
        return f"{show(names[0], 80)} is {_SAID[kind].what}."
    return (
        f"{counted_noun(len(names), 'tensor')} {last_names(names)} are "
        f"{_SAID[kind].what}."
    )


def last_names(names: Sequence[str]) -> str:
    """The last parts of some names, each once."""
    return show_names(list(dict.fromkeys(name.rpartition(".")[2] for name in names)))


def extras_consequence(kind: ExtraKind) -> str:
    return _SAID[kind].follows


def exclude_patterns(chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    """Globs for `--exclude` that match exactly the chosen ones of some names; empty
    where these would be too many.
    """
    ends = dict.fromkeys(name.rpartition(".")[2] for name in chosen)
    wanted = set(chosen)
    whole_parts: list[str] = []
    for end in ends:
        # A star does not stand for nothing: `*.alpha` leaves `alpha` out.
        if end in wanted:
            whole_parts.append(end)
        whole_parts.append(f"*.{end}")
    # The shortest first.
    for texts in ([f"*{end}" for end in ends], whole_parts, _by_templates(chosen)):
        if len(texts) > 2 * _LEAST:
            continue
        globs = Globs((), texts)
        # A glob that also matches a tensor of another kind would leave out weights.
        if all((name in wanted) != globs.match(name) for name in names):
            return texts
    return []


def _by_templates(chosen: Sequence[str]) -> list[str]:
    """The names with a star for each number."""
    return list(dict.fromkeys(re.sub("[0-9]+", "*", name) for name in chosen))
