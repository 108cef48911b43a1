"""The command inside of this process, for tests that run it by the hundred."""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from needs import skip_command, skip_refused
from process import Done, environment

from ckpt.surface.cli import app, output


@contextlib.contextmanager
def _streams() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    texts = [
        io.TextIOWrapper(stream, "utf-8", errors="backslashreplace", newline="\n")
        for stream in (out, err)
    ]
    with contextlib.redirect_stdout(texts[0]), contextlib.redirect_stderr(texts[1]):
        yield out, err
        for text in texts:
            text.flush()
            text.detach()


@contextlib.contextmanager
def folder_of(path: Path) -> Iterator[None]:
    """`contextlib.chdir`, which Python 3.10 does not have."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """As in the command: what the tests left may not end where the recursion of a file
    is deepest.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def inside(*arguments: str | os.PathLike[str], cwd: Path, **variables: str) -> Done:
    """What `ckpt ARGUMENTS` does, as far as one process can tell: without signals, and
    without ending it.
    """
    skip_command(arguments)
    command = str(arguments[0]) if arguments else ""
    names = (command,) if command in app.COMMANDS else app.COMMANDS
    program = app.program(names)
    with (
        folder_of(cwd),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        mock.patch.object(output, "_texts", 0),
        _no_garbage(),
        _streams() as (out, err),
    ):
        code = program(
            [*map(os.fspath, arguments)], standalone_mode=False, prog_name="ckpt"
        )
    done = Done(int(code or 0), out.getvalue(), err.getvalue())
    skip_refused(done.err.decode("utf-8", "replace"))
    return done
