"""The house as it stands: its floors, who imports whom, file by file. `python
tests/lib/house.py` prints the map.

It writes the map into CONTRIBUTING.md too, where a test compares it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "ckpt"

# From the ground up: modules and folders that may import each other, without a circle,
# and whatever lies below.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("model.rows",),
    ("model.columns",),
    ("model.errors",),
    ("hooks", "model.text", "model.dtypes", "model.limits"),
    ("model.names", "model.findings"),
    ("bytes.far", "bytes.source", "bytes.location"),
    ("model.places",),
    ("model.tensors",),
    ("model.nodes",),
    ("model.account",),
    ("model.checkpoint",),
    (
        "bytes.disk",
        "bytes.target",
        "bytes.inplace",
        "bytes.executor",
        "bytes.syscalls",
        "bytes.fence",
    ),
    ("elements",),
    ("tree",),
    ("pickle",),
    ("formats",),
    ("evidence",),
    ("commands", "surface"),
    ("ext",),
)
TOP = frozenset(
    [
        "bytes",
        "commands",
        "elements",
        "evidence",
        "ext",
        "formats",
        "hooks",
        "model",
        "pickle",
        "surface",
        "tree",
    ]
)
"""What `ls ckpt` shows, besides `__init__`, `__main__` and `py.typed`."""
LAYERS = ("work", "api", "text", "command")
"""The parts of a room, from the ground up: the work, its function of Python, its text,
its command.
"""
_LAYERS_OF_THE_SURFACE = {
    "surface.api": "api",
    "surface.text": "text",
    "surface.cli": "command",
}
_OTHER_NAMES = {
    "bars": "text",
    "baseline_file": "api",
    "card_file": "api",
    "card_text": "text",
    "copies": "api",
    "notebook": "text",
    "numbering": "text",
    "tables": "text",
}
"""Modules of rooms that are a layer by another name."""
MODULES = sorted(
    path
    for path in ROOT.rglob("*.py")
    if path.parent != ROOT or not path.name.startswith("__")
)


def name_of(path: Path) -> str:
    """The dotted name of a module below `ckpt`."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in MODULES}


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a source, which is parsed once for all tests of a process."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def floor_of(name: str) -> int:
    """The number of the floor of a module: that of the longest entry that it lies in.
    Packages of several are on the lowest.
    """
    found = [
        (len(entry), number)
        for number, row in enumerate(FLOORS)
        for entry in row
        if name == entry or name.startswith(f"{entry}.")
    ]
    if found:
        return max(found)[1]
    return min(
        number
        for number, row in enumerate(FLOORS)
        for entry in row
        if entry.startswith(f"{name}.")
    )


def layer_of(name: str) -> int:
    """The number of the layer that a module is, in the room of its command or in
    `surface`.
    """
    for folder, layer in _LAYERS_OF_THE_SURFACE.items():
        if name == folder or name.startswith(f"{folder}."):
            return LAYERS.index(layer)
    last = name.rpartition(".")[2]
    if name.startswith(("commands.", "ext.lint.")):
        last = _OTHER_NAMES.get(last, last)
    return LAYERS.index(last) if last in LAYERS else 0


@cache
def imports_of(name: str) -> frozenset[str]:
    """The modules that one imports, in functions and by a table of names too, but for
    what only a type checker reads.
    """
    found: set[str] = set()
    todo: list[ast.AST] = [parsed(NAMES[name])]
    while todo:
        node = todo.pop()
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            todo += node.orelse
            continue
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "ckpt"
        ):
            module = ".".join((node.module or "").split(".")[1:])
            for alias in node.names:
                inner = f"{module}.{alias.name}" if module else alias.name
                found.add(inner if inner in NAMES else module)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "_Table"
        ):
            modules = [
                name.value for name in node.args if isinstance(name, ast.Constant)
            ]
            found |= {
                module.removeprefix("ckpt.")
                for module in modules
                if not module.startswith("ckpt.ext.")
            }
        todo += ast.iter_child_nodes(node)
    return frozenset(found & NAMES.keys())


@cache
def readers_of(name: str) -> frozenset[str]:
    """The modules that read the formats of a module, which name them as text."""
    calls = [
        node
        for node in ast.walk(parsed(NAMES[name]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Format"
    ]
    readers = [
        word.value for call in calls for word in call.keywords if word.arg == "reader"
    ]
    return frozenset(
        text.value.removeprefix("ckpt.")
        for text in readers
        if isinstance(text, ast.Constant)
    )


def circles() -> list[list[str]]:
    """Modules that import each other, however far around."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(imports_of(name)):
                walk(other, [*path, name])
            done.add(name)

    for name in NAMES:
        walk(name, [])
    return found


def reached_from(name: str, *, skip: frozenset[str] = frozenset()) -> set[str]:
    """The modules that one needs, directly or through others."""
    found: set[str] = set()
    todo = [name]
    while todo:
        module = todo.pop()
        for other in (imports_of(module) | readers_of(module)) - found - skip:
            found.add(other)
            todo.append(other)
    return found


def text_map() -> str:
    """The rooms from the top floor down, with the first line of each docstring, then
    the modules of each folder by name.
    """
    lines = []
    for row in reversed(FLOORS):
        for entry in row:
            path = NAMES.get(entry)
            if path is None:
                continue
            purpose = (
                ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            ).split("\n")[0]
            where = f"{entry.replace('.', '/')}{'/' if path.name == '__init__.py' else '.py'}"
            lines.append(f"{where:<19} {purpose}")
    return "\n".join([*lines, "", *folders()])


def folders() -> list[str]:
    """One line per folder: its modules by name, without `__init__`."""
    inside: dict[str, list[str]] = {}
    for path in MODULES:
        folder = path.parent.relative_to(ROOT).as_posix()
        if folder != "." and path.name != "__init__.py":
            inside.setdefault(f"{folder}/", []).append(path.stem)
    width = max(map(len, inside))
    return [
        f"{folder:<{width}} {' '.join(sorted(inside[folder]))}"
        for folder in sorted(inside)
    ]


def refresh(page: Path) -> None:
    """Write the map into the page, between the fences that follow the words `stands
    first`.
    """
    text = page.read_text(encoding="utf-8")
    begin = text.index("```text\n", text.index("stands first")) + len("```text\n")
    page.write_text(
        text[:begin] + text_map() + text[text.index("\n```", begin) :], encoding="utf-8"
    )


if __name__ == "__main__":
    refresh(ROOT.parent / "CONTRIBUTING.md")
    print(text_map())
