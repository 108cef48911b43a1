"""`ckpt lint`: every finding about one file or one live model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ckpt.errors import Failure
from ckpt.evidence.modules import Hook
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.survey import Survey
from ckpt.findings import Finding, Plan, Rules, order
from ckpt.jobs.check.stats import stats
from ckpt.jobs.inspect import list_modules as loose
from ckpt.jobs.inspect import private
from ckpt.jobs.inspect.inspect import inspect
from ckpt.rows import NamedTuple
from ckpt.text import Json, and_more, listed, plural, show

DEAD = 1e-3
"""The share of the largest channel of its layer below which one is dead."""


class LintReport(NamedTuple):
    """The findings of one file, or the error if it cannot be read, or why it was `skipped`."""

    path: str
    findings: tuple[Finding, ...]
    error: Failure | None = None
    switched_off: tuple[Finding, ...] = ()
    """Findings that only the rules of a file left out."""
    skipped: str | None = None

    def to_json(self) -> dict[str, Json]:
        """An entry of `files[]` of the document `ckpt.lint`."""
        return {
            "path": self.path,
            "error": None if self.error is None else self.error._asdict(),
            "skipped": self.skipped,
            "findings": [finding.to_json() for finding in self.findings],
        }


def document(reports: Sequence[LintReport], others: Mapping[str, int] | None = None) -> dict[str, Json]:
    """The document `ckpt.lint`; docs/json.md is its contract. `others` counts by ending what was not looked at."""
    from ckpt import __version__

    return {
        "schema": {"name": "ckpt.lint", "version": 2},
        "ckpt": __version__,
        "files": [report.to_json() for report in reports],
        "not_looked_at": [{"ending": ending, "files": count} for ending, count in (others or {}).items()],
    }


class FileGate(NamedTuple):
    """The rules of the command line together with those of a file, and the rules without the file.

    A file can lie beside the checkpoints that it judges, so it never switches off a finding of level error.
    """

    rules: Rules
    asked: Rules

    def kept(self, findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """The findings that count, and those that count no longer because of the file."""
        every = list(findings)
        kept = self.rules.kept(every)
        known = set(map(id, kept))
        lost = [finding for finding in self.asked.kept(every) if id(finding) not in known]
        errors = [finding for finding in lost if finding.level == "error"]
        return order([*kept, *errors]), tuple(finding for finding in lost if finding.level != "error")


def lint(
    survey: Survey,
    *,
    values: bool = False,
    plan: Plan | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Finding]:
    """Every finding of a checkpoint; with `values` those in the numbers of its models too, which reads them.

    `plan` finds the commands of the hints; without it findings have none.
    """
    found = list(inspect(survey, plan=plan).findings)
    hidden = survey.unseen
    if survey.record is not None:  # else `inspect` has looked
        found += loose.findings(hidden.loose)
    found += _plain(hidden.plain_tensors)
    found += _twice(hidden.twice)
    found += _hooks(hidden.hooks)
    found += private.findings(survey.checkpoint)
    if values:
        for part in survey.models:
            report = stats(survey, section=part.name, threshold=DEAD, progress=progress, checksums=False)
            found += report.findings
    return found


def lint_model(record: ModelRecord) -> list[Finding]:
    """Every finding of a live model."""
    return [*loose.findings(record.loose), *_plain(record.plain_tensors), *_twice(record.twice)]


def _plain(names: Sequence[str]) -> Iterable[Finding]:
    if names:
        verb = "is a plain attribute" if len(names) == 1 else "are plain attributes"
        text = f"{listed(names)} {verb}."
        follows = "state_dict and .to() miss them. Use register_buffer."
        yield Finding("plain-tensor", text, where=tuple(names), consequence=follows)


def _twice(pairs: Sequence[tuple[str, str]]) -> Iterable[Finding]:
    if pairs:
        both = and_more([f"{show(one, 60)} = {show(two, 60)}" for one, two in pairs], 4)
        text = f"{plural(len(pairs), 'module')} have two names: {both}."
        yield Finding("registered-twice", text, where=tuple(one for one, _ in pairs))


def _hooks(hooks: Sequence[Hook]) -> Iterable[Finding]:
    if hooks:
        texts = [f"{show(hook.function, 60)} of {show(hook.module, 60) or 'the root'}" for hook in hooks]
        text = f"Loading needs the code of {plural(len(hooks), 'hook')}: {and_more(texts, 4)}."
        yield Finding("hooks", text, where=tuple(hook.module for hook in hooks))
