"""The corpus of hostile files, through the reader in this process, in a confined child,
and as a command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
from hostile import BOMBS, CASES, Case
from process import check_error, ckpt, environment, python, raw_controls

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError
from ckpt.model.findings import CATALOGUE
from ckpt.model.text import show
from ckpt.surface.text.lines import plain_text

DANGER = {
    "called-on-load",
    "code-inside",
    "unknown-import",
    "container",
    "trailing-data",
    "shards",
    "ambiguous-name",
}
"""Findings that a good file must not have."""

MEMORY = 256_000_000
"""What limits.py promises at the default limits, for a file without tensors."""
ADDRESS_SPACE = 2_500_000_000
SECONDS = 60


def _is_bomb(case: Case) -> bool:
    return case.name.startswith(BOMBS)


@pytest.fixture(autouse=True)
def _no_canary() -> Iterator[None]:
    """No payload ran, in this process or in a child."""
    assert not hostile.CANARY.exists(), "left by an earlier run: remove it"
    yield
    assert not hostile.CANARY.exists(), "the payload ran"


def _named(cases: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def _outcome(path: Path) -> tuple[str | None, list[str]]:
    """(the error's text or None, codes of findings) of everything that `ckpt inspect`
    does with a file.
    """
    try:
        with formats.open(str(path)) as checkpoint:
            report = inspect(Survey(checkpoint))
            json.dumps(report.to_json(), ensure_ascii=True, allow_nan=False)
            printed = plain_text(inspect_lines(report))
    except CkptError as error:
        return str(error), []
    assert raw_controls(printed.encode("utf-8", "surrogatepass")) == []
    return None, [finding.code for finding in report.findings]


def _judge(case: Case, error: str | None, codes: list[str]) -> None:
    if error is not None:
        line = show(error, 2000)
        assert line.splitlines() == [line] and raw_controls(line.encode()) == []
    if case.expect == "error":
        assert error is not None, f"it opens, with {codes}"
        assert case.says in error.lower()
    elif case.expect == "ok":
        assert error is None
        assert not DANGER & set(codes)
    elif case.expect == "note":
        assert error is None
        assert codes, "nothing is reported"


def test_corpus_is_whole() -> None:
    """Nobody loses a class of attacks by an edit."""
    assert len(CASES) > 900
    assert {case.name.partition("/")[0] for case in CASES} == {
        "ok",
        "fs",
        "foreign",
        "zip",
        "pickle",
        "tensor",
        "legacy",
        "tar",
        "safetensors",
        "index",
        "gguf",
        "name",
        "nemo",
        "plain",
        "sb3",
    }
    assert set(CATALOGUE) >= DANGER
    for prefix in BOMBS:
        assert any(case.name.startswith(prefix) for case in CASES), prefix


@pytest.mark.slow
@_named([case for case in CASES if not _is_bomb(case)])
def test_case(case: Case, tmp_path: Path) -> None:
    _judge(case, *_outcome(case.build(tmp_path)))


_CONFINED = """
import json, os, resource, sys, traceback
from ckpt import formats
from ckpt.model.errors import CkptError
from ckpt.evidence.survey import Survey
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.surface.text.lines import plain_text

def looked(path):
    error, codes, printed = None, [], 0
    try:
        with formats.open(path) as checkpoint:
            report = inspect(Survey(checkpoint))
            printed = len(json.dumps(report.to_json(), allow_nan=False)) + len(plain_text(inspect_lines(report)))
            codes = [finding.code for finding in report.findings]
    except CkptError as failure:
        error = str(failure)
    if sys.platform == "linux":  # ru_maxrss begins with that of the parent
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [error, codes, printed, peak]

space, seconds = map(int, sys.argv[1:])
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            print(json.dumps(looked(json.loads(line))), flush=True)
            code = 0
        except BaseException:
            print(json.dumps(traceback.format_exc()), flush=True)
        finally:
            os._exit(code)
    print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)
"""
"""A child that has imported the reader, and forks for each path under limits of its
own.
"""
LONG = ("deep_call.pt", "budget_rows.pt", "budget_ints_1m.pt", "laughs_tensors.pt")
"""The bombs that take seconds. Every day has others of their kind."""


@pytest.fixture(scope="module")
def confined() -> Iterator[subprocess.Popen[str]]:
    """The child that opens bombs. It ends with its stdin."""
    command = [sys.executable, "-c", _CONFINED, str(ADDRESS_SPACE), str(SECONDS)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as child:
        yield child


@pytest.mark.slow
@_named(
    [
        pytest.param(case, marks=pytest.mark.slow if case.name.endswith(LONG) else ())
        for case in CASES
        if _is_bomb(case)
    ]
)
def test_bomb(case: Case, tmp_path: Path, confined: subprocess.Popen[str]) -> None:
    """Under a limit on address space and time, and well below both."""
    assert confined.stdin is not None and confined.stdout is not None
    confined.stdin.write(f"{json.dumps(str(case.build(tmp_path)))}\n")
    confined.stdin.flush()
    said = []
    while not said or not isinstance(said[-1], dict):
        said.append(json.loads(confined.stdout.readline()))
    assert said[-1] == {"code": 0}, said
    ((error, codes, printed, peak), _) = said
    _judge(case, error, codes)
    assert peak < MEMORY
    assert printed < 100 << 20, "the answer is out of all proportion"


# --------------------------------------------------------------------------------------
# as a command

SELECTED = [
    "fs/zeros.pt",
    "fs/html.pt",
    "fs/fifo.pt",
    "fs/device_zero.pt",
    "foreign/7z.pt",
    "gguf/nested_array.gguf",
    "zip/trunc_half.pt",
    "zip/dup_storage.pt",
    "zip/overlap_same.pt",
    "zip/nul_name.pt",
    "zip/bomb_pkl_1gib.pt",
    "pickle/mal_then_broken.pt",
    "pickle/ext1.pt",
    "pickle/claim_bytearray8.pt",
    "pickle/deep_tuple_key.pt",
    "pickle/globals_200k.pt",
    "tensor/stride_beyond.pt",
    "tensor/size_5000_digits.pt",
    "tensor/key_traversal.pt",
    "legacy/keys_missing.pt",
    "tar/symlink.pt",
    "safetensors/n_2e64m8.safetensors",
    "safetensors/deep_json.safetensors",
    "index/traversal/model.safetensors.index.json",
    "index/escapes/model.safetensors.index.json",
    "name/message_escapes.pt",
    "name/class_in_message.pt",
    "name/file_bad.pt",
    "name/file_not_utf8_bad.pt",
]
"""Errors, one to four a class."""

FORMS = {"text": (), "json": ("--json",), "tsv": ("--tsv",)}
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SELECTED)
def test_error_through_the_command(name: str, form: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    assert case.expect == "error"
    path = case.build(tmp_path)
    done = ckpt("inspect", path, *FORMS[form])
    if form == "json":
        (document,) = map(json.loads, done.lines)
        assert (
            set(document) == {"schema", "ckpt", "file", "error"}
            and document["error"]["message"]
        )
        done = done._replace(out=b"")
    check_error(done, case.says)


OPENED = [
    "ok/bigint.pt",
    "ok/cyclic_dict.pt",
    "pickle/mal_REDUCE.pt",
    "pickle/mal_POPPED.pt",
    "pickle/global_surrogate.pt",
    "pickle/laughs_str.pt",
    "zip/name_escapes.pt",
    "gguf/template.gguf",
    "gguf/name_escape.gguf",
    "ok/legacy.pt",
    "name/everything.pt",
    "name/surrogate.pt",
    "name/class_escapes.pt",
    "name/value_escapes.pt",
    "name/long.pt",
    "name/file_good.pt",
    "name/file_not_utf8.pt",
]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPENED)
def test_opened_through_the_command(name: str, form: str, tmp_path: Path) -> None:
    """Files that open: exit 0, stderr silent, stdout clean and, as JSON, exact."""
    case = BY_NAME[name]
    assert case.expect in ("ok", "note", "any")
    done = ckpt("inspect", case.build(tmp_path), *FORMS[form])
    assert (done.code, done.err) == (0, b"")
    assert raw_controls(done.out, "\n\t" if form == "tsv" else "\n") == []
    if form == "json":
        assert done.out.isascii()
        codes = [finding["code"] for finding in json.loads(done.out)["findings"]]
        _judge(case, None, codes)
    elif form == "tsv":
        assert len({line.count("\t") for line in done.out.decode().splitlines()}) == 1


def test_payload_would_have_run(tmp_path: Path) -> None:
    """The canary can appear: what the tests above prove is not that the payloads are
    broken.
    """
    code = (
        "import pickle, sys, zipfile; "
        "pickle.loads(zipfile.ZipFile(sys.argv[1]).read('archive/data.pkl'))"
    )
    canary = tmp_path / "canary"
    listing = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hostile; from pathlib "
        "import Path; "
    )
    listing += (
        "case, = (c for c in hostile.CASES if c.name == 'pickle/mal_REDUCE.pt'); "
        "case.build(Path(sys.argv[2]))"
    )
    made = python(
        "-c",
        listing,
        Path(hostile.__file__).parent,
        tmp_path,
        env={**os.environ, "CKPT_CANARY": str(canary)},
    )
    assert made.code == 0, made.err
    assert python("-c", code, tmp_path / "mal_REDUCE.pt").code == 0
    assert canary.exists()
