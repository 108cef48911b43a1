"""The floors of the house: imports go down only, and heavy packages wait until they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt

ROOT = Path(__file__).resolve().parents[2] / "ckpt"

# From the ground up; a room may import rooms of lower floors, and of its own.
FLOORS = (
    ("errors",),
    ("limits",),
    ("dtypes", "names", "files", "folding", "units"),
    ("checkpoint", "commit", "kernels"),
    ("arrays", "contents", "measures", "metadata"),
    ("comparison",),
    ("objects",),
    ("literals", "devices"),
    ("pickles", "tree", "plain"),
    ("places",),
    ("formats", "snapshots"),
    ("writers",),
    ("sections", "findings", "modules"),
    ("matching", "optimizers", "loading"),
    ("roles", "gradients"),
    ("jobs", "live"),
    ("opened",),
    ("render",),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or not path.name.startswith("__"))


def imported(path: Path) -> list[str]:
    """The rooms of the house that a module imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ckpt":
            inner = (node.module or "").split(".")[1:]
            found += (
                [inner[0]] if inner else [alias.name for alias in node.names if alias.name != "__version__"]
            )
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ckpt.")]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in MODULES} == set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)

    upward = [other for other in imported(path) if other != room and FLOOR[other] > FLOOR[room]]

    assert upward == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_room_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_jobs_know_no_format() -> None:
    assert not [path for path in (ROOT / "jobs").glob("*.py") if "formats" in imported(path)]


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, ckpt; print(sorted(name for name in sys.modules if name.startswith('ckpt.')))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_public_names_work_twice(samples: Path) -> None:
    for _ in range(2):
        with ckpt.open(str(samples / "llama_bf16.pth")) as checkpoint:
            assert len(checkpoint) == 57
        assert ckpt.__version__.count(".") >= 2
    assert sorted(ckpt.__all__) == list(ckpt.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ckpt.no_such_name  # type: ignore[attr-defined]
