"""Archives of torch.package."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and any(
        archive.find(name) is not None
        for name in (".data/extern_modules", ".data/python_version")
    )


FORMAT = Format(
    "torch-package",
    Traits(
        "torch.package",
        "torch.package.PackageImporter({path}).load_pickle({part})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        is_foreign=True,
        is_archive=True,
    ),
    sniff,
    reader="ckpt.ext.archives.package_reader",
    suffixes=(".pt", ".package"),
    verifier="ckpt.formats.common.records",
)
