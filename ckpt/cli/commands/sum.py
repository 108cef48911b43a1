"""`ckpt sum`: one line per tensor, as sha256sum prints them."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import Exclude, Include, LimitOption, OnePath, SectionOption, limits_of, opened
from ckpt.cli.signature import FILTER
from ckpt.evidence.survey import Survey
from ckpt.jobs.check.sums import lines, sums
from ckpt.names import Globs


def command(
    path: OnePath,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print every tensor of the file, by its full name.", rich_help_panel=FILTER
        ),
    ] = False,
    limit: LimitOption = None,
) -> int:
    """Print the SHA-256 of each tensor. Equal dtype, shape and values give equal sums in every format.

    Without --section or --all, the tensors of the model are printed, or of a file without a model, all.
    `ckpt verify --sums` checks them.

    \b
    ckpt sum model.pth > model.sums
    """
    with opened(path, limits_of(limit)) as checkpoint:
        with output.progress("hashing", checkpoint.nbytes) as progress:
            globs = Globs(include or (), exclude or ())
            found = sums(Survey(checkpoint), section, globs, everything=everything, progress=progress)
        checkpoint.check_unchanged()
    for line in lines(found):
        output.write_text(line)
    return 0
