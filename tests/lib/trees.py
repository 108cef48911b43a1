"""All that jobs can see of a checkpoint, in plain values: what two ways of reading give
can be compared.
"""

from __future__ import annotations

from ckpt.model.checkpoint import Checkpoint
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, Set
from ckpt.model.tensors import Composite, TensorRef


def dump(checkpoint: Checkpoint | str) -> object:
    """Everything that jobs can see of a checkpoint, with storages and repeated nodes by
    number.
    """
    if isinstance(checkpoint, str):
        return checkpoint
    seen: dict[int, int] = {}

    def tensor(ref: TensorRef | Composite) -> object:
        if isinstance(ref, Composite):
            return (
                "composite",
                ref.layout,
                ref.shape,
                [(label, tensor(part)) for label, part in ref.parts],
            )
        place = ref.storage.place
        return (*ref[1:], ref.storage[:4], place and place[1:], ref.storage.crc)  # type: ignore[index]

    def node(value: Node, depth: int = 0) -> object:
        ref = (
            value
            if type(value) is TensorRef
            else value.meaning
            if type(value) is Opaque
            else None
        )
        if isinstance(ref, (TensorRef, Composite)):
            return ("tensor", seen.setdefault(id(value), len(seen)), tensor(ref))
        if depth > 40 or (type(value) in (list, Dict, Opaque) and id(value) in seen):
            return ("again", seen.get(id(value)))
        if type(value) in (list, Dict, Opaque):
            seen[id(value)] = len(seen)
        if type(value) is list or type(value) is tuple:
            return [type(value).__name__, *(node(item, depth + 1) for item in value)]
        if type(value) is Dict:
            return (
                "dict",
                [
                    (node(k, depth + 1), node(v, depth + 1))
                    for k, v in zip(value.keys, value.values, strict=True)
                ],
            )
        if type(value) is Opaque:
            parts = (value.args, value.states, value.items, value.keys, value.values)
            below = [[node(item, depth + 1) for item in part] for part in parts]
            return (value.how, value.class_name, node(value.kwargs, depth + 1), below)
        if type(value) in (Global, PersistentId, Set):
            return repr(type(value)), getattr(value, "qualified", None)
        return repr(value)

    return {
        "root": node(checkpoint.root),
        "tensors": [
            (row[:2], row[3:], tensor(row.tensor)) for row in checkpoint.tensors
        ],
        "storages": [storage[:4] for storage in checkpoint.storages],
        "values": [row[:3] + row[4:] for row in checkpoint.values],
        "containers": [row[:-1] for row in checkpoint.containers],
        "rest": (
            checkpoint.imports,
            checkpoint.weights_only,
            checkpoint.account.notices,
            checkpoint.not_loadable,
            checkpoint.encoding,
        ),
    }
