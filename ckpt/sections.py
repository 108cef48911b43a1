"""What the parts of a checkpoint are: model, optimizer, scheduler, scaler, ema, rng, other.

Structure decides first (a dict with `state` and `param_groups`, a mapping of dotted names to tensors, a
pickled module), then well-known keys. Never the values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Container
from ckpt.names import Path, dotted

OTHER_SHARE = 0.01
"""A candidate for a model with under this share of the largest one's elements (`{mean, std}`) is other."""

_KEYS = {
    "optimizer": ("optimizer", "optim", "opt_state", "optimizers"),
    "scheduler": ("scheduler", "lr_sched", "sched"),
    "scaler": ("scaler", "amp", "gradscaler", "grad_scaler"),
    "rng": ("rng", "random_state", "rng_state", "cuda_rng"),
}
_EMA = ("ema", "averaged", "shadow")
_MODEL = re.compile(
    r"(?:.*_)?(?:model|net|net[gd]|network|weights|params|module|generator|discriminator|encoder|decoder|backbone"
    r"|state_dict|[gd])(?:_.*)?"
)


class Section(NamedTuple):
    """A part of a checkpoint. Its tensors are `checkpoint.tensors[first:last]`, all below `path`."""

    path: Path
    name: str
    kind: str
    first: int
    last: int
    is_module: bool = False
    numel: int = 0
    nbytes: int = 0

    @property
    def tensors(self) -> int:
        return self.last - self.first

    def relative(self, name: str) -> str:
        """The name, inside this section, of a tensor that lies in it."""
        return name[len(self.name) + 1 :] if self.path else name


def sections(checkpoint: Checkpoint) -> tuple[Section, ...]:
    """The parts of a checkpoint in file order; they do not overlap. A bare state dict is one, at the root."""
    finder = _Finder(checkpoint)
    found = [_sized(checkpoint, section) for section in finder.find()]
    largest = max((section.numel for section in found if section.kind in ("model", "ema")), default=0)
    kept = [
        section
        for section in found
        if section.kind != "model" or section.is_module or section.numel >= OTHER_SHARE * largest
    ]
    rest = [_sized(checkpoint, section) for section in finder.rest(kept)]
    return tuple(sorted(kept + rest, key=lambda section: (section.first, section.last)))


def models(found: tuple[Section, ...]) -> list[Section]:
    """The sections that hold a model's weights."""
    return [section for section in found if section.kind == "model"]


def _sized(checkpoint: Checkpoint, section: Section) -> Section:
    entries = checkpoint.tensors[section.first : section.last]
    return section._replace(
        numel=sum(entry.tensor.numel for entry in entries),
        nbytes=sum(entry.tensor.nbytes for entry in entries),
    )


class _Finder:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._containers = checkpoint.containers

    def find(self) -> list[Section]:
        tensors = self._checkpoint.tensors
        if not self._containers:  # safetensors: names only
            return [Section((), "", "model", 0, len(tensors))] if tensors else []
        found: list[Section] = []
        covered: list[Path] = []
        for row in self._containers:
            if any(row.path[: len(path)] == path for path in covered[-1:]):
                continue
            kind = self._kind(row)
            if kind is not None:
                found.append(Section(row.path, row.name, kind, row.first, row.last, row.is_module))
                covered.append(row.path)
        return found

    def rest(self, found: list[Section]) -> list[Section]:
        """A section `other` for each top-level key with tensors that belong to none of those found."""
        taken = [False] * len(self._checkpoint.tensors)
        for section in found:
            taken[section.first : section.last] = [True] * section.tensors
        loose: dict[Path, list[int]] = {}
        for index, free in enumerate(taken):
            if not free:
                loose.setdefault(self._checkpoint.tensors[index].path[:1], []).append(index)
        if not found and loose:
            return [Section((), "", "other", 0, len(taken))]
        sections: list[Section] = []
        for path, indices in loose.items():
            runs = [[indices[0], indices[0] + 1]]
            for index in indices[1:]:
                if index == runs[-1][1]:
                    runs[-1][1] += 1
                else:
                    runs.append([index, index + 1])
            sections += [Section(path, dotted(path), "other", first, last) for first, last in runs]
        return sections

    def _kind(self, row: Container) -> str | None:
        """The kind of the section that a container is, None when it is not one but may hold some."""
        keys = set(row.keys)
        last = str(row.path[-1]).lower() if row.path else ""
        if {"state", "param_groups"} <= keys:
            return "optimizer"
        if row.is_module:
            return "ema" if _is_ema(row.path) else "model"
        if len(row.path) == 1:
            for kind, words in _KEYS.items():
                if any(word in last for word in words) and not self._holds_sections(row):
                    return kind
        if row.last == row.first:
            return None
        if row.has_metadata or self._is_state_dict(row):
            return "ema" if _is_ema(row.path) else "model"
        return None

    def _holds_sections(self, row: Container) -> bool:
        """Whether a container below this one is an optimizer's state (a list of optimizers, say)."""
        depth = len(row.path)
        return any(
            other.path[:depth] == row.path
            and len(other.path) > depth
            and {"state", "param_groups"} <= set(other.keys)
            for other in self._containers
        )

    def _is_state_dict(self, row: Container) -> bool:
        """A mapping whose children are tensors, with dotted names or below a key that says model."""
        depth = len(row.path) + 1
        entries = self._checkpoint.tensors[row.first : row.last]
        direct = [entry for entry in entries if len(entry.path) == depth and isinstance(entry.path[-1], str)]
        if not direct or row.type in ("list", "tuple"):
            return False
        dotted = sum("." in str(entry.path[-1]) for entry in direct)
        if len(direct) == len(entries) or dotted:
            named = bool(row.path) and _MODEL.fullmatch(str(row.path[-1]).lower()) is not None
            if 2 * dotted >= len(direct) and 2 * len(direct) >= len(entries):
                return True
            return named or (not row.path and len(direct) == len(row.keys))
        return False


def _is_ema(path: Path) -> bool:
    return any(word in str(key).lower() for key in path[-1:] for word in _EMA)
