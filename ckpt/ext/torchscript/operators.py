"""The operators of TorchScript that a load may run: a closed list. Any other one is
said.

They compute from values that they are given, in memory in proportion to these, and
reach nothing outside of them. `tests/ext/torchscript/test_script.py` holds the list
against the schemas of the installed torch.
"""

from __future__ import annotations

from typing import Literal

_VALUES = """
    Bool Complex Float FloatImplicit Int IntImplicit ScalarImplicit
    __and__ __contains__ __getitem__ __is__ __isnot__ __lshift__ __not__ __or__
    __rshift__ __xor__ _infer_size _set_item _unwrap_optional
    abs add all any append bin bool capitalize ceil chr clear complex copy degrees dict divmod
    endswith eq find float floor floordiv format fabs ge get gt hex hash index insert int isalnum isalpha isdecimal
    isdigit isfinite isidentifier isinf islower isnan isnumeric isprintable isspace istitle isupper items keys le len
    list log lower lstrip lt max min modf ne neg oct ord partition pop popitem radians remainder remove
    reverse rfind rindex round rpartition rsplit rstrip setdefault slice sort sorted split splitlines sqrt startswith
    str strip sub sum swapcase title trunc truediv upper values
    device
"""
"""Numbers, texts, lists and dicts."""
_TENSORS = """
    alias argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor chunk clamp clone contiguous cpu cumsum
    dense_dim dequantize detach diff dim div element_size equal exp flatten flip int_repr
    is_coalesced is_complex is_contiguous is_floating_point is_nonzero is_signed item logical_and logical_not
    logical_or mean movedim narrow numel permute q_per_channel_axis q_per_channel_scales
    q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_tensor reciprocal reshape rsqrt
    select sigmoid sign size sparse_dim squeeze std storage_offset stride t tanh to transpose type_as unbind unsqueeze
    view view_as zeros_like ones_like empty_like full_like requires_grad_ detach_ fill_ zero_ add_ sub_
    div_ clamp_ transpose_ squeeze_ unsqueeze_ t_ tensor_split reshape_as
"""
"""Tensors of the size of those that they are made from, or smaller."""
ATEN = frozenset(_VALUES.split()) | frozenset(_TENSORS.split())
"""Operators that multiply the sizes of what they are given (`replace`, `extend`, `mul`,
`cat`) are not listed.
"""
METHODS = ATEN - {"device"}
"""Operators that may stand behind any value, as its methods."""

_MATCHING = """
    __and__ __or__ __xor__ add add_ bitwise_and bitwise_or bitwise_xor div div_ eq floordiv ge gt le logical_and logical_or
    lt max min ne remainder sub sub_ truediv
"""
MATCHING = frozenset(_MATCHING.split())
"""Operators that may stretch two values to each other, or join them. Next to a literal
they stretch nothing.
"""
_LIGHT = """
    Bool Float FloatImplicit Int IntImplicit ScalarImplicit __getitem__ __is__ __isnot__ __not__ dense_dim device dim
    element_size endswith get is_coalesced is_complex is_contiguous is_floating_point is_signed item len numel
    q_per_channel_axis q_scale q_zero_point qscheme size sparse_dim startswith storage_offset stride _unwrap_optional
"""
LIGHT = frozenset(_LIGHT.split())
"""Operators that make a number or find a value, and no data. In a loop no others may
stand.
"""

# An empty tuple: a dtype stands there only with its name.
DTYPED: dict[str, tuple[int, ...]] = {
    "to": (1, 2),
    "view": (1,),
    "quantize_per_tensor": (3,),
    **dict.fromkeys(("cumsum", "sum", "mean"), ()),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "full_like"), ()),
}
"""Operators that take a dtype -> the arguments that may be one, counted from 0; one
with a name may be one too. A dtype is a number, and torch looks up one that is none
outside of its table.
"""
GROUPED = frozenset(f"conv_transpose{n}d_prepack" for n in (1, 2, 3))
"""Operators that divide by their last argument, the groups."""
SIZED = GROUPED | {f"conv{n}d_prepack" for n in (1, 2, 3)} | {"conv_prepack"}
"""Operators that compute with the sizes of a layer, without a look at them."""
SIZES = frozenset(("stride", "padding", "output_padding", "dilation", "groups"))
"""The attributes of a layer that those are handed."""
DTYPES = 46
"""The numbers of the dtypes of torch 2.13 are smaller."""

_PRIM = """
    EnumName EnumValue ModuleContainerIndex NumToTensor RaiseException StringIndex TupleIndex TupleUnpack Uninitialized abs
    data device dtype grad id index is_cpu is_cuda is_meta is_mkldnn is_quantized is_sparse is_sparse_csr itemsize layout
    max min name nbytes requires_grad tolist type unchecked_cast unchecked_unwrap_optional
"""
_PACKING = """
    conv1d_prepack conv1d_unpack conv2d_prepack conv2d_unpack conv2d_dilation conv2d_groups conv2d_output_padding
    conv2d_padding conv2d_stride conv2d_transpose conv3d_prepack conv3d_unpack conv3d_dilation conv3d_groups
    conv3d_output_padding conv3d_padding conv3d_stride conv3d_transpose conv_prepack conv_unpack
    conv_transpose1d_prepack conv_transpose1d_unpack conv_transpose2d_prepack conv_transpose2d_unpack
    conv_transpose2d_dilation conv_transpose2d_groups conv_transpose2d_output_padding conv_transpose2d_padding
    conv_transpose2d_stride conv_transpose2d_transpose conv_transpose3d_prepack conv_transpose3d_unpack
    conv_transpose3d_dilation conv_transpose3d_groups conv_transpose3d_output_padding conv_transpose3d_padding
    conv_transpose3d_stride conv_transpose3d_transpose embedding_bag_prepack embedding_bag_unpack
    embedding_bag_byte_prepack embedding_bag_byte_unpack embedding_bag_4bit_prepack embedding_bag_4bit_unpack
    linear_prepack linear_prepack_fp16 linear_prepack_fp16_legacy linear_prepack_legacy linear_unpack linear_unpack_fp16
    make_quantized_cell_params make_quantized_cell_params_dynamic make_quantized_cell_params_fp16
"""
"""The packing of quantized weights, and its reverse, which the `__setstate__` of
torch's quantized modules runs.
"""
_PACKED = frozenset(_PACKING.split())
OPERATORS: dict[str, frozenset[str]] = {
    "aten": ATEN,
    "prim": frozenset(_PRIM.split()),
    "quantized": _PACKED,
    "_quantized": _PACKED,
    "sparse": frozenset(("qlinear_prepack", "qlinear_unpack")),
    "prepacked": frozenset(
        (
            "conv2d_clamp_prepack",
            "conv2d_transpose_clamp_prepack",
            "linear_clamp_prepack",
            "unpack_prepacked_sizes_conv2d",
        )
    ),
}
"""Namespace -> the operators that a load may run. `torch.x` is `ops.aten.x`."""

_SHAPING = """
    chunk diff flatten flip movedim narrow permute reshape reshape_as select slice squeeze squeeze_ t t_ tensor_split
    transpose transpose_ unbind unsqueeze unsqueeze_ view view_as
"""
SHAPING = frozenset(_SHAPING.split())
"""Operators that give a tensor another shape. Of one that is quantized per channel they
may move the channels, or lose them, and torch up to 2.12 reads a scale for each.
"""
MAKING = frozenset(_TENSORS.split()) - LIGHT
"""Operators that make or change tensors. torch's own code runs none of them on a weight
before it packs it.
"""


# Sizes of a layer may be such a list.
CHANGING = frozenset(
    [
        "_set_item",
        "append",
        "clear",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "sort",
    ]
)
"""Operators that change a list or dict, which an attribute may hold too."""


def packs_weights(name: str) -> bool:
    """Tell whether an operator packs weights."""
    return "prepack" in name or name.startswith("make_quantized_cell_params")


_BUILTINS = """
    abs all annotate any bin bool chr complex dict divmod enumerate float getattr hasattr hash hex int isinstance len list
    max min oct ord range reversed round sorted str sum tuple unchecked_cast uninitialized zip
"""
BUILTINS = frozenset(_BUILTINS.split())
"""Names of TorchScript that may be called."""

# Words between the underscores of a name: `from_file`, `_save`.
_FILES = frozenset(
    (
        "dump",
        "exec",
        "file",
        "import",
        "load",
        "open",
        "read",
        "save",
        "system",
        "write",
    )
)
_OTHERS = frozenset(("rpc", "set_num_threads"))


def touches_files(name: str) -> bool:
    """Tell whether the name of an operator says that it reads or writes files, or
    starts something elsewhere.
    """
    # Whole words between underscores: `unload` and `thread` are harmless.
    words = name.lower().strip("_").split("_")
    return (
        not _FILES.isdisjoint(words)
        or words[0] == "rpc"
        or words[:2] == ["debug", "set"]
        or name in _OTHERS
    )


# --- what a load computes of constants ------------------------------------------------

# torch divides integers without a look at 0, and the smallest one by -1.
DIVIDING = frozenset(
    (
        "__derive_index",
        "__range_length",
        "__round_to_zero_floordiv",
        "divmod",
        "floordiv",
        "fmod",
        "gcd",
        "mathremainder",
    )
) | {"remainder"}
"""Operators that end the process for some numbers. By a literal other than 0 and -1
they do not.
"""
STRETCHING = frozenset(("add", "mul", "sub"))
"""Operators that join two texts. A short literal makes a text longer by no more than
itself.
"""
FOLDED = frozenset(("__is__", "__isnot__", "hasattr", "isinstance"))
"""Operators whose result the compiler may know, whatever they are given."""
_NUMBERS = """
    Bool Complex Float FloatImplicit Int IntImplicit ScalarImplicit __and__ __contains__ __lshift__ __not__ __or__
    __rshift__ __xor__ abs all any acos acosh angle asin asinh atan atan2 atanh bool ceil complex copysign cos cosh
    degrees div endswith eq erf erfc exp expm1 fabs find float floor frexp gamma ge gt hash index int isalnum isalpha
    isdecimal isdigit isfinite isidentifier isinf islower isnan isnumeric isprintable isspace istitle isupper ldexp le
    len lgamma log log10 log1p lt max min modf ne neg numel ord pow radians rfind rindex round sin sinh sqrt startswith
    tan tanh trunc truediv
"""
NUMBERS = frozenset(_NUMBERS.split())
"""Operators that make numbers."""
_TEXTS = """
    bin capitalize chr hex lower lstrip oct partition rpartition rstrip slice strip swapcase title upper __getitem__
    EnumName EnumValue StringIndex TupleIndex TupleUnpack name value _unwrap_optional unchecked_unwrap_optional
"""
"""Operators that make nothing longer than they are given."""
_MAKERS = """
    arange as_tensor bartlett_window blackman_window device empty eye full hamming_window hann_window kaiser_window linspace
    logspace normal ones rand randint randn randperm scalar_tensor tensor tril_indices triu_indices zeros
    NumToTensor as_float dtype layout split rsplit splitlines list dict tuple enumerate zip reversed sorted items keys values
    range
"""
"""Operators that make tensors or lists, which a load does not compute."""
_EFFECTS = """
    format percentFormat RaiseException Print Uninitialized annotate print uninitialized warn manual_seed is_grad_enabled is_scripting
    is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype set_grad_enabled
    no_grad enable_grad wait fork awaitable record_function _record_function_enter _record_function_enter_new
    _record_function_exit get_default_dtype seed default_generator
"""
"""Operators that a load does not compute, because they do something or take any number
of arguments, or find a setting.
"""
RESULTS: dict[str, Literal["varies", "constant"]] = {
    **dict.fromkeys(_TEXTS.split(), "constant"),
    **dict.fromkeys(_MAKERS.split(), "varies"),
    **dict.fromkeys(_EFFECTS.split(), "varies"),
}
"""Operators that may have nothing but constants as arguments -> the kind of their
result.
"""
