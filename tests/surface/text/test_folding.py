"""Folding: known models come out in few lines, and no tensor is lost or counted
twice.
"""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.model.text import merge_alike_rows
from ckpt.surface.text.folding import Leaf, fold, lines

Shapes = dict[str, tuple[int, ...]]


def llama(
    layers: int = 32, width: int = 4096, hidden: int = 11008, words: int = 32000
) -> Shapes:
    """Llama-7B: 291 tensors."""
    found: Shapes = {"model.embed_tokens.weight": (words, width)}
    for i in range(layers):
        at = f"model.layers.{i}"
        found |= {
            f"{at}.self_attn.{name}_proj.weight": (width, width) for name in "qkvo"
        }
        found |= {
            f"{at}.mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")
        }
        found[f"{at}.mlp.down_proj.weight"] = (width, hidden)
        found |= {
            f"{at}.{name}_layernorm.weight": (width,)
            for name in ("input", "post_attention")
        }
    return found | {"model.norm.weight": (width,), "lm_head.weight": (words, width)}


def mixtral() -> Shapes:
    """Mixtral-8x7B: 995 tensors."""
    found: Shapes = {"model.embed_tokens.weight": (32000, 4096)}
    for i in range(32):
        at = f"model.layers.{i}"
        found |= {
            f"{at}.self_attn.{n}_proj.weight": (4096, 4096)
            if n in "qo"
            else (1024, 4096)
            for n in "qkvo"
        }
        found[f"{at}.block_sparse_moe.gate.weight"] = (8, 4096)
        for j in range(8):
            expert = f"{at}.block_sparse_moe.experts.{j}"
            found |= {
                f"{expert}.w1.weight": (14336, 4096),
                f"{expert}.w2.weight": (4096, 14336),
            }
            found[f"{expert}.w3.weight"] = (14336, 4096)
        found |= {
            f"{at}.{name}_layernorm.weight": (4096,)
            for name in ("input", "post_attention")
        }
    return found | {"model.norm.weight": (4096,), "lm_head.weight": (32000, 4096)}


def resnet50() -> Shapes:
    """ResNet-50 as torchvision writes it: 320 tensors, 161 of them parameters."""
    found: Shapes = {"conv1.weight": (64, 3, 7, 7)} | _norm("bn1", 64)
    inside = 64
    for layer, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            at = f"layer{layer}.{block}"
            found |= {f"{at}.conv1.weight": (width, inside, 1, 1)} | _norm(
                f"{at}.bn1", width
            )
            found |= {f"{at}.conv2.weight": (width, width, 3, 3)} | _norm(
                f"{at}.bn2", width
            )
            found |= {f"{at}.conv3.weight": (4 * width, width, 1, 1)} | _norm(
                f"{at}.bn3", 4 * width
            )
            if not block:
                found[f"{at}.downsample.0.weight"] = (4 * width, inside, 1, 1)
                found |= _norm(f"{at}.downsample.1", 4 * width)
            inside = 4 * width
    return found | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def adam(model: Shapes) -> Shapes:
    """A training checkpoint: the model, and Adam's state of its parameters."""
    parameters = [
        shape
        for name, shape in model.items()
        if not name.endswith(("running_mean", "running_var", "tracked"))
    ]
    found: Shapes = {f"model.{name}": shape for name, shape in model.items()}
    for i, shape in enumerate(parameters):
        found |= {
            f"optimizer.state.{i}.step": (),
            f"optimizer.state.{i}.exp_avg": shape,
        }
        found[f"optimizer.state.{i}.exp_avg_sq"] = shape
    return found


def _norm(name: str, width: int) -> Shapes:
    found: Shapes = {
        f"{name}.{leaf}": (width,)
        for leaf in ("weight", "bias", "running_mean", "running_var")
    }
    return found | {f"{name}.num_batches_tracked": ()}


def leaves(shapes: Shapes) -> list[Leaf]:
    return [Leaf(shape, prod(shape), 4 * prod(shape)) for shape in shapes.values()]


def labels(shapes: Shapes, depth: int | None = None) -> list[str]:
    found = []
    for line in lines(fold(list(shapes), leaves(shapes)), depth):
        times = (
            f" ×{line.fold.times}" if line.fold.times > 1 and line.fold.children else ""
        )
        found.append(
            f"{'  ' * line.level}{line.fold.label}{times}{' …' if line.shut else ''}"
        )
    return found


def test_llama() -> None:
    assert labels(llama()) == [
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
    blocks = {
        f"layers.{number}.{leaf}": (2,)
        for number in range(4)
        for leaf in ("a.w", "a.b", "c.w")
    }
    blocks |= {
        "layers.1.a.extra": (3,),
        "layers.2.c": (5,),
        "other.w": (2,),
        "layers.3.d.w": (7,),
    }

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
        names = [
            f"model.layers.{n}.{leaf}"
            for n in range(count)
            for leaf in ("a.w", "a.b", "c.w")
        ]
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
        (llama(), 291, 9),
        (mixtral(), 995, 13),
        (resnet50(), 320, 17),
        (adam(resnet50()), 803, 19),
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

    assert [label for label in labels(shapes, depth=1) if "…" in label] == [
        "  0-1 ×2 …",
        "  2-4 ×3 …",
    ]


def test_numbered_leaves_of_one_look_are_ranges() -> None:
    shapes: Shapes = {f"state.{i}.step": () for i in range(5)} | {
        f"state.{i}.avg": (i // 2,) for i in range(5)
    }

    assert labels(shapes) == [
        "state",
        "  0-4.step",
        "  0-1.avg",
        "  2-3.avg",
        "  4.avg",
    ]


def test_a_name_may_be_both_a_tensor_and_a_folder() -> None:
    assert labels({"a": (1,), "a.b": (2,), "a.c": (3,)}) == ["a", "a.b", "a.c"]


@given(
    st.dictionaries(
        st.text("ab.01_", max_size=8), st.tuples(st.integers(0, 3)), max_size=30
    )
)
def test_no_tensor_is_lost(shapes: Shapes) -> None:
    folds = fold(list(shapes), leaves(shapes))

    assert sum(one.tensors for one in folds) == len(shapes)
    assert sum(one.nbytes for one in folds) == sum(
        4 * prod(shape) for shape in shapes.values()
    )
    opened = lines(folds, depth=64)
    assert sum(line.fold.tensors for line in opened if not line.fold.children) == len(
        shapes
    )


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
    assert [
        name for name, _ in merge_alike_rows([(name, None) for name in names])
    ] == shown


def test_rows_of_another_look_stay_apart_and_in_order() -> None:
    rows = [("a.0.w", 1), ("a.1.w", 2), ("a.2.w", 1), ("b", 1)]

    assert merge_alike_rows(rows) == [
        ("a.{0,2}.w", (0, 2)),
        ("a.1.w", (1,)),
        ("b", (3,)),
    ]


@given(
    st.lists(st.tuples(st.text("ab01.{-", max_size=7), st.integers(0, 2)), max_size=30)
)
def test_every_row_stands_in_one_that_is_alike(rows: list[tuple[str, int]]) -> None:
    found = merge_alike_rows(rows)

    assert sorted(index for _, indices in found for index in indices) == list(
        range(len(rows))
    )
    assert all(len({rows[index][1] for index in indices}) == 1 for _, indices in found)
    assert [indices[0] for _, indices in found] == sorted(
        indices[0] for _, indices in found
    )


def blocks_of(*names: str) -> Shapes:
    """Modules of three equal tensors each, so that every one is a line of its own."""
    return {
        f"net.{name}.{leaf}": shape
        for name in names
        for leaf, shape in (("a", (2,)), ("b", (3,)), ("c", (4,)))
    }


def test_numbers_are_joined_only_where_they_follow_each_other() -> None:
    heads = [label.strip() for label in labels(blocks_of("0", "1", "3", "4"), 1)]
    assert heads == ["net", "0-1 ×2 …", "3-4 ×2 …"]


def test_words_and_numbers_are_not_joined() -> None:
    heads = [label.strip() for label in labels(blocks_of("0", "x", "y"), 1)]
    assert heads == ["net", "0 …", "{x,y} ×2 …"]
