"""`ckpt get` as text: bare values, made for `$(…)`."""

from __future__ import annotations

from ckpt.checkpoint import Node
from ckpt.names import show
from ckpt.objects import View, brief, look, scalar_text


def get_text(node: Node) -> str:
    """A value as text: strings and numbers bare, lists and dicts in the style of Python, all on one line."""
    view = look(node)
    if view.kind == "scalar":
        return _bare(view)
    return show(brief(node, 100_000, 20), None)


def _bare(view: View) -> str:
    value = view.value
    if isinstance(value, str):
        return show(str(value), None)
    return show(
        scalar_text(View("scalar", type(value).__name__ if value is not None else "None", value), 100_000),
        None,
    )
