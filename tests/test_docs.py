"""Docs cannot lie: what pages show is what the commands print, what they list is what the code has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import ckpt
from ckpt import formats
from ckpt.cli.writing import written
from ckpt.findings import CATALOGUE
from ckpt.formats import FORMATS
from ckpt.formats.foreign import NOT_YET
from ckpt.jobs.inspect import inspect
from ckpt.jobs.rehome import moves, rehome
from ckpt.limits import Limits
from ckpt.writers import Saved

ROOT = Path(__file__).resolve().parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_pages_show_what_the_commands_print() -> None:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None and spec.loader is not None
    refresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh)

    assert page("README.md").count("<!-- run: ") >= 12 and page("docs/migrate.md").count("<!-- run: ") >= 20
    for name in refresh.PAGES:
        assert refresh.refreshed(page(name)) == page(name), f"{name} is stale: make docs"


def test_every_finding_has_its_place_on_the_page() -> None:
    made, kept = page("docs/findings.md").split("## Kept for the commands to come")
    titles = re.compile(r"^### ([a-z-]+)$", re.MULTILINE)

    assert set(titles.findall(made)) == {row.code for row in CATALOGUE.values() if row.by}
    assert set(titles.findall(kept)) == {row.code for row in CATALOGUE.values() if not row.by}
    for code, level in re.findall(r"^### ([a-z-]+)\n\n\*(\w+)\.\*", made, re.MULTILINE):
        assert CATALOGUE[code].level == level
    for row in CATALOGUE.values():
        if not row.by:
            assert f"### {row.code}\n\n*{row.level}.* {row.title[0].upper()}{row.title[1:]}." in kept


def fields(document: dict[str, Any]) -> set[str]:
    """Every field of a document, rows of lists by the first of them that has it."""
    found = set(document)
    for key, value in document.items():
        if isinstance(value, dict) and key not in ("dtypes", "devices"):
            found |= fields(value)
        elif isinstance(value, list) and key != "path":
            for row in value:
                if isinstance(row, dict):
                    found |= fields(row)
    return found


def test_every_field_of_the_document_is_described(samples: Path) -> None:
    text = page("docs/json.md")
    described = set(re.findall(r"\w+", text))
    for name in ("train_cuda.pth", "dtypes.pth", "objects.pth", "hostile.pth", "sharded"):
        with formats.open(str(samples / name)) as checkpoint:
            document = inspect(checkpoint).to_json()
        document["values"] = [row | {"value": None} for row in document["values"]]

        assert fields(document) - described == set(), name
        assert f"`{document['schema']['name']}`, version {document['schema']['version']}" in text


def test_every_field_of_a_rewrite_is_described(samples: Path) -> None:
    text = page("docs/json.md")
    described = set(re.findall(r"\w+", text))
    with formats.open(str(samples / "train_cuda.pth")) as checkpoint:
        report = rehome(checkpoint, moves(None, []), Limits())
    saved = Saved("x", "torch-zip", 1, None, (("structure", 0.1),), 0.1)
    document = report.to_json(written(saved), dry_run=False)

    assert fields(document) - described == set()
    assert f"`{document['schema']['name']}`, version {document['schema']['version']}" in text


def test_every_format_stands_in_the_readme() -> None:
    text = page("README.md")

    assert [
        reader.NAME for reader in FORMATS if f"| `{reader.NAME}` |" not in text and reader.NAME != "foreign"
    ] == []
    row = next(line for line in text.splitlines() if line.startswith("| not yet |"))
    for word in (
        "torch 0.1",
        "1.4's zip",
        "TorchScript 1.0",
        "torch.package",
        "PT2",
        "DCP",
        "DeepSpeed",
        "Megatron",
    ):
        assert word in row
    assert len(NOT_YET) == 8


@pytest.mark.parametrize(
    "name",
    ["README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/findings.md", "docs/json.md", "docs/migrate.md"],
)
def test_what_a_page_links_and_names_is_there(name: str) -> None:
    text = page(name)
    folder = (ROOT / name).parent

    assert [
        link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text) if not (folder / link).exists()
    ] == []
    paths = re.findall(r"`((?:tests|ckpt|docs)/[\w/]+\.\w+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_changelog_begins_with_what_is_not_released() -> None:
    titles = re.findall(r"^## \[(.+?)\]", page("CHANGELOG.md"), re.MULTILINE)

    assert titles[0] == "Unreleased"
    assert ckpt.__version__.endswith("dev0") or titles[1] == ckpt.__version__
