"""The files that a command looks at: the PATHs as typed, folders walked, names of a
list; and one answer about each.

A command goes on after an error, and the worst exit code wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from ckpt.bytes.location import locate, shown_path
from ckpt.bytes.source import read_limited, read_pipe
from ckpt.evidence.survey import Survey
from ckpt.hooks import load_hook
from ckpt.model.errors import (
    CkptError,
    UsageError,
    about,
)
from ckpt.model.findings import DOUBTS, Gate
from ckpt.model.limits import Limits
from ckpt.model.text import (
    Json,
    and_more,
    counted_noun,
    show,
    show_folded_names,
    show_literal,
    show_names,
)
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.keywords import doubt_lines, gate_of
from ckpt.surface.api.opening import open_side
from ckpt.surface.cli import output
from ckpt.surface.cli.start import NothingListedError, Signal
from ckpt.surface.reports import document_head

STDIN = "-"
"""The name that stands for stdin."""
_LONGEST = 1 << 24
"""Bytes of a list of names."""


def named_paths(
    paths: Sequence[str],
    lists: Sequence[str] | None,
    what: str = "look at",
    *,
    require: bool = False,
) -> list[str]:
    """The PATHs, and the names in lists, each a file, or stdin for `-`: one a line, or
    with a NUL after each.

    Raises UsageError when there is neither, and with `require` for an empty list. Else
    that raises NothingListedError.
    """
    lists = lists or ()
    # The second reading would find nothing, and the list would be short without a word.
    if lists.count(STDIN) > 1:
        raise UsageError("--files-from -: given twice, and stdin is read once")
    names = [*paths]
    for path in lists:
        names += _names_in(path)
    if names:
        return names
    if not lists:
        raise UsageError(f"nothing to {what}", hint="PATH..., or --files-from FILE")
    place = ", ".join("stdin" if path == STDIN else show(path, None) for path in lists)
    if require:
        raise UsageError(f"{place}: an empty list, and --require asks for a checkpoint")
    # `find … | ckpt ls --files-from -` may find nothing, which is no mistake.
    raise NothingListedError(f"{place}: an empty list, nothing to {what}")


def _names_in(path: str) -> list[str]:
    """The names in a list."""
    if path == STDIN:
        data = stdin_bytes("--files-from")
    else:
        with about(path):
            data = _list_bytes(path)
    # `find -print0`: names may hold newlines.
    if b"\0" in data:
        return [
            shown_path(os.fsdecode(name))
            for name in data.split(b"\0")
            # A blank name counts only where a file is really called so.
            if name.strip() or os.path.lexists(name)
        ]
    return [
        shown_path(os.fsdecode(line))
        for name in data.split(b"\n")
        if (line := _named_in(name))
    ]


_BOM = b"\xef\xbb\xbf"


def _named_in(line: bytes) -> bytes:
    """Return the name in a line of a list, or nothing for a blank line and for a
    comment, which begins with #.

    A file that is really called so comes first. Editors of Windows put a mark in front,
    and end lines with CR LF.
    """
    # Before anything is cut off: the name itself may end with a CR.
    if os.path.lexists(line):
        return line
    line = line.removeprefix(_BOM).removesuffix(b"\r")
    is_name = line.strip() and (line[:1] != b"#" or os.path.lexists(line))
    return line if is_name else b""


def may_be_many(names: Sequence[str], jobs: int | None) -> bool:
    """Tell whether the PATHs may lead to files that copies of this process read."""
    return len(names) > 1 or jobs is not None or any(map(os.path.isdir, names))


def stdin_bytes(option: str, limit: int = _LONGEST) -> bytes:
    """Return all that is on stdin. Raises UsageError where it is more than `limit`
    bytes.
    """
    # One byte more shows that there is more.
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"{option} -: the list has over {limit:,} bytes")
    return data


def _list_bytes(path: str) -> bytes:
    """All that is in a list. `<(find …)` of a shell is a pipe, which is read to its
    end.
    """
    piped = read_pipe(path, _LONGEST + 1)
    if piped is not None:
        if len(piped) > _LONGEST:
            raise UsageError(f"the list has over {_LONGEST:,} bytes")
        return piped
    source = locate(path).open()
    try:
        return read_limited(source, _LONGEST, "", f"the list {show(path, 80)}")
    finally:
        source.close()


TROUBLE = 2

Document: TypeAlias = Callable[[str, CkptError], dict[str, Json]]
"""The document of an error about a PATH."""


def gate_given(command: str, keywords: Mapping[str, Any], **more: Any) -> Gate:
    """The gate of a command, from the keywords that it hands on. Raises UsageError."""
    return gate_of(
        command,
        *(keywords[name] for name in ("select", "ignore", "level", "fail_on")),
        **more,
    )


def worst_code(codes: Iterable[int]) -> int:
    """Return a command's exit code from its files' codes: 2 (trouble) over 1 (found
    something) over 0.
    """
    return max(codes, default=0)


def run_for_each(
    paths: Sequence[str],
    one: Callable[[str], int],
    *,
    json: str | None = None,
    tell_rest: bool = False,
) -> int:
    """Run a command for each PATH and print what fails; the exit code of all.

    With `json`, the name of the command's schema, what fails is a document too. With
    `tell_rest`, an interrupt says which PATHs were not begun.
    """
    codes: list[int] = []
    try:
        for path in paths:
            try:
                with about(path), documenting_errors(path, json):
                    codes.append(one(path))
            except CkptError as error:
                output.write_error(error)
                codes.append(TROUBLE)
    except Signal:
        # A user who interrupts a long run needs to know where it stood.
        if tell_rest and len(paths) > 1:
            sys.stdout.flush()  # the reports on what is done
            # A code is appended when a PATH is through, so this is the one that was
            # stopped.
            index = len(codes)
            rest = [show(path, 80) for path in paths[index + 1 :]]
            begun = (
                f"stopped at {show(paths[index], 80)}, {index:,} of {len(paths):,} "
                "before it are through"
            )
            output.write_complaint(
                f"ckpt: {begun}" + (f"; not begun: {and_more(rest, 3)}" if rest else "")
            )
        raise
    return worst_code(codes)


@contextmanager
def using_cluster(where: str | None, names: Iterable[str]) -> Iterator[bool]:
    """Give the work on the PATHs to a cluster, as `--cluster` says; tell whether there
    is one.

    Raises UsageError for a URL with a secret, CkptError without a cluster.
    """
    if where is None:
        yield False
        return
    from ckpt.bytes.executor import using_executor as given_to

    connected = load_hook("cluster").connected  # here: only a cluster pays for it
    with connected(where, names, output.write_talk) as executor, given_to(executor):
        yield True


@contextmanager
def documenting_errors(path: str, schema: str | None) -> Iterator[None]:
    """Write the document of an error about a PATH, where JSON is asked for;
    docs/json.md is its contract.
    """
    try:
        yield
    except CkptError as error:
        # The document goes to stdout before the error goes to stderr.
        if schema is not None:
            output.write_json(failure_document(schema)(path, error))
        raise


def failure_document(schema: str) -> Document:
    """Return the maker of the document of an error about a PATH.

    It is for a command whose own documents hold no errors.
    """
    return lambda path, error: {
        **document_head(schema, 1),
        "file": {"path": path},
        "error": error.failure(path)._asdict(),
    }


# --- one checkpoint -------------------------------------------------------------------


def refuse_factory(path: str, option: str) -> None:
    """Raise UsageError for FILE.py:FACTORY where a checkpoint is expected: only an
    option may run code.
    """
    # Only where no file has this name.
    file, _, name = path.rpartition(":")
    # A file that is really called so is a file.
    if file.endswith(".py") and name.isidentifier() and not os.path.lexists(path):
        raise UsageError(
            "not a checkpoint",
            path=path,
            hint=f"{option} {show(path, 80)} builds a live model",
        )


def plugins_allowed() -> bool:
    """Tell whether formats of other distributions may be asked. CKPT_NO_PLUGINS=1 says
    no.
    """
    return os.environ.get("CKPT_NO_PLUGINS", "") in ("", "0")


def opened(
    path: str,
    limits: Limits,
    *,
    tell: bool = True,
    structure: bool = False,
    partial: bool = False,
    in_ranks: bool = False,
) -> Checkpoint:
    """The checkpoint at a path, as the command line and the environment say. Raises
    CkptError.

    With `tell`, stderr names the damaged files of a folder, which the command then does
    without. With `structure`, a stored listing is one too; with `partial`, what is left
    of one that is damaged; with `in_ranks`, the files that a pattern names.
    """
    plugins = plugins_allowed()
    checkpoint: Checkpoint | None = None
    # A pattern such as `tp*.pt` is no path, so it is tried first.
    if in_ranks:
        layouts = load_hook("layouts")
        checkpoint = layouts.open_pattern(path, limits, plugins=plugins)
    if checkpoint is None:
        checkpoint = open_side(
            path,
            structure=structure,
            partial=partial,
            limits=limits,
            plugins=plugins,
        )
    for text in notice_lines(checkpoint) if tell else ():
        output.write_talk(text)
    return checkpoint


def tell_misfit(survey: Survey, model: str | None) -> None:
    """Name on stderr the tensors that a file and a live model do not share."""
    match = survey.record
    # A record may also come from the file itself, which ckpt.snapshot wrote.
    if model is None or match is None or match.record.source != "model":
        return
    parts = [
        f"{side} {counted_noun(len(names), 'tensor')} of the {other}: "
        f"{show_folded_names(names, 4)}"
        for side, other, names in (
            ("the model lacks", "file", match.only_in_file()),
            ("the file lacks", "model", match.only_in_model()),
        )
        if names
    ]
    if parts:
        output.write_talk(f"ckpt: {show(model, 80)}: {'; '.join(parts)}")


def notice_lines(checkpoint: Checkpoint, codes: Collection[str] = DOUBTS) -> list[str]:
    """The lines about each doubt, or each notice with one of the `codes`, for
    stderr.
    """
    return [f"ckpt: {text}" for text in doubt_lines(checkpoint.checkpoint, codes)]


def tell(line: str) -> None:
    """Write a warning to stderr, in red where a result runs code."""
    # The word is part of the sentence, so no second flag is handed through.
    (output.write_alarm if ": DANGER: " in line else output.write_talk)(f"ckpt: {line}")


def unread_lines(path: str, what: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """A line about the tensors that `what` ("measured") does not hold for, (name, why);
    none where all were read.
    """
    if not rows:
        return []
    # One line for all of them: the reason of the first stands for the others.
    names = show_names([name for name, _ in rows], 5)
    return [
        f"ckpt: {show(path, None)}: not {what}: {names}: {show_literal(rows[0][1])}"
    ]


def check_table(name: str | None, *, tsv: bool, header: bool) -> None:
    """Raise UsageError for a `--table` that tabulate does not know, and for
    `--no-header` without a table whose header it omits.
    """
    if not (header or tsv or name):
        raise UsageError("--no-header goes with --tsv or --table")
    if name is None:
        return
    # Here: only --table needs it.
    from tabulate import tabulate_formats

    if name not in tabulate_formats:
        raise UsageError(
            f"--table {name}: no such format",
            hint="formats: " + " ".join(tabulate_formats),
        )
