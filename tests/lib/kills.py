"""Runs of ckpt that are killed: at a chosen event, or after a part of their time. One
process has everything loaded and forks, so that a run takes milliseconds and a kill
meets the writing, not the start of Python.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from process import SAMPLES, environment

SERVER = r"""
import importlib, json, os, pkgutil, random, select, signal, sys, tempfile, time
import ckpt, numpy, safetensors
from ckpt.surface.cli import app
from ckpt.bytes import disk
from ckpt.hooks import is_installed
for module in pkgutil.walk_packages(ckpt.__path__, "ckpt."):
    if module.name.endswith("__main__") or module.name.startswith("ckpt.ext.live"):
        continue
    if is_installed(module.name):  # not what needs an extension that was taken out
        importlib.import_module(module.name)

SEEN = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "ckpt.write")
write, sync, move, preallocate = os.pwrite, os.fsync, os.copy_file_range, os.posix_fallocate
through = os.pwritev

def watched(nth):
    events = 0
    def hook(event, arguments):
        nonlocal events
        if event in SEEN:
            events += 1
            if events == nth:
                os.kill(os.getpid(), signal.SIGKILL)
    def pwrite(fd, data, at):  # two writes, so that a kill may leave a half
        sys.audit("ckpt.write")
        half = len(data) // 2
        done = write(fd, data[:half], at) if half else 0
        sys.audit("ckpt.write")
        return done + write(fd, data[half:], at + done)
    def pwritev(fd, parts, at, flags):
        (data,) = parts
        sys.audit("ckpt.write")
        half = len(data) // 2
        done = through(fd, [data[:half]], at, flags) if half else 0
        sys.audit("ckpt.write")
        return done + through(fd, [data[half:]], at + done, flags)
    def before(call):
        def run(*arguments):
            sys.audit("ckpt.write")
            return call(*arguments)
        return run
    os.pwrite, os.fsync, os.copy_file_range = pwrite, before(sync), before(move)
    os.posix_fallocate, os.pwritev = before(preallocate), pwritev
    sys.addaudithook(hook)

def child(job):
    os.chdir(job["cwd"])
    sys.stdin.close()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull if stream == 1 else job["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    sys.argv = ["ckpt", *job["arguments"]]
    if job["links"] is False:
        def refuse(*arguments, **options):
            raise PermissionError(1, "no links here")
        os.link = refuse
    if job["through"] is not None:
        disk.writes_through = lambda fd: job["through"]
    if job["nth"]:
        watched(job["nth"])
    app.main()

for line in sys.stdin:
    job = json.loads(line)
    begin = time.monotonic()
    number = os.fork()
    if not number:
        child(job)
    if job["after"] is not None:
        fd = os.pidfd_open(number)
        if not select.select([fd], [], [], job["after"])[0]:
            os.kill(number, signal.SIGKILL)
        os.close(fd)
    status = os.waitpid(number, 0)[1]
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - begin]), flush=True)
"""


class Ran(NamedTuple):
    """How a run ended: its exit code, or minus the signal; its seconds; what it said on
    stderr.
    """

    code: int
    seconds: float
    err: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Killer:
    """Runs `ckpt ARGUMENTS` in a fork of a process that has everything loaded."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=SAMPLES,
            text=True,
        )

    def __enter__(self) -> Killer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()

    def run(
        self,
        *arguments: str,
        cwd: Path,
        nth: int = 0,
        after: float | None = None,
        links: bool = True,
        through: bool | None = None,
    ) -> Ran:
        """One run, which gets SIGKILL at its event `nth`, or `after` so many seconds;
        without either it ends by itself.

        An event is a call that changes something. `links=False` is a file system
        without hard links, `through` says whether it forces single writes to the disk;
        None leaves that to the one that is there.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        err = cwd.parent / f"{cwd.name}.stderr"
        job = {
            "arguments": arguments,
            "cwd": str(cwd),
            "nth": nth,
            "after": after,
            "links": links,
            "through": through,
            "err": str(err),
        }
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        code, seconds = json.loads(self._server.stdout.readline())
        return Ran(code, seconds, err.read_text())

    def at_events(
        self,
        *arguments: str,
        cwd: Path,
        links: bool = True,
        through: bool | None = None,
        step: int = 1,
    ) -> Iterator[Ran]:
        """Runs that are killed at their first event, at the one `step` later and so on;
        the last comes to its end.
        """
        for nth in range(1, 400, step):
            ran = self.run(*arguments, cwd=cwd, nth=nth, links=links, through=through)
            yield ran
            if not ran.was_killed:
                assert ran.code == 0, ran
                return
        raise AssertionError("it never came to its end")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name, but temporary ones."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith(".ckpt-tmp")
    }


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder hold these files and nothing else."""
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, data in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
