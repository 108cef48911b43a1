"""The facts that a checkpoint says about its quantisation beside its tensors:
config.json, or quantize_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate, read_file
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json
from ckpt.tree.json import plain

_FILES = ("config.json", "quantize_config.json")
"""The files beside weights that say how they were quantised; the second one is of
AutoGPTQ.
"""
_WEIGHT_FLOATS = ("bfloat16", "float16", "float32")


class Facts(NamedTuple):
    """The fields of `quantization_config`, and the dtype of the model as its config
    names it, or None.
    """

    fields: Mapping[str, Json] = {}
    dtype: str | None = None

    @property
    def method(self) -> str | None:
        """The name of the method, such as `gptq`, or None where nothing says it."""
        return self.text_of("quant_method")

    def text_of(self, name: str) -> str | None:
        """Return a field that is text."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def number_of(self, name: str) -> int | None:
        """Return a field that is a whole number."""
        value = self.fields.get(name)
        return value if type(value) is int else None

    @property
    def blocks(self) -> tuple[int, int] | None:
        """The rows and columns of a block of `weight_block_size`."""
        value = self.fields.get("weight_block_size")
        if not isinstance(value, list) or len(value) != 2:
            return None
        rows, columns = value
        if type(rows) is int and type(columns) is int and rows > 0 and columns > 0:
            return rows, columns
        return None

    @property
    def weights(self) -> list[Mapping[str, Json]]:
        """The arguments of the weights of each group of compressed-tensors."""
        groups = self.fields.get("config_groups")
        found: list[Mapping[str, Json]] = []
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                found.append(weights)
        return found

    def same_number(self, name: str) -> int | None:
        """Return a number that all groups of compressed-tensors agree on."""
        values = {json.dumps(weights.get(name)) for weights in self.weights}
        value = self.weights[0].get(name) if len(values) == 1 else None
        return value if type(value) is int else None


def facts_of(checkpoint: Checkpoint, limits: Limits) -> Facts:
    """Return the facts beside a checkpoint: in the files of its folder, or in those
    beside a file of this machine.
    """
    for member in checkpoint.members:
        if member.key == "config" and member.file.endswith("config.json"):
            facts = _facts_in(_plain(member.checkpoint.root), is_config=True)
            if facts is not None:
                return facts
    path = checkpoint.path
    if checkpoint.traits.is_live or is_url(path):
        return Facts()
    for name in _FILES:
        facts = _facts_in(_document(path, name, limits), is_config=name == _FILES[0])
        if facts is not None:
            return facts
    return Facts()


def _document(path: str, name: str, limits: Limits) -> Json:
    """Return the JSON of a file beside a checkpoint, or None."""
    try:
        place = locate(path)
        folder = place if place.is_folder() else place.parent()
        if name not in folder.names():
            return None
        document: Json = json.loads(
            read_file(folder.child(name, "cache"), limits, name)
        )
    except (CkptError, OSError, ValueError, RecursionError):
        return None
    return document


def _plain(root: Node) -> Json:
    """Return the content of a config.json that was read with its folder, or None."""
    try:
        return plain(root)
    except CkptError:
        return None


def _facts_in(document: Json, *, is_config: bool) -> Facts | None:
    """Return the facts in a document, or None where it has none."""
    if not isinstance(document, dict):
        return None
    dtype = document.get("dtype", document.get("torch_dtype"))
    named = dtype if isinstance(dtype, str) and dtype in _WEIGHT_FLOATS else None
    if not is_config:
        return Facts({"quant_method": "gptq", **document}, named)
    fields = document.get("quantization_config")
    if isinstance(fields, dict):
        return Facts(fields, named)
    return Facts({}, named) if named is not None else None
