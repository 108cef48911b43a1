"""`ckpt average`: the mean of checkpoints."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ckpt.api.writing import average
from ckpt.cli.options import DropOther, Exclude, Include, NoAlign, SectionOption
from ckpt.cli.results import ResultOptions, rewrite, writing
from ckpt.errors import UsageError
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.text import show


@writing
def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Checkpoints, or the folder of --last.", show_default=False),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            "--ratios",
            metavar="X,Y,...",
            help="Weigh the checkpoints by these numbers, divided by their sum. Without it all count alike.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=2,
            help="Take the last N of a folder's numbered checkpoints: epoch_10 comes after epoch_2.",
        ),
    ] = None,
    no_align: NoAlign = False,
    drop_other: DropOther = False,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    *,
    options: ResultOptions,
) -> int:
    """Average the models of checkpoints of one training.

    The mean has the names, the order and the dtypes of the last one, and is added in float64. Integers,
    such as num_batches_tracked, are the last one's. Optimizers and the rest are left out.

    \b
    ckpt average epoch_8.pth epoch_9.pth epoch_10.pth -o mean.pth
    ckpt average old.pth new.pth --ratios 0.3,0.7 -o mean.safetensors
    ckpt average --last 5 runs/ -o mean.pth
    """
    names = list(paths or ())

    def write(path: str, **keywords: Any) -> RewriteReport:
        return average(
            names,
            ratios=numbers,
            last=last,
            align=not no_align,
            drop_other=drop_other,
            include=include,
            exclude=exclude,
            section=section,
            **keywords,
        )

    numbers = _numbers(ratios)
    if not names:
        raise UsageError("nothing to average", hint="PATH PATH..., or --last N FOLDER")
    return rewrite(names[-1:], write, options)


def _numbers(text: str | None) -> list[float] | None:
    """The numbers of --ratios. Raises UsageError."""
    if text is None:
        return None
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            problem = (
                f"--ratios {show(text, 80)}: {show(word.strip(), 40) or 'an empty text'} is not a number"
            )
            raise UsageError(problem, hint="as in 0.5,0.3,0.2") from None
    return numbers
