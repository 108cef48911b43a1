"""The rules: which saves of a run stay and why, and which may go. Whatever is in doubt
stays.

Nothing here reads a file. Each series has the rules for itself; saves of other series
with the same counts, such as the discriminator beside the generator, stay together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, isnan
from typing import Literal

from ckpt.ext.prune.judging import Judged
from ckpt.ext.prune.naming import Place, metric_direction
from ckpt.model.errors import UsageError
from ckpt.model.names import nearest_names
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show

Direction = Literal["min", "max"]
_FRESH = 600
"""Seconds in which a damaged save may still be one that is being written."""


class Best(NamedTuple):
    """A metric, and which of its values is the best."""

    name: str
    direction: Direction


class Rules(NamedTuple):
    """The rules for each series: how many of the newest stay, the best by which
    metrics, and which multiples.
    """

    last: int = 1
    best: tuple[Best, ...] = ()
    every: int | None = None


class Verdict(NamedTuple):
    """A save, the reasons why it stays, and if it may go, why it is not needed."""

    judged: Judged
    series: str
    place: Place
    """Its place in its series; empty where it has none."""
    keeps: tuple[str, ...] = ()
    goes: str | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    """The metrics that were compared, inside of it or in its name."""
    is_counted: bool = False
    """True where a rule kept it because it is whole: its bytes are worth a look."""

    @property
    def stays(self) -> bool:
        return bool(self.keeps)


def best_of(text: str) -> Best:
    """Read `NAME`, `NAME:min` or `NAME:max`. Raises UsageError where the name does not
    say which is the best.
    """
    # The last colon: a metric's own name may have one.
    name, colon, way = text.rpartition(":")
    if colon and way in ("min", "max"):
        direction: str | None = way
    else:
        name = text
        direction = metric_direction(name.rpartition(".")[2])
    if not name:
        raise UsageError(
            f"--keep-best {show(text, 80)}: no name", hint="NAME:min or NAME:max"
        )
    if direction is None and name.isdecimal():
        raise UsageError(
            f"--keep-best {show(text, 80)}: takes the name of a value, not a number",
            hint="--keep-best val_loss:min",
        )
    if direction is None:
        hint = f"{name}:min or {name}:max"
        raise UsageError(
            f"--keep-best {show(text, 80)}: is the lowest or the highest the best?",
            hint=hint,
        )
    return Best(name, "min" if direction == "min" else "max")


def apply_rules(
    judged: Sequence[Judged],
    rules: Rules,
    pointers: Iterable[tuple[str, str]],
    now: float,
    path: str,
) -> tuple[list[Verdict], list[str]]:
    """Return the verdict on each save, and warnings. `now` is the time in seconds.
    Raises UsageError for an unknown metric.
    """
    series: dict[str, list[Judged]] = {}
    # A series counts for itself: the discriminator has saves beside the generator's.
    for save in judged:
        series.setdefault(save.candidate.parsed.series, []).append(save)
    series = {name: _with_unfinished(saves) for name, saves in series.items()}
    judged = [save for saves in series.values() for save in saves]
    _refuse_unknown_metrics(judged, rules, path)
    keeps: dict[str, list[str]] = {save.name: [] for save in judged}
    """Name of a save -> the reasons why it stays. Whoever has none may go."""
    table = _Table(keeps)
    warnings: list[str] = []
    places: dict[str, Place] = {}
    metrics: dict[str, dict[str, float]] = {}
    for save in judged:
        saves = series[save.candidate.parsed.series]
        metrics[save.name] = _metrics_of(save, saves, rules)
    for name, saves in series.items():
        placed = _placed(saves)
        # A number without a meaning orders nothing: no save of such a series may go.
        if placed is None:
            for save in saves:
                keeps[save.name].append(_NO_PLACE)
            continue
        places |= {save.name: placed[save.name] for save in saves}
        # The newest save is not known then.
        if not _are_in_order(saves, placed):
            warnings.append(
                f"{show(name, 80)}: names and recorded counts disagree, so all of it "
                "stays"
            )
            for save in saves:
                keeps[save.name].append(
                    "names and recorded counts of its series disagree"
                )
            continue
        warnings += _keep_in_series(name, saves, placed, rules, metrics, table, now)
    # Pointers after the rules, for they add reasons to any save.
    for name, why in pointers:
        table.keep(name, why)
    # Each save names the best one of its own time: only the newest of them counts.
    for save in judged:
        if not save.best:
            continue
        newest = _newest(series[save.candidate.parsed.series], places)
        for best in save.best:
            if save is newest:
                table.keep(best, f"{show(save.name, 60)} calls it the best")
    # Last, for it follows from all reasons of the other series.
    _keep_together(judged, places, metrics, rules, table)
    verdicts = []
    for save in judged:
        own = tuple(dict.fromkeys(keeps[save.name]))
        goes = None
        if not own and save.is_whole:
            goes = "not needed"
        elif not own:
            goes = f"{save.state}: {save.why}, and a newer one is whole"
        verdicts.append(
            Verdict(
                save,
                save.candidate.parsed.series,
                places.get(save.name, ()),
                own,
                goes,
                tuple(metrics[save.name].items()),
                save.name in table.counted,
            )
        )
    return verdicts, warnings


_NO_PLACE = (
    "its number has no word such as epoch or step, and it does not record that count"
)


class _Table:
    """The reasons why saves stay, by their names."""

    def __init__(self, keeps: dict[str, list[str]]) -> None:
        self._keeps = keeps
        self.counted: set[str] = set()
        """The saves that rules count."""
        self.by_best: set[str] = set()
        """The saves that stay for a metric alone."""

    def keep(self, name: str, why: str, *, counts: bool = False) -> None:
        """Note a reason why a save stays. Names that are no saves are passed over."""
        if name not in self._keeps:
            return
        self._keeps[name].append(why)
        if counts:
            self.counted.add(name)

    def stays(self, name: str) -> bool:
        """Tell whether a save stays."""
        return bool(self._keeps[name])


# --- the place in a series ------------------------------------------------------------


def _placed(saves: Sequence[Judged]) -> dict[str, Place] | None:
    """Return the place of each save of a series, or None where its numbers may be of
    folds, sizes, ranks or versions.
    """
    if all(save.candidate.parsed.place for save in saves):
        # `checkpoint_5` counts steps by its word, and epochs by what the save records.
        if _are_epochs([save for save in saves if save.is_whole]):
            return {
                save.name: (("epoch", save.candidate.parsed.place[0][1]),)
                for save in saves
            }
        return {save.name: save.candidate.parsed.place for save in saves}
    places: dict[str, Place] = {}
    for save in saves:
        number = save.candidate.parsed.number
        kind = None
        # The number has no word before it: one of the recorded counts must be near it.
        # Writers count from 0 or from 1.
        for label, count in (("step", save.step), ("epoch", save.epoch)):
            if number is None or count is None or abs(count - number) > 1:
                continue
            kind = label
            break
        if kind is None or number is None:
            return None
        places[save.name] = ((kind, float(number)),)
    # Numbers of one kind alone can be compared. A single save has no series.
    kinds = {place[0][0] for place in places.values()}
    return places if len(kinds) == 1 and len(places) > 1 else None


def _are_epochs(saves: Sequence[Judged]) -> bool:
    """Tell whether the only number in each name, as in `checkpoint_5.pt`, is the epoch
    that the save records, and not its step.
    """
    are_steps = True
    for save in saves:
        place = save.candidate.parsed.place
        # Writers count from 0 or from 1.
        if len(place) != 1 or save.epoch is None or abs(save.epoch - place[0][1]) > 1:
            return False
        if save.step is None or abs(save.step - place[0][1]) > 1:
            are_steps = False
    # A number that fits both may be a step as well as an epoch.
    return not are_steps


def _are_in_order(saves: Sequence[Judged], places: Mapping[str, Place]) -> bool:
    """Tell whether the recorded counts grow with the counts in the names. A save that
    records none is passed over.

    Files of ranks record one step under all their numbers, and slots that are used in
    turn record them in another order.
    """
    # Rows of (place by the name, recorded epoch, recorded step), in the order of
    # places.
    known = [
        (
            places[save.name],
            -1.0 if save.epoch is None else save.epoch,
            -1.0 if save.step is None else save.step,
        )
        for save in saves
        if save.epoch is not None or save.step is not None
    ]
    known.sort()
    distinct = {place for place, _, _ in known}
    if len(distinct) < 2:
        return True
    # A step may begin anew with each epoch.
    by_epoch = [(epoch, step) for _, epoch, step in known]
    epochs = [epoch for _, epoch, _ in known]
    steps = [step for _, _, step in known]
    are_sorted = by_epoch == sorted(by_epoch) or (
        steps == sorted(steps) and epochs == sorted(epochs)
    )
    # Saves of several places that record one count are files of ranks, or copies.
    return are_sorted and len(set(by_epoch)) >= len(distinct)


def _newest(saves: Sequence[Judged], places: Mapping[str, Place]) -> Judged | None:
    """The save of the highest place that names a best one."""
    known = [save for save in saves if save.best and places.get(save.name)]
    return max(known, key=lambda save: places[save.name], default=None)


# --- the rules of one series ----------------------------------------------------------


def _keep_in_series(
    name: str,
    saves: Sequence[Judged],
    places: Mapping[str, Place],
    rules: Rules,
    metrics: Mapping[str, Mapping[str, float]],
    table: _Table,
    now: float,
) -> list[str]:
    """Note which saves of a series stay; the warnings."""
    warnings: list[str] = []
    whole = [save for save in saves if save.is_whole]
    steps = sorted({places[save.name] for save in whole}, reverse=True)
    last = steps[: rules.last]
    for save in whole:
        if places[save.name] in last:
            text = "the newest" if rules.last == 1 else f"one of the last {rules.last}"
            table.keep(save.name, text, counts=True)
    # These may come from a run that was started anew.
    warnings += _keep_last_written(name, whole, places, last, table)
    for save in saves:
        if not save.is_whole:
            _keep_in_doubt(save, steps, places, table, now)
    for best in rules.best:
        _keep_best(whole, best, metrics, table)
    if rules.every is not None:
        warnings += _keep_every(name, whole, places, rules.every, table)
    return warnings


def _with_unfinished(saves: Sequence[Judged]) -> list[Judged]:
    """The saves, those as unfinished that lack what the Trainer writes last into all
    others.
    """
    if not any(save.has_trainer for save in saves):
        return list(saves)
    rows: list[Judged] = []
    for save in saves:
        if save.is_whole and not save.has_trainer:
            why = "no trainer_state.json, which is written last"
            save = save._replace(state="unfinished", why=why)
        rows.append(save)
    return rows


def _keep_last_written(
    name: str,
    whole: Sequence[Judged],
    places: Mapping[str, Place],
    last: Sequence[Place],
    table: _Table,
) -> list[str]:
    """Keep the saves that were written last, where the order of the names says
    otherwise: an old run may lie in the folder.
    """
    # The same number of saves by time as by count.
    in_last = [save.identity.last_change for save in whole if places[save.name] in last]
    by_time = sorted(whole, key=lambda save: save.identity.last_change, reverse=True)
    late = [
        save
        for save in by_time[: len(in_last)]
        if places[save.name] not in last and save.identity.last_change > min(in_last)
    ]
    for save in late:
        table.keep(
            save.name, "written later than saves with higher counts", counts=True
        )
    if not late:
        return []
    return [
        (
            f"{show(name, 80)}: saves were not written in the order of their counts. "
            "Are two runs in one folder?"
        )
    ]


def _keep_in_doubt(
    save: Judged,
    whole: Sequence[Place],
    places: Mapping[str, Place],
    table: _Table,
    now: float,
) -> None:
    """Keep a save that is not whole, where it may be needed or was never read."""
    # A save that was never read may be anything.
    if save.state == "unread":
        table.keep(save.name, f"not read: {save.why}")
    # It may be all that is left of the newest training.
    elif not whole or places[save.name] >= whole[0]:
        table.keep(save.name, f"{save.state}: {save.why}; nothing newer is whole")
    # A run may be writing it now: it is damaged until it is whole.
    elif now - save.identity.last_change / 1e9 < _FRESH:
        table.keep(
            save.name, f"{save.state}: {save.why}; written in the last 10 minutes"
        )


def _keep_best(
    whole: Sequence[Judged],
    best: Best,
    metrics: Mapping[str, Mapping[str, float]],
    table: _Table,
) -> None:
    """Keep the saves with the best value of a metric, and those that do not record it
    where others do.

    Beside infinity the best finite value stays: a PSNR may be infinite, and so may the
    loss of a run that diverged.
    """
    values = {
        save.name: metrics[save.name][best.name]
        for save in whole
        if best.name in metrics[save.name]
    }
    if not values:
        return  # another series records it
    numbers = [value for value in values.values() if not isnan(value)]
    pick = min if best.direction == "min" else max
    # NaN is neither the lowest nor the highest.
    finite = [value for value in numbers if isfinite(value)]
    # Of all numbers, and of the finite ones: with infinity two saves stay.
    tops = {pick(some) for some in (numbers, finite) if some}
    word = "lowest" if best.direction == "min" else "highest"
    for save in whole:
        value = values.get(save.name)
        if value is None:
            table.keep(
                save.name, f"records no {show(best.name, 60)}, so it may be the best"
            )
        elif value in tops:
            finite_word = "" if value == pick(numbers) else "finite "
            why = f"{word} {finite_word}{show(best.name, 60)}: {value:.6g}"
            table.keep(save.name, why, counts=True)
            table.by_best.add(save.name)
        # All values are NaN: nothing says which save is the best.
        elif not tops:
            table.keep(save.name, f"no {show(best.name, 60)} of its series is a number")


def _keep_every(
    name: str,
    whole: Sequence[Judged],
    places: Mapping[str, Place],
    every: int,
    table: _Table,
) -> list[str]:
    """Keep the saves whose count is a multiple: the step, or the epoch where the names
    have no steps.
    """
    is_hit = False
    for save in whole:
        # The last count decides: the step, where the name has both.
        kind, count = places[save.name][-1]
        if count % every == 0:
            table.keep(
                save.name,
                f"{kind} {count:.15g} is a multiple of {every:,}",
                counts=True,
            )
            is_hit = True
    if is_hit or not whole:
        return []
    return [f"{show(name, 80)}: no count is a multiple of {every:,} (--keep-every)"]


# --- metrics --------------------------------------------------------------------------


def _metrics_of(
    save: Judged, saves: Sequence[Judged], rules: Rules
) -> dict[str, float]:
    """The metrics of a save that are compared. In one series all are from inside, or
    all from the names.
    """
    metrics: dict[str, float] = {}
    for best in rules.best:
        # Numbers inside have all their digits; those in names are rounded. They are not
        # mixed.
        is_inside = any(other.metric(best.name) is not None for other in saves)
        if is_inside:
            value = save.metric(best.name)
        else:
            value = save.candidate.parsed.metric(best.name)
        if value is not None:
            metrics[best.name] = value
    return metrics


def _refuse_unknown_metrics(judged: Sequence[Judged], rules: Rules, path: str) -> None:
    """Raise UsageError for a metric that no save records, inside, beside or in its
    name.
    """
    for best in rules.best:
        known = [
            save
            for save in judged
            if save.metric(best.name) is not None
            or save.candidate.parsed.metric(best.name) is not None
        ]
        if known:
            continue
        names: set[str] = set()
        for save in judged:
            names.update(save.names)
            names.update(label for label, _ in save.candidate.parsed.metrics)
        alike = nearest_names(best.name, sorted(names))
        listed = and_more([show(name, 60) for name in alike or sorted(names)], 5)
        hint = f"there are {listed}" if listed else None
        if alike:
            hint = f"did you mean {listed}?"
        if "," in best.name:
            hint = "one value at a time: --keep-best is repeatable"
        text = (
            f"none of {counted_noun(len(judged), 'save')} records one number under "
            f"{show(best.name, 80)}"
        )
        raise UsageError(text, path=path, hint=hint)


# --- several series -------------------------------------------------------------------


def _keep_together(
    judged: Sequence[Judged],
    places: Mapping[str, Place],
    metrics: Mapping[str, Mapping[str, float]],
    rules: Rules,
    table: _Table,
) -> None:
    """Keep what was saved with a save that stays: the same counts in another series.

    Where a save stays for its metric alone, only series without that metric follow.
    """
    # Series in which any save has the metric.
    recording = {save.candidate.parsed.series for save in judged if metrics[save.name]}
    groups: dict[Place, list[Judged]] = {}
    for save in judged:
        if places.get(save.name):
            groups.setdefault(places[save.name], []).append(save)
    # Saves of one place in several series, such as `G_100.pth` and `D_100.pth`.
    for group in groups.values():
        if len({save.candidate.parsed.series for save in group}) < 2:
            continue
        staying = [save for save in group if table.stays(save.name)]
        for save in group:
            if table.stays(save.name):
                continue
            for other in staying:
                if other.candidate.parsed.series == save.candidate.parsed.series:
                    continue
                is_for_metric = other.name in table.by_best
                if not is_for_metric or save.candidate.parsed.series not in recording:
                    table.keep(
                        save.name, f"saved with {show(other.name, 60)}, which stays"
                    )
                    break
    # A series without the metric cannot be judged by it: what no other series decides
    # stays.
    if not rules.best:
        return
    together = {
        place
        for place, group in groups.items()
        if any(save.candidate.parsed.series in recording for save in group)
    }
    for save in judged:
        is_alone = (
            save.candidate.parsed.series not in recording
            and places.get(save.name) not in together
        )
        if is_alone and not table.stays(save.name):
            table.keep(save.name, "its series records no metric that was asked for")
