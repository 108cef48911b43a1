"""Which files of a folder are read as one checkpoint, and under which key each goes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ckpt.errors import NotOpenedError, UnreadableError
from ckpt.formats.folder.layouts import LAYOUTS, SPEECHBRAIN, Fact, Kind, Layout, weights_in
from ckpt.formats.probe import Probe
from ckpt.formats.safetensors.read import parse_json
from ckpt.io.location import Location, is_plain_name, read_file
from ckpt.names import natural
from ckpt.text import Json, show

DIFFUSERS = "model_index.json"
SENTENCE_TRANSFORMERS = "modules.json"
DEEPSPEED_TAG = re.compile(r"global_step\d+(?:_universal)?/")
"""A folder of DeepSpeed, as the Trainer has it beside its own files: a checkpoint of its own."""


class Part(NamedTuple):
    """A file of the folder: its path below the folder, where it is, and the key of its content."""

    file: str
    at: Location
    key: str
    kind: Kind = "checkpoint"
    is_model: bool = False

    @property
    def may_hold_tensors(self) -> bool:
        return self.kind in ("checkpoint", "any")


class Plan(NamedTuple):
    """The files that are read, the weights first, the layout by its name, and what its documents say of the folder."""

    layout: str
    parts: tuple[Part, ...]
    facts: tuple[Fact, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    """Files of weights that are not read, and the file that is read instead."""

    def mark(self, part: Part) -> str:
        """The prefix of the ids of the storages of a file, which keeps those of several files apart."""
        several = sum(other.may_hold_tensors for other in self.parts) > 1
        return f"{part.key or 'model'}:" if several else ""


def plan_of(probe: Probe) -> Plan | None:
    """The plan of a folder; None for a file, and for a folder without weights in a layout that is known.

    Raises UnreadableError for a folder with two files that are as good, or with a broken list of its parts.
    """
    if not probe.is_folder:
        return None
    folder, names = probe.location, _names(probe.location)
    files = [name for name in names if not name.endswith("/")]
    if SPEECHBRAIN.is_in(files):
        return Plan(SPEECHBRAIN.name, tuple(_by_rules(folder, files, SPEECHBRAIN)))
    for name, keys_in, layout, facts in (
        (DIFFUSERS, _pipeline, "diffusers pipeline", (Fact("pipeline", ("model_index", "_class_name")),)),
        (SENTENCE_TRANSFORMERS, _modules, "sentence-transformers model", ()),
    ):
        if name in files:
            keys = keys_in(_json(probe, name), names)
            found = None if keys is None else _in_folders(folder, keys)
            if found is not None:
                index = [Part(name, folder.child(name), "model_index", "json")] if facts else []
                return found._replace(layout=layout, parts=(*found.parts, *index), facts=facts)
    found = _flat(folder, files)
    if found is None or "latest" not in files:
        return found
    below = [name.rstrip("/") for name in names if DEEPSPEED_TAG.fullmatch(name)]
    return found._replace(unread=(*found.unread, *((name, found.parts[0].file) for name in below)))


def _flat(folder: Location, files: list[str]) -> Plan | None:
    """The plan of one folder with one model, or with the numbered models of accelerate."""
    chosen = weights_in(files)
    if chosen is None:
        return None
    parts = [Part(name, folder.child(name), key, is_model=True) for name, key in chosen.files]
    unread = [(name, chosen.files[0][0]) for name in chosen.unread]
    facts: list[Fact] = []
    label = ""
    for layout in (layout for layout in LAYOUTS if layout.is_in(files)):
        found = [
            part for part in _by_rules(folder, files, layout) if part.file not in {p.file for p in parts}
        ]
        for part in found:
            same = next((other for other in parts if other.key == part.key), None)
            if same is None:
                parts.append(part)
            else:
                unread.append((part.file, same.file))
        label = label or (layout.name if found else "")
        facts += layout.facts
    return Plan(label or LAYOUTS[-1].name, tuple(parts), tuple(facts), tuple(unread))


def _by_rules(folder: Location, files: Iterable[str], layout: Layout) -> list[Part]:
    parts: list[Part] = []
    for rule in layout.rules:
        for name in sorted(files, key=natural):
            match = re.fullmatch(rule.pattern, name)
            if match is not None and all(part.file != name for part in parts):
                parts.append(Part(name, folder.child(name), match.expand(rule.key), rule.kind))
    return parts


# --- models in folders of their own -----------------------------------------------------------------------------------


def _in_folders(folder: Location, keys: dict[str, str]) -> Plan | None:
    """The weights in folders right below, by the keys; the empty name is the folder itself. One model has no key."""
    parts: list[Part] = []
    unread: list[tuple[str, str]] = []
    for name, key in keys.items():
        below = folder.child(name, "no") if name else folder
        chosen = weights_in([file for file in _names(below) if not file.endswith("/")])
        if chosen is not None:
            prefix = f"{name}/" if name else ""
            file = chosen.files[0][0]
            parts.append(Part(prefix + file, below.child(file), key, is_model=True))
            unread += [(prefix + other, prefix + file) for other in chosen.unread]
    if len(parts) == 1:
        parts = [parts[0]._replace(key="")]
    return Plan("", tuple(parts), unread=tuple(unread)) if parts else None


def _pipeline(index: Json, names: list[str]) -> dict[str, str] | None:
    """The folders of the parts that `model_index.json` names: each part has the class that loads it."""
    if not isinstance(index, dict):
        return None
    return {name: name for name in index if is_plain_name(name) and f"{name}/" in names}


def _modules(modules: Json, names: list[str]) -> dict[str, str] | None:
    """The folders that `modules.json` names; None for a file of another program with this name.

    The first module may lie in the folder itself. Its key is what its own folder was called in earlier versions:
    `0_Transformer`.
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
                f"{SENTENCE_TRANSFORMERS} names {show(path, 80)}, which is not a folder beside it"
            )
        if not path or f"{path}/" in names:
            keys.setdefault(path, path or f"{number}_{kind.rpartition('.')[2]}")
    return keys or None


def _json(probe: Probe, name: str) -> Json:
    data = read_file(probe.location.child(name), probe.limits, name)
    return parse_json(data, name, probe.budget, constants=True)


def _names(folder: Location) -> list[str]:
    """The names in a folder; an empty list when it cannot be read."""
    try:
        return folder.names()
    except NotOpenedError:
        return []
