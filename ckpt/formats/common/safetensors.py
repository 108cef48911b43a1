"""safetensors: eight bytes of length, a JSON header, the data. No strides, no sharing,
no devices.

Rules: the format's README and safetensors/src/tensor.rs of 0.8. Stricter than the
library where it accepts what the rules forbid: duplicate keys, a header that does not
begin with `{`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from ckpt.bytes.source import Source
from ckpt.formats.common.early import is_pickle_too
from ckpt.formats.common.holes import lost_notices, partial_place
from ckpt.formats.format import Probe, no_checksums
from ckpt.model.account import Account
from ckpt.model.checkpoint import Checkpoint, Entry, Traits, Value
from ckpt.model.dtypes import BY_SAFETENSORS, DType, contiguous
from ckpt.model.errors import CutOffError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits, is_text, parse_json
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Dict
from ckpt.model.places import Place, Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS, Storage, TensorRef, tensor_ref
from ckpt.model.text import show
from ckpt.tree.find import METADATA, metadata_node

NAME = "safetensors"
TRAITS = Traits(
    "safetensors",
    "safetensors.torch.load_file({path})",
    keeps_order=False,
    keeps_ties=False,
)
SHARDING, VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
"""Keys of the metadata of a distributed checkpoint: where the parts of a file begin in
the whole tensors.
"""

_FIELDS = {"dtype", "shape", "data_offsets"}


_Row = tuple[DType, tuple[int, ...], int, int]
"""(dtype, shape as torch counts it, begin, end) of a tensor; offsets count bytes from
the end of the header.
"""


class Header(NamedTuple):
    """The header of a file: the offset of its data, its tensors by name, and its
    metadata.
    """

    begin: int
    tensors: dict[str, _Row]
    texts: dict[str, str]


def is_usual(head: bytes) -> bool:
    """Tell whether a file that begins like this is a safetensors file."""
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and length < 2**62 and not head.startswith(b"{")


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
    if is_pickle_too(head, source, limits):
        raise UnreadableError(
            "two files in one: safetensors reads tensors, pickle.load and torch.load "
            "run a pickle"
        )
    from ckpt.formats.common.two_files import (
        refuse_second,
    )  # here: it loads all modules of compression

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
        if usual is not None and len(usual[0]) <= limits.entries:
            parsed, texts = usual
            _check_cover(parsed, source, begin, is_cut=is_cut)
            return Header(begin, parsed, texts)
    header = parse_json(data, "safetensors header", budget, b'"data_offsets"')
    if (
        b"\\u" in data
    ):  # only an escape makes a lone surrogate, which the library refuses in any text
        import json  # here, as in `parse_json`: most files hold none

        try:
            json.dumps(header, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UnreadableError(
                "damaged safetensors header: a text contains a lone surrogate"
            ) from None
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
    parsed = {name: _parse_entry(name, fields) for name, fields in header.items()}
    _check_cover(parsed, source, begin, is_cut=is_cut)
    return Header(begin, parsed, texts)


_ENTRY, _VALUE, _CUT = 1_000, 700, 400
"""Bytes of memory of a tensor, of a text of the metadata, and of the pieces of a tensor
that the expression cuts out.
"""


def _parse_metadata(metadata: object) -> dict[str, str]:
    """The metadata of a header. The library reads null as none. Raises
    UnreadableError.
    """
    if metadata is None:
        return {}
    pairs = metadata.items() if isinstance(metadata, dict) else ()
    texts = {
        name: value
        for name, value in pairs
        if isinstance(value, str) and is_text(value)
    }
    if not isinstance(metadata, dict) or len(texts) < len(metadata):
        raise UnreadableError("safetensors metadata must map text to text")
    return texts


_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_USUAL = (
    r'"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+)","shape":\[((?:N(?:,N)*)?)\],"data_offsets":\[(N),(N)\]\}'
).replace("N", _NUMBER)
"""A tensor of a header as the library writes it."""
_LEAST = 16_384
"""The size of a header from which on the expression is worth to be compiled."""


def _parse_usual_header(
    data: bytes, budget: Budget
) -> tuple[dict[str, _Row], dict[str, str]] | None:
    """Return (the tensors, the metadata) of a header that the library wrote.

    Return None for any other header, damaged or not.
    """
    if not data.isascii():
        return None
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
    text = data.decode("ascii")
    parts = re.split(_USUAL, text)
    names, kinds, shapes = parts[1::6], parts[2::6], parts[3::6]
    first, last = parts[0] if parts else "", parts[-1] if parts else ""
    if (
        not names
        or set(parts[6:-1:6]) > {","}
        or last.rstrip(" ") != "}"
        or len(set(names)) < len(names)
    ):
        return None
    texts: dict[str, str] = {}
    if METADATA in names or first != "{":
        pairs = None if METADATA in names else _parse_usual_metadata(first)
        if pairs is None:
            return None
        texts = dict(pairs)
    budget.hold(len(data))
    budget.claim(len(names))
    budget.charge(
        len(names) * _ENTRY + len(texts) * _VALUE + len(text), "the safetensors header"
    )
    begins, ends = map(int, parts[4::6]), map(int, parts[5::6])
    templates: dict[tuple[str, str], _Row] = {}
    rows: dict[str, _Row] = {}
    for name, kind, shape, begin, end in zip(
        names, kinds, shapes, begins, ends, strict=True
    ):
        like = templates.get((kind, shape))
        if like is None or end - begin != like[3] - like[2]:
            sizes = list(map(int, shape.split(","))) if shape else []
            fields = {"dtype": kind, "shape": sizes, "data_offsets": [begin, end]}
            like = templates[kind, shape] = _parse_entry(name, fields)
        rows[name] = (like[0], like[1], begin, end)
    return rows, texts


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
    if (
        header or len(texts) * 2 != (text.count('"') - 2) // 2
    ):  # a key that is set twice
        return None
    return tuple(texts.items())


def _parse_entry(name: str, fields: object) -> tuple[DType, tuple[int, ...], int, int]:
    """Return (dtype, shape as torch counts it, begin, end) of one tensor of the
    header.
    """
    what = f"tensor {show(name, 80)}"
    if not isinstance(fields, dict) or not fields.keys() >= _FIELDS:
        raise UnreadableError(f"{what}: the header lacks its dtype, shape or offsets")
    dtype = (
        BY_SAFETENSORS.get(fields["dtype"])
        if isinstance(fields["dtype"], str)
        else None
    )
    if dtype is None:
        raise UnreadableError(
            f"{what}: unknown dtype {show(str(fields['dtype'])[:80], 40)}"
        )
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_whole_numbers(shape) or len(shape) > DIMENSIONS:
        raise UnreadableError(
            f"{what}: its shape is not a list of at most {DIMENSIONS} whole numbers"
        )
    if not _are_whole_numbers(offsets) or len(offsets) != 2:
        raise UnreadableError(f"{what}: its offsets are not a pair of whole numbers")
    bits = prod(shape) * (4 if dtype.safetensors == "F4" else dtype.bits)
    begin, end = offsets
    if bits >= 2**63 or bits % 8 or end - begin != bits // 8:
        raise UnreadableError(
            f"{what}: offsets {begin:,} to {end:,} do not fit its shape and dtype"
        )
    if dtype.safetensors == "F4":
        if shape and shape[-1] % 2:
            raise UnreadableError(
                f"{what}: each row has an odd number of 4-bit elements, torch stores "
                "them in pairs"
            )
        shape = [*shape[:-1], shape[-1] // 2]
    return dtype, tuple(shape), begin, end


def _are_whole_numbers(numbers: object) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number < 2**63 for number in numbers
    )


def _check_cover(
    parsed: dict[str, _Row], source: Source, start: int, *, is_cut: bool
) -> None:
    """Check that the tensors fill the file from `start` to its end without a gap, an
    overlap or bytes after them.

    Of a file that is cut off the end is not looked at.
    """
    position = 0
    for name, (_, _, begin, end) in sorted(
        parsed.items(), key=lambda item: item[1][2:]
    ):
        if begin != position:
            kind = "overlap another tensor" if begin < position else "leave a gap"
            raise UnreadableError(
                f"tensor {show(name, 80)}: its bytes {begin:,} to {end:,} {kind}, "
                f"expected byte {position:,}"
            )
        position = end
    if is_cut:
        return
    size = source.size - start
    if position > size:
        raise CutOffError(
            f"cut off: the tensors need {position:,} bytes of data, the file has "
            f"{size:,}"
        )
    if position < size:
        from ckpt.formats.common.trailing import (
            trailing_text,
        )  # here: few files have more

        what = trailing_text(source, start + position)
        raise UnreadableError(
            f"the file has {what} after the last tensor, which safetensors refuses"
        )


def _make_checkpoint(probe: Probe, header: Header) -> Checkpoint:
    root = Dict()
    entries: list[Entry] = []
    make = Maker(probe.file, header)
    for index, name in enumerate(sorted(header.tensors, key=natural_sort_key)):
        entries.append(make(f"{probe.mark}{index}", name))
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    if header.texts:
        root.set([METADATA], [metadata_node(header.texts)])
    return Checkpoint(
        path=probe.path,
        format=NAME,
        traits=TRAITS,
        nbytes=probe.size,
        root=root,
        tensors=tuple(entries),
        storages=make.storages,
        values=tuple(values_of(header.texts)),
        account=Account(tuple(lost_notices(entries, make.short))),
        sources=(probe.file,),
    )


def values_of(texts: dict[str, str]) -> list[Value]:
    """The rows of the metadata."""
    return [
        Value((METADATA, key), f"{METADATA}.{key}", "str", value)
        for key, value in texts.items()
    ]


class Maker:
    """Makes the tensors of a header. `storages` are those that it has made."""

    def __init__(self, source: Source, header: Header) -> None:
        self.storages: list[Storage] = []
        self.short: dict[Storage, int] = {}
        """Storages of which not all bytes are there, because the file is cut off."""
        self._source = source
        self._header = header
        self._known: dict[tuple[str, tuple[int, ...]], tuple[object, ...]] = {}

    def __call__(self, id: str, name: str) -> Entry:
        """The tensor with this name, over a storage with this id."""
        dtype, shape, start, end = self._header.tensors[name]
        new, nbytes = tuple.__new__, end - start
        first = self._header.begin + start
        place: Place = new(Range, (self._source, first, nbytes, None, False, None))
        is_short = nbytes and first + nbytes > self._source.size
        if is_short:
            place = partial_place(nbytes, f"tensor {show(name, 80)} is not whole")
        storage = new(Storage, (id, None, dtype, nbytes, place, None))
        if is_short:
            self.short[storage] = 0
        view = self._known.get((dtype.name, shape))
        if view is None:
            view = tensor_ref(storage, dtype, shape, contiguous(shape), 0)[1:]
            self._known[dtype.name, shape] = view
        self.storages.append(storage)
        return new(
            Entry,
            ((name,), name, new(TensorRef, (storage, *view)), None, None, True, True),
        )


checksums = no_checksums


def salvage(probe: Probe, limits: Limits) -> Checkpoint | None:
    if not is_usual(probe.head):
        return None
    header = read_header(
        probe.file, probe.head, limits, probe.budget, is_shard=False, is_cut=True
    )
    return _make_checkpoint(probe, header)
