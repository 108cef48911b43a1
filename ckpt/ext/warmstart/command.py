"""`ckpt warmstart`: pretrained weights into another model, as far as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckpt.commands.rewriting.report import LOADED, RewriteReport
from ckpt.ext.warmstart.api import warmstart
from ckpt.model.errors import UsageError
from ckpt.model.text import pasted_path, shell_word, show, show_literal
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import documenting_errors, opened, refuse_factory
from ckpt.surface.cli.options import typed_options
from ckpt.surface.cli.results import report_writer, rewrite_paths, split_options


def command(
    pretrained: str,
    *,
    into: str | None,
    into_model: str | None,
    print_code: bool,
    **keywords: Any,
) -> int:
    """Load pretrained weights into a model as far as they fit.

    The mapping of the names is found: prefixes on either side, renamed words, the names
    of other packages. It is printed first. OUT has the structure, dtypes and devices of
    TARGET; only values come from PRETRAINED. The optimizer and the counters of TARGET's
    old weights are left out.

    \b
    ckpt warmstart resnet50.pth --into mine.pth -o start.pth
    ckpt warmstart resnet50.pth --into-model train.py:build_model --arg classes=10 --dry-run
    ckpt warmstart resnet50.pth --into mine.pth --print-code
    """
    if into is None and into_model is None:
        raise UsageError(
            "what to fill?", hint="--into TARGET, or --into-model FILE.py:FACTORY"
        )
    # `FILE.py:FACTORY` where a path should be.
    refuse_factory(into or "", "--into-model")
    asked = {
        "into": into,
        "into_model": into_model,
        "print_code": print_code,
        **keywords,
    }
    options, own = split_options("warmstart", [pretrained, into, into_model], keywords)

    def write(path: str, **written: Any) -> RewriteReport:
        return warmstart(
            given,
            into=into,
            into_model=into_model,
            print_code=print_code,
            # The refusal is printed here, behind the rows of the plan.
            check=False,
            **own,
            **written,
        )

    def report(done: RewriteReport) -> None:
        plan = done.coverage
        is_adapter = (
            plan is not None and plan.adapter_layers > 0 and not plan.of(*LOADED)
        )
        if print_code:
            for line in done.code:
                output.write_text(line)
        elif not is_adapter or options.json:
            report_writer(options)(done)  # of an adapter every row would say 0 %
        if plan is not None and plan.refusal:
            command = None
            if is_adapter:
                # An adapter is no base to merge into.
                if not plan.fills_adapter:
                    command = _merge_command(pretrained, asked)
            elif plan.way is not None:
                command = _command_with_options(pretrained, asked, plan.way)
            # On stderr, so that what `--print-code` prints stays code.
            text = (
                f"{show(into or done.source.path, None)}: "
                f"{show_literal(plan.refusal)}: nothing was written"
            )
            output.write_talk(f"ckpt: {text}", command)

    with documenting_errors(pretrained, "ckpt.rewrite" if options.json else None):
        in_ranks = asked["recipe"] is not None
        source = opened(
            pretrained, options.places.limits, tell=False, in_ranks=in_ranks
        )
    with source as given:
        return rewrite_paths([into_model or into or ""], write, options, report=report)


def _merge_command(pretrained: str, asked: dict[str, Any]) -> str | None:
    """The command that adds an adapter to the target, to paste, or None where no shell
    takes the paths, and for a model that is built.
    """
    places = asked["into"], pretrained, asked["output"] or "OUT"
    paths = [pasted_path(place) for place in places if place is not None]
    if len(paths) < len(places) or None in paths:
        return None
    return f"ckpt merge {paths[0]} {paths[1]} -o {paths[2]}"


def _command_with_options(
    pretrained: str, asked: dict[str, Any], way: Sequence[str]
) -> str | None:
    """The command as it was typed, with further options, to paste, or None where no
    shell takes it.
    """
    words = typed_options("warmstart", asked)
    # The options stand before OUT, as people write them.
    out = words.index("-o") if "-o" in words else len(words)
    path = pasted_path(pretrained)
    rest = [shell_word(word) for word in (*words[:out], *way, *words[out:])]
    if path is None or None in rest:
        return None
    return " ".join(
        ["ckpt warmstart", path, *(word for word in rest if word is not None)]
    )
