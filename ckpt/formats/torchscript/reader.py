"""TorchScript archives: `data.pkl`, `constants.pkl`, code, and the bytecode of the mobile interpreter.

Lists in the code say which attribute is a parameter and which is a buffer. They are read as text.
Layout: torch/csrc/jit/serialization/{export_module,import,python_print}.cpp, torch/csrc/jit/mobile/import.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.checkpoint import Checkpoint, CodeDevice, Entry, Notice, Origin, Refusal, Role
from ckpt.columns import Chain
from ckpt.errors import UnreadableError
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.code import OTHERS, Code, code_of
from ckpt.formats.common.pickled import Contents, checkpoint, interpret, run
from ckpt.formats.common.storages import StorageFolder, byteorder_of
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Probe
from ckpt.formats.torchscript import FORMAT
from ckpt.limits import Budget, Limits
from ckpt.names import Path
from ckpt.nodes import Dict, Global, Node, Opaque
from ckpt.pickles.machine import Pickle
from ckpt.rows import dataclass, replace
from ckpt.text import and_more
from ckpt.tree.scalars import class_of, device_text
from ckpt.tree.walk import flatten

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
    archive: Archive, path: str, limits: Limits, mark: str = "", budget: Budget | None = None
) -> Checkpoint:
    """The checkpoint in an archive. Raises CkptError."""
    budget = budget or Budget(limits)
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, read_nested, mark, budget)
    roots: dict[str, Node] = {}
    devices: list[CodeDevice] = []
    folders: dict[str, StorageFolder] = {}
    for name, folder, prefix in _pickles(archive):
        record = archive.find(name)
        if record is None and archive.is_partial:
            contents.notices.append(Notice("incomplete", f"{name} of the program is missing"))
            continue
        if record is None:
            raise UnreadableError(f"the TorchScript archive lacks {name}")
        pickle = run(archive.read_pickle(record, limits, budget), limits, budget)
        if folder not in folders:
            big = byteorder_of(archive) == "big"
            folders[folder] = StorageFolder(archive, folder, contents, prefix, big=big)
        interpret(pickle, contents, limits, folders[folder].resolve, 0)
        roots[name] = pickle.root
        if name == BYTECODE:
            devices = _devices_of(pickle)
    root = roots["data.pkl"]
    code = code_of(archive, limits, budget)
    contents.notices += notices_of(code)
    flat = flatten(root, limits, budget)
    flat.tensors = Chain(_with_kind(entry, root, code.kinds) for entry in flat.tensors)
    if flat.containers and not flat.containers[0].path:
        flat.containers[0] = flat.containers[0]._replace(is_module=True)
    constants = roots.get("constants.pkl")
    if type(constants) is tuple and constants:
        held = Dict()
        held.set(["constants"], [constants])
        extra = flatten(held, limits, budget)
        flat.tensors.extend(extra.tensors)
        flat.values += extra.values
    result = checkpoint(
        path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        source=archive.source,
        origin=ScriptOrigin(archive),
        byteorder=byteorder_of(archive),
        refusals=(Refusal("a TorchScript archive, which torch.jit.load opens", ()),),
        flat=flat,
    )
    return replace(result, code_devices=(*code.devices, *devices))


def _pickles(archive: Archive) -> list[tuple[str, str, str]]:
    """Return (record, the folder of its storages, the prefix of their ids) of each pickle with tensors.

    The bytecode shares its constants with the code. Before torch 1.9 it had a folder of its own.
    """
    pickles = [("data.pkl", "data", ""), ("constants.pkl", "constants", "constants:")]
    if archive.find(BYTECODE) is not None:
        own = any(name.startswith(f"{archive.root}/bytecode/") for name in archive.records)
        pickles.append((BYTECODE, "bytecode", "bytecode:") if own else (BYTECODE, "constants", "constants:"))
    return pickles


def notices_of(code: Code) -> Iterator[Notice]:
    """Yield a notice about the code that torch.jit.load runs, and about its calls that touch files."""
    loaders, deeds = and_more(code.loaders, 2), and_more(code.deeds, 2)
    if code.loaders and (code.dangers or code.deeds):
        worst = and_more(code.dangers or code.deeds, 2)
        text = f"DANGER: loading this file runs its __setstate__ ({loaders}), and its code has {worst}."
        yield Notice("code-inside", text)
        return
    if code.dangers:
        yield Notice("code-inside", f"DANGER: loading this file runs {and_more(code.dangers, 2)}.")
        return
    if code.deeds:
        yield Notice("file-code", f"Its code touches files or never ends: {deeds}.")
    if code.unknown:
        text = f"torch.jit.load runs {and_more(code.unknown, 2)}, which ckpt does not know."
        yield Notice("unknown-operator", text)
    elif code.loaders:
        yield Notice("runs-setstate", f"torch.jit.load runs its __setstate__ ({loaders}).")


def _devices_of(bytecode: Pickle) -> list[CodeDevice]:
    """The devices among the constants of the bytecode. It has no lines."""
    tags = (device_text(call) for call in bytecode.calls if class_of(call) == "torch.device")
    return [CodeDevice(BYTECODE, None, tag) for tag in dict.fromkeys(tags) if tag is not None]


def _with_kind(entry: Entry, root: object, kinds: dict[str, dict[str, Role]]) -> Entry:
    """The entry with the kind that the class of its object gives this attribute."""
    owner = _owner(root, entry.path)
    roles = kinds.get(owner, {}) if owner and entry.path else {}
    kind = roles.get(str(entry.path[-1])) or roles.get(OTHERS) if roles else None
    return entry if kind is None else entry._replace(kind=kind, source="torchscript")


def _owner(root: object, path: Path) -> str | None:
    """The class of the object that has the last key of a path as an attribute."""
    node = root
    for key in path[:-1]:
        if type(node) is not Opaque or not node.states or type(node.states[0]) is not Dict:
            return None
        state = node.states[0]
        node = next(
            (value for name, value in zip(state.keys, state.values, strict=True) if name == key), None
        )
    return node.func.qualified if type(node) is Opaque and type(node.func) is Global else None
