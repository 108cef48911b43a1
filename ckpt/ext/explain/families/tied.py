"""The output layer of a language model that is tied to its embedding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.origins import config_of
from ckpt.model.text import show
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
_OTHER_TASKS = frozenset(("score", "classifier", "qa_outputs"))
"""The heads of models of transformers that classify."""


_OF_HEADS = re.compile(r"\blm_head\b|\b(?:head|output layer) of the (?:llm|language)")


def heads_of_other_tasks(names: Sequence[str]) -> list[str]:
    """The tensors of a head that classifies, in the place of a language model's."""
    return [name for name in names if name.partition(".")[0] in _OTHER_TASKS]


def of_tied_head(text: str, case: Case) -> Iterator[Statement]:
    """Say that the output layer is the embedding, where a question misses it."""
    names = [entry.name for entry in case.survey.tensors]
    if not _OF_HEADS.search(text) or any(_OUTPUT.fullmatch(name) for name in names):
        return
    embeddings = [name for name in names if _EMBEDDING.fullmatch(name)]
    is_tied = config_of(case.survey).get("tie_word_embeddings")
    if len(embeddings) != 1 or is_tied is not True:
        return
    yield Statement(
        f"config.json ties the output layer to the embedding (tie_word_embeddings): "
        f"lm_head.weight is {show(embeddings[0], 80)} itself, and such a file holds it "
        "once, so nothing is lost. from_pretrained ties both; a program of its own "
        "calls model.tie_weights() after the load."
    )


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
    # A model of another task has its own head in place of this one.
    if heads_of_other_tasks(here):
        return None
    embeddings = [name for name in here if _EMBEDDING.fullmatch(name)]
    # The names do not tell which of two embeddings is tied.
    return embeddings[0] if len(embeddings) == 1 else None
