"""Compare the answers of two checkouts of ckpt: `make compare OTHER=FOLDER
ARGS='--random 500 --only WORDS'`.

OTHER is a checkout of another commit (`git worktree add ../other main~9`). Each command
runs in both, in the same folder: on the samples, on the shapes that frameworks write,
on sets of files, behind a URL, on bad input, on random checkpoints, and on pairs of
samples. The stories of compare.txt hold options of each command; one that they lack is
added to a line of its command. The commands of the pages run too, and the functions of
`import ckpt`. Streams, exit codes and all bytes that are written are compared. Exit
code 1 where something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import accounts
import deepspeeds
import folders
import forks
import hostile
import pytest
import refresh
import shapes
import torch
import webs
from randoms import Random

from ckpt.surface.cli.app import COMMANDS
from ckpt.surface.cli.options import Option, options_of

HERE = Path(__file__).resolve().parent.parent
_STORIES = HERE / "tools" / "compare.txt"
_API = HERE / "tools" / "compare_api.py"

READERS = (
    "inspect PATH",
    "inspect PATH --json",
    "inspect PATH --all",
    "inspect PATH --imports",
    "ls PATH",
    "ls PATH --json",
    "ls PATH --tsv",
    "lint PATH",
    "lint PATH --json",
    "lint PATH --output-format sarif",
    "verify PATH",
    "verify PATH --json",
    "stats PATH",
    "stats PATH --json",
    "sum PATH",
    "sum PATH --json",
    "diff PATH PATH --json",
    "get PATH epoch",
    (
        "explain 'Error(s) in loading state_dict for Net: Missing key(s) in "
        'state_dict: "fc.weight".\' PATH'
    ),
)
"""The commands for each subject that only read it."""

WRITERS = (
    "rehome PATH --to cpu -o OUT",
    "strip PATH -o OUT",
    "slim PATH -o OUT",
    "slim PATH -o OUT.safetensors",
    "convert PATH -o OUT.safetensors",
    "convert PATH -o OUT.dcp",
    "convert PATH --plain -o OUT.pth",
    "convert PATH --dtype bfloat16 -o OUT.pth",
    "rename PATH --sub s/e/E/ -o OUT",
    "average PATH PATH -o OUT.pth",
    "merge PATH lora -o OUT.pth",
    "warmstart PATH --into PATH -o OUT.pth",
    "salvage PATH -o OUT",
    "report PATH -o OUT.html",
)
"""The commands for each subject that write OUT."""

FEW = (
    "inspect PATH --json",
    "stats PATH --json",
    "slim PATH -o OUT",
    "convert PATH -o OUT.safetensors",
)
"""The commands for each random checkpoint."""

HOSTILE = (
    "inspect PATH --json",
    "lint PATH --json",
    "verify PATH",
    "salvage PATH -o OUT",
)
"""The commands for each file that is made to harm."""

FOLDER = (
    "ls PATH --json",
    "ls PATH --others",
    "lint PATH --json",
    "lint PATH --output-format junit",
    "lint PATH --output-format github",
    "verify PATH",
    "inspect PATH --json",
)
"""The commands for a folder of many checkpoints."""

PAIRS = (
    ("ddp_before.pth", "ddp_after.pth"),
    ("snapshot_before.pth", "snapshot_after.pth"),
    ("branch.rank0.pth", "branch.rank1.pth"),
    ("legacy.pth", "compiled.pth"),
    ("weights.safetensors", "ddp_after.pth"),
    ("dcp", "dcp_interrupted"),
    ("tied_and_bloated.pth", "llama_bf16.pth"),
    ("truncated.pth", "legacy.pth"),
    ("sharded", "weights.safetensors"),
    ("objects.pth", "nope.pth"),
)
"""Pairs of samples, A and B."""

OF_PAIRS = (
    "diff A B",
    "diff A B --json",
    "diff A B --tsv",
    "diff A B --stat",
    "diff A B --show all",
    "diff A B --structure",
    "diff A B --quick",
    "diff A B --close -q",
    "diff A B --histogram",
    "diff A B --fail-on frozen",
    "diff A B --html OUT.html",
    "report A B --stats -o OUT.html",
    "explain 'Parameter indices which did not receive grad for rank 0: 10 11' A B",
    "average A B -o OUT.pth",
    "average A B --json --dry-run",
    "warmstart A --into B -o OUT.pth",
    "warmstart A --into B --print-code",
    "warmstart A --into B --json --dry-run",
    "salvage A --fill-from B -o OUT",
    "verify A --like B",
    "slim A --like B -o OUT",
    "convert A --like B -o OUT.pth",
)
"""The commands for each pair."""

BASES = {
    "ls": "ls .",
    "get": "get lightning.ckpt epoch",
    "diff": "diff ddp_before.pth ddp_after.pth",
    "report": "report ddp_after.pth -o a.html",
    "explain": "explain prefix",
    "recipe": "recipe compiled.pth legacy.pth",
    "lint": "lint .",
    "rehome": "rehome train_cuda.pth -o a.pth",
    "strip": "strip compiled.pth -o a.pth",
    "rename": "rename compiled.pth --sub s/^_orig_mod/net/ -o a.pth",
    "set": "set train_cuda.pth epoch=0 -o a.pth",
    "slim": "slim ddp_after.pth -o a.safetensors",
    "convert": "convert ddp_after.pth -o a.safetensors",
    "salvage": "salvage truncated.pth -o a.pth",
    "warmstart": "warmstart compiled.pth --into legacy.pth -o a.pth",
    "average": "average ddp_before.pth ddp_after.pth -o a.pth",
    "merge": "merge llama_bf16.pth lora -o a.pth",
    "prune": "prune .",
}
"""Command -> a line to which its other options are added; without a row it is the
command with a sample.
"""

MODEL = """\
import torch


def build(width="4"):
    return torch.nn.Sequential(torch.nn.Linear(int(width), 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
"""
"""The file net.py, which `--model` builds."""

LOG = """\
epoch 1 loss 0.31
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "fc.weight", "fc.bias".
\tUnexpected key(s) in state_dict: "module.fc.weight", "module.fc.bias".
"""
"""The file train.log, which `explain` reads."""

SUMS = f"{'0' * 64}  conv1.weight\n"
"""The file sums.txt, which `verify --sums` reads."""


class Ended(NamedTuple):
    """A command that has ended: its streams, and the SHA-256 of each file that it made
    or changed.
    """

    code: int
    out: bytes
    err: bytes
    files: dict[str, str]


class Checkout:
    """Runs the commands of one checkout."""

    def __init__(self, folder: Path) -> None:
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "LANG")
            if name in os.environ
        }
        self._folder = folder
        self._environment = kept | {
            "COLUMNS": "100",
            "PYTHONPATH": str(folder),
            "PYTHONHASHSEED": "0",
        }
        self._environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self._server = forks.Server(self._environment)

    def close(self) -> None:
        self._server.close()

    def run_line(self, words: list[str], folder: Path) -> Ended:
        """Run one command in a folder that other commands use too: whatever it made is
        removed again.
        """
        before = set(_files(folder))
        code, out, err = self._server.run(words, str(folder), self._environment, 600)
        files = {}
        for name in sorted(set(_files(folder)) - before):
            files[name] = _checksum(folder / name)
            (folder / name).unlink()
        for made in folder.glob("OUT*"):
            shutil.rmtree(made)
        return Ended(code, out, err, files)

    def run_story(self, lines: list[str], folder: Path) -> list[Ended]:
        """Run commands one after another in a new copy of the samples."""
        with _copy_of_samples(folder) as copy:
            ends = []
            for line in lines:
                code, out, err = self._server.run(
                    shlex.split(line), str(copy), self._environment, 600
                )
                files = {name: _checksum(copy / name) for name in sorted(_files(copy))}
                ends.append(Ended(code, out, err, files))
            return ends

    def run_page(self, name: str) -> list[Ended]:
        """Run the commands that a page shows."""
        texts = refresh.printed(refresh.source(name), PYTHONPATH=str(self._folder))
        return [Ended(0, text.encode(), b"", {}) for text in texts]

    def run_functions(self, folder: Path) -> list[Ended]:
        """Call the functions of `import ckpt` for each sample."""
        with _copy_of_samples(folder) as copy:
            words = [sys.executable, str(_API)]
            done = subprocess.run(
                words, cwd=copy, env=self._environment, capture_output=True, check=False
            )
        return [Ended(done.returncode, done.stdout, done.stderr, {})]


def stories() -> list[list[str]]:
    """The blocks of compare.txt, each with its lines."""
    blocks = _STORIES.read_text(encoding="utf-8").split("\n\n")
    told = [
        [line for line in block.splitlines() if line and not line.startswith("#")]
        for block in blocks
    ]
    return [lines for lines in told if lines]


def lines_of_options() -> list[str]:
    """A line for each option that no line above and no story has, where its row says a
    value that fits.
    """
    known = [
        *(line for lines in stories() for line in lines),
        *READERS,
        *WRITERS,
        *FOLDER,
        *OF_PAIRS,
    ]
    used = {
        (words[0], word)
        for words in map(shlex.split, known)
        for word in words[1:]
        if word.startswith("-")
    }
    return [
        f"{BASES.get(command, f'{command} ddp_after.pth')} {shlex.join(words)}"
        for command in COMMANDS
        for row in options_of(command)
        if (command, row.name) not in used and (command, row.short) not in used
        for words in (_example(row),)
        if words
    ]


def _example(row: Option) -> list[str]:
    """An option as it may be typed. Empty where the table does not say what may follow
    it.
    """
    if row.name == "--help-all":
        return []  # the page of each command has it
    if row.kind == "flag":
        return [row.name]
    if row.words:
        return [row.name, row.words[0]]
    if row.kind in ("integer", "number"):
        return [row.name, f"{1 if row.low is None else row.low:g}"]
    return []


@contextmanager
def _copy_of_samples(folder: Path) -> Iterator[Path]:
    """A copy of the samples with what the stories need beside them. It is removed at
    the end.
    """
    copy = shutil.copytree(HERE / "sample_checkpoints", folder / "story")
    try:
        (copy / "net.py").write_text(MODEL, encoding="utf-8")
        (copy / "names.txt").write_text(
            "legacy.pth\ncompiled.pth\ntruncated.pth\n", encoding="utf-8"
        )
        (copy / "train.log").write_text(LOG, encoding="utf-8")
        (copy / "sums.txt").write_text(SUMS, encoding="utf-8")
        damaged = bytearray((copy / "ddp_after.pth").read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (copy / "damaged.pth").write_bytes(damaged)
        (copy / "empty").mkdir()
        yield copy
    finally:
        shutil.rmtree(copy)


def _files(folder: Path) -> Iterator[str]:
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(folder))


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def subjects(
    folder: Path, web: webs.Web, randoms: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The PATHs, made below a folder, each with the commands for it."""
    every = (*READERS, *WRITERS)
    samples = shutil.copytree(HERE / "sample_checkpoints", folder / "samples")
    for path in sorted(samples.iterdir()):
        if path.suffix not in (".py", ".md") and path.name != "__pycache__":
            yield str(path.relative_to(folder)), every
            if path.is_file():
                yield web.put(f"/{path.name}", path.read_bytes()), every
    yield "samples", FOLDER
    for name in shapes.SHAPES:
        (folder / "shapes").mkdir(exist_ok=True)
        yield str(shapes.make(name, folder / "shapes").relative_to(folder)), every
    sets: dict[str, Callable[[Path], object]] = {
        "trainer": folders.trainer,
        "accelerate": folders.accelerate,
        "speechbrain": folders.speechbrain,
        "adapter": folders.adapter,
        "diffusers": folders.diffusers,
        **{
            f"zero{stage}": lambda at, stage=stage: deepspeeds.write(at, stage)
            for stage in (1, 2, 3)
        },
    }
    for name, make in sets.items():
        (folder / name).mkdir()
        make(folder / name)
        yield name, every
    for source in accounts.SOURCES:
        at = folder / f"source-{source.name}"
        at.mkdir()
        size = accounts.Size(70, True, 0 if source.is_flat else 2)
        yield str(source.make(at, size).relative_to(folder)), every
    for number, case in enumerate(hostile.CASES):
        if not case.name.startswith(hostile.BOMBS):
            at = folder / f"case-{number}"
            at.mkdir()
            try:
                path = case.build(at)
            except pytest.skip.Exception:  # this machine cannot make it
                continue
            yield (
                str(path.relative_to(folder) if path.is_relative_to(folder) else path),
                HOSTILE,
            )
    for number in range(randoms):
        torch.save(Random(number).checkpoint(), folder / f"random-{number}.pth")
        yield f"random-{number}.pth", FEW


def pairs() -> Iterator[list[str]]:
    """The words of each command for each pair of samples, in the folder that holds
    them.
    """
    for first, second in PAIRS:
        named = {"A": f"samples/{first}", "B": f"samples/{second}"}
        for line in OF_PAIRS:
            yield [named.get(word, word) for word in shlex.split(line)]


_SECONDS = re.compile(
    rb'("(?:seconds|structure|crc|torch|weights_only)": (?=[0-9])|verified in )[0-9.e-]+'
)


def difference(one: Ended, two: Ended) -> str | None:
    """The first thing in which two runs differ. The seconds that a command took are no
    difference.
    """
    if one.code != two.code:
        return f"exit code {one.code}, {two.code}"
    for what, first, second in (
        ("stdout", one.out, two.out),
        ("stderr", one.err, two.err),
    ):
        first, second = (_SECONDS.sub(rb"\1", stream) for stream in (first, second))
        for here, there in zip(first.split(b"\n"), second.split(b"\n"), strict=False):
            if here != there:
                begin = max(0, _equal_bytes(here, there) - 60)
                return (
                    f"{what}\n  - {here[begin:][:300]!r}\n  + {there[begin:][:300]!r}"
                )
        if first != second:
            return f"{what}: {len(first):,} and {len(second):,} bytes"
    names = sorted(one.files.keys() | two.files.keys())
    differing = [name for name in names if one.files.get(name) != two.files.get(name)]
    return f"files {' '.join(differing)}" if differing else None


def _equal_bytes(one: bytes, two: bytes) -> int:
    """The number of bytes at the beginning of two lines that are equal."""
    pairs = enumerate(zip(one, two, strict=False))
    return next(
        (index for index, (here, there) in pairs if here != there),
        min(len(one), len(two)),
    )


class Comparison:
    """Both checkouts, and the account of what was compared."""

    def __init__(self, checkouts: list[Checkout], only: str) -> None:
        self._checkouts = checkouts
        self._only = only
        self.runs = 0
        self.differ = 0

    def compare(self, name: str, run: Callable[[Checkout], list[Ended]]) -> None:
        """Run the commands of this name in both checkouts, and print the first
        difference of each.
        """
        if self._only not in name:
            return
        before, after = (run(checkout) for checkout in self._checkouts)
        self.runs += max(len(before), len(after))
        if len(before) != len(after):
            self._report(name, f"{len(before)} and {len(after)} commands")
        for number, (one, two) in enumerate(zip(before, after, strict=False), 1):
            found = difference(one, two)
            if found is not None:
                self._report(
                    name if len(before) == 1 else f"{name} (command {number})", found
                )

    def _report(self, name: str, found: str) -> None:
        self.differ += 1
        print(f"{name}: {found}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the answers of two checkouts of ckpt."
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--only", default="", help="PATHs or commands with these words")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        web = stack.enter_context(webs.served())
        checkouts = [Checkout(asked.other.resolve()), Checkout(HERE)]
        for checkout in checkouts:
            stack.callback(checkout.close)
        comparison = Comparison(checkouts, asked.only)

        def compare_line(words: list[str]) -> None:
            comparison.compare(
                f"ckpt {shlex.join(words)}",
                lambda checkout: [checkout.run_line(words, folder)],
            )

        for lines in (*stories(), *([line] for line in lines_of_options())):
            comparison.compare(
                f"ckpt {'; '.join(lines)}",
                lambda checkout, lines=lines: checkout.run_story(lines, folder),
            )
        for name in refresh.pages():
            comparison.compare(
                name, lambda checkout, name=name: checkout.run_page(name)
            )
        comparison.compare(
            "import ckpt", lambda checkout: checkout.run_functions(folder)
        )
        for path, lines in subjects(folder, web, asked.random):
            for line in lines:
                compare_line(
                    [path if word == "PATH" else word for word in shlex.split(line)]
                )
        for words in pairs():
            compare_line(words)
    print(f"{comparison.runs:,} commands, {comparison.differ:,} differ")
    return int(comparison.differ > 0)


if __name__ == "__main__":
    sys.exit(main())
