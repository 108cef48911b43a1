"""Renaming as only renameat2 can: without replacing anything, or as an exchange of two names."""

from __future__ import annotations

import errno
import os

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
