"""The code of a TorchScript archive, read as text: which attributes are parameters and buffers, which devices it names.

Layout: torch/csrc/jit/serialization/python_print.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.checkpoint import CodeDevice, Role
from ckpt.formats.common.archive import Archive
from ckpt.limits import Budget, Limits
from ckpt.rows import NamedTuple
from ckpt.text import show

OTHERS = ""
"""Stands for the other tensors of a class. No attribute has this name."""
_LINE = r"(?m)^(?:class (?P<class>\w+)\(|  __(?P<kind>parameters|buffers)__ = \[(?P<names>[^\]\n]*)\])"
_DEVICE = re.compile(r'\btorch\.(?:device\("([a-z]{1,20}(?::\d{1,3})?)"\)|(cuda)\()')
_STATE = re.compile(r"(?m)^  def __setstate__\(")
_OP = re.compile(
    r"\b(?:torch|ops\.aten)\.(save|_save|from_file|load|set_num_threads|_debug_\w+)\(|^ *(while True:)|(range\(9223372036854775807\))",
    re.MULTILINE,
)
"""Operators that touch files, and loops without a bound. Names: native_functions.yaml and register_prim_ops.cpp of torch."""
_WORD = r'"([^"]*)"'
_NAME = 300
"""Bytes of memory of one class or name of the code."""


class Code(NamedTuple):
    """The content of the code. `kinds` has the roles of the attributes of each class, by its qualified name.

    `loaders` are the places of `__setstate__`, which torch.jit.load runs. `deeds` are the places of calls
    that touch files and of loops without a bound: `torch.save at code/x.py:7`.
    """

    kinds: dict[str, dict[str, Role]]
    devices: list[CodeDevice]
    loaders: list[str]
    deeds: list[str]


def code_of(archive: Archive, limits: Limits, budget: Budget) -> Code:
    """Read the code of an archive. Raises LimitError, UnreadableError.

    torch 1.4 lists parameters only. The other tensors of such a class are its buffers, which `OTHERS` stands for.
    """
    result = Code({}, [], [], [])
    prefix = f"{archive.root}/code/"
    for name, record in archive.records.items():
        if not name.startswith(prefix) or not name.endswith(".py"):
            continue
        # Four bytes a character: text with one emoji takes as much.
        budget.charge(4 * record.size, "the code of the archive")
        code = archive.read(record, limits.pickle_bytes, "pickle-bytes").decode("utf-8", "replace")
        _kinds(code, name[len(prefix) : -3].replace("/", "."), result.kinds, budget)
        file = f"code/{name[len(prefix) :]}"
        result.devices.extend(devices_in(code, file, budget))
        result.loaders.extend(_places(_STATE, code, file, budget))
        result.deeds.extend(_places(_OP, code, file, budget))
    return result


def devices_in(code: str, file: str, budget: Budget) -> list[CodeDevice]:
    """The devices that code names as constants, each with its line."""
    rows: list[CodeDevice] = []
    line, position = 1, 0
    for match in _DEVICE.finditer(code):
        budget.charge(_NAME, "the code of the archive")
        line += code.count("\n", position, match.start())
        position = match.start()
        rows.append(CodeDevice(file, line, match[1] or match[2]))
    return rows


def _places(pattern: re.Pattern[str], code: str, file: str, budget: Budget) -> Iterator[str]:
    """Yield the matches of a pattern in the code, each with its line."""
    line, position = 1, 0
    for match in pattern.finditer(code):
        budget.charge(_NAME, "the code of the archive")
        line += code.count("\n", position, match.start())
        position = match.start()
        what = (
            ""
            if not match.re.groups
            else f"torch.{match[1]} at "
            if match[1]
            else "a loop without a bound at "
        )
        yield f"{what}{show(file, 80)}:{line}"


def _kinds(code: str, module: str, kinds_of: dict[str, dict[str, Role]], budget: Budget) -> None:
    kinds: dict[str, Role] | None = None
    for match in re.finditer(_LINE, code):
        budget.charge(_NAME, "the code of the archive")
        if match["class"]:
            kinds = kinds_of.setdefault(f"{module}.{match['class']}", {})
        elif kinds is not None:
            role: Role = "parameter" if match["kind"] == "parameters" else "buffer"
            if role == "parameter":
                kinds[OTHERS] = "buffer"
            else:
                kinds.pop(OTHERS, None)
            for word in re.finditer(_WORD, match["names"]):
                budget.charge(_NAME, "the code of the archive")
                kinds[word[1]] = role
