"""The document `ckpt.part`: what one part of a job has measured, as docs/json.md describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ckpt import __version__
from ckpt.errors import UnreadableError
from ckpt.jobs.parts.share import Input, Share
from ckpt.limits import Budget, Limits
from ckpt.parse import parse_json
from ckpt.rows import NamedTuple
from ckpt.text import Json, show

MOST = 1_000_000
"""The most parts of a job."""
_SCHEMA: Json = {"name": "ckpt.part", "version": 1}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INPUTS = 2


class Part(NamedTuple):
    """What one machine has measured: the results of the tasks from `first` on, of `tasks` that the job has.

    `command` and `options` are those of the command line that cut it, `plan` is equal where the tasks are.
    """

    share: Share
    command: str
    inputs: tuple[Input, ...]
    options: Mapping[str, Json]
    tasks: int
    plan: str
    first: int
    results: Sequence[Json]
    version: str = __version__
    file: str = ""
    """The file that it was read from."""

    def to_json(self) -> dict[str, Json]:
        """The document."""
        return {
            "schema": _SCHEMA,
            "ckpt": self.version,
            "part": self.share.number,
            "of": self.share.of,
            "command": self.command,
            "inputs": [
                {"path": row.path, "files": row.files, "bytes": row.nbytes, "digest": row.digest}
                for row in self.inputs
            ],
            "options": self.options,
            "tasks": self.tasks,
            "plan": self.plan,
            "first": self.first,
            "results": self.results,
        }


def part_of(data: bytes, file: str, limits: Limits) -> Part:
    """The part in a document. Raises UnreadableError for anything else, and for one that is cut off."""
    if not data.strip():
        raise UnreadableError("empty: the part was not finished", path=file)
    fields = _Fields(parse_json(data, "part", Budget(limits), constants=True), file)
    if fields.value("schema") != _SCHEMA:
        name = fields.value("schema")
        other = name.get("name") if isinstance(name, Mapping) else None
        what = f"a document {show(other, 40)}" if isinstance(other, str) else "another document"
        raise UnreadableError(f"is not a part: {what}", path=file, hint="--part I/N writes parts")
    share = Share(fields.count("part"), fields.count("of"))
    if not share.number < share.of <= MOST:
        raise UnreadableError("is not a part: its number is not below that of all parts", path=file)
    rows = fields.rows("inputs")
    inputs = tuple(
        Input(row.text("path"), row.count("files"), row.count("bytes"), row.digest("digest"))
        for row in (_Fields(row, file) for row in rows)
    )
    if not 0 < len(inputs) <= _INPUTS:
        raise fields.wrong("inputs")
    options = fields.value("options")
    if not isinstance(options, Mapping):
        raise fields.wrong("options")
    return Part(
        share,
        fields.text("command"),
        inputs,
        options,
        fields.count("tasks"),
        fields.digest("plan"),
        fields.count("first"),
        fields.rows("results"),
        fields.text("ckpt"),
        file,
    )


class _Fields:
    """The fields of an object of the document, each of which must have its type."""

    def __init__(self, value: Json, file: str) -> None:
        if not isinstance(value, Mapping):
            raise UnreadableError("is not a part: not a JSON object", path=file)
        self._fields = value
        self._file = file

    def wrong(self, name: str) -> UnreadableError:
        return UnreadableError(f"is not a part: {name} is missing, or not what ckpt writes", path=self._file)

    def value(self, name: str) -> Json:
        return self._fields.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name)
        return value

    def digest(self, name: str) -> str:
        value = self.text(name)
        if not _DIGEST.fullmatch(value):
            raise self.wrong(name)
        return value

    def count(self, name: str) -> int:
        value = self.value(name)
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise self.wrong(name)
        return value

    def rows(self, name: str) -> Sequence[Json]:
        value = self.value(name)
        if not isinstance(value, list):
            raise self.wrong(name)
        return value
