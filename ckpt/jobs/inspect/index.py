"""`ckpt inspect --index`: names for the parameter numbers in an error of DDP.

DDP numbers the parameters that require a gradient in the order of `model.parameters()` (torch/nn/parallel/
distributed.py `_build_params_for_reducer`): the order of the state dict, without buffers, each tied one once.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.errors import UsageError
from ckpt.evidence.gradients import GradientUse, says_gradients
from ckpt.evidence.matching import each_once
from ckpt.evidence.roles import RecordMatch, Trust
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show

_MOST = 10_000


_IN_OPTIMIZER = "each parameter that requires a gradient is in the optimizer"
_NONE_FROZEN = "no parameter is frozen (requires_grad is not recorded)"


class ParameterIndex(NamedTuple):
    """Parameters by their number: `rows` are those that were asked for, each with the tensors that it can be.

    DDP counts `least` to `parameters` parameters. A name follows from the file where a row has one tensor.
    """

    rows: tuple[tuple[int, tuple[Entry, ...]], ...]
    section: Section
    parameters: int
    trust: Trust
    why: str
    assumes: str | None
    least: int

    def to_json(self) -> dict[str, Json]:
        """The object `index` of the document `ckpt.inspect`."""
        return {
            "parameters": self.parameters,
            "section": self.section.name,
            "evidence": {"trust": self.trust, "source": "order", "note": self.why},
            "assumes": self.assumes,
            "names": [
                {
                    "index": number,
                    "name": entries[0].name if len(entries) == 1 else None,
                    "candidates": [entry.name for entry in entries],
                }
                for number, entries in self.rows
            ],
        }


class _Count(NamedTuple):
    """The tensors that DDP may count: `indices` in order, without `least_out` to `most_out` of them.

    The tensors in `sure` are counted.
    """

    indices: Sequence[int]
    sure: frozenset[int]
    least_out: int
    most_out: int
    trust: Trust
    why: str
    assumes: str | None


def numbers(text: str) -> list[int]:
    """The numbers of `6,7-9`; as DDP prints them (`6 7 8 9`) too. Raises UsageError."""
    parsed: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None:
            raise UsageError(f"--index {show(text, 60)}: not numbers", hint="as in 6,7-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise UsageError(f"--index {show(part, 60)}: not a range", hint="as in 6,7-9")
        parsed += range(first, last + 1)
    return list(dict.fromkeys(parsed))


def index(survey: Survey, wanted: list[int], section: str | None = None) -> ParameterIndex:
    """The parameters of these numbers, or what each can be, with how sure that is.

    Raises UsageError for a number that no parameter has, and where the file keeps no order.
    """
    checkpoint = survey.checkpoint
    if survey.record is not None and section in (None, survey.record.section.name):
        return _recorded(checkpoint, wanted, survey.record)
    model = survey.only_model(section)
    _refuse_disorder(checkpoint, model)
    count = _listed(survey, model) or _by_optimizer(survey, model, max(wanted)) or _by_names(survey, model)
    most = len(count.indices) - count.least_out
    for number in wanted:
        _refuse_beyond(checkpoint, number, most)
    # DDP counts as many parameters as the largest number says.
    count = count._replace(most_out=min(count.most_out, len(count.indices) - 1 - max(wanted)))
    rows = [
        (number, tuple(checkpoint.tensors[position] for position in candidates))
        for number, candidates in zip(wanted, _candidates(count, wanted), strict=True)
    ]
    least = len(count.indices) - count.most_out
    return ParameterIndex(tuple(rows), model, most, count.trust, count.why, count.assumes, least)


def _candidates(count: _Count, wanted: Sequence[int]) -> list[list[int]]:
    """The tensors that each number can be, in order."""
    sure = count.sure if len(count.indices) - len(count.sure) >= count.least_out else frozenset[int]()
    doubtful = [position not in sure for position in count.indices]
    before = list(accumulate(doubtful, initial=0))
    total = before[-1]
    # The number of a counted tensor is its place, less the doubtful ones before it that are left out.
    firsts = [place - min(before[place], count.most_out) for place in range(len(doubtful))]
    lasts = [place - max(0, count.least_out - (total - before[place + 1])) for place in range(len(doubtful))]
    return [
        [
            count.indices[place]
            for place in range(bisect_left(lasts, number), bisect_right(firsts, number))
            if total - doubtful[place] >= count.least_out
        ]
        for number in wanted
    ]


def _recorded(checkpoint: Checkpoint, wanted: list[int], match: RecordMatch) -> ParameterIndex:
    """The parameters as a live model numbers them. Raises UsageError for one that it does not have."""
    record = match.record
    names = record.numbered
    rows = []
    for number in wanted:
        _refuse_beyond(checkpoint, number, len(names))
        index = match.indices.get(names[number])
        if index is None:
            raise UsageError(
                f"--index {number}: the file does not hold {show(names[number], 80)}",
                path=checkpoint.path,
            )
        rows.append((number, (checkpoint.tensors[index],)))
    frozen = len(record.parameters) - len(names)
    without = f", without {plural(frozen, 'frozen or ignored parameter')}" if frozen else ""
    why = "recorded by ckpt.snapshot" if record.source == "snapshot" else "the model that --model builds"
    if record.world_size > 1:
        why += f" on rank {record.rank} of {record.world_size}"
    return ParameterIndex(tuple(rows), match.section, len(names), "certain", why + without, None, len(names))


def _refuse_beyond(checkpoint: Checkpoint, number: int, count: int) -> None:
    if number >= count:
        there = f"it has {plural(count, 'parameter')}, 0 to {count - 1}" if count else "it has no parameters"
        raise UsageError(f"--index {number}: {there}", path=checkpoint.path)


def _refuse_disorder(checkpoint: Checkpoint, model: Section) -> None:
    """Raise UsageError where the tensors do not stand in the order of a model."""
    why = None
    if model.kind not in ("model", "ema", "other"):
        why = f"{model.name} is not a model"
    elif not checkpoint.traits.keeps_order:
        why = f"{checkpoint.traits.label} keeps no order"
    else:
        names = model.names()
        indices = {name: index for index, name in enumerate(names)}
        pairs = [
            (index, indices[f"{name[:-6]}bias"])
            for name, index in indices.items()
            if name.endswith("weight") and f"{name[:-6]}bias" in indices
        ]
        if pairs and all(bias < weight for weight, bias in pairs):
            why = "its names are sorted, so the order of the model is lost"
    if why is not None:
        hint = "ckpt.snapshot keeps it" if checkpoint.members else "use the checkpoint that training saved"
        raise UsageError(f"--index: {why}", path=checkpoint.path, hint=hint)


def _order(survey: Survey, model: Section) -> list[int]:
    """The indices of what may be a parameter, in order."""

    def may_be_parameter(index: int, entry: Entry) -> bool:
        role = survey.roles[index]
        return entry.registered and (role.role != "buffer" or role.trust == "likely")

    rows = zip(model.indices, model.entries, strict=True)
    return each_once(row for row in rows if may_be_parameter(*row))


def _listed(survey: Survey, model: Section) -> _Count | None:
    """Return the count by the file itself: its modules and Parameters say which require a gradient."""
    indices = [index for index in _order(survey, model) if survey.roles[index].role != "buffer"]
    tensors = [survey.tensors[index].tensor for index in indices]
    if not indices or not all(tensor.is_parameter for tensor in tensors):
        return None
    counted = [
        index for index, tensor in zip(indices, tensors, strict=True) if tensor.requires_grad is not False
    ]
    is_module = all(survey.tensors[index].kind for index in indices)
    why = "the module lists its parameters" if is_module else "each parameter was saved as a Parameter"
    return _Count(counted, frozenset(counted), 0, 0, "certain", why, None)


def _by_names(survey: Survey, model: Section) -> _Count:
    """Return the count by names and dtypes, for a file without an optimizer of the model."""
    indices = _order(survey, model)
    sure = frozenset(index for index in indices if survey.roles[index].role != "buffer")
    doubtful = len(indices) - len(sure)
    why = (
        "some buffers are known only by their names"
        if doubtful
        else "every tensor that is not known as a buffer counts as a parameter"
    )
    return _Count(indices, sure, 0, doubtful, "likely", why, _NONE_FROZEN)


def _by_optimizer(survey: Survey, model: Section, largest: int) -> _Count | None:
    """Return the count by the optimizers of a model: how many parameters they hold, and which had a gradient.

    A parameter without state may be frozen or unused. DDP counts only the unused one.
    """
    mine = _uses(survey, model)
    indices = _order(survey, model)
    held = sum(_held(use) for use in mine)
    if not mine or held > len(indices):
        return None
    if any(use.match.model is None and any(slot.shape for slot in use.match.slots) for use in mine):
        why = "the parameters of the optimizer do not fit the order of the model"
        return _Count(indices, frozenset(), 0, len(indices), "likely", why, None)
    possible = _possible(mine)
    fitting = indices if possible is None else [index for index in indices if index in possible]
    if len(fitting) < held:  # two optimizers that may hold the same parameters
        fitting = indices
    telling = all(says_gradients(use) for use in mine)
    stateless = [_stateless(use) if telling else set() for use in mine]
    without = sum(map(len, stateless))
    sure = frozenset(
        index
        for use, numbers in zip(mine, stateless, strict=True)
        for number, index in enumerate(use.match.indices)
        if telling and index is not None and number not in numbers
    )
    if largest >= held and len(indices) > held:
        why = f"DDP counts more parameters than the {held} in the optimizer"
        return _Count(indices, sure, 0, len(indices), "likely", why, None)
    is_exact = held == len(indices)
    why = (
        f"the optimizer holds as many parameters as the model ({held})"
        if is_exact
        else f"the optimizer holds {held} of the model's {len(indices)} parameters"
    )
    if without:
        why += f", and {without} of them had no gradient yet; DDP does not count those that are frozen"
    assumes = [] if is_exact else [_IN_OPTIMIZER]
    assumes += [] if telling else [_NONE_FROZEN]
    out = len(fitting) - held
    trust: Trust = "likely" if assumes else "strong"
    return _Count(fitting, sure, out, out + without, trust, why, ", and that ".join(assumes) or None)


def _uses(survey: Survey, model: Section) -> list[GradientUse]:
    """Return the optimizers of a model. One that fits no order belongs to the only model."""
    mine = [use for use in survey.uses if use.match.model is not None and use.match.model.path == model.path]
    alone = len(survey.uses) == 1 and [section.path for section in survey.models] == [model.path]
    return mine or (list(survey.uses) if alone else [])


def _held(use: GradientUse) -> int:
    """Count the parameters of the model that an optimizer holds."""
    indices = use.match.indices
    return sum(index is not None for index in indices) if use.match.by_name else len(indices)


def _stateless(use: GradientUse) -> set[int]:
    """The numbers of the parameters that may never have had a gradient."""
    return {number for number, slot in enumerate(use.match.slots) if not slot.has_state}.union(use.never)


def _possible(uses: Sequence[GradientUse]) -> frozenset[int] | None:
    """Return the tensors that some parameter of the optimizers can be, or None if that is unknown."""
    rows: list[Sequence[int | None]] = []
    for use in uses:
        candidates = use.match.candidates
        if use.match.by_name:
            rows.append(use.match.indices)
        elif not candidates or not all(candidates):
            return None
        else:
            rows += candidates
    return frozenset(index for row in rows for index in row if index is not None)
