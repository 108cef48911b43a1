"""Position embeddings on another grid: which tensors have one, how large it is, and the
numbers between its points.

A point is weighed as by `torch.nn.functional.interpolate(mode="bicubic",
align_corners=False)`: by Keys' cubic with a = -0.75, and with antialias a = -0.5 over a
support that grows with the step.
"""

from __future__ import annotations

from collections.abc import Collection
from math import floor, isqrt
from typing import TYPE_CHECKING, Any

from ckpt.model.errors import UsageError
from ckpt.model.names import LazyPattern
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Grid = tuple[int, int]

_ABSOLUTE = (
    "pos_embed",
    "position_embedding",
    "positional_embedding",
    "pos_emb",
    "positional_encoding",
    "pos_encoding",
)
"""Words in the names of absolute position embeddings."""
_RELATIVE = "relative_position_bias_table"
"""The name of the tables of Swin, BEiT and MaxViT."""
_OF_IMAGES = ("vision", "visual", "image", "patch", "vit")
"""Words in the names of what looks at images: a text has positions in a row."""
_EXTRA = (0, 3)
"""Rows of a table behind its grid: BEiT has three for the class token."""
_MOST = 4096
"""The most points of a side of a grid."""
_SIDES = LazyPattern(r"(?:([0-9]{1,4})x([0-9]{1,4}):)?([0-9]{1,4})x([0-9]{1,4})")
"""`14x21`, or `12x101:12x50`."""


class Grids(NamedTuple):
    """The grids that a person names, in points down and across. Without `old` the grid
    of PRETRAINED is square.
    """

    old: Grid | None
    new: Grid

    def sides_of(self, old_count: int, new_count: int) -> tuple[Grid, Grid] | None:
        """Return both grids where they have so many points, or None."""
        old = self.old
        if old is None:
            side = _side(old_count)
            if side is None:
                return None
            old = (side, side)
        if old[0] * old[1] != old_count or self.new[0] * self.new[1] != new_count:
            return None
        return old, self.new

    def __str__(self) -> str:
        new = f"{self.new[0]}x{self.new[1]}"
        return f"{self.old[0]}x{self.old[1]}:{new}" if self.old is not None else new


def grids_of(text: str) -> Grids:
    """Return the grids that a text names. Raises UsageError for any other text."""
    found = _SIDES.fullmatch(text)
    sides = [] if found is None else [int(side) for side in found.groups() if side]
    if not sides or not all(0 < side <= _MOST for side in sides):
        raise UsageError(
            f"--grid {show(text, 40)}: not a grid",
            hint="HxW as 14x21, or 12x101:12x50 for PRETRAINED and TARGET",
        )
    *old, down, across = sides
    return Grids((old[0], old[1]) if old else None, (down, across))


class Resampling(NamedTuple):
    """The way from one tensor to another: `first` rows before the grid and `last`
    behind it stay as they are.

    `form` says where the grid is: `rows` of tokens or of a table, dimensions 1 and 2
    (`nhwc`), or the last two.
    """

    form: str
    old: Grid
    new: Grid
    shape: tuple[int, ...]
    first: int = 0
    last: int = 0
    antialias: bool = True

    def apply(self, values: Array) -> Array:
        """Return the values on the new grid, as float64."""
        import numpy as np

        if self.form == "planes":
            return self._resampled(values)
        if self.form == "nhwc":
            return np.moveaxis(self._resampled(np.moveaxis(values, -1, -3)), -3, -1)
        # The grid lies in rows: `[first, down × across, last]` by the width.
        width = values.shape[-1]
        rows = values.reshape(-1, width)
        end = len(rows) - self.last
        grid = rows[self.first : end].reshape(*self.old, width)
        planes = self._resampled(np.moveaxis(grid, -1, 0))
        made = np.moveaxis(planes, 0, -1).reshape(-1, width)
        whole = np.concatenate([rows[: self.first], made, rows[end:]])
        return whole.reshape(self.shape)

    def _resampled(self, planes: Array) -> Array:
        """Return planes of the new grid, which their last two dimensions are."""
        down = _weights(self.old[0], self.new[0], self.antialias)
        across = _weights(self.old[1], self.new[1], self.antialias)
        result: Array = down @ planes @ across.T
        return result

    def __str__(self) -> str:
        text = f"{self.old[0]} x {self.old[1]} → {self.new[0]} x {self.new[1]}"
        text += ", bicubic with antialias" if self.antialias else ", bicubic"
        kept = self.first + self.last
        if kept:
            text += f", {kept} other token{'s' if kept > 1 else ''} as they are"
        return text


def _weights(old: int, new: int, antialias: bool) -> Array:
    """Return the weight of each old point in each new one, a row for each new point."""
    import numpy as np

    weights = np.zeros((new, old))
    step = old / new
    # A smaller grid takes more of the old points into each: nothing is skipped.
    if antialias:
        scale = max(step, 1.0)
        support = 2.0 * scale
        for index in range(new):
            center = step * (index + 0.5)
            first = max(int(center - support + 0.5), 0)
            last = min(int(center + support + 0.5), old)
            row = np.array(
                [
                    _cubic((place - center + 0.5) / scale, -0.5)
                    for place in range(first, last)
                ]
            )
            # At the border some points lack: the weights of the others are one again.
            weights[index, first:last] = row / row.sum()
        return weights
    for index in range(new):
        place = step * (index + 0.5) - 0.5
        begin = floor(place)
        for offset in range(-1, 3):
            # The points at the border are repeated beyond it.
            point = min(max(begin + offset, 0), old - 1)
            weights[index, point] += _cubic(place - begin - offset, -0.75)
    return weights


def _cubic(distance: float, a: float) -> float:
    """Return Keys' cubic at a distance from the point."""
    x = abs(distance)
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return 0.0


# --- which tensors --------------------------------------------------------------------


def resampling_of(
    name: str,
    old: tuple[int, ...],
    new: tuple[int, ...],
    tokens: Collection[int],
    grids: Grids | None = None,
) -> Resampling | str | None:
    """Return the way from one shape to another, the reason why there is none, or None
    for a tensor without a grid.

    `tokens` are the numbers of tokens that may stand before the grid, such as a class
    token and registers. `grids` are named by a person, for
    lists of positions that are not square.
    """
    lower = name.lower()
    if _RELATIVE in lower:
        return _of_table(old, new)
    if not any(word in lower for word in _ABSOLUTE) or len(old) != len(new):
        return None
    if len(old) == 4 and old[0] == new[0]:
        return _of_planes(old, new)
    if len(old) not in (2, 3) or old[-1] != new[-1]:
        return None
    # [1, positions, width], or [positions, width].
    if len(old) == 3 and (old[0] != new[0] or old[0] != 1):
        return None
    # Each number of other tokens may leave two grids; one alone must.
    found: list[Resampling] = []
    for count in sorted({0, *tokens}):
        sides = _sides_of_rows(old[-2] - count, new[-2] - count, grids)
        if sides is not None:
            found.append(Resampling("rows", *sides, new, first=count))
    if len(old) == 2 and grids is None:
        # A list of positions of a text may have a square length too.
        # Without a class token before the grid only the name tells an image.
        is_of_image = any(word in lower for word in _OF_IMAGES)
        found = [way for way in found if way.first or is_of_image]
    if len(found) == 1:
        return found[0]
    count_text = f"{old[-2]} and {new[-2]} positions are not those of"
    if grids is not None:
        return f"{count_text} --grid {grids}"
    return f"{count_text} two square grids (--grid HxW names them)"


def _sides_of_rows(
    old_count: int,
    new_count: int,
    grids: Grids | None,
) -> tuple[Grid, Grid] | None:
    """Return the two grids of lists of so many positions: those that are named, else
    square ones; or None.
    """
    if grids is not None:
        return grids.sides_of(old_count, new_count)
    one, two = _side(old_count), _side(new_count)
    if one is None or two is None:
        return None
    return (one, one), (two, two)


def _of_planes(old: tuple[int, ...], new: tuple[int, ...]) -> Resampling | str:
    """The way for a tensor whose grid has dimensions of its own: behind the channels,
    or before them.
    """
    is_last = old[3] == new[3]
    is_first = old[1] == new[1]
    # A dimension that stays is that of the channels, and only one may.
    if is_last == is_first or max(*old[1:], *new[1:]) > _MOST:
        return "its grid is not known by its shape"
    if is_last:
        return Resampling("nhwc", (old[1], old[2]), (new[1], new[2]), new)
    return Resampling("planes", (old[2], old[3]), (new[2], new[3]), new)


def _of_table(old: tuple[int, ...], new: tuple[int, ...]) -> Resampling | str:
    """The way for a table of relative positions, one column for each head."""
    if len(old) == len(new) == 3 and old[0] == new[0]:
        return Resampling(
            "planes",
            (old[1], old[2]),
            (new[1], new[2]),
            new,
            antialias=False,
        )
    if len(old) != 2 or len(new) != 2 or old[1] != new[1]:
        return "the number of heads differs"
    # A window of n × n has (2 n - 1)² relative positions: an odd square.
    for extra in _EXTRA:
        one, two = _side(old[0] - extra), _side(new[0] - extra)
        if one is not None and two is not None and one % 2 and two % 2:
            return Resampling(
                "rows",
                (one, one),
                (two, two),
                new,
                last=extra,
                antialias=False,
            )
    return f"{old[0]} and {new[0]} rows are not those of two square windows"


def _side(count: int) -> int | None:
    """The side of a square grid of so many points, or None."""
    side = isqrt(count) if count > 0 else 0
    return side if side * side == count and 0 < side <= _MOST else None
