"""Modules of torch's quantization: what their pickles hold, and what their state_dict()
gives of it.

Sources: torch/ao/nn/quantized (`_save_to_state_dict` and `__getstate__`, as torch 1.13
to 2.13 write them), and `torch.ScriptObject`, which pickles as its content and the name
of its class.

New tensors are made here too, of bytes and numbers of a pickle.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Literal

from ckpt.bytes.source import Memory
from ckpt.model.dtypes import BY_NAME, DType, contiguous
from ckpt.model.nodes import Node, Opaque, is_tuple, tensor_of
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, TensorRef, tensor_ref
from ckpt.tree.arrays import NumpyArray
from ckpt.tree.scalars import class_of

SCRIPT_OBJECT = "torch.ScriptObject"

_CLASSES = "__torch__."
_CONV_FIELDS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "transposed",
    "output_padding",
    "groups",
    "padding_mode",
    "weight",
    "bias",
    "scale",
    "zero_point",
    "training",
)
"""The fields that `__getstate__` of a quantized convolution gives, in its order."""


def packed_parameters(node: Node) -> tuple[str, Node] | None:
    """Return the class and the content of packed parameters (`torch.ScriptObject`), or
    None.
    """
    if type(node) is not Opaque or len(node.states) != 1:
        return None
    if class_of(node) != SCRIPT_OBJECT or node.items or node.keys:
        return None
    state = node.states[0]
    if not is_tuple(state) or len(state) != 2 or not isinstance(state[1], str):
        return None
    return str(state[1]).removeprefix(_CLASSES), state[0]


def convolution_attributes(call: Opaque, name: str) -> dict[str, Node] | None:
    """Return the attributes of a quantized convolution, or None. Its pickle has only
    their values.
    """
    if not is_quantized(name) or "Conv" not in name.rpartition(".")[2]:
        return None
    state = call.states[0] if len(call.states) == 1 else None
    if not is_tuple(state) or len(state) != len(_CONV_FIELDS):
        return None
    # So many values could be those of another class: one with a weight is a
    # convolution.
    if tensor_of(state[_CONV_FIELDS.index("weight")]) is None:
        return None
    return dict(zip(_CONV_FIELDS, state, strict=True))


def is_quantized(name: str) -> bool:
    """Tell whether a class is a quantized module: `torch.ao.nn.quantized.…`,
    `torch.nn.quantized.…`.
    """
    return name.startswith("torch.") and ".quantized." in name


def saved_attributes(name: str, state: dict[str, Node]) -> list[str]:
    """The attributes of a module of the class `name` that its state_dict() gives beside
    what it registers.
    """
    if not is_quantized(name):
        return []
    saved = [
        key
        for key in ("_packed_params", "_packed_weight", "param")
        if packed_parameters(state.get(key)) is not None
    ]
    if any(key.startswith("_") for key in saved) and "dtype" in state:
        saved.append("dtype")
    if "scale" in state and "zero_point" in state:
        saved += ["scale", "zero_point"]
    # Of a convolution: others register theirs.
    if tensor_of(state.get("weight")) is not None:
        tensors = [
            key for key in ("weight", "bias") if tensor_of(state.get(key)) is not None
        ]
        saved += tensors
    # In the order in which the module has them.
    return [key for key in state if key in saved]


def state_version(name: str) -> int | None:
    """Return the version of the state dict of a quantized module of the class `name`,
    or None.

    Source: `_version` of the classes in torch/ao/nn/quantized, and what they save at
    each version.
    """
    if not is_quantized(name):
        return None
    module, _, short_name = name.rpartition(".")
    is_linear = "Linear" in short_name
    if ".sparse." in name or not (is_linear or short_name in ("LSTM", "GRU")):
        return 1
    if is_linear:
        return 4 if ".dynamic." in name else 3
    return 2 if module.endswith(".dynamic.modules.rnn") else 1


def unpack_parameters(key: str, content: Node) -> Node:
    """Return the value that state_dict() has under `key` for packed parameters of this
    content.
    """
    if key != "_packed_weight" or not is_tuple(content) or len(content) < 2:
        return content
    # The content of an embedding: (version, [weight], ...).
    tensors = content[1]
    if type(tensors) is not list or len(tensors) != 1 or tensor_of(tensors[0]) is None:
        return content
    return tensors[0]


_NUMPY = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def numpy_dtype(code: str) -> DType | None:
    """Return torch's dtype for a numpy code such as `f4`, or None."""
    if code == "b1":
        return BY_NAME["bool"]
    kind, digits = code[:1], code[1:]
    # `isdigit` alone takes digits of other scripts.
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 2
    if kind not in _NUMPY or not is_number:
        return None
    return BY_NAME.get(f"{_NUMPY[kind]}{int(digits) * 8}")


def numpy_tensor(array: NumpyArray) -> TensorRef | None:
    """Return a CPU tensor with the elements of a numpy array, or None.

    None means that torch lacks the dtype, or that the data is not complete.
    """
    # torch has no times: their numbers of units are kept.
    dtype = BY_NAME["int64"] if array.dtype.unit else numpy_dtype(array.dtype.code)
    if dtype is None or array.data is None:
        return None
    data = array.data
    if len(data) != dtype.nbytes(prod(array.shape)):
        return None
    if array.dtype.order == ">":
        # Here: numpy is needed for it, and few arrays are big-endian.
        from ckpt.elements.cast import swapped

        data = swapped(data, dtype)
    storage = Storage("", "cpu", dtype, len(data), Range(Memory(data), 0, len(data)))
    if array.fortran:
        # Column by column is row by row of the dimensions turned around.
        stride = contiguous(array.shape[::-1])[::-1]
    else:
        stride = contiguous(array.shape)
    return tensor_ref(storage, dtype, array.shape, stride, 0, requires_grad=False)


def number_tensor(node: Node) -> Node:
    """A number as the tensor that `torch.tensor(number)` makes; anything else
    as it is.
    """
    return number_as(node, "float32" if type(node) is float else "int64")


def number_as(node: Node, dtype: Literal["float32", "float64", "int64"]) -> Node:
    """A number as a tensor without dimensions; anything that is no number of this kind
    as it is.
    """
    # An exact type, for in Python True is an int too.
    if type(node) is not (int if dtype == "int64" else float):
        return node
    form = {"float32": "<f", "float64": "<d", "int64": "<q"}[dtype]
    try:
        return of_bytes(struct.pack(form, node), dtype, ())
    except (struct.error, OverflowError):
        return node


def of_bytes(data: bytes, dtype: str, shape: tuple[int, ...]) -> TensorRef:
    """A new CPU tensor of these little-endian bytes."""
    storage = Storage(
        "", "cpu", BY_NAME[dtype], len(data), Range(Memory(data), 0, len(data))
    )
    return tensor_ref(
        storage, BY_NAME[dtype], shape, contiguous(shape), 0, requires_grad=False
    )
