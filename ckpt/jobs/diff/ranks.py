"""Files of two ranks: what each holds another part of, and what should be equal; and what only `--strict` counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from ckpt.findings import Finding
from ckpt.jobs.diff.rows import Row
from ckpt.pickles.sharded import is_flat
from ckpt.tensors import Composite, Tensor, TensorRef
from ckpt.text import folded, plural


def is_apart(row: Row) -> bool:
    """Whether one of the files holds a part of the tensor, and the other one another part, or all of it."""
    if row.before is None or row.after is None:
        return False
    one, two = row.before.tensor, row.after.tensor
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    parts = _part(one), _part(two)
    if parts == (None, None):
        return False
    return parts[0] != parts[1] or parts[0] == ""


def _part(tensor: Tensor) -> object:
    """What tells the parts of one tensor apart; None for a whole one, an empty text for a part of an unknown place."""
    if not isinstance(tensor, Composite):
        return None
    piece = tensor.piece
    if piece is not None and piece.is_cut:
        return "" if piece.place is None else (piece.mesh, piece.placements, piece.place)
    shards = tensor.shards
    if shards is not None and shards.offsets:
        sizes = tuple(part.shape for _, part in tensor.parts)
        return shards.world, shards.cut, shards.offsets, sizes
    if ".ShardedTensor" in (tensor.detail or ""):
        return tensor.detail, shards and shards.rank  # two ranks without a shard have nothing to compare
    return None


def are_pieces(rows: Iterable[Row]) -> bool:
    """Whether two files hold other parts of tensors, or the copies of two ranks."""
    rows = list(rows)
    return any(row.apart for row in rows) or ranks_of(rows) is not None


def ranks_of(rows: Iterable[Row]) -> tuple[int, int] | None:
    """The ranks of two files of one mesh; None for other files."""
    for row in rows:
        if row.before is None or row.after is None:
            continue
        one, two = _run(row.before.tensor), _run(row.after.tensor)
        if one is not None and two is not None and one[0] == two[0]:
            ranks = one[1], two[1]
            return None if None in ranks or ranks[0] == ranks[1] else cast("tuple[int, int]", ranks)
    return None


def findings(rows: Sequence[Row]) -> Iterable[Finding]:
    """Tensors that are no parts, and differ."""
    if any(_is_flat(row) for row in rows):
        return  # plain tensors beside flat parameters are slices of others (LOCAL_STATE_DICT of FSDP 1)
    ranks = ranks_of(rows)
    other = [row for row in rows if row.status in ("changed", "retyped", "reshaped") and not row.apart]
    if ranks is not None and other:
        text = f"{folded([row.label for row in other], limit=100)} ({plural(len(other), 'tensor')})"
        yield Finding(
            "ranks-differ",
            f"{text} differ{'s' if len(other) == 1 else ''} between rank {ranks[0]} and rank {ranks[1]}.",
            tuple(row.name for row in other),
            consequence="They are whole, or copies of one part: all ranks of one save should hold the same.",
        )


def _is_flat(row: Row) -> bool:
    return row.before is not None and is_flat(row.name.rpartition(".")[2], row.before.tensor)


def _run(tensor: Tensor) -> tuple[object, int | None] | None:
    """What the ranks of one run have in common, and the rank; None for what is no part of a tensor."""
    if not isinstance(tensor, Composite):
        return None
    if tensor.piece is not None:
        return (tensor.piece.mesh, tensor.piece.placements), tensor.piece.rank
    if tensor.shards is not None and tensor.shards.world is not None:
        return (tensor.shards.world, tensor.shards.cut), tensor.shards.rank
    return None


def strict_notes(rows: Iterable[Row]) -> list[str]:
    """Differences that do not count otherwise: devices, strides."""
    notes = []
    for row in rows:
        if row.before is not None and row.after is not None:
            one, two = row.before.tensor, row.after.tensor
            if one.device != two.device and None not in (one.device, two.device):
                notes.append(f"{row.label}: on {one.device}, then on {two.device}")
            elif isinstance(one, TensorRef) and isinstance(two, TensorRef) and one.stride != two.stride:
                notes.append(f"{row.label}: stride {list(one.stride)}, then {list(two.stride)}")
    return notes
