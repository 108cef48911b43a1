"""The extensions that are there, for a checkout from which some were taken out.

Whoever deletes `ckpt/ext/NAME` runs the tests without further words: those of the
folder are not collected, nor those of pages and tables that are about all of them. A
test of the core is skipped where it asks for what is gone: where it imports a module of
the extension or a public name of it, runs its command or names a file of `FILES`, in a
command line or as a parameter, lets torch or a module of `tests/lib` write what only the
extension reads, is told by the core that it needs the extension, or is marked
`pytest.mark.needs("NAME")`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

import ckpt
from ckpt.hooks import is_installed
from ckpt.model.errors import UsageError

_PACKAGE = Path(ckpt.__file__).parent
_TESTS = Path(__file__).resolve().parents[1]
_TABLES = ("__init__.py", "hooks.py", "formats/__init__.py")
"""The modules of the core that name extensions."""
EXTENSIONS = frozenset(
    name
    for table in _TABLES
    for name in re.findall(r"ckpt\.ext\.(\w+)", (_PACKAGE / table).read_text("utf-8"))
)


def is_there(name: str) -> bool:
    """Tell whether an extension is there, with those that it needs."""
    return is_installed(f"ckpt.ext.{name}")


ABSENT = frozenset(name for name in EXTENSIONS if not is_there(name))
"""The extensions that were taken out, or need one that was."""
FILES = {
    "archives": (
        "agent.zip",
        "archive",
        "nemo",
        "nemo/",
        "package",
        ".nemo",
        "sb3",
        "sb3/",
        "sb3's json",
        "torch-package",
    ),
    "dcp": (
        "dcp",
        "dcp_interrupted",
        ".dcp",
        "dcp of 300",
        "dcp of two ranks",
        "dcp-hf",
        "hf",
        "hf_of_two",
        "to a DCP",
    ),
    "deepspeed": ("deepspeed", "deepspeed 1", "deepspeed 2", "deepspeed 3"),
    "folders": ("folder", "trainer"),
    "fsdp": (
        "accelerate of ranks",
        "fsdp",
        "fsdp ranks",
        "fsdp, ordered",
        "fsdp-ranks",
        "fsdp1",
        "fsdp1_hybrid",
        "fsdp1_of_four",
        "fsdp2",
        "fsdp2_of_two",
        "grids",
        "hsdp",
        "tensor_parallel",
    ),
    "gguf": ("gguf", "gguf/", ".gguf"),
    "old": ("tar/", "torch-tar"),
    "pickles": ("call.pkl", "joblib", "pickle", "plain/", "plain.pkl", "zoo.pkl"),
    "pt2": ("pt2", ".pt2", "pt2 of 2.5", "pt2 of 2.8", "pt2 of 2.13"),
    "torchscript": ("scripted.pt", "torchscript", "torchscript-1.0"),
}
"""Extension -> the samples, and the kinds of checkpoints in parameters of tests, that no
other part of the program reads or writes. `.nemo` is an ending, and `tar/` the kind of
hostile files.
"""
_WRITERS = {
    "archives": ("torch.package.PackageExporter",),
    "dcp": ("torch.distributed.checkpoint.save",),
    "pt2": ("torch.export.save",),
    "torchscript": (
        "torch.jit.save",
        "torch.jit.RecursiveScriptModule.save",
        "torch.jit.RecursiveScriptModule.save_to_buffer",
        "torch.jit.RecursiveScriptModule._save_for_lite_interpreter",
    ),
}
"""Extension -> the functions of torch that write what only the extension reads."""
_OF_ALL = ("docs", "house", "benchmarks", "fuzz")
"""Folders of tests that are about everything: pages, laws over all modules."""


def ignored() -> list[str]:
    """Return the folders of tests that are not collected."""
    if not ABSENT:
        return []
    return [*_OF_ALL, *sorted(f"ext/{name}" for name in ABSENT)]


def skip_marked(item: pytest.Item) -> None:
    """Skip a test that is marked with an extension that is gone, or one of whose
    parameters is a command or a file of it.
    """
    for marker in item.iter_markers("needs"):
        unknown = {*marker.args} - EXTENSIONS
        assert not unknown, f"no such extensions: {unknown}"
        skip_without(*marker.args)
    case = getattr(item, "callspec", None)
    if not ABSENT or case is None:
        return
    skip_command((case.params.get("command"),))
    skip_command(tuple(case.params.get("words") or ()))
    _skip_files(case.params.values())


def skip_without(*names: str) -> None:
    """Skip the test that runs where one of some extensions is gone."""
    for name in names:
        if name in ABSENT:
            pytest.skip(f"this needs ckpt.ext.{name}")


def skip_command(words: tuple[object, ...]) -> None:
    """Skip a test that runs the command of an extension that is gone, or names a file
    that only the extension reads.
    """
    if not ABSENT or not words or not isinstance(words[0], str):
        return
    from ckpt.surface.cli import app  # dear, and only for such a checkout

    module = app.module_of(str(words[0]))
    if module.startswith("ckpt.ext.") and not is_installed(module):
        pytest.skip(f"this needs {module}")
    _skip_files(words)


def _skip_files(words: Iterable[object]) -> None:
    """Skip a test where a word is a file of `FILES`, its name or its kind."""
    for word in words:
        # a hostile case and a format have their kind in their name
        text = str(getattr(word, "name", word))
        for extension in sorted(readers_of(text) & ABSENT):
            pytest.skip(f"this needs ckpt.ext.{extension}: {text}")


def readers_of(text: str) -> set[str]:
    """Return the extensions without which nothing reads a file of `FILES`, by its path,
    its name or its kind.
    """
    kind, slash, _ = text.partition("/")
    name = text.rpartition("/")[2]
    said = {text, kind + slash, name, Path(name).suffix}
    return {extension for extension, files in FILES.items() if said & {*files}}


def skip_refused(message: str) -> None:
    """Skip a test to which the core answers that it needs an extension that is gone, or
    one whose script asked for it and ended with a traceback.
    """
    for name in ABSENT:
        if re.search(rf"this needs ckpt\.ext\.{name}\b", message):
            pytest.skip(f"this needs ckpt.ext.{name}")
        lacking = f"ModuleNotFoundError: No module named 'ckpt.ext.{name}"
        if lacking in message and _is_asked_by_tests(
            re.findall(r'^ *File "([^"]+)", line', message, re.MULTILINE)
        ):
            pytest.skip(f"this needs ckpt.ext.{name}")


def stop_writers(patches: pytest.MonkeyPatch) -> None:
    """Let each function of torch that writes what only a missing extension reads skip
    the test.
    """
    for name in ABSENT & _WRITERS.keys():
        for function in _WRITERS[name]:
            holder, _, attribute = function.rpartition(".")
            patches.setattr(_find_holder(holder), attribute, _skipping(name))


def _find_holder(path: str) -> object:
    """Return the module or the class at a dotted path."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def _skipping(name: str) -> object:
    def skip(*_: object, **__: object) -> NoReturn:
        pytest.skip(f"this needs ckpt.ext.{name}")

    return skip


def all_commands() -> list[str]:
    """Return the commands of the whole program, also those that are gone, in their
    order.
    """
    from ckpt.surface.cli import app

    return [name for group in app._ALL.values() for name in group]


def skip_asking(error: BaseException) -> None:
    """Skip the test that raised an error where it is one because of an extension that is
    gone.
    """
    if asks_for_absent(error):
        assert isinstance(error, ModuleNotFoundError)
        pytest.skip(f"this needs {error.name}")
    if isinstance(error, UsageError):
        skip_refused(str(error))


def asks_for_absent(error: BaseException) -> bool:
    """Tell whether a test, or a public name that it used, imported what is gone. Where
    a module of the core does, it is an error of the core.
    """
    gone = {f"ckpt.ext.{name}" for name in ABSENT}
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    if ".".join(error.name.split(".")[:3]) not in gone:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return _is_asked_by_tests([frame.filename for frame in frames])


def _is_asked_by_tests(files: list[str]) -> bool:
    """Tell whether an import in the last of the files of a traceback is one that a test,
    or a public name for it, asked for.
    """
    ours = [
        Path(file)
        for file in files
        if "importlib" not in file and file[:1] == "/"  # nor `<string>`, of `python -c`
    ]
    if not ours:
        return True
    return ours[-1] == _PACKAGE / "__init__.py" or ours[-1].is_relative_to(_TESTS)
