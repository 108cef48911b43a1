"""The plan of a folder: which files are read, and under which key each goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpt.formats.common.dcp import METADATA, is_part
from ckpt.formats.folder.layouts import Fact, Kind
from ckpt.io.location import Location
from ckpt.names import Path
from ckpt.rows import NamedTuple

if TYPE_CHECKING:  # most folders have none
    from ckpt.formats.dcp.metadata import Metadata


class Part(NamedTuple):
    """A file of the folder: its path below the folder, where it is, and the key of its content.

    Of a distributed checkpoint (`dcp`) it is `.metadata`, and `at` is the folder. Its own keys stand at the root unless
    another file has them, else below `key`.
    """

    file: str
    at: Location
    key: str
    kind: Kind = "checkpoint"
    is_model: bool = False

    @property
    def may_hold_tensors(self) -> bool:
        return self.kind in ("checkpoint", "any", "dcp")


class Plan(NamedTuple):
    """The files that are read, the weights first, the layout by its name, and what its documents say of the folder."""

    layout: str
    parts: tuple[Part, ...]
    facts: tuple[Fact, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    """Files of weights that are not read, and the file that is read instead."""
    path: str = ""
    """The folder of a framework around its data; empty where the path itself stands for the checkpoint."""
    tree: Callable[[Metadata], dict[str, Path]] | None = None
    """Gives the names of a distributed checkpoint their paths, where it has none."""
    is_ranks: bool = False
    """Whether the files are those of ranks, side by side."""

    def mark(self, part: Part) -> str:
        """The prefix of the ids of the storages of a file, which keeps those of several files apart."""
        several = sum(other.may_hold_tensors for other in self.parts) > 1
        return f"{part.key or 'model'}:" if several else ""


def files_of(part: Part) -> list[str]:
    """The files of a part by their paths below the folder. Raises NotOpenedError."""
    if part.kind != "dcp":
        return [part.file]
    return [part.file.removesuffix(METADATA) + name for name in part.at.names() if is_part(name)]
