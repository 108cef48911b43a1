"""`ckpt sum`: one line per tensor, as sha256sum prints them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from ckpt.commands.sum.api import sum
from ckpt.commands.sum.recorded import SumReport
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun, show
from ckpt.surface.api.walk import Found, find_items_to_open
from ckpt.surface.cli import output
from ckpt.surface.cli.answers import Answer, write_answers
from ckpt.surface.cli.inputs import (
    failure_document,
    named_paths,
    notice_lines,
    opened,
    plugins_allowed,
    unread_lines,
    using_cluster,
    worst_code,
)


def command(
    paths: list[str],
    *,
    recorded: bool,
    json: bool,
    files_from: list[str] | None,
    jobs: int | None,
    cluster: str | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Print the SHA-256 of each tensor. Equal dtype, shape and values give equal sums
    in every format.

    Without --section or --all, the tensors of the model are printed, or of a file
    without a model, all. Of several files, the sums of each stand below a line with its
    name. `ckpt verify --sums` checks them.

    --recorded lists each item of a zip or a DCP in seconds, with the steps of its
    files: for a check after a transfer.

    \b
    ckpt sum model.pth > model.sums
    ckpt sum runs/ > runs.sums; ckpt verify runs/ --sums runs.sums
    ckpt sum --recorded runs/ > runs.list; ckpt verify copy/ --sums runs.list --quick
    """
    names = named_paths(paths, files_from)
    items = find_items_to_open(names, limits, plugins=plugins_allowed())
    several = len(items) > 1 or items[0].path not in names

    def answer(item: Found) -> Answer:
        if item.error is not None:
            raise item.error
        if recorded:
            report = sum(
                item.path, recorded=True, limits=limits, plugins=plugins_allowed()
            )
            talk = _doubt_lines(report, limits)
        else:
            with (
                opened(item.path, limits, tell=False) as checkpoint,
                output.progress_meter("hashing") as progress,
            ):
                report = sum(checkpoint, progress=progress, **keywords)
                talk = notice_lines(checkpoint)
        talk += unread_lines(item.path, "read", report.unread)
        if json:
            return Answer(report.exit_code, document=report.to_json(), talk=talk)
        return Answer(report.exit_code, texts=report.lines(several=several), talk=talk)

    failed = failure_document("ckpt.sum") if json else None
    with using_cluster(cluster, names) as is_cluster:
        # A process that talks to a cluster is not copied.
        count = 1 if is_cluster else jobs
        return worst_code(
            write_answers(
                names, items, answer, json=failed, jobs=count, doing="hashing"
            )
        )


def _doubt_lines(report: SumReport, limits: Limits) -> list[str]:
    """The lines on what records no checksum, and on files that seem to be of another
    step.
    """
    path = show(report.path, None)
    files = [] if report.recorded is None else report.recorded.files
    items = list(chain.from_iterable(file.items for file in files))
    without = len([item for item in items if item.crc is None])
    lines = []
    if without:
        what = "no item has a recorded checksum"
        if without < len(items):
            count = counted_noun(len(items), "item")
            what = f"{without:,} of {count} have no recorded checksum"
        lines.append(f"ckpt: {path}: {what}: sizes only (ckpt sum reads the bytes)")
    if len({file.steps for file in files if file.steps}) > 1:
        with opened(report.path, limits, tell=False) as checkpoint:
            mixed = checkpoint.survey.mixed
        if mixed is not None:
            lines.append(f"ckpt: {path}: {mixed.text}")
    return lines
