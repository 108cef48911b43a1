"""A file of torch.save in a record of another archive: its tree, and its storages where they lie."""

from __future__ import annotations

from ckpt.errors import UnreadableError
from ckpt.formats.archive import Archive, read_archive
from ckpt.formats.contained.member import of_record
from ckpt.formats.directory import Record
from ckpt.formats.pickled import Contents, interpret, run
from ckpt.formats.torch_zip.read import StorageFolder, byteorder_of
from ckpt.limits import Budget, Limits
from ckpt.nodes import Node
from ckpt.text import show


def tree_inside(
    outer: Archive, record: Record, contents: Contents, limits: Limits, budget: Budget, prefix: str
) -> Node:
    """The tree of the file in a record. Its pickle and its storages, whose ids begin with `prefix`, join `contents`.

    Raises UnreadableError, LimitError.
    """
    member = of_record(outer.source, record)
    member.admit(limits, budget)
    archive = read_archive(member.open(), limits)
    inner = archive.find("data.pkl")
    if inner is None:
        raise UnreadableError(f"record {show(record.name, 80)} is not a file of torch.save")
    budget.hold(archive.nbytes)
    contents.notices += archive.notices
    pickle = run(archive.read_pickle(inner, limits, budget), limits, budget)
    folder = StorageFolder(archive, "data", contents, prefix, big=byteorder_of(archive) == "big")
    interpret(pickle, contents, limits, folder.resolve, 0)
    contents.notices += folder.notices()
    return pickle.root
