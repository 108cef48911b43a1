"""`ckpt rename`: names by substitution."""

from __future__ import annotations

from functools import partial
from typing import Any

from ckpt.commands.rename.api import rename
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], **keywords: Any) -> int:
    """Rename the tensors of a model by regular expressions, one after the other.

    Module versions and the names in an optimizer change with them. Two names never
    become one.

    \b ckpt rename bert.pth --sub 's/^bert\\.//' --sub
    's/LayerNorm\\.gamma$/LayerNorm.weight/' -o out.pth
    """
    options, own = split_options("rename", paths, keywords)
    return rewrite_paths(paths, partial(rename, **own), options)
