"""The tensors of a checkpoint as a table: names folded, as many rows as are left on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.jobs.inspect.inspect import InspectReport, Row
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
        return [[(f"… {plural(len(report.rows), 'tensor')} (--all, --depth N)", "dim")]]
    parts = optimizer_rows(report, everything)
    hidden = {position for _, indices in parts for position in indices}
    shown = [row for row in report.rows if row.position not in hidden]
    table = _Table(shown, parameter_names(report))
    left = 0
    if everything:
        for leaf, row in zip(table.leaves(), shown, strict=True):
            table.add(leaf.name, Fold(leaf.name, leaf.look, 1, row.tensor.numel, row.tensor.nbytes))
    else:
        room = max(rows - 1 - len(parts), 2)
        opened = _opened(fold(table.leaves()), depth, room)
        if depth is None and len(opened) > room:
            left = len(opened) - room + 1
            opened = opened[: room - 1]
        for line in opened:
            label = "  " * line.level + line.fold.label
            if line.fold.times > 1 and line.fold.children:
                label += f"  ×{line.fold.times}"
            table.add(label, line.fold, shut=line.shut)
    out = table.lines(parts, report, width)
    if left:
        at = len(out) - len(parts)
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


def optimizer_rows(report: InspectReport, everything: bool) -> list[tuple[str, range]]:
    """The optimizers that are one row: their names, and the indices of their tensors."""
    if report.selected or everything:
        return []
    parts = [part for part in report.sections if part.kind == "optimizer" and part.tensors]
    if sum(part.tensors for part in parts) == len(report.rows):
        return []  # there is nothing else
    return [(part.name or part.kind, part.indices) for part in parts]


def parameter_names(report: InspectReport) -> dict[int, str]:
    """Index of a tensor in an optimizer's state -> the name of its parameter and what it is of it, where known."""
    names: dict[int, str] = {}
    chosen = {row.section.path for row in report.rows if row.section and row.section.kind == "optimizer"}
    if not report.selected or not chosen:
        return names
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
                names[position] = f"{known[str(path[depth])]}.{path[-1]}"
    return names


class _Table:
    """The rows of a table; tensors that look alike get one number, for folding compares numbers."""

    def __init__(self, rows: Sequence[Row], names: dict[int, str]) -> None:
        self._tensors = rows
        self._names = names
        self._looks: list[tuple[str, str, str]] = []
        self._rows: list[tuple[str, str, str, str, int, int, bool]] = []

    def leaves(self) -> Iterator[Leaf]:
        """The tensors as folding sees them. What looks alike gets one number, in `add` too, so this comes first."""
        numbers: dict[tuple[object, ...], int] = {}
        names = self._names
        plain = not names and is_plain("".join([row.entry.name for row in self._tensors]))
        for row in self._tensors:
            entry = row.entry
            name, tensor = entry.name, entry.tensor
            kind, device = tensor.dtype.name, tensor.device
            key = (tensor.shape, kind, device, tensor.layout)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(numbers)
                self._looks.append((shape_text(tensor), kind, device or ""))
            if not plain or not entry.path:
                name = show(names.get(row.position, name), None) if entry.path else "(the root)"
            if not entry.registered:
                name += " (unregistered)"
            elif not entry.persistent:
                name += " (not persistent)"
            yield Leaf(name, number, tensor.numel, tensor.nbytes)

    def add(self, label: str, fold_: Fold, *, shut: bool = False) -> None:
        shape, dtype, device = self._looks[fold_.look] if isinstance(fold_.look, int) else ("", "", "")
        if fold_.children:
            shape = plural(fold_.tensors, "tensor") if shut else ""
            dtype, device = (dtype, device) if shut else ("", "")
        self._rows.append((label, shape, dtype, device, fold_.numel, fold_.nbytes, bool(fold_.children)))

    def lines(
        self, parts: Sequence[tuple[str, range]], report: InspectReport, width: int | None
    ) -> list[Line]:
        """The table below its header, with a row for each of `parts`."""
        is_mixed = [len({look[i] for look in self._looks} - {""}) > 1 for i in (1, 2)]
        rows = list(self._rows)
        tensors = report.checkpoint.tensors
        for name, indices in parts:
            inside = [tensors[index].tensor for index in indices]
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
