"""The table of formats, and the door: `open` finds the format by content and reads it.

A format is a module with NAME, SUFFIXES, `sniff(probe)` and `read(probe, limits)`; a new one is one file and
one word in FORMATS. Order decides: the first that recognises a file reads it, the last refuses by name.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Protocol

from ckpt.checkpoint import Checkpoint
from ckpt.errors import CkptError
from ckpt.formats import foreign, torchscript
from ckpt.formats.probe import Probe
from ckpt.formats.safetensors import read as safetensors
from ckpt.formats.sharded import read as sharded
from ckpt.formats.torch_legacy import read as torch_legacy
from ckpt.formats.torch_zip import read as torch_zip
from ckpt.limits import Limits


class Reader(Protocol):
    """What a format's module offers."""

    NAME: str
    SUFFIXES: tuple[str, ...]
    """Endings that its files usually have; recognition goes by content."""

    def sniff(self, probe: Probe) -> bool:
        """Whether the file is of this format. Raises UnreadableError when it is, and is damaged."""
        ...

    def read(self, probe: Probe, limits: Limits) -> Checkpoint:
        """The checkpoint. Raises CkptError; reads no tensor data."""
        ...


FORMATS: tuple[Reader, ...] = (
    sharded,
    torchscript,
    torch_zip,
    torch_legacy,
    safetensors,
    foreign,
)


def open(path: str, limits: Limits | None = None) -> Checkpoint:
    """The checkpoint at a path: a file, an index of shards, or a directory that holds one.

    Nothing that the file names is run, imported or written, and no tensor data is read. Raises CkptError
    with the path in front.
    """
    limits = limits or Limits()
    collecting = gc.isenabled()
    gc.disable()  # a tree of a million nodes, none of them garbage: the collector would double the time
    probe = None
    try:
        probe = Probe(path, limits)
        reader = next(reader for reader in FORMATS if reader.sniff(probe))
        found = reader.read(probe, limits)
        if reader is sharded:  # it holds files of its own
            probe.close()
            return found
        probe.file.check_unchanged()
        return replace(found, source=probe.source, close=probe.close)
    except BaseException as error:
        if probe is not None:
            probe.close()
        if isinstance(error, CkptError) and error.path is None:
            error.path = path
        raise
    finally:
        if collecting:
            gc.enable()
