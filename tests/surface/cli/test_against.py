"""`ckpt verify --against hf://…`: a copy beside the hashes that the hub lists, on an
imitation of the hub.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import COMMIT, MODEL, Hub, Reply, hub
from inside import inside
from process import SAMPLES, Done, check_error

import ckpt

HERE = f"hf://{MODEL}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A model of two shards, a file below a folder, and small files that are no LFS
    files.
    """
    folder = tmp_path_factory.mktemp("hub")
    for path in (SAMPLES / "sharded").iterdir():
        shutil.copy(path, folder)
    (folder / "vae").mkdir()
    shutil.copy(SAMPLES / "weights.safetensors", folder / "vae" / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "README.md").write_bytes(b"")
    with hub(folder) as made:
        made.put(folder / "vae", "vae")
        yield made


@pytest.fixture
def copy(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole copy of the model, and a hub that behaves well again."""
    server.clear()
    server.small = 1000
    for name, value in server.variables().items():
        monkeypatch.setenv(name, value)
    for name, data in server.files.items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "copy"


def verify(folder: Path, *words: str, against: str = HERE) -> Done:
    return inside("verify", *words, "--against", against, cwd=folder.parent)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-of-*"))


def test_a_whole_copy(copy: Path, server: Hub) -> None:
    done = verify(copy, "copy")

    large = sum(len(data) > server.small for data in server.files.values())
    small = len(server.files) - large
    assert large == 3 and small > 1
    assert done.lines == [
        (
            f"copy: intact: {large + small} files as {HERE} lists them ({large} by "
            f"SHA-256, {small} by git's SHA-1)"
        )
    ]
    assert (done.code, done.err) == (0, b"")


@pytest.mark.parametrize("per_page", [1, 2, 1000])
@pytest.mark.parametrize("small", [0, 1 << 30])
def test_pages_and_ways(per_page: int, small: int, copy: Path, server: Hub) -> None:
    server.per_page, server.small = per_page, small

    (line,) = verify(copy, "copy").lines

    assert (
        f"{len(server.files)} files as" in line
        and ("SHA-1" if small else "SHA-256") in line
    )


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_one_changed_byte(small: int, copy: Path, server: Hub) -> None:
    server.small = small
    data = bytearray(shards(copy)[1].read_bytes())
    data[-1] ^= 1
    shards(copy)[1].write_bytes(data)

    done = verify(copy, "copy")

    assert done.code == 1 and done.lines[0].startswith(
        f"copy: damaged: {shards(copy)[1].name}: other bytes, "
    )


def test_what_else_a_copy_may_have_or_lack(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    (copy / ".cache" / "huggingface").mkdir(parents=True)
    (copy / ".cache" / "huggingface" / "x.metadata").write_text("a download leaves it")
    (copy / "README.md").unlink()

    done = verify(copy, "copy")

    assert done.code == 0
    assert (
        f"; not checked: 1 file of {HERE} not here (README.md), 1 file that it "
        "does not list (notes.txt)"
    ) in done.lines[0]


def test_a_shard_that_is_missing(copy: Path) -> None:
    gone = shards(copy)[1]
    gone.unlink()

    done = verify(copy, "copy")

    assert done.code == 1 and f"1 shard missing: {gone.name}" in done.lines[0]


def test_a_file_that_is_cut_off_and_one_that_is_a_pointer(copy: Path) -> None:
    first, second, *_ = shards(copy)
    first.write_bytes(first.read_bytes()[:-7])
    second.write_bytes((SAMPLES / "lfs_pointer.pth").read_bytes())

    done = verify(copy, "copy")

    text = " ".join(done.lines)
    assert (
        done.code == 1
        and "(cut off?)" in text
        and f"{second.name}: a Git LFS pointer, not the file" in text
    )


def test_single_files(copy: Path) -> None:
    shutil.copy(copy / "vae" / "model.safetensors", copy.parent / "renamed.safetensors")
    for words, against, says in (
        (
            ["copy/vae/model.safetensors"],
            HERE,
            f"1 file as {HERE} lists it (by SHA-256)",
        ),
        (
            ["renamed.safetensors"],
            HERE,
            f"1 file as {HERE}/vae/model.safetensors lists it",
        ),
        (
            ["renamed.safetensors"],
            f"{HERE}@{COMMIT}/vae/model.safetensors",
            "1 file as",
        ),
        (["copy/vae"], f"{HERE}/vae", "1 file as"),
        (
            ["copy/model.safetensors.index.json"],
            HERE,
            "not checked: the shards of this index",
        ),
    ):
        done = verify(copy, *words, against=against)
        assert done.code == 0 and says in done.lines[0], words
    data = bytearray((copy.parent / "renamed.safetensors").read_bytes())
    data[-1] ^= 1
    (copy.parent / "renamed.safetensors").write_bytes(data)
    assert (
        verify(
            copy, "renamed.safetensors", against=f"{HERE}/vae/model.safetensors"
        ).code
        == 1
    )
    check_error(
        verify(copy, "renamed.safetensors"),
        "lists no file of this name, and none with these bytes",
    )


def test_the_url_itself(copy: Path) -> None:
    done = verify(copy, f"{HERE}/vae/model.safetensors", f"{HERE}/")

    assert (
        done.code == 0
        and len(done.lines) == 2
        and done.complaints == ["2 files: 2 intact"]
    )


def test_a_cache_of_hugging_face(copy: Path) -> None:
    cache = copy.parent / "models--org--model"
    (cache / "blobs").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    for index, path in enumerate(sorted(copy.rglob("*"))):
        if path.is_file():
            link = cache / "snapshots" / COMMIT / path.relative_to(copy)
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, cache / "blobs" / f"b{index}")
            link.symlink_to(cache / "blobs" / f"b{index}")

    assert verify(copy, "models--org--model").code == 0
    assert verify(copy, f"models--org--model/snapshots/{COMMIT}").code == 0


def test_json_and_quiet(copy: Path) -> None:
    shards(copy)[0].write_bytes(b"x")
    document = json.loads(verify(copy, "copy", "--json").out)

    assert (
        document["schema"]["name"] == "ckpt.verify" and document["verdict"] == "damaged"
    )
    assert (
        len(document["problems"]) == 1
        and document["checked"]
        and document["file"]["format"] is None
    )
    quiet = verify(copy, "copy", "-q")
    assert (quiet.code, quiet.out) == (1, b"") and b"damaged" in quiet.err
    assert ckpt.verify(copy, against=HERE).exit_code == 1


def test_what_cannot_be_compared(copy: Path, server: Hub) -> None:
    (copy.parent / "empty").mkdir()
    check_error(verify(copy, "copy", against="hf://org"), "not a hugging face url")
    check_error(
        verify(copy, "copy", against="https://x.org/a"), "not a hugging face url"
    )
    check_error(verify(copy, "copy", against=f"{HERE}/none"), "no such file or folder")
    check_error(verify(copy, "empty"), f"no file of {HERE} lies in it")
    check_error(verify(copy, "copy", "--quick"), "exclude each other")
    missing = verify(copy, "none")
    assert missing.code == 2 and b"no such file" in missing.out + missing.err
    server.token = "secret"
    check_error(verify(copy, "copy"), "no permission")


def test_a_list_that_is_damaged(
    copy: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in (
        b"{",
        b"[3]",
        b'[{"type": "file", "path": "a"}]',
        b'[{"type": "file", "path": "a", "oid": "x", "size": 1}]',
        json.dumps([_row("a", "0")] * 2).encode(),
        json.dumps([_row("a", "0"), _row("a", "1")]).encode(),
        json.dumps([{**_row("a", "0"), "path": 3}]).encode(),
    ):
        monkeypatch.setattr(Hub, "_tree", lambda *_, body=body: _reply(body))
        check_error(verify(copy, "copy"), "list of files is damaged")


def _row(name: str, digit: str, size: int = 1) -> dict[str, object]:
    """A row of the list of the hub: a file that git LFS has."""
    oid = digit.rjust(64, "0")
    return {
        "type": "file",
        "path": name,
        "oid": "0" * 40,
        "size": size,
        "lfs": {"oid": oid, "size": size},
    }


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_of_another_name_is_read_once(
    is_there: bool, copy: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list may have any number of files of one size."""
    data = b"x" * 1000
    (copy.parent / "mine.bin").write_bytes(data)
    digests = [hashlib.sha256(data).hexdigest()] if is_there else []
    digests += [f"{number:x}" for number in range(300)]
    rows = [_row(f"f{row}", digest, 1000) for row, digest in enumerate(digests)]
    body = json.dumps(rows).encode()
    monkeypatch.setattr(Hub, "_tree", lambda *_: _reply(body))
    hashed: list[object] = []

    def counted(data: bytes = b"") -> object:
        hashed.append(data)
        return sha256(data)

    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", counted)
    done = verify(copy, "mine.bin")

    if is_there:
        assert done.code == 0 and f"as {HERE}/f0 lists it" in done.lines[0]
    else:
        check_error(done, "none with these bytes")
    assert len(hashed) == 1


def _reply(body: bytes) -> Reply:
    return Reply(200, {"Content-Type": "application/json"}, body)
