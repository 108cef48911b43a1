"""The errors for checkpoints inside of something else, each with the command that takes
them out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.bytes.far import is_url
from ckpt.bytes.location import path_beside
from ckpt.bytes.source import Memory
from ckpt.formats.common.packed import beginning, packing
from ckpt.formats.common.tar import is_tar, names_seen
from ckpt.formats.format import HEAD_BYTES, WEIGHTS, Probe
from ckpt.model.errors import CkptError, UnsupportedError
from ckpt.model.text import and_more, counted_noun, pasted_path, show

_UNPACKERS = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz"}
"""The first bytes of compressed files -> the command that unpacks them."""
COMPRESSED = tuple(_UNPACKERS)
_ENDINGS = (".gz", ".bz2", ".xz")
_INSIDE = 32 << 20
"""The most bytes of a compressed archive that are searched for names."""
_NEMO = "model_weights.ckpt"
"""The member of an archive of NeMo that holds its weights."""


def compressed_error(probe: Probe) -> CkptError:
    """The error for a compressed file. `tar` unpacks an archive inside, whatever it was
    compressed with.
    """
    how = packing(probe.head)
    assert how is not None
    # A few bytes of the content say whether it is a tar archive.
    inside = beginning(probe.file, how, HEAD_BYTES) or b""
    if is_tar(inside):
        names = names_seen(Memory(beginning(probe.file, how, _INSIDE) or inside))
        # ckpt reads NeMo's archive as it is, once it is no longer compressed.
        if _NEMO not in names:
            return tar_error(f"a tar archive in {how.name}", probe.path, names)
    # A stream of zlib has no such program, and one of lzma has no first bytes to be
    # known by.
    program = next(
        (word for magic, word in _UNPACKERS.items() if probe.head.startswith(magic)),
        None,
    )
    hint = "unpack it first"
    if program is None:
        return UnsupportedError(f"compressed with {how.name}", hint=hint)
    return UnsupportedError(
        f"compressed with {how.name}", hint=_unpack_command(probe.path, program)
    )


def tar_error(what: str, path: str, names: Sequence[str]) -> CkptError:
    """The error for a tar archive: the checkpoints in it, and the command that unpacks
    them.
    """
    held = [show(name, 80) for name in names if name.lower().endswith(WEIGHTS)] or [
        show(name, 80) for name in names[:1] if len(names) == 1
    ]
    inside = f" with {and_more(held, 2)}" if held else ""
    word = pasted_path(path)
    hint = "unpack it first" if word is None or is_url(path) else f"tar -xf {word}"
    return UnsupportedError(f"{what}{inside}", hint=hint)


def _unpack_command(path: str, program: str) -> str | None:
    """The command that unpacks a file into another one beside it."""
    stem, ending = os.path.splitext(path)
    words = (
        pasted_path(path),
        pasted_path(stem if ending in _ENDINGS else f"{stem}.unpacked{ending}"),
    )
    return None if None in words else f"{program} -c {words[0]} > {words[1]}"


def repacked_error(names: Sequence[str], path: str) -> CkptError:
    """The error for an archive of torch.save that somebody has unpacked and zipped
    again, with another folder around or none.
    """
    pickles = [
        name for name in names if name == _PICKLE or name.endswith(f"/{_PICKLE}")
    ]
    # macOS adds a second tree with files about the first.
    pickles = [name for name in pickles if not name.startswith("__MACOSX/")] or pickles
    if len(pickles) > 1:
        what = (
            f"a zip archive of {counted_noun(len(pickles), 'unpacked archive')} of "
            "torch.save"
        )
        return UnsupportedError(what, hint="unzip it, and name one of its folders")
    root = pickles[0].removesuffix(_PICKLE)
    where = "at its root, where torch wants a folder"
    if root:
        where = f"in {show(root, 80)}, too deep for torch"
    what = (
        f"an archive of torch.save that was unpacked and zipped again: {_PICKLE} lies "
        f"{where}"
    )
    return UnsupportedError(what, hint=_take_out(path, root))


_PICKLE = "data.pkl"


def _take_out(path: str, root: str) -> str:
    """The commands that unpack such an archive, and write a file of torch from its
    folder.
    """
    # A free name beside the file, so that the command overwrites nothing.
    folder = (
        None if is_url(path) else path_beside(path, ".unpacked", ("",), other=False)
    )
    if is_url(path):
        to = None
    else:
        to = path_beside(path, ".converted", (".pth",), other=False)
    if folder is None or to is None:
        return "unzip it first"
    words = [
        pasted_path(word) for word in (path, folder, f"{folder}/{root}".rstrip("/"), to)
    ]
    if None in words:
        return "unzip it first"
    return f"unzip -q {words[0]} -d {words[1]} && ckpt convert {words[2]} -o {words[3]}"
