"""The tensors that hold codes, and those beside them that turn codes into values:
scales, zero points, indices, tables.

A name alone decides nothing: a model may call any parameter `scale`. A scale stands
beside a tensor of codes, under the name that a writer of quantized weights gives it, in
a shape and a dtype that fit the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Literal

from ckpt.model.checkpoint import Checkpoint, Entry, looks_of, names_of
from ckpt.model.names import LazyPattern
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef
from ckpt.tree.find import children_of
from ckpt.tree.view import look

Part = Literal["scale", "zero point", "index", "table", "note", "input scale"]
"""The role of a tensor beside codes. A table gives codes their values, a note says how
they are packed.

An `input scale` is about what a layer is given, and not about its weight.
"""

_EIGHT_BITS = frozenset(
    ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
)
_SCALE_TYPES = frozenset(
    ("float64", "float32", "float16", "bfloat16", "float8_e8m0fnu")
)
_BLOCK = 128
"""The rows and the columns of a block of DeepSeek-V3, which most others took over."""
_PACKING = 8
"""The most codes in an element of a tensor of packed codes, along one dimension."""

Fits = Callable[[Tensor, Tensor], bool]
"""Tells whether the shape of a scale, the second one, goes with the codes."""


def _is_grid(codes: Tensor, scale: Tensor) -> bool:
    """Tell whether each element of a scale can stand for a block of the codes: for all
    of them, for a row, for a tile.
    """
    if scale.numel == 1:
        return True
    mine, other = codes.shape, scale.shape
    if len(other) == 1:
        return other[0] in (mine[0], mine[-1])
    return len(mine) == len(other) and all(
        0 < few <= many for few, many in zip(other, mine, strict=True)
    )


def _is_packed_grid(codes: Tensor, scale: Tensor) -> bool:
    """As `_is_grid`, for codes of which one element holds several."""
    # Codes packed along one dimension do not tell the length of a list of scales.
    if scale.numel == 1 or (len(scale.shape) == 1 and len(codes.shape) == 2):
        return True
    mine, other = codes.shape, scale.shape
    # The lengths are compared below.
    pairs = zip(other, mine, strict=False)
    return len(mine) == len(other) and all(
        0 < few <= _PACKING * many for few, many in pairs
    )


def _is_tiled(codes: Tensor, scale: Tensor) -> bool:
    """Tell whether a scale has one element for each block of 128 rows and 128 columns
    of the codes.
    """
    tiles = (
        _tiled_scale_shape(codes.shape, (_BLOCK, _BLOCK))
        if len(codes.shape) >= 2
        else ()
    )
    return scale.numel > 1 and scale.shape == tiles


def _is_last_dimension_less(codes: Tensor, scale: Tensor) -> bool:
    """Tell whether each scale stands for the codes along the last dimension."""
    return len(codes.shape) > 1 and scale.shape == codes.shape[:-1]


def _is_list(codes: Tensor, scale: Tensor) -> bool:
    """Tell whether a scale is a list, of blocks of codes that are not told apart by
    rows.
    """
    return len(scale.shape) == 1


def _is_table(codes: Tensor, scale: Tensor) -> bool:
    """Tell whether a tensor is a matrix of scales of any size, beside codes that are
    listed in one column.
    """
    return len(scale.shape) in (1, 2)


class Layout(NamedTuple):
    """The tensors of one way of writing quantized weights, by the ends of their names.

    The name of the codes ends with `codes`; each key of `beside` is put in the place of
    that end. Any of `scales` makes it this layout, where its shape and dtype fit; the
    others count only beside one.
    """

    label: str
    codes: str
    types: frozenset[str]
    scales: tuple[str, ...]
    fits: Fits = _is_grid
    scale_types: frozenset[str] = _SCALE_TYPES
    beside: Mapping[str, Part] = {}
    is_packed: bool = True
    """False where an element of the codes is a number of its own."""


_INPUTS: dict[str, Part] = dict.fromkeys(
    (
        "input_scale",
        "input_scale_ub",
        "input_global_scale",
        "output_scale",
        "activation_scale",
        "scale_input",
        "qscale_act",
    ),
    "input scale",
)
_ZEROS: dict[str, Part] = {
    "weight_zero_point": "zero point",
    "input_zero_point": "zero point",
}
_NOTES: dict[str, Part] = {
    "weight_shape": "note",
    "weight_g_idx": "index",
    "comfy_quant": "note",
}
_ALL = {**_INPUTS, **_ZEROS, **_NOTES}
_ABSMAX = ".absmax"
"""The end that bitsandbytes adds to the name of codes; they may lie in a tensor of any
dtype.
"""
_INTS = frozenset(("int8", "uint8", "int16", "uint16", "int32", "uint32"))
_GPTQ: dict[str, Part] = {"qzeros": "zero point", "g_idx": "index"}
_FOUR_BITS: dict[str, Part] = {
    ".nested_absmax": "scale",
    ".quant_map": "table",
    ".nested_quant_map": "table",
    ".quant_state.bitsandbytes__nf4": "note",
    ".quant_state.bitsandbytes__fp4": "note",
}
HQQ_SETTINGS = (
    "shape",
    "nbits",
    "group_size",
    "axis",
    "packing",
    "view_as_float",
    "unpack_view_dtype",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
)
"""The settings that HQQ writes as tensors beside the codes of a weight."""
_HQQ: dict[str, Part] = {
    **{
        f"{start}{name}": "zero point"
        for start in ("", "meta.")
        for name in ("zero", "zero_q")
    },
    **{f"{start}zero_scale": "scale" for start in ("", "meta.")},
    **dict.fromkeys(HQQ_SETTINGS, "note"),
}

LAYOUTS: tuple[Layout, ...] = (
    # DeepSeek-V3, transformers, FBGEMM, compressed-tensors, ModelOpt; ComfyUI; Mistral.
    Layout(
        "FP8 with scales",
        "weight",
        _EIGHT_BITS,
        ("weight_scale_inv", "weight_scale", "scale_weight", "qscale_weight"),
        beside=_ALL,
        is_packed=False,
    ),
    # Experts in one tensor.
    Layout(
        "FP8 with scales", "", _EIGHT_BITS, ("_scale_inv", "_scale"), is_packed=False
    ),
    # The inference code of DeepSeek-V3.
    Layout(
        "FP8 with scales", "weight", _EIGHT_BITS, ("scale",), _is_tiled, is_packed=False
    ),
    # ModelOpt: the scale of a whole tensor is `weight_scale_2`.
    Layout(
        "NVFP4 with scales",
        "weight",
        frozenset(("uint8", "float4_e2m1fn_x2")),
        ("weight_scale",),
        _is_packed_grid,
        frozenset(("float8_e4m3fn",)),
        {**_ALL, "weight_scale_2": "scale"},
    ),
    # compressed-tensors: the same codes under other names.
    Layout(
        "NVFP4 with scales",
        "weight_packed",
        frozenset(("uint8",)),
        ("weight_scale",),
        _is_packed_grid,
        frozenset(("float8_e4m3fn",)),
        {**_ALL, "weight_global_scale": "scale"},
    ),
    Layout(
        "MXFP4 with scales",
        "weight_packed",
        frozenset(("uint8",)),
        ("weight_scale",),
        _is_packed_grid,
        frozenset(("uint8", "float8_e8m0fnu")),
        _ALL,
    ),
    # compressed-tensors, pack-quantized.
    Layout(
        "packed integers with scales",
        "weight_packed",
        frozenset(("int32", "uint8")),
        ("weight_scale",),
        _is_packed_grid,
        beside=_ALL,
    ),
    # gpt-oss.
    Layout(
        "MXFP4 with scales",
        "_blocks",
        frozenset(("uint8",)),
        ("_scales",),
        _is_last_dimension_less,
        frozenset(("uint8", "float8_e8m0fnu")),
    ),
    Layout(
        "bitsandbytes 4-bit with scales",
        "",
        # bnb_4bit_quant_storage: FSDP shards only tensors of one dtype together.
        frozenset(("uint8", "bfloat16", "float16", "float32")),
        (_ABSMAX,),
        _is_list,
        frozenset(("uint8", "float32")),
        _FOUR_BITS,
    ),
    Layout(
        "bitsandbytes 8-bit with scales",
        "weight",
        frozenset(("int8",)),
        ("SCB", "weight.SCB"),
        beside={"weight_format": "note"},
        is_packed=False,
    ),
    # AWQ has the same names: `_layout_label` tells the two apart.
    Layout(
        "GPTQ with scales",
        "qweight",
        frozenset(("int32",)),
        ("scales",),
        _is_packed_grid,
        beside=_GPTQ,
    ),
    Layout(
        "HQQ with scales",
        "W_q",
        _INTS,
        ("scale", "meta.scale", "scale_q", "meta.scale_q"),
        _is_table,
        _SCALE_TYPES | {"uint8"},
        _HQQ,
    ),
    Layout(
        "MLX with scales",
        "weight",
        frozenset(("uint32",)),
        ("scales",),
        _is_packed_grid,
        _SCALE_TYPES | {"uint8"},
        # MLX calls the offset of a group its bias.
        {"biases": "zero point"},
    ),
    Layout(
        "integers with scales",
        "weight",
        frozenset(("int8", "uint8")),
        ("weight_scale", "weight_scales", "weight_scale_inv"),
        _is_packed_grid,
        beside=_ALL,
    ),
    # Two and four bits: codes of other rows in one byte.
    Layout(
        "quanto with scales, packed",
        "._data._data",
        frozenset(("uint8",)),
        ("._scale",),
        _is_table,
        beside={"._shift": "zero point"},
    ),
    Layout(
        "quanto with scales",
        "._data",
        _INTS | _EIGHT_BITS,
        ("._scale",),
        _is_packed_grid,
        beside={"._shift": "zero point", "._zeropoint": "zero point"},
    ),
    # The tensors that `ckpt convert --plain` makes of those of torchao.
    Layout(
        "torchao with scales",
        ".qdata",
        _INTS | _EIGHT_BITS,
        (".scale",),
        _is_packed_grid,
        beside={".zero_point": "zero point"},
    ),
    Layout(
        "torchao with scales",
        ".int_data",
        _INTS | _EIGHT_BITS,
        (".scale",),
        _is_packed_grid,
        beside={".zero_point": "zero point"},
    ),
    Layout(
        "torchao with scales",
        "weight_qdata",
        _INTS | _EIGHT_BITS,
        ("weight_scale",),
        _is_packed_grid,
        beside={"weight_zero_point": "zero point", "weight_zero": "zero point"},
    ),
)
"""The layouts, the first that fits counts."""

# Floats hold codes for bitsandbytes alone, which `.absmax` gives away.
_TYPES = frozenset().union(*(layout.types for layout in LAYOUTS)) - {
    "bfloat16",
    "float16",
    "float32",
}
LONE = "_scale_inv"
"""The end of a name that no parameter has but a scale, also where its codes lie in
another file.
"""


class Codes(NamedTuple):
    """A tensor of codes: its layout, and the index of the scale that says so."""

    label: str
    scale: int
    layout: Layout


class Beside(NamedTuple):
    """A tensor beside codes: its role, and the index of the codes, or None where they
    are not in the file.
    """

    part: Part
    codes: int | None


class Config(NamedTuple):
    """The facts of `quantization_config` in the config.json of a folder."""

    method: str
    block: tuple[int, int] | None = None


class Scaled(NamedTuple):
    """The tensors of a checkpoint that hold codes, and those beside them, by their
    indices.

    `unpaired` are 8-bit floats without a scale in a file where others have one, or
    whose config says that they have.
    """

    codes: dict[int, Codes]
    beside: dict[int, Beside]
    unpaired: tuple[int, ...] = ()
    config: Config | None = None

    def group_of(self, index: int) -> int | None:
        """The index of the codes that a tensor belongs to, or None: it takes both to
        know the values.
        """
        if index in self.codes:
            return index
        row = self.beside.get(index)
        # The scale of an input says nothing about the values of the weight.
        return None if row is None or row.part == "input scale" else row.codes

    def what(self, index: int) -> str | None:
        """The name of the layout of codes, or None for a tensor that holds values."""
        row = self.codes.get(index)
        if row is not None:
            return row.label
        return (
            "FP8, of which the scale is not in this file"
            if index in self.unpaired
            else None
        )


NOTHING = Scaled({}, {})


_SHARD = LazyPattern(r"-\d{5}-of-\d{5}\.[\w.]+$")
"""The end of the name of one file of several, as transformers numbers them."""


def is_shard(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint is one numbered file of several, which was opened
    alone.
    """
    return not checkpoint.parts and _SHARD.search(checkpoint.path) is not None


def find_scaled(
    entries: Sequence[Entry], config: Config | None = None, *, is_part: bool = False
) -> Scaled:
    """The codes among some tensors, and the tensors beside them. Looks at names, shapes
    and dtypes alone.

    `is_part` says that more tensors are in other files.
    """
    looks = looks_of(entries)
    # Tensors of one type and shape are one look: a model of 10,000 has some dozens.
    distinct_looks = {id(look): look for look in looks}.values()
    types = {look.dtype.name for look in distinct_looks}
    names = names_of(entries)
    text = "\n".join([*names, ""])  # one search is faster than one for each name
    has_lone = f"{LONE}\n" in text
    if types.isdisjoint(_TYPES) and not has_lone and f"{_ABSMAX}\n" not in text:
        return NOTHING
    places = {name: index for index, name in enumerate(names)}
    codes: dict[int, Codes] = {}
    beside: dict[int, Beside] = {}
    # A layout needs one of its scales. Where no name ends like them, as in most files
    # of integers, its names are not looked up for each tensor.
    possible = [
        layout
        for layout in LAYOUTS
        if any(f"{ending}\n" in text for ending in layout.scales)
    ]
    layouts = {
        kind: [layout for layout in possible if kind in layout.types]
        for kind in types
        if kind in _TYPES or f"{_ABSMAX}\n" in text
    }
    rows = zip(names, looks, strict=True) if possible else ()
    for index, (name, tensor) in enumerate(rows):
        # A composite tensor, as torch quantizes, has its scales in itself.
        if not isinstance(tensor, TensorRef):
            continue
        for layout in layouts.get(tensor.dtype.name, ()):
            stem = _name_stem(name, layout.codes)
            scale = (
                None if stem is None else _scale_of(stem, tensor, layout, places, looks)
            )
            if stem is None or scale is None:
                continue
            codes[index] = Codes(
                _layout_label(layout, tensor, looks[scale]), scale, layout
            )
            for ending, part in (
                *((end, "scale") for end in layout.scales),
                *layout.beside.items(),
            ):
                place = places.get(stem + ending)
                if place is not None and place != index:
                    beside.setdefault(place, Beside(part, index))
            break
    for index in [index for index in codes if index in beside]:
        del codes[index]  # 8-bit floats that scale others
    if has_lone:
        for name, index in places.items():
            if (
                name.endswith(LONE)
                and index not in beside
                and looks[index].dtype.name in _SCALE_TYPES
            ):
                beside[index] = Beside("scale", None)
    is_sure = is_part or (config is not None and config.method in _METHODS)
    return Scaled(
        codes, beside, tuple(_unscaled_matrices(looks, codes, beside, is_sure)), config
    )


def _unscaled_matrices(
    looks: Sequence[Tensor],
    codes: Mapping[int, Codes],
    beside: Mapping[int, Beside],
    is_sure: bool,
) -> Iterable[int]:
    """Yield the matrices of 8-bit floats that have no scale, where it may be elsewhere,
    or must be.
    """
    if not is_sure and not any(row.label.startswith("FP8") for row in codes.values()):
        if not any(row.codes is None for row in beside.values()):
            return
    for index, tensor in enumerate(looks):
        # Writers quantize matrices: a vector of 8-bit floats needs no scale.
        if tensor.dtype.name in _EIGHT_BITS and len(tensor.shape) > 1 and tensor.numel:
            if index not in codes and index not in beside:
                yield index


_METHODS = frozenset(
    ("fp8", "fbgemm_fp8", "finegrained_fp8", "compressed-tensors", "modelopt", "mxfp8")
)
"""Values of `quant_method` that give 8-bit floats a scale."""


def _name_stem(name: str, ending: str) -> str | None:
    """The name without the end of the name of codes, or None where it has
    another one.
    """
    if not name.endswith(ending):
        return None
    stem = name[: len(name) - len(ending)]
    # `myweight` does not end with the word `weight`.
    is_word = not ending or ending[0] in "._" or not stem or stem[-1] in "._"
    return stem if is_word else None


def _scale_of(
    stem: str,
    codes: Tensor,
    layout: Layout,
    places: Mapping[str, int],
    looks: Sequence[Tensor],
) -> int | None:
    """The index of the tensor that scales codes, or None."""
    for ending in layout.scales:
        index = places.get(stem + ending)
        if index is None:
            continue
        scale = looks[index]
        is_scale = (
            isinstance(scale, TensorRef)
            and scale.numel > 0
            and codes.numel > 0
            and codes.shape
        )
        if (
            is_scale
            and scale.dtype.name in layout.scale_types
            and layout.fits(codes, scale)
        ):
            return index
    return None


def _layout_label(layout: Layout, codes: Tensor, scale: Tensor) -> str:
    """The name of a layout; GPTQ and AWQ have the same names, and pack along another
    dimension.
    """
    if layout.codes == "qweight" and len(scale.shape) == len(codes.shape) == 2:
        # GPTQ packs along the rows, so codes and scales have as many columns.
        return layout.label if codes.shape[1] == scale.shape[1] else "AWQ with scales"
    return layout.label


def config_of(checkpoint: Checkpoint) -> Config | None:
    """The `quantization_config` of the config.json in a folder, or None."""
    for member in checkpoint.members:
        if member.key == "config" and member.file.endswith("config.json"):
            fields = _mapping_fields(
                _mapping_fields(member.checkpoint.root).get("quantization_config")
            )
            method = fields.get("quant_method")
            if isinstance(method, str):
                # DeepSeek-V3 writes [128, 128]; most other methods have no such key.
                block = fields.get("weight_block_size")
                sizes = block if type(block) is list and len(block) == 2 else []
                numbers = [size for size in sizes if type(size) is int and size > 0]
                return Config(
                    method, (numbers[0], numbers[1]) if len(numbers) == 2 else None
                )
    return None


def _mapping_fields(node: Node) -> dict[str, Node]:
    return (
        {str(key): child for key, child in children_of(node)}
        if look(node).kind == "mapping"
        else {}
    )


# --- for people -----------------------------------------------------------------------


class Group(NamedTuple):
    """The codes of one layout, by their indices, and the blocks that a scale stands
    for, where they are alike.
    """

    label: str
    indices: tuple[int, ...]
    blocks: str = ""

    @property
    def text(self) -> str:
        """The layout with its blocks: `FP8 with scales, blocks of 128 x 128`."""
        return f"{self.label}, {self.blocks}" if self.blocks else self.label


def groups_of(scaled: Scaled, entries: Sequence[Entry]) -> list[Group]:
    """The codes of a checkpoint by their layouts, the most frequent first."""
    by_label: dict[str, list[int]] = {}
    for index, row in scaled.codes.items():
        by_label.setdefault(row.label, []).append(index)
    looks = looks_of(entries) if by_label else []
    block = None if scaled.config is None else scaled.config.block
    groups = []
    for label, indices in by_label.items():
        rows = [
            (looks[index].shape, looks[scaled.codes[index].scale].shape)
            for index in indices
        ]
        is_packed = any(scaled.codes[index].layout.is_packed for index in indices)
        groups.append(
            Group(label, tuple(indices), "" if is_packed else _blocks_text(rows, block))
        )
    return sorted(groups, key=lambda group: -len(group.indices))


def _blocks_text(
    rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    block: tuple[int, int] | None,
) -> str:
    """The elements that one element of a scale stands for, where this is the same for
    all tensors.
    """
    distinct = set(rows)
    tiles = block or (_BLOCK, _BLOCK)
    if all(
        len(codes) > 1 and scale == _tiled_scale_shape(codes, tiles)
        for codes, scale in distinct
    ):
        # A matrix that is smaller than a block does not show the size of the block.
        if block is not None or any(scale[-2:] != (1, 1) for _, scale in distinct):
            return f"blocks of {tiles[0]} x {tiles[1]}"
    if all(prod(scale) == 1 for _, scale in distinct):
        return "one for each tensor"
    if all(_is_by_row(codes, scale) for codes, scale in distinct):
        return "one for each row"
    return ""


def _tiled_scale_shape(
    shape: tuple[int, ...], block: tuple[int, int]
) -> tuple[int, ...]:
    """The shape of a scale that has an element for each block of the last two
    dimensions.
    """
    rows = -(-shape[-2] // block[0])  # rounded up
    columns = -(-shape[-1] // block[1])
    return (*shape[:-2], rows, columns)


def _is_by_row(codes: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    return scale in ((codes[0],), (*codes[:-1], 1))
