"""The counters of steps in the files of one checkpoint: where they differ, the files
are of several saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

from ckpt.model.checkpoint import Value
from ckpt.model.errors import MixedStepsError
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.tensors import TensorRef
from ckpt.model.text import show
from ckpt.tree.find import counter, is_counter

HINT = "copy all files of one save again"
_Key = TypeVar("_Key")


def refuse_mixed(headers: Iterable[tuple[str, Mapping[str, Node]]]) -> None:
    """Raise MixedStepsError where two files count differently.

    `headers` gives each file, as a message names it, and its counters by their names.
    """
    problem = find_difference(headers)
    if problem is not None:
        raise MixedStepsError(problem, hint=HINT)


def find_difference(headers: Iterable[tuple[str, Mapping[str, Node]]]) -> str | None:
    """Return the first difference between the counters of two files, as text, or None
    if all agree.
    """
    firsts: dict[str, tuple[str, Node]] = {}
    for file, header in headers:
        for name, node in header.items():
            first, other = firsts.setdefault(name, (file, node))
            values = _differing_values(other, node)
            if values is not None:
                difference = (
                    f"{show(name, 80)} is {values[0]:,.0f} in {first}, "
                    f"{values[1]:,.0f} in {file}"
                )
                return f"the files were saved at several steps: {difference}"
    return None


def find_strays(counts: Mapping[_Key, Mapping[str, float]]) -> set[_Key]:
    """Return the keys of the files whose counters differ from the counters of most
    files.

    Return none where no value of a counter has a majority: then nobody knows which
    files are of one step.
    """
    odd: set[_Key] = set()
    # Each name once, in the order of the files.
    for name in dict.fromkeys(chain.from_iterable(counts.values())):
        rows = {number: row[name] for number, row in counts.items() if name in row}
        value, most = Counter(rows.values()).most_common(1)[0]
        if most == len(rows):
            continue
        # Half of the files against the other half: no step is the usual one.
        if 2 * most <= len(rows):
            return set()
        odd |= {number for number, other in rows.items() if other != value}
    return odd


def counters_of(values: Iterable[Value]) -> dict[str, Node]:
    """The counters of a run among values, by their names."""
    return {
        row.name: row.node
        for row in values
        if row.path and row.node is not None and is_counter(row.path)
    }


def _differing_values(node: Node, other: Node) -> tuple[float, float] | None:
    """The values of two counters that differ. Where the files record equal checksums,
    no value is read.
    """
    first_tensor = tensor_of(node)
    second_tensor = tensor_of(other)
    if first_tensor is not None:
        if first_tensor is second_tensor:
            return None
        # Counters on several ranks are mostly equal, and then nothing is read.
        checksum = _recorded_checksum(first_tensor)
        if checksum is not None and checksum == _recorded_checksum(second_tensor):
            return None
    first = counter(node)
    second = counter(other)
    if first is None or second is None or first == second:
        return None
    return first, second


def _recorded_checksum(tensor: object) -> tuple[str, int] | None:
    """The dtype and the recorded checksum of a tensor that is all of its storage."""
    if not isinstance(tensor, TensorRef) or tensor.storage.crc is None:
        return None
    if tensor.extent != (0, tensor.storage.nbytes):
        return None
    return tensor.dtype.name, tensor.storage.crc
