"""Hypothesis strategies: plain values (shared and cyclic ones too), and state dicts of
every kind of tensor.
"""

from __future__ import annotations

from argparse import Namespace
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

# --------------------------------------------------------------------------------------
# plain values

INTEGERS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        [
            2**31 - 1,
            2**31,
            -(2**31),
            -(2**31) - 1,
            2**16,
            2**63,
            255,
            256,
            65_535,
            -128,
            -129,
        ]
    ),
    st.sampled_from([2**2039, 2**2040, -(2**2041), 10**700]),  # LONG1 ends at 255 bytes
)
# Surrogates are in it: pickle writes them, and so do people whose file names are no
# text.
TEXT = st.one_of(
    st.text(st.characters(), max_size=12),
    st.sampled_from(
        ["", "\\u0041", "a\nb", "\r\n\x1a\0", "\ud800", "'\"", "x" * 300, "é" * 200]
    ),
)
BINARY = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"\xff" * 256, b"\n", bytes(range(256))])
)
HASHABLE_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(allow_nan=False),
    TEXT,
    BINARY,
    st.complex_numbers(allow_nan=False),
)
SCALARS = st.one_of(HASHABLE_SCALARS, st.floats(), BINARY.map(bytearray))
HASHABLES = st.recursive(
    HASHABLE_SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
    ),
    max_leaves=6,
)


def plain_values() -> st.SearchStrategy[Any]:
    """Values that need no class to unpickle: scalars in lists, tuples, dicts and sets,
    as a tree.
    """
    return st.recursive(
        st.one_of(SCALARS, HASHABLES, st.sets(HASHABLES, max_size=4)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(inner, max_size=5).map(tuple),
            st.dictionaries(HASHABLES, inner, max_size=5),
        ),
        max_leaves=20,
    )


@st.composite
def graphs(draw: st.DrawFn) -> list[Any]:
    """Lists and dicts that hold each other and tuples of each other: shared, cyclic,
    recursive tuples.
    """
    count = draw(st.integers(1, 5))
    nodes: list[Any] = [draw(st.sampled_from([list, dict]))() for _ in range(count)]
    for _ in range(draw(st.integers(0, 4))):
        nodes.append(
            tuple(draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=5)))
        )
    parts = st.one_of(st.sampled_from(nodes), SCALARS)
    for node in nodes[:count]:
        if isinstance(node, list):
            node.extend(draw(st.lists(parts, max_size=5)))
        else:
            node.update(draw(st.dictionaries(HASHABLES, parts, max_size=4)))
    return [*draw(st.permutations(nodes))]


# --------------------------------------------------------------------------------------
# tensors

TYPED = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
]
"""Dtypes with a storage class of their own."""
UNTYPED = [
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "bits8",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
]
"""Dtypes that travel in untyped storages: the format before 1.6 cannot be read back
with them.
"""
QUANTIZED = ["qint8", "quint8", "qint32", "quint4x2"]

NAMES = st.one_of(
    st.sampled_from(
        [
            "weight",
            "bias",
            "layers.0.conv.weight",
            "layers.10.conv.weight",
            "module.fc.bias",
            "0",
        ]
    ),
    st.sampled_from(
        [
            "",
            ".",
            "a..b",
            "x\ny",
            "\x1b[31mred",
            "‮drow",
            'say "hi"',
            "\\",
            "größe",
            "重み",
            "\ud83d",
        ]
    ),
    st.text(st.characters(), max_size=8),
)
KEYS = st.one_of(
    NAMES,
    NAMES,
    st.integers(-3, 12),
    st.booleans(),
    st.none(),
    st.sampled_from([0.5, (1, "a")]),
)
TAGS = ("cpu", "cuda:0", "cuda:1", "mps", "xpu:3", "npu:0")


def tag_of(nbytes: int) -> str:
    """The device tag that the tests give a storage: told from its size, so that both
    sides know it.
    """
    return TAGS[nbytes % len(TAGS)]


def _bytes_as(dtype: torch.dtype, numel: int, seed: int) -> torch.Tensor:
    """`numel` elements of any bit pattern (0 and 1 for bool), the same for the same
    seed.
    """
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype is torch.bool else 256
    raw = torch.randint(
        0, top, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator
    )
    return raw.view(dtype)


@st.composite
def views(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """A tensor somewhere in the storage of a flat one: any strides that fit, 0 and
    overlaps too.
    """
    room = base.numel()
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    offset = draw(st.integers(0, room))
    left = room - offset - 1
    if left < 0 and 0 not in shape:
        shape = [*shape, 0]
    stride = []
    for size in shape:
        if 0 in shape or size <= 1:
            stride.append(draw(st.integers(0, 9)))
        else:
            stride.append(draw(st.integers(0, left // (size - 1))))
            left -= (size - 1) * stride[-1]
    return base.as_strided(shape, stride, offset)


@st.composite
def tensors(draw: st.DrawFn, bases: list[torch.Tensor]) -> torch.Tensor:
    """A tensor over one of the storages in every way that a state dict may hold it."""
    view = draw(views(bases[draw(st.integers(0, len(bases) - 1))]))
    continuous = view.dtype.is_floating_point or view.dtype.is_complex
    match draw(st.integers(0, 7)):
        case 0:
            return nn.Parameter(view, requires_grad=continuous and draw(st.booleans()))
        case 1:
            return nn.Buffer(view, persistent=draw(st.booleans()))
        case 2 if (
            continuous and str(view.dtype).removeprefix("torch.") in TYPED
        ):  # others torch cannot read back
            return view.detach().requires_grad_()
        case 3 if view.dtype in (torch.complex64, torch.complex128):
            return view.conj()
        case 4 if view.dtype in (torch.float32, torch.float64, torch.complex64):
            return torch._neg_view(view)
    return view


@st.composite
def composites(draw: st.DrawFn) -> torch.Tensor:
    """A tensor that is made of others, or of none: sparse, quantized, nested,
    on meta.
    """
    rows, columns = 2 * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3))
    flat = torch.arange(
        rows * columns, dtype=draw(st.sampled_from([torch.float32, torch.float64]))
    )
    dense = flat.reshape(rows, columns) % 3
    match draw(st.integers(0, 5)):
        case 0:
            return dense.to_sparse()
        case 1:
            return (
                dense.to_sparse_csr() if draw(st.booleans()) else dense.to_sparse_csc()
            )
        case 2:
            return (
                dense.to_sparse_bsr((2, 2))
                if draw(st.booleans())
                else dense.to_sparse_bsc((2, 2))
            )
        case 3:
            dtype = getattr(torch, draw(st.sampled_from(QUANTIZED)))
            return torch.quantize_per_tensor(dense.float(), 0.5, 1, dtype)
        case 4:
            zeros = torch.zeros(rows, dtype=torch.int64)
            return torch.quantize_per_channel(
                dense.float(), torch.full((rows,), 0.5), zeros, 0, torch.qint8
            )
    return torch.empty(rows, columns, dtype=dense.dtype, device="meta")


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor while hypothesis builds the containers: it prints what it
    draws, and some cannot be.
    """

    index: int


class State:
    """A checkpoint to save. Printed by what its tensors are, not by their values."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"State({self._shown(self.value)})"

    def _shown(self, thing: Any) -> str:
        if isinstance(thing, dict):
            return f"{type(thing).__name__}({', '.join(f'{k!r}: {self._shown(v)}' for k, v in thing.items())})"
        if isinstance(thing, (list, tuple)):
            return f"{type(thing).__name__}({', '.join(map(self._shown, thing))})"
        if not isinstance(thing, torch.Tensor):
            return repr(thing)
        kind = f"{type(thing).__name__} {thing.dtype} {list(thing.shape)}"
        if (
            thing.layout is not torch.strided
            or thing.is_quantized
            or thing.device.type == "meta"
        ):
            return f"<{kind} {thing.layout} {thing.device}>"
        where = (
            f"{thing.stride()} at {thing.storage_offset()} of "
            f"{thing.untyped_storage().nbytes()} bytes"
        )
        return (
            f"<{kind} {where} grad={thing.requires_grad} conj={thing.is_conj()} "
            f"neg={thing.is_neg()}>"
        )


def _with_metadata(pairs: list[tuple[Any, Any]]) -> OrderedDict[Any, Any]:
    made = OrderedDict(pairs)
    made._metadata = OrderedDict({"": {"version": 1}, "layers.0": {"version": 2}})  # type: ignore[attr-defined]
    return made


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(KEYS, inner), max_size=5)
    return st.one_of(
        pairs.map(dict),
        pairs.map(_with_metadata),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
    )


def _filled(thing: Any, tensors: list[torch.Tensor], done: dict[int, Any]) -> Any:
    """`thing` with tensors in its slots; what was one object stays one."""
    if isinstance(thing, Slot):
        return tensors[thing.index % len(tensors)]
    if not isinstance(thing, (dict, list, tuple)):
        return thing
    if id(thing) not in done:
        if isinstance(thing, dict):
            pairs = [(key, _filled(part, tensors, done)) for key, part in thing.items()]
            done[id(thing)] = (
                _with_metadata(pairs) if isinstance(thing, OrderedDict) else dict(pairs)
            )
        else:
            done[id(thing)] = type(thing)(
                _filled(part, tensors, done) for part in thing
            )
    return done[id(thing)]


_SLOTS = st.integers(0, 6).map(Slot)
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**70), st.floats(allow_nan=False), NAMES
)
_TREES = st.recursive(st.one_of(_SLOTS, _SLOTS, _SCALARS), _containers, max_leaves=8)


@st.composite
def states(draw: st.DrawFn, dtypes: tuple[str, ...] = (*TYPED, *UNTYPED)) -> State:
    """A checkpoint: containers in containers around tensors that share storages, and
    plain values.

    One tensor, and one container, may lie at several places; several tensors may look
    into one storage.
    """
    pool = []
    for _ in range(draw(st.integers(1, 4))):
        dtype = getattr(torch, draw(st.sampled_from(dtypes)))
        pool.append(
            _bytes_as(dtype, draw(st.integers(0, 30)), draw(st.integers(0, 999)))
        )
    made = [draw(tensors(pool)) for _ in range(draw(st.integers(1, 5)))]
    if draw(st.booleans()):
        made.append(draw(composites()))
    names = draw(st.lists(NAMES, min_size=len(made), max_size=len(made)))
    state: Any = {name: Slot(index) for index, name in enumerate(names)}
    for part in draw(st.lists(_TREES, max_size=3)):
        state[draw(KEYS)] = part
        if draw(st.booleans()):
            state[draw(KEYS)] = part  # the same object at a second place
    match draw(st.integers(0, 3)):
        case 0:
            state = _with_metadata(list(state.items()))
        case 1:
            state = [state]
        case 2:
            state = {"model": state, "epoch": 3}
    return State(_filled(state, made, {}))


# --------------------------------------------------------------------------------------
# odd trees


@st.composite
def odd_trees(draw: st.DrawFn) -> State:
    """Weights beside containers, sets, objects and tensors that hold each other, also
    as attributes.

    Every tensor has a value of its own, below 256.
    """
    count = draw(st.integers(1, 4))
    tensors = [
        torch.full((2,), float(number)) for number in range(1, draw(st.integers(3, 6)))
    ]
    tensors += [
        nn.Parameter(torch.full((3,), 100.0 + number))
        for number in range(draw(st.integers(0, 2)))
    ]
    nodes: list[Any] = [
        draw(st.sampled_from([list, dict, OrderedDict, Namespace]))()
        for _ in range(count)
    ]
    for _ in range(draw(st.integers(0, 4))):
        nodes.append(
            tuple(
                draw(
                    st.lists(
                        st.sampled_from([*nodes, *tensors]), min_size=1, max_size=4
                    )
                )
            )
        )
    if draw(st.booleans()):
        kind = draw(st.sampled_from([set, frozenset]))
        nodes.append(
            kind(draw(st.lists(st.sampled_from([*tensors, 1, "a"]), max_size=3)))
        )
    parts = st.sampled_from([*nodes, *tensors, *tensors, None, 7, "text", b"bytes"])
    keys = st.sampled_from(["weight", "bias", "x", "y", "layers.0.weight", 3, (1, "a")])
    for node in nodes[:count]:
        if isinstance(node, list):
            node.extend(draw(st.lists(parts, max_size=4)))
        elif isinstance(node, Namespace):
            vars(node).update(
                draw(
                    st.dictionaries(st.sampled_from(["x", "y", "z"]), parts, max_size=3)
                )
            )
        else:
            node.update(draw(st.dictionaries(keys, parts, max_size=4)))
        if isinstance(node, OrderedDict) and draw(st.booleans()):
            node.extra = draw(parts)  # type: ignore[attr-defined]
    for tensor in tensors:
        if not draw(st.integers(0, 2)):
            tensor.holder = draw(parts)
    weights = OrderedDict(
        (f"layers.{at}.weight", tensor) for at, tensor in enumerate(tensors)
    )
    match draw(st.integers(0, 3)):
        case 0:
            root: Any = {"model": weights, "odd": nodes}
        case 1:
            root = {"odd": nodes, **weights}
        case 2:
            root = {"state_dict": {**weights, "odd": draw(parts)}, "epoch": 3}
        case _:
            root = draw(st.sampled_from([*nodes, nodes]))
    return State(root)
