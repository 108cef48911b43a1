"""`ckpt report`: documents of the other commands as one page of HTML."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from ckpt import __version__
from ckpt.bytes import target
from ckpt.bytes.far import is_url
from ckpt.commands.diff.api import diff
from ckpt.commands.inspect.api import inspect
from ckpt.commands.ls.api import ls
from ckpt.commands.ls.ls import LsRow
from ckpt.commands.stats.api import stats
from ckpt.ext.page.html import html_page
from ckpt.ext.page.views import (
    Numbers,
    checkpoint_paths,
    error_document,
    in_series,
    is_error,
    is_series,
    numbers_of,
    page_payload,
)
from ckpt.formats import save
from ckpt.formats.listing import open_documents
from ckpt.model.checkpoint import Checkpoint as Contents
from ckpt.model.errors import CkptError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.text import Json, counted_noun, show, size_text
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.progress import Progress
from ckpt.surface.api.walk import (
    Found,
    empty_folders,
    find_items_to_open,
    nothing_in,
    others_text,
    split_items,
)
from ckpt.surface.cli import output
from ckpt.surface.cli.answers import drop_skipped, is_skipped
from ckpt.surface.cli.inputs import (
    TROUBLE,
    named_paths,
    notice_lines,
    opened,
    plugins_allowed,
    unread_lines,
)

Document = dict[str, Json]


def command(
    paths: list[str],
    *,
    force: bool,
    quick: bool,
    section: str | None,
    files_from: list[str] | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Draw checkpoints as one page of HTML: what they hold, how tensors are spread,
    what moved over time.

    One file is drawn as inspect and a folder as ls, without reading tensor data. Two
    files are compared as diff does. More are a series, which is read whole, also all
    files of a folder: the norm of each layer, its change from file to file, and what
    all files record. The page requests nothing.

    \b
    ckpt report runs/epoch_12.pth -o report.html
    ckpt report runs/epoch_*.pth -o series.html
    ckpt report runs/ -o folder.html
    ckpt report inspect.json -o report.html
    """
    names = named_paths(paths, files_from)
    # The place of the page is checked first: reading may take hours.
    if keywords["output"] not in (None, "-") and not force:
        target.refuse_inputs(keywords["output"], names)
    page = Page(keywords["output"], force=force)
    documents = _Documents(page, limits, section)
    if documents.read(names, measured=keywords["stats"], quick=quick):
        page.write(documents.found, documents.numbers)
        page.tell(documents.others)
    else:
        output.write_conclusion("nothing was written")
    return documents.code


class Page:
    """The file that a page is written to, checked before anything is read. Raises
    UsageError, WriteError.
    """

    def __init__(self, out: str | None, *, force: bool) -> None:
        if out is None:
            raise UsageError("where to write?", hint="-o report.html")
        self.is_stdout = out == "-"
        self._to = None if self.is_stdout else target.target(out, force=force)
        self._wrote = ""

    def drawn_from(self, checkpoint: Contents) -> None:
        """Refuse to replace a file of the checkpoint."""
        to = self._to
        if (
            to is not None
            and to.replaced is not None
            and save.is_source(checkpoint, to.real)
        ):
            raise _is_source(to)

    def drawn_from_document(self, path: str) -> None:
        """The same for a stored document."""
        if self._to is None or self._to.replaced is None or is_url(path):
            return
        # By device and inode: the path may be spelled in another way.
        if os.path.samestat(self._to.replaced, os.stat(path)):
            raise _is_source(self._to)

    @contextmanager
    def told(self, path: str, schema: str) -> Iterator[None]:
        """Write the page of an error about a PATH that is there before it ends the
        command.
        """
        try:
            yield
        # A mistake in the request is no page.
        except UsageError:
            raise
        except CkptError as error:
            if not _is_missing(path):
                with about(path):
                    self.write([error_document(path, schema, error)])
            raise

    def write(
        self, documents: Sequence[Document], numbers: Numbers | None = None
    ) -> None:
        """Draw the documents and put the page in place. Raises UnreadableError,
        WriteError.
        """
        data = html_page(documents, date=_page_date(), numbers=numbers)
        if self._to is None:
            # The text written so far comes first: the buffer below goes around it.
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            return
        if self._to.warning is not None:
            output.write_talk(f"ckpt: {show(self._to.path, None)}: {self._to.warning}")
        with target.writing_file(self._to, len(data)) as sink:
            sink.write(data)
        for text in sink.warnings:
            output.write_talk(f"ckpt: {text}")
        unreadable = sum(map(is_error, documents))
        wrote = [
            f"wrote {show(self._to.path, None)}",
            counted_noun(len(checkpoint_paths(documents)), "checkpoint"),
        ]
        if unreadable:
            wrote.append(f"{unreadable:,} unreadable")
        self._wrote = ", ".join([*wrote, size_text(len(data))])

    def tell(self, others: Sequence[str] = ()) -> None:
        """Say on stderr what was written, and what was left out.

        It reads `wrote report.html, 3 checkpoints, 1 unreadable, 1.12 MiB`.
        """
        parts = [self._wrote, others_text(others) if others else ""]
        if any(parts):
            output.write_conclusion(" · ".join(part for part in parts if part))


def _page_date() -> str:
    """The date of a page, in UTC: today, or the day that SOURCE_DATE_EPOCH names."""
    import time  # here: one page pays for it

    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    # A longer number is no time that `gmtime` takes.
    is_time = seconds.isascii() and seconds.isdecimal() and len(seconds) < 12
    return time.strftime("%Y-%m-%d", time.gmtime(int(seconds) if is_time else None))


def _is_missing(path: str) -> bool:
    """Tell whether a PATH leads nowhere: its page would stand in the way of the page
    that was meant.
    """
    return not is_url(path) and not os.path.lexists(path)


def _is_source(to: target.Target) -> UsageError:
    return UsageError(
        "OUT is a source of the page, which --force does not replace", path=to.path
    )


class _Bar:
    """One bar for the work on several files, of which each tells its own share. A file
    counts with its bytes.
    """

    def __init__(self, reach: Progress | None, total: int) -> None:
        self._reach = reach
        self._total = total
        self._done = 0

    @contextmanager
    def part(self, size: int) -> Iterator[Progress | None]:
        """Count the work of the block as `size` bytes, whatever it says is all
        of it.
        """
        reach = self._reach
        if reach is None:
            yield None
            return

        def progress(done: int, total: int) -> None:
            # Each work says how much it has done of its own total, in its own unit.
            reach(self._done + size * done // max(total, 1), self._total)

        try:
            yield progress
        # Also after an error: the next file goes on from there.
        finally:
            self._done += size


class _Documents:
    """The documents of a page, in the order in which they are made, and the
    exit code.
    """

    def __init__(self, page: Page, limits: Limits, section: str | None) -> None:
        self.found: list[Document] = []
        self.others: list[str] = []
        self.code = 0
        self.numbers: dict[str, dict[str, float]] = {}
        self._page = page
        self._limits = limits
        self._section = section

    def read(self, names: Sequence[str], *, measured: bool, quick: bool) -> bool:
        """Read what the PATHs lead to; False where one of them leads nowhere. Raises
        UsageError when nothing is there.
        """
        # One PATH that leads nowhere is mostly a mistake: no page of the rest is
        # written.
        missing = [Found(name) for name in names if _is_missing(name)]
        if missing:
            self._take_each(
                missing, lambda item: self._inspect_file(item, measured=False)
            )
            return False
        # Documents that were printed before are taken first, and need no checkpoint.
        names = [name for name in names if not self._take_stored(name)]
        items, self.others = split_items(
            find_items_to_open(names, self._limits, plugins=plugins_allowed())
        )
        items = drop_skipped(items)
        paths = [item.path for item in items]
        # The shell writes them in this order, in which epoch_10 comes before epoch_2.
        # In any other order they were given on purpose.
        by_shell = paths == sorted(paths)
        if by_shell:
            items.sort(key=lambda item: natural_sort_key(item.path))
        # A folder with one file is drawn as a folder.
        is_single = len(items) == 1 and items[0].folder is None
        walked = any(item.folder is not None for item in items)
        if is_single:
            self._take_each(
                items, lambda item: self._inspect_file(item, measured=measured)
            )
        elif quick:
            self._take_each(items, self._list_file)
        else:
            self._take_several(
                items,
                by_shell=by_shell,
                measured=measured,
                is_chosen=measured or not walked,
            )
        for name in empty_folders(names, [item.path for item in items]):
            self._add_failure(name, nothing_in(name))
        if not self.found:
            raise UsageError(
                f"no checkpoint in {', '.join(show(name, 80) for name in names[:3])}"
            )
        return True

    def _take_stored(self, path: str) -> bool:
        """Take the documents that a file holds; False for a file of another kind."""
        try:
            with about(path):
                documents = open_documents(path, self._limits)
            # None: the file is no document, but maybe a checkpoint.
            if documents is None:
                return False
            self._page.drawn_from_document(path)
            # A page that cannot be drawn is said of this file.
            page_payload(documents, __version__)
        except UsageError:
            raise
        except CkptError as error:
            self._add_failure(path, error)
            return True
        self.found += documents
        return True

    def _add_failure(self, path: str, error: CkptError) -> None:
        """A PATH that cannot be read stands in the page, and its line on stderr."""
        with about(path):
            self.found.append(error_document(path, "ckpt.inspect", error))
        if error.path is None:
            error.path = path
        output.write_error(error)
        self.code = TROUBLE

    def _take_each(self, items: Sequence[Found], take: Callable[[Found], None]) -> None:
        """Take the documents of each file. One that cannot be read does not stop the
        others.
        """
        reading = (
            output.progress("reading", len(items), "files")
            if len(items) > 1
            else nullcontext()
        )
        with reading as progress:
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
                        self._add_failure(item.path, error)
                if progress is not None:
                    progress(1)

    def _opened(self, path: str) -> Checkpoint:
        checkpoint = opened(path, self._limits, tell=False)
        try:
            # OUT must not replace what it is drawn from, which is known only now.
            self._page.drawn_from(checkpoint.checkpoint)
        except CkptError:
            checkpoint.close()
            raise
        for text in notice_lines(checkpoint):
            output.write_talk(text)
        return checkpoint

    def _inspect_file(self, item: Found, *, measured: bool) -> None:
        """One checkpoint, with the numbers of its tensors where they are asked for."""
        with self._opened(item.path) as checkpoint:
            documents = [inspect(checkpoint, section=self._section).to_json()]
            if measured:
                with output.progress_meter("measuring") as progress:
                    documents.append(
                        self._measure_checkpoint(checkpoint, progress, histogram=True)
                    )
        self.found += documents

    def _list_file(self, item: Found) -> None:
        """One row of a folder."""
        with self._opened(item.path) as checkpoint:
            documents = ls(checkpoint).to_json()
        self.found += documents

    def _take_several(
        self, items: Sequence[Found], *, by_shell: bool, measured: bool, is_chosen: bool
    ) -> None:
        """The rows of the files, then a series, or the comparison of two: in the order
        of what they record.

        Files that nobody chose, because they are all of a folder, are read where they
        are a series on this machine.
        """
        rows: list[LsRow] = []
        read: dict[str, Found] = {}

        def take(item: Found) -> None:
            with self._opened(item.path) as checkpoint:
                rows.extend(ls(checkpoint))
                self.numbers[item.path] = numbers_of(checkpoint.survey)
            # The path that `ls` shows, which is not always the one that was typed.
            read[rows[-1].path] = item

        self._take_each(items, take)
        # Reading all files of a folder takes long: it was asked for, or it is worth it.
        is_far = any(is_url(row.path) for row in rows)
        if not is_chosen and (is_far or not is_series(rows)):
            self.found += [row.to_json() for row in rows]
            return
        order = in_series(rows) if by_shell else rows
        documents = {read[row.path].path: row.to_json() for row in order}
        self._take_series(
            [read[row.path] for row in order],
            documents,
            whole=len(items) == 2 and not measured,
        )

    def _take_series(
        self, items: Sequence[Found], rows: Mapping[str, Document], *, whole: bool
    ) -> None:
        """The row of each file, its numbers, and its changes from the file before;
        `whole` compares all of two.
        """
        sizes: dict[str, int] = {}
        for path, row in rows.items():
            size = row["bytes"]
            sizes[path] = size if isinstance(size, int) else 0
        read = [sizes[item.path] for item in items]
        # Each is compared with both neighbours; its numbers are one more reading.
        total = sum(read) + sum(read[1:-1]) + (0 if whole else sum(read))
        with (
            ExitStack() as stack,
            output.progress_meter("comparing" if whole else "reading") as reach,
        ):
            bar = _Bar(reach, total)
            # The file before, while it is open: (checkpoint, what closes it, bytes). It
            # is empty at the start.
            last: list[tuple[Checkpoint, ExitStack, int]] = []

            def take(item: Found) -> None:
                # A file that cannot be read is closed, and the next is compared with
                # the one before.
                with ExitStack() as inner:
                    checkpoint = inner.enter_context(
                        opened(item.path, self._limits, tell=False)
                    )
                    documents = [rows[item.path]]
                    size = sizes[item.path]
                    if not whole:
                        with bar.part(size) as progress:
                            documents.append(
                                self._measure_checkpoint(checkpoint, progress)
                            )
                    if last:
                        with bar.part(last[0][2] + size) as progress:
                            documents.append(
                                self._compare_checkpoints(
                                    last[0][0],
                                    checkpoint,
                                    whole=whole,
                                    progress=progress,
                                )
                            )
                        # Two files are open at a time, however many there are.
                        last.pop()[1].close()
                    # From here on the file stays open for its successor.
                    last.append(
                        (checkpoint, stack.enter_context(inner.pop_all()), size)
                    )
                self.found += documents

            self._take_each(items, take)

    def _measure_checkpoint(
        self,
        checkpoint: Checkpoint,
        progress: Progress | None = None,
        *,
        histogram: bool = False,
    ) -> Document:
        """The numbers of the model, or of all tensors where there are several
        models.
        """
        # With several models no section is meant.
        several = self._section is None and len(checkpoint.survey.candidates) > 1
        report = stats(
            checkpoint,
            section=self._section,
            all=several,
            channels=True,
            histogram=histogram,
            progress=progress,
        )
        # The page has their names, and a script asks the exit code.
        gone = [(row.entry.name, row.why) for row in report.unread]
        for line in unread_lines(checkpoint.path, "measured", gone):
            output.write_talk(line)
            self.code = TROUBLE
        return report.to_json()

    def _compare_checkpoints(
        self,
        before: Checkpoint,
        after: Checkpoint,
        *,
        whole: bool,
        progress: Progress | None,
    ) -> Document:
        """Return the changes between two files: all of them, or the changes of a series
        in its models.

        They are in the model when both files have one of the same name.
        """
        if whole:
            report = diff(
                before, after, section=self._section, check=False, progress=progress
            )
            try:
                report.check()
            except UsageError:
                pass  # the page says what cannot be compared
            except CkptError as error:
                output.write_error(error)
                self.code = TROUBLE
            return report.to_json()
        candidates = [side.survey.candidates for side in (before, after)]
        names = {models[0].name for models in candidates if len(models) == 1}
        # One model in each, of one name: else all tensors are compared.
        both = all(len(models) == 1 for models in candidates)
        section = self._section or (names.pop() if both and len(names) == 1 else None)
        return diff(
            before, after, section=section or None, check=False, progress=progress
        ).to_json()
