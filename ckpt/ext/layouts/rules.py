"""Rules: pieces folded over the numbers in names. A recipe is rules, and what they
leave of A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from ckpt.ext.layouts.findings import VALUES, Findings, Made, Unused
from ckpt.ext.layouts.pieces import Loop, Piece, Repeat
from ckpt.ext.layouts.proof import Leaf
from ckpt.ext.layouts.ranks import Ranks
from ckpt.ext.layouts.templates import (
    Affine,
    Form,
    Template,
    forms_of,
    place_name,
    template_of,
)
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

MOST_PIECES = 1 << 21
"""The most pieces of all tensors that a recipe makes."""
MOST_OF_ONE = 1 << 18
"""The most pieces of one tensor that a recipe makes: several times what is found."""
FEW_PIECES = 100_000
"""The pieces that a recipe may make of any checkpoint."""
BYTES_OF_PIECE = 256
"""The bytes of a checkpoint for each further piece. A few words of a recipe stand for
millions of pieces, which take a kilobyte of memory each.
"""
MOST_CHARACTERS = 1 << 28
"""The most characters of the names of all pieces and tensors of a recipe."""


_FEWEST = 3
"""The fewest pieces that are folded to one part: two are easier to read one by one."""


class Part(NamedTuple):
    """Pieces of a rule that differ by numbers alone. `source` is None for a constant,
    whose bits are `constant`.

    There are `times` of them; the place `each` in `source` and `at` counts them, and
    each begins `to_step` later in the target.
    """

    source: Template | None
    shape: tuple[int, ...]
    dtype: DType | None
    to: int
    at: Affine
    loops: tuple[Loop, ...]
    constant: int = 0
    times: int = 1
    to_step: int = 0
    formula: str = ""


EACH = "each"
"""The place that counts the pieces of a part."""


class Rule(NamedTuple):
    """The way in which the tensors of one form of names are made. `places` are the
    values of the places in `target`.
    """

    target: Template
    places: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[Part, ...]
    by: str = ""

    @property
    def times(self) -> int:
        """The number of tensors that it makes."""
        return prod([len(values) for _, values in self.places])

    def cases(self) -> Iterator[dict[str, int]]:
        """The values of the places of each tensor."""
        names = [name for name, _ in self.places]
        for values in product(*[values for _, values in self.places]):
            yield dict(zip(names, values, strict=True))

    def pieces(self, places: Mapping[str, int]) -> list[Piece]:
        """The pieces of one tensor. Raises UnreadableError."""
        pieces: list[Piece] = []
        for part in self.parts:
            for number in range(part.times):
                all_places = {**places, EACH: number}
                source = None
                if part.source is not None:
                    source = _template_name(part.source, all_places)
                piece = Piece(
                    source,
                    part.to + number * part.to_step,
                    _affine_value(part.at, all_places),
                    part.loops,
                    part.constant,
                    part.formula,
                )
                pieces.append(piece)
        return pieces


class Leftovers(NamedTuple):
    """Tensors of A of which a recipe takes nothing, or not all: so many elements of
    each are dropped.
    """

    source: Template
    places: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    dtype: DType
    elements: int
    equal_to: str | None = None
    """The tensor of A that it must be equal to, byte by byte."""
    constant: int | None = None
    """The bits of each of these elements, if they are all one number."""
    repeats: tuple[Repeat, ...] = ()
    """These elements as other slices of the same tensor."""


class Recipe(NamedTuple):
    """The way from one layout to another one."""

    rules: tuple[Rule, ...]
    dropped: tuple[Leftovers, ...] = ()
    before: Ranks | None = None
    """The files of ranks that A was, if it was some."""
    after: Ranks | None = None
    """The files of ranks that B was, if it was some."""


class Target(NamedTuple):
    """A tensor that a recipe makes."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: tuple[Piece, ...]


class Wanted(NamedTuple):
    """A tensor that a recipe takes: its shape and dtype, and the elements that are
    dropped.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    dropped: int = 0
    equal_to: str | None = None
    constant: int | None = None
    repeats: tuple[Repeat, ...] = ()


class Expanded(NamedTuple):
    """A recipe as tensors: those that it makes, and those that it takes, by their
    names.
    """

    targets: tuple[Target, ...]
    wanted: dict[str, Wanted]


def expand_recipe(recipe: Recipe, nbytes: int | None = None) -> Expanded:
    """The tensors of a recipe. Raises UnreadableError where it contradicts itself, or
    is too large, also for a checkpoint of `nbytes` bytes.
    """
    # Counted before anything is made: a few words may stand for millions of pieces.
    _refuse_large(recipe, nbytes)
    targets: dict[str, Target] = {}
    wanted: dict[str, Wanted] = {}
    for rule in recipe.rules:
        for places in rule.cases():
            name = _template_name(rule.target, places)
            if name in targets:
                raise UnreadableError(f"two rules make {show(name, 80)}")
            pieces = tuple(rule.pieces(places))
            for piece, part in zip(pieces, _parts_of(rule), strict=True):
                if piece.source is not None and part.dtype is not None:
                    _add_wanted(wanted, Wanted(piece.source, part.shape, part.dtype))
            targets[name] = Target(name, rule.shape, rule.dtype, pieces)
    for left in recipe.dropped:
        for places in _place_cases(left.places):
            name = _template_name(left.source, places)
            row = Wanted(
                name,
                left.shape,
                left.dtype,
                dropped=left.elements,
                equal_to=left.equal_to,
                constant=left.constant,
                repeats=left.repeats,
            )
            _add_wanted(wanted, row)
    return Expanded(tuple(targets.values()), wanted)


def _refuse_large(recipe: Recipe, nbytes: int | None) -> None:
    """Raise UnreadableError for a recipe that makes more pieces or longer names than
    any checkpoint needs, or more pieces than one of `nbytes` bytes has.
    """
    pieces, characters = 0, 0
    for rule in recipe.rules:
        own = sum([part.times for part in rule.parts])
        if own > MOST_OF_ONE:
            raise UnreadableError(
                f"the rule of {show(rule.target.text, 60)} has {own:,} pieces, "
                f"more than {MOST_OF_ONE:,}"
            )
        # A rule without parts makes tensors all the same: each counts as one piece.
        pieces += rule.times * max(1, own)
        characters += rule.times * rule.target.length
        for part in rule.parts:
            if part.source is not None:
                characters += rule.times * part.times * part.source.length
    for row in recipe.dropped:
        times = prod([len(values) for _, values in row.places])
        pieces += times
        characters += times * row.source.length
    if pieces > MOST_PIECES:
        raise UnreadableError(
            f"the recipe makes {pieces:,} pieces, more than {MOST_PIECES:,}"
        )
    if nbytes is not None and pieces > FEW_PIECES + nbytes // BYTES_OF_PIECE:
        raise UnreadableError(
            f"the recipe makes {pieces:,} pieces of a checkpoint of {nbytes:,} bytes"
        )
    if characters > MOST_CHARACTERS:
        raise UnreadableError(
            f"the names of the recipe have {characters:,} characters, more than "
            f"{MOST_CHARACTERS:,}"
        )


def _parts_of(rule: Rule) -> list[Part]:
    """The part of each piece of a rule."""
    return [part for part in rule.parts for _ in range(part.times)]


def _template_name(template: Template, places: Mapping[str, int]) -> str:
    """The name that a template gives. Raises UnreadableError for a place that is not
    there.
    """
    try:
        return template.name(places)
    except KeyError as error:
        raise UnreadableError(
            f"{show(template.text, 60)}: no place {show(str(error.args[0]), 20)}"
        ) from None


def _affine_value(number: Affine, places: Mapping[str, int]) -> int:
    """The value of a number. Raises UnreadableError for a place that is not there."""
    try:
        return number.value(places)
    except KeyError as error:
        raise UnreadableError(
            f"{show(number.text, 60)}: no place {show(str(error.args[0]), 20)}"
        ) from None


def _add_wanted(wanted: dict[str, Wanted], row: Wanted) -> None:
    """Note that a recipe takes a tensor. Raises UnreadableError where it says two
    things of it.
    """
    known = wanted.get(row.name)
    if known is None:
        wanted[row.name] = row
        return
    if (known.shape, known.dtype) != (row.shape, row.dtype):
        raise UnreadableError(
            f"the recipe gives {show(row.name, 80)} two shapes or dtypes"
        )
    # A row of what is dropped says more than one that is only taken.
    if row.dropped:
        wanted[row.name] = row


def _place_cases(
    places: Sequence[tuple[str, tuple[int, ...]]],
) -> Iterator[dict[str, int]]:
    """The values of places, each with each."""
    names = [name for name, _ in places]
    for values in product(*[values for _, values in places]):
        yield dict(zip(names, values, strict=True))


# --- folding --------------------------------------------------------------------------


class _Row(NamedTuple):
    """A tensor of B with its pieces folded to parts: what is the same in all tensors of
    a rule, and the numbers that differ.
    """

    form: Form
    made: Made
    leaf: Leaf
    parts: tuple[_Folded, ...]

    @property
    def signature(self) -> object:
        """The properties that tensors of one rule have in common."""
        # Numbers of names and beginnings may differ in one rule: all else is the same.
        fixed = [
            (
                part.form and (part.form.text, part.form.widths),
                part.leaf and (part.leaf.shape, part.leaf.dtype),
                part.piece.to,
                part.piece.loops,
                part.piece.constant,
                part.piece.formula,
                part.times,
                part.to_step,
                part.steps,
                part.at_step,
            )
            for part in self.parts
        ]
        return (
            self.form.text,
            self.form.widths,
            self.leaf.shape,
            self.leaf.dtype,
            self.made.by,
            tuple(fixed),
        )

    @property
    def numbers(self) -> list[int]:
        """The numbers that may follow the numbers of the name: those in the names of
        the sources, and where each begins.
        """
        # In the order in which `_make_rule` takes them apart again.
        numbers: list[int] = []
        for part in self.parts:
            if part.form is not None:
                numbers += part.form.numbers
            numbers.append(part.piece.at)
        return numbers


class _Folded(NamedTuple):
    """Pieces that differ by one step of their numbers: the first one, and the steps."""

    piece: Piece
    form: Form | None
    leaf: Leaf | None
    times: int = 1
    to_step: int = 0
    at_step: int = 0
    steps: tuple[int, ...] = ()


def recipe_of(
    findings: Findings,
    sources: Sequence[Leaf],
    targets: Sequence[Leaf],
) -> Recipe:
    """The recipe of what was found, folded over the numbers in names. Tensors that are
    not made have no rule.
    """
    source_forms = forms_of([leaf.name for leaf in sources])
    target_forms = forms_of([leaf.name for leaf in targets])
    leaves = {leaf.name: leaf for leaf in sources}
    groups: dict[object, list[_Row]] = {}
    for made, leaf in zip(findings.made, targets, strict=True):
        if made.pieces is not None:
            parts = _folded_parts(made.pieces, source_forms, leaves)
            row = _Row(target_forms[made.name], made, leaf, parts)
            groups.setdefault(row.signature, []).append(row)
    rules: list[Rule] = []
    for rows in groups.values():
        rules += _rules_of(rows)
    dropped = _dropped_rows(findings.unused, source_forms, leaves)
    return Recipe(tuple(rules), tuple(dropped))


def _dropped_rows(
    unused: Sequence[Unused],
    forms: Mapping[str, Form],
    leaves: Mapping[str, Leaf],
) -> Iterator[Leftovers]:
    """Yield the rows of what is used nowhere. Those of one form that have all
    combinations of their numbers are one row.
    """
    groups: dict[object, list[Unused]] = {}
    for row in unused:
        form, leaf = forms[row.name], leaves[row.name]
        kind = (leaf.shape, leaf.dtype, *row[1:])
        groups.setdefault((form.text, form.widths, kind), []).append(row)
    for rows in groups.values():
        numbers = [forms[row.name].numbers for row in rows]
        values = [sorted(set(column)) for column in zip(*numbers, strict=True)]
        # All combinations are there where there are as many rows as combinations, for
        # no name stands twice.
        is_product = len(rows) > 1 and prod(map(len, values)) == len(rows)
        if is_product:
            row = rows[0]
            yield _dropped_row(row, forms[row.name], leaves[row.name], values)
            continue
        for row in rows:
            yield _dropped_row(row, forms[row.name], leaves[row.name], None)


def _dropped_row(
    row: Unused,
    form: Form,
    leaf: Leaf,
    values: Sequence[Sequence[int]] | None,
) -> Leftovers:
    """The row of one tensor, or of all with these values of the numbers in its name."""
    numbers: list[Affine] = []
    places: list[tuple[str, tuple[int, ...]]] = []
    for place, number in enumerate(form.numbers):
        own = () if values is None else tuple(values[place])
        # A number with one value is text of the name, and no place.
        if len(own) > 1:
            name = place_name(place)
            numbers.append(Affine(0, ((name, 1),)))
            places.append((name, own))
        else:
            numbers.append(Affine(number))
    counts = row.elements, row.copy_of, row.constant, row.repeats
    return Leftovers(
        template_of(form, numbers),
        tuple(places),
        leaf.shape,
        leaf.dtype,
        *counts,
    )


def _folded_parts(
    pieces: Sequence[Piece],
    forms: Mapping[str, Form],
    leaves: Mapping[str, Leaf],
) -> tuple[_Folded, ...]:
    """The pieces of a tensor, those together that differ by one step of all their
    numbers.
    """
    # Pieces of one group differ by numbers alone, as those of all experts do.
    groups: dict[object, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.to):
        form = None if piece.source is None else forms[piece.source]
        leaf = None if piece.source is None else leaves[piece.source]
        key = (
            form and (form.text, form.widths),
            leaf and (leaf.shape, leaf.dtype),
            piece.loops,
            piece.constant,
            piece.formula,
        )
        groups.setdefault(key, []).append(piece)
    out: list[_Folded] = []
    for rows in groups.values():
        first = 0
        while first < len(rows):
            count = _run_length(rows[first:], forms)
            out.append(_fold_run(rows[first : first + count], forms, leaves))
            first += count
    return tuple(sorted(out, key=lambda part: part.piece.to))


def _piece_numbers(piece: Piece, forms: Mapping[str, Form]) -> tuple[int, ...]:
    """The numbers of a piece: where it begins on both sides, and those in the name of
    its source.
    """
    numbers = () if piece.source is None else forms[piece.source].numbers
    return piece.to, piece.at, *numbers


def _run_length(rows: Sequence[Piece], forms: Mapping[str, Form]) -> int:
    """The number of pieces from the first one on that follow each other by one step."""
    if len(rows) < 2:
        return 1
    before = _piece_numbers(rows[0], forms)
    after = _piece_numbers(rows[1], forms)
    steps = _number_steps(before, after)
    count = 2
    while count < len(rows):
        before = _piece_numbers(rows[count - 1], forms)
        after = _piece_numbers(rows[count], forms)
        if _number_steps(before, after) != steps:
            break
        count += 1
    return count if count >= _FEWEST else 1


def _number_steps(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The steps between the numbers of two pieces."""
    return [two - one for one, two in zip(before, after, strict=True)]


def _fold_run(
    rows: Sequence[Piece],
    forms: Mapping[str, Form],
    leaves: Mapping[str, Leaf],
) -> _Folded:
    """The pieces of a run as one part."""
    piece = rows[0]
    form = None if piece.source is None else forms[piece.source]
    leaf = None if piece.source is None else leaves[piece.source]
    if len(rows) == 1:
        return _Folded(piece, form, leaf)
    # The steps come in the order of `_piece_numbers`.
    before = _piece_numbers(rows[0], forms)
    after = _piece_numbers(rows[1], forms)
    to_step, at_step, *steps = _number_steps(before, after)
    return _Folded(piece, form, leaf, len(rows), to_step, at_step, tuple(steps))


def _rules_of(rows: Sequence[_Row]) -> list[Rule]:
    """The rules of tensors with one signature: one, if all their numbers follow the
    numbers of their names; else several.
    """
    numbers = [row.form.numbers for row in rows]
    values = [
        sorted({row[place] for row in numbers}) for place in range(len(numbers[0]))
    ]
    # One rule needs a tensor for each combination of the numbers.
    if prod([len(row) for row in values]) == len(rows):
        fitted = _fit_numbers(rows, values)
        if fitted is not None:
            return [_make_rule(rows[0], values, fitted)]
    varying = [place for place, row in enumerate(values) if len(row) > 1]
    if not varying:
        rules: list[Rule] = []
        for row in rows:
            own_values = [[number] for number in row.form.numbers]
            rules.append(_make_rule(row, own_values, _constant_numbers(row)))
        return rules
    # Cut along the place with the fewest values, which leaves the fewest rules.
    place = min(varying, key=lambda place: len(values[place]))
    out: list[Rule] = []
    rest = values[place]
    while rest:
        count, fitted = _longest_fit(rows, place, rest)
        chosen = [row for row in rows if row.form.numbers[place] in rest[:count]]
        own = [
            sorted({row.form.numbers[index] for row in chosen})
            for index in range(len(values))
        ]
        # One value alone has no rule: its tensors are cut along another place.
        if fitted is None:
            out += _rules_of(chosen)
        else:
            out.append(_make_rule(chosen[0], own, fitted))
        rest = rest[count:]
    return out


def _longest_fit(
    rows: Sequence[_Row],
    place: int,
    values: Sequence[int],
) -> tuple[int, list[Affine] | None]:
    """The number of values of a place that make one rule, from the first one on, and
    its numbers: one value without a rule.
    """
    best: tuple[int, list[Affine] | None] = 1, None
    for count in range(2, len(values) + 1):
        chosen = [row for row in rows if row.form.numbers[place] in values[:count]]
        own = [
            sorted({row.form.numbers[index] for row in chosen})
            for index in range(len(chosen[0].form.numbers))
        ]
        is_product = prod([len(row) for row in own]) == len(chosen)
        fitted = _fit_numbers(chosen, own) if is_product else None
        if fitted is None:
            break
        best = count, fitted
    return best


def _constant_numbers(row: _Row) -> list[Affine]:
    """The numbers of a tensor as they are."""
    return [Affine(number) for number in row.numbers]


def _fit_numbers(
    rows: Sequence[_Row], values: Sequence[Sequence[int]]
) -> list[Affine] | None:
    """Each number of the parts as one that follows the places of the names, or None if
    one does not.
    """
    # Two values of each place say its factors; the others must agree with them.
    by_numbers = {row.form.numbers: row.numbers for row in rows}
    base = tuple([row[0] for row in values])
    start = by_numbers[base]
    factors: list[list[int]] = []
    for place, row in enumerate(values):
        if len(row) < 2:
            factors.append([0] * len(start))
            continue
        other = (*base[:place], row[1], *base[place + 1 :])
        gaps = [
            after - before
            for before, after in zip(start, by_numbers[other], strict=True)
        ]
        width = row[1] - row[0]
        # A factor is a whole number, as layers are counted.
        if any(gap % width for gap in gaps):
            return None
        factors.append([gap // width for gap in gaps])
    names = [place_name(place) for place in range(len(values))]
    out: list[Affine] = []
    for index, number in enumerate(start):
        own = [(place, row[index]) for place, row in enumerate(factors) if row[index]]
        constant = number - sum([factor * base[place] for place, factor in own])
        terms = [(names[place], factor) for place, factor in own]
        out.append(Affine(constant, tuple(terms)))
    for places, wanted in by_numbers.items():
        case = dict(zip(names, places, strict=True))
        if [affine.value(case) for affine in out] != wanted:
            return None
    return out


def _make_rule(
    row: _Row,
    values: Sequence[Sequence[int]],
    numbers: Sequence[Affine],
) -> Rule:
    """The rule of tensors that differ by their numbers alone."""
    own: list[Affine] = []
    places: list[tuple[str, tuple[int, ...]]] = []
    for place, given in enumerate(values):
        name = place_name(place)
        if len(given) > 1:
            own.append(Affine(0, ((name, 1),)))
            places.append((name, tuple(given)))
        else:
            own.append(Affine(given[0]))
    rest = list(numbers)
    parts: list[Part] = []
    for part in row.parts:
        # The numbers of a part: those of the name of its source, then where it begins.
        count = len(part.form.numbers) if part.form else 0
        in_name, at, rest = rest[:count], rest[count], rest[count + 1 :]
        source = None
        if part.form is not None:
            steps = part.steps or (0,) * count
            stepped = [
                _with_step(number, step)
                for number, step in zip(in_name, steps, strict=True)
            ]
            source = template_of(part.form, stepped)
        leaf = part.leaf
        parts.append(
            Part(
                source,
                leaf.shape if leaf else (),
                leaf.dtype if leaf else None,
                part.piece.to,
                _with_step(at, part.at_step),
                part.piece.loops,
                part.piece.constant,
                part.times,
                part.to_step,
                part.piece.formula,
            )
        )
    by = row.made.by if row.made.by != VALUES else ""
    return Rule(
        template_of(row.form, own),
        tuple(places),
        row.leaf.shape,
        row.leaf.dtype,
        tuple(parts),
        by,
    )


def _with_step(number: Affine, step: int) -> Affine:
    """A number that also moves on by a step for each piece of a part."""
    return number._replace(factors=(*number.factors, (EACH, step))) if step else number


def dtype_named(name: str) -> DType:
    """The dtype of a name. Raises UnreadableError."""
    dtype = BY_NAME.get(name)
    # Elements of less than a byte have no place of their own in a file.
    if dtype is None or dtype.bits < 8:
        raise UnreadableError(f"{show(name, 40)} is no dtype of a recipe")
    return dtype
