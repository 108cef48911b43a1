"""The output layer of a language model that is tied to its embedding."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.ext.explain.case import Case
from ckpt.tree.find import tied_aliases

_OUTPUT = re.compile(
    r"(?:.+\.)?(?:lm_head(?:\.decoder)?|predictions\.decoder)\.weight|(?:output|out"
    r"|decoder)\.weight"
)
"""The name of the output layer of a language model. The short ones mean it only where
they are the whole name.
"""

_EMBEDDING = re.compile(
    r"(?:.+\.)?(?:embed_tokens|wte|word_embeddings|tok_embeddings|shared|emb)\.weight"
)
"""The name of the embedding that the output layer is tied to."""


def tied_name(absent: Sequence[str], here: Sequence[str], case: Case) -> str | None:
    """Return the tensor that the only missing key is tied to: by the metadata of the
    file, or by their usual names.
    """
    if len(absent) != 1:
        return None
    # safetensors writes a name that it left out into the metadata.
    noted = tied_aliases(case.survey.checkpoint).get(absent[0])
    if noted is not None:
        return noted
    if not _OUTPUT.fullmatch(absent[0]):
        return None
    embeddings = [name for name in here if _EMBEDDING.fullmatch(name)]
    # The names do not tell which of two embeddings is tied.
    return embeddings[0] if len(embeddings) == 1 else None
