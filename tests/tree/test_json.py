"""What a value expands to: every part once, and what repeats itself only so often."""

from __future__ import annotations

import pytest

from ckpt.commands.get.text import get_text
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node
from ckpt.tree import find, literals
from ckpt.tree.json import number_json, plain


def doubled(times: int) -> Node:
    """Lists that hold the list before them twice."""
    node: Node = [1, 1]
    for _ in range(times):
        node = [node, node]
    return node


def mapping(*pairs: tuple[Node, Node]) -> Dict:
    made = Dict()
    made.set([key for key, _ in pairs], [value for _, value in pairs])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("expand", [plain, get_text])
@pytest.mark.parametrize(
    "node",
    [
        doubled(40),
        ["a" * 100_000] * 1,
        ["x" * 1_000_000] * 2_000,
        [[1] * 100_000] * 100,
    ],
)
def test_what_repeats_itself_is_expanded_only_so_often(
    expand: object, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Node] = []
    look = literals.look

    def counting(node: Node) -> literals.View:
        looked.append(node)
        return look(node)

    monkeypatch.setattr("ckpt.tree.literals.look", counting)
    monkeypatch.setattr("ckpt.tree.json.look", counting)
    assert callable(expand)
    if node == ["a" * 100_000]:
        assert "aaa" in str(expand(node))
        return
    with pytest.raises(
        UnreadableError, match="the value repeats itself: over 200,000 parts"
    ):
        expand(node)
    assert len(looked) < 500_000


@pytest.mark.slow
def test_a_long_value_without_repeats_is_whole() -> None:
    node: Node = [[number, str(number)] for number in range(100_000)]
    whole = plain(node)

    assert isinstance(whole, list) and len(whole) == 100_000
    assert plain(doubled(10)) == eval(get_text(doubled(10)))


def test_equal_keys_get_numbers_in_one_pass() -> None:
    node = mapping(
        ("x#2", 0),
        *((("k",), number) for number in range(20_000)),
        ("x", 1),
    )
    found = plain(node)

    assert isinstance(found, dict) and len(found) == 20_002
    assert list(found)[:4] == ["x#2", "('k')", "('k')#2", "('k')#3"]
    assert max(map(len, found)) == 11


def test_a_key_that_is_a_container_reads_as_in_a_path() -> None:
    node = mapping((("a", 1), 0), (["k"], 1), ((2.5, None), 2))

    assert plain(node) == {"('a', 1)": 0, "<list 1>": 1, "(2.5, None)": 2}


def test_a_name_is_searched_once_in_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children whose names do not fit cost nothing but the look at their keys."""
    wide = mapping(*((f"k{number}", None) for number in range(1_000)), ("x", 7))
    node = mapping(("a", wide), ("b", wide))

    assert find.find_nodes(node, "a.x", Limits()) == [(("a", "x"), 7)]
    many: Node = mapping(("x", 1))
    for _ in range(30):  # a text and bytes of the same name: two ways at each step
        many = mapping(("a", many), (b"a", many))
    with pytest.raises(Exception, match="the name matches too many places"):
        find.find_nodes(many, "a." * 30 + "x", Limits(entries=1_000))


@pytest.mark.parametrize(
    ("value", "word"),
    [(float("inf"), "inf"), (float("-inf"), "-inf"), (float("nan"), "nan")],
)
def test_a_number_that_is_not_finite_is_null_with_its_kind(
    value: float, word: str
) -> None:
    assert number_json("mean", value) == {"mean": None, "mean_is": word}
    assert number_json("mean", -0.5) == {"mean": -0.5} and number_json(
        "mean", None
    ) == {"mean": None}
