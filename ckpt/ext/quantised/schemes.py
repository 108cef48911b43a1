"""The schemes of quantised weights, as data: the names of their parts, and what plans a
weight of them.

A scheme is met by the ends of names and the dtype of the codes. Its plan holds the
shapes of the parts against each other, and raises MisfitError where they contradict:
then the tensors stay what they are, and one line says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckpt.ext.quantised.facts import Facts
from ckpt.ext.quantised.matrix import Matrix
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import CkptError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

FLOAT8 = frozenset(
    ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
)
SCALES = frozenset(("float32", "float16", "bfloat16"))
EXPONENTS = frozenset(("uint8", "float8_e8m0fnu"))


class MisfitError(CkptError):
    """Raised for parts that nearly are a weight of a scheme: the text says what is
    wrong with them.
    """


class Given(NamedTuple):
    """The parts of a weight by the names that its scheme gives them, and the facts
    beside it.

    With `can_read` small parts may be read that say a shape, with `for_values` also
    those that say what values are.
    """

    parts: Mapping[str, TensorRef]
    facts: Facts
    can_read: bool = True
    for_values: bool = False

    def require(self, name: str) -> TensorRef:
        """Return a part. Raises MisfitError where it is missing."""
        part = self.parts.get(name)
        if part is None:
            raise MisfitError(f"{name} is missing")
        return part


_EXPANDED = 1 << 20
"""Bytes that a part may show beyond its data, as scales of one number for all
rows do.
"""


def refuse_strange_parts(given: Given) -> None:
    """Raise MisfitError for a part without data, or one that shows its data in a way
    that no writer of weights has.

    A view that repeats its elements has any size that its file says, and plans and
    readers count on the size of parts.
    """
    for name, ref in given.parts.items():
        if ref.storage.place is None:
            raise MisfitError(f"{name} has no data")
        if ref.conj or ref.neg:
            raise MisfitError(f"{name} is a view that is negated")
        if ref.nbytes > ref.storage.nbytes + _EXPANDED:
            raise MisfitError(
                f"{name} is a view of {ref.storage.nbytes:,} bytes that expands to "
                f"{ref.nbytes:,}"
            )


class Planned(NamedTuple):
    """A weight of a scheme: its shape, its bits, the block that one scale stands for,
    and how it is decoded.

    `text` is what a person reads: `4 bits (GPTQ, groups of 128)`. `own` is the dtype of
    the weight by its scheme.
    """

    shape: tuple[int, ...]
    bits: int
    group: tuple[int, ...]
    text: str
    own: DType
    matrix: Matrix


class Scheme(NamedTuple):
    """A scheme of several tensors. The name of the codes ends with `codes`, and
    `weight` takes the place of that end.

    `parts` are the names of further parts -> the ends that they may have. `required` of
    them must be there.
    """

    name: str
    codes: str
    types: frozenset[str]
    plan: Callable[[Given], Planned]
    parts: Mapping[str, tuple[str, ...]]
    required: tuple[str, ...]
    weight: str = "weight"
    aside: tuple[str, ...] = ()
    """The ends of tensors that go with the codes and say nothing about the weight:
    scales of activations.
    """


def own_dtype(given: Given, scale: TensorRef, otherwise: DType) -> DType:
    """Return the dtype of a weight: of narrow scales, else as config.json says, else as
    its scheme has it.
    """
    if scale.dtype.name in ("float16", "bfloat16"):
        return scale.dtype
    return BY_NAME[given.facts.dtype] if given.facts.dtype is not None else otherwise
