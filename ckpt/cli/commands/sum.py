"""`ckpt sum`: one line per tensor, as sha256sum prints them."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import (
    Exclude,
    FilesFrom,
    Include,
    Jobs,
    LimitOption,
    Paths,
    SectionOption,
    limits_of,
    notices,
    opened,
    plugins_allowed,
    unread,
)
from ckpt.cli.paths import TROUBLE, Answer, look, worst
from ckpt.cli.signature import FILTER
from ckpt.cli.walk import Found, listed, looked
from ckpt.cli.work import executor
from ckpt.cli.work.part import PartOption, write_part
from ckpt.evidence.survey import Survey
from ckpt.jobs.check.sums import lines, sums
from ckpt.names import Globs
from ckpt.text import Json


def command(
    paths: Paths = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print every tensor of the file, by its full name.", rich_help_panel=FILTER
        ),
    ] = False,
    files_from: FilesFrom = None,
    jobs: Jobs = None,
    limit: LimitOption = None,
    part: PartOption = None,
) -> int:
    """Print the SHA-256 of each tensor. Equal dtype, shape and values give equal sums in every format.

    Without --section or --all, the tensors of the model are printed, or of a file without a model, all.
    Of several files, the sums of each stand below a line with its name. `ckpt verify --sums` checks them.

    \b
    ckpt sum model.pth > model.sums
    ckpt sum runs/ > runs.sums; ckpt verify runs/ --sums runs.sums
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    if part is not None:
        options: dict[str, Json] = {"include": include, "exclude": exclude, "section": section}
        return write_part(part, "sum", names, limits, {**options, "everything": everything})
    globs = Globs(include or (), exclude or ())
    items = looked(names, limits, plugins=plugins_allowed())
    several = len(items) > 1 or items[0].path not in names

    def answer(item: Found) -> Answer:
        if item.error is not None:
            raise item.error
        with opened(item.path, limits, tell=False) as checkpoint:
            with output.progress("hashing", checkpoint.nbytes) as progress:
                found = sums(
                    Survey(checkpoint),
                    section,
                    globs,
                    everything=everything,
                    progress=progress,
                    executor=executor(),
                )
            checkpoint.check_unchanged()
        gone = unread(item.path, "read", [(row.name, row.unread) for row in found if row.unread is not None])
        texts = lines(found, item.path if several else None)
        return Answer(TROUBLE if gone else 0, texts=texts, talk=[*notices(checkpoint), *gone])

    return worst(look(names, items, answer, jobs=jobs, doing="hashing"))
