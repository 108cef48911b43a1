"""`ckpt explain`: the page of a finding or of an error of PyTorch, and what a
checkpoint answers to the error.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Collection, Sequence
from io import BufferedReader
from typing import cast

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate, read_file
from ckpt.commands.diff.api import diff
from ckpt.commands.diff.order import backwards
from ckpt.commands.verify.api import verify
from ckpt.commands.verify.verify import VerifyReport
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.survey import Survey
from ckpt.ext.explain import (
    Case,
    Explanation,
    asks_of_file,
    beside_folder,
    document,
    explain_damaged,
    explain_noticed,
    explain_with,
    has_error,
    has_warning,
    no_page,
    pages,
    search,
)
from ckpt.ext.explain.asking import is_asking
from ckpt.ext.explain.case import Answer, Older, Statement
from ckpt.ext.explain.families.contained import contained_statements
from ckpt.ext.explain.families.gradients import OF_GRADIENTS
from ckpt.ext.explain.families.paths import (
    NOT_FOUND,
    lacking_in_folder,
    lacking_names,
    path_in,
)
from ckpt.ext.explain.families.sizes import (
    asks_of_sizes,
    larger_of,
    sizes_statement,
)
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.pages import page_of_code
from ckpt.ext.explain.parted import (
    MOST_PARTS,
    choose_part,
    describe_part,
    is_one_save,
    named_parts,
    named_statements,
    parts_statements,
)
from ckpt.ext.explain.pasted import LONGEST
from ckpt.ext.explain.questions.compared import asks_to_compare, compared_statements
from ckpt.ext.explain.saves import asks_of_saves, describe_save, saves_statements
from ckpt.ext.explain.text import answer_lines, list_lines, page_lines
from ckpt.model.errors import (
    CkptError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import pasted_path, show
from ckpt.surface.api.advice import planning
from ckpt.surface.api.keywords import model_of
from ckpt.surface.api.missing import missing
from ckpt.surface.api.opening import with_model
from ckpt.surface.api.walk import found as walked
from ckpt.surface.api.walk import split_items
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import (
    opened,
    plugins_allowed,
    run_for_each,
    tell_misfit,
)

_LARGEST_LOG = 1 << 30
"""Bytes of a log, of which the end is read."""
_PIECE = 1 << 20
"""Bytes of stdin that are read at a time."""
_TWO_SAVES = "ckpt explain MESSAGE OLDER FILE"
_ENDINGS = (".pth", ".pt", ".bin", ".ckpt", ".safetensors", ".gguf")
"""The endings of checkpoints, by which a file in the place of a message is one."""
_TOLD = frozenset(("same", "changed", "renamed"))
"""The statuses of parameters that both saves have with one shape and one dtype."""


def command(
    words: list[str],
    *,
    section: str | None,
    model: str | None,
    arg: list[str] | None,
    tee: bool,
    json: bool,
    limits: Limits,
) -> int:
    """Explain an error of PyTorch, and answer it for a checkpoint: names, shapes and
    commands.

    It also explains the code of a finding. Without an argument, list the pages.

    \b
    python train.py 2>&1 | ckpt explain - last.pth
    ckpt explain train.log last.pth
    ckpt explain "Parameter indices which did not receive grad for rank 1: 10 11" last.pth
    ckpt explain train.log epoch_1.pth epoch_2.pth
    ckpt explain unused
    """
    if not words:
        if json:
            output.write_json(document(pages()))
        else:
            output.write_lines(list_lines(pages(), output.screen_width()))
        return 0
    is_log = False
    # Paths come off the end first, for an unquoted message is several words.
    paths = _checkpoint_paths(words)
    path = paths[-1] if paths else None
    _refuse_files_first(words[: len(words) - len(paths)])
    text = " ".join(words[: len(words) - len(paths)])
    if path is None and (section is not None or model is not None):
        raise UsageError(
            f"{'--section' if model is None else '--model'} needs the PATH of a "
            "checkpoint"
        )
    is_piped = text == "-"
    if is_piped:
        is_log, text = True, _read_stdin(tee=tee)
    # The code of a finding stays a code, also beside a file that has its name.
    elif os.path.isfile(text) and page_of_code(text) is None:
        is_log, text = True, _read_log(text, limits)
    # A mistyped log would else be searched as the text of an error.
    elif _LOG_NAME.fullmatch(text):
        raise NotOpenedError(
            "no such file",
            path=text,
            hint="a log, or the text of the error itself",
        )
    found = search(text)
    # A warning counts only where a checkpoint is named, which may contradict it.
    is_silent = not (has_error(found.text) or has_error(text)) and (
        path is None or not has_warning(found.text)
    )
    if path is not None and is_piped and _is_message(found.text):
        is_silent = False  # who pipes one line beside a file asks about it
    if path is not None and "?" in found.text[:_LONGEST_QUESTION]:
        is_silent = is_silent and len(found.text) > _LONGEST_QUESTION
    if is_log and found.page is None and is_silent:
        request = _Request(None, None, None, limits)
        noticed = None if path is None else _explain_log(found, path, request)
        if noticed is not None:
            return _write_explanation(noticed, json=json)
        output.write_json(found.to_json()) if json else output.write_text(
            "no error in this text"
        )
        return 0
    # Without a checkpoint only a page answers, with what the error itself names.
    if path is None:
        if found.page is None:
            raise no_page(found.text)
        if found.answer is None and found.message is not None:
            found = found._replace(answer=_answer_of_no_file(found.message))
        return _write_explanation(found, json=json)
    # Only an error of DDP asks which parameters moved between two saves.
    older = paths[0] if len(paths) > 1 else None
    # Plain words about two files, with no error in them, ask how the two differ.
    is_plain = found.message is None and found.page is None
    if (
        older is not None
        and not has_error(found.text)
        and (is_plain or is_asking(found.text))
    ):
        compared = _explain_two(found, older, paths[1], limits)
        return _write_explanation(compared, json=json)
    if older is not None and (
        found.message is None or found.message.kind not in OF_GRADIENTS
    ):
        if page_of_code(text) is not None:
            shown = [pasted_path(name) or "FILE" for name in paths[:2]]
            raise UsageError(
                f"one PATH is asked about a finding, and {len(paths)} are named",
                hint=f"ckpt diff {' '.join(shown)} has the findings about both",
                path=older,
            )
        raise UsageError(
            (
                f"one PATH is asked about this error, and {len(paths)} are named: a "
                "second one, OLDER, goes with an error of DDP about gradients"
            ),
            path=older,
        )
    if model is not None and (
        found.message is None or found.message.kind not in (*OF_GRADIENTS, "optimizer")
    ):
        output.write_talk(
            "ckpt: --model is not used: it answers errors of DDP about gradients, and "
            "of optimizers that do not take their state"
        )
    given = _pasted_model(model, arg or [])
    request = _Request(section, model_of(model, arg), older, limits, given)
    return run_for_each(
        [path],
        lambda name: _write_explanation(_explain_path(found, name, request), json=json),
        json="ckpt.explain" if json else None,
    )


_LOG_NAME = re.compile(r"[^\s:'\"]{1,1000}\.(?:log|txt|out|err|stderr|stdout)")
"""The name of a log, in the place of a message."""
_LONGEST_QUESTION = 2_000
"""Letters of a text that is a question where it has a question mark."""
_SHORT = 1
"""Lines of a text that is one message, and no log."""


def _is_message(text: str) -> bool:
    """Tell whether a text is so short that it is a message, and no log."""
    return sum(bool(line.strip()) for line in text.splitlines()) <= _SHORT


def _write_explanation(found: Explanation, *, json: bool) -> int:
    width = output.screen_width()
    if json:
        output.write_json(found.to_json())
    else:
        output.write_lines(
            answer_lines(found, width)
            if found.answer is not None or found.page is None
            else page_lines(found.page, width)
        )
    if found.exit_code:
        error = no_page(found.text)
        output.write_talk(f"ckpt: {error.problem}")
    return found.exit_code


def _answer_of_no_file(message: Message) -> Answer | None:
    """Say of a path that a program did not find whether it is here, and what is near it
    by name, or return None for other errors.
    """
    found = NOT_FOUND.search(message.text) if message.kind == "absent" else None
    if found is None:
        return None
    path = path_in(found)
    shown = show(path, 200)
    if os.path.exists(path):
        text = (
            f"{shown} is there, seen from this folder: the program runs in another "
            "one, or it was not there yet."
        )
        return Answer("", (Statement(text),))
    meant = missing(path)
    near = f" {meant[:1].upper()}{meant[1:]}" if meant else ""
    text = f"Nothing is at {shown}, seen from this folder either.{near}"
    return Answer("", (Statement(text),))


class _Request(NamedTuple):
    """The options of an answer."""

    section: str | None
    model: ModelRecord | None
    older: str | None
    limits: Limits
    given_model: str | None = None
    """The words of --model and --arg, as a shell takes them."""


def _pasted_model(model: str | None, arguments: Sequence[str]) -> str | None:
    """Return the words behind `--model` for a command that is printed, or None where
    there are none, or none that a shell takes.
    """
    if model is None:
        return None
    words = [pasted_path(word) for word in (model, *arguments)]
    if None in words:
        return None
    return " --arg ".join(word for word in words if word is not None)


def _checkpoint_paths(words: list[str]) -> list[str]:
    """The one or two checkpoints behind the message. Raises UsageError for more of
    them.
    """
    first = len(words)
    # At most two words are checkpoints, and the first word is the message's.
    while first > 1 and first > len(words) - 2 and _is_path(words[first - 1]):
        first -= 1
    # A third file would silently become a word of the message.
    if first > 1 and len(words) - first == 2 and os.path.isfile(words[first - 1]):
        raise UsageError(
            "more than two checkpoints behind the message",
            path=words[first - 1],
            hint=_TWO_SAVES,
        )
    return words[first:]


def _refuse_files_first(words: list[str]) -> None:
    """Raise UsageError for words of a message that begin with a checkpoint which is
    there: as a rule both were typed in the wrong order.
    """
    if len(words) < 2 or not words[0].endswith(_ENDINGS):
        return
    if not os.path.isfile(words[0]):
        return
    files = [word for word in words if _is_path(word)]
    names = [pasted_path(word) or "FILE" for word in files]
    raise UsageError(
        "the message comes first, and the file behind it",
        path=words[0],
        hint=f"ckpt explain MESSAGE {' '.join(names)}",
    )


def _is_path(word: str) -> bool:
    """Tell whether the last word is a checkpoint, and no word of a message."""
    return (
        is_url(word)
        or os.path.exists(word)
        or word.endswith((".pth", ".pt", ".ckpt", ".safetensors"))
    )


def _read_log(path: str, limits: Limits) -> str:
    """The end of a log. Raises UsageError for a checkpoint in the place of the
    message.
    """
    data = read_file(
        locate(path),
        limits._replace(index_bytes=max(limits.index_bytes, _LARGEST_LOG)),
        "the log",
    )
    # A zero byte is in no log, so the file is a checkpoint or another binary file.
    if b"\0" in data[:_PIECE]:
        name = pasted_path(path) or "FILE"
        raise UsageError(
            "a file in the place of the message, and no text",
            path=path,
            hint=f'ckpt explain "…" {name} with the message, or ckpt inspect {name}',
        )
    return data[-LONGEST:].decode("utf-8", "replace")


def _read_stdin(*, tee: bool = False) -> str:
    """The end of stdin, as text. Raises UsageError when it is empty.

    A terminal on stderr sees what comes through a pipe, for the program before the pipe
    no longer writes to it.
    """
    shown = (
        sys.stderr.buffer
        if tee or (sys.stderr.isatty() and not sys.stdin.isatty())
        else None
    )
    pieces: deque[bytes] = deque()
    held = 0
    stream = cast(BufferedReader, sys.stdin.buffer)
    # read1 returns what has come; read would wait until a whole piece is there.
    while piece := stream.read1(_PIECE):
        if shown is not None:
            shown.write(piece)
            shown.flush()
        pieces.append(piece)
        held += len(piece)
        # Old pieces go, so memory does not grow with the output.
        while held - len(pieces[0]) >= LONGEST:
            held -= len(pieces.popleft())
    text = b"".join(pieces)[-LONGEST:].decode("utf-8", "replace")
    if not text.strip():
        raise UsageError(
            "stdin is empty", hint="python train.py 2>&1 | ckpt explain - last.pth"
        )
    return text


def _explain_path(found: Explanation, path: str, request: _Request) -> Explanation:
    limits = request.limits
    try:
        with opened(path, limits, tell=False) as checkpoint:
            survey = with_model(checkpoint, request.model)
            tell_misfit(survey, request.given_model)
            verified = None if is_url(path) else lambda: _verify_path(path, limits)
            older = (
                None
                if request.older is None
                else _compare_older(request.older, survey, request)
            )
            folder = os.path.isdir(path)
            # A folder opens also by a file in a folder below it, where a loader that
            # names its files does not look.
            lacking = lacking_names(found.text, path) if folder else None
            if lacking is not None and _is_below(survey.path, path):
                return found._replace(answer=Answer(path, (lacking,)))
            case = Case(
                survey,
                planning(survey),
                request.section,
                verified,
                older,
                is_folder=folder,
                names_in=lambda other: _names_in(other, limits),
                model=request.given_model,
            )
            told = explain_with(found, case)
            named = named_parts(found.text, path) if folder else []
            if not named or told is None or not is_asking(found.text):
                return told
            layout = survey.checkpoint.layout
            return _explain_named(told, path, named, request, layout)
    except (UnreadableError, UnsupportedError) as error:
        answered = (
            None
            if isinstance(error, NotOpenedError)
            else explain_damaged(found, error, _salvage_command(path, limits))
        )
        if not os.path.isdir(path):
            if answered is not None:
                return answered
            raise
        # A folder that is no checkpoint itself may hold the saves of a run.
        items, _ = split_items(walked([path], plugins=plugins_allowed()))
        saves = [row.path for row in items if row.path != path and row.error is None]
        if len(saves) > 1 and _asks_of_gradients(found):
            newest = _explain_newest(found, path, saves, request)
            if newest is not None:
                return newest
        parted = _explain_parts(found, error, path, saves, request)
        if parted is not None:
            return parted
        is_alone = len(items) == 1 and items[0].path != path and items[0].error is None
        is_inside = is_alone and os.path.dirname(items[0].path) == path.rstrip("/")
        if is_inside and lacking_in_folder(found.text, path) is None:
            # The only checkpoint of the folder.
            return _explain_path(found, items[0].path, request)
        lacking = None if is_inside else lacking_names(found.text, path)
        if lacking is not None:
            answer = Answer(path, (lacking,))
            return beside_folder(found, error, path)._replace(answer=answer)
        if answered is not None:
            return answered
        if is_alone:
            return _explain_path(found, items[0].path, request)
        if found.page is None:
            raise
        return beside_folder(found, error, path)


_LEAST_NAMED = 2
"""Parts of a folder that a question names, from which on it is about these."""


def _explain_named(
    found: Explanation,
    folder: str,
    names: Sequence[str],
    request: _Request,
    layout: str | None = None,
) -> Explanation:
    """Say what each part of a folder is that a question names, where all open. `layout`
    names the layout with which the folder opened.
    """
    parts = []
    for name in names:
        try:
            with opened(
                os.path.join(folder, name), request.limits, tell=False
            ) as checkpoint:
                survey = with_model(checkpoint, None)
                # A folder of DeepSpeed is nothing beside the only part that is named.
                is_whole = layout is not None and survey.checkpoint.layout == layout
                if is_whole and len(names) < _LEAST_NAMED:
                    return found
                size = sum(section.nbytes for section in survey.sections)
                parts.append(describe_part(name, survey)._replace(size=size))
        except CkptError:
            return found
    rows = tuple(named_statements(folder, parts))
    # One part that is named stands beside what the folder itself is.
    if len(parts) < _LEAST_NAMED and found.answer is not None:
        rows = (*rows, *found.answer.statements)
    return found._replace(answer=Answer(folder, rows))


def _explain_parts(
    found: Explanation,
    error: CkptError,
    folder: str,
    saves: Sequence[str],
    request: _Request,
) -> Explanation | None:
    """Answer for a folder that holds one save in parts: say what each file is, and
    answer for the one that the message is about. None for other folders.
    """
    paths = [row for row in saves if _depth_below(row, folder) <= _DEEPEST_PART]
    if not 1 < len(paths) <= MOST_PARTS:
        return None
    parts = []
    several = []
    for path in paths:
        try:
            with opened(path, request.limits, tell=False) as checkpoint:
                survey = with_model(checkpoint, None)
                file = os.path.relpath(path, folder)
                part = describe_part(file, survey)
                size = sum(section.nbytes for section in survey.sections)
                parts.append(part._replace(size=size))
                several.append(describe_save(file, survey))
        except (UnreadableError, UnsupportedError):
            return None
    if not is_one_save(parts):
        is_asked = asks_of_saves(found.text) and not has_error(found.text)
        told = tuple(saves_statements(folder, several, found.text)) if is_asked else ()
        named = named_parts(found.text, folder)
        if not told and len(named) >= _LEAST_NAMED and is_asking(found.text):
            return _explain_named(found, folder, named, request)
        return found._replace(answer=Answer(folder, told)) if told else None
    lacking = lacking_in_folder(found.text, folder) or lacking_names(found.text, folder)
    chosen = None
    if lacking is None:
        chosen = choose_part(parts, found.text, found.message)
    # A command that writes the file which lacks is the whole answer.
    if lacking is not None and lacking.command is not None:
        answer = Answer(folder, (lacking,))
        return beside_folder(found, error, folder)._replace(answer=answer)
    rows = tuple(parts_statements(folder, parts, chosen))
    if lacking is not None or chosen is None:
        told = () if lacking is None else (lacking,)
        answer = Answer(folder, (*told, *rows))
        return beside_folder(found, error, folder)._replace(answer=answer)
    path = os.path.join(folder, chosen.file)
    answered = _explain_path(found, path, request)
    if answered.answer is None:
        return answered
    statements = (*rows, *answered.answer.statements)
    return answered._replace(answer=answered.answer._replace(statements=statements))


_DEEPEST_PART = 2
"""Names below a folder to a part of its save: `unet/diffusion.bin`."""


def _depth_below(path: str, folder: str) -> int:
    """Return how many names lead from a folder to a path."""
    return len(os.path.relpath(path, folder).split(os.sep))


def _asks_of_gradients(found: Explanation) -> bool:
    """Tell whether a message is of DDP: any save of the run answers it."""
    return found.message is not None and found.message.kind in OF_GRADIENTS


def _explain_newest(
    found: Explanation, folder: str, saves: Sequence[str], request: _Request
) -> Explanation | None:
    """Answer a message of DDP for the save of a folder that was written last and can be
    read, and name it. None where none can.
    """
    which = "which was written last"
    latest_first = list(saves)[::-1]  # of equal times the last name comes first
    latest_first.sort(key=_time_written, reverse=True)
    for save in latest_first:
        try:
            answered = _explain_path(found, save, request)
        except (UnreadableError, UnsupportedError):
            which = "the last one that can be read"  # a save was killed
            continue
        if answered.answer is None:
            return answered
        text = (
            f"{show(folder, 80)} holds {len(saves):,} checkpoints. This is the answer "
            f"of {show(os.path.relpath(save, folder), 80)}, {which}."
        )
        statements = (Statement(text), *answered.answer.statements)
        return answered._replace(answer=answered.answer._replace(statements=statements))
    return None


def _time_written(path: str) -> float:
    """Return the time of the last write in seconds; 0 for what is gone."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0


def _is_below(path: str, folder: str) -> bool:
    """Tell whether a file is in a folder of a folder, and not in it itself."""
    return os.path.abspath(os.path.dirname(path)).startswith(
        os.path.join(os.path.abspath(folder), "")
    )


def _explain_log(
    found: Explanation, path: str, request: _Request
) -> Explanation | None:
    """Answer a log without an error for a file that contradicts a line of it, or return
    None.
    """
    if is_url(path) or not asks_of_file(found.text):
        return None
    try:
        with opened(path, request.limits, tell=False) as checkpoint:
            survey = with_model(checkpoint, None)
            folder = os.path.isdir(path)
            case = Case(
                survey,
                planning(survey),
                verify=lambda: _verify_path(path, request.limits),
                is_folder=folder,
                names_in=lambda other: _names_in(other, request.limits),
            )
            return explain_noticed(found, case)
    except (UnreadableError, UnsupportedError):
        return None  # the log names no error, so the file is not asked why


def _explain_two(
    found: Explanation, first: str, second: str, limits: Limits
) -> Explanation:
    """Answer a question about two files by their differences, and by what the second
    one says. Raises CkptError, UsageError for one file given twice.
    """
    if _are_one(first, second):
        raise UsageError("both are one file", path=second)
    try:
        with output.progress_meter("comparing") as progress:
            report = diff(
                first,
                second,
                progress=progress,
                limits=limits,
                plugins=plugins_allowed(),
            )
    except UsageError:
        # Without one part in common there are no rows, and still two files.
        apart = _explain_apart(found, first, second, limits)
        if apart is None:
            raise
        return apart
    rows = list(compared_statements(report, first, second, found.text))
    about = second
    is_of_sizes = asks_of_sizes(found.text)
    if is_of_sizes:
        surveys = [Survey(report.before), Survey(report.after)]
        about = larger_of(surveys)
        rows.insert(0, sizes_statement(surveys))
    told: tuple[Statement, ...] = ()
    is_of_end = _NO_EPOCH.search(found.text) is not None
    # Words of other topics stand in such a question as well: the config, a pretrained one.
    asked = found._replace(text=_OF_SIZE) if is_of_sizes else found
    if is_of_sizes or is_of_end or not asks_to_compare(found.text):
        request = _Request(None, None, None, limits)
        answered = _explain_path(asked, about, request).answer
        told = () if answered is None else answered.statements
    return found._replace(page=None, message=None, answer=Answer(about, (*rows, *told)))


def _explain_apart(
    found: Explanation, first: str, second: str, limits: Limits
) -> Explanation | None:
    """Answer a question about two files that have no part in common by its name, or
    return None where neither says anything to it.
    """
    with (
        opened(first, limits, tell=False) as one,
        opened(second, limits, tell=False) as two,
    ):
        surveys = [one.survey, two.survey]
        rows = list(contained_statements(surveys))
        is_of_sizes = asks_of_sizes(found.text)
        if is_of_sizes and all(survey.tensors for survey in surveys):
            rows.insert(0, sizes_statement(surveys))
        about = larger_of(surveys)
    if not rows:
        return None
    told: tuple[Statement, ...] = ()
    if is_of_sizes:
        request = _Request(None, None, None, limits)
        asked = found._replace(text=_OF_SIZE)
        answered = _explain_path(asked, about, request).answer
        told = () if answered is None else answered.statements
    return found._replace(page=None, message=None, answer=Answer(about, (*rows, *told)))


_OF_SIZE = "why is the file so large?"
"""The question about the larger one of two files."""
_NO_EPOCH = re.compile(r"(?i)\bepoch\b[^\n]{0,20}-1\b")
"""An epoch of -1, which ultralytics writes at the end of a run."""


def _are_one(path: str, other: str) -> bool:
    """Tell whether two paths lead to one file or folder, also through links."""
    try:
        return path == other or os.path.samefile(path, other)
    except OSError:  # one that is far, or is not there: opening it says so
        return False


def _compare_older(older: str, survey: Survey, request: _Request) -> Older:
    """The parameters of the model that are the same in an older save of the run.

    Averages of it are left out, for no gradient moves them. Raises CkptError,
    UsageError for one file given twice.
    """
    path = survey.path
    if _are_one(older, path):
        raise UsageError("both saves are one file", path=path, hint=_TWO_SAVES)
    with output.progress_meter("comparing") as progress:
        report = diff(
            older,
            path,
            section=request.section,
            progress=progress,
            limits=request.limits,
            plugins=plugins_allowed(),
        )
    words = [pasted_path(name) or "…" for name in (older, path)]
    # Two ranks differ in what they took, and neither comes before the other.
    if any(finding.code == "ranks-differ" for finding in report.findings):
        raise UsageError(
            f"of another rank than {show(path, 80)}, so it is no older save of it",
            path=older,
            hint=f"the difference of two ranks: ckpt diff {' '.join(words)}",
        )
    # The counters of the run tell that both saves were given in the wrong order.
    later = backwards(report)
    if later:
        in_order = " ".join(reversed(words))
        hint = f"if both are saves of one run: ckpt explain MESSAGE {in_order}"
        raise UsageError(
            (
                f"a later save than {show(path, 80)} ({later}), and the older one "
                "comes first"
            ),
            path=older,
            hint=hint,
        )
    averages = {
        entry.name
        for section in survey.sections
        if section.kind == "ema"
        for entry in section.entries
    }
    parameters = [
        row
        for row in report.rows
        if row.role.role in ("parameter", "unknown")
        and (
            not survey.models or request.section is not None or row.name not in averages
        )
    ]
    # A parameter whose optimizer stepped had a gradient, also where it is the same.
    same = [row for row in parameters if row.status == "same"]
    unchanged = [row for row in same if row.cause != "stepped"]
    return Older(
        older,
        tuple(row.name for row in unchanged),
        tuple(row.name for row in same if row.cause == "stepped"),
        is_sure=all(row.cause not in (None, "unknown") for row in unchanged),
        changed=sum(row.status == "changed" for row in parameters),
        untold=tuple(
            row.name
            for row in parameters
            if row.after is not None and row.status not in _TOLD
        ),
        unsure=frozenset(row.name for row in parameters if row.role.role == "unknown"),
    )


def _names_in(path: str, limits: Limits) -> Collection[str]:
    """The names of the tensors of a file beside the checkpoint, or none where it is no
    checkpoint.
    """
    try:
        with opened(path, limits, tell=False) as checkpoint:
            return {entry.name for entry in checkpoint.survey.tensors}
    except CkptError:
        return ()


def _verify_path(path: str, limits: Limits) -> VerifyReport:
    """The report of `ckpt verify` on all bytes of a file or a folder."""
    with output.progress_meter("checking") as progress:
        return verify(path, progress=progress, limits=limits, plugins=plugins_allowed())


def _salvage_command(path: str, limits: Limits) -> str | None:
    """The command that writes what is whole of a damaged file, or None where none
    works.
    """
    from ckpt.surface.api.advice import Ways  # here: only a damaged file pays for it

    try:
        with opened(path, limits, tell=False, partial=True) as checkpoint:
            return Ways(checkpoint.survey, limits).way(("salvage",)).command
    except CkptError:
        return None
