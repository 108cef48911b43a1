"""Small random changes of the code that no test notices: `make mutants ARGS='--count 40
--only ckpt/bytes'`.

Each change is made alone, in a copy of the tree. The tests that mirror the module run
first, then the tests that import it or run a command that needs it. A failure counts
only where the same test passes without the change. Every change that survives is a
line: a test is missing, or the change is equivalent and belongs into tests/mutants.txt
with the reason. Exit code 1 where one survives.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent
VERDICTS = HERE / "tests" / "mutants.txt"
MEMORY = 12 << 30
"""Bytes that the tests of one change may take: an endless loop must not take the
machine with it.
"""
MOST_COMMANDS = 3
"""A module that more commands need is tested by its own tests and its importers
alone.
"""
OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Change(NamedTuple):
    """One change: bytes of a file replaced. `before` and `after` are its lines, `scope`
    the function around it.
    """

    path: str
    line: int
    scope: str
    before: str
    after: str
    data: bytes

    @property
    def key(self) -> str:
        """The text of the change in the file of verdicts, where line numbers would not
        last.
        """
        return f"{self.path} {self.scope}: {self.before} → {self.after}"


def edits(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Pairs (a part of the node, the text that takes its place), one for each small
    change of the node itself.
    """
    match node:
        case ast.Compare(left=left, ops=[first, *others], comparators=rights) if (
            type(first) in OTHER
        ):
            yield (
                node,
                ast.unparse(ast.Compare(left, [OTHER[type(first)](), *others], rights)),
            )
        case ast.BoolOp(op=op, values=values):
            yield node, ast.unparse(ast.BoolOp(OTHER[type(op)](), values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
            yield node, ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, repr(not value)
        case ast.Constant(value=int(value)):
            yield node, repr(value + 1)
            if value:
                yield node, repr(value - 1)
        case ast.Return(value=value) if (
            value is not None and ast.unparse(value) != "None"
        ):
            yield value, "None"
        case (
            ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break()
        ):
            yield node, "pass"
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.ExceptHandler(type=ast.expr() as kinds):
            yield kinds, "()"
        case ast.Call(func=function, args=arguments, keywords=keywords) if (
            len(arguments) + len(keywords) > 1
        ):
            rest = (
                ast.Call(function, arguments, keywords[:-1])
                if keywords
                else ast.Call(function, arguments[:-1], [])
            )
            yield node, ast.unparse(rest)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
        node.test, ast.Constant
    ):
        yield node.test, "False"
        if not isinstance(node, ast.While):
            yield node.test, "True"


def is_left_out(node: ast.AST, scope: list[str]) -> bool:
    """True for what no test should notice: texts, annotations, `__repr__`,
    TYPE_CHECKING, the numbers of module constants.

    `tests/house/test_paths.py` has the account of those numbers. Texts inside of
    f-strings have no places before Python 3.12.
    """
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case (
            ast.FunctionDef(name="__repr__") | ast.If(test=ast.Name(id="TYPE_CHECKING"))
        ):
            return True
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
        ):
            return not scope and (name.lstrip("_").isupper() or name == "__all__")
    return False


def changes_of(root: Path, path: Path) -> Iterator[Callable[[], Change]]:
    """A maker of each change of a file; `Change` itself holds the whole file."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))

    def change(part: ast.AST, text: str, scope: str) -> Change:
        first, last = part.lineno, part.end_lineno  # type: ignore[attr-defined]
        begin = begins[first - 1] + part.col_offset  # type: ignore[attr-defined]
        end = begins[last - 1] + part.end_col_offset  # type: ignore[attr-defined]
        head, tail = data[begins[first - 1] : begin], data[end : begins[last]]
        before, after = (
            " ".join(shown.decode().split())
            for shown in (head + data[begin:end] + tail, head + text.encode() + tail)
        )
        name = path.relative_to(root).as_posix()
        return Change(
            name,
            first,
            scope or "<module>",
            before,
            after,
            data[:begin] + text.encode() + data[end:],
        )

    def walk(node: ast.AST, scope: list[str]) -> Iterator[Callable[[], Change]]:
        for part, text in edits(node):
            yield partial(change, part, text, ".".join(scope))
        inner = (
            [*scope, node.name]
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else scope
        )
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not is_left_out(child, inner):
                    yield from walk(child, inner)

    yield from walk(ast.parse(data), [])


def drawn(root: Path, only: str, count: int, seed: int) -> list[Change]:
    """So many changes of the files below a path, all different, each of them valid
    Python. The same for the same seed.
    """
    makers = [
        maker
        for path in sorted((root / "ckpt").rglob("*.py"))
        if path.relative_to(root).as_posix().startswith(only.rstrip("/"))
        for maker in changes_of(root, path)
    ]
    random.Random(seed).shuffle(makers)
    changes: dict[str, Change] = {}
    for maker in makers:
        if len(changes) == count:
            break
        made = maker()
        try:
            compile(made.data, made.path, "exec", dont_inherit=True)
        except (
            SyntaxError
        ):  # such as a text that a parent node must have in parentheses
            continue
        changes.setdefault(made.key, made)
    return list(changes.values())


def verdicts() -> set[str]:
    """The changes that are judged to be equivalent: a line is the change, two spaces,
    `#`, and the reason.
    """
    lines = (
        VERDICTS.read_text(encoding="utf-8").splitlines() if VERDICTS.exists() else []
    )
    return {line.rpartition("  # ")[0].strip() for line in lines if "  # " in line}


@cache
def tests() -> dict[Path, str]:
    """The text of every module of tests."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in sorted((HERE / "tests").rglob("test_*.py"))
    }


@cache
def commands() -> dict[str, set[str]]:
    """The modules of the commands, each with all modules that it needs."""
    sys.path.insert(0, str(HERE / "tests" / "lib"))
    import house

    doors = [name for name in house.NAMES if name.endswith(".command")]
    return {door: {door, *house.reached_from(door)} for door in doors}


@cache
def rings(path: str) -> tuple[tuple[str, ...], ...]:
    """Return the modules of tests that run for a module: what mirrors it, then what
    imports it or names a command that needs it.
    """
    module = Path(path).relative_to("ckpt")
    folder, stem = HERE / "tests" / module.parent, module.stem.strip("_")
    name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    mirror = [folder / f"test_{stem}.py"]
    while not folder.is_dir():
        folder = folder.parent
    beside = sorted(folder.glob("test_*.py")) if folder != HERE / "tests" else []
    first = [
        *(test for test in mirror if test.exists()),
        *sorted((folder / stem).glob("test_*.py")),
    ] or beside
    importing = re.compile(
        rf"\b{re.escape('ckpt.' + name)}\b"
        rf"|from {re.escape('ckpt.' + name).rpartition('.')[0]} import .*\b{stem}\b"
    )
    doors = [door for door, needed in commands().items() if name in needed]
    words = [door.split(".")[1] for door in doors if len(doors) <= MOST_COMMANDS]
    # The Python function of a command is reached by no import from the command.
    if module.parts[0] in ("commands", "ext") and module.parts[1] not in words:
        words.append(module.parts[1])
    # On a command line the name is a word; in Python it is a function.
    using = re.compile(
        "|".join(
            rf"[\"' ]{word.replace('_', '-')}[\"' ]|\b(?:ckpt|api)\.{word}\("
            for word in words
        )
        or r"\Z."
    )
    folders = ("cli", "api", *words)
    second = [
        *beside,
        *(test for test, text in tests().items() if importing.search(text)),
        *(
            test
            for test, text in tests().items()
            if test.parent.name in folders and using.search(text)
        ),
        HERE / "tests" / "test_accounts.py",
    ]
    names = [
        [str(test.relative_to(HERE)) for test in dict.fromkeys(ring)]
        for ring in (first, second)
    ]
    return tuple(names[0]), tuple(test for test in names[1] if test not in names[0])


class Tree:
    """A copy of the checkout, in which the tests run."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.root, self._limit = folder, limit
        listing = [
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        names = subprocess.run(
            listing, cwd=HERE, capture_output=True, check=True, text=True
        ).stdout
        for name in names.split("\0"):
            if name and (HERE / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(HERE / name, folder / name, follow_symlinks=False)
        self._sound: dict[str, bool] = {}
        self._time = time.time()

    def _write(self, path: Path, data: bytes) -> None:
        """Write a module with a time of its own: bytecode of another one of its size
        and second would run instead.
        """
        path.write_bytes(data)
        self._time += 2
        os.utime(path, (self._time, self._time))

    def run(self, tests: tuple[str, ...]) -> str | None:
        """The first of the tests that fails: its id, the module that cannot be
        collected, or `time limit`. None if all pass.
        """
        words = (
            f"{sys.executable} -m pytest -x -q -p no:cacheprovider -p no:xdist --tb=no "
            "-rfE"
        ).split()
        # What people brought is slow in sum alone, and much of `explain` is told by it.
        is_explain = all(test.startswith("tests/ext/explain/") for test in tests)
        if len(tests) > 1 and not is_explain:
            words += ["-m", "not slow"]
        ran = subprocess.Popen(
            [*words, *tests],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_DATA, (MEMORY, MEMORY)
            ),
        )
        try:
            out = ran.communicate(timeout=self._limit)[0]
        except subprocess.TimeoutExpired:
            return "time limit"
        finally:
            try:
                os.killpg(ran.pid, signal.SIGKILL)  # also what a test has left behind
            except ProcessLookupError:
                pass
            ran.wait()
        if ran.returncode in (0, 5):  # 5: all are left out
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", out, re.MULTILINE)
        return failed[1] if failed else "pytest ended"

    def notices(self, change: Change) -> bool:
        """True if a test fails with a change that passes without it."""
        path = self.root / change.path
        original = path.read_bytes()
        for ring in filter(None, rings(change.path)):
            self._write(path, change.data)
            try:
                failed = self.run(ring)
            finally:
                self._write(path, original)
            if failed is None:
                continue
            if "::" not in failed and not failed.endswith(".py"):
                return True
            if failed not in self._sound:
                self._sound[failed] = self.run((failed,)) is None
            if self._sound[failed]:
                return True
            print(
                f"{failed} fails without a change too: {change.path} is not judged by "
                "what follows it"
            )
        return False


def main() -> int:
    """Draw, run, print. The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--count", type=int, default=100, help="how many changes to draw"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another draw for another number"
    )
    parser.add_argument(
        "--only",
        default="ckpt",
        metavar="PATH-PREFIX",
        help="draw in these files alone: ckpt/bytes",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the draw and run nothing"
    )
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds for the tests of one change"
    )
    options = parser.parse_args()
    judged = verdicts()
    changes = drawn(HERE, options.only, options.count, options.seed)
    survivors = known = 0
    with tempfile.TemporaryDirectory(prefix="ckpt-mutants-") as folder:
        tree = None if options.list else Tree(Path(folder), options.limit)
        for change in changes:
            if change.key in judged:
                known += 1
            elif tree is None or not tree.notices(change):
                survivors += 1
                print(
                    (
                        f"{change.path}:{change.line} {change.scope}: {change.before} "
                        f"→ {change.after}"
                    ),
                    flush=True,
                )
    if tree is not None:
        noticed = len(changes) - survivors - known
        print(
            f"{len(changes)} changes: {noticed} noticed, {survivors} survived, {known} "
            "known to be equivalent"
        )
    return 1 if tree is not None and survivors else 0


if __name__ == "__main__":
    sys.exit(main())
