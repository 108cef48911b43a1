"""The program: its commands, and the one place where failures become a line and an exit
code.

0 done, 1 something was found, 2 trouble, 141 the reader of the pipe went away. Signals
are handled in `start`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from ckpt import __version__, hooks
from ckpt.model.errors import (
    TOO_MANY,
    TOO_MANY_TEXT,
    CkptError,
    UsageError,
    saying_options,
)
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path, show
from ckpt.surface.cli import output, start
from ckpt.surface.cli.start import PIPE_CLOSED, TROUBLE, NothingListedError
from ckpt.surface.cli.values import plain_parameters

_WRONG_USAGE: type[Any] = typer.BadParameter.__mro__[2]
"""The class of all errors in the command line, which belongs to click: typer has no
public name for it.
"""
_CANNOT_WRITE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
)

_EXIT_CODES = (
    ("0", "Done: nothing differs, nothing was found."),
    ("1", "diff: the files differ. lint, verify, --fail-on: something was found."),
    ("2", "Trouble: wrong usage, an unreadable file, a refusal."),
    ("128+N", "Signal N ended it: 130 interrupted, 141 the reader of the pipe left."),
)

_R = TypeVar("_R")


def _is_ruled(word: str) -> bool:
    """Tell whether a text begins with a line of dashes or an arrow, as notebooks draw
    them.
    """
    text = word.lstrip("-")
    dashes = len(word) - len(text)
    if not dashes or not any(map(str.isspace, text)):
        return False
    return dashes > 2 or not (text[0].isalnum() or text[0] == "_")


class Group(TyperGroup):
    """Typer's group with our exit codes: 1 never means an error."""

    def get_params(self, ctx: Any) -> Any:
        return plain_parameters(super().get_params(ctx))

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        if args[:1] == ["explain"]:
            # So click takes none for an option.
            args = [f" {word}" if _is_ruled(word) else word for word in args]

        def make() -> Any:
            _refuse_names_as_options(args)
            if "--install-completion" in args:
                _refuse_no_home()
            return super(Group, self).make_context(info_name, args, parent, **extra)

        return _answer_step(make)

    def invoke(self, ctx: Any) -> Any:
        def run() -> Any:
            code = super(Group, self).invoke(ctx)
            sys.stdout.flush()
            return code

        raise typer.Exit(_answer_step(run) or 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # `ckpt help diff` is what git and cargo take too.
        name = args[0] if args else ""
        # `ckpt help inspect` is `ckpt inspect --help`.
        if name == "help":
            args = [*args[1:2], "--help"] if len(args) > 1 else ["--help"]
            if len(args) == 1:
                sys.stdout.write(f"{ctx.get_help()}\n")
                raise typer.Exit(0)
            name = args[0]
        if name == "completion":
            _print_completion(args[1:])
            raise typer.Exit(0)
        # `ckpt model.pth` is a common mistake.
        if name not in self.commands and not name.startswith("-"):
            if os.path.exists(name):
                from ckpt.surface.cli.inputs import (
                    opened,
                )  # here: only this mistake pays for it

                opened(name, Limits()).close()  # or the reason why no command reads it
                raise CkptError(
                    f"{name}: not a command", hint=f"ckpt inspect {pasted_path(name)}"
                )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by what they are for, and what the exit codes mean."""
        for title, group in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))
        with formatter.section("Shell"):
            formatter.write_dl(
                [
                    (
                        "completion",
                        (
                            "Print the script that completes commands in bash, zsh or "
                            "fish."
                        ),
                    )
                ]
            )
        with formatter.section("Exit codes"):
            formatter.write_dl(_EXIT_CODES)


def _refuse_no_home() -> None:
    """Raise UsageError where a shell's files cannot be found or written: in a
    container, for a user without a folder.
    """
    home = os.path.expanduser("~")
    if (
        os.environ.get("HOME") == ""
        or not os.path.isdir(home)
        or not os.access(home, os.W_OK)
    ):
        raise UsageError(
            "no home folder to write to",
            hint="ckpt completion bash > FILE, and source FILE",
        )


def _print_completion(words: list[str]) -> None:
    """Print the completion script of a shell, or the help of `ckpt completion`. Raises
    UsageError.
    """
    from ckpt.surface.cli.shells import (
        completion_text,
    )  # here: one start of a shell pays for it

    sys.stdout.write(completion_text(words))


def _refuse_names_as_options(words: list[str]) -> None:
    """Raise UsageError for an option that is the name of a file too, and does not stand
    behind `--`.

    A shell that fills in `*`, and a hook that hands over all names, let a file choose
    the options.
    """
    # A shell that completes hands over half a line, which is not run.
    if "_CKPT_COMPLETE" in os.environ:
        return
    for place, word in enumerate(words):
        if word == "--" and place:
            return  # one before the command does not reach it
        if word.startswith("-") and word not in ("-", "--") and os.path.lexists(word):
            raise UsageError(
                "is an option, and the name of a file here",
                path=word,
                hint=f"./{show(word, 80)} or -- before names",
            )


def _answer_step(step: Callable[[], _R]) -> _R:
    """Return the result of a step. A failure becomes a line on stderr and a code."""
    with saying_options():
        return _result_of(step)


def _result_of(step: Callable[[], _R]) -> _R:
    """As `_answer_step`, in the words that are said already."""
    try:
        return step()
    except CkptError as error:
        output.write_error(error)
        code = TROUBLE
    except NothingListedError as nothing:
        output.write_conclusion(f"ckpt: {nothing}")
        code = 0
    except _WRONG_USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{error.ctx.get_help()}\n")
            raise typer.Exit(0) from None
        from ckpt.surface.cli.usage import (
            usage_error,
        )  # here: only a wrong command line pays for it

        output.write_error(usage_error(error, [*COMMANDS, "completion"]))
        code = TROUBLE
    except BrokenPipeError:
        output.discard_stdout()
        code = PIPE_CLOSED
    except OSError as error:
        if error.errno in TOO_MANY:
            output.write_complaint(f"ckpt: {TOO_MANY_TEXT}")
        elif error.errno in _CANNOT_WRITE:
            output.discard_stdout()
            if error.errno == errno.EBADF:
                why = "stdout is closed"
            else:
                why = (error.strerror or "").lower()
            output.write_complaint(f"ckpt: the output cannot be written: {why}")
        else:
            raise
        code = TROUBLE
    except ImportError as error:  # a library of numpy
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        output.write_complaint(f"ckpt: {TOO_MANY_TEXT}")
        code = TROUBLE
    except MemoryError:
        output.write_complaint("ckpt: out of memory")
        code = TROUBLE
    raise typer.Exit(code)


_ALL = {
    "Look": {
        "inspect": "Show what a checkpoint holds, and how to load it.",
        "ls": "List checkpoints, one row each.",
        "get": "Print one value of a checkpoint, as text or JSON.",
        "diff": "Compare two checkpoints.",
        "stats": "Measure tensors, and find dead channels.",
        "report": "Draw checkpoints as one page of HTML.",
        "explain": "Explain a finding, or an error of PyTorch.",
        "recipe": "Find how one checkpoint is made of another, and prove it.",
    },
    "Check": {
        "lint": "Check files, one line per finding.",
        "verify": "Check whether files are intact.",
        "sum": "Print the SHA-256 of each tensor, equal across formats.",
    },
    "Change": {
        "rehome": "Move tensors to other devices, by default to the CPU.",
        "strip": "Strip the prefixes of wrappers from names.",
        "rename": "Rename tensors by regular expressions.",
        "set": "Set or delete values inside, such as a learning rate.",
        "slim": "Keep the model's weights, drop the rest.",
        "convert": "Write another format, plain classes, another dtype.",
        "salvage": "Write what is whole of a damaged checkpoint.",
        "warmstart": "Load pretrained weights into a model as far as they fit.",
        "average": "Average the models of checkpoints.",
        "merge": "Merge adapters (LoRA) into the weights of a base.",
        "prune": "Say which checkpoints of a run may go, and delete them.",
    },
}
_GROUPS = {
    title: {name: line for name, line in group.items() if hooks.has_command(name)}
    for title, group in _ALL.items()
}
COMMANDS = {name: line for group in _GROUPS.values() for name, line in group.items()}
"""The name of each command -> its line in the list of commands."""


def module_of(command: str) -> str:
    """Return the name of the module of a command."""
    return hooks.COMMANDS.get(command) or f"ckpt.commands.{command}.command"


def program(names: Collection[str] = COMMANDS) -> typer.Typer:
    """The program with these commands. Each is a module; only those named are
    imported.
    """
    app = typer.Typer(
        cls=Group,
        name="ckpt",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )
    app.callback()(_main_callback)
    if not names:
        return app
    # here: the help of the program shows no options
    from ckpt.surface.cli.signature import PlainCommand, typer_function

    for name in names:
        module = import_module(module_of(name))
        command = typer_function(name, module.command)
        if "_CKPT_COMPLETE" in os.environ:  # a shell asks what may come next
            command = import_module("ckpt.surface.cli.completion").completing(
                name, command
            )
        app.command(name, cls=PlainCommand, short_help=COMMANDS[name])(command)
    return app


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        sys.stdout.write(f"ckpt {__version__}\n")
        sys.stdout.flush()
        raise typer.Exit


def _main_callback(
    version: bool = typer.Option(
        False,
        "-V",
        "--version",
        help="Show the version and exit.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    """Inspect, compare and migrate PyTorch checkpoints, without running anything they
    name.
    """


def _needed_commands(words: list[str]) -> Collection[str]:
    """The commands that a command line needs. The help of the program needs none: it is
    made of the table.
    """
    if words[:1] == ["help"]:
        words = words[1:]
    if words[:1] and words[0] in COMMANDS:
        return words[:1]
    if words[:1] == ["completion"]:
        return ()
    is_help = (
        not words or words[0] in ("-h", "--help")
    ) and "_CKPT_COMPLETE" not in os.environ
    return () if is_help else COMMANDS


def _prepare_reading() -> None:
    """Set up what commands share that open a path. Raises UsageError for a URL with a
    password that cannot be taken out.
    """
    # Without threads of BLAS, numpy is imported 30 ms faster.
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    from ckpt.bytes.far import Told  # here: the help of the program opens nothing
    from ckpt.bytes.location import shown_path

    Told.tell = _tell_waiting
    # From here on no text holds a password.
    sys.argv[1:] = map(shown_path, sys.argv[1:])


def _tell_waiting(line: str) -> None:
    """Say what is waited for, from any thread."""
    output.write_talk(f"ckpt: {line}")


def run() -> int:
    """Run the command line `sys.argv`; the exit code."""
    output.prepare_streams()
    names = _needed_commands(sys.argv[1:])
    # `ckpt --help` opens nothing; any other word may hold a password.
    if names or len(sys.argv) > 2:
        try:
            _prepare_reading()
        except CkptError as error:
            output.write_error(error)
            return TROUBLE
    command = program(names)
    start.raise_on_signal()
    code = command(standalone_mode=False, prog_name="ckpt")
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The whole process, for code that has imported this module already."""
    start.run(run)
