"""Pickles without a magic of their own, of protocol 0 and 1, and what bytes run before
they break.

Not a format of the table; plain pickles use it, and tar archives whose first bytes are
a pickle too.
"""

from __future__ import annotations

from ckpt.bytes.source import Source
from ckpt.model.errors import LimitError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Opaque
from ckpt.model.rows import NamedTuple
from ckpt.pickle.judge.names import is_own
from ckpt.pickle.machine import (
    LongLineError,
    MachineError,
    OddPickleError,
    TruncatedPickleError,
    run_machine,
)

LOOKED = 1 << 20
"""Bytes of a file that are read at once, to see whether they are a pickle."""
OPCODES = b"()]}IJKLMNFGSTUVXciP\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x95\x96BC"
"""The opcodes that need nothing on the stack: with them a pickle without PROTO
begins.
"""
_LOW = (b"\x80\0", b"\x80\1")
"""The opcode PROTO with a protocol that needs none."""
_HOPS = 8
"""Times that a pickle may go on behind what was read. No other file is a pickle for as
long.
"""
_COUNTED = {
    b"X": 4,
    b"T": 4,
    b"B": 4,
    b"\x8b": 4,
    b"\x8d": 8,
    b"\x8e": 8,
    b"\x96": 8,
    b"\x95": 8,
}
"""Opcodes that a length of so many bytes follows, for what can be longer than all that
is read at once.
"""
_TEXT = frozenset((*b"\t\n\r\f\x1b", *range(32, 256)))


def is_early(head: bytes, source: Source, limits: Limits) -> bool:
    """Tell whether a file is a pickle without PROTO, or begins as one that runs
    something before it breaks.

    `head` are its first bytes. More is read only where they are a pickle that goes on.
    """
    begins = head[0] in OPCODES or head[:2] in _LOW
    return begins and is_pickle_too(head, source, limits)


def is_pickle_too(head: bytes, source: Source, limits: Limits) -> bool:
    """Tell as `is_early`, of a file of another format, whose first bytes may be a
    pickle's with PROTO too.
    """
    if head[0] not in OPCODES and head[0] != 0x80:
        return False
    verdict = is_pickle_or_runs(head, source.size, limits)
    if verdict is None and len(head) < source.size:
        return _goes_on(source, limits)
    return verdict is True


def _goes_on(source: Source, limits: Limits) -> bool:
    """Tell as `is_early`, for a pickle that goes on behind the first bytes. What is
    long is skipped.
    """
    # The part that was understood is kept, because later opcodes need what it puts on
    # the stack.
    before = b""
    position = 0
    for _ in range(_HOPS):
        data = before + source.read(position, min(source.size - position, LOOKED))
        size = len(before) + source.size - position
        verdict, offset = look_at_bytes(data, size, limits)
        if verdict is not None:
            return verdict
        # The place in the file of the opcode that goes on.
        end = position + offset - len(before)
        opcode = data[offset : offset + 1]
        if opcode == b"S" and data[offset + 1 : offset + 2] not in (b"'", b'"'):
            # Python refuses a string without quotes, however long its line is.
            return False
        length = _length_at(data, offset, source, end)
        if length is None and position + LOOKED >= source.size:
            # Nothing comes behind what was read, so the opcode never ends.
            return False
        if length is None:
            before = data[:offset]
            position = end
        elif end + length > source.size:
            return False
        else:
            before = data[:offset] + _SHORT
            position = end + length
    return True


def _line_at(source: Source, begin: int) -> int | None:
    """The bytes of a line from an opcode on, or None where it is longer than any text.
    One that does not end has one byte more.
    """
    position = begin
    while position < min(source.size, begin + _LONGEST):
        data = source.read(position, min(source.size - position, LOOKED))
        newline = data.find(b"\n")
        if newline >= 0:
            return position + newline + 1 - begin
        position += len(data)
    return source.size - begin + 1 if position == source.size else None


_LONGEST = 32 << 20
"""The most bytes of a line that are searched for its end."""


def skipped_bytes(data: bytes, offset: int) -> int | None:
    """Return the bytes of an opcode that goes on behind `data` with all that it counts,
    or None for one without a length.
    """
    width = _COUNTED.get(data[offset : offset + 1])
    if width is None or offset + 1 + width > len(data) or data[offset] == 0x95:
        return None
    return 1 + width + int.from_bytes(data[offset + 1 : offset + 1 + width], "little")


def runs_on(before: bytes, source: Source, position: int, limits: Limits) -> bool:
    """Tell whether Python's unpickler, which has read `before`, goes on in the bytes of
    a file: whether it makes a call or an import of them, sets a state, or finds an end
    before it breaks.
    """
    calls, names = _counts_of(before, limits)
    kept = before
    for _ in range(_HOPS):
        data = kept + source.read(position, min(source.size - position, LOOKED))
        states: list[int] = []

        # A default holds the list of this round: a closure would see the last one's.
        def note_state(call: Opaque, at: int, states: list[int] = states) -> None:
            if at > len(before):
                states.append(at)

        try:
            budget = Budget(limits, len(data))
            run_machine(data, limits, 0, budget, note_state, far_slots=True)
        except LimitError:
            return True
        except MachineError as error:
            acts = states or error.calls > calls or len(error.seen) > names
            if acts or isinstance(error, OddPickleError):
                return True
            if not isinstance(error, (TruncatedPickleError, LongLineError)):
                return False
            offset = error.offset
        else:
            return True
        end = position + offset - len(kept)
        length = _length_at(data, offset, source, end)
        if length is None and position + LOOKED >= source.size:
            return False
        if length is None:
            kept, position = data[:offset], end
        elif end + length > source.size:
            return False
        else:
            kept, position = data[:offset] + _SHORT, end + length
    return True


def _counts_of(data: bytes, limits: Limits) -> tuple[int, int]:
    """The numbers of calls and of names in the beginning of a pickle."""
    try:
        pickle = run_machine(data, limits, 0, Budget(limits, len(data)), far_slots=True)
    except MachineError as error:
        return error.calls, len(error.seen)
    return len(pickle.calls), len(pickle.globals)


def _length_at(data: bytes, offset: int, source: Source, end: int) -> int | None:
    """The bytes of an opcode that goes on behind `data`, which lies at `end` of the
    file, or None for one without a length.
    """
    if data[offset : offset + 1] in _LINES:
        return _line_at(source, end)
    return skipped_bytes(data, offset)


def runs_before_it_breaks(data: bytes, limits: Limits) -> bool:
    """Tell whether bytes that are no whole pickle call or import something before they
    break.
    """
    try:
        run_machine(data, limits, 0, Budget(limits, len(data)))
    except LimitError:
        return True
    except MachineError as error:
        return error.calls > 0 or bool(error.seen)
    return True


def is_pickle_or_runs(data: bytes, size: int, limits: Limits) -> bool | None:
    """Tell whether the first bytes of a file of `size` are pickles, or run or import
    something.

    Return None if they end before that is known. A text that begins like an import and
    breaks, as a list of words may, counts only if it names something of Python, numpy
    or torch.
    """
    return look_at_bytes(data, size, limits).verdict


class Look(NamedTuple):
    """The verdict on bytes, and the offset up to which they were understood.

    `verdict` is None if the bytes end before it is known.
    """

    verdict: bool | None
    offset: int


def look_at_bytes(data: bytes, size: int, limits: Limits) -> Look:
    """Return as `is_pickle_or_runs`, and how far the bytes were understood.

    Texts on lines that are too long for ckpt are passed over, since Python reads them.
    """
    cut = 0
    while True:
        verdict, offset, is_long = _look_once(data, size - cut, limits)
        end = data.find(b"\n", offset) if is_long else -1
        if end < 0:
            return Look(verdict, offset + cut)
        data = data[:offset] + _SHORT + data[end + 1 :]
        cut += end + 1 - offset - len(_SHORT)


_SHORT = b"U\0"
"""An empty text, in the place of one that is passed over."""
_LINES = (b"S", b"V", b"P")
"""Opcodes of a text, or of a persistent id, up to the end of its line."""


def _look_once(data: bytes, size: int, limits: Limits) -> tuple[bool | None, int, bool]:
    """Return (as `is_pickle_or_runs`, how far the bytes were understood, whether they
    end in a text on a long line).
    """
    end = 0
    budget = Budget(limits, len(data))
    try:
        # A loop over the file unpickles one after the other.
        while end < len(data):
            pickle = run_machine(data, limits, end, budget, far_slots=True)
            end = pickle.end
            if pickle.calls or pickle.globals:
                return True, end, False
    except LimitError:
        return True, end, False
    except MachineError as error:
        # Python does not mind what is left below.
        opcode = data[error.offset : error.offset + 1]
        is_sure = opcode == b"." or not _TEXT.issuperset(data)
        # A list of words may begin like an import: then only names that Python has
        # count.
        names_something = any(is_sure or is_own(name.module) for name in error.seen)
        if isinstance(error, OddPickleError) or error.calls > 0 or names_something:
            return True, error.offset, False
        if isinstance(error, LongLineError):
            is_text = opcode in _LINES
            return None if is_text else False, error.offset, is_text
        verdict = None if isinstance(error, TruncatedPickleError) else False
        return verdict, error.offset, False
    return end == size, end, False
