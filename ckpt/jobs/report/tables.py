"""Which fields of the documents a page draws, and of what kind they are. docs/json.md describes them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ckpt.errors import UnreadableError
from ckpt.text import Json, show

_SHARE = 2
"""Values are numbered where there are this many times more rows than different values."""


def packed(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Rows of equal keys as `{count, columns}`.

    A column is `{"all": value}`, `{"of": values, "at": numbers}` with the number of the value of each row, or
    `{"is": values}`.
    """
    if not rows:
        return {"count": 0, "columns": {}}
    return {
        "count": len(rows),
        "columns": {name: _column([row[name] for row in rows]) for name in rows[0]},
    }


def _column(values: list[Json]) -> dict[str, Json]:
    numbers: dict[tuple[type, object], int] = {}
    at: list[int] = []
    of: list[Json] = []
    for value in values:
        key = (type(value), _key(value))
        number = numbers.setdefault(key, len(numbers))
        if number == len(of):
            of.append(value)
        at.append(number)
    if len(of) == 1:
        return {"all": of[0]}
    if len(of) * _SHARE <= len(values):
        return {"of": of, "at": at}
    return {"is": values}


def _key(value: Json) -> object:
    """What is equal where two values are written alike: 0.0 and -0.0 are not."""
    return repr(value) if isinstance(value, (float, list, tuple, dict)) else value


Kinds: TypeAlias = tuple[type, ...]
Columns: TypeAlias = dict[str, Kinds]

_NONE = type(None)
TEXT, COUNT, FLAG, LIST, OBJECT = (str,), (int,), (bool,), (list, tuple), (dict,)
NUMBER: Kinds = (int, float)
ANY: Kinds = (str, int, float, bool, list, tuple, dict, _NONE)


def maybe(kinds: Kinds) -> Kinds:
    """The kinds, or null, or a field that is not there."""
    return (*kinds, _NONE)


_FINDINGS: Columns = {
    "code": TEXT,
    "level": TEXT,
    "message": TEXT,
    "consequence": maybe(TEXT),
    "tensors": LIST,
    "where": LIST,
    "hint": maybe(TEXT),
}
_STATS: Columns = {
    "name": TEXT,
    "dtype": TEXT,
    "shape": LIST,
    "why_not": maybe(TEXT),
    **{name: maybe(NUMBER) for name in ("min", "max", "mean", "std", "rms")},
    **{name: maybe(COUNT) for name in ("numel", "zeros", "nan", "inf")},
    "channels": maybe(OBJECT),
    "histogram": maybe(OBJECT),
}
ROWS: dict[str, dict[str, Columns]] = {
    "ckpt.inspect": {
        "tensors": {
            "name": TEXT,
            "section": maybe(TEXT),
            "dtype": TEXT,
            "shape": LIST,
            "numel": COUNT,
            "bytes": COUNT,
            "device": maybe(TEXT),
            "storage": maybe(TEXT),
            "layout": TEXT,
            "requires_grad": maybe(FLAG),
            "role": TEXT,
            "evidence": OBJECT,
            "in_optimizer": maybe(FLAG),
            "optimizer_state": maybe(OBJECT),
            "sharding": maybe(OBJECT),
        },
        "storages": {
            "id": TEXT,
            "device": maybe(TEXT),
            "bytes": COUNT,
            "used_bytes": COUNT,
            "kind": TEXT,
            "tensors": LIST,
        },
        "sections": {"name": TEXT, "kind": TEXT, "tensors": COUNT, "numel": COUNT, "bytes": COUNT},
        "prefixes": {"prefix": TEXT, "writer": TEXT, "section": TEXT, "tensors": COUNT, "of": COUNT},
        "values": {
            "name": TEXT,
            "type": TEXT,
            "value": ANY,
            "value_is": maybe(TEXT),
            "fields": maybe(COUNT),
            "same_as": maybe(TEXT),
        },
        "imports": {"module": TEXT, "name": TEXT, "group": TEXT, "where": LIST, "calls": LIST},
        "findings": _FINDINGS,
    },
    "ckpt.diff": {
        "tensors": {
            "status": TEXT,
            "before": maybe(TEXT),
            "after": maybe(TEXT),
            "role": TEXT,
            "dtype": LIST,
            "shape": LIST,
            "device": LIST,
            "reason": maybe(TEXT),
            "cause": maybe(TEXT),
            "change": maybe(OBJECT),
        },
        "values": {"name": TEXT, "status": TEXT, "before": ANY, "after": ANY},
        "findings": _FINDINGS,
    },
    "ckpt.stats": {"tensors": _STATS, "findings": _FINDINGS},
    "ckpt.ls": {"findings": _FINDINGS},
}
"""Schema -> list of the document -> the columns that a page takes of it. An optional one may be null or missing."""
HEADS: dict[str, Columns] = {
    "ckpt.inspect": {
        "file": OBJECT,
        "totals": OBJECT,
        "weights_only": maybe(OBJECT),
        "load": maybe(TEXT),
        "load_note": maybe(TEXT),
    },
    "ckpt.diff": {
        "before": OBJECT,
        "after": OBJECT,
        "same": FLAG,
        "structure_only": maybe(FLAG),
        "quick": maybe(FLAG),
        "damaged": maybe(LIST),
        "not_compared": LIST,
        "totals": OBJECT,
        "notes": LIST,
    },
    "ckpt.stats": {"file": OBJECT, "section": TEXT, "totals": OBJECT, "threshold": maybe(NUMBER)},
    "ckpt.ls": {
        "path": TEXT,
        "format": maybe(TEXT),
        "bytes": maybe(COUNT),
        "tensors": maybe(COUNT),
        "parameters": maybe(COUNT),
        "dtypes": LIST,
        "devices": LIST,
        "loads": maybe(TEXT),
    },
}
"""The same for what is no list of rows."""
VERSIONS = {"ckpt.inspect": 1, "ckpt.diff": 1, "ckpt.stats": 1, "ckpt.ls": 2}


def schema_of(document: Mapping[str, Json]) -> str:
    """The name of the schema of a document that a page can draw. Raises UnreadableError for any other."""
    schema = document.get("schema")
    name = schema.get("name") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or name not in VERSIONS:
        raise UnreadableError(
            "not a document that a page draws", hint="expected what inspect, diff, stats or ls --json printed"
        )
    if schema.get("version") != VERSIONS[str(name)] and not is_error(document):
        raise UnreadableError(f"unknown version of {name}: {show(str(schema.get('version')), 20)}")
    return str(name)


def is_error(document: Mapping[str, Json]) -> bool:
    """Whether a document says why a PATH cannot be read."""
    return isinstance(document.get("error"), dict)


def taken(source: Mapping[str, Json], columns: Columns, of: str = "") -> dict[str, Json]:
    """The fields that a page takes of an object. Raises UnreadableError where one is of another kind."""
    found: dict[str, Json] = {}
    for name, kinds in columns.items():
        value = source.get(name)
        # A flag is an int to Python, and no count.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UnreadableError(f"invalid document: {of}{name} is not as docs/json.md describes it")
        found[name] = value
    return found


def rows_of(document: Mapping[str, Json], name: str, columns: Columns) -> list[dict[str, Json]]:
    """The rows of a list of a document. Raises UnreadableError where they are not as expected."""
    rows = document.get(name)
    if not isinstance(rows, Sequence) or not all(isinstance(row, dict) for row in rows):
        raise UnreadableError(f"invalid document: {name} is not as docs/json.md describes it")
    return [taken(row, columns, f"{name}[].") for row in rows if isinstance(row, dict)]
