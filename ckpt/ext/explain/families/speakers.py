"""Models of several speakers that are given the file of one."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import and_more, counted_noun, show

_TABLE = re.compile(
    r"(?i)(?:^|\.)(?:emb_g|emb_spk|spk_emb\w*|speaker_emb\w*|embed_speakers?)\.weight$"
)
"""The name of a table of speakers, as in VITS, Matcha-TTS and FastPitch."""
_CONDITION = re.compile(r"(?:^|\.)(?:cond|cond_layer|cond_net|spk_proj)\.")
_COUNTS = ("num_speakers", "n_speakers", "n_spks", "num_spks")


def of_speakers(
    absent: Sequence[str], names: Collection[str], case: Case
) -> Statement | None:
    """Say that what a file lacks is the speakers of a model, or return None."""
    tables = [name for name in absent if _TABLE.search(name)]
    if not tables or any(_TABLE.search(name) for name in names):
        return None
    others = [name for name in absent if name not in tables]
    if any(_CONDITION.search(name) is None for name in others):
        return None
    recorded = {
        show(name, 60): node
        for name, node in case.finds_value(_COUNTS)
        if type(node) is int and node <= 1
    }
    said = [f"{name} is {node}" for name, node in recorded.items()]
    note = f" ({and_more(said, 2)} in its settings)" if said else ""
    layers = {name.rpartition(".")[0] for name in others}
    beside = (
        f", and {counted_noun(len(layers), 'layer')} bring a speaker into the others"
        if layers
        else ""
    )
    return Statement(
        f"{show(tables[0].removesuffix('.weight'), 80)} is the table of the speakers"
        f"{beside}. The file has none of them{note}: it was built for one speaker, and "
        "the model for several. Take the file of a run with several "
        "speakers, or build the model for one. To train the speakers into this one, "
        "load what fits: what lacks begins untrained."
    )
