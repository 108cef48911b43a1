"""`ckpt sum`: one line per tensor, as sha256sum prints them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE, Answer, Cluster, Found, listed, look, looked, working, worst
from ckpt.cli.options import (
    Exclude,
    FilesFrom,
    Include,
    Jobs,
    LimitOption,
    PartOption,
    Paths,
    SectionOption,
    limits_of,
    notices,
    opened,
    plugins_allowed,
    unread,
)
from ckpt.cli.signature import FILTER, Exclusion, excluding
from ckpt.cli.work import executor
from ckpt.evidence.survey import Survey
from ckpt.formats.verify import recorded
from ckpt.jobs.check.recorded import lines as recorded_lines
from ckpt.jobs.check.recorded import listed as listed_items
from ckpt.jobs.check.recorded import unread_in
from ckpt.jobs.check.sums import lines, sums
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.text import Json, plural, show

if TYPE_CHECKING:
    from ckpt.io.executor import Executor


@excluding(
    Exclusion(("--cluster", "--jobs")),
    Exclusion(("--part",), ("--cluster",)),
    Exclusion(("--recorded",), ("--include", "--exclude", "--section", "--all", "--cluster", "--part")),
)
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
    is_recorded: Annotated[
        bool,
        typer.Option("--recorded", help="List sizes and CRC-32 as the files record them; read no tensors."),
    ] = False,
    files_from: FilesFrom = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    limit: LimitOption = None,
    part: PartOption = None,
) -> int:
    """Print the SHA-256 of each tensor. Equal dtype, shape and values give equal sums in every format.

    Without --section or --all, the tensors of the model are printed, or of a file without a model, all.
    Of several files, the sums of each stand below a line with its name. `ckpt verify --sums` checks them.

    --recorded lists each item of a zip or a DCP in seconds, with the steps of its files: for a check after a transfer.

    \b
    ckpt sum model.pth > model.sums
    ckpt sum runs/ > runs.sums; ckpt verify runs/ --sums runs.sums
    ckpt sum --recorded runs/ > runs.list; ckpt verify copy/ --sums runs.list --quick
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    if part is not None:
        options: dict[str, Json] = {"include": include, "exclude": exclude, "section": section}
        from ckpt.cli.parts import write_part  # here: who runs no part needs no other command

        return write_part(part, "sum", names, limits, {**options, "everything": everything})
    globs = Globs(include or (), exclude or ())
    items = looked(names, limits, plugins=plugins_allowed())
    several = len(items) > 1 or items[0].path not in names

    def answer(item: Found, workers: Executor | None) -> Answer:
        if item.error is not None:
            raise item.error
        if is_recorded:
            return _recorded(item.path, limits, several=several)
        with opened(item.path, limits, tell=False) as checkpoint:
            with output.progress("hashing", checkpoint.nbytes) as progress:
                records = sums(
                    Survey(checkpoint),
                    section,
                    globs,
                    everything=everything,
                    progress=progress,
                    executor=workers or executor(),
                )
            checkpoint.check_unchanged()
        gone = unread(
            item.path, "read", [(row.name, row.unread) for row in records if row.unread is not None]
        )
        texts = lines(records, item.path if several else None)
        return Answer(TROUBLE if gone else 0, texts=texts, talk=[*notices(checkpoint), *gone])

    with working(cluster, names) as workers:
        count = 1 if workers is not None else jobs  # a process that talks to a cluster is not copied
        task = partial(answer, workers=workers)
        return worst(look(names, items, task, jobs=count, doing="hashing"))


def _recorded(path: str, limits: Limits, *, several: bool) -> Answer:
    """The list of a checkpoint. It says on stderr what records no checksum, and which files seem to be of another step."""
    record = recorded(path, limits, plugins=plugins_allowed())
    gone = unread(path, "read", list(unread_in(record.files)))
    talk = [*gone]
    items = [item for file in record.files for item in file.items if item.problem is None]
    without = sum(item.crc is None for item in items)
    if without:
        what = (
            "no item has a recorded checksum"
            if without == len(items)
            else f"{without:,} of {plural(len(items), 'item')} have no recorded checksum"
        )
        talk.append(f"ckpt: {show(path, None)}: {what}: sizes only (ckpt sum reads the bytes)")
    if len({file.steps for file in record.files if file.steps}) > 1:
        with opened(path, limits, tell=False) as checkpoint:
            mixed = Survey(checkpoint).mixed
        if mixed is not None:
            talk.append(f"ckpt: {show(path, None)}: {mixed.text}")
    texts = list(recorded_lines(listed_items(record.format, record.files, path if several else None)))
    return Answer(TROUBLE if gone else 0, texts=texts, talk=talk)
