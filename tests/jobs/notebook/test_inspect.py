"""What a notebook shows of a checkpoint and of a report: text, a picture and tables, and nothing that runs or loads."""

from __future__ import annotations

from pathlib import Path

import markup
import oracle
import pytest
import rewriting
import torch
from process import SAMPLES

import ckpt

pytestmark = oracle.QUIET


@pytest.mark.parametrize(
    "path", sorted(p for p in SAMPLES.iterdir() if p.suffix in (".pth", ".pt", ".ckpt")), ids=lambda p: p.name
)
def test_an_open_checkpoint_shows_what_its_report_shows(path: Path) -> None:
    try:
        opened = ckpt.open(path)
    except ckpt.CkptError:
        return
    with opened:
        html = opened._repr_html_()
        assert html is not None and html == ckpt.inspect(opened)._repr_html_()
    _, text = markup.checked(html)
    assert path.name in text
    for section in opened.sections:
        assert section.tensors == 0 or section.name.split(".")[0] in text


def test_the_tree_the_picture_and_the_legend() -> None:
    with ckpt.open(SAMPLES / "train_cuda.pth") as opened:
        tags, text = markup.checked(opened._repr_html_() or "")

    assert "46 tensors, 16.0 KiB" in text and "float32 46.3 KiB" in text and "int64 56 B" in text
    assert "weights-only" in text and "model.module.bn1.weight" in text and "… 75 more" in text
    assert sum(tag == "rect" for tag, _ in tags) > 30


def test_a_closed_file_is_shown_or_none_is(tmp_path: Path) -> None:
    path = rewriting.saved({"a": torch.ones(3)}, tmp_path / "a.pt")
    opened = ckpt.open(path)
    opened.close()
    path.unlink()

    html = opened._repr_html_()
    assert html is None or "1 tensor, 12 B" in html


def test_nothing_of_the_file_is_markup(tmp_path: Path) -> None:
    evil = '</code></title><img src=x onerror=alert(1)><script>1</script>"\u202e$x$&'
    state = {f"{evil}{number}.{evil}": torch.ones(100 + number) for number in range(60)}
    path = rewriting.saved({"m": state, evil: evil}, tmp_path / "<b>&.pt")

    html = ckpt.inspect(path)._repr_html_()
    assert html is not None
    _, text = markup.checked(html)
    assert "<img src=x onerror=alert(1)>" in text and "\u202e" not in html
    assert len(html) < 300_000


def test_a_file_without_tensors(tmp_path: Path) -> None:
    html = ckpt.inspect(rewriting.saved({"epoch": 1}, tmp_path / "a.pt"))._repr_html_()

    tags, text = markup.checked(html or "")
    assert "0 tensors" in text and "svg" not in {tag for tag, _ in tags}
