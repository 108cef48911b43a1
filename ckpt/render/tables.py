"""The views of `ckpt inspect` as rows of text: tensors, storages, values, imports. The first row is the header.

Every form that is a table is made of these: `--tsv`, `--table`, aligned columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.checkpoint import Value
from ckpt.evidence.roles import Role
from ckpt.jobs.inspect.inspect import InspectReport, Row
from ckpt.text import plural, show, show_literal
from ckpt.tree.literals import BRACKETS, scalar_text
from ckpt.tree.view import look


def tensor_table(report: InspectReport) -> list[list[str]]:
    """One tensor a row, exact: the columns of `--tsv` and `--table`."""
    return row_table(report.rows, report.roles())


def row_table(selected: Sequence[Row], roles: Sequence[Role]) -> list[list[str]]:
    """The rows of some tensors, below their header."""
    rows = [["name", "dtype", "shape", "device", "bytes", "role", "storage"]]
    for row, role in zip(selected, roles, strict=True):
        tensor = row.tensor
        shape = "x".join(map(str, tensor.shape)) if tensor.shape else "()"
        parts = dict.fromkeys(part.storage.id for _, part in tensor.parts)
        storage = ",".join(parts) if tensor.parts else tensor.storage.id if hasattr(tensor, "storage") else ""
        rows.append(
            [
                show(row.entry.name, None),
                tensor.dtype.name,
                shape,
                show(tensor.device or "", None),
                str(tensor.nbytes),
                role.role,
                show(storage, None),
            ]
        )
    return rows


def storage_table(report: InspectReport) -> list[list[str]]:
    """One storage a row: the view `--storages`."""
    rows = [["storage", "device", "bytes", "used", "kind", "tensors"]]
    for row in report.storages:
        rows.append(
            [
                show(row.storage.id, None),
                show(row.storage.device or "", None),
                str(row.storage.nbytes),
                str(row.used),
                row.kind,
                show(" ".join(row.tensors), None),
            ]
        )
    return rows


def value_table(report: InspectReport) -> list[list[str]]:
    """One value a row: the view `--values`."""
    rows = [["name", "type", "value"]]
    for value in report.values:
        text = "" if value.fields is not None else value_text(value, 200)
        kind = f"{value.type}, {plural(value.fields, 'field')}" if value.fields is not None else value.type
        rows.append([show(value.name or "(the root)", None), show(kind, None), text])
    return rows


def import_table(report: InspectReport) -> list[list[str]]:
    """One imported name a row, the called ones first, then what else weights_only refuses: the view `--imports`."""
    checkpoint = report.checkpoint
    refused = {refusal.reason: refusal.where for refusal in checkpoint.weights_only or ()}
    rank = {"called": 0, "unknown": 1, "known": 2}
    rows = [["group", "name", "weights_only", "where", "calls"]]
    for row in sorted(checkpoint.imports, key=lambda row: rank[row.group]):
        name = f"{row.module}.{row.name}"
        verdict = "refused" if refused.pop(name, None) is not None else ""
        calls = row.calls[0] if row.calls else ""
        if len(row.calls) > 1:
            calls += f", and {len(row.calls) - 1:,} more"
        rows.append([row.group, show(name, None), verdict, _listed(row.where), show(calls, None)])
    rows += [["", show(reason, None), "refused", _listed(where), ""] for reason, where in refused.items()]
    return rows


def _listed(places: Sequence[str]) -> str:
    more = f", and {len(places) - 3:,} more" if len(places) > 3 else ""
    return show(", ".join(place or "(the root)" for place in places[:3]) + more, None)


def value_text(value: Value, limit: int = 60) -> str:
    """A value in a few words: a scalar as Python writes it, a list by its length, an object by its class."""
    if value.same_as is not None:
        return f"{show(value.type, limit)}, same as {show(value.same_as, limit)}"
    if value.fields is not None:
        return f"{show(value.type, limit)}, {plural(value.fields, 'field')}"
    view = look(value.node)
    if view.kind == "scalar":
        return show_literal(scalar_text(view, limit))
    count = len(view.children)
    if view.kind == "object":
        return show(view.type, limit)
    looked = [look(child) for child in view.children[:7]]
    if view.kind == "sequence" and count <= 6 and all(child.kind == "scalar" for child in looked):
        inner = ", ".join(scalar_text(child, 16) for child in looked)
        opening, closing = BRACKETS.get(view.type, (f"{view.type}([", "])"))
        inner += "," if view.type == "tuple" and count == 1 else ""
        return show_literal(f"{opening}{inner}{closing}")
    if view.type.startswith("numpy.ndarray"):
        return show(view.type, limit)
    return f"{show(view.type, limit)}, {plural(count, 'item')}"
