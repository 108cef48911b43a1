"""Programs that copy the tensors of a file one by one into a model that they built,
where one of another shape stops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import and_more, counted_noun, show

COPIED = re.compile(
    r"output with shape \[([\d, ]{0,80})\] doesn't match the broadcast shape "
    r"\[([\d, ]{1,80})\]"
)
"""The words of torch for an operation in place whose other tensor is larger."""
_COPIES = re.compile(r"\.copy_\(|copy_params_and_buffers")
"""Lines of a program that copies tensors by their names."""
_BEFORE = 1_500
"""Letters of a traceback before the error in which such a line stands."""


def is_copying(text: str, start: int) -> bool:
    """Tell whether the traceback before an error ends in a copy of tensors."""
    return _COPIES.search(text, max(0, start - _BEFORE), start) is not None


def _shape_of(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.replace(",", " ").split())


def _meets(shape: Sequence[int], target: Sequence[int], joined: Sequence[int]) -> bool:
    """Tell whether a tensor and a target give a broadcast shape together."""
    if len(shape) != len(joined):
        return False
    padded = [1] * (len(joined) - len(target)) + list(target)
    pairs = list(zip(shape, padded, strict=True))
    fits = all(here == there or 1 in (here, there) for here, there in pairs)
    largest = [max(pair) for pair in pairs]
    return fits and tuple(shape) != tuple(target) and largest == list(joined)


def of_copied(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say which tensor of a file a program copies into one of another shape."""
    target, joined = _shape_of(found[1]), _shape_of(found[2])
    names = [
        entry.name
        for section in case.survey.candidates
        for entry in section.entries
        if _meets(entry.tensor.shape, target, joined)
    ]
    if not names:
        return
    shown = and_more([show(name, 120) for name in names], 3)
    has = "has" if len(names) == 1 else "have"
    yield Statement(
        "The program copies each tensor of the file into the one of that name in the "
        f"model that it built, and there a tensor is of shape {list(target)}. "
        f"{counted_noun(len(names), 'tensor')} of this file {has} the shape "
        f"{list(joined)}: {shown}.{_channels_text(target, joined)}"
    )
    yield from of_built_settings(case)


def _channels_text(target: Sequence[int], joined: Sequence[int]) -> str:
    """The sentence on a first layer that takes pictures of other colours."""
    if len(joined) != 4 or len(target) != 4 or joined[1] != 3 or target[1] != 1:
        return " Build the model with the settings of the run that saved."
    return (
        " So the file is for pictures in colour (3 channels), and the model was built "
        "for grey ones (1): by the data set that the program was given. Give it the "
        "pictures in three channels, or train without this file."
    )


_SETTINGS = (
    "img_resolution",
    "img_channels",
    "c_dim",
    "z_dim",
    "w_dim",
    "num_layers",
    "channel_base",
    "channel_max",
)
"""The settings that the networks of StyleGAN and its kin keep as attributes."""
_MOST = 8


def of_built_settings(case: Case) -> Iterator[Statement]:
    """Say with which settings the networks of a pickle were built."""
    held: dict[str, None] = {}
    for name, node in case.finds_value(_SETTINGS):
        if isinstance(node, int) and not isinstance(node, bool):
            held[f"{name.rpartition('.')[2]} {node:,}"] = None
    if held:
        yield Statement(
            f"The networks of this file keep what they were built with: "
            f"{and_more(list(held), _MOST)}."
        )


def of_copied_sizes(case: Case, sizes: tuple[int, int]) -> Iterator[Statement]:
    """Say that a tensor of a file has another size than the one that it is copied
    into.
    """
    into, size = sizes
    names = [
        entry.name
        for section in case.survey.candidates
        for entry in section.entries
        if size in entry.tensor.shape
    ]
    yield Statement(
        "The program copies each tensor of the file into the one of that name in the "
        f"model that it built, and one has {size:,} in the file where the model has "
        f"{into:,} (in {counted_noun(len(names), 'tensor')} of this file a dimension "
        f"is {size:,}): another width, resolution or number of layers. Build the model "
        "with the settings of the run that saved (StyleGAN: --cfg, --cbase, --cmax, "
        "--map-depth, and data of the same size)."
    )
    yield from of_built_settings(case)
