"""The reader of an archive of torch.save that somebody has unpacked, as if its files
lay end to end in an archive.
"""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.bytes.source import Joined, Source, read_limited
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record, Records
from ckpt.formats.common.early import is_pickle_too
from ckpt.formats.format import HEAD_BYTES, Probe
from ckpt.formats.format import no_checksums as checksums  # noqa: F401  (of the verifier)
from ckpt.formats.torch_zip.unpacked import (
    FORMAT,
    PICKLE,
    folder_of,
    last_step,
    list_names,
)
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import (
    CkptError,
    LimitError,
    UnsupportedError,
)
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import replace
from ckpt.model.text import pasted_path
from ckpt.pickle.machine import run_machine

_SMALL = ("version", "byteorder", ".format_version", ".storage_alignment")
"""Records of torch.save beside the pickle."""
_FOLDERS = ("data", ".data")
_OF_TORCH = (".data/serialization_id", ".data/version")
_LETTERS = 64
"""The most bytes of a small record. No checkpoint is as short, and pickles are
judged.
"""
_PROGRAM = ("constants.pkl", "code/")


def list_files(probe: Probe) -> tuple[str, ...] | None:
    folder = folder_of(probe)
    if folder is None:
        return None
    inner = "" if folder.name == probe.location.name else f"{last_step(folder)}/"
    keys = _keys_of(folder, probe.limits)
    # Any other file is judged by itself.
    kept = [
        name
        for name, file in _list_members(folder)
        if keys is None or _is_read(name, file, keys, probe.limits)
    ]
    return tuple(inner + name for name in kept)


def _is_read(name: str, file: Location, keys: set[str], limits: Limits) -> bool:
    """Tell whether a file belongs to the checkpoint: its pickle, a storage that this
    names, or a few letters of torch.

    A storage that is a pickle too is a file of its own: nothing but its name says that
    nobody unpickles it.
    """
    if name == PICKLE:
        return True
    source = file.open()
    try:
        if name.removeprefix("data/") in keys:
            head = source.read(0, min(source.size, HEAD_BYTES))
            return not head or not is_pickle_too(head, source, limits)
        return name in (*_SMALL, *_OF_TORCH) and source.size <= _LETTERS
    finally:
        source.close()


def read(probe: Probe, limits: Limits) -> Checkpoint:
    # Here: few folders are such an archive.
    from ckpt.formats.torch_zip.reader import read_from

    folder = folder_of(probe)
    assert folder is not None
    names = list_names(folder)
    zip_again = _zip_command(folder)
    if any(name in names for name in _PROGRAM):
        problem = "an unpacked TorchScript archive, which ckpt reads as an archive only"
        raise UnsupportedError(problem, hint=zip_again)
    members = _list_members(folder)
    if len(members) > limits.entries:
        raise LimitError("the folder holds too many files", "entries", limits.entries)
    sources: list[Source] = []
    try:
        for _, location in members:
            sources.append(location.open())
        joined = Joined(folder.name, sources)
        root = last_step(folder)
        records = Records()
        offset = 0
        # As if the files lay end to end in an archive without headers.
        for (name, _), source in zip(members, sources, strict=True):
            record = Record(
                name=f"{root}/{name}",
                offset=offset,
                stored=source.size,
                size=source.size,
                deflated=False,
                crc=None,
                header=offset,
            )
            records.add(record)
            offset += source.size
        archive = Archive(joined, root, records, (), is_partial=probe.partial)
        checkpoint = read_from(archive, folder.name, limits, probe.mark, probe.budget)
    except BaseException:
        for source in sources:
            source.close()
        raise
    text = (
        "the files of an archive of torch.save that was unpacked: nothing is lost, but "
        "torch.load takes the archive"
    )
    return replace(
        checkpoint,
        format=FORMAT.name,
        traits=FORMAT.traits,
        nbytes=offset,
        origin=None,
        not_loadable="torch.load takes the archive that these files were in",
        account=checkpoint.account.with_notices(
            Notice("unpacked", text, (), zip_again)
        ),
    )


def _keys_of(folder: Location, limits: Limits) -> set[str] | None:
    """The keys of the storages that the pickle names, or None for a pickle that cannot
    be read.
    """
    source = folder.child(PICKLE, "no").open()
    try:
        budget = Budget(limits, source.size)
        data = read_limited(source, limits.pickle_bytes, "pickle-bytes", PICKLE)
        pickle = run_machine(data, limits, 0, budget)
    except CkptError:
        return None
    finally:
        source.close()
    keys: set[str] = set()
    for persistent in pickle.persistent:
        pid = persistent.pid
        if type(pid) is tuple and len(pid) > 2 and isinstance(pid[2], (str, int)):
            keys.add(str(pid[2]))
    return keys


def _list_members(folder: Location) -> list[tuple[str, Location]]:
    """The files of the archive by their names in it, in the order of torch. No link is
    followed.
    """
    names = list_names(folder)
    members: list[tuple[str, Location]] = []
    for name in (PICKLE, *_SMALL):
        if name in names:
            members.append((name, folder.child(name, "no")))
    for inner in _FOLDERS:
        if f"{inner}/" in names:
            below = folder.child(inner, "no")
            keys = sorted(
                (key for key in list_names(below) if not key.endswith("/")),
                key=natural_sort_key,
            )
            members += [(f"{inner}/{key}", below.child(key, "no")) for key in keys]
    return members


def _zip_command(folder: Location) -> str | None:
    """Return the command that makes the archive again, beside the folder, or None if no
    shell takes its name.
    """
    path = folder.name.rstrip("/")
    above, _, name = path.rpartition("/")
    words = [pasted_path(word) for word in (above or ".", name, f"{name}.pth")]
    if None in words or name in ("", ".", ".."):
        return None
    command = f"zip -0 -D -r {words[2]} {words[1]}"
    return f"(cd {words[0]} && {command})" if above else command
