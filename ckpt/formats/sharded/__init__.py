"""One checkpoint in several files, with an index."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "sharded"
SUFFIXES: tuple[str, ...] = (".index.json",)
TRAITS = Traits("shards")
"""The traits of the index; a checkpoint has those of its shards."""
WRITER = ""
VERIFIER = "ckpt.formats.sharded.verify"

INDEXES = (".safetensors.index.json", ".bin.index.json")
"""Endings of an index."""
