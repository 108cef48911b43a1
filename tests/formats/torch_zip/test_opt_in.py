"""The zip format that torch 1.4 had as an option. No torch in reach writes it, so its
layout is built by hand.
"""

from __future__ import annotations

from pathlib import Path

import opcodes as op
import pytest
import torch
from process import check_error, ckpt

from ckpt import formats
from ckpt.model.errors import UnreadableError

KEY = "94218604831040"
W = op.tensor(key=KEY, location="cuda:0")


def archive(pickle: bytes, data: bytes = op.SIX) -> bytes:
    records = {"version": b"1\n", "data.pkl": pickle, f"tensors/{KEY}": data}
    return op.zip_file(
        {f"archive/{name}": content for name, content in records.items()}
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old.pth"
    path.write_bytes(archive(op.pickled({"w": W, "epoch": 3})))
    return path


def test_it_is_read(file: Path) -> None:
    with formats.open(str(file)) as checkpoint:
        assert checkpoint.format == "torch-zip-1.4"
        (entry,) = checkpoint.tensors
        assert (entry.name, entry.tensor.shape, entry.tensor.device) == (
            "w",
            (2, 3),
            "cuda:0",
        )
        assert "only torch 1.4 loads" in str(checkpoint.not_loadable)


def test_convert_writes_what_every_torch_loads(file: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        torch.load(
            file, map_location="cpu"
        )  # its records are not where a newer torch looks
    done = ckpt("convert", file, "-o", tmp_path / "new.pth")
    assert done.code == 0, done.err

    loaded = torch.load(tmp_path / "new.pth", map_location="cpu")

    assert loaded["epoch"] == 3
    assert torch.equal(loaded["w"], torch.arange(6.0).reshape(2, 3))


def test_rehome_writes_another_format(file: Path, tmp_path: Path) -> None:
    assert ckpt("rehome", file, "-o", tmp_path / "cpu.pth").code == 0

    assert str(torch.load(tmp_path / "cpu.pth")["w"].device) == "cpu"


def test_verify_names_the_damaged_tensor(file: Path) -> None:
    assert ckpt("verify", file).code == 0
    data = file.read_bytes()
    file.write_bytes(data.replace(op.SIX, op.SIX[:-1] + b"\x44", 1))

    done = ckpt("verify", file)

    assert done.code == 1 and "w" in done.out.decode()


def test_a_short_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.pth").write_bytes(archive(op.pickled({"w": W}), op.SIX[:20]))

    with pytest.raises(UnreadableError, match="20 bytes, its tensors need 24"):
        formats.open(str(tmp_path / "short.pth"))
    check_error(ckpt("inspect", tmp_path / "short.pth"), "its tensors need 24")
