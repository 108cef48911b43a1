"""torch.save since 1.6: a zip archive of `data.pkl`, one record per storage, and a few
small records.

Layout: torch/serialization.py `_save`, `_load`. Offsets come from the local headers
only, never from torch's shortcut (`.storage_alignment`).
"""

from __future__ import annotations

from ckpt.formats.common.archive import OWN, Archive, check_small
from ckpt.formats.common.pickled import (
    Contents,
    interpret_pickle,
    make_checkpoint,
    run_skimmed,
)
from ckpt.formats.common.storages import (
    StorageFolder,
    alignment_refusal,
    byteorder_of,
)
from ckpt.formats.format import Probe
from ckpt.formats.torch_zip import FORMAT
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Origin
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Node
from ckpt.model.places import Range
from ckpt.model.rows import dataclass, replace
from ckpt.model.text import and_more, show

_NEWEST = 10
"""The newest version of an archive that torch 2.13 reads
(kMaxSupportedFileFormatVersion).
"""


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveOrigin(Origin):
    """The archive of a checkpoint, and the folder of the storages that its pickle
    names.
    """

    archive: Archive
    folder: StorageFolder
    left_out: frozenset[str] = frozenset()
    """Records that torch does not read and others unpickle: no writer copies them."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    archive = probe.archive
    assert archive is not None
    # Reading compares their checksums: a copy of them would be as damaged.
    if probe.partial:
        for record in filter(None, map(archive.find, OWN)):
            archive.read(record, limits.pickle_bytes, "pickle-bytes")
    return read_from(archive, probe.path, limits, probe.mark, probe.budget)


def read_from(
    archive: Archive,
    path: str,
    limits: Limits,
    mark: str = "",
    budget: Budget | None = None,
) -> Checkpoint:
    """The checkpoint in an archive. Raises CkptError."""
    record = archive.find("data.pkl")
    assert record is not None
    check_small(archive)
    byteorder = byteorder_of(archive)
    budget = budget or Budget(limits)
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, _read_nested, mark, budget)
    data = archive.read_pickle(record, limits, budget)
    folder = StorageFolder(archive, "data", contents, big=byteorder == "big")
    pickle = run_skimmed(data, limits, budget, folder)
    if pickle.end < len(data):
        extra = len(data) - pickle.end
        contents.notices.append(
            Notice(
                "trailing-data",
                f"{extra:,} bytes follow the pickle in {show(record.name, 60)}",
            )
        )
    if archive.outside:
        contents.not_loadable = (
            f"torch refuses an archive with records outside {show(archive.root, 40)}/"
        )
    interpret_pickle(pickle, contents, limits, folder.resolve, 0)
    refused = refused_version(archive)
    if refused is not None:
        contents.not_loadable = refused
        contents.notices.append(Notice("container", refused))
    if any(type(row.pid) is tuple and len(row.pid) == 6 for row in pickle.persistent):
        contents.not_loadable = "torch refuses persistent ids of 6 fields in a zip file"
    contents.not_loadable = (
        contents.not_loadable or folder.refusal_text or alignment_refusal(archive)
    )
    contents.notices += folder.notices()
    contents.notices += folder.mapping_notices()
    left_out: frozenset[str] = frozenset()
    if len(archive.records) > folder.count + 1:
        left_out = _judge_others(archive, folder, contents, limits, budget)
    is_whole = not archive.is_partial or (refused is None and not contents.short)
    # Without its origin a checkpoint is written anew, and no record is copied.
    origin = None
    if is_whole and not archive.outside:
        origin = ArchiveOrigin(archive, folder, left_out)
    read = make_checkpoint(
        path,
        FORMAT.name,
        FORMAT.traits,
        pickle.root,
        contents,
        limits,
        source=archive.source,
        origin=origin,
        byteorder=byteorder,
    )
    if archive.outside or refused is not None or folder.refusal_text is not None:
        # A copy would be refused as well, and so would a file with a new pickle at its
        # end: it is written anew.
        traits = FORMAT.traits._replace(in_place=False)
        return replace(read, is_edited=True, traits=traits)
    if folder.is_deflated:
        # A copy would have other values for a loader that maps it, too.
        return replace(read, is_edited=True)
    return read


_USUAL = ("data.pkl", "byteorder")
"""The records that a checkpoint of one storage has, at least."""
_KNOWN = frozenset((*_USUAL, *OWN, ".data/version"))
_LONGEST_NUMBER = 64
"""The most bytes of a record that is looked at as a number."""


def _judge_others(
    archive: Archive,
    folder: StorageFolder,
    contents: Contents,
    limits: Limits,
    budget: Budget,
) -> frozenset[str]:
    """Name the records that torch does not read, and judge those that another loader
    would unpickle, such as `numpy.load`.

    Return the names of the latter. Raises UnreadableError, LimitError.
    """
    root, data = f"{archive.root}/", f"{archive.root}/data/"
    # The same names outside of the root are no records of torch.
    usual = {f"{root}{name}" for name in _USUAL}
    known = {f"{root}{name}" for name in _KNOWN}
    # Nearly all records are storages, so this list is short.
    beside = [name for name in archive.records if not name.startswith(data)]
    others = [
        name
        for name in beside
        if not name.endswith("/")
        and name not in usual
        and not (name in known and _is_number(archive, name))
    ]
    if len(archive.records) - len(beside) > folder.count:
        others += [
            name
            for name in archive.records
            if name.startswith(data)
            and not name.endswith("/")
            and name.removeprefix(data) not in folder
        ]
    if not others:
        return frozenset()
    # Here: few archives hold others.
    from ckpt.formats.common.following import judge_records

    pickles = judge_records(archive, others, contents, limits, budget)
    unread = [
        name
        for name in others
        if name not in pickles and name not in known and not name.startswith(data)
    ]
    if unread:
        shown = and_more([show(name, 60) for name in unread], 3)
        contents.notices.append(
            Notice("unread-file", f"torch does not read {shown} in the archive")
        )
    return pickles


def _is_number(archive: Archive, name: str) -> bool:
    """Tell whether a record is a short number in digits, such as a version: no loader
    finds anything else in it.
    """
    # Found without an index of all names: these stand at either end.
    record = archive.records.at(archive.records.find(name, 0))
    if record.deflated or record.stored > _LONGEST_NUMBER:
        return False
    return archive.source.read(record.offset, record.stored).strip().isdigit()


def _read_nested(
    data: bytes | Range, contents: Contents, limits: Limits, depth: int
) -> Node:
    # Here: few checkpoints hold others.
    from ckpt.formats.common.stream import read_nested

    return read_nested(data, contents, limits, depth)


def refused_version(archive: Archive) -> str | None:
    """Return the reason why torch refuses the record `version`, or None.

    torch reads it as std::stoull does (caffe2/serialize).
    """
    record = archive.find(".data/version") or archive.find("version")
    if record is None:
        return "torch refuses an archive without the record `version`"
    text = archive.read(record, 64, "entries") if record.size <= 64 else b""
    # Blanks and a sign in front are passed over, and all that follows the digits.
    rest = text.lstrip(b" \t\n\v\f\r").removeprefix(b"+")
    number = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    if not number or not 1 <= int(number) <= _NEWEST:
        return (
            "torch refuses an archive of version "
            f"{show(text.decode('latin-1').strip(), 20) or 'nothing'}"
        )
    return None
