"""Writes a man page for ckpt and for each command, made of their help: `make man` puts
them into man/.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from ckpt import __version__
from ckpt.surface.cli.app import COMMANDS, program
from ckpt.surface.cli.options import exclusions_of

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[str, str]:
    """File name -> the page as roff."""
    found = {
        "ckpt.1": _page(
            "ckpt", str(_group(COMMANDS).help), _commands(), _group(COMMANDS)
        )
    }
    for name, summary in COMMANDS.items():
        command = _group([name]).commands[name]
        found[f"ckpt-{name}.1"] = _page(f"ckpt {name}", summary, "", command)
    return found


def _group(names: Any) -> Any:
    return get_command(program(names))


def _page(title: str, summary: str, middle: str, command: Any) -> str:
    name = title.replace(" ", "-")
    arguments = [
        param for param in command.params if param.param_type_name == "argument"
    ]
    options = [param for param in command.params if param.param_type_name == "option"]
    synopsis = " ".join([title, "[OPTIONS]", *(_metavar(param) for param in arguments)])
    others = [
        other
        for other in ("ckpt", *(f"ckpt-{each}" for each in COMMANDS))
        if other != name
    ]
    parts = [
        f'.TH "{name.upper()}" "1" "" "ckpt {__version__}" "ckpt"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(summary.split(chr(10))[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(synopsis if arguments or not middle else 'ckpt COMMAND [OPTIONS] ...')}",
        ".SH DESCRIPTION",
        _paragraphs(str(command.help)),
        middle,
        ".SH ARGUMENTS" if arguments else "",
        *(_entry(_metavar(param), _help(param)) for param in arguments),
        ".SH OPTIONS",
        *(_entry(_names(param), _help(param)) for param in options),
        _entry("-h, --help", "Show the help and exit."),
        *(
            f".PP\n{_text(str(exclusion))}"
            for exclusion in exclusions_of(title.partition(" ")[2])
        ),
        ".SH EXIT STATUS",
        *(_entry(code.strip("*"), text) for code, text in _rows(r"\*\*\d+\*\*")),
        ".SH ENVIRONMENT",
        *(
            _entry(variable.strip("`"), text)
            for variable, text in _rows(r"`[A-Z_]+(?:=\d)?`")
        ),
        ".SH SEE ALSO",
        _text(", ".join(f"{other}(1)" for other in others)),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _commands() -> str:
    rows = [_entry(name, summary) for name, summary in COMMANDS.items()]
    return "\n".join([".SH COMMANDS", *rows])


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name).strip("{}")


def _names(param: Any) -> str:
    value = "" if param.is_flag else f" {param.metavar or 'VALUE'}"
    return ", ".join(param.opts) + value


def _help(param: Any) -> str:
    return str(param.help or "")


def _rows(first: str) -> list[tuple[str, str]]:
    """The rows of a table of docs/scripting.md, without its markup: exit codes and
    variables have one home.
    """
    text = (ROOT / "docs" / "scripting.md").read_text(encoding="utf-8")
    found = re.findall(rf"^\| ({first}) \| (.*) \|$", text, re.MULTILINE)
    return [
        (name, re.sub(r"\[(.+?)\]\(.+?\)", r"\1", rest).replace("`", ""))
        for name, rest in found
    ]


def _entry(name: str, text: str) -> str:
    return f".TP\n.B {_text(name)}\n{_text(text)}"


def _paragraphs(text: str) -> str:
    """The help of a command: paragraphs, and those that keep their lines."""
    out = []
    for part in text.strip().split("\n\n"):
        if part.startswith("\b"):
            out += [
                ".PP",
                ".nf",
                *(_text(line) for line in part.lstrip("\b").strip("\n").split("\n")),
                ".fi",
            ]
        else:
            out += [".PP", _text(" ".join(part.split()))]
    return "\n".join(out)


def _text(text: str) -> str:
    """Text for roff: nothing in it is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "man")
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="ascii")
    sys.stdout.write(f"{folder}: {len(COMMANDS) + 1} pages (man -l {folder}/ckpt.1)\n")
