"""The list of the tensors of a PT2 archive: the record of each, its dtype, shape, strides and device.

Layout: torch/_export/serde/schema.py, `PayloadConfig` and `TensorMeta`, of torch 2.9 to 2.13.
"""

from __future__ import annotations

from math import prod

from ckpt.dtypes import BY_NAME, DType
from ckpt.errors import UnreadableError
from ckpt.limits import Budget
from ckpt.parse import parse_json
from ckpt.pickles.rebuild import DIMENSIONS
from ckpt.rows import NamedTuple
from ckpt.tensors import Storage, TensorRef, tensor_ref
from ckpt.text import Json, show

_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
"""torch/_export/serde/schema.py `ScalarType`."""
_STRIDED = 7
_MOST = 2**63


class Geometry(NamedTuple):
    """How a tensor looks at the storage in its record. Strides and offset count elements."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: str
    requires_grad: bool


class Payload(NamedTuple):
    """A row of the list. `geometry` is None for a tensor or an object that is pickled."""

    name: str
    record: str
    is_param: bool
    geometry: Geometry | None
    is_tensor: bool


def payloads(data: bytes, what: str, budget: Budget) -> list[Payload]:
    """The rows of a list, in its order. Raises UnreadableError, LimitError."""
    document = parse_json(data, show(what, 80), budget, b'"path_name"')
    try:
        config = _object(_object(document)["config"])
        return [_payload(name, _object(row)) for name, row in config.items()]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnreadableError(f"damaged {show(what, 80)}: it is not a list of tensors") from None


def _payload(name: str, row: dict[str, Json]) -> Payload:
    record, meta = row["path_name"], row.get("tensor_meta")
    if not isinstance(record, str) or record in ("", ".", "..") or "/" in record:
        raise UnreadableError(
            f"tensor {show(name, 80)}: its record {show(str(record), 80)} is not a plain name"
        )
    is_pickled = row.get("use_pickle") is True or meta is None
    return Payload(
        name,
        record,
        row.get("is_param") is True,
        None if is_pickled else _geometry(name, _object(meta)),
        meta is not None,
    )


def _geometry(name: str, meta: dict[str, Json]) -> Geometry:
    number = meta["dtype"]
    dtype = BY_NAME.get(_DTYPES.get(number, "")) if type(number) is int else None
    if dtype is None:
        raise UnreadableError(f"tensor {show(name, 80)}: unknown dtype {show(str(number)[:40], 40)}")
    if meta["layout"] != _STRIDED:
        raise UnreadableError(f"tensor {show(name, 80)}: its bytes have an unknown layout")
    shape, stride = _numbers(name, meta["sizes"]), _numbers(name, meta["strides"])
    if len(shape) != len(stride) or len(shape) > DIMENSIONS or prod(shape) >= _MOST:
        raise UnreadableError(f"tensor {show(name, 80)}: its sizes and strides do not fit")
    device = _object(meta["device"])
    kind, index = device["type"], device.get("index")
    if not isinstance(kind, str) or len(kind) > 64:
        raise ValueError
    tag = kind if type(index) is not int or kind == "cpu" else f"{kind}:{index}"
    offset = _number(name, meta["storage_offset"])
    return Geometry(dtype, shape, stride, offset, tag, meta.get("requires_grad") is True)


def _numbers(name: str, value: Json) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(_number(name, each) for each in value)


def _number(name: str, value: Json) -> int:
    """A size: `{"as_int": 3}`. Raises UnreadableError for a symbol, which no stored tensor has."""
    number = value.get("as_int") if isinstance(value, dict) else value
    if type(number) is not int or not 0 <= number < _MOST:
        raise UnreadableError(
            f"tensor {show(name, 80)}: a size, a stride or its offset is not a whole number"
        )
    return number


def view(name: str, geometry: Geometry, storage: Storage) -> TensorRef:
    """The tensor over its storage. Raises UnreadableError when it reaches past the record."""
    dtype, shape, stride, offset, _, requires_grad = geometry
    ref = tensor_ref(storage, dtype, shape, stride, offset, requires_grad)
    if ref.extent[1] > storage.nbytes:
        raise UnreadableError(
            f"tensor {show(name, 80)} needs {ref.extent[1]:,} bytes, its record has {storage.nbytes:,}"
        )
    return ref


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError
    return value
