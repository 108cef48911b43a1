"""Loads that the memory of the CPU does not hold: allocations that fail, and files that
cannot be mapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, command_statements, load_statements
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.tensors import parts_of
from ckpt.model.text import and_more, show, size_text

_MAPPED = re.compile(r"unable to mmap (\d{1,18}) bytes")
_ASKED = re.compile(
    r"you tried to allocate (\d{1,18}) bytes|tried to allocate (\d{1,18}) bytes"
)
_PAGING = re.compile(r"paging file is too small|os error 1455|WinError 1455")
_HEAVY = 4
"""A part of a file counts from one of so many of its bytes on."""


def _answer_memory(message: Message, case: Case) -> Iterator[Statement]:
    """Say how much a load needs, what of it is no weights, and what reads a file in
    parts.
    """
    checkpoint = case.survey.checkpoint
    held = sum(storage.nbytes for storage in checkpoint.storages)
    mapped = _MAPPED.search(message.text)
    # A folder has several files, so its size does not speak for another one.
    if (
        mapped is not None
        and int(mapped[1]) != checkpoint.nbytes
        and not checkpoint.parts
    ):
        yield Statement(
            f"This file has {checkpoint.nbytes:,} bytes, and the message maps "
            f"{int(mapped[1]):,}: another file was loaded."
        )
        return
    yield Statement(
        f"The tensors of this {'folder' if checkpoint.parts else 'file'} take "
        f"{size_text(held)}, and a load needs as much memory of the CPU, beside the "
        "model that was built."
    )
    asked = _ASKED.search(message.text)
    if asked is not None:
        yield from _of_allocation(int(asked[1] or asked[2]), case)
    if mapped is not None:
        yield Statement(
            "The system refused to map the file, and nothing is wrong with it: a limit "
            "of the address space (ulimit -v), of a container, or of what the kernel "
            "lets a process ask for beyond the memory (vm.overcommit_memory). torch "
            "maps a file as one private range that it may write to, which counts as "
            "memory for the last of them."
        )
    elif _PAGING.search(message.text):
        yield Statement(
            "Windows counts a mapped file against its memory and its paging file: make "
            "the paging file larger (on a drive with room), or close other programs."
        )
    optimizer = sum(section.nbytes for section in case.optimizers)
    if _HEAVY * optimizer > held:
        yield from command_statements(
            f"{size_text(optimizer)} of it are the state of an optimizer, which no "
            "inference needs. The weights alone:",
            case.plan(("smaller",)),
        )
    # The system has refused to map where `mapped` is set, so no line with mmap helps.
    if (
        mapped is None
        and checkpoint.traits.label == _ZIP
        and not checkpoint.traits.no_load
    ):
        # The line is changed only where its own text is known.
        load = case.survey.load.expression or ""
        if load.startswith("torch.load(") and "map_location" in load:
            yield Statement(
                "mmap=True leaves the tensors in the file until they are used:",
                (),
                load.replace('map_location="cpu"', 'map_location="cpu", mmap=True'),
            )
            return
    yield from load_statements(case)


_ZIP = "PyTorch zip"


def _of_allocation(nbytes: int, case: Case) -> Iterator[Statement]:
    """Name the tensors that have as many bytes as an allocation that failed."""
    names = [
        entry.name
        for entry in case.survey.tensors
        if any(part.storage.nbytes == nbytes for part in parts_of(entry.tensor))
    ]
    if names:
        listed = and_more([show(name, 120) for name in names], 3)
        yield Statement(
            f"The {nbytes:,} bytes that it could not get are those of {listed}: the "
            "memory ran out while this file was loaded, or a copy of it was made."
        )
    else:
        yield Statement(
            f"No tensor of this file has {nbytes:,} bytes: the program asked for them "
            "for something else (a batch, activations, a copy in another dtype)."
        )


FAMILIES = (
    Family(
        "cpu-memory",
        (
            r"unable to mmap \d{1,18} bytes from file",
            # The words of the allocator of torch on the CPU.
            (
                r"(?:not enough"
                r"|can't allocate) memory: you tried to allocate \d{1,18} bytes"
            ),
            # std::bad_alloc is raised by C++, and MemoryError by Python and numpy.
            r"\bstd::bad_alloc\b",
            r"(?:^|\n)(?:\w{1,60}\.)*_?(?:Array)?MemoryError\b",
            _PAGING.pattern,
        ),
        answer_from_statements(_answer_memory),
        needs_open=True,
    ),
)
