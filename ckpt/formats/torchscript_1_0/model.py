"""`model.json`: the modules of the program, and the table of its tensors.

Layout: caffe2/proto/torch.proto (`ModelDef`) and caffe2.proto (`TensorDef`), written as JSON by protobuf: numbers of 64
bits are texts, and what is zero or empty may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ckpt.dtypes import BY_NAME, DType
from ckpt.errors import UnreadableError
from ckpt.limits import Budget
from ckpt.parse import parse_json
from ckpt.pickles.rebuild import DIMENSIONS
from ckpt.rows import NamedTuple
from ckpt.text import Json, show

_DTYPES = {
    "FLOAT": "float32",
    "INT32": "int32",
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT64": "int64",
    "FLOAT16": "float16",
    "DOUBLE": "float64",
}
"""The names that torch writes. Others, as `UNDEFINED` for bfloat16, no torch reads back."""
_MOST = 2**63
_ROW = 600
"""Bytes of memory of a tensor, an attribute or a module."""


class Row(NamedTuple):
    """A tensor of the table. Strides and offset count elements; `record` is where its storage lies."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    record: str
    device: str
    requires_grad: bool


class Slot(NamedTuple):
    """A tensor or an attribute of a module: the number of its tensor, or of its attribute."""

    name: str
    tensor: int | None
    attribute: int | None
    is_buffer: bool


class Module(NamedTuple):
    """A module: its own slots, and the modules below it by their names."""

    name: str
    slots: tuple[Slot, ...]
    modules: tuple[Module, ...]


class Model(NamedTuple):
    """The whole document."""

    main: Module
    tensors: tuple[Row, ...]


def model_of(data: bytes, budget: Budget) -> Model:
    """The document. Raises UnreadableError, LimitError."""
    document = parse_json(data, "model.json", budget, b'"dataType"')
    try:
        whole = _object(document)
        budget.charge(_ROW * (data.count(b'"name"') + data.count(b'"dataType"')), "model.json")
        tensors = tuple(_row(i, _object(row)) for i, row in enumerate(_list(whole.get("tensors"))))
        return Model(_module(_object(whole["mainModule"])), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UnreadableError("damaged model.json: it does not describe a module") from None


def _module(fields: dict[str, Json]) -> Module:
    """A module and those below it. JSON bounds how deep they lie in each other."""
    return Module(
        _text(fields.get("name", "")),
        (*_parameters(fields), *_attributes(fields)),
        tuple(_module(_object(row)) for row in _list(fields.get("submodules"))),
    )


def _parameters(fields: dict[str, Json]) -> Iterator[Slot]:
    for row in map(_object, _list(fields.get("parameters"))):
        yield Slot(_text(row["name"]), _number(row.get("tensorId", 0)), None, row.get("isBuffer") is True)


def _attributes(fields: dict[str, Json]) -> Iterator[Slot]:
    for row in map(_object, _list(fields.get("attributes"))):
        yield Slot(_text(row["name"]), None, _number(row.get("id", 0)), row.get("type") == "Tensor")


def _row(index: int, fields: dict[str, Json]) -> Row:
    name = fields.get("dataType", "UNDEFINED")
    dtype = BY_NAME.get(_DTYPES.get(name, "")) if isinstance(name, str) else None
    if dtype is None:
        raise UnreadableError(f"tensor {index:,} of model.json: unknown dtype {show(str(name)[:40], 40)}")
    if fields.get("isQuantized") is True:
        raise UnreadableError(f"tensor {index:,} of model.json is quantized, which ckpt does not read there")
    shape = tuple(map(_number, _list(fields.get("dims"))))
    stride = tuple(map(_number, _list(fields.get("strides"))))
    if len(shape) != len(stride) or len(shape) > DIMENSIONS or prod(shape) >= _MOST:
        raise UnreadableError(f"tensor {index:,} of model.json: its sizes and strides do not fit")
    key, device = _object(fields["data"])["key"], fields.get("device", "cpu")
    if not isinstance(key, str) or not isinstance(device, str) or len(device) > 64:
        raise ValueError
    folder, _, record = key.partition("/")
    if folder != "tensors" or record in ("", ".", "..") or "/" in record:
        raise UnreadableError(f"tensor {index:,} of model.json: its record {show(key, 80)} is not tensors/N")
    offset = _number(fields.get("offset", 0))
    return Row(dtype, shape, stride, offset, key, device, fields.get("requiresGrad") is True)


def _number(value: Json) -> int:
    """A number of 64 bits, which protobuf writes as a text."""
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()) or len(value) > 19:
            raise ValueError
        value = int(value)
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _list(value: Json) -> list[Json]:
    """A list, which is missing when it is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError
    return value
