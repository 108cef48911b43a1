"""Signals at every moment of the process: 129, 130 or 143, one line on stderr, and
nothing half written.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from process import SAMPLES, Done, python
from rewriting import saved

DRIVER = """
import json, os, signal, sys
entry, number, step, changing, *arguments = sys.argv[1:]
number, step = int(number), int(step)
ends = []

def child(nth, report):
    # The process: it sends itself a signal at its nth event, and reports how many there were.
    count, started = 0, False
    def hook(event, args):
        nonlocal count, started
        started = started or event == "import" and args[0].startswith("ckpt.surface.cli")
        if started and (not changing or event.startswith("os.") or event == "open" and args[2] & os.O_CREAT):
            count += 1
            if count == nth:
                os.kill(os.getpid(), number)
    end = os._exit
    def ended(code):
        os.write(report, str(count).encode())
        end(code)
    os._exit = ended
    sys.addaudithook(hook)
    sys.argv = ["ckpt", *arguments]
    if entry == "script":
        from ckpt.__main__ import main
        main()
    else:
        import runpy
        runpy.run_module("ckpt", run_name="__main__", alter_sys=True)

def ended(nth):
    (error, errors), (count, report) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        child(nth, report)
    os.close(errors), os.close(report)
    with open(error) as file, open(count) as number_of:
        said, events = file.read(), number_of.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said, events, sorted(os.listdir("."))

code, said, events, files = ended(0)
assert code == 0 and not said, (code, said)
for nth in range(1, int(events) + 1, step):
    for name in set(os.listdir(".")) - {"in.pth"}:
        os.unlink(name)
    ends.append([nth, *ended(nth)])
print(json.dumps(ends))
"""
"""Runs `ckpt ARGUMENTS` again and again in forks, each of which gets the signal at
another of its audit events.
"""

LINES = {
    signal.SIGHUP: "hung up",
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
}


class End(NamedTuple):
    """How one process ended, and the files that it left."""

    nth: int
    code: int
    said: str
    events: str
    files: list[str]


def ends(
    number: int,
    folder: Path,
    *arguments: str,
    entry: str,
    step: int,
    changing: bool = False,
) -> list[End]:
    (folder / "in.pth").write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    options = (entry, str(int(number)), str(step), "yes" if changing else "")
    done = python("-c", DRIVER, *options, *arguments, cwd=folder)
    assert done.code == 0, done.err.decode()
    return [End(*row) for row in json.loads(done.out)]


def wrong(found: list[End], number: int) -> list[End]:
    """The processes that ended otherwise than the signal asks for. One that came before
    the handlers kills at once.
    """
    line = f"ckpt: {LINES[signal.Signals(number)]}\n"
    return [
        end
        for end in found
        if (end.code, end.said) != (128 + number, line)
        and not (end.events and int(end.events) < end.nth)  # it ended before
        and not (
            number != signal.SIGINT
            and (end.code, end.said, end.events) == (-number, "", "")
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "entry", "arguments", "step"),
    [
        (signal.SIGINT, "script", ("inspect", "in.pth"), 500),
        (signal.SIGTERM, "module", ("--help",), 60),
    ],
    ids=["inspect", "help"],
)
def test_signal_at_any_event(
    number: int, entry: str, arguments: tuple[str, ...], step: int, tmp_path: Path
) -> None:
    found = ends(number, tmp_path, *arguments, entry=entry, step=step)
    assert wrong(found, number) == []
    assert len(found) > 3 and {end.code for end in found} >= {128 + number}


def test_signal_at_any_event_of_writing(tmp_path: Path) -> None:
    """Events that open, link or remove a file: the output is whole or absent, and
    nothing else stays.
    """
    arguments = ("rehome", "in.pth", "-o", "out.pth")
    found = ends(
        signal.SIGHUP, tmp_path, *arguments, entry="script", step=3, changing=True
    )
    assert wrong(found, signal.SIGHUP) == []
    assert len(found) > 5
    assert {tuple(end.files) for end in found} <= {("in.pth",), ("in.pth", "out.pth")}


PROGRAM = """
import os, signal, sys, threading
from ckpt import formats
from ckpt.surface.cli import app
from ckpt.model.errors import UnreadableError
from ckpt.bytes.executor import Task, Threads

def kill():
    os.kill(os.getpid(), signal.SIGTERM)

class Final:
    def __del__(self):
        kill()

def in_a_finalizer(path, limits=None, **options):
    Final()
    threading.Event().wait(60)

def in_a_thread(path, limits=None, **options):
    Threads(2).run([Task(kill, ()), Task(threading.Event().wait, (60,))])

def in_code_that_drops_it(path, limits=None, **options):
    try:
        kill()
    except BaseException:
        pass
    raise UnreadableError("cannot be read")

def ignored(path, limits=None, **options):
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    raise UnreadableError("cannot be read")

class Out:
    def __init__(self, nth):
        self.flushes, self.nth = 0, nth
    def write(self, text):
        return len(text)
    def isatty(self):
        return False
    def flush(self):
        self.flushes += 1
        if self.flushes == self.nth:
            kill()

what = sys.argv.pop(1)
if what.isdigit():
    sys.stdout = Out(int(what))
else:
    formats.open = globals()[what]
if what == "ignored":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
app.main()
"""


def program(what: str) -> Done:
    return python("-c", PROGRAM, what, "inspect", SAMPLES / "legacy.pth")


@pytest.mark.parametrize("what", ["in_a_finalizer", "in_a_thread", "1", "2"])
def test_signal_is_never_lost(what: str) -> None:
    """Where Python drops exceptions, where another thread runs, and during the last
    flushes.
    """
    assert program(what) == Done(143, b"", b"ckpt: terminated\n")


def test_signal_that_foreign_code_drops_decides_the_exit_code() -> None:
    done = program("in_code_that_drops_it")
    assert (done.code, done.complaints[-1]) == (143, "ckpt: terminated")


def test_ignored_signals_stay_ignored() -> None:
    done = program("ignored")
    assert (done.code, done.out) == (2, b"")
    assert done.err.endswith(b"cannot be read\n") and done.err.count(b"\n") == 1


# --------------------------------------------------------------------------------------
# Windows

WINDOWS = """
import sys
sys.platform = "win32"
for name in ("fcntl", "signal"):
    sys.modules[name] = None
before = set(sys.modules)
import os
leave = os._exit
def left(code):
    print(sorted(name for name in set(sys.modules) - before if name.startswith(("ckpt", "typer"))), flush=True)
    leave(code)
os._exit = left
from ckpt.__main__ import main
main()
"""


def test_windows_is_named_before_anything_is_imported() -> None:
    done = python("-c", WINDOWS, "inspect", "x")
    assert (done.code, done.err) == (2, b"ckpt: Windows is not supported (use WSL)\n")
    assert done.lines == ["['ckpt', 'ckpt.__main__']"]


# --------------------------------------------------------------------------------------
# What is imported

IMPORTED = """
import os, sys
for name in sys.argv.pop(1).split():
    __import__(name)
before = set(sys.modules)
leave = os._exit
def left(code):
    print(*sorted(set(sys.modules) - before), file=sys.stderr, flush=True)
    leave(code)
os._exit = left
from ckpt.__main__ import main
main()
"""


def imported(*words: str, after: str = "", code: int = 0) -> set[str]:
    """What a command line imports, besides the modules of which `after` is a list, and
    what they import.
    """
    done = python("-c", IMPORTED, after, *words, cwd=SAMPLES)
    assert done.code == code, done.err.decode()
    return set(done.complaints[-1].split())


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told_before_anything_is_imported(option: str) -> None:
    ours = {
        "ckpt",
        "ckpt.__main__",
        "ckpt.surface",
        "ckpt.surface.cli",
        "ckpt.surface.cli.start",
    }
    assert imported(option, after="signal collections.abc") == {
        *ours,
        "__future__",
        "gc",
    }


def test_a_version_that_cannot_be_written(tmp_path: Path) -> None:
    script = (
        "import os, sys; os.dup2(os.open(sys.argv.pop(1), os.O_WRONLY), 1); from "
        "ckpt.__main__ import main; main()"
    )
    assert python("-c", script, "/dev/full", "--version") == Done(
        2, b"", b"ckpt: the output cannot be written: no space left on device\n"
    )
    left = (
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); from "
        "ckpt.__main__ import main; main()"
    )
    assert python("-c", left, "--version") == Done(141, b"", b"")
    closed = "import os, sys; sys.stdout = None; from ckpt.__main__ import main; main()"
    assert b"Traceback" not in python("-c", closed, "--version").err


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("-h",), ("help",), ("help", "diff"), ("diff", "--help")]
)
def test_the_help_imports_no_other_command(words: tuple[str, ...]) -> None:
    commands = {
        name.split(".")[2] for name in imported(*words) if name.endswith(".command")
    }
    assert commands == {"diff"} & set(words)


@pytest.mark.parametrize(
    "words", [("inspect",), ("inspect", "--depth", "1"), ("get", "model")]
)
def test_what_looks_imports_little_besides_typer(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Reading and showing a usual file. typer itself imports ast, inspect and datetime,
    and the newest pydantic too.
    """
    path = saved(
        {"model": {f"layers.{i}.weight": torch.ones(2) for i in range(9)}},
        tmp_path / "a.pth",
    )
    name, *others = words
    own = "typer typer.core array struct bisect __future__ gc"
    found = imported(name, str(path), *others, after=own)

    assert {
        each for each in found if each.partition(".")[0] in sys.stdlib_module_names
    } == set()
    assert {"ckpt.surface.cli.app", "ckpt.formats"} <= found
    rare = (
        "writer",
        "writing",
        "save",
        "commit",
        "disk",
        "inplace",
        "emit",
        "executor",
        "merge",
        "verifier",
    )
    assert not [each for each in found if each.rpartition(".")[2] in rare]
    assert {each for each in found if each.endswith(".reader")} == {
        "ckpt.formats.torch_zip.reader"
    }
    assert "ckpt.surface.text.notebook" not in found
    assert len([each for each in found if each.startswith("ckpt.")]) <= 120


def test_what_looks_compiles_few_expressions(tmp_path: Path) -> None:
    """Each takes a tenth of a millisecond, and the one of unprintable
    characters five.
    """
    path = saved({"layers.0.weight": torch.ones(2)}, tmp_path / "a.pth")
    program = """
import os, sys, re, typer, typer.core
found, compile, leave = [], re._compiler.compile if sys.version_info > (3, 11) else re.sre_compile.compile, os._exit
def compiled(text, flags=0):
    found.append(text)
    return compile(text, flags)
def left(code):
    print(len(found), sum(not text.isascii() for text in found), file=sys.stderr, flush=True)
    leave(code)
os._exit = left
if sys.version_info > (3, 11):
    re._compiler.compile = compiled
else:
    re.sre_compile.compile = compiled
from ckpt.__main__ import main
main()
"""
    done = python("-c", program, "inspect", path)
    count, wide = map(int, done.complaints[-1].split())
    assert (count <= 10, wide, done.code) == (True, 0, 0)


def test_script_is_the_module(samples: Path) -> None:
    """What pyproject.toml names handles signals before it imports the commands."""
    text = (samples.parent / "pyproject.toml").read_text()
    assert '\n[project.scripts]\nckpt = "ckpt.__main__:main"\n\n' in text
