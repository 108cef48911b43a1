"""Each command in a Python of its own: it finds all that it imports, and does what it
does in the forks of the other tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from needs import all_commands
from process import SAMPLES, alone, ckpt

RUNS = {
    "inspect": ("inspect", "train_cuda.pth"),
    "ls": ("ls", "train_cuda.pth", "legacy.pth"),
    "get": ("get", "train_cuda.pth", "epoch"),
    "diff": ("diff", "ddp_before.pth", "ddp_after.pth", "--stat"),
    "stats": ("stats", "train_cuda.pth"),
    "report": ("report", "train_cuda.pth", "legacy.pth", "-o", "out.html"),
    "explain": ("explain", "cuda"),
    "recipe": ("recipe", "compiled.pth", "legacy.pth", "-o", "out.json"),
    "lint": ("lint", "train_cuda.pth", "--json"),
    "verify": ("verify", "train_cuda.pth", "weights.safetensors"),
    "sum": ("sum", "train_cuda.pth"),
    "rehome": ("rehome", "train_cuda.pth", "-o", "out.pth"),
    "strip": ("strip", "ddp_after.pth", "-o", "out.pth"),
    "rename": ("rename", "ddp_after.pth", "--sub", "s/^module[.]//", "-o", "out.pth"),
    "set": ("set", "train_cuda.pth", "epoch=0", "-o", "out.pth"),
    "slim": ("slim", "train_cuda.pth", "-o", "out.pth"),
    "convert": ("convert", "train_cuda.pth", "--dtype", "bfloat16", "-o", "out.pth"),
    "salvage": ("salvage", "truncated.pth", "-o", "out.pth"),
    "warmstart": (
        "warmstart",
        "ddp_before.pth",
        "--into",
        "ddp_after.pth",
        "-o",
        "out.pth",
    ),
    "average": ("average", "ddp_before.pth", "ddp_after.pth", "-o", "out.pth"),
    "merge": ("merge", "llama_bf16.pth", "lora", "-o", "out.pth"),
    "prune": ("prune", "run", "--why"),
    "--help": ("--help",),
    "wrong usage": ("inspect", "train_cuda.pth", "--no-such"),
}


def test_every_command_has_its_run() -> None:
    assert {words[0] for words in RUNS.values()} == {*all_commands(), "--help"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_command_does_alone_what_it_does_in_a_fork(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / "alone" / "it", tmp_path / "fork" / "it"]
    for folder in folders:
        folder.mkdir(parents=True)
        for word in RUNS[name]:
            if (SAMPLES / word).is_file():
                shutil.copy2(SAMPLES / word, folder / word)
            elif word == "run":
                (folder / word).mkdir()
                for number in (1, 2):
                    shutil.copy2(
                        SAMPLES / "legacy.pth", folder / word / f"epoch_{number}.pth"
                    )
            elif word == "lora":
                shutil.copytree(SAMPLES / word, folder / word)

    first, second = (
        alone(*RUNS[name], cwd=folders[0]),
        ckpt(*RUNS[name], cwd=folders[1]),
    )

    assert first == second
    assert first.code in ((2,) if name == "wrong usage" else (0, 1)), first
    files = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for folder in folders
    ]
    assert files[0] == files[1]
