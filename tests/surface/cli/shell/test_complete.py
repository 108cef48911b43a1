"""What a shell completes, asked as typer's functions for bash, zsh and fish ask."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from process import SAMPLES, TIMEOUT, check_error, ckpt, environment

from ckpt.model.findings import CATALOGUE
from ckpt.surface.cli import completion
from ckpt.surface.cli.options import OPTIONS


def completed(words: str, cwd: Path = SAMPLES) -> list[str]:
    """What bash is offered after `words`, whose last one is not complete."""
    place = str(len(words.split(" ")) - 1)
    done = ckpt(
        cwd=cwd, _CKPT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place
    )
    assert (done.code, done.err) == (0, b"")
    return done.out.decode().split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ckpt ins", ["inspect"]),
        ("ckpt inspect --col", ["--color"]),
        ("ckpt inspect --color ", ["auto", "always", "never"]),
        ("ckpt inspect --fail-on un", ["unassigned", "unpacked", "unfinished", "unfolds", "unknown-attribute", "unknown-import", "unknown-operator", "unused", "unread-file", "unverified-size"]),
        ("ckpt diff --fail-on d", ["differ"]),
        ("ckpt stats --fail-on in", ["inf"]),
        ("ckpt lint --level ", ["error", "warning", "info"]),
        ("ckpt lint --output-format s", ["sarif"]),
        ("ckpt lint --select cu", ["cuda"]),
        ("ckpt explain fro", ["frozen"]),
        ("ckpt rehome x.pth --to c", ["cpu", "cuda:0", "cuda:1"]),
        ("ckpt convert x.pth --format torch-", ["torch-zip", "torch-legacy"]),
        ("ckpt ls --sort ", ["name", "size", "params", "findings"]),
        ("ckpt inspect --table git", ["github"]),
        ("ckpt inspect train_cuda.pth --section ", ["model", "optimizer", "scaler", "scheduler"]),
        ((
            "ckpt inspect train_cuda.pth --include model.module.f"
        ), ["model.module.fc.weight", "model.module.fc.bias"]),
        ("ckpt get train_cuda.pth args.l", ["args.lr"]),
        ("ckpt get train_cuda.pth model.module.fc.w", ["model.module.fc.weight"]),
        ("ckpt get 'train_cuda.pth' epoch scaler.s", ["scaler.scale"]),
        ("ckpt inspect tr", []),  # the shell knows paths
        ("ckpt get none.pth e", []),
        ("ckpt get truncated.pth e", []),
        ("ckpt get html_page.pth e", []),
        ("ckpt get ", []),
    ],
)  # fmt: skip
def test_bash(words: str, offered: list[str]) -> None:
    assert sorted(completed(words)) == sorted(offered)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str) -> None:
    variables = {
        "_TYPER_COMPLETE_ARGS": "ckpt get train_cuda.pth args.l",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = ckpt(cwd=SAMPLES, _CKPT_COMPLETE=f"complete_{shell}", **variables)

    assert done.err == b"" and re.findall(rb"[a-z.]+\.[a-z]+", done.out) == [b"args.lr"]


def test_names_that_a_shell_would_run_are_not_offered(tmp_path: Path) -> None:
    evil = [
        "$(touch x)",
        "`touch x`",
        "\\$(touch x)",
        "a;b",
        "-rf",
        "a b",
        "a*",
        "a'b",
        "a\nb",
        "é",
    ]
    torch.save(
        {"fine.weight": torch.ones(1), **dict.fromkeys(evil, torch.ones(1))},
        tmp_path / "a.pt",
    )
    torch.save(dict.fromkeys(evil, 1), tmp_path / "b.pt")

    assert completed("ckpt inspect a.pt --include ", tmp_path) == ["fine.weight"]
    assert completed("ckpt get b.pt ", tmp_path) == []


def test_names_are_few(tmp_path: Path) -> None:
    torch.save({f"w{number}": number for number in range(1000)}, tmp_path / "a.pt")

    assert completed("ckpt get a.pt w", tmp_path) == [
        f"w{number}" for number in range(completion.MOST)
    ]


def test_a_file_that_takes_long_is_silent(tmp_path: Path) -> None:
    code = """
import os, sys, threading
from ckpt import formats
from ckpt.surface.cli import completion
from ckpt.__main__ import main
completion.PATIENCE = 0.01
formats.open = lambda *a, **k: threading.Event().wait(600)
main()
"""
    variables = {
        "_CKPT_COMPLETE": "complete_bash",
        "COMP_WORDS": "ckpt get train_cuda.pth e",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**variables), cwd=SAMPLES, capture_output=True, timeout=TIMEOUT
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_choice_is_one_of_the_help() -> None:
    """What the table offers is what the option takes, and it stands in its help."""
    for row in OPTIONS:
        if row.name not in ("--to", "--output-format"):
            unsaid = [word for word in row.words if word not in row.help]
            assert unsaid == [], f"the help of {row.name} names all of its `words`"


@pytest.mark.parametrize(
    "device", next(row.words for row in OPTIONS if row.name == "--to")
)
def test_every_device_is_taken(device: str) -> None:
    assert (
        ckpt("rehome", "train_cuda.pth", "--to", device, "--dry-run", cwd=SAMPLES).code
        == 0
    )


def test_every_code_is_taken() -> None:
    for command in ("inspect", "stats", "diff", "lint", "ls"):
        codes = completed(f"ckpt {command} --fail-on ")
        files = ["ddp_before.pth", "ddp_before.pth"][: 2 if command == "diff" else 1]
        values = ["--read-values"] if command == "lint" else []
        words = (command, *files, "--fail-on", ",".join(codes), *values)
        assert ckpt(*words, cwd=SAMPLES).code in (0, 1)
        assert len(codes) > 4 and set(codes) - set(CATALOGUE) <= {
            "error",
            "warning",
            "any",
            "differ",
        }


def test_the_function_of_bash_completes(tmp_path: Path) -> None:
    """The script of `ckpt completion` in a bash of its own, asked as by the Tab key."""
    program = tmp_path / "ckpt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ckpt "$@"\n')
    program.chmod(0o755)
    script = ckpt("completion", "bash").out.decode()
    ask = """
COMP_WORDS=(ckpt get train_cuda.pth args.l) COMP_CWORD=3
_ckpt_completion ckpt
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}"],
        cwd=SAMPLES,
        env=environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        timeout=TIMEOUT,
    )

    assert (done.stdout, done.stderr) == (b"args.lr\n", b"")


def test_install_and_show(tmp_path: Path) -> None:
    variables = {
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        "HOME": str(tmp_path),
    }
    shown = ckpt("--show-completion", "bash", cwd=tmp_path, **variables)
    installed = ckpt("--install-completion", "bash", cwd=tmp_path, **variables)

    assert shown.code == 0 and b"_CKPT_COMPLETE=complete_bash" in shown.out
    assert installed.code == 0 and "bash" in installed.out.decode()
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert (
        any("_CKPT_COMPLETE=complete_bash" in text for text in files)
        and (tmp_path / ".bashrc").exists()
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_typer_prints(shell: str) -> None:
    typer = ckpt(
        "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    done = ckpt("completion", shell)

    assert (done.code, done.err) == (0, b"") and done.out.strip() == typer.out.strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["completion"],
            "completion: shell is missing (ckpt completion bash|zsh|fish)",
        ),
        (["completion", "bsah"], "not one of bash zsh fish (did you mean bash?)"),
        (
            ["completion", "https://a:secret@b/c"],
            "https://b/c: not one of bash zsh fish",
        ),
        (["completion", "bash", "zsh"], "zsh is too much"),
        (["completions", "bash"], "did you mean ckpt completion?"),
    ],
)
def test_completion_of_a_shell_that_is_none(words: list[str], says: str) -> None:
    check_error(ckpt(*words), says)


def test_completion_is_in_the_help() -> None:
    assert b"completion  " in ckpt("--help").out
    assert ckpt("completion", "--help").out == ckpt("help", "completion").out != b""
