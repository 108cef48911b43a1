"""Changes of a model that its names show: pruned, observed, quantized."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ckpt.ext.explain.case import Case
from ckpt.ext.explain.families.quantized import packed_and_plain
from ckpt.ext.explain.message import Message
from ckpt.model.rows import NamedTuple
from ckpt.model.text import be_verb, counted_noun


class Changed(NamedTuple):
    """The names that a change of the model explains: pruning, quantization, a norm.
    `code` loads them, where it can.
    """

    names: frozenset[str]
    text: str = ""
    code: str | None = None

    def loading_line(self, case: Case) -> str | None:
        """The line of Python that loads the file into the model, where one does."""
        load = case.survey.load.expression
        if self.code is None or load is None or len(case.survey.candidates) > 1:
            return None
        return f"state = {load}; {self.code}"


# Multiply weight_orig with weight_mask, as prune does before each forward. `[:-5]` cuts
# off `_orig`.
_MASKED = (
    'state.update((name[:-5], state[name] * state[name[:-5] + "_mask"]) for name in '
    'list(state) if name.endswith("_orig"));'
    " model.load_state_dict({name: value for name, value in state.items() if not "
    'name.endswith(("_orig", "_mask"))})'
)

# The modules that prepare and prepare_qat of torch.ao.quantization put into a model.
_OBSERVED = re.compile(
    r"(?:^|\.)(?:activation_post_process|weight_fake_quant)\.|(?:^|\.)(?:fake_quant"
    r"|observer)_enabled$"
)


def find_change(
    message: Message, absent: Sequence[str], here: set[str], names: Mapping[str, object]
) -> Changed:
    """Find a change of the model, before the save or the load, that gave its tensors
    other names. `names` are all of the file.
    """
    masked = [
        name for name in absent if f"{name}_orig" in here and f"{name}_mask" in here
    ]
    if masked:
        ours = [f"{name}{end}" for name in masked for end in ("", "_orig", "_mask")]
        text = (
            f"{counted_noun(len(masked), 'parameter')} {be_verb(masked)} kept by "
            "torch.nn.utils.prune as weight_orig and weight_mask, and the weight is "
            "their product. So they load into a model that is not pruned:"
        )
        return Changed(frozenset(ours), text, _MASKED)
    lost = set(absent)
    # The other way round: the file has the plain weight, and the model its two parts.
    bare = [name for name in here if f"{name}_orig" in lost and f"{name}_mask" in lost]
    if bare:
        ours = [f"{name}{end}" for name in bare for end in ("", "_orig", "_mask")]
        return Changed(
            frozenset(ours),
            (
                "The model was pruned before the load: load first, and prune then "
                "(torch.nn.utils.prune)."
            ),
        )
    # weight_orig is on both sides here, so it is in `names` and not in `here`.
    older = [name for name in absent if f"{name}_v" in here and f"{name}_orig" in names]
    if older:
        return Changed(
            frozenset(f"{name}{end}" for name in older for end in ("", "_v")),
            "Both have spectral norm, of two versions of torch: the file has "
            "weight_orig, weight_u and weight_v, as torch 1.0 and newer write it, and "
            "the model asks for weight beside the others, as torch 0.4 does. Take "
            "torch 1.0 or newer, which reads both forms.",
        )
    normed = [name for name in absent if f"{name}_orig" in here and f"{name}_u" in here]
    if normed:
        ours = [f"{name}{end}" for name in normed for end in ("", "_orig", "_u", "_v")]
        return Changed(
            frozenset(ours),
            "The file has spectral norm: weight_orig, weight_u and weight_v. Apply "
            "torch.nn.utils.spectral_norm to the same layers of the model before the "
            "load.",
        )
    joined = _find_joined(absent, here, names)
    if joined is not None:
        return joined
    return _find_quantization(message, absent, here)


_LAYERS = {"Wqkv.": "flash-attention", "in_proj_": "torch"}
"""A part of a name -> whose attention has it."""
_JOINED = (("Wqkv.", "in_proj_"), ("in_proj_", "Wqkv."))
"""The layer of flash-attention for query, key and value, and the one of
nn.MultiheadAttention. Both have the rows of q, k and v in this order.
"""


def _has_three_parts(shape: object) -> bool:
    """Tell whether a tensor may have the rows of query, key and value in equal parts:
    fewer keys than queries make fewer rows.
    """
    if not isinstance(shape, tuple) or not shape or shape[0] % 3:
        return False
    return len(shape) != 2 or shape[0] == 3 * shape[1]


def _find_joined(
    absent: Sequence[str], here: set[str], names: Mapping[str, object]
) -> Changed | None:
    """Find the attention of flash-attention in the place of torch's, on either side.
    `names` are all of the file, with their shapes.
    """
    for ours, theirs in _JOINED:
        found = {
            name: name.replace(theirs, ours)
            for name in absent
            if theirs in name and name.replace(theirs, ours) in here
        }
        # The attention of flash-attention may have fewer keys than queries, and torch's
        # has as many: then other shapes differ, too.
        if not found or not all(_has_three_parts(names[n]) for n in found.values()):
            continue
        saved, asked = _LAYERS[ours], _LAYERS[theirs]
        return Changed(
            frozenset((*found, *found.values())),
            f"{counted_noun(len(found), 'missing key')} {be_verb(list(found))} there "
            f"by other names: the file has the attention of {saved} ({ours}), and the "
            f"model that of {asked} ({theirs}). Both keep query, key and value in one "
            "matrix in the same order, so the names alone differ:",
            "model.load_state_dict({"
            f'name.replace("{ours}", "{theirs}"): value for name, value in '
            "state.items()})",
        )
    return None


def _find_quantization(
    message: Message, absent: Sequence[str], here: set[str]
) -> Changed:
    """As `find_change`, for the quantization of torch."""
    theirs = set(message.unexpected)
    layers = {
        name.removesuffix(".zero_point")
        for name in theirs
        if name.endswith(".zero_point")
        and f"{name.removesuffix('zero_point')}scale" in theirs
    }
    # A quantized Linear of torch keeps its weight in _packed_params, beside scale and
    # zero_point.
    if layers and any("._packed_params" in name for name in theirs):
        ours = {
            name
            for name in (*absent, *here)
            if name.rpartition(".")[0].partition("._packed")[0] in layers
        }
        return Changed(
            frozenset(ours),
            "The model was quantized by torch when it was saved: its weights are "
            "packed integers with a scale and a zero_point. Quantize the model in the "
            "same way before the load (quantize_dynamic, or prepare and convert).",
        )
    # Either side may be the packed one.
    packed = packed_and_plain(absent, here) or packed_and_plain(
        here, absent, is_saved=True
    )
    if packed is not None:
        return Changed(*packed)
    saved = {name for name in here if _OBSERVED.search(name)}
    asked = {name for name in absent if _OBSERVED.search(name)}
    if saved:
        return Changed(
            frozenset(saved),
            (
                "The model was prepared for quantization when it was saved, and has "
                "observers: prepare the model in the same way before the load."
            ),
        )
    if asked:
        return Changed(
            frozenset(asked),
            (
                "The model was prepared for quantization before the load, and the file "
                "has no observers: load first, and prepare then."
            ),
        )
    return Changed(frozenset())
