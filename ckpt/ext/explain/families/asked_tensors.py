"""A tensor that a program asks for by a name: where else the file has it, and under
another name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate
from ckpt.ext.explain.case import (
    Case,
    Statement,
    finding_statements,
    load_statements,
)
from ckpt.ext.explain.families.beginnings import taken_part
from ckpt.ext.explain.families.computed import tied_to_shared
from ckpt.ext.explain.families.pipelines import part_of_name, parts_in
from ckpt.ext.explain.families.quantized import SCALE, built_by_quantizers
from ckpt.ext.explain.families.tied import tied_name
from ckpt.ext.explain.origins import first_words, name_origin, origin_opening
from ckpt.model.text import and_more, counted_noun, show


def of_adapted_layer(name: str, case: Case) -> Statement | None:
    """Say that a file has the adapter of a layer, and not the layer, or return None."""
    # PEFT calls the layer that it wraps base_layer. Where the file has such names, its
    # base was saved too.
    module, _, rest = name.partition(".base_layer.")
    names = [entry.name for entry in case.survey.tensors]
    held = [other for other in names if f".{module}.lora_" in f".{other}"]
    if not rest or not held or any(".base_layer." in other for other in names):
        return None
    return Statement(
        f"The file has the adapter of this layer ({show(held[0], 120)}) and not the "
        "layer itself: an adapter is saved without the weights of its base. They come "
        "from the base model, so the program has to load that first; a layer that "
        "bitsandbytes has quantized takes its weight from a state dict, and none is in "
        "this one. Load the base without quantization, or let PEFT load the adapter."
    )


def _tensors_called(name: str, case: Case) -> list[str]:
    """The tensors whose names end with a name."""
    return [
        entry.name
        for entry in case.survey.tensors
        if entry.name == name or entry.name.endswith(f".{name}")
    ]


def is_last_word(name: str, case: Case) -> bool:
    """Tell whether a name is the last word of many tensors, such as weight: no part
    that a program asks for.
    """
    return "." not in name and len(_tensors_called(name, case)) > 1


def places_of(name: str, case: Case) -> list[str]:
    """The places of the file, below its root, where a name stands."""
    places = [
        row.name
        for row in case.survey.checkpoint.containers
        if row.path and str(row.path[-1]) == name
    ]
    # A word such as weight ends many names, so the places of tensors tell nothing.
    if is_last_word(name, case):
        return places
    return places + _tensors_called(name, case)[:4]


def without_prefix(places: list[str], name: str, case: Case) -> Statement | None:
    """The command that takes off what stands before a name, or None."""
    prefix = _common_prefix(places, name, case)
    if prefix is None:
        return None
    way = case.plan(("rename", "--sub", f"s/^{re.escape(prefix)}//"))
    if way.command is None:
        return None
    return Statement(
        (
            f"Names of this file begin with {show(prefix, 80)}, and the "
            "program asks for them without it:"
        ),
        (),
        way.command,
    )


def of_scales(name: str, case: Case) -> Iterator[Statement]:
    """Say that the name is the scale of a weight, and what builds such a model."""
    is_scale = SCALE.search(name.rpartition(".")[2])
    scaled = case.scaled_findings if is_scale else []
    if scaled:
        yield from finding_statements(scaled)
        yield from built_by_quantizers(case)


def of_beginning(name: str, case: Case) -> Iterator[Statement]:
    moved = _under_another_beginning(name, case)
    if moved is not None:
        yield moved


_LEAST_TAIL = 3
"""Parts at the end of a name that two names must share to be one tensor under two
beginnings.
"""


def _under_another_beginning(name: str, case: Case) -> Statement | None:
    """Say that a file has a tensor below another first word, with the command that
    gives it the one asked for.
    """
    first, _, tail = name.partition(".")
    if tail.count(".") + 1 < _LEAST_TAIL or len(case.survey.candidates) != 1:
        return None
    names = case.survey.candidates[0].names()
    found = [other for other in names if other == tail or other.endswith(f".{tail}")]
    # Two tensors with this tail may be of two models.
    if len(found) != 1:
        return None
    beginning = found[0].removesuffix(tail)
    text = (
        f"This file has it as {show(found[0], 120)}"
        + (
            f", below {show(beginning, 80)} in the place of {show(first, 80)}.:"
            if beginning
            else f", without {show(first, 80)}. before it:"
        )
        + " the program looks for the names of another run, or of another wrapper."
    )
    sub = f"s/^{re.escape(beginning)}/{first}./"
    # A word with other characters could break the rule of the rename.
    way = case.plan(("rename", "--sub", sub)) if first.isidentifier() else None
    if way is None or way.command is None:
        return Statement(text)
    return Statement(f"{text} With the name that it asks for:", (), way.command)


def with_numbers(name: str, case: Case) -> Statement | None:
    """Say which tensors a name with {} in the place of numbers stands for, or return
    None.
    """
    # Programs show a row of their table of names, with a hole for the number:
    # `transformer.h.{}.attn.gating_factor`.
    if "{}" not in name and "{bid}" not in name:
        return None
    pattern = re.escape(name)
    for hole in ("{}", "{bid}"):
        pattern = pattern.replace(re.escape(hole), r"\d{1,6}")
    whole = re.compile(pattern)
    found = [
        other
        for section in case.survey.candidates
        for other in section.names()
        if whole.fullmatch(other)
    ]
    if not found:
        return None
    return Statement(
        f"{show(name, 120)} stands for {counted_noun(len(found), 'tensor')} of this "
        "file, with a number in the braces: "
        f"{and_more([show(other, 120) for other in found], 3)}. The program looks it "
        "up in a table of names and has no row for it: it does not know these layers, "
        "which an adapter or another version of the model adds."
    )


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Endings of files that loaders take for weights."""
_STRAYS = 8
"""Files of a folder beside the checkpoint that are looked into."""


def file_with(name: str, case: Case) -> Statement | None:
    """Say that another file of the folder has a tensor of a name, or return None where
    none has.
    """
    path = case.survey.path
    if not case.is_folder or "." not in name or is_url(path):
        return None
    folder = locate(path)
    parts = set(case.survey.checkpoint.parts)
    others = [
        file for file in folder.names() if file.endswith(_WEIGHTS) and file not in parts
    ]
    for file in sorted(others)[:_STRAYS]:
        has_name = name in case.names_in(os.path.join(path, file))
        if has_name:
            shown = show(file, 80)
            own = sorted(part for part in parts if part.endswith(_WEIGHTS))
            held = and_more([show(part, 80) for part in own], 3)
            text = (
                f"{show(name, 120)} is a tensor of {shown}, which lies in this folder "
                f"beside the files of the model ({held}). A loader that takes every "
                f"file meets both: move {shown} out of the folder."
            )
            # A folder of Mistral may have the model twice: under the names of
            # transformers, and under its author's in consolidated.safetensors.
            if file == _CONSOLIDATED:
                text += (
                    " It is the model in the names of its author: in vLLM --load-format"
                    " mistral with --config-format mistral takes that one alone."
                )
            return Statement(text)
    return None


_CONSOLIDATED = "consolidated.safetensors"


def of_equal_tensor(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file has a tensor of exactly the name that lacks, so that the model
    is what lacks it.
    """
    # Leave a scale to the step behind this one, which says what builds a quantized
    # model.
    if SCALE.search(name.rpartition(".")[2]):
        return
    for section in case.survey.candidates[:4]:
        names = section.names()
        if "." not in name or name not in names:
            continue
        place = f", in {show(section.name, 80)}" if section.path else ""
        tied = _tied_by_config(name, names, case)
        if tied is not None:
            yield tied
            yield from load_statements(case)
            return
        yield Statement(
            f"This file has a tensor of exactly this name{place}, so the dict that "
            "lacks it is not of this file: it is that of the model which was built "
            "(model.state_dict()[name]), or another file was loaded."
        )
        words = first_words(case.survey)
        first, _, inner = name.partition(".")
        load = case.survey.load.expression
        if (
            # A program may have built the part that the first word names, such as
            # backbone. A head is no part that is built alone.
            len(words) > 1
            and not _OUTPUTS.search(first)
            and inner
            and load is not None
            and len(case.survey.candidates) == 1
        ):
            shown = and_more([show(word, 40) for word in words], 6)
            yield Statement(
                f"Its names begin with {shown}: it holds a whole model. Where the "
                f"program builds {show(first, 40)} alone, its names begin without "
                f"{show(first, 40)}., and that part loads so:",
                (),
                taken_part(load, f"{first}."),
            )
        else:
            yield from load_statements(case)
        return


def of_recorded_word(name: str, case: Case) -> Iterator[Statement]:
    """Say that a key is no key of the file, but the value of a setting: a program looks
    it up in its own list of tasks, models or classes.
    """
    # A setting is one plain word: `KeyError: 'speech_pretraining'`.
    if "." in name or len(name) < _LEAST_WORD:
        return
    held = [
        value.name
        for value in case.survey.checkpoint.values
        if value.path and value.node == name
    ]
    if not held:
        return
    shown = and_more([show(place, 80) for place in held], 3)
    origin = name_origin(case.survey)
    said = "" if origin is None else f" {origin_opening(origin)} {origin}."
    yield Statement(
        f"{show(name, 80)} is no key of this file, and is a value of it, at {shown}. "
        "Where the program takes it from there, it looks it up in a list of its own, "
        "which lacks it: the file was written by another version of the program, or "
        f"with code that is not imported here.{said} Take the version that wrote it, "
        "or change the setting in the file to the name that yours has for it (ckpt "
        "set), if it means the same there."
    )
    yield from load_statements(case)


_LEAST_WORD = 4
"""Letters of a setting that is looked up: a shorter one stands in files by chance."""


_OUTPUTS = re.compile(r"(?:head|classifier|score|logits|output)$")
"""The first word of an output layer, which is no model of its own."""


def _tied_by_config(name: str, names: list[str], case: Case) -> Statement | None:
    """Say that a file has the output layer of a model whose config ties it to the
    embedding, so that the model has no such parameter, or return None.
    """
    others = [other for other in names if other != name]
    embedding = tied_name([name], others, case)
    ties = [node for _, node in case.survey_flags("tie_word_embeddings")]
    kinds = [str(node) for _, node in case.finds_value(("model_type",))]
    # Gemma ties both where its config says nothing.
    is_tied = True in ties or (
        not ties and any(kind.startswith("gemma") for kind in kinds)
    )
    if embedding is None or not is_tied:
        return None
    says = (
        "config.json says tie_word_embeddings = true"
        if True in ties
        else "models of Gemma tie both"
    )
    text = (
        f"This file has {show(name, 80)} beside {show(embedding, 80)}, and {says}: the "
        "model that the program builds has the "
        "embedding alone, and no place for the other. Quantizers and trainers write "
        "both. Where both are equal, leave it out; where the training changed one, "
        "set tie_word_embeddings to false."
    )
    way = case.plan(("slim", "--exclude", name, "--with-config"))
    if way.command is None:
        return Statement(text)
    return Statement(f"{text} Without it:", (), way.command)


def not_averaged(name: str, case: Case) -> Statement | None:
    """Say that a program asks for the average of a tensor, and the file has the tensor
    itself alone.
    """
    # Programs swap each weight with its average, and ask for both names:
    # `ema_pts_bbox_head_shared_conv_conv_weight`.
    for beginning in ("ema_", "ema.", "ema_model.", "model_ema.", "module.ema_"):
        if not name.startswith(beginning):
            continue
        # A buffer of torch may have no dot in its name, so a hook writes underscores.
        wanted = name.removeprefix(beginning).replace(".", "_")
        found = [
            other
            for section in case.survey.candidates
            for other in section.names()
            if other.replace(".", "_") == wanted
        ]
        if found and not any(
            other.startswith(beginning)
            for section in case.survey.candidates
            for other in section.names()
        ):
            other = found[0]
            return Statement(
                f"{show(other, 120)} is in this file, and no average of it is: no name "
                f"begins with {show(beginning, 40)}. The run had no EMA hook, or the "
                "averages are in their places already. There is nothing to swap: take "
                "the weights as they are."
            )
    return None


def of_tied_tensor(name: str, case: Case) -> Statement | None:
    """Say that a program asks for a tensor that the file has under another name, for
    the model ties both.
    """
    names = [other for row in case.survey.candidates for other in row.names()]
    shared = tied_to_shared([name], names, case)
    if shared is not None:
        return shared
    tied = tied_name([name], names, case)
    if tied is None:
        return None
    return Statement(
        f"{show(name, 80)} is the same tensor as {show(tied, 80)} where a model ties "
        "both, and such a file holds it once: nothing is lost. A newer version of the "
        "program ties them itself; from_pretrained of transformers does."
    )


def of_part_of_diffusion(name: str, case: Case) -> Statement | None:
    """Say that a program asks for a part of Stable Diffusion or its kin, and that the
    file has other parts.
    """
    asked = part_of_name(name)
    held = parts_in(case)
    if asked is None or not held or asked in held:
        return None
    return Statement(
        f"{show(name, 80)} is of {asked}, and this file holds {and_more(held, 3)} "
        f"alone: take a file with all parts, or load {asked} from another one."
    )


_PACKED = re.compile(r"\.(?:qweight|qzeros|scales|g_idx)$")


def of_plain_weight(name: str, case: Case) -> Iterator[Statement]:
    """Say that a program asks for the parts of a quantized weight, and that the file
    has the plain one.
    """
    # GPTQ and AWQ keep a weight in several tensors: qweight, qzeros, scales and, in
    # GPTQ, g_idx.
    layer = _PACKED.sub("", name)
    if layer == name:
        return
    places = _tensors_called(f"{layer}.weight", case)
    if not places:
        return
    yield Statement(
        f"{show(name, 120)} is a part of a quantized weight, and this file has the "
        f"plain one, {show(places[0], 120)}: start the program without its option "
        "for quantized weights, or give it weights that were quantized so."
    )
    yield from load_statements(case)


VITS = frozenset(("model", "iteration", "optimizer", "learning_rate"))
"""Keys of the checkpoints that VITS and what was made from it write while they
train.
"""
OF_RESULTS = frozenset(("precision", "recall"))
"""Keys of the results that the evaluation of COCO saves."""
_OF_AUTHORS = re.compile(
    r"(?:time_embed\.|label_emb\.|input_blocks\.|middle_block\.|output_blocks\."
    r"|zero_convs\.|middle_block_out\.|input_hint_block\.)"
)
"""The beginning of a name of the UNet and the ControlNet of their authors."""
_OF_DIFFUSERS = re.compile(
    r"(?:time_embedding\.linear_\d|down_blocks\.\d+\.|controlnet_down_blocks\.)"
)
"""The beginning of a name of the same in diffusers."""
NAME_OF_A_TENSOR = re.compile(r"\w[._]\d+[._]\w|\.\w+\.(?:weight|bias)$")
"""A name with a number between its parts, as layers have it."""


def name_of_a_tensor(name: str, case: Case) -> Iterator[Statement]:
    """Say which tensors have a name like the one that a program asks for, with dots or
    underscores between its parts.
    """
    # Trainers of adapters write underscores for dots, so both are compared as one.
    asked = name.replace(".", "_")
    alike = [
        entry.name
        for entry in case.survey.tensors
        if asked in entry.name.replace(".", "_")
    ]
    if alike:
        count = (
            f"{counted_noun(len(alike), 'tensor')} of this file "
            f"{'has' if len(alike) == 1 else 'have'}"
        )
        yield Statement(
            f"{count} {show(name, 120)} in the name, with dots or underscores between "
            f"its parts: {and_more([show(row, 120) for row in alike], 4)}. The program "
            "asks for it by a part of the name, so it does not know these names as "
            "they are."
        )
        return
    if _OF_AUTHORS.match(name) and any(
        _OF_DIFFUSERS.match(entry.name) for entry in case.survey.tensors
    ):
        yield Statement(
            f"{show(name, 120)} is a name of the authors of Stable Diffusion and "
            "ControlNet, which a program converts to those of diffusers. This file "
            "has the names of diffusers already, so nothing is to convert: load it "
            "with from_pretrained from a folder that holds it with its config.json, "
            "and not with from_single_file or a script that converts."
        )
        return
    part = _sole_part(case)
    if part and not name.startswith(f"{part}."):
        total = len(case.survey.tensors)
        every = "The only tensor of this file is"
        if total != 1:
            every = f"All {total:,} tensors of this file are"
        yield Statement(
            f"{every} of {show(part, 80)}: it is a part of a model that was trained or "
            f"saved by itself, and {show(name, 120)} is outside of it. Take that "
            "tensor from the file of the whole model, or start the program with the "
            "options of the run that saved (those that say which parts are trained and "
            "saved), so that it asks for no other part."
        )
        return
    names = [show(entry.name, 120) for entry in case.survey.tensors[:3]]
    yield Statement(
        f"No tensor of this file has {show(name, 120)} in its name, with dots or "
        "underscores: the program looks for another architecture, or for the names of "
        f"another library. The names here are {and_more(names, 3)} and so on."
        f"{_shorter_text(name, case)}"
    )


def _shorter_text(name: str, case: Case) -> str:
    """Say that a file has a name which is a word shorter than the one that is asked
    for, or return an empty text.
    """
    words = name.split(".")
    held = {entry.name for entry in case.survey.tensors}
    for number in range(1, len(words) - 1):
        shorter = ".".join([*words[:number], *words[number + 1 :]])
        if shorter in held:
            return (
                f" {show(shorter, 120)} is one of them: the layer here has its value "
                f"without {show(words[number], 40)} in between, as another version of "
                "the library builds it. Take the version of the run that saved (for "
                "torch_geometric: the layers of before 2.0 have weight where later "
                "ones have lin.weight), for the shapes may differ too."
            )
    return ""


_MOST_OF_A_PART = 16
"""Tensors that a part of a model by itself has at most here: a whole model in one more
module has more.
"""
_A_MODEL = re.compile(r"(?:^|\.)(?:model|module|state_dict|net|network)$")


def _sole_part(case: Case) -> str:
    """The part that all tensors of a small file are of, as `model.mm_projector`, or an
    empty text.
    """
    names = [entry.name for entry in case.survey.tensors]
    if not 1 < len(names) <= _MOST_OF_A_PART:
        return ""
    parents = [name.split(".")[:-1] for name in names]
    words: list[str] = []
    for level in zip(*parents, strict=False):
        if len(set(level)) > 1:
            break
        words.append(level[0])
    # A number is the place of a layer in a part, and no part.
    while words and words[-1].isdigit():
        words.pop()
    part = ".".join(words)
    # A prefix of all models alone is no part.
    return "" if "." not in part or _A_MODEL.search(part) else part


def _common_prefix(places: list[str], name: str, case: Case) -> str | None:
    """The prefix under which a file of weights has a name, where the file has that
    tensor once, or None.
    """
    # A name that lies twice has no single prefix, and a model below a key is not
    # renamed by its root.
    tensors = [place for place in places if place.endswith(f".{name}")]
    if (
        len(places) != 1
        or len(tensors) != 1
        or any(section.path for section in case.survey.candidates)
    ):
        return None
    prefix = tensors[0].removesuffix(name)
    count = sum(entry.name.startswith(prefix) for entry in case.survey.tensors)
    # A prefix of one tensor alone is the name of its module.
    return prefix if count > 1 else None
