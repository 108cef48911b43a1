"""The words of people about weights: the metadata of safetensors, and the model card,
as lines of `ckpt inspect`.
"""

from __future__ import annotations

from ckpt.commands.inspect.card import Card
from ckpt.commands.inspect.tables import value_text
from ckpt.model.checkpoint import Value
from ckpt.model.text import and_more, show

_METADATA, _TAGS = 6, 5
_FIRST = (
    "license",
    "title",
    "author",
    "base_model",
    "format",
    "modelspec.title",
    "modelspec.license",
)
"""The keys of metadata that stand first."""


def metadata_pieces(values: list[Value]) -> list[str]:
    """Return a piece for each text of the metadata, the well-known ones first, and a
    count of the rest.
    """
    rank = {key: number for number, key in enumerate(_FIRST)}
    # The sort is stable, so all other keys stay in the order of the file.
    rows = sorted(values, key=lambda value: rank.get(str(value.path[-1]), len(rank)))
    pieces = [
        f"{show(str(value.path[-1]), 40)} {value_text(value)}"
        for value in rows[:_METADATA]
    ]
    rest = len(rows) - len(pieces)
    return [*pieces, f"{rest:,} more (--values)"] if rest else pieces


def card_pieces(card: Card) -> list[str]:
    """Return a piece for each thing that a model card says."""
    pieces = [f"license {show(card.license, 60)}"] if card.license else []
    if card.base_models:
        bases = and_more([show(name, 80) for name in card.base_models], 2)
        relation = f" ({show(card.relation, 20)})" if card.relation else ""
        noun = "base model" if len(card.base_models) == 1 else "base models"
        pieces.append(f"{noun} {bases}{relation}")
    pieces += [show(text, 60) for text in (card.task, card.library) if text]
    if card.tags:
        noun = "tag" if len(card.tags) == 1 else "tags"
        pieces.append(f"{noun} {and_more([show(tag, 40) for tag in card.tags], _TAGS)}")
    return pieces


_COUNTERS = ("epoch", "step", "global_step", "iter", "iteration", "num_updates")


def counters_below(values: list[Value]) -> str:
    """Return the counters of training among the values under one key, as `epoch 12,
    iter 1000`, or nothing.
    """
    found: dict[str, str] = {}
    # The shallowest first: a counter deep inside may be of something else.
    for value in sorted(values, key=lambda value: len(value.path)):
        key = str(value.path[-1])
        if key in _COUNTERS and value.type in ("int", "float") and key not in found:
            found[key] = value_text(value)
    return ", ".join(f"{key} {text}" for key, text in found.items())
