"""The document `ckpt.inspect`, version 1. docs/json.md is the contract that this file
keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING

from ckpt.commands.inspect.logical import counted_parameters, with_whole_weights
from ckpt.evidence.gradients import says_gradients
from ckpt.evidence.roles import Role
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Value
from ckpt.model.errors import UnreadableError
from ckpt.model.tensors import Composite, Piece, TensorRef, sharding_of
from ckpt.model.text import Json
from ckpt.pickle.judge.weights_only import TORCH
from ckpt.surface.reports import document_head
from ckpt.tree.json import path_json, plain, scalar_json
from ckpt.tree.literals import Repeats
from ckpt.tree.view import look

if TYPE_CHECKING:
    from ckpt.commands.inspect.inspect import Inspection, Row


def document(report: Inspection) -> dict[str, Json]:
    """The report as plain data that `json.dumps(allow_nan=False)` takes."""
    checkpoint = report.checkpoint
    refused = checkpoint.weights_only
    # By the index of the tensor: parameters, then the tensors of the state themselves.
    states = _optimizer_states(report.survey)
    for position, (index, _) in report.survey.state_parameters.items():
        states[position] = {"parameter": report.survey.tensors[index].name}
    return {
        **document_head("ckpt.inspect", 1),
        "file": {
            "path": checkpoint.path,
            "bytes": checkpoint.nbytes,
            "format": checkpoint.format,
            "byteorder": checkpoint.byteorder,
            "parts": list(checkpoint.parts),
            "part_bytes": _part_bytes(checkpoint),
            "layout": checkpoint.layout or None,
            "part_of": None if report.whole is None else report.whole.path,
        },
        "totals": totals(report),
        "tensors": [
            tensor_json(row, role, report.survey.in_optimizer[row.position])
            | states.get(row.position, {})
            for row, role in zip(report.rows, report.roles(), strict=True)
        ],
        "storages": [
            {
                "id": row.storage.id,
                "device": row.storage.device,
                "bytes": row.storage.nbytes,
                "used_bytes": row.used,
                "kind": row.kind,
                "tensors": list(row.tensors),
            }
            for row in report.storages
        ],
        "sections": [
            {
                "path": path_json(part.path),
                "name": part.name,
                "kind": part.kind,
                "tensors": part.tensors,
                "numel": part.numel,
                "bytes": part.nbytes,
            }
            for part in report.sections
        ],
        "prefixes": [
            {
                "prefix": row.prefix,
                "writer": row.writer,
                "section": row.section,
                "tensors": row.tensors,
                "of": row.of,
            }
            for row in report.prefixes
        ],
        "adapter": _adapter_json(report),
        "card": None if report.card is None else report.card.to_json(),
        "values": _values_json(report.values),
        "devices_in_values": [
            {"name": name, "device": device, "type": kind}
            for name, device, kind in report.hidden_devices
        ],
        "imports": [
            {
                "module": row.module,
                "name": row.name,
                "group": row.group,
                "file": row.file or None,
                "where": list(row.where),
                "calls": list(row.calls),
                "attributes": list(row.attributes),
            }
            for row in checkpoint.imports
        ],
        "weights_only": None
        if refused is None
        else {
            # torch may fail to load what weights_only allows.
            "loads": not refused and checkpoint.not_loadable is None,
            "torch": TORCH,
            "reasons": [
                {
                    "reason": refusal.reason,
                    "where": list(refusal.where),
                    "file": refusal.file or None,
                }
                for refusal in refused
            ],
        },
        "load": report.load.expression,
        "load_model": report.load.model,
        "load_note": report.load.note or report.load.reason,
        "load_command": None if report.way is None else report.way.command,
        "findings": [finding.to_json() for finding in report.findings],
        **(
            {}
            if report.quantised is None
            else {"quantised": report.quantised.to_json()}
        ),
    }


def _adapter_json(report: Inspection) -> dict[str, Json] | None:
    """The object `adapter`, with what else is known of it."""
    found, described = report.adapter, report.described
    if described is None:
        return None if found is None else found.to_json()
    return (
        described.plain_json() if found is None else found.to_json()
    ) | described.to_json()


def _part_bytes(checkpoint: Checkpoint) -> list[int | None] | None:
    """Return the bytes of each file of a set in their order, or None if no file has
    any.

    The bytes of a file are None if it holds no tensors.
    """
    # A source goes by its path, or by its name in the folder.
    sizes = {source.name: source.size for source in checkpoint.all_sources()}
    folder = checkpoint.path.rstrip("/")
    part_sizes = [
        sizes.get(f"{folder}/{part}", sizes.get(part)) for part in checkpoint.parts
    ]
    return part_sizes if any(size is not None for size in part_sizes) else None


def _optimizer_states(survey: Survey) -> dict[int, dict[str, Json]]:
    """Return the optimizer state of tensors, by index: whether it is held, and the
    steps counted for them.
    """
    states: dict[int, dict[str, Json]] = {}
    for use in survey.uses:
        if use.is_before or not (use.is_shared or says_gradients(use)):
            continue
        for number, index in enumerate(use.match.indices):
            if index is not None:
                # A parameter that never had a gradient has counted 0 steps, if any are
                # counted.
                never = number in use.never
                steps = 0.0 if never and use.steps else use.counters.get(number)
                states[index] = {
                    "optimizer_state": {
                        "held": use.match.slots[number].has_state,
                        "steps": _step_count(steps),
                        "of": _step_count(use.steps) or None,
                        "zero": number in use.zero,
                    }
                }
    return states


def _step_count(counter: float | None) -> int | None:
    """Return a counter as a number of steps, or None if it is damaged."""
    return int(counter) if counter is not None and isfinite(counter) else None


def totals(report: Inspection) -> dict[str, Json]:
    """Sums over the selected tensors; `storage_bytes` counts shared bytes once, over
    the whole file.
    """
    dtypes: dict[str, int] = {}
    for row in report.rows:
        dtypes[row.tensor.dtype.name] = dtypes.get(row.tensor.dtype.name, 0) + 1
    whole = with_whole_weights(report)
    parameters, unknown = counted_parameters(whole)
    return {
        "tensors": len(report.rows),
        "numel": sum(row.tensor.numel for row in report.rows),
        "bytes": sum(row.tensor.nbytes for row in report.rows),
        "storages": len(report.checkpoint.storages),
        "storage_bytes": sum(storage.nbytes for storage in report.checkpoint.storages),
        "parameters": whole.survey.count_elements(parameters),
        "unknown": whole.survey.count_elements(unknown),
        "dtypes": dtypes,
        "devices": device_totals(report),
    }


def tensor_json(row: Row, role: Role, in_optimizer: bool | None) -> dict[str, Json]:
    """One tensor: the entry of `tensors[]`."""
    tensor, entry = row.tensor, row.entry
    # Composite tensors have no stride and storage of their own, their parts have.
    plain_ref = tensor if isinstance(tensor, TensorRef) else None
    fields: dict[str, Json] = {
        "name": entry.name,
        "path": path_json(entry.path),
        "section": row.section.name if row.section else None,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "stride": list(plain_ref.stride) if plain_ref else None,
        "offset": plain_ref.offset if plain_ref else None,
        "numel": tensor.numel,
        "bytes": tensor.nbytes,
        "device": tensor.device,
        "storage": plain_ref.storage.id if plain_ref else None,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "role": role.role,
        "evidence": {"trust": role.trust, "source": role.source, "note": role.note},
        "in_optimizer": in_optimizer,
        "registered": entry.registered,
        "persistent": entry.persistent,
    }
    sharding = sharding_of(tensor)
    if sharding is not None:
        fields["sharding"] = {"parts": sharding.parts, "dims": list(sharding.dims)}
    # Only few tensors are views of this kind, so that the fields may lack.
    if plain_ref and (plain_ref.conj or plain_ref.neg):
        fields |= {"conj": plain_ref.conj, "neg": plain_ref.neg}
    if isinstance(tensor, Composite):
        fields["detail"] = tensor.detail
        if tensor.piece is not None:
            fields["piece"] = _piece_json(tensor.piece)
        fields["parts"] = [
            {
                "name": label,
                "dtype": part.dtype.name,
                "shape": list(part.shape),
                "stride": list(part.stride),
                "offset": part.offset,
                "bytes": part.nbytes,
                "device": part.device,
                "storage": part.storage.id,
            }
            for label, part in tensor.parts
        ]
    return fields


def _piece_json(piece: Piece) -> dict[str, Json]:
    """Return the part of a distributed tensor that a rank holds. The tensor has the
    shape of the whole.
    """
    return {
        "rank": piece.rank,
        "mesh": list(piece.mesh),
        "coordinate": None if piece.coordinate is None else list(piece.coordinate),
        "placements": [placement.text for placement in piece.placements],
    }


def _values_json(values: Iterable[Value]) -> list[Json]:
    # One for all values: what they repeat is counted together, and bounded.
    repeats = Repeats()
    return [value_json(value, repeats) for value in values]


def value_json(value: Value, repeats: Repeats) -> dict[str, Json]:
    """One value: the entry of `values[]`."""
    fields: dict[str, Json] = {
        "name": value.name,
        "path": path_json(value.path),
        "type": value.type,
        "value": None,
    }
    if value.same_as is not None:
        fields["same_as"] = value.same_as
    elif value.fields is not None:
        fields["fields"] = value.fields
    else:
        # A value is a scalar as JSON has it, an object by its fields, else a tree.
        view = look(value.node)
        if view.kind == "scalar":
            fields["value"], otherwise = scalar_json(view)
            if otherwise is not None:
                fields["value_is"] = otherwise
        elif view.kind == "object":
            fields["fields"] = len(view.children)
        else:
            try:
                fields["value"] = plain(value.node, repeats)
            except UnreadableError as error:
                fields["value_is"] = error.problem
    return fields


def device_totals(report: Inspection) -> dict[str, dict[str, int]]:
    """Device -> tensors and their logical bytes, of the selected tensors, the heaviest
    first.
    """
    by_device: dict[str, dict[str, int]] = {}
    for row in report.rows:
        if row.tensor.device is not None:
            totals = by_device.setdefault(row.tensor.device, {"tensors": 0, "bytes": 0})
            totals["tensors"] += 1
            totals["bytes"] += row.tensor.nbytes
    return dict(sorted(by_device.items(), key=lambda item: -item[1]["bytes"]))
