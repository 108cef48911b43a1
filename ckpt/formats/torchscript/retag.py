"""Changes the devices in a pickle of TorchScript, and nothing else of it: all other bytes stay as they are.

The C++ reader of torch knows few opcodes and few forms of numbers, so such a pickle is not written anew. Its writer
memoises each text, and a storage, a `torch.device` and an attribute share one `'cpu'`: each use is decided by itself.
Layout: torch/csrc/jit/serialization/{pickler,unpickler}.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack_from
from typing import Literal, TypeAlias

from ckpt.errors import UnsupportedError
from ckpt.pickles.opcodes import (
    APPEND,
    APPENDS,
    ARGUMENT_BYTES,
    BINFLOAT,
    BINGET,
    BININT,
    BININT1,
    BININT2,
    BINPERSID,
    BINPUT,
    BINUNICODE,
    BUILD,
    DICT,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    GLOBAL,
    LIST,
    LONG1,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    NAMES,
    NEWFALSE,
    NEWOBJ,
    NEWTRUE,
    NONE,
    PROTO,
    REDUCE,
    SETITEM,
    SETITEMS,
    STOP,
    TUPLE,
    TUPLE1,
    TUPLE2,
    TUPLE3,
)
from ckpt.rows import NamedTuple

Use: TypeAlias = Literal["storage", "device", "text"]
"""What a text is used for: the location of a storage, the argument of `torch.device`, anything else."""
Moved: TypeAlias = Callable[[Use, str], str]
"""Gives the text that takes the place of a text."""

_TUPLES = frozenset((EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3))
_LISTS = frozenset((APPEND, APPENDS, DICT, EMPTY_DICT, EMPTY_LIST, LIST, SETITEM, SETITEMS))
_SCALARS = frozenset((BINFLOAT, BININT, BININT1, BININT2, BINUNICODE, LONG1, NEWFALSE, NEWTRUE, NONE))
_MEMO = frozenset((BINGET, BINPUT, LONG_BINGET, LONG_BINPUT))
_OBJECTS = frozenset((BINPERSID, BUILD, GLOBAL, MARK, NEWOBJ, PROTO, REDUCE, STOP))
_KNOWN = _TUPLES | _LISTS | _SCALARS | _MEMO | _OBJECTS
"""What torch's C++ writer writes. Anything else is not from there."""
_PUTS, _GETS = (BINPUT, LONG_BINPUT), (BINGET, LONG_BINGET)
_NUMBERS = (BININT1, BININT2, BININT, LONG1)
_DEVICE = b"torch\ndevice\n"


class _Token(NamedTuple):
    """An opcode with its bytes. `slot` is that of the memo, for PUT and GET."""

    code: int
    begin: int
    end: int
    slot: int = -1


def retag(data: bytes, moved: Moved) -> bytes:
    """The pickle with its texts replaced as `moved` says. Raises UnsupportedError for one of another writer."""
    tokens = _tokens(data)
    return _Retag(data, tokens, moved).run()


def _tokens(data: bytes) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(data):
        code, begin = data[at], at
        if code not in _KNOWN:
            what = NAMES.get(code, f"{code:#04x}")
            raise UnsupportedError(f"torch.jit.save writes no {what}, which is at byte {at:,} of a pickle")
        at += 1 + ARGUMENT_BYTES.get(code, 0)
        slot = -1
        if code == GLOBAL:
            at = data.index(b"\n", data.index(b"\n", at) + 1) + 1
        elif code == BINUNICODE:
            at += int(unpack_from("<I", data, begin + 1)[0])
        elif code == LONG1:
            at += data[begin + 1]
        elif code in (BINPUT, BINGET):
            slot = data[begin + 1]
        elif code in (LONG_BINPUT, LONG_BINGET):
            slot = int(unpack_from("<I", data, begin + 1)[0])
        tokens.append(_Token(code, begin, at, slot))
        if code == STOP:
            break
    return tokens


class _Retag:
    """One pickle. `_slots` has the text of each slot of the memo, `_held` the slots that hold a text now."""

    def __init__(self, data: bytes, tokens: list[_Token], moved: Moved) -> None:
        self._data = data
        self._tokens = tokens
        self._moved = moved
        self._uses = self._found()
        self._next = max((token.slot for token in tokens), default=-1) + 1

    def run(self) -> bytes:
        out: list[bytes] = []
        was: dict[int, str] = {}
        """Slot of the source -> its text there."""
        place: dict[int, dict[str, int]] = {}
        """Slot of the source -> the slots of the result that hold it, by its new text."""
        skip = False
        end = self._tokens[-1].end if self._tokens else 0
        for index, token in enumerate(self._tokens):
            if skip:
                skip = False
                continue
            after = self._tokens[index + 1] if index + 1 < len(self._tokens) else token
            if token.code == BINUNICODE:
                text = self._text(token)
                new = self._moved(self._uses.get(index, "text"), text)
                out.append(self._bytes(token) if new == text else _literal(new))
                if after.code in _PUTS:
                    was[after.slot] = text
                    place[after.slot] = {new: after.slot}
                    out.append(self._bytes(after))
                    skip = True
            elif token.code in _GETS and token.slot in was:
                text = was[token.slot]
                new = self._moved(self._uses.get(index, "text"), text)
                slot = place[token.slot].get(new)
                if slot is None:
                    slot = place[token.slot][new] = self._next
                    self._next += 1
                    out += (_literal(new), _memo(BINPUT, LONG_BINPUT, slot))
                else:
                    same = slot == token.slot
                    out.append(self._bytes(token) if same else _memo(BINGET, LONG_BINGET, slot))
            else:
                if token.code in _PUTS:
                    was.pop(token.slot, None)
                out.append(self._bytes(token))
        return b"".join(out) + self._data[end:]

    def _found(self) -> dict[int, Use]:
        """The tokens that give the location of a storage or the argument of `torch.device`."""
        uses: dict[int, Use] = {}
        devices: set[int] = set()
        """Slots of the memo that hold the class `torch.device`."""
        for index, token in enumerate(self._tokens):
            if token.code == GLOBAL and self._is_put(index + 1):
                slot = self._tokens[index + 1].slot
                (devices.add if self._is_device(token) else devices.discard)(slot)
            elif token.code == BINPERSID:
                at = self._location(index)
                if at is None:
                    where = f"the storage at byte {token.begin:,} of a pickle"
                    raise UnsupportedError(f"{where} is not written as torch.jit.save writes it")
                uses[at] = "storage"
            elif token.code == REDUCE and self._tokens[index - 1].code == TUPLE1:
                text = self._text_before(index - 1)
                if text is None:
                    continue
                made = self._tokens[text - 1]
                if made.code in _PUTS:
                    made = self._tokens[text - 2]
                if (made.code == GLOBAL and self._is_device(made)) or (
                    made.code in _GETS and made.slot in devices
                ):
                    uses[text] = "device"
        return uses

    def _location(self, index: int) -> int | None:
        """The token of the location in `('storage', class, key, location, size)`; torch 1.4 has a None at its end."""
        at = index - 1
        if at < 0 or self._tokens[at].code != TUPLE:
            return None
        at -= 1
        if self._tokens[at].code == NONE:
            at -= 1
        return self._text_before(at) if self._tokens[at].code in _NUMBERS else None

    def _text_before(self, index: int) -> int | None:
        """The token before another one that gives a text: its literal, or a GET of one."""
        at = index - 1
        if at >= 0 and self._tokens[at].code in _PUTS:
            at -= 1
        if at < 0:
            return None
        return at if self._tokens[at].code in (BINUNICODE, *_GETS) else None

    def _is_put(self, index: int) -> bool:
        return index < len(self._tokens) and self._tokens[index].code in _PUTS

    def _is_device(self, token: _Token) -> bool:
        return self._data[token.begin + 1 : token.end] == _DEVICE

    def _text(self, token: _Token) -> str:
        return self._data[token.begin + 5 : token.end].decode("utf-8", "surrogatepass")

    def _bytes(self, token: _Token) -> bytes:
        return self._data[token.begin : token.end]


def _literal(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return pack("<BI", BINUNICODE, len(data)) + data


def _memo(short: int, long: int, slot: int) -> bytes:
    return pack("<BB", short, slot) if slot < 256 else pack("<BI", long, slot)
