"""A base and an adapter behind URLs: read by ranges, merged while they come."""

from __future__ import annotations

from pathlib import Path

import loras
import oracle
import webs

import ckpt

pytestmark = oracle.QUIET


def test_a_base_and_an_adapter_behind_urls(tmp_path: Path) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    with webs.served() as web:
        web.files["/base.safetensors"] = base.read_bytes()
        web.files["/a/adapter_model.safetensors"] = (
            folder / "adapter_model.safetensors"
        ).read_bytes()
        web.files["/a/adapter_config.json"] = (
            folder / "adapter_config.json"
        ).read_bytes()
        near, far = (
            f"{web.url}/base.safetensors",
            f"{web.url}/a/adapter_model.safetensors",
        )

        ckpt.merge(near, far, out=tmp_path / "out.safetensors")
        report = ckpt.diff(near, tmp_path / "out.safetensors", adapter=far)

    loras.check_same(tmp_path / "out.safetensors", loras.merged(state, adapter), 2)
    assert report.exit_code == 0
