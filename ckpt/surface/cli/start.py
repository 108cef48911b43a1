"""One process, from its first line to its exit code: what signals do to it, and how it
ends.

This module is imported before all others, so that a signal never meets Python's own
handlers. It imports almost nothing. 129 hung up, 130 interrupted, 143 terminated; the
program returns the other codes.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable

# That of `typing`, which takes longer than all that is imported here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

TROUBLE, PIPE_CLOSED = 2, 141
_LINES = {
    signal.SIGHUP: "hung up",
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
}
_AGAIN = 0.02
"""Seconds until a signal is raised again that code outside of ours has swallowed."""


class Signal(BaseException):
    """SIGHUP, SIGINT or SIGTERM arrived while a command ran, which unwinds and removes
    what is half written.
    """


class NothingListedError(Exception):
    """A list without a name. It goes through a command to its end, which is green:
    there was nothing to do.
    """


class _Process:
    """The only state of the process."""

    arrived: int | None = None
    """The first signal."""
    unwinds = False
    """True when there may be something to clean up. Otherwise a signal ends the process
    where it is.
    """
    is_ours = False
    """True when the process ends with the program, so that nobody else needs what the
    program gives up.
    """


def run(program: Callable[[], int]) -> NoReturn:
    """Run the program with signals handled, and end the process with its exit code."""
    code = TROUBLE
    _Process.is_ours = True
    # one short job: what is imported and what is read are needed to the end
    gc.disable()
    try:
        _install_handlers()
        code = program()
        _Process.unwinds = False
    except BaseException as error:
        # No call before this line: a signal is only seen at calls, and from here on it
        # ends the process.
        _Process.unwinds = False
        if isinstance(error, KeyboardInterrupt):
            _Process.arrived = _Process.arrived or signal.SIGINT
        elif isinstance(error, SystemExit):
            if isinstance(error.code, int):
                code = error.code
            elif error.code is None:
                code = 0
            else:
                code = TROUBLE
        elif not isinstance(error, Signal):
            code = _report_bug(error)
    _leave_process(code)


def raise_on_signal() -> None:
    """From now on a signal raises `Signal`, because the program has begun what must be
    undone.
    """
    _Process.unwinds = True


def is_ours() -> bool:
    """Tell whether this process ends with the command that runs. A test, or a program
    that calls a command, goes on.
    """
    return _Process.is_ours


def _install_handlers() -> None:
    for number in _LINES:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: the job goes on
            signal.signal(number, _handle_signal)
    sys.unraisablehook = _repeat_signal


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """The handler."""
    # SIGALRM comes from `_repeat_signal`: the first signal stays recorded.
    if number != signal.SIGALRM:
        _Process.arrived = _Process.arrived or number
    if _Process.unwinds:
        raise Signal
    _end_by_signal()


def _repeat_signal(unraisable: sys.UnraisableHookArgs) -> None:
    """A signal that came inside of a finalizer or a callback, where Python drops
    exceptions, is raised again.
    """
    if issubclass(unraisable.exc_type, Signal):
        signal.signal(signal.SIGALRM, _handle_signal)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        sys.__unraisablehook__(unraisable)


def _report_bug(error: BaseException) -> int:
    from ckpt import __version__
    from ckpt.model.errors import is_stopped
    from ckpt.surface.cli import output

    try:
        output.talk_traceback(error)
        if is_stopped(error):
            stopped = (
                "ckpt: the fence stopped a reader that writes, connects or starts a "
                "program"
            )
            output.write_complaint(stopped, "CKPT_FENCE=0 switches it off")
        output.write_complaint(
            f"ckpt: this is a bug in ckpt {__version__}, please report it with the "
            "lines above"
        )
    except OSError:  # stderr takes nothing, which may be what the error says
        pass
    return TROUBLE


def _leave_process(code: int) -> NoReturn:
    """End the process at once: taking a tree of a million nodes apart first would take
    longer than reading it.
    """
    if _Process.arrived is not None:
        _end_by_signal()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = PIPE_CLOSED
        except OSError:
            code = TROUBLE
    os._exit(code)


def _end_by_signal() -> NoReturn:
    """One line on stderr. What stdout still holds is dropped, because its reader may
    have stopped reading.
    """
    number = _Process.arrived or signal.SIGINT
    try:
        os.write(2, f"ckpt: {_LINES[signal.Signals(number)]}\n".encode())
    except OSError:
        pass
    os._exit(128 + number)
