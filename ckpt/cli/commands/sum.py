"""`ckpt sum`: a line a tensor, as sha256sum prints them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import LimitOption, OnePath, SectionOption, limits_of, opened
from ckpt.evidence.survey import Survey
from ckpt.jobs.check.sums import lines, sums


def command(
    path: OnePath,
    section: SectionOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every tensor of the file, under its full name.")
    ] = False,
    limit: LimitOption = None,
) -> int:
    """SHA-256 of each tensor: equal across formats for equal dtype, shape and values. `ckpt verify --sums` checks them.

    Of the model, under the names inside of it; or of a section.

    \b
    ckpt sum model.pth > model.sums
    """
    with opened(path, limits_of(limit)) as checkpoint:
        with output.progress(checkpoint.nbytes) as progress:
            found = sums(Survey(checkpoint), section, everything=everything, progress=progress)
        checkpoint.check_unchanged()
    sys.stdout.writelines(f"{line}\n" for line in lines(found))
    return 0
