"""Every source runs on Python 3.10: its grammar, the names of the library, and its
regular expressions.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import pytest
from process import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import lock

pytestmark = pytest.mark.slow

sys.path.remove(str(ROOT / "tools"))

OLDEST = (3, 10)
NEWER = """
tomllib asyncio.Runner asyncio.TaskGroup asyncio.timeout builtins.BaseExceptionGroup builtins.ExceptionGroup
calendar.Month contextlib.chdir copy.replace datetime.UTC enum.EnumType enum.ReprEnum enum.StrEnum enum.member
enum.nonmember enum.verify glob.translate hashlib.file_digest inspect.getmembers_static itertools.batched
logging.getLevelNamesMapping math.cbrt math.exp2 math.fma math.sumprod operator.call os.path.isjunction
os.path.splitroot os.process_cpu_count os.unshare random.binomialvariate re.NOFLAG re.PatternError
sys.activate_stack_trampoline sys.exception sys.monitoring termios.tcgetwinsize termios.tcsetwinsize
threading.setprofile_all_threads types.CapsuleType types.get_original_bases typing.LiteralString typing.Never
typing.NotRequired typing.ReadOnly typing.Required typing.Self typing.TypeIs typing.TypeVarTuple typing.Unpack
typing.assert_never typing.assert_type typing.dataclass_transform typing.override typing.reveal_type
uuid.uuid7 warnings.deprecated
"""
"""Names of the standard library that came with Python 3.11 or later."""
NEWER_REGEX = re.compile(r"(?<!\\)(?:[+*?}]\+|\(\?>)")
"""Possessive repeats and atomic groups. `[*+]` looks like one, and can be written
`[+*]`.
"""
SOURCES = sorted(
    path
    for folder in ("ckpt", "tests", "tools", "benchmarks", "sample_checkpoints")
    for path in (ROOT / folder).rglob("*.py")
)


def newer(source: str) -> list[str]:
    """What a source uses that Python 3.10 does not have. Raises SyntaxError for newer
    grammar.
    """
    tree = ast.parse(source, feature_version=OLDEST)
    nodes = list(ast.walk(tree))
    guarded = {
        id(each)
        for node in nodes
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "sys.version_info >= (3, 11)"
        for part in node.body
        for each in ast.walk(part)
    }
    imported: dict[str, str] = {}
    """Name in the source -> what it is, dotted."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                imported |= (
                    {alias.asname: alias.name} if alias.asname else {first: first}
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imported |= {
                alias.asname or alias.name: f"{module}.{alias.name}"
                for alias in node.names
            }
    return [
        f"{node.lineno}: {found}"
        for node in nodes
        if id(node) not in guarded
        for found in used(node, imported)
    ]


def used(node: ast.AST, imported: dict[str, str]) -> Iterator[str]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [
            str(node.module),
            *(f"{node.module}.{alias.name}" for alias in node.names),
        ]
    elif isinstance(node, ast.Attribute):
        first, _, rest = ast.unparse(node).partition(".")
        names = [f"{imported[first]}.{rest}"] if first in imported else []
    elif isinstance(node, ast.Name):
        names = [f"builtins.{node.id}"]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, method = ast.unparse(node.func.value), node.func.attr
        # `module.to_bytes(root)` is another function.
        is_number = (
            owner == "int"
            if method == "from_bytes"
            else method == "to_bytes" and owner not in imported
        )
        if is_number and len(node.args) + len(node.keywords) < 2:
            yield f"{method} without its byte order"
        if owner == "re" and node.args:
            texts = (
                each.value
                for each in ast.walk(node.args[0])
                if isinstance(each, ast.Constant)
            )
            if any(
                isinstance(text, str) and NEWER_REGEX.search(text) for text in texts
            ):
                yield "a possessive repeat or an atomic group"
    yield from (name for name in names if name in NEWER.split())


def test_all_sources_run_on_the_oldest_python() -> None:
    assert len(SOURCES) > 250
    found = {
        path.relative_to(ROOT).as_posix(): newer(path.read_text(encoding="utf-8"))
        for path in SOURCES
    }

    assert {name: rows for name, rows in found.items() if rows} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tomllib", "1: tomllib"),
        ("if sys.version_info >= (3, 11):\n    import tomllib", None),
        ("from datetime import UTC", "1: datetime.UTC"),
        ("import datetime as d\nd.UTC", "2: datetime.UTC"),
        ("import os\nos.path.splitroot('/')", "2: os.path.splitroot"),
        ("raise ExceptionGroup('', [])", "1: builtins.ExceptionGroup"),
        ("from enum import StrEnum", "1: enum.StrEnum"),
        ("int.from_bytes(data)", "1: from_bytes without its byte order"),
        ("int.from_bytes(data, 'big')", None),
        ("number.to_bytes(4)", "1: to_bytes without its byte order"),
        ("from x import write\nwrite.to_bytes(4)", None),
        (
            "import re\nre.compile(rf'a*+{b}')",
            "2: a possessive repeat or an atomic group",
        ),
        ("import re\nre.sub(r'a*\\++', '', text)", None),
    ],
)
def test_what_is_newer_is_found(source: str, expected: str | None) -> None:
    assert newer(source) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "source",
    ["try: pass\nexcept* ValueError: pass", "type X = int", "def f[T](): pass"],
)
def test_newer_grammar_is_refused(source: str) -> None:
    with pytest.raises(SyntaxError):
        newer(source)


def test_the_promise_is_the_oldest() -> None:
    project = lock.pyproject()

    assert project["project"]["requires-python"] == ">={}.{}".format(*OLDEST)
    assert project["tool"]["ruff"]["target-version"] == "py{}{}".format(*OLDEST)
    assert (
        "Programming Language :: Python :: {}.{}".format(*OLDEST)
        in project["project"]["classifiers"]
    )
