"""The files of a folder that are read as one checkpoint, and the key of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckpt.bytes.location import Location, is_plain_name, read_file, readable_names
from ckpt.ext.dcp.file_names import is_part, is_tag, weights_in
from ckpt.ext.folders.distributed import place_of, plan_in, shards_in
from ckpt.ext.folders.layouts import LAYOUTS, SPEECHBRAIN, Fact, Layout, Part, Plan
from ckpt.formats.common.sets import ShardSet, sets_in
from ckpt.formats.format import Probe
from ckpt.model.errors import FolderError, UnreadableError
from ckpt.model.limits import parse_json
from ckpt.model.names import natural_sort_key
from ckpt.model.text import Json, and_more, show

DIFFUSERS = "model_index.json"
SENTENCE_TRANSFORMERS = "modules.json"
SETTINGS = ("config.json", "adapter_config.json")


def plan_of(probe: Probe) -> Plan | None:
    """Return the plan of a folder, or None for a file or a folder without weights in a
    known layout.

    Raises UnreadableError for a folder with two files that are as good, or with a
    broken list of its parts.
    """
    folder = place_of(probe)
    if folder is None:
        return None
    names = readable_names(folder)
    plan = plan_in(folder, names)
    if plan is not None or not probe.is_folder or any(map(is_part, names)):
        return plan  # a distributed checkpoint, whatever lies beside it
    files = [name for name in names if not name.endswith("/")]
    # The marks are asked in this order: SpeechBrain's `CKPT.yaml` is sure, the names of
    # the other layouts occur in many folders.
    if SPEECHBRAIN.is_in(files):
        return Plan(SPEECHBRAIN.name, tuple(_by_rules(folder, names, SPEECHBRAIN)))
    if DIFFUSERS in files:
        keys = _pipeline_folders(_read_json(probe, DIFFUSERS), names)
        plan = None if keys is None else _in_folders(probe, keys)
        if plan is not None:
            index = Part(DIFFUSERS, folder.child(DIFFUSERS), "model_index", "json")
            return plan._replace(
                layout="diffusers pipeline",
                parts=(*plan.parts, index),
                settings=tuple(_settings_of(folder, keys or {})),
                facts=(Fact("pipeline", ("model_index", "_class_name")),),
            )
    if SENTENCE_TRANSFORMERS in files:
        keys = _module_folders(_read_json(probe, SENTENCE_TRANSFORMERS), names)
        plan = None if keys is None else _in_folders(probe, keys)
        if plan is not None:
            return plan._replace(layout="sentence-transformers model", facts=())
    plan = _flat_plan(probe, names, shards_in(folder, names))
    if plan is None or "latest" not in files:
        return plan
    # The Trainer with DeepSpeed puts `latest` and the folder of a tag beside the
    # weights of the model.
    below = [name.rstrip("/") for name in names if is_tag(name)]
    further = [(name, plan.parts[0].file) for name in below]
    return plan._replace(unread=(*plan.unread, *further))


def _flat_plan(probe: Probe, names: list[str], shards: list[Part]) -> Plan | None:
    """The plan of one folder with one model, or with the numbered models of accelerate.

    `shards` are the models and optimizers that it saved as distributed checkpoints.
    """
    folder = probe.location
    files = [name for name in names if not name.endswith("/")]
    parts, unread = _weight_files(probe, folder, files, "")
    # Weights in files of their own win over the same model as a distributed checkpoint.
    if parts:
        unread += [(part.file, parts[0].file) for part in shards if part.is_model]
        parts += [part for part in shards if not part.is_model]
    elif any(part.is_model for part in shards):
        parts = list(shards)
    else:
        return None
    facts: list[Fact] = []
    label = ""
    for layout in LAYOUTS:
        if not layout.is_in(files):
            continue
        held = {part.file for part in parts}
        documents = [
            part for part in _by_rules(folder, names, layout) if part.file not in held
        ]
        for part in documents:
            # `optimizer.pt` of the Trainer and `optimizer.bin` of accelerate may both
            # be there: the first layout has the key.
            same = next((other for other in parts if other.key == part.key), None)
            if same is None:
                parts.append(part)
            else:
                unread.append((part.file, same.file))
        # The first layout that gives a file names the folder.
        if documents and not label:
            label = layout.name
        facts += layout.facts
    label = label or ("accelerate checkpoint" if shards else LAYOUTS[-1].name)
    return Plan(label, tuple(parts), tuple(facts), tuple(unread))


_CONSOLIDATED = ("consolidated.safetensors", "consolidated.00.pth")
"""Names of a model in the names of its author, beside the one of transformers."""


def _weight_files(
    probe: Probe, folder: Location, files: list[str], key: str
) -> tuple[list[Part], list[tuple[str, str]]]:
    """The files of weights of one folder, and those that are not read, each with the
    one that is read instead.

    Shards without an index come last: no loader finds them beside another file of
    weights. Raises UnreadableError.
    """
    chosen = weights_in(files)
    if chosen is not None:
        rows = chosen.files if not key else [(chosen.files[0][0], key)]
        parts = [
            Part(name, folder.child(name), own, is_model=True) for name, own in rows
        ]
        # The model in the names of its author: no loader of this library reads it, and
        # one that takes every file meets each tensor twice.
        held = {part.file for part in parts}
        twice = [name for name in _CONSOLIDATED if name in files and name not in held]
        others = dict.fromkeys((*chosen.unread, *twice))
        return parts, [(name, parts[0].file) for name in others]
    shards = _unindexed_shards(probe, folder, files)
    if shards is None:
        return [], []
    return [Part(shards.label, folder, key, "shards", is_model=True, shards=shards)], []


def _unindexed_shards(
    probe: Probe, folder: Location, files: list[str]
) -> ShardSet | None:
    """The shards of one model without an index, or None. Raises FolderError where there
    are several models.

    Of two sets of one model, the one that lacks no shard is meant.
    """
    sets = [row for row in sets_in(files) if row.is_sound]
    if not sets:
        return None
    from ckpt.formats.sharded.index import (
        is_one,
    )  # here: few folders hold shards without an index

    # Shards of an older save with another number of files may have been left.
    whole = [row for row in sets if not row.gone]
    one_model = len({(row.stem, row.ending) for row in sets}) == 1
    if len(sets) > 1 and (not one_model or len(whole) != 1):
        listed = and_more([show(row.label, 80) for row in sets], 3)
        problem = (
            f"the directory holds {len(sets)} sets of shards without an index: {listed}"
        )
        raise FolderError(problem, hint="give each a folder of its own")
    shards = whole[0] if whole else sets[0]
    # The names alone do not say that the files are shards of one model: their content
    # must.
    return shards if is_one(folder, shards, probe.limits) else None


def _by_rules(folder: Location, names: Iterable[str], layout: Layout) -> list[Part]:
    """The files that a layout names. A folder in the place of one is a part that cannot
    be read.
    """
    parts: list[Part] = []
    for rule in layout.rules:
        for name in sorted(names, key=natural_sort_key):
            file = name.rstrip("/")
            match = re.fullmatch(rule.pattern, file)
            # The rules of a layout may overlap: the first one that fits names the key.
            if match is not None and all(part.file != file for part in parts):
                kind = rule.kind if file == name else "folder"
                parts.append(
                    Part(file, folder.child(file), match.expand(rule.key), kind)
                )
    return parts


# --- models in folders of their own ---------------------------------------------------


def _in_folders(probe: Probe, keys: dict[str, str]) -> Plan | None:
    """The weights in folders right below, by the keys; the empty name is the folder
    itself. One model has no key.
    """
    folder = probe.location
    parts: list[Part] = []
    # A document names these folders: a link may lead anywhere, and none is followed.
    unread: list[tuple[str, str]] = []
    for name, key in keys.items():
        below = folder.child(name, "no") if name else folder
        files = [file for file in readable_names(below) if not file.endswith("/")]
        own, others = _weight_files(probe, below, files, key)
        prefix = f"{name}/" if name else ""
        # A folder of a pipeline holds one model.
        parts += [part._replace(file=prefix + part.file) for part in own[:1]]
        unread += [(prefix + other, prefix + file) for other, file in others]
    if len(parts) == 1:
        parts = [parts[0]._replace(key="")]
    return Plan("", tuple(parts), unread=tuple(unread)) if parts else None


def _pipeline_folders(index: Json, names: list[str]) -> dict[str, str] | None:
    """The folders of the parts that `model_index.json` names: each part has the class
    that loads it.
    """
    if not isinstance(index, dict):
        return None
    # `_class_name` and other fields of the document are no folders.
    return {name: name for name in index if is_plain_name(name) and f"{name}/" in names}


def _settings_of(folder: Location, keys: Iterable[str]) -> Iterator[Part]:
    """The documents by which `from_pretrained` makes the parts of a pipeline."""
    for key in keys:
        # A link is not followed, as for the weights.
        below = folder.child(key, "no")
        names = readable_names(below)
        for name in SETTINGS:
            if name in names:
                file = f"{key}/{name}"
                yield Part(file, below.child(name), file, "json")


def _module_folders(modules: Json, names: list[str]) -> dict[str, str] | None:
    """Return the folders that `modules.json` names, or None for a file of another
    program with this name.

    The first module may lie in the folder itself. Its key is what its own folder was
    called in earlier versions: `0_Transformer`.
    """
    rows = modules if isinstance(modules, list) else []
    keys: dict[str, str] = {}
    for number, row in enumerate(rows):
        path = row.get("path") if isinstance(row, dict) else None
        kind = row.get("type") if isinstance(row, dict) else None
        if not isinstance(path, str) or not isinstance(kind, str):
            return None
        if path and not is_plain_name(path):
            raise UnreadableError(
                f"{SENTENCE_TRANSFORMERS} names {show(path, 80)}, which is not a "
                "folder beside it"
            )
        # A module without weights (pooling, normalizing) may have no folder.
        if not path or f"{path}/" in names:
            keys.setdefault(path, path or f"{number}_{kind.rpartition('.')[2]}")
    return keys or None


def _read_json(probe: Probe, name: str) -> Json:
    data = read_file(probe.location.child(name), probe.limits, name)
    return parse_json(data, name, probe.budget, constants=True)
