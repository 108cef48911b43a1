"""`collect.py FOLDER NAME=PATH ...`: the states of the objects in files, class by
class, read without unpickling.

Each PATH is a file or a folder that `write_states.py`, a framework or a test wrote, and
NAME says by whom. Writes `states.json` (classes), `others.json` (attributes of tensors,
arrays, calls that make callables) and `states.md` to FOLDER. A file that stands there
already is replaced whole. A source without a NAME is a FOLDER of an earlier run, to
merge.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    Set,
    is_tuple,
)
from ckpt.pickle.machine import Pickle, run_machine

TENSORS = (
    "_rebuild_tensor",
    "_rebuild_sparse",
    "_rebuild_qtensor",
    "_rebuild_meta",
    "_rebuild_nested",
    "_rebuild_device_tensor",
    "_rebuild_from_type",
    "_rebuild_wrapper",
)
CALLS = {
    "torch.device": "device",
    "torch.Size": "size",
    "collections.OrderedDict": "ordereddict",
    "collections.defaultdict": "defaultdict",
    "collections.Counter": "counter",
    "collections.deque": "deque",
    "_codecs.encode": "bytes",
    "__builtin__.complex": "complex",
    "builtins.complex": "complex",
    "__builtin__.set": "set",
    "builtins.set": "set",
    "__builtin__.frozenset": "frozenset",
    "builtins.frozenset": "frozenset",
    "__builtin__.range": "range",
    "builtins.range": "range",
    "__builtin__.xrange": "range",
    "__builtin__.bytearray": "bytearray",
    "builtins.bytearray": "bytearray",
    "__builtin__.slice": "slice",
    "builtins.slice": "slice",
    "__builtin__.bytes": "bytes",
}
"""Calls that make plain values. All others make objects."""
CONTAINERS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "collections.deque",
}
MAKERS = {
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "functools.partial",
    "_functools.partial",
    "__builtin__.getattr",
    "builtins.getattr",
    "operator.methodcaller",
    "operator.attrgetter",
    "operator.itemgetter",
}
"""Calls whose arguments name what is made."""
ARRAYS = ("numpy.",)


def pickles_of(data: bytes) -> Iterator[Pickle]:
    """Every pickle that lies in a file one after the other; the data of a legacy file
    ends them.
    """
    start = 0
    while start < len(data) and data[start : start + 1] in (
        b"\x80",
        b"c",
        b"(",
        b"}",
        b"]",
        b".",
    ):
        try:
            pickle = run_machine(data, Limits(), start)
        except UnreadableError:
            return
        yield pickle
        for call in pickle.calls:
            if (
                named(call).endswith("_load_from_bytes")
                and call.args
                and type(call.args[0]) is bytes
            ):
                yield from pickles_of(call.args[0])
        start = pickle.end


def read(path: str) -> Iterator[Pickle]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith((".pkl", ".pt", ".pth")):
                    yield from pickles_of(archive.read(name))
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                stream = tar.extractfile(member)
                if stream is not None:
                    yield from pickles_of(stream.read())
    else:
        with open(path, "rb") as file:
            if os.path.getsize(path) < 64 << 20:
                yield from pickles_of(file.read())


def function(call: Opaque) -> Node:
    """The name that a call calls. Legacy files hold the classes of modules outside of
    the pickle.
    """
    func = call.func
    if type(func) is PersistentId and type(func.pid) is tuple and len(func.pid) > 1:
        return func.pid[1]
    return func


def named(call: Opaque) -> str:
    func = function(call)
    if type(func) is Global:
        return func.qualified
    if type(func) is Opaque and named(func) in (
        "__builtin__.getattr",
        "builtins.getattr",
    ):
        of, name = func.args
        if type(of) is Global and isinstance(name, str):
            return f"{of.qualified}.{name}"
    return "?"


def made_by(call: Opaque) -> tuple[str, tuple[Node, ...]]:
    """The class that a call makes an object of, and the other arguments."""
    name = named(call)
    if name.endswith("._reconstructor") and call.args and type(call.args[0]) is Global:
        return call.args[0].qualified, call.args[1:]
    if name.endswith(".__newobj__") and call.args and type(call.args[0]) is Global:
        return call.args[0].qualified, call.args[1:]
    return name, call.args


def kind(node: Node) -> str:
    """The kind of a value in one word."""
    if node is None:
        return "none"
    if isinstance(node, (bool, int, float, bytes, bytearray, list)):
        return type(node).__name__
    if isinstance(node, ByteStr):
        return "bytestr"
    if isinstance(node, str):
        return "str"
    if type(node) is tuple:
        return "tuple"
    if type(node) is Dict:
        return "dict"
    if type(node) is Set:
        return "frozenset" if node.frozen else "set"
    if type(node) is PersistentId:
        if type(node.pid) is tuple and node.pid and node.pid[0] == "module":
            return "class"
        return "storage"
    if type(node) is Global:
        if node.module == "torch" and node.name in BY_NAME:
            return "dtype"
        if node.module == "torch" and node.name.startswith(
            ("strided", "sparse_", "channels_", "contiguous_", "preserve_", "per_")
        ):
            return "layout"
        return (
            "class"
            if node.name.rpartition(".")[2].lstrip("_")[:1].isupper()
            else "function"
        )
    if type(node) is Opaque:
        name, _ = made_by(node)
        if name in CALLS:
            return CALLS[name]
        last = name.rpartition(".")[2]
        if last in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter"):
            return "parameter"
        if last.startswith(TENSORS):
            return "tensor"
        if last == "_load_from_bytes":
            return "storage"
        if last in (
            "getattr",
            "partial",
            "methodcaller",
            "attrgetter",
            "itemgetter",
            "_reconstructor",
        ):
            return "callable"
        if last.startswith(("_get_layout", "_get_dtype")):
            return "layout"
        return "object"
    return type(node).__name__.lower()


def inside(node: Node) -> Iterator[Node]:
    """Yield what lies below a value down to the first objects, which have rows of their
    own.
    """
    todo: list[Node] = [node]
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if item is not node:
            yield item
        if type(item) is list or is_tuple(item):
            todo += item
        elif type(item) is Dict:
            todo += [*item.keys, *item.values]
        elif type(item) is Set:
            todo += item.items
        elif type(item) is Opaque and kind(item) not in (
            "tensor",
            "parameter",
            "object",
        ):
            todo += [*item.args, *item.items, *item.keys, *item.values, *item.states]


def names_of(node: Node) -> set[str]:
    """The globals and the classes of objects at and below a value."""
    names: set[str] = set()
    for item in (node, *inside(node)):
        if type(item) is Global and kind(item) not in ("dtype", "layout"):
            names.add(item.qualified)
        elif type(item) is PersistentId and kind(item) == "class":
            names.add(named(Opaque("reduce", item, (), None, 0)))
        elif type(item) is Opaque and kind(item) in ("object", "callable"):
            names.add(member_of(item) or made_by(item)[0])
    return names


def member_of(call: Opaque) -> str | None:
    """The dotted name of an attribute that a call of `getattr` takes of a class or of
    an object, or None.
    """
    if not made_by(call)[0].endswith(".getattr") or len(call.args) != 2:
        return None
    of, name = call.args
    if type(of) is Global and isinstance(name, str):
        return f"{of.qualified}.{name}"
    if type(of) is Opaque and isinstance(name, str):
        return f"{made_by(of)[0]}.{name} (of an object)"
    return None


Row = dict[str, Any]


def note_value(table: dict[str, Row], key: str, node: Node, by: str) -> None:
    row = table.setdefault(
        key,
        {"kinds": set(), "inner": set(), "names": set(), "values": set(), "by": set()},
    )
    row["kinds"].add(kind(node))
    row["by"].add(by)
    row["names"] |= names_of(node)
    if kind(node) not in ("tensor", "parameter", "object"):
        row["inner"] |= {kind(item) for item in inside(node)}
    if isinstance(node, str) and len(row["values"]) < 40:
        row["values"].add(str(node)[:40])


def key_of(node: Node) -> str:
    return str(node) if isinstance(node, str) else f"<{kind(node)}>"


def note_pairs(table: dict[str, Row], state: Dict | Opaque, by: str) -> None:
    for key, value in zip(state.keys, state.values, strict=True):
        note_value(table, key_of(key), value, by)


def is_mapping(node: Node) -> bool:
    return type(node) is Dict or (type(node) is Opaque and kind(node) == "ordereddict")


def shape_of(state: Node) -> str:
    """The kind of a state: `pair` is the dict of an object and of its slots."""
    if type(state) is tuple and len(state) == 2:
        if all(item is None or is_mapping(item) for item in state) and state != (
            None,
            None,
        ):
            return "pair"
    if type(state) is tuple:
        return f"tuple of {len(state)}"
    return kind(state)


class Collection:
    def __init__(self) -> None:
        self.classes: dict[str, Row] = {}
        self.tensors: dict[str, Row] = {}
        self.makers: dict[str, Row] = {}
        self.files: dict[str, int] = {}

    def add(self, pickle: Pickle, by: str) -> None:
        for call in pickle.calls:
            self.add_call(call, by)

    def add_call(self, call: Opaque, by: str) -> None:
        name, args = made_by(call)
        last = name.rpartition(".")[2]
        if named(call) in MAKERS:
            text = f"{named(call)}({', '.join(map(shown, call.args))})"
            row = self.makers.setdefault(text, {"by": set(), "states": set()})
            row["by"].add(by)
            row["states"] |= {shape_of(state) for state in call.states}
        if (
            last in ("_rebuild_from_type_v2", "_rebuild_parameter_with_state")
            and len(args) == 4
        ):
            row = self.tensors.setdefault(
                name,
                {
                    "states": set(),
                    "attributes": {},
                    "types": set(),
                    "slots": {},
                    "by": set(),
                },
            )
            row["by"].add(by)
            row["states"].add(shape_of(args[3]))
            if last == "_rebuild_from_type_v2":
                row["types"].add(
                    " of ".join(shown(item) for item in (args[1], args[0]))
                )
            parts = args[3] if type(args[3]) is tuple else (args[3],)
            for part, table in zip(parts, ("attributes", "slots"), strict=False):
                if type(part) is Dict or type(part) is Opaque:
                    note_pairs(row[table], part, by)
        if name in CALLS and name not in CONTAINERS:
            return
        row = self.classes.setdefault(
            name,
            {
                "how": set(),
                "args": [],
                "kwargs": {},
                "state": set(),
                "attributes": {},
                "parts": [],
                "by": set(),
            },
        )
        row["by"].add(by)
        how = named(call).rpartition(".")[2] if named(call) in MAKERS else call.how
        row["how"].add(how)
        row.setdefault("counts", set()).add(len(args))
        for index, arg in enumerate(args):
            if index == len(row["args"]):
                row["args"].append({})
            note_value(row["args"][index], "value", arg, by)
        if call.kwargs is not None:
            note_pairs(row["kwargs"], call.kwargs, by)
        for state in call.states:
            self.add_state(row, state, by)
        if len(call.states) > 1:
            row.setdefault("several states", set()).add(by)
        for item in call.items:
            note_value(row.setdefault("items", {}), "item", item, by)
        for key, value in zip(call.keys, call.values, strict=True):
            note_value(row.setdefault("keys", {}), "key", key, by)
            note_value(row["keys"], "value", value, by)

    @staticmethod
    def add_state(row: Row, state: Node, by: str) -> None:
        shape = shape_of(state)
        row["state"].add(shape)
        if is_mapping(state):
            assert isinstance(state, (Dict, Opaque))
            note_pairs(row["attributes"], state, by)
        elif shape == "pair":
            assert isinstance(state, tuple)
            for part in state:
                if isinstance(part, (Dict, Opaque)):
                    note_pairs(row["attributes"], part, by)
        else:
            parts = state if is_tuple(state) else (state,)
            for index, part in enumerate(parts):
                if index == len(row["parts"]):
                    row["parts"].append({})
                note_value(row["parts"][index], "value", part, by)


def shown(node: Node) -> str:
    if type(node) is Global:
        return node.qualified
    if isinstance(node, str):
        return repr(str(node)[:60])
    if type(node) is Opaque:
        return f"<{kind(node)} {made_by(node)[0]}>"
    return f"<{kind(node)}>"


def plain(value: object) -> object:
    """A table for JSON: sets sorted, empty parts left out, the one value of a position
    instead of its table.
    """
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=version_key)
    if isinstance(value, dict):
        if value.keys() == {"value"}:
            return plain(value["value"])
        parts = {
            str(key): plain(item)
            for key, item in sorted(value.items(), key=lambda pair: order(pair[0]))
        }
        return {
            key: item
            for key, item in parts.items()
            if item not in ([], {}) or key in KEPT
        }
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


KEPT = ("how", "args", "state", "attributes", "kinds", "names", "by")
_ORDER = (
    "how",
    "args",
    "kwargs",
    "state",
    "attributes",
    "kinds",
    "inner",
    "names",
    "values",
    "by",
)


def order(key: object) -> tuple[int, str]:
    return (_ORDER.index(key), "") if key in _ORDER else (len(_ORDER), str(key))


def version_key(item: object) -> tuple[object, ...]:
    text = str(item)
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
    )


def write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def files_below(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    for folder, _, names in sorted(os.walk(path)):
        for name in sorted(names):
            if not name.endswith(
                (".txt", ".json", ".py", ".md", ".distcp", ".safetensors")
            ):
                yield os.path.join(folder, name)


def summary(classes: dict[str, Any]) -> str:
    lines = [
        "# States, class by class",
        "",
        "Attributes that hold callables or objects have their names in brackets.",
        "",
    ]
    for name, row in classes.items():
        if not (row["attributes"] or row["state"]):
            continue
        by = row["by"]
        lines.append(f"## {name}")
        lines.append("")
        state = ", ".join(row["state"])
        lines.append(
            f"{', '.join(row['how'])}; state: {state}; by {by[0]} to {by[-1]} "
            f"({len(by)})"
        )
        lines.append("")
        for attribute, value in row["attributes"].items():
            names = f" [{', '.join(value['names'][:12])}{' …' if len(value['names']) > 12 else ''}]"
            seen = "" if value["by"] == by else f" — {', '.join(value['by'])}"
            lines.append(
                f"- `{attribute}`: "
                f"{' '.join(value['kinds'])}{names if value['names'] else ''}{seen}"
            )
        lines.append("")
    return "\n".join(lines)


def merged(one: Any, other: Any) -> Any:
    """The union of two tables for JSON. Lists of tables are positions."""
    if isinstance(one, dict):
        keys = sorted({**one, **other}, key=order)
        return {
            key: merged(one[key], other[key])
            if key in one and key in other
            else {**one, **other}[key]
            for key in keys
        }
    if isinstance(one, list):
        if any(isinstance(item, dict) for item in (*one, *other)):
            longer, shorter = (one, other) if len(one) > len(other) else (other, one)
            return [
                merged(*pair) for pair in zip(longer, shorter, strict=False)
            ] + longer[len(shorter) :]
        return sorted({*one, *other}, key=version_key)
    return one + other  # counts of files


def collected(sources: list[str]) -> tuple[Any, Any]:
    """The classes and the others of files."""
    collection = Collection()
    for source in sources:
        by, _, path = source.partition("=")
        for file in files_below(path):
            try:
                for pickle in read(file):
                    collection.add(pickle, by)
            except (
                OSError,
                UnreadableError,
                zipfile.BadZipFile,
                tarfile.TarError,
            ) as error:
                print(f"{file}: {error}", file=sys.stderr)
            collection.files[by] = collection.files.get(by, 0) + 1
    classes = {name: plain(row) for name, row in sorted(collection.classes.items())}
    others = {
        "tensors": plain(collection.tensors),
        "makers": plain(collection.makers),
        "files": collection.files,
    }
    return classes, others


def main() -> int:
    folder, *sources = sys.argv[1:]
    classes, others = collected([source for source in sources if "=" in source])
    for earlier in sources:
        if "=" not in earlier:
            with open(f"{earlier}/states.json", encoding="utf-8") as file:
                classes = merged(classes, json.load(file))
            with open(f"{earlier}/others.json", encoding="utf-8") as file:
                others = merged(others, json.load(file))
    others["arrays"] = {
        name: row for name, row in classes.items() if name.startswith(ARRAYS)
    }
    write(f"{folder}/states.json", json.dumps(classes, indent=1))
    write(f"{folder}/others.json", json.dumps(others, indent=1))
    write(f"{folder}/states.md", summary(classes))
    attributes = sum(len(row["attributes"]) for row in classes.values())
    print(
        f"{sum(others['files'].values())} files, {len(classes)} classes, {attributes} "
        "attributes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
