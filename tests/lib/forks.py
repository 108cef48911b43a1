"""Processes without their start: a server imports all of ckpt once, and forks for each
command.

A fork is a process of its own: its streams, folder, environment, signals and exit code
are those of `python -m ckpt`. Only the importing is done, so `process.alone` runs each
command in a Python of its own once.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import paths

_EARLY = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_", "TZ")
"""How variables begin that Python or a library reads once, when it starts."""

SERVER = r"""
import gc, importlib, io, json, os, pkgutil, runpy, socket, sys, traceback
import ckpt, numpy, rich.console, rich.live, rich.progress, rich.table, rich.text, safetensors, tabulate
from ckpt.hooks import is_installed
for module in pkgutil.walk_packages(ckpt.__path__, "ckpt."):
    if module.name.endswith("__main__") or module.name.startswith("ckpt.ext.live"):
        continue
    if is_installed(module.name):  # not what needs an extension that was taken out
        importlib.import_module(module.name)
line = socket.socket(fileno=int(sys.argv[1]))

def stream(fd, like):
    # As Python makes its own.
    raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
    raw.name = like.name
    buffered = io.BufferedWriter(raw) if fd else io.BufferedReader(raw)
    by_line = fd == 2 or raw.isatty()
    made = io.TextIOWrapper(buffered, like.encoding, like.errors, newline="\n", line_buffering=by_line)
    made.mode = raw.mode[0]
    return made

def child(job, streams):
    line.close()
    for fd, given in enumerate(streams):
        os.dup2(given, fd)
        os.close(given)
    os.chdir(job["cwd"])
    os.umask(job["umask"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for name, value in job["constants"].items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        made = stream(fd, getattr(sys, name))
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    sys.path[0] = os.getcwd()
    sys.argv = ["-m", *job["arguments"]]
    code = 1
    try:
        runpy.run_module("ckpt", run_name="__main__", alter_sys=True)
    except BaseException:  # the command ends its process itself
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)

gc.collect()
gc.freeze()
while True:
    size, streams, _, _ = socket.recv_fds(line, 8, 3)
    if not size:
        break
    size, data = int.from_bytes(size, "big"), b""
    while len(data) < size:
        data += line.recv(size - len(data))
    pid = os.fork()
    if not pid:
        child(json.loads(data), streams)
    for each in streams:
        os.close(each)
    line.sendall(os.waitpid(pid, 0)[1].to_bytes(4, "big"))
"""


class Server:
    """One process that forks, for one command at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._early = _early(environment)
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Locks that threads of a library hold would stay locked in the forks.
                env={
                    **environment,
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )

    def close(self) -> None:
        """End the server."""
        self._line.close()
        self._process.wait()

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether Python would begin in this environment as the server did."""
        return self._early == _early(environment)

    def start(
        self,
        arguments: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        streams: Sequence[int],
    ) -> None:
        """Begin `ckpt ARGUMENTS` with three descriptors as its streams, which are
        closed here.
        """
        mask = os.umask(0)
        os.umask(mask)
        job = {
            "arguments": arguments,
            "cwd": cwd,
            "umask": mask,
            "environment": dict(environment),
        }
        job["constants"] = paths.changed()
        data = json.dumps(job).encode()
        socket.send_fds(self._line, [len(data).to_bytes(8, "big")], list(streams))
        self._line.sendall(data)
        for fd in set(streams):
            os.close(fd)

    def wait(self, timeout: float) -> int:
        """The exit code of what was begun, or minus the signal that ended it."""
        self._line.settimeout(timeout)
        status = self._line.recv(4)
        assert status, "the server has ended"
        return os.waitstatus_to_exitcode(int.from_bytes(status, "big"))

    def run(
        self,
        arguments: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        timeout: float,
        input: bytes | None = None,
    ) -> tuple[int, bytes, bytes]:
        """(exit code, stdout, stderr) of `ckpt ARGUMENTS` between pipes. `input` must
        fit into one; None is /dev/null.
        """
        if input is None:
            stdin = os.open(os.devnull, os.O_RDONLY)
        else:
            stdin, feed = os.pipe()
            with open(feed, "wb", buffering=0) as pipe:
                pipe.write(input)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.start(arguments, cwd, environment, (stdin, out_end, err_end))
        seen: dict[int, bytes] = {out: b"", err: b""}
        with (
            open(out, "rb", buffering=0),
            open(err, "rb", buffering=0),
            selectors.DefaultSelector() as pipes,
        ):
            for fd in seen:
                pipes.register(fd, selectors.EVENT_READ)
            while pipes.get_map():
                ready = pipes.select(timeout)
                assert ready, f"ckpt {arguments} has not ended"
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 20)
                    seen[key.fd] += part
                    if not part:
                        pipes.unregister(key.fd)
        return self.wait(timeout), seen[out], seen[err]


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_EARLY)
    }
