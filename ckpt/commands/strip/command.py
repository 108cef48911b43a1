"""`ckpt strip`: names without prefixes."""

from __future__ import annotations

from functools import partial
from typing import Any

from ckpt.commands.strip.api import strip
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], **keywords: Any) -> int:
    """Strip the prefixes of wrappers from the names of tensors: module., _orig_mod.,
    also nested.

    Module versions and the names in an optimizer change with them. Two names never
    become one.

    \b
    ckpt strip ddp.pth -o model.pth
    ckpt strip lightning.ckpt --prefix model. --in-place
    """
    options, own = split_options("strip", paths, keywords)
    return rewrite_paths(paths, partial(strip, **own), options)
