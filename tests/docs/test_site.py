"""The site: every page has one place, every link leads somewhere, and a browser asks
nothing of other places.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import browser
import pytest
from process import ROOT, TIMEOUT

from ckpt.surface.cli import app

sys.path.insert(0, str(ROOT / "tools"))
import website

pytestmark = pytest.mark.slow

sys.path.remove(str(ROOT / "tools"))

SOURCES = website.sources()
PLACES = {name: place for place, name in SOURCES.items()}
PAGES = sorted(name for name in PLACES if name.endswith(".md"))
LATER = {"docs/cluster.md"}
"""Pages that have a place and may not be there yet."""


# --------------------------------------------------------------------------------------
# the navigation


def test_every_page_has_one_place_in_the_navigation() -> None:
    listed = [name for names in website.nav().values() for name in names]

    assert sorted(listed) == PAGES, "NAV of tools/website.py"
    named = {name for names in website.NAV.values() for name in names} - {
        website.COMMANDS
    }
    assert {name for name in named if not (ROOT / name).exists()} <= LATER
    assert {*website.OUTSIDE, *website.TITLES} <= set(PAGES)


def test_every_command_is_in_the_navigation_in_its_order() -> None:
    names = website.nav()["Commands"]
    assert names == [
        "docs/commands/README.md",
        *(f"docs/commands/{name}.md" for name in app.COMMANDS),
    ]


def test_pictures_and_schemas_are_on_the_site() -> None:
    for folder in ("img", "schema"):
        beside = {
            f"{folder}/{path.name}" for path in (ROOT / "docs" / folder).iterdir()
        }
        assert beside and beside <= SOURCES.keys()
    assert len(set(PLACES.values())) == len(PLACES)


# --------------------------------------------------------------------------------------
# the sources

SOME = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "docs/ddp.md": "ddp.md",
    "docs/commands/get.md": "commands/get.md",
    "docs/img/a-dark.svg": "img/a-dark.svg",
    "docs/img/a-light.svg": "img/a-light.svg",
}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        (
            "README.md",
            "[a](docs/ddp.md#b) [`c`](docs/commands/get.md)",
            "[a](ddp.md#b) [`c`](commands/get.md)",
        ),
        (
            "README.md",
            "[a](#b) <https://c> [d](https://e/f.md)",
            "[a](#b) <https://c> [d](https://e/f.md)",
        ),
        (
            "docs/ddp.md",
            "[a](../SECURITY.md) [b](../README.md#c)",
            "[a](security.md) [b](index.md#c)",
        ),
        (
            "docs/commands/get.md",
            "[a](../../SECURITY.md) [b](../ddp.md)",
            "[a](../security.md) [b](../ddp.md)",
        ),
        (
            "docs/ddp.md",
            "```md\n[a](nowhere.md)\n```\n[b](ddp.md)",
            "```md\n[a](nowhere.md)\n```\n[b](ddp.md)",
        ),
        (
            "docs/ddp.md",
            '`src="x.md"` <img src="img/a-dark.svg">',
            '`src="x.md"` <img src="img/a-dark.svg">',
        ),
        ("README.md", '<img src="docs/img/a-dark.svg">', '<img src="img/a-dark.svg">'),
        (
            "README.md",
            "<!-- run: ckpt ls -->\n```console\n$ ckpt ls\n```",
            "```console\n$ ckpt ls\n```",
        ),
        (
            "docs/commands/get.md",
            '<picture>\n  <source media="(prefers-color-scheme: dark)" '
            'srcset="../img/a-dark.svg">\n'
            '  <img alt="ckpt: a" src="../img/a-light.svg">\n</picture>',
            (
                "![ckpt: a](../img/a-light.svg#only-light)\n![ckpt: "
                "a](../img/a-dark.svg#only-dark)"
            ),
        ),
    ],
)
def test_a_page_is_moved_with_its_links(name: str, text: str, wanted: str) -> None:
    assert website.page(text, name, SOME) == wanted


@pytest.mark.parametrize("target", ["LICENSE", "docs/gone.md", "../x.md", "docs"])
def test_a_link_to_what_is_not_on_the_site_is_an_error(target: str) -> None:
    with pytest.raises(
        website.SiteError,
        match=re.escape(f"README.md links {target}, which is not on the site"),
    ):
        website.page(f"[a]({target})", "README.md", SOME)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_moved(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    moved = website.page(text, name, PLACES)

    assert (
        not re.search(r"\n<!-- (?:run|/?fields)\b", moved) and "<picture>" not in moved
    )
    assert moved.count("```") == text.count("```")
    assert re.findall(r"^#+ .+$", moved, re.MULTILINE) == re.findall(
        r"^#+ .+$", text, re.MULTILINE
    )
    # GitHub takes a list or a table right below a paragraph; the site needs an empty
    # line between.
    prose = re.sub(r"^```.*?^```$", "", moved, flags=re.DOTALL | re.MULTILINE)
    assert (
        re.findall(r"^(?![-|\d\s#>]).+\n(?:- |\d+\. |\|).*$", prose, re.MULTILINE) == []
    )


def test_anchors_are_those_of_github() -> None:
    titles = {
        "`ckpt.get`, version 1": "ckptget-version-1",
        "Formats & more -- of others": "formats--more----of-others",
        "键名 a": "键名-a",
    }
    assert {title: website.slug(title) for title in titles} == titles


def test_the_settings_name_nothing_elsewhere(tmp_path: Path) -> None:
    settings = website.settings(tmp_path / "pages", tmp_path / "site")
    text = json.dumps(settings, default=str)

    assert (
        settings["theme"]["font"] is False
        and settings["strict"]
        and not settings["use_directory_urls"]
    )
    assert "//" not in text and "http" not in text
    shim = (website.HERE / "iframe-worker.js").read_bytes()
    assert hashlib.sha256(shim).hexdigest() == website.SHIM and b"http" not in shim
    assert "MIT" in (website.HERE / "iframe-worker.LICENSE").read_text()


# --------------------------------------------------------------------------------------
# outputs in colours


def test_the_colours_of_a_terminal_become_classes() -> None:
    html = website.terminal(
        "$ ckpt x\n\x1b[1;31mDANGER <b>\x1b[0m \x1b[4m& a_b\x1b[m "
        "plain\x1b[36mc\x1b[1md"
    )

    assert html == (
        '<div class="highlight terminal"><pre><code>$ ckpt x\n<span class="sgr-1 '
        'sgr-31">DANGER &lt;b&gt;</span> '
        '<span class="sgr-4">&amp; a_b</span> plain<span class="sgr-36">c</span><span '
        'class="sgr-36 sgr-1">d</span>'
        "\n</code></pre></div>\n"
    )


def test_each_code_of_a_terminal_has_its_style() -> None:
    """Those that the commands print, in the colours of both schemes."""
    style = (website.HERE / "main.html").read_text(encoding="utf-8")

    for code in (1, 2, 4, 31, 32, 33, 36):
        assert f".sgr-{code}{{" in style
    assert all(style.count(f"--sgr-{code}:#") == 2 for code in (31, 32, 33, 36))


def test_a_page_gets_its_outputs_in_their_order() -> None:
    same = "```console\n$ ckpt ls\na\n```\n"
    blocks = [
        website.Block(same, "<1>\n"),
        website.Block("```console\ngone\n```\n", "<2>\n"),
        website.Block(same, "<3>\n"),
    ]

    assert (
        website.in_colours(f"x\n{same}y\n{same}z\n{same}", blocks)
        == f"x\n<1>\ny\n<3>\nz\n{same}"
    )


def test_outputs_are_run_again_where_there_is_a_python(tmp_path: Path) -> None:
    """One block in colours; the one whose text is of another day stays as it is."""
    root = tmp_path / "root"
    (root / "docs" / "commands").mkdir(parents=True)
    (root / ".venv" / "bin").mkdir(parents=True)
    page = ROOT / "docs" / "strangers.md"
    block = re.search(
        r"<!-- run: ckpt inspect hostile\.pth -->\n```console\n.*?\n```\n",
        page.read_text("utf-8"),
        re.DOTALL,
    )
    assert block is not None
    (root / "docs" / "strangers.md").write_text(
        f"{block[0]}\n{block[0].replace('do not', 'do')}", encoding="utf-8"
    )
    assert website.outputs(root) == {}

    python = root / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (shown,) = website.outputs(root)["docs/strangers.md"]
    assert shown.plain == block[0].partition("\n")[2]
    assert '<span class="sgr-1 sgr-31">do not load it</span>' in shown.html


# --------------------------------------------------------------------------------------
# the check

POLICY = re.search(r"<meta http-equiv.*?>", (website.HERE / "main.html").read_text())
assert POLICY is not None
HEAD = f'<html><head>{POLICY[0]}<link rel="stylesheet" href="a.css"></head><body>'
GOOD = {
    "index.html": (
        f'{HEAD}<h1 id="top">A</h1><a href="b/c.html#d">x</a> <a '
        'href="https://example.org/">y</a> <img src="e.svg#only-dark">'
    ),
    "b/c.html": f'{HEAD.replace("a.css", "../a.css")}<h2 id="d%e">D</h2><a name="d"></a><a href="../index.html">up</a><a href="#d">here</a>'
    '<a href="../e.svg">file</a><img srcset="../e.svg 1x, ../e.svg 2x"><p '
    'style="background: url(data:image/png;base64,AA)">',
    "a.css": (
        '.a{background:url("e.svg")} '
        ".b{background:url(data:image/svg+xml;charset=utf-8,<svg>)}"
    ),
    "e.svg": "<svg/>",
}


def site(folder: Path, **changes: Callable[[str], str]) -> Path:
    for name, text in GOOD.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        change = changes.get(path.stem)
        path.write_text(change(text) if change else text, encoding="utf-8")
    return folder


def test_a_good_site_has_no_problem(tmp_path: Path) -> None:
    assert website.problems(site(tmp_path)) == []


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('<a href="gone.html">', "gone.html is not there"),
        ('<a href="b/c.html#gone">', "b/c.html#gone has no such anchor"),
        ('<a href="#gone">', "#gone has no such anchor"),
        ('<a href="/index.html">', "/index.html begins at the root of a server"),
        ('<a href="../../x.html">', "../../x.html is not there"),
        ('<a href="b">', "b is not there"),
        ('<a href="javascript:x()">', "links javascript:x()"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "loads https://cdn.example/x.js",
        ),
        ('<script src="//cdn.example/x.js"></script>', "loads //cdn.example/x.js"),
        (
            '<link rel="preconnect" href="https://fonts.example">',
            "loads https://fonts.example",
        ),
        (
            '<link rel="Stylesheet" href="http://a.example/b.css">',
            "loads http://a.example/b.css",
        ),
        ('<img src="https://a.example/b.png">', "loads https://a.example/b.png"),
        (
            '<img srcset="e.svg 1x, https://a.example/b.png 2x">',
            "loads https://a.example/b.png",
        ),
        ('<iframe src="https://a.example/"></iframe>', "loads https://a.example/"),
        ('<object data="https://a.example/b"></object>', "loads https://a.example/b"),
        (
            '<svg><use xlink:href="https://a.example/b#c"/></svg>',
            "loads https://a.example/b#c",
        ),
        (
            '<p style="background:url(https://a.example/b)">',
            "loads https://a.example/b",
        ),
        (
            "<style>@import 'https://a.example/b.css';</style>",
            "loads https://a.example/b.css",
        ),
        ('<img src="gone.svg">', "gone.svg is not there"),
    ],
)
def test_a_problem_is_found(tmp_path: Path, added: str, problem: str) -> None:
    assert website.problems(site(tmp_path, index=lambda text: text + added)) == [
        f"index.html: {problem}"
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"c": lambda text: text.replace("Content-Security", "X")},
            "b/c.html: no policy",
        ),
        (
            {"c": lambda text: text.replace("img-src 'self'", "img-src https:")},
            "b/c.html: no policy",
        ),
        (
            {"c": lambda text: text.replace("default-src 'none'", "default-src *")},
            "b/c.html: no policy",
        ),
        (
            {"index": lambda text: f'<script src="e.svg"></script>{text}'},
            "index.html: e.svg is loaded before",
        ),
        (
            {"a": lambda text: text + "@import url(https://a.example/b.css);"},
            "a.css: loads https://a.example/b.css",
        ),
        (
            {"a": lambda text: text.replace("e.svg", "f.svg")},
            "a.css: f.svg is not there",
        ),
    ],
)
def test_a_weak_policy_and_a_greedy_style_are_found(
    tmp_path: Path, changes: dict[str, Callable[[str], str]], problem: str
) -> None:
    assert [
        line
        for line in website.problems(site(tmp_path, **changes))
        if line.startswith(problem)
    ] != []


# --------------------------------------------------------------------------------------
# the site itself

PYTHON = ROOT / ".site" / "bin" / "python"
CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        pytest.skip("the environment of the site is not there: make site")
    out = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [PYTHON, "tools/website.py", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_shows_outputs_in_colours(built: Path) -> None:
    text = (built / "strangers.html").read_text(encoding="utf-8")

    assert re.search(r'<span class="sgr-1 sgr-31">DANGER  </span>', text)
    pages = [
        (built / place.replace(".md", ".html")).read_text(encoding="utf-8")
        for name, place in PLACES.items()
        if name.endswith(".md")
    ]
    runs = sum(
        (ROOT / name).read_text(encoding="utf-8").count("\n<!-- run: ")
        for name in PAGES
        if name != "CONTRIBUTING.md"
    )
    assert sum(page.count('<div class="highlight terminal">') for page in pages) == runs


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there")
def test_no_page_is_wider_than_a_telephone(built: Path) -> None:
    """Lines of outputs break; at the width of a desk they need not."""
    shown = browser.browser()
    fits = "(code) => code.scrollWidth <= code.clientWidth"
    for name, width in (
        (name, width)
        for name in ("commands/ls.html", "strangers.html")
        for width in (390, 1300)
    ):
        shown.open(built / name, width=width, wait="document.readyState === 'complete'")
        assert shown.run("document.documentElement.scrollWidth") == width
        assert shown.run(f"[...document.querySelectorAll('pre>code')].every({fits})")
        shown.run(
            "document.querySelectorAll('pre>code').forEach((code) => { "
            "code.style.whiteSpace = 'pre'; })"
        )
        short = (
            "(code) => code.textContent.split('\\n').every((line) => line.length <= "
            "100)"
        )
        outputs = (
            f"[...document.querySelectorAll('.terminal pre>code')].filter({short})"
        )
        assert shown.run(f"{outputs}.length") > 2
        assert shown.run(f"{outputs}.every({fits})") == (width > 1000)


def test_the_site_is_built_and_whole(built: Path) -> None:
    wanted = {re.sub(r"\.md$", ".html", place) for place in SOURCES}

    assert website.problems(built) == []
    assert wanted <= {path.relative_to(built).as_posix() for path in built.rglob("*")}
    for name in ("404.html", "sitemap.xml"):
        assert not (built / name).exists()
    index = json.loads(
        (built / "search" / "search_index.json").read_text(encoding="utf-8")
    )
    assert {re.sub(r"\.md$", ".html", PLACES[name]) for name in PAGES} <= {
        row["location"].partition("#")[0] for row in index["docs"]
    }
    assert (built / "search" / "search_index.js").exists()


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_start_page_shows_what_the_readme_shows(built: Path, name: str) -> None:
    source = (ROOT / name).read_text(encoding="utf-8")
    text = (built / PLACES[name].replace(".md", ".html")).read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", text)

    assert f'<html lang="{"zh-CN" if "zh" in name else "en"}"' in text
    for line in re.findall(r"^(?:## |\$ ckpt )(.+)$", source, re.MULTILINE):
        assert re.sub(r"[`']", "", line)[:30] in re.sub(r"[`']|&#39;", "", shown), line
    assert text.count("<td>") == 2 * (source.count("\n| ") - 1)
    assert re.findall(r"img/([\w-]+\.svg)#only-(\w+)", text) == [
        ("inspect-light.svg", "light"),
        ("inspect-dark.svg", "dark"),
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there")
@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("rehome", "commands/rehome.html"),
        ("safetensors", "formats.html"),
        ("called-on-load", "findings.html"),
        ("did not receive grad", "errors.html"),
        ("失效通道", "index.zh-CN.html"),  # in the middle of a sentence
        ("--sub", "commands/rename.html"),
        ("--in-place", "commands/rehome.html"),
        ("--map", "commands/rehome.html"),
        ("-q", "commands/lint.html"),
        ("weights_only", "strangers.html"),
    ],
)
def test_search_works_from_a_folder(
    built: Path, tmp_path: Path, words: str, place: str
) -> None:
    """In a browser without a server and without a network."""
    assert CHROMIUM is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    options += [
        "--virtual-time-budget=30000",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}",
    ]
    address = f"{(built / 'index.html').as_uri()}?q={quote(words)}"
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    results = re.findall(
        r'<a href="([^"?#]+)[^"]*" class="md-search-result__link', done.stdout
    )

    assert (built / place).as_uri() in results
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
