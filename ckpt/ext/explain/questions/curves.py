"""The course of a run as its checkpoint records it: lists of losses, metrics and rates,
and logs with a row for each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.questions.inputs import of_values
from ckpt.ext.explain.questions.measures import of_best
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of
from ckpt.tree.view import View, look

_LEAST = 3
"""Numbers that make a course: two of them may be a range, or betas."""
_MOST_NUMBERS = 1_000_000
_DEEPEST = 6
_SHOWN = 5
_FALLS = re.compile(
    r"loss(?:es)?|err(?:or)?s?|ppl|perplexity|[wc]er|fid|r?mse|mae|nll|eer|bpc|bpb"
)
"""Words of a number that falls as a model gets better."""
_RISES = re.compile(
    r"acc(?:urac(?:y|ies)|s)?\d?|m?ap\d{0,3}|m?iou|dice|f1|auc|auroc|bleu|rouge|psnr"
    r"|ssim|rewards?|returns?|scores?|recall|precision|prec\d?|fitness|top\d|r2"
)
"""Words of a number that rises as a model gets better."""
_GRADIENT = re.compile(r"grads?|gradients?|gnorm")
_OF_VALIDATION = re.compile(r"val|valid|validation|eval|test|dev")
_OTHER_PARTS = re.compile(r"(?i)optim|param_groups|scheduler|rng|random_state")
"""Keys below which no program keeps the course of a run."""
_WORD = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+")
"""A word of a key: `valLoss`, `val_loss` and `val/loss` have two."""


def _words_of(name: str) -> list[str]:
    """The words of a name, in small letters."""
    return [word.lower() for word in _WORD.findall(name)]


def is_lower_better(name: str) -> bool | None:
    """Say of what a name measures whether a lower number is a better one, or None where
    no word of it says that.
    """
    # The last word says what was measured: `accuracy_loss` is a loss.
    for word in reversed(_words_of(name)):
        if _FALLS.fullmatch(word):
            return True
        if _RISES.fullmatch(word):
            return False
    return None


class Curve(NamedTuple):
    """The numbers of one thing that a run measured again and again, in their order.

    `places` are the steps or epochs at which it did, or none where the file has the
    numbers alone; `unit` says which of both they are.
    """

    name: str
    numbers: tuple[float, ...]
    places: tuple[float, ...] = ()
    unit: str = ""

    @property
    def words(self) -> list[str]:
        """The words of its name, in small letters."""
        return _words_of(self.name)

    @property
    def falls(self) -> bool | None:
        """Say whether a lower number is a better one, or None where no word says it."""
        return is_lower_better(self.name)

    @property
    def is_of_validation(self) -> bool:
        """Tell whether it was measured on data that the run did not learn from."""
        return any(_OF_VALIDATION.fullmatch(word) for word in self.words)

    @property
    def is_of_gradients(self) -> bool:
        """Tell whether it is the norm of the gradients."""
        return any(_GRADIENT.fullmatch(word) for word in self.words)

    @property
    def best(self) -> int:
        """The index of the best number, or of the highest where no word says it."""
        numbers = self.numbers
        choose = min if self.falls else max
        return choose(range(len(numbers)), key=numbers.__getitem__)

    def place_text(self, index: int) -> str:
        """The place of a number in words: `step 200`, `number 6 of 7`."""
        if self.places:
            return f"{self.unit} {self.places[index]:g}"
        return f"number {index + 1:,} of {len(self.numbers):,}"


# --- where a file has them ------------------------------------------------------------


def find_curves(case: Case) -> list[Curve]:
    """Find the lists of numbers of a file, of which some are the course of its run."""
    found: list[Curve] = []
    todo: list[tuple[str, Node, int]] = [("", case.survey.checkpoint.root, 0)]
    # A part that stands at several places is read once, as a pickle writes it once.
    seen: set[int] = set()
    while todo:
        name, node, depth = todo.pop()
        if depth > _DEEPEST or id(node) in seen:
            continue
        view = look(node)
        if view.kind not in ("sequence", "mapping"):
            continue
        seen.add(id(node))
        if view.kind == "sequence":
            found += _curves_of(name, view) if name else ()
            continue
        for key, child in reversed(children_of(node)):
            if not isinstance(key, str) or _OTHER_PARTS.search(key):
                continue
            inner = f"{name}.{key}" if name else key
            todo.append((inner, child, depth + 1))
    return found


def _curves_of(name: str, view: View) -> Iterator[Curve]:
    """The course in a list of numbers, or those in a list with a row for each step."""
    rows = view.children
    if not _LEAST <= len(rows) <= _MOST_NUMBERS:
        # A log may have two rows, one for each evaluation.
        if len(rows) != 2 or look(rows[0]).kind != "mapping":
            return
    if look(rows[0]).kind == "mapping":
        yield from _curves_of_log(rows)
        return
    numbers = [_number_of(row) for row in rows]
    told = tuple(number for number in numbers if number is not None)
    if len(told) == len(numbers):
        yield Curve(name, told)


def _curves_of_log(rows: Sequence[Node]) -> Iterator[Curve]:
    """The courses in a log: each of its rows has a step or an epoch, and numbers."""
    series: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        if look(row).kind != "mapping":
            return
        held = {
            key: number
            for key, child in children_of(row)
            if isinstance(key, str) and (number := _number_of(child)) is not None
        }
        unit = _unit_of(held)
        for key, number in held.items():
            if key in _UNITS:
                continue
            numbers, places = series.setdefault((key, unit), ([], []))
            numbers.append(number)
            if unit:
                places.append(held[unit])
    for (key, unit), (numbers, places) in series.items():
        if len(numbers) > 1:
            yield Curve(key, tuple(numbers), tuple(places), unit.replace("_", " "))


_UNITS = ("step", "global_step", "iter", "iteration", "epoch")
"""Keys for the place of a row in a log, the finest one first."""


def _unit_of(held: Mapping[str, float]) -> str:
    """The key of a row that says where it stands, or an empty text."""
    for unit in _UNITS:
        if unit in held:
            return unit
    return ""


def _number_of(node: Node) -> float | None:
    """The finite number that a node is, or None."""
    view = look(node)
    value = view.value
    if view.kind != "scalar" or type(value) not in (int, float):
        return None
    assert isinstance(value, (int, float))
    # A loss may be NaN or infinite, and neither has a place in an order.
    return float(value) if -1e300 < value < 1e300 else None


# --- what they say --------------------------------------------------------------------

ASKS_OF_COURSE = (
    r"\b(?:over|under) ?-?fit\w{0,4}\b|\bconverg\w{1,4}\b|\bdiverg\w{1,4}\b"
    r"|\bplateau\w{0,3}\b|\bstill (?:improv|learn|gett)\w{1,4}\b"
    r"|\b(?:it|loss|model) improved?\b"
    r"|\b(?:loss|training|learning|accuracy|metric)s? (?:curves?|histor(?:y|ies)"
    r"|logs?|progress)\b|\bhistory of\b"
    r"|\b(?:which|what|at what) (?:epoch|step|iteration)\b[^\n]{0,60}\b(?:best|lowest"
    r"|highest|peak\w{0,2}|minimum|maximum)\b|\bhow (?:did|was|is) (?:the |my )?"
    r"(?:training|run|loss)\b|\bdid (?:the |my )?training (?:go|work)\b"
    r"|\b(?:training|run) (?:is |was |has )?(?:success\w{0,5}|go(?:ne)? well"
    r"|work\w{0,2})\b|损失"
    r"|\bwhen\b[^\n]{0,40}\b(?:loss|accuracy|best)\b"
    r"|\b(?:val\w{0,7}|eval\w{0,6}|test|train\w{0,3})[ _-](?:loss(?:es)?|acc\w{0,8}"
    r"|scores?|metrics?|error)\b|\b(?:was|is|did) the (?:final |last )?loss\b"
    r"|\btrain\w{0,3} (?:for )?(?:longer|enough|too (?:long|much|little))\b|过拟合|收敛"
)
"""Words of a question for the course of a run."""
_GOES_ON = re.compile(
    r"(?i)\b(?:resum\w{1,4}|restor\w{1,4}|re-?start\w{0,3}|(?:re-?)?load\w{0,3}"
    r"|continu\w{1,4})\b"
)


_COMPLAINS = re.compile(
    r"(?i)\b(?:loss|accuracy|reward|score)\b[^\n]{0,40}(?:\b(?:not|never|no|stuck|stays?"
    r"|stopped|flat|constant)\b|n'?t\b)[^\n]{0,40}\b(?:go\w{0,3}|decreas\w{1,3}|fall\w{0,3}"
    r"|drop\w{0,4}|chang\w{1,3}|improv\w{1,3}|converg\w{1,3}|increas\w{1,3}|down|at|same)"
    r"|\b(?:loss|losses|accuracy) (?:curve|over)\b"
)
"""Words of a text that says the numbers of a run do not get better."""


def complains_of_course(text: str) -> bool:
    """Tell whether a text says that the numbers of a run do not get better."""
    return _COMPLAINS.search(text) is not None


def of_course(text: str, case: Case) -> Iterator[Statement]:
    """Say how the numbers of a run went: the best of each and its place, the last, and
    whether both kinds of data speak of overfitting.
    """
    # A loss that is another one after a load is no matter of the course before it.
    if _GOES_ON.search(text) is not None:
        return
    curves = [row for row in find_curves(case) if row.falls is not None]
    if not curves:
        yield Statement(
            "This file has no list of losses or metrics and no log, so it does not say "
            "how the run went: the log of the run does, or several of its saves, one "
            "after the other."
        )
        yield from of_best(text, case)
        return
    # Sorting keeps the order of the file within both kinds.
    curves.sort(key=lambda curve: not curve.is_of_validation)
    for curve in curves[:_SHOWN]:
        yield Statement(_course_text(curve))
    if len(curves) > _SHOWN:
        rest = [show(curve.name, 40) for curve in curves[_SHOWN:]]
        yield Statement(f"It records {and_more(rest, 6)} too.")
    yield from _judge(curves)


def _course_text(curve: Curve) -> str:
    """The best and the last number of a course in words."""
    numbers = curve.numbers
    best = curve.best
    word = "lowest" if curve.falls else "highest"
    begin = f"{show(curve.name, 80)} has {counted_noun(len(numbers), 'number')}"
    if best == len(numbers) - 1:
        return (
            f"{begin}, from {numbers[0]:g} to {numbers[-1]:g}. The last is the {word} "
            f"({curve.place_text(best)})."
        )
    return (
        f"{begin}, from {numbers[0]:g} to {numbers[-1]:g}. The {word} is "
        f"{numbers[best]:g}, at {curve.place_text(best)}; the last is at "
        f"{curve.place_text(len(numbers) - 1)}."
    )


def _judge(curves: Sequence[Curve]) -> Iterator[Statement]:
    """Say what the numbers of both kinds of data have to say together."""
    validated = [curve for curve in curves if curve.is_of_validation]
    learnt = [curve for curve in curves if curve.falls and not curve.is_of_validation]
    if not validated:
        yield Statement(
            "All of it may be of the data that the run learnt from. Overfitting shows "
            "in numbers of other data alone, and this file records none."
        )
        return
    # A loss is finer than an accuracy: it falls on where the accuracy stays.
    judged = next((curve for curve in validated if curve.falls), validated[0])
    name = show(judged.name, 60)
    if judged.best == len(judged.numbers) - 1:
        yield Statement(
            f"{name} was at its best at the end, so nothing here speaks of "
            "overfitting, and a longer run may get better."
        )
        return
    after = len(judged.numbers) - 1 - judged.best
    chance = " One number after the best may be chance." if after == 1 else ""
    best = judged.place_text(judged.best)
    falling = [curve for curve in learnt if _falls_after(curve, judged)]
    if falling:
        yield Statement(
            f"{name} was no better after {best}, while {show(falling[0].name, 60)} "
            "still fell: what the run learnt from its own data did not help with other "
            f"data, which is overfitting.{chance} A save of that time, if there is "
            "one, has the better weights."
        )
        return
    yield Statement(
        f"{name} was no better after {best}.{chance} A save of that time, if there is "
        "one, has the better weights by this number."
    )


def _falls_after(curve: Curve, judged: Curve) -> bool:
    """Tell whether a loss of the training fell on after the best number of another
    course.
    """
    if judged.places and curve.unit == judged.unit:
        place = judged.places[judged.best]
        before = [
            number
            for number, own in zip(curve.numbers, curve.places, strict=True)
            if own <= place
        ]
    elif len(curve.numbers) == len(judged.numbers):
        before = list(curve.numbers[: judged.best + 1])
    else:
        return False
    return bool(before) and curve.numbers[-1] < before[-1]


# --- gradients ------------------------------------------------------------------------

ASKS_OF_GRADIENTS = (
    r"\bgradients?\b[^\n]{0,40}\b(?:explo\w{1,4}|vanish\w{0,3}|norms?|clip\w{0,4}"
    r"|large|huge|small|stable|spik\w{1,3})\b|\b(?:explo\w{1,4}|vanish\w{1,3}"
    r"|norms? of the)\b[^\n]{0,40}\bgradients?\b|\bgrad_?norms?\b|梯度(?:爆炸|消失)"
)
"""Words of a question for the size of gradients."""


def of_gradients(text: str, case: Case) -> Iterator[Statement]:
    """Say which norms of gradients a run recorded, and whether values overflowed."""
    curves = [row for row in find_curves(case) if row.is_of_gradients]
    for curve in curves[:_SHOWN]:
        numbers = curve.numbers
        most = max(range(len(numbers)), key=numbers.__getitem__)
        yield Statement(
            f"{show(curve.name, 80)} has {counted_noun(len(numbers), 'number')}. The "
            f"highest is {numbers[most]:g}, at {curve.place_text(most)}, and the "
            f"middle one {sorted(numbers)[len(numbers) // 2]:g}."
        )
    if not curves:
        yield Statement(
            "This file records no norms of gradients: torch saves none with a model. "
            "Gradients that exploded show in weights that are NaN or infinite."
        )
    yield from of_values(text, case)
