"""The document `ckpt.diff`: what a comparison found, as docs/json.md describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.commands.diff.rows import STATUSES, Module, Row, ValueRow, modules
from ckpt.elements.compare import Change
from ckpt.model.text import Json
from ckpt.surface.reports import document_head
from ckpt.tree.json import number_json, plain

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport


def document(report: DiffReport) -> dict[str, Json]:
    """The report as JSON."""
    roles = dict.fromkeys(row.role.role for row in report.rows)
    return {
        **document_head("ckpt.diff", 1),
        "before": {"path": report.before.path, "format": report.before.format},
        "after": {"path": report.after.path, "format": report.after.format},
        "same": report.same,
        "structure_only": report.options.structure,
        "quick": report.options.quick,
        "damaged": list(report.damaged),
        "sections": [
            {
                "before": pair.before.name,
                "after": pair.after.name,
                "kind": pair.after.kind,
                "prefixes": list(pair.prefixes),
            }
            for pair in report.pairs
        ],
        "not_compared": [*report.not_compared, *report.unjoined, *report.lost],
        "totals": {
            **{status: report.count(status) for status in STATUSES},
            "roles": {
                role: {
                    status: count
                    for status in STATUSES
                    if (count := report.count(status, role))
                }
                for role in roles
            },
        },
        "renames": [
            # First the rules, which rename many tensors each, then single tensors.
            *(rename.to_json() for pair in report.pairs for rename in pair.renames),
            *(
                {"from": row.before.name, "to": row.after.name, "count": 1}
                for row in report.rows
                if row.status == "renamed"
                and row.before is not None
                and row.after is not None
            ),
        ],
        "suggested": [each.suggestion() for each in report.suggested],
        "tensors": [_row_json(row) for row in report.rows],
        **(
            {"modules": [_module_json(row) for row in modules(report.rows)]}
            if report.options.norms
            else {}
        ),
        "tied": [
            {
                "before": row.name if row.is_before else None,
                "after": None if row.is_before else row.name,
                "of": row.of,
            }
            for row in report.tied
        ],
        "values": [_value_json(row) for row in report.values],
        "findings": [finding.to_json() for finding in report.findings],
        "notes": list(report.notes),
        **({} if report.account is None else report.account.to_json()),
    }


def _row_json(row: Row) -> dict[str, Json]:
    sides = [
        None if entry is None else entry.tensor for entry in (row.before, row.after)
    ]
    return {
        "status": row.status,
        "before": row.before.name if row.before is not None else None,
        "after": row.after.name if row.after is not None else None,
        "role": row.role.role,
        "evidence": {
            "trust": row.role.trust,
            "source": row.role.source,
            "note": row.role.note,
        },
        "in_optimizer": list(row.in_optimizer),
        **({} if row.parameter is None else {"parameter": row.parameter}),
        "dtype": [None if tensor is None else tensor.dtype.name for tensor in sides],
        "shape": [None if tensor is None else list(tensor.shape) for tensor in sides],
        "device": [None if tensor is None else tensor.device for tensor in sides],
        "change": None if row.change is None else _change_json(row.change),
        **({"apart": True} if row.apart else {}),
        **({} if row.unread is None else {"unread": row.unread}),
        "reason": row.reason,
        "cause": row.cause,
    }


def _module_json(module: Module) -> dict[str, Json]:
    return {
        "name": module.name,
        "tensors": module.tensors,
        "changed": module.changed,
        "retyped": module.retyped,
        "unmeasured": module.unmeasured,
        **number_json("rel_l2", module.rel_l2),
    }


def _change_json(change: Change) -> dict[str, Json]:
    found: dict[str, Json] = {
        "differing": change.differing,
        "other_bytes": change.other_bytes,
        "numel": change.numel,
        "at": None if change.at is None else list(change.at),
        "nan": list(change.nan),
        "inf": list(change.inf),
    }
    for name, value in (
        ("max_abs", change.max_abs),
        ("rms", change.rms),
        ("rel_l2", change.rel_l2),
    ):
        found |= number_json(name, value)
    if change.histogram is not None:
        found["histogram"] = change.histogram.to_json()
    return found


def _value_json(row: ValueRow) -> dict[str, Json]:
    sides = (row.before, row.after)
    return {
        "name": row.name,
        "status": row.status,
        "before": None if sides[0] is None else plain(sides[0].node),
        "after": None if sides[1] is None else plain(sides[1].node),
        "type": [None if value is None else value.type for value in sides],
    }
