"""Nodes of the inert tree as text in the style of Python: values, calls, containers.
Nothing is escaped here, and only the caller's limit cuts text.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.model.errors import UnreadableError
from ckpt.model.nodes import ByteStr, Node, Opaque
from ckpt.tree.view import View, look


def brief_text(node: Node, limit: int = 80, depth: int = 3) -> str:
    """A node as one short text in the style of Python, cut at about `limit` characters.
    Not yet escaped.
    """
    text = ""
    for piece in text_pieces(node, limit, depth):
        text += piece
        if len(text) > limit:
            return text[: limit - 1] + "…"
    return text


BRACKETS = {"tuple": ("(", ")"), "list": ("[", "]"), "set": ("{", "}")}


REPEATED = 200_000
"""The most parts that may come from containers and texts that were met before."""
_TEXT_PART = 64
"""Characters of a text that count as one part."""


class Repeats:
    """Counts what a value repeats. Lists may hold each other many times, so that a few
    bytes expand to gigabytes.
    """

    def __init__(self) -> None:
        self._left = REPEATED
        self._met: dict[int, Node] = {}  # the node is kept, so that its id stays taken

    def count(self, node: Node, view: View) -> None:
        """Count a node before it is expanded. Raises UnreadableError when too much of
        the value repeats itself.
        """
        if view.kind == "scalar":
            text = view.value
            if not isinstance(text, (str, bytes, bytearray)) or len(text) < _TEXT_PART:
                return
            parts = len(text) // _TEXT_PART
        else:
            parts = 1 + len(view.children)
        if id(node) in self._met:
            self._left -= parts
            if self._left < 0:
                raise UnreadableError(
                    f"the value repeats itself: over {REPEATED:,} parts occur more "
                    "than once"
                )
        self._met[id(node)] = node


def text_pieces(
    node: Node, limit: int, depth: int, repeats: Repeats | None = None
) -> Iterator[str]:
    """The text of a node in pieces. Strings are cut at `limit`, containers deeper than
    `depth` are left out.

    Raises UnreadableError when the value holds its own parts more often than `repeats`
    allows.
    """
    view = look(node)
    if repeats is not None:
        repeats.count(node, view)
    if view.kind == "scalar":
        yield scalar_text(view, limit)
    elif view.kind == "tensor":
        yield f"tensor {view.tensor.dtype.name} {list(view.tensor.shape)}"
    elif view.kind == "storage":
        yield f"storage of {view.storage.nbytes:,} bytes"
    elif depth == 0:
        yield "…"
    elif view.kind == "sequence":
        opening, closing = BRACKETS.get(view.type, (f"{view.type}([", "])"))
        yield opening
        for index, child in enumerate(view.children):
            if index:
                yield ", "
            yield from text_pieces(child, limit, depth - 1, repeats)
        # In Python `(1)` is a number, and `(1,)` a tuple.
        if view.type == "tuple" and len(view.children) == 1:
            yield ","
        yield closing
    elif view.kind == "mapping":
        yield "{" if view.type == "dict" else f"{view.type}({{"
        for index, (key, child) in enumerate(
            zip(view.keys, view.children, strict=True)
        ):
            if index:
                yield ", "
            yield from text_pieces(key, limit, depth - 1, repeats)
            yield ": "
            yield from text_pieces(child, limit, depth - 1, repeats)
        yield "}" if view.type == "dict" else "})"
    else:
        yield f"{view.type}("
        for index, (key, child) in enumerate(
            zip(view.keys, view.children, strict=True)
        ):
            if index:
                yield ", "
            if isinstance(key, str):
                yield f"{str(key)[:limit]}="
            yield from text_pieces(child, limit, depth - 1, repeats)
        yield ")"


def scalar_text(view: View, limit: int = 80) -> str:
    """A scalar as Python source: strings quoted, huge ints by their size, objects as
    `Class(value)`.
    """
    value = view.value
    # bool before int, of which it is a subclass.
    if isinstance(value, bool) or value is None:
        text = str(value)
    elif isinstance(value, int):
        bits = value.bit_length()
        # Python refuses to write out an int of more than 4,300 digits.
        text = str(value) if bits <= 512 else f"<int of {bits} bits>"
    elif isinstance(value, float):
        text = repr(value)
    elif isinstance(value, ByteStr) and not value.isascii():
        text = repr(value.raw[:limit])
    elif isinstance(value, str):
        plain = str(value)
        if view.type in _UNQUOTED:
            return plain[:limit]
        text = repr(plain[:limit] + ("…" if len(plain) > limit else ""))
    else:
        # Nothing else is left of the scalars.
        assert isinstance(value, (bytes, bytearray))
        text = repr(bytes(value[:limit]))
    if view.type in _PLAIN_TYPES:
        return text
    return f"{view.type}({text})"


_UNQUOTED = frozenset(("torch.dtype", "name", "complex", "range", "slice"))
"""Types whose value is the text of an expression already."""


_PLAIN_TYPES = frozenset({"str", "int", "float", "bool", "None", "bytes", "bytearray"})


def call_text(call: Opaque, limit: int = 120) -> str:
    """A call that the loader would make, as text: `posix.system('touch x')`."""
    args: list[str] = [brief_text(arg, limit, 2) for arg in call.args[:8]]
    if len(call.args) > 8:
        args.append("…")
    name = call.class_name
    # A callee has no name where it is the result of another call.
    if type(call.func) is Opaque and name.startswith("("):
        name = f"({brief_text(call.func, limit, 2)})"
    text = f"{name}({', '.join(args)})"
    return text if len(text) <= limit * 2 else text[: limit * 2 - 1] + "…"
