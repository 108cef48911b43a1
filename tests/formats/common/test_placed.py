"""Archives with bytes that are zero, missing or there twice: verify and salvage lose
what is hit, and nothing else.
"""

from __future__ import annotations

import io
import random
import struct
import zipfile
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from paths import many
from torch import nn

import ckpt
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

Tensors = dict[str, torch.Tensor]
LAYERS = [f"{number}.{key}" for number in range(4) for key in ("weight", "bias")]


def layers(path: Path, size: int = 32) -> bytes:
    """Save four layers, and return the bytes of the file."""
    torch.manual_seed(0)
    torch.save(
        nn.Sequential(*[nn.Linear(size, size) for _ in range(4)]).state_dict(), path
    )
    return path.read_bytes()


def header_of(data: bytes, record: str) -> tuple[int, int]:
    """The offsets of the local header of a record, and of its data."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = (
            row for row in archive.infolist() if row.filename.endswith(f"/{record}")
        )
    lengths = struct.unpack(
        "<HH", data[entry.header_offset + 26 : entry.header_offset + 30]
    )
    return entry.header_offset, entry.header_offset + 30 + sum(lengths)


def zeroed(data: bytes, first: int, count: int) -> bytes:
    return data[:first] + bytes(count) + data[first + count :]


def check(path: Path, whole: Tensors, lost: list[str], cause: str) -> None:
    """Hold verify and salvage of a damaged file to what is lost of it, and to a cause
    that both name.
    """
    report = ckpt.verify(path)
    assert report.verdict == "damaged" and cause in report.problems[0].what
    assert report.lost == tuple(lost)
    assert report.whole == tuple(name for name in whole if name not in lost)

    out = path.with_suffix(".out.pth")
    salvaged = ckpt.salvage(path, out=str(out), force=True)
    assert [row.name for row in salvaged.lost] == lost
    assert cause in "".join(salvaged.share.reasons if salvaged.share else ())
    loaded = torch.load(out)
    assert list(loaded) == [name for name in whole if name not in lost]
    assert all(torch.equal(loaded[name], whole[name]) for name in loaded)


def test_a_header_of_zeros_and_the_bytes_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    data = layers(path)
    whole = torch.load(path)
    header, begin = header_of(data, "data/4")

    path.write_bytes(zeroed(data, header, begin + 16 - header))
    check(path, whole, ["2.weight"], "its local header and the directory disagree")
    done = inside("verify", path, cwd=tmp_path)
    assert (
        b"1 tensor does not match its checksum; 7 of 8 tensors are whole, lost: "
        b"2.weight"
    ) in done.out
    quick = inside("verify", path, "--quick", cwd=tmp_path)
    assert (
        b"8 of 8 tensors are there; not checked: the bytes themselves" in quick.out
        and quick.code == 1
    )

    path.write_bytes(zeroed(data, header, 30))
    check(path, whole, [], "its local header and the directory disagree")


@pytest.mark.parametrize(
    ("cut", "again", "lost", "cause"),
    [
        (1000, 0, ["2.weight"], "1,000 bytes are missing inside of data/4"),
        (1, 0, ["2.weight"], "1 byte is missing inside of data/4"),
        (0, 1, ["2.weight"], "1 byte is too many inside of data/4"),
        (0, 100, ["2.weight"], "100 bytes are too many inside of data/4"),
        (
            5000,
            0,
            ["2.weight", "2.bias", "3.weight"],
            "5,000 bytes are missing between the beginning of data/4 ",
        ),
        (0, 5000, [], "5,000 bytes are too many behind data/3"),
    ],
)
def test_bytes_that_are_missing_or_there_twice(
    cut: int, again: int, lost: list[str], cause: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    data = layers(path)
    whole = torch.load(path)
    place = header_of(data, "data/4")[0] + 200
    path.write_bytes(data[:place] + data[place + cut - again :])
    check(path, whole, lost, cause)
    text = inside("verify", path, cwd=tmp_path).out.decode()
    assert cause.split(" between")[0] in text and "zip64" not in text


def test_bytes_missing_between_two_records_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    data = layers(path)
    whole = torch.load(path)
    header, begin = header_of(data, "data/4")
    path.write_bytes(
        data[: header + 40] + data[begin - 3 :]
    )  # within the padding of its header
    check(path, whole, [], "bytes are missing behind data/4")
    path.write_bytes(
        data[: begin + 4096 + 2] + data[begin + 4096 + 9 :]
    )  # within the descriptor behind it
    check(path, whole, [], "7 bytes are missing behind data/4")


def test_two_places_where_bytes_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    data = layers(path)
    whole = torch.load(path)
    first, second = header_of(data, "data/2")[1] + 50, header_of(data, "data/6")[1] + 50
    path.write_bytes(data[:first] + data[first + 300 : second] + data[second + 77 :])
    check(
        path,
        whole,
        ["1.weight", "3.weight"],
        "300 bytes are missing inside of data/2; 77 bytes are missing",
    )
    # As many are there twice, with a whole copy of the record behind them.
    path.write_bytes(data[:first] + data[first + 300 : second] + data[second - 300 :])
    check(
        path,
        whole,
        ["1.weight"],
        "300 bytes are missing inside of data/2; 300 bytes are too many behind",
    )


def test_a_view_of_a_storage_that_is_cut_off_is_kept_and_said(tmp_path: Path) -> None:
    """The bytes are there. Some may be missing before them too, and the checksum lies
    behind what is gone.
    """
    path = tmp_path / "x.pth"
    flat = torch.randn(300)
    torch.save({"a": flat[:100], "b": flat[100:], "c": torch.ones(3)}, path)
    data = path.read_bytes()
    begin = header_of(data, "data/0")[1]
    path.write_bytes(data[: begin + 700])
    text = (
        "1 tensor lies in a storage that is cut off, and no checksum proves the bytes: "
        "a"
    )
    assert text in inside("verify", path, cwd=tmp_path).out.decode().replace("\n", " ")
    done = inside("salvage", path, "-o", "out.pth", cwd=tmp_path)
    assert text in done.out.decode().replace("\n", " ") and done.code == 1
    assert torch.equal(torch.load(tmp_path / "out.pth")["a"], flat[:100])


def test_a_record_that_is_gone_with_its_header(tmp_path: Path) -> None:
    """The next record of the same size stands where the lost one was, and is not taken
    for it.
    """
    path = tmp_path / "x.pth"
    torch.save({f"w{number}": torch.randn(1000) for number in range(5)}, path)
    data, whole = path.read_bytes(), torch.load(path)
    first, second = header_of(data, "data/2")[0], header_of(data, "data/3")[0]
    path.write_bytes(data[:first] + data[second:])
    check(path, whole, ["w2"], f"{second - first:,} bytes are missing inside of data/2")


def test_the_list_of_tensors_is_hit(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    data = layers(path)
    begin = header_of(data, "data.pkl")[1]
    path.write_bytes(data[: begin + 20] + data[begin + 30 :])
    with pytest.raises(
        CkptError,
        match=(
            r"10 bytes are missing inside of data.pkl, so its list of tensors .* is "
            r"lost"
        ),
    ):
        ckpt.salvage(path, out=str(tmp_path / "out.pth"))
    assert ckpt.verify(path).whole is None


def test_many_tensors_with_long_names(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    names = [f"{'block.' * 19}{number:05d}" for number in range(3000)]
    torch.save(
        {
            "a": {
                "b": {
                    name: torch.full((4,), float(row)) for row, name in enumerate(names)
                }
            }
        },
        path,
    )
    data = path.read_bytes()
    place = header_of(data, "data/1500")[1] + 5
    path.write_bytes(data[:place] + data[place + 9 :])
    report = ckpt.verify(path)
    assert report.lost == (f"a.b.{names[1500]}",) and len(report.whole or ()) == 2999


def inner_archive(data: bytes) -> bytes:
    """A file of torch.save that holds another one of the same names, as bytes."""
    sink = io.BytesIO()
    blob = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    torch.save({"0.weight": torch.randn(9), "blob": blob, "y": torch.randn(5)}, sink)
    return sink.getvalue()


def test_an_archive_in_a_record_is_not_taken_for_the_outer_one(tmp_path: Path) -> None:
    inner = io.BytesIO()
    torch.save({key: torch.randn(30) for key in "abc"}, inner)
    data = inner_archive(inner.getvalue())
    path = tmp_path / "x.pth"
    end = header_of(data, "data/1")[1] + len(inner.getvalue())
    for last in range(end - 30, end + 40, 5):
        path.write_bytes(data[:last])
        assert set(ckpt.verify(path).whole or ()) <= {"0.weight", "blob"}, last


def test_the_second_of_two_archives_is_not_taken_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    rows: list[Tensors] = [
        {"w": torch.full((9,), float(number))} for number in range(2)
    ]
    for row in rows:
        torch.save(row, path)
        row["data"] = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    path.write_bytes(b"".join(row["data"].numpy().tobytes() for row in rows))
    ckpt.salvage(path, out=str(tmp_path / "out.pth"))
    assert torch.equal(torch.load(tmp_path / "out.pth")["w"], rows[0]["w"])


def samples(folder: Path) -> dict[str, bytes]:
    """Small files of all kinds of contents, by their names."""
    flat = torch.randn(300)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)]).state_dict()
    views = {"a": flat[:100], "b": flat[100:], "none": torch.empty(0, 3)}
    whole = {
        "model": {**model, **views},
        "optimizer": {"state": {0: {"m": torch.randn(20)}}},
        "epoch": 3,
    }
    torch.save(whole, folder / "train.pth")
    data = {"train.pth": (folder / "train.pth").read_bytes()}
    data["layers.pth"] = layers(folder / "layers.pth", 8)
    data["inner.pth"] = inner_archive(data["layers.pth"])
    return data


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The bytes with one kind of damage, at any place."""
    first = dice.randrange(len(data))
    count = dice.choice((1, 7, 64, 1000, 4096, dice.randrange(1, 3000)))
    kind = dice.choice(("zeros", "missing", "twice", "cut"))
    if kind == "zeros":
        return zeroed(data, first, min(count, len(data) - first))
    if kind == "missing":
        return data[:first] + data[first + count :]
    return data[:first] + (data[max(0, first - count) :] if kind == "twice" else b"")


def tensors_of(path: Path) -> Tensors:
    with ckpt.open(path) as checkpoint:
        return {name: checkpoint[name].torch().clone() for name in checkpoint}


@pytest.mark.parametrize("seed", range(8))
def test_verify_and_salvage_agree_on_random_damage(seed: int, tmp_path: Path) -> None:
    """The tensors that verify calls whole are those that salvage writes, and each
    equals the original.
    """
    torch.manual_seed(seed)
    dice = random.Random(seed)
    files = samples(tmp_path)
    originals = {}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        originals[name] = tensors_of(tmp_path / name)
    path, out = tmp_path / "x.pth", tmp_path / "out.pth"
    for _ in range(many(12, 200)):
        name = dice.choice(list(files))
        data = damaged(files[name], dice)
        for _ in range(dice.choice((0, 0, 0, 1))):
            data = damaged(data, dice) if data else data
        path.write_bytes(data)
        report = ckpt.verify(path)
        whole = (
            set(originals[name])
            if report.verdict == "intact"
            else set(report.whole or ())
        )
        unproved = {
            name
            for row in report.problems
            if "no checksum proves" in row.what
            for name in row.tensors
        }
        try:
            ckpt.salvage(path, out=str(out), force=True)
        except CkptError:
            assert not whole, (seed, report)
            continue
        written = tensors_of(out)
        assert whole == set(written), (seed, report)
        proved = written.keys() - unproved
        assert all(torch.equal(written[key], originals[name][key]) for key in proved), (
            seed,
            report,
        )
