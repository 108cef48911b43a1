"""Whatever is a Location does what the protocol says. A further one joins the table."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt.bytes.location import (
    Links,
    LocalPath,
    Location,
    is_lasting,
    locate,
    path_beside,
)
from ckpt.model.errors import LinkError, NotOpenedError, UnreadableError

LOCATIONS: dict[str, Callable[[Path], Location]] = {
    "LocalPath": lambda path: LocalPath(str(path))
}
"""For each implementation what makes one of a path of a folder that the test fills."""

LINKS: tuple[Links, ...] = ("file", "cache", "no")


@pytest.fixture(params=LOCATIONS)
def at(request: pytest.FixtureRequest) -> Callable[[Path], Location]:
    return LOCATIONS[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b.bin, a.bin and A.bin, a folder `sub` with a file, next to a file outside."""
    made = tmp_path / "folder"
    (made / "sub").mkdir(parents=True)
    for name in ("b.bin", "a.bin", "A.bin", "sub/inner.bin"):
        (made / name).write_bytes(name.encode())
    (tmp_path / "outside.bin").write_bytes(b"outside")
    return made


def content(location: Location) -> bytes:
    source = location.open()
    try:
        return source.read(0, source.size)
    finally:
        source.close()


def test_the_usual_location_is_a_path_of_this_machine(folder: Path) -> None:
    found = locate(str(folder))

    assert isinstance(found, LocalPath) and found.name == str(folder)


def test_what_it_is(at: Callable[[Path], Location], folder: Path) -> None:
    assert at(folder).is_folder() and not at(folder).is_file()
    assert at(folder / "a.bin").is_file() and not at(folder / "a.bin").is_folder()
    assert not at(folder / "none").is_file() and not at(folder / "none").is_folder()
    os.mkfifo(folder / "fifo")
    assert not at(folder / "fifo").is_file() and not at(folder / "fifo").is_folder()
    (folder / "link").symlink_to("a.bin")
    assert at(folder / "link").is_file()


def test_the_name_is_as_it_was_typed(
    at: Callable[[Path], Location], folder: Path
) -> None:
    assert at(folder).name == str(folder)


def test_names_are_sorted_and_those_of_folders_end_with_a_slash(
    at: Callable[[Path], Location], folder: Path
) -> None:
    (folder / "linked").symlink_to("sub")
    (folder / "dangling").symlink_to("nowhere")

    assert at(folder).names() == [
        "A.bin",
        "a.bin",
        "b.bin",
        "dangling",
        "linked/",
        "sub/",
    ]
    assert at(folder / "sub").names() == ["inner.bin"]


@pytest.mark.parametrize("name", ["none", "a.bin", "a\0b", ""])
def test_what_is_no_folder_has_no_names(
    name: str,
    at: Callable[[Path], Location],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)

    with pytest.raises(NotOpenedError):
        LocalPath(name).names()


def test_the_parent_is_the_folder_that_it_lies_in(
    at: Callable[[Path], Location], folder: Path
) -> None:
    parent = at(folder / "a.bin").parent()

    assert parent.is_folder() and parent.names() == at(folder).names()
    assert content(parent.child("b.bin")) == b"b.bin"
    assert (
        content(at(folder / "sub" / "inner.bin").parent().parent().child("a.bin"))
        == b"a.bin"
    )


def test_the_parent_of_a_bare_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the folder where the command runs; names beside it stay bare, as a person
    would type them.
    """
    monkeypatch.chdir(folder)

    parent = LocalPath("a.bin").parent()

    assert parent.is_folder() and parent.names() == ["A.bin", "a.bin", "b.bin", "sub/"]
    assert (
        parent.child("b.bin").name == "b.bin"
        and content(parent.child("b.bin")) == b"b.bin"
    )
    assert not LocalPath("").is_folder()


def test_children(at: Callable[[Path], Location], folder: Path) -> None:
    for links in LINKS:
        assert content(at(folder).child("a.bin", links)) == b"a.bin"
        assert at(folder).child("sub", links).is_folder()
        assert (
            content(at(folder).child("sub", links).child("inner.bin", links))
            == b"sub/inner.bin"
        )


def test_a_child_that_is_missing_is_no_file(
    at: Callable[[Path], Location], folder: Path
) -> None:
    for links in LINKS:
        missing = at(folder).child("none", links)
        assert not missing.is_file() and not missing.is_folder()
        with pytest.raises(NotOpenedError):
            missing.open()


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "../outside.bin",
        "sub/inner.bin",
        "sub/../a.bin",
        "./a.bin",
        "a.bin/",
        "/etc/passwd",
        "..\\outside.bin",
        "sub\\inner.bin",
        "\\\\server\\share",
        "a.bin\0",
        "\0",
        "a\0/b",
    ],
    ids=ascii,
)
def test_no_name_leads_out_of_a_folder(
    name: str, links: Links, at: Callable[[Path], Location], folder: Path
) -> None:
    with pytest.raises(UnreadableError):
        at(folder).child(name, links)


@pytest.mark.parametrize(
    "name", ["...", "..a", "a..b", " ", "~", "a:b", "-", "größe", "a\nb", "*"]
)
def test_odd_names_are_names(
    name: str, at: Callable[[Path], Location], folder: Path
) -> None:
    (folder / name).write_bytes(b"odd")

    assert content(at(folder).child(name)) == b"odd" and name in at(folder).names()


def test_a_link_to_a_file_is_followed_where_links_may_be(
    at: Callable[[Path], Location], folder: Path
) -> None:
    """The cache of Hugging Face is made of them: they lead to blobs in another
    folder.
    """
    (folder / "link").symlink_to("../outside.bin")
    (folder / "twice").symlink_to("link")

    for name in ("link", "twice"):
        assert (
            content(at(folder).child(name))
            == content(at(folder).child(name, "file"))
            == b"outside"
        )
        with pytest.raises(UnreadableError):
            at(folder).child(name, "no")


@pytest.mark.parametrize("target", ["sub", "..", "/", "fifo", "/dev/zero", "/dev/null"])
@pytest.mark.parametrize("links", LINKS)
def test_a_link_to_anything_else_is_refused(
    links: Links, target: str, at: Callable[[Path], Location], folder: Path
) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to(target)

    with pytest.raises(UnreadableError):
        at(folder).child("link", links)


@pytest.mark.parametrize("target", ["nowhere", "link", "a.bin/x"])
def test_a_link_to_nothing_is_a_file_that_is_missing(
    target: str, at: Callable[[Path], Location], folder: Path
) -> None:
    """A blob that is not in the cache: a reader of shards says which are missing, and
    how much is lost.
    """
    (folder / "link").symlink_to(target)

    missing = at(folder).child("link")

    assert not missing.is_file() and not missing.is_folder()
    with pytest.raises(NotOpenedError):
        missing.open()
    with pytest.raises(UnreadableError):
        at(folder).child("link", "no")


@pytest.mark.parametrize("name", ["none", "sub", "fifo", "socket"])
def test_only_files_are_opened(
    name: str,
    at: Callable[[Path], Location],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)  # the path of a socket is short
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        with pytest.raises(NotOpenedError):
            at(folder / name).open()


# --- the cache of Hugging Face --------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder of one model in a cache."""
    made = tmp_path / "hub/models--org--net"
    for name in ("blobs/inner", "snapshots/abc/step/deep", "snapshots/abc/snapshots/x"):
        (made / name).mkdir(parents=True)
    for path in (
        made / "blobs/hash",
        made / "blobs/inner/hash",
        made / "file",
        tmp_path / "hub/outside",
    ):
        path.write_bytes(b"blob")
    other = tmp_path / "hub/models--org--other/blobs"
    other.mkdir(parents=True)
    (other / "hash").write_bytes(b"other")
    (made / "blobs/away").symlink_to(tmp_path / "hub/outside")
    return made


@pytest.mark.parametrize(
    ("folder", "target"),
    [
        ("snapshots/abc", "../../blobs/hash"),
        ("snapshots/abc/step", "../../../blobs/hash"),
        ("snapshots/abc/step/deep", "../../../../blobs/hash"),
        ("snapshots/abc/snapshots/x", "../../../../blobs/hash"),
    ],
)
def test_a_link_to_a_blob_of_its_own_cache_is_followed(
    folder: str, target: str, cache: Path
) -> None:
    (cache / folder / "link").symlink_to(target)
    (cache / folder / "absolute").symlink_to(cache / "blobs/hash")

    for name in ("link", "absolute"):
        assert content(LocalPath(str(cache / folder)).child(name, "cache")) == b"blob"
        with pytest.raises(LinkError, match="no link in this folder is followed"):
            LocalPath(str(cache / folder)).child(name, "no")


@pytest.mark.parametrize(
    "target", ["../../file", "../../blobs/inner/hash", "../../blobs/away", "../../../outside", "../other",
               "../../../models--org--other/blobs/hash", "gone", "/etc/hostname"]
)  # fmt: skip
def test_a_link_elsewhere_is_refused_as_a_link(target: str, cache: Path) -> None:
    (cache / "snapshots/other").write_bytes(b"x")
    (cache / "snapshots/abc/link").symlink_to(target)

    with pytest.raises(
        LinkError,
        match="link is a link: only one to the blobs/ of the same Hugging Face cache",
    ):
        LocalPath(str(cache / "snapshots/abc")).child("link", "cache")


def test_a_blob_that_is_not_there_is_a_file_that_is_missing(cache: Path) -> None:
    (cache / "snapshots/abc/link").symlink_to("../../blobs/gone")

    with pytest.raises(NotOpenedError):
        LocalPath(str(cache / "snapshots/abc")).child("link", "cache").open()


def test_folders_that_only_look_alike_are_no_cache(tmp_path: Path) -> None:
    folders = (
        "net/snapshots/abc",
        "net/blobs",
        "models--a--b/abc",
        "models--a--b/blobs",
        "models--a--b/refs/abc",
    )
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    for name in ("net/blobs/hash", "models--a--b/blobs/hash"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "net/snapshots/abc/link").symlink_to("../../blobs/hash")
    (tmp_path / "models--a--b/abc/link").symlink_to("../blobs/hash")
    (tmp_path / "models--a--b/refs/abc/link").symlink_to("../../blobs/hash")

    for folder in ("net/snapshots/abc", "models--a--b/abc", "models--a--b/refs/abc"):
        with pytest.raises(LinkError):
            LocalPath(str(tmp_path / folder)).child("link", "cache")


# --- the place of a result ------------------------------------------------------------


def test_files_and_folders_last_and_streams_do_not(folder: Path) -> None:
    """A command that names a path is printed only where the next command finds the same
    bytes there.
    """
    os.mkfifo(folder / "fifo")
    assert is_lasting(str(folder)) and is_lasting(str(folder / "a.bin"))
    for path in (
        folder / "fifo",
        folder / "none",
        "/dev/null",
        "/dev/shm",
        "/proc/self/maps",
        "a\0b",
    ):
        assert not is_lasting(str(path)), path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.pth", "a.cpu.pth"),
        ("epoch_3.pth.tar", "epoch_3.cpu.pth.tar"),
        ("model.safetensors.index.json", "model.cpu.safetensors"),
        ("none", "none.cpu"),
        ("sub", "sub.cpu"),
        ("sub/", "sub.cpu"),
    ],
)
def test_a_result_lies_beside_its_input(name: str, expected: str, folder: Path) -> None:
    assert path_beside(f"{folder}/{name}", ".cpu", ()) == f"{folder}/{expected}"


def test_a_result_has_an_ending_that_its_format_has(folder: Path) -> None:
    path = f"{folder}/a.pth"
    assert path_beside(path, ".x", (".pt", ".pth")) == f"{folder}/a.x.pth"
    assert (
        path_beside(path, ".x", (".safetensors", ".sft")) == f"{folder}/a.x.safetensors"
    )
    assert path_beside(path, ".x", (".pt", ".pth"), other=False) == f"{folder}/a.x.pt"


def test_a_result_takes_no_name_that_is_taken(folder: Path) -> None:
    (folder / "a.x.bin").write_bytes(b"")
    (folder / "a.x.2.bin").symlink_to("nowhere")
    assert path_beside(f"{folder}/a.bin", ".x", ()) == f"{folder}/a.x.3.bin"


def test_a_result_in_a_folder_that_takes_none_lies_in_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, how: str(path) == os.curdir)
    assert path_beside(f"{folder}/a.pth", ".x", ()) == "a.x.pth"
    assert path_beside("https://example.org/run/a.pth", ".x", ()) == "a.x.pth"
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert path_beside(f"{folder}/a.pth", ".x", ()) is None
