"""The tree of names as a picture for notebooks: SVG with attributes alone, for they drop scripts and styles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from ckpt.render.palette import NONE, ink
from ckpt.rows import NamedTuple
from ckpt.text import and_more, plural, show, size_text

WIDTH, HEIGHT = 720, 360
_PARTS = 16
"""Levels of the tree; what lies deeper is one name."""
_SMALLEST = 240.0
"""The area of a tile, in units of the picture."""
_HEAD = 15
"""The height of the name of a module."""
_LETTER = 6.6
"""The width of a letter of a name, roughly."""
_BYTES = 120_000
"""Of the picture. One that is larger is drawn again with fewer tiles."""


class Tile(NamedTuple):
    """A tensor to draw: its dotted name, its bytes, the word that its colour stands for, and what gives a text about it."""

    name: str
    nbytes: int
    word: str
    about: Callable[[], str]


class Branch:
    """A part of names, and what lies below it."""

    __slots__ = ("below", "label", "name", "nbytes", "tensors", "tile")

    def __init__(self, label: str, name: str) -> None:
        self.label = label
        self.name = name
        self.nbytes = 0
        self.tensors = 0
        self.below: dict[str, Branch] = {}
        self.tile: Tile | None = None

    def largest(self) -> list[Branch]:
        """What lies below it, the largest first. A part with one below it is joined with that."""
        return sorted((each.joined() for each in self.below.values()), key=lambda each: -each.nbytes)

    def joined(self) -> Branch:
        """The first one below it that parts, with the names of those above it."""
        found = self
        label = self.label
        while len(found.below) == 1 and found.tile is None:
            (found,) = found.below.values()
            label = f"{label}.{found.label}"
        if found is self:
            return self
        made = Branch(label, found.name)
        made.nbytes, made.tensors, made.below, made.tile = (
            found.nbytes,
            found.tensors,
            found.below,
            found.tile,
        )
        return made


def tree(tiles: Iterable[Tile]) -> Branch:
    """The tree of the dotted names."""
    root = Branch("", "")
    for tile in tiles:
        at = root
        at.nbytes += tile.nbytes
        at.tensors += 1
        for part in tile.name.split(".", _PARTS):
            below = at.below.get(part)
            if below is None:
                below = at.below[part] = Branch(part, f"{at.name}.{part}" if at is not root else part)
            at = below
            at.nbytes += tile.nbytes
            at.tensors += 1
        at.tile = tile
    return root


def treemap(root: Branch, colours: Mapping[str, str]) -> str:
    """An SVG in which areas are bytes and colours the words of the tensors, with their legend; empty without bytes."""
    if not root.nbytes:
        return ""
    smallest = _SMALLEST
    while True:
        out: list[str] = []
        _draw(out, root.largest(), (0.0, 0.0, float(WIDTH), float(HEIGHT)), colours, smallest)
        text = "".join(out)
        if len(text) <= _BYTES:
            break
        smallest *= 2
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="11">'
    )
    return f"{head}<title>Areas are bytes.</title>{text}</svg>"


_Box = tuple[float, float, float, float]


def _draw(
    out: list[str], branches: Sequence[Branch], box: _Box, colours: Mapping[str, str], smallest: float
) -> None:
    """Draw parts into a box: x, y, width, height. Those that would be too small are one tile together."""
    whole = sum(branch.nbytes for branch in branches)
    if not whole:
        return
    each = smallest * whole / (box[2] * box[3])
    shown = [branch for branch in branches if branch.nbytes >= each] or list(branches[:1])
    if len(branches) == len(shown) + 1:
        shown = list(branches)
    rest = branches[len(shown) :]
    sizes = [branch.nbytes for branch in shown]
    if rest:
        sizes.append(sum(branch.nbytes for branch in rest))
    boxes = squares(sizes, box)
    for branch, place in zip(shown, boxes, strict=False):
        _part(out, branch, place, colours, smallest)
    if rest and len(boxes) > len(shown) and sizes[-1]:
        names = and_more([show(branch.label, 30) for branch in rest], 2)
        count = sum(branch.tensors for branch in rest)
        about = f"{names}: {plural(count, 'tensor')}, {size_text(sizes[-1])}"
        _tile(out, boxes[-1], f"{len(rest):,} more", about, _colour(rest, colours))


def _part(out: list[str], branch: Branch, box: _Box, colours: Mapping[str, str], smallest: float) -> None:
    x, y, width, height = box
    tile = branch.tile
    if tile is not None and not branch.below:
        _tile(out, box, branch.label, f"{show(tile.name, 60)}: {tile.about()}", colours[tile.word])
        return
    about = f"{show(branch.name, 60)}: {plural(branch.tensors, 'tensor')}, {size_text(branch.nbytes)}"
    inner = (x + 2, y + _HEAD, width - 4, height - _HEAD - 2)
    below = branch.largest()
    if tile is not None:
        below = sorted([*below, _own(tile)], key=lambda each: -each.nbytes)
    if min(width, height) < 3 * _HEAD or inner[2] * inner[3] < 2 * smallest:
        _tile(out, box, branch.label, about, _colour([branch], colours))
        return
    _tile(out, box, branch.label, about, "#ffffff", is_head=True)
    _draw(out, below, inner, colours, smallest)


def _own(tile: Tile) -> Branch:
    """A tensor whose name is also the beginning of others."""
    made = Branch(tile.name.rpartition(".")[2], tile.name)
    made.nbytes, made.tensors, made.tile = tile.nbytes, 1, tile
    return made


def _colour(branches: Sequence[Branch], colours: Mapping[str, str]) -> str:
    """The colour of parts: that of their word where all tensors with bytes have one."""
    found: set[str] = set()
    todo = list(branches)
    while todo and len(found) < 2:
        at = todo.pop()
        if at.tile is not None and at.tile.nbytes:
            found.add(at.tile.word)
        todo += at.below.values()
    return colours[found.pop()] if len(found) == 1 else NONE


def _tile(out: list[str], box: _Box, label: str, about: str, colour: str, *, is_head: bool = False) -> None:
    x, y, width, height = box
    place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}"'
    about = about if len(about) <= 300 else f"{about[:300]}…"
    out.append(f'<g><title>{escape(about)}</title><rect {place} fill="{colour}" stroke="#ffffff"/>')
    if is_head:
        out[-1] = out[-1].replace('stroke="#ffffff"', 'stroke="#7d8590"')
    room = int((width - 6) / _LETTER)
    if room >= 3 and height >= 13:
        shown = show(label, None if len(label) <= 200 else 200)
        shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
        out.append(
            f'<text x="{_short(x + 3)}" y="{_short(y + 11)}" fill="{ink(colour)}">{escape(shown)}</text>'
        )
    out.append("</g>")


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def squares(sizes: Sequence[float], box: _Box) -> list[_Box]:
    """Boxes whose areas are as the sizes, largest first, each nearly square (Bruls, Huizing and van Wijk 2000)."""
    x, y, width, height = box
    scale = width * height / sum(sizes)
    areas = [size * scale for size in sizes]
    out: list[_Box] = []
    at = 0
    while at < len(areas):
        side = max(min(width, height), 1e-9)
        end, total = at + 1, areas[at]
        while end < len(areas) and _worst(areas[at : end + 1], total + areas[end], side) <= _worst(
            areas[at:end], total, side
        ):
            total += areas[end]
            end += 1
        thick = total / side
        along = 0.0
        for area in areas[at:end]:
            length = area / thick if thick else 0.0
            out.append((x, y + along, thick, length) if width >= height else (x + along, y, length, thick))
            along += length
        if width >= height:
            x, width = x + thick, max(width - thick, 0.0)
        else:
            y, height = y + thick, max(height - thick, 0.0)
        at = end
    return out


def _worst(areas: Sequence[float], total: float, side: float) -> float:
    """The ratio of the sides of the flattest box in a row; the areas are sorted but for the last one."""
    least, most = min(areas[0], areas[-1]), max(areas[0], areas[-1])
    if not least:
        return float("inf")
    square = side * side
    return max(square * most / (total * total), total * total / (square * least))
