"""The content of a page: one view for each checkpoint, comparison, series or folder, in
one payload.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import TypeAlias

from ckpt.bytes.far import is_url
from ckpt.commands.ls.ls import LsRow, in_order
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError, UnreadableError
from ckpt.model.names import findable_labels, natural_sort_key
from ckpt.model.nodes import Node
from ckpt.model.text import Json, counted_noun, show
from ckpt.surface.reports import document_head
from ckpt.tree.find import counter
from ckpt.tree.view import look

_LONGEST = 2000
"""Characters of one value that a page shows."""
# Fields of a change: numbers, pairs of numbers (before, after), and the two sides.
_NUMBERS = ("differing", "other_bytes", "numel", "max_abs", "rms", "rel_l2")
_PAIRS = ("nan", "inf", "at")
_SIDES = ("before", "after")
# Files of one run share all tensors; files of two models share some by chance.
_KIN = 20
"""Two files are of one model if at least one tensor of so many is in both."""

Document = Mapping[str, Json]


Numbers = Mapping[str, Mapping[str, float]]
"""PATH -> the numbers that its checkpoint records, by their names."""


def page_payload(
    documents: Iterable[Document], version: str, numbers: Numbers = MappingProxyType({})
) -> dict[str, Json]:
    """Return the data that the script of a page draws: `views`, and the PATHs that are
    `unreadable`.

    The documents come from `inspect`, `diff`, `stats` and `ls --json`, and from errors.
    `numbers` become the curves of a series; a file that has none there shows its
    counters. Raises UnreadableError.
    """
    views: dict[str, list[dict[str, Json]]] = {name: [] for name in ROWS}
    unreadable: list[Json] = []
    for document in documents:
        name = schema_of(document)
        if is_error(document):
            unreadable.append(_failure_row(document))
        else:
            views[name].append(_DRAWN[name](document, name))
    # A PATH that cannot be read is enough for a page: it says why.
    if not any(views.values()) and not unreadable:
        raise UnreadableError("no document to draw")
    return {
        "ckpt": version,
        "views": list(_list_views(views, numbers)),
        "unreadable": unreadable,
    }


def checkpoint_paths(documents: Iterable[Document]) -> list[str]:
    """The PATHs of the checkpoints that some documents are about, each once, without
    what cannot be read.
    """
    paths: dict[str, None] = {}
    for document in documents:
        if not is_error(document):
            # Documents of one file have `file` or `path`, those of two have `before`
            # and `after`.
            sides = [
                document,
                *(document.get(name) for name in ("file", "before", "after")),
            ]
            found = [side.get("path") for side in sides if isinstance(side, Mapping)]
            paths |= {path: None for path in found if isinstance(path, str)}
    return list(paths)


def in_series(rows: Iterable[LsRow]) -> list[LsRow]:
    """Return the rows of a series in the order of the epochs and steps that they
    record, if all of them do.

    Else they are in the order of `ls`. Where folders hold several files, a series is
    one folder after the other.
    """
    out = in_order(rows)
    folders = [natural_sort_key(os.path.dirname(row.path)) for row in out]
    is_run = len(set(folders)) < len(out)
    places = [row.reached for row in out]
    if None in places:
        return out
    # A run in several folders counts anew in each. Rows that record the same keep the
    # order of `ls`.
    keyed = [
        (folder if is_run else (), place or (), row)
        for folder, place, row in zip(folders, places, out, strict=True)
    ]
    return [row for _, _, row in sorted(keyed, key=lambda each: each[:2])]


def error_document(path: str, schema: str, error: CkptError) -> dict[str, Json]:
    """The document of an error about a PATH, as `--json` prints it."""
    return {
        **document_head(schema, 1),
        "file": {"path": path},
        "error": error.failure(path)._asdict(),
    }


def is_series(rows: Sequence[LsRow]) -> bool:
    """Tell whether the checkpoints of a folder are saves of one run: of as many
    parameters, and counted.

    They record epochs or steps that differ, or their paths differ in numbers alone. The
    files of ranks are no series.
    """
    if len(rows) < 2 or any("rank" in os.path.basename(row.path) for row in rows):
        return False
    # Saves of one run have as many parameters each.
    sizes = {(row.parameters, row.unknown) for row in rows}
    if len(sizes) > 1 or sizes == {(0, 0)}:
        return False
    patterns = {re.sub("[0-9]+", "0", row.path) for row in rows}
    reached = {row.reached for row in rows}
    in_one_folder = len({os.path.dirname(row.path) for row in rows}) == 1
    return len(patterns) == 1 or (
        in_one_folder and None not in reached and len(reached) > 1
    )


_MOST_NUMBERS = 2000
"""Numbers of one file that may become curves."""
_MOST_SINGLE = 64
"""Tensors of one element in a section that are read for it."""


def numbers_of(survey: Survey) -> dict[str, float]:
    """Return the finite numbers that a checkpoint records beside its tensors, by their
    names.

    Tensors with one element outside of models and optimizers are such numbers too:
    `loss`. They are read, so not behind a URL. Random states are none.
    """
    others = [section for section in survey.sections if section.kind == "other"]
    # Scalar tensors in a model are weights, such as a temperature.
    single: list[tuple[str, Node]] = []
    for section in others if not is_url(survey.checkpoint.path) else ():
        for entry in section.entries[:_MOST_SINGLE]:
            if entry.tensor.numel == 1:
                single.append((entry.name, entry.tensor))
    values = [
        (value.name, value.node)
        for value in survey.checkpoint.values
        if value.node is not None
    ]
    found: dict[str, float] = {}
    for name, node in (*values, *single):
        if len(found) >= _MOST_NUMBERS:
            break
        # The state of a random generator is numbers too, which mean nothing as a curve.
        if re.search("rng|random", name, re.IGNORECASE) is not None:
            continue
        number = counter(node)
        # Infinity is no number of JSON, and has no place in a chart.
        if number is None or not isfinite(number):
            continue
        if not isinstance(look(node).value, bool):
            found[name] = number
    return found


_FIRST = ("loss", "lr", "learning_rate")
"""Words of the names of the curves that come first."""


def _list_curves(
    paths: Sequence[str], numbers: Numbers, listed: Sequence[Document]
) -> list[Json]:
    """Return the numbers that all files record, in their order: `[{names, values}]`,
    equal ones together.
    """
    counted = {
        row["path"]: row["counters"]
        for row in listed
        if isinstance(row["counters"], Mapping)
    }
    # The numbers that the file itself records, else the counters of its row.
    tables = [
        numbers[path] if path in numbers else counted.get(path, {}) for path in paths
    ]
    if not tables:
        return []
    by_values: dict[tuple[float, ...], list[str]] = {}
    for name in tables[0]:
        column = [table.get(name) for table in tables]
        # Python counts True as a number.
        values = tuple(
            value
            for value in column
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        )
        if len(values) == len(paths):
            by_values.setdefault(values, []).append(name)
    # Frameworks write one number under several names: they are one curve.
    ordered = sorted(by_values.items(), key=lambda item: min(map(_curve_rank, item[1])))
    curves: list[Json] = []
    for values, names in ordered:
        curves.append({"names": [*sorted(names, key=len)], "values": [*values]})
    return curves


def _curve_rank(name: str) -> tuple[int, int]:
    """The place of a curve: loss and lr first, then metrics, and counters last."""
    last = name.rpartition(".")[2].lower()
    first = len(_FIRST)
    for place, word in enumerate(_FIRST):
        if word == last or word in last.split("_"):
            first = place
            break
    is_counter = any(word in last for word in ("epoch", "step", "iter"))
    return (first + is_counter, len(name))


def _list_views(
    by_schema: dict[str, list[dict[str, Json]]], numbers: Numbers
) -> Iterable[Json]:
    """The views in the order of the page: what is about all files first."""
    inspected, compared = by_schema["ckpt.inspect"], by_schema["ckpt.diff"]
    measured, listed = by_schema["ckpt.stats"], by_schema["ckpt.ls"]
    files = {"files": listed} if listed else {}
    strangers = [
        document["strangers"]
        for document in compared
        if document["strangers"] is not None
    ]
    # Files that share no tensor are no series: their changes would mean nothing.
    if len(listed) > 1 and 0 < len(compared) == len(strangers):
        note = "These files have next to no tensor in common."
        if len(listed) == 2:
            note = f"These files have {strangers[0]}."
        yield {
            "kind": "folder",
            "title": "Files",
            "note": note,
            **_view_labels(listed, by_schema),
            **files,
        }
        # These documents are drawn, and are not drawn once more below.
        measured, compared, listed = [], [], []
    elif len(measured) > 1 or len(compared) > 1:
        yield {
            "kind": "series",
            "title": "Series",
            "stats": measured,
            "diffs": compared,
            "curves": _list_curves(_in_order(measured, compared), numbers, listed),
            **_view_labels(listed, by_schema),
            **files,
        }
        measured, compared, listed = [], [], []
    # The rows of two files that are compared stand in the view of the comparison.
    sides = {_side_path(document, side) for document in compared[:1] for side in _SIDES}
    is_pair = len(compared) == 1 and sides == {row["path"] for row in listed}
    if listed and not is_pair:
        yield {
            "kind": "folder",
            "title": "Files",
            "note": None,
            **_view_labels(listed, by_schema),
            **files,
        }
    for document in compared:
        title = " → ".join(_side_path(document, side) for side in _SIDES)
        yield {"kind": "diff", "title": title, **document, **(files if is_pair else {})}
    # Numbers of a file stand in the view of the file, if it has one.
    unpaired = list(measured)
    for document in inspected:
        path = _side_path(document, "file")
        own = next(
            (
                candidate
                for candidate in unpaired
                if _side_path(candidate, "file") == path
            ),
            None,
        )
        if own is not None:
            unpaired.remove(own)
        yield {
            "kind": "checkpoint",
            "title": path,
            **document,
            **({"stats": own} if own is not None else {}),
        }
    for document in unpaired:
        yield {
            "kind": "stats",
            "title": _side_path(document, "file"),
            "stats": document,
        }


def _in_order(measured: Sequence[Document], compared: Sequence[Document]) -> list[str]:
    """The files of a series, as the page takes them: the measured ones, else all that
    were compared.
    """
    if measured:
        return [_side_path(document, "file") for document in measured]
    paths = [_side_path(document, side) for document in compared for side in _SIDES]
    return list(dict.fromkeys(paths))


def _view_labels(
    listed: Sequence[Document], by_schema: dict[str, list[dict[str, Json]]]
) -> dict[str, Json]:
    """`labels`: pairs of a path and the label that tells its file from the others of
    the view.
    """
    compared, measured = by_schema["ckpt.diff"], by_schema["ckpt.stats"]
    paths = checkpoint_paths([*listed, *measured, *compared])
    return {
        "labels": [
            [path, label]
            for path, label in zip(paths, findable_labels(paths), strict=True)
        ]
    }


def _side_path(document: Document, name: str) -> str:
    side = document[name]
    path = side.get("path") if isinstance(side, dict) else None
    if not isinstance(path, str):
        raise UnreadableError(f"invalid document: {name} has no path")
    return path


def _failure_row(document: Document) -> dict[str, Json]:
    """A PATH that cannot be read, and why."""
    file, error = document.get("file"), document["error"]
    assert isinstance(error, dict)  # `is_error` looked at it
    path = file.get("path") if isinstance(file, dict) else None
    texts = {name: error.get(name) for name in ("code", "message", "hint")}
    return {
        "path": path if isinstance(path, str) else "",
        **{
            name: text if isinstance(text, str) else None
            for name, text in texts.items()
        },
    }


def _draw_document(
    document: Document, schema: str, **rows: Sequence[dict[str, Json]]
) -> dict[str, Json]:
    """The fields that a page takes of a document, its lists as columns, in place of
    which some `rows` may stand.
    """
    # Findings stay rows, for each has its own fields; all other lists become columns.
    tables = {
        name: rows[name] if name in rows else rows_of(document, name, columns)
        for name, columns in ROWS[schema].items()
    }
    return {
        **take_fields(document, HEADS[schema]),
        **{
            name: items if name == "findings" else pack_rows(list(items))
            for name, items in tables.items()
        },
    }


def _draw_inspect(document: Document, schema: str) -> dict[str, Json]:
    columns = ROWS[schema]
    # The page shows how many tensors a storage has, and not which.
    storages: list[dict[str, Json]] = [
        {**row, "tensors": _count_items(row["tensors"])}
        for row in rows_of(document, "storages", columns["storages"])
    ]
    values = [_value_row(row) for row in rows_of(document, "values", columns["values"])]
    return _draw_document(document, schema, storages=storages, values=values)


def _count_items(value: Json) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 0


def _value_row(row: dict[str, Json]) -> dict[str, Json]:
    """A value as text: JSON, cut where it is long."""
    # Exactly one of these says what the value is.
    if row["value_is"] is not None:
        text: Json = row["value_is"]
    elif row["same_as"] is not None:
        text = f"as {row['same_as']}"
    elif row["fields"] is not None:
        text = None
    elif isinstance(row["value"], str) and row["type"] != "str":
        # A path, a date, a call: its text is no string of the file.
        text = _cut_value(row["value"])
    else:
        text = _value_text(row["value"])
    return {
        "name": row["name"],
        "type": row["type"],
        "text": text,
        "fields": row["fields"],
    }


def _value_text(value: Json) -> str:
    return _cut_value(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _cut_value(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _draw_diff(document: Document, schema: str) -> dict[str, Json]:
    columns = ROWS[schema]
    tensors = [
        _flatten_change(row) for row in rows_of(document, "tensors", columns["tensors"])
    ]
    values: list[dict[str, Json]] = [
        {
            **row,
            "before": _value_text(row["before"]),
            "after": _value_text(row["after"]),
        }
        for row in rows_of(document, "values", columns["values"])
    ]
    view = _draw_document(document, schema, tensors=tensors, values=values)
    for side in _SIDES:
        _side_path(view, side)
    view["strangers"] = _strangers_text(tensors)
    view["judged"] = _judged_weights(document)
    return view


def _judged_weights(document: Document) -> Json:
    """Say how many weights are within what a quantised type makes, or None where none
    is judged.

    Without it the page would call each of them changed, which the command does not.
    """
    # One of the two is there where a side of the comparison is quantised.
    gguf, other = document.get("gguf"), document.get("quantised")
    if isinstance(gguf, Mapping):
        flags = [row.get("within") is True for row in _rows_in(gguf, "tensors")]
        strays = [*_items_in(gguf, "lacking"), *_items_in(gguf, "more")]
    elif isinstance(other, Mapping):
        flags = [row.get("verdict") == "within" for row in _rows_in(other, "weights")]
        strays = _items_in(other, "others")
    else:
        return None
    if not flags:
        return None
    noun = counted_noun(len(flags), "tensor")
    text = (
        f"{sum(flags):,} of {noun} within what quantised types make of the other side"
    )
    return {"text": text, "is_within": all(flags) and not strays}


def _items_in(part: Mapping[str, Json], name: str) -> list[Json]:
    items = part.get(name)
    return list(items) if isinstance(items, (list, tuple)) else []


def _rows_in(part: Mapping[str, Json], name: str) -> list[Mapping[str, Json]]:
    return [row for row in _items_in(part, name) if isinstance(row, Mapping)]


def _strangers_text(rows: Sequence[Document]) -> str | None:
    """Say that two files have next to no tensor in common. State of an optimizer is
    numbered alike in all files.
    """
    # Else two optimizers alone would have all of their names in common.
    rows = [row for row in rows if row["role"] != "optimizer"] or rows
    met = sum(row["before"] is not None and row["after"] is not None for row in rows)
    least = min(
        (sum(row[side] is not None for row in rows) for side in _SIDES), default=0
    )
    # Less than one tensor of twenty is in both.
    if met * _KIN >= least:
        return None
    if not met:
        return "no tensor in common"
    return f"{met:,} of {counted_noun(least, 'tensor')} in common"


def _flatten_change(row: dict[str, Json]) -> dict[str, Json]:
    """A tensor of a comparison, its change flat: a number that is not finite is its
    name.
    """
    change = row.pop("change")
    fields = change if isinstance(change, dict) else {}
    for name in _NUMBERS:
        number = fields.get(name)
        kind = fields.get(f"{name}_is")
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if is_number:
            row[name] = number
        else:
            # JSON has no NaN: `max_abs_is` is "nan", "inf" or null.
            row[name] = kind if isinstance(kind, str) else None
    for name in _PAIRS:
        pair = fields.get(name)
        row[name] = pair if isinstance(pair, (list, tuple)) else None
    row["histogram"] = checked_histogram(fields.get("histogram"))
    return row


def checked_histogram(value: Json) -> Json:
    """`{low, high, counts}` as it stands in a document, or null where it is anything
    else.
    """
    if not isinstance(value, dict):
        return None
    low, high, counts = (value.get(name) for name in ("low", "high", "counts"))
    # Anything that is no list makes the test below fail.
    items = counts if isinstance(counts, (list, tuple)) else [None]
    numbers = [low, high, *items]
    if not all(
        isinstance(number, (int, float)) and not isinstance(number, bool)
        for number in numbers
    ):
        return None
    return {"low": low, "high": high, "counts": counts}


def _draw_stats(document: Document, schema: str) -> dict[str, Json]:
    rows = rows_of(document, "tensors", ROWS[schema]["tensors"])
    view = _draw_document(
        document,
        schema,
        tensors=[
            {**row, "histogram": checked_histogram(row["histogram"])} for row in rows
        ],
    )
    _side_path(view, "file")
    return view


def _draw_ls(document: Document, schema: str) -> dict[str, Json]:
    return _draw_document(document, schema)


_DRAWN = {
    "ckpt.inspect": _draw_inspect,
    "ckpt.diff": _draw_diff,
    "ckpt.stats": _draw_stats,
    "ckpt.ls": _draw_ls,
}


_SHARE = 2
"""Values are numbered where there are this many times more rows than different
values.
"""


def pack_rows(rows: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Rows of equal keys as `{count, columns}`.

    A column is `{"all": value}`, `{"of": values, "at": numbers}` with the number of the
    value of each row, or `{"is": values}`.
    """
    if not rows:
        return {"count": 0, "columns": {}}
    return {
        "count": len(rows),
        "columns": {
            name: _pack_column([row[name] for row in rows]) for name in rows[0]
        },
    }


def _pack_column(values: list[Json]) -> dict[str, Json]:
    # (type, value) -> its number: 1 and True are equal in Python, and two values here.
    numbers: dict[tuple[type, object], int] = {}
    indices: list[int] = []
    of: list[Json] = []
    for value in values:
        key = (type(value), _equality_key(value))
        number = numbers.setdefault(key, len(numbers))
        if number == len(of):
            of.append(value)
        indices.append(number)
    # A column of one value, or of a few, takes a fraction of the page's bytes.
    if len(of) == 1:
        return {"all": of[0]}
    if len(of) * _SHARE <= len(values):
        return {"of": of, "at": indices}
    return {"is": values}


def _equality_key(value: Json) -> object:
    """Return a key that is equal if two values are written alike. 0.0 and -0.0
    are not.
    """
    return repr(value) if isinstance(value, (float, list, tuple, dict)) else value


Kinds: TypeAlias = tuple[type, ...]
Columns: TypeAlias = dict[str, Kinds]

_NONE = type(None)
TEXT, COUNT, FLAG, LIST, OBJECT = (str,), (int,), (bool,), (list, tuple), (dict,)
NUMBER: Kinds = (int, float)
ANY: Kinds = (str, int, float, bool, list, tuple, dict, _NONE)


def or_null(kinds: Kinds) -> Kinds:
    """The kinds, or null, or a field that is not there."""
    return (*kinds, _NONE)


_FINDINGS: Columns = {
    "code": TEXT,
    "level": TEXT,
    "message": TEXT,
    "consequence": or_null(TEXT),
    "tensors": LIST,
    "where": LIST,
    "hint": or_null(TEXT),
}
_STATS: Columns = {
    "name": TEXT,
    "dtype": TEXT,
    "shape": LIST,
    "why_not": or_null(TEXT),
    **{name: or_null(NUMBER) for name in ("min", "max", "mean", "std", "rms")},
    **{name: or_null(COUNT) for name in ("numel", "zeros", "nan", "inf")},
    "channels": or_null(OBJECT),
    "histogram": or_null(OBJECT),
}
ROWS: dict[str, dict[str, Columns]] = {
    "ckpt.inspect": {
        "tensors": {
            "name": TEXT,
            "section": or_null(TEXT),
            "dtype": TEXT,
            "shape": LIST,
            "numel": COUNT,
            "bytes": COUNT,
            "device": or_null(TEXT),
            "storage": or_null(TEXT),
            "layout": TEXT,
            "requires_grad": or_null(FLAG),
            "role": TEXT,
            "evidence": OBJECT,
            "in_optimizer": or_null(FLAG),
            "parameter": or_null(TEXT),
            "optimizer_state": or_null(OBJECT),
            "sharding": or_null(OBJECT),
        },
        "storages": {
            "id": TEXT,
            "device": or_null(TEXT),
            "bytes": COUNT,
            "used_bytes": COUNT,
            "kind": TEXT,
            "tensors": LIST,
        },
        "sections": {
            "name": TEXT,
            "kind": TEXT,
            "tensors": COUNT,
            "numel": COUNT,
            "bytes": COUNT,
        },
        "prefixes": {
            "prefix": TEXT,
            "writer": TEXT,
            "section": TEXT,
            "tensors": COUNT,
            "of": COUNT,
        },
        "values": {
            "name": TEXT,
            "type": TEXT,
            "value": ANY,
            "value_is": or_null(TEXT),
            "fields": or_null(COUNT),
            "same_as": or_null(TEXT),
        },
        "imports": {
            "module": TEXT,
            "name": TEXT,
            "group": TEXT,
            "where": LIST,
            "calls": LIST,
        },
        "findings": _FINDINGS,
    },
    "ckpt.diff": {
        "tensors": {
            "status": TEXT,
            "before": or_null(TEXT),
            "after": or_null(TEXT),
            "role": TEXT,
            "dtype": LIST,
            "shape": LIST,
            "device": LIST,
            "reason": or_null(TEXT),
            "cause": or_null(TEXT),
            "parameter": or_null(TEXT),
            "change": or_null(OBJECT),
        },
        "values": {"name": TEXT, "status": TEXT, "before": ANY, "after": ANY},
        "findings": _FINDINGS,
    },
    "ckpt.stats": {"tensors": _STATS, "findings": _FINDINGS},
    "ckpt.ls": {"findings": _FINDINGS},
}
"""Schema -> list of the document -> the columns that a page takes of it. An optional
one may be null or missing.
"""
HEADS: dict[str, Columns] = {
    "ckpt.inspect": {
        "file": OBJECT,
        "totals": OBJECT,
        "weights_only": or_null(OBJECT),
        "load": or_null(TEXT),
        "load_note": or_null(TEXT),
        "load_command": or_null(TEXT),
    },
    "ckpt.diff": {
        "before": OBJECT,
        "after": OBJECT,
        "same": FLAG,
        "structure_only": or_null(FLAG),
        "quick": or_null(FLAG),
        "damaged": or_null(LIST),
        "not_compared": LIST,
        "totals": OBJECT,
        "notes": LIST,
    },
    "ckpt.stats": {
        "file": OBJECT,
        "section": TEXT,
        "totals": OBJECT,
        "threshold": or_null(NUMBER),
        "unread": or_null(LIST),
    },
    "ckpt.ls": {
        "path": TEXT,
        "format": or_null(TEXT),
        "bytes": or_null(COUNT),
        "tensors": or_null(COUNT),
        "parameters": or_null(COUNT),
        "unknown": or_null(COUNT),
        "dtypes": LIST,
        "devices": LIST,
        "loads": or_null(TEXT),
        "counters": or_null(OBJECT),
    },
}
"""The same for what is no list of rows."""
VERSIONS = {"ckpt.inspect": 1, "ckpt.diff": 1, "ckpt.stats": 1, "ckpt.ls": 2}


def schema_of(document: Mapping[str, Json]) -> str:
    """The name of the schema of a document that a page can draw. Raises UnreadableError
    for any other.
    """
    schema = document.get("schema")
    name = schema.get("name") if isinstance(schema, dict) else None
    is_known = isinstance(name, str) and name in VERSIONS
    if not isinstance(schema, dict) or not is_known:
        raise UnreadableError(
            "not a document that a page draws",
            hint="expected what inspect, diff, stats or ls --json printed",
        )
    if schema.get("version") != VERSIONS[str(name)] and not is_error(document):
        raise UnreadableError(
            f"unknown version of {name}: {show(str(schema.get('version')), 20)}"
        )
    return str(name)


def is_error(document: Mapping[str, Json]) -> bool:
    """Tell whether a document says why a PATH cannot be read."""
    return isinstance(document.get("error"), dict)


def take_fields(
    source: Mapping[str, Json], columns: Columns, of: str = ""
) -> dict[str, Json]:
    """The fields that a page takes of an object. Raises UnreadableError where one is of
    another kind.
    """
    fields: dict[str, Json] = {}
    for name, kinds in columns.items():
        value = source.get(name)
        # A flag is an int to Python, and no count.
        if not isinstance(value, kinds) or (
            isinstance(value, bool) and bool not in kinds
        ):
            raise UnreadableError(
                f"invalid document: {of}{name} is not as docs/json.md describes it"
            )
        fields[name] = value
    return fields


def rows_of(
    document: Mapping[str, Json], name: str, columns: Columns
) -> list[dict[str, Json]]:
    """The rows of a list of a document. Raises UnreadableError where they are not as
    expected.
    """
    rows = document.get(name)
    # A document may come from anywhere: what the script would stumble over is refused
    # here.
    if not isinstance(rows, Sequence) or not all(isinstance(row, dict) for row in rows):
        raise UnreadableError(
            f"invalid document: {name} is not as docs/json.md describes it"
        )
    return [
        take_fields(row, columns, f"{name}[].") for row in rows if isinstance(row, dict)
    ]
