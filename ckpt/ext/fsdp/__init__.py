"""Files of torch.save, one for each rank of a sharded run, whose DTensors are pieces of
the tensors of one checkpoint.

verl writes `model_world_size_8_rank_3.pt`, accelerate `pytorch_model_fsdp_rank3.bin`,
others `*.rank_3.pth`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import CkptError, LimitError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite


def sniff(probe: Probe) -> bool:
    """Tell whether a folder holds files of ranks with pieces. A file alone is a file of
    torch.save.
    """
    return sets_of(probe) is not None


def files(probe: Probe) -> tuple[str, ...] | None:
    sets = sets_of(probe)
    if sets is None:
        return None
    chosen, _ = sets
    return tuple(name for ranks in chosen for name in ranks.files.values())


FORMAT = Format(
    "fsdp-ranks",
    Traits(
        "FSDP ranks",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        is_set=True,
    ),
    sniff,
    files,
    reader="ckpt.ext.fsdp.reader",
    verifier="ckpt.ext.fsdp.reader",
)


_NAME = (
    # `world_size` stands before `rank` in the names of verl; others leave it out.
    r"(?P<stem>.*?)(?:[._-]?world[._-]?size[._-]?(?P<world>\d{1,7}))?[._-]?rank[._-]?(?P<rank>\d{1,7})"
    r"(?P<ending>(?:\.\w{1,20})*\.(?:pt|pth|bin|ckpt|model))"
)


class RankSet(NamedTuple):
    """Files whose names differ by the rank alone: rank -> name. `world` is how many the
    names say there are.

    `stem` is what stands before: `model`. `repeated` is a name whose rank another file
    has.
    """

    stem: str
    world: int | None
    files: dict[int, str]
    repeated: str | None = None


def sets_in(names: Iterable[str]) -> list[RankSet]:
    """The sets of files of ranks among names."""
    sets: dict[tuple[str, str | None, str], RankSet] = {}
    for name in sorted(names):
        match = re.fullmatch(_NAME, name)
        if match is None:
            continue
        world = None if match["world"] is None else int(match["world"])
        # Files of two endings, or of two worlds, are two sets: a rank may be in both.
        key = match["stem"], match["world"], match["ending"]
        rows = sets.setdefault(key, RankSet(match["stem"], world, {}))
        rank = int(match["rank"])
        if rank in rows.files:
            sets[key] = rows._replace(repeated=name)
        else:
            rows.files[rank] = name
    return [
        row._replace(files=dict(sorted(row.files.items()))) for row in sets.values()
    ]


_MOST = 16
"""The most sets of a folder that are looked into."""


def sets_of(probe: Probe) -> tuple[list[RankSet], list[RankSet]] | None:
    """Return (the sets of one checkpoint whose files hold pieces of tensors, the other
    sets), or None.

    Any other folder gives None. Sets whose names differ by more than numbers are one
    checkpoint: verl's `model_…`, `optim_…`. With numbers they are several, such as the
    sets of two steps. Files of another world beside a set that is whole are left over:
    they are among the others.
    """
    if not probe.is_folder:
        return None
    try:
        # Reading the names of a folder elsewhere may fail. Then another format, or
        # `open` itself, says why; a test of the kind raises nothing.
        sets = sets_in(probe.location.names())
    except CkptError:
        return None
    strays = _stray_sets(sets)
    sets = [ranks for ranks in sets if ranks not in strays]
    if not sets or len(sets) > _MOST:
        return None
    # Stems that differ by numbers alone, such as `step_1_model` and `step_2_model`, are
    # several checkpoints.
    stems = {re.sub(r"\d+", "", ranks.stem) for ranks in sets}
    if len(stems) < len(sets):
        return None
    chosen = [ranks for ranks in sets if _has_pieces(probe, ranks)]
    if not chosen:
        return None
    others = [ranks for ranks in sets if ranks not in chosen]
    return chosen, others + strays


def _stray_sets(sets: list[RankSet]) -> list[RankSet]:
    """The sets that are not whole, beside the only whole one of the same name."""
    strays: list[RankSet] = []
    for stem in {ranks.stem for ranks in sets}:
        same = [ranks for ranks in sets if ranks.stem == stem]
        whole = [
            ranks
            for ranks in same
            if ranks.world is not None and [*ranks.files] == [*range(ranks.world)]
        ]
        if len(whole) == 1:
            strays += [ranks for ranks in same if ranks not in whole]
    return sorted(strays, key=lambda ranks: next(iter(ranks.files.values())))


def _has_pieces(probe: Probe, ranks: RankSet) -> bool:
    """Tell whether the first readable file of a set holds a DTensor or a
    ShardedTensor.
    """
    for name in ranks.files.values():
        used = probe.budget.used
        try:
            with probe.open(probe.location.child(name, "no"), probe.mark) as checkpoint:
                tensors = [entry.tensor for entry in checkpoint.tensors]
                return any(
                    isinstance(tensor, Composite) and (tensor.piece or tensor.shards)
                    for tensor in tensors
                )
        # A file that is too large to look into will be refused by the reader too.
        except LimitError:
            return False
        # A damaged file says nothing about the set: the next rank is asked.
        except CkptError:
            continue
        finally:
            # The reader opens the same files again, and counts them then.
            probe.budget.release(probe.budget.used - used)
    return False
