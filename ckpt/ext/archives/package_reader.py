"""torch.package archives: each pickle under its name, texts, and the names of the code,
none of which is run.

Layout: torch/package/package_exporter.py and package_importer.py. Storages are
`.data/KEY.storage`, shared by all pickles. An importer looks a module up in the package
first, so any name may mean code in the file.
"""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Sequence
from itertools import chain

from ckpt.ext.archives.torch_package import FORMAT
from ckpt.ext.torchscript.code import code_of, notices_of
from ckpt.ext.torchscript.packs import judge_packs
from ckpt.ext.torchscript.script_types import Types, check_doubling
from ckpt.formats.common.archive import Archive, check_paths
from ckpt.formats.common.directory import Record
from ckpt.formats.common.following import is_array, judge_records
from ckpt.formats.common.heads import is_pickle
from ckpt.formats.common.members import of_record
from ckpt.formats.common.pickled import (
    Contents,
    interpret_pickle,
    is_of_script,
    make_checkpoint,
    run,
)
from ckpt.formats.common.storages import StorageFolder, refuse_big
from ckpt.formats.common.stream import read_nested
from ckpt.formats.format import Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Import
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import (
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    is_tuple,
    tensor_of,
)
from ckpt.model.rows import replace
from ckpt.model.tensors import Storage
from ckpt.model.text import and_more, show, size_text
from ckpt.pickle.depth import refuse_deep
from ckpt.pickle.machine import MachineError, Pickle

_OTHERS = ("version", "byteorder")
"""Records of the archive itself."""
_SCRIPTS = ".data/ts_code/"
_STORAGE = ".storage"
"""The ending of a storage."""
_ROW = 500
_TEXT = 1 << 16


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    return _Reader(probe, archive, limits).read()


class _Reader:
    def __init__(self, probe: Probe, archive: Archive, limits: Limits) -> None:
        self._probe = probe
        self._archive = archive
        self._limits = limits
        self._budget = probe.budget
        self._contents = Contents(
            archive.notices, read_nested, probe.mark, probe.budget
        )
        self._storages = StorageFolder(
            archive, ".data", self._contents, suffix=_STORAGE
        )

    def read(self) -> Checkpoint:
        archive, budget = self._archive, self._budget
        budget.hold(archive.nbytes)
        # A record outside of the root, or two of one name, are another file to another
        # reader.
        check_paths(archive)
        refuse_big(archive, "PackageImporter")
        root, code, files = Dict(), Dict(), Dict()
        parts: list[str] = []
        for name, record in archive.records.items():
            inner = name.removeprefix(f"{archive.root}/")
            # Records of `.data/` are read where something names them: storages,
            # programs, facts.
            if inner.startswith(".data/") or inner in _OTHERS:
                continue
            budget.charge(_ROW, "the package")
            if inner.endswith(".py"):
                code.set([inner], [size_text(record.size)])
                continue
            pickle = self._pickle(record)
            if pickle is None:
                files.set([inner], [self._file_node(record)])
                continue
            key = inner.removesuffix(".pkl")
            if key in root.keys:
                raise UnreadableError(f"the package holds {show(key, 80)} twice")
            parts.append(inner)
            root.set([key], [self._interpret_pickle(pickle)])
        # The package may hold pickles of these names itself.
        further = (
            ("code", code),
            ("files", files),
            ("package", self._package_facts()),
        )
        for key, rows in further:
            while key in root.keys:
                key += "_"
            if rows.keys:
                root.set([key], [rows])
        self._contents.notices += self._storages.notices()
        self._contents.notices += self._code_inside([str(name) for name in code.keys])
        self._read_scripts()
        self._judge_others(parts)
        result = make_checkpoint(
            self._probe.path,
            FORMAT.name,
            FORMAT.traits,
            root,
            self._contents,
            self._limits,
            source=self._probe.file,
            refusals=(),
        )
        imports = tuple(self._judge_import(row) for row in result.imports)
        # torch.load opens no package.
        return replace(result, weights_only=None, imports=imports, parts=tuple(parts))

    def _pickle(self, record: Record) -> Pickle | None:
        """Return the pickle in a record, or None. A record whose name ends in .pkl must
        be one.
        """
        named = record.name.endswith(".pkl")
        if not named:
            # Any record may be a pickle: its ending is not checked by the importer.
            size = min(record.stored, 8)
            if record.deflated:
                return None
            if not is_pickle(self._archive.source.read(record.offset, size)):
                return None
        data = self._archive.read_pickle(record, self._limits, self._budget)
        try:
            pickle = run(data, self._limits, self._budget)
        # The first bytes of a text may look like a pickle's.
        except MachineError:
            if named:
                raise
            return None
        if pickle.end < len(data):
            text = (
                f"{len(data) - pickle.end:,} bytes follow the pickle in "
                f"{show(record.name, 60)}"
            )
            self._contents.notices.append(Notice("trailing-data", text))
        return pickle

    def _interpret_pickle(self, pickle: Pickle) -> Node:
        # `reduce_package` is a call that no opcode makes: it is judged as one.
        for persistent in pickle.persistent:
            call = _reduced_call(persistent)
            if call is not None:
                pickle.calls.append(call)
        interpret_pickle(
            pickle, self._contents, self._limits, self._resolve_persistent_id, 0
        )
        return pickle.root

    def _resolve_persistent_id(self, persistent: PersistentId) -> Storage | Global:
        """A storage, or the function that makes an object (a ScriptModule, an
        `__reduce_package__`).
        """
        call = _reduced_call(persistent)
        if call is not None and type(call.func) is Global:
            return call.func
        return self._storages.resolve(persistent)

    def _judge_others(self, parts: Sequence[str]) -> None:
        """Judge the records that are read as no pickle here, and that another loader,
        or `load_pickle` by another name, would unpickle.
        """
        archive = self._archive
        root = f"{archive.root}/"
        read = {root + name for name in parts}
        folder = f"{root}.data/"
        others: list[str] = []
        for name, record in archive.records.items():
            key = name.removeprefix(folder).removesuffix(_STORAGE)
            is_storage = name == f"{folder}{key}{_STORAGE}" and key in self._storages
            # C++ reads the pickles of a program, and numpy any record as an array.
            is_script = name.startswith(root + _SCRIPTS)
            if name in read or is_storage or name.endswith("/"):
                continue
            if not is_script or is_array(archive, record):
                others.append(name)
        judge_records(archive, others, self._contents, self._limits, self._budget)

    def _read_scripts(self) -> None:
        """Judge the programs of TorchScript in the package: their pickles, and the code
        that loading them runs.
        """
        archive = self._archive
        scripts = Contents((), read_nested, self._probe.mark, self._budget)
        scripts.is_script = True
        # Their keys end in `.storage`.
        # Their keys end in `.storage`; those of the pickles of the package do not.
        storages = StorageFolder(archive, ".data", scripts, meta=True)
        start = f"{archive.root}/{_SCRIPTS}"
        roots: list[Node] = []
        are_tensors = True
        for name, record in archive.records.items():
            if name.startswith(start) and name.endswith(".pkl"):
                pickle = run(
                    archive.read_pickle(record, self._limits, self._budget),
                    self._limits,
                    self._budget,
                )
                refuse_deep(pickle, self._budget)
                interpret_pickle(pickle, scripts, self._limits, storages.resolve, 0)
                roots.append(pickle.root)
                # The constants of a program are tensors; code may be given any other
                # value.
                if name.endswith("constants.pkl"):
                    constants = pickle.root if is_tuple(pickle.root) else (None,)
                    are_tensors = are_tensors and all(
                        tensor_of(constant) is not None for constant in constants
                    )
        self._contents.pickles += scripts.pickles
        self._contents.notices += scripts.notices
        # All programs of the package share one folder of code.
        code = code_of(
            archive,
            self._limits,
            self._budget,
            f"{_SCRIPTS}code",
            has_values=not are_tensors,
        )
        for root in roots:
            check_doubling(root, code.classes, self._budget)
        problem = None
        # Only code with a loader of its own (`__setstate__`) runs while it is loaded.
        if code.loaders:
            problem = Types(code.classes, self._budget).mismatch(roots)
        if problem is not None:
            code.dangers.append(f"its __setstate__ on {problem}")
        calls = [call for pickle in scripts.pickles for call in pickle.calls]
        judge_packs(calls, code)
        self._contents.notices += notices_of(code)

    def _judge_import(self, row: Import) -> Import:
        """An import with what the importer makes of it: it finds programs of
        TorchScript in the package by their names.
        """
        if (row.module, row.name) != ("torch.jit._script", "unpackage_script_module"):
            return row._replace(is_script=is_of_script(row.module))
        # The call only looks a program up, and `_read_scripts` has judged the programs.
        calls: list[Opaque] = []
        for pickle in self._contents.pickles:
            calls += [
                call
                for call in pickle.calls
                if call.class_name == f"{row.module}.{row.name}"
            ]
        is_usual = bool(calls) and all(map(self._is_script, calls))
        return row._replace(group="known", calls=(), times=0) if is_usual else row

    def _is_script(self, call: Opaque) -> bool:
        """Tell whether a call makes a program of the package, and nothing else happens
        to it.
        """
        is_filled = bool(call.states or call.items or call.keys)
        if is_filled or call.kwargs is not None or len(call.args) != 1:
            return False
        name = call.args[0]
        if type(name) is not str:
            return False
        return self._archive.find(f"{_SCRIPTS}{name}/data.pkl") is not None

    def _code_inside(self, code: list[str]) -> list[Notice]:
        """Return a notice about the code that an importer runs when it loads the
        pickles.

        The code is the modules that the pickles name, and their parents.
        """
        modules = {
            name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for name in code
        }
        runs: dict[str, None] = {}
        # Importing `a.b.c` runs `a` and `a.b` first.
        for pickle in self._contents.pickles:
            for name in pickle.globals.values():
                asked = chain.from_iterable(map(_with_parents, _modules_of(name)))
                if not modules.isdisjoint(asked):
                    runs[name.qualified] = None
        if not runs:
            return []
        listed = and_more([show(name, 60) for name in runs], 2)
        return [
            Notice(
                "code-inside",
                f"DANGER: loading this file runs Python code in it, for {listed}.",
            )
        ]

    def _package_facts(self) -> Dict:
        facts = Dict()
        extern = self._archive.find(".data/extern_modules")
        if extern is not None:
            facts.set(["extern_modules"], [[*self._text(extern).split()]])
        python = self._archive.find(".data/python_version")
        if python is not None:
            facts.set(["python_version"], [self._text(python).strip()])
        return facts

    def _text(self, record: Record) -> str:
        if record.size > self._limits.index_bytes:
            what = f"record {show(record.name, 80)} has {record.size:,} bytes"
            raise LimitError(what, "index-bytes", self._limits.index_bytes)
        # A text becomes objects of Python that take more than its bytes.
        self._budget.charge(10 * record.size, "the package")
        data = of_record(self._archive.source, record).read(self._limits, self._budget)
        return data.decode("utf-8", "backslashreplace")

    def _file_node(self, record: Record) -> Node:
        """A short text as it is, anything else as its size."""
        if record.size <= _TEXT:
            data = of_record(self._archive.source, record).read(
                self._limits, self._budget
            )
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                pass
        return size_text(record.size)


def _modules_of(name: Global) -> set[str]:
    """The modules of a name in Python 2 and 3. An importer translates the first in
    pickles of its protocols.
    """
    module, _ = NAME_MAPPING.get((name.module, name.name), (name.module, ""))
    return {name.module, module, IMPORT_MAPPING.get(name.module, module)}


def _with_parents(module: str) -> list[str]:
    steps = module.split(".")
    return [".".join(steps[:end]) for end in range(1, len(steps) + 1)]


def _reduced_call(persistent: PersistentId) -> Opaque | None:
    """Return `('reduce_package', [id,] func, args)` as the call that it is."""
    pid = persistent.pid
    if not is_tuple(pid) or len(pid) not in (3, 4) or pid[0] != "reduce_package":
        return None
    args = pid[-1]
    if not is_tuple(args):
        raise UnreadableError(
            f"the persistent id at byte {persistent.offset:,} of a pickle is no call"
        )
    return Opaque("reduce", pid[-2], args, None, persistent.offset)
