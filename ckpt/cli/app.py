"""The program: its commands, and the one place where failures become a line and an exit code.

0 done, 1 something was found, 2 trouble, 130 interrupted, 141 the reader of the pipe went away, 143 terminated.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ckpt import __version__
from ckpt.cli import output
from ckpt.errors import CkptError

TROUBLE, INTERRUPTED, PIPE_CLOSED, TERMINATED = 2, 130, 141, 143

_PLANNED = frozenset(
    ("rehome", "strip", "rename", "slim", "convert", "diff", "warmstart", "stats", "lint", "verify")
)


class Terminated(BaseException):
    """SIGTERM arrived."""


class Group(TyperGroup):
    """Typer's group with our exit codes: 1 never means an error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except CkptError as error:
            if os.environ.get("CKPT_DEBUG"):
                raise
            output.fail(error)
            code = TROUBLE
        except BrokenPipeError:
            # Nobody reads: what is still buffered must not raise again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = PIPE_CLOSED
        except KeyboardInterrupt:
            output.talk("ckpt: interrupted")
            code = INTERRUPTED
        except Terminated:
            output.talk("ckpt: terminated")
            code = TERMINATED
        except MemoryError:
            output.talk("ckpt: out of memory")
            code = TROUBLE
        raise typer.Exit(code or 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in self.commands and not name.startswith("-"):
            if name in _PLANNED:
                raise CkptError(f"{name}: not in this version", hint=f"it has {', '.join(COMMANDS)}")
            if os.path.exists(name):
                raise CkptError(f"{name}: not a command", hint=f"ckpt inspect {name}")
        return super().resolve_command(ctx, args)


COMMANDS = ("inspect", "get")


def program(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """The program with these commands. Each is a module of this package; only those named are imported."""
    app = typer.Typer(
        cls=Group,
        name="ckpt",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_main)
    for name in names:
        app.command(name)(import_module(f"ckpt.cli.{name}").command)
    return app


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"ckpt {__version__}\n")
        raise typer.Exit


def _main(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""


def main() -> None:
    """The console script."""
    import gc

    gc.disable()  # one short job: its trees are needed to the end
    output.prepare()
    signal.signal(signal.SIGTERM, _terminate)
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    code: Any = 0
    try:
        program((asked,) if asked in COMMANDS else COMMANDS)(standalone_mode=True, prog_name="ckpt")
    except SystemExit as leaving:
        code = leaving.code
    except CkptError:
        raise  # CKPT_DEBUG
    except Exception:
        import traceback

        traceback.print_exc()
        output.talk(f"ckpt: this is a bug in ckpt {__version__}, please report it with the lines above")
        code = TROUBLE
    _leave(code if isinstance(code, int) else 0 if code is None else TROUBLE)


def _leave(code: int) -> None:
    """End the process at once: taking a tree of a million nodes apart first would take longer than reading it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = PIPE_CLOSED
    os._exit(code)


def _terminate(number: int, frame: object) -> None:
    raise Terminated
