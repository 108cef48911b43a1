"""The results of the functions of `import ckpt` for each PATH, as text: `make compare`
runs it with each of two checkouts.

Each public function is called with one checkpoint and with two, so that a new one is
compared without a word here.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckpt

_NEEDED: dict[str, dict[str, object]] = {
    "rename": {"sub": "s/e/E/"},
    "warmstart": {"into": "legacy.pth"},
    "rehome": {"to": "cpu"},
}
"""Function -> the keywords without which it refuses."""
_LIVE = "snapshot"
"""The function that takes a live model, which no checkpoint is."""


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions that take checkpoints, by their names."""
    named = {
        name: getattr(ckpt, name)
        for name in dir(ckpt)
        if not name.startswith("_") and name != _LIVE
    }
    return {name: value for name, value in named.items() if inspect.isfunction(value)}


def text_of(value: Any) -> str:
    """All that a result says: its document, its rows and its repr."""
    parts = [repr(value)]
    if hasattr(value, "to_json"):
        parts.append(json.dumps(value.to_json(), default=repr))
    for name in ("rows", "findings", "exit_code"):
        if hasattr(value, name):
            parts.append(repr(getattr(value, name)))
    return "\n".join(parts)


def describe_open(path: str) -> str:
    """All that an open checkpoint says of itself and of its first tensors."""
    with ckpt.open(path) as checkpoint:
        names = list(checkpoint)[:20]
        lines = [
            repr(checkpoint),
            checkpoint._repr_html_(),
            repr(checkpoint.values),
            repr(names),
        ]
        for name in names:
            tensor = checkpoint[name]
            lines.append(f"{name} {tensor!r}")
        return "\n".join(lines)


def describe_call(name: str, paths: list[str]) -> str:
    """The result of a function for one checkpoint, or for as many as it takes, or its
    error.
    """
    function = functions()[name]
    keywords = dict(_NEEDED.get(name, {}))
    if (
        "output" in inspect.signature(function).parameters
        or "writing" in inspect.signature(function).parameters
    ):
        keywords["dry_run"] = True
    try:
        if name == "open":
            return describe_open(paths[0])
        if name == "diff":
            return text_of(function(paths[0], paths[-1], **keywords))
        if name in ("average", "lint", "ls"):
            return text_of(function(paths, **keywords))
        return text_of(function(paths[0], **keywords))
    except ckpt.CkptError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    paths = sorted(path.name for path in Path().iterdir() if path.name != "net.py")
    for path in paths:
        for name in functions():
            for given in ([path], [path, "ddp_after.pth"]):
                print(f"--- {name}({', '.join(given)})\n{describe_call(name, given)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
