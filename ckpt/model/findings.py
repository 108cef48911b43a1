"""The catalogue of findings: code, level, what it means. The module that knows a
finding makes it.

Codes are a contract: `--fail-on` takes them, JSON carries them, docs/findings.md
explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, show

# The words of --level, of --fail-on and of JSON.
Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")
"""The most serious first."""


class Code(NamedTuple):
    """An entry of the catalogue. `by` are the commands that make it."""

    code: str
    level: Level
    title: str
    by: tuple[str, ...]


_INSPECT = ("inspect",)
_DIFF = ("diff",)

CATALOGUE: dict[str, Code] = {
    row.code: row
    for row in (
        Code(
            "called-on-load",
            "error",
            "loading the file calls a function that ckpt does not know",
            _INSPECT,
        ),
        Code(
            "code-inside", "error", "the file holds code that loading it runs", _INSPECT
        ),
        Code(
            "out-of-bounds",
            "error",
            "an index or a row of a tensor leads out of it, and torch follows it",
            _INSPECT,
        ),
        Code(
            "unfolds",
            "error",
            "lists or dicts hold each other so many times that using them hardly ends",
            _INSPECT,
        ),
        Code(
            "damaged-file",
            "error",
            "a file of a folder is damaged and was not read",
            _INSPECT,
        ),
        Code("incomplete", "error", "parts of a checkpoint are missing", _INSPECT),
        Code(
            "unfinished",
            "error",
            "a save was killed before its last step, and all of it is there",
            _INSPECT,
        ),
        Code(
            "stale-index",
            "error",
            (
                "the index names shards that are not there, and those that are there "
                "hold all"
            ),
            _INSPECT,
        ),
        Code(
            "overlap",
            "error",
            "two parts of a checkpoint hold the same elements",
            _INSPECT,
        ),
        Code(
            "ranks-differ",
            "error",
            "ranks hold different values where they should be equal",
            ("inspect", "diff"),
        ),
        Code(
            "no-weights",
            "error",
            "parameters of a model are empty, or saved without values",
            ("inspect", "diff"),
        ),
        Code(
            "mixed-steps",
            "info",
            "files of a checkpoint seem to be of several steps",
            _INSPECT,
        ),
        Code(
            "tensor-parallel",
            "warning",
            "a file holds the parts of one rank of tensor parallelism",
            ("inspect", "diff"),
        ),
        Code(
            "unknown-import",
            "warning",
            "loading the file imports a name that ckpt does not know",
            _INSPECT,
        ),
        Code(
            "unknown-attribute",
            "warning",
            "an object of a known class has an attribute that the class does not write",
            _INSPECT,
        ),
        Code(
            "weights-only",
            "warning",
            "torch.load(weights_only=True) refuses the file",
            _INSPECT,
        ),
        Code(
            "file-code",
            "warning",
            "the code of a program touches files, or has a loop without a bound",
            _INSPECT,
        ),
        Code(
            "unknown-operator",
            "warning",
            (
                "loading the program runs an operator of TorchScript that ckpt does "
                "not know"
            ),
            _INSPECT,
        ),
        Code(
            "pickles-inside",
            "info",
            "a library unpickles objects that the archive holds as text",
            _INSPECT,
        ),
        Code(
            "runs-setstate",
            "info",
            "loading the program runs its own code that sets a state",
            _INSPECT,
        ),
        Code(
            "unused",
            "info",
            "parameters in the optimizer never had a gradient",
            _INSPECT,
        ),
        Code(
            "zero-gradient", "info", "parameters had gradients of zero only", _INSPECT
        ),
        Code(
            "sometimes-unused",
            "info",
            "step counters lag, so a gradient was missing sometimes",
            _INSPECT,
        ),
        Code(
            "resume-stops",
            "warning",
            "a strict load of the checkpoint stops at a missing key",
            _INSPECT,
        ),
        Code(
            "optimizer-order",
            "warning",
            "the optimizer got the parameters in another order than the model's",
            _INSPECT,
        ),
        Code(
            "cuda",
            "info",
            "tensors are saved on a GPU, and a bare torch.load puts them there",
            _INSPECT,
        ),
        Code(
            "device-in-code",
            "info",
            "the code of a program names a device as a constant",
            _INSPECT,
        ),
        Code(
            "device-mixed",
            "info",
            "tensors of one section are saved on several devices",
            _INSPECT,
        ),
        Code(
            "prefix", "warning", "names begin with the attribute of a wrapper", _INSPECT
        ),
        Code(
            "flat-parameters",
            "warning",
            "parameters lie in one flat tensor, without their names and shapes",
            ("inspect", "diff"),
        ),
        Code(
            "bloat",
            "warning",
            "storages hold more bytes than their tensors use",
            _INSPECT,
        ),
        Code("tied", "info", "tensors share their memory", _INSPECT),
        Code(
            "scaled",
            "info",
            "weights are codes, and tensors beside them scale them",
            ("inspect", "diff", "stats"),
        ),
        Code(
            "optimizer-heavy",
            "info",
            "the optimizer's state is larger than the model",
            _INSPECT,
        ),
        Code("ambiguous-name", "warning", "two paths have one name", _INSPECT),
        Code(
            "trailing-data",
            "warning",
            "the file holds bytes that no loader reads",
            _INSPECT,
        ),
        Code("container", "warning", "loaders read the archive differently", _INSPECT),
        Code("shards", "warning", "the index and the shards disagree", _INSPECT),
        Code(
            "extra-buffers",
            "info",
            (
                "tensors carry no weights: counters of a profiler, or what newer "
                "versions do not save"
            ),
            ("inspect", "diff"),
        ),
        Code(
            "adapter-names",
            "info",
            (
                "an adapter has the names of one program, which loaders of others do "
                "not know"
            ),
            _INSPECT,
        ),
        Code(
            "averages",
            "info",
            "averages of the weights (EMA) lie among the weights of a model",
            _INSPECT,
        ),
        Code(
            "no-index",
            "warning",
            "shards have no index, so some loaders do not find them",
            _INSPECT,
        ),
        Code(
            "unpacked",
            "warning",
            "an archive of torch.save was unpacked, and torch.load does not take that",
            _INSPECT,
        ),
        Code(
            "unassigned",
            "info",
            "shards hold tensors that the index does not assign to them",
            _INSPECT,
        ),
        Code(
            "dead-files",
            "warning",
            "files of a folder belong to nothing that it holds",
            _INSPECT,
        ),
        Code(
            "config-differs",
            "warning",
            "config.json says another shape than the weights beside it have",
            _INSPECT,
        ),
        Code(
            "unverified-size",
            "info",
            "the sizes of the tensors are recorded nowhere",
            _INSPECT,
        ),
        Code(
            "unread-file",
            "info",
            "a file of weights is beside the one that was read",
            _INSPECT,
        ),
        Code(
            "private", "warning", "values hold home paths, hosts or tokens", ("lint",)
        ),
        Code("hooks", "warning", "loading needs the code of hooks", ("lint",)),
        Code(
            "plain-tensor", "info", "tensors are plain attributes of modules", ("lint",)
        ),
        Code(
            "registered-twice",
            "info",
            "modules are registered under two names",
            ("lint",),
        ),
        Code(
            "list-modules",
            "warning",
            "modules lie in a plain list, where state_dict and DataParallel miss them",
            _INSPECT,
        ),
        Code("nan", "warning", "tensors hold NaN", ("diff", "stats", "lint")),
        Code("inf", "warning", "tensors hold Inf", ("diff", "stats", "lint")),
        Code(
            "dead-channels",
            "warning",
            "output channels are almost zero",
            ("stats", "lint"),
        ),
        Code(
            "frozen",
            "warning",
            "parameters stayed unchanged while others changed",
            _DIFF,
        ),
        Code(
            "changed-without-state",
            "warning",
            "a parameter changed, and the optimizer holds no state for it",
            _DIFF,
        ),
        Code(
            "step-skipped",
            "warning",
            "no parameter changed, or both files are at one step",
            _DIFF,
        ),
        Code(
            "buffers-in-frozen",
            "warning",
            "statistics changed in a module whose parameters stayed unchanged",
            _DIFF,
        ),
    )
}
"""All codes, the most serious first."""

LOST = ("incomplete", "overlap")
"""Codes that name tensors whose elements are not all there once."""


DOUBTS = ("damaged-file", "mixed-steps", "unverified-size")
"""Codes that each command says which writes or compares: the result or the figures may
be wrong, or lack something.
"""


class Way(NamedTuple):
    """A command that works on a file, ready to paste, or None with the reason why the
    first that was tried does not.

    `keeps` is `all` where the result holds all that the file does, `weights` where it
    holds a model's weights.
    """

    command: str | None
    keeps: Literal["all", "weights"] = "all"
    reason: str | None = None

    @property
    def text(self) -> str | None:
        """The command, with what it is for where that is not all of the file."""
        if self.command is None or self.keeps == "all":
            return self.command
        return f"for the weights alone: {self.command}"


Plan: TypeAlias = Callable[[tuple[str, ...]], Way]
"""Finds the command that works on one checkpoint and

`("weights",)` gets the weights out, `("plain",)` makes a file for weights_only, whole
or its weights alone, `("slim", "--exclude", GLOB, ...)` leaves tensors out,
`("smaller",)` leaves out what is beside the weights, `("rehome",)` moves to the CPU,
`("stripped", SECTION)` takes prefixes away from a section at least, `("rename",
"--sub", SUB, ...)` changes names, `("indexed",)` writes one file, or shards with an
index. `("completed",)` gives state to parameters of the optimizer that have none.
`("plain", FILE)` is about one file of a folder.
"""


class Finding(NamedTuple):
    """One finding: a code of the catalogue, the fact in one sentence, the command that
    helps.

    `consequence` says what follows from the fact, or what to do, in a sentence or two
    that fit one line. `tensors` are the names of the tensors it is about, `where` the
    places of values and objects.
    """

    code: str
    message: str
    tensors: tuple[str, ...] = ()
    hint: str | None = None
    where: tuple[str, ...] = ()
    raised: Level | None = None
    """The level, if the evidence is better than the catalogue assumes."""
    consequence: str | None = None

    def __repr__(self) -> str:
        return f"<ckpt.Finding {self.level} {self.code}: {show(self.message, 120)}>"

    def to_json(self) -> dict[str, Json]:
        """An entry of `findings[]`."""
        return {
            "code": self.code,
            "level": self.level,
            "message": self.message,
            "consequence": self.consequence,
            "tensors": list(self.tensors),
            "where": list(self.where),
            "hint": self.hint,
        }

    @property
    def level(self) -> Level:
        return self.raised or CATALOGUE[self.code].level


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with the most serious first: by level, then in the order of the
    catalogue.
    """
    rank = {code: index for index, code in enumerate(CATALOGUE)}
    return tuple(
        sorted(
            findings,
            key=lambda finding: (LEVELS.index(finding.level), rank[finding.code]),
        )
    )


class Rules(NamedTuple):
    """The findings that count: the codes in `select` (all when empty) and not in
    `ignore`, from `level` on.

    Without a `level` it is warning, and selected codes count at any level. Codes that
    are `named` elsewhere count at any level too, where they are selected.
    """

    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    level: Level | None = None
    named: frozenset[str] = frozenset()

    def without(self, codes: frozenset[str]) -> Rules:
        """Return the rules that ignore further codes."""
        return self._replace(ignore=self.ignore | codes) if codes else self

    def kept(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings that count, the most serious first."""
        most = LEVELS.index(self.level or "warning")
        return order(
            [
                finding
                for finding in findings
                if (not self.select or finding.code in self.select)
                and finding.code not in self.ignore
                and (
                    LEVELS.index(finding.level) <= most
                    or (self.level is None and finding.code in self.select)
                    or finding.code in self.named
                )
            ]
        )


LEVEL_WORDS: dict[str, tuple[Level, ...]] = {
    "error": LEVELS[:1],
    "warning": LEVELS[:2],
    "any": LEVELS,
}
"""Words of `--fail-on` -> the levels that they mean."""


class Gate(NamedTuple):
    """The options of the gate: `rules` say which findings count, `fails` on which of
    them the exit code is 1.
    """

    rules: Rules = Rules()
    fails: frozenset[str] = frozenset()

    def code(self, findings: Iterable[Finding]) -> int:
        """1 when a finding that counts is one of `fails`, or of one of its levels."""
        # A level of --fail-on stands for itself and the more serious ones.
        levels: set[Level] = set()
        for word in self.fails:
            levels.update(LEVEL_WORDS.get(word, ()))
        kept = self.rules.kept(findings)
        return int(
            any(
                finding.code in self.fails or finding.level in levels
                for finding in kept
            )
        )
