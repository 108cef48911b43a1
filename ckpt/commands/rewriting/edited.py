"""The checkpoint over another tree, with the same file behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Container, Entry, Traits
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import replace
from ckpt.model.tensors import Storage, parts_of
from ckpt.tree.find import (
    metadata_of,
    tied_aliases,
    with_metadata,
    with_unique_names,
)
from ckpt.tree.walk import flatten_tree


def edited_checkpoint(
    checkpoint: Checkpoint,
    root: Node,
    limits: Limits,
    *,
    traits: Traits | None = None,
    origin: Literal["same"] | None = "same",
) -> Checkpoint:
    """The checkpoint over another tree, with the same file behind it. Raises
    LimitError, UnreadableError.

    `origin=None` takes away what its format keeps for its own writer.
    """
    # The rows of the source fitted, and those of the result may be as many.
    flat = flatten_tree(root, limits, Budget(limits, checkpoint.nbytes))
    # Keys such as 1 and "1" read as one name: a mark tells them apart.
    tensors, _ = with_unique_names(flat.tensors)
    values, _ = with_unique_names(flat.values)
    return replace(
        checkpoint,
        root=root,
        tensors=tuple(tensors),
        storages=storages_of(tensors),
        values=tuple(values),
        containers=tuple(_in_order(checkpoint, flat.containers)),
        is_edited=True,
        traits=traits or checkpoint.traits,
        origin=checkpoint.origin if origin == "same" else None,
    )


def _in_order(checkpoint: Checkpoint, rows: list[Container]) -> list[Container]:
    """Put the containers of an edited tree in order. Several files keep the order of
    their reader.

    There the root comes last, and only the weights are its own: the other files lie
    below keys of it.
    """
    if (
        len(checkpoint.containers) < 2
        or checkpoint.containers[-1].path
        or not rows
        or rows[0].path
    ):
        return rows
    root, inner = rows[0], rows[1:]
    # Keys of the root that lead to another file are no tensors of the root itself.
    others = {row.path[0] for row in inner}
    keys = tuple(key for key in root.keys if key not in others)
    last = min([row.first for row in inner], default=root.last)
    return [*inner, root._replace(keys=keys, last=last)]


def storages_of(tensors: Sequence[Entry]) -> tuple[Storage, ...]:
    """The storages that tensors look into, each once, in their order."""
    # A dict without values: a set that keeps its order.
    storages: dict[Storage, None] = {}
    for entry in tensors:
        for part in parts_of(entry.tensor):
            storages[part.storage] = None
    return tuple(storages)


def with_ties(survey: Survey, limits: Limits) -> Survey:
    """A checkpoint of safetensors with the tied tensors that its metadata notes, as
    tensors under both names.
    """
    checkpoint = survey.checkpoint
    if checkpoint.traits.keeps_ties:
        return survey
    others = tied_aliases(checkpoint)
    if not others:
        return survey
    texts = {
        name: text
        for name, text in metadata_of(checkpoint.root).items()
        if name not in others
    }
    root = with_metadata(checkpoint.root, {})
    # A tied tensor is one node under two keys: so it stays one memory.
    nodes = dict(zip(map(str, root.keys), root.values, strict=True))
    root.set(list(others), [nodes[name] for name in others.values()])
    return Survey(
        edited_checkpoint(checkpoint, with_metadata(root, texts), limits), survey.model
    )
