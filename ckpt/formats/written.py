"""What a written file is held against before it takes its place: the plan, the bytes, torch's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckpt.checkpoint import Checkpoint, Storage, TensorRef, Value, parts_of
from ckpt.elements.blocks import blocks, elements, little, same_bytes
from ckpt.errors import CkptError, WriteError
from ckpt.formats import open
from ckpt.formats.safetensors import write as safetensors
from ckpt.limits import Limits
from ckpt.names import show
from ckpt.tree.metadata import aliases
from ckpt.tree.view import look

Check = Callable[[str, Checkpoint], None]
"""A check of a file that is written and not yet in place: its path, and what was planned. Raises CkptError."""


def check_structure(format: str, limits: Limits) -> Check:
    """The check that our own reader finds in a file what was planned."""

    def check(path: str, planned: Checkpoint) -> None:
        try:
            with open(path, limits) as written:
                if format == safetensors.NAME:
                    _compare_tensors(planned, written)
                    safetensors.check_by_library(path)
                else:
                    compare(planned, written)
        except CkptError as error:
            if isinstance(error, WriteError):
                raise
            raise _other(f"it reads as: {error.problem}") from None

    return check


def check_weights_only(path: str, planned: Checkpoint) -> None:
    """Raise WriteError unless torch.load(weights_only=True) takes a written file."""
    with open(path) as written:
        if written.weights_only or written.not_loadable:
            reasons = [refusal.reason for refusal in written.weights_only or ()]
            raise _other(f"weights_only refuses {', '.join(reasons[:3]) or written.not_loadable}")


def check_bytes(path: str, planned: Checkpoint) -> None:
    """Read all data of a written file and compare it with its source. Raises WriteError."""
    with open(path) as written:
        if written.format == safetensors.NAME:
            _compare_elements(planned, written)
            return
        seen: set[int] = set()
        for entry, other in zip(planned.tensors, written.tensors, strict=True):
            for one, two in zip(parts_of(entry.tensor), parts_of(other.tensor), strict=True):
                if id(one.storage) in seen or one.storage.place is None:
                    continue
                seen.add(id(one.storage))
                if not same_bytes(_bytes(one.storage), _bytes(two.storage)):
                    raise _other(f"the bytes of {show(entry.name, 80)} are not those of the source")


def _compare_elements(planned: Checkpoint, written: Checkpoint) -> None:
    known = {entry.name: entry.tensor for entry in written.tensors}
    others = aliases(written)
    for entry in planned.tensors:
        other = known[others.get(entry.name, entry.name)]
        assert isinstance(entry.tensor, TensorRef) and isinstance(other, TensorRef)
        if not same_bytes(elements(entry.tensor), elements(other)):
            raise _other(f"the bytes of {show(entry.name, 80)} are not those of the source")


def _bytes(storage: Storage) -> Iterator[bytes]:
    place = little(storage).place
    assert place is not None
    return blocks(place, 0, storage.nbytes)


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written pickle holds the tensors, the sharing and the values that were planned."""
    if len(planned.tensors) != len(written.tensors):
        raise _other(f"{len(written.tensors):,} tensors, {len(planned.tensors):,} were planned")
    ours: dict[int, int] = {}
    theirs: dict[int, int] = {}
    for one, two in zip(planned.tensors, written.tensors, strict=True):
        if (one.name, one.path) != (two.name, two.path):
            raise _other(f"{show(two.name, 80)} where {show(one.name, 80)} was planned")
        for mine, other in zip(parts_of(one.tensor), parts_of(two.tensor), strict=True):
            same = (
                mine._replace(storage=other.storage, requires_grad=bool(mine.requires_grad))[:]
                == (other._replace(requires_grad=bool(other.requires_grad))[:])
            )
            same = same and mine.device in (other.device, None)
            same = same and mine.storage.nbytes == other.storage.nbytes
            same = same and ours.setdefault(id(mine.storage), len(ours)) == theirs.setdefault(
                id(other.storage), len(theirs)
            )
            if not same:
                raise _other(f"tensor {show(one.name, 80)} differs")
    if len(planned.values) != len(written.values):
        raise _other(f"{len(written.values):,} values, {len(planned.values):,} were planned")
    for before, after in zip(planned.values, written.values, strict=True):
        if not _same_value(before, after):
            raise _other(f"value {show(before.name, 80)} differs")


def _compare_tensors(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written safetensors file holds the tensors that were planned, or their aliases."""
    found = {entry.name: entry.tensor for entry in written.tensors}
    others = aliases(written)
    for entry in planned.tensors:
        other = found.get(others.get(entry.name, entry.name))
        if other is None or (other.dtype, other.shape) != (entry.tensor.dtype, entry.tensor.shape):
            raise _other(f"tensor {show(entry.name, 80)} differs")
    extra = found.keys() - {entry.name for entry in planned.tensors}
    if extra:
        raise _other(f"{show(min(extra), 80)} was not planned")


def _same_value(one: Value, two: Value) -> bool:
    if (one.path, one.fields, one.same_as) != (two.path, two.fields, two.same_as):
        return False
    mine, other = look(one.node), look(two.node)
    if mine.kind != other.kind:
        return False
    if mine.kind == "scalar":
        return type(mine.value) is type(other.value) and (
            mine.value == other.value or mine.value != mine.value
        )
    return len(mine.children) == len(other.children)


def _other(what: str) -> WriteError:
    return WriteError(
        f"what was written is not what was planned, and was not kept: {what}", hint="a bug in ckpt"
    )
