"""The commands that write, as a user runs them: several files, forms, hints, in place,
on a terminal.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import rewriting
import torch
from inside import inside
from process import SAMPLES, TIMEOUT, check_error, ckpt, environment, terminal
from torch import nn

COMMANDS = ("rehome", "strip", "rename", "slim", "convert")


def cuda(path: Path, **options: bool) -> Path:
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: "cuda:0"
    ):
        return rewriting.saved(nn.Linear(2, 2).state_dict(), path, **options)


def tags(path: Path) -> set[str]:
    rows = ckpt("inspect", path, "--json").out
    return set(json.loads(rows)["totals"]["devices"])


def test_several_files_into_a_folder(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        cuda(tmp_path / name)
    (tmp_path / "broken.pth").write_bytes(b"nothing")
    (tmp_path / "out").mkdir()

    done = ckpt("rehome", "a.pth", "broken.pth", "b.pth", "-o", "out", cwd=tmp_path)

    assert (
        done.code == 2
        and len(done.complaints) == 1
        and done.complaints[0].startswith("ckpt: broken.pth: ")
    )
    assert sorted(os.listdir(tmp_path / "out")) == ["a.pth", "b.pth"]
    assert tags(tmp_path / "out" / "a.pth") == {"cpu"}


def test_several_files_in_place_one_document_a_line(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        cuda(tmp_path / name)

    done = ckpt("rehome", "a.pth", "b.pth", "--in-place", "--json", cwd=tmp_path)

    documents = [json.loads(line) for line in done.lines]
    assert [row["input"]["path"] for row in documents] == ["a.pth", "b.pth"]
    assert all(
        row["output"]["appended"] > 0 and row["verified"]["structure"] >= 0
        for row in documents
    )
    assert tags(tmp_path / "a.pth") == {"cpu"}


def test_several_files_need_a_folder(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        cuda(tmp_path / name)

    check_error(
        ckpt("rehome", "a.pth", "b.pth", "-o", "c.pth", cwd=tmp_path),
        "not a folder, and there are several",
    )
    for out in ("out", "out/"):
        check_error(
            ckpt("rehome", "a.pth", "b.pth", "-o", out, cwd=tmp_path),
            f"{out}: not a folder, and there are several paths (mkdir -p out)",
        )
    (tmp_path / "out").touch()
    done = ckpt("rehome", "a.pth", "b.pth", "-o", "out", cwd=tmp_path)
    assert "mkdir" not in check_error(done, "not a folder, and there are several")
    check_error(
        ckpt("rehome", "a.pth", "b.pth", cwd=tmp_path),
        "where to write? (-o dir, or --in-place)",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_parents_makes_the_folder_of_results(command: str, tmp_path: Path) -> None:
    options = {
        "rename": ["--sub", "s/weight/w/"],
        "convert": ["--format", "safetensors"],
    }.get(command, [])
    for name in ("a.pth", "b.pth"):
        cuda(tmp_path / name)
    ending = "safetensors" if command == "convert" else "pth"

    for out in ("one/two", "three/"):
        done = ckpt(
            command, "a.pth", "b.pth", *options, "-o", out, "--parents", cwd=tmp_path
        )
        assert done.code == 0, done.err
        made = sorted(os.listdir(tmp_path / out))
        assert made == [f"a.{ending}", f"b.{ending}"]
    done = ckpt(command, "a.pth", *options, "-o", "four/", "--parents", cwd=tmp_path)
    assert done.code == 0, done.err
    assert os.listdir(tmp_path / "four") == [f"a.{ending}"]
    (tmp_path / "taken").touch()
    for out in (f"c.{ending}", "taken"):
        check_error(
            ckpt(
                command,
                "a.pth",
                "b.pth",
                *options,
                "-o",
                out,
                "--parents",
                cwd=tmp_path,
            ),
            "not a folder, and there are several",
        )


@pytest.mark.parametrize(
    "options",
    [["--in-place", "-o", "x.pth"], ["--copy"], ["--verify", "md5", "-o", "x.pth"]],
)
def test_options_that_contradict(options: list[str], tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")

    check_error(ckpt("rehome", "a.pth", *options, cwd=tmp_path))
    assert os.listdir(tmp_path) == ["a.pth"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--undo", "--to", "cpu"], "--undo goes alone"),
        (
            ["--to", "gpu", "-o", "x.pth"],
            "gpu: not a device that torch knows (did you mean cuda:0?)",
        ),
        (["--to", "cpu:0", "-o", "x.pth"], "cpu has no number"),
        (["--map", "cuda:0", "-o", "x.pth"], "not from=to (as in cuda:0=cuda:1)"),
    ],
)
def test_what_rehome_does_not_take(
    options: list[str], says: str, tmp_path: Path
) -> None:
    cuda(tmp_path / "a.pth")

    check_error(ckpt("rehome", "a.pth", *options, cwd=tmp_path), says)


def test_a_ready_line_for_every_command(tmp_path: Path) -> None:
    cuda(tmp_path / "my model.pth")
    lines = {
        "rehome": ("-o 'my model.cpu.pth', or --in-place", []),
        "strip": ("-o 'my model.stripped.pth', or --in-place", []),
        "rename": ("-o 'my model.renamed.pth', or --in-place", ["--sub", "s/a/b/"]),
        "slim": ("-o 'my model.slim.pth'", []),
        "convert": ("-o 'my model.safetensors'", []),
    }
    for command, (hint, options) in lines.items():
        check_error(
            ckpt(command, "my model.pth", *options, cwd=tmp_path),
            f"where to write? ({hint})",
        )
    check_error(
        ckpt("rehome", "my model.pth", "--to", "cuda:1", cwd=tmp_path),
        "'my model.cuda1.pth'",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does(command: str) -> None:
    done = ckpt(command, "--help-all")

    assert done.code == 0 and done.lines[0].startswith(
        f"Usage: ckpt {command} [OPTIONS] [PATH...]"
    )
    assert all(
        option in done.out.decode()
        for option in ("--dry-run", "--force", "--json", "--verify", "--limit")
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name", ["truncated.pth", "html_page.pth", "lfs_pointer.pth", "no_such.pth", "."]
)
def test_files_that_cannot_be_read(command: str, name: str, tmp_path: Path) -> None:
    options = ["--sub", "s/a/b/"] if command == "rename" else []

    line = check_error(
        ckpt(command, name, *options, "-o", tmp_path / "out.pth", cwd=SAMPLES)
    )

    assert line.startswith(f"ckpt: {name}: ") and os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_writes_nothing(command: str, tmp_path: Path) -> None:
    source = tmp_path / "a.pth"
    rewriting.saved(
        {"model": nn.DataParallel(nn.Linear(2, 2)).state_dict(), "epoch": 3}, source
    )
    before = source.read_bytes()
    options = {
        "rename": ["--sub", "s/weight/w/"],
        "convert": ["--format", "safetensors"],
    }.get(command, [])

    done = ckpt(command, source, *options, "--dry-run")
    document = json.loads(ckpt(command, source, *options, "--dry-run", "--json").out)

    assert done.code == 0 and done.lines[-1] == "nothing was written (--dry-run)"
    assert (
        document["dry_run"] is True
        and document["output"] is None
        and document["verified"] is None
    )
    assert os.listdir(tmp_path) == ["a.pth"] and source.read_bytes() == before


def test_in_place_twice_is_once(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")
    assert ckpt("rehome", "a.pth", "--in-place", cwd=tmp_path).code == 0
    once = (tmp_path / "a.pth").read_bytes()

    done = ckpt("rehome", "a.pth", "--in-place", cwd=tmp_path)

    assert done.code == 0 and done.lines == [
        "a.pth: nothing to move: all tensors are on cpu"
    ]
    assert (tmp_path / "a.pth").read_bytes() == once


def test_a_whole_rewrite_leaves_no_dead_bytes(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")
    assert ckpt("rehome", "a.pth", "--in-place", cwd=tmp_path).code == 0
    assert (
        ckpt(
            "rehome", "a.pth", "--to", "mps", "--in-place", "--copy", cwd=tmp_path
        ).code
        == 0
    )

    data = (tmp_path / "a.pth").read_bytes()
    assert b"cuda" not in data and data.count(b"PK\5\6") == 1
    assert tags(tmp_path / "a.pth") == {"mps"}


def test_a_legacy_file_in_place_is_written_anew(tmp_path: Path) -> None:
    source = cuda(tmp_path / "a.pth", _use_new_zipfile_serialization=False)

    done = ckpt("rehome", "a.pth", "--in-place", cwd=tmp_path)

    assert done.code == 0 and done.lines[-1].startswith("wrote a.pth")
    assert torch.load(source)["bias"].device.type == "cpu"


def test_a_second_checkpoint_behind_the_first_is_not_dropped_in_silence(
    tmp_path: Path,
) -> None:
    first = cuda(tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    first.write_bytes(first.read_bytes() * 2)

    done = ckpt("rehome", "a.pth", "-o", "b.pth", cwd=tmp_path)

    assert any(
        line.startswith("left out: (unread): a second checkpoint begins at byte")
        for line in done.lines
    )
    before = first.read_bytes()
    check_error(
        ckpt("rehome", "a.pth", "--in-place", cwd=tmp_path),
        "in place, this would be lost: a second checkpoint",
    )
    assert first.read_bytes() == before


def test_shards_of_pickles_become_one_file(tmp_path: Path) -> None:
    state = nn.Linear(4, 3).state_dict()
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: "cuda:1"
    ):
        for number, (name, value) in enumerate(state.items(), 1):
            torch.save(
                {name: value}, tmp_path / f"pytorch_model-{number:05}-of-00002.bin"
            )
    index = {
        "weight_map": {
            name: f"pytorch_model-{n:05}-of-00002.bin"
            for n, name in enumerate(state, 1)
        }
    }
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    assert (
        ckpt("rehome", tmp_path, "-o", tmp_path / "one.pth", "--verify", "torch").code
        == 0
    )
    check_error(
        ckpt("rehome", tmp_path, "--in-place"), "cannot be changed in place (-o out)"
    )

    found = torch.load(tmp_path / "one.pth")
    assert all(torch.equal(found[name], value) for name, value in state.items())


@pytest.mark.parametrize("name", ["b.pth", "b.safetensors"])
def test_torch_verifies_tied_tensors_under_all_their_names(
    name: str, tmp_path: Path
) -> None:
    """safetensors holds the bytes of a tie once: the other name stands in the metadata,
    and load_file does not give it.
    """
    weight = torch.randn(4, 3)
    torch.save(
        {"emb.weight": weight, "fc.bias": torch.ones(2), "head.weight": weight},
        tmp_path / "a.pth",
    )

    done = inside("convert", "a.pth", "-o", name, "--verify", "torch", cwd=tmp_path)
    assert done.code == 0 and "torch verified in" in done.lines[-1], done
    again = inside("convert", name, "-o", "c.pth", "--verify", "torch", cwd=tmp_path)
    assert again.code == 0 and "torch verified in" in again.lines[-1], again
    found = torch.load(tmp_path / "c.pth")
    assert (
        torch.equal(found["emb.weight"], weight)
        and found["emb.weight"].data_ptr() == found["head.weight"].data_ptr()
    )


@pytest.mark.parametrize("how", ["crc", "torch"])
def test_further_checks(how: str, tmp_path: Path) -> None:
    for name in (
        "train_cuda.pth",
        "legacy.pth",
        "weights.safetensors",
        "tied_and_bloated.pth",
    ):
        done = inside(
            "rehome", name, "-o", tmp_path / name, "--verify", how, cwd=SAMPLES
        )
        made = (
            "crc" if name == "train_cuda.pth" else how
        )  # torch loads it with weights_only=False alone
        assert done.code == 0 and f"{made} verified in" in done.lines[-1], done


@pytest.mark.parametrize("name", ["train_cuda.pth", "whole_model.pth", "objects.pth"])
def test_torch_never_loads_a_file_that_needs_more_than_weights(
    name: str, tmp_path: Path
) -> None:
    done = inside(
        "rehome",
        name,
        "-o",
        tmp_path / "x.pth",
        "--to",
        "cuda:1",
        "--verify",
        "torch",
        cwd=SAMPLES,
    )

    assert done.code == 0 and "crc verified in" in done.lines[-1]
    said = (
        f"ckpt: {tmp_path / 'x.pth'}: torch did not load it, because that needs "
        "weights_only=False; "
    )
    assert done.complaints[-1] == said + "every byte was compared instead"


def test_text_of_a_file_is_printed_safely(tmp_path: Path) -> None:
    state = {
        "module.\x1b[31mred\n.weight": torch.ones(1),
        "module.b.weight": torch.ones(1),
    }
    rewriting.saved({"model": state, "e\x1bpoch": "\u202e3"}, tmp_path / "a.pth")

    for arguments in (
        ("rename", "a.pth", "--sub", "s/module/m/", "-o", "b.pth"),
        ("slim", "a.pth", "-o", "c.pth"),
    ):
        done = ckpt(*arguments, cwd=tmp_path)
        assert (
            done.code == 0
            and b"\x1b" not in done.out
            and "\u202e" not in done.out.decode()
        )


def test_on_a_terminal() -> None:
    shown = terminal("rehome", "train_cuda.pth", "--dry-run", NO_COLOR="1")

    assert shown.splitlines() == [
        "cuda:0 → cpu   92 storages, 46.2 KiB",
        "cuda:1 → cpu   23 storages, 92 B",
        "left alone: args.device = device('cuda:0')  (--objects to change it)",
        "nothing was written (--dry-run)",
    ]


def test_a_bar_is_shown_for_long_work_only(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from ckpt.surface.cli import output\n"
        "with output.progress('copying', 100) as advance:\n"
        "    print('none' if advance is None else 'bar')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.stdout == "none\n" and ran.stderr == ""


def test_the_reader_of_the_pipe_goes_away(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-m", "ckpt", "rehome", "a.pth", "-o", "b.pth"],
        cwd=tmp_path,
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT,
    )
    os.close(write)
    assert ran.returncode == 141 and ran.stderr == b"" and (tmp_path / "b.pth").exists()


def test_an_ending_that_says_another_format(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")

    for arguments in (
        ("convert", "a.pth", "--format", "torch-zip", "-o", "x.safetensors"),
        ("convert", "a.pth", "--format", "safetensors", "-o", "x.pth"),
        ("convert", "a.pth", "--shard-size", "1KB", "-o", "x.pth"),
    ):
        check_error(ckpt(*arguments, cwd=tmp_path), "this ending is not of")
    assert os.listdir(tmp_path) == ["a.pth"]


def test_an_ending_that_the_command_cannot_keep(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")
    assert ckpt("slim", "a.pth", "-o", "b.pth", cwd=tmp_path).code == 0
    assert ckpt("convert", "b.pth", "-o", "b.safetensors", cwd=tmp_path).code == 0

    for command, source, out, stays in (
        ("slim", "b.safetensors", "my w.pth", "'my w.safetensors'"),
        ("rehome", "b.safetensors", "v.pt", "v.safetensors"),
        ("rehome", "a.pth", "u.safetensors", "u.pth"),
    ):
        done = ckpt(command, source, "-o", out, cwd=tmp_path)
        format = "safetensors" if out.endswith(("pt", "pth")) else "torch-zip"
        check_error(
            done,
            (
                f"{out}: this ending does not fit: the result stays {format} (-o "
                f"{stays}; convert "
            ),
        )
        assert (
            ckpt(command, source, "-o", shlex.split(stays)[0], cwd=tmp_path).code == 0
        )


def test_hints_can_be_pasted(tmp_path: Path) -> None:
    cuda(tmp_path / "my model.pth")
    done = ckpt("rehome", "my model.pth", "--in-place", cwd=tmp_path)
    assert "(to take it back: ckpt rehome --undo 'my model.pth')" in done.lines[-1]
    with (tmp_path / "my model.pth").open("r+b") as file:
        file.truncate((tmp_path / "my model.pth").stat().st_size - 5)
    check_error(
        ckpt("inspect", "my model.pth", cwd=tmp_path),
        "(ckpt rehome --undo --dry-run 'my model.pth')",
    )
    check_error(
        ckpt("convert", "my model.pth", "--plain", cwd=tmp_path),
        "rewrite was interrupted",
    )
    cuda(tmp_path / "my model.pth")
    check_error(
        ckpt("convert", "my model.pth", "--plain", cwd=tmp_path),
        "where to write? (-o 'my model.plain.pth')",
    )


@pytest.mark.parametrize("to", ["a.pth", "link.pth", "hard.pth", "folder"])
@pytest.mark.parametrize("command", [*COMMANDS, "warmstart"])
def test_no_command_replaces_its_source(command: str, to: str, tmp_path: Path) -> None:
    state = {
        "model": {"module.weight": torch.ones(2, 2), "module.bias": torch.ones(2)},
        "epoch": 3,
    }
    source = rewriting.saved(state, tmp_path / "a.pth")
    rewriting.saved({"weight": torch.zeros(2, 2)}, tmp_path / "p.pth")
    (tmp_path / "link.pth").symlink_to("a.pth")
    os.link(source, tmp_path / "hard.pth")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.pth").symlink_to(source)
    more = {
        "rename": ["--sub", "s/weight/w/"],
        "convert": ["--format", "torch-legacy"],
    }.get(command, [])
    named = ["p.pth", "--into", "a.pth"] if command == "warmstart" else ["a.pth"]
    before = source.read_bytes()

    for further in ((), ("--dry-run",)):
        done = inside(
            command, *named, *more, "-o", to, "--force", *further, cwd=tmp_path
        )

        way = (
            "--in-place"
            if command in ("rehome", "strip", "rename")
            else "-o another file"
        )
        check_error(done, f"out is the source, which --force does not replace ({way})")
    assert source.read_bytes() == before
    if way == "--in-place":
        assert inside(command, *named, *more, "--in-place", cwd=tmp_path).code == 0


def test_the_way_out_of_a_source_is_one_that_works(tmp_path: Path) -> None:
    cuda(tmp_path / "a.pth")
    shards = {"a.weight": torch.ones(100), "b.weight": torch.ones(100)}
    rewriting.saved(shards, tmp_path / "s.pth")
    index, shard = "m.safetensors.index.json", "m-00002-of-00002.safetensors"
    made = ("convert", "s.pth", "-o", "m.safetensors", "--shard-size", "400")
    assert inside(*made, cwd=tmp_path).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    strip = ("strip", index, "--prefix", "a.")

    for arguments, says in (
        ((*strip, "-o", shard), "(-o another file)"),
        (
            ("convert", index, "--format", "safetensors", "-o", index),
            "(-o another file)",
        ),
        (
            ("convert", index, "-o", "m.safetensors", "--shard-size", "300"),
            "(-o in another folder)",
        ),
        (
            ("convert", index, "-o", "m.safetensors", "--shard-size", "5GB"),
            "(-o in another folder)",
        ),
        (("warmstart", "s.pth", "--into", index, "-o", "s.pth"), "out is pretrained"),
    ):
        check_error(inside(*arguments, "--force", cwd=tmp_path), says)
        assert {
            path.name: path.read_bytes() for path in tmp_path.iterdir()
        } == before, arguments


@pytest.mark.parametrize("name", ["--shard-size", "--max-shard-size"])
def test_the_size_of_shards_has_the_name_of_save_pretrained_too(
    name: str, tmp_path: Path
) -> None:
    rewriting.saved(
        {"a.weight": torch.ones(100), "b.weight": torch.ones(100)}, tmp_path / "s.pth"
    )

    done = inside("convert", "s.pth", "-o", "m.safetensors", name, "400", cwd=tmp_path)

    assert done.code == 0 and len(list(tmp_path.glob("m-*.safetensors"))) == 2


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("link", ["out/sub", "out/sub/a.pth"])
def test_no_result_goes_through_a_link_in_out(
    link: str, force: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "outside").mkdir()
    cuda(tmp_path / "src/sub/a.pth")
    if link == "out/sub":
        (tmp_path / link).symlink_to(tmp_path / "outside")
    else:
        (tmp_path / "outside/a.pth").write_bytes(b"precious")
        (tmp_path / "out/sub").mkdir()
        (tmp_path / link).symlink_to(tmp_path / "outside/a.pth")
    before = [path.read_bytes() for path in (tmp_path / "outside").iterdir()]

    done = ckpt("rehome", "-r", "src", "-o", "out", *force, cwd=tmp_path)

    text = f"ckpt: {link}: a link in OUT, through which no result is written"
    assert done.code == 2 and done.complaints[0].startswith(text)
    assert [path.read_bytes() for path in (tmp_path / "outside").iterdir()] == before


def test_in_place_changes_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "outside").mkdir()
    file = cuda(tmp_path / "outside/a.pth")
    (tmp_path / "runs/link.pth").symlink_to(file)
    cuda(tmp_path / "runs/b.pth")
    before = file.read_bytes()

    done = ckpt("rehome", "-r", "runs", "--in-place", cwd=tmp_path)

    text = "ckpt: runs/link.pth: a link out of the folder, which -r does not change"
    assert done.code == 2 and done.complaints[0].startswith(text)
    assert file.read_bytes() == before
    # A link that stays inside is a name of the file.
    (tmp_path / "runs/link.pth").unlink()
    (tmp_path / "runs/link.pth").symlink_to("b.pth")
    assert ckpt("rehome", "-r", "runs", "--in-place", cwd=tmp_path).code == 0
    assert tags(tmp_path / "runs/b.pth") == {"cpu"}
