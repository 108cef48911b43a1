"""Reading a large `.metadata` in columns: 100,000 chunks are 7 million opcodes, and
nearly all are the same.

The pickle machine reads the first entry of each kind. Where the entries that follow
have the same opcodes, they are matched by regular expressions, and the machine goes on
at the first that has others. The result is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TypeAlias, cast

from ckpt.ext.dcp.metadata import (
    Chunks,
    FoundItem,
    Metadata,
    TensorRow,
    class_of,
    metadata_of,
)
from ckpt.formats.common.pickled import run
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Dict, Global, Node, Opaque, is_tuple
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS
from ckpt.pickle.machine import Made, Pickle
from ckpt.pickle.opcodes import FRAME, ends_opcode
from ckpt.pickle.skim import get_opcode, number_of, numbers_of, slot_of


def without_frames(data: bytes) -> tuple[bytes, list[int]]:
    """Return (the same pickle without FRAME opcodes, where frames ended in it).

    They only tell a reader how much to read. Other bytes stay as they are.
    """
    # Protocol 4 and later begin with PROTO, then FRAME: nine bytes.
    if data[:1] != b"\x80" or data[2:3] != b"\x95":
        return data, []
    parts, ends, position = [data[:2]], [2], 2
    while data[position : position + 1] == b"\x95" and position + 9 <= len(data):
        end = position + 9 + int.from_bytes(data[position + 1 : position + 9], "little")
        # A frame that ends behind the data is left to the machine, which refuses it.
        if end > len(data):
            return data, []
        parts.append(data[position + 9 : end])
        ends.append(ends[-1] + end - position - 9)
        position = end
    if position < len(data):
        parts.append(data[position:])
    return b"".join(parts), ends[1:]


Memo: TypeAlias = dict[int, Made]

_UINT32 = Struct("<I").unpack_from
_SHORT, _LONG, _MARK = 0x8C, 0x58, 0x28  # opcodes: see Lib/pickletools.py
_NUMBER = rb"(?:K.|M..|(?:J...|\x8a(?:\x05.{4}|\x06.{5}|\x07.{6}|\x08.{7}))[\0-\x7f])"
"""Opcodes that push a number. The last byte of a negative one is larger, so the machine
reads that, and refuses it.
"""
# Up to three numbers have an opcode of their own for the tuple (TUPLE1 to TUPLE3). The
# look ahead keeps a number from being taken for another opcode.
_SOME = b"|".join(_NUMBER * count + rb"(?=%c)" % (0x84 + count) for count in (1, 2, 3))
_NUMBERS = (
    rb"(?:\)|(" + _SOME + rb").\x94|\((" + _NUMBER + rb"{1,%d})t\x94)" % DIMENSIONS
)
# An opcode that gets a slot of the memo: BINGET, or LONG_BINGET.
_GOT = rb"(h.|j....)"
# A text from the memo, or a short one that is pushed and put into it. Only ASCII: its
# length is its bytes.
_TEXT = rb"(?:(h.|j....)|\x8c(.)([ -~]*)\x94)"
_TRIES = 8
"""The most looks at entries that may be the usual one. Each look goes through the whole
memo.
"""
_ROW, _CHUNK, _ITEM = 900, 60, 360
"""Bytes of memory of a tensor, of a chunk, and of an item."""


class _Usual(NamedTuple):
    """Regular expressions for one kind of entry and for its chunks, and the nodes in
    the slots of the memo that they name.
    """

    patterns: tuple[re.Pattern[bytes], ...]
    nodes: dict[int, Made]

    def fits(self, memo: Memo) -> bool:
        """Tell whether the slots still hold these nodes: an opcode may fill a slot
        again.
        """
        return all(memo.get(slot) is node for slot, node in self.nodes.items())


class Skimmer:
    """Reads on for the machine (`machine.Skim`) in the bytes of a `.metadata` without
    frames.

    For each entry that it reads there is a pair on the stack, with a TensorRow or a
    FoundItem as value.
    """

    def __init__(
        self, data: bytes, budget: Budget, frame_ends: Sequence[int] = ()
    ) -> None:
        self.data = data
        self._budget = budget
        self._frame_ends = [len(data) + 1, *reversed(frame_ends)]
        self._known = 2  # an opcode begins here
        self._is_torn = False
        self._tensors: _Usual | None = None
        self._places: _Usual | None = None
        self.memo: Memo = {}
        self._tries = _TRIES

    def __call__(
        self, out: Pickle, stack: list[Made], outer: list[list[Made]], position: int
    ) -> int:
        # An entry may be skipped only where the stack holds pairs of a dict, and
        # nothing else.
        if (
            not outer
            or len(stack) % 2
            or not outer[-1]
            or type(outer[-1][-1]) not in (Dict, Opaque)
        ):
            return position  # a list of pairs alone may be skipped to the next one
        before = out.skimmed
        self._pass_frames(self._known, position)
        position, out.skimmed = self._read_on(stack, self.memo, position, before)
        self._known = position
        return position

    def _pass_frames(self, before: int, position: int) -> None:
        """Look whether the frames up to a position end between opcodes. An opcode
        begins there, and at `before`.
        """
        # A frame that ends inside an opcode is not what Python would read.
        while self._frame_ends[-1] <= position:
            end = self._frame_ends.pop()
            self._is_torn = self._is_torn or not ends_opcode(self.data, before, end)
            before = end

    def _read_on(
        self, stack: list[Made], memo: Memo, position: int, skipped: int
    ) -> tuple[int, int]:
        entry, below = stack[-1], stack[-2] if len(stack) > 1 else None
        if type(entry) is not Opaque:
            return position, skipped
        kind = class_of(entry)
        if kind == "TensorStorageMetadata" and type(below) is str:
            # The first entry that the machine has read is the pattern for those that
            # follow.
            if self._tensors is None and self._tries:
                self._tensors = _usual_tensor(entry, memo)
                self._tries -= self._tensors is None
            if self._tensors is not None and self._tensors.fits(memo):
                return self._skim_tensors(self._tensors, stack, memo, position, skipped)
        if (
            kind == "_StorageInfo"
            and type(below) is Opaque
            and class_of(below) == "MetadataIndex"
        ):
            if (
                self._places is None
                and self._tries
                and _state_fields(below).get("offset") is not None
            ):
                self._places = _usual_place(below, entry, memo)
                self._tries -= self._places is None
            if self._places is not None and self._places.fits(memo):
                return self._skim_places(self._places, stack, memo, position, skipped)
        return position, skipped

    @property
    def is_exact(self) -> bool:
        """Tell whether a machine that skims nothing surely finds the same, now that the
        pickle was read.

        A slot of the memo has another number where a pickle fills slots by their
        number, which no pickler does that also counts them. A frame that ends inside an
        opcode leaves the next FRAME there, which Python reads as a part of it.
        """
        self._pass_frames(self._known, len(self.data))
        return not self._is_torn and all(
            slot < following for slot, following in pairwise(self.memo)
        )

    # --- what follows an entry --------------------------------------------------------

    def _skim_tensors(
        self, usual: _Usual, stack: list[Made], memo: Memo, position: int, skipped: int
    ) -> tuple[int, int]:
        """Leave a name and a TensorRow on the stack for each entry that has the usual
        opcodes.
        """
        # The machine counts its slots by what it has put: skipped entries count too.
        slot = len(memo) + skipped
        while True:
            entry = self._tensor(usual, memo, position, slot)
            if entry is None:
                return position, slot - len(memo)
            row, position, end = entry
            stack += [row.name, cast("Made", row)]
            slot = end
            self._budget.charge(_ROW + _CHUNK * len(row.chunks), ".metadata")

    def _next_entry(self, position: int) -> int:
        """The offset of the next entry: the pickler ends a list of pairs after a
        thousand, and begins another one.
        """
        return position + 2 if self.data[position : position + 2] == b"u(" else position

    def _tensor(
        self, usual: _Usual, memo: Memo, position: int, slot: int
    ) -> tuple[TensorRow, int, int] | None:
        """Return (the entry at an offset, the offset after it, the next slot of the
        memo), or None.

        Other opcodes give None.
        """
        data, (first, second) = self.data, usual.patterns
        start, position = position, self._next_entry(position)
        text = _text_at(data, position)
        head = None if text is None else first.match(data, text[1])
        if text is None or head is None:
            return None
        # All checks come before anything changes: an entry that does not fit is read by
        # the machine.
        dtype, shape = _memo_dtype(memo, head[1]), _match_sizes(head, 3)
        if dtype is None:
            return None
        chunks = Chunks(len(shape))
        known, position, begin = start, head.end(), slot
        # The slots that the opcodes of an entry fill, and those of each chunk.
        slot += 6 + (3 if shape else 2)
        slots = 2 + (6 if shape else 4)
        # One chunk is appended by itself, several between MARK and APPENDS.
        many = data[position] == _MARK
        count = 0
        lows: list[int] = []
        wide: list[int] = []
        # `many` counts the byte of MARK.
        position += many
        while (chunk := second.match(data, position)) is not None:
            offsets, sizes = _match_sizes(chunk, 1), _match_sizes(chunk, 3)
            if len(offsets) != len(shape) or len(sizes) != len(shape):
                return None
            lows += offsets
            wide += sizes
            count += 1
            position = chunk.end()
            if position >= self._frame_ends[-1]:
                self._pass_frames(known, position)
            known = position
            if not many:
                break
            # A list of a thousand ends, and goes on.
            if data[position : position + 2] == b"e(":
                position += 2
        chunks.fill(lows, wide, count)
        # APPENDS of a list of chunks, APPEND of one, nothing for none.
        end = b"ub"
        if many:
            end = b"eub"
        elif count:
            end = b"aub"
        if data[position : position + len(end)] != end:
            return None
        position += len(end)
        if position >= self._frame_ends[-1]:
            self._pass_frames(known, position)
        # Only now: an entry that is left to the machine fills these slots itself.
        memo[begin] = text[0]
        row = TensorRow(text[0], dtype, shape, head[2] == b"\x88", chunks)
        return row, position, slot + count * slots

    def _skim_places(
        self, usual: _Usual, stack: list[Made], memo: Memo, position: int, skipped: int
    ) -> tuple[int, int]:
        """Leave a name and a FoundItem on the stack for each entry that has the usual
        opcodes.
        """
        # Names of the loop are locals: 100,000 entries go through it.
        data, slot, before = self.data, len(memo) + skipped, len(stack)
        match, size, make = usual.patterns[0].match, _size, tuple.__new__
        while (entry := match(data, position)) is not None:
            # In the order of the groups of the pattern: the name (from the memo, or
            # length and text), the offset (its opcodes; few or many numbers), the file
            # (the same way), the two numbers.
            (
                got,
                length,
                text,
                place,
                few,
                many,
                same,
                other_length,
                other,
                begin,
                count,
            ) = entry.groups()
            used = 4
            name = memo.get(slot_of(got)) if got else text
            file = memo.get(slot_of(same)) if same else other
            if text is not None:
                name = text.decode()
                used += 1
                # A length that is another one than the text's would shift all that
                # follows.
                if len(name) != length[0]:
                    break
            offsets: tuple[int, ...] | None = None
            if place is not None:
                offsets = size(few or many or b"")
                used += 3 if offsets else 2
            if other is not None:
                file = other.decode()
                if len(file) != other_length[0]:
                    break
                used += 1
            if type(name) is not str or type(file) is not str:
                break
            # Only now: an entry that is left to the machine fills these slots itself.
            if text is not None:
                memo[slot + 2] = name
            if other is not None:
                memo[slot + used - 1] = file
            slot += used
            if entry.end() >= self._frame_ends[-1]:
                self._pass_frames(position, entry.end())
            position = entry.end()
            fields = (name, offsets, file, number_of(begin), number_of(count), ())
            stack += (name, make(FoundItem, fields))
        self._budget.charge(_ITEM * (len(stack) - before) // 2, ".metadata")
        return position, slot - len(memo)


def _usual_tensor(row: Opaque, memo: Memo) -> _Usual | None:
    """Return what fits entries like this one, or None if it is unusual."""
    fields = _state_fields(row)
    # Entries of other fields are left to the machine.
    properties, size, chunks = (
        fields.get(name) for name in ("properties", "size", "chunks")
    )
    if (
        list(fields) != ["properties", "size", "chunks"]
        or type(properties) is not Opaque
    ):
        return None
    chunk = chunks[0] if type(chunks) is list and chunks else None
    if (
        type(size) is not Opaque
        or type(chunk) is not Opaque
        or list(_state_fields(chunk)) != ["offsets", "sizes"]
    ):
        return None
    is_call = properties.how == "reduce"  # as ckpt writes it
    state: Node = None
    if is_call:
        state = properties.args
    elif len(properties.states) == 1:
        state = properties.states[0]
    if not is_tuple(state) or len(state) != (3 if is_call else 5):
        return None
    keys, inner = row.states[0].keys, chunk.states[0].keys  # type: ignore[union-attr]
    # Each of these nodes must be in the memo: entries that follow get them from there.
    nodes = _in_slots(
        memo,
        (row.func, properties.func, size.func, chunk.func, *state[1::2], *keys, *inner),
    )
    if nodes is None:
        return None
    of = _expression_function(nodes)
    # dtype, layout, requires_grad; torch has an enum and a flag behind them.
    pattern = _GOT + of(state[1]) + rb"([\x88\x89])"
    if is_call:
        pattern += rb"\x87\x94R\x94"
    else:
        pattern = rb"\)\x81\x94\(" + pattern + of(state[3]) + rb"[\x88\x89]t\x94b"
    sizes = of(size.func) + _NUMBERS + rb"\x85\x94R\x94"
    # The opcodes of an entry, up to its list of chunks.
    first = (
        rb"\x94"
        + of(row.func)
        + rb"\)\x81\x94\}\x94\("
        + of(keys[0])
        + of(properties.func)
        + pattern
        + of(keys[1])
        + sizes
        + of(keys[2])
        + rb"\]\x94"
    )
    # The opcodes of one chunk.
    second = (
        of(chunk.func)
        + rb"\)\x81\x94\}\x94\("
        + of(inner[0])
        + sizes
        + of(inner[1])
        + sizes
        + rb"ub"
    )
    return _Usual((re.compile(first, re.DOTALL), re.compile(second, re.DOTALL)), nodes)


def _usual_place(key: Opaque, record: Opaque, memo: Memo) -> _Usual | None:
    """Return what fits entries like this one, or None if it is unusual."""
    place, record_fields = _state_fields(key), _state_fields(record)
    if list(place) != ["fqn", "index", "offset"] or list(record_fields) != [
        # Entries of other fields are left to the machine.
        "relative_path",
        "offset",
        "length",
    ]:
        return None
    size = place["offset"]
    keys, inner = key.states[0].keys, record.states[0].keys  # type: ignore[union-attr]
    if type(size) is not Opaque:
        return None
    nodes = _in_slots(memo, (key.func, record.func, size.func, *keys, *inner))
    if nodes is None:
        return None
    of = _expression_function(nodes)
    # The key (a MetadataIndex), then the value (a `_StorageInfo`).
    pattern = (
        rb"(?:u\()?"
        + of(key.func)
        + rb"\)\x81\x94\}\x94\("
        + of(keys[0])
        + _TEXT
        + of(keys[1])
        + rb"(?:N|"
        + _NUMBER
        + rb")"
        + of(keys[2])
        + rb"(?:N|("
        + of(size.func)
        + _NUMBERS
        + rb"\x85\x94R\x94))ub"
        + of(record.func)
        + rb"\)\x81\x94\}\x94\("
        + of(inner[0])
        + _TEXT
        + of(inner[1])
        + rb"("
        + _NUMBER
        + rb")"
        + of(inner[2])
        + rb"("
        + _NUMBER
        + rb")ub"
    )
    return _Usual((re.compile(pattern, re.DOTALL),), nodes)


def _state_fields(record: Opaque) -> dict[str, Node]:
    state = record.states[0] if len(record.states) == 1 else None
    if type(state) is not Dict or not all(type(key) is str for key in state.keys):
        return {}
    return dict(zip(map(str, state.keys), state.values, strict=True))


def _in_slots(memo: Memo, nodes: Iterable[Node]) -> dict[int, Made] | None:
    """Return the nodes by their slots of the memo, or None if one of them is in no
    slot.
    """
    # One pass over the memo: it may have millions of slots.
    slots = {id(value): slot for slot, value in memo.items()}
    found = {slots.get(id(node), -1): cast("Made", node) for node in nodes}
    return None if -1 in found else found


def _expression_function(nodes: dict[int, Made]) -> Callable[[Node], bytes]:
    """Return a function that gives a regular expression for the opcodes that push one
    of the nodes.
    """
    expressions = {
        id(node): re.escape(get_opcode(slot)) for slot, node in nodes.items()
    }
    return lambda node: expressions[id(node)]


def _memo_dtype(memo: Memo, got: bytes) -> DType | None:
    node = memo.get(slot_of(got))
    if type(node) is not Global or node.module != "torch":
        return None
    return BY_NAME.get(node.name)


def _text_at(data: bytes, position: int) -> tuple[str, int] | None:
    """Return (the string at an offset, the offset after it), or None if no string is
    pushed.
    """
    op = data[position] if position < len(data) else 0
    if op == _SHORT and position + 1 < len(data):
        begin, count = position + 2, data[position + 1]
    elif op == _LONG and position + 5 <= len(data):
        begin, count = position + 5, _UINT32(data, position + 1)[0]
    else:
        return None
    # A text that reaches the end of the data is cut off.
    if begin + count >= len(data):
        return None
    try:
        return data[begin : begin + count].decode(
            "utf-8", "surrogatepass"
        ), begin + count
    except UnicodeDecodeError:
        return None


def _match_sizes(match: re.Match[bytes], group: int) -> tuple[int, ...]:
    """The numbers of a torch.Size."""
    return _size(match[group] or match[group + 1] or b"")


_size = lru_cache(maxsize=10_000)(numbers_of)
"""The numbers of a torch.Size. Most sizes occur again and again."""


def read_metadata(data: bytes, limits: Limits, budget: Budget) -> Metadata:
    """The content of a `.metadata` file. Raises UnreadableError, LimitError."""
    # The trial has a budget of its own: if it fails, the machine starts with all of it.
    trial = budget.copy()
    bare, frame_ends = without_frames(data)
    skimmer = Skimmer(bare, trial, frame_ends)
    try:
        pickle = run(skimmer.data, limits, trial, skimmer)
        # A FRAME inside of a frame is refused by Python, and left to the machine.
        begun_inside = (
            bool(frame_ends)
            and pickle.foreign_opcodes.get(FRAME, len(bare)) < frame_ends[-1]
        )
        if skimmer.is_exact and not begun_inside:
            found = metadata_of(pickle)
            budget.become(trial)
            return found
    except UnreadableError:
        # the machine alone decides: what was skimmed may be asked for, as a slot of the
        # memo for example
        pass
    return metadata_of(run(data, limits, budget))
