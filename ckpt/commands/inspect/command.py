"""`ckpt inspect`: open, one call, one form, a code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ckpt.bytes.source import first_bytes
from ckpt.commands.inspect import tables
from ckpt.commands.inspect import text as render
from ckpt.commands.inspect.api import inspect
from ckpt.model.errors import CkptError, FolderError, UsageError
from ckpt.model.findings import DOUBTS, LOST
from ckpt.model.limits import Limits
from ckpt.model.text import show
from ckpt.surface.api.keywords import model_of
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import (
    check_table,
    gate_given,
    named_paths,
    notice_lines,
    opened,
    refuse_factory,
    run_for_each,
    tell_misfit,
)
from ckpt.surface.text.lines import height_of

if TYPE_CHECKING:
    from ckpt.commands.inspect.inspect import Inspection
    from ckpt.evidence.numbering import Numbering

_ORDERS = ("file", "size")
_Table: TypeAlias = "Callable[[Inspection], Iterable[list[str]]]"


def command(
    paths: list[str],
    *,
    json: bool,
    tsv: bool,
    table: str | None,
    header: bool,
    depth: int | None,
    sort: str,
    bars: bool,
    storages: bool,
    values: bool,
    imports: bool,
    index: list[str] | None,
    textconv: bool,
    model: str | None,
    arg: list[str] | None,
    files_from: list[str] | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Show what a checkpoint holds: tensors, devices, sharing, prefixes, values,
    imports, and how to load it.

    Nothing in the file is run, and no weights are read.

    \b
    ckpt inspect runs/epoch_12.pth
    ckpt inspect model/ --include '*.bias' --tsv
    ckpt inspect snapshot.pth --index 6,7-9
    ckpt inspect model.pth --sort size
    """
    everything = keywords.pop("all")
    names = named_paths(paths, files_from)
    views: list[_Table] = [
        view
        for is_wanted, view in (
            (storages, tables.storage_table),
            (values, tables.value_table),
            (imports, tables.import_table),
        )
        if is_wanted
    ]
    if sort not in _ORDERS:
        raise UsageError(f"--sort {show(sort, 40)}: not one of {' '.join(_ORDERS)}")
    by_size = sort == "size"
    if tsv and len(views) > 1:
        raise UsageError("--tsv takes one of --storages, --values and --imports")
    check_table(table, tsv=tsv, header=header)
    indices = None if index is None else ",".join(index)
    if indices is not None:
        # Here: inspect alone does not pay for it.
        from ckpt.evidence.numbering import numbers

        # A wrong list is an error before a file is opened.
        numbers(indices)
    # `--index 6 7` makes a PATH of the 7.
    if indices is not None and any(
        path.isdigit() and not os.path.exists(path) for path in names
    ):
        together = ",".join([indices, *(path for path in names if path.isdigit())])
        raise UsageError("--index takes one list", hint=f"--index {show(together, 80)}")
    gate_given("inspect", keywords)
    live = model_of(model, arg)
    if textconv:
        return max(_write_textconv(path, limits) for path in names)
    rows = output.Tables(len(names) > 1, tsv=tsv, table=table, header=header)

    # So stderr says what was not read.
    has_no_findings = bool(rows.asked or views or bars or indices)
    as_list = not (
        has_no_findings or keywords["section"] or keywords["fail_on"] or live
    )

    def one(path: str) -> int:
        refuse_factory(path, "--model")
        try:
            return inspected(path)
        except FolderError:
            if not as_list:
                raise
            # Here: a folder of checkpoints alone pays for it.
            from ckpt.commands.ls.command import show_folder

            if not json:
                output.separate_reports()
            return show_folder(path, limits, json=json)

    def inspected(path: str) -> int:
        with opened(path, limits, tell=False) as checkpoint:
            for line in (
                notice_lines(checkpoint, (*DOUBTS, *LOST))
                if has_no_findings and not json
                else ()
            ):
                output.write_talk(line)
            done = inspect(
                checkpoint,
                index=indices,
                model=live,
                hints=not rows.asked,
                **keywords,
            )
            tell_misfit(done.report.survey, model)
            if output.is_silent():
                pass  # the exit code answers
            elif json:
                output.write_json(done.to_json())
            elif done.index is not None:
                _write_index(done.index)
            elif rows.asked:
                every = tables.tensors_by_size if by_size else tables.tensor_table
                rows.write(path, (views[0] if views else every)(done.report))
            else:
                output.separate_reports()
                _write_text(
                    done.report, views, depth, everything, bars, by_size=by_size
                )
        return done.exit_code

    return run_for_each(names, one, json="ckpt.inspect" if json else None)


def _write_index(parameters: Numbering) -> None:
    # Here: inspect alone does not pay for it.
    from ckpt.commands.inspect.numbering import numbering_lines

    output.write_lines(numbering_lines(parameters, output.screen_width()))


def _write_text(
    report: Inspection,
    views: Sequence[_Table],
    depth: int | None,
    everything: bool,
    bars: bool,
    *,
    by_size: bool,
) -> None:
    width = output.screen_width()
    if bars:
        _write_bars(report, width, depth, everything)
        return
    if not views:
        height = None if everything or depth is not None else output.screen_height()
        output.write_lines(
            render.inspect_lines(
                report,
                width=width,
                height=height,
                depth=depth,
                everything=everything,
                by_size=by_size,
            )
        )
        return
    output.write_lines(
        [*render.call_lines(report, width), *render.headline_lines(report, width)]
    )
    folded: dict[_Table, _Table] = {
        tables.storage_table: tables.folded_storages,
        tables.import_table: tables.folded_imports,
    }
    for view in views:
        output.write_lines([[]])
        word = _VIEWS[view]
        if not everything:
            view = folded.get(view, view)
        table = list(view(report))
        # A header alone would look like an answer that is cut off.
        if len(table) == 1:
            output.write_lines([[(f"no {word} here", "")]])
        else:
            output.write_table(table, tsv=False, table=None)


_VIEWS: dict[_Table, str] = {
    tables.storage_table: "storages",
    tables.value_table: "values",
    tables.import_table: "imports",
}


def _write_bars(
    report: Inspection, width: int | None, depth: int | None, everything: bool
) -> None:
    """The headline, and a bar for each part: as many as there is room for."""
    # Here: other views do not pay for it.
    from ckpt.commands.inspect.bars import bar_lines
    from ckpt.commands.inspect.tables import ROWS

    head = [*render.call_lines(report, width), *render.headline_lines(report, width)]
    height = output.screen_height()
    # A blank row, and the prompt.
    rows = ROWS if height is None else height - height_of(head, width) - 2
    output.write_lines(
        [
            *head,
            [],
            *bar_lines(
                report, width=width, rows=rows, depth=depth, everything=everything
            ),
        ]
    )


def _write_textconv(path: str, limits: Limits) -> int:
    """The text of a file for git, which shows no difference at all where the command
    fails.
    """
    from ckpt.commands.inspect.text import textconv_lines, unread_line
    from ckpt.commands.sum.sums import digests

    try:
        with opened(path, limits, tell=False) as checkpoint:
            lines = textconv_lines(
                inspect(checkpoint, hints=False).report, digests(checkpoint.survey)
            )
    except CkptError as error:
        lines = [unread_line(first_bytes(path), error.problem)]
    for line in lines:
        output.write_text(line)
    return 0
