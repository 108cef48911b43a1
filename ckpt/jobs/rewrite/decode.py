"""Text that Python 2 wrote, as strings for good: what `--encoding` does."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.errors import UsageError
from ckpt.nodes import ByteStr, Dict, Node, Opaque, is_tuple
from ckpt.pickles.edit import Edit
from ckpt.text import show
from ckpt.tree.arrays import as_bytes
from ckpt.tree.scalars import class_of

ENCODINGS = ("latin1", "utf-8", "ascii", "cp1252")


class Decode(Edit):
    """The byte strings of Python 2 as text, but for those that hold data."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding
        self._texts: dict[int, str] = {}
        self.decoded = 0

    def leaf(self, node: Node) -> Node:
        return self._decoded(node) if type(node) is ByteStr else node

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        return [self.leaf(key) for key in keys]

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        name = class_of(call)
        data = {"scalar": 1, "_reconstruct": 2, "datetime": 0, "date": 0, "time": 0}.get(
            name.rpartition(".")[2] if name.startswith(("numpy.", "datetime.")) else ""
        )
        return tuple(
            [
                as_bytes(arg) if i == data and type(arg) is ByteStr else self.leaf(arg)
                for i, arg in enumerate(call.args)
            ]
        )

    def state(self, call: Opaque, state: Node) -> Node:
        if class_of(call).endswith(".multiarray._reconstruct") and is_tuple(state):
            return tuple([as_bytes(item) if type(item) is ByteStr else item for item in state])
        return state

    def _decoded(self, node: ByteStr) -> str:
        if id(node) not in self._texts:
            try:
                self._texts[id(node)] = node.raw.decode(self._encoding)
            except UnicodeDecodeError:
                raise UsageError(
                    f"a text is not {self._encoding}: {show(str(node), 60)}",
                    hint="--encoding latin1 takes any",
                ) from None
            self.decoded += not node.isascii()
        return self._texts[id(node)]
