"""A stored `inspect --json` as a checkpoint without bytes: names, shapes, dtypes, for
`diff --structure`.

Not a format of the table: only `open_listing` reads it, so a listing is never mistaken
for a checkpoint.
"""

from __future__ import annotations

from contextlib import closing

from ckpt.bytes.location import locate
from ckpt.bytes.source import read_limited
from ckpt.model.checkpoint import Checkpoint, Declared, DeclaredSection, Entry, Traits
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import UnreadableError, about
from ckpt.model.limits import Budget, Limits, json_list, json_object, parse_json
from ckpt.model.names import Key, NamedKey, Path, is_index
from ckpt.model.tensors import Composite, Storage, Tensor, tensor_ref
from ckpt.model.text import Json, show

NAME = "listing"
TRAITS = Traits("a listing")
_SCHEMA = "ckpt.inspect"


def open_listing(path: str, limits: Limits) -> Checkpoint | None:
    """The listing at a path; None when the file is not JSON. Raises CkptError for JSON
    that `inspect` did not write.
    """
    location = locate(path)
    # An index of shards is JSON too, and other readers open it.
    if location.is_folder() or is_index(path):
        return None
    with about(path):
        with closing(location.open()) as source:
            if not source.size or source.read(0, 1) != b"{":
                return None
            data = read_limited(
                source, limits.index_bytes, "index-bytes", "the listing"
            )
        if data.count(b'"schema"', 0, _SCHEMA_WITHIN) == 0:
            return None
        budget = Budget(limits)
        document = parse_json(
            data,
            "listing (expected one document of ckpt inspect --json)",
            budget,
            b'"dtype"',
        )
        assert isinstance(document, dict)  # it begins with {
        schema = document.get("schema")
        if not isinstance(schema, dict) or schema.get("name") != _SCHEMA:
            raise UnreadableError(
                "not a listing of tensors",
                hint="expected the document of ckpt inspect --json",
            )
        version = schema.get("version")
        if version != 1:
            shown = show(str(version), 20)
            raise UnreadableError(f"unknown version of a listing: {shown}")
        try:
            checkpoint = _make_checkpoint(path, document)
        # The parsers below raise these: strangers write listings too.
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UnreadableError(
                "invalid listing: it does not follow docs/json.md"
            ) from None
        names = (entry.name for entry in checkpoint.tensors)
        budget.charge_names(names, "the listing")
        return checkpoint


def open_documents(path: str, limits: Limits) -> list[dict[str, Json]] | None:
    """The documents that a file holds, one or one on each line; None when it holds
    none. Raises CkptError.

    Every command with `--json` writes such files. What their fields are is for the
    reader to check.
    """
    location = locate(path)
    if location.is_folder() or not location.is_file() or is_index(path):
        return None
    with closing(location.open()) as source:
        if not source.size or source.read(0, 1) != b"{":
            return None
        head = source.read(0, min(source.size, _HEAD))
        if b'"schema"' not in head or b'"ckpt.' not in head:
            return None
        data = read_limited(source, limits.index_bytes, "index-bytes", "the document")
    budget = Budget(limits)
    what = "document (expected what --json of a command printed)"
    texts = data.split(b"\n")
    # On a terminal one document takes many lines, in a pipe each takes one.
    if not texts[0].rstrip().endswith(b"}"):
        texts = [data]
    values = [parse_json(text, what, budget) for text in texts if text.strip()]
    documents = [document for document in values if isinstance(document, dict)]
    if len(documents) < len(values):
        raise UnreadableError("a line of the documents is no object")
    return documents


_HEAD = 4096
"""A document begins with its schema."""
_SCHEMA_WITHIN = 1 << 20
"""Bytes of a file within which a listing names its schema: other JSON is not parsed."""
_ROLES = frozenset(("parameter", "buffer", "optimizer", "other", "unknown"))
_TRUSTS = frozenset(("certain", "strong", "likely", "none"))
_KINDS = frozenset(
    ("model", "ema", "optimizer", "scheduler", "scaler", "rng", "other", "snapshot")
)


def _make_checkpoint(path: str, document: dict[str, Json]) -> Checkpoint:
    rows = [json_object(row) for row in json_list(document["tensors"])]
    entries = tuple(_parse_entry(row) for row in rows)
    empty_sections = _parse_sections(document["sections"])
    sections: list[DeclaredSection] = []
    for index, row in enumerate(rows):
        name = _parse_text(row["section"])
        end = index + 1
        # Tensors of one section that lie apart are two runs: a section is one run.
        if sections and sections[-1].name == name and sections[-1].last == index:
            sections[-1] = sections[-1]._replace(last=end)
        else:
            sections.append(empty_sections[name]._replace(first=index, last=end))
    filled = {section.name for section in sections}
    # The record that `ckpt.snapshot` puts into a file has no tensors.
    if any(empty_sections[name].kind == "snapshot" for name in filled):
        raise ValueError
    for name, section in empty_sections.items():
        if name not in filled:
            sections.append(section)
    roles = tuple(_parse_role(row) for row in rows)
    return Checkpoint(
        path=path,
        format=NAME,
        traits=TRAITS,
        nbytes=_parse_count(json_object(document["file"])["bytes"]),
        root=None,
        tensors=entries,
        storages=(),
        declared=Declared(tuple(sections), roles),
        not_loadable="a listing has no tensor data to load",
    )


def _parse_sections(value: Json) -> dict[str, DeclaredSection]:
    """Return the sections of a listing by their names, as yet without tensors."""
    sections = {}
    for row in map(json_object, json_list(value)):
        name = _parse_text(row["name"])
        path = _parse_path(row["path"])
        kind = _one_of(row["kind"], _KINDS)
        sections[name] = DeclaredSection(path, name, kind, 0, 0)
    return sections


def _parse_role(row: dict[str, Json]) -> tuple[str, str, str, str]:
    evidence = json_object(row["evidence"])
    trust = _one_of(evidence["trust"], _TRUSTS)
    return (
        _one_of(row["role"], _ROLES),
        trust,
        _parse_text(evidence["source"]),
        _parse_text(evidence["note"]),
    )


def _dtype(name: str) -> DType:
    """The element type of a name. Raises KeyError."""
    if name in BY_NAME:
        return BY_NAME[name]
    # Here: the table imports this room's modules.
    from ckpt.formats import known_formats

    of_formats: dict[str, DType] = {}
    for format in known_formats():
        of_formats |= {dtype.name: dtype for dtype in format.dtypes}
    return of_formats[name]


def _parse_entry(row: dict[str, Json]) -> Entry:
    shape = tuple(_parse_count(size) for size in json_list(row["shape"]))
    dtype = _dtype(_parse_text(row["dtype"]))
    device = None if row["device"] is None else _parse_text(row["device"])
    tensor: Tensor
    if row["layout"] == "strided":
        storage = Storage(_parse_text(row["storage"]), device, dtype, 0, None)
        stride = tuple(_parse_count(step) for step in json_list(row["stride"]))
        # An empty tensor would pass `tensor_ref` with any stride.
        if len(stride) != len(shape):
            raise ValueError
        tensor = tensor_ref(storage, dtype, shape, stride, _parse_count(row["offset"]))
    else:
        tensor = Composite(
            _parse_identifier(row["layout"]),
            dtype,
            shape,
            (),
            device,
            elements=_parse_count(row["numel"]),
        )
    return Entry(_parse_path(row["path"]), _parse_text(row["name"]), tensor)


def _parse_count(value: Json) -> int:
    # torch counts in 64 bits with a sign.
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def _parse_text(value: Json) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _parse_identifier(value: Json) -> str:
    """A name such as `sparse_coo`: what displays print as it is."""
    if not (type(value) is str and value.isascii() and value.isidentifier()):
        raise ValueError
    return value


def _one_of(value: Json, names: frozenset[str]) -> str:
    if value not in names:
        raise ValueError
    return _parse_text(value)


def _parse_path(keys: Json) -> Path:
    if type(keys) is not list:
        raise ValueError
    return tuple(_parse_key(key) for key in keys)


def _parse_key(key: Json) -> Key:
    if isinstance(key, dict):
        return NamedKey(_parse_text(key["text"]), _parse_text(key["type"]))
    if type(key) is int and -(2**63) <= key < 2**63:
        return key
    return _parse_text(key)
