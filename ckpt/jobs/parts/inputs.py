"""Which files a part was made of: equal on all machines that read the same ones, another after any change."""

from __future__ import annotations

import hashlib

from ckpt.checkpoint import Checkpoint
from ckpt.io.source import Source
from ckpt.rows import NamedTuple

_EDGE = 16 << 10
"""Bytes at each end of a file that are read: headers, and the directory of a zip archive with its checksums."""


class Input(NamedTuple):
    """A checkpoint as a part has read it. `digest` is the SHA-256 of what tells its files from others."""

    path: str
    files: int
    nbytes: int
    digest: str


def input_of(checkpoint: Checkpoint) -> Input:
    """What tells the files of a checkpoint from others: names, sizes, times or ETags, and how they begin and end.

    Devices, inodes and the folder above are left out, because they differ where a file system is mounted twice. Raises
    NotOpenedError.
    """
    sources = checkpoint.all_sources()
    rows = sorted(
        f"{_name(source, checkpoint.path)}\0{source.identity[-2:]}\0{_edges(source)}" for source in sources
    )
    digest = hashlib.sha256("\n".join(rows).encode("utf-8", "surrogatepass")).hexdigest()
    return Input(checkpoint.path, len(sources), sum(source.size for source in sources), digest)


def _name(source: Source, path: str) -> str:
    """The name of a file inside of its checkpoint."""
    start = f"{path.rstrip('/')}/"
    return (
        source.name.removeprefix(start) if source.name.startswith(start) else source.name.rpartition("/")[2]
    )


def _edges(source: Source) -> str:
    """SHA-256 of the ends of a file, in hexadecimal. An object has an ETag instead, which costs no request."""
    if source.far is not None:
        return ""
    made = hashlib.sha256(source.read(0, min(_EDGE, source.size)))
    if source.size > _EDGE:
        made.update(source.read(source.size - _EDGE, _EDGE))
    return made.hexdigest()
