"""What the commands that write have in common: the edited checkpoint, and the report of what was changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ckpt.checkpoint import Checkpoint, Entry, Node, Storage, TensorRef
from ckpt.limits import Limits
from ckpt.places import with_unique_names
from ckpt.tree import flatten


class Change(NamedTuple):
    """One kind of change: what was, what is, on how many of what, and how many bytes."""

    kind: str
    before: str | None
    after: str | None
    number: int
    unit: str
    nbytes: int | None = None
    section: str = ""


class Left(NamedTuple):
    """Something that is not in the result, or that is in it as it was although one might expect otherwise.

    `what` is its value when `is_value`, else what it is.
    """

    name: str
    what: str
    nbytes: int | None = None
    hint: str | None = None
    is_value: bool = False


class RewriteReport(NamedTuple):
    """What a command made of a checkpoint. `result` is what is to be written, `source` what was read."""

    command: str
    source: Checkpoint
    result: Checkpoint
    changes: tuple[Change, ...] = ()
    left_out: tuple[Left, ...] = ()
    left_alone: tuple[Left, ...] = ()
    unchanged_bytes: bool = True
    """Whether every byte of a tensor is the one that was read."""
    nothing: str = "nothing to change"
    """What to say when there are no changes."""
    notes: tuple[str, ...] = ()

    def to_json(self, output: dict[str, Any] | None, *, dry_run: bool) -> dict[str, Any]:
        """The document `ckpt.rewrite`; docs/json.md is its contract. `output` is what was written, if anything."""
        from ckpt import __version__

        return {
            "schema": {"name": "ckpt.rewrite", "version": 1},
            "ckpt": __version__,
            "command": self.command,
            "input": {
                "path": self.source.path,
                "format": self.source.format,
                "bytes": self.source.nbytes,
            },
            "output": output,
            "dry_run": dry_run,
            "tensors": len(self.result.tensors),
            "changes": [
                {
                    "kind": change.kind,
                    "from": change.before,
                    "to": change.after,
                    "count": change.number,
                    "unit": change.unit,
                    "bytes": change.nbytes,
                    "section": change.section,
                }
                for change in self.changes
            ],
            "left_out": [_left_json(row) for row in self.left_out],
            "left_alone": [_left_json(row) for row in self.left_alone],
            "notes": list(self.notes),
            "verified": None if output is None else output.pop("verified"),
        }


def _left_json(row: Left) -> dict[str, Any]:
    return {"name": row.name, "what": row.what, "bytes": row.nbytes}


def edited(checkpoint: Checkpoint, root: Node, limits: Limits, **changes: Any) -> Checkpoint:
    """The checkpoint over another tree, with the same file behind it. Raises LimitError, UnreadableError."""
    flat = flatten(root, limits)
    tensors, _ = with_unique_names(flat.tensors)
    values, _ = with_unique_names(flat.values)
    return replace(
        checkpoint,
        root=root,
        tensors=tuple(tensors),
        storages=storages_of(tensors),
        values=tuple(values),
        containers=tuple(flat.containers),
        is_edited=True,
        **changes,
    )


def storages_of(tensors: list[Entry]) -> tuple[Storage, ...]:
    """The storages that tensors look into, each once, in their order."""
    found: dict[int, Storage] = {}
    for entry in tensors:
        tensor = entry.tensor
        parts = (tensor,) if type(tensor) is TensorRef else (part for _, part in tensor.parts)
        for part in parts:
            found.setdefault(id(part.storage), part.storage)
    return tuple(found.values())
