"""A process in which torch loads pickles that ckpt calls harmless: it says what they
did that no harmless one does.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch

from ckpt.pickle.judge.known import KNOWN

T = TypeVar("T")
SECONDS = 1.0
"""How long a pickle may take to load."""
_WRITING = (
    "os.",
    "shutil.",
    "subprocess.",
    "socket.",
    "pty.",
    "ctypes.",
    "webbrowser.",
    "urllib.",
    "signal.",
)
_READING = (
    "os.listdir",
    "os.scandir",
    "os.walk",
    "os.fwalk",
    "os.getxattr",
    "os.listxattr",
)


class Forbidden(BaseException):
    """Raised where a pickle does what it must not."""


def load_stream(stream: bytes) -> None:
    torch.load(io.BytesIO(stream), map_location="cpu", weights_only=False)


def deeds(
    streams: Sequence[T], load: Callable[[T], object] = load_stream
) -> list[str | None]:
    """What each stream did when `torch.load(weights_only=False)` read it; None for
    nothing, also where it failed.

    Another `load` may take other things, such as paths.
    """
    found: list[str | None] = []
    while len(found) < len(streams):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _child(streams[len(found) :], writer, load)
        os.close(writer)
        with open(reader) as lines:
            found += [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        if len(found) < len(streams):
            found.append(f"the process ended with {status}")
    return found


def _child(streams: Sequence[T], writer: int, load: Callable[[T], object]) -> NoReturn:
    warnings.simplefilter("ignore")
    happened: list[str] = []
    is_watched = False

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if not is_watched:
            return
        deed = _deed(event, args)
        if deed is not None:
            happened.append(deed)
            raise Forbidden(deed)

    def late(*_: object) -> None:
        happened.append(f"ran longer than {SECONDS} s")
        raise Forbidden

    def ring(*_: object, **__: object) -> NoReturn:
        happened.append("called a function of the file's choice")
        raise Forbidden

    torch.nn.functional.softsign = (
        ring  # a function that a harmless file may hold, and nothing may call
    )
    sys.addaudithook(watch)
    signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    for stream in streams:
        happened.clear()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        is_watched = True
        try:
            with contextlib.suppress(Exception):
                load(stream)
        except BaseException as error:
            happened.append(f"ended with {type(error).__name__}")
        is_watched = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(
            writer, (json.dumps(happened[0] if happened else None) + "\n").encode()
        )
    os._exit(0)


def _deed(event: str, args: tuple[Any, ...]) -> str | None:
    """What an audit event is, if no harmless pickle causes it."""
    if event == "open":
        mode, flags = args[1], args[2]
        writes = (
            any(letter in mode for letter in "wax+")
            if isinstance(mode, str)
            else flags & (os.O_WRONLY | os.O_RDWR)
        )
        return f"opened {args[0]!r} to write" if writes else None
    if event == "import":
        root = str(args[0]).partition(".")[0]
        return (
            None
            if root in sys.modules or root in sys.stdlib_module_names or root in _LISTED
            else f"imported {args[0]}"
        )
    if event.startswith(_WRITING) and event not in _READING:
        return f"{event} {args!r:.80}"
    return None


_LISTED = {name.partition(".")[0] for name in KNOWN} | {"tzdata"}
"""Packages of listed names, which need not be there."""
for _module in sorted(
    {name.rpartition(".")[0] for name in KNOWN if name.startswith("torch.")}
):
    with contextlib.suppress(ImportError), contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module(
            _module
        )  # what importing torch itself does is no deed of a pickle
