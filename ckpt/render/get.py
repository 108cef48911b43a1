"""`ckpt get` as text: bare values, made for `$(…)`."""

from __future__ import annotations

from ckpt.nodes import ByteStr, Node
from ckpt.text import show_literal
from ckpt.tree.literals import Repeats, pieces, scalar_text
from ckpt.tree.view import View, look

TEXT = 2**31
"""Characters of one string: all of them, the pickle is bounded already."""


def get_text(node: Node) -> str:
    """A value as text: strings and numbers bare, lists and dicts in the style of Python, all on one line.

    Raises UnreadableError when the value repeats its own parts too often.
    """
    view = look(node)
    if view.kind == "scalar":
        return _bare(view)
    return show_literal("".join(pieces(node, TEXT, 200, Repeats())))


def _bare(view: View) -> str:
    # Backslashes stay as they are: a path of Windows must come out as it went in. --json is exact for all.
    value = view.value
    if isinstance(value, str):
        return show_literal(value.text if isinstance(value, ByteStr) else str(value))
    kind = "None" if value is None else type(value).__name__
    return show_literal(scalar_text(View("scalar", kind, value), TEXT))
