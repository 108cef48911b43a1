"""What is left of an incomplete checkpoint: its whole tensors, and the values that were read."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.errors import LossError, UnreadableError
from ckpt.findings import LOST
from ckpt.jobs.rewrite.report import Leftover, edited
from ckpt.limits import Limits
from ckpt.nodes import Dict, Node
from ckpt.rows import replace
from ckpt.text import and_more, plural, show


def is_partial(checkpoint: Checkpoint) -> bool:
    """Whether tensors or values of a checkpoint are missing."""
    return bool(checkpoint.left_out) or any(row.code in LOST for row in checkpoint.notices)


def refuse_lost(checkpoint: Checkpoint) -> None:
    """Raise UnreadableError where values of a checkpoint are missing, which a copy of all of it would lack."""
    if checkpoint.left_out:
        listed = and_more(
            [f"{show(name, 60)} ({show(why, 100)})" for name, why in checkpoint.left_out], 3, "; "
        )
        raise UnreadableError(
            f"{plural(len(checkpoint.left_out), 'value')} missing: {listed}", path=checkpoint.path
        )


def whole_part(checkpoint: Checkpoint, limits: Limits) -> tuple[Checkpoint, tuple[Leftover, ...]]:
    """The checkpoint without the tensors of which a part is missing, and what is missing.

    Raises LossError where no tensor is whole.
    """
    whys = {name: row.message for row in checkpoint.notices if row.code in LOST for name in row.tensors}
    gone = [entry for entry in checkpoint.tensors if entry.name in whys]
    if gone and len(gone) == len(checkpoint.tensors):
        problem = f"none of {plural(len(gone), 'tensor')} is whole"
        raise LossError(problem, path=checkpoint.path)
    rows = [Leftover(entry.name, "not whole", entry.tensor.nbytes) for entry in gone]
    rows += [Leftover(name, why) for name, why in checkpoint.left_out]
    marks = {id(entry.tensor) for entry in gone}
    made = edited(checkpoint, _without(checkpoint.root, marks), limits) if gone else checkpoint
    notices = tuple(row for row in checkpoint.notices if row.code not in LOST)
    return replace(made, notices=notices, left_out=()), tuple(rows)


def _without(node: Node, gone: set[int]) -> Node:
    """The tree without tensors. A list that loses one becomes a dict, so that the others keep their numbers."""
    if type(node) is list:
        items = [(place, item) for place, item in enumerate(node) if id(item) not in gone]
        if len(items) == len(node):
            return [_without(item, gone) for item in node]
        numbered = Dict()
        numbered.set([place for place, _ in items], [_without(item, gone) for _, item in items])
        return numbered
    if type(node) is not Dict:
        return node
    rows = [
        (key, _without(value, gone))
        for key, value in zip(node.keys, node.values, strict=True)
        if id(value) not in gone
    ]
    made = Dict()
    made.set([key for key, _ in rows], [value for _, value in rows])
    return made
