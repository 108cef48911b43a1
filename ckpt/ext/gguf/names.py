"""The names of llama.cpp and of transformers for the same tensors, for each
architecture, as data.

`{n}` is the number of a block, `{e}` of an expert: llama.cpp has the experts of a block
in one tensor. Endings such as `.weight` and `.bias` stay. The names are in llama.cpp's
gguf-py (TENSOR_NAMES and TensorNameMap) and in transformers' models; what the converter
changes beside the names is in its convert_hf_to_gguf.py.
"""

from __future__ import annotations

import re
from typing import Literal

from ckpt.model.rows import NamedTuple

Change = Literal["", "rotary-q", "rotary-k", "turned", "one-more", "one-row"]
"""The change of a tensor on the way into GGUF: the order of the rows of q and k, a
transpose (Conv1D), 1 added to each element, a first dimension of 1 that is gone.
"""


class Architecture(NamedTuple):
    """The names of an architecture: of llama.cpp -> of transformers. `turned` are names
    whose weight is transposed.

    `is_rotary` says that the rows of q and k are in pairs of neighbours, `has_one_more`
    that norms have 1 added, `has_latent` that kv_b may lie in two tensors, of keys and
    of values.
    """

    names: dict[str, str]
    turned: tuple[str, ...] = ()
    is_rotary: bool = False
    has_one_more: bool = False
    has_latent: bool = False


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
    # llama.cpp keeps gate and up together under the name of up.
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


def _without(names: dict[str, str], name: str) -> dict[str, str]:
    """Return a table without one name."""
    return {ours: theirs for ours, theirs in names.items() if ours != name}


_TURNED = (
    "blk.{n}.attn_qkv",
    "blk.{n}.attn_output",
    "blk.{n}.ffn_up",
    "blk.{n}.ffn_down",
)
_EXPERTS = {
    "blk.{n}.ffn_gate_inp": f"{_BLOCK}mlp.gate",
    "blk.{n}.ffn_gate_exps": f"{_BLOCK}mlp.experts.{{e}}.gate_proj",
    "blk.{n}.ffn_up_exps": f"{_BLOCK}mlp.experts.{{e}}.up_proj",
    "blk.{n}.ffn_down_exps": f"{_BLOCK}mlp.experts.{{e}}.down_proj",
}
_MIXTRAL = {
    **_DECODER,
    "blk.{n}.ffn_gate_inp": f"{_BLOCK}block_sparse_moe.gate",
    "blk.{n}.ffn_gate_exps": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w1",
    "blk.{n}.ffn_down_exps": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w2",
    "blk.{n}.ffn_up_exps": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w3",
    # Files of the winter of 2023 have a tensor for each expert.
    "blk.{n}.ffn_gate.{e}": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w1",
    "blk.{n}.ffn_down.{e}": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w2",
    "blk.{n}.ffn_up.{e}": f"{_BLOCK}block_sparse_moe.experts.{{e}}.w3",
}
_QWEN2_MOE = {
    **_DECODER,
    **_EXPERTS,
    "blk.{n}.ffn_gate_inp_shexp": f"{_BLOCK}mlp.shared_expert_gate",
    "blk.{n}.ffn_gate_shexp": f"{_BLOCK}mlp.shared_expert.gate_proj",
    "blk.{n}.ffn_up_shexp": f"{_BLOCK}mlp.shared_expert.up_proj",
    "blk.{n}.ffn_down_shexp": f"{_BLOCK}mlp.shared_expert.down_proj",
}
_SHARED = {
    **_DECODER,
    **_EXPERTS,
    "blk.{n}.ffn_gate_shexp": f"{_BLOCK}mlp.shared_experts.gate_proj",
    "blk.{n}.ffn_up_shexp": f"{_BLOCK}mlp.shared_experts.up_proj",
    "blk.{n}.ffn_down_shexp": f"{_BLOCK}mlp.shared_experts.down_proj",
    "blk.{n}.exp_probs_b.bias": f"{_BLOCK}mlp.gate.e_score_correction_bias",
}
_LATENT = {
    **_SHARED,
    "blk.{n}.attn_q_a": f"{_BLOCK}self_attn.q_a_proj",
    "blk.{n}.attn_q_a_norm": f"{_BLOCK}self_attn.q_a_layernorm",
    "blk.{n}.attn_q_b": f"{_BLOCK}self_attn.q_b_proj",
    "blk.{n}.attn_kv_a_mqa": f"{_BLOCK}self_attn.kv_a_proj_with_mqa",
    "blk.{n}.attn_kv_a_norm": f"{_BLOCK}self_attn.kv_a_layernorm",
    "blk.{n}.attn_kv_b": f"{_BLOCK}self_attn.kv_b_proj",
}
_GLM4_MOE = {
    **_without(_SHARED, "blk.{n}.ffn_norm"),
    "blk.{n}.post_attention_norm": f"{_BLOCK}post_attention_layernorm",
    # The layer that predicts further tokens (num_nextn_predict_layers).
    "blk.{n}.nextn.eh_proj": f"{_BLOCK}eh_proj",
    "blk.{n}.nextn.embed_tokens": f"{_BLOCK}embed_tokens",
    "blk.{n}.nextn.enorm": f"{_BLOCK}enorm",
    "blk.{n}.nextn.hnorm": f"{_BLOCK}hnorm",
    "blk.{n}.nextn.shared_head_head": f"{_BLOCK}shared_head.head",
    "blk.{n}.nextn.shared_head_norm": f"{_BLOCK}shared_head.norm",
}
# OLMo 2 has its norms behind attention and feed forward.
_NORMS_BEHIND = {
    **_without(_DECODER, "blk.{n}.ffn_norm"),
    "blk.{n}.post_attention_norm": f"{_BLOCK}post_attention_layernorm",
    "blk.{n}.post_ffw_norm": f"{_BLOCK}post_feedforward_layernorm",
}
_STARCODER2 = {
    **_DECODER,
    "blk.{n}.ffn_up": f"{_BLOCK}mlp.c_fc",
    "blk.{n}.ffn_down": f"{_BLOCK}mlp.c_proj",
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_MIXTRAL, is_rotary=True),
    "qwen2": Architecture(_DECODER),
    "qwen3": Architecture(_DECODER),
    "qwen2moe": Architecture(_QWEN2_MOE),
    "qwen3moe": Architecture({**_DECODER, **_EXPERTS}),
    "olmoe": Architecture({**_DECODER, **_EXPERTS}),
    "deepseek": Architecture(_SHARED, is_rotary=True),
    "deepseek2": Architecture(_LATENT, has_latent=True),
    "dots1": Architecture(_SHARED),
    "glm4moe": Architecture(_GLM4_MOE),
    "gemma": Architecture(_DECODER, has_one_more=True),
    "gemma2": Architecture(_FOUR_NORMS, has_one_more=True),
    "gemma3": Architecture(_FOUR_NORMS, has_one_more=True),
    "phi3": Architecture(_PHI3),
    "gpt2": Architecture(_GPT2, turned=_TURNED),
    "bert": Architecture(_BERT),
    "mistral3": Architecture(_MIXTRAL, is_rotary=True),
    "smollm3": Architecture(_DECODER, is_rotary=True),
    "granite": Architecture(_DECODER, is_rotary=True),
    "minicpm": Architecture(_DECODER, is_rotary=True),
    "arcee": Architecture(_DECODER, is_rotary=True),
    "olmo": Architecture(_DECODER, is_rotary=True),
    "olmo2": Architecture(_NORMS_BEHIND),
    "seed_oss": Architecture(_NORMS_BEHIND),
    "command-r": Architecture(_DECODER),
    "cohere2": Architecture(_DECODER),
    "starcoder2": Architecture(_STARCODER2),
}
"""The architectures by `general.architecture`. Mistral, Mixtral and SmolLM call
themselves llama, DeepSeek-V3, Kimi and GLM-4.7 Flash deepseek2.
"""

MADE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that the converter makes of numbers in config.json."""


class Meaning(NamedTuple):
    """The name of a tensor in transformers, and what the converter changed beside the
    name.

    A name with `{e}` stands for each expert in the tensor.
    """

    name: str
    change: Change = ""

    @property
    def is_stack(self) -> bool:
        """Tell whether the tensor holds all experts of a block."""
        return "{e}" in self.name

    def name_of(self, expert: int) -> str:
        """Return the name of one expert."""
        return self.name.replace("{e}", str(expert))


KEYS, VALUES = "blk.{n}.attn_k_b.weight", "blk.{n}.attn_v_b.weight"
"""The two parts of kv_b of DeepSeek, of which the first one is transposed head
by head.
"""


def block_of(name: str, form: str) -> str | None:
    """Return the number of the block of a tensor that is called as `form`, or None."""
    match = re.fullmatch(re.escape(form).replace(r"\{n\}", r"(\d{1,6})"), name)
    return None if match is None else match[1]


def meaning_of(name: str, architecture: Architecture) -> Meaning | None:
    """Return what a tensor of llama.cpp is in transformers, or None for a name that is
    not in the table.
    """
    # The number of the block becomes `{n}`, and that of an expert `{e}`, as in the
    # table.
    block = re.match(r"blk\.(\d{1,6})\.", name)
    form = name if block is None else f"blk.{{n}}.{name[block.end() :]}"
    expert = re.fullmatch(r"(blk\.\{n\}\.ffn_(?:gate|down|up))\.(\d{1,6})\.(\w+)", form)
    if expert is not None:
        form = f"{expert[1]}.{{e}}.{expert[3]}"
    other = _other_name(form, architecture)
    if other is None:
        return None
    # And back: both numbers stand in the name of transformers.
    if block is not None:
        other = other.replace("{n}", block[1])
    if expert is not None:
        other = other.replace("{e}", expert[2])
    stem, _, ending = form.rpartition(".")
    return Meaning(other, _change_of(stem, ending, architecture))


def _other_name(form: str, architecture: Architecture) -> str | None:
    """Return the name in transformers of a form of names, with its ending."""
    # A whole name first: some of transformers have no ending, or another one.
    if form in architecture.names:
        return architecture.names[form]
    stem, dot, ending = form.rpartition(".")
    other = architecture.names.get(stem)
    return None if other is None else f"{other}{dot}{ending}"


def _change_of(form: str, ending: str, architecture: Architecture) -> Change:
    # q and k may have other numbers of heads, so each has a change of its own.
    if architecture.is_rotary and form == "blk.{n}.attn_q":
        return "rotary-q"
    if architecture.is_rotary and form == "blk.{n}.attn_k":
        return "rotary-k"
    # The gate of the shared expert is a matrix of one row, which GGUF has as a vector.
    if form == "blk.{n}.ffn_gate_inp_shexp":
        return "one-row"
    if form in architecture.turned and ending == "weight":
        return "turned"
    # Gemma adds 1 to the weights of its norms, which llama.cpp stores added.
    if architecture.has_one_more and form.endswith("norm") and ending == "weight":
        return "one-more"
    return ""
