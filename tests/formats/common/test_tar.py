"""The tar reader sees what tarfile sees, and refuses what two readers could see
differently.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt import formats
from ckpt.bytes.source import Memory
from ckpt.formats.common.tar import is_tar, read_tar
from ckpt.model.errors import CkptError, CutOffError, LimitError
from ckpt.model.limits import Budget, Limits

NAMES = (
    "weights.ckpt",
    "./config.yaml",
    "dir/a b",
    "n" * 99,
    "d/" * 60 + "deep",
    "l" * 240,
    "\u00e4\u4e2d.txt",
    "empty",
)


def tar(
    *members: tuple[str, bytes] | tarfile.TarInfo,
    format: int = tarfile.USTAR_FORMAT,
    pax: dict[str, str] | None = None,
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, pax_headers=pax) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def read(data: bytes, limits: Limits | None = None) -> dict[str, bytes]:
    limits = limits or Limits()
    found = read_tar(Memory(data), limits, Budget(limits, len(data)))
    return {
        name: data[row.offset : row.offset + row.size] for name, row in found.items()
    }


def patched(data: bytes, at: int, new: bytes, header: int = 0) -> bytes:
    """The archive with bytes of a header changed, and the checksum of the header made
    right again.
    """
    block = bytearray(data[header : header + 512])
    block[at : at + len(new)] = new
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:header] + bytes(block) + data[header + 512 :]


@pytest.mark.parametrize(
    ("kind", "is_file"),
    [
        (tarfile.REGTYPE, True),
        (tarfile.AREGTYPE, True),
        (tarfile.CONTTYPE, True),
        (b"\7", False),
        (tarfile.GNUTYPE_SPARSE, False),
        (tarfile.SYMTYPE, False),
        (tarfile.LNKTYPE, False),
        (tarfile.FIFOTYPE, False),
    ],
)
def test_the_kinds_of_members_that_are_files(kind: bytes, is_file: bool) -> None:
    """An archive of an old tar has no kind."""
    data = patched(tar(("a", b"text")), 156, kind)
    if is_file:
        assert read(data) == {"a": b"text"}
        return
    with pytest.raises(CkptError, match="holds a link or a device: a"):
        read(data)


@pytest.mark.parametrize(
    "format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_sees_what_tarfile_sees(format: int) -> None:
    members = []
    for index, name in enumerate(NAMES):
        if format == tarfile.USTAR_FORMAT and (len(name) > 200 or not name.isascii()):
            continue
        members.append((name, bytes([index]) * (index * 300)))
    folder = special("./", tarfile.DIRTYPE)
    data = tar(
        folder,
        *members,
        format=format,
        pax={"comment": "made by a test"} if format == 2 else None,
    )
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        theirs = {}
        for member in archive.getmembers():
            if member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                theirs[member.name.removeprefix("./")] = file.read()
    assert is_tar(data[:4096])
    assert read(data) == theirs
    assert len(theirs) == len(members)


def test_sizes_beyond_octal_digits() -> None:
    data = patched(tar(("a", b"x" * 600)), 124, b"\x80" + (600).to_bytes(11, "big"))
    assert read(data) == {"a": b"x" * 600}


A = ("a", b"x" * 600)
END = bytes(1024)
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a link": (
        lambda: tar(A, special("b", tarfile.SYMTYPE, "a")),
        "a link or a device",
    ),
    "a hard link": (
        lambda: tar(A, special("b", tarfile.LNKTYPE, "a")),
        "a link or a device",
    ),
    "a device": (lambda: tar(special("b", tarfile.CHRTYPE)), "a link or a device"),
    "a sparse file": (lambda: patched(tar(A), 156, b"S"), "a link or a device"),
    "twice": (lambda: tar(A, A), "'a' twice|a twice"),
    "twice by another way": (lambda: tar(A, ("./a", b"y")), "a twice"),
    "a file and a folder": (lambda: tar(A, special("a", tarfile.DIRTYPE)), "a twice"),
    "out": (lambda: tar(("../a", b"")), "leads elsewhere"),
    "out in the middle": (lambda: tar(("b/../../a", b"")), "leads elsewhere"),
    "absolute": (lambda: patched(tar(A), 0, b"/etc/passwd"), "leads elsewhere"),
    "no name": (lambda: patched(tar(A), 0, b"\0"), "leads elsewhere"),
    "a file like a folder": (lambda: patched(tar(A), 0, b"a/"), "leads elsewhere"),
    "a folder with data": (lambda: patched(tar(A), 156, b"5"), "folder with data"),
    "a checksum": (lambda: tar(A).replace(b"a\0", b"b\0", 1), "checksum"),
    "a size of letters": (lambda: patched(tar(A), 124, b"12345678zzz"), "invalid size"),
    "a negative size": (lambda: patched(tar(A), 124, b"\xff" * 12), "invalid size"),
    "a huge size": (lambda: patched(tar(A), 124, b"\x80" + b"\xff" * 11), "cut off"),
    "a size beyond the end": (lambda: patched(tar(A), 124, b"77777777777"), "cut off"),
    "a prefix under GNU's mark": (
        lambda: patched(patched(tar(A), 257, b"ustar  \0"), 345, b"out"),
        "see differently",
    ),
    "an unknown version": (
        lambda: patched(tar(A), 257, b"ustar\099"),
        "unknown version",
    ),
    "bytes after the end": (lambda: tar(A) + tar(("b", b"")), "follow the end"),
    "one empty block": (lambda: tar(A)[:1536] + bytes(512), "cut off"),
    "no end": (lambda: tar(A)[:1536], "cut off"),
    "an end within data": (lambda: tar(A)[:800], "cut off"),
    "a name for all": (
        lambda: tar(A, format=tarfile.PAX_FORMAT, pax={"path": "b"}),
        "for all members",
    ),
    "a sparse record": (
        lambda: extended(b"x", record("GNU.sparse.major", "1")),
        "does not read",
    ),
    "a character set": (
        lambda: extended(b"x", record("hdrcharset", "BINARY")),
        "does not read",
    ),
    "a size of pax": (lambda: extended(b"x", record("size", "-1")), "invalid size"),
    "a record twice": (
        lambda: extended(b"x", record("path", "a") + record("path", "b")),
        "twice",
    ),
    "a damaged record": (lambda: extended(b"x", b"99 path=a\n"), "damaged records"),
    "a record without length": (lambda: extended(b"x", b"path=a\n"), "damaged records"),
    "two headers in a row": (
        lambda: extended(b"x", record("path", "a"), tar(("@", b""), format=1)),
        "in a row",
    ),
    "an endless header": (
        lambda: extended(b"L", b"n" * 70_000),
        "a header of 70,000 bytes",
    ),
    "a NUL in a name": (lambda: extended(b"L", b"a\0b\0"), "NUL"),
    "a name that is no UTF-8": (lambda: extended(b"L", b"\xff\xfe\0"), "not UTF-8"),
    "a header at the end": (lambda: extended(b"L", b"name\0")[:1024], "cut off"),
}


def record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


def extended(kind: bytes, content: bytes, then: bytes | None = None) -> bytes:
    """A member behind an extension header with this content."""
    if then is not None:  # the next header is an extension itself
        then = patched(then, 156, b"L")
    head = patched(tar(("@Ext", content)), 156, kind)
    return head[: 512 + -(-len(content) // 512) * 512] + (
        tar(A) if then is None else then
    )


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(CkptError, match=says):
        read(make())


def test_every_cut_is_noticed() -> None:
    data = tar(A, ("b", b"y" * 100), format=tarfile.PAX_FORMAT)
    whole = (
        len(data.rstrip(b"\0")) // 512 * 512 + 512 + 1024
    )  # with both blocks of the end
    for size in range(0, whole, 64):
        with pytest.raises(CutOffError):
            read(data[:size])
    assert len(read(data[:whole])) == 2


def test_members_are_limited() -> None:
    data = tar(*((f"m{index}", b"") for index in range(20)))
    with pytest.raises(LimitError, match="too many members"):
        read(data, Limits(entries=10))
    with pytest.raises(LimitError, match="memory"):
        read(data, Limits(memory=5_000))


def test_a_checksum_of_signed_bytes_is_one_too() -> None:
    """As old writers and Python's tarfile count: a name with bytes beyond ASCII has two
    sums.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as file:
        file.addfile(tarfile.TarInfo("n\u00e4me"))
    head = bytearray(out.getvalue()[:512])
    signed = sum(
        byte - 256 * (byte > 127) for byte in head[:148] + b" " * 8 + head[156:]
    )
    head[148:156] = b"%06o\0 " % signed
    with tarfile.open(fileobj=io.BytesIO(bytes(head) + bytes(1024))) as file:
        assert file.getnames()
    assert is_tar(bytes(head))
    head[148:156] = b"%06o\0 " % (signed + 1)
    assert not is_tar(bytes(head))


def test_a_tar_header_that_is_a_compressed_pickle_too_is_refused(
    tmp_path: Path,
) -> None:
    head = bytearray(gzip.compress(pickle.dumps({"a": 1}, 2)).ljust(512, b"\0"))
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    assert is_tar(bytes(head))
    (tmp_path / "x.pt").write_bytes(bytes(head) + bytes(1024))
    with pytest.raises(CkptError, match="other loaders a compressed pickle"):
        formats.open(str(tmp_path / "x.pt"))
