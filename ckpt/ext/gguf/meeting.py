"""A GGUF file in the names and the layout of transformers, where the other side of a
comparison has these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpt.ext.gguf.changes import undone
from ckpt.ext.gguf.names import ARCHITECTURES, Architecture, meaning_of
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.nodes import Dict
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import TensorRef
from ckpt.tree.find import METADATA

if TYPE_CHECKING:
    from ckpt.evidence.survey import Survey


class Renamed(NamedTuple):
    """A GGUF file under the names of transformers. The tensors have the order of the
    file that was read.
    """

    checkpoint: Checkpoint
    architecture: str
    given: tuple[Entry, ...]
    """The tensors as they are in the file."""
    unread: tuple[str, ...]
    """The tensors under their own names, because no table knows them or their
    layout.
    """


def met(survey: Survey, others: Collection[str]) -> Renamed | None:
    """Return a GGUF file in the names of transformers, where more of these are among
    the `others` than of its own.
    """
    found = renamed(survey)
    if found is None:
        return None
    ends = {_end(name) for name in others}
    count = sum(_end(entry.name) in ends for entry in found.checkpoint.tensors)
    return (
        found
        if count > sum(_end(entry.name) in ends for entry in found.given)
        else None
    )


def renamed(survey: Survey) -> Renamed | None:
    """Return a GGUF file in the names of transformers, or None where no table has its
    architecture.
    """
    checkpoint = survey.checkpoint
    values = {value.name: value.node for value in checkpoint.values}
    name = values.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None or not isinstance(name, str):
        return None
    heads = _heads_of(values, name)
    entries: list[Entry] = []
    unread: list[str] = []
    for entry in checkpoint.tensors:
        other = _other(entry, architecture, heads)
        if other is None:
            unread.append(entry.name)
        entries.append(other or entry)
    root = tree_of(entries, checkpoint)
    read = replace(checkpoint, root=root, tensors=tuple(entries), is_edited=True)
    return Renamed(read, name, tuple(checkpoint.tensors), tuple(unread))


def tree_of(entries: Sequence[Entry], checkpoint: Checkpoint) -> Dict:
    """The tree of these tensors, with the metadata of a GGUF file."""
    root = Dict()
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    if checkpoint.beside is not None:
        root.set([METADATA], [checkpoint.beside])
    return root


def _end(name: str) -> str:
    """The last four steps of a name: wrappers and the classes around a model put others
    before them.
    """
    return ".".join(name.split(".")[-4:])


def _heads_of(values: Mapping[str, object], name: str) -> tuple[int | None, int | None]:
    """The number of heads of q, and of k, as far as the metadata says one number for
    all blocks.
    """
    queries = values.get(f"{name}.attention.head_count")
    keys = values.get(f"{name}.attention.head_count_kv", queries)
    return queries if type(queries) is int else None, keys if type(
        keys
    ) is int else None


def _other(
    entry: Entry, architecture: Architecture, heads: tuple[int | None, int | None]
) -> Entry | None:
    """A tensor in the name and the layout of transformers, or None."""
    meaning = meaning_of(entry.name, architecture)
    if meaning is None or not isinstance(entry.tensor, TensorRef):
        return None
    count = heads[meaning.change == "rotary-k"]
    tensor = undone(entry.tensor, meaning.change, count)
    if tensor is None:
        return None
    return entry._replace(path=(meaning.name,), name=meaning.name, tensor=tensor)
