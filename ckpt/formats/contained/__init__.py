"""Archives of a library that hold checkpoints as members: Stable-Baselines3, NeMo."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "archive"
SUFFIXES: tuple[str, ...] = (".zip", ".nemo")
TRAITS = Traits(
    "archive of checkpoints", is_pickle=True, keeps_devices=True, has_checksums=True, is_archive=True
)
WRITER = ""
VERIFIER = "ckpt.formats.contained.verify"
