"""The kinds of the parts of a checkpoint: model, optimizer, scheduler, scaler, ema,
rng, snapshot, other.

The structure decides first (a dict with `state` and `param_groups`, a mapping of dotted
names to tensors, a pickled module), then well-known keys. Values never decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from ckpt.evidence.record import KEY, record_of
from ckpt.model.checkpoint import (
    Checkpoint,
    Container,
    Entry,
    keys_at,
    looks_of,
    names_of,
)
from ckpt.model.names import Globs, Path, dotted_name
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple

OTHER_SHARE = 0.01
"""A candidate with less than this share of the elements of the largest model (`{mean,
std}`) is other.
"""

_KINDS = {
    **dict.fromkeys(("optimizer", "optimizers", "optim", "optims"), "optimizer"),
    **dict.fromkeys(("scheduler", "schedulers", "sched"), "scheduler"),
    **dict.fromkeys(("scaler", "scalers", "amp", "gradscaler"), "scaler"),
    **dict.fromkeys(("rng", "rngs", "random"), "rng"),
}
"""Words that give the kind of a part, when all other words of the key are in
`_FILLING`.
"""
_FILLING = frozenset(
    [
        "state",
        "states",
        "dict",
        "dicts",
        "lr",
        "grad",
        "loss",
        "native",
        "cuda",
        "cpu",
        "torch",
        "numpy",
        "python",
    ]
)
_EMA = frozenset(("ema", "average", "averaged", "averaging", "shadow", "swa"))
_WHOLE = frozenset(
    ("state_dict", "model_state_dict", "model", "params", "weights", "net")
)
"""Keys that hold a model beside other things. A dict with such a key is not the model
itself.
"""
_LIGHTNING = frozenset(("state_dict", "pytorch-lightning_version"))
"""Keys at the root of a checkpoint of Lightning. It loads `state_dict`; callbacks keep
other weights.
"""
_TENSOR_NAMES = (
    r"(?:weight|bias|gamma|beta|kernel|embedding|running_|num_batches_tracked)\w*"
    r"|\w*_?(?:weight|bias)"
)
FLATTENED = ("state.", "param_groups.")
"""The beginnings of the keys of a flattened optimizer: `state.NAME.exp_avg`,
`param_groups.NAME.lr`.
"""
# `lrScheduler`, `LR_scheduler` and `lr_scheduler` are the same words.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MODEL = (
    r"(?:.*_)?(?:model|net|net[gd]|network|weights|params|module|generator"
    r"|discriminator|encoder|decoder|backbone"
    r"|state_dict|[gd])(?:_.*)?"
)


class Totals:
    """The elements and bytes of tensors, counted when they are asked for."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    @cached_property
    def both(self) -> tuple[int, int]:
        """(elements, bytes)."""
        looks = looks_of(self._entries)
        # Most are the same object, and a tensor takes long to hash: ids are counted.
        ids = [id(look) for look in looks]
        distinct = dict(zip(ids, looks, strict=True))
        numel = nbytes = 0
        for key, count in Counter(ids).items():
            numel += distinct[key].numel * count
            nbytes += distinct[key].nbytes * count
        return numel, nbytes


class Section(NamedTuple):
    """A part of a checkpoint. All its `entries` are below `path`; `first` is the index
    of the first one.

    `node` is its node in the tree.
    """

    path: Path
    name: str
    kind: str
    first: int
    entries: Sequence[Entry] = ()
    is_module: bool = False
    node: Node = None
    totals: Totals = Totals(())

    @property
    def numel(self) -> int:
        """The number of elements of its tensors."""
        return self.totals.both[0]

    @property
    def nbytes(self) -> int:
        """The number of bytes of its tensors."""
        return self.totals.both[1]

    @property
    def tensors(self) -> int:
        """The number of its tensors."""
        return len(self.entries)

    @property
    def indices(self) -> range:
        """The indices of its entries in `Checkpoint.tensors`."""
        return range(self.first, self.first + len(self.entries))

    @property
    def is_flat(self) -> bool:
        """Tell whether all its tensors are one level below it, as in a state dict."""
        depth = len(self.path) + 1
        return not self.is_module and len(keys_at(self.entries, depth)) == len(
            self.entries
        )

    def names(self) -> list[str]:
        """The names of its tensors, relative to it."""
        names = names_of(self.entries)
        begin = len(self.name) + 1
        return [name[begin:] for name in names] if self.path else names

    def selected(self, globs: Globs | None, path: str) -> Sequence[Entry]:
        """Its entries that match by their names or those inside of it. Raises
        UsageError where none does.
        """
        if not globs:
            return self.entries
        chosen = [
            row
            for row in self.entries
            if globs.match(row.name, self.relative(row.name))
        ]
        if not chosen:
            raise globs.refusal(self.names(), path)
        return chosen

    def relative(self, name: str) -> str:
        """The name of one of its tensors, relative to it."""
        return name[len(self.name) + 1 :] if self.path else name


def section_of(
    checkpoint: Checkpoint,
    path: Path,
    name: str,
    kind: str,
    first: int,
    last: int,
    *,
    is_module: bool = False,
    node: Node = None,
) -> Section:
    """The section of the tensors `first` to `last`."""
    entries = checkpoint.tensors[first:last]
    return Section(path, name, kind, first, entries, is_module, node, Totals(entries))


def find_sections(checkpoint: Checkpoint) -> tuple[Section, ...]:
    """The parts of a checkpoint in file order, without overlap. A bare state dict is
    one section at the root.
    """
    if checkpoint.declared is not None:
        return tuple(
            section_of(checkpoint, *row) for row in checkpoint.declared.sections
        )
    finder = _Finder(checkpoint)
    sections = finder.find()
    if len(sections) == 1:  # nothing to compare it with
        return tuple(sorted(sections + finder.rest(sections), key=_tensor_span))
    weights = [section for section in sections if section.kind in ("model", "ema")]
    largest = max((section.numel for section in weights), default=0)
    kept = [
        section
        for section in sections
        if section.path in finder.models or _is_worth_a_section(section, largest)
    ]
    return tuple(sorted(kept + finder.rest(kept), key=_tensor_span))


def _is_worth_a_section(section: Section, largest: int) -> bool:
    """Tell whether a candidate is a section: its structure is clear, or it is no small
    thing beside the largest model, which has so many elements.
    """
    # Elements are counted last: for a model of many tensors that takes a while.
    if section.kind not in ("model", "other") or section.is_module:
        return True
    return section.numel >= OTHER_SHARE * largest


def _tensor_span(section: Section) -> tuple[int, int]:
    return section.first, section.tensors


class _Finder:
    """The search for the sections of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._containers = checkpoint.containers
        self.models: set[Path] = set()
        """Paths of the weights in a folder whose layout says so."""
        for member in checkpoint.members:
            entries = member.checkpoint.tensors
            if member.is_model and all(len(entry.path) == 1 for entry in entries):
                self.models.add((member.key,) if member.key else ())
        self._is_lightning = any(
            not row.path and _has_keys(row, _LIGHTNING) for row in self._containers[:1]
        )
        self._above_optimizers: set[Path] = set()
        """Paths above an optimizer, such as a list of optimizers."""
        for row in self._containers:
            if _is_optimizer(row):
                self._above_optimizers.update(
                    row.path[:depth] for depth in range(len(row.path))
                )

    def find(self) -> list[Section]:
        """The sections that the structure and the keys show, in file order."""
        tensors = self._checkpoint.tensors
        if not self._containers:  # safetensors: names only
            if not tensors or not tensors[0].path:
                return []
            return [section_of(self._checkpoint, (), "", "model", 0, len(tensors))]
        sections: list[Section] = []
        covered: Path | None = None  # the section before: what is below it comes next
        for row in self._containers:
            if covered is not None and row.path[: len(covered)] == covered:
                continue
            loose = None if row.path else self._loose_model(row)
            # The root does not cover its parts: the optimizer is another section.
            if loose is not None:
                sections.append(loose)
                continue
            kind = self._kind(row)
            if kind is not None:
                sections.append(
                    section_of(
                        self._checkpoint,
                        row.path,
                        row.name,
                        kind,
                        row.first,
                        row.last,
                        is_module=row.is_module,
                        node=row.node,
                    )
                )
                covered = row.path
        return sections

    def rest(self, chosen: list[Section]) -> list[Section]:
        """A section for each top-level key with tensors outside the sections found,
        usually of the kind `other`.
        """
        # A byte for each tensor: `find` skips what is taken without a loop in Python.
        taken = bytearray(len(self._checkpoint.tensors))
        for section in chosen:
            last = section.first + section.tensors
            taken[section.first : last] = b"\1" * section.tensors
        loose: dict[Path, list[int]] = {}
        index = taken.find(0)
        while index >= 0:
            key = self._checkpoint.tensors[index].path[:1]
            loose.setdefault(key, []).append(index)
            index = taken.find(0, index + 1)
        if not chosen and loose and not any(kind_of_key(path) for path in loose):
            return [section_of(self._checkpoint, (), "", "other", 0, len(taken))]
        sections: list[Section] = []
        for path, indices in loose.items():
            kind = kind_of_key(path) or "other"
            name = dotted_name(path)
            for first, last in _runs_of(indices):
                sections.append(
                    section_of(self._checkpoint, path, name, kind, first, last)
                )
        return sections

    def _kind(self, row: Container) -> str | None:
        """Return the kind of a container that is a section, or None. Others may hold
        sections.
        """
        # An optimizer first: its keys are surer than the words of its path.
        if _is_optimizer(row):
            return "optimizer"
        if row.path and row.path[0] in self._checkpoint.copies:
            return "other" if len(row.path) == 1 else None
        if row.path == (KEY,) and record_of(self._checkpoint) is not None:
            return "snapshot"
        if row.is_module or row.path in self.models:
            return self._kind_of_weights(row.path)
        kind = kind_of_key(row.path) if len(row.path) == 1 else None
        if kind is not None and row.path not in self._above_optimizers:
            return kind
        # Without tensors there is no structure of a model to see.
        if row.last == row.first:
            return None
        if row.has_metadata or self._is_state_dict(row) or self._is_nested_model(row):
            return self._kind_of_weights(row.path)
        return None

    def _loose_model(self, root: Container) -> Section | None:
        """Return the weights that lie at the root beside an optimizer, as torchtitan
        saves them, or None.
        """
        if () not in self._above_optimizers or root.type in ("list", "tuple"):
            return None
        if not self._is_loose(root):
            return None
        indices: list[int] = []
        dotted = 0
        for index in range(root.first, root.last):
            path = self._checkpoint.tensors[index].path
            if len(path) == 1 and isinstance(path[0], str):
                indices.append(index)
                dotted += "." in path[0]
        # Names of a state dict have dots; loose tensors beside an optimizer have none.
        if not indices or 2 * dotted < len(indices):
            return None
        first, last = indices[0], indices[-1] + 1
        # Tensors of something else lie in between, and a section is one run of them.
        if last - first != len(indices):
            return None
        return section_of(
            self._checkpoint, (), "", "model", first, last, node=root.node
        )

    def _is_loose(self, root: Container) -> bool:
        """Tell whether an optimizer is a key of the root, and no key names a model."""
        if not any(
            len(row.path) == 1 and _is_optimizer(row) for row in self._containers
        ):
            return False
        return _WHOLE.isdisjoint(root.keys) and root.path not in self.models

    def _kind_of_weights(self, path: Path) -> str:
        """The kind of weights below a path: `model`, `ema`, or `other` for those that a
        callback of Lightning keeps.
        """
        if not self._is_lightning or path[:1] == ("state_dict",):
            return "ema" if is_average(path) else "model"
        depths = range(1, len(path) + 1)
        return "ema" if any(is_average(path[:depth]) for depth in depths) else "other"

    def _is_state_dict(self, row: Container) -> bool:
        """Tell whether a container maps names to tensors, with dotted names or below a
        key for a model.
        """
        depth = len(row.path) + 1
        entries = self._checkpoint.tensors[row.first : row.last]
        direct = keys_at(entries, depth)
        if not direct or row.type in ("list", "tuple"):
            return False
        dotted = sum(["." in key for key in direct])
        # Not all: `cls_token` has no dot, and a value may be a dict of its own.
        if 2 * dotted >= len(direct) and 2 * len(direct) >= len(entries):
            return True
        # Nested dicts without a dotted name are left to `_is_nested_model`.
        if len(direct) != len(entries) and not dotted:
            return False
        if _says_model(row.path):
            return True
        # Without dots and without a key above: {"weight": ..., "bias": ...} but not
        # {"images": ..., "labels": ...}.
        is_like_layer = any(re.fullmatch(_TENSOR_NAMES, key) for key in direct)
        return not row.path and len(direct) == len(row.keys) and is_like_layer

    def _is_nested_model(self, row: Container) -> bool:
        """Tell whether a container below a key for a model has several parts.

        The parts all hold tensors and are not sections.
        """
        if not _says_model(row.path) or row.type in ("list", "tuple"):
            return False
        if row.path in self._above_optimizers:
            return False
        depth = len(row.path)
        entries = self._checkpoint.tensors[row.first : row.last]
        parts = {entry.path[depth] for entry in entries}
        if len(parts) < 2 or parts != set(row.keys):
            return False
        for part in parts:
            if part in _WHOLE or kind_of_key((part,)) or is_average((part,)):
                return False
        return True


def _runs_of(indices: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of ascending indices without a gap: the first, and one past the last."""
    runs: list[tuple[int, int]] = []
    first = last = indices[0]
    for index in indices:
        if index != last:
            runs.append((first, last))
            first = index
        last = index + 1
    return [*runs, (first, last)]


def is_flattened(keys: Sequence[str | int]) -> bool:
    """Tell whether these are the keys of a flattened optimizer, of one group at
    least.
    """
    has_group = False
    for key in keys:
        if not isinstance(key, str) or not key.startswith(FLATTENED):
            return False
        has_group = has_group or key.startswith(FLATTENED[1])
    return has_group


def _is_optimizer(row: Container) -> bool:
    return _has_keys(row, ("state", "param_groups")) or is_flattened(row.keys)


def _has_keys(row: Container, keys: Iterable[str]) -> bool:
    # Of a hundred thousand keys a set would cost more than two looks.
    return all(key in row.keys for key in keys)


def _says_model(path: Path) -> bool:
    return bool(path) and re.fullmatch(_MODEL, str(path[-1]).lower()) is not None


def _key_words(key: object) -> list[str]:
    return [word.lower() for word in _WORD.findall(str(key))]


def kind_of_key(path: Path) -> str | None:
    """The kind that the last key of a path names: `optimizer_states`, `lr_scheduler`,
    `rng_state`.
    """
    if not path:
        return None
    kinds: set[str | None] = set()
    for word in _key_words(path[-1]):
        # Letters and numbers tell apart two of one kind: `optimizer_G`, `scaler1`.
        if word in _FILLING or len(word) == 1 or word.isdigit():
            continue
        kinds.add(_KINDS.get(word))
    # Two kinds in one key say neither.
    return kinds.pop() if len(kinds) == 1 else None


def is_average(path: Path) -> bool:
    """Tell whether the last key of a path says that averages of weights lie
    below it.
    """
    return bool(path) and not _EMA.isdisjoint(_key_words(path[-1]))
