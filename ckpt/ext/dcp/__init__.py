"""Distributed checkpoints of torch (`torch.distributed.checkpoint`): a folder with
`.metadata` and `.distcp` files.

A `.distcp` file holds complete archives of torch.save, one after the other. `.metadata`
is a pickle: it says which tensors there are, into which boxes each is cut, and which
bytes of which file hold a box (torch/distributed/checkpoint/metadata.py,
filesystem.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.ext.dcp.file_names import DATA, is_metadata, is_part, plain_folder_of
from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import CkptError

"""Of folders that ckpt writes. torch gives them no ending."""


def sniff(probe: Probe) -> bool:
    return plain_folder_of(probe) is not None


def files(probe: Probe) -> tuple[str, ...] | None:
    try:
        is_own = sniff(probe)
    except CkptError:
        is_own = True  # one item, whose error says what is wrong
    if not is_own:
        return None
    return tuple(name for name in probe.location.names() if is_part(name))


def remains(probe: Probe) -> Sequence[str]:
    """The content of each data file of an interrupted save, one line each; empty for
    any other folder. Raises CkptError.
    """
    names = probe.location.names() if probe.is_folder else []
    # A save with metadata, of whatever kind, is no interrupted one.
    if not any(name.endswith(DATA) for name in names) or any(map(is_metadata, names)):
        return ()
    from ckpt.ext.dcp.remains import (
        remains as files,
    )  # here: only an interrupted save pays for it

    return [row.text for row in files(probe.location, probe.limits)]


FORMAT = Format(
    "dcp",
    Traits(
        "DCP",
        "torch.distributed.checkpoint.load(state, checkpoint_id={path})",
        is_pickle=True,
        keeps_ties=False,
        has_checksums=True,
        fills_a_state=True,
        is_folder=True,
    ),
    sniff,
    files,
    owns=is_part,
    reader="ckpt.ext.dcp.reader",
    suffixes=(".dcp",),
    writer="ckpt.ext.dcp.writer",
    verifier="ckpt.ext.dcp.verifier",
    remains=remains,
)
