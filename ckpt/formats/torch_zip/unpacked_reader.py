"""The reader of an archive of torch.save that somebody has unpacked, as if its files
lay end to end in an archive.
"""

from __future__ import annotations

from ckpt.bytes.location import Location
from ckpt.bytes.source import Joined, Source
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record, Records
from ckpt.formats.format import Probe
from ckpt.formats.format import no_checksums as checksums  # noqa: F401  (of the verifier)
from ckpt.formats.torch_zip.unpacked import (
    FORMAT,
    folder_of,
    last_step,
    list_members,
    list_names,
)
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import (
    LimitError,
    UnsupportedError,
)
from ckpt.model.limits import Limits
from ckpt.model.rows import replace
from ckpt.model.text import pasted_path

_PROGRAM = ("constants.pkl", "code/")


def read(probe: Probe, limits: Limits) -> Checkpoint:
    # Here: few folders are such an archive.
    from ckpt.formats.torch_zip.reader import read_from

    folder = folder_of(probe)
    assert folder is not None
    names = list_names(folder)
    zip_again = _zip_command(folder)
    if any(name in names for name in _PROGRAM):
        problem = "an unpacked TorchScript archive, which ckpt reads as an archive only"
        raise UnsupportedError(problem, hint=zip_again)
    members = list_members(folder)
    if len(members) > limits.entries:
        raise LimitError("the folder holds too many files", "entries", limits.entries)
    sources: list[Source] = []
    try:
        for _, location in members:
            sources.append(location.open())
        joined = Joined(folder.name, sources)
        root = last_step(folder)
        records = Records()
        offset = 0
        # As if the files lay end to end in an archive without headers.
        for (name, _), source in zip(members, sources, strict=True):
            record = Record(
                name=f"{root}/{name}",
                offset=offset,
                stored=source.size,
                size=source.size,
                deflated=False,
                crc=None,
                header=offset,
            )
            records.add(record)
            offset += source.size
        archive = Archive(joined, root, records, (), is_partial=probe.partial)
        checkpoint = read_from(archive, folder.name, limits, probe.mark, probe.budget)
    except BaseException:
        for source in sources:
            source.close()
        raise
    text = (
        "the files of an archive of torch.save that was unpacked: nothing is lost, but "
        "torch.load takes the archive"
    )
    return replace(
        checkpoint,
        format=FORMAT.name,
        traits=FORMAT.traits,
        nbytes=offset,
        origin=None,
        not_loadable="torch.load takes the archive that these files were in",
        account=checkpoint.account.with_notices(
            Notice("unpacked", text, (), zip_again)
        ),
    )


def _zip_command(folder: Location) -> str | None:
    """Return the command that makes the archive again, beside the folder, or None if no
    shell takes its name.
    """
    path = folder.name.rstrip("/")
    above, _, name = path.rpartition("/")
    words = [pasted_path(word) for word in (above or ".", name, f"{name}.pth")]
    if None in words or name in ("", ".", ".."):
        return None
    command = f"zip -0 -D -r {words[2]} {words[1]}"
    return f"(cd {words[0]} && {command})" if above else command
