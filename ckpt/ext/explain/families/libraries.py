"""Tensors by the names of one library in a file of another: the names of llama.cpp for
a file of transformers, and the names of one part of a model with several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.origins import config_of, origin_of_names
from ckpt.model.text import and_more, counted_noun, show

_GGUF = "GGUF"
_OF_GGUF = re.compile(
    r"(?:(token_embd|output_norm|output)|blk\.(\d{1,6})\.(\w{1,60}))\.(\w{1,60})"
)
"""A name that llama.cpp gives to a tensor of a language model."""
_ENDS = {
    "token_embd": ("embed_tokens",),
    "output_norm": ("model.norm", "final_layernorm"),
    "output": ("lm_head",),
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_output": ("self_attn.o_proj",),
    "attn_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj",),
    "ffn_down": ("mlp.down_proj",),
}
"""A part of a name of llama.cpp -> the ends of the name in transformers."""


def of_gguf_name(name: str, text: str, case: Case) -> Statement | None:
    """Say that a program asks a file of transformers for a name of llama.cpp, and which
    tensor that is there, or return None.

    `text` is the whole error: a bare `output.weight` is of llama.cpp only where the
    error speaks of GGUF.
    """
    found = _OF_GGUF.fullmatch(name)
    if found is None or case.survey.checkpoint.traits.label == _GGUF:
        return None
    # Group 1 is a tensor outside of the blocks. In a block 2 is its number, 3 the part.
    part = found[1] or found[3]
    if part == "output" and _GGUF not in text.upper():
        return None
    names = [entry.name for entry in case.survey.tensors]
    origin = origin_of_names(names)
    if name in names or origin is None or "transformers" not in origin:
        return None
    # The dots keep block 1 from fitting block 11.
    number = f".{found[2]}." if found[2] is not None else ""
    alike = [
        other
        for other in names
        for end in _ENDS.get(part, ())
        if f".{other}".endswith(f".{end}.{found[4]}") and number in other
    ]
    there = (
        f" By its name there it is {and_more([show(row, 120) for row in alike], 2)}."
        if alike
        else ""
    )
    scaled = (
        " No tensor of this file is a scale: its weights are not quantized so."
        if "scale" in found[4] and not case.scaled_findings
        else ""
    )
    return Statement(
        f"{show(name, 120)} is a name of GGUF (llama.cpp), and this file has the names "
        f"of transformers.{there}{scaled} The program takes its weights from a GGUF, "
        "or from a file that its own script made from both (ktransformers: "
        "merge_safetensor_gguf.py): give it that one, and this file where it asks for "
        "the model of transformers."
    )


_LEAST_BELOW = 4
"""Tensors below a beginning of names from which on they may be a model."""


def of_refused(name: str, case: Case) -> Iterator[Statement]:
    """Say of a name that a file has, and that a program does not know, of which part of
    the file it is, where the file has several.
    """
    if len(case.survey.candidates) != 1:
        return
    section = case.survey.candidates[0]
    names = section.names()
    if name not in names:
        return
    first = name.partition(".")[0]
    counts = Counter(other.partition(".")[0] for other in names)
    # A few tensors are a layer, and no model that another program takes.
    if len(counts) < 2 or counts[first] < _LEAST_BELOW:
        return
    # The names below the beginning are looked at as a model of their own.
    inner = [
        other.removeprefix(f"{first}.")
        for other in names
        if other.startswith(f"{first}.")
    ]
    origin = origin_of_names(inner)
    shown = and_more(
        [f"{show(word, 60)} ({count:,})" for word, count in counts.most_common()], 5
    )
    text = (
        "This file is a model of several parts; its "
        f"{counted_noun(len(names), 'name')} begin with {shown}. The program knows no "
        f"place for those below {show(first, 60)}."
    )
    if origin is None:
        yield Statement(text)
        return
    text += (
        f" Without that beginning they are {origin}, which a program for that part "
        "alone asks for."
    )
    way = case.plan(("rename", "--sub", f"s/^{re.escape(first)}\\.//"))
    if way.command is None:
        yield Statement(text)
    else:
        yield Statement(f"{text} With the names of it:", (), way.command)


def none_has_place(names: Sequence[str], case: Case) -> Statement:
    """Say that a model has a place for no name of a file, and how they begin."""
    counts = Counter(name.partition(".")[0] for name in names)
    shown = and_more(
        [f"{show(word, 60)} ({count:,})" for word, count in counts.most_common()], 5
    )
    text = (
        f"The model has no place for any of the {counted_noun(len(names), 'name')} of "
        f"this file, which begin with {shown}: its own begin otherwise, or it is "
        "another model."
    )
    origin = origin_of_names(names)
    # config.json may name a class of which these names are a part only.
    config = config_of(case.survey)
    architectures = config.get("architectures")
    cls = (
        str(architectures[0])
        if isinstance(architectures, list) and architectures
        else ""
    )
    # A model of pictures and text has this ending, and its text part alone has not.
    is_text = origin is not None and "language model" in origin
    if is_text and cls.endswith("ForConditionalGeneration"):
        text += (
            f" config.json says {show(cls, 80)}, a model with more parts than these "
            "names, which are a language model alone: a merge or a save wrote the "
            "text part under the config of the whole. Take a config.json of the text "
            "model (the class ForCausalLM, with the settings of text_config), or give "
            "the names the beginning that the whole model has:"
        )
        way = case.plan(("rename", "--sub", "s/^/language_model./"))
        return Statement(text, (), way.command)
    return Statement(text)
