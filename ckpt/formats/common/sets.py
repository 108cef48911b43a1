"""The shards of one checkpoint by their names: `model-00001-of-00003.safetensors` says
which of how many files it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from ckpt.model.rows import NamedTuple

_NAME = (
    r"(?!shard-\d{5,9}-model-)(?P<stem>.+)-(?P<number>\d{5,9})-of-(?P<of>\d{5,9})(?P<ending>(?:\.\w{1,40})?"
    r"\.(?:safetensors|bin))"
)
"""The names of a distributed checkpoint in safetensors
(`shard-00001-model-00001-of-00002`) are not meant.
"""


class ShardSet(NamedTuple):
    """Shards whose names differ by their number alone: number -> name. `of` is the
    count in the names, as it is written.
    """

    stem: str
    of: str
    ending: str
    files: dict[int, str]

    @property
    def label(self) -> str:
        """All of them in one name: `model-*-of-00003.safetensors`."""
        return f"{self.stem}-*-of-{self.of}{self.ending}"

    @property
    def claimed(self) -> int:
        """The number of shards that the names claim."""
        return int(self.of)

    @property
    def gone(self) -> int:
        """The number of shards that are not there."""
        # A number beyond the count is no shard of this set.
        return len(self.numbers) - sum(number in self.numbers for number in self.files)

    @property
    def numbers(self) -> range:
        """The numbers of all shards. Some writers begin with 0."""
        return range(self.claimed) if 0 in self.files else range(1, self.claimed + 1)

    def lost(self, most: int) -> list[str]:
        """The names of the first shards that are not there."""
        width = len(self.of)
        names = (
            f"{self.stem}-{number:0{width}}-of-{self.of}{self.ending}"
            for number in self.numbers
            if number not in self.files
        )
        return list(islice(names, most))

    @property
    def is_sound(self) -> bool:
        """Tell whether each number is one of the set."""
        return all(number in self.numbers for number in self.files)


def sets_in(names: Iterable[str]) -> list[ShardSet]:
    """The sets of shards among the names of a folder, in the order of their names."""
    sets: dict[tuple[str, str, str], ShardSet] = {}
    # Sorted, so that the names of one set come in the order of their numbers.
    for name in sorted(names):
        match = re.fullmatch(_NAME, name)
        if match is None:
            continue
        key = match["stem"], match["of"], match["ending"]
        shards = sets.setdefault(key, ShardSet(*key, {}))
        # Two names may have one number: `00001` and `000001`.
        shards.files.setdefault(int(match["number"]), name)
    return list(sets.values())


_FOLLOWING = r"(?P<stem>.+)-(?!00001)\d{5}-of-(?P<of>\d{5})(?P<ending>\.gguf)"
"""The names of the files of a set that each of its files opens, but for the
first one.
"""


def following_in(names: Iterable[str]) -> set[str]:
    """The files that are opened with the first one of their set, which is among the
    names too.
    """
    all_names = set(names)
    following: set[str] = set()
    for name in all_names:
        match = re.fullmatch(_FOLLOWING, name)
        if match is None:
            continue
        first = f"{match['stem']}-00001-of-{match['of']}{match['ending']}"
        if first in all_names:
            following.add(name)
    return following


def is_shard(name: str) -> bool:
    """Tell whether a file of this name is one of several."""
    return re.fullmatch(_NAME, name) is not None


def kind_of(name: str) -> tuple[str, str] | None:
    """Return the stem and the ending of the name of a shard, or None for
    another name.
    """
    match = re.fullmatch(_NAME, name)
    return None if match is None else (match["stem"], match["ending"])
