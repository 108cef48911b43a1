"""The work of extensions for functions of the core: loaded by the text of their module, and only when they are asked."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def adapters() -> Any:
    """The functions that adapters add: see `ckpt.ext.adapters.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.adapters.hooks")


def layouts() -> Any:
    """The functions that layouts add: see `ckpt.ext.layouts.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.layouts.hooks")


def quantised() -> Any:
    """The functions that quantised weights add: see `ckpt.ext.quantised.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.quantised.hooks")
