"""`ckpt slim`: the weights alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from ckpt.commands.slim.api import slim
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], **keywords: Any) -> int:
    """Keep the weights of the model, drop the optimizer and the rest, and pack
    storages.

    The result is a state dict that loads with weights_only=True, or safetensors where
    OUT ends so. Tied weights stay tied.

    \b
    ckpt slim train.pth -o weights.pth
    ckpt slim train.pth --strip --to cpu -o release.safetensors
    ckpt slim last.ckpt --keep epoch --keep hyper_parameters -o small.ckpt
    """
    options, own = split_options("slim", paths, keywords)
    return rewrite_paths(paths, partial(slim, **own), options)
