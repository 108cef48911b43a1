"""Parts of an open checkpoint as mappings: a section with the names inside of it, and a
file of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ckpt.evidence.wrappers import unwrapped_name
from ckpt.model.text import counted_noun, show, size_text
from ckpt.surface.api.reference import MissingNameError, Ref, show_key

if TYPE_CHECKING:
    from ckpt.evidence import sections as evidence
    from ckpt.surface.api.handle import Handle


class Part(Mapping[str, Ref]):
    """Some tensors of an open checkpoint: names -> references, in file order."""

    name: str
    nbytes: int

    def __init__(
        self, handle: Handle, name: str, nbytes: int, indices: dict[str, int]
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self._handle = handle
        self._indices = indices

    def __getitem__(self, name: str) -> Ref:
        self._handle.check_open()
        # The names are compared only when the error is shown.
        if name not in self._indices:
            raise MissingNameError(
                name, "tensor", self._indices, partial(self._elsewhere, name)
            )
        return Ref(self._handle, self._indices[name])

    def _elsewhere(self, name: str) -> str | None:
        """Return the expression for the tensor of the whole file with this name, if
        there is one.
        """
        if name in self._handle.indices:
            return f"of the whole file: c[{show_key(name)}]"
        # Only where one tensor can be meant.
        wrapped = [other for other in self._indices if unwrapped_name(other) == name]
        if len(wrapped) == 1 and wrapped[0] != name:
            return (
                f"{show(wrapped[0], 80)} behind the prefix of a wrapper, which "
                "c.state_dict(strip=True) removes"
            )
        return None

    def __iter__(self) -> Iterator[str]:
        self._handle.check_open()
        return iter(self._indices)

    def __len__(self) -> int:
        self._handle.check_open()
        return len(self._indices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
            return NotImplemented
        return self._indices == other._indices and self._handle == other._handle

    def __hash__(self) -> int:
        # A dict has no hash; equal ones have one length, which costs nothing.
        return hash((self._handle, self.name, len(self._indices)))

    def _sizes(self) -> str:
        return f"{counted_noun(len(self._indices), 'tensor')}, {size_text(self.nbytes)}"


class Shard(Part):
    """The tensors of one file of a checkpoint, by their full names. `name` is the name
    of the file.
    """

    def __repr__(self) -> str:
        return f"<ckpt.Shard {show(self.name)}: {self._sizes()}>"


class Section(Part):
    """A part of a checkpoint, by the names inside of it. `kind` is `model`,
    `optimizer`, `ema` and so on.
    """

    def __init__(self, handle: Handle, section: evidence.Section) -> None:
        # An index finds the tensor without a search by its name.
        names = dict(zip(section.names(), section.indices, strict=True))
        super().__init__(handle, section.name, section.nbytes, names)
        self.kind = section.kind

    @property
    def tensors(self) -> tuple[Ref, ...]:
        """Its tensors, in file order."""
        return tuple(self.values())

    @property
    def tensor_count(self) -> int:
        """The number of its tensors."""
        return len(self._indices)

    def __repr__(self) -> str:
        return (
            f"<ckpt.Section {show(self.name) or '(the root)'}: {self.kind}, "
            f"{self._sizes()}>"
        )
