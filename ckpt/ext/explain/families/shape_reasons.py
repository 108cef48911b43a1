"""The reasons that the shapes of a file and of a model show by themselves: another
vocabulary, another number of classes, another table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from math import isqrt
from typing import TypeAlias

from ckpt.ext.explain.case import Case, Statement, finding_statements
from ckpt.ext.explain.families.architectures import (
    compare_depths,
    groups_statement,
    input_statements,
    part_of_wide,
    scaled_rows,
    width_statement,
)
from ckpt.ext.explain.families.divided import (
    STATISTIC,
    is_empty,
    is_of_a_rank,
    rank_count,
    shape_numel,
)
from ckpt.ext.explain.families.heads import HEAD_WORDS, is_head
from ckpt.ext.explain.families.items import hidden_statement, multiples_statement
from ckpt.ext.explain.families.layers import (
    differing_sizes,
    one_size_statement,
    place_text,
    renumbered_blocks,
)
from ckpt.ext.explain.families.positions import (
    BIAS_TABLE,
    OFFSETS_LINE,
    POSITIONS,
    bias_statement,
    is_of_offsets,
    offsets_statement,
    positions_statement,
)
from ckpt.ext.explain.families.replaced import (
    Replaced,
    agent_statement,
    anchors_statement,
    is_of_anchors,
    replaced_parts,
)
from ckpt.ext.explain.families.spellings import ADDED, is_adapter
from ckpt.ext.explain.families.turned import (
    turned_statement,
)
from ckpt.ext.explain.families.verdicts import (
    longer_lists,
)
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.ext.explain.origins import name_origin
from ckpt.model.text import and_more, be_verb, counted_noun, show

VOCABULARY = re.compile(
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
_WITHOUT_LIST = (
    " One row is what a program builds by default, or for an empty list: where a file "
    "has the dictionary, the vocabulary or the names, it was not found, or is that of "
    "other data."
)


def _lacking_text(count: int) -> str:
    """The sentence on a table of the model that has next to no rows."""
    return {0: _WITHOUT_DATA, 1: _WITHOUT_LIST}.get(count, "")


_MOST_TABLES = 1
"""Sizes of tables that have a sentence of their own."""


def is_own_table(row: Mismatch, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether a tensor is a table of symbols, speakers or classes, which a model
    needs whole, and of which only the rows differ.
    """
    return (
        bool(_TABLE.search(row.name))
        # A table has no bias: `img_embedding` with one is a linear layer.
        and f"{row.name.rpartition('.')[0]}.bias" not in shapes
        and not VOCABULARY.search(row.name)
        # A head has rows for its classes too, and a sentence of its own.
        and not HEAD_WORDS.search(row.name.rpartition(".")[0])
        and row.checkpoint[1:] == row.model[1:]
    )


def is_fed_table(row: Mismatch, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether a tensor is a table whose rows go into a recurrent layer: it has no
    bias, and its columns are what that layer takes.
    """
    layer, _, last = row.name.rpartition(".")
    if last != "weight" or len(row.checkpoint) != 2 or f"{layer}.bias" in shapes:
        return False
    return row.checkpoint[1:] == row.model[1:] and any(
        name.endswith("weight_ih_l0") and shape[1:] == row.checkpoint[1:]
        for name, shape in shapes.items()
    )


def shape_reasons(
    rows: Sequence[Mismatch],
    shapes: dict[str, tuple[int, ...]],
    message: Message,
    case: Case,
) -> Iterator[Statement]:
    """The reasons that the shapes themselves show."""
    sole = _sole_reason(rows, shapes, message)
    if sole is not None:
        yield sole
        return
    wide = scaled_rows(rows)
    if wide:
        is_same = not (message.missing and message.unexpected)
        beside = part_of_wide(wide, shapes) if len(wide) == len(rows) else None
        yield width_statement(wide, beside, is_same=is_same)
    rows = [row for row in rows if row not in wide]
    stages = _stages_statement(rows)
    whole = hidden_statement(rows, shapes)
    if stages is None:
        whole = whole or multiples_statement(rows)
    if whole is not None:
        yield whole
        return
    agent = agent_statement(rows)
    if agent is not None:
        yield agent
        return
    anchors = anchors_statement(rows)
    if anchors is not None:
        yield anchors
        rows = [row for row in rows if not is_of_anchors(row)]
    counted = _grid_statement(rows) or _counted_statement(rows)
    if counted is not None:
        yield counted
        return
    stages = _stages_statement(rows)
    if stages is not None:
        yield stages
        rows = [row for row in rows if _stage_of(row) is None]
    yield from _reasons_of_rows(rows, shapes, message, case, is_wide=bool(wide))
    yield from _window_statements(rows)
    yield from _query_statements(rows)
    turned = turned_statement(rows, message, shapes, case)
    if turned is not None:
        yield turned
    windows_of_bias = bias_statement(rows)
    if windows_of_bias is not None:
        yield windows_of_bias
        rows = [row for row in rows if not BIAS_TABLE.search(row.name)]
    offsets = offsets_statement(rows)
    if offsets is not None:
        yield offsets
        rows = [row for row in rows if not is_of_offsets(row)]
        load = case.survey.load.expression
        if load is not None and len(case.survey.candidates) == 1:
            yield Statement(
                "Interpolated to the windows of the model:",
                (),
                f"state = {load}; {OFFSETS_LINE}; model.load_state_dict(state, "
                "strict=False)",
            )
    positions = positions_statement(rows, shapes, message)
    if positions is not None:
        yield positions
    inputs = list(input_statements(rows, shapes))
    yield from inputs
    if inputs and any(is_head(row, rows, shapes) for row in rows):
        yield Statement(_BOTH_ENDS)
    yield from _flattened_statements(rows, shapes)


_BOTH_ENDS = (
    "The first and the last layer differ, so the file was trained on other data than "
    "the model is built for: with other features of each point or picture, and other "
    "classes. To use what it learned, build the model by the config of the data of the "
    "file. To train on data of your own, both ends are trained anew."
)


def _flattened_statements(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say that the first layer behind convolutions takes another number of inputs,
    where no convolution differs.
    """
    taken = [
        row
        for row in rows
        if len(row.checkpoint) == len(row.model) == 2
        and row.checkpoint[0] == row.model[0]
    ]
    has_convolutions = any(len(shape) > 3 for shape in shapes.values())
    is_same_network = all(len(row.checkpoint) < 3 for row in rows)
    if len(taken) != 1 or len(rows) < 2 or not has_convolutions or not is_same_network:
        return
    row = taken[0]
    yield Statement(
        f"{show(row.name, 120)} takes {row.checkpoint[1]:,} inputs in the checkpoint "
        f"and {row.model[1]:,} in the model, and no convolution differs: it gets what "
        "they give in one row, so pictures of another size go in. Build the model for "
        "the size of the run that saved, or train this layer anew."
    )


def _sole_reason(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]], message: Message
) -> Statement | None:
    """The reason beside which there is no other one, or None: the tensors of the file
    are parts.
    """
    empty = [row for row in rows if is_empty(row)]
    # ZeRO-3 leaves small parameters as they are, and empties the large ones.
    largest = max(map(shape_numel, shapes.values()), default=0)
    if empty and (
        any(row.checkpoint == (0,) for row in empty)
        or max(shape_numel(row.model) for row in empty) >= largest
    ):
        return Statement(
            f"{counted_noun(len(empty), 'tensor')} of the checkpoint "
            f"{be_verb(empty)} empty, as DeepSpeed ZeRO-3 leaves "
            "parameters whose values lie with all ranks. The weights are elsewhere."
        )
    # Layers that one side has alone may give what the convolutions take.
    is_variant = bool(message.missing or message.unexpected)
    groups = None if is_variant else groups_statement(rows)
    if groups is not None:
        return groups
    # A rank has all the names of its model.
    if is_of_a_rank(rows) and not (message.missing or message.unexpected):
        count = rank_count(rows[0])
        return Statement(
            f"Each has one dimension that is 1/{count} of the model's: this is the "
            f"file of one rank of {count} of tensor parallelism, and no model by "
            "itself."
        )
    return None


# --- numbers of rows ------------------------------------------------------------------

_RowCounts: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The first sizes in the checkpoint and in the model. A scalar has none."""


def _row_counts(row: Mismatch) -> _RowCounts:
    return row.checkpoint[:1], row.model[:1]


def _reasons_of_rows(
    rows: Sequence[Mismatch],
    shapes: dict[str, tuple[int, ...]],
    message: Message,
    case: Case,
    *,
    is_wide: bool,
) -> Iterator[Statement]:
    """The reasons for other numbers of rows: words, classes, and what the data of a run
    count. `is_wide` is true where the network has another width as well.
    """
    words = [
        row
        for row in rows
        if VOCABULARY.search(row.name) and row.checkpoint[1:] == row.model[1:]
    ]
    # Tables of one model that disagree about the number of words are no vocabulary.
    if len(set(map(_row_counts, words))) == 1:
        yield _words_statement(words, shapes, case)
        yield from finding_statements(case.found("config-differs"))
    tabled = [
        row for row in rows if is_own_table(row, shapes) or is_fed_table(row, shapes)
    ]
    # Positions have a sentence of their own, and kinds of tokens go with the words.
    if words:
        tabled = [row for row in tabled if not _OF_TOKENS.search(row.name)]
    tables = set(map(_row_counts, tabled))
    # Outputs with as many rows as the vocabulary, and positions, are no head.
    vocabularies = set(map(_row_counts, words))
    others = [
        row
        for row in rows
        if _row_counts(row) not in vocabularies and not POSITIONS.search(row.name)
    ]
    heads = [
        row
        for row in others
        if _row_counts(row) not in tables and is_head(row, rows, shapes)
    ]
    inner = _inner_sizes(rows)
    heads = [row for row in heads if (row.checkpoint[0], row.model[0]) not in inner]
    # The outputs of inner layers are another width too.
    if is_wide:
        heads = [row for row in heads if HEAD_WORDS.search(row.name.rpartition(".")[0])]
    if heads:
        rest = [row for row in others if row not in heads]
        yield from _head_statements(heads, rest, message, shapes, case)
    yield from _table_statements(tabled, tables, others)


_OF_LAYERS = frozenset(
    ("weight", "bias", "weight_g", "weight_v", "running_mean", "running_var")
)
"""The last words of the names that the layers of torch give."""


_STAGE = re.compile(r"^(.*?\.)(\d{1,2})\.(?:.*\.)?weight$")
"""A weight below a number: layers in a list, one for each stage of a backbone."""
_LEAST_STAGES = 2
_OF_CHANNELS = 8
"""The channels of the stages of a backbone are multiples of this number."""


def _stage_of(row: Mismatch) -> tuple[str, int] | None:
    """The list of a layer that takes other inputs and gives as many outputs, with its
    number in it, or None.
    """
    found = _STAGE.match(row.name)
    one, two = row.checkpoint, row.model
    is_alike = len(one) == len(two) > 1 and (one[0], *one[2:]) == (two[0], *two[2:])
    if found is None or not is_alike or one[1] == two[1]:
        return None
    return found[1], int(found[2])


def _stages_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that layers for the stages of a backbone are for another backbone, or return
    None.
    """
    lists: dict[str, dict[int, Mismatch]] = {}
    for row in rows:
        place = _stage_of(row)
        if place is not None:
            lists.setdefault(place[0], {}).setdefault(place[1], row)
    for beginning, stages in lists.items():
        ordered = [stages[number] for number in sorted(stages)]
        here = [row.checkpoint[1] for row in ordered]
        there = [row.model[1] for row in ordered]
        # A backbone gives more channels in each stage, and some lists begin with the
        # last one.
        is_last_first = here[0] > here[-1]
        grows = all(
            widths == sorted(set(widths), reverse=is_last_first)
            # A few numbers, or odd ones, are those of features, and no channels.
            and all(width % _OF_CHANNELS == 0 for width in widths)
            for widths in (here, there)
        )
        if len(ordered) < _LEAST_STAGES or not grows:
            continue
        ours = ", ".join(f"{width:,}" for width in here)
        theirs = ", ".join(f"{width:,}" for width in there)
        return Statement(
            f"{show(beginning.rstrip('.'), 100)} takes {ours} channels in the "
            f"checkpoint and {theirs} in the model, one layer for each stage of a "
            "backbone: the model was built with another backbone, or with another size "
            "of it. Give the program the config of the checkpoint."
        )
    return None


_OF_GRIDS = re.compile(r"(?i)(?:^|[._])\w{0,40}(?:grid|coord|anchor|mesh)\w{0,40}$")
"""The last words of names for the places of a grid, which a program computes."""


def _grid_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that the places of a square grid were computed for another size of the input,
    or return None.
    """
    sides = set()
    for row in rows:
        if not _OF_GRIDS.search(row.name) or len(row.checkpoint) != 2:
            return None
        # Two or three coordinates are a place in a picture or in space.
        if row.checkpoint[1:] != row.model[1:] or row.checkpoint[1] not in (2, 3):
            return None
        here, there = isqrt(row.checkpoint[0]), isqrt(row.model[0])
        if (here**2, there**2) != (row.checkpoint[0], row.model[0]):
            return None
        sides.add((here, there))
    if len(sides) != 1:
        return None
    ((here, there),) = sides
    names = and_more([show(row.name, 100) for row in rows], 3)
    return Statement(
        f"{names} is the grid of places of a picture: {here}×{here} of them in the "
        f"checkpoint, and {there}×{there} in the model. A program computes it from the "
        "size of the features, which follows from the size of its input (resize, crop) "
        "and from its version; no training changes it. Build the model for the input "
        "of the run that saved: with another grid what is loaded behind it may not fit "
        "either."
    )


_LEAST_COUNTED = 3
"""Tensors in which one number differs, at one place or another."""


def _sole_count(row: Mismatch) -> tuple[int, int] | None:
    """The one size that differs, in the checkpoint and in the model, or None."""
    if len(row.checkpoint) != len(row.model):
        return None
    pairs = [
        pair
        for pair in zip(row.checkpoint, row.model, strict=True)
        if pair[0] != pair[1]
    ]
    return pairs[0] if len(pairs) == 1 else None


def _counted_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that parameters without a layer have another number of rows, which the data
    or the settings of a run count, or return None: poses, points, queries.
    """
    counts = set(map(_sole_count, rows))
    is_of_rows = all(row.checkpoint[1:] == row.model[1:] for row in rows)
    # A width of layers stands at the first place of some tensors and at the second one
    # of others too, but then it stands in weights and biases.
    if not is_of_rows and len(rows) < _LEAST_COUNTED:
        return None
    is_counted = all(
        row.name.rpartition(".")[2] not in _OF_LAYERS
        and (len(row.checkpoint) > 1 or not is_of_rows)
        and not POSITIONS.search(row.name)
        and not BIAS_TABLE.search(row.name)
        and not ADDED.search(row.name)
        and not HEAD_WORDS.search(row.name)
        for row in rows
    )
    if not is_counted or len(counts) != 1 or None in counts:
        return None
    (pair,) = (row for row in counts if row is not None)
    here, there = pair
    names = and_more([show(row.name, 100) for row in rows], 3)
    if not is_of_rows:
        return Statement(
            f"One number differs: {here:,} in the checkpoint and {there:,} in the "
            f"model, in {names}. They are no weights of layers: they hold something "
            "for each of what the data or the settings of a run count (objects, "
            "persons, tracks, cameras, frames, the joints or edges of a graph). Build "
            f"the model from the data that the run had, with {here:,} of them: another "
            "split, another version of the data or another filter of it counts "
            "otherwise, and the entries of other data mean other things."
        )
    has = "has" if len(rows) == 1 else "have"
    are = "is a parameter" if len(rows) == 1 else "are parameters"
    return Statement(
        f"{names} {has} {here:,} rows in the checkpoint and {there:,} in the model, "
        f"and {are} of the program itself, with a row for each of something that the "
        "data or the settings of a run count: pictures, frames, poses, points, objects "
        f"or queries. Build the model for {here:,} of them, with the data that the run "
        "had: the rows of other data mean other things."
    )


def _words_statement(
    words: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]], case: Case
) -> Statement:
    """Say that the vocabulary differs, or the alphabet of an output layer alone."""
    alphabet = _alphabet_statement(words, shapes)
    if alphabet is not None:
        return alphabet
    row = words[0]
    here, there = (_known_words(shape[0]) for shape in (row.checkpoint, row.model))
    if here and there and here[1] != there[1]:
        return Statement(
            f"The vocabulary has {row.checkpoint[0]:,} rows in the checkpoint "
            f"({here[0]}) and {row.model[0]:,} in the model ({there[0]}): by these "
            "numbers they are most likely of two different language models, and "
            "positions and kinds of tokens differ with them. Give the program the name "
            "of the one that the checkpoint was made with (its option for the base or "
            "the tokenizer); its default may be the other one."
        )
    return Statement(
        f"The vocabulary has {row.checkpoint[0]:,} rows in the checkpoint and "
        f"{row.model[0]:,} in the model: another tokenizer, dictionary or config.json, "
        f"or tokens that were added.{_room_text(row, case)}"
    )


_OF_TOKENS = re.compile(r"(?:^|[._])(?:position|token_type)_embeddings\.weight$")
_VOCABULARIES = {
    28996: "bert-base-cased",
    30522: "bert-base-uncased",
    21128: "bert-base-chinese",
    119547: "multilingual BERT",
    105879: "multilingual BERT, uncased",
    50265: "RoBERTa or BART",
    250002: "XLM-RoBERTa",
    50257: "GPT-2",
    128256: "Llama 3",
    128100: "DeBERTa-v3",
    49408: "CLIP",
    31090: "SciBERT",
    28895: "BioBERT or SpanBERT",
    51865: "multilingual Whisper",
    51864: "English Whisper",
}
"""The rows of the tables of well-known language models."""
_MOST_ADDED = 2
"""Tokens that a program adds to a vocabulary."""


def _known_words(count: int) -> tuple[str, str] | None:
    """The language model that has a vocabulary of a number of rows, or of a few rows
    fewer: the words that say so, and its name.
    """
    for more in range(_MOST_ADDED + 1):
        name = _VOCABULARIES.get(count - more)
        if name is not None:
            added = f" with {more} more" if more else ""
            return f"as {name}{added}", name
    return None


def _inner_sizes(rows: Sequence[Mismatch]) -> set[tuple[int, int]]:
    """The pairs of sizes, in the checkpoint and in the model, that are widths of the
    network: inputs of a layer, or outputs with a batch norm behind them.
    """
    inner = {
        sizes
        for row in rows
        for sizes in zip(row.checkpoint[1:], row.model[1:], strict=False)
        if sizes[0] != sizes[1]
    }
    for row in rows:
        if STATISTIC.search(row.name) and row.checkpoint and row.model:
            inner.add((row.checkpoint[0], row.model[0]))
    return inner


def _head_statements(
    heads: Sequence[Mismatch],
    rest: Sequence[Mismatch],
    message: Message,
    shapes: dict[str, tuple[int, ...]],
    case: Case,
) -> Iterator[Statement]:
    """Say how many outputs the last layers have, if equal names are the same layers.
    `rest` are the other tensors that differ.
    """
    # A replaced network explains longer lists, and a head may differ beside it.
    replaced = replaced_in(message, shapes)
    if not replaced and longer_lists(
        message, message.missing, message.unexpected, shapes
    ):
        return
    # In a list that moved equal names are other layers.
    if renumbered_blocks(message.missing, message.unexpected):
        return
    durations = _durations_statement(heads, rest, shapes)
    if durations is not None:
        yield durations
        return
    row = heads[0]
    # A table of labels has one row more, for no class.
    one_more = ((row.checkpoint[0] + 1,), (row.model[0] + 1,))
    # With other layers that differ, lack or are left over, the models are not one but
    # for the last layer.
    is_alone = (
        all(_row_counts(other) == one_more for other in rest)
        and not message.missing
        and not message.unexpected
    )
    # A model of another depth may have another number of classes, too.
    is_deeper = not is_alone and any(True for _ in compare_depths(message, shapes))
    layers = {head.name.rpartition(".")[0] for head in heads}
    which = "The last layer" if len(layers) == 1 else f"These {len(layers):,} layers"
    end = f" ({show(row.name, 120)}){_other_outputs(heads)}."
    if is_alone and _is_square(heads):
        end = (
            f" ({show(row.name, 120)}). It has as many outputs as inputs in the "
            "checkpoint, as a layer that projects features for a loss of its own "
            f"(contrastive training) and not one of classes. {which} cannot be loaded, "
            "and the others can: the features are what the file learned, and the new "
            "layer is trained, or left out."
        )
    elif is_alone:
        end = (
            f": another number of {_outputs_noun(heads, case)}. {which} cannot be "
            "loaded, and the others can. To use what the file learned, and not to "
            "train anew from it, build the model with its "
            + (
                _boxes_text(heads, shapes)
                or f"{row.checkpoint[0]:,}{_classes_text(heads)}."
            )
        )
    elif is_deeper or replaced:
        end = ": another number of classes, too."
    else:
        others = differing_sizes(rest) - differing_sizes(heads)
        if len(others) > 1:
            yield from one_size_statement([*rest, *heads])
            return
        end += (
            " A setting of the program gives it (how many classes, coefficients or "
            "channels come out), or its version: build the model as the run that saved "
            "did."
        )
        beside = [
            f"{place_text(rest, ours, theirs)} {ours:,} in the checkpoint and "
            f"{theirs:,} in the model"
            for ours, theirs in others
        ]
        end += f" Beside that {beside[0]}." if beside else ""
    # Outputs of a model of sound may be the bins of a spectrum, and no classes.
    yield Statement(
        _bins_text(row)
        or f"The checkpoint has {row.checkpoint[0]:,} outputs where the model has "
        f"{row.model[0]:,}{end}"
    )


def _other_outputs(heads: Sequence[Mismatch]) -> str:
    """The outputs of last layers that have others than the first one."""
    pairs: dict[tuple[int, int], str] = {}
    for row in heads:
        pairs.setdefault((row.checkpoint[0], row.model[0]), row.name)
    listed = [
        f"{here:,} where it has {there:,} ({show(name, 120)})"
        for (here, there), name in list(pairs.items())[1:]
    ]
    return f", {and_more(listed, 3)}" if listed else ""


_OF_BOXES = re.compile(
    r"(?i)(?:^|[._])(?:reg(?:ression)?(?:_\w{1,20})?|loc(?:ation)?s?|[a-z]{0,8}_reg|b?box(?:es)?"
    r"(?:_\w{1,12})?)(?:[._]|$)"
)
_NUMBERS = re.compile(r"\d+")
_MOST_BOXES = 32


def _boxes_text(heads: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]) -> str:
    """Say how many classes the outputs of a detector are which scores several boxes at
    each place, with a layer of four numbers for each beside it. Else an empty text.
    """
    pairs = [_of_boxes(row, shapes) for row in heads]
    first = pairs[0]
    if first is None or {pair[2:] for pair in pairs if pair} != {first[2:]}:
        return ""
    name, boxes, here, there = first
    layer = show(heads[0].name.rpartition(".")[0], 80)
    return (
        f"{here:,} classes, and not {there:,}: {layer} scores {boxes:,} boxes at each "
        f"place ({show(name, 80)} beside it has {4 * boxes:,} outputs, four for each), "
        f"so {heads[0].checkpoint[0]:,} are {boxes:,} x {here:,}, with the background "
        "where the program counts it. Take the list of classes of the run that saved "
        "(in a file of labels an empty line counts, too)."
    )


def _of_boxes(
    row: Mismatch, shapes: dict[str, tuple[int, ...]]
) -> tuple[str, int, int, int] | None:
    """The layer of boxes beside a layer of scores, the boxes, and the classes that the
    file and the model have for each.
    """
    level = _NUMBERS.findall(row.name)
    leaf = row.name.rpartition(".")[2]
    found = {
        name: shape
        for name, shape in shapes.items()
        if len(shape) == len(row.checkpoint)
        and shape[1:] == row.checkpoint[1:]
        and name.rpartition(".")[2] == leaf
        and _NUMBERS.findall(name) == level
        and _OF_BOXES.search(name)
    }
    if len(found) != 1:
        return None
    ((name, shape),) = found.items()
    boxes, rest = divmod(shape[0], 4)
    here, there = row.checkpoint[0], row.model[0]
    if rest or not 1 < boxes <= _MOST_BOXES or here % boxes or there % boxes:
        return None
    return name.rpartition(".")[0], boxes, here // boxes, there // boxes


_OF_DETECTRON = re.compile(r"(?:^|\.)roi_heads\.box_predictor(?:\.\d)?\.cls_score\.")


def _classes_text(heads: Sequence[Mismatch]) -> str:
    """The setting of detectron2 for its classes, or an empty text."""
    rows = [row.checkpoint[0] for row in heads if _OF_DETECTRON.search(row.name)]
    if not rows:
        return ""
    return (
        f" (detectron2: MODEL.ROI_HEADS.NUM_CLASSES {rows[0] - 1:,}, for one more is "
        "no class)"
    )


_JOINT = re.compile(r"(?:^|\.)joint\.joint_net\.\d{1,2}\.(?:weight|bias)$")
_PREDICTED = re.compile(r"(?:^|\.)decoder\.prediction\.embed\.weight$")
_MOST_DURATIONS = 16


def _durations_statement(
    heads: Sequence[Mismatch],
    rest: Sequence[Mismatch],
    shapes: dict[str, tuple[int, ...]],
) -> Statement | None:
    """Say that the joint network of a transducer of NeMo has outputs for durations on
    one side, or return None.
    """
    if rest or not all(_JOINT.search(row.name) for row in heads):
        return None
    words = [
        shape[0]
        for name, shape in shapes.items()
        if len(shape) == 2 and _PREDICTED.search(name)
    ]
    if len(words) != 1:
        return None
    here, there = heads[0].checkpoint[0], heads[0].model[0]
    # The vocabulary of both is the same: its table does not differ.
    if words[0] != min(here, there) or abs(here - there) > _MOST_DURATIONS:
        return None
    tdt, plain = ("checkpoint", "model") if here > there else ("model", "checkpoint")
    return Statement(
        f"The vocabulary is the same on both sides ({words[0]:,} with the blank), and "
        f"the joint network of the {tdt} has {abs(here - there):,} outputs more: the "
        f"durations of a TDT transducer. The {plain} is an RNNT. Build the model with "
        "the settings of the checkpoint, which stand in model_config.yaml of a .nemo: "
        "loss.loss_name tdt and its durations, num_extra_outputs of the joint, and "
        "the decoding of TDT."
    )


def _is_square(heads: Sequence[Mismatch]) -> bool:
    """Tell whether the weight of the only layer has as many outputs as inputs in the
    checkpoint.
    """
    matrices = [row.checkpoint for row in heads if len(row.checkpoint) > 1]
    return len(matrices) == 1 and len(set(matrices[0])) == 1


def _outputs_noun(heads: Sequence[Mismatch], case: Case) -> str:
    """The word for the outputs of last layers."""
    if "fairseq" in (name_origin(case.survey) or ""):
        return "symbols or classes, as the dictionary of the run has them"
    if all(_OF_POINTS.search(_last_word(head.name)) for head in heads):
        return "outputs, as of points, coordinates or boxes"
    # A convolution may have a map for each joint. Only its name tells classes.
    has_maps = any(len(head.model) > 2 for head in heads)
    if has_maps and not any(_OF_CLASSES.search(head.name) for head in heads):
        return "outputs, as of classes, joints or maps"
    return "classes"


def _table_statements(
    tabled: Sequence[Mismatch], tables: Set[_RowCounts], others: Sequence[Mismatch]
) -> Iterator[Statement]:
    """Say which tables have other numbers of rows; many of them in one sentence."""
    if len(tables) > _MOST_TABLES:
        listed = [
            f"{show(row.name, 100)} ({row.checkpoint[0]:,} and {row.model[0]:,})"
            for row in tabled
        ]
        yield Statement(
            f"{counted_noun(len(listed), 'table')} have other numbers of rows in the "
            f"checkpoint and in the model: {and_more(listed, 4)}. A number of rows is "
            "counted in the data of a run (symbols, words or names of a vocabulary, "
            "pictures, cells of a grid in a box), or follows from its settings. Take "
            "the lists and the bounds that go with the checkpoint, for those of other "
            "data give each row another meaning."
        )
        return
    for here, there in sorted(tables):
        same = [row.name for row in others if _row_counts(row) == (here, there)]
        if not same:
            continue
        named = and_more([show(name, 120) for name in same], 3)
        yield Statement(
            f"{named} {'has' if len(same) == 1 else 'have'} {here[0]:,} rows in the "
            f"checkpoint and {there[0]:,} in the model: a size that the settings or "
            "the data of a run give, as the number of its symbols, speakers, classes "
            f"or pictures.{_lacking_text(there[0])} Build it with "
            f"{here[0]:,}: the settings, and the list of the symbols or names, are "
            "those of the run that saved. A load of what fits leaves the whole table "
            "untrained."
        )


def _window_statements(rows: Sequence[Mismatch]) -> Iterator[Statement]:
    """Say that the window of a spectrum differs."""
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


_QUERIES = re.compile(r"(?:^|[._])pos_quer(?:y|ies)$")


def _query_statements(rows: Sequence[Mismatch]) -> Iterator[Statement]:
    """Say that a decoder has queries for another number of symbols, as PARSeq."""
    for row in rows:
        if not _QUERIES.search(row.name) or len(row.checkpoint) != len(row.model):
            continue
        here, there = row.checkpoint[-2:][0], row.model[-2:][0]
        if here == there:
            continue
        yield Statement(
            f"{show(row.name, 100)} has a query for each place of the text that is "
            f"read: {here:,} in the checkpoint and {there:,} in the model, one of "
            f"them for its end. So set the greatest length of a text to {here - 1:,} "
            "(PARSeq: max_label_length)."
        )


def replaced_in(message: Message, shapes: dict[str, tuple[int, ...]]) -> list[Replaced]:
    """The parts that are another network in the file than in the model."""
    here = [name for name in message.unexpected if name in shapes]
    absent = [name for name in message.missing if name not in shapes]
    return replaced_parts(absent, here, shapes)


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


def _last_word(name: str) -> str:
    """The last word of the module of a tensor that is no number."""
    words = [word for word in name.split(".")[:-1] if not word.isdigit()]
    return words[-1] if words else ""


_OF_POINTS = re.compile(
    r"(?i)coarse|coord|point|xyz|offset|bbox|box_?reg|keypoint|landmark"
)
"""Words in the name of a last layer whose outputs are places."""
_OF_CLASSES = re.compile(r"(?i)cls|class|logit|score|seg|fc|out[._]?conv|predict")
"""Words in the name of a convolution that has a map for each class."""

_WINDOW = re.compile(r"(?:^|[._])window$")
"""The name of the window of a transform, a buffer."""
