"""Plain pickles, and what joblib writes."""

from __future__ import annotations

from ckpt.formats.common.heads import is_pickle
from ckpt.formats.format import PICKLE, Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    if probe.source is None or not probe.head:
        return False
    if is_pickle(probe.head):
        return True
    from ckpt.formats.common.early import is_early
    from ckpt.formats.common.packed import is_packed

    return is_packed(probe.head, probe.file, probe.limits) or is_early(
        probe.head, probe.file, probe.limits
    )


FORMAT = Format(
    "pickle",
    Traits(
        "plain pickle",
        'pickle.load(open({path}, "rb"){options})',
        is_pickle=True,
        is_foreign=True,
    ),
    sniff,
    reader="ckpt.ext.pickles.reader",
    suffixes=PICKLE,
)
