"""`ckpt get` as text: bare scalars, made for `$(…)`, and all else as a tree that a
person can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.commands.get.get import Item
from ckpt.commands.inspect.inspect import Row
from ckpt.evidence.roles import Role
from ckpt.model.nodes import ByteStr, Node
from ckpt.model.tensors import Tensor, TensorRef, sharding_of
from ckpt.model.text import (
    and_more,
    count_text,
    counted_noun,
    show,
    show_literal,
    size_text,
)
from ckpt.surface.text.lines import Line, cells, cut, hanging_lines, shorten_name
from ckpt.tree.find import named_children
from ckpt.tree.literals import Repeats, brief_text, scalar_text, text_pieces
from ckpt.tree.view import View, look

TEXT = 2**31
"""Characters of one string: all of them, the pickle is bounded already."""
CHILDREN, DEPTH, LINES = 40, 4, 200
"""The most that a tree shows: the children of one value, its levels, and its lines."""
_KEY = 40
"""Cells of the widest name that moves the values of its siblings."""
_ACROSS = 20
"""The most numbers of a list on one line."""
_PIPE = 80
"""Cells of a line of numbers where there is no screen."""
_SHORT = 72
"""Characters of a list that stands on one line."""
_VALUES = 64
"""Characters of the first elements of a tensor."""
_LONG = 200
"""Characters of a string inside of a tree."""


def get_text(node: Node) -> str:
    """A value as text: strings and numbers bare, lists and dicts in the style of
    Python, all on one line.

    Raises UnreadableError when the value repeats its own parts too often.
    """
    view = look(node)
    if view.kind == "scalar":
        return _bare_text(view)
    return show_literal("".join(text_pieces(node, TEXT, 200, Repeats())))


def is_short(node: Node) -> bool:
    """Tell whether `get_text` writes a value on one line.

    That is a scalar, an empty container, or a short list of scalars.
    """
    view = look(node)
    return view.kind == "scalar" or (
        view.kind != "tensor" and _inline_text(node, view) is not None
    )


def get_lines(name: str, node: Node, width: int | None = None) -> list[Line]:
    """A value that is no scalar as a tree: a name, its type, and its children below,
    bounded.
    """
    lines = hanging_lines(
        [(show(name, None), "name"), ("  ", "")], _summary_text(look(node)), width, 2
    )
    return [*lines, *_inside_lines(look(node), width, 1, LINES)]


def content_lines(
    path: str, label: str, items: Sequence[Item], width: int | None = None
) -> list[Line]:
    """Return the top of a checkpoint: each name with its type, its tensors and their
    bytes.
    """
    head: Line = [(show(path, None), "head"), ("  ", "")]
    rows = []
    for item in items:
        view = look(item.node)
        text = _leaf_text(item.node, view)
        if text is None:
            text = _summary_text(view)
            if item.tensors:
                text += (
                    f", {counted_noun(item.tensors, 'tensor')}, "
                    f"{size_text(item.nbytes)}"
                )
        rows.append((item.name, text))
    return [
        *hanging_lines(
            head, f"{label}, {counted_noun(len(items), 'name')} at the top", width, 2
        ),
        *_aligned_lines(rows[:CHILDREN], len(rows), width, 1),
    ]


def tensor_lines(
    row: Row,
    role: Role,
    values: Sequence[bool | int | float | complex] | None,
    width: int | None = None,
) -> list[Line]:
    """The row of a tensor with labels, and its first elements where they were read."""
    tensor = row.tensor
    elements = (
        counted_noun(tensor.numel, "element")
        if tensor.numel < 10_000
        else f"{count_text(tensor.numel)} elements"
    )
    certainty = f" ({role.trust}: {show(role.note)})" if role.note else ""
    facts = [
        ("dtype", tensor.dtype.name),
        ("shape", f"{list(tensor.shape)}  ({elements}, {size_text(tensor.nbytes)})"),
        ("layout", "" if tensor.layout == "strided" else tensor.layout),
        ("device", show(tensor.device or "", None)),
        ("role", f"{role.role}{certainty}"),
        ("storage", show(_storage_ids(tensor))),
        ("sharded", _sharding_text(tensor)),
    ]
    if values:
        facts.append(("values", _values_text(values, tensor.numel)))
    shown: list[Line] = [[(show(row.entry.name, None), "name")]]
    for label, text in facts:
        shown += (
            hanging_lines([("  ", ""), (f"{label:<9}", "dim")], text, width)
            if text
            else []
        )
    return shown


def _sharding_text(tensor: Tensor) -> str:
    sharding = sharding_of(tensor)
    if sharding is None:
        return ""
    dims = and_more([str(dim) for dim in sharding.dims], 8)
    return (
        f"{sharding.parts:,} parts along "
        f"dimension{'' if len(sharding.dims) == 1 else 's'} {dims}"
    )


def _storage_ids(tensor: Tensor) -> str:
    if isinstance(tensor, TensorRef):
        return tensor.storage.id
    return ", ".join(dict.fromkeys(part.storage.id for _, part in tensor.parts))


def _values_text(values: Sequence[bool | int | float | complex], count: int) -> str:
    """The first values that fit on a line."""
    text = _number_text(values[0])
    for number, value in enumerate(values[1:], 1):
        longer = f"{text}, {_number_text(value)}"
        if len(longer) > _VALUES:
            return f"{text}, …" if number < count else text
        text = longer
    return f"{text}, …" if count > len(values) else text


def _number_text(value: bool | int | float | complex) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _bare_text(view: View) -> str:
    # Backslashes stay as they are: a path of Windows must come out as it went in.
    # --json is exact for all.
    value = view.value
    if isinstance(value, str):
        return show_literal(value.text if isinstance(value, ByteStr) else str(value))
    kind = "None" if value is None else type(value).__name__
    return show_literal(scalar_text(View("scalar", kind, value), TEXT))


# --- trees ----------------------------------------------------------------------------


def _first_children(view: View) -> tuple[list[tuple[str, Node]], int]:
    """The first children of a value with their names, and how many there are."""
    first: list[tuple[str, Node]] = []
    count = 0
    for _, name, child in named_children(view):
        count += 1
        if count <= CHILDREN:
            first.append((name, child))
    return first, count


def _inside_lines(view: View, width: int | None, depth: int, room: int) -> list[Line]:
    """The lines below a value: its children, or for a list of numbers the numbers."""
    shown = view.children[: CHILDREN * _ACROSS] if view.kind == "sequence" else ()
    if len(shown) > 1 and all(
        type(look(child).value) in (int, float) for child in shown
    ):
        return _number_lines(shown, len(view.children), width, depth, max(room, 1))
    return _child_lines(_first_children(view), width, depth, room)


def _number_lines(
    shown: Sequence[Node], count: int, width: int | None, depth: int, room: int
) -> list[Line]:
    """Numbers in columns, each line behind the place of its first one in the list."""
    texts = [show_literal(scalar_text(look(child), _LONG)) for child in shown]
    cell = max(map(cells, texts)) + 2
    begin = 2 * depth + len(str(count)) + 1
    fit = min(max(((width or _PIPE) - begin) // cell, 1), _ACROSS)
    across = next((step for step in (_ACROSS, 10, 5) if fit >= step), fit)
    end = min(len(texts), across * min(CHILDREN, room))
    lines: list[Line] = []
    for first in range(0, end, across):
        row = "".join(
            f"{' ' * (cell - cells(text))}{text}"
            for text in texts[first : min(first + across, end)]
        )
        lines.append([(f"{'  ' * depth}{first:>{len(str(count))}}", "dim"), (row, "")])
    return [*lines, _more_line(count - end, depth)] if count > end else lines


def _child_lines(
    children: tuple[list[tuple[str, Node]], int],
    width: int | None,
    depth: int,
    room: int,
) -> list[Line]:
    """Return the lines of the children of a value, each with the lines below it, at
    most about `room`.
    """
    rows = [
        (name, _leaf_text(child, look(child)), child) for name, child in children[0]
    ]
    texts = [
        (name, _summary_text(look(child)) if text is None else text)
        for name, text, child in rows
    ]
    lines: list[Line] = []
    for line, (_, text, child) in zip(
        _aligned_lines(texts, children[1], width, depth), rows, strict=False
    ):
        if len(lines) >= room:
            return [*lines, [(f"{'  ' * depth}… (--json prints all)", "dim")]]
        lines.append(line)
        if text is None and depth < DEPTH:
            lines += _inside_lines(look(child), width, depth + 1, room - len(lines))
    if children[1] > len(rows):
        lines.append(_more_line(children[1] - len(rows), depth))
    return lines


def _aligned_lines(
    rows: Sequence[tuple[str, str]], count: int, width: int | None, depth: int
) -> list[Line]:
    """Return names and texts as two columns, and a line for the rest of `count` that
    has no row.
    """
    most = None if width is None else max(width // 2 - 2 * depth, 16)
    shown = [(show(name) or "''", text) for name, text in rows]
    shown = [
        (name if most is None else shorten_name(name, most), text)
        for name, text in shown
    ]
    column = max(
        (size for size in (cells(name) for name, _ in shown) if size <= _KEY), default=0
    )
    lines: list[Line] = []
    for name, text in shown:
        begin = f"{'  ' * depth}{name}{' ' * max(column - cells(name), 0)}  "
        room = None if width is None else max(width - cells(begin), 16)
        lines.append([(begin, ""), (text if room is None else cut(text, room), "")])
    return (
        [*lines, _more_line(count - len(rows), depth)] if count > len(rows) else lines
    )


def _more_line(count: int, depth: int) -> Line:
    return [(f"{'  ' * depth}… {count:,} more (--json prints all)", "dim")]


def _leaf_text(node: Node, view: View) -> str | None:
    """Return a value that has no lines below it as text, or None for any other."""
    if view.kind == "scalar":
        if view.type.startswith(
            "omegaconf."
        ):  # every value of its configurations is wrapped
            view = view._replace(type="str")
        return show_literal(scalar_text(view, _LONG))
    if view.kind == "tensor":
        where = f" on {show(view.tensor.device)}" if view.tensor.device else ""
        return f"{view.tensor.dtype.name} {list(view.tensor.shape)}{where}"
    if view.kind == "storage":
        return f"storage of {size_text(view.storage.nbytes)}"
    return _inline_text(node, view)


def _inline_text(node: Node, view: View) -> str | None:
    """Return an empty container or a short list of scalars on one line, or None for all
    else.
    """
    if view.kind == "storage":
        return show_literal(brief_text(node))
    if len(view.children) > _SHORT or not _is_plain_view(view):
        return None
    text = "".join(text_pieces(node, _SHORT, 2))
    return show_literal(text) if len(text) <= _SHORT else None


def _is_plain_view(view: View) -> bool:
    return not view.children or (
        view.kind == "sequence" and _are_scalars(view.children)
    )


def _are_scalars(nodes: Iterable[Node]) -> bool:
    return all(look(node).kind == "scalar" for node in nodes)


def _summary_text(view: View) -> str:
    noun = "item" if view.kind == "sequence" else "field"
    count = (
        len(view.children)
        if view.kind != "module"
        else sum(1 for _ in named_children(view))
    )
    return f"{show_literal(view.type)}, {counted_noun(count, noun)}"
