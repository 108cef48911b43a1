"""`ckpt average`: the mean of checkpoints."""

from __future__ import annotations

from typing import Any

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.ext.average.api import average
from ckpt.model.errors import UsageError
from ckpt.model.text import show
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], *, ratios: str | None, **keywords: Any) -> int:
    """Average the models of checkpoints of one training.

    The mean has the names, the order and the dtypes of the last one, and is added in
    float64. Integers, such as num_batches_tracked, are the last one's. Optimizers and
    the rest are left out.

    \b
    ckpt average epoch_8.pth epoch_9.pth epoch_10.pth -o mean.pth
    ckpt average old.pth new.pth --ratios 0.3,0.7 -o mean.safetensors
    ckpt average --last 5 runs/ -o mean.pth
    """
    options, own = split_options("average", paths, keywords)
    numbers = _parse_ratios(ratios)
    if not paths:
        raise UsageError("nothing to average", hint="PATH PATH..., or --last N FOLDER")

    def write(path: str, **written: Any) -> RewriteReport:
        return average(paths, ratios=numbers, **own, **written)

    return rewrite_paths(paths[-1:], write, options)


def _parse_ratios(text: str | None) -> list[float] | None:
    """The numbers of --ratios. Raises UsageError."""
    if text is None:
        return None
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            problem = (
                f"--ratios {show(text, 80)}: "
                f"{show(word.strip(), 40) or 'an empty text'} is not a number"
            )
            raise UsageError(problem, hint="as in 0.5,0.3,0.2") from None
    return numbers
