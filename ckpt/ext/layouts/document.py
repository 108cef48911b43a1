"""The recipe as a file: JSON of a closed vocabulary, one rule a line. It is read like
the file of a stranger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod

from ckpt.bytes.location import locate
from ckpt.ext.layouts.findings import ASSUMED, CONSTANT, NEIGHBOURS
from ckpt.ext.layouts.formulas import COMPUTED, parse_formula
from ckpt.ext.layouts.pieces import Loop, Repeat
from ckpt.ext.layouts.ranks import (
    LONGEST_TEXT,
    MOST_BESIDE,
    MOST_DICTS,
    RankFile,
    Ranks,
    is_kept_value,
    problem_of_ranks,
)
from ckpt.ext.layouts.rules import (
    EACH,
    MOST_PIECES,
    Leftovers,
    Part,
    Recipe,
    Rule,
    dtype_named,
)
from ckpt.ext.layouts.templates import (
    MOST_VALUES,
    Affine,
    parse_affine,
    parse_template,
    parse_values,
    values_text,
)
from ckpt.model.dtypes import DType
from ckpt.model.errors import NotOpenedError, UnreadableError, about
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import nearest_names
from ckpt.model.tensors import DIMENSIONS
from ckpt.model.text import Json, show

VERSION = 1
LONGEST = 64 << 20
"""The most bytes of a recipe."""
_LARGEST = 1 << 62
"""Numbers in a recipe are smaller."""
_RANKS = "ranks_of_a", "ranks_of_b"
"""The fields of a recipe about the files of ranks of both sides."""
OWN_LAYOUT = "transformers"
"""The word that commands take in the place of a recipe, for a GGUF."""
_WRITTEN_BY = "ckpt recipe A B -o RECIPE writes one"
_BYS = ("", NEIGHBOURS, ASSUMED, CONSTANT)


def recipe_json(recipe: Recipe) -> dict[str, Json]:
    """The recipe as a document."""
    from ckpt import __version__

    ranks: dict[str, Json] = {}
    for name, side in zip(_RANKS, (recipe.before, recipe.after), strict=True):
        if side is not None:
            ranks[name] = _ranks_json(side)
    return {
        "schema": {"name": "ckpt.layout", "version": VERSION},
        "ckpt": __version__,
        **ranks,
        "rules": [_rule_json(rule) for rule in recipe.rules],
        "dropped": [_dropped_json(row) for row in recipe.dropped],
    }


def recipe_text(recipe: Recipe) -> str:
    """The recipe as the text of a file: one rule a line."""
    document = recipe_json(recipe)
    lines = ["{"]
    for key in document:
        if key not in ("rules", "dropped"):
            lines.append(f"{json.dumps(key)}: {json.dumps(document[key])},")
    # A rule a line: people read and compare recipes, and `git diff` shows rules.
    rules, dropped = document["rules"], document["dropped"]
    assert isinstance(rules, list) and isinstance(dropped, list)
    lines += [
        '"rules": [',
        *_row_lines(rules),
        "],",
        '"dropped": [',
        *_row_lines(dropped),
        "]",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _row_lines(rows: Sequence[Json]) -> list[str]:
    # JSON has no comma behind the last row.
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    return [f"{text}," for text in texts[:-1]] + texts[-1:]


def _rule_json(rule: Rule) -> dict[str, Json]:
    document: dict[str, Json] = {"make": rule.target.text}
    if rule.places:
        document["for"] = {name: values_text(values) for name, values in rule.places}
    document |= {"shape": list(rule.shape), "dtype": rule.dtype.name}
    if rule.by:
        document["by"] = rule.by
    document["of"] = [_part_json(part, rule) for part in rule.parts]
    return document


def _part_json(part: Part, rule: Rule) -> dict[str, Json]:
    document: dict[str, Json] = {}
    if part.source is None:
        document["constant"] = bits_text(part.constant, rule.dtype)
    else:
        document |= {"tensor": part.source.text, "shape": list(part.shape)}
        # Fields that say what is usual are left out, and read as that.
        if part.dtype is not None and part.dtype != rule.dtype:
            document["dtype"] = part.dtype.name
    if part.formula:
        document["formula"] = part.formula
    is_whole = (
        part.loops == (Loop(prod(rule.shape), 1, 1),)
        and part.at == Affine(0)
        and not part.to
    )
    # A tensor taken as it is needs no numbers.
    if part.source is not None and is_whole and part.times == 1:
        return document
    if part.times > 1:
        document |= {"count": part.times, "to_step": part.to_step}
    document["to"] = part.to
    if part.source is not None:
        document["from"] = part.at.constant if not part.at.factors else part.at.text
    document["sizes"] = [loop.size for loop in part.loops]
    document["to_steps"] = [loop.to for loop in part.loops]
    if part.source is not None:
        document["from_steps"] = [loop.at for loop in part.loops]
    return document


def bits_text(bits: int, dtype: DType) -> str:
    """The bits of one element as text: `0x3f80`."""
    return f"0x{bits:0{dtype.bits // 4}x}"


def _dropped_json(row: Leftovers) -> dict[str, Json]:
    document: dict[str, Json] = {"tensor": row.source.text}
    if row.places:
        document["for"] = {name: values_text(values) for name, values in row.places}
    document |= {
        "shape": list(row.shape),
        "dtype": row.dtype.name,
        "elements": row.elements,
    }
    if row.equal_to is not None:
        document["equal_to"] = row.equal_to
    if row.constant is not None:
        document["constant"] = bits_text(row.constant, row.dtype)
    if row.repeats:
        document["repeats"] = [_repeat_json(repeat) for repeat in row.repeats]
    return document


def _repeat_json(repeat: Repeat) -> dict[str, Json]:
    return {
        "axis": repeat.axis,
        "to": repeat.to,
        "from": repeat.at,
        "count": repeat.size,
        "from_step": repeat.step,
    }


def _ranks_json(ranks: Ranks) -> dict[str, Json]:
    return {
        "files": [{"file": row.file, "key": row.key} for row in ranks.files],
        "dicts": [list(path) for path in ranks.dicts],
        "values": dict(ranks.values),
        "beside": list(ranks.beside),
    }


# --- reading --------------------------------------------------------------------------


def read_recipe(path: str, limits: Limits) -> Recipe:
    """The recipe in a file. Raises UnreadableError, LimitError, NotOpenedError."""
    with about(path):
        try:
            source = locate(path).open()
        except NotOpenedError as error:
            error.hint = error.hint or _hint_of_missing(path)
            raise
        try:
            # Before it is read: a file that is no recipe may be a checkpoint of 100 GB.
            if source.size > LONGEST:
                raise UnreadableError(
                    f"a recipe of {source.size:,} bytes, more than {LONGEST:,}"
                )
            data = source.read(0, source.size)
        finally:
            source.close()
        return parse_recipe(data, limits)


def _hint_of_missing(path: str) -> str:
    """Return what stands in the place of a recipe that is no file: there is one word,
    and all others are paths.
    """
    # A user may type a word here that another command takes.
    if path == OWN_LAYOUT:
        return f"{OWN_LAYOUT} is for a GGUF; {_WRITTEN_BY} for a pair"
    if nearest_names(path, [OWN_LAYOUT], 1):
        return f"did you mean {OWN_LAYOUT}?"
    if "/" in path or "." in path:
        return _WRITTEN_BY
    return f"{_WRITTEN_BY}; the only word is {OWN_LAYOUT}, for a GGUF"


def parse_recipe(data: bytes, limits: Limits) -> Recipe:
    """The recipe that bytes hold. Raises UnreadableError, LimitError."""
    document = parse_json(data, "recipe", Budget(limits, len(data)))
    fields = _Fields(document, "the recipe")
    schema = _Fields(fields.take("schema"), "its schema")
    # The schema says first whether it is a recipe at all, and one that this ckpt knows.
    if schema.text("name") != "ckpt.layout":
        raise UnreadableError("not a recipe of ckpt", hint=_WRITTEN_BY)
    version = schema.number("version")
    if version != VERSION:
        raise UnreadableError(
            f"a recipe of version {version}: this ckpt reads version {VERSION}"
        )
    schema.refuse_others()
    fields.text("ckpt")
    # Rules and dropped rows share one bound on the values that they name.
    room = _Room()
    rules = [_parse_rule(_Fields(row, "a rule"), room) for row in fields.rows("rules")]
    dropped = [
        _parse_dropped(_Fields(row, "a row of dropped"), room)
        for row in fields.rows("dropped")
    ]
    sides = [
        _parse_ranks(_Fields(fields.take(name), name)) if fields.has(name) else None
        for name in _RANKS
    ]
    fields.refuse_others()
    return Recipe(tuple(rules), tuple(dropped), *sides)


class _Room:
    """The values of places that a recipe may still name: a short text stands for many
    of them.
    """

    def __init__(self) -> None:
        self._left = MOST_PIECES

    def parse_values(self, text: str) -> tuple[int, ...]:
        """The values that a text stands for. Raises UnreadableError for too many."""
        values = parse_values(text, min(self._left, MOST_VALUES))
        self._left -= len(values)
        return tuple(values)


class _Fields:
    """The fields of an object, each taken once. Raises UnreadableError for one of
    another type.
    """

    def __init__(self, value: Json, what: str) -> None:
        if not isinstance(value, dict):
            raise UnreadableError(f"{what} is no object")
        self._fields = dict(value)
        self.what = what

    def take(self, name: str) -> Json:
        """A field that must be there."""
        if name not in self._fields:
            raise UnreadableError(f"{self.what} has no {name}")
        value: Json = self._fields.pop(name)
        return value

    def has(self, name: str) -> bool:
        """Tell whether a field is there."""
        return name in self._fields

    def text(self, name: str) -> str:
        """A text."""
        value = self.take(name)
        if not isinstance(value, str):
            raise UnreadableError(f"{self.what}: {name} is no text")
        return value

    def number(self, name: str, least: int = 0) -> int:
        """A number from `least` on."""
        return self._check_number(self.take(name), name, least)

    def _check_number(self, value: Json, name: str, least: int) -> int:
        # JSON's true and false are numbers in Python.
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value < _LARGEST
        ):
            raise UnreadableError(f"{self.what}: {name} is no number from {least} on")
        return value

    def numbers(self, name: str, least: int = 0) -> tuple[int, ...]:
        """A list of numbers."""
        value = self.take(name)
        if not isinstance(value, list) or len(value) > DIMENSIONS:
            raise UnreadableError(
                f"{self.what}: {name} is no list of at most {DIMENSIONS} numbers"
            )
        return tuple([self._check_number(item, name, least) for item in value])

    def rows(self, name: str) -> list[Json]:
        """A list."""
        value = self.take(name)
        if not isinstance(value, list):
            raise UnreadableError(f"{self.what}: {name} is no list")
        return value

    def places(self, room: _Room) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The values of places, if there are some."""
        if not self.has("for"):
            return ()
        value = self.take("for")
        # The place of `count` has a name of its own, which no rule may take.
        if not isinstance(value, dict) or len(value) > DIMENSIONS or EACH in value:
            raise UnreadableError(f"{self.what}: for is no object of places")
        rows: list[tuple[str, tuple[int, ...]]] = []
        for name, text in value.items():
            if not isinstance(text, str):
                raise UnreadableError(
                    f"{self.what}: the values of {show(name, 20)} are no text"
                )
            rows.append((name, room.parse_values(text)))
        return tuple(rows)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A list of at most so many texts."""
        return self._check_texts(self.take(name), name, most)

    def paths(self, name: str, most: int) -> tuple[tuple[str, ...], ...]:
        """A list of at most so many lists of texts."""
        rows = self.rows(name)
        if len(rows) > most:
            raise UnreadableError(f"{self.what}: more than {most:,} {name}")
        return tuple([self._check_texts(row, name, DIMENSIONS) for row in rows])

    def _check_texts(self, value: Json, name: str, most: int) -> tuple[str, ...]:
        rows = value if isinstance(value, list) else [None]
        texts: list[str] = []
        for row in rows:
            if isinstance(row, str) and len(row) <= LONGEST_TEXT:
                texts.append(row)
        if len(texts) < len(rows) or len(texts) > most:
            raise UnreadableError(
                f"{self.what}: {name} is no list of at most {most:,} short texts"
            )
        return tuple(texts)

    def refuse_others(self) -> None:
        """Raise UnreadableError where a field is left: it would say something that
        nothing heeds.
        """
        if self._fields:
            name = next(iter(self._fields))
            raise UnreadableError(f"{self.what}: unknown field {show(name, 40)}")


def _parse_ranks(fields: _Fields) -> Ranks:
    """The files of ranks of one side, none of which leads out of its folder."""
    rows = [_Fields(row, f"a file of {fields.what}") for row in fields.rows("files")]
    files = [RankFile(row.text("file"), row.text("key")) for row in rows]
    for row in rows:
        row.refuse_others()
    dicts = fields.paths("dicts", MOST_DICTS)
    given = fields.take("values") if fields.has("values") else {}
    beside = fields.texts("beside", MOST_BESIDE) if fields.has("beside") else ()
    fields.refuse_others()
    if not isinstance(given, dict) or len(given) > MOST_BESIDE:
        raise UnreadableError(f"{fields.what}: values is no object of a few values")
    for name, value in given.items():
        if len(name) > LONGEST_TEXT or not is_kept_value(value):
            raise UnreadableError(
                f"{fields.what}: {show(name, 40)} is no number and no short text"
            )
    ranks = Ranks(tuple(files), dicts, tuple(given.items()), beside)
    # Paths of a stranger's recipe become files: none leads out of the folder.
    problem = problem_of_ranks(ranks)
    if problem is not None:
        raise UnreadableError(f"{fields.what}: {problem}")
    return ranks


def _parse_rule(fields: _Fields, room: _Room) -> Rule:
    target = parse_template(fields.text("make"))
    # From here on errors name the rule.
    fields.what = f"the rule of {show(target.text, 60)}"
    places = fields.places(room)
    shape = fields.numbers("shape")
    dtype = dtype_named(fields.text("dtype"))
    by = fields.text("by") if fields.has("by") else ""
    if by not in _BYS:
        raise UnreadableError(
            f"{fields.what}: by {show(by, 20)} is none of {' '.join(_BYS[1:])}"
        )
    # The product of sizes may be far larger than each of them.
    numel = prod(shape)
    if numel >= _LARGEST:
        raise UnreadableError(f"{fields.what}: its shape has too many elements")
    rule = Rule(target, places, shape, dtype, (), by)
    parts = [
        _parse_part(_Fields(row, f"a part of {show(target.text, 60)}"), rule)
        for row in fields.rows("of")
    ]
    fields.refuse_others()
    return rule._replace(parts=tuple(parts))


def _parse_part(fields: _Fields, rule: Rule) -> Part:
    numel = prod(rule.shape)
    constant = 0
    source = None
    formula = ""
    shape: tuple[int, ...] = ()
    dtype: DType | None = None
    if fields.has("constant"):
        constant = _parse_bits(fields, rule.dtype)
    else:
        source = parse_template(fields.text("tensor"))
        shape = fields.numbers("shape")
        dtype = dtype_named(fields.text("dtype")) if fields.has("dtype") else rule.dtype
        formula = fields.text("formula") if fields.has("formula") else ""
        if formula:
            parse_formula(formula)
            _refuse_no_numbers(fields, dtype, rule)
        # A part without sizes is all of its tensor, as it is.
        if not fields.has("sizes"):
            fields.refuse_others()
            whole = (Loop(numel, 1, 1),)
            return Part(source, shape, dtype, 0, Affine(0), whole, formula=formula)
    count = fields.number("count", 1) if fields.has("count") else 1
    to_step = fields.number("to_step") if fields.has("to_step") else 0
    to = fields.number("to")
    at = Affine(0)
    if source is not None:
        value = fields.take("from")
        # A number, or a text that follows places; anything else is no number of places.
        at = parse_affine(str(value) if isinstance(value, (int, str)) else "")
    loops = _parse_loops(fields, numel // count, has_source=source is not None)
    fields.refuse_others()
    return Part(source, shape, dtype, to, at, loops, constant, count, to_step, formula)


def _parse_loops(fields: _Fields, most: int, *, has_source: bool) -> tuple[Loop, ...]:
    """The loops of a part over at most so many elements."""
    sizes = fields.numbers("sizes", 1)
    to_steps = fields.numbers("to_steps", 1)
    from_steps = (0,) * len(sizes)
    if has_source:
        # Steps may be negative in the source: a flipped axis is read backwards.
        from_steps = fields.numbers("from_steps", -_LARGEST)
    if not len(sizes) == len(to_steps) == len(from_steps):
        problem = "sizes, to_steps and from_steps are not of one length"
        raise UnreadableError(f"{fields.what}: {problem}")
    # Bounds what is made of a part before its loops are followed.
    if prod(sizes) > most:
        problem = "it makes more elements than there are"
        raise UnreadableError(f"{fields.what}: {problem}")
    return tuple([Loop(*row) for row in zip(sizes, to_steps, from_steps, strict=True)])


def _refuse_no_numbers(fields: _Fields, dtype: DType, rule: Rule) -> None:
    """Raise UnreadableError for a formula over elements that are not computed with."""
    if dtype.name not in COMPUTED or dtype != rule.dtype:
        raise UnreadableError(
            f"{fields.what}: a formula over {dtype.name} as {rule.dtype.name}"
        )


def _parse_bits(fields: _Fields, dtype: DType) -> int:
    """The bits of a constant."""
    text = fields.text("constant")
    digits = text.removeprefix("0x")
    # `int(…, 16)` would take signs, blanks and underscores too.
    is_hex = all(char in "0123456789abcdef" for char in digits)
    if digits == text or len(digits) != dtype.bits // 4 or not is_hex:
        raise UnreadableError(
            f"{fields.what}: {show(text, 40)} are no bits of {dtype.name}",
            hint="as in 0x3f80",
        )
    return int(digits, 16)


def _parse_dropped(fields: _Fields, room: _Room) -> Leftovers:
    source = parse_template(fields.text("tensor"))
    places = fields.places(room)
    shape = fields.numbers("shape")
    dtype = dtype_named(fields.text("dtype"))
    elements = fields.number("elements", 1)
    equal_to = fields.text("equal_to") if fields.has("equal_to") else None
    constant = _parse_bits(fields, dtype) if fields.has("constant") else None
    rows = fields.rows("repeats") if fields.has("repeats") else []
    repeats = [_parse_repeat(_Fields(row, "a row of repeats"), shape) for row in rows]
    fields.refuse_others()
    return Leftovers(
        source,
        places,
        shape,
        dtype,
        elements,
        equal_to=equal_to,
        constant=constant,
        repeats=tuple(repeats),
    )


def _parse_repeat(fields: _Fields, shape: Sequence[int]) -> Repeat:
    names = ("axis", "to", "from", "count")
    axis, to, at, count = [fields.number(name) for name in names]
    step = fields.number("from_step", -_LARGEST)
    fields.refuse_others()
    size = shape[axis] if axis < len(shape) else 0
    # Both ends of both sides: slices in between lie between them.
    ends = (to, to + count - 1, at, at + (count - 1) * step)
    if not count or not all(0 <= end < size for end in ends):
        raise UnreadableError(f"{fields.what}: takes slices that are not there")
    return Repeat(axis, to, at, count, step)


def parsed_mapping(texts: Sequence[str]) -> Mapping[str, str]:
    """The pairs of `--assume`: a name of B, and the name of A behind the last `=`.
    Raises UsageError.
    """
    from ckpt.model.errors import UsageError

    pairs: dict[str, str] = {}
    for text in texts:
        # The last `=`: names of tensors may have one, and the name of A has none.
        name, equals, source = text.partition("=")
        if not equals or not name or not source:
            raise UsageError(
                f"--assume {show(text, 60)}: not a pair",
                hint="--assume NAME_IN_B=NAME_IN_A",
            )
        pairs[name] = source
    return pairs
