"""Builds what a release consists of and checks it: `make release-check`. Nothing is
uploaded.

In dist/: the wheel, the sdist, and an SBOM (CycloneDX 1.6, JSON) of the wheel and what
it requires, with the versions and the hashes of tools/dev.lock. Each is built twice,
and both times must give the same bytes. The wheel is installed into an environment of
its own, from which `ckpt --version` runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lock import LOCK, ROOT, locked, pyproject

DIST = ROOT / "dist"
EPOCH = "1735689600"
"""The time of every file in the archives, 2025-01-01: what is built depends on the
sources alone.
"""
_HOSTS = re.compile(
    rb"py(?:pi|thonhosted)\.org|--(?:extra-)?index-url|--find-links|file:///"
    rb"|://[^/\s\"']+/simple\b"
)
_WANTED = (
    "ckpt/__init__.py",
    "ckpt/__main__.py",
    "ckpt/py.typed",
    "ckpt/surface/cli/app.py",
)
_KINDS = (
    ".py",
    ".fields",
    "/py.typed",
    *(f"ckpt/ext/explain/{name}.md" for name in ("findings", "errors")),
)
"""The ends of what the package holds."""
_ASSETS = "ckpt/ext/page/html/assets/"
"""The folder of what a page of HTML is made of."""
_MOST = 3 << 20
"""Bytes that a wheel may have."""
_TOP_OF_SDIST = {
    "ckpt",
    "docs",
    "CHANGELOG.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "pyproject.toml",
}


class CheckError(Exception):
    """What is wrong with a release, in one sentence."""


# --------------------------------------------------------------------------------------
# what is in the archives


def check_wheel(path: Path) -> None:
    """Raise CheckError unless a wheel holds the package, its metadata, and nothing
    else.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        tops = {name.partition("/")[0] for name in names}
        metadata = next((top for top in tops if top.endswith(".dist-info")), "")
        if tops != {"ckpt", metadata}:
            raise CheckError(
                f"{path.name} holds {', '.join(sorted(tops))}: expected ckpt and its "
                "metadata"
            )
        if path.stat().st_size > _MOST:
            raise CheckError(
                f"{path.name} has {path.stat().st_size:,} bytes, more than {_MOST:,}"
            )
        inside = [name for name in names if name.startswith("ckpt/")]
        odd = [
            name
            for name in inside
            if not name.endswith(_KINDS) and not name.startswith(_ASSETS)
        ]
        if odd or any("test" in name for name in names):
            raise CheckError(
                f"{path.name} holds what is no part of the package: {(odd or names)[0]}"
            )
        missing = {
            *_WANTED,
            f"{metadata}/licenses/LICENSE",
            f"{metadata}/entry_points.txt",
        } - set(names)
        if missing:
            raise CheckError(f"{path.name} lacks {', '.join(sorted(missing))}")
        sources = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "ckpt").rglob("*")
            if path.name.endswith((".py", ".md")) or path.parent.name == "assets"
        }
        if sources - set(names):
            raise CheckError(f"{path.name} lacks {min(sources - set(names))}")
        _check_hosts(path.name, {name: archive.read(name) for name in names})


def check_sdist(path: Path) -> None:
    """Raise CheckError unless an sdist holds what the wheel is built from, the docs,
    and nothing else.
    """
    with tarfile.open(path) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        tops = {member.name.split("/")[1] for member in files}
        if tops != _TOP_OF_SDIST:
            raise CheckError(
                f"{path.name}: {', '.join(sorted(tops ^ _TOP_OF_SDIST))} is missing or "
                "too much"
            )
        _check_hosts(
            path.name,
            {member.name: archive.extractfile(member).read() for member in files},
        )  # type: ignore[union-attr]


def _check_hosts(archive: str, files: Mapping[str, bytes]) -> None:
    """Raise CheckError where a file names the index from which something came."""
    for name, data in files.items():
        found = _HOSTS.search(data)
        if found:
            raise CheckError(
                f"{name} in {archive} names a package index: "
                f"{found[0].decode('latin-1')}"
            )


# --------------------------------------------------------------------------------------
# SBOM


def sbom(
    version: str, digest: str, required: Mapping[str, Iterable[str]], lock: str
) -> bytes:
    """The SBOM of the wheel with this SHA-256: `required` maps each distribution, and
    the wheel's own name, to what it requires. Raises CheckError for one that the lock
    lacks.
    """
    pins = locked(lock)
    lacking = sorted(
        name for name in required if name not in pins and name != "torch-ckpt"
    )
    if lacking:
        raise CheckError(f"tools/dev.lock lacks {', '.join(lacking)}")

    def component(
        name: str, kind: str, release: str, hashes: Iterable[str]
    ) -> dict[str, Any]:
        return {
            "type": kind,
            "bom-ref": reference(name),
            "name": name,
            "version": release,
            "purl": reference(name),
            # One hash for each file of a release: a wheel for every platform, and the
            # sdist.
            "hashes": [
                {"alg": "SHA-256", "content": content} for content in sorted(hashes)
            ],
        }

    def reference(name: str) -> str:
        return f"pkg:pypi/{name}@{version if name == 'torch-ckpt' else pins[name][0]}"

    names = sorted(name for name in required if name != "torch-ckpt")
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest + lock)}",
        "version": 1,
        "metadata": {
            "component": component("torch-ckpt", "application", version, [digest])
        },
        "components": [component(name, "library", *pins[name]) for name in names],
        "dependencies": [
            {
                "ref": reference(name),
                "dependsOn": sorted(map(reference, required[name])),
            }
            for name in ("torch-ckpt", *names)
        ],
    }
    document["metadata"]["component"]["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    return json.dumps(document, indent=2).encode() + b"\n"


_REQUIRED = """
import json, re
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
found, todo = {}, ["torch-ckpt"]
while todo:
    name = todo.pop()
    if name not in found:
        wanted = [Requirement(text) for text in requires(name) or ()]
        found[name] = sorted({re.sub("[-_.]+", "-", each.name).lower() for each in wanted
                              if each.marker is None or each.marker.evaluate({"extra": ""})})
        todo += found[name]
print(json.dumps(found))
"""
"""What the environment of the wheel holds because the wheel requires it, as its
metadata say.
"""


# --------------------------------------------------------------------------------------
# building


def _environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def _run(*command: object, **options: Any) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**clean, "SOURCE_DATE_EPOCH": EPOCH},
        **options,
    ).stdout


_BUILD = (
    "import sys, flit_core.buildapi as api; print(getattr(api, "
    "f'build_{sys.argv[1]}')(sys.argv[2]))"
)


def _built(python: Path, kind: str) -> Path:
    """The archive of a kind in dist/. Raises CheckError when a second build differs."""
    with tempfile.TemporaryDirectory() as again:
        name = _run(python, "-c", _BUILD, kind, DIST, cwd=ROOT).split()[-1]
        _run(python, "-c", _BUILD, kind, again, cwd=ROOT)
        if (DIST / name).read_bytes() != Path(again, name).read_bytes():
            raise CheckError(f"{name} differs from build to build")
    return DIST / name


def main() -> None:
    """Build, check, and write dist/."""
    project = pyproject()
    lock = LOCK.read_text(encoding="utf-8")
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("torch_ckpt-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        python = _environment(Path(folder, "build"))
        _run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            *project["build-system"]["requires"],
        )
        wheel, sdist = _built(python, "wheel"), _built(python, "sdist")
        check_wheel(wheel)
        check_sdist(sdist)
        version = wheel.name.split("-")[1]

        clean = _environment(Path(folder, "clean"))
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(
            "".join(f"{name}=={pin}\n" for name, (pin, _) in locked(lock).items())
        )
        _run(
            clean, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel
        )
        said = _run(clean.with_name("ckpt"), "--version", cwd=folder).strip()
        if version not in said.split():
            raise CheckError(
                f"ckpt --version of the installed wheel says {said}, the wheel is "
                f"{version}"
            )
        sample = ROOT / "sample_checkpoints" / "train_cuda.pth"
        _run(clean.with_name("ckpt"), "inspect", sample, cwd=folder)

        required = json.loads(_run(clean, "-c", _REQUIRED, cwd=folder))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        bill = DIST / f"torch_ckpt-{version}.cdx.json"
        bill.write_bytes(sbom(version, digest, required, lock))
        _check_hosts(
            "dist", {bill.name: bill.read_bytes(), LOCK.name: LOCK.read_bytes()}
        )
    for path in (wheel, sdist, bill):
        print(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}"
        )


if __name__ == "__main__":
    try:
        main()
    except (CheckError, subprocess.CalledProcessError) as error:
        sys.exit(f"release-check: {error}")
