"""Documents as one page of HTML that needs nothing else: no request, no other file.

Nothing of a document is markup. The documents stand in the page as data, which its
script writes as text. The policy of the page allows its own scripts and styles by their
hashes, and nothing else.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from ckpt import __version__
from ckpt.ext.page.views import Numbers, page_payload
from ckpt.model.text import Json

_ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "base.js",
    "data.js",
    "tables.js",
    "charts.js",
    "treemap.js",
    "findings.js",
    "strip.js",
    "checkpoint.js",
    "diff.js",
    "stats.js",
    "series.js",
    "folder.js",
    "main.js",
)
"""The parts of the script, in their order."""
PACK_BYTES = 256 << 10
"""Documents of more bytes are deflated."""
# `<` could end the element in which the data stands.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="ckpt {version}">
<title>ckpt report</title>
<style>{style}</style>
</head>
<body>
<noscript>
This page is drawn by its own script, which needs JavaScript. It requests nothing.
</noscript>
<div id="page"></div>
<script type="{kind}" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def html_page(
    documents: Iterable[Mapping[str, Json]],
    *,
    date: str | None = None,
    numbers: Numbers | None = None,
) -> bytes:
    """The page of some documents of `inspect`, `diff`, `stats` and `ls --json`. Raises
    UnreadableError.

    `date` is the day that the page names as its own, `numbers` are what the files
    record. Equal documents give equal bytes on one day.
    """
    kind, data = embed_data(
        {**page_payload(documents, __version__, numbers or {}), "date": date}
    )
    library, style = _read_asset("echarts.min.js"), _read_asset("report.css")
    own = "".join(_read_asset(name) for name in SCRIPTS)
    # The parts share one scope, and nothing of it is global.
    script = f'(function () {{\n"use strict";\n{own}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash_source(library)} "
        f"{_hash_source(script)}; style-src {_hash_source(style)}; base-uri 'none'; "
        "form-action 'none'"
    )
    page = _PAGE.format(
        policy=policy,
        version=__version__,
        style=style,
        kind=kind,
        data=data,
        library=library,
        script=script,
    )
    return page.encode()


def embed_data(data: Mapping[str, Json]) -> tuple[str, str]:
    """The type and the text of the element that holds the data: JSON without `<`, `>`
    and `&`, or deflated in base64.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # A page of many tensors is mostly repetition: deflated it is a fraction.
    if len(text) > PACK_BYTES:
        return "application/octet-stream", b64encode(
            zlib.compress(text.encode(), 9)
        ).decode()
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    return "application/json", text


def _read_asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
