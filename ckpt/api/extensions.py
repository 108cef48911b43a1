"""The work of extensions that functions of the core do when they are asked for it: loaded by name, and only then."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOOKS = {"recipe": ("ckpt.ext.layouts.apply", "recipe_stage")}
"""The word of an option -> the module and the function of its extension."""


def hook_of(word: str) -> Any:
    """The function of an extension that does the work of an option."""
    module, name = _HOOKS[word]
    return getattr(import_module(module), name)
