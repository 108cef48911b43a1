"""Folding: known models come out in few lines, and no tensor is lost or counted twice."""

from __future__ import annotations

from math import prod

import architectures
import pytest
from architectures import Shapes
from hypothesis import given
from hypothesis import strategies as st

from ckpt.render.folding import Leaf, alike, fold, lines


def leaves(shapes: Shapes) -> list[Leaf]:
    return [Leaf(shape, prod(shape), 4 * prod(shape)) for shape in shapes.values()]


def labels(shapes: Shapes, depth: int | None = None) -> list[str]:
    found = []
    for line in lines(fold(list(shapes), leaves(shapes)), depth):
        times = f" ×{line.fold.times}" if line.fold.times > 1 and line.fold.children else ""
        found.append(f"{'  ' * line.level}{line.fold.label}{times}{' …' if line.shut else ''}")
    return found


def test_llama() -> None:
    assert labels(architectures.llama()) == [
        "model",
        "  embed_tokens.weight",
        "  layers.0-31 ×32",
        "    self_attn.{q,k,v,o}_proj.weight",
        "    mlp.{gate,up}_proj.weight",
        "    mlp.down_proj.weight",
        "    {input,post_attention}_layernorm.weight",
        "  norm.weight",
        "lm_head.weight",
    ]


def test_names_that_come_back_to_a_block_change_that_block_alone() -> None:
    blocks = {f"layers.{number}.{leaf}": (2,) for number in range(4) for leaf in ("a.w", "a.b", "c.w")}
    blocks |= {"layers.1.a.extra": (3,), "layers.2.c": (5,), "other.w": (2,), "layers.3.d.w": (7,)}

    assert labels(blocks, 9) == [
        "layers",
        "  0.a.{w,b}",
        "  0.c.w",
        "  1",
        "    a.{w,b}",
        "    a.extra",
        "    c.w",
        "  2",
        "    a.{w,b}",
        "    c",
        "    c.w",
        "  3",
        "    a.{w,b}",
        "    c.w",
        "    d.w",
        "other.w",
    ]


def test_a_million_names_take_the_memory_of_their_kinds() -> None:
    """Equal blocks are one: what is kept does not grow with their number."""
    import tracemalloc

    def peak(count: int) -> int:
        names = [f"model.layers.{n}.{leaf}" for n in range(count) for leaf in ("a.w", "a.b", "c.w")]
        leaves = [Leaf(1, 4, 16)] * len(names)
        tracemalloc.start()
        assert sum(one.tensors for one in fold(names, leaves)) == 3 * count
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(8_000) / 8_000 < 400, "bytes of a block of three tensors"


@pytest.mark.parametrize(
    ("shapes", "tensors", "most"),
    [
        (architectures.llama(), 291, 9),
        (architectures.mixtral(), 995, 13),
        (architectures.resnet50(), 320, 17),
        (architectures.adam(architectures.resnet50()), 803, 19),
    ],
    ids=["llama-7b", "mixtral-8x7b", "resnet-50", "resnet-50 with adam"],
)
def test_known_models_fit_on_a_screen(shapes: Shapes, tensors: int, most: int) -> None:
    folds = fold(list(shapes), leaves(shapes))

    assert len(shapes) == tensors
    assert len(lines(folds)) <= most
    assert sum(one.tensors for one in folds) == tensors
    assert sum(one.numel for one in folds) == sum(map(prod, shapes.values()))


def test_depth_opens_what_would_stay_shut() -> None:
    assert labels({f"a.b{i}.w{i}": (i,) for i in range(30)})[0] == "a …"
    assert len(labels({f"a.b{i}.w{i}": (i,) for i in range(30)}, depth=5)) == 31


def test_runs_fold_only_where_the_blocks_are_equal() -> None:
    shapes: Shapes = {}
    for i, width in enumerate((8, 8, 16, 16, 16)):
        shapes |= {f"layers.{i}.{name}": (width, n) for n, name in enumerate("abc", 1)}

    assert [label for label in labels(shapes, depth=1) if "…" in label] == ["  0-1 ×2 …", "  2-4 ×3 …"]


def test_numbered_leaves_of_one_look_are_ranges() -> None:
    shapes: Shapes = {f"state.{i}.step": () for i in range(5)} | {
        f"state.{i}.avg": (i // 2,) for i in range(5)
    }

    assert labels(shapes) == ["state", "  0-4.step", "  0-1.avg", "  2-3.avg", "  4.avg"]


def test_a_name_may_be_both_a_tensor_and_a_folder() -> None:
    assert labels({"a": (1,), "a.b": (2,), "a.c": (3,)}) == ["a", "a.b", "a.c"]


@given(st.dictionaries(st.text("ab.01_", max_size=8), st.tuples(st.integers(0, 3)), max_size=30))
def test_no_tensor_is_lost(shapes: Shapes) -> None:
    folds = fold(list(shapes), leaves(shapes))

    assert sum(one.tensors for one in folds) == len(shapes)
    assert sum(one.nbytes for one in folds) == sum(4 * prod(shape) for shape in shapes.values())
    opened = lines(folds, depth=64)
    assert sum(line.fold.tensors for line in opened if not line.fold.children) == len(shapes)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.0.w", "a.1.w", "a.2.w"], ["a.0-2.w"]),
        (["a.2.w", "a.0.w", "a.1.w", "a.10.w"], ["a.{0-2,10}.w"]),
        (["a.0.q.w", "a.0.k.w", "a.1.q.w", "a.1.k.w"], ["a.0-1.{q,k}.w"]),
        (["a.0.q.w", "a.0.k.w", "a.1.q.w"], ["a.0-1.q.w", "a.0.k.w"]),
        (["q_proj.w", "k_proj.w"], ["{q,k}_proj.w"]),
        (["a.0.w", "a.w", "b.0"], ["a.0.w", "a.w", "b.0"]),
        (["a.0.w", "a.01.w", "a.1.w"], ["a.0-1.w", "a.01.w"]),
        (["a.{x}.w", "a.y.w"], ["a.{x}.w", "a.y.w"]),
        (["", "."], ["", "."]),
        (["7", "8"], ["7-8"]),
    ],
)
def test_rows_that_are_alike(names: list[str], shown: list[str]) -> None:
    assert [name for name, _ in alike([(name, None) for name in names])] == shown


def test_rows_of_another_look_stay_apart_and_in_order() -> None:
    rows = [("a.0.w", 1), ("a.1.w", 2), ("a.2.w", 1), ("b", 1)]

    assert alike(rows) == [("a.{0,2}.w", (0, 2)), ("a.1.w", (1,)), ("b", (3,))]


@given(st.lists(st.tuples(st.text("ab01.{-", max_size=7), st.integers(0, 2)), max_size=30))
def test_every_row_stands_in_one_that_is_alike(rows: list[tuple[str, int]]) -> None:
    found = alike(rows)

    assert sorted(index for _, indices in found for index in indices) == list(range(len(rows)))
    assert all(len({rows[index][1] for index in indices}) == 1 for _, indices in found)
    assert [indices[0] for _, indices in found] == sorted(indices[0] for _, indices in found)
