"""A stored `inspect --json` as a checkpoint without bytes: names, shapes, dtypes, for `diff --structure`.

Not a format of the table: only who asks for a listing gets one, so that none is ever taken for a checkpoint.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ckpt.checkpoint import Checkpoint, Composite, Entry, Storage, Tensor, tensor_ref
from ckpt.dtypes import BY_NAME
from ckpt.errors import UnreadableError, about
from ckpt.files import File, read_limited
from ckpt.formats.safetensors import parse_json
from ckpt.limits import Limits
from ckpt.names import Key, NamedKey, Path, show

NAME = "listing"
_SCHEMA = "ckpt.inspect"


class ListedSection(NamedTuple):
    """A section as the document names it: its tensors are those at `first` to `last`."""

    path: Path
    name: str
    kind: str
    first: int
    last: int


class Listing(NamedTuple):
    """What a listing says beside its tensors; `roles` are (role, trust, source, note) of each."""

    sections: tuple[ListedSection, ...]
    roles: tuple[tuple[str, str, str, str], ...]


def open_listing(path: str, limits: Limits) -> Checkpoint | None:
    """The listing at a path; None when it is no JSON. Raises CkptError for JSON that is none of `inspect`."""
    if os.path.isdir(path) or path.endswith(".index.json"):
        return None
    with about(path):
        file = File(path)
        try:
            if not file.size or file.read(0, 1) != b"{":
                return None
            data = read_limited(file, limits.index_bytes, "index-bytes", "the listing")
        finally:
            file.close()
        if data.count(b'"schema"', 0, 1 << 20) == 0:
            return None
        document = parse_json(data, "listing (one document of inspect --json is needed)")
        schema = document.get("schema")
        if not isinstance(schema, dict) or schema.get("name") != _SCHEMA:
            raise UnreadableError(
                "a document of ckpt that lists no tensors", hint="ckpt inspect --json makes one"
            )
        if schema.get("version") != 1:
            raise UnreadableError(f"a listing of another version: {show(str(schema.get('version')), 20)}")
        try:
            return _checkpoint(path, document)
        except (KeyError, TypeError, ValueError):
            raise UnreadableError("a listing that is not laid out as docs/json.md says") from None


def _checkpoint(path: str, document: dict[str, Any]) -> Checkpoint:
    rows = document["tensors"]
    entries = tuple(_entry(row) for row in rows)
    kinds = {row["name"]: (_path(row["path"]), str(row["kind"])) for row in document["sections"]}
    sections: list[ListedSection] = []
    for place, row in enumerate(rows):
        name = row["section"]
        if name is None or name not in kinds:
            continue
        if sections and sections[-1].name == name and sections[-1].last == place:
            sections[-1] = sections[-1]._replace(last=place + 1)
        else:
            sections.append(ListedSection(kinds[name][0], name, kinds[name][1], place, place + 1))
    roles = tuple(
        (str(row["role"]), *(str(row["evidence"][key]) for key in ("trust", "source", "note")))
        for row in rows
    )
    return Checkpoint(
        path=path,
        format=NAME,
        nbytes=int(document["file"]["bytes"]),
        root=None,
        tensors=entries,
        storages=(),
        origin=Listing(tuple(sections), roles),  # type: ignore[arg-type]
        not_loadable="a listing of a checkpoint, without its bytes",
    )


def _entry(row: dict[str, Any]) -> Entry:
    shape, dtype = tuple(row["shape"]), BY_NAME[row["dtype"]]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError
    tensor: Tensor
    if row["layout"] == "strided":
        storage = Storage(str(row["storage"]), row["device"], dtype, 0, None)
        tensor = tensor_ref(storage, dtype, shape, tuple(map(int, row["stride"])), int(row["offset"]))
    else:
        tensor = Composite(str(row["layout"]), dtype, shape, (), row["device"], elements=int(row["numel"]))
    return Entry(_path(row["path"]), str(row["name"]), tensor)


def _path(keys: list[Any]) -> Path:
    return tuple(_key(key) for key in keys)


def _key(key: Any) -> Key:
    if isinstance(key, dict):
        return NamedKey(str(key["text"]), str(key["type"]))
    if type(key) not in (str, int):
        raise ValueError
    made: Key = key
    return made
