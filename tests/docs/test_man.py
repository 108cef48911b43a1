"""The man pages that `make man` makes of the help: complete, and without a warning of
groff.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from process import ROOT, TIMEOUT
from typer.main import get_command

from ckpt.surface.cli.app import COMMANDS, program
from ckpt.surface.cli.options import exclusions_of


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man", ROOT / "tools" / "man.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    made: dict[str, str] = maker().pages()
    return made


def test_there_is_a_page_for_each_command(pages: dict[str, str]) -> None:
    assert set(pages) == {"ckpt.1", *(f"ckpt-{name}.1" for name in COMMANDS)}
    for name in COMMANDS:
        escaped = name.replace("-", "\\-")
        assert (
            f".B {escaped}\n" in pages["ckpt.1"]
            and f"ckpt\\-{escaped}(1)" in pages["ckpt.1"]
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_exclusion(
    name: str, pages: dict[str, str]
) -> None:
    command = get_command(program([name]))
    command = getattr(command, "commands", {name: command})[name]
    page = pages[f"ckpt-{name}.1"].replace("\\-", "-")

    for param in command.params:
        shown = (
            ", ".join(param.opts)
            if param.param_type_name == "option"
            else param.metavar.strip("{}")
        )
        assert f".TP\n.B {shown}" in page, shown
    for exclusion in exclusions_of(name):
        assert f".PP\n{exclusion}\n" in page
    titles = re.findall(r"^\.SH (.*)$", page, re.MULTILINE)
    wanted = (
        "NAME SYNOPSIS DESCRIPTION ARGUMENTS OPTIONS EXIT STATUS ENVIRONMENT SEE ALSO"
    )
    assert " ".join(titles) == wanted
    assert ".B 141\n" in page and ".B NO_COLOR\n" in page and "](" not in page


def test_every_line_is_text_or_a_request_that_we_mean(pages: dict[str, str]) -> None:
    for page in pages.values():
        requests = {
            line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))
        }
        assert requests <= {".TH", ".SH", ".PP", ".TP", ".B", ".nf", ".fi"}
        assert page.isascii() and "\x08" not in page


def test_text_is_no_request() -> None:
    text = maker()._text

    assert text(".so x") == "\\&.so x" and text("'br") == "\\&'br"
    assert text("a\\n-1 → é") == "a\\en\\-1 \\[u2192] \\[u00E9]"


def test_groff_has_nothing_to_warn_about(pages: dict[str, str], tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff here")
    for name, page in pages.items():
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-z"],
            input=page.encode(),
            capture_output=True,
            timeout=TIMEOUT,
        )
        assert (done.returncode, done.stderr) == (0, b""), name
