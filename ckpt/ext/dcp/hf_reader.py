"""Reading a distributed checkpoint in safetensors: the headers of all files, and no
tensor data.

No file says how large a tensor is as a whole: it reaches as far as its parts do, and
they must cover it. A last part that is missing cannot be seen, which a finding says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ckpt.bytes.executor import Executor
from ckpt.elements.boxes import Box, Boxes
from ckpt.ext.dcp.hf import FORMAT, Shard, shards_in
from ckpt.formats.common import safetensors
from ckpt.formats.common.coverage import Fault, find_fault, grid_of
from ckpt.formats.common.file_set import CheckpointFiles, check_files
from ckpt.formats.common.safetensors import SHARDING, VERSION
from ckpt.formats.format import Check, ChecksumReport, List, Probe, Progress
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Entry, RecordedFile, Value
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import dict_of
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import Storage, TensorRef, tensor_ref
from ckpt.model.text import Json, and_more, counted_noun, show
from ckpt.tree.find import METADATA, metadata_node, metadata_of

_KNOWN = "1.0"
_LISTED = 5
_TOO_MANY = 2**63


class _Piece(NamedTuple):
    """A part of a tensor: where it begins in the whole, its elements, and its file."""

    offsets: tuple[int, ...]
    tensor: TensorRef
    file: str


def read(probe: Probe, limits: Limits) -> Checkpoint:
    shards = shards_in(probe.location.names())
    # Numbers begin with 1: a name with other ones is no file of this writer.
    for shard in shards:
        if not (shard.rank and 1 <= shard.number <= shard.files):
            raise UnreadableError(
                f"{show(shard.name, 80)}: its numbers are not those of a shard and a "
                "part"
            )
    if len(shards) > limits.shards:
        raise LimitError("the folder holds too many files", "shards", limits.shards)
    by_name = {shard.name: shard for shard in shards}
    files = CheckpointFiles(
        probe.location,
        lambda name: _open_shard(probe, by_name[name], limits),
        partial=probe.partial,
    )
    with files.closing_on_errors():
        opened = [by_name[name] for name, _ in files.open_each(by_name)]
        files.refuse_nothing()
        checkpoint = _build_checkpoint(probe, opened, files, shards)
        return replace(checkpoint, account=checkpoint.account.after(files.notices))


def _open_shard(probe: Probe, shard: Shard, limits: Limits) -> Checkpoint:
    """Read one file, as safetensors. Raises CkptError."""
    location = probe.location.child(shard.name, "cache")
    mark = f"{probe.mark}{shard.name}:"
    inner = Probe(location, limits, probe.open, mark, probe.budget, probe.partial)
    try:
        if inner.is_folder or not safetensors.is_usual(inner.head):
            raise UnreadableError("not a safetensors file")
        return safetensors.read(inner, limits)
    except BaseException as error:
        inner.close()
        if isinstance(error, CkptError) and error.path is None:
            error.path = location.name
        raise


def _build_checkpoint(
    probe: Probe,
    shards: Sequence[Shard],
    files: CheckpointFiles,
    every: Sequence[Shard],
) -> Checkpoint:
    """The checkpoint of the files of `shards`; `every` has those too that were not
    read.
    """
    pieces: dict[str, list[_Piece]] = {}
    cut: dict[str, str] = {}
    texts: dict[str, str] = {}
    for shard, file in zip(shards, files.files.values(), strict=True):
        # Each file says where its own parts begin in the whole.
        metadata = metadata_of(file.root)
        offsets = _read_offsets(shard.name, metadata, probe.budget)
        gone = files.cut_in(shard.name)
        cut |= {
            name: f"{show(shard.name, 80)} is cut off in {show(name, 80)}"
            for name in gone
        }
        for name in gone:
            offsets.pop(name, None)
        for entry in file.tensors:
            assert isinstance(entry.tensor, TensorRef)
            if entry.name in gone:
                continue
            begin = offsets.pop(entry.name, None)
            what = f"{show(shard.name, 80)}: {SHARDING} of {show(entry.name, 80)}"
            # Without its offsets a part could lie anywhere.
            if begin is None:
                raise UnreadableError(f"{what} is missing")
            if len(begin) != len(entry.tensor.shape):
                raise UnreadableError(
                    f"{what}: {len(begin)} offsets for {len(entry.tensor.shape)} "
                    "dimensions"
                )
            pieces.setdefault(entry.name, []).append(
                _Piece(begin, entry.tensor, shard.name)
            )
        if offsets:
            raise UnreadableError(
                f"{show(shard.name, 80)}: {SHARDING} names "
                f"{show(next(iter(offsets)), 80)}, which is not in the file"
            )
        # Other entries of the metadata are values; the first file that has one gives
        # it.
        for key, text in metadata.items():
            if key not in (SHARDING, VERSION):
                texts.setdefault(key, text)
    notices = [*_gap_notices(every)]
    # Files whose names show gaps may hold the rest of any tensor.
    are_missing = len(shards) < len(every) or any(
        row.code == "incomplete" for row in notices
    )
    # A checkpoint of one rank has all parts at the beginning.
    is_sharded = any(any(piece.offsets) for rows in pieces.values() for piece in rows)
    doubtful: list[tuple[str, str]] = []
    holes: list[tuple[str, str]] = []
    twice: list[tuple[str, str]] = []
    entries: list[Entry] = []
    names = sorted(pieces, key=natural_sort_key)
    wholes = [_shape_and_dtype(name, pieces[name]) for name in names]
    defects: list[Fault | None] = []
    for name, (shape, _) in zip(names, wholes, strict=True):
        boxes = [(piece.offsets, piece.tensor.shape) for piece in pieces[name]]
        defects.append(find_fault(shape, boxes))
    # A hole shows that a file is missing, whatever the names say.
    are_missing |= any(
        defect is not None and defect.kind == "hole" for defect in defects
    )
    may_go_on = probe.partial and are_missing and is_sharded
    for name, (shape, dtype), defect in zip(names, wholes, defects, strict=True):
        problem = None
        if defect is not None and defect.kind == "hole":
            problem = f"{show(name, 80)} lacks {defect.where}: no file holds it"
            holes.append((name, f"{show(name, 80)} lacks {defect.where}"))
        elif defect is not None:
            part = f"{defect.where} of " if shape else ""
            problem = f"two files hold {part}{show(name, 80)}"
            twice.append((name, problem))
        elif name in cut:
            problem = cut[name]
        elif may_go_on and not _is_end_known(pieces[name]):
            problem = f"{show(name, 80)} may go on in a file that is missing"
            doubtful.append((name, problem))
        ref = _tensor_of_pieces(probe.mark + name, dtype, shape, pieces[name], problem)
        entries.append(Entry((name,), name, ref))
    root = dict_of((entry.name, entry.tensor) for entry in entries)
    if texts:
        root.set([METADATA], [metadata_node(texts)])
    notices += [
        *_hole_notices(holes),
        *_hole_notices([*cut.items()]),
        *_hole_notices(doubtful),
        *_overlap_notices(twice),
    ]
    notices.append(_unverified_notice(shards))
    return Checkpoint(
        path=probe.path,
        format=FORMAT.name,
        traits=FORMAT.traits,
        nbytes=files.nbytes,
        root=root,
        tensors=tuple(entries),
        storages=tuple(
            entry.tensor.storage
            for entry in entries
            if isinstance(entry.tensor, TensorRef)
        ),
        values=tuple(
            Value((METADATA, key), f"{METADATA}.{key}", "str", text)
            for key, text in texts.items()
        ),
        account=Account(tuple(notices)),
        parts=tuple(shard.name for shard in shards),
        sources=files.sources,
    )


def _read_offsets(
    file: str, metadata: dict[str, str], budget: Budget
) -> dict[str, tuple[int, ...]]:
    """Return the offsets of a file's tensors, by name. Raises UnreadableError if its
    metadata lacks them.
    """
    what = show(file, 80)
    version = metadata.get(VERSION)
    if version is None or SHARDING not in metadata:
        raise UnreadableError(
            f"{what} has no {VERSION if version is None else SHARDING} in its metadata"
        )
    if version != _KNOWN:
        raise UnreadableError(
            f"{what} has {VERSION} {show(version, 40)}, ckpt reads {_KNOWN}"
        )
    # JSON inside of a text of the header.
    table = parse_json(metadata[SHARDING].encode(), f"{SHARDING} of {what}", budget)
    if not isinstance(table, dict):
        raise UnreadableError(f"{what}: {SHARDING} is not an object")
    return {
        name: _saved_offsets(row, f"{what}: {SHARDING} of {show(name, 80)}")
        for name, row in table.items()
    }


def _saved_offsets(row: Json, what: str) -> tuple[int, ...]:
    numbers = row.get("saved_offsets") if isinstance(row, dict) else None
    if not isinstance(numbers, list):
        raise UnreadableError(f"{what} has no list saved_offsets")
    offsets: list[int] = []
    for number in numbers:
        if type(number) is not int or not 0 <= number < _TOO_MANY:
            raise UnreadableError(f"{what}: saved_offsets are not whole numbers")
        offsets.append(number)
    return tuple(offsets)


def _shape_and_dtype(
    name: str, pieces: Sequence[_Piece]
) -> tuple[tuple[int, ...], DType]:
    """Return the shape that the parts reach to, and their dtype. Raises UnreadableError
    if they disagree.
    """
    # The same type and number of dimensions, whichever file comes first.
    first = pieces[0]
    for piece in pieces:
        tensor, other = first.tensor, piece.tensor
        if (tensor.dtype, len(tensor.shape)) != (other.dtype, len(other.shape)):
            files = f"{show(first.file, 80)} and {show(piece.file, 80)}"
            raise UnreadableError(
                f"{files} disagree on the dtype or the dimensions of {show(name, 80)}"
            )
    # [end in each dimension] of each part.
    ends = [
        [
            begin + size
            for begin, size in zip(piece.offsets, piece.tensor.shape, strict=True)
        ]
        for piece in pieces
    ]
    shape = tuple(map(max, zip(*ends, strict=True)))
    # Bits, so that packed types are counted right.
    volume = first.tensor.dtype.bits
    for size in shape:
        volume *= size
    if volume >= _TOO_MANY:
        raise UnreadableError(f"the parts of {show(name, 80)} reach too far")
    return shape, first.tensor.dtype


def _is_end_known(pieces: Sequence[_Piece]) -> bool:
    """Tell whether the parts show that the tensor ends with them: its last part is
    shorter than the one before.

    A sharded dimension has parts of one size, and only the last one may be shorter
    (torch.chunk). A number has no dimension to go on in.
    """
    first = pieces[0]
    if not first.offsets:
        return True
    # Dimensions along which the parts begin at different indices.
    along = [
        dim
        for dim in range(len(first.offsets))
        if any(piece.offsets[dim] for piece in pieces)
    ]
    for dim in along:
        sizes = dict(
            sorted((piece.offsets[dim], piece.tensor.shape[dim]) for piece in pieces)
        )
        *before, last = sizes.values()
        if not before or last >= before[-1]:
            return False
    return bool(along)


def _tensor_of_pieces(
    id: str,
    dtype: DType,
    shape: tuple[int, ...],
    pieces: Sequence[_Piece],
    problem: str | None,
) -> TensorRef:
    boxes = [Box(piece.offsets, piece.tensor.shape, piece.tensor) for piece in pieces]
    sources = dict.fromkeys(
        chain.from_iterable(piece.tensor.storage.list_sources() for piece in pieces)
    )
    place = Boxes(dtype, shape, lambda: boxes, tuple(sources), problem, grid_of(boxes))
    return tensor_ref(
        Storage(id, None, dtype, place.nbytes, place),
        dtype,
        shape,
        contiguous(shape),
        0,
    )


def _gap_notices(shards: Sequence[Shard]) -> Iterator[Notice]:
    """Numbers that no file has, and files that count differently."""
    ranks = {shard.rank for shard in shards}
    counts = {shard.files for shard in shards}
    if len(counts) > 1:
        text = " and ".join(f"-of-{count:05}" for count in sorted(counts)[:3])
        yield Notice(
            "overlap", f"the files of several saves are mixed: some names end in {text}"
        )
    for what, have, last in (
        ("shard", ranks, max(ranks)),
        ("model", {shard.number for shard in shards}, max(counts)),
    ):
        # A few of the numbers that no file has, and how many there are.
        gone = last - len(have)
        if gone > 0:
            numbers = range(1, min(last, len(have) + _LISTED) + 1)
            missing = [number for number in numbers if number not in have][:_LISTED]
            listed = and_more(
                [f"{what}-{number:05}" for number in missing], _LISTED, total=gone
            )
            yield Notice(
                "incomplete", f"no file of {listed}: the names go to {what}-{last:05}"
            )


def _hole_notices(holes: Sequence[tuple[str, str]]) -> Iterator[Notice]:
    """Tensors with elements that no file holds, in one notice."""
    if not holes:
        return
    more = ""
    if len(holes) > 1:
        more = f", and {counted_noun(len(holes) - 1, 'more tensor')} lack parts too"
    why = holes[0][1]
    if " lacks " in why:
        why = f"{why}: no file holds it"
    yield Notice("incomplete", f"{why}{more}", tuple(name for name, _ in holes))


def _overlap_notices(twice: Sequence[tuple[str, str]]) -> Iterator[Notice]:
    """Tensors with elements in two files, in one notice. Each part is written once, so
    one file is of another save.
    """
    if not twice:
        return
    more = ""
    if len(twice) > 1:
        more = f", and {counted_noun(len(twice) - 1, 'more tensor')}"
    text = (
        f"{twice[0][1]}{more}: a save with fewer ranks may have left files of an "
        "older one"
    )
    yield Notice("overlap", text, tuple(name for name, _ in twice))


def _unverified_notice(shards: Sequence[Shard]) -> Notice:
    last = max(shard.rank for shard in shards)
    return Notice(
        "unverified-size",
        (
            f"no file records the sizes of the tensors: files after shard-{last:05} "
            "would not be missed"
        ),
    )


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Progress | None,
    check: Check,
) -> ChecksumReport:
    names = [file.name for file in shards_in(probe.location.names())]
    return check_files(
        names,
        lambda name: check(probe.location.child(name, "cache"), f"{probe.mark}{name}:"),
    )


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    files = shards_in(probe.location.names())
    rows: list[RecordedFile] = []
    for file in files:
        rows += inner(probe.location.child(file.name, "cache"), file.name)
    return rows
