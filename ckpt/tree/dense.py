"""New tensors out of bytes and numbers: numpy arrays and Python numbers of a pickle, as CPU tensors."""

from __future__ import annotations

import struct
from math import prod
from typing import Literal

from ckpt.dtypes import BY_NAME, DType, contiguous
from ckpt.io.source import Memory
from ckpt.nodes import Node
from ckpt.tensors import Range, Storage, TensorRef, tensor_ref
from ckpt.tree.arrays import NumpyArray

_NUMPY = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def numpy_dtype(code: str) -> DType | None:
    """torch's dtype for a numpy code such as `f4`, None where torch has none."""
    if code == "b1":
        return BY_NAME["bool"]
    kind, digits = code[:1], code[1:]
    if kind not in _NUMPY or not (digits.isascii() and digits.isdigit()) or len(digits) > 2:
        return None
    return BY_NAME.get(f"{_NUMPY[kind]}{int(digits) * 8}")


def numpy_tensor(found: NumpyArray) -> TensorRef | None:
    """A CPU tensor with the elements of a numpy array; None for a dtype that torch lacks."""
    dtype = BY_NAME["int64"] if found.dtype.unit else numpy_dtype(found.dtype.code)
    if dtype is None or found.data is None:
        return None
    data = found.data
    if len(data) != dtype.nbytes(prod(found.shape)):
        return None
    if found.dtype.order == ">":
        from ckpt.elements.cast import swapped

        data = swapped(data, dtype)
    storage = Storage("", "cpu", dtype, len(data), Range(Memory(data), 0, len(data)))
    stride = contiguous(found.shape[::-1])[::-1] if found.fortran else contiguous(found.shape)
    return tensor_ref(storage, dtype, found.shape, stride, 0, requires_grad=False)


def number(node: Node) -> Node:
    """A number as the tensor that `torch.tensor(number)` makes; anything else as it is."""
    return number_as(node, "float32" if type(node) is float else "int64")


def number_as(node: Node, dtype: Literal["float32", "float64", "int64"]) -> Node:
    """A number as a tensor without dimensions; anything that is no number of this kind as it is."""
    kind, code = (int, "<q") if dtype == "int64" else (float, "<f" if dtype == "float32" else "<d")
    if type(node) is not kind:
        return node
    try:
        return of_bytes(struct.pack(code, node), dtype, ())
    except (struct.error, OverflowError):
        return node


def of_bytes(data: bytes, dtype: str, shape: tuple[int, ...]) -> TensorRef:
    """A new CPU tensor of these little-endian bytes."""
    storage = Storage("", "cpu", BY_NAME[dtype], len(data), Range(Memory(data), 0, len(data)))
    return tensor_ref(storage, BY_NAME[dtype], shape, contiguous(shape), 0, requires_grad=False)
