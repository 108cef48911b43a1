"""Changes of bytes that keep what a plain flip of bits breaks: checksums, lengths, the
grammar of JSON and of pickles.

Each function takes bytes and a `Random`, so that a seed and a number make the same
change on every machine.
"""

from __future__ import annotations

import io
import json
import pickletools
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import opcodes as op

Mutate = Callable[[bytes, Random], bytes]

NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    0x7FFF,
    0xFFFF,
    0x10000,
    2**31 - 1,
    2**31,
)
HUGE = (2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**25)
TEXTS = (
    "", "0", "1", "-1", "weight", "a.b", "..", "../x", "/", "\0", "\n", "\t", "\x1b[31m", "\u202e", "\ud800", "\x9b", "=1+1",
    "::error::", "[red]", "'", '"', "\\", "\\n", "é", "\U0001f600", "x" * 300, "a.weight", "data.pkl", "cpu", "cuda:0", "cuda",
    "meta", "float32", "F32", "module.", "_orig_mod.", "__metadata__", "state_dict", "None", "True", "nan", "1e400", "9" * 5000,
)  # fmt: skip


def plain(data: bytes, random: Random) -> bytes:
    """One to four changes that know nothing of the format."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        count = min(random.choice((1, 1, 2, 4, 8, 32)), len(out) - at)
        what = random.randrange(7)
        if what == 0 and count:
            out[at] ^= 1 << random.randrange(8)
        elif what == 1 and count:
            out[at] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
        elif what == 2:
            del out[at : at + count]
        elif what == 3:
            out[at:at] = random.randbytes(random.choice((1, 2, 4, 8)))
        elif what == 4:
            out[at:at] = out[at : at + count]
        elif what == 5:
            width = random.choice((1, 2, 4, 8))
            number = random.choice((*NUMBERS, *HUGE, len(out), at)) & (256**width - 1)
            out[at : at + width] = number.to_bytes(
                width, random.choice(("little", "big"))
            )
        elif len(out) > 1:
            other = random.randrange(len(out))
            out[at : at + count] = out[other : other + count]
    return bytes(out)


# --------------------------------------------------------------------------------------
# pickles

_ALONE = [
    bytes((code,))
    for code in b"0123()]}l.tdaseubQRo\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98N"
]
_NAMES = [
    op.glob(module, name)
    for module, name in (
        ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"), ("torch._utils", "_rebuild_qtensor"),
        ("torch._utils", "_rebuild_sparse_tensor"), ("torch._utils", "_rebuild_tensor_v3"), ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage"), ("torch._utils", "_rebuild_wrapper_subclass"),
        ("torch._utils", "_rebuild_nested_tensor"), ("torch.storage", "_load_from_bytes"), ("torch.storage", "UntypedStorage"),
        ("torch", "FloatStorage"), ("torch", "HalfStorage"), ("torch", "QInt8Storage"), ("torch", "float32"), ("torch", "Size"),
        ("torch", "device"), ("torch.nn.modules.linear", "Linear"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
        ("collections", "deque"), ("argparse", "Namespace"), ("copyreg", "_reconstructor"), ("builtins", "object"),
        ("builtins", "getattr"), ("builtins", "set"), ("builtins", "bytearray"), ("builtins", "complex"), ("_codecs", "encode"),
        ("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"), ("datetime", "datetime"), ("datetime", "timedelta"), ("decimal", "Decimal"),
        ("pathlib", "PosixPath"), ("fractions", "Fraction"), ("uuid", "UUID"), ("enum", "Enum"), ("posix", "system"), ("os", "getcwd"),
    )
]  # fmt: skip
_PARTS = [
    op.none(),
    op.floating(float("nan")),
    op.integer(-1),
    op.binary(b"\xff\0"),
    op.py2(b"\xff\xfe"),
    op.bytearray8(b"x"),
    op.value(()),
    op.value((1, 2)),
    op.value([None, 0.5]),
    op.value({"a": 1, "b": {}}),
    op.empty_set(),
    op.ordered_dict(),
    op.storage_id(),
    op.storage_id("1", "HalfStorage", 4, "cuda:0"),
    op.tensor(),
    op.tensor((2,), (1,), 1),
    op.tensor((0,), (1,)),
    op.tensor(rebuild="_rebuild_tensor"),
    op.tensor(rebuild="_rebuild_qtensor", cls="QInt8Storage"),
    op.tensor(cls="UntypedStorage", numel=24),
    op.dup(),
    op.memoize(),
]


def _steps(data: bytes) -> list[bytes]:
    """The opcodes of a pickle with their arguments; what cannot be read as opcodes is
    one last piece.
    """
    steps: list[bytes] = []
    at = None
    try:
        for _, _, position in pickletools.genops(data):
            if at is not None:
                steps.append(data[at:position])
            at = position
    except Exception:
        pass
    return [*steps, data[at or 0 :]]


def _argument(step: bytes, random: Random) -> bytes:
    """An opcode of the same kind with another argument."""
    code = step[:1]
    if code in b"KMJq\x8ahjr" and code:
        width = {b"K": 1, b"M": 2, b"q": 1, b"h": 1}.get(code, 4)
        if code == b"\x8a":
            return op.integer(random.choice((*HUGE, -1, -(2**63))))
        return code + (random.choice((*NUMBERS, *HUGE)) & (256**width - 1)).to_bytes(
            width, "little"
        )
    if code in b"X\x8cUV" and code:
        return op.text(random.choice(TEXTS).encode("utf-8", "surrogatepass"))
    if code == b"c":
        return random.choice(_NAMES)
    if code == b"G":
        return op.floating(
            random.choice((0.0, -0.0, float("nan"), float("inf"), 5e-324, 1e308))
        )
    return plain(step, random)


_LEAVES = b"NKMJGX\x8c\x88\x89Uh\x8aB}])\x8f"
_CALLS = (b"tR", b"t\x81", b"tR}b", b"tR(NNu", b"tRNa", b"tR}(X\1\0\0\0aK\1ub")


def _call(random: Random, *given: bytes) -> bytes:
    arguments = [*given, *(random.choice(_PARTS) for _ in range(random.randrange(4)))]
    random.shuffle(arguments)
    return random.choice(_NAMES) + b"(" + b"".join(arguments) + random.choice(_CALLS)


def pickles(data: bytes, random: Random) -> bytes:
    """One to three changes of the opcodes of a pickle, most of which leave the stack as
    it was; sometimes of its bytes.
    """
    if random.random() < 0.1:
        return plain(data, random)
    steps = _steps(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        leaves = [
            place for place, step in enumerate(steps) if step[:1] in _LEAVES and step
        ]
        at = random.randrange(len(steps) + 1)
        if leaves and random.random() < 0.75:  # a value for a value
            at = random.choice(leaves)
            what = random.randrange(8)
            if what in (0, 1):
                steps[at] = _argument(steps[at], random)
            elif what == 2:
                steps[at] = steps[random.choice(leaves)]
            elif what == 3:
                steps[at] = random.choice(_NAMES)
            elif what == 4:
                steps[at] = random.choice(_PARTS)
            elif what == 5:
                steps[at] = _call(random)
            elif what == 6:
                steps[at] = _call(random, steps[at])
            else:
                wrap = random.choice((b"\x85", b"\x86", b"]", b"("))
                pair = {
                    b"\x85": b"\x85",
                    b"\x86": b"N\x86",
                    b"]": b"",
                    b"(": b"NN\x86l",
                }[wrap]
                steps[at] = (
                    b"]" + steps[at] + b"a"
                    if wrap == b"]"
                    else (wrap if wrap == b"(" else b"") + steps[at] + pair
                )
            continue
        what = random.randrange(8)
        count = min(random.choice((1, 1, 2, 3, 8)), len(steps) - at)
        if what == 0:
            del steps[at : at + count]
        elif what == 1:
            steps[at:at] = steps[at : at + count]
        elif what == 2 and steps:
            other = random.randrange(len(steps))
            steps[at:at] = steps[other : other + random.choice((1, 2, 4, 12))]
        elif what == 3 and at < len(steps):
            steps[at] = _argument(steps[at], random)
        elif what == 4:
            steps.insert(at, random.choice(_ALONE))
        elif what == 5:
            steps.insert(at, random.choice(_PARTS))
        elif what == 6:
            steps.insert(at, random.choice(_PARTS) + b"0")
        else:
            steps[at : at + count] = [_call(random)]
    return b"".join(steps)


def values(data: bytes, random: Random) -> bytes:
    """One or two values of a pickle changed, and none of its names: what weights_only
    takes, it mostly takes then too.
    """
    if random.random() < 0.2:
        return pickles(data, random)
    steps = _steps(data)
    leaves = [place for place, step in enumerate(steps) if step and step[:1] in _LEAVES]
    for _ in range(random.choice((1, 1, 2)) if leaves else 0):
        at = random.choice(leaves)
        what = random.randrange(3)
        other = steps[random.choice(leaves)]
        steps[at] = (_argument(steps[at], random), other, random.choice(_PARTS))[what]
    return b"".join(steps)


_BETWEEN = (
    b"u(",
    b"e(",
    b"K\1K\2u(",
    b"K\1",
    b"\x85",
    b"\x86",
    b"\x87",
    b"\x94",
    b"}\x94",
    b"b",
    b"0",
    b"00",
    b"2",
    b"s",
    b"R",
)


def entries(data: bytes, random: Random) -> bytes:
    """One to three changes of entries that repeat: a number, a slot of the memo filled
    again, an opcode more or less.
    """
    steps = [step for step in _steps(data) if step[:1] != op.frame(0)[:1]]
    if len(steps) < 8:
        return plain(data, random)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(2, len(steps))
        what = random.randrange(8)
        if what < 3:
            numbers = [
                place
                for place, step in enumerate(steps)
                if step[:1] in b"KMJ\x8a" and step
            ]
            number = random.choice((*NUMBERS, *HUGE[:5]))
            steps[random.choice(numbers or [at])] = op.integer(
                random.choice((number, -number))
            )
        elif what == 3:
            gets = [
                place for place, step in enumerate(steps) if step[:1] in b"hj" and step
            ]
            steps[random.choice(gets or [at])] = op.get(random.randrange(200))
        elif what == 4:
            steps.insert(
                at, random.choice(_PARTS) + op.put(random.randrange(60)) + b"0"
            )
        elif what == 5:
            del steps[at]
        elif what == 6:
            steps.insert(at, random.choice(_BETWEEN))
        else:
            steps[at:at] = steps[at : at + random.choice((1, 1, 2, 9))]
    return b"".join(steps)


def streams(data: bytes, random: Random) -> bytes:
    """A change of one pickle of several in a row, or of what follows them."""
    ends = [0]
    try:
        while len(ends) < 6:
            *_, (_, _, last) = pickletools.genops(data[ends[-1] :])
            ends.append(ends[-1] + last + 1)
    except Exception:
        pass
    if len(ends) < 2 or random.random() < 0.3:
        return plain(data, random)
    which = random.choice((3, 3, random.randrange(5))) % (
        len(ends) - 1
    )  # the fourth holds the object
    begin, end = ends[which], ends[which + 1]
    return data[:begin] + pickles(data[begin:end], random) + data[end:]


# --------------------------------------------------------------------------------------
# zip archives


def _records(data: bytes) -> list[op.Record] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [info for info in archive.infolist() if info.file_size < 1 << 20]
            return [
                op.Record(
                    info.orig_filename,
                    archive.read(info),
                    deflate=info.compress_type == 8,
                )
                for info in infos
            ]
    except Exception:
        return None


_LIES = (
    "count",
    "count_disk",
    "cd_size",
    "cd_offset",
    "disk",
    "cd_disk",
    "comment_len",
    "count64",
    "count_disk64",
    "cd_size64",
)
_LIES = (
    *_LIES,
    "cd_offset64",
    "disk64",
    "cd_disk64",
    "locator",
    "locator_disk",
    "disks",
    "end64_size",
)
_COUNTS = ("flags", "method", "crc", "csize", "usize", "offset", "disk", "attributes")
_COUNTS = (
    *_COUNTS,
    "local_flags",
    "local_method",
    "local_crc",
    "local_csize",
    "local_usize",
)
_WIDTHS = {
    "flags": 2,
    "method": 2,
    "disk": 2,
    "local_flags": 2,
    "local_method": 2,
    "count": 2,
    "count_disk": 2,
    "cd_disk": 2,
}
_WIDTHS |= {
    "comment_len": 2,
    "cd_disk64": 4,
    "disk64": 4,
    "locator_disk": 4,
    "disks": 4,
}
_WIDTHS |= dict.fromkeys(
    ("count64", "count_disk64", "cd_size64", "cd_offset64", "locator", "end64_size"), 8
)
_RECORDS = (
    "version",
    "byteorder",
    ".data/version",
    ".format_version",
    "constants.pkl",
    "code/x.py",
    "data/0",
    "data/1",
    "x/",
)


def zips(data: bytes, random: Random) -> bytes:
    """An archive whose records or headers changed, with every checksum that was not
    changed on purpose.
    """
    records = None if random.random() < 0.2 else _records(data)
    if not records:
        return plain(data, random)
    root = (
        records[0].name.partition("/")[0]
        if isinstance(records[0].name, str)
        else "archive"
    )
    lies: dict[str, int] = {}
    options: dict[str, Any] = {}
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(records))
        record = records[at]
        what = random.randrange(12)
        if what in (0, 1, 2):
            change = pickles if str(record.name).endswith(".pkl") else plain
            records[at] = replace(record, data=change(record.data, random)[: 1 << 20])
        elif what == 3:
            field = random.choice(_COUNTS)
            number = random.choice((*NUMBERS, *HUGE, len(data), len(record.data))) & (
                256 ** _WIDTHS.get(field, 4) - 1
            )
            records[at] = replace(record, **{field: number})
        elif what == 4:
            records[at] = replace(record, deflate=not record.deflate)
        elif what == 5:
            records[at] = replace(
                record,
                **{
                    random.choice(("zip64", "streamed", "listed")): random.random()
                    < 0.5
                },
            )
        elif what == 6:
            name = random.choice(
                (f"{root}/{random.choice(_RECORDS)}", random.choice(TEXTS))
            )
            records[at] = replace(
                record,
                **{
                    random.choice(("name", "local_name")): name.encode(
                        "utf-8", "surrogatepass"
                    )
                },
            )
        elif what == 7:
            records.insert(
                at,
                replace(
                    record,
                    data=random.choice((b"", b"1", b"big", b"little", record.data)),
                ),
            )
        elif what == 8 and len(records) > 1:
            del records[at]
        elif what == 9:
            records.append(
                op.Record(
                    f"{root}/{random.choice(_RECORDS)}",
                    random.choice((b"", b"3\n", b"abc", record.data)),
                )
            )
        elif what == 10:
            field = random.choice(_LIES)
            number = random.choice((*NUMBERS, *HUGE, len(data))) & (
                256 ** _WIDTHS.get(field, 4) - 1
            )
            lies[field] = number
        else:
            options[random.choice(("comment", "gap", "slack"))] = random.choice(
                (b"\0", b"PK\5\6", b"PK\1\2" + bytes(60))
            )
            records[at] = replace(
                record,
                **{
                    random.choice(("extra", "comment", "local_extra")): plain(
                        b"\1\0\x08\0" + bytes(8), random
                    )
                },
            )
    options["align"] = random.choice((64, 64, 1, 0))
    options["end64"] = (
        "64" not in "".join(lies)
        and not lies.keys() & {"locator", "locator_disk", "disks"}
        and random.random() < 0.3
    )
    options["end64"] = not options["end64"]
    try:
        return op.zip_file(records, **options, **lies)
    except Exception:  # `at` names a record that is gone, a name that is too long
        return plain(data, random)


# --------------------------------------------------------------------------------------
# JSON and text


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    todo = [node]
    while todo:
        here = todo.pop()
        keys = (
            list(here)
            if isinstance(here, dict)
            else range(len(here))
            if isinstance(here, list)
            else ()
        )
        for key in keys:
            found.append((here, key))
            todo.append(here[key])
    return found


def _leaf(random: Random) -> Any:
    kinds: Sequence[Any] = (
        None,
        True,
        False,
        [],
        {},
        0.5,
        -1,
        1e308,
        float("nan"),
        float("inf"),
    )
    return random.choice(
        (random.choice(kinds), random.choice((*NUMBERS, *HUGE)), random.choice(TEXTS))
    )


def documents(data: bytes, random: Random) -> bytes:
    """One to four changes of the nodes of a JSON document; sometimes of its text."""
    try:
        root = None if random.random() < 0.2 else json.loads(data)
    except (ValueError, RecursionError):
        root = None
    if not isinstance(root, (dict, list)) or not root:
        return plain(data, random)
    for _ in range(random.randint(1, 4)):
        places = _places(root)
        if not places:
            break
        owner, key = random.choice(places)
        what = random.randrange(8)
        if what == 0:
            del owner[key]
        elif what in (1, 2):
            owner[key] = _leaf(random)
        elif what == 3:
            other, where = random.choice(places)
            owner[key] = json.loads(json.dumps(other[where]))
        elif what == 4 and isinstance(owner, dict):
            owner[random.choice(TEXTS)] = (
                owner.pop(key) if random.random() < 0.5 else owner[key]
            )
        elif what == 5 and isinstance(owner, list):
            owner.insert(key, owner[key])
        elif what == 6 and type(owner[key]) is int:
            owner[key] += random.choice((-1, 1, 2**31))
        else:
            owner[key] = (
                [owner[key]]
                if random.random() < 0.5
                else {random.choice(TEXTS): owner[key]}
            )
    return json.dumps(root, ensure_ascii=random.random() < 0.9).encode(
        "utf-8", "surrogatepass"
    )


_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U8": 8,
    "U16": 16,
    "U32": 32,
}
_BITS |= {
    "U64": 64,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "C64": 64,
}


def _fitted(header: dict[str, Any], random: Random) -> int:
    """Give every tensor of a header the place that its shape and type ask for; the
    bytes of all of them.
    """
    at = 0
    for name, fields in header.items():
        if name == "__metadata__" or not isinstance(fields, dict):
            continue
        if random.random() < 0.3:
            fields["dtype"] = random.choice(list(_BITS))
        if random.random() < 0.3:
            fields["shape"] = [
                random.choice((0, 1, 2, 3, 8)) for _ in range(random.randrange(4))
            ]
        count, shape = 1, fields.get("shape")
        for size in shape if isinstance(shape, list) else ():
            count *= size if type(size) is int and 0 <= size < 1000 else 1
        end = at + count * _BITS.get(str(fields.get("dtype")), 8) // 8
        fields["data_offsets"] = [at, end]
        at = end
        if at > 1 << 16:
            break
    return min(at, 1 << 16)


def headers(data: bytes, random: Random) -> bytes:
    """A safetensors file with a changed header, whose length and often whose offsets
    stay true; or changed bytes.
    """
    length = int.from_bytes(data[:8], "little")
    if random.random() < 0.15 or not 2 <= length <= len(data) - 8:
        return plain(data, random)
    text, body = data[8 : 8 + length], data[8 + length :]
    if random.random() < 0.7:
        text = documents(text, random)
    try:
        header = json.loads(text) if random.random() < 0.7 else None
    except (ValueError, RecursionError):
        header = None
    if isinstance(header, dict):
        body = bytes(_fitted(header, random))
        text = json.dumps(header, separators=(",", ":")).encode()
    if random.random() < 0.05:
        body = plain(body, random)
    return len(text).to_bytes(8, "little") + text + body


def fields(data: bytes, random: Random) -> bytes:
    """A file of fields of fixed width, in which up to three bytes have another value
    and all else stays where it is.
    """
    if random.random() < 0.3 or len(data) < 9:
        return plain(data, random)
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(8, len(changed))
        changed[at] = random.choice(
            (0, 1, 2, 8, 9, 0x7F, 0xFF, changed[at] ^ 1, random.randrange(256))
        )
    return bytes(changed)


_WORDS = (
    *TEXTS,
    "*",
    "?",
    "[",
    "]",
    "[!a]",
    "(",
    ")",
    "|",
    "+",
    "(?",
    "\\1",
    "\\g<1>",
    "{2,3}",
    "^",
    "$",
    "=",
    ",",
    "-",
    "/",
    "s/",
    "//",
    "GiB",
)


def texts(data: bytes, random: Random) -> bytes:
    """One to three changes of a text by words that mean something to the languages of
    the command line.
    """
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(text) + 1)
        count = random.choice((0, 0, 1, 2))
        text = text[:at] + random.choice(_WORDS) + text[at + count :]
    if random.random() < 0.2:
        return plain(text.encode("utf-8", "surrogatepass"), random)
    return text.encode("utf-8", "surrogatepass")


def lines(data: bytes, random: Random) -> bytes:
    """A text with lines taken out, repeated or exchanged."""
    rows = data.splitlines(keepends=True) or [b""]
    for _ in range(random.randint(1, 4)):
        at, other = random.randrange(len(rows)), random.randrange(len(rows))
        what = random.randrange(4)
        if what == 0 and len(rows) > 1:
            del rows[at]
        elif what == 1:
            rows.insert(other, rows[at])
        elif what == 2:
            rows[at], rows[other] = rows[other], rows[at]
        else:
            rows[at] = texts(rows[at], random)
    return b"".join(rows)
