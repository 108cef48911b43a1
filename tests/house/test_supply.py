"""The lock of development and the checks of a release: they agree with pyproject.toml,
and they refuse what is wrong.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from process import ROOT, python

import ckpt

sys.path.insert(0, str(ROOT / "tools"))
import lock
import release

sys.path.remove(str(ROOT / "tools"))

LOCK = lock.LOCK.read_text(encoding="utf-8")
PROJECT = lock.pyproject()
OF_LOCK = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.0"}
"""The Python that the lock is for."""


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


# --------------------------------------------------------------------------------------
# the lock


def test_the_lock_has_the_pins_of_pyproject() -> None:
    pins = {normal(name): version for name, version in lock.pins().items()}
    assert "torch" in pins and len(pins) > 8
    locked = lock.locked(LOCK)
    assert {name: locked[name][0] for name in pins if name != "torch"} == {
        name: version for name, version in pins.items() if name != "torch"
    }, "make lock"
    assert "torch" not in locked


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="what the lock names is installed in 3.11"
)
def test_the_lock_is_whole_and_names_no_index() -> None:
    """`pip install --require-hashes` refuses a lock that lacks one requirement of one
    of its distributions.
    """
    locked = lock.locked(LOCK)
    wanted = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    for name in (*locked, "torch"):
        wanted += [
            Requirement(text) for text in importlib.metadata.requires(name) or ()
        ]
    needed = {
        normal(each.name)
        for each in wanted
        if not each.marker or each.marker.evaluate(OF_LOCK)
    }
    # The CUDA build of torch requires more, all of it of one maker.
    needed = {
        name for name in needed if not name.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert needed - {"torch"} <= locked.keys()
    assert all(hashes for _, hashes in locked.values())
    assert not release._HOSTS.search(LOCK.encode()) and "://" not in LOCK


def test_the_lock_of_the_site_has_its_pins_and_names_no_index() -> None:
    text = lock.SITE_LOCK.read_text(encoding="utf-8")
    locked = lock.locked(text)

    for pin in lock.SITE:
        name, _, version = pin.partition("==")
        assert locked[name][0] == version, "make lock"
    # What the two need, as far as it is known here: `pip install --require-hashes`
    # refuses a lock that lacks more.
    assert {
        "markdown",
        "jinja2",
        "pymdown-extensions",
        "pygments",
        "pyyaml",
        "click",
    } <= locked.keys()
    assert all(hashes for _, hashes in locked.values())
    assert not release._HOSTS.search(text.encode()) and "://" not in text


def test_the_pins_of_development_are_names_without_extras() -> None:
    assert any("[" in pin for pin in lock.wanted())
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in lock.pins())


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.org/simple",
        "rich",
        "rich==1",
        "rich>=1 --hash=sha256:" + "0" * 64,
    ],
)
def test_a_lock_with_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a pin"):
        lock.locked(f"{LOCK}\n{line}\n")


def test_what_builds_and_what_fuzzes_is_pinned() -> None:
    requirements = [
        *PROJECT["build-system"]["requires"],
        *(row for row in PROJECT["dependency-groups"]["fuzz"] if isinstance(row, str)),
    ]
    assert len(requirements) == 2
    assert all(re.fullmatch(r"[a-z_]+==[\d.]+", each) for each in requirements)


# --------------------------------------------------------------------------------------
# the release

GOOD = {
    **{
        path.relative_to(ROOT).as_posix(): b""
        for kind in ("*.py", "*.md", "*.fields")
        for path in (ROOT / "ckpt").rglob(kind)
    },
    **{
        path.relative_to(ROOT).as_posix(): b""
        for path in (ROOT / "ckpt/ext/page/html/assets").iterdir()
    },
    "ckpt/py.typed": b"",
    "torch_ckpt-1.dist-info/METADATA": b"Name: torch-ckpt\n",
    "torch_ckpt-1.dist-info/entry_points.txt": b"",
    "torch_ckpt-1.dist-info/licenses/LICENSE": b"",
}


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "torch_ckpt-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_a_wheel_is_the_package_and_nothing_else(tmp_path: Path) -> None:
    release.check_wheel(wheel(tmp_path, GOOD))
    for files in (
        {**GOOD, "tests/test_x.py": b""},
        {**GOOD, "ckpt/test_x.py": b""},
        {**GOOD, "ckpt/notes.txt": b""},
        {**GOOD, "ckpt/notes.md": b""},
        {
            name: data
            for name, data in GOOD.items()
            if name != "ckpt/ext/explain/errors.md"
        },
        {**GOOD, "evil.pth": b"import os"},
        {name: data for name, data in GOOD.items() if name != "ckpt/py.typed"},
        {name: data for name, data in GOOD.items() if name != "ckpt/model/nodes.py"},
        {
            name: data
            for name, data in GOOD.items()
            if name != "ckpt/ext/page/html/assets/echarts.NOTICE"
        },
        {**GOOD, "ckpt/large.py": os.urandom(3 << 20)},
        {name: data for name, data in GOOD.items() if not name.endswith("LICENSE")},
        {
            **GOOD,
            "ckpt/model/errors.py": b"# from https://files.python"
            + b"hosted"
            + b".org/x",
        },
        {**GOOD, "ckpt/model/errors.py": b"# https://mirror.local:8080/simple/rich"},
    ):
        with pytest.raises(release.CheckError):
            release.check_wheel(wheel(tmp_path, files))


def test_the_wheel_of_this_tree_passes(tmp_path: Path) -> None:
    path = tmp_path / "torch_ckpt-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in GOOD:
            file = ROOT / name
            archive.writestr(name, file.read_bytes() if file.is_file() else b"")

    release.check_wheel(path)


def test_an_sdist_is_the_sources_and_the_docs(tmp_path: Path) -> None:
    def sdist(names: set[str]) -> Path:
        path = tmp_path / "torch_ckpt-1.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"torch_ckpt-1/{name}"), io.BytesIO())
        return path

    names = (
        {"ckpt/__init__.py", "docs/speed.md"}
        | {name for name in release._TOP_OF_SDIST if "." in name}
        | {"LICENSE"}
    )
    names |= {"PKG-INFO"}
    release.check_sdist(sdist(names))
    for wrong in (names | {"tests/x.py"}, names - {"LICENSE"}):
        with pytest.raises(release.CheckError):
            release.check_sdist(sdist(wrong))


def bill(module: ModuleType = release, **changes: list[str]) -> dict[str, Any]:
    required = {"torch-ckpt": ["rich"], "rich": ["pygments"], "pygments": [], **changes}
    data = module.sbom("1.0", "0" * 64, required, LOCK)
    assert data == module.sbom("1.0", "0" * 64, dict(reversed(required.items())), LOCK)
    return dict(json.loads(data))


def test_the_sbom_says_what_the_wheel_requires() -> None:
    document = bill()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"]
    )
    rich = lock.locked(LOCK)["rich"]
    (row,) = (each for each in document["components"] if each["name"] == "rich")
    assert row["purl"] == row["bom-ref"] == f"pkg:pypi/rich@{rich[0]}"
    assert {each["content"] for each in row["hashes"]} == rich[1]
    references = {
        document["metadata"]["component"]["bom-ref"],
        *(row["bom-ref"] for row in document["components"]),
    }
    assert {each["ref"] for each in document["dependencies"]} == references
    assert all(
        set(each["dependsOn"]) <= references for each in document["dependencies"]
    )
    assert document["dependencies"][0]["dependsOn"] == [row["purl"]]


def test_the_sbom_of_what_is_not_locked_is_refused() -> None:
    with pytest.raises(release.CheckError, match="lacks left-pad"):
        bill(**{"left-pad": []})


# --------------------------------------------------------------------------------------
# what is published


def test_what_development_needs_is_no_extra_of_the_package() -> None:
    assert list(PROJECT["project"]["optional-dependencies"]) == [
        "torch",
        "cloud",
        "dask",
    ]
    assert list(PROJECT["dependency-groups"]) == ["dev", "fuzz"]


def test_the_groups_are_printed_for_a_pip_without_groups() -> None:
    dev = PROJECT["dependency-groups"]["dev"]
    for name, wanted in (
        ("dev", dev),
        ("fuzz", [*dev, PROJECT["dependency-groups"]["fuzz"][-1]]),
    ):
        done = python("tools/groups.py", name, cwd=ROOT)
        assert (done.code, done.lines) == (0, wanted)
    done = python("tools/groups.py", "docs", cwd=ROOT)
    assert (
        done.code == 1
        and done.err == b"pyproject.toml: the group docs is none of dev, fuzz\n"
    )


def test_the_citation_says_what_the_package_says() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    said = dict(re.findall(r"^([a-z-]+): \"?([^\"\n]+)\"?$", text, re.MULTILINE))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert (
        said["cff-version"] == "1.2.0"
        and said["message"]
        and said["type"] == "software"
    )
    assert (
        said["license"] == PROJECT["project"]["license"]
        and said["version"] == ckpt.__version__
    )
    assert f"## [{said['version']}] - {said['date-released']}\n" in changes
    assert said["abstract"] == f"{PROJECT['project']['description']}."
    assert f"  - name: {PROJECT['project']['authors'][0]['name']}\n" in text
    assert (
        re.findall(r"^  - (?!name)(\S+)$", text, re.MULTILINE)
        == PROJECT["project"]["keywords"]
    )
