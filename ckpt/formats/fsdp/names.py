"""The files of the ranks of a run, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.rows import NamedTuple

_NAME = (
    r"(?P<stem>.*?)(?:[._-]?world[._-]?size[._-]?(?P<world>\d{1,7}))?[._-]?rank[._-]?(?P<rank>\d{1,7})"
    r"(?P<ending>(?:\.\w{1,20})*\.(?:pt|pth|bin|ckpt|model))"
)


class RankSet(NamedTuple):
    """Files whose names differ by the rank alone: rank -> name. `world` is how many the names say there are.

    `stem` is what stands before: `model`. `repeated` is a name whose rank another file has.
    """

    stem: str
    world: int | None
    files: dict[int, str]
    repeated: str | None = None


def sets_in(names: Iterable[str]) -> list[RankSet]:
    """The sets of files of ranks among names."""
    found: dict[tuple[str, str | None, str], RankSet] = {}
    for name in sorted(names):
        match = re.fullmatch(_NAME, name)
        if match is None:
            continue
        world = None if match["world"] is None else int(match["world"])
        key = match["stem"], match["world"], match["ending"]
        rows = found.setdefault(key, RankSet(match["stem"], world, {}))
        rank = int(match["rank"])
        if rank in rows.files:
            found[key] = rows._replace(repeated=name)
        else:
            rows.files[rank] = name
    return [row._replace(files=dict(sorted(row.files.items()))) for row in found.values()]
