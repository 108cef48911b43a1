"""The work of extensions for functions of the core: loaded by the text of their module, and only when they are asked."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def adapters() -> Any:
    """The functions that adapters add: see `ckpt.ext.adapters.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.adapters.hooks")


def resizing() -> Any:
    """The functions that resizing adds: see `ckpt.ext.resizing.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.resizing.hooks")


def layouts() -> Any:
    """The functions that layouts add: see `ckpt.ext.layouts.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.layouts.hooks")


def averages() -> Any:
    """The functions that averages add: see `ckpt.ext.averages.hooks`."""
    # Named as text: the core imports no extension.
    return import_module("ckpt.ext.averages.hooks")
