"""A plain pickle (`pickle.dump`, Detectron2's model zoo), and joblib's files, also compressed. Arrays become tensors."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint, Notice, Traits
from ckpt.errors import UnreadableError
from ckpt.formats.common.pickled import Contents, checkpoint, interpret, is_pickle, unknown_names
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.swap import Swap
from ckpt.formats.plain_pickle import FORMAT, arrays
from ckpt.formats.plain_pickle.cut import Cutter
from ckpt.formats.plain_pickle.packed import packing, unpacked
from ckpt.formats.probe import Probe
from ckpt.io.source import Memory, Source, grounded
from ckpt.limits import Limits
from ckpt.nodes import ByteStr, Node, Opaque, PersistentId
from ckpt.pickles import machine
from ckpt.pickles.machine import MachineError, Pickle
from ckpt.pickles.opcodes import BINSTRING, BYTEARRAY8
from ckpt.rows import replace
from ckpt.tensors import Range, Storage, TensorRef

_JOBLIB = FORMAT.traits._replace(label="joblib pickle", load="joblib.load({path})")
_TENSOR = 500
"""Bytes of memory of a tensor and its storage."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    return _Reader(probe, limits).read()


class _Reader:
    def __init__(self, probe: Probe, limits: Limits) -> None:
        self._probe = probe
        self._limits = limits
        self._packing = None if is_pickle(probe.head) else packing(probe.head)
        self._source: Source = probe.file
        self._left = 0
        if self._packing is not None:
            probe.budget.hold(probe.size)
            inside = unpacked(probe.file, self._packing, probe.budget)
            self._source, self._left = Memory(inside.data), inside.left
        self._cutter = Cutter(self._source, limits, probe.budget)
        self._wrapped: dict[int, Node] = {}
        self._arrays = 0

    def read(self) -> Checkpoint:
        probe, cutter, budget = self._probe, self._cutter, self._probe.budget
        cutter.cut()
        pickle = self._run()
        contents = Contents((), read_nested, probe.mark, budget)
        interpret(pickle, contents, self._limits, self._bytes_of, 0)
        contents.bytestrings = contents.bytestrings or any(run.code == BINSTRING for run in cutter.runs)
        made = dict(self._wrapped)
        for call in pickle.calls:
            array = None if id(call) in made else arrays.described(call)
            tensor = None if array is None else self._tensor(array)
            if tensor is not None:
                made[id(call)] = tensor
        swap = Swap(made, self._plain)
        root = swap.run(pickle.root)
        if cutter.position < self._source.size:
            left = self._source.size - cutter.position
            contents.notices.append(Notice("trailing-data", f"{left:,} bytes follow the pickle"))
        if self._packing is not None and self._left:
            text = f"{self._left:,} bytes follow the {self._packing.name} stream"
            contents.notices.append(Notice("trailing-data", text))
        traits = self._traits()
        for node in made.values():
            if isinstance(node, TensorRef):
                contents.storages[node.storage.id] = node.storage
        found = checkpoint(
            probe.path, FORMAT.name, traits, root, contents, self._limits, source=probe.file, refusals=()
        )
        return replace(found, weights_only=None)  # torch.load opens no such file

    def _traits(self) -> Traits:
        how = self._packing
        if self._wrapped:
            return _JOBLIB if how is None else _JOBLIB._replace(label=f"joblib pickle ({how.name})")
        if how is None:
            return FORMAT.traits
        load = f"pickle.load({how.opener}{{options}})" if how.opener else _JOBLIB.load
        return FORMAT.traits._replace(label=f"plain pickle ({how.name})", load=load)

    def _run(self) -> Pickle:
        """The pickle without its long bytes. Offsets are those of the file."""
        cutter = self._cutter
        try:
            pickle = machine.run(cutter.out, self._limits, 0, self._probe.budget, self._feed)
        except MachineError as error:
            moved = error.moved(cutter.original(error.offset))
            moved.hint = unknown_names(error.seen)
            raise moved from None
        for call in pickle.calls:
            call.offset = cutter.original(call.offset)
        for name in pickle.globals.values():
            name.offset = cutter.original(name.offset)
        return pickle

    def _feed(self, call: Opaque, at: int) -> None:
        """After BUILD: take the bytes of joblib's array, and cut on. The cutter stops there once joblib was named."""
        cutter = self._cutter
        if at < len(cutter.out):
            if arrays.is_wrapper(call):
                raise UnreadableError(
                    "damaged pickle: joblib's name is spelled so that its arrays cannot be found"
                )
            return
        if arrays.is_wrapper(call):
            array, is_padded = arrays.wrapped(call)
            begin = cutter.position
            if is_padded:
                begin += 1 + self._source.read(begin, 1)[0]
            cutter.skip_to(begin + array.nbytes)
            place = Range(*grounded(self._source, begin), array.nbytes)
            tensor = self._tensor(array, place)
            other = None if tensor else arrays.as_call(array, self._read(place), call.offset)
            self._wrapped[id(call)] = tensor or other
        cutter.cut()

    def _tensor(self, array: arrays.Description, place: Range | None = None) -> TensorRef | None:
        if place is None and type(array.raw) is PersistentId:
            meaning = array.raw.meaning
            place = meaning.place if type(meaning) is Storage and type(meaning.place) is Range else None
        self._arrays += 1
        self._probe.budget.claim(1)
        self._probe.budget.charge(_TENSOR, "an array")
        return arrays.tensor(array, place, f"{self._probe.mark}array-{self._arrays}")

    def _bytes_of(self, persistent: PersistentId) -> Storage:
        """The long bytes behind a number, as a storage without a dtype."""
        assert type(persistent.pid) is int
        run = self._cutter.runs[persistent.pid]
        place = Range(*grounded(self._source, run.offset), run.size)
        return Storage(f"bytes-{persistent.pid}", None, None, run.size, place)

    def _plain(self, persistent: PersistentId) -> Node:
        """The long bytes themselves, where they are no array."""
        assert type(persistent.pid) is int
        run = self._cutter.runs[persistent.pid]
        data = self._read(Range(self._source, run.offset, run.size))
        if run.code == BYTEARRAY8:
            return bytearray(data)
        return ByteStr(data, "latin-1") if run.code == BINSTRING else data

    def _read(self, place: Range) -> bytes:
        self._probe.budget.charge(2 * place.size, "a pickle")
        return place.source.read(place.offset, place.size)
