"""The first bytes of what torch.save wrote before 1.6.

They lie apart from the reader, because each file is asked whether it begins with them.
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
