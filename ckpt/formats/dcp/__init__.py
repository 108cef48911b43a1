"""Distributed checkpoints of torch (`torch.distributed.checkpoint`): a folder with `.metadata` and `.distcp` files.

A `.distcp` file holds complete archives of torch.save, one after the other. `.metadata` is a pickle: it says which
tensors there are, into which boxes each is cut, and which bytes of which file hold a box
(torch/distributed/checkpoint/metadata.py, filesystem.py).
"""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "dcp"
SUFFIXES: tuple[str, ...] = (".dcp",)
"""Of folders that ckpt writes. torch gives them no ending."""
TRAITS = Traits(
    "DCP",
    "torch.distributed.checkpoint.load(state, checkpoint_id={path})",
    is_pickle=True,
    keeps_ties=False,
    has_checksums=True,
    fills_a_state=True,
    is_folder=True,
)
WRITER = "ckpt.formats.dcp.writer"
VERIFIER = "ckpt.formats.dcp.verify"

METADATA = ".metadata"
DATA = ".distcp"
