"""A folder as one checkpoint: the weights, what training needs besides, and the documents about both."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "folder"
SUFFIXES: tuple[str, ...] = ()
TRAITS = Traits("a folder")
"""The traits of the table; a checkpoint has those of its weights."""
WRITER = ""
VERIFIER = "ckpt.formats.folder.verify"
