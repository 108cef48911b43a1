"""Folders of zarr arrays, which are recognised and not read."""

from __future__ import annotations

from itertools import islice

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
    for name in islice(
        (name for name in folder.names() if name.endswith("/")), _ARRAYS
    ):
        try:
            if not ZARR.isdisjoint(folder.child(name[:-1], "no").names()):
                return True
        except UnreadableError:
            continue
    return False
