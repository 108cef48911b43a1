"""Items that torch has compressed with zstd. Where no zstd is installed, zlib stands in
for it: the rest is the same.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import ckpt
from ckpt import formats
from ckpt.bytes.source import Memory
from ckpt.ext.dcp import items as encoded
from ckpt.ext.dcp.items import ZSTD, decode_item
from ckpt.model.errors import DamagedDataError, UnreadableError, UnsupportedError

pytestmark = oracle.QUIET


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {
            "fc.weight": torch.randn(300, 40),
            "zeros": torch.zeros(700, 500),
            "turned": torch.arange(12.0).reshape(3, 4).t(),
            "number": torch.tensor(2.5),
            "none": torch.zeros(0, 3),
        },
        "lr": 0.1,
        "config": {"pair": (1, 2)},
        "text": "abc" * 1000,
    }


def as_zlib(raw: io.RawIOBase) -> io.BytesIO:
    machine = zlib.decompressobj()

    class Stream(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None and size > 0, "what it decodes to is bounded"
            parts = b""
            while not parts and not machine.eof:
                data = machine.unconsumed_tail or raw.read(100)
                parts = machine.decompress(data or b"", size)
                if not data and not parts:
                    raise zlib.error("cut off")
            return parts

    return Stream()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_find_decoder", lambda: as_zlib)


def saved(folder: Path) -> Path:
    dcp.save(state(), checkpoint_id=str(folder), no_dist=True)
    return folder


def compressed(folder: Path, *descriptors: str, grown: bytes = b"") -> Path:
    """The checkpoint with each of its items compressed by zlib, and with more bytes
    inside of each.
    """
    saved(folder)
    found = pickle.loads((folder / ".metadata").read_bytes())
    data, out = (folder / "__0_0.distcp").read_bytes(), b""
    for item in found.storage_data.values():
        part = zlib.compress(data[item.offset : item.offset + item.length] + grown)
        item.offset, item.length = len(out), len(part)
        item.transform_descriptors = list(descriptors or (ZSTD,))
        out += part
    (folder / "__0_0.distcp").write_bytes(out)
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    return folder


def check(folder: Path) -> None:
    """Every command reads it as what was saved."""
    wanted = state()
    with ckpt.open(folder) as checkpoint:
        for name, tensor in wanted["model"].items():
            assert (checkpoint[f"model.{name}"].numpy() == tensor.numpy()).all(), name
    with formats.open(str(folder)) as read:
        assert {value.name: value.node for value in read.values}["lr"] == 0.1
        assert not read.account.notices
    at = folder.parent
    done = inside("verify", folder.name, cwd=at)
    assert done.code == 0 and b"all checksums match" in done.out, done
    done = inside("convert", folder.name, "-o", "out.pth", cwd=at)
    assert done.code == 0, done
    read_again = torch.load(at / "out.pth", weights_only=True)
    assert (
        read_again["config"] == {"pair": (1, 2)}
        and read_again["text"] == wanted["text"]
    )
    for name, tensor in wanted["model"].items():
        assert torch.equal(read_again["model"][name], tensor), name
    assert inside("get", folder.name, "config.pair", cwd=at).out == b"(1, 2)\n"
    assert b"zeros" in inside("stats", folder.name, cwd=at).out
    done = inside(
        "rename", folder.name, "--sub", "s/^fc/FC/", "-o", "renamed.dcp", cwd=at
    )
    assert done.code == 0, done
    with ckpt.open(at / "renamed.dcp") as checkpoint:
        assert (
            checkpoint["model.FC.weight"].numpy()
            == wanted["model"]["fc.weight"].numpy()
        ).all()
        assert (checkpoint["model.zeros"].numpy() == 0).all()


def test_every_command_reads_encoded_items(stand_in: None, tmp_path: Path) -> None:
    check(compressed(tmp_path / "c"))


def test_zstd_of_torch_is_read(tmp_path: Path) -> None:
    if importlib.util.find_spec("zstandard") is None:
        pytest.skip(
            "torch writes zstd with the package zstandard, which is not installed"
        )
    from torch.distributed.checkpoint._extension import ZStandard

    writer = FileSystemWriter(tmp_path / "c", _extensions=[ZStandard()])
    dcp.save(state(), storage_writer=writer, no_dist=True)
    check(tmp_path / "c")
    loaded: dict[str, Any] = {"model": {"FC.weight": torch.zeros(300, 40)}}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "renamed.dcp"), no_dist=True)
    assert torch.equal(loaded["model"]["FC.weight"], state()["model"]["fc.weight"])
    data = tmp_path / "c" / "__0_0.distcp"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    assert inside("verify", "c", cwd=tmp_path).code != 0


def test_without_a_module_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "_find_decoder", lambda: None)
    compressed(tmp_path / "c")
    said = b"is compressed with zstd: pip install zstandard to read it"
    for command in ("verify", "stats"):
        done = inside(command, "c", cwd=tmp_path)
        assert done.code == 2 and said in done.out + done.err, done
        assert b"damaged" not in done.out + done.err
    done = inside("convert", "c", "-o", "c.pth", cwd=tmp_path)
    assert done.code != 0 and said in done.err and not (tmp_path / "c.pth").exists(), (
        done
    )
    done = inside("inspect", "c", cwd=tmp_path)
    assert said in done.out and b"fc.weight" in done.out


def test_no_module_is_found_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression", "backports", "zstandard"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert encoded._find_decoder() is None
    with pytest.raises(UnsupportedError, match="pip install zstandard"):
        decode_item(Memory(b""), "a", (ZSTD,), 10)


@pytest.mark.parametrize(
    "codecs", [("stream.zstd/2",), ("stream.zstd",), (ZSTD, ZSTD), ("aes/1",)]
)
def test_other_codecs_are_named_and_not_guessed(
    codecs: tuple[str, ...], stand_in: None
) -> None:
    with pytest.raises(UnreadableError, match=f"w is encoded by {codecs[0]}"):
        decode_item(Memory(zlib.compress(b"x")), "w", codecs, 10)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 255 << 10, (256 << 10) + 1, 3_000_000])
def test_reads_in_any_order_are_those_of_the_bytes(size: int, stand_in: None) -> None:
    rng = random.Random(size)
    data = rng.randbytes(size)
    source = decode_item(Memory(zlib.compress(data, 0)), "w", (ZSTD,), size)
    assert source.size == size
    for _ in range(60):
        first = rng.randint(0, size)
        count = rng.randint(0, size - first)
        assert source.read(first, count) == data[first : first + count]
    with pytest.raises(UnreadableError):
        source.read(size, 1)


def test_what_decodes_to_more_than_it_may_is_refused_early(stand_in: None) -> None:
    bomb = zlib.compress(bytes(50 << 20), 9)
    with pytest.raises(DamagedDataError, match="w decodes to more than 1,000 bytes"):
        decode_item(Memory(bomb), "w", (ZSTD,), 1000)


def test_a_large_item_that_hardly_shrinks_may_be_as_large_as_its_bytes_tell(
    stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a value may decode to grows with its bytes in the file."""
    noise = random.Random(8).randbytes(100_000).hex()
    monkeypatch.setitem(
        globals(), "state", lambda: {"w": torch.ones(3), "noise": noise}
    )
    compressed(tmp_path / "c")

    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 0 and b"all checksums match" in done.out, done


def test_a_bomb_in_an_item_is_found_by_verify_and_not_read(
    stand_in: None, tmp_path: Path
) -> None:
    compressed(tmp_path / "c", grown=bytes(16 << 20))
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code != 0 and b"decodes to more than" in done.out, done
    done = inside("inspect", "c", cwd=tmp_path)
    assert b"was not read" in done.out and b"decodes to more than" in done.out, done


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 100, zlib.compress(random.Random(1).randbytes(900_000))[:-5000]],
)
def test_what_is_no_whole_frame_is_damaged(data: bytes, stand_in: None) -> None:
    with pytest.raises(DamagedDataError, match="w is damaged"):
        decode_item(Memory(data), "w", (ZSTD,), 1_000_000)


def test_a_cut_item_is_never_other_data(stand_in: None, tmp_path: Path) -> None:
    """A frame of one item in the place of another of the same size is what its own
    checksums say.
    """
    folder = compressed(tmp_path / "c")
    data = folder / "__0_0.distcp"
    shutil.copy(data, tmp_path / "kept")
    content = bytearray(data.read_bytes())
    rng = random.Random(5)
    for _ in range(20):
        at = rng.randrange(len(content))
        broken = bytearray(content)
        broken[at] ^= 1 << rng.randrange(8)
        data.write_bytes(broken)
        with ckpt.open(folder) as checkpoint:
            for name, tensor in state()["model"].items():
                try:
                    same = (checkpoint[f"model.{name}"].numpy() == tensor.numpy()).all()
                except (ckpt.CkptError, KeyError):
                    continue
                assert same or inside("verify", "c", cwd=tmp_path).code != 0, (at, name)
