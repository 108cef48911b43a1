"""A folder that DeepSpeed saved: each rank its part of the flat fp32 weights and of the optimizer's state."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "deepspeed"
SUFFIXES: tuple[str, ...] = ()
TRAITS = Traits(
    "DeepSpeed checkpoint",
    "get_fp32_state_dict_from_zero_checkpoint({path})",
    is_pickle=True,
    keeps_devices=True,
    has_checksums=True,
    is_set=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.deepspeed.verify"
