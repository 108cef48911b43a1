"""The tensors of a checkpoint as a table: names folded, as many rows as are left on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.jobs.inspect.inspect import InspectReport
from ckpt.render.folding import Fold, fold, lines
from ckpt.render.folding import Line as Opened
from ckpt.render.leaves import Leaves, Optimizer, leaves_of
from ckpt.render.text import Line, columns
from ckpt.tensors import Composite, Tensor
from ckpt.text import count_text, plural, show, size_text

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
    found = leaves_of(report, everything)
    table = _Table(found)
    left = 0
    if everything:
        for name, leaf in zip(found.names, found.leaves, strict=True):
            table.add(name, Fold(name, leaf.look, 1, leaf.numel, leaf.nbytes))
    else:
        room = max(rows - 1 - len(found.optimizers), 2)
        opened = _opened(fold(found.names, found.leaves), depth, room)
        if depth is None and len(opened) > room:
            left = len(opened) - room + 1
            opened = opened[: room - 1]
        for line in opened:
            label = "  " * line.level + line.fold.label
            if line.fold.times > 1 and line.fold.children:
                label += f"  ×{line.fold.times}"
            table.add(label, line.fold, shut=line.shut)
    out = table.lines(found.optimizers, width)
    if left:
        at = len(out) - len(found.optimizers)
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


class _Table:
    """The rows of a table; tensors that look alike get one number, for folding compares numbers."""

    def __init__(self, found: Leaves) -> None:
        self._looks = [(shape_text(kind), kind.dtype.name, kind.device or "") for kind in found.kinds]
        self._rows: list[tuple[str, str, str, str, int, int, bool]] = []

    def add(self, label: str, fold_: Fold, *, shut: bool = False) -> None:
        shape, dtype, device = self._looks[fold_.look] if isinstance(fold_.look, int) else ("", "", "")
        if fold_.children:
            shape = plural(fold_.tensors, "tensor") if shut else ""
            dtype, device = (dtype, device) if shut else ("", "")
        self._rows.append((label, shape, dtype, device, fold_.numel, fold_.nbytes, bool(fold_.children)))

    def lines(self, optimizers: Sequence[Optimizer], width: int | None) -> list[Line]:
        """The table below its header, with a row for each optimizer that is one."""
        is_mixed = [len({look[i] for look in self._looks} - {""}) > 1 for i in (1, 2)]
        rows = list(self._rows)
        for name, tensors, numel, nbytes in optimizers:
            rows.append((show(name, None), f"… {plural(tensors, 'tensor')}", "", "", numel, nbytes, True))
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
