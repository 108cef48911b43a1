"""An archive of torch.save that somebody has unpacked: a folder with `data.pkl`, the
storages in `data/`, and small records.

Browsers and file managers unpack a `.pth`, which is a zip archive, into its first
folder, or into a folder around that.
"""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.bytes.source import read_limited
from ckpt.formats.format import HEAD_BYTES, Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import CkptError, NotOpenedError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_sort_key

PICKLE = "data.pkl"
_SMALL = ("version", "byteorder", ".format_version", ".storage_alignment")
"""Records of torch.save beside the pickle."""
_FOLDERS = ("data", ".data")
_OF_TORCH = (".data/serialization_id", ".data/version")
_LETTERS = 64
"""The most bytes of a small record. No checkpoint is as short, and pickles are
judged.
"""
_MARKS = ("version", "byteorder", ".data/")
"""Names of which one at least is beside `data.pkl`, whatever torch wrote it."""
_AROUND = 4
"""The most names in a folder around the one that was in the archive: `__MACOSX` and
such lie beside it.
"""


def sniff(probe: Probe) -> bool:
    return folder_of(probe) is not None


def _list_files(probe: Probe) -> tuple[str, ...] | None:
    folder = folder_of(probe)
    if folder is None:
        return None
    inner = "" if folder.name == probe.location.name else f"{last_step(folder)}/"
    keys = _keys_of(folder, probe.limits)
    # Any other file is judged by itself.
    kept = [
        name
        for name, file in list_members(folder)
        if keys is None or _is_read(name, file, keys, probe.limits)
    ]
    return tuple(inner + name for name in kept)


def _is_read(name: str, file: Location, keys: set[str], limits: Limits) -> bool:
    """Tell whether a file belongs to the checkpoint: its pickle, a storage that this
    names, or a few letters of torch.

    A storage that is a pickle too is a file of its own: nothing but its name says that
    nobody unpickles it.
    """
    if name == PICKLE:
        return True
    # Here: few folders are such an archive.
    from ckpt.formats.common.early import is_pickle_too

    source = file.open()
    try:
        if name.removeprefix("data/") in keys:
            head = source.read(0, min(source.size, HEAD_BYTES))
            return not head or not is_pickle_too(head, source, limits)
        return name in (*_SMALL, *_OF_TORCH) and source.size <= _LETTERS
    finally:
        source.close()


def folder_of(probe: Probe) -> Location | None:
    """The folder with `data.pkl` that a path leads to: the folder itself, the one
    around it, or the pickle.
    """
    if not probe.is_folder:
        if last_step(probe.location) != PICKLE:
            return None
        folder = probe.location.parent()
        return folder if _is_one(list_names(folder)) else None
    names = list_names(probe.location)
    if PICKLE in names:
        return probe.location if _is_one(names) else None
    if len(names) > _AROUND:
        return None
    found = []
    for name in names:
        if not name.endswith("/"):
            continue
        try:
            inner = probe.location.child(name[:-1], "no")
        except UnreadableError:
            # A link, which is not followed.
            continue
        if _is_one(list_names(inner)):
            found.append(inner)
    return found[0] if len(found) == 1 else None


def _is_one(names: list[str]) -> bool:
    return PICKLE in names and any(mark in names for mark in _MARKS)


def list_names(folder: Location) -> list[str]:
    try:
        return folder.names()
    except NotOpenedError:
        return []


def last_step(location: Location) -> str:
    return location.name.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _keys_of(folder: Location, limits: Limits) -> set[str] | None:
    """The keys of the storages that the pickle names, or None for a pickle that cannot
    be read.
    """
    # Here: few folders are such an archive.
    from ckpt.pickle.machine import run_machine

    source = folder.child(PICKLE, "no").open()
    try:
        budget = Budget(limits, source.size)
        data = read_limited(source, limits.pickle_bytes, "pickle-bytes", PICKLE)
        pickle = run_machine(data, limits, 0, budget)
    except CkptError:
        return None
    finally:
        source.close()
    keys: set[str] = set()
    for persistent in pickle.persistent:
        pid = persistent.pid
        # torch's ids are (`storage`, type, key, device, count).
        if type(pid) is tuple and len(pid) > 2 and isinstance(pid[2], (str, int)):
            keys.add(str(pid[2]))
    return keys


def list_members(folder: Location) -> list[tuple[str, Location]]:
    """The files of the archive by their names in it, in the order of torch. No link is
    followed.
    """
    names = list_names(folder)
    members: list[tuple[str, Location]] = []
    for name in (PICKLE, *_SMALL):
        if name in names:
            members.append((name, folder.child(name, "no")))
    for inner in _FOLDERS:
        if f"{inner}/" in names:
            below = folder.child(inner, "no")
            keys = sorted(
                (key for key in list_names(below) if not key.endswith("/")),
                key=natural_sort_key,
            )
            members += [(f"{inner}/{key}", below.child(key, "no")) for key in keys]
    return members


FORMAT = Format(
    "torch-unpacked",
    Traits("unpacked PyTorch zip", is_pickle=True, keeps_devices=True),
    sniff,
    _list_files,
    reader="ckpt.formats.torch_zip.unpacked_reader",
    verifier="ckpt.formats.torch_zip.unpacked_reader",
)
