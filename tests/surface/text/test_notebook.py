"""The output of a notebook: the lines of the terminal in their colours, and nothing
that runs, loads or is a formula.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from hypothesis import given
from hypothesis import strategies as st
from needs import skip_without
from process import SAMPLES, terminal
from rewriting import compared

import ckpt
from ckpt.model.errors import UnreadableError
from ckpt.model.text import show_literal
from ckpt.surface.cli import output
from ckpt.surface.text import notebook
from ckpt.surface.text.notebook import WIDTH, html_of

pytestmark = oracle.QUIET
EVIL = (
    "</span></pre></div><img src=x "
    "onerror=alert(1)><script>1</script>\"'\u202e\x1b[31m\ud800$x$&amp;\n"
)
IGNORED = "tex2jax_ignore mathjax_ignore"
"""Classes of what MathJax passes over."""


class Spans(HTMLParser):
    """The (text, style) of a block, after it was seen that it is well-formed and can
    only be looked at.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.spans: list[tuple[str, str]] = []
        self.style = ""
        self.feed(html)
        self.close()
        assert self.open == []
        html.encode("utf-8")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        styles = dict(attrs)
        if tag == "div":
            assert self.open == [] and self.spans == [] and styles == {"class": IGNORED}
        elif tag == "pre":
            assert (
                self.open == ["div"] and self.spans == [] and set(styles) == {"style"}
            )
        else:
            assert (
                tag == "span"
                and self.open == ["div", "pre"]
                and set(styles) == {"style"}
            )
            self.style = styles["style"] or ""
        assert re.fullmatch("[a-z0-9-:;#.]+", styles.get("style") or "none")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.style = ""

    def handle_data(self, data: str) -> None:
        assert self.open[:2] == ["div", "pre"]
        self.spans.append((data, self.style))

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


@pytest.mark.parametrize(
    "name", ["ddp_after.pth", "hostile.pth", "objects.pth", "scripted.pt", "sharded"]
)
def test_a_checkpoint_shows_the_lines_of_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SAMPLES)
    if name == "sharded":
        skip_without("folders")
    screen = terminal("inspect", name, columns=WIDTH, rows=60, TERM="dumb")

    assert lines_of(Spans(ckpt.inspect(name)._repr_html_() or "").text) == lines_of(
        screen
    )


def test_a_comparison_shows_the_lines_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(SAMPLES)
    names = ("snapshot_before.pth", "snapshot_after.pth")
    screen = terminal("diff", *names, columns=WIDTH, rows=60, code=1, TERM="dumb")

    assert lines_of(Spans(ckpt.diff(*names)._repr_html_()).text) == lines_of(screen)


def test_danger_comes_first_and_red_and_commands_are_underlined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(SAMPLES)
    spans = Spans(ckpt.inspect("hostile.pth")._repr_html_() or "").spans

    text, style = spans[0]
    assert text.startswith("DANGER  loading this file runs posix.system")
    assert style == "font-weight:bold;color:#e54949"
    assert (
        "ckpt slim hostile.pth -o hostile.slim.pth",
        notebook._STYLES["command"],
    ) in spans


def test_the_findings_of_files_have_their_colours_and_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(SAMPLES)
    shown = Spans(
        ckpt.lint(
            ["hostile.pth", "weights.safetensors", "compiled.pth", "truncated.pth"]
        )._repr_html_()
    )

    lines = shown.text.splitlines()
    hostile = lines.index("hostile.pth")
    assert lines[hostile + 1].startswith(
        "! called-on-load  DANGER: loading this file runs posix.system("
    )
    assert [line.strip() for line in lines[hostile + 3 : hostile + 5]] == [
        "For the weights alone:",
        "ckpt slim hostile.pth -o hostile.slim.pth",
    ]
    assert {
        ("called-on-load", notebook._STYLES["error"]),
        ("prefix", notebook._STYLES["warning"]),
        ("ckpt slim hostile.pth -o hostile.slim.pth", notebook._STYLES["command"]),
    } <= set(shown.spans)
    assert (
        "weights.safetensors" not in shown.text
        and "truncated.pth: cut off: " in shown.text
    )
    assert (
        lines[-1]
        == "3 findings (1 error, 2 warnings) in 2 of 3 files · values not read (--read-values) · 1 unreadable"
    )


@pytest.mark.parametrize("path", sorted(SAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_open_checkpoint_shows_what_its_report_shows(path: Path) -> None:
    try:
        opened = ckpt.open(path)
    except ckpt.CkptError:
        return
    with opened:
        html = opened._repr_html_()
        assert html is not None and html == ckpt.inspect(opened)._repr_html_()
    assert path.name in Spans(html).text


def test_a_file_that_is_gone_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"model": {"module.a": torch.ones(3), "module.b": torch.ones(3)}}
    path = rewriting.saved(state, tmp_path / "a.pt")
    opened, closed, report = ckpt.open(path), ckpt.open(path), ckpt.inspect(path)
    closed.close()
    assert closed._repr_html_() is None
    path.unlink()

    text = Spans(opened._repr_html_() or "").text
    assert "module" in text and "2 tensors" in text and "ckpt strip" not in text
    assert "ckpt strip" in report._repr_html_(), "a report keeps what it has found"

    def unreadable(*arguments: object, **options: object) -> None:
        raise UnreadableError("gone")

    monkeypatch.setattr("ckpt.commands.inspect.notebook.inspect", unreadable)
    assert opened._repr_html_() is None


def test_nothing_of_the_files_is_markup(tmp_path: Path) -> None:
    evil = EVIL.replace("\ud800", "")  # torch writes no lone surrogate
    state = {f"{evil}{number}.{evil}": torch.ones(100 + number) for number in range(60)}
    changed = {name: tensor * 2 for name, tensor in state.items()}
    folder = tmp_path / "<b>&$x$\x1b"
    folder.mkdir()
    before, after = {"m": state, evil: evil}, {"m": changed, evil: f"{evil}2"}
    path = rewriting.saved(before, folder / "'<b>&.pt")

    for html in (
        ckpt.inspect(path)._repr_html_() or "",
        compared(before, after, folder)._repr_html_(),
    ):
        assert (
            "<img src=x" in Spans(html).text or "</span><…x$&amp;" in Spans(html).text
        )
        assert "<script" not in html and "\u202e" not in html and "\x1b" not in html


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.text() | st.just(EVIL), st.sampled_from(["", *output._STYLES])
            ),
            max_size=4,
        )
    )
)
def test_any_line_is_text(lines: list[list[tuple[str, str]]]) -> None:
    shown = "\n".join("".join(show_literal(text) for text, _ in line) for line in lines)

    # A parser takes the first line end of <pre> away.
    assert Spans(html_of(lines)).text.removeprefix("\n") == shown.removeprefix("\n")


def test_each_style_of_the_terminal_has_its_own() -> None:
    words = {
        "bold": "font-weight:bold",
        "dim": "opacity:0.7",
        "underline": "text-decoration:underline;text-underline-offset:0.3em",
    }
    words |= {
        "red": "color:#e54949",
        "green": "color:#089637",
        "yellow": "color:#b47305",
        "cyan": "color:#098da8",
    }

    for style, rich in output._STYLES.items():
        html = html_of([[("a", style)]])
        assert Spans(html).spans == [
            ("a", ";".join(words[word] for word in rich.split()))
        ], style


def light(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#111111", "#1e1e1e", "#383838"])
def test_colours_can_be_read(page: str) -> None:
    """On white, and in the dark of JupyterLab, VS Code and Colab."""
    html = html_of([[("a", style)] for style in output._STYLES])

    for colour in set(re.findall("color:(#[0-9a-f]{6})", html)):
        low, high = sorted((light(colour), light(page)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


@pytest.mark.slow
def test_a_hundred_thousand_hostile_names_stay_small(tmp_path: Path) -> None:
    tensors = [torch.ones(size) for size in range(97)]
    evil = EVIL.replace("\ud800", "")
    state = {
        f"{evil}{number % 300}.{number}": tensors[number % 97]
        for number in range(100_000)
    }

    html = ckpt.inspect(rewriting.saved(state, tmp_path / "a.pt"))._repr_html_()
    assert "100,000 tensors" in Spans(html or "").text and len(html or "") < 50_000


def test_what_has_no_room_is_counted() -> None:
    html = html_of([[("DANGER", "error")], *([("'" * 1000, "")] for _ in range(1000))])

    lines = Spans(html).text.split("\n")
    assert len(html) < 201_000 and lines[0] == "DANGER" and len(lines) > 30
    assert lines[-1] == f"… {1001 - (len(lines) - 1)} more lines in a terminal"
    assert "more lines" not in html_of([[("a" * 190_000, "")]])


def shown(error: ckpt.CkptError) -> list[str]:
    lines: list[str] = error._render_traceback_()  # as IPython asks
    return lines


def test_an_error_shows_the_caller_and_one_line(tmp_path: Path) -> None:
    def caller() -> None:
        ckpt.open(SAMPLES / "truncated.pth")

    with pytest.raises(ckpt.CkptError) as caught:
        caller()

    lines = shown(caught.value)
    problem = "cut off: the zip archive has no directory, the file ends at 13,687 bytes"
    assert lines[-1] == (
        f"CutOffError: {SAMPLES}/truncated.pth: {problem} (an unfinished download "
        f"or save? ckpt verify {SAMPLES}/truncated.pth names what is lost)"
    )
    frames = [line for line in lines if line.startswith("  File ")]
    assert len(frames) == 2 and all(Path(__file__).name in frame for frame in frames)
    assert frames[1].endswith("in caller") and "    ckpt.open(SAMPLES" in lines[-2]
    assert len(list(traceback.walk_tb(caught.value.__traceback__))) > 4, (
        "Python keeps all frames"
    )


def test_an_error_shows_no_frames_of_ipython(tmp_path: Path) -> None:
    source = "def run_code(cell):\n    cell()\n"
    kernel: dict[str, Any] = {"__name__": "IPython.core.interactiveshell"}
    exec(compile(source, "/lib/kernel.py", "exec"), kernel)

    with pytest.raises(ckpt.CkptError) as caught:
        kernel["run_code"](lambda: ckpt.open(tmp_path / "none.pth"))

    lines = shown(caught.value)
    assert not any("in run_code" in line for line in lines) and lines[2].endswith(
        "in <lambda>"
    )
    assert len([line for line in lines if line.startswith("  File ")]) == 2


def test_an_error_that_was_not_raised_and_a_hostile_name() -> None:
    error = UnreadableError("gone\x1b[31m\ud800\n", path="a\u202e\x1b]0;x", hint="é 张")

    assert shown(error) == [
        r"UnreadableError: a\u202e\x1b]0;x: gone\x1b[31m\ud800\n (é 张)"
    ]


TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Any], int]] = {
    "ls": (("ls", "."), lambda: ckpt.ls("."), 2),
    "stats": (("stats", "train_cuda.pth"), lambda: ckpt.stats("train_cuda.pth"), 0),
    "verify": (("verify", "truncated.pth"), lambda: ckpt.verify("truncated.pth"), 1),
    "sum": (("sum", "ddp_after.pth"), lambda: ckpt.sum("ddp_after.pth"), 0),
    "strip": (
        ("strip", "ddp_after.pth", "--dry-run"),
        lambda: ckpt.strip("ddp_after.pth", dry_run=True),
        0,
    ),
}
"""Command -> its words, the function that does the same, and the exit code."""


@pytest.mark.parametrize("name", TABLES)
def test_a_report_shows_the_table_of_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, report, code = TABLES[name]
    monkeypatch.chdir(SAMPLES)
    screen = terminal(*words, columns=WIDTH, rows=60, code=code, TERM="dumb")

    shown = lines_of(Spans(report()._repr_html_()).text)
    said = " ".join(screen.split())  # the closing line of `ls` is broken there
    assert (
        len(shown) > 0
        and [line for line in shown if " ".join(line.split()) not in said] == []
    )
    assert len(shown) >= len(lines_of(screen)) - 3  # lines of stderr


def test_what_was_loaded_into_a_model_is_a_table() -> None:
    model = torch.nn.Sequential()
    model.add_module("fc1", torch.nn.Linear(4, 2))
    model.add_module("fc2", torch.nn.Linear(2, 2))
    loaded = ckpt.open(rewriting.in_memory({"fc1.weight": torch.ones(2, 4)})).load_into(
        model
    )

    text = Spans(loaded._repr_html_()).text
    assert "fc1" in text and "not in PRETRAINED, kept as they were: fc1.bias" in text


@pytest.mark.parametrize("name", ["ddp_after.pth", "hostile.pth"])
def test_the_font_of_a_block_is_fixed(name: str) -> None:
    for html in (
        ckpt.inspect(SAMPLES / name)._repr_html_(),
        ckpt.verify(SAMPLES / name)._repr_html_(),
    ):
        assert re.search('<pre style="[^"]*font-family:monospace', html)


def test_a_row_of_a_report_is_one_short_line() -> None:
    names = [SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth"]
    change, numbers = ckpt.diff(*names), ckpt.stats(names[0])
    (row,) = ckpt.ls(names[0])
    rows: list[object] = [
        *change.rows,
        *change.values,
        *change.pairs,
        *numbers.rows,
        row,
    ]
    rows += [change.before, change.rows[0].before]
    coverage = ckpt.warmstart(names[0], into=names[1], dry_run=True).coverage
    assert coverage is not None
    rows += coverage.pairings

    assert all(len(repr(row)) < 140 and "\n" not in repr(row) for row in rows)
    name = change.rows[0].name
    assert (
        repr(change.rows[0])
        == f"<Row changed parameter {name}: 216 of 216 elements, max |Δ| 0.001>"
    )
    assert repr(row).startswith(f"<ckpt.LsRow {names[0]}: torch-zip, 48 tensors")
    assert repr(coverage.pairings[0]) == "<Pairing loaded module.conv1.weight>"


def test_a_name_that_is_no_tensor_shows_the_caller_and_where_it_is(
    tmp_path: Path,
) -> None:
    with (
        ckpt.open(SAMPLES / "train_cuda.pth") as opened,
        pytest.raises(KeyError) as caught,
    ):
        opened["epoch"]

    lines = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert (
        lines[-1]
        == "MissingNameError: no tensor 'epoch' (a value: c.values[\"epoch\"])"
    )
    frames = [line for line in lines if line.startswith("  File ")]
    assert len(frames) == 1 and Path(__file__).name in frames[0]
