"""The words of errors: options on the command line, keywords in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside

import ckpt
from ckpt.model.errors import as_keywords


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("-o a.cpu.pt, or --in-place", 'out="a.cpu.pt", or in_place=True'),
        ("-o 'a b.pt'", 'out="a b.pt"'),
        ("-o out/ --with-config, or -o a.pth", 'out="out/", with_config=True, or out="a.pth"'),
        ("--force to replace", "force=True to replace"),
        ("--limit pickle-bytes=N raises this", "limits=ckpt.Limits(pickle_bytes=N) raises this"),
        ("--packing in-out, or --packing out-in", 'packing="in-out", or packing="out-in"'),
        ("--into TARGET, or --into-model FILE.py:FACTORY", "into=TARGET, or into_model=FILE.py:FACTORY"),
        ("--section G, or --section net.0", 'section="G", or section="net.0"'),
        ("--exclude 'a*' leaves it out", "exclude='a*' leaves it out"),
        ("ckpt slim a.pt -o b.pt --strip", "ckpt slim a.pt -o b.pt --strip"),
        ("models--org--name is a folder", "models--org--name is a folder"),
        ("did you mean --a", "did you mean --a"),
    ],
)  # fmt: skip
def test_a_hint_has_the_keywords_of_python(hint: str, said: str) -> None:
    assert as_keywords(hint, is_hint=True) == said


def test_a_problem_names_the_keyword_and_its_value() -> None:
    assert as_keywords("--fail-on frozn: not a finding") == (
        'fail_on="frozn": not a finding'
    )
    assert as_keywords("less than --min-coverage 0.9 of the model") == (
        "less than min_coverage=0.9 of the model"
    )
    assert as_keywords("--copy goes with --in-place") == "copy= goes with in_place="


def test_one_error_has_the_words_of_who_asked(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(b"")
    for _ in range(2):  # the command line leaves Python its own words
        done = inside("slim", "a.pt", "-o", "b.pt", cwd=tmp_path)
        assert done.complaints == ["ckpt: b.pt: already exists (--force to replace)"]
        with pytest.raises(ckpt.UsageError, match=r"exists \(force=True to replace\)$"):
            ckpt.slim(tmp_path / "a.pt", out=tmp_path / "b.pt")
        with pytest.raises(ckpt.UsageError, match=r'\(out="\S*a\.slim\.pt"\)$'):
            ckpt.slim(tmp_path / "a.pt")
