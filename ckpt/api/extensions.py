"""The work of extensions that functions of the core do when they are asked for it: loaded by name, and only then."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOOKS = {
    "recipe": ("ckpt.ext.layouts.apply", "recipe_stage"),
    "relaid": ("ckpt.ext.layouts.comparing", "relaid_survey"),
    "wrong": ("ckpt.ext.layouts.comparing", "wrong_notes"),
    "meet": ("ckpt.ext.layouts.comparing", "layout_note"),
    "root": ("ckpt.ext.layouts.roots", "root_of"),
    "values": ("ckpt.ext.layouts.roots", "values_of"),
}
"""A word for what is asked -> the module and the function of its extension."""


def hook_of(word: str) -> Any:
    """The function of an extension that does what is asked."""
    module, name = _HOOKS[word]
    return getattr(import_module(module), name)
