"""The model card beside weights: a README.md in the folder, or beside a file that has
the name of a published model.
"""

from __future__ import annotations

import re

from ckpt.bytes.far import is_url
from ckpt.bytes.location import Location, is_cached_model, locate
from ckpt.commands.inspect.card import BYTES, Card, card_of
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.surface.api.checkpoint import Checkpoint

_NAME = "README.md"
_PUBLISHED = re.compile(
    r"(?:(?:adapter_|diffusion_pytorch_)?model"
    r"|pytorch_model)(?:[-.].*)?\.(?:safetensors|bin|index\.json)"
)
"""Names under which models are published, one in a folder: a README.md beside them is
about them.
"""


def card_beside(opened: Checkpoint) -> Card | None:
    """Return what the model card of an open checkpoint says, or None without one.

    A card behind a URL is not asked for: each request takes time.
    """
    if not opened.has_path or is_url(opened.path):
        return None
    try:
        folder = _folder(opened.path)
        if folder is None:
            return None
        place = folder.child(_NAME)
        if not place.is_file():
            return None
        source = place.open()
        try:
            return card_of(bytes(source.read(0, min(source.size, BYTES))))
        finally:
            source.close()
    # a card that cannot be read is none, and no reason to say nothing of the weights
    except CkptError:
        return None


def _folder(path: str) -> Location | None:
    """Return the folder whose README.md is about a checkpoint."""
    place = locate(path)
    if is_cached_model(path):
        # Here: few paths lead into a cache.
        from ckpt.formats.common.cached import snapshot_of

        return snapshot_of(place, Limits())
    if place.is_folder():
        return place
    name = path.replace("\\", "/").rpartition("/")[2]
    return place.parent() if _PUBLISHED.fullmatch(name) else None
