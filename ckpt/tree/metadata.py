"""What safetensors say of themselves: texts by name, among them the other names of tied tensors."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint, Dict, Node


def metadata_of(root: Node) -> dict[str, str]:
    """The texts of `__metadata__` in the tree of a safetensors file."""
    if type(root) is Dict:
        for key, value in zip(root.keys, root.values, strict=True):
            if type(key) is str and key == "__metadata__" and type(value) is Dict:
                pairs = zip(value.keys, value.values, strict=True)
                return {name: text for name, text in pairs if type(name) is type(text) is str}
    return {}


def is_alias(other: str, name: str) -> bool:
    """Whether a text of the metadata can be the name of a tied tensor: dotted, as names of tensors are."""
    return "." in other and other != name


def aliases(checkpoint: Checkpoint) -> dict[str, str]:
    """The other names of tied tensors, as `safetensors.torch.save_model` notes them: other name -> name."""
    names = {entry.name for entry in checkpoint.tensors}
    return {
        other: name
        for other, name in metadata_of(checkpoint.root).items()
        if name in names and other not in names and is_alias(other, name)
    }
