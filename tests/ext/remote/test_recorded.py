"""What the files of a checkpoint behind a URL record of themselves, in few requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckpt.ext.remote import objects
from ckpt.ext.remote.source import RangeSource
from ckpt.formats.verify import recorded
from ckpt.model.limits import Limits

obstore = pytest.importorskip(
    "obstore", reason="obstore, the extra [cloud], is not installed"
)
pytestmark = oracle.QUIET


@pytest.mark.parametrize("count, size, most", [(40, 100_000, 60), (600, 100, 12)])
def test_a_dcp_takes_few_requests(
    count: int, size: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each large item, one for many small ones. No claim is left on a file:
    each read would check all of them.
    """
    state = {
        f"layers.{number}.weight": torch.full((size,), float(number))
        for number in range(count)
    }
    dcp.save(state, checkpoint_id=tmp_path / "d", no_dist=True)
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(objects, "open_bucket", lambda scheme, name: store)
    for path in (tmp_path / "d").iterdir():
        obstore.put(store, f"d/{path.name}", path.read_bytes())
    asked: list[RangeSource] = []
    real = RangeSource._request

    def request(self: RangeSource, begin: int | None, size: int) -> Any:
        asked.append(self)
        return real(self, begin, size)

    monkeypatch.setattr(RangeSource, "_request", request)
    far = recorded("s3://bucket/d", Limits())
    assert far.files == recorded(str(tmp_path / "d"), Limits()).files
    assert len(asked) <= most and not any(source.claims for source in asked)
