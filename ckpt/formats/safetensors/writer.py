"""Writing safetensors: the header, then the tensors. Ranges of the source are copied
where possible.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ckpt.bytes.disk import PAGE
from ckpt.bytes.far import is_url, iterate_ahead
from ckpt.bytes.source import open_address
from ckpt.bytes.target import Sink
from ckpt.elements.blocks import elements, pour, same_bytes
from ckpt.elements.computed import place_of
from ckpt.formats.common.safetensors import SHARDING, VERSION
from ckpt.formats.common.writing import Draft, difference_error, tensors_and_aliases
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import LimitError, WriteError
from ckpt.model.limits import Limits, is_text
from ckpt.model.names import NamedKey
from ckpt.model.tensors import Storage, TensorRef
from ckpt.model.text import Json, show, show_name
from ckpt.tree.find import METADATA, is_metadata, metadata_of, tied_aliases

_EXPANDED = 1 << 30
"""The most bytes to which a tensor that repeats its storage (stride 0) may expand."""

_ALIGNMENT = 8
_LARGE = 1 << 20
"""Bytes of a tensor for which a longer header is worth it, because the copy is faster
and may share blocks.
"""

_OF_PARTS = (SHARDING, VERSION)
"""The metadata that says where the tensors in one file of a distributed save begin.

It is wrong in any other file; torch takes the tensors as whole without it.
"""


def losses(checkpoint: Checkpoint) -> list[str]:
    """Return the values that the format cannot hold, one line each: it holds only dense
    tensors.
    """
    lost: list[str] = []
    for entry in checkpoint.tensors:
        why = unfit(entry)
        if why:
            lost.append(f"{show_name(entry.name)} ({why})")
    values = [value.name for value in checkpoint.values if not is_metadata(value.path)]
    return [*lost, *(f"{show_name(name)} (not a tensor)" for name in values)]


def unfit(entry: Entry) -> str | None:
    """Return the reason why the format cannot hold a tensor, or None."""
    tensor = entry.tensor
    if not isinstance(tensor, TensorRef):
        return tensor.layout
    if tensor.dtype.safetensors is None:
        return tensor.dtype.name
    if tensor.storage.place is None:
        return "on meta, without data"
    # 4-bit elements are counted one by one in the header, and torch holds pairs.
    if tensor.dtype.safetensors == "F4" and not tensor.shape:
        return "a single pair of 4-bit elements"
    if tensor.nbytes > max(_EXPANDED, tensor.storage.nbytes):
        return f"expands to {tensor.nbytes:,} bytes"
    if any(isinstance(key, NamedKey) for key in entry.path):
        return "its key is not a string"
    if entry.name == METADATA or not is_text(entry.name):
        return "its name is not allowed in safetensors"
    return None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The file of a checkpoint that has no losses. Raises LimitError."""
    tensors, others = tensors_and_aliases(checkpoint)
    texts = {
        key: text
        for key, text in metadata_of(checkpoint.root).items()
        if key not in _OF_PARTS
    }
    # transformers refuses a file without `format`.
    metadata = {"format": "pt", **texts, **others}
    # The library's order: the widest dtypes first, so that each tensor is aligned.
    tensors.sort(key=lambda item: (-item[1].dtype.bits, item[0]))
    header: dict[str, Json] = {METADATA: metadata}
    position = 0
    for name, ref in tensors:
        shape = list(ref.shape)
        # The format counts elements of 4 bits, torch counts pairs of them.
        if ref.dtype.safetensors == "F4" and shape:
            shape[-1] *= 2
        header[name] = {
            "dtype": ref.dtype.safetensors,
            "shape": shape,
            "data_offsets": [position, position + ref.nbytes],
        }
        position += ref.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # The format allows blanks behind the JSON.
    text += b" " * _padding_size(8 + len(text), [ref for _, ref in tensors])
    if len(text) > limits.header_bytes:
        raise LimitError(
            f"the safetensors header has {len(text):,} bytes",
            "header-bytes",
            limits.header_bytes,
        )

    def write(sink: Sink) -> None:
        sink.write(len(text).to_bytes(8, "little") + text)
        for name, ref in iterate_ahead(tensors):
            if ref.numel:
                place = place_of(ref)
                pour(Storage(name, None, ref.dtype, ref.nbytes, place), sink, crc=False)

    return Draft(8 + len(text) + position, write)


def _padding_size(begin: int, refs: Sequence[TensorRef]) -> int:
    """Return the number of blanks at the end of a header of `begin` bytes.

    They align the data, to the place that most of it has in a page.
    """
    position = 0
    # By the place in a page of the source: the bytes that would lie there in the copy.
    moved: Counter[int] = Counter()
    for ref in refs:
        run = place_of(ref).run if ref.nbytes >= _LARGE else None
        if run is not None:
            is_copied = run.source.status is not None or run.source.far is not None
            if is_copied:
                moved[(run.offset - position) % PAGE] += ref.nbytes
        position += ref.nbytes
    # A copy whose bytes keep their place in a page is faster, and may share blocks.
    for wanted, count in moved.most_common(1):
        if 2 * count > position and wanted % _ALIGNMENT == 0:
            return (wanted - begin) % PAGE
    return -begin % _ALIGNMENT


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written file has the planned tensors, or their aliases,
    and the safetensors library opens it.
    """
    tensors = {entry.name: entry.tensor for entry in written.tensors}
    others = tied_aliases(written)
    for entry in planned.tensors:
        tensor = entry.tensor
        other = tensors.get(others.get(entry.name, entry.name))
        if other is None or other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise difference_error(f"tensor {show(entry.name, 80)} differs")
    # A tensor that nobody planned would be loaded.
    extra = tensors.keys() - {entry.name for entry in planned.tensors}
    if extra:
        raise difference_error(f"{show(min(extra), 80)} was not planned")
    check_by_library(written.path)


def compare_bytes(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless every element in a written file equals its source."""
    tensors = {entry.name: entry.tensor for entry in written.tensors}
    others = tied_aliases(written)
    for entry in planned.tensors:
        other = tensors[others.get(entry.name, entry.name)]
        assert isinstance(entry.tensor, TensorRef) and isinstance(other, TensorRef)
        if not same_bytes(elements(entry.tensor), elements(other)):
            raise difference_error(
                f"the bytes of {show(entry.name, 80)} differ from the source"
            )


def check_by_library(path: str) -> None:
    """Open a file with the safetensors library, of an object its header. Raises
    WriteError when that fails.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with _openable_path(path) as near, safe_open(near, framework="numpy") as opened:
            opened.keys()
    except SafetensorError as error:
        raise WriteError(
            f"the safetensors library refuses the written file: {show(str(error), 200)}"
        ) from None


@contextmanager
def _openable_path(path: str) -> Iterator[str]:
    """A path that the library opens: of an object a file with its header, and a hole in
    the place of its data.
    """
    if not is_url(path):
        yield path
        return
    from tempfile import NamedTemporaryFile

    source = open_address(path)
    try:
        with NamedTemporaryFile(suffix=".safetensors") as file:
            # The length of the header, then the header.
            start = 8 + int.from_bytes(source.read(0, 8), "little")
            file.write(source.read(0, min(start, source.size)))
            file.truncate(source.size)
            file.flush()
            yield file.name
    finally:
        source.close()
