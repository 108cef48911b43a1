"""Keys that lack or differ although no weight does: buffers that a model computes when
it is built, tied tensors, names without a prefix, layers of another number.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.ext.explain.origins import config_of
from ckpt.model.text import and_more, be_verb, counted_noun, show

Shape = tuple[int, ...]

_COMPUTED = frozenset(
    (
        "attn_mask",
        "relative_position_index",
        "relative_coords_table",
        "position_ids",
        "inv_freq",
        "freqs_cis",
    )
)
"""The last words of buffers that Swin, BERT and models with rotary positions compute
when they are built. No training changes them.
"""


def computed_buffers(names: Sequence[str]) -> list[str]:
    """Return the names of buffers that a model computes, by their last words."""
    return [name for name in names if name.rpartition(".")[2] in _COMPUTED]


_OF_INPUTS = re.compile(
    r"(?:^|\.)(?:(?:data_preprocessor|normalize|normalizer|preprocess\w{0,10})\."
    r"(?:mean|std)|(?:pixel|image|img|rgb)_(?:mean|std))$"
)
_LARGEST_SCALE = 16
"""Numbers in a mean of the channels of images: more are of other data."""


def input_scales(names: Sequence[str], shapes: Mapping[str, Shape]) -> list[str]:
    """Return the names of the values by which a model normalizes its images."""
    found = []
    for name in names:
        size = 1
        for length in shapes.get(name, ()):
            size *= length
        if _OF_INPUTS.search(name) and size <= _LARGEST_SCALE:
            found.append(name)
    return found


def input_scales_statement(names: Sequence[str]) -> Statement:
    """Say that values which normalize images come from the settings of a program."""
    shown = and_more([show(name, 80) for name in names], 4)
    return Statement(
        f"{shown} {be_verb(names)} no weights: they normalize the images, and come "
        "from the settings of the program, in which this model has them too or does "
        "the same before the model. Some versions save them and others do not. Leave "
        "them out (strict=False; mmengine: strict_load=False of its EMAHook)."
    )


def _leaves_text(names: Sequence[str]) -> str:
    return and_more(list(dict.fromkeys(name.rpartition(".")[2] for name in names)), 4)


def _no_weights_text(names: Sequence[str]) -> str:
    """`is no weight (attn_mask): a model computes it`, or the same for several."""
    leaves = _leaves_text(names)
    if len(names) == 1:
        return f"is no weight ({leaves}): a model computes it"
    return f"are no weights ({leaves}): a model computes them"


def computed_statement(names: Sequence[str], *, is_all: bool, case: Case) -> Statement:
    """Say that keys which lack are computed. `is_all` means that nothing else lacks."""
    text = (
        f"{counted_noun(len(names), 'missing key')} {_no_weights_text(names)} when it "
        "is built, and newer versions of some packages do not save such buffers. "
        "strict=False keeps the model's own."
    )
    load = case.survey.load.expression
    if not is_all or load is None or len(case.survey.candidates) != 1:
        return Statement(text)
    return Statement(text, (), f"model.load_state_dict({load}, strict=False)")


_OF_MASKS = frozenset(
    ("masked_spec_embed", "mask_emb", "mask_token", "mask_embedding", "mask_embed")
)
"""The last words of vectors that stand where a training hides parts of its input."""


def masks_statement(absent: Sequence[str]) -> Statement | None:
    """Say that all that lacks stands in the place of hidden inputs, or return None."""
    if not absent or not all(row.rpartition(".")[2] in _OF_MASKS for row in absent):
        return None
    return Statement(
        f"{and_more([show(name, 80) for name in absent], 3)} stands where a training "
        "hides a part of its input (SpecAugment, or a pretraining by masks). A model "
        "that only predicts hides none, and never uses it: random values there change "
        "nothing. A training that masks learns it anew.",
        tuple(absent),
    )


_OF_CONTACTS = re.compile(r"(?:^|\.)contact_head\.regression\.(?:weight|bias)$")
_OF_POSITIONS = re.compile(r"(?:^|\.)embeddings\.position_embeddings\.weight$")
_WITHOUT_TABLE = frozenset(("rotary", "relative_key_query", "alibi"))
"""Values of position_embedding_type for which a model of ESM has no use for its table
of positions.
"""


def unused_statement(absent: Sequence[str], case: Case) -> Statement | None:
    """Say that all that lacks is built by a class of ESM and not used, or return None:
    the head for contacts, and a table of positions beside rotary ones.
    """
    contacts = [name for name in absent if _OF_CONTACTS.search(name)]
    tables = [name for name in absent if _OF_POSITIONS.search(name)]
    if not absent or len(contacts) + len(tables) < len(absent):
        return None
    kind = config_of(case.survey).get("position_embedding_type")
    # A config may hold a list there, which has no hash.
    if tables and not (isinstance(kind, str) and kind in _WITHOUT_TABLE):
        return None
    text = []
    if contacts:
        text.append(
            "Only predict_contacts uses the contact head "
            f"({show(contacts[0].rpartition('.')[0], 80)}): without it, contacts would "
            "be random, and all else is as it was trained."
        )
    if tables:
        text.append(
            f"{show(tables[0], 80)} is not used: config.json has "
            f"position_embedding_type {show(str(kind), 20)}, so the model computes its "
            "positions."
        )
    return Statement(
        f"{' '.join(text)} This file lacks nothing for embeddings or for masked words.",
        tuple(absent),
    )


def computed_shapes(
    rows: Sequence[Mismatch], message: Message, case: Case
) -> Iterator[Statement]:
    """Say that buffers of other shapes are computed from the size of the input, with
    the line that leaves them out where nothing else differs.
    """
    names = computed_buffers([row.name for row in rows])
    if not names:
        return
    # Tables of relative positions follow from the window of a Swin Transformer alone.
    is_of_window = all(
        name.rpartition(".")[2].startswith("relative_") for name in names
    )
    source = "its window" if is_of_window else "its input"
    other = "window" if is_of_window else "image, or of the patches of its training"
    text = (
        f"{counted_noun(len(names), 'tensor')} of another shape "
        f"{_no_weights_text(names)} from the size of {source} when it is built. The "
        f"checkpoint was made for another size of {other}."
    )
    load = case.survey.load.expression
    # The line leaves out these buffers alone, so any other difference would stop it.
    others = len(rows) > len(names) or message.missing or message.unexpected
    if others or load is None or len(case.survey.candidates) != 1:
        yield Statement(text)
        return
    ends = tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))
    shown = repr(ends[0]) if len(ends) == 1 else repr(ends)
    yield Statement(
        f"{text} All weights load so:",
        (),
        f"state = {load}; model.load_state_dict({{name: value for name, value in "
        f"state.items() if not name.endswith({shown})}}, strict=False)",
    )


# --- tied tensors ---------------------------------------------------------------------

_SHARED = re.compile(r"(?:.+\.)?shared\.weight")
_TIED = re.compile(r"(?:.+\.)?(?:(?:encoder|decoder)\.embed_tokens|lm_head)\.weight")
"""The names under which the models of BART and T5 have their shared embedding."""


def tied_to_shared(
    absent: Sequence[str], here: Collection[str], case: Case
) -> Statement | None:
    """Say that keys which lack are the shared embedding of a file, or return None."""
    # A config that unties the output layer means that the file has lost it.
    unties = [
        value
        for value in case.survey.checkpoint.values
        if value.name == "config.tie_word_embeddings" and value.node is False
    ]
    if unties and any(name.endswith("lm_head.weight") for name in absent):
        return None
    shared = [name for name in here if _SHARED.fullmatch(name)]
    if len(shared) != 1 or not absent or not all(map(_TIED.fullmatch, absent)):
        return None
    return Statement(
        f"{and_more([show(name, 80) for name in absent], 4)} {be_verb(absent)} the "
        f"same tensor as {show(shared[0], 80)} in BART, T5 and models of their kind, "
        "and such a file holds it once: nothing is lost. from_pretrained ties them "
        "again, and so does model.tie_weights() after load_state_dict with "
        "strict=False."
    )


# --- names without a prefix -----------------------------------------------------------


def below_nothing(missing: Sequence[str], here: Collection[str]) -> Statement | None:
    """Answer names that begin with a dot: a class of transformers without the name of
    its base model. None where the file has them not.
    """
    if not missing or not all(name.startswith(".") for name in missing):
        return None
    found: dict[str, int] = {}
    for name in missing:
        others = [other for other in here if other.endswith(name)]
        for prefix in {other.removesuffix(name) for other in others}:
            found[prefix] = found.get(prefix, 0) + 1
    # One prefix must lead to every name of the message.
    prefixes = [prefix for prefix, count in found.items() if count == len(missing)]
    if len(prefixes) != 1 or not prefixes[0].isidentifier():
        return None
    return Statement(
        "The names of the message begin with a dot: the class that was built has no "
        f"base_model_prefix. This file has all of them below {prefixes[0]}. So nothing "
        f'is missing in it: give the class base_model_prefix = "{prefixes[0]}", as '
        "the model that saved has it."
    )


# --- layers of another number ---------------------------------------------------------

_DOWNSAMPLE = re.compile(r"(.{0,400}?layers\.)(\d{1,3})\.(downsample\..{1,200})")
_OF_SWIN = "attn.relative_position_bias_table"


def swin_downsample(
    message: Message, shapes: Mapping[str, Shape], case: Case
) -> tuple[frozenset[str], Statement] | None:
    """Return the names of downsamples of a Swin Transformer that have the number of the
    next or the previous stage, and the sentence with the command that gives them the
    numbers that the model asks for.
    """
    # Other models call a layer downsample too, and have no second numbering.
    if not any(name.endswith(_OF_SWIN) for name in shapes):
        return None
    differing = [row.name for row in message.mismatched]
    ours = _downsamples([*message.unexpected, *differing])
    theirs = _downsamples([*message.missing, *differing])
    if not ours or len({place for place, _, _ in (*ours, *theirs)}) != 1:
        return None
    shift = next(
        (
            step
            for step in (1, -1)
            if {(place, number + step, part) for place, number, part in theirs} == ours
        ),
        None,
    )
    # The shape under the new number must be the one that the model asks for.
    if shift is None or any(
        shapes.get(_other_stage(row.name, shift)) != row.model
        for row in message.mismatched
        if _DOWNSAMPLE.fullmatch(row.name)
    ):
        return None
    # The rules run one after the other: none may make a name that a later one changes
    # again.
    numbers = sorted({number for _, number, _ in ours}, reverse=shift < 0)
    place = next(iter(ours))[0]
    words = ["rename"]
    for number in numbers:
        old = re.escape(f"{place}{number}.downsample.")
        words += ["--sub", f"s/^{old}/{place}{number - shift}.downsample./"]
    newer, older = ("file", "model") if shift > 0 else ("model", "file")
    text = (
        f"The {newer} has each downsample of the Swin Transformer at the beginning of "
        f"a stage, as timm 0.9 and newer, and the {older} at the end of the one "
        "before, as its authors and older versions of timm. Both compute the same: "
        "only the numbers differ."
    )
    names = frozenset(
        f"{place}{number}.{part}" for place, number, part in (*ours, *theirs)
    )
    way = case.plan(tuple(words))
    if way.command is None:
        subs = " ".join(shlex.quote(word) for word in words[1:])
        return names, Statement(f"{text} The rules that rename them: {subs}.")
    return names, Statement(f"{text} With the model's numbers:", (), way.command)


def _downsamples(names: Sequence[str]) -> set[tuple[str, int, str]]:
    """The place, the number and the part of each downsample among some names."""
    matches = [_DOWNSAMPLE.fullmatch(name) for name in names]
    return {(match[1], int(match[2]), match[3]) for match in matches if match}


def _other_stage(name: str, shift: int) -> str:
    """The name of a downsample with the number of another stage."""
    match = _DOWNSAMPLE.fullmatch(name)
    assert match is not None
    return f"{match[1]}{int(match[2]) + shift}.{match[3]}"
