"""The help that typer makes of a command's signature: groups, exclusions, shared options, any typer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ckpt.cli import output
from ckpt.errors import UsageError
from ckpt.rows import NamedTuple

OUTPUT, FILTER, GATE, LIMITS = "Output", "Filter", "Gate", "Limits"
"""Groups of options in the help, in this order. Options without a group stand before them."""
EXCLUSIONS = "Not together"
"""The title of the options that exclude each other."""
_TITLES = ("Arguments", "Options", OUTPUT, FILTER, GATE, LIMITS)

_GATES = {"--select", "--ignore", "--level"}
RARE: Mapping[str, frozenset[str]] = {
    command: frozenset(options)
    for command, options in {
        "": {
            *[
                "--help-all",
                "--color",
                "--no-summary",
                "--no-header",
                "--table",
                "--others",
                "--skip-unreadable",
                "--files-from",
            ],
            *["--jobs", "--limit", "--cluster", "--no-align", "--histogram", "--strict"],
            *["--copy", "--link", "--parents", "--partial", "--verify", "--keep-damaged", "--keep-code"],
        },
        "inspect": {"--textconv", "--model", "--arg", *_GATES},
        "ls": _GATES,
        "diff": {"--sub", "--depth", "--force", "--model", "--arg", *_GATES},
        "stats": {"--threshold", *_GATES},
        "lint": {"--arg", "--skip-others", "--no-config"},
        "rehome": {"--objects"},
        "slim": {"--like", "--prefix"},
        "convert": {
            *["--prefix", "--to", "--with-config"],
            *[
                "--encoding",
                "--weights",
                "--ranks",
                "--optimizer-keys",
                "--complete-optimizer",
                "--model",
                "--arg",
                "--like",
            ],
        },
        "warmstart": {
            *[
                "--by-shape",
                "--fuse",
                "--split",
                "--count-sliced",
                "--ignore-layout",
                "--keep-optimizer",
                "--into-section",
            ],
            "--init",
        },
    }.items()
}
"""Command, or `` for all -> the options that a first look at its help does not need. `--help-all` shows them."""

Command = Callable[..., int]
_FORMS = frozenset(
    (
        *[
            "--json",
            "--tsv",
            "--table",
            "--name-only",
            "--output-format",
            "--statistics",
            "--others",
            "--histogram",
            "--bars",
        ],
        *["--index", "--textconv", "--print-code"],
    )
)
"""Options that ask for something to be printed."""
_STREAMS = ("--output", "--html")
"""Options whose value `-` is stdout."""
_CONCLUDING = ("inspect", "ls", "stats", "report", "lint", "verify", "sum")
"""Commands that end with a line on stderr, which sums up their answer."""


_ALL = "ckpt.all"
"""The mark of a context whose help shows all options."""


def _help_all(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        context.meta[_ALL] = True
        sys.stdout.write(f"{context.get_help()}\n")
        sys.stdout.flush()
        raise typer.Exit


Color = Annotated[
    str | None,
    typer.Option("--color", metavar="WHEN", help="Use colour: auto, always or never.", show_default=False),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "-q", "--quiet", help="Print nothing but errors; the exit code answers.", rich_help_panel=OUTPUT
    ),
]
NoSummary = Annotated[
    bool, typer.Option("--no-summary", help="Leave out the closing line.", rich_help_panel=OUTPUT)
]
HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show all options and exit.", callback=_help_all, is_eager=True)
]


class PlainCommand(TyperCommand):
    """A command whose values need no pydantic, and whose help is the same with every typer.

    Its help groups the options, first the command's own. Rare options, and those that exclude each other, are shown
    with `--help-all` only.
    """

    def get_params(self, ctx: Any) -> Any:
        params = plain(super().get_params(ctx))
        for param in params:
            if param.param_type_name == "argument":
                param.get_usage_pieces = partial(_usage, param)
                param.get_help_record = partial(_record, self, param)
        return params

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _TITLES}
        rare = frozenset() if ctx.meta.get(_ALL) else RARE[""] | RARE.get(self.name or "", frozenset())
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and rare.isdisjoint(param.opts):
                is_argument = param.param_type_name == "argument"
                title = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
                groups[title].append(record)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not ctx.meta.get(_ALL):
            formatter.write_paragraph()
            formatter.write_text(f"More options: {ctx.command_path} --help-all")
            return
        exclusions = exclusions_of(self.callback)
        if exclusions:
            with formatter.section(EXCLUSIONS):
                for exclusion in exclusions:
                    formatter.write_text(str(exclusion))


def plain(params: Iterable[Any]) -> list[Any]:
    """Return the parameters of a command, whose values come by way of `_value`, once each.

    From 0.29 on typer checks every value with pydantic, also the value of an option that is not given: this
    doubles the start. The values here are text, numbers, flags and lists of text.
    """
    unique = list(params)
    for param in unique:
        if not isinstance(param.process_value, partial):
            param.process_value = partial(_value, param, param.process_value)
    return unique


def _usage(param: Any, ctx: Any) -> list[str]:
    """An argument in the line of usage. The releases of typer have four forms for it."""
    return [param.metavar if param.required else f"[{param.metavar}]"]


def _record(command: Any, param: Any, ctx: Any) -> tuple[str, str]:
    """An argument in the list of arguments: its metavar, and its help, which typer 0.24 loses to click 8.5."""
    annotation = parameters_of(command.callback)[param.name].annotation
    return param.metavar, annotation.__metadata__[0].help + ("  [required]" if param.required else "")


def _value(param: Any, usual: Callable[..., Any], ctx: Any, value: Any) -> Any:
    """The value of a parameter; what this does not know goes the usual way, with pydantic if typer has it."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    result: Any = value
    if value is None:
        is_known, result = kind is not None, () if param.multiple or param.nargs == -1 else None
    elif kind in (int, float):
        is_known, result = True, _number(kind, param, ctx, value)
    elif kind in (str, bool):
        is_known = isinstance(value, kind)
    else:
        is_known = kind == list[str] and isinstance(value, (list, tuple))
    if not is_known or (param.required and param.value_is_missing(result)):
        result = usual(ctx, value)
    elif param.callback is not None:
        result = param.callback(ctx, param, result)
    if isinstance(result, float) and result != result:
        raise typer.BadParameter(f"{value!r} is not a valid float range.", ctx, param)
    return result


def _number(kind: Callable[[Any], float], param: Any, ctx: Any, value: Any) -> float:
    """A number within its limits, or the error in the words of click."""
    low, high = param.min, param.max
    try:
        number = kind(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a valid float range.", ctx, param) from None
    if (low is not None and number < low) or (high is not None and number > high):
        limits = f"x>={low}" if high is None else f"x<={high}" if low is None else f"{low}<=x<={high}"
        raise typer.BadParameter(f"{number} is not in the range {limits}.", ctx, param)
    return number


class Exclusion(NamedTuple):
    """Options that exclude each other; with `others`, any of the first excludes any of the others."""

    options: tuple[str, ...]
    others: tuple[str, ...] = ()

    def broken(self, given: frozenset[str]) -> tuple[str, str] | None:
        """Two given options that exclude each other."""
        first = [option for option in self.options if option in given]
        if not self.others:
            return (first[0], first[1]) if len(first) > 1 else None
        second = [option for option in self.others if option in given]
        return (first[0], second[0]) if first and second else None

    def __str__(self) -> str:
        first, rest = self.options, self.others
        if not rest:
            return f"{_listed(first)} exclude each other."
        verb = "excludes" if len(first) == 1 else "exclude"
        return f"{_listed(first)} {verb} {_listed(rest)}."


def _listed(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} and {options[-1]}"


def excluding(*exclusions: Exclusion) -> Callable[[Command], Command]:
    """Makes a command refuse options that exclude each other; its help lists them."""

    def decorate(command: Command) -> Command:
        parameters = parameters_of(command)

        def run(**values: object) -> int:
            given = frozenset(
                option_of(parameters[name])
                for name, value in values.items()
                if value is not None and value is not False and value != parameters[name].default
            )
            for exclusion in exclusions:
                pair = exclusion.broken(given)
                if pair is not None:
                    raise UsageError(f"{pair[0]} and {pair[1]} exclude each other")
            return command(**values)

        made = dressed(run, command, list(parameters.values()))
        made.__dict__["exclusions"] = (*exclusions_of(command), *exclusions)
        return made

    return decorate


def exclusions_of(command: Command | None) -> tuple[Exclusion, ...]:
    """The options of a command that exclude each other."""
    return getattr(command, "exclusions", ())


def shared(name: str, command: Command) -> Command:
    """Gives a command the options that all commands have, and moves the examples up in its help.

    With `--quiet`, what asks for something to be printed is refused.
    """
    own = parameters_of(command)

    def run(
        *,
        color: str | None = None,
        quiet: bool = False,
        no_summary: bool = False,
        help_all: bool = False,
        **values: object,
    ) -> int:
        output.set_color(color)
        for key, value in values.items():
            if quiet and value == "-" and option_of(own[key]) in _STREAMS:
                raise UsageError(f"{option_of(own[key])} - and --quiet exclude each other")
        with output.silenced(all=quiet, summary=no_summary):
            return command(**values)

    options = {
        "color": (Color, None),
        "quiet": (Quiet, False),
        **({"no_summary": (NoSummary, False)} if name in _CONCLUDING else {}),
        "help_all": (HelpAll, False),
    }
    added = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for key, (annotation, default) in options.items()
    ]
    made = dressed(run, command, [*own.values(), *added])
    made.__doc__ = _examples_first(cleandoc(command.__doc__ or ""))
    forms = tuple(option for option in map(option_of, own.values()) if option in _FORMS)
    return excluding(Exclusion(forms, ("--quiet",)))(made) if forms else made


def _examples_first(text: str) -> str:
    """A help whose examples follow its first sentence."""
    first, *rest = text.split("\n\n")
    rest.sort(key=lambda part: not part.startswith("\b"))
    return "\n\n".join([first, *rest])


def dressed(run: Command, command: Command, parameters: Sequence[Parameter]) -> Command:
    """A function with the signature that typer reads, and the help and the exclusions of a command."""
    keyword = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__doc__ = command.__doc__
    run.__dict__["exclusions"] = exclusions_of(command)
    run.__name__ = command.__name__
    run.__module__ = command.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword} | {"return": int}
    run.__dict__["__signature__"] = Signature(keyword, return_annotation=int)
    return run


def parameters_of(command: Command) -> Mapping[str, Parameter]:
    """The parameters of a command, with their annotations as objects."""
    return signature(command, eval_str=True).parameters


def option_of(parameter: Parameter) -> str:
    """The option that a parameter is on the command line."""
    for extra in getattr(parameter.annotation, "__metadata__", ()):
        names = [name for name in (extra.default, *(extra.param_decls or ())) if isinstance(name, str)]
        dashed = [name for name in names if name.startswith("--")]
        if dashed:
            return dashed[0]
    return parameter.name
