"""A baseline of `ckpt lint`: the findings that are known already, so that only new ones
count.

An entry names a file, a code and a level, and what the finding is about. The sentence
of a finding counts only for an error: another release may word it otherwise, and a size
in it may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from ckpt.model.errors import UnreadableError
from ckpt.model.findings import Finding
from ckpt.model.limits import json_list, json_object
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, show

SCHEMA, VERSION = "ckpt.baseline", 1


class Entry(NamedTuple):
    """A known finding: its file, as a path relative to the baseline, and its
    identity.
    """

    path: str
    code: str
    level: str
    about: str
    """A hash of the names that the finding is about."""
    message: str = ""
    """The sentence, for people: it does not count."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The part that is compared."""
        return self.path, self.code, self.level, self.about

    def __str__(self) -> str:
        return f"{show(self.path, 80)}: {self.code}"


def entry_of(path: str, finding: Finding) -> Entry:
    """Return the entry of a finding of the file at a relative path."""
    # Sorted, for the order in which the names are found does not count.
    names = sorted({*finding.tensors, *finding.where})
    if not names or finding.level == "error":
        # Another command at the same place is another danger.
        names.append(finding.message)
    # 16 digits are enough to tell the findings of one file apart.
    about = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
    return Entry(path, finding.code, finding.level, about, finding.message)


def baseline_text(entries: Iterable[Entry]) -> str:
    """Return the text of a baseline: one line per entry, in the order of their paths,
    so that changes read well.
    """
    rows = [
        json.dumps(entry._asdict())
        # One entry per key: two findings may be about the same.
        for entry in sorted({entry.key: entry for entry in entries}.values())
    ]
    listed = ",\n    ".join(rows)
    findings = f"[\n    {listed}\n  ]" if rows else "[]"
    return (
        f'{{\n  "schema": {{"name": "{SCHEMA}", "version": {VERSION}}},\n  "findings": '
        f"{findings}\n}}\n"
    )


def baseline_of(document: Json) -> list[Entry]:
    """Return the entries of a parsed baseline. Raises UnreadableError where it
    is none.
    """
    try:
        # A damaged document and another one have one answer.
        head = json_object(json_object(document)["schema"])
        name, version = head["name"], head["version"]
    except (ValueError, KeyError):
        name = version = None
    if name != SCHEMA:
        raise UnreadableError(
            "not a baseline of ckpt lint", hint="--write-baseline writes one"
        )
    if version != VERSION:
        raise UnreadableError(
            f"a baseline of version {show(str(version), 20)}, this ckpt reads {VERSION}"
        )
    try:
        return [
            _entry(json_object(row))
            for row in json_list(json_object(document)["findings"])
        ]
    except (ValueError, KeyError):
        raise UnreadableError(
            "damaged baseline: an entry without its path, code, level or about"
        ) from None


def _entry(row: Mapping[str, Json]) -> Entry:
    path, code, level, about = (
        _text(row[field]) for field in ("path", "code", "level", "about")
    )
    # The message is for people, so it may be missing.
    return Entry(path, code, level, about, _text(row.get("message", "")))


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def known_and_new(
    path: str, findings: Sequence[Finding], keys: set[tuple[str, str, str, str]]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Part the findings of a file into those that the keys of a baseline hold, and the
    others.
    """
    known = [finding for finding in findings if entry_of(path, finding).key in keys]
    # By identity: a new finding may be equal to a known one.
    ids = set(map(id, known))
    return tuple(known), tuple(
        finding for finding in findings if id(finding) not in ids
    )
