"""The limits on reading one file, as one immutable value.

The defaults keep memory under 1 GB and time linear in the file's size. `--limit NAME=VALUE` raises one.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpt.errors import UsageError

_SUFFIXES: dict[str, int] = {
    "": 1,
    **{
        f"{letter}{b}": 10**power
        for letter, power in zip("KMGT", (3, 6, 9, 12), strict=True)
        for b in ("", "B")
    },
    **{f"{letter}IB": 2**power for letter, power in zip("KMGT", (10, 20, 30, 40), strict=True)},
}


class Limits(NamedTuple):
    """Limits on reading. Names with `bytes` count bytes, all others count items."""

    pickle_bytes: int = 256 * 2**20
    """The size of one uncompressed pickle. 20,000 tensors take 2 MB, but pickles also hold arrays and tokenizers."""
    operations: int = 20_000_000
    """Opcodes of one pickle, about 30 per tensor."""
    values: int = 3_000_000
    """Strings, containers and objects of one pickle, about 12 per tensor."""
    paths: int = 1_000_000
    """Paths of the tree to a tensor, a value or a container. A tree may expand far beyond the size of its file."""
    repeats: int = 200_000
    """Paths inside containers that occur more than once."""
    name_characters: int = 300_000_000
    """Characters in the names of all paths together."""
    globals: int = 10_000
    """Distinct names that one pickle imports. Real files have under 100."""
    depth: int = 200
    """Containers inside containers."""
    entries: int = 1_000_000
    """Records of a zip archive, tensors of a safetensors file."""
    directory_bytes: int = 64 * 2**20
    """The central directory of a zip archive."""
    header_bytes: int = 100_000_000
    """The header of a safetensors file. 100 MB is the limit of the format itself."""
    index_bytes: int = 64 * 2**20
    """The JSON index of a sharded checkpoint."""
    nesting: int = 4
    """Checkpoints inside the pickles of checkpoints."""

    def raised(self, settings: list[str]) -> Limits:
        """These limits with `NAME=VALUE` settings applied (`pickle-bytes=1GiB`). Raises UsageError."""
        fields = {field.replace("_", "-"): field for field in self._fields}
        changes: dict[str, int] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in fields:
                raise UsageError(f"no limit called {name}", hint="limits: " + " ".join(fields))
            changes[fields[name]] = _number(setting, value)
        return self._replace(**changes)


def number_of(value: str) -> int | None:
    """A number with an optional unit (`5GB`, `1GiB`, `2M`); None for any other text."""
    digits = value.rstrip("KMGTiBkmgtb")
    factor = _SUFFIXES.get(value[len(digits) :].upper())
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18 or factor is None:
        return None
    return int(digits) * factor


def _number(setting: str, value: str) -> int:
    number = number_of(value)
    if number is None:
        raise UsageError(f"--limit {setting}: not a number", hint="as in pickle-bytes=1GiB")
    return number
