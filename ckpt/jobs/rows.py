"""What a comparison finds, row by row: tensors, values, and the sections that they lie in."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ckpt.checkpoint import Entry, Value
from ckpt.comparison import Change
from ckpt.roles import Role
from ckpt.sections import Section

Status = Literal["same", "changed", "reshaped", "retyped", "renamed", "added", "removed"]
STATUSES: tuple[Status, ...] = ("changed", "reshaped", "retyped", "renamed", "added", "removed", "same")
DIFFERS = frozenset(("changed", "reshaped", "retyped", "added", "removed"))


class Row(NamedTuple):
    """A tensor of one file or of both. `change` tells how its values differ, `reason` why it did not move."""

    status: Status
    before: Entry | None
    after: Entry | None
    role: Role
    change: Change | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        entry = self.after or self.before
        assert entry is not None
        return entry.name


class ValueRow(NamedTuple):
    """A value that is no tensor and differs; None on the side that lacks it."""

    status: Status
    name: str
    before: Value | None
    after: Value | None


class Pair(NamedTuple):
    """Two sections that are compared. `prefixes` are what was taken off the names of each side."""

    before: Section
    after: Section
    prefixes: tuple[str, str] = ("", "")
