"""Writing a distributed checkpoint: data files with items of torch.save, and `.metadata`, which comes last."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements.blocks import elements, same_bytes
from ckpt.formats.dcp import METADATA
from ckpt.formats.dcp.writer.plan import flattened, plan
from ckpt.formats.dcp.writer.record import record
from ckpt.formats.draft import Draft
from ckpt.formats.written import differs, same_value
from ckpt.io.commit import Sink
from ckpt.io.folder import FolderSink
from ckpt.limits import Limits
from ckpt.nodes import Dict, tensor_of
from ckpt.tensors import Composite, Tensor, TensorRef, parts_of
from ckpt.text import show
from ckpt.tree.flat.leaves import Leaf, Parts
from ckpt.tree.view import look
from ckpt.tree.walk import Flat, flatten

_TWICE = "two values of one name"


def losses(checkpoint: Checkpoint) -> list[str]:
    """What the format cannot hold, one line each: a root that is no dict, names that occur twice, sparse tensors."""
    if look(checkpoint.root).kind != "mapping":
        return ["a root that is not a dict"]
    parts = flattened(checkpoint, Limits())
    lost = [f"{show(name, 80)} (a key that is no text)" for name in parts.odd]
    seen: set[str] = set()
    for name, _, node in parts.leaves:
        tensor = tensor_of(node)
        why = _TWICE if name in seen else None if tensor is None else _unfit(tensor)
        if why:
            lost.append(f"{show(name, 80)} ({why})")
        seen.add(name)
    return lost


def unfit(entry: Entry) -> str | None:
    """Why the format cannot hold a tensor; None when it can."""
    return _unfit(entry.tensor)


def _unfit(tensor: Tensor) -> str | None:
    if isinstance(tensor, Composite):
        return tensor.layout
    return "on meta, without data" if tensor.storage.place is None else None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The folder of a checkpoint that has no losses, for a `FolderSink`. Raises CkptError."""
    made = plan(checkpoint, limits)
    metadata = record(made.rows, limits, is_flattened=made.is_flattened)

    def write(sink: Sink) -> None:
        assert isinstance(sink, FolderSink)
        for name, source in made.whole:
            if made.link:
                sink.link(name, source)
            else:
                sink.clone(name, source)
        for file in made.files:
            with sink.file(file.name, file.size) as inner:
                file.write(inner)
        with sink.file(METADATA, len(metadata)) as inner:
            inner.write(metadata)

    return Draft(made.data_bytes + len(metadata), write)


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written folder has the tensors and the values of the plan, and nothing is missing."""
    for notice in written.notices:
        if notice.code in ("incomplete", "overlap"):
            raise differs(notice.message)
    for one, two in _pairs(planned, written):
        tensor, other = tensor_of(one.node), tensor_of(two.node)
        if tensor is not None or other is not None:
            if tensor is None or other is None or (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
                raise differs(f"tensor {show(one.name, 80)} differs")
            continue
        mine, theirs = _flat(one), _flat(two)
        same = len(mine.values) == len(theirs.values) and all(map(same_value, mine.values, theirs.values))
        shapes = [
            [(entry.path, entry.tensor.dtype, entry.tensor.shape) for entry in flat.tensors]
            for flat in (mine, theirs)
        ]
        if not same or shapes[0] != shapes[1]:
            raise differs(f"value {show(one.name, 80)} differs")


def compare_bytes(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless every element in a written folder equals its source."""
    for one, two in _pairs(planned, written):
        if not same_bytes(_bytes(one), _bytes(two)):
            raise differs(f"the bytes of {show(one.name, 80)} differ from the source")


def _pairs(planned: Checkpoint, written: Checkpoint) -> Iterator[tuple[Leaf, Leaf]]:
    """Each leaf of the plan with the written one. Raises WriteError where their names differ."""
    limits = Limits()
    ours: Parts = flattened(planned, limits)
    theirs: Parts = flattened(written, limits)
    if len(ours.leaves) != len(theirs.leaves):
        raise differs(f"{len(theirs.leaves):,} items instead of {len(ours.leaves):,}")
    for one, two in zip(ours.leaves, theirs.leaves, strict=True):
        if one[:2] != two[:2]:
            raise differs(f"{show(two.name, 80)} instead of {show(one.name, 80)}")
        yield one, two


def _flat(leaf: Leaf) -> Flat:
    """The tensors and values inside of an object."""
    root = Dict()
    root.set([leaf.name], [leaf.node])
    return flatten(root, Limits())


def _bytes(leaf: Leaf) -> Iterator[bytes]:
    """The elements of a tensor, or of all tensors in an object."""
    tensor = tensor_of(leaf.node)
    found: list[Tensor] = [entry.tensor for entry in _flat(leaf).tensors] if tensor is None else [tensor]
    parts: list[TensorRef] = [part for each in found for part in parts_of(each)]
    return chain.from_iterable(elements(part) for part in parts)
