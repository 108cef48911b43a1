"""A copy against the hashes that Hugging Face lists: `--against` of `ckpt verify`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import islice

from ckpt.bytes.far import Published, is_url
from ckpt.bytes.location import (
    Location,
    is_cached_model,
    locate,
    published_files,
    shown_path,
)
from ckpt.commands.verify.published import Compared, best_name, report_of
from ckpt.commands.verify.verify import VerifyReport
from ckpt.model.errors import CkptError, LinkError, NotOpenedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import is_index
from ckpt.model.rows import NamedTuple

_BLOCK = 1 << 23
_DEEPEST, _MOST = 32, 100_000
"""Folders inside of folders, and files, that a copy may have."""
_POINTER = b"version https://git-lfs"
_PASSED = (".git/", ".cache/")
"""Folders that a download leaves beside the files."""

Meter = Callable[[int, int], None]


class Listing(NamedTuple):
    """The files that a URL publishes. `where` is the URL, for people."""

    where: str
    files: dict[str, Published]


def listing_at(against: str) -> Listing:
    """Return the files that an hf URL publishes. Raises NotOpenedError,
    UnreadableError, UsageError.
    """
    if not against.startswith("hf://"):
        raise UsageError(
            "--against: not a Hugging Face URL", hint="hf://ORG/MODEL[@REVISION]"
        )
    return Listing(shown_path(against).rstrip("/"), published_files(against))


def compared_with_published(
    path: str, listing: Listing, meter: Meter | None = None
) -> VerifyReport:
    """Compare a file or a folder with what a URL publishes; the report says each
    difference.

    Raises NotOpenedError where the path is not there, UsageError where nothing of it is
    published.
    """
    place = _place(path)
    is_folder = place.is_folder()
    links: list[str] = []
    found = {path: place}
    if is_folder:
        found = dict(islice(_files_below(place, links), _MOST + 1))
        # One more than allowed was taken, so that the bound shows.
        if len(found) > _MOST:
            raise NotOpenedError(f"more than {_MOST:,} files", path=path)
    named = found if is_folder else {_name_of(path, listing): place}
    shared = [name for name in named if name in listing.files]
    # A file that was renamed: its bytes say which published file it is.
    if not shared and not is_folder:
        return _by_content(path, place, listing, meter)
    if not shared:
        first = next(iter(listing.files))
        raise UsageError(
            f"no file of {listing.where} lies in it",
            path=path,
            hint=f"it lists {first}",
        )
    total = sum(listing.files[name].size for name in shared)
    done = 0
    rows = []
    for name in shared:
        with_size = _step(meter, done, total)
        rows.append(_compared(name, named[name], listing.files[name], with_size))
        done += listing.files[name].size
    missing = [name for name in listing.files if name not in named] if is_folder else []
    extra = [name for name in named if name not in listing.files]
    report = report_of(path, listing.where, rows, missing, extra, links)
    if is_folder or not is_index(path):
        return report
    return report._replace(
        not_checked=(
            *report.not_checked,
            "the shards of this index (give their folder)",
        )
    )


def _name_of(path: str, listing: Listing) -> str:
    """Return the published path that a file is compared with: the only one, or the one
    that its own path ends with.
    """
    only = next(iter(listing.files)) if len(listing.files) == 1 else None
    return only or best_name(_absolute(path), listing.files) or path


def _step(meter: Meter | None, before: int, total: int) -> Callable[[int], None] | None:
    """Return a function that is told the bytes read of one file."""
    if meter is None:
        return None
    tell = meter

    def told(count: int) -> None:
        tell(min(before + count, total), total)

    return told


def _absolute(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path)


def _place(path: str) -> Location:
    """Return the file or folder of a path. Raises NotOpenedError."""
    place = locate(path)
    if is_cached_model(path):
        # Here: few paths lead into a cache.
        from ckpt.formats.common.cached import snapshot_of

        return snapshot_of(place, Limits())
    if not place.is_folder() and not place.is_file():
        place.open().close()  # says why
    return place


def _files_below(
    folder: Location, links: list[str], above: str = "", depth: int = 0
) -> Iterator[tuple[str, Location]]:
    """Yield the files in a folder by their paths below it. What links lead to folders
    is added to `links`.
    """
    if depth > _DEEPEST:
        raise NotOpenedError(
            f"more than {_DEEPEST} folders inside of each other", path=folder.name
        )
    for name in folder.names():
        plain = name.rstrip("/")
        try:
            inner = folder.child(plain)
        except LinkError:
            links.append(f"{above}{plain}")
            continue
        if not name.endswith("/"):
            yield f"{above}{plain}", inner
        elif name not in _PASSED:
            yield from _files_below(inner, links, f"{above}{name}", depth + 1)


def _compared(
    name: str, place: Location, published: Published, told: Callable[[int], None] | None
) -> Compared:
    """Return a file beside the published one. Its bytes are read where its size is the
    same.
    """
    source = place.open()
    try:
        if source.size != published.size:
            begin = source.read(0, min(source.size, len(_POINTER)))
            return Compared(
                name, published, source.size, None, bytes(begin) == _POINTER
            )
        if published.is_blob:
            algorithm = hashlib.sha1(usedforsecurity=False)
        else:
            algorithm = hashlib.sha256()
        # git hashes a header with the size before the bytes.
        if published.is_blob:
            algorithm.update(f"blob {source.size}\0".encode())
        for offset in range(0, source.size, _BLOCK):
            count = min(_BLOCK, source.size - offset)
            algorithm.update(source.read(offset, count))
            if told is not None:
                told(offset + count)
        # A download that goes on would give a hash of no state of the file.
        source.check_unchanged()
        return Compared(name, published, source.size, algorithm.hexdigest())
    except CkptError as error:
        error.path = error.path or place.name
        raise
    finally:
        source.close()


def _by_content(
    path: str, place: Location, listing: Listing, meter: Meter | None
) -> VerifyReport:
    """Return the report on a file of another name: one of the published files has its
    bytes, or none.

    Raises UsageError where none has, for then it is not known with which it should be
    compared.
    """
    source = place.open()
    size = source.size
    source.close()
    same_size = [row for row in listing.files.items() if row[1].size == size]
    for is_blob in (False, True):
        alike = {
            published.digest: name
            # The first name of several equal files stays.
            for name, published in reversed(same_size)
            if published.is_blob is is_blob
        }
        if not alike:
            continue
        # Read once for each kind of hash, however many files have this size.
        with_size = _step(meter, 0, size)
        some = Published(size, next(iter(alike)), is_blob)
        row = _compared(path, place, some, with_size)
        name = alike.get(row.digest or "")
        if name is not None:
            same = row._replace(name=name, published=listing.files[name])
            return report_of(path, f"{listing.where}/{name}", [same], (), ())
    first = next(iter(listing.files))
    problem = f"{listing.where} lists no file of this name, and none with these bytes"
    raise UsageError(
        problem, path=path, hint=f"it lists {first}; --against {listing.where}/{first}"
    )
