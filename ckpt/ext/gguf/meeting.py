"""A GGUF file in the names and the layout of transformers, where the other side of a
comparison has these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpt.ext.gguf.changes import experts_of, joined_heads, undone
from ckpt.ext.gguf.names import (
    ARCHITECTURES,
    KEYS,
    VALUES,
    Architecture,
    block_of,
    meaning_of,
)
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.nodes import Dict
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import TensorRef
from ckpt.tree.find import METADATA

if TYPE_CHECKING:
    from ckpt.evidence.survey import Survey


_MOST = 1 << 20
"""The most tensors that a file becomes."""


class Renamed(NamedTuple):
    """A GGUF file under the names of transformers. The tensors have the order of the
    file that was read.
    """

    checkpoint: Checkpoint
    architecture: str
    given: tuple[Entry, ...]
    """The tensors as they are in the file, one for each of `checkpoint`: an expert is a
    part of one.
    """
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
    # By the ends of names: a wrapper of either side puts something before them.
    ends = {_end(name) for name in others}
    count = sum(_end(entry.name) in ends for entry in found.checkpoint.tensors)
    own = sum(_end(entry.name) in ends for entry in survey.checkpoint.tensors)
    return found if count > own else None


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
    rows: list[tuple[Entry, Entry]] = []
    unread: list[str] = []
    joined = _joined_latents(checkpoint.tensors) if architecture.has_latent else {}
    taken = {entry.name for entry in checkpoint.tensors}
    for entry in checkpoint.tensors:
        others = joined.get(entry.name)
        if others is None and len(rows) < _MOST:
            others = _others(entry, architecture, heads)
        names = [row[0].name for row in others or ()]
        # A file may hold one weight in two ways.
        if others is None or not taken.isdisjoint(names):
            unread.append(entry.name)
            others = [(entry, entry)]
        taken.update(names)
        rows += others
    entries = [row[0] for row in rows]
    root = tree_of(entries, checkpoint)
    read = replace(checkpoint, root=root, tensors=tuple(entries), is_edited=True)
    return Renamed(read, name, tuple([row[1] for row in rows]), tuple(unread))


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
    # Some architectures have another number for each block: then it is a list.
    query_count = queries if type(queries) is int else None
    key_count = keys if type(keys) is int else None
    return query_count, key_count


def _others(
    entry: Entry,
    architecture: Architecture,
    heads: tuple[int | None, int | None],
) -> list[tuple[Entry, Entry]] | None:
    """Return a tensor in the name and the layout of transformers, beside what it is of.

    A stack of experts is several tensors. None says that no table knows it.
    """
    meaning = meaning_of(entry.name, architecture)
    if meaning is None or not isinstance(entry.tensor, TensorRef):
        return None
    if meaning.is_stack:
        experts = experts_of(entry.tensor)
        if experts is None:
            return None
        rows: list[tuple[Entry, Entry]] = []
        for number, expert in enumerate(experts):
            made = _renamed(entry, meaning.name_of(number), expert)
            part = entry._replace(name=f"{entry.name}[{number}]", tensor=expert)
            rows.append((made, part))
        return rows
    # `heads` are those of q, and of k.
    count = heads[meaning.change == "rotary-k"]
    tensor = undone(entry.tensor, meaning.change, count)
    if tensor is None:
        return None
    return [(_renamed(entry, meaning.name, tensor), entry)]


def _renamed(entry: Entry, name: str, tensor: TensorRef) -> Entry:
    """Return an entry of another name and tensor."""
    return entry._replace(path=(name,), name=name, tensor=tensor)


def _joined_latents(tensors: Sequence[Entry]) -> dict[str, list[tuple[Entry, Entry]]]:
    """Return the two parts of each kv_b of DeepSeek -> what they are in transformers.

    That is one tensor for the part of the keys, and nothing for the part of the values.
    """
    places = {entry.name: entry for entry in tensors}
    found: dict[str, list[tuple[Entry, Entry]]] = {}
    for entry in tensors:
        block = block_of(entry.name, KEYS)
        values = None if block is None else places.get(VALUES.replace("{n}", block))
        if values is None or not isinstance(values.tensor, TensorRef):
            continue
        if not isinstance(entry.tensor, TensorRef):
            continue
        tensor = joined_heads(entry.tensor, values.tensor)
        if tensor is None:
            continue
        # It is judged by the part that was rounded more.
        both = (entry, values)
        coarse = min(both, key=lambda row: row.tensor.nbytes / row.tensor.numel)
        name = f"model.layers.{block}.self_attn.kv_b_proj.weight"
        found[entry.name] = [(_renamed(entry, name, tensor), coarse)]
        found[values.name] = []
    return found
