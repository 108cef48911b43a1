"""Pickles by opcode, and the containers around them by struct, so that every field can
be lied about.

Each opcode is a function that returns its bytes; a program is their sum:

    pickled(glob("posix", "system"), text("true"), tuple1(), reduce())

`value` turns plain Python values into opcodes; `bytes` inside them are taken as
opcodes, as they are. Nothing here uses `pickle`, `zipfile` or torch: those refuse to
write most of what the tests need.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# --------------------------------------------------------------------------------------
# opcodes


def proto(version: int = 2) -> bytes:
    return b"\x80" + bytes([version])


def frame(length: int) -> bytes:
    return b"\x95" + struct.pack("<Q", length)


def stop() -> bytes:
    return b"."


def mark() -> bytes:
    return b"("


def pop() -> bytes:
    return b"0"


def pop_mark() -> bytes:
    return b"1"


def dup() -> bytes:
    return b"2"


def none() -> bytes:
    return b"N"


def boolean(flag: bool) -> bytes:
    return b"\x88" if flag else b"\x89"


def integer(number: int) -> bytes:
    """The shortest of BININT1, BININT2, BININT, LONG1 and LONG4."""
    if 0 <= number < 2**8:
        return b"K" + bytes([number])
    if 0 <= number < 2**16:
        return b"M" + struct.pack("<H", number)
    if -(2**31) <= number < 2**31:
        return b"J" + struct.pack("<i", number)
    blob = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return long1(blob) if len(blob) < 256 else long4(blob)


def long1(blob: bytes) -> bytes:
    return b"\x8a" + bytes([len(blob)]) + blob


def long4(blob: bytes, length: int | None = None) -> bytes:
    return b"\x8b" + struct.pack("<i", len(blob) if length is None else length) + blob


def floating(number: float) -> bytes:
    return b"G" + struct.pack(">d", number)


def text(string: str | bytes, length: int | None = None) -> bytes:
    """BINUNICODE; `bytes` may be no UTF-8, `length` may be a lie."""
    blob = (
        string if isinstance(string, bytes) else string.encode("utf-8", "surrogatepass")
    )
    return b"X" + struct.pack("<L", len(blob) if length is None else length) + blob


def short_text(string: str | bytes) -> bytes:
    blob = (
        string if isinstance(string, bytes) else string.encode("utf-8", "surrogatepass")
    )
    return b"\x8c" + bytes([len(blob)]) + blob


def text8(blob: bytes, length: int | None = None) -> bytes:
    return b"\x8d" + struct.pack("<Q", len(blob) if length is None else length) + blob


def py2(blob: bytes) -> bytes:
    """SHORT_BINSTRING: a `str` of Python 2."""
    return b"U" + bytes([len(blob)]) + blob


def py2_long(blob: bytes, length: int | None = None) -> bytes:
    """BINSTRING, whose length is signed."""
    return b"T" + struct.pack("<i", len(blob) if length is None else length) + blob


def binary(blob: bytes, length: int | None = None) -> bytes:
    """BINBYTES (protocol 3)."""
    return b"B" + struct.pack("<L", len(blob) if length is None else length) + blob


def short_binary(blob: bytes) -> bytes:
    return b"C" + bytes([len(blob)]) + blob


def binary8(blob: bytes, length: int | None = None) -> bytes:
    return b"\x8e" + struct.pack("<Q", len(blob) if length is None else length) + blob


def bytearray8(blob: bytes, length: int | None = None) -> bytes:
    return b"\x96" + struct.pack("<Q", len(blob) if length is None else length) + blob


def line(opcode: str, argument: str | bytes) -> bytes:
    """An opcode of protocol 0 with its line: `line("I", "5")`, `line("F", "1e3")`,
    `line("P", "id")`.
    """
    blob = (
        argument
        if isinstance(argument, bytes)
        else argument.encode("utf-8", "surrogatepass")
    )
    return opcode.encode() + blob + b"\n"


def glob(module: str | bytes, name: str | bytes) -> bytes:
    return (
        line("c", module) + (name if isinstance(name, bytes) else name.encode()) + b"\n"
    )


def stack_global(module: str | bytes, name: str | bytes) -> bytes:
    return short_text(module) + short_text(name) + b"\x93"


def reduce() -> bytes:
    return b"R"


def build() -> bytes:
    return b"b"


def newobj() -> bytes:
    return b"\x81"


def newobj_ex() -> bytes:
    return b"\x92"


def obj() -> bytes:
    return b"o"


def inst(module: str, name: str) -> bytes:
    return line("i", module) + name.encode() + b"\n"


def empty_tuple() -> bytes:
    return b")"


def tuple1() -> bytes:
    return b"\x85"


def tuple2() -> bytes:
    return b"\x86"


def tuple3() -> bytes:
    return b"\x87"


def tuple_() -> bytes:
    return b"t"


def empty_list() -> bytes:
    return b"]"


def list_() -> bytes:
    return b"l"


def append() -> bytes:
    return b"a"


def appends() -> bytes:
    return b"e"


def empty_dict() -> bytes:
    return b"}"


def dict_() -> bytes:
    return b"d"


def setitem() -> bytes:
    return b"s"


def setitems() -> bytes:
    return b"u"


def empty_set() -> bytes:
    return b"\x8f"


def additems() -> bytes:
    return b"\x90"


def frozenset_() -> bytes:
    return b"\x91"


def put(slot: int) -> bytes:
    return b"q" + bytes([slot]) if slot < 256 else b"r" + struct.pack("<L", slot)


def get(slot: int) -> bytes:
    return b"h" + bytes([slot]) if slot < 256 else b"j" + struct.pack("<L", slot)


def memoize() -> bytes:
    return b"\x94"


def binpersid() -> bytes:
    return b"Q"


def ext1(code: int) -> bytes:
    return b"\x82" + bytes([code])


def ext2(code: int) -> bytes:
    return b"\x83" + struct.pack("<H", code)


def ext4(code: int) -> bytes:
    return b"\x84" + struct.pack("<i", code)


def next_buffer() -> bytes:
    return b"\x97"


def readonly_buffer() -> bytes:
    return b"\x98"


# --------------------------------------------------------------------------------------
# phrases


def value(thing: Any) -> bytes:
    """The opcodes that make a plain value; `bytes` are opcodes already."""
    if isinstance(thing, bytes):
        return thing
    if thing is None:
        return none()
    if isinstance(thing, bool):
        return boolean(thing)
    if isinstance(thing, int):
        return integer(thing)
    if isinstance(thing, float):
        return floating(thing)
    if isinstance(thing, str):
        return text(thing)
    if isinstance(thing, tuple):
        return (
            mark() + b"".join(map(value, thing)) + tuple_() if thing else empty_tuple()
        )
    if isinstance(thing, list):
        return empty_list() + mark() + b"".join(map(value, thing)) + appends()
    if isinstance(thing, dict):
        return mapping(thing.items())
    raise TypeError(type(thing))


def mapping(pairs: Iterable[tuple[Any, Any]]) -> bytes:
    """A dict from pairs; keys may repeat, and may be what no dict takes."""
    return (
        empty_dict()
        + mark()
        + b"".join(value(k) + value(v) for k, v in pairs)
        + setitems()
    )


def call(function: bytes, *arguments: Any) -> bytes:
    return function + value(arguments) + reduce()


def pickled(*program: Any, protocol: int | None = 2) -> bytes:
    """One pickle: PROTO, the program, STOP."""
    return (
        (b"" if protocol is None else proto(protocol))
        + b"".join(map(value, program))
        + stop()
    )


def ordered_dict() -> bytes:
    return call(glob("collections", "OrderedDict"))


def storage_id(
    key: Any = "0",
    cls: Any = "FloatStorage",
    numel: Any = 6,
    location: Any = "cpu",
    *more: Any,
    module: str = "torch",
    word: Any = "storage",
) -> bytes:
    """The persistent id of a storage: 5 items in zips, a sixth (`None` or a view) in
    legacy files.
    """
    kind = glob(module, cls) if isinstance(cls, str) else cls
    return value((word, kind, key, location, numel, *more)) + binpersid()


def rebuilt(
    storage: bytes,
    size: Any = (2, 3),
    stride: Any = (3, 1),
    offset: Any = 0,
    *more: Any,
    rebuild: str | bytes = "_rebuild_tensor_v2",
) -> bytes:
    """A rebuild call over a storage; `more` are the arguments that follow (default:
    those the function has).
    """
    function = glob("torch._utils", rebuild) if isinstance(rebuild, str) else rebuild
    tails: dict[str | bytes, tuple[Any, ...]] = {
        "_rebuild_tensor": (),
        "_rebuild_tensor_v3": (False, ordered_dict(), glob("torch", "float32")),
        "_rebuild_qtensor": (
            (glob("torch", "per_tensor_affine"), 0.5, 3),
            False,
            ordered_dict(),
        ),
    }
    return call(
        function,
        storage,
        offset,
        size,
        stride,
        *(more or tails.get(rebuild, (False, ordered_dict()))),
    )


def tensor(
    size: Any = (2, 3),
    stride: Any = (3, 1),
    offset: Any = 0,
    *,
    key: Any = "0",
    cls: Any = "FloatStorage",
    numel: Any = 6,
    location: Any = "cpu",
    rebuild: str | bytes = "_rebuild_tensor_v2",
    legacy: bool = False,
) -> bytes:
    """The opcodes of one tensor; `legacy` adds the sixth item that persistent ids have
    there.
    """
    module = "torch.storage" if cls == "UntypedStorage" else "torch"
    storage = storage_id(
        key, cls, numel, location, *((None,) if legacy else ()), module=module
    )
    return rebuilt(storage, size, stride, offset, rebuild=rebuild)


def tensor_pickle(
    size: Any = (2, 3), stride: Any = (3, 1), offset: Any = 0, **options: Any
) -> bytes:
    """The pickle of `{"w": tensor}`; options are those of `tensor`."""
    return pickled({"w": tensor(size, stride, offset, **options)})


# --------------------------------------------------------------------------------------
# zip


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a zip. Only name and data are needed; every other field overrides
    what would be true.
    """

    name: str | bytes
    data: bytes = b""
    deflate: bool = False
    body: bytes | None = None
    """The bytes in the file, where they are not what `data` gives."""
    streamed: bool = True
    """As torch writes: no sizes in the local header, a data descriptor behind
    the data.
    """
    listed: bool = True
    """False: the record lies in the file, but the directory does not name it."""
    at: str | None = None
    """Directory entry only: it points to the local header of the record of this
    name.
    """
    flags: int | None = None
    method: int | None = None
    crc: int | None = None
    csize: int | None = None
    usize: int | None = None
    offset: int | None = None
    disk: int = 0
    attributes: int = 0
    comment: bytes = b""
    extra: bytes = b""
    zip64: bool = False
    """True sizes go to a zip64 field, the plain ones are 0xFFFFFFFF."""
    local_name: str | bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_crc: int | None = None
    local_csize: int | None = None
    local_usize: int | None = None
    local_extra: bytes | None = None
    local_signature: bytes = b"PK\3\4"
    descriptor: bytes | None = None


def _first(*choices: Any) -> Any:
    return next(choice for choice in choices if choice is not None)


def zip_file(
    records: Mapping[str, bytes] | Sequence[tuple[str, bytes] | Record],
    *,
    align: int = 64,
    comment: bytes = b"",
    gap: bytes = b"",
    slack: bytes = b"",
    end64: bool = True,
    **lies: int,
) -> bytes:
    """A zip as torch lays it out: bit for bit, while nothing is lied about.

    `gap` lies between records and directory, `slack` between directory and end records.
    `lies` override fields of the end records: count, count_disk, cd_size, cd_offset,
    disk, cd_disk, comment_len, and of the zip64 ones count64, count_disk64, cd_size64,
    cd_offset64, disk64, cd_disk64, locator, locator_disk, disks, end64_size.
    """
    pairs = records.items() if isinstance(records, Mapping) else records
    out = bytearray()
    directory: list[bytes] = []
    offsets: dict[str | bytes, int] = {}
    for item in pairs:
        record = item if isinstance(item, Record) else Record(*item)
        offset = len(out) if record.at is None else offsets[record.at]
        if record.at is None:
            offsets.setdefault(record.name, offset)
            out += _local(record, offset, align)
        if record.listed:
            directory.append(_entry(record, offset))
    out += gap
    cd_offset, cd_size, count = len(out), sum(map(len, directory)), len(directory)
    out += b"".join(directory) + slack
    end_at = len(out)
    if end64:
        out += struct.pack(
            "<4sQ2H2L4Q",
            b"PK\6\6",
            lies.pop("end64_size", 44),
            0x031E,
            0x2D,
            lies.pop("disk64", 0),
            lies.pop("cd_disk64", 0),
            lies.pop("count_disk64", lies.get("count64", count)),
            lies.pop("count64", count),
            lies.pop("cd_size64", cd_size),
            lies.pop("cd_offset64", cd_offset),
        )
        out += struct.pack(
            "<4sLQL",
            b"PK\6\7",
            lies.pop("locator_disk", 0),
            lies.pop("locator", end_at),
            lies.pop("disks", 1),
        )
    out += struct.pack(
        "<4s4H2LH",
        b"PK\5\6",
        lies.pop("disk", 0),
        lies.pop("cd_disk", 0),
        lies.pop("count_disk", lies.get("count", min(count, 0xFFFF))),
        lies.pop("count", min(count, 0xFFFF)),
        lies.pop("cd_size", min(cd_size, 0xFFFFFFFF)),
        lies.pop("cd_offset", min(cd_offset, 0xFFFFFFFF)),
        lies.pop("comment_len", len(comment)),
    )
    if lies:
        raise TypeError(f"no such fields: {lies}")
    return bytes(out + comment)


def _bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")


def _body(record: Record) -> bytes:
    if record.body is not None:
        return record.body
    return deflated(record.data) if record.deflate else record.data


def _flags(record: Record) -> int:
    return 0x0800 | (8 if record.streamed and _body(record) else 0)


def _local(record: Record, offset: int, align: int) -> bytes:
    body = _body(record)
    streamed = record.streamed and bool(body)
    name = _bytes(_first(record.local_name, record.name))
    crc, csize, usize = zlib.crc32(record.data), len(body), len(record.data)
    extra = record.local_extra
    if extra is None:
        pad = -(offset + 30 + len(name) + 4) % align if align else None
        extra = b"" if pad is None else b"FB" + struct.pack("<H", pad) + b"Z" * pad
    header = struct.pack(
        "<4s5H3L2H",
        record.local_signature,
        0,
        _first(record.local_flags, record.flags, _flags(record)),
        _first(record.local_method, record.method, 8 if record.deflate else 0),
        0,
        0,
        _first(record.local_crc, 0 if streamed else None, record.crc, crc),
        _first(record.local_csize, 0 if streamed else None, record.csize, csize),
        _first(record.local_usize, 0 if streamed else None, record.usize, usize),
        len(name),
        len(extra),
    )
    descriptor = record.descriptor
    if descriptor is None:
        descriptor = (
            struct.pack("<4s3L", b"PK\7\x08", crc, csize, usize) if streamed else b""
        )
    return header + name + extra + body + descriptor


def _entry(record: Record, offset: int) -> bytes:
    name, extra = _bytes(record.name), record.extra
    csize = _first(record.csize, len(_body(record)))
    usize = _first(record.usize, len(record.data))
    if record.zip64:
        extra = struct.pack("<2H2Q", 1, 16, usize, csize) + extra
        csize = usize = 0xFFFFFFFF
    return (
        struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            0,
            0,
            _first(record.flags, _flags(record)),
            _first(record.method, 8 if record.deflate else 0),
            0,
            0,
            _first(record.crc, zlib.crc32(record.data)),
            csize,
            usize,
            len(name),
            len(extra),
            len(record.comment),
            record.disk,
            0,
            record.attributes,
            _first(record.offset, offset),
        )
        + name
        + extra
        + record.comment
    )


def deflated(data: bytes) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


def deflated_run(
    block: bytes, times: int, before: bytes = b"", after: bytes = b""
) -> bytes:
    """The deflate stream of `before + block * times + after`, made in time of one
    block.
    """
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = engine.compress(before) + engine.flush(zlib.Z_FULL_FLUSH)
    once = engine.compress(block) + engine.flush(zlib.Z_FULL_FLUSH)
    return head + once * times + engine.compress(after) + engine.flush()


def torch_records(
    pickle: bytes, storages: Mapping[str, bytes], root: str = "archive"
) -> list[Record]:
    """The records of `torch.save` (2.13) in its order."""
    named = {
        "data.pkl": pickle,
        ".format_version": b"1",
        ".storage_alignment": b"64",
        "byteorder": b"little",
        **{f"data/{key}": data for key, data in storages.items()},
        "version": b"3\n",
        ".data/serialization_id": b"0" * 40,
    }
    return [Record(f"{root}/{name}", data) for name, data in named.items()]


def torch_zip(
    pickle: bytes,
    storages: Mapping[str, bytes] | None = None,
    root: str = "archive",
    *,
    swap: Mapping[str, Mapping[str, Any] | bytes | None] | None = None,
    more: Iterable[Record] = (),
    **options: Any,
) -> bytes:
    """The file of `torch.save`. By default one storage "0" of six floats.

    `swap` changes records, by their name below the root: new data, fields of Record, or
    None to leave it out. `more` are records put behind the others. Options are those of
    `zip_file`.
    """
    records = torch_records(pickle, {"0": SIX} if storages is None else storages, root)
    changes = {f"{root}/{name}": change for name, change in (swap or {}).items()}
    missing = set(changes) - {str(record.name) for record in records}
    if missing:
        raise KeyError(missing)
    kept: list[Record] = []
    for record in records:
        change = changes.get(str(record.name), {})
        if change is not None:
            kept.append(
                replace(
                    record,
                    **({"data": change} if isinstance(change, bytes) else change),
                )
            )
    return zip_file([*kept, *more], **options)


SIX = struct.pack("<6f", *range(6))
"""The bytes of `torch.arange(6.)`."""


# --------------------------------------------------------------------------------------
# legacy

MAGIC = pickled(0x1950A86A20F9469CFC6C)
VERSION = pickled(1001)
SYSTEM = pickled(
    {
        "protocol_version": 1001,
        "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
)


def legacy(
    obj_pickle: bytes,
    storages: Sequence[tuple[str, int, bytes]] = (("0", 6, SIX),),
    *,
    magic: bytes = MAGIC,
    version: bytes = VERSION,
    system: bytes = SYSTEM,
    keys: bytes | None = None,
    tail: bytes = b"",
) -> bytes:
    """A file of torch < 1.6: five pickles, then for each key its numel (u64, may be a
    lie) and its bytes.
    """
    listed = pickled([key for key, _, _ in storages]) if keys is None else keys
    stream = b"".join(
        struct.pack("<Q", numel & (2**64 - 1)) + data for _, numel, data in storages
    )
    return magic + version + system + obj_pickle + listed + stream + tail


# --------------------------------------------------------------------------------------
# safetensors


def safetensors_file(
    header: Mapping[str, Any] | bytes | str,
    data: bytes = b"",
    *,
    length: int | None = None,
) -> bytes:
    """Length, header, data. A mapping is written as JSON and padded with blanks to 8;
    bytes stay as they are.
    """
    if isinstance(header, str):
        header = header.encode("utf-8", "surrogatepass")
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(
    dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24), **more: Any
) -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}
