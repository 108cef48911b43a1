"""The blocks of a body of TorchScript: torch compiles every body, and some shapes of
blocks cost it far more than their text.

A loop over a tuple is written out once for each item. A `return` or `break` puts all
that follows into one more block. And each block hands on all names that are assigned
inside of it. torch.jit.save writes loops over `range` and one `return` at the end.
Layout: torch/csrc/jit/frontend/{ir_emitter,exit_transforms,convert_to_ssa}.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.ext.torchscript.lexer import DEDENT, INDENT, NAME, NEWLINE, SIGN, Token
from ckpt.model.limits import Budget

_CARRIED = 5_000
"""The most names that the blocks of a body may hand on, whatever its length. Real ones
hand on a few hundred.
"""
_ROW = 100
"""Bytes of memory of a name in a block."""


def find_unwritten(
    tokens: Iterator[Token], budget: Budget
) -> Iterator[tuple[str, Token]]:
    """Yield what torch never writes into a body and may compile for hours, each with
    its token.
    """
    yield from _Body(budget).find(tokens)


class _Body:
    """One body, statement by statement."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._blocks: list[set[str]] = []
        """The names that are assigned in each open block."""
        self._carried = 0
        self._return: Token | None = None
        """The last `return`, which nothing but the end may follow."""

    def find(self, tokens: Iterator[Token]) -> Iterator[tuple[str, Token]]:
        statement: list[Token] = []
        for token in tokens:
            if token.kind not in (NEWLINE, INDENT, DEDENT):
                # Line breaks inside of brackets give no token, so a statement is whole
                # here.
                statement.append(token)
                continue
            if statement:
                yield from self._judge_statement(statement)
                statement = []
            if token.kind == INDENT:
                self._blocks.append(set())
            elif token.kind == DEDENT and self._blocks:
                self._blocks.pop()

    def _judge_statement(self, statement: list[Token]) -> Iterator[tuple[str, Token]]:
        first = statement[0]
        # A statement follows, so that `return` did not stand at the end.
        if self._return is not None:
            yield "a return before the end", self._return
            self._return = None
        if first.text in ("break", "continue"):
            yield f"a {first.text}", first
        elif first.text == "return":
            self._return = first
            if self._blocks:
                yield "a return in a block", first
        for index, token in enumerate(statement):
            if (
                token.kind == NAME
                and token.text == "for"
                and not _is_over_range(statement[index:])
            ):
                yield "a loop over a value", token
        if self._blocks:
            was_small = self._carried <= _CARRIED
            self._carry_names(_assigned_names(statement))
            # The sum only grows: it is said once, where it crosses the limit.
            if was_small and self._carried > _CARRIED:
                yield "blocks that hand on many names", first

    def _carry_names(self, names: list[str]) -> None:
        for name in names:
            for block in reversed(self._blocks):
                if name in block:
                    break  # the blocks around it have the name too
                self._budget.charge(_ROW, "the code of the archive")
                block.add(name)
                self._carried += 1


def _is_over_range(loop: list[Token]) -> bool:
    """Tell whether a `for` runs over a range: its body is compiled once, however many
    rounds it has.
    """
    # Behind `for` and the name that counts.
    words = [token.text for token in loop[2:5]]
    return loop[1:2] != [] and loop[1].kind == NAME and words == ["in", "range", "("]


def _assigned_names(statement: list[Token]) -> list[str]:
    """Return the names before the last `=` outside of brackets, and the name that a
    loop counts with.
    """
    depth, end = 0, 0
    for index, token in enumerate(statement):
        if token.kind == SIGN and token.text in ("(", "[", "{"):
            depth += 1
        elif token.kind == SIGN and token.text in (")", "]", "}"):
            depth -= 1
        elif token.kind == SIGN and token.text.endswith("=") and depth == 0:
            end = index
    if statement[0].text == "for":
        end = 2
    return [token.text for token in statement[:end] if token.kind == NAME]
