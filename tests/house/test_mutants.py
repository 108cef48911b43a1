"""`make mutants` draws changes that are valid, small and different, and leaves the tree
as it is.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from process import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import mutants
from mutants import Change, Tree, drawn, rings

sys.path.remove(str(ROOT / "tools"))

CODE = '''"""A module that counts to 3."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

_MOST = 7


class Counter:
    """Counts 3 things."""

    def __repr__(self) -> str:
        return f"{1 + 1}"

    def least(self, sizes: "tuple[int, 4]", floor: int = 5) -> int:
        """The least of 2 sizes."""
        if not sizes and floor > 0:
            raise ValueError("2 sizes", floor)
        self.last = min(sizes, key=abs)
        try:
            return self.last
        except LookupError:
            return len(f"{floor + 1}")
'''
EXPECTED = {
    "if not sizes and floor > 0: → if False:",
    "if not sizes and floor > 0: → if True:",
    "if not sizes and floor > 0: → if not sizes or floor > 0:",
    "if not sizes and floor > 0: → if (sizes) and floor > 0:",
    "if not sizes and floor > 0: → if not sizes and floor >= 0:",
    "if not sizes and floor > 0: → if not sizes and floor > 1:",
    'raise ValueError("2 sizes", floor) → pass',
    "raise ValueError(\"2 sizes\", floor) → raise ValueError('2 sizes')",
    "self.last = min(sizes, key=abs) → pass",
    "self.last = min(sizes, key=abs) → self.last = min(sizes)",
    "return self.last → return None",
    "except LookupError: → except ():",
    'return len(f"{floor + 1}") → return None',
    'def least(self, sizes: "tuple[int, 4]", floor: int = 5) -> int: → '
    'def least(self, sizes: "tuple[int, 4]", floor: int = 6) -> int:',
    'def least(self, sizes: "tuple[int, 4]", floor: int = 5) -> int: → '
    'def least(self, sizes: "tuple[int, 4]", floor: int = 4) -> int:',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of one module."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "count.py").write_text(CODE)
    return tmp_path


def test_every_change_of_a_module_and_no_change_of_its_texts(tree: Path) -> None:
    changes = drawn(tree, "ckpt", 100, 0)

    assert {f"{change.before} → {change.after}" for change in changes} == EXPECTED
    assert len(changes) == len(EXPECTED) == len({change.data for change in changes})
    assert {(change.path, change.scope) for change in changes} == {
        ("ckpt/count.py", "Counter.least")
    }
    assert (tree / "ckpt" / "count.py").read_text() == CODE


@pytest.mark.slow
def test_changes_of_ckpt_are_valid_and_each_is_another_one() -> None:
    changes = drawn(ROOT, "ckpt/bytes/location.py", 60, 5)

    assert len(changes) == 60 == len({change.key for change in changes})
    for change in changes:
        assert change.path == "ckpt/bytes/location.py"
        before = (ROOT / change.path).read_bytes()
        assert ast.dump(ast.parse(change.data)) != ast.dump(ast.parse(before)), (
            change.key
        )
        assert before.splitlines()[change.line - 1].decode().split()[0] in change.before
    assert [change.key for change in changes] == [
        change.key for change in drawn(ROOT, "ckpt/bytes/location.py", 60, 5)
    ]
    assert [change.key for change in changes] != [
        change.key for change in drawn(ROOT, "ckpt/bytes/location.py", 60, 6)
    ]


@pytest.mark.slow
def test_the_tests_of_a_module_run_before_the_tests_that_import_it() -> None:
    first, second = rings("ckpt/bytes/executor.py")

    assert first == ("tests/bytes/test_executor.py",)
    assert "tests/test_one_answer.py" in second or "tests/test_accounts.py" in second
    assert rings("ckpt/commands/ls/command.py")[0] == (
        "tests/commands/ls/test_command.py",
    )
    assert "tests/commands/ls/test_command.py" in rings("ckpt/commands/ls/text.py")[0]
    assert "tests/ext/pt2/test_read.py" in rings("ckpt/ext/pt2/reader.py")[0]
    for path in (
        "ckpt/surface/api/checkpoint.py",
        "ckpt/bytes/__init__.py",
        "ckpt/ext/page/html/__init__.py",
        "ckpt/surface/api/advice.py",
    ):
        assert [
            name for ring in rings(path) for name in ring if not (ROOT / name).is_file()
        ] == []
        assert rings(path)[0] and not set(rings(path)[0]) & set(rings(path)[1])


@pytest.mark.slow
@pytest.mark.skipif(
    not (ROOT / ".git").exists(),
    reason="git lists the files of the tree, and this is no checkout",
)
def test_a_change_is_noticed_where_a_test_fails_with_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Tree(tmp_path, 600)
    monkeypatch.setattr(
        mutants, "rings", lambda path: (("tests/model/test_text.py",), ())
    )
    original = (ROOT / "ckpt" / "model" / "text.py").read_bytes()
    broken = Change(
        "ckpt/model/text.py",
        1,
        "",
        "",
        "",
        original + b"\ndef counted_noun(*_): return ''\n",
    )
    same = broken._replace(data=original + b"\n_UNUSED = 1\n")

    assert copied.notices(broken) and not copied.notices(same)
    of_one_size = broken._replace(
        data=original.replace(b"min(share, 99.9)", b"max(share, 99.9)")
    )
    assert len(of_one_size.data) == len(original) and of_one_size.data != original
    for _ in range(2):
        assert (
            copied.notices(of_one_size)
            and copied.run(("tests/model/test_text.py",)) is None
        )
    assert (
        (tmp_path / "ckpt" / "model" / "text.py").read_bytes()
        == original
        == (ROOT / "ckpt" / "model" / "text.py").read_bytes()
    )
    (tmp_path / "tests" / "model" / "test_text.py").write_text(
        "def test_it() -> None:\n    assert 0\n"
    )
    assert not copied.notices(broken), "the test fails without the change too"


def test_a_change_that_is_judged_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = drawn(ROOT, "ckpt/bytes/location.py", 1, 0)[0]
    monkeypatch.setattr(mutants, "VERDICTS", tmp_path / "mutants.txt")
    assert change.key not in mutants.verdicts()
    (tmp_path / "mutants.txt").write_text(
        f"A page of verdicts.\n\n{change.key}  # only the speed differs\n"
    )

    assert mutants.verdicts() == {change.key}


def test_every_verdict_is_about_code_that_is_there() -> None:
    for verdict in mutants.verdicts():
        path, _, rest = verdict.partition(" ")
        before = rest.partition(": ")[2].partition(" → ")[0]
        assert before in " ".join((ROOT / path).read_text().split()), verdict
