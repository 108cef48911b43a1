"""`__metadata__` of safetensors files, as the library of safetensors reads it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from opcodes import safetensors_file
from process import ckpt
from safetensors import SafetensorError, safe_open

TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
VALUES: list[Any] = [None, {}, {"a": "b"}, {"a": None}, {"a": 1}, [], "x", 0, False]


def many(metadata: Any) -> dict[str, Any]:
    """A header so long that it is read by an expression."""
    rows = {
        f"w{n}": {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}
        for n in range(400)
    }
    return {"__metadata__": metadata, "w": TENSOR, **rows}


@pytest.mark.parametrize("metadata", VALUES, ids=json.dumps)
@pytest.mark.parametrize("is_long", [False, True])
def test_it_is_read_as_the_library_reads_it(
    metadata: Any, is_long: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    header = many(metadata) if is_long else {"__metadata__": metadata, "w": TENSOR}
    path.write_bytes(
        safetensors_file(
            json.dumps(header, separators=(",", ":")), struct.pack("<2f", 1, 2)
        )
    )
    try:
        with safe_open(path, "pt") as opened:
            expected = opened.metadata() or {}
    except SafetensorError:
        assert ckpt("inspect", path).code == 2
        return

    document = json.loads(ckpt("inspect", path, "--json").out)
    found = {
        row["name"].removeprefix("__metadata__."): row["value"]
        for row in document["values"]
    }
    assert found == expected and document["totals"]["tensors"] == (
        401 if is_long else 1
    )
    assert ckpt("verify", path).code == 0
    for out in ("y.safetensors", "y.pth"):
        assert ckpt("convert", path, "-o", out, cwd=tmp_path).code == 0
