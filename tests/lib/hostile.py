"""Files that were made to hurt a reader, and files that only look like it: one table,
`CASES`.

Each row says what the file is, where the idea comes from, and what `ckpt inspect` owes
its user:

- `ok`: exit 0, nothing about danger; `note`: exit 0, something is reported; `any`: exit
  0 or 2, both are fine;
- `error`: exit 2 with one line on stderr that holds `says` (lower case).

No payload does more than `touch` the file CANARY; a test asserts that it never appears.
Files over 1 MB are made when they are asked for. Everything is deterministic, and
nothing but `good_files` needs torch.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import socket
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import ggufs
import opcodes as op
import pytest
from opcodes import (
    Record,
    call,
    glob,
    pickled,
    put,
    rebuilt,
    storage_id,
    tensor,
    tensor_pickle,
    text,
    torch_zip,
    value,
)

Expect = Literal["ok", "note", "error", "any"]

CANARY = Path(
    os.environ.get("CKPT_CANARY")
    or Path(tempfile.gettempdir(), f"ckpt-canary-{os.getuid()}")
)
"""What every payload would create. It must never exist."""
COMMAND = f"touch '{CANARY}'"
PYTHON = f"open({str(CANARY)!r}, 'w').close()"


@dataclass(frozen=True)
class Case:
    """One hostile or unusual file, `name` as in SAFETY.md §3: class/file name."""

    name: str
    data: bytes | Callable[[Path], Path]
    expect: Expect
    says: str = ""
    """A lower-case part of the message, for errors."""
    why: str = ""
    """What the attack is, and the advisory where there is one."""

    def build(self, folder: Path) -> Path:
        """The path to inspect, made under an empty folder."""
        if not isinstance(self.data, bytes):
            return self.data(folder)
        path = folder / self.name.rpartition("/")[2]
        path.write_bytes(self.data)
        return path


def _later(name: str, make: Callable[[], bytes]) -> Callable[[Path], Path]:
    """A file that is made when it is asked for, because it is big."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(make())
        return path

    return build


def _sparse(name: str, size: int, head: bytes = b"") -> Callable[[Path], Path]:
    """A file of `size` bytes that takes no room on the disk."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(head)
        try:
            os.truncate(path, size)
        except OSError:
            pytest.skip("this file system has no sparse files of that size")
        return path

    return build


def _holding(
    *program: Any, protocol: int = 2, storages: dict[str, bytes] | None = None
) -> bytes:
    """A torch zip whose data.pkl is this program; without storages."""
    return torch_zip(pickled(*program, protocol=protocol), storages or {})


SYSTEM = glob("posix", "system")
MALICIOUS = call(SYSTEM, COMMAND)
"""`posix.system("touch …")`, called when unpickled."""
W = tensor_pickle()
"""The pickle of {"w": arange(6.).reshape(2, 3)} over storage "0"."""
GOOD = torch_zip(W)
EVIL = torch_zip(pickled({"w": tensor(), "x": MALICIOUS}))


# --------------------------------------------------------------------------------------
# fine, but unusual


def _fine() -> Iterator[Case]:
    """Files that a too strict reader would refuse."""
    header = {"w": op.entry()}
    yield Case("ok/plain.pt", GOOD, "ok", why="the file that the others are made from")
    yield Case("ok/legacy.pt", op.legacy(tensor_pickle(legacy=True)), "ok")
    yield Case("ok/plain.safetensors", op.safetensors_file(header, op.SIX), "ok")
    yield Case(
        "ok/bigint.pt",
        _holding({"n": 10**6000}),
        "ok",
        why="str() of it raises ValueError (gh-95778)",
    )
    yield Case("ok/negative_bigint.pt", _holding({"n": -(10**6000)}), "ok")
    yield Case(
        "ok/floats.pt", _holding([float("nan"), float("inf"), -0.0, 5e-324]), "ok"
    )
    yield Case(
        "ok/storage_longer.pt",
        torch_zip(W, {"0": op.SIX + bytes(8)}),
        "note",
        why="torch < 2.13 reads it, 2.13 refuses",
    )
    yield Case(
        "ok/rezipped_deflate.pt",
        torch_zip(W, swap={"data.pkl": {"deflate": True}, "data/0": {"deflate": True}}),
        "note",
        why="mmap=True of torch returns the deflated bytes as numbers",
    )
    yield Case(
        "ok/plain_zip_tool.pt",
        _rezipped(GOOD),
        "ok",
        why="re-packed by zipfile: no torch layout",
    )
    yield Case("ok/comment.pt", torch_zip(W, comment=b"made by hand"), "ok")
    yield Case("ok/root_differs.pt", torch_zip(W, root="some other name"), "ok")
    yield Case(
        "ok/no_optional_records.pt",
        torch_zip(W, swap=dict.fromkeys(OPTIONAL)),
        "ok",
        why="as torch 1.6 wrote",
    )
    yield Case("ok/big_endian.pt", torch_zip(W, swap={"byteorder": b"big"}), "ok")
    yield Case(
        "ok/zip64_small.pt",
        torch_zip(W, swap={"data/0": {"zip64": True}}),
        "ok",
        why="zip64 where none is needed",
    )
    yield Case("ok/no_end64.pt", torch_zip(W, end64=False), "ok")
    yield Case(
        "ok/directory_entry.pt", torch_zip(W, more=[Record("archive/data/")]), "ok"
    )
    yield Case(
        "ok/extra_record.pt",
        torch_zip(W, more=[Record("archive/notes.txt", b"hello")]),
        "ok",
    )
    yield Case(
        "ok/unused_storage.pt",
        torch_zip(W, {"0": op.SIX, "1": bytes(8)}),
        "any",
        why="torch ignores data/1",
    )
    yield Case(
        "ok/inplace_rewrite.pt",
        torch_zip(
            W,
            swap={"data.pkl": {"listed": False}},
            more=[Record("archive/data.pkl", tensor_pickle(location="cuda:0"))],
        ),
        "ok",
        why="a new data.pkl behind the old one: dead bytes are legal",
    )
    yield Case(
        "ok/zero_elements.pt",
        torch_zip(tensor_pickle((0, 3), (3, 1), numel=0), {"0": b""}),
        "ok",
    )
    yield Case(
        "ok/scalar.pt", torch_zip(tensor_pickle((), (), numel=1), {"0": bytes(4)}), "ok"
    )
    yield Case(
        "ok/expanded.pt",
        torch_zip(tensor_pickle((1000, 3), (0, 1))),
        "ok",
        why="stride 0: 12 kB from 12 bytes",
    )
    yield Case(
        "ok/overlapping_rows.pt",
        torch_zip(tensor_pickle((4, 3), (1, 1))),
        "ok",
        why="as_strided: legal",
    )
    yield Case(
        "ok/empty_any_stride.pt",
        torch_zip(tensor_pickle((0, 3), (2**40, 2**40))),
        "ok",
        why="no element",
    )
    yield Case(
        "ok/empty_countable.pt",
        torch_zip(tensor_pickle((2**63 - 1, 2, 0), (1, 1, 1))),
        "ok",
        why="the product is less than 2**64 until the 0",
    )
    yield Case(
        "ok/protocol0.pt",
        torch_zip(b"(dVa\nI01\nsVb\nL12L\nsVc\nF1.5\nsVd\nNs.", {}),
        "ok",
    )
    yield Case(
        "ok/protocol4.pt",
        torch_zip(b"\x80\x04\x95\x09" + bytes(7) + b"}\x94\x8c\x01a\x94K\x01s.", {}),
        "ok",
    )
    yield Case(
        "ok/frame_odd.pt",
        torch_zip(b"\x80\x04\x95\x01" + bytes(7) + b"}\x8c\x01aK\x01s.", {}),
        "any",
    )
    yield Case(
        "ok/proto_midstream.pt",
        _holding({"a": op.proto() + op.integer(1)}),
        "ok",
        why="a length-preserving filler",
    )
    yield Case("ok/cyclic_list.pt", _holding(b"]q\x00h\x00a"), "ok")
    yield Case("ok/cyclic_dict.pt", _holding(b"}q\x00", text("me"), b"h\x00s"), "ok")
    yield Case(
        "ok/cyclic_tuple.pt",
        _holding(b"]q\x00(h\x00tq\x01a0h\x01"),
        "ok",
        why="a tuple that holds itself by a list",
    )
    yield Case(
        "ok/cyclic_state.pt",
        _holding(glob("argparse", "Namespace"), b")\x81q\x00", {"me": b"h\x00"}, b"b"),
        "any",
        why="an object that is its own attribute",
    )
    yield Case("ok/bare_tensor.pt", torch_zip(pickled(tensor())), "ok")
    yield Case("ok/none.pt", _holding(None), "ok")
    yield Case("ok/empty_dict.pt", _holding({}), "ok")
    yield Case(
        "ok/memo_reused.pt",
        _holding(b"]q\x00K\x01q\x00a"),
        "ok",
        why="a slot may be put twice",
    )
    yield Case(
        "ok/py2_dict.pt",
        _holding(call(glob("collections", "OrderedDict"), [[op.py2(b"w"), 1]])),
        "ok",
    )
    yield Case(
        "ok/unicode_names.pt",
        torch_zip(pickled({"слой.вес": tensor(), "層": 1}), root="模型"),
        "ok",
    )
    yield Case("ok/safetensors_no_tensors.safetensors", op.safetensors_file({}), "ok")
    yield Case(
        "ok/extra_field.safetensors",
        op.safetensors_file({"w": op.entry(note=1)}, op.SIX),
        "ok",
    )
    yield Case(
        "ok/scalar.safetensors",
        op.safetensors_file({"w": op.entry(shape=[], offsets=[0, 4])}, bytes(4)),
        "ok",
    )
    yield Case(
        "ok/empty.safetensors",
        op.safetensors_file({"w": op.entry(shape=[0], offsets=[0, 0])}),
        "ok",
    )
    yield Case(
        "ok/unpadded.safetensors", op.safetensors_file(json.dumps(header), op.SIX), "ok"
    )
    yield Case(
        "ok/metadata.safetensors",
        op.safetensors_file({"__metadata__": {"format": "pt"}, **header}, op.SIX),
        "ok",
    )


OPTIONAL = (
    ".format_version",
    ".storage_alignment",
    "byteorder",
    ".data/serialization_id",
)


def _rezipped(data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """What a zip tool makes of a checkpoint."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(out, "w", method) as target,
    ):
        for name in source.namelist():
            target.writestr(zipfile.ZipInfo(name), source.read(name), method)
    return out.getvalue()


# --------------------------------------------------------------------------------------
# the file itself


def _file_system() -> Iterator[Case]:
    """What lies at the path is no file, not one to read, or not the file that was
    meant.
    """
    page = (
        b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not "
        b"Found</body></html>\n"
    )
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize "
        "438012345\n"
    ).encode()
    yield Case("fs/empty.pt", b"", "error", "empty")
    yield Case(
        "fs/zeros.pt",
        bytes(100000),
        "error",
        "zero",
        "an unfinished write or a lost extent",
    )
    yield Case("fs/one_zero.pt", b"\0", "error", "zero")
    yield Case("fs/one_byte.pt", b"P", "error")
    yield Case(
        "fs/sparse_1tib.pt",
        _sparse("sparse_1tib.pt", 2**40),
        "error",
        "",
        "zeros without end: do not read them all",
    )
    yield Case(
        "fs/zeros_then_text.pt",
        bytes(100000) + b"x",
        "error",
        "",
        "zeros first, but not only",
    )
    yield Case(
        "fs/magic_then_zeros.pt",
        GOOD[:4] + bytes(100000),
        "error",
        "",
        "the first block was written, the rest not",
    )
    yield Case("fs/html.pt", page, "error", "html")
    yield Case(
        "fs/html_upper.pt",
        b"\xef\xbb\xbf\n  <HTML>" + page.upper(),
        "error",
        "html",
        "BOM and blanks first",
    )
    yield Case(
        "fs/xml.pt",
        b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "error",
        "",
        "what S3 says",
    )
    yield Case("fs/lfs.pt", pointer, "error", "lfs", "git clone without git-lfs")
    yield Case("fs/lfs.safetensors", pointer, "error", "lfs")
    yield Case("fs/text.pt", b"epoch,loss\n1,0.5\n" * 20, "error")
    yield Case("fs/json.pt", b'{"w": [1, 2, 3]}\n', "error")
    yield Case("fs/yaml.pt", b"model:\n  lr: 0.1\n", "error")
    yield Case(
        "fs/script.pt",
        b"#!/bin/sh\n" + COMMAND.encode() + b"\n",
        "error",
        "",
        "a script by the name of weights",
    )
    yield Case(
        "fs/random.pt",
        bytes((i * i * 167 + i * 13 + 89) % 256 for i in range(4096)),
        "error",
    )
    yield Case(
        "fs/fifo.pt",
        _fifo,
        "error",
        "regular",
        "open() without O_NONBLOCK never returns",
    )
    yield Case("fs/socket.pt", _socket, "error")
    yield Case(
        "fs/directory", _directory, "error", "", "an empty folder: no checkpoint in it"
    )
    yield Case("fs/missing.pt", lambda folder: folder / "missing.pt", "error")
    yield Case("fs/under_a_file.pt", _under_a_file, "error", "", "ENOTDIR")
    yield Case(
        "fs/long_name.pt",
        lambda folder: folder / ("a" * 5000),
        "error",
        "",
        "ENAMETOOLONG",
    )
    yield Case("fs/nothing", lambda folder: folder / "a" / ".." / "b" / "c.pt", "error")
    yield Case("fs/link_loop.pt", _link_loop, "error", "", "ELOOP")
    yield Case("fs/link_dangling.pt", _link("dangling.pt", "nowhere.pt"), "error")
    yield Case("fs/link_to_fifo.pt", _link_to_fifo, "error", "regular")
    yield Case(
        "fs/device_zero.pt",
        lambda folder: Path("/dev/zero"),
        "error",
        "regular",
        "reads without end",
    )
    yield Case(
        "fs/device_null.pt", lambda folder: Path("/dev/null"), "error", "regular"
    )
    yield Case(
        "fs/proc_self_mem.pt",
        lambda folder: Path("/proc/self/mem"),
        "error",
        "",
        "a regular file of size 0 that is none",
    )
    yield Case("fs/no_permission.pt", _no_permission, "error", "permission")
    yield Case(
        "fs/link_to_good.pt", _link_to_good, "ok", why="links are how caches work"
    )


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo.pt")
    return folder / "fifo.pt"


def _socket(folder: Path) -> Path:
    """Bound by a relative name: a socket's path may have only 108 bytes."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind("socket.pt")
    finally:
        os.fchdir(here)
        os.close(here)
    return folder / "socket.pt"


def _directory(folder: Path) -> Path:
    (folder / "directory").mkdir()
    return folder / "directory"


def _under_a_file(folder: Path) -> Path:
    (folder / "file").write_bytes(GOOD)
    return folder / "file" / "weights.pt"


def _link_loop(folder: Path) -> Path:
    (folder / "loop.pt").symlink_to("loop.pt")
    return folder / "loop.pt"


def _link(name: str, target: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name

    return build


def _link_to_fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    (folder / "link.pt").symlink_to("fifo")
    return folder / "link.pt"


def _link_to_good(folder: Path) -> Path:
    (folder / "blob").write_bytes(GOOD)
    (folder / "link.pt").symlink_to("blob")
    return folder / "link.pt"


def _no_permission(folder: Path) -> Path:
    path = folder / "secret.pt"
    path.write_bytes(GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("permissions do not bind this user")
    return path


# --------------------------------------------------------------------------------------
# other formats


def _ggufs() -> Iterator[Case]:
    """Headers of GGUF that lie: counts, lengths, offsets, types, names, and what only
    looks like one.
    """
    row, tensor, arch = (
        ggufs.gguf,
        ggufs.Tensor,
        ("general.architecture", "str", "llama"),
    )
    good = tensor("w", (2,), ggufs.F32, bytes(8))
    other = tensor("v", (2,), ggufs.F32, bytes(8))
    yield Case("gguf/empty.gguf", row(), "any")
    yield Case("gguf/good.gguf", ggufs.small(), "ok")
    yield Case("gguf/big_endian.gguf", row([arch], [good], order=">"), "ok")
    yield Case("gguf/version_1.gguf", row(version=1), "error", "gguf version 1")
    yield Case("gguf/version_9.gguf", row(version=9), "error", "gguf version 9")
    yield Case("gguf/cut_at_once.gguf", b"GGUF\3\0\0\0", "error", "cut off")
    for count in (2**63, 2**64 - 1, 2**40):
        text = f"claims {count:,}"
        yield Case(f"gguf/tensors_{count}.gguf", row(counts=(count, 0)), "error", text)
        yield Case(f"gguf/pairs_{count}.gguf", row(counts=(0, count)), "error", text)
    long = struct.pack("<Q", 2**63)
    yield Case(
        "gguf/key_past_end.gguf",
        row([long + b"x" * 32]),
        "error",
        "claims 9,223,372,036,854,775,808",
    )
    head = ggufs.text("k") + struct.pack("<I", 8)
    yield Case(
        "gguf/text_past_end.gguf", row([head + long + bytes(9)]), "error", "k claims"
    )
    cut = row([head + struct.pack("<Q", 60) + bytes(20)])
    yield Case("gguf/text_cut.gguf", cut, "error", "cut off")
    array = ggufs.text("k") + struct.pack("<I", 9)
    yield Case(
        "gguf/array_2e63.gguf",
        row([array + struct.pack("<IQ", 4, 2**63)]),
        "error",
        "k claims",
    )
    yield Case(
        "gguf/texts_2e63.gguf",
        row([array + struct.pack("<IQ", 8, 2**60)]),
        "error",
        "texts",
    )
    inside = (
        array + struct.pack("<IQ", 8, 2) + ggufs.text("a") + struct.pack("<Q", 2**62)
    )
    yield Case("gguf/text_in_array.gguf", row([inside + bytes(40)]), "error")
    nested = array + struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 0)
    yield Case(
        "gguf/nested_array.gguf", row([nested + bytes(20)]), "error", "array of arrays"
    )
    yield Case(
        "gguf/value_type.gguf",
        row([ggufs.text("k") + struct.pack("<I", 99)]),
        "error",
        "type 99",
    )
    items = array + struct.pack("<IQ", 77, 1) + bytes(9)
    yield Case("gguf/item_type.gguf", row([items]), "error", "type 77")
    yield Case("gguf/key_twice.gguf", row([arch, arch]), "error", "twice")
    yield Case(
        "gguf/key_bytes.gguf",
        row([ggufs.text(b"\xff\xfe") + ggufs.value("u8", 1)]),
        "error",
        "utf-8",
    )
    for alignment in (0, 3, 2**31 + 1):
        said = row([("general.alignment", "u32", alignment)], [good])
        yield Case(f"gguf/alignment_{alignment}.gguf", said, "error", "power of two")
    said = row([("general.alignment", "str", "32")], [good])
    yield Case("gguf/alignment_text.gguf", said, "error", "power of two")
    yield Case(
        "gguf/alignment_2e31.gguf",
        row([("general.alignment", "u32", 2**31)], [good]),
        "error",
    )
    yield Case("gguf/name_twice.gguf", row([], [good, good]), "error", "two tensors")
    yield Case(
        "gguf/name_escape.gguf", row([], [good._replace(name="\x1b[31mred\x07")]), "ok"
    )
    yield Case(
        "gguf/name_long.gguf",
        row([], [good._replace(name="n" * 70_000)]),
        "error",
        "70,000 bytes",
    )
    yield Case(
        "gguf/dims_2e31.gguf",
        row([], [good._replace(sizes=(1,) * 70)]),
        "error",
        "70 dimensions",
    )
    yield Case(
        "gguf/dims_64.gguf", row([], [good._replace(sizes=(2, *(1,) * 63))]), "ok"
    )
    yield Case(
        "gguf/size_huge.gguf",
        row([], [good._replace(sizes=(2**40, 2**40))]),
        "error",
        "too large",
    )
    yield Case(
        "gguf/size_zero.gguf",
        row([], [good._replace(sizes=(0, 2**62), data=b"")]),
        "any",
    )
    yield Case(
        "gguf/type_unknown.gguf",
        row([], [good._replace(kind=4_000)]),
        "error",
        "unknown type 4,000",
    )
    yield Case(
        "gguf/type_gone.gguf", row([], [good._replace(kind=31)]), "error", "q4_0_4_4"
    )
    yield Case(
        "gguf/type_computing.gguf", row([], [good._replace(kind=9)]), "error", "q8_1"
    )
    yield Case(
        "gguf/odd_rows.gguf",
        row([], [good._replace(kind=ggufs.Q4_0)]),
        "error",
        "blocks of 32",
    )
    yield Case(
        "gguf/offset_odd.gguf",
        row([], [good._replace(offset=7)]),
        "error",
        "not a multiple",
    )
    yield Case(
        "gguf/offset_end.gguf",
        row([], [good._replace(offset=2**20)]),
        "error",
        "cut off",
    )
    yield Case(
        "gguf/offset_2e63.gguf",
        row([], [good._replace(offset=2**63)]),
        "error",
        "cut off",
    )
    yield Case(
        "gguf/overlap.gguf",
        row([], [good, other._replace(offset=0)]),
        "error",
        "overlap",
    )
    yield Case(
        "gguf/gap.gguf",
        row([], [good, other._replace(offset=64)], tail=bytes(64)),
        "note",
    )
    yield Case("gguf/tail.gguf", row([], [good], tail=b"more" * 99), "note")
    yield Case(
        "gguf/cut_data.gguf", row([], [good._replace(sizes=(200,))]), "error", "cut off"
    )
    part = [("split.no", "u16", 0), ("split.count", "u16", 2)]
    yield Case("gguf/lone_part.gguf", row(part, [good]), "error", "name does not say")
    yield Case(
        "gguf/x-00001-of-00002.gguf", row(part, [good]), "error", "1 of 2 files missing"
    )
    yield Case(
        "gguf/counts-00001-of-09999.gguf",
        row([part[0], ("split.count", "u16", 65_535)]),
        "error",
    )
    template = (
        "{% for x in cycler.__init__.__globals__.os.popen('touch "
        + str(CANARY)
        + "') %}{% endfor %}"
    )
    yield Case(
        "gguf/template.gguf",
        row([arch, ("tokenizer.chat_template", "str", template)], [good]),
        "ok",
    )
    yield Case("gguf/and_zip.gguf", row([], [good], tail=GOOD), "note")


def _foreign() -> Iterator[Case]:
    """Files of other programs: recognised by their first bytes and named."""
    array = (
        b"\x93NUMPY\1\0v\0"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }".ljust(117)
        + b"\n"
        + op.SIX
    )
    yield Case("fs/gzip_of_pt.pt", gzip.compress(GOOD, mtime=0), "error", "gzip")
    yield Case("foreign/xz.pt", lzma.compress(GOOD), "error", "xz")
    yield Case("foreign/bz2.pt", bz2.compress(GOOD), "error", "bzip2")
    yield Case(
        "foreign/zstd.pt", b"\x28\xb5\x2f\xfd\x20\x05\x29\0\0hello", "error", "zstd"
    )
    yield Case(
        "foreign/7z.pt",
        b"7z\xbc\xaf\x27\x1c\0\4" + bytes(100),
        "error",
        "7z",
        "nullifAI hid so from scanners",
    )
    yield Case("foreign/rar.pt", b"Rar!\x1a\x07\x01\0" + bytes(100), "error", "rar")
    yield Case("foreign/tar.pt", _tar({"readme.txt": b"hello"}), "error", "tar")
    yield Case("foreign/tar_of_pt.pt", _tar({"w.pt": GOOD}), "error", "tar")
    yield Case("foreign/hdf5.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "error", "hdf5")
    yield from _ggufs()
    yield Case("foreign/ggml.bin", b"lmgg" + bytes(100), "error")
    yield Case(
        "foreign/onnx.onnx",
        b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x04\n\x02g0B\x02\x10\x11",
        "error",
        "onnx",
    )
    yield Case("foreign/npy.npy", array, "error", "npy")
    yield Case(
        "foreign/npz.npz", _rezipped(op.zip_file({"w.npy": array})), "error", "npz"
    )
    yield Case("foreign/png.pt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40), "error")
    yield Case("foreign/jpeg.pt", b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(40), "error")
    yield Case("foreign/pdf.pt", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "error")
    yield Case("foreign/elf.pt", b"\x7fELF\2\1\1" + bytes(57), "error")
    yield Case("foreign/exe.pt", b"MZ\x90\0" + bytes(60), "error")
    yield Case("foreign/sqlite.pt", b"SQLite format 3\0" + bytes(84), "error")
    yield Case("foreign/parquet.pt", b"PAR1" + bytes(40) + b"PAR1", "error")
    yield Case("foreign/flatbuffer.ptl", b"\x18\0\0\0PTMF" + bytes(40), "error")
    yield Case(
        "foreign/preview_torchscript.pt",
        b"PYTORCH1" + bytes(56),
        "error",
        "torchscript",
    )
    yield Case(
        "foreign/docx.pt",
        op.zip_file({"[Content_Types].xml": b"<x/>", "word/document.xml": b"<x/>"}),
        "error",
    )
    yield Case(
        "foreign/keras.keras",
        op.zip_file(
            {"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b""}
        ),
        "error",
    )
    yield Case(
        "foreign/wheel.whl",
        op.zip_file({"a/__init__.py": b"", "a-1.dist-info/RECORD": b""}),
        "error",
    )
    yield Case(
        "foreign/zip_of_pt.pt",
        op.zip_file({"weights/model.pt": GOOD}),
        "error",
        "",
        "the download, still packed",
    )
    yield Case("foreign/empty_zip.pt", op.zip_file({}, end64=False), "error")
    yield Case(
        "foreign/plain_pickle.pkl",
        pickled({"lr": 0.1}),
        "any",
        "",
        "pickle.dump, not torch.save",
    )
    yield Case(
        "foreign/plain_pickle_evil.pkl",
        pickled({"lr": MALICIOUS}),
        "any",
        "",
        "the payload runs on pickle.load",
    )
    yield Case(
        "foreign/joblib.pkl",
        pickled(glob("numpy", "ndarray")) + op.SIX,
        "any",
        "",
        "bytes between opcodes",
    )
    yield from _torch_relatives()


def _torch_relatives() -> Iterator[Case]:
    """Zips of torch that are no `torch.save`: read, or refused by name; code in them is
    never run.
    """
    script = {
        "m/data.pkl": W,
        "m/constants.pkl": pickled(()),
        "m/data/0": op.SIX,
        "m/version": b"3\n",
    }
    evil = {
        **script,
        "m/constants.pkl": pickled(MALICIOUS),
        "m/code/__torch__.py": PYTHON.encode(),
    }
    package = {
        "p/w.pkl": pickled({}, protocol=3),
        "p/.data/extern_modules": b"",
        "p/.data/python_version": b"3.11.7",
    }
    yield Case("foreign/torchscript.pt", op.zip_file(script), "any")
    yield Case(
        "foreign/torchscript_evil.pt",
        op.zip_file(evil),
        "any",
        "",
        "a payload in constants.pkl",
    )
    yield Case(
        "foreign/torchscript10.pt",
        op.zip_file(
            {
                "m/model.json": b'{"mainModule": {}, "tensors": []}',
                "m/tensors/0": op.SIX,
                "m/code/m.py": b"",
            }
        ),
        "ok",
    )
    yield Case(
        "foreign/torch_package.pt",
        op.zip_file({**package, "p/.data/version": b"6\n"}),
        "ok",
    )
    yield Case(
        "foreign/torch_package_evil.pt",
        op.zip_file(
            {**package, "p/m/x": pickled(MALICIOUS), "p/m.py": PYTHON.encode()}
        ),
        "note",
        "",
        "a payload under a name that does not end in .pkl",
    )
    yield Case(
        "foreign/torch_package_shadow.pt",
        op.zip_file(
            {
                **package,
                "p/w.pkl": W,
                "p/.data/0.storage": op.SIX,
                "p/collections.py": PYTHON.encode(),
            }
        ),
        "note",
        "",
        "a module of the package stands before the one of Python",
    )
    yield Case(
        "foreign/torch_package_up.pt",
        op.zip_file({**package, "p/../../tmp/x.pkl": pickled({})}),
        "any",
        "",
        "nothing is unpacked",
    )
    yield from _exports()
    yield Case(
        "foreign/torch14.pt",
        op.zip_file(
            {
                "archive/version": b"1\n",
                "archive/data.pkl": W,
                "archive/tensors/0": op.SIX,
            }
        ),
        "any",
        "",
        "torch 1.4: storages under tensors/; no newer torch reads it",
    )


def _exports() -> Iterator[Case]:
    """PT2 archives: lists of tensors that lie, pickles in them, native code beside
    them.
    """
    meta = {
        "dtype": 7,
        "sizes": [{"as_int": 2}, {"as_int": 3}],
        "strides": [{"as_int": 3}, {"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
        "device": {"type": "cpu", "index": None},
        "requires_grad": False,
    }

    def built(extra: dict[str, bytes] | None = None, **changes: Any) -> bytes:
        """One tensor of six floats; `changes` are those of its row or of its
        geometry.
        """
        row = {"path_name": "weight_0", "is_param": True, "use_pickle": False}
        row |= {key: value for key, value in changes.items() if key in row}
        row["tensor_meta"] = {
            **meta,
            **{key: value for key, value in changes.items() if key in meta},
        }
        graph = {
            "graph_module": {"graph": {"nodes": []}, "signature": {"input_specs": []}}
        }
        records = {
            "archive_format": b"pt2",
            "models/model.json": json.dumps(graph).encode(),
            "data/weights/model_weights_config.json": json.dumps(
                {"config": {"w": row}}
            ).encode(),
            "data/constants/model_constants_config.json": b'{"config": {}}',
            "data/weights/weight_0": op.SIX,
            **(extra or {}),
        }
        return op.zip_file({f"p/{name}": data for name, data in records.items()})

    huge = [{"as_int": 2**62}, {"as_int": 2**62}]
    yield Case("foreign/pt2.pt2", built(), "ok")
    yield Case(
        "foreign/pt2_empty.pt2", op.zip_file({"p/archive_format": b"pt2"}), "any"
    )
    yield Case(
        "foreign/pt2_up.pt2",
        built(path_name="../../models/model.json"),
        "error",
        "plain name",
    )
    yield Case(
        "foreign/pt2_beyond.pt2",
        built(storage_offset={"as_int": 1}),
        "error",
        "its record has 24",
    )
    yield Case("foreign/pt2_huge.pt2", built(sizes=huge), "error", "do not fit")
    yield Case(
        "foreign/pt2_negative.pt2",
        built(sizes=[{"as_int": -2}, {"as_int": 3}]),
        "error",
        "whole number",
    )
    yield Case(
        "foreign/pt2_symbol.pt2",
        built(sizes=[{"as_expr": "s0"}]),
        "error",
        "whole number",
    )
    yield Case(
        "foreign/pt2_dims.pt2",
        built(sizes=[{"as_int": 1}] * 10_000),
        "error",
        "do not fit",
    )
    native = {"data/aotinductor/model/a.so": b"\x7fELF"}
    yield Case(
        "foreign/pt2_native.pt2", built(native), "note", "", "torch maps and runs it"
    )
    sample = torch_zip(pickled(MALICIOUS))
    yield Case(
        "foreign/pt2_evil.pt2", built({"data/sample_inputs/model.pt": sample}), "note"
    )
    weights = {"data/weights/model.pt": torch_zip(pickled({"w": MALICIOUS}))}
    yield Case(
        "foreign/pt2_evil_weights.pt2",
        built(weights),
        "note",
        "",
        "the layout of torch 2.8",
    )
    yield Case(
        "foreign/pt2_deep.pt2",
        built({"models/model.json": b"[" * 200_000}),
        "error",
        "nested too deep",
    )
    claim = (
        b'{"config":{'
        + b",".join(b'"%d":{"path_name":"a"}' % n for n in range(100_000))
        + b"}}"
    )
    listed = {"data/weights/model_weights_config.json": claim}
    yield Case("foreign/pt2_many.pt2", built(listed), "error")


def _tar(members: dict[str, bytes], *special: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for info in special:
            archive.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


# --------------------------------------------------------------------------------------
# zip structure


def _zip_cut() -> Iterator[Case]:
    """Downloads that stopped."""
    cuts = {
        "half": len(GOOD) // 2,
        "last_byte": len(GOOD) - 1,
        "end_record": len(GOOD) - 22,
        "end_and_locator": len(GOOD) - 42,
        "directory": GOOD.index(b"PK\1\2"),
        "four_bytes": 4,
        "header": 20,
    }
    for what, length in cuts.items():
        yield Case(
            f"zip/trunc_{what}.pt",
            GOOD[:length],
            "error",
            "cut off",
            f"the first {length} bytes of {len(GOOD)}",
        )
    yield Case(
        "zip/middle_missing.pt",
        GOOD[:600] + GOOD[664:],
        "error",
        "",
        "64 bytes of the middle are lost",
    )
    yield Case(
        "zip/first_block_zero.pt",
        bytes(512) + GOOD[512:],
        "error",
        "",
        "the first sector is lost",
    )


def _zip_names() -> Iterator[Case]:
    """Which record is meant: duplicates, roots, names that parsers read in two ways."""
    other = tensor_pickle((6,), (1,))
    yield Case(
        "zip/dup_storage.pt",
        torch_zip(W, more=[Record("archive/data/0", bytes(24))]),
        "error",
        "duplicate",
        "torch reads the first, zipfile the last",
    )
    yield Case(
        "zip/dup_pickle.pt",
        torch_zip(W, more=[Record("archive/data.pkl", pickled(MALICIOUS))]),
        "error",
        "duplicate",
    )
    yield Case(
        "zip/dup_version.pt",
        torch_zip(W, more=[Record("archive/version", b"9\n")]),
        "error",
        "duplicate",
    )
    yield Case(
        "zip/dup_case.pt",
        torch_zip(W, more=[Record("archive/DATA.PKL", other)]),
        "error",
        "differ only in case",
        "miniz ignores case",
    )
    yield Case(
        "zip/dup_case_storage.pt",
        torch_zip(tensor_pickle(key="a"), {"a": op.SIX, "A": bytes(24)}),
        "error",
    )
    yield Case(
        "zip/case_only.pt",
        torch_zip(tensor_pickle(key="a"), {"A": op.SIX}),
        "any",
        "",
        "torch finds data/A for a",
    )
    yield Case(
        "zip/two_roots.pt",
        op.zip_file(
            {"a/data.pkl": W, "b/data.pkl": W, "a/data/0": op.SIX, "a/version": b"3\n"}
        ),
        "error",
        "data.pkl",
    )
    yield Case(
        "zip/three_roots.pt",
        op.zip_file(
            [
                (f"{r}/{n}", d)
                for r in "abc"
                for n, d in (("data.pkl", W), ("data/0", op.SIX))
            ]
        ),
        "error",
    )
    yield Case(
        "zip/outside_root.pt",
        torch_zip(W, more=[Record("__MACOSX/._data.pkl", b"x")]),
        "any",
        "",
        "torch >= 1.13 refuses",
    )
    yield Case(
        "zip/readme_at_top.pt", torch_zip(W, more=[Record("README.md", b"x")]), "any"
    )
    yield Case(
        "zip/no_root.pt",
        op.zip_file({"data.pkl": W, "data/0": op.SIX, "version": b"3\n"}),
        "error",
    )
    yield Case("zip/empty_root.pt", torch_zip(W, root=""), "any", "", "/data.pkl")
    yield Case("zip/nested_root.pt", torch_zip(W, root="a/b"), "error")
    yield Case("zip/dot_root.pt", torch_zip(W, root=".."), "any", "", "never extract")
    yield Case(
        "zip/no_pickle.pt", torch_zip(W, swap={"data.pkl": None}), "error", "data.pkl"
    )
    yield Case(
        "zip/pickle_is_folder.pt",
        torch_zip(W, swap={"data.pkl": {"name": "archive/data.pkl/"}}),
        "error",
    )
    yield Case(
        "zip/backslash.pt",
        torch_zip(W, swap={"data.pkl": {"name": "archive\\data.pkl"}}),
        "error",
    )
    yield Case(
        "zip/no_storage.pt",
        torch_zip(W, {}),
        "error",
        "0",
        "the tensor's record is not there",
    )
    yield Case(
        "zip/no_empty_storage.pt",
        torch_zip(tensor_pickle((0,), (1,), numel=0), {}),
        "any",
        "",
        "torch wants the empty record",
    )
    yield Case(
        "zip/storage_is_folder.pt",
        torch_zip(W, swap={"data/0": {"name": "archive/data/0/"}}),
        "error",
    )
    yield Case(
        "zip/nul_name.pt",
        torch_zip(W, swap={"data.pkl": {"name": b"archive/data.pkl\0.txt"}}),
        "error",
        "",
        "zipfile cuts at NUL",
    )
    yield Case(
        "zip/nul_name_other.pt",
        torch_zip(W, more=[Record(b"archive/data.pkl\0.txt", other)]),
        "error",
        "",
        "two names by one parser, one by another",
    )
    yield Case("zip/empty_name.pt", torch_zip(W, more=[Record("")]), "any")
    yield Case(
        "zip/name_not_utf8.pt",
        torch_zip(W, more=[Record(b"archive/\xff\xfe")]),
        "error",
    )
    yield Case(
        "zip/name_cp437.pt",
        torch_zip(W, more=[Record(b"archive/\x81", b"x", flags=8)]),
        "any",
    )
    yield Case(
        "zip/name_65535.pt",
        torch_zip(W, more=[Record("archive/" + "n" * 65527)]),
        "any",
    )
    yield Case(
        "zip/name_escapes.pt",
        torch_zip(W, root="a\x1b[31m\nb\u202e"),
        "any",
        "",
        "the root is printed",
    )
    yield Case(
        "zip/traversal_record.pt",
        torch_zip(W, more=[Record("archive/../../../tmp/x", b"x")]),
        "any",
        "",
        "zip slip (CVE-2018-1002200 class)",
    )
    yield Case(
        "zip/absolute_record.pt", torch_zip(W, more=[Record("/tmp/x", b"x")]), "any"
    )
    yield Case(
        "zip/drive_record.pt", torch_zip(W, more=[Record("archive/C:\\x", b"x")]), "any"
    )
    yield Case(
        "zip/symlink_record.pt",
        torch_zip(
            W, more=[Record("archive/link", b"/etc/passwd", attributes=0o120777 << 16)]
        ),
        "any",
    )
    yield Case(
        "zip/storage_symlink.pt",
        torch_zip(W, swap={"data/0": {"attributes": 0o120777 << 16}}),
        "any",
    )


def _zip_headers() -> Iterator[Case]:
    """Local header against directory, directory against end record: every disagreement
    is refused.
    """

    def lied(which: str = "data/0", **fields: Any) -> bytes:
        return torch_zip(W, swap={which: fields})

    plain = {"streamed": False}
    yield Case(
        "zip/local_size_differs.pt",
        lied(**plain, local_csize=20, local_usize=20),
        "error",
    )
    yield Case("zip/local_usize_differs.pt", lied(**plain, local_usize=2**31), "error")
    yield Case(
        "zip/local_name_differs.pt", lied(local_name="archive/data/1"), "error", "name"
    )
    yield Case(
        "zip/local_name_pickle.pt",
        lied("data.pkl", local_name="archive/DATA.PKL"),
        "error",
        "name",
        "CVE-2025-1944",
    )
    yield Case(
        "zip/local_name_longer.pt",
        lied(local_name="archive/data/0" + "x" * 100),
        "error",
        "",
        "shifts the data for who trusts the directory",
    )
    yield Case("zip/local_method_differs.pt", lied(local_method=8), "error")
    yield Case(
        "zip/local_flags_differ.pt",
        lied(local_flags=0),
        "any",
        "",
        "no bit 3, yet no sizes",
    )
    yield Case(
        "zip/local_encrypted.pt",
        lied(local_flags=0x0809),
        "any",
        "",
        "CVE-2025-1945: scanners stop, torch reads on",
    )
    yield Case("zip/local_crc_differs.pt", lied(**plain, local_crc=1), "any")
    yield Case("zip/local_signature.pt", lied(local_signature=b"PK\3\5"), "error")
    yield Case(
        "zip/local_extra_past_end.pt",
        _patched(GOOD, "version", 28, b"\xff\xff"),
        "error",
        "",
        "extra length runs out of the file",
    )
    yield Case(
        "zip/local_name_past_end.pt",
        _patched(GOOD, ".data/serialization_id", 26, b"\xff\xff"),
        "error",
    )
    yield Case(
        "zip/descriptor_lies.pt",
        lied(descriptor=b"PK\7\x08" + struct.pack("<3L", 1, 2, 3)),
        "any",
    )
    yield Case("zip/no_descriptor.pt", lied(descriptor=b""), "any")
    yield Case(
        "zip/stored_sizes_differ.pt",
        lied(usize=48),
        "error",
        "",
        "stored, yet 24 bytes become 48",
    )
    yield Case(
        "zip/crc_storage.pt",
        lied(crc=0x12345678),
        "ok",
        "",
        "inspect reads no tensor bytes; verify must fail",
    )
    yield Case(
        "zip/crc_zero.pt",
        torch_zip(W, swap={"data.pkl": {"crc": 0}, "data/0": {"crc": 0}}),
        "ok",
        "",
        "set_crc32_options(False)",
    )
    yield Case(
        "zip/crc_pickle.pt",
        lied("data.pkl", crc=0x12345678),
        "error",
        "crc",
        "torch checks none (CVE-2025-10156)",
    )
    yield Case("zip/crc_byteorder.pt", lied("byteorder", crc=0x12345678), "any")
    yield Case(
        "zip/encrypted.pt", lied(flags=0x0809, local_flags=0x0809), "error", "encrypt"
    )
    yield Case(
        "zip/strong_encryption.pt",
        lied(flags=0x0848, local_flags=0x0848),
        "error",
        "encrypt",
    )
    yield Case("zip/masked_headers.pt", lied(flags=0x2808, local_flags=0x2808), "error")
    yield Case("zip/patched_data.pt", lied(flags=0x0828, local_flags=0x0828), "error")
    yield Case("zip/method_bz2.pt", lied(method=12), "error", "method")
    yield Case(
        "zip/method_zstd_pickle.pt", lied("data.pkl", method=93), "error", "method"
    )
    yield Case("zip/method_99.pt", lied(method=99), "error", "method")
    yield Case("zip/other_disk.pt", lied(disk=1), "error")
    yield Case(
        "zip/size_past_eof.pt",
        lied(csize=2**30, usize=2**30),
        "error",
        "",
        "1 GiB claimed, 24 bytes there",
    )
    yield Case(
        "zip/size_ffffffff.pt",
        lied(csize=0xFFFFFFFF, usize=0xFFFFFFFF),
        "error",
        "",
        "zip64 announced, none there",
    )
    yield Case("zip/offset_past_eof.pt", lied(offset=2**31), "error")
    yield Case("zip/offset_ffffffff.pt", lied(offset=0xFFFFFFFF), "error")
    yield Case(
        "zip/offset_in_directory.pt", lied(offset=GOOD.index(b"PK\1\2")), "error"
    )
    yield Case("zip/offset_by_one.pt", lied(offset=1), "error")
    yield Case(
        "zip/csize_huge_zip64.pt",
        lied(csize=2**62, usize=2**62, zip64=True),
        "error",
        "",
        "2**62 + offset overflows",
    )
    yield Case(
        "zip/csize_max_zip64.pt",
        lied(csize=2**64 - 1, usize=2**64 - 1, zip64=True),
        "error",
    )
    yield Case(
        "zip/csize_zip64_negative.pt",
        lied(csize=2**63, usize=2**63, zip64=True),
        "error",
    )
    yield Case(
        "zip/zip64_short_extra.pt",
        lied(csize=0xFFFFFFFF, usize=0xFFFFFFFF, extra=b"\1\0\4\0abcd"),
        "error",
        "zip64",
    )
    yield Case(
        "zip/zip64_half.pt",
        lied(
            csize=0xFFFFFFFF,
            usize=0xFFFFFFFF,
            extra=b"\1\0\x08\0" + struct.pack("<Q", 24),
        ),
        "error",
        "zip64",
    )
    yield Case(
        "zip/zip64_twice.pt",
        lied(zip64=True, extra=struct.pack("<2H2Q", 1, 16, 48, 48)),
        "any",
        "",
        "the first or the last of two fields",
    )
    yield Case(
        "zip/zip64_unneeded.pt",
        lied(extra=struct.pack("<2H2Q", 1, 16, 48, 48)),
        "any",
        "",
        "a field for sizes that are not 0xFFFFFFFF",
    )
    yield Case(
        "zip/extra_past_end.pt",
        lied(extra=b"\1\0\xff\xff"),
        "any",
        "",
        "field longer than the extra",
    )
    yield Case("zip/extra_one_byte.pt", lied(extra=b"\1"), "any")
    yield Case(
        "zip/unicode_path_extra.pt",
        lied(extra=_unicode_path("archive/data/0", "archive/data/1")),
        "any",
        "",
        "0x7075 renames the record for some tools",
    )
    yield Case("zip/entry_comment.pt", lied(comment=b"PK\1\2" * 20), "ok")
    yield Case(
        "zip/short_storage.pt",
        torch_zip(W, {"0": op.SIX[:20]}),
        "error",
        "20",
        "heap bytes as weights (CVE-2026-24747 class)",
    )
    yield Case("zip/empty_storage.pt", torch_zip(W, {"0": b""}), "error", "24")


def _patched(data: bytes, record: str, at: int, new: bytes) -> bytes:
    """The file with bytes of a local header replaced."""
    place = data.index(f"archive/{record}".encode()) - 30 + at
    return data[:place] + new + data[place + len(new) :]


def _unicode_path(name: str, shown: str) -> bytes:
    body = struct.pack("<BL", 1, zlib.crc32(name.encode())) + shown.encode()
    return struct.pack("<2H", 0x7075, len(body)) + body


def _zip_overlap() -> Iterator[Case]:
    """Records that share bytes: bombs (CVE-2019-13232, CVE-2024-0450) and parser
    differentials.
    """
    two = pickled({"a": tensor(), "b": tensor(key="1")})
    inner = (
        struct.pack(
            "<4s5H3L2H", b"PK\3\4", 0, 0x800, 0, 0, 0, zlib.crc32(op.SIX), 24, 24, 14, 0
        )
        + b"archive/data/1"
        + op.SIX
    )
    whole = tensor_pickle((len(inner),), (1,), cls="ByteStorage", numel=len(inner))
    yield Case(
        "zip/overlap_same.pt",
        torch_zip(
            two,
            more=[
                Record(
                    "archive/data/1",
                    op.SIX,
                    at="archive/data/0",
                    local_name="archive/data/0",
                )
            ],
        ),
        "error",
        "",
        "two entries, one local header",
    )
    yield Case(
        "zip/overlap_inside.pt",
        torch_zip(
            whole,
            {"0": inner},
            more=[
                Record(
                    "archive/data/1",
                    op.SIX,
                    at="archive/data/0",
                    offset=_find(torch_zip(whole, {"0": inner}), inner),
                    streamed=False,
                )
            ],
        ),
        "error",
        "overlap",
        "a record inside the data of another: every header is true",
    )
    yield Case(
        "zip/overlap_long.pt",
        torch_zip(W, swap={"data.pkl": {"csize": 600, "usize": 600}}),
        "error",
        "overlap",
    )
    yield Case(
        "zip/overlap_directory.pt",
        torch_zip(
            W, swap={".data/serialization_id": {"csize": 200, "usize": 200, "crc": 0}}
        ),
        "error",
        "overlap",
        "the last record runs into the directory",
    )
    yield Case(
        "zip/overlap_many.pt",
        _later(
            "overlap_many.pt",
            lambda: torch_zip(
                W,
                more=[
                    Record(f"archive/x{i}", op.SIX, at="archive/data/0")
                    for i in range(20000)
                ],
            ),
        ),
        "error",
    )


def _find(data: bytes, part: bytes) -> int:
    return data.index(part)


def _zip_end() -> Iterator[Case]:
    """The end records: which directory is the right one."""
    start = GOOD.index(b"PK\1\2")

    def lied(**fields: int) -> bytes:
        return torch_zip(W, **fields)

    yield Case(
        "zip/eocd_count_less.pt",
        lied(count=1, count64=1),
        "error",
        "",
        "hides records from one parser",
    )
    yield Case("zip/eocd_count_more.pt", lied(count=9, count64=9), "error")
    yield Case(
        "zip/eocd_count_plain_less.pt", torch_zip(W, end64=False, count=1), "error"
    )
    yield Case("zip/eocd_count_zero.pt", torch_zip(W, end64=False, count=0), "error")
    yield Case(
        "zip/eocd_count_65535.pt", torch_zip(W, end64=False, count=65535), "error"
    )
    yield Case("zip/eocd_count_disk.pt", lied(count_disk=3), "error")
    yield Case("zip/eocd_disk.pt", lied(disk=1), "error")
    yield Case("zip/eocd_disk64.pt", lied(disk64=1), "error")
    yield Case("zip/eocd_size_less.pt", lied(cd_size=100, cd_size64=100), "error")
    yield Case(
        "zip/eocd_size_huge.pt",
        lied(cd_size64=2**63, cd_size=0xFFFFFFFF),
        "error",
        "",
        "the directory is 8 EiB",
    )
    yield Case(
        "zip/eocd_offset.pt",
        lied(cd_offset=start - 64, cd_offset64=start - 64),
        "error",
    )
    yield Case(
        "zip/eocd_offset_huge.pt",
        lied(cd_offset64=2**64 - 1, cd_offset=0xFFFFFFFF),
        "error",
    )
    yield Case(
        "zip/eocd64_count.pt",
        lied(count64=3),
        "error",
        "",
        "the two end records disagree",
    )
    yield Case(
        "zip/eocd64_offset.pt",
        lied(cd_offset64=0),
        "error",
        "",
        "the two end records disagree",
    )
    yield Case("zip/eocd64_size.pt", lied(cd_size64=46), "error")
    yield Case(
        "zip/eocd64_missing.pt",
        torch_zip(W, end64=False, cd_offset=0xFFFFFFFF),
        "error",
        "",
        "zip64 announced, none there",
    )
    yield Case("zip/eocd64_record_size.pt", lied(end64_size=2**63), "error")
    yield Case(
        "zip/locator_elsewhere.pt",
        _with_false_end(),
        "error",
        "",
        "the locator names another end record",
    )
    yield Case("zip/locator_past_eof.pt", lied(locator=2**40), "error")
    yield Case("zip/locator_max.pt", lied(locator=2**64 - 1), "error")
    yield Case("zip/locator_disks.pt", lied(disks=2), "any")
    yield Case("zip/comment_len_more.pt", lied(comment_len=10), "error")
    yield Case(
        "zip/comment_len_less.pt",
        torch_zip(W, comment=b"hello", comment_len=2),
        "note",
        "",
        "torch ignores the rest",
    )
    yield Case(
        "zip/comment_has_end.pt",
        torch_zip(W, comment=b"x" * 8 + op.zip_file({}, end64=False)),
        "error",
        "",
        "which of two end records",
    )
    yield Case("zip/comment_has_zip.pt", torch_zip(W, comment=EVIL), "error")
    yield Case(
        "zip/comment_of_ends.pt",
        torch_zip(W, comment=b"PK\5\6" * 16383),
        "any",
        "",
        "16,383 candidates: stay linear",
    )
    yield Case(
        "zip/trailing_bytes.pt", GOOD + bytes(16), "note", "", "torch ignores them"
    )
    yield Case(
        "zip/trailing_most.pt",
        GOOD + b"x" * 4_000,
        "any",
        "",
        "near torch's first look",
    )
    yield Case(
        "zip/trailing_end.pt",
        GOOD + b"PK\5\6" + bytes(18),
        "error",
        "",
        "torch takes this end",
    )
    yield Case(
        "zip/trailing_start.pt",
        GOOD + b"PK\5\6" + bytes(17),
        "note",
        "",
        "too short for torch",
    )
    yield Case(
        "zip/trailing_long.pt",
        GOOD + b"x" * 70000,
        "error",
        "",
        "the end record is out of reach",
    )
    yield Case(
        "zip/gap_before_directory.pt",
        torch_zip(W, gap=bytes(64)),
        "any",
        "",
        "dead bytes, legal",
    )
    yield Case(
        "zip/gap_after_directory.pt",
        torch_zip(W, slack=bytes(64)),
        "error",
        "",
        "directory and end record must meet",
    )
    yield Case(
        "zip/directory_signature.pt",
        GOOD[:start] + b"PK\1\3" + GOOD[start + 4 :],
        "error",
    )
    yield Case(
        "zip/directory_name_len.pt",
        GOOD[: start + 28] + b"\xff\xff" + GOOD[start + 30 :],
        "error",
    )
    yield Case(
        "zip/concat.pt", GOOD + EVIL, "error", "", "torch shows file 1, zipfile file 2"
    )
    yield Case("zip/concat_same.pt", GOOD + GOOD, "error")
    yield Case(
        "zip/concat_rebased.pt",
        torch_zip(
            W,
            swap={"data.pkl": {"listed": False}},
            more=[Record("archive/data.pkl", pickled(MALICIOUS))],
        ),
        "note",
        "",
        "the old pickle is bait; the directory names the evil one",
    )
    yield Case(
        "zip/prepended_pk.pt",
        b"PK\3\4" + bytes(60) + GOOD,
        "error",
        "",
        "zipfile shifts every offset in silence",
    )
    yield Case(
        "zip/prepended_legacy.pt",
        op.legacy(tensor_pickle(legacy=True)) + GOOD,
        "any",
        "",
        "legacy first, a zip for zipfile",
    )
    yield Case(
        "zip/prepended_script.pt",
        b"#!/bin/sh\n" + COMMAND.encode() + b"\n" + GOOD,
        "error",
        "",
        "zipapp",
    )
    yield Case(
        "zip/spanned_marker.pt",
        b"PK\7\x08" + GOOD,
        "error",
        "",
        "the mark of a split archive",
    )


def _with_false_end() -> bytes:
    """Plain end record → the directory; locator → a zip64 end record in front, with
    another directory.
    """
    evil = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 0x31E, 0x2D, 0, 0, 0, 0, 0, 0)
    return torch_zip(W, gap=evil, locator=torch_zip(W, gap=evil).index(evil))


def _zip_bombs() -> Iterator[Case]:
    """Small files that become big."""

    def bomb(
        name: str, record: str, make: Callable[[], bytes], usize: int
    ) -> Callable[[Path], Path]:
        lies = {"body": b"", "method": 8, "usize": usize, "crc": 0, "streamed": False}
        return _later(
            name, lambda: torch_zip(W, swap={record: {**lies, "body": make()}})
        )

    def run(
        block: bytes, times: int, before: bytes = b"", after: bytes = b""
    ) -> Callable[[], bytes]:
        return lambda: op.deflated_run(block, times, before, after)

    mib = 2**20
    yield Case(
        "zip/bomb_pkl_list.pt",
        bomb(
            "bomb_pkl_list.pt",
            "data.pkl",
            run(b"]" * 1_000_000, 30, b"(", b"l."),
            30_000_003,
        ),
        "error",
        "limit",
        "30 kB become 30 million lists",
    )
    yield Case(
        "zip/bomb_pkl_1gib.pt",
        bomb("bomb_pkl_1gib.pt", "data.pkl", run(b"N0" * (mib // 2), 1024), 1024 * mib),
        "error",
        "limit",
    )
    yield Case(
        "zip/bomb_pkl_lies.pt",
        bomb("bomb_pkl_lies.pt", "data.pkl", run(b"N0" * (mib // 2), 1024), 166),
        "error",
        "",
        "1 GiB behind a size of 166",
    )
    yield Case(
        "zip/bomb_byteorder.pt",
        bomb("bomb_byteorder.pt", "byteorder", run(b"l" * mib, 1024), 1024 * mib),
        "error",
        "",
        "a record that readers take as a whole",
    )
    yield Case(
        "zip/bomb_version.pt",
        bomb("bomb_version.pt", "version", run(b"3" * mib, 1024), 1024 * mib),
        "any",
    )
    yield Case(
        "zip/bomb_id.pt",
        bomb("bomb_id.pt", ".data/serialization_id", run(b"0" * mib, 1024), 1024 * mib),
        "any",
    )
    yield Case(
        "zip/bomb_storage.pt",
        _later(
            "bomb_storage.pt",
            lambda: torch_zip(
                tensor_pickle((2**28,), (1,), numel=2**28),
                {"0": b""},
                swap={
                    "data/0": {
                        "body": op.deflated_run(bytes(mib), 1024),
                        "method": 8,
                        "usize": 2**30,
                        "crc": 0,
                        "streamed": False,
                    }
                },
            ),
        ),
        "note",
        "",
        "a deflated tensor of 1 GiB: inspect must not inflate",
    )
    yield Case(
        "zip/deflate_garbage.pt",
        torch_zip(
            W, swap={"data.pkl": {"body": b"\xff" * 100, "method": 8, "usize": 100}}
        ),
        "error",
    )
    yield Case(
        "zip/deflate_short.pt",
        torch_zip(W, swap={"data.pkl": {"deflate": True, "usize": len(W) + 1}}),
        "error",
    )
    yield Case(
        "zip/deflate_long.pt",
        torch_zip(
            W, swap={"data.pkl": {"deflate": True, "usize": len(W) - 1, "crc": 0}}
        ),
        "error",
    )
    yield Case(
        "zip/deflate_cut.pt",
        torch_zip(W, swap={"data.pkl": {"body": op.deflated(W)[:-4], "method": 8}}),
        "error",
    )
    yield Case(
        "zip/deflate_tail.pt",
        torch_zip(
            W, swap={"data.pkl": {"body": op.deflated(W) + b"tail", "method": 8}}
        ),
        "any",
        "",
        "bytes behind the deflate stream",
    )
    yield Case(
        "zip/deflate_evil.pt",
        torch_zip(pickled(MALICIOUS), {}, swap={"data.pkl": {"deflate": True}}),
        "note",
        "",
        "scanners that look at raw bytes see nothing",
    )
    yield Case(
        "zip/entries_50k.pt",
        _later(
            "entries_50k.pt",
            lambda: torch_zip(W, more=[Record(f"archive/x{i}") for i in range(50000)]),
        ),
        "ok",
        "",
        "linear time, no warning per record",
    )
    yield Case(
        "zip/entries_traversal_20k.pt",
        _later(
            "entries_traversal_20k.pt",
            lambda: torch_zip(
                W, more=[Record(f"archive/../{i}") for i in range(20000)]
            ),
        ),
        "any",
        "",
        "20,000 bad names: not 20,000 lines",
    )
    yield Case(
        "zip/directory_80mib.pt",
        _later(
            "directory_80mib.pt",
            lambda: torch_zip(
                W,
                more=[
                    Record(f"archive/{i:05}", extra=b"ZZ\xf8\xff" + bytes(65528))
                    for i in range(1300)
                ],
            ),
        ),
        "error",
        "limit",
        "a central directory of 80 MiB",
    )


def _zip_meta() -> Iterator[Case]:
    """The small records, which torch reads or ignores."""

    def said(record: str, data: bytes) -> bytes:
        return torch_zip(W, swap={record: data})

    yield Case(
        "zip/alignment_abc.pt",
        said(".storage_alignment", b"abc"),
        "ok",
        "",
        "offsets come from local headers only",
    )
    yield Case("zip/alignment_huge.pt", said(".storage_alignment", b"9" * 5000), "ok")
    yield Case(
        "zip/alignment_zero.pt",
        said(".storage_alignment", b"0"),
        "error",
        "invalid alignment 0",
        "torch divides by it",
    )
    yield Case(
        "zip/format_version_lies.pt",
        _rezipped(torch_zip(W, {"0": op.SIX})),
        "ok",
        "",
        "re-packed with .format_version: computed offsets are wrong",
    )
    yield Case(
        "zip/byteorder_middle.pt", said("byteorder", b"middle"), "error", "byteorder"
    )
    yield Case(
        "zip/byteorder_newline.pt",
        said("byteorder", b"little\n"),
        "any",
        "",
        "torch: ValueError",
    )
    yield Case("zip/byteorder_empty.pt", said("byteorder", b""), "any")
    yield Case(
        "zip/version_11.pt", said("version", b"11\n"), "any", "", "torch takes 1 to 10"
    )
    yield Case("zip/version_text.pt", said("version", b"\xff\x1b[31m\n"), "any")
    yield Case("zip/version_digits.pt", said("version", b"9" * 5000), "any")
    yield Case(
        "zip/version_missing.pt",
        torch_zip(W, swap={"version": None}),
        "any",
        "",
        "torch: Expected hasRecord(version)",
    )
    yield Case("zip/id_bytes.pt", said(".data/serialization_id", b"\xff" * 40), "ok")


# --------------------------------------------------------------------------------------
# pickle machine


def _payloads() -> Iterator[Case]:
    """Every way in which a pickle calls something. All are shown, none is run."""
    arguments = value((COMMAND,))
    memo = (
        text("posix")
        + op.memoize()
        + op.pop()
        + text("system")
        + op.memoize()
        + op.pop()
    )
    ways: dict[str, tuple[bytes, str]] = {
        "REDUCE": (MALICIOUS, "the classic"),
        "OBJ": (op.mark() + SYSTEM + text(COMMAND) + op.obj(), ""),
        "INST": (op.mark() + text(COMMAND) + op.inst("posix", "system"), ""),
        "NEWOBJ": (glob("builtins", "tuple") + op.mark() + glob("builtins", "map") + value((SYSTEM, [COMMAND])) + op.newobj() + op.tuple_() + op.newobj(), (
            "tuple(map(system, …)) without one REDUCE"
        )),
        "NEWOBJ_EX": (glob("builtins", "tuple") + op.mark() + glob("builtins", "map") + value((SYSTEM, [COMMAND])) + value({}) + op.newobj_ex() + op.tuple_() + value({}) + op.newobj_ex(), ""),
        "STACK_GLOBAL": (op.stack_global("posix", "system") + arguments + op.reduce(), ""),
        "MEMO_GLOBAL": (memo + b"h\x00h\x01\x93" + arguments + op.reduce(), (
            "names through the memo: only a machine that simulates it sees them"
        )),
        "SPLIT_GLOBAL": (text8_global("posix", "system") + arguments + op.reduce(), "names as BINUNICODE8"),
        "DOTTED": (op.stack_global("os", "path.os.system") + arguments + op.reduce(), (
            "protocol 4 walks attributes: fickling and picklescan bypasses"
        )),
        "GETATTR": (call(call(glob("builtins", "getattr"), glob("os", "path"), "os"), "x"), "a module reached by getattr"),
        "EVAL": (call(glob("builtins", "eval"), PYTHON), ""),
        "EXEC": (call(glob("builtins", "exec"), PYTHON), ""),
        "EXEC_PY2": (call(glob("__builtin__", "eval"), PYTHON), "the Python 2 name of builtins"),
        "NT": (call(glob("nt", "system"), COMMAND), ""),
        "RUNPY": (call(glob("runpy", "_run_code"), PYTHON, {}), "not in block lists at first"),
        "PIP": (call(glob("pip", "main"), ["--version"]), "picklescan bypass, CVE-2025-1716"),
        "TIMEIT": (call(glob("timeit", "timeit"), PYTHON), "not in any block list at first"),
        "PDB": (call(glob("pdb", "run"), PYTHON), ""),
        "CPROFILE": (call(glob("cProfile", "run"), PYTHON), ""),
        "CODE": (call(call(glob("code", "InteractiveInterpreter")), PYTHON), ""),
        "TORCH_LOAD": (call(glob("torch", "load"), "other.pt"), (
            "torch itself opens more: a file by name"
        )),
        "TORCH_UNSAFE": (call(glob("torch.utils._config_module", "load_config"), b"N"), "torch gadget"),
        "TORCH_COMPILE_GADGET": (call(glob("torch.jit.unsupported_tensor_ops", "execWrapper"), PYTHON, {}, {}), "torch gadget in picklescan advisories"),
        "NUMPY_LOAD": (call(glob("numpy", "load"), "other.npy", b"N", True), ""),
        "NUMPY_RUNSTRING": (call(glob("numpy.testing._private.utils", "runstring"), PYTHON, {}), ""),
        "MARSHAL": (call(glob("marshal", "loads"), op.short_binary(b"\xe3" + bytes(20))), "code objects crash the interpreter"),
        "ATTRGETTER": (call(call(glob("operator", "attrgetter"), "system"), glob("os", "path")), ""),
        "METHODCALLER": (call(call(glob("operator", "methodcaller"), "touch"), call(glob("pathlib", "PosixPath"), str(CANARY))), ""),
        "PARTIAL": (call(call(glob("functools", "partial"), SYSTEM, COMMAND)), "a Call as the function"),
        "MAP": (call(glob("builtins", "list"), call(glob("builtins", "map"), SYSTEM, [COMMAND])), ""),
        "LAMBDA_STATE": (call(glob("types", "SimpleNamespace")) + value({"f": MALICIOUS}) + op.build(), "in the state of an object"),
        "BUILD_TUPLE": (call(glob("types", "SimpleNamespace")) + value((None, {"f": MALICIOUS})) + op.build(), "in the slots of an object"),
        "SETSTATE": (glob("torch.nn.modules.module", "Module") + b")\x81" + value({"__setstate__": MALICIOUS}) + op.build(), ""),
        "COPYREG": (call(glob("copyreg", "_reconstructor"), glob("subprocess", "Popen"), glob("builtins", "object"), None), ""),
        "EXTENSION": (call(glob("copyreg", "add_extension"), "posix", "system", 5), "fills the cache that EXT1 reads"),
        "DICT_KEY": (value({"a": op.mapping([(MALICIOUS, 1)])}), "as a key"),
        "SET_ITEM": (op.empty_set() + op.mark() + MALICIOUS + op.additems(), "in a set"),
        "POPPED": (MALICIOUS + op.pop() + value({"w": 1}), (
            "called, then thrown away: not in the result"
        )),
        "POP_MARK": (op.mark() + MALICIOUS + op.pop_mark() + value({"w": 1}), ""),
        "MEMO_ONLY": (MALICIOUS + put(7) + op.pop() + value({"w": 1}), "in the memo only"),
        "OVERWRITTEN": (value({"w": MALICIOUS, "v": 1}) + text("w") + value(1) + op.setitem(), "hidden by a second value of the key"),
        "UNUSED": (SYSTEM + op.pop() + value({"w": 1}), (
            "imported, not called: the import itself runs code"
        )),
        "THIS": (glob("this", "s"), "an import that prints"),
        "MAIN": (call(glob("__main__", "Evil"), COMMAND), "a class of the training script"),
        "LOOKALIKE": (call(glob("torсh._utils", "_rebuild_tensor_v2"), COMMAND), "a Cyrillic с in torch"),
        "LOOKALIKE_DOT": (call(glob("torch._utils.", "_rebuild_tensor_v2"), COMMAND), ""),
        "ALLOWED_PREFIX": (call(glob("torchx", "run"), COMMAND), "startswith('torch') is no test"),
        "RESIZE": (call(glob("torch._utils", "_flatten_dense_tensors"), COMMAND), "torch._utils is not benign as a whole"),
    }  # fmt: skip
    for name, (program, why) in ways.items():
        protocol = (
            4
            if {b"\x93", b"\x92", b"\x8f"}
            & {program[i : i + 1] for i in range(len(program))}
            else 2
        )
        yield Case(
            f"pickle/mal_{name}.pt",
            _holding(program, protocol=protocol),
            "note",
            "",
            why,
        )
    yield Case(
        "pickle/mal_EVAL_protocol0.pt",
        torch_zip(f"c__builtin__\neval\n(V{PYTHON}\ntR.".encode(), {}),
        "note",
    )
    yield Case("pickle/mal_beside_tensor.pt", EVIL, "note")
    yield Case(
        "pickle/mal_second_pickle.pt",
        torch_zip(W + pickled(MALICIOUS)),
        "note",
        why="bytes after STOP",
    )
    yield Case(
        "pickle/mal_after_stop_raw.pt",
        torch_zip(W + b"\xff" * 16),
        "note",
        why="bytes after STOP",
    )
    yield Case(
        "pickle/mal_then_broken.pt",
        _holding(MALICIOUS + b"\xff\xff"),
        "error",
        "posix.system",
        "it runs before the machine stops (nullifAI)",
    )
    yield Case(
        "pickle/mal_then_cut.pt",
        torch_zip(pickled(MALICIOUS)[:-1], {}),
        "error",
        "posix.system",
        "no STOP",
    )
    yield Case("pickle/mal_no_proto.pt", torch_zip(MALICIOUS + b".", {}), "note")
    yield Case(
        "pickle/mal_nested_zip.pt",
        _holding({"buffer": op.binary(EVIL)}, protocol=3),
        "any",
        why="a checkpoint in a bytes value",
    )
    yield Case(
        "pickle/mal_nested_io.pt",
        _holding(call(glob("_io", "BytesIO"), op.binary(EVIL)), protocol=3),
        "any",
    )
    yield Case(
        "pickle/mal_load_from_bytes.pt",
        _holding(
            call(
                glob("torch.storage", "_load_from_bytes"),
                op.binary(op.legacy(pickled(MALICIOUS), ())),
            ),
            protocol=3,
        ),
        "note",
        why="a legacy checkpoint inside the pickle, loaded with weights_only=False",
    )
    yield Case(
        "pickle/mal_nested_30.pt",
        _nested(30),
        "any",
        why="30 checkpoints in each other",
    )
    yield Case(
        "pickle/mal_numpy_object.pt",
        _holding(_object_array()),
        "note",
        why="an object array holds a pickle's values",
    )
    yield Case(
        "pickle/mal_in_size.pt",
        torch_zip(tensor_pickle(MALICIOUS)),
        "error",
        "",
        "a call where the size belongs",
    )
    yield Case(
        "pickle/mal_in_hooks.pt",
        torch_zip(
            pickled({"w": rebuilt(storage_id(), (2, 3), (3, 1), 0, False, MALICIOUS)})
        ),
        "note",
        "",
        "in backward_hooks",
    )
    yield Case(
        "pickle/mal_in_requires_grad.pt",
        torch_zip(
            pickled(
                {
                    "w": rebuilt(
                        storage_id(), (2, 3), (3, 1), 0, MALICIOUS, op.ordered_dict()
                    )
                }
            )
        ),
        "any",
    )
    yield Case("pickle/mal_in_key.pt", torch_zip(tensor_pickle(key=MALICIOUS)), "error")
    yield Case(
        "pickle/mal_as_location.pt",
        torch_zip(tensor_pickle(location=MALICIOUS)),
        "error",
    )
    yield Case(
        "pickle/mal_as_class.pt",
        torch_zip(tensor_pickle(cls=SYSTEM)),
        "error",
        "",
        "a function where the storage class belongs",
    )
    yield Case(
        "pickle/mal_from_type_v2.pt",
        _holding(
            call(
                glob("torch._tensor", "_rebuild_from_type_v2"),
                SYSTEM,
                glob("torch", "Tensor"),
                (COMMAND,),
                None,
            )
        ),
        "note",
        "",
        "func(*args) by a function that torch trusts",
    )
    yield Case(
        "pickle/mal_parameter_state.pt",
        torch_zip(
            pickled(
                {
                    "w": call(
                        glob("torch._utils", "_rebuild_parameter_with_state"),
                        tensor(),
                        True,
                        op.ordered_dict(),
                        {"x": MALICIOUS},
                    )
                }
            )
        ),
        "note",
    )
    yield Case(
        "pickle/mal_defaultdict.pt",
        _holding(call(glob("collections", "defaultdict"), SYSTEM)),
        "note",
        "",
        "runs when a missing key is asked for",
    )
    yield Case(
        "pickle/mal_ordered_dict_state.pt",
        _holding(op.ordered_dict() + value({"items": SYSTEM}) + op.build()),
        "note",
        "",
        "shadows a method of the dict by an attribute",
    )
    yield Case(
        "pickle/mal_persid_object.pt", _holding(MALICIOUS + op.binpersid()), "error"
    )
    yield Case(
        "pickle/mal_module_pid.pt",
        _holding(
            value(("module", glob("__main__", "Net"), "/home/me/net.py", PYTHON))
            + op.binpersid()
        ),
        "any",
        "",
        "source code of a class: text, never compiled",
    )


def text8_global(module: str, name: str) -> bytes:
    """STACK_GLOBAL over two BINUNICODE8."""
    return op.text8(module.encode()) + op.text8(name.encode()) + b"\x93"


def _object_array() -> bytes:
    dtype = call(glob("numpy", "dtype"), "O8", False, True)
    array = call(
        glob("numpy.core.multiarray", "_reconstruct"),
        glob("numpy", "ndarray"),
        (0,),
        op.py2(b"b"),
    )
    return array + value((1, (1,), dtype, False, [MALICIOUS])) + op.build()


def _nested(depth: int) -> bytes:
    data = EVIL
    for _ in range(depth):
        data = _holding(
            {"inner": call(glob("_io", "BytesIO"), op.binary(data))}, protocol=3
        )
    return data


def _opcodes() -> Iterator[Case]:
    """Programs that no pickler writes."""
    yield Case("pickle/empty.pt", torch_zip(b"", {}), "error")
    yield Case("pickle/only_stop.pt", torch_zip(b".", {}), "error", "", "empty stack")
    yield Case(
        "pickle/no_stop.pt", torch_zip(b"\x80\x02}", {}), "error", "unexpected end"
    )
    yield Case(
        "pickle/two_values.pt",
        _holding(1, 2),
        "any",
        "",
        "one value is left under the result",
    )
    yield Case("pickle/open_mark.pt", _holding(b"(", 1), "error", "mark")
    yield Case("pickle/stop_on_mark.pt", _holding(b"("), "error")
    yield Case("pickle/unknown_opcode.pt", _holding(b"\xff"), "error", "opcode")
    yield Case("pickle/proto_6.pt", torch_zip(b"\x80\x06N.", {}), "error", "protocol")
    yield Case("pickle/proto_255.pt", torch_zip(b"\x80\xffN.", {}), "error", "protocol")
    yield Case("pickle/proto_cut.pt", torch_zip(b"\x80", {}), "error")
    yield Case(
        "pickle/ext1.pt",
        _holding(op.ext1(5)),
        "error",
        "",
        "bypasses find_class when the copyreg cache is warm",
    )
    yield Case("pickle/ext2.pt", _holding(op.ext2(500)), "error")
    yield Case("pickle/ext4.pt", _holding(op.ext4(500000)), "error")
    yield Case("pickle/ext4_negative.pt", _holding(op.ext4(-1)), "error")
    yield Case("pickle/ext_called.pt", _holding(call(op.ext1(5), COMMAND)), "error")
    yield Case(
        "pickle/next_buffer.pt",
        _holding(op.next_buffer(), protocol=5),
        "error",
        "",
        "out-of-band buffers are not in the file",
    )
    yield Case(
        "pickle/readonly_buffer.pt",
        _holding(op.bytearray8(b"abc") + op.readonly_buffer(), protocol=5),
        "error",
    )
    yield Case(
        "pickle/memo_bomb_2e26.pt",
        torch_zip(b"Nr\0\0\0\x04.", {}),
        "error",
        "memo slot",
        "the C machine allocates 1 GB for the slot",
    )
    yield Case(
        "pickle/memo_bomb_max.pt",
        torch_zip(b"Nr\xff\xff\xff\xff.", {}),
        "error",
        "memo slot",
        "the C machine allocates 64 GB for the slot",
    )
    yield Case(
        "pickle/memo_bomb_text.pt",
        torch_zip(b"Np99999999999999999999\n.", {}),
        "error",
        "memo slot",
        "PUT with a slot of 20 digits",
    )
    yield Case("pickle/memo_negative.pt", torch_zip(b"Np-1\n.", {}), "any")
    yield Case(
        "pickle/memo_digits.pt", torch_zip(b"Np" + b"9" * 10000 + b"\n.", {}), "error"
    )
    yield Case("pickle/memo_missing.pt", torch_zip(b"h\x05.", {}), "error", "memo")
    yield Case(
        "pickle/memo_missing_long.pt",
        torch_zip(b"j\xff\xff\xff\xff.", {}),
        "error",
        "memo",
    )
    yield Case("pickle/memo_missing_text.pt", torch_zip(b"gabc\n.", {}), "error")
    yield Case("pickle/put_on_nothing.pt", torch_zip(b"q\0N.", {}), "error")
    yield Case(
        "pickle/memoize_mark.pt",
        torch_zip(b"\x80\x04(\x94l.", {}),
        "error",
        "",
        "no value above the mark",
    )
    for name, opcode in {
        "REDUCE": b"R", "BUILD": b"b", "NEWOBJ": b"\x81", "NEWOBJ_EX": b"\x92", "OBJ": b"(o", "APPEND": b"a", "APPENDS": b"e",
        "SETITEM": b"s", "SETITEMS": b"u", "ADDITEMS": b"\x90", "TUPLE": b"t", "TUPLE1": b"\x85", "TUPLE3": b"\x87", "LIST": b"l",
        "DICT": b"d", "FROZENSET": b"\x91", "POP": b"0", "POP_MARK": b"1", "DUP": b"2", "BINPERSID": b"Q", "STACK_GLOBAL": b"\x93",
        "MEMOIZE": b"\x94", "INST": b"ia\nb\n",
    }.items():  # fmt: skip
        yield Case(
            f"pickle/underflow_{name}.pt",
            torch_zip(b"\x80\x04" + opcode + b".", {}),
            "error",
            "",
            "takes what is not there",
        )
        legal = name in {
            "TUPLE",
            "LIST",
            "DICT",
            "FROZENSET",
            "POP",
            "POP_MARK",
            "INST",
        }
        yield Case(
            f"pickle/under_mark_{name}.pt",
            torch_zip(b"\x80\x04NN(" + opcode + b".", {}),
            "any" if legal else "error",
            "",
            "uses the mark itself" if legal else "takes what is below a mark",
        )
    lenient = {
        "build_dict",
        "setitem_list",
        "additems_list",
        "persid_text",
        "newobj_ex_keys",
        "stack_global_bytes",
    }
    for name, program in {
        "reduce_int": value(5) + value(()) + op.reduce(),
        "reduce_text": value("posix.system") + value((COMMAND,)) + op.reduce(),
        "reduce_list": SYSTEM + value([COMMAND]) + op.reduce(),
        "reduce_args_call": SYSTEM
        + call(glob("builtins", "tuple"), [COMMAND])
        + op.reduce(),
        "newobj_text": value("subprocess.Popen") + value(()) + op.newobj(),
        "newobj_list": glob("subprocess", "Popen") + value([]) + op.newobj(),
        "newobj_ex_kwargs": glob("subprocess", "Popen")
        + value(())
        + value(5)
        + op.newobj_ex(),
        "newobj_ex_keys": glob("subprocess", "Popen")
        + value(())
        + op.mapping([(5, 5)])
        + op.newobj_ex(),
        "obj_text": op.mark() + value("a") + op.obj(),
        "build_int": value(5) + value({}) + op.build(),
        "build_global": glob("torch", "Tensor")
        + value({"__init__": SYSTEM})
        + op.build(),
        "build_dict": value({}) + value({"a": 1}) + op.build(),
        "setitem_tuple": value(()) + value(1) + value(2) + op.setitem(),
        "setitem_list": value([1]) + value(0) + value(2) + op.setitem(),
        "setitem_global": glob("os", "environ")
        + value("PATH")
        + value("/tmp")
        + op.setitem(),
        "setitems_odd": value({}) + op.mark() + value(1) + op.setitems(),
        "dict_odd": op.mark() + value(1) + op.dict_(),
        "append_tuple": value(()) + value(1) + op.append(),
        "append_int": value(5) + value(1) + op.append(),
        "append_dict": value({}) + value(1) + op.append(),
        "append_global": glob("sys", "path") + value("/tmp") + op.append(),
        "appends_text": value("a") + op.mark() + value(1) + op.appends(),
        "additems_list": value([]) + op.mark() + value(1) + op.additems(),
        "stack_global_int": value(5) + value("a") + b"\x93",
        "stack_global_bytes": op.short_binary(b"posix")
        + op.short_binary(b"system")
        + b"\x93",
        "persid_text": op.line("P", "('storage',)"),
    }.items():
        verdict: Expect = "any" if name in lenient else "error"
        yield Case(
            f"pickle/type_{name}.pt",
            _holding(program, protocol=5),
            verdict,
            "",
            "an operand of the wrong kind",
        )


def _claims() -> Iterator[Case]:
    """Lengths that are not there: an allocation before the check is the bug."""
    for name, program in {
        "binunicode": op.text(b"", 2**32 - 1),
        "binunicode8": op.text8(b"", 2**40),
        "binunicode8_max": op.text8(b"", 2**64 - 1),
        "binbytes": op.binary(b"", 2**32 - 1),
        "binbytes8": op.binary8(b"", 2**40),
        "binbytes8_sign": op.binary8(b"", 2**63),
        "bytearray8": op.bytearray8(b"", 2**40),
        "long1": b"\x8a\xff\x01",
        "long4": op.long4(b"", 2**31 - 1),
        "long4_negative": op.long4(b"", -1),
        "binstring": op.py2_long(b"", 2**31 - 1),
        "binstring_negative": op.py2_long(b"", -1),
        "short_binunicode": b"\x8c\xff",
        "short_binbytes": b"C\xff",
        "short_binstring": b"U\xff",
        "binint_cut": b"J\x01",
        "binfloat_cut": b"G\x01",
        "binput_cut": b"Nr\x01",
        "off_by_one": op.text(b"abc", 5),
    }.items():
        data = (
            (op.proto(5) + program + op.stop())
            if name != "off_by_one"
            else op.proto() + program + op.stop()
        )
        yield Case(
            f"pickle/claim_{name}.pt",
            torch_zip(data, {}),
            "error",
            "negative" if "string_n" in name else "unexpected end",
        )
    yield Case(
        "pickle/claim_frame.pt",
        torch_zip(op.proto(4) + op.frame(2**63) + b"N.", {}),
        "any",
        "",
        "a frame longer than the file",
    )
    yield Case(
        "pickle/claim_frame_cut.pt", torch_zip(op.proto(4) + b"\x95\x01", {}), "error"
    )
    for name, line in {
        "int_text": b"Iabc\n",
        "int_empty": b"I\n",
        "int_underscore": b"I1_000\n",
        "int_spaces": b"I 5 \n",
        "int_hex": b"I0x10\n",
        "int_arabic": "I٣\n".encode(),
        "int_digits": b"I" + b"9" * 5000 + b"\n",
        "long_digits": b"L" + b"9" * 5000 + b"L\n",
        "long_digits_900k": b"L" + b"9" * 900_000 + b"L\n",
        "long_text": b"LabcL\n",
        "float_text": b"Fabc\n",
        "float_long": b"F" + b"1" * 100_000 + b"\n",
        "float_nul": b"F1\x002\n",
        "string_bare": b"Sabc\n",
        "string_half": b"S'abc\n",
        "string_escape": b"S'\\x'\n",
        "unicode_escape": b"V\\ud8\n",
        "unicode_long_escape": b"V\\U99999999\n",
        "no_newline": b"Vabc",
        "line_long": b"V" + b"a" * 200_000 + b"\n",
        "global_long": b"c" + b"a" * 100_000 + b"\nb\n",
        "global_one_line": b"cposix\n",
        "global_empty": b"c\n\n",
        "global_not_utf8": b"c\xff\xfe\n\xff\n",
        "text_not_utf8": text(b"\xff\xfe"),
        "text_cut_utf8": text(b"\xe2\x82"),
        "get_spaces": b"Np0\n0g 0\n",
    }.items():  # fmt: skip
        lenient = {"int_underscore", "int_spaces", "int_arabic", "long_digits", "line_long", "global_empty", "string_escape",
                   "unicode_escape", "unicode_long_escape", "text_not_utf8", "text_cut_utf8", "get_spaces", "global_not_utf8"}  # fmt: skip
        yield Case(
            f"pickle/line_{name}.pt",
            torch_zip(op.proto() + line + b".", {}),
            "any" if name in lenient else "error",
        )
    yield Case(
        "pickle/line_float_nan.pt", torch_zip(op.proto() + b"Fnan\n.", {}), "any"
    )
    yield Case(
        "pickle/line_float_huge.pt", torch_zip(op.proto() + b"F1e999\n.", {}), "any"
    )


def _exhaustion() -> Iterator[Case]:
    """Small programs that cost much: depth, doubling, collisions, budgets."""
    deep = 200_000
    yield Case(
        "pickle/deep_list.pt",
        torch_zip(b"]" * 300_000 + b"a" * 299_999 + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_list_marks.pt",
        torch_zip(b"(" * deep + b"l" * deep + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_dict.pt",
        torch_zip(b"}K\0" * deep + b"N" + b"s" * deep + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_tuple_65.pt",
        torch_zip(b")" + b"\x85" * 65 + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_tuple_60.pt", torch_zip(b")" + b"\x85" * 60 + b".", {}), "ok"
    )
    yield Case(
        "pickle/deep_tuple_1000.pt",
        torch_zip(b")" + b"\x85" * 1000 + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_tuple_900k.pt",
        torch_zip(b")" + b"\x85" * 900_000 + b".", {}),
        "error",
        "deep",
        "SIGSEGV while it is freed (gh-149146)",
    )
    yield Case(
        "pickle/deep_tuple_key.pt",
        torch_zip(b"}N" + b"\x85" * deep + b"Ns.", {}),
        "error",
        "deep",
        "hash() of it overflows the C stack",
    )
    yield Case(
        "pickle/deep_tuple_list.pt",
        torch_zip(b"]" + b"\x85]" * 100 + b"\x86" * 100 + b".", {}),
        "error",
        "",
        "tuples and lists in turns",
    )
    yield Case(
        "pickle/deep_alternating.pt",
        torch_zip(b"N" + b"\x85q\x00]h\x00a" * 50_000 + b".", {}),
        "error",
        "",
        "a list between the tuples does not reset the depth",
    )
    yield Case(
        "pickle/deep_bytes.pt",
        torch_zip(
            b"\x80\x02"
            + glob("builtins", "bytes") * deep
            + op.binary(b"x")
            + b"\x85R" * deep
            + b".",
            {},
        ),
        "any",
        "",
        (
            "bytes(bytes(…)): what the bytes are is asked of each call, and of the "
            "call inside of it"
        ),
    )
    yield Case(
        "pickle/deep_set.pt",
        torch_zip(
            b"\x80\x02"
            + glob("builtins", "set") * deep
            + b"]"
            + b"\x85R" * deep
            + b".",
            {},
        ),
        "any",
        "",
        "set(set(…))",
    )
    yield Case(
        "pickle/deep_call.pt",
        torch_zip(glob("a", "b") + b")R" * deep + b".", {}),
        "any",
        "",
        "the result of a call is called",
    )
    yield Case(
        "pickle/deep_call_argument.pt",
        torch_zip(b"N" + b"\x85q\x00ca\nb\nh\x00R" * 20_000 + b".", {}),
        "any",
        "",
    )
    yield Case(
        "pickle/deep_state.pt",
        torch_zip(b"ca\nb\n)\x81" * 20_000 + b"N" + b"b" * 20_000 + b".", {}),
        "error",
        "deep",
    )
    yield Case(
        "pickle/deep_parameter.pt",
        torch_zip(pickled({"w": _wrapped(5_000)})),
        "any",
        "",
        "Parameter(Parameter(…))",
    )
    yield Case(
        "pickle/deep_from_type.pt",
        torch_zip(pickled({"w": _typed(60)})),
        "any",
        "",
        "rebuild by a rebuild by a rebuild",
    )
    yield Case(
        "pickle/deep_names.pt",
        torch_zip(pickled({"w": _chain(150)})),
        "any",
        "",
        "a tensor 150 dicts below the root",
    )
    yield Case(
        "pickle/deep_names_400.pt",
        torch_zip(pickled({"w": _chain(400)})),
        "error",
        "deep",
    )
    doubling = b"".join(
        b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(48)
    )
    yield Case(
        "pickle/laughs_key.pt",
        _holding(b"})" + doubling + b"Ns"),
        "any",
        "",
        "2**48 values to hash",
    )
    yield Case(
        "pickle/laughs_tuple.pt",
        _holding(b")" + doubling),
        "any",
        "",
        "2**48 values to walk or to print",
    )
    yield Case(
        "pickle/laughs_list.pt",
        _holding(_laughs(text("ha"))),
        "any",
        "",
        "billion laughs",
    )
    yield Case(
        "pickle/laughs_tensors.pt",
        torch_zip(pickled(_laughs(tensor(), wide=False))),
        "error",
        "limit",
        "2**40 paths to one tensor",
    )
    yield Case(
        "pickle/laughs_eq.pt",
        _holding({"a": _laughs(value(1)), "b": _laughs(value(1))}),
        "any",
        "",
        "== of the two takes 2**40 steps",
    )
    yield Case(
        "pickle/laughs_str.pt",
        _later(
            "laughs_str.pt",
            lambda: _holding(b"](", text("a" * 10**6), put(0), b"h\0" * 50_000, b"e"),
        ),
        "ok",
        "",
        "50 GB when printed",
    )
    yield Case(
        "pickle/laughs_name.pt",
        _later(
            "laughs_name.pt",
            lambda: torch_zip(
                pickled(
                    {
                        "a" * 10**6: {
                            "b" * 10**6: [tensor(), b"q\x01", *[b"h\x01"] * 2000]
                        }
                    }
                )
            ),
        ),
        "any",
        "",
        "2,000 names of 2 MB",
    )
    yield Case(
        "pickle/hash_collide_int.pt",
        _holding(op.mapping((i * (2**61 - 1) + 5, None) for i in range(60_000))),
        "any",
        "",
        "one hash for all keys: quadratic in a real dict",
    )
    yield Case(
        "pickle/hash_collide_set.pt",
        _holding(
            op.empty_set()
            + op.mark()
            + b"".join(op.integer(i * (2**61 - 1) + 5) for i in range(60_000))
            + op.additems(),
            protocol=4,
        ),
        "any",
    )
    yield Case(
        "pickle/hash_collide_floats.pt",
        _holding(
            op.mapping((2.0 ** (61 * (i % 16)) * (1 + i), None) for i in range(20_000))
        ),
        "any",
    )
    yield Case(
        "pickle/globals_200k.pt",
        _later(
            "globals_200k.pt",
            lambda: _holding(
                b"".join(glob("m", f"n{i}") + b"0" for i in range(200_000)) + b"N"
            ),
        ),
        "error",
        "limit",
    )
    yield Case(
        "pickle/globals_9k.pt",
        _holding(b"".join(glob("m", f"n{i}") + b"0" for i in range(9_000)) + b"N"),
        "note",
        "",
        "9,000 imports: not 9,000 lines",
    )
    yield Case(
        "pickle/marks_5m.pt",
        _later("marks_5m.pt", lambda: torch_zip(b"(" * 5_000_000, {})),
        "error",
    )
    yield Case(
        "pickle/values_6m.pt",
        _later(
            "values_6m.pt",
            lambda: torch_zip(
                b"(" + b"]" * 6_000_000 + b"l.",
                {},
                swap={"data.pkl": {"deflate": True}},
            ),
        ),
        "error",
        "limit",
    )
    programs: dict[str, tuple[bytes, str, str]] = {
        "dicts_2900k": (b"(" + b"}" * 2_900_000 + b"l.", "error", "limit"),
        "calls_2900k": (b"cm\nf\nq\0](h\0" + b")Rh\0" * 2_900_000 + b"0e.", "error", "limit"),
        "items_1400k": (glob("collections", "OrderedDict") + b"q\0](" + b"h\0)RK\1K\2s" * 1_400_000 + b"e.", "error", "limit"),
        "rows_900k": (b"(" + b"}q\0K\1K\2s" * 450_000 + b"l.", "any", ""),
        "builds_200k": (glob("argparse", "Namespace") + b")\x81" + b"}b" * 200_000 + b".", "any", ""),
    }  # fmt: skip
    for name, (program, expect, says) in programs.items():
        yield Case(
            f"pickle/{name}.pt",
            _later(
                f"{name}.pt",
                lambda program=program: torch_zip(
                    b"\x80\2" + program, {}, swap={"data.pkl": {"deflate": True}}
                ),
            ),
            expect,
            says,
        )
    yield from _budgets()
    yield Case(
        "pickle/dup_6m.pt",
        _later(
            "dup_6m.pt",
            lambda: torch_zip(
                b"(]" + b"2" * 6_000_000 + b"l.",
                {},
                swap={"data.pkl": {"deflate": True}},
            ),
        ),
        "any",
        "",
        "six million uses of one list",
    )
    yield Case(
        "pickle/memo_copies.pt",
        _holding(
            b"](" + b"]" * 1000 + b"".join(b"\x94" for _ in range(10)) + b"e",
            protocol=4,
        ),
        "ok",
    )
    yield Case(
        "pickle/long_chain_tuple.pt",
        _later("long_chain_tuple.pt", lambda: _holding(b"(" + b"K\1" * 400_000 + b"t")),
        "ok",
        "",
        "one tuple of 400,000",
    )
    yield Case(
        "pickle/tuple_of_tuple_copies.pt",
        _holding(b"(" + b"N" * 30_000 + b"tq\x00" + b"(" + b"h\x00" * 30_000 + b"t"),
        "any",
        "",
        "900 million leaves by 60,000 opcodes",
    )


def _budgets() -> Iterator[Case]:
    """Programs that take most for their bytes: memory for every file without tensors is
    below one bound.
    """
    mib = 2**20
    emoji = text("a" * mib + "\U0001f600")
    nested = op.legacy(pickled(b"(" + b"}" * 100_000 + b"l"), storages=())
    load = b"ctorch.storage\n_load_from_bytes\n"
    programs: dict[str, tuple[bytes | Callable[[], bytes], bool, Expect, str]] = {
        "put_collide": (lambda: b"N" + b"".join(b"p%d\n" % (i * (2**61 - 1)) for i in range(60_000)), False, "error", "memo slot"),
        "slots_1m": (lambda: b"N" + b"".join(b"r" + struct.pack("<I", i) for i in range(1_800_000)), False, "error", "memory"),
        "ints_1m": (b"(" + b"M\0\2" * (4 * mib // 3) + b"l", True, "any", ""),
        "ints_7m": (b"(" + b"M\0\2" * 7_000_000 + b"l", False, "error", "memory"),
        "inflated": (b"(" + b"M\0\2" * 7_000_000 + b"l", True, "error", "inflate"),
        "dicts": (b"(" + b"}" * 4 * mib + b"l", True, "error", "memory"),
        "named": (b"(" + b"}X\1\0\0\0aNs" * (4 * mib // 9) + b"l", True, "error", "memory"),
        "rows": (b"(" + b"]" * 1_000_000 + b"l", True, "any", ""),
        "paths": (b"(" + b"}q\0" * 250_000 + b"l", True, "error", "memory"),
        "emoji": (b"(" + emoji * 60 + b"l", False, "error", "memory"),
        "names": (b"}" + text("a" * 100_000 + "\U0001f600") + b"](" + (b"}" + text("k") + b"Ns") * 2_000 + b"es", True, "error", "memory"),
        "nested_same": (load + b"q\0" + b"0" + op.binary(nested) + b"q\1" + b"0](" + b"h\0h\1\x85R" * 1_000 + b"e", True, "error", ""),
        "nested_many": (b"](" + (load + op.binary(nested) + b"\x85R") * 40 + b"e", False, "error", "memory"),
        "references": (b"}" + text("t") + tensor() + b"sq\0" + b"0](" + b"h\0" * 300_000 + b"e", True, "error", "memory"),
    }  # fmt: skip
    for name, (program, is_deflated, expect, says) in programs.items():
        yield Case(
            f"pickle/budget_{name}.pt",
            _later(
                f"budget_{name}.pt",
                lambda program=program, is_deflated=is_deflated: torch_zip(
                    b"\x80\2"
                    + (program if isinstance(program, bytes) else program())
                    + b".",
                    {"0": op.SIX},
                    swap={"data.pkl": {"deflate": True}} if is_deflated else None,
                ),
            ),
            expect,
            says,
        )
    for name, lines in (
        ("code_text", b"class A(Module):\n  __parameters__ = []\n" * 2_000_000),
        (
            "code_names",
            b"class A(Module):\n  __parameters__ = [" + b'"a", ' * 2_000_000 + b"]\n",
        ),
    ):
        yield Case(
            f"pickle/budget_{name}.pt",
            _later(
                f"budget_{name}.pt",
                lambda lines=lines: torch_zip(
                    pickled(b"c__torch__\nM\n)\x81}b"),
                    {},
                    more=[
                        Record("archive/constants.pkl", pickled(b")")),
                        Record("archive/code/__torch__/m.py", lines, deflate=True),
                    ],
                ),
            ),
            "error",
            "inflate" if name == "code_text" else "memory",
        )
    headers = {
        "lists": lambda: b'{"a":[' + b"[]," * 4_000_000 + b"[]]}",
        "metadata": lambda: (
            b'{"__metadata__":{'
            + b",".join(b'"%d":""' % i for i in range(1_500_000))
            + b"}}"
        ),
        "emoji": lambda: (
            b'{"__metadata__":{"a":"'
            + b"a" * 60_000_000
            + "\U0001f600".encode()
            + b'"}}'
        ),
    }
    for name, make in headers.items():
        yield Case(
            f"safetensors/budget_{name}.safetensors",
            _later(
                f"budget_{name}.safetensors",
                lambda make=make: struct.pack("<Q", len(make())) + make(),
            ),
            "error",
            "memory",
        )
    indexes = {
        "lists": lambda: b'{"weight_map":[' + b"[]," * 4_000_000 + b"[]]}",
        "names": lambda: (
            b'{"weight_map":{'
            + b",".join(b'"%x":"a"' % i for i in range(1_500_000))
            + b"}}"
        ),
        "files": lambda: (
            b'{"weight_map":{'
            + b",".join(b'"%x":"%x"' % (i, i) for i in range(20_000))
            + b"}}"
        ),
    }
    for name, make in indexes.items():
        yield Case(
            f"index/budget_{name}/model.safetensors.index.json",
            _later("model.safetensors.index.json", make),
            "error",
            "limits=ckpt.limits(",
        )


def _wrapped(times: int) -> bytes:
    function = glob("torch._utils", "_rebuild_parameter")
    return (
        (function + op.mark()) * times
        + tensor()
        + (b"\x89N" + op.tuple_() + op.reduce()) * times
    )


def _typed(times: int) -> bytes:
    """_rebuild_from_type_v2(_rebuild_from_type_v2, type, (_rebuild_from_type_v2, type,
    (…)))
    """
    function, kind = (
        glob("torch._tensor", "_rebuild_from_type_v2"),
        glob("torch", "Tensor"),
    )
    arguments = value(
        (
            glob("torch._utils", "_rebuild_tensor_v2"),
            kind,
            (storage_id(), 0, (6,), (1,), False, op.ordered_dict()),
            None,
        )
    )
    for _ in range(times):
        arguments = value((function, kind, arguments, None))
    return function + arguments + op.reduce()


def _chain(depth: int) -> bytes:
    return (b"}" + text("a")) * depth + tensor() + b"s" * depth


def _laughs(leaf: bytes, wide: bool = True) -> bytes:
    """Forty dicts, each twice in the next; `leaf` is at the bottom. `wide` adds its
    text beside them.
    """
    program = op.empty_dict() + text("leaf") + leaf + op.setitem()
    for slot in range(100, 140):
        program += (
            put(slot)
            + op.pop()
            + op.empty_dict()
            + op.mark()
            + text("a")
            + op.get(slot)
            + text("b")
            + op.get(slot)
        )
        program += (text("c") + value("ha") if wide else b"") + op.setitems()
    return program


def _values() -> Iterator[Case]:
    """Legal values that break code which thinks of dicts with text keys."""
    mixed = [
        (1, "int"),
        (1.0, "float"),
        (True, "bool"),
        (float("nan"), "nan"),
        (None, "none"),
        ((), "tuple"),
        ("1", "text"),
        (op.py2(b"a"), "py2"),
    ]
    yield Case(
        "pickle/keys_mixed.pt",
        _holding(op.mapping(mixed)),
        "any",
        "",
        "never sorted(); all are kept",
    )
    yield Case(
        "pickle/keys_unhashable.pt",
        _holding(op.mapping([([], 1), (op.empty_dict(), 2)])),
        "any",
        "",
        "a list as key: Python refuses",
    )
    yield Case(
        "pickle/keys_same.pt",
        torch_zip(pickled(op.mapping([("w", tensor()), ("w", tensor((6,), (1,)))]))),
        "note",
        "",
        "Python keeps the last",
    )
    yield Case(
        "pickle/keys_same_hidden.pt",
        torch_zip(pickled(op.mapping([("w", MALICIOUS), ("w", tensor())]))),
        "note",
        "",
        "the first value is called, then lost",
    )
    yield Case(
        "pickle/keys_same_encoded.pt",
        torch_zip(
            pickled(
                op.mapping(
                    [
                        (call(glob("_codecs", "encode"), "w", "latin1"), n)
                        for n in (1, tensor())
                    ]
                )
            )
        ),
        "note",
        "",
        "bytes as protocol 2 writes them",
    )
    yield Case(
        "pickle/keys_equal.pt",
        torch_zip(pickled(op.mapping([(1, "a"), (True, "b")]))),
        "note",
        "",
        "1 and True are one key to Python",
    )
    yield Case(
        "pickle/keys_nan.pt",
        _holding(op.mapping([(float("nan"), i) for i in range(10)])),
        "note",
    )
    yield Case(
        "pickle/key_holds_dict.pt",
        _holding(b"}q\0h\0\x85K\1s"),
        "any",
        "",
        "a dict that is in its own key",
    )
    yield Case(
        "pickle/global_surrogate.pt",
        _holding(text(b"m\xed\xb2\x80"), text(b"x\xed\xb2\x80y"), b"\x93", protocol=4),
        "note",
        "",
        "type() and print() raise UnicodeEncodeError",
    )
    yield Case(
        "pickle/global_escapes.pt",
        _holding(op.stack_global("a\x1b[2J\n", "b\u202e\x9b31m"), protocol=4),
        "note",
        "",
        "a name that redraws the terminal",
    )
    yield Case("pickle/global_spaces.pt", _holding(glob("posix ", " system")), "note")
    yield Case("pickle/global_nul.pt", _holding(glob("posix\0", "system\0")), "note")
    yield Case(
        "pickle/global_markup.pt",
        _holding(op.stack_global("[red]a[/red]", "[/b]"), protocol=4),
        "note",
    )
    yield Case(
        "pickle/global_dunder.pt",
        _holding(
            call(op.stack_global("builtins", "object.__subclasses__"), 1), protocol=4
        ),
        "note",
    )
    yield Case(
        "pickle/py2_bytes_str.pt",
        _holding({"name": op.py2(b"\xff\xfe")}),
        "any",
        "",
        "text of Python 2 that is no UTF-8",
    )
    yield Case(
        "pickle/py2_bytes_key.pt",
        torch_zip(pickled({op.py2(b"w\xff"): tensor()})),
        "any",
    )
    yield Case(
        "pickle/surrogate_value.pt", _holding({"a": text(b"\xed\xa0\x80")}), "ok"
    )
    yield Case("pickle/long_string.pt", _holding({"a": "x" * 900_000}), "ok")
    yield Case("pickle/nul_string.pt", _holding({"a": "x\0y"}), "ok")
    yield Case(
        "pickle/set_of_lists.pt",
        _holding(op.empty_set() + op.mark() + value([1]) + op.additems(), protocol=4),
        "any",
    )
    yield Case(
        "pickle/true_as_int.pt", torch_zip(b"\x80\x02(I01\nI00\nI1\nt.", {}), "ok"
    )


# --------------------------------------------------------------------------------------
# tensor geometry


def _geometry() -> Iterator[Case]:
    """A tensor must lie in its storage, in exact integers, whatever function rebuilds
    it (pytorch #184652 class).
    """
    huge = 10**5000
    shapes: dict[str, tuple[dict[str, Any], Expect, str, str]] = {
        "stride_beyond": ({"stride": (100, 1)}, "error", "", "6 elements, the last at 102"),
        "stride_just_beyond": ({"stride": (4, 1)}, "error", "", "the last at 6, one too far"),
        "stride_negative": ({"stride": (-3, 1)}, "error", "stride", ""),
        "stride_huge": ({"stride": (2**62, 1)}, "error", "", ""),
        "stride_2e63": ({"stride": (2**63, 1)}, "error", "", "does not fit int64"),
        "stride_float": ({"stride": (3.0, 1)}, "error", "stride", ""),
        "stride_bool": ({"stride": (3, True)}, "error", "stride", "bool is an int for Python"),
        "stride_missing": ({"stride": (1,)}, "error", "", "two sizes, one stride"),
        "stride_none": ({"stride": None}, "error", "", ""),
        "stride_text": ({"stride": "31"}, "error", "", "a sequence of two, but text"),
        "size_overflow": ({"size": (2**32, 2**32), "stride": (2**32, 1)}, "error", "", "the product is 2**64: 0 in C"),
        "size_overflow_zero_stride": ({"size": (2**32, 2**32), "stride": (0, 0)}, "error", "", "the same without extent"),
        "size_overflow_63": ({"size": (2**62, 2), "stride": (0, 0)}, "error", "", "2**63 elements"),
        "size_overflow_then_zero": ({"size": (2**62, 2**62, 0), "stride": (1, 1, 1)}, "any", "", "0 elements, if 0 comes in time"),
        "size_negative": ({"size": (-2, 3)}, "error", "size", ""),
        "size_two_negative": ({"size": (-2, -3)}, "error", "size", "the product is 6"),
        "size_float": ({"size": (2.0, 3)}, "error", "size", ""),
        "size_bool": ({"size": (True, 6)}, "error", "size", ""),
        "size_text": ({"size": "23"}, "error", "", ""),
        "size_none": ({"size": None}, "error", "", ""),
        "size_global": ({"size": glob("torch", "Size")}, "error", "", ""),
        "size_list": ({"size": [2, 3], "stride": [3, 1]}, "any", "", "lists instead of tuples"),
        "size_torch_size": ({"size": call(glob("torch", "Size"), (2, 3))}, "any", "", ""),
        "size_nested": ({"size": ((2,), 3)}, "error", "", ""),
        "size_5000_digits": ({"size": (huge, 3)}, "error", "", "str() of it raises"),
        "size_2e63": ({"size": (2**63, 0), "stride": (1, 1)}, "any", "", "beyond int64, yet no element"),
        "offset_negative": ({"offset": -1}, "error", "offset", "Python slices would take it"),
        "offset_one": ({"offset": 1}, "error", "", "one element too far"),
        "offset_huge": ({"offset": 2**62}, "error", "", ""),
        "offset_overflow": ({"offset": 2**63 - 1, "stride": (3, 1)}, "error", "", "wraps in C"),
        "offset_5000_digits": ({"offset": huge}, "error", "", ""),
        "offset_float": ({"offset": 0.0}, "error", "offset", ""),
        "offset_bool": ({"offset": False}, "error", "offset", ""),
        "offset_none": ({"offset": None}, "error", "offset", ""),
        "dims_65": ({"size": (1,) * 65, "stride": (1,) * 65}, "any", "", "numpy stops at 64"),
        "dims_100k": ({"size": (1,) * 100_000, "stride": (1,) * 100_000}, "error", "dimension", ""),
        "expand_4tb": ({"size": (2**40,), "stride": (0,), "numel": 6}, "any", "", (
            "4 TB from 4 bytes: legal, never materialise"
        )),
        "storage_unknown": ({"cls": "FooStorage"}, "error", "foostorage", ""),
        "storage_text": ({"cls": text("FloatStorage")}, "error", "", ""),
        "storage_none": ({"cls": b"N"}, "error", "", ""),
        "storage_base": ({"cls": "_StorageBase"}, "error", "", ""),
        "storage_wrong_module": ({"cls": glob("posix", "FloatStorage")}, "any", "", "torch maps by the name alone"),
        "storage_cuda": ({"cls": glob("torch.cuda", "FloatStorage")}, "ok", "", "as very old files have it"),
        "numel_more": ({"numel": 7}, "error", "", "28 bytes of 24"),
        "numel_less": ({"numel": 5}, "error", "", "the tensor has 6"),
        "numel_huge": ({"numel": 2**62}, "error", "", "2**64 bytes: 0 in C"),
        "numel_2e64": ({"numel": 2**64 + 6}, "error", "", ""),
        "numel_negative": ({"numel": -6}, "error", "", ""),
        "numel_float": ({"numel": 6.0}, "error", "", ""),
        "numel_bool": ({"numel": True}, "error", "", ""),
        "numel_text": ({"numel": "6"}, "error", "", ""),
        "numel_5000_digits": ({"numel": huge}, "error", "", ""),
        "key_traversal": ({"key": "../data.pkl"}, "error", "key", "the pickle itself as weights"),
        "key_absolute": ({"key": "/etc/passwd"}, "error", "key", ""),
        "key_empty": ({"key": ""}, "error", "key", ""),
        "key_slash": ({"key": "0/../0"}, "error", "key", ""),
        "key_nul": ({"key": "0\0"}, "error", "key", ""),
        "key_newline": ({"key": "0\n"}, "error", "key", "`$` of a pattern lets it pass"),
        "key_digit_arabic": ({"key": "٠"}, "error", "key", ""),
        "key_long": ({"key": "0" * 65}, "error", "key", ""),
        "key_int": ({"key": 0}, "any", "", "torch takes it: 'data/%s' % 0"),
        "key_none": ({"key": None}, "error", "", ""),
        "key_other": ({"key": "1"}, "error", "1", "no such record"),
        "location_int": ({"location": 5}, "any", "", "torch with a map_location takes it"),
        "location_none": ({"location": None}, "any", "", ""),
        "location_escapes": ({"location": "cuda:0\x1b[31m\nFAKE"}, "any", "", "the tag is printed"),
        "location_long": ({"location": "c" * 100_000}, "any", "", ""),
        "location_evil": ({"location": "../../tmp/x"}, "any", "", ""),
        "location_py2": ({"location": op.py2(b"cpu")}, "ok", "", "as Python 2 wrote it"),
        "tensor_v1": ({"rebuild": "_rebuild_tensor"}, "ok", "", ""),
        "tensor_v3": ({"rebuild": "_rebuild_tensor_v3", "cls": "UntypedStorage", "numel": 24}, "ok", "", ""),
        "tensor_v3_beyond": ({"rebuild": "_rebuild_tensor_v3", "cls": "UntypedStorage", "numel": 24, "stride": (6, 1)}, "error", "", "numel counts bytes, strides elements"),
        "tensor_v1_beyond": ({"rebuild": "_rebuild_tensor", "stride": (100, 1)}, "error", "", ""),
        "qtensor": ({"rebuild": "_rebuild_qtensor", "cls": "QInt32Storage"}, "ok", "", ""),
        "qtensor_stride": ({"rebuild": "_rebuild_qtensor", "cls": "QInt32Storage", "stride": (2**40, 1)}, "error", "", "not checked by torch (#184652)"),
        "rebuild_unknown": ({"rebuild": "_rebuild_evil"}, "note", "", "an opaque object"),
        "rebuild_wrong_module": ({"rebuild": glob("evil", "_rebuild_tensor_v2")}, "note", "", "the name is known, the module is not"),
    }  # fmt: skip
    for name, (fields, expect, says, why) in shapes.items():
        yield Case(
            f"tensor/{name}.pt", torch_zip(tensor_pickle(**fields)), expect, says, why
        )


def _storages() -> Iterator[Case]:
    """Persistent ids and rebuild calls of the wrong form; storages used in two ways."""

    def two(**fields: Any) -> bytes:
        return torch_zip(pickled({"a": tensor(), "b": tensor(**fields)}))

    def pid(*items: Any) -> bytes:
        return torch_zip(pickled({"w": rebuilt(value(items) + op.binpersid())}))

    floats = glob("torch", "FloatStorage")
    more = (False, op.ordered_dict())
    yield Case("tensor/shared.pt", two(), "ok")
    yield Case(
        "tensor/key_two_classes.pt",
        two(cls="IntStorage"),
        "error",
        "",
        "torch gives both the first dtype",
    )
    yield Case("tensor/key_two_sizes.pt", two(numel=3, size=(3,), stride=(1,)), "error")
    yield Case(
        "tensor/key_two_locations.pt",
        two(location="cuda:0"),
        "any",
        "",
        "the first wins in torch",
    )
    yield Case(
        "tensor/key_class_width.pt",
        two(cls="DoubleStorage", numel=3, size=(3,), stride=(1,)),
        "error",
        "",
        "the same bytes, other type",
    )
    yield Case("tensor/pid_text.pt", pid_of(text("storage")), "error")
    yield Case("tensor/pid_int.pt", pid_of(op.integer(5)), "error")
    yield Case(
        "tensor/pid_list.pt", pid_of(value(["storage", floats, "0", "cpu", 6])), "error"
    )
    yield Case("tensor/pid_empty.pt", pid(), "error")
    yield Case("tensor/pid_short.pt", pid("storage", floats, "0", "cpu"), "error")
    yield Case(
        "tensor/pid_six.pt",
        pid("storage", floats, "0", "cpu", 6, None),
        "any",
        "",
        "the legacy form in a zip: torch raises",
    )
    yield Case("tensor/pid_word.pt", pid("evil", floats, "0", "cpu", 6), "error")
    yield Case(
        "tensor/pid_word_escapes.pt", pid("\x1b[31m\n", floats, "0", "cpu", 6), "error"
    )
    yield Case(
        "tensor/pid_reduce_package.pt",
        pid("reduce_package", SYSTEM, (COMMAND,)),
        "error",
        "",
        "torch.package calls it",
    )
    yield Case(
        "tensor/pid_bare.pt",
        torch_zip(pickled({"s": storage_id()})),
        "any",
        "",
        "a storage that no tensor uses",
    )
    yield Case(
        "tensor/storage_is_tensor.pt",
        torch_zip(pickled({"w": rebuilt(tensor())})),
        "error",
        "",
        "a tensor over a tensor",
    )
    yield Case(
        "tensor/storage_is_text.pt",
        torch_zip(pickled({"w": rebuilt(text("0"))})),
        "error",
    )
    yield Case(
        "tensor/storage_is_none.pt", torch_zip(pickled({"w": rebuilt(b"N")})), "error"
    )
    yield Case(
        "tensor/storage_is_call.pt",
        torch_zip(pickled({"w": rebuilt(MALICIOUS)})),
        "error",
    )
    yield Case(
        "tensor/arguments_none.pt",
        torch_zip(pickled({"w": call(glob("torch._utils", "_rebuild_tensor_v2"))})),
        "error",
    )
    yield Case(
        "tensor/arguments_few.pt",
        torch_zip(
            pickled(
                {"w": call(glob("torch._utils", "_rebuild_tensor_v2"), storage_id(), 0)}
            )
        ),
        "error",
    )
    yield Case(
        "tensor/arguments_many.pt",
        torch_zip(
            pickled({"w": rebuilt(storage_id(), (6,), (1,), 0, *more, None, 1, 2, 3)})
        ),
        "any",
    )
    yield Case(
        "tensor/metadata_evil.pt",
        torch_zip(
            pickled(
                {"w": rebuilt(storage_id(), (6,), (1,), 0, *more, {"conj": MALICIOUS})}
            )
        ),
        "any",
    )
    yield Case(
        "tensor/conj_on_float.pt",
        torch_zip(
            pickled({"w": rebuilt(storage_id(), (6,), (1,), 0, *more, {"conj": True})})
        ),
        "any",
        "",
        "a conjugate of real numbers",
    )
    yield Case(
        "tensor/state_of_tensor.pt",
        torch_zip(pickled({"w": tensor() + value({"x": 1}) + op.build()})),
        "error",
        "changed by a state",
        "BUILD on a tensor",
    )
    yield Case(
        "tensor/emptied.pt",
        torch_zip(pickled({"w": tensor() + value({}) + op.build()})),
        "error",
        "changed by a state",
        (
            "weights_only calls set_() with the keys of the state: it shows a tensor "
            "without elements"
        ),
    )
    yield Case(
        "tensor/another_view.pt",
        torch_zip(
            pickled({"w": tensor() + value((storage_id(), 1, (1,), (1,))) + op.build()})
        ),
        "error",
        "changed by a state",
        "the state is the view that torch shows",
    )
    yield Case(
        "tensor/setitem_on_tensor.pt",
        torch_zip(pickled({"w": tensor() + value(0) + value(1) + op.setitem()})),
        "any",
        "",
        "t[0] = 1 while loading",
    )
    yield Case(
        "tensor/v3_dtype_text.pt",
        torch_zip(pickled({"w": _v3(text("float32"))})),
        "error",
    )
    yield Case(
        "tensor/v3_dtype_unknown.pt",
        torch_zip(pickled({"w": _v3(glob("torch", "float999"))})),
        "error",
    )
    yield Case(
        "tensor/v3_dtype_evil.pt", torch_zip(pickled({"w": _v3(SYSTEM)})), "error"
    )
    yield Case(
        "tensor/v3_dtype_wide.pt",
        torch_zip(pickled({"w": _v3(glob("torch", "float64"))})),
        "error",
        "",
        "24 bytes are 3 doubles, not 6",
    )
    yield Case(
        "tensor/v3_typed_storage.pt",
        torch_zip(
            pickled(
                {
                    "w": rebuilt(
                        storage_id(),
                        (2, 3),
                        (3, 1),
                        0,
                        *more,
                        glob("torch", "float32"),
                        rebuild="_rebuild_tensor_v3",
                    )
                }
            )
        ),
        "any",
    )
    yield Case(
        "tensor/v3_numel_odd.pt",
        torch_zip(
            tensor_pickle(
                (5,), (1,), cls="UntypedStorage", numel=23, rebuild="_rebuild_tensor_v3"
            ),
            {"0": op.SIX[:23]},
        ),
        "any",
        "",
        "23 bytes are no floats",
    )
    yield Case(
        "tensor/v2_untyped.pt",
        torch_zip(tensor_pickle(cls="UntypedStorage", numel=24)),
        "any",
        "",
        "no dtype anywhere",
    )
    yield Case(
        "tensor/qscheme_unknown.pt",
        torch_zip(pickled({"w": _quantized((glob("torch", "per_evil"), 1.0, 0))})),
        "any",
    )
    yield Case(
        "tensor/qparams_none.pt", torch_zip(pickled({"w": _quantized(None)})), "any"
    )
    yield Case(
        "tensor/qparams_axis.pt",
        torch_zip(
            pickled(
                {
                    "w": _quantized(
                        (glob("torch", "per_channel_affine"), tensor(), tensor(), 99)
                    )
                }
            )
        ),
        "any",
    )
    yield Case(
        "tensor/sparse.pt",
        torch_zip(pickled({"w": _sparse_coo((10, 10))}), _SPARSE),
        "ok",
    )
    yield Case(
        "tensor/sparse_indices_outside.pt",
        torch_zip(pickled({"w": _sparse_coo((1, 1))}), _SPARSE),
        "any",
        "",
        "indices are values: inspect reads none",
    )
    yield Case(
        "tensor/sparse_size_negative.pt",
        torch_zip(pickled({"w": _sparse_coo((-10, 10))}), _SPARSE),
        "error",
    )
    yield Case(
        "tensor/sparse_size_huge.pt",
        torch_zip(pickled({"w": _sparse_coo((2**62, 2**62))}), _SPARSE),
        "any",
        "",
        "dense, it is 2**124 elements",
    )
    yield Case(
        "tensor/sparse_layout.pt",
        torch_zip(pickled({"w": _sparse_coo((10, 10), "torch.sparse_evil")}), _SPARSE),
        "any",
    )
    yield Case(
        "tensor/sparse_values_stride.pt",
        torch_zip(pickled({"w": _sparse_coo((10, 10), stride=(100,))}), _SPARSE),
        "error",
        "",
        "the parts are checked like any tensor",
    )
    yield Case(
        "tensor/meta.pt", torch_zip(pickled({"w": _meta((2, 3), (3, 1))}), {}), "any"
    )
    yield Case(
        "tensor/meta_huge.pt",
        torch_zip(pickled({"w": _meta((2**62, 3), (3, 1))}), {}),
        "any",
        "",
        "no bytes, but 2**63 elements",
    )
    yield Case(
        "tensor/meta_negative.pt",
        torch_zip(pickled({"w": _meta((-2, 3), (3, 1))}), {}),
        "error",
    )
    yield Case(
        "tensor/parameter_of_int.pt",
        _holding(
            {
                "w": call(
                    glob("torch._utils", "_rebuild_parameter"),
                    5,
                    True,
                    op.ordered_dict(),
                )
            }
        ),
        "any",
    )
    yield Case(
        "tensor/parameter_of_none.pt",
        _holding({"w": call(glob("torch._utils", "_rebuild_parameter"))}),
        "any",
    )
    yield Case(
        "tensor/device_evil.pt",
        _holding(call(glob("torch", "device"), MALICIOUS)),
        "note",
    )
    yield Case(
        "tensor/device_escapes.pt",
        _holding({"d": call(glob("torch", "device"), "cu\x1bda\n", -5)}),
        "any",
    )
    yield Case(
        "tensor/size_object_evil.pt",
        _holding(call(glob("torch", "Size"), [MALICIOUS])),
        "note",
    )
    yield Case(
        "tensor/many_over_one.pt",
        torch_zip(pickled({f"w{i}": tensor() for i in range(3000)})),
        "any",
        "",
        "3,000 names of one storage",
    )
    old = glob("torch", "FloatTensor") + b")\x81"
    yield Case(
        "tensor/old_form.pt",
        torch_zip(
            pickled({"w": old + value((storage_id(), 0, (2, 3), (3, 1))) + op.build()})
        ),
        "any",
        "",
        "torch 0.1: NEWOBJ and BUILD",
    )
    yield Case(
        "tensor/old_form_beyond.pt",
        torch_zip(
            pickled(
                {"w": old + value((storage_id(), 0, (2, 3), (300, 1))) + op.build()}
            )
        ),
        "error",
    )


def pid_of(program: bytes) -> bytes:
    """A tensor whose storage is this persistent id."""
    return torch_zip(pickled({"w": rebuilt(program + op.binpersid())}))


def _v3(dtype: bytes) -> bytes:
    storage = storage_id("0", "UntypedStorage", 24, module="torch.storage")
    return rebuilt(
        storage,
        (2, 3),
        (3, 1),
        0,
        False,
        op.ordered_dict(),
        dtype,
        rebuild="_rebuild_tensor_v3",
    )


def _quantized(parameters: Any) -> bytes:
    return rebuilt(
        storage_id(cls="QInt32Storage"),
        (2, 3),
        (3, 1),
        0,
        parameters,
        False,
        op.ordered_dict(),
        rebuild="_rebuild_qtensor",
    )


_SPARSE = {"0": struct.pack("<6q", 0, 1, 2, 3, 4, 5), "1": struct.pack("<3f", 1, 2, 3)}


def _sparse_coo(
    size: tuple[int, ...],
    layout: str = "torch.sparse_coo",
    stride: tuple[int, ...] = (1,),
) -> bytes:
    indices = tensor(cls="LongStorage")
    values = tensor((3,), stride, key="1", numel=3)
    kind = call(glob("torch.serialization", "_get_layout"), layout)
    return call(
        glob("torch._utils", "_rebuild_sparse_tensor"),
        kind,
        (indices, values, call(glob("torch", "Size"), size), True),
    )


def _meta(size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    return call(
        glob("torch._utils", "_rebuild_meta_tensor_no_storage"),
        glob("torch", "float32"),
        size,
        stride,
        False,
    )


# --------------------------------------------------------------------------------------
# legacy, tar


def _legacy() -> Iterator[Case]:
    """Five pickles and a stream."""
    w = tensor_pickle(legacy=True)
    good = op.legacy(w)
    system = pickled(
        {
            "protocol_version": 1001,
            "little_endian": False,
            "type_sizes": {"short": 2, "int": 4, "long": 4},
        }
    )
    starts = {
        "magic": 8,
        "after_magic": len(op.MAGIC),
        "after_version": len(op.MAGIC + op.VERSION),
        "after_system": len(op.MAGIC + op.VERSION + op.SYSTEM),
        "in_object": len(op.MAGIC + op.VERSION + op.SYSTEM) + 50,
        "after_object": len(op.MAGIC + op.VERSION + op.SYSTEM + w),
        "before_stream": len(good) - 32,
        "in_numel": len(good) - 28,
        "in_storage": len(good) - 10,
        "last_byte": len(good) - 1,
    }
    for name, length in starts.items():
        yield Case(
            f"legacy/trunc_{name}.pt",
            good[:length],
            "error",
            "cut off" if length > 15 else "",
        )
    yield Case(
        "legacy/keys_missing.pt",
        op.legacy(w, ()),
        "error",
        "",
        "torch 2.13 returns uninitialised memory as the tensor",
    )
    yield Case("legacy/keys_other.pt", op.legacy(w, [("1", 6, op.SIX)]), "error")
    yield Case(
        "legacy/keys_unused.pt",
        op.legacy(w, [("0", 6, op.SIX), ("1", 1, bytes(4))]),
        "error",
        "",
        "torch: AssertionError; the item size is unknown",
    )
    yield Case(
        "legacy/keys_twice.pt",
        op.legacy(w, [("0", 6, op.SIX), ("0", 6, bytes(24))]),
        "error",
        "",
        "which of two contents",
    )
    yield Case("legacy/keys_dict.pt", op.legacy(w, keys=pickled({"0": 1})), "error")
    yield Case("legacy/keys_int.pt", op.legacy(w, keys=pickled([0])), "any")
    yield Case("legacy/keys_evil.pt", op.legacy(w, keys=pickled(MALICIOUS)), "error")
    yield Case(
        "legacy/keys_evil_beside.pt",
        op.legacy(w, keys=pickled(MALICIOUS + b"0", ["0"])),
        "any",
        "",
        "called, thrown away, then the true list",
    )
    yield Case(
        "legacy/stream_numel_huge.pt",
        op.legacy(w, [("0", 2**62, op.SIX)]),
        "error",
        "",
        "2**64 bytes: refuse by the bytes left",
    )
    yield Case(
        "legacy/stream_numel_negative.pt", op.legacy(w, [("0", -6, op.SIX)]), "error"
    )
    yield Case(
        "legacy/stream_numel_less.pt",
        op.legacy(w, [("0", 5, op.SIX[:20])]),
        "error",
        "",
        "the tensor needs 6",
    )
    yield Case(
        "legacy/stream_numel_more.pt",
        op.legacy(w, [("0", 7, op.SIX + bytes(4))]),
        "error",
        "",
        "torch: storage has wrong size",
    )
    yield Case(
        "legacy/numel_1gib.pt",
        op.legacy(
            tensor_pickle((2**28,), (1,), numel=2**28, legacy=True),
            [("0", 2**28, op.SIX)],
        ),
        "error",
        "",
        "1 GiB claimed twice, 24 bytes there",
    )
    yield Case(
        "legacy/magic_evil.pt",
        op.legacy(
            w,
            magic=pickled(
                call(glob("builtins", "eval"), f"{PYTHON} or 0x1950a86a20f9469cfc6c")
            ),
        ),
        "error",
        "magic number",
        "the number is right, and made by eval",
    )
    yield Case(
        "legacy/magic_wrong.pt",
        op.legacy(w, magic=pickled(0x1950A86A20F9469CFC6D)),
        "error",
    )
    yield Case(
        "legacy/version_evil.pt", op.legacy(w, version=pickled(MALICIOUS)), "error"
    )
    yield Case("legacy/version_1002.pt", op.legacy(w, version=pickled(1002)), "error")
    yield Case(
        "legacy/system_evil.pt",
        op.legacy(w, system=pickled(MALICIOUS)),
        "any",
        "",
        "torch ignores the value, and has run it",
    )
    yield Case("legacy/system_text.pt", op.legacy(w, system=pickled("x")), "any")
    yield Case(
        "legacy/big_endian.pt",
        op.legacy(w, system=system),
        "ok",
        "",
        "the loader ignores it; data is little-endian always",
    )
    yield Case(
        "legacy/object_evil.pt",
        op.legacy(pickled({"w": tensor(legacy=True), "x": MALICIOUS})),
        "note",
    )
    yield Case(
        "legacy/object_missing.pt",
        op.MAGIC + op.VERSION + op.SYSTEM,
        "error",
        "cut off",
    )
    yield Case(
        "legacy/trailing.pt",
        op.legacy(w, tail=b"\0" * 16),
        "note",
        "",
        "torch ignores it",
    )
    yield Case("legacy/trailing_evil.pt", op.legacy(w, tail=pickled(MALICIOUS)), "note")
    yield Case(
        "legacy/two_checkpoints.pt",
        good + good,
        "note",
        "",
        "torch.load twice reads both",
    )
    yield Case(
        "legacy/trailing_zip.pt",
        good + EVIL,
        "any",
        "",
        "legacy for torch, a zip for zip tools",
    )
    yield Case(
        "legacy/pid_five.pt",
        op.legacy(tensor_pickle()),
        "any",
        "",
        "the zip form in a legacy file",
    )
    yield Case(
        "legacy/stride_beyond.pt",
        op.legacy(tensor_pickle(stride=(100, 1), legacy=True)),
        "error",
    )
    yield Case(
        "legacy/storage_unknown.pt",
        op.legacy(tensor_pickle(cls="FooStorage", legacy=True)),
        "error",
        "foostorage",
    )
    yield Case(
        "legacy/key_traversal.pt",
        op.legacy(tensor_pickle(key="../../x", legacy=True), [("../../x", 6, op.SIX)]),
        "any",
        "",
        "keys are no paths here",
    )
    yield Case(
        "legacy/key_tuple.pt",
        op.legacy(tensor_pickle(key=("0",), legacy=True), []),
        "error",
        "is not a text",
        "the list of storages is empty, and the key is not one that it could hold",
    )
    yield Case(
        "legacy/view.pt",
        op.legacy(_view("v", 0, 6)),
        "ok",
        "",
        "as savers before 0.4 wrote",
    )
    yield Case("legacy/view_beyond.pt", op.legacy(_view("v", 4, 6)), "error")
    yield Case("legacy/view_negative.pt", op.legacy(_view("v", -1, 6)), "error")
    yield Case("legacy/view_text.pt", op.legacy(_view("v", "0", 6)), "error")
    yield Case(
        "legacy/view_short.pt",
        op.legacy(
            pickled({"w": rebuilt(storage_id("0", "FloatStorage", 6, "cpu", ("v", 0)))})
        ),
        "error",
    )
    yield Case(
        "legacy/module_source.pt",
        op.legacy(
            pickled(
                {
                    "m": value(
                        ("module", glob("__main__", "Net"), "/home/me/net.py", PYTHON)
                    )
                    + op.binpersid()
                    + b")\x81"
                }
            )
        ),
        "any",
        "",
        "class source: shown at most, never compiled",
    )
    yield Case(
        "legacy/protocol_1.pt", _protocol_1(), "any", "", "L119547037146038801333356L"
    )
    yield Case("legacy/no_tensors.pt", op.legacy(pickled({"epoch": 5}), ()), "ok")


def _view(key: Any, offset: Any, size: Any) -> bytes:
    return pickled(
        {"w": rebuilt(storage_id("0", "FloatStorage", 6, "cpu", (key, offset, size)))}
    )


def _protocol_1() -> bytes:
    magic = b"L119547037146038801333356L\n."
    return op.legacy(
        tensor_pickle(legacy=True), magic=magic, version=b"M\xe9\x03.", system=b"}."
    )


def _tars() -> Iterator[Case]:
    """The format of torch 0.1; CVE-2025-32434 ran code through it under
    weights_only=True.
    """

    def built(
        main: bytes, numel: int = 6, size: tuple[int, int] = (2, 3), **members: bytes
    ) -> dict[str, bytes]:
        storages = (
            pickled(1)
            + pickled(("0", "cpu", glob("torch", "FloatStorage")))
            + struct.pack("<Q", numel)
            + op.SIX
        )
        tensors = (
            pickled(1)
            + pickled((1, "0", glob("torch", "FloatTensor")))
            + struct.pack("<2i5q", 2, 0, *size, 3, 1, 0)
        )
        return {
            "storages": storages + pickled([]),
            "tensors": tensors,
            "pickle": main,
            **members,
        }

    w = pickled({"w": value(1) + op.binpersid()})
    link = tarfile.TarInfo("storages")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("storages")
    hard.type, hard.linkname = tarfile.LNKTYPE, "../../etc/passwd"
    device = tarfile.TarInfo("storages")
    device.type = tarfile.CHRTYPE
    up = tarfile.TarInfo("../../../tmp/x")
    rest = {"tensors": built(w)["tensors"], "pickle": w}
    yield Case(
        "tar/good.pt",
        _tar(built(w)),
        "any",
        why="torch 2.13 reads it with weights_only=False",
    )
    yield Case(
        "tar/evil.pt",
        _tar(built(pickled({"w": MALICIOUS}))),
        "any",
        "",
        "CVE-2025-32434 class",
    )
    yield Case(
        "tar/evil_storages.pt",
        _tar({**built(w), "storages": pickled(MALICIOUS)}),
        "any",
    )
    yield Case(
        "tar/symlink.pt", _tar(rest, link), "error", "", "storages → /etc/passwd"
    )
    yield Case("tar/hardlink.pt", _tar(rest, hard), "error")
    yield Case("tar/device.pt", _tar(rest, device), "error")
    yield Case(
        "tar/traversal.pt",
        _tar(built(w), up),
        "any",
        "",
        "never extract (CVE-2007-4559)",
    )
    yield Case("tar/numel_huge.pt", _tar(built(w, numel=2**62)), "error")
    yield Case("tar/size_beyond.pt", _tar(built(w, size=(200, 3))), "error")
    yield Case("tar/size_negative.pt", _tar(built(w, size=(-2, 3))), "error")
    yield Case(
        "tar/missing_pickle.pt", _tar({"storages": b"", "tensors": b""}), "error"
    )
    yield Case("tar/trunc.pt", _tar(built(w))[:700], "error")
    yield Case(
        "tar/ndim_huge.pt",
        _tar(
            {
                **built(w),
                "tensors": pickled(1)
                + pickled((1, "0", glob("torch", "FloatTensor")))
                + struct.pack("<2i", 2**31 - 1, 0),
            }
        ),
        "error",
    )
    yield Case(
        "tar/size_field.pt", _tar_size(_tar(built(w))), "error", "", "a member of 8 GiB"
    )


def _tar_size(data: bytes) -> bytes:
    """The first member claims 8 GiB; its checksum is right."""
    head = bytearray(data[:512])
    head[124:136] = b"77777777777\0"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


# --------------------------------------------------------------------------------------
# containers


def _containers() -> Iterator[Case]:
    """Archives of libraries and plain pickles: their members are read in place, never
    unpacked or unpickled.
    """
    weights = {"./model_weights.ckpt": GOOD, "./model_config.yaml": b"a: 1\n"}
    link = tarfile.TarInfo("tokenizer")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    inside = tarfile.TarInfo("sub")
    inside.type, inside.linkname = tarfile.SYMTYPE, "."
    nemo = _tar(weights)
    body = nemo[: 512 + -(-len(GOOD) // 512) * 512 + 1024]  # without its end
    yield Case("nemo/good.nemo", nemo, "ok")
    yield Case(
        "nemo/evil.nemo",
        _tar({"model_weights.ckpt": torch_zip(pickled({"w": MALICIOUS}))}),
        "note",
    )
    yield Case("nemo/symlink.nemo", body + _tar({}, link), "error", "link")
    yield Case(
        "nemo/folder_link.nemo",
        body + _tar({}, inside),
        "error",
        "link",
        "sub/X replaces X",
    )
    yield Case("nemo/twice.nemo", body + nemo, "error", "twice")
    yield Case(
        "nemo/traversal.nemo", body + _tar({"../x": b""}), "error", "leads elsewhere"
    )
    yield Case(
        "nemo/size_field.nemo", body + _tar_size(_tar({"x": b""})), "error", "cut off"
    )
    yield Case("nemo/trunc.nemo", nemo[:2100], "error", "cut off")
    yield Case("nemo/joined.nemo", nemo + nemo, "error", "follow the end")
    rest = {"data": b"{}", "_stable_baselines3_version": b"2.9.2"}
    yield Case("sb3/good.zip", op.zip_file({**rest, "policy.pth": GOOD}), "ok")
    yield Case(
        "sb3/pickled_data.zip",
        op.zip_file(
            {
                "data": b'{"a": {":type:": "x", ":serialized:": "Y3Bvc2l4"}}',
                "policy.pth": GOOD,
            }
        ),
        "note",
        "",
        "what JSON holds of pickles is judged, and none of it is read",
    )
    yield Case(
        "sb3/evil.zip",
        op.zip_file({**rest, "policy.pth": torch_zip(pickled({"w": MALICIOUS}))}),
        "note",
    )
    yield Case(
        "sb3/deep_data.zip",
        op.zip_file({"data": b'{"a":' * 200_000, "policy.pth": GOOD}),
        "error",
        "deep",
    )
    yield Case(
        "sb3/twice.zip",
        op.zip_file({**rest, "policy.pth": GOOD, "data.pth": GOOD}),
        "error",
        "twice",
    )
    yield Case(
        "sb3/folder.zip",
        op.zip_file({**rest, "policy.pth": GOOD, "a/b.pth": GOOD}),
        "error",
        "plain name",
    )
    yield Case(
        "sb3/itself.zip",
        op.zip_file({**rest, "policy.pth": op.zip_file(rest)}),
        "error",
    )
    array = (
        b"\x80\x02}X\x01\0\0\0wcnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        b"K\0\x85C\x01btR"
        b"(K\x01K\x06\x85cnumpy\ndtype\n"
        b"(X\x02\0\0\0f4K\0K\x01tR(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\0tb\x89C\x18" + op.SIX + b"tbs."
    )
    assert len(op.SIX) == 24
    evil = (
        array.removesuffix(b"s.")
        + b"sX\x01\0\0\0xcposix\nsystem\n(X"
        + _counted(COMMAND)
        + b"tRs."
    )
    yield Case("plain/array.pkl", array, "ok")
    yield Case("plain/evil_beside_an_array.pkl", evil, "note")
    yield Case(
        "plain/short_array.pkl",
        array.replace(b"K\x06\x85", b"K\x07\x85"),
        "error",
        "28 bytes",
    )
    yield Case(
        "plain/claim.pkl",
        array.replace(b"C\x18", b"\x8e" + struct.pack("<Q", 2**60)),
        "error",
        "cut off",
    )
    yield Case("plain/persistent.pkl", b"\x80\x02}K\x01K\x00Qs.", "error", "persistent")
    wrapper = (
        b"\x80\x02}X\x01\0\0\0wcjoblib.numpy_pickle\nNumpyArrayWrapper\n"
        b")\x81}(X\x05\0\0\0shape%b"
        b"X\x05\0\0\0orderX\x01\0\0\0CX\x05\0\0\0dtypecnumpy\ndtype\n"
        b"(X\x02\0\0\0f4K\0K\x01tRub" + op.SIX + b"s."
    )
    yield Case("plain/good.joblib", wrapper.replace(b"%b", b"K\x06\x85"), "ok")
    yield Case(
        "plain/shape.joblib", wrapper.replace(b"%b", b"K\x07\x85"), "error", "cut off"
    )
    yield Case(
        "plain/huge_shape.joblib",
        wrapper.replace(b"%b", b"J\xff\xff\xff\x7f\x85"),
        "error",
        "cut off",
    )
    yield Case(
        "plain/negative_shape.joblib",
        wrapper.replace(b"%b", b"J\xff\xff\xff\xff\x85"),
        "error",
        "shape",
    )


def _counted(words: str) -> bytes:
    return struct.pack("<I", len(words)) + words.encode()


# --------------------------------------------------------------------------------------
# safetensors


def _safetensors() -> Iterator[Case]:
    """The header is JSON, and JSON has corners."""

    def lone(text: str | bytes, data: bytes = op.SIX) -> bytes:
        return op.safetensors_file(text, data)

    def one(data: bytes = op.SIX, **fields: Any) -> bytes:
        return op.safetensors_file({"w": op.entry(**fields)}, data)

    plain = json.dumps({"w": op.entry()})
    length: dict[str, tuple[bytes, str, str]] = {
        "n_2e64m8": (
            op.safetensors_file(plain, op.SIX, length=2**64 - 8),
            "",
            "8 + n is 0",
        ),
        "n_2e63": (op.safetensors_file(plain, op.SIX, length=2**63), "", ""),
        "n_past_end": (op.safetensors_file(plain, op.SIX, length=10**6), "cut off", ""),
        "n_over_limit": (
            op.safetensors_file(plain, op.SIX, length=100_000_001),
            "",
            "the format's own limit",
        ),
        "n_zero": (op.safetensors_file(b"", op.SIX), "", ""),
        "n_one": (op.safetensors_file(b"{"), "", ""),
        "n_short": (
            op.safetensors_file(plain, op.SIX, length=len(plain) - 1),
            "",
            "the header's last brace is data",
        ),
        "seven_bytes": (b"\x02\0\0\0\0\0\0", "", ""),
        "only_length": (struct.pack("<Q", 2), "", ""),
        "trunc_header": (op.safetensors_file(plain)[:20], "cut off", ""),
        "trunc_data": (lone(plain, op.SIX[:20]), "cut off", ""),
        "no_data": (lone(plain, b""), "cut off", ""),
        "trailing": (lone(plain, op.SIX + b"\0"), "", "polyglots"),
        "trailing_zip": (
            lone(plain, op.SIX + EVIL),
            "",
            "safetensors for one tool, a zip for another",
        ),
    }
    for name, (data, says, why) in length.items():
        yield Case(f"safetensors/{name}.safetensors", data, "error", says, why)
    for name, (header, why) in {
        "leading_space": (" " + plain, "the README says { first; 0.8.0 takes it"),
        "leading_newline": ("\n" + plain, ""),
        "bom": ("\ufeff" + plain, ""),
        "utf16": (plain.encode("utf-16"), ""),
        "not_utf8": (b'{"w\xff":1}', ""),
        "trailing_nul": (plain + "\0\0", ""),
        "trailing_text": (plain + "x", ""),
        "two_objects": (plain + plain, ""),
        "list": ("[]" + " " * 6, ""),
        "null": ("null    ", ""),
        "cut_json": (plain[:-1] + " ", ""),
        "single_quotes": ("{'w': 1}", ""),
        "comment": ("{/* */}", ""),
        "trailing_comma": ('{"w":' + json.dumps(op.entry()) + ",}", ""),
        "control_in_name": (
            '{"w\n":' + json.dumps(op.entry()) + "}",
            "a raw newline in a JSON string",
        ),
        "deep_json": ('{"a":' * 100_000, "RecursionError"),
        "deep_list": ('{"w":' + "[" * 100_000 + "]" * 100_000 + "}", ""),
        "deep_metadata": (
            '{"__metadata__":' + '{"a":' * 50_000 + "1" + "}" * 50_001,
            "",
        ),
        "nan_literal": (
            '{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,24]}}',
            "Python's json takes NaN",
        ),
        "infinity": (
            '{"w":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,24]}}',
            "",
        ),
        "nan_in_metadata": (
            '{"__metadata__":{"a":NaN},"w":' + json.dumps(op.entry()) + "}",
            "",
        ),
        "digits_5000": (
            '{"w":{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,24]}}',
            "int() raises ValueError",
        ),
        "digits_5000_offsets": (
            '{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,' + "9" * 5000 + "]}}",
            "",
        ),
        "exponent": (
            '{"w":{"dtype":"F32","shape":[6e0],"data_offsets":[0,24]}}',
            "a float",
        ),
        "exponent_huge": (
            '{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,24]}}',
            "inf",
        ),
        "minus_zero": (
            '{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[-0.0,24]}}',
            "",
        ),
        "dup_name": (
            '{"w":'
            + json.dumps(op.entry())
            + ',"w":'
            + json.dumps(op.entry(shape=[6]))
            + "}",
            "0.8.0 takes the last",
        ),
        "dup_name_escaped": (
            '{"w":'
            + json.dumps(op.entry())
            + ',"\\u0077":'
            + json.dumps(op.entry(shape=[6]))
            + "}",
            "the same name, written differently",
        ),
        "dup_offsets": (
            '{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,4],"data_offsets":[0,24]}}',
            "",
        ),
        "dup_metadata": (
            '{"__metadata__":{"a":"1"},"__metadata__":{},"w":'
            + json.dumps(op.entry())
            + "}",
            "",
        ),
        "name_surrogate": (
            '{"\\ud800":' + json.dumps(op.entry()) + "}",
            "Python's json takes it, print() fails",
        ),
        "metadata_surrogate": (
            '{"__metadata__":{"a":"\\udc9b"},"w":' + json.dumps(op.entry()) + "}",
            "",
        ),
        "more_surrogate": (
            '{"w":' + json.dumps(op.entry(more="\udc9b")) + "}",
            "a field that nobody reads",
        ),
        "metadata_int": (
            '{"__metadata__":{"a":1},"w":' + json.dumps(op.entry()) + "}",
            "",
        ),
        "metadata_list": ('{"__metadata__":[],"w":' + json.dumps(op.entry()) + "}", ""),
        "metadata_nested": (
            '{"__metadata__":{"a":{"b":"c"}},"w":' + json.dumps(op.entry()) + "}",
            "",
        ),
        "entry_list": ('{"w":["F32",[2,3],[0,24]]}', ""),
        "entry_null": ('{"w":null}', ""),
        "entry_empty": ('{"w":{}}', ""),
        "no_dtype": ('{"w":{"shape":[6],"data_offsets":[0,24]}}', ""),
        "no_shape": ('{"w":{"dtype":"F32","data_offsets":[0,24]}}', ""),
        "no_offsets": ('{"w":{"dtype":"F32","shape":[6]}}', ""),
    }.items():
        expect: Expect = "any" if name in {"dup_metadata", "dup_offsets"} else "error"
        yield Case(f"safetensors/{name}.safetensors", lone(header), expect, "", why)
    fields: dict[str, tuple[dict[str, Any], str]] = {
        "dtype_unknown": ({"dtype": "F33"}, ""),
        "dtype_lower": ({"dtype": "f32"}, ""),
        "dtype_int": ({"dtype": 5}, ""),
        "dtype_escapes": ({"dtype": "\x1b[31m\n"}, ""),
        "dtype_list": ({"dtype": ["F32"]}, "unhashable"),
        "shape_wrong": ({"shape": [2, 4]}, "32 bytes of 24"),
        "shape_negative": ({"shape": [-2, -3]}, "the product is 6"),
        "shape_bool": ({"shape": [True, 6]}, ""),
        "shape_float": ({"shape": [2.0, 3.0]}, ""),
        "shape_text": ({"shape": "23"}, ""),
        "shape_null": ({"shape": None}, ""),
        "shape_nested": ({"shape": [[2], 3]}, ""),
        "shape_overflow": (
            {"shape": [2**32, 2**32], "offsets": [0, 0]},
            "the product is 0 in u64",
        ),
        "shape_overflow_bytes": ({"shape": [2**62], "offsets": [0, 0]}, "2**64 bytes"),
        "shape_2e64": ({"shape": [2**64, 0], "offsets": [0, 0]}, ""),
        "shape_overflow_before_0": (
            {"shape": [2**62, 8, 0], "offsets": [0, 0]},
            "the library multiplies from the left",
        ),
        "dims_100k": ({"shape": [1] * 100_000, "offsets": [0, 4]}, ""),
        "offs_reversed": ({"offsets": [24, 0]}, ""),
        "offs_negative": ({"offsets": [-24, 0]}, ""),
        "offs_float": ({"offsets": [0.0, 24.0]}, ""),
        "offs_bool": ({"offsets": [False, 24]}, ""),
        "offs_three": ({"offsets": [0, 24, 24]}, ""),
        "offs_one": ({"offsets": [0]}, ""),
        "offs_text": ({"offsets": "09"}, ""),
        "offs_huge": ({"offsets": [0, 2**63]}, ""),
        "offs_2e64": ({"offsets": [2**64, 2**64 + 24]}, "wraps to 0, 24"),
        "offs_start": ({"shape": [5], "offsets": [4, 24]}, "a hole at the start"),
        "f4_odd": (
            {"dtype": "F4", "shape": [47], "offsets": [0, 24]},
            "23 and a half bytes",
        ),
    }
    for name, (entry, why) in fields.items():
        yield Case(f"safetensors/{name}.safetensors", one(**entry), "error", "", why)

    def pair(first: tuple[int, int], second: tuple[int, int], data: bytes) -> bytes:
        shapes = [[(end - start) // 4] for start, end in (first, second)]
        return op.safetensors_file(
            {
                n: op.entry(shape=s, offsets=o)
                for n, s, o in zip("ab", shapes, (first, second), strict=True)
            },
            data,
        )

    yield Case(
        "safetensors/offs_overlap.safetensors",
        pair((0, 24), (0, 24), op.SIX),
        "error",
        "overlap",
    )
    yield Case(
        "safetensors/offs_overlap_part.safetensors",
        pair((0, 16), (8, 24), op.SIX),
        "error",
        "overlap",
    )
    yield Case(
        "safetensors/offs_hole.safetensors", pair((0, 8), (12, 24), op.SIX), "error"
    )
    yield Case(
        "safetensors/offs_swapped.safetensors",
        pair((12, 24), (0, 12), op.SIX),
        "ok",
        "",
        "the order of names is free",
    )
    yield Case(
        "safetensors/name_empty.safetensors",
        op.safetensors_file({"": op.entry()}, op.SIX),
        "any",
    )
    yield Case(
        "safetensors/name_escapes.safetensors",
        op.safetensors_file({HOSTILE_NAME: op.entry()}, op.SIX),
        "ok",
    )
    yield Case(
        "safetensors/metadata_escapes.safetensors",
        op.safetensors_file(
            {"__metadata__": {HOSTILE_NAME: HOSTILE_NAME}, "w": op.entry()}, op.SIX
        ),
        "ok",
    )
    yield Case(
        "safetensors/name_long.safetensors",
        op.safetensors_file({"w" * 500_000: op.entry()}, op.SIX),
        "any",
    )
    yield Case(
        "safetensors/entries_7k.safetensors",
        op.safetensors_file(
            {f"w{i}": op.entry(shape=[0], offsets=[0, 0]) for i in range(7000)}
        ),
        "ok",
        "",
        "7,000 empty tensors at one place",
    )
    yield Case(
        "safetensors/header_200mb.safetensors",
        _sparse(
            "header_200mb.safetensors",
            200_000_016,
            struct.pack("<Q", 200_000_000) + b'{"w":',
        ),
        "error",
        "limit",
        "a header of 200 MB that is there",
    )


# --------------------------------------------------------------------------------------
# sharded


def _indexes() -> Iterator[Case]:
    """The JSON index of a sharded checkpoint: file names from a file."""
    good = op.safetensors_file({"w": op.entry()}, op.SIX)

    def sharded(
        index: Any,
        files: dict[str, bytes] | None = None,
        name: str = "model.safetensors.index.json",
    ) -> Callable[[Path], Path]:
        def build(folder: Path) -> Path:
            (folder / "secret.safetensors").write_bytes(good)
            inner = folder / "model"
            inner.mkdir()
            for file, data in (files or {"a.safetensors": good}).items():
                (inner / file).write_bytes(data)
            text = index if isinstance(index, bytes) else json.dumps(index).encode()
            (inner / name).write_bytes(text)
            return inner / name

        return build

    def shards(target: Any) -> dict[str, Any]:
        return {"metadata": {"total_size": 24}, "weight_map": {"w": target}}

    def linked(kind: str) -> Callable[[Path], Path]:
        def build(folder: Path) -> Path:
            path = sharded(shards("link.safetensors"))(folder)
            shard = path.parent / "link.safetensors"
            if kind == "fifo":
                os.mkfifo(shard)
            elif kind == "folder":
                shard.mkdir()
            else:
                shard.symlink_to(
                    {
                        "blob": "../secret.safetensors",
                        "device": "/dev/zero",
                        "loop": "link.safetensors",
                    }[kind]
                )
            return path

        return build

    bins = "pytorch_model.bin.index.json"
    yield Case(
        "index/good/model.safetensors.index.json",
        sharded(shards("a.safetensors")),
        "ok",
    )
    yield Case(
        "index/good_bin/pytorch_model.bin.index.json",
        sharded(shards("a.bin"), {"a.bin": GOOD}, bins),
        "ok",
    )
    yield Case(
        "index/evil_bin/pytorch_model.bin.index.json",
        sharded(shards("a.bin"), {"a.bin": EVIL}, bins),
        "note",
        "",
        "a payload in one shard",
    )
    for name, target in {
        "traversal": "../secret.safetensors",
        "traversal_deep": "../../ok/st.safetensors",
        "traversal_inside": "x/../a.safetensors",
        "absolute": "/etc/passwd",
        "subfolder": "sub/a.safetensors",
        "backslash": "..\\secret.safetensors",
        "drive": "C:a.safetensors",
        "nul": "a.safetensors\0.txt",
        "dot": ".",
        "dotdot": "..",
        "empty_name": "",
        "url": "https://127.0.0.1/a.safetensors",
        "missing_shard": "b.safetensors",
        "long_name": "a" * 5000,
        "surrogate": "a\udc80.safetensors",
        "escapes": "a\x1b[31m\nb.safetensors",
        "number": 5,
        "null": None,
        "list": ["a.safetensors"],
        "true": True,
        "itself": "model.safetensors.index.json",
    }.items():
        says = "missing" if name == "missing_shard" else ""
        yield Case(
            f"index/{name}/model.safetensors.index.json",
            sharded(shards(target)),
            "error",
            says,
            "shard names: no folder, no device, a regular file",
        )
    yield Case("index/fifo/model.safetensors.index.json", linked("fifo"), "error")
    yield Case("index/folder/model.safetensors.index.json", linked("folder"), "error")
    yield Case(
        "index/link_device/model.safetensors.index.json", linked("device"), "error"
    )
    yield Case("index/link_loop/model.safetensors.index.json", linked("loop"), "error")
    yield Case(
        "index/link_blob/model.safetensors.index.json",
        linked("blob"),
        "ok",
        "",
        "the cache of huggingface_hub is made of links",
    )
    texts: dict[str, tuple[bytes, Expect]] = {
        "not_json": (b'{"weight_map": ', "error"),
        "empty_file": (b"", "error"),
        "list_root": (b"[]", "error"),
        "no_map": (b'{"metadata": {}}', "error"),
        "map_list": (b'{"weight_map": []}', "error"),
        "map_text": (b'{"weight_map": "a.safetensors"}', "error"),
        "map_empty": (b'{"weight_map": {}}', "any"),
        "metadata_text": (
            b'{"metadata": "x", "weight_map": {"w": "a.safetensors"}}',
            "any",
        ),
        "total_wrong": (
            b'{"metadata": {"total_size": 5}, "weight_map": {"w": "a.safetensors"}}',
            "any",
        ),
        "total_nan": (
            b'{"metadata": {"total_size": NaN}, "weight_map": {"w": "a.safetensors"}}',
            "any",
        ),
        "total_digits": (
            b'{"metadata": {"total_size": '
            + b"9" * 5000
            + b'}, "weight_map": {"w": "a.safetensors"}}',
            "any",
        ),
        "bom": (b'\xef\xbb\xbf{"weight_map": {"w": "a.safetensors"}}', "any"),
        "not_utf8": (b'{"weight_map": {"w\xff": "a.safetensors"}}', "error"),
        "deep": (b'{"weight_map":' + b'{"a":' * 100_000, "error"),
        "deep_lists": (
            b'{"metadata":'
            + b"[" * 100_000
            + b"]" * 100_000
            + b',"weight_map":{"w":"a.safetensors"}}',
            "error",
        ),
        "dup_key": (
            b'{"weight_map": {"w": "b.safetensors", "w": "a.safetensors"}}',
            "error",
        ),
        "dup_map": (
            b'{"weight_map": {"w": "../x"}, "weight_map": {"w": "a.safetensors"}}',
            "error",
        ),
        "not_in_shard": (
            b'{"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}}',
            "error",
        ),
        "not_in_index": (
            b'{"weight_map": {}, "metadata": {"a": "a.safetensors"}}',
            "any",
        ),
        "name_escapes": (
            (
                b'{"weight_map": {"w": "a.safetensors", "\\u001b[31m\\n": '
                b'"a.safetensors"}}'
            ),
            "error",
        ),
        "many_missing": (
            json.dumps(
                {"weight_map": {f"w{i}": f"s{i}.safetensors" for i in range(20_000)}}
            ).encode(),
            "error",
        ),
    }
    for name, (text_, expect) in texts.items():
        yield Case(f"index/{name}/model.safetensors.index.json", sharded(text_), expect)
    yield Case(
        "index/same_tensor_twice/model.safetensors.index.json",
        sharded(
            {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}},
            {"a.safetensors": good, "b.safetensors": good},
        ),
        "error",
        "",
        "v is not in b, and w is in both",
    )
    yield Case(
        "index/bad_shard/model.safetensors.index.json",
        sharded(shards("a.safetensors"), {"a.safetensors": good[:-4]}),
        "error",
        "cut off",
        "one shard is cut off",
    )
    yield Case(
        "index/lfs_shard/model.safetensors.index.json",
        sharded(
            shards("a.safetensors"),
            {"a.safetensors": b"version https://git-lfs.github.com/spec/v1\n"},
        ),
        "error",
        "lfs",
    )
    yield Case(
        "index/huge/model.safetensors.index.json",
        _later(
            "model.safetensors.index.json",
            lambda: b'{"weight_map": {' + b" " * (65 * 2**20) + b"}}",
        ),
        "error",
        "limit",
        "65 MiB of blanks",
    )


# --------------------------------------------------------------------------------------
# names, output

HOSTILE_NAME = (
    "a\x00\x07\x08\t\n"
    "\r\x1b[31m\x1b]8;;http://x\x07link\x1b]8;;\x07\x7f\x85\x9b31m\u00ad\u200b\u200e\u200f\u2028\u2029"
    "\u202a\u202e\u2066\u2069\u061c\ufeff\U000e0041[/red][bold]x[/bold]|`<script>`,\"';=1+1\\\\z"
)
"""Everything that output must escape, in one text."""


def _names() -> Iterator[Case]:
    """Text from the file goes to a terminal, to JSON, to TSV, into globs."""
    for name, key in {
        "rich_close": "[/red]",
        "rich_open": "[red]x",
        "rich_link": "[link=file:///etc/passwd]x[/link]",
        "newline": "a\nFAKE ROW  (1000, 1000)  float32  4 MB",
        "carriage_return": "evil\rgood",
        "escape": "\x1b[2J\x1b[31mx",
        "osc8": "\x1b]8;;http://127.0.0.1\x07x\x1b]8;;\x07",
        "osc52": "\x1b]52;c;ZWNobw==\x07",
        "c1": "\x9b31mx\x85y",
        "nul": "a\0b",
        "bidi": "a\u202ecba\u2066x",
        "zero_width": "a\u200bb\u200d\ufeff",
        "tags": "a\U000e0041\U000e0042",
        "combining": "a" + "\u0301" * 500,
        "wide": "層" * 300,
        "tab": "a\tb\tc",
        "backslash": "a\\nb\\x1b",
        "formula": "=1+1",
        "formula_at": "@SUM(1)",
        "pipe": "a|b|c",
        "quote": "a\",'b",
        "glob": "*[a-",
        "dash": "--help",
        "percent": "%s%n%d",
        "braces": "{0.__class__}",
        "regex": "(a+)+$" * 20,
        "metadata": "__metadata__",
        "dots": "../../../../tmp/evil",
        "dot": ".",
        "dots_many": "." * 2000,
        "empty": "",
        "space": " ",
        "number_like": "1e5",
        "long": "a" * 100_000,
        "script": "<script>x</script>",
        "everything": HOSTILE_NAME,
        "data_pkl": "data.pkl",
        "windows": "CON",
        "slash": "/etc/passwd",
    }.items():
        yield Case(
            f"name/{name}.pt",
            torch_zip(pickled({key: tensor()})),
            "ok",
            why="print it escaped, on one line",
        )
    yield Case(
        "name/surrogate.pt",
        torch_zip(pickled({"w\udc9b31m": tensor()})),
        "ok",
        why="the C locale writes it as the raw byte 0x9b",
    )
    yield Case(
        "name/not_utf8.pt", torch_zip(pickled({text(b"w\xff"): tensor()})), "any"
    )
    yield Case(
        "name/bytes.pt",
        torch_zip(pickled({op.short_binary(b"w\x1b"): tensor()}, protocol=3)),
        "any",
    )
    yield Case(
        "name/integer.pt",
        torch_zip(pickled({10**5000: tensor()})),
        "any",
        why="a key of 5,001 digits",
    )
    yield Case("name/none.pt", torch_zip(pickled({None: tensor()})), "any")
    yield Case("name/tuple.pt", torch_zip(pickled({("a", "b\x1b"): tensor()})), "any")
    yield Case(
        "name/object.pt",
        torch_zip(pickled({call(glob("a", "B")): tensor()})),
        "note",
        why="optimizers key by Parameter",
    )
    yield Case(
        "name/ambiguous.pt",
        torch_zip(pickled({"a": {"b": tensor()}, "a.b": tensor()})),
        "any",
        why="two paths, one dotted name",
    )
    yield Case(
        "name/ambiguous_int.pt", torch_zip(pickled({0: tensor(), "0": tensor()})), "any"
    )
    yield Case(
        "name/ambiguous_mark.pt",
        torch_zip(pickled({"a": {"b": tensor()}, "a.b": tensor(), "a.b#2": tensor()})),
        "any",
        why="the mark of the second is taken",
    )
    yield Case("name/case.pt", torch_zip(pickled({"W": tensor(), "w": tensor()})), "ok")
    yield Case(
        "name/normal_forms.pt",
        torch_zip(pickled({"é": tensor(), "e\u0301": tensor()})),
        "ok",
        why="equal after normalisation only",
    )
    yield Case(
        "name/value_escapes.pt",
        _holding({"note": HOSTILE_NAME, HOSTILE_NAME: [HOSTILE_NAME]}),
        "ok",
    )
    yield Case(
        "name/class_escapes.pt",
        _holding(
            call(op.stack_global(HOSTILE_NAME, HOSTILE_NAME), HOSTILE_NAME), protocol=4
        ),
        "note",
    )
    yield Case(
        "name/message_escapes.pt",
        torch_zip(tensor_pickle(key=HOSTILE_NAME)),
        "error",
        "",
        "the message repeats it",
    )
    yield Case(
        "name/class_in_message.pt",
        torch_zip(tensor_pickle(cls=op.stack_global("torch", "\x1b[31m\nStorage"))),
        "error",
    )
    yield Case("name/file_good.pt", _named(GOOD), "ok", why="the file's own name")
    yield Case(
        "name/file_bad.pt",
        _named(b"nothing"),
        "error",
        "",
        "the file's own name, in the message",
    )
    yield Case(
        "name/file_not_utf8.pt",
        _named(GOOD, b"a\xff\x9b31m.pt"),
        "ok",
        why="a file name that is no UTF-8",
    )
    yield Case(
        "name/file_not_utf8_bad.pt", _named(b"nothing", b"a\xff\x9b31m.pt"), "error"
    )
    yield Case(
        "name/file_markup.pt", _named(b"nothing", b"[bold]a[link=x].pt"), "error"
    )


def _named(
    data: bytes, name: bytes = b"a\x1b[31m\nckpt: all is well\r\xe2\x80\xaeb.pt"
) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / os.fsdecode(name)
        try:
            path.write_bytes(data)
        except OSError:
            pytest.skip("this file system refuses the name")
        return path

    return build


# --------------------------------------------------------------------------------------
# the table


def _all() -> tuple[Case, ...]:
    groups = (
        _fine, _file_system, _foreign, _zip_cut, _zip_names, _zip_headers, _zip_overlap, _zip_end, _zip_bombs, _zip_meta,
        _payloads, _opcodes, _claims, _exhaustion, _values, _geometry, _storages, _legacy, _tars, _containers, _safetensors, _indexes, _names,
    )  # fmt: skip
    cases = tuple(case for group in groups for case in group())
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two cases of one name: {twice}")
    return cases


CASES = _all()

BOMBS = (
    "zip/bomb_",
    "zip/directory_80mib",
    "pickle/memo_bomb_",
    "pickle/claim_b",
    "pickle/deep_list.",
    "pickle/deep_tuple_900k",
    "pickle/deep_tuple_key",
    "pickle/deep_call.",
    "pickle/laughs_",
    "pickle/hash_collide_",
    "pickle/globals_200k",
    "pickle/marks_5m",
    "pickle/values_6m",
    "pickle/dup_6m",
    "pickle/dicts_",
    "pickle/calls_",
    "pickle/items_",
    "pickle/rows_",
    "pickle/builds_",
    "pickle/budget_",
    "safetensors/budget_",
    "index/budget_",
    "legacy/stream_numel_huge",
    "safetensors/deep_json",
    "index/deep/",
    "index/huge/",
    "fs/sparse_1tib",
)
"""Cases that are made to eat memory or time: each runs in a process of its own, under
limits.
"""


# --------------------------------------------------------------------------------------
# good files


@cache
def good_files() -> dict[str, bytes]:
    """Small good files, to be mutated byte by byte. Written by torch; the same bytes in
    every run.
    """
    import torch

    def saved(thing: Any, **options: Any) -> bytes:
        out = io.BytesIO()
        torch.save(thing, out, **options)
        return out.getvalue()

    numbers = torch.arange(12.0)
    shared = {"a": numbers[:6].view(2, 3), "b": numbers, "n": torch.arange(4)}
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    training = {
        "epoch": 3,
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "args": {"lr": 1e-3, "tags": ("x", None)},
    }
    header = {
        "__metadata__": {"format": "pt"},
        "b": op.entry(offsets=[0, 24]),
        "a": op.entry("I64", [2], [24, 40]),
    }
    legacy = saved(shared, _use_new_zipfile_serialization=False)
    for number, key in enumerate(
        dict.fromkeys(re.findall(rb"X[\x08-\x20]\0\0\0(\d{8,32})", legacy))
    ):
        legacy = legacy.replace(
            key, b"%0*d" % (len(key), number)
        )  # addresses differ from run to run
    return {
        "shared.pt": saved(shared),
        "legacy.pt": legacy,
        "plain.safetensors": op.safetensors_file(
            header, op.SIX + struct.pack("<2q", 7, 8)
        ),
        "deflated.pt": _rezipped(saved(shared), zipfile.ZIP_DEFLATED),
        "module.pt": saved(torch.nn.Sequential(torch.nn.Linear(2, 1))),
        "training.pt": saved(training),
    }
