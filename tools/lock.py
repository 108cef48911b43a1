"""Writes tools/dev.lock and tools/site.lock: every distribution that development and
the site need, with the hashes of its files: `make lock`. The site has an environment of
its own, because what it needs would bind what is tested.

torch is in neither. Its builds (CPU, CUDA, ROCm) share one version and differ in their
hashes and in what they require, and which one is right depends on the machine. What the
CPU build requires is in dev.lock, so that torch alone is left: `pip install
--require-hashes -r tools/dev.lock`, then `pip install --no-deps torch==VERSION` from
the index that you trust. pip-compile resolves, in an environment of its own; no lock
names an index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "dev.lock"
SITE_LOCK = ROOT / "tools" / "site.lock"
PIP_TOOLS = "7.6.2"
SITE_PYTHON = "3.10"
SITE = (
    "mkdocs-material==9.7.7",
    "mkdocs==1.6.1",
    "backrefs==8.1",
    "markdown==3.10.3",
    "platformdirs==4.12.4",
    "pymdown-extensions==12.3",
    "python-dateutil==3.0.0",
    "watchdog==6.0.0",
)
"""The builders of the site, then their requirements whose newer versions refuse Python
3.10 (one refuses Debian 12's 3.11.2).
"""
_OF_TORCH = (
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "typing-extensions",
)
_HEAD = """\
# Linux x86_64, CPython 3.11 and later. `make lock` writes it; tools/lock.py says why torch is not in it.
# pip install --require-hashes -r tools/dev.lock
"""
_HEAD_OF_SITE = """\
# CPython 3.10 and later. `make lock` writes it, `make site` uses it.
# pip install --require-hashes -r tools/site.lock
"""


def pyproject() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted() -> list[str]:
    """The pins of pyproject.toml for development on CPython 3.11 and later, with their
    extras.
    """
    rows = [row.partition("; ") for row in pyproject()["dependency-groups"]["dev"]]
    return [pin for pin, _, marker in rows if marker != "python_version < '3.11'"]


def pins() -> dict[str, str]:
    """The distributions of these pins, and their versions."""
    return dict(re.sub(r"\[.*\]", "", pin).split("==") for pin in wanted())


def locked(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name -> (version, SHA-256 of its files) of a lock. Raises ValueError for a line
    that is anything else.
    """
    found: dict[str, tuple[str, frozenset[str]]] = {}
    lines = [
        line
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and line.strip()[0] != "#"
    ]
    for line in lines:
        pin, *hashes = line.split()
        match = re.fullmatch(r"([a-z0-9-]+)==([\w.!+]+)", pin)
        if (
            match is None
            or not hashes
            or not all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes)
        ):
            raise ValueError(f"not a pin with its hashes: {line[:200]}")
        found[match[1]] = (
            match[2],
            frozenset(each.removeprefix("--hash=sha256:") for each in hashes),
        )
    return found


def main(*names: str) -> None:
    """Resolve, and write the locks of these names, or both."""
    needed = [pin for pin in wanted() if not pin.startswith("torch==")]
    if "site" in names or not names:
        text = compiled(SITE)
        check_python(text, SITE_PYTHON)
        SITE_LOCK.write_text(_HEAD_OF_SITE + text, encoding="utf-8")
    if "dev" in names or not names:
        LOCK.write_text(_HEAD + compiled((*needed, *_OF_TORCH)), encoding="utf-8")


def compiled(requirements: Iterable[str]) -> str:
    """What pip-compile makes of requirements: pins with hashes."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "some.in"), Path(folder, "some.lock")
        given.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv", "bin", "python")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", f"pip-tools=={PIP_TOOLS}"],
            check=True,
        )
        options = [
            "--quiet",
            "--generate-hashes",
            "--strip-extras",
            "--allow-unsafe",
            "--no-annotate",
            "--no-header",
        ]
        options += [
            "--no-emit-index-url",
            "--no-emit-find-links",
            "--no-emit-trusted-host",
            "--no-emit-options",
        ]
        subprocess.run(
            [python, "-m", "piptools", "compile", *options, "-o", out, given],
            check=True,
        )
        text = out.read_text(encoding="utf-8")
    locked(text)
    return text


def check_python(text: str, version: str) -> None:
    """Raise CalledProcessError where pip would not install a lock on an older Python;
    nothing is installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "some.lock")
        given.write_text(text, encoding="utf-8")
        options = [
            "--python-version",
            version,
            "--only-binary",
            ":all:",
            "--target",
            folder,
            "--dry-run",
        ]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed"]
        subprocess.run([*pip, *options, "--require-hashes", "-r", given], check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
