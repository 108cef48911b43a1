"""`make` sets .venv up, and makes it again where it is half made. Stand-ins for Python:
nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from process import ROOT, TIMEOUT

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None, reason="make is not there"
)

WORKS = '#!/bin/sh\necho "$@" >> installed\n'
BROKEN = "#!/bin/sh\nexit 1\n"
PYTHON = f"""#!/bin/sh
case "$*" in
"-m venv "*) mkdir -p .venv/bin && printf '%s' '{WORKS}' > .venv/bin/python && chmod +x .venv/bin/python; echo venv >> made ;;
esac
"""
NO_ENSUREPIP = """#!/bin/sh
case "$*" in "-m venv "*) mkdir -p .venv/bin; echo "ensurepip is not available"; exit 1 ;; esac
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile and a stand-in for Python."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    executable(tmp_path / "python", PYTHON)
    return tmp_path


def make(folder: Path, python: str = "./python") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", ".venv/.base", f"PYTHON={python}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def set_up(folder: Path) -> int:
    """How often .venv was made."""
    assert (folder / ".venv" / ".base").exists()
    assert "-m pip install --quiet --editable ." in lines(folder / "installed")
    return len(lines(folder / "made"))


def test_it_is_made_once(clone: Path) -> None:
    assert make(clone).returncode == 0 and set_up(clone) == 1
    before = lines(clone / "installed")
    assert make(clone).returncode == 0 and set_up(clone) == 1
    assert [
        line for line in lines(clone / "installed")[len(before) :] if "install" in line
    ] == []


@pytest.mark.parametrize(
    "state",
    ["empty", "no python", "gone", "broken", "broken after it was set up", "link"],
)
def test_a_half_made_one_is_made_again(clone: Path, state: str) -> None:
    python = clone / ".venv" / "bin" / "python"
    if state == "link":
        (clone / ".venv").symlink_to("nowhere")
    else:
        python.parent.mkdir(parents=True)
    if state == "gone":
        python.symlink_to("/nowhere/python3")
    if state.startswith("broken"):
        executable(python, BROKEN)
    if state.endswith("set up"):
        (clone / ".venv" / ".base").touch()

    done = make(clone)
    assert done.returncode == 0, done.stderr
    assert set_up(clone) == 1


def test_what_python_lacks_is_said_and_nothing_half_made_stays(clone: Path) -> None:
    executable(clone / "no_ensurepip", NO_ENSUREPIP)
    done = make(clone, "./no_ensurepip")
    assert (
        done.returncode == 2
        and "ensurepip is missing (Debian: apt install python3-venv)" in done.stderr
    )
    assert not (clone / ".venv").exists()

    executable(clone / "old", BROKEN)
    done = make(clone, "./old")
    assert (
        done.returncode == 2
        and "./old is older than Python 3.10, or is not there" in done.stderr
    )
    assert make(clone).returncode == 0 and set_up(clone) == 1


def test_the_lowest_typer_of_the_tests_is_that_of_the_package() -> None:
    said = subprocess.run(
        ["make", "--dry-run", "test-typer"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    ).stdout
    assert "for typer in typer==0.24.0 typer; do" in said
    assert '"typer>=0.24",' in (ROOT / "pyproject.toml").read_text()


def test_help_shows_the_frequent_targets_and_demo_is_the_default() -> None:
    text = (ROOT / "Makefile").read_text()
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=TIMEOUT
    ).stdout
    frequent, rare = text.split("# --- rarely needed ---")
    names = [line.split()[1] for line in shown.splitlines()]

    assert names == ["demo", "test", "check", "docs", "site", "bench"]
    assert all(
        f"\n{name}: " in frequent and f"\n{name}: " not in rare for name in names
    )
    assert ".DEFAULT_GOAL := demo\n" in frequent
