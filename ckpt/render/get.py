"""`ckpt get` as text: bare values, made for `$(…)`."""

from __future__ import annotations

from ckpt.checkpoint import ByteStr, Node
from ckpt.names import show_literal
from ckpt.objects import View, brief, look, scalar_text


def get_text(node: Node) -> str:
    """A value as text: strings and numbers bare, lists and dicts in the style of Python, all on one line."""
    view = look(node)
    if view.kind == "scalar":
        return _bare(view)
    return show_literal(brief(node, 100_000, 20))


def _bare(view: View) -> str:
    # Backslashes stay as they are: a path of Windows must come out as it went in. --json is exact for all.
    value = view.value
    if isinstance(value, str):
        return show_literal(value.text if isinstance(value, ByteStr) else str(value))
    kind = "None" if value is None else type(value).__name__
    return show_literal(scalar_text(View("scalar", kind, value), 100_000))
