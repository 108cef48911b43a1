"""`make test-frameworks`: checkpoints that real frameworks write, and what ckpt says of
each, against the truth.

The usual suite does not collect this file. Each package is optional: without it, its
cases are skipped with a reason. `CKPT_FRAMEWORKS=FOLDER` keeps the files, and takes
what is in FOLDER.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

import optional  # noqa: E402, F401
from checks import all_checks  # noqa: E402

PACKAGES = sorted(
    path.stem.removeprefix("write_").replace("_", "-")
    for path in HERE.glob("write_*.py")
)
PER_PACKAGE = 600
"""Seconds that a package may take to write its files: only one that never ends
fails.
"""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    kept = os.environ.get("CKPT_FRAMEWORKS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept).resolve()
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made).resolve()


@pytest.fixture(scope="session")
def counts() -> Iterator[dict[str, tuple[int, int, Counter[str]]]]:
    """Files and statements of each package, printed as the rows of docs/frameworks.md
    when all is done.
    """
    rows: dict[str, tuple[int, int, Counter[str]]] = {}
    yield rows
    for package, (files, wrong, checked) in rows.items():
        version = importlib.metadata.version(package)
        print(
            (
                f"\n| {package} {version} | {files} | {sum(checked.values()):,} | "
                f"{wrong} |"
            ),
            end="",
            file=sys.stderr,
        )


def written(package: str, folder: Path) -> list[Path]:
    """The truths about the files of a package, which a process of its own writes."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    there = sorted(folder.glob(f"{package}-*/.truth/*.json"))
    if there and os.environ.get("CKPT_FRAMEWORKS"):
        return [path for path in there if is_of(path, package)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "YOLO_OFFLINE": "1",
        "PYTHONPATH": str(HERE),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "write.py"), str(folder), package],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PER_PACKAGE,
    )
    there = [
        path
        for path in sorted(folder.glob(f"{package}-*/.truth/*.json"))
        if is_of(path, package)
    ]
    assert there, done.stderr[-2000:]
    failed = [
        path.parent.name + ": " + path.read_text()[-300:]
        for path in folder.glob(f"{package}-*/FAILED")
    ]
    assert not failed, failed
    return there


def is_of(truth: Path, package: str) -> bool:
    return f'"package": "{package}"' in truth.read_text()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_package(
    package: str,
    folder: Path,
    tmp_path: Path,
    counts: dict[str, tuple[int, int, Counter[str]]],
) -> None:
    checked: Counter[str] = Counter()
    said: list[str] = []
    truths = written(package, folder)
    for number, truth in enumerate(truths):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        wrong = all_checks(truth, scratch)
        checked += wrong.checked
        said += [f"{truth.parent.parent.name}/{truth.stem} {line}" for line in wrong]
        for path in scratch.rglob("*"):
            if path.is_file():
                path.unlink()
    counts[package] = (len(truths), len(said), checked)
    assert not said, (
        f"{len(said)} of {sum(checked.values())} statements are wrong:\n"
        + "\n".join(said[:40])
    )
