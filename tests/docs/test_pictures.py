"""The pictures show what the commands print today, in both schemes, and load
nothing.
"""

from __future__ import annotations

import re
import sys
from difflib import unified_diff
from html import unescape
from xml.etree import ElementTree

import pytest
from process import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import pictures

sys.path.remove(str(ROOT / "tools"))

NAMES = [
    f"{pictures.FOLDER}/{name}-{scheme}.svg"
    for name in pictures.COMMANDS
    for scheme in pictures.THEMES
]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def changes(before: str, after: str) -> str:
    """The lines in which two pictures differ, without their tags."""
    lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(unescape(re.sub("<[^>]*>", " ", line)) for line in lines)


def test_the_pictures_are_those_of_today() -> None:
    made = pictures.pictures()

    assert sorted(made) == sorted(NAMES)
    assert sorted(
        path.name for path in (ROOT / pictures.FOLDER).glob("*.svg")
    ) == sorted(name.rpartition("/")[2] for name in NAMES)
    for name, svg in made.items():
        assert svg == text(name), f"make docs: {name}\n{changes(text(name), svg)}"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_a_small_svg_that_loads_nothing(name: str) -> None:
    svg = text(name)
    root = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}

    assert tags <= {"svg", "style", "defs", "clipPath", "rect", "g", "text", "circle"}
    assert re.findall(r"https?://[^\s\"']+", svg) == ["http://www.w3.org/2000/svg"]
    assert (
        "@import" not in svg
        and "@font-face" not in svg
        and set(re.findall(r"url\((.)", svg)) == {"#"}
    )
    assert len(svg) < 40_000


def test_a_picture_shows_the_screen_with_its_colours() -> None:
    svg = pictures.drawn(
        "\x1b[1;31mDANGER\x1b[0m  it runs <x> &\nplain\n",
        "ckpt inspect x",
        "hostile",
        "dark",
    )
    style, words = re.findall(r'class="hostile-dark-(r\d+)"[^>]*>([^<]+)<', svg)[0]

    assert unescape(words) == "DANGER"
    rule = re.search(rf"\.hostile-dark-{style} {{ (.*) }}", svg)
    assert rule is not None and "#ff7b72" in rule[1] and "bold" in rule[1]
    assert (
        "it&#160;runs&#160;&lt;x&gt;&#160;&amp;" in svg
        and "$&#160;ckpt&#160;inspect&#160;x" in svg
    )


@pytest.mark.parametrize("name", NAMES)
def test_nothing_hides_the_underscores_of_a_picture(name: str) -> None:
    """They reach 5 pixels below the line: no clip ends above, and an underline lies
    lower.
    """
    svg = text(name)
    clip = re.search(
        (
            r'<clipPath id="\S+-clip-terminal"><rect x="0" y="0" width="\S+" '
            r'height="(\S+)"/>'
        ),
        svg,
    )
    lines = [
        float(y)
        for y in re.findall(r'<text class="\S+" x="\S+" y="(\S+)" textLength', svg)
    ]

    assert clip is not None and float(clip[1]) >= max(lines) + 5
    assert svg.count("clip-path=") == 1 and "underline" not in svg
    drawn = {
        float(y)
        for y in re.findall(r'<rect x="\S+" y="(\S+)" width="\S+" height="1" ', svg)
    }
    assert {round(y - 5.5, 6) for y in drawn} <= set(lines)


def test_an_underline_is_a_line_in_the_colour_of_its_text() -> None:
    svg = pictures.drawn("ab \x1b[4;31mc_d\x1b[0m\n", "ckpt ls .", "ls", "dark")
    (line,) = re.findall(
        r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="1" fill="(\S+)"/><text', svg
    )

    assert line == ("36.6", "25.5", "36.6", "#ff7b72")


def test_every_picture_stands_on_a_page_in_both_schemes() -> None:
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = set()
    for path in pages:
        for dark, light in re.findall(
            r'srcset="([^"]+)">\n  <img alt="[^"]+" src="([^"]+)">',
            path.read_text("utf-8"),
        ):
            assert dark.replace("-dark", "-light") == light
            shown |= {
                (path.parent / each).resolve().relative_to(ROOT).as_posix()
                for each in (dark, light)
            }

    assert shown == set(NAMES)
