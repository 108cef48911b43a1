"""Keys that one side alone has, where all the others fit: scales that were trained, and
layers that a newer program adds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Case, Statement, shared_beginning
from ckpt.ext.explain.families.heads import HEAD_WORDS
from ckpt.ext.explain.families.items import OF_LAYERS
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.find import counter

_TRAINED = re.compile(
    r"(?:^|[._])(?:gain|gamma|alpha|lambda|(?:layer|skip|res|residual"
    r"|branch)_?scale)\d{0,2}$"
)
"""The last word of a scale that is trained. Plain `scale` is not among them: quantizers
name theirs so.
"""
_RELEASED = re.compile(r"([A-Za-z]\w{2,60})-[0-9a-f]{8}\.\w{1,20}")
"""The name of a file that begins with its model, before the first letters of its
checksum.
"""


def trained_scales(
    left: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Return the keys without a place that are scales inside of modules whose other
    tensors have their place.
    """
    lost = set(left)
    taken = {name.rpartition(".")[0] for name in shapes if name not in lost}
    # A scale stands in a block beside its layers, so parents of modules count as well.
    parents = {
        parent for name in taken for parent in (name, name.rpartition(".")[0]) if parent
    }
    return [
        name
        for name in left
        if _TRAINED.search(name) and name.rpartition(".")[0] in parents
    ]


def trained_scales_statement(names: Sequence[str], case: Case) -> Statement | None:
    """Say that scales are lost without which the model gives other results, or return
    None where all of them have one value.
    """
    wanted = set(names)
    values = [
        counter(entry.tensor)
        for entry in case.survey.tensors
        if any(entry.name == name or entry.name.endswith(f".{name}") for name in wanted)
    ]
    # Scales that cannot be read are taken for trained ones.
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values) and len(set(numbers)) < 2:
        # A constant has one value everywhere.
        return None
    words = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    text = (
        f"{counted_noun(len(names), 'key')} of these "
        f"{'is a scale that was' if len(names) == 1 else 'are scales that were'} "
        "trained "
        f"({and_more([show(word, 60) for word in words], 3)}{_range_of(numbers)}), in "
        "blocks whose other tensors the model takes. With strict=False it loads "
        "without them, and gives other results than the model that was saved. Build "
        "the model that has them."
    )
    released = _RELEASED.fullmatch(os.path.basename(case.survey.path))
    if released is not None:
        text += f" By the name of this file it may be {show(released[1], 60)}."
    return Statement(text)


def _range_of(numbers: Sequence[float]) -> str:
    """The lowest and the highest of some numbers that differ, as a part of a
    sentence.
    """
    if len(set(numbers)) < 2:
        return ""
    return f", from {min(numbers):.3g} to {max(numbers):.3g}"


# --- a program that builds more -------------------------------------------------------

_FEW = 10
"""Tensors of a file for each key that lacks, from which on the key is an addition to
the same model.
"""


def added_layers(absent: Sequence[str], names: Collection[str]) -> Statement | None:
    """Say that a program adds layers to blocks that a file has, or return None where a
    key lacks its whole block.
    """
    if not absent or len(names) < _FEW * len(absent):
        return None
    shared = shared_beginning(sorted(names)).rstrip(".")
    # The root that all names share is no block, or each key would lie in one.
    inner = modules_around(names) - {shared}
    blocks = [_block_of(name, inner) for name in absent]
    if not all(blocks):
        return None
    # The innermost block tells best where the layer would be.
    block = max(blocks, key=len)
    wanted = absent[blocks.index(block)][len(block) + 1 :].partition(".")[0]
    held = dict.fromkeys(
        name[len(block) + 1 :].partition(".")[0]
        for name in names
        if name.startswith(f"{block}.")
    )
    return Statement(
        "The message names no unexpected key, so all "
        f"{counted_noun(len(names), 'tensor')} of the model in this file have their "
        f"place. The model asks for {len(absent):,} more, in blocks that the file has: "
        f"{show(block, 100)} has {and_more([show(word, 40) for word in held], 4)} "
        f"here, and no {show(wanted, 40)}. Most likely the program is of another "
        "version than the one that saved, or was built with other options. Take that "
        "version: what is loaded without these keys is random there."
    )


_CLASSIFIER = re.compile(
    r"^(?:fc1000|fc|linear|classifier|pred|head)\.|^stem\.conv1\.bias$"
)


def classifier_of_backbone(rest: Sequence[str], origin: str) -> Statement | None:
    """Say that a backbone of detectron2 has a classifier that a detector does not take,
    or return None.
    """
    if "etectron" not in origin or not rest:
        return None
    if not all(_CLASSIFIER.search(name) for name in rest):
        return None
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in rest))
    return Statement(
        f"The file is a backbone that was trained to classify pictures ({origin}). "
        f"{and_more([show(layer, 60) for layer in layers], 3)} "
        f"{be_verb(layers)} of that, and a detector has no such layer: expected, and "
        "nothing is lost. Such a file begins a training. One that was stopped goes on "
        "from its own checkpoint, with --resume: last_checkpoint in OUTPUT_DIR names "
        "it."
    )


def variant_of_file(rest: Sequence[str], names: Collection[str]) -> Statement | None:
    """Say that a file has more layers inside of modules that a model has too, or
    parameters at its root, or return None. All else must have its place.
    """
    left = set(rest)
    placed = [name for name in names if name not in left]
    inner = modules_around(placed)
    shared = shared_beginning(sorted(names)).rstrip(".")
    inner.discard(shared)
    blocks = [_block_of(name, inner) for name in rest]
    inside = [
        name
        for name, block in zip(rest, blocks, strict=True)
        if block or "." not in name
    ]
    # A head more is an option, and no other way to compute.
    if any(HEAD_WORDS.search(name) for name in rest):
        return None
    whole = shared_beginning(sorted(placed))
    if whole and not any("." in name for name in rest):
        return _beside_model(rest, whole)
    # A wrapper around the model is no block of it.
    around = {name.rpartition(".")[0] for name in rest}
    if not _has_layers(rest) and all(whole.startswith(f"{row}.") for row in around):
        return _own_values(rest)
    if not inside:
        return None
    block = max(blocks, key=len)
    # The key that is named has to be one of this block.
    named = rest[blocks.index(block)] if block else inside[0]
    where = (
        f"in {show(block, 100)}, whose other layers have their place"
        if block
        else "at the root, where all else has its place"
    )
    return Statement(
        f"{show(named, 100)} lies {where}: the program that saved has it, and this "
        "one does not. It is another version or variant of the program, or was built "
        "with other options. Take the one of the file: a model that computes without "
        "layers that it was trained with gives other results. Layers that the "
        "training never used are no loss."
    )


def _has_layers(names: Iterable[str]) -> bool:
    """Tell whether one of the names is of a weight of a layer, by its last word."""
    return any(name.rpartition(".")[2] in OF_LAYERS for name in names)


def _own_values(rest: Sequence[str]) -> Statement:
    """Say that values of the model itself, which are of no layer, have no place."""
    shown = and_more([show(name, 60) for name in rest], 4)
    one = len(rest) == 1
    return Statement(
        f"{shown} {'is' if one else 'are'} of no layer: the model itself had "
        f"{'it' if one else 'them'} when it was saved, as a table or a value that the "
        "program registers (masses, frequencies, statistics, a scale), and all layers "
        "have their place. The program here, or a library below it, is of another "
        "version, which computes or keeps it otherwise, or was built without the "
        "option. A table that it computes is no loss. A value that was trained is one: "
        "for that take the version that saved."
    )


def _beside_model(rest: Sequence[str], beginning: str) -> Statement:
    """Say that values without a place lie beside a model, in the module around it."""
    shown = and_more([show(name, 60) for name in rest], 4)
    one = len(rest) == 1
    return Statement(
        f"{shown} {'lies' if one else 'lie'} beside the model, whose names all begin "
        f"with {show(beginning, 60)}: the module around it, that of the training, had "
        f"{'it' if one else 'them'} when it was saved, and did not yet when it was "
        "loaded. Such a one is registered by a step of the training (in setup or at "
        "the start of fit, from its data) or by an option, so an evaluation loads "
        "before it is there. The model itself gets all of its weights. What the module "
        "computes from these values wants them registered before the load."
    )


_HEAD = re.compile(
    r"(?:^|[._])(?:\w{0,40}_)?head(?:_\w{0,40})?\.(?!.*attn)", re.IGNORECASE
)
"""A module whose name has the word head, and is none of an attention."""


def further_head(rest: Sequence[str]) -> Statement | None:
    """Say that keys without a place have a head among them, which an option of the run
    added inside of a module, or return None. All else must have its place.
    """
    heads = [name for name in rest if _HEAD.search(name)]
    if not heads:
        return None
    return Statement(
        f"{show(heads[0], 100)} is of a head: an output more that the program that "
        "saved computed by an option, and this model was built without it. The other "
        "layers do not need it. A training that goes on wants the options with which "
        "it began."
    )


def modules_around(names: Iterable[str]) -> set[str]:
    """The names of all modules around some tensors, without the root."""
    blocks: set[str] = set()
    for name in names:
        parent = name.rpartition(".")[0]
        # Parents of a known module are known, so the walk ends there.
        while parent and parent not in blocks:
            blocks.add(parent)
            parent = parent.rpartition(".")[0]
    return blocks


def _block_of(name: str, blocks: Collection[str]) -> str:
    """The innermost block of a file in which a key would be, or an empty text."""
    parent = name.rpartition(".")[0]
    while parent and parent not in blocks:
        parent = parent.rpartition(".")[0]
    return parent


# --- tables and parts that were not saved ---------------------------------------------

_TABLES = frozenset(
    (
        "pe",
        "pos_table",
        "inv_freq",
        "freqs_cis",
        "cos_cached",
        "sin_cached",
        "position_ids",
        "masked_bias",
        "attn_mask",
        "causal_mask",
        "relative_position_index",
        "relative_coords_table",
    )
)
"""The last words of buffers that a model makes when it is built: positions and
masks.
"""


def tables_alone(absent: Sequence[str]) -> bool:
    """Tell whether all that lacks are tables that a model makes when it is built."""
    return bool(absent) and all(name.rpartition(".")[2] in _TABLES for name in absent)


def tables_statements(absent: Sequence[str], survey: Survey) -> Iterator[Statement]:
    """Say that a model makes by itself what lacks, and print the line that leaves it as
    it is.
    """
    text = (
        f"{counted_noun(len(absent), 'missing key')} {be_verb(absent)} by "
        f"{'its name a table' if len(absent) == 1 else 'their names tables'} that the "
        "model makes when it is built (positions, masks), and no trained weights. Some "
        "versions of a program save them, and others do not. strict=False leaves the "
        "model's own:"
    )
    load = survey.load.expression
    # With several models in the file the line would have to choose one.
    if load is None or len(survey.candidates) != 1:
        yield Statement(text.removesuffix(":") + ".", tuple(absent))
        return
    yield Statement(text, tuple(absent), f"model.load_state_dict({load}, strict=False)")


def parts_left_out(absent: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the first words of all keys that lack, where no name of a file begins with
    any.
    """
    wanted = list(
        dict.fromkeys(name.partition(".")[0] for name in absent if "." in name)
    )
    held = {name.partition(".")[0] for name in names}
    # A file whose names all begin alike is one part, and says nothing of others.
    is_apart = len(held) > 1 and all(name.find(".") > 0 for name in absent)
    return [] if not is_apart or held.intersection(wanted) else wanted


def parts_statement(
    parts: Sequence[str], names: Collection[str], message: Message
) -> Statement:
    """Say that whole parts of a model were left out when a file was saved."""
    held = list(dict.fromkeys(show(name.partition(".")[0], 40) for name in names))
    text = (
        "No tensor of this file is of "
        f"{and_more([show(part, 40) for part in parts], 4)}: the whole part is not in "
        f"it. It has {and_more(held, 6)}. Exports leave out what only the training "
        "needs, and some runs save nothing but what they train, without a part that is "
        "frozen; else the model that saved was built without it, by an option of its "
        "class or by its version: build it so."
    )
    # strict=False returns _IncompatibleKeys, so the load went on.
    if "_IncompatibleKeys" in message.text and not message.unexpected:
        text += (
            f" The load went on, and all {len(names):,} tensors of the file have their "
            "place."
        )
    return Statement(text)


_FUSED = re.compile(r"(?:^|[._])(?:rbr_)?reparam(?:_conv|eterized)?\.|_reparam\.")
"""A layer into which the branches of a block are put together for inference: RepVGG,
MobileOne.
"""


def form_of_blocks(absent: Sequence[str], left: Sequence[str]) -> Statement | None:
    """Say that a file and a model have other forms of the same blocks: branches, or one
    layer.
    """
    # A side with names of both forms proves nothing.
    if absent and left and _are_all(absent, _FUSED) and not _have_any(left, _FUSED):
        return Statement(
            "The model was built for inference, with one layer in the place of the "
            "branches of each block, and this file has the branches, as they are "
            "trained. Build the model for training (deploy=False), load, and let its "
            "code put the branches together then (switch_to_deploy, "
            "reparameterize_model)."
        )
    if absent and left and _are_all(left, _FUSED) and not _have_any(absent, _FUSED):
        return Statement(
            "This file was converted for inference: one layer stands in the place of "
            "the branches of each block, and the model was built with branches. Build "
            "it for inference (deploy=True). To train, take the checkpoint from before "
            "it was converted, for no tool takes the sum apart again."
        )
    return None


def _have_any(names: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name) for name in names)


# --- experts --------------------------------------------------------------------------

_EXPERT_ALONE = re.compile(r"\.experts\.local_experts\.\d+\.linear_fc[12]\.")
"""The name of a layer of one expert in Megatron-LM."""
_EXPERTS_AS_ONE = re.compile(
    r"\.experts\.(?:weight[12]|linear_fc[12]\.(?:weight|bias)\d+)$"
)
"""The name of a tensor in which Megatron-LM has the experts for grouped GEMM."""
_OF_EXPERTS = re.compile(r"(?:^|[._])(?:moe|experts?)(?:_|$)")


def layout_of_experts(
    absent: Sequence[str], left: Sequence[str], case: Case
) -> Statement | None:
    """Say that Megatron-LM keeps experts one by one in the file and together in the
    model, or the other way round.
    """
    settings = {
        value.name: value.node
        for value in case.survey.checkpoint.values
        if value.path
        and _OF_EXPERTS.search(str(value.path[-1]))
        and isinstance(value.node, (bool, int))
    }
    # A setting of the run that contradicts the names leaves the layout open.
    recorded = next(
        (
            value
            for name, value in settings.items()
            if name.endswith("moe_grouped_gemm")
        ),
        None,
    )
    shown = and_more(
        [f"{show(name, 80)} is {value}" for name, value in settings.items()], 3
    )
    said = f" In this file {shown}." if settings else ""
    if (
        _are_all(absent, _EXPERTS_AS_ONE)
        and _are_all(left, _EXPERT_ALONE)
        and recorded is not True
    ):
        return Statement(
            "This file has a layer of its own for each expert (local_experts), and the "
            "model was built for grouped GEMM, with the experts of a layer "
            f"together.{said} Load it without --moe-grouped-gemm. No renaming makes "
            "the one of the other."
        )
    if (
        _are_all(absent, _EXPERT_ALONE)
        and _are_all(left, _EXPERTS_AS_ONE)
        and recorded is not False
    ):
        return Statement(
            "This file has the experts of a layer together, for grouped GEMM, and the "
            f"model was built with a layer of its own for each (local_experts).{said} "
            "Load it with --moe-grouped-gemm. No renaming makes the one of the other."
        )
    return None


def _are_all(names: Sequence[str], pattern: re.Pattern[str]) -> bool:
    """Tell whether there are names, and each has the pattern."""
    return bool(names) and all(pattern.search(name) for name in names)
