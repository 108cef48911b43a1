"""What a notebook shows of a comparison: the verdict, and the frozen layers in the colour of an alarm."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import markup
import oracle
import pytest
import torch
from comparing import compared
from process import SAMPLES

import ckpt
from ckpt.render.palette import ALARM, KINDS, NONE, PALE, RAMP

pytestmark = oracle.QUIET
SPACE = "{http://www.w3.org/2000/svg}"


def colours(html: str) -> dict[str, str]:
    """The beginning of each title -> the colour of its tile."""
    picture = html[html.index("<svg xmlns") : html.index("</svg>") + len("</svg>")]
    found = {}
    for group in ElementTree.fromstring(picture).findall(f"{SPACE}g"):
        box = group.find(f"{SPACE}rect")
        assert box is not None
        found[(group.findtext(f"{SPACE}title") or "").partition(":")[0]] = box.attrib["fill"]
    return found


def test_frozen_layers_are_where_the_eye_falls() -> None:
    html = ckpt.diff(SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth")._repr_html_()
    _, text = markup.checked(html)

    found = colours(html)
    assert found["model.module.fc3.weight"] == ALARM
    assert [name for name, colour in found.items() if colour == ALARM and "fc3" not in name] == []
    assert "differ: 46 changed, 2 same" in text and "did not change 1.29 KiB" in text and "frozen" in text
    assert "46 tensors that differ" in text and "… 6 more" in text


@pytest.mark.parametrize(
    ("share", "level"), [(1e-6, 0), (5e-4, 1), (5e-3, 2), (5e-2, 3), (0.5, 4), (50.0, 4)]
)
def test_colours_say_how_far(share: float, level: int, tmp_path: Path) -> None:
    before = {"a": torch.ones(64, dtype=torch.float64), "b": torch.ones(64)}
    html = compared(before, {**before, "a": before["a"] * (1 + share)}, tmp_path)._repr_html_()

    assert colours(html) == {"a": RAMP[level], "b": PALE}


def test_what_has_no_change_to_measure(tmp_path: Path) -> None:
    before = {
        "same": torch.ones(9),
        "gone": torch.ones(8, 8),
        "shape": torch.ones(60),
        "zero": torch.zeros(70),
    }
    after = {"same": torch.ones(9), "new": torch.ones(9, 9), "shape": torch.ones(61), "zero": torch.ones(70)}

    assert colours(compared(before, after, tmp_path)._repr_html_()) == {
        "same": PALE,
        "gone": KINDS[6],
        "new": KINDS[2],
        "shape": KINDS[3],
        "zero": KINDS[7],
    }
    unread = colours(compared(before, after, tmp_path, structure=True)._repr_html_())
    assert (unread["same"], unread["zero"]) == (NONE, NONE), "values were not compared"


def test_equal_files(tmp_path: Path) -> None:
    html = compared({"a": torch.ones(4)}, {"a": torch.ones(4)}, tmp_path)._repr_html_()

    _, text = markup.checked(html)
    assert "same: 1 same" in text and "that differ" not in text


def test_nothing_of_the_files_is_markup(tmp_path: Path) -> None:
    evil = '</code></title><img src=x onerror=alert(1)>"$x$&'
    before = {f"{evil}{number}": torch.ones(10) for number in range(300)}
    after = {name: tensor * 2 for name, tensor in before.items()}

    html = compared(before, after, tmp_path)._repr_html_()
    markup.checked(html)
    assert len(html) < 300_000
