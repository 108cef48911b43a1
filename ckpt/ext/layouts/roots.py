"""One hash of a whole checkpoint: of its names and values, or of its values in any
layout and under any names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.commands.sum.sums import Sum
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.fibres import blocks_in_rows, mix_bits
from ckpt.ext.layouts.sides import side_of
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError
from ckpt.model.names import Globs
from ckpt.model.tensors import TensorRef
from ckpt.model.text import show_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_SECOND = 0xD6E8FEB86659FD93
"""The factor that tells the second sum of an element from the first one."""


def root_of(rows: Sequence[Sum]) -> str:
    """The SHA-256 of the names and sums of tensors, whatever their order is. Raises
    UnreadableError for one without a sum.
    """
    for row in rows:
        if row.unread is not None:
            raise UnreadableError(f"{show_name(row.name)}: {row.unread}")
    # A name may have half a surrogate, which UTF-8 has not.
    lines = sorted(
        [f"{row.digest} {row.name}\n".encode("utf-8", "surrogatepass") for row in rows]
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


def values_of(
    survey: Survey,
    section: str | None,
    select: Globs | None,
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> str:
    """The fingerprint of the values of all tensors of a checkpoint, the same in every
    layout and under any names.

    Memory that several names show counts once. Raises UnreadableError, and for what is
    no dense tensor.
    """
    side = side_of(survey, section, select)
    if side.passed:
        raise UnreadableError(
            f"{show_name(side.passed[0].name)} has no layout: {side.passed[0].why}"
        )
    # Tied tensors are one memory, which a file of safetensors has once.
    views = {leaf.ref.view: leaf for leaf in side.leaves}
    tasks = [Task(_sums_of, (leaf.ref,), leaf.ref.nbytes) for leaf in views.values()]
    totals: dict[DType, list[int]] = {}
    for leaf, result in zip(
        views.values(),
        run_each(executor, tasks, progress),
        strict=True,
    ):
        if isinstance(result, Failed):
            raise UnreadableError(f"{show_name(leaf.name)}: {result.problem}")
        total = totals.setdefault(leaf.dtype, [0, 0, 0])
        for place, part in enumerate((leaf.ref.numel, *result)):
            total[place] += part
    lines = sorted(
        [
            f"{dtype.name} {count} {one % 2**64} {two % 2**64}\n"
            for dtype, (count, one, two) in totals.items()
        ]
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sums_of(ref: TensorRef) -> tuple[int, int]:
    """Two sums of the mixed bits of all elements of a tensor. Raises
    UnreadableError.
    """
    import numpy as np

    # Two sums: tensors made so that one of them agrees do not agree in the other.
    one = two = 0
    for block in blocks_in_rows(ref, ref.dtype):
        hashes = mix_bits(block.bits)
        one += int(np.add.reduce(hashes))
        two += int(np.add.reduce(_second_hashes(hashes)))
    return one % 2**64, two % 2**64


def _second_hashes(hashes: Array) -> Array:
    """Other mixed bits of the same elements, of which equal sums are no equal sums of
    the first ones.
    """
    import numpy as np

    other: Array = hashes ^ (hashes >> np.uint64(31))
    other *= np.uint64(_SECOND)
    other ^= other >> np.uint64(29)
    return other
