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
_DOTTED = (
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
    if not any(
        mark in name for mark in ("lora", "hada_", "lokr_", "alpha", "dora_scale")
    ):
        return None
    flat = _FLAT.fullmatch(name)
    if flat is not None:
        component, layer, part = flat.groups()
        module = f"lora_{component}_{layer}"
        word = _COMPONENTS.get(component, component)
        if part in _PARTS:
            return Piece(word, layer, _PARTS[part], "kohya", "LoRA", module)
        if part.startswith(("hada_", "lokr_")):
            return Piece(
                word,
                layer,
                part,
                "kohya",
                "LoHa" if part.startswith("hada_") else "LoKr",
                module,
            )
        return None
    kin = _LYCORIS.fullmatch(name)
    if kin is not None:
        return _dotted_piece(
            kin[1], kin[2], "ComfyUI", "LoHa" if kin[3] == "hada" else "LoKr"
        )
    for pattern, style in _DOTTED:
        found = pattern.fullmatch(name)
        if found is not None:
            module, part = found[1], found[found.re.groups]
            if found.re.groups == 3 and found[2]:
                module += f".{found[2]}" + (".0" if found[2] == "to_out" else "")
            return _dotted_piece(module, _PEFT_PARTS.get(part, part), style, "LoRA")  # type: ignore[arg-type]
    return None


def _dotted_piece(module: str, part: str, style: Style, method: Method) -> Piece:
    bare = module.removeprefix("base_model.model.").replace(".base_layer", "")
    first, _, rest = bare.partition(".")
    component = _COMPONENTS.get(first, "") if rest else ""
    return Piece(
        component,
        (rest if component else bare).replace(".", "_"),
        part,
        style,
        method,
        module,
    )


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
        lycoris = f"{kin} of LyCORIS, " if kin else ""
        return (
            lycoris
            + {
                "kohya": "names of kohya (sd-scripts, A1111, ComfyUI)",
                "ComfyUI": "names of ComfyUI",
                "PEFT": "names of PEFT",
                "diffusers": "names of older diffusers",
            }[self.style]
        )

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
    if not any(
        mark in text for mark in (".lora_", "_lora.", ".lora.", ".hada_", ".lokr_")
    ):
        return None
    pieces: list[tuple[int, Piece]] = []
    for number, name in enumerate(names):
        piece = piece_of(name)
        if piece is not None:
            pieces.append((number, piece))
    layers = {
        piece.module: piece.component for _, piece in pieces if piece.part != "alpha"
    }
    alphas = [
        (number, piece)
        for number, piece in pieces
        if piece.part == "alpha" and piece.module in layers
    ]
    sure = [row for row in pieces if row[1].part != "alpha"]
    if len(layers) < _LEAST or 2 * (len(sure) + len(alphas)) < len(names):
        return None
    styles = [piece.style for _, piece in sure]
    methods = tuple(dict.fromkeys(piece.method for _, piece in sure))
    ranks = {
        tensors[number].shape[0]
        for number, piece in sure
        if piece.part in ("down", "hada_w1_b", "hada_w2_b", "lokr_w1_b", "lokr_w2_b")
        and tensors[number].shape
    }
    return Adapter(
        max(dict.fromkeys(styles), key=styles.count),
        methods,
        layers,
        tuple(sorted(ranks)),
        tuple(number for number, _ in alphas),
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
    sides = [
        {name: piece for name in names if (piece := piece_of(name)) is not None}
        for names in (one, two)
    ]
    if not all(sides):
        return None
    styles = [_usual_style(side.values()) for side in sides]
    if styles[0] == styles[1]:
        return None
    names: dict[str, str] = {}
    for with_component in (True, False):
        keys = [_names_by_part(side, with_component) for side in sides]
        for key, name in keys[0].items():
            other = keys[1].get(key, "")
            if name and other and name not in names:
                component, there = sides[0][name].component, sides[1][other].component
                if with_component or not (component and there):
                    names[name] = other
    taken = list(names.values())
    if not names or len(set(taken)) < len(taken):
        return None
    texts = [f"LoRA of {style}" for style in styles]
    return AdapterTranslation(names, Named(texts[0]), Named(texts[1]))


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
