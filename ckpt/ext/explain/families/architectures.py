"""The model that a file is of, by its shapes and names, where a program built another
one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from fractions import Fraction

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.families.items import is_left_out
from ckpt.ext.explain.families.pairing import share_last_word
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show

# The key and the value of the cross-attention of a UNet, whose input is the text.
_TEXT = re.compile(r"(?:^|\.)attn2\.to_[kv]\.weight$")
TEXT_WIDTHS = {768: "Stable Diffusion 1", 1024: "Stable Diffusion 2", 2048: "SDXL"}
"""The width of the text that the cross-attention of a UNet takes -> the models of that
width.
"""
_THIRD = re.compile(r"(?:^|\.)(?:layer|res)\d+\.\d+\.conv3\.")
"""The third convolution of a block, which bottlenecks alone have in ResNets."""


def name_architectures(
    message: Message, shapes: Mapping[str, Sequence[int]]
) -> Iterator[Statement]:
    """Name two architectures that people take for one another."""
    # Index 1 of the shape of a linear weight is the width of its input.
    widths = {
        (row.checkpoint[1], row.model[1])
        for row in message.mismatched
        if _TEXT.search(row.name) and len(row.checkpoint) == len(row.model) == 2
    }
    if len(widths) == 1:
        here, there = (
            (
                f"{width:,} in the "
                f"{side}{f' ({TEXT_WIDTHS[width]})' if width in TEXT_WIDTHS else ''}"
            )
            for width, side in zip(*widths, ("checkpoint", "model"), strict=True)
        )
        yield Statement(
            f"The cross-attention takes text of width {here} and {there}: another "
            "version of the model, with another text encoder. Build the model with the "
            "config of the checkpoint, or take a checkpoint of the same version."
        )
    yield from name_groups(message, shapes)
    # A block that one side lacks as a whole is a matter of depth.
    theirs = set(message.unexpected)
    deep = {
        side
        for side, names in (
            ("checkpoint", message.unexpected),
            ("model", message.missing),
        )
        for name in names
        if (third := _THIRD.search(name)) is not None
        and _has_block(
            f"{name[: third.end()].removesuffix('conv3.')}conv1.weight",
            side,
            shapes,
            theirs,
        )
    }
    deep = deep or _kernels_of(message.mismatched)
    # A third convolution that lacks on both sides is a matter of names.
    if len(deep) == 1:
        here, there = (
            ("bottleneck", "basic") if "checkpoint" in deep else ("basic", "bottleneck")
        )
        yield Statement(
            f"These are two ResNets: the checkpoint has {here} blocks, and the model "
            f"{there} blocks. Basic ones are of ResNet-18 and 34, bottlenecks of "
            "ResNet-26, 50, 101 and 152. Build the model of the checkpoint, for little "
            "of it fits another."
        )


_OPENING = re.compile(r"(?:^|\.)(?:layer|res)\d+\.\d+\.conv1\.weight$")
_SMALL, _LARGE = (1, 1), (3, 3)
"""The kernel of the first convolution of a bottleneck, and of a basic block."""


def _kernels_of(rows: Sequence[Mismatch]) -> set[str]:
    """The sides with bottlenecks, by the kernels of first convolutions: a load with
    strict=False names no third ones.
    """
    sides = {
        "checkpoint" if row.checkpoint[2:] == _SMALL else "model"
        for row in rows
        if _OPENING.search(row.name)
        and {row.checkpoint[2:], row.model[2:]} == {_SMALL, _LARGE}
    }
    return sides if len(sides) == 1 else set()


_GROUPED = re.compile(r"^(.*)conv2\.weight$")
"""The second convolution of a block of a ResNet, which is in groups in a ResNeXt."""


def _count_groups(shapes: Mapping[str, Sequence[int]], beginning: str) -> int:
    """Count the groups of the second convolution of a block, by what the first one
    gives it, or return 0.
    """
    first, second = (
        shapes.get(f"{beginning}conv{number}.weight", ()) for number in (1, 2)
    )
    # One channel for each group is a depthwise convolution, which no ResNet has.
    if len(first) < 2 or len(second) < 2 or second[1] < 2 or first[0] % second[1]:
        return 0
    return first[0] // second[1]


def name_groups(
    message: Message, shapes: Mapping[str, Sequence[int]]
) -> Iterator[Statement]:
    """Name a ResNet and a ResNeXt, where the convolutions of one of them are in
    groups.
    """
    # The message has the shapes that differ, and the file those that are equal.
    theirs = {**shapes, **{row.name: row.model for row in message.mismatched}}
    ours = {**shapes, **{row.name: row.checkpoint for row in message.mismatched}}
    beginnings = [
        found[1] for row in message.mismatched if (found := _GROUPED.match(row.name))
    ]
    counts = {
        (_count_groups(ours, begin), _count_groups(theirs, begin))
        for begin in beginnings
    }
    if len(counts) != 1:
        return
    ((here, there),) = counts
    if here == there or not here or not there:
        return
    names = [
        f"{count} groups, a ResNeXt" if count > 1 else "1 group, a ResNet"
        for count in (here, there)
    ]
    yield Statement(
        f"The 3x3 convolutions of the blocks ({show(beginnings[0] + 'conv2', 120)}) "
        f"are in {names[0]}, in the checkpoint, and in {names[1]}, in the model: the "
        "config and the weights are of different models. Build the model of the "
        "checkpoint, for no block of it fits another."
    )


def groups_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that convolutions are in other groups, where nothing but their inputs
    differs, or return None.
    """
    counts = {_group_ratio(row) for row in rows}
    # One layer alone may be the first one, which takes other pictures.
    if len(rows) < 2 or len(counts) != 1 or None in counts:
        return None
    (ratio,) = counts
    assert ratio is not None
    # A depthwise convolution has one input channel in each filter.
    if len({row.checkpoint[1] for row in rows}) == 1 == rows[0].checkpoint[1]:
        text = (
            "are depthwise in the checkpoint (a group for each channel), and not in "
            "the model"
        )
    elif len({row.model[1] for row in rows}) == 1 == rows[0].model[1]:
        text = (
            "are depthwise in the model (a group for each channel), and not in the "
            "checkpoint"
        )
    # More groups leave fewer inputs for each filter: the ratio is that of the inputs in
    # the model to those in the file.
    elif ratio > 1:
        text = f"are in {ratio} times as many groups in the checkpoint as in the model"
    else:
        text = (
            f"are in {1 / ratio} times as many groups in the model as in the checkpoint"
        )
    return Statement(
        f"{counted_noun(len(rows), 'convolution')} differ in their inputs alone: they "
        f"{text} (groups of nn.Conv2d). The weights are of another model, or the "
        "settings give another number of groups: build the model of the checkpoint."
    )


def kernel_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that convolutions have other kernels, where nothing else of them differs, or
    return None.
    """
    # Indices 0 and 1 are the channels, and the kernel begins at 2.
    sizes = {(row.checkpoint[2:], row.model[2:]) for row in rows}
    is_alike = all(
        len(row.checkpoint) == len(row.model) > 2
        and row.checkpoint[:2] == row.model[:2]
        and row.name.rpartition(".")[2] in _OF_KERNELS
        for row in rows
    )
    if not rows or not is_alike or len(sizes) != 1:
        return None
    here, there = (" x ".join(map(str, size)) for size in next(iter(sizes)))
    one = len(rows) == 1
    return Statement(
        f"{counted_noun(len(rows), 'convolution')} {'has' if one else 'have'} a kernel "
        f"of {here} in the checkpoint and of {there} in the model, and the same "
        "channels: another version of the program, or other settings of it. Build the "
        "model of the checkpoint: no reshaping makes one kernel of the other."
    )


_OF_KERNELS = ("weight", "weight_v", "weight_orig", "original1", "kernel")
"""The last words of names of the weights of convolutions."""
_MANY_INPUTS = 8
"""Inputs that a convolution inside of a model has at least; a picture has fewer
channels.
"""


def _group_ratio(row: Mismatch) -> Fraction | None:
    """The inputs of a convolution in the model for each one in the checkpoint, or None
    where more differs.
    """
    one, two = row.checkpoint, row.model
    if len(one) != len(two) or len(one) < 3 or one[0] != two[0] or one[2:] != two[2:]:
        return None
    if (
        not one[1]
        or not two[1]
        or one[1] == two[1]
        or max(one[1], two[1]) < _MANY_INPUTS
    ):
        return None
    ratio = Fraction(two[1], one[1])
    whole = max(ratio, 1 / ratio)
    return ratio if whole.denominator == 1 and one[0] % whole.numerator == 0 else None


# --- numbers that are shifted ---------------------------------------------------------

_LAST_NUMBER = re.compile(r"^(.*\.)(\d{1,4})(\.[^.\d][^.]*)$")
"""A name of a layer of a Sequential: its beginning, its number, its part."""
_COUNTER = ".num_batches_tracked"
_SHIFTS = (1, -1, 2, -2)


def shifted_statement(message: Message) -> Statement | None:
    """Say that layers have the same parts under other numbers, where shapes contradict
    equal ones, or return None.
    """
    differing = [row.name for row in message.mismatched]
    ours = _by_place([*message.unexpected, *differing])
    theirs = _by_place([*message.missing, *differing])
    if not differing or None in (ours, theirs) or ours is None or theirs is None:
        return None
    if ours.keys() != theirs.keys():
        return None
    # One shift must explain all places, else the numbers are alike by chance.
    for shift in _SHIFTS:
        if all(
            {(number + shift, part) for number, part in theirs[place]} == ours[place]
            for place in theirs
        ):
            break
    else:
        return None
    places = [place.rstrip(".") for place in ours]
    sides = ("checkpoint", "model") if shift > 0 else ("model", "checkpoint")
    count = abs(shift)
    layer = "a layer" if count == 1 else f"{count} layers"
    return Statement(
        f"Below {and_more([show(place, 80) for place in places], 3)} each layer has "
        f"the number of the other side's plus {count}: the {sides[0]} has {layer} "
        f"without weights before them, and the {sides[1]} has not (a pooling, an "
        "activation, a dropout). In a downsample of a ResNet it is the pooling of "
        "ResNet-D. It is another variant of the model: build the one that was saved. "
        "Under other names the weights would load, and the model would not compute the "
        "same."
    )


def _by_place(names: Sequence[str]) -> dict[str, set[tuple[int, str]]] | None:
    """Return the places of names -> the numbers and parts below them, or None where a
    name has no number.
    """
    found: dict[str, set[tuple[int, str]]] = {}
    for name in names:
        match = _LAST_NUMBER.match(name)
        if match is None:
            return None
        if match[3] != _COUNTER:
            found.setdefault(match[1], set()).add((int(match[2]), match[3]))
    return found


def _has_block(
    first: str, side: str, shapes: Mapping[str, Sequence[int]], theirs: Container[str]
) -> bool:
    """Tell whether the other side has the block of a convolution too, by the first
    convolution of the block.
    """
    return first in shapes and (side == "model" or first not in theirs)


# --- depth ----------------------------------------------------------------------------

_BLOCK = re.compile(r"(.*?(?:^|\.)[A-Za-z_]\w*\.)(\d{1,4})\.")
"""The list of blocks that a tensor is in, and its number in the list."""
# ResNet-34 and 50 have equal counts, so the kind of their blocks stands first.
_RESNETS: dict[tuple[int, ...], str] = {
    (False, 2, 2, 2, 2): "ResNet-18",
    (False, 3, 4, 6, 3): "ResNet-34",
    (True, 3, 4, 6, 3): "ResNet-50",
    (True, 3, 4, 23, 3): "ResNet-101",
    (True, 3, 8, 36, 3): "ResNet-152",
}
"""The kind of the blocks (bottlenecks or not) and their numbers -> the model."""
_LEAST_PARTS = 3
"""Tensors that a block has, at least."""
_STAGES = ("layer1.", "layer2.", "layer3.", "layer4.")


def compare_depths(
    message: Message, shapes: Mapping[str, Sequence[int]]
) -> Iterator[Statement]:
    """Say that one of two models has more blocks in a list, where all keys that differ
    are of those blocks.
    """
    # Items that lack in the middle of a list are inputs, and no depth.
    if is_left_out(message, shapes):
        return
    here, there = _block_numbers(shapes), _block_numbers(message.missing)
    left_over = _block_numbers(message.unexpected)
    differing: dict[str, tuple[int, int]] = {}
    for place, numbers in there.items():
        held = here.get(place, set())
        # The missing numbers must follow those of the file without a gap. A gap is a
        # renaming, and no depth.
        is_more = held == set(range(len(held))) and numbers == set(
            range(len(held), max(numbers) + 1)
        )
        if (
            held
            and place not in left_over
            and is_more
            and _are_of_a_kind(place, message.missing, shapes)
        ):
            differing[place] = (len(held), max(numbers) + 1)
    for place, numbers in left_over.items():
        held = here.get(place, set())
        if (
            place not in there
            # The numbers that are left over must be the last ones of the list.
            and numbers < held
            and numbers == set(range(min(numbers), max(held) + 1))
        ):
            differing[place] = (max(held) + 1, min(numbers))
    names = [*message.missing, *message.unexpected]
    if not differing or any(_block_list(name) not in differing for name in names):
        return
    blocks = sum(abs(one - other) for one, other in differing.values())
    if len(names) < _LEAST_PARTS * blocks:  # layers of a Sequential
        return
    counts = [
        (
            f"{counted_noun(one, 'block')} in the checkpoint and {other:,} in the "
            f"model at {show(place[:-1], 80)}"
        )
        for place, (one, other) in list(differing.items())[:4]
    ]
    beside = _beside_statement(message, differing)
    if beside is not None:
        yield beside
        return
    what = _resnet_names(shapes, differing)
    yield Statement(
        f"The depth differs: {', '.join(counts)}.{what} Build the model with the depth "
        "of the checkpoint: the blocks that the checkpoint lacks would stay untrained, "
        "and those that the model lacks would be lost."
    )


def _beside_statement(
    message: Message, differing: Mapping[str, tuple[int, int]]
) -> Statement | None:
    """Say that the items of a list stand side by side, where a layer behind them takes
    as many times more inputs as there are more items, or return None.
    """
    for place, (here, there) in differing.items():
        # Items that give other outputs are wider, and what takes them is so too.
        if any(
            row.name.startswith(place)
            and len(row.model) > 1
            and row.checkpoint[:1] != row.model[:1]
            for row in message.mismatched
        ):
            continue
        for row in message.mismatched:
            one, two = row.checkpoint, row.model
            is_taken = len(one) == len(two) > 1 and one[0] == two[0]
            if not is_taken or row.name.startswith(place) or one[1] == two[1]:
                continue
            if one[1] * there != two[1] * here:
                continue
            least = min(here, there)
            return Statement(
                f"{show(place[:-1], 80)} has {counted_noun(here, 'item')} in the "
                f"checkpoint and {there:,} in the model, and {show(row.name, 100)} "
                f"takes {one[1]:,} and {two[1]:,}, as many times: so they stand side "
                "by side (branches, inputs, scales), and what they give is joined. "
                f"The run that saved had {'one' if here == 1 else f'{here:,}'} of "
                "them, by an option of the program: build the model with "
                f"{'it' if here == 1 else 'these'}, or take the file of a run with "
                f"{there:,}."
                + (
                    " A load of what fits would leave the others untrained, and the "
                    "layer that joins them."
                    if here == least
                    else ""
                )
            )
    return None


def _are_of_a_kind(
    place: str, absent: Sequence[str], names: Mapping[str, object]
) -> bool:
    """Tell whether the blocks that lack in a list have a name in common with those that
    are there: else they are modules of other kinds.
    """
    ours = {_within_block(name) for name in names if _block_list(name) == place}
    theirs = {_within_block(name) for name in absent if _block_list(name) == place}
    return bool(ours & theirs)


def _within_block(name: str) -> str:
    """The rest of a name behind the number of its block."""
    block = _BLOCK.match(name)
    return name if block is None else name[block.end(2) :]


def _block_numbers(
    names: Iterator[str] | Mapping[str, object] | Sequence[str],
) -> dict[str, set[int]]:
    """The numbers of the blocks in each list of blocks, by the outermost list that a
    name is in.
    """
    found: dict[str, set[int]] = {}
    for name in names:
        block = _BLOCK.match(name)
        if block is not None:
            found.setdefault(block[1], set()).add(int(block[2]))
    return found


def _block_list(name: str) -> str | None:
    block = _BLOCK.match(name)
    return None if block is None else block[1]


def _resnet_names(
    shapes: Mapping[str, Sequence[int]], differing: Mapping[str, tuple[int, int]]
) -> str:
    """The names of two ResNets, where the numbers of their blocks tell them."""
    blocks = _block_numbers(shapes)
    stages = [
        next((place for place in blocks if place.endswith(stage)), None)
        for stage in _STAGES
    ]
    # Without all four stages it is no ResNet of torchvision.
    if None in stages:
        return ""
    is_bottleneck = any(_THIRD.search(name) for name in shapes)
    held = [len(blocks[place]) for place in stages if place is not None]
    asked = [
        differing.get(place or "", (0, count))[1]
        for place, count in zip(stages, held, strict=True)
    ]
    names = [_RESNETS.get((is_bottleneck, *counts)) for counts in (held, asked)]
    return (
        f" The checkpoint looks like {names[0]}, and the model like {names[1]}."
        if all(names)
        else ""
    )


# --- width and inputs -----------------------------------------------------------------

_DIFFUSION = re.compile(r"(?:^|\.)(?:input_blocks\.0\.0|conv_in)\.weight$")
_DIFFUSION_INPUTS = {
    4: "text to image",
    5: "depth to image",
    8: "InstructPix2Pix",
    9: "inpainting",
}
"""Channels that the UNet of Stable Diffusion takes -> the kind of model that
has them.
"""
_PICTURES = {1: "grey", 3: "colour", 4: "colour and one more"}


def input_statements(
    rows: Sequence[Mismatch], shapes: Mapping[str, Sequence[int]]
) -> Iterator[Statement]:
    """Name the first convolution where it takes another number of channels, and the
    input that each number looks like.
    """
    for row in [
        row for row in rows if _takes_others(row) and _is_first(row.name, shapes)
    ][:1]:
        if len(rows) > _FEW_LAYERS:
            return
        here, there = row.checkpoint[1], row.model[1]
        kinds = (
            _DIFFUSION_INPUTS
            if _DIFFUSION.search(row.name)
            else _PICTURES
            if len(row.model) == 4 and max(row.model[2:]) > 1
            else {}
        )
        likely = (
            (
                f" By their number the checkpoint looks like one for {kinds[here]}, "
                f"and the model for {kinds[there]}."
            )
            if here in kinds and there in kinds
            else ""
        )
        yield Statement(
            f"{show(row.name, 120)} takes {here:,} channels in the checkpoint and "
            f"{there:,} in the model: another kind of input.{likely} Build the model "
            "for the input of the checkpoint."
        )
        if kinds is _PICTURES and (here, there) == (3, 1):
            name = show(row.name, 120)
            if name == row.name and '"' not in name:
                yield Statement(
                    (
                        "Or give the model the sum over the colours, which a grey "
                        "picture in all three of them had:"
                    ),
                    (),
                    f'state["{name}"] = state["{name}"].sum(1, keepdim=True)',
                )


_FEW_LAYERS = 4
"""Layers that may differ beside the first one: a head. With more of them it is another
model.
"""


_FIRST = re.compile(
    r"(?:^|[._])(?:stem|patch_embed|patch_embeddings?|first_conv|conv_first|in_conv"
    r"|conv_in|conv_stem|inc)[._]"
    r"|(?:^|\.)features\.0\.|^(?:[A-Za-z_]{1,100}\.){0,4}conv_?[01]\.weight$"
)
"""Names of the layer that takes the picture, or of what is around it."""


def _takes_others(row: Mismatch) -> bool:
    """Tell whether only the channels that a convolution takes differ.

    Tables of positions and of experts have three dimensions too, and are no weights of
    convolutions.
    """
    one, two = row.checkpoint, row.model
    is_alike = len(one) == len(two) > 2 and (one[0], *one[2:]) == (two[0], *two[2:])
    # KPConv of point clouds calls them weights.
    is_convolution = row.name.endswith(("weight", "weights")) and (
        len(one) > 3 or "conv" in row.name.lower()
    )
    return is_alike and is_convolution and one[1] != two[1]


def _is_first(name: str, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Tell whether a convolution takes the input of the model: it stands first in the
    file, or has the name of such a layer.
    """
    # A state dict has the order in which the model registers its layers.
    first = next((other for other, shape in shapes.items() if len(shape) > 2), None)
    return name == first or bool(_DIFFUSION.search(name) or _FIRST.search(name))


_VIT = re.compile(r"(?:^|\.)blocks\.\d+\.attn\.qkv\.weight$")
_VIT_WIDTHS = {192: "ViT-Ti", 384: "ViT-S", 768: "ViT-B", 1024: "ViT-L", 1280: "ViT-H"}
_LEAST_WIDE = 4
"""Tensors that must differ by one factor: a few may do so by chance."""
_MOST_PARTS = 0.8
"""The part of the tensors that must: the last layer, positions and words may have other
sizes.
"""


def scaled_rows(rows: Sequence[Mismatch]) -> list[Mismatch]:
    """The tensors by which one model is wider than the other, where nearly all differ
    by the same factor.
    """
    factors = Counter(_width_factor(row) for row in rows)
    factor, count = factors.most_common(1)[0] if factors else (None, 0)
    if factor is None or count < _LEAST_WIDE or count < _MOST_PARTS * len(rows):
        return []
    wide = [row for row in rows if _width_factor(row) == factor]
    # Along one dimension alone, the file may be of one rank.
    return wide if any(len(_differing_sizes(row)) > 1 for row in wide) else []


def width_statement(
    wide: Sequence[Mismatch], beside: tuple[str, list[str]] | None, *, is_same: bool
) -> Statement:
    """The sentence on a model that is wider than the other. `is_same` is false where
    both have names of their own, so that they need not be one architecture. `beside` is
    the part that has all of them, and the other parts of the file.
    """
    # The smallest size is the width itself, and larger ones are multiples of it, as in
    # an MLP.
    here, there = min(pair for row in wide for pair in _differing_sizes(row))
    likely = ""
    transformers = [row for row in wide if _VIT.search(row.name)]
    if transformers:
        # The rows of qkv are three times the width, and index 1 is the width.
        here, there = transformers[0].checkpoint[1], transformers[0].model[1]
        if here in _VIT_WIDTHS and there in _VIT_WIDTHS:
            likely = (
                f" The checkpoint looks like {_VIT_WIDTHS[here]}, and the model like "
                f"{_VIT_WIDTHS[there]}."
            )
    which = "narrower" if there < here else "wider"
    if beside is not None and not likely and is_same:
        part, others = beside
        return Statement(
            f"The model is {which} than the checkpoint in {len(wide):,} tensors of "
            f"{show(part, 80)}, by the same factor ({here:,} in the checkpoint and "
            f"{there:,} in the model), and the message names nothing of "
            f"{and_more([show(name, 60) for name in others], 4)}: a setting of this "
            "part, or another version or variant of its code. Build the model as the "
            "run that saved did."
        )
    return Statement(
        f"The model is {which} than the checkpoint in {len(wide):,} of these tensors, "
        f"by the same factor ({here:,} in the checkpoint and {there:,} in the model): "
        f"another {'size of the same architecture' if is_same else 'width as well'}."
        f"{likely} Build the model in the size of the checkpoint."
    )


def part_of_wide(
    wide: Sequence[Mismatch], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, list[str]] | None:
    """The part that has all tensors which are wider, and the parts with weights beside
    it, or None where they are in no one part or in all of the file.
    """
    part: list[str] = []
    for words in zip(*(row.name.split(".")[:-1] for row in wide), strict=False):
        if len(set(words)) > 1:
            break
        part.append(words[0])
    if not part:
        return None
    begin = ".".join(part) + "."
    others = dict.fromkeys(
        name.partition(".")[0]
        for name, shape in shapes.items()
        if len(shape) > 1 and not name.startswith(begin)
    )
    # Parts below one wrapper have its name alone.
    others.pop(part[0], None)
    return (begin[:-1], list(others)) if others else None


def _differing_sizes(row: Mismatch) -> list[tuple[int, int]]:
    """The sizes that differ, of the checkpoint and of the model."""
    return [
        (one, two)
        for one, two in zip(row.checkpoint, row.model, strict=False)
        if one != two
    ]


def _is_kernel_alone(row: Mismatch) -> bool:
    """Tell whether the kernel of a convolution differs and its channels do not."""
    # Three dimensions with a first of 1 are a table of positions, and no kernel.
    is_convolution = len(row.model) > 3 or (len(row.model) == 3 and row.model[0] > 1)
    return is_convolution and row.checkpoint[:2] == row.model[:2]


def _width_factor(row: Mismatch) -> Fraction | None:
    """The factor by which a model is wider in all dimensions that differ, or None where
    there is none.
    """
    pairs = _differing_sizes(row)
    if (
        len(row.checkpoint) != len(row.model)
        or not pairs
        or not all(one and two for one, two in pairs)
        or _is_kernel_alone(row)
    ):
        return None
    factors = {Fraction(two, one) for one, two in pairs}
    return factors.pop() if len(factors) == 1 else None


# --- one layer by another name --------------------------------------------------------


class Pair(NamedTuple):
    """The only layer of a file without a place, and the only layer that a model
    lacks.
    """

    old: str
    new: str
    shapes: str

    def statement(self, command: str | None, *, is_alone: bool) -> Statement:
        """The pair, called a guess, with the command to paste once the shapes were
        compared. `is_alone` means that nothing else is renamed.
        """
        follows = "If the model's are the same"
        follows += ":" if is_alone else ", this renames it with the others:"
        return Statement(
            f"{show(self.new, 80)} is the only layer that is missing, and "
            f"{show(self.old, 80)} the only one of this file without a place: perhaps "
            "one layer, renamed. This is a guess, for the message has no shapes of the "
            f"model. In the file: {self.shapes}. {follows}",
            (),
            command,
        )


def likely_pair(
    absent: Sequence[str], rest: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> Pair | None:
    """Pair the only missing layer with the only one that is left over, where both have
    the same parts.
    """
    lost = {name.rpartition(".")[0] for name in absent}
    left = {name.rpartition(".")[0] for name in rest}
    if len(lost) != 1 or len(left) != 1:
        return None
    parts = sorted(name.rpartition(".")[2] for name in rest)
    ((new,), (old,)) = (lost, left)
    # One weight is like any other, where no word of its layer speaks for it.
    if len(parts) < 2 and not share_last_word(old, new):
        return None
    if (
        parts != sorted(name.rpartition(".")[2] for name in absent)
        or not new
        or not old
    ):
        return None
    # The name goes into a command that the user pastes.
    if re.fullmatch(r"[\w.-]{1,200}", new) is None:
        return None
    listed = [f"{part} {list(shapes[f'{old}.{part}'])}" for part in parts]
    return Pair(old, new, ", ".join(listed[:4]))
