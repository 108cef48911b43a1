"""The opcodes of pickle protocols 0 to 5, by name (Lib/pickletools.py of CPython).
Plain ints, for speed.
"""

from __future__ import annotations

# What torch's weights_only machine accepts (torch/_weights_only_unpickler.py, the same
# from 1.13 to 2.13).
PROTO, STOP, MARK = 0x80, 0x2E, 0x28
BINPUT, LONG_BINPUT, BINGET, LONG_BINGET = 0x71, 0x72, 0x68, 0x6A
BINUNICODE, SHORT_BINSTRING = 0x58, 0x55
BININT, BININT1, BININT2, LONG1, BINFLOAT = 0x4A, 0x4B, 0x4D, 0x8A, 0x47
NONE, NEWTRUE, NEWFALSE = 0x4E, 0x88, 0x89
EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE = 0x29, 0x85, 0x86, 0x87, 0x74
EMPTY_LIST, APPEND, APPENDS = 0x5D, 0x61, 0x65
EMPTY_DICT, SETITEM, SETITEMS, EMPTY_SET = 0x7D, 0x73, 0x75, 0x8F
GLOBAL, REDUCE, BUILD, NEWOBJ, BINPERSID = 0x63, 0x52, 0x62, 0x81, 0x51

WEIGHTS_ONLY = frozenset(
    code for name, code in list(globals().items()) if name.isupper()
)
"""The opcodes above. The machine reports all others to weights_only as foreign (the
tests check this set).
"""

POP, POP_MARK, DUP = 0x30, 0x31, 0x32
INT, LONG, LONG4, FLOAT = 0x49, 0x4C, 0x8B, 0x46
STRING, UNICODE, PERSID, BINSTRING = 0x53, 0x56, 0x50, 0x54
BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8 = 0x42, 0x43, 0x8E, 0x96
SHORT_BINUNICODE, BINUNICODE8 = 0x8C, 0x8D
LIST, DICT, FROZENSET, ADDITEMS = 0x6C, 0x64, 0x91, 0x90
GET, PUT, MEMOIZE, FRAME = 0x67, 0x70, 0x94, 0x95
INST, OBJ, NEWOBJ_EX, STACK_GLOBAL = 0x69, 0x6F, 0x92, 0x93
EXT1, EXT2, EXT4, NEXT_BUFFER, READONLY_BUFFER = 0x82, 0x83, 0x84, 0x97, 0x98

NAMES: dict[int, str] = {
    code: name for name, code in list(globals().items()) if type(code) is int
}

ARGUMENT_BYTES: dict[int, int] = {
    **dict.fromkeys(
        (PROTO, BINPUT, BINGET, BININT1, LONG1, SHORT_BINSTRING, SHORT_BINBYTES), 1
    ),
    **dict.fromkeys((SHORT_BINUNICODE,), 1),
    **dict.fromkeys((BININT2,), 2),
    **dict.fromkeys(
        (BININT, LONG_BINPUT, LONG_BINGET, BINUNICODE, BINSTRING, BINBYTES, LONG4), 4
    ),
    **dict.fromkeys((BINFLOAT, BINUNICODE8, BINBYTES8, BYTEARRAY8, FRAME), 8),
}
"""The least number of bytes that follow an opcode; 0 for opcodes that are not here."""

COUNTED: dict[int, int] = {
    **dict.fromkeys((LONG1, SHORT_BINSTRING, SHORT_BINBYTES, SHORT_BINUNICODE), 1),
    **dict.fromkeys((LONG4, BINUNICODE, BINSTRING, BINBYTES), 4),
    **dict.fromkeys((BINUNICODE8, BINBYTES8, BYTEARRAY8), 8),
}
"""Opcodes with the length of what follows it -> the width of that length."""

LINED: dict[int, int] = {
    **dict.fromkeys((GLOBAL, INST), 2),
    **dict.fromkeys((INT, LONG, FLOAT, STRING, UNICODE, GET, PUT, PERSID), 1),
}
"""Opcodes with lines of text -> how many."""


def ends_opcode(data: bytes | bytearray, position: int, end: int) -> bool:
    """Tell whether an opcode ends at `end`, where one begins at `position`."""
    while position < end:
        position = next_opcode(data, position, end)
    return position == end


def next_opcode(data: bytes | bytearray, position: int, end: int) -> int:
    """Return the offset behind the opcode at `position` and its argument. It is beyond
    `end` where a line of the argument has no end before it.
    """
    code = data[position]
    position += 1
    if code in COUNTED:
        # The length, then as many bytes.
        first = position + COUNTED[code]
        return first + int.from_bytes(data[position:first], "little")
    if code in LINED:
        for _ in range(LINED[code]):
            newline = data.find(b"\n", position, end)
            if newline < 0:
                return end + 1
            position = newline + 1
        return position
    return position + ARGUMENT_BYTES.get(code, 0)
