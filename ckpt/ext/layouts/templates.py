"""Names with numbers as places: `layers.<n>.mlp.<e+8*p>.weight`, and numbers that
follow places: `64*n+8`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_DIGITS = re.compile(r"\d+")
_LONGEST = 18
"""The most digits of a number in a name."""
_TERM = re.compile(r"([+-]?)(\d{1,18})?(\*?)([a-z][a-z0-9]{0,7})?")
_HOLE = re.compile(r"<([^<>]{1,80})>")
_PLAIN = re.compile(r"[^<]+")
_MOST_TERMS = 8
_MOST_NUMBERS = 64
"""The most numbers in one name that follow places."""
MOST_VALUES = 1 << 20
"""The most values of one place."""
_NAMES = ("n", "m", "k", "i", "j", "l", "p", "q", "r", "s")
"""The names of places, in their order in a name."""


class Form(NamedTuple):
    """A name with `#` for each number, the numbers, and the least digits of each: 2 for
    `07` and `12` beside it.
    """

    text: str
    numbers: tuple[int, ...]
    widths: tuple[int, ...]


def forms_of(names: Iterable[str]) -> dict[str, Form]:
    """The form of each name. A number is padded where one at its place in a name of
    this form begins with 0.
    """
    given = list(names)
    digits = {name: tuple(_DIGITS.findall(name)) for name in given}
    texts = {name: _DIGITS.sub("#", name) for name in given}
    # First over all names: `layers.10` says nothing, `layers.07` beside it does.
    padded: dict[tuple[str, int], int] = {}
    for name in given:
        for place, number in enumerate(digits[name]):
            if len(number) > 1 and number[0] == "0":
                padded[texts[name], place] = len(number)
    forms: dict[str, Form] = {}
    for name in given:
        # A name has a form of its own where its numbers are more, or longer, than those
        # of any model: their places are compared in pairs.
        is_long = any(len(number) > _LONGEST for number in digits[name])
        if is_long or len(digits[name]) > _MOST_NUMBERS:
            forms[name] = _own_form(name)
            continue
        text = texts[name]
        places = range(len(digits[name]))
        widths = tuple([padded.get((text, place), 0) for place in places])
        fits = [
            len(number) == max(width, len(str(int(number))))
            for number, width in zip(digits[name], widths, strict=True)
        ]
        numbers = tuple([int(number) for number in digits[name]])
        # A number that is written in two ways is text, and so is one beside a `#`: the
        # name has a form of its own.
        is_plain = all(fits) and "#" not in name
        if is_plain:
            forms[name] = Form(text, numbers, widths)
        else:
            forms[name] = _own_form(name)
    return forms


def _own_form(name: str) -> Form:
    """The form of a name all of which is text."""
    return Form(name.replace("#", "##"), (), ())


class Affine(NamedTuple):
    """A number that follows places: a constant, and a factor of each place."""

    constant: int
    factors: tuple[tuple[str, int], ...] = ()

    def value(self, places: Mapping[str, int]) -> int:
        """Its value for these values of the places. Raises KeyError for a place that is
        not there.
        """
        return self.constant + sum(
            [factor * places[name] for name, factor in self.factors]
        )

    @property
    def text(self) -> str:
        terms: list[str] = []
        for name, factor in self.factors:
            terms.append(name if factor == 1 else f"{factor}*{name}")
        if self.constant or not terms:
            terms.append(str(self.constant))
        # A negative number brings its own sign.
        return "+".join(terms).replace("+-", "-")


def parse_affine(text: str) -> Affine:
    """The number that a text stands for. Raises UnreadableError."""
    constant = 0
    position = 0
    count = 0
    factors: dict[str, int] = {}
    compact = text.replace(" ", "")
    while position < len(compact):
        match = _TERM.match(compact, position)
        count += 1
        # An empty match would go on for ever, and many terms are no text of a recipe.
        if (
            match is None
            or match.end() == position
            or count > _MOST_TERMS
            or not _is_term(match, position)
        ):
            raise UnreadableError(
                f"{show(text, 40)} is no number of places", hint="as in 8*p+n"
            )
        sign = -1 if match[1] == "-" else 1
        if match[4] is None:
            constant += sign * int(match[2])
        else:
            factors[match[4]] = factors.get(match[4], 0) + sign * int(match[2] or 1)
        position = match.end()
    if not count:
        raise UnreadableError(
            "an empty text is no number of places", hint="as in 8*p+n"
        )
    return Affine(constant, tuple(factors.items()))


def _is_term(match: re.Match[str], position: int) -> bool:
    """Tell whether a term is whole: a sign but for the first one, and a star between a
    factor and a place alone.
    """
    has_number = match[2] is not None
    has_star = bool(match[3])
    has_name = match[4] is not None
    if position and not match[1]:
        return False
    if has_star:
        return has_number and has_name
    return has_number != has_name


class Template(NamedTuple):
    """A name with places: texts, and between them numbers with their least digits."""

    texts: tuple[str, ...]
    numbers: tuple[Affine, ...]
    widths: tuple[int, ...]

    def name(self, places: Mapping[str, int]) -> str:
        """The name for these values of the places. Raises KeyError, UnreadableError for
        a number below 0.
        """
        parts = [self.texts[0]]
        for number, width, text in zip(
            self.numbers,
            self.widths,
            self.texts[1:],
            strict=True,
        ):
            value = number.value(places)
            # A name with a minus would be another name, or none at all.
            if value < 0:
                raise UnreadableError(f"{show(self.text, 60)} is no name for {value}")
            parts += [f"{value:0{width}d}" if width else str(value), text]
        return "".join(parts)

    @property
    def length(self) -> int:
        """The characters of its texts: the fewest of each of its names."""
        return sum(map(len, self.texts))

    @property
    def text(self) -> str:
        """The template as text, with `<<` for a bracket of the name itself."""
        parts = [self.texts[0].replace("<", "<<")]
        for number, width, text in zip(
            self.numbers,
            self.widths,
            self.texts[1:],
            strict=True,
        ):
            hole = f"<{number.text}:{width}>" if width else f"<{number.text}>"
            parts += [hole, text.replace("<", "<<")]
        return "".join(parts)


@lru_cache(maxsize=4096)
def parse_template(text: str) -> Template:
    """The template that a text stands for. Raises UnreadableError."""
    texts: list[str] = []
    numbers: list[Affine] = []
    widths: list[int] = []
    own: list[str] = []
    """The text between two numbers, in pieces, of which a name may have millions."""
    position = 0
    while position < len(text):
        plain = _PLAIN.match(text, position)
        if plain is not None:
            own.append(plain[0])
            position = plain.end()
            continue
        if text.startswith("<<", position):
            own.append("<")
            position += 2
            continue
        match = _HOLE.match(text, position)
        if match is None:
            raise UnreadableError(
                f"{show(text, 60)}: a place that does not end",
                hint="<< for a bracket",
            )
        # Each number is worked out for each tensor: a name of a model has a few.
        if len(numbers) == _MOST_NUMBERS:
            raise UnreadableError(
                f"{show(text, 60)}: more than {_MOST_NUMBERS} numbers in a name"
            )
        number, _, width = match[1].partition(":")
        if width and not (width.isdecimal() and 1 < int(width) < 10):
            raise UnreadableError(
                f"{show(text, 60)}: {show(width, 20)} is no number of digits"
            )
        numbers.append(parse_affine(number))
        widths.append(int(width or 0))
        texts.append("".join(own))
        own = []
        position = match.end()
    texts.append("".join(own))
    return Template(tuple(texts), tuple(numbers), tuple(widths))


def template_of(form: Form, numbers: Sequence[Affine]) -> Template:
    """The template of a form, with these numbers in it. Those that follow no place are
    text.
    """
    # A form without numbers is the name itself, with each `#` doubled.
    if not form.numbers:
        return Template((form.text.replace("##", "#"),), (), ())
    first, *rest = form.text.split("#")
    first, *rest = form.text.split("#")
    texts: list[str] = [first]
    holes: list[Affine] = []
    widths: list[int] = []
    for number, width, text in zip(numbers, form.widths, rest, strict=True):
        if number.factors:
            holes.append(number)
            widths.append(width)
            texts.append(text)
            continue
        digits = f"{number.constant:0{width}d}" if width else f"{number.constant}"
        texts[-1] += f"{digits}{text}"
    return Template(tuple(texts), tuple(holes), tuple(widths))


def place_name(number: int) -> str:
    """The name of a place of a name, counted from 0."""
    return _NAMES[number] if number < len(_NAMES) else f"n{number}"


# --- the values of a place ------------------------------------------------------------


def values_text(values: Sequence[int]) -> str:
    """Values in ascending order as text: `0-31`, `0-30:2`, `0,3,7-9`."""
    parts: list[str] = []
    first = 0
    while first < len(values):
        last = first + 1
        step = values[last] - values[first] if last < len(values) else 1
        while last < len(values) and values[last] - values[last - 1] == step:
            last += 1
        # Two values are shorter one by one: the second may begin a run.
        if last - first < 3:
            parts.append(str(values[first]))
            first += 1
        else:
            end = f"{values[first]}-{values[last - 1]}"
            parts.append(end if step == 1 else f"{end}:{step}")
            first = last
    return ",".join(parts)


def parse_values(text: str, most: int = MOST_VALUES) -> list[int]:
    """The values that a text stands for, fewer than `most`. Raises UnreadableError."""
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        if match is None:
            raise UnreadableError(
                f"{show(text, 40)} are no values of a place", hint="as in 0-31"
            )
        first = int(match[1])
        last = int(match[2] or match[1])
        step = int(match[3] or 1)
        # Counted before the values are made: `0-999999999` is short.
        count = (last - first) // step if step else 0
        if not step or last < first or count + len(values) >= most:
            raise UnreadableError(
                f"{show(text, 40)} are no values of a place, or too many"
            )
        values += range(first, last + 1, step)
    if len(set(values)) != len(values):
        raise UnreadableError(f"{show(text, 40)}: a value stands twice")
    return values
