"""Comparing a written pickle with the plan, and with the bytes of its source, before it takes its place."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.checkpoint import Checkpoint, Value
from ckpt.elements.blocks import blocks, little, same_bytes
from ckpt.errors import WriteError
from ckpt.tensors import Storage, parts_of
from ckpt.text import show
from ckpt.tree.view import look


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written pickle has the tensors, the sharing and the values of the plan."""
    if len(planned.tensors) != len(written.tensors):
        raise differs(f"{len(written.tensors):,} tensors instead of {len(planned.tensors):,}")
    ours: dict[Storage, int] = {}
    theirs: dict[Storage, int] = {}
    for one, two in zip(planned.tensors, written.tensors, strict=True):
        if (one.name, one.path) != (two.name, two.path):
            raise differs(f"{show(two.name, 80)} instead of {show(one.name, 80)}")
        for mine, other in zip(parts_of(one.tensor), parts_of(two.tensor), strict=True):
            same = (
                mine._replace(storage=other.storage, requires_grad=bool(mine.requires_grad))[:]
                == (other._replace(requires_grad=bool(other.requires_grad))[:])
            )
            same = same and mine.device in (other.device, None)
            same = same and mine.storage.nbytes == other.storage.nbytes
            same = same and ours.setdefault(mine.storage, len(ours)) == theirs.setdefault(
                other.storage, len(theirs)
            )
            if not same:
                raise differs(f"tensor {show(one.name, 80)} differs")
    if len(planned.values) != len(written.values):
        raise differs(f"{len(written.values):,} values instead of {len(planned.values):,}")
    for before, after in zip(planned.values, written.values, strict=True):
        if not same_value(before, after):
            raise differs(f"value {show(before.name, 80)} differs")


def compare_bytes(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless every byte of a storage in a written pickle equals its source."""
    seen: set[Storage] = set()
    for entry, other in zip(planned.tensors, written.tensors, strict=True):
        for one, two in zip(parts_of(entry.tensor), parts_of(other.tensor), strict=True):
            if one.storage in seen or one.storage.place is None:
                continue
            seen.add(one.storage)
            if not same_bytes(_bytes(one.storage), _bytes(two.storage)):
                raise differs(f"the bytes of {show(entry.name, 80)} differ from the source")


def _bytes(storage: Storage) -> Iterator[bytes]:
    place = little(storage).place
    assert place is not None
    return blocks(place, 0, storage.nbytes)


def same_value(one: Value, two: Value) -> bool:
    """Whether two values have one path and one content."""
    if (one.path, one.fields, one.same_as) != (two.path, two.fields, two.same_as):
        return False
    mine, other = look(one.node), look(two.node)
    if mine.kind != other.kind:
        return False
    if mine.kind == "scalar":
        alike = mine.type == other.type and _kind(mine.value) is _kind(other.value)
        return alike and (mine.value == other.value or mine.value != mine.value)
    return len(mine.children) == len(other.children)


def _kind(value: object) -> type:
    """The type of a scalar. A bytearray may be written as a call, whose value reads as bytes."""
    return bytes if type(value) is bytearray else type(value)


def differs(what: str) -> WriteError:
    """The error for a written file that differs from the plan."""
    return WriteError(
        f"the written file differs from the plan and was not kept: {what}", hint="a bug in ckpt"
    )
