"""The answer of a search: how each tensor of B is made, and what of A is used
nowhere.
"""

from __future__ import annotations

from ckpt.ext.layouts.pieces import Piece, Repeat
from ckpt.model.rows import NamedTuple

VALUES, NEIGHBOURS, ASSUMED, CONSTANT = "values", "neighbours", "assumed", "constant"
"""The grounds on which a tensor is made so.

They are its values, the names of its neighbours, the user, or that it is one number.
"""


class Made(NamedTuple):
    """A tensor of B: the pieces that it is made of and what decided them, or why it has
    none.

    `ways` are the tensors of A that fit where nothing decides between them.
    """

    name: str
    pieces: tuple[Piece, ...] | None
    by: str = VALUES
    why: str = ""
    ways: tuple[str, ...] = ()


BEYOND = "the recipe makes it, and B has it not"
"""The reason of a tensor among those that are not made, and that is none of B."""


class Unused(NamedTuple):
    """A tensor of A of which elements are used nowhere, and how many.

    `copy_of` is one that is used and has the same bytes.
    """

    name: str
    elements: int
    of: int
    copy_of: str | None = None
    constant: int | None = None
    """The bits of each element that is used nowhere, if they are all one number."""
    repeats: tuple[Repeat, ...] = ()
    """The elements that are used nowhere, as slices that are used."""

    @property
    def is_padding(self) -> bool:
        """Tell whether what is used nowhere is padding beside slices that are used.

        Padding is slices of one number, or slices that are there a second time.
        """
        is_known = self.constant is not None or bool(self.repeats)
        return is_known and self.elements < self.of


class Findings(NamedTuple):
    """The tensors of B in order, and the tensors of A with elements that are used
    nowhere.
    """

    made: tuple[Made, ...]
    unused: tuple[Unused, ...]
