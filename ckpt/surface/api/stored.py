"""Stored sums, and another save to compare with: what `sums=` and `like=` name."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.bytes.location import locate, read_file, with_home
from ckpt.commands.rewriting.edited import with_ties
from ckpt.commands.sum.recorded import (
    RecordedList,
    SumReport,
    compare_recorded,
    is_recorded,
    list_of,
)
from ckpt.commands.sum.recorded import parse as parse_recorded
from ckpt.commands.sum.sums import Like, Sum, like_of, like_of_sums, listed_path, parse
from ckpt.commands.verify import verify
from ckpt.commands.verify.verify import VerifyReport
from ckpt.formats.verify import recorded
from ckpt.model.errors import (
    CkptError,
    UnreadableError,
    UnsupportedError,
    UsageError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.opening import Input, at_hand, location_of

NO_SUMS = "--sums has no sums of this file"
NOT_WITH_LISTS = (
    "--include, --exclude and --section do not go with the list of ckpt sum --recorded"
)


def like_at(
    given: Input, limits: Limits, section: str | None = None, *, plugins: bool = False
) -> Like:
    """The tensors of another save, or of a file of sums. Raises CkptError."""
    try:
        with at_hand(given, limits, plugins=plugins) as opened:
            survey = with_ties(opened.survey, limits)
            # The other save may have no such section: then it is its model.
            if any(part.name == section for part in survey.sections):
                section_name = section
            else:
                section_name = None
            return like_of(survey, section_name)
    except (UnreadableError, UnsupportedError) as error:
        if not isinstance(given, (str, os.PathLike)):
            raise
        # No checkpoint: it may be a file of sums. If not, the first error is told.
        path = os.fspath(given)
        try:
            return like_of_sums(path, all_sums(path, limits, Globs((), ())))
        # A file of sums, and a request that does not go with it.
        except UsageError:
            raise
        except CkptError:
            raise error from None


class Stored(NamedTuple):
    """The content of a file of sums: the lists of `ckpt sum --recorded`, or the sums
    that are selected.
    """

    path: str
    lists: Sequence[RecordedList] = ()
    sums: Sequence[Sum] = ()

    def files(self) -> list[str]:
        """The paths of the checkpoints that it lists; none where it has the sums of one
        that it does not name.
        """
        if self.lists:
            paths = [record.path for record in self.lists]
        else:
            paths = [row.file for row in self.sums]
        # A list that names none of its files is of one checkpoint, wherever it lies.
        named = [path for path in paths if path is not None]
        return list(dict.fromkeys(named)) if len(named) == len(paths) else []


def checked_with(
    sums: str | os.PathLike[str] | SumReport | Stored | None,
    like: Input | Like | None,
    globs: Globs,
    section: str | None,
    limits: Limits,
    *,
    quick: bool,
    plugins: bool,
) -> tuple[Stored | None, Like | None]:
    """Read what a checkpoint is compared with. Raises UsageError for keywords that
    contradict each other, CkptError.
    """
    # These choose among sums; alone they would be ignored.
    if sums is None and (globs or (section is not None and like is None)):
        raise UsageError(
            "--include and --exclude go with --sums, --section with --sums or --like"
        )
    stored = sums if isinstance(sums, Stored) else None
    if isinstance(sums, SumReport):
        rows = [row for row in sums.sums if row.unread is None]
        if sums.recorded is None:
            stored = Stored(sums.path, sums=_select_sums(rows, globs, sums.path))
        else:
            stored = Stored(sums.path, [sums.recorded])
    elif stored is None and sums is not None:
        assert not isinstance(sums, Stored)
        path = with_home(os.fsdecode(sums))
        lists = recorded_lists(path, limits)
        stored = Stored(path, lists)
    if (
        stored is not None
        and stored.lists
        and (globs or (section is not None and like is None))
    ):
        raise UsageError(NOT_WITH_LISTS, path=stored.path)
    # SHA-256 needs all bytes, which --quick does not read.
    if quick and stored is not None and not stored.lists:
        raise UsageError(
            "--quick goes with the list of ckpt sum --recorded, not with other sums",
            path=stored.path,
        )
    if stored is not None and not stored.lists and not stored.sums:
        stored = stored._replace(sums=all_sums(stored.path, limits, globs))
    if like is None or isinstance(like, Like):
        return stored, like
    return stored, like_at(like, limits, section, plugins=plugins)


def compared_with(
    stored: Stored, report: VerifyReport, opened: Checkpoint, *, quick: bool
) -> VerifyReport:
    """The report with what differs from the list of a checkpoint. Raises CkptError."""
    # By the path, or by how the path ends: a copy lies elsewhere.
    expected = list_of(opened.path, stored.lists)
    if expected is None:
        raise UsageError(NO_SUMS)
    record = recorded(location_of(opened), opened.limits, plugins=opened.plugins)
    comparison = compare_recorded(expected, record.format, record.files, stored.path)
    return verify.with_recorded(
        report, comparison.problems, comparison.checked, quick=quick
    )


def _sums_text(path: str, limits: Limits) -> str:
    """The text of a file of sums. Raises CkptError."""
    return _decode_sums(read_file(locate(path), limits, "the sums"))


def _decode_sums(data: bytes) -> str:
    """The text of sums. Raises UnreadableError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError(
            "is not text", hint="expected the lines of ckpt sum"
        ) from None


PIPED = "(stdin)"
"""The name of sums that came on stdin."""


def piped_sums(data: bytes, globs: Globs) -> Stored:
    """The content of sums that came on stdin. Raises CkptError, UsageError."""
    path = PIPED
    with about(path):
        text = _decode_sums(data)
        if is_recorded(text):
            return Stored(path, parse_recorded(text))
        return Stored(path, sums=_select_sums(parse(text), globs, path))


def recorded_lists(path: str, limits: Limits) -> list[RecordedList]:
    """The lists in a file that `ckpt sum --recorded` wrote; none in a file of other
    sums. Raises CkptError.
    """
    with about(path):
        text = _sums_text(path, limits)
        return parse_recorded(text) if is_recorded(text) else []


def all_sums(path: str, limits: Limits, globs: Globs) -> list[Sum]:
    """The sums in a file that are selected. Raises CkptError."""
    with about(path):
        text = _sums_text(path, limits)
        if is_recorded(text):
            raise UsageError(
                "recorded checksums, which only ckpt verify --sums compares"
            )
        return _select_sums(parse(text), globs, path)


def _select_sums(stored: Sequence[Sum], globs: Globs, path: str) -> list[Sum]:
    """The sums that are selected. Raises UsageError without any."""
    chosen = [row for row in stored if globs.match(row.name)]
    if not chosen:
        raise globs.refusal([row.name for row in stored], path)
    return chosen


def sums_of(path: str, stored: Sequence[Sum]) -> list[Sum]:
    """The stored sums of one file: those below its name, and those below none. Raises
    UsageError without any.
    """
    # `row.file` is None above the first name: such sums are of any file.
    own_file = listed_path(path, _files_of(stored))
    own = [row for row in stored if row.file is None or row.file == own_file]
    if not own:
        raise UsageError(NO_SUMS)
    return own


def _files_of(stored: Sequence[Sum]) -> list[str]:
    """The files that sums name, each once."""
    return list(dict.fromkeys(row.file for row in stored if row.file is not None))
