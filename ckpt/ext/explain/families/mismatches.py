"""Tensors whose shapes differ between a file and a model, and the reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isqrt

from ckpt.evidence.pretrained import base_of_adapter as pretrained_base
from ckpt.ext.explain.case import Case, Shapes, Statement, be_verb, command_statements
from ckpt.ext.explain.families.architectures import (
    compare_depths,
    groups_statement,
    input_statements,
    kernel_statement,
    name_architectures,
    scaled_rows,
    shifted_statement,
    width_statement,
)
from ckpt.ext.explain.families.beginnings import load_into_statement
from ckpt.ext.explain.families.computed import (
    computed_buffers,
    computed_shapes,
    swin_downsample,
)
from ckpt.ext.explain.families.flat import flat_statement, is_flat
from ckpt.ext.explain.families.heads import HEAD_WORDS, is_head
from ckpt.ext.explain.families.layers import (
    heads_statement,
    one_size_statement,
    renumbered_blocks,
)
from ckpt.ext.explain.families.places import find_in_order
from ckpt.ext.explain.families.quantized import SCALE
from ckpt.ext.explain.families.recorded import settings_of, settings_places
from ckpt.ext.explain.families.recurrent import (
    axes_statements,
    dimensions_statement,
    gates_statement,
    of_recurrent,
)
from ckpt.ext.explain.families.replaced import (
    Replaced,
    agent_statement,
    anchors_statement,
    is_of_anchors,
    replaced_parts,
)
from ckpt.ext.explain.families.spellings import adapter_rank, is_adapter, merged_layers
from ckpt.ext.explain.families.taken_apart import taken_apart
from ckpt.ext.explain.families.turned import (
    are_turned,
    places_statement,
    turned_statement,
)
from ckpt.ext.explain.families.verdicts import (
    inputs_statement,
    longer_lists,
    variant_statement,
    vocabulary_statement,
)
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.ext.explain.origins import name_origin
from ckpt.model.text import and_more, counted_noun, show

_VOCABULARY = re.compile(
    r"(?:^|\.)(?:embed_tokens|word_embeddings|tok_embeddings|token_embedding|wte"
    r"|lm_head|shared|embed_out)(?:\.|$)"
)

_TABLE = re.compile(
    r"(?:^|[._])(?:embeddings?|embed|emb|ebd|codebook)(?:_[a-z]{1,3})?\d{0,3}"
    r"(?:\.\d{1,4})?\.weight$"
    r"|_(?:emb(?:edding)?|ebd)\.weight$"
)
"""The name of a table of rows that a number chooses: of words, codes, classes, pictures
or cells.
"""

_POSITIONS = re.compile(
    r"(?:^|[._])(?:pos_embed|embed_positions|position_embeddings?|positional_embedding"
    r"|wpe|relative_position)"
)

# A larger factor is no number of ranks, and the answer goes on to other reasons.
_MOST_RANKS = 64

ADDED = re.compile(
    r"\.(?:modules_to_save\.[^.]+|base_layer)(?=\.)|(?<=lora_[AB])\.[^.]+(?=\.weight$)"
    r"|(?<=lora_embedding_[AB])\.[^.]+$|(?<=lora_magnitude_vector)\.[^.]+(?=\.|$)"
)
"""Parts that PEFT puts into the names of a model, and leaves out of the file of an
adapter.
"""

CONVERTED = "input_blocks.0.0.weight"
"""The first convolution of a UNet in the names of its authors."""


def is_converted(name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether a name is the one that diffusers gives the first convolution of a
    file in the names of the authors.
    """
    is_first = name in ("conv_in.weight", "unet.conv_in.weight")
    return (
        is_first
        and name not in shapes
        and any(other.endswith(CONVERTED) for other in shapes)
    )


def mismatch_statements(
    message: Message,
    case: Case,
    rows: Sequence[Shapes],
    shapes: dict[str, tuple[int, ...]],
) -> Iterator[Statement]:
    said = {row.name: row.checkpoint for row in message.mismatched}
    other = [
        row.name for row in rows if row.file is not None and row.file != said[row.name]
    ]
    lost = [row.name for row in rows if row.file is None]
    if other:
        yield Statement(
            f"{counted_noun(len(other), 'tensor')} "
            f"{'has' if len(other) == 1 else 'have'} another shape in this file than "
            "in the message. Is it the file that was loaded?",
            tuple(other),
        )
    if lost:
        yield Statement(
            f"{counted_noun(len(lost), 'tensor')} {be_verb(lost)} not in this file.",
            tuple(lost),
        )
    same = [row for row in message.mismatched if row.name not in other]
    is_built_otherwise = False
    # bitsandbytes writes absmax and quant_map below the name of the weight.
    packed = [
        row
        for row in same
        if any(f"{row.name}.{part}" in shapes for part in ("absmax", "quant_map"))
    ]
    if packed and not case.is_useless:
        yield Statement(
            f"{counted_noun(len(packed), 'weight')} of this file "
            f"{'is' if len(packed) == 1 else 'are'} packed by bitsandbytes: "
            f"{show(packed[0].name, 100)} is a row of codes, beside its absmax and "
            "quant_map, and the program built plain layers. It takes a loader that "
            "knows them (ComfyUI: the node of ComfyUI_bitsandbytes_NF4 in place of "
            "Load Checkpoint or Load Diffusion Model), or a file that is not packed."
        )
        yield from command_statements(
            "The floats that the codes stand for, for plain layers:",
            case.plan(("dequantized",)),
        )
        return
    # Other places in a list explain all shapes, which was said with the keys.
    if places_statement(message.missing, message.unexpected) is not None:
        return
    # Layers that a list counts otherwise have the shapes of others by their old names.
    if _are_renumbered(message, shapes):
        return
    if same and not case.is_useless:
        # Each of these explains all shapes at once, so nothing is said beside them.
        flat = flat_statement(same)
        told = [
            *([] if flat is None else [flat]),
            *taken_apart(same),
            *_of_quantizers(same, shapes),
            *merged_layers(message, shapes, case),
            *name_architectures(message, shapes),
            *adapter_rank(message, case),
        ]
        if told:
            yield from told
            return
        # nnU-Net prints "Pretrained model: [..]; your network: [..]" in one line.
        if "your network:" in message.text:
            yield Statement(
                "nnU-Net builds a network by the plans of its dataset, and these were "
                "made from other plans (patch size, spacing): kernels and strides "
                "differ. Give both the same plans: "
                "nnUNetv2_move_plans_between_datasets copies those of the target to "
                "the dataset of the pretraining, which is then preprocessed and "
                "trained with them."
            )
        yield from computed_shapes(same, message, case)
        moved = swin_downsample(message, shapes, case)
        renumbered = frozenset() if moved is None else moved[0]
        buffers = set(computed_buffers([row.name for row in same]))
        same = [
            row
            for row in same
            if row.name not in buffers and row.name not in renumbered
        ]
        losses = [row for row in same if _OF_LOSS.match(row.name)]
        if losses:
            yield _loss_statement(losses)
            same = [row for row in same if row not in losses]
        if not same:
            yield load_into_statement(case.survey, "So all else loads:")
            return
        # A recurrent layer of another kind explains its own rows alone.
        gates = gates_statement(same)
        if gates is not None:
            yield gates
            same = [row for row in same if not of_recurrent(row.name)]
        if not same:
            return
        is_sole = len(case.survey.candidates) == 1
        turned = list(
            axes_statements(same, case.survey.load.expression if is_sole else None)
        )
        if turned and not message.missing:
            yield from turned
            return
        dimensions = dimensions_statement(same)
        # Dimensions of 1 alone change no value, and have their answer at the end.
        if dimensions is not None and not all(_is_reshaped(row) for row in same):
            yield dimensions
            return
        # A list that is longer on one side is a reason by itself, said with its keys.
        is_longer = longer_lists(message, message.missing, message.unexpected, shapes)
        kernels = (
            None
            if is_longer or all(_is_reshaped(row) for row in same)
            else kernel_statement(same)
        )
        if kernels is not None:
            yield kernels
        inputs = inputs_statement(message)
        variant = variant_statement(message, shapes)
        # A table whose name says vocabulary has its sentence in _shape_reasons; the
        # sizes alone tell the others.
        is_named = any(_VOCABULARY.search(row.name) for row in same)
        words = None if is_named else vocabulary_statement(same)
        told_first = [row for row in (variant, inputs, words) if row is not None]
        is_whole = inputs is not None or words is not None
        by_settings = list(settings_of(same, case))
        heads = heads_statement(same, shapes)
        if heads is not None:
            by_settings.insert(0, heads)
        reasons = [
            *told_first,
            *([] if is_whole else _shape_reasons(same, shapes, message, case)),
            *by_settings,
            *_recorded_settings(message, case),
        ]
        yield from reasons
        is_built_otherwise = bool(by_settings) and not message.missing
        is_told = kernels is not None or reasons or is_longer
        if not is_told and not all(map(_is_reshaped, same)):
            yield from one_size_statement(same)
        if all(_is_reshaped(row) for row in same):
            yield from _reshape_statements(same, case)
            return
    # The following cases would make the last sentence false: load what fits.
    if case.found("tensor-parallel") or any(ADDED.search(row.name) for row in rows):
        return
    # diffusers gave this layer another name, so the names of the file do not fit.
    if any(is_converted(row.name, shapes) for row in rows):
        return
    # An adapter is less than a tenth of its model, which load_into refuses.
    if is_adapter(shapes) or pretrained_base(case.survey.checkpoint) is not None:
        return
    if not _is_enough(message, shapes) or is_built_otherwise:
        return
    # A load of what fits would leave the whole table untrained.
    if same and all(_is_own_table(row) for row in same):
        return
    # img_in of Flux differs between its variants, and each is another model.
    if len(same) == 1 and same[0].name.endswith("img_in.weight"):
        return
    if longer_lists(message, message.missing, message.unexpected, shapes):
        return
    # Another network at one place, or other anchors, has to be built first.
    if _replaced_in(message, shapes) or anchors_statement(same) is not None:
        return
    if any(_is_other_attention(row) for row in same):
        return
    if shifted_statement(message) is not None or groups_statement(same) is not None:
        return
    # Square matrices would be taken as they are, and positions be left untrained.
    if are_turned(same) or any(_has_equal_grids(row) for row in same):
        return
    if (
        not case.is_useless
        and not _is_of_a_rank(same)
        and not any(_is_empty(row) for row in same)
    ):
        yield load_into_statement(
            case.survey, "Load what fits, and keep the model's own values elsewhere:"
        )


def _are_renumbered(message: Message, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether layers that pair in their order explain every shape."""
    rest = [name for name in message.unexpected if name in shapes]
    absent = [name for name in message.missing if name not in shapes]
    found = find_in_order(absent, rest, shapes, message)
    return bool(found.rules) and all(
        row.name in found.partners for row in message.mismatched
    )


_OF_LOSS = re.compile(
    r"(?:\w{1,60}\.){0,2}\w{0,60}(?:[Cc]riterion|[Ll]oss(?:es|_fn|_func)?)\."
)
"""The beginning of the names of parameters that a loss has."""


def _loss_statement(rows: Sequence[Mismatch]) -> Statement:
    """Say that tensors of other shapes belong to the loss of a training."""
    names = and_more([show(row.name, 80) for row in rows], 3)
    text = (
        f"By its name {names} belongs"
        if len(rows) == 1
        else f"By their names {names} belong"
    )
    return Statement(
        f"{text} to the loss of the training, which a model that only predicts does "
        "without. The code that saved built it in another size, by its version or its "
        "settings."
    )


_EMBEDDING = re.compile(r"(?:^|[._])(?:\w*embed\w*|wte|shared)(?:[._]|$)")


def _alphabet_statement(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> Statement | None:
    """Say that the symbols of an output layer differ, where a file has no table of
    words beside it, or return None.
    """
    if not all("lm_head" in row.name.split(".") for row in rows):
        return None
    # An adapter has the layers that it trains, and its base has the table.
    if any(ADDED.search(row.name) for row in rows) or is_adapter(shapes):
        return None
    count = rows[0].checkpoint[0]
    if any(
        _EMBEDDING.search(name) and size[:1] == (count,)
        for name, size in shapes.items()
    ):
        return None
    return Statement(
        f"The output layer has {count:,} symbols in the checkpoint and "
        f"{rows[0].model[0]:,} in the model, and the file has no table of words: "
        "another alphabet, as of a recognizer of speech (CTC). To use the model take "
        "the tokenizer (vocab.json) of the run that saved. To train it with the new "
        "symbols, from_pretrained with ignore_mismatched_sizes=True builds this layer "
        "anew and loads all else."
    )


def _room_text(row: Mismatch, case: Case) -> str:
    """The sentence on the room that a program makes for other tokens."""
    # fairseq adds a token for each language of its settings, and has no way to make
    # room.
    languages = [
        name
        for name, node in case.finds_value(("langs",))
        if isinstance(node, str) and node
    ]
    if languages:
        shown = and_more([show(name, 60) for name in languages], 2)
        return (
            f" The file has its languages at {shown} (--langs), and the program adds a "
            "token for each: build the model with the same list and dictionary."
        )
    origin = name_origin(case.survey) or ""
    if "fairseq" in origin:
        return " Take the dictionary of the run that saved (dict.txt)."
    return (
        f" In transformers model.resize_token_embeddings({row.checkpoint[0]}) before "
        "the load makes room."
    )


_WITHOUT_DATA = (
    " The model has none: it was built without the data, or without the list or the "
    "number that stands for it."
)
_MOST_TABLES = 1
"""Sizes of tables that have a sentence of their own."""


def _is_own_table(row: Mismatch) -> bool:
    """Tell whether a tensor is a table of symbols, speakers or classes, which a model
    needs whole, and of which only the rows differ.
    """
    return (
        bool(_TABLE.search(row.name))
        and not _VOCABULARY.search(row.name)
        # A head has rows for its classes too, and a sentence of its own.
        and not HEAD_WORDS.search(row.name.rpartition(".")[0])
        and row.checkpoint[1:] == row.model[1:]
    )


def _is_enough(message: Message, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether more fits than what load_into refuses: a tenth of the parameters of
    the model.
    """
    # Tensors of other shapes are not loaded, so they count for the model alone.
    differing = {row.name for row in message.mismatched}
    left_over = differing.union(message.unexpected)
    fitting = sum(
        _shape_numel(shape) for name, shape in shapes.items() if name not in left_over
    )
    others = sum(_shape_numel(row.model) for row in message.mismatched)
    return 0 < fitting + others <= 10 * fitting


def _recorded_settings(message: Message, case: Case) -> Iterator[Statement]:
    """Say where the settings of the run are in the file, for a model that lacks whole
    layers of it and has other sizes.
    """
    if not message.unexpected:
        return
    places = [show(place, 80) for place in settings_places(case)]
    if places:
        yield Statement(
            "Layers that the model lacks, beside other sizes, are of another version "
            "or config of it. The settings of the run that saved are in this "
            f"checkpoint, at {and_more(places, 3)}: build the model from them, with a "
            "version of its code that knows them."
        )


def _shape_reasons(
    rows: Sequence[Mismatch],
    shapes: dict[str, tuple[int, ...]],
    message: Message,
    case: Case,
) -> Iterator[Statement]:
    """The reasons that the shapes themselves show."""
    empty = [
        row
        for row in rows
        if _shape_numel(row.checkpoint) < _shape_numel(row.model)
        and row.checkpoint in ((0,), (1,))
    ]
    # ZeRO-3 leaves small parameters as they are, and empties the large ones.
    largest = max(map(_shape_numel, shapes.values()), default=0)
    if empty and (
        any(row.checkpoint == (0,) for row in empty)
        or max(_shape_numel(row.model) for row in empty) >= largest
    ):
        yield Statement(
            f"{counted_noun(len(empty), 'tensor')} of the checkpoint "
            f"{'is' if len(empty) == 1 else 'are'} empty, as DeepSpeed ZeRO-3 leaves "
            "parameters whose values lie with all ranks. The weights are elsewhere."
        )
        return
    groups = groups_statement(rows)
    if groups is not None:
        yield groups
        return
    # A rank has all the names of its model.
    if _is_of_a_rank(rows) and not (message.missing or message.unexpected):
        yield Statement(
            f"Each has one dimension that is 1/{_rank_count(rows[0])} of the model's: "
            f"this is the file of one rank of {_rank_count(rows[0])} of tensor "
            "parallelism, and no model by itself."
        )
        return
    wide = scaled_rows(rows)
    if wide:
        yield width_statement(wide)
    rows = [row for row in rows if row not in wide]
    agent = agent_statement(rows)
    if agent is not None:
        yield agent
        return
    anchors = anchors_statement(rows)
    if anchors is not None:
        yield anchors
        rows = [row for row in rows if not is_of_anchors(row)]
    words = [
        row
        for row in rows
        if _VOCABULARY.search(row.name) and row.checkpoint[1:] == row.model[1:]
    ]
    # Tables of one model that disagree about the number of words are no vocabulary.
    if words and len({(row.checkpoint[:1], row.model[:1]) for row in words}) == 1:
        row = words[0]
        yield _alphabet_statement(words, shapes) or Statement(
            f"The vocabulary has {row.checkpoint[0]:,} rows in the checkpoint and "
            f"{row.model[0]:,} in the model: another tokenizer, dictionary or "
            f"config.json, or tokens that were added.{_room_text(row, case)}"
        )
    vocabularies = {(row.checkpoint[:1], row.model[:1]) for row in words}
    tabled = [
        row
        for row in rows
        if not _VOCABULARY.search(row.name)
        and _TABLE.search(row.name)
        and not HEAD_WORDS.search(row.name.rpartition(".")[0])
    ]
    tables = {
        (row.checkpoint[:1], row.model[:1])
        for row in tabled
        if row.checkpoint[1:] == row.model[1:]
    }
    # Outputs with as many rows as the vocabulary, and positions, are no head.
    others = [
        row
        for row in rows
        if (row.checkpoint[:1], row.model[:1]) not in vocabularies
        and not _POSITIONS.search(row.name)
    ]
    heads = [
        row
        for row in others
        if (row.checkpoint[:1], row.model[:1]) not in tables
        and is_head(row, rows, shapes)
    ]
    # A size that is also one of inputs is a width of the network, and no classes.
    inner = {
        sizes
        for row in rows
        for sizes in zip(row.checkpoint[1:], row.model[1:], strict=False)
        if sizes[0] != sizes[1]
    }
    # No head has a batch norm behind it.
    inner |= {
        (row.checkpoint[0], row.model[0])
        for row in rows
        if _STATISTIC.search(row.name) and row.checkpoint and row.model
    }
    heads = [row for row in heads if (row.checkpoint[0], row.model[0]) not in inner]
    # The outputs of inner layers are another width too.
    if wide:
        heads = [row for row in heads if HEAD_WORDS.search(row.name.rpartition(".")[0])]
    # A replaced network explains longer lists, and a head may differ beside it.
    replaced = _replaced_in(message, shapes)
    is_longer = not replaced and longer_lists(
        message, message.missing, message.unexpected, shapes
    )
    # In a list that moved or is longer equal names are other layers, and no heads.
    is_moved = renumbered_blocks(message.missing, message.unexpected)
    if heads and not is_moved and not is_longer:
        row = heads[0]
        # With other layers that differ, lack or are left over, the models are not one
        # but for the last layer.
        # A table of labels has one row more, for no class.
        one_more = ((row.checkpoint[0] + 1,), (row.model[0] + 1,))
        rest = [other for other in others if other not in heads]
        is_alone = (
            all((other.checkpoint[:1], other.model[:1]) == one_more for other in rest)
            and not message.missing
            and not message.unexpected
        )
        # A model of another depth may have another number of classes, too.
        is_deeper = not is_alone and any(True for _ in compare_depths(message, shapes))
        layers = {head.name.rpartition(".")[0] for head in heads}
        which = (
            "The last layer" if len(layers) == 1 else f"These {len(layers):,} layers"
        )
        # A convolution may have a map for each joint. Only its name tells classes.
        maps = max((len(head.model) for head in heads), default=0) > 2
        noun = (
            "classes"
            if not maps or any(_OF_CLASSES.search(head.name) for head in heads)
            else "outputs, as of classes, joints or maps"
        )
        if "fairseq" in (name_origin(case.survey) or ""):
            noun = "symbols or classes, as the dictionary of the run has them"
        alone = (
            f": another number of {noun}. {which} cannot be loaded, and the others can."
            if is_alone
            else ": another number of classes, too."
            if is_deeper or replaced
            else f" ({show(row.name, 120)})."
        )
        # Outputs of a model of sound may be the bins of a spectrum, and no classes.
        yield Statement(
            _bins_text(row)
            or f"The checkpoint has {row.checkpoint[0]:,} outputs where the model has "
            f"{row.model[0]:,}{alone}"
        )
    if len(tables) > _MOST_TABLES:
        listed = [
            f"{show(row.name, 100)} ({row.checkpoint[0]:,} and {row.model[0]:,})"
            for row in tabled
            if row.checkpoint[1:] == row.model[1:]
        ]
        yield Statement(
            f"{counted_noun(len(listed), 'table')} have other numbers of rows in the "
            f"checkpoint and in the model: {and_more(listed, 4)}. A number of rows is "
            "counted in the data of a run (symbols, words or names of a vocabulary, "
            "pictures, cells of a grid in a box), or follows from its settings. Take "
            "the lists and the bounds that go with the checkpoint, for those of other "
            "data give each row another meaning."
        )
        tables = set()
    for here, there in sorted(tables):
        same = [
            row.name
            for row in others
            if (row.checkpoint[:1], row.model[:1]) == (here, there)
        ]
        if not same:
            continue
        named = and_more([show(name, 120) for name in same], 3)
        yield Statement(
            f"{named} {'has' if len(same) == 1 else 'have'} {here[0]:,} rows in the "
            f"checkpoint and {there[0]:,} in the model: a size that the settings or "
            "the data of a run give, as the number of its symbols, speakers, classes "
            f"or pictures.{_WITHOUT_DATA if not there[0] else ''} Build it with "
            f"{here[0]:,}: the settings, and the list of the symbols or names, are "
            "those of the run that saved. A load of what fits leaves the whole table "
            "untrained."
        )
    windows = [
        row
        for row in rows
        if _WINDOW.search(row.name) and len(row.checkpoint) == len(row.model) == 1
    ]
    # One window is named, for outputs beside it may follow from the same settings.
    for row in windows[:1]:
        yield Statement(
            f"{show(row.name, 100)} is the window of a spectrum, by its name: "
            f"{row.checkpoint[0]:,} samples in the checkpoint and {row.model[0]:,} in "
            "the model. Settings of the sound give it (win_length, n_fft, block_size): "
            "take those that go with the checkpoint, or the checkpoint that goes with "
            "these settings. What has other outputs beside may follow from it."
        )
    turned = turned_statement(rows, message, shapes, case)
    if turned is not None:
        yield turned
    windows_of_bias = _bias_statement(rows)
    if windows_of_bias is not None:
        yield windows_of_bias
        rows = [row for row in rows if not _BIAS_TABLE.search(row.name)]
    for row in [
        row
        for row in rows
        if _POSITIONS.search(row.name)
        and _count_positions(row.checkpoint) != _count_positions(row.model)
    ][:1]:
        extra = _tokens_statement(row, message)
        if extra is not None:
            yield extra
            continue
        counts = " and ".join(
            f"{_positions_text(shape)} in the {side}"
            for side, shape in (("checkpoint", row.checkpoint), ("model", row.model))
        )
        yield Statement(
            f"Position embeddings differ: {counts}.{_image_text(row, shapes)} Build "
            "the model with the image size, or the greatest length, of the checkpoint, "
            "or interpolate them. A load of what fits leaves them untrained."
        )
    yield from input_statements(rows, shapes)


_BIAS_TABLE = re.compile(r"(?:^|[._])relative_position_bias_table$")
"""The table of a Swin Transformer, with a row for each way from one place of a window
to another one.
"""


def _bias_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say which windows the tables of relative positions are of, or return None."""
    tables = [row for row in rows if _BIAS_TABLE.search(row.name)]
    if not tables or any(
        len(row.checkpoint) != 2 or len(row.model) != 2 for row in tables
    ):
        return None
    row = tables[0]
    here, there = _window_text(row.checkpoint[0]), _window_text(row.model[0])
    if not here or not there:
        return None
    text = (
        f"The tables of relative positions are of another window: {row.checkpoint[0]:,}"
        f" rows in the checkpoint ({here}) and {row.model[0]:,} in the model ({there})."
    )
    if _is_other_attention(row):
        return Statement(
            f"{text} So the attention of the file goes along one dimension at a time "
            "in another way than that of the model: they are two kinds of networks, "
            "or two versions of one. Build the one that saved."
        )
    return Statement(
        f"{text} Build the model with the window of the checkpoint (window_size), or "
        "resize the tables, as the code of Swin for fine-tuning does. A load of what "
        "fits leaves them untrained."
    )


def _is_other_attention(row: Mismatch) -> bool:
    """Tell whether a table of relative positions is of a window in one dimension on one
    side, and in two on the other one.
    """
    sides = [isqrt(shape[0]) ** 2 == shape[0] for shape in (row.checkpoint, row.model)]
    return _BIAS_TABLE.search(row.name) is not None and sides[0] != sides[1]


def _window_text(count: int) -> str:
    """The window that has so many relative positions: 2w - 1 along each dimension.
    Empty where there is none.
    """
    side = isqrt(count)
    if side * side == count and side % 2:
        return f"a window of {(side + 1) // 2} x {(side + 1) // 2}"
    return f"a window of {(count + 1) // 2} in one dimension" if count % 2 else ""


def _replaced_in(
    message: Message, shapes: dict[str, tuple[int, ...]]
) -> list[Replaced]:
    """The parts that are another network in the file than in the model."""
    here = [name for name in message.unexpected if name in shapes]
    absent = [name for name in message.missing if name not in shapes]
    return replaced_parts(absent, here, shapes)


def _of_quantizers(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say that scales and zero points differ, which a quantizer writes beside its codes
    for each group of inputs.
    """
    parts = [row.name.rpartition(".") for row in rows]
    # A quantizer that packs codes writes them as qweight beside its scales.
    if not all(
        SCALE.search(last) and f"{layer}.qweight" in shapes for layer, _, last in parts
    ):
        return
    groups = {
        (row.checkpoint[0], row.model[0])
        for row in rows
        if len(row.checkpoint) == len(row.model) == 2
    }
    if all(row.checkpoint == row.model[::-1] for row in rows):
        yield Statement(
            "Each is the transpose of the model's: an older layout of GPTQ. Take the "
            "program of the time, or quantize anew."
        )
    elif len(groups) == 1:
        ((here, there),) = groups
        yield Statement(
            "They are scales of a quantizer, and the groups of inputs that share one "
            f"differ: {here:,} in the checkpoint and {there:,} in the model. Build the "
            "model with the group size of the checkpoint (1 group: group_size=-1)."
        )
    else:
        yield Statement(
            "They are scales of a quantizer: build the model with the settings that "
            "the checkpoint was quantized with."
        )


def _is_reshaped(row: Mismatch) -> bool:
    """Tell whether two shapes hold the same elements in the same order, but for
    dimensions of 1.
    """
    return [size for size in row.checkpoint if size != 1] == [
        size for size in row.model if size != 1
    ]


def _reshape_statements(rows: Sequence[Mismatch], case: Case) -> Iterator[Statement]:
    """Print the line that gives each tensor the shape of the model's."""
    text = (
        f"{counted_noun(len(rows), 'tensor')} {'has' if len(rows) == 1 else 'have'} "
        "the same elements in another shape: dimensions of 1 alone differ."
    )
    # With several models in a file the line would have to choose one.
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) > 1:
        yield Statement(text)
        return
    shaped = (
        "state.update((name, state[name].reshape(value.shape)) for name, value in "
        "model.state_dict().items() if name in state)"
    )
    yield Statement(
        f"{text} So they load with their values:",
        (),
        f"state = {load}; {shaped}; model.load_state_dict(state)",
    )


def _is_empty(row: Mismatch) -> bool:
    """Tell whether a tensor has nothing, as ZeRO-3 leaves it: shape [0], or [1] in
    older releases.
    """
    return row.checkpoint in ((0,), (1,)) and _shape_numel(
        row.checkpoint
    ) < _shape_numel(row.model)


def _positions_text(shape: Sequence[int]) -> str:
    """The number of positions of an embedding, and the square of patches that it is:
    `257 (16 x 16 and 1 more)`.
    """
    count, side = _count_positions(shape), _grid_side(shape)
    if not side:
        return f"{count:,}"
    more = count - side * side
    return f"{count:,} ({side} x {side}{f' and {more} more' if more else ''})"


def _has_equal_grids(row: Mismatch) -> bool:
    """Tell whether both sides have one grid of patches, and other places beside it."""
    side = _grid_side(row.checkpoint)
    return bool(_POSITIONS.search(row.name)) and 0 < side == _grid_side(row.model)


def _tokens_statement(row: Mismatch, message: Message) -> Statement | None:
    """Say that one side has places for more tokens beside an equal grid of patches, or
    return None.
    """
    if not _has_equal_grids(row):
        return None
    here, there = _count_positions(row.checkpoint), _count_positions(row.model)
    side = _grid_side(row.checkpoint)
    more, less = ("model", "checkpoint") if there > here else ("checkpoint", "model")
    count = abs(there - here)
    places = "place" if count == 1 else "places"
    said = message.missing if there > here else message.unexpected
    tokens = [name for name in said if "token" in name]
    of = f" ({and_more([show(name, 60) for name in tokens], 3)})" if tokens else ""
    return Statement(
        f"The positions of both are for {side} x {side} patches, so the image size is "
        f"one. The {more} has {count} {places} more, for a token{of} that the {less} "
        "does without: a class token, one of distillation, or registers. Build the "
        "model with the tokens of the run that saved, by its options or its class. "
        "Interpolation would give no place its own value."
    )


_PATCHES = re.compile(r"(?:^|\.)patch_embed(?:ding)?s?\.(?:proj|projection)\.weight$")


def _image_text(row: Mismatch, shapes: dict[str, tuple[int, ...]]) -> str:
    """The sentence on the sizes of images that two grids of patches have, or an empty
    text.
    """
    sides = [_grid_side(shape) for shape in (row.checkpoint, row.model)]
    kernels = {
        shape[-1]
        for name, shape in shapes.items()
        if _PATCHES.search(name) and len(shape) == 4 and shape[2] == shape[3]
    }
    # With patches of two sizes nothing says which grid is meant.
    if not all(sides) or len(kernels) != 1:
        return ""
    (patch,) = kernels
    here, there = (side * patch for side in sides)
    return (
        f" With the patches of this file, of {patch} x {patch}, these are images of "
        f"{here} x {here} and of {there} x {there}."
    )


def _grid_side(shape: Sequence[int]) -> int:
    """The side of the square of patches that some positions are, or 0."""
    count = _count_positions(shape)
    for more in (0, 1, 2, 5):
        side = isqrt(max(0, count - more))
        if side > 2 and side * side == count - more:
            return side
    return 0


def _count_positions(shape: Sequence[int]) -> int:
    """The number of positions of an embedding: a table of rows, or a grid of them."""
    # A grid of positions has the shape [1, height, width, channels].
    if len(shape) == 4 and shape[0] == 1 and shape[1] == shape[2]:
        return shape[1] * shape[2]
    return shape[-2] if len(shape) > 1 else 0


def _shape_numel(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _rank_count(row: Mismatch) -> int:
    """The number of ranks among which the only dimension that differs is
    divided, or 0.
    """
    # Tensor parallelism divides one dimension alone, and into equal parts.
    pairs = [
        (one, two)
        for one, two in zip(row.checkpoint, row.model, strict=False)
        if one != two
    ]
    if len(row.checkpoint) != len(row.model) or len(pairs) != 1:
        return 0
    one, two = pairs[0]
    return two // one if one and two % one == 0 and two > one else 0


def _is_of_a_rank(rows: Sequence[Mismatch]) -> bool:
    """Tell whether all differ by the same number of ranks, along more than one
    dimension or in many layers.
    """
    # FSDP divides its flat parameters, and tensor parallelism has none.
    if any(is_flat(row.name) for row in rows):
        return False
    # It divides no convolution of pictures, and no batch norm, which have a width.
    if any(
        len(row.model) > _MOST_DIVIDED or _STATISTIC.search(row.name) for row in rows
    ):
        return False
    counts = {_rank_count(row) for row in rows}
    if (
        len(counts) != 1
        or not 1 < max(counts) <= _MOST_RANKS
        or len(rows) < _LEAST_DIVIDED
    ):
        return False
    # Ranks divide layers of several names. One name may be another setting.
    return len({row.name.rpartition(".")[0].rpartition(".")[2] for row in rows}) > 1


_MOST_DIVIDED = 3
"""Dimensions of a tensor that ranks of tensor parallelism divide."""
_STATISTIC = re.compile(r"(?:^|\.)running_(?:mean|var)$")
"""The name of a statistic of a batch norm."""
_LEAST_DIVIDED = 3
"""Tensors that must all be divided alike: a model of half the width has the same shapes
in a few.
"""


def _bins_text(row: Mismatch) -> str:
    """The sentence for outputs that are the bins of a spectrum on both sides, one more
    than half of a transform, or an empty text.
    """
    here, there = (2 * (shape[0] - 1) for shape in (row.checkpoint, row.model))
    if here not in _TRANSFORMS or there not in _TRANSFORMS:
        return ""
    return (
        f"The checkpoint has {row.checkpoint[0]:,} outputs where the model has "
        f"{row.model[0]:,} ({show(row.name, 120)}): by their numbers the bins of a "
        f"spectrum, of a transform of {here:,} and of {there:,} samples. Where the "
        f"model is one of sound, set n_fft (filter_length) to {here:,}, as the run "
        "that saved had it."
    )


_TRANSFORMS = (256, 512, 1024, 2048, 4096)
"""Lengths of a Fourier transform that programs for sound use."""

_OF_CLASSES = re.compile(r"(?i)cls|class|logit|score|seg|fc|out[._]?conv|predict")
"""Words in the name of a convolution that has a map for each class."""

_WINDOW = re.compile(r"(?:^|[._])window$")
"""The name of the window of a transform, a buffer."""
