"""`ckpt get` as text: bare values, made for `$(…)`."""

from __future__ import annotations

from ckpt.errors import UnreadableError
from ckpt.nodes import ByteStr, Node
from ckpt.text import show_literal
from ckpt.tree.json import PARTS
from ckpt.tree.literals import pieces, scalar_text
from ckpt.tree.view import View, look

TEXT = 2**31
"""Characters of one string: all of them, the pickle is bounded already."""


def get_text(node: Node) -> str:
    """A value as text: strings and numbers bare, lists and dicts in the style of Python, all on one line."""
    view = look(node)
    if view.kind == "scalar":
        return _bare(view)
    found: list[str] = []
    for piece in pieces(node, TEXT, 200):
        found.append(piece)
        if len(found) > PARTS:
            raise UnreadableError(f"a value that expands to over {PARTS:,} parts")
    return show_literal("".join(found))


def _bare(view: View) -> str:
    # Backslashes stay as they are: a path of Windows must come out as it went in. --json is exact for all.
    value = view.value
    if isinstance(value, str):
        return show_literal(value.text if isinstance(value, ByteStr) else str(value))
    kind = "None" if value is None else type(value).__name__
    return show_literal(scalar_text(View("scalar", kind, value), TEXT))
