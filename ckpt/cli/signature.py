"""What the options of commands have in common: groups in the help, exclusions as a table, signatures with more options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, NamedTuple

import typer

from ckpt.cli import output
from ckpt.errors import UsageError

OUTPUT, FILTER, GATE, LIMITS = "Output", "Filter", "Gate", "Limits"
"""Groups of options in the help, in this order. Options without a group stand before them."""

Command = Callable[..., int]
Color = Annotated[
    str | None,
    typer.Option("--color", metavar="WHEN", help="Use colour: auto, always or never.", show_default=False),
]


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

        text = " ".join(map(str, exclusions))
        return dressed(
            run, command, list(parameters.values()), doc=f"{cleandoc(command.__doc__ or '')}\n\n{text}"
        )

    return decorate


def colouring(command: Command) -> Command:
    """Gives a command the option `--color`."""

    def run(*, color: str | None = None, **values: object) -> int:
        output.set_color(color)
        return command(**values)

    option = Parameter("color", Parameter.KEYWORD_ONLY, default=None, annotation=Color)
    return dressed(run, command, [*parameters_of(command).values(), option])


def dressed(
    run: Command, command: Command, parameters: Sequence[Parameter], doc: str | None = None
) -> Command:
    """A function with the signature that typer reads and the help of a command."""
    keyword = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__doc__ = command.__doc__ if doc is None else doc
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
