"""LoRA and its kin under the names of several programs: kohya's sd-scripts, PEFT,
diffusers, LyCORIS.

kohya joins the path of a layer with `_`, so a name alone does not say where its dots
were: it is matched against the names of the other side. Sources: sd-scripts
`networks/lora.py`, LyCORIS `modules/`, diffusers `loaders/lora_conversion_utils.py`,
PEFT `tuners/lora`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor
from ckpt.tree.find import counter

Style = Literal["kohya", "ComfyUI", "PEFT", "diffusers"]
"""`kohya`: `lora_unet_a_b.lora_down.weight`. `ComfyUI`: the same with the dots of the
layer. `diffusers`: its older names.
"""
Method = Literal["LoRA", "LoHa", "LoKr"]

_FLAT = LazyPattern(r"lora_(unet|te[123]?|prior_unet|prior_te|transformer)_(\w+)\.(.+)")
_PARTS = {
    "lora_down.weight": "down",
    "lora_up.weight": "up",
    "lora_mid.weight": "mid",
    "alpha": "alpha",
    "dora_scale": "magnitude",
}
_DOTTED: tuple[tuple[LazyPattern, Style], ...] = (
    (
        LazyPattern(r"(.+)\.processor\.(to_[qkv]|to_out)_lora\.(down|up)\.weight"),
        "diffusers",
    ),
    (
        LazyPattern(r"(.+)\.(?:lora|lora_linear_layer)()\.(down|up)\.weight"),
        "diffusers",
    ),
    (LazyPattern(r"(.+)\.lora_(A|B)(?:\.[^.]+)?\.weight"), "PEFT"),
    (LazyPattern(r"(.+)\.lora_(down|up|mid)\.weight"), "ComfyUI"),
    (LazyPattern(r"(.+)\.(alpha|dora_scale)"), "ComfyUI"),
)
_PEFT_PARTS = {"A": "down", "B": "up", "dora_scale": "magnitude"}
_LYCORIS = LazyPattern(r"(.+)\.((hada|lokr)_\w+)")
_KIN: dict[str, Method] = {"hada": "LoHa", "lokr": "LoKr"}
"""The beginning of the names of parts in LyCORIS -> the method."""
_MARKS = ("lora", "hada_", "lokr_", "alpha", "dora_scale")
"""Texts of which every name of an adapter has one."""
_MARKS_OF_FILES = (".lora_", "_lora.", ".lora.", ".hada_", ".lokr_")
"""As `_MARKS`, without those that tensors of other models have: one with `alpha` may be
a Snake activation.
"""
_RANKED = ("down", "hada_w1_b", "hada_w2_b", "lokr_w1_b", "lokr_w2_b")
"""The parts whose first axis is the rank."""
_PROGRAMS: dict[Style, str] = {
    "kohya": "names of kohya (sd-scripts, A1111, ComfyUI)",
    "ComfyUI": "names of ComfyUI",
    "PEFT": "names of PEFT",
    "diffusers": "names of older diffusers",
}
_COMPONENTS = {
    "unet": "unet",
    "diffusion_model": "unet",
    "text_encoder": "te",
    "text_encoder_2": "te2",
    "text_encoder_3": "te3",
    "transformer": "transformer",
    "te1": "te",
}
"""The first part of a dotted name, or kohya's word for it -> one word for a part of a
pipeline.
"""
_LABELS = {
    "unet": "the UNet",
    "te": "the text encoder",
    "te2": "the second text encoder",
    "te3": "the third text encoder",
}
_LEAST = 2
"""Layers that make a file one of these."""


class Piece(NamedTuple):
    """A tensor of an adapter: the part of the pipeline, the layer with `_` for its
    dots, and the part of the adapter.
    """

    component: str
    layer: str
    part: str
    style: Style
    method: Method = "LoRA"
    module: str = ""
    """The layer as the name has it."""


def piece_of(name: str) -> Piece | None:
    """Read the name of a tensor of an adapter. Any other name gives None."""
    # Most names belong to no adapter, and a search for a text is far cheaper than the
    # patterns.
    if not any(mark in name for mark in _MARKS):
        return None
    flat = _FLAT.fullmatch(name)
    if flat is not None:
        component, layer, part = flat.groups()
        module = f"lora_{component}_{layer}"
        word = _COMPONENTS.get(component, component)
        if part in _PARTS:
            return Piece(word, layer, _PARTS[part], "kohya", "LoRA", module)
        kin = part.partition("_")[0]
        if kin in _KIN:
            return Piece(word, layer, part, "kohya", _KIN[kin], module)
        return None
    lycoris = _LYCORIS.fullmatch(name)
    if lycoris is not None:
        module, part, kin = lycoris.groups()
        return _dotted_piece(module, part, "ComfyUI", _KIN[kin])
    for pattern, style in _DOTTED:
        found = pattern.fullmatch(name)
        if found is not None:
            groups = found.groups()
            module = groups[0]
            part = groups[-1]
            # Older diffusers keeps the projection apart: `attn1.processor.to_q_lora`.
            if len(groups) == 3 and groups[1]:
                module += f".{groups[1]}"
                # to_out is a list there: the matrix, then its dropout.
                if groups[1] == "to_out":
                    module += ".0"
            return _dotted_piece(module, _PEFT_PARTS.get(part, part), style, "LoRA")
    return None


def _dotted_piece(module: str, part: str, style: Style, method: Method) -> Piece:
    """Return the piece of a layer whose name has its dots."""
    # PEFT wraps the model once, and in newer versions each layer too.
    layer = module.removeprefix("base_model.model.").replace(".base_layer", "")
    first, _, rest = layer.partition(".")
    # A name of one part is a layer, and no part of a pipeline.
    component = _COMPONENTS.get(first, "") if rest else ""
    if component:
        layer = rest
    return Piece(component, layer.replace(".", "_"), part, style, method, module)


class Adapter(NamedTuple):
    """The adapter that a file holds. `layers` are those that it changes, each with its
    part of the pipeline.

    `ranks` are all that its layers have. `alphas` are the positions of its scales among
    the tensors.
    """

    style: Style
    methods: tuple[Method, ...]
    layers: dict[str, str]
    ranks: tuple[int, ...]
    alphas: tuple[int, ...]
    has_magnitude: bool = False

    @property
    def format(self) -> str:
        """The program whose names these are."""
        kin = " and ".join(method for method in self.methods if method != "LoRA")
        program = _PROGRAMS[self.style]
        return f"{kin} of LyCORIS, {program}" if kin else program

    @property
    def places(self) -> str:
        """`8 of the UNet, 1 of the text encoder`, or `` where the names do not say."""
        counts: dict[str, int] = {}
        for component in self.layers.values():
            counts[component] = counts.get(component, 0) + 1
        if list(counts) == [""]:
            return ""
        texts = []
        for component, count in counts.items():
            label = _LABELS.get(component, component or "others")
            texts.append(f"{count:,} of {label}")
        return ", ".join(texts)


def adapter_of(names: Sequence[str], tensors: Sequence[Tensor]) -> Adapter | None:
    """Return the adapter that tensors are, by their names and shapes, or None if most
    of them belong to no adapter.
    """
    text = "\n".join(names)
    if not any(mark in text for mark in _MARKS_OF_FILES):
        return None
    pieces: list[tuple[int, Piece]] = []
    for number, name in enumerate(names):
        piece = piece_of(name)
        if piece is not None:
            pieces.append((number, piece))
    # `alpha` alone is no sign: it belongs to the adapter only beside its matrices.
    sure = [(number, piece) for number, piece in pieces if piece.part != "alpha"]
    layers = {piece.module: piece.component for _, piece in sure}
    alphas = [
        number
        for number, piece in pieces
        if piece.part == "alpha" and piece.module in layers
    ]
    if len(layers) < _LEAST or 2 * (len(sure) + len(alphas)) < len(names):
        return None
    styles = [piece.style for _, piece in sure]
    methods = tuple(dict.fromkeys(piece.method for _, piece in sure))
    ranks = {
        tensors[number].shape[0]
        for number, piece in sure
        if piece.part in _RANKED and tensors[number].shape
    }
    return Adapter(
        # The first of several that are as frequent.
        max(dict.fromkeys(styles), key=styles.count),
        methods,
        layers,
        tuple(sorted(ranks)),
        tuple(alphas),
        any(piece.part == "magnitude" for _, piece in sure),
    )


class Scales(NamedTuple):
    """The scales of the layers of an adapter: each is multiplied by alpha / rank.
    `is_all` is False where some were not read.
    """

    alphas: tuple[float, ...]
    ranks: tuple[int, ...]
    is_all: bool = True

    @property
    def text(self) -> str:
        """`alpha 2 (scale 0.5)`, or the range of several; `` where none is known."""
        if not self.alphas:
            return ""
        low, high = self.alphas[0], self.alphas[-1]
        text = f"alpha {low:g}" if low == high else f"alpha {low:g} to {high:g}"
        if low == high and len(self.ranks) == 1 and self.ranks[0]:
            text += f" (scale {low / self.ranks[0]:g})"
        return text if self.is_all else f"{text} in the first layers"


_READ = 256
"""Alphas that are read."""


def scales_of(alphas: Sequence[Tensor], ranks: tuple[int, ...]) -> Scales:
    """Read the scales: a number each."""
    values = [counter(tensor) for tensor in alphas[:_READ]]
    known = sorted(
        {value for value in values if value is not None and math.isfinite(value)}
    )
    return Scales(tuple(known), ranks, len(alphas) <= _READ and None not in values)


# --- between the names of two programs ------------------------------------------------


class Named(NamedTuple):
    """One side of a translation."""

    text: str


class AdapterTranslation(NamedTuple):
    """Names of an adapter in one program's words, each with its name in another one's:
    as `Translation` for whole models.
    """

    names: dict[str, str]
    one: Named
    two: Named
    joins: Mapping[str, list[str]] = MappingProxyType({})
    cuts: Mapping[str, tuple[str, int]] = MappingProxyType({})
    layout: str = ""


def adapter_translation(
    one: Iterable[str], two: Iterable[str]
) -> AdapterTranslation | None:
    """The names of an adapter as the other side writes them, where both are adapters in
    names of two programs.

    A layer whose dots became `_` is the one layer of the other side with this text;
    where two have it, it is none.
    """
    mine = _pieces_by_name(one)
    theirs = _pieces_by_name(two)
    if not mine or not theirs:
        return None
    style = _usual_style(mine.values())
    other_style = _usual_style(theirs.values())
    if style == other_style:
        return None
    names: dict[str, str] = {}
    # The names of a transformer alone say no component. So what is left is paired
    # without it, but never the UNet with a text encoder.
    for with_component in (True, False):
        others = _names_by_part(theirs, with_component)
        for key, name in _names_by_part(mine, with_component).items():
            other = others.get(key, "")
            if not name or not other or name in names:
                continue
            say_both = mine[name].component and theirs[other].component
            if with_component or not say_both:
                names[name] = other
    taken = list(names.values())
    if not names or len(set(taken)) < len(taken):
        return None
    return AdapterTranslation(
        names, Named(f"LoRA of {style}"), Named(f"LoRA of {other_style}")
    )


def _pieces_by_name(names: Iterable[str]) -> dict[str, Piece]:
    """Return the pieces of an adapter among some names, each by its name."""
    pieces: dict[str, Piece] = {}
    for name in names:
        piece = piece_of(name)
        if piece is not None:
            pieces[name] = piece
    return pieces


def _usual_style(pieces: Iterable[Piece]) -> Style:
    styles = [piece.style for piece in pieces]
    return max(dict.fromkeys(styles), key=styles.count)


def _names_by_part(
    side: Mapping[str, Piece], with_component: bool
) -> dict[tuple[str, str, str], str]:
    """The name of each part of a layer; `` where two names have it."""
    found: dict[tuple[str, str, str], str] = {}
    for name, piece in side.items():
        key = piece.component if with_component else "", piece.layer, piece.part
        found[key] = "" if key in found else name
    return found
