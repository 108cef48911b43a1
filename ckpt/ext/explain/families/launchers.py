"""Reports of launchers, which name no cause: that a rank failed, and that a program was
started without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Answer, Case, Statement, looked_at
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.message import Message
from ckpt.model.text import show, size_text

_VARIABLES = (
    r"(?:(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))"
)
"""The variables of the environment that torchrun gives to each process."""
UNSET = re.compile(
    rf"KeyError: ['\"]({_VARIABLES})['\"]"
    rf"|environment variable ({_VARIABLES}) expected, but not set"
)
# The report of torchrun: exitcode  : -9 (pid: 7).
_EXIT_CODE = re.compile(r"\bexit ?code\s{0,4}:?\s{0,4}(-?\d{1,4})\b")
_SIGNALS = {-7: "a bus error", -11: "a fault of memory in native code"}
"""Exit codes of a process that a signal ended -> the signal in words."""


def _take_exit_code(message: Message, text: str, start: int) -> Message:
    """The message, with the exit code that the report of the launcher gives.

    A variable that was not set is the cause, where the report stands below it.
    """
    unset = UNSET.search(text)
    if unset is not None:
        return message._replace(text=unset[0])
    # The report lists several ranks, and its root cause is the one that failed first.
    codes = _EXIT_CODE.findall(text, max(start, text.find("Root Cause", start)))
    return message._replace(names=tuple(codes[:1]))


def _answer_launcher(message: Message, case: Case) -> Answer:
    """Say that the cause stands above, or that no launcher has set the variables. Then
    look at the file.
    """
    unset = UNSET.search(message.text)
    if unset is not None:
        name = show(unset[1] or unset[2], 40)
        first = Statement(
            f"{name} is a variable of the environment, which torchrun gives to each "
            "process, and no key of a file: start the program by torchrun "
            "--nproc-per-node=1, or by accelerate launch. No checkpoint is its cause."
        )
        # No file is the cause, so nothing of this one explains the error.
        return Answer(case.survey.path, (first,), explains=False)
    rest = looked_at(case)
    rows = (*_of_report(message, case), *rest.statements)
    return rest._replace(statements=rows)


def _of_report(message: Message, case: Case) -> Iterator[Statement]:
    """Say what the report of a launcher tells, by the exit code where it has one."""
    code = int(message.names[0]) if message.names else None
    if message.names[:1] == ("-9",):
        held = sum(storage.nbytes for storage in case.survey.checkpoint.storages)
        yield Statement(
            "Exit code -9: the system killed the process, most often for the memory "
            f"of the machine. The tensors of this file take {size_text(held)}, and "
            "each rank that loads it needs as much: torch.load(…, mmap=True) keeps "
            "them in the file."
        )
        return
    told = f" Exit code {code} is {_SIGNALS[code]}." if code in _SIGNALS else ""
    yield Statement(
        "The launcher says that a process failed, and not why: the error of that rank "
        f"stands above this report.{told} Give ckpt explain the whole log: "
        "ckpt explain - FILE < LOG."
    )


FAMILIES = (
    Family(
        "launcher",
        (
            r"elastic\.multiprocessing\.errors\.ChildFailedError",
            r"CalledProcessError: Command '\[[^\n]{0,4000}returned non-zero exit",
            # A variable that is not set is the cause, even above such a report.
            UNSET.pattern,
        ),
        _answer_launcher,
        _take_exit_code,
        is_weak=True,
        needs_open=True,
        names_no_cause=True,
    ),
)
