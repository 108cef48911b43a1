"""A plain pickle (`pickle.dump`, Detectron2's model zoo), and joblib's files, also
compressed. Arrays become tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from math import prod
from struct import pack

from ckpt.bytes.source import Memory, Source, underlying_file
from ckpt.ext.pickles import FORMAT
from ckpt.formats.common.early import (
    LOOKED,
    is_early,
    runs_before_it_breaks,
    runs_on,
)
from ckpt.formats.common.following import refuse_archive
from ckpt.formats.common.heads import MAGIC, is_pickle
from ckpt.formats.common.packed import is_packed, packing, unpack_all
from ckpt.formats.common.pickled import (
    Contents,
    interpret_pickle,
    make_checkpoint,
    unknown_names,
)
from ckpt.formats.common.refused import compressed_error
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.swap import SwapBytes
from ckpt.formats.common.two_files import refuse_end
from ckpt.formats.format import Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import CutOffError, LimitError, UnreadableError, UnsupportedError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    tensor_of,
)
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import DIMENSIONS, Storage, TensorRef, tensor_ref
from ckpt.model.text import counted_noun, show
from ckpt.pickle import machine
from ckpt.pickle import opcodes as op
from ckpt.pickle.judge.names import is_own
from ckpt.pickle.machine import LINE_BYTES, MachineError, Pickle, TruncatedPickleError
from ckpt.pickle.opcodes import BINSTRING, BYTEARRAY8
from ckpt.tree.arrays import NumpyDType, as_bytes, numpy_dtype

_JOBLIB = FORMAT.traits._replace(label="joblib pickle", load="joblib.load({path})")
_TENSOR = 500
"""Bytes of memory of a tensor and its storage."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    return _Reader(probe, limits).read()


class _Reader:
    def __init__(self, probe: Probe, limits: Limits) -> None:
        self._probe = probe
        self._limits = limits
        is_inside = not is_pickle(probe.head) and is_packed(
            probe.head, probe.file, limits
        )
        # A compressed stream may be the beginning of a pickle too: joblib looks at its
        # first bytes, other loaders run it.
        if is_inside and is_early(probe.head, probe.file, limits):
            raise UnreadableError(
                "two files in one: pickle.load and torch.load run a pickle that joblib "
                "does not see"
            )
        refuse_end(probe.file)
        self._packing = packing(probe.head) if is_inside else None
        self._source: Source = probe.file
        self._left = 0
        if self._packing is not None:
            # The compressed bytes stay in memory beside what is unpacked.
            probe.budget.hold(probe.size)
            inside = unpack_all(probe.file, self._packing, probe.budget)
            self._source, self._left = Memory(inside.data), inside.left
        # The cutter leaves long bytes in the file, so that weights do not go through
        # memory.
        self._cutter = Cutter(self._source, limits, probe.budget)
        self._wrapped: dict[int, Node] = {}
        self._first: tuple[int, int] | None = None
        """The length of the pickle before the first array of joblib, and the place of
        its bytes in the file.
        """
        self._arrays = 0

    def read(self) -> Checkpoint:
        probe, cutter, budget = self._probe, self._cutter, self._probe.budget
        cutter.cut()
        pickle = self._run_pickle()
        contents = Contents((), read_nested, probe.mark, budget)
        # Nothing that the file names is called: the calls are records, which are
        # judged.
        interpret_pickle(
            pickle, contents, self._limits, partial(self._bytes_of, cutter), 0
        )
        # A pickle of Python 2 has its texts as bytes.
        contents.bytestrings = contents.bytestrings or any(
            run.code == BINSTRING for run in cutter.runs
        )
        tensors = dict(self._wrapped)
        for call in pickle.calls:
            # A dtype is read where it is used. A state that it gets later would give
            # the array another type for a loader than here.
            is_dtype = call.class_name == "numpy.dtype"
            if is_dtype and pickle.fillings.is_filled_after(call, call.offset):
                raise UnreadableError(
                    f"damaged pickle: the dtype at byte {call.offset:,} changes after "
                    "its use"
                )
            array = None if id(call) in tensors else describe_array(call)
            tensor = None if array is None else self._tensor(array)
            if tensor is not None:
                tensors[id(call)] = tensor
        swap = SwapBytes(lambda node: tensors.get(id(node)), self._long_bytes)
        root = swap.copy(pickle.root)
        if cutter.position < self._source.size:
            self._judge_following(pickle, contents)
        if self._packing is not None and self._left:
            text = f"{self._left:,} bytes follow the {self._packing.name} stream"
            contents.notices.append(Notice("trailing-data", text))
        traits = self._format_traits()
        # joblib's arrays of texts are calls, no tensors.
        for node in tensors.values():
            if isinstance(node, TensorRef):
                contents.storages[node.storage.id] = node.storage
        result = make_checkpoint(
            probe.path,
            FORMAT.name,
            traits,
            root,
            contents,
            self._limits,
            source=probe.file,
            refusals=(),
        )
        return replace(result, weights_only=None)  # torch.load opens no such file

    def _judge_following(self, first: Pickle, contents: Contents) -> None:
        """Judge the pickles that follow the first: whoever loads in a loop runs them
        too. Raises UnreadableError.

        They are read as any bytes would be, for a loader does not ask what they were
        meant to be.
        """
        if first.root == MAGIC and self._packing is not None:
            raise compressed_error(self._probe)  # a file of torch, as people pack it
        if _may_be_magic(first.root):
            raise UnreadableError(
                "torch may take its first pickle for the magic number of a legacy "
                "file, though torch never writes it so"
            )
        begin = end = self._cutter.position
        count = 0
        while end < self._source.size:
            following = self._pickle_at(end)
            if following is None:
                break
            cutter, pickle = following
            interpret_pickle(
                pickle, contents, self._limits, partial(self._bytes_of, cutter), 0
            )
            end, count = cutter.position, count + 1
        if count:
            text = (
                f"{counted_noun(count, 'more pickle')} from byte {begin:,} on, whose "
                "calls are judged and whose values are not shown"
            )
            contents.notices.append(Notice("trailing-data", text))
        # Readers of archives look at the end of a file first: they would see another
        # file.
        if end < self._source.size:
            refuse_archive(self._source, end)
            text = f"{self._source.size - end:,} bytes follow the pickle"
            contents.notices.append(Notice("trailing-data", text))

    def _pickle_at(self, begin: int) -> tuple[Cutter, Pickle] | None:
        """Return the pickle that begins at a byte behind the first, or None where these
        bytes are none.

        Raises UnreadableError for one that breaks after it has called or imported
        something.
        """
        cutter = Cutter(self._source, self._limits, self._probe.budget)
        cutter.skip_to(begin)
        try:
            # These bytes may be anything, so a fault is no error yet.
            cutter.cut()
            pickle = machine.run_machine(
                cutter.out, self._limits, 0, self._probe.budget
            )
            if cutter.fault is not None:
                raise cutter.fault
            return cutter, pickle
        except UnreadableError:
            # A loader runs a broken pickle up to its fault: it is refused if it has
            # called or imported something by then.
            rest = self._source.size - begin
            if runs_before_it_breaks(
                self._source.read(begin, min(rest, LOOKED)), self._limits
            ):
                problem = f"a damaged pickle begins at byte {begin:,}, behind the first"
                raise UnreadableError(
                    problem, hint="pickle.load in a loop runs a part of it"
                ) from None
            return None

    def _format_traits(self) -> Traits:
        how = self._packing
        if self._wrapped:
            if how is None:
                return _JOBLIB
            return _JOBLIB._replace(label=f"joblib pickle ({how.name})")
        if how is None:
            return FORMAT.traits
        # pickle.load reads no compressed file by itself; joblib opens all kinds.
        load = f"pickle.load({how.opener}{{options}})" if how.opener else _JOBLIB.load
        return FORMAT.traits._replace(label=f"plain pickle ({how.name})", load=load)

    def _run_pickle(self) -> Pickle:
        """Return the pickle without its long bytes. Offsets count from the beginning of
        the file.
        """
        cutter = self._cutter
        try:
            pickle = machine.run_machine(
                cutter.out, self._limits, 0, self._probe.budget, self._take_array
            )
        except MachineError as error:
            # The machine counts in what is left of the pickle; people look into the
            # file.
            moved = error.moved(cutter.original(error.offset))
            moved.hint = unknown_names(error.seen)
            raise moved from None
        if cutter.fault is not None:
            cutter.fault.hint = unknown_names(pickle.globals.values())
            raise cutter.fault
        self._refuse_other_readings(pickle)
        for call in pickle.calls:
            call.offset = cutter.original(call.offset)
        pickle.fillings.move(cutter.original)
        for name in pickle.globals.values():
            name.offset = cutter.original(name.offset)
        return pickle

    def _refuse_other_readings(self, pickle: Pickle) -> None:
        """Raise UnreadableError where joblib finds an array that is none here, or where
        another loader takes the bytes of an array for opcodes.
        """
        for call in pickle.calls:
            # joblib asks for the class of an object, however that is made.
            is_array = any(map(_is_name_of_wrapper, (call.func, *call.args[:1])))
            if is_array and call.states and id(call) not in self._wrapped:
                raise UnreadableError(_HIDDEN)
        if self._first is None:
            return
        kept, position = self._first
        if runs_on(
            bytes(self._cutter.out[:kept]), self._source, position, self._limits
        ):
            raise UnreadableError(
                "two files in one: pickle.load runs the bytes of an array, which "
                "joblib.load takes for its numbers"
            )

    def _take_array(self, call: Opaque, position: int) -> None:
        """After BUILD: take the bytes of joblib's array, and cut on. The cutter stops
        there once joblib was named.
        """
        cutter = self._cutter
        # joblib's name was spelled in pieces if the cutter did not stop here: behind
        # this BUILD come the raw bytes of an array, taken for opcodes.
        if position < len(cutter.out):
            if is_wrapper(call):
                raise UnreadableError(_HIDDEN)
            return
        if is_wrapper(call):
            array, is_padded = describe_wrapper(call)
            begin = cutter.position
            if is_padded:
                # One byte has the number of bytes of padding, so that arrays are
                # aligned.
                begin += 1 + self._source.read(begin, 1)[0]
            if self._first is None and begin + array.nbytes > cutter.position:
                self._first = len(cutter.out), cutter.position
            cutter.skip_to(begin + array.nbytes)
            place = Range(*underlying_file(self._source, begin), array.nbytes)
            tensor = self._tensor(array, place)
            other = None
            if tensor is None:
                other = as_call(array, self._read(place), call.offset)
            self._wrapped[id(call)] = tensor or other
        cutter.cut()

    def _tensor(
        self, array: Description, place: Range | None = None
    ) -> TensorRef | None:
        if place is None and type(array.raw) is PersistentId:
            # Its bytes were cut out of the pickle: they stay in the file.
            meaning = array.raw.meaning
            if type(meaning) is Storage and type(meaning.place) is Range:
                place = meaning.place
        self._arrays += 1
        self._probe.budget.claim(1)
        self._probe.budget.charge(_TENSOR, "an array")
        return tensor(array, place, f"{self._probe.mark}array-{self._arrays}")

    def _bytes_of(self, cutter: Cutter, persistent: PersistentId) -> Storage:
        """The long bytes behind a number, as a storage without a dtype."""
        assert type(persistent.pid) is int
        run = cutter.runs[persistent.pid]
        place = Range(*underlying_file(self._source, run.offset), run.size)
        return Storage(f"bytes-{persistent.pid}", None, None, run.size, place)

    def _long_bytes(self, persistent: PersistentId) -> Node:
        """The long bytes themselves, where they are no array."""
        assert type(persistent.pid) is int
        run = self._cutter.runs[persistent.pid]
        data = self._read(Range(self._source, run.offset, run.size))
        if run.code == BYTEARRAY8:
            return bytearray(data)
        # Python 2's text, which Python 3 decodes as the loader says.
        return ByteStr(data, "latin-1") if run.code == BINSTRING else data

    def _read(self, place: Range) -> bytes:
        self._probe.budget.charge(2 * place.size, "a pickle")
        return place.source.read(place.offset, place.size)


_HIDDEN = "damaged pickle: joblib's name is spelled so that its arrays cannot be found"
WRAPPER = ("joblib.numpy_pickle", "NumpyArrayWrapper")
# dtypes of numpy by their codes. Others (texts, dates) are no tensors.
_DTYPES = {
    "b1": "bool",
    "c8": "complex64",
    "c16": "complex128",
    **{f"f{width}": f"float{8 * width}" for width in (2, 4, 8)},
    **{
        f"{code}{width}": f"{kind}{8 * width}"
        for code, kind in (("i", "int"), ("u", "uint"))
        for width in (1, 2, 4, 8)
    },
}


def _may_be_magic(root: Node) -> bool:
    """Tell whether torch may take a value for its magic number: it asks `value !=
    MAGIC`, and goes on where that is false.
    """
    # 1.0 == 1 in Python, so a float may be the number too.
    if type(root) in (int, float):
        return root == MAGIC
    if type(root) is not Opaque:
        return False
    array = describe_array(root)
    tensor = tensor_of(root)
    # The comparison of an array is an array: `if` takes it for one element alone, or
    # for none.
    if array is not None:
        return prod(array.shape) <= 1
    if tensor is not None:
        return tensor.numel <= 1
    # An object may be equal to the number too, such as a Decimal.
    return is_own(root.class_name) and root.class_name not in _CONTAINERS


_CONTAINERS = frozenset(
    [
        "collections.OrderedDict",
        "collections.Counter",
        "collections.defaultdict",
        "collections.deque",
        "builtins.dict",
        "builtins.list",
        "builtins.set",
        "builtins.tuple",
        "builtins.frozenset",
        "argparse.Namespace",
        "types.SimpleNamespace",
    ]
)
"""Classes whose objects differ from every number."""


class Description(NamedTuple):
    """The fields of an array in a pickle: shape, dtype and order, the nodes of its
    dtype and of its bytes.
    """

    shape: tuple[int, ...]
    dtype: NumpyDType
    kind: Node
    fortran: bool
    raw: Node

    @property
    def nbytes(self) -> int:
        """The bytes of its elements. Raises UnreadableError for a dtype without
        a size.
        """
        size = self.dtype.itemsize
        if size is None:
            raise UnreadableError(
                f"an array has the unknown dtype {show(self.dtype.code, 40)}"
            )
        return size * prod(self.shape)


def describe_array(call: Opaque) -> Description | None:
    """Return the array that a call makes, or None for any other call."""
    name = call.class_name
    if (
        name.endswith(".numeric._frombuffer")
        and len(call.args) == 4
        and not call.states
    ):
        # Protocol 5: the bytes are an argument.
        raw, kind, size, order = call.args
        if order not in ("C", "F"):
            return None
        return _make_description(kind, size, order == "F", raw)
    # Protocols up to 4: an empty array is made, and BUILD fills it.
    if (
        name.endswith(".multiarray._reconstruct")
        and len(call.states) == 1
        and call.args
    ):
        cls, state = call.args[0], call.states[0]
        # Not a matrix or a masked array.
        is_array = type(cls) is Global and cls.qualified == "numpy.ndarray"
        if is_array and type(state) is tuple and len(state) == 5:
            _, size, kind, fortran, raw = state
            # Python takes 1 for True in the state of an array.
            if type(fortran) not in (bool, int) or fortran not in (0, 1):
                return None
            return _make_description(kind, size, fortran is True or fortran == 1, raw)
    return None


def is_wrapper(call: Opaque) -> bool:
    """Tell whether a call makes joblib's description of an array, whose bytes follow in
    the file.
    """
    return type(call.func) is Global and (call.func.module, call.func.name) == WRAPPER


def _is_name_of_wrapper(node: Node) -> bool:
    """Tell whether a node is the name of joblib's class, also behind a package."""
    return type(node) is Global and node.qualified == ".".join(WRAPPER)


def describe_wrapper(call: Opaque) -> tuple[Description, bool]:
    """Return (the array of joblib's description, whether padding comes before its
    bytes).

    Raises UnreadableError.
    """
    state = call.states[-1] if len(call.states) == 1 else None
    # Two fields of one name, or a name that is no text, would leave open which one
    # joblib takes.
    if type(state) is not Dict or not all(isinstance(key, str) for key in state.keys):
        raise UnreadableError(
            "damaged pickle: joblib's description of an array is not a dict of names"
        )
    fields = dict(zip(map(str, state.keys), state.values, strict=True))
    if len(fields) < len(state.keys):
        raise UnreadableError(
            "damaged pickle: joblib's description of an array names a field twice"
        )
    description = _make_description(
        fields.get("dtype"), fields.get("shape"), fields.get("order") == "F", None
    )
    if description is None or fields.get("order") not in ("C", "F"):
        raise UnreadableError(
            "damaged pickle: joblib's description of an array lacks its shape, order "
            "or dtype"
        )
    # Elements of objects are a further pickle in the place of the bytes.
    if description.dtype.code.startswith("O"):
        raise UnsupportedError(
            "joblib stored an array of objects in it, which ckpt does not read"
        )
    aligned = fields.get("numpy_array_alignment_bytes")
    if aligned is not None and (type(aligned) is not int or not 0 < aligned < 256):
        raise UnreadableError(
            "damaged pickle: joblib's description of an array has an invalid alignment"
        )
    return description, aligned is not None


def tensor(array: Description, place: Range | None, id: str) -> TensorRef | None:
    """Return the array as a tensor over its bytes at `place`, or over the bytes that
    the pickle spells.

    Return None for a dtype that torch lacks. Raises UnreadableError when the bytes are
    too few or too many.
    """
    dtype = _torch_dtype(array.dtype)
    if dtype is None:
        return None
    needed = array.nbytes
    if place is None:
        data = array.raw.raw if isinstance(array.raw, ByteStr) else as_bytes(array.raw)
        if data is None:
            return None
        # Short bytes stand in the pickle itself.
        place = Range(Memory(data), 0, len(data))
    if place.size != needed:
        raise UnreadableError(
            f"damaged pickle: an array of {needed:,} bytes {list(array.shape)[:8]} has "
            f"{place.size:,} bytes"
        )
    storage = Storage(
        id, None, dtype, needed, place._replace(big=array.dtype.order == ">")
    )
    return tensor_ref(storage, dtype, array.shape, _array_strides(array), 0)


def as_call(array: Description, data: bytes, offset: int) -> Opaque:
    """The call of numpy for an array of joblib that is no tensor, such as one
    of texts.
    """
    function = Global("numpy.core.multiarray", "_reconstruct")
    call = Opaque(
        "reduce", function, (Global("numpy", "ndarray"), (0,), b"b"), None, offset
    )
    call.build((1, array.shape, array.kind, array.fortran, data))
    return call


def _make_description(
    kind: Node, size: Node, fortran: bool, raw: Node
) -> Description | None:
    dtype = numpy_dtype(kind)
    if dtype is None or type(size) is not tuple or len(size) > DIMENSIONS:
        return None
    sizes = [number for number in size if type(number) is int and 0 <= number < 2**63]
    shape = tuple(sizes)
    if len(shape) < len(size) or prod(shape) >= 2**63:
        return None
    return Description(shape, dtype, kind, fortran, raw)


def _torch_dtype(dtype: NumpyDType) -> DType | None:
    name = _DTYPES.get(dtype.code)
    return BY_NAME.get(name) if name is not None and dtype.order in "<>=|" else None


def _array_strides(array: Description) -> tuple[int, ...]:
    # Fortran's order counts from the first dimension, C's from the last.
    sizes = array.shape if array.fortran else array.shape[::-1]
    steps, step = [], 1
    for size in sizes:
        steps.append(step)
        step *= max(size, 1)
    return tuple(steps if array.fortran else steps[::-1])


# Weights are longer; keys and small values are shorter, and stay where the machine
# reads them.
KEPT = 255
"""The most bytes of a run that stays in the pickle."""
JOBLIB = b"joblib.numpy_pickle"
"""The module whose arrays follow their description, between two opcodes."""
_CHUNK = 1 << 14
_LONGEST = 9  # an opcode and the length of what follows
_RUNS = {op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8, op.BINSTRING: 4}
"""Opcodes of bytes that may be long -> the width of their length."""
_TEXTS = {
    op.BINUNICODE: 4,
    op.BINUNICODE8: 8,
    op.LONG4: 4,
    **dict.fromkeys(
        (op.SHORT_BINUNICODE, op.SHORT_BINSTRING, op.SHORT_BINBYTES, op.LONG1), 1
    ),
}
_LINES = {
    **dict.fromkeys((op.GLOBAL, op.INST), 2),
    **dict.fromkeys(
        (op.INT, op.LONG, op.FLOAT, op.STRING, op.UNICODE, op.GET, op.PUT), 1
    ),
}
_OTHERS = frozenset((*_RUNS, *_TEXTS, *_LINES, op.FRAME, op.PERSID, op.BINPERSID))
_FIXED = {
    code: 1 + op.ARGUMENT_BYTES.get(code, 0)
    for code in range(256)
    if code not in _OTHERS
}


class Run(NamedTuple):
    """A run of bytes in the file. `code` is the opcode that pushes them."""

    code: int
    offset: int
    size: int


class Cutter:
    """One pickle, cut from front to back. `out` is what is left of it so far, `runs`
    are its long bytes.

    Raises CutOffError, LimitError; UnreadableError for a pickle with persistent ids.
    """

    def __init__(self, source: Source, limits: Limits, budget: Budget) -> None:
        self.out = bytearray()
        self.runs: list[Run] = []
        self.has_joblib = False
        self._source = source
        self._limits = limits
        self._budget = budget
        # Operations that are left: the cutter counts them before the machine does.
        self._left = budget.operations
        self._data = b""
        self._base = 0
        self._at = 0
        # Pairs of offsets, in `out` and in the file, where a piece of `out` begins.
        self._from: list[int] = []
        self._to: list[int] = []
        self._frame = 0
        """The offset in the file of the frame that is read."""
        self._frame_end: int | None = None
        self.fault: MachineError | None = None
        """The first frame that Python's unpicklers refuse. The rest is cut all the
        same, so that its imports are named.
        """

    @property
    def position(self) -> int:
        """The offset in the file of what comes next."""
        return self._base + self._at

    def original(self, offset: int) -> int:
        """The offset in the file of a byte of `out`."""
        # The last piece that begins at or before the byte.
        index = bisect_right(self._from, offset) - 1
        return offset if index < 0 else self._to[index] + offset - self._from[index]

    def skip_to(self, position: int) -> None:
        """Go on at an offset of the file: raw bytes of an array lie before it, and
        joblib ends a frame before those.
        """
        if self._frame_end is not None and self.position >= self._frame_end:
            self._leave_frame(self._frame_end)
        # joblib ends a frame before the bytes of an array. Else Python's unpickler
        # would take them from the frame.
        elif self._frame_end is not None:
            self.fault = self.fault or MachineError(
                "the bytes of an array lie inside a frame", self._frame
            )
        if position > self._source.size:
            size = self._source.size
            raise CutOffError(
                f"cut off: an array needs bytes up to {position:,}, the file ends at "
                f"{size:,}"
            )
        self._seek_position(position)

    def cut(self) -> None:
        """Cut up to the end of the pickle, or past the next BUILD once joblib was
        named. What is missing is left out.
        """
        before = len(self.out)
        try:
            self._cut()
        finally:
            # Bytes that a faulty pickle has added count too.
            added = len(self.out) - before
            self._budget.hold(added)
        self._budget.charge(2 * added, "a pickle")

    def _cut(self) -> None:
        start = self._at
        for count in range(self._left):
            # An opcode and its length are always in memory together.
            if self._at + _LONGEST > len(self._data) and self._has_more():
                start = self._flush_bytes(start)
                self._read_more(_LONGEST)
                start = self._at
            if self._at >= len(self._data):
                # The pickle lacks its end: the machine says so.
                self._flush_bytes(start)
                return
            if self._frame_end is not None and self.position >= self._frame_end:
                self._leave_frame(self._frame_end)
            code = self._data[self._at]
            size = _FIXED.get(code)
            # Most opcodes have a fixed size: they are skipped by a table, for this loop
            # sees every one.
            if size is not None:
                self._at = min(self._at + size, len(self._data))
                # Behind BUILD the bytes of joblib's array may follow: the caller looks
                # at what was built.
                if code == op.STOP or (code == op.BUILD and self.has_joblib):
                    self._left -= count + 1
                    self._flush_bytes(start)
                    return
            elif code in (op.PERSID, op.BINPERSID):
                problem = (
                    "a plain pickle with persistent ids, which pickle.load refuses"
                )
                hint = (
                    "the data.pkl of an archive of torch.save? it needs the files "
                    "beside it: data/ and version"
                )
                raise UnreadableError(problem, hint=hint)
            elif code == op.FRAME:
                # A frame has no meaning beyond its bounds, which are checked here.
                self._flush_bytes(start)
                self._enter_frame()
                self._at = start = min(self._at + 9, len(self._data))
            elif code in _LINES:
                start = self._keep_lines(code, start)
            else:
                start = self._cut_counted(code, start)
        raise LimitError(
            "a pickle has too many operations", "operations", self._limits.operations
        )

    def _enter_frame(self) -> None:
        """Note where the frame ends that begins here. Frames are no part of what is
        kept, so the machine meets none.
        """
        if self._frame_end is not None:
            self.fault = self.fault or MachineError(
                "a frame begins inside another frame", self.position
            )
        first = self._at + 1
        length = self._data[first : first + 8]
        self._frame = self.position
        self._frame_end = self.position + 9 + int.from_bytes(length, "little")
        if len(length) < 8 or self._frame_end > self._source.size:
            self.fault = self.fault or TruncatedPickleError(self._frame)

    def _leave_frame(self, end: int) -> None:
        if self.position > end:
            self.fault = self.fault or MachineError(
                "a frame ends inside an opcode", self._frame
            )
        self._frame_end = None

    def _cut_counted(self, code: int, start: int) -> int:
        """Keep or cut an opcode with the length of its bytes. Returns where the bytes
        that are kept begin.
        """
        width = _RUNS.get(code) or _TEXTS[code]
        head = self._at + 1 + width
        size = int.from_bytes(self._data[self._at + 1 : head], "little")
        if head > len(self._data):
            self._at = len(self._data)
            return start
        # Bytes that are longer are replaced by a persistent id, the number of a run.
        if code in _RUNS and size > KEPT:
            offset = self._base + head
            if offset + size > self._source.size:
                end = self._source.size
                problem = (
                    f"cut off: the pickle needs bytes {offset:,} to {offset + size:,}, "
                    f"the file ends at {end:,}"
                )
                raise CutOffError(problem)
            self._flush_bytes(start)
            # BININT of the number, then BINPERSID.
            self.out += b"J" + pack("<i", len(self.runs)) + b"Q"
            self.runs.append(Run(code, offset, size))
            self._seek_position(offset + size)
            return self._at
        # The text does not end in the bytes that were read.
        if head + size > len(self._data):
            if self._base + head + size > self._source.size:
                self._at = len(self._data)
                return start
            self._check_room(size)
            start = self._flush_bytes(start)
            self._read_more(1 + width + size)
            start, head = self._at, self._at + 1 + width
        # joblib may be named in a GLOBAL, or as a text before STACK_GLOBAL.
        if size == len(JOBLIB) and self._data[head : head + size] == JOBLIB:
            self.has_joblib = True
        self._at = head + size
        return start

    def _keep_lines(self, code: int, start: int) -> int:
        """Keep an opcode with lines of text. An endless line is kept in part: the
        machine refuses it.
        """
        end = self._at + 1
        for _ in range(_LINES[code]):
            # The search for the end of a line is bounded, as the machine bounds the
            # line.
            newline = self._data.find(b"\n", end, end + LINE_BYTES)
            if (
                newline < 0
                and len(self._data) - self._at <= 2 * LINE_BYTES
                and self._has_more()
            ):
                self._flush_bytes(start)
                self._read_more(2 * LINE_BYTES + 1)
                return self._keep_lines(code, self._at)
            if newline < 0:
                self._at = min(len(self._data), end + LINE_BYTES)
                return start
            if self._data[end:newline] == JOBLIB:
                self.has_joblib = True
            end = newline + 1
        self._at = end
        return start

    def _flush_bytes(self, start: int) -> int:
        """Move what was read since `start` to `out`."""
        if self._at > start:
            self._check_room(self._at - start)
            self._from.append(len(self.out))
            self._to.append(self._base + start)
            self.out += self._data[start : self._at]
        return self._at

    def _check_room(self, more: int) -> None:
        if len(self.out) + more > self._limits.pickle_bytes:
            raise LimitError(
                "the pickle is too long", "pickle-bytes", self._limits.pickle_bytes
            )

    def _has_more(self) -> bool:
        return self._base + len(self._data) < self._source.size

    def _read_more(self, least: int) -> None:
        self._seek_position(self._base + self._at, least)

    def _seek_position(self, position: int, least: int = 0) -> None:
        """Read on at an offset of the file; bytes that were read already are kept."""
        inside = position - self._base
        if (
            0 <= inside <= len(self._data)
            and len(self._data) - inside >= least
            and inside < len(self._data)
        ):
            # The position lies in the bytes that were read.
            self._at = inside
            return
        rest = self._source.size - position
        self._data = self._source.read(position, min(rest, max(_CHUNK, least)))
        self._base, self._at = position, 0
