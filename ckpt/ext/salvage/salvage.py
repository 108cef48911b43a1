"""`ckpt salvage`: the whole tensors of a checkpoint that is cut off, damaged or
incomplete, and others from another save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.filling import Filling, Restored, lies_close
from ckpt.commands.rewriting.report import (
    Change,
    Filled,
    Leftover,
    RewriteReport,
    Share,
)
from ckpt.commands.rewriting.sets import NOT_WHOLE, without_lost
from ckpt.elements.audit import DAMAGED
from ckpt.elements.blocks import memory_order, permute_dims
from ckpt.elements.computed import place_of
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import LossError
from ckpt.model.findings import LOST
from ckpt.model.limits import Limits
from ckpt.model.nodes import dict_of
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import TensorRef, parts_of
from ckpt.model.text import counted_noun, show
from ckpt.pickle.branches import Branches, with_lists
from ckpt.pickle.state_dict import without_gradient
from ckpt.tree.find import find_nodes, node_at


def salvage(
    survey: Survey,
    limits: Limits,
    *,
    damaged: Mapping[str, str] | None = None,
    keep_damaged: bool = False,
    other: Survey | None = None,
) -> RewriteReport:
    """The checkpoint without what is not whole. `survey` is of what its reader found
    left of it.

    `damaged` are further tensors that are not whole, and why; with `keep_damaged`,
    those are kept that only contradict their checksum. Lost tensors and values are
    taken from `other`, where they have the same name, shape and dtype. Raises LossError
    where no tensor is whole.
    """
    checkpoint = survey.checkpoint
    # `damaged` is what `verify` found in the bytes, which the reader has not looked at.
    found = dict(damaged or {})
    kept = {name: why for name, why in found.items() if keep_damaged and why == DAMAGED}
    # Reasons by name: tensors that the reader lost, then those that are damaged.
    whys = dict.fromkeys(checkpoint.account.lost_names, NOT_WHOLE)
    whys |= {name: why for name, why in found.items() if name not in kept}
    values = dict(checkpoint.account.left_out)
    # A lost tensor may have no place in the tree any more: it counts all the same.
    gone = whys.keys() - {entry.name for entry in checkpoint.tensors}
    count = len(checkpoint.tensors) + len(gone)
    current = checkpoint
    fills: tuple[Filled, ...] = ()
    if other is not None and (whys or values):
        current, whys, values, fills = _fill_losses(
            checkpoint, other.checkpoint, whys, values, limits
        )
    # Lost tensors go last, once they were sought in the other save.
    result, rows = without_lost(current, whys, limits)
    if rows:
        # The other precision may have what is lost.
        result = replace(result, copies=())
    is_damaged = checkpoint.account.is_damaged
    # Code whose tensors are missing cannot run: the rest is a state dict.
    if checkpoint.traits.names_are_code and (rows or is_damaged):
        result = _state_dict(result, limits)
    rows += tuple(Leftover(name, why) for name, why in values.items())
    taken = {name for row in fills for name in row.names}
    own = [
        entry
        for entry in result.tensors
        if entry.name not in taken and entry.name not in kept
    ]
    nbytes = sum(entry.tensor.nbytes for entry in own)
    sizes = [row.nbytes for row in rows if row.name not in values]
    sizes += [row.nbytes for row in fills]
    sizes += [entry.tensor.nbytes for entry in result.tensors if entry.name in kept]
    # The size of a tensor that has no place in the tree is not known: then there is no
    # share of the bytes.
    of_bytes = None
    if None not in sizes:
        of_bytes = nbytes + sum(size or 0 for size in sizes)
    changes = [
        Change(
            "filled",
            f"filled from {row.path}",
            None,
            len(row.names),
            row.unit,
            row.nbytes,
        )
        for row in fills
    ]
    return RewriteReport(
        "salvage",
        checkpoint,
        result,
        tuple(changes),
        unchanged_bytes=not fills,
        nothing="",
        left_alone=tuple(Leftover(name, f"{why}, kept") for name, why in kept.items()),
        is_partial=bool(rows or kept) or is_damaged,
        share=Share(
            len(own),
            count,
            nbytes,
            of_bytes,
            _damage_reasons(checkpoint, sum(why == DAMAGED for why in whys.values())),
        ),
        lost=rows,
        filled=fills,
    )


_REASONS = (*LOST, "damaged-file", "ranks-differ")


def _damage_reasons(checkpoint: Checkpoint, damaged: int) -> tuple[str, ...]:
    """The damage that the reader noticed, and the number of tensors that are `damaged`
    beside it.
    """
    rows = checkpoint.account.messages(_REASONS)
    # A file that no reader takes, and nothing of it is lost.
    if not rows and checkpoint.is_edited:
        rows = [notice.message for notice in checkpoint.account.notices[-1:]]
    if damaged:
        verb = "does not match its" if damaged == 1 else "do not match their"
        rows.append(
            f"{counted_noun(damaged, 'tensor')} {verb} recorded checksum "
            "(--keep-damaged takes them)"
        )
    return tuple(rows)


class _Taken(NamedTuple):
    """A lost tensor of the checkpoint, or None where it has no place in the tree, and
    its namesake in the other save.
    """

    mine: Entry | None
    theirs: Entry


def _fill_losses(
    checkpoint: Checkpoint,
    other: Checkpoint,
    whys: Mapping[str, str],
    values: Mapping[str, str],
    limits: Limits,
) -> tuple[Checkpoint, dict[str, str], dict[str, str], tuple[Filled, ...]]:
    """Return the checkpoint with what the other save has of what is lost, the rest of
    both lists, and what was taken.

    Raises LossError where the other save has none of it.
    """
    own = {entry.name: entry for entry in checkpoint.tensors}
    theirs = {entry.name: entry for entry in other.tensors}
    rest = dict(whys)
    taken: list[_Taken] = []
    for name in whys:
        mine, namesake = own.get(name), theirs.get(name)
        why = _misfit_reason(mine, namesake, other.path)
        if why is None and namesake is not None:
            taken.append(_Taken(mine, namesake))
            del rest[name]
        else:
            rest[name] = f"{whys[name]}, and {why}"
    # Tensors with a place in the tree keep it, and get the bytes of their namesakes.
    # The others become new branches below.
    root = Restored(_make_filling(taken).storage).copy(checkpoint.root)
    names = [pair.theirs.name for pair in taken]
    tree = Branches(root)
    for pair in taken:
        if pair.mine is None:
            tree.put(pair.theirs.path, pair.theirs.tensor)
    lost_values = dict(values)
    # A value has its place only if the other save has exactly one of this name.
    for name in values:
        matches = find_nodes(other.root, name, limits)
        if len(matches) == 1 and tree.put(*matches[0]):
            del lost_values[name]
            names.append(name)
    if not names:
        first = next(iter(rest or values))
        problem = (
            f"{show(other.path, 80)} has nothing of what is lost: {show(first, 80)}: "
            f"{(rest or values)[first]}"
        )
        raise LossError(problem, path=checkpoint.path)
    nbytes = sum(pair.theirs.tensor.nbytes for pair in taken)
    # A distributed checkpoint has whole numbers as keys where a list lost an item, and
    # nowhere else.
    whole = edited_checkpoint(
        checkpoint,
        with_lists(root) if checkpoint.traits.fills_a_state else root,
        limits,
    )
    fills = (Filled(other.path, tuple(names), nbytes, len(names) > len(taken)),)
    return (
        replace(whole, sources=(*whole.sources, *other.sources)),
        rest,
        lost_values,
        fills,
    )


def _misfit_reason(mine: Entry | None, theirs: Entry | None, path: str) -> str | None:
    """Return why a tensor of the other save does not take the place of a lost one, or
    None.
    """
    where = show(path, 60)
    if theirs is None:
        return f"not in {where}"
    # Without a tensor to compare with, the name alone decides.
    if mine is None:
        return None
    one, two = mine.tensor, theirs.tensor
    if one.dtype != two.dtype:
        return f"{two.dtype.name} in {where}, not {one.dtype.name}"
    if one.shape != two.shape:
        return f"{list(two.shape)} in {where}, not {list(one.shape)}"
    parts = (parts_of(one), parts_of(two))
    alike = one.layout == two.layout and len(parts[0]) == len(parts[1])
    # A tensor on meta has a shape and no bytes.
    if any(part.numel and part.storage.place is None for part in parts[1]):
        return f"without data in {where}"
    # A conjugate or a transposed view would need another order of the bytes.
    if any(part.conj or part.neg or not lies_close(part) for part in parts[0]):
        return "not contiguous, which is not filled"
    if isinstance(one, TensorRef) and isinstance(two, TensorRef):
        return None
    if not alike or not one.layout.startswith("sparse"):
        return f"{one.layout}, which is not filled"
    same = all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(*parts, strict=True)
    )
    return None if same else f"of other parts in {where}"


def _make_filling(taken: Iterable[_Taken]) -> Filling:
    """The bytes of lost tensors, each part from its namesake."""
    filling = Filling()
    for own, namesake in taken:
        if own is None:
            continue
        for mine, theirs in zip(
            parts_of(own.tensor), parts_of(namesake.tensor), strict=True
        ):
            if mine.numel:
                # The namesake's bytes are read in the order in which the lost tensor
                # lies in memory.
                filling.put(mine, place_of(permute_dims(theirs, memory_order(mine))))
    return filling


def _state_dict(checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
    """The tensors of a program by their names, as a plain dict: its code goes with all
    of them.
    """
    root = dict_of(
        (entry.name, without_gradient(node_at(checkpoint.root, entry.path)))
        for entry in checkpoint.tensors
    )
    traits = checkpoint.traits._replace(names_are_code=False, tags_are_apart=False)
    return edited_checkpoint(checkpoint, root, limits, traits=traits, origin=None)
