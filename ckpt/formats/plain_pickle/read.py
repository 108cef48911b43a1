"""A plain pickle, as `pickle.dump` and joblib write it. What reads it is loaded when a file may be one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.plain_pickle import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def is_pickle(head: bytes) -> bool:
    """Whether these first bytes are those of a pickle of a dict, a list or an object."""
    return (
        (head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5)
        or head[:3] in (b"(dp", b"(lp")
        or head[:2] in (b"}q", b"]q")
        or head.startswith(b"ccollections\nOrderedDict\n")
    )


def sniff(probe: Probe) -> bool:
    if probe.source is None or not probe.head:
        return False
    if is_pickle(probe.head):
        return True
    from ckpt.formats.plain_pickle.early import is_early, is_packed

    return is_packed(probe.head) or is_early(probe.file, probe.limits)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.plain_pickle.reader import read

    return read(probe, limits)
