"""HTML of notebooks taken apart: its tags with their attributes, and its texts."""

from __future__ import annotations

from html.parser import HTMLParser

TAGS = frozenset(
    [
        "div",
        "b",
        "code",
        "table",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "ul",
        "li",
        "svg",
        "g",
        "title",
        "rect",
        "text",
    ]  # none that loads or runs
)
ATTRIBUTES = frozenset(
    [
        "class",
        "width",
        "height",
        "viewbox",
        "xmlns",
        "role",
        "font-family",
        "font-size",
        "x",
        "y",
        "fill",
        "stroke",
    ]
)


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(html: str) -> tuple[list[tuple[str, dict[str, str | None]]], str]:
    """The tags and the text of a page, after it was seen that it is well-formed and can only be looked at."""
    parts = _Parts()
    parts.feed(html)
    parts.close()
    assert parts.open == []
    assert {tag for tag, _ in parts.tags} <= TAGS
    names = {name for _, attributes in parts.tags for name in attributes}
    assert names <= ATTRIBUTES
    values = {
        (name, value)
        for _, attributes in parts.tags
        for name, value in attributes.items()
        if name not in ("x", "y", "width", "height", "fill", "stroke")
    }
    assert all(value and not set(value) & set("<>&\"'()") for _, value in values)
    return parts.tags, "\n".join(parts.texts)
