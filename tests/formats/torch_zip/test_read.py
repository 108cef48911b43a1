"""Reading what torch.save wrote: the keys of storages."""

from __future__ import annotations

from pathlib import Path

import opcodes as op
import pytest
import torch
from inside import inside

from ckpt import formats
from ckpt.formats import save
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Limits

KEYS = [
    "a/b",
    "a b",
    "ключ",
    "x" * 300,
    "../x",
    "..",
    "a\\b",
    "a\nb",
    "\u202e",
    "/0",
    "e\u0301",
]


def written(path: Path, key: str) -> Path:
    path.write_bytes(
        op.torch_zip(op.pickled(op.mapping([("w", op.tensor(key=key))])), {key: op.SIX})
    )
    return path


@pytest.mark.parametrize("key", KEYS)
def test_any_key_that_torch_takes(key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.pt", key)
    want = torch.load(path)["w"]

    with formats.open(str(path)) as checkpoint:
        assert [storage.id for storage in checkpoint.storages] == [key]
    for command in (
        ("rehome", "--to", "cuda:0", "a.pt", "-o", "b.pt"),
        ("slim", "a.pt", "-o", "b.pt"),
        ("convert", "a.pt", "--format", "torch-legacy", "-o", "b.pt"),
        ("rehome", "--to", "cuda:0", "--in-place", "a.pt"),
    ):
        done = (
            inside(*command, "--force", cwd=tmp_path)
            if "-o" in command
            else inside(*command, cwd=tmp_path)
        )
        assert done.code == 0, done.err
        assert torch.equal(
            torch.load(
                tmp_path / ("b.pt" if "-o" in command else "a.pt"), map_location="cpu"
            )["w"],
            want,
        )
    assert save.undo_rewrite(str(path), Limits()).after == len(
        written(tmp_path / "c.pt", key).read_bytes()
    )
    for command in (
        ("inspect", "--storages"),
        ("inspect", "--json"),
        ("inspect", "--tsv"),
        ("verify",),
    ):
        done = inside(*command, "a.pt", cwd=tmp_path)
        assert done.code == 0 and "\u202e".encode() not in done.out


@pytest.mark.parametrize("key", ["", "\ud800", "a\0b", "0/"])
def test_a_key_that_names_no_record_is_refused(key: str, tmp_path: Path) -> None:
    data = op.torch_zip(
        op.pickled(op.mapping([("w", op.tensor(key=key))])),
        {"0": op.SIX, **({key: op.SIX} if key == "0/" else {})},
    )
    (tmp_path / "a.pt").write_bytes(data)

    with pytest.raises(UnreadableError, match="invalid storage key"):
        formats.open(str(tmp_path / "a.pt"))
