"""PT2 archives: programs of torch.export, and packages of AOTInductor."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ckpt.ext.pt2 import FORMAT
from ckpt.ext.pt2.expressions import Doubts, doubts_of
from ckpt.formats.common.archive import (
    Archive,
    check_inflation,
    check_paths,
    check_small,
)
from ckpt.formats.common.directory import Record
from ckpt.formats.common.following import judge_records
from ckpt.formats.common.members import of_record
from ckpt.formats.common.pickled import Contents, interpret_pickle, make_checkpoint, run
from ckpt.formats.common.storages import refuse_big, tree_inside
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Entry, Refusal, Role
from ckpt.model.columns import Chain
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits, json_list, json_object, parse_json
from ckpt.model.names import Path
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    DIMENSIONS,
    Storage,
    TensorRef,
    is_countable,
    tensor_ref,
)
from ckpt.model.text import Json, and_more, show, size_text
from ckpt.tree.view import look
from ckpt.tree.walk import flatten_tree

_WEIGHTS, _CONSTANTS, _SAMPLES = (
    "data/weights/",
    "data/constants/",
    "data/sample_inputs/",
)
_AOTI, _EXTRA = "data/aotinductor/", "extra/"
_CUSTOM, _OPAQUE = "custom_obj_", "opaque_obj_"
_TEXT = 1 << 16
_ROW = 500
"""Bytes of memory of a tensor and its storage."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    return _Reader(probe, archive, limits).read()


class _Parts(NamedTuple):
    """The records of one program: its graph, tensors, constants and sample inputs.
    `below` is the folder of each.
    """

    graph: Record
    weights: Record
    constants: Record
    samples: Record | None


class _Reader:
    def __init__(self, probe: Probe, archive: Archive, limits: Limits) -> None:
        self._probe = probe
        self._archive = archive
        self._limits = limits
        self._budget = probe.budget
        self._contents = Contents(
            archive.notices, read_nested, probe.mark, probe.budget
        )
        self._storages: dict[str, Storage] = {}
        self._seen: set[str] = set()
        """The names of the records that were read."""
        self._dtypes: dict[str, DType] = {}
        """The dtype that torch gives each storage: the first row with its record
        decides.
        """
        self._kinds: dict[Path, Kind] = {}

    def read(self) -> Checkpoint:
        archive, budget = self._archive, self._budget
        budget.hold(archive.nbytes)
        check_paths(archive)
        check_small(archive)
        refuse_big(archive, "torch.export.load")
        if archive.find("archive_format") is not None:
            text = self._text("archive_format")
            if text != "pt2":
                raise UnreadableError(f"unknown archive format {show(text, 40)}")
        root = Dict()
        programs = dict(self._list_programs())
        for name, parts in programs.items():
            tree = root
            path: Path = ()
            if len(programs) > 1:
                tree, path = Dict(), (name,)
                root.set([name], [tree])
            self._program(tree, path, parts)
        self._add_extras(root)
        check_inflation(archive, "the PT2 archive")
        self._judge_others()
        flat = flatten_tree(root, self._limits, budget)
        flat.tensors = Chain(map(self._with_kind, flat.tensors))
        modules = {path[:-1] for path in self._kinds}
        flat.containers = [
            row._replace(is_module=row.path in modules) for row in flat.containers
        ]
        return make_checkpoint(
            self._probe.path,
            FORMAT.name,
            FORMAT.traits,
            root,
            self._contents,
            self._limits,
            source=self._probe.file,
            refusals=(Refusal("a PT2 archive, which torch.export.load opens", ()),),
            flat=flat,
        )

    def _judge_others(self) -> None:
        """Judge the records that torch.export does not read and another loader would
        unpickle, such as `numpy.load`.
        """
        others = [name for name in self._archive.records if name not in self._seen]
        judge_records(self._archive, others, self._contents, self._limits, self._budget)

    def _list_programs(self) -> Iterator[tuple[str, _Parts]]:
        """Each program by its name, in the order of the archive. Raises UnreadableError
        when one lacks a record.
        """
        flat = self._archive.records.get("serialized_exported_program.json")
        start = f"{self._archive.root}/models/"
        below = [
            name
            for name in self._archive.records
            if name.startswith(start) and name != start
        ]
        # The flat layout of older versions has no folder of models.
        for name in below:
            if flat is not None or not name.endswith(".json"):
                # torch cuts off the last five letters, whatever they are, and reads a
                # program.
                raise UnreadableError(
                    f"the PT2 archive holds {show(name, 80)}, which is no program of "
                    "its kind"
                )
        # One program without a name of its own.
        if flat is not None:
            yield (
                "model",
                _Parts(
                    flat,
                    self._flat_record("state_dict"),
                    self._flat_record("constants"),
                    self._samples_record(),
                ),
            )
            return
        for name in below:
            model = name[len(start) : -5]
            weights = self._list_of(_WEIGHTS, model, "weights")
            constants = self._list_of(_CONSTANTS, model, "constants")
            samples = self._archive.find(f"{_SAMPLES}{model}.pt")
            yield (
                model,
                _Parts(self._archive.records[name], weights, constants, samples),
            )

    def _flat_record(self, name: str) -> Record:
        # torch 2.1 wrote the same bytes under .json. torch reads whichever comes last.
        names = [f"serialized_{name}{ending}" for ending in (".pt", ".json")]
        found = [
            self._archive.records[name]
            for name in names
            if name in self._archive.records
        ]
        if len(found) > 1:
            raise UnreadableError(
                f"the PT2 archive holds both {names[0]} and {names[1]}"
            )
        if not found:
            raise UnreadableError(f"the PT2 archive lacks {names[0]}")
        return found[0]

    def _samples_record(self) -> Record | None:
        return self._archive.records.get("serialized_example_inputs.pt")

    def _list_of(self, folder: str, model: str, what: str) -> Record:
        # torch looks for both among the names, in their own letters, and takes the list
        # only without the first.
        records, start = self._archive.records, f"{self._archive.root}/{folder}{model}"
        record = records.get(f"{start}.pt") or records.get(
            f"{start}_{what}_config.json"
        )
        if record is None:
            raise UnreadableError(
                f"the PT2 archive lacks the {what} of {show(model, 80)}"
            )
        return record

    def _program(self, tree: Dict, path: Path, parts: _Parts) -> None:
        # Records that are read here are judged here; all others are judged as
        # strangers.
        self._seen.update(record.name for record in parts if record is not None)
        program = program_of(self._read(parts.graph), parts.graph.name, self._budget)
        self._add_tensors(tree, path, parts.weights, _WEIGHTS, program)
        self._add_tensors(tree, path, parts.constants, _CONSTANTS, program)
        if parts.samples is not None and parts.samples.size:
            self._put_node(tree, "sample_inputs", self._read_saved(parts.samples))
        self._put_node(tree, "program", program.facts)
        self._contents.notices += _notices_of(program.doubts)

    def _add_tensors(
        self, tree: Dict, path: Path, record: Record, folder: str, program: Program
    ) -> None:
        rows: list[tuple[str, Node, Kind]] = []
        if record.name.endswith("_config.json"):
            for row in parse_payloads(self._read(record), record.name, self._budget):
                kind = Kind("parameter" if row.is_param else "buffer")
                rows.append((row.name, self._payload(row, folder), kind))
        else:
            # A file of torch.save: it does not say which tensors are parameters.
            tensors = look(self._read_saved(record))
            if tensors.kind != "mapping":
                raise UnreadableError(
                    f"record {show(record.name, 80)} does not map names to tensors"
                )
            for key, child in zip(tensors.keys, tensors.children, strict=True):
                if isinstance(key, str):
                    rows.append((str(key), child, Kind("buffer")))
        for name, node, kind in rows:
            if folder == _CONSTANTS:
                kind = Kind(None)
            if (*path, name) in self._kinds:
                raise UnreadableError(f"the PT2 archive holds {show(name, 80)} twice")
            # The signature of the program knows the kinds for sure: it comes first.
            self._kinds[(*path, name)] = program.kinds.get(name, kind)
            tree.set([name], [node])

    def _payload(self, row: Payload, folder: str) -> Node:
        self._budget.charge(_ROW, "the PT2 archive")
        record = self._archive.find(folder + row.record)
        if record is None:
            raise UnreadableError(
                f"tensor {show(row.name, 80)} has no record "
                f"{show(folder + row.record, 80)}"
            )
        self._seen.add(record.name)
        # torch tells the kind of a constant by the beginning of its name, not by its
        # row.
        if folder == _CONSTANTS and row.record.startswith(_OPAQUE):
            return self._read_pickled(record)  # whatever its row says
        if folder == _CONSTANTS and row.record.startswith(_CUSTOM):
            # TorchScript's own classes are saved so that C++ reads them.
            node = self._read_saved(record, "torch.export.load")
            # Of any other value it keeps numbers where Python keeps names, and of one
            # that holds itself it makes copies until the process dies.
            if not _is_of_cpp(node):
                raise UnreadableError(
                    f"record {show(record.name, 80)} does not hold an object of C++"
                )
        elif row.geometry is not None:
            return make_view(
                row.name, row.geometry, self._record_storage(row, record, folder)
            )
        else:
            node = self._read_saved(record)
        if row.is_tensor and tensor_of(node) is None:
            raise UnreadableError(
                f"record {show(record.name, 80)} does not hold a tensor"
            )
        return node

    def _record_storage(self, row: Payload, record: Record, folder: str) -> Storage:
        """The bytes of a record. The first tensor that names it decides its device, as
        in a file of torch.save.
        """
        assert row.geometry is not None
        id = f"{self._contents.mark}{folder.removeprefix('data/')}{row.record}"
        storage = self._storages.get(id)
        if storage is None:
            # A record whose size is no multiple of the dtype's has no dtype as a whole.
            dtype, device = row.geometry.dtype, row.geometry.device
            whole = dtype if record.size * 8 % dtype.bits == 0 else None
            place = record.place(self._archive.source)
            storage = Storage(id, device, whole, record.size, place, record.crc)
            self._storages[id] = self._contents.storages[id] = storage
        # Another dtype over the same bytes would show other values than torch gives.
        if self._dtypes.setdefault(id, row.geometry.dtype) != row.geometry.dtype:
            first = (
                f"torch reads its record as {self._dtypes[id].name}, as another row "
                "says"
            )
            raise UnreadableError(
                f"tensor {show(row.name, 80)} is {row.geometry.dtype.name}, but {first}"
            )
        return storage

    def _read_saved(self, record: Record, loader: str = "torch.load") -> Node:
        """The tree of a record of torch.save, which C++ reads for an object of
        its own.
        """
        prefix = f"{record.name.removeprefix(f'{self._archive.root}/data/')}:"
        return tree_inside(
            self._archive,
            record,
            self._contents,
            self._limits,
            self._budget,
            prefix,
            loader,
        )

    def _read_pickled(self, record: Record) -> Node:
        """An object that was pickled alone."""
        pickle = run(
            self._archive.read_pickle(record, self._limits, self._budget),
            self._limits,
            self._budget,
        )
        interpret_pickle(pickle, self._contents, self._limits, _no_storage, 0)
        return pickle.root

    # --- what lies beside the programs ------------------------------------------------

    def _add_extras(self, root: Dict) -> None:
        """Compiled models and extra files by their names. ckpt loads nothing of them.

        torch unpacks every record of a compiled model to a folder, and loads or
        compiles the library in it.
        """
        compiled, extra = Dict(), Dict()
        native: list[str] = []
        for name, record in self._archive.records.items():
            # A record outside of the root is refused by `check_paths`.
            inner = name.removeprefix(f"{self._archive.root}/")
            if inner.startswith(_AOTI):
                self._budget.charge(_ROW, "the PT2 archive")
                compiled.set([inner.removeprefix(_AOTI)], [size_text(record.size)])
                native.append(show(inner, 80))
            elif inner.startswith(_EXTRA):
                self._budget.charge(_ROW, "the PT2 archive")
                extra.set([inner.removeprefix(_EXTRA)], [self._extra_node(record)])
        if compiled.keys:
            self._put_node(root, "aotinductor", compiled)
        if extra.keys:
            self._put_node(root, "extra", extra)
        if native:
            text = f"DANGER: loading this file runs native code: {and_more(native, 2)}."
            self._contents.notices.append(Notice("code-inside", text))

    def _extra_node(self, record: Record) -> Node:
        # Metadata of the user is mostly a short text.
        if record.size <= _TEXT:
            try:
                return self._read(record).decode("utf-8")
            except UnicodeDecodeError:
                pass
        return size_text(record.size)

    def _put_node(self, tree: Dict, name: str, node: Node) -> None:
        """Add what is no tensor of the module, under a name that no tensor has."""
        while name in tree.keys:
            name += "_"
        tree.set([name], [node])

    def _with_kind(self, entry: Entry) -> Entry:
        """The entry with what the program says of it. Sample inputs are no part of the
        module.
        """
        kind = self._kinds.get(entry.path)
        # A constant of the graph, or a tensor of the sample inputs.
        if kind is None or kind.role is None:
            return entry._replace(kind=None, source=FORMAT.name, registered=False)
        return entry._replace(
            kind=kind.role, source=FORMAT.name, persistent=kind.persistent
        )

    def _read(self, record: Record) -> bytes:
        if record.size > self._limits.index_bytes:
            what = f"record {show(record.name, 80)} has {record.size:,} bytes"
            raise LimitError(what, "index-bytes", self._limits.index_bytes)
        return of_record(self._archive.source, record).read(self._limits, self._budget)

    def _text(self, name: str) -> str:
        record = self._archive.find(name)
        # The format is a few letters: anything longer is none.
        data = self._read(record) if record is not None and record.size <= 64 else b""
        return data.decode("latin-1").strip()


def _is_of_cpp(node: Node) -> bool:
    """Tell whether a node is an object of a class of C++, which its import tells of."""
    return (
        type(node) is Opaque
        and type(node.func) is Global
        and node.func.module.startswith("__torch__.")
        and node.how == "newobj"
    )


def _no_storage(persistent: PersistentId) -> Storage | Global:
    raise UnreadableError(
        "an object of the PT2 archive names a storage, which it has not"
    )


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
# `Layout.Strided` of the same file.
_STRIDED = 7
# torch counts in 64 signed bits.
_MOST = 2**63


class Geometry(NamedTuple):
    """The view of a tensor of the storage in its record. Strides and offset count
    elements.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: str
    requires_grad: bool


class Payload(NamedTuple):
    """A row of the list. `geometry` is None for a tensor or an object that is
    pickled.
    """

    name: str
    record: str
    is_param: bool
    geometry: Geometry | None
    is_tensor: bool


def parse_payloads(data: bytes, what: str, budget: Budget) -> list[Payload]:
    """The rows of a list, in its order. Raises UnreadableError, LimitError."""
    document = parse_json(data, show(what, 80), budget, b'"path_name"')
    try:
        config = json_object(json_object(document)["config"])
        return [_payload(name, json_object(row)) for name, row in config.items()]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnreadableError(
            f"damaged {show(what, 80)}: it is not a list of tensors"
        ) from None


def _payload(name: str, row: dict[str, Json]) -> Payload:
    record, meta = row["path_name"], row.get("tensor_meta")
    # The name becomes a path inside of the archive.
    if not isinstance(record, str) or record in ("", ".", "..") or "/" in record:
        raise UnreadableError(
            f"tensor {show(name, 80)}: its record {show(str(record), 80)} is not a "
            "plain name"
        )
    is_pickled = _parse_flag(row, "use_pickle") or meta is None
    return Payload(
        name,
        record,
        _parse_flag(row, "is_param"),
        None if is_pickled else _parse_geometry(name, json_object(meta)),
        meta is not None,
    )


def _parse_geometry(name: str, meta: dict[str, Json]) -> Geometry:
    number = meta["dtype"]
    dtype = BY_NAME.get(_DTYPES.get(number, "")) if type(number) is int else None
    if dtype is None:
        raise UnreadableError(
            f"tensor {show(name, 80)}: unknown dtype {show(str(number)[:40], 40)}"
        )
    # Other layouts have no plain bytes.
    if meta["layout"] != _STRIDED:
        raise UnreadableError(
            f"tensor {show(name, 80)}: its bytes have an unknown layout"
        )
    shape = _parse_numbers(name, meta["sizes"])
    stride = _parse_numbers(name, meta["strides"])
    if len(shape) != len(stride) or len(shape) > DIMENSIONS or prod(shape) >= _MOST:
        raise UnreadableError(
            f"tensor {show(name, 80)}: its sizes and strides do not fit"
        )
    device = json_object(meta["device"])
    kind, index = device["type"], device.get("index")
    if not isinstance(kind, str) or len(kind) > 64:
        raise ValueError
    if kind == "meta":
        raise UnreadableError(
            f"tensor {show(name, 80)} is on meta: torch.export.load gives it no values"
        )
    # The tags are those of torch.save: `cpu`, `cuda:0`.
    tag = kind if type(index) is not int or kind == "cpu" else f"{kind}:{index}"
    offset = _parse_number(name, meta["storage_offset"])
    return Geometry(
        dtype, shape, stride, offset, tag, _parse_flag(meta, "requires_grad")
    )


def _parse_flag(row: dict[str, Json], key: str) -> bool:
    """The value of a field that is true or false. Raises ValueError for any other one:
    to torch, 1 is true.
    """
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise ValueError
    return value


def _parse_numbers(name: str, value: Json) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(_parse_number(name, item) for item in value)


def _parse_number(name: str, value: Json) -> int:
    """A size: `{"as_int": 3}`. Raises UnreadableError for a symbol, which no stored
    tensor has.
    """
    number = value.get("as_int") if isinstance(value, dict) else value
    if type(number) is not int or not 0 <= number < _MOST:
        raise UnreadableError(
            f"tensor {show(name, 80)}: a size, a stride or its offset is not a whole "
            "number"
        )
    return number


def make_view(name: str, geometry: Geometry, storage: Storage) -> TensorRef:
    """The tensor over its storage. Raises UnreadableError when it reaches past the
    record.
    """
    dtype, shape, stride, offset, _, requires_grad = geometry
    if not is_countable(shape):
        raise UnreadableError(
            f"tensor {show(name, 80)} has more elements than torch counts in 64 bits"
        )
    ref = tensor_ref(storage, dtype, shape, stride, offset, requires_grad)
    # `extent` is (first byte, end) of all elements that the view reaches.
    if ref.extent[1] > storage.nbytes:
        raise UnreadableError(
            f"tensor {show(name, 80)} needs {ref.extent[1]:,} bytes, its record has "
            f"{storage.nbytes:,}"
        )
    return ref


class Kind(NamedTuple):
    """The kind of a tensor in the signature of a program. `role` is None for a constant
    of the graph.
    """

    role: Role | None
    persistent: bool = True


class Program(NamedTuple):
    """The kind of each tensor by its name in the module, and what is shown of the
    graph.
    """

    kinds: dict[str, Kind]
    facts: Dict
    doubts: Doubts


def _notices_of(doubts: Doubts) -> Iterator[Notice]:
    """Yield a notice about what torch.export.load evaluates, imports and does
    not know.
    """
    if doubts.dangers:
        yield Notice(
            "code-inside", f"DANGER: loading this file {and_more(doubts.dangers, 2)}."
        )
    if doubts.imports:
        names = and_more([show(name, 60) for name in doubts.imports], 2)
        yield Notice(
            "unknown-import",
            f"torch.export.load imports {names}, which a tree of its inputs names.",
        )
    if doubts.operators:
        named = and_more(doubts.operators, 2)
        yield Notice(
            "unknown-operator", f"Its program names {named}, which ckpt does not know."
        )


_NAMES = ("parameter_name", "buffer_name", "tensor_constant_name")


def program_of(data: bytes, what: str, budget: Budget) -> Program:
    """The program in a JSON document. Raises UnreadableError, LimitError."""
    document = parse_json(data, show(what, 80), budget, constants=True)
    try:
        return _program(json_object(document), doubts_of(document, budget))
    # Fields of other types raise one of these on the way down.
    except (KeyError, TypeError, ValueError):
        raise UnreadableError(
            f"damaged {show(what, 80)}: it is not an exported program"
        ) from None


def _program(document: dict[str, Json], doubts: Doubts) -> Program:
    module = json_object(document["graph_module"])
    graph = json_object(module["graph"])
    kinds: dict[str, Kind] = {}
    inputs: list[Node] = []
    for spec in json_list(json_object(module["signature"])["input_specs"]):
        # Each input has one kind: a parameter, a buffer, a constant, or the user's.
        for kind, fields in json_object(spec).items():
            if kind == "user_input":
                inputs += _input_names(fields)
                continue
            fields = json_object(fields)
            name = next((fields[key] for key in _NAMES if key in fields), None)
            if not isinstance(name, str):
                continue
            if kind == "parameter":
                kinds[name] = Kind("parameter")
            elif kind == "buffer":
                # A file without the field has persistent buffers only.
                kinds[name] = Kind("buffer", fields.get("persistent") is not False)
            elif kind == "tensor_constant":
                kinds[name] = Kind(None)
    facts = Dict()
    version = document.get("schema_version")
    if isinstance(version, dict):
        facts.set(["schema"], [f"{version.get('major')}.{version.get('minor')}"])
    torch = document.get("torch_version")
    if isinstance(torch, str):
        facts.set(["torch_version"], [torch])
    facts.set(["nodes", "inputs"], [len(json_list(graph["nodes"])), inputs])
    return Program(kinds, facts, doubts)


def _input_names(fields: Json) -> list[Node]:
    """The name of a user's input: `{"arg": {"as_tensor": {"name": "x"}}}`. A constant
    input has none.
    """
    argument = json_object(fields).get("arg")
    rows = argument.values() if isinstance(argument, dict) else ()
    return [
        row["name"]
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("name"), str)
    ]
