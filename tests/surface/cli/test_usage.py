"""A wrong command line is one line that says what to type, and exit code 2."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from inside import inside
from needs import skip_command
from process import SAMPLES, Run

from ckpt.surface.cli.app import COMMANDS

LINES = {
    # IN OUT, as cp takes them
    "convert legacy.pth out.pth": "legacy.pth: where to write? (-o out.pth)",
    "slim legacy.pth out.pth": "legacy.pth: where to write? (-o out.pth)",
    "rehome legacy.pth out.pth": "legacy.pth: where to write? (-o out.pth)",
    "strip legacy.pth out.pth": "legacy.pth: where to write? (-o out.pth)",
    # what is no file
    "inspect -": (
        "-: no such file (ckpt reads files, not stdin: write it to a file first)"
    ),
    "verify -": (
        "-: unreadable: no such file (ckpt reads files, not stdin: write it to a file "
        "first)"
    ),
    "inspect ftp://host/x.pth": (
        "ftp://host/x.pth: no such file (ckpt reads s3, gs, az, http, https and hf "
        "URLs: download it first)"
    ),
    "inspect legacy": "legacy: no such file (did you mean legacy.pth?)",
    "stats weights": "weights: no such file (did you mean weights.safetensors?)",
    "inspect ddp_aftr.pth": "ddp_aftr.pth: no such file (did you mean ddp_after.pth?)",
    "diff ddp_befor.pth ddp_after.pth": (
        "ddp_befor.pth: no such file (did you mean ddp_before.pth?)"
    ),
    "slim legcy.pth -o x.pth": "legcy.pth: no such file (did you mean legacy.pth?)",
    "sum nothing_like_it.pth": "nothing_like_it.pth: no such file",
    "inspect broken.pth": (
        "broken.pth: no such file (a link to nowhere.pth, which is not there)"
    ),
    "inspect loop.pth": (
        "loop.pth: too many symbolic links (a link to loop.pth, which leads back to it)"
    ),
    "inspect ''": (
        "'': no such file (an empty name: is a variable of the shell not set?)"
    ),
    # values of options
    "rehome legacy.pth --to gpu -o x.pth": (
        "gpu: not a device that torch knows (did you mean cuda:0?)"
    ),
    "rehome legacy.pth --to GPU:1 -o x.pth": (
        "GPU:1: not a device that torch knows (did you mean cuda:1?)"
    ),
    "rehome legacy.pth --to 0 -o x.pth": (
        "0: not a device that torch knows (did you mean cuda:0?)"
    ),
    "rehome legacy.pth --to CPU -o x.pth": (
        "CPU: not a device that torch knows (did you mean cpu?)"
    ),
    "convert legacy.pth --to float16 -o x.pth": (
        "legacy.pth: float16: not a device that torch knows (a dtype: ckpt convert "
        "--dtype float16)"
    ),
    "strip legacy.pth --undo": (
        "strip: no option --undo (the last --in-place of any command: ckpt rehome "
        "--undo FILE)"
    ),
    "convert legacy.pth --dtype fp32 -o x.pth": (
        "legacy.pth: --dtype fp32: not one of bfloat16 float16 float32 (did you mean "
        "float32?)"
    ),
    "convert legacy.pth --dtype torch.half -o x.pth": (
        "legacy.pth: --dtype torch.half: not one of bfloat16 float16 float32 (did you "
        "mean float16?)"
    ),
    "inspect ddp_after.pth --index 8 9 10": "--index takes one list (--index 8,9,10)",
    "inspect legacy.pth --depth x": (
        "inspect: --depth: 'x' is not a number that fits (ckpt inspect --help)"
    ),
    # options
    "inspect legacy.pth -json": "inspect: no option -json (did you mean --json?)",
    "diff a b -stat": "diff: no option -stat (did you mean --stat?)",
    "diff a b --histgram": "diff: no option --histgram (did you mean --histogram?)",
    "inspect legacy.pth --help-al": (
        "inspect: no option --help-al (did you mean --help-all?)"
    ),
    "inspect legacy.pth --jsno": "inspect: no option --jsno (did you mean --json?)",
    "inspect legacy.pth --xyzzy": "inspect: no option --xyzzy (ckpt inspect --help)",
    "--versoin": "no option --versoin (did you mean --version?)",
    "ls -r .": "ls: no option -r (folders are searched without it)",
    "stats a --recursive": (
        "stats: no option --recursive (folders are searched without it)"
    ),
    "get -r a": "get: no option -r (ckpt get --help)",
    "lint . --values": "lint: no option --values (--values is --read-values now)",
    "convert llama_bf16.pth --to safetensors": (
        "--to safetensors: a format, and not a device (--format safetensors)"
    ),
    "convert . -r --to safetensors -o out": (
        "--to safetensors: a format, and not a device (--format safetensors)"
    ),
    "lint . --annotate github": (
        "lint: no option --annotate (--annotate is --output-format now)"
    ),
    # words of git, torch and Unix
    "rehome legacy.pth --map-location cpu": (
        "rehome: no option --map-location (did you mean --to?)"
    ),
    "rehome legacy.pth --device cpu": "rehome: no option --device (did you mean --to?)",
    "inspect legacy.pth --device cpu": (
        "inspect: no option --device (ckpt inspect --help)"
    ),
    "convert legacy.pth --half -o x.pth": (
        "convert: no option --half (did you mean --dtype float16?)"
    ),
    "strip legacy.pth -i": "strip: no option -i (did you mean --in-place?)",
    "strip legacy.pth -n": "strip: no option -n (did you mean --dry-run?)",
    "slim legacy.pth -o x.pth -f": "slim: no option -f (did you mean --force?)",
    "prune run -n": "prune: no option -n (nothing is deleted without --delete)",
    "prune run --dry-run": (
        "prune: no option --dry-run (nothing is deleted without --delete)"
    ),
    "prune run --keep 3": "prune: no option --keep (did you mean --keep-last?)",
    "diff a b --exit-code": (
        "diff: no option --exit-code (the exit code is 1 without it)"
    ),
    "diff a b --name-status": (
        "diff: no option --name-status (did you mean --name-only?)"
    ),
    "diff a b --brief": "diff: no option --brief (did you mean --quiet?)",
    "diff a b --shortstat": "diff: no option --shortstat (did you mean --stat?)",
    "diff a b --no-color": "diff: no option --no-color (did you mean --color never?)",
    "diff a b --color": "diff: --color needs a value (--color auto, always or never)",
    "slim a -o": "slim: -o needs a value (ckpt slim --help)",
    "sum -c a.sums": (
        "sum: no option -c (to compare with a list: ckpt verify FILE --sums LIST)"
    ),
    "verify -c a.sums": (
        "verify: no option -c (to compare with a list of ckpt sum: FILE --sums LIST)"
    ),
    "rehome a --cpu -o b": (
        "rehome: no option --cpu (the CPU is where it moves tensors without --to)"
    ),
    "average a b --weights 1,2 -o x.pth": (
        "average: no option --weights (did you mean --ratios?)"
    ),
    "warmstart a --target b": "warmstart: no option --target (did you mean --into?)",
    "inspect a --filter head": (
        "inspect: no option --filter (did you mean --include?)"
    ),
    "stats a --norm": "stats: no option --norm (ckpt stats --help)",
    "stats a --hist": "stats: no option --hist (did you mean --histogram?)",
    "lint --list": "lint: no option --list (ckpt lint --help)",
    "explain --list": "explain: no option --list (without an argument it lists all)",
    "ls --all": "ls: no option --all (ckpt ls --help)",
    "rename legacy.pth s/a/b/ -o x.pth": (
        "rename: --sub S/A/B/ is missing (ckpt rename --help)"
    ),
    # order and number
    "get epoch train_cuda.pth": "epoch: no such file (ckpt get train_cuda.pth epoch)",
    "get epoch args.lr train_cuda.pth": (
        "epoch: no such file (ckpt get train_cuda.pth epoch args.lr)"
    ),
    "diff ddp_after.pth": "diff: AFTER is missing (ckpt diff --help)",
    "inspect": "nothing to look at (PATH..., or --files-from FILE)",
    "slim": "nothing to change (PATH..., or --files-from FILE)",
    "warmstart legacy.pth weights.safetensors": (
        "warmstart: weights.safetensors is too much (--into weights.safetensors is the "
        "model to fill)"
    ),
    "warmstart legacy.pth weights.safetensors -o x.pth": (
        "warmstart: weights.safetensors is too much (--into weights.safetensors is the "
        "model to fill)"
    ),
    "warmstart legacy.pth --into weights.safetensors ddp_after.pth": (
        "warmstart: ddp_after.pth is too much (it takes PRETRAINED alone: ckpt warmstart --help)"
    ),
    "warmstart legacy.pth --into weights.safetensors x.pth": (
        "warmstart: x.pth is too much (-o x.pth writes there)"
    ),
    "warmstart legacy.pth --into weights.safetensors x.pth -o y.pth": (
        "warmstart: x.pth is too much (it takes PRETRAINED alone: ckpt warmstart --help)"
    ),
    "prune run_1 run_2": "prune: run_2 is too much (it takes RUN alone: ckpt prune --help)",
    "diff legacy.pth compiled.pth weights.safetensors": (
        "diff: weights.safetensors is too much (it takes BEFORE and AFTER alone: ckpt diff --help)"
    ),
    # commands
    "info legacy.pth": "no command info (did you mean ckpt inspect?)",
    "show legacy.pth": "no command show (did you mean ckpt inspect?)",
    "cat legacy.pth": "no command cat (did you mean ckpt get?)",
    "extract legacy.pth": "no command extract (did you mean ckpt get?)",
    "hash legacy.pth": "no command hash (did you mean ckpt sum?)",
    "check legacy.pth": "no command check (did you mean ckpt verify?)",
    "fsck a": "no command fsck (did you mean ckpt verify?)",
    "log a": "no command log (did you mean ckpt ls?)",
    "scan a": "no command scan (did you mean ckpt lint?)",
    "repair a": "no command repair (did you mean ckpt salvage?)",
    "recover a": "no command recover (did you mean ckpt salvage?)",
    "shrink a": "no command shrink (did you mean ckpt slim?)",
    "gc a": "no command gc (did you mean ckpt prune?)",
    "mv a b": "no command mv (did you mean ckpt rename?)",
    "version": "no command version (did you mean ckpt --version?)",
    "inspct legacy.pth": "no command inspct (did you mean ckpt inspect?)",
    "legacy.pth": "legacy.pth: not a command (ckpt inspect legacy.pth)",
    "legcy.pth": "legcy.pth: no such file, and no command (did you mean legacy.pth?)",
    "xyzzy": "no command xyzzy (ckpt --help)",
    "help xyzzy": "no command xyzzy (ckpt --help)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("samples")
    for name in (
        "legacy.pth",
        "weights.safetensors",
        "ddp_after.pth",
        "ddp_before.pth",
        "train_cuda.pth",
    ):
        shutil.copy(SAMPLES / name, made)
    (made / "broken.pth").symlink_to("nowhere.pth")
    (made / "loop.pth").symlink_to("loop.pth")
    return made


@pytest.mark.parametrize("typed", LINES)
def test_one_line_says_what_to_type(
    typed: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = re.search(r"did you mean ckpt ([a-z-]+)", LINES[typed])
    if meant is not None:
        skip_command((meant[1],))
    arguments = ["" if word == "''" else word for word in typed.split()]
    monkeypatch.setattr(sys, "argv", ["ckpt", *arguments])
    before = sorted(folder.iterdir())
    done = inside(*arguments, cwd=folder)

    # The answer of verify is its verdict, and no error.
    is_verdict = typed.startswith("verify") and "no option" not in LINES[typed]
    said = done.out.decode() if is_verdict else done.err.decode()
    assert said == f"{'' if is_verdict else 'ckpt: '}{LINES[typed]}\n"
    assert done.code == 2
    assert sorted(folder.iterdir()) == before


def test_the_hints_work(ckpt: Run, tmp_path: Path) -> None:
    for typed, line in LINES.items():
        hint = line.rpartition("(")[2].rstrip(")")
        if hint.startswith("ckpt ") and not hint.startswith("ckpt reads"):
            assert ckpt(*hint.split()[1:]).returncode == 0, typed


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help_goes_to_stdout(arguments: tuple[str, ...], ckpt: Run) -> None:
    done = ckpt(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ckpt("--help").stdout and "rehome" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, ckpt: Run) -> None:
    done = ckpt("help", command)

    assert (done.returncode, done.stdout) == (0, ckpt(command, "--help").stdout)


def test_the_version_has_a_short_option(ckpt: Run) -> None:
    assert ckpt("-V").stdout == ckpt("--version").stdout


def test_a_link_that_the_system_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other processes in /proc ended in a traceback."""
    from ckpt.surface.api.missing import missing

    def refused(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "cwd").symlink_to("nowhere")
    assert missing(str(tmp_path / "cwd")) == "a link to nowhere, which is not there"
    monkeypatch.setattr("os.readlink", refused)
    assert missing(str(tmp_path / "cwd")) is None
