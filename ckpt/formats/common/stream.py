"""The stream of torch.save before 1.6, a file or nested in a pickle: five pickles in a
row (magic, protocol, system, object, storage keys), then a count of elements and the
bytes for each key. The file holds no offsets and is always little-endian.

Layout: torch/serialization.py `_legacy_save`, `_legacy_load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ckpt.bytes.source import Memory, Source, Window, underlying_file
from ckpt.formats.common.heads import MAGIC, PROTOCOL, is_legacy
from ckpt.formats.common.holes import (
    partial_place,
    written_end,
    zeros_before,
    zeros_text,
)
from ckpt.formats.common.pickled import Contents, interpret_pickle, run, seen_as
from ckpt.model.dtypes import DType
from ckpt.model.errors import CutOffError, LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Global, Node, Opaque, PersistentId, tensor_of
from ckpt.model.places import Place, Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, Storage
from ckpt.model.text import show
from ckpt.pickle.machine import Pickle, TruncatedPickleError
from ckpt.pickle.rebuild import UNTYPED, make_storage, storage_bytes, storage_type
from ckpt.tree.quantized import convolution_attributes, packed_parameters
from ckpt.tree.scalars import class_of

_FIRST_READ = 1 << 18
"""Bytes that are read first of a pickle, whose length no header tells."""


_NEEDS_DATA = {
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": (
        "a tensor that is copied to its device"
    ),
    "torch._C.Generator": "a torch.Generator",
}


def needs_data(call: Opaque) -> str | None:
    """Return the kind of an object that torch makes from the data of its tensors, or
    None for any other call.

    In this format the data follows the pickle, so torch fails, or takes what happens to
    lie in memory.
    """
    func = call.func
    if type(func) is Global and func.name.startswith("_rebuild_from_type"):
        # Its first argument is the function that makes the tensor.
        func = call.args[0] if call.args else func
    kind = _NEEDS_DATA.get(func.qualified) if type(func) is Global else None
    if kind is not None and (call.states or call.meaning is not None):
        return kind
    tensor = tensor_of(call)
    if isinstance(tensor, Composite) and tensor.layout == "quantized":
        return _SCALED if _has_copied_scales(tensor) else None
    if tensor is not None:
        return None
    if packed_parameters(call) is not None:
        return _PACKED
    if convolution_attributes(call, class_of(call)) is not None:
        return _PACKED
    return None


_PACKED = "packed parameters of a quantized module"
_SCALED = "a quantized tensor whose scales are copied"


def _has_copied_scales(tensor: Composite) -> bool:
    """Tell whether torch makes other scales or zero points of those in tensors: it
    keeps float64 with int64, and float32 with float32.

    Source: aten/src/ATen/quantized/Quantizer.cpp. The scheme does not count, and one
    for the whole tensor has numbers.
    """
    parts = dict(tensor.parts)
    scales, zeros = parts.get("scales"), parts.get("zero_points")
    if scales is None and zeros is None:
        return False
    is_one = not (tensor.detail or "").startswith("per_channel")
    if is_one or scales is None or zeros is None:
        return True
    kinds = scales.dtype.name, zeros.dtype.name
    is_kept = kinds in (("float64", "int64"), ("float32", "float32"))
    return not is_kept or scales.stride != (1,) or zeros.stride != (1,)


def unreadable_kind(pickles: Iterable[Pickle]) -> str | None:
    """Return the kind of an object that torch writes in this format and cannot read, or
    None.
    """
    pickles = tuple(pickles)
    for pickle in pickles:
        if any(name.name in UNTYPED for name in pickle.globals.values()):
            return "UntypedStorage"
    calls = chain.from_iterable(pickle.calls for pickle in pickles)
    return next((kind for kind in map(needs_data, calls) if kind is not None), None)


def read_nested(
    data: bytes | Range, contents: Contents, limits: Limits, depth: int
) -> Node:
    """The root of a checkpoint in the bytes of a pickle. Its storages join
    `contents`.
    """
    if isinstance(data, Range):
        source: Source = Window(data.source, data.offset, data.size, data.source.name)
    else:
        source = Memory(data)
    if not is_legacy(source.read(0, min(32, source.size))):
        raise UnreadableError("a nested checkpoint does not have the legacy format")
    prefix = f"nested-{contents.streams}:"
    contents.streams += 1
    before = len(contents.pickles)
    root = Stream(source, contents, limits, prefix, depth).read()
    kind = unreadable_kind(contents.pickles[before:])
    if kind is not None and contents.not_loadable is None:
        contents.not_loadable = unreadable_text(kind)
    return root


def unreadable_text(kind: str) -> str:
    return f"torch cannot load {kind} from the legacy format"


class _Data(NamedTuple):
    """The place of the data of a storage: its first byte, and the count of elements in
    front of it, -1 where it is not the expected one.
    """

    offset: int
    numel: int


class Stream:
    """One legacy stream, read front to back. With `is_cut` it may end in its data, or
    hold counts that are damaged.

    `step` is how many bytes are read first.
    """

    def __init__(
        self,
        source: Source,
        contents: Contents,
        limits: Limits,
        prefix: str,
        depth: int,
        *,
        is_cut: bool = False,
        step: int = _FIRST_READ,
    ) -> None:
        self._source = source
        self._contents = contents
        self._limits = limits
        self._prefix = prefix
        self._depth = depth
        self._is_cut = is_cut
        self._step = step
        self._buffer = b""
        self._made: dict[str, Storage] = {}
        self._views: dict[str, tuple[str, Node, Node]] = {}
        self._ends: dict[str, int] = {}
        """Storage -> the end of the bytes of it that were written, where zeros follow
        them to the next header.
        """
        self._written = source.size
        """The end of the bytes that were written. Behind it a damaged file has zeros
        alone.
        """
        self.end = 0

    def read(self) -> Node:
        magic = self.pickle()
        # torch compares what the pickle makes, so an imported name could pass there.
        if magic.root != MAGIC or magic.globals:
            raise UnreadableError("the legacy file lacks its magic number")
        protocol = self.pickle()
        if type(protocol.root) is not int or protocol.root != PROTOCOL:
            raise UnreadableError("the legacy file has an unknown protocol")
        # The system it came from, which torch ignores: the data is little-endian.
        system = self.pickle()
        self._contents.pickles.append(system)
        main = self.pickle()
        keys = self.pickle()
        self._contents.pickles += [magic, protocol, keys]
        places = self._places(keys.root, main)
        interpret_pickle(
            main,
            self._contents,
            self._limits,
            lambda persistent: self._resolve(persistent, places),
            self._depth,
        )
        return main.root

    def pickle(self) -> Pickle:
        """The pickle at `end`. Its length is unknown before it was read, so more bytes
        are read until it is whole.
        """
        start = self.end
        if not self._buffer:
            self._grow_buffer(start)
        while True:
            try:
                pickle = run(self._buffer, self._limits, self._contents.budget)
            except TruncatedPickleError as error:
                if not self._grow_buffer(start):
                    size = self._source.size
                    problem = (
                        f"cut off: the file ends at {size:,} bytes, inside a pickle"
                    )
                    raise CutOffError(problem, hint=error.hint) from None
                continue
            self._buffer = self._buffer[pickle.end :]
            self.end = start + pickle.end
            return pickle

    def _grow_buffer(self, start: int) -> bool:
        """Read more of the pickle at `start`. Return False at the end of the file."""
        have = len(self._buffer)
        unread = self._source.size - start - have
        if unread <= 0:
            return False
        if have >= self._limits.pickle_bytes:
            raise LimitError(
                "a pickle is too long", "pickle-bytes", self._limits.pickle_bytes
            )
        # Twice as much each time: the pickle is parsed from its beginning again.
        more = min(unread, max(self._step, have))
        budget = self._contents.budget
        if budget is not None:
            if self._depth == 0:
                # A nested stream lies within bytes that the file stores once.
                budget.hold(more)
            budget.charge(more, "a pickle")
        self._buffer += self._source.read(start + have, more)
        return True

    def _places(self, keys: Node, main: Pickle) -> dict[str, _Data]:
        """The data of each key. Walks the data part with the sizes of the persistent
        ids.
        """
        if type(keys) is not list:
            raise UnreadableError("the legacy file lacks its list of storage keys")
        expectations = _expected_numels(main)
        places: dict[str, _Data] = {}
        position = self.end
        if self._is_cut:
            self._written = written_end(self._source, self.end)
        before: tuple[str, int] | None = None
        counts: dict[int, bytes] = {}
        if self._source.far is not None:
            counts = self._read_numels(keys, expectations)
        for key in keys:
            # True is an int, and no key.
            is_key = isinstance(key, (str, int)) and not isinstance(key, bool)
            text = str(key) if is_key else ""
            if text in places:
                raise UnreadableError(f"storage {show(text, 80)} is listed twice")
            if text not in expectations:
                raise UnreadableError(
                    f"storage {show(text, 80)} is listed, but no tensor uses it"
                )
            dtype, expected = expectations[text]
            if self._is_cut:
                count = self._numel_at(position, expected)
                if count < 0 and before is not None and self._is_zero(position):
                    # Zeros that reach back into the data of the storage before were
                    # never written.
                    key_before, begin_before = before
                    zeros = zeros_before(self._source, position, begin_before)
                    self._ends[key_before] = position - zeros
                places[text] = _Data(position + 8, count)
                before = (text, position + 8)
                position += 8 + storage_bytes(dtype, expected)
                continue
            numel = self._checked_numel(position, text, expected, counts)
            nbytes = storage_bytes(dtype, numel)
            position += 8
            if position + nbytes > self._source.size:
                raise CutOffError(
                    f"cut off: storage {show(text, 80)} needs bytes {position:,} to "
                    f"{position + nbytes:,}, the file ends at {self._source.size:,}"
                )
            places[text] = _Data(position, numel)
            position += nbytes
        self.end = position
        missing = expectations.keys() - places.keys()
        if missing:
            raise UnreadableError(
                f"a tensor uses storage {show(min(missing), 80)}, which the list of "
                "storages lacks"
            )
        return places

    def _checked_numel(
        self, position: int, text: str, expected: Node, counts: dict[int, bytes]
    ) -> int:
        """Return the count of elements at a position. Raises UnreadableError if it is
        not there, or another one than expected.
        """
        if position + 8 > self._source.size:
            raise CutOffError(
                f"cut off: storage {show(text, 80)} is missing, the file ends at "
                f"{self._source.size:,}"
            )
        data = counts.get(position) or self._source.read(position, 8)
        numel = int.from_bytes(data, "little")
        if numel == expected:
            return numel
        # A file that was allocated and not filled has zeros here.
        zeros = None
        if numel == 0 and expected:
            zeros = zeros_text(self._source, position, self.end)
        if zeros is not None:
            raise CutOffError(
                f"cut off: {zeros}, where storage {show(text, 80)} should be",
                hint="an unfinished download or save?",
            )
        raise UnreadableError(
            f"storage {show(text, 80)} has {numel:,} elements, its tensors need "
            f"{_count_text(expected)}"
        )

    def _numel_at(self, position: int, expected: Node) -> int:
        """Return the count of elements at a position, or -1 if it is another one than
        expected: the data is not there.
        """
        if position + 8 > self._source.size:
            return 0
        numel = int.from_bytes(self._source.read(position, 8), "little")
        return numel if numel == expected else -1

    def _is_zero(self, position: int) -> bool:
        """Tell whether the count at a position is zero, as in bytes that were never
        written.
        """
        return self._source.read(position, 8) == bytes(8)

    def _read_numels(
        self, keys: Sequence[object], expectations: dict[str, _Expected]
    ) -> dict[int, bytes]:
        """The counts of elements at the places where they should lie, in few requests.
        They are checked later.
        """
        position = self.end
        ranges: list[tuple[int, int]] = []
        for key in keys:
            dtype, expected = expectations.get(str(key), (None, None))
            # The place of the next count is not known then: it is read in its turn.
            if type(expected) is not int or expected < 0:
                break
            if position + 8 > self._source.size:
                break
            ranges.append((position, 8))
            position += 8 + storage_bytes(dtype, expected)
        counts = self._source.read_many(ranges)
        return {begin: data for (begin, _), data in zip(ranges, counts, strict=True)}

    def _resolve(
        self, persistent: PersistentId, places: dict[str, _Data]
    ) -> Storage | Global:
        """The storage, or the class, that a persistent id names. Raises
        UnreadableError.
        """
        pid = persistent.pid
        where = f"the persistent id at byte {persistent.offset:,} of the pickle"
        if type(pid) is not tuple or not pid:
            raise UnreadableError(f"{where} is not a tuple")
        # `("module", class, file, source)`: torch checks that the source text of the
        # class is still the same. It asks whether they are true, and so how long they
        # are.
        if pid[0] == "module" and len(pid) == 4 and type(pid[1]) is Global:
            if not all(part is None or isinstance(part, str) for part in pid[2:]):
                raise UnreadableError(f"{where} names a class whose source is no text")
            return pid[1]
        if pid[0] != "storage" or len(pid) not in (5, 6):
            raise UnreadableError(f"{where} does not name a storage")
        _, cls, key, device, numel = pid[:5]
        view = pid[5] if len(pid) == 6 else None
        if len(pid) == 5:
            self._contents.not_loadable = (
                "torch refuses persistent ids of 5 fields in the legacy format"
            )
        text = str(key) if isinstance(key, (str, int)) else ""
        if text not in places:
            raise UnreadableError(
                f"{where} names a storage by a key that is not a text"
            )
        dtype = storage_type(cls)
        root = self._root(text, dtype, numel, device, places)
        if view is not None:
            shift, reach = _view_elements(view, root, dtype, text)
            persistent.shift, persistent.reach = shift, reach
            self._refuse_other_view(view, root, places)
        return root

    def _refuse_other_view(
        self, view: Node, root: Storage, places: dict[str, _Data]
    ) -> None:
        """Refuse a view by the key of a storage or of another view: torch takes the
        first by a key for all of them.
        """
        assert type(view) is tuple and len(view) == 3
        key, offset, size = view
        problem = None
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            problem = "a key that is not a text"
        else:
            text = str(key)
            row = (root.id, offset, size)
            if text in places or self._views.setdefault(text, row) != row:
                problem = f"the key {show(text, 80)} of another one"
        if problem is not None:
            raise UnreadableError(
                f"a view of storage {show(root.id, 80)} has {problem}"
            )

    def _root(
        self,
        key: str,
        dtype: DType | None,
        numel: Node,
        device: Node,
        places: dict[str, _Data],
    ) -> Storage:
        """The storage of a key, of which a persistent id may see a part."""
        nbytes = storage_bytes(dtype, numel)
        before = self._made.get(key)
        if before is not None:
            return seen_as(before, dtype, nbytes, key, self._contents.storages)
        offset, elements = places[key]
        # Of one that is cut off, and of empty ones behind it.
        offset = min(offset, self._source.size)
        file, file_offset = underlying_file(self._source, offset)
        place: Place = Range(file, file_offset, nbytes)
        end = min(self._written, self._ends.get(key, self._written))
        available = max(0, end - offset) if elements >= 0 else 0
        if available < nbytes:
            there = Range(file, file_offset, available) if available else None
            problem = f"storage {show(key, 80)} is not whole"
            place = partial_place(nbytes, problem, there)
        storage_id = self._contents.mark + self._prefix + show(key, 80)
        storage = make_storage(storage_id, device, dtype, nbytes, place)
        if available < nbytes:
            self._contents.short[storage] = available
        self._made[key] = storage
        self._contents.storages[storage.id] = storage
        return storage


def _view_elements(
    view: Node, root: Storage, dtype: DType | None, key: str
) -> tuple[int, int]:
    """Return where a view begins and ends in its storage, in elements.

    torch before 0.4 wrote `(view_key, offset, size)`.
    """
    if type(view) is tuple and len(view) == 3:
        _, offset, size = view
        width = max(1, dtype.bits // 8) if dtype else 1
        # Exact types: True is an int too.
        if type(offset) is int and type(size) is int:
            if min(offset, size) >= 0 and (offset + size) * width <= root.nbytes:
                return offset, offset + size
    raise UnreadableError(
        f"a view of storage {show(key, 80)} reaches past its {root.nbytes:,} bytes"
    )


_Expected = tuple[DType | None, Node]
"""The dtype of a storage, and the count of its elements as a persistent id has it."""


def _expected_numels(main: Pickle) -> dict[str, _Expected]:
    """The dtype and the count of each key, as the first persistent id has them."""
    expectations: dict[str, _Expected] = {}
    for persistent in main.persistent:
        pid = persistent.pid
        # The legacy format has a sixth item: the view, which is None since torch 0.4.
        if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
            continue
        key = pid[2]
        if isinstance(key, (str, int)):
            dtype = storage_type(pid[1])
            expectations.setdefault(str(key), (dtype, pid[4]))
    return expectations


def _count_text(node: Node) -> str:
    # Python refuses to write out an int of more than 4,300 digits.
    if type(node) is int and node.bit_length() < 80:
        return f"{node:,}"
    return "another number"
