"""Builds the site from README.md and docs/ into site/, and checks it: `make site`.

The site is mkdocs-material 9.7 on mkdocs 1.6, in an environment of its own (.site/,
pinned in tools/site.lock): 9.8 needs Python 3.11, and its newest requirements refuse
the one of Debian 12. Its search works from a folder on the disk, without a server, and
it checks links and anchors of the sources. The theme gets fixes until May 2027; its
successor, zensical, is at 0.1 and reads the same settings. What the theme would load
from elsewhere is switched off or is here: fonts are those of the reader's system, and
tools/website/ has the shim that search needs without a server. A
Content-Security-Policy on every page forbids the rest.

Pages are written for GitHub. Here links to files outside of docs/ become links to their
pages, anchors are those of GitHub, and a picture follows the colours of the page. A
link that leads nowhere is an error, in a source or in what was built.
"""

from __future__ import annotations

import html.parser
import os
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "tools" / "website"
SHIM = "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609"
"""SHA-256 of tools/website/iframe-worker.js: shim/index.js of iframe-worker 1.0.4 on
npm, of the author of the theme.
"""

OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "sample_checkpoints/README.md": "samples.md",
}
"""Pages that do not lie in docs/ -> their place on the site."""

COMMANDS = "commands/"
"""The pages of commands, in the order of their table. A new one needs no entry here."""
NAV: dict[str, tuple[str, ...]] = {
    "Start": ("README.md", "README.zh-CN.md"),
    "Guides": (
        "docs/ddp.md",
        "docs/strangers.md",
        "docs/gate.md",
        "docs/distributed.md",
        "docs/cluster.md",
        "docs/remote.md",
        "docs/migrate.md",
        "docs/layouts.md",
        "docs/quantised.md",
        "docs/scripting.md",
        "docs/integrations.md",
    ),
    "Commands": (COMMANDS,),
    "Errors and findings": (
        "docs/errors.md",
        "docs/errors.zh-CN.md",
        "docs/findings.md",
    ),
    "Reference": (
        "docs/formats.md",
        "docs/frameworks.md",
        "docs/json.md",
        "docs/python.md",
        "docs/speed.md",
        "SECURITY.md",
    ),
    "Project": ("sample_checkpoints/README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
}
"""The parts of the site, and their pages as paths below the root. A page that is not
there is left out.
"""
TITLES = {
    "README.md": "ckpt",
    "README.zh-CN.md": "中文",
    "docs/errors.zh-CN.md": "PyTorch 报错对照",
}

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`[^`\n]*`)")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ATTRIBUTE = re.compile(r'(\b(?:src|href|srcset)=")([^"]+)(")')
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" '
    r'srcset="(.+?)">\s*<img alt="(.+?)" src="(.+?)">\s*</picture>'
)
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_MADE = re.compile(r"^<!-- (?:run: .+?|fields: .+?|/fields) -->\n", re.MULTILINE)


class SiteError(Exception):
    """What is wrong with a page or with the site, one problem in each line."""


# --------------------------------------------------------------------------------------
# the sources


def sources(root: Path = ROOT) -> dict[str, str]:
    """Place on the site -> path below the root, of all pages and of what lies beside
    them.
    """
    found = {place: path for path, place in OUTSIDE.items()}
    for path in sorted((root / "docs").rglob("*")):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            place = name.removeprefix("docs/")
            found[place.replace("commands/README.md", "commands/index.md")] = name
    return found


def nav(root: Path = ROOT) -> dict[str, list[str]]:
    """The pages of each part of the site, as paths below the root."""
    return {
        part: [name for each in names for name in _named(each, root)]
        for part, names in NAV.items()
    }


def _named(name: str, root: Path) -> Iterator[str]:
    if name == COMMANDS:
        table = "docs/commands/README.md"
        yield table
        rows = re.findall(
            r"^\| \[`ckpt .+?\]\(([\w-]+\.md)\)",
            (root / table).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        yield from (f"docs/commands/{row}" for row in rows)
    elif (root / name).exists():
        yield name


def page(text: str, name: str, places: Mapping[str, str]) -> str:
    """A page as the site has it. `places` maps paths below the root to places on the
    site.

    Raises SiteError for a link to what is not on the site.
    """
    here = places[name]

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        path, mark, anchor = target.partition("#")
        if re.match(r"[a-z][a-z+.-]*:|//", target) or not path:
            return match[0]
        at = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if at not in places:
            raise SiteError(f"{name} links {target}, which is not on the site")
        found = posixpath.relpath(places[at], posixpath.dirname(here) or ".")
        return f"{match[1]}{found}{mark}{anchor}{match[3]}"

    def pictures(match: re.Match[str]) -> str:
        dark, text, light = match.groups()
        return f"![{text}]({light}#only-light)\n![{text}]({dark}#only-dark)"

    def prose(part: str) -> str:
        part = _PICTURE.sub(pictures, _MADE.sub("", part))
        cut = _CODE.split(
            _LINK.sub(moved, part)
        )  # the text of a link may be code, so links come first
        return "".join(
            piece if at % 2 else _ATTRIBUTE.sub(moved, piece)
            for at, piece in enumerate(cut)
        )

    return "".join(
        part if at % 2 else prose(part) for at, part in enumerate(_FENCE.split(text))
    )


def slug(title: str, separator: str = "-") -> str:
    """The anchor that GitHub gives a title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def assemble(
    folder: Path, root: Path = ROOT, shown: Mapping[str, Iterable[Block]] | None = None
) -> None:
    """Write the pages as the site has them, and what lies beside them, into a new
    folder. Raises SiteError.
    """
    shown = shown or {}
    found = sources(root)
    places = {name: place for place, name in found.items()}
    for place, name in found.items():
        to = folder / place
        to.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text = page((root / name).read_text(encoding="utf-8"), name, places)
            to.write_text(in_colours(text, shown.get(name, ())), encoding="utf-8")
        else:
            shutil.copyfile(root / name, to)
    (folder / "assets").mkdir()
    shutil.copyfile(HERE / "iframe-worker.js", folder / "assets" / "iframe-worker.js")
    shutil.copyfile(
        HERE / "iframe-worker.LICENSE", folder / "assets" / "iframe-worker.LICENSE"
    )


# --------------------------------------------------------------------------------------
# outputs in colours


class Block(NamedTuple):
    """An output on a page: as the page has it, and as HTML in the colours of a
    terminal.
    """

    plain: str
    html: str


def outputs(root: Path = ROOT) -> dict[str, list[Block]]:
    """The outputs of each page in colours, run again by the Python of .venv.

    An output is left out where today's lines are others than the page has: there the
    page stays plain. Their order may be that of a terminal, which shows a complaint
    where it is made.
    """
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        return {}
    sys.path.insert(0, str(HERE.parent))
    import refresh

    sys.path.remove(str(HERE.parent))

    def of_page(name: str) -> list[Block]:
        text = (root / name).read_text(encoding="utf-8")
        try:
            rows = zip(
                refresh.blocks(text),
                refresh.printed(text, str(python), FORCE_COLOR="1"),
                strict=True,
            )
        except OSError:
            return []
        return [
            Block(plain, terminal(shown))
            for plain, shown in rows
            if sorted(plain.splitlines())
            == sorted(["```console", *_SGR.sub("", shown).splitlines(), "```"])
        ]

    names = [name for name in refresh.pages(root) if name in sources(root).values()]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(zip(names, pool.map(of_page, names), strict=True))


def terminal(text: str) -> str:
    """What a terminal shows, as a block of HTML: the numbers of SGR become classes."""
    out: list[str] = []
    styles: list[str] = []
    for at, piece in enumerate(_SGR.split(text)):
        if at % 2:
            codes = [code for code in piece.split(";") if code.strip("0")]
            styles = [*styles, *codes] if codes else []
        elif piece:
            words = escape(piece, quote=False)
            classes = " ".join(f"sgr-{code}" for code in styles)
            out.append(f'<span class="{classes}">{words}</span>' if styles else words)
    return (
        f'<div class="highlight terminal"><pre><code>{"".join(out)}\n'
        "</code></pre></div>\n"
    )


def in_colours(text: str, blocks: Iterable[Block]) -> str:
    """A page with its outputs in colours."""
    start = 0
    for block in blocks:
        found = text.find(block.plain, start)
        if found >= 0:
            text = f"{text[:found]}{block.html}{text[found + len(block.plain) :]}"
            start = found + len(block.html)
    return text


# --------------------------------------------------------------------------------------
# what is built


def settings(pages: Path, out: Path, root: Path = ROOT) -> dict[str, Any]:
    """What mkdocs is told."""
    places = {name: place for place, name in sources(root).items()}

    def entry(name: str) -> str | dict[str, str]:
        return {TITLES[name]: places[name]} if name in TITLES else places[name]

    return {
        "site_name": "ckpt",
        "site_description": (
            "Inspect, compare and migrate PyTorch checkpoints, without running "
            "anything they name."
        ),
        "docs_dir": str(pages),
        "site_dir": str(out),
        "use_directory_urls": False,  # the pages open from a folder on the disk
        "strict": True,
        "nav": [
            {part: [entry(name) for name in names]}
            for part, names in nav(root).items()
            if names
        ],
        "theme": {
            "name": "material",
            "custom_dir": str(HERE),
            "font": False,  # no font of Google
            "language": "en",
            "features": [
                "navigation.sections",
                "navigation.top",
                "toc.follow",
                "search.highlight",
                "content.code.copy",
            ],
            "palette": [
                {
                    "media": "(prefers-color-scheme)",
                    "toggle": {"icon": "material/brightness-auto", "name": "Light"},
                },
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "toggle": {"icon": "material/brightness-7", "name": "Dark"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "toggle": {
                        "icon": "material/brightness-4",
                        "name": "As the system",
                    },
                },
            ],
        },
        "extra": {
            "homepage": "index.html",
            "polyfills": ["assets/iframe-worker.js"],
        },
        "plugins": [
            {
                "search": {
                    "lang": ["en"],
                    # Dots and dashes part names, and each Chinese character is a word:
                    # there is no dictionary.
                    "separator": (
                        r"[\s\-,:!=\[\]()\"'`/.*]+|(?=[\u3400-\u9fff])"
                        r"|(?<=[\u3400-\u9fff])"
                    ),
                    # The stemmer would hide words from their beginnings, the trimmer
                    # all that is not ASCII, the filter of stop words options such as
                    # --all and --into.
                    "pipeline": [],
                }
            },
            "offline",
        ],
        "markdown_extensions": [
            "tables",
            {"toc": {"slugify": slug, "permalink": True}},
            "pymdownx.superfences",
            {"pymdownx.highlight": {"anchor_linenums": False}},
        ],
        "validation": {
            "nav": {
                "omitted_files": "warn",
                "not_found": "warn",
                "absolute_links": "warn",
            },
            "links": {
                "not_found": "warn",
                "anchors": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
            },
        },
    }


def build(
    out: Path, root: Path = ROOT, shown: Mapping[str, Iterable[Block]] | None = None
) -> None:
    """Build the site into a folder, which is replaced, with outputs in colours. Raises
    SiteError.
    """
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config.base import load_config
    from mkdocs.exceptions import Abort, ConfigurationError

    with tempfile.TemporaryDirectory() as folder:
        pages, config_file = Path(folder, "pages"), Path(folder, "mkdocs.yml")
        pages.mkdir()
        assemble(pages, root, shown)
        config_file.write_text("site_name: ckpt\n", encoding="utf-8")
        try:
            config = load_config(str(config_file), **settings(pages, out, root))
            config.plugins.on_startup(command="build", dirty=False)
            mkdocs_build(config)
        except (Abort, ConfigurationError) as error:
            raise SiteError(f"mkdocs refuses the pages: {error}") from None
    for name in ("404.html", "sitemap.xml", "sitemap.xml.gz"):
        (out / name).unlink(missing_ok=True)  # a folder has no server, and no address
    for path in out.rglob("*.zh-CN.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace('<html lang="en"', '<html lang="zh-CN"', 1), encoding="utf-8"
        )


# --------------------------------------------------------------------------------------
# the check


class Reference(NamedTuple):
    """What a page names: `loads` says that a browser asks for it by itself."""

    target: str
    loads: bool


_LINK_LOADS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
    "modulepreload",
}
_URL = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")
_LOADED = ("src", "srcset", "data", "poster", "background", "xlink:href")


class Page(html.parser.HTMLParser):
    """The references and the anchors of a built page, and whether its policy stands
    before what it loads.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[Reference] = []
        self.anchors: set[str] = set()
        self.policy = ""
        self.early: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        if (
            tag == "meta"
            and known.get("http-equiv", "").lower() == "content-security-policy"
        ):
            self.policy = known.get("content", "")
        self.anchors |= {known[name] for name in ("id", "name") if name in known}
        loaded = [
            known[name]
            for name in _LOADED
            if name in known and not (tag == "a" and name == "data")
        ]
        for value in loaded:
            for part in (
                value.split(",")
                if "srcset" in known and value == known["srcset"]
                else [value]
            ):
                self._add(part.split()[0] if part.split() else "", loads=True)
        if "href" in known:
            kinds = set(known.get("rel", "").lower().split())
            self._add(
                known["href"],
                loads=tag in ("use", "image")
                or bool(tag == "link" and kinds & _LINK_LOADS),
            )
        self._style(known.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self._style(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def _style(self, text: str) -> None:
        for target in in_style(text):
            self._add(target, loads=True)

    def _add(self, target: str, *, loads: bool) -> None:
        if loads and not self.policy:
            self.early.append(target)
        self.references.append(Reference(target, loads))


def in_style(text: str) -> Iterator[str]:
    """What a style sheet loads."""
    for match in _URL.finditer(text):
        yield (match[1] or match[2]).strip()


def problems(site: Path) -> list[str]:
    """What is wrong with a built site: links and anchors that lead nowhere, and what a
    browser would ask of others.
    """
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    found: list[str] = []
    for path, parsed in pages.items():
        name = path.relative_to(site).as_posix()
        if "default-src 'none'" not in parsed.policy or re.search(
            r"https?:|\*", parsed.policy
        ):
            found.append(f"{name}: no policy that forbids what comes from elsewhere")
        found += [
            f"{name}: {target} is loaded before the policy" for target in parsed.early
        ]
        found += [
            f"{name}: {why}" for why in _wrong(path, parsed.references, site, pages)
        ]
    for path in sorted(site.rglob("*.css")):
        references = [
            Reference(target, True)
            for target in in_style(path.read_text(encoding="utf-8"))
        ]
        found += [
            f"{path.relative_to(site).as_posix()}: {why}"
            for why in _wrong(path, references, site, pages)
        ]
    return found


def _wrong(
    path: Path, references: Iterable[Reference], site: Path, pages: Mapping[Path, Page]
) -> Iterator[str]:
    for target, loads in dict.fromkeys(references):
        parts = urlsplit(target)
        if parts.scheme == "data":
            continue
        if parts.scheme or parts.netloc:
            if loads:
                yield f"loads {target}"
            elif parts.scheme not in ("http", "https", "mailto"):
                yield f"links {target}"
            continue
        if target.startswith("/"):
            yield f"{target} begins at the root of a server"
            continue
        to = (
            Path(os.path.normpath(path.parent / unquote(parts.path)))
            if parts.path
            else path
        )
        if not to.is_relative_to(site) or not to.is_file():
            yield f"{target} is not there"
        elif (
            parts.fragment
            and to in pages
            and unquote(parts.fragment) not in pages[to].anchors
        ):
            yield f"{target} has no such anchor"


def _text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8") if name.endswith(".md") else ""


def main(out: str = "site") -> None:
    """Build into a folder, and check."""
    site = (ROOT / out).resolve()
    shown = outputs()
    try:
        build(site, shown=shown)
        found = problems(site)
    except SiteError as error:
        found = str(error).splitlines()
    if found:
        sys.exit("\n".join(found))
    print(
        f"{out}/index.html: {len(list(site.rglob('*.html')))} pages, every link leads "
        "somewhere, nothing is loaded from elsewhere"
    )
    runs = sum(text.count("<!-- run: ") for text in map(_text_of, sources().values()))
    print(
        f"{sum(map(len, shown.values())):,} of {runs:,} outputs in colours (the others "
        "need `make docs` or .venv)"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
