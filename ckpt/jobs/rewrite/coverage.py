"""What a warm start loads: one row per tensor, and the share of the target."""

from __future__ import annotations

from typing import Literal

from ckpt.checkpoint import Entry
from ckpt.evidence.alignment import Component
from ckpt.rows import NamedTuple
from ckpt.text import Json

Status = Literal["loaded", "cast", "sliced", "tied", "kept", "missing", "unexpected"]
"""`tied`: it shares the memory of a loaded tensor. `kept`: the pretrained tensor of that name does not fit. `missing`: the
pretrained model has no such tensor. `unexpected`: the target has no such tensor."""
STATUSES: tuple[Status, ...] = ("loaded", "cast", "sliced", "tied", "kept", "missing", "unexpected")
LOADED: tuple[Status, ...] = ("loaded", "cast", "sliced", "tied")


class Pairing(NamedTuple):
    """A tensor of the target, of the pretrained model, or both. `copied` elements of it come from the pretrained one."""

    status: Status
    name: str
    target: Entry | None
    source: Entry | None
    copied: int = 0
    why: str = ""


class Coverage(NamedTuple):
    """What a warm start loads, tensor by tensor; `target` and `source` name where from and where to."""

    pairings: tuple[Pairing, ...]
    source: str
    aligned: tuple[str, str]
    """What was taken off the names of the pretrained model, and of the target, to align them."""
    notes: tuple[str, ...] = ()
    component: Component | None = None
    """The first component among it."""
    suggested: tuple[Component, ...] = ()
    """The first components that `--sub` would align."""

    def of(self, *statuses: Status) -> list[Pairing]:
        """The pairings of some statuses."""
        return [row for row in self.pairings if row.status in statuses]

    @property
    def tensors(self) -> tuple[int, int]:
        """(tensors that are loaded, tensors of the target)."""
        return len(self.of(*LOADED)), len(self.pairings) - len(self.of("unexpected"))

    @property
    def elements(self) -> tuple[int, int]:
        """(elements that are loaded, elements of the target)."""
        return (
            sum(row.copied for row in self.pairings),
            sum(row.target.tensor.numel for row in self.pairings if row.target is not None),
        )

    @property
    def share(self) -> float:
        """Elements that are loaded over those of the target: 1.0 of an empty one."""
        loaded, whole = self.elements
        return loaded / whole if whole else 1.0

    def modules(self) -> list[tuple[str, int, int, int, int]]:
        """For each top-level module of the target: its name, tensors loaded and in all, elements loaded and in all."""
        found: dict[str, list[int]] = {}
        for row in self.pairings:
            if row.target is not None:
                counts = found.setdefault(row.name.partition(".")[0] if "." in row.name else "", [0, 0, 0, 0])
                counts[0] += row.status in LOADED
                counts[1] += 1
                counts[2] += row.copied
                counts[3] += row.target.tensor.numel
        return [(name, counts[0], counts[1], counts[2], counts[3]) for name, counts in found.items()]

    def to_json(self) -> dict[str, Json]:
        """The object `coverage` of the document `ckpt.rewrite`."""
        loaded, whole = self.elements
        return {
            "pretrained": self.source,
            "tensors": list(self.tensors),
            "elements": [loaded, whole],
            "share": self.share,
            "aligned": list(self.aligned),
            "component": None if self.component is None else self.component.to_json(),
            "suggested": [each.suggestion() for each in self.suggested],
            "totals": {status: len(self.of(status)) for status in STATUSES},
            "modules": [
                {"name": name, "tensors": [some, all_], "elements": [part, numel]}
                for name, some, all_, part, numel in self.modules()
            ],
            "pairs": [
                {
                    "status": row.status,
                    "name": row.name,
                    "target": row.target.name if row.target else None,
                    "pretrained": row.source.name if row.source else None,
                    "shape": [
                        list(entry.tensor.shape) if entry else None for entry in (row.source, row.target)
                    ],
                    "dtype": [
                        entry.tensor.dtype.name if entry else None for entry in (row.source, row.target)
                    ],
                    "copied": row.copied,
                    "why": row.why or None,
                }
                for row in self.pairings
            ],
            "notes": list(self.notes),
        }
