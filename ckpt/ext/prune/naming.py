"""The names of the saves of a run: the place that a name gives in its series, and the
metrics that it holds.

`epoch=3-val_loss=0.12.ckpt` is number 3 of the series `epoch=*-val_loss=#.ckpt`. A
number counts as a place only behind a word that says so: `resnet50.pth` and
`fold_2.pth` are no saves of one series.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from ckpt.formats.format import CHECKPOINTS
from ckpt.model.rows import NamedTuple

Place = tuple[tuple[str, float], ...]
"""The counts of a save in the order in which they decide, each with its kind:
`(("epoch", 3), ("step", 100))`.
"""

_EPOCHS = frozenset(("epoch", "epochs", "ep", "round"))
_STEPS = frozenset(
    (
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "checkpoint",
        "ckpt",
        "update",
        "updates",
    )
)
_LOWER = frozenset(
    (
        "loss",
        "error",
        "err",
        "perplexity",
        "ppl",
        "wer",
        "cer",
        "fid",
        "mse",
        "rmse",
        "mae",
        "nll",
        "bpb",
        "bpc",
    )
)
"""Words of metrics of which the lowest is the best."""
_HIGHER = frozenset(
    (
        "acc",
        "accuracy",
        "f1",
        "auc",
        "auroc",
        "iou",
        "miou",
        "map",
        "dice",
        "bleu",
        "rouge",
        "psnr",
        "ssim",
    )
) | frozenset(("recall", "precision", "reward", "fitness", "top1", "top5", "r2"))
"""Words of metrics of which the highest is the best."""
_IN_WORK = re.compile(
    r"(?i)(?:^|[._-])(?:tmp|temp|partial|part|incomplete|downloading)(?:[._-]|$)"
)
"""Names of what is being written."""
_CALLED = re.compile(r"(?i)(?:^|[^a-z])(?:best|last|latest|final)(?:[^a-z]|$)")
"""Words of saves that are kept apart from a series on purpose."""
_OF = re.compile(r"(?i)[0-9][-_ ]?of[-_ ]?[0-9]")
"""The names of shards: `1-of-4`."""
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MARKS = "=_-. :,/[](){}"
_LONGEST = 12
"""Digits of a count. What is longer is a time or a hash."""


class SaveName(NamedTuple):
    """The name of a file or folder, taken apart."""

    series: str
    """The name with `*` in the place of counts, as `*.**` for 1.10, and `#` in the
    place of metrics.
    """
    place: Place
    """Its place in the series; empty where no word says that a number counts."""
    metrics: tuple[tuple[str, float], ...]
    """The metrics in the name by their labels."""
    number: int | None = None
    """The only number of the name, where no word says what it counts."""

    def metric(self, name: str) -> float | None:
        """The value of a metric in the name, or None."""
        for label, value in self.metrics:
            if label == name or label == name.rpartition(".")[2]:
                return value
        return None


def parse_name(name: str, wanted: Collection[str] = ()) -> SaveName:
    """Take the name of a file or folder apart. `wanted` are the names of metrics that
    somebody asks for.
    """
    stem, ending = split_ending(name)
    # A metric may be asked for by its path inside: its last step stands in names.
    wanted_labels = {
        label for text in wanted for label in (text, text.rpartition(".")[2])
    }
    series: list[str] = []
    """The parts of the name, with `*` and `#` in the place of numbers."""
    counts: list[tuple[str, float]] = []
    metrics: list[tuple[str, float]] = []
    # Numbers without a word, and the place of each in the parts of the name.
    others: list[tuple[str, int]] = []
    begin = 0
    for match in _NUMBER.finditer(stem):
        # The words between the last number and this one.
        before = stem[begin : match.start()]
        label = before.strip(_MARKS)
        text = match[0]
        kind = _kind_of_count(label, text, stem[match.end() :])
        if kind is not None:
            counts.append((kind, float(text)))
            series += [before, _series_part(text)]
        elif _is_metric(label, before, wanted_labels):
            if _is_negative(before):
                before, text = before[:-1], f"-{text}"
            metrics.append((label, float(text)))
            series += [before, "#"]
        else:
            # The 2 of `w2v_4` is a letter of the word.
            is_in_word = before[-1:].isalpha() and stem[match.end() :][:1].isalpha()
            if not is_in_word:
                others.append((text, len(series) + 1))
            series += [before, text]
        begin = match.end()
    series.append(stem[begin:])
    # Epochs come first wherever they stand; the order within a kind stays.
    counts.sort(key=lambda count: count[0] != "epoch")
    number = None
    # One number without a word may count, if the save itself records that count.
    is_alone = not counts and len(others) == 1
    if is_alone:
        text, place = others[0]
        if text.isdecimal() and len(text) <= _LONGEST:
            number = int(text)
            series[place] = "*"
    return SaveName("".join(series) + ending, tuple(counts), tuple(metrics), number)


def split_ending(name: str) -> tuple[str, str]:
    """A name without its ending, and the ending: `.pth.tar` is one, the digits behind
    the point of a number are none.
    """
    # The longer endings come first: `.tar` alone would leave `.pth` in the name.
    for ending in (".pth.tar", ".tar.gz", *CHECKPOINTS):
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)], name[-len(ending) :]
    stem, ending = os.path.splitext(name)
    # `epoch=1.5` has no ending: the digits belong to the number.
    if ending[1:].isdecimal() or not ending[1:].isalnum():
        return name, ""
    return stem, ending


def is_in_work(name: str) -> bool:
    """Tell whether a name is one of what a program is still writing:
    `tmp-checkpoint-500`, `epoch_3.pth.tmp`.
    """
    return _IN_WORK.search(name) is not None


def is_called(name: str) -> bool:
    """Tell whether a name says that it is the best or the last: `best.pth`,
    `last-v1.ckpt`, `best_epoch_3.pth`.
    """
    return _CALLED.search(split_ending(name)[0]) is not None


def is_one_of_several(name: str) -> bool:
    """Tell whether a name says that it is one of several parts:
    `checkpoint-1-of-4.pt`.
    """
    return _OF.search(name) is not None


def metric_direction(label: str) -> str | None:
    """Return `min` or `max` for the name of a metric, or None where its words do not
    say it, or say both.
    """
    plain = label.lower().replace("_", " ").replace("@", " ")
    words = set(re.findall(r"[a-z]+[0-9]*", plain))
    is_lower = not words.isdisjoint(_LOWER)
    is_higher = not words.isdisjoint(_HIGHER)
    # `loss_accuracy` says both, `score` says neither.
    if is_lower == is_higher:
        return None
    return "min" if is_lower else "max"


def _is_metric(label: str, before: str, wanted: Collection[str]) -> bool:
    """Tell whether the number behind a label is the value of a metric, and no part of
    its name, such as the 1 of `top1`.
    """
    if not label or before[-1] not in _MARKS:
        return False
    return label in wanted or metric_direction(label) is not None


def _series_part(text: str) -> str:
    """Return what the series has in the place of a count: a star, and behind a point
    one for each digit.

    Whether 1.10 comes behind 1.9 or before it, nobody can tell; among numbers with one
    length both orders are the same.
    """
    _, point, digits = text.partition(".")
    return f"*{point}{'*' * len(digits)}"


def _kind_of_count(label: str, text: str, after: str) -> str | None:
    """Return the kind of a count, by the word before the number, or None for another
    number, such as the 7 of `ckpt_7b`.
    """
    # An exponent stands in metrics, never in counts.
    if len(text) > _LONGEST or "e" in text.lower():
        return None
    word_after = re.match(r"[A-Za-z]+", after)
    # A unit, or a part of a word: `7b`, `2nd`.
    if word_after is not None and word_after[0].lower() not in _EPOCHS | _STEPS:
        return None
    # The last word before the number: `model_epoch_` is an epoch.
    word = re.split(r"[^A-Za-z]+", label.lower())[-1]
    if word in _EPOCHS:
        return "epoch"
    return "step" if word in _STEPS else None


def _is_negative(before: str) -> bool:
    """Tell whether the dash before a number is its sign: `loss=-0.5`, `loss--0.5`."""
    return before.endswith(("=-", "--", "_-", " -"))
