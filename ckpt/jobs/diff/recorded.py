"""Comparing two tensors by the checksums that their files recorded. Nothing here reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.checkpoint import Entry
from ckpt.elements.compare import Change, compare_all, plan
from ckpt.errors import UnsupportedError
from ckpt.io.executor import Failed, Threads
from ckpt.jobs.diff.ranks import is_apart
from ckpt.jobs.diff.rows import Row, Status
from ckpt.tensors import Range, Storage, Tensor, TensorRef, parts_of
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.jobs.diff.diff import Options


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


def shape_status(before: Entry, after: Entry) -> Status:
    """What shapes and dtypes say of two tensors."""
    if before.tensor.shape != after.tensor.shape or before.tensor.layout != after.tensor.layout:
        return "reshaped"
    return "retyped" if before.tensor.dtype != after.tensor.dtype else "same"


def compared(rows: list[Row], options: Options, path: str) -> list[Row]:
    """The rows with what differs in the values of those of one shape; `path` is that of the file after."""
    if options.structure:
        return rows
    rows = [row._replace(status="unchecked", apart=True) if is_apart(row) else row for row in rows]
    if options.quick:
        return [_recorded(row) for row in rows]

    plans = {}
    for index, row in enumerate(rows):
        if row.before is None or row.after is None or row.status in ("reshaped", "unchecked"):
            continue
        try:
            plans[index] = plan(
                row.before.tensor,
                row.after.tensor,
                options.tolerance,
                always=options.norms,
                histogram=options.histogram,
            )
        except UnsupportedError as error:
            problem = f"{show(row.name, 80)}: {error.problem}"
            raise UnsupportedError(problem, path=path, hint=error.hint) from None
    executor = options.executor or Threads()
    changes = compare_all(list(plans.values()), executor, options.progress, once=options.once)
    found = dict(zip(plans, changes, strict=True))
    return [_with_change(row, found[index]) if index in found else row for index, row in enumerate(rows)]


def _with_change(row: Row, change: Change | Failed | None) -> Row:
    """A row of two tensors of one shape, with what differs in their values."""
    assert row.before is not None and row.after is not None
    if isinstance(change, Failed):
        status: Status = "unchecked" if row.status == "same" else row.status
        return row._replace(status=status, unread=change.problem)
    same = change is None or not (change.differing or change.other_bytes)
    damaged = row.status == "same" and contradicted(row.before.tensor, row.after.tensor, same=same)
    is_close = change is not None and change.close
    status = "changed" if row.status == "same" and not same and not is_close else row.status
    return row._replace(status=status, change=change, damaged=damaged)


def _recorded(row: Row) -> Row:
    """A row by the recorded CRCs alone."""
    if row.status != "same" or row.before is None or row.after is None:
        return row
    same = recorded_same(row.before.tensor, row.after.tensor)
    return row if same else row._replace(status="unchecked" if same is None else "changed")
