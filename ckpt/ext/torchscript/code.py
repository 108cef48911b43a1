"""The code of a TorchScript archive, read as text: which attributes are parameters and
buffers, which devices it names.

Layout: torch/csrc/jit/serialization/python_print.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.ext.torchscript.places import check_places
from ckpt.ext.torchscript.script import Deed, Script, ScriptClass
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import fold_case
from ckpt.model.account import Notice
from ckpt.model.checkpoint import CodeDevice, Role
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show

OTHERS = ""
"""Stands for the other tensors of a class. No attribute has this name."""
# `class Linear(Module):` and `  __parameters__ = ["weight", "bias", ]`.
_LINE = (
    r"(?m)^(?:class (?P<class>\w+)\(|  __(?P<kind>parameters"
    r"|buffers)__ = \[(?P<names>[^\]\n]*)\])"
)
# `torch.device("cuda:0")`, and `torch.cuda(x)` for a tensor that is moved.
_DEVICE = re.compile(r'\btorch\.(?:device\("([a-z]{1,20}(?::\d{1,3})?)"\)|(cuda)\()')
_TRACED = ", pin_memory=False)"
"""The end of a call behind its device, as torch.jit.trace records it. A script names
the options that its author gave.
"""
_WORD = r'"([^"]*)"'
_SHOWN = 20
"""The most places of one kind that are given their line."""
_NAME = 300
"""Bytes of memory of one class or name of the code."""


class Code(NamedTuple):
    """The content of the code. `kinds` has the roles of the attributes of each class,
    by its qualified name.

    `loaders` are the places of `__setstate__`, which torch.jit.load runs. `deeds` are
    the places of calls that touch files and of loops without a bound, wherever they
    stand: `torch.save at code/x.py:7`. `dangers` are those that a load runs, and
    `unknown` what else it runs that is not on the closed list of operators.
    """

    kinds: dict[str, dict[str, Role]]
    devices: list[CodeDevice]
    loaders: list[str]
    deeds: list[str]
    dangers: list[str]
    unknown: list[str]
    classes: dict[str, ScriptClass]
    """All classes by their qualified names."""
    groups: set[int]
    """The items of states that an operator divides by."""
    shaping: list[str]
    """The places of operators that a load runs and that shape tensors anew."""
    packing: list[str]
    """The places of operators that a load runs and that pack weights."""


def code_of(
    archive: Archive,
    limits: Limits,
    budget: Budget,
    folder: str = "code",
    *,
    has_values: bool = True,
) -> Code:
    """Read the code of an archive in one of its folders. Raises LimitError,
    UnreadableError.

    `has_values` is False where all constants beside the code are tensors. torch 1.4
    lists parameters only. The other tensors of such a class are its buffers, which
    `OTHERS` stands for.
    """
    script = Script(budget)
    result = Code({}, [], [], [], [], [], {}, script.groups, [], [])
    script.has_values = has_values
    prefix = f"{archive.root}/{folder}/"
    for name, record in archive.records.items():
        # torch finds records in letters of any case, and runs what is in them.
        folded = fold_case(name)
        if not folded.startswith(fold_case(prefix)) or not folded.endswith(".py"):
            continue
        if not name.startswith(prefix) or not name.endswith(".py"):
            raise UnreadableError(
                f"record {show(name, 80)} is code in other letters than torch writes, "
                "and torch runs it all the same"
            )
        # Four bytes a character: text with one emoji takes as much.
        budget.charge(4 * record.size, "the code of the archive")
        code = archive.read(record, limits.pickle_bytes, "pickle-bytes").decode(
            "utf-8", "replace"
        )
        # `code/__torch__/a/b.py` has the classes `__torch__.a.b.X`.
        module = name[len(prefix) : -3].replace("/", ".")
        _collect_kinds(code, module, result.kinds, budget)
        file = f"{folder}/{name[len(prefix) :]}"
        result.devices.extend(devices_in(code, file, budget))
        script.add_file(code, file, module)
    result.classes.update(script.classes)
    result.loaders.extend(map(script.line_of, script.loaders[:_SHOWN]))
    result.deeds.extend(_deed_lines(script, script.deeds_anywhere()))
    # Only now all files are there: a body may call code of any of them.
    dangers, unknown = script.deeds_of_load()
    result.dangers.extend(_deed_lines(script, dangers))
    result.unknown.extend(_deed_lines(script, unknown))
    result.shaping.extend(_deed_lines(script, script.shaping))
    result.packing.extend(_deed_lines(script, script.packing))
    # torch reads the tables beside the code only where code fails that a load runs.
    if result.loaders:
        check_places(archive, limits, folder)
    return result


def notices_of(code: Code) -> Iterator[Notice]:
    """Yield a notice about the code that torch.jit.load runs, and about its calls that
    touch files.
    """
    loaders, deeds = and_more(code.loaders, 2), and_more(code.deeds, 2)
    if code.loaders and (code.dangers or code.deeds):
        worst = and_more(code.dangers or code.deeds, 2)
        # This is the worst that can be said, so it stands alone.
        text = (
            f"DANGER: loading this file runs its __setstate__ ({loaders}), and its "
            f"code has {worst}."
        )
        yield Notice("code-inside", text)
        return
    if code.dangers:
        yield Notice(
            "code-inside",
            f"DANGER: loading this file runs {and_more(code.dangers, 2)}.",
        )
        return
    if code.deeds:
        yield Notice("file-code", f"Its code touches files or never ends: {deeds}.")
    if code.unknown:
        text = (
            f"torch.jit.load runs {and_more(code.unknown, 2)}, which ckpt does not "
            "know."
        )
        yield Notice("unknown-operator", text)
    elif code.loaders:
        yield Notice(
            "runs-setstate", f"torch.jit.load runs its __setstate__ ({loaders})."
        )


def devices_in(code: str, file: str, budget: Budget) -> list[CodeDevice]:
    """The devices that code names as constants, each with its line."""
    rows: list[CodeDevice] = []
    line, position = 1, 0
    for match in _DEVICE.finditer(code):
        budget.charge(_NAME, "the code of the archive")
        # Counted on from the last match: from the start, long code would cost its
        # square.
        line += code.count("\n", position, match.start())
        position = match.start()
        is_traced = code.startswith(_TRACED, match.end())
        rows.append(CodeDevice(file, line, match[1] or match[2], is_traced))
    return rows


def _deed_lines(script: Script, deeds: Sequence[Deed]) -> Iterator[str]:
    """Yield each deed with its line: the first of them, for lines are counted from the
    start of the file.
    """
    for deed in deeds[:_SHOWN]:
        yield f"{deed.what} at {script.line_of(deed.place)}"


def _collect_kinds(
    code: str, module: str, kinds_of: dict[str, dict[str, Role]], budget: Budget
) -> None:
    kinds: dict[str, Role] | None = None
    for match in re.finditer(_LINE, code):
        budget.charge(_NAME, "the code of the archive")
        if match["class"]:
            kinds = kinds_of.setdefault(f"{module}.{match['class']}", {})
        elif kinds is not None:
            role: Role = "parameter" if match["kind"] == "parameters" else "buffer"
            # Only torch 1.4 writes no `__buffers__` below `__parameters__`.
            if role == "parameter":
                kinds[OTHERS] = "buffer"
            else:
                kinds.pop(OTHERS, None)
            for word in re.finditer(_WORD, match["names"]):
                budget.charge(_NAME, "the code of the archive")
                kinds[word[1]] = role
