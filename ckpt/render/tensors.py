"""The tensors of a checkpoint as a table: names folded, as many rows as are left on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.checkpoint import Entries, Entry, looks_of
from ckpt.columns import Chain, parts
from ckpt.jobs.inspect.inspect import InspectReport
from ckpt.render.folding import Fold, Leaf, fold, lines
from ckpt.render.folding import Line as Opened
from ckpt.render.text import Line, columns
from ckpt.tensors import Composite, Tensor
from ckpt.text import count_text, is_plain, plural, show, size_text

ROWS = 40
"""Rows of a table in a pipe."""
_FEW = 4
"""A table of fewer rows is opened further, and cut."""


def tensor_lines(
    report: InspectReport,
    *,
    width: int | None = None,
    rows: int = ROWS,
    depth: int | None = None,
    everything: bool = False,
) -> list[Line]:
    """A table of at most `rows` lines with its header; `depth` and `everything` ask for more.

    The state of an optimizer is one row. Where its section is asked for, its rows have the names of the parameters.
    """
    if rows < _FEW and not everything and depth is None:
        return [[(f"… {plural(len(report.entries), 'tensor')} (--all, --depth N)", "dim")]]
    folded = _optimizers(report, everything)
    entries: Sequence[Entry] = report.entries
    if folded:
        entries = Chain()
        begin = 0
        for _, indices in folded:
            entries.extend(report.entries[begin : indices.start])
            begin = indices.stop
        entries.extend(report.entries[begin:])
    table = _Table(entries, _parameter_names(report))
    left = 0
    if everything:
        for name, leaf in zip(table.names, table.leaves, strict=True):
            table.add(name, Fold(name, leaf.look, 1, leaf.numel, leaf.nbytes))
    else:
        room = max(rows - 1 - len(folded), 2)
        opened = _opened(fold(table.names, table.leaves), depth, room)
        if depth is None and len(opened) > room:
            left = len(opened) - room + 1
            opened = opened[: room - 1]
        for line in opened:
            label = "  " * line.level + line.fold.label
            if line.fold.times > 1 and line.fold.children:
                label += f"  ×{line.fold.times}"
            table.add(label, line.fold, shut=line.shut)
    out = table.lines(folded, report, width)
    if left:
        at = len(out) - len(folded)
        out.insert(at, [(f"… {left:,} more (--all, --depth N)", "dim")])
    return out


def _opened(folds: tuple[Fold, ...], depth: int | None, room: int) -> list[Opened]:
    opened = lines(folds, depth, room)
    if depth is not None or len(opened) >= min(_FEW, room) or not any(line.shut for line in opened):
        return opened
    for level in range(1, 9):
        deeper = lines(folds, level)
        if len(deeper) > room:
            return deeper
    return opened


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


class _Table:
    """The rows of a table; tensors that look alike get one number, for folding compares numbers."""

    def __init__(self, entries: Sequence[Entry], names: dict[int, str]) -> None:
        self.names = _shown(entries, names)
        self.leaves: list[Leaf] = []
        self._looks: list[tuple[str, str, str]] = []
        self._rows: list[tuple[str, str, str, str, int, int, bool]] = []
        numbers: dict[tuple[object, ...], int] = {}
        made: dict[Tensor, Leaf] = {}
        same: dict[Leaf, Leaf] = {}
        for tensor in looks_of(entries):
            leaf = made.get(tensor)
            if leaf is None:
                kind, device = tensor.dtype.name, tensor.device
                key = (tensor.shape, kind, device, tensor.layout)
                number = numbers.setdefault(key, len(numbers))
                if number == len(self._looks):
                    self._looks.append((shape_text(tensor), kind, device or ""))
                leaf = Leaf(number, tensor.numel, tensor.nbytes)
                leaf = made[tensor] = same.setdefault(leaf, leaf)
            self.leaves.append(leaf)

    def add(self, label: str, fold_: Fold, *, shut: bool = False) -> None:
        shape, dtype, device = self._looks[fold_.look] if isinstance(fold_.look, int) else ("", "", "")
        if fold_.children:
            shape = plural(fold_.tensors, "tensor") if shut else ""
            dtype, device = (dtype, device) if shut else ("", "")
        self._rows.append((label, shape, dtype, device, fold_.numel, fold_.nbytes, bool(fold_.children)))

    def lines(
        self, folded: Sequence[tuple[str, range]], report: InspectReport, width: int | None
    ) -> list[Line]:
        """The table below its header, with a row for each of `folded`."""
        is_mixed = [len({look[i] for look in self._looks} - {""}) > 1 for i in (1, 2)]
        rows = list(self._rows)
        tensors = looks_of(report.entries)
        for name, indices in folded:
            inside = tensors[indices.start : indices.stop]
            numel, nbytes = sum(each.numel for each in inside), sum(each.nbytes for each in inside)
            rows.append((show(name, None), f"… {plural(len(inside), 'tensor')}", "", "", numel, nbytes, True))
        header = ["NAME", "SHAPE", *(["DTYPE"] if is_mixed[0] else []), *(["DEVICE"] if is_mixed[1] else [])]
        table = [[*header, "NUMEL", "SIZE"]]
        for label, shape, dtype, device, numel, nbytes, _ in rows:
            middle = [text for text, mixed in zip((dtype, show(device, 20)), is_mixed, strict=True) if mixed]
            table.append([label, shape, *middle, count_text(numel), size_text(nbytes)])
        last = len(table[0]) - 1
        out = columns(table, right=frozenset((last - 1, last)), width=width)
        for line, row in zip(out[1:], rows, strict=True):
            if row[-1]:
                line[0] = (line[0][0], "group")
        return out


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


def shape_text(tensor: Tensor) -> str:
    """The shape in brackets, with what is unusual about the tensor."""
    text = f"[{', '.join(map(str, tensor.shape))}]"
    if isinstance(tensor, Composite) and tensor.piece is not None and tensor.piece.is_cut:
        text = f"[{', '.join(map(str, tensor.parts[0][1].shape))}] of {text}"
    if isinstance(tensor, Composite) and tensor.layout == "wrapper" and tensor.detail:
        text += f" {show(tensor.detail.rpartition('.')[2], 40)}"  # the class that wraps
    elif tensor.layout != "strided":
        text += f" {tensor.layout}"
    return text
