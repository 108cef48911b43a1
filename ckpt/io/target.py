"""The path that is to be written: its checks before anything is read, for a file and for a folder, and the rename that replaces
nothing.
"""

from __future__ import annotations

import errno
import os

from ckpt.errors import UsageError, WriteError
from ckpt.io.descriptors import TOO_MANY_TEXT
from ckpt.text import show

NO_REPLACE, EXCHANGE = 1, 2
NOT_HERE = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
"""What a file system answers that lacks links, or renameat2."""


def renamed(old: str, new: str, how: int) -> bool:
    """Rename by renameat2; False where the system cannot do that. Raises OSError."""
    import ctypes

    here = -100  # AT_FDCWD
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(here, os.fsencode(old), here, os.fsencode(new), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, *NOT_HERE):
        return False
    raise OSError(number, os.strerror(number))


def found(path: str, *, force: bool) -> tuple[str, os.stat_result | None]:
    """(the real path behind links, what is there now). Raises UsageError, WriteError.

    A link that leads nowhere is followed with `force` only: the result would be where its name does not say.
    """
    real = os.path.realpath(path)
    try:
        return real, os.stat(real)
    except FileNotFoundError:
        if os.path.islink(path) and not force:
            problem = f"a link to {show(real, 200)}, which does not exist"
            raise UsageError(problem, path=path, hint="--force to write there") from None
        return real, None
    except (OSError, ValueError) as error:
        raise WriteError(f"cannot be written: {why(error)}", path=path) from None


def refuse_replacing(path: str, real: str, access: int, *, force: bool) -> None:
    """Raise UsageError without `force`, and WriteError where what is there may not be replaced."""
    if not force:
        raise UsageError("already exists", path=path, hint="--force to replace")
    if not os.access(real, access):
        raise WriteError("read-only: ckpt does not replace it", path=path)


def check_folder(path: str, real: str, *, parents: bool) -> None:
    """Raise WriteError unless the folder of a target takes a new name. With `parents` it need not be there yet."""
    folder = os.path.dirname(real)
    above = os.path.dirname(path) or folder
    while parents and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise WriteError("there is no such folder", path=above)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise WriteError("no permission to write into this folder", path=above)


def why(error: Exception) -> str:
    """Why something cannot be written, in plain words."""
    texts = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EFBIG: "too large for this file system",
        errno.EIO: "the disk reports an error",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "no permission",
        errno.EPERM: "no permission",
        errno.EBUSY: "it is in use (mounted into a container?)",
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.ENOTDIR: "there is no such folder",
        errno.EMFILE: TOO_MANY_TEXT,
    }
    if not isinstance(error, OSError):
        return "not a file name: it contains a NUL byte"
    return texts.get(error.errno or 0) or (error.strerror or "a system error").lower()
