"""Real processes for the tests: the command as a user runs it, and what it wrote, byte
for byte.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from forks import Server
from needs import skip_command, skip_refused

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the package and `sample_checkpoints`."""
SAMPLES = ROOT / "sample_checkpoints"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""The fixture `ckpt`: the command among the samples."""

TIMEOUT = 600
"""Seconds that a child may take: a busy machine is no failure, only one that never ends
is.
"""

_SETTINGS = (
    "NO_COLOR",
    "FORCE_COLOR",
    "CKPT_DEBUG",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "PYTHONUNBUFFERED",
    "LC_ALL",
    "LANG",
    "COLUMNS",
    "LINES",
)


class Done(NamedTuple):
    """How a process ended."""

    code: int
    out: bytes
    err: bytes

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.out.decode().splitlines()

    @property
    def complaints(self) -> list[str]:
        """The lines of stderr, split at newlines only."""
        return self.err.decode().removesuffix("\n").split("\n") if self.err else []


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child: UTF-8, without colour, with this checkout's
    package.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
    return {**kept, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), **changes}


def python(
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | None = None,
    timeout: float = TIMEOUT,
) -> Done:
    """Run `python ARGUMENTS`.

    Skips the test where the core says that it needs an extension that is gone.
    """
    ran = subprocess.run(
        [sys.executable, *map(os.fspath, arguments)],
        stdin=subprocess.DEVNULL if input is None else None,
        input=input,
        capture_output=True,
        env=environment() if env is None else env,
        cwd=cwd,
        timeout=timeout,
    )
    skip_refused(ran.stderr.decode("utf-8", "replace"))
    return Done(ran.returncode, ran.stdout, ran.stderr)


_servers: list[Server] = []


def server(env: Mapping[str, str]) -> Server | None:
    """What forks for commands in this environment, started at the first call; None if
    Python must start for it.
    """
    if not _servers:
        _servers.append(Server(environment()))
    return _servers[0] if _servers[0].serves(env) else None


def close_server() -> None:
    """End the server, if one was started."""
    while _servers:
        _servers.pop().close()


def ckpt(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    input: bytes | None = None,
    **changes: str,
) -> Done:
    """What `ckpt ARGUMENTS` does, with some variables of the environment changed, and a
    little on stdin.
    """
    skip_command(arguments)
    env = environment(**changes)
    forks = server(env)
    if forks is None:
        return alone(*arguments, cwd=cwd, input=input, **changes)
    done = Done(
        *forks.run(
            [*map(os.fspath, arguments)],
            os.fspath(cwd or os.getcwd()),
            env,
            TIMEOUT,
            input,
        )
    )
    skip_refused(done.err.decode("utf-8", "replace"))
    return done


def alone(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    input: bytes | None = None,
    **changes: str,
) -> Done:
    """The same in a Python of its own, which takes ten times as long as a fork."""
    skip_command(arguments)
    return python(
        "-m", "ckpt", *arguments, env=environment(**changes), cwd=cwd, input=input
    )


def running(session: int) -> list[str]:
    """The names of the processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, of = rest.split()[:4]
        if int(of) == session and state != "Z":
            found.append(name)
    return found


def await_end(session: int) -> None:
    """Return once no process of a session runs any more."""
    limit = time.monotonic() + TIMEOUT
    while running(session):
        assert time.monotonic() < limit
        time.sleep(0.01)


_NOBODY = """
import importlib, os, pkgutil, sys, tempfile
import ckpt
from ckpt.hooks import is_installed
from ckpt.surface.cli import app
for module in pkgutil.walk_packages(ckpt.__path__, "ckpt."):
    if not module.name.endswith("__main__") and is_installed(module.name):
        importlib.import_module(module.name)
sample, *arguments = sys.argv[1:]
streams = os.dup(1), os.dup(2)
nowhere = os.open(os.devnull, os.O_WRONLY)
with tempfile.TemporaryDirectory() as folder:
    for once in (["inspect", sample], ["rehome", sample, "-o", f"{folder}/x"], ["inspect", f"{folder}/y"]):
        os.dup2(nowhere, 1), os.dup2(nowhere, 2)
        try:
            app.program()(once, prog_name="ckpt")
        except SystemExit:
            pass
        sys.stdout.flush(), sys.stderr.flush()
for stream, kept in enumerate(streams, 1):
    os.dup2(kept, stream)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.argv[1:] = arguments
app.main()
"""
"""`ckpt` of a user who owns nothing. It imports and uses all parts first: the checkout
may be closed to others.
"""


def as_nobody(*arguments: str, cwd: Path) -> Done:
    """What `ckpt ARGUMENTS` does for a user without rights: where the tests run as
    root, its child gives them up.
    """
    skip_command(arguments)
    if os.geteuid():
        return ckpt(*arguments, cwd=cwd)
    return python("-c", _NOBODY, SAMPLES / "train_cuda.pth", *arguments, cwd=cwd)


def terminal(
    *arguments: str | os.PathLike[str],
    columns: int = 80,
    rows: int = 50,
    code: int = 0,
    cwd: Path = SAMPLES,
    **changes: str,
) -> str:
    """What a person sees of `ckpt ARGUMENTS` in a folder, that of the samples, on a
    terminal of so many columns and rows.

    The command must end with the exit code `code`.
    """
    skip_command(arguments)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = environment(**changes)
    forks = server(env)
    assert forks is not None, "a terminal is for forks"
    forks.start([*map(os.fspath, arguments)], os.fspath(cwd), env, [theirs] * 3)
    seen, ended = read_terminal(ours, lambda: forks.wait(TIMEOUT))
    skip_refused(seen.decode("utf-8", "replace"))
    assert ended == code, seen
    return seen.decode().replace("\r\n", "\n")


def read_terminal(fd: int, wait: Callable[[], int]) -> tuple[bytes, int]:
    """Return the bytes that were written to a terminal, whose own end is `fd`, and the
    result of `wait` once the process that writes to it has ended. Closes `fd`.
    """
    seen = _read_to_close(fd)
    ended = wait()
    # Linux may tell a reader that the other end is closed before it hands on what was
    # written last. After the end of the process nothing is on its way any more.
    seen += _read_to_close(fd)
    os.close(fd)
    return seen, ended


def _read_to_close(fd: int) -> bytes:
    seen = b""
    while True:
        try:
            part = os.read(fd, 65_536)
        except OSError:  # how Linux says that the other end is closed
            return seen
        if not part:
            return seen
        seen += part


def raw_controls(data: bytes, allowed: str = "\n") -> list[str]:
    """The control characters of an output that a terminal could act on: C0, DEL and C1,
    but those allowed.
    """
    text = data.decode(
        "utf-8", "surrogateescape"
    )  # a lone byte 0x9b is a C1 control to some terminals
    found = {
        char
        for char in text
        if ord(char) < 0x20
        or 0x7F <= ord(char) <= 0x9F
        or 0xDC80 <= ord(char) <= 0xDCFF
    }
    return sorted(map(ascii, found - set(allowed)))


def check_error(done: Done, says: str = "", code: int = 2) -> str:
    """Assert the contract of an error: its code, nothing on stdout, one line on stderr.
    Returns the line.
    """
    assert done.code == code, done
    assert done.out == b"", "an error writes nothing to stdout"
    assert done.err.endswith(b"\n") and done.err.count(b"\n") == 1, done.err[-2000:]
    assert raw_controls(done.err) == []
    line = done.err.decode("utf-8").removesuffix("\n")
    assert len(line.splitlines()) == 1, "a line separator of Unicode"
    assert (
        line.startswith("ckpt: ")
        and "Traceback" not in line
        and "this is a bug" not in line
    ), line
    assert says in line.lower(), line
    return line
