"""A DeepSpeed checkpoint. What reads it is loaded for such folders only.

DeepSpeed copies scripts into its folders (`zero_to_fp32.py`). ckpt neither runs nor reads them.
"""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.deepspeed import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    if not probe.is_folder and not probe.path.endswith(("latest", "latest_universal")):
        return False
    from ckpt.formats.deepspeed.plan import is_deepspeed

    return is_deepspeed(probe)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.deepspeed.reader import read

    return read(probe, limits)
