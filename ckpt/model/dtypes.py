"""One table of element types: torch's name, the safetensors name, the storage class,
the width in bits.

Text, TSV and JSON all use torch's names. Never imports torch.
"""

from __future__ import annotations

from typing import Literal

from ckpt.model.rows import NamedTuple

Kind = Literal["float", "int", "bool", "complex", "quantized", "bits"]


class Block(NamedTuple):
    """The elements that an element type packs together: `elements` of them in `nbytes`
    bytes.

    `decoder` is the module that makes numbers of blocks (see `ckpt.elements.unpacked`),
    as text: who counts elements never loads it.
    """

    elements: int
    nbytes: int
    decoder: str


class DType(NamedTuple):
    """An element type. `bits` is the width of one element, as counted by the shape; 0
    where elements come in blocks.
    """

    name: str
    bits: int
    kind: Kind
    safetensors: str | None = None
    storage: str | None = None
    """The class of the typed storages that torch saves (`FloatStorage`), or None if it
    saves them untyped.
    """
    block: Block | None = None
    """The blocks of a type whose elements have no bytes of their own. A tensor of it
    begins with a block.
    """

    def nbytes(self, numel: int) -> int:
        """The number of bytes of `numel` elements. An unfinished block counts whole."""
        if self.block is not None:
            return -(-numel // self.block.elements) * self.block.nbytes
        return (numel * self.bits + 7) // 8

    def numel(self, nbytes: int) -> int:
        """The number of elements in `nbytes` bytes."""
        if self.block is not None:
            return nbytes // self.block.nbytes * self.block.elements
        return nbytes * 8 // self.bits

    @property
    def bits_per_element(self) -> float:
        """The bits that one element takes, with its share of what its block
        says once.
        """
        if self.block is None:
            return self.bits
        return 8 * self.block.nbytes / self.block.elements


_TABLE = (
    DType("float64", 64, "float", "F64", "DoubleStorage"),
    DType("float32", 32, "float", "F32", "FloatStorage"),
    DType("float16", 16, "float", "F16", "HalfStorage"),
    DType("bfloat16", 16, "float", "BF16", "BFloat16Storage"),
    DType("int64", 64, "int", "I64", "LongStorage"),
    DType("int32", 32, "int", "I32", "IntStorage"),
    DType("int16", 16, "int", "I16", "ShortStorage"),
    DType("int8", 8, "int", "I8", "CharStorage"),
    DType("uint8", 8, "int", "U8", "ByteStorage"),
    DType("uint16", 16, "int", "U16"),
    DType("uint32", 32, "int", "U32"),
    DType("uint64", 64, "int", "U64"),
    DType("bool", 8, "bool", "BOOL", "BoolStorage"),
    DType("complex32", 32, "complex", None, "ComplexHalfStorage"),
    DType("complex64", 64, "complex", "C64", "ComplexFloatStorage"),
    DType("complex128", 128, "complex", None, "ComplexDoubleStorage"),
    DType("float8_e4m3fn", 8, "float", "F8_E4M3"),
    DType("float8_e5m2", 8, "float", "F8_E5M2"),
    DType("float8_e4m3fnuz", 8, "float", "F8_E4M3FNUZ"),
    DType("float8_e5m2fnuz", 8, "float", "F8_E5M2FNUZ"),
    DType("float8_e8m0fnu", 8, "float", "F8_E8M0"),
    # torch holds two of these in a byte, and its shapes count the pairs; safetensors'
    # count the elements.
    DType("float4_e2m1fn_x2", 8, "float", "F4"),
    # Known to safetensors' header only.
    DType("float6_e2m3fn", 6, "float", "F6_E2M3"),
    DType("float6_e3m2fn", 6, "float", "F6_E3M2"),
    DType("qint8", 8, "quantized", None, "QInt8Storage"),
    DType("quint8", 8, "quantized", None, "QUInt8Storage"),
    DType("qint32", 32, "quantized", None, "QInt32Storage"),
    DType("quint4x2", 4, "quantized", None, "QUInt4x2Storage"),
    DType("quint2x4", 2, "quantized", None, "QUInt2x4Storage"),
    DType("bits8", 8, "bits"),
    DType("bits16", 16, "bits"),
    DType("bits1x8", 8, "bits"),
    DType("bits2x4", 8, "bits"),
    DType("bits4x2", 8, "bits"),
    # int1 to int7 of torch: a byte for each element.
    *(DType(f"{sign}int{n}", 8, "int") for sign in ("", "u") for n in range(1, 8)),
)

BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in _TABLE}
BY_SAFETENSORS: dict[str, DType] = {
    dtype.safetensors: dtype for dtype in _TABLE if dtype.safetensors
}
BY_STORAGE: dict[str, DType] = {
    dtype.storage: dtype for dtype in _TABLE if dtype.storage
}

UINT8 = BY_NAME["uint8"]

# torch's other names for the same types, as `getattr(torch, name)` accepts them.
_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
BY_NAME.update({alias: BY_NAME[name] for alias, name in _ALIASES.items()})


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        # As torch counts it, a dimension of size 0 counts as one of size 1.
        step *= max(size, 1)
    return tuple(reversed(strides))


def short_dtype(text: str) -> str:
    """Return a dtype without how it is grouped, which only a quantised weight says: `4
    bits (GPTQ)`.
    """
    text, comma, _ = text.partition(", ")
    if comma:
        return f"{text})"
    return text if text.endswith(")") else text.partition(" ")[0]
