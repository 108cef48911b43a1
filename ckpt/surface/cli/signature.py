"""From the rows of `options` to the commands that typer runs: their parameters, their
help, and what they refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, cleandoc
from typing import Any

import typer
from typer.core import TyperCommand

from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.surface.cli import output
from ckpt.surface.cli.options import (
    ARGUMENTS,
    FILTER,
    GATE,
    LIMITS,
    OUTPUT,
    Argument,
    Option,
    exclusions_of,
    options_of,
)
from ckpt.surface.cli.values import plain_parameters

EXCLUSIONS = "Not together"
"""The title of the options that exclude each other."""
_TITLES = ("Arguments", "Options", OUTPUT, FILTER, GATE, LIMITS)
_STREAMS = ("--output", "--html")
"""Options whose value `-` is stdout."""
_TYPES: dict[str, Any] = {
    "flag": bool,
    "text": str,
    "texts": list[str],
    "integer": int,
    "number": float,
}

Command = Callable[..., int]


# --- a command ------------------------------------------------------------------------


def typer_function(name: str, command: Command) -> Command:
    """The function of a command as typer takes it: its parameters are the rows of the
    tables.

    `command` gets its arguments, and its options by their names in Python. What all
    commands share is done here: colour, silence, limits, and the options that exclude
    each other.
    """
    arguments = ARGUMENTS[name]
    rows = options_of(name)

    def run(**values: Any) -> int:
        # Options that name a file come as lists, to see that one is given twice.
        values |= {
            row.parameter: _only_value(row, values) for row in rows if row.is_once
        }
        # Before anything is opened.
        _refuse_exclusions(name, rows, values)
        output.set_color(values["color"])
        with output.silenced_output(
            all=values["quiet"], summary=values.get("no_summary", False)
        ):
            limits = Limits().raised(values["limit"] or [])
            options = {
                row.keyword: _option_value(row, values)
                for row in rows
                if row.name not in _SHARED
            }
            return command(
                *(_argument_value(row, values) for row in arguments),
                **options,
                limits=limits,
            )

    parameters = [
        *map(_argument_parameter, arguments),
        *(_option_parameter(row) for row in rows),
    ]
    # typer reads a function by its signature, its annotations and its docstring.
    run.__name__ = command.__name__
    run.__module__ = command.__module__
    run.__doc__ = _examples_first(cleandoc(command.__doc__ or ""))
    run.__annotations__ = {row.name: row.annotation for row in parameters} | {
        "return": int
    }
    run.__dict__["__signature__"] = Signature(parameters, return_annotation=int)
    return run


_SHARED = ("--color", "--quiet", "--no-summary", "--help-all", "--limit")
"""Options that no command gets: they are seen to here."""


def _argument_value(row: Argument, values: dict[str, Any]) -> Any:
    return list(values[row.name] or ()) if row.is_list else values[row.name]


def _option_value(row: Option, values: dict[str, Any]) -> Any:
    value = values[row.parameter]
    # `--no-align` is handed on as `align`.
    return not value if row.is_negative else value


def _only_value(row: Option, values: dict[str, Any]) -> Any:
    """The value of an option that may be given once. Raises UsageError where it is
    given again.
    """
    given = values[row.parameter] or [None]
    if len(given) > 1:
        raise UsageError(f"{row.name}: given {len(given)} times, and takes one value")
    return given[0]


def _argument_parameter(row: Argument) -> Parameter:
    kind: Any = list[str] if row.is_list else str
    # A list may be empty here: its command says itself what is missing.
    argument = typer.Argument(
        None if row.is_list else ...,
        metavar=row.metavar,
        help=row.help,
        show_default=False,
    )
    return Parameter(
        row.name, Parameter.KEYWORD_ONLY, default=argument, annotation=kind
    )


def _option_parameter(row: Option) -> Parameter:
    settings: dict[str, Any] = {"help": row.help, "rich_help_panel": row.group or None}
    if row.metavar is not None:
        settings["metavar"] = row.metavar
    if row.low is not None or row.high is not None:
        settings |= {"min": row.low, "max": row.high}
    if row.name == "--help-all":
        # Eager: it must not ask for the PATH that the help is about.
        settings |= {"callback": _show_all_help, "is_eager": True}
    # The first long name is the one that the help shows.
    names = [*([row.short] if row.short else []), row.name, *row.other_names]
    # click keeps the last of two values; a list keeps both.
    kind = "texts" if row.is_once else row.kind
    # `...` is typer's word for a required value.
    default: Any = ... if row.required else False if row.kind == "flag" else row.default
    option = typer.Option(default, *names, **settings)
    return Parameter(
        row.parameter, Parameter.KEYWORD_ONLY, default=option, annotation=_TYPES[kind]
    )


def _refuse_exclusions(name: str, rows: list[Option], values: dict[str, Any]) -> None:
    """Raise UsageError for options that exclude each other."""
    # A value that equals the default counts as not given.
    given = frozenset(row.name for row in rows if _is_given(row, values[row.parameter]))
    for exclusion in exclusions_of(name):
        pair = exclusion.broken(given)
        if pair is not None:
            raise UsageError(f"{pair[0]} and {pair[1]} exclude each other")
    for row in rows:
        if values["quiet"] and row.name in _STREAMS and values[row.parameter] == "-":
            raise UsageError(f"{row.name} - and --quiet exclude each other")


def _is_given(row: Option, value: Any) -> bool:
    # An option that has its default excludes nothing.
    return value is not None and value is not False and value != row.default


def _examples_first(text: str) -> str:
    """A help whose examples follow its first sentence."""
    first, *rest = text.split("\n\n")
    # `\b` before a paragraph keeps click from filling its lines.
    rest.sort(key=lambda part: not part.startswith("\b"))
    return "\n\n".join([first, *rest])


# --- its help -------------------------------------------------------------------------

_ALL = "ckpt.all"
"""The mark of a context whose help shows all options."""


def _show_all_help(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        context.meta[_ALL] = True
        sys.stdout.write(f"{context.get_help()}\n")
        sys.stdout.flush()
        raise typer.Exit


class PlainCommand(TyperCommand):
    """A command whose values need no pydantic, and whose help is the same with every
    typer.

    Its help groups the options, first the command's own. Rare options, and those that
    exclude each other, are shown with `--help-all` only.
    """

    def get_params(self, ctx: Any) -> Any:
        params = plain_parameters(super().get_params(ctx))
        for param in params:
            if param.param_type_name == "argument":
                param.get_usage_pieces = partial(_usage_metavars, param)
                param.get_help_record = partial(_help_record, self, param)
            # An option with a second long name, as --max-shard-size of --shard-size.
            elif sum(
                name.startswith("--") for name in param.opts
            ) > 1 and not isinstance(param.get_help_record, partial):
                param.get_help_record = partial(
                    _record_of_one_name, param, param.get_help_record
                )
        return params

    def format_options(self, ctx: Any, formatter: Any) -> None:
        name = self.name or ""
        # An option may be rare in one command and usual in another.
        rare = {row.name for row in options_of(name) if name in row.rare_in}
        # In the order of the titles, whatever the order of the parameters.
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _TITLES}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            # A hidden parameter has no record.
            if record is not None and (
                ctx.meta.get(_ALL) or rare.isdisjoint(param.opts)
            ):
                is_argument = param.param_type_name == "argument"
                if is_argument:
                    title = "Arguments"
                else:
                    title = getattr(param, "rich_help_panel", None) or "Options"
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
        exclusions = exclusions_of(self.name or "")
        if exclusions:
            with formatter.section(EXCLUSIONS):
                for exclusion in exclusions:
                    formatter.write_text(str(exclusion))


def _usage_metavars(param: Any, ctx: Any) -> list[str]:
    """An argument in the line of usage. The releases of typer have four forms
    for it.
    """
    return [param.metavar if param.required else f"[{param.metavar}]"]


def _help_record(command: Any, param: Any, ctx: Any) -> tuple[str, str]:
    """An argument in the list of arguments: its metavar, and its help, which typer 0.24
    loses to click 8.5.
    """
    row = next(row for row in ARGUMENTS[command.name] if row.name == param.name)
    return row.metavar, row.help + ("  [required]" if param.required else "")


def _record_of_one_name(param: Any, usual: Callable[..., Any], ctx: Any) -> Any:
    """An option in the list of options by its first long name: the others would widen
    the column of all.
    """
    record = usual(ctx)
    if record is None:
        return None
    names, text = record
    others = [name for name in param.opts if name.startswith("--")][1:]
    for name in others:
        names = names.replace(f", {name}", "")
    return names, f"{text.rstrip('.')}; also {', '.join(others)}."
