"""The layers that torch packs while it loads a program: their states, and the objects
of C++ that hold packed weights.

Packing divides by the sizes of a layer, without a look at them, and reads weights as if
they had elements. Layout: aten/src/ATen/native/quantized/cpu/conv_serialization.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from struct import unpack

from ckpt.ext.torchscript.code import Code
from ckpt.ext.torchscript.operators import SIZES
from ckpt.ext.torchscript.script import ScriptClass
from ckpt.model.errors import UnreadableError
from ckpt.model.nodes import Dict, Node, Opaque, inside, is_tuple, tensor_of
from ckpt.model.tensors import Composite, TensorRef, tensor_ref
from ckpt.model.text import show

_CPP = "__torch__.torch.classes."
_CONVOLUTIONS = frozenset(f"{_CPP}quantized.Conv{n}dPackedParamsBase" for n in (2, 3))
_FURTHER = frozenset(
    _CPP + name
    for name in (
        "quantized.LinearPackedParamsBase",
        "quantized.EmbeddingPackedParamsBase",
        "rnn.CellParamsBase",
        "sparse.LinearPackedParamsBase",
        "xnnpack.LinearOpContext",
        "xnnpack.Conv2dOpContext",
        "xnnpack.TransposeConv2dOpContext",
    )
)
_BACKENDS = _CPP + "__backends__."
"""The libraries of backends look at what they are given when they compile it."""
_TOO_LARGE = 2**31
"""torch keeps sizes in 32 bits, so that a larger one may become 0."""
_SAID = 20
"""The most classes of C++ that are said."""
_MOST_NUMBERS = 64
"""The most numbers that the sizes of a packed layer are: three of them have 19."""


def judge_packs(calls: Sequence[Opaque], code: Code) -> None:
    """Add to what is said of the code what torch cannot pack of the objects of a
    program, and shapes of tensors that are quantized per channel.
    """
    # Sizes matter only where the code that a load runs packs something.
    if code.packing and _odd_sizes(calls, code.classes, code.groups):
        code.dangers.append("its __setstate__ on numbers that torch cannot divide by")
    if code.shaping and _has_channels(calls):
        code.unknown.append(f"{code.shaping[0]} beside quantized tensors")
    if _odd_packs(calls):
        code.dangers.append("a packed layer whose sizes torch cannot divide by")
    # Classes of C++ pack without any operator in the code.
    if (code.packing or _has_packs(calls)) and _has_empty_weight(calls):
        code.dangers.append("the packing of a weight without elements")
    for name in _unknown_packs(calls)[:_SAID]:
        code.unknown.append(f"__setstate__ of {show(name, 80)}")


def _odd_sizes(
    calls: Sequence[Opaque], classes: dict[str, ScriptClass], groups: set[int]
) -> bool:
    """Tell whether an object of the code that has groups has a state with a number
    that torch cannot divide by, or one that is too large to be a size of a layer.

    `groups` are the items of a state that may be groups.
    """
    for call in calls:
        cls = classes.get(call.class_name)
        if cls is None or SIZES.isdisjoint(cls.attributes):
            continue
        states = call.states
        # A state may be of a class without groups, whose items at these places are
        # others.
        items = groups if "groups" in cls.attributes else set()
        for number in chain.from_iterable(_groups_in(row, items) for row in states):
            if type(number) is not int or not 0 < number < _TOO_LARGE:
                return True
        if any(map(_is_huge, chain.from_iterable(map(_sizes_in, states)))):
            return True
    return False


def _odd_packs(calls: Sequence[Opaque]) -> bool:
    """Tell whether a packed layer of C++ has sizes or a weight that torch cannot pack
    again. It packs them when it loads them.
    """
    return any(
        not _is_convolution(state)
        for call in calls
        if call.class_name in _CONVOLUTIONS
        for state in call.states
    )


def _has_packs(calls: Sequence[Opaque]) -> bool:
    """Tell whether there is a packed layer of C++."""
    return any(call.class_name in _CONVOLUTIONS | _FURTHER for call in calls)


def _unknown_packs(calls: Sequence[Opaque]) -> list[str]:
    """Return the classes of C++ whose `__setstate__` ckpt does not know."""
    names = (call.class_name for call in calls if call.states)
    return [
        name.removeprefix("__torch__.")
        for name in dict.fromkeys(names)
        if name.startswith(_CPP)
        and not name.startswith(_BACKENDS)
        and name not in _CONVOLUTIONS | _FURTHER
    ]


def _has_empty_weight(calls: Sequence[Opaque]) -> bool:
    """Tell whether a quantized tensor has no elements."""
    return any(tensor.shape and 0 in tensor.shape for tensor in _quantized_in(calls))


def _has_channels(calls: Sequence[Opaque]) -> bool:
    """Tell whether a tensor is quantized per channel."""
    return any(
        (tensor.detail or "").startswith("per_channel_")
        for tensor in _quantized_in(calls)
    )


def _quantized_in(calls: Sequence[Opaque]) -> Iterator[Composite]:
    for call in calls:
        tensor = tensor_of(call)
        if type(tensor) is Composite and tensor.layout == "quantized":
            yield tensor


# --- the states of layers -------------------------------------------------------------


def _is_huge(part: Node) -> bool:
    """Tell whether a part of a state is a number, or a tuple or list with one, that is
    no size of a layer.
    """
    part = inside(part)
    numbers: Sequence[Node] = (part,)
    if type(part) is list or is_tuple(part):
        numbers = part
    return any(
        isinstance(number, int) and abs(number) >= _TOO_LARGE for number in numbers
    )


def _sizes_in(state: Node) -> Iterator[Node]:
    """Yield the values that a state may have as sizes."""
    if is_tuple(state):
        yield from state
    elif type(state) is Dict:
        pairs = zip(state.keys, state.values, strict=True)
        yield from (value for key, value in pairs if key in SIZES)


def _groups_in(state: Node, groups: set[int]) -> Iterator[Node]:
    """Yield the values that a state may have as groups."""
    if is_tuple(state):
        yield from (state[index] for index in groups if index < len(state))
    elif type(state) is Dict:
        pairs = zip(state.keys, state.values, strict=True)
        yield from (value for key, value in pairs if key == "groups")


# --- packed layers of C++ -------------------------------------------------------------


def _is_convolution(state: Node) -> bool:
    """Tell whether the state of a packed convolution has sizes that torch can divide
    by. It is `(2, [sizes, weight], [bias])`, where the sizes are a tensor, or
    `(3, sizes, [None, weight, bias])`, and torch 1.5 wrote the tensors alone.
    """
    if not is_tuple(state) or not state:
        return False
    if tensor_of(state[0]) is not None:
        return True  # sizes of 16 bits, of layers that are not transposed
    sizes = inside(state[1]) if len(state) == 3 else None
    if state[0] == "2" and type(sizes) is list and sizes:
        return _has_sizes_of_tensor(tensor_of(sizes[0]))
    if type(state[0]) is int and type(sizes) is list:
        return _are_sizes(sizes)
    return False


def _are_sizes(numbers: Sequence[Node]) -> bool:
    """Tell whether numbers are the sizes of a layer: the last but one are groups."""
    if len(numbers) < 2 or not all(type(number) is int for number in numbers):
        return False
    groups = numbers[-2]
    return not any(map(_is_huge, numbers)) and isinstance(groups, int) and groups > 0


def _has_sizes_of_tensor(tensor: object) -> bool:
    if type(tensor) is not TensorRef or tensor.dtype.name != "int16":
        return False
    if len(tensor.shape) != 1 or tensor.shape[0] > _MOST_NUMBERS:
        return False
    if tensor.stride != (1,) or tensor.storage.place is None:
        return False
    from ckpt.elements.blocks import elements  # here: few files have such tensors

    row = tensor_ref(tensor.storage, tensor.dtype, tensor.shape, (1,), tensor.offset)
    try:
        data = b"".join(elements(row))
    except UnreadableError:
        return True  # torch cannot load what is not there
    return _are_sizes(list(unpack(f"<{len(data) // 2}h", data)))
