"""GGUF, the files of llama.cpp: read, never written."""

from __future__ import annotations

from ckpt.ext.gguf.types import BY_NUMBER
from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits

NAME = "gguf"
TRAITS = Traits(
    "GGUF",
    "llama_cpp.Llama({path})",
    keeps_order=False,
    keeps_ties=False,
    has_own_metadata=True,
)
MAGIC = b"GGUF"


def sniff(probe: Probe) -> bool:
    return probe.head.startswith(MAGIC)


FORMAT = Format(
    NAME,
    TRAITS,
    sniff,
    reader="ckpt.ext.gguf.reader",
    suffixes=(".gguf",),
    verifier="ckpt.ext.gguf.reader",
    salvager="ckpt.ext.gguf.reader",
    dtypes=tuple(dtype for dtype in BY_NUMBER.values() if dtype.block is not None),
)
