"""The values of parameters, checked as click does, without pydantic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import typer


def plain_parameters(params: Iterable[Any]) -> list[Any]:
    """Return the parameters of a command, whose values come by way of
    `_parameter_value`, once each.

    From 0.29 on typer checks every value with pydantic, also the value of an option
    that is not given: this doubles the start. The values here are text, numbers, flags
    and lists of text.
    """
    unique = list(params)
    for param in unique:
        # A parameter is asked for several times, and wrapped once.
        if not isinstance(param.process_value, partial):
            param.process_value = partial(_parameter_value, param, param.process_value)
    return unique


def _parameter_value(
    param: Any, usual: Callable[..., Any], ctx: Any, value: Any
) -> Any:
    """The value of a parameter; what this does not know goes the usual way, with
    pydantic if typer has it.
    """
    # typer keeps the annotation here since it checks values with pydantic.
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    result: Any = value
    if value is None:
        is_known = kind is not None
        # As in click: a list that is not given is empty, and no None.
        result = () if param.multiple or param.nargs == -1 else None
    elif kind in (int, float):
        is_known, result = True, _checked_number(kind, param, ctx, value)
    elif kind in (str, bool):
        is_known = isinstance(value, kind)
    else:
        is_known = kind == list[str] and isinstance(value, (list, tuple))
    # The usual way raises for what is missing, in the words of click.
    if not is_known or (param.required and param.value_is_missing(result)):
        result = usual(ctx, value)
    elif param.callback is not None:
        result = param.callback(ctx, param, result)
    # NaN passes every comparison with a limit.
    if isinstance(result, float) and result != result:
        raise typer.BadParameter(f"{value!r} is not a valid float range.", ctx, param)
    return result


def _checked_number(
    kind: Callable[[Any], float], param: Any, ctx: Any, value: Any
) -> float:
    """A number within its limits, or the error in the words of click."""
    low, high = param.min, param.max
    try:
        number = kind(value)
    except ValueError:
        # `usage.py` says it in words of its own, the same for int and float.
        raise typer.BadParameter(
            f"{value!r} is not a valid float range.", ctx, param
        ) from None
    if (low is not None and number < low) or (high is not None and number > high):
        if high is None:
            limits = f"x>={low}"
        elif low is None:
            limits = f"x<={high}"
        else:
            limits = f"{low}<=x<={high}"
        raise typer.BadParameter(f"{number} is not in the range {limits}.", ctx, param)
    return number
