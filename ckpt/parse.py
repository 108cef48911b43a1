"""JSON of strangers: strict, and within the limits of the file that it comes from."""

from __future__ import annotations

from typing import NoReturn

from ckpt.errors import UnreadableError
from ckpt.limits import Budget
from ckpt.text import Json, show

_DIGITS = 4_000
"""Digits of one number; Python itself refuses 4,301."""
_OBJECT, _ARRAY, _ITEM, _TEXT = 250, 80, 40, 60
"""Bytes of memory of what JSON becomes: an object of three fields, an array, a number or an entry, a text."""


def parse_json(
    data: bytes, what: str, budget: Budget, claim: bytes | None = None, *, constants: bool = False
) -> Json:
    """Strict JSON: UTF-8, no duplicate keys, no NaN, no lone surrogates. Raises UnreadableError.

    Its memory is estimated before it is parsed and charged to `budget`. Each `claim` in it names a tensor. With
    `constants`, NaN and Infinity are numbers, as Python writes them.
    """
    import json

    counts = {mark: data.count(mark) for mark in (b"{", b"[", b",", b'"')}
    memory = counts[b"{"] * _OBJECT + counts[b"["] * _ARRAY + counts[b","] * _ITEM + counts[b'"'] * _TEXT // 2
    budget.hold(len(data))
    if claim is not None:
        budget.claim(data.count(claim))
    budget.charge(memory + len(data) * (2 if data.isascii() else 9), what)

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    def integer(digits: str) -> int:
        if len(digits) > _DIGITS:
            raise ValueError("a number has too many digits")
        return int(digits)

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"duplicate key {show(twice, 80)}")
        for key in found:
            key.encode()
        return found

    try:
        found: Json = json.loads(
            data.decode("utf-8"),
            parse_constant=float if constants else refuse,
            parse_int=integer,
            object_pairs_hook=unique,
        )
        return found
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    except UnicodeEncodeError:
        problem = "a name contains a lone surrogate"
    except json.JSONDecodeError as error:
        problem = f"{error.msg.lower()} at character {error.pos:,}"
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deep"
    raise UnreadableError(f"damaged {what}: {problem}")


def is_text(value: str) -> bool:
    """Whether UTF-8 can encode a text: it has no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
