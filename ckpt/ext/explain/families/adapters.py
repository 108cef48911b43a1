"""Errors of loaders of adapters (LoRA): names that another trainer gave, and names that
belong to another model.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
)
from ckpt.ext.explain.families.architectures import TEXT_WIDTHS
from ckpt.ext.explain.families.loras import ranks_and_widths
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import MOST_NAMES, Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.text import and_more, counted_noun, show

# The first style that one name fits decides, so the patterns that fit more names stand
# last.
_STYLES = (
    (
        re.compile(r"\.on_input$"),
        "LyCORIS for IA3: a scale of one vector for each layer (weight) and on_input, "
        "and no LoRA",
    ),
    (
        re.compile(r"^lycoris_"),
        "LyCORIS itself, as trainers without the scripts of kohya have it "
        "(SimpleTuner): lycoris_ in front, and underscores in place of dots",
    ),
    (
        re.compile(r"^lora_transformer_"),
        "OneTrainer: lora_transformer_ in front, and the names of diffusers with "
        "underscores in place of dots",
    ),
    (
        re.compile(r"^(?:lora_unet|lora_te\d?)_"),
        "kohya (sd-scripts): underscores in place of dots",
    ),
    (
        re.compile(r"\.lora_[AB](?:\.\w{1,100})?\.weight$"),
        "peft and diffusers: lora_A and lora_B",
    ),
    (
        re.compile(r"(?:_lora|\.lora)\.(?:up|down)\.weight$"),
        "diffusers before 0.22: lora.up and lora.down",
    ),
    (
        re.compile(r"\.(?:hada_w\d_[ab]|lokr_w\d|oft_|boft_)"),
        "LyCORIS (LoHa, LoKr, OFT)",
    ),
    (re.compile(r"\.lora_(?:down|up)\.weight$"), "kohya: lora_down and lora_up"),
)


_NUMBERED = re.compile(r"(?:^|\.)\d{1,5}\.lora_(?:down|up|A|B)(?:\.weight)?$")


def _numbered_layers(names: Sequence[str]) -> list[str]:
    """The tensors of LoRA whose layers have numbers in the place of names."""
    found = [name for name in names if _NUMBERED.search(name)]
    return found if 2 * len(found) > len(names) else []


_MIXED = re.compile(
    r"^(?:lora_unet|lora_te\d?)_[^.]*"
    r"((?:\.(?!lora_|alpha$|dora_|hada_|lokr_|oft_|diff)[\w-]{1,60}){1,8})\."
)
"""The names of kohya in front, and dots behind it, where kohya has underscores."""
_SUFFIX = r"\.(?=lora_|alpha$|dora_|hada_|lokr_|oft_|diff)"


def _of_mixed_names(names: Sequence[str], case: Case) -> Iterator[Statement]:
    """Say that the names of an adapter are a mixture of two forms, and print the
    command that gives them the form of kohya.
    """
    depths = {row[1].count(".") for name in names if (row := _MIXED.match(name))}
    if not depths:
        return
    first = next(name for name in names if _MIXED.match(name))
    words: list[str] = []
    for depth in sorted(depths, reverse=True):
        groups = r"\.([^.]+)" * depth
        given = "".join(f"_\\g<{number}>" for number in range(2, depth + 2))
        words += ["--sub", rf"s/^([^.]+){groups}{_SUFFIX}/\g<1>{given}./"]
    yield Statement(
        f"The names of this file are a mixture: {show(first, 100)} begins as those of "
        "kohya (sd-scripts) do, which has underscores in place of all dots, and has "
        "dots behind it. A loader that knows either form alone finds none of its "
        "layers, in whatever model."
    )
    yield from command_statements(
        "In the form of kohya:", case.plan(("rename", *words))
    )


def _answer_adapter(message: Message, case: Case) -> Iterator[Statement]:
    names = [entry.name for entry in case.survey.tensors]
    mixed = list(_of_mixed_names(names, case))
    if mixed:
        yield from finding_statements(case.at_least("error"))
        yield from mixed
        return
    found = next(
        (
            (label, count)
            for pattern, label in _STYLES
            if (count := sum(bool(pattern.search(name)) for name in names))
        ),
        None,
    )
    # If the message lists tensors of this file, its loader has read them, and lacks
    # their layers.
    known = set(message.names).intersection(names)
    if found is not None and known:
        yield from finding_statements(case.at_least("error"))
        yield from _of_another_base(message, known, names, case)
        yield Statement(
            f"The names are those of {found[0]}. A program that does not know them has "
            "to be newer, or takes the adapter of a trainer that writes its own."
        )
        return
    yield from finding_statements(
        [*case.at_least("error"), *case.found("adapter-names")]
    )
    if found is None and (numbered := _numbered_layers(names)):
        yield Statement(
            f"This file has {counted_noun(len(numbered), 'tensor')} of LoRA, and "
            f"counts their layers ({show(numbered[0], 80)}) in the place of their "
            "names. Which layer each is of follows from the list that the trainer "
            "made (Stable Cascade's own train_c_lora.py writes such files): load it "
            "with the program that trained it, or name the layers anew there. No "
            "other loader can know them, and no command can rename them from this "
            "file alone.",
        )
        return
    if found is None and (asked := _TARGETS.search(message.text)):
        yield from _modules_of_base(asked[1], case)
        return
    if found is None:
        yield Statement(
            "No name of this file is that of an adapter of LoRA: another file was "
            f"loaded, or it is a whole model.{_whole_model_text(case)}"
        )
        return
    asked = _OF_TORCHTUNE.search(message.text)
    if asked is not None:
        yield from _of_torchtune(asked[1], found[0], case)
        return
    label, count = found
    begins = list(dict.fromkeys(_first_words(name) for name in names))
    yield Statement(
        f"This file holds an adapter of LoRA in the names of {label} ({count:,} of "
        f"{counted_noun(len(names), 'tensor')}). They begin with "
        f"{and_more([show(begin, 60) for begin in begins], 4)}."
    )
    if "No adapter loaded" in message.text:
        yield Statement(
            "The program asked for an adapter and has none: no call had loaded one, or "
            "the load before had found no name of its model and said so in a warning "
            "alone. In diffusers load_lora_adapter takes names that begin with the "
            "part (transformer., unet.); prefix=None takes names without it."
        )
        return
    # Read PEFT's `Target modules {'q_proj'} not found in the base model.` A long list
    # is cut before its end.
    if "Target module" in message.text:
        inside = _inside_statement(names, case)
        if inside is not None:
            yield inside
            return
        yield from _base_of(names, case)
        return
    # Read diffusers' `No LoRA keys associated to UNet2DConditionModel found with the
    # prefix='unet'.`
    prefix = re.search(r"prefix='?([\w.]{1,60})", message.text)
    if prefix is not None and not any(name.startswith(prefix[1]) for name in names):
        yield Statement(
            f"None begins with {show(prefix[1], 60)}, which the loader looks for."
        )
    yield Statement(
        "A loader takes those of its own kind: load it in the program that the trainer "
        "names, or convert the names."
    )


def _whole_model_text(case: Case) -> str:
    """The sentence on what a file is that is no adapter, or an empty text."""
    origin = name_origin(case.survey)
    if origin is None:
        return ""
    return (
        f" {origin_opening(origin)} {origin}: load it where the program takes models, "
        "and not adapters (A1111: models/Stable-diffusion; ComfyUI: Load Checkpoint)."
    )


_OF_TORCHTUNE = re.compile(r"Missing LoRA key (\S{1,1000}) from adapter state dict")


def _of_torchtune(asked: str, label: str, case: Case) -> Iterator[Statement]:
    """Answer torchtune, which goes on from an adapter in its own names."""
    yield Statement(
        f"torchtune goes on from an adapter in its own names ({show(asked, 100)}), and "
        f"this file has those of {label}. torchtune saves each adapter twice: "
        "adapter_model.safetensors is for PEFT, and adapter_model.pt beside it is the "
        "one to go on from (adapter_0.pt and its like in older versions). Give it that "
        "as adapter_checkpoint."
    )
    folder = os.path.dirname(case.survey.path)
    beside = os.path.join(folder, "adapter_model.pt")
    if not is_url(case.survey.path) and os.path.isfile(beside):
        yield Statement(f"It is here: {show(beside, 200)}.")


_OF_TEXT = re.compile(r"^(?:lora_te\d?_|text_encoder(?:_\d)?[._]|te\d?[._])")
"""The beginning of names of the layers of a text encoder in an adapter."""
# ComfyUI writes a line for each layer: `lora key not loaded: lora_te1_…`.
_UNLOADED = re.compile(
    r"lora key not loaded:?\s{1,4}(\S{1,2000})"
    # Wan2GP writes a list that it cuts: `unexpected module keys … '['a', 'b', 'c...'`.
    r"|'([\w.]{1,1000}\.(?:lora_(?:down|up|A|B)(?:\.\w{1,60})?\.weight|alpha))'"
)
_BASES = ("ss_base_model_version", "modelspec.architecture", "ss_sd_model_name")
"""Keys of the metadata of an adapter that say which model it was trained on."""


def _take_unloaded(message: Message, text: str, start: int) -> Message:
    """The message, with the names that ComfyUI lists one per line."""
    del start
    found = dict.fromkeys(
        (match[1] or match[2]).rstrip(",;") for match in _UNLOADED.finditer(text)
    )
    return message._replace(names=tuple(found)[:MOST_NAMES])


def _of_another_base(
    message: Message, known: set[str], names: list[str], case: Case
) -> Iterator[Statement]:
    """Answer a loader that has read the names of an adapter, and found no layers for
    them.
    """
    count = len(message.names)
    share = (
        "all of them"
        if len(known) == len(names)
        else f"{len(known):,} of its {len(names):,}"
    )
    listed = (
        "Each name of the message is one of this file"
        if len(known) == count
        else (
            f"{len(known):,} of the {counted_noun(count, 'name')} of the message are "
            "of this file"
        )
    )
    # The layers of the diffusion model are not listed, so they were taken.
    if len(known) < len(names) and all(map(_OF_TEXT.match, known)):
        yield Statement(
            f"{listed} ({share}), and by their names they are of the text encoder. So "
            "the loader had no text encoder with them, or another one: the layers of "
            "the diffusion model are not in the list, and were taken. Connect the "
            "text encoder too (LoraLoader in place of LoraLoaderModelOnly in ComfyUI); "
            "without it the adapter works, and weaker."
        )
        return
    if "should be empty" in message.text and len(known) < len(names):
        yield from _left_over(known, names, case)
        return
    fused = _fused_statement(known, names)
    if fused is not None:
        yield Statement(f"{listed} ({share}). {fused}")
    else:
        yield Statement(
            f"{listed} ({share}). The loader has read them, and the model that was "
            "loaded has no layers for them: it is of another kind than the model that "
            "the adapter was trained on, or a newer program knows the names of this "
            "trainer."
        )
    rows = [
        # The metadata of safetensors stands below `__metadata__` in ckpt: the key
        # behind it is that of the trainer.
        f"{show(name.rpartition('__metadata__.')[2], 60)} = {show(str(node), 80)}"
        for key in _BASES
        for name, node in case.finds_value((key,))
    ]
    if rows:
        load = "" if fused is not None else " Load that model, or one of its kind."
        yield Statement(
            f"The file says what it was trained on: {and_more(rows, 3)}.{load}"
        )
    else:
        beginnings = dict.fromkeys(map(_first_words, names))
        listed = and_more([show(beginning, 60) for beginning in beginnings], 4)
        yield Statement(
            "The file does not say which model it was trained on. The layers that it "
            f"changes begin with {listed}.{_text_width(case)}"
        )


def _text_width(case: Case) -> str:
    """The sentence on the model that takes text of the width that an adapter has at its
    cross-attention, or an empty text.
    """
    _, widths = ranks_and_widths(case)
    if len(widths) != 1:
        return ""
    (width,) = widths
    if width not in TEXT_WIDTHS:
        return ""
    return (
        f" Its cross-attention takes text of width {width:,}, as {TEXT_WIDTHS[width]} "
        "has it: load such a model."
    )


def _left_over(known: set[str], names: list[str], case: Case) -> Iterator[Statement]:
    """Answer a conversion of diffusers that has taken the other names of an adapter,
    and prints the command that leaves these out.
    """
    layers = list(dict.fromkeys(_without_lora(name) for name in names if name in known))
    shown = and_more([show(layer, 80) for layer in layers], 4)
    yield Statement(
        f"The conversion has taken {len(names) - len(known):,} of the {len(names):,} "
        f"names of this file, and knows no layer for the other {len(known):,} "
        f"({shown}): its version does not know them, or the model has none, as one "
        "without guidance. Take a newer version of diffusers first."
    )
    words: list[str] = []
    for layer in layers[:_MOST_EXCLUDED]:
        words += ["--exclude", f"{layer}.*"]
    if len(layers) <= _MOST_EXCLUDED:
        yield from command_statements(
            "Without these layers, whose changes are lost then:",
            case.plan(("slim", *words)),
        )


_MOST_EXCLUDED = 4


def _without_lora(name: str) -> str:
    """The layer of a tensor of an adapter: `guidance_in.in_layer`."""
    return re.split(r"\.(?:lora_|alpha)", name)[0]


_INSIDE = ".base_model.model."
"""The beginning that PEFT puts before names, where another one stands before it."""


def _inside_statement(names: list[str], case: Case) -> Statement | None:
    """Say that the beginning of PEFT stands inside of the names, or return None:
    `transformer.base_model.model.blocks.0.`.
    """
    held = [name for name in names if _INSIDE in name]
    if len(held) != len(names):
        return None
    way = case.plan(("rename", "--sub", r"s/\.base_model\.model\././"))
    return Statement(
        f"{_INSIDE[1:]} stands inside of each name of this file ({show(held[0], 100)}"
        "): it is the beginning that PEFT puts around a model, and the trainer saved "
        "the wrapped model and not the model in it. No layer of the base has it. "
        "Without it the names are those that the loader looks for:",
        (),
        way.command,
    )


_OF_ATTENTION = re.compile(
    r"(?:^|[._])(?:attn\d?|attention|self_attn)[._](?:to_(?:q|k|v|out)|q(?:_proj)?"
    r"|k(?:_proj)?|v(?:_proj)?|out(?:_proj)?)(?:[._]|$)"
)
"""A projection of an attention, which some programs keep in one layer (qkv)."""


def _fused_statement(known: set[str], names: list[str]) -> str | None:
    """Say that a model has the attention of an adapter in another form, where a loader
    did not know its projections alone, or return None.
    """
    others = [name for name in names if name not in known]
    is_attention = all(_OF_ATTENTION.search(name) for name in known)
    if not known or not others or not is_attention:
        return None
    if any(_OF_ATTENTION.search(name) for name in others):
        return None
    return (
        f"They are the projections of the attention, and the other "
        f"{counted_noun(len(others), 'name')} of the file are not in the list: they "
        "were taken, so the model is the right one. It keeps q, k and v in one layer "
        "(qkv), or has other names there, and the adapter works in part alone. Take "
        "the trainer's conversion for this program (musubi-tuner and sd-scripts have "
        "some for ComfyUI), or a newer program."
    )


# Group 1 is the layer: `encoder.q_proj` of
# `base_model.model.encoder.q_proj.lora_A.weight`.
_LAYER = re.compile(r"^(?:base_model\.model\.)?(.{1,2000}?)\.lora_(?:A|down)\.")


def _base_of(names: list[str], case: Case) -> Iterator[Statement]:
    """Name the layers that an adapter changes, and the base model that its config
    names.
    """
    layers = list(
        dict.fromkeys(match[1] for name in names if (match := _LAYER.match(name)))
    )
    if layers:
        shown = and_more([show(layer, 120) for layer in layers], 4)
        yield Statement(
            f"It changes {counted_noun(len(layers), 'layer')}: {shown}. The base model "
            "has none of these names."
        )
    for _, node in case.finds_value(("base_model_name_or_path",))[:1]:
        yield Statement(
            f"adapter_config.json names {show(str(node), 120)} as the base model. Load "
            "that one, of the class that the adapter was trained on."
        )


# Read PEFT's `Target modules {'q_proj', 'v_proj'} not found in the base model.`
_TARGETS = re.compile(r"Target modules? ([^\n]{1,20000}?) not found in the base model")


def _modules_of_base(asked: str, case: Case) -> Iterator[Statement]:
    """Say which modules of a base have the names that PEFT looks for, and which names
    it has.
    """
    words = dict.fromkeys(re.findall(r"[\w.-]{1,100}", asked))
    layers = Counter[str]()
    for entry in case.survey.tensors:
        module, _, leaf = entry.name.rpartition(".")
        if leaf in ("weight", "qweight") and len(entry.tensor.shape) >= 2:
            layers[module.rpartition(".")[2]] += 1
    named = {word: layers[word.rpartition(".")[2]] for word in words}
    here = [f"{show(word, 60)} ×{count:,}" for word, count in named.items() if count]
    if here:
        yield Statement(
            f"This file has layers of that name: {and_more(here, 8)}. So the model "
            "that PEFT got is built otherwise than this file: another class or "
            "version, fused layers, or an adapter around it already. print(model) "
            "shows its names."
        )
        return
    lost = and_more([show(word, 60) for word in words], 8)
    text = f"No layer of this file is called {lost}."
    # A number names a place in a list, and no kind of layer.
    rows = [
        f"{show(name, 60)} ×{count:,}"
        for name, count in layers.most_common()
        if name and not name.isdigit()
    ]
    if rows:
        text += (
            f" Its matrices are in {and_more(rows, 12)}: target_modules of LoraConfig "
            'takes such names, and target_modules="all-linear" takes all linear layers.'
        )
    yield Statement(text)


def _value_head(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a trainer of rewards, which finds no value head."""
    heads = [entry.name for entry in case.survey.tensors if _HEADS.search(entry.name)]
    if heads:
        yield Statement(
            "This file holds a value head: "
            f"{and_more([show(name, 120) for name in heads], 4)}. The loader looks for "
            "it in value_head.safetensors or value_head.bin, or this is not the file "
            "that was loaded."
        )
        return
    is_adapter = any(".lora_" in entry.name for entry in case.survey.tensors)
    what = "an adapter of LoRA alone" if is_adapter else "a model without one"
    yield Statement(
        "No tensor of this file is a value head (v_head.summary of trl): it is "
        f"{what}, of another stage than the training of a reward model. Take the "
        "checkpoint of that stage, or the file value_head.safetensors that it wrote "
        "beside its own."
        + (
            " A training by PPO or of a reward model that begins from this model makes "
            "a new head, and then the message is expected: nothing is lost."
            if "Reward model is not correctly loaded" not in message.text
            else ""
        )
    )


_HEADS = re.compile(r"(?:^|\.)(?:v_head|value_head|reward_head)\.")


def _first_words(name: str) -> str:
    """The first words of a name: kohya writes `lora_unet_` and `lora_te_`, others a
    module.
    """
    first = name.partition(".")[0]
    return (
        "_".join(first.split("_")[:2])
        if first.startswith(("lora_", "lycoris_"))
        else first
    )


_WIDTHS = {
    768: "Stable Diffusion 1",
    1024: "Stable Diffusion 2",
    1280: "the second text encoder of SDXL",
}
"""The width of an embedding of textual inversion -> the models whose text encoder has
it.
"""
_MOST_EMBEDDED = 8
"""Tensors that the file of an embedding has at most."""


def _answer_embedding(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a loader of textual inversion: what the file holds for which text
    encoder.
    """
    shapes = {entry.name: entry.tensor.shape for entry in case.survey.tensors}
    is_small = 0 < len(shapes) <= _MOST_EMBEDDED
    vectors = {
        name: shape
        for name, shape in shapes.items()
        # An embedding is one vector or rows of vectors, and a scalar has no width.
        if is_small and shape[-1:] and len(shape) < 3
    }
    # Several dots in a name are modules inside of modules, which no embedding has.
    if not vectors or any(name.count(".") > 1 for name in vectors):
        yield Statement(
            f"This file has {counted_noun(len(shapes), 'tensor')}, and an embedding of "
            "textual inversion has one, or one for each text encoder: another file was "
            "loaded."
        )
        yield from load_statements(case)
        return
    rows = [f"{show(name, 80)} {list(shape)}" for name, shape in vectors.items()]
    yield Statement(f"This is an embedding of textual inversion: {and_more(rows, 4)}.")
    if {"clip_l", "clip_g"} <= vectors.keys():
        yield Statement(
            "It is for SDXL, whose two text encoders have a tensor each: clip_l is for "
            "the first, and clip_g for the second. load_textual_inversion of diffusers "
            "takes one at a time (text_encoder=pipe.text_encoder, "
            "tokenizer=pipe.tokenizer for clip_l, and those with _2 for clip_g); "
            "ComfyUI and A1111 take the file."
        )
        yield from load_statements(case, "Its tensors load so:")
        return
    widths = {shape[-1] for shape in vectors.values()}
    known = [
        f"{width:,} is the width of {_WIDTHS[width]}"
        for width in widths
        if width in _WIDTHS
    ]
    if known:
        yield Statement(
            f"{and_more(known, 2)}: it goes with a model of that kind alone."
        )
    single = [name for name, shape in vectors.items() if len(shape) == 1]
    if single:
        yield Statement(
            f"{show(single[0], 80)} is a single vector, of one dimension. A reader "
            "that wants rows takes its size for their number: give it [1, "
            f"{vectors[single[0]][0]}] (tensor.unsqueeze(0)), or take a newer version "
            "of the reader."
        )
    yield from load_statements(case, "Its tensors load so:")


FAMILIES = (
    Family(
        "embedding",
        (
            # Read diffusers' `Loaded state dictionary is incorrect: {'clip_g': …`.
            r"Loaded state dictionary is incorrect: ",
            r"loaded state dictionary of the textual embedding",
            # Read `learned_embeds.bin was trained on a model with an incompatible token
            # dimension: 768 vs 1.`
            r"incompatible token dimension: \d{1,6} vs\.? \d{1,6}",
            r"as neither textual inversion embedding nor diffuser concept",
        ),
        answer_from_statements(_answer_embedding),
        needs_open=True,
    ),
    Family(
        "valuehead",
        (
            # Read `Provided path (./checkpoint-1000) does not contain valuehead
            # weights.`
            r"does not contain value ?head weights",
            r"Reward model is not correctly loaded",
            r"no v_head weight is found",
        ),
        answer_from_statements(_value_head),
        needs_open=True,
    ),
    Family(
        "adapter",
        (
            r"No LoRA keys associated to ",
            r"lora key not loaded",
            r"contains unexpected module keys, it is likely that this Lora",
            r"Failed to match keys when loading Lora",
            r"LoRA keys? not (?:loaded|found)",
            r"Target modules? [^\n]{1,20000}? not found in the base model",
            r"Invalid LoRA checkpoint",
            r"state_dict`? should be empty at this point but has",
            r"No adapter loaded\. Please load an adapter",
            _OF_TORCHTUNE.pattern,
        ),
        answer_from_statements(_answer_adapter),
        _take_unloaded,
        needs_open=True,
    ),
)
