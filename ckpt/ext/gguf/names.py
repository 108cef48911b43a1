"""The names of llama.cpp and of transformers for the same tensors, for each
architecture, as data.

`{n}` is the number of a block. Endings such as `.weight` and `.bias` stay. The names
are in llama.cpp's gguf-py (TENSOR_NAMES and TensorNameMap) and in transformers' models;
what the converter changes beside the names is in its convert_hf_to_gguf.py.
"""

from __future__ import annotations

import re
from typing import Literal

from ckpt.model.rows import NamedTuple

Change = Literal["", "rotary-q", "rotary-k", "turned", "one-more"]
"""The change of a tensor on the way into GGUF: the order of the rows of q and k, a
transpose (Conv1D), 1 added to each element.
"""


class Architecture(NamedTuple):
    """The names of an architecture: of llama.cpp -> of transformers. `turned` are names
    whose weight is transposed.

    `is_rotary` says that the rows of q and k are in pairs of neighbours, `has_one_more`
    that norms have 1 added.
    """

    names: dict[str, str]
    turned: tuple[str, ...] = ()
    is_rotary: bool = False
    has_one_more: bool = False


_BLOCK = "model.layers.{n}."
_DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{n}.attn_norm": f"{_BLOCK}input_layernorm",
    "blk.{n}.attn_q": f"{_BLOCK}self_attn.q_proj",
    "blk.{n}.attn_k": f"{_BLOCK}self_attn.k_proj",
    "blk.{n}.attn_v": f"{_BLOCK}self_attn.v_proj",
    "blk.{n}.attn_output": f"{_BLOCK}self_attn.o_proj",
    "blk.{n}.attn_q_norm": f"{_BLOCK}self_attn.q_norm",
    "blk.{n}.attn_k_norm": f"{_BLOCK}self_attn.k_norm",
    "blk.{n}.ffn_norm": f"{_BLOCK}post_attention_layernorm",
    "blk.{n}.ffn_gate": f"{_BLOCK}mlp.gate_proj",
    "blk.{n}.ffn_up": f"{_BLOCK}mlp.up_proj",
    "blk.{n}.ffn_down": f"{_BLOCK}mlp.down_proj",
}
_FOUR_NORMS = {
    **_DECODER,
    "blk.{n}.ffn_norm": f"{_BLOCK}pre_feedforward_layernorm",
    "blk.{n}.post_attention_norm": f"{_BLOCK}post_attention_layernorm",
    "blk.{n}.post_ffw_norm": f"{_BLOCK}post_feedforward_layernorm",
}
_PHI3 = {
    **_DECODER,
    "blk.{n}.attn_qkv": f"{_BLOCK}self_attn.qkv_proj",
    "blk.{n}.ffn_up": f"{_BLOCK}mlp.gate_up_proj",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.ln_1",
    "blk.{n}.ffn_norm": "transformer.h.{n}.ln_2",
    "blk.{n}.attn_qkv": "transformer.h.{n}.attn.c_attn",
    "blk.{n}.attn_output": "transformer.h.{n}.attn.c_proj",
    "blk.{n}.ffn_up": "transformer.h.{n}.mlp.c_fc",
    "blk.{n}.ffn_down": "transformer.h.{n}.mlp.c_proj",
}
_BERT = {
    "token_embd": "bert.embeddings.word_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "token_embd_norm": "bert.embeddings.LayerNorm",
    "blk.{n}.attn_q": "bert.encoder.layer.{n}.attention.self.query",
    "blk.{n}.attn_k": "bert.encoder.layer.{n}.attention.self.key",
    "blk.{n}.attn_v": "bert.encoder.layer.{n}.attention.self.value",
    "blk.{n}.attn_output": "bert.encoder.layer.{n}.attention.output.dense",
    "blk.{n}.attn_output_norm": "bert.encoder.layer.{n}.attention.output.LayerNorm",
    "blk.{n}.ffn_up": "bert.encoder.layer.{n}.intermediate.dense",
    "blk.{n}.ffn_down": "bert.encoder.layer.{n}.output.dense",
    "blk.{n}.layer_output_norm": "bert.encoder.layer.{n}.output.LayerNorm",
}
_TURNED = (
    "blk.{n}.attn_qkv",
    "blk.{n}.attn_output",
    "blk.{n}.ffn_up",
    "blk.{n}.ffn_down",
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_DECODER, is_rotary=True),
    "qwen2": Architecture(_DECODER),
    "qwen3": Architecture(_DECODER),
    "gemma": Architecture(_DECODER, has_one_more=True),
    "gemma2": Architecture(_FOUR_NORMS, has_one_more=True),
    "gemma3": Architecture(_FOUR_NORMS, has_one_more=True),
    "phi3": Architecture(_PHI3),
    "gpt2": Architecture(_GPT2, turned=_TURNED),
    "bert": Architecture(_BERT),
}
"""The architectures by `general.architecture`. Mistral, Mixtral and SmolLM call
themselves llama.
"""

MADE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that the converter makes of numbers in config.json."""


class Meaning(NamedTuple):
    """The name of a tensor in transformers, and what the converter changed beside the
    name.
    """

    name: str
    change: Change = ""


def meaning_of(name: str, architecture: Architecture) -> Meaning | None:
    """Return what a tensor of llama.cpp is in transformers, or None for a name that is
    not in the table.
    """
    stem, dot, ending = name.rpartition(".")
    form = re.sub(r"^blk\.(\d{1,6})\.", "blk.{n}.", stem)
    other = architecture.names.get(form)
    if other is None:
        return None
    match = re.match(r"blk\.(\d{1,6})\.", stem)
    theirs = (
        f"{other}{dot}{ending}"
        if match is None
        else f"{other}{dot}{ending}".replace("{n}", match[1])
    )
    return Meaning(theirs, _change_of(form, ending, architecture))


def _change_of(form: str, ending: str, architecture: Architecture) -> Change:
    if architecture.is_rotary and form == "blk.{n}.attn_q":
        return "rotary-q"
    if architecture.is_rotary and form == "blk.{n}.attn_k":
        return "rotary-k"
    if form in architecture.turned and ending == "weight":
        return "turned"
    if architecture.has_one_more and form.endswith("norm") and ending == "weight":
        return "one-more"
    return ""
