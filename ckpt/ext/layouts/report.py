"""The report of `ckpt recipe`: how each tensor of B is made of A, and its document."""

from __future__ import annotations

from ckpt.ext.layouts.document import recipe_json
from ckpt.ext.layouts.findings import (
    ASSUMED,
    BEYOND,
    CONSTANT,
    NEIGHBOURS,
    Findings,
    Made,
    Unused,
)
from ckpt.ext.layouts.rules import Recipe
from ckpt.ext.layouts.sides import Passed
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, be_verb, counted_noun, show
from ckpt.surface.reports import reduce_report, shown_as_html


@shown_as_html("ckpt.ext.layouts.text", "html_recipe")
class RecipeReport(NamedTuple):
    """The report of `ckpt recipe`: how B is made of A, proved byte by byte.

    `recipe` has the rules of all that was found. `is_check` is set where a given recipe
    was proved, and nothing searched.
    """

    before: str
    after: str
    findings: Findings
    recipe: Recipe
    passed: tuple[Passed, ...] = ()
    """The tensors of both that were not looked at."""
    beside: tuple[int, int] = (0, 0)
    """The tensors of both beside their models."""
    is_check: bool = False
    path: str | None = None
    """The path of the recipe that was written."""
    is_coded: bool = False
    """True where one side alone holds codes, such as a GGUF: no bits are then equal."""

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(self.before, RecipeReport, *self)

    def __repr__(self) -> str:
        return (
            f"<ckpt.RecipeReport {show(self.before)} → {show(self.after)}: "
            f"{self.headline}>"
        )

    @property
    def made(self) -> tuple[Made, ...]:
        """The tensors of B that are made of A."""
        return tuple([row for row in self.findings.made if row.pieces is not None])

    @property
    def left(self) -> tuple[Made, ...]:
        """The tensors of B that are not."""
        return tuple([row for row in self.findings.made if row.pieces is None])

    @property
    def unused(self) -> tuple[Unused, ...]:
        """The tensors of A with values that are used nowhere. A copy of a used tensor
        is used, and padding is no value.
        """
        return tuple(
            [
                row
                for row in self.findings.unused
                if row.copy_of is None and not row.is_padding
            ]
        )

    @property
    def padded(self) -> tuple[Unused, ...]:
        """The tensors of A whose padding is dropped: slices of one number, or second
        ones.
        """
        return tuple([row for row in self.findings.unused if row.is_padding])

    @property
    def copies(self) -> tuple[Unused, ...]:
        """The tensors of A that have the same bytes as another one, which is used."""
        return tuple([row for row in self.findings.unused if row.copy_of is not None])

    @property
    def by_names(self) -> tuple[Made, ...]:
        """The tensors of B of which names decided how they are made, because their
        values say nothing.
        """
        return tuple([row for row in self.made if row.by in (NEIGHBOURS, ASSUMED)])

    @property
    def constants(self) -> tuple[Made, ...]:
        """The tensors of B that are one number and nothing of A."""
        return tuple([row for row in self.made if row.by == CONSTANT])

    @property
    def tensor_count(self) -> int:
        """The number of tensors of B."""
        return sum(row.why != BEYOND for row in self.findings.made)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        count = self.tensor_count
        verb = be_verb(count)
        # One number in every element is made of nothing in A.
        constants = len(self.constants)
        beside = f", and {constants:,} of one number alone" if constants else ""
        return (
            f"{len(self.made) - constants:,} of {counted_noun(count, 'tensor')} of B "
            f"{verb} made of A, bit for bit{beside}"
        )

    @property
    def is_whole(self) -> bool:
        """Tell whether all of B is made of A, and all of A is used."""
        return not (self.left or self.unused or self.passed)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 where something of B or A is left."""
        return int(not self.is_whole)

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.recipe`; docs/json.md is its contract."""
        from ckpt import __version__

        # Read from the recipe's own document, so that both say the same.
        recipe = recipe_json(self.recipe)
        return {
            "schema": {"name": "ckpt.recipe", "version": 1},
            "ckpt": __version__,
            "before": {"path": self.before},
            "after": {"path": self.after},
            "check": self.is_check,
            "whole": self.is_whole,
            "tensors": self.tensor_count,
            "made": len(self.made),
            "ranks_of_a": recipe.get("ranks_of_a"),
            "ranks_of_b": recipe.get("ranks_of_b"),
            "rules": recipe["rules"],
            "dropped": recipe["dropped"],
            "by_neighbours": [row.name for row in self.by_names],
            "constant": [row.name for row in self.constants],
            "left": [
                {"name": row.name, "why": row.why, "ways": list(row.ways)}
                for row in self.left
            ],
            "unused": [
                {"name": row.name, "elements": row.elements, "of": row.of}
                for row in self.unused
            ],
            "copies": [{"name": row.name, "of": row.copy_of} for row in self.copies],
            "padding": [
                {"name": row.name, "elements": row.elements} for row in self.padded
            ],
            "passed_over": [{"name": row.name, "why": row.why} for row in self.passed],
            "output": self.path,
        }
