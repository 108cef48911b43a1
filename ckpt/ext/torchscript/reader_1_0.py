"""The reader of TorchScript archives of torch 1.0 to 1.2: `model.json`, `tensors/N`,
and since 1.1 `attributes.pkl`.

Their code is read as text, for the devices that it names. Layout:
torch/csrc/jit/{export,import,pickler}.cpp of 1.0 to 1.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from ckpt.ext.torchscript.code import code_of
from ckpt.ext.torchscript.torchscript_1_0 import FORMAT
from ckpt.formats.common.directory import Record
from ckpt.formats.common.members import of_record
from ckpt.formats.common.pickled import Contents, interpret_pickle, make_checkpoint, run
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.swap import SwapBytes
from ckpt.formats.format import Probe
from ckpt.model.checkpoint import Checkpoint, Entry, Refusal, Role
from ckpt.model.columns import Chain
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits, json_list, json_object, parse_json
from ckpt.model.names import Path
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, is_tuple
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import (
    DIMENSIONS,
    Storage,
    TensorRef,
    is_countable,
    tensor_ref,
)
from ckpt.model.text import Json, show
from ckpt.tree.walk import flatten_tree

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
"""The names that torch writes. Others, as `UNDEFINED` for bfloat16, no torch reads
back.
"""
# Sizes and offsets are signed numbers of 64 bits.
_MOST = 2**63
_ROW = 600
"""Bytes of memory of a tensor, an attribute or a module."""


class Row(NamedTuple):
    """A tensor of the table. Strides and offset count elements; `record` is where its
    storage lies.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    record: str
    device: str
    requires_grad: bool


class Slot(NamedTuple):
    """A tensor or an attribute of a module: the number of its tensor, or of its
    attribute.
    """

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
    # Each `dataType` stands for one tensor of the table.
    document = parse_json(data, "model.json", budget, b'"dataType"')
    try:
        whole = json_object(document)
        # Counted in the text, before any row is made of it.
        budget.charge(
            _ROW * (data.count(b'"name"') + data.count(b'"dataType"')), "model.json"
        )
        tensors = tuple(
            _parse_row(i, json_object(row))
            for i, row in enumerate(_parse_list(whole.get("tensors")))
        )
        return Model(_module(json_object(whole["mainModule"])), tensors)
    # A missing field and one of another type are the same damage.
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UnreadableError(
            "damaged model.json: it does not describe a module"
        ) from None


def _module(fields: dict[str, Json]) -> Module:
    """A module and those below it. JSON bounds how deep they lie in each other."""
    return Module(
        _parse_text(fields.get("name", "")),
        (*_parameter_slots(fields), *_attribute_slots(fields)),
        tuple(
            _module(json_object(row)) for row in _parse_list(fields.get("submodules"))
        ),
    )


def _parameter_slots(fields: dict[str, Json]) -> Iterator[Slot]:
    for row in map(json_object, _parse_list(fields.get("parameters"))):
        yield Slot(
            _parse_text(row["name"]),
            _parse_number(row.get("tensorId", 0)),
            None,
            row.get("isBuffer") is True,
        )


def _attribute_slots(fields: dict[str, Json]) -> Iterator[Slot]:
    for row in map(json_object, _parse_list(fields.get("attributes"))):
        yield Slot(
            _parse_text(row["name"]),
            None,
            _parse_number(row.get("id", 0)),
            row.get("type") == "Tensor",
        )


def _parse_row(index: int, fields: dict[str, Json]) -> Row:
    name = fields.get("dataType", "UNDEFINED")
    # protobuf leaves out a field that has its default, and UNDEFINED is the first
    # dtype.
    dtype = BY_NAME.get(_DTYPES.get(name, "")) if isinstance(name, str) else None
    if dtype is None:
        raise UnreadableError(
            f"tensor {index:,} of model.json: unknown dtype {show(str(name)[:40], 40)}"
        )
    if fields.get("isQuantized") is True:
        raise UnreadableError(
            f"tensor {index:,} of model.json is quantized, which ckpt does not read "
            "there"
        )
    shape = tuple(map(_parse_number, _parse_list(fields.get("dims"))))
    stride = tuple(map(_parse_number, _parse_list(fields.get("strides"))))
    # torch keeps the number of elements in 64 bits.
    if len(shape) != len(stride) or len(shape) > DIMENSIONS or prod(shape) >= _MOST:
        raise UnreadableError(
            f"tensor {index:,} of model.json: its sizes and strides do not fit"
        )
    key, device = json_object(fields["data"])["key"], fields.get("device", "cpu")
    if not isinstance(key, str) or not isinstance(device, str) or len(device) > 64:
        raise ValueError
    folder, _, record = key.partition("/")
    # Another folder, or a path with `..`, would make any record a tensor.
    if folder != "tensors" or record in ("", ".", "..") or "/" in record:
        raise UnreadableError(
            f"tensor {index:,} of model.json: its record {show(key, 80)} is not "
            "tensors/N"
        )
    offset = _parse_number(fields.get("offset", 0))
    return Row(
        dtype, shape, stride, offset, key, device, fields.get("requiresGrad") is True
    )


def _parse_number(value: Json) -> int:
    """A number of 64 bits, which protobuf writes as a text."""
    # 19 digits hold every number below 2**63; Python takes long for a text of many.
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()) or len(value) > 19:
            raise ValueError
        value = int(value)
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError
    return value


def _parse_text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _parse_list(value: Json) -> list[Json]:
    """A list, which is missing when it is empty."""
    return [] if value is None else json_list(value)


_BY_NUMBER = ("torch.jit._pickle.build_tensor_from_id", "torch.jit._pickle.TensorID")
"""The calls that stand for a tensor of the table, with its number, in torch 1.2 and in
torch 1.1.
"""
_ONLY = (
    "torch 2.13 refuses a program of torch 1.0 to 1.2; ckpt convert takes its weights "
    "out"
)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    return _Reader(probe, limits).read()


class _Reader:
    def __init__(self, probe: Probe, limits: Limits) -> None:
        assert probe.archive is not None
        self._probe = probe
        self._archive = probe.archive
        self._limits = limits
        self._budget = probe.budget
        self._contents = Contents(
            probe.archive.notices, read_nested, probe.mark, probe.budget
        )
        self._roles: dict[Path, Role] = {}
        self._used: set[int] = set()
        self._model = Model(Module("", (), ()), ())
        self._tensors: list[TensorRef] = []
        self._attributes: tuple[Node, ...] = ()

    def read(self) -> Checkpoint:
        # The directory of the archive stays in memory as long as the checkpoint.
        self._budget.hold(self._archive.nbytes)
        self._model = model_of(self._read_document(), self._budget)
        self._tensors = [
            self._tensor(i, row) for i, row in enumerate(self._model.tensors)
        ]
        self._attributes = self._read_attributes()
        root = self._module(self._model.main, ())
        flat = flatten_tree(root, self._limits, self._budget)
        flat.tensors = Chain(map(self._with_role, flat.tensors))
        flat.containers = [
            row._replace(is_module=not row.path) for row in flat.containers
        ]
        held: Dict | None = None
        # A tensor that no slot and no attribute names is a constant of the code.
        constants: list[Node] = [
            ref for i, ref in enumerate(self._tensors) if i not in self._used
        ]
        if constants:
            held = Dict()
            held.set(["constants"], [constants])
            flat.tensors.extend(flatten_tree(held, self._limits, self._budget).tensors)
        result = make_checkpoint(
            self._probe.path,
            FORMAT.name,
            FORMAT.traits,
            root,
            self._contents,
            self._limits,
            source=self._probe.file,
            refusals=(Refusal("a TorchScript archive of torch 1.0 to 1.2", ()),),
            not_loadable=_ONLY,
            flat=flat,
        )
        # Only the devices: torch 2.13 refuses to run this code.
        devices = code_of(self._archive, self._limits, self._budget).devices
        return replace(result, code_devices=tuple(devices), beside=held)

    def _read_document(self) -> bytes:
        record = self._archive.find("model.json")
        assert record is not None
        if record.size > self._limits.index_bytes:
            raise LimitError(
                f"model.json has {record.size:,} bytes",
                "index-bytes",
                self._limits.index_bytes,
            )
        return of_record(self._archive.source, record).read(self._limits, self._budget)

    def _tensor(self, index: int, row: Row) -> TensorRef:
        record = self._archive.find(row.record)
        if record is None:
            raise UnreadableError(
                f"tensor {index:,} of model.json has no record {show(row.record, 80)}"
            )
        storage = self._record_storage(row, record)
        # Two rows may share a record, as two views share a storage.
        if storage.dtype is not row.dtype:
            raise UnreadableError(
                f"record {show(row.record, 80)} is used with two dtypes"
            )
        if not is_countable(row.shape):
            raise UnreadableError(
                f"tensor {index:,} of model.json has more elements than torch counts "
                "in 64 bits"
            )
        ref = tensor_ref(
            storage, row.dtype, row.shape, row.stride, row.offset, row.requires_grad
        )
        if ref.extent[1] > storage.nbytes:
            needs = f"needs {ref.extent[1]:,} bytes, its record has {storage.nbytes:,}"
            raise UnreadableError(f"tensor {index:,} of model.json {needs}")
        return ref

    def _record_storage(self, row: Row, record: Record) -> Storage:
        """The bytes of a record. The first tensor that names it decides its device, as
        in a file of torch.save.
        """
        id = f"{self._contents.mark}{row.record.removeprefix('tensors/')}"
        storage = self._contents.storages.get(id)
        if not isinstance(storage, Storage):
            place = record.place(self._archive.source)
            storage = Storage(id, row.device, row.dtype, record.size, place, record.crc)
            self._contents.storages[id] = storage
        return storage

    def _read_attributes(self) -> tuple[Node, ...]:
        """The values of the attributes, with the tensors that they name by number.
        Torch 1.0 has none.
        """
        record = self._archive.find("attributes.pkl")
        if record is None:
            return ()
        pickle = run(
            self._archive.read_pickle(record, self._limits, self._budget),
            self._limits,
            self._budget,
        )
        interpret_pickle(pickle, self._contents, self._limits, _no_storage, 0)
        tensors: dict[int, Node] = {}
        for call in pickle.calls:
            if call.class_name in _BY_NUMBER:
                tensors[id(call)] = self._numbered_tensor(call)
        # The calls are replaced by their tensors, wherever they lie in the values.
        root = SwapBytes(lambda node: tensors.get(id(node)), _no_bytes).copy(
            pickle.root
        )
        if is_tuple(root):
            return root
        if type(root) is list:
            return tuple(root)
        raise UnreadableError("damaged attributes.pkl: it does not hold a list")

    def _numbered_tensor(self, call: Opaque) -> TensorRef:
        # torch 1.2 gives the number as an argument, torch 1.1 as the state.
        number = next(iter((*call.args, *call.states)), None)
        if type(number) is not int:
            raise UnreadableError(
                f"the tensor at byte {call.offset:,} of attributes.pkl has no number"
            )
        return self._at(number, "attributes.pkl")

    def _at(self, number: int, what: str) -> TensorRef:
        if not 0 <= number < len(self._tensors):
            held = f"model.json lists {len(self._tensors):,}"
            raise UnreadableError(
                f"{what} names tensor {show(str(number), 40)}, {held}"
            )
        self._used.add(number)
        return self._tensors[number]

    def _module(self, module: Module, path: Path) -> Dict:
        """The tree of a module: its tensors and attributes, then the modules below it,
        as in state_dict().
        """
        tree = Dict()
        names = [
            *(slot.name for slot in module.slots),
            *(inner.name for inner in module.modules),
        ]
        # One of two would hide the other in the tree.
        for name, count in Counter(names).items():
            if count > 1:
                raise UnreadableError(
                    f"model.json names {show(name, 80)} twice in one module"
                )
        for slot in module.slots:
            if slot.tensor is not None:
                tree.set(
                    [slot.name],
                    [self._at(slot.tensor, f"parameter {show(slot.name, 80)}")],
                )
                self._roles[(*path, slot.name)] = (
                    "buffer" if slot.is_buffer else "parameter"
                )
            else:
                assert slot.attribute is not None
                if slot.attribute >= len(self._attributes):
                    problem = (
                        f"attribute {show(slot.name, 80)} is number {slot.attribute:,}"
                    )
                    raise UnreadableError(
                        f"{problem}, attributes.pkl holds {len(self._attributes):,}"
                    )
                tree.set([slot.name], [self._attributes[slot.attribute]])
                if slot.is_buffer:  # torch 1.2 writes buffers as attributes
                    self._roles[(*path, slot.name)] = "buffer"
        for inner in module.modules:
            tree.set([inner.name], [self._module(inner, (*path, inner.name))])
        return tree

    def _with_role(self, entry: Entry) -> Entry:
        role = self._roles.get(entry.path)
        return (
            entry if role is None else entry._replace(kind=role, source="torchscript")
        )


def _no_storage(persistent: PersistentId) -> Storage | Global:
    raise UnreadableError("attributes.pkl names a storage, which it has not")


def _no_bytes(persistent: PersistentId) -> Node:
    raise AssertionError("attributes.pkl has no persistent id")
