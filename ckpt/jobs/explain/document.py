"""The document `ckpt.explain`, version 1."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.jobs.explain.pages import Page
from ckpt.text import Json

SCHEMA: dict[str, Json] = {"name": "ckpt.explain", "version": 1}


def document(pages: Sequence[Page]) -> dict[str, Json]:
    """Pages as plain data; docs/json.md is the contract."""
    from ckpt import __version__

    return {"schema": SCHEMA, "ckpt": __version__, "pages": [_page(page) for page in pages]}


def _page(page: Page) -> dict[str, Json]:
    return {
        "code": page.code.code if page.code else None,
        "level": page.code.level if page.code else None,
        "made_by": list(page.code.by) if page.code else [],
        "title": page.title,
        "errors": list(page.messages),
        "body": [{"kind": block.kind, "text": block.text} for block in page.body],
    }
