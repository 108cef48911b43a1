"""The kinds of file that a tar archive may be: one of torch 0.1, and another one as
well.
"""

from __future__ import annotations

from ckpt.formats.common.heads import is_pickle
from ckpt.formats.common.safetensors import is_usual
from ckpt.formats.common.tar import walk_tar
from ckpt.formats.format import Probe
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget

MEMBERS = ("storages", "tensors", "pickle")


def is_known(probe: Probe) -> bool:
    """Tell whether a tar archive holds two of torch's three members, or the one that
    torch.load unpickles before it asks for the others. `read` finds what is wrong with
    them.
    """
    members: set[str] = set()
    # The members before a fault count.
    try:
        for name, _ in walk_tar(
            probe.file, probe.limits, Budget(probe.limits, probe.size)
        ):
            members.add(name)
    except CkptError:
        pass
    return MEMBERS[0] in members or len(members.intersection(MEMBERS)) > 1


def other_kind(probe: Probe) -> str | None:
    """Return the other kind of a file whose first bytes are the header of a tar archive
    as well, or None.
    """
    if is_usual(probe.head):
        return "a safetensors file"
    from ckpt.formats.common.early import (
        is_early,
    )  # here: few archives have three members of torch

    if is_pickle(probe.head) or is_early(probe.head, probe.file, probe.limits):
        return "a pickle"
    from ckpt.formats.common.packed import is_packed

    if is_packed(probe.head, probe.file, probe.limits):
        return "a compressed pickle"
    return None
