"""Exit codes and streams, through real processes: 0 done, 1 found, 2 trouble, 130, 141,
143; one line an error.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import hostile
import opcodes as op
import pytest
import torch
from needs import skip_command
from process import (
    ROOT,
    SAMPLES,
    TIMEOUT,
    as_nobody,
    check_error,
    ckpt,
    environment,
    python,
    raw_controls,
)

from ckpt import __version__
from ckpt.model.findings import CATALOGUE

GOOD = SAMPLES / "train_cuda.pth"


# --------------------------------------------------------------------------------------
# one bad path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("html_page.pth", "html"),
        ("lfs_pointer.pth", "git lfs"),
        ("truncated.pth", "cut off"),
        ("README.md", "not a checkpoint"),
        ("no such file.pth", "no such file"),
    ],
)
def test_bad_sample(name: str, says: str) -> None:
    line = check_error(ckpt("inspect", name, cwd=SAMPLES), says)
    assert line.startswith(f"ckpt: {name}: ")


def test_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    check_error(ckpt("inspect", "fifo.pt", cwd=tmp_path), "not a regular file: a fifo")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_device(device: str) -> None:
    check_error(ckpt("inspect", device), "not a regular file")


def test_directory_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    check_error(
        ckpt("inspect", "runs", cwd=tmp_path), "a directory without a checkpoint"
    )
    (tmp_path / "runs" / "a.pt").write_bytes(hostile.GOOD)
    line = check_error(
        ckpt("inspect", "runs", "--tsv", cwd=tmp_path), "holds 1 checkpoint file"
    )
    assert "a.pt" in line


def test_a_directory_whose_checkpoints_lie_deeper(tmp_path: Path) -> None:
    """Nothing was searched, so nothing says that there is none."""
    below = tmp_path / "my runs" / "first"
    below.mkdir(parents=True)
    (below / "a.pt").write_bytes(hostile.GOOD)

    line = check_error(
        ckpt("inspect", "my runs", cwd=tmp_path), "no checkpoint lies right in"
    )

    assert line.endswith("(ckpt ls 'my runs' looks below it)")
    assert ckpt("ls", "my runs", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "path", ["", ".", "/", "a/../b.pt", "a\udcffb.pt", "~/x.pt", "x" * 300], ids=ascii
)
def test_odd_path(path: str, tmp_path: Path) -> None:
    check_error(ckpt("inspect", path, cwd=tmp_path))


def test_unreadable_file(folder_of_all: Path) -> None:
    """Permissions do not bind root: the child gives its rights up."""
    path = folder_of_all / "secret.pt"
    path.write_bytes(hostile.GOOD)
    path.chmod(0o600 if os.getuid() == 0 else 0)
    check_error(
        as_nobody("inspect", "secret.pt", "--tsv", cwd=folder_of_all),
        "secret.pt: no permission",
    )
    path.chmod(0o644)
    assert as_nobody("inspect", "secret.pt", "--tsv", cwd=folder_of_all).code == 0


def test_nothing_is_written(tmp_path: Path) -> None:
    """Neither beside the file nor into it, whatever it holds."""
    path = tmp_path / "x.pt"
    path.write_bytes(hostile.EVIL)
    os.utime(path, ns=(10**18, 10**18))
    tmp_path.chmod(0o755)
    before = path.stat()
    assert ckpt("inspect", "x.pt", cwd=tmp_path).code == 0
    assert os.listdir(tmp_path) == ["x.pt"]
    assert path.read_bytes() == hostile.EVIL
    after = path.stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (
        before.st_mtime_ns,
        before.st_mode,
        before.st_ino,
    )
    assert stat.S_ISREG(after.st_mode)


# --------------------------------------------------------------------------------------
# several paths


@pytest.mark.parametrize(
    "form", [(), ("--json",), ("--tsv",), ("--table", "github")], ids=" ".join
)
def test_goes_on_after_a_bad_path(form: tuple[str, ...]) -> None:
    """The others are shown, each bad one gets its line, the worst code wins."""
    paths = ("legacy.pth", "html_page.pth", "weights.safetensors", "nope.pth")
    done = ckpt("inspect", *paths, "--fail-on", "cuda", *form, cwd=SAMPLES)
    assert done.code == 2
    assert [line.split(": ")[1] for line in done.complaints] == [
        "html_page.pth",
        "nope.pth",
    ]
    text = done.out.decode()
    assert "legacy.pth" in text and "weights.safetensors" in text
    assert ("html_page" in text) == (form == ("--json",))
    if form == ("--json",):
        documents = [json.loads(line) for line in done.lines]
        assert [document["file"]["path"] for document in documents] == list(paths)
        assert ["error" in document for document in documents] == [
            False,
            True,
            False,
            True,
        ]
    if form == ("--tsv",):
        rows = [line.split("\t") for line in done.lines]
        assert rows[0][0] == "file" and sum(row[0] == "file" for row in rows) == 1
        assert {row[0] for row in rows[1:]} == {"legacy.pth", "weights.safetensors"}


def test_bad_path_first_keeps_the_header() -> None:
    done = ckpt("inspect", "nope.pth", "legacy.pth", "--tsv", cwd=SAMPLES)
    assert done.code == 2
    assert done.lines[0].startswith("file\tname\t")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("slim", "legacy.pth", "-o", "/nodir/a.pth"),
            "/nodir: there is no such folder",
        ),
        (("slim", "legacy.pth", "-o", "no/b/a.pth"), "no/b: there is no such folder"),
        (
            ("average", "no/a.pth", "legacy.pth", "-o", "b.pth"),
            "no/a.pth: no such file",
        ),
        (
            ("average", "nope.pth", "legacy.pth", "-o", "b.pth"),
            "nope.pth: no such file",
        ),
    ],
)
def test_the_document_of_an_error_names_another_path_as_it_was_typed(
    words: tuple[str, ...], message: str
) -> None:
    done = ckpt(*words, "--json", cwd=SAMPLES)
    assert done.code == 2
    document = json.loads(done.lines[0])
    assert document["file"]["path"] == "legacy.pth"
    assert document["error"]["message"] == message


def test_all_paths_bad() -> None:
    done = ckpt("inspect", "nope.pth", "html_page.pth", "--json", cwd=SAMPLES)
    assert done.code == 2
    assert [json.loads(line)["error"]["code"] for line in done.lines] == [
        "not-opened",
        "stand-in",
    ]
    assert len(done.complaints) == 2


# --------------------------------------------------------------------------------------
# --fail-on


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        (["cuda"], 1),
        (["bloat"], 0),
        (["bloat,cuda"], 1),
        (["bloat", "cuda"], 1),
        (["called-on-load"], 0),
        ([" cuda , "], 1),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_fail_on(codes: list[str], code: int) -> None:
    options = [word for value in codes for word in ("--fail-on", value)]
    done = ckpt("inspect", GOOD, *options)
    assert (done.code, done.err) == (code, b"")
    assert done.out == ckpt("inspect", GOOD).out


@pytest.mark.parametrize("form", [("--json",), ("--tsv",)], ids=" ".join)
def test_fail_on_in_every_form(form: tuple[str, ...]) -> None:
    done = ckpt(
        "inspect", "hostile.pth", *form, "--fail-on", "called-on-load", cwd=SAMPLES
    )
    assert (done.code, done.err) == (1, b"")


@pytest.mark.parametrize(
    "code",
    [
        "cudaa",
        "CUDA",
        "frozen",
        "\x1b[31m",
        *[row.code for row in CATALOGUE.values() if not row.by],
    ],
)
def test_fail_on_what_inspect_never_finds(code: str) -> None:
    """A code that can never come must not look like a passed check."""
    line = check_error(
        ckpt("inspect", GOOD, "--fail-on", code), "not a finding of inspect"
    )
    known = CATALOGUE.get(code)
    words = ("codes: called-on-load", "did you mean cuda?")
    if known is not None and known.by:
        words = (f"ckpt {known.by[0]} ",)
    assert any(word in line for word in words), "the way on"


# --------------------------------------------------------------------------------------
# wrong commands


def test_forgotten_command(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(hostile.GOOD)
    line = check_error(ckpt("x.pth", cwd=tmp_path), "x.pth: not a command")
    assert "ckpt inspect x.pth" in line


@pytest.mark.parametrize(
    "word", ["inspct", "nope.pth", "__init__", "os", "diff", "warmstart"]
)
def test_unknown_command(word: str, tmp_path: Path) -> None:
    done = ckpt(word, cwd=tmp_path)
    assert (done.code, done.out) == (2, b"")
    assert word in done.err.decode() and "Traceback" not in done.err.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "--no-such-option", "x"),
        ("inspect", "x", "--depth", "-1"),
        ("inspect", "x", "--depth", "many"),
        ("get",),
        ("--no-such-option",),
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert "--help)" in check_error(ckpt(*arguments))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--json", "--tsv"), "exclude each other"),
        (("--tsv", "--table", "github"), "exclude each other"),
        (("--json", "--values"), "exclude each other"),
        (("--tsv", "--values", "--imports"), "--tsv takes one of"),
        (("--table", "nope"), "no such format"),
        (("--table", "\x1b[31m"), "no such format"),
        (("--section", "nope"), "no section nope"),
        (("--section", "\x1b]8;;x\x07"), "no section"),
        (("--limit", "nope=5"), "no limit called nope"),
        (("--limit", "entries"), "not a number"),
        (("--limit", "entries=-5"), "not a number"),
        (("--limit", "entries=5\x1b"), "not a number"),
        (("--limit", "depth=\u0665"), "not a number"),
        (("--limit", "pickle-bytes=10"), "--limit pickle-bytes=n raises this"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, tuple) else "",
)
def test_wrong_option(options: tuple[str, ...], says: str) -> None:
    check_error(ckpt("inspect", GOOD, *options), says)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("diff", ("--stat", "--tsv")),
        ("diff", ("--stat", "--name-only")),
        ("stats", ("--modules", "--tsv")),
        ("sum", ("--all", "--section", "model")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_an_option_that_would_be_dropped_is_refused(
    command: str, options: tuple[str, ...]
) -> None:
    files = [GOOD, GOOD] if command == "diff" else [GOOD]
    check_error(ckpt(command, *files, *options), "exclude each other")


@pytest.mark.parametrize("command", ["inspect", "ls", "stats", "diff"])
def test_no_header_goes_with_a_table(command: str) -> None:
    """The lines for people keep their header, so the option would be dropped."""
    files = [GOOD, GOOD] if command == "diff" else [GOOD]
    check_error(ckpt(command, *files, "--no-header"), "--no-header goes with --tsv")
    assert ckpt(command, *files, "--no-header", "--tsv").code == 0


def test_wrong_usage_shows_no_control_character() -> None:
    """`ckpt inspect *` in a folder with a file of that name."""
    for arguments in (
        ["inspect", "--\x1b[31mx"],
        ["\x1b[31mx"],
        ["inspect", "x", "--depth", "\x1b[31m"],
        ["-\x9b"],
    ):
        done = ckpt(*arguments)
        assert done.code == 2
        assert raw_controls(done.err) == [], arguments


def test_no_arguments_show_help() -> None:
    done = ckpt()
    text = (done.out + done.err).decode()
    assert done.code in (0, 2)
    assert "Usage: ckpt" in text and "inspect" in text


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("inspect",), ("get",)], ids=" ".join)
def test_help(command: tuple[str, ...], word: str) -> None:
    done = ckpt(*command, word)
    assert (done.code, done.err) == (0, b"")
    assert done.out.startswith((b"Usage: ckpt ", b"\nUsage: ckpt ", b" \nUsage: ckpt"))
    assert raw_controls(done.out) == []


def test_version() -> None:
    done = ckpt("--version")
    assert (done.code, done.out.decode(), done.err) == (0, f"ckpt {__version__}\n", b"")


@pytest.mark.parametrize(
    "name", ["nope", "epoch.nope", "\x1b[31m", "optimizer.state.99", ""], ids=ascii
)
def test_get_of_what_is_not_there(name: str) -> None:
    check_error(ckpt("get", GOOD, name))


# --------------------------------------------------------------------------------------
# ends from outside


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 4,000 tensors: more lines than a pipe holds."""
    path = tmp_path_factory.mktemp("many") / "many.pt"
    tensors = {f"layers.{number}.weight": op.tensor() for number in range(4_000)}
    path.write_bytes(op.torch_zip(op.pickled(tensors)))
    return path


@pytest.mark.parametrize("form", [("--tsv",), ("--json",), ("--all",)], ids=" ".join)
def test_reader_of_the_pipe_leaves(many: Path, form: tuple[str, ...]) -> None:
    """`| head -1`: 141 as for `cat`, and silence."""
    command = [sys.executable, "-m", "ckpt", "inspect", str(many), *form]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.read(100)  # JSON is one line
        child.stdout.close()
        error = child.stderr.read()
    assert (child.returncode, error) == (141, b"")


@pytest.mark.parametrize(
    "arguments",
    [("inspect",), ("inspect", "--json"), ("get", "epoch"), ("--version",)],
    ids=" ".join,
)
def test_reader_of_the_pipe_was_never_there(arguments: tuple[str, ...]) -> None:
    """A short answer, which is written when the program ends."""
    command = [
        arguments[0],
        *([str(GOOD)] if arguments[0][0] != "-" else []),
        *arguments[1:],
    ]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ckpt", *command],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=TIMEOUT,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments", [("inspect",), ("inspect", "--tsv"), ("get", "epoch")], ids=" ".join
)
def test_output_on_a_full_disk(arguments: tuple[str, ...]) -> None:
    """What was not written is never reported as done."""
    with open("/dev/full", "wb") as full:
        command = [
            sys.executable,
            "-m",
            "ckpt",
            arguments[0],
            str(GOOD),
            *arguments[1:],
        ]
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=TIMEOUT,
        )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr, (
        done.stderr
    )


ANSWERS = (
    "--version",
    "--help",
    "inspect --help",
    "explain frozen",
    "get a.pth epoch",
    "diff b.pth c.pth",
    "stats a.pth",
    "inspect a.pth",
    "inspect a.pth --json",
    "inspect a.pth --tsv",
    "ls a.pth",
    "ls . -j 2",
    "lint a.pth --level info",
    "verify a.pth",
    "sum a.pth",
    "report a.pth -o -",
    "slim a.pth -o out.pth",
    "salvage a.pth -o out.pth",
    "convert a.pth -o out.safetensors",
    "rehome a.pth --to cpu -o out.pth",
)


def without_stdout(
    arguments: str, redirected: str, cwd: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose shell has redirected its stdout, such as `>&-`, which closes
    it.
    """
    skip_command(tuple(arguments.split()))
    words = [
        "sh",
        "-c",
        f'exec "$@" {redirected}',
        "sh",
        sys.executable,
        "-m",
        "ckpt",
        *arguments.split(),
    ]
    return subprocess.run(
        words, capture_output=True, env=environment(), timeout=TIMEOUT, cwd=cwd
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ANSWERS)
def test_an_answer_to_a_closed_stdout_is_trouble(
    arguments: str, tmp_path: Path
) -> None:
    """It went nowhere, and the exit code was 0."""
    (tmp_path / "a.pth").write_bytes(GOOD.read_bytes())
    for name in ("b.pth", "c.pth"):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
    done = without_stdout(arguments, ">&-", tmp_path)
    last = done.stderr.decode().splitlines()[-1]
    assert (done.returncode, last) == (
        2,
        "ckpt: the output cannot be written: stdout is closed",
    ), done
    assert b"Traceback" not in done.stderr
    if os.path.exists("/dev/full"):
        done = without_stdout(arguments, ">/dev/full", tmp_path)
        assert done.returncode == 2 and b"Traceback" not in done.stderr, done


@pytest.mark.parametrize("redirected", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_who_asks_for_the_exit_code_alone_may_close_stdout(
    redirected: str, tmp_path: Path
) -> None:
    done = without_stdout(f"verify {GOOD} -q", redirected, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("explain -", 2, "stdin is empty"),
        ("lint --files-from -", 0, ""),
        ("prune . --keep-last 1 --delete", 2, "--delete asks on a terminal"),
        ("prune . --keep-last 1 --delete --yes", 0, "none of 2 checkpoints may go"),
    ],
)
def test_a_closed_stdin_is_an_empty_one(
    arguments: str, code: int, said: str, tmp_path: Path
) -> None:
    """Some schedulers start programs so."""
    for number in (1, 2):
        path = tmp_path / f"epoch_{number}.pth"
        path.write_bytes(GOOD.read_bytes())
        os.utime(path, (number, number))
    done = without_stdout(arguments, "<&-", tmp_path)
    assert done.returncode == code and said.encode() in done.stderr, done
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    ["ls .", "lint .", "verify nope", "inspect nope", "diff nope nope", "explain nope"],
)
def test_messages_on_a_full_disk(arguments: str, tmp_path: Path) -> None:
    """Python ended with its own code, 120."""
    (tmp_path / "a.pth").write_bytes(GOOD.read_bytes())
    (tmp_path / "b.pth").write_bytes(GOOD.read_bytes()[:500])
    command = [sys.executable, "-m", "ckpt", *arguments.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=full,
            env=environment(),
            timeout=TIMEOUT,
            cwd=tmp_path,
        )
    assert done.returncode == 2


RAISES = """
import os, sys, time
from ckpt import formats
number = int(sys.argv.pop(1))
def slow(path, limits=None, **options):
    os.kill(os.getpid(), number)
    time.sleep(30)
formats.open = slow
from ckpt.surface.cli.app import main
main()
"""


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    ids=["SIGINT", "SIGTERM"],
)
@pytest.mark.parametrize(
    "command", [("inspect", "x"), ("get", "x", "y")], ids=["inspect", "get"]
)
def test_signal(number: int, code: int, says: str, command: tuple[str, ...]) -> None:
    done = python("-c", RAISES, str(int(number)), *command)
    assert (done.code, done.out, done.err) == (code, b"", f"ckpt: {says}\n".encode())


FAILS = """
import sys
from ckpt import formats
def broken(path, limits=None, **options):
    raise {}
formats.open = broken
from ckpt.surface.cli.app import main
main()
"""


def test_out_of_memory() -> None:
    done = python("-c", FAILS.format("MemoryError"), "inspect", "x")
    assert (done.code, done.err) == (2, b"ckpt: out of memory\n")


def test_bug_of_ours() -> None:
    """A traceback, and the request to report it; the code is 2, for 1 means that
    something was found.
    """
    done = python("-c", FAILS.format("KeyError('x')"), "inspect", "x")
    assert done.code == 2
    assert (
        "Traceback" in done.err.decode() and "please report it" in done.complaints[-1]
    )


def test_debug_shows_where_an_error_comes_from() -> None:
    done = ckpt("inspect", "nope.pth", CKPT_DEBUG="1")
    assert done.code == 2
    assert "Traceback" in done.err.decode() and "no such file" in done.complaints[-1]
    assert ckpt("inspect", GOOD, CKPT_DEBUG="1").out == ckpt("inspect", GOOD).out


# --------------------------------------------------------------------------------------
# hostile names

LONG = "long." + "n" * 2**20
NAMES = {
    "everything": hostile.HOSTILE_NAME,
    "escape": "\x1b[2J\x1b[31mred\x1b[0m",
    "osc8": "\x1b]8;;http://127.0.0.1\x07link\x1b]8;;\x07",
    "c1": "\x9b31m\x85next\x90",
    "bidi": "a\u202egnp.\u2066exe\u2069\u200f",
    "newline": "a\nFAKE ROW\r\n\x0b\x0c\u2028b",
    "markup": "[/red][bold]x[/bold][link=file:///etc/passwd]y[/link]",
    "surrogate": "w\udc9b31m\ud800",
    "nul": "a\0b",
    "tab": "a\tb",
    "pipe": "a|b\\|c",
    "backslash": "a\\nb\\x1b",
}


def _hostile_file(folder: Path, *, long: bool = False) -> Path:
    """Hostile names at every place that is printed: keys, values, storages, devices,
    classes, calls, the file's name.
    """
    names = [*NAMES.values(), *([LONG] if long else [])]
    tensors = {
        name: op.tensor(location=f"cuda:0{name[:200]}", key=f"{i}")
        for i, name in enumerate(names)
    }
    evil = hostile.HOSTILE_NAME
    everything = {
        **tensors,
        "model": {
            f"_orig_mod.{name}": op.tensor(key=str(i), location=f"cuda:0{name[:200]}")
            for i, name in enumerate(names)
        },
        "values": {name: [name, {name: name}] for name in names},
        "object": op.call(op.stack_global(evil, evil), evil),
    }
    path = folder / f"a{evil.replace(chr(0), '').replace('/', '')}.pt"
    try:
        path.write_bytes(
            op.torch_zip(
                op.pickled(everything, protocol=4),
                {str(i): op.SIX for i in range(len(names))},
            )
        )
    except OSError:
        pytest.skip("this file system refuses the name")
    return path


FORMS = {
    "text": (),
    "all": ("--all",),
    "depth": ("--depth", "5"),
    "tsv": ("--tsv",),
    "json": ("--json",),
    "github": ("--table", "github"),
    "html": ("--table", "html"),
    "storages": ("--storages",),
    "values": ("--values",),
    "imports": ("--imports",),
    "tsv-storages": ("--tsv", "--storages"),
    "tsv-values": ("--tsv", "--values"),
    "tsv-imports": ("--tsv", "--imports"),
    "no-such-section": ("--section", "modle"),
}
ENVIRONMENTS = {
    "utf-8": {},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "c-locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.slow
@pytest.mark.parametrize("locale", ENVIRONMENTS)
@pytest.mark.parametrize("form", FORMS)
def test_hostile_names_are_escaped(form: str, locale: str, tmp_path: Path) -> None:
    path = _hostile_file(tmp_path)
    done = ckpt("inspect", path, *FORMS[form], **ENVIRONMENTS[locale])
    assert done.code == (2 if form == "no-such-section" else 0), done.err
    assert raw_controls(done.out, "\n\t" if form.startswith("tsv") else "\n") == []
    assert raw_controls(done.err) == []
    for text in (done.out.decode(), done.err.decode()):
        assert not {
            char
            for char in text
            if 0x200B <= ord(char) <= 0x200F or 0x2028 <= ord(char) <= 0x202E
        }
        assert not {
            char
            for char in text
            if 0x2066 <= ord(char) <= 0x2069 or ord(char) >= 0xE0000
        }
        assert "\nFAKE ROW" not in text
    if locale != "utf-8":
        assert done.out.isascii() and done.err.isascii()
    if form.startswith("tsv"):
        assert len({line.count("\t") for line in done.lines}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "tsv", "json", "storages", "values"])
def test_name_of_a_megabyte(form: str, tmp_path: Path) -> None:
    """Cut for people, whole for programs; never a multiple of it."""
    path = _hostile_file(tmp_path, long=True)
    done = ckpt("inspect", path, *FORMS[form])
    assert (done.code, done.err) == (0, b"")
    assert raw_controls(done.out, "\n\t" if form == "tsv" else "\n") == []
    assert len(done.out) < 50 << 20


def test_json_keeps_the_exact_names(tmp_path: Path) -> None:
    path = _hostile_file(tmp_path, long=True)
    done = ckpt("inspect", path, "--json")
    assert (done.code, done.err) == (0, b"")
    assert done.out.isascii()
    document = json.loads(done.out)
    names = [*NAMES.values(), LONG]
    assert [row["path"] for row in document["tensors"]] == [
        *([name] for name in names),
        *(["model", f"_orig_mod.{name}"] for name in names),
    ]
    assert {row["device"] for row in document["tensors"]} == {
        f"cuda:0{name[:200]}" for name in names
    }
    assert document["file"]["path"] == str(path)
    assert any(row["module"] == hostile.HOSTILE_NAME for row in document["imports"])


def test_tsv_tells_all_names_apart(tmp_path: Path) -> None:
    done = ckpt("inspect", _hostile_file(tmp_path), "--tsv")
    names = [line.split("\t")[0] for line in done.lines[1:]]
    assert len(names) == len(set(names)) == 2 * len(NAMES)
    assert "a\\\\nb\\\\x1b" in names, "a backslash of the name is doubled"


@pytest.mark.slow
@pytest.mark.parametrize("locale", ENVIRONMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_get_of_hostile_names(name: str, locale: str, tmp_path: Path) -> None:
    """The row of a tensor, the text of a value: neither writes a raw control
    character.
    """
    if "\0" in NAMES[name] or "\ud800" in NAMES[name]:
        pytest.skip("no argument of a process can hold it")
    path = _hostile_file(tmp_path)
    done = ckpt(
        "get", path, NAMES[name], f"values.{NAMES[name]}", **ENVIRONMENTS[locale]
    )
    assert raw_controls(done.out, "\n\t") == []
    assert raw_controls(done.err) == []
    assert b"Traceback" not in done.err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["missing", "damaged", "section", "get"])
def test_messages_escape_what_was_typed(kind: str, name: str, tmp_path: Path) -> None:
    typed = NAMES[name].replace("\0", "").replace("\ud800", "")
    file_name = typed.replace("/", "")
    if kind == "missing":
        done = ckpt("inspect", file_name, cwd=tmp_path)
    elif kind == "damaged":
        (tmp_path / file_name).write_bytes(b"nothing")
        done = ckpt("inspect", tmp_path / file_name)
    elif kind == "section":
        done = ckpt("inspect", GOOD, "--section", typed)
    else:
        done = ckpt("get", GOOD, typed)
    check_error(done)


@pytest.mark.parametrize("kind", ["dtype", "shape", "metadata", "duplicate", "json"])
def test_messages_escape_what_the_header_says(kind: str, tmp_path: Path) -> None:
    evil = "\x1b[31m\n\x9b\u202e[/red]"
    header = {
        "dtype": {"w": op.entry(dtype=evil)},
        "shape": {evil: op.entry(shape=[evil])},
        "metadata": {"__metadata__": {evil: 5}},
        "duplicate": '{"%s":1,"%s":2}' % ((json.dumps(evil)[1:-1],) * 2),
        "json": "{" + evil,
    }[kind]
    path = tmp_path / "x.safetensors"
    path.write_bytes(op.safetensors_file(header, op.SIX))
    check_error(ckpt("inspect", path))


def test_colour_does_not_let_names_through(tmp_path: Path) -> None:
    """With FORCE_COLOR there are escapes of ours, and only styles: no cursor, no links,
    no markup of the file.
    """
    done = ckpt("inspect", _hostile_file(tmp_path), FORCE_COLOR="1")
    assert done.code == 0
    text = done.out.decode()
    styles = {"".join(part[: part.index("m") + 1]) for part in text.split("\x1b")[1:]}
    assert styles
    assert all(
        style.startswith("[") and style[1:-1].replace(";", "").isdigit()
        for style in styles
    )
    plain = text
    for style in styles:
        plain = plain.replace("\x1b" + style, "")
    assert raw_controls(plain.encode()) == []
    assert "[/red][bold]x[/bold]" in plain


# --------------------------------------------------------------------------------------
# encodings


@pytest.mark.parametrize("locale", ["ascii", "c-locale"])
@pytest.mark.parametrize(
    "name", ["train_cuda.pth", "yolo_style.pt", "whole_model.pth", "hostile.pth"]
)
def test_every_encoding_is_enough(name: str, locale: str) -> None:
    done = ckpt("inspect", name, cwd=SAMPLES, **ENVIRONMENTS[locale])
    assert (done.code, done.err) == (0, b"")
    assert done.out.isascii()


def test_module_and_command_are_the_same() -> None:
    code = "from ckpt.surface.cli.app import main; main()"
    assert python("-c", code, "inspect", GOOD).out == ckpt("inspect", GOOD).out
    assert (ROOT / "ckpt" / "__main__.py").exists()
