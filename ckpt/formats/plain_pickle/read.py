"""A plain pickle, as `pickle.dump` and joblib write it. What reads it is loaded when a file may be one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.plain_pickle import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER, is_pickle
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    if probe.source is None or not probe.head:
        return False
    if is_pickle(probe.head):
        return True
    from ckpt.formats.plain_pickle.early import is_early, is_packed

    return is_packed(probe.head, probe.file, probe.limits) or is_early(probe.head, probe.file, probe.limits)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.plain_pickle.reader import read

    return read(probe, limits)
