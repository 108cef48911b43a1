"""A name that a program asks for and that stands for several layers of a file, or for a
part of one: q, k and v in one tensor. And a layer of which a file lacks one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.commands.inspect.inspect import tied_weights
from ckpt.ext.explain.case import BUFFERS_OF_NORMS, Case, Statement, load_statements
from ckpt.ext.explain.origins import first_words
from ckpt.model.text import and_more, show

_JOINED: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("qkv_proj", (("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv"))),
    ("query_key_value", (("query", "key", "value"), ("q_proj", "k_proj", "v_proj"))),
    ("Wqkv", (("q_proj", "k_proj", "v_proj"),)),
    ("wqkv", (("wq", "wk", "wv"), ("q_proj", "k_proj", "v_proj"))),
    ("c_attn", (("q_proj", "k_proj", "v_proj"),)),
    ("qkv", (("q", "k", "v"), ("query", "key", "value"))),
    ("to_qkv", (("to_q", "to_k", "to_v"),)),
    ("kv_proj", (("k_proj", "v_proj"),)),
    ("gate_up_proj", (("gate_proj", "up_proj"), ("w1", "w3"))),
    ("gate_up", (("gate", "up"),)),
)
"""The word of a layer that joins others -> the words of these, in several programs."""


def _find_ending(name: str, case: Case) -> list[str]:
    """The tensors that a name is the end of."""
    return [
        entry.name
        for entry in case.survey.tensors
        if entry.name == name or entry.name.endswith(f".{name}")
    ]


def _replaced(name: str, old: str, new: str) -> str:
    """A name with another word in the place of one of its parts."""
    return ".".join(new if part == old else part for part in name.split("."))


def of_joined_layer(name: str, case: Case) -> Iterator[Statement]:
    """Say that a file has the layers that a program joins under the name it asks for,
    or the joined one where it asks for a part.
    """
    words = name.split(".")
    for joined, spellings in _JOINED:
        for parts in spellings:
            if joined in words:
                held = [
                    _find_ending(_replaced(name, joined, part), case) for part in parts
                ]
                # Two tensors with one ending may be of two models.
                if all(len(row) == 1 for row in held):
                    yield from _of_parts(name, joined, [row[0] for row in held], case)
                    return
            asked = next((part for part in parts if part in words), None)
            if asked is None:
                continue
            whole = _find_ending(_replaced(name, asked, joined), case)
            if len(whole) == 1 and not _find_ending(name, case):
                yield Statement(
                    f"This file has it inside of {show(whole[0], 120)}, which joins "
                    f"{and_more(list(parts), 3)} in one tensor: the program looks for "
                    "them apart. It is the file of another library, or of another "
                    "version of this one: take the loader or the converter that knows "
                    f"{joined}."
                )
                yield from load_statements(case)
                return


def _of_parts(
    name: str, joined: str, parts: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Say that a program joins some layers of a file, and that its model lacks the
    joined one.
    """
    layer = parts[0].rpartition(".")[0].rpartition(".")[0]
    ends = and_more([show(part.removeprefix(f"{layer}."), 60) for part in parts], 3)
    yield Statement(
        f"The file has what it takes: {ends} of {show(layer, 120)}. A program such as "
        f"vLLM or SGLang joins them into one {joined} and looks that name up among the "
        "parameters of the model that it has built (params_dict[name]): there it "
        "lacks, and not in the file. So this version of the program builds no such "
        "layer at this place, or under another name: the layer is one that several "
        "places share, or the config beside the weights is of another model."
    )
    yield from _of_shared_layer(layer, parts, case)
    yield from load_statements(case)


_NUMBER = re.compile(r"^(.*?\.)(\d{1,4})(\..*)$")


def _of_shared_layer(
    layer: str, parts: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Say that a layer and another one share their tensors, with the command that
    writes a file without the copies.
    """
    ties = {name: row for row in tied_weights(case.survey) for name in row}
    shared = [ties[part] for part in parts if part in ties]
    if len(shared) != len(parts):
        return
    own = _NUMBER.match(layer)
    order = [entry.name for entry in case.survey.tensors]
    first = min(shared[0], key=order.index)
    other = _NUMBER.match(first)
    if own is None or other is None or other[2] == own[2]:
        return
    word = own[3].strip(".").partition(".")[0]
    begin = f"{own[1]}{own[2]}.{word}."
    text = (
        f"They are one memory with those of {show(first.rpartition('.')[0], 120)}: one "
        "layer that the model uses at several places. A program that holds it once "
        "wants it once in the file, as safetensors of save_pretrained have it, and a "
        "state dict that torch.save wrote has it at every place."
    )
    way = case.plan(("slim", "--exclude", f"{begin}*", "--with-config"))
    if way.command is None:
        way = case.plan(("slim", "--exclude", f"{begin}*"))
    if way.command is None:
        yield Statement(text)
    else:
        yield Statement(f"{text} Without this copy:", (), way.command)


# --- a layer without one of its tensors -----------------------------------------------


def of_layer_without_part(name: str, case: Case) -> Iterator[Statement]:
    """Say that a file has the layer of a tensor, at the same or another place, and not
    the tensor.
    """
    layer, _, leaf = name.rpartition(".")
    if layer.count(".") < 1:
        return
    held: dict[str, list[str]] = {}
    for entry in case.survey.tensors:
        place, _, last = entry.name.rpartition(".")
        if place == layer or place.endswith(f".{layer}"):
            held.setdefault(place, []).append(last)
    if len(held) != 1:
        return
    ((place, leaves),) = held.items()
    if leaf in leaves:
        return
    why = ""
    if leaf in BUFFERS_OF_NORMS and set(leaves) <= {"weight", "bias"}:
        why = (
            ": a norm whose statistics were folded into its weight and bias, as the "
            "frozen ones of Detectron (AffineChannel2d), or one of another kind. No "
            "BatchNorm takes it as it is"
        )
    moved = ""
    before = place.removesuffix(layer)
    words = first_words(case.survey)
    if before and len(words) > 1:
        moved = (
            f" It lies below {show(before.rstrip('.'), 80)}, and this file is a whole "
            f"model ({and_more([show(word, 40) for word in words], 5)}): the program "
            "looks for the weights of this part alone, as those of a backbone that was "
            "trained on ImageNet. Give the file by the option for a whole checkpoint, "
            "and switch off the one that loads a backbone."
        )
    yield Statement(
        f"The file has the layer {show(layer, 120)}, at {show(place, 120)}, with "
        f"{and_more(sorted(leaves), 4)} and no {show(leaf, 60)}{why}.{moved}"
    )
    yield from load_statements(case)
