"""The metadata of a safetensors file as a key of the tree. It includes the other names of tied tensors.

No other module spells the key.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.checkpoint import Checkpoint
from ckpt.names import Path
from ckpt.nodes import Dict, Node

METADATA = "__metadata__"


def is_metadata(path: Path) -> bool:
    """Whether a path leads into the metadata."""
    return path[:1] == (METADATA,)


def metadata_of(root: Node) -> dict[str, str]:
    """The metadata in the tree of a safetensors file."""
    if type(root) is Dict:
        for key, value in zip(root.keys, root.values, strict=True):
            if type(key) is str and key == METADATA and type(value) is Dict:
                pairs = zip(value.keys, value.values, strict=True)
                return {name: text for name, text in pairs if type(name) is type(text) is str}
    return {}


def metadata_node(texts: Mapping[str, str]) -> Dict:
    """The node for the metadata key."""
    node = Dict()
    node.set(list(texts), list(texts.values()))
    return node


def with_metadata(root: Node, texts: Mapping[str, str]) -> Dict:
    """The items of a tree with these texts as its metadata. Without texts the key is left out."""
    assert type(root) is Dict  # every file with metadata has a dict as its root
    node = Dict()
    pairs = [pair for pair in zip(root.keys, root.values, strict=True) if pair[0] != METADATA]
    node.set([key for key, _ in pairs], [value for _, value in pairs])
    if texts:
        node.set([METADATA], [metadata_node(texts)])
    return node


def is_alias(other: str, name: str) -> bool:
    """Whether a text of the metadata can be the name of a tied tensor: it has a dot, like names of tensors."""
    return "." in other and other != name


def aliases(checkpoint: Checkpoint) -> dict[str, str]:
    """The other names of tied tensors, as `safetensors.torch.save_model` writes them: other name -> name."""
    names = {entry.name for entry in checkpoint.tensors}
    return {
        other: name
        for other, name in metadata_of(checkpoint.root).items()
        if name in names and other not in names and is_alias(other, name)
    }
