"""`-q` in every command: nothing but errors, and the exit code is the one without it.
`--no-summary` drops the last line.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import all_commands
from process import SAMPLES, Done, check_error, ckpt

from ckpt.model.errors import UsageError
from ckpt.surface.cli import output
from ckpt.surface.cli.app import COMMANDS

POINTER = "lfs_pointer.pth"
"""A sample that no command reads."""
CASES: dict[str, dict[int, str]] = {
    "inspect": {0: "train_cuda.pth", 1: "train_cuda.pth --fail-on cuda", 2: POINTER},
    "ls": {0: "legacy.pth", 1: "train_cuda.pth legacy.pth --fail-on cuda", 2: POINTER},
    "get": {0: "train_cuda.pth epoch", 2: "train_cuda.pth no.such"},
    "diff": {
        0: "ddp_before.pth ddp_before.pth",
        1: "ddp_before.pth ddp_after.pth",
        2: f"legacy.pth {POINTER}",
    },
    "stats": {0: "legacy.pth", 1: "nan.pth --fail-on nan", 2: POINTER},
    "report": {0: "legacy.pth -o out.html", 2: f"{POINTER} -o out.html"},
    "explain": {0: "cuda", 2: f"cuda {POINTER}"},
    "recipe": {
        0: "legacy.pth legacy.pth -o out.json",
        1: "llama_bf16.pth legacy.pth",
        2: f"{POINTER} legacy.pth",
    },
    "lint": {0: "llama_bf16.pth", 1: "hostile.pth", 2: POINTER},
    "verify": {0: "legacy.pth", 1: "truncated.pth", 2: POINTER},
    "sum": {0: "legacy.pth", 2: POINTER},
    "rehome": {0: "train_cuda.pth -o out.pth", 2: f"{POINTER} -o out.pth"},
    "strip": {0: "ddp_after.pth -o out.pth", 2: f"{POINTER} -o out.pth"},
    "rename": {
        0: "ddp_after.pth --sub s/^module[.]// -o out.pth",
        2: f"{POINTER} --sub s/a/b/ -o out.pth",
    },
    "set": {0: "train_cuda.pth epoch=0 -o out.pth", 2: f"{POINTER} epoch=0 -o out.pth"},
    "slim": {0: "train_cuda.pth -o out.pth", 2: f"{POINTER} -o out.pth"},
    "convert": {
        0: "train_cuda.pth --dtype bfloat16 -o out.pth",
        2: f"{POINTER} -o out.safetensors",
    },
    "salvage": {
        0: "legacy.pth -o out.pth",
        1: "truncated.pth -o out.pth",
        2: f"{POINTER} -o out.pth",
    },
    "warmstart": {
        0: "ddp_before.pth --into ddp_after.pth -o out.pth",
        1: "ddp_before.pth --into legacy.pth -o out.pth",
        2: f"{POINTER} --into legacy.pth -o out.pth",
    },
    "average": {
        0: "ddp_before.pth ddp_after.pth -o out.pth",
        2: f"{POINTER} legacy.pth -o out.pth",
    },
    "merge": {0: "llama_bf16.pth lora -o out.pth", 2: f"{POINTER} lora -o out.pth"},
    "prune": {0: "run", 2: POINTER},
}
"""Command -> exit code -> the words that end with it: done or same, found or differ,
trouble or not found.
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    folder = tmp_path_factory.mktemp("quiet")
    for path in SAMPLES.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    shutil.copytree(SAMPLES / "lora", folder / "lora")
    (folder / "run").mkdir()
    for number in (1, 2):
        shutil.copy2(SAMPLES / "legacy.pth", folder / "run" / f"epoch_{number}.pth")
    torch.save({"w": torch.tensor([float("nan")])}, folder / "nan.pth")
    return folder


def results(folder: Path) -> Iterator[bytes]:
    """The files that a command wrote, which are gone then."""
    for path in sorted(folder.glob("out.*")):
        yield path.read_bytes()
        path.unlink()


def test_every_command_has_its_cases() -> None:
    assert list(CASES) == all_commands() and all(
        {0, 2} <= cases.keys() for cases in CASES.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [(command, code) for command, cases in CASES.items() for code in cases],
)
def test_nothing_but_the_error_and_the_same_exit_code(
    command: str, code: int, samples: Path
) -> None:
    words = CASES[command][code].split()
    loud = ckpt(command, *words, cwd=samples)
    written = list(results(samples))
    quiet = ckpt(command, *words, "-q", cwd=samples)

    assert loud.code == quiet.code == code, (loud, quiet)
    assert loud.out or loud.err
    assert quiet.out == b""
    says_why = code == 2 or (command, code) == ("verify", 1)  # damage is named
    assert len(quiet.complaints) == says_why and all(
        line.startswith("ckpt: ") for line in quiet.complaints
    )
    assert list(results(samples)) == written
    assert code or bool(written) == ("-o" in words)


OTHERS = {"sum": ("truncated.pth", "dtypes.pth")}
"""Command -> the samples to name beside the two that no command reads: sum needs all
bytes.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["inspect", "ls", "lint", "verify", "stats", "sum", "report"]
)
def test_of_a_folder_only_the_errors_are_said(command: str, samples: Path) -> None:
    more = ("-o", "out.html") if command == "report" else ()
    loud = ckpt(command, ".", *more, cwd=samples)
    list(results(samples))
    quiet = ckpt(command, ".", *more, "-q", cwd=samples)
    list(results(samples))

    assert loud.code == quiet.code == 2 and quiet.out == b""
    bad = {"html_page.pth", POINTER, *OTHERS.get(command, ("truncated.pth",))}
    assert {line.split(": ")[1] for line in quiet.complaints} == bad
    assert len(quiet.complaints) == len(bad)


@pytest.mark.parametrize("command", ["ls", "lint"])
def test_what_may_be_unreadable_is_no_error(command: str, samples: Path) -> None:
    assert ckpt(
        command, POINTER, "legacy.pth", "--skip-unreadable", "-q", cwd=samples
    ) == Done(0, b"", b"")


def test_a_listing_answers_for_a_folder(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "legacy.pth", tmp_path)

    assert ckpt("inspect", ".", "-q", cwd=tmp_path) == Done(0, b"", b"")


def test_a_result_that_runs_code_is_said_all_the_same(samples: Path) -> None:
    done = ckpt(
        "rehome", "hostile.pth", "-o", "out.pth", "--keep-code", "-q", cwd=samples
    )
    list(results(samples))

    (line,) = done.complaints
    assert (done.code, done.out) == (0, b"") and ": DANGER: " in line


FORMS = {
    "inspect": (
        "--json",
        "--tsv",
        "--table plain",
        "--bars",
        "--index 1",
        "--textconv",
    ),
    "diff": ("--json", "--tsv", "--name-only", "--histogram", "--html -"),
    "stats": ("--json", "--tsv", "--table plain", "--histogram"),
    "lint": ("--json", "--output-format sarif", "--statistics", "--others"),
    "ls": ("--json", "--tsv", "--table plain", "--others"),
    "verify": ("--json",),
    "sum": ("--json",),
    "report": ("--output -",),
    "prune": ("--json", "--null", "--why"),
    "warmstart": ("--json", "--print-code"),
    **dict.fromkeys(
        ("get", "explain", "rehome", "strip", "rename", "slim", "convert"), ("--json",)
    ),
    **dict.fromkeys(("salvage", "average", "merge", "set", "recipe"), ("--json",)),
}
"""Command -> what it can be asked to print."""


@pytest.mark.parametrize(
    ("command", "form"),
    [(command, form) for command in COMMANDS for form in FORMS[command]],
)
def test_what_asks_for_output_is_refused(
    command: str, form: str, samples: Path
) -> None:
    words = CASES[command][0].split()
    words = words if command != "report" else words[:1]
    option, _, value = form.partition(" ")

    done = ckpt(command, *words, *form.split(), "-q", cwd=samples)

    assert list(results(samples)) == []
    check_error(
        done,
        f"{option} - and --quiet"
        if value == "-"
        else f"{option} and --quiet exclude each other",
    )


SUMMARIES = {
    "inspect": ".",
    "ls": "legacy.pth",
    "stats": "legacy.pth nan.pth",
    "report": "legacy.pth -o out.html",
    "lint": "legacy.pth",
    "verify": "legacy.pth nan.pth",
    "sum": ".",
}


@pytest.mark.parametrize("command", SUMMARIES)
def test_the_closing_line_can_be_left_out(command: str, samples: Path) -> None:
    (samples / "notes.md").write_text("# Notes")
    words = SUMMARIES[command].split()
    whole = ckpt(command, *words, cwd=samples)
    list(results(samples))
    brief = ckpt(command, *words, "--no-summary", cwd=samples)
    list(results(samples))

    assert brief == whole._replace(
        err=b"".join(whole.err.splitlines(keepends=True)[:-1])
    )
    assert brief.err != whole.err


def test_one_run_is_not_quiet_because_another_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError), output.silenced_output(all=True, summary=True):
        assert output.is_silent()
        output.write_talk("dropped")
        output.write_lines([[("dropped", "")]])
        output.write_text("dropped")
        output.write_conclusion("dropped")
        output.write_complaint("kept")
        raise UsageError("x")
    assert not output.is_silent()
    output.write_talk("talk")
    output.write_conclusion("conclusion")

    assert capsys.readouterr() == ("", "kept\ntalk\nconclusion\n")
