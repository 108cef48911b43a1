"""Numpy arrays of a plain pickle as tensors: views of bytes in the file, or of bytes that the pickle spells.

Calls: numpy/_core/src/multiarray/methods.c (`array_reduce`, `array_setstate`), numpy/_core/numeric.py (`_frombuffer`),
joblib/numpy_pickle.py (`NumpyArrayWrapper`).
"""

from __future__ import annotations

from math import prod

from ckpt.dtypes import BY_NAME, DType
from ckpt.errors import UnreadableError, UnsupportedError
from ckpt.io.source import Memory
from ckpt.nodes import ByteStr, Dict, Global, Node, Opaque
from ckpt.pickles.rebuild import DIMENSIONS
from ckpt.rows import NamedTuple
from ckpt.tensors import Range, Storage, TensorRef, tensor_ref
from ckpt.text import show
from ckpt.tree.arrays import NumpyDType, as_bytes, numpy_dtype

WRAPPER = ("joblib.numpy_pickle", "NumpyArrayWrapper")
_DTYPES = {
    "b1": "bool",
    "c8": "complex64",
    "c16": "complex128",
    **{f"f{width}": f"float{8 * width}" for width in (2, 4, 8)},
    **{
        f"{code}{width}": f"{kind}{8 * width}"
        for code, kind in (("i", "int"), ("u", "uint"))
        for width in (1, 2, 4, 8)
    },
}


class Description(NamedTuple):
    """What a pickle says of an array: its shape, dtype and order, the node of its dtype and that of its bytes."""

    shape: tuple[int, ...]
    dtype: NumpyDType
    kind: Node
    fortran: bool
    raw: Node

    @property
    def nbytes(self) -> int:
        """The bytes of its elements. Raises UnreadableError for a dtype without a size."""
        size = self.dtype.itemsize
        if size is None:
            raise UnreadableError(f"an array has the unknown dtype {show(self.dtype.code, 40)}")
        return size * prod(self.shape)


def described(call: Opaque) -> Description | None:
    """The array that a call makes; None for any other call."""
    name = call.class_name
    if name.endswith(".numeric._frombuffer") and len(call.args) == 4 and not call.states:
        raw, kind, size, order = call.args
        return _description(kind, size, order == "F", raw)
    if name.endswith(".multiarray._reconstruct") and len(call.states) == 1 and call.args:
        cls, state = call.args[0], call.states[0]
        is_array = type(cls) is Global and cls.qualified == "numpy.ndarray"  # not a matrix or a masked array
        if is_array and type(state) is tuple and len(state) == 5:
            _, size, kind, fortran, raw = state
            return _description(kind, size, fortran is True or fortran == 1, raw)
    return None


def is_wrapper(call: Opaque) -> bool:
    """Whether a call makes joblib's description of an array, whose bytes follow in the file."""
    return type(call.func) is Global and (call.func.module, call.func.name) == WRAPPER


def wrapped(call: Opaque) -> tuple[Description, bool]:
    """(the array of joblib's description, whether padding comes before its bytes). Raises UnreadableError."""
    state = call.states[-1] if len(call.states) == 1 else None
    if type(state) is not Dict or not all(isinstance(key, str) for key in state.keys):
        raise UnreadableError("damaged pickle: joblib's description of an array is not a dict of names")
    fields = dict(zip(map(str, state.keys), state.values, strict=True))
    if len(fields) < len(state.keys):
        raise UnreadableError("damaged pickle: joblib's description of an array names a field twice")
    found = _description(fields.get("dtype"), fields.get("shape"), fields.get("order") == "F", None)
    if found is None or fields.get("order") not in ("C", "F"):
        raise UnreadableError(
            "damaged pickle: joblib's description of an array lacks its shape, order or dtype"
        )
    if found.dtype.code.startswith("O"):
        raise UnsupportedError("joblib stored an array of objects in it, which ckpt does not read")
    aligned = fields.get("numpy_array_alignment_bytes")
    if aligned is not None and (type(aligned) is not int or not 0 < aligned < 256):
        raise UnreadableError("damaged pickle: joblib's description of an array has an invalid alignment")
    return found, aligned is not None


def tensor(array: Description, place: Range | None, id: str) -> TensorRef | None:
    """The array as a tensor over its bytes at `place`, or those that the pickle spells; None for a dtype that torch
    lacks. Raises UnreadableError when the bytes are too few or too many.
    """
    dtype = _dtype(array.dtype)
    if dtype is None:
        return None
    needed = array.nbytes
    if place is None:
        data = array.raw.raw if isinstance(array.raw, ByteStr) else as_bytes(array.raw)
        if data is None:
            return None
        place = Range(Memory(data), 0, len(data))
    if place.size != needed:
        raise UnreadableError(
            f"damaged pickle: an array of {needed:,} bytes {list(array.shape)[:8]} has {place.size:,} bytes"
        )
    storage = Storage(id, None, dtype, needed, place._replace(big=array.dtype.order == ">"))
    return tensor_ref(storage, dtype, array.shape, _strides(array), 0)


def as_call(array: Description, data: bytes, offset: int) -> Opaque:
    """The call of numpy for an array of joblib that is no tensor, such as one of texts."""
    function = Global("numpy.core.multiarray", "_reconstruct")
    call = Opaque("reduce", function, (Global("numpy", "ndarray"), (0,), b"b"), None, offset)
    call.build((1, array.shape, array.kind, array.fortran, data))
    return call


def _description(kind: Node, size: Node, fortran: bool, raw: Node) -> Description | None:
    dtype = numpy_dtype(kind)
    if dtype is None or type(size) is not tuple or len(size) > DIMENSIONS:
        return None
    shape = tuple([number for number in size if type(number) is int and 0 <= number < 2**63])
    if len(shape) < len(size) or prod(shape) >= 2**63:
        return None
    return Description(shape, dtype, kind, fortran, raw)


def _dtype(dtype: NumpyDType) -> DType | None:
    name = _DTYPES.get(dtype.code)
    return BY_NAME.get(name) if name is not None and dtype.order in "<>=|" else None


def _strides(array: Description) -> tuple[int, ...]:
    sizes = array.shape if array.fortran else array.shape[::-1]
    steps, step = [], 1
    for size in sizes:
        steps.append(step)
        step *= max(size, 1)
    return tuple(steps if array.fortran else steps[::-1])
