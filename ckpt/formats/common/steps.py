"""The names of folders and files that training saves one after the other, each a
checkpoint of one step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.formats.format import WEIGHTS
from ckpt.model.names import natural_sort_key

_STEP = (
    r"(?i:(step|epoch|dist_epoch|iter|checkpoint|ckpt"
    r"|global_step)([-_=]?)(\d{1,12})(?:\.ckpt|\.dcp)?/)"
)
"""The folders of torchtitan (`step-10`), torchtune (`epoch_0`), Megatron
(`iter_0000010`), the Trainer (`checkpoint-500`).
"""
_FILE = (
    r"(?i:(step|epoch|iter|global_step)([-_=]?)(\d{1,12})(\.(?:pth|pt|ckpt|bin"
    r"|safetensors)))"
)


def steps_in(names: Sequence[str]) -> list[str]:
    """Return the folders of steps among the names of a folder, oldest first, each with
    a slash at its end.

    Return none where their names differ by more than the number.
    """
    return _of_one_kind([name for name in names if re.fullmatch(_STEP, name)], _STEP)


def files_in(names: Sequence[str]) -> list[str]:
    """Return the files of steps (`epoch_3.pth`), oldest first; none where the folder
    has other checkpoints.
    """
    weights = [name for name in names if name.lower().endswith(WEIGHTS)]
    if all(re.fullmatch(_FILE, name) for name in weights):
        return _of_one_kind(weights, _FILE)
    return []


def _of_one_kind(names: list[str], pattern: str) -> list[str]:
    # The names without their numbers: `step_1` and `epoch_1` are two kinds.
    kinds = {
        re.sub(pattern, r"\1\2\4" if pattern is _FILE else r"\1\2", name).lower()
        for name in names
    }
    return sorted(names, key=natural_sort_key) if len(kinds) == 1 else []
