"""The words for a rule, as people who move weights use them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.ext.layouts.formulas import parse_formula
from ckpt.ext.layouts.pieces import Loop, Piece, flat_steps, row_loops
from ckpt.ext.layouts.rules import EACH, Part, Rule
from ckpt.model.dtypes import DType
from ckpt.model.text import counted_noun


def part_words(part: Part, rule: Rule) -> str:
    """The words for a part of a rule: its slice of the source, and its order: `rows 0
    to 1,023, transposed`.
    """
    if part.source is None:
        return _constant_words(part, rule)
    words = [*_shape_words(part, rule)]
    if part.formula:
        sign, number = parse_formula(part.formula)
        words.append(f"{_SIGNS[sign]} {number:g}")
    if part.dtype is not None and part.dtype != rule.dtype:
        words.append(f"cast to {rule.dtype.name}")
    return ", ".join(words)


_SIGNS = {"*": "times", "/": "divided by", "+": "plus"}


def source_words(part: Part) -> str:
    """The source of a part, with the values of the place that counts its pieces."""
    if part.source is None:
        return ""
    text = part.source.text
    if part.times == 1:
        return text
    for number in part.source.numbers:
        if any(name == EACH for name, _ in number.factors):
            return f"{text} (each 0-{part.times - 1})"
    return text


def _constant_words(part: Part, rule: Rule) -> str:
    value = constant_text(part.constant, rule.dtype)
    numel = prod([loop.size for loop in part.loops])
    width = prod(rule.shape[1:]) if rule.shape else 1
    # The whole tensor first: else it is padding, in rows where it is whole ones.
    if numel == prod(rule.shape):
        return f"all elements {value}"
    if numel % width == 0 and len(rule.shape) > 1:
        return f"padded by {counted_noun(numel // width, 'row')} of {value}"
    return f"padded by {counted_noun(numel, 'element')} of {value}"


def constant_text(bits: int, dtype: DType) -> str:
    """The number that bits stand for in a dtype."""
    from ckpt.elements.cast import few, has_numbers

    if not has_numbers(dtype):
        return f"0x{bits:x}"
    value = few(bits.to_bytes(dtype.bits // 8, "little"), dtype)[0]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shape_words(part: Part, rule: Rule) -> list[str]:
    source, target = prod(part.shape), prod(rule.shape)
    numel = prod([loop.size for loop in part.loops])
    # A tensor in its own order has no words, but for another shape.
    loops = part.loops
    is_whole = numel == source == target and part.times == 1
    if is_whole and loops == (Loop(numel, 1, 1),):
        return [] if part.shape == rule.shape else [f"reshaped from {list(part.shape)}"]
    # Axes in another order are said by their numbers, if nothing else is done.
    if is_whole:
        turned = _axes_words(part, rule)
        if turned is not None:
            return [turned]
    if part.times > 1 and numel == source:
        words = [f"stacked from {part.times:,}"]
    elif part.times > 1:
        words = [f"{part.times:,} parts"]
    else:
        words = []
    words += _slice_words(part, rule)
    words += _order_words(part, rule)
    return words


def _axes_words(part: Part, rule: Rule) -> str | None:
    """The words for axes in another order, if that is all."""
    from itertools import permutations

    steps = flat_steps(part.shape)
    if not 1 < len(part.shape) <= 5 or len(part.shape) != len(rule.shape):
        return None
    # Five axes have 120 orders; more are not tried.
    for order in permutations(range(len(part.shape))):
        if tuple([part.shape[axis] for axis in order]) != rule.shape:
            continue
        dims = zip(rule.shape, flat_steps(rule.shape), order, strict=True)
        loops = [Loop(size, to, steps[axis]) for size, to, axis in dims]
        if Piece("", 0, 0, tuple(loops)).normalized().loops == part.loops:
            if order == (1, 0):
                return "transposed"
            return f"axes in the order {', '.join(map(str, order))}"
    return None


def _slice_words(part: Part, rule: Rule) -> list[str]:
    """The words for rows or columns that are taken of a source, and where they go."""
    if len(part.shape) < 1 or not part.shape:
        return []
    numel = prod([loop.size for loop in part.loops])
    if numel >= prod(part.shape):
        return []
    width = prod(part.shape[1:])
    # The elements from the first to the last that is taken: as many, if they are a run.
    span = 1 + sum([(loop.size - 1) * abs(loop.at) for loop in part.loops])
    if (
        not part.at.factors
        and span == numel
        and numel % width == 0
        and part.at.constant % width == 0
    ):
        first = part.at.constant // width
        last = first + numel // width - 1
        return [f"rows {first:,} to {last:,}" if last > first else f"row {first:,}"]
    # No run, but whole rows.
    if numel % width == 0 and not _reaches_inside(part.loops, width):
        return [f"{numel // width:,} of {part.shape[0]:,} rows"]
    if len(part.shape) == 2 and numel % part.shape[0] == 0:
        return [f"{numel // part.shape[0]:,} of {part.shape[1]:,} columns"]
    return [f"{numel:,} of {prod(part.shape):,} elements"]


def _reaches_inside(loops: Sequence[Loop], width: int) -> bool:
    """Tell whether loops take less than whole rows of their source."""
    inside = prod([loop.size for loop in loops if abs(loop.at) < width])
    return inside < width


def _order_words(part: Part, rule: Rule) -> list[str]:
    """The words for the order of rows and columns."""
    if not rule.shape or not part.shape:
        return []
    width = prod(rule.shape[1:])
    rows = row_loops(part.loops, width)
    words: list[str] = []
    for loop in part.loops:
        if loop.at < 0:
            words.append(f"{loop.size:,} in reverse")
    # Loops that mix rows and columns: there are no words for the order of rows.
    if rows is None:
        inner = [loop for loop in part.loops if loop.to < width]
        if len(inner) == 1 and inner[0].at > 1:
            words.append("transposed")
        return words
    halves = _rotary_words(rows)
    if halves is not None:
        words.append(halves)
    # Groups that lie apart in the target have parts of other tensors between them.
    outer = rows[0] if rows else None
    numel = prod([loop.size for loop in part.loops])
    block = prod([loop.size for loop in rows[1:]]) if rows else 1
    is_apart = outer is not None and outer.size > 1 and outer.to > block
    if outer is not None and is_apart and numel < prod(rule.shape):
        if block > 1:
            words.append(f"interleaved in {outer.size:,} groups")
        else:
            words.append("interleaved row by row")
    inner = [loop for loop in part.loops if loop.to < width]
    if len(inner) > 1:
        words.append("columns permuted")
    elif inner and inner[0].at > 1:
        words.append("transposed")
    return words


def _rotary_words(rows: Sequence[Loop]) -> str | None:
    """The words for rows whose pairs were halves, or halves pairs, as rotary embeddings
    have them.
    """
    if len(rows) < 2:
        return None
    # The two innermost loops: one of them has 2 indices, the pair or the halves.
    middle, inner = rows[-2], rows[-1]
    if middle.to != inner.size * inner.to or inner.to != 1:
        return None
    heads = prod([loop.size for loop in rows[:-2]])
    many = f", {counted_noun(heads, 'head')}" if heads > 1 else ""
    if inner.size == 2 and inner.at == middle.size * middle.at:
        return f"rotary halves to pairs{many}"
    if middle.size == 2 and inner.at == 2 * middle.at:
        return f"rotary pairs to halves{many}"
    return "rows permuted"
