"""What reading does to the machine: it opens the input and nothing else, imports
nothing, runs nothing.

SAFETY.md §6.6 and §7.1: an audit hook in a child, the modules that a command has loaded
when it ends, and the source itself. Better evidence than a canary alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
from hostile import CASES, Case
from house import parsed
from process import ROOT, SAMPLES, ckpt, python

from ckpt.hooks import COMMANDS, HOOKS

CHILD = """
import json, os, sys

def look(path):
    from ckpt import formats
    from ckpt.model.errors import CkptError
    from ckpt.evidence.survey import Survey
    from ckpt.commands.inspect.inspect import inspect
    from ckpt.model.text import show
    from ckpt.commands.inspect.text import inspect_lines
    from ckpt.commands.inspect.tables import import_table, storage_table, tensor_table, value_table
    try:
        with formats.open(path) as checkpoint:
            report = inspect(Survey(checkpoint))
            json.dumps(report.to_json(), allow_nan=False)
            inspect_lines(report)
            for table in (tensor_table, storage_table, value_table, import_table):
                list(table(report))
    except CkptError as error:
        show(str(error), 2000)
        return "error"
    return "ok"

import importlib, pkgutil, ckpt
for module in pkgutil.walk_packages(ckpt.__path__, "ckpt."):  # some are imported where they are needed
    if not module.name.startswith(("ckpt.ext.live", "ckpt.__main__", "ckpt.ext.cluster", "ckpt.ext.remote")):
        importlib.import_module(module.name)
listing, *provoked = sys.argv[1:]
with open(listing) as file:
    good, paths = json.load(file)
for path in good:
    look(path)
HARMLESS = {"sys._getframe", "sys._getframemodulename", "gc.get_objects", "builtins.id", "object.__getattr__"} | {
    "array.__new__"  # columns of numbers
}
seen, current, folder = [], None, None

def hook(event, arguments):
    if current is None or event in HARMLESS:
        return
    if event == "open":
        path, mode, flags = arguments
        name = os.fsdecode(path) if isinstance(path, (str, bytes)) else repr(path)
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        beside = os.path.dirname(name) in (folder, current) and (os.path.isdir(current) or current.endswith(".json"))
        if not writes and (name == current or beside):
            return
        seen.append([event, repr(arguments)])
    elif event in ("os.listdir", "os.scandir"):
        if os.fsdecode(arguments[0]) not in (folder, current):
            seen.append([event, repr(arguments)])
    else:
        seen.append([event, repr(arguments)[:300]])

sys.addaudithook(hook)
outcomes = {}
for path, provoke in zip(paths, provoked or [""] * len(paths)):
    seen.clear()
    folder, current = os.path.dirname(path), path
    outcome = look(path)
    if provoke == "import":
        import colorsys
    elif provoke == "open":
        open(os.devnull, "w").close()
    elif provoke == "exec":
        exec("1")
    elif provoke == "pickle":
        import pickle
        pickle.loads(b"cposix\\ngetpid\\n.")
    current = None
    outcomes[path] = [outcome, list(seen)]
print(json.dumps(outcomes))
"""

WHOLE = ("tar", "index", "name")
"""Classes of which every case is watched; of the others every k-th, and all that carry
a payload.
"""


def _selected() -> list[Case]:
    chosen = []
    for number, case in enumerate(CASES):
        kind, _, rest = case.name.partition("/")
        payload = rest.startswith("mal_") or "evil" in rest
        if kind == "fs" and rest.startswith(("proc", "sparse")):
            continue
        if callable(case.data) and kind not in ("index", "fs"):
            continue
        if payload or kind in WHOLE or number % 7 == 0:
            chosen.append(case)
    return chosen


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files that make the reader import all that it is made of: plain, with a hint,
    with text opcodes, cut off, large.
    """
    folder = tmp_path_factory.mktemp("good")
    names = (
        "ok/plain.pt",
        "ok/bigint.pt",
        "ok/protocol0.pt",
        "zip/trunc_four_bytes.pt",
    )
    names += (
        "foreign/pt2.pt2",
        "foreign/torch_package.pt",
        "tar/good.pt",
        "foreign/torchscript.pt",
    )
    samples = [
        SAMPLES / name
        for name in ("agent.zip", "zoo.pkl", "sharded", "dcp", "dcp_interrupted")
    ]
    names += ("pickle/deep_dict.pt",)
    return [*(case.build(folder) for case in CASES if case.name in names), *samples]


def _watch(
    good: list[Path], paths: list[Path], tmp_path: Path, *provoked: str
) -> dict[str, tuple[str, list[list[str]]]]:
    """Path -> (outcome, audit events that reading it must not raise). With each path,
    the watched child does what `provoked` says.
    """
    listing = tmp_path / "listing.json"
    listing.write_text(
        json.dumps([[str(path) for path in good], [str(path) for path in paths]])
    )
    done = python("-c", CHILD, listing, *provoked)
    assert (done.code, done.err) == (0, b""), done.err.decode()[-2000:]
    found = json.loads(done.out)
    assert len(found) == len(paths)
    return found


def test_hostile_files_raise_no_audit_event(good: list[Path], tmp_path: Path) -> None:
    paths = {}
    for number, case in enumerate(_selected()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            paths[case.build(folder)] = case.name
        except pytest.skip.Exception:
            continue
    assert len(paths) > 150
    found = _watch(good, list(paths), tmp_path)
    bad = {paths[Path(path)]: events for path, (_, events) in found.items() if events}
    assert bad == {}
    outcomes = [outcome for outcome, _ in found.values()]
    assert outcomes.count("ok") > 50
    assert outcomes.count("error") > 50
    assert not hostile.CANARY.exists()


def test_samples_raise_no_audit_event(good: list[Path], tmp_path: Path) -> None:
    paths = [
        path
        for path in sorted(SAMPLES.iterdir())
        if path.suffix not in (".py", ".md") and path.name[0] not in "._"
    ]
    assert len(paths) > 10
    found = _watch(good, paths, tmp_path)
    bad = {path: events for path, (_, events) in found.items() if events}
    # The names beside an interrupted save are read, for the newest that is whole; no
    # file there is opened.
    beside = bad.pop(str(SAMPLES / "dcp_interrupted"))
    assert {event for event, _ in beside} == {"os.scandir"}
    assert bad == {}


def test_watch_sees(good: list[Path], tmp_path: Path) -> None:
    """The hook does notice what the two tests above rule out."""
    found = _watch(good, good[:4], tmp_path, "import", "open", "exec", "pickle")
    wanted = dict(
        zip(found, ("import", "open", "exec", "pickle.find_class"), strict=True)
    )
    for path, (_, events) in found.items():
        assert wanted[path] in {event for event, _ in events}


# --------------------------------------------------------------------------------------
# loaded modules

NEVER = (
    "torch",
    "numpy",
    "rich",
    "tabulate",
    "safetensors",
    "pickle",
    "_pickle",
    "zipfile",
    "tarfile",
    "marshal_",
    "shelve",
    "ctypes",
    "socket",
    "ssl",
    "http",
    "urllib.request",
    "multiprocessing",
    "runpy_",
    "pdb",
    "code_",
)
MODULES = """
import json, os, sys
before = set(sys.modules)
out, leave_at_once = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), os._exit
def leave(code):
    os.write(out, json.dumps([code or 0, sorted(set(sys.modules) - before)]).encode())
    leave_at_once(code or 0)
os._exit = leave
sys.argv[:] = ["ckpt", *sys.argv[2:]]
from ckpt.evidence.survey import Survey
from ckpt.surface.cli.app import main
try:
    main()
except SystemExit as end:
    leave(end.code)
"""


def _modules(tmp_path: Path, *arguments: str) -> set[str]:
    """The modules that a command in a pipe has loaded when it ends."""
    listing = tmp_path / "modules.json"
    done = python("-c", MODULES, listing, *arguments, cwd=SAMPLES)
    assert done.err == b""
    code, names = json.loads(listing.read_bytes())
    assert code == 0
    assert done.out
    assert "ckpt.formats.torch_zip" in names
    return set(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "train_cuda.pth"),
        ("inspect", "train_cuda.pth", "--json"),
        ("inspect", "train_cuda.pth", "--tsv"),
        ("inspect", "train_cuda.pth", "--storages", "--values", "--imports"),
        (
            "inspect",
            "legacy.pth",
            "legacy_python2.pth",
            "dtypes.pth",
            "objects.pth",
            "whole_model.pth",
        ),
        (
            "inspect",
            "weights.safetensors",
            "sharded",
            "scripted.pt",
            "lightning.ckpt",
            "yolo_style.pt",
        ),
        ("inspect", "hostile.pth", "tied_and_bloated.pth", "compiled.pth"),
        ("get", "train_cuda.pth", "epoch"),
        ("get", "train_cuda.pth", "epoch", "--json"),
    ],
    ids=" ".join,
)
def test_modules_that_no_command_loads(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    found = _modules(tmp_path, *arguments)
    assert sorted(found & set(NEVER)) == []
    assert not [
        name
        for name in found
        if name.startswith(("torch.", "numpy.", "rich.", "safetensors."))
    ]


def test_tabulate_is_loaded_when_asked_for(tmp_path: Path) -> None:
    """The list of modules is not empty by mistake."""
    assert "tabulate" in _modules(
        tmp_path, "inspect", "legacy.pth", "--table", "github"
    )


# --------------------------------------------------------------------------------------
# the source

SOURCES = sorted((ROOT / "ckpt").rglob("*.py"))

FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "copyreg",
    "zipfile",
    "tarfile",
    "ctypes",
    "subprocess",
    "socket",
    "urllib",
    "http",
    "requests",
    "pty",
    "runpy",
    "code",
    "codeop",
    "imp",
    "pkgutil",
    "mmap",
    "multiprocessing",
    "builtins",
    "webbrowser",
    "yaml",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "breakpoint",
    "vars",
    "setattr",
    "delattr",
    "input",
}
FORBIDDEN_ATTRIBUTES = {
    "Unpickler",
    "Pickler",
    "find_class",
    "system",
    "popen",
    "fork",
    "execv",
    "execve",
    "execvp",
    "spawnv",
    "posix_spawn",
    "__import__",
    "__builtins__",
    "__subclasses__",
    "__globals__",
    "__code__",
    "dlopen",
    "memmap",
}
WRITES = {
    "remove",
    "unlink",
    "rename",
    "rmdir",
    "mkdir",
    "makedirs",
    "chmod",
    "chown",
    "symlink",
    "link",
    "truncate",
}


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(parsed(path))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _suspicious(node: ast.AST) -> str | None:
    """Why a node of the source is not one of a reader that runs nothing; None when it
    may be there.
    """
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    else:
        names = []
    for name in names:
        if name.partition(".")[0] in FORBIDDEN_MODULES:
            return f"import {name}"
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Name) and func.id in FORBIDDEN_CALLS:
            return f"{func.id}()"
        if (
            isinstance(func, ast.Name)
            and func.id == "getattr"
            and not isinstance(node.args[1], ast.Constant)
        ):
            return "getattr() by a name that is not written here"
        if (
            isinstance(func, ast.Attribute)
            and func.attr in ("load", "loads")
            and ast.unparse(func) != "json.loads"
        ):
            return f"{ast.unparse(func)}()"
        if isinstance(func, ast.Attribute) and func.attr == "import_module":
            return "import_module()"
    if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
        return f".{node.attr}"
    if (
        isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "os"
        and node.attr in WRITES
    ):
        return f"os.{node.attr}"
    if isinstance(node, ast.Name) and node.id in ("__builtins__", "Unpickler"):
        return node.id
    return None


MAY = {
    "ckpt/bytes/target.py": {
        "os.link",
        "os.makedirs",
        "os.mkdir",
        "os.rename",
        "os.replace",
        "os.rmdir",
        "os.unlink",
        "os.fchmod",
        "os.fchown",
        "import ctypes",
    },
    "ckpt/bytes/fence.py": {
        "import ctypes"
    },  # to give rights up; tests/bytes/test_fence.py
    "ckpt/bytes/inplace.py": {"os.ftruncate"},
    "ckpt/ext/prune/removal.py": {
        "os.rename",
        "os.rmdir",
        "os.unlink",
    },  # for `ckpt prune --delete` only
    "ckpt/ext/remote/objects.py": {
        "getattr() by a name that is not written here"
    },  # of the table of schemes
    # loaded for a URL only; tests/ext/remote/test_command_remote.py listens
    "ckpt/ext/remote/http.py": {
        "import http.client",
        "import socket",  # for the class of its error
        "import urllib.parse",
    },
    "ckpt/ext/remote/connections.py": {
        "import http.client",
        "import mmap",  # memory without a file
        "import socket",
        "import urllib.request",  # for the proxies of the environment
        "import urllib.parse",
    },
    "ckpt/ext/remote/target.py": {"import mmap"},  # memory without a file
    "ckpt/ext/remote/url.py": {"import urllib.parse"},
    # copies of this process send results back, no file does
    "ckpt/bytes/executor.py": {
        "import multiprocessing.connection",
        ".fork",
    },
    # tasks of a sender whom the worker trusts; no file gets there
    "ckpt/ext/cluster/parcel.py": {
        "import pickle",
        "pickle.loads()",
        ".Pickler",
        "import socket",
    },
    "ckpt/ext/cluster/connect.py": {  # loaded for --cluster only
        "import socket",
        "import pkgutil",
        "import multiprocessing",
    },
    "ckpt/__init__.py": {
        "getattr() by a name that is not written here"
    },  # of the table of public names
    "ckpt/ext/lint/settings.py": {"tomllib.loads()"},
    "ckpt/formats/__init__.py": {"entry.load()"},
    "ckpt/ext/live/__init__.py": {"import torch"},
    "ckpt/ext/live/check.py": {"torch.load()"},
    # a report of ours, inside of a pickle that the user loads; no file gets there
    "ckpt/surface/reports.py": {
        "import copyreg",
        "import pickle",
        "setattr()",
        (
            "getattr() by a name that is not written here"
        ),  # of the slots of our own classes
    },
    "ckpt/model/rows.py": {
        "getattr() by a name that is not written here"
    },  # of the fields of our own classes
    "ckpt/ext/live/memory.py": {"vars()"},
    "ckpt/ext/live/model.py": {
        "vars()",
        "getattr() by a name that is not written here",
    },
}
"""The rooms that do what no other may: one puts files in place, one is the door to
torch and to the user's own code.
"""


@pytest.mark.slow
def test_source_runs_nothing() -> None:
    found = [
        f"{_name(path)}:{getattr(node, 'lineno', 0)}: {why}"
        for path in SOURCES
        for node in _nodes(path)
        if (why := _suspicious(node)) and why not in MAY.get(_name(path), set())
    ]
    assert found == [] and len(SOURCES) > 200


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import load",
        "import torch, zipfile",
        "pickle.load(f)",
        "torch.load(f)",
        "eval(x)",
        "exec(x)",
        "__import__(x)",
        "importlib.import_module(x)",
        "getattr(torch, name)",
        "os.system(x)",
        "x = pickle.Unpickler",
        "class A(Unpickler): pass",
        "os.unlink(p)",
        "marshal.loads(x)",
    ],
)
def test_suspicious_source_is_seen(code: str) -> None:
    assert any(_suspicious(node) for node in ast.walk(ast.parse(code)))


def _calls_of(path: Path, function: str) -> list[ast.Call]:
    return [
        node
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == function
    ]


def test_modules_are_imported_by_name_only_from_the_table_of_commands() -> None:
    """`import_module` for a command of the table, for the writer of a format, for a
    notebook and for what plans commands.

    What a user types is no name of a module.
    """
    users = {_name(path): _calls_of(path, "import_module") for path in SOURCES}
    assert {name: len(calls) for name, calls in users.items() if calls} == {
        "ckpt/__init__.py": 1,
        "ckpt/commands/inspect/api.py": 2,
        "ckpt/elements/unpacked.py": 1,
        "ckpt/commands/ls/api.py": 1,
        "ckpt/commands/verify/api.py": 1,
        "ckpt/hooks.py": 1,
        "ckpt/surface/api/checkpoint.py": 1,
        "ckpt/surface/cli/app.py": 2,
        "ckpt/formats/__init__.py": 2,
        "ckpt/formats/format.py": 1,
        "ckpt/ext/cluster/connect.py": 1,
        "ckpt/ext/remote/credentials.py": 2,
        "ckpt/ext/remote/objects.py": 2,
        "ckpt/ext/remote/target.py": 1,
        "ckpt/surface/reports.py": 1,
    }
    (argument,) = users["ckpt/surface/cli/app.py"][0].args
    assert ast.unparse(argument) == "module_of(name)"
    assert all(
        module.startswith("ckpt.ext.")
        for module in (*COMMANDS.values(), *HOOKS.values())
    )
    askers = [name for name in users if name != "ckpt/hooks.py"]
    doors = ("load_hook", "find_hook")
    asked = [
        call.args[0]
        for name in askers
        for door in doors
        for call in _calls_of(ROOT / name, door)
    ]
    assert {hook.value for hook in asked if isinstance(hook, ast.Constant)} == set(
        HOOKS
    )
    assert all(isinstance(hook, ast.Constant) for hook in asked), (
        "a hook is asked for by a name that stands here"
    )
    (shell,) = users["ckpt/surface/cli/app.py"][1].args
    assert (
        isinstance(shell, ast.Constant) and shell.value == "ckpt.surface.cli.completion"
    )
    shown = {
        "ckpt/commands/ls/api.py": "ckpt.surface.api.advice",
        "ckpt/commands/verify/api.py": "ckpt.surface.api.advice",
        "ckpt/surface/api/checkpoint.py": "ckpt.commands.inspect.notebook",
    }
    for name, modules in {
        "ckpt/commands/inspect/api.py": {
            "ckpt.surface.api.advice",
            "ckpt.commands.inspect.notebook",
        },
    }.items():
        held = [call.args[0] for call in users[name]]
        assert {
            each.value for each in held if isinstance(each, ast.Constant)
        } == modules
    for name, module in shown.items():
        (named,) = users[name][0].args
        assert isinstance(named, ast.Constant) and named.value == module, name
    for word in ("output", "options", "app", "os", ".inspect", "../inspect"):
        done = ckpt(word)
        assert done.code == 2 and done.out == b"", word


def test_safe_modules_are_alone() -> None:
    """The machine that runs programs of opcodes imports data structures only."""
    allowed = {
        "__future__",
        "_compat_pickle",
        "codecs",
        "collections",
        "functools",
        "itertools",
        "math",
        "re",
        "struct",
        "typing",
        "zlib",
    }
    for path in SOURCES:
        if path.parent not in (
            ROOT / "ckpt" / "pickle",
            ROOT / "ckpt" / "pickle" / "judge",
        ):
            continue
        for node in _nodes(path):
            if isinstance(node, ast.Import):
                assert {
                    alias.name.partition(".")[0] for alias in node.names
                } <= allowed, path.name
            elif isinstance(node, ast.ImportFrom):
                module = (node.module or "").partition(".")[0]
                if module == "sys":
                    assert {alias.name for alias in node.names} <= {
                        "stdlib_module_names",
                        "getsizeof",
                    }, path.name
                    continue
                assert module in allowed | {"ckpt"}, (path.name, module)
                assert not (node.module or "").startswith(
                    ("ckpt.surface.cli", "ckpt.surface.text")
                ), path.name
