"""Names the files that are not checkpoints, or that ckpt does not read. Only first
bytes and directories are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing

from ckpt.bytes.location import LocalPath, Location
from ckpt.formats.common.archive import FLATBUFFERS, Archive
from ckpt.formats.common.refused import (
    COMPRESSED,
    compressed_error,
    repacked_error,
    tar_error,
)
from ckpt.formats.common.steps import steps_in
from ckpt.formats.common.tar import names_seen
from ckpt.formats.common.zip_layout import begins_as_torch
from ckpt.formats.format import HEAD_BYTES, PICKLE, WEIGHTS, Format, Probe
from ckpt.formats.programs import folder_of, keras_of, program_of
from ckpt.formats.zarr import AS_DIST, ZARR, has_arrays
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.errors import (
    CkptError,
    FolderError,
    NotOpenedError,
    StandInError,
    UnreadableError,
    UnsupportedError,
)
from ckpt.model.limits import Limits
from ckpt.model.names import is_index
from ckpt.model.text import and_more, counted_noun, pasted_path, show

_SMALL = 1 << 20
"""The most bytes of a file that is read whole, to say that all of them are zero."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    raise _directory_error(probe.location) if probe.is_folder else _file_error(probe)


# --- files ----------------------------------------------------------------------------

_7Z = b"7z\xbc\xaf\x27\x1c"
_ZSTD = b"\x28\xb5\x2f\xfd"
_RAR = b"Rar!"
_MAGICS: tuple[tuple[bytes, str, str | None], ...] = (
    (_7Z, "a 7z archive", "unpack it first"),
    (_ZSTD, "compressed with zstd", "unzstd it first"),
    (_RAR, "a RAR archive", "unpack it first"),
    (b"\x93NUMPY", "not a checkpoint: a numpy array (.npy)", None),
    (b"\x89PNG", "not a checkpoint: a PNG picture", None),
    (b"\xff\xd8\xff", "not a checkpoint: a JPEG picture", None),
    (b"%PDF", "not a checkpoint: a PDF", None),
    (b"\x7fELF", "not a checkpoint: a program (ELF)", None),
    (
        b"PYTORCH1",
        "a TorchScript preview from before torch 1.0; no torch release reads it",
        None,
    ),
    (b"PK\x05\x06", "not a checkpoint: an empty zip archive", None),
    (b"ply\n", "not a checkpoint: a cloud of points (PLY)", None),
    (b"ply\r\n", "not a checkpoint: a cloud of points (PLY)", None),
    (b"glTF", "not a checkpoint: a 3D model (glTF)", None),
)
_HTML = (b"<!doctype", b"<html", b"<head")


def _file_error(probe: Probe) -> CkptError:
    """The error on a file that no format reads: what it is, by the first sign of it."""
    # In this order: magic bytes are sure, and what is read as text may be anything.
    for find_error in (_error_of_bytes, _error_of_archive, _error_of_text):
        error = find_error(probe)
        if error is not None:
            return error
    return UnsupportedError("not a checkpoint: its first bytes match no known format")


def _error_of_bytes(probe: Probe) -> CkptError | None:
    """The error on a file whose first bytes, or whose lack of them, tell what it is."""
    head = probe.head
    if probe.size == 0:
        return UnreadableError(
            "an empty file",
            hint="an unfinished save, or a full disk? use an earlier save",
        )
    if head[257:262] == b"ustar" or probe.is_tar:
        return tar_error("a tar archive", probe.path, names_seen(probe.file))
    overwritten = _overwritten_error(probe)
    if overwritten is not None:
        return overwritten
    if _is_behind(probe):
        return UnsupportedError(
            "a zip archive with checkpoints behind other bytes", hint="unzip it first"
        )
    if head.startswith(b"version https://git-lfs"):
        return StandInError("a Git LFS pointer, not the file", hint="git lfs pull")
    if _is_array_of_objects(head):
        return UnsupportedError(
            "not a checkpoint: an array of objects of numpy, which is a pickle"
        )
    if head.startswith(COMPRESSED):
        return compressed_error(probe)
    for magic, what, hint in _MAGICS:
        if head.startswith(magic):
            return UnsupportedError(what, hint=hint)
    return None


def _error_of_archive(probe: Probe) -> CkptError | None:
    """The error on a file of JAX, by its name, and on a zip archive."""
    other = _jax_error({os.path.basename(probe.path)})
    if other is not None:
        return other
    if probe.archive is not None:
        return _archive_error(probe.archive, probe.path)
    return None


def _error_of_text(probe: Probe) -> CkptError | None:
    """The error on zeros, on a page, on a program and its files, and on text."""
    head = probe.head
    if not head.strip(b"\0"):
        return _zeros_error(probe)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if text.startswith(_HTML):
        return StandInError("not a checkpoint: an HTML page", hint="a failed download?")
    if text.startswith(b"<?xml"):
        return StandInError(
            "not a checkpoint: XML", hint="the error message of a server?"
        )
    if head[4:8] in FLATBUFFERS:
        return UnsupportedError(
            "not a checkpoint: a flatbuffer of the mobile interpreter"
        )
    program = program_of(probe)
    if program is not None:
        return UnsupportedError(
            f"not a PyTorch checkpoint: {program.what}", hint=program.opener
        )
    if text.startswith((b"{", b"[")):
        return _json_error(head)
    if _is_text(head):
        return UnsupportedError("not a checkpoint: a text file")
    return None


def _zeros_error(probe: Probe) -> CkptError:
    """The error on a file that begins with zeros."""
    what = f"the first {len(probe.head):,} bytes are zero"
    if probe.size <= _SMALL and not probe.file.read(0, probe.size).strip(b"\0"):
        what = "all bytes are zero"
    return UnreadableError(f"not a checkpoint: {what}", hint="an unfinished write?")


def _json_error(head: bytes) -> CkptError:
    """The error on JSON. An index and a listing have a use under another name."""
    what = "JSON"
    hint = None
    if b'"weight_map"' in head:
        hint = "name it *.index.json to read the shards that it lists"
    elif b'"ckpt.inspect"' in head:
        what = "a listing from ckpt inspect --json"
        hint = "only diff --structure reads it"
    return UnsupportedError(f"not a checkpoint: {what}", hint=hint)


_OURS = (
    ".pth",
    ".pt",
    ".pt2",
    ".safetensors",
    ".ckpt",
    ".nemo",
    ".mar",
    ".distcp",
    ".metadata",
    *PICKLE,
)
_PACKED = (
    ".zip",
    ".tar",
    ".tgz",
    ".gz",
    ".bz2",
    ".xz",
    ".lzma",
    ".zst",
    ".lz4",
    ".7z",
    ".rar",
)
"""Endings of archives and streams inside of an archive, which nobody looks into."""
_BIN = re.compile(
    r"(?:model|weights|adapter|optimizer|scheduler|scaler|sampler|states?"
    r"|args)[^/]*\.bin"
)
"""The names that frameworks give to files of torch.save. Many others end in
.bin too.
"""


def holds_checkpoints(probe: Probe) -> bool:
    """Tell whether an archive or a compressed file that no format reads holds
    checkpoints or pickles, as far as that is seen.

    One that cannot be looked into counts too: nobody knows what is in it.
    """
    # Here: most files are known.
    from ckpt.formats.common.arrays import (
        find_unpickled,
        header_size,
        is_object_array,
    )
    from ckpt.formats.common.following import has_objects

    if probe.source is None:
        return False
    try:
        if probe.archive is not None:
            names = probe.archive.records
            return any(map(_is_ours, names)) or has_objects(probe.archive)
    except CkptError:
        # Refused as a whole; the names in it decide. numpy reads what ckpt refuses.
        return _may_name_checkpoints(probe) or _may_hold_arrays(probe)
    if probe.head.startswith(_CLOSED) or is_object_array(probe.head):
        return True
    if header_size(probe.head) and find_unpickled(probe.file, Limits()) is not None:
        return True  # behind an array of numbers
    if _is_behind(probe):
        return True
    # numpy takes it for an archive, which zipfile finds from the end.
    if probe.head.startswith(b"PK\x05\x06") and probe.size > _EMPTY:
        return True
    if probe.is_tar:
        return _may_name_checkpoints(probe)
    return _holds_inside(probe)


def _may_name_checkpoints(probe: Probe) -> bool:
    """Tell whether a name of a checkpoint is among the bytes of a file, or the file is
    too large to be searched.
    """
    return probe.size > _INSIDE or _names_checkpoints(probe.file.read(0, probe.size))


def _may_hold_arrays(probe: Probe) -> bool:
    """Tell whether an archive that is refused is one of arrays of numpy, by its name
    and the names in it.

    Duplicates and records in bzip2 or xz are refused, and numpy reads them.
    """
    if probe.path.lower().endswith((".npz", ".npy")):
        return True
    data = probe.file.read(0, probe.size)
    return any(name.endswith(b".npy") for name in _zip_names(data))


_SKIPPED = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
"""The first bytes of a frame that zstd and lz4 pass over, before one of theirs."""
_CLOSED = (
    _7Z,
    _ZSTD,
    _RAR,
    b"\x04\x22\x4d\x18",  # lz4
    b"\x02\x21\x4c\x18",  # lz4 in its legacy frame
    *_SKIPPED,
    b"LZIP",
    b"\x1f\x9d",  # compress of Unix
)
"""The first bytes of files that ckpt cannot look into. joblib reads lz4."""


def _is_behind(probe: Probe) -> bool:
    """Tell whether an archive with checkpoints lies behind other bytes: zipfile and
    torch find it from the end.
    """
    # Here: most files are none.
    from ckpt.formats.common.two_files import directories, names_of

    for begin, size, _ in directories(probe.file):
        names = names_of(probe.file, begin, size)
        if any(_is_ours(name.decode("utf-8", "replace")) for name in names):
            return True
    return False


def _overwritten_error(probe: Probe) -> CkptError | None:
    """Return the error for an archive whose own beginning is overwritten, or None.

    Bytes in front of an archive shift all that its directory says. Where nothing is
    shifted, the lost bytes are its own.
    """
    # Here: most files are none.
    from ckpt.formats.common.two_files import directories, headers_of, names_of

    for begin, size, is_shifted in directories(probe.file):
        names = [
            name.decode("utf-8", "replace")
            for name in names_of(probe.file, begin, size)
        ]
        if is_shifted or not any(map(_is_ours, names)):
            continue
        has_header = headers_of(probe.file, begin, size)
        # The beginning is what was overwritten, so the first record lost its header.
        if not has_header or has_header[0]:
            continue
        first = "zero" if not probe.head.strip(b"\0") else "of something else"
        what = f"the first {len(probe.head):,} bytes are {first}"
        lost = has_header.count(False)
        records = counted_noun(len(has_header), "record")
        return UnreadableError(
            f"the beginning of a zip archive is overwritten: {what}, and {lost:,} of "
            f"the {records} that its directory lists have no header where it says",
            hint="download it again, or take another copy",
        )
    return None


def _is_array_of_objects(head: bytes) -> bool:
    # Here: most files are none.
    from ckpt.formats.common.arrays import is_object_array

    return is_object_array(head)


_EMPTY = 22
"""Bytes of a zip archive without records and without a comment."""


def _is_ours(name: str) -> bool:
    """Tell whether a file of this name may be a checkpoint, a pickle, or another
    archive.
    """
    lower = name.lower()
    if lower.endswith((*_OURS, *_PACKED)) or name in _OF_TAR:
        return True
    return _BIN.search(lower) is not None


_INSIDE = 32 << 20
"""The most bytes of an archive that are searched for names, where its directory is not
read.
"""
_OF_TAR = frozenset(("sys_info", "pickle", "storages", "tensors"))
"""The members of a tar archive of torch."""
_ZIP_NAMES = re.compile(b"PK\x01\x02.{24}(..).{16}", re.DOTALL)


_WITH_MAGIC = ("gzip", "bzip2", "xz")
"""Streams that begin with bytes of their own."""


def _holds_inside(probe: Probe) -> bool:
    """Tell whether a stream of gzip, bzip2, xz or zlib holds another archive with
    checkpoints, or cannot be looked into.
    """
    # Here: most files are no stream.
    from ckpt.formats.common.packed import beginning, is_broken, packing
    from ckpt.formats.common.tar import is_tar

    how = packing(probe.head)
    if how is None:
        return False
    inside = beginning(probe.file, how, HEAD_BYTES)
    if not inside:
        # zlib has no magic bytes: many files begin like a stream of it, and are none.
        has_magic = how.name in _WITH_MAGIC or probe.head.startswith(b"ZF0x")
        return has_magic and is_broken(probe.file, how)
    if not inside.startswith(b"PK") and not is_tar(inside):
        # A stream inside of a stream is not looked into.
        other = packing(inside)
        return other is not None and other.name in (*_WITH_MAGIC, "ZF")
    content = beginning(probe.file, how, _INSIDE) or b""
    return len(content) >= _INSIDE or _names_checkpoints(content)


def _zip_names(data: bytes) -> Iterator[bytes]:
    """Yield all that any reader could take for a name in a zip archive."""
    for match in _ZIP_NAMES.finditer(data):
        length = int.from_bytes(match[1], "little")
        yield data[match.end() : match.end() + length]


def _names_checkpoints(data: bytes) -> bool:
    """Tell whether the directory of a zip archive, or the headers of a tar archive,
    name a checkpoint or a pickle.

    All that any reader could take for a header counts, so what the readers of ckpt
    refuse is searched too.
    """
    from ckpt.formats.common.tar import BLOCK, is_tar

    for name in _zip_names(data):
        if _is_ours(name.decode("utf-8", "replace")):
            return True
    if not is_tar(data[:BLOCK]):
        return False
    for offset in range(0, len(data), BLOCK):
        block = data[offset : offset + BLOCK]
        if not is_tar(block):
            continue
        names = [block[:100].partition(b"\0")[0]]
        if block[156:157] in b"xgL":  # a long name, or records with one, follows
            behind = offset + BLOCK
            names += re.split(rb"[\n\0]", data[behind : behind + _LONG_NAME])
        for name in names:
            if _is_ours(name.decode("utf-8", "replace").removeprefix("./")):
                return True
    return False


_LONG_NAME = 4_096
"""Bytes behind the header of a tar archive in which a long name is looked for."""


_BEFORE_PICKLE = frozenset(
    (
        "version",
        "byteorder",
        ".format_version",
        ".storage_alignment",
        ".data/serialization_id",
    )
)
"""The records that torch writes when it closes an archive, also without a pickle."""


def _archive_error(archive: Archive, path: str) -> CkptError:
    names = archive.records
    flat = set(names)
    if not names:
        return UnsupportedError("not a checkpoint: an empty zip archive")
    if any(name.endswith("/data.pkl") or name == "data.pkl" for name in names):
        return repacked_error(list(names), path)
    program = keras_of(flat)
    if program is not None:
        return UnsupportedError(
            f"not a PyTorch checkpoint: {program.what}", hint=program.opener
        )
    if all(name.endswith(".npy") for name in names):
        return UnsupportedError(
            "not a checkpoint: numpy arrays (.npz)",
            hint="numpy.load gives its arrays by name, as of a model of JAX",
        )
    if "[Content_Types].xml" in flat:
        return UnsupportedError("not a checkpoint: an office document")
    if any(name.lower().endswith(WEIGHTS) for name in names):
        return UnsupportedError("a zip archive of checkpoints", hint="unzip it first")
    # All records lie in one folder, which has the name of the file.
    if {name.partition("/")[2] for name in names} <= _BEFORE_PICKLE:
        return UnsupportedError(
            "not a checkpoint: torch.save stopped before it wrote data.pkl",
            hint="an object that cannot be pickled? use an earlier save",
        )
    return UnsupportedError("not a checkpoint: a zip archive without data.pkl")


def _is_text(head: bytes) -> bool:
    sample = head[:512]
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        # The sample may end inside of a character, of at most four bytes.
        if error.start < len(sample) - 4:
            return False
    return all(byte >= 0x20 or byte in b"\t\n\r\x0c\x1b" for byte in sample)


# --- directories ----------------------------------------------------------------------


_ORBAX = frozenset(("_CHECKPOINT_METADATA", "ocdbt.process_0", "manifest.ocdbt"))


def _jax_error(names: set[str]) -> CkptError | None:
    """Folders of JAX, and of libraries that keep one folder per tensor."""
    if names & _ORBAX:
        return UnsupportedError("a JAX checkpoint (Orbax), which ckpt does not read")
    if names & ZARR:
        return UnsupportedError(
            "a zarr array or group, which ckpt does not read",
            hint="Megatron's old backend?",
        )
    return None


def _directory_error(folder: Location) -> CkptError:
    try:
        listed = folder.names()
    except NotOpenedError as error:
        return error
    names = [name.removesuffix("/") for name in listed]
    jax = _jax_error(set(names))
    if jax is not None:
        return jax
    if has_arrays(folder):
        return UnsupportedError(
            "a folder of zarr arrays, which ckpt does not read", hint=AS_DIST
        )
    program = folder_of(set(names))
    if program is not None:
        return UnsupportedError(
            f"not a PyTorch checkpoint: {program.what}", hint=program.opener
        )
    files = [name for name in names if name.endswith(_FILES)]
    if not files:
        files = [name for name in names if _NUMBERED.search(name)]
    # Some checkpoints have another ending, or none: `epoch_1.tar`.
    counted = set(files)
    rest = [name for name in listed if not name.endswith("/") and name not in counted]
    others, unread = _archives_of_torch(folder, rest)
    files += others
    if files:
        count = counted_noun(len(files), "checkpoint file")
        held = f"at least {count}" if unread else count
        # Reached where the extension that reads folders was taken out.
        indexes = [name for name in names if is_index(name)]
        if indexes:
            index = pasted_path(f"{folder.name.rstrip('/')}/{indexes[0]}") or indexes[0]
            return FolderError(
                f"a directory with an index of shards; it holds {held}",
                hint=f"name the index: {index}",
            )
        first = pasted_path(f"{folder.name.rstrip('/')}/{files[0]}") or files[0]
        return FolderError(
            f"a directory without an index; it holds {held}",
            hint=f"name one, such as {first}",
        )
    steps = _steps_error(folder)
    if steps is not None:
        return steps
    if any(name.endswith("/") for name in folder.names()):
        # Only the folder itself was looked at, and runs often keep theirs one below.
        pasted = pasted_path(folder.name)
        return UnsupportedError(
            "no checkpoint lies right in this directory",
            hint=None if pasted is None else f"ckpt ls {pasted} looks below it",
        )
    left_out = f" ({counted_noun(unread, 'file')} not looked into)" if unread else ""
    return UnsupportedError(f"a directory without a checkpoint{left_out}")


_FILES = (*WEIGHTS, ".pth.tar", ".th")
"""Endings that say enough: such a file is counted without a look into it."""
_OPENED = 32
"""The most files of a folder whose first bytes are read, where no name says enough."""


def _archives_of_torch(folder: Location, names: list[str]) -> tuple[list[str], int]:
    """Return the files of these names that torch wrote in a folder of this machine,
    and the number of files that were not looked into.
    """
    if not isinstance(folder, LocalPath):
        return [], 0
    found: list[str] = []
    for name in names[:_OPENED]:
        try:
            source = folder.child(name, "no").open()
        except CkptError:
            continue
        with closing(source):
            if begins_as_torch(source.read(0, min(HEAD_BYTES, source.size))):
                found.append(name)
    return found, len(names[_OPENED:])


_NUMBERED = re.compile(
    r"\.(?:safetensors|bin|pt|pth|ckpt)[._-]\w{1,40}$", re.IGNORECASE
)
"""The ending of a checkpoint and more behind it: `pytorch_model.bin.3`,
`last.pth.bak`.
"""
_WHOLE = (
    r"\.metadata|__\d+\.metadata"
    r"|.*\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|.*\.(?:pt|pth|ckpt)"
    r"|latest|mp_rank_\d+(?:_\d+)*/"
    r"|(?:pytorch_model_fsdp|optimizer)_\d+/"
)
"""The names of which a whole folder of a step has one. A slash ends a folder's."""
_LOOKED = 1_000
"""The most of these folders that are searched for the newest one that is whole."""


def _steps_error(folder: Location) -> CkptError | None:
    """Return the error for a folder of folders that training saved one after the other,
    or None.

    It names the newest that has what a whole one has: `.metadata` is written last.
    """
    names = [name.removesuffix("/") for name in steps_in(folder.names())]
    names.reverse()  # the newest first
    whole = None
    for name in names[:_LOOKED]:
        if _is_whole(folder, name):
            whole = name
            break
    if whole is None:
        return None
    shown = show(whole, 80)
    text = f"a directory around {shown}"
    if len(names) > 1:
        listed = and_more([show(name, 80) for name in names], 3)
        text = f"a directory of {counted_noun(len(names), 'checkpoint')}: {listed}"
    newest = names[0]
    hint = f"name one; the newest is {shown}"
    if whole != newest:
        hint = f"name one; the newest complete is {shown}"
        hint += f"; {show(newest, 80)} is not complete"
    return FolderError(text, hint=hint)


def _is_whole(folder: Location, name: str) -> bool:
    """Tell whether a folder of a step has what is written last, or weights."""
    try:
        inner_names = folder.child(name, "no").names()
    except UnreadableError:
        return False
    return any(re.fullmatch(_WHOLE, inner) for inner in inner_names)


FORMAT = Format(
    "foreign", Traits("not a checkpoint"), lambda probe: True, reader=__name__
)
