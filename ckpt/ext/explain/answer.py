"""The answer that a checkpoint gives to an error, to a finding, and where it does not
open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ckpt.ext.explain.asking import asks_plainly
from ckpt.ext.explain.case import (
    NOTHING,
    Answer,
    Case,
    Statement,
    begin_sentence,
    finding_statements,
    load_statements,
    looked_at,
)
from ckpt.ext.explain.families import FAMILIES
from ckpt.ext.explain.families.asked import LACKED, of_lacked
from ckpt.ext.explain.families.attributes import ATTRIBUTE, of_attribute
from ckpt.ext.explain.families.channels import OF_CHANNELS, of_channels
from ckpt.ext.explain.families.consolidated import (
    NOT_CONSOLIDATED,
    of_not_consolidated,
)
from ckpt.ext.explain.families.copied import COPIED, of_copied
from ckpt.ext.explain.families.epochs import NO_EPOCH, RESUMED, of_no_epoch, of_resumed
from ckpt.ext.explain.families.fairseq import NOT_BUILT, of_architecture
from ckpt.ext.explain.families.given import (
    CHECKED_LIST,
    NOT_A_FOLDER,
    STRUCT,
    TIED_ABSENT,
    UNRECOGNIZED,
    of_checked_list,
    of_no_folder,
    of_struct,
    of_tied_absent,
    of_unrecognized,
)
from ckpt.ext.explain.families.key_errors import (
    ASKED_FOR,
    NOT_LOADED,
    of_key,
    of_parts,
)
from ckpt.ext.explain.families.layers import (
    LOADED,
    OF_OTHER_SHAPES,
    of_loaded,
    of_other_shapes,
)
from ckpt.ext.explain.families.mapped import (
    BUS_ERROR,
    NOT_MAPPED,
    OF_FRAMEWORKS,
    OF_MAPS,
    of_bus_error,
    of_frameworks,
    of_no_maps,
)
from ckpt.ext.explain.families.merging import (
    NO_METADATA_FILE,
    of_model_with_adapter,
    of_no_metadata_file,
)
from ckpt.ext.explain.families.parts import LOST_PART, of_lost_part
from ckpt.ext.explain.families.paths import (
    ABSENT_FILES,
    COUNTED,
    NOT_FOUND,
    lacking_in_folder,
    of_absent_files,
    of_counted,
    of_path,
    of_pointer,
    written_by,
)
from ckpt.ext.explain.families.quoted import (
    of_lacking,
    of_names,
    of_recorded_path,
    of_unknown,
)
from ckpt.ext.explain.families.restored import RESTORED, of_restored
from ckpt.ext.explain.families.runs import (
    NO_SCALE,
    SHADOWS,
    of_no_scale,
    of_shadows,
)
from ckpt.ext.explain.families.servers import (
    MAGIC,
    NEEDS_VALUE,
    NO_DEVICE,
    NO_GGUF,
    NOT_KNOWN,
    REQUIRED,
    ROTARY,
    magic_text,
    of_architecture_name,
    of_device_map,
    of_magic,
    of_needed_value,
    of_no_gguf,
    of_required,
    of_rotary,
)
from ckpt.ext.explain.families.tensors import NO_TENSOR, of_no_tensor
from ckpt.ext.explain.families.types import OF_STATISTICS, of_statistics_unset
from ckpt.ext.explain.families.unpacking import (
    SUBSCRIPTED,
    UNPACKED,
    of_subscript,
    of_unpacking,
)
from ckpt.ext.explain.families.whole_layers import UNSUPPORTED, of_unsupported
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.questions.by_words import of_words
from ckpt.ext.explain.questions.cards import of_contents
from ckpt.ext.explain.questions.questions import is_question, of_questions
from ckpt.model.errors import UNFINISHED, CkptError, StandInError, UnsupportedError
from ckpt.model.findings import Code
from ckpt.model.text import pasted_path


def answer(message: Message | None, case: Case, text: str = "") -> Answer:
    """Answer an error for one checkpoint. Without a message that a family knows, the
    file is looked at for `text`.
    """
    if message is None or FAMILIES[message.kind].of_any:
        return answer_of_any(text, case) or _look_at_words(text, case)
    # A page that was found by words alone is less sure than the words of a program.
    if not message.text:
        of_program = answer_of_any(text, case)
        if of_program is not None:
            return of_program
    answered = FAMILIES[message.kind].answer(message, case)
    # Coqui TTS names layers that the model lacks, and layers of another shape below.
    differing = OF_OTHER_SHAPES.search(text) if message.kind == "keys" else None
    if differing is None:
        return answered
    shapes = tuple(of_other_shapes(differing, case))
    return answered._replace(statements=(*answered.statements, *shapes))


def _look_at_words(text: str, case: Case) -> Answer:
    """Look at the file for an error without a page, and at the words that both have."""
    # The surest words come first: a path, a setting, a missing name, any name.
    looked = looked_at(case, text)
    # A recorded path explains the error, so what the file is need not be told.
    rows = tuple(of_recorded_path(text, case))
    if rows:
        return Answer(case.survey.path, (*rows, *case.damage, *load_statements(case)))
    rows = tuple(of_unknown(text, case)) or tuple(of_lacking(text, case))
    if rows:
        told = [row for row in looked.statements if not row.text.startswith(NOTHING)]
        return Answer(case.survey.path, (*rows, *told))
    rows = tuple(of_questions(text, case))
    if rows:
        return Answer(case.survey.path, (*rows, *load_statements(case)))
    if asks_plainly(text):
        return _answer_unknown_question(text, case, looked)
    rows = tuple(of_names(text, case))
    is_told = len(rows) > 1  # more than where the name stands
    return looked._replace(
        statements=(*rows, *looked.statements), explains=looked.explains or is_told
    )


def _answer_unknown_question(text: str, case: Case, looked: Answer) -> Answer:
    """Answer a question that no topic knows: with the values that its words name, or
    with all that the file records, which then explains nothing.
    """
    path = case.survey.path
    rows = (*of_names(text, case), *of_words(text, case))
    if looked.explains:
        return Answer(path, (*rows, *looked.statements))
    if rows:
        return Answer(path, (*rows, *load_statements(case)))
    told = (*of_contents(text, case), *load_statements(case))
    return Answer(path, told, explains=False)


# The order counts only where two errors begin at one place of the text.
_OF_ANY: tuple[
    tuple[re.Pattern[str], Callable[[re.Match[str], Case], Iterator[Statement]]], ...
] = (
    (ASKED_FOR, of_key),
    (NO_TENSOR, of_no_tensor),
    (ATTRIBUTE, of_attribute),
    (NOT_LOADED, of_parts),
    (NOT_FOUND, of_path),
    (COUNTED, of_counted),
    (ABSENT_FILES, of_absent_files),
    (RESUMED, of_resumed),
    (NO_EPOCH, of_no_epoch),
    (BUS_ERROR, of_bus_error),
    (OF_FRAMEWORKS, of_frameworks),
    (UNPACKED, of_unpacking),
    (SUBSCRIPTED, of_subscript),
    (OF_OTHER_SHAPES, of_other_shapes),
    (LOADED, of_loaded),
    (NOT_BUILT, of_architecture),
    (NOT_MAPPED, of_no_maps),
    (CHECKED_LIST, of_checked_list),
    (UNRECOGNIZED, of_unrecognized),
    (TIED_ABSENT, of_tied_absent),
    (STRUCT, of_struct),
    (NOT_A_FOLDER, of_no_folder),
    (LACKED, of_lacked),
    (UNSUPPORTED, of_unsupported),
    (OF_STATISTICS, of_statistics_unset),
    (NOT_KNOWN, of_architecture_name),
    (NO_GGUF, of_no_gguf),
    (MAGIC, of_magic),
    (ROTARY, of_rotary),
    (REQUIRED, of_required),
    (NO_DEVICE, of_device_map),
    (NEEDS_VALUE, of_needed_value),
    (NOT_CONSOLIDATED, of_not_consolidated),
    (NO_METADATA_FILE, of_no_metadata_file),
    (SHADOWS, of_shadows),
    (RESTORED, of_restored),
    (NO_SCALE, of_no_scale),
    (COPIED, of_copied),
    (LOST_PART, of_lost_part),
    (OF_CHANNELS, of_channels),
)
"""Errors of any program, which have no page, and what a checkpoint may say to them."""


def asks_of_file(text: str) -> bool:
    """Tell whether a text has words of any program to which a checkpoint may have
    something to say.
    """
    return is_question(text) or any(pattern.search(text) for pattern, _ in _OF_ANY)


def answer_of_any(text: str, case: Case) -> Answer | None:
    """Answer the last error of any program to which the checkpoint has something to
    say, or return None.
    """
    matches: list[
        tuple[int, re.Match[str], Callable[[re.Match[str], Case], Iterator[Statement]]]
    ] = []
    for pattern, make in _OF_ANY:
        last = None
        # The last match counts, for the error of a log is at its end.
        for match in pattern.finditer(text):
            last = match
        if last is not None:
            matches.append((last.start(), last, make))
    # If the file has nothing to say to the latest error, an earlier one is asked.
    for _, match, make in sorted(matches, key=lambda row: -row[0]):
        rows = tuple(make(match, case))
        if rows:
            return Answer(case.survey.path, rows)
    return None


def answer_of_question(text: str, case: Case) -> Answer | None:
    """Answer a question without an error, or return None where the checkpoint has
    nothing to say to it.
    """
    rows = tuple(of_questions(text, case)) if is_question(text) else ()
    if not rows:
        return None
    return Answer(case.survey.path, (*rows, *load_statements(case)))


def answer_damaged(
    error: CkptError, salvage: str | None = None, asked: str = ""
) -> Answer:
    """Answer an error for a file that ckpt cannot open either: the reason is the
    answer. `salvage` writes what is whole.

    `asked` is the text of the error.
    """
    text = begin_sentence(error.problem) if error.problem else str(error)
    hint = error.hint or ""
    if hint.startswith(UNFINISHED):
        hint = UNFINISHED  # the command stands below
    # Unpacking is the answer, so a check of the archive would say nothing more.
    if hint.startswith(_OUT_OF_IT) and not hint.endswith(" it first"):
        return Answer(
            error.path or "", (Statement(f"{text}. This takes it out:", (), hint),)
        )
    path = pasted_path(error.path or "")
    # A file that is no checkpoint has nothing to verify; a stand-in is in the place of
    # one.
    is_of_another = isinstance(error, UnsupportedError) and not isinstance(
        error, StandInError
    )
    command = None if path is None or is_of_another else f"ckpt verify {path}"
    note = f" ({hint})" if hint and not hint.startswith("ckpt ") else ""
    rows = [Statement(f"{text}{note}.", (), command)]
    adapter = of_model_with_adapter(error.path or "")
    if adapter is not None:
        return Answer(error.path or "", (adapter,))
    pointed = of_pointer(error.path or "")
    if pointed is not None:
        return Answer(error.path or "", (pointed,))
    lacking = lacking_in_folder(asked, error.path or "")
    versions = written_by(error.path or "")
    # A file that lacks explains the error, so versions count only without one.
    if lacking is not None:
        rows = [lacking]
    elif versions is not None:
        rows.append(versions)
    if salvage is not None:
        rows.append(
            Statement(
                "What is whole of it can be written, with a list of what is lost:",
                (),
                salvage,
            )
        )
    magic = MAGIC.search(asked)
    # The reason of ckpt names a pointer of LFS already.
    if magic is not None and "LFS" not in text:
        rows.append(Statement(magic_text(magic[1] or magic[2])))
    # A file that ends too early gives a bus error where it is mapped.
    if BUS_ERROR.search(asked):
        rows.append(Statement(OF_MAPS))
    return Answer(error.path or "", tuple(rows))


def answer_folder(error: CkptError, path: str) -> Answer:
    """Say that a folder is not one checkpoint, with the command that lists what it
    holds.
    """
    name = pasted_path(path)
    hint = f" ({error.hint})" if error.hint else ""
    text = (
        f"This folder is not one checkpoint: {error.problem}{hint}. Name the one that "
        "was loaded. What it holds:"
    )
    return Answer(
        path, (Statement(text, (), None if name is None else f"ckpt ls {name}"),)
    )


_OUT_OF_IT = ("gunzip ", "bunzip2 ", "unxz ", "tar ", "unzip ")
"""Beginnings of the commands that take a checkpoint out of what it lies in."""


def made_findings(code: Code, case: Case) -> Answer:
    """The findings with one code that a checkpoint has."""
    path = case.survey.path
    if "inspect" not in code.by:
        by = " or ".join(f"ckpt {command}" for command in code.by)
        return Answer(path, (Statement(f"{by} makes this finding."),))
    rows = case.found(code.code)
    if not rows:
        return Answer(
            path, (Statement(f"This file does not have the finding {code.code}."),)
        )
    return Answer(path, tuple(finding_statements(rows)))
