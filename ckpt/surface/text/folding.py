"""Folding names: thousands of tensors as the few lines that a person reads.

Numbered runs of equal blocks fold (`layers.0-31`), equal siblings brace
(`{q,k,v,o}_proj`), single-child chains join, small groups of leaves move up, and the
deepest uniform depth that fits is opened.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ckpt.commands.inspect.inspect import Inspection
from ckpt.model.checkpoint import Entries, Entry, looks_of
from ckpt.model.columns import Chain, row_parts
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
"""The most levels that are opened. A name with as many dots stays whole."""
_INLINE = 2
"""As many leaves, and no more, move up to the place of their parent."""


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
            # A numbered node stands for others too, so a copy is changed.
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
        if len(deeper) > most:
            break
        all_open = not any(line.shut for line in best)
        # Nothing is shut any more, and another level opens nothing.
        if all_open and len(deeper) == len(best):
            break
        best = deeper
    return best


def _open_folds(
    folds: tuple[Fold, ...], depth: int, most_children: int | None
) -> list[Line]:
    """The lines of folds opened down to a depth. A fold with more children than
    `most_children` stays shut.
    """
    lines: list[Line] = []

    def add_lines(fold: Fold, level: int) -> None:
        is_deep = level >= depth
        is_wide = most_children is not None and len(fold.children) > most_children
        shut = bool(fold.children) and (is_deep or is_wide)
        lines.append(Line(level, fold, shut))
        if not shut:
            for child in fold.children:
                add_lines(child, level + 1)

    for fold in folds:
        add_lines(fold, 0)
    return lines


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
        # Lengths are compared first: they are fast, and dots are hardly ever met.
        if max(map(len, names), default=0) >= _PARTS and any(map(_is_dots, names)):
            for name, leaf in zip(names, leaves, strict=True):
                root.add([name] if _is_dots(name) else name.split("."), leaf)
            return root
        layers: dict[Hashable, _Node] = {}
        list_begin, above, parent = "", [], root
        for begin, first, last in name_blocks(names):
            block_leaves = leaves[first:last]
            if not begin:
                for name, leaf in zip(names[first:last], block_leaves, strict=True):
                    root.add(name.split("."), leaf)
                continue
            inside = [name[len(begin) :] for name in names[first:last]]
            # `model.layers.` and `12`: the layers of one list follow each other.
            dot = begin.rfind(".", 0, -1)
            number = begin[dot + 1 : -1]
            if begin[: dot + 1] != list_begin:
                list_begin = begin[: dot + 1]
                above = list_begin.split(".")[:-1]
                parent = root
                for part in above:
                    parent = parent.child(part)
            if number in parent.children:
                # Names come back to a layer. What they add is in this layer alone, and
                # not in those that were equal to it so far.
                for name, leaf in zip(inside, block_leaves, strict=True):
                    root.add([*above, number, *name.split(".")], leaf)
                continue
            # Equal leaves are the same object (`leaves_of`), so their ids tell whether
            # two layers are equal, without a look into the leaves.
            key = (*inside, *map(id, block_leaves))
            layer = layers.get(key)
            if layer is None:
                layer = self.tree(inside, block_leaves)
                layer = self._equal.setdefault(self._number_node(layer), layer)
                layers[key] = layer
            parent.children[number] = layer
        return root

    def children(self, node: _Node) -> tuple[Fold, ...]:
        """Return the folded children of a node. Where all are numbers they are in the
        order of the numbers.
        """
        items = list(node.children.items())
        if all(map(is_number, node.children)):
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
        last_look = -1
        last_number: int | None = None
        for name, child in items:
            look = self._number_node(child)
            number = int(name) if is_number(name) else None
            # Equal leaves are put into braces later, by `_brace_leaves`.
            is_equal = look == last_look and isinstance(child, _Node)
            if is_equal and _is_next_number(last_number, number):
                groups[-1][0].append(name)
            else:
                groups.append(([name], child))
            last_look = look
            last_number = number
        return groups

    def _folds(self, names: list[str], node: _Node | Leaf) -> list[Fold]:
        """The folds of equal neighbours, of which `node` is one: the tensor that has
        their very name, and what lies below it.
        """
        label, times = _group_label(names), len(names)
        if isinstance(node, Leaf):
            return [_leaf_fold(label, node, times)]
        if node.leaf is not None:
            below = _Node(node.children)
            return [_leaf_fold(label, node.leaf, times), *self._folds(names, below)]
        inner = [_scale_fold(fold, times) for fold in self.children(node)]
        if len(inner) == 1 and (times == 1 or inner[0].times == times):
            # A single child joins its parent: `encoder.layers.0-11` is one line.
            only = inner[0]
            return [only._replace(label=f"{label}.{only.label}")]
        if len(inner) <= _INLINE and not any(fold.children for fold in inner):
            # One or two leaves move up: a line of their parent would say nothing more.
            return [fold._replace(label=f"{label}.{fold.label}") for fold in inner]
        looks = {fold.look for fold in inner}
        parent = Fold(
            label,
            look=looks.pop() if len(looks) == 1 else None,
            tensors=sum(fold.tensors for fold in inner),
            numel=sum(fold.numel for fold in inner),
            nbytes=sum(fold.nbytes for fold in inner),
            times=times,
            children=tuple(inner),
        )
        return [parent]

    def _number_node(self, node: _Node | Leaf) -> int:
        """Return the number of a subtree: equal subtrees have equal numbers."""
        numbers = self._numbers
        if isinstance(node, Leaf):
            return numbers.setdefault(node.look, len(numbers))
        if node.number < 0:
            below: list[int] = []
            # This loop runs over every name, so it asks for the number of a leaf itself
            # instead of calling this method again.
            for child in node.children.values():
                if type(child) is Leaf:
                    below.append(numbers.setdefault(child.look, len(numbers)))
                else:
                    below.append(self._number_node(child))
            look = node.leaf.look if node.leaf else None
            key = (look, tuple(node.children), tuple(below))
            node.number = numbers.setdefault(key, len(numbers))
        return node.number


def _leaf_fold(label: str, leaf: Leaf, times: int) -> Fold:
    """So many equal tensors as a fold."""
    return Fold(label, leaf.look, times, leaf.numel * times, leaf.nbytes * times)


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


def _is_next_number(last: int | None, number: int | None) -> bool:
    """Tell whether a name continues a group. Numbers must follow each other, and only
    words, which have None, stand beside words.
    """
    if last is None or number is None:
        return last is number
    return number == last + 1


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
            # A fold with children stays a line of its own.
            groups["alone", index] = [fold]
        elif number_range(number):
            groups.setdefault(("numbered", fold.look, rest), []).append(fold)
        elif "{" in fold.label:
            groups["alone", index] = [fold]
        else:
            word = fold.label.rpartition(".")[2] if dot else None
            groups.setdefault((fold.look, word), []).append(fold)
    braced: list[Fold] = []
    for key, same in groups.items():
        labels = [fold.label for fold in same]
        if len(same) == 1:
            braced += same
        elif isinstance(key, tuple) and key[0] == "numbered":
            braced.append(_sum_folds(same, in_ranges(labels)))
        else:
            braced.append(_sum_folds(same, in_braces(labels)))
    return braced


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
    entries, optimizers = _without_optimizers(report, everything)
    leaves, kinds = _equal_leaves(entries)
    names = _shown_names(entries, _parameter_names(report))
    return Leaves(names, leaves, kinds, optimizers)


def _without_optimizers(
    report: Inspection, everything: bool
) -> tuple[Sequence[Entry], list[Optimizer]]:
    """The tensors of a report that have lines of their own, and the optimizers that are
    one row each.
    """
    rows = _optimizer_rows(report, everything)
    if not rows:
        return report.entries, []
    optimizers: list[Optimizer] = []
    others: Chain[Entry] = Chain()
    tensors = looks_of(report.entries)
    begin = 0
    for name, indices in rows:
        others.extend(report.entries[begin : indices.start])
        begin = indices.stop
        inside = tensors[indices.start : indices.stop]
        numel = sum(tensor.numel for tensor in inside)
        nbytes = sum(tensor.nbytes for tensor in inside)
        optimizers.append(Optimizer(name, len(inside), numel, nbytes))
    others.extend(report.entries[begin:])
    return others, optimizers


def _equal_leaves(entries: Sequence[Entry]) -> tuple[list[Leaf], list[Tensor]]:
    """A leaf of each tensor, and one tensor of each kind, whose index is the look of
    its leaves.

    Tensors of a file look alike by the thousand. Equal leaves are the same object.
    """
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[Tensor] = []
    leaf_of: dict[Tensor, Leaf] = {}
    unique_leaves: dict[Leaf, Leaf] = {}
    leaves: list[Leaf] = []
    for tensor in looks_of(entries):
        leaf = leaf_of.get(tensor)
        if leaf is None:
            kind = (tensor.shape, tensor.dtype.name, tensor.device, tensor.layout)
            number = numbers.setdefault(kind, len(numbers))
            if number == len(kinds):
                kinds.append(tensor)
            new_leaf = Leaf(number, tensor.numel, tensor.nbytes)
            leaf = unique_leaves.setdefault(new_leaf, new_leaf)
            leaf_of[tensor] = leaf
        leaves.append(leaf)
    return leaves, kinds


def _optimizer_rows(report: Inspection, everything: bool) -> list[tuple[str, range]]:
    """The optimizers that are one row: their names, and the indices of their
    tensors.
    """
    if report.selected or everything:
        return []
    optimizers = [
        section
        for section in report.sections
        if section.kind == "optimizer" and section.tensors
    ]
    if sum(section.tensors for section in optimizers) == len(report.entries):
        return []  # the file has nothing else, so its tensors are what is asked for
    return [(section.name or section.kind, section.indices) for section in optimizers]


def _parameter_names(report: Inspection) -> dict[int, str]:
    """For tensors in the state of an optimizer the name of their parameter and what
    they are of it, where known.

    The keys are their numbers among the tensors of the report.
    """
    has_optimizer = any(section.kind == "optimizer" for section in report.sections)
    if not report.selected or not has_optimizer:
        return {}
    numbers = {row.position: number for number, row in enumerate(report.rows)}
    tensors = report.survey.tensors
    names: dict[int, str] = {}
    for position, (index, model) in report.survey.state_parameters.items():
        if position not in numbers:
            continue
        name = tensors[index].name
        if model:
            name = model.relative(name)
        state = tensors[position].path[-1]  # `exp_avg`
        names[numbers[position]] = f"{name}.{state}"
    return names


def _shown_names(entries: Sequence[Entry], names: dict[int, str]) -> list[str]:
    """The names of tensors as they are printed. `names` has other ones for some of
    them.
    """
    texts: list[str] = []
    for part in row_parts(entries):
        if isinstance(part, Entries) and not names:
            # A hundred thousand names without a character to escape: one look at all
            # of them together is faster than one at each.
            if is_plain("".join(part.names)):
                texts += part.names
            else:
                texts += [show(name, None) for name in part.names]
            continue
        for entry in part:
            name = "(the root)"
            if entry.path:
                name = show(names.get(len(texts), entry.name), None)
            if not entry.registered:
                name += " (unregistered)"
            elif not entry.persistent:
                name += " (not persistent)"
            texts.append(name)
    return texts
