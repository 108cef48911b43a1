"""Archives that torch refuses, or maps to other values: what ckpt writes is a good one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from process import ckpt

import ckpt as library

MODEL = {"layer.weight": torch.arange(12.0).reshape(4, 3), "layer.bias": torch.ones(4)}
REFUSED = {
    "no version": {"version": None},
    "no number": {"version": b"abc"},
    "a newer version": {"version": b"99"},
    # torch asks for this record first.
    "the other record": {".data/version": b"99"},
    "both records": {"version": b"99", ".data/version": b"abc"},
}
COMMANDS = {
    "convert": ("convert", "FILE", "-o", "OUT"),
    "rehome": ("rehome", "FILE", "--to", "cpu", "-o", "OUT"),
    "slim": ("slim", "FILE", "-o", "OUT"),
    "set": ("set", "FILE", "epoch=1", "-o", "OUT"),
    "in place": ("set", "OUT", "epoch=1", "--in-place"),
}


def repack(
    path: Path, changes: dict[str, bytes | None], method: int = zipfile.ZIP_STORED
) -> Path:
    """Write a file of torch.save, packed anew with other records."""
    torch.save({"model": MODEL, "epoch": 3}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(records)).partition("/")[0]
    for name, data in changes.items():
        records.pop(f"{root}/{name}", None)
        if data is not None:
            records[f"{root}/{name}"] = data
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return path


def check_loads(path: Path) -> None:
    for mmap in (False, True):
        loaded = torch.load(path, mmap=mmap)["model"]
        assert loaded.keys() == MODEL.keys()
        assert all(torch.equal(loaded[name], MODEL[name]) for name in MODEL)


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_torch_refuses_it_and_ckpt_says_so(
    changes: dict[str, bytes | None], tmp_path: Path
) -> None:
    path = repack(tmp_path / "a.pth", changes)
    with pytest.raises(RuntimeError):
        torch.load(path)

    report = library.inspect(path)
    assert report.load is None
    assert "container" in {row.code for row in report.findings}


@pytest.mark.parametrize(
    "changes", [{".data/version": b"3"}, {"version": b"99", ".data/version": b"3"}]
)
def test_the_hidden_record_is_the_one_that_counts(
    changes: dict[str, bytes | None], tmp_path: Path
) -> None:
    path = repack(tmp_path / "a.pth", changes)
    check_loads(path)

    assert library.inspect(path).load is not None
    assert ckpt("convert", path, "-o", tmp_path / "b.pth").code == 0
    assert (tmp_path / "b.pth").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_is_written_loads(
    changes: dict[str, bytes | None], command: tuple[str, ...], tmp_path: Path
) -> None:
    path = repack(tmp_path / "a.pth", changes)
    out = tmp_path / "b.pth"
    if "FILE" not in command:
        out = path
    words = [{"FILE": str(path), "OUT": str(out)}.get(word, word) for word in command]
    assert ckpt(*words).code == 0

    if command[0] == "slim":
        loaded = torch.load(out)
        assert torch.equal(loaded["layer.weight"], MODEL["layer.weight"])
    else:
        check_loads(out)
    report = library.inspect(out)
    assert not report.findings and report.load is not None


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_deflated_storages_are_written_as_they_are(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    if "--in-place" in command:
        pytest.skip("storages stay where they are")
    path = repack(tmp_path / "a.pth", {}, zipfile.ZIP_DEFLATED)
    assert "container" in {row.code for row in library.inspect(path).findings}
    out = tmp_path / "b.pth"
    words = [{"FILE": str(path), "OUT": str(out)}.get(word, word) for word in command]
    assert ckpt(*words).code == 0

    assert not library.inspect(out).findings
    if command[0] != "slim":
        check_loads(out)
