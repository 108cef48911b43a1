"""The catalogue of findings: code, level, what it means. Each finding is made by the room that knows it.

Codes are a contract: `--fail-on` takes them, JSON carries them, docs/findings.md explains them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ckpt.text import Json

Level = Literal["error", "warning", "info"]


class Code(NamedTuple):
    """An entry of the catalogue. `by` are the commands that make it, empty while none does."""

    code: str
    level: Level
    title: str
    by: tuple[str, ...] = ()


_INSPECT = ("inspect",)
_DIFF = ("diff",)

CATALOGUE: dict[str, Code] = {
    row.code: row
    for row in (
        Code("called-on-load", "error", "loading the file calls something that is not known", _INSPECT),
        Code("unknown-import", "warning", "loading the file imports something that is not known", _INSPECT),
        Code("weights-only", "warning", "torch.load(weights_only=True) refuses the file", _INSPECT),
        Code("unused", "info", "in the optimizer, never had a gradient", _INSPECT),
        Code("sometimes-unused", "info", "the step counter lags: sometimes no gradient", _INSPECT),
        Code("cuda", "info", "tensors are saved on a GPU, and a bare torch.load puts them there", _INSPECT),
        Code("device-mixed", "info", "tensors of one section are saved on several devices", _INSPECT),
        Code("prefix", "warning", "names begin with the attribute of a wrapper", _INSPECT),
        Code("bloat", "warning", "storages hold more bytes than their tensors show", _INSPECT),
        Code("tied", "info", "tensors share their memory, range for range", _INSPECT),
        Code("optimizer-heavy", "info", "the optimizer's state outweighs the model", _INSPECT),
        Code("ambiguous-name", "warning", "two paths read as one name", _INSPECT),
        Code("trailing-data", "warning", "bytes that no loader looks at", _INSPECT),
        Code(
            "container", "warning", "the archive is unusual in a way that loaders treat differently", _INSPECT
        ),
        Code("shards", "warning", "the index and the shards disagree", _INSPECT),
        Code("private", "warning", "home paths, hosts or tokens in values", ("lint",)),
        Code("hooks", "warning", "hooks whose code loading needs", ("lint",)),
        Code("plain-tensor", "info", "tensors that are plain attributes of modules", ("lint",)),
        Code("registered-twice", "info", "modules that are registered under two names", ("lint",)),
        Code(
            "list-modules",
            "warning",
            "modules in a plain list, which state_dict and DataParallel miss",
            _INSPECT,
        ),
        Code("dtype", "warning", "a dtype that differs"),
        Code("shape", "warning", "a shape that differs"),
        Code("changed", "info", "a tensor that changed"),
        Code("nan", "warning", "NaN in values", ("diff", "stats", "lint")),
        Code("inf", "warning", "Inf in values", ("diff", "stats", "lint")),
        Code("dead-channels", "warning", "output channels that are all but zero", ("stats", "lint")),
        Code("frozen", "warning", "parameters that did not move", _DIFF),
        Code(
            "changed-without-state",
            "warning",
            "a parameter moved that the optimizer holds no state for",
            _DIFF,
        ),
        Code("step-skipped", "warning", "nothing moved: the optimizer did not step", _DIFF),
        Code(
            "buffers-in-frozen", "warning", "statistics move in a module whose parameters are frozen", _DIFF
        ),
        Code("ranks-differ", "error", "ranks hold values that should be equal", _DIFF),
    )
}
"""All codes, the most serious first. Those without a command are kept for the commands to come."""


class Finding(NamedTuple):
    """One finding: a code of the catalogue, one sentence, the command that helps.

    `tensors` are the names of the tensors it is about, `where` the places of values and objects.
    """

    code: str
    message: str
    tensors: tuple[str, ...] = ()
    hint: str | None = None
    where: tuple[str, ...] = ()
    raised: Level | None = None
    """The level, where the evidence is better than that of the catalogue."""

    def to_json(self) -> dict[str, Json]:
        """An entry of `findings[]`."""
        return {
            "code": self.code,
            "level": self.level,
            "message": self.message,
            "tensors": list(self.tensors),
            "where": list(self.where),
            "hint": self.hint,
        }

    @property
    def level(self) -> Level:
        return self.raised or CATALOGUE[self.code].level


def order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings in the order of the catalogue: the most serious first."""
    rank = {code: index for index, code in enumerate(CATALOGUE)}
    return tuple(sorted(findings, key=lambda finding: rank[finding.code]))
