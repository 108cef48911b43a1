"""Docs cannot lie: what pages show is what the commands print, what they list is what
the code has.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import mmap
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import rewriting
import safetensors.torch
import torch
from process import TIMEOUT, environment, server
from torch import nn

import ckpt
from ckpt.formats import FORMATS, GROUP, written_formats
from ckpt.formats.format import Format
from ckpt.model.findings import CATALOGUE
from ckpt.model.limits import (
    INFLATION,
    TENSOR_BYTES,
    TENSOR_MEMORY,
    VALUE_MEMORY,
    Limits,
)
from ckpt.surface.cli import app, start
from ckpt.surface.cli.options import options_of

ROOT = Path(__file__).resolve().parents[2]
FIRST_PAGES = ["README.md", "README.zh-CN.md"]
"""The first page, in each language."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def refresher() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "refresh", ROOT / "tools" / "refresh.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFRESH = refresher()
SHOWING = REFRESH.pages()


def test_pages_show_commands() -> None:
    assert {
        "README.md",
        "docs/ddp.md",
        "docs/errors.md",
        "docs/commands/inspect.md",
    } <= set(SHOWING)
    assert sum(page(name).count("<!-- run: ") for name in SHOWING) >= 80


TRANSLATED = {"README.md": "README.zh-CN.md", "docs/errors.md": "docs/errors.zh-CN.md"}
"""Pages and their translations, whose blocks are those of the page: a test below
compares them.
"""


def forked(command: str, folder: Path, programs: Path) -> str:
    """Return what a command prints: in a fork, where no shell is needed to read the
    line.
    """
    if re.search(r"[|<>;&$*?~`(]", command):
        return str(OUTPUT_OF(command, folder, programs))
    env = environment(COLUMNS="100", CKPT_NO_PLUGINS="1")
    forks = server(env)
    assert forks is not None
    reading, writing = os.pipe()
    stdin = os.open(os.devnull, os.O_RDONLY)
    forks.start(
        shlex.split(command)[1:], os.fspath(folder), env, [stdin, writing, writing]
    )
    with open(reading, encoding="utf-8") as pipe:
        printed = pipe.read()
    code = forks.wait(TIMEOUT)
    return printed + (f"(exit {code})\n" if code else "")


OUTPUT_OF = REFRESH.output_of


@pytest.mark.parametrize(
    "name", [name for name in SHOWING if name not in TRANSLATED.values()]
)
def test_pages_show_what_the_commands_print(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REFRESH, "output_of", forked)
    assert REFRESH.refreshed_pages([name]) == {name: page(name)}, "make docs"


COMMAND_PAGES = [f"docs/commands/{command}.md" for command in app.COMMANDS]


TABLE = "docs/commands/README.md"
"""The table of all commands."""


@pytest.mark.parametrize("name", SHOWING)
def test_the_commands_of_a_page_run_on_files_that_are_there(name: str) -> None:
    assert not [
        block for block in REFRESH.blocks(page(name)) if ": no such file" in block
    ]


def test_every_command_has_its_page_and_its_row() -> None:
    shown = sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs" / "commands").iterdir()
    )
    rows = re.findall(
        r"^\| \[`ckpt ([\w-]+)[^`]*`\]\((.+?)\) \|", page(TABLE), re.MULTILINE
    )

    assert shown == sorted([*COMMAND_PAGES, TABLE])
    assert rows == [(command, f"{command}.md") for command in app.COMMANDS]


@pytest.mark.parametrize("name", FIRST_PAGES)
def test_the_first_page_leads_from_problems_to_commands_on_its_first_screen(
    name: str,
) -> None:
    lines = page(name).splitlines()
    first = lines[: next(at for at, line in enumerate(lines) if line.startswith("## "))]
    rows = [row for row in rows_of("\n".join(first)) if "](docs/" in row[-1]]

    assert len(lines) <= 150 and len(first) <= 45
    assert len(rows) >= 12 and all(len(row) == 2 and row[0] for row in rows)
    assert '<source media="(prefers-color-scheme: dark)"' in "\n".join(first)
    ways = [
        re.fullmatch(
            r"\[`ckpt (\w+) [^`]+`\]\(docs/commands/(\w+)\.md(?:#.*)?\)", row[1]
        )
        for row in rows
    ]
    assert all(way and way[1] == way[2] and way[1] in app.COMMANDS for way in ways), (
        rows
    )
    jobs = {
        "inspect",
        "ls",
        "diff",
        "rehome",
        "strip",
        "warmstart",
        "slim",
        "convert",
        "lint",
        "explain",
    }
    assert jobs <= {way[1] for way in ways if way}


def shown_blocks(text: str) -> list[str]:
    """The commands of a page with what they print, and its other blocks of code."""
    without = re.sub(r"^(\$ make \w+ +)#.*", r"\1", text, flags=re.MULTILINE)
    return re.findall(
        r"(?:<!-- run: .+? -->\n)?^```\w+\n.*?^```$", without, re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_a_page_in_chinese_has_the_blocks_the_parts_and_the_links_of_the_english_one(
    english: str, chinese: str
) -> None:
    texts = page(english), page(chinese)
    parts = [
        [line.split()[0] for line in prose(text).splitlines() if line.startswith("#")]
        for text in texts
    ]
    reached = [
        sorted(re.sub(r"\.zh-CN", "", path) for path, _ in links(name))
        for name in (english, chinese)
    ]

    assert shown_blocks(texts[0]) == shown_blocks(texts[1]) != []
    assert parts[0] == parts[1] and reached[0] == reached[1]
    assert [row[1] for row in rows_of(texts[0])[1:]] == [
        row[1] for row in rows_of(texts[1])[1:]
    ]
    titles = re.findall(r"^## (.+)$", prose(texts[1]), re.MULTILINE)
    assert titles and all(re.search(r"[\u4e00-\u9fff]", title) for title in titles)


@pytest.mark.parametrize("command", app.COMMANDS)
def test_the_page_of_a_command_has_its_help_and_examples_that_answer_a_question(
    command: str,
) -> None:
    text = page(f"docs/commands/{command}.md")
    blocks = re.findall(r"([^\n]+)\n\n<!-- run: (.+?) -->\n```console\n", text)
    examples = [
        (before, shown)
        for before, shown in blocks
        if shown != f"ckpt {command} --help-all"
    ]

    assert text.startswith(f"# ckpt {command}\n\n`ckpt {command}` ")
    assert blocks[-1][1] == f"ckpt {command} --help-all", (
        "the question and the example come first"
    )
    assert len(examples) == len(blocks) - 1 == text.count("<!-- run: ") - 1
    assert len([shown for _, shown in examples if f"ckpt {command} " in shown]) >= 2
    assert [shown for before, shown in examples if not before.endswith("?")] == []


SHOWN = re.compile(
    r"^```\w+\n(?:(?!^```$).)*?\bckpt\b.*?^```$", re.DOTALL | re.MULTILINE
)
"""A block with a command or a script of ours."""
ASKED = re.compile(
    r"^(?:I|My|We|Our) [^\n]*\?\n\n(?:<!-- run: .+? -->\n)?```", re.MULTILINE
)
"""The question of a person, and what answers it."""
PASTED = re.compile(r"^```text\n(?:\w+Error|.*Warning): ", re.MULTILINE)
"""The message that a person has on the screen."""


@pytest.mark.parametrize(
    "name",
    sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
def test_an_example_of_a_page_begins_with_the_words_of_a_person(name: str) -> None:
    text = page(name)

    assert ASKED.search(text) or PASTED.search(text) or not SHOWN.search(text), name


def test_a_row_about_dead_channels_asks_for_them() -> None:
    """`ckpt stats FILE` alone does not look for dead channels."""
    rows = [
        line
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for line in path.read_text().splitlines()
        if line.startswith("|") and "dead channels" in line and "`ckpt stats" in line
    ]
    assert len(rows) >= 3
    assert [row for row in rows if "--channels" not in row] == []


def test_a_page_that_only_shows_is_found() -> None:
    block = "<!-- run: ckpt ls -->\n```console\n$ ckpt ls\n```\n"
    assert SHOWN.search(block) and not ASKED.search(f"Which files are here?\n\n{block}")
    assert not ASKED.search(f"My files are here.\n\n{block}")
    assert ASKED.search(f"My folder is full. What is in it?\n\n{block}")
    assert not SHOWN.search("```console\n$ make bench\n```\n")


GONE = {
    "ckpt": (
        r"names? meet with|of (?:the )?elements of the model"
        r"|%[^\n\"]{0,3} of (?:the )?elements|replaces them by None"
    ),
    "docs": (
        r"names? meet with|% of (?:the )?elements|replaces them by None"
        r"|loads +loading this file runs"
    ),
    "README.zh-CN.md": "结论代码|某条结论|制定方案",
}
"""Words that a reader stumbled over, below each place; the size of a model is its
parameters.
"""


def test_words_that_readers_stumbled_over_are_gone() -> None:
    for place, words in GONE.items():
        top = ROOT / place
        paths = (
            [top]
            if top.is_file()
            else [path for path in top.rglob("*") if path.suffix in (".py", ".md")]
        )
        assert paths
        found = {
            path: re.findall(words, path.read_text(encoding="utf-8")) for path in paths
        }
        assert {name: rows for name, rows in found.items() if rows} == {}


def test_every_finding_has_its_place_on_the_page() -> None:
    made = page("docs/findings.md")
    titles = re.compile(r"^### ([a-z-]+)$", re.MULTILINE)

    assert set(titles.findall(made)) == set(CATALOGUE)
    for code, level in re.findall(r"^### ([a-z-]+)\n\n\*(\w+)\.\*", made, re.MULTILINE):
        assert CATALOGUE[code].level == level


def said_by_torch() -> list[str]:
    """The first lines of the errors that the page quotes, as the torch that is
    installed says them.
    """
    net = nn.Linear(2, 2)
    wrapped = {f"module.{name}": value for name, value in net.state_dict().items()}
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: "cuda:0"
    ):
        on_gpu = rewriting.in_memory({"a": torch.ones(2)})
    objects = rewriting.in_memory({"args": argparse.Namespace()})
    samples = ROOT / "sample_checkpoints"
    optimizer = torch.optim.Adam
    tried: list[Callable[[], Any]] = [
        lambda: torch.load(io.BytesIO(on_gpu)),
        lambda: net.load_state_dict(wrapped),
        lambda: nn.Linear(2, 3).load_state_dict(net.state_dict()),
        lambda: torch.load(io.BytesIO(objects)),
        lambda: torch.load(
            samples / "legacy_python2.pth", map_location="cpu", weights_only=False
        ),
        lambda: torch.load(samples / "whole_model.pth", weights_only=False),
        lambda: torch.load(samples / "lfs_pointer.pth", weights_only=False),
        lambda: torch.load(samples / "html_page.pth", weights_only=False),
        lambda: torch.load(samples / "truncated.pth"),
        lambda: optimizer(net.parameters()).load_state_dict(
            optimizer([net.weight]).state_dict()
        ),
        lambda: optimizer(net.parameters()).load_state_dict(
            optimizer([{"params": [row]} for row in net.parameters()]).state_dict()
        ),
    ]
    weights = net.state_dict()
    zipped = rewriting.in_memory(dict(weights))
    tied = {"emb.weight": net.weight, "lm_head.weight": net.weight}
    tried += [
        lambda: weights.eval(),
        lambda: dict(weights).to("cpu"),  # type: ignore[attr-defined]
        lambda: weights(torch.ones(2)),
        lambda: net.load_state_dict(net),  # type: ignore[arg-type]
        lambda: torch.jit.load(io.BytesIO(zipped)),
        lambda: safetensors.torch.load(b"<!DOCTYPE html><html>" + bytes(80)),
        lambda: safetensors.torch.load(
            safetensors.torch.save({"a": torch.ones(9)})[:-4]
        ),
        lambda: safetensors.torch.save_file(tied, os.devnull),
        lambda: torch.ones(8) + torch.ones(6),
        lambda: torch.ones(2, 2).half() @ torch.ones(2, 2),
        lambda: {}["state_dict"],
        lambda: net.load_state_dict(
            {name: value.to("meta") for name, value in weights.items()}
        ),
        lambda: nn.Linear(2, 2, device="meta").to("cpu"),
        lambda: torch.save(weights, "ckpts/run.pth"),
        lambda: torch.device("cuda1"),
    ]
    found = []
    for attempt in tried:
        with pytest.raises(Exception) as caught:
            attempt()
        kind = type(caught.value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        found.append(f"{module}{kind.__qualname__}: {caught.value}")
    return found


def test_the_errors_of_the_page_are_torchs() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", page("docs/errors.md"), re.DOTALL)
    said = "\n".join(
        line.rstrip() for text in said_by_torch() for line in text.splitlines()
    )

    assert len(blocks) >= 14
    elsewhere = (
        "CUDA device 1",
        "out of memory",
        "finished reduction",
        "did not receive",
        "central directory",
    )
    elsewhere += ("attribute 'Net'", "same device", "ready", "Missing key in")
    # Of two processes.
    elsewhere += ("expects same model", "in this process with sizes")
    # Of other versions of torch and Python, of full disks, and of other libraries.
    elsewhere += (
        "has no attribute 'approximate'",
        "recompute_scale_factor",
        "contains only the model",
        "__init__()",
    )
    elsewhere += (
        "supported version",
        "did you mean to use torch.jit",
        "mmap can only",
        "_rebuild_parameter_v2",
    )
    elsewhere += (
        "pickle protocol",
        "numpy._core",
        "BitGenerator",
        "PosixPath",
        "serious vulnerability",
    )
    elsewhere += (
        "HeaderTooLarge",
        "valid metadata",
        "no file named",
        "step-10",
        "No such file or directory",
        "inline_container",
        "No space left",
    )
    elsewhere += (
        "persistent id",
        "size of tensor a",
        "Errno 5",
        "probability tensor",
        "Some tensors share memory",
        "to be dict-like",
        "mat1 and mat2",
        "Input type (torch.cuda",
        "not compiled with CUDA",
        "Can't pickle local",
        "state_steps",
        "addmm_impl",
        "expected scalar type",
        "MP=2",
        "No LoRA keys",
        "Unknown builtin op",
        "non contiguous",
        "nothing to resume",
        "detect model type",
        "Errno 22",
        "MPS framework",
        "RNG state must be",
        "disabled instance of GradScaler",
        "unknown zero stage",
        "is not a zero checkpoint",
        "open file failed",
        "valuehead",
        "value from checkpoint",
        "Resume checkpoint not found",
        "a tar archive",
        "attribute 'seek'",
        "attribute 'task'",
        "Could not deserialize object",
        "generated cpp file",
        "state of the optimizer when",
        "SourceChangeWarning",
        "llama_model_load",
        "Cannot allocate memory",
        "paging file",
        "Linear8bitLt",
        "unscale FP16",
        "clip input is invalid",
        "RNG state is wrong size",
        "_OptimStateKey",
        "Tried to step",
        "state dictionary is incorrect",
        "Lite Interpreter version",
        "TorchTune checkpoint file",
        "unsupported ScalarType",
        "has no attribute 'float8_e4m3fn'",
        "ChildFailedError",
        "KeyError: 'RANK'",
        "Loading adapter weights",
        "FSDP assumes",
        "parameters not in model",
        "Weight Not Found",
        "EOFError",
        "Unable to load 'roi_heads",
        "os error 19",
        "merging v1 and v2",
        "correctly renamed",
        "is not a valid JSON file",
        "do not match exactly",
        "newly initialized",
        "_IncompatibleKeys",
        "have a file named config.json",
        "'runs/best.pth'",
    )
    for block in blocks:
        if not any(word in block for word in elsewhere):
            assert block.removeprefix("Weights") in said, block


def test_errors_that_need_gpus_or_ranks_are_torchs_too() -> None:
    """Texts that torch puts together from parts: each part stands in its sources or its
    libraries.
    """
    folder = Path(torch.__file__).parent
    text = page("docs/errors.md")
    parts = {
        "lib/libtorch_cpu.so": [
            "Expected to mark a variable ready only once. ",
            "This error is caused by one of the following reasons:",
            "Parameter at index ",
            " has been marked as ready twice.",
            " to have the same device as tensor for ",
            "; but device ",
            " does not equal ",
        ],
        "distributed/checkpoint/default_planner.py": [
            "Missing key in checkpoint state_dict: "
        ],
    }
    for name, wanted in parts.items():
        with (
            (folder / name).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            assert [part for part in wanted if data.find(part.encode()) < 0] == []
        assert [part for part in wanted if part.strip() not in text] == []


def rows_of(text: str) -> list[list[str]]:
    """The cells of every row of the tables of a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|-")
    ]


def test_every_format_stands_on_its_page() -> None:
    read, _, rest = page("docs/formats.md").partition("## What each format keeps")
    kept, _, rest = rest.partition("## Formats that are recognised but not read")

    assert {row[0] for row in rows_of(read)[1:]} == {
        f"`{format.name}`" for format in FORMATS
    }, "each format has a row in the first table of docs/formats.md"
    names, *rows = rows_of(kept)
    said = {
        row[0]: [cell.partition(",")[0] == "yes" for cell in row[1:]] for row in rows
    }
    several = ("deepspeed", "folder", "sharded")
    single = {
        f"`{format.name}`": format for format in FORMATS if format.name not in several
    }
    traits = [single[name].traits for name in names[1:]]
    assert set(names[1:]) == set(single)
    assert said == {
        "written by `--format`": [
            name.strip("`") in written_formats() for name in names[1:]
        ],
        "any Python object": [trait.is_pickle for trait in traits],
        "the device of each tensor": [trait.keeps_devices for trait in traits],
        "the order of tensors": [trait.keeps_order for trait in traits],
        "tensors that share memory": [trait.keeps_ties for trait in traits],
        "checksums of tensors": [trait.has_checksums for trait in traits],
        "`--in-place` without a copy": [trait.in_place for trait in traits],
    }


def test_every_limit_stands_on_the_page_of_formats() -> None:
    text = page("docs/formats.md").partition("## Limits")[2].partition("\n## ")[0]
    limits = Limits()._asdict()

    assert [row[:2] for row in rows_of(text)[1:]] == [
        [f"`{name.replace('_', '-')}`", f"{value:,}"] for name, value in limits.items()
    ]


def test_every_limit_stands_on_the_page_of_security() -> None:
    text = page("SECURITY.md").partition("## Limits")[2].partition("\n## ")[0]
    limits = Limits()._asdict()

    assert [row[:2] for row in rows_of(text)[1:]] == [
        [f"`{name.replace('_', '-')}`", f"{value:,}"] for name, value in limits.items()
    ]
    assert all(len(row) == 4 and row[2] and row[3] for row in rows_of(text)[1:])
    assert (
        f"{TENSOR_MEMORY:,} bytes" in text
        and f"{VALUE_MEMORY} bytes" in text
        and f"{TENSOR_BYTES} bytes" in text
        and f"{INFLATION} bytes" in text
    )


def test_every_name_of_a_format_stands_on_the_page_of_formats() -> None:
    text = page("docs/formats.md").partition("## Formats of other distributions")[2]
    names = {*Format._fields}

    assert GROUP in text
    assert {re.sub(r"`|\(.*", "", row[0]) for row in rows_of(text)[1:]} == names


def test_every_exit_code_stands_on_the_page_of_scripting() -> None:
    codes = [
        row[0] for row in rows_of(page("docs/scripting.md")) if row[0].startswith("**")
    ]
    signals = [
        128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    ]
    own = sorted([start.TROUBLE, start.PIPE_CLOSED, *signals])

    assert codes == [f"**{code}**" for code in (0, 1, *own)]


PAGES = [
    *FIRST_PAGES,
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "sample_checkpoints/README.md",
    *sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")
    ),
]


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(name: str) -> list[tuple[str, str]]:
    """The links of a page within the project: the path from the root, and the
    anchor.
    """
    found = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page(name))):
        path, _, anchor = target.partition("#")
        place = (ROOT / name).parent / path if path else ROOT / name
        found.append((os.path.relpath(os.path.normpath(place), ROOT), anchor))
    return found


def anchors(name: str) -> set[str]:
    """What GitHub makes of the titles of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(page(name)), re.MULTILINE)
    assert len(set(titles)) == len(titles), name
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_links_and_names_is_there(name: str) -> None:
    targets = links(name)

    assert anchors(name)
    assert [path for path, _ in targets if not (ROOT / path).exists()] == []
    assert [
        f"{path}#{anchor}"
        for path, anchor in targets
        if anchor and anchor not in anchors(path)
    ] == []
    paths = re.findall(
        r"`((?:tests|ckpt|docs|tools|benchmarks)/[\w/]+\.\w+)`", page(name)
    )
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_each_option_behind_a_command_is_one_that_it_has(name: str) -> None:
    """In blocks of code and in sentences."""
    for command, rest in re.findall(r"\bckpt ([a-z]+)((?: [^`|;&>)\n]*)?)", page(name)):
        if command not in app.COMMANDS:
            continue  # `ckpt finds`
        had = {"--help", "--help-all"}
        for row in options_of(command):
            had |= {row.name, *row.other_names}
        given = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", rest))
        assert given <= had, (command, given - had)


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen = {"README.md"}
    ahead = ["README.md"]
    while ahead:
        for path, _ in links(ahead.pop()):
            if path.endswith(".md") and path not in seen:
                seen.add(path)
                ahead.append(path)

    assert set(PAGES) - seen == set()


def test_pages_name_no_machine_and_no_host_of_packages() -> None:
    folders = "|".join(f"/{name}/" for name in ("home", "tmp", "work", "root"))
    hosts = "|".join(("py" + r"pi\.", r"files\.python" + "hosted", "local" + "host"))
    words = re.compile(f"{folders}|{hosts}")

    assert [
        (name, words.findall(page(name))) for name in PAGES if words.search(page(name))
    ] == []


def test_the_changelog_begins_with_what_is_not_released() -> None:
    titles = re.findall(r"^## \[(.+?)\]", page("CHANGELOG.md"), re.MULTILINE)

    assert titles[0] == "Unreleased"
    assert ckpt.__version__.endswith("dev0") or titles[1] == ckpt.__version__


def test_every_test_that_a_page_names_is_there() -> None:
    for page in ("SECURITY.md", "CONTRIBUTING.md"):
        for name in re.findall(r"`(tests/[\w/.]+)`", (ROOT / page).read_text()):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_first_page_says_how_it_is_installed() -> None:
    for name in FIRST_PAGES:
        text = page(name)
        for way in (
            "make demo",
            ".venv/bin/ckpt",
            "pip install torch-ckpt",
            "uv tool install",
            "PIP_EXTRA_INDEX_URL",
        ):
            assert way in text, (name, way)
        assert (
            "--index-url" not in text and "--extra-index-url" not in text
        )  # tools/release.py refuses it
