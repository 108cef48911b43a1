"""`ckpt inspect --index`: names for the parameter numbers in an error of DDP.

DDP numbers the parameters that require a gradient in the order of `model.parameters()` (torch/nn/parallel/
distributed.py `_build_params_for_reducer`): that of the state dict, without buffers, each tied one once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.errors import UsageError
from ckpt.evidence.matching import each_once
from ckpt.evidence.roles import RecordMatch, Trust
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.text import Json, plural, show

_MOST = 10_000


class ParameterIndex(NamedTuple):
    """Parameters by their number: `rows` are those that were asked for, of `parameters` in all."""

    rows: tuple[tuple[int, Entry], ...]
    section: Section
    parameters: int
    trust: Trust
    why: str
    assumes: str | None

    def to_json(self) -> dict[str, Json]:
        """The object `index` of the document `ckpt.inspect`."""
        return {
            "parameters": self.parameters,
            "section": self.section.name,
            "evidence": {"trust": self.trust, "source": "order", "note": self.why},
            "assumes": self.assumes,
            "names": [{"index": number, "name": entry.name} for number, entry in self.rows],
        }


def numbers(text: str) -> list[int]:
    """The numbers of `6,7-9`; as DDP prints them (`6 7 8 9`) too. Raises UsageError."""
    found: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None:
            raise UsageError(f"--index {show(text, 60)}: not numbers", hint="as in 6,7-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise UsageError(f"--index {show(part, 60)}: not a range", hint="as in 6,7-9")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def index(survey: Survey, asked: list[int], section: str | None = None) -> ParameterIndex:
    """The parameters of these numbers, with how sure their order is.

    Raises UsageError for a number that no parameter has, and where the order is undecided for one.
    """
    checkpoint = survey.checkpoint
    if survey.record is not None and section in (None, survey.record.section.name):
        return _recorded(checkpoint, asked, survey.record)
    model = survey.only_model(section)
    _refuse_disorder(checkpoint, model)
    sure = _order(survey, model, likely=False)
    doubtful: Sequence[int | None] = _order(survey, model, likely=True)
    recorded = _requires_grad(checkpoint, sure)
    trust, why = _trust(survey, model, sure, doubtful)
    given = _given(survey, model)
    names: list[int | None]
    if recorded is None and given is not None and len(given) < len(sure):
        # Frozen parameters were left out of the optimizer, and DDP does not number them either.
        names = given
        trust, why = (
            "strong",
            f"the optimizer holds {len(given)} of the model's {len(sure)} parameters, in this order",
        )
        doubtful = given
    else:
        names = [index for index in sure if recorded is None or recorded[index]]
        doubtful = [
            index for index in doubtful if recorded is None or index is None or recorded.get(index, True)
        ]
    rows = []
    for number in asked:
        _refuse_beyond(checkpoint, number, len(names))
        index = names[number]
        if index is None or number >= len(doubtful) or doubtful[number] != index:
            what = (
                "" if index is None else f": {show(checkpoint.tensors[index].name, 60)} or the one before it"
            )
            raise UsageError(
                f"--index {number}: the order is undecided{what}",
                path=checkpoint.path,
                hint="--model FILE.py:FACTORY, ckpt.snapshot or a checkpoint with its optimizer decides",
            )
        rows.append((number, checkpoint.tensors[index]))
    assumes = (
        None
        if recorded is not None or names is given
        else "no parameter is frozen (requires_grad is not recorded)"
    )
    return ParameterIndex(tuple(rows), model, len(names), trust, why, assumes)


def _recorded(checkpoint: Checkpoint, asked: list[int], match: RecordMatch) -> ParameterIndex:
    """The parameters as a live model numbers them. Raises UsageError for one that it does not have."""
    record = match.record
    names = record.numbered
    rows = []
    for number in asked:
        _refuse_beyond(checkpoint, number, len(names))
        index = match.indices.get(names[number])
        if index is None:
            raise UsageError(
                f"--index {number}: the file does not hold {show(names[number], 80)}",
                path=checkpoint.path,
            )
        rows.append((number, checkpoint.tensors[index]))
    frozen = len(record.parameters) - len(names)
    left = f", without {plural(frozen, 'frozen or ignored parameter')}" if frozen else ""
    why = "recorded by ckpt.snapshot" if record.source == "snapshot" else "the model that --model builds"
    if record.world_size > 1:
        why += f" on rank {record.rank} of {record.world_size}"
    return ParameterIndex(tuple(rows), match.section, len(names), "certain", why + left, None)


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
        raise UsageError(
            f"--index: {why}", path=checkpoint.path, hint="use the checkpoint that training saved"
        )


def _order(survey: Survey, model: Section, *, likely: bool) -> list[int]:
    """The indices of the parameters in order; with `likely`, what is likely a buffer is taken for one of them."""

    def may_be_parameter(index: int, entry: Entry) -> bool:
        role = survey.roles[index]
        return entry.registered and (role.role != "buffer" or (likely and role.trust == "likely"))

    rows = zip(model.indices, model.entries, strict=True)
    return each_once(row for row in rows if may_be_parameter(*row))


def _requires_grad(checkpoint: Checkpoint, indices: list[int]) -> dict[int, bool] | None:
    """Whether each parameter requires a gradient, where the file records it: in modules and Parameters."""
    tensors = [checkpoint.tensors[index].tensor for index in indices]
    if not indices or not all(tensor.is_parameter for tensor in tensors):
        return None
    return {index: tensor.requires_grad is not False for index, tensor in zip(indices, tensors, strict=True)}


def _given(survey: Survey, model: Section) -> list[int | None] | None:
    """The indices of the parameters of the only optimizer of a model, in its order."""
    mine = [match for match in survey.matches if match.model is not None and match.model.path == model.path]
    return list(mine[0].indices) if len(mine) == 1 and mine[0].groups == 1 else None


def _trust(
    survey: Survey, model: Section, sure: list[int], doubtful: Sequence[int | None]
) -> tuple[Trust, str]:
    if all(survey.tensors[index].kind for index in sure):
        return "certain", "the module lists its parameters"
    exact = [
        match
        for match in survey.matches
        if match.model is not None and match.model.path == model.path and match.exact
    ]
    if exact:
        return "strong", f"the optimizer holds as many parameters as the model ({len(exact[0].slots)})"
    if sure != doubtful:
        return "likely", "some buffers are known only by their names"
    return "likely", "every tensor that is not known as a buffer counts as a parameter"
