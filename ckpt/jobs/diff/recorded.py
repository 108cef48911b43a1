"""Comparing two tensors by the checksums that their files recorded. Nothing here reads."""

from __future__ import annotations

from ckpt.tensors import Range, Storage, Tensor, TensorRef, parts_of


def recorded_same(before: Tensor, after: Tensor) -> bool | None:
    """Whether two tensors of one shape and dtype are the same by their recorded CRCs; None if the CRCs cannot say.

    Reads nothing. A CRC covers a whole storage, so both tensors must be the same view of their storages.
    """
    answers = [_recorded_same(one, two) for one, two in zip(parts_of(before), parts_of(after), strict=False)]
    if len(parts_of(before)) != len(parts_of(after)) or None in answers:
        return None
    return all(answers)


def _recorded_same(one: TensorRef, two: TensorRef) -> bool | None:
    if not one.numel:
        return True
    alike = _view(one) == _view(two) and one.storage.nbytes == two.storage.nbytes
    if not alike or one.storage.crc is None or two.storage.crc is None:
        return None
    if one.storage.crc == two.storage.crc:
        return True
    return False if _whole(one) else None


def contradicted(before: Tensor, after: Tensor, *, same: bool) -> bool:
    """Whether the recorded CRCs contradict the comparison of the bytes. Then one of the files is damaged."""
    for one, two in zip(parts_of(before), parts_of(after), strict=False):
        recorded = _recorded_same(one, two) if _whole(one) and one.numel else None
        if recorded is not None and recorded != same and (same or len(parts_of(before)) == 1):
            return True
    return False


def _view(ref: TensorRef) -> tuple[object, ...]:
    place = ref.storage.place
    big = isinstance(place, Range) and place.big
    return ref.geometry, big


def _whole(ref: TensorRef) -> bool:
    """Whether a tensor covers its whole storage, and the storage its whole record."""
    return ref.extent == (0, ref.storage.nbytes) and ref.nbytes == ref.storage.nbytes and _is_all(ref.storage)


def _is_all(storage: Storage) -> bool:
    place = storage.place
    return isinstance(place, Range) and storage.nbytes == (
        place.size if place.inflated is None else place.inflated
    )
