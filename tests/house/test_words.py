"""Docstrings begin with a verb in the imperative or a noun with its article, and say
None in words.
"""

from __future__ import annotations

import ast
import re

import pytest
from house import ROOT, parsed

FIRST = re.compile(r"(?:What|Which|Whether|Where|Who|Whom|Whose|How|When|Why|That)\b")
"""The words that no docstring begins with."""
INSIDE = re.compile(r"\b(?:those|that) of\b|[;,] None where\b|; None for\b")
"""The phrases that no docstring holds."""


def docstrings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return each docstring with its line: of modules, classes and functions, and below
    attributes.
    """
    return [
        (node.lineno, " ".join(node.value.value.split()))
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def breaches(tree: ast.Module) -> list[str]:
    """Return the docstrings that break the rules, each with its line."""
    return [
        f"{line}: {doc}"
        for line, doc in docstrings(tree)
        if FIRST.match(doc) or INSIDE.search(doc)
    ]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {
        str(path.relative_to(ROOT)): breaches(parsed(path))
        for path in ROOT.rglob("*.py")
    }

    assert len(found) > 200
    assert {path: rows for path, rows in found.items() if rows} == {}


PLACES = (
    '"""{}"""',
    'class A:\n    """{}"""',
    'def f():\n    """{}"""',
    'class A:\n    a: int = 0\n    """{}"""',
)
"""Modules with a docstring in each place that has one."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "doc",
    [
        "Whether a file is one.",
        "What a task found.",
        "How many there are.",
        "That a file is damaged.",
        "The name of a tensor, or that of its storage.",
        "The tensors of a file, and those\n    of its optimizer.",
        "The record of a name; None where there is none.",
        "The record of a name, None where there is none.",
        "The record of a name; None for a number.",
    ],
)
def test_a_bad_docstring_is_a_breach(place: str, doc: str) -> None:
    assert len(breaches(ast.parse(place.format(doc)))) == 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "doc",
    [
        "Tell whether a file is a checkpoint.",
        "Return the record of a name, or None.",
        "The files that a folder holds.",
        "Whatever the server says.",
    ],
)
def test_a_good_docstring_passes(place: str, doc: str) -> None:
    assert breaches(ast.parse(place.format(doc))) == []


def test_other_texts_are_not_read() -> None:
    assert (
        breaches(ast.parse('HINT = "What a task found"  # Whether\nprint("those of")'))
        == []
    )
