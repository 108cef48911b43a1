"""Writers take many PATHs: each result in the folder OUT, and nothing is written where
two would meet.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from process import SAMPLES, as_nobody, check_error

from ckpt.bytes import executor
from ckpt.commands.slim import command as slim
from ckpt.surface.cli.app import COMMANDS, program
from ckpt.surface.cli.options import options_of
from ckpt.surface.cli.start import Signal

WRITERS = {
    "slim": (),
    "strip": (),
    "rename": ("--sub", "s/weight/w/"),
    "convert": ("--format", "torch-legacy"),
    "rehome": (),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.pth", "b.pth", "sub/a.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(
            {"module.l.weight": torch.ones(2), "module.l.bias": torch.ones(2)},
            tmp_path / name,
        )
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", WRITERS)
def test_each_result_is_in_the_folder(command: str, folder: Path) -> None:
    done = inside(command, "a.pth", "b.pth", *WRITERS[command], "-o", "out", cwd=folder)

    assert done.code == 0, done
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "a.pth",
        "b.pth",
    ]
    assert len(torch.load(folder / "out" / "b.pth", weights_only=True)) == 2


def test_one_file_that_a_list_names_twice(folder: Path) -> None:
    # Python keeps equal texts of one letter as one object.
    (folder / "a.pth").rename(folder / "a")
    (folder / "list").write_text("a\na\n")
    done = inside("slim", "--files-from", "list", "-o", "out", cwd=folder)

    check_error(done, "out/a: a would be written there too")
    assert list((folder / "out").iterdir()) == []


@pytest.mark.parametrize("command", WRITERS)
def test_two_results_of_one_name(command: str, folder: Path) -> None:
    done = inside(
        command,
        "a.pth",
        "b.pth",
        "sub/a.pth",
        *WRITERS[command],
        "-o",
        "out",
        cwd=folder,
    )

    check_error(done, "out/a.pth: a.pth would be written there too")
    assert list((folder / "out").iterdir()) == []


def test_a_result_that_is_there_already(folder: Path) -> None:
    (folder / "out" / "b.pth").write_bytes(b"mine")

    done = inside("slim", "a.pth", "b.pth", "-o", "out", cwd=folder)

    assert done.code == 2 and [path.name for path in (folder / "out").iterdir()] == [
        "b.pth"
    ]
    assert (
        inside("slim", "a.pth", "b.pth", "-o", "out", "--force", cwd=folder).code == 0
    )


def test_the_ending_follows_the_format(folder: Path) -> None:
    words = ("convert", "a.pth", "b.pth", "--format", "safetensors", "-o", "out")

    assert inside(*words, cwd=folder).code == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "a.safetensors",
        "b.safetensors",
    ]


def test_shards_have_one_name(folder: Path) -> None:
    done = inside(
        "convert", "a.pth", "b.pth", "--shard-size", "1KB", "-o", "out", cwd=folder
    )

    check_error(done, "--shard-size takes one path")
    assert list((folder / "out").iterdir()) == []


def test_an_error_stops_no_other_file(folder: Path) -> None:
    (folder / "b.pth").write_bytes(b"nothing")

    done = inside("slim", "b.pth", "a.pth", "-o", "out", cwd=folder)

    assert done.code == 2 and [path.name for path in (folder / "out").iterdir()] == [
        "a.pth"
    ]


def test_several_files_need_a_folder(folder: Path) -> None:
    check_error(
        inside("slim", "a.pth", "b.pth", "-o", "c.pth", cwd=folder),
        "not a folder, and there are",
    )


@pytest.mark.parametrize("command", ["inspect", "stats", "verify", "lint", "ls"])
def test_names_of_a_list(command: str, folder: Path) -> None:
    (folder / "list").write_text("b.pth\nsub/a.pth\n")

    done = inside(command, "a.pth", "--files-from", "list", "--json", cwd=folder)

    assert done.code == (command == "lint"), done  # which finds the prefix
    assert all(
        name in done.out.decode() for name in ('"a.pth"', '"b.pth"', '"sub/a.pth"')
    )
    assert inside(command, "--files-from", "list", cwd=folder).code == done.code
    if command == "ls":  # which lists the current folder, as the ls of a shell does
        assert inside(command, cwd=folder).code == 0
    else:
        check_error(
            inside(command, cwd=folder),
            "nothing to look at (path..., or --files-from file)",
        )


@pytest.mark.needs("salvage")
def test_verify_hides_what_is_intact(folder: Path) -> None:
    data = (folder / "b.pth").read_bytes()
    (folder / "b.pth").write_bytes(data[: len(data) // 2])

    done = inside("verify", "--hide-intact", "a.pth", "b.pth", cwd=folder)

    assert done.code == 1 and [line.partition(":")[0] for line in done.lines[:1]] == [
        "b.pth"
    ]
    assert done.lines[1:] == ["  ckpt salvage b.pth -o b.whole.pth"]
    assert done.complaints == ["2 files: 1 intact, 1 damaged"]
    assert inside("verify", "--hide-intact", "a.pth", cwd=folder).out == b""


# --------------------------------------------------------------------------------------
# folders


LOOKERS = ("stats", "verify", "sum", "lint", "ls")


@pytest.fixture
def runs(folder: Path) -> Path:
    """`runs` with more files than one process reads, a web page, and what never was a
    checkpoint.
    """
    (folder / "runs" / "deep").mkdir(parents=True)
    for number in (*range(9), 10):
        torch.save(
            {"l.weight": torch.full((2,), float(number))},
            folder / f"runs/e{number}.pth",
        )
    torch.save({"l.weight": torch.ones(2)}, folder / "runs/deep/e1.pth")
    (folder / "runs" / "page.pt").write_bytes(b"<!doctype html><html></html>")
    (folder / "runs" / "words.pkl").write_bytes(b"no pickle at all")
    torch.save({"h.weight": torch.ones(2)}, folder / "runs/.hidden.pth")
    return folder


@pytest.mark.parametrize("command", LOOKERS)
def test_commands_that_look_walk_folders(command: str, runs: Path) -> None:
    done = inside(command, "runs", cwd=runs)

    text = done.out.decode() + done.err.decode()
    assert "deep/e1.pth" in text or command == "lint"  # which prints findings alone
    text = text.replace("deep/e1.pth", "")
    assert done.code == 2 and "page.pt" in text, done
    assert ".hidden" in text or command == "lint"
    counted = "1 not looked at" if command == "ls" else "1 file not looked at: 1 *.pkl"
    assert counted in done.err.decode() and "words" not in text
    if command != "lint":
        names = [f"e{number}.pth" for number in (*range(9), 10)]
        places = [re.search(rf"\b{re.escape(name)}", text) for name in names]
        assert all(places) and [place.start() for place in places if place] == sorted(
            place.start() for place in places if place
        )


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", LOOKERS)
def test_any_number_of_processes_prints_the_same(
    command: str, form: tuple[str, ...], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        executor, "is_alone", lambda: True
    )  # a worker of the tests is not
    form = () if command == "sum" else form
    one, two, nine = (
        inside(command, "runs", *form, "-j", number, cwd=runs)
        for number in ("1", "2", "9")
    )

    assert one == two == nine == inside(command, "runs", *form, cwd=runs)
    check_error(inside(command, "runs", "-j", "0", cwd=runs), "--jobs: ")


@pytest.mark.parametrize("number", ["1", "3"])
def test_the_number_of_processes(
    number: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    plain = executor.Forks
    monkeypatch.setattr(executor, "is_alone", lambda: True)
    monkeypatch.setattr(
        executor, "Forks", lambda count=None: asked.append(count) or plain(1)
    )

    for command in LOOKERS:
        inside(command, "runs", "-j", number, cwd=runs)

    assert asked == [int(number)] * len(LOOKERS)


@pytest.mark.parametrize("command", ["stats", "verify", "sum", "lint"])
def test_a_folder_without_a_checkpoint(command: str, folder: Path) -> None:
    (folder / "out" / "notes.txt").write_text("x")
    (folder / "out" / "words.pkl").write_bytes(b"no pickle at all")

    done = inside(command, "out", cwd=folder)

    assert (
        done.code == 2 and b"a checkpoint" in done.out + done.err
    ) or command == "lint", done


@pytest.mark.needs("folders")
def test_a_folder_that_is_a_checkpoint_is_one_path() -> None:
    for command in ("stats", "verify", "sum"):
        done = inside(command, "sharded", cwd=SAMPLES)
        assert (
            done.code == 0
            and b"index.json" not in done.out
            and b"# file" not in done.out
        )
    assert (
        inside("verify", "sharded", cwd=SAMPLES).lines[0].startswith("sharded: intact")
    )


@pytest.mark.needs("salvage")
def test_verify_sums_its_verdicts_up(runs: Path) -> None:
    (runs / "runs" / "e3.pth").write_bytes((runs / "a.pth").read_bytes()[:-40])

    done = inside("verify", "runs", cwd=runs)

    assert done.complaints[-1] == "13 files: 11 intact, 1 damaged, 1 unreadable"
    assert done.code == 2
    brief = inside("verify", "runs", "--hide-intact", "--no-summary", cwd=runs)
    (hint,) = [line for line in brief.lines if line.startswith("  ")]
    assert hint == "  ckpt salvage runs/e3.pth -o runs/e3.whole.pth"
    assert len(brief.lines) == 3 and b"files:" not in brief.err


@pytest.mark.parametrize("command", ["inspect", "stats"])
def test_quiet_leaves_the_answer_to_the_exit_code(command: str, folder: Path) -> None:
    torch.save({"w": torch.tensor([float("nan")])}, folder / "nan.pth")
    torch.save({"module.w": torch.ones(3)}, folder / "ddp.pth")
    bad, code = ("nan.pth", "nan") if command == "stats" else ("ddp.pth", "prefix")

    done = inside(command, bad, "a.pth", "-q", "--fail-on", code, cwd=folder)

    assert (done.code, done.out, done.err) == (1, b"", b"")
    assert inside(command, bad, "-q", cwd=folder).code == 0
    check_error(
        inside(command, bad, "-q", "--json", cwd=folder),
        "--json and --quiet exclude each other",
    )


def test_sums_of_several_files_know_their_file(folder: Path) -> None:
    torch.save(
        {"module.l.weight": torch.zeros(2), "module.l.bias": torch.ones(2)},
        folder / "b.pth",
    )
    (folder / "sums").write_bytes(inside("sum", "a.pth", "b.pth", cwd=folder).out)

    assert inside("verify", "a.pth", "b.pth", "--sums", "sums", cwd=folder).code == 0
    (folder / "b.pth").write_bytes((folder / "a.pth").read_bytes())
    shutil.copy(folder / "a.pth", folder / "c.pth")
    done = inside("verify", "a.pth", "./b.pth", "c.pth", "--sums", "sums", cwd=folder)
    assert [line.partition(": ")[2].partition(";")[0] for line in done.lines] == [
        "intact: 2 stored sums match, all checksums match",
        "damaged: 1 tensor with another sum (module.l.weight)",
        "unreadable: --sums has no sums of this file",
    ]
    assert inside("sum", "a.pth", cwd=folder).out.startswith(b"# file") is False


@pytest.mark.parametrize("kind", [[], ["--recorded"]])
@pytest.mark.parametrize("more", [[], ["--require"]])
def test_a_file_that_vanished_from_a_folder_with_stored_sums_shows(
    kind: list[str], more: list[str], tmp_path: Path
) -> None:
    """Plain sums and those of --recorded have one rule, and a copy of the folder
    elsewhere is found by its names.
    """
    (tmp_path / "s").mkdir()
    for number in range(3):
        torch.save({"w": torch.full((2,), float(number))}, tmp_path / f"s/{number}.pth")
    (tmp_path / "sums").write_bytes(inside("sum", "s", *kind, cwd=tmp_path).out)
    shutil.copytree(tmp_path / "s", tmp_path / "copy/s")
    for place in ("s", "copy/s"):
        assert inside("verify", place, "--sums", "sums", *more, cwd=tmp_path).code == 0

        (tmp_path / place / "1.pth").unlink()
        done = inside("verify", place, "--sums", "sums", *more, cwd=tmp_path)

        assert done.code == 1
        assert (
            "ckpt: sums: not compared, no such checkpoint here: s/1.pth"
            in done.err.decode()
        )
        assert "3 files: 2 intact, 1 missing" in done.err.decode()

        torch.save({"w": torch.zeros(2)}, tmp_path / place / "new.pth")
        done = inside("verify", place, "--sums", "sums", *more, cwd=tmp_path)
        assert (
            done.code == 1
            and f"{place}/new.pth: damaged: not in sums" in done.out.decode()
        )


# --------------------------------------------------------------------------------------
# folders of results


@pytest.mark.parametrize("command", WRITERS)
def test_writers_keep_the_paths_below_a_folder(command: str, runs: Path) -> None:
    words = (command, "runs", *WRITERS[command])
    refused = inside(*words, "-o", "made", cwd=runs)
    assert (
        refused.code == 2
        and "(-r takes them all)" in refused.err.decode()
        and not (runs / "made").exists()
    )

    done = inside(*words, "-r", "-o", "made/new", cwd=runs)

    assert done.code == 2 and "page.pt: not a checkpoint" in done.err.decode()
    assert "1 file not looked at: 1 *.pkl" in done.err.decode()
    assert (runs / "made/new/.hidden.pth").exists()
    made = sorted(
        str(path.relative_to(runs / "made/new"))
        for path in (runs / "made").rglob("*.pth")
    )
    assert made == sorted(
        [
            ".hidden.pth",
            "deep/e1.pth",
            *(f"e{number}.pth" for number in (*range(9), 10)),
        ]
    )
    assert next(
        iter(torch.load(runs / "made/new/deep/e1.pth", weights_only=True).values())
    ).tolist() == [
        1,
        1,
    ]


@pytest.mark.parametrize("command", WRITERS)
def test_writers_name_what_they_do_not_open(command: str, runs: Path) -> None:
    (runs / "runs" / "again").symlink_to("deep")
    done = inside(command, "runs", *WRITERS[command], "-r", "-o", "made", cwd=runs)
    assert (
        "ckpt: runs/again: skipped: a link to a folder"
        in done.err.decode().splitlines()
    )


@pytest.mark.parametrize("command", ["ls", "lint", "verify"])
def test_folders_of_git_and_leftovers_are_not_opened(
    command: str, folder: Path
) -> None:
    for name in (".git", "sub/.git"):
        (folder / name).mkdir(parents=True)
        (folder / name / "inside.pth").write_bytes(b"no checkpoint")
    (folder / ".a.pth.1.ckpt-tmp").write_bytes((folder / "a.pth").read_bytes()[:99])
    done = inside(command, ".", cwd=folder)
    text = (done.out + done.err).decode()
    assert done.code != 2 and "inside" not in text
    assert "sub/.git: skipped: a folder of git" in text and "ckpt: .git" not in text
    assert (
        ".a.pth.1.ckpt-tmp: skipped: a leftover of a write that was interrupted" in text
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "lint", "verify", "inspect"])
def test_a_file_that_may_not_be_read_is_an_error(
    command: str, folder_of_all: Path
) -> None:
    """Its first bytes were taken for those of no checkpoint."""
    torch.save({"w": torch.ones(2)}, folder_of_all / "a.pth")
    torch.save({"w": torch.ones(2)}, folder_of_all / "secret")
    (folder_of_all / "secret").chmod(0)
    done = as_nobody(command, ".", cwd=folder_of_all)
    assert done.code == 2 and "secret" in (done.out + done.err).decode(), done
    assert "not looked at" not in done.err.decode()


def test_earlier_results_are_no_input(folder: Path) -> None:
    for expected in (3, 3):
        done = inside("slim", ".", "-r", "-o", "out", "--force", cwd=folder)
        assert (
            done.code == 0 and len(list((folder / "out").rglob("*.pth"))) == expected
        ), done
    assert not (folder / "out" / "out").exists()


def test_folders_whose_results_meet(folder: Path) -> None:
    done = inside("slim", ".", "sub", "-r", "-o", "new", cwd=folder)

    check_error(done, "new/a.pth: a.pth would be written there too")
    assert not (folder / "new").exists()
    (folder / "a.pth").unlink()
    assert inside("slim", ".", "sub", "-r", "-o", "new", cwd=folder).code == 0
    assert (folder / "new/a.pth").is_file() and (folder / "new/sub/a.pth").is_file()


def test_a_dry_run_makes_no_folder(folder: Path) -> None:
    done = inside("slim", "sub", "-r", "-o", "new", "--dry-run", cwd=folder)

    assert done.code == 0 and not (folder / "new").exists()


def test_the_result_of_a_recursive_run_is_a_folder(folder: Path) -> None:
    check_error(
        inside("slim", "sub", "-r", "-o", "b.pth", cwd=folder),
        "b.pth: not a folder, which -r asks for",
    )
    check_error(inside("slim", "sub", "-r", cwd=folder), "where to write? (-o dir)")
    assert (
        inside("slim", "a.pth", "-r", "-o", "new", cwd=folder).code == 0
        and (folder / "new/a.pth").is_file()
    )


def test_in_place_below_a_folder(runs: Path) -> None:
    before = (runs / "runs/deep/e1.pth").read_bytes()

    assert (
        inside("rename", "runs", "-r", "--sub", "s/l/m/", "--in-place", cwd=runs).code
        == 2
    )  # the web page
    assert "m.weight" in torch.load(runs / "runs/deep/e1.pth", weights_only=True)
    assert inside("rehome", "runs/deep", "-r", "--undo", cwd=runs).code == 0
    assert (runs / "runs/deep/e1.pth").read_bytes() == before


@pytest.mark.needs("folders")
def test_a_folder_that_is_a_checkpoint_has_a_result_with_an_ending(
    folder: Path,
) -> None:
    done = inside("slim", SAMPLES / "sharded", "a.pth", "-o", "out", cwd=folder)

    assert done.code == 0 and (folder / "out" / "sharded.safetensors").is_file(), done


@pytest.mark.parametrize("command", WRITERS)
def test_writers_take_a_list(command: str, folder: Path) -> None:
    (folder / "list").write_text("a.pth\nb.pth\n")

    done = inside(
        command, *WRITERS[command], "--files-from", "list", "-o", "out", cwd=folder
    )

    assert done.code == 0 and sorted(os.listdir(folder / "out")) == ["a.pth", "b.pth"]


class Pipe(io.StringIO):
    """A stream that knows what has left its buffer: an interrupt drops the rest."""

    arrived = ""

    def flush(self) -> None:
        self.arrived = self.getvalue()


def test_an_interrupt_says_what_was_not_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    plain, calls = slim.slim, []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise Signal
        return plain(*args, **options)

    pipe = Pipe()
    monkeypatch.setattr(slim, "slim", interrupted)
    monkeypatch.setattr(sys, "stdout", pipe)
    torch.save({"w": torch.ones(2)}, folder / "c.pth")
    with pytest.raises(Signal):
        program(["slim"])(
            ["slim", "a.pth", "b.pth", "c.pth", "-o", "out"], standalone_mode=False
        )

    talk = capsys.readouterr().err
    assert "stopped at b.pth, 1 of 3 before it are through; not begun: c.pth" in talk
    assert "wrote out/a.pth" in pipe.arrived
    assert os.listdir(folder / "out") == ["a.pth"]
    assert len(torch.load(folder / "out/a.pth", weights_only=True)) == 2


# --------------------------------------------------------------------------------------
# errors as documents


@pytest.mark.parametrize(
    ("command", "more"),
    [
        *((name, ()) for name in ("inspect", "ls", "get", "stats", "lint", "verify")),
        *((name, (*more, "--dry-run")) for name, more in WRITERS.items()),
        ("diff", ("weights.safetensors",)),
        ("warmstart", ("--into", "weights.safetensors", "--dry-run")),
    ],
)
@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("lfs_pointer.pth", "stand-in"),
        ("truncated.pth", "cut-off"),
        ("gone.pth", "not-opened"),
    ],
)
def test_an_unreadable_path_is_a_document(
    command: str, more: tuple[str, ...], file: str, code: str
) -> None:
    done = inside(command, file, *more, "--json", cwd=SAMPLES)
    document = json.loads(done.lines[0])
    if command == "verify" and code == "cut-off":  # whose verdict is about this file
        assert done.code == 1 and document["error"] is None
        return
    entry = document["files"][0] if command == "lint" else document

    assert done.code == 2 and len(done.lines) == 1
    assert (entry["path"] if command == "lint" else entry["file"]["path"]) == file
    assert entry["error"]["code"] == code and set(entry["error"]) == {
        "code",
        "message",
        "hint",
    }
    good = [word for word in more if word.startswith("weights")] or []
    read = inside(
        command,
        "weights.safetensors",
        *(good if command == "diff" else more),
        "--json",
        cwd=SAMPLES,
    )
    assert document["schema"] == json.loads(read.lines[0])["schema"], read


def test_verify_has_its_verdict_where_a_folder_holds_no_checkpoint(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.bin").write_text("no checkpoint\n")
    done = inside("verify", ".", "--json", cwd=tmp_path)
    (line,) = done.lines
    document = json.loads(line)

    assert done.code == 2 and document["schema"] == {
        "name": "ckpt.verify",
        "version": 2,
    }
    assert (
        document["verdict"] == "unreadable"
        and document["error"]["message"] == "no checkpoint in this folder"
    )


def test_a_folder_of_results_asks_for_their_format(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(SAMPLES / "legacy.pth", tmp_path / "runs")
    done = inside("convert", "-r", "runs", "-o", "out/", cwd=tmp_path)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith(
        b"ckpt: --format is missing: a folder of results names none (--format "
        b"torch-zip, "
    ), done


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in COMMANDS
        if {"--json", "--files-from"} <= {row.name for row in options_of(command)}
        and command not in ("ls", "lint")
    ],
)
def test_there_are_as_many_documents_as_the_help_says(
    command: str, tmp_path: Path
) -> None:
    names = {row.name: row.help for row in options_of(command)}
    assert names["--json"].startswith("Print one JSON document per PATH")
    words = [command, "legacy.pth", "weights.safetensors", "--json"]
    if "--output" in names:
        words += ["-o", str(tmp_path), "--dry-run"]
    if command == "rename":
        words += ["--sub", "s/^fc/head/"]
    if command == "convert":
        words += ["--format", "torch-zip"]
    done = inside(*words, cwd=SAMPLES)

    assert done.code == 0, done.err
    assert [json.loads(line)["schema"]["name"] for line in done.lines] == [
        "ckpt.rewrite" if "--output" in names else f"ckpt.{command}"
    ] * 2
