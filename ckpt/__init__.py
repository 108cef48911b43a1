"""Inspect, compare and migrate PyTorch checkpoints, without running anything they name."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, whose import would be the longest part of importing this package
if TYPE_CHECKING:
    from ckpt.api.checkpoint import Checkpoint
    from ckpt.api.inspection import InspectReport, TensorSummary, inspect
    from ckpt.api.listing import lint, ls
    from ckpt.api.opening import open
    from ckpt.api.reading import diff, stats, sum, verify
    from ckpt.api.reference import MissingNameError, Ref
    from ckpt.api.sections import Section, Shard
    from ckpt.api.writing import average, convert, rehome, rename, salvage, slim, strip, warmstart
    from ckpt.errors import (
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
    from ckpt.ext.adapters.api import merge
    from ckpt.ext.values.api import set
    from ckpt.findings import Finding
    from ckpt.jobs.check.lint import FileReport, LintReport
    from ckpt.jobs.check.recorded import SumReport
    from ckpt.jobs.check.stats import StatsReport
    from ckpt.jobs.check.verify import VerifyReport
    from ckpt.jobs.diff.diff import DiffReport
    from ckpt.jobs.inspect.ls import LsReport, LsRow
    from ckpt.jobs.rewrite.report import Coverage, RewriteReport
    from ckpt.limits import Limits
    from ckpt.live.snapshot import snapshot

__version__ = "0.1.0"

_HOMES = {
    "ckpt.api.checkpoint": ("Checkpoint",),
    "ckpt.api.inspection": ("InspectReport", "TensorSummary", "inspect"),
    "ckpt.api.listing": ("lint", "ls"),
    "ckpt.api.opening": ("open",),
    "ckpt.api.reading": ("diff", "stats", "sum", "verify"),
    "ckpt.api.reference": ("MissingNameError", "Ref"),
    "ckpt.api.sections": ("Section", "Shard"),
    "ckpt.api.writing": (
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
    "ckpt.errors": (
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
    "ckpt.ext.values.api": ("set",),
    "ckpt.ext.adapters.api": ("merge",),
    "ckpt.findings": ("Finding",),
    "ckpt.jobs.check.lint": ("FileReport", "LintReport"),
    "ckpt.jobs.check.recorded": ("SumReport",),
    "ckpt.jobs.check.stats": ("StatsReport",),
    "ckpt.jobs.check.verify": ("VerifyReport",),
    "ckpt.jobs.diff.diff": ("DiffReport",),
    "ckpt.jobs.inspect.ls": ("LsReport", "LsRow"),
    "ckpt.jobs.rewrite.report": ("Coverage", "RewriteReport"),
    "ckpt.limits": ("Limits",),
    "ckpt.live.snapshot": ("snapshot",),
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
