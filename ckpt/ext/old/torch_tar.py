"""torch.save of torch 0.1: storages and tensors beside the pickle, which names them by
their numbers.

Layout: torch/serialization.py of torch 2.13, `_legacy_load.legacy_load`. No member is
unpacked.
"""

from __future__ import annotations

from struct import unpack_from

from ckpt.bytes.source import Source, Window, underlying_file
from ckpt.ext.old import FORMAT
from ckpt.ext.old.kinds import MEMBERS, other_kind
from ckpt.formats.common.pickled import (
    Contents,
    interpret_pickle,
    make_checkpoint,
    run,
)
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.swap import Swap
from ckpt.formats.common.tar import read_tar
from ckpt.formats.common.two_files import refuse_end
from ckpt.formats.format import Probe
from ckpt.model.checkpoint import Checkpoint, Refusal
from ckpt.model.dtypes import UINT8
from ckpt.model.errors import CutOffError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Global, Node, PersistentId, is_tuple
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    DIMENSIONS,
    Storage,
    TensorRef,
    is_countable,
    tensor_ref,
)
from ckpt.model.text import show
from ckpt.pickle.machine import Pickle, TruncatedPickleError
from ckpt.pickle.rebuild import make_storage, storage_bytes, storage_type

# Most pickles in the archive are a few bytes: a key, a number.
_FIRST_READ = 1 << 10
_ROW = 500
_MOST = 2**63


def read(probe: Probe, limits: Limits) -> Checkpoint:
    # torch.load asks for a tar before legacy pickles; other loaders see the other kind.
    other = other_kind(probe)
    if other is not None:
        raise UnreadableError(
            f"two files in one: torch.load reads a tar archive, other loaders {other}"
        )
    # Bytes behind the end may be another file to readers that begin at the end.
    refuse_end(probe.file)
    members = read_tar(probe.file, limits, probe.budget)
    missing = next((name for name in MEMBERS if name not in members), None)
    if missing is not None:
        raise UnreadableError(f"the tar archive of torch lacks {missing}")
    contents = Contents((), read_nested, probe.mark, probe.budget)
    rows = [members[name] for name in MEMBERS]
    cursors = [
        _Cursor(Window(probe.file, row.offset, row.size, probe.path), contents, limits)
        for row in rows
    ]
    objects = _Objects(contents)
    # Tensors name storages, and the pickle names both.
    objects.read_storages(cursors[0])
    objects.read_tensors(cursors[1])
    main = cursors[2].pickle()
    nodes: dict[int, Node] = {}
    for persistent in main.persistent:
        # A persistent id of the pickle means a tensor, or a storage that is used by
        # itself.
        tensor = objects.tensors.get(_key_text(persistent.pid))
        if tensor is not None:
            nodes[id(persistent)] = tensor
    root = Swap(lambda node: nodes.get(id(node))).copy(main.root)
    interpret_pickle(main, contents, limits, objects.resolve, 0)
    return make_checkpoint(
        probe.path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        source=probe.file,
        refusals=(Refusal("the tar format of torch 0.1", ()),),
    )


class _Cursor:
    """A member, read front to back."""

    def __init__(self, source: Source, contents: Contents, limits: Limits) -> None:
        self.source = source
        self.at = 0
        self._contents = contents
        self._limits = limits

    def pickle(self) -> Pickle:
        """The pickle at this position. Its length is unknown before it was read."""
        size = _FIRST_READ
        budget = self._contents.budget
        assert budget is not None
        while True:
            # Pickles follow each other without lengths: as much is read as may be
            # needed.
            have = min(size, self.source.size - self.at, self._limits.pickle_bytes)
            budget.hold(have)
            data = self.source.read(self.at, have)
            try:
                pickle = run(data, self._limits, budget)
            except TruncatedPickleError as error:
                # Nothing is left to read.
                if have < size:
                    raise CutOffError(
                        "cut off: a member of the tar archive ends inside a pickle",
                        hint=error.hint,
                    ) from None
                # The pickle is longer: the machine begins again with four times as
                # much.
                size *= 4
                continue
            self._contents.pickles.append(pickle)
            self.at += pickle.end
            return pickle

    def value(self) -> Node:
        return self.pickle().root

    def take(self, count: int) -> bytes:
        """The next bytes. Raises CutOffError."""
        if self.at + count > self.source.size:
            raise CutOffError(
                f"cut off: a member of the tar archive needs {count:,} more bytes"
            )
        data = self.source.read(self.at, count)
        self.at += count
        return data

    def count(self) -> int:
        """A number of rows, each of which takes at least one byte of the member."""
        number = self.value()
        # Each row has a pickle of its own, so the size bounds their number.
        if type(number) is not int or not 0 <= number <= self.source.size:
            raise UnreadableError(
                "a member of the tar archive begins with an invalid number"
            )
        return number


class _View(NamedTuple):
    """A storage, or a part of one: its first element, and its elements."""

    storage: Storage
    first: int
    numel: int


class _Objects:
    """The storages and tensors of the archive, by their numbers."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.storages: dict[str, _View] = {}
        self.tensors: dict[str, TensorRef] = {}

    def read_storages(self, cursor: _Cursor) -> None:
        for _ in range(cursor.count()):
            row = cursor.value()
            if not is_tuple(row) or len(row) != 3:
                raise UnreadableError(
                    "a storage of the tar archive has no key, device and class"
                )
            key = self._new_key(row[0])
            # The sizes of storages are numbers of elements of this class.
            dtype = storage_type(row[2])
            numel = int.from_bytes(cursor.take(8), "little")
            nbytes = storage_bytes(dtype, numel)
            if cursor.at + nbytes > cursor.source.size:
                raise CutOffError(
                    f"cut off: storage {show(key, 80)} needs {nbytes:,} bytes, "
                    f"{cursor.source.size - cursor.at:,} are left"
                )
            place = Range(*underlying_file(cursor.source, cursor.at), nbytes)
            cursor.at += nbytes
            storage = make_storage(
                f"{self._contents.mark}{key}", row[1], dtype, nbytes, place
            )
            self._contents.storages[storage.id] = storage
            self.storages[key] = _View(storage, 0, numel)
        # A view is (key, key of its storage, first element, elements).
        views = cursor.value()
        if type(views) is not list:
            raise UnreadableError("the tar archive lacks its list of views of storages")
        for view in views:
            self._add_view(view)

    def _add_view(self, row: Node) -> None:
        if not is_tuple(row) or len(row) != 4:
            raise UnreadableError("a view of a storage has not four fields")
        root = self.storages.get(_key_text(row[1]))
        first, numel = row[2], row[3]
        if root is None or type(first) is not int or type(numel) is not int:
            raise UnreadableError(
                "a view of a storage names none, or has no place in it"
            )
        if min(first, numel) < 0 or first + numel > root.numel:
            raise UnreadableError(
                f"a view reaches past the {root.numel:,} elements of its storage"
            )
        self.storages[self._new_key(row[0])] = _View(
            root.storage, root.first + first, numel
        )

    def read_tensors(self, cursor: _Cursor) -> None:
        for _ in range(cursor.count()):
            row = cursor.value()
            if not is_tuple(row) or len(row) != 3:
                raise UnreadableError(
                    "a tensor of the tar archive has no key, storage and class"
                )
            key = self._new_key(row[0])
            # Four bytes of the number, and four that torch skips.
            ndim = unpack_from("<i", cursor.take(8))[0]
            if not 0 <= ndim <= DIMENSIONS:
                raise UnreadableError(
                    f"tensor {show(key, 80)} has {ndim:,} dimensions, at most "
                    f"{DIMENSIONS} are read"
                )
            # Sizes, strides and the offset, all of 64 bits.
            numbers = unpack_from(f"<{2 * ndim + 1}q", cursor.take(8 * (2 * ndim + 1)))
            view = self.storages.get(_key_text(row[1]))
            if view is None:
                raise UnreadableError(
                    f"tensor {show(key, 80)} names a storage that is not there"
                )
            self.tensors[key] = _make_tensor(
                key, view, numbers[:ndim], numbers[ndim:-1], numbers[-1]
            )

    def _new_key(self, node: Node) -> str:
        key = _key_text(node)
        if not key or key in self.storages or key in self.tensors:
            raise UnreadableError(
                f"the tar archive has an invalid or repeated key: {show(key, 80)}"
            )
        budget = self._contents.budget
        assert budget is not None
        budget.charge(_ROW, "the tar archive")
        return key

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """Return what a persistent id means: a storage, a tensor's storage, or a class
        with its source.
        """
        pid = persistent.pid
        # A class with its source, without the word `module` that later formats have.
        if is_tuple(pid) and len(pid) == 3 and type(pid[0]) is Global:
            return pid[0]
        key = _key_text(pid)
        if key in self.tensors:
            return self.tensors[key].storage
        view = self.storages.get(key)
        if view is None:
            raise UnreadableError(
                f"the persistent id at byte {persistent.offset:,} of the pickle names "
                "nothing"
            )
        if (
            view.first
            or view.numel * _element_size(view.storage) != view.storage.nbytes
        ):
            persistent.shift = view.first
            persistent.reach = view.first + view.numel
        return view.storage


def _make_tensor(
    key: str, view: _View, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> TensorRef:
    """A tensor that surely lies within its storage. Raises UnreadableError."""
    storage = view.storage
    if min((*shape, *stride, offset), default=0) < 0:
        raise UnreadableError(
            f"tensor {show(key, 80)} has a negative size, stride or offset"
        )
    if not is_countable(shape):
        raise UnreadableError(
            f"tensor {show(key, 80)} has more elements than torch counts in 64 bits"
        )
    ref = tensor_ref(
        storage, storage.dtype or UINT8, shape, stride, view.first + offset
    )
    end = (view.first + view.numel) * _element_size(storage)
    if ref.extent[1] > end:
        raise UnreadableError(
            f"tensor {show(key, 80)} reaches past the {view.numel:,} elements of its "
            "storage"
        )
    return ref


def _element_size(storage: Storage) -> int:
    return max(1, storage.dtype.bits // 8) if storage.dtype else 1


def _key_text(node: Node) -> str:
    """A key as text. Torch makes an int of the text in the pickle, so 1 and "1" are
    one.
    """
    if type(node) is int and 0 <= node < _MOST:
        return str(node)
    return str(node) if isinstance(node, str) and len(node) <= 64 else ""
