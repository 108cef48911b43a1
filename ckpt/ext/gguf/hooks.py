"""The functions that GGUF adds to `diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.evidence.survey import Survey
from ckpt.ext.gguf.meeting import Renamed, renamed
from ckpt.model.checkpoint import names_of
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport, Options


class Meeting(NamedTuple):
    """Two sides of a comparison, one of them a GGUF file in the names of the other."""

    before: Survey
    after: Survey
    gguf: Renamed
    is_before: bool

    def judged(self, report: DiffReport) -> DiffReport:
        """The report with the judgement of each tensor by the error that its type makes."""
        from ckpt.ext.gguf.verdicts import account_of

        return report._replace(account=account_of(report, self.gguf, is_before=self.is_before))


def met(before: Survey, after: Survey, options: Options) -> Meeting | None:
    """Return two sides in one set of names, where exactly one is GGUF and the other has the names of transformers."""
    sides = before, after
    own = [side.checkpoint.traits.has_own_metadata for side in sides]
    if own[0] == own[1] or options.structure or options.rules or not options.align:
        return None
    gguf, other = (before, after) if own[0] else (after, before)
    found = renamed(gguf, set(names_of(other.tensors)))
    if found is None:
        return None
    read = Survey(found.checkpoint, gguf.model)
    return Meeting(read if own[0] else before, after if own[0] else read, found, own[0])
