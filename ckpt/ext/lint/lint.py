"""`ckpt lint`: every finding about one file or one live model, and values that name
people, hosts or tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING

from ckpt.bytes.far import is_url
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.logical import with_quantised
from ckpt.evidence.modules import Hook
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import DamagedDataError, Failure
from ckpt.model.findings import CATALOGUE, LEVELS, Finding, Gate, Plan, Rules, order
from ckpt.model.names import count_endings
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, and_more, counted_noun, show, show_names
from ckpt.surface.reports import document_head, shown_as_html
from ckpt.tree.view import look

if TYPE_CHECKING:
    from ckpt.commands.stats.stats import Row

# `/home/ann` and `C:\Users\ann`: up to the name of the person, not the path behind it.
_HOME = re.compile(r"(?:/(?:home|Users|root)/|[A-Za-z]:\\Users\\)[^/\\\s'\"]+")
_TOKENS = (
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    (
        "a GitHub token",
        re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{22,}\b"),
    ),
    ("an AWS key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    # A digit must be there: `sk-learn-based-estimator` is no key.
    ("an API key", re.compile(r"\bsk-(?:proj-|ant-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    (
        "a password in an address",
        # `https://user:password@host`: the scheme is looked at from its end only, so
        # that a long word costs no square.
        re.compile(r"(?<=[a-z0-9+.-])://[^/\s:@]+:[^/\s:@]+@"),
    ),
)
# The last part of a dotted name: `config.api_key`.
_SECRET = re.compile(
    r"(?:^|[_.])(?:api_?key|secret(?:_key)?|password|passwd|access_token|auth_token)$",
    re.I,
)
_INNER = re.compile(r"(?:\.(?:internal|corp|lan|intranet)\b)+", re.I)
"""The end of a host name, which few texts have. Only then the letters before it are
looked at.
"""
_LABELS = re.compile(r"[a-z0-9.-]*", re.I)
_NAME = 253
"""The most letters of a host name before its end."""
_MOST = 10_000
"""Characters of one text that are looked through, and items of one list."""


def private_values(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Values that name a machine or hold a secret, by kind, with their places. A secret
    is never shown.
    """
    by_kind: dict[str, list[str]] = {}
    example: dict[str, str] = {}
    for value in checkpoint.values:
        # Shown at its first place, or by its fields.
        if value.same_as is not None or value.fields is not None:
            continue
        for text in _list_texts(value.node):
            for kind, shown in _private_kinds(value.name, text):
                places = by_kind.setdefault(kind, [])
                # A list may have many such texts, all under one name.
                if value.name not in places:
                    places.append(value.name)
                example.setdefault(kind, shown)
    for kind, places in by_kind.items():
        example_text = f": {show(example[kind], 60)}" if example[kind] else ""
        yield Finding(
            "private",
            # A token has no example: only its kind and its place are said.
            f"{kind} at {show_names(places, 1)}{example_text}",
            where=tuple(places),
        )


def _list_texts(node: Node) -> Iterator[str]:
    """The texts of a value: itself, or the items of a list."""
    view = look(node)
    if view.kind == "scalar":
        if isinstance(view.value, str):
            yield str(view.value)[:_MOST]
    elif view.kind in ("sequence", "mapping"):
        for child in view.children[:_MOST]:
            inner = look(child)
            if inner.kind == "scalar" and isinstance(inner.value, str):
                yield str(inner.value)[:_MOST]


def _private_kinds(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(what a text gives away, what of it may be shown)."""
    home = _HOME.search(text)
    if home is not None:
        yield "a home path", home[0]
    token = next((kind for kind, pattern in _TOKENS if pattern.search(text)), None)
    if token is not None:
        yield token, ""
    elif (
        # A short text, or one without a digit, is more often a word such as `disabled`.
        _SECRET.search(name) and len(text) >= 8 and any(char.isdigit() for char in text)
    ):
        yield "a secret by its name", ""
    host = _find_host(text)
    if host is not None:
        yield "a host name", host


def _find_host(text: str) -> str | None:
    """Return the first host name of an inner network with three labels or more, or
    None.
    """
    for end in _INNER.finditer(text):
        # Backwards from the end of the name: forwards, a pattern would begin at each
        # letter of a long text.
        backwards = _LABELS.match(text[max(0, end.start() - _NAME) : end.start()][::-1])
        name = (
            ""
            if backwards is None
            else backwards[0][::-1].rpartition("..")[2].lstrip(".-")
        )
        # `torch.internal` is a name of Python; a host has three labels.
        if name and not name.endswith(".") and f"{name}{end[0]}".count(".") > 1:
            return name + end[0]
    return None


DEAD = 1e-3
"""The share of the largest channel of its layer below which one is dead."""


VALUE_CODES = frozenset(("nan", "inf", "dead-channels"))
"""The findings that only the values of tensors show."""


class FileReport(NamedTuple):
    """The findings of one file, or the error if it cannot be read, or why it was
    `skipped`. It has both where only some of its tensors could be read.
    """

    path: str
    findings: tuple[Finding, ...]
    error: Failure | None = None
    switched_off: tuple[Finding, ...] = ()
    """Findings that only the rules of a file left out."""
    known: tuple[Finding, ...] = ()
    """Findings that a baseline holds."""
    skipped: str | None = None
    is_model: bool = False
    """A flag: it is about a live model, and `path` is the name of that."""
    gate: FileGate | None = None
    """The rules that chose its findings, or None if it was not read."""
    has_values: bool = False
    """True where its tensors were read too."""

    def __repr__(self) -> str:
        what = counted_noun(len(self.findings), "finding")
        if self.error is not None:
            what = show(self.error.message, 120)
        elif self.skipped is not None:
            what = f"skipped, {show(self.skipped, 120)}"
        return f"<ckpt.FileReport {show(self.path)}: {what}>"

    @property
    def was_read(self) -> bool:
        """True where it was looked at: all of it, or all but some tensors."""
        is_whole = self.error is None and self.skipped is None
        return is_whole or self.gate is not None

    @property
    def lacks_values(self) -> bool:
        """True where the values of its tensors were not read, and could have had a
        finding.
        """
        if self.has_values or self.is_model or self.gate is None:
            return False
        # A gate that leaves these codes out misses nothing.
        missed = [Finding(code, "") for code in VALUE_CODES]
        return any(self.gate.kept(self.path, missed))

    def could_report(self, code: str, level: str) -> bool:
        """Tell whether a finding of this code and level would have been seen."""
        if self.gate is None or (code in VALUE_CODES and not self.has_values):
            return False
        if level not in LEVELS or code not in CATALOGUE:
            return True  # of another release: nothing makes it any more
        # An entry has a level of its own, which may be higher than its code has.
        finding = Finding(code, "", raised=level)
        return any(self.gate.kept(self.path, [finding]))

    def to_json(self) -> dict[str, Json]:
        """An entry of `files[]` of the document `ckpt.lint`."""
        return {
            "path": self.path,
            "error": None if self.error is None else self.error._asdict(),
            "skipped": self.skipped,
            "findings": [finding.to_json() for finding in self.findings],
        }


@shown_as_html("ckpt.ext.lint.text", "html_lint")
class LintReport(NamedTuple):
    """The report of `ckpt lint`: the findings of each file. `others` are the files of
    folders that were not looked at.
    """

    files: tuple[FileReport, ...]
    others: tuple[str, ...] = ()
    gate: Gate = Gate()
    skip_unreadable: bool = False
    config: str = ""
    """The file whose table of settings counted, or ``."""
    baseline: str = ""
    """The file of known findings, or ``."""
    stale: tuple[str, ...] = ()
    """Entries of the baseline whose finding has gone."""
    exit_zero: bool = False

    def __repr__(self) -> str:
        read = [row for row in self.files if row.was_read]
        unread = sum(row.error is not None for row in self.files)
        more = f", {unread:,} unreadable" if unread else ""
        return (
            f"<ckpt.LintReport: {counted_noun(len(self.findings), 'finding')} in "
            f"{counted_noun(len(read), 'file')}{more}>"
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all files, in their order."""
        return tuple(finding for row in self.files for finding in row.findings)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 where a file cannot be read, 1 where the gate
        closes.
        """
        return max(map(self._file_exit_code, self.files), default=0)

    def _file_exit_code(self, row: FileReport) -> int:
        if row.error is not None and not self.skip_unreadable:
            # A file that cannot be read is trouble, whatever the gate asks.
            return 2
        if self.exit_zero:
            return 0
        # With --fail-on only the codes that it names close the gate.
        if self.gate.fails:
            return self.gate.code(row.findings)
        return int(any(finding.level != "info" for finding in row.findings))

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.lint`; docs/json.md is its contract. It counts by ending
        what was not looked at.
        """
        counts = count_endings(self.others)
        return {
            **document_head("ckpt.lint", 2),
            "files": [row.to_json() for row in self.files],
            "not_looked_at": [
                {"ending": ending, "files": count} for ending, count in counts.items()
            ],
        }


class FileIgnore(NamedTuple):
    """The codes that are ignored in the files that a glob matches: their path below a
    folder, or their last name.
    """

    glob: str
    folder: str
    codes: frozenset[str]

    def is_about(self, path: str) -> bool:
        """Tell whether the glob matches a path. `*` crosses slashes, as in .gitignore
        files of one pattern.
        """
        match = re.compile(translate(self.glob)).match
        absolute = path if is_url(path) else os.path.abspath(path)
        # The folder of the rules, where `old/*` begins.
        below = absolute.removeprefix(f"{self.folder.rstrip('/')}/")
        return any(
            match(name) is not None
            for name in (below, absolute, path, os.path.basename(absolute))
        )


def ignored_in(path: str, ignores: Iterable[FileIgnore]) -> frozenset[str]:
    """Return the codes that are ignored in a file."""
    return frozenset(
        code for row in ignores if row.is_about(path) for code in row.codes
    )


class FileGate(NamedTuple):
    """The rules of the command line together with the rules of a file, and the rules
    without the file.

    A file can lie beside the checkpoints that it judges, so it never switches off a
    finding of level error.
    """

    rules: Rules
    asked: Rules
    ignores: tuple[FileIgnore, ...] = ()
    """Ignores per glob of a file, where the command line has none."""
    asked_ignores: tuple[FileIgnore, ...] = ()

    def kept(
        self, path: str, findings: Iterable[Finding]
    ) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """The findings of a file that count, and those that count no longer because of
        the file of rules.
        """
        every = list(findings)
        asked_here = ignored_in(path, self.asked_ignores)
        rules = self.rules.without(asked_here | ignored_in(path, self.ignores))
        kept = rules.kept(every)
        # By identity, because two findings may be equal.
        ids = set(map(id, kept))
        lost = [
            finding
            for finding in self.asked.without(asked_here).kept(every)
            if id(finding) not in ids
        ]
        # Given back, although the file ignores them.
        errors = [finding for finding in lost if finding.level == "error"]
        return order([*kept, *errors]), tuple(
            finding for finding in lost if finding.level != "error"
        )


def lint_structure(survey: Survey, *, plan: Plan | None = None) -> list[Finding]:
    """Every finding of a checkpoint but those in the numbers of its tensors.

    `plan` finds the commands of the hints; without it findings have none.
    """
    findings = list(with_quantised(inspect(survey, plan=plan), None).findings)
    hidden = survey.unseen
    if survey.record is not None:  # else `inspect` has looked
        # Here and below: only the record of a model has loose layers.
        from ckpt.commands.inspect.unused import loose_findings

        findings += loose_findings(hidden.loose)
    findings += _plain_tensor_findings(hidden.plain_tensors)
    findings += _duplicate_findings(hidden.twice)
    findings += _hook_findings(hidden.hooks)
    findings += private_values(survey.checkpoint)
    return findings


class ValueReport(NamedTuple):
    """The findings in the numbers of a checkpoint, and why they are not all of them."""

    findings: tuple[Finding, ...]
    failure: Failure | None
    """The tensors whose bytes could not be read, or None."""


def lint_values(survey: Survey) -> ValueReport:
    """The findings in the numbers of the models of a checkpoint and of their averages,
    or of all its tensors where it has neither.
    """
    parts = [part for part in survey.sections if part.kind in ("model", "ema")]
    # None stands for the whole file, where no section is a model.
    names: list[str | None] = [part.name for part in parts]
    findings: list[Finding] = []
    unread: list[Row] = []
    # Here: only `--read-values` measures.
    from ckpt.commands.stats.stats import stats

    for name in names or [None]:
        report = stats(
            survey,
            section=name,
            threshold=None if name is None else DEAD,  # no layer, no channel
            everything=name is None,
        )
        # `inspect` has named them.
        findings += [row for row in report.findings if row.code != "scaled"]
        unread += report.unread
    return ValueReport(tuple(findings), _failure_of(unread))


def _failure_of(unread: Sequence[Row]) -> Failure | None:
    """The error about tensors that were not measured, or None without one."""
    if not unread:
        return None
    first = unread[0]
    more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return Failure(
        DamagedDataError.code,
        f"not measured: {show(first.entry.name, 120)}{more}: {first.why}",
    )


def lint_model(record: ModelRecord) -> list[Finding]:
    """Every finding of a live model."""
    from ckpt.commands.inspect.unused import loose_findings

    return [
        *loose_findings(record.loose),
        *_plain_tensor_findings(record.plain_tensors),
        *_duplicate_findings(record.twice),
    ]


def _plain_tensor_findings(names: Sequence[str]) -> Iterable[Finding]:
    if names:
        verb = "is a plain attribute" if len(names) == 1 else "are plain attributes"
        text = f"{show_names(names)} {verb}."
        follows = "state_dict and .to() miss them. Use register_buffer."
        yield Finding("plain-tensor", text, where=tuple(names), consequence=follows)


def _duplicate_findings(pairs: Sequence[tuple[str, str]]) -> Iterable[Finding]:
    if pairs:
        both = and_more(
            [
                f"{show(name, 60)} = {show(other_name, 60)}"
                for name, other_name in pairs
            ],
            4,
        )
        verb = "has" if len(pairs) == 1 else "have"
        text = f"{counted_noun(len(pairs), 'module')} {verb} two names: {both}."
        yield Finding("registered-twice", text, where=tuple(name for name, _ in pairs))


def _hook_findings(hooks: Sequence[Hook]) -> Iterable[Finding]:
    if hooks:
        texts = [
            f"{show(hook.function, 60)} of {show(hook.module, 60) or 'the root'}"
            for hook in hooks
        ]
        text = (
            f"Loading needs the code of {counted_noun(len(hooks), 'hook')}: "
            f"{and_more(texts, 4)}."
        )
        yield Finding("hooks", text, where=tuple(hook.module for hook in hooks))
