"""Whoever deletes the folder of an extension has a program that works without it."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import needs
import pytest
import torch
from house import ROOT, parsed
from inside import inside
from process import TIMEOUT, environment
from safetensors.torch import save_file

import ckpt
from ckpt import hooks
from ckpt.hooks import NEEDS

EXTENSIONS = sorted(
    path.name for path in (ROOT / "ext").iterdir() if (path / "__init__.py").is_file()
)
COMMANDS = {
    "adapters": ("merge",),
    "average": ("average",),
    "explain": ("explain",),
    "layouts": ("recipe",),
    "lint": ("lint",),
    "page": ("report",),
    "prune": ("prune",),
    "salvage": ("salvage",),
    "values": ("set",),
    "warmstart": ("warmstart",),
}
"""Extension -> the commands that go with it."""
LINES = (
    ("inspect", "train_cuda.pth"),
    ("inspect", "sharded", "--json"),
    ("inspect", "weights.safetensors", "--all"),
    ("ls", "train_cuda.pth", "weights.safetensors"),
    ("get", "train_cuda.pth", "epoch"),
    ("stats", "weights.safetensors"),
    ("sum", "weights.safetensors"),
    ("verify", "train_cuda.pth", "sharded"),
    ("rehome", "train_cuda.pth", "-o", "OUT/rehomed.pth"),
    ("strip", "ddp_after.pth", "-o", "OUT/stripped.pth"),
    (
        "rename",
        "weights.safetensors",
        "--sub",
        "s/^/model./",
        "-o",
        "OUT/renamed.safetensors",
    ),
    ("slim", "train_cuda.pth", "-o", "OUT/slim.safetensors"),
    ("convert", "weights.safetensors", "-o", "OUT/converted.pth"),
)
"""Command lines of the core on samples that the core reads, each of which ends
with 0.
"""
DIFFER = (
    ("diff", "ddp_before.pth", "ddp_after.pth"),
    ("diff", "OUT/a.safetensors", "OUT/b.safetensors"),
    ("diff", "OUT/codes.safetensors", "OUT/plain.safetensors"),
)
"""Comparisons that extensions add sentences to. Each ends with 1."""


def write_files(folder: Path) -> None:
    """Weights under other names, weights with their scales, and an adapter."""
    weights = torch.arange(64.0).reshape(8, 8)
    save_file({"encoder.weight": weights}, folder / "a.safetensors")
    save_file({"tower.kernel": weights.t().contiguous() + 1}, folder / "b.safetensors")
    codes = {
        "fc.weight": weights.to(torch.float8_e4m3fn),
        "fc.weight_scale": torch.tensor(0.5),
    }
    save_file(codes, folder / "codes.safetensors")
    save_file({"fc.weight": -weights.flip(0)}, folder / "plain.safetensors")
    parts = {"lora_A": torch.ones(2, 8), "lora_B": torch.ones(8, 2)}
    names = {
        f"base_model.model.fc.{part}.weight": tensor for part, tensor in parts.items()
    }
    save_file(names, folder / "lora.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_core_works_without(name: str, samples: Path, tmp_path: Path) -> None:
    for folder in (ROOT, samples):
        shutil.copytree(
            folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.rmtree(tmp_path / "ckpt" / "ext" / name)
    out = tmp_path / samples.name / "OUT"
    out.mkdir()
    write_files(out)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ckpt", *words],
            cwd=tmp_path / samples.name,
            env={**environment(), "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )

    page = run("--help").stdout
    for extension, commands in COMMANDS.items():
        for command in commands:
            assert (f"  {command} " in page) is (extension != name), command
    for command in COMMANDS.get(name, ()):
        done = run(command, "weights.safetensors")
        assert done.returncode == 2 and f"this needs ckpt.ext.{name}," in done.stderr
    for words in LINES:
        done = run(*words)
        assert done.returncode == 0, (words, done.stderr)
    for words in DIFFER:
        done = run(*words)
        assert done.returncode == 1 and not done.stderr, (words, done.stderr)
    for path in ("OUT/codes.safetensors", "OUT/lora.safetensors"):
        done = run("inspect", path)
        assert done.returncode == 0, done.stderr
    for path in ("no_such_file.pth", "https://localhost:1/x.pth", "sub/folder"):
        done = run("inspect", path)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


PRINTED = (
    ("lint", ("ls", "hostile.pth"), "(code: ckpt lint hostile.pth --level error)"),
    ("adapters", ("diff", "weights.safetensors", "lora"), "ckpt merge weights"),
    ("salvage", ("inspect", "OUT/twice.pth"), "(ckpt salvage writes the first)"),
    ("warmstart", ("load", "a.pth"), "(did you mean ckpt warmstart?)"),
    ("explain", ("inspect", "a.pth", "--fail-on", "x"), ", which ckpt explain lists"),
    ("lint", ("inspect", "a.pth", "--fail-on", "private"), "(ckpt lint finds it)"),
)
"""An extension, command lines of the core, and what they print of its command."""


@pytest.mark.parametrize(("name", "words", "said"), PRINTED)
def test_what_is_not_there_is_not_proposed(
    name: str,
    words: tuple[str, ...],
    said: str,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in samples.glob("*"):
        (tmp_path / path.name).symlink_to(path)
    out = tmp_path / "OUT"
    out.mkdir()
    legacy = (samples / "legacy.pth").read_bytes()
    (out / "twice.pth").write_bytes(legacy + legacy[:-50])

    def printed() -> str:
        done = inside(*words, cwd=tmp_path)
        return (done.out + done.err).decode()

    text = printed()
    assert said in " ".join(text.split())
    with monkeypatch.context() as patches:
        patches.setattr(hooks, "find_spec", finding_all_but(name))
        shorter = printed()
    assert "Traceback" not in shorter and shorter != text
    for command in COMMANDS[name]:
        assert f"ckpt {command}" not in shorter


def test_a_folder_of_shards_is_not_said_to_have_no_index(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "find_spec", finding_all_but("folders"))

    done = inside("get", "sharded", "epoch", cwd=samples)

    assert done.code == 2 and done.complaints == [
        "ckpt: sharded: a directory with an index of shards; it holds 2 checkpoint files "
        "(name the index: sharded/model.safetensors.index.json)"
    ]


def finding_all_but(name: str) -> Callable[[str], object]:
    """Return what finds each module but those of an extension."""

    def find(module: str) -> object:
        return None if module == f"ckpt.ext.{name}" else find_spec(module)

    return find


def test_python_names_no_command_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AttributeError, match="ckpt report FILE"):
        ckpt.report  # type: ignore[attr-defined]  # noqa: B018
    monkeypatch.setattr(hooks, "find_spec", finding_all_but("page"))
    with pytest.raises(AttributeError, match=r"no attribute 'report'$"):
        ckpt.report  # type: ignore[attr-defined]  # noqa: B018


ASKING = {
    "__init__.py": 2,  # `_ELSEWHERE`, a table
    "surface/cli/options.py": 1,  # what wrote the file that `--recipe` takes
}
"""Modules of the core with texts that name commands of extensions outside of a function
that asks whether they are there, and how many.
"""


def test_texts_of_the_core_ask_for_the_commands_that_they_print() -> None:
    """Else a user is told to run what is not there."""
    commands = "|".join(hooks.COMMANDS)
    found: dict[str, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("ext/"):
            continue
        tree = parsed(path)
        passed_over = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr)
            or (
                isinstance(node, ast.FunctionDef)
                and "has_command(" in ast.unparse(node)
            )
            for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in passed_over:
                continue
            if re.search(rf"\bckpt ({commands})\b", str(node.value)):
                found[name] = found.get(name, 0) + 1

    assert found == ASKING, "ask has_command of ckpt/hooks.py first"


TESTS = ROOT.parent / "tests"
OF_ALL = ("docs", "house", "benchmarks", "fuzz", "frameworks")
"""Folders of tests that are about the whole program."""
HELPERS = {"clusters.py", "node.py"}
"""Modules of tests/lib that are about one extension: tests import them inside of
functions.
"""


@pytest.mark.slow
def test_tests_import_no_other_extension_at_their_top() -> None:
    """Else none of a module can run where one extension was deleted."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        folders = path.relative_to(TESTS).parts
        if folders[0] in OF_ALL or (folders[0] == "lib" and path.name in HELPERS):
            continue
        own = folders[1] if folders[0] == "ext" else None
        for node in parsed(path).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                name = node.module.removeprefix("ckpt.ext.").split(".")[0]
                if node.module.startswith("ckpt.ext.") and name != own:
                    found.append(f"{path.relative_to(TESTS)}:{node.lineno} {name}")
                if f"{name}.py" in HELPERS and own is None:
                    found.append(f"{path.relative_to(TESTS)}:{node.lineno} {name}")

    assert found == [], "import inside of the test, or mark it with needs(NAME)"


SHARED = {"samples", "SAMPLES", "ranks"}
"""The names of the folders of files that tests share, of which `FILES` tells the
readers.
"""
PROGRAMS = {
    command: extension for extension, names in COMMANDS.items() for command in names
}


def extensions_asked_by(code: ast.AST) -> set[str]:
    """Return the extensions that a function of a test asks in ways that nothing skips
    while it runs: it takes a shared file that only one of them reads, as in
    `samples / "scripted.pt"`, or starts `ckpt COMMAND` by itself.
    """
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            folder, name = node.left, node.right
            is_shared = isinstance(folder, ast.Name) and folder.id in SHARED
            if is_shared and isinstance(name, ast.Constant):
                found |= needs.readers_of(str(name.value))
        words: list[ast.expr] = []
        if isinstance(node, (ast.List, ast.Tuple)):
            words = node.elts
        elif isinstance(node, ast.Call):
            words = node.args
        texts = [
            str(word.value) if isinstance(word, ast.Constant) else "" for word in words
        ]
        for word, following in itertools.pairwise(texts):
            if word == "ckpt" and following in PROGRAMS:
                found.add(PROGRAMS[following])
    return found


def extensions_named_by(code: ast.AST) -> set[str]:
    """Return the extensions that a function of a test, or the mark of a module, says it
    needs: by a mark, by `skip_without` or by `is_there`.
    """
    return {
        str(word.value)
        for node in ast.walk(code)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2]
        in ("needs", "skip_without", "is_there")
        for word in node.args
        if isinstance(word, ast.Constant)
    }


@pytest.mark.slow
def test_tests_say_which_files_of_other_extensions_they_read() -> None:
    """Else they fail where that extension was deleted, which is seldom tried."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        folders = path.relative_to(TESTS).parts
        if folders[0] in OF_ALL:
            continue
        own = {folders[1]} if folders[0] == "ext" else set()
        for name in [*own]:
            own |= {*NEEDS.get(name, ())}
        body = parsed(path).body
        for node in body:
            if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node):
                own |= extensions_named_by(node)
        for function in body:
            if not isinstance(function, ast.FunctionDef):
                continue
            said = extensions_named_by(function) | own
            found += [
                f"{path.relative_to(TESTS)}: {function.name} needs {name}"
                for name in sorted(extensions_asked_by(function) - said)
            ]

    assert found == [], "mark it with needs(NAME), or call skip_without(NAME)"


def test_what_nothing_skips_is_seen() -> None:
    code = ast.parse(
        """
@pytest.mark.needs("old")
def test_it():
    formats.open(samples / "dcp")
    formats.open(SAMPLES / "train_cuda.pth")
    run([sys.executable, "-m", "ckpt", "lint", "a.pth"])
    run("-m", "ckpt", "ls", "a.pth")
    skip_without("pt2", "fsdp")
"""
    )

    assert extensions_asked_by(code) == {"dcp", "lint"}
    assert extensions_named_by(code) == {"old", "pt2", "fsdp"}


def test_only_what_a_test_asks_for_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not needs.ABSENT and needs.ignored() == []
    assert {*EXTENSIONS} == needs.EXTENSIONS
    monkeypatch.setattr(needs, "ABSENT", frozenset({"nothing"}))
    assert needs.ignored() == ["docs", "house", "benchmarks", "fuzz", "ext/nothing"]
    with pytest.raises(ModuleNotFoundError) as caught:
        import ckpt.ext.nothing.here  # type: ignore[import-not-found]  # noqa: F401
    assert needs.asks_for_absent(caught.value)
    assert not needs.asks_for_absent(ModuleNotFoundError(name="numpy"))


def test_an_import_by_the_core_stays_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a module below ckpt/ that is no table."""
    monkeypatch.setattr(needs, "ABSENT", frozenset({"nothing"}))
    monkeypatch.setattr(needs, "_PACKAGE", tmp_path)
    code = compile("import ckpt.ext.nothing", str(tmp_path / "model" / "a.py"), "exec")
    with pytest.raises(ModuleNotFoundError) as caught:
        exec(code, {})
    assert not needs.asks_for_absent(caught.value)


def test_a_script_that_asks_for_what_is_gone_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not where a module of the core imports it."""
    error = "ModuleNotFoundError: No module named 'ckpt.ext.nothing.api'"
    package = Path(ckpt.__file__).parent
    frames = {
        name: f'  File "{package / name}", line 1, in f\n    import x\n'
        for name in ("__init__.py", "model/text.py")
    }
    script = '  File "<string>", line 7, in <module>\n'
    needs.skip_refused(script + error)
    monkeypatch.setattr(needs, "ABSENT", frozenset({"nothing"}))
    needs.skip_refused(script + frames["model/text.py"] + error)
    for text in (script, script + frames["__init__.py"]):
        with pytest.raises(pytest.skip.Exception):
            needs.skip_refused(text + error)


WORDS = {
    "prune": "prune",
    "resizing": "resiz",
    "values": r'"set",|ckpt\.set\b',
}
"""Extensions whose deletion is tried with the tests, and what the modules of those
tests say that could notice it. The others take longer: `make test-without`.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_the_other_tests_pass_without(name: str, tmp_path: Path) -> None:
    for folder in ("ckpt", "tests", "sample_checkpoints", "tools", "docs"):
        shutil.copytree(
            ROOT.parent / folder,
            tmp_path / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT.parent / "pyproject.toml", tmp_path)
    for folder in ("ckpt", "tests"):
        shutil.rmtree(tmp_path / folder / "ext" / name)
    modules = [
        str(path.relative_to(tmp_path))
        for path in sorted((tmp_path / "tests").rglob("test_*.py"))
        if path.relative_to(tmp_path / "tests").parts[0] not in OF_ALL
        and re.search(WORDS[name], path.read_text(encoding="utf-8"))
    ]
    assert modules
    words = ["-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *words,
            f"--basetemp={tmp_path}/made",
            *modules,
        ],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT,
    )

    assert done.returncode == 0, done.stdout[-4000:]
