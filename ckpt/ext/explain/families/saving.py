"""Errors of saving: what could not be written, and what two files cannot both hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.loading import string_literal
from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.spellings import lost_of_recurrent, recurrent_statement
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import tied_aliases


def _answer_saving(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a save that failed: the file that is here was written before it, or is
    what it left.
    """
    del message
    yield Statement(
        "The message is about writing: torch.save got no room, no permission, or a "
        "file system that broke. No file can be its cause."
    )
    # The save may have failed in the middle of this file, so its damage is told.
    if case.damage:
        yield Statement("This file is what such a save left:")
        yield from case.damage
        return
    report = case.verified
    if report is not None:
        yield Statement(
            f"This file is whole ({and_more(list(report.checked), 4)}): it is of "
            "another save."
        )
    yield from load_statements(case)


_PARENT = re.compile(r"Parent directory (.{1,2000}?) does not exist")


def _answer_parent(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a save into a folder that is not there."""
    del case
    found = _PARENT.search(message.text)
    folder = "" if found is None else found[1]
    # A colon behind the first letter is the drive of Windows.
    is_relative = not folder.startswith(("/", "\\")) and ":" not in folder[:2]
    where = (
        " It is looked for below the folder in which the program runs."
        if is_relative
        else ""
    )
    yield Statement(
        (
            "The message is about writing, and no file is its cause: torch.save makes "
            f"no folders.{where} Make it before the save:"
        ),
        (),
        f"import os; os.makedirs({string_literal(folder)}, exist_ok=True)"
        if folder
        else None,
    )


_REFUSED = re.compile(r"Invalid argument: '([^'\n]{1,2000})'")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\){0,4}\\(x[01][0-9a-f]|[tnr])")
_LETTERS = {"x07": "a", "x08": "b", "x0b": "v", "x0c": "f"}
"""Escapes as Python shows them -> the letter behind the backslash that gives them."""


def _file_name(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a path that Windows does not take: its characters, or an escape that a
    backslash has made.
    """
    del case
    found = _REFUSED.search(message.text)
    path = "" if found is None else found[1]
    # Python shows the character that an escape made: `'C:\\runs\x07dam.pth'` was
    # `C:\runs\adam.pth`.
    escape = _ESCAPED.search(path)
    if escape is not None:
        letter = _LETTERS.get(escape[1], escape[1])
        yield Statement(
            "No file is the cause: in the program a backslash and the letter behind "
            f"it (\\{letter}) stand for one character."
            ' Write the path as r"…", or with / in place of the backslash.'
        )
        return
    # The colon of a drive is the only one that Windows takes.
    inside = path[2:] if path[1:2] == ":" else path
    held = list(dict.fromkeys(letter for letter in inside if letter in ':|?*<>"'))
    yield Statement(
        "No file is the cause: Windows takes no "
        f"{' and no '.join(held) or 'such character'} in the name of a file. Give the "
        "save another name (a time without colons: %H-%M-%S)."
    )


def _answer_shared(message: Message, case: Case) -> Iterator[Statement]:
    """Answer safetensors, which keeps no two tensors of one storage."""
    # Here no name of a shared storage has all of it, so safetensors can keep none.
    if "None is covering the entire storage" in message.text:
        yield from _answer_flat_weights(case)
        return
    same = tied_aliases(case.survey.checkpoint)
    tied = case.found("tied")
    # A file of safetensors has the names that were left out in its metadata.
    names = [name for row in tied for name in row.tensors] or list(same)
    if names:
        yield Statement(
            f"{counted_noun(len(names), 'tensor')} of this file share memory: "
            f"{and_more([show(name, 120) for name in names], 6)}."
        )
    # convert keeps all of the file; slim is for a file that safetensors cannot hold.
    for words in (("convert",), ("slim",)):
        way = case.written(words, "", ".safetensors")
        if way.command is not None:
            yield Statement(
                (
                    "ckpt writes each value once, and the names that share it into the "
                    "metadata:"
                ),
                (),
                way.command,
            )
            return
    yield from load_statements(case)


def _answer_flat_weights(case: Case) -> Iterator[Statement]:
    """Answer safetensors, which found no tensor that has a whole memory: the flat
    weights of a recurrent layer.
    """
    yield Statement(
        "The message is about the live model: some of its tensors are parts of one "
        "memory, as the weights of nn.GRU, nn.LSTM and nn.RNN are on a GPU, and none "
        "has all of it. safetensors keeps no such parts. Clone them before the save "
        "(value.clone() for each value of the state dict), or write no safetensors "
        "(safe_serialization=False). load_model of safetensors looks at the model "
        "first, and stops so too: load_file and load_state_dict do not."
    )
    # A save that left such names out without an error has lost their values.
    lost = lost_of_recurrent([entry.name for entry in case.survey.tensors], case)
    if lost:
        yield recurrent_statement(lost)
    else:
        yield from load_statements(case)


def _answer_contiguous(message: Message, case: Case) -> Iterator[Statement]:
    """Answer safetensors, which writes tensors whose elements lie in order."""
    del message
    yield Statement(
        "safetensors writes tensors whose elements lie in order, and this one is a "
        "view of others: transposed, sliced or channels_last. Call .contiguous() on it "
        "before the save."
    )
    for words in (("convert",), ("slim",)):
        way = case.written(words, "", ".safetensors")
        if way.command is not None:
            yield Statement("ckpt writes the elements in their order:", (), way.command)
            return
    yield from load_statements(case)


def _answer_pickling(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a save of something that cannot be pickled."""
    del message
    yield Statement(
        "The message is about saving. Save model.state_dict() in place of the model, "
        "and plain values in place of objects."
    )
    if case.has_module:
        yield Statement(
            "This file holds a whole pickled module, which an earlier save could "
            "pickle."
        )
        way = case.plan(("weights",))
        if way.command is not None:
            yield Statement("Its weights alone:", (), way.command)
    yield from load_statements(case)


FAMILIES = (
    Family(
        "saving",
        (
            # torch writes `… at inline_container.cc:424] . unexpected pos 320 vs 210`.
            r"unexpected pos \d{1,20} vs \d{1,20}",
            r"PytorchStreamWriter failed writing",
            r"file write failed",
            r"No space left on device",
            r"Disk quota exceeded",
            r"File \S{1,2000} cannot be opened\.",
        ),
        answer_from_statements(_answer_saving),
    ),
    Family(
        "file-name",
        (
            (
                # The lookahead leaves out a path whose only colon is its drive's.
                r"\[Errno \d{1,4}\] Invalid argument: '(?![A-Za-z]:[^:"
                r"|?*<>\"'\n]{0,2000}')[^'\n]{0,2000}[:|?*<>\"]"
            ),
            (
                r"\[Errno \d{1,4}\] Invalid argument: "
                r"'[^'\n]{0,2000}?(?<!\\)(?:\\\\){0,4}\\(?:x[01][0-9a-f]"
                r"|[tnr])"
            ),
        ),
        answer_from_statements(_file_name),
    ),
    Family(
        "parent",
        (r"Parent directory .{1,2000}? does not exist",),
        answer_from_statements(_answer_parent),
    ),
    Family(
        "shared",
        (
            r"Some tensors share memory, this will lead to duplicate memory on disk",
            r"weights trying to be saved contained shared tensors",
            r"contained shared tensors \[",
            r"None is covering the entire storage",
        ),
        answer_from_statements(_answer_shared),
        needs_open=True,
    ),
    Family(
        "contiguous",
        (r"You are trying to save a non contiguous tensor",),
        answer_from_statements(_answer_contiguous),
        needs_open=True,
    ),
    Family(
        "pickling",
        (
            r"Can't pickle local object '",
            r"Can't pickle <(?:class|function) ",
            r"cannot pickle '[\w. ]{1,100}' object",
            r"cannot serialize a bytes object larger than 4 ?GiB",
        ),
        answer_from_statements(_answer_pickling),
        needs_open=True,
    ),
)
