"""The script of a page in node: what it works out needs no browser. Its elements keep
their texts and nothing else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from typing import Any

from process import ROOT

from ckpt.ext.page.html import SCRIPTS

ASSETS = ROOT / "ckpt" / "ext" / "page" / "html" / "assets"
_DOCUMENT = """
class Node {
  constructor(tag, text = null) { Object.assign(this, { tag, text, children: [], dataset: {}, style: {} }); }
  append(...children) { this.children.push(...children); }
  replaceChildren() { this.children = []; }
  setAttribute(name, value) { this[name] = value; }
  addEventListener() {}
  get childNodes() { return this.children; }
  get textContent() { return this.text ?? this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.text = text; }
}
const document = {
  createElement: (tag) => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  createTextNode: (text) => new Node("#text", text),
};
"""
_SERVER = """
let run = null;
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  if (!run) { run = eval(JSON.parse(line)); return; }
  const [name, rows] = JSON.parse(line);
  let answer;
  try {
    const called = run(`(${name})`);
    answer = { results: rows.map((words) => called(...words) ?? null) };
  } catch (error) {
    answer = { error: String(error.stack) };
  }
  console.log(JSON.stringify(answer));
});
"""
"""The first line is the script, each further line a function and lists of arguments. It
ends with its input.
"""


def program() -> str | None:
    """The path of node, None where it is not there."""
    return shutil.which("node")


@cache
def _server() -> subprocess.Popen[str]:
    node = program()
    assert node is not None, "no node"
    # The last part begins to draw.
    own = "".join(
        (ASSETS / name).read_text(encoding="utf-8")
        for name in SCRIPTS
        if name != "main.js"
    )
    script = (
        f'(() => {{ "use strict";\n{_DOCUMENT}\n{own}\nreturn (text) => eval(text); '
        f"}})()"
    )
    server = subprocess.Popen(
        [node, "-e", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert server.stdin is not None
    server.stdin.write(json.dumps(script) + "\n")
    return server


def close() -> None:
    """End node, if it was started."""
    if _server.cache_info().currsize:
        server = _server()
        _server.cache_clear()
        server.communicate()


def calls(function: str, arguments: Iterable[list[Any]]) -> list[Any]:
    """The results of a function of the script, or of an expression that is one, for
    each list of arguments.

    What JSON has no word for comes back as null.
    """
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([function, list(arguments)]) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline() or '{"error": "node has ended"}')
    assert "error" not in answer, answer["error"]
    return list(answer["results"])


def call(function: str, *arguments: Any) -> Any:
    """The result of one call."""
    return calls(function, [list(arguments)])[0]
