"""The findings of a comparison, row by row: tensors, values, and the sections that they
lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from math import inf, isnan, nan, sqrt
from typing import TYPE_CHECKING, Literal

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.elements.blocks import slice_of
from ckpt.elements.compare import Change, kind_of
from ckpt.elements.spans import cut_spans
from ckpt.evidence.roles import Role
from ckpt.evidence.sections import Section
from ckpt.evidence.unread import unlisted_parts
from ckpt.model.account import UNREAD
from ckpt.model.checkpoint import Checkpoint, Entry, Value
from ckpt.model.names import names_above
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, Tensor, TensorRef, parts_of, unwrap_dtensor
from ckpt.model.text import counted_noun, show

if TYPE_CHECKING:
    from ckpt.evidence.mapping import Rename

Status = Literal[
    "same", "changed", "reshaped", "retyped", "renamed", "added", "removed", "unchecked"
]
STATUSES: tuple[Status, ...] = (
    "changed",
    "reshaped",
    "retyped",
    "renamed",
    "added",
    "removed",
    "unchecked",
    "same",
)
"""`unchecked`: the files hold other parts of the tensor, its bytes could not be read,
or with `--quick` a file records no checksum.
"""
DIFFERS = frozenset(("changed", "reshaped", "retyped", "added", "removed"))


Cause = Literal[
    "frozen",
    "never",
    "no-gradient",
    "zero-gradient",
    "not-in-optimizer",
    "not-stepped",
    "stepped",
    "unknown",
]
"""The reason why a parameter did not move, in a word."""


_ROUNDING = {16: 2.0**-8, 8: 2.0**-3}
"""Bits of a dtype -> the error of a cast to it, beside the weights: bfloat16 is the
coarsest of 16 bits, float8_e5m2 of 8.
"""


class Row(NamedTuple):
    """A tensor of one file or of both. `change` says how its values differ, `reason`
    and `cause` why it did not change.

    `damaged` says that its bytes do not match the checksums.
    """

    status: Status
    before: Entry | None
    after: Entry | None
    role: Role
    change: Change | None = None
    reason: str | None = None
    cause: Cause | None = None
    damaged: bool = False
    indices: tuple[int | None, int | None] = (None, None)
    """The index of the tensor in `Checkpoint.tensors`, before and after."""
    in_optimizer: tuple[bool | None, bool | None] = (None, None)
    """A flag: an optimizer in the file holds it, before and after. None if the file
    does not say.
    """
    parameter: str | None = None
    """The name of the parameter whose state it is, if it is known state of an
    optimizer.
    """
    labels: tuple[str, str] = ("", "")
    """The name in text, before and after: the name inside of the only model, if it lies
    in one.
    """
    kind: str = "model"
    """The kind of the section that it lies in."""
    apart: bool = False
    """A flag: the files hold other parts of it, as the files of two ranks do."""
    unread: str | None = None
    """The reason why its bytes could not be read."""
    damaged_sides: tuple[bool, bool] = (False, False)
    """A flag: the bytes of the file before, and of the file after, do not match its own
    checksum.
    """

    def __repr__(self) -> str:
        change = self.change
        if change is None:
            more = ""
        else:
            more = f": {change.differing:,} of {counted_noun(change.numel, 'element')}"
        more += (
            ""
            if change is None or change.max_abs is None
            else f", max |Δ| {change.max_abs:.3g}"
        )
        return f"<Row {self.status} {self.role.role} {show(self.name)}{more}>"

    @property
    def moved(self) -> bool:
        """Tell whether any byte of it changed, within a tolerance or not."""
        change = self.change
        return self.status in ("changed", "reshaped", "retyped") or (
            change is not None and bool(change.differing or change.other_bytes)
        )

    @property
    def is_cast(self) -> bool:
        """Tell whether a cast makes the difference of two tensors whose dtypes were not
        compared: it leaves zeros and ones as they are, and nothing was trained.
        """
        change = self.change
        if self.before is None or self.after is None or change is None:
            return False
        if self.before.tensor.dtype == self.after.tensor.dtype:
            return False
        if not change.is_finite_alike or change.rel_l2 is None:
            return False
        bits = min(self.before.tensor.dtype.bits, self.after.tensor.dtype.bits)
        return change.rel_l2 <= _ROUNDING.get(bits, 0.0)

    @property
    def name(self) -> str:
        entry = self.after or self.before
        assert entry is not None
        return entry.name

    @property
    def label(self) -> str:
        """Return the name in text: the name after, if there is one, else the name
        before.
        """
        return self.labels[1] or self.labels[0]


class Tied(NamedTuple):
    """A tensor of one file that is another name of one that both files hold: nothing
    that the other file lacks.
    """

    name: str
    of: str
    """The name of the tensor that both files hold."""
    is_before: bool
    """A flag: the first file has the name, and not the second."""


class ValueRow(NamedTuple):
    """A value that differs and is not a tensor; None on the side that lacks it."""

    status: Status
    name: str
    before: Value | None
    after: Value | None

    def __repr__(self) -> str:
        return f"<ValueRow {self.status} {show(self.name)}>"


class Pair(NamedTuple):
    """Two sections that are compared. `prefixes` are what was taken off the names of
    each side.

    `renames` are the rules that made names meet, `suggested` are those that `--sub`
    would use.
    """

    before: Section
    after: Section
    prefixes: tuple[str, str] = ("", "")
    renames: tuple[Rename, ...] = ()
    suggested: tuple[Rename, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Pair {show(self.before.name) or '(the root)'}, "
            f"{show(self.after.name) or '(the root)'}>"
        )


# --- what one side has lost -----------------------------------------------------------


def without_lost(
    rows: list[Row], values: list[ValueRow], before: Checkpoint, after: Checkpoint
) -> tuple[list[Row], list[ValueRow], list[str]]:
    """The rows without those that stand on one side because the other side has lost
    them, and what was lost.
    """
    lost: dict[str, set[str]] = {}
    said: dict[str, None] = {}
    for status, side in (("added", before), ("removed", after)):
        # A live model has all of its tensors.
        if side.traits.is_live:
            continue
        path = show(side.path, None)
        for name, why in side.account.unread:
            if name == UNREAD:
                said[f"{why} (in {path})"] = None
            else:
                said[f"{show(name, 80)} of {path} is lost: {why}"] = None
        for _, why in unlisted_parts(side):
            said[f"{why} (in {path})"] = None
        # A lost tensor of one side looks as if the other side had added it.
        lost[status] = {
            *(name for name, _ in side.account.left_out),
            *side.account.lost_names,
        }

    if not any(lost.values()):
        return rows, values, list(said)

    def is_lost(status: str, *names: str) -> bool:
        return any(name in lost.get(status, ()) for name in names)

    # A lost container takes along all that lies below its name.
    kept: list[Row] = []
    for row in rows:
        if is_lost(row.status, *names_above(row.name), *names_above(row.label)):
            side = before if row.status == "added" else after
            said[f"{show(row.name, 80)} of {show(side.path, None)} is lost"] = None
        else:
            kept.append(row)
    return (
        kept,
        [row for row in values if not is_lost(row.status, *names_above(row.name))],
        list(said),
    )


def lost_of(before: Checkpoint, after: Checkpoint) -> set[str]:
    """Return the names in `not_compared` of the parts that one side holds and the other
    side has lost.
    """
    names: set[str] = set()
    for side, other in ((before, after), (after, before)):
        names |= {f"{name} of {side.path}" for name, _ in other.account.left_out}
    return names


class Module(NamedTuple):
    """The tensors below one name. `squares` are the sum of their squared differences,
    `reference` that before.

    `squares` is NaN where a difference has no finite norm. Changes without numbers, as
    of the indices of a sparse tensor, are in `unmeasured` alone.
    """

    name: str
    tensors: int
    changed: int
    retyped: int
    unmeasured: int
    squares: float
    reference: float

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference over the norm before, or None if there is no such
        number. It may be NaN.

        There is none if the norm before is zero and something moved, or if no change
        has a norm.
        """
        if isnan(self.squares):
            return nan
        if not self.squares and self.is_unmeasured:
            return None
        # Both are sums of squares, so the root is taken of their quotient.
        if self.reference:
            return sqrt(self.squares / self.reference)
        return 0.0 if not self.squares else None

    @property
    def is_unmeasured(self) -> bool:
        """Tell whether something changed, and no change has a norm."""
        return 0 < self.unmeasured == self.changed + self.retyped


def modules(rows: Sequence[Row], depth: int | None = None) -> list[Module]:
    """The modules of the tensors that are compared by value, in file order; names cut
    to `depth` parts.
    """
    found: dict[str, list[Module]] = {}
    for row in rows:
        change = row.change
        if change is None or (row.status == "same" and change.squares is None):
            continue
        # `depth` None keeps all parts.
        name = ".".join(_module_name(row).split(".")[:depth])
        squares = change.squares
        if change.is_vague:
            squares = 0.0
        elif squares is None:
            # NaN stays NaN in any sum: the module then has no norm.
            squares = nan
        found.setdefault(name, []).append(
            Module(
                name,
                tensors=1,
                changed=int(row.status == "changed"),
                retyped=int(row.status == "retyped"),
                unmeasured=int(change.is_vague),
                squares=squares,
                reference=change.reference or 0.0,
            )
        )
    return [_merge_modules(name, inside) for name, inside in found.items()]


def _merge_modules(name: str, inside: Sequence[Module]) -> Module:
    """Return several modules as one."""
    if len(inside) == 1:
        return inside[0] if inside[0].name == name else inside[0]._replace(name=name)
    # All of its fields but the name are sums.
    sums = [sum(column) for column in list(zip(*inside, strict=True))[1:]]
    return Module(name, *sums)


class Bars(NamedTuple):
    """The modules that a screen has bars for, in file order. They stand for the `total`
    modules at `depth`.
    """

    modules: list[Module]
    depth: int
    total: int


_FEW = 4
"""Fewer bars say nothing about where the change is."""


def bars_that_fit(rows: Sequence[Row], most: int) -> Bars:
    """Return at most `most` modules: those at the deepest cut of the names that fits.

    Where these are few, the modules one part deeper stand for them: numbered siblings
    as ranges of one size, else the ones that changed most, and one for all others.
    """
    deeper = modules(rows)
    # From the deepest names on, each cut merges siblings into their parent.
    depth = max((module.name.count(".") + 1 for module in deeper), default=1)
    fit: list[Module] = []
    while len(deeper) > most and depth:
        depth -= 1
        fit = _cut_names(deeper, depth) if depth else []
        if len(fit) <= most:
            break
        deeper = fit
    else:
        return Bars(deeper, depth, len(deeper))
    # The next deeper cut would not fit, and this one fills half of the room.
    if 2 * len(fit) > most:
        return Bars(fit, depth, len(fit))
    ranges = _range_modules(deeper, most)
    if len(ranges) > most:
        if len(fit) >= _FEW:
            return Bars(fit, depth, len(fit))
        ranges = _largest_modules(ranges, most)
    return Bars(ranges, depth + 1, len(deeper))


def _cut_names(every: Sequence[Module], depth: int) -> list[Module]:
    """Return modules with their names cut to `depth` parts."""
    found: dict[str, list[Module]] = {}
    for module in every:
        found.setdefault(".".join(module.name.split(".", depth)[:depth]), []).append(
            module
        )
    return [_merge_modules(name, inside) for name, inside in found.items()]


def _range_modules(every: Sequence[Module], most: int) -> list[Module]:
    """Return modules with numbered siblings as ranges of one size, so that there are at
    most `most` if that can be.
    """
    families: dict[tuple[str, bool], list[Module]] = {}
    for module in every:
        # `layers.0` … `layers.31` are a family: (`layers.`, True).
        begin = module.name.rstrip(_DIGITS)
        # A number of many digits, such as a hash, is no count of siblings.
        is_numbered = 0 < len(module.name) - len(begin) < 10
        families.setdefault(
            (begin if is_numbered else module.name, is_numbered), []
        ).append(module)
    counts = [len(family) for family in families.values()]

    def length(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    longest = max(counts)
    sizes = range(1, longest + 1) if len(counts) <= most else ()
    least = next((size for size in sizes if length(size) <= most), longest)

    def count_faults(size: int) -> int:
        # Ranges that are all of one size read well, and so do those of 5, 10, 20 ...
        is_uneven = any(count % size for count in counts if count > size)
        is_odd = str(size).rstrip("0") not in "125"
        return is_uneven + is_odd

    size = min(range(least, min(2 * least, longest) + 1), key=count_faults)
    out: dict[int, Module] = {}
    # A range stands where its first module stood.
    places = {module.name: index for index, module in enumerate(every)}
    for (begin, _), family in families.items():
        family = sorted(family, key=lambda module: int(module.name[len(begin) :] or 0))
        for first in range(0, len(family), size):
            part = family[first : first + size]
            name = part[0].name
            if len(part) > 1:
                name += f"-{part[-1].name[len(begin) :]}"
            out[places[part[0].name]] = _merge_modules(name, part)
    return [out[place] for place in sorted(out)]


def _largest_modules(every: Sequence[Module], most: int) -> list[Module]:
    """Return the modules that changed most, in their order, and all others as the last
    one.
    """

    def weight(module: Module) -> float:
        share = module.rel_l2
        return inf if share is None or isnan(share) else share

    chosen = {
        module.name for module in sorted(every, key=weight, reverse=True)[: most - 1]
    }
    others = [module for module in every if module.name not in chosen]
    rest = _merge_modules(f"({len(others):,} others)", others)
    return [*(module for module in every if module.name in chosen), rest]


def _module_name(row: Row) -> str:
    return row.label.rpartition(".")[0]


_DIGITS = "0123456789"
_UNFOLDED = 1 << 30
"""Bytes to which a view of few may unfold and still be looked for."""
_DEPTH = 32
"""Parts of a name that are compared, from its end."""


def with_moves(rows: list[Row], executor: Executor) -> list[Row]:
    """The rows with each tensor that moved to another name as one row, at the place of
    the new name.

    Equal tensors are paired by the end of their names, the longest first; ambiguous
    ones stay unpaired. What they are is told by SHA-256, so each is read once, and no
    two must be read side by side.
    """
    gone = {
        index: row.before
        for index, row in enumerate(rows)
        if row.status == "removed" and row.before
    }
    come = {
        index: row.after
        for index, row in enumerate(rows)
        if row.status == "added" and row.after
    }
    gone, come = _movable_entries(gone), _movable_entries(come)
    # Only tensors with a twin in dtype, shape and layout are read.
    shapes = {_tensor_geometry(entry.tensor) for entry in gone.values()}
    shapes &= {_tensor_geometry(entry.tensor) for entry in come.values()}
    if not shapes:
        return rows
    gone = {
        index: entry
        for index, entry in gone.items()
        if _tensor_geometry(entry.tensor) in shapes
    }
    come = {
        index: entry
        for index, entry in come.items()
        if _tensor_geometry(entry.tensor) in shapes
    }
    every = gone | come
    content, unread = _content_keys(
        {index: unwrap_dtensor(entry.tensor) for index, entry in every.items()},
        executor,
    )
    # A tensor that cannot be read is said, and not paired.
    rows = [
        row._replace(unread=unread[index]) if index in unread else row
        for index, row in enumerate(rows)
    ]
    gone = {index: entry for index, entry in gone.items() if index in content}
    come = {index: entry for index, entry in come.items() if index in content}
    pairs: list[tuple[int, int]] = []
    deepest = max(entry.name.count(".") + 1 for entry in every.values())
    # The longest common end of the names first; at 0 the content alone decides.
    for depth in range(min(deepest, _DEPTH), -1, -1):

        def key(index: int, depth: int = depth) -> Hashable:
            return content[index], _name_end(every[index].name, depth)

        for old, new in _unique_pairs(gone, come, key):
            pairs.append((old, new))
            del gone[old], come[new]
    moves = {new: old for old, new in pairs}
    # The row of the old name goes into the row of the new one.
    dropped = set(moves.values())
    return [
        _renamed_row(rows[moves[index]], row) if index in moves else row
        for index, row in enumerate(rows)
        if index not in dropped
    ]


def _renamed_row(old: Row, new: Row) -> Row:
    labels, indices = (old.labels[0], new.labels[1]), (old.indices[0], new.indices[1])
    held = old.in_optimizer[0], new.in_optimizer[1]
    return new._replace(
        status="renamed",
        before=old.before,
        labels=labels,
        indices=indices,
        in_optimizer=held,
    )


def _movable_entries(entries: dict[int, Entry]) -> dict[int, Entry]:
    """Those with elements to look for."""
    return {index: entry for index, entry in entries.items() if _can_move(entry)}


def _unique_pairs(
    gone: Iterable[int], come: Iterable[int], key_of: Callable[[int], Hashable]
) -> list[tuple[int, int]]:
    """The pairs of one row of each side that alone have a key."""
    gone_by_key: dict[Hashable, list[int]] = {}
    for index in gone:
        gone_by_key.setdefault(key_of(index), []).append(index)
    # Two equal tensors with one key could be exchanged, so none of them is paired.
    come_by_key: dict[Hashable, list[int]] = {}
    for index in come:
        come_by_key.setdefault(key_of(index), []).append(index)
    pairs = []
    for key, old in gone_by_key.items():
        new = come_by_key.get(key, [])
        if len(old) == 1 and len(new) == 1:
            pairs.append((old[0], new[0]))
    return pairs


def _name_end(name: str, depth: int) -> str:
    """The last `depth` parts of a name."""
    return ".".join(name.split(".")[-depth:]) if depth else ""


def _can_move(entry: Entry) -> bool:
    return bool(entry.tensor.numel) and all(
        part.storage.place is not None
        and part.nbytes <= max(part.storage.nbytes, _UNFOLDED)
        for part in parts_of(entry.tensor)
    )


def _tensor_geometry(tensor: Tensor) -> tuple[Hashable, ...]:
    tensor = unwrap_dtensor(tensor)
    return (tensor.dtype, tensor.shape, tensor.layout)


def _content_keys(
    tensors: dict[int, Tensor], executor: Executor
) -> tuple[dict[int, Hashable], dict[int, str]]:
    """Read the contents of tensors as keys that are equal for equal tensors, and why
    some cannot be read.
    """
    # Here: only names of one side alone may belong together.
    from ckpt.commands.sum.sums import digest

    alike: dict[Hashable, list[TensorRef]] = {}
    for tensor in tensors.values():
        if isinstance(tensor, TensorRef):
            alike.setdefault(_tensor_geometry(tensor), []).append(tensor)
    # One cut for all that may be equal.
    spans = {geometry: cut_spans(*refs) for geometry, refs in alike.items()}
    tasks: dict[int, list[Task[str]]] = {}
    for index, tensor in tensors.items():
        if isinstance(tensor, TensorRef):
            parts = [
                slice_of(tensor, first, last)
                for first, last in spans[_tensor_geometry(tensor)]
            ]
            tasks[index] = [Task(digest, (part,), part.nbytes) for part in parts]
        else:
            tasks[index] = [Task(digest, (tensor,), tensor.nbytes)]
    # In the order of the tasks: each tensor takes as many results as it has tasks.
    results = iter(run_each(executor, list(chain.from_iterable(tasks.values()))))
    found: dict[int, Hashable] = {}
    unread: dict[int, str] = {}
    for index, tensor in tensors.items():
        digests: list[str] = []
        for result in [next(results) for _ in tasks[index]]:
            if isinstance(result, Failed):
                unread.setdefault(index, result.problem)
            else:
                digests.append(result)
        if index not in unread:
            found[index] = (*_tensor_geometry(tensor), _tensor_detail(tensor), *digests)
    return found, unread


def _tensor_detail(tensor: Tensor) -> Hashable:
    """Return what the bytes of a tensor mean, beyond its dtype."""
    return kind_of(tensor) if isinstance(tensor, Composite) else None
