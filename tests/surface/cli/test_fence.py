"""`lint`, `ls` and `verify` run behind the fence: what they print is the same, and a
bug of a reader cannot write.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deeds import HAS_FILTERS
from inside import inside
from process import SAMPLES, TIMEOUT, ckpt, environment, python, terminal
from webs import served

import ckpt as library
from ckpt.surface.api.walk import FEW

pytestmark = pytest.mark.skipif(not HAS_FILTERS, reason="this kernel filters no calls")

FENCED = ("lint", "ls", "verify")
"""The commands that run behind the fence."""

BUGGY = """
import os, socket, subprocess, sys
from pathlib import Path
from ckpt.bytes import source
deed, where, *sys.argv[1:] = sys.argv[1:]
first, opened = os.getpid(), source.Descriptor.__init__

def broken(self, path):
    if os.path.basename(path).startswith("b") and (where == "anywhere" or os.getpid() != first):
        exec(deed)
    opened(self, path)

if where == "folders":
    listed = os.scandir
    os.scandir = lambda path=".": exec(deed) or listed(path)
else:
    source.Descriptor.__init__ = broken
from ckpt.surface.cli import app
app.main()
"""
"""The command with a reader that does something at each file that begins with b, or at
each folder.
"""

STATUS = """
for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith(("Seccomp:", "NoNewPrivs:")):
        os.write(2, f"{os.getpid() == first} {line}\\n".encode())
"""

STOPPED = (
    "ckpt: the fence stopped a reader that writes, connects or starts a program "
    "(CKPT_FENCE=0 switches it off)"
)

DEEDS = {
    "write": "Path('stolen').write_text('x')",
    "append": "open('there', 'a').close()",
    "remove": "os.unlink('there')",
    "connect": "socket.create_connection(('127.0.0.1', 1))",
    "start": "subprocess.run(['touch', 'stolen'])",
    "shell": "os.system('touch stolen')",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the checkpoint `b.pth`, and `many`, a folder of more than one
    process reads.
    """
    (tmp_path / "many").mkdir()
    shutil.copy(SAMPLES / "ddp_after.pth", tmp_path / "b.pth")
    for number in range(2 * FEW):
        shutil.copy(SAMPLES / "ddp_after.pth", tmp_path / "many" / f"b{number}.pth")
    (tmp_path / "there").write_text("as it was")
    return tmp_path


def _buggy(
    deed: str, where: str, folder: Path, *arguments: str, **changes: str
) -> tuple[int, list[str]]:
    done = python(
        "-c", BUGGY, deed, where, *arguments, cwd=folder, env=environment(**changes)
    )
    return done.code, done.complaints


# --- they are fenced ------------------------------------------------------------------


@pytest.mark.parametrize("command", FENCED)
def test_a_file_is_read_inside(command: str, files: Path) -> None:
    _, said = _buggy(STATUS, "anywhere", files, command, "b.pth")

    assert {"True NoNewPrivs:\t1", "True Seccomp:\t2"} == {
        line for line in said if line.startswith("True ")
    }
    _, said = _buggy(STATUS, "anywhere", files, command, "b.pth", CKPT_FENCE="0")
    assert {"True NoNewPrivs:\t0", "True Seccomp:\t0"} == {
        line for line in said if line.startswith("True ")
    }


@pytest.mark.parametrize("command", FENCED)
def test_copies_of_the_process_read_inside(command: str, files: Path) -> None:
    _, said = _buggy(STATUS, "copies", files, command, "many", "-j", "3")

    lines = [line for line in said if line.startswith("False ")]
    assert (
        set(lines) == {"False NoNewPrivs:\t1", "False Seccomp:\t2"}
        and len(lines) >= 4 * FEW
    )


@pytest.mark.parametrize("command", ["inspect", "get"])
def test_other_commands_are_not_fenced(command: str, files: Path) -> None:
    words = (command, "b.pth") if command == "inspect" else (command, "b.pth", "epoch")
    _, said = _buggy(STATUS, "anywhere", files, *words)

    assert "True Seccomp:\t0" in said


# --- a bug of the reader --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", FENCED)
@pytest.mark.parametrize("deed", [name for name in DEEDS if name != "shell"])
def test_a_bug_is_named_and_does_nothing(deed: str, command: str, files: Path) -> None:
    code, said = _buggy(DEEDS[deed], "anywhere", files, command, "b.pth")

    assert code == 2
    assert re.fullmatch(
        r"ckpt: this is a bug in ckpt \S+, please report it with the lines above",
        said[-1],
    )
    assert said[-2] == STOPPED
    assert not any("b.pth:" in line for line in said), "the file is not to blame"
    assert (
        not (files / "stolen").exists() and (files / "there").read_text() == "as it was"
    )


@pytest.mark.parametrize("command", FENCED)
def test_a_bug_of_a_copy_is_named_too(command: str, files: Path) -> None:
    code, said = _buggy(DEEDS["write"], "copies", files, command, "many", "-j", "3")

    assert code == 2 and said[-2] == STOPPED and "this is a bug" in said[-1]
    assert not (files / "stolen").exists()


@pytest.mark.needs("dcp")
@pytest.mark.parametrize("command", FENCED)
def test_a_bug_at_a_folder_is_named_too(command: str, files: Path) -> None:
    """Not as a folder that cannot be read."""
    for folder in (files / "many", SAMPLES / "dcp"):
        code, said = _buggy(DEEDS["write"], "folders", files, command, str(folder))

        assert code == 2 and said[-2] == STOPPED and "this is a bug" in said[-1]
    assert not (files / "stolen").exists()


@pytest.mark.parametrize("deed", ["write", "start", "shell"])
def test_without_the_fence_it_is_done(deed: str, files: Path) -> None:
    """So that the tests above see the fence, and no mistake of their own."""
    code, _ = _buggy(DEEDS[deed], "anywhere", files, "ls", "b.pth", CKPT_FENCE="0")

    assert code == 0 and (files / "stolen").exists()


def test_a_refusal_that_is_swallowed_changes_no_answer(files: Path) -> None:
    code, said = _buggy(DEEDS["shell"], "anywhere", files, "verify", "b.pth")

    assert (code, said) == (0, [])
    assert not (files / "stolen").exists()


# --- all that is printed is the same --------------------------------------------------


SAME = (
    ("lint", "."),
    ("lint", ".", "--output-format", "sarif"),
    ("lint", ".", "--json", "--read-values", "-j", "2"),
    ("lint", "train_cuda.pth", "--read-values"),
    ("lint", "dcp", "sharded", "--output-format", "junit"),
    ("lint", "nothing.pth", "--statistics"),
    ("ls", "."),
    ("ls", ".", "--json", "-j", "3"),
    ("ls", "dcp", "sharded", "agent.zip", "--tsv"),
    ("ls", ".", "--table", "github", "--others"),
    ("ls", "--color", "always", "zoo.pkl"),
    ("verify", "."),
    ("verify", ".", "--json", "-j", "3"),
    (
        "verify",
        "dcp",
        "sharded",
        "scripted.pt",
        "weights.safetensors",
        "llama_bf16.pth",
    ),
    ("verify", "truncated.pth", "--quick"),
    ("verify", "ddp_after.pth", "--like", "ddp_before.pth"),
)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", SAME, ids=" ".join)
def test_it_changes_nothing_in_what_is_printed(arguments: tuple[str, ...]) -> None:
    assert ckpt(*arguments, cwd=SAMPLES) == ckpt(
        *arguments, cwd=SAMPLES, CKPT_FENCE="0"
    )


def test_on_a_terminal(files: Path) -> None:
    def shown(command: str, **changes: str) -> str:
        code = 1 if command == "lint" else 0
        text = terminal(command, "many", code=code, cwd=files, **changes)
        # how often a bar is drawn is up to the clock
        return re.sub(r"\r[^\r\n]*\033\[K", "", text)

    for command in FENCED:
        text = shown(command)
        assert text == shown(command, CKPT_FENCE="0") and "b10.pth" in text


@pytest.mark.parametrize("command", FENCED)
def test_stdout_may_be_a_file(command: str, files: Path) -> None:
    for mode in ("w", "a"):
        with open(files / "report.txt", mode) as out:
            words = [sys.executable, "-m", "ckpt", command, "b.pth", "--json"]
            ran = subprocess.run(
                words,
                stdout=out,
                cwd=files,
                env=environment(),
                timeout=TIMEOUT,
                check=False,
            )
        assert ran.returncode in (0, 1)
    lines = (files / "report.txt").read_bytes().splitlines(keepends=True)
    assert (
        len(lines) == 2
        and lines[0] == lines[1] == ckpt(command, "b.pth", "--json", cwd=files).out
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", FENCED)
def test_stdout_that_takes_nothing(command: str, files: Path) -> None:
    script = f'"$@" {command} b.pth --json'
    words = ["sh", "-c", f"{script} > /dev/full", "sh", sys.executable, "-m", "ckpt"]
    full = subprocess.run(
        words,
        cwd=files,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (full.returncode, full.stderr) == (
        2,
        b"ckpt: the output cannot be written: no space left on device\n",
    )
    words[2] = f"{script} > /dev/null"
    null = subprocess.run(
        words,
        cwd=files,
        env=environment(),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (null.returncode, null.stdout) == (
        ckpt(command, "b.pth", cwd=files).code,
        b"",
    )

    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ckpt", command, "b.pth", "--json"]
    with open(writer, "wb") as out:
        left = subprocess.run(
            words,
            cwd=files,
            env=environment(),
            stdout=out,
            timeout=TIMEOUT,
            check=False,
        )
    assert left.returncode == 141


@pytest.mark.slow
@pytest.mark.parametrize("command", FENCED)
def test_an_interrupt_ends_it_as_always(command: str, files: Path) -> None:
    waiting = "os.write(1, b'!'); import time; time.sleep(600)"
    for words in ((command, "b.pth"), (command, "many", "-j", "2")):
        child = subprocess.Popen(
            [sys.executable, "-c", BUGGY, waiting, "anywhere", *words],
            cwd=files,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdout.read(1) == b"!"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=TIMEOUT)
        assert (child.returncode, said) == (130, b"ckpt: interrupted\n"), words


# --- where it is not ------------------------------------------------------------------


def _fence(*arguments: str, cwd: Path = SAMPLES, **changes: str) -> str:
    """What CKPT_DEBUG says of the fence."""
    done = ckpt(*arguments, cwd=cwd, CKPT_DEBUG="1", **changes)
    (line,) = [line for line in done.complaints if line.startswith("ckpt: fence: ")]
    return line.removeprefix("ckpt: fence: ")


@pytest.mark.parametrize("command", FENCED)
def test_the_environment_switches_it_off(command: str) -> None:
    assert _fence(command, "legacy.pth", CKPT_FENCE="0") == "none: CKPT_FENCE=0"
    assert _fence(command, "legacy.pth", CKPT_FENCE="1").endswith("seccomp")
    assert (
        b"fence" not in ckpt(command, "legacy.pth", cwd=SAMPLES, CKPT_FENCE="0").err
    ), "else nothing is said"


def test_none_for_a_cluster() -> None:
    assert _fence("verify", "legacy.pth", "--cluster", "tcp://127.0.0.1:1").startswith(
        "none: --cluster"
    )


@pytest.mark.slow
def test_none_for_code_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import pathlib, torch\n"
        "def build():\n"
        "    pathlib.Path('built').touch()\n"
        "    return torch.nn.Linear(2, 2)\n"
    )
    said = _fence("lint", "--model", "model.py:build", cwd=tmp_path)

    assert said == "none: --model runs your own code" and (tmp_path / "built").exists()


def test_none_for_a_baseline_that_is_written(files: Path) -> None:
    said = _fence(
        "lint", ".", "--write-baseline", "--baseline", "known.json", cwd=files
    )
    assert said == "none: --write-baseline writes a file"


def test_none_for_an_object_store() -> None:
    for command in FENCED:
        assert _fence(
            command, "s3://127.0.0.1/a.pth", AWS_ENDPOINT_URL="http://127.0.0.1:1"
        ).startswith("none: a tool")


@pytest.mark.parametrize("command", FENCED)
def test_a_url_leaves_the_network(command: str, tmp_path: Path) -> None:
    with served() as web:
        url = web.put("/a.pth", (SAMPLES / "legacy.pth").read_bytes())
        assert _fence(command, url).endswith("seccomp")
        (tmp_path / "list").write_text(f"{url}\n")
        done = ckpt(command, "--files-from", tmp_path / "list", cwd=SAMPLES)
        assert done.code in (0, 1) and done == ckpt(
            command, url, cwd=SAMPLES, CKPT_FENCE="0"
        )


@pytest.mark.parametrize("command", FENCED)
def test_a_url_of_a_server_without_ranges_is_read(command: str) -> None:
    """The server sends the whole file, which cannot lie in a temporary one here."""
    with served() as web:
        web.ranges = False
        url = web.put("/a.pth", (SAMPLES / "ddp_after.pth").read_bytes())
        done = ckpt(command, url, cwd=SAMPLES)
        assert b"unreadable" not in done.out + done.err
        assert done == ckpt(command, url, cwd=SAMPLES, CKPT_FENCE="0")


def test_a_program_that_calls_a_command_is_not_fenced(files: Path) -> None:
    before = _status()
    for command in FENCED:
        assert inside(command, "b.pth", cwd=files).code in (0, 1)
        assert (
            b"none: this process does not end"
            in inside(command, "b.pth", cwd=files, CKPT_DEBUG="1").err
        )
    library.lint(files / "b.pth")
    library.ls(files / "b.pth")
    library.verify(files / "b.pth")

    assert _status() == before and "Seccomp:\t0" in before
    (files / "still").touch()


def _status() -> list[str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Seccomp:", "NoNewPrivs:"))]
