"""What is left of an incomplete checkpoint: its whole tensors, and the values that were read."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from ckpt.checkpoint import Checkpoint
from ckpt.errors import LossError
from ckpt.findings import LOST
from ckpt.jobs.check.like import Likeness
from ckpt.jobs.rewrite.report import Leftover, edited
from ckpt.limits import Limits
from ckpt.nodes import Dict, Node, Opaque, tensor_of
from ckpt.rows import replace
from ckpt.text import and_more, plural, show


def is_partial(checkpoint: Checkpoint) -> bool:
    """Whether tensors or values of a checkpoint are missing."""
    return bool(checkpoint.left_out) or any(row.code in LOST for row in checkpoint.notices)


def refuse_lost(checkpoint: Checkpoint) -> None:
    """Raise LossError where values of a distributed checkpoint are missing, which a copy of all of it would lack."""
    if checkpoint.left_out and checkpoint.traits.fills_a_state:
        listed = and_more(
            [f"{show(name, 60)} ({show(why, 100)})" for name, why in checkpoint.left_out], 3, "; "
        )
        raise LossError(
            f"{plural(len(checkpoint.left_out), 'value')} missing: {listed}", path=checkpoint.path
        )


def whole_part(
    checkpoint: Checkpoint, limits: Limits, like: Likeness | None = None
) -> tuple[Checkpoint, tuple[Leftover, ...]]:
    """The checkpoint without the tensors of which a part is missing, and what is missing; also by another save.

    Raises LossError where no tensor is whole.
    """
    whys = {name: row.message for row in checkpoint.notices if row.code in LOST for name in row.tensors}
    said: dict[str, str] = {}
    if like is not None:
        other = show(like.path, 60)
        said |= dict.fromkeys(like.reshaped, f"another shape than in {other}")
        said |= {name: f"only in {other}" for name in like.missing if name not in whys}
        whys |= said
    gone = [entry for entry in checkpoint.tensors if entry.name in whys]
    if gone and len(gone) == len(checkpoint.tensors):
        problem = f"none of {plural(len(gone), 'tensor')} is whole"
        raise LossError(problem, path=checkpoint.path)
    rows = [Leftover(entry.name, said.get(entry.name, "not whole"), entry.tensor.nbytes) for entry in gone]
    listed = {entry.name for entry in gone}
    rows += [Leftover(name, said.get(name, "not whole")) for name in whys if name not in listed]
    rows += [Leftover(name, why) for name, why in checkpoint.left_out]
    made = checkpoint
    if gone:
        made = edited(checkpoint, _Without(id(entry.tensor) for entry in gone).run(checkpoint.root), limits)
    notices = tuple(row for row in checkpoint.notices if row.code not in LOST)
    return replace(made, notices=notices, left_out=()), tuple(rows)


class _Without:
    """Makes trees without tensors. A list that loses one becomes a dict, so that the others keep their numbers."""

    def __init__(self, gone: Iterable[int]) -> None:
        self._gone = set(gone)
        self._made: dict[int, Node] = {}

    def run(self, node: Node) -> Node:
        """The tree below a node, where what is one object stays one. Trees are at most as deep as the limit `depth`."""
        if type(node) not in (list, Dict, Opaque) or tensor_of(node) is not None:
            return node
        if id(node) not in self._made:
            self._made[id(node)] = node  # of a cycle
            self._made[id(node)] = self._without(node)
        return self._made[id(node)]

    def _without(self, node: Node) -> Node:
        if type(node) is list:
            rows = [(place, item) for place, item in enumerate(node) if self._stays(item)]
            if len(rows) == len(node):
                return [self.run(item) for item in node]
            numbered = Dict()
            numbered.set([place for place, _ in rows], [self.run(item) for _, item in rows])
            return numbered
        assert isinstance(node, (Dict, Opaque))
        made = copy(node)
        pairs = [row for row in zip(node.keys, node.values, strict=True) if self._stays(row[1])]
        made.keys = [key for key, _ in pairs]
        made.values = [self.run(value) for _, value in pairs]
        return made

    def _stays(self, node: Node) -> bool:
        return id(tensor_of(node)) not in self._gone
