"""Names of files on the command line and in lists: none becomes an option, and none is
lost.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from inside import inside
from process import SAMPLES, check_error, ckpt

from ckpt.surface.cli.app import COMMANDS


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name",
    ["--help", "-h", "--json", "--force", "-x", "--model=evil.py:build", "--in-place"],
)
def test_an_option_that_is_a_file_too_is_refused(
    command: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).touch()

    done = inside(command, name, cwd=tmp_path)
    check_error(
        done,
        (
            f"{name.lower()}: is an option, and the name of a file here "
            f"(./{name.lower()} or -- before names)"
        ),
    )
    done = inside("--", command, name, cwd=tmp_path)
    check_error(done, "is an option, and the name of a file here")


@pytest.mark.parametrize("command", ["inspect", "lint", "verify", "sum", "stats", "ls"])
def test_a_file_that_is_called_like_an_option_is_read(
    command: str, tmp_path: Path
) -> None:
    shutil.copy(SAMPLES / "weights.safetensors", tmp_path / "--help")

    assert inside(command, "--", "--help", cwd=tmp_path).code == 0
    assert inside(command, "./--help", cwd=tmp_path).code == 0


def test_a_link_that_leads_nowhere_is_a_name_too(tmp_path: Path) -> None:
    (tmp_path / "--ignore=called-on-load").symlink_to("nowhere")

    check_error(
        inside("lint", "--ignore=called-on-load", cwd=tmp_path),
        "the name of a file here",
    )


def test_an_option_without_a_file_is_an_option(tmp_path: Path) -> None:
    assert (
        inside(
            "lint",
            SAMPLES / "hostile.pth",
            "--ignore=called-on-load,weights-only",
            cwd=tmp_path,
        ).code
        == 0
    )


@pytest.mark.parametrize(
    "name", ["--ignore=called-on-load", "-", " ", "#x", "@x", "'x'", " x ", "~"]
)
@pytest.mark.parametrize("end", ["\n", "\0"])
def test_a_name_of_a_list_is_a_name(name: str, end: str, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / name)
    (tmp_path / "list").write_text(f"{name}{end}")

    done = ckpt("lint", "--files-from", "list", "--level", "error", cwd=tmp_path)
    assert done.code == 1 and b"posix.system" in done.out, done


@pytest.mark.parametrize("command", ["lint", "verify", "inspect", "ls"])
def test_a_folder_that_is_called_like_the_home_of_a_user(
    command: str, tmp_path: Path
) -> None:
    for place in ("~", "~root", "home"):
        (tmp_path / place).mkdir()
    for name in ("~/x.pth", "~root/x.pth"):
        shutil.copy(SAMPLES / "hostile.pth", tmp_path / name)
        (tmp_path / "home" / "x.pth").write_text("no checkpoint")

        done = ckpt(command, name, cwd=tmp_path, HOME=str(tmp_path / "home"))
        assert b"posix.system" in done.out or b"RUNS CODE" in done.out, done


def test_the_home_of_the_user_is_found(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "x.pth")
    (tmp_path / "inner").mkdir()

    done = ckpt("lint", "~/x.pth", cwd=tmp_path / "inner", HOME=str(tmp_path))
    assert b"posix.system" in done.out, done


def test_an_index_hides_no_file_that_it_does_not_open(tmp_path: Path) -> None:
    """The first index names it outside of its weight_map, the second is no index."""
    good, evil = "good-00001-of-00001.safetensors", "evil-00001-of-00002.bin"
    shutil.copy(SAMPLES / "weights.safetensors", tmp_path / good)
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / evil)
    names = [
        row["name"]
        for row in json.loads(ckpt("inspect", good, "--json", cwd=tmp_path).out)[
            "tensors"
        ]
    ]
    weight_map = dict.fromkeys(names, good)
    for index in (
        {"metadata": {"note": evil}, "weight_map": weight_map},
        {"metadata": {}, "weight_map": weight_map, "weight_map_2": {"a": evil}},
        {"metadata": {}, "weight_map": weight_map, evil: 1},
    ):
        (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))

        done = ckpt("lint", ".", "--level", "error", cwd=tmp_path)
        assert done.code == 1 and evil.encode() in done.out, done
