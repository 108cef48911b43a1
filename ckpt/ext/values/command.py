"""`ckpt set`: values inside of a checkpoint."""

from __future__ import annotations

from typing import Any

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.ext.values.api import assign_values
from ckpt.ext.values.assignments import parse_assignment
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(
    path: str,
    assignments: list[str],
    *,
    delete: list[str] | None,
    **keywords: Any,
) -> int:
    """Set values inside of a checkpoint by their dotted names, or delete what lies
    under a name.

    NAME=VALUE reads VALUE as the type that is there: int, float, bool or text.
    NAME:=JSON takes any plain value, and adds a name to a dict. Tensors are never set.
    `ckpt get FILE` lists the names.

    \b
    ckpt set last.ckpt optimizer_states.0.param_groups.0.lr=1e-5 epoch=0 --in-place
    ckpt set model.safetensors __metadata__.license=mit -o out.safetensors
    ckpt set last.pth 'args.betas:=[0.9, 0.95]' -d scheduler -o next.pth
    """
    given = [parse_assignment(word) for word in assignments]
    options, own = split_options("set", [path], keywords)

    def write(source: str, **written: Any) -> RewriteReport:
        return assign_values(source, given, delete or (), **own, **written)

    return rewrite_paths([path], write, options)
