"""What differs in the values of two tensors of one shape: by their bytes, or by the checksums of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.checkpoint import Entry
from ckpt.elements.compare import Change, compare_all, plan
from ckpt.errors import UnsupportedError
from ckpt.io.executor import Failed, Threads
from ckpt.jobs.diff.ranks import is_apart
from ckpt.jobs.diff.recorded import contradicted, recorded_same
from ckpt.jobs.diff.rows import Row, Status
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.jobs.diff.diff import Options


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
