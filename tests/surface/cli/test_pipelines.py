"""Pipelines: nothing to check is green, and what is said on stdout, on stderr and with
-q is what a script needs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import oracle
import pytest
import torch
from inside import folder_of, inside
from process import TIMEOUT, ckpt, environment

pytestmark = oracle.QUIET


def save(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"fc.weight": torch.full((4, 4), float(number)), "fc.bias": torch.ones(4)},
            path,
        )


# --- nothing to check -----------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["inspect", "ls", "lint", "verify", "stats", "sum", "rehome", "slim"]
)
def test_an_empty_list_is_green(command: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\n")
    done = inside(command, "--files-from", "list", cwd=tmp_path)
    assert done.code == 0 and done.complaints[0].startswith(
        "ckpt: list: an empty list, nothing to "
    )
    assert inside(command, cwd=tmp_path).code == 2, (
        "no PATH and no list is a mistake, or an empty folder"
    )


@pytest.mark.parametrize("command", ["ls", "lint", "verify"])
def test_who_requires_a_checkpoint_gets_an_error(command: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("")
    done = inside(command, "--files-from", "list", "--require", cwd=tmp_path)
    problem = "ckpt: list: an empty list, and --require asks for a checkpoint"
    assert (done.code, done.complaints) == (2, [problem])


def test_a_folder_without_a_checkpoint_is_green_for_the_gate(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("hello")
    done = inside("lint", "docs", cwd=tmp_path)
    assert (done.code, done.complaints[0]) == (
        0,
        "ckpt: docs: skipped: no checkpoint in this folder",
    )
    done = inside("lint", "docs", "--require", cwd=tmp_path)
    assert (done.code, done.complaints[0]) == (
        2,
        "ckpt: docs: no checkpoint in this folder",
    )
    assert inside("lint", "gone", cwd=tmp_path).code == 2, (
        "a name that leads nowhere is a mistake"
    )


@pytest.mark.parametrize("content", ["", "hello"], ids=["empty", "other files"])
@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("inspect",),
        ("verify",),
        ("stats",),
        ("sum",),
        ("report", "-o", "page.html"),
        ("rehome", "--to", "cpu", "-o", "out"),
        ("rehome", "-r", "--to", "cpu", "-o", "out/"),
        ("slim", "-o", "out"),
        ("diff", "docs"),
        ("get",),
    ],
    ids=" ".join,
)
def test_a_folder_without_a_checkpoint_is_trouble_for_who_names_it(
    words: tuple[str, ...], content: str, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    if content:
        (tmp_path / "docs" / "a.txt").write_text(content)
    done = inside(words[0], "docs", *words[1:], cwd=tmp_path)
    assert done.code == 2 and any(
        "docs" in line for line in (*done.lines, *done.complaints)
    ), done


def test_the_report_of_nothing_is_whole(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("")
    done = inside(
        "lint", "--files-from", "list", "--output-format", "sarif", cwd=tmp_path
    )
    assert done.code == 0 and json.loads(done.out)["runs"][0]["results"] == []
    done = inside(
        "lint", "--files-from", "list", "--output-format", "junit", cwd=tmp_path
    )
    assert done.code == 0 and xml.fromstring(done.out) is not None


# --- what is said ---------------------------------------------------------------------


def test_quiet_names_damage(tmp_path: Path) -> None:
    save(tmp_path, "good.pt", "bad.pt")
    content = (tmp_path / "bad.pt").read_bytes()
    (tmp_path / "bad.pt").write_bytes(content[: len(content) // 2])
    done = inside("verify", "-q", "good.pt", "bad.pt", cwd=tmp_path)
    assert done.code == 1 and done.out == b""
    assert (
        done.complaints[0].startswith("ckpt: bad.pt: damaged: cut off")
        and "good.pt" not in done.err.decode()
    )


def test_the_hint_behind_a_list_can_be_pasted(tmp_path: Path) -> None:
    save(tmp_path, "runs/a.pt")
    (tmp_path / "runs" / "b.pt").write_bytes(b"PK\x03\x04")
    assert (
        "(unreadable: ckpt lint runs --level error)"
        in inside("ls", "runs", cwd=tmp_path).complaints[-1]
    )
    many = [str(number) for number in range(5)]
    for name in many:
        save(tmp_path, f"{name}/a.pt")
    assert (
        "(unreadable: ckpt lint PATH... --level error)"
        in inside("ls", "runs", *many, cwd=tmp_path).complaints[-1]
    )


def test_stdout_is_no_place_for_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, "a.pt")
    for command in ("slim", "rehome", "convert"):
        done = inside(command, "a.pt", "-o", "-", cwd=tmp_path)
        assert (
            done.code == 2
            and "-o -: the result is a file, and not stdout" in done.complaints[0]
        )
    assert os.listdir(tmp_path) == ["a.pt"]


def test_folders_above_the_result_are_made_on_request(tmp_path: Path) -> None:
    save(tmp_path, "a.pt")
    assert inside("slim", "a.pt", "-o", "new/deep/b.pt", cwd=tmp_path).code == 2
    assert (
        inside(
            "slim",
            "a.pt",
            "-o",
            "new/deep/b.pt",
            "--parents",
            "--dry-run",
            cwd=tmp_path,
        ).code
        == 0
    )
    assert not (tmp_path / "new").exists()
    assert (
        inside("slim", "a.pt", "-o", "new/deep/b.pt", "--parents", cwd=tmp_path).code
        == 0
    )
    assert (tmp_path / "new" / "deep" / "b.pt").exists()


def test_a_folder_of_checkpoints_is_a_list_as_json(tmp_path: Path) -> None:
    save(tmp_path, "runs/a.pt", "runs/b.pt")
    done = inside("inspect", "runs", "--json", cwd=tmp_path)
    documents = [json.loads(line) for line in done.lines]
    assert [row["schema"]["name"] for row in documents] == ["ckpt.ls", "ckpt.ls"]
    assert [row["path"] for row in documents] == ["runs/a.pt", "runs/b.pt"]


def test_hidden_names_are_proposed_to_who_types_a_dot(tmp_path: Path) -> None:
    save(tmp_path, ".cache/a.pt", "model_1.pt")
    assert "did you mean" not in inside("inspect", "cache", cwd=tmp_path).complaints[0]
    assert (
        "did you mean .cache?" in inside("inspect", ".cach", cwd=tmp_path).complaints[0]
    )
    assert (
        "did you mean model_1.pt?"
        in inside("inspect", "model_2.pt", cwd=tmp_path).complaints[0]
    )


# --- values without their dtypes ------------------------------------------------------


def test_values_are_compared_without_their_dtypes(tmp_path: Path) -> None:
    values = {
        "a": torch.randn(32, generator=torch.Generator().manual_seed(1)),
        "b": torch.arange(8.0),
    }
    torch.save(values, tmp_path / "32.pt")
    torch.save(
        {name: value.double() for name, value in values.items()}, tmp_path / "64.pt"
    )
    torch.save(
        {name: value.bfloat16() for name, value in values.items()}, tmp_path / "16.pt"
    )
    assert inside("diff", "32.pt", "64.pt", cwd=tmp_path).code == 1
    assert inside("diff", "32.pt", "64.pt", "--ignore-dtype", cwd=tmp_path).code == 0
    done = inside(
        "diff", "32.pt", "16.pt", "--ignore-dtype", "--name-only", cwd=tmp_path
    )
    assert done.code == 1 and [line.split()[-1] for line in done.lines] == ["a"]
    for one, two in (("32.pt", "16.pt"), ("16.pt", "32.pt")):
        close = (
            inside("diff", one, two, "--ignore-dtype", "--close", cwd=tmp_path).code
            == 0
        )
        left, right = (torch.load(tmp_path / name)["a"] for name in (one, two))
        torch.testing.assert_close(left, right, check_dtype=False)
        assert close, "the looser of both tolerances counts"
    assert (
        inside(
            "diff", "32.pt", "64.pt", "--ignore-dtype", "--structure", cwd=tmp_path
        ).code
        == 2
    )


# --- the largest first ----------------------------------------------------------------


def test_tensors_by_size(tmp_path: Path) -> None:
    sizes = {"small": 1, "large": 100, "middle": 10, "middle_too": 10}
    torch.save(
        {name: torch.ones(size) for name, size in sizes.items()}, tmp_path / "a.pt"
    )
    expected = ["large", "middle", "middle_too", "small"]
    done = inside("inspect", "a.pt", "--sort", "size", cwd=tmp_path)
    assert [line.split()[0] for line in done.lines[-4:]] == expected
    done = inside(
        "inspect", "a.pt", "--sort", "size", "--tsv", "--no-header", cwd=tmp_path
    )
    assert [line.split("\t")[0] for line in done.lines] == expected
    assert inside("inspect", "a.pt", "--sort", "sise", cwd=tmp_path).complaints == [
        "ckpt: --sort sise: not one of file size"
    ]
    torch.save({f"t{size}": torch.ones(size) for size in range(300)}, tmp_path / "b.pt")
    lines = inside("inspect", "b.pt", "--sort", "size", cwd=tmp_path).lines
    assert lines[-1].endswith("more (--all)") and not any(
        line.startswith("t0 ") for line in lines
    )
    lines = inside("inspect", "b.pt", "--sort", "size", "--all", cwd=tmp_path).lines
    assert lines[-1].startswith("t0 ")


# --- the files of a shell -------------------------------------------------------------


def test_completion_is_installed_where_there_is_a_home(tmp_path: Path) -> None:
    for home in ("", str(tmp_path / "gone")):
        done = ckpt("--install-completion", "bash", HOME=home)
        assert done.code == 2 and "no home folder to write to" in done.complaints[0], (
            home
        )
    assert not os.listdir(tmp_path)


def test_a_format_in_the_place_of_a_device_is_told(tmp_path: Path) -> None:
    save(tmp_path, "a.pt")
    for command in ("slim", "convert"):
        done = inside(
            command, "a.pt", "--to", "safetensors", "-o", "b.pt", cwd=tmp_path
        )
        assert (
            done.code == 2
            and "a format, and not a device (--format safetensors)"
            in done.complaints[0]
        )


# --- what a person types --------------------------------------------------------------


def specials(folder: Path) -> None:
    """A FIFO and a socket with the names of checkpoints, beside one, and a FIFO with
    another name.
    """
    save(folder, "good.pth")
    os.mkfifo(folder / "pipe.pth")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as one, folder_of(folder):
        one.bind("socket.pth")


@pytest.mark.parametrize(
    "command", ["ls", "inspect", "lint", "verify", "stats", "sum", "slim"]
)
def test_a_pipe_that_is_called_like_a_checkpoint_is_named_with_its_reason(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    specials(tmp_path / "runs")
    words = ("-r", "-o", "out/") if command == "slim" else ()
    done = inside(command, "runs", *words, cwd=tmp_path)
    assert done.code == 0, done
    said = [line for line in done.complaints if ": skipped: " in line]
    assert said == [
        "ckpt: runs/pipe.pth: skipped: not a regular file: a FIFO",
        "ckpt: runs/socket.pth: skipped: not a regular file: a socket",
    ]


@pytest.mark.parametrize("options", [(), ("--recorded",)], ids=["sums", "recorded"])
def test_sums_come_on_stdin(options: tuple[str, ...], tmp_path: Path) -> None:
    save(tmp_path, "a.pth")
    sums = inside("sum", "a.pth", *options, cwd=tmp_path).out
    assert ckpt("verify", "a.pth", "--sums", "-", cwd=tmp_path, input=sums).code == 0
    digit = re.search(rb"(?m)^(?:crc32:)?([0-9a-f])", sums)
    assert digit is not None
    at = digit.start(1)
    other = b"0" if sums[at : at + 1] != b"0" else b"1"
    done = ckpt(
        "verify",
        "a.pth",
        "--sums",
        "-",
        cwd=tmp_path,
        input=sums[:at] + other + sums[at + 1 :],
    )
    assert done.code == 1 and b"damaged" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--files-from", "-"), "--sums - reads stdin, and so does another -"),
        (("a.pth",), "ckpt: (stdin): holds no sums"),
    ],
)
def test_what_does_not_go_with_sums_on_stdin(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    save(tmp_path, "a.pth")
    done = ckpt("verify", *words, "--sums", "-", cwd=tmp_path, input=b"")
    assert done.code == 2 and said in done.err.decode() and len(done.complaints) == 1


def test_ls_alone_lists_the_current_folder(tmp_path: Path) -> None:
    save(tmp_path, "a.pth", "b.pth")
    done = inside("ls", cwd=tmp_path)
    assert (
        done.code == 0
        and done == inside("ls", ".", cwd=tmp_path)
        and b"a.pth" in done.out
    )
    (tmp_path / "list").write_text("")
    assert b"a.pth" not in inside("ls", "--files-from", "list", cwd=tmp_path).out, (
        "a list names all there is"
    )


@pytest.mark.parametrize("command", ["verify", "stats", "sum", "slim"])
def test_files_come_in_the_order_of_ls(command: str, tmp_path: Path) -> None:
    for name in (
        "b.pth",
        "a/x.pth",
        "c/y.pth",
        "run10/e.pth",
        "run2/e.pth",
        "last.pth",
    ):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        save(tmp_path, f"runs/{name}")
    rows = inside("ls", "runs", "--tsv", "--no-header", cwd=tmp_path).lines
    words = ("-r", "-o", "out/") if command == "slim" else ()
    done = inside(command, "runs", *words, cwd=tmp_path)
    seen = re.findall(r"(?:runs|wrote out)/(\S+?\.pth)", done.out.decode())
    listed = [row.split("\t")[0].removeprefix("runs/") for row in rows]
    assert list(dict.fromkeys(seen)) == listed
    given = [f"runs/{name}" for name in reversed(listed)]
    if command == "verify":
        done = inside(command, *given, cwd=tmp_path)
        assert [line.split(":")[0] for line in done.lines[: len(given)]] == given


def test_a_dot_is_the_root(tmp_path: Path) -> None:
    save(tmp_path, "a.pth")
    assert (
        inside("get", "a.pth", ".", "--json", cwd=tmp_path).out
        == inside("get", "a.pth", "--json", cwd=tmp_path).out
    )
    for words in (
        ("inspect", "a.pth"),
        ("stats", "a.pth"),
        ("sum", "a.pth"),
        ("diff", "a.pth", "a2.pth"),
        ("slim", "a.pth", "-o", "out.pth", "--dry-run"),
        ("rename", "a.pth", "--sub", "s/^/m./", "-o", "out.pth", "--dry-run"),
    ):
        save(tmp_path, "a2.pth")
        done = inside(*words, "--section", ".", cwd=tmp_path)
        assert (
            done == inside(*words, "--section", "", cwd=tmp_path) and done.code == 0
        ), done
    torch.save(
        {"model": {"w": torch.ones(2)}, "optimizer": {"state": {}, "param_groups": []}},
        tmp_path / "b.pth",
    )
    done = inside("stats", "b.pth", "--section", ".", cwd=tmp_path)
    assert done.code == 2 and "no section . (sections: model" in done.complaints[0]


def test_each_list_of_files_is_read(tmp_path: Path) -> None:
    """A second list was read instead of the first, so the damaged file of the first
    passed a gate.
    """
    for name in ("whole.pth", "cut.pth"):
        torch.save({"w": torch.ones(100)}, tmp_path / name)
    data = (tmp_path / "cut.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(data[: len(data) // 2])
    (tmp_path / "a.txt").write_text("cut.pth\n")
    (tmp_path / "b.txt").write_text("whole.pth\n")

    for command in ("lint", "verify", "stats", "sum", "inspect", "ls"):
        done = ckpt(
            command, "--files-from", "a.txt", "--files-from", "b.txt", cwd=tmp_path
        )
        assert done.code == (1 if command == "verify" else 2), command
        assert (
            b"cut.pth" in done.out + done.err
            and b"whole.pth" in done.out + done.err + b"whole.pth"
        ), command
    done = ckpt("lint", "--files-from", "-", "--files-from", "-", cwd=tmp_path)
    assert (
        done.code == 2
        and done.err == b"ckpt: --files-from -: given twice, and stdin is read once\n"
    )


def test_a_list_from_a_pipe_of_the_shell(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    program = f"{sys.executable} -m ckpt ls --tsv --no-header --no-summary --files-from"
    script = f"{program} <(echo a.pth); {program} /dev/null; {program} no.txt"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
    )
    assert done.stdout.startswith(b"a.pth\t") and done.stdout.count(b"\n") == 1
    assert done.stderr.splitlines() == [
        b"ckpt: /dev/null: an empty list, nothing to look at",
        b"ckpt: no.txt: no such file",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "verify a.pth --sums a --sums b",
        "verify a.pth --like a --like b",
        "slim a.pth -o b.pth -o c.pth",
        "inspect a.pth --section a --section b",
        "warmstart a.pth --into b --into c -o d.pth",
    ],
)
def test_what_is_read_or_written_is_named_once(words: str, tmp_path: Path) -> None:
    """The first was dropped without a word. Of settings the last one counts, as
    everywhere.
    """
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    done = ckpt(*words.split(), cwd=tmp_path)
    assert done.code == 2 and b"given 2 times, and takes one value\n" in done.err
    assert ckpt("ls", ".", "--sort", "size", "--sort", "name", cwd=tmp_path).code == 0
