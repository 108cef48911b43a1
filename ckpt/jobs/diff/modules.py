"""`ckpt diff --stat`: how far each module moved, for fine-tunes where everything did."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from ckpt.jobs.diff.rows import Row
from ckpt.rows import NamedTuple


class Module(NamedTuple):
    """The tensors below one name. `squares` are the sum of their squared differences, `reference` that before."""

    name: str
    tensors: int
    changed: int
    squares: float
    reference: float

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference over the norm before; None where that is zero and something moved."""
        if self.reference:
            return sqrt(self.squares / self.reference)
        return 0.0 if not self.squares else None


def modules(rows: Sequence[Row], depth: int | None = None) -> list[Module]:
    """The modules of the tensors that are compared by value, in file order; names cut to `depth` parts."""
    found: dict[str, Module] = {}
    for row in rows:
        if row.change is None or row.change.squares is None:
            continue
        name = ".".join(_module(row).split(".")[:depth])
        old = found.get(name, Module(name, 0, 0, 0.0, 0.0))
        found[name] = Module(
            name,
            old.tensors + 1,
            old.changed + (row.status != "same"),
            old.squares + row.change.squares,
            old.reference + (row.change.reference or 0.0),
        )
    return list(found.values())


def depth_that_fits(rows: Sequence[Row], most: int) -> int:
    """The deepest cut of the names that gives at most `most` modules, or 1."""
    deepest = max((_module(row).count(".") + 1 for row in rows), default=1)
    return next((depth for depth in range(deepest, 1, -1) if len(modules(rows, depth)) <= most), 1)


def _module(row: Row) -> str:
    return row.label.rpartition(".")[0]
