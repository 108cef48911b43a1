"""`ckpt report`: documents of the other commands as one page of HTML."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated

import typer

from ckpt import __version__
from ckpt.api.checkpoint import Checkpoint
from ckpt.api.inspection import inspect
from ckpt.api.keywords import Progress
from ckpt.api.listing import ls
from ckpt.api.reading import diff, stats
from ckpt.api.walk import Found, empty, looked, nothing_in, others_text, parted
from ckpt.checkpoint import Checkpoint as Contents
from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE, is_skipped, listed, unskipped
from ckpt.cli.options import (
    FilesFrom,
    LimitOption,
    SectionOption,
    limits_of,
    notices,
    opened,
    plugins_allowed,
)
from ckpt.cli.signature import OUTPUT, Exclusion, excluding
from ckpt.errors import CkptError, UsageError, about
from ckpt.formats import save
from ckpt.formats.listing import open_documents
from ckpt.io import target
from ckpt.io.far import is_url
from ckpt.jobs.report import error_document, payload
from ckpt.limits import Limits
from ckpt.names import natural
from ckpt.render.html import html_page
from ckpt.text import Json, plural, show

Document = dict[str, Json]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the page if it exists.", rich_help_panel=OUTPUT)
]


@excluding(Exclusion(("--stats", "--quick")))
def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Checkpoints, folders, or stored JSON of inspect, diff, stats and ls.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="Write the page to this file, - for stdout.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Force = False,
    measured: Annotated[
        bool,
        typer.Option("--stats", help="Read and measure the tensors of a file, or of all files of a folder."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="List several files as ckpt ls does, and read no tensors.")
    ] = False,
    section: SectionOption = None,
    files_from: FilesFrom = None,
    limit: LimitOption = None,
) -> int:
    """Draw checkpoints as one page of HTML: what they hold, how tensors are spread, what moved over time.

    One file is drawn as inspect and a folder as ls, without reading tensor data. Several files are a series, which is
    read whole: the norm of each layer, and its change from file to file. The page requests nothing.

    \b
    ckpt report runs/epoch_12.pth -o report.html
    ckpt report runs/epoch_*.pth -o series.html
    ckpt report runs/ -o folder.html
    ckpt report inspect.json -o report.html
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    page = Page(out, force=force)
    documents = _Documents(page, limits, section)
    documents.read(names, measured=measured, quick=quick)
    page.write(documents.found)
    page.tell(documents.drawn, len(documents.found) - documents.drawn, documents.others)
    return documents.code


class Page:
    """The file that a page is written to, checked before anything is read. Raises UsageError, WriteError."""

    def __init__(self, out: str | None, *, force: bool) -> None:
        if out is None:
            raise UsageError("where to write?", hint="-o report.html")
        self.is_stdout = out == "-"
        self._to = None if self.is_stdout else target.target(out, force=force)
        self._like: os.stat_result | None = None

    def drawn_from(self, checkpoint: Contents) -> None:
        """Refuse to replace a file of the checkpoint. Who may not read one of its files may not read the page."""
        if self._to is None:
            return
        if self._to.replaced is not None and save.is_source(checkpoint, self._to.real):
            raise _is_source(self._to)
        for source in checkpoint.all_sources():
            if source.status is not None:
                self._read(source.status)

    def drawn_from_document(self, path: str) -> None:
        """The same for a stored document."""
        if self._to is None or is_url(path):
            return
        status = os.stat(path)
        if self._to.replaced is not None and os.path.samestat(self._to.replaced, status):
            raise _is_source(self._to)
        self._read(status)

    @contextmanager
    def told(self, path: str, schema: str) -> Iterator[None]:
        """Write the page of an error about a PATH before it ends the command."""
        try:
            yield
        except UsageError:
            raise
        except CkptError as error:
            with about(path):
                self.write([error_document(path, schema, error, __version__)])
            raise

    def _read(self, status: os.stat_result) -> None:
        readers = stat.S_IROTH | stat.S_IRGRP
        if self._like is None or (status.st_mode & readers) < (self._like.st_mode & readers):
            self._like = status

    def write(self, documents: Iterable[Document]) -> None:
        """Draw the documents and put the page in place. Raises UnreadableError, WriteError."""
        data = html_page(documents)
        if self._to is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            return
        if self._to.warning is not None:
            output.talk(f"ckpt: {show(self._to.path, None)}: {self._to.warning}")
        with target.writing(self._to._replace(like=self._like), len(data)) as sink:
            sink.write(data)
        for text in sink.warnings:
            output.talk(f"ckpt: {text}")

    def tell(self, drawn: int, unreadable: int = 0, others: Sequence[str] = ()) -> None:
        """Say on stderr what was written: `wrote report.html, 3 documents, 1 unreadable`, and what was left out."""
        parts = [others_text(others)] if others else []
        if self._to is not None:
            wrote = [f"wrote {show(self._to.path, None)}", plural(drawn, "document")]
            wrote += [f"{unreadable:,} unreadable"] if unreadable else []
            parts.insert(0, ", ".join(wrote))
        if parts:
            output.conclude(" · ".join(parts))


def _is_source(to: target.Target) -> UsageError:
    return UsageError("OUT is a source of the page, which --force does not replace", path=to.path)


class _Documents:
    """The documents of a page, in the order in which they are made, and the exit code."""

    def __init__(self, page: Page, limits: Limits, section: str | None) -> None:
        self.found: list[Document] = []
        self.others: list[str] = []
        self.drawn = 0
        self.code = 0
        self._page = page
        self._limits = limits
        self._section = section

    def read(self, names: Sequence[str], *, measured: bool, quick: bool) -> None:
        """Read what the PATHs lead to. Raises UsageError when nothing is there."""
        names = [name for name in names if not self._stored(name)]
        items, self.others = parted(looked(names, self._limits, plugins=plugins_allowed()))
        items = unskipped(items)
        paths = [item.path for item in items]
        if paths == sorted(paths):  # as the shell writes them; epoch_2 comes before epoch_10
            items.sort(key=lambda item: natural(item.path))
        is_single = len(items) == 1 and items[0].folder is None
        walked = any(item.folder is not None for item in items)
        if is_single:
            self._each(items, lambda item: self._inspect(item, measured=measured))
        elif quick or (walked and not measured):
            self._each(items, self._list)
        else:
            self._series(items)
        for name in empty(names, [item.path for item in items]):
            self._failed(name, nothing_in(name))
        if not self.found:
            raise UsageError(f"no checkpoint in {', '.join(show(name, 80) for name in names[:3])}")

    def _stored(self, path: str) -> bool:
        """Take the documents that a file holds; False for a file of another kind."""
        try:
            with about(path):
                documents = open_documents(path, self._limits)
            if documents is None:
                return False
            self._page.drawn_from_document(path)
            payload(documents, __version__)  # what cannot be drawn is said of this file
        except UsageError:
            raise
        except CkptError as error:
            self._failed(path, error)
            return True
        self._take(*documents)
        return True

    def _take(self, *documents: Document) -> None:
        self.found += documents
        self.drawn += len(documents)

    def _failed(self, path: str, error: CkptError) -> None:
        """A PATH that cannot be read stands in the page, and its line on stderr."""
        with about(path):
            self.found.append(error_document(path, "ckpt.inspect", error, __version__))
        if error.path is None:
            error.path = path
        output.fail(error)
        self.code = TROUBLE

    def _each(self, items: Sequence[Found], take: Callable[[Found], None]) -> None:
        """Take the documents of each file. One that cannot be read does not stop the others."""
        with output.progress("reading", len(items), "files") if len(items) > 1 else nullcontext() as progress:
            for item in items:
                try:
                    with about(item.path):
                        if item.error is not None:
                            raise item.error
                        take(item)
                except UsageError:
                    raise  # of the request, not of the file
                except CkptError as error:
                    if not is_skipped(item, error):
                        self._failed(item.path, error)
                if progress is not None:
                    progress(1)

    def _opened(self, path: str) -> Checkpoint:
        checkpoint = opened(path, self._limits, tell=False)
        try:
            self._page.drawn_from(checkpoint.checkpoint)
        except CkptError:
            checkpoint.close()
            raise
        for text in notices(checkpoint):
            output.talk(text)
        return checkpoint

    def _inspect(self, item: Found, *, measured: bool) -> None:
        """One checkpoint, with the numbers of its tensors where they are asked for."""
        with self._opened(item.path) as checkpoint:
            documents = [inspect(checkpoint, section=self._section).to_json()]
            if measured:
                with output.meter("measuring") as progress:
                    documents.append(self._measured(checkpoint, progress, histogram=True))
        self._take(*documents)

    def _list(self, item: Found) -> None:
        """One row of a folder."""
        with self._opened(item.path) as checkpoint:
            documents = ls(checkpoint).to_json()
        self._take(*documents)

    def _series(self, items: Sequence[Found]) -> None:
        """The row of each file, its numbers, and its changes from the file before."""
        with ExitStack() as stack:
            last: list[tuple[Checkpoint, ExitStack]] = []

            def take(item: Found) -> None:
                with ExitStack() as inner:
                    checkpoint = inner.enter_context(self._opened(item.path))
                    documents = [*ls(checkpoint).to_json(), self._measured(checkpoint)]
                    if last:
                        documents.append(self._compared(last[0][0], checkpoint))
                        last.pop()[1].close()
                    last.append((checkpoint, stack.enter_context(inner.pop_all())))
                self._take(*documents)

            self._each(items, take)

    def _measured(
        self, checkpoint: Checkpoint, progress: Progress | None = None, *, histogram: bool = False
    ) -> Document:
        """The numbers of the model, or of all tensors where there are several models."""
        several = self._section is None and len(checkpoint.survey.candidates) > 1
        return stats(
            checkpoint,
            section=self._section,
            all=several,
            channels=True,
            histogram=histogram,
            progress=progress,
        ).to_json()

    def _compared(self, before: Checkpoint, after: Checkpoint) -> Document:
        """Return the changes between two files of a series.

        They are in the model when both files have one of the same name.
        """
        candidates = [side.survey.candidates for side in (before, after)]
        names = {models[0].name for models in candidates if len(models) == 1}
        both = all(len(models) == 1 for models in candidates)
        section = self._section or (names.pop() if both and len(names) == 1 else None)
        return diff(before, after, section=section or None, check=False).to_json()
