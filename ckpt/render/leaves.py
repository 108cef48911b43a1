"""The tensors of a report as folding sees them: their names, and what makes two of them look the same."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.checkpoint import Entries, Entry, looks_of
from ckpt.columns import Chain, parts
from ckpt.jobs.inspect.inspect import InspectReport
from ckpt.render.folding import Leaf
from ckpt.rows import NamedTuple
from ckpt.tensors import Tensor
from ckpt.text import is_plain, show


class Optimizer(NamedTuple):
    """All state of an optimizer as one row: its name, how many tensors it has, their elements and bytes."""

    name: str
    tensors: int
    numel: int
    nbytes: int


class Leaves(NamedTuple):
    """Names as they are printed, and a leaf of each. The look of a leaf is the index of a tensor in `kinds`."""

    names: list[str]
    leaves: list[Leaf]
    kinds: list[Tensor]
    optimizers: list[Optimizer]


def leaves_of(report: InspectReport, everything: bool) -> Leaves:
    """The tensors of a report. Without `everything`, and unless its section is asked for, an optimizer is one row."""
    folded = _optimizers(report, everything)
    entries, optimizers = report.entries, []
    if folded:
        entries = Chain()
        tensors = looks_of(report.entries)
        begin = 0
        for name, indices in folded:
            entries.extend(report.entries[begin : indices.start])
            begin = indices.stop
            inside = tensors[indices.start : indices.stop]
            numel, nbytes = sum(each.numel for each in inside), sum(each.nbytes for each in inside)
            optimizers.append(Optimizer(name, len(inside), numel, nbytes))
        entries.extend(report.entries[begin:])
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[Tensor] = []
    made: dict[Tensor, Leaf] = {}
    same: dict[Leaf, Leaf] = {}
    leaves: list[Leaf] = []
    for tensor in looks_of(entries):
        leaf = made.get(tensor)
        if leaf is None:
            key = (tensor.shape, tensor.dtype.name, tensor.device, tensor.layout)
            number = numbers.setdefault(key, len(numbers))
            if number == len(kinds):
                kinds.append(tensor)
            leaf = Leaf(number, tensor.numel, tensor.nbytes)
            leaf = made[tensor] = same.setdefault(leaf, leaf)
        leaves.append(leaf)
    return Leaves(_shown(entries, _parameter_names(report)), leaves, kinds, optimizers)


def _optimizers(report: InspectReport, everything: bool) -> list[tuple[str, range]]:
    """The optimizers that are one row: their names, and the indices of their tensors."""
    if report.selected or everything:
        return []
    parts = [part for part in report.sections if part.kind == "optimizer" and part.tensors]
    if sum(part.tensors for part in parts) == len(report.entries):
        return []  # there is nothing else
    return [(part.name or part.kind, part.indices) for part in parts]


def _parameter_names(report: InspectReport) -> dict[int, str]:
    """For tensors in the state of an optimizer the name of their parameter and what they are of it, where known.

    The keys are their numbers among the tensors of the report.
    """
    if not report.selected or all(part.kind != "optimizer" for part in report.sections):
        return {}
    numbers = {row.position: number for number, row in enumerate(report.rows)}
    chosen = {row.section.path for row in report.rows if row.section and row.section.kind == "optimizer"}
    names: dict[int, str] = {}
    for match in report.survey.matches:
        part, model = match.optimizer, match.model
        if part.path not in chosen or model is None:
            continue
        depth = len(part.path) + 1
        known = {
            str(slot.key): model.relative(report.survey.tensors[index].name)
            for slot, index in zip(match.slots, match.indices, strict=True)
            if index is not None
        }
        for position, entry in zip(part.indices, part.entries, strict=True):
            path = entry.path
            if path[depth - 1 : depth] == ("state",) and len(path) == depth + 2 and str(path[depth]) in known:
                if position in numbers:
                    names[numbers[position]] = f"{known[str(path[depth])]}.{path[-1]}"
    return names


def _shown(entries: Sequence[Entry], names: dict[int, str]) -> list[str]:
    """The names of tensors as they are printed. `names` has other ones for some of them."""
    found: list[str] = []
    for part in parts(entries):
        if isinstance(part, Entries) and not names:
            plain = is_plain("".join(part.names))
            found += part.names if plain else [show(name, None) for name in part.names]
            continue
        for entry in part:
            name = show(names.get(len(found), entry.name), None) if entry.path else "(the root)"
            if not entry.registered:
                name += " (unregistered)"
            elif not entry.persistent:
                name += " (not persistent)"
            found.append(name)
    return found
