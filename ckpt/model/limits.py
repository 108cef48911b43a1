"""The limits on reading one file, what is left of them while it is read, and the strict
JSON of strangers within them.

At the defaults memory stays below 256 MB plus 2.5 kB per tensor, or 64 bytes per
stored byte for rows of values, and time is linear in the bytes of the file.
`--limit NAME=VALUE` raises one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from ckpt.model.errors import LimitError, UnreadableError, UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, show

_SUFFIXES: dict[str, int] = {
    "": 1,
    **{
        f"{letter}{b}": 10**power
        for letter, power in zip("KMGT", (3, 6, 9, 12), strict=True)
        for b in ("", "B")
    },
    **{
        f"{letter}IB": 2**power
        for letter, power in zip("KMGT", (10, 20, 30, 40), strict=True)
    },
}


TENSOR_MEMORY = 2_500
"""Bytes of memory that one tensor may take."""
TENSOR_BYTES = 30
"""The fewest bytes of its own that a tensor takes in a file: no file holds more tensors
than its bytes allow.
"""
VALUE_MEMORY = 64
"""Bytes of memory that the rows of values may take for each stored byte.

A history of 100,000 steps with three numbers each takes 4 MB in a file, and 50 times as
much as rows.
"""
RECORD_BYTES = 128
"""Bytes of the directory of a zip archive that one record may take."""
INFLATION = 64
"""The most bytes of pickle that one stored byte may become. Pickles of state dicts
deflate to a tenth.
"""


LONG_NAME = 256
"""Letters of a name up to which its steps cost nothing."""


def long_name_bytes(name: str) -> int:
    """The bytes of memory of all beginnings of a long name up to a dot: what looks for
    the modules in names makes each of them.
    """
    return len(name) * name.count(".")


class Limits(NamedTuple):
    """Limits on reading. Names with `bytes` count bytes, all others count items."""

    memory: int = 200_000_000
    """Estimated bytes of all objects made from one file. Each tensor that the file
    holds adds TENSOR_MEMORY, or the rows of its values VALUE_MEMORY for each stored
    byte, if that is more.
    """
    pickle_bytes: int = 256 * 2**20
    """The size of one uncompressed pickle. 20,000 tensors take 2 MB, but pickles also
    hold arrays and tokenizers.
    """
    inflated_bytes: int = 4 * 2**20
    """Bytes of all pickles of a file, each time they are read. Each byte that the file
    stores adds INFLATION.
    """
    operations: int = 50_000_000
    """Opcodes of all pickles of a file, about 30 per tensor."""
    globals: int = 10_000
    """Distinct names that one pickle imports. Real files have under 100."""
    depth: int = 200
    """Containers inside containers."""
    entries: int = 2_000_000
    """Records of a zip archive, tensors of a safetensors file."""
    directory_bytes: int = 64 * 2**20
    """The central directory of a zip archive, where a record takes more than
    RECORD_BYTES there.
    """
    header_bytes: int = 100_000_000
    """The header of a safetensors file, for which 100 MB is the limit of the format
    itself, or of a GGUF file.
    """
    index_bytes: int = 64 * 2**20
    """The JSON index of a sharded checkpoint, and any other JSON file beside
    weights.
    """
    metadata_bytes: int = 2**30
    """The `.metadata` of a distributed checkpoint: about 150 bytes per chunk."""
    shards: int = 10_000
    """Files of a sharded checkpoint."""
    nesting: int = 4
    """Checkpoints inside the pickles of checkpoints."""

    def raised(self, settings: list[str]) -> Limits:
        """These limits with `NAME=VALUE` settings applied (`pickle-bytes=1GiB`). Raises
        UsageError.
        """
        # Options have dashes, fields of Python have underscores.
        fields = {field.replace("_", "-"): field for field in self._fields}
        changes: dict[str, int] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in fields:
                raise UsageError(
                    f"no limit called {name}", hint="limits: " + " ".join(fields)
                )
            changes[fields[name]] = _parse_limit(setting, value)
        return self._replace(**changes)


class Budget:
    """The rest of the limits while one file is read: for all its pickles, headers, code
    and paths together.

    `memory` counts estimated bytes, `parsed` bytes of pickles, `operations` opcodes.
    """

    __slots__ = (
        "_granted",
        "_stored",
        "_tensors",
        "limits",
        "memory",
        "operations",
        "parsed",
    )

    def __init__(self, limits: Limits, stored: int = 0) -> None:
        self.limits = limits
        self.memory = limits.memory
        self.operations = limits.operations
        self.parsed = limits.inflated_bytes
        self._granted = self._stored = self._tensors = 0
        # Allowances grow with the bytes that the file really has, and not with its
        # claims.
        self.hold(stored)

    def copy(self) -> Budget:
        """The same budget, to try something with."""
        budget = Budget(self.limits)
        budget.become(self)
        return budget

    def become(self, other: Budget) -> None:
        """Take over what is left of another one."""
        self.memory, self.operations, self.parsed = (
            other.memory,
            other.operations,
            other.parsed,
        )
        self._granted, self._stored, self._tensors = (
            other._granted,
            other._stored,
            other._tensors,
        )

    def hold(self, stored: int) -> None:
        """Allow for `stored` more bytes that the file really has: of pickles, a header
        or a directory.
        """
        self._stored += stored
        self.parsed += stored * INFLATION

    def claim(self, tensors: int) -> None:
        """Count tensors that the file names. They are believed as far as its bytes
        allow.
        """
        self._tensors += tensors

    def granted(self, tensors: int = 0) -> int:
        """Add the memory of the tensors named so far, and of `tensors` further ones, to
        what is left, and return it.
        """
        # A file of few bytes cannot hold the many tensors that it names.
        held = min(self._tensors + tensors, self._stored // TENSOR_BYTES)
        return self._grant(held * TENSOR_MEMORY)

    def charge_rows(self, what: str) -> None:
        """Add the memory of rows of values, as far as the stored bytes allow. Raises
        LimitError when more is taken.
        """
        self._grant(self._stored * VALUE_MEMORY)
        self.charge(0, what)

    def _grant(self, allowed: int) -> int:
        """Raise all that was added to `allowed` bytes, and return what this adds."""
        more = max(0, allowed - self._granted)
        self._granted += more
        self.memory += more
        return more

    def charge(self, memory: int, what: str = "the file") -> None:
        """Take `memory` bytes. Raises LimitError when that is more than is left."""
        self.memory -= memory
        if self.memory < 0:
            # Tensors that were named meanwhile may allow more.
            self.granted()
            if self.memory < 0:
                raise self.exceeded(what)

    def charge_names(self, names: Iterable[str], what: str) -> None:
        """Charge the long names of tensors for what looks at each of their beginnings.
        Raises LimitError.
        """
        for name in names:
            if len(name) > LONG_NAME:
                self.charge(long_name_bytes(name), what)

    @property
    def used(self) -> int:
        """Estimated bytes of all objects that were made and are still there."""
        return self.limits.memory + self._granted - self.memory

    def release(self, memory: int) -> None:
        """Give back `memory` bytes of objects that are gone."""
        self.memory += memory

    def exceeded(self, what: str) -> LimitError:
        """The error for something that needs more memory than is left."""
        return LimitError(f"{what} needs too much memory", "memory", self.limits.memory)

    def parse(self, nbytes: int) -> None:
        """Count `nbytes` of a pickle that is about to be read. Raises LimitError when
        the file stores too few for it.
        """
        self.check(nbytes)
        self.parsed -= nbytes

    def check(self, nbytes: int) -> None:
        """Raise LimitError when the file stores too few bytes for a pickle of
        `nbytes`.
        """
        if nbytes > self.parsed:
            raise LimitError(
                "the pickles of the file inflate too far",
                "inflated-bytes",
                self.limits.inflated_bytes,
            )


def number_of(value: str) -> int | None:
    """Parse a number with an optional unit (`5GB`, `1GiB`, `2M`), or return None for
    any other text.
    """
    # `GiB` is 2**30 and `GB` is 10**9; the letters may be small.
    digits = value.rstrip("KMGTiBkmgtb")
    factor = _SUFFIXES.get(value[len(digits) :].upper())
    if (
        not (digits.isascii() and digits.isdigit())
        or len(digits) > 18
        or factor is None
    ):
        return None
    return int(digits) * factor


def _parse_limit(setting: str, value: str) -> int:
    number = number_of(value)
    if number is None:
        raise UsageError(
            f"--limit {setting}: not a number", hint="as in pickle-bytes=1GiB"
        )
    return number


_DIGITS = 4_000
"""Digits of one number; Python itself refuses 4,301."""
_OBJECT, _ARRAY, _ITEM, _TEXT = 250, 80, 40, 60
"""Bytes of memory of what JSON becomes: an object of three fields, an array, a number
or an entry, a text.
"""


def parse_json(
    data: bytes,
    what: str,
    budget: Budget,
    claim: bytes | None = None,
    *,
    constants: bool = False,
) -> Json:
    """Strict JSON: UTF-8, no duplicate keys, no NaN, no number that is infinite as a
    float, no lone surrogates in keys. Raises UnreadableError.

    Its memory is estimated before it is parsed and charged to `budget`. Each `claim` in
    it names a tensor. With `constants`, NaN and Infinity are numbers, as Python writes
    them.
    """
    import json
    from math import isinf

    # Counted in the bytes: marks inside of texts make the estimate larger, never
    # smaller.
    counts = {mark: data.count(mark) for mark in (b"{", b"[", b",", b'"')}
    memory = (
        counts[b"{"] * _OBJECT
        + counts[b"["] * _ARRAY
        + counts[b","] * _ITEM
        + counts[b'"'] * _TEXT // 2
    )
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

    def parse_fraction(digits: str) -> float:
        value = float(digits)
        if not constants and isinf(value):
            raise ValueError("a number is too large")
        return value

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        # The specification of JSON leaves it to the reader which of two equal keys
        # counts.
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"duplicate key {show(twice, 80)}")
        for key in members:
            key.encode()
        return members

    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            parse_constant=float if constants else refuse,
            parse_int=integer,
            parse_float=parse_fraction,
            object_pairs_hook=unique,
        )
        return value
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    except UnicodeEncodeError:
        problem = "a name contains a lone surrogate"
    except json.JSONDecodeError as error:
        problem = f"{error.msg.lower().removesuffix(' at')} at character {error.pos:,}"
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deep"
    raise UnreadableError(f"damaged {what}: {problem}")


def json_object(value: Json) -> dict[str, Json]:
    """The value itself. Raises ValueError unless it is an object."""
    if not isinstance(value, dict):
        raise ValueError
    return value


def json_list(value: Json) -> list[Json]:
    """The value itself. Raises ValueError unless it is a list."""
    if not isinstance(value, list):
        raise ValueError
    return value


def is_text(value: str) -> bool:
    """Tell whether UTF-8 can encode a text, because it has no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
