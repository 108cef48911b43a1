"""The code on docs/python.md, run in a copy of the samples: each line prints what the
page shows.
"""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path

import pytest

import ckpt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_code_of_the_page(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(samples, tmp_path / "samples")
    monkeypatch.chdir(tmp_path / "samples")
    blocks = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    test = doctest.DocTestParser().get_doctest(
        "".join(blocks), {}, "docs/python.md", str(PAGE), 0
    )
    printed: list[str] = []

    results = doctest.DocTestRunner(verbose=False).run(test, out=printed.append)

    assert not results.failed, "".join(printed)
    assert results.attempted >= 15


def test_every_public_name_stands_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for name in ckpt.__all__:
        assert name.startswith("__") or f"ckpt.{name}" in text, name
