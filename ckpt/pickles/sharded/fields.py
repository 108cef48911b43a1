"""Attributes and numbers of the objects beside distributed tensors."""

from __future__ import annotations

from ckpt.nodes import Dict, Node, Opaque, is_tuple


def fields_of(node: Node) -> dict[str, Node]:
    """The attributes of an object: from a dict, or from the pair of a dict and of what its slots hold."""
    found: dict[str, Node] = {}
    for state in node.states if type(node) is Opaque else ():
        for part in state if is_tuple(state) else (state,):
            if type(part) is Dict:
                pairs = zip(part.keys, part.values, strict=True)
                found.update((key, value) for key, value in pairs if type(key) is str)
    return found


def numbers(node: Node, most: int) -> tuple[int, ...] | None:
    """At most `most` whole numbers in a tuple or a list, or in a torch.Size; None for anything else."""
    if type(node) is Opaque and node.class_name == "torch.Size" and len(node.args) == 1:
        node = node.args[0]
    if not (is_tuple(node) or type(node) is list) or len(node) > most:
        return None
    found = tuple(each for each in node if type(each) is int and 0 <= each < 2**63)
    return found if len(found) == len(node) else None
