"""The folder of a model in the cache of Hugging Face: `models--ORG--NAME`, with
`blobs/`, `refs/` and `snapshots/REVISION/`.

The files of a snapshot are links to blobs, which are called by their hash. `refs/main`
holds the revision that was loaded last.
"""

from __future__ import annotations

from ckpt.bytes.location import SNAPSHOTS, Location, is_plain_name, read_file
from ckpt.model.errors import CkptError, FolderError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.model.text import and_more, show

_REFS = "refs"
_MAIN = "main"
_LONGEST = 200
"""Bytes of the name of a revision: it is a hash of 40 characters."""


def snapshot_of(location: Location, limits: Limits) -> Location:
    """Return the snapshot that the folder of a cached model stands for.

    It is the one that `refs/main` names, or the only one. Raises FolderError where
    nothing decides, UnsupportedError.
    """
    folder = location.child(SNAPSHOTS, "no")
    names = [name.rstrip("/") for name in folder.names() if name.endswith("/")]
    revision = main_revision(location, limits)
    if revision not in names and len(names) == 1:
        revision = names[0]
    if not names:
        raise UnsupportedError(
            "a model of a Hugging Face cache without a snapshot", path=location.name
        )
    if revision not in names:
        listed = and_more(
            [show(f"{location.name}/{SNAPSHOTS}/{name}", None) for name in names],
            3,
            ", or ",
        )
        problem = f"{_REFS}/{_MAIN} names none of its {len(names)} snapshots"
        raise FolderError(problem, path=location.name, hint=f"name one: {listed}")
    return folder.child(revision, "no")


def main_revision(location: Location, limits: Limits) -> str:
    """Return the revision in `refs/main`, or nothing."""
    try:
        text = read_file(location.child(_REFS, "no").child(_MAIN, "no"), limits, _REFS)[
            :_LONGEST
        ]
        revision = text.decode().strip()
    except (CkptError, UnicodeDecodeError):
        return ""
    # The text is a stranger's, and must not lead out of the folder.
    return revision if is_plain_name(revision) else ""
