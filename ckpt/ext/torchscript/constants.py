"""The operators in the code of TorchScript that torch.jit.load computes, because all
their arguments are constants.

torch computes them when it compiles a method, whether somebody calls it or not. Only
numbers, texts and tuples are computed, no tensors and no lists. Layout:
torch/csrc/jit/passes/constant_propagation.cpp (`ConstantPropagationImmutableTypes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ckpt.ext.torchscript.lexer import (
    DEDENT,
    INDENT,
    NAME,
    NEWLINE,
    NUMBER,
    SIGN,
    TEXT,
    TYPE_COMMENT,
    Token,
)
from ckpt.ext.torchscript.operators import (
    BUILTINS,
    DIVIDING,
    FOLDED,
    NUMBERS,
    RESULTS,
    STRETCHING,
)
from ckpt.model.limits import Budget

Kind = Literal["varies", "number", "short", "constant", "type"]
"""The kind of an expression: it surely is no constant, or it may be a number, a short
text, or any other constant.
"""
_MOST = 256
"""The most arguments and names of a statement that are kept. Those beyond count as
constants.
"""
_ROW = 150
"""Bytes of memory of a name."""
_SHORT = 300
"""The most letters of a text that others may hold as often as the code says its
name.
"""

_LITERALS = frozenset(("True", "False", "None", "inf", "nan"))
_BINARY = frozenset(
    ("+", "*", "%", "//", "**", "<<", "+=", "*=", "%=", "//=", "**=", "<<=")
)
"""Operators that torch.jit.save writes by their names."""
_TYPES = frozenset(("int", "float", "bool", "str", "complex", "number"))


def _literal_kind(kind: str, text: str) -> Kind:
    return (
        "number" if kind == NUMBER else "short" if len(text) <= _SHORT else "constant"
    )


def is_safe_divisor(literal: str) -> bool:
    """Tell whether a number may divide any other one: 0 and -1 end the process."""
    digits = literal.lower()
    # `p` begins the exponent of a hexadecimal number, and `e` begins any other.
    if digits.startswith("0x"):
        return any(digit in "123456789abcdef" for digit in digits[2:].split("p")[0])
    return any(
        digit in "123456789" for digit in digits.split("e")[0]
    ) and not literal.startswith("-")


class _Argument:
    """An argument or an expression so far: its kind, and the literal that it is, if it
    is nothing else.
    """

    __slots__ = ("kind", "literal", "name")

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self.literal = ""
        self.name = ""
        """The dotted name that may be called."""


class _Group:
    """An open bracket, with what is called before it and the arguments inside."""

    __slots__ = ("arguments", "before", "now", "sign")

    def __init__(self, sign: str, before: _Argument | None) -> None:
        self.sign = sign
        self.before = before
        self.arguments: list[_Argument] = []
        self.now = _Argument()


class Constants:
    """One body, token by token. `found` yields the operators that are not listed and
    may be computed.
    """

    def __init__(
        self,
        params: Iterator[str],
        tuples: frozenset[str],
        has_values: bool,
        budget: Budget,
    ) -> None:
        self._budget = budget
        self._names: dict[str, Kind] = dict.fromkeys(params, "varies")
        self._aliases: dict[str, str] = {}
        """Names that stand for an operator or a function."""
        self._tuples = tuples
        """The named tuples of the code. torch takes them apart, so an item may be a
        constant.
        """
        self._has_values = has_values
        """Some of `CONSTANTS` are no tensors."""
        self._groups: list[_Group] = [_Group("", None)]
        self._targets: list[str] = []
        self._declared: list[str] = []
        """The name of the statement before a type."""
        self._named: list[str] = []
        """The names of the statement before its `=`."""
        self._level = 0
        self._is_member = False
        self._is_for = False
        self._last = ""

    def find(self, tokens: Iterator[Token]) -> Iterator[tuple[str, Token]]:
        """Yield each operator, with its token, that torch may compute and that is not
        cheap.
        """
        for token in tokens:
            kind, text = token.kind, token.text
            if kind in (NEWLINE, INDENT, DEDENT):
                self._end_statement()
                self._level += (kind == INDENT) - (kind == DEDENT)
            elif kind == NAME:
                self._name(text)
            elif kind in (NUMBER, TEXT):
                self._take_literal(text, _literal_kind(kind, text))
            elif kind == SIGN and text in "([{":
                self._open(text)
            elif kind == SIGN and text in ")]}":
                yield from self._close_group(token)
            elif text == ".":
                self._is_member = True
                continue
            elif text == ",":
                self._end_argument()
            elif text == "=" and len(self._groups) == 1:
                self._named += self._declared or self._targets
                self._targets.clear()
                self._groups = [_Group("", None)]
            elif text == "=":
                self._groups[-1].now = _Argument()
            elif text == ":" and len(self._groups) == 1:
                self._declared = self._targets[:1]  # `a : Tensor = b`
                self._groups = [_Group("", None)]
            elif text in _BINARY and self._groups[-1].now.kind is not None:
                yield f"the operator {text}", token
                self._groups[-1].now.literal = ""
            elif text != TYPE_COMMENT:
                self._groups[-1].now.literal = (
                    "-" if self._groups[-1].now.kind is None else ""
                )
            self._is_member = False
            self._last = text

    # --- statements -------------------------------------------------------------------

    def _end_statement(self) -> None:
        # Brackets that are still open belong to code that torch does not read.
        group = self._groups[0]
        self._end_argument()
        values = group.arguments
        is_paired = len(values) == len(self._named) > 0  # `a, b = c, d`
        for index, name in enumerate(self._named):
            self._assign_name(name, [values[index]] if is_paired else values)
        self._groups = [_Group("", None)]
        self._named, self._targets, self._declared = [], [], []
        self._is_for = False

    def _assign_name(self, name: str, values: list[_Argument]) -> None:
        kinds = {value.kind for value in values if value.kind is not None}
        self._aliases.pop(name, None)
        if kinds == {"type"} and len(values) == 1:
            self._aliases[name] = values[0].name  # `_0 = __torch__.function`
        kind: Kind = "type" if kinds == {"type"} else _join_kinds(kinds)
        if self._level and name in self._names:
            # By another branch it may be something else.
            kind = _join_kinds({kind, self._names[name]})
        if name not in self._names:
            self._budget.charge(_ROW, "the code of the archive")
        self._names[name] = kind

    def _end_argument(self) -> None:
        group = self._groups[-1]
        if group.now.kind is not None and len(group.arguments) < _MOST:
            group.arguments.append(group.now)
        elif group.now.kind is not None:
            # Of a long list the kinds are kept, not the items.
            last = group.arguments[-1]
            last.kind, last.literal = (
                _join_kinds({last.kind or "type", group.now.kind}),
                "",
            )
        group.now = _Argument()

    # --- expressions ------------------------------------------------------------------

    def _name(self, text: str) -> None:
        now = self._groups[-1].now
        # The kind of a member is the kind of what stands before the dot.
        if self._is_member and now.kind is not None:
            now.name = f"{now.name}.{text}"
            return
        if text == "for":
            self._is_for = True
        elif text == "in" and self._is_for:
            self._named += self._targets
            self._targets.clear()
            self._groups = [_Group("", None)]
        elif text in (
            "if",
            "else",
            "and",
            "or",
            "not",
            "is",
            "in",
            "return",
            "assert",
            "as",
            "with",
            "elif",
            "while",
        ):
            now.literal, now.name = "", ""
            if text in ("if", "else", "and", "or", "is", "in") and now.kind is not None:
                self._end_argument()  # either side may be the value
        elif text in ("pass", "raise", "del", "break", "continue"):
            pass
        elif text in _LITERALS:
            self._take_literal(text, "number")
        else:
            # `a, b = c` and `(a, b) = c`: no name inside of a call is a target.
            if len(self._groups) == 1 or all(
                group.before is None for group in self._groups[1:]
            ):
                if len(self._targets) < _MOST:
                    self._targets.append(text)
            self._value(self._kind_of(text))
            self._groups[-1].now.name = text

    def _kind_of(self, text: str) -> Kind:
        known = self._names.get(text)
        if known is not None:
            return known
        if text == "CONSTANTS":
            return "constant" if self._has_values else "varies"
        if (
            text in BUILTINS
            or text in _TYPES
            or text[:1].isupper()
            or text in ("torch", "ops", "__torch__")
        ):
            return "type"
        # A name that nothing assigned to may be anything, so the worst is assumed.
        return "constant"

    def _take_literal(self, text: str, kind: Kind) -> None:
        now = self._groups[-1].now
        literal = "" if now.kind is not None else now.literal + text
        self._value(kind)
        now.literal = literal

    def _value(self, kind: Kind) -> None:
        """Join the expression so far with a value of a kind."""
        now = self._groups[-1].now
        now.kind = kind if now.kind in (None, "type") else _join_kinds({now.kind, kind})
        now.literal = now.name = ""

    def _open(self, sign: str) -> None:
        now = self._groups[-1].now
        self._groups.append(_Group(sign, now if now.kind is not None else None))

    def _close_group(self, token: Token) -> Iterator[tuple[str, Token]]:
        if len(self._groups) == 1:
            return
        self._end_argument()
        group = self._groups.pop()
        kinds = {
            argument.kind for argument in group.arguments if argument.kind is not None
        }
        now = self._groups[-1].now
        if group.before is None:
            is_list = group.sign != "("
            # `(x)` is x; a last comma makes a tuple of it.
            if len(group.arguments) == 1 and not is_list and self._last != ",":
                self._groups[-1].now = group.arguments[0]
            else:
                self._value("varies" if is_list else _join_kinds(kinds))
            return
        if group.sign == "[":
            now.literal = now.name = ""
            return  # an item is of the kind of the whole
        result = self._call_kind(group, kinds)
        name = now.name
        now.literal = now.name = ""
        if result is not None:
            now.kind = result
            return
        now.kind = "constant"
        yield f"{name} of constants", token

    def _call_kind(self, group: _Group, kinds: set[Kind]) -> Kind | None:
        """Return the kind of the result of a call, or None for an operator that is not
        listed.
        """
        before = group.before
        assert before is not None
        head, dot, rest = before.name.partition(".")
        # `_0 = __torch__.function`, and then `_0(x)`.
        called = self._aliases.get(head, head) + dot + rest
        head, last = called.partition(".")[0], called.rpartition(".")[2]
        if head == "__torch__":
            return _join_kinds(kinds) if called in self._tuples else "varies"
        arguments = list(group.arguments)
        # Before the dot stands a value, which is the first argument of its method.
        if before.kind != "type":
            if before.kind == "varies" and "." in before.name:
                return "varies"
            arguments.insert(0, before)
        elif before.name == "getattr" and kinds and "varies" in kinds:
            return "varies"
        if last in FOLDED or before.name == "len":
            return "number"
        real = [argument for argument in arguments if argument.kind != "type"]
        if any(argument.kind == "varies" for argument in real):
            return "varies"
        if last == "str":
            return (
                "constant"
                if all(argument.kind == "number" for argument in real)
                else None
            )
        if last in DIVIDING:
            if len(real) == 2 and is_safe_divisor(real[1].literal):
                return "number"
            return None
        if last in STRETCHING:
            # Numbers do not grow by a sum; a text grows by each use of its name.
            is_short = all(argument.kind == "number" for argument in real)
            is_short = is_short or (
                len(real) == 2
                and any(0 < len(argument.literal) <= 200 for argument in real)
            )
            if not is_short:
                return None
            return (
                "number"
                if all(argument.kind == "number" for argument in real)
                else "constant"
            )
        if last in NUMBERS:
            return "number"
        if (
            head == "unchecked_cast"
            and group.arguments
            and group.arguments[0].name == "Tensor"
        ):
            return "varies"
        if head in ("annotate", "unchecked_cast"):
            return _join_kinds({argument.kind for argument in real if argument.kind})
        return RESULTS.get(last)


def _join_kinds(kinds: set[Kind]) -> Kind:
    """The kind of a value that may be any of several."""
    kinds = kinds - {"type"}
    if not kinds or kinds == {"varies"}:
        return "varies"
    return (
        "constant" if "constant" in kinds else "short" if "short" in kinds else "number"
    )
