"""The checksums of distributed checkpoints: which bytes are compared, and which have
none.
"""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckpt.formats.verify import checksums
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET


@pytest.mark.parametrize("is_checked", [True, False])
def test_bytes_without_a_checksum_are_counted_apart(
    is_checked: bool, tmp_path: Path
) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(is_checked)
    try:
        dcp.save(
            {"w": torch.ones(1000), "v": torch.zeros(10)},
            checkpoint_id=str(tmp_path / "c"),
        )
    finally:
        torch.serialization.set_crc32_options(before)
    report = checksums(str(tmp_path / "c"), Limits())
    compared, unchecked = (report.nbytes, report.unchecked)[:: 1 if is_checked else -1]
    assert compared > 4040 and unchecked == 0 and report.damage == ()
