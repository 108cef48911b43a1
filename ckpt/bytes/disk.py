"""The abilities of a file system: share blocks between files, and force a range to the
disk by itself.

An ability that is not known counts as missing: then files are copied, and forced to the
disk as a whole.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from ckpt.model.rows import NamedTuple

PAGE = 4096
"""Bytes of a page. A copy is fastest, and can share blocks, when it keeps its position
within one.
"""
_SHARING = frozenset(("xfs", "btrfs"))
"""File systems on which `copy_file_range` makes two files share whole blocks."""


class FileSystem(NamedTuple):
    """A file system as Linux mounts it: its type, and its device as `MAJOR:MINOR`."""

    type: str
    device: str


UNKNOWN = FileSystem("", "")


def file_system_of(fd: int) -> FileSystem:
    """The file system of an open file; UNKNOWN where the system does not say.

    The file is found by the number of its mount, because `st_dev` on btrfs is not the
    device that /proc/self/mountinfo lists.
    """
    try:
        mount = _proc_field(f"/proc/self/fdinfo/{fd}", "mnt_id:")
        with open("/proc/self/mountinfo", "rb") as lines:
            for line in lines:
                # The number of the mount, of its parent, and the device.
                number, _, device, *_ = line.split(b" ", 3)
                if number == mount:
                    # Any number of optional fields end with a dash: the type follows.
                    type_name = line.partition(b" - ")[2].split()[0]
                    return FileSystem(type_name.decode(), device.decode())
    except (OSError, ValueError, IndexError):
        pass
    return UNKNOWN


def shared_block(fd: int, sources: Iterable[int | None]) -> int:
    """The bytes of a block where a file can share blocks with one of the descriptors
    `sources`, else 0.

    Nothing may be reserved in such a file: btrfs keeps what is reserved beside what is
    shared.
    """
    here = file_system_of(fd)
    if here.type not in _SHARING:
        return 0
    if all(source is None or file_system_of(source) != here for source in sources):
        return 0
    try:
        return os.fstatvfs(fd).f_bsize
    except OSError:
        return 0


def reserve_space(fd: int, size: int, most: int) -> None:
    """Reserve the space of a file now, `most` bytes of it, so that a full disk fails at
    once.

    What is free is asked first: a reservation that fails takes all of the disk until it
    does.
    """
    room = os.fstatvfs(fd)
    # A part of the disk is kept for root.
    blocks = room.f_bavail if os.geteuid() else room.f_bfree
    free = blocks * room.f_frsize
    # A file system that counts nothing says 0.
    if free < size and room.f_blocks:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # macOS has no such call.
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        if size and most:
            os.posix_fallocate(fd, 0, min(size, most))
    except OSError as error:
        # The file system cannot reserve: a full disk then shows while writing.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def writes_through(fd: int) -> bool:
    """Tell whether a write with RWF_DSYNC is on the disk when it returns, and is found
    after a power loss.

    That is promised everywhere. It is used where a journal takes the new size and the
    new blocks as one, so that no crash leaves one without the other: on XFS, and on
    ext4 with its journal.
    """
    if not hasattr(os, "pwritev") or not hasattr(os, "RWF_DSYNC"):
        return False
    here = file_system_of(fd)
    return here.type == "xfs" or (here.type == "ext4" and _has_journal(here.device))


def _has_journal(device: str) -> bool:
    """Tell whether an ext4 has its journal. Only with one do its options say how data
    is ordered.
    """
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{device}"))
        with open(f"/proc/fs/ext4/{name}/options", "rb") as lines:
            return any(line.startswith(b"data=") for line in lines)
    except OSError:
        return False


def _proc_field(path: str, name: str) -> bytes:
    """A field of a file of /proc. Raises OSError, ValueError."""
    with open(path, "rb") as lines:
        for line in lines:
            key, _, value = line.partition(b"\t")
            if key == name.encode():
                return value.strip()
    raise ValueError(name)
