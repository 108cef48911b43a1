"""State dicts as `torch.save` writes them, without torch: it takes a minute for a
million tensors, this takes seconds.

Records, names, padding and pickle are torch's own to the byte, which
`tests/benchmarks/test_files.py` compares. Only the identity of the file, a random
number in torch, is zero. Other modules of this folder import this one, so it imports
little itself: see `timing.own_peak_mb`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from struct import pack
from typing import BinaryIO
from zlib import crc32

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
    "bool": 1,
    "float64": 8,
    "complex64": 8,
    "int64": 8,
}
"""The dtypes that can be written, and the bytes of an element."""
_STORAGES = {
    "float32": "FloatStorage",
    "bfloat16": "BFloat16Storage",
    "float16": "HalfStorage",
    "int8": "CharStorage",
    "bool": "BoolStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "int64": "LongStorage",
}
"""The classes of storages; a younger dtype has none, so its storage has no type and the
tensor names the dtype.
"""
ALIGNMENT = 64
_BATCH = 1000  # items of a dict that a pickle sets at once
_MOST = 0xFFFFFFFF


def write_state(
    path: Path,
    names: Iterable[str],
    shape: Sequence[int],
    dtype: str = "float32",
    payloads: Sequence[bytes] = (),
    tag: str = "cpu",
) -> None:
    """Write a state dict of tensors of one shape and dtype, each with a storage of its
    own.

    The tensors take their bytes from `payloads` in turn, and are zeros without any.
    `tag` is the device that the file names. Raises SystemExit for a file of more than 4
    GiB, which would need longer headers.
    """
    size = prod(shape) * ITEM_BYTES[dtype]
    payloads = payloads or [bytes(size)]
    assert all(len(payload) == size for payload in payloads)
    keys, state = _pickled(names, shape, dtype, tag)
    checked = [(payload, crc32(payload)) for payload in payloads]
    records = [
        ("data.pkl", state, crc32(state)),
        *_texts(
            (".format_version", "1"),
            (".storage_alignment", str(ALIGNMENT)),
            ("byteorder", sys.byteorder),
        ),
    ]
    storages = ((f"data/{key}", *checked[key % len(checked)]) for key in range(keys))
    last = _texts(("version", "3\n"), (".data/serialization_id", "0" * 40))
    with path.open("wb", buffering=1 << 20) as file:
        _write_zip(file, _chained(path.stem, records, storages, last))


def _texts(*texts: tuple[str, str]) -> list[tuple[str, bytes, int]]:
    return [(name, text.encode(), crc32(text.encode())) for name, text in texts]


def _chained(
    root: str, *parts: Iterable[tuple[str, bytes, int]]
) -> Iterator[tuple[bytes, bytes, int]]:
    for part in parts:
        for name, data, crc in part:
            yield f"{root}/{name}".encode(), data, crc


def _write_zip(file: BinaryIO, records: Iterable[tuple[bytes, bytes, int]]) -> None:
    """Write records without compression, as torch does: the data are aligned, and sizes
    follow them.
    """
    directory = bytearray()
    count = position = 0
    for name, data, crc in records:
        size = len(data)
        begin = position + 30 + len(name) + 4
        pad = -begin % ALIGNMENT
        file.write(
            pack(
                "<4sHHHHHIIIHH",
                b"PK\3\4",
                0,
                0x0808,
                0,
                0,
                0,
                0,
                0,
                0,
                len(name),
                4 + pad,
            )
            + name
            + pack("<2sH", b"FB", pad)
            + b"Z" * pad
        )
        file.write(data)
        file.write(pack("<4sIII", b"PK\7\x08", crc, size, size))
        directory += pack(
            "<4sHHHHHHIII", b"PK\1\2", 0, 0, 0x0808, 0, 0, 0, crc, size, size
        )
        directory += pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, position) + name
        position = begin + pad + size + 16
        count += 1
        if position > _MOST:
            raise SystemExit(
                "a file of the benchmarks holds at most 4 GiB: choose a smaller "
                "--size-gb"
            )
    file.write(directory)
    size, end = len(directory), position + len(directory)
    file.write(
        pack(
            "<4sQHHIIQQQQ",
            b"PK\6\6",
            44,
            0x031E,
            0x2D,
            0,
            0,
            count,
            count,
            size,
            position,
        )
    )
    file.write(pack("<4sIQI", b"PK\6\7", 0, end, 1))
    short = min(count, 0xFFFF)
    file.write(pack("<4sHHHHIIH", b"PK\5\6", 0, 0, short, short, size, position, 0))


def _pickled(
    names: Iterable[str], shape: Sequence[int], dtype: str, tag: str
) -> tuple[int, bytes]:
    """Return the number of tensors, and the pickle of a dict of them by their names.

    It holds what Python's own pickler makes of the calls in torch/_tensor.py: the
    pickler of C takes ten times as long, for it asks about each object whether it is a
    storage.
    """
    typed = dtype in _STORAGES
    numel = prod(shape) * (
        1 if typed else ITEM_BYTES[dtype]
    )  # a storage without a type counts bytes
    sizes = _tuple([_number(size) for size in shape])
    strides = _tuple([_number(prod(shape[place + 1 :])) for place in range(len(shape))])
    storage_class = (
        f"torch\n{_STORAGES[dtype]}" if typed else "torch.storage\nUntypedStorage"
    )
    kinds = [] if typed else [f"ctorch\n{dtype}\n".encode()]
    memo: dict[bytes, int] = {}
    places = 1  # the dict has place 0
    out = [b"\x80\x02}q\0"]

    def once(code: bytes) -> None:
        """Write an object that every tensor refers to: in full at first, then by its
        place.
        """
        if code in memo:
            out.append(_placed(b"h", b"j", memo[code]))
        else:
            memo[code] = places
            put(code)

    def put(code: bytes) -> None:
        nonlocal places
        out.append(code)
        out.append(_placed(b"q", b"r", places))
        places += 1

    every = list(names)
    for key, name in enumerate(every):
        if key % _BATCH == 0 and len(every) > 1:
            out.append(b"(" if key == 0 else b"u(")
        put(_text(name))
        once(f"ctorch._utils\n_rebuild_tensor_v{2 if typed else 3}\n".encode())
        out.append(b"((")
        once(_text("storage"))
        once(f"c{storage_class}\n".encode())
        put(_text(str(key)))
        once(_text(tag))
        out.append(_number(numel))
        put(b"t")
        out.append(b"QK\0")
        put(sizes)
        put(strides)
        out.append(b"\x89")
        once(b"ccollections\nOrderedDict\n")
        put(b")R")
        for kind in kinds:
            once(kind)
        put(b"t")
        put(b"R")
    # A full batch is followed by another one, even if that is empty.
    out.append(b"s." if len(every) == 1 else b"u." if len(every) % _BATCH else b"u(u.")
    return len(every), b"".join(out)


def _placed(short: bytes, long: bytes, place: int) -> bytes:
    return short + bytes([place]) if place < 256 else long + pack("<I", place)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + pack("<I", len(data)) + data


def _number(value: int) -> bytes:
    if value < 1 << 16:
        return b"K" + bytes([value]) if value < 256 else b"M" + pack("<H", value)
    return b"J" + pack("<i", value)


def _tuple(items: Sequence[bytes]) -> bytes:
    """A tuple of one to three items, or of more."""
    data = b"".join(items)
    return data + bytes([0x84 + len(items)]) if len(items) < 4 else b"(" + data + b"t"
