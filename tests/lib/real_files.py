"""Checkpoints that nobody here made: fetched once from the package index, by hash, into
a cache outside the repository.

Without an index the tests that need them are skipped. `CKPT_TEST_CACHE` names another
cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest
from process import TIMEOUT

CACHE = Path(
    os.environ.get("CKPT_TEST_CACHE") or Path.home() / ".cache" / "torch-ckpt-tests"
)
WHEELS = {
    "facenet": (
        "facenet-pytorch==2.6.0",
        "facenet_pytorch-2.6.0-py3-none-any.whl",
        "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca",
    ),
    "lpips": (
        "lpips==0.1.4",
        "lpips-0.1.4-py3-none-any.whl",
        "fd537af5828b69d2e6ffc0a397bd506dbc28ca183543617690844c08e102ec5e",
    ),
    "pesto": (
        "pesto-pitch==2.0.1",
        "pesto_pitch-2.0.1-py3-none-any.whl",
        "2eb1e5ac1c2f78f7563f4800cccd73daf04d52717ff0d95ea30257a56f3f9d37",
    ),
}
FILES = {
    **{
        f"facenet/{name}.pt": f"facenet_pytorch/data/{name}.pt"
        for name in ("onet", "pnet", "rnet")
    },
    **{
        f"lpips/{version}/{name}.pth": f"lpips/weights/{version}/{name}.pth"
        for version in ("v0.0", "v0.1")
        for name in ("alex", "squeeze", "vgg")
    },
    **{
        f"pesto/{name}.ckpt": f"pesto/weights/{name}.ckpt"
        for name in ("mir-1k", "mir-1k_g7")
    },
}
"""Name in the tests -> member of the wheel that the name begins with."""


def path(file: str) -> Path:
    """A real file, ready to read. Skips the test when it is not in the cache and no
    index can be reached.
    """
    wheel = file.partition("/")[0]
    found = (
        CACHE
        / wheel
        / WHEELS[wheel][2][:12]
        / Path(FILES[file]).relative_to(Path(FILES[file]).parts[0])
    )
    if not found.exists():
        reason = _unpack(wheel)
        if reason:
            pytest.skip(reason)
    return found


@cache
def _unpack(wheel: str) -> str:
    """Put the members of a wheel into the cache. Returns why that is impossible, or
    nothing.
    """
    reason = _fetch(wheel)
    if reason:
        return reason
    with zipfile.ZipFile(CACHE / WHEELS[wheel][1]) as archive:
        for file, member in FILES.items():
            if file.startswith(f"{wheel}/"):
                inner = Path(member).relative_to(Path(member).parts[0])
                _write(
                    CACHE / wheel / WHEELS[wheel][2][:12] / inner, archive.read(member)
                )
    return ""


def _fetch(wheel: str) -> str:
    requirement, name, digest = WHEELS[wheel]
    target = CACHE / name
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == digest:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text(f"{requirement} --hash=sha256:{digest}\n")
        options = [
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--retries=1",
            "--timeout=10",
            "--no-input",
        ]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            *options,
            "--dest",
            folder,
            "-r",
            str(pins),
        ]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return f"{requirement} cannot be fetched: pip took too long"
        if "DO NOT MATCH THE HASHES" in ended.stderr:
            raise AssertionError(
                f"the index gives another {name} than the one that the tests know"
            )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["pip failed"])[-1]
            return f"{requirement} cannot be fetched: {last}"
        data = Path(folder, name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    _write(target, data)
    return ""


def _write(target: Path, data: bytes) -> None:
    """Whole or not at all: several workers may fetch at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(target)
