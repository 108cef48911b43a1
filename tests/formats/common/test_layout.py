"""The zip writer: torch's layout bit for bit, storages where they were within a page,
zip64, checksums.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import oracle
import pytest
import rewriting
import torch
import torch.utils.serialization
from same import difference

from ckpt import formats
from ckpt.bytes import target
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.formats.common import heads
from ckpt.formats.common.layout import PAGE, PlannedRecord, bytes_record, lay_out
from ckpt.formats.torch_zip import writer as torch_zip
from ckpt.formats.torch_zip.reader import Origin
from ckpt.model.errors import UnreadableError, WriteError
from ckpt.model.limits import Limits
from ckpt.model.tensors import Storage
from ckpt.pickle.edit import Edit

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"
WRITTEN_BY_TORCH = [
    "compiled.pth",
    "ddp_after.pth",
    "dtypes.pth",
    "hostile.pth",
    "legacy.pth",
    "lightning.ckpt",
    "llama_bf16.pth",
    "objects.pth",
    "tied_and_bloated.pth",
    "train_cuda.pth",
    "whole_model.pth",
    "yolo_style.pt",
]


def drafted(source: Path, to: Path) -> Path:
    """`source` written by the writer of its format, without an edit; never as a copy of
    the file.
    """
    with formats.open(str(source)) as checkpoint:
        draft = writer_of(checkpoint.format).draft(checkpoint, Limits())
        with target.writing_file(
            target.target(str(to), force=False), draft.size
        ) as sink:
            draft.write(sink)
    return to


@pytest.mark.parametrize("name", WRITTEN_BY_TORCH)
def test_samples_are_written_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert (
        drafted(SAMPLES / name, tmp_path / name).read_bytes()
        == (SAMPLES / name).read_bytes()
    )


@pytest.mark.parametrize("alignment", [64, 128, 4096])
def test_other_alignments(alignment: int, tmp_path: Path) -> None:
    with torch.utils.serialization.config.patch("save.storage_alignment", alignment):
        source = rewriting.saved(
            {"a": torch.ones(3), "b": torch.zeros(0), "c": torch.ones(500)},
            tmp_path / "a.pt",
        )

    assert drafted(source, tmp_path / "b.pt").read_bytes() == source.read_bytes()


def repacked(
    source: Path, to: Path, method: int = zipfile.ZIP_STORED, reverse: bool = False
) -> Path:
    """The archive as another zip writer would write it: no alignment, other order,
    deflated.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(to, "w", method) as new:
        for name in sorted(old.namelist(), reverse=reverse):
            new.writestr(name, old.read(name))
    return to


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_of_other_writers_become_torchs(
    method: int, reverse: bool, tmp_path: Path
) -> None:
    source = repacked(SAMPLES / "ddp_after.pth", tmp_path / "re.pth", method, reverse)

    made = rewriting.again(source, tmp_path / "made.pth")

    expected = rewriting.load(SAMPLES / "ddp_after.pth")
    assert difference(expected, rewriting.load(made)) is None
    assert difference(expected, rewriting.load(made, mmap=True)) is None
    with torch.utils.serialization.config.patch("load.calculate_storage_offsets", True):
        assert difference(expected, rewriting.load(made)) is None
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        assert all(
            record.compress_type == zipfile.ZIP_STORED for record in archive.infolist()
        )
    with formats.open(str(made)) as checkpoint:
        assert all(storage.place.offset % 64 == 0 for storage in checkpoint.storages)  # type: ignore[union-attr]


def positions(path: Path) -> list[int]:
    with formats.open(str(path)) as checkpoint:
        return [storage.place.offset for storage in checkpoint.storages]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["train_cuda.pth", "llama_bf16.pth", "lightning.ckpt"])
def test_edited_storages_keep_their_place_in_a_page(name: str, tmp_path: Path) -> None:
    made = tmp_path / name
    with formats.open(str(SAMPLES / name)) as checkpoint:
        rewriting.write(
            rehome(Survey(checkpoint), moves("cuda:123", []), Limits()).result, made
        )

    assert [at % PAGE for at in positions(made)] == [
        at % PAGE for at in positions(SAMPLES / name)
    ]
    with torch.utils.serialization.config.patch("load.calculate_storage_offsets", True):
        found = rewriting.load(
            made, map_location="cpu", weights_only=name == "llama_bf16.pth"
        )
    assert difference(rewriting.load(SAMPLES / name, map_location="cpu"), found) is None


def test_records_that_are_not_ours_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    with torch.serialization._open_zipfile_writer(str(source)) as archive:
        torch.serialization._save({"a": torch.ones(3)}, archive, pickle, 2, False)
        archive.write_record("extra/notes.txt", b"keep me", 7)
        archive.write_record("data/99", b"an orphan", 9)

    made = rewriting.again(source, tmp_path / "b.pt")

    with zipfile.ZipFile(made) as new, zipfile.ZipFile(source) as old:
        # An orphan among the storages: torch must look where they lie, instead of
        # computing it.
        computed = ("a/.format_version", "a/.storage_alignment")
        assert new.namelist() == [
            name for name in old.namelist() if name not in computed
        ]
        assert (
            new.read("a/extra/notes.txt") == b"keep me"
            and new.read("a/data/99") == b"an orphan"
        )


def test_checksums_that_were_not_recorded_are_computed(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        source = rewriting.saved({"a": torch.arange(100_000)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)

    made = rewriting.again(source, tmp_path / "b.pt")

    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None


def test_checksums_that_were_recorded_are_handed_on(tmp_path: Path) -> None:
    """A flipped bit in the source stays visible: the new file does not get a checksum
    that hides it.
    """
    source = rewriting.saved({"a": torch.arange(100_000)}, tmp_path / "a.pt")
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)

    made = rewriting.again(source, tmp_path / "b.pt")

    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() == "a/data/0"


def test_a_deflated_record_with_another_checksum_is_refused(tmp_path: Path) -> None:
    source = repacked(
        SAMPLES / "compiled.pth", tmp_path / "re.pth", zipfile.ZIP_DEFLATED
    )
    data = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        record = next(
            row
            for row in archive.infolist()
            if "/data/" in row.filename and row.file_size > 100
        )
        crc = struct.pack("<I", record.CRC)
    at = data.rfind(crc)
    data[at] ^= 1  # in the directory
    source.write_bytes(data)

    with (
        formats.open(str(source)) as checkpoint,
        pytest.raises((UnreadableError, WriteError), match="checksum"),
    ):
        rewriting.write(rewriting.unedited(checkpoint), tmp_path / "out.pth")
    assert sorted(os.listdir(tmp_path)) == ["re.pth"]


def test_a_big_endian_archive_stays_one(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    values = torch.arange(5, dtype=torch.float32)
    little = rewriting.saved({"a": values}, tmp_path / "le.pt")
    with zipfile.ZipFile(little) as old, zipfile.ZipFile(source, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("/data/0"):
                data = values.numpy().astype(">f4").tobytes()
            new.writestr(name, b"big" if name.endswith("byteorder") else data)

    made = rewriting.again(source, tmp_path / "b.pt")

    assert torch.equal(rewriting.load(made)["a"], values)
    with formats.open(str(made)) as checkpoint:
        assert checkpoint.byteorder == "big"


def test_a_big_endian_archive_with_bytes_in_it_stays_one(tmp_path: Path) -> None:
    values = torch.arange(5, dtype=torch.float32)
    little = rewriting.saved(
        {"a": values, "b": torch.ones(3, dtype=torch.uint8)}, tmp_path / "le.pt"
    )
    source = tmp_path / "a.pt"
    with zipfile.ZipFile(little) as old, zipfile.ZipFile(source, "w") as new:
        for name in old.namelist():
            swapped = {"byteorder": b"big", "0": values.numpy().astype(">f4").tobytes()}
            new.writestr(name, swapped.get(name.rpartition("/")[2], old.read(name)))

    made = rewriting.again(source, tmp_path / "b.pt")

    with formats.open(str(made)) as checkpoint:
        assert checkpoint.byteorder == "big"
    assert torch.equal(rewriting.load(made)["a"], values)


# --- at the end of a file -------------------------------------------------------------


def appended(source: Path, tag: str) -> None:
    with formats.open(str(source)) as checkpoint:
        save.append(
            rehome(Survey(checkpoint), moves(tag, []), Limits()).result, Limits()
        )


def test_an_appended_pickle_moves_back_to_the_front(tmp_path: Path) -> None:
    source = tmp_path / "a.pth"
    source.write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    appended(source, "cpu")

    made = rewriting.again(source, tmp_path / "b.pth")

    with (
        zipfile.ZipFile(SAMPLES / "train_cuda.pth") as old,
        zipfile.ZipFile(made) as new,
    ):
        assert new.namelist() == old.namelist()


def test_deflated_records_stay_deflated_when_a_pickle_is_appended(
    tmp_path: Path,
) -> None:
    source = repacked(
        SAMPLES / "train_cuda.pth", tmp_path / "a.pth", zipfile.ZIP_DEFLATED
    )
    expected = rewriting.load(SAMPLES / "train_cuda.pth", map_location="cpu")

    appended(source, "cpu")

    with zipfile.ZipFile(source) as archive:
        assert archive.testzip() is None
    assert difference(expected, rewriting.load(source)) is None


class Swapped(Edit):
    """Lets the storages of a file trade their bytes."""

    def __init__(self, storages: tuple[Storage, ...]) -> None:
        super().__init__()
        places = [storage.place for storage in storages][::-1]
        self.made = {
            old: old._replace(place=place)
            for old, place in zip(storages, places, strict=True)
        }

    def storage(self, storage: Storage) -> Storage:
        return self.made[storage]


def test_storages_that_lie_elsewhere_are_not_appended_to(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"a": torch.ones(3), "b": torch.zeros(3)}, tmp_path / "a.pt"
    )
    with formats.open(str(source)) as checkpoint:
        root = Swapped(checkpoint.storages).copy(checkpoint.root)
        with pytest.raises(WriteError, match="cannot stay in place"):
            torch_zip.append(edited_checkpoint(checkpoint, root, Limits()), Limits())


def test_an_end_that_our_reader_finds_different_is_never_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = rewriting.saved({"a": torch.ones(3)}, tmp_path / "a.pt")
    before = source.read_bytes()
    monkeypatch.setattr(torch_zip, "emit_pickle", lambda *_: pickle.dumps(None, 2))

    with pytest.raises(WriteError):
        appended(source, "cuda:0")

    assert source.read_bytes() == before


def test_a_longer_pickle_leaves_torch_its_records_for_computed_offsets(
    tmp_path: Path,
) -> None:
    """The first storage may lie anywhere, because torch reads its offset and computes
    the others from it.
    """
    source, made = SAMPLES / "train_cuda.pth", tmp_path / "a.pth"
    with formats.open(str(source)) as checkpoint:
        rewriting.write(
            rehome(Survey(checkpoint), moves("cuda:123", []), Limits()).result, made
        )

    with zipfile.ZipFile(source) as old, zipfile.ZipFile(made) as new:
        assert any(name.endswith("/.storage_alignment") for name in old.namelist())
        assert new.namelist() == old.namelist()


@pytest.mark.slow
def test_more_records_than_a_zip_without_zip64_can_count() -> None:
    sink = target.MemorySink()
    lay_out([bytes_record(f"a/data/{number}", b"") for number in range(65_536)]).write(
        sink
    )

    with zipfile.ZipFile(io.BytesIO(sink.taken())) as archive:
        assert len(archive.namelist()) == 65_536


# --- zip64 ----------------------------------------------------------------------------


def sparse_file(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


class Holes:
    """A file as torch's writer takes it, in which the data of large records are
    holes.
    """

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def write(self, data: memoryview) -> int:
        if len(data) < PAGE:
            return self._file.write(data)
        self._file.seek(len(data), os.SEEK_CUR)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((2**32 - 2, 10), marks=pytest.mark.slow),
        (2**32 - 1, 10),
        pytest.param((2**32 + 7, 10, 0), marks=pytest.mark.slow),
        pytest.param((2**31, 2**31, 5), marks=pytest.mark.slow),
    ],
)
def test_zip64_is_laid_out_as_torch_does(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """The headers alone, against torch's writer: the data of both are holes."""
    theirs = tmp_path / "a.pt"
    with (
        theirs.open("wb") as file,
        torch.serialization._open_zipfile_writer(Holes(file)) as archive,
    ):
        archive.write_record("data.pkl", b"x" * 10, 10)
        for index, size in enumerate(sizes):
            archive.write_record(
                f"data/{index}", torch.UntypedStorage(size) if size else b"", size
            )
    with zipfile.ZipFile(theirs) as archive:
        small = {
            row.filename: archive.read(row)
            for row in archive.infolist()
            if row.file_size < 100
        }
        order = [(row.filename, row.file_size, row.CRC) for row in archive.infolist()]

    def hole(size: int, crc: int):  # type: ignore[no-untyped-def]
        def pour(sink: target.Sink) -> int:
            sink.flush()
            sink._at += size
            return crc

        return pour

    layout = lay_out(
        [
            bytes_record(n, small[n])
            if n in small
            else PlannedRecord(n, size, hole(size, crc))
            for n, size, crc in order
        ]
    )
    assert layout.size == theirs.stat().st_size
    ours = tmp_path / "b.pt"
    fd = os.open(ours, os.O_RDWR | os.O_CREAT)
    sink = target.Sink(fd, str(ours))
    layout.write(sink)
    sink.flush()
    os.close(fd)
    for start, end in holes_apart(order, theirs):
        with theirs.open("rb") as one, ours.open("rb") as two:
            one.seek(start)
            two.seek(start)
            assert one.read(end - start) == two.read(end - start)
    theirs.unlink()


def holes_apart(order: list[tuple[str, int, int]], path: Path) -> list[tuple[int, int]]:
    """The ranges of a file between the data of its large records."""
    found, at = [], 0
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for row in archive.infolist():
            if row.file_size >= 100:
                file.seek(row.header_offset + 26)
                names, extras = struct.unpack("<HH", file.read(4))
                begin = row.header_offset + 30 + names + extras
                found.append((at, begin))
                at = begin + row.file_size
    return [*found, (at, path.stat().st_size)]


# --- the legacy stream ----------------------------------------------------------------


def test_views_of_storages_stay_in_a_legacy_file(tmp_path: Path) -> None:
    source = legacy_with_view(tmp_path / "a.pt")

    made = rewriting.again(source, tmp_path / "b.pt")

    found = torch.load(made, weights_only=False)
    assert found["a"].tolist() == [2.0, 3.0] and found["b"].tolist() == [
        0.0,
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert (
        found["a"].untyped_storage().nbytes()
        == rewriting.load(source)["a"].untyped_storage().nbytes()
    )


def test_a_view_becomes_an_offset_in_a_zip_file(tmp_path: Path) -> None:
    source = legacy_with_view(tmp_path / "a.pt")
    with formats.open(str(source)) as checkpoint:
        report = rewriting.convert(checkpoint, "torch-zip")
        made = rewriting.write(report.result, tmp_path / "b.pt", "torch-zip")

    found = torch.load(made, weights_only=True)
    assert found["a"].tolist() == [2.0, 3.0] and found["b"].tolist() == [
        0.0,
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert (
        found["a"].untyped_storage().data_ptr()
        == found["b"].untyped_storage().data_ptr()
    )


def legacy_with_view(path: Path) -> Path:
    """A file as torch before 0.4 wrote it: a tensor over a view of another storage."""

    class Id:
        def __init__(self, *pid: object) -> None:
            self.pid = pid

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: object) -> object:
            return thing.pid if isinstance(thing, Id) else None

    class Call:
        def __init__(self, *args: object) -> None:
            self.args = args

        def __reduce__(self) -> object:
            return torch._utils._rebuild_tensor, self.args

    whole = Id("storage", torch.FloatStorage, "7", "cpu", 5, None)
    view = Id("storage", torch.FloatStorage, "7", "cpu", 5, ("8", 2, 3))
    with path.open("wb") as file:
        for head in (
            heads.MAGIC,
            1001,
            {"protocol_version": 1001, "little_endian": True},
        ):
            pickle.dump(head, file, protocol=2)
        Pickler(file, protocol=2).dump(
            {"b": Call(whole, 0, (5,), (1,)), "a": Call(view, 0, (2,), (1,))}
        )
        pickle.dump(["7"], file, protocol=2)
        file.write(struct.pack("<Q5f", 5, 0, 1, 2, 3, 4))
    return path


def test_origin_is_kept_only_by_what_was_read_from_an_archive() -> None:
    with (
        formats.open(str(SAMPLES / "ddp_after.pth")) as one,
        formats.open(str(SAMPLES / "legacy.pth")) as two,
    ):
        assert isinstance(one.origin, Origin) and two.origin is None
        assert torch_zip.draft(two, Limits()).size > 0


def test_the_crc_of_a_record_is_that_of_its_bytes(tmp_path: Path) -> None:
    made = rewriting.again(SAMPLES / "legacy.pth", tmp_path / "b.pt", "torch-zip")

    with zipfile.ZipFile(made) as archive:
        for row in archive.infolist():
            assert zlib.crc32(archive.read(row)) == row.CRC
