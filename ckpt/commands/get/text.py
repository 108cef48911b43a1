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
    show_name,
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
    if view.kind == "scalar":
        return True
    return view.kind != "tensor" and _inline_text(node, view) is not None


def get_lines(name: str, node: Node, width: int | None = None) -> list[Line]:
    """A value that is no scalar as a tree: a name, its type, and its children below,
    bounded.
    """
    view = look(node)
    head: Line = [(show(name, None), "name"), ("  ", "")]
    lines = hanging_lines(head, _summary_text(view), width, 2)
    return lines + _inside_lines(view, width, 1, LINES)


def content_lines(
    path: str, label: str, items: Sequence[Item], count: int, width: int | None = None
) -> list[Line]:
    """Return the top of a checkpoint: each name with its type, its tensors and their
    bytes.

    `count` names are there, of which `items` are the first.
    """
    rows: list[tuple[str, str]] = []
    for item in items:
        view = look(item.node)
        text = _leaf_text(item.node, view)
        if text is None:
            text = _summary_text(view)
            if item.tensors:
                tensors = counted_noun(item.tensors, "tensor")
                text += f", {tensors}, {size_text(item.nbytes)}"
        rows.append((item.name, text))
    head: Line = [(show(path, None), "head"), ("  ", "")]
    names = counted_noun(count, "name")
    lines = hanging_lines(head, f"{label}, {names} at the top", width, 2)
    return lines + _aligned_lines(rows, count, width, 1)


def tensor_lines(
    row: Row,
    role: Role,
    values: Sequence[bool | int | float | complex] | None,
    width: int | None = None,
) -> list[Line]:
    """The row of a tensor with labels, and its first elements where they were read."""
    tensor = row.tensor
    if tensor.numel < 10_000:
        elements = counted_noun(tensor.numel, "element")
    else:
        elements = f"{count_text(tensor.numel)} elements"
    shape = f"{list(tensor.shape)}  ({elements}, {size_text(tensor.nbytes)})"
    layout = "" if tensor.layout == "strided" else tensor.layout
    role_text: str = role.role
    if role.note:
        role_text += f" ({role.trust}: {show(role.note)})"
    # A fact without text has no line.
    facts = [
        ("dtype", tensor.dtype.name),
        ("shape", shape),
        ("layout", layout),
        ("device", show(tensor.device or "", None)),
        ("role", role_text),
        ("storage", show(_storage_ids(tensor))),
        ("sharded", _sharding_text(tensor)),
    ]
    if values:
        facts.append(("values", _values_text(values, tensor.numel)))
    lines: list[Line] = [[(show_name(row.entry.name, None), "name")]]
    for label, text in facts:
        if text:
            head: Line = [("  ", ""), (f"{label:<9}", "dim")]
            lines += hanging_lines(head, text, width)
    return lines


def _sharding_text(tensor: Tensor) -> str:
    """The dimensions along which a tensor was cut into parts; nothing for a whole
    one.
    """
    sharding = sharding_of(tensor)
    if sharding is None:
        return ""
    noun = "dimension" if len(sharding.dims) == 1 else "dimensions"
    dims = and_more([str(dim) for dim in sharding.dims], 8)
    return f"{sharding.parts:,} parts along {noun} {dims}"


def _storage_ids(tensor: Tensor) -> str:
    """The storages of a tensor. Sparse and quantized tensors have several."""
    if isinstance(tensor, TensorRef):
        return tensor.storage.id
    ids = [part.storage.id for _, part in tensor.parts]
    return ", ".join(dict.fromkeys(ids))


def _values_text(values: Sequence[bool | int | float | complex], count: int) -> str:
    """The first values that fit on a line."""
    text = _number_text(values[0])
    shown = 1
    for value in values[1:]:
        longer = f"{text}, {_number_text(value)}"
        if len(longer) > _VALUES:
            break
        text = longer
        shown += 1
    return f"{text}, …" if shown < count else text


def _number_text(value: bool | int | float | complex) -> str:
    if isinstance(value, int):  # bool too
        return str(value)
    return f"{value:.4g}"


def _bare_text(view: View) -> str:
    # Backslashes stay as they are: a path of Windows must come out as it went in.
    # --json is exact for all.
    if view.is_call:
        return show_literal(scalar_text(view, TEXT))
    value = view.value
    if isinstance(value, ByteStr):
        return show_literal(value.text)
    if isinstance(value, str):
        return show_literal(str(value))
    # Python's own type, for the view may have that of a wrapper, which would be shown.
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
    if view.kind == "sequence" and len(view.children) > 1:
        shown = view.children[: CHILDREN * _ACROSS]
        if all(map(_is_number, shown)):
            return _number_lines(shown, len(view.children), width, depth, max(room, 1))
    children, count = _first_children(view)
    return _child_lines(children, count, width, depth, room)


def _is_number(node: Node) -> bool:
    return type(look(node).value) in (int, float)


def _number_lines(
    shown: Sequence[Node], count: int, width: int | None, depth: int, room: int
) -> list[Line]:
    """Numbers in columns, each line behind the place of its first one in the list."""
    texts = [show_literal(scalar_text(look(child), _LONG)) for child in shown]
    cell = max(map(cells, texts)) + 2
    indent = "  " * depth
    digits = len(str(count))
    room_across = (width or _PIPE) - len(indent) - digits - 1
    across = _round_count(room_across // cell)
    end = min(len(texts), across * min(CHILDREN, room))
    lines: list[Line] = []
    for first in range(0, end, across):
        row = ""
        for text in texts[first : min(first + across, end)]:
            row += " " * (cell - cells(text)) + text
        lines.append([(f"{indent}{first:>{digits}}", "dim"), (row, "")])
    if count > end:
        lines.append(_more_line(count - end, depth))
    return lines


def _round_count(most: int) -> int:
    """So many numbers on a line that the places at its begin are round, at most
    `most`.
    """
    for count in (_ACROSS, 10, 5):
        if most >= count:
            return count
    return max(most, 1)


def _child_lines(
    children: Sequence[tuple[str, Node]],
    count: int,
    width: int | None,
    depth: int,
    room: int,
) -> list[Line]:
    """Return the lines of the first children of a value, which has `count` of them,
    each with the lines below it, at most about `room`.
    """
    rows: list[tuple[str, str]] = []
    opened: list[View | None] = []
    for name, child in children:
        view = look(child)
        text = _leaf_text(child, view)
        if text is None:
            rows.append((name, _summary_text(view)))
            opened.append(view)
        else:
            rows.append((name, text))
            opened.append(None)
    lines: list[Line] = []
    own_lines = _aligned_lines(rows, len(rows), width, depth)
    for line, view_inside in zip(own_lines, opened, strict=True):
        if len(lines) >= room:
            lines.append([(f"{'  ' * depth}… (--json prints all)", "dim")])
            return lines
        lines.append(line)
        if view_inside is not None and depth < DEPTH:
            lines += _inside_lines(view_inside, width, depth + 1, room - len(lines))
    if count > len(rows):
        lines.append(_more_line(count - len(rows), depth))
    return lines


def _aligned_lines(
    rows: Sequence[tuple[str, str]], count: int, width: int | None, depth: int
) -> list[Line]:
    """Return names and texts as two columns, and a line for the rest of `count` that
    has no row.
    """
    indent = "  " * depth
    names = [show(name) or "''" for name, _ in rows]
    if width is not None:
        most = max(width // 2 - len(indent), 16)
        names = [shorten_name(name, most) for name in names]
    # One long name moves its own text alone, and not those of its siblings.
    sizes = [cells(name) for name in names]
    column = max((size for size in sizes if size <= _KEY), default=0)
    lines: list[Line] = []
    for name, size, (_, text) in zip(names, sizes, rows, strict=True):
        blanks = " " * max(column - size, 0)
        begin = f"{indent}{name}{blanks}  "
        if width is not None:
            text = cut(text, max(width - cells(begin), 16))
        lines.append([(begin, ""), (text, "")])
    if count > len(rows):
        lines.append(_more_line(count - len(rows), depth))
    return lines


def _more_line(count: int, depth: int) -> Line:
    return [(f"{'  ' * depth}… {count:,} more (--json prints all)", "dim")]


def _leaf_text(node: Node, view: View) -> str | None:
    """Return a value that has no lines below it as text, or None for any other."""
    if view.kind == "scalar":
        # OmegaConf wraps every value of its configurations, so the name of the wrapper
        # would stand on every line.
        if view.type.startswith("omegaconf."):
            view = view._replace(type="str")
        return show_literal(scalar_text(view, _LONG))
    if view.kind == "tensor":
        tensor = view.tensor
        text = f"{tensor.dtype.name} {list(tensor.shape)}"
        if tensor.device:
            text += f" on {show(tensor.device)}"
        return text
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
    """Tell whether a container is empty, or a list of scalars."""
    if not view.children:
        return True
    return view.kind == "sequence" and _are_scalars(view.children)


def _are_scalars(nodes: Iterable[Node]) -> bool:
    return all(look(node).kind == "scalar" for node in nodes)


def _summary_text(view: View) -> str:
    """The type of a container, and how many values it has."""
    noun = "item" if view.kind == "sequence" else "field"
    count = len(view.children)
    if view.kind == "module":
        # Its parameters, buffers and children count, not the dicts that hold them.
        count = sum(1 for _ in named_children(view))
    return f"{show_literal(view.type)}, {counted_noun(count, noun)}"
