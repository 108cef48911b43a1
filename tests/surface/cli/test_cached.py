"""The cache of Hugging Face: the folder of a model is the snapshot that was loaded
last, and each checkpoint is listed once.
"""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from process import terminal
from safetensors.torch import save

pytestmark = oracle.QUIET

FIRST, SECOND = "1" * 40, "2" * 40
CONFIG = b'{"model_type": "llama"}'


def put(repository: Path, revision: str, name: str, content: bytes) -> None:
    """Write a file as huggingface_hub does: a blob by its hash, and a link in the
    snapshot.
    """
    blob = repository / "blobs" / sha256(content).hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link = repository / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))


def a_model(hub: Path, name: str, *revisions: str, main: str | None = None) -> Path:
    repository = hub / f"models--org--{name}"
    for number, revision in enumerate(revisions):
        weights = {
            "fc.weight": torch.full((2, 2), float(number)),
            "fc.bias": torch.ones(2),
        }
        put(repository, revision, "model.safetensors", save(weights))
        put(repository, revision, "config.json", CONFIG)
    if main is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(main)
    return repository


def paths_of(out: bytes) -> list[str]:
    return [json.loads(line)["path"] for line in out.splitlines()]


def test_the_folder_of_a_model_is_the_snapshot_of_main(tmp_path: Path) -> None:
    a_model(tmp_path, "net", FIRST, SECOND, main=FIRST)
    done = inside("inspect", "models--org--net", cwd=tmp_path)
    assert done.code == 0 and done.lines[0].startswith(
        f"models--org--net/snapshots/{FIRST} "
    )
    assert (
        f'load_file("models--org--net/snapshots/{FIRST}/model.safetensors")'
        in "".join(done.lines)
    )
    done = inside("get", "models--org--net", "fc.weight", cwd=tmp_path)
    assert done.code == 0 and "values   0, 0, 0, 0" in "\n".join(done.lines)
    done = inside("slim", "models--org--net/", "-o", "x.safetensors", cwd=tmp_path)
    assert done.code == 0 and (tmp_path / "x.safetensors").exists()


def test_the_only_snapshot_needs_no_ref(tmp_path: Path) -> None:
    a_model(tmp_path, "net", FIRST)
    assert inside("sum", "models--org--net", cwd=tmp_path).code == 0


@pytest.mark.parametrize("main", [None, "3" * 40, "../snapshots/" + FIRST, "", "\x00"])
def test_several_snapshots_are_a_question(main: str | None, tmp_path: Path) -> None:
    a_model(tmp_path, "net", FIRST, SECOND, main=main)
    done = inside("slim", "models--org--net", "-o", "x.pth", cwd=tmp_path)
    problem = "refs/main names none of its 2 snapshots (-r takes them all)"
    assert (done.code, done.complaints) == (2, [f"ckpt: models--org--net: {problem}"])
    found = paths_of(inside("ls", "models--org--net", "--json", cwd=tmp_path).out)
    assert found == [
        f"models--org--net/snapshots/{revision}" for revision in (FIRST, SECOND)
    ]


def test_a_model_that_is_not_loaded_yet(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--net"
    (repository / "snapshots").mkdir(parents=True)
    done = inside("inspect", "models--org--net", cwd=tmp_path)
    assert (done.code, done.complaints) == (
        2,
        ["ckpt: models--org--net: a model of a Hugging Face cache without a snapshot"],
    )


def test_each_checkpoint_is_listed_once(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    a_model(hub, "one", FIRST, main=FIRST)
    a_model(hub, "two", FIRST, SECOND, main=SECOND)
    halves = {f"fc{number}.weight": torch.ones(2, 2) for number in (1, 2)}
    shards = {
        name: f"model-0000{number}-of-00002.safetensors"
        for number, name in enumerate(halves, 1)
    }
    repository = hub / "models--org--three"
    for name, file in shards.items():
        put(repository, FIRST, file, save({name: halves[name]}))
    index = json.dumps({"metadata": {}, "weight_map": shards}).encode()
    put(repository, FIRST, "model.safetensors.index.json", index)
    put(repository, FIRST, "config.json", CONFIG)
    put(hub / "models--org--four", FIRST, "unet/model.safetensors", save(halves))
    for command in ("ls", "lint", "verify"):
        done = inside(command, "hub", "--json", cwd=tmp_path)
        assert done.code == 0, (command, done)
    assert paths_of(inside("ls", "hub", "--json", cwd=tmp_path).out) == [
        f"hub/models--org--four/snapshots/{FIRST}/unet/model.safetensors",
        "hub/models--org--one",
        "hub/models--org--three",
        "hub/models--org--two",
        f"hub/models--org--two/snapshots/{FIRST}",
    ]


def test_a_blob_that_no_snapshot_shows_is_looked_at(tmp_path: Path) -> None:
    repository = a_model(tmp_path, "net", FIRST, main=FIRST)
    torch.save({"a": torch.ones(1)}, repository / "blobs" / "abc")
    found = paths_of(inside("ls", ".", "--json", cwd=tmp_path).out)
    assert found == ["models--org--net", "models--org--net/blobs/abc"]


def test_a_link_out_of_the_cache_is_a_file_of_its_own(tmp_path: Path) -> None:
    """A file that the gate judges under one name is passed over under another only if
    it is the same file.
    """
    repository = a_model(tmp_path, "net", FIRST, main=FIRST)
    torch.save({"a": torch.ones(1)}, repository / "blobs" / "extra.pth")
    torch.save({"a": torch.ones(1)}, repository / "more.pth")
    found = paths_of(inside("ls", ".", "--json", cwd=tmp_path).out)
    assert (
        "models--org--net/blobs/extra.pth" in found
        and "models--org--net/more.pth" in found
    )


# --- names on a narrow screen ---------------------------------------------------------

LONG = "a_folder_of_a_project_with_a_long_name_and_a_date_2026_01_01/and_another_long_one_below"


@pytest.mark.parametrize("below", [True, False], ids=["hub", "itself"])
def test_a_link_to_a_folder_of_snapshots_is_named(below: bool, tmp_path: Path) -> None:
    elsewhere = a_model(tmp_path / "elsewhere", "net", FIRST)
    repository = tmp_path / "hub" / "models--org--net"
    repository.mkdir(parents=True)
    (repository / "snapshots").symlink_to(elsewhere / "snapshots")
    looked_at = "hub" if below else "hub/models--org--net"
    done = inside("ls", looked_at, cwd=tmp_path)
    assert (
        "hub/models--org--net/snapshots: skipped: a link to a folder"
        in done.err.decode()
    )
    assert done.code == 2 and not done.out


def test_a_cache_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = a_model(tmp_path, "net", FIRST, main=FIRST)
    listed = os.listdir

    def refuse(path: str) -> list[str]:
        if os.path.realpath(path) == os.path.realpath(repository):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    done = inside("lint", ".", cwd=tmp_path)
    assert done.code == 2
    assert "models--org--net: cannot be read: permission denied" in done.err.decode()


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_names_that_fit_are_whole_beside_one_that_does_not(
    columns: int, tmp_path: Path
) -> None:
    names = [
        "ft/step_100.pt",
        "run_a/epoch_1.pth",
        "run_b/epoch_1.pth",
        f"{LONG}/step_00001000.pth",
    ]
    for number, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"fc.weight": torch.full((2, 2), float(number))}, path)
    seen = terminal("ls", ".", columns=columns, cwd=tmp_path, NO_COLOR="1", TERM="dumb")
    shown = [
        line.split()[0]
        for line in seen.splitlines()
        if ".pt" in line and "*" not in line
    ]
    short, *whole = shown
    assert (
        whole == names[:3]
        and short.startswith("…/")
        and names[3].endswith(short.removeprefix("…"))
    )


def test_two_long_names_never_look_the_same(tmp_path: Path) -> None:
    """Their ends are equal: then the middle gives way, and then nothing does."""
    for folder in ("first", "other"):
        path = tmp_path / folder / LONG / "step_00001000.pth"
        path.parent.mkdir(parents=True)
        torch.save({"fc.weight": torch.ones(2, 2)}, path)
    seen = terminal("ls", ".", columns=60, cwd=tmp_path, NO_COLOR="1", TERM="dumb")
    shown = [
        line.split()[0]
        for line in seen.splitlines()
        if line.startswith(("first", "other"))
    ]
    assert len(set(shown)) == 2 and all(
        text.endswith("step_00001000.pth") for text in shown
    )
