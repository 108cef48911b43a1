"""Docs cannot lie: what pages show is what the commands print, what they list is what the code has."""

from __future__ import annotations

import argparse
import importlib.util
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
import rewriting
import torch
from torch import nn

import ckpt
from ckpt import formats
from ckpt.cli.writing import written
from ckpt.findings import CATALOGUE
from ckpt.formats import FORMATS
from ckpt.formats.foreign import NOT_YET
from ckpt.formats.save import Saved
from ckpt.jobs.check.lint import LintReport, lint
from ckpt.jobs.check.lint import document as lint_document
from ckpt.jobs.check.stats import stats
from ckpt.jobs.check.verify import damaged
from ckpt.jobs.diff.diff import Options, diff
from ckpt.jobs.diff.rows import STATUSES, Cause
from ckpt.jobs.inspect.inspect import inspect
from ckpt.jobs.rewrite.rehome import moves, rehome
from ckpt.jobs.rewrite.warmstart import warmstart
from ckpt.limits import Limits

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_pages_show_what_the_commands_print() -> None:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "tools" / "refresh.py")
    assert spec is not None and spec.loader is not None
    refresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh)

    assert page("README.md").count("<!-- run: ") >= 12 and page("docs/migrate.md").count("<!-- run: ") >= 20
    assert page("docs/ddp.md").count("<!-- run: ") >= 5 and page("docs/errors.md").count("<!-- run: ") >= 7
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


def test_every_field_of_a_comparison_is_described(samples: Path) -> None:
    text = page("docs/json.md")
    described = set(re.findall(r"\w+", text))
    with (
        formats.open(str(samples / "ddp_before.pth")) as before,
        formats.open(str(samples / "ddp_after.pth")) as after,
    ):
        document = diff(before, after, Options(norms=True)).to_json()

    assert {name for name in fields(document) if "." not in name} - described == set()
    assert {status for status in STATUSES if f"`{status}`" not in text} == set()
    assert {cause for cause in get_args(Cause) if f"`{cause}`" not in text} == set()
    assert f"`{document['schema']['name']}`, version {document['schema']['version']}" in text


def test_every_field_of_a_check_is_described(samples: Path) -> None:
    text = page("docs/json.md")
    described = set(re.findall(r"\w+", text))
    path = str(samples / "whole_model.pth")
    with formats.open(path) as checkpoint:
        documents = [
            stats(checkpoint, threshold=1e-3).to_json(),
            lint_document([LintReport(path, tuple(lint(checkpoint)))]),
            damaged(path, "x", ["a"], ["b"]).to_json(),
            warmstart(checkpoint, checkpoint, Limits()).to_json(None, dry_run=True),
        ]
    for document in documents:
        assert fields(document) - described == set()
        assert f"`{document['schema']['name']}`, version {document['schema']['version']}" in text


def said_by_torch() -> list[str]:
    """The first lines of the errors that the page quotes, as the torch that is installed says them."""
    net = nn.Linear(2, 2)
    wrapped = {f"module.{name}": value for name, value in net.state_dict().items()}
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: "cuda:0"):
        on_gpu = rewriting.in_memory({"a": torch.ones(2)})
    objects = rewriting.in_memory({"args": argparse.Namespace()})
    samples = ROOT / "sample_checkpoints"
    tried: list[Callable[[], Any]] = [
        lambda: torch.load(io.BytesIO(on_gpu)),
        lambda: net.load_state_dict(wrapped),
        lambda: nn.Linear(2, 3).load_state_dict(net.state_dict()),
        lambda: torch.load(io.BytesIO(objects)),
        lambda: torch.load(samples / "legacy_python2.pth", map_location="cpu", weights_only=False),
        lambda: torch.load(samples / "whole_model.pth", weights_only=False),
        lambda: torch.load(samples / "lfs_pointer.pth", weights_only=False),
        lambda: torch.load(samples / "html_page.pth", weights_only=False),
        lambda: torch.load(samples / "truncated.pth"),
    ]
    found = []
    for attempt in tried:
        with pytest.raises(Exception) as caught:
            attempt()
        kind = type(caught.value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        found.append(f"{module}{kind.__qualname__}: {caught.value}")
    return found


def test_the_errors_of_the_page_are_torchs() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", page("docs/errors.md"), re.DOTALL)
    said = "\n".join(line.rstrip() for text in said_by_torch() for line in text.splitlines())

    assert len(blocks) >= 14
    elsewhere = (
        "CUDA device 1",
        "out of memory",
        "finished reduction",
        "did not receive",
        "central directory",
    )
    elsewhere += ("attribute 'Net'", "same device")
    for block in blocks:
        if not any(word in block for word in elsewhere):
            assert block.removeprefix("Weights") in said, block


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
    [
        *(
            "README.md",
            "SECURITY.md",
            "CONTRIBUTING.md",
            "docs/check.md",
            "docs/ddp.md",
            "docs/errors.md",
            "docs/findings.md",
        ),
        *("docs/json.md", "docs/migrate.md"),
    ],
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
