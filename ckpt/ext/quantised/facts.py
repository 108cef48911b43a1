"""The facts that a checkpoint says about its quantisation beside its tensors:
config.json, or quantize_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate, read_file
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json
from ckpt.tree.json import plain

_FILES = {
    "config.json": "",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""The files beside weights that say how they were quantised -> the method of a file
that names none. The second one is of AutoGPTQ, the third of AutoAWQ.
"""
_OTHER_WORDS = {"w_bit": "bits", "wbits": "bits", "q_group_size": "group_size"}
"""Words of AutoAWQ for fields that others call otherwise."""
_MIXED = ("dynamic", "extra_config")
"""The fields of gptqmodel and of AutoRound that give some layers other bits or
groups.
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
    def is_mixed(self) -> bool:
        """Tell whether some layers have other bits or groups than the config names."""
        return any(bool(self.fields.get(name)) for name in _MIXED)

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
        # Groups may contradict each other: then the shapes must say it.
        value = self.weights[0].get(name) if len(values) == 1 else None
        return value if type(value) is int else None


def facts_of(checkpoint: Checkpoint, limits: Limits) -> Facts:
    """Return the facts beside a checkpoint: in the files of its folder, or in those
    beside a file of this machine.

    The config.json of AutoGPTQ and AutoAWQ may name the dtype alone, beside a file that
    has the rest.
    """
    dtype: str | None = None
    for facts in _all_facts(checkpoint, limits):
        dtype = dtype or facts.dtype
        if facts.fields:
            return Facts(facts.fields, dtype)
    return Facts({}, dtype)


def _all_facts(checkpoint: Checkpoint, limits: Limits) -> Iterator[Facts]:
    """Yield the facts of each file that has some, config.json first."""
    for member in checkpoint.members:
        if member.key == "config" and member.file.endswith("config.json"):
            facts = _facts_in(_plain(member.checkpoint.root), "")
            if facts is not None:
                yield facts
    path = checkpoint.path
    # Nothing lies beside a live model, and a URL would be asked for each of the files.
    if checkpoint.traits.is_live or is_url(path):
        return
    for name, method in _FILES.items():
        facts = _facts_in(_document(path, name, limits), method)
        if facts is not None:
            yield facts


def _document(path: str, name: str, limits: Limits) -> Json:
    """Return the JSON of a file beside a checkpoint, or None."""
    try:
        place = locate(path)
        folder = place if place.is_folder() else place.parent()
        if name not in folder.names():
            return None
        text = read_file(folder.child(name, "cache"), limits, name)
        document: Json = json.loads(text)
    # A damaged config says nothing: the file beside it is still read.
    except (CkptError, OSError, ValueError, RecursionError):
        return None
    return document


def _plain(root: Node) -> Json:
    """Return the content of a config.json that was read with its folder, or None."""
    try:
        return plain(root)
    except CkptError:
        return None


def _facts_in(document: Json, method: str) -> Facts | None:
    """Return the facts in a document, or None where it has none.

    One of a method holds nothing else; a config.json has them in an entry.
    """
    if not isinstance(document, dict):
        return None
    # Newer transformers write `dtype`, older ones `torch_dtype`.
    dtype = document.get("dtype", document.get("torch_dtype"))
    named = dtype if isinstance(dtype, str) and dtype in _WEIGHT_FLOATS else None
    if method:
        words: dict[str, Json] = {"quant_method": method}
        for key, value in document.items():
            words[_OTHER_WORDS.get(str(key), str(key))] = value
        return Facts(words, named)
    fields = document.get("quantization_config")
    if isinstance(fields, dict):
        return Facts(fields, named)
    return Facts({}, named) if named is not None else None
