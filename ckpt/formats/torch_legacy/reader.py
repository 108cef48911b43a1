"""The reader of what torch.save wrote before 1.6: a stream of pickles."""

from __future__ import annotations

from ckpt.formats.common.heads import is_legacy
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.formats.common.stream import (
    Stream,
    read_nested,
    unreadable_kind,
    unreadable_text,
)
from ckpt.formats.common.two_files import refuse_end
from ckpt.formats.format import Probe, no_checksums
from ckpt.formats.torch_legacy import FORMAT
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Refusal
from ckpt.model.limits import Limits


def read(probe: Probe, limits: Limits) -> Checkpoint:
    return _read_stream(probe, limits, is_cut=False)


def _read_stream(probe: Probe, limits: Limits, *, is_cut: bool) -> Checkpoint:
    if not is_cut:
        refuse_end(probe.file)
    contents = Contents((), read_nested, probe.mark, probe.budget)
    stream = Stream(probe.file, contents, limits, "", 0, is_cut=is_cut)
    root = stream.read()
    if stream.end < probe.size and is_cut:
        text = f"{probe.size - stream.end:,} bytes follow the last storage"
        contents.notices.append(Notice("trailing-data", text))
    elif stream.end < probe.size:
        # Here: most files end there.
        from ckpt.formats.common.following import judge

        judge(probe.file, stream.end, contents, limits, probe.budget)
    kind = unreadable_kind(contents.pickles)
    not_loadable = None
    refusals = None
    if kind is not None:
        not_loadable = unreadable_text(kind)
        refusals = (Refusal(f"{kind} in the legacy format", ()),)
    return make_checkpoint(
        probe.path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        source=probe.file,
        not_loadable=not_loadable,
        refusals=refusals,
    )


checksums = no_checksums


def salvage(probe: Probe, limits: Limits) -> Checkpoint | None:
    return _read_stream(probe, limits, is_cut=True) if is_legacy(probe.head) else None
