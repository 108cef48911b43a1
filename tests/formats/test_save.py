"""A set of shards over another set: whatever fails, and whenever it is killed, what is
there is the old or the new.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import kills
import pytest
import rewriting
import torch
from process import ckpt

from ckpt import formats
from ckpt.bytes import target
from ckpt.commands.verify import verify
from ckpt.elements.computed import place_of
from ckpt.formats import save
from ckpt.formats.save import SavedFile, save_shards
from ckpt.formats.sharded.writer import old_set, shard_names
from ckpt.model.errors import CkptError, LimitError, UsageError, WriteError
from ckpt.model.limits import Limits

INDEX = "model.safetensors.index.json"
CALLS = (
    "open",
    "pwrite",
    "posix_fallocate",
    "fsync",
    "link",
    "replace",
    "unlink",
    "close",
)
WAYS = {"as many": 200, "fewer": 600, "more": 100, "one file": 5000}
"""Bytes of a shard of the new set. The old set has three shards of 400 bytes."""


def source(folder: Path, value: float) -> Path:
    state = {name: torch.full((50,), float(value)) for name in "abcdef"}
    return rewriting.saved(state, folder / f"{value:g}.pt")


def write(
    source: Path, folder: Path, size: int, *, force: bool = False, stem: str = "model"
) -> SavedFile:
    def to(name: str) -> target.Target:
        return target.target(str(folder / name), force=force)

    with formats.open(str(source)) as opened:
        result = rewriting.convert(opened, "safetensors").result
        return save_shards(result, to, stem, size, Limits())


def found(path: Path) -> float:
    """The value of all elements of an intact set."""
    with formats.open(str(path)) as opened:
        assert verify.judge_structure(opened).verdict == "intact"
        assert [entry.name for entry in opened.tensors] == list("abcdef")
        values = {
            value
            for entry in opened.tensors
            for value in torch.frombuffer(
                bytearray(bytes_of(entry.tensor)), dtype=torch.float32
            ).tolist()
        }
    assert len(values) == 1, "a mixture"
    return values.pop()


def bytes_of(ref: Any) -> bytes:
    return b"".join(map(bytes, place_of(ref).read_blocks()))


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    return source(tmp_path, 1), source(tmp_path, 2)


@pytest.fixture
def folder(sources: tuple[Path, Path], tmp_path: Path) -> Path:
    """A set of three shards, all ones, and what is none of its business."""
    made = tmp_path / "set"
    made.mkdir()
    write(sources[0], made, 400)
    (made / "config.json").write_text("{}")
    (made / "tokenizer-00001-of-00002.safetensors").write_bytes(b"of another")
    assert found(made) == 1
    return made


def shards(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.name.startswith("model")
    )


# --- names ----------------------------------------------------------------------------


def test_a_new_set_gets_the_names_of_hugging_face(folder: Path) -> None:
    assert shards(folder) == [*shard_names("model", 3), INDEX]
    assert shard_names("model", 2) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_a_set_over_a_set_takes_turns_with_the_names(
    sources: tuple[Path, Path], folder: Path
) -> None:
    plain, second = (
        shard_names("model", 3),
        [f"model-r2-{n:05}-of-00003.safetensors" for n in (1, 2, 3)],
    )
    for names in (second, plain, second):
        saved = write(sources[1], folder, 400, force=True)
        assert shards(folder) == sorted([*names, INDEX]) and saved.warnings == ()
        assert found(folder) == found(folder / INDEX) == 2
    third = shard_names("model", 3, {*plain, second[2]})
    assert third == [f"model-r3-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]


@pytest.mark.parametrize("way", WAYS)
def test_of_the_old_set_nothing_is_left_and_of_others_everything(
    way: str, sources: tuple[Path, Path], folder: Path
) -> None:
    before = kills.contents(folder)
    write(sources[1], folder, WAYS[way], force=True)

    after = kills.contents(folder)
    assert found(folder) == 2
    named = {"model.safetensors"}
    if way != "one file":
        named = {
            INDEX,
            *json.loads((folder / INDEX).read_text())["weight_map"].values(),
        }
    others = {"config.json", "tokenizer-00001-of-00002.safetensors"}
    assert set(after) == named | others
    assert all(after[name] == before[name] for name in others)


def test_a_set_over_one_file(sources: tuple[Path, Path], folder: Path) -> None:
    """Loaders prefer the single file to an index beside it."""
    write(sources[0], folder, 5000, force=True)
    assert shards(folder) == ["model.safetensors"]
    with pytest.raises(UsageError, match=r"model\.safetensors: already exists"):
        write(sources[1], folder, 400)
    write(sources[1], folder, 400, force=True)
    assert shards(folder) == [*shard_names("model", 3), INDEX] and found(folder) == 2


def test_a_set_does_not_remove_the_file_that_it_is_made_of(
    sources: tuple[Path, Path], folder: Path
) -> None:
    write(sources[0], folder, 5000, force=True)
    before = kills.contents(folder)
    with pytest.raises(
        UsageError, match="the source, which a new file does not replace"
    ):
        write(folder / "model.safetensors", folder, 400, force=True)
    assert kills.contents(folder) == before


def test_a_set_over_itself(folder: Path) -> None:
    before = kills.contents(folder)
    for size in WAYS.values():
        with pytest.raises(
            UsageError, match="the source, which a new file does not replace"
        ):
            write(folder, folder, size, force=True)
    assert kills.contents(folder) == before


def test_without_force_nothing_is_replaced(
    sources: tuple[Path, Path], folder: Path
) -> None:
    before = kills.contents(folder)
    for size in WAYS.values():
        with pytest.raises(UsageError, match="already exists"):
            write(sources[1], folder, size)
    (folder / INDEX).unlink()  # shards that no index names are not replaced either
    with pytest.raises(UsageError, match="already exists"):
        write(sources[1], folder, 400)
    assert kills.contents(folder) == {
        name: data for name, data in before.items() if name != INDEX
    }


def test_shards_that_no_index_names_stay_and_are_named(
    sources: tuple[Path, Path], folder: Path
) -> None:
    old = kills.contents(folder)
    (folder / INDEX).unlink()

    saved = write(sources[1], folder, 400, force=True)

    assert found(folder) == 2
    assert len(saved.warnings) == 1 and saved.warnings[0].startswith(
        "no index names model-00001-of-00003.saf"
    )
    assert all(
        (folder / name).read_bytes() == old[name] for name in shard_names("model", 3)
    )


@pytest.mark.parametrize("other", ["readable", "not JSON"])
def test_shards_that_another_index_may_name_stay(
    other: str, sources: tuple[Path, Path], folder: Path
) -> None:
    text = (folder / INDEX).read_text()
    (folder / "copy.safetensors.index.json").write_text(
        text if other == "readable" else "{" + text
    )

    saved = write(sources[1], folder, 400, force=True)

    assert found(folder / INDEX) == 2 and saved.warnings == ()
    if other == "readable":
        assert found(folder / "copy.safetensors.index.json") == 1
    assert all((folder / name).exists() for name in shard_names("model", 3))


def test_an_index_cannot_name_files_of_others_to_be_removed(
    sources: tuple[Path, Path], folder: Path
) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {
        "x": "config.json",
        "y": "../1.pt",
        "z": "tokenizer-00001-of-00002.safetensors",
    }
    (folder / INDEX).write_text(json.dumps(index))

    write(sources[1], folder, 400, force=True)

    assert (folder / "config.json").exists() and sources[0].exists()
    assert (folder / "tokenizer-00001-of-00002.safetensors").exists()


def test_an_index_that_is_no_index_names_nothing(folder: Path) -> None:
    for text in (
        "",
        "[]",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        "[" * 100_000,
    ):
        (folder / INDEX).write_text(text)
        old = old_set(str(folder), "model", Limits())
        assert old.shards == () and old.stray == tuple(shard_names("model", 3))


def test_an_index_that_is_a_link(
    sources: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    """The index would lie in one folder and its shards in another."""
    (tmp_path / "links").mkdir()
    for name in (INDEX, *shard_names("model", 3)):
        (tmp_path / "links" / name).symlink_to(folder / name)
    before = kills.contents(folder)

    with pytest.raises(UsageError, match="an index lies beside its shards") as caught:
        write(sources[1], tmp_path / "links", 400, force=True)

    assert str(folder / INDEX) in str(caught.value.hint)
    assert kills.contents(folder) == before and found(tmp_path / "links") == 1


def test_a_private_set_stays_private(sources: tuple[Path, Path], folder: Path) -> None:
    for name in (INDEX, *shard_names("model", 3)):
        (folder / name).chmod(0o600)
    write(sources[1], folder, 400, force=True)
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in shards(folder)}
    assert modes == {0o600}


def test_a_folder_of_a_set_under_other_names_is_read_by_every_command(
    sources: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    write(sources[1], folder, 400, force=True)
    (folder / "tokenizer-00001-of-00002.safetensors").unlink()
    assert "model-r2-00001-of-00003.safetensors" in shards(folder)

    done = ckpt("verify", folder, folder / INDEX)
    assert done.code == 0 and all(
        ": intact: 6 tensors, " in line and "index and shards agree" in line
        for line in done.lines
    )
    assert ckpt("lint", folder, "--level", "info").code == 0
    assert ckpt("convert", folder, "-o", tmp_path / "one.safetensors").code == 0
    assert found(tmp_path / "one.safetensors") == 2
    assert ckpt("diff", folder, tmp_path / "one.safetensors").code == 0


def test_the_command_replaces_a_set_and_says_what_a_killed_run_left(
    sources: tuple[Path, Path], folder: Path
) -> None:
    (
        folder / f".model-r2-00001-of-00003.safetensors.0123456789ab{target.SUFFIX}"
    ).write_bytes(bytes(3000))
    arguments = ("convert", sources[1], "-o", folder, "--shard-size", "400")

    assert b"already exists (--force to replace)" in ckpt(*arguments).err
    done = ckpt(*arguments, "--force")

    assert (
        done.code == 0 and b"2.93 KiB left over from a run that was killed" in done.err
    )
    assert found(folder) == 2


# --- failures and kills ---------------------------------------------------------------


class Failing:
    """Lets the Nth call of a function of `os` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, nth: int) -> None:
        self.calls = 0
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_RDWR | os.O_DIRECTORY):
                return real(*args, **kwargs)  # of the reader
            self.calls += 1
            if self.calls == nth:
                if name == "close":
                    real(
                        *args, **kwargs
                    )  # a failing close gives the descriptor back all the same
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_fails_the_set_is_the_old_or_the_new(
    name: str,
    way: str,
    sources: tuple[Path, Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = kills.contents(folder)
    outcomes = set()
    for nth in range(1, 80):
        with monkeypatch.context() as patch:
            failing = Failing(patch, name, nth)
            try:
                saved = write(sources[1], folder, WAYS[way], force=True)
                error = None
            except CkptError as raised:
                error = raised
        now = found(folder)
        outcomes.add((error is None, now))
        if error is None:
            unharmed = name in (
                "posix_fallocate",
                "close",
            )  # space that is not reserved, a reader that is closed
            assert now == 2 and (failing.calls < nth or saved.warnings or unharmed), nth
        elif now == 1:
            kept = "complete file is at" in str(error.hint)
            assert kept or kills.contents(folder) == before, (
                nth,
                "shards of the new set are left",
            )
        else:
            assert "complete, but" in error.problem and name in ("open", "fsync"), nth
        shutil.rmtree(folder)
        folder.mkdir()
        kills.restore(folder, before)
        if failing.calls < nth:
            break
    else:
        pytest.fail(f"{name} is called over 80 times")
    assert (True, 2.0) in outcomes
    never_before = name in ("unlink", "close") or (name, way) == ("replace", "one file")
    assert len(outcomes) > 1 or never_before, "what fails before the index is an error"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["as many", "one file"])
def test_killed_at_any_event_the_set_is_the_old_or_the_new(
    way: str, sources: tuple[Path, Path], folder: Path
) -> None:
    before = kills.contents(folder)
    private = [path.read_bytes() for path in sources]
    seen = []
    arguments = (
        "convert",
        str(sources[1]),
        "-o",
        str(folder),
        "--shard-size",
        str(WAYS[way]),
        "--force",
    )
    with kills.Killer() as killer:
        for ran in killer.at_events(*arguments, cwd=folder, step=3):
            now = found(folder)
            if now == 1:
                assert found(folder / INDEX) == 1
            seen.append((ran.was_killed, now))
            kills.restore(folder, before)
    assert seen == sorted(seen, key=lambda row: row[1]), "from the old to the new, once"
    assert (
        seen.count((True, 1.0)) >= 4
        and seen.count((True, 2.0)) >= 1
        and seen[-1] == (False, 2.0)
    )
    assert [path.read_bytes() for path in sources] == private


def test_a_shard_that_appears_meanwhile_is_not_replaced_or_removed(
    sources: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kills.contents(folder)
    real = os.link

    def link(one: str, other: str) -> None:
        name = "model-r2-00002-of-00003.safetensors"
        if other.endswith(name):
            Path(other).write_bytes(b"of another")
        real(one, other)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UsageError, match="already exists"):
        write(sources[1], folder, 400, force=True)

    assert kills.contents(folder) == before | {
        "model-r2-00002-of-00003.safetensors": b"of another"
    }


def test_an_old_shard_that_cannot_be_removed_is_a_warning(
    sources: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.unlink

    def unlink(path: str) -> None:
        if path.endswith("model-00002-of-00003.safetensors"):
            raise PermissionError(errno.EPERM, "no")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    saved = write(sources[1], folder, 400, force=True)

    assert [
        line.endswith("it cannot be removed: no permission") for line in saved.warnings
    ] == [True]
    assert found(folder) == 2


def test_the_old_set_goes_only_when_the_index_is_on_the_disk(
    sources: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def watch(name: str, which: int) -> None:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            path = args[which]
            where = (
                os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
            )
            order.append(f"{name} {os.path.basename(where)}")
            return real(*args)

        monkeypatch.setattr(os, name, call)

    watch("link", 1)
    watch("replace", 1)
    watch("unlink", 0)
    watch("fsync", 0)
    write(sources[1], folder, 400, force=True)

    order = [row for row in order if target.SUFFIX not in row]
    plain = shard_names("model", 3)
    linked = [row for row in order if row.startswith("link")]
    assert sorted(linked) == [
        f"link model-r2-{n:05}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    index = order.index(f"replace {INDEX}")
    assert max(map(order.index, linked)) < index and order[index - 1] == "fsync set"
    assert order[index + 1 :] == [
        "fsync set",
        *(f"unlink {name}" for name in plain),
        "fsync set",
    ]


def test_a_limit_that_the_check_of_a_new_file_meets_is_not_called_a_bug(
    tmp_path: Path,
) -> None:
    source = rewriting.saved(
        {f"layers.{n}.weight": torch.ones(2) for n in range(90)}, tmp_path / "a.pth"
    )
    to = target.target(str(tmp_path / "b.pth"), force=False)
    with formats.open(str(source)) as checkpoint, pytest.raises(LimitError) as caught:
        save.save_checkpoint(
            rewriting.unedited(checkpoint), to, "torch-zip", Limits(entries=50)
        )
    assert "bug" not in str(caught.value) and not (tmp_path / "b.pth").exists()


def test_a_written_file_that_weights_only_refuses_names_the_reason(
    tmp_path: Path,
) -> None:
    """What is written is judged by our own reader, and torch loads nothing here."""
    path = str(tmp_path / "a.pth")
    torch.save({"w": torch.ones(1), "args": argparse.Namespace(lr=0.1)}, path)

    with (
        formats.open(path) as planned,
        pytest.raises(WriteError, match=r"refuses argparse\.Namespace"),
    ):
        save.check_weights_only(path, planned)
