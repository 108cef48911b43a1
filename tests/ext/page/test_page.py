"""The page as bytes: self-contained, guarded by its policy, the same for the same
documents, and small.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from process import SAMPLES, ckpt
from reports import EVIL, documents, inspected, pages, payload_of

from ckpt.ext.page import html as page_module
from ckpt.ext.page.html import PACK_BYTES, SCRIPTS, embed_data, html_page

ASSETS = Path(page_module.__file__).parent / "assets"
OWN = [ASSETS / name for name in SCRIPTS]


class Parser(HTMLParser):
    """The elements of a page, and the text of those that hold scripts, styles
    or data.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))


def parsed(data: bytes) -> Parser:
    parser = Parser()
    parser.feed(data.decode())
    parser.close()
    return parser


def test_the_library_is_the_one_that_was_looked_at() -> None:
    """echarts.min.js of echarts 5.6.0 on npm, with its licences."""
    data = (ASSETS / "echarts.min.js").read_bytes()

    assert hashlib.sha256(data).hexdigest() == (
        "bf4a223524e40b77c304bec67e1222cf551f14880cf42c69dc046558e11c07b1"
    )
    assert b'.version="5.6.0"' in data
    assert "Apache License" in (ASSETS / "echarts.LICENSE").read_text()
    assert "Apache ECharts" in (ASSETS / "echarts.NOTICE").read_text()
    assert "Redistribution and use" in (ASSETS / "echarts.LICENSE-d3").read_text()
    assert {path.name for path in ASSETS.iterdir()} == {
        *SCRIPTS,
        "report.css",
        *(f"echarts.{end}" for end in ("min.js", "LICENSE", "NOTICE", "LICENSE-d3")),
    }


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_part_of_the_script_makes_markup_of_text_or_asks_for_anything(
    path: Path,
) -> None:
    text = path.read_text(encoding="utf-8")
    code = re.sub(r"//.*", "", text)

    assert text.startswith("// ") and text.count("\n") <= 400
    words = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\("
        r"|srcdoc|DOMParser"
    )
    words += (
        r"|createContextualFragment|\bfetch\b|XMLHttpRequest|WebSocket|\bimport\b"
        r"|localStorage|href|\.src\b"
    )
    assert re.findall(words, code) == []
    assert re.findall(r"renderMode: \"(?!richText)", code) == []
    assert (
        code.count("tooltip: ") == code.count("tooltip: tooltip(")
        and "</script" not in text
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["checkpoint", "diff", "stats", "series", "folder", "evil", "large"]
)
def test_a_page_needs_nothing_else(name: str) -> None:
    data = pages(name)
    parser = parsed(data)

    tags = [tag for tag, _ in parser.tags]
    assert sorted(tags) == sorted(
        [
            "html",
            "head",
            *["meta"] * 5,
            "title",
            "style",
            "body",
            "noscript",
            "div",
            *["script"] * 3,
        ]
    )
    names = {key for _, attributes in parser.tags for key in attributes}
    assert names == {"lang", "charset", "http-equiv", "content", "name", "id", "type"}
    style = next(text for tag, text in parser.texts if tag == "style" and text.strip())
    assert "url(" not in style and "@import" not in style


def hash_of(text: str) -> str:
    return (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    )


def test_the_policy_allows_the_scripts_and_the_style_of_the_page_alone() -> None:
    parser = parsed(pages("evil"))
    policy = next(
        attributes["content"]
        for _, attributes in parser.tags
        if "http-equiv" in attributes
    )
    text = pages("evil").decode()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)

    assert len(scripts) == 2 and len(style) == 1
    assert policy == (
        f"default-src 'none'; script-src {hash_of(scripts[0])} {hash_of(scripts[1])}; "
        f"style-src {hash_of(style[0])}; base-uri 'none'; form-action 'none'"
    )
    first = next(at for at, (tag, _) in enumerate(parser.tags) if tag == "meta")
    assert parser.tags[first + 1][1].get("http-equiv") == "Content-Security-Policy"


def test_data_cannot_end_its_element() -> None:
    text = pages("evil").decode()
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)

    assert data is not None and not re.search(
        r"[<>&\u2028\u2029]|[^\x00-\x7f]", data[1]
    )
    names = [
        row for view in payload_of(pages("evil"))["views"][1:] for row in names_of(view)
    ]
    assert {f"model.{name}" for name in EVIL} <= set(names)


def names_of(view: dict[str, Any]) -> list[str]:
    """The names of the tensors of a view, out of their columns."""
    column = view["tensors"]["columns"]["name"]
    return list(
        column["is"] if "is" in column else [column["of"][at] for at in column["at"]]
    )


def test_large_documents_are_deflated_and_small_ones_can_be_read() -> None:
    kind, text = embed_data({"views": ["x" * PACK_BYTES]})
    assert kind == "application/octet-stream" and len(text) < PACK_BYTES // 10
    assert json.loads(zlib.decompress(base64.b64decode(text))) == {
        "views": ["x" * PACK_BYTES]
    }
    kind, text = embed_data({"a": "</script>&\u2028\ud800"})
    assert (
        kind == "application/json"
        and text == r'{"a":"\u003c/script\u003e\u0026\u2028\ud800"}'
    )
    assert json.loads(text) == {"a": "</script>&\u2028\ud800"}


def test_equal_documents_give_equal_bytes() -> None:
    for name in ("checkpoint", "series"):
        assert html_page(json.loads(json.dumps(documents(name)))) == pages(name)


def test_a_hundred_thousand_tensors_take_ten_megabytes_at_most() -> None:
    data = pages("large")
    view = payload_of(data)["views"][0]

    assert view["tensors"]["count"] == 100_000 == len(set(names_of(view)))
    assert len(data) <= 10_000_000
    assert len(data) - len(pages("checkpoint")) <= 4_000_000


@pytest.mark.slow
def test_who_inspects_does_not_pay_for_pages(tmp_path: Path) -> None:
    import house

    for door in (
        "commands.inspect.command",
        "commands.ls.command",
        "commands.stats.command",
    ):
        reached = house.reached_from(door)
        assert not {name for name in reached if name.startswith("ext.page")}, door
    code = (
        "import sys; sys.argv = ['ckpt', 'diff', 'a', 'b']\n"
        "from ckpt.surface.cli import app\napp.program(['diff'])\n"
        "print([name for name in sys.modules if 'html' in name or "
        "name.startswith('ckpt.ext.page.views') or name == 'ckpt.bytes.target'])"
    )
    from process import python

    assert python("-c", code).out == b"[]\n"
    done = ckpt("report", "--help")
    assert done.code == 0 and b"-o report.html" in done.out


def test_only_strings_of_a_file_have_quotes() -> None:
    document = inspected(SAMPLES / "hostile.pth")
    (view,) = payload_of(html_page([document]))["views"]
    values = view["values"]["columns"]
    assert values["text"] == {"all": "posix.system('echo ckpt-sample')"}
    document["values"][0]["type"] = "str"
    (view,) = payload_of(html_page([document]))["views"]
    assert view["values"]["columns"]["text"] == {
        "all": "\"posix.system('echo ckpt-sample')\""
    }
