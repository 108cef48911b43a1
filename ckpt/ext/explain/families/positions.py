"""Position embeddings and windows of attention of another size: the grids of patches
that their numbers of rows are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isqrt

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.text import and_more, show

POSITIONS = re.compile(
    r"(?:^|[._])(?:pos_embed|embed_positions|position_embeddings?|positional_embedding"
    r"|wpe|relative_position)"
)


BIAS_TABLE = re.compile(r"(?:^|[._])relative_position_bias_table$")
"""The table of a Swin Transformer, with a row for each way from one place of a window
to another one.
"""


_OFFSETS = re.compile(r"(?:^|[._])attention_biases$")
"""The table of LeViT, TinyViT and their kin, with a column for each distance between
two places of a window, in rows and columns.
"""


def offsets_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say which windows the biases of attention are of that have a column for each
    distance, or return None.
    """
    tables = [row for row in rows if _OFFSETS.search(row.name)]
    sides: set[tuple[int, int]] = set()
    for row in tables:
        if len(row.checkpoint) != 2 or row.checkpoint[:1] != row.model[:1]:
            return None
        here, there = isqrt(row.checkpoint[1]), isqrt(row.model[1])
        if (here**2, there**2) != (row.checkpoint[1], row.model[1]):
            return None
        sides.add((here, there))
    if not sides:
        return None
    listed = [
        f"{here} x {here} places in the checkpoint and {there} x {there} in the model"
        for here, there in sorted(sides)
    ]
    return Statement(
        "The biases of attention have a number for each distance in a window: of "
        f"{and_more(listed, 3)}. The window follows from the size of the image (or is "
        "an option, window_sizes), so the model was built for another one. Build it "
        "for that of the checkpoint, or interpolate the biases of each head as a "
        "picture of that many places, as the code of TinyViT for fine-tuning at "
        "another size does. A load of what fits leaves them untrained."
    )


OFFSETS_LINE = (
    "state.update((name, torch.nn.functional.interpolate(state[name].reshape(1, "
    "len(value), *[round(state[name].shape[1] ** 0.5)] * 2), "
    '[round(value.shape[1] ** 0.5)] * 2, mode="bicubic").flatten(2)[0]) for name, '
    'value in model.state_dict().items() if name.endswith("attention_biases"))'
)
"""The line that interpolates the biases of a state dict to the windows of a model."""


def is_of_offsets(row: Mismatch) -> bool:
    """Tell whether a tensor is a table of biases for the distances in a window."""
    return _OFFSETS.search(row.name) is not None


def bias_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say which windows the tables of relative positions are of, or return None."""
    tables = [row for row in rows if BIAS_TABLE.search(row.name)]
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
    if is_other_attention(row):
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


def is_other_attention(row: Mismatch) -> bool:
    """Tell whether a table of relative positions is of a window in one dimension on one
    side, and in two on the other one.
    """
    sides = [isqrt(shape[0]) ** 2 == shape[0] for shape in (row.checkpoint, row.model)]
    return BIAS_TABLE.search(row.name) is not None and sides[0] != sides[1]


def _window_text(count: int) -> str:
    """The window that has so many relative positions: 2w - 1 along each dimension.
    Empty where there is none.
    """
    side = isqrt(count)
    if side * side == count and side % 2:
        return f"a window of {(side + 1) // 2} x {(side + 1) // 2}"
    return f"a window of {(count + 1) // 2} in one dimension" if count % 2 else ""


def _positions_text(shape: Sequence[int]) -> str:
    """The number of positions of an embedding, and the square of patches that it is:
    `257 (16 x 16 and 1 more)`.
    """
    count, side = _count_positions(shape), _grid_side(shape)
    if not side:
        return f"{count:,}"
    more = count - side * side
    return f"{count:,} ({side} x {side}{f' and {more} more' if more else ''})"


def has_equal_grids(row: Mismatch) -> bool:
    """Tell whether both sides have one grid of patches, and other places beside it."""
    side = _grid_side(row.checkpoint)
    return bool(POSITIONS.search(row.name)) and 0 < side == _grid_side(row.model)


def _tokens_statement(row: Mismatch, message: Message) -> Statement | None:
    """Say that one side has places for more tokens beside an equal grid of patches, or
    return None.
    """
    if not has_equal_grids(row):
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
    # A video has one for each frame as well: [1, frames, height, width, channels].
    if len(shape) == 5 and shape[0] == 1:
        return shape[1] * shape[2] * shape[3]
    return shape[-2] if len(shape) > 1 else 0


def _video_statement(
    row: Mismatch, shapes: dict[str, tuple[int, ...]]
) -> Statement | None:
    """Say that positions are of a grid of frames, rows and columns, where the patches
    of a file have three dimensions, or return None.
    """
    kernels = {
        shape[2:]
        for name, shape in shapes.items()
        if len(shape) == 5 and _PATCHES.search(name)
    }
    if len(kernels) != 1:
        return None
    sides = []
    for shape in (row.checkpoint, row.model):
        grid = " x ".join(map(str, shape[1:4])) if len(shape) == 5 else ""
        sides.append(f"{_count_positions(shape):,}{f' ({grid})' if grid else ''}")
    (kernel,) = kernels
    return Statement(
        f"Position embeddings differ: {sides[0]} in the checkpoint and {sides[1]} in "
        "the model. The patches of this file have three dimensions "
        f"({' x '.join(map(str, kernel))}), so the positions are a grid of frames, "
        "rows and columns, or of a volume: another number of frames or another size "
        "goes in. Build the model with both of the checkpoint, or interpolate the grid "
        "along the dimension that differs. A load of what fits leaves it untrained."
    )


def positions_statement(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]], message: Message
) -> Statement | None:
    """Say how many positions the first embedding of another number has, or return
    None.
    """
    row = next((row for row in rows if _has_other_positions(row)), None)
    if row is None:
        return None
    video = _video_statement(row, shapes)
    if video is not None:
        return video
    extra = _tokens_statement(row, message)
    if extra is not None:
        return extra
    few = _padded_statement(row) or _few_statement(row)
    if few is not None:
        return few
    counts = " and ".join(
        f"{_positions_text(shape)} in the {side}"
        for side, shape in (("checkpoint", row.checkpoint), ("model", row.model))
    )
    return Statement(
        f"Position embeddings differ: {counts}.{_image_text(row, shapes)} Build the "
        "model with the image size, or the greatest length, of the checkpoint, or "
        "interpolate them. A load of what fits leaves them untrained."
    )


_FEW = 8
"""Positions more that are tokens of their own, and no longer text or larger picture."""
_A_LENGTH = 16
"""A greatest length is a multiple of it, as a rule, or one or two more than one."""


_PADDED = 2
"""The places that RoBERTa and its kin leave out before the first position."""


_OF_TEXT = re.compile(r"(?:embeddings\.position_embeddings|embed_positions)\.weight$")
"""Positions of a language model, in the names of transformers and of fairseq."""


def _padded_statement(row: Mismatch) -> Statement | None:
    """Say that one side has two positions more for the same length of a text, or return
    None.
    """
    here, there = _count_positions(row.checkpoint), _count_positions(row.model)
    length = min(here, there)
    if not _OF_TEXT.search(row.name):
        return None
    if abs(here - there) != _PADDED or len(row.model) != 2 or length % (4 * _A_LENGTH):
        return None
    more = "checkpoint" if here > there else "model"
    return Statement(
        f"{show(row.name, 100)} has {here:,} rows in the checkpoint and {there:,} in "
        f"the model, for texts of {length:,} tokens in both: RoBERTa, BART and their "
        f"kin have two rows more, for they count from 2, and so does the {more}. So it "
        "is another language model and not another length: interpolate nothing, and "
        "build the model of the checkpoint."
    )


def _few_statement(row: Mismatch) -> Statement | None:
    """Say that positions differ by a few that are of no picture and no length, or
    return None: tokens of conditions, steps or registers.
    """
    here, there = _count_positions(row.checkpoint), _count_positions(row.model)
    is_round = any(count % _A_LENGTH in (0, 1) for count in (here, there))
    has_grid = any(_grid_side(shape) for shape in (row.checkpoint, row.model))
    if abs(here - there) > _FEW or is_round or has_grid:
        return None
    return Statement(
        f"{show(row.name, 100)} has {here:,} positions in the checkpoint and "
        f"{there:,} in the model, {abs(here - there):,} apart. So few are no other "
        "length and no other picture, most likely: the program puts other tokens into "
        "the sequence (conditions, goals, time, memory), by its version or its "
        "options. Take the file of this version, or the version of the file, and do "
        "not interpolate: each place has a meaning of its own."
    )


def are_other_grids(row: Mismatch) -> bool:
    """Tell whether both sides are square grids of patches, one larger than the other,
    of embeddings of one width.
    """
    sides = [_grid_side(shape) for shape in (row.checkpoint, row.model)]
    if 0 in sides or sides[0] == sides[1] or row.checkpoint[-1] != row.model[-1]:
        return False
    return _has_other_positions(row)


def _has_other_positions(row: Mismatch) -> bool:
    """Tell whether a tensor has embeddings of another number of positions."""
    if not POSITIONS.search(row.name):
        return False
    return _count_positions(row.checkpoint) != _count_positions(row.model)
