"""Files that the benchmarks write without torch are those that torch.save writes."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks.files import ITEM_BYTES, write_state
from benchmarks.setting import TYPES, tensor_name

IDENTITY = ".data/serialization_id"


def with_torch(
    path: Path,
    names: list[str],
    shape: tuple[int, ...],
    dtype: str,
    payloads: list[bytes],
) -> None:
    tensors = [
        torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        .view(getattr(torch, dtype))
        .reshape(shape)
        for payload in payloads
    ]
    torch.save(
        {
            name: tensors[place % len(tensors)].clone()
            for place, name in enumerate(names)
        },
        path,
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES.values())
@pytest.mark.parametrize(
    ("count", "shape"), [(1, (3,)), (30, (5, 7)), (1001, (2, 3, 1, 300))]
)
def test_every_byte_but_the_identity_is_torchs(
    tmp_path: Path, dtype: str, count: int, shape: tuple[int, ...]
) -> None:
    names = [tensor_name(number) for number in range(count)]
    size = torch.Size(shape).numel() * ITEM_BYTES[dtype]
    payloads = [bytes([1, 0] * (size // 2) + [1] * (size % 2)), bytes(size)]
    ours, theirs = tmp_path / "ours" / "x.pth", tmp_path / "theirs" / "x.pth"
    for path, write in ((ours, write_state), (theirs, with_torch)):
        path.parent.mkdir()
        write(path, names, shape, dtype, payloads)
    with zipfile.ZipFile(ours) as our, zipfile.ZipFile(theirs) as their:
        names = [info.filename for info in their.infolist()]
        assert [info.filename for info in our.infolist()] == names
        assert our.testzip() is None
        mine = our.read(f"x/{IDENTITY}")
        its = their.read(f"x/{IDENTITY}")
    assert len(mine) == len(its)
    text = ours.read_bytes()
    wanted = theirs.read_bytes()
    assert len(text) == len(wanted)
    assert differing(text, wanted) <= identity_bytes(wanted, its)
    assert torch.load(ours)["blocks.0.attn.qkv.weight"].dtype == getattr(torch, dtype)


@pytest.mark.parametrize("count", [2, 999, 1000, 2000])
def test_batches_of_the_pickle_are_torchs(tmp_path: Path, count: int) -> None:
    names = [tensor_name(number) for number in range(count)]
    pickles = []
    for write in (write_state, with_torch):
        write(tmp_path / "x.pth", names, (70_000,), "int8", [bytes(70_000)])
        with zipfile.ZipFile(tmp_path / "x.pth") as file:
            pickles.append(file.read("x/data.pkl"))
    assert pickles[0] == pickles[1]


def differing(one: bytes, other: bytes) -> set[int]:
    return {
        place
        for place, (mine, its) in enumerate(zip(one, other, strict=True))
        if mine != its
    }


def identity_bytes(data: bytes, identity: bytes) -> set[int]:
    """The places of the identity and of its CRC, which stands behind it and in the
    directory.
    """
    begin = data.index(identity)
    end = begin + len(identity)
    row = data.rindex(f"x/{IDENTITY}".encode()) - 46
    return {*range(begin, end), *range(end + 4, end + 8), *range(row + 16, row + 20)}


def test_without_payloads_the_tensors_are_zeros_of_the_device(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    write_state(path, ["a", "b"], (2, 2), tag="cuda:3")
    assert torch.equal(torch.load(path, map_location="cpu")["b"], torch.zeros(2, 2))
    with zipfile.ZipFile(path) as file:
        assert "cuda:3" in [
            argument for _, argument, _ in pickletools.genops(file.read("x/data.pkl"))
        ]


def test_a_file_beyond_4_gib_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.files._MOST", 4000)
    write_state(tmp_path / "x.pth", ["a"], (4,))
    with pytest.raises(SystemExit, match="at most 4 GiB"):
        write_state(tmp_path / "x.pth", ["a"], (1000,))
