"""Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, whose import would be the longest part of importing this package
if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport
    from ckpt.commands.inspect.api import InspectReport, TensorSummary, inspect
    from ckpt.commands.ls.ls import LsReport, LsRow
    from ckpt.commands.rewriting.report import Coverage, RewriteReport
    from ckpt.commands.stats.stats import StatsReport
    from ckpt.commands.sum.recorded import SumReport
    from ckpt.commands.verify.verify import VerifyReport
    from ckpt.ext.adapters.api import merge
    from ckpt.ext.layouts.recipe import recipe
    from ckpt.ext.layouts.report import RecipeReport
    from ckpt.ext.lint.lint import FileReport, LintReport
    from ckpt.ext.live.snapshot import snapshot
    from ckpt.ext.prune.api import prune
    from ckpt.ext.prune.report import PruneReport, PruneRow
    from ckpt.ext.values.api import set
    from ckpt.model.errors import (
        CkptError,
        CodeError,
        CutOffError,
        DamagedDataError,
        Failure,
        FolderError,
        LimitError,
        LinkError,
        LossError,
        MixedStepsError,
        NoRewriteError,
        NotOpenedError,
        StandInError,
        UnreadableError,
        UnsupportedError,
        UsageError,
        WriteError,
    )
    from ckpt.model.findings import Finding
    from ckpt.model.limits import Limits
    from ckpt.surface.api.checkpoint import Checkpoint
    from ckpt.surface.api.listing import lint, ls
    from ckpt.surface.api.opening import open
    from ckpt.surface.api.reading import diff, stats, sum, verify
    from ckpt.surface.api.reference import MissingNameError, Ref
    from ckpt.surface.api.sections import Section, Shard
    from ckpt.surface.api.writing import average, convert, rehome, rename, salvage, slim, strip, warmstart

__version__ = "0.1.0"

_HOMES = {
    "ckpt.surface.api.checkpoint": ("Checkpoint",),
    "ckpt.commands.inspect.api": ("InspectReport", "TensorSummary", "inspect"),
    "ckpt.surface.api.listing": ("lint", "ls"),
    "ckpt.surface.api.opening": ("open",),
    "ckpt.surface.api.reading": ("diff", "stats", "sum", "verify"),
    "ckpt.surface.api.reference": ("MissingNameError", "Ref"),
    "ckpt.surface.api.sections": ("Section", "Shard"),
    "ckpt.surface.api.writing": (
        "average",
        "convert",
        "rehome",
        "rename",
        "set",
        "salvage",
        "slim",
        "strip",
        "warmstart",
    ),
    "ckpt.model.errors": (
        "CkptError",
        "CodeError",
        "CutOffError",
        "DamagedDataError",
        "Failure",
        "FolderError",
        "LimitError",
        "LinkError",
        "LossError",
        "MixedStepsError",
        "NoRewriteError",
        "NotOpenedError",
        "StandInError",
        "UnreadableError",
        "UnsupportedError",
        "UsageError",
        "WriteError",
    ),
    "ckpt.ext.prune.api": ("prune",),
    "ckpt.ext.prune.report": ("PruneReport", "PruneRow"),
    "ckpt.ext.values.api": ("set",),
    "ckpt.ext.adapters.api": ("merge",),
    "ckpt.ext.layouts.recipe": ("recipe",),
    "ckpt.ext.layouts.report": ("RecipeReport",),
    "ckpt.model.findings": ("Finding",),
    "ckpt.ext.lint.lint": ("FileReport", "LintReport"),
    "ckpt.commands.sum.recorded": ("SumReport",),
    "ckpt.commands.stats.stats": ("StatsReport",),
    "ckpt.commands.verify.verify": ("VerifyReport",),
    "ckpt.commands.diff.diff": ("DiffReport",),
    "ckpt.commands.ls.ls": ("LsReport", "LsRow"),
    "ckpt.commands.rewriting.report": ("Coverage", "RewriteReport"),
    "ckpt.model.limits": ("Limits",),
    "ckpt.ext.live.snapshot": ("snapshot",),
}
"""Module -> the public names that it has."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Checkpoint",
    "CkptError",
    "CodeError",
    "Coverage",
    "CutOffError",
    "DamagedDataError",
    "DiffReport",
    "Failure",
    "FileReport",
    "Finding",
    "FolderError",
    "InspectReport",
    "LimitError",
    "Limits",
    "LinkError",
    "LintReport",
    "LossError",
    "LsReport",
    "LsRow",
    "MissingNameError",
    "MixedStepsError",
    "NoRewriteError",
    "NotOpenedError",
    "PruneReport",
    "PruneRow",
    "RecipeReport",
    "Ref",
    "RewriteReport",
    "Section",
    "Shard",
    "StandInError",
    "StatsReport",
    "SumReport",
    "TensorSummary",
    "UnreadableError",
    "UnsupportedError",
    "UsageError",
    "VerifyReport",
    "WriteError",
    "__version__",
    "average",
    "convert",
    "diff",
    "inspect",
    "lint",
    "ls",
    "merge",
    "open",
    "prune",
    "recipe",
    "rehome",
    "rename",
    "salvage",
    "set",
    "slim",
    "snapshot",
    "stats",
    "strip",
    "sum",
    "verify",
    "warmstart",
]


def __getattr__(name: str) -> object:
    # Lazy: `import ckpt` costs nothing until a name is used.
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ckpt' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
