"""A model in several GGUF files, as llama.cpp splits it: `model-00001-of-00003.gguf`.
Any of them opens all.

The first file has the metadata; each says which one of how many it is.
"""

from __future__ import annotations

import re

from ckpt.formats.common.file_set import CheckpointFiles
from ckpt.formats.format import Probe
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UNFINISHED, UnreadableError
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Dict
from ckpt.model.rows import replace
from ckpt.model.text import and_more, show
from ckpt.tree.find import METADATA

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<of>\d{5})\.gguf")
_LISTED = 5
"""The most names in one line."""


def read_set(probe: Probe, count: int) -> Checkpoint:
    """The checkpoint in `count` files, of which the probe is one.

    With `partial` those that are there, with notices of the others. Raises CkptError.
    """
    own = probe.path.replace("\\", "/").rpartition("/")[2]
    match = _NAME.fullmatch(own)
    # The number of files is a stranger's: it must be the one of the name, and few.
    if match is None or int(match["of"]) != count or count > probe.limits.shards:
        raise UnreadableError(
            f"one of {count:,} files, and its name does not say which",
            hint="llama.cpp calls them NAME-00001-of-00003.gguf",
        )
    folder = probe.location.parent()
    names = [
        f"{match['stem']}-{number:05d}-of-{count:05d}.gguf"
        for number in range(1, count + 1)
    ]
    missing = [
        name for name in names if name != own and not folder.child(name).is_file()
    ]
    text = ""
    if missing:
        listed = and_more([show(name, 80) for name in missing], _LISTED)
        text = f"{len(missing):,} of {count:,} files missing: {listed}"
        if not probe.partial:
            raise UnreadableError(text, hint=UNFINISHED)
    # Marks keep apart storages of several files that have one number.
    marks: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        marks[name] = f"{probe.mark}file-{number}:"
    files = CheckpointFiles(
        folder,
        lambda name: probe.open(folder.child(name), marks[name]),
        partial=probe.partial,
    )
    with files.closing_on_errors():
        files.open_all([name for name in names if name not in missing])
        files.refuse_nothing()
        notices = [Notice("incomplete", text)] if missing else []
        return _of_files(probe.path, files, count, [*notices, *files.notices])


def _of_files(
    path: str,
    files: CheckpointFiles,
    count: int,
    notices: list[Notice],
) -> Checkpoint:
    """One checkpoint of the files that could be read. Raises UnreadableError where they
    do not belong together.
    """
    holders: dict[str, str] = {}
    entries: list[Entry] = []
    for name, file in files.files.items():
        _check_place(name, file, count)
        for entry in file.tensors:
            other = holders.setdefault(entry.name, name)
            if other != name:
                places = f"{show(other, 60)} and in {show(name, 60)}"
                raise UnreadableError(f"tensor {show(entry.name, 80)} is in {places}")
            entries.append(entry)
    entries.sort(key=lambda entry: natural_sort_key(entry.name))
    # The first file has the metadata of the model.
    every = list(files.files.values())
    root = Dict()
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    if every[0].beside is not None:
        root.set([METADATA], [every[0].beside])
    return replace(
        every[0],
        path=path,
        nbytes=files.nbytes,
        root=root,
        tensors=tuple(entries),
        storages=tuple(storage for file in every for storage in file.storages),
        account=Account(
            (*notices, *(notice for file in every for notice in file.account.notices))
        ),
        parts=tuple(files.files),
        sources=files.sources,
    )


def _check_place(name: str, file: Checkpoint, count: int) -> None:
    """Raise UnreadableError where a file says that it is another one of a set, or one
    of another set.
    """
    values: dict[str, object] = {}
    for value in file.values:
        if value.name.startswith("split."):
            values[value.name] = value.node
    match = _NAME.fullmatch(name)
    assert match is not None
    number = values.get("split.no")
    of = values.get("split.count")
    # Names count from 1, the metadata from 0.
    if of != count or number != int(match["number"]) - 1:
        said = "no part of a set"
        if type(number) is int and type(of) is int:
            said = f"number {number + 1:,} of {of:,}"
        raise UnreadableError(f"{show(name, 80)} says that it is {said}")
