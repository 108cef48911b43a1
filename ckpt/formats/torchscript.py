"""TorchScript archives (torch.jit.save since 1.4): `data.pkl`, `constants.pkl`, code. Read-only.

Lists in the code say which attribute is a parameter and which is a buffer. They are read as text.
Layout: torch/csrc/jit/serialization/{export_module,import,python_print}.cpp.
"""

from __future__ import annotations

import re

from ckpt.checkpoint import Checkpoint, Entry, Refusal, Role, Traits
from ckpt.errors import UnreadableError
from ckpt.formats.archive import Archive
from ckpt.formats.pickled import Contents, checkpoint, interpret, run
from ckpt.formats.probe import Probe
from ckpt.formats.torch_legacy.read import read_nested
from ckpt.formats.torch_zip.read import StorageFolder, byteorder_of
from ckpt.limits import Budget, Limits
from ckpt.names import Path
from ckpt.nodes import Dict, Global, Opaque
from ckpt.tree.walk import flatten

NAME = "torchscript"
SUFFIXES: tuple[str, ...] = (".pt", ".ptl", ".ts")
TRAITS = Traits(
    "TorchScript",
    'torch.jit.load({path}, map_location="cpu")',
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    names_are_code=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.torch_zip.verify"

_LINE = r"(?m)^(?:class (?P<class>\w+)\(|  __(?P<kind>parameters|buffers)__ = \[(?P<names>[^\]\n]*)\])"
_OTHERS = ""  # no name of an attribute
_NAME = 300
"""Bytes of memory of one class or name of the code."""
_WORD = r'"([^"]*)"'


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and all(
        archive.find(name) is not None for name in ("data.pkl", "constants.pkl")
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    budget = probe.budget
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, read_nested, probe.mark, budget)
    root = None
    constants = Dict()
    for name, folder, prefix in (("data.pkl", "data", ""), ("constants.pkl", "constants", "constants:")):
        record = archive.find(name)
        if record is None:
            raise UnreadableError(f"the TorchScript archive lacks {name}")
        pickle = run(archive.read_pickle(record, limits, budget), limits, budget)
        storages = StorageFolder(archive, folder, contents, prefix, big=byteorder_of(archive) == "big")
        interpret(pickle, contents, limits, storages.resolve, 0)
        if name == "data.pkl":
            root = pickle.root
        elif type(pickle.root) is tuple and pickle.root:
            constants.keys.append("constants")
            constants.values.append(pickle.root)
    flat = flatten(root, limits, budget)
    kinds = _kinds(archive, limits, budget)
    flat.tensors = [_with_kind(entry, root, kinds) for entry in flat.tensors]
    if flat.containers and not flat.containers[0].path:
        flat.containers[0] = flat.containers[0]._replace(is_module=True)
    if constants.keys:
        extra = flatten(constants, limits, budget)
        flat.tensors += extra.tensors
        flat.values += extra.values
    return checkpoint(
        probe.path,
        NAME,
        TRAITS,
        root,
        contents,
        limits,
        source=probe.file,
        byteorder=byteorder_of(archive),
        refusals=(Refusal("a TorchScript archive, which torch.jit.load opens", ()),),
        flat=flat,
    )


def _kinds(archive: Archive, limits: Limits, budget: Budget) -> dict[str, dict[str, Role]]:
    """Qualified class name -> attribute -> parameter or buffer, from the lists in the code.

    torch 1.4 lists parameters only. The other tensors of such a class are its buffers, which `_OTHERS` stands for.
    """
    kinds_of: dict[str, dict[str, Role]] = {}
    prefix = f"{archive.root}/code/"
    for name, record in archive.records.items():
        if not name.startswith(prefix) or not name.endswith(".py"):
            continue
        module = name[len(prefix) : -3].replace("/", ".")
        # Four bytes a character: text with one emoji takes as much.
        budget.charge(4 * record.size, "the code of the archive")
        code = archive.read(record, limits.pickle_bytes, "pickle-bytes").decode("utf-8", "replace")
        kinds: dict[str, Role] | None = None
        for match in re.finditer(_LINE, code):
            budget.charge(_NAME, "the code of the archive")
            if match["class"]:
                kinds = kinds_of.setdefault(f"{module}.{match['class']}", {})
            elif kinds is not None:
                role: Role = "parameter" if match["kind"] == "parameters" else "buffer"
                if role == "parameter":
                    kinds[_OTHERS] = "buffer"
                else:
                    kinds.pop(_OTHERS, None)
                for word in re.finditer(_WORD, match["names"]):
                    budget.charge(_NAME, "the code of the archive")
                    kinds[word[1]] = role
    return kinds_of


def _with_kind(entry: Entry, root: object, kinds: dict[str, dict[str, Role]]) -> Entry:
    """The entry with the kind that the class of its object gives this attribute."""
    owner = _owner(root, entry.path)
    roles = kinds.get(owner, {}) if owner and entry.path else {}
    kind = roles.get(str(entry.path[-1])) or roles.get(_OTHERS) if roles else None
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
