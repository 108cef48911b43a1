"""Trees that are put together from nodes at their paths."""

from __future__ import annotations

import pytest

from ckpt.model.names import Path
from ckpt.model.nodes import Dict, Node, Opaque, dict_of
from ckpt.pickle.branches import Branches, with_lists


def plain_of(node: Node) -> object:
    """Return the dicts and lists of Python that a tree stands for."""
    if type(node) is Dict:
        return {
            key: plain_of(value)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    return [plain_of(item) for item in node] if type(node) is list else node


def grown(*leaves: tuple[Path, Node]) -> Node:
    """Return the tree of these leaves."""
    branches = Branches()
    assert all(branches.put(path, node) for path, node in leaves)
    return branches.tree()


def test_dicts_are_made_and_become_lists_where_their_keys_are_positions() -> None:
    root = grown(
        (("a", "b"), 1),
        (("a", "c", 1), 2),
        (("a", "c", 0), 3),
        (("d", 1), 4),
        ((7,), 5),
    )
    assert plain_of(root) == {"a": {"b": 1, "c": [3, 2]}, "d": {1: 4}, 7: 5}
    assert plain_of(grown(((0, 0), "x"), ((1,), "y"))) == [["x"], "y"]


def test_a_node_that_was_put_stays_what_it_is() -> None:
    leaf = dict_of([(0, "a"), (1, "b")])
    root = grown((("a",), leaf))
    assert (
        isinstance(root, Dict)
        and root.values[0] is leaf
        and plain_of(leaf) == {0: "a", 1: "b"}
    )


TAKEN: list[tuple[Path, bool]] = [
    (("a",), True),
    (("a", "b"), True),
    (("a", "b", "x"), True),
    (("a", "b", "y"), False),
    (("a", "b", "x", "z"), False),
    (("n", "x"), False),
]
"""Paths that are taken, or lead through a node that was put, and whether a node lies
there.
"""


@pytest.mark.parametrize(("path", "is_there"), TAKEN, ids=str)
def test_no_path_is_taken_twice_or_leads_through_a_node(
    path: Path, is_there: bool
) -> None:
    branches = Branches()
    assert branches.put(("a", "b"), dict_of([("x", dict_of([]))])) and branches.put(
        ("n",), 3
    )
    assert not branches.put(path, 1) and branches.holds(path) is is_there
    assert plain_of(branches.tree()) == {"a": {"b": {"x": {}}}, "n": 3}


def test_a_tree_that_is_there_grows() -> None:
    ordered = Opaque("reduce", None, (), None, 0)
    root = dict_of(
        [
            ("a", dict_of([("b", 1)])),
            ("list", [dict_of([("c", 2)])]),
            ("object", ordered),
        ]
    )
    branches = Branches(root)
    assert branches.put(("a", "d"), 3) and branches.put(("list", 0, "e"), 4)
    assert not branches.put(("list", 1), 5) and not branches.put(("object", "f"), 6)
    assert ordered.keys == ()
    assert plain_of(root.values[0]) == {"b": 1, "d": 3} and plain_of(
        root.values[1]
    ) == [{"c": 2, "e": 4}]


def test_all_dicts_of_positions_become_lists() -> None:
    root = dict_of(
        [("a", dict_of([(1, "y"), (0, dict_of([(0, "x")]))])), ("b", dict_of([(1, 2)]))]
    )
    assert plain_of(with_lists(root)) == {"a": [["x"], "y"], "b": {1: 2}}
