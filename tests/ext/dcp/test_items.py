"""The item of a data file: an archive of exactly its bytes."""

from __future__ import annotations

import pytest
import torch
from rewriting import in_memory

from ckpt.bytes.source import Memory
from ckpt.ext.dcp.items import Bytes
from ckpt.model.errors import DamagedDataError, UnreadableError
from ckpt.model.limits import Limits

MOST = 1 << 20


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_item_is_one_archive(is_whole: bool) -> None:
    """A length of another item would hide that `.metadata` belongs to other files."""
    data = in_memory(torch.ones(3))
    source = Memory(b"before" + data + b"the next item")
    found = Bytes(source, 6, len(data), "w").archive(Limits(), MOST, whole=is_whole)
    assert found.find("data.pkl") is not None
    with pytest.raises(UnreadableError, match="w: 9 bytes follow its archive"):
        Bytes(source, 6, len(data) + 9, "w").archive(Limits(), MOST, whole=is_whole)
    with pytest.raises(
        DamagedDataError, match="w is damaged: no archive begins at byte 5 of its file"
    ):
        Bytes(source, 5, len(data), "w").archive(Limits(), MOST, whole=is_whole)
    with pytest.raises(UnreadableError):
        Bytes(source, 6, len(data) - 1, "w").archive(Limits(), MOST, whole=is_whole)
