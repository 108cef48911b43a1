"""The first bytes of pickles: of the stream that torch.save wrote before 1.6, and of
plain ones.

They lie apart from the readers, because each file is asked whether it begins with them.
"""

from __future__ import annotations

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_MAGIC_BYTES = b"\x8a\x0a" + MAGIC.to_bytes(10, "little")
_MAGICS = (
    b"\x80\x02" + _MAGIC_BYTES,
    b"\x80\x03" + _MAGIC_BYTES,
    b"\x80\x04\x95\x0d\0\0\0\0\0\0\0" + _MAGIC_BYTES,
    b"\x80\x05\x95\x0d\0\0\0\0\0\0\0" + _MAGIC_BYTES,
    b"L%dL\n" % MAGIC,
)


def is_legacy(head: bytes) -> bool:
    """Tell whether these first bytes begin a legacy stream."""
    return head.startswith(_MAGICS)


def is_pickle(head: bytes) -> bool:
    """Tell whether these first bytes begin a pickle of a dict, a list or an object."""
    # From protocol 2 on a pickle begins with its protocol. Nobody writes a lower one
    # there, and tables of bytes begin so.
    if head[:1] == b"\x80":
        return len(head) > 1 and 2 <= head[1] <= 5
    # A dict and a list of protocol 0, then of protocol 1, then a state dict.
    return (
        head[:3] in (b"(dp", b"(lp")
        or head[:2] in (b"}q", b"]q")
        or head.startswith(b"ccollections\nOrderedDict\n")
    )
