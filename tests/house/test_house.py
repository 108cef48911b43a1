"""The house keeps its shape: imports go down without a circle, heavy packages wait,
nothing grows too large.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import house
import pytest
from house import (
    MODULES,
    NAMES,
    ROOT,
    floor_of,
    imports_of,
    layer_of,
    parsed,
    reached_from,
)
from process import TIMEOUT, environment

import ckpt
from ckpt.formats import FORMATS
from ckpt.hooks import NEEDS
from ckpt.model.findings import CATALOGUE, Finding, order
from ckpt.surface.cli import app


def test_the_top_is_a_table_of_contents() -> None:
    shown = {
        path.name.removesuffix(".py")
        for path in ROOT.iterdir()
        if not path.name.startswith("__")
    }

    assert shown == house.TOP | {"py.typed"}


def test_imports_go_down() -> None:
    upward = [
        (name, other)
        for name in NAMES
        for other in imports_of(name)
        if floor_of(other) > floor_of(name)
    ]

    assert upward == []
    assert sum(len(imports_of(name)) for name in NAMES) > 5 * len(NAMES)


def test_no_circles_not_even_in_functions() -> None:
    assert house.circles() == []


def test_every_entry_of_the_table_is_there() -> None:
    entries = [entry for row in house.FLOORS for entry in row]

    assert [entry for entry in entries if entry not in NAMES] == []
    assert len(entries) == len(set(entries))


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path in MODULES if not ast.get_docstring(parsed(path))] == []


def test_the_parts_of_a_room_go_down() -> None:
    """The work of a command knows nothing of its text, and the text nothing of the
    command line.
    """
    rooms = ("commands.", "surface.", "ext.")
    upward = {
        (name, other)
        for name in NAMES
        for other in imports_of(name)
        if name.startswith(rooms)
        and other.startswith(rooms)
        and layer_of(other) > layer_of(name)
    }

    assert {name for name, _ in upward} == {
        "ext.adapters.account",  # lines of text for the account of a merge
        "ext.adapters.config",
        "ext.adapters.description",
        "ext.adapters.hooks",
        "ext.adapters.verdicts",
        "ext.gguf.verdicts",  # lines of text for the judgement of a GGUF
        "ext.layouts.recipe",
        # lines of text for the judgement of quantised weights
        "ext.quantised.comparing",
        "ext.quantised.configs",
        "ext.prune.judging",  # a save is judged as `ckpt verify` does
    }


def test_the_work_of_commands_knows_no_format() -> None:
    rooms = ("commands.", *(f"ext.{name}." for name in WITHOUT_FORMATS))
    knowing = {
        name
        for name in NAMES
        if name.startswith(rooms) and layer_of(name) == 0
        for other in imports_of(name)
        if other.startswith("formats")
    }

    assert knowing == set()


WITHOUT_FORMATS = ("average", "explain", "lint", "page", "salvage", "warmstart")
"""Extensions whose work is given checkpoints."""
TABLES = {"__init__.py", "hooks.py", "formats/__init__.py"}
"""The modules of the core that name extensions, in tables: public names, hooks and
commands, formats.
"""


def test_the_core_names_no_extension() -> None:
    core = [path for path in MODULES if path.relative_to(ROOT).parts[0] != "ext"]
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in core
        if "ckpt.ext" in path.read_text(encoding="utf-8")
    }
    arrows = [
        (name, other)
        for name in NAMES
        for other in imports_of(name)
        if not name.startswith("ext") and other.startswith("ext")
    ]

    assert naming | {"__init__.py"} == TABLES
    assert arrows == []


def test_extensions_name_the_others_that_they_need() -> None:
    found: dict[str, set[str]] = {}
    for name in NAMES:
        for other in imports_of(name):
            if (
                name.startswith("ext.")
                and other.startswith("ext.")
                and other.split(".")[1] != name.split(".")[1]
            ):
                found.setdefault(name.split(".")[1], set()).add(other.split(".")[1])

    assert found == {name: set(others) for name, others in NEEDS.items()}


def test_reading_never_loads_what_writes() -> None:
    writing = {name for name in NAMES if name.endswith(".writer")}
    writing |= {
        "formats.save",
        "formats.common.draft",
        "formats.common.written",
        "bytes.target",
        "bytes.disk",
        "bytes.inplace",
        "pickle.emit",
    }

    for door in (
        "formats",
        "evidence.survey",
        "commands.inspect.inspect",
        "commands.get.get",
        "commands.inspect.command",
    ):
        assert writing & reached_from(door) == set(), door


def test_a_command_calls_the_function_of_its_name() -> None:
    """A program can do all that these commands do: none has a job of its own."""
    names = [name for names in ckpt._HOMES.values() for name in names]
    commands = {
        name: ROOT / app.module_of(name).removeprefix("ckpt.").replace(".", "/")
        for name in app.COMMANDS
    }
    both = sorted(set(names) & commands.keys())
    found = {}
    for name in both:
        path = commands[name].with_suffix(".py")
        nodes = [
            node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)
        ]
        imported = [
            (node.module or "", alias.name) for node in nodes for alias in node.names
        ]
        doors = ("api", "recipe")
        assert any(
            module.rpartition(".")[2] in doors
            and what in (name, "Listing", "assign_values", "planned")
            for module, what in imported
        ), name
        jobs = [
            what
            for module, what in imported
            if module.startswith(("ckpt.commands.", "ckpt.ext."))
            and layer_of(module.removeprefix("ckpt.")) == 0
            and module.rpartition(".")[2] not in doors
            and what[0].islower()
            and f"{module}.{what}".removeprefix("ckpt.") not in NAMES
        ]
        if jobs:
            found[name] = sorted(jobs)

    assert len(both) == 19
    assert found == {
        "inspect": ["digests"],  # of the text for git
        "lint": [
            "nearest_settings",
            "settings_at",
            "unread_settings",
        ],  # which file they are of
        "set": ["parse_assignment"],
        "verify": [
            "listed_path",
            "unreadable_report",
            "with_recorded",
        ],  # of a folder, where a list knows other files
    }


FOLDERS = {".".join(module.split(".")[1:3]) for module in FORMATS.modules}
"""The folders of formats: `formats.sharded`, `ext.dcp`."""


def test_a_format_of_the_core_imports_no_other() -> None:
    siblings = set()
    for name in NAMES:
        own = ".".join(name.split(".")[:2])
        others = {".".join(other.split(".")[:2]) for other in imports_of(name)}
        if own in FOLDERS and own.startswith("formats."):
            siblings |= {(own, other) for other in others & FOLDERS - {own}}

    assert siblings == set()


def test_formats_are_named_in_formats_only() -> None:
    """Whoever else compares a format's name with a text should ask one of its
    traits.
    """
    names = {format.name for format in FORMATS}
    found = []
    for path in MODULES:
        if ".".join(path.relative_to(ROOT).with_suffix("").parts[:2]) in FOLDERS:
            continue
        if path.relative_to(ROOT).parts[0] == "formats":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                texts = {
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant)
                }
                if texts & names:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert found == []


def test_the_map_is_on_the_page() -> None:
    page = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert house.text_map() in page, "python tests/lib/house.py prints it"


def test_importing_the_package_costs_nothing() -> None:
    code = (
        "import sys, ckpt; print(sorted(name for name in sys.modules if "
        "name.startswith('ckpt.')))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=TIMEOUT,
    )

    assert done.stdout.strip() == "[]"


def _modules_of(*words: str) -> set[str]:
    """The modules that a run of Python imports."""
    done = subprocess.run(
        [sys.executable, "-v", *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=TIMEOUT,
    )
    return set(re.findall(r"^import '([.\w]+)'", done.stderr, re.MULTILINE))


def test_the_table_of_formats_imports_no_reader() -> None:
    # That of safetensors says how its files begin, which the table has to know.
    readers = {format.reader for format in FORMATS} - {
        "ckpt.formats.common.safetensors"
    }

    loaded = _modules_of("-c", "from ckpt.formats import FORMATS; list(FORMATS)")

    assert "ckpt.formats.torch_zip" in loaded
    assert sorted(loaded & readers) == []
    assert sorted(name for name in loaded if name.startswith("ckpt.pickle.")) == []


_PLAIN = (
    "ckpt.commands.inspect.unused",
    "ckpt.commands.rewriting",
    "ckpt.commands.sum",
    "ckpt.elements.cast",
    "ckpt.evidence.mapping",
    "ckpt.evidence.matching",
    "ckpt.formats.common.members",
    "ckpt.pickle.attributes",
    "ckpt.pickle.judge.grammar",
    "ckpt.pickle.judge.known",
    "ckpt.pickle.judge.names_of_torch",
    "ckpt.surface.api.walk",
    "ckpt.tree.quantized",
    "ckpt.tree.unmade",
)
"""Modules that answer about optimizers, calls and names. A third of the time of a small
file goes into imports.
"""
_WEB = ("email", "http", "urllib.request")
"""Modules of the standard library that a file on the disk never needs."""


@pytest.mark.parametrize(
    ("command", "names", "needed"),
    [
        ("inspect", _PLAIN, "ckpt.commands.inspect.inspect"),
        (
            "verify",
            ("ckpt.commands.convert", "ckpt.evidence.mapping", "ckpt.pickle.emit"),
            "ckpt.commands.verify.verify",
        ),
        (
            "diff",
            ("ckpt.commands.convert", "ckpt.commands.rename", "ckpt.pickle.emit"),
            "ckpt.commands.diff.diff",
        ),
        (
            "rehome",
            ("ckpt.commands.convert", "ckpt.evidence.mapping", "ckpt.commands.verify"),
            "ckpt.commands.rehome.rehome",
        ),
        ("lint", ("ckpt.commands.convert", "ckpt.pickle.emit"), "ckpt.ext.lint.lint"),
    ],
)
def test_a_plain_state_dict_imports_what_its_command_needs(
    command: str, names: tuple[str, ...], needed: str, samples: Path, tmp_path: Path
) -> None:
    file = str(samples / "llama_bf16.pth")
    words = {"diff": (file, file), "rehome": (file, "-o", str(tmp_path / "out.pth"))}

    loaded = _modules_of("-m", "ckpt", command, *words.get(command, (file,)))

    assert needed in loaded
    assert sorted(name for name in loaded if name.startswith((*names, *_WEB))) == []


def test_the_help_of_the_program_opens_nothing() -> None:
    loaded = _modules_of("-m", "ckpt", "--help")

    assert "ckpt.surface.cli.app" in loaded
    assert not loaded & {"ckpt.bytes.source", "ckpt.surface.cli.options"}


def test_public_names_work_twice(samples: Path) -> None:
    for _ in range(2):
        with ckpt.open(str(samples / "llama_bf16.pth")) as checkpoint:
            assert len(checkpoint) == 57
        assert ckpt.__version__.count(".") >= 2
    assert sorted(ckpt.__all__) == list(ckpt.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ckpt.no_such_name  # type: ignore[attr-defined]


def codes_made() -> set[str]:
    """The codes of all findings and notices that are made, as literals in the code."""
    found = set()
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("Finding", "Notice") and isinstance(
                    node.args[0], ast.Constant
                ):
                    found.add(node.args[0].value)
    return found


def test_every_code_is_in_the_catalogue_and_is_made() -> None:
    loops = {"nan", "inf"}  # made in a loop over both

    assert codes_made() | loops == set(CATALOGUE)
    assert all(row.by for row in CATALOGUE.values())


def test_findings_stand_by_level() -> None:
    found = [
        Finding("unused", ""),
        Finding("ranks-differ", ""),
        Finding("nan", "", raised="error"),
        Finding("prefix", ""),
    ]

    assert [finding.code for finding in order(found)] == [
        "ranks-differ",
        "nan",
        "prefix",
        "unused",
    ]
    levels = [row.level == "error" for row in CATALOGUE.values()]
    assert levels == sorted(levels, reverse=True)


_IMPORT = re.compile(r"^ *from (ckpt[\w.]*) import \(?([\w, ]+)", re.MULTILINE)


def test_what_measures_and_makes_pages_imports_what_is_there() -> None:
    """Also in the texts of scripts that benchmarks write: mypy does not read those."""
    found = []
    for folder in ("benchmarks", "tools"):
        for path in (ROOT.parent / folder).rglob("*.py"):
            for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
                found += [
                    (path.name, module, name.strip().partition(" as ")[0])
                    for name in names.split(",")
                    if name.strip()
                ]
    missing = []
    for file, module, name in found:
        try:
            there = (
                hasattr(import_module(module), name)
                or find_spec(f"{module}.{name}") is not None
            )
        except ModuleNotFoundError:
            there = False
        missing += [] if there else [(file, module, name)]

    assert len(found) > 10 and missing == []
