"""safetensors: eight bytes of length, a JSON header, the data. No strides, no sharing,
no devices.

Rules: the format's README and safetensors/src/tensor.rs of 0.8. Stricter than the
library where it accepts what the rules forbid: duplicate keys, a header that does not
begin with `{`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from math import prod
from operator import sub

from ckpt.bytes.source import Source
from ckpt.formats.common.holes import lost_notices, partial_place
from ckpt.formats.format import Probe, no_checksums
from ckpt.model.account import Account
from ckpt.model.checkpoint import (
    Checkpoint,
    Entries,
    Entry,
    Storages,
    Tensors,
    Traits,
    Value,
)
from ckpt.model.columns import Chain, NumberedTexts
from ckpt.model.dtypes import BY_SAFETENSORS, DType, contiguous
from ckpt.model.errors import CutOffError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits, is_text, parse_json
from ckpt.model.names import natural_order
from ckpt.model.nodes import Dict
from ckpt.model.places import Place, Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    DIMENSIONS,
    Storage,
    TensorRef,
    is_countable,
    tensor_ref,
)
from ckpt.model.text import Json, show
from ckpt.tree.find import METADATA, metadata_node

NAME = "safetensors"
_OBJECT = re.compile(rb"\{(?:[\"} \t\r\n]|\Z)")
"""The first letters of a JSON object, of which a file may be cut behind the first."""
TRAITS = Traits(
    "safetensors",
    "safetensors.torch.load_file({path})",
    keeps_order=False,
    keeps_ties=False,
)
SHARDING = "DCP_SHARDING_INFO"
"""The key of the metadata of a distributed checkpoint: where the parts of a file begin
in the whole tensors.
"""
VERSION = "DCP_VERSION"
"""The key of its version."""

_FIELDS = {"dtype", "shape", "data_offsets"}


_Kind = tuple[DType, tuple[int, ...]]
"""(dtype, shape as torch counts it): one object for all tensors that have both."""


class Table(NamedTuple):
    """The tensors of a header in columns. Offsets count bytes from the end of the
    header.
    """

    names: list[str]
    kinds: list[_Kind]
    begins: array[int]
    ends: array[int]

    def in_order(self, order: Sequence[int]) -> Table:
        """Return the table with its rows in another order, by their numbers."""
        return Table(
            list(map(self.names.__getitem__, order)),
            list(map(self.kinds.__getitem__, order)),
            array("Q", map(self.begins.__getitem__, order)),
            array("Q", map(self.ends.__getitem__, order)),
        )


class Header(NamedTuple):
    """The header of a file: the offset of its data, its tensors, and its metadata."""

    begin: int
    tensors: Table
    texts: dict[str, str]


def is_usual(head: bytes) -> bool:
    """Tell whether a file that begins like this is a safetensors file."""
    length = int.from_bytes(head[:8], "little")
    # A text may have a brace as its ninth letter, and its first eight would be a length
    # of at least 2**59. Raw numbers may have one there too, but seldom with what JSON
    # has behind a brace.
    return (
        _OBJECT.match(head, 8) is not None
        and length < 2**56
        and not head.startswith(b"{")
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    header = read_header(
        probe.file, probe.head, limits, probe.budget, is_shard=bool(probe.mark)
    )
    return _make_checkpoint(probe, header)


def read_header(
    source: Source,
    head: bytes,
    limits: Limits,
    budget: Budget,
    *,
    is_shard: bool,
    is_cut: bool = False,
) -> Header:
    """The header of a file that begins with `head`. With `is_cut` data may be missing
    at the end of the file.

    Raises UnreadableError, LimitError.
    """
    # Here: the table of formats needs no machine for pickles.
    from ckpt.formats.common.early import is_pickle_too

    if is_pickle_too(head, source, limits):
        raise UnreadableError(
            "two files in one: safetensors reads tensors, pickle.load and torch.load "
            "run a pickle"
        )
    # Here: it loads all modules of compression.
    from ckpt.formats.common.two_files import refuse_second

    refuse_second(head, source, limits)
    length = int.from_bytes(head[:8], "little")
    if length > limits.header_bytes:
        if length > source.size - 8:
            raise UnreadableError(
                f"the safetensors header claims {length:,} bytes in a file of "
                f"{source.size:,}"
            )
        raise LimitError(
            f"the safetensors header has {length:,} bytes",
            "header-bytes",
            limits.header_bytes,
        )
    if length > source.size - 8:
        raise CutOffError(
            f"cut off: the safetensors header needs {length:,} bytes, the file ends at "
            f"{source.size:,}"
        )
    begin = 8 + length
    data = head[8:begin] if begin <= len(head) else source.read(8, length)
    if length >= _LEAST or is_shard:
        usual = _parse_usual_header(data, budget)
        if usual is not None and len(usual[0].names) <= limits.entries:
            parsed, texts = usual
            budget.charge_names(parsed.names, "the safetensors header")
            _check_cover(parsed, source, begin, is_cut=is_cut)
            return Header(begin, parsed, texts)
    header = parse_json(data, "safetensors header", budget, b'"data_offsets"')
    # Only an escape makes a lone surrogate, which the library refuses in any text.
    if b"\\u" in data:
        import json  # here, as in `parse_json`: most files hold none

        try:
            json.dumps(header, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UnreadableError(
                "damaged safetensors header: a text contains a lone surrogate"
            ) from None
    # Python reads -0 as a whole number, and the library does not.
    if b"-0" in data and _has_negative_zero(data):
        raise UnreadableError("damaged safetensors header: -0 is no whole number")
    if not isinstance(header, dict) or head[8:9] != b"{":
        raise UnreadableError("the safetensors header does not begin with {")
    texts = _parse_metadata(header.pop(METADATA, {}))
    if len(header) > limits.entries:
        raise LimitError(
            f"the safetensors file has {len(header):,} tensors",
            "entries",
            limits.entries,
        )
    budget.charge(len(header) * _ENTRY + len(texts) * _VALUE, "the safetensors header")
    parsed = _parse_table(header)
    budget.charge_names(parsed.names, "the safetensors header")
    _check_cover(parsed, source, begin, is_cut=is_cut)
    return Header(begin, parsed, texts)


def _has_negative_zero(data: bytes) -> bool:
    """Tell whether JSON has the number -0 outside of its texts."""
    numbers = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data)
    return re.search(rb"(?<![0-9eE])-0(?![0-9.eE])", numbers) is not None


_ENTRY = 1_000
"""Bytes of memory of a tensor."""
_VALUE = 700
"""Bytes of memory of a text of the metadata."""
_CUT = 400
"""Bytes of memory of the pieces of a tensor that the expression cuts out."""


def _parse_metadata(metadata: object) -> dict[str, str]:
    """The metadata of a header. The library reads null as none. Raises
    UnreadableError.
    """
    if metadata is None:
        return {}
    problem = "safetensors metadata must map text to text"
    if not isinstance(metadata, dict):
        raise UnreadableError(problem)
    texts = {
        name: value
        for name, value in metadata.items()
        if isinstance(value, str) and is_text(value)
    }
    if len(texts) < len(metadata):
        raise UnreadableError(problem)
    return texts


_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_USUAL = (
    r'"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+)","shape":\[((?:N(?:,N)*)?)\],"data_offsets":\[(N),(N)\]\}'
).replace("N", _NUMBER)
"""A tensor of a header as the library writes it."""
_LEAST = 16_384
"""The size of a header from which on the expression is worth to be compiled."""


_PIECE = 1 << 20
"""Bytes of a header that are cut at once: the parts take six times as much memory."""


def _parse_table(header: dict[str, Json]) -> Table:
    """The tensors of a header that JSON has read. Raises UnreadableError."""
    # One object for each kind: the views of tensors are made once for each.
    kinds: dict[_Kind, _Kind] = {}
    table = Table(list(header), [], array("Q"), array("Q"))
    for name, fields in header.items():
        row = _parse_entry(name, fields)
        table.kinds.append(kinds.setdefault(row.kind, row.kind))
        table.begins.append(row.begin)
        table.ends.append(row.end)
    return table


def _parse_usual_header(
    data: bytes, budget: Budget
) -> tuple[Table, dict[str, str]] | None:
    """Return (the tensors, the metadata) of a header that the library wrote.

    Return None for any other header, damaged or not.
    """
    if not data.isascii():
        return None
    # Before anything is made: the expression cuts all tensors of a header at once.
    tensors = data.count(b'"data_offsets"')
    trial = budget.copy()
    trial.hold(len(data))
    trial.claim(tensors)
    try:
        trial.charge(
            tensors * (_ENTRY + _CUT) + 4 * len(data), "the safetensors header"
        )
    except LimitError:
        return None
    cut = _cut_header(data)
    if cut is None:
        return None
    names = cut.names
    # JSON says what is wrong with such a header.
    if METADATA in names or len(set(names)) < len(names):
        return None
    texts: dict[str, str] = {}
    if cut.first != "{":
        pairs = _parse_usual_metadata(cut.first)
        if pairs is None:
            return None
        texts = dict(pairs)
    budget.hold(len(data))
    budget.claim(len(names))
    cost = len(names) * _ENTRY + len(texts) * _VALUE + len(data)
    budget.charge(cost, "the safetensors header")
    kinds = _parse_kinds(cut)
    table = Table(
        names, list(map(kinds.__getitem__, cut.kind_of)), cut.begins, cut.ends
    )
    return table, texts


class _Numbers(dict[tuple[str, str, int], int]):
    """The numbers of the kinds of tensors, in the order in which they are asked for.

    The key of a kind is (the text of its dtype, the text of its shape, its bytes).
    """

    def __missing__(self, key: tuple[str, str, int]) -> int:
        self[key] = number = len(self)
        return number


class _Cut(NamedTuple):
    """The parts of a usual header: `first` is what precedes the first tensor."""

    first: str
    names: list[str]
    numbers: _Numbers
    kind_of: array[int]
    begins: array[int]
    ends: array[int]


def _cut_header(data: bytes) -> _Cut | None:
    """Return the parts of a header, or None for a header that the library did not
    write.
    """
    names: list[str] = []
    numbers = _Numbers()
    kind_of = array("I")
    begins = array("Q")
    ends = array("Q")
    first = last = ""
    position = 0
    while position < len(data):
        piece = data[position : position + _PIECE].decode("ascii")
        # The text before each tensor, its five groups, and so on; last the text behind
        # the last whole tensor, which the next piece begins with.
        parts = re.split(_USUAL, piece)
        gaps = parts[:-1:6]
        last = parts[-1]
        if not gaps:
            break
        if not position:
            first = gaps.pop(0)
        if not {","}.issuperset(gaps):
            return None
        position += len(piece) - len(last)
        names += parts[1::6]
        first_new = len(begins)
        begins.extend(map(int, parts[4::6]))
        ends.extend(map(int, parts[5::6]))
        sizes = map(sub, ends[first_new:], begins[first_new:])
        keys = zip(parts[2::6], parts[3::6], sizes, strict=True)
        kind_of.extend(map(numbers.__getitem__, keys))
    # The library fills up with spaces to a multiple of eight bytes.
    is_end = len(last) == len(data) - position and last.rstrip(" ") == "}"
    if not names or not is_end:
        return None
    return _Cut(first, names, numbers, kind_of, begins, ends)


def _parse_kinds(cut: _Cut) -> list[_Kind]:
    """The kinds by their numbers. Raises UnreadableError for the first tensor that
    cannot be.
    """
    rows = range(len(cut.names))
    # Rows from behind, so that the first one of each number stays.
    firsts = dict(zip(reversed(cut.kind_of), reversed(rows), strict=True))
    same: dict[_Kind, _Kind] = {}
    kinds: list[_Kind] = []
    for (dtype, shape, _), number in cut.numbers.items():
        row = firsts[number]
        fields: dict[str, Json] = {
            "dtype": dtype,
            "shape": list(map(int, shape.split(","))) if shape else [],
            "data_offsets": [cut.begins[row], cut.ends[row]],
        }
        kind = _parse_entry(cut.names[row], fields).kind
        kinds.append(same.setdefault(kind, kind))
    return kinds


@lru_cache(maxsize=4)
def _parse_usual_metadata(text: str) -> tuple[tuple[str, str], ...] | None:
    """The metadata with which a usual header begins, up to the comma. All shards of a
    model have the same.
    """
    if not text.startswith(f'{{"{METADATA}":') or not text.endswith(","):
        return None
    import json  # here, as in `parse_json`

    try:
        header = json.loads(text[:-1] + "}")
        texts = _parse_metadata(header.pop(METADATA))
    except (ValueError, RecursionError, UnreadableError):
        return None
    # A key that is set twice.
    if header or len(texts) * 2 != (text.count('"') - 2) // 2:
        return None
    return tuple(texts.items())


def _parse_entry(name: str, fields: object) -> _EntryRow:
    """Return one tensor of the header. Raises UnreadableError."""
    what = f"tensor {show(name, 80)}"
    if not isinstance(fields, dict) or not fields.keys() >= _FIELDS:
        raise UnreadableError(f"{what}: the header lacks its dtype, shape or offsets")
    dtype_name = fields["dtype"]
    dtype = BY_SAFETENSORS.get(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None:
        raise UnreadableError(f"{what}: unknown dtype {show(str(dtype_name)[:80], 40)}")
    shape = fields["shape"]
    offsets = fields["data_offsets"]
    if not _are_whole_numbers(shape) or len(shape) > DIMENSIONS:
        raise UnreadableError(
            f"{what}: its shape is not a list of at most {DIMENSIONS} whole numbers"
        )
    if not _are_whole_numbers(offsets) or len(offsets) != 2:
        raise UnreadableError(f"{what}: its offsets are not a pair of whole numbers")
    # The shape counts elements of 4 bits. torch has no type of them, but one of pairs.
    is_half_byte = dtype.safetensors == "F4"
    bits = prod(shape) * (4 if is_half_byte else dtype.bits)
    begin, end = offsets
    if not bits and not is_countable(shape):
        raise UnreadableError(
            f"{what}: its sizes are more than safetensors counts in 64 bits"
        )
    if bits >= 2**63 or bits % 8 or end - begin != bits // 8:
        raise UnreadableError(
            f"{what}: offsets {begin:,} to {end:,} do not fit its shape and dtype"
        )
    if is_half_byte:
        if shape and shape[-1] % 2:
            raise UnreadableError(
                f"{what}: each row has an odd number of 4-bit elements, torch stores "
                "them in pairs"
            )
        shape = [*shape[:-1], shape[-1] // 2]
    return _EntryRow((dtype, tuple(shape)), begin, end)


class _EntryRow(NamedTuple):
    """A tensor of a header: its kind, and the bytes of its data."""

    kind: _Kind
    begin: int
    end: int


def _are_whole_numbers(numbers: object) -> bool:
    # Exact types: true of JSON is an int in Python.
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number < 2**63 for number in numbers
    )


def _check_cover(table: Table, source: Source, start: int, *, is_cut: bool) -> None:
    """Check that the tensors fill the file from `start` to its end without a gap, an
    overlap or bytes after them.

    Of a file that is cut off the end is not looked at.
    """
    begins, ends = table.begins, table.ends
    # The library writes each after the one before.
    if begins[:1] == array("Q", [0]) and begins[1:] == ends[:-1]:
        position = ends[-1]
    else:
        position = _check_order(table)
    if is_cut:
        return
    size = source.size - start
    if position > size:
        raise CutOffError(
            f"cut off: the tensors need {position:,} bytes of data, the file has "
            f"{size:,}"
        )
    if position < size:
        # Here: few files have more.
        from ckpt.formats.common.trailing import trailing_text

        what = trailing_text(source, start + position)
        raise UnreadableError(
            f"the file has {what} after the last tensor, which safetensors refuses"
        )


def _check_order(table: Table) -> int:
    """Return the end of the last tensor. Raises UnreadableError for a gap or an
    overlap.
    """
    position = 0
    spans = list(zip(table.begins, table.ends, strict=True))
    for row in sorted(range(len(spans)), key=spans.__getitem__):
        begin, end = spans[row]
        if begin != position:
            kind = "overlap another tensor" if begin < position else "leave a gap"
            raise UnreadableError(
                f"tensor {show(table.names[row], 80)}: its bytes {begin:,} to {end:,} "
                f"{kind}, expected byte {position:,}"
            )
        position = end
    return position


def _make_checkpoint(probe: Probe, header: Header) -> Checkpoint:
    table = header.tensors.in_order(natural_order(header.tensors.names))
    header = header._replace(tensors=table)
    root = Dict()
    make = Maker(probe.file, header)
    ids = NumberedTexts(probe.mark, range(len(table.names)))
    entries: Sequence[Entry]
    storages: Sequence[Storage]
    # Of a file that is cut off.
    if header.begin + max(table.ends, default=0) > probe.file.size:
        entries = [make(id, row) for row, id in enumerate(ids)]
        storages = make.storages
        root.set(table.names, [entry.tensor for entry in entries])
    else:
        tensors = make.column(ids)
        entries = Entries((), table.names, table.names, tensors)
        storages = tensors.storages
        root.set(table.names, tensors)
    if header.texts:
        root.set([METADATA], [metadata_node(header.texts)])
    return Checkpoint(
        path=probe.path,
        format=NAME,
        traits=TRAITS,
        nbytes=probe.size,
        root=root,
        tensors=Chain(entries),
        storages=Chain(storages),
        values=tuple(values_of(header.texts)),
        account=Account(tuple(lost_notices(entries, make.short)) if make.short else ()),
        sources=(probe.file,),
    )


def values_of(texts: dict[str, str]) -> list[Value]:
    """The rows of the metadata."""
    return [
        Value((METADATA, key), f"{METADATA}.{key}", "str", value)
        for key, value in texts.items()
    ]


class Maker:
    """Makes the tensors of a header. `storages` are those that it has made one
    by one.
    """

    def __init__(self, source: Source, header: Header) -> None:
        self.storages: list[Storage] = []
        self.short: dict[Storage, int] = {}
        """Storages of which not all bytes are there, because the file is cut off."""
        self._source = source
        self._header = header
        self._looks: dict[int, TensorRef] = {}
        """A tensor of each kind, by the id of the kind, over a storage without
        a place.
        """

    def __call__(self, id: str, row: int) -> Entry:
        """The tensor in a row of the header, over a storage with this id."""
        table = self._header.tensors
        # `tuple.__new__` makes a row without the checks of a call of its class, which
        # takes several times as long. The fields stand in the order of the class.
        new = tuple.__new__
        name = table.names[row]
        begin = table.begins[row]
        look = self._look_of(table.kinds[row], table.ends[row] - begin)
        nbytes = look.storage.nbytes
        first = self._header.begin + begin
        place: Place = new(Range, (self._source, first, nbytes, None, False, None))
        is_short = nbytes and first + nbytes > self._source.size
        if is_short:
            place = partial_place(nbytes, f"tensor {show(name, 80)} is not whole")
        storage = new(Storage, (id, None, look.dtype, nbytes, place, None))
        if is_short:
            self.short[storage] = 0
        self.storages.append(storage)
        tensor = new(TensorRef, (storage, *look[1:]))
        return new(Entry, ((name,), name, tensor, None, None, True, True))

    def column(self, ids: Sequence[str]) -> Tensors:
        """All tensors, which are whole, over storages with these ids."""
        table, source, base = self._header.tensors, self._source, self._header.begin
        looks = list(
            map(self._look_of, table.kinds, map(sub, table.ends, table.begins))
        )
        storages = [look.storage for look in looks]

        def make(first: int, last: int) -> list[Storage]:
            new = tuple.__new__
            _, devices, dtypes, sizes, *_ = zip(*storages[first:last], strict=True)
            offsets = map(base.__add__, table.begins[first:last])
            # `repeat` has no end: the columns tell the length.
            rest = (repeat(None), repeat(False), repeat(None))
            places = map(
                new,
                repeat(Range),
                zip(repeat(source), offsets, sizes, *rest, strict=False),
            )
            fields = zip(
                ids[first:last],
                devices,
                dtypes,
                sizes,
                places,
                repeat(None),
                strict=False,
            )
            return list(map(new, repeat(Storage), fields))

        return Tensors(Storages(ids, make, storages), looks)

    def _look_of(self, kind: _Kind, nbytes: int) -> TensorRef:
        """A tensor of a kind, and a storage of so many bytes, without a place."""
        look = self._looks.get(id(kind))
        if look is None:
            dtype, shape = kind
            storage = Storage("", None, dtype, nbytes, None)
            look = tensor_ref(storage, dtype, shape, contiguous(shape), 0)
            self._looks[id(kind)] = look
        return look


checksums = no_checksums


def salvage(probe: Probe, limits: Limits) -> Checkpoint | None:
    if not is_usual(probe.head):
        return None
    header = read_header(
        probe.file, probe.head, limits, probe.budget, is_shard=False, is_cut=True
    )
    return _make_checkpoint(probe, header)
