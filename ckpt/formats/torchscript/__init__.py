"""TorchScript archives (torch.jit.save since 1.3), those of the mobile interpreter too."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "torchscript"
SUFFIXES: tuple[str, ...] = (".pt", ".ptl", ".ts")
TRAITS = Traits(
    "TorchScript",
    'torch.jit.load({path}, map_location="cpu")',
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    names_are_code=True,
    tags_are_apart=True,
    in_place=True,
)
WRITER = "ckpt.formats.torchscript.write"
VERIFIER = "ckpt.formats.torch_zip.verify"
