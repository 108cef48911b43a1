"""The ranks of tensor parallelism: files with the same names, each with its part of the
matrices and a copy of the rest.

Meta publishes Llama so (`consolidated.00.pth`), Megatron and DeepSpeed write one folder
or file for each rank (`mp_rank_00/model_optim_rng.pt`, `mp_rank_00_model_states.pt`),
vLLM `model-rank-0-part-0.safetensors`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ckpt.bytes.far import is_url
from ckpt.bytes.location import Location, read_file
from ckpt.formats.format import Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, ParallelRank
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import natural_sort_key
from ckpt.model.rows import replace
from ckpt.model.tensors import Tensor, TensorRef
from ckpt.model.text import counted_noun, show

LLAMA = r"consolidated\.(\d{2,4})\.(?:pth|pt)"
_FILE = re.compile(
    rf"{LLAMA}|mp_rank_(\d{{2,6}})_model_states\.pt"
    rf"|model-rank-(\d{{1,4}})-part-\d{{1,6}}\.safetensors"
)
_FOLDER = re.compile(r"mp_rank_(\d{2,6})((?:_\d{3,6}){0,2})")
_IN_FOLDER = "model_optim_rng.pt"
PARAMS = "params.json"
"""The document of Llama beside its files: the sizes of the whole model."""
_QUERY = re.compile(r"(?:.*\.)?attention\.wq\.weight")


def with_rank(checkpoint: Checkpoint, probe: Probe) -> Checkpoint:
    """The checkpoint with its rank, and a notice, where the files beside it or
    `params.json` show that it is one of several.
    """
    if probe.is_folder or is_url(probe.path):
        return checkpoint
    number = _rank_in_name(probe.location)
    if number is None:
        return checkpoint
    ranks = _files_of_ranks(probe.location)
    if len(ranks) > 1:
        return _with_other_ranks(checkpoint, probe, number, ranks)
    return _without_other_ranks(checkpoint, probe, number)


def _with_other_ranks(
    checkpoint: Checkpoint, probe: Probe, number: int, ranks: Mapping[int, Location]
) -> Checkpoint:
    """The checkpoint of a rank whose other ranks lie beside it."""
    # One of them is enough to see which tensors are divided.
    other = next(place for rank, place in ranks.items() if rank != number)
    # A file of the last ranks may lack; their numbers begin with 0.
    of = max(ranks) + 1
    text: str | None = ""
    try:
        with probe.open(other, f"{probe.mark}beside:") as opened:
            width = _hidden_size(probe.location.parent(), probe.limits)
            text = _division_text([checkpoint, opened], width, of)
    except CkptError:
        pass  # a damaged file beside it says nothing of this one
    if text is None:
        return checkpoint
    said = f"rank {number} of {of} of tensor parallelism"
    if text:
        said += f": {text}"
    return _with_rank_notice(checkpoint, number, of, f"{said}; {_ALONE}")


def _without_other_ranks(
    checkpoint: Checkpoint, probe: Probe, number: int
) -> Checkpoint:
    """The checkpoint of a rank that lies alone: `params.json` of Llama has the width of
    the whole model, and a matrix has a part of it.
    """
    width = _hidden_size(probe.location.parent(), probe.limits)
    if width is None:
        return checkpoint
    # `[rows, width]`: the query matrix is square in the whole model.
    held = next((row for row in checkpoint.tensors if _QUERY.fullmatch(row.name)), None)
    if held is None or not held.tensor.shape:
        return checkpoint
    rows = held.tensor.shape[0]
    # All rows: then the file is no part of several.
    if not rows or width % rows or width == rows:
        return checkpoint
    of = width // rows
    said = (
        f"one of {of} ranks of tensor parallelism, and the files of the others are not "
        f"here: {PARAMS} says dim {width:,}, and {show(held.name, 80)} has "
        f"{counted_noun(rows, 'row')}; {_ALONE}"
    )
    return _with_rank_notice(checkpoint, number, of, said)


_ALONE = "no file is a model by itself"


def _with_rank_notice(
    checkpoint: Checkpoint, number: int, of: int, text: str
) -> Checkpoint:
    notice = Notice("tensor-parallel", text)
    return replace(
        checkpoint,
        rank=ParallelRank(number, of),
        account=checkpoint.account.with_notices(notice),
    )


def notice_of(
    files: Sequence[tuple[str, Checkpoint]], folder: Location, limits: Limits
) -> Notice | None:
    """The notice about the files of all ranks, or None where they do not hold the same
    names.
    """
    text = _division_text(
        [checkpoint for _, checkpoint in files],
        _hidden_size(folder, limits),
        len(files),
    )
    if text is None:
        return None
    return Notice(
        "tensor-parallel",
        f"{len(files):,} ranks of tensor parallelism: {text}; {_ALONE}",
    )


def llama_in(names: Sequence[str]) -> dict[int, str]:
    """The files of Llama's ranks among the names of a folder: rank -> name."""
    rows = [
        (re.fullmatch(LLAMA, name), name)
        for name in sorted(names, key=natural_sort_key)
    ]
    return {int(match[1]): name for match, name in rows if match is not None}


def _rank_in_name(location: Location) -> int | None:
    """The rank that the name of a file, or of the folder around it, says."""
    folder, name = _names_of(location)
    match = _FILE.fullmatch(name)
    if match is not None:
        return int(next(group for group in match.groups() if group is not None))
    within = _FOLDER.fullmatch(folder) if name == _IN_FOLDER else None
    return None if within is None else int(within[1])


def _files_of_ranks(location: Location) -> dict[int, Location]:
    """The files of all ranks, with this one: those whose path differs by the rank
    alone.
    """
    folder, name = _names_of(location)
    ranks: dict[int, Location] = {}
    try:
        if _FILE.fullmatch(name):
            around = location.parent()
            for other in sorted(around.names(), key=natural_sort_key):
                match = _FILE.fullmatch(other)
                if match is not None and _without_rank(other) == _without_rank(name):
                    number = int(
                        next(group for group in match.groups() if group is not None)
                    )
                    # Two names may have one number: `.00.` and `.000.`.
                    ranks.setdefault(number, around.child(other))
            return ranks
        around = location.parent().parent()
        own = _FOLDER.fullmatch(folder)
        for other in sorted(around.names(), key=natural_sort_key):
            match = _FOLDER.fullmatch(other.rstrip("/"))
            if (
                match is None
                or own is None
                or match[2] != own[2]
                or not other.endswith("/")
            ):
                continue
            place = around.child(other[:-1], "no").child(_IN_FOLDER, "no")
            if place.is_file():
                ranks.setdefault(int(match[1]), place)
    except CkptError:
        return {}
    return ranks


def _without_rank(name: str) -> str:
    match = _FILE.fullmatch(name)
    assert match is not None
    index = next(
        index for index, group in enumerate(match.groups(), 1) if group is not None
    )
    return name[: match.start(index)] + "*" + name[match.end(index) :]


def _names_of(location: Location) -> tuple[str, str]:
    """The last two steps of a path."""
    *_, folder, name = ("", *location.name.replace("\\", "/").split("/"))
    return folder, name


def _division_text(
    ranks: Sequence[Checkpoint], width: int | None, of: int
) -> str | None:
    """Return how the tensors are divided over `of` ranks, by the checksums that files
    recorded, or None if names differ.

    `width` is the size of the whole model's hidden dimension.
    """
    first, *others = ({row.name: row.tensor for row in rank.tensors} for rank in ranks)
    if not first or any(other.keys() != first.keys() for other in others):
        return None
    sums = [
        [
            _recorded_checksum(tensor)
            for tensor in (held[name] for held in (first, *others))
        ]
        for name in first
    ]
    # Without recorded checksums parts look like copies.
    if any(None in row for row in sums):
        return "their names are equal"
    parts = [name for name, row in zip(first, sums, strict=True) if len(set(row)) > 1]
    # All ranks hold the same bytes, so none is a part.
    if not parts:
        return None
    # Norms are copied to all ranks, and are as long as the hidden dimension.
    copies = [
        first[name].shape
        for name in first.keys() - set(parts)
        if len(first[name].shape) == 1
    ]
    whole = width or next(
        (shape[0] for shape, _ in Counter(copies).most_common(1)), None
    )
    along = Counter(
        _divided_dimension(name, first[name].shape, whole, of) for name in parts
    )
    where = ", ".join(
        f"{along[at]:,} along dimension {at}" for at in (0, 1) if along[at]
    )
    if along[None] and where:
        where += f", {along[None]:,} unknown"
    text = (
        f"{len(parts):,} of {len(first):,} tensors are "
        f"divided{f' ({where})' if where else ''}"
    )
    return text + ("" if len(parts) == len(first) else ", the others are copies")


_ROWS = re.compile(
    r"(?:.*\.)?(?:w[qkv13]|output|query_key_value|linear_qkv|linear_fc1|dense_h_to_4h"
    r"|[qkv]_proj|gate_proj|up_proj)\.weight"
)
_COLUMNS = re.compile(
    r"(?:.*\.)?(?:w[o2]|attention\.dense|linear_proj|linear_fc2|dense_4h_to_h|o_proj"
    r"|down_proj)\.weight"
)
"""Names of matrices that are divided along dimension 0, and along 1, where their shape
does not tell.
"""


def _divided_dimension(
    name: str, shape: tuple[int, ...], whole: int | None, of: int
) -> int | None:
    """Return the dimension along which a part was cut: the one that is not the `whole`
    size. Return None if that is not sure.
    """
    if len(shape) == 1:
        return 0
    if len(shape) != 2:
        return None
    rows, columns = shape
    if whole is not None:
        # One of both is whole, so the other one was cut.
        if (rows == whole) != (columns == whole):
            return int(rows == whole)
        # None is whole, and one is a part of it.
        if whole not in shape and (rows * of == whole) != (columns * of == whole):
            return int(columns * of == whole)
    if _ROWS.fullmatch(name):
        return 0
    return 1 if _COLUMNS.fullmatch(name) else None


def _recorded_checksum(tensor: Tensor) -> object:
    """The recorded checksum of a tensor that has a storage to itself, with what it is;
    None without one.
    """
    if not isinstance(tensor, TensorRef) or tensor.storage.crc is None:
        return None
    return tensor.storage.crc, tensor.dtype.name, tensor.shape, tensor.offset


def _hidden_size(folder: Location, limits: Limits) -> int | None:
    """The dimension of the whole model, from `params.json`; None without one."""
    try:
        place = folder.child(PARAMS)
        if not place.is_file():
            return None
        document = parse_json(read_file(place, limits, PARAMS), PARAMS, Budget(limits))
    except CkptError:
        return None
    dim = document.get("dim") if isinstance(document, Mapping) else None
    return dim if type(dim) is int and dim > 0 else None
