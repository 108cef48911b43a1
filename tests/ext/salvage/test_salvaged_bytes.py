"""Small files of which one byte is zero or 0xff: salvage writes what is whole or says
why not, and never that ckpt has a bug.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import frameworks_dcp
import oracle
import pytest
import torch
from inside import inside
from paths import IS_THOROUGH
from process import Done
from safetensors.torch import save_file

pytestmark = oracle.QUIET

STATE = {
    "model": {f"l{number}.weight": torch.randn(4, 3) for number in range(2)},
    "e": torch.empty(0),
    "n": 3,
}
PART = 13
"""A prime, so that the bytes of each field come in turn."""


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w + x


def made(name: str, folder: Path) -> Path:
    path = folder / name
    if name == "x.safetensors":
        save_file(STATE["model"], path, {"format": "pt"})
    elif name == "x.pt":
        torch.jit.script(Program()).save(str(path))
    elif name == "x.dcp":
        return next(frameworks_dcp.save(path, STATE).glob("*.distcp"))
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=name != "legacy.pth")
    return path


def changed(path: Path, step: int, first: int) -> Iterator[tuple[int, int]]:
    """Change one byte after the other, and tell which."""
    data = path.read_bytes()
    for position in range(first, len(data), step):
        for value in (0, 0xFF):
            if data[position] != value:
                path.write_bytes(
                    data[:position] + bytes([value]) + data[position + 1 :]
                )
                yield position, value
    path.write_bytes(data)


def check_salvage(name: str, folder: Path, out: str, where: tuple[int, int]) -> Done:
    done = inside("salvage", name, "-o", out, "--force", cwd=folder)
    text = (done.out + done.err).decode()
    assert "bug in ckpt" not in text and "Traceback" not in text, (where, text)
    assert done.code in (0, 1, 2), (where, text)
    assert done.code < 2 or len(done.complaints) == 1, (where, text)
    return done


NAMES = ["x.pth", "legacy.pth", "x.safetensors", "x.pt", "x.dcp"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PART, 1 if IS_THOROUGH else 6))
@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_a_file(name: str, first: int, tmp_path: Path) -> None:
    for where in changed(made(name, tmp_path), PART, first):
        check_salvage(name, tmp_path, f"out.{name.rpartition('.')[2]}", where)


def test_zeros_in_the_name_of_a_record(tmp_path: Path) -> None:
    path, out = made("x.pth", tmp_path), tmp_path / "out.pth"
    data = path.read_bytes()
    headers = [place for place in range(len(data)) if data.startswith(b"PK\3\4", place)]
    assert len(headers) > 5
    for header in headers[1:]:
        name = header + 30
        path.write_bytes(data[: name + 2] + bytes(4) + data[name + 6 :])

        assert check_salvage("x.pth", tmp_path, "out.pth", (header, 0)).code == 0
        loaded = torch.load(out)
        assert torch.equal(loaded["model"]["l0.weight"], STATE["model"]["l0.weight"])
        assert inside("verify", out, cwd=tmp_path).code == 0


@pytest.mark.parametrize("value", [0, 0xFF])
def test_code_that_is_damaged_is_left_out(value: int, tmp_path: Path) -> None:
    path = made("x.pt", tmp_path)
    with zipfile.ZipFile(path) as archive:
        (entry,) = (
            row
            for row in archive.infolist()
            if "/code/" in row.filename and row.filename.endswith(".py")
        )
    data = bytearray(path.read_bytes())
    lengths = data[entry.header_offset + 26 : entry.header_offset + 30]
    begin = (
        entry.header_offset
        + 30
        + lengths[0]
        + 256 * lengths[1]
        + lengths[2]
        + 256 * lengths[3]
    )
    data[begin + 8] = value
    path.write_bytes(data)

    done = check_salvage("x.pt", tmp_path, "out.pth", (begin, value))
    assert (
        done.code == 1
        and b"does not match its recorded checksum: the code is left out"
        in done.out + done.err
    )
    assert torch.equal(torch.load(tmp_path / "out.pth")["w"], torch.ones(3))
