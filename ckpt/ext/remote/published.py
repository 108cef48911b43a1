"""The hashes of the files of a model, as Hugging Face lists them: SHA-256 of large
files, git's SHA-1 of small ones.
"""

from __future__ import annotations

import re
import time

from ckpt.bytes.far import Published
from ckpt.ext.remote.hub import DAMAGED, rows_of
from ckpt.ext.remote.source import retried
from ckpt.ext.remote.url import Url, parse_url, shown
from ckpt.model.errors import NotOpenedError, UnreadableError, UsageError

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


def published_files(text: str) -> dict[str, Published]:
    """Return the files of an hf URL by their paths below it; of the URL of one file
    only that, by its last name.

    Raises NotOpenedError, UnreadableError, UsageError.
    """
    name = shown(text)
    url = parse_url(name)
    if url.scheme != "hf":
        raise UsageError(
            "not a Hugging Face URL", path=name, hint="hf://ORG/MODEL[@REVISION]"
        )
    # The whole list each time: half a list would miss files in silence.
    every = retried(lambda: _listed(url), name, time.sleep)
    path = url.path.strip("/")
    if path in every:
        return {path.rpartition("/")[2]: every[path]}
    inside = {
        file.removeprefix(f"{path}/"): row
        for file, row in every.items()
        if file.startswith(f"{path}/")
    }
    files = inside if path else every
    if not files:
        raise NotOpenedError("no such file or folder", path=name)
    return files


def _listed(url: Url) -> dict[str, Published]:
    """Return all files of the model. The list is asked for anew where it breaks off."""
    files: dict[str, Published] = {}
    try:
        for row in rows_of(url, "", recursive=True):
            if row["type"] != "file":
                continue
            path = row["path"]
            # Two rows of one file may have two hashes: neither would be the right one.
            if not isinstance(path, str) or path in files:
                raise ValueError
            files[path] = _published(row.get("lfs"), row["oid"], row["size"])
    except (ValueError, KeyError):
        raise UnreadableError(DAMAGED) from None
    return files


def _published(lfs: object, oid: object, size: object) -> Published:
    """Return what a row says of a file. Raises ValueError."""
    # A file in LFS has the SHA-256 of its bytes, any other the SHA-1 of git's blob.
    if isinstance(lfs, dict):
        oid, size = lfs.get("oid"), lfs.get("size", size)
    form = _SHA256 if isinstance(lfs, dict) else _SHA1
    if (
        type(size) is not int
        or not 0 <= size < 1 << 63
        or not isinstance(oid, str)
        or not form.fullmatch(oid)
    ):
        raise ValueError
    return Published(size, oid, not isinstance(lfs, dict))
