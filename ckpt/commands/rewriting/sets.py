"""A checkpoint in several files: the files that a command changes, the names that a
state dict cannot be put together from, and what is left of an incomplete one: its whole
tensors and the values that were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from itertools import accumulate
from typing import TYPE_CHECKING

from ckpt.bytes.source import Zeros
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.filling import Restored
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.elements.computed import lacks_bytes
from ckpt.evidence.optimizers import LOST_STATE
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import LossError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Path
from ckpt.model.nodes import (
    Dict,
    Node,
    Opaque,
    PersistentId,
    Set,
    dict_of,
    tensor_of,
)
from ckpt.model.places import Patched, Place, Range
from ckpt.model.rows import replace
from ckpt.model.tensors import Composite, Storage, Tensor, parts_of
from ckpt.model.text import and_more, counted_noun, show, show_name
from ckpt.pickle.edit import DROPPED, Edit
from ckpt.tree.find import node_at, without_keys

if TYPE_CHECKING:
    from ckpt.commands.sum.sums import Likeness
from ckpt.tree.view import look
from ckpt.tree.walk import parts_of as leaves_of


def without_copies(report: RewriteReport, limits: Limits) -> RewriteReport:
    """The report without weights that the result holds a second time, in another
    precision.
    """
    result = report.result
    gone = [
        key
        for key in result.copies
        if type(result.root) is Dict and key in result.root.keys
    ]
    if not gone:
        return report
    rows = [Leftover(str(key), "the weights in another precision") for key in gone]
    whole = replace(
        edited_checkpoint(result, without_keys(result.root, gone), limits), copies=()
    )
    return report._replace(result=whole, left_out=(*report.left_out, *rows))


def refuse_incomplete(
    checkpoint: Checkpoint, section: str | None = None, option: str = ""
) -> None:
    """Raise LossError where weights to be written are missing. `option` chooses others
    that are whole.

    Of a distributed checkpoint each tensor says by itself what it lacks, when its bytes
    are read.
    """
    if checkpoint.traits.fills_a_state:
        return
    # A copy of the weights in another precision may be whole.
    losses = checkpoint.account.messages(("incomplete",))
    if not losses or section in checkpoint.copies:
        return
    hint = f"{option} {checkpoint.copies[0]}" if checkpoint.copies and option else None
    raise LossError(losses[0], path=checkpoint.path, hint=hint)


def refuse_ranks(checkpoint: Checkpoint, section: str | None) -> None:
    """Raise UsageError for files of ranks that stand side by side: nothing in them says
    how they make a whole.
    """
    if not checkpoint.traits.is_set or not checkpoint.members or section is not None:
        return
    files = [
        show(member.file, 80)
        for member in checkpoint.members
        if member.checkpoint.tensors
    ]
    raise UsageError(
        (
            f"{len(files)} files of ranks, each with a part of the model; ckpt does "
            "not merge them"
        ),
        path=checkpoint.path,
        hint=f"name one: {and_more(files, 4, ', or ')}",
    )


def weights_file(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint of the weights in a folder, as it is read alone; any other
    checkpoint as it is.

    A merge of all files would be one that no framework loads. Raises UsageError where
    several files hold weights.
    """
    members = [member for member in checkpoint.members if member.checkpoint.tensors]
    # Without a file of weights, whatever holds tensors.
    models = [member for member in members if member.is_model] or members
    if not models:
        return checkpoint
    if len(models) > 1:
        names = and_more([show(member.file, 80) for member in models], 8, ", or ")
        raise UsageError(
            f"{len(models)} files of this folder hold tensors",
            path=checkpoint.path,
            hint=f"name one: {names}",
        )
    return models[0].checkpoint


def with_files(report: RewriteReport, folder: Checkpoint) -> RewriteReport:
    """The report with the files of a folder that are not in the result."""
    if report.source is folder or not folder.members:
        return report
    rows = [
        Leftover(member.file, "a file of the folder", member.checkpoint.nbytes)
        for member in folder.members
        if member.checkpoint is not report.source
    ]
    return report._replace(left_out=(*report.left_out, *rows))


ROOT = "(the root)"


def with_flattening(
    report: RewriteReport, ranks: int | None, limits: Limits
) -> RewriteReport:
    """The report with the files of so many ranks, where their number is asked for, and
    with what is lost where dicts are taken apart.

    Raises LimitError.
    """
    # Here: only what is written as a folder of ranks takes dicts apart.
    from ckpt.commands.rewriting.names import ATTRIBUTE, attributes_left

    root = report.result.root
    # All of it was taken apart before.
    if report.source.traits.is_folder:
        if ranks is None:
            return report
        files = counted_noun(len(report.source.parts), "file")
        tensors = len(report.result.tensors)
        ranked = Change("ranks", files, counted_noun(ranks, "rank"), tensors, "tensor")
        return report._replace(changes=(*report.changes, ranked))
    if look(root).kind != "mapping":
        return report
    parts = leaves_of(root, limits)
    changes = [
        Change("keys", "numbers", "text", number, "key", section=name or ROOT)
        for name, number in parts.texts.items()
    ]
    leftovers = [Leftover(name, "an empty dict") for name in parts.empty]
    for name in parts.versions:
        metadata = f"{name}._metadata" if name else "_metadata"
        leftovers.append(Leftover(metadata, "the versions of modules"))
    leftovers += attributes_left(root)
    # A leaf that is no tensor is saved as one object, with the tensors inside of it.
    objects = {
        tuple(map(str, leaf.path))
        for leaf in parts.leaves
        if tensor_of(leaf.node) is None
    }
    lost = []
    for entry in report.result.tensors:
        # The path of each container around the tensor, and its own.
        above = accumulate((str(step),) for step in entry.path)
        if not entry.registered and objects.isdisjoint(above):
            lost.append(entry)
    leftovers += [
        Leftover(entry.name, ATTRIBUTE, entry.tensor.nbytes) for entry in lost
    ]
    # The tensors that are lost do not count as converted.
    before = [
        change._replace(number=change.number - len(lost))
        if change.kind == "format"
        else change
        for change in report.changes
    ]
    alone = [Leftover(name, "a tuple, which stays one object") for name in parts.tuples]
    return report._replace(
        changes=(*before, *changes),
        left_out=(*report.left_out, *leftovers),
        left_alone=(*report.left_alone, *alone),
    )


def refuse_lost(checkpoint: Checkpoint) -> None:
    """Raise LossError where values of a distributed checkpoint are missing, which a
    copy of all of it would lack.
    """
    left_out = checkpoint.account.left_out
    if left_out and checkpoint.traits.fills_a_state:
        rows = [f"{show_name(name, 60)} ({show(why, 100)})" for name, why in left_out]
        problem = (
            f"{counted_noun(len(left_out), 'value')} missing: {and_more(rows, 3, '; ')}"
        )
        raise LossError(problem, path=checkpoint.path)


def whole_part(
    checkpoint: Checkpoint, limits: Limits, like: Likeness | None = None
) -> tuple[Checkpoint, tuple[Leftover, ...]]:
    """The checkpoint without the tensors of which a part is missing, and what is
    missing; also by another save.

    Raises LossError where no tensor is whole.
    """
    # The reason why each tensor is left out.
    whys = dict.fromkeys(checkpoint.account.lost_names, NOT_WHOLE)
    if like is not None:
        other = show(like.path, 60)
        whys |= dict.fromkeys(like.reshaped, f"another shape than in {other}")
        whys |= {name: f"only in {other}" for name in like.missing if name not in whys}
    whole, rows = without_lost(checkpoint, whys, limits)
    return whole, (
        *rows,
        *(Leftover(name, why) for name, why in checkpoint.account.left_out),
    )


NOT_WHOLE = "not whole"


def without_lost(
    checkpoint: Checkpoint, whys: Mapping[str, str], limits: Limits
) -> tuple[Checkpoint, tuple[Leftover, ...]]:
    """The checkpoint without the tensors of these names, and a row for each with its
    reason.

    So is a tensor that lacks bytes, whatever its reader noticed. One that is whole
    under another name stays. A storage of which the end is missing becomes as long as
    its views need. Raises LossError where no tensor is left.
    """
    whys = dict(whys)
    for entry in checkpoint.tensors:
        if entry.name not in whys and any(map(lacks_bytes, parts_of(entry.tensor))):
            whys[entry.name] = NOT_WHOLE
    # One tensor may go by two names, of which one alone was noticed.
    alive = {id(entry.tensor) for entry in checkpoint.tensors if entry.name not in whys}
    gone = [
        entry
        for entry in checkpoint.tensors
        if entry.name in whys and id(entry.tensor) not in alive
    ]
    for entry in checkpoint.tensors:
        if id(entry.tensor) in alive:
            whys.pop(entry.name, None)
    if gone and len(gone) == len(checkpoint.tensors):
        problem = f"none of {counted_noun(len(gone), 'tensor')} is whole"
        raise LossError(problem, path=checkpoint.path)
    rows = [
        Leftover(entry.name, whys[entry.name], entry.tensor.nbytes) for entry in gone
    ]
    listed = {entry.name for entry in gone}
    rows += [Leftover(name, why) for name, why in whys.items() if name not in listed]
    whole = checkpoint
    if gone:
        root = _Without(entry.tensor for entry in gone).copy(checkpoint.root)
        _note_lost_state(checkpoint, root, gone)
        whole = edited_checkpoint(
            checkpoint, root, limits, origin=None if checkpoint.source else "same"
        )
    whole = _mend_storages(whole, limits)
    return replace(whole, account=checkpoint.account.without_losses()), tuple(rows)


def _note_lost_state(checkpoint: Checkpoint, root: Node, gone: Iterable[Entry]) -> None:
    """Note in each optimizer of a tree the parameters of which state is gone: they had
    a gradient, and look as if they had none.
    """
    paths = {
        section.path
        for section in Survey(checkpoint).sections
        if section.kind == "optimizer"
    }
    lost: dict[Path, dict[str | int, None]] = {}
    for entry in gone:
        # `(*optimizer, "state", key, field)`: the key of the parameter follows `state`.
        for depth in range(len(entry.path) - 2):
            if entry.path[:depth] in paths and entry.path[depth] == "state":
                lost.setdefault(entry.path[:depth], {})[entry.path[depth + 1]] = None
    for path, keys in lost.items():
        node = node_at(root, path)
        if isinstance(node, (Dict, Opaque)):
            node.set([LOST_STATE], [list(keys)])


def _mend_storages(checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
    """The checkpoint whose storages hold no missing bytes: they are as long as their
    views need, and zero where none looks.
    """
    # The last byte of each storage that any tensor sees.
    ends: dict[Storage, int] = {}
    for entry in checkpoint.tensors:
        for part in parts_of(entry.tensor):
            ends[part.storage] = max(part.extent[1], ends.get(part.storage, 0))
    made: dict[Storage, Storage] = {}
    for storage, end in ends.items():
        shorter = _shorten_storage(storage, end)
        if shorter is not storage:
            made[storage] = shorter
    if not made:
        return checkpoint
    return edited_checkpoint(
        checkpoint,
        Restored(lambda old: made.get(old, old)).copy(checkpoint.root),
        limits,
    )


def _shorten_storage(storage: Storage, end: int) -> Storage:
    """The storage with its first `end` bytes, of which those that are missing are zero;
    itself where none is missing.
    """
    place = storage.place
    if place is None or not place.lacks_bytes(0, place.nbytes):
        return storage
    # A storage ends with a whole element.
    width = 1 if storage.dtype is None else max(1, storage.dtype.bits // 8)
    end = -(-end // width) * width
    if not end:
        return storage._replace(nbytes=0, place=Range(Zeros(0), 0, 0), crc=None)
    position = 0
    pieces: list[tuple[int, Place]] = []
    for piece, start, count in place.list_stretches(0, end):
        if not piece.lacks_bytes(start, start + count):
            pieces.append((position, piece.part(start, start + count)))
        position += count
    first, piece = pieces[0]
    # One piece that holds all of it stays a range of a file, which the kernel copies.
    new = piece
    if first or piece.nbytes != end:
        new = Patched(Range(Zeros(end), 0, end), end, pieces)
    return storage._replace(nbytes=end, place=new, crc=None)


class _Without(Edit):
    """Makes trees without tensors. A list that loses one becomes a dict, so that the
    others keep their numbers.

    In a tuple, and among the arguments of a call, None takes its place.
    """

    def __init__(self, gone: Iterable[Tensor]) -> None:
        super().__init__()
        self._gone = list(gone)
        self._ids = set(map(id, self._gone))
        # A bare storage stands in the tree itself: its entry has a tensor of its own.
        for tensor in self._gone:
            if isinstance(tensor, Composite) and tensor.layout == "storage":
                self._ids.update(id(part.storage) for part in parts_of(tensor))

    def instead(self, node: Node) -> Node | None:
        if not self._is_kept(node):
            return DROPPED
        return None if tensor_of(node) is None else node

    def shell_of(self, node: Node, like: Opaque | None = None) -> Node:
        return super().shell_of(self._without_gone(node), like)

    def _without_gone(self, node: Node) -> Node:
        """The container without its own tensors that are gone."""
        if type(node) is list:
            # The place in the list becomes the key.
            rows = dict_of(
                (place, item) for place, item in enumerate(node) if self._is_kept(item)
            )
            return node if len(rows.keys) == len(node) else rows
        if type(node) is Set:
            return Set(
                [item for item in node.items if self._is_kept(item)], node.frozen
            )
        if not isinstance(node, (Dict, Opaque)):
            return node
        shell = copy(node)
        pairs = [
            row
            for row in zip(node.keys, node.values, strict=True)
            if self._is_kept(row[1])
        ]
        shell.keys = [key for key, _ in pairs]
        shell.values = [value for _, value in pairs]
        if isinstance(shell, Opaque):
            shell.items = [item for item in shell.items if self._is_kept(item)]
        return shell

    def _is_kept(self, node: Node) -> bool:
        if type(node) is PersistentId:
            return id(node.meaning) not in self._ids
        return id(tensor_of(node)) not in self._ids
