"""Loads that stop although the file may be whole: bytes of a mapped file that went
away, weights of another framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.model.text import and_more, show

BUS_ERROR = re.compile(r"\bBus error\b|\bSIGBUS\b")
"""The words of a shell and of Python for a program that the system stopped at bytes
that are not there.
"""
OF_MAPS = (
    "The system stops a program with a bus error where it reads bytes of a mapped file "
    "that are no longer there. A file that was loaded with mmap=True, and is then "
    "saved under the same name, is cut under the tensors that still read it. Load with "
    "mmap=False before such a save, or save under another name. Where no file was "
    "mapped, /dev/shm may be full (workers of a DataLoader)."
)


def of_bus_error(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that a bus error ended, for a file that opens."""
    del found
    # A file that was cut may be the cause itself, so its damage comes first.
    yield from case.damage
    yield Statement(OF_MAPS)
    yield from load_statements(case)


NOT_MAPPED = re.compile(
    r"\bNo such device\b[^\n]{0,20}\(?(?:os error )?19\b"
    r"|\[Errno 19\] No such device|unable to mmap [^\n]{0,2000}No such device"
)
"""The words of Rust, Python and torch where a file system maps no files."""


def of_no_maps(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a load that maps a file, on a file system that cannot."""
    del found
    yield from case.damage
    whole = " This file is whole." if case.verified and not case.damage else ""
    yield Statement(
        "The loader maps the file into memory (mmap), as safetensors always does, and "
        f"the file system on which it lies cannot: a mount of a cloud drive, of FUSE, "
        f"of a host of a virtual machine.{whole} Copy it to a disk of this machine and "
        "load it from there, or mount with caching (rclone: --vfs-cache-mode full)."
    )
    # load_file of safetensors maps always, and load takes the bytes.
    if (case.survey.load.expression or "").startswith("safetensors."):
        path = case.path_literal
        yield Statement(
            "Without a map it loads so, and takes its size in memory twice:",
            (),
            "import pathlib; "
            f"safetensors.torch.load(pathlib.Path({path}).read_bytes())",
        )
    else:
        yield from load_statements(case)


OF_FRAMEWORKS = re.compile(
    r"Can't load (?:the )?(?:weights|model) for '[^'\n]{1,500}'[\s\S]{0,1500}?"
    r"\bfile named (?:one of )?([\w.,\s]{1,200})"
)
"""The words of transformers where a folder has none of the files of weights that it
looks for.
"""
_OTHERS = {
    "tf_model.h5": "TensorFlow, as from_tf=True and the classes of TF do",
    "flax_model.msgpack": "Flax, as from_flax=True and the classes of Flax do",
}
"""A file of weights of another framework -> the framework, and what asks for it."""


def of_frameworks(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a loader of weights of another framework, for a folder that has PyTorch
    weights alone.
    """
    # The message has the names of files among other words.
    asked = re.findall(r"[a-z_]+\.(?:h5|ckpt|msgpack|bin|safetensors)\b", found[1])
    wanted = next((name for name in _OTHERS if name in asked), None)
    weights = [
        member.file
        for member in case.survey.checkpoint.members
        if member.is_model or not member.key
    ]
    # A loader that takes weights of torch as well has another fault.
    is_of_torch = any(name.endswith((".bin", ".safetensors")) for name in asked)
    if wanted is None or is_of_torch or not case.is_folder or not weights:
        return
    yield Statement(
        "This folder has weights of PyTorch "
        f"({and_more([show(name, 80) for name in weights], 3)}), and the loader looks "
        f"for {and_more(asked, 3)}: weights of {_OTHERS[wanted]}. Leave that out."
    )
    if case.survey.load.model is not None:
        yield Statement("As a model it loads so:", (), case.survey.load.model)
    else:
        yield from load_statements(case)
