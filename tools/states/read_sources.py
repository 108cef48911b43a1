"""`read_sources.py FOLDER WHEEL ... --ran TORCH ...`: the attributes that torch's
sources set, and no file showed.

For the versions of torch that nobody ran (WHEEL), beside the installed ones that wrote
files (TORCH). Reads the *.py without importing them: `self.X = ...` in methods,
annotations of classes and `setattr` with a literal name, with what base classes set.
Adds two keys to the classes of FOLDER/states.json, each with the versions: `source` are
attributes that only versions set that nobody ran; `unseen` are attributes that versions
set that wrote files, where none had them (most are parameters and layers, which lie in
dicts of their own; some need a GPU).
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from collect import version_key, write

ROOMS = (
    "torch/nn/",
    "torch/optim/",
    "torch/distributions/",
    "torch/utils/data/",
    "torch/ao/",
    "torch/quantization/",
    "torch/amp/",
    "torch/cuda/amp/",
    "torch/utils/hooks",
    "torch/distributed/",
)
REGISTERS = ("register_buffer", "register_parameter", "add_module", "register_module")
"""What they name stands in `_buffers`, `_parameters` and `_modules`, not on the
object.
"""


def names_set(body: ast.ClassDef) -> tuple[set[str], set[str]]:
    """The attributes that a class sets, and the names that it registers."""
    names: set[str] = set()
    registered: set[str] = set()
    is_dataclass = any("dataclass" in ast.unparse(item) for item in body.decorator_list)
    for item in body.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            is_method = "Callable" in ast.unparse(item.annotation)
            if is_dataclass or (item.value is None and not is_method):
                names.add(item.target.id)
        if isinstance(item, ast.FunctionDef) and item.name in (
            "__setstate__",
            "__getstate__",
        ):
            names |= keys_set(item)
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in (
                "self",
                "mod",
                "module",
                "obj",
                "result",
            ):
                names.add(node.attr)
        if isinstance(node, ast.Call) and node.args:
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            first = (
                node.args[min(1, len(node.args) - 1)]
                if called == "setattr"
                else node.args[0]
            )
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                if called in REGISTERS:
                    registered.add(first.value)
                elif called == "setattr":
                    names.add(first.value)
    return names, registered


def keys_set(body: ast.FunctionDef) -> set[str]:
    """The keys that a method sets in a dict with a literal name."""
    keys: set[str] = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.slice, ast.Constant) and isinstance(
                node.slice.value, str
            ):
                keys.add(node.slice.value)
    return keys


def sources(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the modules of a wheel, or of a folder `torch`, with their text."""
    if os.path.isdir(path):
        for folder, _, files in os.walk(path):
            for file in files:
                name = os.path.relpath(
                    os.path.join(folder, file), os.path.dirname(path.rstrip("/"))
                )
                if name.endswith(".py") and name.startswith(ROOMS):
                    with open(os.path.join(folder, file), "rb") as stream:
                        yield name, stream.read()
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py") and name.startswith(ROOMS):
                yield name, wheel.read(name)


def read_classes(path: str) -> dict[str, set[str]]:
    """The attributes of each class of a version of torch, with what its bases set."""
    own: dict[str, tuple[set[str], set[str], list[str]]] = {}
    by_name: dict[str, str] = {}
    for member, text in sources(path):
        module = member[:-3].replace("/", ".").removesuffix(".__init__")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                bases = [
                    ast.unparse(base).rpartition(".")[2].partition("[")[0]
                    for base in node.bases
                ]
                own[f"{module}.{node.name}"] = (*names_set(node), bases)
                by_name.setdefault(node.name, f"{module}.{node.name}")
    table: dict[str, set[str]] = {}
    for name in own:
        names: set[str] = set()
        registered: set[str] = set()
        todo, seen = [name], set()
        while todo:
            cls = todo.pop()
            if cls not in own or cls in seen:
                continue
            seen.add(cls)
            names |= own[cls][0]
            registered |= own[cls][1]
            siblings = cls.rpartition(".")[0]
            todo += [
                f"{siblings}.{base}"
                if f"{siblings}.{base}" in own
                else by_name.get(base, "")
                for base in own[cls][2]
            ]
        table[name] = names - registered
    return table


def version_of(path: str) -> str:
    """The version of a wheel or of an installed torch."""
    version = re.search(r"torch-(\d+\.\d+)", path)
    if version is None:
        with open(os.path.join(path, "version.py"), encoding="utf-8") as file:
            version = re.search(r"(\d+\.\d+)", file.read())
    return version.group(1) if version else path


def main() -> int:
    folder, *paths = sys.argv[1:]
    warnings.simplefilter("ignore")
    with open(f"{folder}/states.json", encoding="utf-8") as file:
        classes = json.load(file)
    border = paths.index("--ran")
    found: dict[str, dict[str, dict[str, set[str]]]] = {"source": {}, "unseen": {}}
    # The versions that ran come first: what they set as well is no news in another
    # version.
    for key, path in [("unseen", path) for path in paths[border + 1 :]] + [
        ("source", path) for path in paths[:border]
    ]:
        for name, attributes in read_classes(path).items():
            if name in classes and not is_optimizer(classes[name]):
                new = attributes - set(classes[name]["attributes"])
                if key == "source":
                    new -= set(found["unseen"].get(name, ()))
                for attribute in new:
                    found[key].setdefault(name, {}).setdefault(attribute, set()).add(
                        version_of(path)
                    )
    for name, row in classes.items():
        for key, table in found.items():
            row.pop(key, None)
            if name in table:
                row[key] = {
                    item: sorted(by, key=version_key)
                    for item, by in sorted(table[name].items())
                }
    write(f"{folder}/states.json", json.dumps(classes, indent=1))
    for key, table in found.items():
        print(
            f"{key}: {sum(map(len, table.values()))} attributes of {len(table)} classes"
        )
    return 0


def is_optimizer(row: dict[str, Any]) -> bool:
    """Tell whether the objects of a class are saved as an optimizer, with three
    attributes and no more.
    """
    return {"defaults", "param_groups", "state"} >= set(row["attributes"]) > set()


if __name__ == "__main__":
    sys.exit(main())
