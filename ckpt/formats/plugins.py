"""Formats of other distributions: the entry points of the group `ckpt.formats`, each an implementation of `Format`.

Loading one runs code of an installed distribution. A checkpoint cannot choose which.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from ckpt.errors import UsageError
from ckpt.formats.format import Format
from ckpt.text import show

GROUP = "ckpt.formats"
_loaded: list[Format] = []


@cache
def plugin_formats() -> tuple[Format, ...]:
    """The formats of other distributions, by name. Raises UsageError for one that does not load."""
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            _loaded.append(cast(Format, entry.load()))
        except Exception as error:  # whatever the code of the distribution raises
            raise UsageError(
                f"the format {show(entry.name, 60)} does not load: {show(str(error), 200)}",
                hint="CKPT_NO_PLUGINS=1 turns plugins off",
            ) from None
    return tuple(_loaded)


def loaded() -> tuple[Format, ...]:
    """The formats that were loaded so far."""
    return tuple(_loaded)
