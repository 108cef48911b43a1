"""One hostile name through every command and every form: nothing invisible, no command
of CI, no formula, no markup.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from inside import inside
from process import Done

from ckpt.model.text import show, show_cell, show_line, show_literal
from ckpt.surface.cli.app import COMMANDS

INVISIBLE = (
    "\x1b[31m\x9b\x7f\xa0\xad\u034f\u0600\u0605\u061c\u06dd\u070f\u08e2\u115f\u1160\u17b4\u180b\u180e\u180f"
    "\u2000\u200b\u200f\u2028\u202e\u2060\u206f\u2800\u3000\u3164\ue000\ufe0f\ufeff\uffa0\ufff9\ufffb"
    "\U000110bd\U0001bca0\U0001bca3\U0001d173\U0001d17a\U000e0041\U000e0100\U000f0000"
)
EVIL = (
    f"::error::{INVISIBLE}##[group]x ::stop-commands::y |`<img src=q>` [a](http:b) "
    "@user www.evil.com #1"
)
FORMULAS = ("=1+1", "+1+1", "-1", "@SUM(A1)", "\uff1d1")
NAMES = (EVIL, *FORMULAS)

BAD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u08e2\u115f\u1160\u17b4\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u2060-\u206f\u2800\u3000\u3164\ue000-\uf8ff\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000110bd"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints with hostile names, whose own names are hostile, and one that is
    cut off.
    """
    made = tmp_path_factory.mktemp("hostile")
    model = OrderedDict((f"{name}", torch.ones(2, 3)) for name in NAMES)
    training = {
        "model": model,
        "values": {name: name for name in NAMES},
        EVIL: [EVIL, -0.5],
        "note": EVIL,
    }
    torch.save(training, made / FILE)
    changed = OrderedDict((name, tensor + 1) for name, tensor in model.items())
    torch.save({**training, "model": changed, "note": "="}, made / "=after.pth")
    torch.save(model, made / "::bare.pth")
    data = (made / FILE).read_bytes()
    (made / f"cut {FILE}").write_bytes(data[: len(data) // 2])
    (made / f"{FILE}.sums").write_text(f"nothing {EVIL}\n", encoding="utf-8")
    return made


FILE = f"{EVIL.replace('/', '').replace(chr(0), '')[:60]}.pth"
CUT = f"cut {FILE}"
RUNS: list[tuple[str, ...]] = [
    *(
        ("inspect", FILE, *form)
        for form in ((), ("--all",), ("--depth", "5"), ("--tsv",), ("--json",))
    ),
    *(("inspect", FILE, f"--{view}") for view in ("values", "storages", "imports")),
    *(
        ("inspect", FILE, "--tsv", f"--{view}")
        for view in ("values", "storages", "imports")
    ),
    *(
        ("inspect", FILE, "--table", table)
        for table in (
            "github",
            "pipe",
            "html",
            "unsafehtml",
            "latex_raw",
            "plain",
            "tsv",
        )
    ),
    ("inspect", FILE, "--values", "--table", "github"),
    *(
        ("inspect", FILE, "::bare.pth", CUT, EVIL, *form)
        for form in ((), ("--tsv",), ("--json",))
    ),
    ("inspect", FILE, "--section", EVIL),
    ("inspect", FILE, "--index", EVIL),
    *(
        ("inspect", FILE, f"--{option}", EVIL)
        for option in ("fail-on", "limit", "table", "depth", "include")
    ),
    *(("get", FILE, "note", "model", EVIL, *form) for form in ((), ("--json",))),
    ("get", FILE, f"model.{EVIL}"),
    ("get", "::bare.pth", "=1+1"),
    ("get", FILE, f"no {EVIL}"),
    *(
        ("diff", FILE, "=after.pth", *form)
        for form in (
            (),
            ("--stat",),
            ("--show", "all"),
            ("--tsv",),
            ("--json",),
            ("--name-only",),
        )
    ),
    ("diff", FILE, EVIL),
    *(
        ("stats", FILE, *form)
        for form in (
            (),
            ("--modules",),
            ("--tsv",),
            ("--table", "github"),
            ("--json",),
            ("--sort", EVIL),
        )
    ),
    *(
        ("lint", FILE, CUT, *form)
        for form in (
            (),
            ("--json",),
            ("--statistics",),
            ("--read-values", "--level", "info"),
            *(("--output-format", name) for name in ("github", "sarif", "junit")),
        )
    ),
    *(
        ("lint", FILE, f"--{option}", EVIL)
        for option in ("select", "ignore", "level", "output-format")
    ),
    *(("verify", FILE, CUT, *form) for form in ((), ("--json",), ("--quick",))),
    ("verify", FILE, "--sums", f"{FILE}.sums"),
    ("sum", FILE),
    ("sum", FILE, "--all"),
    *(
        (command, FILE, *form)
        for command in ("rehome", "strip", "slim", "convert")
        for form in (
            (),
            ("--dry-run",),
            ("-o", f"::{command} {EVIL[:40]}.pth"),
            ("--dry-run", "--json"),
        )
    ),
    ("convert", FILE, "-o", "::x.safetensors"),
    ("convert", FILE, "--format", EVIL),
    ("convert", FILE, "--dtype", EVIL, "--dry-run"),
    ("rename", FILE, "--sub", "s/1/2/", "--dry-run"),
    ("rename", FILE, "--sub", EVIL, "--dry-run"),
    ("warmstart", "::bare.pth", "--into", FILE, "--dry-run"),
    ("warmstart", "::bare.pth", "--into", FILE, "--on-mismatch", EVIL),
    ("warmstart", "::bare.pth", "--into", FILE, "-o", "::warm.pth", "--json"),
    (EVIL,),
    (f"--{EVIL}",),
    *((command, f"--{EVIL}", "x") for command in COMMANDS),
    *((command, EVIL, EVIL, EVIL) for command in COMMANDS),
]


def problems(arguments: tuple[str, ...], done: Done) -> list[str]:
    """What a terminal, a runner, a spreadsheet or a browser could take for something
    else than text.
    """
    found = []
    tabs = "--tsv" in arguments or arguments[-1] == "tsv" or arguments[0] == "get"
    for stream in (done.out, done.err):
        for line in stream.decode().split("\n"):
            bad = BAD.findall(line)
            if bad or ("\t" in line and not tabs):
                found.append(f"raw {bad!a}: {line!a}")
            own = "github" in arguments and re.match(
                r"::(error|warning|notice) file=[^:,]*::[a-z-]+ ", line
            )
            if line.lstrip().startswith("::") and not own:
                found.append(f"command: {line!a}")
            if "##[" in line:
                found.append(f"old command: {line!a}")
            if tabs and stream is done.out and "\t" in line:
                cells = line.split("\t")
                letters = cells[:1] if arguments[0] == "diff" else []
                texts = [
                    cell for cell in cells if cell not in letters and cell != "-0.5"
                ]
                if any(
                    text[:1] in ("=", "+", "-", "@", "\uff1d") for text in texts if text
                ):
                    found.append(f"formula: {line!a}")
            if (
                "github" in arguments
                and "--table" in arguments
                and line.startswith("|")
            ):
                rest = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", line)
                if re.search(r"[`<>@\[\]#]|www", rest):
                    found.append(f"markup: {line!a}")
    if "Traceback" in done.err.decode():
        found.append(done.err.decode())
    return found


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_every_command_and_every_form(command: str, folder: Path) -> None:
    runs = [
        run
        for run in RUNS
        if run[0] == command or (not command and run[0] not in COMMANDS)
    ]
    assert runs
    shown = 0
    for arguments in runs:
        done = inside(*arguments, cwd=folder)
        assert problems(arguments, done) == [], ascii(arguments)
        text = (done.out + done.err).decode()
        shown += "\\u202e" in text and "\\U0001d173" in text.replace(
            "\\ud834\\udd73", "\\U0001d173"
        )
    assert shown > 0, "the name is there, escaped"


def test_debug_is_escaped(folder: Path) -> None:
    done = inside("inspect", f"no {EVIL}", cwd=folder, CKPT_DEBUG="1")
    assert b"Traceback" in done.err
    assert [
        line
        for line in problems(("inspect",), done)
        if not line.startswith("Traceback")
    ] == []


def test_json_says_the_exact_names(folder: Path) -> None:
    done = inside("inspect", FILE, "--json", cwd=folder)
    document = json.loads(done.out)
    assert [row["path"][-1] for row in document["tensors"]] == list(NAMES)
    assert "##[" not in done.out.decode()


def test_markup_of_tables_is_escaped(folder: Path) -> None:
    for table in ("html", "unsafehtml"):
        assert b"<img" not in inside("inspect", FILE, "--table", table, cwd=folder).out
    latex = inside("inspect", FILE, "--table", "latex_raw", cwd=folder).out
    assert b"\\#" in latex and b"\\textbackslash" in latex


# --------------------------------------------------------------------------------------
# the functions


def test_every_invisible_character_is_escaped() -> None:
    """By the categories of this Python's Unicode, and the rest of
    Default_Ignorable_Code_Point by hand.
    """
    ignorable = [
        0x34F,
        0x115F,
        0x1160,
        0x17B4,
        0x17B5,
        0x2065,
        0x3164,
        0xFFA0,
        *range(0xFFF0, 0xFFF9),
    ]
    ignorable += [
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0000, 0xE1000),
    ]
    shown_by_kind = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}
    text = "".join(map(chr, [*range(0x110000), *ignorable]))
    hidden = "".join(
        char
        for char in text
        if unicodedata.category(char) in shown_by_kind and char != " "
    )
    hidden += "".join(map(chr, ignorable))
    assert len(hidden) > 130_000
    for escaped in (show(hidden, None), show_literal(hidden)):
        assert escaped.isascii() and escaped.isprintable()
        assert len(re.findall(r"\\(?:[nrt]|x..|u....|U........)", escaped)) == len(
            hidden
        )


@pytest.mark.parametrize("char", "é中🤖Ωا×…e\u0301")
def test_letters_stay(char: str) -> None:
    assert show(char) == show_literal(char) == char


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::x", "\\x3a:error::x"),
        (" \t::error::x", " \t\\x3a:error::x"),
        ("a::b", "a::b"),
        (":x", ":x"),
        ("", ""),
        ("::", "\\x3a:"),
    ],
)
def test_lines_that_github_would_obey(line: str, shown: str) -> None:
    assert show_line(line) == shown


@pytest.mark.parametrize(
    "text", ["##[group]", "a##vso[task.setvariable]", "##teamcity[x]"]
)
def test_commands_inside_of_a_line(text: str) -> None:
    assert show_line(text) == text.replace("##", "\\x23#")
    assert show_line("## a #[") == "## a #["


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1", "\\x3d1"),
        ("+1", "\\x2b1"),
        ("-x", "\\x2dx"),
        ("@x", "\\x40x"),
        ("\uff1d1", "\\uff1d1"),
        ("-1", "-1"),
        ("-1.5e-07", "-1.5e-07"),
        ("-inf", "-inf"),
        ("-1+1", "\\x2d1+1"),
        ("a=1", "a=1"),
        ("", ""),
    ],
)
def test_cells_that_a_spreadsheet_would_run(text: str, cell: str) -> None:
    assert show_cell(text) == cell
    assert show_cell("-1", name=True) == "\\x2d1"
