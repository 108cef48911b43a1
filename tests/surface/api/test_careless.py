"""The functions in the hands of a careless program: other types, closed files, another
working folder, the same file twice.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rewriting
import torch
from needs import is_there
from process import SAMPLES

import ckpt


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLES / "ddp_after.pth", tmp_path / "a.pth"))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


WRONG: list[Callable[[Path], Any]] = [
    lambda path: ckpt.inspect(path, include=b"x"),  # type: ignore[arg-type]
    lambda path: ckpt.inspect(path, include=3),  # type: ignore[arg-type]
    lambda path: ckpt.inspect(path, select=[None]),  # type: ignore[list-item]
    lambda path: ckpt.inspect(path, section=["model"]),  # type: ignore[arg-type]
    lambda path: ckpt.inspect(path, index=3),  # type: ignore[arg-type]
    lambda path: ckpt.stats(path, level=3),  # type: ignore[arg-type]
    lambda path: ckpt.ls(path, limits=5),  # type: ignore[arg-type]
    lambda path: ckpt.lint(path, limits="memory=1"),  # type: ignore[arg-type]
    lambda path: ckpt.open(path, limits=0),  # type: ignore[arg-type]
    lambda path: ckpt.sum(path, recorded=True, limits=0),  # type: ignore[arg-type]
    lambda path: ckpt.verify(path, limits={}),  # type: ignore[arg-type]
    lambda path: ckpt.strip(path, limits={}, dry_run=True),  # type: ignore[typeddict-item]
    lambda path: ckpt.strip(path, prefix=3, dry_run=True),  # type: ignore[arg-type]
    lambda path: ckpt.rehome(path, to=torch.device("cpu"), dry_run=True),  # type: ignore[arg-type]
    lambda path: ckpt.rehome(path, map=[1], dry_run=True),  # type: ignore[list-item]
    lambda path: ckpt.rename(path, sub=[b"s/a/b/"], dry_run=True),  # type: ignore[list-item]
    lambda path: ckpt.slim(path, keep=b"epoch", dry_run=True),  # type: ignore[arg-type]
    lambda path: ckpt.convert(path, dtype=torch.bfloat16, dry_run=True),  # type: ignore[arg-type]
    lambda path: ckpt.ls(path.read_bytes()),  # type: ignore[arg-type]
    lambda path: ckpt.ls(io.BytesIO(path.read_bytes())),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", WRONG)
def test_another_type_is_a_type_error(call: Callable[[Path], Any], saved: Path) -> None:
    with pytest.raises(TypeError, match=r"take(s|n)( here)?.*, not (\w+)$"):
        call(saved)


@pytest.mark.needs("live")
@pytest.mark.parametrize("model", [object(), {"a": torch.ones(1)}, torch.nn.Linear, 3])
def test_what_is_no_model(model: Any, saved: Path) -> None:
    for call in (ckpt.inspect, lambda path, model: ckpt.diff(path, path, model=model)):
        with pytest.raises(ckpt.UsageError, match=r"is no torch\.nn\.Module"):
            call(saved, model=model)
    with pytest.raises(ckpt.UsageError, match=r"is no torch\.nn\.Module"):
        ckpt.lint(model=model)


def test_one_checkpoint_has_no_mean(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    with ckpt.open(saved) as opened:
        for one in (opened, data, bytearray(data), io.BytesIO(data), saved):
            with pytest.raises(
                ckpt.UsageError, match="a mean takes two checkpoints or more"
            ):
                ckpt.average(one, out=tmp_path / "b.pth")  # type: ignore[arg-type]


def test_the_same_checkpoint_twice_is_told(saved: Path, tmp_path: Path) -> None:
    """Two that were opened without a path have one name, and are two."""
    other = (SAMPLES / "ddp_before.pth").read_bytes()
    data = saved.read_bytes()
    report = ckpt.average([data, other], out=tmp_path / "b.pth")
    assert report.warnings == ()
    report = ckpt.average([data, data], out=tmp_path / "c.pth")
    assert report.warnings == ("(memory): given 2 times, and counts so often",)
    with ckpt.open(saved) as opened:
        report = ckpt.average([opened, opened], out=tmp_path / "d.pth")
        assert (
            report.warnings == (f"{saved}: given 2 times, and counts so often",)
            and opened.state_dict()
        )


def test_a_closed_checkpoint_has_no_verdict(saved: Path) -> None:
    opened = ckpt.open(saved)
    opened.close()
    for call in (
        ckpt.verify,
        ckpt.inspect,
        ckpt.ls,
        ckpt.stats,
        lambda one: ckpt.strip(one, dry_run=True),
    ):
        with pytest.raises(ckpt.NotOpenedError, match="the checkpoint is closed"):
            call(opened)


def test_a_closed_file(saved: Path) -> None:
    for file in (
        saved.open("rb"),
        saved.open("rb", buffering=0),
        io.BytesIO(saved.read_bytes()),
    ):
        file.close()
        for call in (ckpt.open, ckpt.stats, lambda one: ckpt.strip(one, dry_run=True)):
            with pytest.raises(ckpt.NotOpenedError, match="the file object is closed"):
                call(file)


def test_a_file_without_a_path_has_no_place(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    data = saved.read_bytes()
    for given in (data, io.BytesIO(data), ckpt.open(data)):
        for keywords in ({}, {"copy": True}, {"verify": "crc"}):
            with pytest.raises(
                ckpt.UsageError, match=r"has no place: .* \(out=\"OUT\"\)"
            ):
                ckpt.strip(given, in_place=True, **keywords)  # type: ignore[arg-type]
        with pytest.raises(
            ckpt.UsageError,
            match=r"has no name for a result in a folder \(out=\"OUT\"\)",
        ):
            ckpt.strip(given, out=folder)
        for call in (ckpt.strip, ckpt.convert):
            with pytest.raises(
                ckpt.UsageError, match=r"where to write\? \(out=\"OUT\"\)$"
            ):
                call(given)
    with (
        saved.open("rb") as file,
        pytest.raises(
            ckpt.UsageError, match="has no place: it was not opened by its path"
        ),
    ):
        ckpt.strip(file, in_place=True)
    assert entries(folder) == [] and saved.read_bytes() == data


def test_a_change_in_place_replaces_no_other_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer save is at the path of an open checkpoint, or the working folder is
    another one.
    """
    newer = (SAMPLES / "ddp_before.pth").read_bytes()
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "a.pth").write_bytes(newer)
    monkeypatch.chdir(tmp_path)
    with ckpt.open("a.pth") as opened:
        monkeypatch.chdir(folder)
        for keywords in ({}, {"copy": True}, {"verify": "crc"}):
            with pytest.raises(
                ckpt.NotOpenedError, match="it is not the file that was opened"
            ):
                ckpt.strip(opened, in_place=True, **keywords)  # type: ignore[arg-type]
    assert (folder / "a.pth").read_bytes() == newer and entries(folder) == ["a.pth"]
    with ckpt.open(saved) as opened:
        (tmp_path / "b.pth").write_bytes(newer)
        (tmp_path / "b.pth").replace(saved)
        with pytest.raises(
            ckpt.NotOpenedError, match="it is not the file that was opened"
        ):
            ckpt.strip(opened, in_place=True, copy=True)
    assert saved.read_bytes() == newer


def test_another_working_folder(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are opened again where they were: a damaged file of that name is in the
    other folder.
    """
    folder = tmp_path / "other"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    expected = ckpt.sum("a.pth", recorded=True).to_json()
    for name in ("none", "a.pth"):
        with ckpt.open("a.pth") as opened:
            monkeypatch.chdir(folder)
            (folder / name).write_bytes(saved.read_bytes()[:50_000])
            assert ckpt.verify(opened).verdict == "intact"
            assert ckpt.sum(opened, recorded=True).to_json() == expected
            monkeypatch.chdir(tmp_path)


def test_no_file_name(saved: Path) -> None:
    for call in (ckpt.strip, ckpt.slim, ckpt.convert):
        with pytest.raises(ckpt.CkptError, match=r"no file name|not a file name"):
            call(saved, out="a\0b.pth")


def test_the_folders_of_shards_are_made(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"a.weight": torch.ones(300), "b.weight": torch.ones(300)}, tmp_path / "a.pt"
    )
    out = tmp_path / "one" / "two" / "m.safetensors"
    with pytest.raises(ckpt.WriteError, match="there is no such folder"):
        ckpt.convert(path, out=out, shard_size=1300)
    assert not out.parent.parent.exists()
    report = ckpt.convert(path, out=out, shard_size=1300, parents=True)
    assert report.saved is not None and report.saved.shards == 2
    assert len(ckpt.open(out.with_name("m.safetensors.index.json"))) == 2
    for name, keywords in (("three/b.pt", {}), ("four/b.dcp", {"format": "dcp"})):
        if keywords and not is_there("dcp"):
            continue
        with pytest.raises(ckpt.WriteError, match="there is no such folder"):
            ckpt.convert(path, out=tmp_path / name, **keywords)  # type: ignore[arg-type]
        assert ckpt.convert(
            path, out=tmp_path / name, parents=True, **keywords
        ).path == os.fspath(tmp_path / name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("get", r"ckpt.open\(path\).values"),
        ("explain", "ckpt explain MESSAGE FILE"),
        ("report", "ckpt report FILE -o"),
        ("load", r"ckpt.open\(path\).state_dict"),
        ("save", "ckpt.snapshot"),
    ],
)
def test_a_name_that_users_try_is_answered(name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=way) as caught:
        getattr(ckpt, name)
    assert caught.value.name == name


def test_a_mistyped_name_is_no_surprise() -> None:
    with pytest.raises(
        AttributeError, match=r"^module 'ckpt' has no attribute 'opne'$"
    ):
        ckpt.opne  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(ckpt, "__wrapped__")


def test_the_way_to_a_missing_folder(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ckpt.WriteError) as caught:
        ckpt.slim(saved, out=tmp_path / "a b" / "x.pth")
    assert caught.value.hint == f"mkdir -p '{tmp_path / 'a b'}'"


def test_the_counts_of_strangers(tmp_path: Path) -> None:
    one = rewriting.saved({"a": torch.ones(3)}, tmp_path / "a.pt")
    two = rewriting.saved({"b": torch.ones(5), "c": torch.ones(2)}, tmp_path / "b.pt")
    assert "0 changed, 2 added, 1 removed, 0 same>" in repr(ckpt.diff(one, two))
