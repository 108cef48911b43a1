"""What becomes of a state dict that is taken apart into names: what the names cannot say."""

from __future__ import annotations

from itertools import accumulate

from ckpt.jobs.rewrite.names import ATTRIBUTE, attributes_left
from ckpt.jobs.rewrite.report import Change, Leftover, RewriteReport
from ckpt.limits import Limits
from ckpt.nodes import tensor_of
from ckpt.text import plural
from ckpt.tree.flat.leaves import parts_of
from ckpt.tree.view import look

ROOT = "(the root)"


def with_flattening(report: RewriteReport, ranks: int, limits: Limits) -> RewriteReport:
    """The report with the files of so many ranks, and with what is lost where dicts are taken apart.

    Raises LimitError.
    """
    root = report.result.root
    if report.source.traits.is_folder:  # all of it was taken apart before
        files = plural(len(report.source.parts), "file")
        tensors = len(report.result.tensors)
        ranked = Change("ranks", files, plural(ranks, "rank"), tensors, "tensor")
        return report._replace(changes=(*report.changes, ranked))
    if look(root).kind != "mapping":
        return report
    parts = parts_of(root, limits)
    changes = [
        Change("keys", "numbers", "text", number, "key", section=name or ROOT)
        for name, number in parts.texts.items()
    ]
    left = [Leftover(name, "an empty dict") for name in parts.empty]
    left += [
        Leftover(f"{name}._metadata" if name else "_metadata", "the versions of modules")
        for name in parts.versions
    ]
    left += attributes_left(root)
    objects = {tuple(map(str, leaf.path)) for leaf in parts.leaves if tensor_of(leaf.node) is None}
    lost = [
        entry
        for entry in report.result.tensors
        if not entry.registered and objects.isdisjoint(accumulate((str(step),) for step in entry.path))
    ]
    left += [Leftover(entry.name, ATTRIBUTE, entry.tensor.nbytes) for entry in lost]
    before = [
        change._replace(number=change.number - len(lost)) if change.kind == "format" else change
        for change in report.changes
    ]
    alone = [Leftover(name, "a tuple, which stays one object") for name in parts.tuples]
    return report._replace(
        changes=(*before, *changes),
        left_out=(*report.left_out, *left),
        left_alone=(*report.left_alone, *alone),
    )
