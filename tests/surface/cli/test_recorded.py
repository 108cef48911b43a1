"""`ckpt sum --recorded` and `verify --sums` of its lists: after a transfer the same is
the same, and all else is named.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from frameworks_dcp import in_two_files
from inside import inside
from process import SAMPLES

from ckpt.bytes.source import File
from ckpt.commands.sum.recorded import is_recorded, lines, list_of, listed, parse
from ckpt.formats.verify import recorded
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET


def run(*words: str | Path, cwd: Path, code: int = 0) -> str:
    done = inside(*map(str, words), cwd=cwd)
    assert done.code == code, done
    return done.out.decode() + done.err.decode()


def keep(*words: str | Path, cwd: Path, name: str = "it.list") -> str:
    """Write a list, and return it."""
    done = inside("sum", "--recorded", *map(str, words), cwd=cwd)
    assert done.code == 0, done
    (cwd / name).write_bytes(done.out)
    return done.out.decode()


@pytest.fixture
def saves(tmp_path: Path) -> Path:
    """Two saves of one run: `new` at step 20, `old` at step 10. Their files have the
    same layout.
    """
    for name, step in (("old", 10), ("new", 20)):
        in_two_files(tmp_path / name, step)
    return tmp_path


# --- the list -------------------------------------------------------------------------


def test_a_zip_is_listed_as_its_directory_has_it(tmp_path: Path) -> None:
    torch.save(
        {"w": torch.arange(100.0), "epoch": 3, "optimizer": {"step": 5}},
        tmp_path / "a.pth",
    )
    text = keep("a.pth", cwd=tmp_path).splitlines()
    assert text[:3] == [
        "# recorded: torch-zip",
        f"# size: {(tmp_path / 'a.pth').stat().st_size}",
        "# step: epoch 3, optimizer.step 5",
    ]
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        expected = [
            (f"crc32:{row.CRC:08x}", str(row.file_size), row.filename)
            for row in archive.infolist()
        ]
    assert [tuple(line.split(None, 2)) for line in text[3:]] == expected


def test_an_item_of_a_dcp_has_the_crc_of_its_records(tmp_path: Path) -> None:
    """The CRC-32 of an item is that of its records, one after the other, as if they had
    been read.
    """
    from zlib import crc32

    dcp.save(
        {"w": torch.arange(1000.0), "x": {"y": [1, 2]}},
        checkpoint_id=tmp_path / "d",
        no_dist=True,
    )
    (file,) = [
        row
        for row in recorded(str(tmp_path / "d"), Limits()).files
        if row.name == "__0_0.distcp"
    ]
    data = (tmp_path / "d" / "__0_0.distcp").read_bytes()
    begins = [at for at in range(len(data)) if data.startswith(b"PK\5\6", at)]
    assert len(begins) == len(file.items) >= 2
    begin = 0
    for item, end in zip(file.items, begins, strict=True):
        (tmp_path / "item.zip").write_bytes(data[begin : end + 22])
        with zipfile.ZipFile(tmp_path / "item.zip") as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
        assert (item.size, item.crc) == (len(content), crc32(content)), item
        begin = end + 22


@pytest.mark.parametrize("count", [64, 2_100])
def test_no_tensor_data_is_read(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DCP of items of 200 kB each about a kilobyte is read, and of a zip its
    directory.
    """
    state = {
        f"layers.{number}.weight": torch.zeros(50_000) for number in range(count // 8)
    }
    dcp.save(state, checkpoint_id=tmp_path / "d", no_dist=True)
    torch.save(state, tmp_path / "a.pth")
    read = [0]
    plain, into = File.read, File.read_into

    def counted(self: File, offset: int, size: int) -> bytes:
        read[0] += size
        return plain(self, offset, size)

    def counted_into(self: File, offset: int, buffer: memoryview) -> None:
        read[0] += len(buffer)
        into(self, offset, buffer)

    monkeypatch.setattr(File, "read", counted)
    monkeypatch.setattr(File, "read_into", counted_into)
    for name in ("d", "a.pth"):
        read[0] = 0
        files = recorded(str(tmp_path / name), Limits()).files
        assert sum(len(file.items) for file in files) >= count // 8
        assert read[0] < 8_000 * (count // 8) + 100_000, name


def test_the_steps_of_each_file_are_listed(saves: Path) -> None:
    text = keep("new", cwd=saves)
    steps = [line for line in text.splitlines() if line.startswith("# step: ")]
    assert len(steps) == 2 and all("*.step 20" in line for line in steps)
    assert any(line.startswith("# step: step 20, ") for line in steps)


def test_names_come_back_whatever_they_hold(tmp_path: Path) -> None:
    odd = [
        "a  b",
        "new\nline",
        "# part: x",
        "crc32:00000000  1  z",
        "\\n",
        "ü",
        " lead",
        "x" * 120,
    ]
    dcp.save(
        {name: torch.ones(2) for name in odd},
        checkpoint_id=tmp_path / "d",
        no_dist=True,
    )
    text = keep("d", cwd=tmp_path)
    (back,) = parse(text)
    files = recorded(str(tmp_path / "d"), Limits()).files
    assert back == listed("dcp", files) and set(odd) < {
        row.name for file in back.files for row in file.items
    }
    assert list(lines(back)) == text.splitlines()
    assert run("verify", "d", "--sums", "it.list", "--quick", cwd=tmp_path).startswith(
        "d: intact"
    )


def test_what_has_no_checksum_is_said(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    run("convert", "a.pth", "-o", "a.safetensors", cwd=tmp_path)
    done = inside("sum", "--recorded", "a.safetensors", cwd=tmp_path)
    assert done.code == 0 and b"no item has a recorded checksum" in done.err
    assert done.out.splitlines()[-1] == b"crc32:--------  8  w"


def test_a_save_without_crc_is_said(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    done = inside("sum", "--recorded", "a.pth", cwd=tmp_path)
    assert b"no recorded checksum" in done.err or b"no item has" in done.err


def test_what_cannot_be_read_is_said(saves: Path) -> None:
    (saves / "new" / "__0_1.distcp").unlink()
    done = inside("sum", "--recorded", "new", cwd=saves)
    assert done.code == 2 and b"not read: __0_1.distcp: no such file" in done.err
    assert b"# part: __0_0.distcp" in done.out


# --- the check at the other end -------------------------------------------------------


def test_a_file_of_another_save_shows(saves: Path) -> None:
    """An rsync was cut: `.metadata` and one file are of step 20, the other file is of
    step 10. It opens as if all were well.
    """
    keep("new", cwd=saves)
    shutil.copy(saves / "old" / "__0_1.distcp", saves / "new" / "__0_1.distcp")
    for more in ((), ("--quick",)):
        said = run("verify", "new", "--sums", "it.list", *more, cwd=saves, code=1)
        assert (
            "__0_1.distcp is of" in said and "*.step 10" in said and "*.step 20" in said
        )
        assert "of __0_1.distcp with another recorded checksum" in said
        assert "of __0_0.distcp" not in said
    said = inside("sum", "--recorded", "new", cwd=saves)
    assert said.code == 0 and b"all counters of the optimizer in" in said.err


def test_a_file_that_is_left_over_shows(saves: Path) -> None:
    keep("new", cwd=saves)
    shutil.copy(saves / "old" / "__0_1.distcp", saves / "new" / "__7_0.distcp")
    said = run("verify", "new", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert "1 file not in it.list: of another save? (__7_0.distcp)" in said
    keep("new", cwd=saves, name="with.list")
    assert "intact" in run("verify", "new", "--sums", "with.list", "--quick", cwd=saves)
    (saves / "new" / "__7_0.distcp").unlink()
    assert "1 file missing (__7_0.distcp)" in run(
        "verify", "new", "--sums", "with.list", "--quick", cwd=saves, code=1
    )


def test_metadata_of_another_save_shows(saves: Path) -> None:
    """Both saves have the same layout, so nothing but the bytes of `.metadata` can
    differ, and they do not in what is read.
    """
    keep("new", cwd=saves)
    data = (saves / "new" / ".metadata").read_bytes()
    (saves / "new" / ".metadata").write_bytes(data + b"\0")
    said = run("verify", "new", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert "1 item of .metadata" in said


def test_bytes_that_changed_below_a_whole_directory_show_without_quick(
    tmp_path: Path,
) -> None:
    torch.save({"w": torch.arange(1000.0)}, tmp_path / "a.pth")
    keep("a.pth", cwd=tmp_path)
    data = bytearray((tmp_path / "a.pth").read_bytes())
    data[data.find(torch.tensor(500.0).numpy().tobytes())] ^= 1
    (tmp_path / "a.pth").write_bytes(data)
    said = run("verify", "a.pth", "--sums", "it.list", "--quick", cwd=tmp_path)
    assert "not checked: the bytes themselves (--quick)" in said
    assert "does not match its recorded checksum" in run(
        "verify", "a.pth", "--sums", "it.list", cwd=tmp_path, code=1
    )


def test_a_list_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    run("convert", "a.pth", "-o", "a.safetensors", cwd=tmp_path)
    keep("a.pth", cwd=tmp_path)
    said = run("verify", "a.safetensors", "--sums", "it.list", cwd=tmp_path, code=2)
    assert said.count("\n") == 1
    assert "it.list has what a torch-zip records, this is safetensors" in said


def test_json_has_the_differences(saves: Path) -> None:
    keep("new", cwd=saves)
    shutil.copy(saves / "old" / "__0_0.distcp", saves / "new" / "__0_0.distcp")
    done = inside("verify", "new", "--sums", "it.list", "--quick", "--json", cwd=saves)
    document = json.loads(done.out)
    assert (done.code, document["verdict"], document["schema"]["version"]) == (
        1,
        "damaged",
        2,
    )
    assert any(
        "of __0_0.distcp with another recorded" in row["what"] and row["tensors"]
        for row in document["problems"]
    )


def test_a_folder_of_checkpoints(saves: Path) -> None:
    """At the other end the folder has another name. What is missing there, and what is
    there alone, counts.
    """
    (saves / "here").mkdir()
    for name in ("old", "new"):
        shutil.move(saves / name, saves / "here" / name)
    text = keep("here", cwd=saves)
    assert [line for line in text.splitlines() if line.startswith("# file: ")] == [
        "# file: here/new",
        "# file: here/old",
    ]
    shutil.copytree(saves / "here", saves / "there")
    assert (
        run("verify", "there", "--sums", "it.list", "--quick", cwd=saves).count(
            "intact"
        )
        == 3
    )
    shutil.move(saves / "there" / "old", saves / "there" / "older")
    said = run("verify", "there", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert "not compared, no such checkpoint here: here/old" in said
    assert "there/older: damaged: not in it.list" in said
    said = run("verify", "there/new", "--sums", "it.list", "--quick", cwd=saves)
    assert (
        "there/new: intact" in said
        and "not compared, no such checkpoint here: here/old" in said
    )
    assert "no sums of this file" in run(
        "verify", "there/older", "--sums", "it.list", cwd=saves, code=2
    )


def test_the_list_of_a_path() -> None:
    text = "\n".join(
        f"# file: {path}\n# recorded: dcp\n# size: 1"
        for path in ("a/s/1", "b/s/1", "a/s/2")
    )
    rows = parse(text)
    assert [row.path for row in rows] == ["a/s/1", "b/s/1", "a/s/2"]
    assert list_of("./a/s/1", rows) is rows[0] and list_of("/x/b/s/1", rows) is rows[1]
    assert list_of("/x/s/2", rows) is rows[2]
    assert list_of("/x/s/1", rows) is None and list_of("other", rows) is None


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    for words in (("--include", "*"), ("--section", "model"), ("--all",)):
        assert "--recorded" in run(
            "sum", "a.pth", "--recorded", *words, cwd=tmp_path, code=2
        )
    keep("a.pth", cwd=tmp_path)
    for words in (("--include", "*"), ("--section", "model")):
        assert "list of ckpt sum --recorded" in run(
            "verify", "a.pth", "--sums", "it.list", *words, cwd=tmp_path, code=2
        )
    assert "only ckpt verify --sums compares" in run(
        "verify", "a.pth", "--like", "it.list", cwd=tmp_path, code=2
    )
    (tmp_path / "plain.sums").write_text(run("sum", "a.pth", cwd=tmp_path))
    said = run(
        "verify", "a.pth", "--sums", "plain.sums", "--quick", cwd=tmp_path, code=2
    )
    assert "--quick goes with the list" in said


@pytest.mark.parametrize(
    "line", ["crc32:0000000g  1  x", "crc32:00000000  x  x", "zzz", "# size: -1"]
)
def test_a_line_that_is_none_is_named(line: str, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    (tmp_path / "it.list").write_text(f"# recorded: torch-zip\n# size: 1\n{line}\n")
    said = run("verify", "a.pth", "--sums", "it.list", cwd=tmp_path, code=2)
    assert "it.list: line 3 is no recorded checksum" in said


def test_the_sums_of_tensors_are_no_such_list(tmp_path: Path) -> None:
    assert not is_recorded(run("sum", SAMPLES / "train_cuda.pth", cwd=tmp_path))


def test_an_item_whose_directory_is_damaged_is_named(saves: Path) -> None:
    text = keep("new", cwd=saves)
    data = bytearray((saves / "new" / "__0_1.distcp").read_bytes())
    at = data.rfind(b"PK\5\6")
    data[at : at + 4] = b"\0\0\0\0"
    (saves / "new" / "__0_1.distcp").write_bytes(data)
    last = (
        text.partition("# part: __0_1.distcp")[2]
        .partition("# part:")[0]
        .splitlines()[-1]
        .split()[-1]
    )
    said = run("verify", "new", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert (
        "1 item of __0_1.distcp cannot be read: " in said
        and last in said
        and "missing" not in said
    )
    done = inside("sum", "--recorded", "new", cwd=saves)
    assert done.code == 2 and f"not read: {last}".encode() in done.err


def test_a_counter_that_is_lost_is_no_other_step(saves: Path) -> None:
    keep("new", cwd=saves)
    text = (saves / "it.list").read_text()
    assert ", *.step 20" in text
    (saves / "it.list").write_text(text.replace("step 20, *.step 20", "*.step 20"))
    assert "intact" in run("verify", "new", "--sums", "it.list", "--quick", cwd=saves)
    (saves / "it.list").write_text(text.replace("*.step 20", "*.step 19", 1))
    said = run("verify", "new", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert said.count(" is of ") == 1


def test_a_file_that_may_not_be_read_is_not_missing(saves: Path) -> None:
    keep("new", cwd=saves)
    (saves / "new" / "__0_1.distcp").unlink()
    (saves / "new" / "__0_1.distcp").mkdir()
    said = run("verify", "new", "--sums", "it.list", "--quick", cwd=saves, code=1)
    assert "1 file not read (__0_1.distcp: " in said
