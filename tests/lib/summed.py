"""The sum of what a checkpoint holds, for other processes, which import nothing
else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ckpt


def total(given: Any) -> float:
    """The sum of a tensor, or of all tensors."""
    refs = [given] if isinstance(given, ckpt.Ref) else list(given.values())
    return float(sum(np.asarray(ref, "f8").sum() for ref in refs))


def sum_into(queue: Any, opened: ckpt.Checkpoint) -> None:
    queue.put(total(opened))
