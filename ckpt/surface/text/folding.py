"""Folding names: thousands of tensors as the few lines that a person reads.

Numbered runs of equal blocks fold (`layers.0-31`), equal siblings brace
(`{q,k,v,o}_proj`), single-child chains join, small groups of leaves move up, and the
deepest uniform depth that fits is opened.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ckpt.commands.inspect.inspect import Inspection
from ckpt.model.checkpoint import Entries, Entry, looks_of
from ckpt.model.columns import Chain, parts
from ckpt.model.names import name_blocks
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor
from ckpt.model.text import (
    in_braces,
    in_ranges,
    is_number,
    is_plain,
    number_range,
    show,
)

LINES = 40
SHUT = 24
"""A node with more folded children than this stays shut, unless a depth was
asked for.
"""
_PARTS = 64
_INLINE = 2


class Leaf(NamedTuple):
    """A tensor as folding sees it: `look` (what makes two of them equal), and
    its sums.
    """

    look: Hashable
    numel: int
    nbytes: int


class Fold(NamedTuple):
    """A folded node. `times` equal blocks stand for it; sums are over all of them.
    `look` is None unless all tensors in it look the same; a leaf has no children.
    """

    label: str
    look: Hashable | None
    tensors: int
    numel: int
    nbytes: int
    times: int = 1
    children: tuple[Fold, ...] = ()


class Line(NamedTuple):
    """One line to print: a fold at a level; `shut` when it has children that are not
    shown.
    """

    level: int
    fold: Fold
    shut: bool


class _Node:
    """A part of names with others below it, and the tensor that has this very name, if
    there is one.

    Once it has a number it stands for every node that is equal, and is not changed any
    more.
    """

    __slots__ = ("children", "leaf", "number")

    def __init__(
        self, children: dict[str, _Node | Leaf] | None = None, leaf: Leaf | None = None
    ) -> None:
        self.children: dict[str, _Node | Leaf] = {} if children is None else children
        self.leaf = leaf
        self.number = -1

    def child(self, part: str) -> _Node:
        """The child of that name, to be changed; made when there is none."""
        entry = self.children.get(part)
        if isinstance(entry, _Node):
            if entry.number < 0:
                return entry
            node = _Node(dict(entry.children), entry.leaf)
        else:
            node = _Node(leaf=entry)
        self.children[part] = node
        return node

    def add(self, parts: Sequence[str], leaf: Leaf) -> None:
        """Put a tensor below."""
        node = self
        for part in parts[:-1]:
            node = node.child(part)
        if isinstance(node.children.get(parts[-1]), _Node):
            node.child(parts[-1]).leaf = leaf
        else:
            node.children[parts[-1]] = leaf


def fold(names: Sequence[str], leaves: Sequence[Leaf]) -> tuple[Fold, ...]:
    """Return the folded tree of dotted names, in the order of first appearance. Each
    name has its leaf.
    """
    folder = _Folder()
    return folder.children(folder.tree(names, leaves))


def lines(
    folds: tuple[Fold, ...], depth: int | None = None, most: int = LINES
) -> list[Line]:
    """The lines to print: opened down to `depth`, or to the deepest depth that fits
    into `most` lines.
    """
    if depth is not None:
        return _open_folds(folds, depth, None)
    best = _open_folds(folds, 0, SHUT)
    for level in range(1, _PARTS):
        deeper = _open_folds(folds, level, SHUT)
        if len(deeper) > most or (
            len(deeper) == len(best) and all(not line.shut for line in best)
        ):
            break
        best = deeper
    return best


def _open_folds(folds: tuple[Fold, ...], depth: int, shut: int | None) -> list[Line]:
    out: list[Line] = []

    def add(fold: Fold, level: int) -> None:
        closed = bool(fold.children) and (
            level >= depth or (shut is not None and len(fold.children) > shut)
        )
        out.append(Line(level, fold, closed))
        if not closed:
            for child in fold.children:
                add(child, level + 1)

    for fold in folds:
        add(fold, 0)
    return out


class _Folder:
    """Folds bottom-up. Equal subtrees get equal numbers, so that comparing two costs
    nothing.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._equal: dict[int, _Node] = {}

    def tree(self, names: Sequence[str], leaves: Sequence[Leaf]) -> _Node:
        """The tree of names. Layers of equal names and leaves are made once, so that a
        million names take little.
        """
        root = _Node()
        if max(map(len, names), default=0) >= _PARTS and any(map(_is_dots, names)):
            for name, leaf in zip(names, leaves, strict=True):
                root.add([name] if _is_dots(name) else name.split("."), leaf)
            return root
        layers: dict[Hashable, _Node] = {}
        for begin, first, last in name_blocks(names):
            inside = (
                [name[len(begin) :] for name in names[first:last]]
                if begin
                else names[first:last]
            )
            here = leaves[first:last]
            above = begin.split(".")[:-1]
            node = root
            for part in above[:-1]:
                node = node.child(part)
            if (
                not begin or above[-1] in node.children
            ):  # names that come back to a layer change that one alone
                for name, leaf in zip(inside, here, strict=True):
                    root.add([*above, *name.split(".")], leaf)
                continue
            key = (*inside, *map(id, here))
            layer = layers.get(key)
            if layer is None:
                layer = self.tree(inside, here)
                layer = layers[key] = self._equal.setdefault(
                    self._number_node(layer), layer
                )
            node.children[above[-1]] = layer
        return root

    def children(self, node: _Node) -> tuple[Fold, ...]:
        items = list(node.children.items())
        if all(
            name.isascii() and name.isdigit() and len(name) < 10 for name, _ in items
        ):
            items.sort(key=lambda item: int(item[0]))
        folds: list[Fold] = []
        for names, child in self._group_equal(items):
            folds += self._folds(names, child)
        return tuple(_brace_leaves(folds))

    def _group_equal(
        self, items: list[tuple[str, _Node | Leaf]]
    ) -> list[tuple[list[str], _Node | Leaf]]:
        """Neighbours that are equal, as one: (their names, one of them)."""
        groups: list[tuple[list[str], _Node | Leaf]] = []
        numbers: list[int] = []
        for name, child in items:
            number = self._number_node(child)
            same = groups and numbers[-1] == number and isinstance(child, _Node)
            if same and _is_next_name(groups[-1][0], name):
                groups[-1][0].append(name)
            else:
                groups.append(([name], child))
                numbers.append(number)
        return groups

    def _folds(self, names: list[str], node: _Node | Leaf) -> list[Fold]:
        label, times = _group_label(names), len(names)
        leaf = node.leaf if isinstance(node, _Node) else node
        if leaf is not None:
            own = Fold(label, leaf.look, times, leaf.numel * times, leaf.nbytes * times)
            return (
                [own, *self._folds(names, _Node(node.children))]
                if isinstance(node, _Node)
                else [own]
            )
        assert isinstance(node, _Node)
        inner = [_scale_fold(fold, times) for fold in self.children(node)]
        if len(inner) == 1 and (times == 1 or inner[0].times == times):
            only = inner[0]
            return [only._replace(label=f"{label}.{only.label}")]
        if len(inner) <= _INLINE and not any(fold.children for fold in inner):
            return [fold._replace(label=f"{label}.{fold.label}") for fold in inner]
        looks = {fold.look for fold in inner}
        return [
            Fold(
                label,
                looks.pop() if len(looks) == 1 else None,
                sum(fold.tensors for fold in inner),
                sum(fold.numel for fold in inner),
                sum(fold.nbytes for fold in inner),
                times,
                tuple(inner),
            )
        ]

    def _number_node(self, node: _Node | Leaf) -> int:
        numbers = self._numbers
        if isinstance(node, Leaf):
            return numbers.setdefault(node.look, len(numbers))
        if node.number < 0:
            below = tuple(
                [
                    numbers.setdefault(child.look, len(numbers))
                    if type(child) is Leaf
                    else self._number_node(child)
                    for child in node.children.values()
                ]
            )
            look = node.leaf.look if node.leaf else None
            node.number = numbers.setdefault(
                (look, tuple(node.children), below), len(numbers)
            )
        return node.number


def _is_dots(name: str) -> bool:
    """Tell whether a name is hardly more than dots. Such a name stays whole."""
    return len(name) >= _PARTS and name.count(".") >= _PARTS


def _scale_fold(fold: Fold, times: int) -> Fold:
    if times == 1:
        return fold
    return fold._replace(
        tensors=fold.tensors * times,
        numel=fold.numel * times,
        nbytes=fold.nbytes * times,
        children=tuple(_scale_fold(child, times) for child in fold.children),
    )


def _is_next_name(names: list[str], name: str) -> bool:
    last = names[-1]
    if is_number(last) or is_number(name):
        return is_number(last) and is_number(name) and int(name) == int(last) + 1
    return True


def _group_label(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if is_number(names[0]):
        return f"{names[0]}-{names[-1]}"
    return in_braces(names)


def _brace_leaves(folds: list[Fold]) -> list[Fold]:
    """Leaves of one look and one last word, or without dots, as one line at the place
    of the first.
    """
    groups: dict[Hashable, list[Fold]] = {}
    for index, fold in enumerate(folds):
        number, dot, rest = fold.label.partition(".")
        if fold.children:
            groups["alone", index] = [fold]
        elif number_range(number):
            groups.setdefault(("numbered", fold.look, rest), []).append(fold)
        elif "{" in fold.label:
            groups["alone", index] = [fold]
        else:
            word = fold.label.rpartition(".")[2] if dot else None
            groups.setdefault((fold.look, word), []).append(fold)
    out: list[Fold] = []
    for key, same in groups.items():
        labels = [fold.label for fold in same]
        if len(same) == 1:
            out += same
        elif isinstance(key, tuple) and key[0] == "numbered":
            out.append(_sum_folds(same, in_ranges(labels)))
        else:
            out.append(_sum_folds(same, in_braces(labels)))
    return out


def _sum_folds(folds: list[Fold], label: str) -> Fold:
    return Fold(
        label,
        folds[0].look,
        sum(fold.tensors for fold in folds),
        sum(fold.numel for fold in folds),
        sum(fold.nbytes for fold in folds),
    )


class Optimizer(NamedTuple):
    """All state of an optimizer as one row: its name, how many tensors it has, their
    elements and bytes.
    """

    name: str
    tensors: int
    numel: int
    nbytes: int


class Leaves(NamedTuple):
    """Names as they are printed, and a leaf of each. The look of a leaf is the index of
    a tensor in `kinds`.
    """

    names: list[str]
    leaves: list[Leaf]
    kinds: list[Tensor]
    optimizers: list[Optimizer]


def leaves_of(report: Inspection, everything: bool) -> Leaves:
    """The tensors of a report. Without `everything`, and unless its section is asked
    for, an optimizer is one row.
    """
    folded = _optimizer_rows(report, everything)
    entries, optimizers = report.entries, []
    if folded:
        entries = Chain()
        tensors = looks_of(report.entries)
        begin = 0
        for name, indices in folded:
            entries.extend(report.entries[begin : indices.start])
            begin = indices.stop
            inside = tensors[indices.start : indices.stop]
            numel, nbytes = (
                sum(entry.numel for entry in inside),
                sum(entry.nbytes for entry in inside),
            )
            optimizers.append(Optimizer(name, len(inside), numel, nbytes))
        entries.extend(report.entries[begin:])
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[Tensor] = []
    leaf_of: dict[Tensor, Leaf] = {}
    same: dict[Leaf, Leaf] = {}
    leaves: list[Leaf] = []
    for tensor in looks_of(entries):
        leaf = leaf_of.get(tensor)
        if leaf is None:
            key = (tensor.shape, tensor.dtype.name, tensor.device, tensor.layout)
            number = numbers.setdefault(key, len(numbers))
            if number == len(kinds):
                kinds.append(tensor)
            leaf = Leaf(number, tensor.numel, tensor.nbytes)
            leaf = leaf_of[tensor] = same.setdefault(leaf, leaf)
        leaves.append(leaf)
    return Leaves(
        _shown_names(entries, _parameter_names(report)), leaves, kinds, optimizers
    )


def _optimizer_rows(report: Inspection, everything: bool) -> list[tuple[str, range]]:
    """The optimizers that are one row: their names, and the indices of their
    tensors.
    """
    if report.selected or everything:
        return []
    parts = [
        part for part in report.sections if part.kind == "optimizer" and part.tensors
    ]
    if sum(part.tensors for part in parts) == len(report.entries):
        return []  # there is nothing else
    return [(part.name or part.kind, part.indices) for part in parts]


def _parameter_names(report: Inspection) -> dict[int, str]:
    """For tensors in the state of an optimizer the name of their parameter and what
    they are of it, where known.

    The keys are their numbers among the tensors of the report.
    """
    if not report.selected or all(part.kind != "optimizer" for part in report.sections):
        return {}
    numbers = {row.position: number for number, row in enumerate(report.rows)}
    tensors = report.survey.tensors
    names: dict[int, str] = {}
    for position, (index, model) in report.survey.state_parameters.items():
        if position in numbers:
            name = model.relative(tensors[index].name) if model else tensors[index].name
            names[numbers[position]] = f"{name}.{tensors[position].path[-1]}"
    return names


def _shown_names(entries: Sequence[Entry], names: dict[int, str]) -> list[str]:
    """The names of tensors as they are printed. `names` has other ones for some of
    them.
    """
    texts: list[str] = []
    for part in parts(entries):
        if isinstance(part, Entries) and not names:
            plain = is_plain("".join(part.names))
            texts += part.names if plain else [show(name, None) for name in part.names]
            continue
        for entry in part:
            name = (
                show(names.get(len(texts), entry.name), None)
                if entry.path
                else "(the root)"
            )
            if not entry.registered:
                name += " (unregistered)"
            elif not entry.persistent:
                name += " (not persistent)"
            texts.append(name)
    return texts
