"""The functions that GGUF adds to `diff`, `convert` and `warmstart`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ckpt.elements.lines import LineTest
from ckpt.evidence.survey import Survey
from ckpt.ext.gguf import meeting
from ckpt.ext.gguf.names import ARCHITECTURES, MADE
from ckpt.model.checkpoint import Entry, names_of
from ckpt.model.errors import LossError, UnsupportedError
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.text import and_more, show_name

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport, Options
    from ckpt.commands.rewriting.report import RewriteReport


class Meeting(NamedTuple):
    """Two sides of a comparison, one of them a GGUF file in the names of the other."""

    before: Survey
    after: Survey
    gguf: meeting.Renamed
    is_before: bool

    def asked(self, options: Options) -> Options:
        """Return what is asked of the comparison: with the rows and columns of
        tensors, where these are judged.
        """
        if not _is_judged(options):
            return options
        test = LineTest(1 if self.is_before else 0, sees_factors=True)
        return options._replace(lines=lambda row: test)

    def judged(self, report: DiffReport) -> DiffReport:
        """The report with the judgement of each tensor by the error that its type
        makes.
        """
        if not _is_judged(report.options):
            return report
        from ckpt.commands.diff.findings import without_training
        from ckpt.ext.gguf.verdicts import account_of

        findings = without_training(report.findings)
        account = account_of(report, self.gguf, is_before=self.is_before)
        return report._replace(account=account, findings=findings)


def _is_judged(options: Options) -> bool:
    """Tell whether tensors are judged. Who asks for a tolerance or for bars has asked
    for something else.
    """
    return not (options.norms or options.histogram or options.tolerance is not None)


def met(before: Survey, after: Survey, options: Options) -> Meeting | None:
    """Return two sides in one set of names, where exactly one is GGUF and the other has
    the names of transformers.
    """
    sides = before, after
    own = [side.checkpoint.traits.has_own_metadata for side in sides]
    # If names are compared as they are, nothing is translated either.
    if own[0] == own[1] or options.structure or options.rules or not options.align:
        return None
    gguf, other = (before, after) if own[0] else (after, before)
    found = meeting.met(gguf, set(names_of(other.tensors)))
    if found is None:
        return None
    read = Survey(found.checkpoint, gguf.model)
    if own[0]:
        return Meeting(read, after, found, True)
    return Meeting(before, read, found, False)


def layout_reason(
    survey: Survey, others: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """The reason why a GGUF file is not yet a model of transformers, whose names the
    `others` are, and the option that helps.
    """
    found = meeting.met(survey, others)
    if found is None:
        return "", ()
    # Tables that the converter made have no name in transformers, and are not missed.
    is_known = all(name in MADE for name in found.unread)
    reason = (
        "a GGUF has the names and the order of rows of llama.cpp, TARGET those of "
        "transformers"
    )
    return reason, ("--recipe", TRANSFORMERS) if is_known else ("--ignore-layout",)


TRANSFORMERS = "transformers"
"""The word that `--recipe` of `convert` and `warmstart` takes in the place of a file,
for a GGUF.
"""


def in_transformers(survey: Survey) -> RewriteReport:
    """The tensors of a GGUF file in the names and the layout of transformers.

    Raises UnsupportedError for an architecture without a table, LossError for a tensor
    that no table knows.
    """
    from ckpt.commands.rewriting.edited import storages_of
    from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport

    found = meeting.renamed(survey)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(
            "no table has the names of its architecture in transformers",
            path=survey.path,
            hint=f"known: {known}",
        )
    lost = [name for name in found.unread if name not in MADE]
    if lost:
        listed = and_more([show_name(name) for name in lost], 3)
        raise LossError(
            f"no table has a name in transformers for {listed}", path=survey.path
        )
    # Tables that the converter made of config.json are made again by transformers.
    kept: list[Entry] = []
    left: list[Leftover] = []
    for entry in found.checkpoint.tensors:
        if entry.name in MADE:
            why = "made by the converter, of numbers in config.json"
            left.append(Leftover(entry.name, why, entry.tensor.nbytes))
        else:
            kept.append(entry)
    entries = tuple(kept)
    root = meeting.tree_of(entries, survey.checkpoint)
    result = replace(
        found.checkpoint,
        root=root,
        tensors=entries,
        storages=storages_of(entries),
    )
    change = Change("layout", found.architecture, TRANSFORMERS, len(entries), "tensor")
    return RewriteReport(
        "convert",
        survey.checkpoint,
        result,
        (change,),
        tuple(left),
        unchanged_bytes=False,
    )
