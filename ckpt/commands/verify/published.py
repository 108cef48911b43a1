"""A copy against what a server publishes: which files have the same bytes, which have
others, which are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ckpt.bytes.far import Published
from ckpt.commands.verify.verify import Problem, VerifyReport
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show, show_folded_names

_SHARD = re.compile(r"(.*)-[0-9]{5}-of-([0-9]{5}(?:\.\w{1,40})?\.[a-z]+)")
_SHOWN = 3


class Compared(NamedTuple):
    """A file of the copy beside the published one of the same path. `digest` is missing
    where the size is another.
    """

    name: str
    published: Published
    size: int
    digest: str | None
    is_pointer: bool = False
    """True where the copy is only a Git LFS pointer."""

    @property
    def is_same(self) -> bool:
        """True for the same bytes."""
        return self.size == self.published.size and self.digest == self.published.digest


def report_of(
    path: str,
    where: str,
    files: Iterable[Compared],
    missing: Iterable[str],
    extra: Iterable[str],
    links: Iterable[str] = (),
) -> VerifyReport:
    """Return the verdict on a copy of what lies at the URL `where`.

    `missing` are the published files that the copy lacks, `extra` its own ones, `links`
    what was not followed.
    """
    # The files are gone through several times below.
    compared, gone = list(files), list(missing)
    names = {row.name for row in compared}
    problems = [Problem(_difference(row, where)) for row in compared if not row.is_same]
    # A set with a hole cannot be loaded; other missing files may not be wanted.
    lost = _shards_of(names, gone)
    if lost:
        problems.append(
            Problem(
                f"{counted_noun(len(lost), 'shard')} missing: "
                f"{show_folded_names(lost, _SHOWN)}"
            )
        )
    left: list[str] = []
    other = [name for name in gone if name not in lost]
    if other:
        count = counted_noun(len(other), "file")
        names_text = show_folded_names(other, _SHOWN)
        left.append(f"{count} of {where} not here ({names_text})")
    own = list(extra)
    if own:
        count = counted_noun(len(own), "file")
        names_text = show_folded_names(own, _SHOWN)
        left.append(f"{count} that it does not list ({names_text})")
    unfollowed = list(links)
    if unfollowed:
        count = counted_noun(len(unfollowed), "link")
        names_text = show_folded_names(unfollowed, _SHOWN)
        left.append(f"{count} not followed ({names_text})")
    same = [row for row in compared if row.is_same]
    return VerifyReport(
        path,
        None,
        "damaged" if problems else "intact",
        tuple(problems),
        (_checked(same, where),) if same else (),
        tuple(left),
    )


def _checked(same: list[Compared], where: str) -> str:
    # Small files are listed by the hash that git gives them, LFS files by SHA-256.
    blobs = sum(row.published.is_blob for row in same)
    counts = [(len(same) - blobs, "SHA-256"), (blobs, "git's SHA-1")]
    ways = [(count, way) for count, way in counts if count]
    if len(ways) == 1:
        [(_, way)] = ways
        how = f"by {way}"
    else:
        how = ", ".join(f"{count:,} by {way}" for count, way in ways)
    them = "it" if len(same) == 1 else "them"
    return f"{counted_noun(len(same), 'file')} as {where} lists {them} ({how})"


def _difference(row: Compared, where: str) -> str:
    name = show(row.name, 80)
    if row.is_pointer:
        return f"{name}: a Git LFS pointer, not the file (git lfs pull)"
    if row.digest is None:
        cut = " (cut off?)" if row.size < row.published.size else ""
        return f"{name}: {row.size:,} bytes, {where} lists {row.published.size:,}{cut}"
    way = "SHA-1 of git" if row.published.is_blob else "SHA-256"
    return (
        f"{name}: other bytes, {way} {row.digest[:16]}…, {where} lists "
        f"{row.published.digest[:16]}…"
    )


def _shards_of(names: Iterable[str], missing: Iterable[str]) -> list[str]:
    """Return the missing shards of sets of which another shard is there."""
    # (stem, `of` and ending): the shards of one set differ in their number alone.
    sets = {match.groups() for match in map(_SHARD.fullmatch, names) if match}
    shards: list[str] = []
    for name in missing:
        match = _SHARD.fullmatch(name)
        if match is not None and match.groups() in sets:
            shards.append(name)
    return shards


def best_name(path: str, published: Mapping[str, Published]) -> str | None:
    """Return the published path that the path of a file ends with, the longest one, or
    None.
    """
    parts = path.replace("\\", "/").split("/")
    # The whole path first, then without its folders from the left.
    ends = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((end for end in ends if end in published), None)
