"""`private`: home paths, hosts and tokens in the values of a file that goes to others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.checkpoint import Checkpoint
from ckpt.findings import Finding
from ckpt.nodes import Node
from ckpt.text import listed, show
from ckpt.tree.view import look

_HOME = re.compile(r"(?:/(?:home|Users|root)/|[A-Za-z]:\\Users\\)[^/\\\s'\"]+")
_TOKENS = (
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("a GitHub token", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{22,}\b")),
    ("an AWS key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an API key", re.compile(r"\bsk-(?:proj-|ant-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a password in an address", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@")),
)
_SECRET = re.compile(r"(?:^|[_.])(?:api_?key|secret(?:_key)?|password|passwd|access_token|auth_token)$", re.I)
_HOST = re.compile(r"\b[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)+\.(?:internal|corp|lan|intranet)\b", re.I)
_MOST = 10_000
"""Characters of one text that are looked through, and items of one list."""


def findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Values that name a machine or hold a secret, by kind, with their places. A secret is never shown."""
    found: dict[str, list[str]] = {}
    example: dict[str, str] = {}
    for value in checkpoint.values:
        if value.same_as is not None or value.fields is not None:
            continue
        for text in _texts(value.node):
            for kind, shown in _kinds(value.name, text):
                places = found.setdefault(kind, [])
                if value.name not in places:
                    places.append(value.name)
                example.setdefault(kind, shown)
    for kind, places in found.items():
        said = f": {show(example[kind], 60)}" if example[kind] else ""
        yield Finding("private", f"{kind} at {listed(places, 1)}{said}", where=tuple(places))


def _texts(node: Node) -> Iterator[str]:
    """The texts of a value: itself, or the items of a list."""
    view = look(node)
    if view.kind == "scalar":
        if isinstance(view.value, str):
            yield str(view.value)[:_MOST]
    elif view.kind in ("sequence", "mapping"):
        for child in view.children[:_MOST]:
            inner = look(child)
            if inner.kind == "scalar" and isinstance(inner.value, str):
                yield str(inner.value)[:_MOST]


def _kinds(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(what a text gives away, what of it may be shown)."""
    home = _HOME.search(text)
    if home is not None:
        yield "a home path", home[0]
    token = next((kind for kind, pattern in _TOKENS if pattern.search(text)), None)
    if token is not None:
        yield token, ""
    elif _SECRET.search(name) and len(text) >= 8 and any(char.isdigit() for char in text):
        yield "a secret by its name", ""
    host = _HOST.search(text)
    if host is not None:
        yield "a host name", host[0]
