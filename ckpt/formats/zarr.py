"""Folders of zarr arrays, which are recognised and not read."""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.model.errors import UnreadableError

ZARR = frozenset((".zarray", ".zgroup", ".zmetadata", ".zattrs", "zarr.json"))
"""Files of an array or a group of zarr."""
AS_DIST = (
    "Megatron writes it as torch_dist: --ckpt-convert-format torch_dist "
    "--ckpt-convert-save DIR"
)
_ARRAYS = 16
"""The most folders in one that are searched for an array of zarr."""


def has_arrays(folder: Location) -> bool:
    """Tell whether one of the first folders in a folder is an array of zarr. No link is
    followed.
    """
    folders = [name[:-1] for name in folder.names() if name.endswith("/")]
    for name in folders[:_ARRAYS]:
        try:
            files = folder.child(name, "no").names()
        except UnreadableError:
            continue
        if not ZARR.isdisjoint(files):
            return True
    return False
