"""An archive of torch.save that somebody has unpacked: a folder with `data.pkl`, the
storages in `data/`, and small records.

Browsers and file managers unpack a `.pth`, which is a zip archive, into its first
folder, or into a folder around that.
"""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import NotOpenedError, UnreadableError

PICKLE = "data.pkl"
_MARKS = ("version", "byteorder", ".data/")
"""Names of which one at least is beside `data.pkl`, whatever torch wrote it."""
_AROUND = 4
"""The most names in a folder around the one that was in the archive: `__MACOSX` and
such lie beside it.
"""


def sniff(probe: Probe) -> bool:
    return folder_of(probe) is not None


def _list_files(probe: Probe) -> tuple[str, ...] | None:
    # Here: few folders are such an archive.
    from ckpt.formats.torch_zip.unpacked_reader import list_files

    return list_files(probe)


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


FORMAT = Format(
    "torch-unpacked",
    Traits("unpacked PyTorch zip", is_pickle=True, keeps_devices=True),
    sniff,
    _list_files,
    reader="ckpt.formats.torch_zip.unpacked_reader",
    verifier="ckpt.formats.torch_zip.unpacked_reader",
)
