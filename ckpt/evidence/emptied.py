"""Models that hold no weights: parameters without elements, with one element, or
flattened into one.

One tensor without elements may be right: a tensor product of e3nn has no weights of its
own, and a linear layer no bias. So the names decide together: a matrix that is empty in
one layer is empty in all of them, where a partitioned model was saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from ckpt.evidence.sections import Section
from ckpt.model.checkpoint import looks_of
from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor

Kind = Literal["empty", "single", "flat", "pieces", "nothing"]
"""No elements; one element each; all parameters of a module in one tensor; parts of
such a tensor; no tensor at all.
"""

_MATRICES = LazyPattern(
    r"(?:(?:[qkvoc]|qkv|gate|up|down|in|out|query|key|value|gate_up|kv_[ab]"
    r"|q_[ab])_proj|proj|query|key|value|dense\w*"
    r"|fc_?\d*|linear\d*|lin\d+|lm_head|embed_(?:tokens|in|out)|word_embeddings"
    r"|position_embeddings|token_type_embeddings"
    r"|embeddings|embedding|shared|wte|wpe|w[qkvo123]|c_(?:attn|fc)|query_key_value"
    r"|classifier|score|lora_[AB])"
)
"""Names of modules whose weight has two dimensions, in transformers and elsewhere."""
_LARGE = LazyPattern(
    r"(?:q|k|v|o|qkv|gate|up|down|gate_up)_proj|lm_head|embed_tokens|word_embeddings"
    r"|wte|c_attn|query_key_value|lora_[AB]"
)
"""Those of `_MATRICES` that no library but one of transformers has: others keep
matrices in one dimension (e3nn).
"""
_ADAPTED = LazyPattern(
    r"(?:^|\.)(?:lora_(?:A|B|embedding_[AB])|modules_to_save)(?:\.|$)"
)
"""Names of PEFT for what was trained. An adapter of rank 0 does not exist."""
_FLAT = LazyPattern(r"(?:^|\.)_?flat_param(?:_\d+)?$")
"""The names of FSDP 1 of torch and of FairScale."""
_LEAST = 4
"""The fewest matrices of one element that say anything: a small model may have some."""


class Emptied(NamedTuple):
    """The parameters of a section that hold no weights, of `total` parameters in it."""

    kind: Kind
    section: str
    names: tuple[str, ...]
    total: int
    is_adapter: bool = False


def emptied_of(section: Section) -> Emptied | None:
    """The parameters of a section that hold no weights, where their names say that it
    is no accident.
    """
    # Most tensors of a model share a look, so the shapes are compared once for each.
    looks = looks_of(section.entries)
    distinct = {id(look): look for look in looks}
    lists = {key for key, look in distinct.items() if len(look.shape) == 1}
    if not lists:
        return None
    names = section.names()
    flat, listed = _flat_and_listed(names, looks, lists)
    if flat:
        return _make_emptied("flat", section, flat, len(names))
    # A partition leaves lists of no element or of one in the place of parameters.
    shapes = {distinct[key].shape for key in lists}
    is_usual = shapes.isdisjoint(((0,), (1,)))
    if is_usual and sum(_is_of(_LARGE, name) for name in listed) < _LEAST:
        return None  # what is a list is a bias or a norm
    rows = [
        (name, look)
        for name, look in zip(names, looks, strict=True)
        # e3nn registers output_mask, which is empty in sound models too.
        if look.dtype.kind == "float" and not name.endswith("output_mask")
    ]
    matrices = [(name, look) for name, look in rows if _is_of(_MATRICES, name)]
    pieces = _names_of_pieces(matrices)
    if pieces:
        return _make_emptied("pieces", section, pieces, len(rows))
    if (0,) in shapes:
        empty = [name for name, look in rows if look.shape == (0,)]
        if _is_emptied(empty, rows):
            return _make_emptied("empty", section, empty, len(rows))
    if (1,) in shapes:
        single = [name for name, look in rows if look.shape == (1,)]
        are_single = all(look.shape == (1,) for _, look in matrices)
        if len(matrices) >= _LEAST and are_single and 2 * len(single) > len(rows):
            return _make_emptied("single", section, single, len(rows))
    return None


def _flat_and_listed(
    names: Sequence[str], looks: Sequence[Tensor], lists: set[int]
) -> tuple[list[str], list[str]]:
    """The names of flattened parameters, and of all tensors of one dimension that are
    called like a weight. `lists` has the ids of the looks of one dimension.
    """
    rows = [name for name, look in zip(names, looks, strict=True) if id(look) in lists]
    listed = [name for name in rows if name.endswith((".weight", "flat_param"))]
    # One search through all names is cheaper than the pattern for each of them.
    if "flat_param" not in "\n".join(names):
        return [], listed
    flat = [name for name in listed if _FLAT.search(name)]
    if not flat:
        # FairScale numbers them, so `flat_param_0` does not end with the word.
        flat = [name for name in rows if _FLAT.search(name)]
    return flat, listed


def _names_of_pieces(matrices: Sequence[tuple[str, Tensor]]) -> list[str]:
    """The names of the large matrices where all of them are lists, and not empty ones;
    else none.
    """
    large = [(name, look) for name, look in matrices if _is_of(_LARGE, name)]
    are_lists = all(len(look.shape) == 1 for _, look in large)
    if len(large) < _LEAST or not are_lists:
        return []
    # Lists of no element or of one are the kinds `empty` and `single`.
    if all(look.numel <= 1 for _, look in large):
        return []
    return [name for name, _ in large]


def _make_emptied(
    kind: Kind, section: Section, names: Sequence[str], total: int
) -> Emptied:
    start = f"{section.name}." if section.path else ""
    is_adapter = any(_ADAPTED.search(name) for name in names)
    return Emptied(
        kind, section.name, tuple(f"{start}{name}" for name in names), total, is_adapter
    )


def _is_of(modules: LazyPattern, name: str) -> bool:
    """Tell whether a name is the weight of one of some modules. PEFT puts the name of
    its adapter behind the module.
    """
    if not name.endswith(".weight"):
        return False
    above, _, word = name.removesuffix(".weight").rpartition(".")
    # The number of a layer is no module of these, and each number is another word.
    if not word.isdigit() and _is_module_of(modules, word):
        return True
    if "lora_" not in above:
        return False
    outer = above.rpartition(".")[2]
    return outer.startswith("lora_") and _is_module_of(modules, outer)


@lru_cache(maxsize=1024)
def _is_module_of(modules: LazyPattern, word: str) -> bool:
    """Tell whether a module has one of some names. A large model asks for the same few
    words a million times.
    """
    return modules.fullmatch(word) is not None


def _is_emptied(empty: Sequence[str], rows: Sequence[tuple[str, Tensor]]) -> bool:
    """Tell whether tensors without elements belong to a model that was saved in
    parts.
    """
    if any(_ADAPTED.search(name) for name in empty):
        return True
    if len(empty) < 2:
        return False
    if len(empty) == len(rows):
        return True
    missing = set(empty)
    # ZeRO-3 keeps small tensors whole (param_persistence_threshold): biases, norms.
    weights = [name for name, _ in rows if not name.endswith("bias")]
    matrices = [name for name in weights if _is_of(_MATRICES, name)]
    return _is_most(missing, weights) or _is_most(missing, matrices)


def _is_most(missing: set[str], names: Sequence[str]) -> bool:
    """Tell whether most of some tensors, and at least two, are among the missing."""
    count = sum(name in missing for name in names)
    return count > 1 and 2 * count > len(names)


def emptied_parts(sections: Sequence[Section]) -> Iterator[Emptied]:
    """Yield the sections without weights."""
    for section in sections:
        row = emptied_of(section)
        if row is not None:
            yield row
