"""TorchScript archives of torch 1.0 to 1.2: a table of tensors in JSON, one record for each storage, code."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "torchscript-1.0"
SUFFIXES: tuple[str, ...] = (".pt",)
TRAITS = Traits(
    "TorchScript 1.0",
    'torch.jit.load({path}, map_location="cpu")',
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    names_are_code=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.torch_zip.verify"
