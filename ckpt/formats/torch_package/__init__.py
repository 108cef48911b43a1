"""torch.package archives: pickles with the Python code that they need."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "torch-package"
SUFFIXES: tuple[str, ...] = (".pt", ".package")
TRAITS = Traits(
    "torch.package",
    "torch.package.PackageImporter({path}).load_pickle({part})",
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    is_foreign=True,
    is_archive=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.torch_zip.verify"
