"""The shards of another save that lie beside the shards of a checkpoint: a loader that
takes all files mixes both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ckpt.bytes.location import Location, read_file
from ckpt.formats.format import Probe
from ckpt.formats.sharded.index import Layout, files_beside
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, looks_of, names_of
from ckpt.model.errors import CkptError, LimitError, NotOpenedError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import is_index
from ckpt.model.rows import replace
from ckpt.model.tensors import Tensor
from ckpt.model.text import and_more, be_verb, counted_noun, show

_LOOKED = 16
"""The most files beside the shards that are looked into."""


def with_strays(
    checkpoint: Checkpoint, layout: Layout, probe: Probe, limits: Limits
) -> Checkpoint:
    """The checkpoint with a notice of the shards of another save that lie beside its
    own.
    """
    beside = files_beside(layout)
    # A second set with an index of its own is no stray.
    if beside:
        for index in _other_indexes(layout, probe):
            for name in index:
                beside.pop(name, None)
    if not beside:
        return checkpoint
    own = dict(
        zip(names_of(checkpoint.tensors), looks_of(checkpoint.tensors), strict=True)
    )
    rows: list[tuple[str, str]] = []
    twice: dict[str, None] = {}
    # A folder may hold hundreds of files with such names.
    for name in list(beside)[:_LOOKED]:
        text, names = _describe_stray(probe, beside[name], own, limits)
        rows.append((show(name, 80), text))
        twice.update(dict.fromkeys(names))
    of = "the index" if layout.is_indexed else "the set"
    few = f"{rows[0][0]} is not in {of}: it {rows[0][1]}"
    many = (
        f"{len(beside):,} files are not in {of}: "
        f"{and_more([' '.join(row) for row in rows], 3, '; ', total=len(beside))}"
    )
    notice = Notice("dead-files", few if len(beside) == 1 else many, tuple(twice))
    return replace(checkpoint, account=checkpoint.account.with_notices(notice))


def _describe_stray(
    probe: Probe, location: Location, own: Mapping[str, Tensor], limits: Limits
) -> tuple[str, tuple[str, ...]]:
    """Return what a file beside the shards holds, and the names that the checkpoint has
    elsewhere.
    """
    try:
        with probe.open(location, f"{probe.mark}beside:") as other:
            looks = dict(
                zip(names_of(other.tensors), looks_of(other.tensors), strict=True)
            )
    except (LimitError, NotOpenedError):
        raise
    except CkptError as error:
        return f"cannot be read ({error.problem})", ()
    # Names in common are what a loader of all files would mix.
    both = tuple(name for name in looks if name in own)
    listed = and_more([show(name, 80) for name in both or looks], 3)
    if not both:
        return f"holds {counted_noun(len(looks), 'tensor')} of other names" + (
            f": {listed}" if looks else ""
        ), ()
    unlike = [name for name in both if looks[name].dtype != own[name].dtype]
    text = f"holds {listed}, which {be_verb(both)} read from other shards"
    if unlike:
        text += (
            f", there as {own[unlike[0]].dtype.name} and here as "
            f"{looks[unlike[0]].dtype.name}"
        )
    return text, both


def _other_indexes(layout: Layout, probe: Probe) -> Iterator[Collection[str]]:
    """Yield the files that each other index of the folder names. One that cannot be
    read names none.
    """
    own = probe.path.replace("\\", "/").rpartition("/")[2]
    for name in layout.folder.names():
        # Read by its names alone: whether its shards are there does not matter.
        if is_index(name) and name != own:
            try:
                data = read_file(layout.folder.child(name), probe.limits, "the index")
                document = parse_json(data, "index", Budget(probe.limits, len(data)))
            except CkptError:
                continue
            weight_map = (
                document.get("weight_map") if isinstance(document, dict) else None
            )
            if isinstance(weight_map, dict):
                yield {file for file in weight_map.values() if isinstance(file, str)}
