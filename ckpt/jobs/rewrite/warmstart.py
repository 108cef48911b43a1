"""`ckpt warmstart`: the values of a pretrained model in another one: planned by name, reported, written as bytes.

What is written keeps the target's structure, order, dtypes, devices and `_metadata`; nothing is guessed by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements.blocks import elements, is_dense, little, memory_order, permuted, place_of, same_bytes
from ckpt.elements.cast import can_cast
from ckpt.errors import UsageError
from ckpt.evidence.alignment import Alignment, in_turn, paired
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.jobs.rewrite.report import (
    Change,
    Coverage,
    Leftover,
    Pairing,
    RewriteReport,
    edited,
    refuse_script,
    with_ties,
)
from ckpt.limits import Limits
from ckpt.nodes import Dict, Node, Opaque, tensor_of
from ckpt.pickles.edit import Edit
from ckpt.rows import NamedTuple
from ckpt.tensors import Overlaid, Patched, Place, Storage, TensorRef, noted
from ckpt.text import and_more, show


class Options(NamedTuple):
    """The options of a warm start. `mismatch` says what becomes of a tensor that has another shape.

    `rules` rename the tensors of the pretrained model. Without `align` names are compared as they are.
    """

    mismatch: Literal["keep", "slice", "error"] = "keep"
    rules: Sequence[Callable[[str], str]] = ()
    section: str | None = None
    into_section: str | None = None
    align: bool = True


def warmstart(given: Survey, wanted: Survey, limits: Limits, options: Options | None = None) -> RewriteReport:
    """The target with the values of the pretrained model where names and shapes agree, and the report of it.

    Raises UsageError when a section is not there, when two names would become one, or for a tensor of another shape
    where that is an error.
    """
    options = options or Options()
    source = wanted.checkpoint
    refuse_script(source)
    given, wanted = with_ties(given, limits), with_ties(wanted, limits)
    pretrained, target = given.checkpoint, wanted.checkpoint
    theirs = given.only_model(options.section)
    mine = wanted.only_model(options.into_section, "--into-section")
    coverage = _plan(pretrained, theirs, target, mine, options)
    wrong = [row for row in coverage.of("kept") if row.source is not None]
    if options.mismatch == "error" and wrong:
        listed = and_more([f"{show(row.name, 60)}: {row.why}" for row in wrong], 5, "; ")
        raise UsageError(f"does not fit: {listed}", path=pretrained.path, hint="--on-mismatch keep or slice")
    taken = coverage.of("loaded", "cast", "sliced")
    result = _result(target, mine, taken, limits) if taken or target.traits.is_live else target
    changes = [
        Change(
            kind,
            label,
            None,
            len(rows),
            "tensor",
            sum(row.target.tensor.nbytes for row in rows if row.target),
        )
        for kind, label in (("loaded", "loaded"), ("cast", "cast"), ("sliced", "in part"))
        if (rows := coverage.of(kind))  # type: ignore[arg-type]
    ]
    here = {entry.name for entry in result.tensors}
    lost = [entry for entry in target.tensors if target.traits.is_live and entry.name not in here]
    odd = [Leftover(name, why) for name, why in target.left_out]
    return RewriteReport(
        "warmstart",
        source,
        result,
        tuple(changes),
        tuple(Leftover(entry.name, "has no value", None, "--init initializes the model") for entry in lost)
        + tuple(odd),
        unchanged_bytes=False,
        nothing="nothing to load",
        coverage=coverage,
    )


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan(
    pretrained: Checkpoint, theirs: Section, target: Checkpoint, mine: Section, options: Options
) -> Coverage:
    sides = (
        Alignment(theirs, pretrained.path, in_turn(options.rules), _is_saved),
        Alignment(mine, target.path, keep=_is_saved),
    )
    names = paired(*sides, align=options.align, suggest=not options.rules)
    given, wanted = _entries(pretrained, names.one), _entries(target, names.two)
    rows = []
    for name, entry in wanted.items():
        partner = names.partners.get(name)
        if partner is None:
            rows.append(Pairing("missing", name, entry, None))
        else:
            rows.append(_pairing(name, entry, given[partner], options, target.traits.is_live))
    taken = set(names.partners.values())
    rows += [Pairing("unexpected", name, None, entry) for name, entry in given.items() if name not in taken]
    rows = _with_ties(rows)
    return Coverage(
        tuple(rows), pretrained.path, names.prefixes, tuple(_shared(rows)), names.component, names.suggested
    )


def _is_saved(entry: Entry) -> bool:
    """Tell whether a state dict holds the tensor."""
    return entry.registered and entry.persistent


def _entries(checkpoint: Checkpoint, indices: dict[str, int]) -> dict[str, Entry]:
    return {name: checkpoint.tensors[index] for name, index in indices.items()}


def _pairing(name: str, target: Entry, source: Entry, options: Options, is_live: bool) -> Pairing:
    """Decide what becomes of a tensor of the target that has a namesake."""
    mine, other = target.tensor, source.tensor
    for side, entry in (("the pretrained", source), ("the target's", target)):
        tensor = entry.tensor
        if not isinstance(tensor, TensorRef):
            return Pairing("kept", name, target, source, why=f"{side} tensor is {tensor.layout}")
    assert isinstance(mine, TensorRef) and isinstance(other, TensorRef)
    if other.numel and other.storage.place is None:
        return Pairing("kept", name, target, source, why="the pretrained tensor is on meta, without data")
    if mine.numel and mine.storage.place is None and not is_live:
        return Pairing("kept", name, target, source, why="the target's tensor is on meta, without data")
    if mine.numel and (mine.conj or mine.neg or not _lies_close(mine)):
        return Pairing("kept", name, target, source, why="the target's tensor is not contiguous")
    if mine.dtype != other.dtype and not can_cast(other.dtype, mine.dtype):
        return Pairing(
            "kept", name, target, source, why=f"ckpt does not cast {other.dtype.name} to {mine.dtype.name}"
        )
    if mine.shape == other.shape:
        return Pairing("loaded" if mine.dtype == other.dtype else "cast", name, target, source, mine.numel)
    shapes = f"{list(other.shape)} → {list(mine.shape)}"
    if options.mismatch == "slice" and len(mine.shape) == len(other.shape) and mine.storage.place is not None:
        copied = 1
        for one, two in zip(mine.shape, other.shape, strict=True):
            copied *= min(one, two)
        if copied and mine.dtype.bits >= 8:
            return Pairing("sliced", name, target, source, copied, shapes)
    return Pairing("kept", name, target, source, why=shapes)


def _with_ties(rows: list[Pairing]) -> list[Pairing]:
    """The rows, those tied that get their values under another name: they look at the same memory."""
    loaded: dict[tuple[object, ...], Pairing] = {}
    for row in rows:
        if row.status in ("loaded", "cast", "sliced"):
            loaded.setdefault(_memory(row), row)
    out = []
    for row in rows:
        twin = loaded.get(_memory(row)) if row.status in ("missing", "kept") else None
        if twin is not None and row.target is not None and _memory(row):
            why = f"tied to {twin.name}"
            row = row._replace(status="tied", copied=min(twin.copied, row.target.tensor.numel), why=why)
        out.append(row)
    return out


def _memory(row: Pairing) -> tuple[object, ...]:
    """The memory that a tensor of the target looks at: equal of those that are tied."""
    ref = row.target.tensor if row.target is not None else None
    return (ref.storage, ref.extent) if isinstance(ref, TensorRef) and ref.numel else ()


def _shared(rows: Sequence[Pairing]) -> list[str]:
    """Tensors that share memory in the target and get values of their own: the last one wins, as in load_state_dict."""
    notes = []
    before: dict[Storage, list[Pairing]] = {}
    for row in rows:
        ref = row.target.tensor if row.target is not None else None
        if row.status not in ("loaded", "cast", "sliced") or not isinstance(ref, TensorRef) or not ref.numel:
            continue
        for first in before.setdefault(ref.storage, []):
            other = first.target.tensor if first.target is not None else None
            assert isinstance(other, TensorRef)
            if (
                other.extent[0] < ref.extent[1]
                and ref.extent[0] < other.extent[1]
                and not _same_values(first, row)
            ):
                what = "are tied" if other.extent == ref.extent else "share memory in part"
                notes.append(
                    f"{show(first.name, 60)} and {show(row.name, 60)} {what} in the target; the second one wins."
                )
        before[ref.storage].append(row)
    return notes


def _same_values(one: Pairing, two: Pairing) -> bool:
    """Tell whether two tensors of one memory get the same bytes."""
    if (
        one.source is None
        or two.source is None
        or "sliced" in (one.status, two.status)
        or _memory(one) != _memory(two)
    ):
        return False
    first, second = one.source.tensor, two.source.tensor
    assert isinstance(first, TensorRef) and isinstance(second, TensorRef)
    alike = first.shape == second.shape and first.dtype == second.dtype
    return alike and same_bytes(elements(first), elements(second))


# --- the result -------------------------------------------------------------------------------------------------------


def _lies_close(ref: TensorRef) -> bool:
    """Tell whether the elements fill a range of the storage, in whatever order."""
    return is_dense(permuted(ref, memory_order(ref)))


def _content(row: Pairing, mine: TensorRef, other: TensorRef) -> Place:
    """The bytes that a tensor of the target gets, in the order in which they lie there."""
    order = memory_order(mine)
    if row.status == "sliced":
        return Overlaid(permuted(mine, order), permuted(other, order))
    return place_of(permuted(other, order), mine.dtype)


def _storages(taken: Sequence[Pairing]) -> dict[Storage, Storage]:
    """The storages of the target that change, by the old one; in order, as load_state_dict copies."""
    pieces: dict[Storage, list[tuple[int, Place]]] = {}
    made: dict[Storage, Storage] = {}
    for row in taken:
        assert row.target is not None and row.source is not None
        mine, other = row.target.tensor, row.source.tensor
        assert isinstance(mine, TensorRef) and isinstance(other, TensorRef)
        if not mine.numel:
            continue
        old = mine.storage
        found = pieces.setdefault(old, [])
        # A block is put over what is there by then.
        place = _content(row, mine._replace(storage=made.get(old, old)), other)
        found.append((mine.extent[0], place))
        device = "cpu" if old.device == "meta" else old.device
        if mine.extent[0] == 0 and place.size == old.nbytes:
            new = old._replace(place=place, crc=None, device=device)
        else:
            patched = Patched(noted(little(old)), old.nbytes, found)
            new = old._replace(place=patched, crc=None, device=device)
        made[old] = new
    return made


def _result(target: Checkpoint, mine: Section, taken: Sequence[Pairing], limits: Limits) -> Checkpoint:
    made = _storages(taken)
    if target.traits.is_live:
        return _from_live(target, made, limits)
    if not target.traits.is_pickle and type(target.root) is Dict:
        root = Dict()
        root.set(target.root.keys, [_over(node, made) for node in target.root.values])
        return edited(target, root, limits)
    return edited(target, _Fill(made).copy(target.root), limits)


def _over(node: Node, made: dict[Storage, Storage]) -> Node:
    """A tensor over the storage that takes the place of its own."""
    return _moved(node, made) if type(node) is TensorRef else node


def _moved(ref: TensorRef, made: dict[Storage, Storage]) -> TensorRef:
    return ref._replace(storage=made[ref.storage]) if ref.storage in made else ref


class _Fill(Edit):
    """Storages with other bytes."""

    def __init__(self, made: dict[Storage, Storage]) -> None:
        super().__init__()
        self._made = made

    def storage(self, storage: Storage) -> Storage:
        return self._made.get(storage, storage)


def _from_live(target: Checkpoint, made: dict[Storage, Storage], limits: Limits) -> Checkpoint:
    """The state dict of a live model: of one without memory (on meta) only what was loaded."""
    old = target.root
    assert type(old) is Opaque
    state = Opaque(old.how, old.func, old.args, None, old.offset)
    for key, node in zip(old.keys, old.values, strict=True):
        ref = tensor_of(node)
        if isinstance(ref, TensorRef):
            new = _moved(ref, made)
            if new.storage.place is None and ref.numel:
                continue
            node = new._replace(storage=new.storage)
        state.set([key], [node])
    for each in old.states:
        state.build(each)
    return edited(target, state, limits, traits=target.traits._replace(is_live=False))
