"""TorchScript archives: `data.pkl`, `constants.pkl`, code, and the bytecode of the
mobile interpreter.

Lists in the code say which attribute is a parameter and which is a buffer. They are
read as text. Layout:
torch/csrc/jit/serialization/{export_module,import,python_print}.cpp,
torch/csrc/jit/mobile/import.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ckpt.ext.torchscript import FORMAT
from ckpt.ext.torchscript.code import OTHERS, Code, code_of, notices_of
from ckpt.ext.torchscript.numbered import refuse_numbers
from ckpt.ext.torchscript.packs import judge_packs
from ckpt.ext.torchscript.script_types import Types, check_doubling
from ckpt.formats.common.archive import Archive, check_inflation, check_small
from ckpt.formats.common.directory import Record
from ckpt.formats.common.following import is_array, judge_records
from ckpt.formats.common.pickled import Contents, interpret_pickle, make_checkpoint, run
from ckpt.formats.common.storages import StorageFolder, refuse_big
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import (
    Checkpoint,
    CodeDevice,
    Entry,
    Import,
    Origin,
    Refusal,
    Role,
)
from ckpt.model.columns import Chain
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import Path
from ckpt.model.nodes import (
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    is_tuple,
    tensor_of,
)
from ckpt.model.rows import dataclass, replace
from ckpt.model.tensors import Storage
from ckpt.pickle.depth import refuse_deep
from ckpt.pickle.machine import Pickle
from ckpt.pickle.rebuild import storage_type
from ckpt.tree.scalars import class_of, device_text
from ckpt.tree.walk import flatten_tree

BYTECODE = "bytecode.pkl"
PICKLES = ("data.pkl", "constants.pkl", BYTECODE)
"""The pickles with tensors. `.debug_pkl` and `mobile_debug_handles.pkl` hold none."""


@dataclass(frozen=True, slots=True, eq=False)
class ScriptOrigin(Origin):
    """The archive of a TorchScript program."""

    archive: Archive


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    return read_from(archive, probe.path, limits, probe.mark, probe.budget)


def read_from(
    archive: Archive,
    path: str,
    limits: Limits,
    mark: str = "",
    budget: Budget | None = None,
) -> Checkpoint:
    """The checkpoint in an archive. Raises CkptError."""
    budget = budget or Budget(limits)
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, read_nested, mark, budget)
    contents.is_script = True
    check_small(archive)
    refuse_big(archive, "torch.jit.load")
    if archive.find("model.json") is not None:
        raise UnreadableError(
            "two files in one: an older torch loads the program of model.json instead"
        )
    roots: dict[str, Node] = {}
    devices: list[CodeDevice] = []
    calls: list[Opaque] = []
    folders: dict[str, StorageFolder] = {}
    # The prefix keeps storage 0 of the constants apart from storage 0 of the data.
    for name, folder, prefix in _list_pickles(archive):
        record = archive.find(name)
        if record is None and archive.is_partial:
            contents.notices.append(
                Notice("incomplete", f"{name} of the program is missing")
            )
            continue
        if record is None:
            raise UnreadableError(f"the TorchScript archive lacks {name}")
        data = archive.read_pickle(record, limits, budget)
        pickle = run(data, limits, budget)
        # Only torch.jit.load reads these; the mobile interpreter reads the bytecode.
        if name != BYTECODE:
            refuse_numbers(pickle, data, budget)
            refuse_deep(pickle, budget)
        if folder not in folders:
            folders[folder] = StorageFolder(
                archive, folder, contents, prefix, meta=True
            )
        # Before the calls are interpreted: interpret_pickle knows the forms of Python
        # only.
        for call in pickle.calls:
            _as_python(pickle, call)
        calls += pickle.calls
        interpret_pickle(
            pickle, contents, limits, _storage_resolver(folders[folder]), 0
        )
        for id in [
            id for id, storage in contents.storages.items() if _is_empty(storage)
        ]:
            del contents.storages[id]  # its tensors have none
        roots[name] = pickle.root
        if name == BYTECODE:
            devices = _devices_of(pickle)
    judge_records(archive, _other_records(archive, folders), contents, limits, budget)
    root = roots["data.pkl"]
    constants = roots.get("constants.pkl")
    # torch computes with constants while it loads, but with no tensors.
    are_tensors = is_tuple(constants) and all(
        tensor_of(constant) is not None for constant in constants
    )
    code = code_of(archive, limits, budget, has_values=not are_tensors)
    if not archive.is_partial:
        check_inflation(archive, "the TorchScript archive")
    check_doubling(root, code.classes, budget)
    # Without a `__setstate__` no code reads the values while they are loaded.
    if code.loaders:
        problem = Types(code.classes, budget).mismatch([root, constants])
        if problem is not None:
            code.dangers.append(f"its __setstate__ on {problem}")
    judge_packs(calls, code)
    contents.notices += notices_of(code)
    flat = flatten_tree(root, limits, budget)
    flat.tensors = Chain(_with_kind(entry, root, code.kinds) for entry in flat.tensors)
    # The root is a module, whatever class of the code it has.
    if flat.containers and not flat.containers[0].path:
        flat.containers[0] = flat.containers[0]._replace(is_module=True)
    beside: Node = None
    # Constants belong to no attribute, so they lie beside the tree.
    if type(constants) is tuple and constants:
        held = Dict()
        held.set(["constants"], [constants])
        beside = held
        extra = flatten_tree(held, limits, budget)
        flat.tensors.extend(extra.tensors)
        flat.values += extra.values
    result = make_checkpoint(
        path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        source=archive.source,
        origin=ScriptOrigin(archive),
        refusals=(Refusal("a TorchScript archive, which torch.jit.load opens", ()),),
        flat=flat,
    )
    imports = tuple(_judge_import(row, code) for row in result.imports)
    return replace(
        result, code_devices=(*code.devices, *devices), imports=imports, beside=beside
    )


def _list_pickles(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (record, the folder of its storages, the prefix of their ids) of each
    pickle with tensors.

    The bytecode shares its constants with the code. Before torch 1.9 it had a folder of
    its own.
    """
    pickles = [("data.pkl", "data", ""), ("constants.pkl", "constants", "constants:")]
    if archive.find(BYTECODE) is not None:
        own = any(
            name.startswith(f"{archive.root}/bytecode/") for name in archive.records
        )
        pickles.append(
            (BYTECODE, "bytecode", "bytecode:")
            if own
            else (BYTECODE, "constants", "constants:")
        )
    return pickles


def _other_records(
    archive: Archive, folders: dict[str, StorageFolder]
) -> Iterator[str]:
    """Yield the names of the records that are neither storages nor pickles of the
    program, and no code.
    """
    root = f"{archive.root}/"
    for name in archive.records:
        if not name.startswith(root):
            # The same names outside of the root are no records of the program.
            yield name
            continue
        inner = name.removeprefix(root)
        folder, _, key = inner.partition("/")
        is_code = folder == "code" and inner.endswith((".py", ".debug_pkl"))
        if inner in (*PICKLES, *_UNREAD) or is_code or name.endswith("/"):
            # Code, and pickles of C++, which Python does not read; but numpy takes any
            # record for an array of its own, and Python any other for a pickle.
            if is_array(archive, archive.records[name]) or (
                inner not in PICKLES and _may_import(archive, archive.records[name])
            ):
                yield name
        elif folder not in folders or key not in folders[folder]:
            yield name


def _may_import(archive: Archive, record: Record) -> bool:
    """Tell whether a record may be a pickle that imports what C++ does not write."""
    if record.size > _MOST_CODE:
        return True
    lenient = archive._replace(is_partial=True)  # Python compares no checksum
    try:
        data = lenient.read(record, _MOST_CODE, "pickle-bytes")
    except UnreadableError:
        return False
    return _IMPORT.search(data) is not None and not _is_of_cpp(data)


def _is_of_cpp(data: bytes) -> bool:
    """Tell whether a pickle has no opcodes but those that C++ writes for the places of
    code and for inputs: numbers, texts, tuples, lists and tensors.
    """
    at = 0
    while at < len(data):
        match = _OPCODES.match(data, at)
        end = at if match is None else match.end()
        if data[end : end + 1] == b"X":
            # A text (`X`) has a length of 4 bytes; no pattern of fixed size can pass
            # over it.
            end += 5 + int.from_bytes(data[end + 1 : end + 5], "little")
        if end == at:
            return False
        at = end
    return True


_MOST_CODE = 64 << 20
"""The most bytes of a record beside the code that are searched for imports."""
_CPP_NAMES = rb"""(?: torch\.jit\._pickle\n\w+ | torch\._utils\n_rebuild_\w+
    | torch\n\w+Storage | torch\nper_(?:tensor|channel)_affine(?:_float_qparams)?
    | collections\nOrderedDict ) \n"""
_IMPORT = re.compile(
    rb"\x93 | [ci] (?!" + _CPP_NAMES + rb") [\w.\x80-\xff]+ \n [\w.\x80-\xff]+ \n",
    re.VERBOSE,
)
"""An import in a pickle, or text that may be one."""
_OPCODES = re.compile(
    rb"(?: \x80. | [()\]}NtleausRQ.\x85-\x89] | [Kqh]. | M.. | [Jrj].{4} | G.{8}"
    rb"| \x8a\x08.{8} | c" + _CPP_NAMES + rb")+",
    re.VERBOSE | re.DOTALL,
)
"""Opcodes that C++ writes, but for texts."""
_UNREAD = ("mobile_debug_handles.pkl", "traced_inputs.pkl")
"""Pickles that torch writes and does not read again."""


def _storage_resolver(
    folder: StorageFolder,
) -> Callable[[PersistentId], Storage | Global]:
    """Return what finds the storages of a pickle. Bytecode since version 5 names whole
    records: `constants/0`.
    """

    def resolve(persistent: PersistentId) -> Storage | Global:
        pid = persistent.pid
        if (
            type(pid) is tuple
            and len(pid) in (5, 6)
            and pid[0] == "storage"
            and type(pid[2]) is str
        ):
            # Without the prefix, it is the key of constants.pkl for the same record.
            return folder.storage(
                pid[1], pid[2].removeprefix("constants/"), pid[3], pid[4]
            )
        return folder.resolve(persistent)

    return resolve


def _is_empty(storage: object) -> bool:
    return (
        isinstance(storage, Storage)
        and storage.device == "meta"
        and storage.place is None
    )


_LAYOUTS = {
    1: "sparse_coo",
    2: "sparse_csr",
    4: "sparse_csc",
    5: "sparse_bsr",
    6: "sparse_bsc",
}
"""c10/core/Layout.h."""


def _name_of(pickle: Pickle, module: str, name: str, offset: int) -> Global:
    """Return the node of a name of a pickle, of which there is one per name."""
    return pickle.globals.setdefault((module, name), Global(module, name, offset))


def _as_python(pickle: Pickle, call: Opaque) -> None:
    """Give the call of a tensor on meta, or of a sparse tensor, the function and the
    arguments that Python writes.

    C++ gives a storage to a tensor on meta. Of a sparse one it writes `(layout, size,
    requires_grad, *parts, hooks)`, torch.save writes `(layout, (*parts, size))`.
    """
    args = call.args
    if call.class_name == "torch._utils._rebuild_tensor_v2" and len(args) == 6:
        dtype = _dtype_on_meta(args[0])
        if dtype is not None:
            # torch.save writes no storage for a tensor on meta.
            call.func = _name_of(
                pickle, "torch._utils", "_rebuild_meta_tensor_no_storage", call.offset
            )
            call.args = (_name_of(pickle, "torch", dtype.name, call.offset), *args[2:5])
        return
    if (
        call.class_name != "torch._utils._rebuild_sparse_tensor"
        or len(args) < 6
        or type(args[0]) is not int
    ):
        return
    layout = _LAYOUTS.get(args[0])
    if layout is not None:
        get = _name_of(pickle, "torch.serialization", "_get_layout", call.offset)
        named = Opaque("reduce", get, (f"torch.{layout}",), None, call.offset)
        call.args = (named, (*args[3:-1], args[1]))


def _dtype_on_meta(node: Node) -> DType | None:
    """Return the dtype of a storage on meta, or None for any other node."""
    pid = node.pid if type(node) is PersistentId else None
    if (
        type(pid) is tuple
        and len(pid) in (5, 6)
        and pid[0] == "storage"
        and pid[3] == "meta"
    ):
        return storage_type(pid[1])
    return None


def _judge_import(row: Import, code: Code) -> Import:
    """An import with what torch.jit.load makes of it: a class of the code is an object
    of TorchScript and runs nothing.

    The class of a module that was lowered to a backend is one of `torch.jit` by its
    name.
    """
    name = f"{row.module}.{row.name}"
    if row.group == "known" or name not in code.classes:
        return row
    # torch.jit.save writes lowered modules below `torch/jit.py`.
    is_lowered = f"{row.module}.".startswith(
        ("torch.jit.", "torch.jit.___torch_mangle_")
    )
    if row.is_script or (is_lowered and row.name.endswith("LoweredModule")):
        return row._replace(
            group="unknown" if row.is_script else "known",
            calls=(),
            is_enum=False,
            times=0,
        )
    return row


def _devices_of(bytecode: Pickle) -> list[CodeDevice]:
    """The devices among the constants of the bytecode. It has no lines."""
    tags = (
        device_text(call) for call in bytecode.calls if class_of(call) == "torch.device"
    )
    return [
        CodeDevice(BYTECODE, None, tag)
        for tag in dict.fromkeys(tags)
        if tag is not None
    ]


def _with_kind(entry: Entry, root: object, kinds: dict[str, dict[str, Role]]) -> Entry:
    """The entry with the kind that the class of its object gives this attribute."""
    owner = _owner_class(root, entry.path)
    roles = kinds.get(owner, {}) if owner and entry.path else {}
    kind = roles.get(str(entry.path[-1])) or roles.get(OTHERS) if roles else None
    return entry if kind is None else entry._replace(kind=kind, source="torchscript")


def _owner_class(root: object, path: Path) -> str | None:
    """The class of the object that has the last key of a path as an attribute."""
    node = root
    # The state of a module is a dict of its attributes.
    for key in path[:-1]:
        if (
            type(node) is not Opaque
            or not node.states
            or type(node.states[0]) is not Dict
        ):
            return None
        state = node.states[0]
        node = next(
            (
                value
                for name, value in zip(state.keys, state.values, strict=True)
                if name == key
            ),
            None,
        )
    return (
        node.func.qualified
        if type(node) is Opaque and type(node.func) is Global
        else None
    )
