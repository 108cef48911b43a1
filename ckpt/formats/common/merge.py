"""One checkpoint over the files of a folder: the weights at the root or below their
keys, all else below keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ckpt.model.account import Absence, Account, Notice
from ckpt.model.checkpoint import (
    Checkpoint,
    Container,
    Entry,
    Import,
    Member,
    Refusal,
    Value,
)
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Dict, Node
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.text import show
from ckpt.tree.find import (
    METADATA,
    is_metadata,
    metadata_node,
    metadata_of,
    tied_aliases,
    with_metadata,
)
from ckpt.tree.view import look


class Merged(NamedTuple):
    """The tree of a folder and its flat views."""

    root: Dict
    tensors: tuple[Entry, ...]
    values: tuple[Value, ...]
    containers: tuple[Container, ...]


def merge_members(path: str, name: str, members: Sequence[Member]) -> Checkpoint:
    """Merge all members into one checkpoint.

    The ids of their storages are distinct; the keys inside members without a key are
    distinct too.

    It has the traits of its first model; what only an index or a document says is left
    to the caller.
    """
    every = [member.checkpoint for member in members]
    weights = [member.checkpoint for member in members if member.is_model]
    # A folder without a model has the traits of its first file.
    if not weights:
        weights = [members[0].checkpoint]
    # The weights say how the folder is loaded; other files lie beside them.
    main = weights[0]
    keeps_order = all(part.traits.keeps_order for part in weights)
    # One file of weights that torch cannot load is enough.
    reasons = [part.not_loadable for part in weights if part.not_loadable]
    tree = _merge_trees(members)
    return Checkpoint(
        path=path,
        format=name,
        # Several files cannot be appended to as one.
        traits=main.traits._replace(in_place=False, keeps_order=keeps_order),
        nbytes=sum(part.nbytes for part in every),
        root=tree.root,
        tensors=tree.tensors,
        storages=tuple(chain.from_iterable(part.storages for part in every)),
        values=tree.values,
        containers=tree.containers,
        imports=tuple(_merge_imports(members)),
        byteorder=main.byteorder,
        weights_only=_merge_refusals(members),
        encoding=main.encoding,
        not_loadable=reasons[0] if reasons else None,
        account=_merged_account(members),
        sources=tuple(chain.from_iterable(part.sources for part in every)),
        members=tuple(members),
    )


def _merge_imports(members: Sequence[Member]) -> list[Import]:
    """Return what the pickles of all files import, each with its file."""
    imports: list[Import] = []
    for member in members:
        for row in member.checkpoint.imports:
            where = _names_below_key(member, row.where)
            imports.append(row._replace(where=where, file=member.file))
    return imports


def _merged_account(members: Sequence[Member]) -> Account:
    """Return what the readers of all files noticed, under the names of the folder."""
    notices: list[Notice] = []
    left_out: list[Absence] = []
    for member in members:
        account = member.checkpoint.account
        notices += [_moved_notice(member, notice) for notice in account.notices]
        left_out += [
            Absence(_names_below_key(member, (name,))[0], why)
            for name, why in account.left_out
        ]
    return Account(tuple(notices), tuple(left_out))


def _moved_notice(member: Member, notice: Notice) -> Notice:
    """A notice with the names that its tensors have in the folder. What one file lacks
    is said with its name.
    """
    names = notice.tensors
    if member.key:
        names = tuple(_name_below(member.key, name) for name in names)
    # A checkpoint in shards names the shard itself.
    is_of_one_file = notice.code == "incomplete" and not member.checkpoint.parts
    text = notice.message
    begin = f"{show(member.file, 80)}: "
    # The rest of a damaged file is read with a reason that names the file.
    if is_of_one_file and not text.startswith(begin):
        text = begin + text
    return notice._replace(message=text, tensors=names)


def _names_below_key(member: Member, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(".".join(filter(None, (member.key, name))) for name in names)


def _merge_refusals(members: Sequence[Member]) -> tuple[Refusal, ...] | None:
    """Return why weights_only refuses files of the folder, each with its file, or None
    without a pickle.
    """
    if all(member.checkpoint.weights_only is None for member in members):
        return None
    refusals: list[Refusal] = []
    for member in members:
        for row in member.checkpoint.weights_only or ():
            where = _names_below_key(member, row.where)
            refusals.append(row._replace(where=where, file=member.file))
    return tuple(refusals)


def _merge_trees(members: Sequence[Member]) -> Merged:
    """The root's own first in the tree; among the containers it comes last, for
    sections lie below its keys.
    """
    root = Dict()
    metadata: dict[str, str] = {}
    tensors: list[Entry] = []
    values: list[Value] = []
    inner: list[Container] = []
    outer: list[Container] = []
    # The members without a key first, which are the root.
    for member in sorted(members, key=lambda member: member.key != ""):
        whole = member.checkpoint
        if not member.key:
            view = look(whole.root)
            metadata |= metadata_of(whole.root)
            pairs = [
                pair
                for pair in zip(view.keys, view.children, strict=True)
                if pair[0] != METADATA
            ]
            root.set([key for key, _ in pairs], [child for _, child in pairs])
            rows = list(whole.containers) or [_container_of(whole, root)]
            outer = _join_containers(outer, rows, len(tensors), root) if outer else rows
        else:
            whole = _without_metadata(whole)
            texts = metadata_of(member.checkpoint.root)
            # Every file has a format, which is `pt`: it says nothing below a key.
            metadata |= {
                f"{member.key}.{name}": text
                for name, text in texts.items()
                if name != "format"
            }
            root.set([member.key], [whole.root])
            inner += _containers_below(member.key, whole, len(tensors))
        # The tensors of the root keep their names.
        prefix: Path = (member.key,) if member.key else ()
        tensors += [_moved_entry(prefix, entry) for entry in whole.tensors]
        values += [_moved_value(prefix, value) for value in whole.values]
    # The texts of all files as one, in the place where safetensors has them.
    if metadata:
        root.set([METADATA], [metadata_node(metadata)])
        values = [value for value in values if not is_metadata(value.path)]
        values += [
            Value((METADATA, name), f"{METADATA}.{name}", "str", text)
            for name, text in metadata.items()
        ]
    return Merged(root, tuple(tensors), tuple(values), (*inner, *outer))


def _join_containers(
    outer: list[Container], rows: list[Container], first: int, root: Dict
) -> list[Container]:
    """The containers of two roots that are one. That of the root itself stands where it
    stood in the first.
    """
    moved = [
        row._replace(first=row.first + first, last=row.last + first) for row in rows
    ]
    last = max(row.last for row in moved)
    keys: list[str | int] = []
    for row in moved:
        if not row.path:
            keys += row.keys
    joined = [
        row if row.path else row._replace(keys=(*row.keys, *keys), last=last, node=root)
        for row in outer
    ]
    joined += [row for row in moved if row.path]
    return joined


def _without_metadata(whole: Checkpoint) -> Checkpoint:
    """A checkpoint without its metadata, which only a root has: tied tensors stand
    under both names.
    """
    if not metadata_of(whole.root):
        return whole
    root = with_metadata(whole.root, {})
    nodes: dict[str, Node] = dict(zip(map(str, root.keys), root.values, strict=True))
    tensors = list(whole.tensors)
    rows = {entry.name: entry for entry in tensors}
    for other, name in tied_aliases(whole).items():
        # One node under two keys: so it stays one memory.
        root.set([other], [nodes[name]])
        tensors.append(rows[name]._replace(path=(other,), name=other))
    values = tuple(value for value in whole.values if not is_metadata(value.path))
    return replace(whole, root=root, tensors=tuple(tensors), values=values)


def _containers_below(key: str, whole: Checkpoint, first: int) -> list[Container]:
    """The containers of a file below its key. A file without any is one mapping of
    names to tensors.
    """
    # Formats without a tree, such as safetensors, have no container.
    rows = whole.containers
    if not rows and whole.tensors:
        rows = (_container_of(whole, whole.root),)
    return [
        row._replace(
            path=(key, *row.path),
            name=_name_below(key, row.name),
            first=row.first + first,
            last=row.last + first,
        )
        for row in rows
    ]


def _container_of(whole: Checkpoint, node: Node) -> Container:
    """The container of a file whose format has none, such as safetensors."""
    names = tuple(entry.name for entry in whole.tensors)
    return Container((), "", "dict", names, 0, len(names), node=node)


def _name_below(key: str, name: str) -> str:
    return f"{dotted_name((key,))}.{name}" if name else dotted_name((key,))


def _moved_entry(prefix: Path, entry: Entry) -> Entry:
    if not prefix:
        return entry
    return entry._replace(
        path=(*prefix, *entry.path), name=_name_below(str(prefix[0]), entry.name)
    )


def _moved_value(prefix: Path, value: Value) -> Value:
    if not prefix:
        return value
    key = str(prefix[0])
    same = None if value.same_as is None else _name_below(key, value.same_as)
    return value._replace(
        path=(*prefix, *value.path), name=_name_below(key, value.name), same_as=same
    )
