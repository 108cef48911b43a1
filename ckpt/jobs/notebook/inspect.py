"""A report of `ckpt.inspect` as HTML for a notebook: what it is, its findings, where the bytes are, its tree."""

from __future__ import annotations

from functools import partial

from ckpt.checkpoint import Checkpoint
from ckpt.errors import CkptError
from ckpt.evidence.survey import Survey
from ckpt.jobs.inspect.inspect import InspectReport, inspect
from ckpt.jobs.notebook.markup import code, findings, folded, legend, outline, page, table
from ckpt.jobs.notebook.treemap import Tile, tree, treemap
from ckpt.render.palette import kinds
from ckpt.tensors import Tensor
from ckpt.text import plural, show, size_text

ROWS = 40
"""Tensors that are shown."""


def _about(tensor: Tensor) -> str:
    """`float32 [10, 8] cuda:0, 320 B`."""
    device = f" {show(tensor.device, 40)}" if tensor.device else ""
    return f"{tensor.dtype.name} {list(tensor.shape)}{device}, {size_text(tensor.nbytes)}"


def html_checkpoint(checkpoint: Checkpoint, report: InspectReport | None = None) -> str | None:
    """As `html_report`, of a report or of an open checkpoint; None where that cannot be read any more."""
    try:
        return html_report(report or inspect(Survey(checkpoint)))
    except CkptError:
        return None


def html_report(report: InspectReport) -> str:
    """A headline, the findings, a treemap whose areas are bytes and whose colours are dtypes, the tree, and a table."""
    checkpoint, rows = report.checkpoint, report.rows
    weights: dict[str, int] = {}
    for row in rows:
        weights[row.tensor.dtype.name] = weights.get(row.tensor.dtype.name, 0) + row.tensor.nbytes
    head = f"{checkpoint.traits.label}, {plural(len(rows), 'tensor')}, {size_text(sum(weights.values()))}"
    root = tree(
        Tile(row.entry.name, row.tensor.nbytes, row.tensor.dtype.name, partial(_about, row.tensor))
        for row in rows
    )
    colours = kinds(weights)
    picture = treemap(root, colours)
    tensors = [
        (
            row.entry.name,
            row.tensor.dtype.name,
            str(list(row.tensor.shape)),
            row.tensor.device or "",
            size_text(row.tensor.nbytes),
        )
        for row in rows[:ROWS]
    ]
    more = f"… {len(rows) - ROWS:,} more" if len(rows) > ROWS else ""
    listed = table(("name", "dtype", "shape", "device", "size"), tensors) + more
    return page(
        [
            f"<b>{code(checkpoint.path, 200)}</b> {code(head)}",
            findings(report.findings),
            picture,
            legend(weights, colours) if picture else "",
            outline(root),
            folded("tensors", listed),
        ]
    )
