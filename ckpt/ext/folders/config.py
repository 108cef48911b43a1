"""A `config.json` that says another vocabulary than the weights beside it have."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.model.account import Notice
from ckpt.model.checkpoint import Entry, names_of
from ckpt.model.nodes import Node
from ckpt.model.text import counted_noun, show
from ckpt.tree.find import node_at

_EMBEDDINGS = (
    "embed_tokens.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "word_embeddings.weight",
    "wte.weight",
    "shared.weight",
)
"""The ends of the names of embeddings of tokens in transformers."""
_HEADS = ("lm_head.weight", "embed_out.weight")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim")
_OTHER_ROWS = (
    "decoder_vocab_size",
    "pad_vocab_size_multiple",
    "padded_vocab_size",
    "quantization_config",
    "text_config",
)
"""Keys of a config whose model has other rows than its vocabulary, or several."""


def vocabulary_notice(root: Node, tensors: Sequence[Entry]) -> Notice | None:
    """Return a notice where the config of transformers at the key `config` says another
    number of rows than the embedding of tokens has.

    It is none where anything leaves a doubt: another width, embeddings of two sizes, a
    head of the size that the config says.
    """
    vocabulary = _config_value(root, "vocab_size")
    if type(vocabulary) is not int or _config_value(root, "architectures") is None:
        return None
    # No model has so many words, and the text of a longer number has no end.
    if vocabulary.bit_length() > 63:
        return None
    if any(_config_value(root, key) is not None for key in _OTHER_ROWS):
        return None
    # No set: the config of a stranger may hold a list there.
    widths = [_config_value(root, key) for key in _WIDTHS]
    names = names_of(tensors)
    heads = _matrices(tensors, names, _HEADS)
    if any(entry.tensor.shape[0] == vocabulary for entry in heads):
        return None
    embeddings = _matrices(tensors, names, _EMBEDDINGS)
    sizes = {entry.tensor.shape for entry in embeddings}
    if len(sizes) != 1:
        return None
    ((rows, width),) = sizes
    if rows == vocabulary or width not in widths:
        return None
    return Notice(
        "config-differs",
        f"config.json says vocab_size {vocabulary:,}, and "
        f"{show(embeddings[0].name, 80)} has {counted_noun(rows, 'row')}: "
        "from_pretrained does not load it as it is",
        (embeddings[0].name,),
    )


def _matrices(
    tensors: Sequence[Entry], names: Sequence[str], ends: tuple[str, ...]
) -> list[Entry]:
    """The tensors with such names that have rows and columns."""
    found = [tensors[at] for at, name in enumerate(names) if name.endswith(ends)]
    return [
        entry
        for entry in found
        if len(entry.tensor.shape) == 2 and entry.tensor.shape[0]
    ]


def _config_value(root: Node, key: str) -> Node:
    return node_at(root, ("config", key))
