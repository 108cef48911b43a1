"""An archive of torch.save that somebody has unpacked: the folder, the folder around
it, and its pickle.
"""

from __future__ import annotations

import shlex
import shutil
import zipfile
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside

import ckpt
from ckpt import formats
from ckpt.bytes.source import Joined, Memory, underlying_file
from ckpt.model.errors import CkptError, UnreadableError, UnsupportedError

pytestmark = oracle.QUIET


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("runs",)


def unpack(path: Path, folder: Path) -> Path:
    """Unpack a file of torch.save. Return the folder with its pickle."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        return folder / archive.namelist()[0].partition("/")[0]


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    weight = torch.randn(12, 5)
    net = {f"layers.{number}.w": torch.randn(number, 3) for number in range(90)}
    tied = {"tied": weight, "tied.t": weight.t(), "empty": torch.zeros(0, 3)}
    half = {"half": torch.randn(7).half().to(torch.bfloat16)}
    state = {"model": {"net": {**net, **tied, **half}}, "epoch": 3}
    torch.save(state, tmp_path / "truth.pth")
    return tmp_path / "truth.pth"


def same(one: Path, other: Path) -> bool:
    with ckpt.open(one) as left, ckpt.open(other) as right:
        assert list(left) == list(right) and left.value("epoch") == right.value("epoch")
        return all(
            torch.equal(left[name].torch(), right[name].torch()) for name in left
        )


@pytest.mark.parametrize("path", ["", "data.pkl", ".."])
def test_each_path_into_an_unpacked_archive_leads_to_it(
    path: str, truth: Path, tmp_path: Path
) -> None:
    folder = unpack(truth, tmp_path / "around")
    (tmp_path / "around/__MACOSX").mkdir()
    opened = folder / path
    assert same(opened, truth)
    (row,) = [row for row in ckpt.inspect(opened).findings if row.code == "unpacked"]
    assert row.level == "warning" and row.hint is not None
    assert ckpt.verify(opened).verdict == "intact"
    done = inside("ls", opened, cwd=tmp_path)
    assert b"1 checkpoint," in done.err and b"torch-unpacked" in done.out


def test_thousands_of_storages_are_each_in_a_file_of_their_own(tmp_path: Path) -> None:
    """A reader of many alike takes their records for one run of bytes."""
    names = [f"layers.{number}.{'x' * 100}" for number in range(3_000)]
    torch.save(
        {name: torch.full((3,), float(at)) for at, name in enumerate(names)},
        tmp_path / "many.pth",
    )
    folder = unpack(tmp_path / "many.pth", tmp_path / "out")
    with ckpt.open(folder) as found:
        assert len(found) == len(names)
        assert all(
            found[names[at]].torch().tolist() == [at] * 3
            for at in range(0, len(names), 97)
        )


def test_the_printed_command_writes_the_archive_again(
    truth: Path, tmp_path: Path
) -> None:
    unpack(truth, tmp_path).rename(tmp_path / "s 23")
    hint = next(
        row.hint
        for row in ckpt.inspect(tmp_path / "s 23").findings
        if row.code == "unpacked"
    )
    words = shlex.split(hint or "")
    done = inside(*words[1:], cwd=tmp_path)
    assert done.code == 0, done.err
    again, before = torch.load(words[-1]), torch.load(truth)
    assert (
        again["epoch"] == 3
        and again["model"]["net"].keys() == before["model"]["net"].keys()
    )
    net = again["model"]["net"]
    assert all(
        torch.equal(net[name], tensor)
        for name, tensor in before["model"]["net"].items()
    )
    assert net["tied"].data_ptr() == net["tied.t"].data_ptr()


def test_other_commands_take_it(truth: Path, tmp_path: Path) -> None:
    folder = unpack(truth, tmp_path)
    for command in ("slim", "convert"):
        out = tmp_path / f"{command}.safetensors"
        done = inside(
            command, folder, "--section", "model.net", "-o", out, cwd=tmp_path
        )
        assert done.code == 0, done.err
    done = inside("diff", folder, truth, cwd=tmp_path)
    assert done.code == 0 and b"same: 94 tensors" in done.out
    done = inside("stats", folder, cwd=tmp_path)
    assert done.code == 0, done.err
    assert inside("convert", folder, "--in-place", cwd=tmp_path).code == 2


def test_what_is_missing_or_cut_is_named(truth: Path, tmp_path: Path) -> None:
    folder = unpack(truth, tmp_path / "out")
    (folder / "data/7").write_bytes((folder / "data/7").read_bytes()[:-1])
    with pytest.raises(
        UnreadableError, match="storage 7 has 83 bytes, its tensors need 84"
    ):
        ckpt.open(folder)
    (folder / "data/7").unlink()
    with pytest.raises(UnreadableError, match="storage 7 has no record"):
        ckpt.open(folder)
    with ckpt.open(folder, partial=True) as left:
        assert "model.net.layers.8.w" in left and left.checkpoint.account.notices
    done = inside("salvage", folder, "-o", "left.pth", cwd=tmp_path)
    assert done.code == 1 and b"layers.7.w" in done.out + done.err


@pytest.mark.needs("pickles")
def test_a_pickle_alone_says_what_it_needs(truth: Path, tmp_path: Path) -> None:
    folder = unpack(truth, tmp_path / "out")
    shutil.copy(folder / "data.pkl", tmp_path / "data.pkl")
    with pytest.raises(CkptError) as caught:
        ckpt.open(tmp_path / "data.pkl")
    assert "data/ and version" in (caught.value.hint or "")


def test_a_program_is_told_to_be_zipped_again(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "p.pt"))
    folder = unpack(tmp_path / "p.pt", tmp_path / "out")
    with pytest.raises(
        UnsupportedError, match="an unpacked TorchScript archive"
    ) as caught:
        ckpt.open(folder)
    assert f"zip -0 -D -r {folder.name}.pth {folder.name}" in (caught.value.hint or "")


@pytest.mark.parametrize("link", ["data", "data/7"])
def test_no_link_is_followed(link: str, truth: Path, tmp_path: Path) -> None:
    folder = unpack(truth, tmp_path / "out")
    (folder / link).rename(tmp_path / "elsewhere")
    (folder / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CkptError, match="is a link"):
        ckpt.open(folder)


@pytest.mark.needs("pickles")
def test_a_folder_with_a_pickle_of_this_name_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data.pkl").write_bytes(b"\x80\x02}q\x00.")
    with formats.open(str(tmp_path / "data.pkl")) as found:
        assert found.format == "pickle"


def test_several_sources_as_one() -> None:
    parts = [Memory(b"ab"), Memory(b""), Memory(b"cde")]
    joined = Joined("all", parts)
    assert (
        joined.size == 5
        and joined.read(0, 5) == b"abcde"
        and joined.read(1, 2) == b"bc"
    )
    assert underlying_file(joined, 1) == (parts[0], 1) and underlying_file(
        joined, 3
    ) == (parts[2], 1)
    assert Joined("none", []).size == 0
    with pytest.raises(CkptError):
        joined.read(4, 2)


@pytest.mark.parametrize(
    "name",
    ["data/evil.pt", "data/9999", ".data/evil", "version", ".data/serialization_id"],
)
def test_a_file_among_the_storages_is_judged(
    name: str, truth: Path, tmp_path: Path
) -> None:
    folder = unpack(truth, tmp_path / "around")
    assert inside("lint", "--level", "error", folder, cwd=tmp_path).code == 0
    torch.save({"w": Evil()}, folder / name)

    done = inside("lint", "--level", "error", folder, cwd=tmp_path)

    assert done.code == 1 and b".print('runs')" in done.out, done
