"""The functions of this extension that functions of the core ask for."""

from __future__ import annotations

from ckpt.ext.quantised.comparing import judged, judging_of
from ckpt.ext.quantised.configs import with_plain_configs
from ckpt.ext.quantised.edit import dequantised, plain_checkpoint
from ckpt.ext.quantised.find import Found, find_logical
from ckpt.ext.quantised.view import with_view

__all__ = [
    "Found",
    "dequantised",
    "find_logical",
    "judged",
    "judging_of",
    "plain_checkpoint",
    "with_plain_configs",
    "with_view",
]
