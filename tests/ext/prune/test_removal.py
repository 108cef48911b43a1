"""`ckpt prune --delete`: what goes is what was judged, whole or not at all, whatever
others do meanwhile and whoever kills it.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kills
import pytest
from process import TIMEOUT, as_nobody, ckpt, environment, read_terminal
from runs import OLD, epochs, save, trainer

import ckpt as library
from ckpt.ext.prune import api, judging, removal
from ckpt.ext.prune.identity import identity_of
from ckpt.ext.prune.removal import SUFFIX, Victim, hidden_name
from ckpt.model.errors import WriteError


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their paths."""
    return {
        os.path.relpath(path, folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    """The files that are neither of these names nor below them."""
    return {
        path: data for path, data in files.items() if path.split("/")[0] not in names
    }


# --- what goes ------------------------------------------------------------------------


def test_only_what_was_listed_goes(tmp_path: Path) -> None:
    epochs(tmp_path)
    (tmp_path / "epoch_1.json").write_text("{}")
    (tmp_path / "log.txt").write_text("x")
    save(tmp_path / "best.pth")
    before = tree(tmp_path)

    done = ckpt("prune", tmp_path, "--keep-last", "3", "--delete", "--yes")
    assert done.code == 0
    assert done.lines == [str(tmp_path / "epoch_0.pth"), str(tmp_path / "epoch_1.pth")]
    assert done.err == b"2 of 6 checkpoints deleted, 3.21 KiB\n"
    assert tree(tmp_path) == without(before, "epoch_0.pth", "epoch_1.pth")
    again = ckpt("prune", tmp_path, "--keep-last", "3", "--delete", "--yes")
    assert (again.code, again.lines) == (0, [])


def test_folders_go_whole_and_links_in_them_are_not_followed(tmp_path: Path) -> None:
    trainer(tmp_path / "run", [500, 1000], [2.0, 1.0])
    outside = save(tmp_path / "outside" / "precious.pth")
    folder = tmp_path / "run" / "checkpoint-500"
    (folder / "to_file").symlink_to(outside)
    (folder / "to_folder").symlink_to(outside.parent)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "x.bin").write_bytes(b"x")
    (folder / "deep" / "empty").mkdir()
    before = tree(tmp_path)

    assert ckpt("prune", tmp_path / "run", "--delete", "-y").code == 0
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint-1000"]
    left = tree(tmp_path)
    assert left == {
        path: data for path, data in before.items() if "checkpoint-500/" not in path
    }


def test_a_pipe_is_never_asked(tmp_path: Path) -> None:
    epochs(tmp_path)
    done = ckpt("prune", tmp_path, "--delete", input=b"y\n")

    assert (done.code, done.out) == (
        2,
        b"",
    ) and b"--yes deletes without asking" in done.err
    assert ckpt("prune", tmp_path, "--yes").code == 2
    assert len(os.listdir(tmp_path)) == 5


@pytest.mark.parametrize(
    ("answer", "count"), [("y", 1), ("YES", 1), ("n", 5), ("", 5), ("x", 5), ("yep", 5)]
)
def test_a_terminal_is_asked(tmp_path: Path, answer: str, count: int) -> None:
    epochs(tmp_path)
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ckpt", "prune", str(tmp_path), "--delete"]
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(NO_COLOR="1")
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    seen, ended = read_terminal(ours, lambda: child.wait(TIMEOUT))

    assert ended == 0
    assert b"delete 4 checkpoints, 6.41 KiB, for good? [y/N]" in seen
    assert len(os.listdir(tmp_path)) == count
    assert (b"4 of 5 checkpoints deleted" in seen) == (count == 1)
    assert (b"nothing was deleted" in seen) == (count == 5)


def test_a_folder_that_cannot_be_changed(folder_of_all: Path) -> None:
    epochs(folder_of_all)
    os.chmod(folder_of_all, 0o555)
    done = as_nobody(
        "prune", str(folder_of_all), "--delete", "--yes", cwd=folder_of_all
    )

    assert done.code == 2 and b"no permission to remove files" in done.err
    assert len(os.listdir(folder_of_all)) == 5


# --- what others do meanwhile ---------------------------------------------------------


def test_what_was_written_anew_stays(tmp_path: Path) -> None:
    report = library.prune(epochs(tmp_path))
    save(tmp_path / "epoch_1.pth", epoch=99, at=OLD + 1)

    after = api.deleted(report)
    assert sorted(os.listdir(tmp_path)) == ["epoch_1.pth", "epoch_4.pth"]
    assert after.exit_code == 2
    (row,) = [row for row in after if row.problem is not None]
    assert row.problem == "it changed since it was judged, and stays"


def test_what_was_written_in_place_stays(tmp_path: Path) -> None:
    report = library.prune(epochs(tmp_path))
    with (tmp_path / "epoch_1.pth").open("r+b") as file:
        file.write(b"P")

    api.deleted(report)
    assert "epoch_1.pth" in os.listdir(tmp_path)


def test_a_folder_that_got_a_file_stays(tmp_path: Path) -> None:
    report = library.prune(trainer(tmp_path, [500, 1000, 1500], [3.0, 2.0, 1.0]))
    (tmp_path / "checkpoint-500" / "evaluation.json").write_text("{}")

    api.deleted(report)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-1500", "checkpoint-500"]


@pytest.mark.parametrize("how", ["gone", "cut", "replaced"])
def test_nothing_goes_once_what_stays_has_changed(tmp_path: Path, how: str) -> None:
    """Another prune, or the training itself, may remove what this one counts on."""
    report = library.prune(epochs(tmp_path))
    last = tmp_path / "epoch_4.pth"
    if how == "gone":
        os.unlink(last)
    elif how == "cut":
        last.write_bytes(last.read_bytes()[:100])
    else:
        save(last, epoch=0)
    before = tree(tmp_path)

    after = api.deleted(report)
    assert tree(tmp_path) == before and after.exit_code == 2
    assert all(
        "epoch_4.pth, which stays, has changed or gone" in str(row.problem)
        for row in after.may_go
    )


@pytest.mark.parametrize("is_link", [True, False])
def test_what_got_a_pointer_stays(tmp_path: Path, *, is_link: bool) -> None:
    """The question may wait for hours while a run goes on, and finds its best."""
    plan = api.planned(epochs(tmp_path, 4))
    if is_link:
        (tmp_path / "best.pth").symlink_to("epoch_1.pth")
    else:
        (tmp_path / "best.txt").write_text("epoch_1.pth")
    report = api.deleted(plan)

    problems = {
        os.path.basename(row.path): row.problem for row in report.rows if row.problem
    }
    said = "best.pth links to it" if is_link else "best.txt names it"
    assert problems == {"epoch_1.pth": f"{said} by now, and it stays"}
    assert report.exit_code == 2
    assert sorted(path.name for path in tmp_path.glob("epoch_*")) == [
        "epoch_1.pth",
        "epoch_3.pth",
    ]


def test_another_folder_of_that_name_is_not_touched(tmp_path: Path) -> None:
    report = library.prune(epochs(tmp_path / "run"))
    os.rename(tmp_path / "run", tmp_path / "old")
    epochs(tmp_path / "run")
    before = tree(tmp_path)

    with pytest.raises(WriteError, match="another one than the one that was judged"):
        api.deleted(report)
    assert tree(tmp_path) == before


def in_the_moment(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], object]) -> None:
    """Let something happen between the last look at a save and its new name."""
    rename = os.rename

    def late(old: Any, new: Any, **places: Any) -> None:
        if str(new).endswith(SUFFIX):
            do(str(old))
        rename(old, new, **places)

    monkeypatch.setattr(os, "rename", late)


def test_what_takes_its_place_in_the_last_moment_gets_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = library.prune(epochs(tmp_path))

    def replace(name: str) -> None:
        if name == "epoch_1.pth":
            save(tmp_path / "new", epoch=99).replace(tmp_path / name)

    in_the_moment(monkeypatch, replace)
    after = api.deleted(report)
    assert sorted(os.listdir(tmp_path)) == ["epoch_1.pth", "epoch_4.pth"]
    assert [row.problem for row in after.may_go].count(
        "it changed since it was judged, and stays"
    ) == 1


def test_a_third_file_of_that_name_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = library.prune(epochs(tmp_path))
    in_the_moment(monkeypatch, lambda name: (tmp_path / name).write_bytes(b"second"))
    look = removal.identity_of

    def late(name: str, folder: int | None = None) -> Any:
        if name.endswith(SUFFIX):
            (tmp_path / name[1:].rpartition(".ckpt")[0].rpartition(".")[0]).write_bytes(
                b"third"
            )
        return look(name, folder)

    monkeypatch.setattr(removal, "identity_of", late)
    after = api.deleted(report)
    files = tree(tmp_path)
    assert [files[f"epoch_{n}.pth"] for n in range(4)] == [b"third"] * 4
    hidden = [data for name, data in files.items() if name.endswith(SUFFIX)]
    assert hidden == [b"second"] * 4
    assert all("stays as .epoch_" in str(row.problem) for row in after.may_go)


def test_what_comes_into_a_folder_while_it_goes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = library.prune(trainer(tmp_path, [500, 1000], [2.0, 1.0]))
    unlink = os.unlink

    def late(path: Any, **places: Any) -> None:
        if path == "optimizer.pt":
            (hidden,) = [name for name in os.listdir(tmp_path) if name.endswith(SUFFIX)]
            (tmp_path / hidden / "new.txt").write_text("mine")
        unlink(path, **places)

    monkeypatch.setattr(os, "unlink", late)
    after = api.deleted(report)
    (path,) = [
        path for path in tree(tmp_path) if not path.startswith("checkpoint-1000")
    ]
    assert path.endswith("/new.txt") and after.exit_code == 2
    assert "is left of it" in str(after.may_go[0].problem)


def test_a_file_that_is_replaced_in_a_folder_while_it_goes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = library.prune(trainer(tmp_path, [500, 1000], [2.0, 1.0]))
    unlink = os.unlink

    def late(path: Any, **places: Any) -> None:
        if path == "model.safetensors":  # the first of the three
            (hidden,) = [name for name in os.listdir(tmp_path) if name.endswith(SUFFIX)]
            (tmp_path / "new").write_text("mine")
            (tmp_path / "new").replace(tmp_path / hidden / "trainer_state.json")
        unlink(path, **places)

    monkeypatch.setattr(os, "unlink", late)
    after = api.deleted(report)
    (path,) = [
        path for path in tree(tmp_path) if not path.startswith("checkpoint-1000")
    ]
    assert path.endswith("/trainer_state.json") and tree(tmp_path)[path] == b"mine"
    assert after.exit_code == 2


def test_a_save_that_changes_while_it_is_read_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs(tmp_path, 3)
    read = judging.read

    def late(path: str, *arguments: Any, **options: Any) -> Any:
        opened = read(path, *arguments, **options)
        if path.endswith("epoch_0.pth"):
            save(tmp_path / "new", epoch=0).replace(path)
        return opened

    monkeypatch.setattr(judging, "read", late)
    rows = {os.path.basename(row.path): row for row in library.prune(tmp_path)}
    assert rows["epoch_0.pth"].stays and rows["epoch_0.pth"].state == "unread"
    assert not rows["epoch_1.pth"].stays


# --- kills ----------------------------------------------------------------------------


def make_run(folder: Path) -> None:
    """A run of files and folders."""
    trainer(folder, [500, 1000], [2.0, 1.0])
    epochs(folder, 3)


@pytest.mark.slow
def test_killed_at_every_event(tmp_path: Path, killer: kills.Killer) -> None:
    """Under its own name each save is whole or gone; what is half gone is hidden, and
    the next run ends its removal.
    """
    model = tmp_path / "model"
    make_run(model)
    whole = tree(model)
    victims = ("checkpoint-500", "epoch_0.pth", "epoch_1.pth")
    kept = without(whole, *victims)
    seen: set[tuple[str, ...]] = set()
    half = 0
    run = tmp_path / "run"
    events = 0
    while True:
        events += 1
        shutil.copytree(model, run)  # keeps the times
        ran = killer.run(
            "prune", str(run), "--delete", "--yes", "-q", cwd=tmp_path, nth=events
        )
        left = tree(run)
        visible = {path: data for path, data in left.items() if SUFFIX not in path}
        assert without(visible, *victims) == kept
        for name in victims:
            own = {path for path in whole if path.split("/")[0] == name}
            assert own & visible.keys() in (set(), own)
            assert all(visible[path] == whole[path] for path in own & visible.keys())
        seen.add(tuple(sorted({path.split("/")[0] for path in left})))
        hidden = [name for name in os.listdir(run) if name.endswith(SUFFIX)]
        half += bool(hidden)
        if ran.was_killed:
            done = ckpt("prune", run)
            assert all(str(run / name) in done.lines for name in hidden)
            assert ckpt("prune", run, "--delete", "--yes").code == 0
            assert tree(run) == kept
        shutil.rmtree(run)
        if not ran.was_killed:
            break
    assert ran.code == 0 and tree(model) == whole
    assert half >= 4 and len(seen) > 6 and events > 20


def test_the_rest_of_a_removal_is_told_from_what_came_in_its_place(
    tmp_path: Path,
) -> None:
    """A kill in the moment after a file was replaced and renamed leaves a file that
    nobody judged.
    """
    epochs(tmp_path, 2)
    victim = Victim("epoch_7.pth", identity_of(str(tmp_path / "epoch_0.pth")))
    stranger = save(tmp_path / hidden_name(victim), epoch=7)

    assert ckpt("prune", tmp_path, "--delete", "--yes").code == 0
    assert stranger.exists() and not (tmp_path / "epoch_0.pth").exists()
    rows = {os.path.basename(row.path): row for row in library.prune(tmp_path)}
    assert rows[stranger.name].why == (
        "named like the rest of a removal, and is something else",
    )


def test_a_long_name_goes_too(tmp_path: Path) -> None:
    epochs(tmp_path, 2, name="é" * 110 + "_epoch_{}.pth")

    assert ckpt("prune", tmp_path, "--delete", "--yes").code == 0
    assert len(os.listdir(tmp_path)) == 1


def test_a_file_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = library.prune(epochs(tmp_path))

    def refuse(*arguments: Any, **places: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    after = api.deleted(report)
    assert len(os.listdir(tmp_path)) == 5 and after.exit_code == 2
    assert {row.problem for row in after.may_go} == {
        "it cannot be renamed: no permission"
    }
