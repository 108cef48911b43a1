"""`ckpt warmstart`: pretrained weights into another model, as far as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ckpt.api.writing import warmstart
from ckpt.cli import output
from ckpt.cli.inputs import documented
from ckpt.cli.options import Arg, NoAlign, opened, refuse_factory
from ckpt.cli.results import ResultOptions, reporting, rewrite, writing
from ckpt.cli.signature import FILTER, GATE, Exclusion, excluding
from ckpt.errors import UsageError
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.text import pasted, pasted_path, show, show_literal


@excluding(Exclusion(("--into", "--into-model")))
@writing
def command(
    pretrained: Annotated[
        str,
        typer.Argument(
            metavar="PRETRAINED", help="The checkpoint whose values are used.", show_default=False
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="TARGET", help="Fill this checkpoint of the model."),
    ] = None,
    into_model: Annotated[
        str | None,
        typer.Option(
            "--into-model", metavar="FILE.py:FACTORY", help="Fill the model that your own code builds."
        ),
    ] = None,
    sub: Annotated[
        list[str] | None,
        typer.Option(
            "--sub", metavar="S/A/B/", help="Rename pretrained tensors, as ckpt rename does. Repeatable."
        ),
    ] = None,
    no_align: NoAlign = False,
    mismatch: Annotated[
        str,
        typer.Option(
            "--on-mismatch",
            metavar="WHAT",
            help="For another shape: keep the target's values, slice (copy the common block), or error.",
        ),
    ] = "keep",
    by_shape: Annotated[
        bool,
        typer.Option("--by-shape", help="Also pair tensors that only shapes and order connect."),
    ] = False,
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Join query, key and value of PRETRAINED into one tensor of TARGET."),
    ] = False,
    split: Annotated[
        bool,
        typer.Option("--split", help="Split one tensor of PRETRAINED into query, key and value of TARGET."),
    ] = False,
    count_sliced: Annotated[
        bool,
        typer.Option("--count-sliced", help="Count what is sliced of the last layer as loaded."),
    ] = False,
    ignore_layout: Annotated[
        bool,
        typer.Option(
            "--ignore-layout", help="Load tensors although PRETRAINED lays out their values otherwise."
        ),
    ] = False,
    keep_optimizer: Annotated[
        bool,
        typer.Option(
            "--keep-optimizer",
            help="Keep the optimizer, the scheduler and the counters of TARGET's old weights.",
        ),
    ] = False,
    print_code: Annotated[
        bool,
        typer.Option(
            "--print-code", help="Print Python that loads the same into a model, and write nothing."
        ),
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            metavar="X",
            min=0,
            max=1,
            help="Exit 1 and write nothing if a smaller share of the model is loaded; 0.1 without it.",
            rich_help_panel=GATE,
        ),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(
            "--section",
            metavar="PATH",
            help="Use this part of PRETRAINED, such as ema.",
            rich_help_panel=FILTER,
        ),
    ] = None,
    into_section: Annotated[
        str | None,
        typer.Option(
            "--into-section", metavar="PATH", help="Fill this part of TARGET.", rich_help_panel=FILTER
        ),
    ] = None,
    arg: Arg = None,
    init: Annotated[
        bool,
        typer.Option("--init", help="Initialize the factory's model, so that missing tensors have values."),
    ] = False,
    *,
    options: ResultOptions,
) -> int:
    """Load pretrained weights into a model as far as they fit.

    The mapping of the names is found: prefixes on either side, renamed words, the names of other packages.
    It is printed first. OUT has the structure, dtypes and devices of TARGET; only values come from PRETRAINED.
    The optimizer and the counters of TARGET's old weights are left out.

    \b
    ckpt warmstart resnet50.pth --into mine.pth -o start.pth
    ckpt warmstart resnet50.pth --into-model train.py:build_model --arg classes=10 --dry-run
    ckpt warmstart resnet50.pth --into mine.pth --print-code
    """
    if into is None and into_model is None:
        raise UsageError("what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY")
    refuse_factory(into or "", "--into-model")
    words = _words(
        pretrained,
        ("--into", into),
        ("--into-model", into_model),
        *(("--arg", text) for text in arg or ()),
        ("--init", init),
        *(("--sub", text) for text in sub or ()),
        ("--on-mismatch", None if mismatch == "keep" else mismatch),
        ("--by-shape", by_shape),
        ("--fuse", fuse),
        ("--split", split),
        ("--count-sliced", count_sliced),
        ("--ignore-layout", ignore_layout),
        ("--keep-optimizer", keep_optimizer),
        ("--section", section),
        ("--into-section", into_section),
        ("-o", options.places.out),
        ("--force", options.places.force),
        ("--keep-damaged", options.places.keep_damaged),
        ("--dry-run", options.places.dry_run),
        ("--print-code", print_code),
    )

    def write(path: str, **keywords: Any) -> RewriteReport:
        return warmstart(
            given,
            into=into,
            into_model=into_model,
            sub=sub,
            align=not no_align,
            on_mismatch=mismatch,
            by_shape=by_shape,
            fuse=fuse,
            split=split,
            count_sliced=count_sliced,
            ignore_layout=ignore_layout,
            keep_optimizer=keep_optimizer,
            print_code=print_code,
            min_coverage=coverage,
            section=section,
            into_section=into_section,
            arg=arg,
            init=init,
            check=False,
            **keywords,
        )

    def report(done: RewriteReport) -> None:
        if print_code:
            for line in done.code:
                output.write_text(line)
        else:
            reporting(options)(done)
        plan = done.coverage
        if plan is not None and plan.refusal:
            command = None if plan.way is None else _again(words, plan.way)
            text = f"{show(done.source.path, None)}: {show_literal(plan.refusal)}: nothing was written"
            output.talk(f"ckpt: {text}", command)

    with documented(pretrained, "ckpt.rewrite" if options.json else None):
        source = opened(pretrained, options.places.limits, tell=False)
    with source as given:
        return rewrite([into_model or into or ""], write, options, report=report)


def _words(path: str, *options: tuple[str, str | bool | None]) -> list[str]:
    """The words of a command line: the options that were given."""
    words = [path]
    for name, value in options:
        if value:
            words += [name] if value is True else [name, str(value)]
    return words


def _again(words: Sequence[str], way: Sequence[str]) -> str | None:
    """The command with further options, to paste, or None where no shell takes it."""
    out = words.index("-o") if "-o" in words else len(words)
    path = pasted_path(words[0])
    rest = [pasted(word) for word in (*words[1:out], *way, *words[out:])]
    if path is None or None in rest:
        return None
    return " ".join(["ckpt warmstart", path, *(word for word in rest if word is not None)])
