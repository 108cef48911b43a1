"""The storages of an archive of torch.save: the records of one folder, as its pickle
names them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

from ckpt.bytes.source import Joined, underlying_file
from ckpt.formats.common.archive import Archive, check_small, read_archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.holes import partial_place
from ckpt.formats.common.pickled import Contents, interpret_pickle, run, seen_as
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Storages
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import INFLATION, Budget, Limits
from ckpt.model.nodes import Global, Node, PersistentId
from ckpt.model.places import Range
from ckpt.model.tensors import Storage
from ckpt.model.text import and_more, be_verb, counted_noun, show, size_text
from ckpt.pickle.depth import refuse_deep
from ckpt.pickle.judge.weights_only import TORCH
from ckpt.pickle.rebuild import make_storage, storage_bytes, storage_type

_KEY_BYTES = 65_000
"""The name of a record has at most 65,535 bytes, with the folder of the storages."""


def byteorder_of(archive: Archive) -> str:
    """Return `little` or `big`, from the record `byteorder`. Torch before 2.1 wrote no
    such record.
    """
    record = archive.find("byteorder")
    if record is None:
        return "little"
    # A record of gigabytes is not read for six letters.
    text = archive.read(record, 64, "entries") if record.size <= 64 else b"too much"
    # torch compares all bytes: a newline at the end is an error there too.
    if text not in (b"little", b"big"):
        raise UnreadableError(
            f"unknown byte order {show(text.decode('latin-1'), 40)} in the record "
            "byteorder"
        )
    return text.decode()


def alignment_refusal(archive: Archive) -> str | None:
    """Return the reason why torch refuses the record `.storage_alignment`, or None.

    Raises UnreadableError for a number by which torch divides in C, and ends with a
    signal, if it loads to meta.
    """
    record = archive.find(".storage_alignment")
    if record is None:
        return None
    text = archive.read(record, 64, "entries") if record.size <= 64 else b"too much"
    try:
        number = int(text)
    except ValueError:
        return "torch finds no number in the record .storage_alignment"
    if not 0 < number < 2**63:
        raise UnreadableError(
            f"invalid alignment {number} in the record .storage_alignment"
        )
    return None


def refuse_big(archive: Archive, loader: str) -> None:
    """Raise UnreadableError for an archive of a big-endian machine where `loader` reads
    bytes in the order of its own.
    """
    if byteorder_of(archive) == "big":
        raise UnreadableError(
            f"its bytes are big-endian, and {loader} does not turn them"
        )


def is_key(text: str) -> bool:
    """Tell whether a text can name a storage and its record.

    torch takes any text. But a NUL ends a name, and a slash at its end makes the record
    a folder, of which torch reads no byte.
    """
    if "\0" in text or text.endswith("/"):
        return False
    try:
        return 0 < len(text.encode()) <= _KEY_BYTES
    except UnicodeEncodeError:
        # A lone surrogate, which a pickle can hold and a record name cannot.
        return False


def _is_count(key: object) -> bool:
    return type(key) is int and 0 <= key < 2**63


class StorageFolder:
    """The storages of one folder of records (`data/KEY`). Each is made when a
    persistent id names it.
    """

    def __init__(
        self,
        archive: Archive,
        folder: str,
        contents: Contents,
        prefix: str = "",
        *,
        big: bool = False,
        suffix: str = "",
        meta: bool = False,
    ) -> None:
        self._source = archive.source
        self._records = archive.records
        self._folder = f"{archive.root}/{folder}/"
        self._contents = contents
        self._prefix = prefix
        self._suffix = suffix
        self._big = big
        self._meta = meta
        """Storages on meta have records without bytes, as torch.jit.save writes
        them.
        """
        self._types: dict[Node, DType | None] = {}
        self._made: dict[str, Storage] = {}
        self._columns: dict[int, Storages] = {}
        """By the position of the first record in the directory."""
        self._count = 0
        self._longer: list[str] = []
        self._swollen: list[str] = []
        self._deflated = 0
        self._is_partial = archive.is_partial
        if archive.is_partial:
            # Many names may be missing, and each would be looked for in all of them.
            _ = archive.records.index

    def resolve(self, persistent: PersistentId) -> Storage | Global:
        """The storage that `('storage', class, key, location, numel)` names. Raises
        UnreadableError.
        """
        pid = persistent.pid
        # TorchScript of torch 1.4 writes a sixth field, which is None.
        if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
            raise UnreadableError(
                f"the persistent id at byte {persistent.offset:,} of the pickle does "
                "not name a storage"
            )
        _, cls, key, device, numel = pid[:5]
        if type(key) is str:
            text = key
        elif isinstance(key, str) or _is_count(key):
            # torch.package writes ints, which torch.load takes too.
            text = str(key)
        else:
            text = ""
        return self.storage(cls, text, device, numel)

    def storage(self, cls: Node, text: str, device: Node, numel: Node) -> Storage:
        """The storage with the key `text`, as a persistent id describes it. Raises
        UnreadableError.
        """
        # One pickle has one Global for each name, so its classes are looked up once.
        if type(cls) is Global and cls in self._types:
            dtype = self._types[cls]
        else:
            dtype = self._types[cls] = storage_type(cls)
        return self._storage(text, device, dtype, storage_bytes(dtype, numel))

    def _storage(
        self, text: str, device: Node, dtype: DType | None, nbytes: int
    ) -> Storage:
        index = -1
        storage = self._made.get(text)
        if storage is None:
            index = self._record_position(text)
            storage = self._in_column(index)
        if storage is not None:
            # As in torch, the first id that names a storage decides its device.
            return seen_as(storage, dtype, nbytes, text, self._contents.storages)
        if not is_key(text):
            raise UnreadableError(f"invalid storage key {show(text, 80)}")
        record = None if index < 0 else self._records.at(index)
        storage_id = self._id_of(text)
        if self._meta and device == "meta" and record is not None and not record.size:
            return self._add_storage(
                text, Storage(storage_id, "meta", dtype, nbytes, None)
            )
        # torch before 2.6 reads memory behind a record that is too short.
        if record is None or record.size < nbytes:
            return self._short_storage(text, device, dtype, nbytes, record)
        if record.size > nbytes:
            self._longer.append(
                f"{show(text, 80)} ({record.size:,} bytes for {nbytes:,})"
            )
        if record.deflated and nbytes:
            self._deflated += 1
        if record.deflated and record.size > max(_LARGE, INFLATION * record.stored):
            self._swollen.append(
                f"{show(text, 80)} ({size_text(record.stored)} for "
                f"{size_text(record.size)})"
            )
        place = record.place(self._source, big=self._is_byteswapped(dtype))
        storage = make_storage(storage_id, device, dtype, nbytes, place, record.crc)
        return self._add_storage(text, storage)

    def _id_of(self, text: str) -> str:
        """The id of the storage with a key: keys repeat in nested checkpoints."""
        return self._contents.mark + self._prefix + text

    def _is_byteswapped(self, dtype: DType | None) -> bool:
        """Tell whether torch turns the bytes of a storage. One without a dtype stays as
        it is.
        """
        return self._big and dtype is not None

    def _add_storage(self, text: str, storage: Storage) -> Storage:
        """Keep a storage that was made for the key `text`."""
        self._made[text] = self._contents.storages[storage.id] = storage
        self._count += 1
        return storage

    def _short_storage(
        self,
        text: str,
        device: Node,
        dtype: DType | None,
        nbytes: int,
        record: Record | None,
    ) -> Storage:
        """A storage of which the archive holds the first bytes only, or none. Raises
        UnreadableError if it must be whole.
        """
        problem = (
            f"storage {show(text, 80)} has no record "
            f"{show(self._folder + text + self._suffix, 160)}"
        )
        if record is not None:
            problem = (
                f"storage {show(text, 80)} has {record.size:,} bytes, its tensors need "
                f"{nbytes:,}"
            )
        if not self._is_partial:
            raise UnreadableError(problem)
        # Deflated data have no first bytes, and swapped elements are not read in part.
        is_usable = record is not None and not record.deflated and not self._big
        there = record.place(self._source) if record is not None and is_usable else None
        place = partial_place(nbytes, problem, there)
        storage = make_storage(self._id_of(text), device, dtype, nbytes, place)
        self._made[text] = self._contents.storages[storage.id] = storage
        self._contents.short[storage] = 0 if there is None else there.size
        self._count += 1
        return storage

    def storages(
        self, keys: Sequence[str], looks: Sequence[Storage]
    ) -> Sequence[Storage]:
        """The storages with these keys, each with the device, the dtype and the bytes
        of another. Raises UnreadableError.
        """
        records = self._records
        before, after = self._folder, self._suffix
        names = before + f"{after}\0{before}".join(keys) + after
        first = records.run(names, self._count)
        if first < 0 or not self._can_be_column(first, keys, looks):
            return [
                self._storage(key, look.device, look.dtype, look.nbytes)
                for key, look in zip(keys, looks, strict=True)
            ]
        mark = self._contents.mark + self._prefix
        file, base = underlying_file(self._source, 0)
        ids = [mark + key for key in keys] if mark else keys

        def make(begin: int, last: int) -> list[Storage]:
            span = slice(first + begin, first + last)
            # `tuple.__new__` makes a row without the checks of a call of its class,
            # which takes several times as long.
            new = tuple.__new__
            offsets: Iterable[int] = records.offsets[span]
            if base:
                offsets = map(base.__add__, offsets)
            checksums: Iterable[int | None] = records.checksums[span]
            # A checksum of 0 may be none, which `at` tells.
            if 0 in records.checksums[span]:
                checksums = [
                    records.at(index).crc for index in range(span.start, span.stop)
                ]
            _, devices, dtypes, sizes, *_ = zip(*looks[begin:last], strict=True)
            orders = map(self._is_byteswapped, dtypes) if self._big else repeat(False)
            # The fields of Range, and then of Storage, in their order.
            ranges = zip(
                repeat(file),
                offsets,
                sizes,
                repeat(None),
                orders,
                repeat(None),
                strict=False,
            )
            places = map(new, repeat(Range), ranges)
            fields = zip(
                ids[begin:last], devices, dtypes, sizes, places, checksums, strict=True
            )
            return list(map(new, repeat(Storage), fields))

        column = Storages(ids, make, looks)
        self._columns[first] = column
        self._contents.storages[mark + keys[0]] = column
        self._count += len(keys)
        return column

    def _can_be_column(
        self, first: int, keys: Sequence[str], looks: Sequence[Storage]
    ) -> bool:
        """Tell whether storages can be made of consecutive records when they are asked
        for: none has anything to be noticed.
        """
        # Each record is in a file of its own.
        if isinstance(self._source, Joined):
            return False
        end = first + len(keys)
        for start, column in self._columns.items():
            if first < start + len(column) and start < end:
                return False
        if not self._made.keys().isdisjoint(keys):
            return False
        if self._records.methods[first:end].tobytes().strip(b"\0"):
            return False
        sizes = array("Q", [look.nbytes for look in looks])
        return self._records.sizes[first:end] == sizes

    def _in_column(self, index: int) -> Storage | None:
        """The storage of the record at a position of the directory, where it is in a
        column.
        """
        for first, column in self._columns.items():
            if first <= index < first + len(column):
                return column[index - first]
        return None

    def __contains__(self, key: object) -> bool:
        """Tell whether the pickle named a key so far."""
        if not isinstance(key, str):
            return False
        if key in self._made:
            return True
        return self._in_column(self._record_position(key)) is not None

    def _record_position(self, key: str) -> int:
        """The position of the record of a key in the directory; -1 without one."""
        return self._records.find(self._folder + key + self._suffix, self._count)

    @property
    def count(self) -> int:
        """The number of storages so far."""
        return self._count

    def forget(self) -> None:
        """Drop every storage, as before the first one."""
        # A column stands in the contents by the id of its first storage.
        firsts = [column[0] for column in self._columns.values()]
        for storage in (*self._made.values(), *firsts):
            del self._contents.storages[storage.id]
        self._made.clear()
        self._columns.clear()
        self._longer.clear()
        self._swollen.clear()
        self._deflated = 0
        self._count = 0

    def notices(self) -> list[Notice]:
        """The records that do not fit their storages, and those that take far more
        memory than they have bytes.
        """
        notices: list[Notice] = []
        if self._longer:
            listed = and_more(self._longer, 3)
            notices.append(
                Notice("container", f"records are longer than their storages: {listed}")
            )
        if self._swollen:
            text = (
                "records are deflated, which torch.save never does, and take far more "
                f"memory: {and_more(self._swollen, 3)}"
            )
            notices.append(Notice("container", text))
        return notices

    @property
    def refusal_text(self) -> str | None:
        """The reason why torch.load refuses the records, or None. Its older versions
        and `mmap=True` pass over what follows a storage.
        """
        if not self._longer:
            return None
        listed = and_more(self._longer, 1)
        return f"torch {TORCH} refuses records longer than their storages: {listed}"

    @property
    def is_deflated(self) -> bool:
        """True where a storage that was named is compressed in the file."""
        return self._deflated > 0

    def mapping_notices(self) -> list[Notice]:
        """The storages that `torch.load(path, mmap=True)` reads as other values.

        torch maps the bytes of a record as they lie in the file, and asks for no
        compression (seen with torch 2.13).
        """
        if not self._deflated:
            return []
        count = counted_noun(self._deflated, "storage")
        verb = be_verb(self._deflated)
        text = (
            f"{count} {verb} deflated, which torch.save never does: with mmap=True, as "
            "transformers loads, torch takes the compressed bytes for values"
        )
        return [Notice("container", text)]


_LARGE = 64 << 20
"""The least bytes of a deflated storage that are told of, where they are INFLATION
times those in the file.
"""


def refuse_program(archive: Archive, what: str) -> None:
    """Raise UnreadableError for a TorchScript archive where a file of torch.save is
    read: torch.load hands it to torch.jit.load.
    """
    if archive.find("constants.pkl") is not None:
        raise UnreadableError(f"{what} is a TorchScript archive, whose code torch runs")


def tree_inside(
    outer: Archive,
    record: Record,
    contents: Contents,
    limits: Limits,
    budget: Budget,
    prefix: str,
    loader: str = "torch.load",
) -> Node:
    """The tree of the file of torch.save in a record. Its pickle and its storages,
    whose ids begin with `prefix`, join `contents`. Only torch.load turns the bytes of
    another machine.

    Raises UnreadableError, LimitError.
    """
    from ckpt.formats.common.members import of_record  # here: few records hold a file

    member = of_record(outer.source, record)
    member.admit(limits, budget)
    archive = read_archive(member.open(), limits)
    if archive.find("data.pkl") is None:
        raise UnreadableError(
            f"record {show(record.name, 80)} is not a file of torch.save"
        )
    refuse_program(archive, f"record {show(record.name, 80)}")
    if loader != "torch.load":
        refuse_big(archive, loader)
    check_small(archive)
    contents.notices += archive.notices
    root = tree_of(archive, contents, limits, budget, prefix)
    if loader != "torch.load":
        refuse_deep(contents.pickles[-1], budget)
    return root


def tree_of(
    archive: Archive,
    contents: Contents,
    limits: Limits,
    budget: Budget,
    prefix: str = "",
) -> Node:
    """The tree of an archive of torch.save. Its pickle and its storages join
    `contents`. Raises UnreadableError, LimitError.
    """
    record = archive.find("data.pkl")
    assert record is not None
    budget.hold(archive.nbytes)
    pickle = run(archive.read_pickle(record, limits, budget), limits, budget)
    is_big = byteorder_of(archive) == "big"
    folder = StorageFolder(archive, "data", contents, prefix, big=is_big)
    interpret_pickle(pickle, contents, limits, folder.resolve, 0)
    contents.notices += folder.notices()
    contents.not_loadable = (
        contents.not_loadable or folder.refusal_text or alignment_refusal(archive)
    )
    return pickle.root
