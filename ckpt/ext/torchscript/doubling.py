"""The tuples that a body of TorchScript makes of each other: torch works with the whole
type of each, so they may not double.

Layout: torch/csrc/jit/frontend/ir_emitter.cpp; the printer of torch.jit.save,
torch/csrc/jit/serialization/python_print.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.ext.torchscript.lexer import (
    DEDENT,
    INDENT,
    KEYWORDS,
    NAME,
    NEWLINE,
    NUMBER,
    SIGN,
    TEXT,
    TYPE_COMMENT,
    Token,
)
from ckpt.model.limits import Budget
from ckpt.model.rows import NamedTuple

_UNFOLDED = 10_000
"""The most parts of one tuple, with all parts of its parts."""
_LARGE = 32
"""The parts of a value from which on each use of it counts."""
_MOST_WORK = 2_000_000
"""The most parts of all large values of a program, as often as one is made of another:
torch looks at 3,000,000 in a second.
"""
_MOST = 256
"""The most parts of a tuple that are kept."""
_ROW = 150
"""Bytes of memory of a name."""
_PASSED = """
    __getitem__ _unwrap_optional add annotate copy dict enumerate get getattr items keys
    list max min pop popitem reversed setdefault slice sorted unchecked_cast
    unchecked_unwrap_optional values zip TupleIndex TupleUnpack
"""
PASSING = frozenset(_PASSED.split())
"""Operators whose result may be of the type of what they are given. The types of all
others are written out.
"""


class _Shape(NamedTuple):
    """The parts of a value, with all parts of these; of a tuple, what they are."""

    total: int = 1
    parts: tuple[_Shape, ...] = ()


_ONE = _Shape()


class _Open:
    """An open bracket or a statement: what stands before it, what is between its
    commas, and the expression so far.
    """

    __slots__ = (
        "arguments",
        "before",
        "has_comma",
        "held",
        "name",
        "now",
        "number",
        "passed",
        "sign",
    )

    def __init__(self, sign: str, before: _Shape | None, passed: bool) -> None:
        self.sign = sign
        self.before = before
        self.passed = passed
        """Flag: the call before it gives back what it is given."""
        self.arguments: list[_Shape] = []
        self.now: _Shape | None = None
        self.held: _Shape | None = None
        """The value before an operator or a keyword: the whole may be of its type."""
        self.name = ""
        self.number = ""
        self.has_comma = False

    def hold(self) -> None:
        """End a value within an expression."""
        # Either side may be the value. `max` compares totals first, so the larger
        # counts.
        shapes = [shape for shape in (self.held, self.now) if shape is not None]
        self.held, self.now, self.name, self.number = (
            max(shapes, default=None),
            None,
            "",
            "",
        )

    def end(self) -> None:
        """End an argument."""
        number = self.number
        self.hold()
        self.now, self.held, self.number = self.held, None, number
        if self.now is not None and len(self.arguments) < _MOST:
            self.arguments.append(self.now)
        elif self.now is not None:
            # Beyond the limit parts are only counted; an index no longer finds them.
            last = self.arguments[-1]
            self.arguments[-1] = _Shape(last.total + self.now.total)
        self.now, self.name = None, ""


class Work:
    """The parts of large values that the bodies of a program have made so far."""

    def __init__(self) -> None:
        self._parts = 0

    def is_little(self, total: int) -> bool:
        """Add the parts of a value. Tells whether all of them stay few enough."""
        # Small tuples are in every program, and cost torch little.
        if total >= _LARGE:
            self._parts += total
        return total <= _UNFOLDED and self._parts <= _MOST_WORK


def find_doubling(
    tokens: Iterator[Token], budget: Budget, work: Work | None = None
) -> Token | None:
    """Return the token behind which a body has a tuple of too many parts, or None.
    The parts in other bodies are in `work`.
    """
    return _Body(budget, work or Work()).run(tokens)


class _Body:
    """One body, token by token."""

    def __init__(self, budget: Budget, work: Work) -> None:
        self._budget = budget
        self._work = work
        self._names: dict[str, _Shape] = {}
        self._groups = [_Open("", None, passed=False)]
        self._targets: list[str] = []
        self._named: list[str] = []
        self._is_member = False
        self._is_typed = False
        """Flag: the type of a name follows, or the block of a head."""

    def run(self, tokens: Iterator[Token]) -> Token | None:
        for token in tokens:
            kind, text = token.kind, token.text
            group = self._groups[-1]
            if kind in (NEWLINE, INDENT, DEDENT):
                self._end_statement()
            elif kind == NAME:
                self._name(text, group)
            elif kind in (NUMBER, TEXT):
                # A number behind an operator is no index: `x[1 - 1]`.
                group.number = text if group.held is None else ""
                group.now = _ONE
            elif kind == SIGN and text in "([{":
                self._groups.append(
                    _Open(text, group.now, passed=group.name in PASSING)
                )
            elif kind == SIGN and text in ")]}":
                is_open = len(self._groups) > 1
                if is_open and not self._work.is_little(self._close_group().total):
                    return token
            elif text == ".":
                self._is_member = True
                # The next token is the member, so the flag must stay.
                continue
            elif text == ",":
                group.has_comma = True
                group.end()
            elif text == "=" and len(self._groups) == 1:
                self._named += self._targets
                self._groups = [_Open("", None, passed=False)]
            elif text in ("=", ":"):
                # `x : int` and `if x :` assign nothing to the names that follow.
                self._is_typed = self._is_typed or len(self._groups) == 1
                # The name of an argument, or of what has a type.
                group.now = group.held = None
            elif text != TYPE_COMMENT:
                group.hold()
            self._is_member = False
        return None

    def _name(self, text: str, group: _Open) -> None:
        if self._is_member:
            group.now, group.name = group.now or _ONE, text
        elif text in KEYWORDS:
            group.hold()
        else:
            # A name in the brackets of a call or an index is no target.
            is_target = all(other.before is None for other in self._groups)
            if (
                is_target
                and not (self._named or self._is_typed)
                and len(self._targets) < _MOST
            ):
                self._targets.append(text)
            group.now, group.name, group.number = self._names.get(text, _ONE), text, ""

    def _close_group(self) -> _Shape:
        group = self._groups.pop()
        group.end()
        outer = self._groups[-1]
        most = max((shape.total for shape in group.arguments), default=1)
        if group.before is None and group.sign == "(" and not group.has_comma:
            shape = group.arguments[0] if group.arguments else _ONE
        elif group.before is None and group.sign == "(":
            shape = _Shape(
                1 + sum(part.total for part in group.arguments), tuple(group.arguments)
            )
        elif group.before is None:
            # All items of a list or dict have one type.
            shape = _Shape(1 + most)
        elif group.sign == "[":
            shape = self._item(group, group.before)
        else:
            shape = _Shape(max(most, group.before.total)) if group.passed else _ONE
        outer.now, outer.name = shape, ""
        return shape

    def _item(self, group: _Open, whole: _Shape) -> _Shape:
        digits = group.number
        if digits.isdigit() and len(digits) < 4 and int(digits) < len(whole.parts):
            return whole.parts[int(digits)]
        # The index is no literal, so it may be the largest part.
        return max(whole.parts, default=whole)

    def _end_statement(self) -> None:
        group = self._groups[0]
        group.end()
        values = group.arguments
        if len(values) == 1 and not group.has_comma and len(self._named) > 1:
            # `a, b = c` takes c apart.
            values = [*values[0].parts] or [values[0]]
        elif len(self._named) == 1 and len(values) > 1:
            # `a = b, c` makes a tuple without brackets.
            values = [_Shape(1 + sum(part.total for part in values), tuple(values))]
        for index, name in enumerate(self._named):
            if name not in self._names:
                self._budget.charge(_ROW, "the code of the archive")
            is_paired = len(values) == len(self._named)
            self._names[name] = (
                values[index] if is_paired else max(values, default=_ONE)
            )
        self._groups = [_Open("", None, passed=False)]
        self._targets, self._named, self._is_typed = [], [], False
