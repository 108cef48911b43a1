"""Removing checkpoints: what is removed is what was judged, and a kill leaves no half
under a checkpoint's name.

Each is first renamed to a hidden name in its folder, then looked at once more: where it
is not what was judged, it gets its name back. Only then it is removed. The hidden name
holds a token of its identity, so the next run knows it again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from ckpt.bytes.target import (
    NO_REPLACE,
    rename_with_flags,
    sync_folder,
    write_failure_reason,
)
from ckpt.ext.prune.identity import Identity, Member, identity_of
from ckpt.model.errors import UnreadableError, WriteError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

SUFFIX = ".ckpt-pruned"
_HIDDEN = re.compile(
    rf"\.(?P<name>.+)\.(?P<token>[0-9a-f]{{12}}){re.escape(SUFFIX)}", re.DOTALL
)
_LONGEST = 200
"""Bytes of a name that its hidden name keeps; file systems take 255."""


class Victim(NamedTuple):
    """A file or folder that is to go, by its name in the folder of the run, and what it
    was when it was judged.
    """

    name: str
    identity: Identity


class Removed(NamedTuple):
    """The outcome of one removal: `problem` says why it is still there, or what is left
    of it.
    """

    name: str
    problem: str | None = None


def hidden_name(victim: Victim) -> str:
    """The name that a file or folder has between its renaming and its end."""
    kept = os.fsdecode(os.fsencode(victim.name)[:_LONGEST])
    return f".{kept}.{victim.identity.token}{SUFFIX}"


def is_hidden(name: str) -> bool:
    """Tell whether a name is one that a removal gives."""
    return _HIDDEN.fullmatch(name) is not None


def is_left_over(name: str, identity: Identity) -> bool:
    """Tell whether a file or folder is what an interrupted removal renamed, and not
    something that came in its place.
    """
    match = _HIDDEN.fullmatch(name)
    return match is not None and match["token"] == identity.token


class Folder:
    """The folder of a run, held open, so that no name leads out of it however its path
    changes.
    """

    def __init__(self, path: str, device: int, inode: int) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WriteError(
                f"cannot be opened: {write_failure_reason(error)}", path=path
            ) from None
        status = os.fstat(self._fd)
        # The path may lead to another folder by now, such as a new mount.
        if (status.st_dev, status.st_ino) != (device, inode):
            self.close()
            raise WriteError(
                "the folder is another one than the one that was judged", path=path
            )
        # Renaming without replacing works by path: the real one is kept.
        self._real = os.path.realpath(path)
        if not os.access(self._real, os.W_OK | os.X_OK):
            self.close()
            raise WriteError("no permission to remove files of this folder", path=path)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._fd)

    def holds(self, victim: Victim) -> bool:
        """Tell whether a file or folder is there with the content that was judged."""
        identity = self._identity_of(victim.name)
        return identity is not None and identity.content == victim.identity.content

    def _identity_of(self, name: str) -> Identity | None:
        """The identity of a name, or None where it cannot be told."""
        try:
            return identity_of(name, self._fd)
        except (OSError, UnreadableError):
            return None

    def remove(self, victim: Victim) -> Removed:
        """Remove a file or folder that is what was judged; anything else keeps its
        name.
        """
        name, identity = victim
        # First by all that the identity has; after the renaming without the time of
        # that.
        if self._identity_of(name) != identity:
            return Removed(name, "it changed since it was judged, and stays")
        hidden = name
        if not is_left_over(name, identity):
            hidden = hidden_name(victim)
            try:
                # Two saves of one token would be one: the second one stays.
                if _is_there(hidden, self._fd):
                    return Removed(
                        name, f"{show(hidden, 80)} is there already, so it stays"
                    )
                os.rename(name, hidden, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError as error:
                return Removed(
                    name, f"it cannot be renamed: {write_failure_reason(error)}"
                )
            after = self._identity_of(hidden)
            # It was replaced in the moment between the look and the renaming.
            if after is None or after.renamed != identity.renamed:
                return self._put_back(name, hidden)
            try:
                # The new name is on the disk before anything is gone: after a power
                # loss no half has the old name.
                os.fsync(self._fd)
            except OSError as error:
                # Some file systems have no fsync of folders; there nothing more can be
                # done.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    return self._put_back(name, hidden, write_failure_reason(error))
        try:
            _remove_members(hidden, identity, self._fd)
        except OSError as error:
            return Removed(
                name, f"{show(hidden, 80)} is left of it: {write_failure_reason(error)}"
            )
        return Removed(name)

    def _put_back(
        self, name: str, hidden: str, problem: str = "it changed since it was judged"
    ) -> Removed:
        """Give what was renamed its name again, unless another file has it by now."""
        old, new = (os.path.join(self._real, part) for part in (hidden, name))
        try:
            # Without replacing: a new save may have the name by now.
            is_back = rename_with_flags(old, new, NO_REPLACE)
            if not is_back and not _is_there(name, self._fd):
                os.rename(hidden, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
                is_back = True
        except OSError:
            is_back = False
        if is_back:
            return Removed(name, f"{problem}, and stays")
        return Removed(name, f"{problem}, and stays as {show(hidden, 80)}")

    def sync(self) -> str | None:
        """Force the names of the folder to the disk. What failed, or None."""
        try:
            sync_folder(self._real)
        except OSError as error:
            # The removal itself is done: this is a warning.
            return (
                "removed files may come back after a power loss: "
                f"{write_failure_reason(error)}"
            )
        return None


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_members(name: str, identity: Identity, folder: int) -> None:
    """Remove a file, or a folder with the members that were judged. What came into it
    meanwhile stays, and its folder with it.

    Raises OSError.
    """
    if not identity.is_folder:
        os.unlink(name, dir_fd=folder)
        return
    # No link is followed, however quickly it comes.
    fd = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        _empty(fd, "", identity.members)
    finally:
        os.close(fd)
    # A folder that is not empty stays: something new lies in it.
    os.rmdir(name, dir_fd=folder)


def _empty(folder: int, above: str, members: Iterable[Member]) -> None:
    """Remove the members of an open folder; `above` is its path as their paths begin
    with it.
    """
    # Name of a folder -> what was judged in it.
    below: dict[str, list[Member]] = {}
    own: list[Member] = []
    for member in members:
        first, slash, _ = member.path[len(above) :].partition("/")
        if slash:
            below.setdefault(first, []).append(member)
        else:
            own.append(member)
    for member in own:
        name = member.path[len(above) :]
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        # Another file under the name of a member was never judged.
        if (status.st_dev, status.st_ino) != (member.device, member.inode):
            raise OSError(errno.EBUSY, "another file")
        if not member.is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        fd = os.open(
            name,
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
            dir_fd=folder,
        )
        try:
            _empty(fd, f"{member.path}/", below.get(name, ()))
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)
