"""The views of `ckpt inspect` as rows of text: tensors, storages, values, imports. The
first row is the header.

Every form that is a table is made of these: `--tsv`, `--table`, aligned columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.commands.inspect.inspect import Inspection
from ckpt.model.checkpoint import Value, looks_of, names_of, storages_of
from ckpt.model.dtypes import short_dtype
from ckpt.model.tensors import Composite, Tensor
from ckpt.model.text import (
    and_more,
    count_text,
    counted_noun,
    merge_alike_rows,
    show,
    show_literal,
    size_text,
)
from ckpt.pickle.judge.names import python3_name
from ckpt.surface.text.folding import Fold, Leaves, Optimizer, fold, leaves_of, lines
from ckpt.surface.text.folding import Line as Opened
from ckpt.surface.text.lines import Column, Line, column_lines
from ckpt.tree.literals import BRACKETS, scalar_text
from ckpt.tree.view import look

_HEADER = ("name", "dtype", "shape", "device", "bytes", "role", "storage")


def tensors_by_size(report: Inspection) -> Iterator[list[str]]:
    """As `tensor_table`, the largest tensor first."""
    header, *rows = tensor_table(report)
    yield header
    yield from sorted(rows, key=lambda row: -int(row[_HEADER.index("bytes")]))


def tensor_table(report: Inspection) -> Iterator[list[str]]:
    """One tensor a row, exact: the columns of `--tsv` and `--table`."""
    yield [*_HEADER]
    tensors = looks_of(report.entries)
    # By id, because the hash of a tensor takes longer than its row.
    kinds: dict[int, tuple[str, str, str, str]] = {}
    names, storages = names_of(report.entries), storages_of(report.entries)
    for name, tensor, role, storage in zip(
        names, tensors, report.roles(), storages, strict=True
    ):
        kind = kinds.get(id(tensor)) or kinds.setdefault(
            id(tensor), _tensor_cells(tensor)
        )
        yield [show(name, None), *kind, role.role, show(storage, None)]


def _tensor_cells(tensor: Tensor) -> tuple[str, str, str, str]:
    """Its dtype, shape, device and bytes."""
    shape = "x".join(map(str, tensor.shape)) if tensor.shape else "()"
    return tensor.dtype.name, shape, show(tensor.device or "", None), str(tensor.nbytes)


def storage_table(report: Inspection) -> list[list[str]]:
    """One storage a row: the view `--storages`."""
    rows = [["storage", "device", "bytes", "used", "kind", "tensors"]]
    for row in report.storages:
        rows.append(
            [
                show(row.storage.id, None),
                show(row.storage.device or "", None),
                str(row.storage.nbytes),
                str(row.used),
                row.kind,
                show(" ".join(row.tensors), None),
            ]
        )
    return rows


def folded_storages(report: Inspection) -> list[list[str]]:
    """Return `storage_table` for people: storages that are alike are one row.

    The row has their number and the sum of their bytes. Alike are storages of one
    tensor each, on one device, of one size, whose names differ in a number or a word.
    """
    rows = storage_table(report)
    uses = report.storages
    head, *body = rows
    names_and_looks = []
    for number, (row, use) in enumerate(zip(body, uses, strict=True)):
        _, *look, names = row
        # A storage of several tensors is like no other.
        key = str(look) if len(use.tensors) == 1 else str(number)
        names_and_looks.append((names, key))
    out = [head]
    for name, indices in merge_alike_rows(names_and_looks):
        row = body[indices[0]]
        if len(indices) > 1:
            _, device, _, _, kind, _ = row
            nbytes = sum(uses[index].storage.nbytes for index in indices)
            used = sum(uses[index].used for index in indices)
            row = [f"×{len(indices)}", device, str(nbytes), str(used), kind, name]
        out.append(row)
    return out


def value_table(report: Inspection) -> list[list[str]]:
    """One value a row: the view `--values`."""
    rows = [["name", "type", "value"]]
    for value in report.values:
        text = "" if value.fields is not None else value_text(value, 200)
        kind = value.type
        if value.fields is not None:
            kind += f", {counted_noun(value.fields, 'field')}"
        rows.append([show(value.name or "(the root)", None), show(kind, None), text])
    return rows


def import_table(report: Inspection) -> list[list[str]]:
    """One imported name a row, the called ones first, then what else weights_only
    refuses: the view `--imports`.
    """
    checkpoint = report.checkpoint
    # The rest of these after the imports is refused for another reason.
    refused = {
        refusal.reason: refusal.where for refusal in checkpoint.weights_only or ()
    }
    rank = {"called": 0, "unknown": 1, "odd": 2, "known": 3}
    rows = [["group", "name", "weights_only", "where", "calls"]]
    for row in sorted(checkpoint.imports, key=lambda row: rank[row.group]):
        name = f"{row.module}.{row.name}"
        verdict = "refused" if refused.pop(name, None) is not None else ""
        calls = row.calls[0] if row.calls else ""
        if row.attributes:
            calls = f"sets {and_more(list(row.attributes), 3)}"
        elif row.times > 1:
            calls += f", and {row.times - 1:,} more"
        rows.append(
            [
                row.group,
                show(name, None),
                verdict,
                _places_text(row.where),
                show(calls, None),
            ]
        )
    rows += [
        ["", show(reason, None), "refused", _places_text(where), ""]
        for reason, where in refused.items()
    ]
    return rows


def folded_imports(report: Inspection) -> list[list[str]]:
    """As `import_table`, for people: a name of Python 3 and its name in Python 2 are
    one row, which tells both.
    """
    header, *rows = import_table(report)
    # By the name as it is shown: rows of the table have no other.
    stored = {
        show(f"{row.module}.{row.name}", None): row for row in report.checkpoint.imports
    }
    met: dict[tuple[str, str], list[list[str]]] = {}
    for row in rows:
        stored_name = stored.get(row[1])
        if stored_name is None:
            name = row[1]
        else:
            name = python3_name(stored_name.module, stored_name.name)
        met.setdefault((row[0], name), []).append(row)
    out = [header]
    for same in met.values():
        names = dict.fromkeys(row[1] for row in same)
        more = (
            f" (also stored as {', '.join(list(names)[1:])})" if len(names) > 1 else ""
        )
        rest = [
            ", ".join(dict.fromkeys(filter(None, cells)))
            for cells in list(zip(*same, strict=True))[2:]
        ]
        out.append([same[0][0], same[0][1] + more, *rest])
    return out


def _places_text(places: Sequence[str]) -> str:
    more = f", and {len(places) - 3:,} more" if len(places) > 3 else ""
    return show(", ".join(place or "(the root)" for place in places[:3]) + more, None)


def value_text(value: Value, limit: int = 60) -> str:
    """A value in a few words: a scalar as Python writes it, a list by its length, an
    object by its class.
    """
    if value.same_as is not None:
        return f"{show(value.type, limit)}, same as {show(value.same_as, limit)}"
    if value.fields is not None:
        return f"{show(value.type, limit)}, {counted_noun(value.fields, 'field')}"
    view = look(value.node)
    if view.kind == "scalar":
        return show_literal(scalar_text(view, limit))
    count = len(view.children)
    if view.kind == "object":
        return show(view.type, limit)
    # Only short lists are written out: a few children tell.
    looked = [look(child) for child in view.children[:7]]
    if (
        view.kind == "sequence"
        and count <= 6
        and all(child.kind == "scalar" for child in looked)
    ):
        # Short lists of scalars are written out, longer ones are counted.
        inner = ", ".join(scalar_text(child, 16) for child in looked)
        opening, closing = BRACKETS.get(view.type, (f"{view.type}([", "])"))
        inner += "," if view.type == "tuple" and count == 1 else ""
        return show_literal(f"{opening}{inner}{closing}")
    if view.type.startswith("numpy.ndarray"):
        return show(view.type, limit)
    return f"{show(view.type, limit)}, {counted_noun(count, 'item')}"


ROWS = 40
"""Rows of a table in a pipe."""
_FEW = 4
"""A table of fewer rows is opened further, and cut."""


def tensor_lines(
    report: Inspection,
    *,
    width: int | None = None,
    rows: int = ROWS,
    depth: int | None = None,
    everything: bool = False,
    by_size: bool = False,
) -> list[Line]:
    """A table of at most `rows` lines with its header; `depth` and `everything` ask for
    more, `by_size` for the largest first.

    The state of an optimizer is one row. Where its section is asked for, its rows have
    the names of the parameters.
    """
    if rows < _FEW and not (everything or by_size) and depth is None:
        return [
            [
                (
                    (
                        f"… {counted_noun(len(report.entries), 'tensor')} (--all, "
                        "--depth N)"
                    ),
                    "dim",
                )
            ]
        ]
    tree = leaves_of(report, everything or by_size)
    table = _Table(tree)
    rest = 0
    if everything or by_size:
        pairs = list(zip(tree.names, tree.leaves, strict=True))
        if by_size:
            # Equal ones stay in the order of the file.
            pairs.sort(key=lambda pair: -pair[1].nbytes)
        room = len(pairs) if everything else max(rows - 2, _FEW)
        # The line `1 more` would take the room of that one.
        rest = len(pairs) - room if len(pairs) > room + 1 else 0
        for name, leaf in pairs[: len(pairs) - rest]:
            table.add(name, Fold(name, leaf.look, 1, leaf.numel, leaf.nbytes))
    else:
        room = max(rows - 1 - len(tree.optimizers), 2)
        opened = _open_lines(fold(tree.names, tree.leaves), depth, room)
        # The last row says how many are left out.
        if depth is None and len(opened) > room:
            rest = len(opened) - room + 1
            opened = opened[: room - 1]
        for line in opened:
            label = "  " * line.level + line.fold.label
            count = line.fold.times if line.fold.children else 1
            # Braces that say `693 more` are what a narrow column cuts off first.
            if not line.fold.children and " more}" in label:
                count = line.fold.tensors
            if count > 1:
                label += f"  ×{count}"
            table.add(label, line.fold, shut=line.shut)
    out = table.lines(tree.optimizers, width)
    if rest:
        position = len(out) - len(tree.optimizers)
        more = "--all" if by_size else "--all, --depth N"
        out.insert(position, [(f"… {rest:,} more ({more})", "dim")])
    return out


def _open_lines(folds: tuple[Fold, ...], depth: int | None, room: int) -> list[Opened]:
    opened = lines(folds, depth, room)
    if (
        depth is not None
        or len(opened) >= min(_FEW, room)
        or not any(line.shut for line in opened)
    ):
        return opened
    # A table of one or two rows says little: the next level may fit too.
    for level in range(1, 9):
        deeper = lines(folds, level)
        if len(deeper) > room:
            return deeper
    return opened


class _Table:
    """The rows of a table; tensors that look alike get one number, for folding compares
    numbers.
    """

    def __init__(self, tree: Leaves) -> None:
        self._looks = [
            (shape_text(kind), kind.dtype.name, kind.device or "")
            for kind in tree.kinds
        ]
        self._rows: list[tuple[str, str, str, str, int, int, bool]] = []

    def add(self, label: str, fold_: Fold, *, shut: bool = False) -> None:
        shape, dtype, device = (
            self._looks[fold_.look] if isinstance(fold_.look, int) else ("", "", "")
        )
        if fold_.children:
            shape = counted_noun(fold_.tensors, "tensor") if shut else ""
            dtype, device = (dtype, device) if shut else ("", "")
        self._rows.append(
            (
                label,
                shape,
                dtype,
                device,
                fold_.numel,
                fold_.nbytes,
                bool(fold_.children),
            )
        )

    def lines(self, optimizers: Sequence[Optimizer], width: int | None) -> list[Line]:
        """The table below its header, with a row for each optimizer that is one."""
        rows = list(self._rows)
        # Rows that stand for several tensors may leave a column empty.
        is_mixed = [
            len({look[i] for look in self._looks} - {""}) > 1
            and any(row[i + 1] for row in rows)
            for i in (1, 2)
        ]
        for name, tensors, numel, nbytes in optimizers:
            rows.append(
                (
                    show(name, None),
                    f"… {counted_noun(tensors, 'tensor')}",
                    "",
                    "",
                    numel,
                    nbytes,
                    True,
                )
            )
        mixed = [
            Column(name)
            for name, shown in zip(("DTYPE", "DEVICE"), is_mixed, strict=True)
            if shown
        ]
        heads = [Column("NAME", gives_way=True), Column("SHAPE"), *mixed]
        heads += [Column("NUMEL", right=True), Column("SIZE", right=True)]

        def table_lines(dtypes: Sequence[str]) -> list[Line]:
            table: list[list[str]] = []
            for (label, shape, _, device, numel, nbytes, _), dtype in zip(
                rows, dtypes, strict=True
            ):
                middle = [
                    text
                    for text, shown in zip(
                        (dtype, show(device, 20)), is_mixed, strict=True
                    )
                    if shown
                ]
                table.append(
                    [label, shape, *middle, count_text(numel), size_text(nbytes)]
                )
            return column_lines(heads, table, width=width)

        out = table_lines([row[2] for row in rows])
        if any(
            row[0] not in line[0][0] for line, row in zip(out[1:], rows, strict=True)
        ):
            # Names say more than groups do.
            out = table_lines([short_dtype(row[2]) for row in rows])
        for line, row in zip(out[1:], rows, strict=True):
            if row[-1]:
                line[0] = (line[0][0], "group")
        return out


def shape_text(tensor: Tensor) -> str:
    """The shape in brackets, with what is unusual about the tensor."""
    text = f"[{', '.join(map(str, tensor.shape))}]"
    if (
        isinstance(tensor, Composite)
        and tensor.piece is not None
        and tensor.piece.is_cut
    ):
        text = f"[{', '.join(map(str, tensor.parts[0][1].shape))}] of {text}"
    if isinstance(tensor, Composite) and tensor.layout == "wrapper" and tensor.detail:
        text += f" {show(tensor.detail.rpartition('.')[2], 40)}"  # the class that wraps
    elif tensor.layout not in (
        "strided",
        "quantised",
    ):  # the dtype of a quantised weight says it
        text += f" {tensor.layout}"
    return text
