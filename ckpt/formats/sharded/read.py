"""One checkpoint in several files: `*.safetensors.index.json`, `*.bin.index.json`, or a directory as Hugging
Face lays it out. Only files beside the index are opened, by plain names.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ckpt.checkpoint import (
    Checkpoint,
    Composite,
    Container,
    Dict,
    Entry,
    Import,
    Notice,
    Refusal,
    Storage,
    Tensor,
    TensorRef,
    Value,
)
from ckpt.errors import UnreadableError
from ckpt.formats.probe import Probe
from ckpt.formats.safetensors.read import parse_json
from ckpt.io.source import File, read_limited
from ckpt.limits import Limits
from ckpt.names import Path, natural, show
from ckpt.tree.metadata import metadata_of
from ckpt.tree.view import look

NAME = "sharded"
SUFFIXES: tuple[str, ...] = (".index.json",)

_INDEXES = (".safetensors.index.json", ".bin.index.json")
_SINGLE = (
    "model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_LISTED = 10


def sniff(probe: Probe) -> bool:
    return _find(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    found = _find(probe)
    assert found is not None
    folder, name = os.path.split(found)
    parts: list[tuple[str, Checkpoint]] = []
    try:
        if name.endswith(_INDEXES):
            weight_map = _weight_map(found, limits)
            names = sorted(set(weight_map.values()), key=natural)
            missing = [shard for shard in names if not os.path.isfile(os.path.join(folder, shard))]
            if missing:
                listed = ", ".join(show(shard, 80) for shard in missing[:_LISTED])
                gone = set(missing)
                lost = sum(shard in gone for shard in weight_map.values())
                raise UnreadableError(
                    f"{len(missing)} of {len(names)} shards missing, with {lost:,} tensors: {listed}",
                    hint="an unfinished download?",
                )
        else:
            weight_map, names = None, [name]
        for shard in names:
            parts.append((shard, _open(os.path.join(folder, shard), limits)))
        notices = _compare(weight_map, parts) if weight_map is not None else []
        extra = [
            beside
            for beside in _OPTIMIZERS
            if probe.is_directory and os.path.isfile(os.path.join(folder, beside))
        ]
        for beside in extra[:1]:
            parts.append((beside, _open(os.path.join(folder, beside), limits)))
        notices += _unread(probe, folder, name)
        if weight_map is None and len(parts) == 1:  # the directory is as good as its file
            whole = parts[0][1]
            return replace(whole, notices=(*whole.notices, *notices))
        return _merge(probe, parts, extra[:1], notices)
    except BaseException:
        for _, part in parts:
            part.close()
        raise


def index_of(probe: Probe) -> str | None:
    """The index that a path stands for, None where it stands for a single file."""
    found = _find(probe)
    return found if found is not None and found.endswith(_INDEXES) else None


def files(probe: Probe, limits: Limits) -> list[str]:
    """The files that a path stands for: the shards of an index, what lies beside them."""
    found = _find(probe)
    assert found is not None
    folder, name = os.path.split(found)
    names = (
        sorted(set(_weight_map(found, limits).values()), key=natural) if name.endswith(_INDEXES) else [name]
    )
    if probe.is_directory:
        names += [beside for beside in _OPTIMIZERS if os.path.isfile(os.path.join(folder, beside))][:1]
    return [os.path.join(folder, shard) for shard in names]


def marks(files: list[str]) -> list[str]:
    """What the ids of the storages of each file begin with, in a checkpoint of all of them."""
    if len(files) == 1:
        return [""]
    names = [os.path.basename(file) for file in files]
    return [
        f"{name.rpartition('.')[0]}:" if name in _OPTIMIZERS else f"shard-{number}:"
        for number, name in enumerate(names, 1)
    ]


def _find(probe: Probe) -> str | None:
    """The index, or the single file of weights, that a path stands for."""
    if not probe.is_directory:
        return probe.path if probe.path.endswith(_INDEXES) else None
    try:
        with os.scandir(probe.path) as found:
            names = sorted(entry.name for entry in found if not entry.is_dir())
    except OSError:
        return None
    # As transformers chooses: safetensors before pickles, one file before shards.
    indexes = [name for name in names if name.endswith(_INDEXES)]
    singles = [name for name in _SINGLE if name in names]
    for pick in (
        [name for name in singles if name.endswith(".safetensors")],
        [name for name in indexes if "safetensors" in name],
        singles,
        indexes,
    ):
        if len(pick) == 1:
            return os.path.join(probe.path, pick[0])
        if len(pick) > 1:
            raise UnreadableError(
                f"a directory with {len(pick)} checkpoints: {', '.join(pick)}", hint="name one"
            )
    return None


def _unread(probe: Probe, folder: str, chosen: str) -> list[Notice]:
    if not probe.is_directory:
        return []
    others = [
        name
        for name in sorted(os.listdir(folder))
        if name != chosen and (name.endswith(_INDEXES) or name in _SINGLE)
    ]
    return [Notice("shards", f"{show(name, 80)} lies beside {chosen} and was not read") for name in others]


def _weight_map(path: str, limits: Limits) -> dict[str, str]:
    file = File(path)
    try:
        index = parse_json(read_limited(file, limits.index_bytes, "index-bytes", "the index"), "index")
    finally:
        file.close()
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableError("an index without a weight_map")
    for name, shard in weight_map.items():
        if (
            not isinstance(shard, str)
            or not shard
            or shard != os.path.basename(shard)
            or "\\" in shard
            or "\0" in shard
        ):
            raise UnreadableError(
                f"the index puts {show(name, 80)} into {show(str(shard), 80)}, which is no plain file name"
            )
        if shard.endswith(_INDEXES):
            raise UnreadableError(f"the index names {show(shard, 80)}, which is an index itself")
        if shard in (".", "..") or (
            os.path.islink(os.path.join(os.path.dirname(path), shard)) and _leaves(path, shard)
        ):
            raise UnreadableError(f"the index names {show(shard, 80)}, which is no file beside it")
    return weight_map


def _leaves(path: str, shard: str) -> bool:
    # Links are how the hub's cache lays files out; one to a device or a directory is not.
    return not os.path.isfile(os.path.join(os.path.dirname(path), shard))


def _open(path: str, limits: Limits) -> Checkpoint:
    from ckpt.formats import open  # here: the table of formats holds this one

    return open(path, limits)


def _compare(weight_map: dict[str, str], parts: list[tuple[str, Checkpoint]]) -> list[Notice]:
    """What the index says against what the shards hold. Raises UnreadableError when a listed tensor is nowhere."""
    holds: dict[str, list[str]] = {}
    for shard, part in parts:
        for entry in part.tensors:
            holds.setdefault(entry.name, []).append(shard)
    lost = [name for name in weight_map if name not in holds]
    if lost:
        listed = ", ".join(show(name, 80) for name in lost[:_LISTED])
        raise UnreadableError(f"the index lists {len(lost):,} tensors that no shard holds: {listed}")
    twice = [name for name, shards in holds.items() if len(shards) > 1]
    if twice:
        raise UnreadableError(
            f"tensor {show(twice[0], 80)} lies in two shards: {', '.join(holds[twice[0]][:3])}"
        )
    wrong = tuple(name for name, shard in weight_map.items() if shard not in holds[name])
    unlisted = tuple(name for name in holds if name not in weight_map)
    notices = []
    if wrong:
        told = f"{show(wrong[0], 80)} lies in {show(holds[wrong[0]][0], 60)}, the index says {show(weight_map[wrong[0]], 60)}"
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        notices.append(Notice("shards", f"tensors in another shard than the index says: {told}{more}", wrong))
    if unlisted:
        more = f" and {len(unlisted) - 3:,} more" if len(unlisted) > 3 else ""
        listed = ", ".join(show(name, 80) for name in unlisted[:3])
        notices.append(Notice("shards", f"tensors that the index does not list: {listed}{more}", unlisted))
    return notices


def _merge(
    probe: Probe, parts: list[tuple[str, Checkpoint]], under_name: list[str], notices: list[Notice]
) -> Checkpoint:
    """One checkpoint over all parts. Those in `under_name` become a section called by their file."""
    root = Dict()
    entries: list[Entry] = []
    storages: list[Storage] = []
    values: list[Value] = []
    containers: list[Container] = []
    imports: list[Import] = []
    refusals: list[Refusal] = []
    metadata: dict[str, str] = {}
    several = len(parts) > 1
    known: set[Path] = set()  # values that a shard before has: each repeats the metadata
    for number, (shard, part) in enumerate(parts, 1):
        section = shard.rpartition(".")[0] if shard in under_name else ""
        renamed = {
            id(old): old._replace(id=f"{section or f'shard-{number}'}:{old.id}") if several else old
            for old in part.storages
        }
        storages += renamed.values()
        prefix: Path = (section,) if section else ()
        first = len(entries)
        for entry in part.tensors:
            path = prefix + entry.path
            name = f"{section}.{entry.name}" if section else entry.name
            tensor = _over(entry.tensor, renamed) if several else entry.tensor
            entries.append(entry._replace(path=path, name=name, tensor=tensor))
        if not section:
            view = look(part.root)
            texts = metadata_of(part.root)
            fresh = [i for i, key in enumerate(view.keys) if not texts or key != "__metadata__"]
            root.set([view.keys[i] for i in fresh], [view.children[i] for i in fresh])
            metadata.update(texts)
        if section:
            root.keys.append(section)
            root.values.append(part.root)
            containers += [
                row._replace(
                    path=prefix + row.path,
                    name=f"{section}.{row.name}" if row.name else section,
                    first=row.first + first,
                    last=row.last + first,
                )
                for row in part.containers
            ]
        values += [
            value._replace(
                path=prefix + value.path, name=f"{section}.{value.name}" if section else value.name
            )
            for value in part.values
            if section or value.path not in known
        ]
        known.update(value.path for value in part.values)
        imports += part.imports
        refusals += part.weights_only or ()
        notices += part.notices
    if metadata:  # each shard has some, mostly the same
        merged = Dict()
        merged.set(list(metadata), list(metadata.values()))
        root.set(["__metadata__"], [merged])
    sections = {(name.rpartition(".")[0],) for name in under_name}
    weights = [entry for entry in entries if entry.path[:1] not in sections]
    rest = [entry for entry in entries if entry.path[:1] in sections]
    # The weights lie at the root; last, for what lies inside it is found before.
    only = parts[0][1].containers if len(parts) == 1 + len(under_name) else ()
    names = tuple(entry.name for entry in weights)
    containers += only or [Container((), "", "dict", names, 0, len(weights), node=root)]

    def close() -> None:
        for _, part in parts:
            part.close()

    return Checkpoint(
        path=probe.path,
        format=NAME,
        nbytes=sum(part.nbytes for _, part in parts),
        root=root,
        tensors=(*_ordered(weights, parts[0][0]), *rest),
        storages=tuple(storages),
        values=tuple(values),
        containers=tuple(containers),
        imports=tuple(imports),
        byteorder=parts[0][1].byteorder,
        weights_only=tuple(refusals) if any(part.weights_only is not None for _, part in parts) else None,
        encoding=next((part.encoding for _, part in parts if part.encoding), None),
        not_loadable=next((part.not_loadable for _, part in parts if part.not_loadable), None),
        notices=tuple(notices),
        parts=tuple(shard for shard, _ in parts),
        close=close,
    )


def _ordered(weights: list[Entry], shard: str) -> list[Entry]:
    """Pickles keep the order of the model; safetensors have none."""
    return (
        sorted(weights, key=lambda entry: natural(entry.name)) if shard.endswith(".safetensors") else weights
    )


def _over(tensor: Tensor, storages: dict[int, Storage]) -> Tensor:
    """The tensor over the renamed storages."""
    if isinstance(tensor, TensorRef):
        return tensor._replace(storage=storages.get(id(tensor.storage), tensor.storage))
    assert isinstance(tensor, Composite)
    parts = tuple(
        (label, part._replace(storage=storages.get(id(part.storage), part.storage)))
        for label, part in tensor.parts
    )
    return replace(tensor, parts=parts)
