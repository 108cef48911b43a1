"""The identity of a file or a folder: what tells whether it is still what was judged.
Its name and its owner are no part.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256

from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple

_MOST = 200_000
"""The most files and folders below one folder."""
_DEEPEST = 100
"""The most folders inside of each other."""


class Member(NamedTuple):
    """A file, a folder or a link below a folder, by its path from there."""

    path: str
    is_folder: bool
    device: int
    inode: int
    size: int
    changed: int
    """Nanoseconds of the last change of its content. Those of folders are left out:
    they follow from their members.
    """
    touched: int
    """Nanoseconds of the last change of its content, its name, its owner or its links,
    which no program can set.
    """


class Identity(NamedTuple):
    """A file, or a folder with all that lies in it. Two are equal when nothing in it
    was written meanwhile.
    """

    is_folder: bool
    device: int
    inode: int
    size: int
    changed: int
    touched: int
    members: tuple[Member, ...] = ()
    """Of a folder, each before what lies in it."""

    @property
    def renamed(self) -> Identity:
        """The identity that holds after a renaming, which touches the file or folder
        itself.
        """
        return self._replace(touched=0)

    @property
    def content(self) -> Identity:
        """The identity by content alone: another link to it, or another owner, changes
        nothing.
        """
        # A hard link, or `chown`, touches the file and changes no byte.
        members = tuple(member._replace(touched=0) for member in self.members)
        return self._replace(touched=0, members=members)

    @property
    def nbytes(self) -> int:
        """The bytes of its files."""
        return self.size + sum(member.size for member in self.members)

    @property
    def last_change(self) -> int:
        """Nanoseconds of the last change of a file, or of the largest one in a folder:
        notes beside it come later.
        """
        # (size, time) of each file: the largest is the weights, written in one go.
        files = [
            (member.size, member.changed)
            for member in self.members
            if not member.is_folder
        ]
        return max(files)[1] if files else self.changed

    @property
    def token(self) -> str:
        """Twelve hexadecimal digits that tell it from others in its folder. Those of a
        folder hold while it is emptied.
        """
        what: tuple[int, ...] = (self.inode,)
        # The size and the time of a folder change while it is emptied.
        if not self.is_folder:
            what = (self.inode, self.size, self.changed)
        return sha256(repr(what).encode()).hexdigest()[:12]


def identity_of(path: str, folder: int | None = None) -> Identity:
    """Return the identity of a regular file or a folder; links are not followed.
    `folder` is a descriptor that paths start from.

    Raises OSError, and UnreadableError for anything else and for a folder that is too
    large.
    """
    status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return Identity(
            False,
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
    if not stat.S_ISDIR(status.st_mode):
        raise UnreadableError("not a regular file or folder", path=path)
    # O_NOFOLLOW: a link may have taken the folder's place since `stat`.
    fd = os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        members: list[Member] = []
        for member in _members_of(fd, "", 1):
            members.append(member)
            # Counted while it is listed: a folder of millions of files ends here.
            if len(members) > _MOST:
                raise UnreadableError(
                    f"the folder holds over {_MOST:,} files", path=path
                )
    finally:
        os.close(fd)
    # An empty folder has nothing but its own time.
    changed = 0 if members else status.st_mtime_ns
    return Identity(
        True,
        status.st_dev,
        status.st_ino,
        0,
        changed,
        status.st_ctime_ns,
        tuple(members),
    )


def _members_of(folder: int, above: str, depth: int) -> Iterator[Member]:
    """Yield what lies in an open folder and below it, in the order of the names."""
    if depth > _DEEPEST:
        raise UnreadableError(f"folders are nested more than {_DEEPEST} deep")
    # By descriptor: no path can lead out of the folder, whatever is renamed above it.
    for name in sorted(os.listdir(folder)):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        path = f"{above}{name}"
        is_folder = stat.S_ISDIR(status.st_mode)
        size = 0 if is_folder else status.st_size
        changed = 0 if is_folder else status.st_mtime_ns
        touched = 0 if is_folder else status.st_ctime_ns
        yield Member(
            path, is_folder, status.st_dev, status.st_ino, size, changed, touched
        )
        if is_folder:
            fd = os.open(
                name,
                os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                dir_fd=folder,
            )
            try:
                yield from _members_of(fd, f"{path}/", depth + 1)
            finally:
                os.close(fd)
