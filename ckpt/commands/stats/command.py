"""`ckpt stats`: open, one call, one form, a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckpt.commands.stats.api import stats
from ckpt.commands.stats.text import stats_lines, stats_table
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun
from ckpt.surface.api.walk import Found, find_items_to_open
from ckpt.surface.cli import output
from ckpt.surface.cli.answers import Answer, write_answers
from ckpt.surface.cli.inputs import (
    check_table,
    failure_document,
    gate_given,
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
    json: bool,
    tsv: bool,
    table: str | None,
    header: bool,
    modules: bool,
    files_from: list[str] | None,
    jobs: int | None,
    cluster: str | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Measure tensors: min, max, mean, std, RMS, zeros, NaN and Inf.

    Without --section or --all, the model is measured, or of a file without a model,
    every tensor. Mean, std and RMS are over finite elements.

    \b
    ckpt stats model.pth --channels
    ckpt stats runs/ --fail-on nan,inf -q
    ckpt stats model.safetensors --sort rms --tsv
    """
    names = named_paths(paths, files_from)
    gate_given("stats", keywords)
    check_table(table, tsv=tsv, header=header)
    items = find_items_to_open(names, limits, plugins=plugins_allowed())
    # A folder with one file in it has a table with a column of files too.
    several = len(items) > 1 or items[0].path not in names
    rows = output.Tables(several, tsv=tsv, table=table, header=header)

    def answer(item: Found) -> Answer:
        if item.error is not None:
            raise item.error
        with (
            opened(item.path, limits, tell=False) as checkpoint,
            output.progress_meter("measuring") as progress,
        ):
            report = stats(
                checkpoint,
                **keywords,
                progress=progress,
            )
            doubtful = notice_lines(checkpoint)
        # Said on stderr: the numbers of all others are still right.
        lost = [(row.entry.name, row.why) for row in report.unread]
        gone = unread_lines(item.path, "measured", [*lost, *report.missing])
        result = Answer(report.exit_code, talk=[*doubtful, *gone])
        if json:
            return result._replace(document=report.to_json())
        if rows.asked:
            return result._replace(rows=stats_table(report))
        width = output.screen_width()
        lines = stats_lines(
            report, width=width, everything=keywords["all"], modules=modules
        )
        return result._replace(lines=lines)

    failed = failure_document("ckpt.stats") if json else None
    with using_cluster(cluster, names) as is_cluster:
        codes = write_answers(
            names,
            items,
            answer,
            json=failed,
            jobs=1
            if is_cluster
            else jobs,  # a process that talks to a cluster is not copied
            doing="measuring",
            tables=rows,
            apart=True,
        )
    if len(codes) > 1 and not json:
        output.write_conclusion(_summary_text(codes))
    return worst_code(codes)


def _summary_text(codes: Sequence[int]) -> str:
    """`5 files: 4 measured, 1 unreadable`."""
    failed = codes.count(2)
    parts = [
        f"{len(codes) - failed:,} measured",
        *([f"{failed:,} unreadable"] if failed else []),
    ]
    return f"{counted_noun(len(codes), 'file')}: {', '.join(parts)}"
