"""`--model FILE.py:FACTORY`: building the user's own model on the meta device, which allocates nothing.

This runs code that the user names on the command line. Code that a checkpoint names is never run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from ckpt.errors import UsageError
from ckpt.evidence.record import ModelRecord
from ckpt.live import require_torch
from ckpt.live.model import describe
from ckpt.text import show


def record(spec: str, arguments: Sequence[str] = ()) -> ModelRecord:
    """The record of the model that a callable makes on the meta device. Raises UsageError."""
    return describe(build(spec, arguments, device="meta"))


def build(spec: str, arguments: Sequence[str] = (), *, device: str, option: str = "--model") -> Any:
    """The nn.Module that `FILE.py:FACTORY` makes, with `name=value` arguments. `option` is the one that gave it.

    FACTORY is one name, and FILE a Python file: no name of a checkpoint is both. Output of the user's code goes to
    stderr. Its errors become a UsageError.
    """
    torch = require_torch()
    file, _, name = spec.rpartition(":")
    given = f"{option} {show(spec, 80)}"
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{given}: expected FILE.py:FACTORY")
    if not os.path.isfile(file):
        raise UsageError(f"{given}: {show(file, 80)} is no file")
    with redirect_stdout(sys.stderr):
        keywords = _keywords(arguments)
        factory: Any = getattr(_module(given, file), name, None)
        if factory is None:
            raise UsageError(f"{given}: {show(file, 60)} has no {show(name, 60)}")
        if isinstance(factory, torch.nn.Module):
            return factory
        if not callable(factory):
            raise UsageError(f"{given}: '{type(factory).__name__}' object is not callable")
        model = _made(torch, given, factory, keywords, device)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{given}: returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def _made(torch: Any, given: str, factory: Any, known: dict[str, Any], device: str) -> Any:
    try:
        with torch.device(device):
            return factory(**known)
    except BaseException as error:
        _let_through(error)
        if device == "meta" and "meta" in str(
            error
        ):  # the model reads values: `torch.linspace(...).tolist()`
            return _made(torch, given, factory, known, "cpu")
        raise _failed(given, error) from error


def _keywords(arguments: Sequence[str]) -> dict[str, Any]:
    """`width=64` as a keyword. The value is a Python literal if it reads as one, else text. Raises UsageError."""
    from ast import literal_eval

    keywords: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {show(argument, 80)}: expected NAME=VALUE")
        try:
            keywords[name] = literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            keywords[name] = text
    return keywords


def _module(given: str, file: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        # As with `python file.py`, modules beside the file can be imported.
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
        name = os.path.splitext(os.path.basename(file))[0]
        name = f"_{name}_of_model" if name in sys.modules else name
        spec = spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None  # the ending is .py
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except BaseException as error:
        _let_through(error)
        raise _failed(given, error) from error


def _let_through(error: BaseException) -> None:
    """Raise again what is not a failure of the user's code: an interrupt, a signal."""
    if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("ckpt."):
        raise error


def _failed(given: str, error: BaseException) -> UsageError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UsageError(f"{given}: {show(what.partition(chr(10))[0], 200)}", hint="CKPT_DEBUG=1 shows where")
