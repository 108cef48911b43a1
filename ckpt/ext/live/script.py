"""The calls that a script of the user makes when it is imported, found without running
it: a training that has no guard would begin, and write over its own checkpoints.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from ckpt.model.rows import NamedTuple

_TRAINING = frozenset(
    ("backward", "fit", "save", "save_checkpoint", "save_model", "save_pretrained")
)
"""The methods and functions of which a script that builds a model calls none."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LATER = (*_FUNCTIONS, ast.Lambda)
"""The code that runs when it is called, and not when it is met."""


class TrainingCall(NamedTuple):
    """A call that trains or writes, as `backward(…)`, and its line in the script."""

    text: str
    line: int


def training_call(source: bytes) -> TrainingCall | None:
    """Return the first call of a training that importing a script makes, or None.

    A function of the script counts where the script calls it, by its name alone. Code
    below `if __name__ == "__main__":` does not count.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import shows them
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the import says what is wrong
    bodies = _bodies_of(tree)
    waiting: list[ast.AST] = [tree]
    entered: set[str] = set()
    while waiting:
        for call in _calls_in(waiting.pop()):
            name = _name_of(call.func)
            if name in bodies:
                # The function of the script says what its name means.
                if name not in entered:
                    entered.add(name)
                    waiting += bodies[name]
            elif name.removeprefix(".") in _TRAINING:
                return TrainingCall(f"{name.removeprefix('.')}(…)", call.lineno)
    return None


def _bodies_of(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Return the functions of a script by their names, its methods with a dot in front:
    `model.train()` is no call of its function `train`.
    """
    methods: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods.update(node.body)
    bodies: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            dot = "." if node in methods else ""
            bodies.setdefault(dot + node.name, []).append(node)
    return bodies


def _calls_in(body: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that run with a module or a function, in the order of the text.

    Methods of a class run later, its other statements with the module.
    """
    waiting = list(reversed(list(ast.iter_child_nodes(body))))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LATER):
            continue
        if isinstance(node, ast.Call):
            yield node
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and _is_guard(node.test):
            inner = list(node.orelse)
        waiting += reversed(inner)


def _is_guard(test: ast.expr) -> bool:
    """Tell whether a condition is `__name__ == "__main__"`, perhaps with more."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        if not isinstance(node.ops[0], ast.Eq):
            continue
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides):
            return True
    return False


def _name_of(function: ast.expr) -> str:
    """Return the last name of a function that is called: `.backward` of
    `loss.backward`. It is empty where the function has no name.
    """
    if isinstance(function, ast.Attribute):
        return f".{function.attr}"
    if isinstance(function, ast.Name):
        return function.id
    return ""
