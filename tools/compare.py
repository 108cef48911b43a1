"""Whether two checkouts of ckpt answer the same: `make compare OTHER=FOLDER ARGS='--random 500 --only WORDS'`.

OTHER is a checkout of another commit (`git worktree add ../other main~9`). Each command runs in both, in the same folder: on the samples,
on sets of files, behind a URL, on bad input, and on random checkpoints. Streams, exit codes and all bytes that are written are
compared. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import accounts
import deepspeeds
import folders
import forks
import hostile
import pytest
import torch
import webs
from randoms import Random

HERE = Path(__file__).resolve().parent.parent
READERS = [
    "inspect PATH",
    "inspect PATH --json",
    "inspect PATH --all",
    "inspect PATH --imports",
    "ls PATH",
    "ls PATH --json",
    "ls PATH --tsv",
    "lint PATH",
    "lint PATH --json",
    "lint PATH --format sarif",
    "verify PATH",
    "verify PATH --json",
    "stats PATH",
    "stats PATH --json",
    "sum PATH",
    "diff PATH PATH --json",
    "get PATH epoch",
]
WRITERS = [
    "rehome PATH --to cpu -o OUT",
    "strip PATH -o OUT",
    "slim PATH -o OUT",
    "slim PATH -o OUT.safetensors",
    "convert PATH -o OUT.safetensors",
    "convert PATH -o OUT.dcp",
    "convert PATH --plain -o OUT.pth",
    "convert PATH --dtype bfloat16 -o OUT.pth",
    "rename PATH --sub s/e/E/ -o OUT",
    "report PATH -o OUT.html",
]
FEW = ("inspect PATH --json", "stats PATH --json", "slim PATH -o OUT", "convert PATH -o OUT.safetensors")
"""The commands for random checkpoints."""


class Ended(NamedTuple):
    """What a command did: its streams, and the SHA-256 of each file that it made."""

    code: int
    out: bytes
    err: bytes
    files: dict[str, str]


class Checkout:
    """Runs the commands of one checkout."""

    def __init__(self, folder: Path) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._environment = kept | {"COLUMNS": "100", "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
        self._server = forks.Server(self._environment)

    def close(self) -> None:
        self._server.close()

    def run(self, words: list[str], folder: Path) -> Ended:
        before = set(_files(folder))
        code, out, err = self._server.run(words, str(folder), self._environment, 600)
        files = {}
        for name in sorted(set(_files(folder)) - before):
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            (folder / name).unlink()
        for made in folder.glob("OUT*"):
            shutil.rmtree(made)
        return Ended(code, out, err, files)


def _files(folder: Path) -> Iterator[str]:
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(folder))


def subjects(folder: Path, web: webs.Web, randoms: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The PATHs, made below a folder, each with the commands for it."""
    every = (*READERS, *WRITERS)
    samples = shutil.copytree(HERE / "sample_checkpoints", folder / "samples")
    for path in sorted(samples.iterdir()):
        if path.suffix not in (".py", ".md") and path.name != "__pycache__":
            yield str(path.relative_to(folder)), every
            if path.is_file():
                yield web.put(f"/{path.name}", path.read_bytes()), READERS
    yield "samples", ("ls PATH --json", "lint PATH --json", "lint PATH --format junit", "verify PATH")
    sets: dict[str, Callable[[Path], object]] = {
        "trainer": folders.trainer,
        "accelerate": folders.accelerate,
        "speechbrain": folders.speechbrain,
        "adapter": folders.adapter,
        "diffusers": folders.diffusers,
        **{f"zero{stage}": lambda at, stage=stage: deepspeeds.write(at, stage) for stage in (1, 2, 3)},
    }
    for name, make in sets.items():
        (folder / name).mkdir()
        make(folder / name)
        yield name, every
    for source in accounts.SOURCES:
        at = folder / f"source-{source.name}"
        at.mkdir()
        yield (
            str(source.make(at, accounts.Size(70, True, 0 if source.is_flat else 2)).relative_to(folder)),
            every,
        )
    for number, case in enumerate(hostile.CASES):
        if not case.name.startswith(hostile.BOMBS):
            at = folder / f"case-{number}"
            at.mkdir()
            try:
                path = case.build(at)
            except pytest.skip.Exception:  # this machine cannot make it
                continue
            name = path.relative_to(folder) if path.is_relative_to(folder) else path
            yield str(name), ("inspect PATH --json", "lint PATH", "verify PATH")
    for number in range(randoms):
        torch.save(Random(number).checkpoint(), folder / f"random-{number}.pth")
        yield f"random-{number}.pth", FEW


def difference(one: Ended, two: Ended) -> str | None:
    """The first thing in which two runs differ."""
    if one.code != two.code:
        return f"exit code {one.code}, {two.code}"
    for what, first, second in (("stdout", one.out, two.out), ("stderr", one.err, two.err)):
        for here, there in zip(first.split(b"\n"), second.split(b"\n"), strict=False):
            if here != there:
                return f"{what}\n  - {here[:300]!r}\n  + {there[:300]!r}"
        if first != second:
            return f"{what}: {len(first):,} and {len(second):,} bytes"
    return None if one.files == two.files else f"files {one.files} {two.files}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the answers of two checkouts of ckpt.")
    parser.add_argument("other", type=Path)
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--only", default="", help="PATHs or commands with these words")
    asked = parser.parse_args()
    runs = differ = 0
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        web = stack.enter_context(webs.served())
        checkouts = [Checkout(asked.other.resolve()), Checkout(HERE)]
        for checkout in checkouts:
            stack.callback(checkout.close)
        for path, lines in subjects(folder, web, asked.random):
            for line in lines:
                words = [path if word == "PATH" else word for word in line.split()]
                if asked.only not in " ".join(words):
                    continue
                found = difference(*(checkout.run(words, folder) for checkout in checkouts))
                runs += 1
                if found is not None:
                    differ += 1
                    print(f"ckpt {' '.join(words)}: {found}", flush=True)
    print(f"{runs:,} commands, {differ:,} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
