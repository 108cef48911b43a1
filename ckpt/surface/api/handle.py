"""The open file behind a checkpoint, its sections and its references: they are closed
together, and equal together.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TypeVar

from ckpt import formats
from ckpt.bytes.far import is_url
from ckpt.bytes.location import Alone, Location
from ckpt.bytes.source import CLOSED, NO_PATH, Given, Identity, Source
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, names_of
from ckpt.model.errors import CkptError, NotOpenedError, about
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple

R = TypeVar("R")


class Recipe(NamedTuple):
    """The arguments that open a file again: its path from the root or its bytes, and
    the options. None for a file object.
    """

    given: str | bytes | None
    limits: Limits | None
    partial: bool
    plugins: bool


class Handle:
    """An open file with all that is made of it once. Without a recipe it is equal to
    itself alone.

    After `close` everything but what the names and the metadata say raises
    NotOpenedError.
    """

    def __init__(self, checkpoint: Checkpoint, recipe: Recipe | None = None) -> None:
        self.checkpoint = checkpoint
        self.recipe = recipe
        self.is_closed = False

    @property
    def path(self) -> str:
        return self.checkpoint.path

    def closed(self) -> NotOpenedError:
        """The error of whoever uses it after it was closed."""
        return NotOpenedError(CLOSED, path=self.path)

    def check_open(self) -> None:
        """Raise NotOpenedError once it is closed."""
        if self.is_closed:
            raise self.closed()

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        self.is_closed = True
        self.checkpoint.close()

    def read(self, read: Callable[[list[Source]], R]) -> R:
        """Return what `read` makes. It adds the sources that it reads to a list; they
        are checked afterwards.

        Raises CkptError, also when a file changed or was closed meanwhile.
        """
        self.check_open()
        sources: list[Source] = []
        try:
            with about(self.path):
                result = read(sources)
                for source in {id(source): source for source in sources}.values():
                    # A far one compares its ETag with each request.
                    if source.far is None:
                        source.check_unchanged()
        except CkptError:
            if self.is_closed:
                raise self.closed() from None
            raise
        return result

    # --- made once --------------------------------------------------------------------

    @cached_property
    def indices(self) -> dict[str, int]:
        """The index of each tensor, by its name."""
        names = names_of(self.checkpoint.tensors)
        return dict(zip(names, range(len(names)), strict=True))

    @cached_property
    def survey(self) -> Survey:
        """The survey of the checkpoint."""
        return Survey(self.checkpoint)

    @cached_property
    def _section_starts(self) -> list[int]:
        return [section.first for section in self.survey.sections if section.tensors]

    @cached_property
    def _names(self) -> list[tuple[range, str]]:
        return [
            (section.indices, section.name)
            for section in self.survey.sections
            if section.tensors
        ]

    def section_of(self, index: int) -> str | None:
        """The name of the section with a tensor, or None."""
        # The last section that begins at or before the tensor.
        number = bisect_right(self._section_starts, index) - 1
        if number < 0:
            return None
        indices, name = self._names[number]
        return name if index in indices else None

    def role_of(self, index: int) -> str:
        """The role of a tensor."""
        return self.survey.roles[index].role

    # --- identity ---------------------------------------------------------------------

    @cached_property
    def identities(self) -> tuple[Identity, ...]:
        """The identity of each of its files."""
        return tuple(source.identity for source in self.checkpoint.sources)

    @cached_property
    def _cache_key(self) -> Hashable:
        # Nothing says that two such files are the same.
        if self.recipe is None or not self.checkpoint.sources:
            return id(self.checkpoint)
        return (self.checkpoint.format, self.recipe.partial, self.identities)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        return (
            self.checkpoint is other.checkpoint or self._cache_key == other._cache_key
        )

    def __hash__(self) -> int:
        return hash(self._cache_key)

    def __reduce__(self) -> tuple[object, ...]:
        self.check_open()
        if self.recipe is None or self.recipe.given is None:
            raise TypeError(NO_PATH)
        return _reopen_handle, (self.recipe, self.identities)


def handle_of(
    given: str | bytes, limits: Limits | None, partial: bool, plugins: bool
) -> Handle:
    """The open file at a path, or with these bytes. Raises CkptError."""
    if isinstance(given, bytes):
        return opened(Alone(Given(given)), Recipe(given, limits, partial, plugins))
    # Another process may have another working folder.
    rooted = given if is_url(given) else os.path.abspath(given)
    return opened(given, Recipe(rooted, limits, partial, plugins))


def read(
    location: str | Location,
    limits: Limits | None = None,
    *,
    plugins: bool = False,
    partial: bool = False,
    names_from: str | None = None,
    keep_damaged: bool = False,
) -> Checkpoint:
    """Read the checkpoint at a location, as `formats.open` does. The error for a
    missing file says what may be meant.
    """
    try:
        return formats.open(
            location,
            limits,
            plugins=plugins,
            partial=partial,
            names_from=names_from,
            keep_damaged=keep_damaged,
        )
    except NotOpenedError as error:
        path = location if isinstance(location, str) else None
        if (
            path is not None
            and error.path == path
            and not is_url(path)
            and not os.path.exists(path)
        ):
            from ckpt.surface.api.missing import (
                missing,
            )  # here: only a mistyped path pays for it

            error.hint = error.hint or missing(path)
        raise


def opened(location: str | Location, recipe: Recipe) -> Handle:
    """The open file at a location. Raises CkptError."""
    checkpoint = read(
        location, recipe.limits, partial=recipe.partial, plugins=recipe.plugins
    )
    return Handle(checkpoint, recipe)


def _reopen_handle(recipe: Recipe, identities: tuple[Identity, ...]) -> Handle:
    """Open a file in another process. Raises NotOpenedError when it is not the same any
    more.
    """
    assert recipe.given is not None
    handle = handle_of(recipe.given, recipe.limits, recipe.partial, recipe.plugins)
    if handle.identities != identities:
        handle.close()
        raise NotOpenedError(
            "the file changed after it was opened in another process", path=handle.path
        )
    return handle
