"""Pickles without a magic of their own, of protocol 0 and 1, and what bytes run before they break.

Not a format of the table; plain pickles use it, and tar archives whose first bytes are a pickle too.
"""

from __future__ import annotations

from ckpt.errors import LimitError
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.pickles.known import is_own
from ckpt.pickles.machine import MachineError, TruncatedPickleError, run

LOOKED = 1 << 20
"""Bytes of a file in which a pickle must end, make a call, or name something of Python."""
OPCODES = b"()]}IJKLMNFGSTUVXciP\x8c\x8d\x8e\x8f\x95\x96BC"
"""The opcodes with which a pickle without PROTO begins."""


def is_early(head: bytes, source: Source, limits: Limits) -> bool:
    """Tell whether a file is a pickle without PROTO, or begins as one that runs something before it breaks.

    `head` are its first bytes. More is read only where they are a pickle that goes on.
    """
    if head[0] not in OPCODES:
        return False
    verdict = is_pickle_or_runs(head, source.size, limits)
    if verdict is None and len(head) < source.size:
        verdict = is_pickle_or_runs(source.read(0, min(source.size, LOOKED)), source.size, limits)
    return verdict is True


def runs_before_it_breaks(data: bytes, limits: Limits) -> bool:
    """Tell whether bytes that are no whole pickle call or import something before they break."""
    try:
        run(data, limits, 0, Budget(limits, len(data)))
    except LimitError:
        return True
    except MachineError as error:
        return error.calls > 0 or bool(error.seen)
    return True


def is_pickle_or_runs(data: bytes, size: int, limits: Limits) -> bool | None:
    """Tell whether the first bytes of a file of `size` are pickles, or run something.

    Return None if they end before that is known.
    """
    end, budget = 0, Budget(limits, len(data))
    try:
        while end < len(data):  # a loop over the file unpickles one after the other
            pickle = run(data, limits, end, budget)
            end = pickle.end
            if pickle.calls or any(is_own(module) for module, _ in pickle.globals):
                return True
    except LimitError:
        return True
    except MachineError as error:
        runs = error.calls > 0 or any(is_own(name.module) for name in error.seen)
        return True if runs else None if isinstance(error, TruncatedPickleError) else False
    return end == size
