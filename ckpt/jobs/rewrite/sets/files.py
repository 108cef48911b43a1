"""A checkpoint in several files: which of them a command changes, and what its result lacks."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.errors import LossError, UsageError
from ckpt.jobs.rewrite.report import Leftover, RewriteReport, edited
from ckpt.limits import Limits
from ckpt.nodes import Dict
from ckpt.rows import replace
from ckpt.text import and_more, show
from ckpt.tree.find import children


def without_copies(report: RewriteReport, limits: Limits) -> RewriteReport:
    """The report without weights that the result holds a second time, in another precision."""
    result = report.result
    gone = [key for key in result.copies if type(result.root) is Dict and key in result.root.keys]
    if not gone:
        return report
    root, rows = Dict(), []
    for key, child in children(result.root):
        if key in gone:
            rows.append(Leftover(str(key), "the weights in another precision"))
        else:
            root.set([key], [child])
    made = replace(edited(result, root, limits), copies=())
    return report._replace(result=made, left_out=(*report.left_out, *rows))


def refuse_incomplete(checkpoint: Checkpoint, section: str | None = None, option: str = "") -> None:
    """Raise LossError where weights to be written are missing. `option` chooses others that are whole.

    Of a distributed checkpoint each tensor says by itself what it lacks, when its bytes are read.
    """
    if checkpoint.traits.fills_a_state:
        return
    lost = next((row for row in checkpoint.notices if row.code == "incomplete"), None)
    if lost is None or section in checkpoint.copies:
        return
    hint = f"{option} {checkpoint.copies[0]}" if checkpoint.copies and option else None
    raise LossError(lost.message, path=checkpoint.path, hint=hint)


def refuse_ranks(checkpoint: Checkpoint, section: str | None) -> None:
    """Raise UsageError for files of ranks that stand side by side: nothing in them says how they make a whole."""
    if not checkpoint.traits.is_set or not checkpoint.members or section is not None:
        return
    files = [show(member.file, 80) for member in checkpoint.members]
    raise UsageError(
        f"{len(files)} files of ranks, each with a part of the model; ckpt does not merge them",
        path=checkpoint.path,
        hint=f"name one: {and_more(files, 4, ', or ')}",
    )


def weights_file(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint of the weights in a folder, as it is read alone; any other checkpoint as it is.

    A merge of all files would be one that no framework loads. Raises UsageError where several files hold weights.
    """
    members = [member for member in checkpoint.members if member.checkpoint.tensors]
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
