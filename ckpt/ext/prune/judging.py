"""Judging one save: is it whole, what does it count, and which metrics does it record.
Nothing of it is run or written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from typing import Literal

from ckpt.commands.ls.ls import counters_of
from ckpt.commands.verify.api import verify
from ckpt.evidence.survey import Survey
from ckpt.ext.prune.finding import TRAINER, Candidate, best_of_trainer, trainer_state
from ckpt.ext.prune.identity import Identity, identity_of
from ckpt.formats.format import has_checkpoint_name
from ckpt.model.errors import (
    CkptError,
    FolderError,
    LimitError,
    LinkError,
    MixedStepsError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show
from ckpt.surface.api.handle import read
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.walk import found
from ckpt.tree.find import children_of, counter, find_nodes, node_at
from ckpt.tree.view import look

State = Literal["whole", "damaged", "unfinished", "unread"]
_UNREAD = (NotOpenedError, LinkError, MixedStepsError)
"""Errors that say nothing of damage."""
_BEST = ("best_model_path",)
"""Keys under which a callback of Lightning keeps the path of the best save."""


class Judged(NamedTuple):
    """A save, and what it says of itself."""

    candidate: Candidate
    state: State
    why: str | None = None
    """The reason why it is not whole."""
    epoch: float | None = None
    step: float | None = None
    """The highest counters that it records."""
    metrics: tuple[tuple[str, float], ...] = ()
    """The metrics that were asked for, and that it records inside or beside."""
    names: tuple[str, ...] = ()
    """Names under which it records numbers that may be metrics."""
    best: tuple[str, ...] = ()
    """Names of saves that it calls the best."""
    has_trainer: bool = False
    """True for a folder with the file that the Trainer writes last."""
    is_save: bool = True
    """False for a folder without a file of weights, such as one of pictures."""
    others: int = 0
    """The files of a folder that is no one checkpoint, beside the checkpoints in it."""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def is_whole(self) -> bool:
        return self.state == "whole"

    @property
    def identity(self) -> Identity:
        """The identity that it had when it was judged."""
        assert self.candidate.identity is not None
        return self.candidate.identity

    def metric(self, name: str) -> float | None:
        """The value of a metric inside of it or beside it, or None."""
        return dict(self.metrics).get(name)


def judge(
    candidate: Candidate, wanted: Sequence[str], limits: Limits, plugins: bool
) -> Judged:
    """Read one save. Raises nothing that its content causes."""
    path = candidate.path
    judged = Judged(candidate, "whole")
    # Nothing of a save may end the command: it stays then, with the reason.
    try:
        with about(path), read(path, limits, plugins=plugins) as checkpoint:
            survey = Survey(checkpoint)
            counts = list(counters_of(checkpoint))
            judged = judged._replace(
                epoch=_highest(counts, "epoch"),
                step=_highest(counts, "step"),
                metrics=tuple(_metrics(survey, wanted, limits)),
                names=tuple(_numbers(survey)),
                best=tuple(_best_paths(survey)),
            )
            lack = checkpoint.account.first_lack
            # A set that says itself that it is not finished is no damage.
            unfinished = checkpoint.account.messages(("unfinished",))
            if unfinished:
                judged = judged._replace(state="unfinished", why=unfinished[0])
            elif lack is not None:
                judged = judged._replace(state="damaged", why=lack)
            # A change while it was read makes all of this void.
            checkpoint.check_unchanged()
    except FolderError:
        judged = _judge_files(judged, limits, plugins)
    except UnsupportedError as error:
        if _is_folder(candidate):
            judged = _judge_files(judged, limits, plugins)
        else:
            judged = _failed(judged, error)
    except CkptError as error:
        judged = _failed(judged, error)
    if _is_folder(candidate):
        judged = _with_trainer(judged, wanted, limits)
    return _if_unchanged(judged)


def _is_folder(candidate: Candidate) -> bool:
    return candidate.identity is not None and candidate.identity.is_folder


def _failed(judged: Judged, error: CkptError) -> Judged:
    """Return the judgement on a save that cannot be read. Only what its bytes show is
    damage.
    """
    is_damage = isinstance(error, UnreadableError) and not isinstance(error, _UNREAD)
    state: State = "damaged" if is_damage else "unread"
    return judged._replace(
        state=state,
        why=error.said_of(judged.candidate.path, hint=isinstance(error, LimitError)),
    )


def _judge_files(judged: Judged, limits: Limits, plugins: bool) -> Judged:
    """Judge a folder that is no one checkpoint by the checkpoints in it: it is whole
    where all of them are.
    """
    path = judged.candidate.path
    count = others = 0
    for item in found([path], plugins=plugins):
        if item.is_other:
            others += 1
            continue
        label = show(os.path.relpath(item.path, path), 80)
        # A file that cannot be opened may be the one that matters.
        if item.error is not None:
            return judged._replace(state="unread", why=f"{label}: {item.error.problem}")
        if item.skipped is not None:
            return judged._replace(
                state="unread", why=f"{label} was not looked at: {item.skipped}"
            )
        try:
            with read(item.path, limits, plugins=plugins) as checkpoint:
                lack = checkpoint.account.first_lack
        # A file of a kind that ckpt does not read is none of the weights.
        except UnsupportedError:
            others += 1
            continue
        except CkptError as error:
            failed = _failed(judged, error)
            return failed._replace(why=f"{label}: {error.problem}")
        if lack is not None:
            return judged._replace(state="damaged", why=f"{label}: {lack}")
        # A pickle of results is no save.
        is_save = os.path.isdir(item.path) or has_checkpoint_name(item.path)
        count += is_save
        others += not is_save
    # A folder without weights may be results of a step: it is no save at all.
    if not count:
        if judged.identity.members:
            return judged._replace(
                state="unread",
                why="no file of weights lies in this folder",
                is_save=False,
            )
        return judged._replace(state="unfinished", why="an empty folder")
    return judged._replace(others=others)


def _highest(
    counts: Sequence[tuple[str, float]], what: Literal["epoch", "step"]
) -> float | None:
    """The largest counter of epochs or of steps, or None."""
    is_epoch = what == "epoch"
    values = [
        value
        for name, value in counts
        # Counters are named in many ways; a name without `epoch` counts steps.
        if value >= 0 and ("epoch" in name.rpartition(".")[2]) == is_epoch
    ]
    return max(values, default=None)


def _metrics(
    survey: Survey, wanted: Sequence[str], limits: Limits
) -> list[tuple[str, float]]:
    """The metrics that a checkpoint records under these names, or under one path that
    ends with the name.
    """
    metrics: list[tuple[str, float]] = []
    checkpoint = survey.checkpoint
    for name in wanted:
        roots: list[Node] = [checkpoint.root]
        if checkpoint.beside is not None:
            roots.append(checkpoint.beside)
        # The whole path first, then its last step anywhere among values, tensors with
        # one element, and the callbacks of Lightning. The first kind that has it
        # counts.
        nodes: list[Node] = []
        for root in roots:
            nodes += [node for _, node in find_nodes(root, name, limits)]
        if not nodes:
            nodes = [
                value.node
                for value in checkpoint.values
                if value.path and value.path[-1] == name
            ]
        if not nodes:
            nodes = [
                entry.tensor
                for entry in checkpoint.tensors
                if entry.path and entry.path[-1] == name
            ]
        if not nodes:
            nodes = _monitored(survey, name)
        numbers = [number for number in map(_number, nodes) if number is not None]
        texts = {repr(number) for number in numbers}
        # Two different values under one name contradict each other: neither counts.
        if len(texts) == 1 and len(numbers) == len(nodes):
            metrics.append((name, numbers[0]))
    return metrics


def _monitored(survey: Survey, name: str) -> list[Node]:
    """The scores of the callbacks of Lightning that monitor this name, as they were
    when the checkpoint was saved.
    """
    checkpoint = survey.checkpoint
    nodes: list[Node] = []
    for value in checkpoint.values:
        if value.path and value.path[-1] == "monitor" and value.node == name:
            callback = node_at(checkpoint.root, value.path[:-1])
            nodes += [
                node for key, node in children_of(callback) if key == "current_score"
            ]
    return nodes


def _number(node: Node) -> float | None:
    """The value of a metric: a number, NaN and infinity too, or a tensor with one
    element.
    """
    if tensor_of(node) is not None:
        return counter(node)
    return _float_of(look(node).value if node is not None else None)


def _float_of(value: object) -> float | None:
    """The float of a number, or None for anything else and for an int that no float
    holds.
    """
    if type(value) not in (int, float):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None


def _count_of(value: object, otherwise: float | None) -> float | None:
    """The float of a number that counts something; for any other value what is known
    otherwise.
    """
    # NaN and infinity count nothing.
    number = _float_of(value)
    return number if number is not None and 0 <= number < inf else otherwise


def _numbers(survey: Survey) -> list[str]:
    """Names of numbers near the root, for whoever mistypes a metric."""
    names = []
    for value in survey.checkpoint.values:
        # Deep in the tree stand settings, by the thousand.
        if len(value.path) <= _NEAR and type(value.node) in (int, float):
            names.append(value.name)
        elif value.path and value.path[-1] == "monitor" and type(value.node) is str:
            names.append(value.node)
    return names[:_MOST_NAMES]


_NEAR = 2
"""Steps from the root to a number that may be a metric."""
_MOST_NAMES = 40
"""Names that are kept for a hint."""


def _best_paths(survey: Survey) -> list[str]:
    """Names of the saves that a callback calls the best."""
    names = []
    for value in survey.checkpoint.values:
        is_best = bool(value.path) and value.path[-1] in _BEST
        # Lightning has an empty text until there is a best one.
        if is_best and type(value.node) is str and value.node:
            names.append(value.node.replace("\\", "/").rstrip("/").rpartition("/")[2])
    return names


def _with_trainer(judged: Judged, wanted: Sequence[str], limits: Limits) -> Judged:
    """Add what `trainer_state.json` in a folder records: counters, the best save,
    metrics of its own step.
    """
    path = judged.candidate.path
    document = trainer_state(path, limits)
    if document is None:
        # A file that is there counts even if it cannot be read.
        return judged._replace(has_trainer=os.path.lexists(os.path.join(path, TRAINER)))
    best = best_of_trainer(path, limits)
    step, epoch = document.get("global_step"), document.get("epoch")
    history = document.get("log_history")
    known = dict(judged.metrics)
    names: list[str] = []
    for row in history if isinstance(history, list) else ():
        # The history has all steps; the save was made at this one.
        if not isinstance(row, dict) or row.get("step") != step:
            continue
        names += [key for key, value in row.items() if type(value) in (int, float)]
        for name in wanted:
            number = _float_of(row.get(name))
            if number is not None:
                known[name] = number
    return judged._replace(
        has_trainer=True,
        step=_count_of(step, judged.step),
        epoch=_count_of(epoch, judged.epoch),
        metrics=tuple(known.items()),
        names=(*names[:_MOST_NAMES], *judged.names),
        best=judged.best if best is None else (*judged.best, best),
    )


def _if_unchanged(judged: Judged) -> Judged:
    """The judgement, unless the save changed while it was read."""
    # The judgement holds for what was there when it was listed.
    try:
        is_same = identity_of(judged.candidate.path) == judged.identity
    except (OSError, CkptError):
        is_same = False
    if is_same:
        return judged
    return judged._replace(
        state="unread", why="it changed while it was read: a run writes it now"
    )


def check_bytes(
    judged: Judged, limits: Limits, plugins: bool, progress: Progress | None
) -> Judged:
    """Read all bytes of a whole save, and compare them with the checksums that are
    recorded.
    """
    path = judged.candidate.path
    paths = [path]
    # A folder that is no one checkpoint is checked file by file.
    if _is_folder(judged.candidate) and not _is_one(path, limits, plugins):
        items = found([path], plugins=plugins)
        paths = [
            item.path for item in items if not item.is_other and item.skipped is None
        ]
    for inner in paths:
        report = verify(inner, limits=limits, plugins=plugins, progress=progress)
        if report.verdict == "intact":
            continue
        # Files that ckpt does not read have no checksum to compare.
        passed_over = (UnsupportedError.code, FolderError.code)
        if report.error is not None and report.error.code in passed_over:
            continue
        why = report.problems[0].what if report.problems else str(report.error)
        label = "" if inner == path else f"{show(os.path.relpath(inner, path), 80)}: "
        return judged._replace(state="damaged", why=f"{label}{why}")
    return _if_unchanged(judged)


def _is_one(path: str, limits: Limits, plugins: bool) -> bool:
    """Tell whether a folder opens as one checkpoint."""
    try:
        read(path, limits, plugins=plugins).close()
    except CkptError:
        return False
    return True
