"""Inspect, compare and migrate PyTorch checkpoints, without running anything
they name.
"""

from __future__ import annotations

# that of `typing`, whose import would be the longest part of importing this package
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ckpt.commands.convert.api import convert
    from ckpt.commands.diff.api import diff
    from ckpt.commands.diff.diff import DiffReport
    from ckpt.commands.inspect.api import InspectReport, TensorSummary, inspect
    from ckpt.commands.ls.api import ls
    from ckpt.commands.ls.ls import LsReport, LsRow
    from ckpt.commands.rehome.api import rehome
    from ckpt.commands.rename.api import rename
    from ckpt.commands.rewriting.report import Coverage, RewriteReport
    from ckpt.commands.slim.api import slim
    from ckpt.commands.stats.api import stats
    from ckpt.commands.stats.stats import StatsReport
    from ckpt.commands.strip.api import strip
    from ckpt.commands.sum.api import sum
    from ckpt.commands.sum.recorded import SumReport
    from ckpt.commands.verify.api import verify
    from ckpt.commands.verify.verify import VerifyReport
    from ckpt.ext.adapters.api import merge
    from ckpt.ext.average.api import average
    from ckpt.ext.layouts.recipe import recipe
    from ckpt.ext.layouts.report import RecipeReport
    from ckpt.ext.lint.api import lint
    from ckpt.ext.lint.lint import FileReport, LintReport
    from ckpt.ext.live.snapshot import snapshot
    from ckpt.ext.prune.api import prune
    from ckpt.ext.prune.report import PruneReport, PruneRow
    from ckpt.ext.salvage.api import salvage
    from ckpt.ext.values.api import set
    from ckpt.ext.warmstart.api import warmstart
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
    from ckpt.surface.api.opening import open
    from ckpt.surface.api.reference import MissingNameError, Ref
    from ckpt.surface.api.sections import Section, Shard

__version__ = "0.2.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "ckpt.commands.convert.api": ("convert",),
    "ckpt.commands.diff.api": ("diff",),
    "ckpt.commands.diff.diff": ("DiffReport",),
    "ckpt.commands.inspect.api": ("InspectReport", "TensorSummary", "inspect"),
    "ckpt.commands.ls.api": ("ls",),
    "ckpt.commands.ls.ls": ("LsReport", "LsRow"),
    "ckpt.commands.rehome.api": ("rehome",),
    "ckpt.commands.rename.api": ("rename",),
    "ckpt.commands.rewriting.report": ("Coverage", "RewriteReport"),
    "ckpt.commands.slim.api": ("slim",),
    "ckpt.commands.stats.api": ("stats",),
    "ckpt.commands.stats.stats": ("StatsReport",),
    "ckpt.commands.strip.api": ("strip",),
    "ckpt.commands.sum.api": ("sum",),
    "ckpt.commands.sum.recorded": ("SumReport",),
    "ckpt.commands.verify.api": ("verify",),
    "ckpt.commands.verify.verify": ("VerifyReport",),
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
    "ckpt.model.findings": ("Finding",),
    "ckpt.model.limits": ("Limits",),
    "ckpt.surface.api.checkpoint": ("Checkpoint",),
    "ckpt.surface.api.opening": ("open",),
    "ckpt.surface.api.reference": ("MissingNameError", "Ref"),
    "ckpt.surface.api.sections": ("Section", "Shard"),
    "ckpt.ext.adapters.api": ("merge",),
    "ckpt.ext.average.api": ("average",),
    "ckpt.ext.layouts.recipe": ("recipe",),
    "ckpt.ext.layouts.report": ("RecipeReport",),
    "ckpt.ext.lint.api": ("lint",),
    "ckpt.ext.lint.lint": ("FileReport", "LintReport"),
    "ckpt.ext.live.snapshot": ("snapshot",),
    "ckpt.ext.prune.api": ("prune",),
    "ckpt.ext.prune.report": ("PruneReport", "PruneRow"),
    "ckpt.ext.salvage.api": ("salvage",),
    "ckpt.ext.values.api": ("set",),
    "ckpt.ext.warmstart.api": ("warmstart",),
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


_ELSEWHERE = {
    "get": 'ckpt.open(path).values["epoch"] is one value',
    "explain": "a command only: ckpt explain MESSAGE FILE",
    "report": "a command only: ckpt report FILE -o report.html",
    "completion": "a command only: ckpt completion bash",
    "load": "ckpt.open(path).state_dict() loads the weights of a model",
    "save": "ckpt.snapshot(model, path) saves a live model, ckpt.convert a file",
}
"""Names that users try, and what does that."""


def __getattr__(name: str) -> object:
    # Lazy: `import ckpt` costs nothing until a name is used.
    home = _HOME_OF.get(name)
    if home is None:
        import sys

        from ckpt.hooks import has_command

        way = _ELSEWHERE.get(name) if has_command(name) else None
        raise AttributeError(
            f"module 'ckpt' has no attribute {name!r}{f' ({way})' if way else ''}",
            name=name,
            obj=sys.modules[__name__],  # from these two Python says what was meant
        )
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
