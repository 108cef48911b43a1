"""PT2 archives: programs of torch.export, and packages of AOTInductor."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "pt2"
SUFFIXES: tuple[str, ...] = (".pt2",)
TRAITS = Traits(
    "PT2",
    "torch.export.load({path})",
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    names_are_code=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.torch_zip.verify"
