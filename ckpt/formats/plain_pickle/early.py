"""Recognises the pickles that have no magic: of protocol 0 and 1, whose first byte is their first opcode, and compressed ones."""

from __future__ import annotations

from ckpt.errors import LimitError
from ckpt.formats.common.pickled import is_pickle
from ckpt.formats.plain_pickle.packed import beginning, packing
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.pickles.known import is_own
from ckpt.pickles.machine import MachineError, TruncatedPickleError, run

_LOOKED = 1 << 20
"""Bytes of a file in which a pickle must end, make a call, or name something of Python."""
_INSIDE = 1 << 16
_OPCODES = b"()]}IJKLMNFGSTUVXciP\x8c\x8d\x8e\x8f\x95\x96BC"
"""What a pickle without PROTO begins with."""


def is_early(head: bytes, source: Source, limits: Limits) -> bool:
    """Whether a file is a pickle without PROTO, or begins as one that runs something before it breaks.

    `head` are its first bytes. More is read only where they are a pickle that goes on.
    """
    if head[0] not in _OPCODES:
        return False
    found = _runs(head, source.size, limits)
    if found is None and len(head) < source.size:
        found = _runs(source.read(0, min(source.size, _LOOKED)), source.size, limits)
    return found is True


def is_packed(head: bytes, source: Source, limits: Limits) -> bool:
    """Whether a file that begins with these bytes is a compressed pickle."""
    how = packing(head)
    inside = b"" if how is None else beginning(source, how, _INSIDE)
    if not inside:
        return inside is None  # a megabyte that becomes nothing: no honest file, and it may go on
    return is_pickle(inside) or (inside[0] in _OPCODES and _runs(inside, len(inside), limits) is True)


def _runs(data: bytes, size: int, limits: Limits) -> bool | None:
    """Whether the first bytes of a file of `size` are a pickle; None where they end before that is known."""
    try:
        pickle = run(data, limits, 0, Budget(limits, len(data)))
    except LimitError:
        return True
    except MachineError as error:
        runs = error.calls > 0 or any(is_own(name.module) for name in error.seen)
        return True if runs else None if isinstance(error, TruncatedPickleError) else False
    return pickle.end == size or bool(pickle.calls) or any(is_own(module) for module, _ in pickle.globals)
