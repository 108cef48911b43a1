"""The directory of a zip archive is read in columns: the records, and the errors, are
those of one header after the other.
"""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import torch
from process import SAMPLES

from ckpt.bytes.source import Memory
from ckpt.formats.common import archive as module
from ckpt.formats.common import columns, directory
from ckpt.formats.common.archive import read_archive
from ckpt.model.account import Notice
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits


def found(data: bytes, monkeypatch: pytest.MonkeyPatch, least: int) -> object:
    monkeypatch.setattr(columns, "_LEAST", least)
    monkeypatch.setattr(module, "_MANY", 0)
    try:
        archive = read_archive(Memory(data), Limits())
    except CkptError as error:
        return f"{type(error).__name__}: {error}"
    return (archive.root, archive.outside, archive.notices, *archive.records.values())


def both(data: bytes, monkeypatch: pytest.MonkeyPatch) -> object:
    alone = found(data, monkeypatch, 1 << 40)
    assert found(data, monkeypatch, 2) == alone
    return alone


def saved(tensors: int) -> bytes:
    out = BytesIO()
    torch.save({f"t{number}": torch.ones(number % 5) for number in range(tensors)}, out)
    return out.getvalue()


def zipped(method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for number in range(40):
            info = zipfile.ZipInfo(f"root/data/{number:03}")
            info.comment = comment
            archive.writestr(info, bytes(number), method)
    return out.getvalue()


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("*.pt*")), ids=lambda path: path.name
)
def test_samples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both(path.read_bytes(), monkeypatch)


@pytest.mark.parametrize(
    "data",
    [zipped(), zipped(zipfile.ZIP_DEFLATED), zipped(comment=b"with a comment")],
    ids=["stored", "deflated", "comments"],
)
def test_other_archives(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    records = both(data, monkeypatch)
    assert isinstance(records, tuple) and len(records) == 43


@pytest.mark.usefixtures("as_shipped")
def test_headers_of_one_length_are_read_in_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither one by one, nor with one request for each: 900 of the names have one
    length.
    """
    source = Memory(saved(1_000))
    reads: list[tuple[int, int]] = []
    alone: list[int] = []
    read, record = Memory.read, directory.record_at
    monkeypatch.setattr(
        Memory,
        "read",
        lambda self, offset, count: (
            reads.append((offset, count)) or read(self, offset, count)
        ),
    )
    monkeypatch.setattr(
        directory, "record_at", lambda *args: alone.append(args[2]) or record(*args)
    )
    archive = read_archive(source, Limits())
    assert len(archive.records) == 1_006
    assert len(alone) < 10
    assert len(reads) < 30


class Counted(bytes):
    """Bytes that count how many of them were cut out."""

    cut = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        part = super().__getitem__(key)
        if isinstance(key, slice):
            type(self).cut += len(part)
        return part


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("alike", [1, 9])
def test_headers_of_changing_lengths_are_looked_at_a_few_times(
    alike: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(3_000):
            archive.writestr(f"{number:06}" + "x" * (number // alike % 2), b"")
    data = out.getvalue()
    begin, size = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    monkeypatch.setattr(Counted, "cut", 0)
    headers = Counted(data[begin:size])
    assert (
        len(
            directory.read_records(
                Memory(data), headers, 3_000, begin, columns.read_alike
            )
        )
        == 3_000
    )
    assert Counted.cut < 40 * len(headers)


def changed_records(change: Callable[[bytearray, int, int], None]) -> bytes:
    """100 records; `change` gets the bytes, and where the headers of each record are:
    in the directory and before its data.
    """
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(100):
            archive.writestr(f"root/data/{number:03}", b"12345")
    data = bytearray(out.getvalue())
    local, central = data.index(b"PK\3\4"), data.index(b"PK\1\2")
    for number in range(100):
        change(data, central + number * (46 + 13), local + number * (30 + 13 + 5))
    return bytes(data)


def nul_in_a_name(data: bytearray, central: int, local: int) -> None:
    if data[central + 46 : central + 59] == b"root/data/050":
        data[central + 56] = data[local + 40] = 0


def no_size_before_the_data(data: bytearray, central: int, local: int) -> None:
    data[local + 18 : local + 26] = bytes(8)


def sizes_behind_the_data(data: bytearray, central: int, local: int) -> None:
    no_size_before_the_data(data, central, local)
    data[central + 8] |= 8
    data[local + 6] |= 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (nul_in_a_name, "a record name contains a NUL byte"),
        (
            no_size_before_the_data,
            "its local header and the directory give different sizes",
        ),
        (sizes_behind_the_data, None),
    ],
)
def test_what_all_records_have(
    change: Callable[[bytearray, int, int], None],
    says: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = both(changed_records(change), monkeypatch)
    assert (
        says in result
        if says is not None and isinstance(result, str)
        else isinstance(result, tuple)
    )


def test_records_beyond_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of the headers lie in zip64 fields."""

    class Far(Memory):
        """An archive with 5 GiB of nothing after its first record."""

        hole = 5 << 30

        def __init__(self, data: bytes, at: int) -> None:
            super().__init__(data)
            self.at = at
            self.size = len(data) + self.hole

        def read(self, offset: int, count: int) -> bytes:
            if offset + count <= self.at:
                return (
                    super().read(offset, count)
                    if offset + count <= len(self._data)
                    else b""
                )
            begin = max(offset, self.at + self.hole) - self.hole
            return (
                bytes(max(0, self.at + self.hole - offset))
                + self._data[begin : begin + count]
            )

    def far() -> tuple[bytes, int]:
        data = bytearray(zipped())
        end = len(data) - 22
        first = int.from_bytes(data[end + 16 : end + 20], "little")
        central = bytearray()
        at, number = first, 0
        while data[at : at + 4] == b"PK\1\2":
            length = int.from_bytes(data[at + 28 : at + 30], "little")
            row = bytearray(data[at : at + 46 + length])
            at += 46 + length
            header = int.from_bytes(row[42:46], "little")
            if number:
                row[30:32] = (12).to_bytes(2, "little")
                row[42:46] = b"\xff" * 4
                row += b"\1\0\x08\0" + (header + Far.hole).to_bytes(8, "little")
            central += row
            number += 1
        hole = data.index(b"PK\3\4", 4)
        begin = first + Far.hole
        tail = (
            b"PK\6\6"
            + (44).to_bytes(8, "little")
            + bytes((45, 0, 45, 0))
            + bytes(8)
            + number.to_bytes(8, "little") * 2
            + len(central).to_bytes(8, "little")
            + begin.to_bytes(8, "little")
        )
        locator = (
            b"PK\6\7"
            + bytes(4)
            + (begin + len(central)).to_bytes(8, "little")
            + (1).to_bytes(4, "little")
        )
        old = b"PK\5\6" + bytes(4) + b"\xff" * 4 + b"\xff" * 8 + bytes(2)
        return bytes(data[:first] + central + tail + locator + old), hole

    data, hole = far()
    results = []
    alone: list[int] = []
    record = directory.record_at
    monkeypatch.setattr(
        directory, "record_at", lambda *args: alone.append(args[2]) or record(*args)
    )
    for least in (1 << 40, 2):
        monkeypatch.setattr(columns, "_LEAST", least)
        monkeypatch.setattr(module, "_MANY", 0)
        records = list(read_archive(Far(data, hole), Limits()).records.values())
        results.append(records)
        assert (
            all(record.offset > Far.hole for record in records[1:])
            and len(records) == 40
        )
    assert results[0] == results[1]
    assert len(alone) == 41  # the first header alone has no field of zip64
    at = data.rindex(b"PK\1\2")
    for top in (0x80, 0xFF):
        wrong = (
            data[: at - 1] + bytes((top,)) + data[at:]
        )  # of the offset of the last record but one
        for least in (1 << 40, 2):
            monkeypatch.setattr(columns, "_LEAST", least)
            with pytest.raises(CkptError, match="beyond the data of the archive"):
                read_archive(Far(wrong, hole), Limits())


def test_changed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(3)
    whole = saved(60)
    begin = whole.index(b"PK\1\2")
    headers = [at for at in range(begin) if whole.startswith(b"PK\3\4", at)]
    good = bad = 0
    for _ in range(1_500):
        data = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2))):
            at = random_.randrange(begin, len(data) - 22)
            if random_.randrange(3) == 0:
                at = random_.choice(headers) + random_.randrange(60)
            data[at] = random_.choice(
                (random_.randrange(256), 255, 0, data[at] ^ 1 << random_.randrange(8))
            )
        result = both(bytes(data), monkeypatch)
        good += isinstance(result, tuple)
        bad += isinstance(result, str)
    assert good > 100 and bad > 100


def test_a_folder_that_holds_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads no byte of it, other readers read all. One without data is only a
    name.
    """
    for size, expected in ((0, tuple), (5, str)):
        out = BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            info = zipfile.ZipInfo("root/data/0")
            info.external_attr = 0x10
            archive.writestr(info, bytes(size))
        answer = both(out.getvalue(), monkeypatch)
        assert isinstance(answer, expected), answer
    assert "record root/data/0 is marked as a folder but holds data" in str(answer)


def test_bytes_behind_an_archive_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    data = zipped()
    assert isinstance(both(data, monkeypatch), tuple)
    answer = both(data + b"123", monkeypatch)
    assert isinstance(answer, tuple)
    text = (
        "3 bytes (text: '123') follow the zip archive, which ends at byte "
        f"{len(data):,}: torch ignores them"
    )
    assert answer[2] == (Notice("trailing-data", text),)
